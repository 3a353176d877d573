//! Primaries through the operator's command, against a real controller: which writes retain or move one, the report
//! before a move, and the commands that show and set one.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::eventually;

/// Creates three databases, of which the first is primary, and a web server.
fn primary_fleet() -> Result<TempFleet> {
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

fn primary_node(fleet: &TempFleet) -> Result<String> {
    let row: Value = serde_json::from_str(&fleet.stemma(&["primary", "show", "eu", "db", "-o", "json"])?)?;
    Ok(row["node"].as_str().with_context(|| row.to_string())?.to_owned())
}

#[test]
fn x07_park_keeps_primary_and_writes_announce_moves() -> Result<()> {
    let fleet = primary_fleet()?;
    let moves = "info: the primary of tag db in cluster eu moves from db-1 to db-2\n";
    for arguments in [
        &["node", "park", "db-1", "--release-primary"][..],
        &["tag", "unassign", "db-1", "db"],
        &["node", "move", "db-1", "eu/web", "--overwrite"],
        &["node", "move", "db-1", "--out", "--overwrite"],
        &["delete", "node", "db-1"],
        &["primary", "set", "eu", "db", "db-2"],
    ] {
        let (_, text, status) = fleet.run_cli(&[arguments, &["--dry-run"]].concat())?;
        ensure!(status == 0 && text.contains(moves), "{arguments:?}: {status} {text}");
        ensure!(primary_node(&fleet)? == "db-1", "{arguments:?} was only tried out");
        // The move is not a finding: a strict write, which refuses each warning, succeeds without a warning (y09).
        let (_, text, status) = fleet.run_cli(&[arguments, &["--dry-run", "--strict"]].concat())?;
        ensure!(status == 0 && text.contains(moves) && !text.contains("warning:"), "{arguments:?}: {status} {text}");
    }
    for arguments in [&["node", "park", "db-1", "--dry-run"][..], &["node", "park", "db-1"]] {
        let (_, text, status) = fleet.run_cli(arguments)?;
        let keeps = text.contains("it is parked and keeps what it holds as primary (db)");
        ensure!(status == 0 && keeps && !text.contains("moves from"), "{arguments:?}: {status} {text}");
    }
    ensure!(primary_node(&fleet)? == "db-1");
    let (out, text, status) = fleet.run_cli(&["node", "park", "db-1", "--release-primary"])?;
    ensure!(status == 0 && out == "node db-1 is parked\n" && text.matches(moves).count() == 1, "{status} {out} {text}");
    fleet.stemma(&["node", "unpark", "db-1"])?;
    ensure!(primary_node(&fleet)? == "db-2", "it does not come back");
    Ok(())
}

#[test]
fn x07_primary_set_refuses_ineligible_node() -> Result<()> {
    let fleet = primary_fleet()?;
    let (out, text, status) = fleet.run_cli(&["primary", "set", "eu", "db", "node/db-3"])?;
    ensure!(status == 0 && out == "node db-3 holds db of cluster eu as primary\n", "{status} {out} {text}");
    ensure!(text.contains("the primary of tag db in cluster eu moves from db-1 to db-3"), "{text}");
    let shown = fleet.stemma(&["primary", "show", "eu"])?;
    let row = shown.lines().find(|line| line.starts_with("db ")).with_context(|| shown.clone())?;
    ensure!(row.contains("db-3") && row.contains("it was chosen"), "{shown}");
    ensure!(fleet.stemma(&["primary", "show", "eu", "-o", "name"])? == "primary/db\n");
    for (arguments, expected, said) in [
        (&["primary", "show", "eu", "web"][..], 3, "cluster eu has no tag \"web\" with a primary"),
        (&["primary", "show", "ue"], 3, "could not be found"),
        (&["primary", "set", "eu", "db", "web-1"], 1, "node 'web-1' does not have tag 'db' in cluster eu"),
        (&["primary", "set", "eu", "db", "db-9"], 1, "there is no node 'db-9'"),
    ] {
        let (_, text, status) = fleet.run_cli(arguments)?;
        ensure!(status == expected && text.contains(said), "{arguments:?}: {status} {text}");
    }
    ensure!(primary_node(&fleet)? == "db-3");
    // Each of several writes reports its move based on the state after the previous ones.
    let (_, text, status) = fleet.run_cli(&["delete", "node", "db-3", "db-1"])?;
    ensure!(status == 0, "{status} {text}");
    for said in ["moves from db-3 to db-1", "moves from db-1 to db-2"] {
        ensure!(text.matches(said).count() == 1, "{said}: {text}");
    }
    ensure!(primary_node(&fleet)? == "db-2");
    Ok(())
}

#[test]
fn x07_delete_announces_no_primary_for_deleted_node() -> Result<()> {
    let fleet = primary_fleet()?;
    let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "db-2", "-o", "json"])?)?;
    let by_uuid = node["uuid"].as_str().context("a uuid")?;
    let goes = "info: the primary of tag db in cluster eu moves from db-1 to another node, or to none: db-2, which is \
        next, is deleted by this command too\n";
    for nodes in [&["db-1", "db-2"][..], &["db-2", "db-1"], &["db-1", "db-2", "db-3"], &["db-1", by_uuid]] {
        let (_, text, status) = fleet.run_cli(&[&["delete", "nodes"][..], nodes, &["--dry-run"]].concat())?;
        ensure!(status == 0 && text.matches(goes).count() == 1 && !text.contains("to db-2"), "{nodes:?}: {status} {text}");
    }
    // A node that the command does not delete gets the primary. A node that the command also changes may get it.
    let (_, text, _) = fleet.run_cli(&["delete", "nodes", "db-1", "db-3", "--dry-run"])?;
    ensure!(text.contains("moves from db-1 to db-2\n"), "{text}");
    let (_, text, _) = fleet.run_cli(&["node", "park", "db-1", "db-2", "--release-primary", "--dry-run"])?;
    ensure!(text.contains("moves from db-1 to db-2, unless this command takes it from db-2 too\n"), "{text}");
    // The command reports the expected move before the deletion, and the actual one after it.
    let (_, text, status) = fleet.run_cli(&["delete", "nodes", "db-2", "db-1"])?;
    let said = text.find(goes).with_context(|| text.clone())?;
    let became = text.find("moves from db-1 to db-3\n").with_context(|| text.clone())?;
    ensure!(status == 0 && said < became && primary_node(&fleet)? == "db-3", "{status} {text}");
    Ok(())
}

#[test]
fn x07_describe_cluster_shows_primaries_and_findings() -> Result<()> {
    let fleet = primary_fleet()?;
    let in_one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let described = in_one_line(fleet.stemma(&["describe", "cluster", "eu"])?);
    ensure!(described.contains("PRIMARIES TAG NODE PARKED WHY SINCE db db-1 false "), "{described}");
    ensure!(!described.contains("primary.parked"), "{described}");
    fleet.stemma(&["node", "park", "db-1"])?;
    let described = in_one_line(fleet.stemma(&["describe", "cluster", "eu"])?);
    for part in [
        "FINDINGS SEVERITY CODE OBJECT MESSAGE ",
        "warning primary.parked cluster/eu db-1 holds db as primary and is parked",
        "warning primary.parked node/db-1 it is parked and keeps what it holds as primary (db)",
        "PRIMARIES TAG NODE PARKED WHY SINCE db db-1 true ",
    ] {
        ensure!(described.contains(part), "{part:?} in {described}");
    }
    let empty = fleet.dir().join("us.yaml");
    std::fs::write(&empty, "kind: Cluster\nname: us\n")?;
    fleet.stemma(&["apply", "-f", &empty.to_string_lossy()])?;
    let described = fleet.stemma(&["describe", "cluster", "us"])?;
    ensure!(!described.contains("PRIMARIES") && !described.contains("FINDINGS"), "{described}");
    Ok(())
}

/// Sets or removes the primary that the cluster names for `db`, with the commands that refusals and findings propose.
fn set_cluster_primary(fleet: &TempFleet, old: &str, new: Option<&str>) -> Result<String> {
    let manifest = fleet.stemma(&["get", "cluster", "eu", "-o", "manifest"])?;
    ensure!(manifest.contains(&format!("db: {old}")), "{manifest}");
    let file = fleet.dir().join("cluster.yaml");
    let changed = match new {
        Some(new) => manifest.replace(&format!("db: {old}"), &format!("db: {new}")),
        None => manifest.replace(&format!("primaries:\n  db: {old}"), "primaries: {}"),
    };
    ensure!(changed != manifest, "{manifest}");
    std::fs::write(&file, changed)?;
    let (_, text, status) = fleet.run_cli(&["apply", "--force", "-f", &file.to_string_lossy()])?;
    ensure!(status == 0, "{text}");
    Ok(text)
}

#[test]
fn x07_advice_about_named_primary_works() -> Result<()> {
    let fleet = primary_fleet()?;
    let file = fleet.dir().join("named.yaml");
    std::fs::write(&file, "kind: Cluster\nname: eu\nrelease: r\nprimaries: {db: db-2}\n")?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--manager", "git"])?;
    ensure!(primary_node(&fleet)? == "db-2");
    let advice = ["stemma get cluster eu -o manifest > cluster.yaml", "stemma apply --force -f cluster.yaml"];
    let (_, text, status) = fleet.run_cli(&["node", "park", "db-2"])?;
    ensure!(status == 0 && advice.iter().all(|part| text.contains(part)), "{status} {text}");
    ensure!(text.contains("stemma node unpark db-2") && !text.contains("--release-primary"), "{text}");
    for refused in [
        &["node", "park", "db-2", "--release-primary"][..],
        &["primary", "set", "eu", "db", "db-3"],
        &["node", "rename", "db-2", "db-9"],
    ] {
        let (_, text, status) = fleet.run_cli(refused)?;
        ensure!(status != 0 && advice.iter().all(|part| text.contains(part)), "{refused:?}: {status} {text}");
        ensure!(text.contains("nothing was changed") && text.contains("git"), "{refused:?}: {text}");
    }
    ensure!(primary_node(&fleet)? == "db-2");
    // The proposed commands work: the cluster names another primary or none, and the node is renamed.
    let text = set_cluster_primary(&fleet, "db-2", Some("db-3"))?;
    ensure!(text.contains("moves from db-2 to db-3"), "{text}");
    eventually("it is stored that db-3 holds it", || {
        let row: Value = serde_json::from_str(&fleet.stemma(&["primary", "show", "eu", "db", "-o", "json"])?)?;
        ensure!(row["since"].is_string(), "{row}");
        Ok(())
    })?;
    set_cluster_primary(&fleet, "db-3", None)?;
    fleet.stemma(&["node", "rename", "db-3", "db-9"])?;
    ensure!(primary_node(&fleet)? == "db-9");
    fleet.stemma(&["primary", "set", "eu", "db", "db-1"])?;
    ensure!(primary_node(&fleet)? == "db-1");
    Ok(())
}
