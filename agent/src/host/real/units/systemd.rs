//! Calls to systemd over D-Bus: starts transient units, and follows them to their end.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use futures_util::StreamExt as _;
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::names::OwnedUniqueName;
use zbus::{Connection, DynamicType, Fd, MatchRule, Message, MessageStream, OwnedObjectPath, Result, Variant};

/// The name of systemd on the bus.
const SYSTEMD: &str = "org.freedesktop.systemd1";
/// The object of systemd itself.
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
/// The prefix of the objects of units.
const UNITS_PATH: &str = "/org/freedesktop/systemd1/unit/";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The socket on which systemd serves root without a bus. It works while the bus is stopped or restarted.
const PRIVATE_SOCKET: &str = "unix:path=/run/systemd/private";

/// Maximum time of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// `CLD_EXITED`: the value of `ExecMainCode` for a process that exited by itself. Other values mean a signal.
const CLD_EXITED: i32 = 1;

/// Exit statuses that systemd reports if it cannot execute a program (`systemd.exec(5)`). A unit in which a program ends
/// with one of them is `failed`. Any other status is a result of the command, and not a failure of the unit.
const SYSTEMD_STATUSES: std::ops::RangeInclusive<i32> = 200..=245;

/// A unit in a list of systemd: its name, and properties that the agent does not need.
type ListedUnit<'a> = (String, &'a str, &'a str, &'a str, &'a str, &'a str, OwnedObjectPath, u32, &'a str, OwnedObjectPath);

/// A connection to systemd.
#[derive(Clone)]
pub(super) struct Systemd {
    connection: Connection,
    /// The unique name of systemd on the bus. `None` on systemd's private socket.
    owner: Option<OwnedUniqueName>,
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
    /// The unit is gone, and its end is not known.
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
}

/// The changes of a unit, from before its start to its end.
pub(super) struct UnitChanges {
    stream: MessageStream,
    state: UnitState,
}

impl Systemd {
    /// Connects to systemd over the system bus, or over its private socket if the bus cannot be used.
    pub(super) async fn connect() -> Result<Self> {
        match Self::connect_to_bus().await {
            Ok(systemd) => Ok(systemd),
            Err(error) => Self::connect_directly().await.map_err(|_| error),
        }
    }

    async fn connect_to_bus() -> Result<Self> {
        let connection = Builder::system().method_timeout(CALL_TIMEOUT).build().await?;
        let owner = name_owner(&connection).await?;
        let systemd = Self { connection, owner: Some(owner) };
        // Without a subscription, systemd sends no signals to the bus.
        systemd.call_manager("Subscribe", &()).await?;
        Ok(systemd)
    }

    async fn connect_directly() -> Result<Self> {
        let connection = Builder::address(PRIVATE_SOCKET).p2p().method_timeout(CALL_TIMEOUT).build().await?;
        Ok(Self { connection, owner: None })
    }

    /// Returns whether the connection is over the bus. On the private socket, the signals of all units arrive.
    pub(super) const fn is_on_bus(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Returns whether signals of systemd still arrive. systemd gets another name on the bus when it executes itself again.
    pub(super) async fn is_current(&self) -> bool {
        match &self.owner {
            Some(owner) => name_owner(&self.connection).await.is_ok_and(|current| current == *owner),
            None => !self.is_closed(),
        }
    }

    async fn call<B: serde::Serialize + DynamicType>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<Message> {
        let destination = self.owner.is_some().then_some(SYSTEMD);
        self.connection.call_method(destination, path, Some(interface), method, body).await
    }

    async fn call_manager<B: serde::Serialize + DynamicType>(&self, method: &str, body: &B) -> Result<Message> {
        self.call(MANAGER_PATH, MANAGER, method, body).await
    }

    /// Begins to collect the changes of a unit.
    pub(super) async fn watch(&self, unit: &str) -> Result<UnitChanges> {
        let mut rule =
            MatchRule::builder().msg_type(Type::Signal).path(unit_path(unit)).interface(PROPERTIES).member("PropertiesChanged");
        if let Some(owner) = &self.owner {
            // Any process may send a signal with such a path, so the sender is checked too.
            rule = rule.sender(owner.clone());
        }
        let stream = MessageStream::for_match_rule(rule.build()?, &self.connection, None).await?;
        Ok(UnitChanges { stream, state: UnitState { has_job: true, ..UnitState::default() } })
    }

    /// Starts a transient unit. Returns when systemd has accepted it, which is before its process starts.
    pub(super) async fn start(&self, request: &UnitRequest<'_>) -> Result<()> {
        let auxiliary: [(&str, Vec<(&str, Variant<'_>)>); 0] = [];
        self.call_manager("StartTransientUnit", &(request.name, "fail", properties(request), &auxiliary[..])).await?;
        Ok(())
    }

    /// Returns the end of a unit, or `None` if it has not ended.
    pub(super) async fn end(&self, unit: &str) -> Result<Option<UnitEnd>> {
        let mut state = UnitState::default();
        for (interface, names) in [(UNIT, ["SubState", "Job"]), (SERVICE, ["ExecMainCode", "ExecMainStatus"])] {
            for name in names {
                let reply = self.call(&unit_path(unit), PROPERTIES, "Get", &(interface, name)).await?;
                let body = reply.body();
                let value: Variant<'_> = body.deserialize()?;
                state.update(name, &value);
            }
        }
        Ok(state.end())
    }

    /// Sends a signal to all processes of a unit.
    pub(super) async fn kill(&self, unit: &str, signal: i32) -> Result<()> {
        self.call_manager("KillUnit", &(unit, "all", signal)).await.map(drop)
    }

    /// Stops a unit, and forgets its end.
    pub(super) async fn discard(&self, unit: &str) -> Result<()> {
        self.call_manager("StopUnit", &(unit, "replace")).await?;
        // A unit that has failed remains until its failure is reset. For any other unit this call fails.
        let _ = self.call_manager("ResetFailedUnit", &unit).await;
        Ok(())
    }

    /// Returns whether a unit has processes.
    pub(super) async fn has_processes(&self, unit: &str) -> Result<bool> {
        let reply = self.call_manager("GetUnitProcesses", &unit).await?;
        let processes: Vec<(String, u32, String)> = reply.body().deserialize()?;
        Ok(!processes.is_empty())
    }

    /// Returns the names of the loaded units that match one of these patterns.
    pub(super) async fn list(&self, patterns: &[&str]) -> Result<Vec<String>> {
        let states: [&str; 0] = [];
        let reply = self.call_manager("ListUnitsByPatterns", &(&states[..], patterns)).await?;
        let body = reply.body();
        let units: Vec<ListedUnit<'_>> = body.deserialize()?;
        Ok(units.into_iter().map(|unit| unit.0).collect())
    }

    /// Returns whether systemd restarts a unit at this moment. Returns `false` if it stops or starts the unit.
    pub(super) async fn is_restarting(&self, unit: &str) -> Result<bool> {
        let reply = self.call(&unit_path(unit), PROPERTIES, "Get", &(UNIT, "Job")).await?;
        let body = reply.body();
        let value: Variant<'_> = body.deserialize()?;
        let Some((_, path)) = job(&value).filter(|(id, _)| *id != 0) else { return Ok(false) };
        let reply = self.call(&path, PROPERTIES, "Get", &("org.freedesktop.systemd1.Job", "JobType")).await?;
        let body = reply.body();
        let value: Variant<'_> = body.deserialize()?;
        Ok(matches!(value, Variant::Str(kind) if kind.as_str() == "restart"))
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
            _ => {}
        }
    }

    /// Returns the end of the unit, or `None` if it has not ended. A unit without a process is `dead` before its start
    /// too, but then systemd has a job for it.
    fn end(&self) -> Option<UnitEnd> {
        let has_ended = match self.sub_state.as_str() {
            "exited" | "failed" => true,
            "dead" => !self.has_job,
            _ => false,
        };
        has_ended.then_some(match self.code {
            0 => UnitEnd::Unknown,
            CLD_EXITED => UnitEnd::Exited(self.status),
            _ => UnitEnd::Killed(self.status),
        })
    }
}

/// Returns the unique name of systemd on the bus.
async fn name_owner(connection: &Connection) -> Result<OwnedUniqueName> {
    const BUS: &str = "org.freedesktop.DBus";
    let reply = connection.call_method(Some(BUS), "/org/freedesktop/DBus", Some(BUS), "GetNameOwner", &SYSTEMD).await?;
    reply.body().deserialize()
}

/// Returns the id and the object path of a job, from the property `Job` of a unit. The id is 0 if there is no job.
fn job(value: &Variant<'_>) -> Option<(u32, String)> {
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
    let command = (request.program.to_owned(), request.argv.to_vec(), vec!["no-env-expand".to_owned()]);
    let mut properties = vec![
        ("Description", Variant::new(request.description)),
        // The job of the start ends when the program runs. So a task that restarts the agent does not wait for itself.
        ("Type", Variant::new("exec")),
        // The unit remains until the agent has read how it ended, and while a daemon of the command runs.
        ("RemainAfterExit", Variant::new(true)),
        ("SuccessExitStatus", Variant::new((statuses, Vec::<i32>::new()))),
        // At a shutdown, systemd stops the agent first, and so waits for the command as long as the agent does.
        ("Before", Variant::new(vec!["stemma-agent.service".to_owned()])),
        ("RuntimeMaxUSec", Variant::new(micros(request.time_limit))),
        ("ExecStartEx", Variant::new(vec![command])),
        ("EnvironmentFiles", Variant::new(vec![(request.environment_file.to_owned(), false)])),
        ("UnsetEnvironment", Variant::new(request.unset.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())),
        ("WorkingDirectory", Variant::new(request.working_dir)),
        ("StandardInputFileDescriptor", Variant::Fd(Fd::Borrowed(request.stdin))),
        ("StandardOutputFileDescriptor", Variant::Fd(Fd::Borrowed(request.output))),
        ("StandardErrorFileDescriptor", Variant::Fd(Fd::Borrowed(request.output))),
        ("IgnoreSIGPIPE", Variant::new(false)),
    ];
    if request.is_quiet {
        // `LOG_WARNING`.
        properties.push(("LogLevelMax", Variant::new(4_i32)));
    }
    properties
}

/// Returns the object path of a unit. Characters other than letters and digits are written as `_` and their code in
/// hexadecimal.
fn unit_path(name: &str) -> String {
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
        let state = |sub_state: &str, has_job, code, status| UnitState { sub_state: sub_state.into(), has_job, code, status };
        for (state, end) in [
            (state("", true, 0, 0), None),
            (state("dead", true, 0, 0), None),
            (state("start", true, 0, 0), None),
            (state("running", false, 0, 0), None),
            (state("exited", false, 1, 7), Some(UnitEnd::Exited(7))),
            (state("failed", false, 2, 9), Some(UnitEnd::Killed(9))),
            (state("failed", false, 3, 11), Some(UnitEnd::Killed(11))),
            (state("failed", false, 1, 203), Some(UnitEnd::Exited(203))),
            (state("dead", false, 0, 0), Some(UnitEnd::Unknown)),
        ] {
            assert_eq!(state.end(), end, "{state:?}");
        }
    }
}
