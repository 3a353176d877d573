//! Two tasks with one path, or with one path below the other: `validate`, `render` and `apply` report the conflict, and
//! the host writes the file for the first task only.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{check_file_contains, eventually, run};

/// Returns a task of type `file` that runs by the tag `w`.
fn file_task(id: &str, parameters: &Value) -> Value {
    json!({"id": id, "type": "file", "tags": ["w"], "parameters": parameters})
}

/// Returns the manifests of a release with these tasks, of a cluster and a node group with this release, and of these
/// nodes.
fn site_manifest(version: &str, tasks: &[Value], nodes: &[&str]) -> String {
    let mut documents = vec![
        json!({"kind": "Release", "name": "r", "version": version, "roles": {"w": {"tags": ["w"]}}, "tags": {"w": {}}, "tasks": tasks}),
        json!({"kind": "Cluster", "name": "c", "release": format!("r@{version}")}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["w"], "parameters": {"dir": "/etc"}}),
    ];
    documents.extend(nodes.iter().map(|name| json!({"kind": "Node", "name": name, "nodegroup": "c/g"})));
    documents.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// In this test, two tasks of a node have conflicting paths, in five ways. `validate` reports both tasks, the path and
/// the node.
#[test]
fn y01_validate_names_tasks_path_and_node() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let manifest = directory.path().join("site.yaml");
    for (first, second, path) in [
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z", "content": "b"}), "/etc/z"),
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z", "absent": true}), "/etc/z"),
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "{{ params.dir }}/z", "content": "b"}), "/etc/z"),
        (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z/y", "content": "b"}), "/etc/z/y"),
        // `/bin` is a link to `/usr/bin`, so the two paths name one file.
        (json!({"path": "/bin/z", "content": "a"}), json!({"path": "/usr/bin/z", "content": "b"}), "/usr/bin/z"),
    ] {
        std::fs::write(&manifest, site_manifest("1", &[file_task("a", &first), file_task("b", &second)], &["n"]))?;
        let output = run("stemma", ["validate", "-f", &manifest.to_string_lossy()])?;
        let output = String::from_utf8([output.stdout, output.stderr].concat())?;
        let line = output.lines().find(|line| line.contains("error task.path release/r@1 task b: on 1 host (n): "));
        let line = line.with_context(|| format!("{second}: {output}"))?;
        ensure!(line.contains("task a") && line.contains(path), "{second}: {line}");
    }
    Ok(())
}

/// In this test, two tasks of a node write the same path, so the host would refuse the second task `b`. `render` shows
/// this at task `b`.
#[test]
fn y01_render_shows_refused_task_when_paths_conflict() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let manifest = directory.path().join("site.yaml");
    let tasks = [
        file_task("a", &json!({"path": "/etc/z", "content": "a"})),
        file_task("b", &json!({"path": "{{ params.dir }}/z", "content": "b"})),
    ];
    std::fs::write(&manifest, site_manifest("1", &tasks, &["n"]))?;
    let path = manifest.to_string_lossy().into_owned();
    let render = |arguments: &[&str]| -> Result<String> {
        let output = run("stemma", [&["render", "-f", path.as_str(), "n"], arguments].concat())?;
        // Only task b is refused, so the command that renders task a alone succeeds.
        let is_refused = !arguments.contains(&"a");
        let errors = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(i32::from(is_refused)), "{arguments:?}: {errors}");
        ensure!(
            errors.contains("n: task b parameters.path: /etc/z is the path of task a too") == is_refused,
            "{arguments:?}: {errors}"
        );
        Ok(String::from_utf8(output.stdout)?)
    };
    ensure!(!render(&["a"])?.contains("# refused"), "task a is not refused");
    let output = render(&[])?;
    let refusal = "# b (file)\n# refused: /etc/z is the path of task a too, which comes first and writes it: ";
    ensure!(output.contains(refusal) && output.matches("# refused").count() == 1, "{output}");
    let rendered: Value = serde_json::from_str(&render(&["-o", "json"])?)?;
    let reason = rendered["b"]["refused"].as_str().unwrap_or_default();
    ensure!(reason.starts_with("/etc/z is the path of task a too") && rendered["a"].get("refused").is_none(), "{rendered}");
    Ok(())
}

#[test]
fn y01_agent_writes_path_of_first_task_and_refuses_second() -> Result<()> {
    let fleet = TempFleet::start()?;
    let write_manifest = |text: &str| -> Result<PathBuf> {
        let manifest = fleet.dir().join("site.yaml");
        std::fs::write(&manifest, text)?;
        Ok(manifest)
    };
    let (first_file, second_file) = (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z", "content": "b"}));
    let mark_task = || file_task("mark", &json!({"path": "/etc/mark", "template": "{{ labels.round }}"}));
    let tasks = [file_task("a", &first_file), file_task("b", &second_file), mark_task()];
    // No node exists yet, so the release is stored. Each node that joins later has the finding.
    fleet.stemma(&["apply", "-f", &write_manifest(&site_manifest("1", &tasks, &[]))?.to_string_lossy()])?;
    fleet.stemma(&["label", "cluster", "c", "round=1"])?;
    let agent = fleet.join("n1", "c/g")?;
    eventually("the first run", || {
        let status = agent.status()?;
        ensure!(status.contains("/etc/z is the path of task a too"), "{status}");
        check_file_contains(&agent.path("etc/mark"), "1")
    })?;
    let inode = std::fs::metadata(agent.path("etc/z"))?.ino();
    eventually("the state at the controller", || {
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", "n1", "-o", "json"])?)?;
        ensure!(node.to_string().contains("\"state\":\"failed\""), "{node}");
        let description = fleet.stemma(&["describe", "node", "n1"])?;
        ensure!(description.contains("task.path") && description.contains("/etc/z is the path of task a too"), "{description}");
        Ok(())
    })?;
    fleet.stemma(&["label", "cluster", "c", "round=again"])?;
    eventually("another run", || check_file_contains(&agent.path("etc/mark"), "again").with_context(|| agent.log()))?;
    check_file_contains(&agent.path("etc/z"), "a")?;
    ensure!(std::fs::metadata(agent.path("etc/z"))?.ino() == inode, "the file was written again: {}", agent.log());

    // If a node has both tasks, a conflict of literal paths is refused. A conflict with a rendered path is a finding.
    let later_tasks =
        |second: &Value| [file_task("a", &json!({"path": "/etc/y", "content": "a"})), file_task("c", second), mark_task()];
    let literal_manifest = write_manifest(&site_manifest("2", &later_tasks(&json!({"path": "/etc/y/x", "content": "c"})), &[]))?;
    let refusal = fleet.cli(&["apply", "-f", &literal_manifest.to_string_lossy()])?;
    let output = String::from_utf8([refusal.stdout, refusal.stderr].concat())?;
    let expected_parts = ["node n1: task c: ", "task a", "/etc/y/x lies below /etc/y", "nothing was changed"];
    ensure!(!refusal.status.success() && expected_parts.iter().all(|part| output.contains(part)), "{output}");
    let rendered_manifest =
        write_manifest(&site_manifest("3", &later_tasks(&json!({"path": "{{ params.dir }}/y", "content": "c"})), &[]))?;
    let output = fleet.cli(&["--yes", "apply", "-f", &rendered_manifest.to_string_lossy()])?;
    let output = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.contains("task.path") && output.contains("/etc/y is the path of task a too"), "{output}");
    Ok(())
}

/// Regression: a node had a finding, because two tasks rendered the same path. A release with the same two paths as
/// literal text was then refused, as if it brought a new conflict to the node.
#[test]
fn y01_literal_path_is_accepted_when_rendered_path_already_conflicts() -> Result<()> {
    let fleet = TempFleet::start()?;
    let apply = |version: &str, paths: [&str; 2], nodes: &[&str]| {
        let content = |path: &str| json!({"path": path, "content": "x"});
        let tasks = [file_task("a", &content(paths[0])), file_task("b", &content(paths[1]))];
        let manifest = fleet.dir().join("site.yaml");
        std::fs::write(&manifest, site_manifest(version, &tasks, nodes))?;
        let (stdout, stderr, status) = fleet.run_cli(&["--yes", "apply", "-f", &manifest.to_string_lossy()])?;
        anyhow::Ok((status, stdout + &stderr))
    };
    let rendered_paths = ["/etc/{{ labels.p }}", "/etc/{{ labels.q }}"];
    let (status, output) = apply("1", rendered_paths, &[])?;
    ensure!(status == 0, "{output}");
    fleet.stemma(&["label", "cluster", "c", "p=m"])?;
    fleet.stemma(&["label", "cluster", "c", "q=m"])?;
    let (status, output) = apply("1", rendered_paths, &["n1"])?;
    ensure!(status == 0, "{output}");
    let (status, output) = apply("2", ["/etc/w", "/etc/w"], &["n1"])?;
    ensure!(
        status != 0 && output.contains("node n1: task b: /etc/w is the path of task a too"),
        "a conflict at another path is new: {output}"
    );
    let (status, output) = apply("3", ["/etc/m", "/etc/m"], &["n1"])?;
    ensure!(status == 0, "{output}");
    eventually("the finding", || {
        let description = fleet.stemma(&["describe", "node", "n1"])?;
        ensure!(description.contains("r@3") && description.contains("/etc/m is the path of task a too"), "{description}");
        Ok(())
    })
}

/// Regression: one path conflict was counted twice, once for the node and once for the release that contains the two
/// tasks.
#[test]
fn y01_strict_edit_counts_conflict_once() -> Result<()> {
    let fleet = TempFleet::start()?;
    let (first_file, second_file) = (json!({"path": "/etc/z", "content": "a"}), json!({"path": "/etc/z/y", "content": "b"}));
    let second_task = json!({"id": "b", "type": "file", "tags": ["x"], "parameters": second_file});
    let release = json!({"kind": "Release", "name": "r", "version": "1", "roles": {"w": {"tags": ["w"]}}, "tags": {"w": {}, "x": {}},
        "tasks": [file_task("a", &first_file), second_task]});
    let objects = [
        release,
        json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["w"]}),
        json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}),
    ];
    let manifest = fleet.dir().join("site.yaml");
    std::fs::write(&manifest, objects.map(|object| object.to_string()).join("\n---\n"))?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    let (_, errors, status) = fleet.run_cli(&["tag", "assign", "n", "x", "--strict"])?;
    ensure!(status == 1 && errors.contains("a strict write, and 1 error among the findings; nothing was changed"), "{errors}");
    ensure!(errors.matches("task.path").count() == 1 && errors.contains("release/r@1 task b: on 1 host (n): "), "{errors}");
    Ok(())
}
