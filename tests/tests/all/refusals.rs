//! The operator's command against a real controller: refusals of a write with their place in the files, findings that a
//! strict apply counts, and values that hosts lack after an edit.

use anyhow::Result;
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::run;

const SITE: &str = r#"kind: Release
name: site
version: "1"
roles: {web: {tags: [nginx]}}
tags: {nginx: {}}
tasks:
  - id: conf
    type: file
    tags: [nginx]
    parameters: {path: /etc/conf, template: "tier {{ labels.tier }}"}
---
kind: ClusterTemplate
name: base
release: site@1
labels: {tier: gold}
---
kind: Cluster
name: prod
cluster_template: base
---
kind: NodeGroup
cluster: prod
name: web
roles: [web]
---
kind: Node
name: web-1
nodegroup: prod/web
---
kind: Node
name: web-2
nodegroup: prod/web
"#;

/// Applies a manifest text with these additional arguments. Returns exit status, standard output and standard error, in
/// which the path of the manifest is replaced by `site.yaml`.
fn apply_text(fleet: &TempFleet, text: &str, arguments: &[&str]) -> Result<(i32, String, String)> {
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, text)?;
    let output = fleet.cli(&[&["apply", "-f", &file.to_string_lossy()], arguments].concat())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&file.display().to_string(), "site.yaml");
    Ok((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
}

fn list_releases(fleet: &TempFleet) -> Result<Value> {
    let releases: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", "/v1/releases"])?)?;
    Ok(releases)
}

/// A manifest has four mistakes in tasks, such as a misspelled parameter. `apply` names the line and column of each,
/// and stores nothing.
#[test]
fn apply_names_line_when_task_is_invalid_on_every_host() -> Result<()> {
    let fleet = TempFleet::start()?;
    let text = SITE.replace("parameters: {path: /etc/conf,", "parameters: {path: etc/conf, mode: 644, ownr: root,");
    let text = text.replace("---\nkind: ClusterT", "  - {id: typo, type: flie, tags: [nginx]}\n---\nkind: ClusterT");
    let (status, out, err) = apply_text(&fleet, &text, &[])?;
    let expected = [
        "error: 4 errors in these manifests",
        "  site.yaml:10:34: task conf parameters.mode: takes octal digits as text, \"0644\", not 644",
        "  site.yaml:10:45: task conf parameters.ownr: is not a parameter of this type (did you mean \"owner\"?): correct its spelling, or remove it",
        "  site.yaml:10:18: task conf parameters.path: path \"etc/conf\" is relative; write it from `/` on",
        "  site.yaml:11:16: task typo type: \"flie\" is not a type of task (did you mean \"file\"?): correct its spelling",
        "  nothing was changed",
    ];
    assert_eq!((status, out.as_str(), err.lines().collect::<Vec<_>>()), (1, "", expected.to_vec()));
    assert_eq!(list_releases(&fleet)?["releases"].as_array().map(Vec::len), Some(0));
    Ok(())
}

/// A manifest with a file as a source conflicts with the labels of another manager. The error names the line, and the
/// file is not sent before the refusal. With `--force`, the manifest is applied.
#[test]
fn refusal_names_line_when_files_are_sent() -> Result<()> {
    let fleet = TempFleet::start()?;
    std::fs::write(fleet.dir().join("big.bin"), "abc")?;
    let text = SITE.replace("template: \"tier {{ labels.tier }}\"", "source: big.bin");
    fleet.stemma(&["create", "cluster", "other"])?;
    fleet.stemma(&["create", "cluster", "prod", "--labels", "tier=2"])?;
    let text = text.replace("cluster_template: base\n", "labels: {tier: gold}\n");
    let (status, _, err) = apply_text(&fleet, &text, &["--manager", "git"])?;
    assert_eq!(status, 4, "{err}");
    assert!(err.contains("site.yaml:") && err.contains("labels.tier is \"2\", owned by "), "{err}");
    assert!(err.ends_with("  nothing was changed\n") && !err.contains("already done"), "{err}");
    let blobs: Vec<_> = std::fs::read_dir(fleet.dir().join("data/blobs"))?.collect::<std::io::Result<_>>()?;
    assert!(blobs.iter().all(|entry| !entry.path().is_file()), "no file was sent: {blobs:?}");
    let (status, out, err) = apply_text(&fleet, &text, &["--manager", "git", "--force"])?;
    assert_eq!(status, 0, "{out}{err}");
    Ok(())
}

#[test]
fn apply_refuses_cycle_of_tasks_across_hosts() -> Result<()> {
    let fleet = TempFleet::start()?;
    let text = SITE.replace(
        "    parameters: {path: /etc/conf, template: \"tier {{ labels.tier }}\"}\n",
        "    parameters: {path: /etc/conf, content: x}\n    cross_depends: [{name: conf, tags: [nginx]}]\n",
    );
    let (status, _, err) = apply_text(&fleet, &text, &[])?;
    assert_eq!(status, 1, "{err}");
    assert!(err.starts_with("error: site.yaml:") && err.contains("tasks wait for each other"), "{err}");
    assert!(err.contains("nothing was changed"), "{err}");
    Ok(())
}

/// A misspelled role is a warning. A strict apply is refused for it, and a plain apply prints it and succeeds.
#[test]
fn strict_apply_is_refused_for_findings_of_plain_apply() -> Result<()> {
    let fleet = TempFleet::start()?;
    let manifest = SITE.replace("roles: [web]\n", "roles: [wbe]\n").replace("name: web-1\nnodegroup: prod/web", "name: web-1");
    let manifest = manifest.replace("name: web-2\nnodegroup: prod/web", "name: web-2");
    let warning = "site.yaml:24:1: warning role.unknown nodegroup/prod/web: has role wbe, which release site@1 does not declare: it produces no tag";
    let (status, out, err) = apply_text(&fleet, &manifest, &["--strict"])?;
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error: a strict apply, and 1 warning among the findings; nothing was changed\n"), "{err}");
    assert!(err.contains(&format!("\n  {warning}\n")), "{err}");
    assert_eq!(list_releases(&fleet)?["releases"].as_array().map(Vec::len), Some(0), "nothing is stored");
    let (status, out, err) = apply_text(&fleet, &manifest, &[])?;
    assert_eq!(status, 0, "{err}");
    assert!(out.contains(warning), "{out}");
    // Findings of severity info do not count.
    let (status, out, err) = apply_text(
        &fleet,
        &SITE.replace("type: file\n", "type: file\n    disruptive: true\n").replace("\"1\"", "\"2\"").replace("site@1", "site@2"),
        &["--strict"],
    )?;
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("info field.idle release/site@2 task conf disruptive"), "{out}");
    Ok(())
}

/// The removal of a label that a task reads prints a warning. The warning names the task and the hosts on which it
/// fails. A later apply of the task repeats the warning.
#[test]
fn label_removal_names_failing_task_and_host_count() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (status, out, err) = apply_text(&fleet, SITE, &["--strict"])?;
    assert_eq!(status, 0, "{out}{err}");
    let warning = "release/site@1 task conf: 2 hosts that read it lack `labels.tier` (web-1, web-2), and task conf fails there: \
                 set it, or write `is defined` or `|default(...)`";
    for arguments in [&["--dry-run"][..], &[]] {
        let output = fleet.cli(&[&["label", "clustertemplate", "base", "tier-"], arguments].concat())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains(&format!("warning: {warning}\n")), "{arguments:?}: {stderr}");
    }
    // The label is already absent. An edit of another label does not repeat the finding, but an apply of the task that
    // reads the label does.
    let output = fleet.cli(&["label", "clustertemplate", "base", "other=x"])?;
    assert!(!String::from_utf8_lossy(&output.stderr).contains("lack"));
    let second_site = SITE.replace("labels: {tier: gold}", "labels: {}").replace("template: \"tier", "template: \"the tier");
    let second_site = second_site.replace("\"1\"", "\"2\"").replace("site@1", "site@2");
    let (status, out, err) = apply_text(&fleet, &second_site, &["--dry-run"])?;
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("site.yaml:7:5: warning reference.unset release/site@2 task conf: all 2 hosts"), "{out}");
    let (status, _, err) = apply_text(&fleet, &second_site, &["--strict"])?;
    assert!(status == 1 && err.contains("1 warning among the findings"), "{err}");
    Ok(())
}

/// In this test, the first commands take away a label that a task reads. This is a new finding, so they are refused
/// with `--strict`. The other commands bring no finding, so they succeed with `--strict`.
#[test]
fn y09_strict_command_is_refused_only_for_new_findings() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (status, out, err) = apply_text(&fleet, SITE, &["--strict"])?;
    assert_eq!(status, 0, "{out}{err}");
    let labels = || -> Result<Value> {
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "web-1", "-o", "json"])?)?;
        Ok(node["labels"].clone())
    };
    let labels_before = labels()?;
    let refusal = "error: a strict write, and 1 warning among the findings; nothing was changed\n  \
                   warning reference.unset release/site@1 task conf: 2 hosts that read it lack `labels.tier`";
    for arguments in [
        &["label", "clustertemplate", "base", "tier-", "--strict"][..],
        &["--strict", "label", "nodegroup", "prod/web", "--not-inherited", "tier"],
        &["label", "clustertemplate", "base", "tier-", "--strict", "--dry-run"],
    ] {
        let output = fleet.cli(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(refusal), "{arguments:?}: {stderr}");
        assert_eq!(labels()?, labels_before, "{arguments:?}");
    }
    for arguments in [
        &["label", "node", "web-1", "a=b"][..],
        &["role", "add", "web-1", "web"],
        &["trait", "add", "web-1", "CUSTOM_A"],
        &["create", "cluster", "lab"],
        &["tag", "create", "canary", "--cluster", "prod"],
        &["tag", "assign", "web-1", "canary"],
        &["node", "hold", "web-1", "--reason", "to see"],
        &["node", "park", "web-1"],
        &["node", "rename", "web-2", "web-9"],
        &["delete", "node", "web-9"],
        &["pause", "cluster", "prod"],
        &["token", "create"],
    ] {
        fleet.stemma(&[arguments, &["--strict"]].concat())?;
    }
    Ok(())
}

/// Returns the lines of an error message that describe one error each, sorted. The first line is omitted, because it
/// counts the errors, and so is the line `nothing was changed`.
fn problem_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().skip(1).filter(|line| *line != "  nothing was changed").collect();
    lines.sort_unstable();
    lines
}

#[test]
fn w11_apply_reports_all_errors_like_validate() -> Result<()> {
    let fleet = TempFleet::start()?;
    // A refused object causes no further error in the objects that refer to it.
    let text = SITE
        .replace("parameters: {path: /etc/conf,", "parameters: {path: /etc/conf, mode: 644,")
        .replace("labels: {tier: gold}", "labels: {tier: gold}\ncolour: red")
        .replace("cluster_template: base\n", "cluster_template: base\npaused: maybe\n")
        .replace("roles: [web]\n", "roles: web\n")
        .replace("name: web-2\n", "name: web-2\ntraits: [NOPE]\n");
    let (status, out, err) = apply_text(&fleet, &text, &[])?;
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error: 5 errors in these manifests\n"), "{err}");
    let file = fleet.dir().join("site.yaml");
    let validation = fleet.cli(&["validate", "-f", &file.to_string_lossy()])?;
    let validation = String::from_utf8_lossy(&validation.stderr).replace(&file.display().to_string(), "site.yaml");
    assert_eq!(problem_lines(&err), problem_lines(&validation));
    // The release `more` is not checked, because the release that it imports is refused.
    let text = SITE.replace("id: conf", "id: conf\n    requires: [nosuch]")
        + "---\nkind: Release\nname: more\nimports: [site@1]\ntasks:\n  - {id: x, type: shell, requires: [conf], parameters: {command: [a]}}\n";
    let (status, _, err) = apply_text(&fleet, &text, &[])?;
    assert!(status == 1 && err.starts_with("error: site.yaml:") && err.contains("nosuch"), "{err}");
    assert_eq!(err.lines().count(), 2, "{err}");
    Ok(())
}

#[test]
fn w11_apply_reports_conflicts_of_several_objects_together() -> Result<()> {
    let fleet = TempFleet::start()?;
    for cluster in ["a", "b"] {
        fleet.stemma(&["create", "cluster", cluster, "--labels", "tier=2"])?;
    }
    let text = "kind: Cluster\nname: a\nlabels: {tier: gold}\n---\nkind: Cluster\nname: b\nlabels: {tier: gold}\n";
    let (status, _, err) = apply_text(&fleet, text, &["--manager", "git"])?;
    let conflict = |line| format!("\n  site.yaml:{line}:10: labels.tier is \"2\", owned by ");
    assert!(status == 4 && err.contains(&conflict(3)) && err.contains(&conflict(7)), "{err}");
    assert_eq!(err.matches("--force").count(), 1, "{err}");
    let (status, _, err) = apply_text(&fleet, &format!("{text}colour: red\n"), &["--manager", "git"])?;
    assert!(status == 4 && err.contains("site.yaml:8:1: colour: is not a field") && err.contains(&conflict(3)), "{err}");
    Ok(())
}

#[test]
fn w11_finding_points_at_edit_when_task_is_in_no_manifest() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (status, out, err) = apply_text(&fleet, SITE, &["--strict"])?;
    assert_eq!(status, 0, "{out}{err}");
    let edit = "kind: NodeGroup\ncluster: prod\nname: web\nroles: [web]\nlabels: {tier: null}\n";
    let warning = "site.yaml:1:1: warning reference.unset release/site@1 task conf: all 2 hosts that read it lack `labels.tier`";
    let (status, _, err) = apply_text(&fleet, edit, &["--strict"])?;
    assert!(status == 1 && err.contains(warning), "{err}");
    let (status, out, err) = apply_text(&fleet, edit, &["-o", "json", "--dry-run"])?;
    let response: Value = serde_json::from_str(&out)?;
    let place = response["findings"][0]["place"].as_str().unwrap_or_default();
    assert!(status == 0 && place.ends_with("site.yaml:1:1"), "{out}{err}");
    // An error about a cycle of tasks has the line of the applied release, although the cycle is found in the cluster.
    // The test uses a release without a version, because only such a release can be edited.
    let unversioned_site = SITE.replace("version: \"1\"\n", "").replace("site@1", "site");
    let (status, out, err) = apply_text(&fleet, &unversioned_site, &[])?;
    assert_eq!(status, 0, "{out}{err}");
    let release = unversioned_site.split("---\n").next().unwrap_or_default();
    let release =
        release.replace("tags: [nginx]\n    p", "tags: [nginx]\n    cross_depends: [{name: conf, tags: [nginx]}]\n    p");
    let (status, _, err) = apply_text(&fleet, &release, &[])?;
    assert!(status == 1 && err.starts_with("error: site.yaml:1:1: ") && err.contains("tasks wait for each other"), "{err}");
    Ok(())
}

#[test]
fn w11_write_warns_of_undeclared_role() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (status, out, err) = apply_text(&fleet, SITE, &[])?;
    assert_eq!(status, 0, "{out}{err}");
    let finding = "has role wbe, which release site@1 does not declare";
    let output = fleet.cli(&["create", "nodegroup", "prod", "more", "--roles", "wbe"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains(&format!("warning: nodegroup/prod/more: {finding}")), "{stderr}");
    let output = fleet.cli(&["label", "nodegroup", "prod/more", "other=x"])?;
    assert!(!String::from_utf8_lossy(&output.stderr).contains("wbe"), "an existing finding is not repeated");
    Ok(())
}

/// Runs the operator's command without a controller. Returns exit status, standard output and standard error.
fn run_offline(words: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = run("stemma", words)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// Returns the manifests of a release with these tasks, and of one node for each role: the node `n` has the role `web`,
/// and the node `m` has the role `db`.
fn web_and_db_site(tasks: &str) -> String {
    format!(
        "kind: Release\nname: r\nroles: {{web: {{}}, db: {{}}}}\ntasks:\n{tasks}---\nkind: Cluster\nname: c\nrelease: r\n---\n\
         kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: NodeGroup\ncluster: c\nname: h\nroles: [db]\n---\n\
         kind: Node\nname: n\nnodegroup: c/g\n---\nkind: Node\nname: m\nnodegroup: c/h\n"
    )
}

/// Regression: `render` printed a task that every host would refuse, and ended with status 0. The output begins with
/// the parts of the task that can be rendered.
#[test]
fn y04_render_refuses_tasks_of_node_like_validate() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("site.yaml");
    let path = file.to_string_lossy().into_owned();
    for (task, field, expected_start) in [
        ("type: file, parameters: {path: /etc/x, content: 1.10}", "parameters.content: ", "# t (file)\n# path: /etc/x\n"),
        ("type: shell, parameters: {script: 'true', env: {V: 1.10}}", "parameters.env: ", "# t (shell)\ntrue\n"),
        ("type: file, parameters: {path: /etc/x}", "parameters: ", "# t (file)\n# path: /etc/x\n"),
        ("type: shell, parameters: {command: 5}", "parameters.command: ", ""),
        ("type: flie, parameters: {path: /etc/x}", "type: ", ""),
    ] {
        let tasks = format!(
            "  - {{id: t, roles: [web], {task}}}\n  - {{id: o, type: file, roles: [db], parameters: {{path: /o, content: o}}}}\n"
        );
        std::fs::write(&file, web_and_db_site(&tasks))?;
        let (status, _, validate_error) = run_offline(&["validate", "-f", &path])?;
        let error_start = format!("error: {path}:5:");
        assert!(status == Some(1) && validate_error.starts_with(&error_start), "{task}: {validate_error}");
        assert!(validate_error.contains(&format!(": task t {field}")), "{task}: {validate_error}");
        for selection in [&["n"][..], &["n", "t"]] {
            let (status, out, err) = run_offline(&[&["render", "-f", &path][..], selection].concat())?;
            assert_eq!((status, err), (Some(1), validate_error.clone()), "{task}: {selection:?}");
            assert!(out.starts_with(expected_start), "{task}: {selection:?}: {out}");
        }
        let (status, out, err) = run_offline(&["render", "-f", &path, "m"])?;
        assert!(status == Some(0) && out.starts_with("# o (file)\n# path: /o\no\n"), "{task}: {out}{err}");
        // `resolve` only places and orders the tasks, so it does not refuse the invalid task.
        let (status, out, err) = run_offline(&["resolve", "-f", &path])?;
        assert!(status == Some(0) && out.contains("c/g"), "{task}: {out}{err}");
    }
    Ok(())
}

/// Regression: `resolve` printed an order without the dependencies of a stage, and ended with status 0.
#[test]
fn y04_resolve_refuses_cycle_through_stage() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("site.yaml");
    let path = file.to_string_lossy().into_owned();
    let tasks = "  - {id: st, type: stage, requires: [a]}\n\
                 \x20 - {id: a, type: shell, roles: [web], requires: [st], parameters: {script: 'true'}}\n";
    std::fs::write(&file, web_and_db_site(tasks))?;
    for words in [&["validate"][..], &["resolve"], &["resolve", "-o", "json"], &["render", "n"]] {
        let (status, out, err) = run_offline(&[words, &["-f", &path]].concat())?;
        assert_eq!((status, out.as_str()), (Some(1), ""), "{words:?}: {err}");
        assert!(err.contains("tasks wait for each other: "), "{words:?}: {err}");
    }
    Ok(())
}
