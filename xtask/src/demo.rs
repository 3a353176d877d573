//! `cargo xtask demo`: shows on one screen how a fleet gets its configuration.
//!
//! The demo uses the programs, protocol and store that users install, and the harness of the tests. Every printed
//! figure is read from the running programs or measured on them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually};

use crate::cargo::{command, run_step, workspace_root};

#[derive(Args)]
pub(crate) struct DemoOptions {
    /// Exit after the last step instead of waiting for Ctrl-C.
    #[arg(long)]
    exit: bool,
}

/// The name and the node group of each host of the demo.
const HOSTS: [(&str, &str); 3] = [("web-1", "prod/frontends"), ("web-2", "prod/frontends"), ("db-1", "prod/databases")];

/// Runs the steps of the demo, then waits for Ctrl-C unless `--exit` is given.
pub(crate) fn run(options: &DemoOptions) -> Result<()> {
    let arguments = ["build", "--quiet", "--package", "stemma-controller", "--package", "stemma-agent", "--package", "stemma"];
    run_step("build the programs (minutes the first time, nothing later)", command("cargo", &arguments))?;
    let fleet = TempFleet::start()?;
    println!("\nstemma demo  controller {}  store redb  data {}", fleet.addresses().admin, fleet.dir().display());
    apply_manifests(&fleet)?;
    let agents = join_agents(&fleet)?;
    explain(&fleet)?;
    print_host_files(&agents[0])?;
    edit_label(&fleet, &agents)?;
    if options.exit {
        return Ok(());
    }
    println!("\nNow you:  export STEMMA_CONTEXT={}", fleet.context().display());
    println!("  {0} get nodes -o wide      {0} describe node web-1", display_path());
    println!("  {0} label node web-2 tier=bronze      {0} explain node web-2 label tier", display_path());
    println!("Ctrl-C ends it and removes {}", fleet.dir().display());
    wait_for_interrupt()
}

/// Applies the example manifests, and prints the tags and tasks of each role in their release.
fn apply_manifests(fleet: &TempFleet) -> Result<()> {
    let site = workspace_root().join("examples/site");
    let applied = fleet.stemma(&["apply", "-f", &site.to_string_lossy(), "-o", "json"])?;
    let applied: Value = serde_json::from_str(&applied)?;
    let objects = applied["objects"].as_array().context("apply lists its objects")?;
    let kinds: Vec<String> =
        objects.iter().map(|object| format!("{} {}", string_field(object, "kind"), string_field(object, "name"))).collect();
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
                    .is_some_and(|task_tags| task_tags.iter().any(|tag| tags.contains(&tag.as_str().unwrap_or(""))))
            })
            .map(|task| match task["condition"].as_str() {
                Some(condition) => format!("{} (if {condition})", string_field(task, "id")),
                None => string_field(task, "id"),
            })
            .collect();
        println!("  role {role:<4} -> tags {:<14} -> tasks {}", tags.join(" "), tasks.join(" "));
    }
    Ok(())
}

/// Joins the hosts to the fleet. Prints a row for each host once its node is connected and is neither `changing` nor
/// `waiting`. Returns the agents.
fn join_agents(fleet: &TempFleet) -> Result<Vec<TestAgent>> {
    println!("\n2 Three hosts join (mutual TLS 1.3, a token each)");
    // A label that the host sets itself, in a file. It must not override the operator's label.
    let label_dir = fleet.dir().join("web-1/etc/stemma/labels.d");
    std::fs::create_dir_all(&label_dir)?;
    std::fs::write(label_dir.join("local"), "tier=silver\n")?;
    let mut agents = Vec::new();
    let mut start_times = Vec::new();
    for (name, group) in HOSTS {
        let start = Instant::now();
        agents.push(fleet.join(name, group)?);
        start_times.push(start);
    }
    println!("  {:<7} {:<15} {:<6} {:<7} {:<34} STATE", "NODE", "GROUP", "MODE", "TRAITS", "TAGS");
    for ((name, _), start) in HOSTS.iter().zip(start_times) {
        let node = eventually("a host that has received its tasks", || {
            let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", name, "-o", "json"])?)?;
            let state = string_field(&node, "state");
            ensure!(state != "changing" && state != "waiting" && node["connected"] == true, "{name} is {state}");
            Ok(node)
        })?;
        let traits = node["trait_sources"].as_object().map_or(0, serde_json::Map::len);
        let tags = joined_names(&node["tags"]);
        println!(
            "  {name:<7} {:<15} {:<6} {traits:<7} {tags:<34} {}  {:.1} s",
            string_field(&node, "nodegroup"),
            string_field(&node, "mode"),
            string_field(&node, "state"),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(agents)
}

/// Prints what `stemma explain` says about an inherited label, and about one that a tombstone of the group removes.
fn explain(fleet: &TempFleet) -> Result<()> {
    println!("\n3 Why has web-1 tier=gold?   $ stemma explain node web-1 label tier");
    print_indented(&fleet.stemma(&["explain", "node", "web-1", "label", "tier"])?);
    println!("  and debug?                 $ stemma explain node web-1 label debug");
    print_indented(&fleet.stemma(&["explain", "node", "web-1", "label", "debug"])?);
    Ok(())
}

/// Prints two files of a host once they contain `gold`, the value of the label `tier`, and the names of its tags.
fn print_host_files(agent: &TestAgent) -> Result<()> {
    println!("\n4 Written on web-1");
    for path in ["run/stemma/labels.json", "etc/nginx/conf.d/site.conf"] {
        let file = agent.path(path);
        eventually(path, || check_file_contains(&file, "gold"))?;
        println!("  $ cat {}", file.display());
        print_indented(&std::fs::read_to_string(&file)?);
    }
    println!("  tags in /run/stemma/tags: {}", list_files(&agent.path("run/stemma/tags"))?);
    Ok(())
}

/// Edits a label of the cluster template. Prints how long it takes until the files of each host have the new value.
fn edit_label(fleet: &TempFleet, agents: &[TestAgent]) -> Result<()> {
    println!("\n5 Edit a label of the template   $ stemma label clustertemplate base ntp=ntp2.example.net");
    let start = Instant::now();
    fleet.stemma(&["label", "clustertemplate", "base", "ntp=ntp2.example.net"])?;
    let response_time = start.elapsed();
    let mut arrivals = Vec::new();
    for ((name, _), agent) in HOSTS.iter().zip(agents) {
        eventually("the label", || check_file_contains(&agent.path("run/stemma/labels.json"), "ntp2.example.net"))?;
        arrivals.push(format!("{name} {}", format_ms(start.elapsed())));
    }
    println!(
        "  answered after {}; in the hosts' label files (checked one after the other): {}",
        format_ms(response_time),
        arrivals.join("  ")
    );
    // Only the first two hosts have the file: they are web hosts.
    for ((name, _), agent) in HOSTS.iter().zip(agents).take(2) {
        eventually("the file that reads it", || {
            check_file_contains(&agent.path("etc/nginx/conf.d/site.conf"), "ntp2.example.net")
        })?;
        println!("  rendered again on {name} {}", format_ms(start.elapsed()));
    }
    Ok(())
}

/// Waits for Ctrl-C. Then the caller drops the fleet, which removes its directory.
fn wait_for_interrupt() -> Result<()> {
    // The programs are in this process group, so Ctrl-C ends them too. Only the directory remains to be removed.
    let (sender, receiver) = std::sync::mpsc::channel();
    stemma_tests::program::on_interrupt(move || {
        let _is_received = sender.send(());
    })?;
    receiver.recv().context("no signal can arrive any more")
}

/// Returns the path of the program `stemma`.
fn display_path() -> String {
    stemma_tests::program::path("stemma").display().to_string()
}

/// Returns the text of a field, or `-` if the field is not a text.
fn string_field(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("-").to_owned()
}

/// Returns the names in a list, or the keys of a map, separated by spaces. An item of a list is a name or an object
/// with the field `name`.
fn joined_names(value: &Value) -> String {
    let name = |item: &Value| item.as_str().or_else(|| item["name"].as_str()).unwrap_or("?").to_owned();
    match value {
        Value::Array(items) => items.iter().map(name).collect::<Vec<_>>().join(" "),
        Value::Object(map) => map.keys().cloned().collect::<Vec<_>>().join(" "),
        _ => "-".to_owned(),
    }
}

/// Returns the names of the files in a directory, sorted and separated by spaces.
fn list_files(dir: &Path) -> Result<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names.join(" "))
}

fn print_indented(text: &str) {
    for line in text.lines() {
        println!("  {line}");
    }
}

fn format_ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
