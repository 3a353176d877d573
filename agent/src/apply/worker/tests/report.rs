//! Tests of what the root half sends: reports and results to the network half, changes to hooks.

use super::*;
use crate::apply::ledger::HOOK_SNAPSHOT;
use crate::apply::ledger::tests::result;
use crate::host::ReplaceBlocker;

#[test]
fn w10_13_report_has_finding_and_result_when_record_is_damaged() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = |revision| TestTaskSet::default().command("c", &[], &["deploy"]).with_release(revision);
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set(1))));
    let steps = "/var/lib/stemma-agent/apply/steps";
    // The record is lost between the start and the next task set, when the check at the start is over.
    host.restart();
    let (sync, apply) = pair();
    let worker = worker(&host, &controller, apply);
    let said = runtime().block_on(async {
        let talking = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            host.put(&format!("{steps}/{}", host.list(steps)[0]), "");
            exchange(sync, offer_and_body(&controller, 2, &set(2))).await
        };
        tokio::join!(worker.run(std::future::pending()), talking).1
    });
    assert_eq!(outcomes(&said).last(), Some(&("c".to_owned(), Outcome::Unknown)), "{said:?}");
    let mut findings = reports(&said).into_iter().flat_map(|report| &report.findings);
    assert!(findings.any(|finding| finding.contains("was set aside")), "{said:?}");
    assert_eq!(host.commands_run().len(), 1);
}

#[test]
fn f06_worker_reports_full_disk_and_recovers_when_space_is_freed() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let first = TestTaskSet::default().label("tier", "gold").file("f", &[], "/f", "gold\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &first)));
    let second = TestTaskSet::default().label("tier", "silver").file("f", &[], "/f", "silver\n");
    host.set_full(true);
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let talking = async {
            for message in offer_and_body(&controller, 2, &second) {
                sync.sender().send(&message).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(host.text("/f").as_deref(), Some("gold\n"));
            host.set_full(false);
            exchange_for(sync, offer_and_body(&controller, 2, &second), Duration::from_mins(1)).await
        };
        let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talking);
        ended.unwrap();
        said
    });
    let reports = reports(&said);
    let full = |report: &&Report| report.findings.iter().any(|finding| finding.starts_with("cannot write /var/lib/stemma-agent"));
    assert!(reports.iter().any(full), "{reports:?}");
    assert!(reports.last().is_some_and(|last| last.findings.is_empty()), "{reports:?}");
    assert_eq!(host.text("/f").as_deref(), Some("silver\n"));
}

/// Before the fix, the agent reported that it ran tasks and did not answer the offer, and each retry reported another
/// random file name.
#[test]
fn y06_offer_is_refused_and_reported_once_when_disk_is_full() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = |text: &str| TestTaskSet::default().file("f", &[], "/f", text);
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set("gold\n"))));
    host.set_full(true);
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let talking = async {
            for revision in 2..5 {
                sync.sender().send(&offer_message(&controller, revision, &set("silver\n"))).await.unwrap();
            }
            // Several reconciles, which try again.
            tokio::time::sleep(Duration::from_mins(5)).await;
            host.set_full(false);
            exchange_for(sync, Vec::new(), Duration::from_mins(1)).await
        };
        let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talking);
        ended.unwrap();
        said
    });
    let refused: Vec<_> =
        said.iter().filter_map(|said| if let ApplyMessage::Refused { reason } = said { Some(reason) } else { None }).collect();
    assert_eq!(refused.len(), 3, "one for each offer: {said:?}");
    let reports = reports(&said);
    let told: Vec<_> = reports.iter().map(|report| (report.progress, report.facts.get("agent.stuck"))).collect();
    let stuck: Vec<_> = told.iter().filter(|(_, stuck)| stuck.is_some()).collect();
    assert_eq!(stuck.len(), 1, "{told:?}");
    assert_eq!(stuck[0].0, observed::Progress::Failed);
    let sentence: String = serde_json::from_str(stuck[0].1.unwrap()).unwrap();
    assert!(sentence.starts_with("cannot write /var/lib/stemma-agent/apply"), "{sentence}");
    assert!(refused.iter().all(|reason| **reason == sentence && !reason.contains(".stemma-")), "{refused:?}");
    assert_eq!(told.last(), Some(&(observed::Progress::Converged, None)), "{told:?}");
}

/// Before the fix, a converged host reported `converged` as long as there was nothing to write.
#[test]
fn y06_report_says_stuck_when_idle_disk_is_full() {
    let own = "/var/lib/stemma-agent/apply";
    let full: fn(&MemoryHost, bool) = MemoryHost::set_full;
    let read_only: fn(&MemoryHost, bool) =
        |host, is| host.set_blocker("/var/lib/stemma-agent/apply", is.then_some(ReplaceBlocker::ReadOnly));
    let immutable: fn(&MemoryHost, bool) =
        |host, is| host.set_blocker("/var/lib/stemma-agent/apply", is.then_some(ReplaceBlocker::ImmutableDirectory));
    for (end, said_by) in [(full, "cannot write "), (read_only, "read-only"), (immutable, "immutable")] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = TestTaskSet::default().file("f", &[], "/f", "x");
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        host.restart();
        let said = runtime().block_on(async {
            let (sync, apply) = pair();
            let talking = async {
                // No drift check is due in that time.
                tokio::time::sleep(Duration::from_mins(5)).await;
                assert_eq!(host.calls(), 0, "to look costs no write");
                end(&host, true);
                tokio::time::sleep(Duration::from_mins(5)).await;
                end(&host, false);
                exchange_for(sync, Vec::new(), Duration::from_mins(2)).await
            };
            let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talking);
            ended.unwrap();
            said
        });
        let reports = reports(&said);
        let told: Vec<_> = reports.iter().map(|report| (report.progress, report.facts.get("agent.stuck"))).collect();
        let stuck: Vec<_> = told.iter().filter_map(|(progress, stuck)| stuck.map(|why| (*progress, why))).collect();
        let [(observed::Progress::Failed, why)] = stuck[..] else { panic!("{told:?}") };
        assert!(why.contains(own) && why.contains(said_by), "{why}");
        assert!(!why.contains("names another path") && !why.contains(".stemma-"), "{why}");
        assert_eq!(told.first(), Some(&(observed::Progress::Converged, None)), "{told:?}");
        assert_eq!(told.last(), Some(&(observed::Progress::Converged, None)), "{told:?}");
        assert!(host.list(own).iter().all(|name| !name.starts_with(".stemma-")), "{:?}", host.list(own));
    }
}

/// Before the fix, the host reported `converged` everywhere, and tried again only at the next reconcile, half an hour
/// later.
#[test]
fn y06_report_says_stuck_until_labels_are_written() {
    let own: fn(&MemoryHost) = |host| host.put("/run/stemma", "");
    let map: fn(&MemoryHost) = |host| host.put_special("/etc/stemma/node-labels");
    for (put_in_the_way, path, file) in
        [(own, "/run/stemma", "/run/stemma/labels.json"), (map, "/etc/stemma/node-labels", "/etc/stemma/node-labels")]
    {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = |tier: &str| TestTaskSet::default().label("tier", tier).file("f", &[], "/f", "x");
        let offer = |revision, tier: &str| {
            let mut desired = set(tier).desired();
            desired.known.labels.values_mut().for_each(|label| label.to_host = true);
            let desired = Some(controller.desired(revision, &desired));
            SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 }
        };
        let given = [vec![offer(1, "gold")], body_messages(&set("gold"))].concat();
        runtime().block_on(run_until_idle(&host, &controller, given));
        let has = |tier: &str| host.text(file).is_some_and(|text| text.contains(tier));
        assert!(has("gold"));
        host.delete(path);
        put_in_the_way(&host);
        let (first, later, then) = runtime().block_on(async {
            let (sync, apply) = pair();
            let talk = async {
                let mut sync = sync;
                sync.sender().send(&offer(2, "silver")).await.unwrap();
                let first = receive_for(&mut sync, Duration::from_secs(5)).await;
                let later = receive_for(&mut sync, Duration::from_mins(5)).await;
                assert!(!has("silver"));
                host.delete(path);
                let then = receive_for(&mut sync, Duration::from_secs(31)).await;
                (first, later, then)
            };
            let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talk);
            ended.unwrap();
            said
        });
        let told = reports(&first).pop().unwrap();
        let why: String = serde_json::from_str(&told.facts["agent.stuck"]).unwrap();
        assert!(why.contains(&format!("{path} is a ")) && told.findings.contains(&why), "{told:?}");
        assert_eq!(told.progress, observed::Progress::Converged, "its tasks are done");
        assert_eq!(told.facts.get("agent.runs_on").map(String::as_str), Some("true"), "controllers read that too");
        assert_eq!(later, [], "it is told once");
        let told = reports(&then).pop().unwrap();
        assert!(told.facts.is_empty() && told.findings.is_empty() && has("silver"), "{told:?}");
    }
}

/// Before the fix, the report named its tasks as applied, and units on the host that wait for that were started.
#[test]
fn y06_report_names_no_applied_task_set_when_none_was_released() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let given = |revision, paused| {
        let mut desired = TestTaskSet::default().label("tier", "gold").desired();
        desired.task_set = stemma_wire::message::desired::TaskSet::default();
        desired.known.paused = paused;
        let desired = Some(controller.desired(revision, &desired));
        let offer = SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 };
        runtime().block_on(async {
            let (sync, apply) = pair();
            let target = HostCommand::new(vec!["systemctl".into()], Duration::from_secs(1));
            let worker = worker(&host, &controller, apply).with_applied_command(target).run(std::future::pending());
            let (ended, said) = tokio::join!(worker, exchange(sync, vec![offer]));
            ended.unwrap();
            said
        })
    };
    let said = given(1, true);
    assert!(reports(&said).iter().all(|report| report.progress == observed::Progress::Idle), "{said:?}");
    assert_eq!(host.commands_run().len(), 0);
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    // No level names a release, so nothing is withheld any more, and there is nothing to run.
    assert_eq!(progress(&given(2, false)), Some(observed::Progress::Converged));
    assert_eq!(host.commands_run().len(), 1);
}

/// Before the fix, the host stayed `stuck` because of a profile that no task set named any more.
#[test]
fn y06_report_names_unreadable_profile_until_set_without_tasks_comes() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    // No order exists if a task depends on itself.
    let unreadable = TestTaskSet::default().command("a", &[0], &["true"]);
    let mut without = TestTaskSet::default().desired();
    without.task_set.profile = None;
    let next = SyncMessage::Offer { desired: Some(controller.desired(2, &without)), grants: Vec::new(), acknowledged: 0 };
    let offers = [offer_and_body(&controller, 1, &unreadable), vec![next]].concat();
    let said = runtime().block_on(run_until_idle(&host, &controller, offers));
    let reports = reports(&said);
    let told: Vec<_> = reports.iter().map(|report| report.facts.get("agent.stuck").map(String::as_str)).collect();
    let why = r#""this agent cannot read the task profile; upgrade the agent""#;
    assert!(told.contains(&Some(why)), "{told:?}");
    assert_eq!(told.last(), Some(&None), "{told:?}");
}

/// Returns the paths of the orphans in the last report, each with its task.
fn reported_orphans(messages: &[ApplyMessage]) -> Vec<(String, String)> {
    let reports = reports(messages);
    let text = reports.last().and_then(|report| report.facts.get("agent.orphans")).map_or("[]", String::as_str);
    let list: Vec<std::collections::BTreeMap<String, String>> = serde_json::from_str(text).unwrap();
    list.iter().map(|orphan| (orphan["task"].clone(), orphan["path"].clone())).collect()
}

/// Before the fix, no report mentioned that a key stayed on the host after its task was removed.
#[test]
fn y06_report_lists_orphan_until_deleted_or_managed_again() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = || TestTaskSet::default().file("motd", &[], "/etc/motd", "m\n");
    let with_key = || set().file("key", &[], "/root/key", "k\n").file("old", &[], "/etc/old", "o\n");
    let give = |revision, set: &TestTaskSet| {
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, revision, set)))
    };
    let key = vec![("key".to_owned(), "/root/key".to_owned())];

    assert_eq!(reported_orphans(&give(1, &with_key())), []);
    // Another task now manages the path of one of the two removed tasks.
    let taken_over = || set().file("new", &[], "/etc/old", "n\n");
    assert_eq!(reported_orphans(&give(2, &taken_over())), key);
    assert_eq!(host.text("/root/key").as_deref(), Some("k\n"), "nobody takes it away");
    assert_eq!(reported_orphans(&runtime().block_on(run_until_idle(&host, &controller, vec![]))), key, "after a restart too");
    // Once that task is removed too, the orphan names it, not the earlier one.
    let new = ("new".to_owned(), "/etc/old".to_owned());
    assert_eq!(reported_orphans(&give(3, &set())), [vec![new.clone()], key.clone()].concat());
    assert_eq!(reported_orphans(&give(4, &with_key())), [], "kept again");
    let moved = || set().file("key", &[], "/root/other", "k\n");
    let old = ("old".to_owned(), "/etc/old".to_owned());
    assert_eq!(reported_orphans(&give(5, &moved())), [vec![old], key].concat(), "its task names another path");
    let absent = serde_json::json!({"parameters": {"path": "/root/key", "absent": true}});
    host.delete("/etc/old");
    assert_eq!(reported_orphans(&give(6, &moved().task("away", "file", &[], &absent))), [], "both are gone");
    host.put("/etc/old", "somebody's");
    assert_eq!(reported_orphans(&give(7, &moved())), [], "what comes back there is another's");
}

/// Before the fix, the orphan was reported until something else happened on the host.
#[test]
fn y06_report_drops_orphan_within_a_minute_when_deleted() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let with_key = TestTaskSet::default().file("key", &[], "/root/key", "k\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &with_key)));
    let key = vec![("key".to_owned(), "/root/key".to_owned())];
    let (first, minute, later) = runtime().block_on(async {
        let (sync, apply) = pair();
        let talk = async {
            let mut sync = sync;
            for offer in offer_and_body(&controller, 2, &TestTaskSet::default()) {
                sync.sender().send(&offer).await.unwrap();
            }
            let first = receive_for(&mut sync, Duration::from_secs(2)).await;
            host.delete("/root/key");
            let minute = receive_for(&mut sync, Duration::from_mins(1)).await;
            let later = receive_for(&mut sync, Duration::from_mins(5)).await;
            (first, minute, later)
        };
        let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talk);
        ended.unwrap();
        said
    });
    assert_eq!(reported_orphans(&first), key);
    assert_eq!((reports(&minute).len(), reported_orphans(&minute)), (1, vec![]));
    assert_eq!(later, [], "it is told once");
}

/// Receives messages for this long.
async fn receive_for(sync: &mut SyncEnd, time: Duration) -> Vec<ApplyMessage> {
    let (deadline, mut messages) = (Instant::now() + time, Vec::new());
    while let Ok(Ok(message)) = tokio::time::timeout_at(deadline, sync.receive()).await {
        messages.push(message);
    }
    messages
}

/// The state of an agent older than this record: an upgrade writes nothing, and the record is created when the task set
/// is replaced.
#[test]
fn y06_file_record_is_created_when_task_set_is_replaced() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("motd", &[], "/etc/motd", "m\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    runtime().block_on(run_until_idle(&host, &controller, vec![]));
    let calls = |host: &MemoryHost| {
        host.restart();
        runtime().block_on(run_until_idle(host, &controller, vec![]));
        host.calls()
    };
    let usual = calls(&host);
    let record = "/var/lib/stemma-agent/apply/written-files";
    host.delete(record);
    assert_eq!((calls(&host), host.text(record)), (usual, None), "a look writes nothing");
    let motd = vec![("motd".to_owned(), "/etc/motd".to_owned())];
    assert_eq!(
        reported_orphans(&runtime().block_on(run_until_idle(
            &host,
            &controller,
            offer_and_body(&controller, 2, &TestTaskSet::default())
        ))),
        motd
    );
}

#[test]
fn y06_report_names_64_orphans_and_counts_rest() {
    use crate::apply::orphans::orphans_fact;

    let orphan = |at: usize, len: usize| OrphanedPath { task: format!("t{at}"), path: format!("/{}{at}", "p".repeat(len)) };
    for (count, len, named) in [(0, 1, None), (1, 1, Some((1, 0))), (64, 1, Some((64, 0))), (70, 1, Some((64, 6)))] {
        let text = orphans_fact(&(0..count).map(|at| orphan(at, len)).collect::<Vec<_>>());
        let list: Option<Vec<serde_json::Value>> = text.map(|text| serde_json::from_str(&text).unwrap());
        let counted = list.map(|list| {
            let more = list.last().and_then(|last| last["more"].as_u64()).unwrap_or(0);
            (list.iter().filter(|entry| entry["path"].is_string()).count(), more)
        });
        assert_eq!(counted, named, "{count}");
    }
    // A controller drops a fact of more than 16 KiB.
    assert!(orphans_fact(&(0..64).map(|at| orphan(at, 4000)).collect::<Vec<_>>()).unwrap().len() <= 16 * 1024);
}

#[test]
fn x01_report_counts_dropped_results_until_later_ones_are_acknowledged() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    for _ in 0..1001 {
        ledger.add_results(vec![result("motd")]).unwrap();
    }
    // Each check uses a new process.
    let stands_after = |acknowledged: u64| {
        let offer = SyncMessage::Offer { desired: None, grants: Vec::new(), acknowledged };
        let said = runtime().block_on(run_until_idle(&host, &controller, vec![offer]));
        let findings = &reports(&said).pop().unwrap().findings;
        findings.iter().any(|finding| finding.starts_with("1 task results were dropped on this host before"))
    };
    assert!(stands_after(0));
    assert!(stands_after(1001), "all of those that were there when it was reported");
    assert!(!stands_after(1002), "a later one");
    assert!(!stands_after(1002));
}

/// The network half refuses a message with more findings than the limit. Before the fix, the whole report was lost.
#[test]
fn x01_report_counts_findings_over_limit() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("motd", &[], "/etc/motd", "gold\n");
    let set = (0..300).fold(set, |set, at| set.label(&format!("k{at:03}"), "a\nb"));
    host.put("/var/lib/stemma-agent/apply/record.set-aside", "");
    let said = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    let findings = &reports(&said).pop().unwrap().findings;
    assert_eq!(findings.len(), 192);
    let set_aside = "/var/lib/stemma-agent/apply/record.set-aside: a record of the agent could not be used and was set aside";
    assert!(findings[0].starts_with(set_aside), "it is not left out for findings of labels: {}", findings[0]);
    assert_eq!(findings[1], "label k000 has control characters and is not in labels.env");
    assert_eq!(findings[191], "and 110 more findings; only the first 191 are listed");
}

#[test]
fn report_contains_foreign_labels_of_host_map() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/etc/stemma/node-labels", "zone=a\n");
    let said = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    let observed = said.iter().find_map(|said| if let ApplyMessage::Observed(seen) = said { Some(seen) } else { None });
    let label = observed::ReportedLabel { value: "a".into(), source: "node-labels".into() };
    assert_eq!(observed.map(|seen| &seen.labels), Some(&[("zone".to_owned(), label)].into()));
}

#[test]
fn results_are_split_when_over_message_limit() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = (0..300).fold(TestTaskSet::default(), |set, at| set.file(&format!("f{at}"), &[], &format!("/etc/f{at}"), "x"));
    let told = |said: &[ApplyMessage]| outcomes(said).len();
    assert_eq!(told(&runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)))), 300);
    host.restart();
    assert_eq!(
        told(&runtime().block_on(run_until_idle(&host, &controller, Vec::new()))),
        300,
        "again, until they are acknowledged"
    );
}

#[test]
fn applied_command_runs_once_when_tasks_are_applied() {
    let target = || HostCommand::new(vec!["systemctl".into()], Duration::from_secs(1));
    for (mode, told) in [(Mode::Noop, 0), (Mode::Apply, 1)] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = TestTaskSet::default().file("f", &[], "/f", "x").mode(mode);
        runtime().block_on(async {
            let (sync, apply) = pair();
            let worker = worker(&host, &controller, apply);
            let offers =
                [offer_and_body(&controller, 1, &set), vec![offer_message(&controller, 2, &set.with_release(2))]].concat();
            let worker = worker.with_applied_command(target()).run(std::future::pending());
            let (ended, _) = tokio::join!(worker, exchange(sync, offers));
            ended.unwrap();
        });
        assert_eq!(host.commands_run().len(), told, "{mode:?}");
    }
}

#[test]
fn hooks_run_once_per_change_and_again_when_interrupted() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/etc/stemma/hooks.d/10-tell", "");
    host.chmod("/etc/stemma/hooks.d/10-tell", 0o755);
    let set = TestTaskSet::default().label("tier", "gold").file("f", &[], "/f", "x");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    assert_eq!(host.commands_run().len(), 1);
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    assert_eq!(host.commands_run().len(), 1, "nothing changed since");

    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let earlier = crate::apply::ledger::HookSnapshot {
        labels: [("tier".to_owned(), "lead".to_owned())].into(),
        ..ledger.get(&HOOK_SNAPSHOT).unwrap().unwrap_or_default()
    };
    ledger.put(&HOOK_SNAPSHOT, &earlier).unwrap();
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    let input = String::from_utf8(host.last_command().unwrap().input).unwrap();
    assert_eq!(host.commands_run().len(), 2);
    assert!(input.contains(r#""labels":{"set":{"tier":"gold"},"removed":[]}"#), "{input}");
}

/// Before the fix, hooks ran for a label that was in no file yet, and not again once it was.
#[test]
fn y08_hooks_see_labels_when_written_after_failure() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/etc/stemma/hooks.d/10-tell", "");
    host.chmod("/etc/stemma/hooks.d/10-tell", 0o755);
    let set = |tier: &str| TestTaskSet::default().label("tier", tier).file("f", &[], "/f", "x");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set("gold"))));
    assert_eq!(host.commands_run().len(), 1);
    host.delete("/run/stemma");
    host.put("/run/stemma", "");
    let desired = Some(controller.desired(2, &set("silver").desired()));
    let offer = SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 };
    runtime().block_on(async {
        let (sync, apply) = pair();
        let talk = async {
            let mut sync = sync;
            sync.sender().send(&offer).await.unwrap();
            receive_for(&mut sync, Duration::from_mins(5)).await;
            assert_eq!(host.commands_run().len(), 1, "no file has it");
            host.delete("/run/stemma");
            receive_for(&mut sync, Duration::from_secs(31)).await;
        };
        let (ended, ()) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talk);
        ended.unwrap();
    });
    let input = String::from_utf8(host.last_command().unwrap().input).unwrap();
    assert_eq!(host.commands_run().len(), 2);
    assert!(input.contains(r#""labels":{"set":{"tier":"silver"},"removed":[]}"#), "{input}");
}
