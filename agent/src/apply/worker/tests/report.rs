//! Tests of what the root half of the agent (the part that applies tasks) sends: reports and results to the network
//! half, and changes to hooks.

use stemma_core::status::{OrphanedObject, Orphans};

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
    // The journal entry of the task is damaged after the start of the agent, before the next task set arrives.
    host.restart();
    let (sync, apply) = pair();
    let worker = worker(&host, &controller, apply);
    let messages = runtime().block_on(async {
        let conversation = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            host.put(&format!("{steps}/{}", host.list(steps)[0]), "");
            exchange(sync, offer_and_body(&controller, 2, &set(2))).await
        };
        tokio::join!(worker.run(std::future::pending()), conversation).1
    });
    assert_eq!(outcomes(&messages).last(), Some(&("c".to_owned(), Outcome::Unknown)), "{messages:?}");
    let mut findings = reports(&messages).into_iter().flat_map(|report| &report.findings);
    assert!(findings.any(|finding| finding.contains("was set aside")), "{messages:?}");
    assert_eq!(host.commands_run().len(), 1);
}

#[test]
fn f06_worker_reports_full_disk_and_recovers_when_space_is_freed() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let first = TestTaskSet::default().label("tier", "gold").file("f", &[], "/f", "gold\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &first)));
    let second = TestTaskSet::default().label("tier", "silver").file("f", &[], "/f", "silver\n");
    host.set_full(true);
    let messages = runtime().block_on(async {
        let (sync, apply) = pair();
        let conversation = async {
            for message in offer_and_body(&controller, 2, &second) {
                sync.sender().send(&message).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(host.text("/f").as_deref(), Some("gold\n"));
            host.set_full(false);
            exchange_for(sync, offer_and_body(&controller, 2, &second), Duration::from_mins(1)).await
        };
        let (result, messages) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), conversation);
        result.unwrap();
        messages
    });
    let reports = reports(&messages);
    let has_disk_finding =
        |report: &&Report| report.findings.iter().any(|finding| finding.starts_with("cannot write /var/lib/stemma-agent"));
    assert!(reports.iter().any(has_disk_finding), "{reports:?}");
    assert!(reports.last().is_some_and(|last| last.findings.is_empty()), "{reports:?}");
    assert_eq!(host.text("/f").as_deref(), Some("silver\n"));
}

/// Regression test: with a full disk, the agent reported that it ran tasks, and did not answer the offer. Each retry
/// reported another random file name.
#[test]
fn y06_offer_is_refused_and_reported_once_when_disk_is_full() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = |text: &str| TestTaskSet::default().file("f", &[], "/f", text);
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set("gold\n"))));
    host.set_full(true);
    let messages = runtime().block_on(async {
        let (sync, apply) = pair();
        let conversation = async {
            for revision in 2..5 {
                sync.sender().send(&offer_message(&controller, revision, &set("silver\n"))).await.unwrap();
            }
            // Several reconciles, which try again.
            tokio::time::sleep(Duration::from_mins(5)).await;
            host.set_full(false);
            exchange_for(sync, Vec::new(), Duration::from_mins(1)).await
        };
        let (result, messages) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), conversation);
        result.unwrap();
        messages
    });
    let refusals: Vec<_> = messages
        .iter()
        .filter_map(|message| if let ApplyMessage::Refused { reason } = message { Some(reason) } else { None })
        .collect();
    assert_eq!(refusals.len(), 3, "one refusal for each offer: {messages:?}");
    let reports = reports(&messages);
    let statuses: Vec<_> = reports.iter().map(|report| (report.progress, report.facts.get("agent.stuck"))).collect();
    let stuck_statuses: Vec<_> = statuses.iter().filter(|(_, fact)| fact.is_some()).collect();
    assert_eq!(stuck_statuses.len(), 1, "{statuses:?}");
    assert_eq!(stuck_statuses[0].0, observed::Progress::Failed);
    let stuck_reason: String = serde_json::from_str(stuck_statuses[0].1.unwrap()).unwrap();
    assert!(stuck_reason.starts_with("cannot write /var/lib/stemma-agent/apply"), "{stuck_reason}");
    assert!(refusals.iter().all(|reason| **reason == stuck_reason && !reason.contains(".stemma-")), "{refusals:?}");
    assert_eq!(statuses.last(), Some(&(observed::Progress::Converged, None)), "{statuses:?}");
}

/// Regression test: a converged host whose disk was full reported `converged` as long as it had nothing to write. A
/// read-only file system and an immutable directory have the same effect.
#[test]
fn y06_report_shows_stuck_when_idle_agent_cannot_write() {
    let agent_dir = "/var/lib/stemma-agent/apply";
    let full: fn(&MemoryHost, bool) = MemoryHost::set_full;
    let read_only: fn(&MemoryHost, bool) =
        |host, is_blocked| host.set_blocker("/var/lib/stemma-agent/apply", is_blocked.then_some(ReplaceBlocker::ReadOnly));
    let immutable: fn(&MemoryHost, bool) = |host, is_blocked| {
        host.set_blocker("/var/lib/stemma-agent/apply", is_blocked.then_some(ReplaceBlocker::ImmutableDirectory));
    };
    for (set_blocked, expected_part) in [(full, "cannot write "), (read_only, "read-only"), (immutable, "immutable")] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = TestTaskSet::default().file("f", &[], "/f", "x");
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
        host.restart();
        let messages = runtime().block_on(async {
            let (sync, apply) = pair();
            let conversation = async {
                // No drift check is due in that time.
                tokio::time::sleep(Duration::from_mins(5)).await;
                assert_eq!(host.calls(), 0, "a check writes nothing");
                set_blocked(&host, true);
                tokio::time::sleep(Duration::from_mins(5)).await;
                set_blocked(&host, false);
                exchange_for(sync, Vec::new(), Duration::from_mins(2)).await
            };
            let (result, messages) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), conversation);
            result.unwrap();
            messages
        });
        let reports = reports(&messages);
        let statuses: Vec<_> = reports.iter().map(|report| (report.progress, report.facts.get("agent.stuck"))).collect();
        let stuck_statuses: Vec<_> =
            statuses.iter().filter_map(|(progress, fact)| fact.map(|reason| (*progress, reason))).collect();
        let [(observed::Progress::Failed, reason)] = stuck_statuses[..] else { panic!("{statuses:?}") };
        assert!(reason.contains(agent_dir) && reason.contains(expected_part), "{reason}");
        // The advice for a file task, to name another path, does not apply here.
        assert!(!reason.contains("names another path") && !reason.contains(".stemma-"), "{reason}");
        assert_eq!(statuses.first(), Some(&(observed::Progress::Converged, None)), "{statuses:?}");
        assert_eq!(statuses.last(), Some(&(observed::Progress::Converged, None)), "{statuses:?}");
        assert!(host.list(agent_dir).iter().all(|name| !name.starts_with(".stemma-")), "{:?}", host.list(agent_dir));
    }
}

/// Regression test: if labels could not be written, the host reported `converged`, and tried again only at the next
/// reconcile, half an hour later.
#[test]
fn y06_report_says_stuck_until_labels_are_written() {
    let block_run_dir: fn(&MemoryHost) = |host| host.put("/run/stemma", "");
    let block_map: fn(&MemoryHost) = |host| host.put_special("/etc/stemma/node-labels");
    for (block_path, path, file) in [
        (block_run_dir, "/run/stemma", "/run/stemma/labels.json"),
        (block_map, "/etc/stemma/node-labels", "/etc/stemma/node-labels"),
    ] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = |tier: &str| TestTaskSet::default().label("tier", tier).file("f", &[], "/f", "x");
        let offer = |revision, tier: &str| {
            let mut desired = set(tier).desired();
            desired.known.labels.values_mut().for_each(|label| label.to_host = true);
            let desired = Some(controller.desired(revision, &desired));
            SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 }
        };
        let offers = [vec![offer(1, "gold")], body_messages(&set("gold"))].concat();
        runtime().block_on(run_until_idle(&host, &controller, offers));
        let file_has = |tier: &str| host.text(file).is_some_and(|text| text.contains(tier));
        assert!(file_has("gold"));
        host.delete(path);
        block_path(&host);
        let (first_messages, later_messages, last_messages) = runtime().block_on(async {
            let (sync, apply) = pair();
            let conversation = async {
                let mut sync = sync;
                sync.sender().send(&offer(2, "silver")).await.unwrap();
                let first_messages = receive_for(&mut sync, Duration::from_secs(5)).await;
                let later_messages = receive_for(&mut sync, Duration::from_mins(5)).await;
                assert!(!file_has("silver"));
                host.delete(path);
                let last_messages = receive_for(&mut sync, Duration::from_secs(31)).await;
                (first_messages, later_messages, last_messages)
            };
            let (result, messages) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), conversation);
            result.unwrap();
            messages
        });
        let report = reports(&first_messages).pop().unwrap();
        let reason: String = serde_json::from_str(&report.facts["agent.stuck"]).unwrap();
        assert!(reason.contains(&format!("{path} is a ")) && report.findings.contains(&reason), "{report:?}");
        assert_eq!(report.progress, observed::Progress::Converged, "its tasks are done");
        assert_eq!(report.facts.get("agent.runs_on").map(String::as_str), Some("true"), "controllers read this fact too");
        assert_eq!(later_messages, [], "the reason is reported once");
        let report = reports(&last_messages).pop().unwrap();
        let facts: Vec<&String> = report.facts.keys().collect();
        assert!(facts == ["agent.boot"] && report.findings.is_empty() && file_has("silver"), "{report:?}");
    }
}

/// Regression test: before a task set was released, the host reported its tasks as applied (the progress `Converged`).
/// So the agent ran the command that starts the systemd units that wait for applied tasks.
#[test]
fn y06_report_is_idle_when_no_task_set_was_released() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let send_offer = |revision, paused| {
        let mut desired = TestTaskSet::default().label("tier", "gold").desired();
        // While the node is paused, a task set without a profile counts as not released yet.
        desired.task_set = stemma_wire::message::desired::TaskSet::default();
        desired.known.paused = paused;
        let desired = Some(controller.desired(revision, &desired));
        let offer = SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 };
        runtime().block_on(async {
            let (sync, apply) = pair();
            // The command that starts the units which wait for applied tasks.
            let target = HostCommand::new(vec!["systemctl".into()], Duration::from_secs(1));
            let worker = worker(&host, &controller, apply).with_applied_command(target).run(std::future::pending());
            let (result, messages) = tokio::join!(worker, exchange(sync, vec![offer]));
            result.unwrap();
            messages
        })
    };
    let messages = send_offer(1, true);
    assert!(reports(&messages).iter().all(|report| report.progress == observed::Progress::Idle), "{messages:?}");
    assert_eq!(host.commands_run().len(), 0);
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    // No level names a release, so nothing is withheld any more, and there is nothing to run.
    assert_eq!(progress(&send_offer(2, false)), Some(observed::Progress::Converged));
    assert_eq!(host.commands_run().len(), 1);
}

/// Regression test: the host stayed `stuck` because of an unreadable profile, although the current task set did not
/// name the profile.
#[test]
fn y06_report_names_unreadable_profile_until_set_without_tasks_comes() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    // No order exists if a task depends on itself.
    let unreadable_set = TestTaskSet::default().command("a", &[0], &["true"]);
    let mut state_without_tasks = TestTaskSet::default().desired();
    state_without_tasks.task_set.profile = None;
    let next_offer =
        SyncMessage::Offer { desired: Some(controller.desired(2, &state_without_tasks)), grants: Vec::new(), acknowledged: 0 };
    let offers = [offer_and_body(&controller, 1, &unreadable_set), vec![next_offer]].concat();
    let messages = runtime().block_on(run_until_idle(&host, &controller, offers));
    let reports = reports(&messages);
    let stuck_reasons: Vec<_> = reports.iter().map(|report| report.facts.get("agent.stuck").map(String::as_str)).collect();
    let expected = r#""this agent cannot read the task profile; upgrade the agent""#;
    assert!(stuck_reasons.contains(&Some(expected)), "{stuck_reasons:?}");
    assert_eq!(stuck_reasons.last(), Some(&None), "{stuck_reasons:?}");
}

/// Returns the orphans in the last report (files that a task wrote and that no task manages now), as pairs of task and
/// path.
fn reported_orphans(messages: &[ApplyMessage]) -> Vec<(String, String)> {
    let reports = reports(messages);
    let text = reports.last().and_then(|report| report.facts.get("agent.orphans")).map_or("[]", String::as_str);
    let list: Vec<std::collections::BTreeMap<String, String>> = serde_json::from_str(text).unwrap();
    list.iter().map(|orphan| (orphan["task"].clone(), orphan["path"].clone())).collect()
}

/// Regression test: no report mentioned that a key file remained on the host after its task was removed.
#[test]
fn y06_report_lists_orphan_until_deleted_or_managed_again() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let base_set = || TestTaskSet::default().file("motd", &[], "/etc/motd", "m\n");
    let set_with_key = || base_set().file("key", &[], "/root/key", "k\n").file("old", &[], "/etc/old", "o\n");
    let send_set = |revision, set: &TestTaskSet| {
        runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, revision, set)))
    };
    let key_orphan = vec![("key".to_owned(), "/root/key".to_owned())];

    assert_eq!(reported_orphans(&send_set(1, &set_with_key())), []);
    // The tasks `key` and `old` are removed. Another task, `new`, now manages the path of `old`.
    let set_with_new_task = || base_set().file("new", &[], "/etc/old", "n\n");
    assert_eq!(reported_orphans(&send_set(2, &set_with_new_task())), key_orphan);
    assert_eq!(host.text("/root/key").as_deref(), Some("k\n"), "the file is not deleted");
    assert_eq!(
        reported_orphans(&runtime().block_on(run_until_idle(&host, &controller, vec![]))),
        key_orphan,
        "after a restart too"
    );
    // Once `new` is removed too, the orphan names `new`, not `old`.
    let new_orphan = ("new".to_owned(), "/etc/old".to_owned());
    assert_eq!(reported_orphans(&send_set(3, &base_set())), [vec![new_orphan.clone()], key_orphan.clone()].concat());
    assert_eq!(reported_orphans(&send_set(4, &set_with_key())), [], "tasks manage both files again");
    let set_with_moved_key = || base_set().file("key", &[], "/root/other", "k\n");
    let old_orphan = ("old".to_owned(), "/etc/old".to_owned());
    assert_eq!(
        reported_orphans(&send_set(5, &set_with_moved_key())),
        [vec![old_orphan], key_orphan].concat(),
        "the task of the key names another path"
    );
    let absent = serde_json::json!({"parameters": {"path": "/root/key", "absent": true}});
    host.delete("/etc/old");
    assert_eq!(
        reported_orphans(&send_set(6, &set_with_moved_key().task("away", "file", &[], &absent))),
        [],
        "both files no longer exist"
    );
    host.put("/etc/old", "somebody's");
    assert_eq!(
        reported_orphans(&send_set(7, &set_with_moved_key())),
        [],
        "a file that appears at the path later belongs to another program"
    );
}

/// Regression test: a deleted orphan was reported until something else changed on the host.
#[test]
fn y06_report_drops_orphan_within_a_minute_when_deleted() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set_with_key = TestTaskSet::default().file("key", &[], "/root/key", "k\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set_with_key)));
    let key_orphan = vec![("key".to_owned(), "/root/key".to_owned())];
    let (first_messages, messages_of_minute, later_messages) = runtime().block_on(async {
        let (sync, apply) = pair();
        let conversation = async {
            let mut sync = sync;
            for offer in offer_and_body(&controller, 2, &TestTaskSet::default()) {
                sync.sender().send(&offer).await.unwrap();
            }
            let first_messages = receive_for(&mut sync, Duration::from_secs(2)).await;
            host.delete("/root/key");
            let messages_of_minute = receive_for(&mut sync, Duration::from_mins(1)).await;
            let later_messages = receive_for(&mut sync, Duration::from_mins(5)).await;
            (first_messages, messages_of_minute, later_messages)
        };
        let (result, messages) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), conversation);
        result.unwrap();
        messages
    });
    assert_eq!(reported_orphans(&first_messages), key_orphan);
    assert_eq!((reports(&messages_of_minute).len(), reported_orphans(&messages_of_minute)), (1, vec![]));
    assert_eq!(later_messages, [], "the change is reported once");
}

/// Returns the messages that arrive within `time`.
async fn receive_for(sync: &mut SyncEnd, time: Duration) -> Vec<ApplyMessage> {
    let (deadline, mut messages) = (Instant::now() + time, Vec::new());
    while let Ok(Ok(message)) = tokio::time::timeout_at(deadline, sync.receive()).await {
        messages.push(message);
    }
    messages
}

/// Covers an upgrade from an agent without the record of written files. A start of the new agent does not create the
/// record, and writes no more than any other start. The agent creates the record when the task set is replaced.
#[test]
fn y06_file_record_is_created_when_task_set_is_replaced() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("motd", &[], "/etc/motd", "m\n");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    runtime().block_on(run_until_idle(&host, &controller, vec![]));
    let count_calls = |host: &MemoryHost| {
        host.restart();
        runtime().block_on(run_until_idle(host, &controller, vec![]));
        host.calls()
    };
    let usual_calls = count_calls(&host);
    let record = "/var/lib/stemma-agent/apply/left-objects";
    host.delete(record);
    assert_eq!((count_calls(&host), host.text(record)), (usual_calls, None), "a restart without the record writes nothing more");
    let expected = vec![("motd".to_owned(), "/etc/motd".to_owned())];
    assert_eq!(
        reported_orphans(&runtime().block_on(run_until_idle(
            &host,
            &controller,
            offer_and_body(&controller, 2, &TestTaskSet::default())
        ))),
        expected
    );
}

#[test]
fn y06_report_names_64_orphans_and_counts_rest() {
    use crate::apply::orphans::{OrphanList, orphans_fact};

    let orphan = |index: usize, len: usize| OrphanedObject {
        task: format!("t{index}"),
        kind: "file".into(),
        name: format!("/{}{index}", "p".repeat(len)),
        is_secret: false,
        kept: None,
    };
    let fact = |count: usize, len: usize| {
        let objects = (0..count).map(|index| orphan(index, len)).collect();
        orphans_fact(&OrphanList { objects, ..OrphanList::default() }, &[])
    };
    // The number of orphans, the length of each path, and the expected numbers of listed and of further orphans.
    for (count, len, expected) in [(0, 1, None), (1, 1, Some((1, 0))), (64, 1, Some((64, 0))), (70, 1, Some((64, 6)))] {
        let text = fact(count, len);
        let list: Option<Vec<serde_json::Value>> = text.map(|text| serde_json::from_str(&text).unwrap());
        let listed_and_more = list.map(|list| {
            let more = list.last().and_then(|last| last["more"].as_u64()).unwrap_or(0);
            (list.iter().filter(|entry| entry["path"].is_string()).count(), more)
        });
        assert_eq!(listed_and_more, expected, "{count}");
    }
    // A controller drops a fact of more than 16 KiB.
    assert!(fact(64, 4000).unwrap().len() <= 16 * 1024);
    let tree = OrphanList { objects: vec![orphan(0, 1)], unlisted_count: 20_000, omitted_count: 0 };
    assert_eq!(Orphans::from_fact(&orphans_fact(&tree, &[]).unwrap()).unlisted_count, 20_000);
}

#[test]
fn x01_report_counts_dropped_results_until_later_ones_are_acknowledged() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    // The ledger stores at most 1000 batches of results, so it drops the first one.
    for _ in 0..1001 {
        ledger.add_results(vec![result("motd")]).unwrap();
    }
    // Each check uses a new process.
    let is_reported_after = |acknowledged: u64| {
        let offer = SyncMessage::Offer { desired: None, grants: Vec::new(), acknowledged };
        let messages = runtime().block_on(run_until_idle(&host, &controller, vec![offer]));
        let findings = &reports(&messages).pop().unwrap().findings;
        findings.iter().any(|finding| finding.starts_with("1 task results were dropped on this host before"))
    };
    assert!(is_reported_after(0));
    assert!(is_reported_after(1001), "the finding remains while no result from after its report is acknowledged");
    assert!(!is_reported_after(1002), "the finding ends when a later result is acknowledged");
    assert!(!is_reported_after(1002));
}

/// The network half of the agent refuses a report with too many findings. Regression test: the whole report was lost.
#[test]
fn x01_report_counts_findings_over_limit() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("motd", &[], "/etc/motd", "gold\n");
    // Each label has a line end, so there is a finding about it.
    let set = (0..300).fold(set, |set, index| set.label(&format!("k{index:03}"), "a\nb"));
    host.put("/var/lib/stemma-agent/apply/record.set-aside", "");
    let messages = runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)));
    let findings = &reports(&messages).pop().unwrap().findings;
    assert_eq!(findings.len(), 192);
    let set_aside = "/var/lib/stemma-agent/apply/record.set-aside: a record of the agent could not be used and was set aside";
    assert!(findings[0].starts_with(set_aside), "findings of labels do not displace this finding: {}", findings[0]);
    assert_eq!(findings[1], "label k000 has control characters and is not in labels.env");
    assert_eq!(findings[191], "and 110 more findings; only the first 191 are listed");
}

#[test]
fn report_contains_foreign_labels_of_host_map() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/etc/stemma/node-labels", "zone=a\n");
    let messages = runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    let sent_observation = messages
        .iter()
        .find_map(|message| if let ApplyMessage::Observed(observation) = message { Some(observation) } else { None });
    let label = observed::ReportedLabel { value: "a".into(), source: "node-labels".into() };
    assert_eq!(sent_observation.map(|observation| &observation.labels), Some(&[("zone".to_owned(), label)].into()));
}

/// One message has at most 256 results, so 300 results need two messages.
#[test]
fn results_are_complete_when_over_message_limit() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set =
        (0..300).fold(TestTaskSet::default(), |set, index| set.file(&format!("f{index}"), &[], &format!("/etc/f{index}"), "x"));
    let result_count = |messages: &[ApplyMessage]| outcomes(messages).len();
    assert_eq!(result_count(&runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set)))), 300);
    host.restart();
    assert_eq!(
        result_count(&runtime().block_on(run_until_idle(&host, &controller, Vec::new()))),
        300,
        "all results are sent again until they are acknowledged"
    );
}

#[test]
fn applied_command_runs_once_when_tasks_are_applied() {
    let applied_command = || HostCommand::new(vec!["systemctl".into()], Duration::from_secs(1));
    for (mode, command_count) in [(Mode::Noop, 0), (Mode::Apply, 1)] {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        let set = TestTaskSet::default().file("f", &[], "/f", "x").mode(mode);
        runtime().block_on(async {
            let (sync, apply) = pair();
            let worker = worker(&host, &controller, apply);
            let offers =
                [offer_and_body(&controller, 1, &set), vec![offer_message(&controller, 2, &set.with_release(2))]].concat();
            let worker = worker.with_applied_command(applied_command()).run(std::future::pending());
            let (result, _) = tokio::join!(worker, exchange(sync, offers));
            result.unwrap();
        });
        assert_eq!(host.commands_run().len(), command_count, "{mode:?}");
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
    // As if the agent was interrupted before its hooks ran: the snapshot still has an earlier label.
    let earlier_snapshot = crate::apply::ledger::HookSnapshot {
        labels: [("tier".to_owned(), "lead".to_owned())].into(),
        ..ledger.get(&HOOK_SNAPSHOT).unwrap().unwrap_or_default()
    };
    ledger.put(&HOOK_SNAPSHOT, &earlier_snapshot).unwrap();
    runtime().block_on(run_until_idle(&host, &controller, Vec::new()));
    let input = String::from_utf8(host.last_command().unwrap().input).unwrap();
    assert_eq!(host.commands_run().len(), 2);
    assert!(input.contains(r#""labels":{"set":{"tier":"gold"},"removed":[]}"#), "{input}");
}

/// Regression test: hooks ran for a label before a file had the label, and did not run again when a file had it.
#[test]
fn y08_hooks_see_labels_when_written_after_failure() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.put("/etc/stemma/hooks.d/10-tell", "");
    host.chmod("/etc/stemma/hooks.d/10-tell", 0o755);
    let set = |tier: &str| TestTaskSet::default().label("tier", tier).file("f", &[], "/f", "x");
    runtime().block_on(run_until_idle(&host, &controller, offer_and_body(&controller, 1, &set("gold"))));
    assert_eq!(host.commands_run().len(), 1);
    host.delete("/run/stemma");
    // A file in place of the directory prevents the agent from writing the labels.
    host.put("/run/stemma", "");
    let desired = Some(controller.desired(2, &set("silver").desired()));
    let offer = SyncMessage::Offer { desired, grants: Vec::new(), acknowledged: 0 };
    runtime().block_on(async {
        let (sync, apply) = pair();
        let conversation = async {
            let mut sync = sync;
            sync.sender().send(&offer).await.unwrap();
            receive_for(&mut sync, Duration::from_mins(5)).await;
            assert_eq!(host.commands_run().len(), 1, "no hook runs before a file has the label");
            host.delete("/run/stemma");
            // The agent tries again after 30 seconds.
            receive_for(&mut sync, Duration::from_secs(31)).await;
        };
        let (result, ()) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), conversation);
        result.unwrap();
    });
    let input = String::from_utf8(host.last_command().unwrap().input).unwrap();
    assert_eq!(host.commands_run().len(), 2);
    assert!(input.contains(r#""labels":{"set":{"tier":"silver"},"removed":[]}"#), "{input}");
}
