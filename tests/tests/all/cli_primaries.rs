//! Primaries by the operator's command, against a real controller: what keeps one, what moves one and says so first, who is shown and set.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::Fleet;

/// Three databases of which the first is primary, and a web server.
fn fleet() -> Result<Fleet> {
    let fleet = Fleet::start()?;
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

/// Standard output, standard error and the status.
fn ran(fleet: &Fleet, arguments: &[&str]) -> Result<(String, String, i32)> {
    let output = fleet.cli(arguments)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr), output.status.code().context("it ended by itself")?))
}

fn holder(fleet: &Fleet) -> Result<String> {
    let row: Value = serde_json::from_str(&fleet.stemma(&["primary", "show", "eu", "db", "-o", "json"])?)?;
    Ok(row["node"].as_str().with_context(|| row.to_string())?.to_owned())
}

#[test]
fn x07_park_keeps_the_primary_and_each_write_that_moves_it_says_so_first() -> Result<()> {
    let fleet = fleet()?;
    let moves = "warning: the primary of tag db in cluster eu moves from db-1 to db-2\n";
    for arguments in [
        &["node", "park", "db-1", "--release-primary"][..],
        &["tag", "unassign", "db-1", "db"],
        &["node", "move", "db-1", "eu/web", "--overwrite"],
        &["node", "move", "db-1", "--out", "--overwrite"],
        &["delete", "node", "db-1"],
        &["primary", "set", "eu", "db", "db-2"],
    ] {
        let (_, text, status) = ran(&fleet, &[arguments, &["--dry-run"]].concat())?;
        ensure!(status == 0 && text.contains(moves), "{arguments:?}: {status} {text}");
        ensure!(holder(&fleet)? == "db-1", "{arguments:?} was only tried out");
    }
    for arguments in [&["node", "park", "db-1", "--dry-run"][..], &["node", "park", "db-1"]] {
        let (_, text, status) = ran(&fleet, arguments)?;
        let keeps = text.contains("it is parked and keeps what it holds as primary (db)");
        ensure!(status == 0 && keeps && !text.contains("moves from"), "{arguments:?}: {status} {text}");
    }
    ensure!(holder(&fleet)? == "db-1");
    let (out, text, status) = ran(&fleet, &["node", "park", "db-1", "--release-primary"])?;
    ensure!(status == 0 && out == "node db-1 is parked\n" && text.matches(moves).count() == 1, "{status} {out} {text}");
    fleet.stemma(&["node", "unpark", "db-1"])?;
    ensure!(holder(&fleet)? == "db-2", "it does not come back");
    Ok(())
}

#[test]
fn x07_a_primary_is_shown_and_set_and_what_cannot_hold_it_is_refused() -> Result<()> {
    let fleet = fleet()?;
    let (out, text, status) = ran(&fleet, &["primary", "set", "eu", "db", "node/db-3"])?;
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
        let (_, text, status) = ran(&fleet, arguments)?;
        ensure!(status == expected && text.contains(said), "{arguments:?}: {status} {text}");
    }
    ensure!(holder(&fleet)? == "db-3");
    // Of several writes the later ones say what they move after those before them.
    let (_, text, status) = ran(&fleet, &["delete", "node", "db-3", "db-1"])?;
    ensure!(status == 0, "{status} {text}");
    for said in ["moves from db-3 to db-1", "moves from db-1 to db-2"] {
        ensure!(text.matches(said).count() == 1, "{said}: {text}");
    }
    ensure!(holder(&fleet)? == "db-2");
    Ok(())
}
