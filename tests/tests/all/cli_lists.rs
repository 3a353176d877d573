//! What the operator's command lists, and what it says that a write changes, against a real controller.

use anyhow::Result;
use serde_json::Value;
use stemma_tests::fleet::Fleet;

/// Two clusters, each with a group `web`, and a node in each.
fn two_clusters() -> Result<Fleet> {
    let fleet = Fleet::start()?;
    let mut text = String::from(
        "kind: Release\nname: r\nroles: {web: {}}\n---\nkind: ClusterTemplate\nname: base\nrelease: r\nlabels: {ntp: a, tier: gold}\n",
    );
    for cluster in ["eu", "us"] {
        text.push_str(&format!(
            "---\nkind: Cluster\nname: {cluster}\ncluster_template: base\n---\nkind: NodeGroup\ncluster: {cluster}\nname: web\n\
             roles: [web]\n---\nkind: Node\nname: {cluster}-1\nnodegroup: {cluster}/web\n"
        ));
    }
    apply(&fleet, &text, &[])?;
    Ok(fleet)
}

fn apply(fleet: &Fleet, text: &str, more: &[&str]) -> Result<(String, String)> {
    let file = fleet.dir().join("applied.yaml");
    std::fs::write(&file, text)?;
    let output = fleet.cli(&[&["apply", "-f", &file.to_string_lossy()], more].concat())?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    anyhow::ensure!(output.status.success(), "{out}{err}");
    Ok((out.into_owned(), err.into_owned()))
}

#[test]
fn w05_a_list_has_what_its_filters_ask_for_and_no_more() -> Result<()> {
    let fleet = two_clusters()?;
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
    for (arguments, status, told) in [
        (&["get", "nodes", "--cluster", "nosuch", "-o", "name"][..], 3, "nosuch"),
        (&["get", "clusters", "--cluster", "eu"], 1, "--cluster narrows nodes and node groups"),
        (&["get", "clusters", "--state", "failed"], 1, "--state narrows allocations and nodes, and not clusters"),
        (&["pause", "cluster", "--state", "failed"], 1, "--state narrows allocations and nodes, and not clusters"),
        (&["wait", "node/us-1", "--for", "state=convergd", "--timeout", "1s"], 2, "did you mean \"converged\"?"),
    ] {
        let output = fleet.cli(arguments)?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(status) && text.contains(told), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    Ok(())
}

/// It was waited for until the time was over.
#[test]
fn a_field_that_a_kind_has_not_is_not_waited_for() -> Result<()> {
    let fleet = two_clusters()?;
    let wait =
        |object: &str, wanted: &str, most: &str| fleet.ran(&["wait", object, "--for", wanted, "--timeout", most]);
    for (object, wanted, told) in [
        ("node/us-1", "stat=converged", "--for: a node has no field \"stat\" (did you mean \"state\"?)"),
        ("node/us-1", "note=held", "(did you mean \"notes\"?)"),
        ("cluster/eu", "node_state.converged=1", "(did you mean \"node_states\"?)"),
        ("nodegroup/eu/web", "bogus=1", "a node group has no field \"bogus\": it has "),
        ("node/us-1", "state.name=converged", "state of a node is no map"),
    ] {
        let (_, text, status) = wait(object, wanted, "1m")?;
        assert!(status == 2 && text.contains(told), "{wanted}: {text}");
    }
    // What is there at times alone is waited for.
    for wanted in ["notes=held", "hold.reason=x", "labels.a.b/c=d"] {
        let (_, text, status) = wait("node/us-1", wanted, "1s")?;
        assert!(status == 1 && text.contains("not so after 1 s"), "{wanted}: {text}");
    }
    assert_eq!(fleet.stemma(&["wait", "node/us-1", "--for", "labels.tier=gold"])?, "node/us-1 has labels.tier=gold\n");
    Ok(())
}

/// A role, tag, object or principal that nothing has is no error, and what is misspelled is told by a warning that names it.
#[test]
fn what_an_empty_list_was_asked_for_and_nothing_has_is_named() -> Result<()> {
    let fleet = two_clusters()?;
    for (arguments, warned) in [
        (&["get", "nodes", "--role", "nosuch"][..], "warning: no node has role \"nosuch\"\n"),
        (&["get", "nodes", "--tag", "nosuch", "--role", "web"], "warning: no node has tag \"nosuch\"\n"),
        (&["get", "nodes", "--role", "web", "-l", "tier=iron"], ""),
        (&["audit", "node/nosuch"], "warning: the audit has nothing of object \"node/nosuch\"\n"),
        (&["audit", "--principal", "nosuch"], "warning: the audit has nothing of principal \"nosuch\"\n"),
        (&["audit", "node/us-1", "--until", "2020-01-01T00:00:00Z"], ""),
    ] {
        let output = fleet.cli(arguments)?;
        assert!(output.status.success(), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), warned, "{arguments:?}");
    }
    Ok(())
}

#[test]
fn w06_a_new_object_adds_its_labels_to_what_it_inherits() -> Result<()> {
    let fleet = two_clusters()?;
    let labels = |name: &str| -> Result<Value> {
        let group: Value = serde_json::from_str(&fleet.stemma(&["get", "nodegroup", name, "-o", "json"])?)?;
        Ok(group["labels"].clone())
    };
    fleet.stemma(&["create", "nodegroup", "eu", "canary", "--roles", "web", "--labels", "x=y"])?;
    assert_eq!(labels("eu/canary")?, serde_json::json!({"ntp": "a", "tier": "gold", "x": "y"}));
    assert!(fleet.stemma(&["describe", "nodegroup", "eu/canary"])?.contains("merge_labels      true"));
    for (name, how) in [("kept", "--merge-labels"), ("alias", "--override-labels")] {
        fleet.stemma(&["create", "nodegroup", "eu", name, "--labels", "x=y", how])?;
        assert_eq!(labels(&format!("eu/{name}"))?["ntp"], "a");
    }
    fleet.stemma(&["create", "nodegroup", "eu", "alone", "--labels", "x=y", "--merge-labels=false"])?;
    assert_eq!(labels("eu/alone")?, serde_json::json!({"x": "y"}));
    let described = fleet.stemma(&["describe", "nodegroup", "eu/alone"])?;
    assert!(described.contains("merge_labels      false"), "{described}");
    fleet.stemma(&["create", "clustertemplate", "other", "--labels", "x=y"])?;
    let other: Value = serde_json::from_str(&fleet.stemma(&["get", "clustertemplate", "other", "-o", "json"])?)?;
    assert_eq!(other["labels"], serde_json::json!({"x": "y"}), "above it is nothing to inherit from");
    assert!(fleet.stemma(&["describe", "clustertemplate", "other"])?.contains("merge_labels      true"));
    Ok(())
}

#[test]
fn w06_a_write_says_which_fields_change_and_which_labels_hosts_lose() -> Result<()> {
    let fleet = two_clusters()?;
    let paused = "kind: Cluster\nname: eu\npaused: true\n";
    for more in [&["--dry-run"][..], &[]] {
        let (out, err) = apply(&fleet, paused, more)?;
        for line in ["cluster eu: cluster_template  base -> (unset)", "cluster eu: paused  (unset) -> true"] {
            assert!(out.contains(line), "{line:?} in {out}");
        }
        assert!(err.contains("info: hosts lose the labels ntp (1 host), tier (1 host)"), "{err}");
    }
    let output = fleet.cli(&["label", "nodegroup", "us/web", "tier=iron", "--not-inherited", "ntp"])?;
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("info: nodegroup us/web: hosts lose the labels ntp (1 host)"), "{err}");
    assert!(err.contains("\n  labels.ntp  (unset) -> null (not inherited)\n  labels.tier  (unset) -> iron\n"), "{err}");
    assert_eq!(err.matches("hosts lose").count(), 1, "it is said once: {err}");
    Ok(())
}
