//! When a command runs and with which arguments, on an in-memory host: guards, the journal, parameters.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};
use stemma_wire::message::desired::{InputValue, ProfileTask};

use super::*;
use crate::apply::applier::testing::{block_on, site, task_with_fields};
use crate::apply::ledger::Ledger;
use crate::host::memory::MemoryHost;

/// Returns the site of an agent that has just started, after another agent was killed.
fn restarted_site(host: &MemoryHost) -> Site {
    let site = site(host);
    block_on(Box::pin(site.left.search()));
    site
}

/// Returns a shell task `t` with these fields. The task reads the label `tier`, whose value is the argument `tier`.
fn task(fields: &Value, tier: &str) -> HostTask {
    task_with_fields(("t", "shell"), fields, &[("tier", tier)])
}

fn check(host: &MemoryHost, task: &HostTask) -> Result<CheckResult, TaskError> {
    block_on(ShellApplier.check(&site(host), task))
}

fn apply(host: &MemoryHost, task: &HostTask) -> Result<ApplyResult, TaskError> {
    block_on(ShellApplier.apply(&site(host), task))
}

fn is_converged(host: &MemoryHost, task: &HostTask) -> bool {
    check(host, task).unwrap() == CheckResult::Converged
}

/// The value of the label contains characters that a shell would interpret. The parameter `cmd` is not a template, so
/// its text is unchanged.
#[test]
fn command_passes_value_as_one_argument_or_quoted() {
    let host = MemoryHost::new();
    let tier = "gold; rm -rf /\n'";
    for (parameters, argv) in [
        (json!({"command": ["echo", "{{ labels.tier }}"]}), vec!["echo", "gold; rm -rf /\n'"]),
        (json!({"script": "echo {{ labels.tier }}"}), vec!["/bin/sh", "-c", "echo 'gold; rm -rf /\n'\"'\"''"]),
        (json!({"cmd": "echo {{ labels.tier }}"}), vec!["/bin/sh", "-c", "echo {{ labels.tier }}"]),
    ] {
        apply(&host, &task(&json!({"parameters": parameters}), tier)).unwrap();
        let words = host.commands_run().pop().unwrap();
        if words[1] == "-c" && words[2].contains('\'') {
            // Quoting is tested in the render crate. Here it only matters that the value is one word.
            assert!(words[2].starts_with("echo 'gold; rm -rf /\n'"), "{words:?}");
        } else {
            assert_eq!(words, argv);
        }
    }
}

#[test]
fn command_runs_once_per_content_when_unguarded() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": ["deploy", "{{ labels.tier }}"]}});
    let gold = task(&fields, "gold");
    assert!(!is_converged(&host, &gold));
    apply(&host, &gold).unwrap();
    assert!(is_converged(&host, &gold));
    assert!(!is_converged(&host, &task(&fields, "silver")), "a task with other inputs has not run yet");
}

#[test]
fn check_returns_unknown_when_interrupted_unless_repeatable() {
    let host = MemoryHost::new();
    let fields = |on_interrupt: &str| json!({"on_interrupt": on_interrupt, "parameters": {"command": ["deploy"]}});
    for (on_interrupt, is_unknown) in [("unknown", true), ("again", false)] {
        let task = task(&fields(on_interrupt), "gold");
        let step = Step { task: "t".into(), content: task.content, state: StepState::Begun };
        site(&host).ledger.set_step(&step).unwrap();
        match check(&host, &task) {
            Err(error) => assert!(
                is_unknown && error.effect == FailureEffect::Unknown && error.message.contains("resolve-unknown t done|again")
            ),
            Ok(result) => assert!(!is_unknown && result != CheckResult::Converged),
        }
    }
}

#[test]
fn apply_journals_failure_when_command_fails() {
    let host = MemoryHost::new();
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(3), output: "no".into() });
    let task = task(&json!({"parameters": {"command": ["deploy"]}}), "gold");
    let error = apply(&host, &task).unwrap_err();
    assert_eq!((error.message.as_str(), error.output.as_str()), ("the command ended with status 3", "no"));
    assert_eq!(site(&host).ledger.step("t").unwrap().unwrap().state, StepState::Failed);
    assert!(!is_converged(&host, &task));
}

/// The unit is recorded before the command starts. If nobody knows how the command ended, the journal entry remains, so
/// that the command does not run again.
#[test]
fn unit_of_command_is_recorded_until_end_is_recorded() {
    let recorded_unit = |host: &MemoryHost| site(host).ledger.started_unit("t").unwrap();
    for loses_ends in [false, true] {
        let host = MemoryHost::new();
        host.use_units(loses_ends);
        host.on_run(move |host, command| {
            assert_eq!(recorded_unit(host), command.unit, "the unit is recorded when its command runs");
            CommandResult { end: ExitKind::Status(0), output: String::new() }
        });
        let released_steps = Rc::new(RefCell::new(Vec::new()));
        let steps = Rc::clone(&released_steps);
        host.on_release(move |host| steps.borrow_mut().push(site(host).ledger.step("t").unwrap().unwrap().state));
        let task = task(&json!({"parameters": {"command": ["deploy"]}}), "gold");
        let result = apply(&host, &task);
        let step = site(&host).ledger.step("t").unwrap().unwrap();
        // If the agent is killed before it has recorded the end, the next agent reads it from the unit.
        assert_eq!(*released_steps.borrow(), if loses_ends { vec![] } else { vec![StepState::Done] });
        if loses_ends {
            assert_eq!((result.unwrap_err().effect, step.state), (FailureEffect::Unknown, StepState::Begun));
            assert_eq!(check(&host, &task).unwrap_err().effect, FailureEffect::Unknown);
        } else {
            result.unwrap();
            assert_eq!((recorded_unit(&host), step.state), (None, StepState::Done));
        }
    }
}

/// An earlier agent was killed while its command ran. The command continued, and the check waits for its end. The journal
/// entry may be of an older definition of the task.
#[test]
fn check_records_end_of_command_left_by_earlier_agent() {
    let old = task(&json!({"parameters": {"command": ["deploy", "{{ labels.tier }}"]}}), "gold");
    let new = task(&json!({"parameters": {"command": ["deploy", "{{ labels.tier }}"]}}), "silver");
    for (end, is_old_converged) in [(ExitKind::Status(0), true), (ExitKind::Status(1), false), (ExitKind::Signal(9), false)] {
        for (checked, is_converged) in [(&old, is_old_converged), (&new, false)] {
            let host = MemoryHost::new();
            site(&host).ledger.set_step(&Step { task: "t".into(), content: old.content, state: StepState::Begun }).unwrap();
            host.leave_command("t", end);
            let site = restarted_site(&host);
            if !is_old_converged {
                let error = block_on(ShellApplier.check(&site, checked)).unwrap_err();
                assert!(error.message.contains("the command that an earlier agent started"), "{error:?}");
            }
            let result = block_on(ShellApplier.check(&site, checked)).unwrap();
            if let CheckResult::Completed(result) = &result {
                assert_eq!(result.output, "said\n");
            }
            assert_eq!(matches!(result, CheckResult::Completed(_)), is_converged, "{end:?}: {result:?}");
            let expected = if is_old_converged { StepState::Done } else { StepState::Failed };
            assert_eq!(site.ledger.step("t").unwrap().unwrap().state, expected);
            assert_eq!(host.commands_run().len(), 0);
        }
    }
}

/// While no agent runs, a check cannot know how the command will end. It must not advise to resolve the task.
#[test]
fn check_names_unit_of_command_without_agent() {
    let host = MemoryHost::new();
    host.use_units(true);
    let task = task(&json!({"parameters": {"command": ["deploy"]}}), "gold");
    apply(&host, &task).unwrap_err();
    let advice = check(&host, &task).unwrap_err();
    assert!(advice.message.contains("resolve-unknown"), "{advice:?}");
    host.run_unit("unit");
    let error = check(&host, &task).unwrap_err();
    assert_eq!(error.effect, FailureEffect::Unknown);
    assert_eq!(error.message, "its command runs or has ended in unit, and no agent runs: the next agent records its end");
}

/// The command continues although the agent was killed. Its guard is checked only after its end.
#[test]
fn guards_are_checked_after_command_left_by_earlier_agent() {
    let host = MemoryHost::new();
    let task = task(&json!({"parameters": {"command": ["deploy"], "creates": "/made"}}), "gold");
    host.leave_command("t", ExitKind::Status(0));
    host.put("/made", "");
    let site = restarted_site(&host);
    assert!(matches!(block_on(ShellApplier.check(&site, &task)).unwrap(), CheckResult::Completed(_)));
    assert_eq!(block_on(ShellApplier.check(&site, &task)).unwrap(), CheckResult::Converged, "the end is reported once");
    assert!(site.left.all_ends().is_none(), "the check has waited for the command");
    assert_eq!(site.ledger.step("t").unwrap(), None);
}

/// The disk becomes full while the command runs, so the end of the command cannot be written to the journal.
#[test]
fn apply_returns_unknown_when_journal_write_fails() {
    for status in [0, 1] {
        let host = MemoryHost::new();
        host.on_run(move |host, _| {
            host.set_full(true);
            CommandResult { end: ExitKind::Status(status), output: "said".into() }
        });
        let task = task(&json!({"parameters": {"command": ["deploy"]}, "retries": 3}), "gold");
        let error = apply(&host, &task).unwrap_err();
        assert!(error.effect == FailureEffect::Unknown && error.message.contains("could not be recorded"), "{error:?}");
        assert_eq!(error.output, "said");
        host.set_full(false);
        assert_eq!(
            check(&host, &task).unwrap_err().effect,
            FailureEffect::Unknown,
            "the result is still unknown after a restart"
        );
    }
}

#[test]
fn guards_decide_whether_command_runs() {
    let host = MemoryHost::new();
    host.put("/made", "");
    host.put("/dev/vg0/data", "");
    host.on_run(|_, command| {
        let status = i32::from(command.argv[0] != "true");
        CommandResult { end: ExitKind::Status(status), output: String::new() }
    });
    // The guards, and whether the task has converged, so that the command need not run.
    for (guard, expected) in [
        (json!({"creates": "/made"}), true),
        (json!({"creates": "/missing"}), false),
        (json!({"creates": "/dev/vg0/data"}), true),
        (json!({"creates": "/sys/class/net/bond0"}), false),
        (json!({"unless": ["true"]}), true),
        (json!({"unless": ["false"]}), false),
        (json!({"only_if": ["true"]}), false),
        (json!({"only_if": ["false"]}), true),
        (json!({"creates": "/missing", "only_if": ["true"]}), false),
        (json!({"creates": "/missing", "only_if": ["false"]}), true),
    ] {
        let mut parameters = guard;
        parameters["command"] = json!(["deploy"]);
        assert_eq!(is_converged(&host, &task(&json!({"parameters": parameters}), "")), expected, "{parameters}");
    }
    let guarded_task = task(&json!({"parameters": {"command": ["true"], "creates": "/missing"}}), "");
    apply(&host, &guarded_task).unwrap();
    assert_eq!(site(&host).ledger.step("t").unwrap(), None, "a guarded command needs no journal");
}

#[test]
fn apply_passes_cwd_env_user_and_timeout_to_command() {
    let host = MemoryHost::new();
    let parameters =
        json!({"command": ["x"], "cwd": "/srv", "env": {"TIER": "{{ labels.tier }}"}, "user": "www-data", "timeout": 5});
    apply(&host, &task(&json!({"parameters": parameters}), "gold")).unwrap();
    let command = host.last_command().unwrap();
    assert_eq!(command.cwd, Some(HostPath::from_static("/srv")));
    assert_eq!(command.env, [("TIER".to_owned(), "gold".to_owned())].into());
    assert_eq!((command.user.as_deref(), command.timeout), (Some("www-data"), Duration::from_secs(5)));
}

/// Regression test: a template of `cwd` that gives `/` was refused.
#[test]
fn y09_command_runs_in_root_directory_when_literal_or_rendered() {
    for cwd in ["/", "{{ labels.tier }}"] {
        let host = MemoryHost::new();
        apply(&host, &task(&json!({"parameters": {"command": ["x"], "cwd": cwd}}), "/")).unwrap();
        // Without a directory, the command runs in `/`.
        assert_eq!(host.last_command().unwrap().cwd, None, "{cwd}");
    }
}

#[test]
fn check_names_parameter_when_invalid() {
    let host = MemoryHost::new();
    for (parameters, expected) in [
        (json!({}), "parameters: one of command, script, cmd is missing"),
        (json!({"command": ["a"], "script": "a"}), "command and script are both set: exactly one of command"),
        (json!({"command": []}), "parameters.command: the first item must be the program"),
        (json!({"command": "a b"}), "parameters: invalid type: string"),
        (json!({"command": ["a"], "creates": "x"}), "parameters.creates: path \"x\" is relative"),
        (json!({"command": ["a"], "env": {"A=B": "x"}}), "parameters.env: \"A=B\" is not a variable"),
        (json!({"command": ["a"], "shell": true}), "parameters: unknown field `shell`"),
    ] {
        let error = check(&host, &task(&json!({"parameters": parameters}), "")).unwrap_err().message;
        assert!(error.contains(expected), "{parameters}: {error}");
    }
}

/// The scripts run in a real shell. The first one writes files about its own process, the others only end in different
/// ways. Then guards that read the secret write files about their processes too.
#[test]
fn w10_03_process_arguments_omit_secret_when_script_reads_one() {
    const VALUE: &str = "hunter2's";
    let root = tempfile::tempdir().unwrap();
    let credentials = root.path().join("run/credentials/stemma-agent.service");
    std::fs::create_dir_all(&credentials).unwrap();
    std::fs::write(credentials.join("db"), VALUE).unwrap();
    let host = Rc::new(crate::host::real::RealHost::new(root.path()).unwrap());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host).unwrap()));
    let secret = "{{ secret('db') }}";
    // This part of a script records the arguments and the standard input of its process.
    let record_process = "tr '\\0' ' ' </proc/$$/cmdline >args; cat >input; readlink /proc/self/fd/0 >>input";
    let script = format!("# a comment\nx={secret}; printf %s \"$x\" >value; {record_process}; echo \"$0\" >name; exit 3");
    for (parameters, expected) in [
        (json!({"script": script}), Err("the command ended with status 3")),
        (json!({"script": "kill -KILL $$"}), Err("the command was ended by signal 9")),
        (json!({"script": "if"}), Err("the command ended with status 2")),
        (json!({"script": "true"}), Ok(())),
        (json!({"script": format!(": {}", "x".repeat(100_000))}), Ok(())),
    ] {
        let task = secret_task(&json!({"parameters": parameters}));
        let result = block_on_with_io(ShellApplier.apply(&site, &task));
        assert_eq!(result.map(drop).map_err(|error| error.message), expected.map_err(str::to_owned), "{parameters}");
    }
    let read_file = |name: &str| std::fs::read_to_string(root.path().join(name)).unwrap();
    assert_eq!((read_file("value"), read_file("name")), (VALUE.to_owned(), "/bin/sh\n".to_owned()));
    assert!(!read_file("args").contains("hunter2"), "{}", read_file("args"));
    assert_eq!(read_file("input"), "/dev/null\n", "the standard input is empty, so no command can read the script from it");
    std::fs::remove_file(root.path().join("args")).unwrap();
    for (guard, is_converged) in [("unless", true), ("only_if", false)] {
        let guarded_parameters = json!({"command": ["true"], guard: format!("{record_process}; [ {secret} = {secret} ]")});
        let result =
            block_on_with_io(ShellApplier.check(&site, &secret_task(&json!({"parameters": guarded_parameters})))).unwrap();
        assert_eq!(result == CheckResult::Converged, is_converged, "{guard}");
        assert!(!read_file("args").contains("hunter2"), "{guard}: {}", read_file("args"));
    }
}

#[test]
fn check_names_field_when_script_cannot_be_passed_to_process() {
    let host = MemoryHost::new();
    for (parameters, expected) in [
        (json!({"cmd": "a\0"}), "parameters.cmd: contains NUL, which no process can be given: remove it"),
        (json!({"command": ["a"], "creates": "/x", "unless": "a\0"}), "parameters.unless: contains NUL"),
        (json!({"command": ["a"], "only_if": "a".repeat(131_072)}), "parameters.only_if: has 131072 bytes, and a process"),
    ] {
        let error = check(&host, &task(&json!({"parameters": parameters}), "gold")).unwrap_err();
        assert!(error.message.starts_with(expected), "{}", error.message);
    }
}

#[test]
fn w10_03_check_rejects_secret_in_command_or_guard_item() {
    let host = MemoryHost::new();
    host.put("/run/credentials/stemma-agent.service/db", "hunter2");
    let secret = "{{ secret('db') }}";
    for parameters in [
        json!({"command": ["put", format!("--password={secret}")]}),
        json!({"command": ["put", format!("{{% if true %}}{secret}{{% endif %}}")]}),
        json!({"command": ["put"], "unless": ["test", secret]}),
        json!({"command": ["put"], "only_if": ["test", secret]}),
    ] {
        let task = secret_task(&json!({"parameters": parameters}));
        for error in [check(&host, &task).unwrap_err(), apply(&host, &task).unwrap_err()] {
            let expected = "line 1: it reads secret `db`, and everyone on a host sees the name of a file and the arguments of a process: \
                        read the secret in `script`";
            assert!(error.message.contains(expected) && !error.message.contains("hunter2"), "{parameters}: {error:?}");
        }
        assert_eq!(host.last_command(), None, "{parameters}: nothing was run");
    }
    // Only the user of a process, and root, can read its environment, so `env` may contain a secret.
    let task = secret_task(&json!({"parameters": {"command": ["put"], "env": {"DB": secret}}}));
    apply(&host, &task).unwrap();
    assert_eq!(host.last_command().unwrap().env, [("DB".to_owned(), "hunter2".to_owned())].into());
}

/// Returns a shell task `t` with these fields. The task reads version 3 of the secret `db`.
fn secret_task(fields: &Value) -> HostTask {
    let mut definition = json!({"id": "t", "type": "shell"});
    definition.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (definition, references) = (definition.to_string(), vec!["secret('db')".to_owned()]);
    let profile = ProfileTask { id: "t".into(), definition, references, after: vec![], barriers: vec![] };
    let value = InputValue::Secret { name: "db".into(), version: 3 };
    HostTask::new(&profile, &[("secret('db')".to_owned(), value)].into()).unwrap()
}

/// Waits for a future that needs timers and I/O, for example because it runs a real process.
fn block_on_with_io<T>(future: Pending<'_, T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn retry_policy_prefers_parameters_over_task() {
    // The expected policy: the number of retries, and the seconds between two attempts.
    for (fields, expected) in [
        (json!({"parameters": {"command": ["a"]}}), (0, 1)),
        (json!({"retries": 3, "parameters": {"command": ["a"]}}), (3, 1)),
        (json!({"retries": 3, "parameters": {"command": ["a"], "retries": 2, "interval": 20}}), (2, 20)),
    ] {
        assert_eq!(ShellApplier.retry_policy(&task(&fields, "")), expected, "{fields}");
    }
}

#[test]
fn check_rejects_command_when_timeout_is_zero() {
    for (fields, field) in [
        (json!({"parameters": {"command": ["a"], "timeout": 0}}), "parameters.timeout"),
        (json!({"timeout_seconds": 0, "parameters": {"command": ["a"], "unless": ["b"]}}), "timeout_seconds"),
        (json!({"timeout_seconds": 9, "parameters": {"command": ["a"], "timeout": 0}}), "parameters.timeout"),
    ] {
        let host = MemoryHost::new();
        for error in [check(&host, &task(&fields, "")).unwrap_err(), apply(&host, &task(&fields, "")).unwrap_err()] {
            assert!(error.message.starts_with(&format!("{field}: ")), "{error:?}");
        }
        assert!(host.commands_run().is_empty(), "{fields}");
    }
}
