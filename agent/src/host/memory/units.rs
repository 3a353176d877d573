//! Simulated units of the system. A start ends as the test wants, and each call that changes a unit may be the last one
//! before a crash.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::MemoryHost;
use crate::host::system_units::{ActiveState, JobEnd, LinkChange, LoadState, SystemUnits, UnitJob, UnitStatus};
use crate::host::{HostError, Pending};

/// The end of each start of a simulated unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartBehavior {
    /// The unit becomes active.
    #[default]
    Works,
    /// The start fails.
    Fails,
    /// The start succeeds, and the unit fails at once, as a simple service whose program cannot be executed.
    Crashes,
    /// The start fails, and systemd repeats it after a pause.
    RestartsForever,
    /// The start does not end.
    Hangs,
    /// The start succeeds, and the unit has ended.
    Ends,
}

/// A simulated unit.
#[derive(Clone, Debug, Default)]
pub struct MemoryUnit {
    /// The status that the unit has now.
    pub status: UnitStatus,
    /// The end of each start.
    pub behavior: StartBehavior,
    /// The load state after the next reload of the unit files.
    pub next_load_state: Option<LoadState>,
    /// The drop-ins that are read at the next reload of the unit files.
    pub next_drop_ins: Option<Vec<String>>,
    /// The word for the file state after the unit was enabled, if it is not `enabled`.
    pub enabled_word: Option<&'static str>,
    /// True if the unit starts again as soon as it is stopped.
    pub is_triggered: bool,
    /// The word for the file state after the next reload of the unit files.
    next_file_state: Option<&'static str>,
}

/// The simulated units, and the calls that they have received.
#[derive(Debug, Default)]
pub(super) struct MemoryUnits {
    units: BTreeMap<String, MemoryUnit>,
    /// The calls that change something, such as `start a.service`.
    changes: Vec<String>,
    status_reads: usize,
}

impl MemoryUnit {
    /// Creates a unit with this active state and this word for its file state.
    pub fn new(active_state: ActiveState, file_state: &str) -> Self {
        let status = UnitStatus { active_state, file_state: file_state.into(), is_condition_met: true, ..UnitStatus::default() };
        Self { status, ..Self::default() }
    }

    /// Sets the state after a job, and returns the end of the job.
    fn settle(&mut self, active_state: ActiveState, sub_state: &str, end: JobEnd) -> JobEnd {
        self.status.has_job = end == JobEnd::Unfinished;
        (self.status.active_state, self.status.sub_state) = (active_state, sub_state.into());
        end
    }

    /// Starts the unit as its behavior requires.
    fn start(&mut self) -> JobEnd {
        let failure = || JobEnd::Failed("failed".into());
        match self.behavior {
            StartBehavior::Works => self.settle(ActiveState::Active, "running", JobEnd::Done),
            StartBehavior::Fails => self.settle(ActiveState::Failed, "failed", failure()),
            StartBehavior::Crashes => self.settle(ActiveState::Failed, "failed", JobEnd::Done),
            StartBehavior::RestartsForever => self.settle(ActiveState::Activating, "auto-restart", failure()),
            StartBehavior::Hangs => self.settle(ActiveState::Activating, "start", JobEnd::Unfinished),
            StartBehavior::Ends => self.settle(ActiveState::Inactive, "dead", JobEnd::Done),
        }
    }

    fn run(&mut self, job: UnitJob) -> JobEnd {
        match job {
            UnitJob::Start if self.status.is_running() => JobEnd::Done,
            UnitJob::Start | UnitJob::Restart => self.start(),
            UnitJob::Stop if self.is_triggered => JobEnd::Done,
            UnitJob::Stop => self.settle(ActiveState::Inactive, "dead", JobEnd::Done),
            UnitJob::Reload => JobEnd::Done,
        }
    }
}

impl MemoryHost {
    /// Adds or replaces a simulated unit.
    pub fn put_unit(&self, name: &str, mut unit: MemoryUnit) {
        if unit.status.id.is_empty() {
            unit.status.id = name.into();
        }
        self.0.units.borrow_mut().units.insert(name.into(), unit);
    }

    /// Changes a simulated unit.
    pub fn update_unit(&self, name: &str, update: impl FnOnce(&mut MemoryUnit)) {
        update(self.0.units.borrow_mut().units.get_mut(name).expect("the unit is there"));
    }

    /// Returns the changes of units since the last call of this method.
    pub fn take_unit_changes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.units.borrow_mut().changes)
    }

    /// Returns how often the status of a unit was read.
    pub fn status_reads(&self) -> usize {
        self.0.units.borrow().status_reads
    }

    /// Counts and records a change of a unit, and makes it. Fails if the process crashes before or after the change.
    fn change_unit<T>(
        &self,
        change: &str,
        name: &str,
        apply: impl FnOnce(&mut MemoryUnit) -> Result<T, &'static str>,
    ) -> Result<T, HostError> {
        self.count_call(name)?;
        let result = {
            let mut state = self.0.units.borrow_mut();
            state.changes.push(format!("{change} {name}"));
            let unit = state.units.entry(name.to_owned()).or_insert_with(|| MemoryUnit {
                status: UnitStatus { id: name.into(), load_state: LoadState::NotFound, ..UnitStatus::default() },
                ..MemoryUnit::default()
            });
            apply(unit)
        };
        self.count_call(name)?;
        result.map_err(|reason| HostError::io("change", name)(io::Error::other(reason)))
    }
}

impl SystemUnits for MemoryHost {
    fn status<'a>(&'a self, unit: &'a str) -> Pending<'a, Result<UnitStatus, HostError>> {
        Box::pin(async move {
            self.check_alive(unit)?;
            let mut state = self.0.units.borrow_mut();
            state.status_reads += 1;
            let absent = || UnitStatus {
                id: unit.into(),
                load_state: LoadState::NotFound,
                is_condition_met: true,
                ..UnitStatus::default()
            };
            Ok(state.units.get(unit).map_or_else(absent, |unit| unit.status.clone()))
        })
    }

    fn run_job<'a>(&'a self, unit: &'a str, job: UnitJob, limit: Duration) -> Pending<'a, Result<JobEnd, HostError>> {
        Box::pin(async move {
            let end = self.change_unit(job.verb(), unit, |unit| {
                let is_started = matches!(job, UnitJob::Start | UnitJob::Restart);
                match unit.status.load_state {
                    LoadState::Loaded => Ok(unit.run(job)),
                    _ if is_started => Err("the unit is not loaded"),
                    _ => Ok(unit.run(job)),
                }
            })?;
            if end == JobEnd::Unfinished {
                tokio::time::sleep(limit).await;
            }
            Ok(end)
        })
    }

    fn queue_job<'a>(&'a self, unit: &'a str, job: UnitJob) -> Pending<'a, Result<(), HostError>> {
        Box::pin(async move { self.change_unit(&format!("queue {}", job.verb()), unit, |_| Ok(())) })
    }

    fn await_job<'a>(&'a self, unit: &'a str, limit: Duration) -> Pending<'a, Result<JobEnd, HostError>> {
        Box::pin(async move {
            self.check_alive(unit)?;
            let behavior = self.0.units.borrow().units.get(unit).map(|unit| unit.behavior);
            if behavior == Some(StartBehavior::Hangs) {
                tokio::time::sleep(limit).await;
                return Ok(JobEnd::Unfinished);
            }
            self.change_unit("await", unit, |unit| Ok(unit.start()))
        })
    }

    fn change_links<'a>(&'a self, unit: &'a str, change: LinkChange) -> Pending<'a, Result<(), HostError>> {
        Box::pin(async move {
            let verb = format!("{change:?}").to_lowercase();
            self.change_unit(&verb, unit, |unit| {
                unit.next_file_state = Some(match change {
                    LinkChange::Enable => unit.enabled_word.unwrap_or("enabled"),
                    LinkChange::Mask => "masked",
                    LinkChange::Disable | LinkChange::Unmask => "disabled",
                });
                Ok(())
            })
        })
    }

    fn reload(&self) -> Pending<'_, Result<(), HostError>> {
        Box::pin(async move {
            self.count_call("systemd")?;
            let mut state = self.0.units.borrow_mut();
            state.changes.push("reload".into());
            for unit in state.units.values_mut() {
                if let Some(word) = unit.next_file_state.take() {
                    unit.status.file_state = word.into();
                    unit.status.load_state = match (word, &unit.status.load_state) {
                        ("masked", _) => LoadState::Masked,
                        (_, LoadState::Masked) => LoadState::Loaded,
                        (_, other) => other.clone(),
                    };
                }
                if let Some(load_state) = unit.next_load_state.take() {
                    unit.status.load_state = load_state;
                }
                if let Some(drop_ins) = unit.next_drop_ins.take() {
                    unit.status.drop_ins = drop_ins;
                }
                unit.status.needs_reload = false;
            }
            Ok(())
        })
    }

    fn reset_failed<'a>(&'a self, unit: &'a str) -> Pending<'a, Result<(), HostError>> {
        Box::pin(async move {
            self.change_unit("reset", unit, |unit| {
                if unit.status.active_state == ActiveState::Failed {
                    unit.status.active_state = ActiveState::Inactive;
                }
                Ok(())
            })
        })
    }
}
