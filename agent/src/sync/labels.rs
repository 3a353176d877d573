//! Labels that the host's own people and programs give: `/etc/stemma/labels.d/*`, lines `KEY=VALUE`.
//!
//! They decide nothing by themselves; they are reported. Of one key in several files the last file by name wins. A file
//! that someone without rights could have written, or that is no regular file, is left out, and said (S37).

use std::collections::BTreeMap;

use stemma_core::key::{LabelKey, LabelValue};
use stemma_wire::message::observed::ReportedLabel;

use crate::host::{Dir, Host, HostError};
use crate::paths;

/// Where they stand.
pub(super) const DIR: &str = "/etc/stemma/labels.d";
/// The largest file that is read.
const LARGEST: u64 = 64 * 1024;
/// The most labels that are reported.
const MOST: usize = 256;

/// What the files say, and what is wrong with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalLabels {
    /// By key.
    pub(super) labels: BTreeMap<String, ReportedLabel>,
    /// One sentence each.
    pub(super) findings: Vec<String>,
}

/// Reads every file.
pub(super) fn read(host: &dyn Host) -> LocalLabels {
    let mut found = LocalLabels::default();
    let dir = match host.dir(&paths::own(DIR)) {
        Ok(Some(dir)) => dir,
        Ok(None) => return found,
        Err(error) => {
            found.findings.push(error.sentence());
            return found;
        }
    };
    for name in dir.names().unwrap_or_default() {
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        match text(&*dir, &name) {
            Ok(text) => read_lines(&mut found, &name, &text),
            Err(finding) => found.findings.push(format!("{DIR}/{name}: {finding}")),
        }
    }
    found
}

fn text(dir: &dyn Dir, name: &str) -> Result<String, String> {
    let said = |error: HostError| error.sentence();
    let stat = dir.stat(name).map_err(said)?.ok_or("is gone")?;
    if stat.mode & 0o022 != 0 {
        return Err(format!("can be written by others (mode {:04o}), so it is not read: chmod go-w it", stat.mode));
    }
    let bytes = dir.read(name, LARGEST).map_err(said)?.unwrap_or_default();
    String::from_utf8(bytes).map_err(|_| "is no UTF-8 text".to_owned())
}

fn read_lines(found: &mut LocalLabels, file: &str, text: &str) {
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let source = format!("labels.d/{file}:{}", at + 1);
        match label(line) {
            Ok((key, value)) if found.labels.len() < MOST || found.labels.contains_key(&key) => {
                found.labels.insert(key, ReportedLabel { value, source });
            }
            Ok(_) => found.findings.push(format!("{source}: more than {MOST} labels: this one is left out")),
            Err(why) => found.findings.push(format!("{source}: {why}")),
        }
    }
    found.findings.truncate(64);
}

fn label(line: &str) -> Result<(String, String), String> {
    let (key, value) = line.split_once('=').ok_or("a line is KEY=VALUE")?;
    LabelKey::new(key.trim()).map_err(|why| why.to_string())?;
    LabelValue::new(value.trim()).map_err(|why| why.to_string())?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_labels_and_what_is_wrong_is_said_with_its_line() {
        let mut found = LocalLabels::default();
        read_lines(&mut found, "10-a", "# rack\nrack = 7\n\nno label\nbad//key=1\nexample.com/x=\n");
        read_lines(&mut found, "20-b", "rack=8");
        assert_eq!(found.labels["rack"], ReportedLabel { value: "8".to_owned(), source: "labels.d/20-b:1".to_owned() });
        assert_eq!(found.labels["example.com/x"].value, "");
        assert_eq!(found.findings.len(), 2);
        assert!(found.findings[0].starts_with("labels.d/10-a:4: a line is KEY=VALUE"), "{found:?}");
    }
}
