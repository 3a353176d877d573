//! Primaries through the operator's command, against a real controller: the writes that retain or move a primary, the
//! report before a move, and the commands that show and set a primary.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::eventually;

/// Starts a fleet with the databases `db-1` to `db-3` and the web server `web-1`. Node `db-1` is primary for tag `db`.
fn database_fleet() -> Result<TempFleet> {
    let fleet = TempFleet::start()?;
    let mut text = String::from(
        "kind: Release\nname: r\nroles: {web: {tags: [web]}, db: {tags: [db]}}\ntags: {web: {}, db: {has_primary: true}}\n---\n\
         kind: Cluster\nname: eu\nrelease: r\n---\nkind: NodeGroup\ncluster: eu\nname: db\nroles: [db]\n---\n\
         kind: NodeGroup\ncluster: eu\nname: web\nroles: [web]\n---\nkind: Node\nname: web-1\nnodegroup: eu/web\n",
    );
    for node in ["db-1", "db-2", "db-3"] {
        text.push_str(&format!("---\nkind: Node\nname: {node}\nnodegroup: eu/db\n"));
    }
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, text)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    Ok(fleet)
}

/// Returns the name of the node that is primary for tag `db` in cluster `eu`.
fn primary_node(fleet: &TempFleet) -> Result<String> {
    let primary: Value = serde_json::from_str(&fleet.stemma(&["primary", "show", "eu", "db", "-o", "json"])?)?;
    Ok(primary["node"].as_str().with_context(|| primary.to_string())?.to_owned())
}

#[test]
fn x07_park_keeps_primary_and_writes_announce_moves() -> Result<()> {
    let fleet = database_fleet()?;
    let move_message = "info: the primary of tag db in cluster eu moves from db-1 to db-2\n";
    for arguments in [
        &["node", "park", "db-1", "--release-primary"][..],
        &["tag", "unassign", "db-1", "db"],
        &["node", "move", "db-1", "eu/web", "--overwrite"],
        &["node", "move", "db-1", "--out", "--overwrite"],
        &["delete", "node", "db-1"],
        &["primary", "set", "eu", "db", "db-2"],
    ] {
        let (_, stderr, status) = fleet.run_cli(&[arguments, &["--dry-run"]].concat())?;
        ensure!(status == 0 && stderr.contains(move_message), "{arguments:?}: {status} {stderr}");
        ensure!(primary_node(&fleet)? == "db-1", "{arguments:?}: a dry run moves no primary");
        // The move is not a finding: a strict write, which refuses each warning, succeeds without a warning.
        let (_, stderr, status) = fleet.run_cli(&[arguments, &["--dry-run", "--strict"]].concat())?;
        ensure!(status == 0 && stderr.contains(move_message) && !stderr.contains("warning:"), "{arguments:?}: {status} {stderr}");
    }
    for arguments in [&["node", "park", "db-1", "--dry-run"][..], &["node", "park", "db-1"]] {
        let (_, stderr, status) = fleet.run_cli(arguments)?;
        let is_kept = stderr.contains("it is parked and keeps what it holds as primary (db)");
        ensure!(status == 0 && is_kept && !stderr.contains("moves from"), "{arguments:?}: {status} {stderr}");
    }
    ensure!(primary_node(&fleet)? == "db-1");
    let (stdout, stderr, status) = fleet.run_cli(&["node", "park", "db-1", "--release-primary"])?;
    ensure!(
        status == 0 && stdout == "node db-1 is parked\n" && stderr.matches(move_message).count() == 1,
        "{status} {stdout} {stderr}"
    );
    fleet.stemma(&["node", "unpark", "db-1"])?;
    ensure!(primary_node(&fleet)? == "db-2", "the primary does not move back");
    Ok(())
}

/// `primary set` chooses a node that has the tag, and refuses any other node. After the primary is deleted, another
/// node becomes primary.
#[test]
fn x07_primary_set_refuses_ineligible_node() -> Result<()> {
    let fleet = database_fleet()?;
    let (stdout, stderr, status) = fleet.run_cli(&["primary", "set", "eu", "db", "node/db-3"])?;
    ensure!(status == 0 && stdout == "node db-3 holds db of cluster eu as primary\n", "{status} {stdout} {stderr}");
    ensure!(stderr.contains("the primary of tag db in cluster eu moves from db-1 to db-3"), "{stderr}");
    let shown = fleet.stemma(&["primary", "show", "eu"])?;
    let row = shown.lines().find(|line| line.starts_with("db ")).with_context(|| shown.clone())?;
    ensure!(row.contains("db-3") && row.contains("it was chosen"), "{shown}");
    ensure!(fleet.stemma(&["primary", "show", "eu", "-o", "name"])? == "primary/db\n");
    for (arguments, expected_status, expected_text) in [
        (&["primary", "show", "eu", "web"][..], 3, "cluster eu has no tag \"web\" with a primary"),
        (&["primary", "show", "ue"], 3, "could not be found"),
        (&["primary", "set", "eu", "db", "web-1"], 1, "node 'web-1' does not have tag 'db' in cluster eu"),
        (&["primary", "set", "eu", "db", "db-9"], 1, "there is no node 'db-9'"),
    ] {
        let (_, stderr, status) = fleet.run_cli(arguments)?;
        ensure!(status == expected_status && stderr.contains(expected_text), "{arguments:?}: {status} {stderr}");
    }
    ensure!(primary_node(&fleet)? == "db-3");
    // Each of several writes reports its move based on the state after the previous ones.
    let (_, stderr, status) = fleet.run_cli(&["delete", "node", "db-3", "db-1"])?;
    ensure!(status == 0, "{status} {stderr}");
    for expected_text in ["moves from db-3 to db-1", "moves from db-1 to db-2"] {
        ensure!(stderr.matches(expected_text).count() == 1, "{expected_text}: {stderr}");
    }
    ensure!(primary_node(&fleet)? == "db-2");
    Ok(())
}

#[test]
fn x07_delete_announces_no_deleted_node_as_primary() -> Result<()> {
    let fleet = database_fleet()?;
    let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "db-2", "-o", "json"])?)?;
    let uuid = node["uuid"].as_str().context("a uuid")?;
    let uncertain_move = "info: the primary of tag db in cluster eu moves from db-1 to another node, or to none: db-2, which is \
        next, is deleted by this command too\n";
    for nodes in [&["db-1", "db-2"][..], &["db-2", "db-1"], &["db-1", "db-2", "db-3"], &["db-1", uuid]] {
        let (_, stderr, status) = fleet.run_cli(&[&["delete", "nodes"][..], nodes, &["--dry-run"]].concat())?;
        ensure!(
            status == 0 && stderr.matches(uncertain_move).count() == 1 && !stderr.contains("to db-2"),
            "{nodes:?}: {status} {stderr}"
        );
    }
    // A node that the command does not delete becomes primary. If the command also parks the next node, the move is
    // uncertain.
    let (_, stderr, _) = fleet.run_cli(&["delete", "nodes", "db-1", "db-3", "--dry-run"])?;
    ensure!(stderr.contains("moves from db-1 to db-2\n"), "{stderr}");
    let (_, stderr, _) = fleet.run_cli(&["node", "park", "db-1", "db-2", "--release-primary", "--dry-run"])?;
    ensure!(stderr.contains("moves from db-1 to db-2, unless this command takes it from db-2 too\n"), "{stderr}");
    // The command reports the expected move before the deletion, and the actual move after the deletion.
    let (_, stderr, status) = fleet.run_cli(&["delete", "nodes", "db-2", "db-1"])?;
    let announced_position = stderr.find(uncertain_move).with_context(|| stderr.clone())?;
    let moved_position = stderr.find("moves from db-1 to db-3\n").with_context(|| stderr.clone())?;
    ensure!(status == 0 && announced_position < moved_position && primary_node(&fleet)? == "db-3", "{status} {stderr}");
    Ok(())
}

#[test]
fn x07_describe_cluster_shows_primaries_and_findings() -> Result<()> {
    let fleet = database_fleet()?;
    let join_lines = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let described = join_lines(fleet.stemma(&["describe", "cluster", "eu"])?);
    ensure!(described.contains("PRIMARIES TAG NODE PARKED WHY SINCE db db-1 false "), "{described}");
    ensure!(!described.contains("primary.parked"), "{described}");
    fleet.stemma(&["node", "park", "db-1"])?;
    let described = join_lines(fleet.stemma(&["describe", "cluster", "eu"])?);
    for part in [
        "FINDINGS SEVERITY CODE OBJECT MESSAGE ",
        "warning primary.parked cluster/eu db-1 holds db as primary and is parked",
        "warning primary.parked node/db-1 it is parked and keeps what it holds as primary (db)",
        "PRIMARIES TAG NODE PARKED WHY SINCE db db-1 true ",
    ] {
        ensure!(described.contains(part), "{part:?} in {described}");
    }
    let empty_cluster = fleet.dir().join("us.yaml");
    std::fs::write(&empty_cluster, "kind: Cluster\nname: us\n")?;
    fleet.stemma(&["apply", "-f", &empty_cluster.to_string_lossy()])?;
    let described = fleet.stemma(&["describe", "cluster", "us"])?;
    ensure!(!described.contains("PRIMARIES") && !described.contains("FINDINGS"), "{described}");
    Ok(())
}

/// Replaces the node `old` under `primaries` of cluster `eu` by the node `new`, or removes the entry. Uses the commands
/// that refusals and findings propose. Returns standard error of the apply.
fn set_cluster_primary(fleet: &TempFleet, old: &str, new: Option<&str>) -> Result<String> {
    let manifest = fleet.stemma(&["get", "cluster", "eu", "-o", "manifest"])?;
    ensure!(manifest.contains(&format!("db: {old}")), "{manifest}");
    let file = fleet.dir().join("cluster.yaml");
    let changed_manifest = match new {
        Some(new) => manifest.replace(&format!("db: {old}"), &format!("db: {new}")),
        None => manifest.replace(&format!("primaries:\n  db: {old}"), "primaries: {}"),
    };
    ensure!(changed_manifest != manifest, "{manifest}");
    std::fs::write(&file, changed_manifest)?;
    let (_, stderr, status) = fleet.run_cli(&["apply", "--force", "-f", &file.to_string_lossy()])?;
    ensure!(status == 0, "{stderr}");
    Ok(stderr)
}

#[test]
fn x07_advice_about_named_primary_works() -> Result<()> {
    let fleet = database_fleet()?;
    let file = fleet.dir().join("named.yaml");
    std::fs::write(&file, "kind: Cluster\nname: eu\nrelease: r\nprimaries: {db: db-2}\n")?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--manager", "git"])?;
    ensure!(primary_node(&fleet)? == "db-2");
    let advice = ["stemma get cluster eu -o manifest > cluster.yaml", "stemma apply --force -f cluster.yaml"];
    let (_, stderr, status) = fleet.run_cli(&["node", "park", "db-2"])?;
    ensure!(status == 0 && advice.iter().all(|part| stderr.contains(part)), "{status} {stderr}");
    ensure!(stderr.contains("stemma node unpark db-2") && !stderr.contains("--release-primary"), "{stderr}");
    for arguments in [
        &["node", "park", "db-2", "--release-primary"][..],
        &["primary", "set", "eu", "db", "db-3"],
        &["node", "rename", "db-2", "db-9"],
    ] {
        let (_, stderr, status) = fleet.run_cli(arguments)?;
        ensure!(status != 0 && advice.iter().all(|part| stderr.contains(part)), "{arguments:?}: {status} {stderr}");
        ensure!(stderr.contains("nothing was changed") && stderr.contains("git"), "{arguments:?}: {stderr}");
    }
    ensure!(primary_node(&fleet)? == "db-2");
    // The proposed commands work: the cluster names another primary or none, and the node is renamed.
    let stderr = set_cluster_primary(&fleet, "db-2", Some("db-3"))?;
    ensure!(stderr.contains("moves from db-2 to db-3"), "{stderr}");
    eventually("the store has db-3 as primary", || {
        let primary: Value = serde_json::from_str(&fleet.stemma(&["primary", "show", "eu", "db", "-o", "json"])?)?;
        ensure!(primary["since"].is_string(), "{primary}");
        Ok(())
    })?;
    set_cluster_primary(&fleet, "db-3", None)?;
    fleet.stemma(&["node", "rename", "db-3", "db-9"])?;
    ensure!(primary_node(&fleet)? == "db-9");
    fleet.stemma(&["primary", "set", "eu", "db", "db-1"])?;
    ensure!(primary_node(&fleet)? == "db-1");
    Ok(())
}
