//! Validations and hooks inherit nothing from the process that started their agent. The tests use the real programs.
//! The commands of tasks are tested in the agent's crate.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{check_file_contains, eventually};

/// Script of a hook. With an argument, it is the command `validate` of a file task. It writes its umask, environment,
/// working directory and signal masks to a file of the host: `hook`, or the name in the argument. `grep` prints its own
/// masks, because a shell blocks some signals while it waits.
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

/// Starts a fleet with a task that writes the file `/note`, and whose command `validate` is [`ENVIRONMENT_SCRIPT`].
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
#[allow(clippy::print_stderr, reason = "the output shows that the test was skipped")]
fn y02_agent_files_have_group_of_account() -> Result<()> {
    // The group 27 is any group other than that of the account (0).
    let wrapper = ["setpriv", "--regid", "27", "--clear-groups"];
    if !Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: the user that runs the test may not change its group");
        return Ok(());
    }
    let fleet = fleet_with_validation()?;
    let mut agent = fleet.join("n1", "c/g")?;
    agent.kill()?;
    agent.start_under(&wrapper.map(OsString::from))?;
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
    // The program `install` writes the hook. If this process wrote the hook, a child of another test could have the
    // file open, and the kernel would refuse to run the hook.
    let install_status = Command::new("install")
        .args(["-D", "-m", "0755"])
        .args([fleet.dir().join("found.sh"), root.join("etc/stemma/hooks.d/10-found")])
        .status()?;
    ensure!(install_status.success(), "install: {install_status}");
    let root_text = root.display();
    // The ignored signals (the bits of `SigIgn`) are 32 and 33, which the C library uses itself.
    let expected = format!(
        "0022\nHOME=/root\nLANG=C.UTF-8\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nSTEMMA_ROOT={root_text}\n{root_text}\n\
         SigBlk:\t0000000000000000\nSigIgn:\t0000000180000000\n"
    );
    // This shell starts the agent with another umask, ignored signals, a blocked signal and other variables.
    let odd_wrapper = "umask 077; trap '' HUP QUIT USR1; cd /usr; exec env --block-signal=TERM LANG=de_DE TZ=Asia/Tokyo \"$@\"";
    let odd_wrapper = ["/bin/sh", "-c", odd_wrapper, "sh"].map(OsString::from);
    for (label, wrapper) in [("a=plain", &[][..]), ("a=odd", &odd_wrapper[..])] {
        agent.kill()?;
        for name in ["validate", "hook"] {
            let _ = fs::remove_file(root.join(name));
        }
        agent.start_under(wrapper)?;
        fleet.stemma(&["label", "node/n1", "--overwrite", label])?;
        for name in ["validate", "hook"] {
            let found = eventually(name, || Ok(fs::read_to_string(root.join(name))?))?;
            assert_eq!(found, expected, "{label}: {name}");
        }
        // The round ends after its last write, so that this write does not fall into the next round.
        eventually("the note", || check_file_contains(&root.join("note"), &label[2..]))?;
    }
    Ok(())
}
