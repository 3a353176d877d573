//! Commands that misbehave, and a lock that one process has.

use std::collections::BTreeMap;
use std::time::Instant;

use super::*;
use crate::host::End;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

fn run(host: &RealHost, command: &Command) -> Finished {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(host.run(command)).unwrap()
}

fn sh(script: &str) -> Command {
    Command::new(vec!["/bin/sh".into(), "-c".into(), script.into()], PATIENCE)
}

#[test]
fn a_command_ends_with_its_status_and_the_tail_of_both_outputs() {
    let (_root, host) = host();
    let finished = run(&host, &sh("echo out; echo err >&2; exit 3"));
    assert_eq!(finished, Finished { end: End::Status(3), output: "out\nerr\n".into() });
    let flood = run(&host, &sh("yes 0123456789 | head -c 10000000; echo last"));
    assert!(flood.output.len() <= 4096 && flood.output.ends_with("last\n"), "{}", flood.output.len());
    assert_eq!(run(&host, &sh("kill -9 $$")).end, End::Signal(9));
}

#[test]
fn a_command_has_the_environment_that_is_written_for_it_and_no_other() {
    let (root, host) = host();
    fs::create_dir(root.path().join("srv")).unwrap();
    let command = Command {
        cwd: Some(path("/srv")),
        env: BTreeMap::from([("TIER".to_owned(), "gold".to_owned())]),
        input: b"said".to_vec(),
        ..sh("cat; echo; echo $TIER; echo $STEMMA_ROOT; pwd; echo ${CARGO_MANIFEST_DIR-none}")
    };
    let real = root.path().canonicalize().unwrap().display().to_string();
    assert_eq!(run(&host, &command).output, format!("said\ngold\n{real}\n{real}/srv\nnone\n"));
}

#[test]
fn y09_a_commands_directory_lies_below_the_root_also_by_links() {
    let (root, host) = host();
    fs::create_dir_all(root.path().join("srv/app")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    symlink("srv/app", root.path().join("near")).unwrap();
    symlink("/srv", root.path().join("absolute")).unwrap();
    symlink("../../../../srv", root.path().join("above")).unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    let real = root.path().canonicalize().unwrap().display().to_string();
    for (cwd, expected) in [("/near", "/srv/app"), ("/absolute/app", "/srv/app"), ("/above", "/srv")] {
        let command = Command { cwd: Some(path(cwd)), ..sh("pwd") };
        assert_eq!(run(&host, &command).output, format!("{real}{expected}\n"), "{cwd}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    symlink("/proc/self/cwd", root.path().join("magic")).unwrap();
    fs::write(root.path().join("plain"), "").unwrap();
    let to_outside = format!("/out is a symbolic link to {}, which leads to no directory", outside.path().display());
    for (cwd, why) in [
        ("/out", &*to_outside),
        ("/magic", "/magic is a symbolic link to /proc/self/cwd, which leads to no directory"),
        ("/missing", "/missing is not there: let a task before this one make it, or name another directory"),
        ("/missing/below", "/missing is not there: let a task"),
        ("/near/missing", "/near/missing is not there: let a task"),
        ("/plain", "/plain is a regular file, where a directory was expected: move it away, or name another directory"),
        ("/plain/below", "/plain is a regular file, where a directory was expected: move it away"),
    ] {
        let refused =
            runtime.block_on(host.run(&Command { cwd: Some(path(cwd)), ..sh("pwd") })).unwrap_err().sentence();
        assert!(refused.starts_with(&format!("cannot enter {cwd}: {why}")), "{refused}");
    }
}

#[test]
fn f38_a_command_that_hangs_is_ended_with_all_that_it_started() {
    let (root, host) = host();
    let named = root.path().join("child");
    let script = format!("sleep 1000 & echo $! > {}; sleep 1000", named.display());
    // On a busy machine the shell may not come to its child before its time is over: then it has more.
    let child = [300, 3_000, 30_000].into_iter().find_map(|timeout_ms| {
        let command = Command { timeout: Duration::from_millis(timeout_ms), ..sh(&script) };
        assert_eq!(run(&host, &command).end, End::TimedOut);
        process(&named)
    });
    until("its child was ended too", || !is_alive(child.expect("it has begun")));
}

/// The process whose number a script wrote into a file.
fn process(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Whether a process runs; one that has ended and was not waited for does not.
fn is_alive(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.lines().any(|line| line.starts_with("State:\tZ")))
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_daemon_that_keeps_the_output_open_holds_nobody_up() {
    let (_root, host) = host();
    let finished = run(&host, &sh("sleep 60 & echo started"));
    assert_eq!((finished.end, finished.output.as_str()), (End::Status(0), "started\n"), "it is not waited for");
}

#[test]
fn a_daemon_that_goes_on_writing_or_keeps_the_input_is_no_timeout() {
    let (_root, host) = host();
    for (name, script, input) in [
        ("writes all the time", "yes & echo started", 0),
        ("writes now and then", "while sleep 0.05; do echo tick; done & echo started", 0),
        ("keeps the input", "exec 3<&0; sleep 60 <&3 >/dev/null 2>&1 & echo started", 1 << 20),
    ] {
        let finished = run(&host, &Command { input: vec![b'x'; input], ..sh(script) });
        assert_eq!(finished.end, End::Status(0), "{name}");
    }
}

#[test]
fn what_a_command_leaves_running_stays_when_it_did_its_work_and_goes_when_it_failed() {
    let (root, host) = host();
    let (mark, named) = (root.path().join("alive"), root.path().join("child"));
    let script = format!("(sleep 0.7; touch {}) >/dev/null 2>&1 & exit 0", mark.display());
    assert_eq!(run(&host, &sh(&script)).end, End::Status(0));
    until("it has gone on", || mark.exists());
    let script = format!("sleep 1000 >/dev/null 2>&1 & echo $! > {}; exit 1", named.display());
    assert_eq!(run(&host, &sh(&script)).end, End::Status(1));
    let child = process(&named).expect("it has begun");
    until("it was ended", || !is_alive(child));
}

/// Whether who runs the test may become somebody else.
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn may_become_another() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "only root may become somebody else");
        eprintln!("skipped: only root may become somebody else");
    }
    is_root
}

#[test]
fn a_command_of_another_user_has_that_users_home_name_and_groups() {
    if !may_become_another() {
        return;
    }
    let (root, host) = host();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let fields: Vec<_> = passwd.lines().find(|line| line.starts_with("daemon:")).unwrap().split(':').collect();
    let groups = run(&host, &sh("id -G daemon")).output;
    let command = Command {
        user: Some("daemon".into()),
        cwd: None,
        env: BTreeMap::from([("TIER".to_owned(), "gold".to_owned())]),
        ..sh("cd /; echo $HOME $USER $LOGNAME $TIER; id -u; id -G")
    };
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let expected = format!("{} daemon daemon gold\n{}\n{groups}", fields[5], fields[2]);
    assert_eq!(run(&host, &command).output, expected);
    let own = Command {
        user: Some("root".into()),
        env: BTreeMap::from([("HOME".into(), "/tmp".into())]),
        ..sh("echo $HOME $USER")
    };
    assert_eq!(run(&host, &own).output, "/tmp root\n", "what the task says goes first");
}

#[test]
fn y09_a_number_without_an_account_runs_with_that_number_and_no_group_of_others() {
    if !may_become_another() {
        return;
    }
    let (root, host) = host();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = "cd /; id -u; id -G; echo $HOME ${USER-none} ${LOGNAME-none} $SHELL";
    let command = Command { user: Some("54321".into()), ..sh(script) };
    assert_eq!(run(&host, &command).output, "54321\n54321\n/ none none /bin/sh\n");
}

#[test]
fn a_lock_goes_with_its_process_whatever_that_left_running() {
    let (_root, host) = host();
    let lock = host.lock(&path("/lock")).unwrap().expect("nobody has it");
    // As a child that was forked and has not become another program yet, when its parent is killed.
    let mut child = std::process::Command::new("sleep").arg("20").stdin(lock.try_clone().unwrap()).spawn().unwrap();
    drop(lock);
    let again = host.lock(&path("/lock")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(again.is_some());
}

#[test]
fn y02_who_looks_whether_a_lock_is_held_does_not_take_it() {
    let (root, host) = host();
    assert!(!host.is_locked(&path("/lock")).unwrap());
    assert!(!root.path().join("lock").exists(), "nothing was made");
}

/// Where the process of another test is to say whether it has a lock.
const LOCKED: &str = "STEMMA_TEST_READ_ONLY_LOCK";

/// Says by its exit whether the lock is there to be had. Without that test there is nothing to do.
#[test]
fn another_agent_for_another_test() {
    if let Some(root) = std::env::var_os(LOCKED) {
        let host = RealHost::new(Path::new(&root)).unwrap();
        let is_held = host.is_locked(&path("/mnt/lock")).unwrap();
        let lock = host.lock(&path("/mnt/lock")).unwrap();
        assert_eq!(lock.is_none(), is_held);
        std::process::exit(if lock.is_some() { 10 } else { 11 });
    }
}

/// An agent did not start where its state is read-only: it opened the lock's file to write.
#[test]
fn y06_a_lock_on_a_read_only_mount_is_one_process_s_too() {
    let (root, host) = host();
    let Some(mounted) = Mounted::new(root.path()) else { return };
    let lock = || host.lock(&path("/mnt/lock")).unwrap();
    let other_has_it = || {
        let mut other = std::process::Command::new(std::env::current_exe().unwrap());
        other
            .args(["--exact", "host::real::tests::processes::another_agent_for_another_test"])
            .env(LOCKED, root.path());
        match other.output().unwrap().status.code() {
            Some(10) => true,
            Some(11) => false,
            other => panic!("{other:?}"),
        }
    };
    drop(lock().expect("nobody has it"));
    mounted.remount("ro");
    assert!(other_has_it(), "nobody has it");
    let held = lock().expect("nobody has it");
    assert!(!other_has_it());
    // One that could be written again later knows it too.
    mounted.remount("rw");
    assert!(!other_has_it());
    drop(held);
    assert!(other_has_it());
    fs::remove_file(mounted.0.join("lock")).unwrap();
    mounted.remount("ro");
    let said = host.lock(&path("/mnt/lock")).unwrap_err().sentence();
    assert!(said.starts_with("cannot lock /mnt/lock: Read-only file system"), "{said}");
    drop(mounted);
}

#[test]
fn what_cannot_be_run_says_so() {
    let (_root, host) = host();
    let command = Command::new(vec!["/no/such/program".into()], Duration::from_secs(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(host.run(&command)).unwrap_err().sentence();
    assert_eq!(error, "cannot run /no/such/program: No such file or directory (os error 2)");
}

/// It was said not to be there.
#[test]
fn y09_what_cannot_be_run_for_want_of_an_interpreter_says_so() {
    let (root, host) = host();
    let program = root.path().join("p").display().to_string();
    // Written by another process: this one forks in other tests meanwhile, and what a child has open to write is not run.
    let made = run(&host, &sh(&format!("echo '#!/no/such/interpreter' > '{program}' && chmod 755 '{program}'")));
    assert_eq!(made.end, End::Status(0), "{}", made.output);
    let command = Command::new(vec![program.clone()], PATIENCE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(host.run(&command)).unwrap_err().sentence();
    let said =
        "it is there, and the interpreter \"/no/such/interpreter\" that its first line names is not: install that";
    assert!(error.starts_with(&format!("cannot run {program}: {said}")), "{error}");
}
