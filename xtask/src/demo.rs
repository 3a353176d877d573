//! `cargo xtask demo`: a fleet being told what it is, on one screen.
//!
//! The same programs, protocol and store that people install, driven through the same harness as the tests: nothing is
//! staged, and every figure is read back from what runs.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains};

use crate::cargo::{command, root, step};

#[derive(Args)]
pub(crate) struct Options {
    /// End after the last step, in place of waiting for Ctrl-C.
    #[arg(long)]
    exit: bool,
}

/// Name and group of each host.
const HOSTS: [(&str, &str); 3] = [("web-1", "prod/frontends"), ("web-2", "prod/frontends"), ("db-1", "prod/databases")];

pub(crate) fn run(options: &Options) -> Result<()> {
    let programs =
        ["build", "--quiet", "--package", "stemma-controller", "--package", "stemma-agent", "--package", "stemma"];
    step("build the programs (minutes the first time, nothing later)", command("cargo", &programs))?;
    let fleet = Fleet::start()?;
    println!("\nstemma demo  controller {}  store redb  data {}", fleet.bound().admin, fleet.dir().display());
    apply(&fleet)?;
    let agents = join(&fleet)?;
    why(&fleet)?;
    written(&agents[0])?;
    edit(&fleet, &agents)?;
    if options.exit {
        return Ok(());
    }
    println!("\nNow you:  export STEMMA_CONTEXT={}", fleet.context().display());
    println!("  {0} get nodes -o wide      {0} describe node web-1", shown_path());
    println!("  {0} label node web-2 tier=bronze      {0} explain node web-2 label tier", shown_path());
    println!("Ctrl-C ends it and removes {}", fleet.dir().display());
    wait_for_interrupt()
}

fn apply(fleet: &Fleet) -> Result<()> {
    let site = root().join("examples/site");
    let applied = fleet.stemma(&["apply", "-f", &site.to_string_lossy(), "-o", "json"])?;
    let applied: Value = serde_json::from_str(&applied)?;
    let objects = applied["objects"].as_array().context("apply lists its objects")?;
    let kinds: Vec<String> =
        objects.iter().map(|object| format!("{} {}", text(object, "kind"), text(object, "name"))).collect();
    println!("\n1 Applied from examples/site: {}", kinds.join(", "));
    let release: Value = serde_json::from_str(&fleet.stemma(&["get", "release", "site@2026.11", "-o", "json"])?)?;
    for (role, spec) in release["roles"].as_object().into_iter().flatten() {
        let tags: Vec<&str> = spec["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let tasks: Vec<String> = release["tasks"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|task| {
                task["tags"]
                    .as_array()
                    .is_some_and(|own| own.iter().any(|tag| tags.contains(&tag.as_str().unwrap_or(""))))
            })
            .map(|task| match task["condition"].as_str() {
                Some(condition) => format!("{} (if {condition})", text(task, "id")),
                None => text(task, "id"),
            })
            .collect();
        println!("  role {role:<4} -> tags {:<14} -> tasks {}", tags.join(" "), tasks.join(" "));
    }
    Ok(())
}

fn join(fleet: &Fleet) -> Result<Vec<Agent>> {
    println!("\n2 Three hosts join (mutual TLS 1.3, a token each)");
    // What the host itself would say: it may not override an operator.
    let local = fleet.dir().join("web-1/etc/stemma/labels.d");
    std::fs::create_dir_all(&local)?;
    std::fs::write(local.join("local"), "tier=silver\n")?;
    let mut agents = Vec::new();
    let mut joined = Vec::new();
    for (name, group) in HOSTS {
        let start = Instant::now();
        agents.push(fleet.join(name, group)?);
        joined.push(start);
    }
    println!("  {:<7} {:<15} {:<6} {:<7} {:<34} STATE", "NODE", "GROUP", "MODE", "TRAITS", "TAGS");
    for ((name, _), start) in HOSTS.iter().zip(joined) {
        let node = eventually("a host that has taken its tasks", || {
            let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", name, "-o", "json"])?)?;
            let state = text(&node, "state");
            ensure!(state != "changing" && state != "waiting" && node["connected"] == true, "{name} is {state}");
            Ok(node)
        })?;
        let traits = node["trait_sources"].as_object().map_or(0, serde_json::Map::len);
        let tags = names(&node["tags"]);
        println!(
            "  {name:<7} {:<15} {:<6} {traits:<7} {tags:<34} {}  {:.1} s",
            text(&node, "nodegroup"),
            text(&node, "mode"),
            text(&node, "state"),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(agents)
}

fn why(fleet: &Fleet) -> Result<()> {
    println!("\n3 Why has web-1 tier=gold?   $ stemma explain node web-1 label tier");
    indent(&fleet.stemma(&["explain", "node", "web-1", "label", "tier"])?);
    println!("  and debug?                 $ stemma explain node web-1 label debug");
    indent(&fleet.stemma(&["explain", "node", "web-1", "label", "debug"])?);
    Ok(())
}

fn written(web: &Agent) -> Result<()> {
    println!("\n4 Written on web-1");
    for path in ["run/stemma/labels.json", "etc/nginx/conf.d/site.conf"] {
        let file = web.path(path);
        eventually(path, || file_contains(&file, "gold"))?;
        println!("  $ cat {}", file.display());
        indent(&std::fs::read_to_string(&file)?);
    }
    println!("  tags in /run/stemma/tags: {}", files(&web.path("run/stemma/tags"))?);
    Ok(())
}

fn edit(fleet: &Fleet, agents: &[Agent]) -> Result<()> {
    println!("\n5 Edit a label of the template   $ stemma label clustertemplate base ntp=ntp2.example.net");
    let start = Instant::now();
    fleet.stemma(&["label", "clustertemplate", "base", "ntp=ntp2.example.net"])?;
    let answered = start.elapsed();
    let mut arrived = Vec::new();
    for ((name, _), agent) in HOSTS.iter().zip(agents) {
        eventually("the label", || file_contains(&agent.path("run/stemma/labels.json"), "ntp2.example.net"))?;
        arrived.push(format!("{name} {}", ms(start.elapsed())));
    }
    println!(
        "  answered after {}; on the hosts' label files (one after the other looked at): {}",
        ms(answered),
        arrived.join("  ")
    );
    for ((name, _), agent) in HOSTS.iter().zip(agents).take(2) {
        eventually("the file that reads it", || {
            file_contains(&agent.path("etc/nginx/conf.d/site.conf"), "ntp2.example.net")
        })?;
        println!("  rendered again on {name} {}", ms(start.elapsed()));
    }
    Ok(())
}

fn wait_for_interrupt() -> Result<()> {
    // The programs below are in this process group and end with it; what is left is the directory, removed on drop.
    let (tell, told) = std::sync::mpsc::channel();
    stemma_tests::program::on_interrupt(move || {
        let _nobody_waits = tell.send(());
    })?;
    told.recv().context("no signal can come any more")
}

fn shown_path() -> String {
    stemma_tests::program::path("stemma").display().to_string()
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("-").to_owned()
}

fn names(value: &Value) -> String {
    let name = |item: &Value| item.as_str().or_else(|| item["name"].as_str()).unwrap_or("?").to_owned();
    match value {
        Value::Array(items) => items.iter().map(name).collect::<Vec<_>>().join(" "),
        Value::Object(map) => map.keys().cloned().collect::<Vec<_>>().join(" "),
        _ => "-".to_owned(),
    }
}

fn files(dir: &Path) -> Result<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    Ok(names.join(" "))
}

fn indent(text: &str) {
    for line in text.lines() {
        println!("  {line}");
    }
}

fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
