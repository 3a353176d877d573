//! The real clients of Magnum and Glance against a real controller: one table of scripts, each against a fresh one.
//!
//! A script prints a line for each of its steps that failed. What the controller decides otherwise than the upstream is listed
//! with the reason in `tests/data`, a file for each script, and the failures must be exactly those: a step that passes though
//! it is listed fails the test too.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use stemma_tests::plain::Plain;
use stemma_tests::python::environment;
use stemma_tests::shared;

use crate::description::post;

/// What is installed: the versions that the scripts were validated with.
const CLIENTS: [&str; 5] = [
    "python-openstackclient==10.5.0",
    "python-magnumclient==5.0.0",
    "keystoneauth1==5.18.1",
    "python-glanceclient==4.13.0",
    "openstacksdk==4.22.0",
];

/// By what a script is given the token of a principal.
enum Given {
    /// By `--token NAME=TOKEN`, in the place of the token that was sent when it was recorded.
    Argument,
    /// By a variable. Another one, whose name ends in `_PROJECT`, has the principal's name.
    Variable(&'static str),
}

/// What the last line of a script has that came to its end.
const LAST_LINES: [&str; 4] = ["ALL PASSED", "FAILED ", "vectors passed", "steps passed"];

/// One script and how it is run.
struct Script {
    /// Below `clients` of the given material.
    file: &'static str,
    /// What its address has behind the controller's.
    below: &'static str,
    /// Principals as which it asks, each with its role, and by what the script is given its token.
    principals: &'static [(&'static str, &'static str, Given)],
    /// What stands behind the address: a path of the given material where it has a slash, else a word.
    arguments: &'static [&'static str],
    /// Variables that hold the path of a program of the environment: variable, program.
    programs: &'static [(&'static str, &'static str)],
    /// What ends the name of a step in its line.
    name_ends: &'static str,
    /// Steps that the design decides otherwise: a name, a tab, the reason.
    listed: &'static str,
}

/// Magnum's label vectors by python-magnumclient, in both of its transports.
const MAGNUM_SESSION: Script = Script {
    file: "magnum_vectors_accept.py",
    below: "",
    principals: &[],
    arguments: &["vectors/labels/label_merge.json", "--transport", "session", "-q"],
    programs: &[],
    name_ends: " ",
    listed: include_str!("../../data/magnum_listed.txt"),
};
const MAGNUM_LEGACY: Script =
    Script { arguments: &["vectors/labels/label_merge.json", "--transport", "legacy", "-q"], ..MAGNUM_SESSION };
/// Magnum's clusters, node groups and templates by the command `openstack coe`.
const MAGNUM_COMMAND: Script = Script {
    file: "magnum_osc_accept.py",
    arguments: &[],
    programs: &[("OPENSTACK_BIN", "openstack")],
    name_ends: ":",
    listed: include_str!("../../data/magnum_osc_listed.txt"),
    ..MAGNUM_SESSION
};
/// Requests that the real Magnum was sent, with what it answered.
const MAGNUM_REPLAY: Script = Script {
    file: "replay_api.py",
    arguments: &["vectors/labels/magnum_api.json"],
    programs: &[],
    name_ends: "]",
    listed: include_str!("../../data/magnum_replay_listed.txt"),
    ..MAGNUM_SESSION
};
/// The catalogue by the command `glance md-*`.
const GLANCE: Script = Script {
    file: "glance_cli_accept.py",
    arguments: &[],
    programs: &[("GLANCE_BIN", "glance")],
    name_ends: ":",
    listed: "",
    ..MAGNUM_SESSION
};
/// The catalogue by python-glanceclient, which brings all stock files and takes them away, and by openstacksdk.
const METADEFS: Script = Script {
    file: "metadef_lib_accept.py",
    principals: &[
        ("boss", "admin", Given::Variable("TOKEN")),
        ("member.p1", "viewer", Given::Variable("TOKEN_A")),
        ("member.p2", "viewer", Given::Variable("TOKEN_B")),
    ],
    arguments: &["data/metadefs"],
    programs: &[],
    listed: include_str!("../../data/metadef_sdk_listed.txt"),
    ..GLANCE
};
/// The same at the address that openstacksdk is given for its image part, without tokens, as whoever is on the machine.
const METADEFS_OF_SDK: Script = Script { below: "/v2", principals: &[], listed: "", ..METADEFS };
/// Requests that the real Glance was sent, with what it answered. Its members are who reads here.
const METADEF_REPLAY: Script = Script {
    file: "replay_api.py",
    principals: &[
        ("admin1", "admin", Given::Argument),
        ("member.p1", "viewer", Given::Argument),
        ("member.p2", "viewer", Given::Argument),
    ],
    arguments: &["vectors/labels/metadef_api.json"],
    listed: include_str!("../../data/metadef_listed.txt"),
    ..MAGNUM_REPLAY
};

/// The names of the steps that failed.
fn failures(output: &str, name_ends: &str) -> BTreeSet<String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("FAIL "));
    lines.map(|line| line.split(name_ends).next().unwrap_or(line).to_owned()).collect()
}

/// The steps that are listed, but for cases of vectors that the given file has not.
fn listed(script: &Script, arguments: &[PathBuf]) -> Result<BTreeSet<String>> {
    let lines = script.listed.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split('\t').next()).map(str::to_owned);
    let Some(vectors) = arguments.iter().find(|path| path.extension().is_some_and(|ends| ends == "json")) else {
        return Ok(names.collect());
    };
    let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(vectors)?)?;
    let Some(vectors) = vectors["vectors"].as_array() else { return Ok(names.collect()) };
    let given: BTreeSet<&str> = vectors.iter().filter_map(|vector| vector["id"].as_str()).collect();
    Ok(names.filter(|name| given.contains(name.as_str())).collect())
}

/// Runs a script against a fresh controller; its failures must be those that are listed.
fn fails_only_where_listed(script: &Script) -> Result<()> {
    let Some(file) = shared::path(&format!("clients/{}", script.file)) else { return Ok(()) };
    let mut arguments = Vec::new();
    for argument in script.arguments {
        let given = if argument.contains('/') { shared::path(argument) } else { Some(PathBuf::from(argument)) };
        let Some(given) = given else { return Ok(()) };
        arguments.push(given);
    }
    let programs = environment(env!("CARGO_TARGET_TMPDIR"), "clients", &CLIENTS)?.join("bin");
    let controller = Plain::start()?;
    let mut command = Command::new(programs.join("python"));
    for (variable, program) in script.programs {
        command.env(variable, programs.join(program));
    }
    let admin = &controller.bound.admin;
    command.arg(&file).arg(format!("{admin}{}", script.below)).args(&arguments);
    for (name, role, given) in script.principals {
        post(admin, "/v1/principals", &json!({"name": name, "role": role}))?;
        let made = post(admin, &format!("/v1/principals/{name}/tokens"), &json!({}))?;
        let token = made["token"].as_str().context("a token")?;
        match given {
            Given::Argument => command.arg("--token").arg(format!("{name}={token}")),
            Given::Variable(variable) => command.env(variable, token).env(format!("{variable}_PROJECT"), name),
        };
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (failed, listed) = (failures(&text, script.name_ends), listed(script, &arguments)?);
    let last = text.lines().next_back().unwrap_or_default();
    ensure!(LAST_LINES.iter().any(|ends| last.contains(ends)), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(failed, listed, "{} {:?}:\n{text}", script.file, script.arguments);
    controller.stop()
}

#[test]
fn magnums_vectors_by_its_client_with_a_session() -> Result<()> {
    fails_only_where_listed(&MAGNUM_SESSION)
}

#[test]
fn magnums_clusters_by_its_command() -> Result<()> {
    fails_only_where_listed(&MAGNUM_COMMAND)
}

#[test]
fn what_the_real_magnum_answered() -> Result<()> {
    fails_only_where_listed(&MAGNUM_REPLAY)
}

#[test]
fn magnums_vectors_by_its_client_of_old() -> Result<()> {
    fails_only_where_listed(&MAGNUM_LEGACY)
}

#[test]
fn the_catalogue_by_the_command_glance() -> Result<()> {
    fails_only_where_listed(&GLANCE)
}

#[test]
fn the_catalogue_by_the_libraries_of_glance_and_the_sdk() -> Result<()> {
    fails_only_where_listed(&METADEFS)
}

#[test]
fn the_catalogue_by_the_sdk_at_its_own_address() -> Result<()> {
    fails_only_where_listed(&METADEFS_OF_SDK)
}

#[test]
fn what_the_real_glance_answered() -> Result<()> {
    fails_only_where_listed(&METADEF_REPLAY)
}
