//! When a task asks for a reboot, and what ends its wait, on an in-memory host.

use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::apply::applier::testing::{block_on, site, task_of};
use crate::apply::ledger::REBOOT_REQUESTS;
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, ExitKind, HostCommand};

/// Returns a reboot task `r` with these parameters.
fn task(parameters: &Value) -> HostTask {
    task_of(("r", "reboot"), parameters, &[])
}

fn check(host: &MemoryHost, task: &HostTask) -> CheckResult {
    block_on(RebootApplier.check(&site(host), task)).unwrap()
}

/// Applies the task, and returns its message, or the message of the error.
fn apply(host: &MemoryHost, task: &HostTask) -> String {
    block_on(RebootApplier.apply(&site(host), task)).map_or_else(|error| error.message, |result| result.message)
}

/// Returns the message of a check that found a difference, or an empty text.
fn difference(host: &MemoryHost, task: &HostTask) -> String {
    match check(host, task) {
        CheckResult::Drifted { message, .. } => message,
        _ => String::new(),
    }
}

fn is_deferred(host: &MemoryHost, task: &HostTask) -> bool {
    let is_deferred = matches!(check(host, task), CheckResult::Deferred { .. });
    assert_eq!(RebootApplier.is_deferred(&site(host), task).unwrap(), is_deferred);
    is_deferred
}

#[test]
fn reboot_task_asks_once_per_content_and_ends_after_boot() {
    let host = MemoryHost::new();
    let (first, second) = (task(&json!({})), task(&json!({"when": "always", "timeout": 60})));
    assert!(difference(&host, &first).starts_with("would ask for a reboot"));
    apply(&host, &first);
    assert!(is_deferred(&host, &first));
    host.restart();
    assert!(is_deferred(&host, &first), "a start of the agent is no boot");
    host.reboot();
    assert!(!is_deferred(&host, &first));
    assert_eq!(apply(&host, &first), "the host has booted since the task asked for a reboot");
    host.reboot();
    assert_eq!(check(&host, &first), CheckResult::Converged);
    assert!(difference(&host, &second).starts_with("would ask for a reboot"), "another content asks again");
    apply(&host, &second);
    assert_eq!(site(&host).ledger.get(&REBOOT_REQUESTS).unwrap().unwrap()["r"].timeout_s, 60);
}

/// The request is durable before the task counts as deferred, whenever the power is cut.
#[test]
fn reboot_request_survives_power_cut_at_each_call() {
    for call in 0.. {
        let host = MemoryHost::new();
        let task = task(&json!({}));
        let prepared = site(&host);
        host.crash_before(call);
        let is_applied = block_on(RebootApplier.apply(&prepared, &task)).is_ok();
        host.cut_power();
        let is_recorded = is_deferred(&host, &task);
        assert!(is_recorded || !is_applied, "call {call}");
        if is_applied {
            return;
        }
        apply(&host, &task);
        assert!(is_deferred(&host, &task), "call {call}: the task asks again");
    }
}

#[test]
fn reboot_task_asks_again_when_refreshed_unless_system_decides() {
    for (when, is_asked) in [("always", true), ("required", false)] {
        let host = MemoryHost::new();
        let task = task(&json!({"when": when}));
        apply(&host, &task);
        host.reboot();
        apply(&host, &task);
        assert_eq!(check(&host, &task), CheckResult::Converged);
        assert_eq!(RebootApplier.is_refresh_needed(&task), is_asked);
        block_on(RebootApplier.refresh(&site(&host), &task)).unwrap();
        assert_eq!(is_deferred(&host, &task), is_asked, "{when}");
    }
}

/// Debian's packages create the two files. `/run` is empty after a boot.
#[test]
fn reboot_task_follows_requirement_of_debian() {
    let host = MemoryHost::new();
    let task = task(&json!({"when": "required"}));
    assert_eq!(check(&host, &task), CheckResult::Converged);
    host.put("/run/reboot-required", "*** System restart required ***\n");
    assert_eq!(difference(&host, &task), "would ask for a reboot: /run/reboot-required exists");
    host.put("/run/reboot-required.pkgs", "linux-image-6.1.0-30-amd64\nlibc6\nlibc6\n");
    assert_eq!(difference(&host, &task), "would ask for a reboot: the system requires it for linux-image-6.1.0-30-amd64, libc6");
    apply(&host, &task);
    assert!(is_deferred(&host, &task));
    host.delete("/run/reboot-required");
    host.delete("/run/reboot-required.pkgs");
    assert!(apply(&host, &task).contains("withdrawn"));
    assert_eq!(check(&host, &task), CheckResult::Converged);

    host.put("/run/reboot-required", "");
    apply(&host, &task);
    host.reboot();
    assert_eq!(apply(&host, &task), "the host has booted since the task asked for a reboot");
    assert_eq!(check(&host, &task), CheckResult::Converged);
    host.put("/run/reboot-required", "");
    assert!(difference(&host, &task).starts_with("would ask for a reboot"), "the next requirement is asked for again");
}

/// The kernel of the in-memory host is 6.1.0-stemma.
#[test]
fn reboot_task_detects_kernel_without_modules_except_in_container() {
    let host = MemoryHost::new();
    let task = task(&json!({"when": "required"}));
    host.put("/usr/lib/modules/6.1.0-stemma/modules.dep", "");
    host.put("/usr/lib/modules/6.1.0-next/modules.dep", "");
    assert_eq!(check(&host, &task), CheckResult::Converged);
    host.delete("/usr/lib/modules/6.1.0-stemma");
    assert_eq!(
        difference(&host, &task),
        "would ask for a reboot: the running kernel 6.1.0-stemma is no longer installed, and 6.1.0-next is"
    );
    host.put("/run/systemd/container", "systemd-nspawn\n");
    assert_eq!(check(&host, &task), CheckResult::Converged);
}

/// The two answers are those of dnf-plugins-core 4 and of dnf5.
#[test]
fn reboot_task_asks_dnf_once_per_state_of_packages() {
    let host = MemoryHost::new();
    let answer = Rc::new(std::cell::RefCell::new((
        0,
        "No core libraries or services have been updated.\nReboot should not be necessary.\n",
    )));
    let shared_answer = answer.clone();
    host.on_run(move |_, command: &HostCommand| {
        assert_eq!(command.argv, ["dnf", "needs-restarting", "-r"]);
        let (status, output) = *shared_answer.borrow();
        CommandResult { end: ExitKind::Status(status), output: output.to_owned() }
    });
    let task = task(&json!({"when": "required"}));
    host.put("/usr/lib/sysimage/rpm/rpmdb.sqlite", "1");
    for _ in 0..3 {
        assert_eq!(check(&host, &task), CheckResult::Converged);
    }
    assert_eq!(host.commands_run().len(), 1, "a check without a change of packages runs no process");
    host.put("/usr/lib/sysimage/rpm/rpmdb.sqlite", "22");
    *answer.borrow_mut() = (
        1,
        "Core libraries or services have been updated since boot-up:\n  * glibc\n\nReboot is required to fully utilize these updates.\n",
    );
    assert_eq!(difference(&host, &task), "would ask for a reboot: `dnf needs-restarting -r` says so");
    assert_eq!(host.commands_run().len(), 2);

    host.put("/usr/lib/sysimage/rpm/rpmdb.sqlite", "333");
    *answer.borrow_mut() = (1, "No such command: needs-restarting.\n");
    let error = block_on(RebootApplier.check(&site(&host), &task)).unwrap_err();
    assert!(error.message.contains("install dnf-plugins-core") && error.output.contains("No such command"), "{error:?}");
    host.put("/var/lib/dpkg/status", "");
    assert_eq!(check(&host, &task), CheckResult::Converged, "a Debian host with rpm installed asks no dnf");
}
