//! Receives profiles and blobs, here called bodies. The agent requests each body that the desired state names and its
//! disk lacks. A body arrives in pieces.

use std::collections::BTreeSet;

use log::warn;
use stemma_wire::message::Hash;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::desired::Profile;
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, BODY_RETRY_DELAY};
use crate::apply::clean_ups;
use crate::apply::executor::is_topologically_sorted;
use crate::apply::ledger::{BodyProgress, Desired, IncomingBody, read_part};
use crate::apply::verify::MessageRefusal;
use crate::host::HostError;

/// The downloads of bodies (profiles and blobs).
#[derive(Default)]
pub(super) struct BodyDownloads {
    /// Hashes of the bodies that the agent requested and has not received completely.
    requested: BTreeSet<Hash>,
    /// The body that the agent is receiving. Its earlier pieces are in an unfinished file.
    incoming: Option<Box<IncomingBody>>,
}

impl ApplyWorker {
    /// Handles the next piece of a body (a profile or blob). An empty piece begins a body, and discards the previous
    /// one if it is incomplete. Refuses a body that the agent did not request, or that is too large.
    pub(super) async fn receive_piece(&mut self, hash: Hash, bytes: &[u8]) -> Result<(), ApplyError> {
        if bytes.is_empty() {
            let previous = self.bodies.incoming.take();
            self.discard(previous);
            if !self.bodies.requested.contains(&hash) {
                // The agent may have requested a body twice. So it ignores a second copy of a body that it has, and
                // does not refuse it.
                return if self.site.ledger.has_body(hash)? { Ok(()) } else { self.refuse(&MessageRefusal::Body).await };
            }
            self.bodies.incoming = Some(self.site.ledger.begin_body(hash).inspect_err(|_| self.retry_later(hash))?);
        }
        // If the body was refused, the agent ignores its further pieces.
        let Some(incoming) = self.bodies.incoming.take_if(|body| body.hash() == hash) else { return Ok(()) };
        match self.site.ledger.append_piece(incoming, bytes).inspect_err(|_| self.retry_later(hash))? {
            BodyProgress::More(incoming) => {
                self.bodies.incoming = Some(incoming);
                Ok(())
            }
            BodyProgress::TooLarge => {
                self.retry_later(hash);
                self.refuse(&MessageRefusal::Body).await
            }
            BodyProgress::Complete => self.complete_body(hash).await,
        }
    }

    /// Handles a body that has arrived completely and is on disk. If it is the profile of the desired state, requests
    /// the blobs that the profile names, and plans a run. If it is a blob, the run itself starts the task that waits
    /// for the blob.
    async fn complete_body(&mut self, hash: Hash) -> Result<(), ApplyError> {
        self.bodies.requested.remove(&hash);
        if let Some(desired) = self.desired.clone()
            && desired.task_set.profile == Some(hash)
        {
            self.request_bodies(&desired).await?;
            self.plan_run(&desired)?;
        }
        Ok(())
    }

    /// Handles the message that the network half of the agent cannot send a body or the rest of it. The agent requests
    /// the body again later.
    pub(super) fn on_body_unavailable(&mut self, hash: Hash) {
        warn!(hash:% = hash; "a profile or blob was not sent; it is requested again");
        let incoming = self.bodies.incoming.take_if(|body| body.hash() == hash);
        self.discard(incoming);
        self.retry_later(hash);
    }

    /// Lets the next reconcile request a body again. That reconcile starts at the latest after [`BODY_RETRY_DELAY`].
    fn retry_later(&mut self, hash: Hash) {
        self.bodies.requested.remove(&hash);
        self.next_reconcile_at = self.next_reconcile_at.min(Instant::now() + BODY_RETRY_DELAY);
    }

    /// Removes the unfinished file of an incomplete body, if there is one.
    fn discard(&self, incoming: Option<Box<IncomingBody>>) {
        if let Some(incoming) = incoming {
            self.site.ledger.discard_body(*incoming);
        }
    }

    /// Requests the bodies (the profile and its blobs) that the desired state names and that are not on disk. Deletes
    /// the bodies that neither the desired state nor a clean-up names, unless the profile is missing or unreadable.
    pub(super) async fn request_bodies(&mut self, desired: &Desired) -> Result<(), ApplyError> {
        let mut named_hashes = BTreeSet::new();
        if let Some(hash) = desired.task_set.profile {
            named_hashes.insert(hash);
            if let Some(profile) = self.profile(desired)? {
                named_hashes.extend(profile.blobs());
                self.site.ledger.retain_tree_records(profile.tasks.iter().map(|task| task.id.as_str()))?;
            } else {
                // Without the profile, the agent does not know which blobs the desired state names. So it deletes none.
                return self.request(named_hashes).await;
            }
        }
        let kept_hashes = clean_ups::profile(&self.site)?.blobs().chain(named_hashes.iter().copied()).collect();
        self.site.ledger.retain_bodies(&kept_hashes)?;
        self.request(named_hashes).await
    }

    /// Requests those of the bodies in `hashes` that are not on disk and that the agent has not requested already.
    /// Forgets its requests of all other bodies.
    async fn request(&mut self, hashes: BTreeSet<Hash>) -> Result<(), ApplyError> {
        let previous_requests = std::mem::take(&mut self.bodies.requested);
        for hash in hashes {
            if self.site.ledger.has_body(hash)? {
                continue;
            }
            if !previous_requests.contains(&hash) {
                self.channel.send(&ApplyMessage::ContentRequest(hash)).await?;
            }
            self.bodies.requested.insert(hash);
        }
        Ok(())
    }

    /// Returns the profile (the list of tasks) of a desired state. If the task set names no profile, returns an empty
    /// profile. Returns `None` if the profile has not arrived yet.
    ///
    /// If this agent cannot read the profile, returns `None` and sets the finding `state`. Otherwise clears that
    /// finding.
    pub(super) fn profile(&mut self, desired: &Desired) -> Result<Option<Profile>, HostError> {
        self.findings.state = None;
        let Some(hash) = desired.task_set.profile else { return Ok(Some(Profile::default())) };
        let Some(bytes) = self.site.ledger.body(hash)? else { return Ok(None) };
        let profile = read_part::<Profile>(desired.version, &bytes).filter(is_topologically_sorted);
        if profile.is_none() {
            self.findings.state = Some("this agent cannot read the task profile; upgrade the agent".into());
        }
        Ok(profile)
    }
}
