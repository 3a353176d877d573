//! How closed the units are, as systemd scores them without running them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use stemma_tests::tool::is_there;

/// The most that each may be exposed, in tenths. The agent is root and runs what tasks say: it has no figure.
const MOST: [(&str, u32); 3] =
    [("stemma-controller.service", 10), ("stemma-labels.service", 45), ("stemma-extension@.service", 20)];

#[test]
fn no_unit_is_more_exposed_than_is_said() -> Result<()> {
    if !is_there("systemd-analyze", &["security", "--help"]) {
        return Ok(());
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
    for (unit, most) in MOST {
        let mut command = Command::new("systemd-analyze");
        command
            .args(["security", "--no-pager", "--offline=true", &format!("--threshold={most}")])
            .arg(units.join(unit));
        let output = command.output()?;
        ensure!(output.status.success(), "{unit}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
