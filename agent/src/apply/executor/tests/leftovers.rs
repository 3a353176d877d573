//! Files that a killed agent left next to the files of its tasks.

use serde_json::Value;

use super::*;
use crate::apply::ledger::STAGING_DIRS;

/// The name of a file that an agent began to write and did not finish.
const LEFTOVER_NAME: &str = ".stemma-0123456789abcdef";

/// Returns a task set with one file task `t` that has these parameters.
fn file_set(parameters: &Value) -> TestTaskSet {
    TestTaskSet::default().task("t", "file", &[], &json!({"parameters": parameters}))
}

/// Returns the names of the unfinished files in a directory.
fn unfinished_files(host: &MemoryHost, dir: &str) -> Vec<String> {
    host.list(dir).into_iter().filter(|name| name.starts_with(".stemma-")).collect()
}

#[test]
fn x05_run_removes_leftovers_near_file_but_check_does_not() {
    for (name, parameters) in [
        ("content is equal", json!({"path": "/etc/f", "content": "x"})),
        ("content differs", json!({"path": "/etc/f", "content": "y"})),
        ("to be absent", json!({"path": "/etc/f", "absent": true})),
        ("absent already", json!({"path": "/etc/g", "absent": true})),
        ("below the root", json!({"path": "/f", "content": "x"})),
    ] {
        let dir = if name == "below the root" { "" } else { "/etc" };
        let host = MemoryHost::new();
        host.put("/etc/f", "x");
        host.put(&format!("{dir}/{LEFTOVER_NAME}"), "secret");
        // These names and objects resemble unfinished files but are not, so the run must not remove them.
        let (short, upper, subdir) = (".stemma-0123456789abcde", ".stemma-0123456789ABCDEF", ".stemma-1111111111111111");
        for name in [short, upper] {
            host.put(&format!("{dir}/{name}"), "theirs");
        }
        host.put_dir(&format!("{dir}/{subdir}"));
        // A task of type `link` may have left this link.
        let link = ".stemma-2222222222222222";
        host.put_link(&format!("{dir}/{link}"));
        let leftover_exists = || host.text(&format!("{dir}/{LEFTOVER_NAME}")).is_some();
        run_with(&host, &file_set(&parameters), &Ceiling::default(), RunPurpose::Check);
        for read_only_set in [file_set(&parameters).mode(Mode::Noop), file_set(&parameters).mode(Mode::Observe)] {
            converge(&host, &read_only_set);
        }
        assert!(leftover_exists(), "{name}: a run in mode noop or observe removes nothing");
        converge(&host, &file_set(&parameters));
        assert!(!leftover_exists(), "{name}");
        for name in [short, upper] {
            assert_eq!(host.text(&format!("{dir}/{name}")).as_deref(), Some("theirs"));
        }
        // `MemoryHost::list` cannot list the root directory.
        let is_listed = |name: &str| dir.is_empty() || host.list(dir).iter().any(|listed| listed == name);
        assert!(is_listed(subdir), "{name}: a directory is not an unfinished file");
        assert!(dir.is_empty() || !is_listed(link), "{name}: an unfinished link is removed");
    }
}

/// When a run is planned, a sweep looks for unfinished files in the directories of the tasks, and removes them. In this
/// test there are none, so each sweep only lists the directory. `calls` counts the calls that change the host.
#[test]
fn x05_sweep_reads_directory_once_and_writes_nothing_when_clean() {
    let host = MemoryHost::new();
    let set =
        (0..20).fold(TestTaskSet::default(), |set, index| set.file(&format!("t{index}"), &[], &format!("/etc/f{index}"), "x"));
    converge(&host, &set);
    assert_eq!(host.list_count("/etc"), 0, "the directory did not exist when the run began");
    // Each plan lists the directory of the 20 tasks once.
    for pass in 1..=2 {
        host.restart();
        let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
        TaskRun::plan(site(&host), &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap();
        assert_eq!((host.list_count("/etc"), host.calls()), (pass, 0));
    }
}

/// In each round, the agent is killed before another of the calls that change the host, while a task writes `/srv/f`.
/// The next run, without this task, removes the unfinished file from `/srv`. Everybody may write to this directory, and
/// it contains a file that no task manages.
#[test]
fn x05_sweep_removes_leftovers_of_deleted_task_after_kill() {
    let set_with_task = || file_set(&json!({"path": "/srv/f", "content": "secret", "owner": "www-data"}));
    let set_without_task = TestTaskSet::default().file("other", &[], "/etc/g", "x");
    let uninterrupted_host = MemoryHost::new();
    uninterrupted_host.put("/srv/other", "");
    uninterrupted_host.chmod("/srv", 0o777);
    converge(&uninterrupted_host, &set_with_task());
    let mut leftover_count = 0;
    for call in 0..uninterrupted_host.calls() {
        let host = MemoryHost::new();
        host.put("/srv/other", "");
        host.chmod("/srv", 0o777);
        host.crash_before(call);
        let profile: Profile = postcard::from_bytes(&set_with_task().profile().1).unwrap();
        let open_ledger = Ledger::open(Rc::new(host.clone())).ok();
        let site = open_ledger.map(|ledger| Site::new(Rc::new(host.clone()), Rc::new(ledger)));
        let task_run = site.and_then(|site| {
            TaskRun::plan(site, &Ceiling::default(), &set_with_task().desired(), &profile, RunPurpose::Converge).ok()
        });
        if let Some(mut run) = task_run {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let open_barriers = BTreeSet::new();
            let _ = runtime.block_on(async {
                while run.advance(&open_barriers).await? {}
                anyhow::Ok(())
            });
        }
        host.restart();
        leftover_count += unfinished_files(&host, "/srv").len();
        converge(&host, &set_without_task);
        assert_eq!(unfinished_files(&host, "/srv"), Vec::<String>::new(), "crashed before call {call}");
        let staging_dirs = Ledger::open(Rc::new(host.clone())).unwrap().get(&STAGING_DIRS).unwrap().unwrap();
        assert_eq!(
            staging_dirs.into_keys().collect::<Vec<_>>(),
            ["/etc"],
            "the directory of the deleted task is no longer recorded"
        );
    }
    assert!(leftover_count > 0, "at least one crash left an unfinished file");
}

#[test]
fn x05_sweep_keeps_foreign_file_when_directory_is_shared() {
    let (daemon, nobody) = (1, 65_534);
    // The mode of the directory, the owner that the task sets, the uid that owns the unfinished file, and whether the
    // sweep removes the file. In a directory that all users can write, another user could have created it.
    for (dir_mode, owner, leftover_owner, is_removed) in [
        (0o755, None, daemon, true),
        (0o1777, None, daemon, false),
        (0o1777, None, 0, true),
        (0o1777, Some("www-data"), 33, true),
        (0o1777, Some("www-data"), nobody, false),
    ] {
        let host = MemoryHost::new();
        host.put(&format!("/srv/{LEFTOVER_NAME}"), "x");
        host.chmod("/srv", dir_mode);
        host.chown(&format!("/srv/{LEFTOVER_NAME}"), leftover_owner);
        let mut parameters = json!({"path": "/srv/f", "content": "x"});
        if let Some(owner) = owner {
            parameters["owner"] = json!(owner);
        }
        converge(&host, &file_set(&parameters));
        assert_eq!(unfinished_files(&host, "/srv").is_empty(), is_removed, "{dir_mode:o} {owner:?}, of {leftover_owner}");
    }
}
