//! Tests of commands that misbehave, and of a lock that one process holds.

use std::collections::BTreeMap;
use std::time::Instant;

use super::*;
use crate::host::ExitKind;

/// The time after which a test gives up, long enough for a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_mins(2);

fn run(host: &RealHost, command: &HostCommand) -> CommandResult {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(host.run(command)).unwrap()
}

/// Returns a command that runs a script in `/bin/sh`.
fn sh(script: &str) -> HostCommand {
    HostCommand::new(vec!["/bin/sh".into(), "-c".into(), script.into()], TEST_TIMEOUT)
}

#[test]
fn run_returns_status_and_tail_of_both_outputs() {
    let (_root, host) = host();
    let result = run(&host, &sh("echo out; echo err >&2; exit 3"));
    assert_eq!(result, CommandResult { end: ExitKind::Status(3), output: "out\nerr\n".into() });
    let flood = run(&host, &sh("yes 0123456789 | head -c 10000000; echo last"));
    assert!(flood.output.len() <= 4096 && flood.output.ends_with("last\n"), "{}", flood.output.len());
    assert_eq!(run(&host, &sh("kill -9 $$")).end, ExitKind::Signal(9));
}

/// The test process has the variable `CARGO_MANIFEST_DIR`, which the command does not inherit.
#[test]
fn run_sets_only_documented_environment() {
    let (root, host) = host();
    fs::create_dir(root.path().join("srv")).unwrap();
    let command = HostCommand {
        cwd: Some(path("/srv")),
        env: BTreeMap::from([("TIER".to_owned(), "gold".to_owned())]),
        input: b"said".to_vec(),
        ..sh("cat; echo; echo $TIER; echo $STEMMA_ROOT; pwd; echo ${CARGO_MANIFEST_DIR-none}")
    };
    let real_root = root.path().canonicalize().unwrap().display().to_string();
    assert_eq!(run(&host, &command).output, format!("said\ngold\n{real_root}\n{real_root}/srv\nnone\n"));
}

#[test]
fn y09_run_confines_working_directory_when_links_exist() {
    let (root, host) = host();
    fs::create_dir_all(root.path().join("srv/app")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    symlink("srv/app", root.path().join("near")).unwrap();
    symlink("/srv", root.path().join("absolute")).unwrap();
    symlink("../../../../srv", root.path().join("above")).unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    let real_root = root.path().canonicalize().unwrap().display().to_string();
    for (cwd, expected) in [("/near", "/srv/app"), ("/absolute/app", "/srv/app"), ("/above", "/srv")] {
        let command = HostCommand { cwd: Some(path(cwd)), ..sh("pwd") };
        assert_eq!(run(&host, &command).output, format!("{real_root}{expected}\n"), "{cwd}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    symlink("/proc/self/cwd", root.path().join("magic")).unwrap();
    fs::write(root.path().join("plain"), "").unwrap();
    let outside_error = format!("/out is a symbolic link to {}, which does not lead to a directory", outside.path().display());
    for (cwd, expected) in [
        ("/out", &*outside_error),
        ("/magic", "/magic is a symbolic link to /proc/self/cwd, which does not lead to a directory"),
        ("/missing", "/missing is not there: let an earlier task create it, or name another directory"),
        ("/missing/below", "/missing is not there: let an earlier task"),
        ("/near/missing", "/near/missing is not there: let an earlier task"),
        ("/plain", "/plain is a regular file, where a directory was expected: move it away, or name another directory"),
        ("/plain/below", "/plain is a regular file, where a directory was expected: move it away"),
    ] {
        let error = runtime.block_on(host.run(&HostCommand { cwd: Some(path(cwd)), ..sh("pwd") })).unwrap_err().sentence();
        assert!(error.starts_with(&format!("cannot enter {cwd}: {expected}")), "{error}");
    }
}

#[test]
fn f38_run_kills_process_group_at_timeout() {
    let (root, host) = host();
    let pid_file = root.path().join("child");
    let script = format!("sleep 1000 & echo $! > {}; sleep 1000", pid_file.display());
    // On a busy machine, the shell may reach its time limit before it starts the child. Then the test tries a longer
    // limit.
    let child = [300, 3_000, 30_000].into_iter().find_map(|timeout_ms| {
        let command = HostCommand { timeout: Duration::from_millis(timeout_ms), ..sh(&script) };
        assert_eq!(run(&host, &command).end, ExitKind::TimedOut);
        read_pid(&pid_file)
    });
    wait_until("the child process was ended too", || !is_alive(child.expect("the child process has started")));
}

/// Returns the process id that a script wrote into a file, or `None` if the file has no process id.
fn read_pid(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns whether a process runs. A zombie counts as ended.
fn is_alive(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.lines().any(|line| line.starts_with("State:\tZ")))
}

/// Waits until `holds` returns true. Panics with the text `description` after [`TEST_TIMEOUT`].
fn wait_until(description: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{description}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn run_returns_when_daemon_keeps_output_open() {
    let (_root, host) = host();
    let result = run(&host, &sh("sleep 60 & echo started"));
    assert_eq!(
        (result.end, result.output.as_str()),
        (ExitKind::Status(0), "started\n"),
        "the command does not wait for the daemon"
    );
}

/// Each case contains a name for messages, a script, and the size of its standard input in bytes. The daemon still runs
/// when the script exits.
#[test]
fn run_does_not_time_out_when_daemon_writes_or_reads() {
    let (_root, host) = host();
    for (name, script, input) in [
        ("writes all the time", "yes & echo started", 0),
        ("writes now and then", "while sleep 0.05; do echo tick; done & echo started", 0),
        ("keeps the input", "exec 3<&0; sleep 60 <&3 >/dev/null 2>&1 & echo started", 1 << 20),
    ] {
        let result = run(&host, &HostCommand { input: vec![b'x'; input], ..sh(script) });
        assert_eq!(result.end, ExitKind::Status(0), "{name}");
    }
}

#[test]
fn run_keeps_background_processes_only_on_success() {
    let (root, host) = host();
    let (mark, pid_file) = (root.path().join("alive"), root.path().join("child"));
    let script = format!("(sleep 0.7; touch {}) >/dev/null 2>&1 & exit 0", mark.display());
    assert_eq!(run(&host, &sh(&script)).end, ExitKind::Status(0));
    wait_until("the background process continued", || mark.exists());
    let script = format!("sleep 1000 >/dev/null 2>&1 & echo $! > {}; exit 1", pid_file.display());
    assert_eq!(run(&host, &sh(&script)).end, ExitKind::Status(1));
    let child = read_pid(&pid_file).expect("the child process has started");
    wait_until("the child process was ended", || !is_alive(child));
}

/// Returns whether the test may run commands as another user, which only root may do.
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn may_change_user() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "only root may become somebody else");
        eprintln!("skipped: only root may become somebody else");
    }
    is_root
}

#[test]
fn run_sets_home_name_and_groups_of_user() {
    if !may_change_user() {
        return;
    }
    let (root, host) = host();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let fields: Vec<_> = passwd.lines().find(|line| line.starts_with("daemon:")).unwrap().split(':').collect();
    let groups = run(&host, &sh("id -G daemon")).output;
    let command = HostCommand {
        user: Some("daemon".into()),
        cwd: None,
        env: BTreeMap::from([("TIER".to_owned(), "gold".to_owned())]),
        ..sh("cd /; echo $HOME $USER $LOGNAME $TIER; id -u; id -G")
    };
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let expected = format!("{} daemon daemon gold\n{}\n{groups}", fields[5], fields[2]);
    assert_eq!(run(&host, &command).output, expected);
    let command_with_home = HostCommand {
        user: Some("root".into()),
        env: BTreeMap::from([("HOME".into(), "/tmp".into())]),
        ..sh("echo $HOME $USER")
    };
    assert_eq!(run(&host, &command_with_home).output, "/tmp root\n", "the variables of the task override those of the account");
}

#[test]
fn y09_run_accepts_number_without_account_and_drops_groups() {
    if !may_change_user() {
        return;
    }
    let (root, host) = host();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = "cd /; id -u; id -G; echo $HOME ${USER-none} ${LOGNAME-none} $SHELL";
    let command = HostCommand { user: Some("54321".into()), ..sh(script) };
    assert_eq!(run(&host, &command).output, "54321\n54321\n/ none none /bin/sh\n");
}

#[test]
fn lock_is_released_although_child_holds_file() {
    let (_root, host) = host();
    let lock = host.lock(&path("/lock")).unwrap().expect("the lock is free");
    // Represents a child that was forked, and that has not called exec when its parent is killed.
    let mut child = std::process::Command::new("sleep").arg("20").stdin(lock.try_clone().unwrap()).spawn().unwrap();
    drop(lock);
    let second_lock = host.lock(&path("/lock")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(second_lock.is_some());
}

#[test]
fn y02_is_locked_creates_no_lock_file() {
    let (root, host) = host();
    assert!(!host.is_locked(&path("/lock")).unwrap());
    assert!(!root.path().join("lock").exists(), "no lock file was created");
}

/// The environment variable with the root directory of a host. The test
/// `y06_lock_is_exclusive_on_read_only_mount` starts a process with this variable.
const LOCK_VARIABLE: &str = "STEMMA_TEST_READ_ONLY_LOCK";

/// Tries the lock in a process that another test starts. The exit status is 10 if the lock was free, and 11 if not.
/// Does nothing unless that test set [`LOCK_VARIABLE`].
#[test]
fn lock_process_runs_for_other_test() {
    if let Some(root) = std::env::var_os(LOCK_VARIABLE) {
        let host = RealHost::new(Path::new(&root)).unwrap();
        let is_held = host.is_locked(&path("/mnt/lock")).unwrap();
        let lock = host.lock(&path("/mnt/lock")).unwrap();
        assert_eq!(lock.is_none(), is_held);
        std::process::exit(if lock.is_some() { 10 } else { 11 });
    }
}

/// Regression test: an agent whose directory was read-only did not start, because it opened the lock file for writing.
#[test]
fn y06_lock_is_exclusive_on_read_only_mount() {
    let (root, host) = host();
    let Some(mount) = TestMount::new(root.path()) else { return };
    let lock = || host.lock(&path("/mnt/lock")).unwrap();
    let can_other_lock = || {
        let mut other_process = std::process::Command::new(std::env::current_exe().unwrap());
        other_process
            .args(["--exact", "host::real::tests::processes::lock_process_runs_for_other_test"])
            .env(LOCK_VARIABLE, root.path());
        match other_process.output().unwrap().status.code() {
            Some(10) => true,
            Some(11) => false,
            status => panic!("{status:?}"),
        }
    };
    drop(lock().expect("the lock is free"));
    mount.remount("ro");
    assert!(can_other_lock(), "the lock is free");
    let held_lock = lock().expect("the lock is free");
    assert!(!can_other_lock());
    // A process that opens the lock file for writing again sees the lock too.
    mount.remount("rw");
    assert!(!can_other_lock());
    drop(held_lock);
    assert!(can_other_lock());
    fs::remove_file(mount.0.join("lock")).unwrap();
    mount.remount("ro");
    let message = host.lock(&path("/mnt/lock")).unwrap_err().sentence();
    assert!(message.starts_with("cannot lock /mnt/lock: Read-only file system"), "{message}");
    drop(mount);
}

#[test]
fn run_explains_failure_when_program_cannot_start() {
    let (_root, host) = host();
    let command = HostCommand::new(vec!["/no/such/program".into()], Duration::from_secs(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(host.run(&command)).unwrap_err().sentence();
    assert_eq!(error, "cannot run /no/such/program: No such file or directory (os error 2)");
}

/// Regression test: the error claimed that the program did not exist, although only its interpreter was missing.
#[test]
fn y09_run_names_interpreter_when_missing() {
    let (root, host) = host();
    let program = root.path().join("p").display().to_string();
    // Another process writes the program. Other tests of this process fork at the same time, and a file that a child
    // has open for writing cannot be run.
    let result = run(&host, &sh(&format!("echo '#!/no/such/interpreter' > '{program}' && chmod 755 '{program}'")));
    assert_eq!(result.end, ExitKind::Status(0), "{}", result.output);
    let command = HostCommand::new(vec![program.clone()], TEST_TIMEOUT);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(host.run(&command)).unwrap_err().sentence();
    let expected = "it exists, and the interpreter \"/no/such/interpreter\" that its first line names is missing: install that";
    assert!(error.starts_with(&format!("cannot run {program}: {expected}")), "{error}");
}
