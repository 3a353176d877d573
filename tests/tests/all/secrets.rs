//! The value of a secret may be in two places: in the host's credentials, and in the file that a task writes with the
//! value. Everything else that the programs write, print or store is searched for the value (trust.md, rule 8). A task
//! that would show a secret to every user of its host is refused.

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
    let mut outputs = String::new();
    for value in SECRET_VALUES {
        // The agent checks the file against the new value. In the second round, the file still has the older value.
        std::fs::write(credentials.join("db"), value)?;
        outputs += &run_agent_command(&agent, &["check"], &[1, 6])?;
        agent.kill()?;
        outputs += &run_agent_command(&agent, &["once"], &[1])?;
        agent.start()?;
        eventually("the file", || check_file_contains(&agent.path("etc/app.conf"), value))?;
        let mode = std::fs::metadata(agent.path("etc/app.conf"))?.permissions().mode() & 0o7777;
        ensure!(mode == 0o600, "the mode of a file with a secret is {mode:o}");
    }
    eventually("the results with the controller", || {
        let report = fleet.stemma(&["get", "--raw", "/v1/nodes/n1/report"])?;
        let tasks = ["conf", "loud", "refused"].map(|task| format!("\"{task}\""));
        ensure!(tasks.iter().all(|task| report.contains(task)), "{report}\n{}", agent.log());
        Ok(())
    })?;
    for words in [&["report"][..], &["resolved"], &["explain"], &[]] {
        let path = [&["/v1/nodes/n1"], words].concat().join("/");
        outputs += &String::from_utf8(fleet.cli(&["get", "--raw", &path])?.stdout)?;
    }
    outputs += &run_agent_command(&agent, &["status"], &[1])?;
    outputs += &run_agent_command(&agent, &["explain", "task", "conf"], &[0])?;
    ensure!(outputs.contains("secret"), "the outputs do not name the secret:\n{outputs}");
    for (name, text) in [("printed", outputs), ("agent", agent.log()), ("controller", fleet.log())] {
        ensure!(!SECRET_VALUES.iter().any(|value| text.contains(value)), "{name}:\n{text}");
    }
    fleet.stop_controller()?;
    let expected = [credentials.join("db"), agent.path("etc/app.conf")];
    // The agent is still running. A file that it replaces may be missing or exist twice for a moment.
    eventually("the values in the two allowed files alone", || {
        let files = files_with_secret(fleet.dir())?;
        ensure!(files.iter().all(|path| expected.contains(path)) && files.len() == 2, "{files:?}");
        Ok(())
    })
}

/// Tasks that would show a secret to every user of a host, each with the field that the refusal names.
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
            let expected = format!(
                ": task t parameters.{field}: reads a secret, and everyone on a host sees the name of a file and the arguments of a \
                 process: read the secret in `script`, in a guard that is a shell text, in `env`, or in the `template` of a file"
            );
            ensure!(!output.status.success() && error.contains(&expected), "{verb} {task}: {error}");
            ensure!(error.contains("shown.yaml:5:"), "the line of the task: {error}");
        }
    }
    ensure!(fleet.stemma(&["get", "releases", "-o", "name"])?.is_empty(), "nothing is stored");
    let valid_task = "{id: t, type: shell, parameters: {script: \"put {{ secret('db') }}\", unless: \"test {{ secret('db') }}\", \
                 env: {DB: \"{{ secret('db') }}\"}}}";
    std::fs::write(&file, format!("kind: Release\nname: r\nversion: \"1\"\ntasks:\n  - {valid_task}\n"))?;
    for verb in ["validate", "apply"] {
        fleet.stemma(&[verb, "-f", &path])?;
    }
    Ok(())
}

/// Runs a subcommand of `stemma-agent`, which must end with one of these exit statuses. Returns standard output and
/// standard error as one text.
fn run_agent_command(agent: &TestAgent, words: &[&str], statuses: &[i32]) -> Result<String> {
    let root = agent.path("");
    let output = run("stemma-agent", [&["--root", &root.to_string_lossy()], words].concat())?;
    let outputs = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code().is_some_and(|code| statuses.contains(&code)), "{words:?}: {}\n{outputs}", output.status);
    Ok(outputs)
}

/// Returns the files below a directory whose content or path contains one of [`SECRET_VALUES`].
fn files_with_secret(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let kind = std::fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() {
            files.extend(files_with_secret(&path)?);
        } else if kind.is_file() {
            let bytes = std::fs::read(&path)?;
            let contains_value = |value: &str| {
                path.to_string_lossy().contains(value) || bytes.windows(value.len()).any(|window| window == value.as_bytes())
            };
            files.extend(SECRET_VALUES.iter().any(|value| contains_value(value)).then_some(path));
        }
    }
    Ok(files)
}
