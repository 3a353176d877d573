//! The map as text: what others wrote, lines, comments and order, comes out as it went in.

use indexmap::IndexMap;
use serde_json::Value;

use super::Unreadable;
use crate::config::Format;

/// A host label map that can be edited key by key.
#[derive(Debug)]
pub(super) enum MapFile {
    Lines {
        lines: Vec<Line>,
        bare: Bare,
    },
    /// One flat object, in the order of its file.
    Json(IndexMap<String, Value>),
}

/// One line of the env form or of a feature file.
#[derive(Debug)]
pub(super) enum Line {
    /// A comment, an empty line, or one that is no pair: kept.
    Other(String),
    /// `KEY=VALUE`, with the text as it stood.
    Pair { key: String, value: String, text: String },
}

/// Whether a key may stand alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    /// It is no pair, and kept as it is.
    Kept,
    /// It means `true`, as in a feature file.
    True,
}

impl MapFile {
    /// Reads a text of the format.
    pub(super) fn parse(format: Format, text: &str) -> Result<Self, Unreadable> {
        match format {
            Format::Env => Ok(Self::lines(text, Bare::Kept)),
            Format::NodeFeatureDiscovery => Ok(Self::lines(text, Bare::True)),
            Format::Json if text.trim().is_empty() => Ok(Self::Json(IndexMap::new())),
            Format::Json => {
                let unreadable = |error: serde_json::Error| Unreadable { format: "JSON", why: error.to_string() };
                serde_json::from_str(text).map(Self::Json).map_err(unreadable)
            }
        }
    }

    fn lines(text: &str, bare: Bare) -> Self {
        Self::Lines { lines: text.lines().map(|line| Line::parse(line, bare)).collect(), bare }
    }

    /// The value of a key: of its last line, as a reader of the file sees it.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        match self {
            Self::Lines { lines, .. } => lines.iter().rev().find_map(|line| match line {
                Line::Pair { key: found, value, .. } if found == key => Some(value.as_str()),
                _ => None,
            }),
            // Another author's value of another type is a value that differs from every text.
            Self::Json(pairs) => pairs.get(key).map(|value| value.as_str().unwrap_or("\0")),
        }
    }

    /// Every key with its value, as a reader of the file sees it; of JSON, the texts.
    pub(super) fn pairs(&self) -> std::collections::BTreeMap<&str, &str> {
        match self {
            Self::Lines { lines, .. } => lines
                .iter()
                .filter_map(|line| match line {
                    Line::Pair { key, value, .. } => Some((key.as_str(), value.as_str())),
                    Line::Other(_) => None,
                })
                .collect(),
            Self::Json(pairs) => {
                pairs.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect()
            }
        }
    }

    /// Gives a key a value, in its place or at the end.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        if self.get(key) == Some(value) {
            return;
        }
        match self {
            Self::Lines { lines, bare } => {
                let next = Line::parse(&format!("{key}={value}"), *bare);
                let place = lines.iter().rposition(|line| line.is(key));
                if let Some(place) = place { lines[place] = next } else { lines.push(next) }
            }
            Self::Json(pairs) => drop(pairs.insert(key.into(), value.into())),
        }
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: &str) {
        match self {
            Self::Lines { lines, .. } => {
                if let Some(place) = lines.iter().rposition(|line| line.is(key)) {
                    lines.remove(place);
                }
            }
            Self::Json(pairs) => drop(pairs.shift_remove(key)),
        }
    }

    /// The text to write.
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

impl Line {
    fn parse(line: &str, bare: Bare) -> Self {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Self::Other(line.into());
        }
        match (trimmed.split_once('='), bare) {
            (Some((key, value)), _) => {
                Self::Pair { key: key.trim().into(), value: unquoted(value.trim()).into(), text: line.into() }
            }
            (None, Bare::True) => Self::Pair { key: trimmed.into(), value: "true".into(), text: line.into() },
            (None, Bare::Kept) => Self::Other(line.into()),
        }
    }

    fn is(&self, key: &str) -> bool {
        matches!(self, Self::Pair { key: found, .. } if found == key)
    }

    fn text(&self) -> &str {
        match self {
            Self::Other(text) | Self::Pair { text, .. } => text,
        }
    }
}

/// A value in one pair of quotes is what stands between them.
fn unquoted(value: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value)
}
