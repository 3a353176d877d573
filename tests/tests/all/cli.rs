//! The operator's command against a real controller: its writes, output and exit status.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{RunningProgram, eventually, succeed};
use stemma_tests::site::SITE;

/// Runs `stemma get` with these arguments. Returns its JSON output.
fn get_json(fleet: &TempFleet, arguments: &[&str]) -> Result<Value> {
    let arguments: Vec<&str> = ["get"].iter().chain(arguments).chain(&["-o", "json"]).copied().collect();
    Ok(serde_json::from_str(&fleet.stemma(&arguments)?)?)
}

/// Runs a command that must fail. Returns its exit status and standard error.
fn run_failing(fleet: &TempFleet, arguments: &[&str]) -> Result<(i32, String)> {
    let output = fleet.cli(arguments)?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(!output.status.success(), "{arguments:?} succeeded: {}", String::from_utf8_lossy(&output.stdout));
    Ok((output.status.code().context("a signal ended the command")?, text))
}

/// Starts a controller, and applies the manifests of the demo, which contain no nodes.
fn demo_fleet() -> Result<TempFleet> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    Ok(fleet)
}

/// Waits until this number of nodes in cluster `prod` is in state `waiting`. A new node without a host does not change
/// any more after it has reached this state.
fn wait_for_waiting_nodes(fleet: &TempFleet, nodes: usize) -> Result<()> {
    eventually("all new nodes wait for a host", || {
        let cluster: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", "/v1/clusters/prod"])?)?;
        anyhow::ensure!(cluster["node_states"]["waiting"] == nodes, "{}", cluster["node_states"]);
        Ok(())
    })
}

#[test]
fn manifest_of_get_changes_nothing_when_applied() -> Result<()> {
    let fleet = demo_fleet()?;
    let nodes = fleet.dir().join("nodes.yaml");
    std::fs::write(
        &nodes,
        "kind: Node\nname: web-1\nnodegroup: prod/frontends\nroles: [db]\nmode: noop\ntraits: [CUSTOM_A]\n\
         tags: {assigned: [mysql], unassigned: [nginx]}\nlabels: {note: \"1.10\", debug: null}\nparameters: {a: {b: [1, null]}}\n\
         min_ready_seconds: 5\nproperties: {memory_mb: 4096}\n",
    )?;
    fleet.stemma(&["apply", "-f", &nodes.to_string_lossy()])?;
    for (kind, name) in [
        ("release", "site@2026.11"),
        ("clustertemplate", "base"),
        ("cluster", "prod"),
        ("nodegroup", "prod/frontends"),
        ("nodegroup", "prod/databases"),
        ("node", "web-1"),
    ] {
        let manifest = fleet.stemma(&["get", kind, name, "-o", "manifest"])?;
        let file = fleet.dir().join("again.yaml");
        std::fs::write(&file, &manifest)?;
        let file = file.to_string_lossy();
        let applied: Value = serde_json::from_str(&fleet.stemma(&["apply", "-f", &file, "-o", "json"])?)?;
        assert_eq!(applied["objects"][0]["action"], "unchanged", "{manifest}");
    }
    let groups_manifest = fleet.stemma(&["get", "nodegroups", "--cluster", "prod", "-o", "manifest"])?;
    assert_eq!(groups_manifest.matches("kind: NodeGroup").count(), 2, "{groups_manifest}");
    assert!(groups_manifest.contains("merge_labels: true") && groups_manifest.contains("debug: null"), "{groups_manifest}");
    Ok(())
}

/// In the demo, the group `frontends` provides `tier` and the tombstone `debug`, and its nodes inherit `site`.
#[test]
fn label_command_changes_several_labels_and_reports_losses() -> Result<()> {
    let fleet = demo_fleet()?;
    fleet.stemma(&["create", "node", "web-1", "--nodegroup", "prod/frontends"])?;
    let target = ["nodegroup", "prod/frontends"];
    fleet.stemma(&["label", target[0], target[1], "tier=silver", "rack=7", "--not-inherited", "ntp"])?;
    let group = get_json(&fleet, &target)?;
    assert_eq!(group["provided_labels"], json!({"debug": null, "ntp": null, "rack": "7", "tier": "silver"}));
    fleet.stemma(&["label", target[0], target[1], "rack-"])?;
    assert_eq!(get_json(&fleet, &target)?["provided_labels"], json!({"debug": null, "ntp": null, "tier": "silver"}));
    assert_eq!(get_json(&fleet, &["node", "web-1"])?["labels"], json!({"site": "fra1", "tier": "silver"}));

    let output = fleet.cli(&["label", target[0], target[1], "--replace", "--dry-run"])?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(stderr.contains("info: nodegroup prod/frontends: hosts lose the labels site (1 host)"), "{stderr}");
    assert!(stdout.contains("nodegroup prod/frontends labeled (dry run)"), "{stdout}");
    assert!(stderr.contains("dry run: nothing was written; this would reach 1 host"), "{stderr}");
    assert_eq!(get_json(&fleet, &target)?["merge_labels"], true, "a dry run writes nothing");
    let (status, error_text) = run_failing(&fleet, &["label", "cluster", "prod", "a=b", "--max-nodes", "0"])?;
    assert!(
        status == 1
            && error_text.contains("this reaches 1 host, more than --max-nodes 0")
            && error_text.contains("\n  nothing was changed"),
        "{error_text}"
    );
    Ok(())
}

/// Regression: `label --strict` wrote the change and printed a warning, although a strict write must fail on a warning.
/// The loss of a label is now an info, so the strict write succeeds.
#[test]
fn y09_strict_label_removal_prints_no_warning() -> Result<()> {
    let fleet = demo_fleet()?;
    fleet.stemma(&["create", "node", "web-1", "--nodegroup", "prod/frontends"])?;
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "unread=1"])?;
    for arguments in [
        &["label", "nodegroup", "prod/frontends", "unread-"][..],
        &["label", "nodegroup", "prod/frontends", "--not-inherited", "unread"],
    ] {
        let (_, stderr, status) = fleet.run_cli(&[arguments, &["--strict", "--dry-run"]].concat())?;
        assert!(status == 0 && !stderr.contains("warning:"), "{arguments:?}: {stderr}");
        let expected = "info: nodegroup prod/frontends: hosts lose the labels unread (1 host)";
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn roles_tags_and_traits_are_added_and_removed() -> Result<()> {
    let fleet = demo_fleet()?;
    fleet.stemma(&["create", "node", "web-1", "--nodegroup", "prod/frontends", "--labels", "a=b"])?;
    fleet.stemma(&["role", "add", "web-1", "db"])?;
    let tags = |fleet: &TempFleet| -> Result<Value> { Ok(get_json(fleet, &["node", "web-1"])?["tags"].clone()) };
    assert_eq!(tags(&fleet)?, json!(["common", "mysql", "nginx"]));
    fleet.stemma(&["tag", "unassign", "web-1", "nginx"])?;
    fleet.stemma(&["role", "remove", "web-1", "db"])?;
    assert_eq!(tags(&fleet)?, json!(["common"]));
    fleet.stemma(&["tag", "create", "canary", "--cluster", "prod"])?;
    fleet.stemma(&["tag", "assign", "web-1", "canary", "nginx"])?;
    assert_eq!(tags(&fleet)?, json!(["canary", "common", "nginx"]));
    let (status, stderr) = run_failing(&fleet, &["tag", "delete", "canary", "--cluster", "prod"])?;
    assert!(status == 4 && stderr.contains("web-1"), "{status} {stderr}");
    fleet.stemma(&["trait", "add", "web-1", "CUSTOM_FAST", "HW_CPU_X86_AVX2"])?;
    fleet.stemma(&["trait", "remove", "web-1", "HW_CPU_X86_AVX2"])?;
    let listed = fleet.stemma(&["trait", "list", "web-1"])?;
    assert!(listed.contains("CUSTOM_FAST") && listed.contains("operator") && !listed.contains("AVX2"), "{listed}");
    for (topic, expected) in [
        (&["label", "tier"][..], "WINS"),
        (&["tag", "canary"], "assigned by hand"),
        (&["task", "my-conf"], "does not run on this node"),
        (&["trait", "CUSTOM_FAST"], "operator"),
    ] {
        let arguments: Vec<&str> = ["explain", "node", "web-1"].iter().chain(topic).copied().collect();
        let explained = fleet.stemma(&arguments)?;
        assert!(explained.contains(expected), "{topic:?}: {explained}");
    }
    Ok(())
}

#[test]
fn explain_shows_parked_suppressed_and_unknown_items() -> Result<()> {
    let fleet = demo_fleet()?;
    let node = fleet.dir().join("node.yaml");
    std::fs::write(
        &node,
        "kind: Node\nname: web-1\nnodegroup: prod/frontends\nparked: true\nhold: {reason: a disk is changed}\n\
         suppressed_traits: [HW_CPU_X86_AVX2]\nlabels: {rack: \"7\"}\n",
    )?;
    fleet.stemma(&["apply", "-f", &node.to_string_lossy()])?;
    for (topic, expected) in [
        (["trait", "HW_CPU_X86_AVX2"], &["an operator suppressed it, and nothing gives it now"][..]),
        (["task", "site-conf"], &["but       it is held (a disk is changed)", "but       it is parked"]),
        (["tag", "primary-mysql"], &["is not on web-1", "no node of the cluster holds mysql as primary"]),
    ] {
        let explained = fleet.stemma(&["explain", "node", "web-1", topic[0], topic[1]])?;
        assert!(expected.iter().all(|part| explained.contains(part)), "{topic:?}: {explained}");
        assert!(!explained.contains("tag assign"), "{explained}");
    }
    // A command is proposed only if the controller would accept it.
    for (topic, proposed_line) in [
        (["tag", "mysql"], Some("change    stemma tag assign web-1 mysql")),
        (["tag", "nosuch"], None),
        (["trait", "HW_CPU_X86_AVX2"], Some("change    stemma trait unsuppress web-1 HW_CPU_X86_AVX2")),
        (["trait", "CUSTOM_A"], Some("change    stemma trait add web-1 CUSTOM_A")),
        (["trait", "BOGUS"], None),
    ] {
        let explained = fleet.stemma(&["explain", "node", "web-1", topic[0], topic[1]])?;
        assert_eq!(explained.lines().find(|line| line.contains("stemma ")).map(str::trim), proposed_line, "{explained}");
        if let Some(command) = proposed_line.and_then(|line| line.strip_prefix("change    stemma ")) {
            fleet.stemma(&command.split(' ').collect::<Vec<_>>())?;
        }
    }
    // The removal of a label that the node does not provide changes nothing.
    let unchanged = fleet.stemma(&["label", "node", "web-1", "nokey-"])?;
    assert_eq!(unchanged, "node web-1 unchanged: no label nokey is provided there\n");
    assert_eq!(fleet.stemma(&["label", "node", "web-1", "rack-"])?, "node web-1 labeled\n");
    // A token that expires after one second is soon no longer listed.
    for (ttl, token_count) in [("1", 0), ("600", 1)] {
        fleet.stemma(&["token", "create", "--nodegroup", "prod/frontends", "--ttl-seconds", ttl])?;
        eventually("the list of only the usable tokens", || {
            let tokens = fleet.stemma(&["token", "list", "-o", "name"])?;
            anyhow::ensure!(tokens.lines().count() == token_count, "{tokens}");
            Ok(())
        })?;
    }
    Ok(())
}

/// An apply that conflicts with the fields of another manager is refused. With `--adopt MANAGER`, it takes over the
/// fields of that manager.
#[test]
fn apply_adopts_fields_of_other_manager() -> Result<()> {
    let fleet = demo_fleet()?;
    let file = fleet.dir().join("base.yaml");
    std::fs::write(&file, "kind: ClusterTemplate\nname: base\nlabels: {ntp: other.example.net}\n")?;
    let file = file.to_string_lossy();
    let (status, text) = run_failing(&fleet, &["apply", "-f", &file, "--manager", "git"])?;
    assert!(
        status == 4 && text.contains("base.yaml:3") && text.contains("ntp") && text.contains("nothing was changed"),
        "{text}"
    );
    for part in ["base.yaml:3:10: labels.ntp is \"ntp.example.net\", owned by ", "--force", "--adopt MANAGER"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    // The adopted manager owns nothing, so `--adopt` has no effect. The conflict report mentions this.
    let (status, text) = run_failing(&fleet, &["apply", "-f", &file, "--manager", "git", "--adopt", "nobody"])?;
    let expected = "\n  nobody owns nothing of these objects, so nothing was taken over from it; nothing was changed\n";
    assert!(status == 4 && text.contains(expected) && text.contains("base.yaml:3:10: labels.ntp is "), "{text}");
    for adopt in ["nobody:", "nobody ", "nobody,other", "nobody:updat", "a\tb"] {
        let (status, text) = run_failing(&fleet, &["apply", "-f", &file, "--manager", "git", "--adopt", adopt])?;
        assert!(status == 2 && text.contains("manager") && text.contains("nothing was changed"), "{adopt:?}: {text}");
    }
    let owners = get_json(&fleet, &["clustertemplate", "base"])?["label_owners"]["ntp"].clone();
    let owner = owners[0].as_str().and_then(|owner| owner.split_once(':')).context("an owner")?.0.to_owned();
    fleet.stemma(&["apply", "-f", &file, "--manager", "git", "--adopt", &owner])?;
    let base = get_json(&fleet, &["clustertemplate", "base"])?;
    assert_eq!((&base["labels"]["ntp"], &base["label_owners"]["ntp"]), (&json!("other.example.net"), &json!(["git:apply"])));
    // The manager `gti` owns nothing, so `--adopt` has no effect. A warning mentions this.
    let (_, stderr, status) = fleet.run_cli(&["apply", "-f", &file, "--manager", "git", "--adopt", "gti"])?;
    let expected = "warning: gti owns nothing of these objects, so nothing was taken over from it (did you mean 'git'?)\n";
    assert_eq!((status, stderr.as_str()), (0, expected));
    Ok(())
}

/// A command ends with 1 if it is refused, with 2 for wrong arguments, with 3 if the object does not exist, and with 4
/// for a conflict.
#[test]
fn each_failure_has_status_and_message() -> Result<()> {
    let fleet = demo_fleet()?;
    let wrong_file = fleet.dir().join("wrong.yaml");
    std::fs::write(&wrong_file, "kind: Cluster\nname: prod\n---\nkind: NodeGroup\ncluster: prod\nname: new\ncolour: red\n")?;
    for (arguments, status, expected) in [
        (&["get", "node", "nobody"][..], 3, "nobody"),
        (&["apply", "-f", &wrong_file.to_string_lossy()], 1, "wrong.yaml:7:1: colour: is not a field of this kind"),
        (&["label", "node", "nobody", "a=b"], 3, "nobody"),
        (&["get", "teapots"], 2, "teapots"),
        (&["delete", "clustertemplate", "base"], 4, "prod"),
        (&["token", "delete", "none"], 3, ""),
    ] {
        let (found_status, stderr) = run_failing(&fleet, arguments)?;
        assert!(found_status == status && stderr.contains(expected), "{arguments:?}: {found_status} {stderr}");
        let is_write = !["get"].contains(&arguments[0]);
        assert_eq!(stderr.matches("nothing was").count(), usize::from(is_write), "{arguments:?}: {stderr}");
    }
    let groups = get_json(&fleet, &["nodegroups", "--cluster", "prod"])?;
    assert!(!groups.to_string().contains("\"new\""), "an apply is all or nothing: {groups}");
    Ok(())
}

#[test]
fn get_filters_and_prints_lists() -> Result<()> {
    let fleet = demo_fleet()?;
    for name in ["web-1", "web-2"] {
        fleet.stemma(&["create", "node", name, "--nodegroup", "prod/frontends"])?;
    }
    fleet.stemma(&["create", "node", "db-1", "--nodegroup", "prod/databases", "--labels", "tier=bronze"])?;
    fleet.stemma(&["trait", "add", "web-2", "CUSTOM_A"])?;
    for (filter, expected) in [
        (&["-l", "tier=gold"][..], "node/web-1\nnode/web-2\n"),
        (&["-l", "tier in (bronze,iron)"], "node/db-1\n"),
        (&["--trait", "CUSTOM_A"], "node/web-2\n"),
        (&["--not-trait", "CUSTOM_A", "--tag", "nginx"], "node/web-1\n"),
        (&["--role", "db"], "node/db-1\n"),
        (&["--nodegroup", "prod/databases"], "node/db-1\n"),
        (&["--requirement", "tier s== gold", "--requirement", "trait:CUSTOM_A required"], "node/web-2\n"),
    ] {
        let arguments: Vec<&str> = ["get", "nodes", "-o", "name"].iter().chain(filter).copied().collect();
        assert_eq!(fleet.stemma(&arguments)?, expected, "{filter:?}");
    }
    let table = fleet.stemma(&["get", "nodes", "--fields", "name,labels"])?;
    assert!(table.starts_with("NAME") && table.contains("tier=bronze") && !table.contains("MODE"), "{table}");
    assert!(!table.contains('\u{1b}'), "no colour if the output is not a terminal");
    Ok(())
}

#[test]
fn release_error_is_equal_with_and_without_controller() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("wrong.yaml");
    std::fs::write(
        &file,
        "kind: Release\nname: site\nversion: \"1\"\nroles: {web: {}}\ntasks:\n  - id: conf\n    type: file\n    roles: [web]\n    \
         requires: [base_conf]\n    parameters:\n      path: /x\n      template: \"{{ labels[node.name] }}\"\n  \
         - {id: base-conf, type: file, roles: [web], parameters: {path: /y, content: y}}\n",
    )?;
    let file = file.to_string_lossy();
    let (_, validate_error) = run_failing(&fleet, &["validate", "-f", &file])?;
    let (_, apply_error) = run_failing(&fleet, &["apply", "-f", &file])?;
    assert!(
        validate_error.contains("wrong.yaml:12:7: task conf parameters.template") && validate_error.contains("wrong.yaml:9:16"),
        "{validate_error}"
    );
    assert_eq!(apply_error, format!("{validate_error}  nothing was changed\n"));
    Ok(())
}

#[test]
fn y09_apply_uses_manager_of_directory() -> Result<()> {
    let fleet = TempFleet::start()?;
    let directory = fleet.dir().join("shared");
    std::fs::create_dir(&directory)?;
    let write_file = |name: &str, text: &str| std::fs::write(directory.join(name), text);
    write_file("stemma.toml", "manager = \"team-a\"\n")?;
    write_file("site.yaml", "kind: Cluster\nname: c\nlabels: {tier: gold}\n")?;
    let path = directory.to_string_lossy();
    let owners = || -> Result<Value> { Ok(get_json(&fleet, &["cluster", "c"])?["label_owners"].clone()) };
    fleet.stemma(&["apply", "-f", &path])?;
    assert_eq!(owners()?, json!({"tier": ["team-a:apply"]}));
    write_file("site.yaml", "kind: Cluster\nname: c\nlabels: {tier: silver}\n")?;
    let (status, stderr) = run_failing(&fleet, &["apply", "-f", &path, "--manager", "bob"])?;
    assert!(status == 4 && stderr.contains("owned by team-a:apply"), "{stderr}");
    fleet.stemma(&["apply", "-f", &format!("{path}/site.yaml")])?;
    assert_eq!(owners()?, json!({"tier": ["team-a:apply"]}));
    write_file("stemma.toml", "manger = \"team-a\"\n")?;
    for verb in ["apply", "validate", "resolve"] {
        let (status, stderr) = run_failing(&fleet, &[verb, "-f", &path])?;
        assert!(status == 1 && stderr.contains("stemma.toml: manger: is not a setting (did you mean \"manager\"?)"), "{stderr}");
        assert_eq!(stderr.contains("nothing was changed"), verb == "apply", "{stderr}");
    }
    Ok(())
}

#[test]
fn dry_run_of_write_command_changes_nothing() -> Result<()> {
    let fleet = demo_fleet()?;
    fleet.stemma(&["create", "node", "web-1", "--nodegroup", "prod/frontends"])?;
    wait_for_waiting_nodes(&fleet, 1)?;
    let state_before =
        fleet.stemma(&["get", "--raw", "/v1/nodes/detail"])? + &fleet.stemma(&["get", "--raw", "/v1/clusters/prod"])?;
    // Each entry has the number of hosts that the write would reach. For the text `host`, the number is not checked.
    for (arguments, hosts) in [
        (&["label", "clustertemplate", "base", "ntp=x"][..], "1 host"),
        (&["label", "node", "web-1", "a=b"], "1 host"),
        (&["role", "add", "web-1", "db"], "1 host"),
        (&["trait", "add", "web-1", "CUSTOM_A"], "1 host"),
        (&["tag", "create", "canary", "--cluster", "prod"], "host"),
        (&["tag", "unassign", "web-1", "nginx"], "1 host"),
        (&["create", "cluster", "lab"], "0 hosts"),
        (&["delete", "node", "web-1"], "1 host"),
        (&["token", "create", "--nodegroup", "prod/frontends"], "0 hosts"),
        (&["apply", "-f", SITE], "0 hosts"),
    ] {
        let output = fleet.cli(&[arguments, &["--dry-run", "--reason", "to see"]].concat())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains("dry run: nothing was written"), "{arguments:?}: {stderr}");
        assert!(stderr.contains(&format!("this would reach {hosts}")) || hosts == "host", "{arguments:?}: {stderr}");
    }
    let table = fleet.stemma(&["apply", "-f", SITE, "--dry-run"])?;
    assert!(table.starts_with("KIND") && table.lines().next().is_some_and(|heading| heading.ends_with("WOULD BE")), "{table}");
    let state_after =
        fleet.stemma(&["get", "--raw", "/v1/nodes/detail"])? + &fleet.stemma(&["get", "--raw", "/v1/clusters/prod"])?;
    assert_eq!(state_before, state_after);
    assert!(fleet.cli(&["get", "cluster", "lab"])?.status.code() == Some(3));
    assert_eq!(fleet.stemma(&["token", "list", "-o", "name"])?, "");
    Ok(())
}

#[test]
fn write_requires_confirmation_when_over_ten_hosts() -> Result<()> {
    let fleet = demo_fleet()?;
    for number in 1..=11 {
        // A file of each host contains the names of all nodes, so the eleventh node reaches eleven hosts and needs
        // `--yes`.
        fleet.stemma(&["create", "node", &format!("web-{number}"), "--nodegroup", "prod/frontends", "--yes"])?;
    }
    let write = ["label", "cluster", "prod", "a=b"];
    let (status, stderr) = run_failing(&fleet, &write)?;
    assert!(
        status == 1
            && stderr.contains("this reaches 11 hosts (no task set changes), and there is no terminal to ask for confirmation"),
        "{stderr}"
    );
    assert!(stderr.contains("use --yes, or --max-nodes 11\n  nothing was changed"), "{stderr}");
    let (_, stderr) = run_failing(&fleet, &[&write[..], &["--yes", "--max-nodes", "10"]].concat())?;
    assert!(stderr.contains("this reaches 11 hosts, more than --max-nodes 10"), "{stderr}");
    fleet.stemma(&[&write[..], &["--max-nodes", "11"]].concat())?;
    let output = fleet.cli(&[&["label", "cluster", "prod", "a=c"][..], &["--yes"]].concat())?;
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("this reaches 11 hosts"));
    Ok(())
}

#[test]
fn writes_print_requested_output() -> Result<()> {
    let fleet = TempFleet::start()?;
    let applied = fleet.stemma(&["apply", "-f", SITE, "-o", "name"])?;
    assert_eq!(
        applied,
        "release/site@2026.11\nclustertemplate/base\ncluster/prod\nnodegroup/prod/frontends\nnodegroup/prod/databases\n"
    );
    for (arguments, expected) in [
        (&["create", "nodegroup", "prod", "lab"][..], "nodegroup/prod/lab\n"),
        (&["create", "node", "web-1", "--nodegroup", "prod/lab"], "node/web-1\n"),
        (&["label", "node", "node/web-1", "a=b"], "node/web-1\n"),
        (&["role", "add", "web-1", "db"], "node/web-1\n"),
        (&["tag", "create", "canary", "--cluster", "prod"], "tag/canary\n"),
        (&["tag", "assign", "web-1", "canary"], "node/web-1\n"),
        (&["delete", "node", "web-1"], "node/web-1\n"),
    ] {
        assert_eq!(fleet.stemma(&[arguments, &["-o", "name"]].concat())?, expected, "{arguments:?}");
    }
    let created: Value = serde_json::from_str(&fleet.stemma(&["create", "cluster", "lab", "--labels", "a=b", "-o", "json"])?)?;
    assert_eq!((&created["name"], &created["labels"]["a"]), (&json!("lab"), &json!("b")));
    let manifest = fleet.stemma(&["label", "cluster", "lab", "c=d", "-o", "manifest"])?;
    assert!(manifest.contains("\nkind: Cluster\n") && manifest.contains("c: d"), "{manifest}");
    assert!(manifest.starts_with("# Owned: "), "the manifest begins with a list of owners: {manifest}");
    Ok(())
}

/// `get` refuses an unknown field. With `--watch`, it prints a line for each new or changed node.
#[test]
fn get_rejects_unknown_fields_and_watches_changes() -> Result<()> {
    let fleet = demo_fleet()?;
    fleet.stemma(&["create", "node", "web-1", "--nodegroup", "prod/frontends"])?;
    wait_for_waiting_nodes(&fleet, 1)?;
    let (_, stderr) = run_failing(&fleet, &["get", "nodes", "--fields", "name,lables"])?;
    assert!(stderr.contains("has no field \"lables\" (did you mean \"labels\"?)"), "{stderr}");
    let watch = fleet.spawn_cli(&["get", "nodes", "--watch", "-o", "name"])?;
    assert_eq!(watch.next_line()?.trim_end(), "node/web-1");
    fleet.stemma(&["create", "node", "web-2", "--nodegroup", "prod/frontends"])?;
    assert_eq!(watch.next_line()?.trim_end(), "node/web-2");
    wait_for_waiting_nodes(&fleet, 2)?;
    fleet.stemma(&["label", "node", "web-1", "a=b"])?;
    let mut watch_line = watch.next_line()?;
    while watch_line.trim_end() == "node/web-2" {
        // The watch shows a new node again when its state becomes known.
        watch_line = watch.next_line()?;
    }
    assert_eq!(watch_line.trim_end(), "node/web-1");
    watch.kill()
}

/// The name of the deleted node is similar to the name of another node, so the error of `wait` proposes the other name.
/// Regression test: `get --watch` printed no further changes, and `wait` continued until its timeout.
#[test]
fn watch_and_wait_notice_deletion_of_one_named_node() -> Result<()> {
    let fleet = demo_fleet()?;
    for name in ["web-1", "web-2"] {
        fleet.stemma(&["create", "node", name, "--nodegroup", "prod/frontends"])?;
    }
    wait_for_waiting_nodes(&fleet, 2)?;
    let watch = fleet.spawn_cli(&["get", "nodes", "web-1", "web-2", "--watch", "-o", "json"])?;
    for _ in ["web-1", "web-2"] {
        watch.next_line()?;
    }
    let wait = fleet.spawn_cli(&["wait", "node", "web-1", "--for", "state=converged", "--timeout", "10m"])?;
    fleet.stemma(&["delete", "node", "web-1"])?;
    fleet.stemma(&["label", "node", "web-2", "a=b"])?;
    // The state of a node may become known in between, which is a change too.
    let wait_for_change = |name: &str, action: &str| -> Result<Value> {
        loop {
            let change: Value = serde_json::from_str(&watch.next_line()?)?;
            if change["object"]["name"] == name && change["change"] == action {
                return Ok(change);
            }
        }
    };
    wait_for_change("web-1", "deleted")?;
    while wait_for_change("web-2", "changed")?["object"]["labels"]["a"] != "b" {}
    watch.kill()?;
    let (is_success, message) = wait.wait_with_log()?;
    assert!(!is_success && message.contains("did you mean web-2?"), "{message}");
    Ok(())
}

/// Starts a proxy to the plain HTTP listener at `target`. Returns the URL of the proxy. The proxy closes the connection
/// without the response when a request begins with `prefix` for the first time.
fn start_lossy_proxy(target: String, prefix: &'static str) -> Result<String> {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        let mut has_dropped = false;
        for client in listener.incoming() {
            let (Ok(mut client), Ok(mut server)) = (client, std::net::TcpStream::connect(&target)) else { return };
            let mut buffer = vec![0; 64 * 1024];
            // The command sends one request at a time, and each fits into one read.
            while let Ok(request_len @ 1..) = client.read(&mut buffer) {
                let is_match = buffer[..request_len].starts_with(prefix.as_bytes());
                let request = String::from_utf8_lossy(&buffer[..request_len]).into_owned();
                if server.write_all(request.as_bytes()).is_err() {
                    break;
                }
                let Ok(response_len @ 1..) = server.read(&mut buffer) else { break };
                if is_match && !has_dropped {
                    has_dropped = true;
                    break;
                }
                if client.write_all(&buffer[..response_len]).is_err() {
                    break;
                }
            }
        }
    });
    Ok(url)
}

/// A proxy drops the first response, so the command sends the request again. The second response contains the token
/// that the first request created.
#[test]
fn token_is_created_once_and_printed_when_answer_is_lost() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let data = data.to_string_lossy();
    succeed("stemma-controller", ["init", "--data-dir", &data])?;
    let listen_options = ["--admin-listen", "http://127.0.0.1:0", "--agent-listen", "127.0.0.1:0"];
    let controller = RunningProgram::start("stemma-controller", [&["run", "--data-dir", &data][..], &listen_options].concat())?;
    let addresses: Value = serde_json::from_str(&controller.next_line()?)?;
    let admin = addresses["admin"].as_str().context("the ready line")?.to_owned();
    let proxy = start_lossy_proxy(admin.trim_start_matches("http://").to_owned(), "POST /v1/join-tokens HTTP")?;

    let token = succeed("stemma", ["--server", &proxy, "token", "create"])?;
    let token_list = succeed("stemma", ["--server", &admin, "token", "list", "-o", "name"])?;
    let id = token.split_once('.').context("ID.SECRET")?.0;
    assert_eq!(token_list, format!("token/{id}\n"), "the printed token is the only token");
    let output = succeed("stemma", ["--server", &admin, "token", "create", "-o", "name"])?;
    assert!(output.contains('.'), "the secret is printed with `-o name` too: {output}");
    controller.stop()?;
    let store_bytes = std::fs::read(format!("{data}/store.redb"))?;
    let secret = token.trim().split_once('.').context("ID.SECRET")?.1.as_bytes().to_vec();
    assert!(store_bytes.windows(id.len()).any(|bytes| bytes == id.as_bytes()), "the token is in the store");
    assert!(!store_bytes.windows(secret.len()).any(|bytes| bytes == secret), "the secret of the token is not in the store");
    Ok(())
}

#[test]
fn failed_node_shows_failed_task_and_remedy() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("bad.yaml");
    std::fs::write(
        &file,
        "kind: Release\nname: r\nroles: {web: {tags: [a]}}\ntags: {a: {}}\ntasks:\n  - {id: boom, type: shell, tags: [a], \
         parameters: {script: \"echo no such user; exit 3\"}}\n---\nkind: Cluster\nname: c\nrelease: r\n---\nkind: NodeGroup\n\
         cluster: c\nname: g\nroles: [web]\n",
    )?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let _agent = fleet.join("web-1", "c/g")?;
    eventually("a failed task", || {
        anyhow::ensure!(get_json(&fleet, &["node", "web-1"])?["state"] == "failed");
        Ok(())
    })?;
    let error = get_json(&fleet, &["node", "web-1"])?["last_error"].clone();
    assert!(error.as_str().is_some_and(|error| error.starts_with("task boom: ")), "{error}");
    let described = fleet.stemma(&["describe", "node", "web-1"])?;
    for part in ["FAILED", "boom  failed   2", "no such user", "next: stemma explain node web-1 task boom"] {
        assert!(described.contains(part), "{part:?} in {described}");
    }
    let explained = fleet.stemma(&["explain", "node", "web-1", "task", "boom"])?;
    for part in ["last      failed, 2", "remedy    apply a newer version of r", "retry     automatic"] {
        assert!(explained.contains(part), "{part:?} in {explained}");
    }
    Ok(())
}

#[test]
fn connection_error_lists_remedy() -> Result<()> {
    let (fleet, other_fleet) = (TempFleet::start()?, TempFleet::start()?);
    let own_context = std::fs::read_to_string(fleet.context())?;
    let with_url =
        |text: &str, new_url: &str| text.replace(&format!("url = \"{}\"", context_url(text)), &format!("url = \"{new_url}\""));
    let other_context = std::fs::read_to_string(other_fleet.context())?;
    let context_without_credentials: String =
        own_context.lines().filter(|line| !line.starts_with("cert") && !line.starts_with("key")).collect::<Vec<_>>().join("\n");
    for (context, expected) in [
        (
            with_url(&other_context, &fleet.addresses().admin),
            "is not trusted: the certificate was not issued by an authority that is trusted here\n  is it the controller of another fleet",
        ),
        (with_url(&own_context, &fleet.addresses().agents), "refused this client's certificate\n  is `cert` of this fleet"),
        (
            with_url(&context_without_credentials, &fleet.addresses().admin),
            "Authentication required: send a certificate or a token.\n  set `cert` and `key` in the context",
        ),
        (with_url(&own_context, &fleet.addresses().admin.replace("https", "http")), "does not speak plain HTTP\n  use https://"),
    ] {
        let file = fleet.dir().join("context.toml");
        std::fs::write(&file, context)?;
        let output = stemma_tests::program::run("stemma", ["--context", &file.to_string_lossy(), "create", "cluster", "x"])?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(expected), "{expected:?} in {text}");
        assert!(text.ends_with("\n  nothing was changed\n"), "{text}");
    }
    Ok(())
}

/// Returns the first quoted value in the text of a context file. This value is the `url`.
fn context_url(context: &str) -> &str {
    context.split('"').nth(1).unwrap_or_default()
}
