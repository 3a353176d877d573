//! Looks up accounts of directory services, such as LDAP, SSSD or systemd-userdb: the accounts that the C library's name
//! service (NSS) knows and that are not in `/etc/passwd` or `/etc/group`.
//!
//! NSS loads plug-ins, which may hang or crash. So it never runs in the agent, but in a process of its own: `getent`, with
//! a clean environment and a time limit. The agent waits for that process, and does nothing else during that time. This is
//! rare, because local accounts and numbers need no look-up, and because results are stored for some time. If a look-up
//! has reached the limit, the next ones fail at once for a minute. So services that hang cannot stop the agent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use stemma_core::task::account_reference_error;

use super::process_setup::{DEFAULT_PATH, OomScoreGuard};
use crate::host::{AccountKind, HostError};

/// Maximum duration of one look-up.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Time for which a found account is stored. A check of many files of one owner needs one look-up.
const FOUND_LIFETIME: Duration = Duration::from_mins(5);

/// Time for which it is stored that a name does not exist.
const MISSING_LIFETIME: Duration = Duration::from_secs(30);

/// Time after a look-up without an answer in which no other look-up is started.
const STALL_DURATION: Duration = Duration::from_mins(1);

/// Maximum size of an entry, in bytes. An entry of a group has the names of all members.
const MAX_ENTRY_BYTES: u64 = 1024 * 1024;

/// The status of `getent` for a name that does not exist.
const STATUS_NOT_FOUND: i32 = 2;

/// The time of a look-up and its result.
type TimedLookup = (Instant, Option<String>);

/// The directory services of this machine.
pub(super) struct DirectoryService {
    /// The program `getent`.
    program: PathBuf,
    /// The file that names the services of NSS (`nsswitch.conf`).
    switch_file: PathBuf,
    time_limit: Duration,
    /// The results of earlier look-ups.
    results: RefCell<BTreeMap<(AccountKind, String), TimedLookup>>,
    /// The time of the last look-up without an answer.
    stalled_at: Cell<Option<Instant>>,
}

impl DirectoryService {
    /// Creates the services of this machine.
    pub(super) fn new() -> Self {
        Self::with_program("getent".into(), "/etc/nsswitch.conf".into(), TIME_LIMIT)
    }

    /// Creates services that this program asks, if this file in the format of `nsswitch.conf` names any.
    fn with_program(program: PathBuf, switch_file: PathBuf, time_limit: Duration) -> Self {
        Self { program, switch_file, time_limit, results: RefCell::default(), stalled_at: Cell::default() }
    }

    /// Returns the entry of an account by its name, in the format of `/etc/passwd` or `/etc/group`. Returns `None` if no
    /// directory service has the name. Results are stored for some time.
    ///
    /// # Errors
    /// [`HostError::NoDirectoryAnswer`] if it is not known whether a service has the name.
    pub(super) fn find(&self, kind: AccountKind, name: &str) -> Result<Option<String>, HostError> {
        // `getent` takes a text of digits for a number, and a text that begins with a sign for an option.
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        if is_number || account_reference_error(name).is_some() { Ok(None) } else { self.look_up(kind, name) }
    }

    /// Returns the entry of an account by its number, as [`Self::find`] does by its name.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(super) fn find_id(&self, kind: AccountKind, id: u32) -> Result<Option<String>, HostError> {
        self.look_up(kind, &id.to_string())
    }

    /// Returns the entry of an account by its name or number.
    fn look_up(&self, kind: AccountKind, name: &str) -> Result<Option<String>, HostError> {
        if !self.is_configured(kind) {
            return Ok(None);
        }
        let key = (kind, name.to_owned());
        if let Some((time, entry)) = self.results.borrow().get(&key)
            && time.elapsed() < (if entry.is_some() { FOUND_LIFETIME } else { MISSING_LIFETIME })
        {
            return Ok(entry.clone());
        }
        let no_answer = |reason: String| HostError::NoDirectoryAnswer { kind, name: name.into(), reason };
        if self.stalled_at.get().is_some_and(|time| time.elapsed() < STALL_DURATION) {
            return Err(no_answer("an earlier look-up had no answer, and none is tried for a minute".to_owned()));
        }
        let entry = self.run_getent(kind, name).map_err(no_answer)?;
        self.results.borrow_mut().insert(key, (Instant::now(), entry.clone()));
        Ok(entry)
    }

    /// Returns whether NSS has other sources than the local files. Without its configuration, it is assumed to have some.
    fn is_configured(&self, kind: AccountKind) -> bool {
        let Ok(text) = std::fs::read_to_string(&self.switch_file) else { return true };
        let database = format!("{}:", kind.database());
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&database));
        line.is_none_or(|sources| sources.split('#').next().unwrap_or("").split_whitespace().any(|source| source != "files"))
    }

    /// Asks `getent` for an entry, and kills it at the time limit. Fails with the reason if there is no answer.
    fn run_getent(&self, kind: AccountKind, name: &str) -> Result<Option<String>, String> {
        let mut command = Command::new(&self.program);
        command.args(["--", kind.database(), name]).env_clear().envs([("PATH", DEFAULT_PATH), ("LANG", "C.UTF-8")]);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let result = {
            let _score = OomScoreGuard::new();
            command.spawn()
        };
        let mut child = match result {
            Ok(child) => child,
            // A system without `getent`, such as one with musl, has no NSS.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("getent cannot be started: {error}")),
        };
        let deadline = Instant::now() + self.time_limit;
        let output = child.stdout.take().and_then(|stdout| read_output(stdout, self.time_limit));
        let status = output.is_some().then(|| wait_until(&mut child, deadline)).flatten();
        let (Some(bytes), Some(status)) = (output, status) else {
            // The child may have ended at this moment. Then the kill fails, and the wait returns at once.
            let _ = child.kill();
            let _ = child.wait();
            self.stalled_at.set(Some(Instant::now()));
            return Err(format!("getent did not answer within {} s", self.time_limit.as_secs_f32()));
        };
        match status {
            0 => Ok(String::from_utf8_lossy(&bytes).lines().next().map(str::to_owned).filter(|line| line.contains(':'))),
            STATUS_NOT_FOUND => Ok(None),
            other => Err(format!("getent ended with status {other}")),
        }
    }
}

/// Reads the output of a process to its end. Returns `None` if the end is not reached within the time limit. The reads are
/// in a thread of their own, which ends when the process is killed.
fn read_output(output: ChildStdout, time_limit: Duration) -> Option<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // After an error, the bytes up to the error are the output. The receiver may be gone after the time limit.
        let _ = output.take(MAX_ENTRY_BYTES).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver.recv_timeout(time_limit).ok()
}

/// Waits for the end of a process that has closed its output. Returns its status, or `None` if the process does not end
/// before the deadline. A process that a signal ended has the status -1.
fn wait_until(child: &mut Child, deadline: Instant) -> Option<i32> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.code().unwrap_or(-1)),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    /// Returns services that a script in place of `getent` answers. The script adds a line to the file `log` in `dir` at
    /// each call.
    fn service(dir: &Path, sources: &str, script: &str) -> DirectoryService {
        let (program, switch_file, log) = (dir.join("getent"), dir.join("nsswitch.conf"), dir.join("log"));
        std::fs::write(&program, format!("#!/bin/sh\necho \"$*\" >>{}\n{script}\n", log.display())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&switch_file, format!("# a comment\npasswd: {sources}\ngroup: files\n")).unwrap();
        DirectoryService::with_program(program, switch_file, Duration::from_millis(500))
    }

    /// Returns the calls of the script.
    fn calls(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("log")).unwrap_or_default()
    }

    const ALICE: &str = "alice:*:70001:70002:Alice:/home/alice:/bin/bash";

    #[test]
    fn find_asks_getent_once_per_name() {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("[ \"$3\" = alice ] && echo {ALICE} && exit 0\nexit 2");
        let service = service(dir.path(), "files sss", &script);
        for _ in 0..100 {
            assert_eq!(service.find(AccountKind::User, "alice").unwrap().as_deref(), Some(ALICE));
            assert_eq!(service.find(AccountKind::User, "bob").unwrap(), None);
        }
        // Numbers, options and invalid names are never looked up. NSS has no services for groups.
        for (kind, name) in [
            (AccountKind::User, "70001"),
            (AccountKind::User, "--help"),
            (AccountKind::User, ""),
            (AccountKind::User, "a:b"),
            (AccountKind::Group, "staff"),
        ] {
            assert_eq!(service.find(kind, name).unwrap(), None, "{name}");
        }
        assert_eq!(calls(dir.path()), "-- passwd alice\n-- passwd bob\n");
    }

    #[test]
    fn find_id_asks_getent_once_per_number() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path(), "sss", &format!("[ \"$3\" = 70001 ] && echo {ALICE} && exit 0\nexit 2"));
        for _ in 0..2 {
            assert_eq!(service.find_id(AccountKind::User, 70001).unwrap().as_deref(), Some(ALICE));
            assert_eq!(service.find_id(AccountKind::User, 5).unwrap(), None);
            assert_eq!(service.find_id(AccountKind::Group, 70001).unwrap(), None, "NSS has no services for groups");
        }
        assert_eq!(calls(dir.path()), "-- passwd 70001\n-- passwd 5\n");
    }

    #[test]
    fn find_starts_no_process_when_only_files_are_configured() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path(), "files # sss", "exit 1");
        assert_eq!(service.find(AccountKind::User, "alice").unwrap(), None);
        assert_eq!(calls(dir.path()), "");
    }

    /// The first look-up ends at the limit, the second one starts no process.
    #[test]
    fn find_stops_waiting_when_service_hangs() {
        let dir = tempfile::tempdir().unwrap();
        for script in ["exec sleep 600", "exec sleep 600 >&-"] {
            let service = service(dir.path(), "ldap", script);
            let start = Instant::now();
            let message = service.find(AccountKind::User, "alice").unwrap_err().sentence();
            assert!(message.contains("getent did not answer within 0.5 s") && message.contains("number"), "{message}");
            let message = service.find(AccountKind::User, "bob").unwrap_err().sentence();
            assert!(message.contains("an earlier look-up had no answer"), "{message}");
            assert!(start.elapsed() < Duration::from_mins(1), "the limit is 0.5 s");
        }
        assert_eq!(calls(dir.path()), "-- passwd alice\n-- passwd alice\n");
    }

    #[test]
    fn find_fails_when_getent_fails_and_not_when_missing() {
        let dir = tempfile::tempdir().unwrap();
        let mut service = service(dir.path(), "ldap", "exit 3");
        let message = service.find(AccountKind::User, "alice").unwrap_err().sentence();
        assert!(message.contains("getent ended with status 3"), "{message}");
        service.program = dir.path().join("nothing");
        assert_eq!(service.find(AccountKind::User, "alice").unwrap(), None);
    }
}
