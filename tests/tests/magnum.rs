//! Magnum's real client against a real controller: the label vectors through python-magnumclient, in both of its
//! transports. What the controller decides otherwise than Magnum is listed with the design's sentence, and the
//! failures must be exactly those.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use stemma_tests::fleet::Bound;
use stemma_tests::program::{Running, succeed};
use stemma_tests::shared;

/// Cases of the vectors that are decided otherwise: id, a tab, the sentence.
const LISTED: &str = include_str!("../data/magnum_listed.txt");
/// What is installed: the versions that the script was validated with.
const CLIENTS: [&str; 2] = ["python-magnumclient==5.0.0", "keystoneauth1==5.18.1"];

/// The Python of an environment with the clients, made once below `target/`.
fn python() -> Result<PathBuf> {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("magnum-client");
    let (python, done) = (venv.join("bin/python"), venv.join("installed"));
    if std::fs::read_to_string(&done).is_ok_and(|installed| installed == CLIENTS.join("\n")) {
        return Ok(python);
    }
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).output()?;
    ensure!(made.status.success(), "python3 -m venv: {}", String::from_utf8_lossy(&made.stderr));
    let installed = Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(CLIENTS).output()?;
    ensure!(installed.status.success(), "pip install: {}", String::from_utf8_lossy(&installed.stderr));
    std::fs::write(done, CLIENTS.join("\n"))?;
    Ok(python)
}

fn failures(output: &str) -> BTreeSet<String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("FAIL "));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The listed cases that the given half of the vectors has.
fn listed(vectors: &Path) -> Result<BTreeSet<String>> {
    let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(vectors)?)?;
    let ids = vectors["vectors"].as_array().context("vectors")?.iter().filter_map(|vector| vector["id"].as_str());
    let given: BTreeSet<&str> = ids.collect();
    let lines = LISTED.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split('\t').next()).filter(|name| given.contains(name));
    Ok(names.map(str::to_owned).collect())
}

#[test]
fn the_real_client_fails_only_where_it_is_listed() -> Result<()> {
    let (Some(script), Some(vectors)) =
        (shared::path("clients/magnum_vectors_accept.py"), shared::path("vectors/labels/label_merge.json"))
    else {
        return Ok(());
    };
    let python = python()?;
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let data = data.to_str().context("a temporary directory's name is text")?;
    succeed("stemma-controller", ["init", "--data-dir", data])?;
    let plain = ["run", "--data-dir", data, "--admin-listen", "http://127.0.0.1:0", "--agent-listen", "127.0.0.1:0"];
    let controller = Running::start("stemma-controller", plain)?;
    let bound: Bound = serde_json::from_str(&controller.line()?)?;
    for transport in ["session", "legacy"] {
        let mut command = Command::new(&python);
        command.arg(&script).arg(&bound.admin).arg(&vectors).args(["--transport", transport, "-q"]);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(text.contains("vectors passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(failures(&text), listed(&vectors)?, "{transport}:\n{text}");
    }
    controller.stop()
}
