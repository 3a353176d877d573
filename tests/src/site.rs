//! The demo's manifests, and what a host of them looks like to whoever reads its files while they are written.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::fleet::Agent;

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
