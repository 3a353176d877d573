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

/// Maximum size of a map that is read, in bytes.
const MAX_MAP_BYTES: u64 = 1024 * 1024;

/// Maximum number of other authors' keys that are reported.
const MAX_FOREIGN_LABELS: usize = 256;

/// The planned change of a map: computed from the present text, the owned keys and the wanted keys, without side
/// effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPlan {
    /// The new text, or `None` if it equals the present one.
    pub text: Option<String>,
    /// The keys that the agent owns after the change, with the values that it then has written.
    pub owned: BTreeMap<String, String>,
    /// The keys of the present text that the agent owns, with their present values.
    pub present: BTreeMap<String, String>,
    /// Sentences about labels that are not written, because another author owns the key.
    pub findings: Vec<String>,
}

/// The map is not a valid file of its format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host label map is not a valid {format} file ({why}): it is left as it is; correct or remove it")]
pub struct MapUnreadable {
    format: &'static str,
    why: String,
}

/// Plans the change of a map.
///
/// The author who last changed a key owns it. So the agent owns a key while it has the value that the agent wrote, and
/// also after somebody else removed the key. If somebody gives the key another value, that author owns it from then on.
///
/// # Errors
/// [`MapUnreadable`] if the present text is not of the format. Then nothing may be written.
pub fn plan(
    format: LabelMapFormat,
    present: Option<&str>,
    record: &HostMapRecord,
    wanted: &BTreeMap<String, String>,
) -> Result<MapPlan, MapUnreadable> {
    let mut file = MapFile::parse(format, present.unwrap_or(""))?;
    let keys = record.owned.keys().chain(record.writing.keys());
    let keys = keys.filter_map(|key| Some((key, file.get(key)?))).filter(|(key, value)| is_owned(record, key, Some(value)));
    let found = keys.map(|(key, there)| (key.clone(), there.to_owned())).collect();
    let mut next = MapPlan { text: None, owned: BTreeMap::new(), present: found, findings: Vec::new() };
    for (key, value) in wanted {
        match (is_owned(record, key, file.get(key)), file.get(key)) {
            (false, Some(theirs)) if theirs == value => {
                // Two authors agree. The line belongs to the other one, and stays when the agent no longer wants it.
            }
            (false, Some(theirs)) => {
                next.findings.push(format!("host label {key}: another author has {theirs:?} there, so {value:?} is not written"));
            }
            (true, _) | (false, None) => {
                file.set(key, value);
                next.owned.insert(key.clone(), value.clone());
            }
        }
    }
    let unwanted_keys = record.owned.keys().chain(record.writing.keys()).filter(|key| !wanted.contains_key(*key));
    for key in unwanted_keys {
        if is_owned(record, key, file.get(key)) {
            file.remove(key);
        }
    }
    let text = file.into_text();
    next.text = (text != present.unwrap_or("")).then_some(text);
    Ok(next)
}

/// Returns whether the agent owns a key with this present value: it wrote, or was about to write, that value, or it
/// wrote the key and somebody removed it.
fn is_owned(record: &HostMapRecord, key: &str, present: Option<&str>) -> bool {
    [&record.owned, &record.writing]
        .into_iter()
        .filter_map(|keys| keys.get(key))
        .any(|value| present.is_none_or(|present| present == value))
}

/// Returns the keys that the agent takes as its own after its record was lost: those that have the value of the last
/// acknowledged desired state, which the agent most likely wrote.
fn claim_acknowledged(
    format: LabelMapFormat,
    present: Option<&str>,
    acknowledged: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let Ok(file) = MapFile::parse(format, present.unwrap_or("")) else { return BTreeMap::new() };
    let equal = acknowledged.iter().filter(|&(key, value)| file.get(key) == Some(value.as_str()));
    equal.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the labels to write into the host label map: the labels that are marked `to_host`.
#[must_use]
pub fn flowing_labels(known: &Known) -> BTreeMap<String, String> {
    let flows = known.labels.iter().filter(|(key, label)| label.to_host && is_plain(key, &label.value));
    flows.map(|(key, label)| (key.clone(), label.value.clone())).collect()
}

/// Returns whether key and value have only characters of Kubernetes labels. The controller sends only such labels. They
/// are checked again here, because a line end in a value would start another key of the map.
fn is_plain(key: &str, value: &str) -> bool {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/'));
    !key.is_empty() && plain(key) && plain(value)
}

/// Returns whether the agent may own keys in the map: its record has some, or the record cannot be read.
#[must_use]
pub fn may_own_keys(ledger: &Ledger) -> bool {
    let Ok(record) = ledger.get(&HOST_MAP) else { return true };
    record.is_some_and(|record| !record.owned.is_empty() || !record.writing.is_empty())
}

/// Writes the wanted labels into the map in mode `apply`. In mode `noop`, only reports what would change.
/// `acknowledged` has the labels of the last desired state. If the agent's record was lost, they tell which keys it
/// owns.
///
/// # Errors
/// [`HostError`].
pub fn write(
    host: &dyn Host,
    ledger: &Ledger,
    config: &HostLabelMapConfig,
    wanted: &BTreeMap<String, String>,
    acknowledged: Option<&BTreeMap<String, String>>,
    mode: Mode,
) -> Result<OutputsResult, HostError> {
    let path = HostPath::parse(&config.path).expect("the configuration was checked when it was read");
    let mut findings = match ledger.get(&HOST_MAP)? {
        Some(old) if old.path != config.path && mode == Mode::Apply => withdraw_from_old_map(host, ledger, &old, &config.path)?,
        _ => Vec::new(),
    };
    let Ok(present) = read(host, &path)?.map(String::from_utf8).transpose() else {
        let unwritten = vec![format!("host label map {path} is not UTF-8 text and is left unchanged; correct or remove it")];
        return Ok(OutputsResult { findings, unwritten, ..OutputsResult::default() });
    };
    let record = load_record(ledger, config, present.as_deref(), acknowledged)?;
    let plan = match plan(config.format, present.as_deref(), &record, wanted) {
        Ok(plan) => plan,
        Err(unreadable) => {
            return Ok(OutputsResult { findings, unwritten: vec![format!("{path}: {unreadable}")], ..OutputsResult::default() });
        }
    };
    match mode {
        Mode::Observe => {}
        Mode::Noop => {
            let would = plan.text.is_some().then(|| format!("noop: host label map {path} would be changed"));
            findings.extend(plan.findings.into_iter().chain(would));
        }
        Mode::Apply => {
            findings.extend(sweep_map_dir(host, &path).err().map(|error| format!("{path}: {}", error.sentence())));
            apply_plan(host, ledger, &path, &plan, record)?;
            findings.extend(plan.findings);
        }
    }
    Ok(OutputsResult { findings, ..OutputsResult::default() })
}

/// Removes unfinished files that a killed agent left next to the map.
fn sweep_map_dir(host: &dyn Host, path: &HostPath) -> Result<(), HostError> {
    let Some(dir) = host.parent_dir(path)? else { return Ok(()) };
    let own = host.user_and_group().0;
    sweep_where(host, &*dir, &|stat| stat.user == own || stat.user == 0)
}

/// Returns the bytes of a map, or `None` if it does not exist.
fn read(host: &dyn Host, path: &HostPath) -> Result<Option<Vec<u8>>, HostError> {
    Ok(host.parent_dir(path)?.map(|dir| dir.read(path.name(), MAX_MAP_BYTES)).transpose()?.flatten())
}

/// Removes the agent's keys from the old map after the configuration names another file, and then begins an empty
/// record for the new map. If the old file can no longer be read as a map, reports this and leaves the file unchanged.
fn withdraw_from_old_map(host: &dyn Host, ledger: &Ledger, old: &HostMapRecord, next: &str) -> Result<Vec<String>, HostError> {
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
        // The file is gone, and its keys with it.
        Ok((Ok(None), _)) | Err(_) => {}
    }
    let (owned, writing) = (BTreeMap::new(), BTreeMap::new());
    ledger.put(&HOST_MAP, &HostMapRecord { path: next.into(), owned, writing })?;
    Ok(findings)
}

/// Returns the text of a map without the agent's keys, or `None` if it contains none of them. The format is guessed
/// from the text, because the record does not contain it: a text that is not JSON consists of lines, and the two other
/// formats have the same lines for the agent's keys.
fn remove_owned(text: &str, record: &HostMapRecord) -> Result<Option<String>, MapUnreadable> {
    let format = if text.trim_start().starts_with('{') { LabelMapFormat::Json } else { LabelMapFormat::Env };
    Ok(plan(format, Some(text), record, &BTreeMap::new())?.text)
}

/// Replaces a map, or creates it with its directories. An existing map keeps its owner, mode and extras.
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

/// The labels of other authors in the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignLabels {
    /// The labels by key.
    pub labels: BTreeMap<String, ReportedLabel>,
    /// A sentence about labels that are not reported, and why.
    pub finding: Option<String>,
}

/// Returns the other authors' labels in the map, as this host reports them. Entries that are not valid labels are
/// ignored. If somebody without the agent's rights can write the map, no label is reported, only a finding (S37).
///
/// # Errors
/// [`HostError`].
pub fn foreign_labels(host: &dyn Host, ledger: &Ledger, config: &HostLabelMapConfig) -> Result<ForeignLabels, HostError> {
    let path = HostPath::parse(&config.path).expect("the configuration was checked when it was read");
    let Some(dir) = host.parent_dir(&path)? else { return Ok(ForeignLabels::default()) };
    let own = host.user_and_group().0;
    let Some(stat) = dir.stat(path.name())? else { return Ok(ForeignLabels::default()) };
    if stat.is_open_to_others(own) {
        let finding = format!(
            "host label map {path} can be written by others, so labels of others in it are not reported: chmod go-w, chown root"
        );
        // A map that is not a file is reported where the map is written.
        let finding = (stat.kind == FileKind::File).then_some(finding);
        return Ok(ForeignLabels { finding, ..ForeignLabels::default() });
    }
    let text = dir.read(path.name(), MAX_MAP_BYTES)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(file) = text.and_then(|text| MapFile::parse(config.format, &text).ok()) else {
        return Ok(ForeignLabels::default());
    };
    let record = ledger.get(&HOST_MAP)?.filter(|record| record.path == config.path).unwrap_or_default();
    let is_ours = |key: &str| record.owned.contains_key(key) || record.writing.contains_key(key);
    let is_label = |key: &str, value: &str| LabelKey::new(key).is_ok() && LabelValue::new(value).is_ok();
    let pairs = file.pairs().into_iter();
    let theirs: Vec<_> = pairs.filter(|(key, value)| !is_ours(key) && is_label(key, value)).collect();
    let label = |value: &str| ReportedLabel { value: value.into(), source: path.name().into() };
    let surplus = theirs.len().saturating_sub(MAX_FOREIGN_LABELS);
    let finding = (surplus > 0).then(|| {
        format!("host label map {path}: {surplus} labels of others are not reported: at most {MAX_FOREIGN_LABELS} are, the first by key")
    });
    let theirs = theirs.into_iter().take(MAX_FOREIGN_LABELS);
    Ok(ForeignLabels { labels: theirs.map(|(key, value)| (key.to_owned(), label(value))).collect(), finding })
}

/// Writes the record of owned keys, then the map, then the record again. So a key is in the record before the agent
/// writes it into the map, and until the agent has removed it from the map, and a crash in between leaves no key
/// without an owner. If an earlier crash interrupted this, the values found in the map are recorded, so that a second
/// crash loses none of them. Then the map is also synced before the record is written: otherwise a power cut could
/// restore a text of the map that the record no longer describes.
fn apply_plan(host: &dyn Host, ledger: &Ledger, path: &HostPath, plan: &MapPlan, before: HostMapRecord) -> Result<(), HostError> {
    if !before.writing.is_empty()
        && let Some(dir) = host.parent_dir(path)?
    {
        dir.sync()?;
    }
    if let Some(text) = &plan.text {
        let (owned, writing) = (plan.present.clone(), plan.owned.clone());
        ledger.put(&HOST_MAP, &HostMapRecord { owned, writing, ..before })?;
        write_map(host, path, text)?;
    }
    let writing = BTreeMap::new();
    ledger.put(&HOST_MAP, &HostMapRecord { path: path.to_string(), owned: plan.owned.clone(), writing })
}

/// Returns the record of the keys that the agent owns in this map. A record of another map counts
/// as empty. If there is no record, because it was lost or never written, returns one with the keys that
/// [`claim_acknowledged`] finds.
fn load_record(
    ledger: &Ledger,
    config: &HostLabelMapConfig,
    present: Option<&str>,
    acknowledged: Option<&BTreeMap<String, String>>,
) -> Result<HostMapRecord, HostError> {
    let fresh = |owned| HostMapRecord { path: config.path.clone(), owned, writing: BTreeMap::new() };
    match (ledger.get(&HOST_MAP)?, acknowledged) {
        (Some(record), _) if record.path == config.path => Ok(record),
        (Some(_), _) => Ok(fresh(BTreeMap::new())),
        (None, Some(acknowledged)) => Ok(fresh(claim_acknowledged(config.format, present, acknowledged))),
        (None, None) => {
            let record = fresh(BTreeMap::new());
            ledger.put(&HOST_MAP, &record)?;
            Ok(record)
        }
    }
}

#[cfg(test)]
mod tests;
