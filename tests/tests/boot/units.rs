//! Steps about the units in which commands run: their limits, and what happens to them when the agent ends.

use anyhow::{Context as _, Result, ensure};

use super::MachineFleet;
use super::machine::Machine;
use super::steps::{wait_for_file, wait_until};

/// The manifests of these steps, with placeholders.
const MANIFESTS: &str = "kind: Release\nname: units\nversion: \"VERSION\"\nroles: {web: {tags: [web]}}\ntags: {web: {}, puppet: {}, dnf: {}}\ntasks:\nTASKS\n\
                         ---\n{kind: Cluster, name: lab, release: units@VERSION, host_labels: {patterns: [tier]}}\n";

/// Applies a release with these tasks to the cluster of the hosts.
pub(crate) fn apply_tasks(fleet: &MachineFleet, version: u32, tasks: &str) -> Result<()> {
    let manifests = MANIFESTS.replace("VERSION", &version.to_string()).replace("TASKS", tasks);
    fleet.controller.write("/root/units.yaml", &manifests)?;
    fleet.stemma("apply --yes -f /root/units.yaml")?;
    Ok(())
}

/// Returns the names of the units of tasks that are loaded on a machine.
pub(crate) fn task_units(host: &Machine) -> Result<Vec<String>> {
    let list = host.run_shell("systemctl list-units --all --plain --no-legend --no-pager 'stemma-task-*'")?;
    Ok(list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// None of the limits of the agent's unit applies to a command or to a daemon that it starts (case 33 of the reported
/// bugs). The expected limits are those of a service without settings.
pub(crate) fn run_outside_of_agent_limits(fleet: &mut MachineFleet) -> Result<()> {
    let script = "cat /proc/self/limits /proc/self/oom_score_adj > /root/limits; grep -E '^(NoNewPrivs|Seccomp_filters|CapBnd)' /proc/self/status \
                  > /root/status; setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! > /root/daemon";
    let tasks = format!(
        "  - {{id: probe, type: shell, tags: [web], parameters: {{script: \"{script}\", env: {{PASSWORD: \"not shown\"}}}}}}\n  - \
         {{id: words, type: shell, tags: [web], parameters: {{command: [sh, -c, 'printf \"%s,\" \"$@\" > /root/words', sh, $HOME, '${{PATH}}', $$, 5%n, a b, '']}}}}"
    );
    apply_tasks(fleet, 1, &tasks)?;
    for host in fleet.hosts() {
        fleet.wait_until_converged(host)?;
        // The same values in a service that is started by hand.
        host.run_shell(
            "systemd-run --quiet --wait sh -c 'cat /proc/self/limits /proc/self/oom_score_adj > /root/limits.service; grep -E \
             \"^(NoNewPrivs|Seccomp_filters|CapBnd)\" /proc/self/status > /root/status.service'",
        )?;
        for file in ["limits", "status"] {
            let (command, service) = (host.read(&format!("/root/{file}"))?, host.read(&format!("/root/{file}.service"))?);
            ensure!(command == service, "{file} of a command on {}:\n{command}\n{service}", host.name);
        }
        ensure!(host.read("/root/words")? == "$HOME,${PATH},$$,5%n,a b,,", "{}", host.read("/root/words")?);
        let units = task_units(host)?;
        let [unit] = units.as_slice() else { anyhow::bail!("{units:?}") };
        ensure!(unit.starts_with("stemma-task-probe-"), "{unit}");
        // The daemon that the command started runs in the unit of the command, and not in that of the agent.
        let control_group = host.unit_property(unit, "ControlGroup")?;
        let daemon = host.run_shell("cat /proc/$(cat /root/daemon)/cgroup")?;
        ensure!(daemon.contains(&control_group), "{daemon}");
        let named = host.run_shell(&format!("journalctl --no-pager -u stemma-agent TASK=probe UNIT={unit} -o cat"))?;
        ensure!(named.contains("the command of a task starts"), "{named}");
        // Every user can read the properties of a unit.
        let properties = host.run_shell(&format!("systemctl show {unit}; cat /run/systemd/transient/{unit}"))?;
        ensure!(!properties.contains("not shown"), "{properties}");
        host.run_ok(&["systemctl", "daemon-reload"])?;
        ensure!(host.unit_property(unit, "LoadState")? == "loaded", "systemd cannot read the unit again");
        host.run_ok(&["systemctl", "stop", unit])?;
        ensure!(task_units(host)?.is_empty());
    }
    Ok(())
}

/// The command of a task continues when the agent is killed. The next agent waits for its end, and the command runs
/// once. A guard of a killed agent is stopped and runs again.
pub(crate) fn find_commands_of_killed_agent(fleet: &mut MachineFleet) -> Result<()> {
    let tasks = "  - {id: long, type: shell, tags: [web], parameters: {script: \"echo begun >> /root/long; until test -e /root/end; do echo line; sleep 0.1; \
                 done; echo ended >> /root/long\"}}\n  - {id: checked, type: shell, tags: [web], requires: [long], parameters: {command: [touch, \
                 /root/checked], unless: \"echo guard >> /root/guards; test -e /root/end-guard || sleep 50; exit 1\"}}";
    apply_tasks(fleet, 2, tasks)?;
    for host in fleet.hosts() {
        wait_for_file(host, "/root/long", "begun\n")?;
        kill_agents(&[host])?;
        let units = task_units(host)?;
        ensure!(units.len() == 1, "{units:?}");
        host.write("/root/end", "")?;
        wait_for_file(host, "/root/long", "begun\nended\n")?;
        wait_for_file(host, "/root/guards", "guard\n")?;
        host.write("/root/end-guard", "")?;
        kill_agents(&[host])?;
        wait_for_file(host, "/root/guards", "guard\nguard\n")?;
        fleet.wait_until_converged(host)?;
        ensure!(host.read("/root/long")? == "begun\nended\n", "the command ran again on {}", host.name);
        wait_until("no unit of a command is left", || {
            let left =
                host.run_shell("systemctl list-units --all --plain --no-legend --no-pager 'stemma-task-*' 'stemma-guard-*'")?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        })?;
        host.run_shell("test -z \"$(ls -A /run/stemma/output)\"").context("an output pipe is left")?;
    }
    Ok(())
}

/// The command of a task continues while no agent runs, also when it writes to its output. The agent that is started later
/// reports how the command ended, with the output.
pub(crate) fn end_command_without_agent(fleet: &mut MachineFleet) -> Result<()> {
    let tasks = "  - {id: stopped, type: shell, tags: [web], parameters: {script: \"until test -e /root/end-stopped; do sleep 0.1; done; echo first; echo last; \
                 touch /root/ended; exit 3\"}}";
    apply_tasks(fleet, 3, tasks)?;
    for host in fleet.hosts() {
        wait_until("the command runs", || {
            ensure!(task_units(host)?.len() == 1);
            Ok(())
        })?;
        // A stopped agent waits for its commands. This one is killed while it waits.
        host.run_ok(&["systemctl", "stop", "--no-block", "stemma-agent"])?;
        host.run_ok(&["systemctl", "kill", "--signal=KILL", "--kill-who=main", "stemma-agent"])?;
        wait_until("the agent has ended", || {
            ensure!(host.unit_property("stemma-agent.service", "MainPID")? == "0");
            Ok(())
        })?;
        let answer = host.run(&["stemma-agent", "resolve-unknown", "stopped", "again"])?;
        let message = String::from_utf8_lossy(&answer.stderr).into_owned();
        ensure!(message.contains("runs or has ended in stemma-task-stopped-"), "{message}");
        let check = host.run(&["stemma-agent", "check"])?;
        let check = String::from_utf8_lossy(&check.stdout).into_owned();
        ensure!(check.contains("runs or has ended in stemma-task-stopped-") && !check.contains("resolve-unknown"), "{check}");
        host.write("/root/end-stopped", "")?;
        wait_for_file(host, "/root/ended", "")?;
        host.run_ok(&["systemctl", "reset-failed", "stemma-agent"])?;
        host.run_ok(&["systemctl", "start", "stemma-agent"])?;
        wait_until("the agent reports the output", || {
            let status = host.run(&["stemma-agent", "status"])?;
            let status = String::from_utf8_lossy(&status.stdout);
            ensure!(
                status.contains("that an earlier agent started ended with status 3")
                    && status.contains("first")
                    && status.contains("last"),
                "{status}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// A stop of the agent waits for a running hook. The hook does not run again for the same change.
pub(crate) fn stop_agent_during_hook(fleet: &mut MachineFleet) -> Result<()> {
    const HOOK: &str = "/etc/stemma/hooks.d/10-slow";
    for host in fleet.hosts() {
        host.write(HOOK, "#!/bin/sh\necho begun >> /root/hook\nsleep 2\necho ended >> /root/hook\n")?;
        host.run_ok(&["chmod", "0755", HOOK])?;
        fleet.edit_tier(&format!("hook-{}", host.name), &[host])?;
        wait_for_file(host, "/root/hook", "begun\n")?;
        host.run_ok(&["systemctl", "stop", "stemma-agent"])?;
        ensure!(host.read("/root/hook")? == "begun\nended\n", "the agent did not wait for the hook on {}", host.name);
        host.run_ok(&["systemctl", "start", "stemma-agent"])?;
        fleet.wait_until_converged(host)?;
        ensure!(host.read("/root/hook")? == "begun\nended\n", "the hook ran again on {}", host.name);
        host.run_ok(&["rm", HOOK])?;
    }
    Ok(())
}

/// While a `once` that was started by hand runs a task, the start of the agent does not wait for it, and neither `leave` nor
/// the removal of the package changes anything.
pub(crate) fn refuse_removal_during_once(fleet: &mut MachineFleet) -> Result<()> {
    let tasks = "  - {id: held, type: shell, tags: [web], parameters: {script: \"test -e /root/first || { touch /root/first; exit 1; }; echo begun > \
                 /root/held; until test -e /root/release; do sleep 0.1; done\"}}";
    apply_tasks(fleet, 4, tasks)?;
    for (host, remove) in [(&fleet.deb_host, "dpkg -r stemma-agent"), (&fleet.rpm_host, "rpm -e stemma-agent")] {
        wait_for_file(host, "/root/first", "")?;
        host.run_ok(&["systemctl", "stop", "stemma-agent"])?;
        host.run_ok(&["systemd-run", "--quiet", "--unit=once", "stemma-agent", "once"])?;
        wait_for_file(host, "/root/held", "begun\n")?;
        host.run_ok(&["systemctl", "start", "stemma-agent"])?;
        for _ in ["the agent waits", "the agent is stopped"] {
            ensure!(host.run(&["stemma-agent", "leave"])?.status.code() == Some(4), "`leave` on {}", host.name);
            let removal = host.run(&["sh", "-c", remove])?;
            ensure!(!removal.status.success(), "{remove}");
            let message = String::from_utf8_lossy(&removal.stderr).into_owned();
            ensure!(message.contains("uses this host's state: stop it, then run this again; nothing was removed"), "{message}");
            ensure!(host.run_ok(&["systemctl", "is-enabled", "stemma-agent"])?.trim() == "enabled");
            host.check_unit_state("once.service", "active")?;
            host.run_ok(&["systemctl", "stop", "stemma-agent"])?;
        }
        host.write("/root/release", "")?;
        host.run_ok(&["systemctl", "start", "stemma-agent"])?;
        fleet.wait_until_converged(host)?;
    }
    Ok(())
}

/// A command that subscribes to a task and restarts the agent runs once, and so do the commands that run at the same time.
pub(crate) fn restart_agent_by_subscriber(fleet: &mut MachineFleet) -> Result<()> {
    let mut tasks = "  - {id: content, type: file, tags: [web], parameters: {path: /root/content, content: new}}\n  - {id: reload, type: shell, tags: [web], \
                     subscribes: [content], parameters: {script: \"echo begun >> /root/reload; systemctl restart stemma-agent; echo ended >> \
                     /root/reload\"}}"
        .to_owned();
    for number in 0..5 {
        let script = format!("echo begun >> /root/other{number}; sleep 0.{number}; echo ended >> /root/other{number}");
        tasks.push_str(&format!("\n  - {{id: other{number}, type: shell, tags: [web], parameters: {{script: \"{script}\"}}}}"));
    }
    apply_tasks(fleet, 5, &tasks)?;
    for host in fleet.hosts() {
        wait_for_file(host, "/root/reload", "begun\nended\n")?;
        fleet.wait_until_converged(host)?;
        host.run_shell("echo other > /root/content")?;
        wait_for_file(host, "/root/reload", "begun\nended\nbegun\nended\n")?;
        fleet.wait_until_converged(host)?;
        for number in 0..5 {
            ensure!(host.read(&format!("/root/other{number}"))? == "begun\nended\n", "other{number} on {}", host.name);
        }
        ensure!(host.read("/root/reload")? == "begun\nended\nbegun\nended\n", "the command ran again on {}", host.name);
    }
    Ok(())
}

/// The bus is lost while a command reaches its time limit. Nothing else of its task begins before the command has ended.
/// A stop of the agent does not wait for the next try of a task.
pub(crate) fn lose_bus_at_time_limit(fleet: &mut MachineFleet) -> Result<()> {
    let tasks = "  - {id: alone, type: shell, tags: [web], parameters: {script: \"echo begun >> /root/alone; sleep 60; echo ended >> /root/alone\", \
                 creates: /root/none, timeout: 2, retries: 1}}\n  - {id: tries, type: shell, tags: [web], parameters: {script: \"echo try >> \
                 /root/tries; exit 1\", retries: 5, interval: 600}}";
    apply_tasks(fleet, 9, tasks)?;
    let host = &fleet.deb_host;
    wait_for_file(host, "/root/alone", "begun\n")?;
    host.run_ok(&["systemctl", "stop", "dbus.socket", "dbus.service"])?;
    wait_until("the agent has asked for longer than the time limit", || {
        let log = host.run_shell(
            "journalctl --no-pager --output cat -u stemma-agent | grep -c 'systemd cannot be asked for the end' || true",
        )?;
        ensure!(log.trim().parse::<u32>()? >= 12, "{log}");
        Ok(())
    })?;
    host.run_ok(&["systemctl", "start", "dbus.socket"])?;
    wait_for_file(host, "/root/alone", "begun\nbegun\n")?;
    let units = host.run_shell("systemctl list-units --plain --no-legend --no-pager --state running 'stemma-task-alone-*'")?;
    ensure!(units.lines().count() <= 1, "{units}");
    wait_until("the last try has ended", || {
        let status = host.run(&["stemma-agent", "status"])?;
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        ensure!(status.contains("did not end in time and was stopped (attempt 2)"), "{status}");
        Ok(())
    })?;
    ensure!(host.read("/root/alone")? == "begun\nbegun\n", "a command ended after its time limit");
    for host in fleet.hosts() {
        wait_for_file(host, "/root/tries", "try\n")?;
        host.run_ok(&["systemctl", "stop", "stemma-agent"])?;
        // An agent that systemd has killed after the limit of a stop is `failed`.
        host.check_unit_state("stemma-agent.service", "inactive")?;
        host.run_ok(&["systemctl", "start", "stemma-agent"])?;
        wait_for_file(host, "/root/tries", "try\ntry\n")?;
    }
    Ok(())
}

/// A shutdown waits for the command of a task, and the command does not run again after the boot.
pub(crate) fn shut_down_during_command(fleet: &mut MachineFleet) -> Result<()> {
    let tasks = "  - {id: ending, type: shell, tags: [web], parameters: {script: \"echo begun >> /root/ending; sleep 2; echo ended >> /root/ending\"}}";
    apply_tasks(fleet, 6, tasks)?;
    wait_for_file(&fleet.deb_host, "/root/ending", "begun\n")?;
    fleet.deb_host.reboot()?;
    ensure!(fleet.deb_host.read("/root/ending")? == "begun\nended\n", "the shutdown did not wait for the command");
    for host in fleet.hosts() {
        fleet.wait_until_converged(host)?;
        ensure!(host.read("/root/ending")? == "begun\nended\n", "the command ran again on {}", host.name);
    }
    Ok(())
}

/// A task asks for a reboot, and an operator begins it. A program that blocks a shutdown delays it. The tasks after the
/// reboot wait for it.
pub(crate) fn reboot_by_verb(fleet: &mut MachineFleet) -> Result<()> {
    let tasks = "  - {id: new-kernel, type: reboot, tags: [web]}\n  \
                 - {id: after-boot, type: file, tags: [web], requires: [new-kernel], parameters: {path: /root/after-boot, content: x}}";
    apply_tasks(fleet, 13, tasks)?;
    let describe = |fleet: &MachineFleet, name: &str| fleet.stemma(&format!("describe node {name}"));
    for name in ["web-1", "web-2"] {
        wait_until("the task waits for a reboot", || {
            let text = describe(fleet, name)?;
            ensure!(text.contains("waits for a reboot: run `stemma node reboot"), "{text}");
            Ok(())
        })?;
    }
    let inhibit =
        "systemd-run --unit=inhibitor systemd-inhibit --what=shutdown --mode=block --who=trial --why=upgrade sleep 1000";
    fleet.deb_host.run_shell(inhibit)?;
    fleet.deb_host.check_unit_state("inhibitor.service", "active")?;
    fleet.stemma("node reboot web-1 web-2")?;
    fleet.rpm_host.await_reboot()?;
    wait_until("the agent reports who blocks the reboot", || {
        let text = describe(fleet, "web-1")?;
        ensure!(text.contains("it is inhibited by trial"), "{text}");
        Ok(())
    })?;
    ensure!(!fleet.deb_host.outside_path("/root/after-boot").exists(), "the task did not wait for the reboot");
    fleet.deb_host.run_ok(&["systemctl", "stop", "inhibitor.service"])?;
    fleet.deb_host.await_reboot()?;
    for host in fleet.hosts() {
        fleet.wait_until_converged(host)?;
        wait_for_file(host, "/root/after-boot", "x")?;
    }
    Ok(())
}

/// Kills the agents of these hosts, and waits until systemd has started others.
pub(crate) fn kill_agents(hosts: &[&Machine]) -> Result<()> {
    let mut old_pids = Vec::new();
    for host in hosts {
        old_pids.push(host.unit_property("stemma-agent.service", "MainPID")?);
        host.run_ok(&["systemctl", "kill", "--signal=KILL", "--kill-who=main", "stemma-agent"])?;
    }
    for (host, old) in hosts.iter().zip(old_pids) {
        wait_until("the agent is started again", || {
            let new = host.unit_property("stemma-agent.service", "MainPID")?;
            ensure!(new != "0" && new != old, "the main process is {new}");
            host.check_unit_state("stemma-agent.service", "active")
        })?;
    }
    Ok(())
}

/// An agent that one of its own tasks upgrades survives the upgrade, and the task succeeds once.
pub(crate) fn f35_upgrade_agent_by_task(fleet: &mut MachineFleet) -> Result<()> {
    for host in fleet.hosts() {
        fleet.copy_packages(host, 2)?;
    }
    let old_pids = fleet.hosts().map(|host| host.unit_property("stemma-agent.service", "MainPID"));
    let tasks = "  - {id: upgrade, type: shell, tags: [web], parameters: {script: \"echo begun >> /root/upgrade; if test -e /var/lib/dpkg/info/stemma-agent.list; \
                 then dpkg -i /root/packages-2/stemma-agent_*.deb; else rpm -U --replacepkgs --nodeps /root/packages-2/stemma-agent-*.rpm; fi && echo ended >> \
                 /root/upgrade\"}}";
    apply_tasks(fleet, 7, tasks)?;
    for (host, old_pid) in fleet.hosts().into_iter().zip(old_pids) {
        wait_for_file(host, "/root/upgrade", "begun\nended\n")?;
        fleet.wait_until_converged(host)?;
        ensure!(host.read("/root/upgrade")? == "begun\nended\n", "the task ran again on {}", host.name);
        let new_pid = host.unit_property("stemma-agent.service", "MainPID")?;
        ensure!(new_pid != old_pid?, "the old agent runs on {}", host.name);
        let status = host.run_shell("stemma-agent status")?;
        ensure!(!status.contains("unknown"), "{status}");
        let is_changed = status.lines().any(|line| line.contains("upgrade") && line.contains("changed"));
        ensure!(is_changed, "the report lacks the change of the task: {status}");
    }
    // The steps that follow need the tasks of the earlier release.
    fleet.apply_release(3)?;
    fleet.hosts().into_iter().try_for_each(|host| fleet.wait_until_converged(host))
}
