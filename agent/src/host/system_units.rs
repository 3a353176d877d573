//! The units of the system: services, sockets, timers and others that systemd manages, apart from those in which the agent
//! runs commands.

use std::io;
use std::time::Duration;

use super::{HostError, Pending};

/// The service manager of the machine, or a test double of it.
pub trait SystemUnits {
    /// Returns the status of a unit. A unit that does not exist has a status too ([`LoadState::NotFound`]).
    ///
    /// # Errors
    /// [`HostError::Io`] if systemd cannot be asked. Each method of this trait has this error, and no method has another.
    fn status<'a>(&'a self, unit: &'a str) -> Pending<'a, Result<UnitStatus, HostError>>;

    /// Requests a job for a unit, and waits for its end, at most for the duration `limit`. The job replaces another job of the
    /// unit. It continues if the returned future is dropped.
    ///
    /// # Errors
    /// As [`Self::status`]. Also if systemd refuses the job.
    fn run_job<'a>(&'a self, unit: &'a str, job: UnitJob, limit: Duration) -> Pending<'a, Result<JobEnd, HostError>>;

    /// Requests a job for a unit, and does not wait for its end.
    ///
    /// # Errors
    /// As [`Self::run_job`].
    fn queue_job<'a>(&'a self, unit: &'a str, job: UnitJob) -> Pending<'a, Result<(), HostError>>;

    /// Waits for the end of the job that systemd has for a unit, at most for the duration `limit`. Returns [`JobEnd::Unknown`]
    /// if the unit has no job.
    ///
    /// # Errors
    /// As [`Self::status`].
    fn await_job<'a>(&'a self, unit: &'a str, limit: Duration) -> Pending<'a, Result<JobEnd, HostError>>;

    /// Changes the links that enable or mask a unit. systemd uses them after [`Self::reload`].
    ///
    /// # Errors
    /// As [`Self::status`]. Also if systemd refuses the change.
    fn change_links<'a>(&'a self, unit: &'a str, change: LinkChange) -> Pending<'a, Result<(), HostError>>;

    /// Lets systemd read all unit files again (`systemctl daemon-reload`).
    ///
    /// # Errors
    /// As [`Self::status`].
    fn reload(&self) -> Pending<'_, Result<(), HostError>>;

    /// Makes systemd forget that a unit has failed, and how often it was started.
    ///
    /// # Errors
    /// As [`Self::status`].
    fn reset_failed<'a>(&'a self, unit: &'a str) -> Pending<'a, Result<(), HostError>>;
}

/// A job of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitJob {
    /// Starts the unit, if it is not active.
    Start,
    /// Stops the unit.
    Stop,
    /// Stops the unit, if it is active, and starts it.
    Restart,
    /// Lets the program of the unit read its configuration again.
    Reload,
}

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// The job has succeeded.
    Done,
    /// The job has ended with this result, such as `failed`, `timeout`, `dependency` or `canceled`.
    Failed(String),
    /// The job continues.
    Unfinished,
    /// The job has ended, and its result was not received.
    Unknown,
}

/// A change of the links that enable or mask a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// Creates the links of the section `[Install]`.
    Enable,
    /// Removes the links of [`Self::Enable`].
    Disable,
    /// Links the unit to `/dev/null`.
    Mask,
    /// Removes the link of [`Self::Mask`].
    Unmask,
}

/// What systemd has read of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadState {
    /// The unit file is read, or the unit needs none.
    #[default]
    Loaded,
    /// The unit has no unit file.
    NotFound,
    /// The unit is masked.
    Masked,
    /// The unit file cannot be used, for this reason.
    Invalid(String),
}

/// Whether a unit is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActiveState {
    /// The unit is started.
    Active,
    /// The unit is started, and reads its configuration again.
    Reloading,
    /// The unit is not started.
    #[default]
    Inactive,
    /// The unit is not started, because it has failed.
    Failed,
    /// systemd starts the unit, or will start it again.
    Activating,
    /// systemd stops the unit.
    Deactivating,
}

/// The status of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitStatus {
    /// The name of the unit. It differs from the requested name if that is an alias.
    pub id: String,
    /// What systemd has read of the unit.
    pub load_state: LoadState,
    /// Whether the unit is active.
    pub active_state: ActiveState,
    /// The state in words of its type, such as `running`, `exited` or `auto-restart`.
    pub sub_state: String,
    /// Whether the unit is enabled: `enabled`, `disabled`, `static`, `masked` or another word of systemd. Empty if the unit
    /// has no unit file.
    pub file_state: String,
    /// The path of the unit file that systemd has read, or empty.
    pub unit_file: String,
    /// The paths of the drop-ins that systemd has read.
    pub drop_ins: Vec<String>,
    /// True if the unit file or a drop-in has changed since systemd read it, as far as systemd notices.
    pub needs_reload: bool,
    /// True if the unit can read its configuration again without a restart.
    pub can_reload: bool,
    /// The time since which the unit starts or stops, in seconds since 1970. `None` if it does neither.
    pub transition_since: Option<u64>,
    /// True if systemd has a job for the unit.
    pub has_job: bool,
    /// False if a condition of the unit was not met at its last start, so that it was not started.
    pub is_condition_met: bool,
    /// The conditions of the unit file that were not met at the last start, such as `ConditionPathExists=/etc/app`.
    /// Empty if systemd does not know them any more.
    pub unmet_conditions: Vec<String>,
    /// The units that can start this unit, such as its socket or timer.
    pub triggered_by: Vec<String>,
    /// True if the unit ends by itself after its work (`Type=oneshot` without `RemainAfterExit`). Not known, and so false, of
    /// an active unit.
    pub is_short_lived: bool,
}

impl UnitJob {
    /// Returns the job as a verb.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Reload => "reload",
        }
    }
}

impl ActiveState {
    /// Returns the state for the word of systemd. A state of a newer systemd that is not known counts as active, so that the
    /// agent does not start the unit.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        match word {
            "inactive" | "maintenance" => Self::Inactive,
            "failed" => Self::Failed,
            "activating" => Self::Activating,
            "deactivating" => Self::Deactivating,
            "reloading" | "refreshing" => Self::Reloading,
            _ => Self::Active,
        }
    }
}

impl UnitStatus {
    /// Returns whether the unit is started.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        matches!(self.active_state, ActiveState::Active | ActiveState::Reloading)
    }

    /// Returns whether the unit is neither started nor about to be started or stopped.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.active_state, ActiveState::Inactive | ActiveState::Failed)
    }

    /// Returns whether the unit has ended, and systemd will start it again after a pause.
    #[must_use]
    pub fn is_auto_restart(&self) -> bool {
        matches!(self.active_state, ActiveState::Activating) && self.sub_state.starts_with("auto-restart")
    }

    /// Returns whether the unit is masked.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.load_state == LoadState::Masked || self.file_state.starts_with("masked")
    }

    /// Returns whether the unit is enabled, perhaps only until the next boot.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        matches!(self.file_state.as_str(), "enabled" | "enabled-runtime")
    }
}

/// The service manager of a machine whose units the agent cannot manage.
pub struct NoSystemUnits;

impl NoSystemUnits {
    /// Returns the error of each call.
    fn refuse<T: 'static>(unit: &str) -> Pending<'static, Result<T, HostError>> {
        let reason = "the agent does not run as root on a host that systemd has booted, or it has another root (`--root`); nothing was changed";
        let error = HostError::io("manage", unit)(io::Error::other(reason));
        Box::pin(std::future::ready(Err(error)))
    }
}

impl SystemUnits for NoSystemUnits {
    fn status<'a>(&'a self, unit: &'a str) -> Pending<'a, Result<UnitStatus, HostError>> {
        Self::refuse(unit)
    }

    fn run_job<'a>(&'a self, unit: &'a str, _: UnitJob, _: Duration) -> Pending<'a, Result<JobEnd, HostError>> {
        Self::refuse(unit)
    }

    fn queue_job<'a>(&'a self, unit: &'a str, _: UnitJob) -> Pending<'a, Result<(), HostError>> {
        Self::refuse(unit)
    }

    fn await_job<'a>(&'a self, unit: &'a str, _: Duration) -> Pending<'a, Result<JobEnd, HostError>> {
        Self::refuse(unit)
    }

    fn change_links<'a>(&'a self, unit: &'a str, _: LinkChange) -> Pending<'a, Result<(), HostError>> {
        Self::refuse(unit)
    }

    fn reload(&self) -> Pending<'_, Result<(), HostError>> {
        Self::refuse("the unit files")
    }

    fn reset_failed<'a>(&'a self, unit: &'a str) -> Pending<'a, Result<(), HostError>> {
        Self::refuse(unit)
    }
}
