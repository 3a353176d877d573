//! The root half as the network half meets it: messages in, messages and files out, and death at any call.

use std::rc::Rc;

use stemma_core::task::Mode;
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::signed::{Grant, LeaseKind};
use stemma_wire::message::{Epoch, Hash, PartDigest};

use super::*;
use crate::apply::ledger::{LOCAL, Ledger, OPEN_BARRIERS, STAGING_DIRS};
use crate::apply::leftovers::StagingDirs;
use crate::apply::testing::{Controller, EPOCH, NODE, Set};
use crate::channel::{SyncEnd, pair};
use crate::host::memory::MemoryHost;
use crate::host::{End, Finished};

mod report;

/// Runs the half over what is offered until it is quiet, and gives what it said.
async fn offered(host: &MemoryHost, controller: &Controller, offers: Vec<FromSync>) -> Vec<FromApply> {
    let (sync, apply) = pair();
    let Ok(ledger) = Ledger::open(Rc::new(host.clone())) else { return Vec::new() };
    let site = Site::new(Rc::new(host.clone()), Rc::new(ledger));
    let trust = Trust::new(&controller.identity()).ok();
    let Ok(worker) = ApplyWorker::new(site, Config::default(), trust, apply, WakeListener::never(), Until::Stopped)
    else {
        return Vec::new();
    };
    let talk = talk(sync, offers);
    let (ended, said) = tokio::join!(worker.run(std::future::pending()), talk);
    assert!(ended.is_ok() || host.is_dead(), "{ended:?}");
    said
}

/// Sends, and listens until nothing is said for a while; time is the runtime's own and stands still meanwhile.
async fn talk(sync: SyncEnd, offers: Vec<FromSync>) -> Vec<FromApply> {
    talk_for(sync, offers, Duration::from_secs(2)).await
}

async fn talk_for(mut sync: SyncEnd, offers: Vec<FromSync>, quiet: Duration) -> Vec<FromApply> {
    for offer in &offers {
        if sync.sender().send(offer).await.is_err() {
            break;
        }
    }
    let mut said = Vec::new();
    while let Ok(Ok(message)) = tokio::time::timeout(quiet, sync.receive()).await {
        said.push(message);
    }
    said
}

fn worker(host: &MemoryHost, controller: &Controller, apply: ApplyEnd) -> ApplyWorker {
    worker_until(host, controller, apply, Until::Stopped)
}

fn worker_until(host: &MemoryHost, controller: &Controller, apply: ApplyEnd, until: Until) -> ApplyWorker {
    let ledger = Rc::new(Ledger::open(Rc::new(host.clone())).unwrap());
    let site = Site::new(Rc::new(host.clone()), ledger);
    let trust = Trust::new(&controller.identity()).ok();
    ApplyWorker::new(site, Config::default(), trust, apply, WakeListener::never(), until).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

fn offer(controller: &Controller, revision: u64, set: &Set) -> FromSync {
    let desired = Some(controller.desired(revision, &set.desired()));
    FromSync::Offer { desired, grants: Vec::new(), acknowledged: 0 }
}

/// A profile as it comes: an empty piece begins it.
fn body(set: &Set) -> Vec<FromSync> {
    let (hash, bytes) = set.profile();
    pieces(hash, &bytes)
}

fn pieces(hash: Hash, bytes: &[u8]) -> Vec<FromSync> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    [&[], first, second].map(|piece| FromSync::Body { hash, bytes: piece.to_vec() }).into()
}

fn give(controller: &Controller, revision: u64, set: &Set) -> Vec<FromSync> {
    [vec![offer(controller, revision, set)], body(set)].concat()
}

fn outcomes(said: &[FromApply]) -> Vec<(String, Outcome)> {
    let results = said.iter().filter_map(|message| match message {
        FromApply::Results(results) => Some(results.clone()),
        _ => None,
    });
    results.flatten().map(|TaskResult { task, outcome, .. }| (task, outcome)).collect()
}

/// What was reported, the last at the end.
fn reports(said: &[FromApply]) -> Vec<&Report> {
    said.iter().filter_map(|said| if let FromApply::Report(report) = said { Some(report) } else { None }).collect()
}

fn progress(said: &[FromApply]) -> Option<observed::Progress> {
    reports(said).last().map(|report| report.progress)
}

#[test]
fn an_offer_becomes_labels_and_a_file() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    let said = runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    assert!(matches!(said[0], FromApply::Hello { seal_key, held: None } if seal_key != [0; 32]), "{said:?}");
    assert!(said.contains(&FromApply::Want(set.profile().0)), "{said:?}");
    assert_eq!(outcomes(&said), [("motd".to_owned(), Outcome::Changed)]);
    assert_eq!(progress(&said), Some(observed::Progress::Converged));
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    assert_eq!(host.text("/etc/motd").as_deref(), Some("gold\n"));
}

/// c ran, since a task that is left out held nobody up.
#[test]
fn y06_what_comes_after_a_marker_waits_for_what_is_before_it_and_nobody_hears_of_the_marker() {
    for (first, a, c, ends) in [
        ("bad", Outcome::Failed, Outcome::DependencyFailed, observed::Progress::Failed),
        ("good", Outcome::Changed, Outcome::Changed, observed::Progress::Converged),
    ] {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        host.on_run(|_, command| {
            let status = i32::from(command.argv[0] == "bad");
            Finished { end: End::Status(status), output: String::new() }
        });
        let set = Set::default().command("a", &[], &[first]).marker("b", &[0]).marker("m", &[1]);
        let set = set.command("c", &[2], &["last"]);
        let said = runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
        assert_eq!(outcomes(&said), [("a".to_owned(), a), ("c".to_owned(), c)]);
        assert_eq!(progress(&said), Some(ends));
    }
}

#[test]
fn without_a_controller_what_is_held_is_converged_from_disk() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    host.put("/etc/motd", "edited\n");
    host.delete("/run/stemma/labels.json");
    host.revive();
    let said = runtime().block_on(offered(&host, &controller, Vec::new()));
    assert!(matches!(&said[0], FromApply::Hello { held: Some(held), .. } if held.revision.0 == 1), "{said:?}");
    assert_eq!(host.text("/etc/motd").as_deref(), Some("gold\n"));
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    host.revive();
    runtime().block_on(offered(&host, &controller, Vec::new()));
    assert_eq!(host.calls(), 0, "a restart with nothing to do writes nothing");
}

/// The results that were sent: their numbers and tasks.
fn numbered(said: &[FromApply]) -> Vec<(u64, &str)> {
    let results = said.iter().filter_map(|message| match message {
        FromApply::Results(results) => Some(results.iter().map(|result| (result.sequence, result.task.as_str()))),
        _ => None,
    });
    results.flatten().collect()
}

#[test]
fn x02_in_another_epoch_results_are_reported_again_barriers_are_shut_and_nothing_runs() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = Set::default().command("c", &[], &["deploy"]).file("app", &[], "/app", "x").behind(barrier.clone());
    let opened = |epoch, revision| {
        let grant = Grant::Barriers { task_set: set.desired().digest, open: vec![barrier.clone()] };
        let grants = vec![controller.grant_of(epoch, revision, grant)];
        vec![FromSync::Offer { desired: None, grants, acknowledged: 0 }]
    };
    let first = runtime().block_on(offered(&host, &controller, give(&controller, 106, &set)));
    let second = runtime().block_on(offered(&host, &controller, opened(EPOCH, 106)));
    assert_eq!((host.text("/app").as_deref(), host.ran().len()), (Some("x"), 1));
    let acknowledged = numbered(&first).into_iter().chain(numbered(&second)).map(|(number, _)| number).max().unwrap();

    // The store came back with revision 9; the same state is signed in another epoch.
    let other = Epoch([2; 16]);
    let mut state = controller.desired_of(NODE, other, 9, &set.desired());
    state.epoch_change = Some(controller.epoch_change(EPOCH, other, 8));
    let offer = FromSync::Offer { desired: Some(state), grants: Vec::new(), acknowledged };
    let said = runtime().block_on(offered(&host, &controller, vec![offer]));
    let again = numbered(&said).into_iter().filter(|(number, _)| *number > acknowledged);
    assert_eq!(again.map(|(_, task)| task).collect::<Vec<_>>(), ["app", "c"], "{said:?}");
    assert_eq!(host.ran().len(), 1, "nothing runs again");
    let open = || Ledger::open(Rc::new(host.clone())).unwrap().get(&OPEN_BARRIERS).unwrap().unwrap();
    assert_eq!((open().revision.0, open().open.len()), (9, 0), "a barrier of the epoch that ended is shut");
    // A grant of the new epoch opens it, though its revision is smaller than that of the one before.
    runtime().block_on(offered(&host, &controller, opened(EPOCH, 107)));
    assert_eq!(open().open.len(), 0, "one of the epoch that ended does not");
    runtime().block_on(offered(&host, &controller, opened(other, 10)));
    assert_eq!((open().revision.0, open().open.len()), (10, 1));
}

#[test]
fn what_is_refused_changes_nothing() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().label("tier", "gold").file("motd", &[], "/etc/motd", "gold\n");
    runtime().block_on(offered(&host, &controller, give(&controller, 7, &set)));
    host.revive();
    let older = Set::default().label("tier", "lead");
    let said = runtime().block_on(offered(&host, &controller, vec![offer(&controller, 6, &older)]));
    let reason = "The controller offers revision 6, this host has 7. Was the controller restored?".to_owned();
    assert!(said.contains(&FromApply::Refused { reason }), "{said:?}");
    assert_eq!(host.calls(), 0);
}

#[test]
fn a_label_that_changes_in_place_is_on_the_label_files_and_in_no_file_until_its_release() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = |label: &str, input: &str, revision| {
        Set::default()
            .label("tier", label)
            .task(
                "conf",
                "file",
                &[],
                &serde_json::json!({"parameters": {"path": "/etc/conf", "template": "tier {{ labels.tier }}"}}),
            )
            .reads("labels.tier", input)
            .released(revision)
    };
    let first = set("gold", "gold", 1);
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &first)));
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"));

    let held = set("silver", "gold", 1);
    runtime().block_on(offered(&host, &controller, vec![offer(&controller, 2, &held)]));
    let look = |name: &str| {
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"silver\"}\n"), "{name}");
        assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"), "{name}");
    };
    look("at once");
    host.revive();
    host.delete("/run/stemma/labels.json");
    runtime().block_on(offered(&host, &controller, Vec::new()));
    look("after a restart");
    host.put("/etc/conf", "edited");
    runtime().block_on(offered(&host, &controller, Vec::new()));
    look("after a look for drift");

    let released = set("silver", "silver", 2);
    runtime().block_on(offered(&host, &controller, vec![offer(&controller, 3, &released)]));
    assert_eq!(host.text("/etc/conf").as_deref(), Some("tier silver"));
}

#[test]
fn a_barrier_opens_by_a_grant_for_this_task_set_and_stays_open_over_a_restart() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = Set::default().file("app", &[], "/app", "x").behind(barrier.clone());
    let said = runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    assert_eq!((progress(&said), host.text("/app")), (Some(observed::Progress::Waiting), None));

    let grant = |task_set| {
        let grant = controller.grant(2, Grant::Barriers { task_set, open: vec![barrier.clone()] });
        vec![FromSync::Offer { desired: None, grants: vec![grant], acknowledged: 0 }]
    };
    let other = PartDigest([3; 32]);
    let said = runtime().block_on(offered(&host, &controller, grant(other)));
    assert!(said.iter().any(|said| matches!(said, FromApply::Refused { .. })), "{said:?}");
    assert_eq!(host.text("/app"), None);
    runtime().block_on(offered(&host, &controller, grant(set.desired().digest)));
    assert_eq!(host.text("/app").as_deref(), Some("x"));
    host.delete("/app");
    runtime().block_on(offered(&host, &controller, Vec::new()));
    assert_eq!(host.text("/app").as_deref(), Some("x"));
}

#[test]
fn a_lease_of_a_later_revision_shuts_no_barrier_and_keeps_none_from_opening() {
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = Set::default().file("app", &[], "/app", "x").behind(barrier.clone());
    let open = Grant::Barriers { task_set: set.desired().digest, open: vec![barrier] };
    let lease = Grant::Lease { kind: LeaseKind::Mend, duration_s: 60 };
    for grants in [[(2, &open), (3, &lease)], [(3, &lease), (2, &open)]] {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        let grants = grants.map(|(revision, grant)| controller.grant(revision, grant.clone())).to_vec();
        let grants = vec![FromSync::Offer { desired: None, grants, acknowledged: 0 }];
        runtime().block_on(offered(&host, &controller, [give(&controller, 1, &set), grants].concat()));
        assert_eq!(host.text("/app").as_deref(), Some("x"));
    }
}

#[test]
fn modes_say_how_far_it_goes() {
    for (mode, file, outcome) in [
        (Mode::Observe, None, None),
        (Mode::Noop, None, Some(Outcome::WouldChange)),
        (Mode::Apply, Some("x"), Some(Outcome::Changed)),
    ] {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        let set = Set::default().label("a", "b").file("f", &[], "/f", "x").mode(mode);
        let said = runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
        assert_eq!(host.text("/f").as_deref(), file, "{mode:?}");
        assert_eq!(outcomes(&said).first().map(|(_, outcome)| *outcome), outcome, "{mode:?}");
        assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"a\":\"b\"}\n"), "{mode:?}");
    }
}

#[test]
fn paused_labels_flow_and_no_task_is_touched() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let paused = LocalState { paused: true, ..LocalState::default() };
    Ledger::open(Rc::new(host.clone())).unwrap().put(&LOCAL, &paused).unwrap();
    let set = Set::default().label("a", "b").file("f", &[], "/f", "x");
    let said = runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    assert!(said.contains(&FromApply::Local(paused)), "it is reported");
    assert_eq!(host.text("/f"), None);
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"a\":\"b\"}\n"));
    let resumed = FromSync::Local(LocalState::default());
    runtime().block_on(offered(&host, &controller, vec![resumed]));
    assert_eq!(host.text("/f").as_deref(), Some("x"));
}

/// All of them ran.
#[test]
fn y02_after_a_pause_no_task_begins_also_where_nobody_is_woken_by_it() {
    for local in [
        LocalState { paused: true, ..LocalState::default() },
        LocalState { parked: Some("maintenance".into()), ..LocalState::default() },
    ] {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        let said = local.clone();
        // While the first one runs.
        host.on_run(move |host, _| {
            Ledger::open(Rc::new(host.clone())).unwrap().put(&LOCAL, &said).unwrap();
            Finished { end: End::Status(0), output: String::new() }
        });
        let set = Set::default().command("a", &[], &["a"]).command("b", &[0], &["b"]).file("c", &[1], "/c", "x");
        let said = runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
        assert_eq!((host.ran(), host.text("/c")), (vec![vec!["a".to_owned()]], None));
        assert_eq!(outcomes(&said), [("a".to_owned(), Outcome::Changed)]);
        assert_eq!(progress(&said), Some(observed::Progress::Idle));
        assert!(said.contains(&FromApply::Local(local)), "it is reported");
        // It goes on where it was.
        let resumed = FromSync::Local(LocalState::default());
        host.on_run(|_, _| Finished { end: End::Status(0), output: String::new() });
        runtime().block_on(offered(&host, &controller, vec![resumed]));
        assert_eq!((host.ran().len(), host.text("/c").as_deref()), (2, Some("x")));
    }
}

#[test]
fn x05_what_a_killed_agent_left_goes_also_where_no_task_is_applied_now() {
    let left = "/srv/.stemma-0123456789abcdef";
    let paused = LocalState { paused: true, ..LocalState::default() };
    for (mode, goes) in [(Mode::Apply, true), (Mode::Noop, false), (Mode::Observe, false)] {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        host.put(left, "secret");
        host.put("/srv/theirs", "x");
        let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
        ledger.put(&LOCAL, &paused).unwrap();
        let recorded = StagingDirs::from([("/srv".to_owned(), BTreeSet::from([33]))]);
        ledger.put(&STAGING_DIRS, &recorded).unwrap();
        let set = Set::default().file("f", &[], "/f", "x").mode(mode);
        runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
        assert_eq!(host.text(left).is_none(), goes, "{mode:?}");
        assert_eq!((host.text("/srv/theirs").as_deref(), host.text("/f")), (Some("x"), None));
        let kept = Ledger::open(Rc::new(host.clone())).unwrap().get(&STAGING_DIRS).unwrap();
        assert_eq!(kept, Some(recorded), "it stays on record: tasks may leave something there again");
    }
}

#[test]
fn s76_a_body_that_nobody_asked_for_is_refused() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().file("f", &[], "/f", "x");
    let other = Set::default().file("f", &[], "/f", "evil");
    let (hash, _) = set.profile();
    let (_, bytes) = other.profile();
    let offers = [vec![offer(&controller, 1, &set)], body(&other), pieces(hash, &bytes)].concat();
    let said = runtime().block_on(offered(&host, &controller, offers));
    let refused = said.iter().filter(|said| matches!(said, FromApply::Refused { .. })).count();
    assert_eq!(
        (refused, host.text("/f")),
        (1, None),
        "one that was not wanted; what is not what its name says is never whole"
    );
    let kept = host.list("/var/lib/stemma-agent/apply/bodies");
    assert!(kept.iter().all(|name| name.starts_with(".stemma-")), "{kept:?}");
}

#[test]
fn s68_a_body_cut_on_its_way_is_asked_for_again_and_its_pieces_are_dropped() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().file("f", &[], "/f", "x");
    let (hash, whole) = (set.profile().0, body(&set));
    let (middle, begin) = (whole[2].clone(), whole[0].clone());
    let offers = vec![offer(&controller, 1, &set), middle, begin, whole[1].clone(), FromSync::NoBody(hash)];
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        let (ended, said) =
            tokio::join!(worker.run(std::future::pending()), talk_for(sync, offers, Duration::from_secs(40)));
        ended.unwrap();
        said
    });
    let wanted = said.iter().filter(|said| **said == FromApply::Want(hash)).count();
    assert_eq!(wanted, 2, "at once, and once more when it was not given");
    assert_eq!(host.list("/var/lib/stemma-agent/apply/bodies"), Vec::<String>::new());
}

/// F01: killed before any of its changing calls (so after each, too), and once more with the power cut.
#[test]
fn f01_an_agent_that_dies_anywhere_picks_up_tears_nothing_and_runs_no_command_twice() {
    let controller = Controller::new();
    let set = Set::default()
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
    runtime().block_on(offered(&whole, &controller, give(&controller, 1, &set)));
    assert_eq!(whole.ran().len(), 1);
    let calls = whole.calls();
    for (call, power) in (0..calls).flat_map(|call| [(call, false), (call, true)]) {
        let host = prepared();
        host.die_before(call);
        runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
        assert!(host.is_dead(), "call {call}");
        let conf = host.text("/etc/app/conf").unwrap();
        assert!(conf == "old\n" || conf == "new\n", "call {call}: {conf:?}");
        if power {
            host.cut_power();
        } else {
            host.revive();
        }
        // A controller gives the same again, since nothing was acknowledged.
        runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
        assert!(host.ran().len() <= 1, "call {call}, power {power}: {:?}", host.ran());
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
fn what_is_wanted_is_asked_for_once_and_a_second_copy_is_no_offence() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = |label: &str, revision| Set::default().label("a", label).file("f", &[], "/f", "x").released(revision);
    let (first, second) = (set("b", 1), set("c", 2));
    let offers =
        [vec![offer(&controller, 1, &first), offer(&controller, 2, &second)], body(&second), body(&second)].concat();
    let said = runtime().block_on(offered(&host, &controller, offers));
    assert_eq!(said.iter().filter(|said| matches!(said, FromApply::Want(_))).count(), 1, "{said:?}");
    assert!(!said.iter().any(|said| matches!(said, FromApply::Refused { .. })), "{said:?}");
    assert_eq!(host.text("/f").as_deref(), Some("x"));
}

#[test]
fn a_pause_lets_what_runs_end_and_begins_nothing_more() {
    let (host, controller) = (MemoryHost::new(), Controller::new());

    let fields = serde_json::json!({"parameters": {"command": ["a"], "retries": 1, "interval": 60}});
    let slow = Set::default().task("first", "shell", &[], &fields).command("second", &[0], &["b"]);

    // The first attempt fails; before the second one a pause is said.
    host.on_run(|host, _| Finished { end: End::Status(i32::from(host.ran().len() == 1)), output: String::new() });
    let paused = FromSync::Local(LocalState { paused: true, ..LocalState::default() });
    let offers = give(&controller, 1, &slow);
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
    assert_eq!(host.ran(), [["a"], ["a"]], "the second task was not begun");
    assert_eq!(outcomes(&said), [("first".to_owned(), Outcome::Changed)]);
}

#[test]
fn y06_a_task_set_that_comes_while_the_last_task_of_another_runs_is_run_after_it_and_said_to_run() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let conf = serde_json::json!({"parameters": {"path": "/etc/conf", "template": "tier {{ labels.tier }}"}});
    let slow = serde_json::json!({"parameters": {"command": ["a"], "retries": 1, "interval": 60}});
    let set = |tier: &str, revision| {
        let first = Set::default().task("conf", "file", &[], &conf).reads("labels.tier", tier);
        first.task("slow", "shell", &[0], &slow).released(revision)
    };
    host.on_run(|host, _| Finished { end: End::Status(i32::from(host.ran().len() == 1)), output: String::new() });
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let worker = worker(&host, &controller, apply);
        let talk = async {
            let mut sync = sync;
            for offer in give(&controller, 1, &set("gold", 1)) {
                sync.sender().send(&offer).await.unwrap();
            }
            while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(30), sync.receive()).await {}
            assert_eq!(host.text("/etc/conf").as_deref(), Some("tier gold"));
            sync.sender().send(&offer(&controller, 2, &set("silver", 2))).await.unwrap();
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
fn once_applies_what_is_held_and_ends_also_where_something_must_wait() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = Set::default().file("f", &[], "/f", "x").file("app", &[], "/app", "x").behind(barrier);
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    host.put("/f", "edited");
    runtime().block_on(async {
        let (mut sync, apply) = pair();
        let worker = worker_until(&host, &controller, apply, Until::Quiet);
        let listen = async { while sync.receive().await.is_ok() {} };
        let (ended, ()) = tokio::join!(worker.run(std::future::pending()), listen);
        ended.unwrap();
    });
    assert_eq!((host.text("/f").as_deref(), host.text("/app")), (Some("x"), None));
}

#[test]
fn a_task_set_that_comes_back_waits_at_its_barrier_again() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = |content: &str| Set::default().file("conf", &[], "/conf", content).behind(barrier.clone());
    let (a, b) = (set("a"), set("b"));
    let open = |revision: u64| {
        let grant = Grant::Barriers { task_set: a.desired().digest, open: vec![barrier.clone()] };
        vec![FromSync::Offer { desired: None, grants: vec![controller.grant(revision, grant)], acknowledged: 0 }]
    };
    for (messages, found, why) in [
        (give(&controller, 1, &a), None, "it waits"),
        (open(2), Some("a"), "it was opened"),
        (vec![offer(&controller, 3, &a)], Some("a"), "of the same task set nothing is shut"),
        (give(&controller, 4, &b), Some("a"), "another task set waits"),
        (give(&controller, 9, &a), Some("by hand"), "so does the first when it comes back"),
        (open(2), Some("by hand"), "a grant from before opens nothing"),
        (Vec::new(), Some("by hand"), "nor does a restart"),
        (open(9), Some("a"), "one for this wave does"),
    ] {
        host.revive();
        runtime().block_on(offered(&host, &controller, messages));
        assert_eq!(host.text("/conf").as_deref(), found, "{why}");
        if why == "another task set waits" {
            host.put("/conf", "by hand");
        }
    }
}

#[test]
fn wherever_a_process_dies_while_a_task_set_comes_back_its_barrier_is_shut() {
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let set = |content: &str| Set::default().file("conf", &[], "/conf", content).behind(barrier.clone());
    let (a, b) = (set("a"), set("b"));
    let controller = Controller::new();
    let grant = Grant::Barriers { task_set: a.desired().digest, open: vec![barrier.clone()] };
    let open = FromSync::Offer { desired: None, grants: vec![controller.grant(2, grant)], acknowledged: 0 };
    for call in 0.. {
        let host = MemoryHost::new();
        let first = [give(&controller, 1, &a), vec![open.clone()], give(&controller, 3, &b)].concat();
        runtime().block_on(offered(&host, &controller, first));
        host.put("/conf", "by hand");
        host.die_before(call);
        runtime().block_on(offered(&host, &controller, give(&controller, 9, &a)));
        let died = host.is_dead();
        host.revive();
        runtime().block_on(offered(&host, &controller, Vec::new()));
        assert_eq!(host.text("/conf").as_deref(), Some("by hand"), "died before call {call}");
        if !died {
            break;
        }
    }
}

#[test]
fn what_was_accepted_is_applied_also_when_the_next_record_cannot_be_kept() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().label("tier", "gold").file("f", &[], "/f", "x");
    // What the hooks were told last cannot be read once.
    host.spoil("/var/lib/stemma-agent/apply/told", 1);
    let (sync, apply) = pair();
    let worker = worker(&host, &controller, apply);
    let messages = give(&controller, 1, &set);
    runtime().block_on(async {
        let (_, _) = tokio::join!(worker.run(std::future::pending()), talk_for(sync, messages, Duration::from_mins(1)));
    });
    assert_eq!(host.text("/f").as_deref(), Some("x"), "without a restart");
}
