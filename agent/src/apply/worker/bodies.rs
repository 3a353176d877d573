//! Receives profiles and blobs, here called bodies. The agent requests each body that the desired state names and its
//! disk lacks. A body arrives in pieces.

use std::collections::BTreeSet;

use log::warn;
use stemma_wire::message::Hash;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::desired::Profile;
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, BODY_RETRY_DELAY};
use crate::apply::executor::is_topologically_sorted;
use crate::apply::ledger::{BodyProgress, Desired, IncomingBody, read_part};
use crate::apply::verify::Refused;
use crate::host::HostError;

/// The bodies that are being downloaded.
#[derive(Default)]
pub(super) struct BodyDownloads {
    /// Hashes of the bodies that were requested and have not arrived completely.
    requested: BTreeSet<Hash>,
    /// The body that is being received.
    incoming: Option<Box<IncomingBody>>,
}

impl ApplyWorker {
    /// Handles the next piece of a body. An empty piece begins the body.
    pub(super) async fn receive_piece(&mut self, hash: Hash, bytes: &[u8]) -> Result<(), ApplyError> {
        if bytes.is_empty() {
            let previous = self.bodies.incoming.take();
            self.discard(previous);
            if !self.bodies.requested.contains(&hash) {
                // The agent may have requested a body twice. So the second copy of a body that is on disk is not
                // refused.
                return if self.site.ledger.has_body(hash)? { Ok(()) } else { self.refuse(&Refused::Body).await };
            }
            self.bodies.incoming = Some(self.site.ledger.begin_body(hash).inspect_err(|_| self.retry_later(hash))?);
        }
        // Further pieces of a refused body are ignored.
        let Some(incoming) = self.bodies.incoming.take_if(|arriving| arriving.hash() == hash) else { return Ok(()) };
        match self.site.ledger.append_piece(incoming, bytes).inspect_err(|_| self.retry_later(hash))? {
            BodyProgress::More(incoming) => {
                self.bodies.incoming = Some(incoming);
                Ok(())
            }
            BodyProgress::TooLarge => {
                self.retry_later(hash);
                self.refuse(&Refused::Body).await
            }
            BodyProgress::Complete => self.complete_body(hash).await,
        }
    }

    /// Handles a body that is now on disk. If it is the profile of the desired state, requests the blobs that the
    /// profile names and plans a run. A blob needs no more: the run starts its task by itself.
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

    /// Handles a body that was not sent, or not completely. It is requested again later.
    pub(super) fn body_unavailable(&mut self, hash: Hash) {
        warn!(hash:% = hash; "a profile or blob was not sent; it is requested again");
        let incoming = self.bodies.incoming.take_if(|body| body.hash() == hash);
        self.discard(incoming);
        self.retry_later(hash);
    }

    /// Makes a reconcile request a body again, after [`BODY_RETRY_DELAY`] at the latest.
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

    /// Requests the bodies that the desired state names and the disk lacks. Deletes the bodies that the desired state
    /// no longer names.
    pub(super) async fn request_bodies(&mut self, desired: &Desired) -> Result<(), ApplyError> {
        let mut named = BTreeSet::new();
        if let Some(hash) = desired.task_set.profile {
            named.insert(hash);
            if let Some(profile) = self.profile(desired)? {
                named.extend(profile.blobs());
            } else {
                // The blobs of the profile are not known yet, so none is deleted.
                return self.request(named).await;
            }
        }
        self.site.ledger.retain_bodies(&named)?;
        self.request(named).await
    }

    /// Requests the named bodies that are not on disk, unless they are requested already. Forgets other requests.
    async fn request(&mut self, named: BTreeSet<Hash>) -> Result<(), ApplyError> {
        let requested = std::mem::take(&mut self.bodies.requested);
        for hash in named {
            if self.site.ledger.has_body(hash)? {
                continue;
            }
            if !requested.contains(&hash) {
                self.end.send(&ApplyMessage::ContentRequest(hash)).await?;
            }
            self.bodies.requested.insert(hash);
        }
        Ok(())
    }

    /// Returns the profile of a task set. A task set that names no profile has no tasks. Returns `None` if the profile
    /// has not arrived yet, or if this agent cannot read it. In the latter case a finding reports this.
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
