//! Selectors of roles and tags in tasks and dependencies: names, `/patterns/`, `*` and `master`.
//!
//! The syntax of patterns is Fuel's: a text that begins and ends with a slash. It is matched like Python's `re.match`,
//! anchored only at its start, so `/controller/` matches `controller-ng`. A pattern that can match without reading a
//! character would match every name. New releases with such a pattern are rejected (`matches_empty_text`). In a stored
//! release the pattern still matches every name. Patterns are compiled with regex-lite, whose time is linear in the
//! text, so a release cannot slow down resolve.

use std::fmt;

use regex_lite::{Regex, RegexBuilder};

use crate::task::ANY_TAG;

/// Maximum length of a pattern, in bytes, including the slashes.
pub const MAX_PATTERN_BYTES: usize = 512;

/// The word in a selector that matches the controller's own host.
pub(crate) const MASTER: &str = "master";

/// One item of a selector.
#[derive(Clone, Debug)]
pub enum NamePattern {
    /// A name that must be equal.
    Name(Box<str>),
    /// A regular expression, anchored only at the start.
    Regex(Regex),
    /// The controller's own host.
    Master,
}

/// A pattern that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// Unsupported or invalid syntax, or a pattern that is too large when it is compiled.
    #[error("pattern {pattern} is not a regular expression: {reason}")]
    Syntax {
        /// The pattern as written.
        pattern: String,
        /// The parser's message, in one line.
        reason: String,
    },
    /// A pattern that is too long, with its length in bytes.
    #[error("a pattern has at most {MAX_PATTERN_BYTES} bytes, not {0}")]
    TooLong(usize),
}

/// The names that a role or tag selector matches.
#[derive(Clone, Debug)]
pub enum NameSelector {
    /// Matches every node with at least one of the names that the selector is matched against. It is written as `*`: as
    /// the only item of a list of roles, and in place of a list of tags.
    Any,
    /// Matches the names that match one of these items.
    Union(Box<[NamePattern]>),
}

/// Returns whether a text is a `/pattern/`.
pub fn is_regex(text: &str) -> bool {
    text.starts_with('/') && text.ends_with('/')
}

/// Returns whether a text is a `/pattern/` that matches without reading a character of a name, and so may match every
/// name: `/` and `//`, but also `/()/`, `/x*/`, `/.*/` or `/^/`.
pub(crate) fn matches_empty_text(text: &str) -> bool {
    // `/\b/` matches the empty text at the start of `a`, but does not match the empty text. So both texts are tried.
    let is_empty_match = |regex: &Regex| ["", "a"].iter().any(|name| regex.find(name).is_some_and(|found| found.end() == 0));
    is_regex(text) && matches!(NamePattern::new(text), Ok(NamePattern::Regex(regex)) if is_empty_match(&regex))
}

impl NamePattern {
    /// Parses a name or a `/pattern/`.
    ///
    /// # Errors
    /// [`InvalidPattern`] if it is too long or is not a supported regular expression.
    pub fn new(text: &str) -> Result<Self, InvalidPattern> {
        if !is_regex(text) {
            return Ok(if text == MASTER { Self::Master } else { Self::Name(text.into()) });
        }
        if text.len() > MAX_PATTERN_BYTES {
            return Err(InvalidPattern::TooLong(text.len()));
        }
        let inner = text.get(1..text.len() - 1).unwrap_or("");
        // The inner text is compiled by itself first. Otherwise the added group could make an invalid text such as
        // `a)|(b` valid.
        let compile = |source: &str| RegexBuilder::new(source).size_limit(1 << 20).build();
        compile(inner)
            .and_then(|_| compile(&format!("^(?:{inner})")))
            .map(Self::Regex)
            .map_err(|error| InvalidPattern::Syntax { pattern: text.to_owned(), reason: error.to_string() })
    }

    /// Returns whether the item matches a name.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(expected) => **expected == *name,
            Self::Regex(regex) => regex.is_match(name),
            // No role or tag has the name `master`. Callers check separately whether the node is the controller's host.
            Self::Master => false,
        }
    }
}

impl NameSelector {
    /// Parses role selectors. `*` as the only item matches every node that has a role.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first pattern that cannot be parsed.
    pub fn for_roles(items: &[String]) -> Result<Self, InvalidPattern> {
        if items.len() == 1 && items[0] == "*" {
            return Ok(Self::Any);
        }
        Self::for_tags(items)
    }

    /// Parses tag selectors. In a list, the item `*` is an ordinary name. If the whole field is the text `*`, the list
    /// is stored as [`ANY_TAG`] alone, which matches every node that has a tag.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first pattern that cannot be parsed.
    pub fn for_tags(items: &[String]) -> Result<Self, InvalidPattern> {
        if *items == [ANY_TAG] {
            return Ok(Self::Any);
        }
        Ok(Self::Union(items.iter().map(|item| NamePattern::new(item)).collect::<Result<_, _>>()?))
    }

    /// Returns whether the selector matches one of a node's names. The item `master` matches no name.
    pub fn matches<'a>(&self, names: impl IntoIterator<Item = &'a str> + Clone) -> bool {
        match self {
            Self::Any => names.into_iter().next().is_some(),
            Self::Union(items) => names.into_iter().any(|name| items.iter().any(|item| item.matches(name))),
        }
    }

    /// Returns whether the selector has the item `master`, which matches the controller's own host.
    pub(crate) fn can_match_master(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Union(items) => items.iter().any(|item| matches!(item, NamePattern::Master)),
        }
    }

    /// Returns the exact names in the selector, without patterns, `master` and the `*` that matches every node.
    pub(crate) fn exact_names(&self) -> impl Iterator<Item = &str> {
        let items: &[NamePattern] = match self {
            Self::Any => &[],
            Self::Union(items) => items,
        };
        items.iter().filter_map(|item| match item {
            NamePattern::Name(name) => Some(&**name),
            NamePattern::Regex(_) | NamePattern::Master => None,
        })
    }
}

impl fmt::Display for NamePattern {
    /// Writes the item as the author wrote it. The anchor that the compiled pattern begins with is removed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Regex(regex) => {
                let source = regex.as_str();
                write!(f, "/{}/", source.strip_prefix("^(?:").and_then(|s| s.strip_suffix(')')).unwrap_or(source))
            }
            Self::Master => f.write_str(MASTER),
        }
    }
}

impl fmt::Display for NameSelector {
    /// Writes the items as the author wrote them, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Union(items) => {
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        f.write_str(", ")?;
                    }
                    item.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_anchored_at_start_only() {
        for (pattern, name, matches) in [
            ("/controller/", "controller-ng", true),
            ("/controller/", "primary-controller", false),
            ("/a|b/", "bc", true),
            ("/a|b/", "xb", false),
            ("/^(primary-)?db$/", "primary-db", true),
            ("/^(primary-)?db$/", "db-backup", false),
            ("/", "anything", true),
            ("//", "anything", true),
            ("mysql", "mysql:1", false),
            ("/mysql(:.*)?/", "mysql:1", true),
            ("/mysql/", "MySQL", false),
        ] {
            assert_eq!(NamePattern::new(pattern).unwrap().matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn x06_matches_empty_text_finds_patterns_of_every_name() {
        for pattern in ["/", "//", "/()/", "/|/", "/^/", "/$|web/", "/.*/", "/(primary-)?/", "/web|/", "/\\b/", "/(?:)/"] {
            assert!(matches_empty_text(pattern), "{pattern}");
        }
        for other in ["/.+/", "/web/", "/^(primary-)?db$/", "/a|b/", "/mysql(:.*)?/", "web", "*", "/(/", "/web"] {
            assert!(!matches_empty_text(other), "{other}");
        }
    }

    #[test]
    fn pattern_new_rejects_invalid_or_too_long_pattern() {
        for pattern in ["/(/", "/[/", "/a)|(b/", "/(?=a)/"] {
            assert!(matches!(NamePattern::new(pattern), Err(InvalidPattern::Syntax { .. })), "{pattern}");
        }
        assert_eq!(NamePattern::new(&format!("/{}/", "a".repeat(600))).unwrap_err(), InvalidPattern::TooLong(602));
    }

    /// In a list of tags, `*` is an ordinary name. In a list of roles, `*` matches every role if it is the only item,
    /// and is an ordinary name otherwise.
    #[test]
    fn selector_star_matches_any_role_but_only_literal_tag() {
        let star = [String::from("*")];
        assert!(NameSelector::for_roles(&star).unwrap().matches(["x"]));
        assert!(!NameSelector::for_roles(&star).unwrap().matches([]));
        assert!(!NameSelector::for_tags(&star).unwrap().matches(["x"]));
        let two_items = [String::from("*"), String::from("y")];
        assert!(!NameSelector::for_roles(&two_items).unwrap().matches(["x"]));
    }
}
