//! The outputs: the files in which services, units and people on the host read the desired state. These are the files
//! of `/run/stemma` and the host label map.
//!
//! Each file is replaced as a whole, and only if its content differs. So a restart of the agent, or an equal desired
//! state, changes no modification time and triggers no path unit.

pub mod host_map;
pub mod text;

use std::collections::BTreeMap;
use std::io::ErrorKind;

use stemma_core::task::Mode;
use stemma_wire::message::desired::{Known, TaskSet};

use super::ledger::{Desired, Ledger};
use crate::config::AgentConfig;
use crate::host::atomic::{Attributes, ensure_dir, replace, sweep};
use crate::host::{Dir, FileKind, Host, HostError, HostPath};
use crate::paths;

/// Mode of the files in `/run/stemma`. Every user of the host may read labels and tags.
const FILE_MODE: u32 = 0o644;
/// Mode of `/run/stemma` and its directories.
const DIR_MODE: u32 = 0o755;

/// Maximum size of an output, in bytes. 64 KiB of labels, even with each character escaped, are far below it.
const MAX_OUTPUT_BYTES: u64 = 1024 * 1024;

/// The result of writing the outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputsResult {
    /// Findings about files that were written or are not wanted.
    pub findings: Vec<String>,
    /// Wanted files that could not be written, and why.
    pub unwritten: Vec<String>,
    /// True if `unwritten` has a file of `/run/stemma`.
    pub is_run_dir_incomplete: bool,
}

impl OutputsResult {
    /// Returns the result for files of which none could be written, with the reason.
    fn none_written(why: String) -> Self {
        Self { unwritten: vec![why], ..Self::default() }
    }

    /// Returns all findings as one list.
    #[must_use]
    pub fn into_findings(self) -> Vec<String> {
        [self.unwritten, self.findings].concat()
    }
}

/// Writes `/run/stemma` and the host label map. A file that cannot be written is reported, and the others are written
/// nevertheless. `before` is the known part that this host held before `now`.
pub fn write(host: &dyn Host, ledger: &Ledger, config: &AgentConfig, now: &Desired, before: Option<&Known>) -> OutputsResult {
    let mut result = match write_run_dir(host, &now.known, &now.task_set) {
        Ok(findings) => OutputsResult { findings, ..OutputsResult::default() },
        Err(error) => OutputsResult {
            is_run_dir_incomplete: true,
            ..OutputsResult::none_written(format!("{}: {}", paths::RUN, error.sentence()))
        },
    };
    let (labels, old_labels) = (host_map::flowing_labels(&now.known), before.map(host_map::flowing_labels));
    // If the agent wants no keys in the map and owns none there, a map that cannot be written is only a finding, and
    // the write is not tried again.
    let is_wanted = now.mode() == Mode::Apply && (!labels.is_empty() || host_map::may_own_keys(ledger));
    let map = host_map::write(host, ledger, &config.host_label_map, &labels, old_labels.as_ref(), now.mode());
    let map = map.unwrap_or_else(|error| OutputsResult::none_written(format!("host label map: {}", error.sentence())));
    if is_wanted {
        result.unwritten.extend(map.unwritten);
        result.findings.extend(map.findings);
    } else {
        result.findings.extend(map.into_findings());
    }
    result
}

/// Writes `/run/stemma`, in every mode.
///
/// # Errors
/// [`HostError`] of the first file that cannot be written. The files after it are still written.
pub fn write_run_dir(host: &dyn Host, known: &Known, task_set: &TaskSet) -> Result<Vec<String>, HostError> {
    let dir = open_dir(host, &HostPath::from_static(paths::RUN))?;
    sweep(host, &*dir)?;
    let labels: BTreeMap<_, _> = known.labels.iter().map(|(key, label)| (key.as_str(), label.value.as_str())).collect();
    let annotations: BTreeMap<_, _> = known.annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let (env, mut findings) = text::env(&labels);
    let mut result = Ok(());
    for (name, text) in [
        ("labels.json", text::json(&labels)),
        ("annotations.json", text::json(&annotations)),
        ("traits", text::lines(&known.traits)),
        ("labels.env", env),
    ] {
        result = result.and(write_changed(host, &*dir, name, text.as_bytes()));
    }
    let (tags, unusable) = text::tags(&task_set.tags, &task_set.primaries);
    findings.extend(unusable);
    result.and(write_tags(host, &tags))?;
    Ok(findings)
}

/// Opens a directory of the agent that everybody on the host may enter. Corrects its mode if necessary.
fn open_dir(host: &dyn Host, path: &HostPath) -> Result<Box<dyn Dir>, HostError> {
    let dir = ensure_dir(host, path, DIR_MODE)?;
    let stat = host.parent_dir(path)?.map(|parent| parent.stat(path.name())).transpose()?.flatten();
    if stat.is_some_and(|stat| stat.mode != DIR_MODE) {
        dir.set_mode(DIR_MODE)?;
    }
    Ok(dir)
}

/// Writes one file for each tag into `/run/stemma/tags` and removes the files of other names. Goes on after a file that
/// cannot be written, and returns the first error.
fn write_tags(host: &dyn Host, tags: &BTreeMap<String, String>) -> Result<(), HostError> {
    let path = HostPath::from_static("/run/stemma/tags");
    let dir = open_dir(host, &path)?;
    sweep(host, &*dir)?;
    let mut result = Ok(());
    for (tag, value) in tags {
        result = result.and(write_changed(host, &*dir, tag, value.as_bytes()));
    }
    let mut removed = false;
    for name in dir.names()? {
        if !tags.contains_key(&name) && dir.stat(&name)?.is_some_and(|stat| stat.kind != FileKind::Directory) {
            match dir.remove(&name) {
                Ok(()) => removed = true,
                // Another command of the agent was faster: it removed the file, or renamed a temporary file.
                Err(error) if error.has_kind(ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
    result.and(if removed { dir.sync() } else { Ok(()) })
}

/// Writes a file of the agent unless it has these bytes and its mode already. Any other object at its path (a link, a
/// FIFO, a file with other rights) is replaced.
fn write_changed(host: &dyn Host, dir: &dyn Dir, name: &str, bytes: &[u8]) -> Result<(), HostError> {
    let is_plain = dir.stat(name)?.is_some_and(|stat| stat.kind == FileKind::File && stat.mode == FILE_MODE && stat.links == 1);
    if is_plain && dir.read(name, MAX_OUTPUT_BYTES).is_ok_and(|present| present.as_deref() == Some(bytes)) {
        return Ok(());
    }
    replace(host, dir, name, bytes, &Attributes::with_mode(FILE_MODE))
}

#[cfg(test)]
mod tests;
