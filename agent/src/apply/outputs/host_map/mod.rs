//! The host label map: a file that other programs and people write too.
//!
//! The agent owns only the keys that it wrote, and records these keys in its ledger. So it can remove exactly its own
//! keys. It never changes or removes a key of another author, even if the value is the one that the agent would write.

mod file;

use std::collections::BTreeMap;

use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::task::Mode;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::ReportedLabel;

use super::OutputsResult;
use crate::apply::ledger::{HOST_MAP, HostMapRecord, Ledger};
use crate::config::{HostLabelMapConfig, LabelMapFormat};
use crate::host::atomic::{Attributes, ensure_dir, replace, sweep_where};
use crate::host::{FileDetails, FileKind, Host, HostError, HostPath};

use file::MapFile;

/// Maximum size, in bytes, of a host label map (a file of labels) that the agent reads. Reading a larger map fails.
const MAX_MAP_BYTES: u64 = 1024 * 1024;

/// Maximum number of labels of other authors in the host label map that the agent reports to the controller.
const MAX_FOREIGN_LABELS: usize = 256;

/// The planned change of a host label map. [`plan`] computes it from the current text of the map, the keys that the
/// agent owns, and the labels to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPlan {
    /// The new text of the map, or `None` if the text does not change.
    pub text: Option<String>,
    /// The keys that the agent owns after the change, with the values that it writes.
    pub owned: BTreeMap<String, String>,
    /// The keys that the agent owns in the current text of the map, with their current values.
    pub owned_before: BTreeMap<String, String>,
    /// Sentences about labels that the agent does not write, because another author gave the key another value.
    pub findings: Vec<String>,
}

/// The error for a host label map that is not a valid file of its format. Only the format JSON has this error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host label map is not a valid {format} file ({why}): the agent does not change it; correct or remove it")]
pub struct MapUnreadable {
    format: &'static str,
    why: String,
}

/// Plans the change of a host label map so that it contains `labels`. `current_text` is the text of the map, or `None`
/// if the file does not exist. `record` has the keys that the agent wrote earlier.
///
/// The agent owns a recorded key if the key has the value that the agent wrote, or if somebody removed the key. If
/// another author gave the key another value, that author owns it. The agent changes and removes only its own keys.
///
/// # Errors
/// [`MapUnreadable`] if the current text does not have the format. The caller must then write nothing.
pub fn plan(
    format: LabelMapFormat,
    current_text: Option<&str>,
    record: &HostMapRecord,
    labels: &BTreeMap<String, String>,
) -> Result<MapPlan, MapUnreadable> {
    let mut file = MapFile::parse(format, current_text.unwrap_or(""))?;
    let keys = record.owned.keys().chain(record.writing.keys());
    let keys = keys.filter_map(|key| Some((key, file.get(key)?))).filter(|(key, value)| is_owned(record, key, Some(value)));
    let current_values = keys.map(|(key, value)| (key.clone(), value.to_owned())).collect();
    let mut plan = MapPlan { text: None, owned: BTreeMap::new(), owned_before: current_values, findings: Vec::new() };
    for (key, value) in labels {
        match (is_owned(record, key, file.get(key)), file.get(key)) {
            (false, Some(other)) if other == value => {
                // Another author wrote the same value and owns the line. So the agent never removes it.
            }
            (false, Some(other)) => {
                plan.findings.push(format!("host label {key}: another author has {other:?} there, so {value:?} is not written"));
            }
            (true, _) | (false, None) => {
                file.set(key, value);
                plan.owned.insert(key.clone(), value.clone());
            }
        }
    }
    let unwanted_keys = record.owned.keys().chain(record.writing.keys()).filter(|key| !labels.contains_key(*key));
    for key in unwanted_keys {
        if is_owned(record, key, file.get(key)) {
            file.remove(key);
        }
    }
    let text = file.into_text();
    plan.text = (text != current_text.unwrap_or("")).then_some(text);
    Ok(plan)
}

/// Returns whether the agent owns a key with this current value (`None` if the map does not contain the key).
///
/// The agent owns a key that is in its record if the recorded value is the current value, or if the map does not
/// contain the key. The record also contains values that the agent was about to write when it crashed.
fn is_owned(record: &HostMapRecord, key: &str, current_value: Option<&str>) -> bool {
    [&record.owned, &record.writing]
        .into_iter()
        .filter_map(|keys| keys.get(key))
        .any(|value| current_value.is_none_or(|current_value| current_value == value))
}

/// Returns the keys that the agent claims as its own after it lost its record. These are the keys that have the same
/// value in the map and in `previous_labels`, the labels of the previous desired state. The agent most likely wrote
/// them.
fn claim_previous_labels(
    format: LabelMapFormat,
    current_text: Option<&str>,
    previous_labels: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let Ok(file) = MapFile::parse(format, current_text.unwrap_or("")) else { return BTreeMap::new() };
    let matching_labels = previous_labels.iter().filter(|&(key, value)| file.get(key) == Some(value.as_str()));
    matching_labels.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the labels that the agent writes into the host label map: those for which the controller set `to_host`.
#[must_use]
pub fn labels_for_host_map(known: &Known) -> BTreeMap<String, String> {
    let host_labels = known.labels.iter().filter(|(key, label)| label.to_host && is_plain(key, &label.value));
    host_labels.map(|(key, label)| (key.clone(), label.value.clone())).collect()
}

/// Returns whether key and value have only characters of Kubernetes labels. The controller sends only such labels. The
/// agent checks this again, because a line end in a value would add another key to the map.
fn is_plain(key: &str, value: &str) -> bool {
    let valid = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/'));
    !key.is_empty() && valid(key) && valid(value)
}

/// Returns whether the agent may own keys in the host label map: its record contains keys, or the host cannot read the
/// file of the record. A damaged record counts as a record without keys.
#[must_use]
pub fn may_own_keys(ledger: &Ledger) -> bool {
    let Ok(record) = ledger.get(&HOST_MAP) else { return true };
    record.is_some_and(|record| !record.owned.is_empty() || !record.writing.is_empty())
}

/// Writes `labels` into the host label map in mode `apply`, and removes the other keys of the agent from it. If the
/// configuration names another file than the record, first removes the agent's keys from the old file. In mode `noop`,
/// only reports whether the map would change. In mode `observe`, only reports a map that cannot be parsed.
///
/// `previous_labels` are the labels of the previous desired state. If the agent lost its record of owned keys, these
/// labels show which keys it probably wrote.
///
/// # Errors
/// [`HostError`].
pub fn write(
    host: &dyn Host,
    ledger: &Ledger,
    config: &HostLabelMapConfig,
    labels: &BTreeMap<String, String>,
    previous_labels: Option<&BTreeMap<String, String>>,
    mode: Mode,
) -> Result<OutputsResult, HostError> {
    let path = HostPath::parse(&config.path).expect("the configuration was checked when it was read");
    let mut findings = match ledger.get(&HOST_MAP)? {
        Some(old) if old.path != config.path && mode == Mode::Apply => withdraw(host, ledger, &old, &config.path)?,
        _ => Vec::new(),
    };
    let Ok(current_text) = read(host, &path)?.map(String::from_utf8).transpose() else {
        let unwritten = vec![format!("host label map {path} is not UTF-8 text and is left unchanged; correct or remove it")];
        return Ok(OutputsResult { findings, unwritten, ..OutputsResult::default() });
    };
    let record = load_record(ledger, config, current_text.as_deref(), previous_labels)?;
    let plan = match plan(config.format, current_text.as_deref(), &record, labels) {
        Ok(plan) => plan,
        Err(unreadable) => {
            return Ok(OutputsResult { findings, unwritten: vec![format!("{path}: {unreadable}")], ..OutputsResult::default() });
        }
    };
    match mode {
        Mode::Observe => {}
        Mode::Noop => {
            let noop_finding = plan.text.is_some().then(|| format!("noop: host label map {path} would be changed"));
            findings.extend(plan.findings.into_iter().chain(noop_finding));
        }
        Mode::Apply => {
            findings.extend(sweep_map_dir(host, &path).err().map(|error| format!("{path}: {}", error.sentence())));
            apply_plan(host, ledger, &path, &plan, record)?;
            findings.extend(plan.findings);
        }
    }
    Ok(OutputsResult { findings, ..OutputsResult::default() })
}

/// Removes the unfinished files of a killed agent from the directory of the host label map. Removes only files of root
/// and of the agent's user, because other users may be able to write the directory.
fn sweep_map_dir(host: &dyn Host, path: &HostPath) -> Result<(), HostError> {
    let Some(dir) = host.parent_dir(path)? else { return Ok(()) };
    let agent_user = host.user_and_group().0;
    sweep_where(host, &*dir, &|stat| stat.user == agent_user || stat.user == 0)
}

/// Returns the bytes of a host label map, or `None` if the file does not exist.
fn read(host: &dyn Host, path: &HostPath) -> Result<Option<Vec<u8>>, HostError> {
    Ok(host.parent_dir(path)?.map(|dir| dir.read(path.name(), MAX_MAP_BYTES)).transpose()?.flatten())
}

/// Removes the agent's keys from the map of the record `old`, because the configuration now names another file, or the host
/// leaves its fleet. Then stores an empty record for the map at `new`. Returns a finding if the old file is no longer
/// readable as a map. That file stays unchanged.
///
/// # Errors
/// [`HostError`].
pub fn withdraw(host: &dyn Host, ledger: &Ledger, old: &HostMapRecord, new: &str) -> Result<Vec<String>, HostError> {
    let mut findings = Vec::new();
    match HostPath::parse(&old.path).map(|path| (read(host, &path), path)) {
        Ok((Ok(Some(bytes)), path)) => match remove_owned(&String::from_utf8_lossy(&bytes), old) {
            // Bytes that are not valid UTF-8 could not be written back unchanged.
            Ok(Some(text)) if std::str::from_utf8(&bytes).is_ok() => write_map(host, &path, &text)?,
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => {
                findings.push(format!("{path}: no longer a host label map; the agent's keys in it are left"));
            }
        },
        Ok((Err(error), path)) if error.is_about_file() => {
            findings.push(format!("{path}: {}; the agent's keys in it are left", error.sentence()));
        }
        Ok((Err(error), _)) => return Err(error),
        // The old file no longer exists, or its recorded path is not valid. So there are no keys to remove.
        Ok((Ok(None), _)) | Err(_) => {}
    }
    let (owned, writing) = (BTreeMap::new(), BTreeMap::new());
    ledger.put(&HOST_MAP, &HostMapRecord { path: new.into(), owned, writing })?;
    Ok(findings)
}

/// Returns the text of a map without the agent's keys, or `None` if the text does not change.
///
/// The record does not contain the format, so this guesses it: a text that begins with `{` is JSON. The two other
/// formats consist of lines, and the agent writes the same lines in both of them.
fn remove_owned(text: &str, record: &HostMapRecord) -> Result<Option<String>, MapUnreadable> {
    let format = if text.trim_start().starts_with('{') { LabelMapFormat::Json } else { LabelMapFormat::Env };
    Ok(plan(format, Some(text), record, &BTreeMap::new())?.text)
}

/// Replaces the text of a map, or creates the file and its directories. The owner, the mode and the extended attributes
/// of an existing map stay.
fn write_map(host: &dyn Host, path: &HostPath, text: &str) -> Result<(), HostError> {
    let dir = match path.parent() {
        Some(parent) => ensure_dir(host, &parent, 0o755)?,
        None => host.root()?,
    };
    dir.check_replaceable(path.name())?;
    let attributes = match dir.details(path.name())? {
        Some(FileDetails { stat, extras }) => Attributes::from_stat(&stat, Some(extras?)),
        None => Attributes::with_mode(0o644),
    };
    replace(host, &*dir, path.name(), text.as_bytes(), &attributes)
}

/// The labels of other authors (programs and people) in the host label map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignLabels {
    /// The labels by key.
    pub labels: BTreeMap<String, ReportedLabel>,
    /// A sentence about labels that the agent does not report, with the reason.
    pub finding: Option<String>,
}

/// Returns the labels that other authors wrote into the host label map, for the report to the controller. Ignores
/// entries that are not valid labels. If there are more than `MAX_FOREIGN_LABELS`, returns the first by key, and a
/// finding. If a user without the agent's rights can write the map, returns a finding and no labels (S37).
///
/// # Errors
/// [`HostError`].
pub fn foreign_labels(host: &dyn Host, ledger: &Ledger, config: &HostLabelMapConfig) -> Result<ForeignLabels, HostError> {
    let path = HostPath::parse(&config.path).expect("the configuration was checked when it was read");
    let Some(dir) = host.parent_dir(&path)? else { return Ok(ForeignLabels::default()) };
    let agent_user = host.user_and_group().0;
    let Some(stat) = dir.stat(path.name())? else { return Ok(ForeignLabels::default()) };
    if stat.is_open_to_others(agent_user) {
        let finding = format!(
            "host label map {path} can be written by others, so labels of others in it are not reported: chmod go-w, chown root"
        );
        // If the map is not a regular file, the write of the map fails and reports it. So no finding is added here.
        let finding = (stat.kind == FileKind::File).then_some(finding);
        return Ok(ForeignLabels { finding, ..ForeignLabels::default() });
    }
    let text = dir.read(path.name(), MAX_MAP_BYTES)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(file) = text.and_then(|text| MapFile::parse(config.format, &text).ok()) else {
        return Ok(ForeignLabels::default());
    };
    let record = ledger.get(&HOST_MAP)?.filter(|record| record.path == config.path).unwrap_or_default();
    let is_agent_key = |key: &str| record.owned.contains_key(key) || record.writing.contains_key(key);
    let is_label = |key: &str, value: &str| LabelKey::new(key).is_ok() && LabelValue::new(value).is_ok();
    let pairs = file.pairs().into_iter();
    let foreign_pairs: Vec<_> = pairs.filter(|(key, value)| !is_agent_key(key) && is_label(key, value)).collect();
    let label = |value: &str| ReportedLabel { value: value.into(), source: path.name().into() };
    let surplus = foreign_pairs.len().saturating_sub(MAX_FOREIGN_LABELS);
    let finding = (surplus > 0).then(|| {
        format!("host label map {path}: {surplus} labels of others are not reported: at most {MAX_FOREIGN_LABELS} are, the first by key")
    });
    let foreign_pairs = foreign_pairs.into_iter().take(MAX_FOREIGN_LABELS);
    Ok(ForeignLabels { labels: foreign_pairs.map(|(key, value)| (key.to_owned(), label(value))).collect(), finding })
}

/// Writes the map according to a plan, and records the owned keys before and after.
///
/// The first record contains the keys that are in the map now and the keys that the plan writes. So a crash before the
/// second record leaves no key of the agent outside the record.
///
/// `record.writing` is not empty if an earlier call was interrupted. Then the directory of the map is synced first.
/// Otherwise a power cut could restore an older text of the map, which the new record does not describe.
fn apply_plan(host: &dyn Host, ledger: &Ledger, path: &HostPath, plan: &MapPlan, record: HostMapRecord) -> Result<(), HostError> {
    if !record.writing.is_empty()
        && let Some(dir) = host.parent_dir(path)?
    {
        dir.sync()?;
    }
    if let Some(text) = &plan.text {
        let (owned, writing) = (plan.owned_before.clone(), plan.owned.clone());
        ledger.put(&HOST_MAP, &HostMapRecord { owned, writing, ..record })?;
        write_map(host, path, text)?;
    }
    let writing = BTreeMap::new();
    ledger.put(&HOST_MAP, &HostMapRecord { path: path.to_string(), owned: plan.owned.clone(), writing })
}

/// Returns the record of the keys that the agent owns in the configured map. If the stored record is of another map,
/// returns an empty record.
///
/// If no record is stored, returns one with the keys that [`claim_previous_labels`] finds. Without a previous desired
/// state the agent has written no keys yet. Then this stores an empty record, so that the agent claims no keys later.
fn load_record(
    ledger: &Ledger,
    config: &HostLabelMapConfig,
    current_text: Option<&str>,
    previous_labels: Option<&BTreeMap<String, String>>,
) -> Result<HostMapRecord, HostError> {
    let new_record = |owned| HostMapRecord { path: config.path.clone(), owned, writing: BTreeMap::new() };
    match (ledger.get(&HOST_MAP)?, previous_labels) {
        (Some(record), _) if record.path == config.path => Ok(record),
        (Some(_), _) => Ok(new_record(BTreeMap::new())),
        (None, Some(previous_labels)) => Ok(new_record(claim_previous_labels(config.format, current_text, previous_labels))),
        (None, None) => {
            let record = new_record(BTreeMap::new());
            ledger.put(&HOST_MAP, &record)?;
            Ok(record)
        }
    }
}

#[cfg(test)]
mod tests;
