//! The operator's command on several objects at once, and on keys that other managers own, against a real controller.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{eventually, path, run};

/// Starts a fleet with the clusters `eu` and `us`, each with a node group `web`. The group of `eu` has three nodes. The
/// manager `site` applies these objects, so it owns their fields.
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

/// Returns an object as `stemma get` prints it in JSON.
fn get_object(fleet: &TempFleet, kind: &str, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&["get", kind, name, "-o", "json"])?)?)
}

/// Returns the line in which a refusal proposes to repeat the command with `--overwrite`. `words` are the arguments of
/// the refused command, quoted for a shell.
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
        let (_, stderr, status) = fleet.run_cli(arguments)?;
        assert!(status != 0 && stderr.contains(&proposed_command(&fleet, words)), "{status} {stderr}");
        let overwriting: Vec<&str> = arguments.iter().copied().chain(["--overwrite"]).collect();
        fleet.stemma(&overwriting)?;
    }
    let web = get_object(&fleet, "node", "web-1")?;
    assert_eq!((&web["labels"]["rack"], &web["label_owners"]["rack"]), (&json!("r9"), &json!(["alice:update"])));
    Ok(())
}

/// In this test, a command gets the item (a trait, role or tag) twice, and the node `web-1` twice. The output has one
/// line for each of the two nodes.
#[test]
fn w13_batch_prints_each_object_once_when_repeated() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    fleet.stemma(&["trait", "add", "web-2", "CUSTOM_C"])?;
    for verb in [&["trait", "add"][..], &["trait", "remove"], &["trait", "suppress"], &["role", "add"], &["tag", "unassign"]] {
        let item = match verb[0] {
            "trait" => "CUSTOM_C",
            _ => "web",
        };
        let nodes: &[&str] = if verb[1] == "remove" { &["node/web-2"] } else { &["node/web-1", "node/web-2", "node/web-1"] };
        let command = [verb, &[item, item], nodes, &["--dry-run"]].concat();
        let (stdout, stderr, status) = fleet.run_cli(&command)?;
        assert_eq!((stdout.lines().count(), status), (nodes.len().min(2), 0), "{command:?}: {stdout} {stderr}");
        assert!(stdout.lines().all(|line| !line.contains(&format!(", {item}")) && line.ends_with(" (dry run)")), "{stdout}");
        let json_output: Value = serde_json::from_str(&fleet.stemma(&[&command[..], &["-o", "json"]].concat())?)?;
        assert!(json_output.as_array().map_or(1, Vec::len) == nodes.len().min(2), "{command:?}: {json_output}");
    }
    assert_eq!(fleet.stemma(&["get", "node", "web-1", "web-1", "-o", "name"])?, "node/web-1\n");
    let (_, stderr, status) = fleet.run_cli(&["trait", "remove", "web-1", "CUSTOM_X"])?;
    assert!(status == 3 && stderr.contains("Node web-1 doesn't have a trait"), "{status} {stderr}");
    Ok(())
}

#[test]
fn w13_label_of_other_manager_changes_only_with_overwrite() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for change in [&["tier=iron"][..], &["tier-"], &["new=x", "tier=it's iron"], &["new=x", "--not-inherited", "tier"]] {
        let (_, stderr, status) = fleet.run_cli(&[&["label", "clustertemplate", "base"], change].concat())?;
        assert!(status == 4 && stderr.contains("labels.tier is \"gold\", owned by site:apply"), "{change:?}: {status} {stderr}");
        assert!(stderr.ends_with("\n  nothing was changed\n"), "{stderr}");
    }
    let (_, stderr, _) = fleet.run_cli(&["label", "clustertemplate", "base", "new=x", "tier=it's iron"])?;
    let command = proposed_command(&fleet, "label clustertemplate base new=x 'tier=it'\\''s iron'");
    assert!(stderr.contains(&command), "{stderr}");
    let base = get_object(&fleet, "clustertemplate", "base")?;
    assert_eq!(base["labels"], json!({"tier": "gold"}), "a refused command writes no label");

    fleet.stemma(&["label", "clustertemplate", "base", "tier=gold", "own=a"])?;
    fleet.stemma(&["label", "clustertemplate", "base", "own=b"])?;
    fleet.stemma(&["label", "clustertemplate", "base", "tier=iron", "--manager", "site"])?;
    fleet.stemma(&["label", "clustertemplate", "base", "tier=zinc", "--overwrite"])?;
    let base = get_object(&fleet, "clustertemplate", "base")?;
    assert_eq!(base["labels"], json!({"tier": "zinc", "own": "b"}));
    assert_eq!(base["label_owners"]["tier"], base["label_owners"]["own"]);

    // A command that sends the whole map of labels is refused too if another manager owns a changed label.
    for arguments in [&["--not-inherited", "rack"][..], &["x=y", "--merge", "--not-inherited", "rack"]] {
        let (_, stderr, status) = fleet.run_cli(&[&["label", "node", "web-1"], arguments].concat())?;
        assert!(status == 4 && stderr.contains("labels.rack is \"r1\", owned by site:apply"), "{arguments:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn w13_batch_reports_reason_when_one_object_fails() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let (stdout, stderr, status) = fleet.run_cli(&["label", "node", "web-1", "wbe-2", "web-3", "a=b"])?;
    assert_eq!(stdout, "node web-1 labeled\nnode web-3 labeled\n");
    assert!(status == 1 && stderr.contains("error: 1 of 3 failed\n  node wbe-2: Node "), "{status} {stderr}");
    assert!(stderr.contains("did you mean web-2?"), "{stderr}");
    assert!(stderr.ends_with("\n  done: node web-1, node web-3\n"), "the last line lists the changed nodes: {stderr}");

    let (_, stderr, status) = fleet.run_cli(&["delete", "node", "web-9", "none"])?;
    assert!(status == 1 && stderr.contains("2 of 2 failed") && stderr.ends_with("\n  nothing was changed\n"), "{stderr}");
    let (_, stderr, status) = fleet.run_cli(&["delete", "node", "wbe-1"])?;
    assert!(status == 3 && stderr.contains("did you mean web-1?"), "{status} {stderr}");

    fleet.stemma(&["role", "add", "web-1,web-2", "db"])?;
    let add = ["trait", "add", "-l", "rack in (r1,r3)", "CUSTOM_A", "CUSTOM_B"];
    for limit in [&[][..], &["--max-nodes", "5"]] {
        let (_, stderr, status) = fleet.run_cli(&[&add[..], limit].concat())?;
        ensure!(status == 1 && stderr.contains("web-1, web-3\n"), "{status} {stderr}");
        let question = "2 nodes are selected, which reach ";
        ensure!(
            stderr.contains(question) && stderr.contains("there is no terminal to ask for confirmation\n  use --yes"),
            "{stderr}"
        );
        ensure!(stderr.ends_with("nothing was changed\n"), "{stderr}");
    }
    assert_eq!(get_object(&fleet, "node", "web-1")?["traits"], json!([]));
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
    let (stdout, stderr, status) = fleet.run_cli(&["delete", "node", "-l", "rack=none"])?;
    assert_eq!((stdout.as_str(), status), ("", 0));
    assert!(stderr.contains("no node is selected; nothing was changed"), "{stderr}");
    for wrong in [&["delete", "node"][..], &["delete", "node", "web-1", "-l", "rack=r1"], &["role", "add", "web-1"]] {
        let (_, stderr, status) = fleet.run_cli(wrong)?;
        assert!(status == 2 && stderr.contains("nothing was changed"), "{wrong:?}: {status} {stderr}");
    }
    Ok(())
}

#[test]
fn y09_selection_asks_for_confirmation_when_one_object_changes() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let selection = ["-l", "rack in (r1,r2,r3)"];
    fleet.stemma(&["trait", "add", "web-1", "CUSTOM_Q"])?;
    fleet.stemma(&["node", "park", "web-2", "web-3"])?;
    fleet.stemma(&["node", "move", "web-2", "web-3", "us/web", "--overwrite"])?;
    for verb in [&["trait", "remove", "CUSTOM_Q"][..], &["node", "park"], &["node", "move", "us/web", "--overwrite"]] {
        let (stdout, stderr, status) = fleet.run_cli(&[verb, &selection].concat())?;
        ensure!((stdout.as_str(), status) == ("", 1), "{verb:?}: {status} {stdout}");
        ensure!(stderr.contains("web-1\nerror: 3 nodes are selected, of which 1 would change: this reaches "), "{stderr}");
        ensure!(stderr.ends_with("\n  nothing was changed\n"), "{stderr}");
    }
    let (stdout, stderr, status) = fleet.run_cli(&[&["trait", "remove", "CUSTOM_Q", "--yes"][..], &selection].concat())?;
    let skip_message = |node: &str| format!("node {node} has no trait CUSTOM_Q: nothing to remove\n");
    ensure!(status == 0, "{status} {stderr}");
    assert_eq!(stdout, format!("node web-1 no longer has CUSTOM_Q\n{}{}", skip_message("web-2"), skip_message("web-3")));
    // If the command names the nodes, a missing trait is an error, which lists each node without the trait.
    let (_, stderr, status) = fleet.run_cli(&["trait", "remove", "web-1,web-2", "CUSTOM_Q"])?;
    ensure!(status == 1 && stderr.contains("2 of 2 failed\n  node web-1: Node web-1 doesn't have a trait"), "{stderr}");

    fleet.stemma(&["role", "add", "web-1", "db"])?;
    for (verb, skip_message) in [
        (&["role", "remove", "db"][..], "node web-2 has no role db: nothing to remove\n"),
        (&["tag", "assign", "db"], ""),
        (&["tag", "assign", "db"], "node web-2 has tag db already\n"),
        (&["tag", "unassign", "db"], ""),
        (&["tag", "unassign", "db"], "node web-2 has no tag db: nothing to remove\n"),
        (&["trait", "unsuppress", "CUSTOM_Q"], "node web-2: CUSTOM_Q is not suppressed\n"),
    ] {
        let (stdout, stderr, status) = fleet.run_cli(&[verb, &["--yes"][..], &selection].concat())?;
        ensure!(status == 0 && stdout.contains(skip_message), "{verb:?}: {status} {stdout} {stderr}");
    }
    Ok(())
}

#[test]
fn w13_printed_names_are_accepted_by_commands() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let names = fleet.stemma(&["get", "nodegroups", "-o", "name"])?;
    assert_eq!(names, "nodegroup/eu/web\nnodegroup/us/web\n", "the groups of all clusters are listed");
    let (_, stderr, status) = fleet.run_cli(&["delete", "nodegroup/us/web", "node/web-3", "nosuch"])?;
    assert!(status == 2 && stderr.contains("\"nosuch\" has no kind"), "{stderr}");
    let nodes = fleet.stemma(&["get", "nodes", "-o", "name"])?;
    let nodes: Vec<&str> = nodes.lines().collect();
    fleet.stemma(&[&["label"], &nodes[..], &["a=b"]].concat())?;
    assert!(fleet.stemma(&["get", "node/web-1"])?.contains("web-1"));
    assert_eq!(get_object(&fleet, "node", "web-1")?["labels"]["a"], "b");
    let objects = [&["delete", "cluster/eu", "nodegroup/eu/web"], &nodes[..]].concat();
    let (stdout, stderr, status) = fleet.run_cli(&[&objects[..], &["--dry-run"]].concat())?;
    assert_eq!(status, 0, "the dry run succeeds, because the deletion would succeed: {stderr}");
    assert!(stdout.contains("node web-1 deleted (dry run)\n"), "{stdout}");
    for object in ["nodegroup eu/web", "cluster eu"] {
        let expected_line = format!("{object} is in use: it is decided after the others are deleted (dry run)\n");
        assert!(stdout.contains(&expected_line), "{object}: {stdout}");
    }
    assert_eq!(fleet.stemma(&["get", "clusters", "-o", "name"])?, "cluster/eu\ncluster/us\n", "nothing was written");
    // The command deletes only one of the three nodes, so the cluster and the group remain in use.
    let partial_deletion = ["delete", "cluster/eu", "nodegroup/eu/web", "node/web-1", "--dry-run"];
    let (stdout, stderr, status) = fleet.run_cli(&partial_deletion)?;
    assert!(status == 1 && stdout == "node web-1 deleted (dry run)\n", "{status} {stdout}");
    for part in [
        "2 of 3 failed",
        "cluster eu: cluster 'eu' is in use by node web-1, node web-2, node web-3",
        "nodegroup 'eu/web' is in use by",
    ] {
        assert!(stderr.contains(part), "{part:?} in {stderr}");
    }
    let (_, stderr, status) = fleet.run_cli(&["delete", "nodegroup", "--cluster", "eu", "--dry-run"])?;
    assert!(
        status == 1 && stderr.contains("nodegroup 'eu/web' is in use by node web-1"),
        "a selected group is refused too: {stderr}"
    );
    let (_, stderr, status) = fleet.run_cli(&["delete", "nodegroup/us/web", "nodegroup/eu/web", "node/web-1"])?;
    assert!(status == 1 && stderr.contains("1 of 3 failed\n  nodegroup eu/web: "), "the group has other nodes: {stderr}");
    assert!(stderr.contains("done: nodegroup us/web, node web-1"), "{stderr}");
    let deleted = fleet.stemma(&[&["delete", "cluster/eu", "nodegroup/eu/web"], &nodes[1..], &["-o", "name"]].concat())?;
    assert_eq!(
        deleted, "node/web-2\nnode/web-3\nnodegroup/eu/web\ncluster/eu\n",
        "an object is deleted after the objects that refer to it"
    );
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?, "");
    let (_, stderr, status) = fleet.run_cli(&["delete", "ndoe/web-1"])?;
    assert!(status == 2 && stderr.contains("unknown kind \"ndoe\" (did you mean \"node\"?)"), "{stderr}");
    Ok(())
}

#[test]
fn w13_delete_sends_only_token_id_when_given_printed_name() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for command in [&["delete", "token"][..], &["delete"], &["token", "delete"]] {
        let token = fleet.stemma(&["token", "create", "-o", "name"])?;
        let token = token.trim();
        let (id, secret) = token.split_once('.').context("an id and a secret")?;
        let argument = if command == ["delete"] { format!("token/{token}") } else { token.to_owned() };
        let (stdout, stderr, status) = fleet.run_cli(&[command, &[&argument]].concat())?;
        assert!(status == 0 && stdout.contains(&format!("token {id} deleted")), "{command:?}: {status} {stdout}{stderr}");
        let (stdout, second_stderr, status) = fleet.run_cli(&[command, &[&argument]].concat())?;
        assert!(status != 0 && second_stderr.contains(id), "{command:?}: {second_stderr}");
        assert!(
            !format!("{stdout}{stderr}{second_stderr}{}", fleet.log()).contains(secret),
            "the secret is printed: {second_stderr}"
        );
    }
    Ok(())
}

#[test]
fn w13_batch_requires_confirmation_for_all_writes_together() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for number in 4..=11 {
        fleet.stemma(&["create", "node", &format!("web-{number}"), "--nodegroup", "eu/web", "--yes"])?;
    }
    let (_, stderr, status) = fleet.run_cli(&["delete", "node", "--nodegroup", "eu/web"])?;
    assert!(status == 1 && stderr.contains("and there is no terminal to ask for confirmation"), "{stderr}");
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?.lines().count(), 11, "no node was deleted");
    let (stdout, stderr, _) = fleet.run_cli(&["delete", "node", "--nodegroup", "eu/web", "--dry-run"])?;
    assert!(stdout.lines().count() == 11 && stdout.contains("node web-11 deleted (dry run)"), "{stdout}");
    assert_eq!(stderr.matches("dry run: nothing was written; this would reach 11 hosts").count(), 1, "{stderr}");
    fleet.stemma(&["delete", "node", "--nodegroup", "eu/web", "--max-nodes", "11", "--yes"])?;
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?, "");
    Ok(())
}

#[test]
fn w06_batch_shows_changes_and_counts_each_host_once() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let (stdout, stderr, _) = fleet.run_cli(&["trait", "add", "web-1", "CUSTOM_A", "CUSTOM_B"])?;
    assert_eq!(stdout, "node web-1 has CUSTOM_A, CUSTOM_B\n");
    assert_eq!(stderr, "  traits  (none) -> CUSTOM_A\n  traits  CUSTOM_A -> CUSTOM_A,CUSTOM_B\n");
    let (_, stderr, _) = fleet.run_cli(&["trait", "remove", "web-1", "CUSTOM_A", "--dry-run"])?;
    let reach_line = "dry run: nothing was written; this would reach 1 host (no task set changes)\n";
    assert_eq!(stderr, format!("  traits  CUSTOM_A,CUSTOM_B -> CUSTOM_B\n{reach_line}"));
    let removed: Value = serde_json::from_str(&fleet.stemma(&["trait", "remove", "web-1", "--all", "-o", "json"])?)?;
    assert_eq!(
        (&removed["name"], &removed["traits"]),
        (&json!("web-1"), &json!([])),
        "the output shows the node after the write"
    );
    assert_eq!(removed["changes"], json!([{"field": "traits", "old": ["CUSTOM_A", "CUSTOM_B"], "new": []}]));

    let label_command = ["label", "node/web-1", "nodegroup/eu/web", "cluster/eu", "a=b", "--dry-run"];
    let (_, stderr, _) = fleet.run_cli(&label_command)?;
    assert!(stderr.ends_with("this would reach 3 hosts (no task set changes)\n"), "{stderr}");
    // The first five words are the command without `--dry-run`.
    let (_, stderr, status) = fleet.run_cli(&[&label_command[..5], &["--max-nodes", "2"]].concat())?;
    assert!(status == 1 && stderr.contains("this reaches 3 hosts, more than --max-nodes 2"), "{stderr}");
    fleet.stemma(&[&label_command[..5], &["--max-nodes", "3"]].concat())?;

    let (stdout, stderr, _) = fleet.run_cli(&["delete", "node", "web-3", "--dry-run"])?;
    assert_eq!(stdout, "node web-3 deleted (dry run)\n");
    for line in ["  labels.rack  r3 -> (unset)\n", "  nodegroup  eu/web -> (unset)\n"] {
        assert!(stderr.contains(line), "{line:?} in {stderr}");
    }
    let deleted: Value = serde_json::from_str(&fleet.stemma(&["delete", "node", "web-3", "-o", "json"])?)?;
    assert_eq!((&deleted["kind"], &deleted["name"]), (&json!("node"), &json!("web-3")));
    assert!(deleted["changes"].to_string().contains(r#"{"field":"nodegroup","old":"eu/web"}"#), "{deleted}");
    Ok(())
}

#[test]
fn w13_nodes_are_parked_held_moved_and_renamed() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let field = |name: &str, field: &str| -> Result<Value> { Ok(get_object(&fleet, "node", name)?[field].clone()) };
    assert_eq!(fleet.stemma(&["node", "park", "web-1", "node/web-2"])?, "node web-1 is parked\nnode web-2 is parked\n");
    assert_eq!((field("web-1", "parked")?, field("web-1", "state")?), (json!(true), json!("parked")));
    fleet.stemma(&["node", "unpark", "-l", "rack in (r1,r2)", "--yes"])?;
    assert_eq!(field("web-2", "parked")?, json!(false));

    let (_, stderr, status) = fleet.run_cli(&["node", "hold", "web-1"])?;
    assert!(status == 2 && stderr.contains("--reason TEXT"), "{stderr}");
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
    let (stdout, stderr, _) = fleet.run_cli(&["node", "move", "web-1", "web-2", "us/web", "--overwrite"])?;
    assert_eq!(stdout, "node web-1 moved from eu/web to us/web\nnode web-2 moved from eu/web to us/web\n");
    assert!(
        stderr.contains("info: node web-1 leaves cluster eu: it gives back its primaries there (db), and nothing is drained")
    );
    assert!(stderr.contains("info: node web-2 leaves cluster eu: nothing is drained before it leaves"), "{stderr}");
    let (_, stderr, status) = fleet.run_cli(&["node", "move", "web-1", "eu/none"])?;
    assert!(
        status != 0 && stderr.contains("eu/none") && !stderr.contains("leaves cluster"),
        "a refused move prints no warning: {stderr}"
    );
    fleet.stemma(&["role", "add", "web-3", "db"])?;
    eventually("web-3 is elected", || {
        anyhow::ensure!(field("web-3", "primary_tags")? == json!(["db"]));
        Ok(())
    })?;
    assert_eq!(fleet.stemma(&["node", "move", "web-1", "us/web"])?, "node web-1 is in us/web already\n");
    fleet.stemma(&["node", "move", "web-1", "--out"])?;
    assert_eq!((field("web-1", "nodegroup")?, field("web-1", "state")?), (Value::Null, json!("unplaced")));
    let (_, stderr, status) = fleet.run_cli(&["node", "move", "web-1", "eu/nosuch"])?;
    assert_eq!(status, 1);
    assert!(stderr.contains("there is no node group \"eu/nosuch\": create it first"), "{stderr}");
    let (_, stderr, status) = fleet.run_cli(&["node", "move", "web-1", "eu/wbe"])?;
    assert!(status == 1 && stderr.contains("there is no node group \"eu/wbe\" (did you mean \"eu/web\"?)"), "{stderr}");

    assert_eq!(fleet.stemma(&["node", "rename", "web-1", "app-1"])?, "node web-1 is called app-1\n");
    let (_, stderr, status) = fleet.run_cli(&["node", "rename", "web-2", "app-1"])?;
    assert!(status == 4 && stderr.contains("app-1"), "{status} {stderr}");
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
    for (arguments, conflict, kind, name, field) in [
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
        let value_before = get_object(&fleet, kind, name)?[field].clone();
        let (_, stderr, status) = fleet.run_cli(arguments)?;
        if arguments[1] == "unhold" {
            // The previous entry wrote `hold` with `--overwrite`, so this manager owns the field and is not refused.
            assert_eq!(status, 0, "{stderr}");
            continue;
        }
        assert!(status == 4 && stderr.contains(conflict) && stderr.contains("owned by site:apply"), "{arguments:?}: {stderr}");
        assert!(
            stderr.matches(conflict).count() == 1 && !stderr.contains("force"),
            "the conflict is reported once, without the word `force`: {stderr}"
        );
        let command = proposed_command(&fleet, &arguments.join(" ").replace("it's mine", "'it'\\''s mine'"));
        assert!(stderr.contains(&command) && stderr.ends_with("nothing was changed\n"), "{arguments:?}: {stderr}");
        assert_eq!(get_object(&fleet, kind, name)?[field], value_before);
        fleet.stemma(&[arguments, &["--overwrite"]].concat())?;
        assert_ne!(get_object(&fleet, kind, name)?[field], value_before);
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
    for (arguments, conflict) in [
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
        let (_, stderr, status) = fleet.run_cli(arguments)?;
        let conflict_lines = format!("other managers own what this would change\n  {conflict}");
        assert!(
            status == 4 && stderr.contains(&conflict_lines) && stderr.contains(", owned by site:apply\n"),
            "{arguments:?}: {stderr}"
        );
        let command = proposed_command(&fleet, &arguments.join(" "));
        assert!(stderr.contains(&command) && stderr.ends_with("nothing was changed\n"), "{arguments:?}: {stderr}");
        fleet.stemma(&[arguments, &["--manager", "site", "--dry-run"]].concat())?;
        fleet.stemma(&[arguments, &["--overwrite"]].concat())?;
    }
    fleet.stemma(&["apply", "-f", &file.to_string_lossy(), "--manager", "site", "--force"])?;
    for arguments in [
        &["trait", "add", "web-1", "CUSTOM_A", "CUSTOM_B"][..],
        &["role", "add", "web-2", "db"],
        &["tag", "create", "own", "--cluster", "us"],
        &["tag", "create", "beside", "--release", "r"],
        &["tag", "delete", "beside", "--release", "r"],
    ] {
        assert!(!fleet.stemma(arguments)?.is_empty(), "{arguments:?}: no other manager owns the item");
    }
    // If one node of a selection is refused, the command changes the others, and the error lists the refused node.
    let (_, stderr, status) = fleet.run_cli(&["role", "add", "-l", "rack in (r1,r3)", "db", "--yes"])?;
    assert!(
        status == 1 && stderr.contains("1 of 2 failed\n  node web-1: other managers own what this would change\n"),
        "{stderr}"
    );
    let command = proposed_command(&fleet, "role add -l 'rack in (r1,r3)' db --yes");
    assert!(stderr.contains(&command) && stderr.contains("done: node web-3"), "{stderr}");
    Ok(())
}

/// A change and its undoing, such as `pause` and `resume`, return a field to its default. Then another manager can
/// change the field by a plain write, without taking it over.
#[test]
fn w13_undoing_write_leaves_no_owner() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let run_as = |manager: &str, words: &[&str]| fleet.stemma(&[words, &["--manager", manager]].concat());
    let count_entries = || fleet.stemma(&["audit", "-o", "json"]).map(|audit| audit.matches("\"manager\"").count());
    for (kind, name, change, undo, field, no_op_message) in [
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
        let [change, undo] = [change, undo].map(|words| words.split(' ').collect::<Vec<_>>());
        let (object_before, entry_count) = (get_object(&fleet, kind, name)?, count_entries()?);
        if !no_op_message.is_empty() {
            assert_eq!(run_as("carl", &undo)?, no_op_message);
        }
        let object_after = get_object(&fleet, kind, name)?;
        assert_eq!(
            (&object_after["generation"], count_entries()?),
            (&object_before["generation"], entry_count),
            "{undo:?} must write nothing"
        );
        for manager in ["ann", "bob"] {
            run_as(manager, &change)?;
            run_as(manager, &undo)?;
            assert_eq!(get_object(&fleet, kind, name)?[field], object_before[field], "{undo:?}");
        }
        run_as("carl", &change)?;
        let (_, stderr, status) = fleet.run_cli(&[&undo[..], &["--manager", "ann"]].concat())?;
        assert!(status == 4 && stderr.contains("owned by carl:update"), "a field that is set has an owner: {stderr}");
        run_as("carl", &undo)?;
    }
    run_as("ann", &["pause", "cluster", "eu"])?;
    assert_eq!(run_as("bob", &["pause", "cluster", "eu"])?, "cluster eu is paused already\n");
    Ok(())
}

/// A hold has an end, a reason, or both. The API has the same rule for the field `hold`.
#[test]
fn y05_hold_requires_end_or_reason() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let until = "2999-01-01T00:00:00Z";
    for (options, hold) in [
        (&["--until", until][..], json!({"until": until})),
        (&["--reason", "a disk"], json!({"reason": "a disk"})),
        (&["--until", until, "--reason", "a disk"], json!({"until": until, "reason": "a disk"})),
        // The reason of an earlier hold is removed.
        (&["--until", until], json!({"until": until})),
    ] {
        fleet.stemma(&[&["node", "hold", "web-1"][..], options].concat())?;
        assert_eq!(get_object(&fleet, "node", "web-1")?["hold"], hold, "{options:?}");
    }
    let (_, stderr, status) = fleet.run_cli(&["node", "hold", "web-2"])?;
    assert!(status == 2 && stderr.contains("--reason TEXT, --until TIME or --for DURATION"), "{stderr}");
    assert_eq!(get_object(&fleet, "node", "web-2")?["hold"], Value::Null);
    Ok(())
}

/// Clusters and groups can be paused, and nodes cannot. The second part suppresses and unsuppresses traits of nodes.
#[test]
fn w13_clusters_and_groups_are_paused_and_resumed() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    assert_eq!(fleet.stemma(&["pause", "cluster", "eu", "us"])?, "cluster eu paused\ncluster us paused\n");
    assert_eq!(get_object(&fleet, "cluster", "eu")?["paused"], json!(true));
    assert_eq!(get_object(&fleet, "node", "web-1")?["state"], json!("paused"));
    fleet.stemma(&["resume", "cluster/eu", "cluster/us"])?;
    assert_eq!(get_object(&fleet, "cluster", "eu")?["paused"], Value::Null);
    fleet.stemma(&["pause", "nodegroup", "eu/web"])?;
    assert_eq!(get_object(&fleet, "node", "web-1")?["state"], json!("paused"));
    fleet.stemma(&["resume", "nodegroup", "eu/web"])?;
    let (_, stderr, status) = fleet.run_cli(&["pause", "node", "web-1"])?;
    assert!(status == 2 && stderr.contains("stemma node hold") && stderr.contains("nothing was changed"), "{stderr}");

    fleet.stemma(&["trait", "add", "web-1", "CUSTOM_A"])?;
    fleet.stemma(&["trait", "suppress", "web-1,web-2", "HW_CPU_X86_AVX2", "CUSTOM_B"])?;
    let trait_list = fleet.stemma(&["trait", "list", "web-1"])?;
    let has = |name: &str, source: &str| trait_list.lines().any(|line| line.starts_with(name) && line.ends_with(source));
    assert!(has("CUSTOM_A", "operator") && has("HW_CPU_X86_AVX2", "suppressed"), "{trait_list}");
    let stdout = fleet.stemma(&["trait", "unsuppress", "web-1", "HW_CPU_X86_AVX2"])?;
    assert_eq!(stdout, "node web-1: suppressed CUSTOM_B\n");
    assert_eq!(get_object(&fleet, "node", "web-1")?["suppressed_traits"], json!(["CUSTOM_B"]));
    let (_, stderr, status) = fleet.run_cli(&["trait", "unsuppress", "web-1", "CUSTOM_NONE"])?;
    assert!(status == 3 && stderr.contains("CUSTOM_NONE is not suppressed\n  nothing was changed"), "{stderr}");
    Ok(())
}

#[test]
fn w13_selection_refuses_additional_node_name() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for (arguments, node_argument) in [
        (&["role", "add", "web-1", "db"][..], "web-1"),
        (&["role", "remove", "web-1,web-2", "web"], "web-1,web-2"),
        (&["trait", "add", "web-2", "CUSTOM_A"], "web-2"),
        (&["tag", "assign", "node/web-1", "db"], "node/web-1"),
    ] {
        let (_, stderr, status) = fleet.run_cli(&[arguments, &["-l", "rack=r3"]].concat())?;
        let expected_error = format!(
            "{} is named and others are selected: use names or a selection, not both",
            node_argument.trim_start_matches("node/")
        );
        assert!(status == 2 && stderr.replace("node/", "").contains(&expected_error), "{arguments:?}: {status} {stderr}");
        assert!(stderr.ends_with("nothing was changed\n"), "{stderr}");
    }
    fleet.stemma(&["role", "add", "db", "web", "-l", "rack=r3"])?;
    assert_eq!(get_object(&fleet, "node", "web-3")?["roles"], json!(["db", "web"]));
    Ok(())
}

#[test]
fn w06_token_delete_names_token_and_effect() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let token = fleet.stemma(&["token", "create", "--nodegroup", "eu/web", "--uses", "3"])?;
    let id = token.split_once('.').context("ID.SECRET")?.0;
    for options in [&["--dry-run"][..], &[]] {
        let (stdout, stderr, status) = fleet.run_cli(&[&["delete", "token", id], options].concat())?;
        assert!(status == 0 && stdout.starts_with(&format!("token {id} deleted")), "{stdout}{stderr}");
        for line in ["  nodegroup  eu/web -> (unset)\n", "  uses_left  3 -> (unset)\n"] {
            assert!(stderr.contains(line), "{line:?} in {stderr}");
        }
    }
    Ok(())
}

#[test]
fn w13_one_of_concurrent_writers_of_key_succeeds() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let context = fleet.context().to_string_lossy().into_owned();
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let threads = ["ann", "bob", "cho", "dan"].map(|manager| {
            let context = context.as_str();
            let change = format!("turn={manager}");
            scope.spawn(move || run("stemma", ["--context", context, "label", "node", "web-1", &change, "--manager", manager]))
        });
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect::<Result<_>>()
    })?;
    let statuses: Vec<i32> = outputs.iter().map(|output| output.status.code().unwrap_or_default()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 0).count(), 1, "{outputs:?}");
    assert!(statuses.iter().all(|status| [0, 4].contains(status)), "{outputs:?}");
    let turn = get_object(&fleet, "node", "web-1")?["labels"]["turn"].clone();
    let winner = statuses.iter().position(|status| *status == 0).context("a successful command")?;
    assert_eq!(turn, json!(["ann", "bob", "cho", "dan"][winner]));
    Ok(())
}

/// Runs `stemma` with a closed standard output, and with a closed standard error too if `closes_both`. Returns the exit
/// status, and the standard error, which is empty if closed.
fn run_with_closed_output(fleet: &TempFleet, closes_both: bool, arguments: &[&str]) -> Result<(i32, String)> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let stderr: Stdio = if closes_both { writer.try_clone()?.into() } else { Stdio::piped() };
    let mut command = Command::new(path("stemma"));
    command.arg("--context").arg(fleet.context()).args(arguments);
    let output = command.stdin(Stdio::null()).stdout(writer).stderr(stderr).output()?;
    let code = output.status.code().context("a signal ended the command")?;
    Ok((code, String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn x06_write_completes_when_output_is_closed() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for closes_both in [false, true] {
        for (arguments, expected_code) in [
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
            let (code, stderr) = run_with_closed_output(&fleet, closes_both, arguments)?;
            assert_eq!(code, expected_code, "{arguments:?}: {stderr}");
            assert!(!stderr.contains("panicked") && !stderr.contains("Broken pipe"), "{arguments:?}: {stderr}");
        }
    }
    assert_eq!(get_object(&fleet, "node", "web-2")?["provided_labels"]["seen"], "yes");
    let (code, stderr) = run_with_closed_output(&fleet, true, &["delete", "nodes", "web-1", "web-2", "web-3"])?;
    assert_eq!((code, &*stderr), (0, ""));
    assert_eq!(fleet.stemma(&["get", "nodes", "-o", "name"])?, "", "all nodes are deleted, not only the first");
    Ok(())
}

#[test]
fn x06_batch_changes_nothing_when_entry_is_empty() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    // The state of the node arrives later, so the test compares the version only.
    let version = || anyhow::Ok(get_object(&fleet, "node", "web-1")?["resource_version"].clone());
    let version_before = version()?;
    for arguments in [
        &["trait", "add", "web-1,", "CUSTOM_A"][..],
        &["trait", "suppress", "web-1,,web-2", "CUSTOM_A"],
        &["role", "add", ",web-1", "db"],
        &["tag", "assign", "web-1, ", "db"],
        &["node", "park", "web-1", "node/"],
        &["delete", "node/web-1", "node/"],
        &["label", "node", "web-1", "-", "a=b"],
    ] {
        let (stdout, stderr, status) = fleet.run_cli(arguments)?;
        assert!(status == 2 && stdout.is_empty(), "{arguments:?}: {stdout}{stderr}");
        assert!(stderr.contains("is empty: give a value\n  nothing was changed\n"), "{arguments:?}: {stderr}");
    }
    let (_, stderr, status) = fleet.run_cli(&["delete", "nodegroup", "us/web", "web"])?;
    assert!(status == 2 && stderr.contains("a node group is named CLUSTER/GROUP, not \"web\""), "{stderr}");
    assert_eq!(version()?, version_before);
    get_object(&fleet, "nodegroup", "us/web")?;
    Ok(())
}
