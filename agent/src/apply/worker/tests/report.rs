//! What the root half tells: how it stands and its results to the network half, changes to hooks.

use super::*;
use crate::apply::ledger::HOOK_SNAPSHOT;
use crate::apply::ledger::tests::result;
use crate::host::Fixed;

#[test]
fn w10_13_a_record_that_is_damaged_while_the_agent_runs_is_a_finding_with_its_result() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = |revision| Set::default().command("c", &[], &["deploy"]).released(revision);
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &set(1))));
    let steps = "/var/lib/stemma-agent/apply/steps";
    // Lost between the start and the task set that comes: the look at a start is over by then.
    host.revive();
    let (sync, apply) = pair();
    let worker = worker(&host, &controller, apply);
    let said = runtime().block_on(async {
        let talking = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            host.put(&format!("{steps}/{}", host.list(steps)[0]), "");
            talk(sync, give(&controller, 2, &set(2))).await
        };
        tokio::join!(worker.run(std::future::pending()), talking).1
    });
    assert_eq!(outcomes(&said).last(), Some(&("c".to_owned(), Outcome::Unknown)), "{said:?}");
    let mut findings = reports(&said).into_iter().flat_map(|report| &report.findings);
    assert!(findings.any(|finding| finding.contains("was set aside")), "{said:?}");
    assert_eq!(host.ran().len(), 1);
}

#[test]
fn f06_on_a_full_disk_the_agent_goes_on_says_so_and_takes_up_when_there_is_room() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let first = Set::default().label("tier", "gold").file("f", &[], "/f", "gold\n");
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &first)));
    let second = Set::default().label("tier", "silver").file("f", &[], "/f", "silver\n");
    host.fill(true);
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let talking = async {
            for message in give(&controller, 2, &second) {
                sync.sender().send(&message).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(host.text("/f").as_deref(), Some("gold\n"));
            host.fill(false);
            talk_for(sync, give(&controller, 2, &second), Duration::from_mins(1)).await
        };
        let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talking);
        ended.unwrap();
        said
    });
    let reports = reports(&said);
    let full = |report: &&Report| {
        report.findings.iter().any(|finding| finding.starts_with("cannot write /var/lib/stemma-agent"))
    };
    assert!(reports.iter().any(full), "{reports:?}");
    assert!(reports.last().is_some_and(|last| last.findings.is_empty()), "{reports:?}");
    assert_eq!(host.text("/f").as_deref(), Some("silver\n"));
}

/// The agent said that it runs tasks, answered an offer with nothing, and each try was another sentence, with another random name.
#[test]
fn y06_an_offer_that_cannot_be_kept_is_refused_and_the_report_says_stuck_once_and_until_there_is_room() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = |text: &str| Set::default().file("f", &[], "/f", text);
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &set("gold\n"))));
    host.fill(true);
    let said = runtime().block_on(async {
        let (sync, apply) = pair();
        let talking = async {
            for revision in 2..5 {
                sync.sender().send(&offer(&controller, revision, &set("silver\n"))).await.unwrap();
            }
            // Some looks, which try again.
            tokio::time::sleep(Duration::from_mins(5)).await;
            host.fill(false);
            talk_for(sync, Vec::new(), Duration::from_mins(1)).await
        };
        let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talking);
        ended.unwrap();
        said
    });
    let refused: Vec<_> = said
        .iter()
        .filter_map(|said| if let FromApply::Refused { reason } = said { Some(reason) } else { None })
        .collect();
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

/// A host that was converged said so for as long as nothing was to be written.
#[test]
fn y06_a_disk_that_takes_nothing_is_told_while_nothing_is_to_be_kept_and_until_it_takes_something() {
    let own = "/var/lib/stemma-agent/apply";
    let full: fn(&MemoryHost, bool) = MemoryHost::fill;
    let read_only: fn(&MemoryHost, bool) =
        |host, is| host.fix("/var/lib/stemma-agent/apply", is.then_some(Fixed::ReadOnly));
    let immutable: fn(&MemoryHost, bool) =
        |host, is| host.fix("/var/lib/stemma-agent/apply", is.then_some(Fixed::ImmutableDirectory));
    for (end, said_by) in [(full, "cannot write "), (read_only, "read-only"), (immutable, "immutable")] {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        let set = Set::default().file("f", &[], "/f", "x");
        runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
        host.revive();
        let said = runtime().block_on(async {
            let (sync, apply) = pair();
            let talking = async {
                // No look for drift is due in that time.
                tokio::time::sleep(Duration::from_mins(5)).await;
                assert_eq!(host.calls(), 0, "to look costs no write");
                end(&host, true);
                tokio::time::sleep(Duration::from_mins(5)).await;
                end(&host, false);
                talk_for(sync, Vec::new(), Duration::from_mins(2)).await
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

/// It said `converged` in every place, and tried again at the next look, half an hour later.
#[test]
fn y06_a_host_whose_labels_cannot_be_written_is_stuck_until_it_has_written_them_by_itself() {
    let own: fn(&MemoryHost) = |host| host.put("/run/stemma", "");
    let map: fn(&MemoryHost) = |host| host.put_special("/etc/stemma/node-labels");
    for (put_in_the_way, path, file) in
        [(own, "/run/stemma", "/run/stemma/labels.json"), (map, "/etc/stemma/node-labels", "/etc/stemma/node-labels")]
    {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        let set = |tier: &str| Set::default().label("tier", tier).file("f", &[], "/f", "x");
        let offer = |revision, tier: &str| {
            let mut desired = set(tier).desired();
            desired.known.labels.values_mut().for_each(|label| label.to_host = true);
            let desired = Some(controller.desired(revision, &desired));
            FromSync::Offer { desired, grants: Vec::new(), acknowledged: 0 }
        };
        let given = [vec![offer(1, "gold")], body(&set("gold"))].concat();
        runtime().block_on(offered(&host, &controller, given));
        let has = |tier: &str| host.text(file).is_some_and(|text| text.contains(tier));
        assert!(has("gold"));
        host.delete(path);
        put_in_the_way(&host);
        let (first, later, then) = runtime().block_on(async {
            let (sync, apply) = pair();
            let talk = async {
                let mut sync = sync;
                sync.sender().send(&offer(2, "silver")).await.unwrap();
                let first = heard_for(&mut sync, Duration::from_secs(5)).await;
                let later = heard_for(&mut sync, Duration::from_mins(5)).await;
                assert!(!has("silver"));
                host.delete(path);
                let then = heard_for(&mut sync, Duration::from_secs(31)).await;
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

/// Its tasks were said to be applied, and what waited for that on the host was started.
#[test]
fn y06_where_no_task_set_was_released_none_is_said_to_be_applied() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let given = |revision, paused| {
        let mut desired = Set::default().label("tier", "gold").desired();
        desired.task_set = stemma_wire::message::desired::TaskSet::default();
        desired.known.paused = paused;
        let desired = Some(controller.desired(revision, &desired));
        let offer = FromSync::Offer { desired, grants: Vec::new(), acknowledged: 0 };
        runtime().block_on(async {
            let (sync, apply) = pair();
            let target = Command::new(vec!["systemctl".into()], Duration::from_secs(1));
            let worker = worker(&host, &controller, apply).when_applied(target).run(std::future::pending());
            let (ended, said) = tokio::join!(worker, talk(sync, vec![offer]));
            ended.unwrap();
            said
        })
    };
    let said = given(1, true);
    assert!(reports(&said).iter().all(|report| report.progress == observed::Progress::Idle), "{said:?}");
    assert_eq!(host.ran().len(), 0);
    assert_eq!(host.text("/run/stemma/labels.json").as_deref(), Some("{\"tier\":\"gold\"}\n"));
    // No level names a release: nothing is kept away any more, and there is nothing to run.
    assert_eq!(progress(&given(2, false)), Some(observed::Progress::Converged));
    assert_eq!(host.ran().len(), 1);
}

/// The host stayed `stuck` over a profile that no task set named any more.
#[test]
fn y06_a_profile_that_cannot_be_read_is_told_until_a_task_set_without_tasks_comes() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    // No order has a task that comes after itself.
    let unreadable = Set::default().command("a", &[0], &["true"]);
    let mut without = Set::default().desired();
    without.task_set.profile = None;
    let next = FromSync::Offer { desired: Some(controller.desired(2, &without)), grants: Vec::new(), acknowledged: 0 };
    let offers = [give(&controller, 1, &unreadable), vec![next]].concat();
    let said = runtime().block_on(offered(&host, &controller, offers));
    let reports = reports(&said);
    let told: Vec<_> = reports.iter().map(|report| report.facts.get("agent.stuck").map(String::as_str)).collect();
    let why = r#""the task profile cannot be read by this agent; upgrade it""#;
    assert!(told.contains(&Some(why)), "{told:?}");
    assert_eq!(told.last(), Some(&None), "{told:?}");
}

/// The paths of the last report's orphans, each with its task.
fn orphans(said: &[FromApply]) -> Vec<(String, String)> {
    let reports = reports(said);
    let text = reports.last().and_then(|report| report.facts.get("agent.orphans")).map_or("[]", String::as_str);
    let list: Vec<std::collections::BTreeMap<String, String>> = serde_json::from_str(text).unwrap();
    list.iter().map(|orphan| (orphan["task"].clone(), orphan["path"].clone())).collect()
}

/// A key stayed on the host when its task was removed, and nobody said so after the write.
#[test]
fn y06_what_a_task_left_is_told_until_it_is_gone_or_a_task_keeps_it_again() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = || Set::default().file("motd", &[], "/etc/motd", "m\n");
    let with_key = || set().file("key", &[], "/root/key", "k\n").file("old", &[], "/etc/old", "o\n");
    let give = |revision, set: &Set| runtime().block_on(offered(&host, &controller, give(&controller, revision, set)));
    let key = vec![("key".to_owned(), "/root/key".to_owned())];

    assert_eq!(orphans(&give(1, &with_key())), []);
    // Of the two that are gone, the path of one is another task's now.
    let taken_over = || set().file("new", &[], "/etc/old", "n\n");
    assert_eq!(orphans(&give(2, &taken_over())), key);
    assert_eq!(host.text("/root/key").as_deref(), Some("k\n"), "nobody takes it away");
    assert_eq!(orphans(&runtime().block_on(offered(&host, &controller, vec![]))), key, "after a restart too");
    // The task that took the path over is named when it is gone.
    let new = ("new".to_owned(), "/etc/old".to_owned());
    assert_eq!(orphans(&give(3, &set())), [vec![new.clone()], key.clone()].concat());
    assert_eq!(orphans(&give(4, &with_key())), [], "kept again");
    let moved = || set().file("key", &[], "/root/other", "k\n");
    let old = ("old".to_owned(), "/etc/old".to_owned());
    assert_eq!(orphans(&give(5, &moved())), [vec![old], key].concat(), "its task names another path");
    let absent = serde_json::json!({"parameters": {"path": "/root/key", "absent": true}});
    host.delete("/etc/old");
    assert_eq!(orphans(&give(6, &moved().task("away", "file", &[], &absent))), [], "both are gone");
    host.put("/etc/old", "somebody's");
    assert_eq!(orphans(&give(7, &moved())), [], "what comes back there is another's");
}

/// It was told for as long as nothing else happened on the host.
#[test]
fn y06_a_file_that_was_left_and_is_removed_is_told_within_a_minute() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let with_key = Set::default().file("key", &[], "/root/key", "k\n");
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &with_key)));
    let key = vec![("key".to_owned(), "/root/key".to_owned())];
    let (first, minute, later) = runtime().block_on(async {
        let (sync, apply) = pair();
        let talk = async {
            let mut sync = sync;
            for offer in give(&controller, 2, &Set::default()) {
                sync.sender().send(&offer).await.unwrap();
            }
            let first = heard_for(&mut sync, Duration::from_secs(2)).await;
            host.delete("/root/key");
            let minute = heard_for(&mut sync, Duration::from_mins(1)).await;
            let later = heard_for(&mut sync, Duration::from_mins(5)).await;
            (first, minute, later)
        };
        let (ended, said) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talk);
        ended.unwrap();
        said
    });
    assert_eq!(orphans(&first), key);
    assert_eq!((reports(&minute).len(), orphans(&minute)), (1, vec![]));
    assert_eq!(later, [], "it is told once");
}

/// What is said in a time.
async fn heard_for(sync: &mut SyncEnd, time: Duration) -> Vec<FromApply> {
    let (until, mut said) = (Instant::now() + time, Vec::new());
    while let Ok(Ok(message)) = tokio::time::timeout_at(until, sync.receive()).await {
        said.push(message);
    }
    said
}

/// The state of an agent before there was such a record: an upgrade writes nothing, and the record is made where the task set is replaced.
#[test]
fn y06_a_state_without_a_record_of_files_gets_one_when_its_task_set_is_replaced() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().file("motd", &[], "/etc/motd", "m\n");
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    runtime().block_on(offered(&host, &controller, vec![]));
    let calls = |host: &MemoryHost| {
        host.revive();
        runtime().block_on(offered(host, &controller, vec![]));
        host.calls()
    };
    let usual = calls(&host);
    let record = "/var/lib/stemma-agent/apply/written-files";
    host.delete(record);
    assert_eq!((calls(&host), host.text(record)), (usual, None), "a look writes nothing");
    let motd = vec![("motd".to_owned(), "/etc/motd".to_owned())];
    assert_eq!(orphans(&runtime().block_on(offered(&host, &controller, give(&controller, 2, &Set::default())))), motd);
}

#[test]
fn y06_a_report_names_64_of_what_tasks_left_and_counts_the_rest() {
    use crate::apply::orphans::fact;

    let orphan = |at: usize, len: usize| Orphan { task: format!("t{at}"), path: format!("/{}{at}", "p".repeat(len)) };
    for (count, len, named) in [(0, 1, None), (1, 1, Some((1, 0))), (64, 1, Some((64, 0))), (70, 1, Some((64, 6)))] {
        let text = fact(&(0..count).map(|at| orphan(at, len)).collect::<Vec<_>>());
        let list: Option<Vec<serde_json::Value>> = text.map(|text| serde_json::from_str(&text).unwrap());
        let counted = list.map(|list| {
            let more = list.last().and_then(|last| last["more"].as_u64()).unwrap_or(0);
            (list.iter().filter(|entry| entry["path"].is_string()).count(), more)
        });
        assert_eq!(counted, named, "{count}");
    }
    // A controller leaves out a fact of more than 16 KiB.
    assert!(fact(&(0..64).map(|at| orphan(at, 4000)).collect::<Vec<_>>()).unwrap().len() <= 16 * 1024);
}

#[test]
fn x01_results_that_went_untaken_are_a_finding_until_later_ones_are_acknowledged() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    for _ in 0..1001 {
        ledger.add_results(vec![result("motd")]).unwrap();
    }
    // Each time by another process.
    let stands_after = |acknowledged: u64| {
        let offer = FromSync::Offer { desired: None, grants: Vec::new(), acknowledged };
        let said = runtime().block_on(offered(&host, &controller, vec![offer]));
        let findings = &reports(&said).pop().unwrap().findings;
        findings.iter().any(|finding| finding.starts_with("1 results of tasks were dropped here before"))
    };
    assert!(stands_after(0));
    assert!(stands_after(1001), "all of those that were there when it was reported");
    assert!(!stands_after(1002), "a later one");
    assert!(!stands_after(1002));
}

/// A message with more findings than a report takes is not read by the other half, and the whole report was lost.
#[test]
fn x01_a_report_with_more_findings_than_are_read_says_how_many_there_are_more() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = Set::default().file("motd", &[], "/etc/motd", "gold\n");
    let set = (0..300).fold(set, |set, at| set.label(&format!("k{at:03}"), "a\nb"));
    host.put("/var/lib/stemma-agent/apply/record.set-aside", "");
    let said = runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    let findings = &reports(&said).pop().unwrap().findings;
    assert_eq!(findings.len(), 192);
    let set_aside =
        "/var/lib/stemma-agent/apply/record.set-aside: a record of the agent could not be used and was set aside";
    assert!(findings[0].starts_with(set_aside), "it is not left out for findings of labels: {}", findings[0]);
    assert_eq!(findings[1], "label k000 has control characters and is not in labels.env");
    assert_eq!(findings[191], "and 110 more findings: the first 191 are named");
}

#[test]
fn what_others_have_in_the_host_label_map_is_observed() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    host.put("/etc/stemma/node-labels", "zone=a\n");
    let said = runtime().block_on(offered(&host, &controller, Vec::new()));
    let observed = said.iter().find_map(|said| if let FromApply::Observed(seen) = said { Some(seen) } else { None });
    let label = observed::ReportedLabel { value: "a".into(), source: "node-labels".into() };
    assert_eq!(observed.map(|seen| &seen.labels), Some(&[("zone".to_owned(), label)].into()));
}

#[test]
fn more_results_than_one_message_holds_are_all_told() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    let set = (0..300).fold(Set::default(), |set, at| set.file(&format!("f{at}"), &[], &format!("/etc/f{at}"), "x"));
    let told = |said: &[FromApply]| outcomes(said).len();
    assert_eq!(told(&runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)))), 300);
    host.revive();
    assert_eq!(
        told(&runtime().block_on(offered(&host, &controller, Vec::new()))),
        300,
        "again, until they are acknowledged"
    );
}

#[test]
fn what_waits_for_the_tasks_is_told_once_and_only_when_they_are_applied() {
    let target = || Command::new(vec!["systemctl".into()], Duration::from_secs(1));
    for (mode, told) in [(Mode::Noop, 0), (Mode::Apply, 1)] {
        let (host, controller) = (MemoryHost::new(), Controller::new());
        let set = Set::default().file("f", &[], "/f", "x").mode(mode);
        runtime().block_on(async {
            let (sync, apply) = pair();
            let worker = worker(&host, &controller, apply);
            let offers = [give(&controller, 1, &set), vec![offer(&controller, 2, &set.released(2))]].concat();
            let worker = worker.when_applied(target()).run(std::future::pending());
            let (ended, _) = tokio::join!(worker, talk(sync, offers));
            ended.unwrap();
        });
        assert_eq!(host.ran().len(), told, "{mode:?}");
    }
}

#[test]
fn hooks_are_told_of_a_change_once_and_after_a_restart_when_it_was_cut_off() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    host.put("/etc/stemma/hooks.d/10-tell", "");
    host.chmod("/etc/stemma/hooks.d/10-tell", 0o755);
    let set = Set::default().label("tier", "gold").file("f", &[], "/f", "x");
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &set)));
    assert_eq!(host.ran().len(), 1);
    runtime().block_on(offered(&host, &controller, Vec::new()));
    assert_eq!(host.ran().len(), 1, "nothing changed since");

    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let earlier = crate::apply::ledger::HookSnapshot {
        labels: [("tier".to_owned(), "lead".to_owned())].into(),
        ..ledger.get(&HOOK_SNAPSHOT).unwrap().unwrap_or_default()
    };
    ledger.put(&HOOK_SNAPSHOT, &earlier).unwrap();
    runtime().block_on(offered(&host, &controller, Vec::new()));
    let input = String::from_utf8(host.last_run().unwrap().input).unwrap();
    assert_eq!(host.ran().len(), 2);
    assert!(input.contains(r#""labels":{"set":{"tier":"gold"},"removed":[]}"#), "{input}");
}

/// They were told of a label that was in no file yet, and not once it was.
#[test]
fn y08_hooks_are_told_of_labels_that_could_not_be_written_once_they_are() {
    let (host, controller) = (MemoryHost::new(), Controller::new());
    host.put("/etc/stemma/hooks.d/10-tell", "");
    host.chmod("/etc/stemma/hooks.d/10-tell", 0o755);
    let set = |tier: &str| Set::default().label("tier", tier).file("f", &[], "/f", "x");
    runtime().block_on(offered(&host, &controller, give(&controller, 1, &set("gold"))));
    assert_eq!(host.ran().len(), 1);
    host.delete("/run/stemma");
    host.put("/run/stemma", "");
    let desired = Some(controller.desired(2, &set("silver").desired()));
    let offer = FromSync::Offer { desired, grants: Vec::new(), acknowledged: 0 };
    runtime().block_on(async {
        let (sync, apply) = pair();
        let talk = async {
            let mut sync = sync;
            sync.sender().send(&offer).await.unwrap();
            heard_for(&mut sync, Duration::from_mins(5)).await;
            assert_eq!(host.ran().len(), 1, "no file has it");
            host.delete("/run/stemma");
            heard_for(&mut sync, Duration::from_secs(31)).await;
        };
        let (ended, ()) = tokio::join!(worker(&host, &controller, apply).run(std::future::pending()), talk);
        ended.unwrap();
    });
    let input = String::from_utf8(host.last_run().unwrap().input).unwrap();
    assert_eq!(host.ran().len(), 2);
    assert!(input.contains(r#""labels":{"set":{"tier":"silver"},"removed":[]}"#), "{input}");
}
