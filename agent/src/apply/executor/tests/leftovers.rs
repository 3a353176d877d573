//! Files that a killed agent left next to the files of its tasks.

use serde_json::Value;

use super::*;
use crate::apply::ledger::STAGING_DIRS;

/// The name of an unfinished file of an agent.
const LEFTOVER_NAME: &str = ".stemma-0123456789abcdef";

fn file_set(parameters: &Value) -> TestTaskSet {
    TestTaskSet::default().task("t", "file", &[], &json!({"parameters": parameters}))
}

/// Returns the unfinished files in a directory.
fn unfinished(host: &MemoryHost, dir: &str) -> Vec<String> {
    host.list(dir).into_iter().filter(|name| name.starts_with(".stemma-")).collect()
}

#[test]
fn x05_run_removes_leftovers_near_file_but_check_does_not() {
    for (name, parameters) in [
        ("right already", json!({"path": "/etc/f", "content": "x"})),
        ("to be changed", json!({"path": "/etc/f", "content": "y"})),
        ("to be absent", json!({"path": "/etc/f", "absent": true})),
        ("absent already", json!({"path": "/etc/g", "absent": true})),
        ("below the root", json!({"path": "/f", "content": "x"})),
    ] {
        let dir = if name == "below the root" { "" } else { "/etc" };
        let host = MemoryHost::new();
        host.put("/etc/f", "x");
        host.put(&format!("{dir}/{LEFTOVER_NAME}"), "secret");
        // Names and objects that only look like unfinished files.
        let (short, upper, link) = (".stemma-0123456789abcde", ".stemma-0123456789ABCDEF", ".stemma-1111111111111111");
        for name in [short, upper] {
            host.put(&format!("{dir}/{name}"), "theirs");
        }
        host.put_link(&format!("{dir}/{link}"));
        let is_left = || host.text(&format!("{dir}/{LEFTOVER_NAME}")).is_some();
        run_with(&host, &file_set(&parameters), &Ceiling::default(), RunPurpose::Check);
        for looks in [file_set(&parameters).mode(Mode::Noop), file_set(&parameters).mode(Mode::Observe)] {
            converge(&host, &looks);
        }
        assert!(is_left(), "{name}: a look changes nothing");
        converge(&host, &file_set(&parameters));
        assert!(!is_left(), "{name}");
        for name in [short, upper] {
            assert_eq!(host.text(&format!("{dir}/{name}")).as_deref(), Some("theirs"));
        }
        // The root directory has no default list here.
        assert!(dir.is_empty() || host.list(dir).iter().any(|listed| listed == link), "{name}: a link is no file of the agent's");
    }
}

#[test]
fn x05_sweep_reads_directory_once_and_writes_nothing_when_clean() {
    let host = MemoryHost::new();
    let set = (0..20).fold(TestTaskSet::default(), |set, n| set.file(&format!("t{n}"), &[], &format!("/etc/f{n}"), "x"));
    converge(&host, &set);
    assert_eq!(host.list_count("/etc"), 0, "it was not there when the pass began");
    for pass in 1..=2 {
        host.restart();
        let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
        TaskRun::plan(site(&host), &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap();
        assert_eq!((host.list_count("/etc"), host.calls()), (pass, 0));
    }
}

#[test]
fn x05_sweep_removes_leftovers_of_deleted_task_after_kill() {
    let with = || file_set(&json!({"path": "/srv/f", "content": "secret", "owner": "www-data"}));
    let without = TestTaskSet::default().file("other", &[], "/etc/g", "x");
    let whole = MemoryHost::new();
    whole.put("/srv/other", "");
    whole.chmod("/srv", 0o777);
    converge(&whole, &with());
    let mut were_left = 0;
    for call in 0..whole.calls() {
        let host = MemoryHost::new();
        host.put("/srv/other", "");
        host.chmod("/srv", 0o777);
        host.crash_before(call);
        let profile: Profile = postcard::from_bytes(&with().profile().1).unwrap();
        let opened = Ledger::open(Rc::new(host.clone())).ok();
        let site = opened.map(|ledger| Site::new(Rc::new(host.clone()), Rc::new(ledger)));
        let planned = site
            .and_then(|site| TaskRun::plan(site, &Ceiling::default(), &with().desired(), &profile, RunPurpose::Converge).ok());
        if let Some(mut run) = planned {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let open = BTreeSet::new();
            let _ = runtime.block_on(async {
                while run.advance(&open).await? {}
                anyhow::Ok(())
            });
        }
        host.restart();
        were_left += unfinished(&host, "/srv").len();
        converge(&host, &without);
        assert_eq!(unfinished(&host, "/srv"), Vec::<String>::new(), "died before call {call}");
        let kept = Ledger::open(Rc::new(host.clone())).unwrap().get(&STAGING_DIRS).unwrap().unwrap();
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), ["/etc"], "it is on record no longer than it is needed");
    }
    assert!(were_left > 0, "something was left somewhere");
}

#[test]
fn x05_sweep_keeps_foreign_file_when_directory_is_shared() {
    let (daemon, nobody) = (1, 65_534);
    for (dir_mode, owner, of_file, goes) in [
        (0o755, None, daemon, true),
        (0o1777, None, daemon, false),
        (0o1777, None, 0, true),
        (0o1777, Some("www-data"), 33, true),
        (0o1777, Some("www-data"), nobody, false),
    ] {
        let host = MemoryHost::new();
        host.put(&format!("/srv/{LEFTOVER_NAME}"), "x");
        host.chmod("/srv", dir_mode);
        host.chown(&format!("/srv/{LEFTOVER_NAME}"), of_file);
        let mut parameters = json!({"path": "/srv/f", "content": "x"});
        if let Some(owner) = owner {
            parameters["owner"] = json!(owner);
        }
        converge(&host, &file_set(&parameters));
        assert_eq!(unfinished(&host, "/srv").is_empty(), goes, "{dir_mode:o} {owner:?}, of {of_file}");
    }
}
