//! Tests of the root half of the agent (the part that applies tasks) through its channel: messages to it, messages from
//! it, the files that it writes, and a crash at any call.

use std::rc::Rc;

use stemma_core::task::Mode;
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::signed::{Grant, LeaseKind};
use stemma_wire::message::{Epoch, Hash, PartDigest};

use super::*;
use crate::apply::ledger::{ACCEPTED_NODE, LOCAL_STATE, Ledger, OPEN_BARRIERS, STAGING_DIRS, encode_file_name};
use crate::apply::leftovers::StagingDirs;
use crate::apply::testing::{EPOCH, NODE, TestController, TestTaskSet};
use crate::channel::{SyncEnd, pair};
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, ExitKind};

mod orphans;
mod reboot;
mod report;
mod watchdog;

/// Runs the root half of the agent (the part that applies tasks) with these messages until it sends nothing for two
/// seconds. Returns the messages that the root half sends, or none if the host crashes at the start.
async fn run_until_idle(host: &MemoryHost, controller: &TestController, offers: Vec<SyncMessage>) -> Vec<ApplyMessage> {
    let (sync, apply) = pair();
    let Ok(ledger) = Ledger::open(Rc::new(host.clone())) else { return Vec::new() };
    let site = Site::new(Rc::new(host.clone()), Rc::new(ledger));
    let trust = NodeVerifier::new(&controller.identity()).ok();
    let Ok(worker) = ApplyWorker::new(site, AgentConfig::default(), trust, apply, WakeListener::never(), StopWhen::OnRequest)
    else {
        return Vec::new();
    };
    let conversation = exchange(sync, offers);
    let (result, messages) = tokio::join!(worker.run(std::future::pending()), conversation);
    assert!(result.is_ok() || host.is_crashed(), "{result:?}");
    messages
}

/// Sends messages to the root half of the agent, then receives until none arrives for two seconds. The runtime's clock
/// is paused, so the test does not wait.
async fn exchange(sync: SyncEnd, offers: Vec<SyncMessage>) -> Vec<ApplyMessage> {
    exchange_for(sync, offers, Duration::from_secs(2)).await
}

/// Sends messages to the root half of the agent, then receives until none arrives for the time `max_silence`. Returns
/// the received messages.
async fn exchange_for(mut sync: SyncEnd, offers: Vec<SyncMessage>, max_silence: Duration) -> Vec<ApplyMessage> {
    for offer in &offers {
        if sync.sender().send(offer).await.is_err() {
            break;
        }
    }
    let mut messages = Vec::new();
    while let Ok(Ok(message)) = tokio::time::timeout(max_silence, sync.receive()).await {
        messages.push(message);
    }
    messages
}

fn worker(host: &MemoryHost, controller: &TestController, apply: ApplyEnd) -> ApplyWorker {
    worker_until(host, controller, apply, StopWhen::OnRequest)
}

/// Creates the root half of the agent on this host. `stop_when` states when the root half stops.
fn worker_until(host: &MemoryHost, controller: &TestController, apply: ApplyEnd, stop_when: StopWhen) -> ApplyWorker {
    let ledger = Rc::new(Ledger::open(Rc::new(host.clone())).unwrap());
    let site = Site::new(Rc::new(host.clone()), ledger);
    let trust = NodeVerifier::new(&controller.identity()).ok();
    ApplyWorker::new(site, AgentConfig::default(), trust, apply, WakeListener::never(), stop_when).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

fn offer_message(controller: &TestController, revision: u64, set: &TestTaskSet) -> SyncMessage {
    let desired = Some(controller.desired(revision, &set.desired()));
    SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 }
}

/// Returns the messages that transfer the profile of the set. An empty piece begins the transfer.
fn body_messages(set: &TestTaskSet) -> Vec<SyncMessage> {
    let (hash, bytes) = set.profile();
    piece_messages(hash, &bytes)
}

fn piece_messages(hash: Hash, bytes: &[u8]) -> Vec<SyncMessage> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    [&[], first, second].map(|piece| SyncMessage::Body { hash, bytes: piece.to_vec() }).into()
}

fn offer_and_body(controller: &TestController, revision: u64, set: &TestTaskSet) -> Vec<SyncMessage> {
    [vec![offer_message(controller, revision, set)], body_messages(set)].concat()
}

/// Returns task and outcome of each result among the messages.
fn outcomes(messages: &[ApplyMessage]) -> Vec<(String, Outcome)> {
    let results = messages.iter().filter_map(|message| match message {
        ApplyMessage::Results(results) => Some(results.clone()),
        _ => None,
    });
    results.flatten().map(|TaskResult { task, outcome, .. }| (task, outcome)).collect()
}

/// Returns the reports among the messages, in order.
fn reports(messages: &[ApplyMessage]) -> Vec<&Report> {
    messages.iter().filter_map(|message| if let ApplyMessage::Report(report) = message { Some(report) } else { None }).collect()
}

fn progress(messages: &[ApplyMessage]) -> Option<observed::Progress> {
    reports(messages).last().map(|report| report.progress)
}

/// Regression: the run that follows a change of files doubled the delay, so that a failed task was tried again after
/// two minutes and not after one.
#[test]
fn failure_count_ignores_repeated_run() {
    use observed::Progress::{Converged, Failed};
    for (failures, progress, is_repeated, expected) in [
        (0, Failed, false, 1),
        (1, Failed, true, 1),
        (1, Failed, false, 2),
        (0, Failed, true, 1),
        (3, Converged, false, 0),
        (3, Converged, true, 0),
    ] {
        assert_eq!(failure_count(failures, progress, is_repeated), expected, "{failures} {progress:?} {is_repeated}");
    }
}

#[test]
fn worker_writes_labels_and_file_when_offered() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    let messages = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    assert!(matches!(messages[0], ApplyMessage::Hello { seal_key, held: None } if seal_key != [0; 32]), "{messages:?}");
    assert!(messages.contains(&ApplyMessage::ContentRequest(set.profile().0)), "{messages:?}");
    assert_eq!(outcomes(&messages), [("motd".to_owned(), Outcome::Changed)]);
    assert_eq!(progress(&messages), Some(observed::Progress::Converged));
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    assert_eq!(host.text("/etc/motd").as_deref(), Some("gold\n"));
}

/// Regression test: `c` ran although `a` had failed, because the markers between these tasks did not make `c` wait.
#[test]
fn y06_marker_orders_tasks_and_is_not_reported() {
    for (program_of_a, outcome_of_a, outcome_of_c, expected_progress) in [
        ("bad", Outcome::Failed, Outcome::DependencyFailed, observed::Progress::Failed),
        ("good", Outcome::Changed, Outcome::Changed, observed::Progress::Converged),
    ] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        host.on_run(|_, command| {
            let status = i32::from(command.argv[0] == "bad");
            CommandResult { end: ExitKind::Status(status), output: String::new() }
        });
        let set = TestTaskSet::default().command("a", &[], &[program_of_a]).marker("b", &[0]).marker("m", &[1]);
        let set = set.command("c", &[2], &["last"]);
        let messages = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!(outcomes(&messages), [("a".to_owned(), outcome_of_a), ("c".to_owned(), outcome_of_c)]);
        assert_eq!(progress(&messages), Some(expected_progress));
    }
}

#[test]
fn worker_converges_from_disk_when_controller_is_absent() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    host.put("/etc/motd", "edited\n");
    host.delete("/run/stemma/labels.json");
    host.restart();
    let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert!(matches!(&messages[0], ApplyMessage::Hello { held: Some(held), .. } if held.revision.0 == 1), "{messages:?}");
    assert_eq!(host.text("/etc/motd").as_deref(), Some("gold\n"));
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    host.restart();
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.calls(), 0, "a restart with nothing to do writes nothing");
}

/// Returns the sequence number and the task of each result among the messages.
fn numbered_results(messages: &[ApplyMessage]) -> Vec<(u64, &str)> {
    let results = messages.iter().filter_map(|message| match message {
        ApplyMessage::Results(results) => Some(results.iter().map(|result| (result.sequence, result.task.as_str()))),
        _ => None,
    });
    results.flatten().collect()
}

/// A new epoch begins when the store of the controller was restored from an older copy. The host repeats its results,
/// because the store lacks them. Its open barriers are closed until a grant of the new epoch opens them.
#[test]
fn x02_new_epoch_repeats_results_and_shuts_barriers() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().command("c", &[], &["deploy"]).file("app", &[], "/app", "x").with_barrier(barrier.clone());
    let grant_offer = |epoch, revision| {
        let grant = Grant::Barriers { task_set: set.desired().digest, open: vec![barrier.clone()] };
        let grants = vec![controller.grant_in_epoch(epoch, revision, grant)];
        vec![SyncMessage::Offer { desired: None, grants, acknowledged: 0 }]
    };
    let first = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 106, &set)));
    let second = runtime().block_on(run_until_idle(&host, &controller, grant_offer(EPOCH, 106)));
    assert_eq!((host.text("/app").as_deref(), host.commands_run().len()), (Some("x"), 1));
    let acknowledged =
        numbered_results(&first).into_iter().chain(numbered_results(&second)).map(|(number, _)| number).max().unwrap();

    // The store was restored at revision 9. The same state is signed in another epoch.
    let new_epoch = Epoch([2; 16]);
    let mut state = controller.desired_for(NODE, new_epoch, 9, &set.desired());
    state.epoch_change = Some(controller.epoch_change(EPOCH, new_epoch, 8));
    let offer = SyncMessage::Offer { desired: Some(state), grants: Vec::new(), acknowledged };
    let messages = runtime().block_on(run_until_idle(&host, &controller, vec![offer]));
    let repeated_results = numbered_results(&messages).into_iter().filter(|(number, _)| *number > acknowledged);
    assert_eq!(repeated_results.map(|(_, task)| task).collect::<Vec<_>>(), ["app", "c"], "{messages:?}");
    assert_eq!(host.commands_run().len(), 1, "no command runs again");
    let open_barriers = || Ledger::open(Rc::new(host.clone())).unwrap().get(&OPEN_BARRIERS).unwrap().unwrap();
    assert_eq!((open_barriers().revision.0, open_barriers().open.len()), (9, 0), "a barrier of the epoch that ended is shut");
    // A grant of the new epoch opens the barrier, though its revision is below the last revision of the old epoch.
    runtime().block_on(run_until_idle(&host, &controller, grant_offer(EPOCH, 107)));
    assert_eq!(open_barriers().open.len(), 0, "a grant of the old epoch does not open the barrier");
    runtime().block_on(run_until_idle(&host, &controller, grant_offer(new_epoch, 10)));
    assert_eq!((open_barriers().revision.0, open_barriers().open.len()), (10, 1));
}

/// The host was another node before it joined again. Revisions of that node have no meaning for the new one, and the
/// controller has no result of the new node. Without the node in the ledger, an older agent accepted the state.
#[test]
fn f13_host_of_new_node_accepts_earlier_revision_and_repeats_results() {
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().command("c", &[], &["deploy"]).file("app", &[], "/app", "x").with_barrier(barrier.clone());
    for is_recorded in [true, false] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let ledger = || Ledger::open(Rc::new(host.clone())).unwrap();
        let grants = || {
            let grant = Grant::Barriers { task_set: set.desired().digest, open: vec![barrier.clone()] };
            vec![SyncMessage::Offer {
                desired: None,
                grants: vec![controller.grant_in_epoch(EPOCH, 100, grant)],
                acknowledged: 0,
            }]
        };
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 100, &set)));
        let old = runtime().block_on(run_until_idle(&host, &controller, grants()));
        let acknowledged = numbered_results(&old).into_iter().map(|(number, _)| number).max().unwrap();
        // The records of the old node.
        if is_recorded {
            ledger().put(&ACCEPTED_NODE, &uuid::Uuid::from_u128(99)).unwrap();
        } else {
            host.delete("/var/lib/stemma-agent/apply/accepted-node");
            ledger().begin_membership().unwrap();
        }
        host.restart();
        let mut offers = grants();
        offers.push(SyncMessage::Offer {
            desired: Some(controller.desired(50, &set.desired())),
            grants: Vec::new(),
            acknowledged,
        });
        let messages = runtime().block_on(run_until_idle(&host, &controller, offers));
        assert!(matches!(messages[0], ApplyMessage::Hello { held: None, .. }), "{messages:?}");
        let repeated_results = numbered_results(&messages).into_iter().filter(|(number, _)| *number > acknowledged);
        assert_eq!(repeated_results.map(|(_, task)| task).collect::<Vec<_>>(), ["app", "c"], "{messages:?}");
        assert_eq!(host.commands_run().len(), 1, "no command runs again");
        let open_barriers = ledger().get(&OPEN_BARRIERS).unwrap().unwrap();
        assert_eq!((open_barriers.revision.0, open_barriers.open.len()), (50, 0));
        // From now on, the order of revisions counts again.
        let messages = runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 49, &set)]));
        assert!(messages.iter().any(|message| matches!(message, ApplyMessage::Refused { .. })), "{messages:?}");
    }
}

#[test]
fn worker_changes_nothing_when_offer_is_refused() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 7, &set)));
    host.restart();
    let older_set = TestTaskSet::default().label("tier", "lead");
    let messages = runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 6, &older_set)]));
    let reason = "The controller offers revision 6, this host has 7. Was the controller restored?".to_owned();
    assert!(messages.contains(&ApplyMessage::Refused { reason }), "{messages:?}");
    assert_eq!(host.calls(), 0);
}

#[test]
fn label_reaches_label_files_at_once_but_tasks_when_released() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = |label: &str, input: &str, revision| {
        TestTaskSet::default()
            .label("tier", label)
            .task(
                "conf",
                "file",
                &[],
                &serde_json::json!({"parameters": {"path": "/etc/conf", "template": "tier {{ labels.tier }}"}}),
            )
            .with_input("labels.tier", input)
            .with_release(revision)
    };
    let first_set = set("gold", "gold", 1);
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &first_set)));
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"));

    let unreleased_set = set("silver", "gold", 1);
    runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 2, &unreleased_set)]));
    let check_files = |name: &str| {
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"silver\"}\n"), "{name}");
        assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"), "{name}");
    };
    check_files("at once");
    host.restart();
    host.delete("/run/stemma/labels.json");
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    check_files("after a restart");
    host.put("/etc/conf", "edited");
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    check_files("after a drift check");

    let released_set = set("silver", "silver", 2);
    runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 3, &released_set)]));
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier silver"));
}

#[test]
fn barrier_opens_by_grant_for_task_set_and_survives_restart() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().file("app", &[], "/app", "x").with_barrier(barrier.clone());
    let messages = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    assert_eq!((progress(&messages), host.text("/app")), (Some(observed::Progress::Waiting), None));

    let grant = |task_set| {
        let grant = controller.grant(2, Grant::Barriers { task_set, open: vec![barrier.clone()] });
        vec![SyncMessage::Offer { desired: None, grants: vec![grant], acknowledged: 0 }]
    };
    let other_task_set = PartDigest([3; 32]);
    let messages = runtime().block_on(run_until_idle(&host, &controller, grant(other_task_set)));
    assert!(messages.iter().any(|message| matches!(message, ApplyMessage::Refused { .. })), "{messages:?}");
    assert_eq!(host.text("/app"), None);
    runtime().block_on(run_until_idle(&host, &controller, grant(set.desired().digest)));
    assert_eq!(host.text("/app").as_deref(), Some("x"));
    host.delete("/app");
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.text("/app").as_deref(), Some("x"));
}

/// The lease has a later revision than the barriers. Whichever grant arrives first, the barriers are open afterwards.
#[test]
fn lease_grant_leaves_barriers_unchanged_when_newer() {
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().file("app", &[], "/app", "x").with_barrier(barrier.clone());
    let barrier_grant = Grant::Barriers { task_set: set.desired().digest, open: vec![barrier] };
    let lease_grant = Grant::Lease { kind: LeaseKind::Mend, duration_s: 60 };
    for grants in [[(2, &barrier_grant), (3, &lease_grant)], [(3, &lease_grant), (2, &barrier_grant)]] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let grants = grants.map(|(revision, grant)| controller.grant(revision, grant.clone())).to_vec();
        let grants = vec![SyncMessage::Offer { desired: None, grants, acknowledged: 0 }];
        runtime().block_on(run_until_idle(&host, &controller, [offer_and_body(&controller, 1, &set), grants].concat()));
        assert_eq!(host.text("/app").as_deref(), Some("x"));
    }
}

#[test]
fn mode_limits_worker_actions() {
    for (mode, text, outcome) in [
        (Mode::Observe, None, None),
        (Mode::Noop, None, Some(Outcome::WouldChange)),
        (Mode::Apply, Some("x"), Some(Outcome::Changed)),
    ] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = TestTaskSet::default().label("a", "b").file("f", &[], "/f", "x").mode(mode);
        let messages = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!(host.text("/f").as_deref(), text, "{mode:?}");
        assert_eq!(outcomes(&messages).first().map(|(_, outcome)| *outcome), outcome, "{mode:?}");
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"a\":\"b\"}\n"), "{mode:?}");
    }
}

#[test]
fn worker_writes_labels_but_runs_no_task_when_paused() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let paused_state = LocalState { paused: true, ..LocalState::default() };
    Ledger::open(Rc::new(host.clone())).unwrap().put(&LOCAL_STATE, &paused_state).unwrap();
    let set = TestTaskSet::default().label("a", "b").file("f", &[], "/f", "x");
    let messages = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    assert!(messages.contains(&ApplyMessage::Local(paused_state)), "the pause is reported");
    assert_eq!(host.text("/f"), None);
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"a\":\"b\"}\n"));
    let resume_message = SyncMessage::Local(LocalState::default());
    runtime().block_on(run_until_idle(&host, &controller, vec![resume_message]));
    assert_eq!(host.text("/f").as_deref(), Some("x"));
}

/// Regression test: if a pause was stored without waking the agent, all tasks ran in spite of the pause.
#[test]
fn y02_worker_starts_no_task_when_paused_without_wake() {
    for local_state in [
        LocalState { paused: true, ..LocalState::default() },
        LocalState { parked: Some("maintenance".into()), ..LocalState::default() },
    ] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let new_state = local_state.clone();
        // The new state is stored while the first task runs.
        host.on_run(move |host, _| {
            Ledger::open(Rc::new(host.clone())).unwrap().put(&LOCAL_STATE, &new_state).unwrap();
            CommandResult { end: ExitKind::Status(0), output: String::new() }
        });
        let set = TestTaskSet::default().command("a", &[], &["a"]).command("b", &[0], &["b"]).file("c", &[1], "/c", "x");
        let messages = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!((host.commands_run(), host.text("/c")), (vec![vec!["a".to_owned()]], None));
        assert_eq!(outcomes(&messages), [("a".to_owned(), Outcome::Changed)]);
        assert_eq!(progress(&messages), Some(observed::Progress::Idle));
        assert!(messages.contains(&ApplyMessage::Local(local_state)), "the state is reported");
        // The run continues where it stopped.
        let resume_message = SyncMessage::Local(LocalState::default());
        host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
        runtime().block_on(run_until_idle(&host, &controller, vec![resume_message]));
        assert_eq!((host.commands_run().len(), host.text("/c").as_deref()), (2, Some("x")));
    }
}

/// A paused host removes the unfinished file of a killed agent from a recorded directory, but only in mode `apply`.
#[test]
fn x05_worker_sweeps_leftovers_when_no_task_may_run() {
    let leftover = "/srv/.stemma-0123456789abcdef";
    let paused = LocalState { paused: true, ..LocalState::default() };
    for (mode, is_removed) in [(Mode::Apply, true), (Mode::Noop, false), (Mode::Observe, false)] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        host.put(leftover, "secret");
        host.put("/srv/theirs", "x");
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        ledger.put(&LOCAL_STATE, &paused).unwrap();
        let recorded_dirs = StagingDirs::from([("/srv".to_owned(), BTreeSet::from([33]))]);
        ledger.put(&STAGING_DIRS, &recorded_dirs).unwrap();
        let set = TestTaskSet::default().file("f", &[], "/f", "x").mode(mode);
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!(host.text(leftover).is_none(), is_removed, "{mode:?}");
        assert_eq!((host.text("/srv/theirs").as_deref(), host.text("/f")), (Some("x"), None));
        let staging_dirs = Ledger::open(Rc::new(host.clone())).unwrap().get(&STAGING_DIRS).unwrap();
        assert_eq!(staging_dirs, Some(recorded_dirs), "the directory is still recorded: a task may leave a file there again");
    }
}

/// The files may hold secrets. The task is no longer placed on the host, so nothing checks it.
#[test]
fn files_of_left_puppet_run_are_removed_without_task() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let dir = "/var/lib/stemma-agent/apply/puppet";
    host.put(&format!("{dir}/{}-feedbeef00000001.data.json", encode_file_name("gone")), "secret");
    Ledger::open(Rc::new(host.clone())).unwrap().set_started_unit("gone", Some("unit")).unwrap();
    host.leave_command("gone", ExitKind::Status(2));
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.list(dir), Vec::<String>::new());
}

#[test]
fn s76_worker_refuses_body_when_not_requested() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    let other_set = TestTaskSet::default().file("f", &[], "/f", "evil");
    // The network half sends a body that was not requested, and other bytes under the requested hash.
    let (hash, _) = set.profile();
    let (_, bytes) = other_set.profile();
    let offers = [vec![offer_message(&controller, 1, &set)], body_messages(&other_set), piece_messages(hash, &bytes)].concat();
    let messages = runtime().block_on(run_until_idle(&host, &controller, offers));
    let refusal_count = messages.iter().filter(|message| matches!(message, ApplyMessage::Refused { .. })).count();
    assert_eq!(
        (refusal_count, host.text("/f")),
        (1, None),
        "one refusal, for the body that was not requested; a body with another hash is never complete"
    );
    let body_files = host.list("/var/lib/stemma-agent/apply/bodies");
    assert!(body_files.iter().all(|name| name.starts_with(".stemma-")), "{body_files:?}");
}

#[test]
fn s68_worker_requests_body_again_when_cut_in_transit() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    let (hash, pieces) = (set.profile().0, body_messages(&set));
    // The last piece arrives before the transfer begins. Then the transfer stops without its last piece.
    let (last_piece, empty_piece) = (pieces[2].clone(), pieces[0].clone());
    let offers =
        vec![offer_message(&controller, 1, &set), last_piece, empty_piece, pieces[1].clone(), SyncMessage::BodyUnavailable(hash)];
    let messages = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        // The agent requests the body again after 30 seconds.
        let (result, messages) =
            tokio::join!(worker.run(std::future::pending()), exchange_for(sync, offers, Duration::from_secs(40)));
        result.unwrap();
        messages
    });
    let request_count = messages.iter().filter(|message| **message == ApplyMessage::ContentRequest(hash)).count();
    assert_eq!(request_count, 2, "one request at once, and another because the body did not arrive");
    assert_eq!(host.list("/var/lib/stemma-agent/apply/bodies"), Vec::<String>::new());
}

/// Kills the agent before each call that changes the host, once with a restart and once with a power cut. The command
/// never runs twice. If it is unknown whether the command ran, its dependant `done` does not run.
#[test]
fn f01_worker_recovers_without_rerunning_command_when_killed_at_any_call() {
    let controller = TestController::new();
    let set = TestTaskSet::default()
        .label("tier", "gold")
        .file("conf", &[], "/etc/app/conf", "new\n")
        .command("build", &[0], &["/bin/build"])
        .file("done", &[1], "/etc/app/done", "built\n");
    let prepare_host = || {
        let host = MemoryHost::new();
        host.put("/etc/app/conf", "old\n");
        host
    };
    let uninterrupted_host = prepare_host();
    runtime().block_on(run_until_idle(&uninterrupted_host, &controller, offer_and_body(&controller, 1, &set)));
    assert_eq!(uninterrupted_host.commands_run().len(), 1);
    let calls = uninterrupted_host.calls();
    for (call, is_power_cut) in (0..calls).flat_map(|call| [(call, false), (call, true)]) {
        let host = prepare_host();
        host.crash_before(call);
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert!(host.is_crashed(), "call {call}");
        let conf = host.text("/etc/app/conf").unwrap();
        assert!(conf == "old\n" || conf == "new\n", "call {call}: {conf:?}");
        if is_power_cut {
            host.cut_power();
        } else {
            host.restart();
        }
        // The controller sends the same again, because nothing was acknowledged.
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert!(host.commands_run().len() <= 1, "call {call}, power {is_power_cut}: {:?}", host.commands_run());
        assert_eq!(host.text("/etc/app/conf").as_deref(), Some("new\n"), "call {call}, power {is_power_cut}");
        let step_state = Ledger::open(Rc::new(host.clone())).unwrap().step("build").unwrap().map(|step| step.state);
        let is_unknown = step_state == Some(crate::apply::ledger::StepState::Begun);
        let is_built = host.text("/etc/app/done").is_some();
        assert!(is_built != is_unknown, "call {call}, power {is_power_cut}: {step_state:?}, {is_built}");
        let leftovers: Vec<_> = host.list("/etc/app").into_iter().filter(|name| name.starts_with('.')).collect();
        assert_eq!(leftovers, Vec::<String>::new(), "call {call}, power {is_power_cut}");
    }
}

#[test]
fn worker_requests_body_once_and_accepts_second_copy() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = |label: &str, revision| TestTaskSet::default().label("a", label).file("f", &[], "/f", "x").with_release(revision);
    // Both task sets have the same tasks, so they name the same profile.
    let (first, second) = (set("b", 1), set("c", 2));
    let offers = [
        vec![offer_message(&controller, 1, &first), offer_message(&controller, 2, &second)],
        body_messages(&second),
        body_messages(&second),
    ]
    .concat();
    let messages = runtime().block_on(run_until_idle(&host, &controller, offers));
    assert_eq!(messages.iter().filter(|message| matches!(message, ApplyMessage::ContentRequest(_))).count(), 1, "{messages:?}");
    assert!(!messages.iter().any(|message| matches!(message, ApplyMessage::Refused { .. })), "{messages:?}");
    assert_eq!(host.text("/f").as_deref(), Some("x"));
}

#[test]
fn pause_lets_running_task_end_and_starts_none() {
    let (host, controller) = (MemoryHost::new(), TestController::new());

    let slow = TestTaskSet::default().command("first", &[], &["a"]).command("second", &[0], &["b"]);
    host.slow_down_commands(Duration::from_mins(1));
    let paused = SyncMessage::Local(LocalState { paused: true, ..LocalState::default() });
    let offers = offer_and_body(&controller, 1, &slow);
    let messages = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        let conversation = async {
            let mut sync = sync;
            for offer in &offers {
                sync.sender().send(offer).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(30)).await;
            sync.sender().send(&paused).await.unwrap();
            let mut messages = Vec::new();
            while let Ok(Ok(message)) = tokio::time::timeout(Duration::from_mins(10), sync.receive()).await {
                messages.push(message);
            }
            messages
        };
        let (result, messages) = tokio::join!(worker.run(std::future::pending()), conversation);
        result.unwrap();
        messages
    });
    assert_eq!(host.commands_run(), [["a"]], "the second task did not start");
    assert_eq!(outcomes(&messages), [("first".to_owned(), Outcome::Changed)]);
}

/// A new task set arrives while the last task of the old task set runs.
#[test]
fn y06_new_task_set_runs_after_last_old_task() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let conf = serde_json::json!({"parameters": {"path": "/etc/conf", "template": "tier {{ labels.tier }}"}});
    let slow = serde_json::json!({"parameters": {"command": ["a"]}});
    let set = |tier: &str, revision| {
        let first = TestTaskSet::default().task("conf", "file", &[], &conf).with_input("labels.tier", tier);
        first.task("slow", "shell", &[0], &slow).with_release(revision)
    };
    host.slow_down_commands(Duration::from_mins(1));
    let messages = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        let conversation = async {
            let mut sync = sync;
            for offer in offer_and_body(&controller, 1, &set("gold", 1)) {
                sync.sender().send(&offer).await.unwrap();
            }
            while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(30), sync.receive()).await {}
            assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"));
            sync.sender().send(&offer_message(&controller, 2, &set("silver", 2))).await.unwrap();
            let mut messages = Vec::new();
            while let Ok(Ok(message)) = tokio::time::timeout(Duration::from_mins(2), sync.receive()).await {
                messages.push(message);
            }
            messages
        };
        let (result, messages) = tokio::join!(worker.run(std::future::pending()), conversation);
        result.unwrap();
        messages
    });
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier silver"));
    let progress: Vec<_> = reports(&messages).iter().map(|report| report.progress).collect();
    assert_eq!(progress, [observed::Progress::Converged], "the host reported no idle state between the two task sets");
}

/// A one-time run mends the file `/f` and then ends, although the task `app` waits at a barrier.
#[test]
fn worker_stops_when_idle_though_task_waits() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().file("f", &[], "/f", "x").file("app", &[], "/app", "x").with_barrier(barrier);
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    host.put("/f", "edited");
    runtime().block_on(async {
        let (mut sync, apply) = pair();
        let worker = worker_until(&host, &controller, apply, StopWhen::WhenIdle);
        let listen = async { while sync.receive().await.is_ok() {} };
        let (result, ()) = tokio::join!(worker.run(std::future::pending()), listen);
        result.unwrap();
    });
    assert_eq!((host.text("/f").as_deref(), host.text("/app")), (Some("x"), None));
}

#[test]
fn barrier_is_shut_again_when_task_set_returns() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = |content: &str| TestTaskSet::default().file("conf", &[], "/conf", content).with_barrier(barrier.clone());
    let (first_set, second_set) = (set("a"), set("b"));
    let grant_offer = |revision: u64| {
        let grant = Grant::Barriers { task_set: first_set.desired().digest, open: vec![barrier.clone()] };
        vec![SyncMessage::Offer { desired: None, grants: vec![controller.grant(revision, grant)], acknowledged: 0 }]
    };
    for (messages, expected_text, label) in [
        (offer_and_body(&controller, 1, &first_set), None, "the task waits at the barrier"),
        (grant_offer(2), Some("a"), "the grant opens the barrier"),
        (vec![offer_message(&controller, 3, &first_set)], Some("a"), "the same task set leaves the barrier open"),
        (offer_and_body(&controller, 4, &second_set), Some("a"), "another task set waits"),
        (offer_and_body(&controller, 9, &first_set), Some("by hand"), "the first task set also waits when it returns"),
        (grant_offer(2), Some("by hand"), "a grant of an earlier revision opens no barrier"),
        (Vec::new(), Some("by hand"), "a restart opens no barrier"),
        (grant_offer(9), Some("a"), "a grant of the current revision opens the barrier"),
    ] {
        host.restart();
        runtime().block_on(run_until_idle(&host, &controller, messages));
        assert_eq!(host.text("/conf").as_deref(), expected_text, "{label}");
        if label == "another task set waits" {
            host.put("/conf", "by hand");
        }
    }
}

#[test]
fn barrier_is_shut_when_killed_while_task_set_returns() {
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = |content: &str| TestTaskSet::default().file("conf", &[], "/conf", content).with_barrier(barrier.clone());
    let (first_set, second_set) = (set("a"), set("b"));
    let controller = TestController::new();
    let grant = Grant::Barriers { task_set: first_set.desired().digest, open: vec![barrier.clone()] };
    let grant_offer = SyncMessage::Offer { desired: None, grants: vec![controller.grant(2, grant)], acknowledged: 0 };
    // Each round crashes the agent at a later call. The first round without a crash is the last one.
    for call in 0.. {
        let host = MemoryHost::new();
        let messages =
            [offer_and_body(&controller, 1, &first_set), vec![grant_offer.clone()], offer_and_body(&controller, 3, &second_set)]
                .concat();
        runtime().block_on(run_until_idle(&host, &controller, messages));
        host.put("/conf", "by hand");
        host.crash_before(call);
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 9, &first_set)));
        let has_crashed = host.is_crashed();
        host.restart();
        runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
        assert_eq!(host.text("/conf").as_deref(), Some("by hand"), "crashed before call {call}");
        if !has_crashed {
            break;
        }
    }
}

#[test]
fn accepted_state_is_applied_when_hook_snapshot_was_unreadable() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().label("tier", "gold").file("f", &[], "/f", "x");
    // The record of the last hook snapshot cannot be read once.
    host.fail_reads("/var/lib/stemma-agent/apply/told", 1);
    let (sync, apply) = pair();
    let worker = worker(&host, &controller, apply);
    let messages = offer_and_body(&controller, 1, &set);
    runtime().block_on(async {
        let (_, _) = tokio::join!(worker.run(std::future::pending()), exchange_for(sync, messages, Duration::from_mins(1)));
    });
    assert_eq!(host.text("/f").as_deref(), Some("x"), "the file is written without a restart");
}
