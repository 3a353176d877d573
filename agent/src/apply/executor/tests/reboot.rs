//! Tasks that ask for a reboot: what waits for it, and how a run continues after the boot.

use super::*;
use crate::apply::ledger::REBOOT_REQUESTS;
use observed::Progress::{Converged, Idle, Waiting};

/// Returns a file task, a task that asks for a reboot after it, and a file task that requires the reboot.
fn reboot_set(content: &str, fields: &serde_json::Value) -> TestTaskSet {
    TestTaskSet::default().file("conf", &[], "/conf", content).task("boot", "reboot", &[0], fields).file(
        "after",
        &[1],
        "/after",
        content,
    )
}

fn run(host: &MemoryHost, set: &TestTaskSet) -> (Vec<(String, Outcome)>, observed::Progress) {
    run_with(host, set, &Ceiling::default(), RunPurpose::Converge)
}

#[test]
fn reboot_task_holds_dependants_until_host_boots() {
    let host = MemoryHost::new();
    let set = reboot_set("1", &json!({}));
    assert_eq!(run(&host, &set), (pairs(&[("conf", Outcome::Changed)]), Waiting));
    assert_eq!(run(&host, &set), (vec![], Waiting), "the next run of the same boot waits too");
    assert_eq!(host.text("/after"), None);
    host.reboot();
    assert_eq!(run(&host, &set), (pairs(&[("boot", Outcome::Changed), ("after", Outcome::Changed)]), Converged));
    assert_eq!(run(&host, &set), (vec![], Converged));
    host.reboot();
    assert_eq!(run(&host, &set), (vec![], Converged), "a later boot has no effect");
}

#[test]
fn reboot_request_is_withdrawn_when_task_leaves_or_changes() {
    let host = MemoryHost::new();
    run(&host, &reboot_set("1", &json!({})));
    let pending = || site(&host).ledger.get(&REBOOT_REQUESTS).unwrap().unwrap_or_default();
    let first = pending()["boot"].clone();
    run(&host, &reboot_set("1", &json!({"parameters": {"timeout": 60}})));
    assert_ne!(pending()["boot"].content, first.content, "the new content replaces the request");
    assert_eq!(run(&host, &TestTaskSet::default().file("conf", &[], "/conf", "1")).1, Converged);
    assert_eq!(pending().len(), 0);
}

#[test]
fn reboot_task_asks_for_nothing_in_noop() {
    let host = MemoryHost::new();
    let set = reboot_set("1", &json!({}));
    let would_change = pairs(&[("conf", Outcome::WouldChange), ("boot", Outcome::WouldChange), ("after", Outcome::WouldChange)]);
    assert_eq!(run(&host, &reboot_set("1", &json!({})).mode(Mode::Noop)), (would_change, Idle));
    assert_eq!(site(&host).ledger.get(&REBOOT_REQUESTS).unwrap(), None);
    run(&host, &set);
    let outcomes = run_with(&host, &set, &Ceiling::default(), RunPurpose::Check).0;
    assert_eq!(
        outcomes,
        pairs(&[("conf", Outcome::Unchanged), ("boot", Outcome::WouldChange), ("after", Outcome::WouldChange)]),
        "a check of a waiting task reports it"
    );
}

/// The task `boot` subscribes to `conf`, and `note` subscribes to `boot`.
#[test]
fn reboot_task_asks_once_per_change_and_notifies_after_boot() {
    let host = MemoryHost::new();
    let set = |content: &str| {
        reboot_set(content, &json!({"subscribes": ["conf"]})).task(
            "note",
            "shell",
            &[1],
            &json!({"parameters": {"command": ["note"]}, "subscribes": ["boot"]}),
        )
    };
    let boot_until_converged = |content: &str| {
        let boots = (0..5).take_while(|_| {
            let is_waiting = run(&host, &set(content)).1 == Waiting;
            if is_waiting {
                host.reboot();
            }
            is_waiting
        });
        boots.count()
    };
    assert_eq!((boot_until_converged("1"), host.commands_run().len()), (1, 1));
    assert_eq!((boot_until_converged("1"), host.commands_run().len()), (0, 1));
    assert_eq!((boot_until_converged("2"), host.commands_run().len()), (1, 2), "a change of `conf` asks for one boot");
    assert_eq!((boot_until_converged("2"), host.commands_run().len()), (0, 2));
}

/// The process is killed before each call that changes the machine. The last loop kills nothing.
#[test]
fn run_with_reboot_resumes_when_killed_at_any_call() {
    let mut is_killed = true;
    let mut call = 0;
    while is_killed {
        let host = MemoryHost::new();
        let set = reboot_set("1", &json!({"subscribes": ["conf"]}));
        let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
        let site = site(&host);
        host.crash_before(call);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let end = runtime.block_on(async {
            let mut run = TaskRun::plan(site, &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge)?;
            while run.advance(&BTreeSet::new()).await? {}
            run.save_results()
        });
        is_killed = host.is_crashed();
        assert_eq!(end.is_err(), is_killed, "call {call}");
        host.cut_power();
        assert_eq!((run(&host, &set).1, host.text("/after")), (Waiting, None), "call {call}");
        host.reboot();
        assert_eq!((run(&host, &set).1, host.text("/after").as_deref()), (Converged, Some("1")), "call {call}");
        call += 1;
    }
    assert!(call > 5, "{call}");
}
