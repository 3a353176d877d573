//! When a command runs and with what, on a machine in memory: guards, the journal, parameters.

use std::rc::Rc;

use serde_json::{Value, json};
use stemma_wire::message::desired::{InputValue, ProfileTask};

use super::*;
use crate::apply::ledger::Ledger;
use crate::host::memory::MemoryHost;

fn site(host: &MemoryHost) -> Site {
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    Site::new(Rc::new(host.clone()), Rc::new(ledger))
}

fn task(fields: &Value, tier: &str) -> HostTask {
    let mut definition = json!({"id": "t", "type": "shell"});
    definition.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let profile = ProfileTask {
        id: "t".into(),
        definition: definition.to_string(),
        references: vec!["labels.tier".into()],
        after: vec![],
        barriers: vec![],
    };
    HostTask::new(&profile, &[("labels.tier".to_owned(), InputValue::Json(json!(tier).to_string().into()))].into())
        .unwrap()
}

fn ready<T>(future: Pending<'_, T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn check(host: &MemoryHost, task: &HostTask) -> Result<Check, TaskError> {
    ready(Shell.check(&site(host), task))
}

fn apply(host: &MemoryHost, task: &HostTask) -> Result<Applied, TaskError> {
    ready(Shell.apply(&site(host), task))
}

fn is_so(host: &MemoryHost, task: &HostTask) -> bool {
    check(host, task).unwrap() == Check::AsItShould
}

#[test]
fn a_value_is_one_argument_or_quoted() {
    let host = MemoryHost::new();
    let tier = "gold; rm -rf /\n'";
    for (parameters, argv) in [
        (json!({"command": ["echo", "{{ labels.tier }}"]}), vec!["echo", "gold; rm -rf /\n'"]),
        (json!({"script": "echo {{ labels.tier }}"}), vec!["/bin/sh", "-c", "echo 'gold; rm -rf /\n'\"'\"''"]),
        (json!({"cmd": "echo {{ labels.tier }}"}), vec!["/bin/sh", "-c", "echo {{ labels.tier }}"]),
    ] {
        apply(&host, &task(&json!({"parameters": parameters}), tier)).unwrap();
        let ran = host.ran().pop().unwrap();
        if ran[1] == "-c" && ran[2].contains('\'') {
            // How a quote is quoted is render's own; that it is one word is what matters here.
            assert!(ran[2].starts_with("echo 'gold; rm -rf /\n'"), "{ran:?}");
        } else {
            assert_eq!(ran, argv);
        }
    }
}

#[test]
fn without_guards_it_runs_once_for_each_content() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": ["deploy", "{{ labels.tier }}"]}});
    let gold = task(&fields, "gold");
    assert!(!is_so(&host, &gold));
    apply(&host, &gold).unwrap();
    assert!(is_so(&host, &gold));
    assert!(!is_so(&host, &task(&fields, "silver")), "other inputs are another thing to do");
}

#[test]
fn begun_and_not_ended_it_is_unknown_unless_it_may_run_again() {
    let host = MemoryHost::new();
    let fields = |on_interrupt: &str| json!({"on_interrupt": on_interrupt, "parameters": {"command": ["deploy"]}});
    for (on_interrupt, unknown) in [("unknown", true), ("again", false)] {
        let task = task(&fields(on_interrupt), "gold");
        let begun = Step { task: "t".into(), content: task.content, state: StepState::Begun };
        site(&host).ledger.set_step(&begun).unwrap();
        match check(&host, &task) {
            Err(error) => assert!(
                unknown && error.left == Left::Unknown && error.message.contains("resolve-unknown t done|again")
            ),
            Ok(found) => assert!(!unknown && found != Check::AsItShould),
        }
    }
}

#[test]
fn a_failure_is_journalled_as_one() {
    let host = MemoryHost::new();
    host.on_run(|_, _| Finished { end: End::Status(3), output: "no".into() });
    let task = task(&json!({"parameters": {"command": ["deploy"]}}), "gold");
    let error = apply(&host, &task).unwrap_err();
    assert_eq!((error.message.as_str(), error.output.as_str()), ("the command ended with status 3", "no"));
    assert_eq!(site(&host).ledger.step("t").unwrap().unwrap().state, StepState::Failed);
    assert!(!is_so(&host, &task));
}

#[test]
fn what_ran_and_could_not_be_written_down_is_not_run_again() {
    for status in [0, 1] {
        let host = MemoryHost::new();
        host.on_run(move |host, _| {
            host.fill(true);
            Finished { end: End::Status(status), output: "said".into() }
        });
        let task = task(&json!({"parameters": {"command": ["deploy"]}, "retries": 3}), "gold");
        let error = apply(&host, &task).unwrap_err();
        assert!(error.left == Left::Unknown && error.message.contains("could not be written down"), "{error:?}");
        assert_eq!(error.output, "said");
        host.fill(false);
        assert_eq!(check(&host, &task).unwrap_err().left, Left::Unknown, "nor after a restart");
    }
}

#[test]
fn guards_say_whether_there_is_something_to_do() {
    let host = MemoryHost::new();
    host.put("/made", "");
    host.put("/dev/vg0/data", "");
    host.on_run(|_, command| {
        let status = i32::from(command.argv[0] != "true");
        Finished { end: End::Status(status), output: String::new() }
    });
    for (guard, so) in [
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
        assert_eq!(is_so(&host, &task(&json!({"parameters": parameters}), "")), so, "{parameters}");
    }
    let guarded = task(&json!({"parameters": {"command": ["true"], "creates": "/missing"}}), "");
    apply(&host, &guarded).unwrap();
    assert_eq!(site(&host).ledger.step("t").unwrap(), None, "a guarded command needs no journal");
}

#[test]
fn what_it_runs_with() {
    let host = MemoryHost::new();
    let parameters = json!({"command": ["x"], "cwd": "/srv", "env": {"TIER": "{{ labels.tier }}"}, "user": "www-data", "timeout": 5});
    apply(&host, &task(&json!({"parameters": parameters}), "gold")).unwrap();
    let ran = host.last_run().unwrap();
    assert_eq!(ran.cwd, Some(HostPath::own("/srv")));
    assert_eq!(ran.env, [("TIER".to_owned(), "gold".to_owned())].into());
    assert_eq!((ran.user.as_deref(), ran.timeout), (Some("www-data"), Duration::from_secs(5)));
}

/// What a template gave for it was refused.
#[test]
fn y09_a_command_is_run_in_the_root_whether_that_is_written_out_or_rendered() {
    for cwd in ["/", "{{ labels.tier }}"] {
        let host = MemoryHost::new();
        apply(&host, &task(&json!({"parameters": {"command": ["x"], "cwd": cwd}}), "/")).unwrap();
        assert_eq!(host.last_run().unwrap().cwd, None, "{cwd}");
    }
}

#[test]
fn wrong_parameters_are_named() {
    let host = MemoryHost::new();
    for (parameters, said) in [
        (json!({}), "parameters: one of command, script, cmd is missing"),
        (json!({"command": ["a"], "script": "a"}), "command and script stand side by side: exactly one of command"),
        (json!({"command": []}), "parameters.command: the first item is the program"),
        (json!({"command": "a b"}), "parameters: invalid type: string"),
        (json!({"command": ["a"], "creates": "x"}), "parameters.creates: path \"x\" is relative"),
        (json!({"command": ["a"], "env": {"A=B": "x"}}), "parameters.env: \"A=B\" is no variable"),
        (json!({"command": ["a"], "shell": true}), "parameters: unknown field `shell`"),
    ] {
        let error = check(&host, &task(&json!({"parameters": parameters}), "")).unwrap_err().message;
        assert!(error.contains(said), "{parameters}: {error}");
    }
}

#[test]
fn w10_03_no_argument_of_a_process_holds_a_secret_that_a_shell_text_reads() {
    const VALUE: &str = "hunter2's";
    let root = tempfile::tempdir().unwrap();
    let credentials = root.path().join("run/credentials/stemma-agent.service");
    std::fs::create_dir_all(&credentials).unwrap();
    std::fs::write(credentials.join("db"), VALUE).unwrap();
    let host = Rc::new(crate::host::real::RealHost::new(root.path()).unwrap());
    let site = Site::new(host.clone(), Rc::new(Ledger::open(host).unwrap()));
    let secret = "{{ secret('db') }}";
    // What every process of the group is called, told by the script itself, and that its input is empty.
    let look = "tr '\\0' ' ' </proc/$$/cmdline >args; cat >input; readlink /proc/self/fd/0 >>input";
    let script = format!("# a comment\nx={secret}; printf %s \"$x\" >value; {look}; echo \"$0\" >name; exit 3");
    for (parameters, ended) in [
        (json!({"script": script}), Err("the command ended with status 3")),
        (json!({"script": "kill -KILL $$"}), Err("the command was ended by signal 9")),
        (json!({"script": "if"}), Err("the command ended with status 2")),
        (json!({"script": "true"}), Ok(())),
        (json!({"script": format!(": {}", "x".repeat(100_000))}), Ok(())),
    ] {
        let task = secret_task(&json!({"parameters": parameters}));
        let applied = ready_with_io(Shell.apply(&site, &task));
        assert_eq!(applied.map(drop).map_err(|error| error.message), ended.map_err(str::to_owned), "{parameters}");
    }
    let read = |name: &str| std::fs::read_to_string(root.path().join(name)).unwrap();
    assert_eq!((read("value"), read("name")), (VALUE.to_owned(), "/bin/sh\n".to_owned()));
    assert!(!read("args").contains("hunter2"), "{}", read("args"));
    assert_eq!(read("input"), "/dev/null\n", "no command reads the text");
    std::fs::remove_file(root.path().join("args")).unwrap();
    for (guard, so) in [("unless", true), ("only_if", false)] {
        let guarded = json!({"command": ["true"], guard: format!("{look}; [ {secret} = {secret} ]")});
        let checked = ready_with_io(Shell.check(&site, &secret_task(&json!({"parameters": guarded})))).unwrap();
        assert_eq!(checked == Check::AsItShould, so, "{guard}");
        assert!(!read("args").contains("hunter2"), "{guard}: {}", read("args"));
    }
}

#[test]
fn a_text_that_no_process_can_be_given_is_refused_by_its_field() {
    let host = MemoryHost::new();
    for (parameters, says) in [
        (json!({"cmd": "a\0"}), "parameters.cmd: holds NUL, and no process can be given one: take it out"),
        (json!({"command": ["a"], "creates": "/x", "unless": "a\0"}), "parameters.unless: holds NUL"),
        (
            json!({"command": ["a"], "only_if": "a".repeat(131_072)}),
            "parameters.only_if: has 131072 bytes, and a process",
        ),
    ] {
        let error = check(&host, &task(&json!({"parameters": parameters}), "gold")).unwrap_err();
        assert!(error.message.starts_with(says), "{}", error.message);
    }
}

#[test]
fn w10_03_no_item_of_a_command_or_of_a_guard_holds_a_secret() {
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
            let said = "line 1: it reads secret `db`, and everyone on a host sees the name of a file and the arguments of a process: \
                        read the secret in `script`";
            assert!(error.message.contains(said) && !error.message.contains("hunter2"), "{parameters}: {error:?}");
        }
        assert_eq!(host.last_run(), None, "{parameters}: nothing was run");
    }
    let task = secret_task(&json!({"parameters": {"command": ["put"], "env": {"DB": secret}}}));
    apply(&host, &task).unwrap();
    assert_eq!(host.last_run().unwrap().env, [("DB".to_owned(), "hunter2".to_owned())].into());
}

fn secret_task(fields: &Value) -> HostTask {
    let mut definition = json!({"id": "t", "type": "shell"});
    definition.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (definition, references) = (definition.to_string(), vec!["secret('db')".to_owned()]);
    let profile = ProfileTask { id: "t".into(), definition, references, after: vec![], barriers: vec![] };
    let value = InputValue::Secret { name: "db".into(), version: 3 };
    HostTask::new(&profile, &[("secret('db')".to_owned(), value)].into()).unwrap()
}

fn ready_with_io<T>(future: Pending<'_, T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn retries_are_the_tasks_or_the_parameters() {
    for (fields, retries) in [
        (json!({"parameters": {"command": ["a"]}}), (0, 1)),
        (json!({"retries": 3, "parameters": {"command": ["a"]}}), (3, 1)),
        (json!({"retries": 3, "parameters": {"command": ["a"], "retries": 2, "interval": 20}}), (2, 20)),
    ] {
        assert_eq!(Shell.retries(&task(&fields, "")), retries, "{fields}");
    }
}

#[test]
fn a_command_without_time_is_refused_by_its_field_and_not_run() {
    for (fields, field) in [
        (json!({"parameters": {"command": ["a"], "timeout": 0}}), "parameters.timeout"),
        (json!({"timeout_seconds": 0, "parameters": {"command": ["a"], "unless": ["b"]}}), "timeout_seconds"),
        (json!({"timeout_seconds": 9, "parameters": {"command": ["a"], "timeout": 0}}), "parameters.timeout"),
    ] {
        let host = MemoryHost::new();
        for error in [check(&host, &task(&fields, "")).unwrap_err(), apply(&host, &task(&fields, "")).unwrap_err()] {
            assert!(error.message.starts_with(&format!("{field}: ")), "{error:?}");
        }
        assert!(host.ran().is_empty(), "{fields}");
    }
}
