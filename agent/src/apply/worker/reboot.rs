//! Reboots the host when a controller grants a lease for it, because an operator ran `stemma node reboot`.
//!
//! ```text
//! lease ──▶ waiting (tasks, hooks, inhibitors) ──▶ begun ──▶ the host goes down
//!              │                                     │
//!              └── the lease ends ──▶ given up ◀─────┘ it has not gone down in time
//! ```
//!
//! A lease is used once. The ledger has the revision of the last one that was used, before the host goes down. So neither a
//! restart of the agent nor a compromised network half, which could send an old lease again after the boot, reboots the
//! host a second time.

use std::time::Duration;

use log::{error, info, warn};
use stemma_core::task::Mode;
use stemma_wire::message::signed::SignedGrant;
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, HookState};
use crate::apply::executor::TaskRun;
use crate::apply::ledger::{Desired, USED_REBOOT, UsedReboot};
use crate::apply::reboots::DEFAULT_REBOOT_SECONDS;
use crate::host::HostCommand;
use crate::host::command::log_excerpt;

/// Interval at which the agent checks whether the host can be rebooted.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the agent asks again whether somebody inhibits the reboot.
const INHIBITOR_INTERVAL: Duration = Duration::from_secs(10);

/// Time limit of the command that begins the reboot.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// A reboot of the host that a controller has granted.
pub(super) struct GrantedReboot {
    /// The lease, as the ledger records that it was used.
    lease: UsedReboot,
    /// The end of the lease, or after the begin the time by which the host must be down, since the machine started.
    ends_at: Duration,
    /// True if the host has begun to go down.
    has_begun: bool,
    /// The next time at which the agent checks the reboot.
    pub(super) check_at: Instant,
}

impl ApplyWorker {
    /// Handles a lease for a reboot, which ends at `ends_at`. Ignores a lease that was used or is older than one that was
    /// used. Then lets the running tasks end, and starts no other task.
    pub(super) async fn on_reboot_lease(&mut self, grant: &SignedGrant, ends_at: Duration) -> Result<(), ApplyError> {
        let lease = UsedReboot { epoch: grant.epoch.0, revision: grant.revision.0 };
        let is_older = |used: &UsedReboot| used.epoch == lease.epoch && used.revision >= lease.revision;
        let is_held = self.reboot.as_ref().is_some_and(|reboot| is_older(&reboot.lease));
        if is_held || self.site.ledger.get(&USED_REBOOT)?.is_some_and(|used| is_older(&used)) {
            return Ok(());
        }
        if let Some(reason) = self.reboot_refusal() {
            self.site.ledger.put(&USED_REBOOT, &lease)?;
            return self.give_up_reboot(reason).await;
        }
        info!(revision = lease.revision; "a controller requests a reboot of this host");
        self.reboot_problem = None;
        self.reboot = Some(GrantedReboot { lease, ends_at, has_begun: false, check_at: Instant::now() });
        self.must_run_end |= self.run.is_some();
        Ok(())
    }

    /// Ends a lease for a reboot that has not begun, because its epoch or node has ended. Returns whether there was one.
    pub(super) fn end_reboot_lease(&mut self) -> bool {
        let had_lease = self.reboot.take_if(|reboot| !reboot.has_begun).is_some();
        if had_lease {
            self.reboot_problem = None;
        }
        had_lease
    }

    /// Returns the reason why this host is not rebooted on request, or `None` if it is.
    fn reboot_refusal(&self) -> Option<String> {
        let mode = self.desired.as_ref().map(Desired::mode);
        if !self.site.host.can_reboot() {
            Some("systemd does not run this host, or the agent is not root".into())
        } else if self.local.paused {
            Some("the agent is paused on this host (`stemma-agent resume` ends that)".into())
        } else if mode != Some(Mode::Apply) {
            Some("the mode of this host is not apply, so nothing is changed there".into())
        } else {
            None
        }
    }

    /// Begins the granted reboot if nothing prevents it any more. Otherwise reports what prevents it, and checks again
    /// later. Gives up when the lease has ended, or when the host has not gone down in time.
    pub(super) async fn advance_reboot(&mut self) -> Result<(), ApplyError> {
        let Some(reboot) = &mut self.reboot else { return Ok(()) };
        let (has_begun, is_over) = (reboot.has_begun, self.site.host.uptime() >= reboot.ends_at);
        let lease = reboot.lease.clone();
        // A write of the ledger may fail below, and is tried again then.
        reboot.check_at = Instant::now() + CHECK_INTERVAL;
        if has_begun {
            let message = "the host has not gone down in time after `systemctl reboot`".to_owned();
            return if is_over { self.give_up_reboot(message).await } else { Ok(()) };
        }
        let Some(obstacle) = self.reboot_obstacle().await else { return self.begin_reboot(&lease).await };
        if is_over {
            return self.give_up_reboot(format!("it could not begin in time: {obstacle}")).await;
        }
        if self.reboot_problem.as_ref() != Some(&obstacle) {
            info!(error = obstacle.as_str(); "the reboot of this host waits");
            self.reboot_problem = Some(obstacle);
        }
        self.report().await
    }

    /// Returns what prevents the reboot now, or `None` if it can begin.
    async fn reboot_obstacle(&mut self) -> Option<String> {
        if let Some(run) = self.run.as_ref().filter(|run| TaskRun::is_running(run)) {
            return Some(format!("running tasks must end first: {}", run.running().collect::<Vec<_>>().join(", ")));
        }
        if self.left_ends.is_some() {
            return Some("a command that an earlier agent started must end first".into());
        }
        if matches!(self.hooks, HookState::Running(..)) {
            return Some("running hooks must end first".into());
        }
        let blockers = match self.site.host.shutdown_blockers().await {
            Ok(blockers) => blockers,
            Err(error) => vec![error.sentence()],
        };
        if blockers.is_empty() {
            return None;
        }
        if let Some(reboot) = &mut self.reboot {
            reboot.check_at = Instant::now() + INHIBITOR_INTERVAL;
        }
        Some(format!("it is inhibited by {}", blockers.join("; ")))
    }

    /// Records that the lease is used, and lets systemd reboot the host.
    async fn begin_reboot(&mut self, lease: &UsedReboot) -> Result<(), ApplyError> {
        let timeout_s = self.site.ledger.pending_reboots(self.boot_id)?.values().map(|request| request.timeout_s).max();
        self.site.ledger.put(&USED_REBOOT, lease)?;
        warn!(revision = lease.revision; "this host is rebooted, as a controller requests");
        let argv = ["systemctl", "reboot"].map(str::to_owned);
        match self.site.host.run(&HostCommand::new(argv.to_vec(), COMMAND_TIMEOUT)).await {
            Ok(result) if result.end.is_success() => {
                if let Some(reboot) = &mut self.reboot {
                    reboot.has_begun = true;
                    let timeout = Duration::from_secs(timeout_s.unwrap_or(DEFAULT_REBOOT_SECONDS));
                    reboot.ends_at = self.site.host.uptime() + timeout;
                }
                self.reboot_problem = None;
                self.report().await
            }
            Ok(result) => {
                let output = log_excerpt(&result.output).unwrap_or_default();
                let message = format!("`systemctl reboot` {}: {}", result.end.sentence(), output.trim());
                self.give_up_reboot(message).await
            }
            Err(error) => self.give_up_reboot(error.sentence()).await,
        }
    }

    /// Ends the granted reboot without a reboot, reports the reason, and lets tasks start again.
    async fn give_up_reboot(&mut self, reason: String) -> Result<(), ApplyError> {
        error!(error = reason.as_str(); "this host is not rebooted; `stemma node reboot` requests it again");
        let had_lease = self.reboot.take().is_some();
        self.reboot_problem = Some(reason);
        if had_lease { self.reconcile().await } else { self.report().await }
    }
}
