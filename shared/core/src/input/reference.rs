//! References: each names one value that a template or a condition reads.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use super::path::Path;
use super::read::{FieldSet, Read, ReferenceError};
use super::syntax;

/// A value that a template or condition reads, with its canonical text such as `labels.ntp`. References are compared,
/// ordered and stored by this text. A clone is cheap.
#[derive(Clone, derive_more::Display, derive_more::Debug)]
#[display("{}", self.as_str())]
#[debug("{self}")]
pub struct Reference(Arc<ReferenceInner>);

/// The shared content of a reference.
struct ReferenceInner {
    text: Box<str>,
    read: Read,
}

impl Reference {
    /// Creates the reference for a value to read.
    ///
    /// # Errors
    /// [`ReferenceError`] if a key or name is empty, is too long or has control characters, or if a look-up has too
    /// many fields.
    pub fn new(read: Read) -> Result<Self, ReferenceError> {
        read.check()?;
        Ok(Self(Arc::new(ReferenceInner { text: syntax::to_text(&read).into(), read })))
    }

    /// Returns what the reference reads.
    pub fn read(&self) -> &Read {
        &self.0.read
    }

    /// Returns the canonical text.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns the text as an author writes it: `primary('w').name` for the canonical text `primary('w'){name}`. The
    /// text of `nodes(…)`, and of `primary(…)` with several fields, is the look-up without fields.
    pub fn display_text(&self) -> String {
        let without_fields = match self.read().clone() {
            Read::Nodes { query, fields: _ } => Read::Nodes { query, fields: FieldSet::default() },
            Read::Primary { tag, fields: _ } => Read::Primary { tag, fields: FieldSet::default() },
            _ => return self.to_string(),
        };
        let look_up = syntax::to_text(&without_fields);
        match self.read() {
            Read::Primary { fields, .. } if fields.iter().count() == 1 => {
                look_up + &fields.iter().map(Path::to_string).collect::<String>()
            }
            _ => look_up,
        }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    /// Parses the canonical text of a reference. Fails for any other text.
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let read = syntax::parse(text).ok_or_else(|| ReferenceError::Syntax { text: text.chars().take(64).collect() })?;
        read.check()?;
        Ok(Self(Arc::new(ReferenceInner { text: text.into(), read })))
    }
}

crate::name::written_as_text!(Reference);

impl PartialEq for Reference {
    /// Compares the canonical texts. References that share their content are equal without a comparison.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.as_str() == other.as_str()
    }
}

impl Eq for Reference {}

impl PartialOrd for Reference {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Reference {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Reference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Borrow<str> for Reference {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FieldSet, NamePatterns, NodeQuery, Path};
    use super::*;

    fn path(keys: &[&str]) -> Path {
        Path::new(keys.iter().copied()).expect("a path of the test")
    }

    fn names(names: &[&str]) -> NamePatterns {
        NamePatterns::new(names.iter().map(|&name| name.into())).expect("names of the test")
    }

    #[test]
    fn reference_text_round_trips() {
        let fields: FieldSet = [path(&["name"]), path(&["labels", "a/b"]), path(&["labels", "zone"])].into_iter().collect();
        for (read, text) in [
            (Read::Label("ntp".into()), "labels.ntp"),
            (Read::Label("a/b".into()), "labels['a/b']"),
            (Read::Label("1st".into()), "labels['1st']"),
            (Read::LabelsWithPrefix("x/".into()), "labels_with_prefix('x/')"),
            (Read::Parameter(path(&["x", "y z", "w"])), "params.x['y z'].w"),
            (Read::Parameter(path(&["it's \\"])), r"params['it\'s \\']"),
            (Read::Trait("HW_CPU_X86_AVX2".into()), "'HW_CPU_X86_AVX2' in traits"),
            (Read::Tag("mysql:1".into()), "'mysql:1' in tags"),
            (Read::Fact(path(&["cpu", "count"])), "facts.cpu.count"),
            (Read::Node(path(&["name"])), "node.name"),
            (Read::Cluster(path(&["name"])), "cluster.name"),
            (Read::Nodes { query: NodeQuery::Tag(names(&["a"])), fields: FieldSet::default() }, "nodes(tag='a')"),
            (
                Read::Nodes { query: NodeQuery::Role(names(&["b", "/a.*/", "b"])), fields: fields.clone() },
                "nodes(role=['/a.*/', 'b']){labels['a/b'], labels.zone, name}",
            ),
            (
                Read::Nodes {
                    query: NodeQuery::TagOrRole { tags: names(&["a"]), roles: names(&["b"]) },
                    fields: FieldSet::default(),
                },
                "nodes(tag='a', or_role='b')",
            ),
            (Read::Primary { tag: "mysql".into(), fields }, "primary('mysql'){labels['a/b'], labels.zone, name}"),
            (Read::Secret("db".into()), "secret('db')"),
        ] {
            let reference = Reference::new(read.clone()).unwrap();
            assert_eq!(reference.as_str(), text);
            assert_eq!(text.parse::<Reference>().unwrap().read(), &read, "{text}");
        }
    }

    /// Regression test: an error of a condition contained "reads `primary('w'){name}`", which an author cannot write in
    /// a condition.
    #[test]
    fn y09_display_text_uses_author_notation() {
        for (canonical, expected) in [
            ("primary('w'){name}", "primary('w').name"),
            ("primary('w'){labels['a/b']}", "primary('w').labels['a/b']"),
            ("primary('w'){address, name}", "primary('w')"),
            ("primary('w')", "primary('w')"),
            ("nodes(tag='a'){name}", "nodes(tag='a')"),
            ("nodes(tag='a', or_role='b')", "nodes(tag='a', or_role='b')"),
            ("labels['a/b']", "labels['a/b']"),
            ("params.x['y z'].w", "params.x['y z'].w"),
            ("'X' in tags", "'X' in tags"),
        ] {
            assert_eq!(canonical.parse::<Reference>().unwrap().display_text(), expected);
        }
    }

    #[test]
    fn reference_rejects_noncanonical_text() {
        for text in [
            "",
            "labels",
            "labels['ntp']",
            "labels.a.b",
            "labels[\"a/b\"]",
            "labels.ntp ",
            "'X' in  traits",
            "nodes()",
            "nodes(tag=['a'])",
            "nodes(tag=['b', 'a'])",
            "nodes(tag='a'){}",
            "nodes(tag='a'){name, labels.x}",
            "nodes(role='a', or_role='b')",
            "uptime",
            "labels['a",
            "labels['']",
            "labels['a\nb']",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
        let error = "labels['']".parse::<Reference>().unwrap_err();
        assert_eq!(error.to_string(), "\"\" cannot be read: a key or name has 1 to 512 bytes and no control characters");
    }
}
