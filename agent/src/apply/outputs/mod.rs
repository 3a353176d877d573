//! What services, units and people on the host read of a desired state: `/run/stemma` and the host label map.
//!
//! Each file is replaced whole, and only when its content differs: a restart of the agent, or a desired state that
//! says the same, moves no modification time and wakes no path unit.

pub mod host_map;
pub mod text;

use std::collections::BTreeMap;
use std::io::ErrorKind;

use stemma_core::task::Mode;
use stemma_wire::message::desired::{Known, TaskSet};

use super::ledger::{Desired, Ledger};
use crate::config::Config;
use crate::host::atomic::{Attributes, ensure_dir, replace, sweep};
use crate::host::{Dir, Host, HostError, HostPath, Kind};
use crate::paths;

/// Labels and tags are for every reader on the host.
const MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// No output is larger: 64 KiB of labels, each escaped at worst twice over.
const LARGEST: u64 = 1024 * 1024;

/// What people should know of what was to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Of what is written, or is not to be.
    pub findings: Vec<String>,
    /// What is to be there and could not be written, and why.
    pub unwritten: Vec<String>,
    /// Whether something of `/run/stemma` is among that.
    pub lacks_run: bool,
}

impl Written {
    /// Nothing is written, for this reason.
    fn nothing(why: String) -> Self {
        Self { unwritten: vec![why], ..Self::default() }
    }

    /// All of it, in one list.
    #[must_use]
    pub fn into_findings(self) -> Vec<String> {
        [self.unwritten, self.findings].concat()
    }
}

/// Writes everything that follows *known* and the tags of the task set. What cannot be written is said, and
/// the rest is written all the same. `before` is the desired state that was acknowledged before this one.
pub fn write(host: &dyn Host, ledger: &Ledger, config: &Config, now: &Desired, before: Option<&Known>) -> Written {
    let mut written = match write_run(host, &now.known, &now.task_set) {
        Ok(findings) => Written { findings, ..Written::default() },
        Err(error) => Written { lacks_run: true, ..Written::nothing(format!("{}: {}", paths::RUN, error.sentence())) },
    };
    let (flows, flowed) = (host_map::flowing(&now.known), before.map(host_map::flowing));
    // Where nothing of the agent's is in the map and nothing is to come there, nothing is missing.
    let is_to_be_written = now.mode() == Mode::Apply && (!flows.is_empty() || host_map::owns_keys(ledger));
    let map = host_map::write(host, ledger, &config.host_label_map, &flows, flowed.as_ref(), now.mode());
    let map = map.unwrap_or_else(|error| Written::nothing(format!("host label map: {}", error.sentence())));
    if is_to_be_written {
        written.unwritten.extend(map.unwritten);
        written.findings.extend(map.findings);
    } else {
        written.findings.extend(map.into_findings());
    }
    written
}

/// Writes `/run/stemma`, in every mode.
///
/// # Errors
/// [`HostError`] of the first thing that cannot be written; what comes after it is written all the same.
pub fn write_run(host: &dyn Host, known: &Known, task_set: &TaskSet) -> Result<Vec<String>, HostError> {
    let dir = open_dir(host, &HostPath::own(paths::RUN))?;
    sweep(host, &*dir)?;
    let labels: BTreeMap<_, _> = known.labels.iter().map(|(key, label)| (key.as_str(), label.value.as_str())).collect();
    let annotations: BTreeMap<_, _> = known.annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let (env, mut findings) = text::env(&labels);
    let mut written = Ok(());
    for (name, text) in [
        ("labels.json", text::json(&labels)),
        ("annotations.json", text::json(&annotations)),
        ("traits", text::lines(&known.traits)),
        ("labels.env", env),
    ] {
        written = written.and(write_changed(host, &*dir, name, text.as_bytes()));
    }
    let (tags, unusable) = text::tags(&task_set.tags, &task_set.primaries);
    findings.extend(unusable);
    written.and(write_tags(host, &tags))?;
    Ok(findings)
}

/// A directory of the agent's own that every reader on the host may enter, whatever mode it was left with.
fn open_dir(host: &dyn Host, path: &HostPath) -> Result<Box<dyn Dir>, HostError> {
    let dir = ensure_dir(host, path, DIR_MODE)?;
    let stat = host.parent_of(path)?.map(|above| above.stat(path.name())).transpose()?.flatten();
    if stat.is_some_and(|stat| stat.mode != DIR_MODE) {
        dir.set_mode(DIR_MODE)?;
    }
    Ok(dir)
}

fn write_tags(host: &dyn Host, tags: &BTreeMap<String, String>) -> Result<(), HostError> {
    let path = HostPath::own("/run/stemma/tags");
    let dir = open_dir(host, &path)?;
    sweep(host, &*dir)?;
    let mut written = Ok(());
    for (tag, value) in tags {
        written = written.and(write_changed(host, &*dir, tag, value.as_bytes()));
    }
    let mut removed = false;
    for name in dir.names()? {
        if !tags.contains_key(&name) && dir.stat(&name)?.is_some_and(|stat| stat.kind != Kind::Directory) {
            match dir.remove(&name) {
                Ok(()) => removed = true,
                // Another command of the agent took it away, or put what it was making in its place.
                Err(error) if error.is(ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
    written.and(if removed { dir.sync() } else { Ok(()) })
}

/// Replaces a file of the agent's own unless it holds these bytes already. Whatever else was put in its place
/// (a link, a FIFO, a file with other rights) goes.
fn write_changed(host: &dyn Host, dir: &dyn Dir, name: &str, bytes: &[u8]) -> Result<(), HostError> {
    let plain = dir.stat(name)?.is_some_and(|stat| stat.kind == Kind::File && stat.mode == MODE && stat.links == 1);
    if plain && dir.read(name, LARGEST).is_ok_and(|present| present.as_deref() == Some(bytes)) {
        return Ok(());
    }
    replace(host, dir, name, bytes, &Attributes::mode(MODE))
}

#[cfg(test)]
mod tests;
