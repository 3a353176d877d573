//! How Puppet is called and how its end is read, on an in-memory host with a stub of Puppet. The texts and exit statuses are
//! those of Puppet 7.23 in Debian 12.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::json;
use stemma_core::digest::sha256;

use super::*;
use crate::apply::applier::testing::{block_on, site, task_of, task_with_fields};
use crate::apply::task::FailureEffect;
use crate::host::memory::MemoryHost;

/// The directory of the files that a run reads.
const DIR: &str = "/var/lib/stemma-agent/apply/puppet";

/// A host with a stub of Puppet.
struct PuppetHost {
    host: MemoryHost,
    site: Site,
    /// The number of resources that differ from the code.
    out_of_sync: Rc<Cell<u64>>,
    /// The exit status of the next runs, if not that of a run without errors.
    status: Rc<Cell<Option<i32>>>,
}

impl PuppetHost {
    /// Creates a host on which one resource differs from the code.
    fn new() -> Self {
        let host = MemoryHost::new();
        host.put("/usr/bin/puppet", "");
        let (out_of_sync, status) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(None)));
        let (differences, given_status) = (out_of_sync.clone(), status.clone());
        host.on_run(move |host, command| {
            let is_noop = command.argv.iter().any(|word| word == "--noop");
            let count = differences.get();
            let own_status = if is_noop || count == 0 { 0 } else { 2 };
            let status = given_status.get().unwrap_or(own_status);
            if status != 1 {
                let summary = command.argv.iter().find_map(|word| word.strip_prefix("--lastrunfile=")).unwrap();
                let changed = if is_noop { 0 } else { count };
                let failed = u64::from(status & 4 != 0);
                host.put(
                    summary,
                    &format!(
                        "---\nresources:\n  changed: {changed}\n  failed: {failed}\n  out_of_sync: {count}\n  total: 8\ntime:\n"
                    ),
                );
            }
            if !is_noop && status & 4 == 0 {
                differences.set(0);
            }
            CommandResult { end: ExitKind::Status(status), output: "Notice: output\n".into() }
        });
        let site = site(&host);
        Self { host, site, out_of_sync, status }
    }

    fn check(&self, task: &HostTask) -> Result<CheckResult, TaskError> {
        block_on(PuppetApplier.check(&self.site, task))
    }

    fn apply(&self, task: &HostTask) -> Result<ApplyResult, TaskError> {
        block_on(PuppetApplier.apply(&self.site, task))
    }

    /// Returns the number of runs of Puppet.
    fn run_count(&self) -> usize {
        self.host.commands_run().len()
    }
}

/// Returns a puppet task `p` with these parameters. The task reads the label `tier`, whose value is `tier`.
fn task_with(parameters: &Value, tier: &str) -> HostTask {
    task_of(("p", "puppet"), parameters, &[("tier", tier)])
}

fn task() -> HostTask {
    task_with(&json!({"manifest": "notice('x')"}), "gold")
}

#[test]
fn puppet_changes_host_once_and_check_is_not_repeated() {
    let host = PuppetHost::new();
    let task = task();
    let Ok(CheckResult::Drifted { diff, message }) = host.check(&task) else { panic!() };
    assert_eq!((diff.as_str(), message.as_str()), ("Notice: output\n", "Puppet would change 1 of 8 resources"));
    let result = host.apply(&task).unwrap();
    assert_eq!(result.message, "Puppet has run: 1 of 8 resources changed, 0 failed, 0 were skipped");
    let words: Vec<String> = host.host.commands_run().pop().unwrap();
    assert!(words.contains(&"--no-noop".to_owned()) && words.contains(&"--detailed-exitcodes".to_owned()), "{words:?}");
    assert_eq!(host.host.list(DIR), Vec::<String>::new(), "what was staged is removed");
    assert_eq!(host.check(&task).unwrap(), CheckResult::Converged);
    assert_eq!(host.run_count(), 2, "a check after a run costs no process");
    assert_eq!(host.check(&task_with(&json!({"manifest": "notice('y')"}), "gold")).unwrap(), CheckResult::Converged);
    assert_eq!(host.run_count(), 3, "another content is checked");
    assert!(!site(&host.host).memory.get::<RecentChecks>().is_valid("p", task.content, Duration::ZERO), "another process checks");
}

/// The schedule checks for drift every 30 minutes by default.
#[test]
fn check_of_puppet_expires_before_next_scheduled_check() {
    let host = PuppetHost::new();
    host.out_of_sync.set(0);
    let task = task();
    for (minutes, runs) in [(0, 1), (28, 1), (2, 2), (29, 3)] {
        host.host.advance_time(Duration::from_mins(minutes));
        assert_eq!(host.check(&task).unwrap(), CheckResult::Converged);
        assert_eq!(host.run_count(), runs, "{minutes}");
    }
    host.site.memory.get::<RecentChecks>().clear();
    host.out_of_sync.set(2);
    assert!(matches!(host.check(&task), Ok(CheckResult::Drifted { .. })));
}

#[test]
fn end_of_puppet_is_read_from_exit_status() {
    for (status, check_fails, apply_message) in [
        (1, true, "`puppet apply` ended with status 1 (the code does not compile, or a module or a value is missing)"),
        (4, false, "Puppet could not apply all resources: 1 of 8 resources changed, 1 failed, 0 were skipped"),
        (6, false, "Puppet could not apply all resources: 1 of 8 resources changed, 1 failed, 0 were skipped"),
        (127, true, "`puppet apply` ended with status 127"),
    ] {
        let host = PuppetHost::new();
        host.status.set(Some(status));
        assert_eq!(host.check(&task()).is_err(), check_fails, "{status}");
        let error = host.apply(&task()).unwrap_err();
        assert_eq!((error.message.as_str(), error.output.as_str()), (apply_message, "Notice: output\n"));
        assert_eq!(host.host.list(DIR), Vec::<String>::new());
        assert!(!host.site.memory.get::<RecentChecks>().is_valid("p", task().content, host.site.host.uptime()));
    }
}

#[test]
fn host_without_puppet_says_so_and_runs_nothing() {
    let host = PuppetHost::new();
    host.host.delete("/usr/bin/puppet");
    let Ok(CheckResult::Drifted { message, .. }) = host.check(&task()) else { panic!() };
    assert_eq!(message, "Puppet is not installed on this host, so nothing could be checked: would run it");
    let error = host.apply(&task()).unwrap_err();
    assert!(error.message.contains("install it") && error.message.ends_with("nothing was run"), "{}", error.message);
    assert_eq!(host.run_count(), 0);
    host.host.put("/opt/puppetlabs/bin/puppet", "");
    host.apply(&task()).unwrap();
    assert_eq!(host.host.commands_run()[0][0], "/opt/puppetlabs/bin/puppet");
}

/// The value of the label would be Puppet code, an interpolation of Hiera, or a further option, if it were not a value.
#[test]
fn value_reaches_puppet_only_as_fact_or_data() {
    let host = PuppetHost::new();
    let tier = "x' %{facts.root} \"} --noop";
    let parameters = json!({
        "manifest": "notice('{{ labels.tier }}')",
        "hiera": {"a": ["{{ labels.tier }}", {"b": "%{facts.os}"}], "n": 7},
        "facts": {"tier": "{{ labels.tier }}"},
    });
    let files: Rc<std::cell::RefCell<BTreeMap<String, String>>> = Rc::default();
    let seen = files.clone();
    host.host.on_run(move |host, command| {
        for name in host.list(DIR) {
            let text = host.text(&format!("{DIR}/{name}")).unwrap();
            seen.borrow_mut().insert(name.split_once('.').unwrap().1.to_owned(), text);
        }
        assert_eq!(command.env.get("FACTER_tier").map(String::as_str), Some("x' %{facts.root} \"} --noop"));
        assert!(command.argv.iter().all(|word| !word.contains("facts.root")), "{:?}", command.argv);
        CommandResult { end: ExitKind::Status(2), output: String::new() }
    });
    host.apply(&task_with(&parameters, tier)).unwrap();
    let files = files.borrow();
    assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), ["data.json", "hiera.yaml", "pp"]);
    assert_eq!(files["pp"], "notice('{{ labels.tier }}')", "the code is no template");
    let data: Value = serde_json::from_str(&files["data.json"]).unwrap();
    let escaped = "x' %{literal('%')}{facts.root} \"} --noop";
    assert_eq!(data, json!({"a": [escaped, {"b": "%{facts.os}"}], "n": 7}));
    let config: Value = serde_json::from_str(&files["hiera.yaml"]).unwrap();
    assert_eq!((&config["version"], &config["defaults"]["datadir"]), (&json!(5), &json!(DIR)));
}

#[test]
fn puppet_runs_blob_or_manifest_on_host() {
    let host = PuppetHost::new();
    let code = b"notice('blob')";
    let hash = Hash(sha256(code));
    host.site.ledger.store_body(hash, code).unwrap();
    host.apply(&task_with(&json!({"source": format!("sha256:{hash}")}), "gold")).unwrap();
    assert_eq!(std::path::Path::new(host.host.commands_run()[0].last().unwrap()).extension().unwrap(), "pp");
    let fuel = json!({"puppet_manifest": "/etc/puppet/{{ labels.tier }}.pp", "puppet_modules": "/etc/puppet/modules:/opt/m", "cwd": "/"});
    host.apply(&task_with(&fuel, "gold")).unwrap();
    let words = host.host.commands_run().pop().unwrap();
    assert_eq!(words.last().unwrap(), "/etc/puppet/gold.pp");
    assert!(words.contains(&"--modulepath=/etc/puppet/modules:/opt/m".to_owned()), "{words:?}");
    let missing = task_with(&json!({"source": format!("sha256:{}", "0".repeat(64))}), "gold");
    let error = host.apply(&missing).unwrap_err();
    assert!(error.message.starts_with("parameters.source: ") && error.message.contains("has not arrived"), "{}", error.message);
}

/// The two modules are read from blobs. `puppet_modules` comes after them.
#[test]
fn modules_are_staged_as_tree_and_removed_after_run() {
    let host = PuppetHost::new();
    let codes = ["class nginx {}", "class nginx::conf {}"];
    let sources = codes.map(|code| {
        let hash = Hash(sha256(code.as_bytes()));
        host.site.ledger.store_body(hash, code.as_bytes()).unwrap();
        format!("sha256:{hash}")
    });
    let seen: Rc<std::cell::RefCell<Vec<Option<String>>>> = Rc::default();
    let files = seen.clone();
    host.host.on_run(move |host, command| {
        let path = command.argv.iter().find_map(|word| word.strip_prefix("--modulepath=")).unwrap();
        let (staged, rest) = path.split_once(':').unwrap();
        assert_eq!(rest, "/opt/m");
        let names = ["nginx/manifests/init.pp", "nginx/manifests/conf.pp"];
        files.borrow_mut().extend(names.map(|name| host.text(&format!("{staged}/{name}"))));
        CommandResult { end: ExitKind::Status(2), output: String::new() }
    });
    let modules = json!({"nginx/manifests/init.pp": sources[0], "nginx/manifests/conf.pp": sources[1]});
    let parameters = json!({"manifest": "include nginx", "modules": modules, "puppet_modules": "/opt/m"});
    host.apply(&task_with(&parameters, "gold")).unwrap();
    assert_eq!(*seen.borrow(), codes.map(|code| Some(code.to_owned())));
    assert_eq!(host.host.list(DIR), Vec::<String>::new());
    for (path, source) in [
        ("../x", sources[0].as_str()),
        ("a/./b", &sources[0]),
        ("a/lib/b", "sha256:00"),
        ("a/lib/b", &format!("sha256:{}", "0".repeat(64))),
    ] {
        let error = host.apply(&task_with(&json!({"manifest": "x", "modules": {path: source}}), "gold")).unwrap_err();
        assert!(error.message.starts_with("parameters.modules: "), "{}", error.message);
        assert_eq!(host.host.list(DIR), Vec::<String>::new(), "{path}");
    }
}

/// The files may hold secrets. The run of `p` continues in its unit, and that of another task was killed with the agent.
#[test]
fn sweep_removes_files_of_killed_runs_only() {
    let host = PuppetHost::new();
    host.apply(&task()).unwrap();
    let prefix = crate::apply::ledger::encode_file_name("p");
    for name in [format!("{prefix}-00.pp"), "other-00.pp".to_owned()] {
        host.host.put(&format!("{DIR}/{name}"), "");
    }
    host.site.ledger.set_started_unit("p", Some("unit")).unwrap();
    block_on(sweep(&host.site)).unwrap();
    assert_eq!(host.host.list(DIR), [format!("{prefix}-00.pp")]);
    host.site.ledger.set_started_unit("p", None).unwrap();
    block_on(sweep(&host.site)).unwrap();
    assert_eq!(host.host.list(DIR), Vec::<String>::new());
}

/// The unit is in the record while Puppet runs, so that the next agent waits for it. The next agent reports its changes.
#[test]
fn puppet_continues_in_unit_when_agent_ends() {
    let host = PuppetHost::new();
    host.host.use_units(false);
    host.host.on_run(|host, _| {
        assert_eq!(site(host).ledger.started_unit("p").unwrap().as_deref(), Some("unit"));
        CommandResult { end: ExitKind::Status(2), output: String::new() }
    });
    host.apply(&task()).unwrap();
    assert_eq!(host.site.ledger.started_unit("p").unwrap(), None);

    let next = PuppetHost::new();
    next.out_of_sync.set(0);
    next.host.leave_command("p", ExitKind::Status(2));
    block_on(Box::pin(next.site.left.search()));
    let Ok(CheckResult::Completed(result)) = next.check(&task()) else { panic!() };
    assert_eq!(
        (result.message.as_str(), result.output.as_str()),
        ("the command that an earlier agent started ended with status 2", "said\n")
    );
}

/// The files may hold secrets. Those of this process, and those of other tasks, are not of the run that has ended.
#[test]
fn files_of_left_run_are_removed_after_end() {
    let host = PuppetHost::new();
    host.out_of_sync.set(0);
    let [own, other] = ["p", "q"].map(crate::apply::ledger::encode_file_name);
    host.host.put(&format!("{DIR}/{own}-feedbeef00000001.data.json"), "secret");
    host.host.put(&format!("{DIR}/{own}-feedbeef00000001.modules/a/b.pp"), "");
    let kept = [format!("{other}-feedbeef00000001.pp"), format!("{own}-{:08x}ffffffff.pp", host.site.host.session_id())];
    for name in &kept {
        host.host.put(&format!("{DIR}/{name}"), "");
    }
    host.host.leave_command("p", ExitKind::Status(2));
    block_on(Box::pin(host.site.left.search()));
    assert!(matches!(host.check(&task()), Ok(CheckResult::Completed(_))));
    let left: std::collections::BTreeSet<String> = host.host.list(DIR).into_iter().collect();
    assert_eq!(left, std::collections::BTreeSet::from(kept));
}

/// A process that does not apply tasks, such as `stemma-agent check`, cannot wait for the unit.
#[test]
fn check_starts_no_puppet_during_unrecorded_unit() {
    let host = PuppetHost::new();
    host.site.ledger.set_started_unit("p", Some("unit")).unwrap();
    host.host.run_unit("unit");
    let error = host.check(&task()).unwrap_err();
    assert_eq!(
        (error.message.as_str(), error.effect),
        ("its command runs or has ended in unit, and no agent runs: the next agent records its end", FailureEffect::Unknown)
    );
    assert_eq!(host.run_count(), 0);
    host.host.run_unit("other");
    assert!(host.check(&task()).is_ok(), "the unit is gone");
}

/// The errors are those of Puppet 7.23 for a missing class. A task that may print a secret repeats none of them.
#[test]
fn message_has_errors_of_puppet_with_parameter_for_file() {
    for (parameters, is_sensitive, expected) in [
        (
            json!({"manifest": "include nosuch"}),
            false,
            ": Error: Could not find class ::nosuch (file: parameters.manifest, line: 1)",
        ),
        (json!({"manifest": "include nosuch"}), true, " (the code does not compile, or a module or a value is missing)"),
    ] {
        let host = PuppetHost::new();
        host.host.on_run(|_, command| {
            let path = command.argv.last().unwrap();
            let output = format!("Notice: a\nError: Could not find class ::nosuch (file: {path}, line: 1)\n");
            CommandResult { end: ExitKind::Status(1), output }
        });
        let task = task_with_fields(("p", "puppet"), &json!({"parameters": parameters, "sensitive": is_sensitive}), &[]);
        let error = host.check(&task).unwrap_err();
        assert_eq!(
            error.message,
            format!("`puppet apply --noop` ended with status 1, so nothing is known about the host{expected}")
        );
        assert!(error.output.contains("(file: parameters.manifest, line: 1)"), "{}", error.output);
        let error = host.apply(&task).unwrap_err();
        assert_eq!(error.message, format!("`puppet apply` ended with status 1{expected}"));
    }
    let long = format!("Error: {}\nError: b\nError: c\n", "ä".repeat(300));
    let errors = first_errors(&long);
    assert!(errors.ends_with("ä…; Error: b") && errors.len() < 430, "{errors}");
}

#[test]
fn timeout_message_has_limit_and_place() {
    for (fields, limit) in [
        (json!({"parameters": {"manifest": "x", "timeout": 7}, "timeout_seconds": 8}), "7 s (parameters.timeout)"),
        (json!({"parameters": {"manifest": "x"}, "timeout_seconds": 8}), "8 s (timeout_seconds)"),
        (json!({"parameters": {"manifest": "x"}}), "3600 s (the default of parameters.timeout)"),
    ] {
        let host = PuppetHost::new();
        host.host.on_run(|_, _| CommandResult { end: ExitKind::TimedOut, output: String::new() });
        let error = host.apply(&task_with_fields(("p", "puppet"), &fields, &[])).unwrap_err();
        let expected = format!(
            "`puppet apply` did not end in time and was stopped: it takes longer than {limit}; raise that limit, or find what it waits for"
        );
        assert_eq!(error.message, expected);
    }
}
