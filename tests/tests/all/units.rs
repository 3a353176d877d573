//! The restrictions of the systemd units, as `systemd-analyze security` rates them without running them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::tool::is_available;

/// Maximum exposure of each unit, in tenths of the score of `systemd-analyze security`. docs/systemd.md gives the reason
/// for each open point of the agent, which writes files of every user as root.
const MAX_EXPOSURE: [(&str, u32); 5] = [
    ("stemma-agent.service", 40),
    ("stemma-controller.service", 10),
    ("stemma-controller-init.service", 20),
    ("stemma-labels.service", 15),
    ("stemma-extension@.service", 20),
];

#[test]
fn unit_exposure_is_within_limit() -> Result<()> {
    if !is_available("systemd-analyze", &["security", "--help"]) {
        return Ok(());
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
    for (unit, max_exposure) in MAX_EXPOSURE {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--no-pager", "--offline=true", &format!("--threshold={max_exposure}")]).arg(units.join(unit));
        let output = command.output()?;
        ensure!(output.status.success(), "{unit}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
