//! Tasks that hang, fork or flood (F38), and disks without room (F07), on the real machine below a temporary directory.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::apply::testing::SmallDisk;
use crate::host::real::RealHost;
use stemma_wire::message::observed::TRUNCATION_MARK;

/// Runs a task set on the real machine until no task can run any more. Returns the new results, and the progress.
fn run_real(root: &Path, set: &TestTaskSet) -> (Vec<TaskResult>, observed::Progress) {
    let host = Rc::new(RealHost::new(root).unwrap());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host).unwrap()));
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let mut run = TaskRun::plan(site, &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { while run.advance(&BTreeSet::new()).await.unwrap() {} });
    (run.save_results().unwrap(), run.progress())
}

/// Returns the result of the task with this id.
fn find_result<'a>(results: &'a [TaskResult], id: &str) -> &'a TaskResult {
    results.iter().find(|result| result.task == id).unwrap()
}

/// Returns whether the process with this id runs. A zombie counts as ended.
fn is_alive(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.lines().any(|line| line.starts_with("State:\tZ")))
}

/// Waits until each process whose id is in the file has ended. Returns the number of processes.
fn wait_for_end(pid_file: &Path) -> usize {
    let pids: Vec<String> = fs::read_to_string(pid_file).unwrap().lines().map(str::to_owned).collect();
    let deadline = Instant::now() + Duration::from_mins(2);
    while pids.iter().any(|pid| is_alive(pid)) {
        assert!(Instant::now() < deadline, "processes remain");
        std::thread::sleep(Duration::from_millis(10));
    }
    pids.len()
}

/// One task ignores SIGTERM, the other one does not. Another task runs to its end at the same time.
#[test]
fn f38_hanging_task_ends_at_timeout_and_stops_only_dependants() {
    let root = tempfile::tempdir().unwrap();
    let pid_file = root.path().join("pids");
    let script = |first: &str| format!("{first} echo $$ >> {}; while :; do sleep 1000; done", pid_file.display());
    let hanging = |first: &str| json!({"parameters": {"script": script(first), "timeout": 1}});
    let set = TestTaskSet::default()
        .task("hangs", "shell", &[], &hanging(""))
        .task("ignores", "shell", &[], &hanging("trap '' TERM;"))
        .file("after", &[1], "/after", "x")
        .file("other", &[], "/other", "x");
    let (results, progress) = run_real(root.path(), &set);
    for id in ["hangs", "ignores"] {
        let result = find_result(&results, id);
        let expected = (Outcome::Failed, "the command did not end in time and was stopped");
        assert_eq!((result.outcome, result.message.as_str()), expected, "{id}");
        assert!(result.duration_ms < 60_000, "{id}: {}", result.duration_ms);
    }
    assert_eq!(find_result(&results, "after").outcome, Outcome::DependencyFailed);
    assert_eq!((find_result(&results, "other").outcome, progress), (Outcome::Changed, observed::Progress::Failed));
    assert_eq!(wait_for_end(&pid_file), 2);
}

/// The script starts 200 processes, and half of them start one more. None of them ends by itself.
#[test]
fn f38_forking_task_leaves_no_process_after_failure() {
    let root = tempfile::tempdir().unwrap();
    let pid_file = root.path().join("pids");
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); sleep 1000 & echo $! >> PIDS; \
                  sh -c 'sleep 1000 & echo $! >> PIDS; wait' & echo $! >> PIDS; done; \
                  until [ $(wc -l < PIDS) -ge 300 ]; do sleep 0.01; done; exit 1"
        .replace("PIDS", &pid_file.display().to_string());
    let set = TestTaskSet::default().task("forks", "shell", &[], &json!({"parameters": {"script": script, "timeout": 100}}));
    let (results, _) = run_real(root.path(), &set);
    assert_eq!(find_result(&results, "forks").message, "the command ended with status 1");
    assert_eq!(wait_for_end(&pid_file), 300);
}

/// Returns the maximum memory that this process has used, in KiB.
fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The task writes 1 GiB in lines, one of them without an end, and control characters. Other tests of this process run at
/// the same time, so the limit of its memory is generous.
#[test]
fn f38_flooding_task_keeps_only_marked_end_of_output() {
    let root = tempfile::tempdir().unwrap();
    let script =
        "head -c 536870912 /dev/zero; yes '0123456789 flood' | head -c 536870912 >&2; printf '\\033[2J'; echo; echo last line";
    let set = TestTaskSet::default().task("floods", "shell", &[], &json!({"parameters": {"script": script}}));
    let (results, _) = run_real(root.path(), &set);
    let result = find_result(&results, "floods");
    assert_eq!(result.outcome, Outcome::Changed);
    assert!(result.output.len() <= 4096 && result.output.starts_with(TRUNCATION_MARK), "{}", result.output);
    assert!(result.output.ends_with("\\u{1b}[2J\nlast line\n"), "{}", result.output);
    assert!(peak_memory_kib() < 512 * 1024, "{} KiB", peak_memory_kib());
}

/// The new files need more room than their disk has. The agent's own state is on another disk.
#[test]
fn f07_file_task_leaves_old_file_when_disk_is_full() {
    let root = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::new(root.path().join("mnt"), "64k") else { return };
    fs::write(disk.0.join("old"), "old").unwrap();
    let large = "x".repeat(1024 * 1024);
    let set = TestTaskSet::default()
        .file("old", &[], "/mnt/old", &large)
        .file("new", &[], "/mnt/new", &large)
        .file("after", &[0], "/after", "x")
        .file("other", &[], "/other", "x");
    let (results, progress) = run_real(root.path(), &set);
    for (id, path) in [("old", "/mnt/old"), ("new", "/mnt/new")] {
        let result = find_result(&results, id);
        assert_eq!(result.outcome, Outcome::Failed);
        assert!(result.message.contains("No space left on device") && result.message.contains(path), "{}", result.message);
    }
    assert_eq!((find_result(&results, "other").outcome, progress), (Outcome::Changed, observed::Progress::Failed));
    assert_eq!((disk.names(), fs::read_to_string(disk.0.join("old")).unwrap()), (vec!["old".to_owned()], "old".to_owned()));
    disk.resize("8m");
    let (results, progress) = run_real(root.path(), &set);
    assert_eq!((results.len(), progress), (3, observed::Progress::Converged));
    assert_eq!((disk.names().len(), fs::read_to_string(disk.0.join("new")).unwrap().len()), (2, large.len()));
}

/// The tasks with all types that write records or files of the agent, each run while the disk is full from the start or
/// becomes full at a later call. With room again, the same run succeeds.
#[test]
fn f07_task_succeeds_after_full_disk_of_agent_has_room() {
    for (kind, parameters) in [
        ("file", json!({"path": "/f", "content": "x"})),
        ("shell", json!({"command": ["run"]})),
        ("reboot", json!({})),
        ("puppet", json!({"manifest": "notice('x')", "hiera": {"a": "b"}})),
    ] {
        let host = MemoryHost::new();
        host.put("/usr/bin/puppet", "");
        host.on_run(|host, command| {
            if let Some(summary) = command.argv.iter().find_map(|word| word.strip_prefix("--lastrunfile=")) {
                host.put(summary, "resources:\n  changed: 1\n  failed: 0\n  out_of_sync: 1\n  total: 1\n");
            }
            let is_puppet_run = command.argv.iter().any(|word| word == "--no-noop");
            CommandResult { end: ExitKind::Status(if is_puppet_run { 2 } else { 0 }), output: String::new() }
        });
        let set = TestTaskSet::default().task("t", kind, &[], &json!({"parameters": parameters}));
        let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let run_once = |site: Site| {
            runtime.block_on(async {
                let mut run = TaskRun::plan(site, &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge)?;
                while run.advance(&BTreeSet::new()).await? {}
                let summary = run.summary();
                run.save_results().map(|_| summary)
            })
        };
        let full_site = site(&host);
        host.set_full(true);
        let end = run_once(full_site);
        assert!(end.is_err(), "{kind}: the result cannot be stored: {end:?}");
        assert_eq!((host.text("/f"), host.list("/var/lib/stemma-agent/apply/puppet")), (None, vec![]), "{kind}");
        assert!(host.commands_run().iter().all(|words| words[0] != "run"), "{kind}: no command runs without its record");
        host.set_full(false);
        let summary = run_once(site(&host)).unwrap();
        let expected = if kind == "reboot" { vec![] } else { vec![Outcome::Changed] };
        assert_eq!(summary.outcomes, expected, "{kind}");
        assert_eq!(site(&host).ledger.set_aside_records().unwrap(), Vec::<String>::new(), "{kind}");
    }
}
