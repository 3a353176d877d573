//! Calls to systemd over D-Bus: starts transient units, and follows them to their end.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::names::OwnedUniqueName;
use zbus::{Connection, DynamicType, Error, Fd, MatchRule, Message, MessageStream, OwnedObjectPath, Result, Variant};

use crate::host::real::AGENT_UNIT;

/// The name of systemd on the bus.
const SYSTEMD: &str = "org.freedesktop.systemd1";
/// The object of systemd itself.
pub(super) const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
/// The prefix of the objects of units.
const UNITS_PATH: &str = "/org/freedesktop/systemd1/unit/";
pub(super) const MANAGER: &str = "org.freedesktop.systemd1.Manager";
pub(super) const UNIT: &str = "org.freedesktop.systemd1.Unit";
pub(super) const SERVICE: &str = "org.freedesktop.systemd1.Service";
pub(super) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The socket of the system bus.
const BUS_SOCKET: &str = "/run/dbus/system_bus_socket";

/// Maximum time of a call, and of the connection to the bus.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which a bus that has just started is asked for systemd, which connects to it a moment later.
const OWNER_INTERVAL: Duration = Duration::from_millis(100);

/// `CLD_EXITED`: the value of `ExecMainCode` for a process that exited by itself. Other values mean a signal.
const CLD_EXITED: i32 = 1;

/// Exit statuses that systemd reports if it cannot execute a program (`systemd.exec(5)`). A unit in which a program ends
/// with one of them is `failed`. Any other status is a result of the command, and not a failure of the unit.
const SYSTEMD_STATUSES: std::ops::RangeInclusive<i32> = 200..=245;

/// Time after SIGTERM at which systemd kills a unit that it stops. A shutdown first waits for the agent, which waits for its
/// commands.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The highest number of a signal.
const MAX_SIGNAL: i32 = 64;

/// A unit in a list of systemd: its name, and properties that the agent does not need.
type ListedUnit<'a> = (String, String, &'a str, &'a str, &'a str, &'a str, OwnedObjectPath, u32, &'a str, OwnedObjectPath);

/// A connection to systemd over the system bus.
#[derive(Clone)]
pub(super) struct Systemd {
    connection: Connection,
    /// The unique name of systemd on the bus.
    owner: OwnedUniqueName,
}

/// Returns whether this machine has a system bus.
pub(in crate::host::real) fn has_bus() -> bool {
    Path::new(BUS_SOCKET).exists()
}

/// What a transient unit runs, and with which limits.
pub(super) struct UnitRequest<'a> {
    pub(super) name: &'a str,
    /// A sentence for logs and lists of units.
    pub(super) description: &'a str,
    /// The absolute path of the program.
    pub(super) program: &'a str,
    /// The arguments, of which the first is the name of the program.
    pub(super) argv: &'a [String],
    /// The path of a file with the environment, in the format of `EnvironmentFile=`.
    pub(super) environment_file: &'a str,
    /// Variables that systemd sets for each unit, and that the process must not have.
    pub(super) unset: &'a [&'a str],
    /// The absolute path of the working directory.
    pub(super) working_dir: &'a str,
    pub(super) stdin: BorrowedFd<'a>,
    /// Standard output and standard error.
    pub(super) output: BorrowedFd<'a>,
    /// Time after which systemd stops the unit, if the agent has not done so.
    pub(super) time_limit: Duration,
    /// True if systemd logs only warnings about the unit.
    pub(super) is_quiet: bool,
}

/// The end of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitEnd {
    /// The main process exited with this status.
    Exited(i32),
    /// This signal ended the main process.
    Killed(i32),
    /// The unit ran longer than its time limit.
    TimedOut,
    /// systemd could not start the process, for example because a resource was missing.
    NotStarted,
    /// The unit is gone, or could not be ended, and its end is not known.
    Unknown,
}

/// The state of a unit, as far as signals of systemd have reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct UnitState {
    sub_state: String,
    /// True if systemd has a job for the unit, such as its start.
    has_job: bool,
    /// `ExecMainCode`: how the main process ended. 0 if it has not ended.
    code: i32,
    /// `ExecMainStatus`: the exit status or the signal.
    status: i32,
    /// `Result`: the reason why the unit has failed.
    result: String,
}

/// The changes of a unit, from before its start to its end.
pub(super) struct UnitChanges {
    stream: MessageStream,
    state: UnitState,
}

impl Systemd {
    /// Connects to systemd over the system bus.
    ///
    /// # Errors
    /// If the bus or systemd does not answer within [`CALL_TIMEOUT`].
    pub(super) async fn connect() -> Result<Self> {
        let connected = async {
            let connection = Builder::system().method_timeout(CALL_TIMEOUT).build().await?;
            let owner = loop {
                match name_owner(&connection).await {
                    Err(Error::FDO(error)) if matches!(*error, zbus::fdo::Error::NameHasNoOwner(_)) => {
                        sleep(OWNER_INTERVAL).await;
                    }
                    owner => break owner?,
                }
            };
            let systemd = Self { connection, owner };
            // Without a subscription, systemd sends no signals to the bus.
            systemd.call_manager("Subscribe", &()).await?;
            Ok(systemd)
        };
        timeout(CALL_TIMEOUT, connected).await.map_err(|error| Error::from(std::io::Error::from(error))).flatten()
    }

    /// Returns the connection to the bus.
    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the unique name of systemd on the bus.
    pub(super) fn owner(&self) -> OwnedUniqueName {
        self.owner.clone()
    }

    /// Returns whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Returns whether signals of systemd still arrive. systemd gets another name on the bus when it executes itself again.
    pub(super) async fn is_current(&self) -> bool {
        name_owner(&self.connection).await.is_ok_and(|current| current == self.owner)
    }

    /// Calls a method of an object of systemd.
    pub(super) async fn call<B: serde::Serialize + DynamicType>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<Message> {
        self.connection.call_method(Some(SYSTEMD), path, Some(interface), method, body).await
    }

    /// Calls a method of systemd itself.
    pub(super) async fn call_manager<B: serde::Serialize + DynamicType>(&self, method: &str, body: &B) -> Result<Message> {
        self.call(MANAGER_PATH, MANAGER, method, body).await
    }

    /// Reads a property of an object, and returns what `read` takes from its value.
    pub(super) async fn property<T>(
        &self,
        path: &str,
        interface: &str,
        name: &str,
        read: impl FnOnce(&Variant<'_>) -> T,
    ) -> Result<T> {
        let reply = self.call(path, PROPERTIES, "Get", &(interface, name)).await?;
        let body = reply.body();
        Ok(read(&body.deserialize::<Variant<'_>>()?))
    }

    /// Begins to collect the changes of a unit.
    pub(super) async fn watch(&self, unit: &str) -> Result<UnitChanges> {
        // Any process may send a signal with such a path, so the sender is checked too.
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(self.owner.clone())
            .path(unit_path(unit))
            .interface(PROPERTIES)
            .member("PropertiesChanged");
        let stream = MessageStream::for_match_rule(rule.build()?, &self.connection, None).await?;
        Ok(UnitChanges { stream, state: UnitState { has_job: true, ..UnitState::default() } })
    }

    /// Starts a transient unit. Returns when systemd has accepted it, which is before its process starts.
    ///
    /// The job of the start ignores the order of units. Otherwise it would wait for the end of a stop of the agent, which
    /// in turn waits for the command.
    ///
    /// # Errors
    /// If [`is_refusal`] is false for the error, systemd may still start the unit.
    pub(super) async fn start(&self, request: &UnitRequest<'_>) -> Result<()> {
        let auxiliary: [(&str, Vec<(&str, Variant<'_>)>); 0] = [];
        self.call_manager("StartTransientUnit", &(request.name, "ignore-dependencies", properties(request), &auxiliary[..]))
            .await?;
        Ok(())
    }

    /// Returns the end of a unit, or `None` if it has not ended.
    pub(super) async fn end(&self, unit: &str) -> Result<Option<UnitEnd>> {
        let mut state = UnitState::default();
        // The job is read before the state: a unit that is `dead` after its job has ended did not start or is stopped.
        for (interface, name) in
            [(UNIT, "Job"), (UNIT, "SubState"), (SERVICE, "ExecMainCode"), (SERVICE, "ExecMainStatus"), (SERVICE, "Result")]
        {
            self.property(&unit_path(unit), interface, name, |value| state.update(name, value)).await?;
        }
        Ok(state.end())
    }

    /// Sends a signal to all processes of a unit.
    pub(super) async fn kill(&self, unit: &str, signal: i32) -> Result<()> {
        self.call_manager("KillUnit", &(unit, "all", signal)).await.map(drop)
    }

    /// Stops a unit, and forgets its end. A unit that has failed remains until its failure is reset.
    pub(super) async fn discard(&self, unit: &str, may_have_failed: bool) -> Result<()> {
        self.call_manager("StopUnit", &(unit, "replace")).await?;
        if may_have_failed {
            // This call fails for a unit that has not failed.
            let _ = self.call_manager("ResetFailedUnit", &unit).await;
        }
        Ok(())
    }

    /// Returns whether a unit has processes.
    pub(super) async fn has_processes(&self, unit: &str) -> Result<bool> {
        let reply = self.call_manager("GetUnitProcesses", &unit).await?;
        let processes: Vec<(String, u32, String)> = reply.body().deserialize()?;
        Ok(!processes.is_empty())
    }

    /// Returns whether the main process of a unit runs its program.
    pub(super) async fn is_running(&self, unit: &str) -> Result<bool> {
        self.property(&unit_path(unit), UNIT, "SubState", |value| is_text(value, "running")).await
    }

    /// Returns the names and descriptions of the loaded units that match one of these patterns.
    pub(super) async fn list(&self, patterns: &[&str]) -> Result<Vec<(String, String)>> {
        let states: [&str; 0] = [];
        let reply = self.call_manager("ListUnitsByPatterns", &(&states[..], patterns)).await?;
        let body = reply.body();
        let units: Vec<ListedUnit<'_>> = body.deserialize()?;
        Ok(units.into_iter().map(|unit| (unit.0, unit.1)).collect())
    }

    /// Returns whether systemd restarts a unit at this moment. Returns `false` if it stops or starts the unit.
    pub(super) async fn is_restarting(&self, unit: &str) -> Result<bool> {
        let job = self.property(&unit_path(unit), UNIT, "Job", job).await?;
        let Some((_, path)) = job.filter(|(id, _)| *id != 0) else { return Ok(false) };
        self.property(&path, "org.freedesktop.systemd1.Job", "JobType", |value| is_text(value, "restart")).await
    }
}

impl UnitEnd {
    /// Returns whether the unit may be `failed` after this end. After a signal, it is `failed` only if the process dumped
    /// core.
    pub(super) fn may_fail_unit(self) -> bool {
        !matches!(self, Self::Exited(status) if !SYSTEMD_STATUSES.contains(&status))
    }
}

impl UnitChanges {
    /// Waits for the end of the unit. Returns `None` if the connection to systemd ends before that.
    pub(super) async fn end(&mut self) -> Option<UnitEnd> {
        loop {
            let message = self.stream.next().await?.ok()?;
            let body = message.body();
            // A message that cannot be parsed has no known property.
            let Ok((_, changed, _)) = body.deserialize::<(&str, BTreeMap<&str, Variant<'_>>, Vec<&str>)>() else { continue };
            for (name, value) in &changed {
                self.state.update(name, value);
            }
            if let Some(end) = self.state.end() {
                return Some(end);
            }
        }
    }
}

impl UnitState {
    /// Stores the value of a property, if it is a part of the state.
    fn update(&mut self, name: &str, value: &Variant<'_>) {
        match (name, value) {
            ("SubState", Variant::Str(state)) => self.sub_state = state.to_string(),
            ("Job", value) => self.has_job = job(value).is_some_and(|(id, _)| id != 0),
            ("ExecMainCode", Variant::I32(code)) => self.code = *code,
            ("ExecMainStatus", Variant::I32(status)) => self.status = *status,
            ("Result", Variant::Str(result)) => self.result = result.to_string(),
            _ => {}
        }
    }

    /// Returns the end of the unit, or `None` if it has not ended. A unit without a process is `dead` before its start
    /// too, but then systemd has a job for it.
    ///
    /// A unit remains `exited` until it is stopped. So systemd or a person has stopped a unit that is `failed` or `dead`
    /// after an exit with status 0: a handler of SIGTERM may exit so, and the command has not succeeded.
    fn end(&self) -> Option<UnitEnd> {
        let is_exit_0 = self.code == CLD_EXITED && self.status == 0;
        match self.sub_state.as_str() {
            "failed" if self.result == "timeout" => Some(UnitEnd::TimedOut),
            "failed" if self.code == 0 => Some(UnitEnd::NotStarted),
            "failed" if is_exit_0 => Some(UnitEnd::Killed(libc::SIGTERM)),
            "dead" if self.has_job => None,
            "dead" if is_exit_0 => Some(UnitEnd::Unknown),
            "exited" | "failed" | "dead" => Some(self.main_end()),
            _ => None,
        }
    }

    /// Returns how the main process ended.
    fn main_end(&self) -> UnitEnd {
        match self.code {
            0 => UnitEnd::Unknown,
            CLD_EXITED => UnitEnd::Exited(self.status),
            _ => UnitEnd::Killed(self.status),
        }
    }
}

/// Returns whether systemd has refused a call, so that it had no effect. After any other error, such as a lost
/// connection, the call may have had its effect.
pub(super) fn is_refusal(error: &Error) -> bool {
    use zbus::fdo::Error::{Disconnected, NoReply, TimedOut, Timeout, ZBus};
    match error {
        Error::MethodError(..) => true,
        Error::FDO(error) => !matches!(**error, Disconnected(_) | NoReply(_) | TimedOut(_) | Timeout(_) | ZBus(_)),
        _ => false,
    }
}

/// Returns the error of a refused start, with advice if systemd could not store the unit.
pub(super) fn start_error(error: Error) -> std::io::Error {
    match &error {
        Error::MethodError(name, ..) if name.as_str() == "org.freedesktop.systemd1.NoSuchUnit" => {
            std::io::Error::other(format!("systemd could not store it ({error}): is there space in /run?"))
        }
        _ => std::io::Error::other(error),
    }
}

/// Returns the unique name of systemd on the bus.
async fn name_owner(connection: &Connection) -> Result<OwnedUniqueName> {
    const BUS: &str = "org.freedesktop.DBus";
    let reply = connection.call_method(Some(BUS), "/org/freedesktop/DBus", Some(BUS), "GetNameOwner", &SYSTEMD).await?;
    reply.body().deserialize()
}

/// Returns whether a property has this text.
pub(super) fn is_text(value: &Variant<'_>, text: &str) -> bool {
    matches!(value, Variant::Str(value) if value.as_str() == text)
}

/// Returns the id and the object path of a job, from the property `Job` of a unit. The id is 0 if there is no job.
pub(super) fn job(value: &Variant<'_>) -> Option<(u32, String)> {
    let Variant::Structure(fields) = value else { return None };
    match fields.fields() {
        [Variant::U32(id), Variant::ObjectPath(path)] => Some((*id, path.to_string())),
        _ => None,
    }
}

/// Returns the properties of a transient unit. It is a normal service, without the restrictions of the agent's unit.
fn properties<'a>(request: &UnitRequest<'a>) -> Vec<(&'static str, Variant<'a>)> {
    let statuses: Vec<i32> = (1..=255).filter(|status| !SYSTEMD_STATUSES.contains(status)).collect();
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    // systemd expands variables in the arguments. `ExecStartEx` could prevent this, but systemd 252 cannot read such a unit
    // again after a reload.
    let argv: Vec<String> = request.argv.iter().map(|word| word.replace('$', "$$")).collect();
    let command = (request.program.to_owned(), argv, false);
    let mut properties = vec![
        ("Description", Variant::new(request.description)),
        // The job of the start ends when the program runs. So a task that restarts the agent does not wait for itself.
        ("Type", Variant::new("exec")),
        // The unit remains until the agent has read how it ended, and while a daemon of the command runs.
        ("RemainAfterExit", Variant::new(true)),
        // A unit that is `failed` has lost its output.
        ("SuccessExitStatus", Variant::new((statuses, (1..=MAX_SIGNAL).collect::<Vec<i32>>()))),
        // At a shutdown, systemd stops the agent first, and so waits for the command as long as the agent does.
        ("Before", Variant::new(vec![AGENT_UNIT.to_owned()])),
        ("RuntimeMaxUSec", Variant::new(micros(request.time_limit))),
        ("TimeoutStopUSec", Variant::new(micros(STOP_TIMEOUT))),
        ("ExecStart", Variant::new(vec![command])),
        ("EnvironmentFiles", Variant::new(vec![(request.environment_file.to_owned(), false)])),
        ("UnsetEnvironment", Variant::new(request.unset.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())),
        ("WorkingDirectory", Variant::new(request.working_dir)),
        ("StandardInputFileDescriptor", Variant::Fd(Fd::Borrowed(request.stdin))),
        ("StandardOutputFileDescriptor", Variant::Fd(Fd::Borrowed(request.output))),
        ("StandardErrorFileDescriptor", Variant::Fd(Fd::Borrowed(request.output))),
        ("IgnoreSIGPIPE", Variant::new(false)),
        // A killed child of the command does not end the command.
        ("OOMPolicy", Variant::new("continue")),
    ];
    if request.is_quiet {
        // `LOG_WARNING`.
        properties.push(("LogLevelMax", Variant::new(4_i32)));
    }
    properties
}

/// Returns the object path of a unit. Characters other than letters and digits are written as `_` and their code in
/// hexadecimal.
pub(super) fn unit_path(name: &str) -> String {
    let mut path = UNITS_PATH.to_owned();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("_{byte:02x}"));
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected path is that of systemd 252 (`busctl tree org.freedesktop.systemd1`).
    #[test]
    fn unit_path_escapes_other_characters() {
        assert_eq!(unit_path("stemma-task-a_b.service"), "/org/freedesktop/systemd1/unit/stemma_2dtask_2da_5fb_2eservice");
    }

    #[test]
    fn unit_state_has_end_only_after_job() {
        let state = |sub_state: &str, has_job, code, status, result: &str| UnitState {
            sub_state: sub_state.into(),
            has_job,
            code,
            status,
            result: result.into(),
        };
        for (state, end) in [
            (state("", true, 0, 0, "success"), None),
            (state("dead", true, 0, 0, "success"), None),
            (state("start", true, 0, 0, "success"), None),
            (state("running", false, 0, 0, "success"), None),
            (state("exited", false, 1, 7, "success"), Some(UnitEnd::Exited(7))),
            (state("exited", false, 1, 0, "success"), Some(UnitEnd::Exited(0))),
            (state("failed", false, 2, 9, "signal"), Some(UnitEnd::Killed(9))),
            (state("failed", false, 3, 11, "core-dump"), Some(UnitEnd::Killed(11))),
            (state("failed", false, 1, 203, "exit-code"), Some(UnitEnd::Exited(203))),
            (state("failed", false, 0, 0, "resources"), Some(UnitEnd::NotStarted)),
            (state("failed", false, 2, 15, "timeout"), Some(UnitEnd::TimedOut)),
            (state("failed", false, 1, 0, "oom-kill"), Some(UnitEnd::Killed(15))),
            (state("dead", false, 0, 0, "success"), Some(UnitEnd::Unknown)),
            (state("dead", false, 1, 0, "success"), Some(UnitEnd::Unknown)),
            (state("dead", false, 2, 15, "success"), Some(UnitEnd::Killed(15))),
        ] {
            assert_eq!(state.end(), end, "{state:?}");
        }
    }

    /// After a refusal nothing was started, so the command may be tried again. After any other error it may run.
    #[test]
    fn refusal_is_distinguished_from_lost_reply() {
        assert!(is_refusal(&Error::FDO(Box::new(zbus::fdo::Error::InvalidArgs("no such property".into())))));
        assert!(is_refusal(&Error::FDO(Box::new(zbus::fdo::Error::AccessDenied("not root".into())))));
        for error in [zbus::fdo::Error::NoReply(String::new()), zbus::fdo::Error::Disconnected(String::new())] {
            assert!(!is_refusal(&Error::FDO(Box::new(error))));
        }
        assert!(!is_refusal(&Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset))));
    }
}
