//! The units of the system, over the same connection to systemd as the units of commands.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};
use zbus::message::Type;
use zbus::{MatchRule, MessageStream, OwnedObjectPath, Result, Variant};

use super::systemd::{MANAGER, MANAGER_PATH, PROPERTIES, SERVICE, Systemd, UNIT, has_bus, is_refusal, is_text, job, unit_path};
use super::{POLL_INTERVAL, RECONNECT_INTERVAL, Units};
use crate::host::system_units::{ActiveState, JobEnd, LinkChange, LoadState, SystemUnits, UnitJob, UnitStatus};
use crate::host::{HostError, Pending};

/// The properties of a unit, as systemd returns them.
type UnitProperties<'a> = BTreeMap<&'a str, Variant<'a>>;

/// The links that systemd has created or removed: the kind of the change, the link and its target.
type ChangedLinks = Vec<(String, String, String)>;

/// The ends of the jobs of systemd, from the moment at which this was created.
struct EndedJobs(MessageStream);

impl EndedJobs {
    /// Waits for the end of a job. Returns `None` if the connection to systemd ends before that.
    async fn result(&mut self, job_path: &str) -> Option<String> {
        loop {
            let message = self.0.next().await?.ok()?;
            let body = message.body();
            let Ok((_, path, _, result)) = body.deserialize::<(u32, OwnedObjectPath, &str, &str)>() else { continue };
            if path.as_str() == job_path {
                return Some(result.to_owned());
            }
        }
    }
}

impl UnitJob {
    /// Returns the method of systemd that requests the job.
    const fn method(self) -> &'static str {
        match self {
            Self::Start => "StartUnit",
            Self::Stop => "StopUnit",
            Self::Restart => "RestartUnit",
            Self::Reload => "ReloadUnit",
        }
    }
}

impl Systemd {
    /// Begins to collect the ends of jobs.
    async fn watch_jobs(&self) -> Result<EndedJobs> {
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(self.owner())
            .path(MANAGER_PATH)
            .interface(MANAGER)
            .member("JobRemoved");
        Ok(EndedJobs(MessageStream::for_match_rule(rule.build()?, self.connection(), None).await?))
    }

    /// Requests a job for a unit, and returns the path of the job. The job replaces another job of the unit.
    async fn request_job(&self, unit: &str, job: UnitJob) -> Result<String> {
        let reply = self.call_manager(job.method(), &(unit, "replace")).await?;
        Ok(reply.body().deserialize::<OwnedObjectPath>()?.to_string())
    }

    /// Returns the path of the job that systemd has for a unit, or `None` if there is no job.
    async fn job_path(&self, unit: &str) -> Result<Option<String>> {
        let job = self.property(&unit_path(unit), UNIT, "Job", job).await?;
        Ok(job.filter(|(id, _)| *id != 0).map(|(_, path)| path))
    }

    /// Reads the status of a unit: all properties at once, and two more of a service that is not active.
    async fn status(&self, unit: &str) -> Result<UnitStatus> {
        let path = unit_path(unit);
        let reply = self.call(&path, PROPERTIES, "GetAll", &UNIT).await?;
        let body = reply.body();
        let mut status = read_status(&body.deserialize::<UnitProperties<'_>>()?);
        if status.id.ends_with(".service") && status.load_state == LoadState::Loaded && !status.is_running() {
            let is_oneshot = self.property(&path, SERVICE, "Type", |value| is_text(value, "oneshot")).await?;
            let remains =
                async { self.property(&path, SERVICE, "RemainAfterExit", |value| matches!(value, Variant::Bool(true))).await };
            status.is_short_lived = is_oneshot && !remains.await?;
        }
        Ok(status)
    }

    /// Changes the links that enable or mask a unit. Links that exist only until the next boot are removed too.
    async fn change_links(&self, unit: &str, change: LinkChange) -> Result<()> {
        let units = [unit];
        let remove = async |method| -> Result<()> {
            for is_runtime in [false, true] {
                self.call_manager(method, &(&units[..], is_runtime)).await?;
            }
            Ok(())
        };
        match change {
            LinkChange::Enable => {
                let reply = self.call_manager("EnableUnitFiles", &(&units[..], false, false)).await?;
                let (_, _): (bool, ChangedLinks) = reply.body().deserialize()?;
                Ok(())
            }
            LinkChange::Mask => self.call_manager("MaskUnitFiles", &(&units[..], false, false)).await.map(drop),
            LinkChange::Disable => remove("DisableUnitFiles").await,
            LinkChange::Unmask => remove("UnmaskUnitFiles").await,
        }
    }
}

impl Units {
    /// Returns the connection to systemd, for the units of the system.
    async fn connect_for(&self, unit: &str) -> std::result::Result<Systemd, HostError> {
        if !has_bus() {
            let reason = "there is no system bus: install D-Bus and start dbus.socket; nothing was changed";
            return Err(HostError::io("manage", unit)(io::Error::other(reason)));
        }
        self.connect().await.map_err(unit_error("ask systemd for", unit))
    }

    /// Returns a connection over which the signals of systemd arrive, for a job of a unit of the system.
    async fn connect_for_job(&self, unit: &str) -> std::result::Result<Systemd, HostError> {
        let systemd = self.connect_for(unit).await?;
        if systemd.is_current().await {
            return Ok(systemd);
        }
        *self.systemd.borrow_mut() = None;
        self.connect_for(unit).await
    }

    /// Waits for the end of a job, at most for the duration `limit`. Asks systemd for the job from time to time, because
    /// signals are lost if the bus is restarted, or if systemd executes itself again.
    async fn follow_job(&self, unit: &str, mut ended: EndedJobs, job_path: &str, limit: Duration) -> JobEnd {
        let end = async {
            loop {
                match timeout(POLL_INTERVAL, ended.result(job_path)).await {
                    Ok(Some(result)) if result == "done" => return JobEnd::Done,
                    Ok(Some(result)) => return JobEnd::Failed(result),
                    Ok(None) => sleep(RECONNECT_INTERVAL).await,
                    Err(_) => {}
                }
                let Ok(systemd) = self.connect().await else { continue };
                let Ok(new_ended) = systemd.watch_jobs().await else { continue };
                let Ok(current_job) = systemd.job_path(unit).await else { continue };
                if current_job.is_none_or(|path| path != job_path) {
                    // The signal may be among those that have already arrived.
                    let result = timeout(Duration::ZERO, ended.result(job_path)).await.ok().flatten();
                    return match result {
                        Some(result) if result == "done" => JobEnd::Done,
                        Some(result) => JobEnd::Failed(result),
                        None => JobEnd::Unknown,
                    };
                }
                ended = new_ended;
            }
        };
        timeout(limit, end).await.unwrap_or(JobEnd::Unfinished)
    }
}

impl SystemUnits for Units {
    fn status<'a>(&'a self, unit: &'a str) -> Pending<'a, std::result::Result<UnitStatus, HostError>> {
        Box::pin(async move {
            let result = self.connect_for(unit).await?.status(unit).await;
            match result {
                // The bus was restarted, and the end of the old connection was not noticed yet.
                Err(error) if !is_refusal(&error) => {
                    *self.systemd.borrow_mut() = None;
                    self.connect_for(unit).await?.status(unit).await
                }
                result => result,
            }
            .map_err(unit_error("ask systemd for", unit))
        })
    }

    fn run_job<'a>(
        &'a self,
        unit: &'a str,
        job: UnitJob,
        limit: Duration,
    ) -> Pending<'a, std::result::Result<JobEnd, HostError>> {
        Box::pin(async move {
            let systemd = self.connect_for_job(unit).await?;
            // The signals are collected before the request, so that no end of the job is lost in between.
            let ended = systemd.watch_jobs().await.map_err(unit_error("ask systemd for", unit))?;
            let path = systemd.request_job(unit, job).await.map_err(unit_error(job.verb(), unit))?;
            Ok(self.follow_job(unit, ended, &path, limit).await)
        })
    }

    fn queue_job<'a>(&'a self, unit: &'a str, job: UnitJob) -> Pending<'a, std::result::Result<(), HostError>> {
        Box::pin(async move {
            let systemd = self.connect_for(unit).await?;
            systemd.request_job(unit, job).await.map(drop).map_err(unit_error(job.verb(), unit))
        })
    }

    fn await_job<'a>(&'a self, unit: &'a str, limit: Duration) -> Pending<'a, std::result::Result<JobEnd, HostError>> {
        Box::pin(async move {
            let systemd = self.connect_for_job(unit).await?;
            let ended = systemd.watch_jobs().await.map_err(unit_error("ask systemd for", unit))?;
            let path = systemd.job_path(unit).await.map_err(unit_error("ask systemd for", unit))?;
            match path {
                Some(path) => Ok(self.follow_job(unit, ended, &path, limit).await),
                None => Ok(JobEnd::Unknown),
            }
        })
    }

    fn change_links<'a>(&'a self, unit: &'a str, change: LinkChange) -> Pending<'a, std::result::Result<(), HostError>> {
        let verb = match change {
            LinkChange::Enable => "enable",
            LinkChange::Disable => "disable",
            LinkChange::Mask => "mask",
            LinkChange::Unmask => "unmask",
        };
        Box::pin(async move {
            let systemd = self.connect_for(unit).await?;
            systemd.change_links(unit, change).await.map_err(unit_error(verb, unit))
        })
    }

    fn reload(&self) -> Pending<'_, std::result::Result<(), HostError>> {
        Box::pin(async move {
            let systemd = self.connect_for("the unit files").await?;
            systemd.call_manager("Reload", &()).await.map(drop).map_err(unit_error("let systemd read", "the unit files"))
        })
    }

    fn reset_failed<'a>(&'a self, unit: &'a str) -> Pending<'a, std::result::Result<(), HostError>> {
        Box::pin(async move {
            let systemd = self.connect_for(unit).await?;
            systemd.call_manager("ResetFailedUnit", &unit).await.map(drop).map_err(unit_error("reset", unit))
        })
    }
}

/// Returns a function that converts an error of the bus or of systemd.
fn unit_error(operation: &'static str, unit: &str) -> impl FnOnce(zbus::Error) -> HostError {
    let unit = unit.to_owned();
    move |error| HostError::io(operation, unit)(io::Error::other(format!("{error}{}", remedy(&error))))
}

/// Returns what to do about an error of systemd, as the end of its message. Empty for an error that needs no advice.
fn remedy(error: &zbus::Error) -> &'static str {
    let zbus::Error::MethodError(name, ..) = error else { return "" };
    match name.rsplit('.').next() {
        Some("UnitExists") => "; systemd masks no unit whose file is in /etc/systemd/system: let a `file` task remove that file",
        Some("OnlyByDependency") => "; only other units start or stop this unit: remove `state`",
        Some("JobTypeNotApplicable") => "; a unit of this kind is not started or stopped by a task: remove `state`",
        _ => "",
    }
}

/// Returns the status of a unit from its properties.
fn read_status(properties: &UnitProperties<'_>) -> UnitStatus {
    let text = |name: &str| match properties.get(name) {
        Some(Variant::Str(text)) => text.to_string(),
        _ => String::new(),
    };
    let is_true = |name: &str| matches!(properties.get(name), Some(Variant::Bool(true)));
    let load_state = match text("LoadState").as_str() {
        "loaded" | "merged" => LoadState::Loaded,
        "not-found" => LoadState::NotFound,
        "masked" => LoadState::Masked,
        other => LoadState::Invalid(load_error(properties.get("LoadError")).unwrap_or_else(|| other.to_owned())),
    };
    // The time is 0 if the conditions were never checked.
    let was_checked = matches!(properties.get("ConditionTimestampMonotonic"), Some(Variant::U64(time)) if *time != 0);
    let active_state = ActiveState::from_word(&text("ActiveState"));
    let seconds = |name: &str| match properties.get(name) {
        Some(Variant::U64(microseconds)) if *microseconds != 0 => Some(microseconds / 1_000_000),
        _ => None,
    };
    let transition_since = match active_state {
        ActiveState::Activating => seconds("InactiveExitTimestamp"),
        ActiveState::Deactivating => seconds("ActiveExitTimestamp"),
        _ => None,
    };
    UnitStatus {
        id: text("Id"),
        load_state,
        active_state,
        sub_state: text("SubState"),
        file_state: text("UnitFileState"),
        unit_file: text("FragmentPath"),
        drop_ins: texts(properties.get("DropInPaths")),
        needs_reload: is_true("NeedDaemonReload"),
        can_reload: is_true("CanReload"),
        transition_since,
        has_job: properties.get("Job").and_then(job).is_some_and(|(id, _)| id != 0),
        is_condition_met: !was_checked || is_true("ConditionResult"),
        unmet_conditions: unmet_conditions(properties.get("Conditions")),
        triggered_by: texts(properties.get("TriggeredBy")),
        is_short_lived: false,
    }
}

/// Returns the message of the property `LoadError`, which has a name and a message.
fn load_error(value: Option<&Variant<'_>>) -> Option<String> {
    let Some(Variant::Structure(fields)) = value else { return None };
    match fields.fields() {
        [Variant::Str(name), Variant::Str(message)] if message.is_empty() => Some(name.to_string()),
        [_, Variant::Str(message)] => Some(message.trim_end_matches('.').to_owned()),
        _ => None,
    }
    .filter(|message| !message.is_empty())
}

/// Returns the conditions that were not met, as in a unit file, from the property `Conditions`. Each of its items has
/// the name, whether one of several such conditions is enough (`|`), whether it is negated (`!`), the value, and the
/// result: negative if the condition was not met, and 0 if it was not checked.
fn unmet_conditions(value: Option<&Variant<'_>>) -> Vec<String> {
    let Some(Variant::Array(items)) = value else { return Vec::new() };
    let condition = |item: &Variant<'_>| {
        let Variant::Structure(fields) = item else { return None };
        let [Variant::Str(name), Variant::Bool(is_trigger), Variant::Bool(is_negated), Variant::Str(value), Variant::I32(result)] =
            fields.fields()
        else {
            return None;
        };
        let (trigger, negation) = (if *is_trigger { "|" } else { "" }, if *is_negated { "!" } else { "" });
        Some((*is_trigger, *result, format!("{name}={trigger}{negation}{value}")))
    };
    let conditions: Vec<_> = items.inner().iter().filter_map(condition).collect();
    let is_triggered = conditions.iter().any(|(is_trigger, result, _)| *is_trigger && *result > 0);
    let unmet = conditions.into_iter().filter(|(is_trigger, result, _)| *result < 0 && !(*is_trigger && is_triggered));
    unmet.map(|(.., text)| text).collect()
}

/// Returns the texts in a list.
fn texts(value: Option<&Variant<'_>>) -> Vec<String> {
    let Some(Variant::Array(items)) = value else { return Vec::new() };
    let text = |item: &Variant<'_>| match item {
        Variant::Str(text) => Some(text.to_string()),
        _ => None,
    };
    items.inner().iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those that `busctl get-property` of systemd 252 shows for an unknown, a masked and a running unit.
    #[test]
    fn unit_status_is_read_from_properties() {
        let text = |text: &'static str| Variant::new(text);
        let unknown: UnitProperties<'_> = [
            ("Id", text("no.service")),
            ("LoadState", text("not-found")),
            ("ActiveState", text("inactive")),
            ("SubState", text("dead")),
            ("UnitFileState", text("")),
            ("ConditionResult", Variant::new(false)),
            ("ConditionTimestampMonotonic", Variant::new(0_u64)),
        ]
        .into();
        let expected = UnitStatus {
            id: "no.service".into(),
            load_state: LoadState::NotFound,
            sub_state: "dead".into(),
            is_condition_met: true,
            ..UnitStatus::default()
        };
        assert_eq!(read_status(&unknown), expected);
        let running: UnitProperties<'_> = [
            ("Id", text("cron.service")),
            ("LoadState", text("loaded")),
            ("ActiveState", text("active")),
            ("SubState", text("running")),
            ("UnitFileState", text("enabled")),
            ("FragmentPath", text("/lib/systemd/system/cron.service")),
            ("DropInPaths", Variant::new(vec!["/etc/systemd/system/cron.service.d/a.conf".to_owned()])),
            ("NeedDaemonReload", Variant::new(true)),
            ("CanReload", Variant::new(true)),
            ("ConditionResult", Variant::new(true)),
            ("ConditionTimestampMonotonic", Variant::new(7_u64)),
            ("TriggeredBy", Variant::new(vec!["cron.timer".to_owned()])),
        ]
        .into();
        let expected = UnitStatus {
            id: "cron.service".into(),
            active_state: ActiveState::Active,
            sub_state: "running".into(),
            file_state: "enabled".into(),
            unit_file: "/lib/systemd/system/cron.service".into(),
            drop_ins: vec!["/etc/systemd/system/cron.service.d/a.conf".into()],
            needs_reload: true,
            can_reload: true,
            is_condition_met: true,
            triggered_by: vec!["cron.timer".into()],
            ..UnitStatus::default()
        };
        assert_eq!(read_status(&running), expected);
        let masked: UnitProperties<'_> = [("LoadState", text("masked")), ("UnitFileState", text("masked-runtime"))].into();
        assert!(read_status(&masked).is_masked());
        let conditions = |conditions: Vec<(&'static str, bool, bool, &'static str, i32)>| -> UnitProperties<'static> {
            [("Conditions", Variant::new(conditions))].into()
        };
        let unmet = conditions(vec![
            ("ConditionUser", false, true, "root", -1),
            ("ConditionPathExists", false, false, "/etc", 1),
            ("ConditionPathExists", true, false, "/a", 1),
            ("ConditionPathExists", true, false, "/b", -1),
            ("ConditionHost", false, false, "web", 0),
        ]);
        assert_eq!(read_status(&unmet).unmet_conditions, ["ConditionUser=!root"]);
        let unmet = conditions(vec![("ConditionHost", true, false, "a", -1), ("ConditionHost", true, false, "b", -1)]);
        assert_eq!(read_status(&unmet).unmet_conditions, ["ConditionHost=|a", "ConditionHost=|b"]);
        let bad: UnitProperties<'_> = [
            ("LoadState", text("bad-setting")),
            (
                "LoadError",
                Variant::new(("org.freedesktop.systemd1.BadUnitSetting", "Unit bad.service has a bad unit file setting.")),
            ),
        ]
        .into();
        assert_eq!(read_status(&bad).load_state, LoadState::Invalid("Unit bad.service has a bad unit file setting".into()));
        // The start of a unit that hangs began before the run of the task that waits for it.
        for (state, expected) in [("activating", Some(7)), ("deactivating", Some(9)), ("active", None), ("failed", None)] {
            let times = [("InactiveExitTimestamp", 7_900_000_u64), ("ActiveExitTimestamp", 9_000_001)];
            let times = times.map(|(name, time)| (name, Variant::new(time)));
            let unit: UnitProperties<'_> = times.into_iter().chain([("ActiveState", text(state))]).collect();
            assert_eq!(read_status(&unit).transition_since, expected, "{state}");
        }
    }
}
