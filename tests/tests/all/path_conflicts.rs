//! Two tasks with one path: `validate` and `apply` report it, and the host writes the file for the first task only.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{check_file_contains, eventually, run};

fn file_task(id: &str, parameters: &Value) -> Value {
    json!({"id": id, "type": "file", "tags": ["w"], "parameters": parameters})
}

/// Returns the manifests of a release with these tasks, a cluster that runs it, a group, and these nodes.
fn site_manifest(version: &str, tasks: &[Value], nodes: &[&str]) -> String {
    let mut documents = vec![
        json!({"kind": "Release", "name": "r", "version": version, "roles": {"w": {"tags": ["w"]}}, "tags": {"w": {}}, "tasks": tasks}),
        json!({"kind": "Cluster", "name": "c", "release": format!("r@{version}")}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["w"], "parameters": {"dir": "/etc"}}),
    ];
    documents.extend(nodes.iter().map(|name| json!({"kind": "Node", "name": name, "nodegroup": "c/g"})));
    documents.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
}

#[test]
fn y01_validate_names_tasks_path_and_node() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let manifest = directory.path().join("site.yaml");
    for (first, second, path) in [
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z", "content": "b"}), "/etc/z"),
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z", "absent": true}), "/etc/z"),
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "{{ params.dir }}/z", "content": "b"}), "/etc/z"),
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z/y", "content": "b"}), "/etc/z/y"),
        (json!({"path": "/bin/z", "content": "a"}), json!({"path": "/usr/bin/z", "content": "b"}), "/usr/bin/z"),
    ] {
        std::fs::write(&manifest, site_manifest("1", &[file_task("a", &first), file_task("b", &second)], &["n"]))?;
        let said = run("stemma", ["validate", "-f", &manifest.to_string_lossy()])?;
        let said = String::from_utf8([said.stdout, said.stderr].concat())?;
        let line = said.lines().find(|line| line.contains("error task.path release/r@1 task b: on 1 host (n): "));
        let line = line.with_context(|| format!("{second}: {said}"))?;
        ensure!(line.contains("task a") && line.contains(path), "{second}: {line}");
    }
    Ok(())
}

#[test]
fn y01_render_names_refused_file_of_two() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let manifest = directory.path().join("site.yaml");
    let tasks = [
        file_task("a", &json!({"path": "/etc/z", "content": "a"})),
        file_task("b", &json!({"path": "{{ params.dir }}/z", "content": "b"})),
    ];
    std::fs::write(&manifest, site_manifest("1", &tasks, &["n"]))?;
    let path = manifest.to_string_lossy().into_owned();
    let render = |more: &[&str]| -> Result<String> {
        let said = run("stemma", [&["render", "-f", path.as_str(), "n"], more].concat())?;
        let is_refused = !more.contains(&"a");
        let told = String::from_utf8(said.stderr)?;
        ensure!(said.status.code() == Some(i32::from(is_refused)), "{more:?}: {told}");
        ensure!(told.contains("n: task b parameters.path: /etc/z is the path of task a too") == is_refused, "{more:?}: {told}");
        Ok(String::from_utf8(said.stdout)?)
    };
    ensure!(!render(&["a"])?.contains("# refused"), "of task a nothing is wrong");
    let said = render(&[])?;
    let refused = "# b (file)\n# refused: /etc/z is the path of task a too, which comes first and writes it: ";
    ensure!(said.contains(refused) && said.matches("# refused").count() == 1, "{said}");
    let shown: Value = serde_json::from_str(&render(&["-o", "json"])?)?;
    let why = shown["b"]["refused"].as_str().unwrap_or_default();
    ensure!(why.starts_with("/etc/z is the path of task a too") && shown["a"].get("refused").is_none(), "{shown}");
    Ok(())
}

#[test]
fn y01_agent_writes_path_of_first_task_and_refuses_second() -> Result<()> {
    let fleet = TempFleet::start()?;
    let write = |text: &str| -> Result<PathBuf> {
        let manifest = fleet.dir().join("site.yaml");
        std::fs::write(&manifest, text)?;
        Ok(manifest)
    };
    let (a, b) = (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z", "content": "b"}));
    let mark = || file_task("mark", &json!({"path": "/etc/mark", "template": "{{ labels.round }}"}));
    let tasks = [file_task("a", &a), file_task("b", &b), mark()];
    // There is no node yet. The release is stored, and any node that joins has the finding.
    fleet.stemma(&["apply", "-f", &write(&site_manifest("1", &tasks, &[]))?.to_string_lossy()])?;
    fleet.stemma(&["label", "cluster", "c", "round=1"])?;
    let agent = fleet.join("n1", "c/g")?;
    eventually("the first run", || {
        let status = agent.status()?;
        ensure!(status.contains("/etc/z is the path of task a too"), "{status}");
        check_file_contains(&agent.path("etc/mark"), "1")
    })?;
    let written = std::fs::metadata(agent.path("etc/z"))?.ino();
    eventually("the state at the controller", || {
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "n1", "-o", "json"])?)?;
        ensure!(node.to_string().contains("\"state\":\"failed\""), "{node}");
        let told = fleet.stemma(&["describe", "node", "n1"])?;
        ensure!(told.contains("task.path") && told.contains("/etc/z is the path of task a too"), "{told}");
        Ok(())
    })?;
    fleet.stemma(&["label", "cluster", "c", "round=again"])?;
    eventually("another run", || check_file_contains(&agent.path("etc/mark"), "again").with_context(|| agent.log()))?;
    check_file_contains(&agent.path("etc/z"), "a")?;
    ensure!(std::fs::metadata(agent.path("etc/z"))?.ino() == written, "it was written again: {}", agent.log());

    // If a node has both tasks, a literal path is refused, and a rendered path is reported.
    let later = |second: &Value| [file_task("a", &json!({"path": "/etc/y", "content": "a"})), file_task("c", second), mark()];
    let plain = write(&site_manifest("2", &later(&json!({"path": "/etc/y/x", "content": "c"})), &[]))?;
    let refused = fleet.cli(&["apply", "-f", &plain.to_string_lossy()])?;
    let said = String::from_utf8([refused.stdout, refused.stderr].concat())?;
    let names_all = ["node n1: task c: ", "task a", "/etc/y/x lies below /etc/y", "nothing was changed"];
    ensure!(!refused.status.success() && names_all.iter().all(|part| said.contains(part)), "{said}");
    let rendered = write(&site_manifest("3", &later(&json!({"path": "{{ params.dir }}/y", "content": "c"})), &[]))?;
    let said = fleet.cli(&["--yes", "apply", "-f", &rendered.to_string_lossy()])?;
    let said = String::from_utf8([said.stdout, said.stderr].concat())?;
    ensure!(said.contains("task.path") && said.contains("/etc/y is the path of task a too"), "{said}");
    Ok(())
}

/// Regression: a conflict that a host had refused at a rendered path counted as new when a release contained the same
/// path literally.
#[test]
fn y01_literal_path_is_accepted_after_refusal_as_rendered() -> Result<()> {
    let fleet = TempFleet::start()?;
    let apply = |version: &str, paths: [&str; 2], nodes: &[&str]| {
        let content = |path: &str| json!({"path": path, "content": "x"});
        let tasks = [file_task("a", &content(paths[0])), file_task("b", &content(paths[1]))];
        let manifest = fleet.dir().join("site.yaml");
        std::fs::write(&manifest, site_manifest(version, &tasks, nodes))?;
        let (out, error, status) = fleet.run_cli(&["--yes", "apply", "-f", &manifest.to_string_lossy()])?;
        anyhow::Ok((status, out + &error))
    };
    let rendered = ["/etc/{{ labels.p }}", "/etc/{{ labels.q }}"];
    let (status, said) = apply("1", rendered, &[])?;
    ensure!(status == 0, "{said}");
    fleet.stemma(&["label", "cluster", "c", "p=m"])?;
    fleet.stemma(&["label", "cluster", "c", "q=m"])?;
    let (status, said) = apply("1", rendered, &["n1"])?;
    ensure!(status == 0, "{said}");
    let (status, said) = apply("2", ["/etc/w", "/etc/w"], &["n1"])?;
    ensure!(status != 0 && said.contains("node n1: task b: /etc/w is the path of task a too"), "another place: {said}");
    let (status, said) = apply("3", ["/etc/m", "/etc/m"], &["n1"])?;
    ensure!(status == 0, "{said}");
    eventually("the finding", || {
        let told = fleet.stemma(&["describe", "node", "n1"])?;
        ensure!(told.contains("r@3") && told.contains("/etc/m is the path of task a too"), "{told}");
        Ok(())
    })
}

/// Regression: a path conflict was counted twice, for the node and for the release that brings the two tasks together
/// there.
#[test]
fn y01_strict_edit_counts_conflict_once() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (a, b) = (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z/y", "content": "b"}));
    let other = json!({"id": "b", "type": "file", "tags": ["x"], "parameters": b});
    let release = json!({"kind": "Release", "name": "r", "version": "1", "roles": {"w": {"tags": ["w"]}}, "tags": {"w": {}, "x": {}},
        "tasks": [file_task("a", &a), other]});
    let objects = [
        release,
        json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["w"]}),
        json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}),
    ];
    let manifest = fleet.dir().join("site.yaml");
    std::fs::write(&manifest, objects.map(|object| object.to_string()).join("\n---\n"))?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    let (_, told, status) = fleet.run_cli(&["tag", "assign", "n", "x", "--strict"])?;
    ensure!(status == 1 && told.contains("a strict write, and 1 error among the findings; nothing was changed"), "{told}");
    ensure!(told.matches("task.path").count() == 1 && told.contains("release/r@1 task b: on 1 host (n): "), "{told}");
    Ok(())
}
