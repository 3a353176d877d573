//! Where hosts stand, read in every place that says it: the list, the description of one, the counts of its cluster and the metrics.

use anyhow::{Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::eventually;

/// A release of which the second task waits for the first on other hosts; the first ends so.
fn site(version: &str, ends: &str) -> String {
    format!(
        "kind: Release\nname: r\nversion: '{version}'\nroles: {{db: {{tags: [db]}}, app: {{tags: [app]}}}}\ntags: {{db: {{}}, app: {{}}}}\ntasks:\n\
         - {{id: db-up, type: shell, tags: [db], parameters: {{script: \"{ends}; # {version}\"}}}}\n\
         - {{id: app-up, type: shell, tags: [app], cross_depends: [{{name: db-up, tags: [db]}}], parameters: {{script: \"true # {version}\"}}}}\n---\n\
         kind: Cluster\nname: c\nrelease: r@{version}\n---\nkind: NodeGroup\ncluster: c\nname: db\nroles: [db]\n---\n\
         kind: NodeGroup\ncluster: c\nname: app\nroles: [app]\n"
    )
}

fn apply(fleet: &Fleet, site: &str) -> Result<()> {
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, site)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--yes"])?;
    Ok(())
}

fn begin() -> Result<(Fleet, Agent, Agent)> {
    let fleet = Fleet::start()?;
    apply(&fleet, &site("1", "true"))?;
    let (db, app) = (fleet.join("db-1", "c/db")?, fleet.join("app-1", "c/app")?);
    for name in ["node/db-1", "node/app-1"] {
        fleet.stemma(&["wait", name, "--for", "state=converged"])?;
    }
    Ok((fleet, db, app))
}

/// The cells of the first line of a text that begins with this word.
fn row(text: &str, first: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first)).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

/// Sees that all places say this of a node.
pub(crate) fn says(fleet: &Fleet, name: &str, state: &str, notes: Option<&str>) -> Result<()> {
    let list = fleet.stemma(&["get", "nodes"])?;
    let listed = row(&list, name);
    ensure!(listed.iter().any(|cell| cell == state), "{list}");
    let filtered = fleet.stemma(&["get", "nodes", "--state", state, "-o", "name"])?;
    ensure!(filtered.lines().any(|line| line == format!("node/{name}")), "{filtered}");
    let told = fleet.stemma(&["describe", "node", name])?;
    ensure!(row(&told, "state").get(1).is_some_and(|said| said == state), "{told}");
    let counts = fleet.stemma(&["get", "clusters"])?;
    ensure!(counts.contains(&format!("{state}=")), "{counts}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let sample = format!("stemma_nodes{{state=\"{state}\"}} ");
    let count = metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok());
    ensure!(count.is_some_and(|count| count > 0), "{sample}: {metrics}");
    let Some(note) = notes else { return Ok(()) };
    ensure!(list.contains("NOTES") && listed.iter().any(|cell| cell == note), "{list}");
    ensure!(row(&told, "notes").get(1).is_some_and(|said| said == note), "{told}");
    ensure!(metrics.contains(&format!("stemma_nodes_noted{{note=\"{note}\"}} 1\n")), "{metrics}");
    Ok(())
}

/// Sees that a host says this of itself: what it knows, which is less than a controller does.
fn host_says(host: &Agent, words: &str) -> Result<()> {
    eventually("the host says it", || {
        let text = host.status()?;
        ensure!(text.contains(words), "{words}: {text}");
        Ok(())
    })
}

#[test]
fn y06_a_held_host_is_said_to_be_held_in_every_place() -> Result<()> {
    let (fleet, db, _app) = begin()?;
    fleet.stemma(&["node", "hold", "db-1", "--reason", "a disk"])?;
    apply(&fleet, &site("2", "true"))?;
    says(&fleet, "db-1", "held", Some("held"))?;
    host_says(&db, ", held (a disk)")?;
    let why = fleet.stemma(&["explain", "node", "db-1", "task", "db-up"])?;
    ensure!(why.contains("released  no: its host keeps r@1") && !why.contains("the host was told of it"), "{why}");
    fleet.stemma(&["node", "unhold", "db-1"])?;
    fleet.stemma(&["wait", "node/db-1", "--for", "state=converged"])?;
    let told: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "db-1", "-o", "json"])?)?;
    ensure!(told["release"] == "r@2" && told["notes"] == serde_json::json!([]), "{told}");
    Ok(())
}

#[test]
fn y06_a_host_that_waits_for_one_that_failed_is_said_to_be_blocked_in_every_place() -> Result<()> {
    let (fleet, db, app) = begin()?;
    apply(&fleet, &site("2", "exit 3"))?;
    eventually("the other host failed", || says(&fleet, "db-1", "failed", None))?;
    eventually("it waits in vain", || says(&fleet, "app-1", "blocked", None))?;
    host_says(&db, "task      db-up                    failed\n")?;
    host_says(&app, "state     waiting for other hosts\n")?;
    host_says(&app, "task      app-up                   waiting for db-up on tags db\n")?;
    let wide = fleet.stemma(&["get", "nodes", "-o", "wide"])?;
    ensure!(wide.contains("task db-up failed") && wide.contains("db-1 (db-up failed there)"), "{wide}");
    apply(&fleet, &site("3", "true"))?;
    fleet.stemma(&["wait", "node/app-1", "--for", "state=converged"])?;
    Ok(())
}

#[test]
fn y06_a_host_that_has_not_confirmed_is_said_to_be_untold_in_every_place() -> Result<()> {
    let (fleet, mut db, _app) = begin()?;
    db.kill()?;
    fleet.stemma(&["label", "node", "db-1", "rack=7"])?;
    says(&fleet, "db-1", "changing", Some("untold"))?;
    host_says(&db, "untold    it is not told what changes: no agent runs on this host\n")?;
    explains_untold(&fleet)?;
    db.start()?;
    was_told(&fleet)?;
    eventually("the host says it", || {
        let text = db.status()?;
        ensure!(!text.contains("untold"), "{text}");
        Ok(())
    })
}

/// Sees that the account of the label says who has not got it.
fn explains_untold(fleet: &Fleet) -> Result<()> {
    let why = fleet.stemma(&["explain", "node", "db-1", "label", "rack"])?;
    ensure!(why.contains("but       the host has not confirmed what it was told last"), "{why}");
    Ok(())
}

/// Waits until the host has all that it was told, and sees that nothing is noted of it any more.
fn was_told(fleet: &Fleet) -> Result<()> {
    fleet.stemma(&["wait", "node/db-1", "--for", "state=converged"])?;
    ensure!(!fleet.stemma(&["get", "nodes"])?.contains("NOTES"));
    Ok(())
}

/// Labels the group of the host, which takes nothing now, and sees that it is untold before the controller is restarted and after that.
fn is_untold_over_a_restart(fleet: &mut Fleet) -> Result<()> {
    fleet.stemma(&["label", "nodegroup", "c/db", "rack=7"])?;
    says(fleet, "db-1", "changing", Some("untold"))?;
    fleet.crash_controller()?;
    // The other one was told all, and says so again.
    fleet.stemma(&["wait", "node/app-1", "--for", "state=converged"])?;
    says(fleet, "db-1", "changing", Some("untold"))?;
    let waited = fleet.cli(&["wait", "node/db-1", "--for", "state=converged", "--timeout", "1s"])?;
    ensure!(!waited.status.success(), "the host has confirmed nothing: {waited:?}");
    Ok(())
}

#[test]
fn y06_a_host_that_was_not_told_is_untold_after_a_restart_of_the_controller_too() -> Result<()> {
    let (mut fleet, mut db, _app) = begin()?;
    db.kill()?;
    is_untold_over_a_restart(&mut fleet)?;
    explains_untold(&fleet)?;
    db.start()?;
    was_told(&fleet)
}

/// Its check-in is answered with the label, and it hangs.
#[test]
fn y06_a_host_that_was_told_and_hangs_is_untold_after_a_restart_of_the_controller_too() -> Result<()> {
    let (mut fleet, db, _app) = begin()?;
    db.hold()?;
    is_untold_over_a_restart(&mut fleet)?;
    db.go_on()?;
    was_told(&fleet)
}

#[test]
fn y06_who_waits_for_a_host_that_never_joined_is_said_to_be_blocked_in_every_place() -> Result<()> {
    let fleet = Fleet::start()?;
    apply(&fleet, &format!("{}---\nkind: Node\nname: db-1\nnodegroup: c/db\n", site("1", "true")))?;
    let app = fleet.join("app-1", "c/app")?;
    eventually("it waits in vain", || says(&fleet, "app-1", "blocked", None))?;
    says(&fleet, "db-1", "waiting", None)?;
    host_says(&app, "state     waiting for other hosts\n")?;
    host_says(&app, "task      app-up                   waiting for db-up on tags db\n")?;
    let reason = "app-up waits for db-up on tags db: db-1 (its agent has not joined)";
    ensure!(fleet.stemma(&["get", "nodes", "-o", "wide"])?.contains(reason));
    Ok(())
}
