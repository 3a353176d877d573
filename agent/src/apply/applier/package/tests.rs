//! What `package` tasks check, run and report, with a simulated apt on an in-memory host.

use std::time::Duration;

use serde_json::{Value, json};

use super::dpkg::tests::STATUS_SAMPLE;
use super::*;
use crate::apply::applier::testing::{block_on, site, task_of};
use crate::apply::task::FailureEffect;
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, ExitKind, HostCommand, LockHolder};

const STATUS_PATH: &str = "/var/lib/dpkg/status";
const FRONTEND_LOCK: &str = "/var/lib/dpkg/lock-frontend";

/// Returns a package task `t` with these parameters. It reads the label `version`, whose value is `1.0-1`.
fn task(parameters: &Value) -> HostTask {
    task_of(("t", "package"), parameters, &[("version", "1.0-1")])
}

fn check(host: &MemoryHost, parameters: &Value) -> Result<CheckResult, TaskError> {
    block_on(PackageApplier.check(&site(host), &task(parameters)))
}

fn apply(host: &MemoryHost, parameters: &Value) -> Result<ApplyResult, TaskError> {
    block_on(PackageApplier.apply(&site(host), &task(parameters)))
}

/// Returns a host with the packages of [`STATUS_SAMPLE`] and lists of packages, on which apt is simulated.
fn host() -> MemoryHost {
    let host = MemoryHost::new();
    host.put(STATUS_PATH, STATUS_SAMPLE);
    host.put("/var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages", "");
    host.on_run(simulate_apt);
    host
}

/// Simulates apt: `install` sets the version to that of the command, or else to 1.1-1.
fn simulate_apt(host: &MemoryHost, command: &HostCommand) -> CommandResult {
    let words: Vec<&str> = command.argv.iter().map(String::as_str).collect();
    let verbs = ["install", "remove", "purge", "hold", "unhold", "update", "policy"];
    let position = words.iter().position(|word| verbs.contains(word)).expect("a command of apt");
    let mut output = String::new();
    if words.contains(&"-s") {
        return CommandResult { end: ExitKind::Status(0), output };
    }
    for word in &words[position + 1..] {
        let (name, version) = word.split_once('=').unwrap_or((word, "1.1-1"));
        match words[position] {
            "install" => set_package(host, name, "install ok installed", version),
            "remove" => set_package(host, name, "deinstall ok config-files", version),
            "purge" => set_package(host, name, "purge ok not-installed", version),
            "hold" => set_package(host, name, "hold ok installed", &version_of(host, name)),
            "unhold" => set_package(host, name, "install ok installed", &version_of(host, name)),
            _ => output = format!("{name}:\n  Installed: (none)\n  Candidate: 1.1-1\n"),
        }
    }
    CommandResult { end: ExitKind::Status(0), output }
}

/// Returns the version of a package in the status file.
fn version_of(host: &MemoryHost, name: &str) -> String {
    let text = host.text(STATUS_PATH).unwrap();
    let start = format!("Package: {name}\n");
    let stanza = text.split("\n\n").find(|stanza| stanza.starts_with(&start)).unwrap();
    stanza.lines().find_map(|line| line.strip_prefix("Version: ")).unwrap().to_owned()
}

/// Replaces the record of a package in the status file.
fn set_package(host: &MemoryHost, name: &str, status: &str, version: &str) {
    let text = host.text(STATUS_PATH).unwrap();
    let start = format!("Package: {name}\n");
    let mut stanzas: Vec<String> =
        text.trim_end().split("\n\n").filter(|stanza| !stanza.starts_with(&start)).map(str::to_owned).collect();
    stanzas.push(format!("{start}Status: {status}\nArchitecture: amd64\nVersion: {version}"));
    host.put(STATUS_PATH, &stanzas.join("\n\n"));
}

/// Returns the commands that were run, without the options of apt.
fn commands(host: &MemoryHost) -> Vec<String> {
    let verbs = ["install", "remove", "purge", "hold", "unhold", "update", "policy"];
    let rest = |words: &Vec<String>| {
        let position = words.iter().position(|word| verbs.contains(&word.as_str())).expect("a command of apt");
        let words_after = words[position..].join(" ");
        if words.iter().any(|word| word == "-s") { format!("simulate {words_after}") } else { words_after }
    };
    host.commands_run().iter().map(rest).collect()
}

/// Returns the diff of a check, or an empty text if the host is as the task requires.
fn diff(host: &MemoryHost, parameters: &Value) -> String {
    match check(host, parameters).unwrap() {
        CheckResult::Converged => String::new(),
        CheckResult::Drifted { diff, .. } => diff,
        other => panic!("{parameters}: {other:?}"),
    }
}

#[test]
fn check_compares_wanted_and_present_packages() {
    let host = host();
    set_package(&host, "nginx", "install ok installed", "1.1-1");
    for (parameters, expected) in [
        (json!({"name": "nginx"}), ""),
        (json!({"name": ["nginx", "curl", "jq"]}), "-curl: absent\n+curl: present\n-jq: absent\n+jq: present\n"),
        (json!({"name": "nginx", "version": "1.1-1"}), ""),
        (json!({"name": "nginx", "version": "0:1.1-1"}), ""),
        (json!({"name": "nginx", "version": "{{ labels.version }}"}), "-nginx: 1.1-1\n+nginx: 1.0-1\n"),
        (json!({"name": "nginx", "min_version": "1.0"}), ""),
        (json!({"name": "nginx", "min_version": "1.10"}), "-nginx: 1.1-1\n+nginx: 1.10 or newer\n"),
        (json!({"name": "nginx", "absent": true}), "-nginx: 1.1-1\n+nginx: absent\n"),
        (json!({"name": "curl", "absent": true, "purge": true}), ""),
        (json!({"name": "nginx-common", "absent": true}), ""),
        (
            json!({"name": "nginx-common", "absent": true, "purge": true}),
            "-nginx-common: absent, with configuration files\n+nginx-common: absent, without configuration files\n",
        ),
        (json!({"name": "nginx-common"}), "-nginx-common: absent, with configuration files\n+nginx-common: present\n"),
        (json!({"name": "nginx", "hold": false}), ""),
        (json!({"name": "nginx", "hold": true}), "-nginx: not held\n+nginx: held\n"),
        (json!({"name": "tzdata", "hold": true}), ""),
        (json!({"name": "tzdata"}), ""),
        (json!({"name": "mail-transport-agent"}), ""),
        (
            json!({"name": "mail-transport-agent", "min_version": "1"}),
            "-mail-transport-agent: absent\n+mail-transport-agent: 1 or newer\n",
        ),
        (json!({"name": "mail-transport-agent", "absent": true}), ""),
    ] {
        assert_eq!(diff(&host, &parameters), expected, "{parameters}");
    }
    assert!(host.commands_run().is_empty(), "a check runs no command");
}

#[test]
fn apply_runs_commands_and_reports_versions() {
    for (parameters, expected_commands, expected_diff, expected_message) in [
        (
            json!({"name": ["nginx", "curl"]}),
            vec!["install nginx curl"],
            "-nginx: absent\n+nginx: 1.1-1\n-curl: absent\n+curl: 1.1-1\n",
            "installed nginx 1.1-1, curl 1.1-1",
        ),
        (
            json!({"name": "nginx", "version": "1.0-1"}),
            vec!["install nginx=1.0-1"],
            "-nginx: absent\n+nginx: 1.0-1\n",
            "installed nginx 1.0-1",
        ),
        (
            json!({"name": "nginx", "min_version": "1.1"}),
            vec!["policy nginx", "install nginx"],
            "-nginx: absent\n+nginx: 1.1-1\n",
            "installed nginx 1.1-1",
        ),
        (
            json!({"name": ["postfix", "curl"], "absent": true}),
            vec!["simulate remove postfix", "remove postfix"],
            "-postfix: 3.7.11-0+deb12u1\n+postfix: absent, with configuration files\n",
            "removed postfix",
        ),
        (
            json!({"name": "nginx-common", "absent": true, "purge": true}),
            vec!["simulate purge nginx-common", "purge nginx-common"],
            "-nginx-common: absent, with configuration files\n+nginx-common: absent\n",
            "removed nginx-common",
        ),
        (
            json!({"name": "nginx", "hold": true}),
            vec!["install nginx", "hold nginx"],
            "-nginx: absent\n+nginx: 1.1-1\n-nginx: not held\n+nginx: held\n",
            "installed nginx 1.1-1",
        ),
        (
            json!({"name": "tzdata", "version": "1.1-1", "hold": true}),
            vec!["unhold tzdata", "install tzdata=1.1-1", "hold tzdata"],
            "-tzdata: 2025b-0+deb12u1\n+tzdata: 1.1-1\n",
            "installed tzdata 1.1-1",
        ),
        (json!({"name": "postfix", "hold": true}), vec!["hold postfix"], "-postfix: not held\n+postfix: held\n", "held postfix"),
    ] {
        let host = host();
        let result = apply(&host, &parameters).unwrap();
        assert_eq!(commands(&host), expected_commands, "{parameters}");
        assert_eq!(result.diff, expected_diff, "{parameters}");
        assert_eq!(result.message, expected_message);
        assert_eq!(check(&host, &parameters).unwrap(), CheckResult::Converged, "{parameters}");
    }
}

/// Packages that were installed with the named ones are in the diff too.
#[test]
fn apply_reports_other_packages() {
    let host = host();
    host.on_run(|host, command| {
        set_package(host, "libcurl4", "install ok installed", "7.88");
        simulate_apt(host, command)
    });
    let result = apply(&host, &json!({"name": "curl"})).unwrap();
    assert_eq!(result.diff, "-curl: absent\n+curl: 1.1-1\n-libcurl4: absent\n+libcurl4: 7.88\n");
}

/// Dependants of a removed package are removed too, and the agent may be one of them.
#[test]
fn removal_of_agent_by_dependency_is_refused() {
    let host = host();
    let error = apply(&host, &json!({"name": ["curl", "stemma-agent"], "absent": true})).unwrap_err();
    assert!(error.message.starts_with("parameters.name: the agent does not remove itself"), "{error:?}");
    assert_eq!((error.effect, host.commands_run().len()), (FailureEffect::Unchanged, 0));

    let (end, output) = (Cell::new(ExitKind::Status(0)), RefCell::new("Remv stemma-agent [0.1.0-1]\n".to_owned()));
    let answer = Rc::new((end, output));
    let given = answer.clone();
    host.on_run(move |host, command| {
        if command.argv.iter().any(|word| word == "-s") {
            return CommandResult { end: given.0.get(), output: given.1.borrow().clone() };
        }
        simulate_apt(host, command)
    });
    for parameters in [json!({"name": "postfix", "absent": true}), json!({"name": "postfix", "absent": true, "purge": true})] {
        let error = apply(&host, &parameters).unwrap_err();
        assert_eq!(
            error.message,
            "parameters.name: the removal of postfix removes stemma-agent too, which needs it: the agent does not remove itself, because nothing would \
             install it again: run `stemma-agent leave` on the host, and then remove the package there by hand; nothing was changed"
        );
        assert_eq!(error.effect, FailureEffect::Unchanged);
    }
    assert_eq!(commands(&host), ["simulate remove postfix", "simulate purge postfix"]);

    answer.1.borrow_mut().clear();
    answer.0.set(ExitKind::TimedOut);
    let error = apply(&host, &json!({"name": "postfix", "absent": true})).unwrap_err();
    assert!(error.message.starts_with("the removal of postfix could not be simulated: the command did not end"), "{error:?}");
    assert!(host.text(STATUS_PATH).unwrap().contains("Package: postfix\nStatus: install ok installed"));

    // apt refuses the simulation for the same reason as the change, and the change has the reason.
    answer.0.set(ExitKind::Status(100));
    apply(&host, &json!({"name": "postfix", "absent": true})).unwrap();
}

#[test]
fn dnf_removal_of_agent_is_refused() {
    let host = MemoryHost::new();
    host.put("/usr/bin/rpm", "");
    host.put("/usr/bin/dnf", "");
    host.on_run(|_, command| {
        let is_simulation = command.argv.iter().any(|word| word == "--assumeno");
        let (status, output) = match command.argv[0].as_str() {
            "rpm" => (0, "dbus\tx86_64\t1.14-1.fc39\n"),
            "sh" if is_simulation => (1, " stemma-agent  x86_64  0.1.0-1  @System  9 M\n"),
            _ => panic!("{command:?}"),
        };
        CommandResult { end: ExitKind::Status(status), output: output.into() }
    });
    let error = apply(&host, &json!({"name": "dbus", "absent": true})).unwrap_err();
    assert!(error.message.starts_with("parameters.name: the removal of dbus removes stemma-agent too"), "{error:?}");
    assert_eq!(error.effect, FailureEffect::Unchanged);
}

#[test]
fn commands_ask_no_question_and_keep_configuration_files() {
    let host = host();
    apply(&host, &json!({"name": "curl", "timeout": 7})).unwrap();
    let command = host.last_command().unwrap();
    assert_eq!(command.env["DEBIAN_FRONTEND"], "noninteractive");
    assert_eq!(command.env["LC_ALL"], "C.UTF-8");
    assert_eq!(command.timeout, Duration::from_secs(7));
    assert!(
        command.argv.contains(&"Dpkg::Options::=--force-confold".to_owned()) && command.argv.contains(&"--no-remove".to_owned())
    );
    assert_eq!(command.argv[0], "apt-get", "without logind nothing keeps the system from a shutdown");
}

#[test]
fn command_holds_inhibitor_if_logind_runs() {
    for fails in [false, true] {
        let host = host();
        host.put("/run/systemd/system/x", "");
        host.put("/run/dbus/system_bus_socket", "");
        host.put("/usr/bin/systemd-inhibit", "");
        host.on_run(move |host, command| {
            if fails && command.argv[0] == "systemd-inhibit" {
                return CommandResult { end: ExitKind::Status(1), output: "Failed to inhibit: Connection refused\n".into() };
            }
            simulate_apt(host, command)
        });
        apply(&host, &json!({"name": "curl"})).unwrap();
        let programs: Vec<String> = host.commands_run().into_iter().map(|words| words[0].clone()).collect();
        let expected: &[&str] = if fails { &["systemd-inhibit", "apt-get"] } else { &["systemd-inhibit"] };
        assert_eq!(programs, expected);
    }
}

/// Without lists of packages, or if apt does not know the package, the lists are refreshed: once in a run.
#[test]
fn lists_are_refreshed_when_needed_once_in_run() {
    let unknown = |host: &MemoryHost, command: &HostCommand| {
        if command.argv.iter().any(|word| word == "install") {
            return CommandResult { end: ExitKind::Status(100), output: "E: Unable to locate package curl\n".into() };
        }
        simulate_apt(host, command)
    };
    let host = host();
    host.on_run(unknown);
    let (site, task) = (site(&host), task(&json!({"name": "curl"})));
    let error = block_on(PackageApplier.apply(&site, &task)).unwrap_err();
    assert_eq!(commands(&host), ["install curl", "update", "install curl"]);
    assert!(error.message.starts_with("apt knows no package curl") && error.effect == FailureEffect::Unchanged, "{error:?}");
    block_on(PackageApplier.apply(&site, &task)).unwrap_err();
    assert_eq!(commands(&host).len(), 4, "the run has refreshed the lists already");
    site.memory.begin_run();
    block_on(PackageApplier.apply(&site, &task)).unwrap_err();
    assert_eq!(commands(&host).len(), 7);

    let host = self::host();
    host.delete("/var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages");
    apply(&host, &json!({"name": "curl"})).unwrap();
    assert_eq!(commands(&host), ["update", "install curl"]);
}

/// A script before a removal that fails leaves the package as it was, so no command of dpkg mends it.
#[test]
fn failed_removal_names_mending_by_state() {
    let output = "dpkg: error processing package postfix (--remove):\nErrors were encountered while processing:\n postfix\n\
                  E: Sub-process /usr/bin/dpkg returned an error code (1)\n";
    for (status, advice) in [
        ("deinstall ok installed", "correct the cause, which the output names, and the next pass tries again"),
        ("deinstall ok half-configured", "run `dpkg --configure -a` on the host and read what it reports"),
        ("deinstall reinstreq half-installed", "run `apt-get install --reinstall postfix` on the host and read what it reports"),
    ] {
        let host = host();
        host.on_run(move |host, command| {
            if command.argv.iter().any(|word| word == "-s") {
                return simulate_apt(host, command);
            }
            set_package(host, "postfix", status, "3.7.11-0+deb12u1");
            CommandResult { end: ExitKind::Status(100), output: output.into() }
        });
        let error = apply(&host, &json!({"name": "postfix", "absent": true})).unwrap_err();
        assert_eq!(error.message, format!("apt-get could not remove postfix: dpkg could not process postfix: {advice}"));
        assert_eq!((error.effect, error.output.as_str()), (FailureEffect::Partial, output));
    }
}

/// A script of a package may write what apt would write. The lists are not refreshed, and the script does not run again.
#[test]
fn text_of_script_starts_no_other_transaction() {
    let host = host();
    host.on_run(|host, command| {
        set_package(host, "curl", "install ok half-configured", "1.1-1");
        let output = "Setting up curl (1.1-1) ...\n404  Not Found\nE: Could not get lock /var/lib/dpkg/lock\n\
                      Errors were encountered while processing:\n curl\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n";
        assert!(command.argv.contains(&"install".to_owned()), "{command:?}");
        CommandResult { end: ExitKind::Status(100), output: output.into() }
    });
    let error = apply(&host, &json!({"name": "curl"})).unwrap_err();
    assert_eq!(commands(&host), ["install curl"]);
    assert!(error.message.starts_with("apt-get could not install curl: dpkg could not process curl: "), "{error:?}");
    assert!(error.effect == FailureEffect::Partial && error.output.contains("404  Not Found"), "{error:?}");
}

/// Applies one task for each package in one batch, where `stub` runs the commands. Returns the results and the commands.
fn apply_batch(
    names: &[&str],
    stub: impl Fn(&MemoryHost, &HostCommand) -> CommandResult + 'static,
) -> (Vec<Result<ApplyResult, TaskError>>, Vec<String>) {
    let host = host();
    host.on_run(stub);
    let task = |name: &&str| Rc::new(task_of((*name, "package"), &json!({"name": name}), &[]));
    let tasks: Vec<Rc<HostTask>> = names.iter().map(task).collect();
    (block_on(PackageApplier.apply_together(&site(&host), &tasks)), commands(&host))
}

/// Returns the result of a command of apt that fails with this output.
fn failed(output: &str) -> CommandResult {
    CommandResult { end: ExitKind::Status(100), output: output.to_owned() }
}

/// The state of its own packages decides about each task of a transaction that dpkg did not finish.
#[test]
fn failed_transaction_gives_each_task_own_result() {
    let output = "Setting up jq (1.1-1) ...\nthe cause\nErrors were encountered while processing:\n jq\n\
                  E: Sub-process /usr/bin/dpkg returned an error code (1)\n";
    let (results, commands) = apply_batch(&["jq", "curl", "nginx", "tzdata2"], move |host, _| {
        set_package(host, "jq", "install ok half-configured", "1.1-1");
        set_package(host, "curl", "install ok installed", "1.1-1");
        set_package(host, "libcurl4", "install ok installed", "7.88");
        set_package(host, "nginx", "install ok installed", "1.1-1");
        failed(output)
    });
    assert_eq!(commands, ["install jq curl nginx tzdata2"]);
    for (index, name) in [(0, "jq"), (3, "tzdata2")] {
        let error = results[index].as_ref().unwrap_err();
        let expected = format!(
            "apt-get could not install {name}: dpkg could not process jq: run `dpkg --configure -a` on the host and read what it reports"
        );
        assert_eq!((&error.message, error.output.as_str(), error.effect), (&expected, output, FailureEffect::Partial));
    }
    let result = results[1].as_ref().unwrap();
    assert_eq!(result.message, "installed curl 1.1-1");
    assert_eq!(result.diff, "-curl: absent\n+curl: 1.1-1\n-libcurl4: absent\n+libcurl4: 7.88\n");
    assert_eq!(results[2].as_ref().unwrap().diff, "-nginx: absent\n+nginx: 1.1-1\n");

    // The packages of both tasks are there, and a trigger of another package fails.
    let output = "Processing triggers for man-db (2.11) ...\nErrors were encountered while processing:\n man-db\n\
                  E: Sub-process /usr/bin/dpkg returned an error code (1)\n";
    let (results, commands) = apply_batch(&["jq", "curl"], move |host, _| {
        set_package(host, "jq", "install ok installed", "1.1-1");
        set_package(host, "curl", "install ok installed", "1.1-1");
        set_package(host, "man-db", "install ok half-configured", "2.11");
        failed(output)
    });
    assert_eq!(commands, ["install jq curl"]);
    assert!(results[0].as_ref().unwrap_err().message.contains("dpkg could not process man-db: run `dpkg --configure -a`"));
    assert!(results[1].as_ref().is_ok_and(|result| result.message == "installed curl 1.1-1"), "{results:?}");
}

#[test]
fn refused_transaction_is_split_into_tasks() {
    let (results, commands) = apply_batch(&["jq", "curl"], |host, command| {
        let refuses = command.argv.iter().any(|word| word == "jq");
        if refuses { failed("E: Packages need to be removed but remove is disabled.\n") } else { simulate_apt(host, command) }
    });
    assert_eq!(commands, ["install jq curl", "install jq", "install curl"]);
    assert!(results[0].as_ref().is_err_and(|error| error.effect == FailureEffect::Unchanged), "{results:?}");
    assert_eq!(results[1].as_ref().unwrap().diff, "-curl: absent\n+curl: 1.1-1\n");
}

/// A message has one line.
#[test]
fn message_about_missing_change_has_one_line() {
    let host = host();
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    let error = apply(&host, &json!({"name": ["curl", "jq"]})).unwrap_err();
    assert_eq!(
        error.message,
        "apt-get ended without an error, but these packages are not as required: -curl: absent, +curl: present, -jq: absent, +jq: present"
    );
}

#[test]
fn apply_refuses_minimum_version_without_candidate() {
    let host = host();
    let error = apply(&host, &json!({"name": "curl", "min_version": "2.0"})).unwrap_err();
    assert!(error.message.contains("apt would install 1.1-1 at most of curl, and the task needs 2.0"), "{error:?}");
    assert_eq!(commands(&host), ["policy curl", "update", "policy curl"]);
    assert_eq!(error.effect, FailureEffect::Unchanged);
}

/// apt would install the version without the `+`.
#[test]
fn version_with_plus_must_be_known_to_apt() {
    let host = host();
    let error = apply(&host, &json!({"name": "curl", "version": "1.1-1+"})).unwrap_err();
    assert!(error.message.starts_with("parameters.version: apt knows no version 1.1-1+ of curl"), "{error:?}");
    assert!(error.message.ends_with("; nothing was changed") && error.effect == FailureEffect::Unchanged, "{error:?}");
    assert_eq!(commands(&host), ["policy curl", "update", "policy curl"]);
}

#[test]
fn apply_waits_for_lock_and_names_holder() {
    let host = host();
    let holder = LockHolder { pid: 1234, program: "unattended-upgr".into() };
    host.set_lock_holder(FRONTEND_LOCK, Some(holder));
    let error = apply(&host, &json!({"name": "curl"})).unwrap_err();
    assert_eq!(
        error.message,
        "another package manager (unattended-upgr, pid 1234) has held /var/lib/dpkg/lock-frontend for 600 s: nothing was changed"
    );
    assert_eq!((error.effect, host.commands_run().len()), (FailureEffect::Unchanged, 0));
    let (site, task) = (site(&host), task(&json!({"name": "curl", "lock_timeout": 20})));
    let release = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        host.set_lock_holder(FRONTEND_LOCK, None);
    };
    block_on(Box::pin(async { tokio::join!(PackageApplier.apply(&site, &task), release).0 })).unwrap();
    assert_eq!(commands(&host), ["install curl"]);
}

/// Another package manager may take the lock just before the command.
#[test]
fn command_runs_again_after_lost_lock() {
    let host = host();
    let attempts = Cell::new(0);
    host.on_run(move |host, command| {
        attempts.set(attempts.get() + 1);
        if attempts.get() == 1 {
            let output = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)\n";
            return CommandResult { end: ExitKind::Status(100), output: output.into() };
        }
        simulate_apt(host, command)
    });
    apply(&host, &json!({"name": "curl"})).unwrap();
    assert_eq!(commands(&host), ["install curl", "install curl"]);
}

#[test]
fn interrupted_dpkg_blocks_task_with_mending_command() {
    for (status, command) in [
        ("install ok half-configured", "dpkg --configure -a"),
        ("install reinstreq half-installed", "apt-get install --reinstall broken"),
    ] {
        let host = host();
        set_package(&host, "broken", status, "1.0");
        for parameters in [json!({"name": "curl"}), json!({"name": "broken"})] {
            let result = check(&host, &parameters).unwrap();
            let CheckResult::Blocked { message, .. } = result else { panic!("{result:?}") };
            assert!(message.starts_with("dpkg did not finish and left broken (half-") && message.contains(command), "{message}");
            let error = apply(&host, &parameters).unwrap_err();
            assert_eq!((error.message, error.effect), (message, FailureEffect::Unchanged));
        }
        assert_eq!(check(&host, &json!({"name": "postfix"})).unwrap(), CheckResult::Converged);
        // Another package manager is in the middle of its work.
        host.set_lock_holder(FRONTEND_LOCK, Some(LockHolder { pid: 7, program: "apt-get".into() }));
        let result = check(&host, &json!({"name": "broken"})).unwrap();
        assert!(
            matches!(&result, CheckResult::Drifted { message, .. } if message.contains("(apt-get, pid 7) is at work")),
            "{result:?}"
        );
        assert!(host.commands_run().is_empty());
    }
}

#[test]
fn held_package_blocks_task_without_hold() {
    let host = host();
    for (parameters, advice) in [
        (
            json!({"name": "tzdata", "version": "1"}),
            "write `hold: true` or `hold: false` in the task, or run `apt-mark unhold tzdata`",
        ),
        (json!({"name": "tzdata", "absent": true}), "run `apt-mark unhold tzdata`"),
    ] {
        let result = check(&host, &parameters).unwrap();
        let CheckResult::Blocked { message, diff } = result else { panic!("{result:?}") };
        assert!(message.contains(advice) && diff.starts_with("-tzdata: 2025b-0+deb12u1\n"), "{message}");
        assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
    }
    assert!(host.commands_run().is_empty());
}

#[test]
fn hold_of_virtual_package_names_provider() {
    let host = host();
    // A package that is not installed yet, and that comes first, has no provider either.
    for names in [json!("mail-transport-agent"), json!(["missing", "mail-transport-agent"])] {
        let parameters = json!({"name": names, "hold": true});
        let result = check(&host, &parameters).unwrap();
        let CheckResult::Blocked { message, .. } = result else { panic!("{result:?}") };
        assert!(
            message
                .starts_with("parameters.hold: mail-transport-agent is a virtual package, which cannot be held: name postfix,"),
            "{message}"
        );
        assert_eq!(apply(&host, &parameters).unwrap_err().message, message);
        assert!(host.commands_run().is_empty());
    }
}

#[test]
fn hold_is_restored_after_failed_change() {
    let host = host();
    host.on_run(|host, command| {
        if command.argv.iter().any(|word| word == "install") {
            return CommandResult { end: ExitKind::Status(100), output: "E: Unmet dependencies.\n".into() };
        }
        simulate_apt(host, command)
    });
    apply(&host, &json!({"name": "tzdata", "version": "1", "hold": true})).unwrap_err();
    assert_eq!(commands(&host), ["unhold tzdata", "install tzdata=1", "hold tzdata"]);
}

/// The agent is killed before and after each of its steps. The next agent brings the host into the same state.
#[test]
fn killed_apply_is_resumed_by_next_agent() {
    let parameters = json!({"name": "tzdata", "version": "1.0-1", "hold": true});
    let mut call = 0;
    loop {
        let host = host();
        host.use_units(false);
        let site = site(&host);
        host.crash_before(call);
        let is_done = block_on(PackageApplier.apply(&site, &task(&parameters))).is_ok();
        host.restart();
        if matches!(check(&host, &parameters).unwrap(), CheckResult::Drifted { .. }) {
            apply(&host, &parameters).unwrap();
        }
        assert_eq!(check(&host, &parameters).unwrap(), CheckResult::Converged, "{call}");
        if is_done {
            assert!(call > 5, "the run has several steps");
            return;
        }
        call += 1;
    }
}

/// The command of a killed agent has ended since, so the packages are there and the task has changed something.
#[test]
fn command_left_by_earlier_agent_completes_task() {
    let host = host();
    host.leave_command("t", ExitKind::Status(0));
    let site = site(&host);
    block_on(Box::pin(site.left.search()));
    let result = block_on(PackageApplier.check(&site, &task(&json!({"name": "postfix"})))).unwrap();
    let CheckResult::Completed(result) = result else { panic!("{result:?}") };
    assert_eq!(result.message, "the command that an earlier agent started ended with status 0");
}

#[test]
fn check_names_parameter_when_invalid() {
    let host = host();
    for (parameters, expected) in [
        (json!({"name": "-y"}), "parameters.name: \"-y\" is not the name of a package"),
        (json!({"name": "nginx", "version": "1 {{ labels.version }}"}), "parameters.version: \"1 1.0-1\" is not a version"),
        (json!({"name": ["n{{ labels.version }}", "n1.0-1"]}), "parameters.name: item 1: \"n1.0-1\" is there twice"),
        (json!({"name": "nginx", "purge": true}), "parameters.purge: removes configuration files together"),
        (json!({}), "parameters: name is missing"),
    ] {
        let error = check(&host, &parameters).unwrap_err();
        assert!(error.message.starts_with(expected) && error.effect == FailureEffect::Unchanged, "{error:?}");
    }
}

#[test]
fn host_without_package_manager_is_error() {
    let error = check(&MemoryHost::new(), &json!({"name": "nginx"})).unwrap_err();
    assert!(error.message.starts_with("the host has neither dpkg (/var/lib/dpkg/status) nor dnf and rpm"), "{error:?}");
}

#[test]
fn dnf_adds_package_missing_in_rpm() {
    let host = MemoryHost::new();
    host.put("/usr/bin/rpm", "");
    host.put("/usr/bin/dnf", "");
    host.on_run(|host, command| {
        let is_installed = host.text("/nginx").is_some();
        let asks_provider = command.argv.iter().any(|word| word == "--whatprovides");
        let (status, output) = match command.argv[0].as_str() {
            "rpm" if asks_provider && is_installed && command.argv.iter().any(|word| word == "webserver") => (0, "nginx\n"),
            "rpm" if asks_provider => (1, "no package provides it\n"),
            "rpm" if is_installed => (0, "nginx\tx86_64\t1.24.0-1.fc39\n"),
            "rpm" => (1, "package nginx is not installed\n"),
            _ => {
                host.put("/nginx", "");
                (0, "")
            }
        };
        CommandResult { end: ExitKind::Status(status), output: output.into() }
    });
    assert_eq!(diff(&host, &json!({"name": "webserver"})), "-webserver: absent\n+webserver: present\n");
    let parameters = json!({"name": "nginx", "min_version": "1.20"});
    assert_eq!(diff(&host, &parameters), "-nginx: absent\n+nginx: 1.20 or newer\n");
    let result = apply(&host, &parameters).unwrap();
    assert_eq!(result.diff, "-nginx: absent\n+nginx: 1.24.0-1.fc39\n");
    assert_eq!(check(&host, &parameters).unwrap(), CheckResult::Converged);
    assert_eq!(diff(&host, &json!({"name": "nginx", "version": "1.24.1"})), "-nginx: 1.24.0-1.fc39\n+nginx: 1.24.1\n");
    // nginx provides the name `webserver`, without a version.
    assert_eq!(check(&host, &json!({"name": "webserver"})).unwrap(), CheckResult::Converged);
    assert_eq!(diff(&host, &json!({"name": "webserver", "min_version": "1"})), "-webserver: absent\n+webserver: 1 or newer\n");
    let error = check(&host, &json!({"name": "nginx", "hold": true})).unwrap_err();
    assert!(error.message.starts_with("parameters.hold: is not supported with dnf"), "{error:?}");
}
