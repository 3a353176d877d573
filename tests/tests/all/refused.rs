//! What a write is refused for with its place in the files, what a strict apply counts, and what hosts lack by an edit: the operator's
//! command against a real controller.

use anyhow::Result;
use serde_json::Value;
use stemma_tests::fleet::Fleet;
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

/// Status, standard output and standard error of an apply of this text.
fn apply(fleet: &Fleet, text: &str, more: &[&str]) -> Result<(i32, String, String)> {
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, text)?;
    let output = fleet.cli(&[&["apply", "-f", &file.to_string_lossy()], more].concat())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&file.display().to_string(), "site.yaml");
    Ok((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
}

fn revision(fleet: &Fleet) -> Result<Value> {
    let listed: Value = serde_json::from_str(&fleet.stemma(&["get", "--raw", "/v1/releases"])?)?;
    Ok(listed)
}

#[test]
fn what_every_host_would_refuse_is_refused_with_its_line() -> Result<()> {
    let fleet = Fleet::start()?;
    let text = SITE.replace("parameters: {path: /etc/conf,", "parameters: {path: etc/conf, mode: 644, ownr: root,");
    let text = text.replace("---\nkind: ClusterT", "  - {id: typo, type: flie, tags: [nginx]}\n---\nkind: ClusterT");
    let (status, out, err) = apply(&fleet, &text, &[])?;
    let expected = [
        "error: 4 things are wrong in these manifests",
        "  site.yaml:10:34: task conf parameters.mode: takes octal digits as text, \"0644\", not 644",
        "  site.yaml:10:45: task conf parameters.ownr: is no parameter of this type (did you mean \"owner\"?): mend its spelling, or take it out",
        "  site.yaml:10:18: task conf parameters.path: path \"etc/conf\" is relative; write it from `/` on",
        "  site.yaml:11:16: task typo type: \"flie\" is no type of task (did you mean \"file\"?): mend its spelling",
        "  nothing was changed",
    ];
    assert_eq!((status, out.as_str(), err.lines().collect::<Vec<_>>()), (1, "", expected.to_vec()));
    assert_eq!(revision(&fleet)?["releases"].as_array().map(Vec::len), Some(0));
    Ok(())
}

#[test]
fn a_refusal_names_its_line_also_where_files_are_sent() -> Result<()> {
    let fleet = Fleet::start()?;
    std::fs::write(fleet.dir().join("big.bin"), "abc")?;
    let text = SITE.replace("template: \"tier {{ labels.tier }}\"", "source: big.bin");
    fleet.stemma(&["create", "cluster", "other"])?;
    fleet.stemma(&["create", "cluster", "prod", "--labels", "tier=2"])?;
    let text = text.replace("cluster_template: base\n", "labels: {tier: gold}\n");
    let (status, _, err) = apply(&fleet, &text, &["--manager", "git"])?;
    assert_eq!(status, 4, "{err}");
    assert!(err.contains("site.yaml:") && err.contains("labels.tier is \"2\", owned by "), "{err}");
    assert!(err.ends_with("  nothing was changed\n") && !err.contains("already done"), "{err}");
    let blobs: Vec<_> = std::fs::read_dir(fleet.dir().join("data/blobs"))?.collect::<std::io::Result<_>>()?;
    assert!(blobs.iter().all(|one| !one.path().is_file()), "no file was sent: {blobs:?}");
    let (status, out, err) = apply(&fleet, &text, &["--manager", "git", "--force"])?;
    assert_eq!(status, 0, "{out}{err}");
    Ok(())
}

#[test]
fn a_cycle_by_placement_names_the_cluster_in_the_files() -> Result<()> {
    let fleet = Fleet::start()?;
    let text = SITE.replace(
        "    parameters: {path: /etc/conf, template: \"tier {{ labels.tier }}\"}\n",
        "    parameters: {path: /etc/conf, content: x}\n    cross_depends: [{name: conf, tags: [nginx]}]\n",
    );
    let (status, _, err) = apply(&fleet, &text, &[])?;
    assert_eq!(status, 1, "{err}");
    assert!(err.starts_with("error: site.yaml:") && err.contains("tasks wait for each other"), "{err}");
    assert!(err.contains("nothing was changed"), "{err}");
    Ok(())
}

#[test]
fn a_strict_apply_is_refused_for_what_counts_and_a_plain_one_prints_it() -> Result<()> {
    let fleet = Fleet::start()?;
    let odd =
        SITE.replace("roles: [web]\n", "roles: [wbe]\n").replace("name: web-1\nnodegroup: prod/web", "name: web-1");
    let odd = odd.replace("name: web-2\nnodegroup: prod/web", "name: web-2");
    let found = "site.yaml:24:1: warning role.unknown nodegroup/prod/web: has role wbe, which release site@1 does not declare: it produces no tag";
    let (status, out, err) = apply(&fleet, &odd, &["--strict"])?;
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error: a strict apply, and 1 warning among the findings; nothing was changed\n"), "{err}");
    assert!(err.contains(&format!("\n  {found}\n")), "{err}");
    assert_eq!(revision(&fleet)?["releases"].as_array().map(Vec::len), Some(0), "nothing is stored");
    let (status, out, err) = apply(&fleet, &odd, &[])?;
    assert_eq!(status, 0, "{err}");
    assert!(out.contains(found), "{out}");
    // What is only info does not count.
    let (status, out, err) = apply(
        &fleet,
        &SITE
            .replace("type: file\n", "type: file\n    disruptive: true\n")
            .replace("\"1\"", "\"2\"")
            .replace("site@1", "site@2"),
        &["--strict"],
    )?;
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("info field.idle release/site@2 task conf disruptive"), "{out}");
    Ok(())
}

#[test]
fn an_edit_that_takes_a_label_away_says_which_task_fails_on_how_many_hosts() -> Result<()> {
    let fleet = Fleet::start()?;
    let (status, out, err) = apply(&fleet, SITE, &["--strict"])?;
    assert_eq!(status, 0, "{out}{err}");
    let lacks = "release/site@1 task conf: 2 hosts that read it lack `labels.tier` (web-1, web-2), and task conf fails there: \
                 set it, or write `is defined` or `|default(...)`";
    for more in [&["--dry-run"][..], &[]] {
        let output = fleet.cli(&[&["label", "clustertemplate", "base", "tier-"], more].concat())?;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains(&format!("warning: {lacks}\n")), "{more:?}: {told}");
    }
    // It was so before: another edit does not repeat it, and an apply of what reads it does.
    let output = fleet.cli(&["label", "clustertemplate", "base", "other=x"])?;
    assert!(!String::from_utf8_lossy(&output.stderr).contains("lack"));
    let more = SITE.replace("labels: {tier: gold}", "labels: {}").replace("template: \"tier", "template: \"the tier");
    let more = more.replace("\"1\"", "\"2\"").replace("site@1", "site@2");
    let (status, out, err) = apply(&fleet, &more, &["--dry-run"])?;
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("site.yaml:7:5: warning reference.unset release/site@2 task conf: all 2 hosts"), "{out}");
    let (status, _, err) = apply(&fleet, &more, &["--strict"])?;
    assert!(status == 1 && err.contains("1 warning among the findings"), "{err}");
    Ok(())
}

#[test]
fn y09_a_strict_command_is_refused_for_what_it_brings_and_for_nothing_else() -> Result<()> {
    let fleet = Fleet::start()?;
    let (status, out, err) = apply(&fleet, SITE, &["--strict"])?;
    assert_eq!(status, 0, "{out}{err}");
    let labels = || -> Result<Value> {
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "web-1", "-o", "json"])?)?;
        Ok(node["labels"].clone())
    };
    let before = labels()?;
    let refused = "error: a strict write, and 1 warning among the findings; nothing was changed\n  \
                   warning reference.unset release/site@1 task conf: 2 hosts that read it lack `labels.tier`";
    for arguments in [
        &["label", "clustertemplate", "base", "tier-", "--strict"][..],
        &["--strict", "label", "nodegroup", "prod/web", "--not-inherited", "tier"],
        &["label", "clustertemplate", "base", "tier-", "--strict", "--dry-run"],
    ] {
        let output = fleet.cli(arguments)?;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains(refused), "{arguments:?}: {told}");
        assert_eq!(labels()?, before, "{arguments:?}");
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

/// The lines of what is wrong, behind the first, which counts them.
fn listed(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().skip(1).filter(|line| *line != "  nothing was changed").collect();
    lines.sort_unstable();
    lines
}

#[test]
fn w11_an_apply_says_all_that_is_wrong_as_validate_does() -> Result<()> {
    let fleet = Fleet::start()?;
    // What refers to an object that is refused is not wrong for that.
    let text = SITE
        .replace("parameters: {path: /etc/conf,", "parameters: {path: /etc/conf, mode: 644,")
        .replace("labels: {tier: gold}", "labels: {tier: gold}\ncolour: red")
        .replace("cluster_template: base\n", "cluster_template: base\npaused: maybe\n")
        .replace("roles: [web]\n", "roles: web\n")
        .replace("name: web-2\n", "name: web-2\ntraits: [NOPE]\n");
    let (status, out, err) = apply(&fleet, &text, &[])?;
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error: 5 things are wrong in these manifests\n"), "{err}");
    let file = fleet.dir().join("site.yaml");
    let validated = fleet.cli(&["validate", "-f", &file.to_string_lossy()])?;
    let validated = String::from_utf8_lossy(&validated.stderr).replace(&file.display().to_string(), "site.yaml");
    assert_eq!(listed(&err), listed(&validated));
    // A release is not judged by what it would import of one that is refused.
    let text = SITE.replace("id: conf", "id: conf\n    requires: [nosuch]")
        + "---\nkind: Release\nname: more\nimports: [site@1]\ntasks:\n  - {id: x, type: shell, requires: [conf], parameters: {command: [a]}}\n";
    let (status, _, err) = apply(&fleet, &text, &[])?;
    assert!(status == 1 && err.starts_with("error: site.yaml:") && err.contains("nosuch"), "{err}");
    assert_eq!(err.lines().count(), 2, "{err}");
    Ok(())
}

#[test]
fn w11_what_several_objects_take_from_others_is_said_together() -> Result<()> {
    let fleet = Fleet::start()?;
    for cluster in ["a", "b"] {
        fleet.stemma(&["create", "cluster", cluster, "--labels", "tier=2"])?;
    }
    let text = "kind: Cluster\nname: a\nlabels: {tier: gold}\n---\nkind: Cluster\nname: b\nlabels: {tier: gold}\n";
    let (status, _, err) = apply(&fleet, text, &["--manager", "git"])?;
    let taken = |line| format!("\n  site.yaml:{line}:10: labels.tier is \"2\", owned by ");
    assert!(status == 4 && err.contains(&taken(3)) && err.contains(&taken(7)), "{err}");
    assert_eq!(err.matches("--force").count(), 1, "{err}");
    let (status, _, err) = apply(&fleet, &format!("{text}colour: red\n"), &["--manager", "git"])?;
    assert!(status == 4 && err.contains("site.yaml:8:1: colour: is no field") && err.contains(&taken(3)), "{err}");
    Ok(())
}

#[test]
fn w11_what_stands_in_none_of_the_files_has_the_place_of_the_object_by_which_it_is_so() -> Result<()> {
    let fleet = Fleet::start()?;
    let (status, out, err) = apply(&fleet, SITE, &["--strict"])?;
    assert_eq!(status, 0, "{out}{err}");
    let edit = "kind: NodeGroup\ncluster: prod\nname: web\nroles: [web]\nlabels: {tier: null}\n";
    let found =
        "site.yaml:1:1: warning reference.unset release/site@1 task conf: all 2 hosts that read it lack `labels.tier`";
    let (status, _, err) = apply(&fleet, edit, &["--strict"])?;
    assert!(status == 1 && err.contains(found), "{err}");
    let (status, out, err) = apply(&fleet, edit, &["-o", "json", "--dry-run"])?;
    let applied: Value = serde_json::from_str(&out)?;
    let place = applied["findings"][0]["place"].as_str().unwrap_or_default();
    assert!(status == 0 && place.ends_with("site.yaml:1:1"), "{out}{err}");
    // Likewise a cycle, which is found in the cluster. A release without a version may be edited.
    let unfixed = SITE.replace("version: \"1\"\n", "").replace("site@1", "site");
    let (status, out, err) = apply(&fleet, &unfixed, &[])?;
    assert_eq!(status, 0, "{out}{err}");
    let release = unfixed.split("---\n").next().unwrap_or_default();
    let release = release
        .replace("tags: [nginx]\n    p", "tags: [nginx]\n    cross_depends: [{name: conf, tags: [nginx]}]\n    p");
    let (status, _, err) = apply(&fleet, &release, &[])?;
    assert!(
        status == 1 && err.starts_with("error: site.yaml:1:1: ") && err.contains("tasks wait for each other"),
        "{err}"
    );
    Ok(())
}

#[test]
fn w11_each_write_warns_of_a_role_that_nothing_declares() -> Result<()> {
    let fleet = Fleet::start()?;
    let (status, out, err) = apply(&fleet, SITE, &[])?;
    assert_eq!(status, 0, "{out}{err}");
    let unknown = "has role wbe, which release site@1 does not declare";
    let output = fleet.cli(&["create", "nodegroup", "prod", "more", "--roles", "wbe"])?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains(&format!("warning: nodegroup/prod/more: {unknown}")), "{told}");
    let output = fleet.cli(&["label", "nodegroup", "prod/more", "other=x"])?;
    assert!(!String::from_utf8_lossy(&output.stderr).contains("wbe"), "what was so before is not repeated");
    Ok(())
}

/// Status, standard output and standard error of the operator's command, which needs no controller for it.
fn offline(words: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = run("stemma", words)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// A release with these tasks, and a node of each of its roles: n of web, m of db.
fn web_and_db(tasks: &str) -> String {
    format!(
        "kind: Release\nname: r\nroles: {{web: {{}}, db: {{}}}}\ntasks:\n{tasks}---\nkind: Cluster\nname: c\nrelease: r\n---\n\
         kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: NodeGroup\ncluster: c\nname: h\nroles: [db]\n---\n\
         kind: Node\nname: n\nnodegroup: c/g\n---\nkind: Node\nname: m\nnodegroup: c/h\n"
    )
}

/// `render` showed what no host would ever have, and ended with 0.
#[test]
fn y04_render_refuses_of_the_tasks_of_its_node_what_validate_refuses() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("site.yaml");
    let path = file.to_string_lossy().into_owned();
    for (task, field, shown) in [
        (
            "type: file, parameters: {path: /etc/x, content: 1.10}",
            "parameters.content: ",
            "# t (file)\n# path: /etc/x\n",
        ),
        ("type: shell, parameters: {script: 'true', env: {V: 1.10}}", "parameters.env: ", "# t (shell)\ntrue\n"),
        ("type: file, parameters: {path: /etc/x}", "parameters: ", "# t (file)\n# path: /etc/x\n"),
        ("type: shell, parameters: {command: 5}", "parameters.command: ", ""),
        ("type: flie, parameters: {path: /etc/x}", "type: ", ""),
    ] {
        let tasks = format!(
            "  - {{id: t, roles: [web], {task}}}\n  - {{id: o, type: file, roles: [db], parameters: {{path: /o, content: o}}}}\n"
        );
        std::fs::write(&file, web_and_db(&tasks))?;
        let (status, _, refused) = offline(&["validate", "-f", &path])?;
        let begins = format!("error: {path}:5:");
        assert!(status == Some(1) && refused.starts_with(&begins), "{task}: {refused}");
        assert!(refused.contains(&format!(": task t {field}")), "{task}: {refused}");
        for named in [&["n"][..], &["n", "t"]] {
            let (status, out, err) = offline(&[&["render", "-f", &path][..], named].concat())?;
            assert_eq!((status, err), (Some(1), refused.clone()), "{task}: {named:?}");
            assert!(out.starts_with(shown), "{task}: {named:?}: {out}");
        }
        let (status, out, err) = offline(&["render", "-f", &path, "m"])?;
        assert!(status == Some(0) && out.starts_with("# o (file)\n# path: /o\no\n"), "{task}: {out}{err}");
        // Whatever a type takes, the task is placed and has its order.
        let (status, out, err) = offline(&["resolve", "-f", &path])?;
        assert!(status == Some(0) && out.contains("c/g"), "{task}: {out}{err}");
    }
    Ok(())
}

/// An order was printed that left out what a stage says, and the status was 0.
#[test]
fn y04_what_resolve_prints_is_refused_where_tasks_wait_for_each_other_through_a_stage() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("site.yaml");
    let path = file.to_string_lossy().into_owned();
    let tasks = "  - {id: st, type: stage, requires: [a]}\n\
                 \x20 - {id: a, type: shell, roles: [web], requires: [st], parameters: {script: 'true'}}\n";
    std::fs::write(&file, web_and_db(tasks))?;
    for words in [&["validate"][..], &["resolve"], &["resolve", "-o", "json"], &["render", "n"]] {
        let (status, out, err) = offline(&[words, &["-f", &path]].concat())?;
        assert_eq!((status, out.as_str()), (Some(1), ""), "{words:?}: {err}");
        assert!(err.contains("tasks wait for each other: "), "{words:?}: {err}");
    }
    Ok(())
}
