//! The states of hosts, in every view that shows them: the node list, a node's description, the counts of its cluster,
//! and the metrics.

use anyhow::{Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::eventually;

/// Returns the manifests of a site. Its task `app-up` waits for the task `db-up` of other hosts. `end_command` is the
/// command that `db-up` runs, such as `true` or `exit 3`. The version is a comment in both scripts, so a new version is
/// a change of both tasks.
fn site_manifest(version: &str, end_command: &str) -> String {
    format!(
        "kind: Release\nname: r\nversion: '{version}'\nroles: {{db: {{tags: [db]}}, app: {{tags: [app]}}}}\ntags: {{db: {{}}, app: {{}}}}\ntasks:\n\
         - {{id: db-up, type: shell, tags: [db], parameters: {{script: \"{end_command}; # {version}\"}}}}\n\
         - {{id: app-up, type: shell, tags: [app], cross_depends: [{{name: db-up, tags: [db]}}], parameters: {{script: \"true # {version}\"}}}}\n---\n\
         kind: Cluster\nname: c\nrelease: r@{version}\n---\nkind: NodeGroup\ncluster: c\nname: db\nroles: [db]\n---\n\
         kind: NodeGroup\ncluster: c\nname: app\nroles: [app]\n"
    )
}

/// Writes a manifest text to a file, and applies the file.
fn apply_text(fleet: &TempFleet, site: &str) -> Result<()> {
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, site)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--yes"])?;
    Ok(())
}

/// Starts a controller and the hosts db-1 and app-1, and waits until both nodes have converged.
fn start_two_hosts() -> Result<(TempFleet, TestAgent, TestAgent)> {
    let fleet = TempFleet::start()?;
    apply_text(&fleet, &site_manifest("1", "true"))?;
    let (db, app) = (fleet.join("db-1", "c/db")?, fleet.join("app-1", "c/app")?);
    for name in ["node/db-1", "node/app-1"] {
        fleet.stemma(&["wait", name, "--for", "state=converged"])?;
    }
    Ok((fleet, db, app))
}

/// Returns the cells of the first line that begins with this word, or nothing if no line does.
fn row_cells(text: &str, first: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first)).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

/// Checks that every view shows this state of a node, and this note if one is given. No other node may have this note.
pub(crate) fn check_node_state(fleet: &TempFleet, name: &str, state: &str, expected_note: Option<&str>) -> Result<()> {
    let list = fleet.stemma(&["get", "nodes"])?;
    let node_cells = row_cells(&list, name);
    ensure!(node_cells.iter().any(|cell| cell == state), "{list}");
    let filtered = fleet.stemma(&["get", "nodes", "--state", state, "-o", "name"])?;
    ensure!(filtered.lines().any(|line| line == format!("node/{name}")), "{filtered}");
    let description = fleet.stemma(&["describe", "node", name])?;
    ensure!(row_cells(&description, "state").get(1).is_some_and(|value| value == state), "{description}");
    let counts = fleet.stemma(&["get", "clusters"])?;
    ensure!(counts.contains(&format!("{state}=")), "{counts}");
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let sample = format!("stemma_nodes{{state=\"{state}\"}} ");
    let count = metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok());
    ensure!(count.is_some_and(|count| count > 0), "{sample}: {metrics}");
    let Some(note) = expected_note else { return Ok(()) };
    ensure!(list.contains("NOTES") && node_cells.iter().any(|cell| cell == note), "{list}");
    ensure!(row_cells(&description, "notes").get(1).is_some_and(|value| value == note), "{description}");
    ensure!(metrics.contains(&format!("stemma_nodes_noted{{note=\"{note}\"}} 1\n")), "{metrics}");
    Ok(())
}

/// Waits until the output of `stemma-agent status` on a host contains this text. The text may differ from the node's
/// state in the controller, because the host knows less.
fn check_host_status(host: &TestAgent, expected: &str) -> Result<()> {
    eventually("the status of the host", || {
        let text = host.status()?;
        ensure!(text.contains(expected), "{expected}: {text}");
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
    let explanation = fleet.stemma(&["explain", "node", "db-1", "task", "db-up"])?;
    ensure!(
        explanation.contains("released  no: its host keeps r@1") && !explanation.contains("it was sent to the host"),
        "{explanation}"
    );
    fleet.stemma(&["node", "unhold", "db-1"])?;
    fleet.stemma(&["wait", "node/db-1", "--for", "state=converged"])?;
    let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "db-1", "-o", "json"])?)?;
    ensure!(node["release"] == "r@2" && node["notes"] == serde_json::json!([]), "{node}");
    Ok(())
}

#[test]
fn y06_every_view_shows_blocked_when_dependency_failed() -> Result<()> {
    let (fleet, db, app) = start_two_hosts()?;
    apply_text(&fleet, &site_manifest("2", "exit 3"))?;
    eventually("the other host failed", || check_node_state(&fleet, "db-1", "failed", None))?;
    eventually("app-1 is blocked", || check_node_state(&fleet, "app-1", "blocked", None))?;
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
    eventually("the status without untold", || {
        let text = db.status()?;
        ensure!(!text.contains("untold"), "{text}");
        Ok(())
    })
}

/// Checks that the explanation of the label `rack` on db-1 reports that the host has not confirmed its desired state.
fn check_explain_untold(fleet: &TempFleet) -> Result<()> {
    let explanation = fleet.stemma(&["explain", "node", "db-1", "label", "rack"])?;
    ensure!(explanation.contains("but       the host has not confirmed its latest desired state"), "{explanation}");
    Ok(())
}

/// Waits until the node db-1 has converged, and checks that no node has a note.
fn wait_until_confirmed(fleet: &TempFleet) -> Result<()> {
    fleet.stemma(&["wait", "node/db-1", "--for", "state=converged"])?;
    ensure!(!fleet.stemma(&["get", "nodes"])?.contains("NOTES"));
    Ok(())
}

/// Labels the node group of db-1, whose agent the caller has killed or paused. Checks that the node has the note
/// `untold` before and after a crash and restart of the controller.
fn check_untold_after_restart(fleet: &mut TempFleet) -> Result<()> {
    fleet.stemma(&["label", "nodegroup", "c/db", "rack=7"])?;
    check_node_state(fleet, "db-1", "changing", Some("untold"))?;
    fleet.crash_controller()?;
    // The other host has received everything, and confirms this to the restarted controller.
    fleet.stemma(&["wait", "node/app-1", "--for", "state=converged"])?;
    check_node_state(fleet, "db-1", "changing", Some("untold"))?;
    let wait = fleet.cli(&["wait", "node/db-1", "--for", "state=converged", "--timeout", "1s"])?;
    ensure!(!wait.status.success(), "the host has confirmed nothing: {wait:?}");
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

/// In this test, the controller sends the label, but the agent hangs and does not confirm the label.
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
    eventually("app-1 is blocked", || check_node_state(&fleet, "app-1", "blocked", None))?;
    check_node_state(&fleet, "db-1", "waiting", None)?;
    check_host_status(&app, "state     waiting for other hosts\n")?;
    check_host_status(&app, "task      app-up                   waiting for db-up on tags db\n")?;
    let reason = "app-up waits for db-up on tags db: db-1 (its agent has not joined)";
    ensure!(fleet.stemma(&["get", "nodes", "-o", "wide"])?.contains(reason));
    Ok(())
}
