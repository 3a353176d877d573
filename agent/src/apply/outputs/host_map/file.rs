//! The host label map as text. Lines of other authors, comments and the order stay unchanged.

use indexmap::IndexMap;
use serde_json::Value;

use super::MapUnreadable;
use crate::config::LabelMapFormat;

/// The content of a host label map (a file of labels), parsed so that single keys can be changed.
#[derive(Debug)]
pub(super) enum MapFile {
    /// The lines of an env file or of a feature file (of Node Feature Discovery), and the meaning of a key without `=`
    /// in that format.
    Lines { lines: Vec<MapLine>, bare_key: BareKey },
    /// The keys and values of a JSON object, in the order of the file. Other authors may write values of any type.
    Json(IndexMap<String, Value>),
}

/// One line of an env file or of a feature file (of Node Feature Discovery).
#[derive(Debug)]
pub(super) enum MapLine {
    /// The text of a comment, of an empty line, or of a line that is not a pair. The agent does not change such a line.
    Other(String),
    /// A line `KEY=VALUE` (or a bare key: [`BareKey::True`]): key, value without quotes, and original text of the line.
    Pair { key: String, value: String, text: String },
}

/// The meaning of a line that consists of a key without `=`, in one format of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareKey {
    /// The line is not a pair, and the agent does not change it.
    Preserved,
    /// The line is a pair with the value `true`, as in a feature file.
    True,
}

impl MapFile {
    /// Parses a text of this format. Fails if the format is JSON and the text is neither empty nor a JSON object.
    pub(super) fn parse(format: LabelMapFormat, text: &str) -> Result<Self, MapUnreadable> {
        match format {
            LabelMapFormat::Env => Ok(Self::parse_lines(text, BareKey::Preserved)),
            LabelMapFormat::NodeFeatureDiscovery => Ok(Self::parse_lines(text, BareKey::True)),
            LabelMapFormat::Json if text.trim().is_empty() => Ok(Self::Json(IndexMap::new())),
            LabelMapFormat::Json => {
                let unreadable = |error: serde_json::Error| MapUnreadable { format: "JSON", why: error.to_string() };
                serde_json::from_str(text).map(Self::Json).map_err(unreadable)
            }
        }
    }

    fn parse_lines(text: &str, bare_key: BareKey) -> Self {
        Self::Lines { lines: text.lines().map(|line| MapLine::parse(line, bare_key)).collect(), bare_key }
    }

    /// Returns the value of a key, or `None` if the file does not contain the key. If several lines have the key, the
    /// last of them is valid, because programs that read such a file use the last line.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        match self {
            Self::Lines { lines, .. } => lines.iter().rev().find_map(|line| match line {
                MapLine::Pair { key: line_key, value, .. } if line_key == key => Some(value.as_str()),
                _ => None,
            }),
            // Another author may have written a value that is not a text. The result for it is a text that no label can
            // equal.
            Self::Json(pairs) => pairs.get(key).map(|value| value.as_str().unwrap_or("\0")),
        }
    }

    /// Returns all keys with their values. If several lines have the same key, the last of them is valid. The result
    /// omits JSON values that are not texts, because they cannot be labels.
    pub(super) fn pairs(&self) -> std::collections::BTreeMap<&str, &str> {
        match self {
            Self::Lines { lines, .. } => lines
                .iter()
                .filter_map(|line| match line {
                    MapLine::Pair { key, value, .. } => Some((key.as_str(), value.as_str())),
                    MapLine::Other(_) => None,
                })
                .collect(),
            Self::Json(pairs) => pairs.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect(),
        }
    }

    /// Sets the value of a key. Replaces the last line with this key, because only the last line is valid. Appends a
    /// line if the file does not contain the key. Does nothing if the key has the value already.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        if self.get(key) == Some(value) {
            return;
        }
        match self {
            Self::Lines { lines, bare_key } => {
                let new_line = MapLine::parse(&format!("{key}={value}"), *bare_key);
                let index = lines.iter().rposition(|line| line.has_key(key));
                if let Some(index) = index { lines[index] = new_line } else { lines.push(new_line) }
            }
            Self::Json(pairs) => drop(pairs.insert(key.into(), value.into())),
        }
    }

    /// Removes the last line with this key. An earlier line with the same key stays, because another author wrote it.
    pub(super) fn remove(&mut self, key: &str) {
        match self {
            Self::Lines { lines, .. } => {
                if let Some(index) = lines.iter().rposition(|line| line.has_key(key)) {
                    lines.remove(index);
                }
            }
            Self::Json(pairs) => drop(pairs.shift_remove(key)),
        }
    }

    /// Returns the text of the file.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Lines { lines, .. } => lines.iter().flat_map(|line| [line.text(), "\n"]).collect(),
            Self::Json(pairs) if pairs.is_empty() => "{}\n".into(),
            Self::Json(pairs) => {
                let lines: Vec<_> =
                    pairs.iter().map(|(key, value)| format!("  {}: {value}", Value::from(key.as_str()))).collect();
                format!("{{\n{}\n}}\n", lines.join(",\n"))
            }
        }
    }
}

impl MapLine {
    /// Parses a line. In a pair, the value has no quotes, and the text is the unchanged line.
    fn parse(line: &str, bare_key: BareKey) -> Self {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Self::Other(line.into());
        }
        match (trimmed.split_once('='), bare_key) {
            (Some((key, value)), _) => {
                Self::Pair { key: key.trim().into(), value: unquote(value.trim()).into(), text: line.into() }
            }
            (None, BareKey::True) => Self::Pair { key: trimmed.into(), value: "true".into(), text: line.into() },
            (None, BareKey::Preserved) => Self::Other(line.into()),
        }
    }

    /// Returns whether the line is a pair with this key.
    fn has_key(&self, key: &str) -> bool {
        matches!(self, Self::Pair { key: line_key, .. } if line_key == key)
    }

    fn text(&self) -> &str {
        match self {
            Self::Other(text) | Self::Pair { text, .. } => text,
        }
    }
}

/// Returns a value without the quotes around it. A value that is not between two equal quotes is returned unchanged.
fn unquote(value: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value)
}
