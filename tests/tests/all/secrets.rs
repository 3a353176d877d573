//! Where a secret's value may be: in the host's credentials, and in the file that it is written for. Everything else
//! that the programs write, print or store is searched for it (trust.md, rule 8).

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually, run};

const SECRET_VALUES: [&str; 2] = ["hunter2-the-first", "hunter2-the-second"];

const MANIFEST: &str = r#"
kind: Release
name: secrets
version: "1"
roles: {all: {tags: [x]}}
tags: {x: {}}
tasks:
  - {id: conf, type: file, tags: [x], parameters: {path: /etc/app.conf, template: "password={{ secret('db') }}\n"}}
  - {id: loud, type: shell, tags: [x], fail_on_error: false, parameters: {script: "echo {{ secret('db') }}; false"}}
  - id: refused
    type: file
    tags: [x]
    fail_on_error: false
    parameters: {path: /etc/other, template: "{{ secret('db') }}", validate: [sh, -c, 'cat {path}; exit 1']}
---
{kind: Cluster, name: c, release: secrets@1}
---
{kind: NodeGroup, cluster: c, name: g, roles: [all]}
"#;

#[test]
fn secret_value_is_only_in_target_file() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let manifest = fleet.dir().join("secrets.yaml");
    std::fs::write(&manifest, MANIFEST)?;
    fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
    let credentials = fleet.dir().join("n1/run/credentials/stemma-agent.service");
    std::fs::create_dir_all(&credentials)?;
    std::fs::write(credentials.join("db"), SECRET_VALUES[0])?;
    let mut agent = fleet.join("n1", "c/g")?;
    eventually("the first file", || check_file_contains(&agent.path("etc/app.conf"), SECRET_VALUES[0]))?;
    let mut printed = String::new();
    for value in SECRET_VALUES {
        // A check after a new value: the file with the older value is replaced.
        std::fs::write(credentials.join("db"), value)?;
        printed += &run_verb(&agent, &["check"], &[1, 6])?;
        agent.kill()?;
        printed += &run_verb(&agent, &["once"], &[1])?;
        agent.start()?;
        eventually("the file", || check_file_contains(&agent.path("etc/app.conf"), value))?;
        let mode = std::fs::metadata(agent.path("etc/app.conf"))?.permissions().mode() & 0o7777;
        ensure!(mode == 0o600, "a new file with a secret in it is its owner's: {mode:o}");
    }
    eventually("the results with the controller", || {
        let report = fleet.stemma(&["get", "--raw", "/v1/nodes/n1/report"])?;
        let tasks = ["conf", "loud", "refused"].map(|task| format!("\"{task}\""));
        ensure!(tasks.iter().all(|task| report.contains(task)), "{report}\n{}", agent.log());
        Ok(())
    })?;
    for words in [&["report"][..], &["resolved"], &["explain"], &[]] {
        let path = [&["/v1/nodes/n1"], words].concat().join("/");
        printed += &String::from_utf8(fleet.cli(&["get", "--raw", &path])?.stdout)?;
    }
    printed += &run_verb(&agent, &["status"], &[1])?;
    printed += &run_verb(&agent, &["explain", "task", "conf"], &[0])?;
    ensure!(printed.contains("secret"), "it is named:\n{printed}");
    for (name, text) in [("printed", printed), ("agent", agent.log()), ("controller", fleet.log())] {
        ensure!(!SECRET_VALUES.iter().any(|value| text.contains(value)), "{name}:\n{text}");
    }
    fleet.stop_controller()?;
    let expected = [credentials.join("db"), agent.path("etc/app.conf")];
    // The agent is still running. A file that it replaces may be missing or exist twice for a moment.
    eventually("the values in their two files alone", || {
        let found = files_with_secret(fleet.dir())?;
        ensure!(found.iter().all(|path| expected.contains(path)) && found.len() == 2, "{found:?}");
        Ok(())
    })
}

/// Each place that would show a secret to everyone on a host, and the field that its error names.
const EXPOSED_PLACES: [(&str, &str); 8] = [
    ("type: file, parameters: {path: \"/etc/{{ secret('db') }}\", content: x}", "path"),
    ("type: file, parameters: {path: /a, content: x, validate: [check, \"{{ secret('db') }}\"]}", "validate[1]"),
    ("type: shell, parameters: {command: [\"{{ secret('db') }}\"]}", "command[0]"),
    ("type: shell, parameters: {command: [put, a, \"-p{% if true %}{{ secret('db') }}{% endif %}\"]}", "command[2]"),
    ("type: shell, parameters: {command: [put], unless: [test, \"{{ secret('db') }}\"]}", "unless[1]"),
    ("type: shell, parameters: {command: [put], only_if: [test, \"{{ secret('db')|upper }}\"]}", "only_if[1]"),
    ("type: shell, parameters: {command: [put], creates: \"/{{ secret('db') }}\"}", "creates"),
    ("type: shell, parameters: {script: put, cwd: \"/{{ secret('db') }}\"}", "cwd"),
];

#[test]
fn w10_03_task_is_refused_before_release_when_exposing_secret() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("shown.yaml");
    let path = file.to_string_lossy().into_owned();
    for (task, field) in EXPOSED_PLACES {
        std::fs::write(&file, format!("kind: Release\nname: r\nversion: \"1\"\ntasks:\n  - {{id: t, {task}}}\n"))?;
        for verb in ["validate", "apply"] {
            let output = fleet.cli(&[verb, "-f", &path])?;
            let error = String::from_utf8_lossy(&output.stderr);
            let said = format!(
                ": task t parameters.{field}: reads a secret, and everyone on a host sees the name of a file and the arguments of a \
                 process: read the secret in `script`, in a guard that is a shell text, in `env`, or in the `template` of a file"
            );
            ensure!(!output.status.success() && error.contains(&said), "{verb} {task}: {error}");
            ensure!(error.contains("shown.yaml:5:"), "its line: {error}");
        }
    }
    ensure!(fleet.stemma(&["get", "releases", "-o", "name"])?.is_empty(), "nothing is stored");
    let taken = "{id: t, type: shell, parameters: {script: \"put {{ secret('db') }}\", unless: \"test {{ secret('db') }}\", \
                 env: {DB: \"{{ secret('db') }}\"}}}";
    std::fs::write(&file, format!("kind: Release\nname: r\nversion: \"1\"\ntasks:\n  - {taken}\n"))?;
    for verb in ["validate", "apply"] {
        fleet.stemma(&[verb, "-f", &path])?;
    }
    Ok(())
}

/// Runs a verb of the agent, which must end with one of these statuses. Returns both outputs.
fn run_verb(agent: &TestAgent, words: &[&str], statuses: &[i32]) -> Result<String> {
    let root = agent.path("");
    let output = run("stemma-agent", [&["--root", &root.to_string_lossy()], words].concat())?;
    let both = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code().is_some_and(|code| statuses.contains(&code)), "{words:?}: {}\n{both}", output.status);
    Ok(both)
}

/// Returns the files below a directory that have one of the values in their content or path.
fn files_with_secret(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let kind = std::fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() {
            found.extend(files_with_secret(&path)?);
        } else if kind.is_file() {
            let bytes = std::fs::read(&path)?;
            let holds = |value: &str| {
                path.to_string_lossy().contains(value) || bytes.windows(value.len()).any(|window| window == value.as_bytes())
            };
            found.extend(SECRET_VALUES.iter().any(|value| holds(value)).then_some(path));
        }
    }
    Ok(found)
}
