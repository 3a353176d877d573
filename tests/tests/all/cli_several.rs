//! The operator's command on several objects at once, and on keys that others own, against a real controller.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{eventually, path, run};

/// Creates two clusters with a group `web` each; the first has three nodes. The manager is `site`.
fn two_cluster_fleet() -> Result<TempFleet> {
    let fleet = TempFleet::start()?;
    let mut text = String::from(
        "kind: Release\nname: r\nroles: {web: {tags: [web]}, db: {tags: [db]}}\ntags: {web: {}, db: {has_primary: true}}\n---\n\
         kind: ClusterTemplate\nname: base\nrelease: r\nlabels: {tier: gold}\n",
    );
    for cluster in ["eu", "us"] {
        text.push_str(&format!(
            "---\nkind: Cluster\nname: {cluster}\ncluster_template: base\n---\nkind: NodeGroup\ncluster: {cluster}\nname: web\nroles: [web]\n"
        ));
    }
    for node in ["web-1", "web-2", "web-3"] {
        text.push_str(&format!("---\nkind: Node\nname: {node}\nnodegroup: eu/web\nlabels: {{rack: r{}}}\n", &node[4..]));
    }
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, text)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--manager", "site"])?;
    Ok(fleet)
}

fn get(fleet: &TempFleet, kind: &str, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", kind, name, "-o", "json"])?)?)
}

/// Returns the line that proposes the same command with `--overwrite`.
fn proposed_command(fleet: &TempFleet, words: &str) -> String {
    format!("to take it over: stemma --context {} {words} --overwrite\n", fleet.context().display())
}

#[test]
fn w13_proposed_command_keeps_all_options() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for (arguments, words) in [
        (
            &["label", "node", "-l", "rack=r1", "rack=r9", "--manager", "alice", "--reason", "a b"][..],
            "label node -l rack=r1 rack=r9 --manager alice --reason 'a b'",
        ),
        (&["--manager", "alice", "node", "move", "web-1", "us/web", "--yes"], "--manager alice node move web-1 us/web --yes"),
    ] {
        let (_, text, status) = fleet.run_cli(arguments)?;
        assert!(status != 0 && text.contains(&proposed_command(&fleet, words)), "{status} {text}");
        let again: Vec<&str> = arguments.iter().copied().chain(["--overwrite"]).collect();
        fleet.stemma(&again)?;
    }
    let web = get(&fleet, "node", "web-1")?;
    assert_eq!((&web["labels"]["rack"], &web["label_owners"]["rack"]), (&json!("r9"), &json!(["alice:update"])));
    Ok(())
}

#[test]
fn w13_batch_answers_each_object_once_also_in_dry_run() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    fleet.stemma(&["trait", "add", "web-2", "CUSTOM_C"])?;
    for verb in [&["trait", "add"][..], &["trait", "remove"], &["trait", "suppress"], &["role", "add"], &["tag", "unassign"]] {
        let name = match verb[0] {
            "trait" => "CUSTOM_C",
            _ => "web",
        };
        let nodes: &[&str] = if verb[1] == "remove" { &["node/web-2"] } else { &["node/web-1", "node/web-2", "node/web-1"] };
        let all = [verb, &[name, name], nodes, &["--dry-run"]].concat();
        let (out, text, status) = fleet.run_cli(&all)?;
        assert_eq!((out.lines().count(), status), (nodes.len().min(2), 0), "{all:?}: {out} {text}");
        assert!(out.lines().all(|line| !line.contains(&format!(", {name}")) && line.ends_with(" (dry run)")), "{out}");
        let answer: Value = serde_json::from_str(&fleet.stemma(&[&all[..], &["-o", "json"]].concat())?)?;
        assert!(answer.as_array().map_or(1, Vec::len) == nodes.len().min(2), "{all:?}: {answer}");
    }
    assert_eq!(fleet.stemma(&["get", "node", "web-1", "web-1", "-o", "name"])?, "node/web-1\n");
    let (_, text, status) = fleet.run_cli(&["trait", "remove", "web-1", "CUSTOM_X"])?;
    assert!(status == 3 && text.contains("Node web-1 doesn't have a trait"), "{status} {text}");
    Ok(())
}

#[test]
fn w13_label_of_other_manager_changes_only_with_overwrite() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for change in [&["tier=iron"][..], &["tier-"], &["new=x", "tier=it's iron"], &["new=x", "--not-inherited", "tier"]] {
        let (_, text, status) = fleet.run_cli(&[&["label", "clustertemplate", "base"], change].concat())?;
        assert!(status == 4 && text.contains("labels.tier is \"gold\", owned by site:apply"), "{change:?}: {status} {text}");
        assert!(text.ends_with("\n  nothing was changed\n"), "{text}");
    }
    let (_, text, _) = fleet.run_cli(&["label", "clustertemplate", "base", "new=x", "tier=it's iron"])?;
    let command = proposed_command(&fleet, "label clustertemplate base new=x 'tier=it'\\''s iron'");
    assert!(text.contains(&command), "{text}");
    let base = get(&fleet, "clustertemplate", "base")?;
    assert_eq!(base["labels"], json!({"tier": "gold"}), "all of it or none");

    fleet.stemma(&["label", "clustertemplate", "base", "tier=gold", "own=a"])?;
    fleet.stemma(&["label", "clustertemplate", "base", "own=b"])?;
    fleet.stemma(&["label", "clustertemplate", "base", "tier=iron", "--manager", "site"])?;
    fleet.stemma(&["label", "clustertemplate", "base", "tier=zinc", "--overwrite"])?;
    let base = get(&fleet, "clustertemplate", "base")?;
    assert_eq!(base["labels"], json!({"tier": "zinc", "own": "b"}));
    assert_eq!(base["label_owners"]["tier"], base["label_owners"]["own"]);

    // Commands that write the whole map check the owner too.
    for more in [&["--not-inherited", "rack"][..], &["x=y", "--merge", "--not-inherited", "rack"]] {
        let (_, text, status) = fleet.run_cli(&[&["label", "node", "web-1"], more].concat())?;
        assert!(status == 4 && text.contains("labels.rack is \"r1\", owned by site:apply"), "{more:?}: {text}");
    }
    Ok(())
}

#[test]
fn w13_batch_reports_reason_when_one_object_fails() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let (out, text, status) = fleet.run_cli(&["label", "node", "web-1", "wbe-2", "web-3", "a=b"])?;
    assert_eq!(out, "node web-1 labeled\nnode web-3 labeled\n");
    assert!(status == 1 && text.contains("error: 1 of 3 failed\n  node wbe-2: Node "), "{status} {text}");
    assert!(text.contains("did you mean web-2?"), "{text}");
    assert!(text.ends_with("\n  done: node web-1, node web-3\n"), "it does not say that nothing was changed: {text}");

    let (_, text, status) = fleet.run_cli(&["delete", "node", "web-9", "none"])?;
    assert!(status == 1 && text.contains("2 of 2 failed") && text.ends_with("\n  nothing was changed\n"), "{text}");
    let (_, text, status) = fleet.run_cli(&["delete", "node", "wbe-1"])?;
    assert!(status == 3 && text.contains("did you mean web-1?"), "{status} {text}");

    fleet.stemma(&["role", "add", "web-1,web-2", "db"])?;
    let add = ["trait", "add", "-l", "rack in (r1,r3)", "CUSTOM_A", "CUSTOM_B"];
    for bound in [&[][..], &["--max-nodes", "5"]] {
        let (_, text, status) = fleet.run_cli(&[&add[..], bound].concat())?;
        ensure!(status == 1 && text.contains("web-1, web-3\n"), "{status} {text}");
        let asked = "2 nodes are selected, which reach ";
        ensure!(text.contains(asked) && text.contains("there is no terminal to ask for confirmation\n  say --yes"), "{text}");
        ensure!(text.ends_with("nothing was changed\n"), "{text}");
    }
    assert_eq!(get(&fleet, "node", "web-1")?["traits"], json!([]));
    fleet.stemma(&[&add[..], &["--yes"]].concat())?;
    fleet.stemma(&["tag", "unassign", "web", "node/web-2", "node/web-3"])?;
    let list = |arguments: &[&str]| fleet.stemma(&[&["get", "nodes", "-o", "name"], arguments].concat());
    assert_eq!(list(&["--role", "db"])?, "node/web-1\nnode/web-2\n");
    assert_eq!(list(&["--trait", "CUSTOM_A,CUSTOM_B"])?, "node/web-1\nnode/web-3\n");
    assert_eq!(list(&["--tag", "web"])?, "node/web-1\n");
    fleet.stemma(&["trait", "remove", "-l", "rack=r1", "--all"])?;
    assert_eq!(list(&["--trait", "CUSTOM_A,CUSTOM_B"])?, "node/web-3\n");

    let labeled: Value = serde_json::from_str(&fleet.stemma(&["label", "node", "-l", "rack=r2", "c=d", "-o", "json"])?)?;
    assert_eq!((labeled[0]["name"].as_str(), labeled.as_array().map(Vec::len)), (Some("web-2"), Some(1)));
    let (out, text, status) = fleet.run_cli(&["delete", "node", "-l", "rack=none"])?;
    assert_eq!((out.as_str(), status), ("", 0));
    assert!(text.contains("no node is selected; nothing was changed"), "{text}");
    for wrong in [&["delete", "node"][..], &["delete", "node", "web-1", "-l", "rack=r1"], &["role", "add", "web-1"]] {
        let (_, text, status) = fleet.run_cli(wrong)?;
        assert!(status == 2 && text.contains("nothing was changed"), "{wrong:?}: {status} {text}");
    }
    Ok(())
}

#[test]
fn y09_selection_asks_for_confirmation_when_one_object_changes() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let all = ["-l", "rack in (r1,r2,r3)"];
    fleet.stemma(&["trait", "add", "web-1", "CUSTOM_Q"])?;
    fleet.stemma(&["node", "park", "web-2", "web-3"])?;
    fleet.stemma(&["node", "move", "web-2", "web-3", "us/web", "--overwrite"])?;
    for verb in [&["trait", "remove", "CUSTOM_Q"][..], &["node", "park"], &["node", "move", "us/web", "--overwrite"]] {
        let (out, text, status) = fleet.run_cli(&[verb, &all].concat())?;
        ensure!((out.as_str(), status) == ("", 1), "{verb:?}: {status} {out}");
        ensure!(text.contains("web-1\nerror: 3 nodes are selected, of which 1 would change: this reaches "), "{text}");
        ensure!(text.ends_with("\n  nothing was changed\n"), "{text}");
    }
    let (out, text, status) = fleet.run_cli(&[&["trait", "remove", "CUSTOM_Q", "--yes"][..], &all].concat())?;
    let passed = |node: &str| format!("node {node} has no trait CUSTOM_Q: nothing to remove\n");
    ensure!(status == 0, "{status} {text}");
    assert_eq!(out, format!("node web-1 no longer has CUSTOM_Q\n{}{}", passed("web-2"), passed("web-3")));
    // For nodes that were named, it is an error that lists each of them.
    let (_, text, status) = fleet.run_cli(&["trait", "remove", "web-1,web-2", "CUSTOM_Q"])?;
    ensure!(status == 1 && text.contains("2 of 2 failed\n  node web-1: Node web-1 doesn't have a trait"), "{text}");

    fleet.stemma(&["role", "add", "web-1", "db"])?;
    for (verb, passed) in [
        (&["role", "remove", "db"][..], "node web-2 has no role db: nothing to remove\n"),
        (&["tag", "assign", "db"], ""),
        (&["tag", "assign", "db"], "node web-2 has tag db already\n"),
        (&["tag", "unassign", "db"], ""),
        (&["tag", "unassign", "db"], "node web-2 has no tag db: nothing to remove\n"),
        (&["trait", "unsuppress", "CUSTOM_Q"], "node web-2: CUSTOM_Q is not suppressed\n"),
    ] {
        let (out, text, status) = fleet.run_cli(&[verb, &["--yes"][..], &all].concat())?;
        ensure!(status == 0 && out.contains(passed), "{verb:?}: {status} {out} {text}");
    }
    Ok(())
}

#[test]
fn w13_printed_names_are_accepted_by_commands() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let names = fleet.stemma(&["get", "nodegroups", "-o", "name"])?;
    assert_eq!(names, "nodegroup/eu/web\nnodegroup/us/web\n", "of all clusters");
    let (_, text, status) = fleet.run_cli(&["delete", "nodegroup/us/web", "node/web-3", "nosuch"])?;
    assert!(status == 2 && text.contains("\"nosuch\" has no kind"), "{text}");
    let nodes = fleet.stemma(&["get", "nodes", "-o", "name"])?;
    let nodes: Vec<&str> = nodes.lines().collect();
    fleet.stemma(&[&["label"], &nodes[..], &["a=b"]].concat())?;
    assert!(fleet.stemma(&["get", "node/web-1"])?.contains("web-1"));
    assert_eq!(get(&fleet, "node", "web-1")?["labels"]["a"], "b");
    let all = [&["delete", "cluster/eu", "nodegroup/eu/web"], &nodes[..]].concat();
    let (out, text, status) = fleet.run_cli(&[&all[..], &["--dry-run"]].concat())?;
    assert_eq!(status, 0, "what can be done is no failure where it is tried out: {text}");
    assert!(out.contains("node web-1 deleted (dry run)\n"), "{out}");
    for object in ["nodegroup eu/web", "cluster eu"] {
        let said = format!("{object} is in use: it is decided after the others are deleted (dry run)\n");
        assert!(out.contains(&said), "{object}: {out}");
    }
    assert_eq!(fleet.stemma(&["get", "clusters", "-o", "name"])?, "cluster/eu\ncluster/us\n", "nothing was written");
    // Nodes outside this selection still use them.
    let some = ["delete", "cluster/eu", "nodegroup/eu/web", "node/web-1", "--dry-run"];
    let (out, text, status) = fleet.run_cli(&some)?;
    assert!(status == 1 && out == "node web-1 deleted (dry run)\n", "{status} {out}");
    for part in [
        "2 of 3 failed",
        "cluster eu: cluster 'eu' is in use by node web-1, node web-2, node web-3",
        "nodegroup 'eu/web' is in use by",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let (_, text, status) = fleet.run_cli(&["delete", "nodegroup", "--cluster", "eu", "--dry-run"])?;
    assert!(status == 1 && text.contains("nodegroup 'eu/web' is in use by node web-1"), "selected ones likewise: {text}");
    let (_, text, status) = fleet.run_cli(&["delete", "nodegroup/us/web", "nodegroup/eu/web", "node/web-1"])?;
    assert!(status == 1 && text.contains("1 of 3 failed\n  nodegroup eu/web: "), "it has other nodes: {text}");
    assert!(text.contains("done: nodegroup us/web, node web-1"), "{text}");
    let deleted = fleet.stemma(&[&["delete", "cluster/eu", "nodegroup/eu/web"], &nodes[1..], &["-o", "name"]].concat())?;
    assert_eq!(deleted, "node/web-2\nnode/web-3\nnodegroup/eu/web\ncluster/eu\n", "each when nothing refers to it any more");
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?, "");
    let (_, text, status) = fleet.run_cli(&["delete", "ndoe/web-1"])?;
    assert!(status == 2 && text.contains("unknown kind \"ndoe\" (did you mean \"node\"?)"), "{text}");
    Ok(())
}

#[test]
fn w13_delete_sends_only_token_id_when_given_printed_name() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for by in [&["delete", "token"][..], &["delete"], &["token", "delete"]] {
        let token = fleet.stemma(&["token", "create", "-o", "name"])?;
        let token = token.trim();
        let (id, secret) = token.split_once('.').context("an id and a secret")?;
        let named = if by == ["delete"] { format!("token/{token}") } else { token.to_owned() };
        let (out, text, status) = fleet.run_cli(&[by, &[&named]].concat())?;
        assert!(status == 0 && out.contains(&format!("token {id} deleted")), "{by:?}: {status} {out}{text}");
        let (out, again, status) = fleet.run_cli(&[by, &[&named]].concat())?;
        assert!(status != 0 && again.contains(id), "{by:?}: {again}");
        assert!(!format!("{out}{text}{again}{}", fleet.log()).contains(secret), "the secret is printed: {again}");
    }
    Ok(())
}

#[test]
fn w13_batch_asks_once_for_all_writes() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for number in 4..=11 {
        fleet.stemma(&["create", "node", &format!("web-{number}"), "--nodegroup", "eu/web", "--yes"])?;
    }
    let (_, text, status) = fleet.run_cli(&["delete", "node", "--nodegroup", "eu/web"])?;
    assert!(status == 1 && text.contains("and there is no terminal to ask for confirmation"), "{text}");
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?.lines().count(), 11, "none of them was deleted");
    let (out, text, _) = fleet.run_cli(&["delete", "node", "--nodegroup", "eu/web", "--dry-run"])?;
    assert!(out.lines().count() == 11 && out.contains("node web-11 deleted (dry run)"), "{out}");
    assert_eq!(text.matches("dry run: nothing was written; this would reach 11 hosts").count(), 1, "{text}");
    fleet.stemma(&["delete", "node", "--nodegroup", "eu/web", "--max-nodes", "11", "--yes"])?;
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?, "");
    Ok(())
}

#[test]
fn w06_batch_shows_changes_and_counts_each_host_once() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let (out, text, _) = fleet.run_cli(&["trait", "add", "web-1", "CUSTOM_A", "CUSTOM_B"])?;
    assert_eq!(out, "node web-1 has CUSTOM_A, CUSTOM_B\n");
    assert_eq!(text, "  traits  (none) -> CUSTOM_A\n  traits  CUSTOM_A -> CUSTOM_A,CUSTOM_B\n");
    let (_, text, _) = fleet.run_cli(&["trait", "remove", "web-1", "CUSTOM_A", "--dry-run"])?;
    let reach = "dry run: nothing was written; this would reach 1 host (no task set changes)\n";
    assert_eq!(text, format!("  traits  CUSTOM_A,CUSTOM_B -> CUSTOM_B\n{reach}"));
    let removed: Value = serde_json::from_str(&fleet.stemma(&["trait", "remove", "web-1", "--all", "-o", "json"])?)?;
    assert_eq!((&removed["name"], &removed["traits"]), (&json!("web-1"), &json!([])), "the node as it is now");
    assert_eq!(removed["changes"], json!([{"field": "traits", "old": ["CUSTOM_A", "CUSTOM_B"], "new": []}]));

    let twice = ["label", "node/web-1", "nodegroup/eu/web", "cluster/eu", "a=b", "--dry-run"];
    let (_, text, _) = fleet.run_cli(&twice)?;
    assert!(text.ends_with("this would reach 3 hosts (no task set changes)\n"), "{text}");
    let (_, text, status) = fleet.run_cli(&[&twice[..5], &["--max-nodes", "2"]].concat())?;
    assert!(status == 1 && text.contains("this reaches 3 hosts, more than --max-nodes 2"), "{text}");
    fleet.stemma(&[&twice[..5], &["--max-nodes", "3"]].concat())?;

    let (out, text, _) = fleet.run_cli(&["delete", "node", "web-3", "--dry-run"])?;
    assert_eq!(out, "node web-3 deleted (dry run)\n");
    for line in ["  labels.rack  r3 -> (unset)\n", "  nodegroup  eu/web -> (unset)\n"] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    let deleted: Value = serde_json::from_str(&fleet.stemma(&["delete", "node", "web-3", "-o", "json"])?)?;
    assert_eq!((&deleted["kind"], &deleted["name"]), (&json!("node"), &json!("web-3")));
    assert!(deleted["changes"].to_string().contains(r#"{"field":"nodegroup","old":"eu/web"}"#), "{deleted}");
    Ok(())
}

#[test]
fn w13_nodes_are_parked_held_moved_and_renamed() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let field = |name: &str, field: &str| -> Result<Value> { Ok(get(&fleet, "node", name)?[field].clone()) };
    assert_eq!(fleet.stemma(&["node", "park", "web-1", "node/web-2"])?, "node web-1 is parked\nnode web-2 is parked\n");
    assert_eq!((field("web-1", "parked")?, field("web-1", "state")?), (json!(true), json!("parked")));
    fleet.stemma(&["node", "unpark", "-l", "rack in (r1,r2)", "--yes"])?;
    assert_eq!(field("web-2", "parked")?, json!(false));

    let (_, text, status) = fleet.run_cli(&["node", "hold", "web-1"])?;
    assert!(status == 2 && text.contains("--reason TEXT"), "{text}");
    fleet.stemma(&["node", "hold", "web-1", "--until", "2999-01-01T00:00:00Z", "--reason", "a disk is changed"])?;
    assert_eq!(field("web-1", "hold")?, json!({"until": "2999-01-01T00:00:00Z", "reason": "a disk is changed"}));
    fleet.stemma(&["node", "hold", "web-1", "--reason", "for good"])?;
    assert_eq!(field("web-1", "hold")?, json!({"reason": "for good"}));
    fleet.stemma(&["node", "unhold", "web-1"])?;
    assert_eq!(field("web-1", "hold")?, Value::Null);

    fleet.stemma(&["role", "add", "web-1", "db"])?;
    eventually("web-1 is elected", || {
        anyhow::ensure!(field("web-1", "primary_tags")? == json!(["db"]));
        Ok(())
    })?;
    let (out, text, _) = fleet.run_cli(&["node", "move", "web-1", "web-2", "us/web", "--overwrite"])?;
    assert_eq!(out, "node web-1 moved from eu/web to us/web\nnode web-2 moved from eu/web to us/web\n");
    assert!(text.contains("info: node web-1 leaves cluster eu: it gives back its primaries there (db), and nothing is drained"));
    assert!(text.contains("info: node web-2 leaves cluster eu: nothing is drained before it leaves"), "{text}");
    let (_, text, status) = fleet.run_cli(&["node", "move", "web-1", "eu/none"])?;
    assert!(
        status != 0 && text.contains("eu/none") && !text.contains("leaves cluster"),
        "a move that fails warns of nothing: {text}"
    );
    fleet.stemma(&["role", "add", "web-3", "db"])?;
    eventually("its primary was given back", || {
        anyhow::ensure!(field("web-3", "primary_tags")? == json!(["db"]));
        Ok(())
    })?;
    assert_eq!(fleet.stemma(&["node", "move", "web-1", "us/web"])?, "node web-1 is in us/web already\n");
    fleet.stemma(&["node", "move", "web-1", "--out"])?;
    assert_eq!((field("web-1", "nodegroup")?, field("web-1", "state")?), (Value::Null, json!("unplaced")));
    let (_, text, status) = fleet.run_cli(&["node", "move", "web-1", "eu/nosuch"])?;
    assert_eq!(status, 1);
    assert!(text.contains("there is no node group \"eu/nosuch\": create it first"), "{text}");
    let (_, text, status) = fleet.run_cli(&["node", "move", "web-1", "eu/wbe"])?;
    assert!(status == 1 && text.contains("there is no node group \"eu/wbe\" (did you mean \"eu/web\"?)"), "{text}");

    assert_eq!(fleet.stemma(&["node", "rename", "web-1", "app-1"])?, "node web-1 is called app-1\n");
    let (_, text, status) = fleet.run_cli(&["node", "rename", "web-2", "app-1"])?;
    assert!(status == 4 && text.contains("app-1"), "{status} {text}");
    assert_eq!(fleet.stemma(&["node", "rename", "app-1", "web-1", "-o", "name"])?, "node/web-1\n");
    Ok(())
}

#[test]
fn w13_pause_park_and_hold_require_overwrite_for_other_manager() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let file = fleet.dir().join("aside.yaml");
    std::fs::write(
        &file,
        "kind: Node\nname: web-1\nnodegroup: eu/web\nlabels: {rack: r1}\nparked: true\nhold: {reason: theirs}\n\
         suppressed_traits: [CUSTOM_A]\n---\n\
         kind: Cluster\nname: eu\ncluster_template: base\npaused: true\n---\n\
         kind: NodeGroup\ncluster: eu\nname: web\nroles: [web]\npaused: true\n",
    )?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--manager", "site"])?;
    for (words, taken, kind, name, field) in [
        (&["node", "unpark", "web-1"][..], "parked is true", "node", "web-1", "parked"),
        (&["node", "hold", "web-1", "--reason", "it's mine"], "hold is ", "node", "web-1", "hold"),
        (&["node", "unhold", "web-1"], "hold is ", "node", "web-1", "hold"),
        (
            &["trait", "suppress", "web-1", "CUSTOM_B"],
            "suppressed_traits is [\"CUSTOM_A\"]",
            "node",
            "web-1",
            "suppressed_traits",
        ),
        (&["node", "move", "web-1", "us/web"], "nodegroup is \"eu/web\"", "node", "web-1", "nodegroup"),
        (&["resume", "cluster", "eu"], "paused is true", "cluster", "eu", "paused"),
        (&["resume", "nodegroup", "eu/web"], "paused is true", "nodegroup", "eu/web", "paused"),
    ] {
        let before = get(&fleet, kind, name)?[field].clone();
        let (_, text, status) = fleet.run_cli(words)?;
        if words[1] == "unhold" {
            // This manager owns the field by now.
            assert_eq!(status, 0, "{text}");
            continue;
        }
        assert!(status == 4 && text.contains(taken) && text.contains("owned by site:apply"), "{words:?}: {text}");
        assert!(text.matches(taken).count() == 1 && !text.contains("force"), "said once, in the command's words: {text}");
        let command = proposed_command(&fleet, &words.join(" ").replace("it's mine", "'it'\\''s mine'"));
        assert!(text.contains(&command) && text.ends_with("nothing was changed\n"), "{words:?}: {text}");
        assert_eq!(get(&fleet, kind, name)?[field], before);
        fleet.stemma(&[words, &["--overwrite"]].concat())?;
        assert_ne!(get(&fleet, kind, name)?[field], before);
    }
    Ok(())
}

#[test]
fn y05_items_of_other_manager_change_only_with_overwrite() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let file = fleet.dir().join("given.yaml");
    std::fs::write(
        &file,
        "kind: Node\nname: web-1\nnodegroup: eu/web\nlabels: {rack: r1}\nroles: [web]\ntraits: [CUSTOM_A]\n\
         tags: {assigned: [db], unassigned: [web]}\n---\n\
         kind: Cluster\nname: eu\ncluster_template: base\ntags: {own: {}}\n",
    )?;
    for (words, taken) in [
        (&["role", "add", "web-1", "db"][..], "roles is [\"web\"]"),
        (&["role", "remove", "web-1", "web"], "roles is [\"web\"]"),
        (&["trait", "remove", "web-1", "CUSTOM_A"], "traits.CUSTOM_A is set"),
        (&["trait", "remove", "web-1", "--all"], "traits.CUSTOM_A is set"),
        (&["tag", "assign", "web-1", "web"], "tags.web is \"unassigned\""),
        (&["tag", "unassign", "web-1", "db"], "tags.db is \"assigned\""),
        (&["tag", "create", "more", "--cluster", "eu"], "tags is {\"own\":"),
        (&["tag", "update", "own", "--cluster", "eu", "--title", "T"], "tags is {\"own\":"),
        (&["tag", "delete", "own", "--cluster", "eu"], "tags is {\"own\":"),
    ] {
        fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--manager", "site", "--force"])?;
        let (_, text, status) = fleet.run_cli(words)?;
        let owner = format!("other managers own what this would change\n  {taken}");
        assert!(status == 4 && text.contains(&owner) && text.contains(", owned by site:apply\n"), "{words:?}: {text}");
        let command = proposed_command(&fleet, &words.join(" "));
        assert!(text.contains(&command) && text.ends_with("nothing was changed\n"), "{words:?}: {text}");
        fleet.stemma(&[words, &["--manager", "site", "--dry-run"]].concat())?;
        fleet.stemma(&[words, &["--overwrite"]].concat())?;
    }
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--manager", "site", "--force"])?;
    for words in [
        &["trait", "add", "web-1", "CUSTOM_A", "CUSTOM_B"][..],
        &["role", "add", "web-2", "db"],
        &["tag", "create", "own", "--cluster", "us"],
        &["tag", "create", "beside", "--release", "r"],
        &["tag", "delete", "beside", "--release", "r"],
    ] {
        assert!(!fleet.stemma(words)?.is_empty(), "{words:?}: nobody had it");
    }
    // For nodes of a selection, the error lists those that failed.
    let (_, text, status) = fleet.run_cli(&["role", "add", "-l", "rack in (r1,r3)", "db", "--yes"])?;
    assert!(status == 1 && text.contains("1 of 2 failed\n  node web-1: other managers own what this would change\n"), "{text}");
    let command = proposed_command(&fleet, "role add -l 'rack in (r1,r3)' db --yes");
    assert!(text.contains(&command) && text.contains("done: node web-3"), "{text}");
    Ok(())
}

#[test]
fn w13_undoing_write_leaves_no_owner() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let by = |manager: &str, words: &[&str]| fleet.stemma(&[words, &["--manager", manager]].concat());
    let entries = || fleet.stemma(&["audit", "-o", "json"]).map(|text| text.matches("\"manager\"").count());
    for (kind, name, set, back, field, is_not) in [
        ("cluster", "eu", "pause cluster eu", "resume cluster eu", "paused", "cluster eu is not paused\n"),
        (
            "nodegroup",
            "eu/web",
            "pause nodegroup eu/web",
            "resume nodegroup eu/web",
            "paused",
            "nodegroup eu/web is not paused\n",
        ),
        ("node", "web-1", "node park web-1", "node unpark web-1", "parked", "node web-1 is not parked\n"),
        ("node", "web-1", "node hold web-1 --reason r", "node unhold web-1", "hold", "node web-1 is not held\n"),
        ("node", "web-1", "trait suppress web-1 CUSTOM_A", "trait unsuppress web-1 CUSTOM_A", "suppressed_traits", ""),
    ] {
        let [set, back] = [set, back].map(|words| words.split(' ').collect::<Vec<_>>());
        let (before, written) = (get(&fleet, kind, name)?, entries()?);
        if !is_not.is_empty() {
            assert_eq!(by("carl", &back)?, is_not);
        }
        let after = get(&fleet, kind, name)?;
        assert_eq!((&after["generation"], entries()?), (&before["generation"], written), "{back:?} wrote");
        for manager in ["ann", "bob"] {
            by(manager, &set)?;
            by(manager, &back)?;
            assert_eq!(get(&fleet, kind, name)?[field], before[field], "{back:?}");
        }
        by("carl", &set)?;
        let (_, text, status) = fleet.run_cli(&[&back[..], &["--manager", "ann"]].concat())?;
        assert!(status == 4 && text.contains("owned by carl:update"), "what is set still has its owner: {text}");
        by("carl", &back)?;
    }
    by("ann", &["pause", "cluster", "eu"])?;
    assert_eq!(by("bob", &["pause", "cluster", "eu"])?, "cluster eu is paused already\n");
    Ok(())
}

/// The same as for a `hold` in the API, which has an end, a reason, or both.
#[test]
fn y05_hold_requires_end_or_reason() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let until = "2999-01-01T00:00:00Z";
    for (words, hold) in [
        (&["--until", until][..], json!({"until": until})),
        (&["--reason", "a disk"], json!({"reason": "a disk"})),
        (&["--until", until, "--reason", "a disk"], json!({"until": until, "reason": "a disk"})),
        // The reason of an earlier hold is removed.
        (&["--until", until], json!({"until": until})),
    ] {
        fleet.stemma(&[&["node", "hold", "web-1"][..], words].concat())?;
        assert_eq!(get(&fleet, "node", "web-1")?["hold"], hold, "{words:?}");
    }
    let (_, text, status) = fleet.run_cli(&["node", "hold", "web-2"])?;
    assert!(status == 2 && text.contains("--reason TEXT, --until TIME or --for DURATION"), "{text}");
    assert_eq!(get(&fleet, "node", "web-2")?["hold"], Value::Null);
    Ok(())
}

#[test]
fn w13_clusters_and_groups_are_paused_and_resumed() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    assert_eq!(fleet.stemma(&["pause", "cluster", "eu", "us"])?, "cluster eu paused\ncluster us paused\n");
    assert_eq!(get(&fleet, "cluster", "eu")?["paused"], json!(true));
    assert_eq!(get(&fleet, "node", "web-1")?["state"], json!("paused"));
    fleet.stemma(&["resume", "cluster/eu", "cluster/us"])?;
    assert_eq!(get(&fleet, "cluster", "eu")?["paused"], Value::Null);
    fleet.stemma(&["pause", "nodegroup", "eu/web"])?;
    assert_eq!(get(&fleet, "node", "web-1")?["state"], json!("paused"));
    fleet.stemma(&["resume", "nodegroup", "eu/web"])?;
    let (_, text, status) = fleet.run_cli(&["pause", "node", "web-1"])?;
    assert!(status == 2 && text.contains("stemma node hold") && text.contains("nothing was changed"), "{text}");

    fleet.stemma(&["trait", "add", "web-1", "CUSTOM_A"])?;
    fleet.stemma(&["trait", "suppress", "web-1,web-2", "HW_CPU_X86_AVX2", "CUSTOM_B"])?;
    let listed = fleet.stemma(&["trait", "list", "web-1"])?;
    let has = |name: &str, from: &str| listed.lines().any(|line| line.starts_with(name) && line.ends_with(from));
    assert!(has("CUSTOM_A", "operator") && has("HW_CPU_X86_AVX2", "suppressed"), "{listed}");
    let said = fleet.stemma(&["trait", "unsuppress", "web-1", "HW_CPU_X86_AVX2"])?;
    assert_eq!(said, "node web-1: suppressed CUSTOM_B\n");
    assert_eq!(get(&fleet, "node", "web-1")?["suppressed_traits"], json!(["CUSTOM_B"]));
    let (_, text, status) = fleet.run_cli(&["trait", "unsuppress", "web-1", "CUSTOM_NONE"])?;
    assert!(status == 3 && text.contains("CUSTOM_NONE is not suppressed\n  nothing was changed"), "{text}");
    Ok(())
}

#[test]
fn w13_selection_refuses_additional_node_name() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for (words, named) in [
        (&["role", "add", "web-1", "db"][..], "web-1"),
        (&["role", "remove", "web-1,web-2", "web"], "web-1,web-2"),
        (&["trait", "add", "web-2", "CUSTOM_A"], "web-2"),
        (&["tag", "assign", "node/web-1", "db"], "node/web-1"),
    ] {
        let (_, text, status) = fleet.run_cli(&[words, &["-l", "rack=r3"]].concat())?;
        let told =
            format!("{} is named and others are selected: use names or a selection, not both", named.trim_start_matches("node/"));
        assert!(status == 2 && text.replace("node/", "").contains(&told), "{words:?}: {status} {text}");
        assert!(text.ends_with("nothing was changed\n"), "{text}");
    }
    fleet.stemma(&["role", "add", "db", "web", "-l", "rack=r3"])?;
    assert_eq!(get(&fleet, "node", "web-3")?["roles"], json!(["db", "web"]));
    Ok(())
}

#[test]
fn w06_token_delete_names_token_and_effect() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let token = fleet.stemma(&["token", "create", "--nodegroup", "eu/web", "--uses", "3"])?;
    let id = token.split_once('.').context("ID.SECRET")?.0;
    for more in [&["--dry-run"][..], &[]] {
        let (out, text, status) = fleet.run_cli(&[&["delete", "token", id], more].concat())?;
        assert!(status == 0 && out.starts_with(&format!("token {id} deleted")), "{out}{text}");
        for line in ["  nodegroup  eu/web -> (unset)\n", "  uses_left  3 -> (unset)\n"] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }
    Ok(())
}

#[test]
fn w13_concurrent_writers_of_key_see_each_conflict() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let context = fleet.context().to_string_lossy().into_owned();
    let told: Vec<_> = std::thread::scope(|scope| {
        let people = ["ann", "bob", "cho", "dan"].map(|who| {
            let context = context.as_str();
            let change = format!("turn={who}");
            scope.spawn(move || run("stemma", ["--context", context, "label", "node", "web-1", &change, "--manager", who]))
        });
        people.into_iter().map(|one| one.join().expect("it does not panic")).collect::<Result<_>>()
    })?;
    let statuses: Vec<i32> = told.iter().map(|told| told.status.code().unwrap_or_default()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 0).count(), 1, "{told:?}");
    assert!(statuses.iter().all(|status| [0, 4].contains(status)), "{told:?}");
    let turn = get(&fleet, "node", "web-1")?["labels"]["turn"].clone();
    let winner = statuses.iter().position(|status| *status == 0).context("one of them")?;
    assert_eq!(turn, json!(["ann", "bob", "cho", "dan"][winner]));
    Ok(())
}

/// Runs the command with a closed standard output, and with a closed standard error too if `both`. Returns its status
/// and standard error.
fn run_with_closed_output(fleet: &TempFleet, both: bool, arguments: &[&str]) -> Result<(i32, String)> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let stderr: Stdio = if both { writer.try_clone()?.into() } else { Stdio::piped() };
    let mut command = Command::new(path("stemma"));
    command.arg("--context").arg(fleet.context()).args(arguments);
    let output = command.stdin(Stdio::null()).stdout(writer).stderr(stderr).output()?;
    let code = output.status.code().context("it ended by itself")?;
    Ok((code, String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn x06_write_completes_when_output_is_closed() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for both in [false, true] {
        for (arguments, status) in [
            (&["get", "nodes"][..], 0),
            (&["describe", "node", "web-1"], 0),
            (&["completion", "bash"], 0),
            (&["audit"], 0),
            (&["get", "node", "nosuch"], 3),
            (&["label", "node", "web-1", "web-2", "seen=yes"], 0),
            (&["label", "node", "web-1", "absent-", "seen-"], 0),
            (&["delete", "node", "nosuch"], 3),
            (&["delete", "nodes", "web-1", "web-2", "nosuch", "--dry-run"], 1),
        ] {
            let (code, told) = run_with_closed_output(&fleet, both, arguments)?;
            assert_eq!(code, status, "{arguments:?}: {told}");
            assert!(!told.contains("panicked") && !told.contains("Broken pipe"), "{arguments:?}: {told}");
        }
    }
    assert_eq!(get(&fleet, "node", "web-2")?["provided_labels"]["seen"], "yes");
    let (code, told) = run_with_closed_output(&fleet, true, &["delete", "nodes", "web-1", "web-2", "web-3"])?;
    assert_eq!((code, &*told), (0, ""));
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?, "", "all of them, and not the first alone");
    Ok(())
}

#[test]
fn x06_batch_changes_nothing_when_entry_is_empty() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    // The state of the node arrives later, so the test compares the version only.
    let version = || anyhow::Ok(get(&fleet, "node", "web-1")?["resource_version"].clone());
    let before = version()?;
    for arguments in [
        &["trait", "add", "web-1,", "CUSTOM_A"][..],
        &["trait", "suppress", "web-1,,web-2", "CUSTOM_A"],
        &["role", "add", ",web-1", "db"],
        &["tag", "assign", "web-1, ", "db"],
        &["node", "park", "web-1", "node/"],
        &["delete", "node/web-1", "node/"],
        &["label", "node", "web-1", "-", "a=b"],
    ] {
        let (out, text, status) = fleet.run_cli(arguments)?;
        assert!(status == 2 && out.is_empty(), "{arguments:?}: {out}{text}");
        assert!(text.contains("is empty: give a value\n  nothing was changed\n"), "{arguments:?}: {text}");
    }
    let (_, text, status) = fleet.run_cli(&["delete", "nodegroup", "us/web", "web"])?;
    assert!(status == 2 && text.contains("a node group is named CLUSTER/GROUP, not \"web\""), "{text}");
    assert_eq!(version()?, before);
    get(&fleet, "nodegroup", "us/web")?;
    Ok(())
}
