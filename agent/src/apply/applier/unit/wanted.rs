//! The desired state of a unit, and how the status of the unit differs from it.

use std::time::Duration;

use stemma_core::task::{AGENT_ENDS_ITSELF, ServiceParameters, UNIT_ENDS_HOST, ends_host, name_rules};

use crate::apply::applier::parameters;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{HostTask, Site, TaskError};
use crate::host::real::AGENT_UNIT;
use crate::host::system_units::{ActiveState, LoadState, UnitStatus};

/// Timeout of a job for which the task sets no timeout, in seconds. It is the default of systemd for starts and stops.
const DEFAULT_TIMEOUT_SECONDS: u64 = 90;

/// The desired state of a unit. `None` leaves a property as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedUnit {
    /// The full name of the unit.
    pub(super) unit: String,
    pub(super) is_running: Option<bool>,
    pub(super) is_enabled: Option<bool>,
    pub(super) is_masked: Option<bool>,
    /// True if a refresh reloads the unit rather than restarts it, if the unit can be reloaded.
    pub(super) may_reload: bool,
    /// The maximum duration of a job.
    pub(super) timeout: Duration,
}

/// A property in which a unit differs from its desired state: its name, and the words for both values.
struct UnitDifference {
    name: &'static str,
    old: String,
    new: &'static str,
}

impl WantedUnit {
    /// Reads the parameters of a task. Fails if a parameter is invalid, or if the task would end the agent.
    pub(super) fn new(site: &Site, task: &HostTask) -> Result<Self, TaskError> {
        let parameters: ServiceParameters = parameters(task)?;
        let invalid = |name: &str, reason: &str| TaskError::new(format!("parameters.{name}: {reason}")).without_effect();
        let template = parameters.unit.as_deref().unwrap_or_default();
        let text = TaskTemplates::new(site, task).name("parameters.unit", template)?;
        if let Some(reason) = name_rules::unit_name_error(&text) {
            return Err(invalid("unit", &format!("{reason}; nothing was changed")));
        }
        let is_running = match parameters.state.as_deref() {
            None => None,
            Some("running") => Some(true),
            Some("stopped") => Some(false),
            Some(other) => {
                return Err(invalid("state", &format!("takes one of running, stopped, not {other:?}; nothing was changed")));
            }
        };
        let seconds = parameters.timeout.or(task.task.timeout_seconds).unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        let wanted = Self {
            unit: name_rules::unit_name(&text),
            is_running,
            is_enabled: parameters.enabled,
            is_masked: parameters.masked,
            may_reload: parameters.reload,
            timeout: Duration::from_secs(seconds),
        };
        let ends_agent = is_running == Some(false) || wanted.is_enabled == Some(false) || wanted.is_masked == Some(true);
        if wanted.is_agent() && ends_agent {
            return Err(invalid("unit", &format!("{AGENT_ENDS_ITSELF}; nothing was changed")));
        }
        if is_running == Some(true) && ends_host(&wanted.unit) {
            return Err(invalid("unit", &format!("{UNIT_ENDS_HOST}; nothing was changed")));
        }
        Ok(wanted)
    }

    /// Returns whether the unit is that of the agent, whose end the agent cannot await.
    pub(super) fn is_agent(&self) -> bool {
        self.unit == AGENT_UNIT
    }

    /// Returns whether a refresh restarts or reloads the unit, if it is active.
    pub(super) fn acts_on_refresh(&self) -> bool {
        self.is_running != Some(false) && self.is_masked != Some(true)
    }

    /// Returns whether the unit must be started.
    pub(super) fn needs_start(&self, status: &UnitStatus) -> bool {
        self.is_running == Some(true) && !status.is_running()
    }

    /// Returns whether the unit must be stopped.
    pub(super) fn needs_stop(&self, status: &UnitStatus) -> bool {
        self.is_running == Some(false) && !status.is_stopped()
    }

    /// Returns whether the unit must be enabled (`Some(true)`) or disabled (`Some(false)`).
    pub(super) fn needed_enablement(&self, status: &UnitStatus) -> Option<bool> {
        let has_state = |is_enabled: bool| if is_enabled { status.file_state == "enabled" } else { !status.is_enabled() };
        self.is_enabled.filter(|is_enabled| !has_state(*is_enabled))
    }

    /// Returns whether the unit must be masked (`Some(true)`) or unmasked (`Some(false)`).
    pub(super) fn needed_mask(&self, status: &UnitStatus) -> Option<bool> {
        // A mask in `/run` ends with the next boot.
        let has_state = |is_masked: bool| status.is_masked() == is_masked && status.file_state != "masked-runtime";
        self.is_masked.filter(|is_masked| !has_state(*is_masked))
    }

    /// Returns whether the unit must have a usable unit file for the changes that are needed.
    pub(super) fn needs_unit_file(&self, status: &UnitStatus) -> bool {
        self.needs_start(status) || self.needed_enablement(status) == Some(true)
    }

    /// Returns a diff from the status to the desired state, or `None` if the unit is in the desired state.
    pub(super) fn diff(&self, status: &UnitStatus) -> Option<String> {
        let differences = self.differences(status);
        if differences.is_empty() {
            return None;
        }
        let mut text = format!("--- {unit}\n+++ {unit}\n", unit = self.unit);
        for UnitDifference { name, old, new } in differences {
            text.push_str(&format!("-{name}: {old}\n+{name}: {new}\n"));
        }
        Some(text)
    }

    fn differences(&self, status: &UnitStatus) -> Vec<UnitDifference> {
        let switch = |is_on: bool| if is_on { "true" } else { "false" };
        let mut differences = Vec::new();
        if needs_reading(status) {
            differences.push(UnitDifference { name: "unit file or drop-ins", old: "changed".to_owned(), new: "read by systemd" });
        }
        if self.needs_start(status) {
            differences.push(UnitDifference { name: "state", old: state_words(status), new: "running" });
        }
        if self.needs_stop(status) {
            differences.push(UnitDifference { name: "state", old: state_words(status), new: "stopped" });
        }
        if let Some(is_enabled) = self.needed_enablement(status) {
            let old = match status.file_state.as_str() {
                "" => "false (no unit file)".to_owned(),
                "enabled" => "true".to_owned(),
                "disabled" => "false".to_owned(),
                other => format!("{} ({other})", switch(status.is_enabled())),
            };
            differences.push(UnitDifference { name: "enabled", old, new: switch(is_enabled) });
        }
        if let Some(is_masked) = self.needed_mask(status) {
            let old = match status.file_state.as_str() {
                "masked-runtime" => "true (masked-runtime)".to_owned(),
                _ => switch(status.is_masked()).to_owned(),
            };
            differences.push(UnitDifference { name: "masked", old, new: switch(is_masked) });
        }
        differences
    }

    /// Returns the reason why the unit cannot be brought into its desired state, with a remedy. Returns `None` if nothing is
    /// known to prevent it. A missing unit is not such a reason, because an earlier task may install it
    /// ([`Self::missing_message`]).
    pub(super) fn blocker(&self, status: &UnitStatus) -> Option<String> {
        let unit = &self.unit;
        let will_be_masked = status.is_masked() && self.is_masked != Some(false);
        if self.needs_unit_file(status) && will_be_masked {
            return Some(format!(
                "{unit} is masked, and not by this task: write `masked: false` if it may run, or remove {} from the task",
                if self.needs_start(status) { "`state: running`" } else { "`enabled: true`" }
            ));
        }
        if let LoadState::Invalid(reason) = &status.load_state
            && self.needs_unit_file(status)
            && !status.needs_reload
        {
            return Some(format!(
                "systemd cannot use the unit file of {unit}: {reason}; `systemd-analyze verify {unit}` says more"
            ));
        }
        if self.is_enabled.is_some() && status.file_state == "generated" {
            return Some(format!(
                "the unit file of {unit} is generated from an init script or a file such as /etc/fstab, which decides whether it starts at boot: \
                 remove `enabled`, and change that file, or use `update-rc.d` or `chkconfig` in a shell task"
            ));
        }
        if let Some(reason) = self.enable_blocker(status) {
            return Some(format!("{unit} cannot be enabled: {reason}"));
        }
        let is_ended = status.is_short_lived && status.is_stopped();
        (self.needs_start(status) && is_ended).then(|| {
            format!(
                "{unit} ends by itself after its work (Type=oneshot without RemainAfterExit=yes), so it never stays running: remove `state`, and \
                 start it by a timer or a shell task, or set RemainAfterExit=yes"
            )
        })
    }

    /// Returns the reason why a unit that exists cannot be enabled, with a remedy. `None` if it can, or need not be.
    fn enable_blocker(&self, status: &UnitStatus) -> Option<&'static str> {
        if self.needed_enablement(status) != Some(true) || status.load_state == LoadState::NotFound || status.is_masked() {
            return None;
        }
        match status.file_state.as_str() {
            "static" => Some("its unit file has no section [Install], because other units start it: remove `enabled`"),
            "transient" => Some("it was made while the system runs, and ends with it: remove `enabled`"),
            "" => Some("it has no unit file: remove `enabled`"),
            _ => None,
        }
    }

    /// Returns the message that the unit does not exist although the task needs it, or `None` if that is not so.
    pub(super) fn missing_message(&self, status: &UnitStatus) -> Option<String> {
        (status.load_state == LoadState::NotFound && self.needs_unit_file(status)).then(|| {
            format!(
                "systemd has no unit {}: correct its name (`systemctl list-unit-files` lists them), or let an earlier task install it",
                self.unit
            )
        })
    }

    /// Returns the sentence for a check about a difference. Empty if the diff says it all.
    pub(super) fn difference_message(&self, status: &UnitStatus) -> String {
        if let Some(message) = self.missing_message(status) {
            return message;
        }
        if self.needs_start(status) && status.is_auto_restart() {
            return format!("{} ended, and systemd starts it again and again", self.unit);
        }
        if self.needs_start(status) && status.active_state == ActiveState::Activating {
            return format!("the start of {} has not ended", self.unit);
        }
        if needs_reading(status) {
            return format!("the unit file or a drop-in of {} has changed since systemd read it", self.unit);
        }
        String::new()
    }
}

/// Returns whether systemd must read the files of a unit again. It always reports a change of a masked unit with drop-ins, of
/// which it reads none.
pub(super) fn needs_reading(status: &UnitStatus) -> bool {
    status.needs_reload && status.load_state != LoadState::Masked
}

/// Returns the words for the active state of a unit in a diff.
pub(super) fn state_words(status: &UnitStatus) -> String {
    let word = match (&status.load_state, status.active_state) {
        (LoadState::NotFound, ActiveState::Inactive) => "absent",
        (_, ActiveState::Active | ActiveState::Reloading) => "running",
        (_, ActiveState::Inactive) => "stopped",
        (_, ActiveState::Failed) => "failed",
        (_, ActiveState::Activating) if status.is_auto_restart() => "failed, and systemd starts it again",
        (_, ActiveState::Activating) => "starting",
        (_, ActiveState::Deactivating) => "stopping",
    };
    word.to_owned()
}
