//! How restricted the systemd units are, as systemd scores them without running them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::tool::is_available;

/// Maximum exposure of each unit, in tenths. The agent has no limit, because it is root and runs what tasks contain.
const MAX_EXPOSURE: [(&str, u32); 3] =
    [("stemma-controller.service", 10), ("stemma-labels.service", 45), ("stemma-extension@.service", 20)];

#[test]
fn unit_exposure_is_within_documented_limit() -> Result<()> {
    if !is_available("systemd-analyze", &["security", "--help"]) {
        return Ok(());
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
    for (unit, most) in MAX_EXPOSURE {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--no-pager", "--offline=true", &format!("--threshold={most}")]).arg(units.join(unit));
        let output = command.output()?;
        ensure!(output.status.success(), "{unit}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
