//! The demo's manifests, and what a host of them looks like to whoever reads its files while they are written.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::fleet::{Agent, Fleet};
use crate::program::{eventually, eventually_within, file_contains};

/// The directory of the demo's manifests.
pub const SITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/site");

/// Whether the files of a frontend are whole: the labels parse, and the rendered file has its first and its last line.
///
/// # Errors
/// What is torn, or not there.
pub fn whole(web: &Agent) -> Result<()> {
    let labels = std::fs::read_to_string(web.path("run/stemma/labels.json"))?;
    let _whole: Value = serde_json::from_str(&labels).with_context(|| format!("torn: {labels:?}"))?;
    let conf = std::fs::read_to_string(web.path("etc/nginx/conf.d/site.conf"))?;
    ensure!(conf.starts_with("# tier ") && conf.ends_with("server_tokens off;\n"), "torn: {conf:?}");
    Ok(())
}

/// A controller with the demo's manifests, and a frontend that has converged.
///
/// # Errors
/// What does not start, or does not converge in time.
pub fn converged() -> Result<(Fleet, Agent)> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;
    Ok((fleet, web))
}

/// Edits the label `tier` of the frontends, which a template reads.
///
/// # Errors
/// The command's refusal.
pub fn edit_tier(fleet: &Fleet, tier: &str) -> Result<String> {
    fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier={tier}")])
}

/// Waits until such an edit is on a frontend: in its label files and in the file of the template that reads it.
///
/// # Errors
/// It is not there in time.
pub fn tier_arrives(deadline: Duration, web: &Agent, tier: &str) -> Result<()> {
    eventually_within(deadline, "the edit on the host", || {
        file_contains(&web.path("run/stemma/labels.json"), &format!("\"tier\":\"{tier}\""))
            .with_context(|| web.log())?;
        file_contains(&web.path("etc/nginx/conf.d/site.conf"), &format!("tier {tier}")).with_context(|| web.log())
    })?;
    whole(web)
}
