//! The machine fails under both real programs: a disk that returns errors or is full (F05, F08, F09), no free
//! descriptors or memory (F39), a process that is stopped for a while (F26), a copied disk (S19). Each program reports
//! the cause. Nothing acknowledged is lost, no file is torn, and everything continues when the cause is gone.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::operator::{OperatorClient, OperatorWrite};
use stemma_tests::program::{MAX_WAIT, RunningProgram, eventually, memory_bytes, succeed};
use stemma_tests::seed::is_long;
use stemma_tests::site::{check_files, fleet_with_complete_files, set_tier, wait_for_tier};
use stemma_tests::tool;
use uuid::Uuid;

use crate::store_copy::StoreCopy;

/// Waits until this value of the label `tier` is in the host's label file `labels.json`, and in the file whose template
/// reads the label.
fn wait_for_edit(web: &TestAgent, tier: &str) -> Result<()> {
    wait_for_tier(MAX_WAIT, web, tier)
}

/// Sends a signal, such as `STOP`, to the process with this id. Fails if the id is `None`.
fn send_signal(name: &str, id: Option<u32>) -> Result<()> {
    let id = id.context("the program runs")?.to_string();
    ensure!(Command::new("kill").args([&format!("-{name}"), &id]).status()?.success(), "SIG{name} to {id}");
    Ok(())
}

/// Sets a soft limit of a running program. `resource` is the option of `prlimit`, such as `nofile`.
fn set_soft_limit(resource: &str, id: Option<u32>, value: &str) -> Result<()> {
    let id = id.context("the program runs")?.to_string();
    ensure!(Command::new("prlimit").args(["--pid", &id, &format!("--{resource}={value}:")]).status()?.success(), "prlimit");
    Ok(())
}

/// Limit of open files, which the three standard streams exhaust. A program with this limit retains its open files, and
/// cannot open another file.
const DESCRIPTOR_LIMIT: &str = "3";

/// Limits the data segment of a program to its current size. The program can then use only memory that it has already
/// reserved.
fn limit_memory(id: Option<u32>) -> Result<()> {
    let bytes = memory_bytes(id.context("the program runs")?, "VmData:")?;
    set_soft_limit("data", id, &bytes.to_string())
}

/// Returns whether a program ran out of memory. It has logged the error (12 is ENOMEM), or has ended after a failed
/// allocation.
fn ran_out_of_memory(id: Option<u32>, log: &str) -> Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", id.context("the program ran")?));
    let has_ended = status.map_or(true, |status| status.lines().any(|line| line.starts_with("State:\tZ")));
    Ok(log.contains("os error 12") || (has_ended && log.contains("memory allocation of")))
}

/// System calls of the agent fail while it applies an edit. It logs the error and leaves no partly written file. After
/// a restart of the agent without these failures, the edit arrives.
#[test]
fn f05_f07_f09_agent_reports_failing_disk_and_tears_nothing() -> Result<()> {
    if !tool::is_available("strace", &["-o", "/dev/null", "true"]) {
        return Ok(());
    }
    let (fleet, mut web) = fleet_with_complete_files()?;
    let trace = fleet.dir().join("trace");
    for (number, (call, error, error_text)) in [
        ("fsync", "EIO", "os error 5"),
        ("fsync", "EROFS", "os error 30"),
        ("renameat", "EROFS", "os error 30"),
        ("renameat", "EIO", "os error 5"),
        ("fchmod", "ENOSPC", "os error 28"),
    ]
    .into_iter()
    .enumerate()
    {
        let context = || format!("{call} gives {error}");
        web.kill()?;
        web.start_under(&tool::strace_command(&trace, &[&format!("inject={call}:error={error}")]))?;
        set_tier(&fleet, &format!("failing-{number}"))?;
        let result = eventually("the error in the agent's log", || {
            let log = web.log();
            ensure!(log.contains(error_text), "{log}");
            Ok(())
        });
        result.with_context(context)?;
        check_files(&web).with_context(context)?;
        web.kill()?;
        web.start()?;
        wait_for_edit(&web, &format!("failing-{number}")).with_context(context)?;
    }
    Ok(())
}

/// Sends writes with the numbers from `first_number` until a write fails. Returns the number of the last successful
/// write, and the status and body of the failed write.
fn write_until_refused(operator: &mut OperatorClient, first_number: u64) -> Result<(u64, u16, Value)> {
    for number in first_number..first_number + 2000 {
        let body = json!({"number": number.to_string()});
        let path = "/v1/clusters/prod/nodegroups/frontends/labels".to_owned();
        let (status, body) =
            operator.write(&OperatorWrite { method: "PATCH", path, body, key: Uuid::from_u128(number.into()) })?;
        if status != 200 {
            return Ok((number - 1, status, body));
        }
    }
    anyhow::bail!("all 2,000 writes succeeded")
}

/// Returns the response or the error of a request. The controller ends soon after a failed write of its store. If the
/// request failed and the controller has logged this, waits until the controller has ended, and returns `None`.
fn unless_controller_ended<T>(fleet: &TempFleet, response: Result<T>) -> Result<Option<T>> {
    match response {
        Err(_) if fleet.log().contains("the store takes no writes; the controller ends soon") => {
            eventually("the controller ends", || {
                ensure!(TcpStream::connect(fleet.addresses().admin.trim_start_matches("https://")).is_err());
                Ok(())
            })?;
            Ok(None)
        }
        response => response.map(Some),
    }
}

#[test]
fn f05_f06_f08_controller_refuses_writes_and_loses_none_when_disk_fails() -> Result<()> {
    if !tool::is_available("strace", &["-o", "/dev/null", "true"]) {
        return Ok(());
    }
    let (mut fleet, web) = fleet_with_complete_files()?;
    let trace = fleet.dir().join("trace");
    let mut first_number = 1;
    for fault in ["fdatasync:error=EIO:when=30+", "pwrite64:error=EROFS:when=150+", "pwrite64:error=ENOSPC:when=150+"] {
        fleet.stop_controller()?;
        fleet.start_controller_under(&tool::strace_command(&trace, &[&format!("inject={fault}")]))?;
        let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
        let (last_written, status, body) = write_until_refused(&mut operator, first_number).context(fault)?;
        ensure!(last_written > first_number && status >= 500, "{fault}: {last_written}, {status} {body}");
        // The controller ends after a while. On a busy machine it may end before all these requests.
        if let Some((_, later_status, error_body)) =
            unless_controller_ended(&fleet, write_until_refused(&mut operator, last_written + 2))?
        {
            ensure!(
                (later_status, error_body["error"]["type"].as_str()) == (503, Some("store.read_only")),
                "{fault}: {later_status} {error_body}"
            );
        }
        for (path, status) in [("/readyz", 503), ("/healthz", 200), ("/v1/nodes/web-1", 200)] {
            if let Some((found_status, _)) = unless_controller_ended(&fleet, operator.get(path))? {
                ensure!(found_status == status, "{fault}: {path} is answered with {found_status}");
            }
        }
        eventually("the error in the controller's log", || {
            ensure!(fleet.log().contains("os error"), "{fault}: {}", fleet.log());
            Ok(())
        })?;
        fleet.kill_controller()?;
        let stored = StoreCopy::copy_from(&fleet.data())?;
        stored.check().context(fault)?;
        for number in first_number..=last_written {
            ensure!(
                stored.request_record("admin", Uuid::from_u128(number.into())).is_some(),
                "{fault}: {number} was answered, and is lost"
            );
        }
        fleet.start_controller()?;
        set_tier(&fleet, &format!("after-{last_written}"))?;
        wait_for_edit(&web, &format!("after-{last_written}")).context(fault)?;
        first_number = last_written + 5000;
    }
    Ok(())
}

#[test]
fn f39_controller_serves_open_connections_when_out_of_descriptors() -> Result<()> {
    let (fleet, web) = fleet_with_complete_files()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    eventually("the results of the host's tasks", || {
        let (_, node) = operator.get("/v1/nodes/web-1")?;
        ensure!(node["state"] == "converged", "{node}");
        Ok(())
    })?;
    let id = fleet.controller_id();
    set_soft_limit("nofile", id, DESCRIPTOR_LIMIT)?;
    let address: std::net::SocketAddr = fleet.addresses().admin.trim_start_matches("https://").parse()?;
    let connections = (0..20).map(|_| TcpStream::connect(address)).collect::<Result<Vec<_>, _>>()?;
    eventually("the error in the controller's log", || {
        ensure!(fleet.log().contains("connections cannot be accepted"), "{}", fleet.log());
        Ok(())
    })?;
    let body = json!({"tier": "without-descriptors"});
    let path = "/v1/clusters/prod/nodegroups/frontends/labels".to_owned();
    let (status, body) = operator.write(&OperatorWrite { method: "PATCH", path, body, key: Uuid::from_u128(1) })?;
    ensure!(status == 200, "an open connection is served: {status} {body}");
    wait_for_edit(&web, "without-descriptors")?;
    drop(connections);
    set_soft_limit("nofile", id, "1024")?;
    set_tier(&fleet, "with-descriptors")?;
    wait_for_edit(&web, "with-descriptors")
}

#[test]
fn f39_agent_continues_when_descriptors_are_available_again() -> Result<()> {
    let (fleet, web) = fleet_with_complete_files()?;
    set_soft_limit("nofile", web.id(), DESCRIPTOR_LIMIT)?;
    set_tier(&fleet, "without-descriptors")?;
    eventually("the error in the agent's log", || {
        let log = web.log();
        ensure!(log.contains("os error 24"), "{log}");
        Ok(())
    })?;
    check_files(&web)?;
    set_soft_limit("nofile", web.id(), "1024")?;
    set_tier(&fleet, "with-descriptors")?;
    // An agent that cannot store its state retries every 30 seconds.
    wait_for_tier(Duration::from_mins(4), &web, "with-descriptors")
}

#[test]
fn f39_programs_lose_nothing_when_out_of_memory() -> Result<()> {
    let (mut fleet, mut web) = fleet_with_complete_files()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    limit_memory(web.id())?;
    let large: serde_json::Map<_, _> = (0..14).map(|number| (format!("large-{number}"), "x".repeat(4000).into())).collect();
    let path = "/v1/clusters/prod/nodegroups/frontends/labels".to_owned();
    let (status, answer) =
        operator.write(&OperatorWrite { method: "PATCH", path, body: large.into(), key: Uuid::from_u128(1000) })?;
    ensure!(status == 200, "{status} {answer}");
    eventually("the agent is out of memory", || {
        ensure!(ran_out_of_memory(web.id(), &web.log())?, "{}", web.log());
        Ok(())
    })?;
    check_files(&web)?;
    // Restarts the agent, as its unit would.
    web.kill()?;
    web.start()?;
    set_tier(&fleet, "agent-with-memory")?;
    wait_for_edit(&web, "agent-with-memory")?;

    let id = fleet.controller_id();
    limit_memory(id)?;
    let mut stored_keys = Vec::new();
    for number in 1..200_u128 {
        let large = "x".repeat(60_000);
        let body = json!({"parameters": {"large": large, "number": u64::try_from(number)?}});
        let write = OperatorWrite { method: "PATCH", path: "/v1/clusters/prod".into(), body, key: Uuid::from_u128(number) };
        match operator.write(&write) {
            Ok((200, _)) => stored_keys.push(write.key),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    eventually("the controller is out of memory", || {
        ensure!(ran_out_of_memory(id, &fleet.log())?, "{} writes succeeded; {}", stored_keys.len(), fleet.log());
        Ok(())
    })?;
    // The controller may have ended already.
    let _ended = fleet.kill_controller();
    let stored = StoreCopy::copy_from(&fleet.data())?;
    stored.check()?;
    ensure!(stored_keys.iter().all(|key| stored.request_record("admin", *key).is_some()), "an answered write is lost");
    fleet.start_controller()?;
    set_tier(&fleet, "controller-with-memory")?;
    wait_for_edit(&web, "controller-with-memory")
}

#[test]
fn f26_programs_continue_when_resumed() -> Result<()> {
    let (fleet, web) = fleet_with_complete_files()?;
    let stop_duration = Duration::from_secs(if is_long() { 60 } else { 3 });
    send_signal("STOP", fleet.controller_id())?;
    eventually("the stopped controller", || check_stopped(fleet.controller_id()))?;
    let write = fleet.spawn_cli(&["label", "nodegroup", "prod/frontends", "tier=while-it-stood"])?;
    std::thread::sleep(stop_duration);
    send_signal("CONT", fleet.controller_id())?;
    // If the command gave up waiting, it fails, and the test repeats the write.
    if !write.wait()? {
        set_tier(&fleet, "while-it-stood")?;
    }
    wait_for_edit(&web, "while-it-stood")?;
    send_signal("STOP", web.id())?;
    eventually("the stopped agent", || check_stopped(web.id()))?;
    set_tier(&fleet, "while-the-host-stood")?;
    std::thread::sleep(stop_duration);
    send_signal("CONT", web.id())?;
    wait_for_edit(&web, "while-the-host-stood")?;
    // A command of the demo adds a line to this file for each value of the label.
    let log_text = std::fs::read_to_string(web.path("var/log/site.log"))?;
    let mut entries: Vec<&str> = log_text.lines().collect();
    let entry_count = entries.len();
    entries.dedup();
    ensure!(entries.len() == entry_count, "a command ran twice for one value:\n{log_text}");
    Ok(())
}

/// Copies the files of a host, as a machine's disk is copied. The agent is stopped during the copy, so that no file
/// disappears.
fn copy_host(web: &TestAgent, to: &Path) -> Result<()> {
    send_signal("STOP", web.id())?;
    let stop_result = eventually("the stopped agent", || check_stopped(web.id()));
    let copy_status = Command::new("cp").arg("-a").args([&*web.path(""), to]).status();
    send_signal("CONT", web.id())?;
    ensure!(copy_status?.success(), "cp");
    stop_result
}

/// Fails unless every thread of a program is stopped. A thread in a system call stops only when the call returns.
fn check_stopped(id: Option<u32>) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{}/task", id.context("the program runs")?))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        ensure!(status.lines().any(|line| line.starts_with("State:\tT")), "{status}");
    }
    Ok(())
}

/// Runs a copy of a host at the same time as the host, until the controller reports that two hosts have the identity of
/// one node. Before the copy runs, `prepare` gets the root directory of the copy.
fn check_copy_is_reported(prepare: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    let (fleet, web) = fleet_with_complete_files()?;
    let copy = fleet.dir().join("copy");
    copy_host(&web, &copy)?;
    prepare(&copy.to_string_lossy())?;
    let second_agent = RunningProgram::start("stemma-agent", ["--root", &copy.to_string_lossy(), "run"])?;
    eventually("the finding about two hosts", || {
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "web-1", "-o", "json"])?)?;
        let findings = node["findings"].as_array().cloned().unwrap_or_default();
        let is_doubled = findings.iter().any(|finding| finding["code"] == "identity.doubled");
        ensure!(node["state"] == "failed" && is_doubled, "{node}");
        Ok(())
    })?;
    second_agent.kill()
}

#[test]
fn w09_controller_reports_copied_host_on_same_machine() -> Result<()> {
    check_copy_is_reported(|_| Ok(()))
}

#[test]
fn w09_controller_reports_copied_host_when_copy_was_paused() -> Result<()> {
    check_copy_is_reported(|root| succeed("stemma-agent", ["--root", root, "pause"]).map(drop))
}
