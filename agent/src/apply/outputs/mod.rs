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

/// Maximum size of an existing output file that is compared with the new content, in bytes. A larger file is replaced
/// in any case. The maximum is far above the 64 KiB of all labels, even if each character is escaped.
const MAX_COMPARED_BYTES: u64 = 1024 * 1024;

/// The result of writing the outputs: the files of `/run/stemma` and the host label map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputsResult {
    /// Sentences for people that do not concern a failed write, for example about single labels and tags. Also the
    /// errors of the host label map if it need not be written.
    pub findings: Vec<String>,
    /// Sentences about files that could not be written, each with the reason.
    pub unwritten: Vec<String>,
    /// True if `unwritten` contains a sentence about a file of `/run/stemma`.
    pub is_run_dir_incomplete: bool,
}

impl OutputsResult {
    /// Returns a result whose only entry is this reason why a file was not written.
    fn with_unwritten(why: String) -> Self {
        Self { unwritten: vec![why], ..Self::default() }
    }

    /// Returns all sentences as one list, the unwritten files first.
    #[must_use]
    pub fn into_findings(self) -> Vec<String> {
        [self.unwritten, self.findings].concat()
    }
}

/// Writes the files of `/run/stemma`, and in mode `apply` the host label map, from a desired state. If a file cannot be
/// written, reports this in the result and still writes the other files.
///
/// `old` is the known part (the labels) of the desired state that this host had before.
pub fn write(host: &dyn Host, ledger: &Ledger, config: &AgentConfig, desired: &Desired, old: Option<&Known>) -> OutputsResult {
    let mut result = match write_run_dir(host, &desired.known, &desired.task_set) {
        Ok(findings) => OutputsResult { findings, ..OutputsResult::default() },
        Err(error) => OutputsResult {
            is_run_dir_incomplete: true,
            ..OutputsResult::with_unwritten(format!("{}: {}", paths::RUN, error.sentence()))
        },
    };
    let (labels, old_labels) = (host_map::labels_for_host_map(&desired.known), old.map(host_map::labels_for_host_map));
    // If the agent has no labels for the map and owns no keys in it, a failed write of the map is only a finding. The
    // caller then does not try again.
    let must_write_map = desired.mode() == Mode::Apply && (!labels.is_empty() || host_map::may_own_keys(ledger));
    let map = host_map::write(host, ledger, &config.host_label_map, &labels, old_labels.as_ref(), desired.mode());
    let map = map.unwrap_or_else(|error| OutputsResult::with_unwritten(format!("host label map: {}", error.sentence())));
    if must_write_map {
        result.unwritten.extend(map.unwritten);
        result.findings.extend(map.findings);
    } else {
        result.findings.extend(map.into_findings());
    }
    result
}

/// Writes the files of `/run/stemma`, whatever the mode of the host is. Returns sentences about labels and tags that
/// cannot be in these files.
///
/// # Errors
/// [`HostError`] of the first file that cannot be written. The files after it are still written. If the directory
/// cannot be opened or swept, no file is written.
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
    let (tags, tag_findings) = text::tags(&task_set.tags, &task_set.primaries);
    findings.extend(tag_findings);
    result.and(write_tags(host, &tags))?;
    Ok(findings)
}

/// Opens a directory of the agent, or creates it. Sets its mode to [`DIR_MODE`], so that everybody on the host may
/// enter it.
fn open_dir(host: &dyn Host, path: &HostPath) -> Result<Box<dyn Dir>, HostError> {
    let dir = ensure_dir(host, path, DIR_MODE)?;
    if host.stat(path)?.is_some_and(|stat| stat.mode != DIR_MODE) {
        dir.set_mode(DIR_MODE)?;
    }
    Ok(dir)
}

/// Writes the files of `/run/stemma/tags` (contents by file name), and removes all other files there. If a file cannot
/// be written, still writes the others, and then returns the first error.
fn write_tags(host: &dyn Host, tags: &BTreeMap<String, String>) -> Result<(), HostError> {
    let path = HostPath::from_static("/run/stemma/tags");
    let dir = open_dir(host, &path)?;
    sweep(host, &*dir)?;
    let mut result = Ok(());
    for (tag, value) in tags {
        result = result.and(write_changed(host, &*dir, tag, value.as_bytes()));
    }
    let mut has_removed = false;
    for name in dir.names()? {
        if !tags.contains_key(&name) && dir.stat(&name)?.is_some_and(|stat| stat.kind != FileKind::Directory) {
            match dir.remove(&name) {
                Ok(()) => has_removed = true,
                // Another command of the agent has removed the file, or renamed this temporary file.
                Err(error) if error.has_kind(ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
    result.and(if has_removed { dir.sync() } else { Ok(()) })
}

/// Writes a file of the agent, unless the file has these bytes and the mode [`FILE_MODE`] already. Replaces any other
/// object with this name, such as a link, a FIFO, or a file with another mode. Fails if a directory has the name.
fn write_changed(host: &dyn Host, dir: &dyn Dir, name: &str, bytes: &[u8]) -> Result<(), HostError> {
    let is_regular = dir.stat(name)?.is_some_and(|stat| stat.kind == FileKind::File && stat.mode == FILE_MODE && stat.links == 1);
    if is_regular && dir.read(name, MAX_COMPARED_BYTES).is_ok_and(|current_bytes| current_bytes.as_deref() == Some(bytes)) {
        return Ok(());
    }
    replace(host, dir, name, bytes, &Attributes::with_mode(FILE_MODE))
}

#[cfg(test)]
mod tests;
