//! Profiles and blobs. One that the desired state names and the disk lacks is asked for, and arrives in pieces.

use std::collections::BTreeSet;

use log::warn;
use stemma_wire::message::Hash;
use stemma_wire::message::channel::FromApply;
use stemma_wire::message::desired::Profile;
use tokio::time::Instant;

use super::{ASK_AGAIN, ApplyError, ApplyWorker};
use crate::apply::executor::is_in_order;
use crate::apply::ledger::{Arriving, Desired, Piece, part};
use crate::apply::verify::Refused;
use crate::host::HostError;

/// What is on its way.
#[derive(Default)]
pub(super) struct Bodies {
    /// Asked for, and not here yet.
    wanted: BTreeSet<Hash>,
    /// The one that comes now.
    arriving: Option<Box<Arriving>>,
}

impl ApplyWorker {
    /// The next piece of a body; an empty one begins it.
    pub(super) async fn body(&mut self, hash: Hash, bytes: &[u8]) -> Result<(), ApplyError> {
        if bytes.is_empty() {
            let before = self.bodies.arriving.take();
            self.give_up(before);
            if !self.bodies.wanted.contains(&hash) {
                // A second copy is accepted: it may have been asked for twice.
                return if self.site.ledger.has_body(hash)? { Ok(()) } else { self.refuse(&Refused::Body).await };
            }
            self.bodies.arriving = Some(self.site.ledger.arriving(hash).inspect_err(|_| self.ask_again(hash))?);
        }
        // Further pieces of a refused body are ignored.
        let Some(arriving) = self.bodies.arriving.take_if(|arriving| arriving.hash() == hash) else { return Ok(()) };
        match self.site.ledger.take_piece(arriving, bytes).inspect_err(|_| self.ask_again(hash))? {
            Piece::More(arriving) => {
                self.bodies.arriving = Some(arriving);
                Ok(())
            }
            Piece::TooLarge => {
                self.ask_again(hash);
                self.refuse(&Refused::Body).await
            }
            Piece::Whole => self.arrived(hash).await,
        }
    }

    async fn arrived(&mut self, hash: Hash) -> Result<(), ApplyError> {
        self.bodies.wanted.remove(&hash);
        if let Some(desired) = self.desired.clone()
            && desired.task_set.profile == Some(hash)
        {
            self.want_bodies(&desired).await?;
            self.plan(&desired)?;
        }
        Ok(())
    }

    /// A body was not given, or not all of it.
    pub(super) fn not_given(&mut self, hash: Hash) {
        warn!(hash:% = hash; "a profile or blob was not given; it is asked for again");
        let begun = self.bodies.arriving.take_if(|arriving| arriving.hash() == hash);
        self.give_up(begun);
        self.ask_again(hash);
    }

    fn ask_again(&mut self, hash: Hash) {
        self.bodies.wanted.remove(&hash);
        self.look_at = self.look_at.min(Instant::now() + ASK_AGAIN);
    }

    fn give_up(&self, arriving: Option<Box<Arriving>>) {
        if let Some(arriving) = arriving {
            self.site.ledger.give_up(*arriving);
        }
    }

    /// Asks for what the desired state names and the disk has not, and drops what it no longer names.
    pub(super) async fn want_bodies(&mut self, desired: &Desired) -> Result<(), ApplyError> {
        let mut named = BTreeSet::new();
        if let Some(hash) = desired.task_set.profile {
            named.insert(hash);
            if let Some(profile) = self.profile(desired)? {
                named.extend(profile.blobs());
            } else {
                // Which blobs it will name is not known yet: none is dropped.
                return self.want(named).await;
            }
        }
        self.site.ledger.keep_bodies(&named)?;
        self.want(named).await
    }

    async fn want(&mut self, named: BTreeSet<Hash>) -> Result<(), ApplyError> {
        let asked = std::mem::take(&mut self.bodies.wanted);
        for hash in named {
            if self.site.ledger.has_body(hash)? {
                continue;
            }
            if !asked.contains(&hash) {
                self.end.send(&FromApply::Want(hash)).await?;
            }
            self.bodies.wanted.insert(hash);
        }
        Ok(())
    }

    /// The profile of a task set; one that names none has no tasks. `None`: it is not here yet, or cannot be read, which is a finding then.
    pub(super) fn profile(&mut self, desired: &Desired) -> Result<Option<Profile>, HostError> {
        self.findings.state = None;
        let Some(hash) = desired.task_set.profile else { return Ok(Some(Profile::default())) };
        let Some(bytes) = self.site.ledger.body(hash)? else { return Ok(None) };
        let profile = part::<Profile>(desired.version, &bytes).filter(is_in_order);
        if profile.is_none() {
            self.findings.state = Some("the task profile cannot be read by this agent; upgrade it".into());
        }
        Ok(profile)
    }
}
