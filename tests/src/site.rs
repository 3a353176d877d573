//! The demo's manifests, and checks of the files that they write on a host, as a concurrent reader sees them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::fleet::{TempFleet, TestAgent};
use crate::program::{check_file_contains, eventually, eventually_within};

/// The directory of the demo's manifests.
pub const SITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/site");

/// Checks that the files of a frontend are complete: the labels parse, and the rendered file has its first and its last
/// line.
///
/// # Errors
/// When a file is missing or partly written.
pub fn check_files(web: &TestAgent) -> Result<()> {
    let labels = std::fs::read_to_string(web.path("run/stemma/labels.json"))?;
    let _parsed: Value = serde_json::from_str(&labels).with_context(|| format!("torn: {labels:?}"))?;
    let conf = std::fs::read_to_string(web.path("etc/nginx/conf.d/site.conf"))?;
    ensure!(conf.starts_with("# tier ") && conf.ends_with("server_tokens off;\n"), "torn: {conf:?}");
    Ok(())
}

/// Starts a controller with the demo's manifests, and the agent of a frontend. Waits until the files of the frontend
/// are complete ([`check_files`]). A task that requires these files may still run.
///
/// # Errors
/// When a program does not start, or the files are not complete in time.
pub fn fleet_with_complete_files() -> Result<(TempFleet, TestAgent)> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || check_files(&web))?;
    Ok((fleet, web))
}

/// Sets the label `tier` of the frontends, which a template reads. Returns the output of the command.
///
/// # Errors
/// When the command fails.
pub fn set_tier(fleet: &TempFleet, tier: &str) -> Result<String> {
    fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier={tier}")])
}

/// Waits until a value of `tier` has reached a frontend: its label file, and the file whose template reads the label.
///
/// # Errors
/// When the value does not arrive within `max_wait`, or a file is partly written.
pub fn wait_for_tier(max_wait: Duration, web: &TestAgent, tier: &str) -> Result<()> {
    eventually_within(max_wait, "the edit on the host", || {
        check_file_contains(&web.path("run/stemma/labels.json"), &format!("\"tier\":\"{tier}\"")).with_context(|| web.log())?;
        check_file_contains(&web.path("etc/nginx/conf.d/site.conf"), &format!("tier {tier}")).with_context(|| web.log())
    })?;
    check_files(web)
}
