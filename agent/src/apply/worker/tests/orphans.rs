//! Orphans and clean-ups in reports, and the removal of orphans on a host whose nodegroup has `remove_orphans`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_core::status::Orphans;

use super::*;
use crate::apply::ledger::{LEFT_OBJECTS, ObjectKind, WRITTEN_FILES};
use crate::host::memory::{MemoryUnit, StartBehavior};
use crate::host::system_units::ActiveState;

fn base_set() -> TestTaskSet {
    TestTaskSet::default().file("base", &[], "/etc/base", "b")
}

/// Lets a host accept a task set, and returns the messages of its agent.
fn send_set(host: &MemoryHost, controller: &TestController, revision: u64, set: &TestTaskSet) -> Vec<ApplyMessage> {
    runtime().block_on(run_until_idle(host, controller, offer_and_body(controller, revision, set)))
}

/// Returns the orphans of the last report among the messages.
fn reported(messages: &[ApplyMessage]) -> Orphans {
    let reports = reports(messages);
    let fact = reports.last().and_then(|report| report.facts.get("agent.orphans"));
    fact.map(|fact| Orphans::from_fact(fact)).unwrap_or_default()
}

/// Returns the reasons why listed orphans stay, by path.
fn kept_reasons(orphans: &Orphans) -> BTreeMap<String, String> {
    orphans.listed.iter().filter_map(|orphan| Some((orphan.name.clone(), orphan.kept.clone()?))).collect()
}

/// Returns a host on which the files of four tasks are orphans: a file that a task created, a sensitive one, one that
/// existed before, and one that somebody changed.
fn host_with_orphans(controller: &TestController) -> MemoryHost {
    let host = MemoryHost::new();
    host.put("/etc/before", "old");
    let sensitive = json!({"sensitive": true, "parameters": {"path": "/etc/secret", "content": "s"}});
    let set = base_set()
        .file("key", &[], "/root/key", "k")
        .file("before", &[], "/etc/before", "new")
        .file("edited", &[], "/etc/edited", "e")
        .task("secret", "file", &[], &sensitive);
    send_set(&host, controller, 1, &set);
    let orphans = reported(&send_set(&host, controller, 2, &base_set()));
    let listed: Vec<_> = orphans.listed.iter().map(|orphan| (orphan.name.as_str(), orphan.is_secret)).collect();
    assert_eq!(listed, [("/etc/before", false), ("/etc/edited", false), ("/etc/secret", true), ("/root/key", false)]);
    assert_eq!(kept_reasons(&orphans), BTreeMap::new(), "nothing is removed without remove_orphans");
    host.put("/etc/edited", "somebody's");
    host
}

#[test]
fn removal_deletes_only_unchanged_files_of_tasks() {
    let controller = TestController::new();
    let host = host_with_orphans(&controller);
    let messages = send_set(&host, &controller, 3, &base_set().removing_orphans());
    assert_eq!((host.text("/root/key"), host.text("/etc/secret")), (None, None), "both are removed");
    assert_eq!(host.text("/etc/before").as_deref(), Some("new"));
    assert_eq!(host.text("/etc/edited").as_deref(), Some("somebody's"));
    assert_eq!(host.text("/etc/base").as_deref(), Some("b"));
    let removals = [("key".to_owned(), Outcome::Changed), ("secret".to_owned(), Outcome::Changed)];
    let outcomes = outcomes(&messages);
    assert!(outcomes.ends_with(&removals), "{outcomes:?}");
    let orphans = reported(&messages);
    let reasons = kept_reasons(&orphans);
    assert_eq!(reasons.keys().collect::<Vec<_>>(), ["/etc/before", "/etc/edited"]);
    assert!(reasons["/etc/before"].starts_with("it existed before a task made it"), "{reasons:?}");
    assert!(reasons["/etc/edited"].starts_with("somebody changed it"), "{reasons:?}");
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    assert_eq!(ledger.undo_note("/root/key").and_then(|note| note.bytes).as_deref(), Some(&b"k"[..]), "a copy for undo");
    assert_eq!(ledger.undo_note("/etc/secret"), None, "no copy of a secret");
    // The next run has nothing to do and reports the same.
    let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(kept_reasons(&reported(&messages)), reasons);
}

#[test]
fn removal_waits_until_tasks_have_succeeded_in_mode_apply() {
    let controller = TestController::new();
    let host = host_with_orphans(&controller);
    let unremoved = "it is removed after all tasks of this host have succeeded in mode apply";
    let check = |messages: &[ApplyMessage], text: &str| {
        assert_eq!(host.text("/root/key").as_deref(), Some("k"), "{text}");
        assert_eq!(kept_reasons(&reported(messages)).get("/root/key").map(String::as_str), Some(unremoved), "{text}");
    };
    check(&send_set(&host, &controller, 3, &base_set().mode(Mode::Noop).removing_orphans()), "mode noop");
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: String::new() });
    let set_with_failure = || base_set().command("bad", &[], &["false"]).removing_orphans();
    check(&send_set(&host, &controller, 4, &set_with_failure()), "a task fails");
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.text("/root/key"), None);
}

#[test]
fn removal_waits_for_clean_up_of_task() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let conf = json!({"on_unassign": "undo", "parameters": {"path": "/etc/app", "content": "x"}});
    let undo = json!({"fail_on_error": false, "parameters": {"command": ["undo"]}});
    let set = base_set().task("conf", "file", &[], &conf).unassign_task("undo", "shell", &undo);
    send_set(&host, &controller, 1, &set.removing_orphans());
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: String::new() });
    let orphans = reported(&send_set(&host, &controller, 2, &base_set().removing_orphans()));
    assert_eq!(host.text("/etc/app").as_deref(), Some("x"), "the clean-up may need it");
    let clean_up = |state: &str, message: &str| {
        let mut clean_up = json!({"task": "conf", "on_unassign": "undo", "state": state});
        if !message.is_empty() {
            clean_up["message"] = message.into();
        }
        json!([clean_up])
    };
    assert_eq!(json!(orphans.clean_ups), clean_up("failed", "the command ended with status 1"));
    assert!(!orphans.is_empty());
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.text("/etc/app"), None);
    let outcomes = outcomes(&messages);
    assert!(outcomes.contains(&("on_unassign/undo".to_owned(), Outcome::Changed)), "{outcomes:?}");
    assert_eq!(reported(&messages), Orphans::default(), "nothing is left, so the clean-up is no longer reported");
}

/// A clean-up that succeeded is reported as long as something of its task is left.
#[test]
fn report_has_succeeded_clean_up_while_file_is_left() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let conf = json!({"on_unassign": "undo", "parameters": {"path": "/etc/app", "content": "x"}});
    let undo = json!({"parameters": {"command": ["undo"]}});
    send_set(&host, &controller, 1, &base_set().task("conf", "file", &[], &conf).unassign_task("undo", "shell", &undo));
    let orphans = reported(&send_set(&host, &controller, 2, &base_set()));
    assert_eq!(json!(orphans.clean_ups), json!([{"task": "conf", "on_unassign": "undo", "state": "succeeded"}]));
    assert_eq!(orphans.listed.len(), 1);
    host.delete("/etc/app");
    let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(reported(&messages), Orphans::default());
}

/// A condition that cannot be evaluated counts as false, so it must not delete a file.
#[test]
fn removal_keeps_file_of_task_with_false_condition() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = || base_set().file("conf", &[], "/etc/app", "x").removing_orphans();
    send_set(&host, &controller, 1, &set());
    let messages = send_set(&host, &controller, 2, &set().leave_out("conf", "condition is false: labels.x"));
    assert_eq!(host.text("/etc/app").as_deref(), Some("x"));
    let expected = "its task is still placed on this node, and is left out: condition is false: labels.x";
    assert_eq!(kept_reasons(&reported(&messages)).get("/etc/app").map(String::as_str), Some(expected));
}

/// A directory that a task made is removed if it is empty. So are those that were created for a file or a link.
#[test]
fn removal_deletes_links_and_empty_directories_of_tasks() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/srv/old/file", "");
    let path = |path: &str| json!({"parameters": {"path": path}});
    let set = base_set()
        .task("made", "directory", &[], &path("/srv/made"))
        .task("used", "directory", &[], &path("/srv/used"))
        .task("old", "directory", &[], &path("/srv/old"))
        .task("link", "link", &[], &json!({"parameters": {"path": "/opt/a/b/link", "target": "/etc/base"}}))
        .task("changed", "link", &[], &json!({"parameters": {"path": "/opt/a/changed", "target": "/etc/base"}}))
        .file("file", &[], "/srv/made/sub/file", "x");
    let messages = send_set(&host, &controller, 1, &set);
    assert_eq!(progress(&messages), Some(observed::Progress::Converged), "{:?}", outcomes(&messages));
    // Nobody corrects the changes, because the tasks have fallen away.
    send_set(&host, &controller, 2, &base_set());
    host.put("/srv/used/other", "");
    host.delete("/opt/a/changed");
    host.put_link("/opt/a/changed");
    let orphans = reported(&send_set(&host, &controller, 3, &base_set().removing_orphans()));
    assert_eq!(host.list("/srv"), ["old", "used"], "the empty directories are removed, with those below");
    assert_eq!((host.list("/opt"), host.list("/opt/a")), (vec!["a".to_owned()], vec!["changed".to_owned()]));
    let reasons: Vec<_> = kept_reasons(&orphans).into_iter().collect();
    let expected = [
        ("/opt/a/changed", "somebody changed it after the task made it: remove it on the host"),
        ("/srv/old", "it existed before a task made it, or an older agent made it: remove it on the host"),
        ("/srv/used", "it is not empty: remove it on the host"),
    ];
    assert_eq!(reasons, expected.map(|(path, reason)| (path.to_owned(), reason.to_owned())));
}

/// The agent is killed before each call of a run that removes orphans. The next agent removes the rest, and nothing else.
#[test]
fn removal_continues_when_power_is_cut() {
    let controller = TestController::new();
    let set = base_set().removing_orphans();
    let host = host_with_orphans(&controller);
    host.restart();
    send_set(&host, &controller, 3, &set);
    let calls = host.calls();
    assert!(calls > 10, "{calls}");
    for call in 0..calls {
        let host = host_with_orphans(&controller);
        host.restart();
        host.crash_before(call);
        send_set(&host, &controller, 3, &set);
        host.cut_power();
        let messages = send_set(&host, &controller, 4, &set);
        let texts = ["/root/key", "/etc/secret", "/etc/before", "/etc/edited"].map(|path| host.text(path));
        assert_eq!(texts, [None, None, Some("new".to_owned()), Some("somebody's".to_owned())], "crashed before call {call}");
        let listed: Vec<_> = reported(&messages).listed.into_iter().map(|orphan| orphan.name).collect();
        assert_eq!(listed, ["/etc/before", "/etc/edited"], "crashed before call {call}");
    }
}

/// Covers an upgrade from an agent that recorded only the paths of files. The new record replaces the old one when it
/// changes.
#[test]
fn orphans_include_files_recorded_by_older_agent() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/etc/old", "o");
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    ledger.put(&WRITTEN_FILES, &BTreeMap::from([("/etc/old".to_owned(), "gone".to_owned())])).unwrap();
    let orphans = reported(&send_set(&host, &controller, 1, &base_set()));
    assert_eq!(json!(orphans.listed), json!([{"task": "gone", "path": "/etc/old"}]));
    let recorded = ledger.get(&LEFT_OBJECTS).unwrap().unwrap();
    assert_eq!(recorded.len(), 2, "{recorded:?}");
    assert_eq!(recorded[&(ObjectKind::File, "/etc/old".to_owned())].task, "gone");
    assert_eq!(ledger.get(&WRITTEN_FILES).unwrap(), None);
    // Nobody knows whether somebody changed the file.
    let messages = send_set(&host, &controller, 2, &base_set().removing_orphans());
    let reasons = kept_reasons(&reported(&messages));
    assert!(reasons["/etc/old"].contains("an older agent made it"), "{reasons:?}");
}

/// The tree grows until its files are only counted. Neither they nor those recorded before are orphans while a task manages
/// them.
#[test]
fn report_counts_files_of_large_tree() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = |note: &str| {
        let tree = json!({"parameters": {"dst": "/srv/w", "src": "/opt/src"}});
        base_set().file("note", &[], "/etc/note", note).task("tree", "sync", &[], &tree)
    };
    for (revision, count) in [(1, 3), (2, 2100)] {
        for number in 0..count {
            host.put(&format!("/opt/src/{number}"), "x");
        }
        let messages = send_set(&host, &controller, revision, &set(&revision.to_string()));
        assert_eq!(progress(&messages), Some(observed::Progress::Converged), "{:?}", outcomes(&messages));
        assert_eq!(reported(&messages), Orphans::default());
    }
    let orphans = reported(&send_set(&host, &controller, 3, &base_set().removing_orphans()));
    let listed: Vec<_> = orphans.listed.iter().map(|orphan| (orphan.kind.as_str(), orphan.name.as_str())).collect();
    assert_eq!((listed, orphans.unlisted_count), (vec![("directory", "/srv/w")], 2100));
    let reason = &kept_reasons(&orphans)["/srv/w"];
    assert!(reason.starts_with("it has 2100 files of the task"), "{reason}");
}

/// The package, the unit and the accounts of tasks are orphans too, as long as they exist.
#[test]
fn report_lists_packages_and_accounts_of_removed_tasks() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/var/lib/dpkg/status", "Package: nginx\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\n");
    host.put("/var/lib/dpkg/arch", "amd64\n");
    host.put("/etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:900:900::/:/bin/sh\n");
    host.put("/etc/group", "root:x:0:\napp:x:900:\n");
    host.put("/etc/shadow", "root:*:1::::::\napp:*:1::::::\n");
    let task = |parameters: Value| json!({"parameters": parameters});
    let set = base_set()
        .task("web", "package", &[], &task(json!({"name": "nginx"})))
        .task("app", "user", &[], &task(json!({"name": "app"})))
        .task("group", "group_account", &[], &task(json!({"name": "app"})));
    let messages = send_set(&host, &controller, 1, &set);
    assert_eq!(progress(&messages), Some(observed::Progress::Converged), "{:?}", outcomes(&messages));
    let listed = |messages: &[ApplyMessage]| -> Vec<String> {
        reported(messages).listed.iter().map(|orphan| format!("{} {}", orphan.task, orphan.object_text())).collect()
    };
    let messages = send_set(&host, &controller, 2, &base_set());
    assert_eq!(listed(&messages), ["web package nginx", "app user app", "group group app"]);
    host.put("/etc/group", "root:x:0:\n");
    host.put("/var/lib/dpkg/status", "Package: nginx\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n");
    let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(listed(&messages), ["app user app"]);
}

/// Returns the names of the listed orphans.
fn orphan_names(orphans: &Orphans) -> Vec<&str> {
    orphans.listed.iter().map(|orphan| orphan.name.as_str()).collect()
}

/// Returns a host with the file of a service that is stopped.
fn host_with_service(behavior: StartBehavior) -> MemoryHost {
    let host = MemoryHost::new();
    host.put("/etc/systemd/system/app.service", "");
    let mut unit = MemoryUnit::new(ActiveState::Inactive, "disabled");
    unit.behavior = behavior;
    host.put_unit("app.service", unit);
    host
}

/// Lets systemd have the link of a service that runs, or removes it.
fn set_invocation(host: &MemoryHost, is_running: bool) {
    let link = "/run/systemd/units/invocation:app.service";
    if is_running { host.put_link_to(link, "7") } else { host.delete(link) }
}

/// Regression: a service that did not run at one moment, because systemd was about to start it again, was never listed
/// again.
#[test]
fn report_lists_service_again_when_started_again() {
    let (host, controller) = (host_with_service(StartBehavior::Works), TestController::new());
    let set = base_set().task("app", "service", &[], &json!({"parameters": {"unit": "app", "state": "running"}}));
    let messages = send_set(&host, &controller, 1, &set);
    assert_eq!(progress(&messages), Some(observed::Progress::Converged), "{:?}", outcomes(&messages));
    set_invocation(&host, false);
    assert_eq!(orphan_names(&reported(&send_set(&host, &controller, 2, &base_set()))), [""; 0], "it does not run");
    for (is_running, expected) in [(true, &["app.service"][..]), (false, &[]), (true, &["app.service"])] {
        set_invocation(&host, is_running);
        let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
        assert_eq!(orphan_names(&reported(&messages)), expected);
    }
    set_invocation(&host, false);
    host.delete("/etc/systemd/system/app.service");
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    host.put("/etc/systemd/system/app.service", "");
    set_invocation(&host, true);
    let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(orphan_names(&reported(&messages)), [""; 0], "the new unit is not from a task");
}

/// Regression: what a task made before it failed was in no list after the task was removed. A task that failed before
/// it changed anything leaves nothing.
#[test]
fn report_lists_objects_of_failed_tasks() {
    let (host, controller) = (host_with_service(StartBehavior::Hangs), TestController::new());
    host.put("/etc/other", "o");
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: String::new() });
    let refused = json!({"parameters": {"path": "/etc/other", "content": "x", "validate": ["test", "{path}"]}});
    let hanging = json!({"parameters": {"unit": "app", "state": "running", "timeout": 1}});
    let set = base_set().task("refused", "file", &[], &refused).task("app", "service", &[], &hanging);
    let outcomes = outcomes(&send_set(&host, &controller, 1, &set));
    for task in ["refused", "app"] {
        assert!(outcomes.contains(&(task.to_owned(), Outcome::Failed)), "{outcomes:?}");
    }
    set_invocation(&host, true);
    let orphans = reported(&send_set(&host, &controller, 2, &base_set()));
    let listed: Vec<_> = orphans.listed.iter().map(|orphan| format!("{} {}", orphan.task, orphan.object_text())).collect();
    assert_eq!(listed, ["app unit app.service"]);
}
