//! What comes from a controller: desired state and grants, each verified before it changes anything.

use std::collections::BTreeSet;
use std::time::Duration;

use log::{info, warn};
use stemma_wire::message::WireVersion;
use stemma_wire::message::channel::FromApply;
use stemma_wire::message::observed::{Progress, TaskResult};
use stemma_wire::message::signed::{Grant, SignedDesired, SignedGrant};

use super::grants::Lease;
use super::{ApplyError, ApplyWorker};
use crate::apply::executor::Run;
use crate::apply::ledger::{ACCEPTED, Desired, OPEN_BARRIERS, OpenBarriers, PROGRESS, REASONS, Reason};
use crate::apply::verify::{Refused, verify_desired, verify_grant};
use crate::host::HostError;

impl ApplyWorker {
    /// A desired state: verified, on disk, known to services, in that order.
    pub(super) async fn offered(&mut self, version: WireVersion, offer: &SignedDesired) -> Result<(), ApplyError> {
        let Some(trust) = &self.trust else { return self.refuse(&Refused::NoIdentity).await };
        let held = self.site.ledger.accepted()?;
        let now = self.site.host.unix_seconds();
        let accepted = match verify_desired(trust, (version, offer), held.as_ref(), now) {
            Ok(accepted) => accepted,
            Err(refused) => return self.refuse(&refused).await,
        };
        let now = accepted.desired();
        let is_of_another_epoch = held.as_ref().is_some_and(|held| held.epoch != accepted.epoch);
        if let Some(held) = held.as_ref().filter(|held| held.held().task_set != now.digest) {
            self.note_files_of(&held.desired())?;
        }
        if is_of_another_epoch || held.is_none_or(|held| held.held().task_set != now.digest) {
            // A barrier is opened for one wave of a task set. When the same task set comes back, or in another epoch, that is another
            // wave: no barrier is open, and no earlier grant opens one. This is written first, so that a crash leaves none open.
            let (task_set, revision) = (now.digest, accepted.revision);
            self.site.ledger.put(&OPEN_BARRIERS, &OpenBarriers { task_set, revision, open: BTreeSet::new() })?;
        }
        let again = if is_of_another_epoch { self.results_again(&now)? } else { Vec::new() };
        self.site.ledger.put(&ACCEPTED, &accepted)?;
        // The offer is accepted from here on. The next look uses it, whatever fails now.
        let before = self.desired.replace(now.clone());
        self.end.send(&FromApply::Accepted(accepted.held())).await?;
        self.owes_answer = false;
        info!(revision = accepted.revision.0, count = now.known.labels.len(); "desired state accepted");
        self.write_outputs(&now, before.as_ref().map(|before| &before.known));
        let same_tasks = before.as_ref().is_some_and(|before| {
            before.digest == now.digest
                && before.mode() == now.mode()
                && before.known.parked == now.known.parked
                && before.is_unreleased() == now.is_unreleased()
        });
        if !same_tasks {
            self.failures = 0;
            // The progress of the last task set does not apply to this one, but it waits for what still runs of that one.
            let is_running = self.run.as_ref().is_some_and(Run::is_running);
            self.progress = if is_running { Progress::Running } else { Progress::Idle };
            self.restore_barriers(&now)?;
            self.want_bodies(&now).await?;
            self.plan(&now)?;
        }
        if is_of_another_epoch && same_tasks {
            // Grants of the epoch that ended count no more.
            self.restore_barriers(&now)?;
            self.grants.end_leases();
        }
        self.tell_results(&again).await?;
        self.tell_hooks(&now)?;
        Ok(())
    }

    /// Keeps what became of the tasks of a task set once more, under new numbers, to be reported: a store that came back from an older copy
    /// lacks what it was told after that, and waits for it. Nothing runs for that. It is kept before the epoch is accepted, so that a crash
    /// loses none.
    fn results_again(&self, desired: &Desired) -> Result<Vec<TaskResult>, HostError> {
        let progress = self.site.ledger.get(&PROGRESS)?.unwrap_or_default();
        let mut reasons = self.site.ledger.get(&REASONS)?.unwrap_or_default();
        let of_set = progress.tasks.into_iter().filter(|(_, performed)| performed.task_set == desired.digest);
        let results = of_set.map(|(task, performed)| {
            let Reason { message, output } = reasons.remove(&task).unwrap_or_default();
            TaskResult {
                sequence: 0,
                task_set: desired.digest,
                task,
                outcome: performed.outcome,
                message,
                output,
                diff: String::new(),
                duration_ms: 0,
            }
        });
        let results = self.site.ledger.add_results(results.collect())?;
        info!(count = results.len(); "the store came back from an older copy; results are reported again");
        Ok(results)
    }

    pub(super) async fn refuse(&mut self, refused: &Refused) -> Result<(), ApplyError> {
        let reason = match std::error::Error::source(refused) {
            Some(source) => format!("{refused}: {source}"),
            None => refused.to_string(),
        };
        warn!(error = reason.as_str(); "what a controller sent is refused");
        self.owes_answer = false;
        Ok(self.end.send(&FromApply::Refused { reason }).await?)
    }

    pub(super) async fn granted(&mut self, signed: &SignedGrant) -> Result<(), ApplyError> {
        let Some(trust) = &self.trust else { return self.refuse(&Refused::NoIdentity).await };
        let Some(held) = self.site.ledger.accepted()? else { return Ok(()) };
        let now = self.site.host.unix_seconds();
        if let Err(refused) = verify_grant(trust, signed, &held, now) {
            return self.refuse(&refused).await;
        }
        match &signed.grant {
            Grant::Barriers { task_set, .. } if *task_set != held.held().task_set => {
                let (offered, held) = (signed.revision.0, held.revision.0);
                self.refuse(&Refused::OtherTaskSet { offered, held }).await
            }
            Grant::Barriers { task_set, open } => {
                let (task_set, open) = (*task_set, open.iter().cloned().collect());
                if let Some(kept) =
                    self.grants.keep_barriers(OpenBarriers { task_set, revision: signed.revision, open })
                {
                    self.site.ledger.put(&OPEN_BARRIERS, kept)?;
                }
                Ok(())
            }
            Grant::Lease { kind, duration_s } => {
                let until = self.site.host.uptime() + Duration::from_secs((*duration_s).into());
                self.grants.keep_lease(*kind, Lease { revision: signed.revision, until });
                Ok(())
            }
        }
    }
}
