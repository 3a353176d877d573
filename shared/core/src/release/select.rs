//! Selectors: names, `/patterns/`, `*` and `master`, as roles and tags of a task or a dependency write them.
//!
//! Patterns are Fuel's: a text that begins and ends with a slash, matched as Python's `re.match`, anchored at its
//! start alone, so that `/controller/` matches `controller-ng`. One that reads nothing would match all: no body may have it
//! (`means_everything`), and a release that was stored with it is read as it was meant.
//! They are read with regex-lite, whose time is linear in the text: a release can't make resolve slow.

use std::fmt;

use regex_lite::{Regex, RegexBuilder};

use crate::task::ANY;

/// The longest pattern, in bytes, slashes included.
pub const MAX_PATTERN: usize = 512;

/// The word for the controller's own host.
pub(crate) const MASTER: &str = "master";

/// One item of a selector.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// A name, compared whole.
    Name(Box<str>),
    /// A regular expression, anchored at the start alone.
    Regex(Regex),
    /// The controller's own host.
    Master,
}

/// A pattern that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// Not a regular expression of those that are taken.
    #[error("pattern {pattern} is no regular expression: {reason}")]
    Syntax {
        /// As written.
        pattern: String,
        /// What the reader says, in one line.
        reason: String,
    },
    /// Too long.
    #[error("a pattern has at most {MAX_PATTERN} bytes, not {0}")]
    TooLong(usize),
}

/// Names that one role or tag selector means.
#[derive(Clone, Debug)]
pub enum NameSelector {
    /// Whoever has any name at all: `*`, alone.
    Any,
    /// A union.
    Union(Box<[Pattern]>),
}

/// Whether a text is a `/pattern/`.
pub fn is_pattern(text: &str) -> bool {
    text.starts_with('/') && text.ends_with('/')
}

/// Whether a text is a `/pattern/` that matches without reading a character of a name, so that it may mean every name there is:
/// `/` and `//`, and `/()/`, `/x*/`, `/.*/` or `/^/` as well.
pub(crate) fn means_everything(text: &str) -> bool {
    // A word boundary matches nothing of a name, and not the empty text.
    let reads_nothing = |regex: &Regex| ["", "a"].iter().any(|name| regex.find(name).is_some_and(|it| it.end() == 0));
    is_pattern(text) && matches!(Pattern::new(text), Ok(Pattern::Regex(regex)) if reads_nothing(&regex))
}

impl Pattern {
    /// Reads a name or a `/pattern/`.
    ///
    /// # Errors
    /// [`InvalidPattern`].
    pub fn new(text: &str) -> Result<Self, InvalidPattern> {
        if !is_pattern(text) {
            return Ok(if text == MASTER { Self::Master } else { Self::Name(text.into()) });
        }
        if text.len() > MAX_PATTERN {
            return Err(InvalidPattern::TooLong(text.len()));
        }
        let inner = text.get(1..text.len() - 1).unwrap_or("");
        // The inner text is read by itself first: `a)|(b` must not become whole by what stands around it.
        let read = |source: &str| RegexBuilder::new(source).size_limit(1 << 20).build();
        read(inner)
            .and_then(|_| read(&format!("^(?:{inner})")))
            .map(Self::Regex)
            .map_err(|error| InvalidPattern::Syntax { pattern: text.to_owned(), reason: error.to_string() })
    }

    /// Whether a name is meant.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => **own == *name,
            Self::Regex(regex) => regex.is_match(name),
            Self::Master => false,
        }
    }
}

impl NameSelector {
    /// Reads role selectors: `*` as the only item means whoever has a role.
    ///
    /// # Errors
    /// [`InvalidPattern`].
    pub fn roles(items: &[String]) -> Result<Self, InvalidPattern> {
        if items.len() == 1 && items[0] == "*" {
            return Ok(Self::Any);
        }
        Self::tags(items)
    }

    /// Reads tag selectors, in which an item `*` is a name like any other. The text `*` is [`ANY`], which means whoever has a tag.
    ///
    /// # Errors
    /// [`InvalidPattern`].
    pub fn tags(items: &[String]) -> Result<Self, InvalidPattern> {
        if *items == [ANY] {
            return Ok(Self::Any);
        }
        Ok(Self::Union(items.iter().map(|item| Pattern::new(item)).collect::<Result<_, _>>()?))
    }

    /// Whether one of the names is meant.
    pub fn matches<'a>(&self, names: impl IntoIterator<Item = &'a str> + Clone) -> bool {
        match self {
            Self::Any => names.into_iter().next().is_some(),
            Self::Union(items) => names.into_iter().any(|name| items.iter().any(|item| item.matches(name))),
        }
    }

    /// Whether the controller's own host is among what is meant.
    pub(crate) fn means_master(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Union(items) => items.iter().any(|item| matches!(item, Pattern::Master)),
        }
    }

    /// The exact names in it, patterns left out.
    pub(crate) fn exact_names(&self) -> impl Iterator<Item = &str> {
        let items: &[Pattern] = match self {
            Self::Any => &[],
            Self::Union(items) => items,
        };
        items.iter().filter_map(|item| match item {
            Pattern::Name(name) => Some(&**name),
            Pattern::Regex(_) | Pattern::Master => None,
        })
    }
}

impl fmt::Display for Pattern {
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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Union(items) => {
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
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
    fn patterns_are_anchored_at_their_start_alone() {
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
            assert_eq!(Pattern::new(pattern).unwrap().matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn x06_a_pattern_that_reads_nothing_of_a_name_means_everything() {
        for pattern in
            ["/", "//", "/()/", "/|/", "/^/", "/$|web/", "/.*/", "/(primary-)?/", "/web|/", "/\\b/", "/(?:)/"]
        {
            assert!(means_everything(pattern), "{pattern}");
        }
        for other in ["/.+/", "/web/", "/^(primary-)?db$/", "/a|b/", "/mysql(:.*)?/", "web", "*", "/(/", "/web"] {
            assert!(!means_everything(other), "{other}");
        }
    }

    #[test]
    fn a_broken_pattern_is_refused() {
        for pattern in ["/(/", "/[/", "/a)|(b/", "/(?=a)/"] {
            assert!(matches!(Pattern::new(pattern), Err(InvalidPattern::Syntax { .. })), "{pattern}");
        }
        assert_eq!(Pattern::new(&format!("/{}/", "a".repeat(600))).unwrap_err(), InvalidPattern::TooLong(602));
    }

    #[test]
    fn a_star_means_whoever_has_a_role_and_is_a_name_among_tags() {
        let star = [String::from("*")];
        assert!(NameSelector::roles(&star).unwrap().matches(["x"]));
        assert!(!NameSelector::roles(&star).unwrap().matches([]));
        assert!(!NameSelector::tags(&star).unwrap().matches(["x"]));
        let longer = [String::from("*"), String::from("y")];
        assert!(!NameSelector::roles(&longer).unwrap().matches(["x"]));
    }
}
