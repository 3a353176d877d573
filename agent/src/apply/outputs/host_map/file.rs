//! The host label map as text. Lines of other authors, comments and the order stay unchanged.

use indexmap::IndexMap;
use serde_json::Value;

use super::MapUnreadable;
use crate::config::LabelMapFormat;

/// A host label map that can be edited key by key.
#[derive(Debug)]
pub(super) enum MapFile {
    Lines {
        lines: Vec<MapLine>,
        bare: BareKey,
    },
    /// One flat object, in the order of the file.
    Json(IndexMap<String, Value>),
}

/// One line of an env or feature file.
#[derive(Debug)]
pub(super) enum MapLine {
    /// A comment, an empty line, or a line that is not a pair. The agent preserves such a line.
    Other(String),
    /// `KEY=VALUE`, with the original text.
    Pair { key: String, value: String, text: String },
}

/// What a line with a key and without `=` means in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareKey {
    /// The line is not a pair and is preserved.
    Preserved,
    /// The value is `true`, as in a feature file.
    True,
}

impl MapFile {
    /// Parses a text of this format.
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

    fn parse_lines(text: &str, bare: BareKey) -> Self {
        Self::Lines { lines: text.lines().map(|line| MapLine::parse(line, bare)).collect(), bare }
    }

    /// Returns the value of a key from its last line, as a reader of the file sees it.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        match self {
            Self::Lines { lines, .. } => lines.iter().rev().find_map(|line| match line {
                MapLine::Pair { key: name, value, .. } if name == key => Some(value.as_str()),
                _ => None,
            }),
            // A value that is not text, from another author, is returned as a text that no label can equal.
            Self::Json(pairs) => pairs.get(key).map(|value| value.as_str().unwrap_or("\0")),
        }
    }

    /// Returns all keys with their values, as a reader of the file sees them. Keys in JSON whose value is not a text
    /// are left out, because they cannot be labels.
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

    /// Sets the value of a key: replaces its last line, which is the one that counts, or appends a new line.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        if self.get(key) == Some(value) {
            return;
        }
        match self {
            Self::Lines { lines, bare } => {
                let next = MapLine::parse(&format!("{key}={value}"), *bare);
                let place = lines.iter().rposition(|line| line.has_key(key));
                if let Some(place) = place { lines[place] = next } else { lines.push(next) }
            }
            Self::Json(pairs) => drop(pairs.insert(key.into(), value.into())),
        }
    }

    /// Removes the last line of a key. An earlier line with the same key, which another author wrote, stays.
    pub(super) fn remove(&mut self, key: &str) {
        match self {
            Self::Lines { lines, .. } => {
                if let Some(place) = lines.iter().rposition(|line| line.has_key(key)) {
                    lines.remove(place);
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
    /// Parses a line. The value of a pair is stored without quotes, next to the original text of the line.
    fn parse(line: &str, bare: BareKey) -> Self {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Self::Other(line.into());
        }
        match (trimmed.split_once('='), bare) {
            (Some((key, value)), _) => {
                Self::Pair { key: key.trim().into(), value: unquote(value.trim()).into(), text: line.into() }
            }
            (None, BareKey::True) => Self::Pair { key: trimmed.into(), value: "true".into(), text: line.into() },
            (None, BareKey::Preserved) => Self::Other(line.into()),
        }
    }

    fn has_key(&self, key: &str) -> bool {
        matches!(self, Self::Pair { key: name, .. } if name == key)
    }

    fn text(&self) -> &str {
        match self {
            Self::Other(text) | Self::Pair { text, .. } => text,
        }
    }
}

/// Returns a value without its pair of quotes, if it has one.
fn unquote(value: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value)
}
