//! Tests of the lists that `stemma` prints, and of its report of the changes of a write, with a real controller.

use anyhow::Result;
use serde_json::Value;
use stemma_tests::fleet::TempFleet;

/// Starts a fleet with the clusters `eu` and `us`. Each has a node group `web` with one node.
fn two_cluster_fleet() -> Result<TempFleet> {
    let fleet = TempFleet::start()?;
    let mut text = String::from(
        "kind: Release\nname: r\nroles: {web: {}}\n---\nkind: ClusterTemplate\nname: base\nrelease: r\nlabels: {ntp: a, tier: gold}\n",
    );
    for cluster in ["eu", "us"] {
        text.push_str(&format!(
            "---\nkind: Cluster\nname: {cluster}\ncluster_template: base\n---\nkind: NodeGroup\ncluster: {cluster}\nname: web\n\
             roles: [web]\n---\nkind: Node\nname: {cluster}-1\nnodegroup: {cluster}/web\n"
        ));
    }
    apply_manifest(&fleet, &text, &[])?;
    Ok(fleet)
}

/// Applies a manifest with these options. Returns standard output and standard error of the command.
fn apply_manifest(fleet: &TempFleet, manifest: &str, options: &[&str]) -> Result<(String, String)> {
    let file = fleet.dir().join("applied.yaml");
    std::fs::write(&file, manifest)?;
    let output = fleet.cli(&[&["apply", "-f", &file.to_string_lossy()], options].concat())?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    anyhow::ensure!(output.status.success(), "{stdout}{stderr}");
    Ok((stdout.into_owned(), stderr.into_owned()))
}

#[test]
fn w05_get_lists_only_objects_matching_filters() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for (arguments, expected) in [
        (&["nodes", "--cluster", "us"][..], "node/us-1\n"),
        (&["nodegroups", "--cluster", "eu", "--role", "web"], "nodegroup/eu/web\n"),
        (&["nodegroups", "--cluster", "eu", "--role", "db"], ""),
        (&["node", "us-1", "-l", "tier=gold"], "node/us-1\n"),
        (&["node", "us-1", "-l", "tier=nosuch"], ""),
        (&["node", "us-1", "eu-1", "--cluster", "eu"], "node/eu-1\n"),
        (&["nodegroup", "eu/web", "us/web", "--role", "web"], "nodegroup/eu/web\nnodegroup/us/web\n"),
        (&["nodegroup", "eu/web", "us/web", "-l", "tier=iron"], ""),
    ] {
        let found = fleet.stemma(&[&["get", "-o", "name"], arguments].concat())?;
        assert_eq!(found, expected, "{arguments:?}");
    }
    for (arguments, status, message) in [
        (&["get", "nodes", "--cluster", "nosuch", "-o", "name"][..], 3, "nosuch"),
        (&["get", "clusters", "--cluster", "eu"], 1, "--cluster narrows nodes and node groups"),
        (&["get", "clusters", "--state", "failed"], 1, "--state narrows allocations and nodes, and not clusters"),
        (&["pause", "cluster", "--state", "failed"], 1, "--state narrows allocations and nodes, and not clusters"),
        (&["wait", "node/us-1", "--for", "state=convergd", "--timeout", "1s"], 2, "did you mean \"converged\"?"),
    ] {
        let output = fleet.cli(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(status) && stderr.contains(message), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    Ok(())
}

/// Regression: `wait` waited until its timeout for a field that the kind of object does not have.
#[test]
fn wait_rejects_unknown_field() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let wait =
        |object: &str, condition: &str, timeout: &str| fleet.run_cli(&["wait", object, "--for", condition, "--timeout", timeout]);
    for (object, condition, message) in [
        ("node/us-1", "stat=converged", "--for: a node has no field \"stat\" (did you mean \"state\"?)"),
        ("node/us-1", "note=held", "(did you mean \"notes\"?)"),
        ("cluster/eu", "node_state.converged=1", "(did you mean \"node_states\"?)"),
        ("nodegroup/eu/web", "bogus=1", "a node group has no field \"bogus\": it has "),
        ("node/us-1", "state.name=converged", "state of a node is not a map"),
    ] {
        let (_, stderr, status) = wait(object, condition, "1m")?;
        assert!(status == 2 && stderr.contains(message), "{condition}: {stderr}");
    }
    // The command waits for a field that is known but not always present.
    for condition in ["notes=held", "hold.reason=x", "labels.a.b/c=d"] {
        let (_, stderr, status) = wait("node/us-1", condition, "1s")?;
        assert!(status == 1 && stderr.contains("condition not met after 1 s"), "{condition}: {stderr}");
    }
    assert_eq!(fleet.stemma(&["wait", "node/us-1", "--for", "labels.tier=gold"])?, "node/us-1 has labels.tier=gold\n");
    Ok(())
}

/// A filter with an unknown role, tag, object or principal is not an error. A warning names the unknown word, because
/// the word may be misspelled.
#[test]
fn get_names_unknown_filter_when_list_is_empty() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    for (arguments, expected_warning) in [
        (&["get", "nodes", "--role", "nosuch"][..], "warning: no node has role \"nosuch\"\n"),
        (&["get", "nodes", "--tag", "nosuch", "--role", "web"], "warning: no node has tag \"nosuch\"\n"),
        (&["get", "nodes", "--role", "web", "-l", "tier=iron"], ""),
        (&["audit", "node/nosuch"], "warning: no audit entry is about object \"node/nosuch\"\n"),
        (&["audit", "--principal", "nosuch"], "warning: no audit entry is about principal \"nosuch\"\n"),
        (&["audit", "node/us-1", "--until", "2020-01-01T00:00:00Z"], ""),
    ] {
        let output = fleet.cli(arguments)?;
        assert!(output.status.success(), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected_warning, "{arguments:?}");
    }
    Ok(())
}

#[test]
fn w06_new_object_merges_labels_with_inherited() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let labels = |name: &str| -> Result<Value> {
        let group: Value = serde_json::from_str(&fleet.stemma(&["get", "nodegroup", name, "-o", "json"])?)?;
        Ok(group["labels"].clone())
    };
    fleet.stemma(&["create", "nodegroup", "eu", "canary", "--roles", "web", "--labels", "x=y"])?;
    assert_eq!(labels("eu/canary")?, serde_json::json!({"ntp": "a", "tier": "gold", "x": "y"}));
    assert!(fleet.stemma(&["describe", "nodegroup", "eu/canary"])?.contains("merge_labels      true"));
    // Both names of the option have the same effect.
    for (name, option) in [("kept", "--merge-labels"), ("alias", "--override-labels")] {
        fleet.stemma(&["create", "nodegroup", "eu", name, "--labels", "x=y", option])?;
        assert_eq!(labels(&format!("eu/{name}"))?["ntp"], "a");
    }
    fleet.stemma(&["create", "nodegroup", "eu", "alone", "--labels", "x=y", "--merge-labels=false"])?;
    assert_eq!(labels("eu/alone")?, serde_json::json!({"x": "y"}));
    let described = fleet.stemma(&["describe", "nodegroup", "eu/alone"])?;
    assert!(described.contains("merge_labels      false"), "{described}");
    fleet.stemma(&["create", "clustertemplate", "other", "--labels", "x=y"])?;
    let other: Value = serde_json::from_str(&fleet.stemma(&["get", "clustertemplate", "other", "-o", "json"])?)?;
    assert_eq!(other["labels"], serde_json::json!({"x": "y"}), "a template inherits no labels");
    assert!(fleet.stemma(&["describe", "clustertemplate", "other"])?.contains("merge_labels      true"));
    Ok(())
}

/// The manifest of `eu` names no cluster template, so the cluster loses it, and the host loses the labels of the
/// template.
#[test]
fn w06_write_shows_changed_fields_and_lost_labels() -> Result<()> {
    let fleet = two_cluster_fleet()?;
    let manifest = "kind: Cluster\nname: eu\npaused: true\n";
    for options in [&["--dry-run"][..], &[]] {
        let (stdout, stderr) = apply_manifest(&fleet, manifest, options)?;
        for line in ["cluster eu: cluster_template  base -> (unset)", "cluster eu: paused  (unset) -> true"] {
            assert!(stdout.contains(line), "{line:?} in {stdout}");
        }
        assert!(stderr.contains("info: hosts lose the labels ntp (1 host), tier (1 host)"), "{stderr}");
    }
    let output = fleet.cli(&["label", "nodegroup", "us/web", "tier=iron", "--not-inherited", "ntp"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("info: nodegroup us/web: hosts lose the labels ntp (1 host)"), "{stderr}");
    assert!(stderr.contains("\n  labels.ntp  (unset) -> null (not inherited)\n  labels.tier  (unset) -> iron\n"), "{stderr}");
    assert_eq!(stderr.matches("hosts lose").count(), 1, "the loss is reported once: {stderr}");
    Ok(())
}
