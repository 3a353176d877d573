//! The host label map: a file that other programs and people write too.
//!
//! The agent owns the keys that it put there and no other, and knows them from a record of its own. So it can
//! take back exactly those, and a key of someone else, equal or not, is never changed and never removed.

mod file;

use std::collections::BTreeMap;

use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::task::Mode;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::ReportedLabel;

use super::Written;
use crate::apply::ledger::{HOST_MAP, HostMapRecord, Ledger};
use crate::config::{Format, HostLabelMap};
use crate::host::atomic::{Attributes, ensure_dir, replace, sweep_those};
use crate::host::{Host, HostError, HostPath, Kind, Look};

use file::MapFile;

/// The largest map that is read.
const LARGEST: u64 = 1024 * 1024;

/// The most keys of others that are reported.
const MOST_OTHERS: usize = 256;

/// What is to become of a map: pure, from what stands there, what is owned and what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The new text; `None` when it is the present one.
    pub text: Option<String>,
    /// The keys that are owned from then on.
    pub owned: BTreeMap<String, String>,
    /// The keys that are the agent's in the present text, with the values that they have there.
    pub found: BTreeMap<String, String>,
    /// What people should know.
    pub findings: Vec<String>,
}

/// The map could not be read as its format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host label map is no {format} file ({why}): it is left as it is; mend or remove it")]
pub struct Unreadable {
    format: &'static str,
    why: String,
}

/// Decides what becomes of a map.
///
/// A key is the agent's while its value is one that the agent put there, or it was taken out by another hand. One
/// that someone gave another value is theirs from then on: as with every update, who changes a key owns it.
///
/// # Errors
/// [`Unreadable`] when the present text is not of the format; then nothing may be written.
pub fn plan(
    format: Format,
    present: Option<&str>,
    record: &HostMapRecord,
    wanted: &BTreeMap<String, String>,
) -> Result<Plan, Unreadable> {
    let mut file = MapFile::parse(format, present.unwrap_or(""))?;
    let ours = record.owned.keys().chain(record.writing.keys());
    let ours =
        ours.filter_map(|key| Some((key, file.get(key)?))).filter(|(key, there)| is_owned(record, key, Some(there)));
    let found = ours.map(|(key, there)| (key.clone(), there.to_owned())).collect();
    let mut next = Plan { text: None, owned: BTreeMap::new(), found, findings: Vec::new() };
    for (key, value) in wanted {
        match (is_owned(record, key, file.get(key)), file.get(key)) {
            (false, Some(theirs)) if theirs == value => {
                // Two authors agree: the line stays the other's, and stays when it is wanted no more.
            }
            (false, Some(theirs)) => next
                .findings
                .push(format!("host label {key}: another author has {theirs:?} there, so {value:?} is not written")),
            (true, _) | (false, None) => {
                file.set(key, value);
                next.owned.insert(key.clone(), value.clone());
            }
        }
    }
    let dropped = record.owned.keys().chain(record.writing.keys()).filter(|key| !wanted.contains_key(*key));
    for key in dropped {
        if is_owned(record, key, file.get(key)) {
            file.remove(key);
        }
    }
    let text = file.into_text();
    next.text = (text != present.unwrap_or("")).then_some(text);
    Ok(next)
}

fn is_owned(record: &HostMapRecord, key: &str, present: Option<&str>) -> bool {
    [&record.owned, &record.writing]
        .into_iter()
        .filter_map(|keys| keys.get(key))
        .any(|value| present.is_none_or(|present| present == value))
}

/// Without a record: the keys whose value is the last acknowledged one are claimed.
fn claimed(format: Format, present: Option<&str>, acknowledged: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let Ok(file) = MapFile::parse(format, present.unwrap_or("")) else { return BTreeMap::new() };
    let equal = acknowledged.iter().filter(|&(key, value)| file.get(key) == Some(value.as_str()));
    equal.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The labels that flow to the host label map.
#[must_use]
pub fn flowing(known: &Known) -> BTreeMap<String, String> {
    let flows = known.labels.iter().filter(|(key, label)| label.to_host && is_plain(key, &label.value));
    flows.map(|(key, label)| (key.clone(), label.value.clone())).collect()
}

/// A controller sends only Kubernetes keys and values here; looked at again, since a line end would be another key.
fn is_plain(key: &str, value: &str) -> bool {
    let plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/'));
    !key.is_empty() && plain(key) && plain(value)
}

/// Whether keys of a map are the agent's by its record, or that is not known.
#[must_use]
pub fn owns_keys(ledger: &Ledger) -> bool {
    let Ok(record) = ledger.get(&HOST_MAP) else { return true };
    record.is_some_and(|record| !record.owned.is_empty() || !record.writing.is_empty())
}

/// Brings the map in line with what flows there; in mode `apply` alone, in `noop` it says what it would do.
/// `acknowledged` is what flowed by the last desired state: the claim, where the record was lost.
///
/// # Errors
/// [`HostError`].
pub fn write(
    host: &dyn Host,
    ledger: &Ledger,
    config: &HostLabelMap,
    wanted: &BTreeMap<String, String>,
    acknowledged: Option<&BTreeMap<String, String>>,
    mode: Mode,
) -> Result<Written, HostError> {
    let path = HostPath::parse(&config.path).expect("the configuration was checked when it was read");
    let mut findings = match ledger.get(&HOST_MAP)? {
        Some(old) if old.path != config.path && mode == Mode::Apply => leave(host, ledger, &old, &config.path)?,
        _ => Vec::new(),
    };
    let Ok(present) = read(host, &path)?.map(String::from_utf8).transpose() else {
        let unwritten = vec![format!("host label map {path} is no UTF-8 text and is left as it is; mend or remove it")];
        return Ok(Written { findings, unwritten, ..Written::default() });
    };
    let record = record(ledger, config, present.as_deref(), acknowledged)?;
    let plan = match plan(config.format, present.as_deref(), &record, wanted) {
        Ok(plan) => plan,
        Err(unreadable) => {
            return Ok(Written { findings, unwritten: vec![format!("{path}: {unreadable}")], ..Written::default() });
        }
    };
    match mode {
        Mode::Observe => {}
        Mode::Noop => {
            let would = plan.text.is_some().then(|| format!("noop: host label map {path} would be changed"));
            findings.extend(plan.findings.into_iter().chain(would));
        }
        Mode::Apply => {
            findings.extend(sweep_beside(host, &path).err().map(|error| format!("{path}: {}", error.sentence())));
            apply(host, ledger, &path, &plan, record)?;
            findings.extend(plan.findings);
        }
    }
    Ok(Written { findings, ..Written::default() })
}

/// Takes away what an agent that was killed left unfinished beside the map.
fn sweep_beside(host: &dyn Host, path: &HostPath) -> Result<(), HostError> {
    let Some(dir) = host.parent_of(path)? else { return Ok(()) };
    let own = host.identity().0;
    sweep_those(host, &*dir, &|stat| stat.user == own || stat.user == 0)
}

/// The bytes of a map; `None` where there is none.
fn read(host: &dyn Host, path: &HostPath) -> Result<Option<Vec<u8>>, HostError> {
    Ok(host.parent_of(path)?.map(|dir| dir.read(path.name(), LARGEST)).transpose()?.flatten())
}

/// The configuration names another file: the agent's keys go from the old one before it is forgotten that they are its own.
/// One that cannot be read as a map any more is said and left.
fn leave(host: &dyn Host, ledger: &Ledger, old: &HostMapRecord, next: &str) -> Result<Vec<String>, HostError> {
    let mut findings = Vec::new();
    match HostPath::parse(&old.path).map(|path| (read(host, &path), path)) {
        Ok((Ok(Some(bytes)), path)) => match without(&String::from_utf8_lossy(&bytes), old) {
            // Bytes that are no text would not come out as they went in.
            Ok(Some(text)) if std::str::from_utf8(&bytes).is_ok() => put(host, &path, &text)?,
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => {
                findings.push(format!("{path}: no host label map any more; what the agent had there is left"));
            }
        },
        Ok((Err(error), path)) if error.is_of_the_file() => {
            findings.push(format!("{path}: {}; what the agent had there is left", error.sentence()));
        }
        Ok((Err(error), _)) => return Err(error),
        // It is gone, and the keys with it.
        Ok((Ok(None), _)) | Err(_) => {}
    }
    let (owned, writing) = (BTreeMap::new(), BTreeMap::new());
    ledger.put(&HOST_MAP, &HostMapRecord { path: next.into(), owned, writing })?;
    Ok(findings)
}

/// A text without the agent's keys; `None` where none is in it. Which format it had is not on record; what is no JSON is
/// lines, and those are the same in both other formats.
fn without(text: &str, record: &HostMapRecord) -> Result<Option<String>, Unreadable> {
    let format = if text.trim_start().starts_with('{') { Format::Json } else { Format::Env };
    Ok(plan(format, Some(text), record, &BTreeMap::new())?.text)
}

/// Replaces a map, or makes it.
fn put(host: &dyn Host, path: &HostPath, text: &str) -> Result<(), HostError> {
    let dir = match path.parent() {
        Some(parent) => ensure_dir(host, &parent, 0o755)?,
        None => host.root()?,
    };
    dir.check_replaceable(path.name())?;
    let attributes = match dir.look(path.name())? {
        Some(Look { stat, extras }) => Attributes::of(&stat, Some(extras?)),
        None => Attributes::mode(0o644),
    };
    replace(host, &*dir, path.name(), text.as_bytes(), &attributes)
}

/// What other authors have in the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// By key.
    pub labels: BTreeMap<String, ReportedLabel>,
    /// What of it is not reported, and why.
    pub finding: Option<String>,
}

/// What other authors have in the map, as this host reports it: what is no label is theirs and no concern of ours. Of one that
/// somebody without the agent's rights could have written nothing is reported but that (S37).
///
/// # Errors
/// [`HostError`].
pub fn others(host: &dyn Host, ledger: &Ledger, config: &HostLabelMap) -> Result<Others, HostError> {
    let path = HostPath::parse(&config.path).expect("the configuration was checked when it was read");
    let Some(dir) = host.parent_of(&path)? else { return Ok(Others::default()) };
    let own = host.identity().0;
    let Some(stat) = dir.stat(path.name())? else { return Ok(Others::default()) };
    if stat.is_open_to_others(own) {
        let finding = format!(
            "host label map {path} can be written by others, so nothing that they have there is reported: chmod go-w, chown root"
        );
        // What is no file is said where the map is written.
        let finding = (stat.kind == Kind::File).then_some(finding);
        return Ok(Others { finding, ..Others::default() });
    }
    let text = dir.read(path.name(), LARGEST)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(file) = text.and_then(|text| MapFile::parse(config.format, &text).ok()) else {
        return Ok(Others::default());
    };
    let record = ledger.get(&HOST_MAP)?.filter(|record| record.path == config.path).unwrap_or_default();
    let is_ours = |key: &str| record.owned.contains_key(key) || record.writing.contains_key(key);
    let is_label = |key: &str, value: &str| LabelKey::new(key).is_ok() && LabelValue::new(value).is_ok();
    let pairs = file.pairs().into_iter();
    let theirs: Vec<_> = pairs.filter(|(key, value)| !is_ours(key) && is_label(key, value)).collect();
    let label = |value: &str| ReportedLabel { value: value.into(), source: path.name().into() };
    let surplus = theirs.len().saturating_sub(MOST_OTHERS);
    let finding = (surplus > 0).then(|| {
        format!("host label map {path}: {surplus} labels of others are not reported: at most {MOST_OTHERS} are, the first by key")
    });
    let theirs = theirs.into_iter().take(MOST_OTHERS);
    Ok(Others { labels: theirs.map(|(key, value)| (key.to_owned(), label(value))).collect(), finding })
}

/// Writes the record around the map: a key stands in the record before it stands in the map and until it is gone
/// from it, so that a crash between the two leaves no key without an owner. What an earlier crash left is in the record as
/// it was found, so a second one loses nothing of the first; and it is made durable before that is written, or a power cut
/// would bring back a text that the record no longer knows.
fn apply(
    host: &dyn Host,
    ledger: &Ledger,
    path: &HostPath,
    plan: &Plan,
    before: HostMapRecord,
) -> Result<(), HostError> {
    if !before.writing.is_empty()
        && let Some(dir) = host.parent_of(path)?
    {
        dir.sync()?;
    }
    if let Some(text) = &plan.text {
        let (owned, writing) = (plan.found.clone(), plan.owned.clone());
        ledger.put(&HOST_MAP, &HostMapRecord { owned, writing, ..before })?;
        put(host, path, text)?;
    }
    let writing = BTreeMap::new();
    ledger.put(&HOST_MAP, &HostMapRecord { path: path.to_string(), owned: plan.owned.clone(), writing })
}

/// The keys that are the agent's, by its record for this path, or claimed where that was lost.
fn record(
    ledger: &Ledger,
    config: &HostLabelMap,
    present: Option<&str>,
    acknowledged: Option<&BTreeMap<String, String>>,
) -> Result<HostMapRecord, HostError> {
    let fresh = |owned| HostMapRecord { path: config.path.clone(), owned, writing: BTreeMap::new() };
    match (ledger.get(&HOST_MAP)?, acknowledged) {
        (Some(record), _) if record.path == config.path => Ok(record),
        (Some(_), _) => Ok(fresh(BTreeMap::new())),
        (None, Some(acknowledged)) => Ok(fresh(claimed(config.format, present, acknowledged))),
        (None, None) => {
            let record = fresh(BTreeMap::new());
            ledger.put(&HOST_MAP, &record)?;
            Ok(record)
        }
    }
}

#[cfg(test)]
mod tests;
