//! The states of hosts, in every view that shows them: the node list, a node's description, the counts of its cluster,
//! and the metrics.

use anyhow::{Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::eventually;

/// Returns a release whose second task waits for the first on other hosts. `ends` is the command with which the first
/// task ends.
fn site_manifest(version: &str, ends: &str) -> String {
    format!(
        "kind: Release\nname: r\nversion: '{version}'\nroles: {{db: {{tags: [db]}}, app: {{tags: [app]}}}}\ntags: {{db: {{}}, app: {{}}}}\ntasks:\n\
         - {{id: db-up, type: shell, tags: [db], parameters: {{script: \"{ends}; # {version}\"}}}}\n\
         - {{id: app-up, type: shell, tags: [app], cross_depends: [{{name: db-up, tags: [db]}}], parameters: {{script: \"true # {version}\"}}}}\n---\n\
         kind: Cluster\nname: c\nrelease: r@{version}\n---\nkind: NodeGroup\ncluster: c\nname: db\nroles: [db]\n---\n\
         kind: NodeGroup\ncluster: c\nname: app\nroles: [app]\n"
    )
}

fn apply_text(fleet: &TempFleet, site: &str) -> Result<()> {
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, site)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--yes"])?;
    Ok(())
}

fn start_two_hosts() -> Result<(TempFleet, TestAgent, TestAgent)> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, &site_manifest("1", "true"))?;
    let (db, app) = (fleet.join("db-1", "c/db")?, fleet.join("app-1", "c/app")?);
    for name in ["node/db-1", "node/app-1"] {
        fleet.stemma(&["wait", name, "--for", "state=converged"])?;
    }
    Ok((fleet, db, app))
}

/// Returns the cells of the first line that begins with this word.
fn row_cells(text: &str, first: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first)).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

/// Checks that all views show this state of a node, and this note.
pub(crate) fn check_node_state(fleet: &TempFleet, name: &str, state: &str, notes: Option<&str>) -> Result<()> {
    let list = fleet.stemma(&["get", "nodes"])?;
    let listed = row_cells(&list, name);
    ensure!(listed.iter().any(|cell| cell == state), "{list}");
    let filtered = fleet.stemma(&["get", "nodes", "--state", state, "-o", "name"])?;
    ensure!(filtered.lines().any(|line| line == format!("node/{name}")), "{filtered}");
    let told = fleet.stemma(&["describe", "node", name])?;
    ensure!(row_cells(&told, "state").get(1).is_some_and(|said| said == state), "{told}");
    let counts = fleet.stemma(&["get", "clusters"])?;
    ensure!(counts.contains(&format!("{state}=")), "{counts}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let sample = format!("stemma_nodes{{state=\"{state}\"}} ");
    let count = metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok());
    ensure!(count.is_some_and(|count| count > 0), "{sample}: {metrics}");
    let Some(note) = notes else { return Ok(()) };
    ensure!(list.contains("NOTES") && listed.iter().any(|cell| cell == note), "{list}");
    ensure!(row_cells(&told, "notes").get(1).is_some_and(|said| said == note), "{told}");
    ensure!(metrics.contains(&format!("stemma_nodes_noted{{note=\"{note}\"}} 1\n")), "{metrics}");
    Ok(())
}

/// Waits until a host reports this about itself. The host knows less than the controller does.
fn check_host_status(host: &TestAgent, words: &str) -> Result<()> {
    eventually("the host says it", || {
        let text = host.status()?;
        ensure!(text.contains(words), "{words}: {text}");
        Ok(())
    })
}

#[test]
fn y06_every_view_shows_held_when_node_is_held() -> Result<()> {
    let (fleet, db, _app) = start_two_hosts()?;
    fleet.stemma(&["node", "hold", "db-1", "--reason", "a disk"])?;
    apply_text(&fleet, &site_manifest("2", "true"))?;
    check_node_state(&fleet, "db-1", "held", Some("held"))?;
    check_host_status(&db, ", held (a disk)")?;
    let why = fleet.stemma(&["explain", "node", "db-1", "task", "db-up"])?;
    ensure!(why.contains("released  no: its host keeps r@1") && !why.contains("it was sent to the host"), "{why}");
    fleet.stemma(&["node", "unhold", "db-1"])?;
    fleet.stemma(&["wait", "node/db-1", "--for", "state=converged"])?;
    let told: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "db-1", "-o", "json"])?)?;
    ensure!(told["release"] == "r@2" && told["notes"] == serde_json::json!([]), "{told}");
    Ok(())
}

#[test]
fn y06_every_view_shows_blocked_when_dependency_failed() -> Result<()> {
    let (fleet, db, app) = start_two_hosts()?;
    apply_text(&fleet, &site_manifest("2", "exit 3"))?;
    eventually("the other host failed", || check_node_state(&fleet, "db-1", "failed", None))?;
    eventually("it waits in vain", || check_node_state(&fleet, "app-1", "blocked", None))?;
    check_host_status(&db, "task      db-up                    failed\n")?;
    check_host_status(&app, "state     waiting for other hosts\n")?;
    check_host_status(&app, "task      app-up                   waiting for db-up on tags db\n")?;
    let wide = fleet.stemma(&["get", "nodes", "-o", "wide"])?;
    ensure!(wide.contains("task db-up failed") && wide.contains("db-1 (db-up failed there)"), "{wide}");
    apply_text(&fleet, &site_manifest("3", "true"))?;
    fleet.stemma(&["wait", "node/app-1", "--for", "state=converged"])?;
    Ok(())
}

#[test]
fn y06_every_view_shows_untold_when_host_has_not_confirmed() -> Result<()> {
    let (fleet, mut db, _app) = start_two_hosts()?;
    db.kill()?;
    fleet.stemma(&["label", "node", "db-1", "rack=7"])?;
    check_node_state(&fleet, "db-1", "changing", Some("untold"))?;
    check_host_status(&db, "untold    it gets no updates: no agent runs on this host\n")?;
    check_explain_untold(&fleet)?;
    db.start()?;
    wait_until_confirmed(&fleet)?;
    eventually("the host says it", || {
        let text = db.status()?;
        ensure!(!text.contains("untold"), "{text}");
        Ok(())
    })
}

/// Checks that the explanation of the label says that the host has not confirmed it.
fn check_explain_untold(fleet: &TempFleet) -> Result<()> {
    let why = fleet.stemma(&["explain", "node", "db-1", "label", "rack"])?;
    ensure!(why.contains("but       the host has not confirmed its latest desired state"), "{why}");
    Ok(())
}

/// Waits until the host has everything that was sent to it, and checks that no note is left.
fn wait_until_confirmed(fleet: &TempFleet) -> Result<()> {
    fleet.stemma(&["wait", "node/db-1", "--for", "state=converged"])?;
    ensure!(!fleet.stemma(&["get", "nodes"])?.contains("NOTES"));
    Ok(())
}

/// Labels the group of the host, which receives nothing now. Checks that the host is `untold` before and after a
/// restart of the controller.
fn check_untold_after_restart(fleet: &mut TempFleet) -> Result<()> {
    fleet.stemma(&["label", "nodegroup", "c/db", "rack=7"])?;
    check_node_state(fleet, "db-1", "changing", Some("untold"))?;
    fleet.crash_controller()?;
    // The other host has received everything, and reports so again.
    fleet.stemma(&["wait", "node/app-1", "--for", "state=converged"])?;
    check_node_state(fleet, "db-1", "changing", Some("untold"))?;
    let waited = fleet.cli(&["wait", "node/db-1", "--for", "state=converged", "--timeout", "1s"])?;
    ensure!(!waited.status.success(), "the host has confirmed nothing: {waited:?}");
    Ok(())
}

#[test]
fn y06_untold_note_survives_controller_restart() -> Result<()> {
    let (mut fleet, mut db, _app) = start_two_hosts()?;
    db.kill()?;
    check_untold_after_restart(&mut fleet)?;
    check_explain_untold(&fleet)?;
    db.start()?;
    wait_until_confirmed(&fleet)
}

/// The controller answers the host's check-in with the label, but the host hangs.
#[test]
fn y06_untold_note_survives_controller_restart_when_host_hangs() -> Result<()> {
    let (mut fleet, db, _app) = start_two_hosts()?;
    db.pause()?;
    check_untold_after_restart(&mut fleet)?;
    db.resume()?;
    wait_until_confirmed(&fleet)
}

#[test]
fn y06_every_view_shows_blocked_when_host_never_joined() -> Result<()> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, &format!("{}---\nkind: Node\nname: db-1\nnodegroup: c/db\n", site_manifest("1", "true")))?;
    let app = fleet.join("app-1", "c/app")?;
    eventually("it waits in vain", || check_node_state(&fleet, "app-1", "blocked", None))?;
    check_node_state(&fleet, "db-1", "waiting", None)?;
    check_host_status(&app, "state     waiting for other hosts\n")?;
    check_host_status(&app, "task      app-up                   waiting for db-up on tags db\n")?;
    let reason = "app-up waits for db-up on tags db: db-1 (its agent has not joined)";
    ensure!(fleet.stemma(&["get", "nodes", "-o", "wide"])?.contains(reason));
    Ok(())
}
