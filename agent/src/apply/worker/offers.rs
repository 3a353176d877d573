//! Handles the offers and grants of a controller. Each is verified before it changes anything.

use std::collections::BTreeSet;
use std::time::Duration;

use log::{info, warn};
use stemma_wire::message::WireVersion;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::observed::{Progress, TaskResult};
use stemma_wire::message::signed::{Grant, LeaseKind, SignedDesired, SignedGrant};

use super::{ApplyError, ApplyWorker};
use crate::apply::executor::TaskRun;
use crate::apply::ledger::{ACCEPTED, ACCEPTED_NODE, Desired, OPEN_BARRIERS, OpenBarriers, PROGRESS, REASONS, Reason};
use crate::apply::verify::{MessageRefusal, verify_desired, verify_grant};
use crate::host::HostError;

impl ApplyWorker {
    /// Handles an offered desired state: verifies it, stores it, and writes the outputs. If the task set, the epoch or the
    /// node of this host changed, also closes all barriers. Plans a run if the task set, the mode, the park,
    /// `remove_orphans` or [`Desired::is_unreleased`] changed. After a change of the epoch or the node, also sends the last
    /// results again. Refuses an invalid offer.
    pub(super) async fn on_offer(&mut self, version: WireVersion, offer: &SignedDesired) -> Result<(), ApplyError> {
        let Some(trust) = &self.verifier else { return self.refuse(&MessageRefusal::NoIdentity).await };
        let held_state = self.site.ledger.accepted()?;
        let (now, node) = (self.site.host.unix_seconds(), trust.node);
        let is_of_other_node = self.site.ledger.is_of_other_node(node)?;
        // The revisions of two nodes have no order. Each offer is signed for its node.
        let earlier_state = held_state.as_ref().filter(|_| !is_of_other_node);
        let accepted = match verify_desired(trust, (version, offer), earlier_state, now) {
            Ok(accepted) => accepted,
            Err(refused) => return self.refuse(&refused).await,
        };
        let desired = accepted.desired();
        let is_of_another_epoch = earlier_state.is_some_and(|held_state| held_state.epoch != accepted.epoch);
        // The controller has neither the last results nor the grants of this host.
        let is_new_start = is_of_another_epoch || (is_of_other_node && held_state.is_some());
        if let Some(held_state) = held_state.as_ref().filter(|held_state| held_state.held_desired().task_set != desired.digest) {
            self.record_files(&held_state.desired())?;
        }
        if is_new_start || held_state.is_none_or(|held_state| held_state.held_desired().task_set != desired.digest) {
            // The controller opens barriers for one rollout of a task set. If the same task set returns after another
            // one, or the epoch or the node changes, this is another rollout, for which all barriers are closed. The closed
            // barriers are written before the accepted state. So a crash in between leaves no barrier open.
            let (task_set, revision) = (desired.digest, accepted.revision);
            self.site.ledger.put(&OPEN_BARRIERS, &OpenBarriers { task_set, revision, open: BTreeSet::new() })?;
        }
        let repeated_results = if is_new_start { self.repeat_results(&desired)? } else { Vec::new() };
        self.site.ledger.put(&ACCEPTED, &accepted)?;
        if is_of_other_node {
            // The node is written after the state. After a crash in between, the host only accepts the state once more.
            self.site.ledger.put(&ACCEPTED_NODE, &node)?;
        }
        // The offer is accepted from here on. The next reconcile uses it, even if a later step fails.
        let previous = self.desired.replace(desired.clone());
        self.channel.send(&ApplyMessage::Accepted(accepted.held_desired())).await?;
        self.is_offer_unanswered = false;
        info!(revision = accepted.revision.0, count = desired.known.labels.len(); "desired state accepted");
        self.write_outputs(&desired, previous.as_ref().map(|previous| &previous.known));
        // Grants of the previous epoch or node are no longer valid. No task started while the host waited for its reboot.
        let has_lost_lease = is_new_start && self.end_reboot_lease();
        let needs_new_run = has_lost_lease
            || previous.as_ref().is_none_or(|previous| {
                previous.digest != desired.digest
                    || previous.mode() != desired.mode()
                    || previous.known.parked != desired.known.parked
                    || previous.known.removes_orphans() != desired.known.removes_orphans()
                    || previous.is_unreleased() != desired.is_unreleased()
            });
        if needs_new_run {
            self.failures = 0;
            // The progress of the previous task set does not apply to the new one. If a task of the previous run still
            // runs, that task must end before the new run starts.
            let is_running = self.run.as_ref().is_some_and(TaskRun::is_running);
            self.progress = if is_running { Progress::Running } else { Progress::Idle };
            self.restore_barriers(&desired)?;
            self.request_bodies(&desired).await?;
            self.plan_run(&desired)?;
        }
        if is_new_start && !needs_new_run {
            self.restore_barriers(&desired)?;
        }
        self.send_results(&repeated_results).await?;
        self.schedule_hooks(&desired)?;
        Ok(())
    }

    /// Stores the last result of each task of this task set again under a new sequence number, and returns these
    /// results, so that the caller sends them again. They have no diff and no duration. No task runs for this.
    ///
    /// The epoch changes when the controller's store was restored from an older copy. Such a store lacks the results
    /// since that copy, and it has no result of a new node. The caller stores the new epoch or node only afterwards, so
    /// that a crash in between loses no result.
    fn repeat_results(&self, desired: &Desired) -> Result<Vec<TaskResult>, HostError> {
        let progress = self.site.ledger.get(&PROGRESS)?.unwrap_or_default();
        let mut reasons = self.site.ledger.get(&REASONS)?.unwrap_or_default();
        let set_tasks = progress.tasks.into_iter().filter(|(_, task_record)| task_record.task_set == desired.digest);
        let results = set_tasks.map(|(task, task_record)| {
            let Reason { message, output } = reasons.remove(&task).unwrap_or_default();
            TaskResult {
                // The ledger sets the number when it stores the result.
                sequence: 0,
                task_set: desired.digest,
                task,
                outcome: task_record.outcome,
                message,
                output,
                diff: String::new(),
                duration_ms: 0,
            }
        });
        let results = self.site.ledger.add_results(results.collect())?;
        info!(count = results.len(); "the controller lacks the last results of this host; they are reported again");
        Ok(results)
    }

    /// Logs the reason why the agent refuses a message of the controller, and sends the reason to the network half of
    /// the agent. An offer without a response then counts as answered.
    pub(super) async fn refuse(&mut self, refused: &MessageRefusal) -> Result<(), ApplyError> {
        let reason = match std::error::Error::source(refused) {
            Some(source) => format!("{refused}: {source}"),
            None => refused.to_string(),
        };
        warn!(error = reason.as_str(); "what a controller sent is refused");
        self.is_offer_unanswered = false;
        Ok(self.channel.send(&ApplyMessage::Refused { reason }).await?)
    }

    /// Handles a grant (open barriers, or a lease). Verifies the grant, and then replaces the open barriers, also on
    /// disk, or begins the reboot that the lease permits. Refuses barriers of another task set than that of this host. Does nothing if a grant
    /// of the same kind is newer, or without a desired state that was accepted for this node.
    pub(super) async fn on_grant(&mut self, signed: &SignedGrant) -> Result<(), ApplyError> {
        let Some(trust) = &self.verifier else { return self.refuse(&MessageRefusal::NoIdentity).await };
        let Some(held) = self.site.ledger.accepted()? else { return Ok(()) };
        if self.site.ledger.is_of_other_node(trust.node)? {
            return Ok(());
        }
        let now_unix_seconds = self.site.host.unix_seconds();
        if let Err(refused) = verify_grant(trust, signed, &held, now_unix_seconds) {
            return self.refuse(&refused).await;
        }
        match &signed.grant {
            Grant::Barriers { task_set, .. } if *task_set != held.held_desired().task_set => {
                let (offered, held) = (signed.revision.0, held.revision.0);
                self.refuse(&MessageRefusal::OtherTaskSet { offered, held }).await
            }
            Grant::Barriers { task_set, open } => {
                let (task_set, open) = (*task_set, open.iter().cloned().collect());
                if let Some(barriers) = self.grants.update_barriers(OpenBarriers { task_set, revision: signed.revision, open }) {
                    self.site.ledger.put(&OPEN_BARRIERS, barriers)?;
                }
                Ok(())
            }
            Grant::Lease { kind: LeaseKind::Reboot, duration_s } => {
                let expires_at = self.site.host.uptime() + Duration::from_secs((*duration_s).into());
                self.on_reboot_lease(signed, expires_at).await
            }
            // No task type of this agent uses such a lease yet.
            Grant::Lease { kind: LeaseKind::Mend, .. } => Ok(()),
        }
    }
}
