//! Handles the offers and grants of a controller. Each is verified before it changes anything.

use std::collections::BTreeSet;
use std::time::Duration;

use log::{info, warn};
use stemma_wire::message::WireVersion;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::observed::{Progress, TaskResult};
use stemma_wire::message::signed::{Grant, SignedDesired, SignedGrant};

use super::grants::HeldLease;
use super::{ApplyError, ApplyWorker};
use crate::apply::executor::TaskRun;
use crate::apply::ledger::{ACCEPTED, Desired, OPEN_BARRIERS, OpenBarriers, PROGRESS, REASONS, Reason};
use crate::apply::verify::{Refused, verify_desired, verify_grant};
use crate::host::HostError;

impl ApplyWorker {
    /// Handles an offered desired state: verifies it, stores it, writes the outputs for services, and plans a run if
    /// the task set or its mode changed, in that order.
    pub(super) async fn on_offer(&mut self, version: WireVersion, offer: &SignedDesired) -> Result<(), ApplyError> {
        let Some(trust) = &self.verifier else { return self.refuse(&Refused::NoIdentity).await };
        let held = self.site.ledger.accepted()?;
        let now = self.site.host.unix_seconds();
        let accepted = match verify_desired(trust, (version, offer), held.as_ref(), now) {
            Ok(accepted) => accepted,
            Err(refused) => return self.refuse(&refused).await,
        };
        let desired = accepted.desired();
        let is_of_another_epoch = held.as_ref().is_some_and(|held| held.epoch != accepted.epoch);
        if let Some(held) = held.as_ref().filter(|held| held.held().task_set != desired.digest) {
            self.record_files(&held.desired())?;
        }
        if is_of_another_epoch || held.is_none_or(|held| held.held().task_set != desired.digest) {
            // A barrier is opened for one wave of a task set. If a task set returns later, or the epoch changes, this
            // is another wave: all barriers are closed, and no earlier grant opens one. The closed barriers are written
            // before the accepted state, so that a crash in between leaves none open.
            let (task_set, revision) = (desired.digest, accepted.revision);
            self.site.ledger.put(&OPEN_BARRIERS, &OpenBarriers { task_set, revision, open: BTreeSet::new() })?;
        }
        let repeated = if is_of_another_epoch { self.repeat_results(&desired)? } else { Vec::new() };
        self.site.ledger.put(&ACCEPTED, &accepted)?;
        // The offer is accepted from here on. The next reconcile uses it, even if a later step fails.
        let before = self.desired.replace(desired.clone());
        self.end.send(&ApplyMessage::Accepted(accepted.held())).await?;
        self.is_offer_unanswered = false;
        info!(revision = accepted.revision.0, count = desired.known.labels.len(); "desired state accepted");
        self.write_outputs(&desired, before.as_ref().map(|before| &before.known));
        let same_tasks = before.as_ref().is_some_and(|before| {
            before.digest == desired.digest
                && before.mode() == desired.mode()
                && before.known.parked == desired.known.parked
                && before.is_unreleased() == desired.is_unreleased()
        });
        if !same_tasks {
            self.failures = 0;
            // The progress of the previous task set does not apply to this one. If a task of the previous one still
            // runs, it must end before the new run starts.
            let is_running = self.run.as_ref().is_some_and(TaskRun::is_running);
            self.progress = if is_running { Progress::Running } else { Progress::Idle };
            self.restore_barriers(&desired)?;
            self.request_bodies(&desired).await?;
            self.plan_run(&desired)?;
        }
        if is_of_another_epoch && same_tasks {
            // Grants of the previous epoch are no longer valid.
            self.restore_barriers(&desired)?;
            self.grants.end_leases();
        }
        self.send_results(&repeated).await?;
        self.schedule_hooks(&desired)?;
        Ok(())
    }

    /// Stores the last results of a task set again under new sequence numbers, so that they are reported once more. A
    /// store that was restored from an older copy lacks the results since that copy, and waits for them. No task runs
    /// for this. The caller accepts the new epoch only afterwards, so that a crash in between loses no result.
    fn repeat_results(&self, desired: &Desired) -> Result<Vec<TaskResult>, HostError> {
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
        info!(count = results.len(); "the store was restored from an older copy; results are reported again");
        Ok(results)
    }

    /// Logs why a message of the controller is refused, and tells the network half.
    pub(super) async fn refuse(&mut self, refused: &Refused) -> Result<(), ApplyError> {
        let reason = match std::error::Error::source(refused) {
            Some(source) => format!("{refused}: {source}"),
            None => refused.to_string(),
        };
        warn!(error = reason.as_str(); "what a controller sent is refused");
        self.is_offer_unanswered = false;
        Ok(self.end.send(&ApplyMessage::Refused { reason }).await?)
    }

    /// Handles a grant: verifies it, then opens barriers of the held task set or takes over a lease. Open barriers are
    /// also written to disk.
    pub(super) async fn on_grant(&mut self, signed: &SignedGrant) -> Result<(), ApplyError> {
        let Some(trust) = &self.verifier else { return self.refuse(&Refused::NoIdentity).await };
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
                if let Some(barriers) = self.grants.update_barriers(OpenBarriers { task_set, revision: signed.revision, open }) {
                    self.site.ledger.put(&OPEN_BARRIERS, barriers)?;
                }
                Ok(())
            }
            Grant::Lease { kind, duration_s } => {
                let expires_at = self.site.host.uptime() + Duration::from_secs((*duration_s).into());
                self.grants.update_lease(*kind, HeldLease { revision: signed.revision, expires_at });
                Ok(())
            }
        }
    }
}
