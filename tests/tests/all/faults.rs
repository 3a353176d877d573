//! The machine fails under both real programs: a disk that gives errors or takes nothing (F05, F08, F09), one that is out of
//! descriptors or memory (F39), one that stops for a while (F26), one whose disk was copied (S19). Each says what is the matter,
//! nothing acknowledged is lost, nothing is torn, and all goes on when the cause is gone.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::chance::is_long;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::operator::{Operator, Write};
use stemma_tests::program::{PATIENCE, Running, eventually, memory, succeed};
use stemma_tests::site::{converged, edit_tier, tier_arrives, whole};
use stemma_tests::tool;
use uuid::Uuid;

use crate::stored::Stored;

/// The edit is on the host: in its label files and in the file of the template that reads it.
fn arrives(web: &Agent, tier: &str) -> Result<()> {
    tier_arrives(PATIENCE, web, tier)
}

/// Sends a signal by its name.
fn signal(name: &str, id: Option<u32>) -> Result<()> {
    let id = id.context("the program runs")?.to_string();
    ensure!(Command::new("kill").args([&format!("-{name}"), &id]).status()?.success(), "SIG{name} to {id}");
    Ok(())
}

/// Sets a soft limit of a running program.
fn limit(what: &str, id: Option<u32>, value: &str) -> Result<()> {
    let id = id.context("the program runs")?.to_string();
    ensure!(Command::new("prlimit").args(["--pid", &id, &format!("--{what}={value}:")]).status()?.success(), "prlimit");
    Ok(())
}

/// No number is below this but those of the three standard streams: what is open stays so, and nothing more is opened.
const NO_DESCRIPTORS: &str = "3";

/// Gives a program no more memory than it has asked for so far: what it has free of that is all that is left.
fn no_more_memory(id: Option<u32>) -> Result<()> {
    let bytes = memory(id.context("the program runs")?, "VmData:")?;
    limit("data", id, &bytes.to_string())
}

/// Whether a program was out of memory: it ended by that, or says so.
fn was_without_memory(id: Option<u32>, log: &str) -> Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", id.context("the program ran")?));
    let is_over = status.map_or(true, |status| status.lines().any(|line| line.starts_with("State:\tZ")));
    Ok(log.contains("os error 12") || (is_over && log.contains("memory allocation of")))
}

#[test]
fn f05_f07_f09_an_agent_whose_disk_fails_says_so_and_tears_nothing() -> Result<()> {
    if !tool::is_there("strace", &["-o", "/dev/null", "true"]) {
        return Ok(());
    }
    let (fleet, mut web) = converged()?;
    let trace = fleet.dir().join("trace");
    for (number, (call, error, said)) in [
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
        web.start_under(&tool::traced(&trace, &[&format!("inject={call}:error={error}")]))?;
        edit_tier(&fleet, &format!("failing-{number}"))?;
        let told = eventually("the agent tells of it", || {
            let log = web.log();
            ensure!(log.contains(said), "{log}");
            Ok(())
        });
        told.with_context(context)?;
        whole(&web).with_context(context)?;
        web.kill()?;
        web.start()?;
        arrives(&web, &format!("failing-{number}")).with_context(context)?;
    }
    Ok(())
}

/// Writes until one is not taken; how many were, and what the first that was not is answered.
fn write_until_refused(operator: &mut Operator, first: u64) -> Result<(u64, u16, Value)> {
    for number in first..first + 2000 {
        let body = json!({"number": number.to_string()});
        let path = "/v1/clusters/prod/nodegroups/frontends/labels".to_owned();
        let (status, body) =
            operator.write(&Write { method: "PATCH", path, body, key: Uuid::from_u128(number.into()) })?;
        if status != 200 {
            return Ok((number - 1, status, body));
        }
    }
    anyhow::bail!("all of 2,000 writes were taken")
}

/// What was answered; `None` when there was no answer because the controller has ended, as one does whose store takes no writes.
fn unless_ended<T>(fleet: &Fleet, answered: Result<T>) -> Result<Option<T>> {
    match answered {
        Err(_) if fleet.log().contains("the store takes no writes; the controller ends soon") => {
            eventually("the controller ends", || {
                ensure!(TcpStream::connect(fleet.bound().admin.trim_start_matches("https://")).is_err());
                Ok(())
            })?;
            Ok(None)
        }
        answered => answered.map(Some),
    }
}

#[test]
fn f05_f06_f08_a_controller_whose_disk_fails_takes_no_write_and_loses_none() -> Result<()> {
    if !tool::is_there("strace", &["-o", "/dev/null", "true"]) {
        return Ok(());
    }
    let (mut fleet, web) = converged()?;
    let trace = fleet.dir().join("trace");
    let mut first = 1;
    for fault in ["fdatasync:error=EIO:when=30+", "pwrite64:error=EROFS:when=150+", "pwrite64:error=ENOSPC:when=150+"] {
        fleet.stop_controller()?;
        fleet.start_controller_under(&tool::traced(&trace, &[&format!("inject={fault}")]))?;
        let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
        let (taken, status, body) = write_until_refused(&mut operator, first).context(fault)?;
        ensure!(taken > first && status >= 500, "{fault}: {taken}, {status} {body}");
        // It ends after a while, and on a busy machine perhaps before all of this was asked.
        if let Some((_, again, why)) = unless_ended(&fleet, write_until_refused(&mut operator, taken + 2))? {
            ensure!((again, why["error"]["type"].as_str()) == (503, Some("store.read_only")), "{fault}: {again} {why}");
        }
        for (path, status) in [("/readyz", 503), ("/healthz", 200), ("/v1/nodes/web-1", 200)] {
            if let Some((found, _)) = unless_ended(&fleet, operator.get(path))? {
                ensure!(found == status, "{fault}: {path} is answered with {found}");
            }
        }
        eventually("it says why", || {
            ensure!(fleet.log().contains("os error"), "{fault}: {}", fleet.log());
            Ok(())
        })?;
        fleet.kill_controller()?;
        let stored = Stored::copied(&fleet.data())?;
        stored.check().context(fault)?;
        for number in first..=taken {
            ensure!(
                stored.request("admin", Uuid::from_u128(number.into())).is_some(),
                "{fault}: {number} was answered, and is lost"
            );
        }
        fleet.start_controller()?;
        edit_tier(&fleet, &format!("after-{taken}"))?;
        arrives(&web, &format!("after-{taken}")).context(fault)?;
        first = taken + 5000;
    }
    Ok(())
}

#[test]
fn f39_a_controller_without_descriptors_serves_who_is_there_and_takes_others_later() -> Result<()> {
    let (fleet, web) = converged()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    eventually("the host has told its results", || {
        let (_, node) = operator.get("/v1/nodes/web-1")?;
        ensure!(node["state"] == "converged", "{node}");
        Ok(())
    })?;
    let id = fleet.controller_id();
    limit("nofile", id, NO_DESCRIPTORS)?;
    let address: std::net::SocketAddr = fleet.bound().admin.trim_start_matches("https://").parse()?;
    let waiting = (0..20).map(|_| TcpStream::connect(address)).collect::<Result<Vec<_>, _>>()?;
    eventually("it says so", || {
        ensure!(fleet.log().contains("connections cannot be accepted"), "{}", fleet.log());
        Ok(())
    })?;
    let body = json!({"tier": "without-descriptors"});
    let path = "/v1/clusters/prod/nodegroups/frontends/labels".to_owned();
    let (status, body) = operator.write(&Write { method: "PATCH", path, body, key: Uuid::from_u128(1) })?;
    ensure!(status == 200, "who is there is served: {status} {body}");
    arrives(&web, "without-descriptors")?;
    drop(waiting);
    limit("nofile", id, "1024")?;
    edit_tier(&fleet, "with-descriptors")?;
    arrives(&web, "with-descriptors")
}

#[test]
fn f39_an_agent_without_descriptors_tears_nothing_and_goes_on_when_there_are_some() -> Result<()> {
    let (fleet, web) = converged()?;
    limit("nofile", web.id(), NO_DESCRIPTORS)?;
    edit_tier(&fleet, "without-descriptors")?;
    eventually("it says so", || {
        let log = web.log();
        ensure!(log.contains("os error 24"), "{log}");
        Ok(())
    })?;
    whole(&web)?;
    limit("nofile", web.id(), "1024")?;
    edit_tier(&fleet, "with-descriptors")?;
    // An agent that cannot keep its state tries again every half a minute.
    tier_arrives(Duration::from_mins(4), &web, "with-descriptors")
}

#[test]
fn f39_who_is_out_of_memory_ends_or_goes_on_and_loses_nothing() -> Result<()> {
    let (mut fleet, mut web) = converged()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    no_more_memory(web.id())?;
    let large: serde_json::Map<_, _> = (0..14).map(|at| (format!("large-{at}"), "x".repeat(4000).into())).collect();
    let path = "/v1/clusters/prod/nodegroups/frontends/labels".to_owned();
    let (status, told) =
        operator.write(&Write { method: "PATCH", path, body: large.into(), key: Uuid::from_u128(1000) })?;
    ensure!(status == 200, "{status} {told}");
    eventually("the agent is out of memory", || {
        ensure!(was_without_memory(web.id(), &web.log())?, "{}", web.log());
        Ok(())
    })?;
    whole(&web)?;
    // It is started anew, as its unit would.
    web.kill()?;
    web.start()?;
    edit_tier(&fleet, "agent-with-memory")?;
    arrives(&web, "agent-with-memory")?;

    let id = fleet.controller_id();
    no_more_memory(id)?;
    let mut taken = Vec::new();
    for number in 1..200_u128 {
        let large = "x".repeat(60_000);
        let body = json!({"parameters": {"large": large, "number": u64::try_from(number)?}});
        let write = Write { method: "PATCH", path: "/v1/clusters/prod".into(), body, key: Uuid::from_u128(number) };
        match operator.write(&write) {
            Ok((200, _)) => taken.push(write.key),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    eventually("the controller is out of memory", || {
        ensure!(was_without_memory(id, &fleet.log())?, "{} writes were taken; {}", taken.len(), fleet.log());
        Ok(())
    })?;
    // It may have ended by itself.
    let _ended = fleet.kill_controller();
    let stored = Stored::copied(&fleet.data())?;
    stored.check()?;
    ensure!(taken.iter().all(|key| stored.request("admin", *key).is_some()), "an answered write is lost");
    fleet.start_controller()?;
    edit_tier(&fleet, "controller-with-memory")?;
    arrives(&web, "controller-with-memory")
}

#[test]
fn f26_who_stood_still_goes_on_where_it_was() -> Result<()> {
    let (fleet, web) = converged()?;
    let still = Duration::from_secs(if is_long() { 60 } else { 3 });
    signal("STOP", fleet.controller_id())?;
    eventually("the controller stands still", || stands_still(fleet.controller_id()))?;
    let write = fleet.begin(&["label", "nodegroup", "prod/frontends", "tier=while-it-stood"])?;
    std::thread::sleep(still);
    signal("CONT", fleet.controller_id())?;
    // One that gave up waiting says so, and is made again.
    if !write.ended()? {
        edit_tier(&fleet, "while-it-stood")?;
    }
    arrives(&web, "while-it-stood")?;
    signal("STOP", web.id())?;
    eventually("the agent stands still", || stands_still(web.id()))?;
    edit_tier(&fleet, "while-the-host-stood")?;
    std::thread::sleep(still);
    signal("CONT", web.id())?;
    arrives(&web, "while-the-host-stood")?;
    let notes = std::fs::read_to_string(web.path("var/log/site.log"))?;
    let mut ran: Vec<&str> = notes.lines().collect();
    let runs = ran.len();
    ran.dedup();
    ensure!(ran.len() == runs, "a command ran twice for one value:\n{notes}");
    Ok(())
}

/// Copies a host's disk while its agent stands still, as a machine's disk is copied: a file that goes away meanwhile would be missed.
fn copied(web: &Agent, to: &Path) -> Result<()> {
    signal("STOP", web.id())?;
    let still = eventually("it stands still", || stands_still(web.id()));
    let copied = Command::new("cp").arg("-a").args([&*web.path(""), to]).status();
    signal("CONT", web.id())?;
    ensure!(copied?.success(), "cp");
    still
}

/// Whether every thread of a program is stopped: one that is in a call of the system is so only when that has returned.
fn stands_still(id: Option<u32>) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{}/task", id.context("the program runs")?))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        ensure!(status.lines().any(|line| line.starts_with("State:\tT")), "{status}");
    }
    Ok(())
}

/// Runs a copy of a host beside it, after `prepare` was done to the copy, until the controller tells of two.
fn copied_is_told_of(prepare: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    let (fleet, web) = converged()?;
    let copy = fleet.dir().join("copy");
    copied(&web, &copy)?;
    prepare(&copy.to_string_lossy())?;
    let second = Running::start("stemma-agent", ["--root", &copy.to_string_lossy(), "run"])?;
    eventually("the controller tells of two", || {
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "web-1", "-o", "json"])?)?;
        let findings = node["findings"].as_array().cloned().unwrap_or_default();
        let is_doubled = findings.iter().any(|finding| finding["code"] == "identity.doubled");
        ensure!(node["state"] == "failed" && is_doubled, "{node}");
        Ok(())
    })?;
    second.kill()
}

#[test]
fn w09_a_copy_of_a_host_on_the_same_machine_is_told_of() -> Result<()> {
    copied_is_told_of(|_| Ok(()))
}

#[test]
fn w09_a_copy_that_was_paused_is_told_of_too() -> Result<()> {
    copied_is_told_of(|root| succeed("stemma-agent", ["--root", root, "pause"]).map(drop))
}
