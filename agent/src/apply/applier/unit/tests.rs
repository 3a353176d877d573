//! What a task does with a unit in each state, on an in-memory host: checks, changes, refreshes, failures and crashes.

use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::apply::applier::testing::{block_on, site, task_of};
use crate::apply::ledger::Ledger;
use crate::apply::task::FailureEffect;
use crate::host::memory::{MemoryHost, MemoryUnit, StartBehavior};
use crate::host::system_units::{ActiveState, LoadState};
use crate::host::{CommandResult, ExitKind, Host as _};

const APP: &str = "app.service";

/// Returns a service task with these parameters. It reads the label `color`, which is `blue`.
fn task(parameters: &Value) -> HostTask {
    task_of(("t", "service"), parameters, &[("color", "blue")])
}

/// Returns a task for the unit `app` with these parameters.
fn app(parameters: &Value) -> HostTask {
    let mut all = json!({"unit": "app"});
    all.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
    task(&all)
}

fn check(host: &MemoryHost, task: &HostTask) -> Result<CheckResult, TaskError> {
    block_on(UnitApplier.check(&site(host), task))
}

fn apply(host: &MemoryHost, task: &HostTask) -> Result<ApplyResult, TaskError> {
    block_on(UnitApplier.apply(&site(host), task))
}

fn refresh(host: &MemoryHost, task: &HostTask) -> Result<ApplyResult, TaskError> {
    block_on(UnitApplier.refresh(&site(host), task))
}

/// Returns a host with the unit `app.service` in this state.
fn host_with(active_state: ActiveState, file_state: &str, update: impl FnOnce(&mut MemoryUnit)) -> MemoryHost {
    let (host, mut unit) = (MemoryHost::new(), MemoryUnit::new(active_state, file_state));
    update(&mut unit);
    host.put_unit(APP, unit);
    host
}

/// Masks a unit, as `systemctl mask` does.
fn mask(unit: &mut MemoryUnit) {
    unit.status.load_state = LoadState::Masked;
    unit.status.file_state = "masked".into();
}

/// Each row has the active state, the word for the file state, the parameters, the lines of the diff, and the changes of
/// the apply. The names of the changes are those of the commands of systemctl.
#[test]
fn apply_changes_only_different_parameters() {
    use ActiveState::{Active, Deactivating, Failed, Inactive, Reloading};
    for (active, file_state, parameters, diff, changes) in [
        (Active, "enabled", json!({"state": "running", "enabled": true, "masked": false}), "", &[][..]),
        (Reloading, "disabled", json!({"state": "running", "enabled": false}), "", &[]),
        (Inactive, "static", json!({"state": "stopped", "enabled": false}), "", &[]),
        (Failed, "indirect", json!({"state": "stopped", "enabled": false}), "", &[]),
        (Inactive, "disabled", json!({}), "", &[]),
        (Inactive, "disabled", json!({"state": "running"}), "-state: stopped\n+state: running\n", &["start"]),
        (Failed, "disabled", json!({"state": "running"}), "-state: failed\n+state: running\n", &["reset", "start"]),
        (Deactivating, "disabled", json!({"state": "running"}), "-state: stopping\n+state: running\n", &["start"]),
        (Active, "enabled", json!({"state": "stopped"}), "-state: running\n+state: stopped\n", &["stop"]),
        (Inactive, "disabled", json!({"enabled": true}), "-enabled: false\n+enabled: true\n", &["enable", "reload"]),
        (Inactive, "indirect", json!({"enabled": true}), "-enabled: false (indirect)\n+enabled: true\n", &["enable", "reload"]),
        (
            Inactive,
            "enabled-runtime",
            json!({"enabled": true}),
            "-enabled: true (enabled-runtime)\n+enabled: true\n",
            &["enable", "reload"],
        ),
        (Active, "enabled", json!({"enabled": false}), "-enabled: true\n+enabled: false\n", &["disable", "reload"]),
        (Active, "enabled", json!({"masked": true}), "-masked: false\n+masked: true\n", &["mask", "reload"]),
        (
            Active,
            "enabled",
            json!({"state": "stopped", "enabled": false, "masked": true}),
            "-state: running\n+state: stopped\n-enabled: true\n+enabled: false\n-masked: false\n+masked: true\n",
            &["stop", "disable", "mask", "reload"],
        ),
        (
            Inactive,
            "disabled",
            json!({"state": "running", "enabled": true}),
            "-state: stopped\n+state: running\n-enabled: false\n+enabled: true\n",
            &["enable", "reload", "start"],
        ),
    ] {
        let host = host_with(active, file_state, |_| {});
        let task = app(&parameters);
        let expected_check = match diff {
            "" => CheckResult::Converged,
            lines => CheckResult::Drifted { diff: format!("--- {APP}\n+++ {APP}\n{lines}"), message: String::new() },
        };
        assert_eq!(check(&host, &task).unwrap(), expected_check, "{active:?} {parameters}");
        if !changes.is_empty() {
            let result = apply(&host, &task).unwrap();
            assert!(!result.is_unchanged && result.diff.ends_with(diff), "{result:?}");
        }
        let made = host.take_unit_changes();
        let expected: Vec<String> =
            changes.iter().map(|change| if *change == "reload" { "reload".into() } else { format!("{change} {APP}") }).collect();
        assert_eq!(made, expected, "{active:?} {parameters}");
        assert_eq!(check(&host, &task).unwrap(), CheckResult::Converged, "{active:?} {parameters}");
    }
}

/// Ten units cost ten reads, and a check runs no command.
#[test]
fn check_reads_status_once_and_runs_no_command() {
    let host = host_with(ActiveState::Active, "enabled", |_| {});
    for _ in 0..10 {
        check(&host, &app(&json!({"state": "running", "enabled": true, "masked": false}))).unwrap();
    }
    assert_eq!((host.status_reads(), host.commands_run().len(), host.take_unit_changes().len()), (10, 0, 0));
}

#[test]
fn unit_name_is_rendered_and_completed() {
    let host = MemoryHost::new();
    for (name, unit) in [("app@{{ labels.color }}", "app@blue.service"), ("app.timer", "app.timer"), ("app.socket", "app.socket")]
    {
        host.put_unit(unit, MemoryUnit::new(ActiveState::Inactive, "disabled"));
        apply(&host, &task(&json!({"unit": name, "state": "running"}))).unwrap();
        assert_eq!(host.take_unit_changes(), [format!("start {unit}")]);
    }
    for (name, error) in [("a {{ labels.color }}", "\"a blue.service\""), ("{{ labels.color }}@", "is a template of units")] {
        let message = check(&host, &task(&json!({"unit": name, "state": "running"}))).unwrap_err().message;
        assert!(message.starts_with("parameters.unit: ") && message.ends_with("; nothing was changed"), "{message}");
        assert!(message.contains(error) || message.contains("is not the name of a unit"), "{message}");
    }
}

/// Parameters that contradict each other are refused as the controller refuses them.
#[test]
fn check_refuses_contradicting_parameters() {
    let host = host_with(ActiveState::Active, "enabled", |_| {});
    let message = check(&host, &app(&json!({"state": "running", "masked": true}))).unwrap_err().message;
    assert_eq!(message, "parameters.masked: a masked unit cannot run: remove it, or write `state: stopped`; nothing was changed");
}

/// Each row has the parameters, the change of the unit, and a part of the message. Nothing is changed.
#[test]
fn check_blocks_state_unknown_to_systemd() {
    type Update = fn(&mut MemoryUnit);
    let rows: [(Value, Update, &str); 8] = [
        (json!({"state": "running"}), mask, "is masked, and not by this task: write `masked: false` if it may run"),
        (json!({"enabled": true}), mask, "or remove `enabled: true` from the task"),
        (json!({"enabled": true}), |unit| unit.status.file_state = "static".into(), "has no section [Install]"),
        (json!({"enabled": true}), |unit| unit.status.file_state = "transient".into(), "was made while the system runs"),
        (json!({"enabled": true}), |unit| unit.status.file_state = String::new(), "it has no unit file"),
        (json!({"enabled": false}), |unit| unit.status.file_state = "generated".into(), "is generated from an init script"),
        (
            json!({"state": "running"}),
            |unit| unit.status.load_state = LoadState::Invalid("no ExecStart".into()),
            "systemd cannot use the unit file of app.service: no ExecStart; `systemd-analyze verify app.service`",
        ),
        (json!({"state": "running"}), |unit| unit.status.is_short_lived = true, "ends by itself after its work"),
    ];
    for (parameters, update, expected) in rows {
        let host = host_with(ActiveState::Inactive, "disabled", update);
        let CheckResult::Blocked { message, .. } = check(&host, &app(&parameters)).unwrap() else { panic!("{parameters}") };
        assert!(message.contains(expected), "{message}");
        let error = apply(&host, &app(&parameters)).unwrap_err();
        assert!(error.message.contains(expected) && error.message.ends_with("; nothing was changed"), "{}", error.message);
        assert_eq!(error.effect, FailureEffect::Unchanged);
        assert!(host.take_unit_changes().iter().all(|change| change == "reload"));
    }
}

/// A unit that does not exist is neither running nor enabled. Any unit can be masked.
#[test]
fn missing_unit_fails_only_when_needed() {
    for (parameters, is_converged) in
        [(json!({"state": "stopped", "enabled": false, "masked": false}), true), (json!({"state": "running"}), false)]
    {
        let host = MemoryHost::new();
        match check(&host, &app(&parameters)).unwrap() {
            CheckResult::Converged => assert!(is_converged),
            CheckResult::Drifted { diff, message } => {
                assert!(!is_converged && message.starts_with("systemd has no unit app.service: correct its name"), "{message}");
                assert!(diff.contains("-state: absent\n+state: running\n"), "{diff}");
                let error = apply(&host, &app(&parameters)).unwrap_err();
                assert!(error.message.ends_with("; nothing was changed") && error.effect == FailureEffect::Unchanged);
                assert_eq!(host.take_unit_changes(), ["reload"], "the unit files are read again first");
            }
            other => panic!("{other:?}"),
        }
    }
    let host = host_with(ActiveState::Inactive, "disabled", |unit| {
        unit.status.load_state = LoadState::NotFound;
        unit.next_load_state = Some(LoadState::Loaded);
    });
    apply(&host, &app(&json!({"state": "running"}))).unwrap();
    assert_eq!(host.take_unit_changes(), ["reload", "start app.service"], "the unit file is new");
    let host = MemoryHost::new();
    apply(&host, &app(&json!({"masked": true}))).unwrap();
    assert_eq!(host.take_unit_changes(), ["mask app.service", "reload"]);
}

#[test]
fn apply_unmasks_before_start_when_task_allows() {
    let host = host_with(ActiveState::Inactive, "", mask);
    let task = app(&json!({"state": "running", "enabled": true, "masked": false}));
    let result = apply(&host, &task).unwrap();
    assert_eq!(result.message, "unmasked, enabled, started");
    assert_eq!(host.take_unit_changes(), ["unmask app.service", "reload", "enable app.service", "reload", "start app.service"]);
    let host = host_with(ActiveState::Inactive, "", |unit| {
        mask(unit);
        unit.next_load_state = Some(LoadState::Masked);
    });
    let message = apply(&host, &task).unwrap_err().message;
    assert!(message.contains("its mask remains"), "{message}");
    // A mask until the next boot is not the mask that the task wants.
    let host = host_with(ActiveState::Inactive, "masked-runtime", |unit| unit.status.load_state = LoadState::Masked);
    apply(&host, &app(&json!({"masked": true}))).unwrap();
    assert_eq!(check(&host, &app(&json!({"masked": true}))).unwrap(), CheckResult::Converged);
}

#[test]
fn apply_fails_when_enabling_has_no_effect() {
    let host = host_with(ActiveState::Inactive, "indirect", |unit| unit.enabled_word = Some("indirect"));
    let message = apply(&host, &app(&json!({"enabled": true}))).unwrap_err().message;
    assert!(message.contains("reports \"indirect\"") && message.contains("`Also=`"), "{message}");
}

#[test]
fn apply_reads_unit_files_again_before_start() {
    let host = host_with(ActiveState::Inactive, "disabled", |unit| unit.status.needs_reload = true);
    apply(&host, &app(&json!({"state": "running"}))).unwrap();
    assert_eq!(host.take_unit_changes(), ["reload", "start app.service"]);
}

/// Each row has the behavior of the unit, and the message and the effect of the failed start.
#[test]
fn failed_start_reports_reason_and_journal_lines() {
    for (behavior, expected) in [
        (StartBehavior::Fails, "the start of app.service failed: `systemctl status app.service` shows the reason"),
        (StartBehavior::RestartsForever, "the start of app.service failed: `systemctl status app.service` shows the reason"),
        (StartBehavior::Crashes, "app.service does not run after its start, but is failed: "),
        (StartBehavior::Ends, "app.service does not run after its start, but is stopped: "),
    ] {
        let host = host_with(ActiveState::Inactive, "disabled", |unit| unit.behavior = behavior);
        host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: "bind: address in use\n".into() });
        let error = apply(&host, &app(&json!({"state": "running"}))).unwrap_err();
        assert!(error.message.starts_with(expected), "{}", error.message);
        assert_eq!((error.effect, error.output.as_str()), (FailureEffect::Partial, "bind: address in use\n"));
        let commands = host.commands_run();
        assert_eq!(commands.len(), 1);
        assert_eq!((commands[0][0].as_str(), commands[0].last().unwrap().as_str()), ("journalctl", APP));
    }
    let host = host_with(ActiveState::Inactive, "disabled", |unit| {
        unit.behavior = StartBehavior::Ends;
        unit.status.is_condition_met = false;
    });
    let journal = "app.service was skipped because of an unmet condition check (ConditionHost=web).";
    host.on_run(move |_, _| CommandResult { end: ExitKind::Status(0), output: journal.into() });
    let error = apply(&host, &app(&json!({"state": "running"}))).unwrap_err();
    assert!(error.message.contains("a condition of its unit file is not met"), "{}", error.message);
    assert_eq!(error.output, journal);
    host.update_unit(APP, |unit| unit.status.unmet_conditions = vec!["ConditionHost=web".into()]);
    let message = apply(&host, &app(&json!({"state": "running"}))).unwrap_err().message;
    let expected = "app.service was not started, because its unit file has ConditionHost=web, which is not met on this host: ";
    assert!(message.starts_with(expected), "{message}");
}

/// A start that hangs is requested once. Later runs wait for its end, whatever the task or its retries want.
#[test]
fn slow_start_is_reported_and_not_repeated() {
    let host = host_with(ActiveState::Inactive, "disabled", |unit| unit.behavior = StartBehavior::Hangs);
    let task = app(&json!({"state": "running", "timeout": 5}));
    let error = apply(&host, &task).unwrap_err();
    assert!(error.message.starts_with("the start of app.service has not ended after 5 s; it continues"), "{}", error.message);
    assert_eq!((error.effect, host.take_unit_changes()), (FailureEffect::Unfinished, vec![format!("start {APP}")]));
    let expected_check = CheckResult::Drifted {
        diff: format!("--- {APP}\n+++ {APP}\n-state: starting\n+state: running\n"),
        message: format!("the start of {APP} has not ended"),
    };
    assert_eq!(check(&host, &task).unwrap(), expected_check);
    assert_eq!(apply(&host, &task).unwrap_err().effect, FailureEffect::Unfinished);
    assert_eq!(refresh(&host, &task).unwrap_err().effect, FailureEffect::Unfinished);
    assert_eq!(host.take_unit_changes(), Vec::<String>::new(), "no other start was requested");
    host.update_unit(APP, |unit| unit.behavior = StartBehavior::Works);
    assert_eq!(apply(&host, &task).unwrap().message, "started");
    assert_eq!(host.take_unit_changes(), [format!("await {APP}")]);
    assert_eq!(check(&host, &task).unwrap(), CheckResult::Converged);
}

/// Regression test: only the run that requested the start showed lines of the journal.
#[test]
fn slow_start_shows_journal_since_unit_started() {
    let now = MemoryHost::new().unix_seconds();
    for (since, expected) in [(Some(5), 5), (None, now), (Some(u64::MAX), now)] {
        let host = host_with(ActiveState::Activating, "disabled", |unit| {
            unit.behavior = StartBehavior::Hangs;
            unit.status.transition_since = since;
        });
        host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: "waiting for the database\n".into() });
        let error = apply(&host, &app(&json!({"state": "running", "timeout": 5}))).unwrap_err();
        assert_eq!((error.effect, error.output.as_str()), (FailureEffect::Unfinished, "waiting for the database\n"));
        assert!(host.commands_run()[0].contains(&format!("--since=@{expected}")), "{:?}", host.commands_run());
    }
}

/// systemd starts a unit with `Restart=` again and again. A restart does not wait for the end of its pause.
#[test]
fn unit_in_auto_restart_is_restarted_or_stopped() {
    let restarting = |unit: &mut MemoryUnit| unit.status.sub_state = "auto-restart".into();
    let host = host_with(ActiveState::Activating, "enabled", restarting);
    let CheckResult::Drifted { diff, message } = check(&host, &app(&json!({"state": "running"}))).unwrap() else { panic!() };
    assert!(diff.ends_with("-state: failed, and systemd starts it again\n+state: running\n"), "{diff}");
    assert_eq!(message, "app.service ended, and systemd starts it again and again");
    apply(&host, &app(&json!({"state": "running"}))).unwrap();
    assert_eq!(host.take_unit_changes(), ["restart app.service"]);
    let host = host_with(ActiveState::Activating, "enabled", restarting);
    apply(&host, &app(&json!({"state": "stopped"}))).unwrap();
    assert_eq!(host.take_unit_changes(), ["stop app.service"]);
}

#[test]
fn stop_names_triggering_units() {
    let triggered = |unit: &mut MemoryUnit| unit.status.triggered_by = vec!["app.socket".into(), "app.timer".into()];
    let host = host_with(ActiveState::Active, "enabled", triggered);
    let result = apply(&host, &app(&json!({"state": "stopped"}))).unwrap();
    assert_eq!(result.message, "stopped; app.socket, app.timer can start it again");
    let host = host_with(ActiveState::Active, "enabled", |unit| {
        triggered(unit);
        unit.is_triggered = true;
    });
    let message = apply(&host, &app(&json!({"state": "stopped"}))).unwrap_err().message;
    assert_eq!(message, "app.service was stopped, and is running again: stop app.socket, app.timer too, which can start it");
}

/// Each row has the active state, the parameters, whether the unit can reload, the changes, and the message.
#[test]
fn refresh_restarts_or_reloads_only_active_unit() {
    use ActiveState::{Active, Failed, Inactive};
    for (active, parameters, can_reload, changes, message) in [
        (Active, json!({"state": "running"}), true, &["restart"][..], "restarted"),
        (Active, json!({}), true, &["restart"], "restarted"),
        (Active, json!({"state": "running", "reload": true}), true, &["reload"], "reloaded"),
        (Active, json!({"state": "running", "reload": true}), false, &["restart"], "restarted"),
        // A unit that the task has just started has read its configuration.
        (Inactive, json!({"state": "running"}), false, &["start"], "started"),
        (Failed, json!({"state": "running", "reload": true}), true, &["reset", "start"], "started"),
        (Inactive, json!({}), false, &[], "it is not running, so nothing was restarted"),
        (Active, json!({"state": "stopped"}), false, &["stop"], "stopped"),
    ] {
        let host = host_with(active, "enabled", |unit| unit.status.can_reload = can_reload);
        let result = refresh(&host, &app(&parameters)).unwrap();
        let expected: Vec<_> = changes.iter().map(|change| format!("{change} {APP}")).collect();
        assert_eq!((host.take_unit_changes(), result.message.as_str()), (expected, message), "{active:?} {parameters}");
        assert_eq!(result.is_unchanged, changes.is_empty());
    }
    for (parameters, is_needed) in [
        (json!({"state": "running"}), true),
        (json!({}), true),
        (json!({"state": "stopped"}), false),
        (json!({"masked": true}), false),
    ] {
        assert_eq!(UnitApplier.is_refresh_needed(&app(&parameters)), is_needed, "{parameters}");
    }
}

/// A file task has changed the unit file.
#[test]
fn refresh_reads_changed_unit_file_first() {
    let host = host_with(ActiveState::Active, "enabled", |unit| {
        unit.status.needs_reload = true;
        unit.status.can_reload = true;
    });
    refresh(&host, &app(&json!({"state": "running"}))).unwrap();
    assert_eq!(host.take_unit_changes(), ["reload", "restart app.service"]);
    host.update_unit(APP, |unit| unit.status.needs_reload = true);
    let result = refresh(&host, &app(&json!({"state": "running", "reload": true}))).unwrap();
    assert_eq!(host.take_unit_changes(), ["reload", "reload app.service"]);
    assert_eq!(result.message, "reloaded; its unit file has changed too, which takes effect when it is restarted");
}

/// The path of a drop-in in a directory that is new.
const DROP_IN: &str = "/etc/systemd/system/app.service.d/10.conf";

/// Returns a host with a running unit, and a drop-in that systemd has not read and does not report.
fn host_with_new_drop_in(read_later: &[&str]) -> MemoryHost {
    let host = host_with(ActiveState::Active, "enabled", |unit| {
        unit.status.unit_file = "/usr/lib/systemd/system/app.service".into();
        unit.next_drop_ins = Some(read_later.iter().map(|path| (*path).to_owned()).collect());
    });
    host.put(DROP_IN, "[Service]\nEnvironment=A=1\n");
    host
}

/// Regression test: systemd does not report the first drop-in of a unit, and the unit was restarted with its old definition.
#[test]
fn new_drop_in_is_drift_and_read_before_restart() {
    let running = app(&json!({"state": "running"}));
    let host = host_with_new_drop_in(&[DROP_IN]);
    let CheckResult::Drifted { diff, message } = check(&host, &running).unwrap() else { panic!("it is drift") };
    assert!(diff.ends_with("-unit file or drop-ins: changed\n+unit file or drop-ins: read by systemd\n"), "{diff}");
    assert_eq!(message, "the unit file or a drop-in of app.service has changed since systemd read it");
    let result = apply(&host, &running).unwrap();
    assert!(!result.is_unchanged && result.message.contains("take effect when the unit is restarted"), "{result:?}");
    assert_eq!(host.take_unit_changes(), ["reload"]);
    assert_eq!(check(&host, &running).unwrap(), CheckResult::Converged);
    let host = host_with_new_drop_in(&[DROP_IN]);
    assert_eq!(refresh(&host, &running).unwrap().message, "restarted");
    assert_eq!(host.take_unit_changes(), ["reload", "restart app.service"]);
}

/// systemd always reports a change of a masked unit with drop-ins, and may report one of another unit after each reload.
#[test]
fn change_after_vain_reloads_is_no_drift() {
    let host = host_with_new_drop_in(&[]);
    let (site, task) = (site(&host), app(&json!({"state": "running"})));
    let mut reloads = 0;
    while let CheckResult::Drifted { .. } = block_on(UnitApplier.check(&site, &task)).unwrap() {
        block_on(UnitApplier.apply(&site, &task)).unwrap();
        reloads += 1;
        assert!(reloads <= 3);
    }
    assert_eq!((reloads, host.take_unit_changes().len()), (3, 3));
    let host = host_with(ActiveState::Inactive, "masked", |unit| {
        mask(unit);
        unit.status.needs_reload = true;
    });
    assert_eq!(check(&host, &app(&json!({"masked": true}))).unwrap(), CheckResult::Converged);
}

/// The agent would wait for its own end, and systemd for the end of the agent.
#[test]
fn agent_restarts_own_unit_without_waiting() {
    let host = MemoryHost::new();
    let agent = "stemma-agent.service";
    host.put_unit(agent, MemoryUnit::new(ActiveState::Active, "enabled"));
    host.update_unit(agent, |unit| unit.behavior = StartBehavior::Hangs);
    let task_for = |parameters: &Value| {
        let mut all = json!({"unit": "stemma-agent"});
        all.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
        task(&all)
    };
    let result = refresh(&host, &task_for(&json!({"state": "running"}))).unwrap();
    assert_eq!(host.take_unit_changes(), [format!("queue restart {agent}")]);
    assert_eq!(result.message, "systemd was requested to restart the agent, which does not wait for it");
    for parameters in [json!({"state": "stopped"}), json!({"enabled": false}), json!({"masked": true})] {
        let error = apply(&host, &task_for(&parameters)).unwrap_err();
        assert!(
            error.message.starts_with("parameters.unit: the agent does not stop, disable or mask itself"),
            "{}",
            error.message
        );
        assert_eq!((error.effect, host.take_unit_changes()), (FailureEffect::Unchanged, vec![]));
    }
}

/// The process is killed before each call that changes a unit, and after it. The next process continues where the unit is.
#[test]
fn apply_resumes_after_crash_at_every_step() {
    let updates: [fn(&mut MemoryUnit); 2] = [mask, |unit| unit.status.active_state = ActiveState::Failed];
    for update in updates {
        let task = app(&json!({"state": "running", "enabled": true, "masked": false}));
        let mut crashes = 0;
        for call in 0.. {
            let host = host_with(ActiveState::Inactive, "disabled", update);
            let site = site(&host);
            host.crash_before(call);
            let is_crashed = block_on(UnitApplier.apply(&site, &task)).is_err();
            host.restart();
            if matches!(check(&host, &task).unwrap(), CheckResult::Drifted { .. }) {
                apply(&host, &task).unwrap();
            }
            assert_eq!(check(&host, &task).unwrap(), CheckResult::Converged, "call {call}");
            let starts = host.take_unit_changes().iter().filter(|change| change.starts_with("start")).count();
            assert_eq!(starts, 1, "call {call}");
            if !is_crashed {
                break;
            }
            crashes += 1;
        }
        assert!(crashes > 3, "{crashes}");
    }
}

/// The host has another root, or systemd did not boot it.
#[test]
fn unit_is_refused_on_host_without_systemd() {
    let directory = tempfile::tempdir().unwrap();
    let host = Rc::new(crate::host::real::RealHost::new(directory.path()).unwrap());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host).unwrap()));
    for parameters in [json!({"state": "running"}), json!({"masked": true}), json!({})] {
        let error = block_on(UnitApplier.check(&site, &app(&parameters))).unwrap_err();
        assert!(
            error.message.starts_with("cannot manage app.service: ") && error.message.contains("`--root`"),
            "{}",
            error.message
        );
    }
    let error = block_on(UnitApplier.apply(&site, &app(&json!({"state": "running"})))).unwrap_err();
    assert_eq!(error.effect, FailureEffect::Unchanged);
}
