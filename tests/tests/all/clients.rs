//! The real clients of Magnum and Glance against a real controller: several scripts, each run against a new controller.
//!
//! A script prints a line for each step that failed. If steps of a script fail because of an intended difference from
//! the upstream, a file in `tests/data` lists them with the reason. Exactly the listed steps must fail. The test also
//! fails if a listed step passes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use stemma_tests::plain_controller::PlainController;
use stemma_tests::python::environment;
use stemma_tests::shared;

use crate::description::post;

/// The packages to install, in the versions with which the scripts were validated.
const CLIENT_PACKAGES: [&str; 5] = [
    "python-openstackclient==10.5.0",
    "python-magnumclient==5.0.0",
    "keystoneauth1==5.18.1",
    "python-glanceclient==4.13.0",
    "openstacksdk==4.22.0",
];

/// The way in which a script gets the token of a principal.
enum TokenSource {
    /// The argument `--token NAME=TOKEN`. The script sends this token instead of the recorded token of NAME.
    Argument,
    /// The environment variable of this name. A second variable, with the suffix `_PROJECT`, contains the principal's
    /// name.
    Variable(&'static str),
}

/// Texts in the last line of output. A script that ran to its end prints one of these texts.
const FINAL_LINE_PARTS: [&str; 4] = ["ALL PASSED", "FAILED ", "vectors passed", "steps passed"];

/// A script and its arguments.
struct ClientScript {
    /// Path of the script, relative to the directory `clients` of the shared test material.
    file: &'static str,
    /// Path that the test appends to the controller's address. The result is the first argument of the script.
    base_path: &'static str,
    /// Principals that the test creates for the script: name, role, and way in which the script gets the token.
    principals: &'static [(&'static str, &'static str, TokenSource)],
    /// Arguments after the address. An argument with a slash is a path in the shared test material.
    arguments: &'static [&'static str],
    /// Environment variables that contain the path of an installed program: name of the variable, name of the program.
    programs: &'static [(&'static str, &'static str)],
    /// Text after the name of a failed step in the line that the script prints for the step.
    name_delimiter: &'static str,
    /// Steps that fail because of an intended difference, one per line: name, a tab, the reason.
    expected_failures: &'static str,
}

/// The script that sends test vectors for Magnum's labels with python-magnumclient, over a session of keystoneauth.
const MAGNUM_SESSION: ClientScript = ClientScript {
    file: "magnum_vectors_accept.py",
    base_path: "",
    principals: &[],
    arguments: &["vectors/labels/label_merge.json", "--transport", "session", "-q"],
    programs: &[],
    name_delimiter: " ",
    expected_failures: include_str!("../../data/magnum_listed.txt"),
};
/// The script of [`MAGNUM_SESSION`] with the client's own (legacy) HTTP transport.
const MAGNUM_LEGACY: ClientScript =
    ClientScript { arguments: &["vectors/labels/label_merge.json", "--transport", "legacy", "-q"], ..MAGNUM_SESSION };
/// The script that tests clusters, node groups and templates with Magnum's command `openstack coe`.
const MAGNUM_COMMAND: ClientScript = ClientScript {
    file: "magnum_osc_accept.py",
    arguments: &[],
    programs: &[("OPENSTACK_BIN", "openstack")],
    name_delimiter: ":",
    expected_failures: include_str!("../../data/magnum_osc_listed.txt"),
    ..MAGNUM_SESSION
};
/// The script that sends requests which were recorded with the real Magnum, and compares the responses.
const MAGNUM_REPLAY: ClientScript = ClientScript {
    file: "replay_api.py",
    arguments: &["vectors/labels/magnum_api.json"],
    programs: &[],
    name_delimiter: "]",
    expected_failures: include_str!("../../data/magnum_replay_listed.txt"),
    ..MAGNUM_SESSION
};
/// The script that tests the catalogue with the commands `glance md-*`.
const GLANCE: ClientScript = ClientScript {
    file: "glance_cli_accept.py",
    arguments: &[],
    programs: &[("GLANCE_BIN", "glance")],
    name_delimiter: ":",
    expected_failures: "",
    ..MAGNUM_SESSION
};
/// The script that tests the catalogue with python-glanceclient, which imports and deletes all stock files, and with
/// openstacksdk.
const METADEFS: ClientScript = ClientScript {
    file: "metadef_lib_accept.py",
    principals: &[
        ("boss", "admin", TokenSource::Variable("TOKEN")),
        ("member.p1", "viewer", TokenSource::Variable("TOKEN_A")),
        ("member.p2", "viewer", TokenSource::Variable("TOKEN_B")),
    ],
    arguments: &["data/metadefs"],
    programs: &[],
    expected_failures: include_str!("../../data/metadef_sdk_listed.txt"),
    ..GLANCE
};
/// The script of [`METADEFS`] with the address that openstacksdk uses for its image service. The script sends no token,
/// as a local user does.
const METADEFS_SDK: ClientScript = ClientScript { base_path: "/v2", principals: &[], expected_failures: "", ..METADEFS };
/// The script that sends requests which were recorded with the real Glance, and compares the responses. The members of
/// Glance's projects are viewers in Stemma.
const METADEF_REPLAY: ClientScript = ClientScript {
    file: "replay_api.py",
    principals: &[
        ("admin1", "admin", TokenSource::Argument),
        ("member.p1", "viewer", TokenSource::Argument),
        ("member.p2", "viewer", TokenSource::Argument),
    ],
    arguments: &["vectors/labels/metadef_api.json"],
    expected_failures: include_str!("../../data/metadef_listed.txt"),
    ..MAGNUM_REPLAY
};

/// Returns the names of the failed steps in the output of a script. A failed step is a line `FAIL NAME`, where
/// `name_delimiter` follows the name.
fn failed_steps(output: &str, name_delimiter: &str) -> BTreeSet<String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("FAIL "));
    lines.map(|line| line.split(name_delimiter).next().unwrap_or(line).to_owned()).collect()
}

/// Returns the names of the steps of a script that must fail. If an argument is a JSON file with `vectors`, omits the
/// names that are not the id of a vector in this file.
fn expected_failures(script: &ClientScript, arguments: &[PathBuf]) -> Result<BTreeSet<String>> {
    let lines = script.expected_failures.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split('\t').next()).map(str::to_owned);
    let Some(vectors) = arguments.iter().find(|path| path.extension().is_some_and(|extension| extension == "json")) else {
        return Ok(names.collect());
    };
    let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(vectors)?)?;
    let Some(vectors) = vectors["vectors"].as_array() else { return Ok(names.collect()) };
    let ids: BTreeSet<&str> = vectors.iter().filter_map(|vector| vector["id"].as_str()).collect();
    Ok(names.filter(|name| ids.contains(name.as_str())).collect())
}

/// Runs a script against a new controller. Fails unless exactly the listed steps fail. Does nothing if shared test
/// material is missing.
fn check_script(script: &ClientScript) -> Result<()> {
    let Some(file) = shared::path(&format!("clients/{}", script.file)) else { return Ok(()) };
    let mut arguments = Vec::new();
    for argument in script.arguments {
        let path = if argument.contains('/') { shared::path(argument) } else { Some(PathBuf::from(argument)) };
        let Some(path) = path else { return Ok(()) };
        arguments.push(path);
    }
    let programs = environment(env!("CARGO_TARGET_TMPDIR"), "clients", &CLIENT_PACKAGES)?.join("bin");
    let controller = PlainController::start()?;
    let mut command = Command::new(programs.join("python"));
    for (variable, program) in script.programs {
        command.env(variable, programs.join(program));
    }
    let admin = &controller.addresses.admin;
    command.arg(&file).arg(format!("{admin}{}", script.base_path)).args(&arguments);
    for (name, role, source) in script.principals {
        post(admin, "/v1/principals", &json!({"name": name, "role": role}))?;
        let created = post(admin, &format!("/v1/principals/{name}/tokens"), &json!({}))?;
        let token = created["token"].as_str().context("a token")?;
        match source {
            TokenSource::Argument => command.arg("--token").arg(format!("{name}={token}")),
            TokenSource::Variable(variable) => command.env(variable, token).env(format!("{variable}_PROJECT"), name),
        };
    }
    let output = command.output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let (failed, expected) = (failed_steps(&stdout, script.name_delimiter), expected_failures(script, &arguments)?);
    let last_line = stdout.lines().next_back().unwrap_or_default();
    ensure!(FINAL_LINE_PARTS.iter().any(|part| last_line.contains(part)), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(failed, expected, "{} {:?}:\n{stdout}", script.file, script.arguments);
    controller.stop()
}

#[test]
fn magnum_client_session_passes_vectors() -> Result<()> {
    check_script(&MAGNUM_SESSION)
}

#[test]
fn magnum_command_manages_clusters() -> Result<()> {
    check_script(&MAGNUM_COMMAND)
}

#[test]
fn magnum_replay_matches_recorded_answers() -> Result<()> {
    check_script(&MAGNUM_REPLAY)
}

#[test]
fn magnum_legacy_client_passes_vectors() -> Result<()> {
    check_script(&MAGNUM_LEGACY)
}

#[test]
fn glance_command_manages_catalogue() -> Result<()> {
    check_script(&GLANCE)
}

#[test]
fn glance_client_and_sdk_manage_catalogue() -> Result<()> {
    check_script(&METADEFS)
}

#[test]
fn sdk_manages_catalogue_at_image_address() -> Result<()> {
    check_script(&METADEFS_SDK)
}

#[test]
fn glance_replay_matches_recorded_answers() -> Result<()> {
    check_script(&METADEF_REPLAY)
}
