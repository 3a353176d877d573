//! The reboot of a host by a lease of its controller: what it waits for, when it is refused, and that a lease is used once.

use super::*;

/// Returns the messages of a controller that offers the task set at revision 1, and then grants a reboot for 600 s.
fn offer_with_reboot(controller: &TestController, set: &TestTaskSet, revision: u64) -> Vec<SyncMessage> {
    [offer_and_body(controller, 1, set), vec![reboot_message(controller, revision)]].concat()
}

/// Returns the message with a lease for a reboot.
fn reboot_message(controller: &TestController, revision: u64) -> SyncMessage {
    let grants = vec![controller.grant(revision, Grant::Lease { kind: LeaseKind::Reboot, duration_s: 600 })];
    SyncMessage::Offer { desired: None, grants, acknowledged: 0 }
}

/// Runs the root half of the agent with these messages, and for `duration` after it has sent the last one. The runtime's
/// clock is paused, and the clock of the host follows it.
fn run_for(host: &MemoryHost, controller: &TestController, offers: &[SyncMessage], duration: Duration) -> Vec<ApplyMessage> {
    runtime().block_on(async {
        let (sync, apply) = pair();
        let conversation = async {
            let mut sync = sync;
            for offer in offers {
                sync.sender().send(offer).await.unwrap();
                // The agent handles the message before the next one arrives.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let mut messages = Vec::new();
            let end = Instant::now() + duration;
            while Instant::now() < end {
                if let Ok(Ok(message)) = tokio::time::timeout(Duration::from_secs(5), sync.receive()).await {
                    messages.push(message);
                } else {
                    host.advance_time(Duration::from_secs(5));
                }
            }
            messages
        };
        let (result, messages) = tokio::join!(worker(host, controller, apply).run(std::future::pending()), conversation);
        result.unwrap();
        messages
    })
}

/// Returns the number of times that the host was told to reboot.
fn reboot_count(host: &MemoryHost) -> usize {
    host.commands_run().iter().filter(|words| *words == &["systemctl", "reboot"]).count()
}

/// Returns the reason in the last report why the granted reboot has not happened.
fn problem(messages: &[ApplyMessage]) -> Option<String> {
    let report = reports(messages).pop()?;
    stemma_core::status::RebootReport::from_facts(&report.facts)?.problem
}

#[test]
fn host_reboots_once_per_lease_and_tasks_continue_after_boot() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().task("boot", "reboot", &[], &serde_json::json!({})).file("after", &[0], "/after", "x");
    let messages = run_for(&host, &controller, &offer_and_body(&controller, 1, &set), Duration::from_secs(10));
    let report = reports(&messages).pop().unwrap();
    let wish: serde_json::Value = serde_json::from_str(&report.facts["agent.reboot"]).unwrap();
    assert_eq!((report.progress, &wish["tasks"][0]["task"]), (observed::Progress::Waiting, &"boot".into()));
    assert_eq!(reboot_count(&host), 0, "a task never reboots the host");

    let messages = run_for(&host, &controller, &[reboot_message(&controller, 5)], Duration::from_secs(30));
    assert_eq!((reboot_count(&host), problem(&messages)), (1, None));
    host.reboot();
    // A compromised network half sends the old lease again, and an even older one.
    let replayed = vec![reboot_message(&controller, 5), reboot_message(&controller, 4)];
    let messages = run_for(&host, &controller, &replayed, Duration::from_secs(30));
    assert_eq!(reboot_count(&host), 1);
    assert_eq!((progress(&messages), host.text("/after").as_deref()), (Some(observed::Progress::Converged), Some("x")));
    assert!(!reports(&messages).pop().unwrap().facts.contains_key("agent.reboot"));
    run_for(&host, &controller, &[reboot_message(&controller, 6)], Duration::from_secs(30));
    assert_eq!(reboot_count(&host), 2, "a later lease also reboots a host that does not ask for it");
}

#[test]
fn reboot_waits_for_running_task_and_starts_no_other() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.slow_down_commands(Duration::from_secs(20));
    let set = TestTaskSet::default().command("slow", &[], &["slow"]).file("after", &[0], "/after", "x");
    let messages = run_for(&host, &controller, &offer_with_reboot(&controller, &set, 2), Duration::from_mins(1));
    let problems: Vec<_> = reports(&messages).into_iter().filter_map(|report| report.facts.get("agent.reboot")).collect();
    assert!(problems.iter().any(|fact| fact.contains("running tasks must end first: slow")), "{problems:?}");
    assert_eq!((reboot_count(&host), outcomes(&messages)), (1, vec![("slow".to_owned(), Outcome::Changed)]));
    assert_eq!(host.text("/after"), None, "no task starts before the boot");
}

/// The lease lasts 600 s. The first program inhibits the shutdown for a part of it, the second one for longer.
#[test]
fn reboot_obeys_inhibitors_and_gives_up_when_lease_ends() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    host.set_shutdown_blockers(&["apt (process 7): an upgrade"]);
    let messages = run_for(&host, &controller, &offer_with_reboot(&controller, &set, 2), Duration::from_mins(1));
    assert_eq!(problem(&messages).as_deref(), Some("it is inhibited by apt (process 7): an upgrade"));
    assert_eq!(reboot_count(&host), 0);

    let offers = vec![reboot_message(&controller, 3)];
    let messages = run_for(&host, &controller, &offers, Duration::from_secs(700));
    let expected = "it could not begin in time: it is inhibited by apt (process 7): an upgrade";
    assert_eq!(problem(&messages).as_deref(), Some(expected));
    host.set_shutdown_blockers(&[]);
    run_for(&host, &controller, &offers, Duration::from_mins(1));
    assert_eq!(reboot_count(&host), 1, "a lease that was not used is still valid when it arrives again");
}

/// Regression test: a lease that waited was used after the restore of the store that had granted it.
#[test]
fn lease_ends_with_epoch_and_tasks_run_again() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    host.set_shutdown_blockers(&["apt (process 7): an upgrade"]);
    let new_epoch = Epoch([2; 16]);
    let mut state = controller.desired_for(NODE, new_epoch, 1, &set.desired());
    state.epoch_change = Some(controller.epoch_change(EPOCH, new_epoch, 0));
    let restored = SyncMessage::Offer { desired: Some(state), grants: Vec::new(), acknowledged: 0 };
    let offers = [offer_with_reboot(&controller, &set, 2), vec![restored]].concat();
    let messages = run_for(&host, &controller, &offers, Duration::from_secs(30));
    assert_eq!((problem(&messages), progress(&messages)), (None, Some(observed::Progress::Converged)));
    assert_eq!(host.text("/f").as_deref(), Some("x"));
}

#[test]
fn reboot_is_refused_when_host_changes_nothing_or_is_paused() {
    let refusal = |set: TestTaskSet, paused: bool| {
        let (host, controller) = (MemoryHost::new(), TestController::new());
        if paused {
            let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
            ledger.put(&LOCAL_STATE, &LocalState { paused, ..LocalState::default() }).unwrap();
        }
        let messages = run_for(&host, &controller, &offer_with_reboot(&controller, &set, 2), Duration::from_secs(30));
        assert_eq!(reboot_count(&host), 0);
        problem(&messages).unwrap()
    };
    let set = || TestTaskSet::default().file("f", &[], "/f", "x");
    for mode in [Mode::Observe, Mode::Noop] {
        assert!(refusal(set().mode(mode), false).starts_with("the mode of this host is not apply"));
    }
    assert!(refusal(set(), true).starts_with("the agent is paused on this host"));
}

#[test]
fn failed_reboot_is_reported_and_tasks_run_again() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.on_run(|_, command| {
        let status = i32::from(command.argv[0] == "systemctl");
        CommandResult { end: ExitKind::Status(status), output: "Call to Reboot failed: Access denied\n".into() }
    });
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    let messages = run_for(&host, &controller, &offer_with_reboot(&controller, &set, 2), Duration::from_mins(1));
    let expected = "`systemctl reboot` ended with status 1: Call to Reboot failed: Access denied";
    assert_eq!((reboot_count(&host), problem(&messages).as_deref()), (1, Some(expected)));
    assert_eq!((progress(&messages), host.text("/f").as_deref()), (Some(observed::Progress::Converged), Some("x")));
}

/// systemd has accepted the request, and the machine does not go down.
#[test]
fn missing_reboot_is_reported_after_timeout_of_task() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let fields = serde_json::json!({"parameters": {"timeout": 60}});
    let set = TestTaskSet::default().task("boot", "reboot", &[], &fields);
    run_for(&host, &controller, &offer_and_body(&controller, 1, &set), Duration::from_secs(10));
    let messages = run_for(&host, &controller, &[reboot_message(&controller, 2)], Duration::from_secs(40));
    assert_eq!((reboot_count(&host), problem(&messages)), (1, None));
    let messages = run_for(&host, &controller, &[reboot_message(&controller, 3)], Duration::from_secs(90));
    assert_eq!(
        (reboot_count(&host), problem(&messages).as_deref()),
        (2, Some("the host has not gone down in time after `systemctl reboot`"))
    );
}
