//! Tests of the root half through its channel: messages in, messages and files out, and a crash at any call.

use std::rc::Rc;

use stemma_core::task::Mode;
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::signed::{Grant, LeaseKind};
use stemma_wire::message::{Epoch, Hash, PartDigest};

use super::*;
use crate::apply::ledger::{LOCAL_STATE, Ledger, OPEN_BARRIERS, STAGING_DIRS};
use crate::apply::leftovers::StagingDirs;
use crate::apply::testing::{EPOCH, NODE, TestController, TestTaskSet};
use crate::channel::{SyncEnd, pair};
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, ExitKind};

mod report;

/// Runs the root half with these offers until it is idle, and returns its messages.
async fn run_until_idle(host: &MemoryHost, controller: &TestController, offers: Vec<SyncMessage>) -> Vec<ApplyMessage> {
    let (sync, apply) = pair();
    let Ok(ledger) = Ledger::open(Rc::new(host.clone())) else { return Vec::new() };
    let site = Site::new(Rc::new(host.clone()), Rc::new(ledger));
    let trust = NodeVerifier::new(&controller.identity()).ok();
    let Ok(worker) = ApplyWorker::new(site, AgentConfig::default(), trust, apply, WakeListener::never(), StopWhen::OnRequest)
    else {
        return Vec::new();
    };
    let talk = exchange(sync, offers);
    let (ended, messages) = tokio::join!(worker.run(std::future::pending()), talk);
    assert!(ended.is_ok() || host.is_crashed(), "{ended:?}");
    messages
}

/// Sends messages, then receives until none arrives for a while. The runtime's clock is paused.
async fn exchange(sync: SyncEnd, offers: Vec<SyncMessage>) -> Vec<ApplyMessage> {
    exchange_for(sync, offers, Duration::from_secs(2)).await
}

async fn exchange_for(mut sync: SyncEnd, offers: Vec<SyncMessage>, quiet: Duration) -> Vec<ApplyMessage> {
    for offer in &offers {
        if sync.sender().send(offer).await.is_err() {
            break;
        }
    }
    let mut messages = Vec::new();
    while let Ok(Ok(message)) = tokio::time::timeout(quiet, sync.receive()).await {
        messages.push(message);
    }
    messages
}

fn worker(host: &MemoryHost, controller: &TestController, apply: ApplyEnd) -> ApplyWorker {
    worker_until(host, controller, apply, StopWhen::OnRequest)
}

fn worker_until(host: &MemoryHost, controller: &TestController, apply: ApplyEnd, until: StopWhen) -> ApplyWorker {
    let ledger = Rc::new(Ledger::open(Rc::new(host.clone())).unwrap());
    let site = Site::new(Rc::new(host.clone()), ledger);
    let trust = NodeVerifier::new(&controller.identity()).ok();
    ApplyWorker::new(site, AgentConfig::default(), trust, apply, WakeListener::never(), until).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

fn offer_message(controller: &TestController, revision: u64, set: &TestTaskSet) -> SyncMessage {
    let desired = Some(controller.desired(revision, &set.desired()));
    SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 }
}

/// A profile as it is sent: an empty piece begins it.
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

fn outcomes(messages: &[ApplyMessage]) -> Vec<(String, Outcome)> {
    let results = messages.iter().filter_map(|message| match message {
        ApplyMessage::Results(results) => Some(results.clone()),
        _ => None,
    });
    results.flatten().map(|TaskResult { task, outcome, .. }| (task, outcome)).collect()
}

/// Returns the reports among the messages, in order.
fn reports(messages: &[ApplyMessage]) -> Vec<&Report> {
    messages.iter().filter_map(|said| if let ApplyMessage::Report(report) = said { Some(report) } else { None }).collect()
}

fn progress(messages: &[ApplyMessage]) -> Option<observed::Progress> {
    reports(messages).last().map(|report| report.progress)
}

#[test]
fn worker_writes_labels_and_file_when_offered() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    let said = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    assert!(matches!(said[0], ApplyMessage::Hello { seal_key, held: None } if seal_key != [0; 32]), "{said:?}");
    assert!(said.contains(&ApplyMessage::ContentRequest(set.profile().0)), "{said:?}");
    assert_eq!(outcomes(&said), [("motd".to_owned(), Outcome::Changed)]);
    assert_eq!(progress(&said), Some(observed::Progress::Converged));
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    assert_eq!(host.text("/etc/motd").as_deref(), Some("gold\n"));
}

/// Before the fix, `c` ran although `a` had failed, because a task that is left out delayed no other.
#[test]
fn y06_marker_orders_tasks_and_is_not_reported() {
    for (first, a, c, ends) in [
        ("bad", Outcome::Failed, Outcome::DependencyFailed, observed::Progress::Failed),
        ("good", Outcome::Changed, Outcome::Changed, observed::Progress::Converged),
    ] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        host.on_run(|_, command| {
            let status = i32::from(command.argv[0] == "bad");
            CommandResult { end: ExitKind::Status(status), output: String::new() }
        });
        let set = TestTaskSet::default().command("a", &[], &[first]).marker("b", &[0]).marker("m", &[1]);
        let set = set.command("c", &[2], &["last"]);
        let said = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!(outcomes(&said), [("a".to_owned(), a), ("c".to_owned(), c)]);
        assert_eq!(progress(&said), Some(ends));
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
    let said = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert!(matches!(&said[0], ApplyMessage::Hello { held: Some(held), .. } if held.revision.0 == 1), "{said:?}");
    assert_eq!(host.text("/etc/motd").as_deref(), Some("gold\n"));
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    host.restart();
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.calls(), 0, "a restart with nothing to do writes nothing");
}

/// Returns the number and task of each result that was sent.
fn numbered_results(messages: &[ApplyMessage]) -> Vec<(u64, &str)> {
    let results = messages.iter().filter_map(|message| match message {
        ApplyMessage::Results(results) => Some(results.iter().map(|result| (result.sequence, result.task.as_str()))),
        _ => None,
    });
    results.flatten().collect()
}

#[test]
fn x02_new_epoch_repeats_results_and_shuts_barriers() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().command("c", &[], &["deploy"]).file("app", &[], "/app", "x").with_barrier(barrier.clone());
    let opened = |epoch, revision| {
        let grant = Grant::Barriers { task_set: set.desired().digest, open: vec![barrier.clone()] };
        let grants = vec![controller.grant_in_epoch(epoch, revision, grant)];
        vec![SyncMessage::Offer { desired: None, grants, acknowledged: 0 }]
    };
    let first = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 106, &set)));
    let second = runtime().block_on(run_until_idle(&host, &controller, opened(EPOCH, 106)));
    assert_eq!((host.text("/app").as_deref(), host.commands_run().len()), (Some("x"), 1));
    let acknowledged =
        numbered_results(&first).into_iter().chain(numbered_results(&second)).map(|(number, _)| number).max().unwrap();

    // The store was restored at revision 9. The same state is signed in another epoch.
    let other = Epoch([2; 16]);
    let mut state = controller.desired_for(NODE, other, 9, &set.desired());
    state.epoch_change = Some(controller.epoch_change(EPOCH, other, 8));
    let offer = SyncMessage::Offer { desired: Some(state), grants: Vec::new(), acknowledged };
    let said = runtime().block_on(run_until_idle(&host, &controller, vec![offer]));
    let again = numbered_results(&said).into_iter().filter(|(number, _)| *number > acknowledged);
    assert_eq!(again.map(|(_, task)| task).collect::<Vec<_>>(), ["app", "c"], "{said:?}");
    assert_eq!(host.commands_run().len(), 1, "nothing runs again");
    let open = || Ledger::open(Rc::new(host.clone())).unwrap().get(&OPEN_BARRIERS).unwrap().unwrap();
    assert_eq!((open().revision.0, open().open.len()), (9, 0), "a barrier of the epoch that ended is shut");
    // A grant of the new epoch opens the barrier, though its revision is below the last one of the old epoch.
    runtime().block_on(run_until_idle(&host, &controller, opened(EPOCH, 107)));
    assert_eq!(open().open.len(), 0, "one of the epoch that ended does not");
    runtime().block_on(run_until_idle(&host, &controller, opened(other, 10)));
    assert_eq!((open().revision.0, open().open.len()), (10, 1));
}

#[test]
fn worker_changes_nothing_when_offer_is_refused() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 7, &set)));
    host.restart();
    let older = TestTaskSet::default().label("tier", "lead");
    let said = runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 6, &older)]));
    let reason = "The controller offers revision 6, this host has 7. Was the controller restored?".to_owned();
    assert!(said.contains(&ApplyMessage::Refused { reason }), "{said:?}");
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
    let first = set("gold", "gold", 1);
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &first)));
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"));

    let held = set("silver", "gold", 1);
    runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 2, &held)]));
    let look = |name: &str| {
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"silver\"}\n"), "{name}");
        assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"), "{name}");
    };
    look("at once");
    host.restart();
    host.delete("/run/stemma/labels.json");
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    look("after a restart");
    host.put("/etc/conf", "edited");
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    look("after a look for drift");

    let released = set("silver", "silver", 2);
    runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 3, &released)]));
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier silver"));
}

#[test]
fn barrier_opens_by_grant_for_task_set_and_survives_restart() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().file("app", &[], "/app", "x").with_barrier(barrier.clone());
    let said = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    assert_eq!((progress(&said), host.text("/app")), (Some(observed::Progress::Waiting), None));

    let grant = |task_set| {
        let grant = controller.grant(2, Grant::Barriers { task_set, open: vec![barrier.clone()] });
        vec![SyncMessage::Offer { desired: None, grants: vec![grant], acknowledged: 0 }]
    };
    let other = PartDigest([3; 32]);
    let said = runtime().block_on(run_until_idle(&host, &controller, grant(other)));
    assert!(said.iter().any(|said| matches!(said, ApplyMessage::Refused { .. })), "{said:?}");
    assert_eq!(host.text("/app"), None);
    runtime().block_on(run_until_idle(&host, &controller, grant(set.desired().digest)));
    assert_eq!(host.text("/app").as_deref(), Some("x"));
    host.delete("/app");
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.text("/app").as_deref(), Some("x"));
}

#[test]
fn lease_grant_leaves_barriers_unchanged_when_newer() {
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = TestTaskSet::default().file("app", &[], "/app", "x").with_barrier(barrier.clone());
    let open = Grant::Barriers { task_set: set.desired().digest, open: vec![barrier] };
    let lease = Grant::Lease { kind: LeaseKind::Mend, duration_s: 60 };
    for grants in [[(2, &open), (3, &lease)], [(3, &lease), (2, &open)]] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let grants = grants.map(|(revision, grant)| controller.grant(revision, grant.clone())).to_vec();
        let grants = vec![SyncMessage::Offer { desired: None, grants, acknowledged: 0 }];
        runtime().block_on(run_until_idle(&host, &controller, [offer_and_body(&controller, 1, &set), grants].concat()));
        assert_eq!(host.text("/app").as_deref(), Some("x"));
    }
}

#[test]
fn mode_limits_worker_actions() {
    for (mode, file, outcome) in [
        (Mode::Observe, None, None),
        (Mode::Noop, None, Some(Outcome::WouldChange)),
        (Mode::Apply, Some("x"), Some(Outcome::Changed)),
    ] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = TestTaskSet::default().label("a", "b").file("f", &[], "/f", "x").mode(mode);
        let said = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!(host.text("/f").as_deref(), file, "{mode:?}");
        assert_eq!(outcomes(&said).first().map(|(_, outcome)| *outcome), outcome, "{mode:?}");
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"a\":\"b\"}\n"), "{mode:?}");
    }
}

#[test]
fn worker_writes_labels_but_runs_no_task_when_paused() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let paused = LocalState { paused: true, ..LocalState::default() };
    Ledger::open(Rc::new(host.clone())).unwrap().put(&LOCAL_STATE, &paused).unwrap();
    let set = TestTaskSet::default().label("a", "b").file("f", &[], "/f", "x");
    let said = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    assert!(said.contains(&ApplyMessage::Local(paused)), "it is reported");
    assert_eq!(host.text("/f"), None);
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"a\":\"b\"}\n"));
    let resumed = SyncMessage::Local(LocalState::default());
    runtime().block_on(run_until_idle(&host, &controller, vec![resumed]));
    assert_eq!(host.text("/f").as_deref(), Some("x"));
}

/// Before the fix, all tasks ran in spite of the pause.
#[test]
fn y02_worker_starts_no_task_when_paused_without_wake() {
    for local in [
        LocalState { paused: true, ..LocalState::default() },
        LocalState { parked: Some("maintenance".into()), ..LocalState::default() },
    ] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let said = local.clone();
        // While the first task runs.
        host.on_run(move |host, _| {
            Ledger::open(Rc::new(host.clone())).unwrap().put(&LOCAL_STATE, &said).unwrap();
            CommandResult { end: ExitKind::Status(0), output: String::new() }
        });
        let set = TestTaskSet::default().command("a", &[], &["a"]).command("b", &[0], &["b"]).file("c", &[1], "/c", "x");
        let said = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!((host.commands_run(), host.text("/c")), (vec![vec!["a".to_owned()]], None));
        assert_eq!(outcomes(&said), [("a".to_owned(), Outcome::Changed)]);
        assert_eq!(progress(&said), Some(observed::Progress::Idle));
        assert!(said.contains(&ApplyMessage::Local(local)), "it is reported");
        // The run continues where it stopped.
        let resumed = SyncMessage::Local(LocalState::default());
        host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
        runtime().block_on(run_until_idle(&host, &controller, vec![resumed]));
        assert_eq!((host.commands_run().len(), host.text("/c").as_deref()), (2, Some("x")));
    }
}

#[test]
fn x05_worker_sweeps_leftovers_when_no_task_may_run() {
    let left = "/srv/.stemma-0123456789abcdef";
    let paused = LocalState { paused: true, ..LocalState::default() };
    for (mode, goes) in [(Mode::Apply, true), (Mode::Noop, false), (Mode::Observe, false)] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        host.put(left, "secret");
        host.put("/srv/theirs", "x");
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        ledger.put(&LOCAL_STATE, &paused).unwrap();
        let recorded = StagingDirs::from([("/srv".to_owned(), BTreeSet::from([33]))]);
        ledger.put(&STAGING_DIRS, &recorded).unwrap();
        let set = TestTaskSet::default().file("f", &[], "/f", "x").mode(mode);
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert_eq!(host.text(left).is_none(), goes, "{mode:?}");
        assert_eq!((host.text("/srv/theirs").as_deref(), host.text("/f")), (Some("x"), None));
        let kept = Ledger::open(Rc::new(host.clone())).unwrap().get(&STAGING_DIRS).unwrap();
        assert_eq!(kept, Some(recorded), "it stays on record: tasks may leave something there again");
    }
}

#[test]
fn s76_worker_refuses_body_when_not_requested() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    let other = TestTaskSet::default().file("f", &[], "/f", "evil");
    let (hash, _) = set.profile();
    let (_, bytes) = other.profile();
    let offers = [vec![offer_message(&controller, 1, &set)], body_messages(&other), piece_messages(hash, &bytes)].concat();
    let said = runtime().block_on(run_until_idle(&host, &controller, offers));
    let refused = said.iter().filter(|said| matches!(said, ApplyMessage::Refused { .. })).count();
    assert_eq!((refused, host.text("/f")), (1, None), "one that was not wanted; what is not what its name says is never whole");
    let kept = host.list("/var/lib/stemma-agent/apply/bodies");
    assert!(kept.iter().all(|name| name.starts_with(".stemma-")), "{kept:?}");
}

#[test]
fn s68_worker_requests_body_again_when_cut_in_transit() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    let (hash, whole) = (set.profile().0, body_messages(&set));
    let (middle, begin) = (whole[2].clone(), whole[0].clone());
    let offers = vec![offer_message(&controller, 1, &set), middle, begin, whole[1].clone(), SyncMessage::BodyUnavailable(hash)];
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        let (ended, said) = tokio::join!(worker.run(std::future::pending()), exchange_for(sync, offers, Duration::from_secs(40)));
        ended.unwrap();
        said
    });
    let wanted = said.iter().filter(|said| **said == ApplyMessage::ContentRequest(hash)).count();
    assert_eq!(wanted, 2, "at once, and once more when it was not given");
    assert_eq!(host.list("/var/lib/stemma-agent/apply/bodies"), Vec::<String>::new());
}

/// F01: the agent is killed before each of its changing calls (so after each, too), and again with a power cut.
#[test]
fn f01_worker_recovers_without_rerunning_command_when_killed_at_any_call() {
    let controller = TestController::new();
    let set = TestTaskSet::default()
        .label("tier", "gold")
        .file("conf", &[], "/etc/app/conf", "new\n")
        .command("build", &[0], &["/bin/build"])
        .file("done", &[1], "/etc/app/done", "built\n");
    let prepared = || {
        let host = MemoryHost::new();
        host.put("/etc/app/conf", "old\n");
        host
    };
    let whole = prepared();
    runtime().block_on(run_until_idle(&whole, &controller, offer_and_body(&controller, 1, &set)));
    assert_eq!(whole.commands_run().len(), 1);
    let calls = whole.calls();
    for (call, power) in (0..calls).flat_map(|call| [(call, false), (call, true)]) {
        let host = prepared();
        host.crash_before(call);
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert!(host.is_crashed(), "call {call}");
        let conf = host.text("/etc/app/conf").unwrap();
        assert!(conf == "old\n" || conf == "new\n", "call {call}: {conf:?}");
        if power {
            host.cut_power();
        } else {
            host.restart();
        }
        // The controller sends the same again, because nothing was acknowledged.
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        assert!(host.commands_run().len() <= 1, "call {call}, power {power}: {:?}", host.commands_run());
        assert_eq!(host.text("/etc/app/conf").as_deref(), Some("new\n"), "call {call}, power {power}");
        let known = Ledger::open(Rc::new(host.clone())).unwrap().step("build").unwrap().map(|step| step.state);
        let unknown = known == Some(crate::apply::ledger::StepState::Begun);
        let built = host.text("/etc/app/done").is_some();
        assert!(built != unknown, "call {call}, power {power}: {known:?}, {built}");
        let left: Vec<_> = host.list("/etc/app").into_iter().filter(|name| name.starts_with('.')).collect();
        assert_eq!(left, Vec::<String>::new(), "call {call}, power {power}");
    }
}

#[test]
fn worker_requests_body_once_and_accepts_second_copy() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = |label: &str, revision| TestTaskSet::default().label("a", label).file("f", &[], "/f", "x").with_release(revision);
    let (first, second) = (set("b", 1), set("c", 2));
    let offers = [
        vec![offer_message(&controller, 1, &first), offer_message(&controller, 2, &second)],
        body_messages(&second),
        body_messages(&second),
    ]
    .concat();
    let said = runtime().block_on(run_until_idle(&host, &controller, offers));
    assert_eq!(said.iter().filter(|said| matches!(said, ApplyMessage::ContentRequest(_))).count(), 1, "{said:?}");
    assert!(!said.iter().any(|said| matches!(said, ApplyMessage::Refused { .. })), "{said:?}");
    assert_eq!(host.text("/f").as_deref(), Some("x"));
}

#[test]
fn pause_lets_running_task_end_and_starts_none() {
    let (host, controller) = (MemoryHost::new(), TestController::new());

    let fields = serde_json::json!({"parameters": {"command": ["a"], "retries": 1, "interval": 60}});
    let slow = TestTaskSet::default().task("first", "shell", &[], &fields).command("second", &[0], &["b"]);

    // The first attempt fails. The host is paused before the second one.
    host.on_run(|host, _| CommandResult {
        end: ExitKind::Status(i32::from(host.commands_run().len() == 1)),
        output: String::new(),
    });
    let paused = SyncMessage::Local(LocalState { paused: true, ..LocalState::default() });
    let offers = offer_and_body(&controller, 1, &slow);
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        let talk = async {
            let mut sync = sync;
            for offer in &offers {
                sync.sender().send(offer).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(30)).await;
            sync.sender().send(&paused).await.unwrap();
            let mut said = Vec::new();
            while let Ok(Ok(message)) = tokio::time::timeout(Duration::from_mins(10), sync.receive()).await {
                said.push(message);
            }
            said
        };
        let (ended, said) = tokio::join!(worker.run(std::future::pending()), talk);
        ended.unwrap();
        said
    });
    assert_eq!(host.commands_run(), [["a"], ["a"]], "the second task was not begun");
    assert_eq!(outcomes(&said), [("first".to_owned(), Outcome::Changed)]);
}

#[test]
fn y06_new_task_set_runs_after_last_task_of_old_one() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let conf = serde_json::json!({"parameters": {"path": "/etc/conf", "template": "tier {{ labels.tier }}"}});
    let slow = serde_json::json!({"parameters": {"command": ["a"], "retries": 1, "interval": 60}});
    let set = |tier: &str, revision| {
        let first = TestTaskSet::default().task("conf", "file", &[], &conf).with_input("labels.tier", tier);
        first.task("slow", "shell", &[0], &slow).with_release(revision)
    };
    host.on_run(|host, _| CommandResult {
        end: ExitKind::Status(i32::from(host.commands_run().len() == 1)),
        output: String::new(),
    });
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        let talk = async {
            let mut sync = sync;
            for offer in offer_and_body(&controller, 1, &set("gold", 1)) {
                sync.sender().send(&offer).await.unwrap();
            }
            while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(30), sync.receive()).await {}
            assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"));
            sync.sender().send(&offer_message(&controller, 2, &set("silver", 2))).await.unwrap();
            let mut said = Vec::new();
            while let Ok(Ok(message)) = tokio::time::timeout(Duration::from_mins(2), sync.receive()).await {
                said.push(message);
            }
            said
        };
        let (ended, said) = tokio::join!(worker.run(std::future::pending()), talk);
        ended.unwrap();
        said
    });
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier silver"));
    let progress: Vec<_> = reports(&said).iter().map(|report| report.progress).collect();
    assert_eq!(progress, [observed::Progress::Converged], "y06: it was said to run all the while, not to be idle");
}

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
        let (ended, ()) = tokio::join!(worker.run(std::future::pending()), listen);
        ended.unwrap();
    });
    assert_eq!((host.text("/f").as_deref(), host.text("/app")), (Some("x"), None));
}

#[test]
fn barrier_is_shut_again_when_task_set_returns() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = |content: &str| TestTaskSet::default().file("conf", &[], "/conf", content).with_barrier(barrier.clone());
    let (a, b) = (set("a"), set("b"));
    let open = |revision: u64| {
        let grant = Grant::Barriers { task_set: a.desired().digest, open: vec![barrier.clone()] };
        vec![SyncMessage::Offer { desired: None, grants: vec![controller.grant(revision, grant)], acknowledged: 0 }]
    };
    for (messages, found, why) in [
        (offer_and_body(&controller, 1, &a), None, "it waits"),
        (open(2), Some("a"), "it was opened"),
        (vec![offer_message(&controller, 3, &a)], Some("a"), "of the same task set nothing is shut"),
        (offer_and_body(&controller, 4, &b), Some("a"), "another task set waits"),
        (offer_and_body(&controller, 9, &a), Some("by hand"), "so does the first when it comes back"),
        (open(2), Some("by hand"), "a grant from before opens nothing"),
        (Vec::new(), Some("by hand"), "nor does a restart"),
        (open(9), Some("a"), "one for this wave does"),
    ] {
        host.restart();
        runtime().block_on(run_until_idle(&host, &controller, messages));
        assert_eq!(host.text("/conf").as_deref(), found, "{why}");
        if why == "another task set waits" {
            host.put("/conf", "by hand");
        }
    }
}

#[test]
fn barrier_is_shut_when_killed_while_task_set_returns() {
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = |content: &str| TestTaskSet::default().file("conf", &[], "/conf", content).with_barrier(barrier.clone());
    let (a, b) = (set("a"), set("b"));
    let controller = TestController::new();
    let grant = Grant::Barriers { task_set: a.desired().digest, open: vec![barrier.clone()] };
    let open = SyncMessage::Offer { desired: None, grants: vec![controller.grant(2, grant)], acknowledged: 0 };
    for call in 0.. {
        let host = MemoryHost::new();
        let first = [offer_and_body(&controller, 1, &a), vec![open.clone()], offer_and_body(&controller, 3, &b)].concat();
        runtime().block_on(run_until_idle(&host, &controller, first));
        host.put("/conf", "by hand");
        host.crash_before(call);
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 9, &a)));
        let died = host.is_crashed();
        host.restart();
        runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
        assert_eq!(host.text("/conf").as_deref(), Some("by hand"), "died before call {call}");
        if !died {
            break;
        }
    }
}

#[test]
fn accepted_state_is_applied_when_next_record_cannot_be_written() {
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
    assert_eq!(host.text("/f").as_deref(), Some("x"), "without a restart");
}
