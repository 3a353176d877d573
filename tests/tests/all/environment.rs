//! What validations and hooks inherit from the process that started their agent, with real programs: nothing. The
//! commands of tasks are tested in the agent's crate.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{check_file_contains, eventually};

/// A hook, or a validation if it has a first argument. It writes the environment that its shell was given into a file
/// of the host. The shell blocks signals of its own while it waits, so another program reads the signal masks.
const ENVIRONMENT_SCRIPT: &str = r#"#!/bin/sh
to="$STEMMA_ROOT/${1:-hook}"
{
    umask
    tr '\0' '\n' <"/proc/$$/environ" | sort
    readlink "/proc/$$/cwd"
    grep -E '^(SigBlk|SigIgn):' /proc/self/status
} >"$to.$$"
mv "$to.$$" "$to"
"#;

/// Starts a fleet whose nodes have a file with this script as its validation.
fn fleet_with_validation() -> Result<TempFleet> {
    let fleet = TempFleet::start()?;
    let path = fleet.dir().join("found.sh");
    fs::write(&path, ENVIRONMENT_SCRIPT)?;
    let validate = json!(["/bin/sh", path, "validate", "{path}"]);
    let parameters = json!({"path": "/note", "template": "{{ labels.a }}\n", "validate": validate});
    let objects = json!([
        {
            "kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}},
            "tasks": [{"id": "note", "type": "file", "tags": ["x"], "parameters": parameters}],
        },
        {"kind": "Cluster", "name": "c", "release": "r@1", "labels": {"a": "first"}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ]);
    let file = fleet.dir().join("site.json");
    fs::write(&file, objects.to_string())?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    Ok(fleet)
}

/// Regression: the files had the group in which the agent was started, for example by `sg` or by `Group=` of its unit.
#[test]
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn y02_agent_files_have_group_of_account() -> Result<()> {
    let under = ["setpriv", "--regid", "27", "--clear-groups"];
    if !Command::new(under[0]).args(&under[1..]).arg("true").output().is_ok_and(|tried| tried.status.success()) {
        eprintln!("skipped: the user that runs the test may not change its group");
        return Ok(());
    }
    let fleet = fleet_with_validation()?;
    let mut agent = fleet.join("n1", "c/g")?;
    agent.kill()?;
    agent.start_under(&under.map(OsString::from))?;
    fleet.stemma(&["label", "node/n1", "--overwrite", "a=other"])?;
    eventually("the note", || check_file_contains(&agent.path("note"), "other"))?;
    for path in ["note", "run/stemma/labels.json", "var/lib/stemma-agent/apply/accepted"] {
        assert_eq!(fs::metadata(agent.path(path))?.gid(), 0, "{path}");
    }
    Ok(())
}

/// The expected values are those in `docs/agent.md`, for a program that is started by its path.
#[test]
fn y02_validations_and_hooks_inherit_no_environment() -> Result<()> {
    let fleet = fleet_with_validation()?;
    let mut agent = fleet.join("n1", "c/g")?;
    let root = agent.path("").canonicalize()?;
    // Another program writes the hook. A file that this process writes cannot be run while a child of another test has
    // it open.
    let installed = Command::new("install")
        .args(["-D", "-m", "0755"])
        .args([fleet.dir().join("found.sh"), root.join("etc/stemma/hooks.d/10-found")])
        .status()?;
    ensure!(installed.success(), "install: {installed}");
    let shown = root.display();
    let expected = format!(
        "0022\nHOME=/root\nLANG=C.UTF-8\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nSTEMMA_ROOT={shown}\n{shown}\n\
         SigBlk:\t0000000000000000\nSigIgn:\t0000000180000000\n"
    );
    let odd = "umask 077; trap '' HUP QUIT USR1; cd /usr; exec env --block-signal=TERM LANG=de_DE TZ=Asia/Tokyo \"$@\"";
    let odd = ["/bin/sh", "-c", odd, "sh"].map(OsString::from);
    for (label, words) in [("a=plain", &[][..]), ("a=odd", &odd[..])] {
        agent.kill()?;
        for name in ["validate", "hook"] {
            let _ = fs::remove_file(root.join(name));
        }
        agent.start_under(words)?;
        fleet.stemma(&["label", "node/n1", "--overwrite", label])?;
        for name in ["validate", "hook"] {
            let found = eventually(name, || Ok(fs::read_to_string(root.join(name))?))?;
            assert_eq!(found, expected, "{label}: {name}");
        }
        // No write of this round may be left for the next one.
        eventually("the note", || check_file_contains(&root.join("note"), &label[2..]))?;
    }
    Ok(())
}
