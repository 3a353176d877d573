//! Finds impossible names in templates and conditions: names that no object can have. New texts with such names are
//! rejected.
//!
//! A look-up selects nodes as a task's `roles` and `tags` do, so its names follow the same rules. A reserved word must
//! be in the letter case that selectors recognize, and a pattern must not match the empty text. A key that no map can
//! have is impossible too. A stored release with such names is still read, and runs as before.

use crate::input::{NamePatterns, NodeQuery, Read};
use crate::key::LabelKey;
use crate::name::{NameKind, PRIMARY_PREFIX, has_control, is_blank, reserved_word_in_other_case, truncated};
use crate::release::name_selector::{NamePattern, is_regex, matches_empty_text};

/// The reason why no object can have a name, and the advice to the author how to correct the name.
pub type ImpossibleName = (String, String);

/// Returns why the first impossible name of a reference is impossible, or `None` if each name is possible. A name is
/// impossible if no object can have it. `read` is the value that a reference in a template or condition reads. The
/// fields of looked-up nodes are checked by [`impossible_field`].
pub fn impossible_name(read: &Read) -> Option<ImpossibleName> {
    match read {
        Read::Tag(tag) | Read::Primary { tag, .. } => impossible_selector(tag, NameKind::Tag),
        Read::Nodes { query, .. } => impossible_query(query),
        Read::Parameter(path) => impossible_label(path.first()).or_else(|| impossible_keys(&path.keys()[1..])),
        Read::Fact(path) | Read::Node(path) | Read::Cluster(path) => impossible_keys(path.keys()),
        // Every key begins with the empty text, so an empty prefix is possible.
        Read::LabelsWithPrefix(prefix) if prefix.is_empty() => None,
        Read::LabelsWithPrefix(prefix) => impossible_key(prefix),
        // A reference of these kinds always has a valid label key, trait name or secret name.
        Read::Label(_) | Read::Trait(_) | Read::Secret(_) => None,
    }
}

/// Returns why the first impossible key in the path of a looked-up node's field is impossible, or `None` if each key is
/// possible.
pub fn impossible_field(keys: &[Box<str>]) -> Option<ImpossibleName> {
    match keys {
        // The second key of `labels.KEY` is the key of a label, which follows stricter rules.
        [first, key] if &**first == "labels" => impossible_label(key),
        keys => impossible_keys(keys),
    }
}

/// Returns why the first impossible tag or role by which a look-up selects nodes is impossible.
fn impossible_query(query: &NodeQuery) -> Option<ImpossibleName> {
    let check = |names: &NamePatterns, kind| names.as_slice().iter().find_map(|name| impossible_selector(name, kind));
    match query {
        NodeQuery::Tag(tags) => check(tags, NameKind::Tag),
        NodeQuery::Role(roles) => check(roles, NameKind::Role),
        NodeQuery::TagOrRole { tags, roles } => check(tags, NameKind::Tag).or_else(|| check(roles, NameKind::Role)),
    }
}

/// Returns why no node can have a role or tag that a reference names, or `None` if a node can have it. `name` may be a
/// `/pattern/`, which must be valid and must not match the empty text.
fn impossible_selector(name: &str, kind: NameKind) -> Option<ImpossibleName> {
    if has_control(name) {
        return Some((format!("{:?} has a control character, which no name has", truncated(name)), "leave it out".to_owned()));
    }
    if let Some(word) = reserved_word_in_other_case(name, kind) {
        let remedy = if word == PRIMARY_PREFIX {
            format!("write {word}, in small letters, for the primary holder of a tag")
        } else {
            format!("no {} can have this name: write an existing one", kind.as_str())
        };
        return Some((format!("{:?} is reserved", truncated(name)), remedy));
    }
    if matches_empty_text(name) {
        let reason = format!("{:?} matches the empty text, and so may mean every name", truncated(name));
        return Some((reason, format!("correct the pattern, or write '/.+/' for every {}", kind.as_str())));
    }
    let error = is_regex(name).then(|| NamePattern::new(name).err()).flatten()?;
    Some((error.to_string(), "write a smaller pattern".to_owned()))
}

/// Returns why a label key is invalid, or `None` if it is valid. The first key of a parameter follows the same rules.
fn impossible_label(key: &str) -> Option<ImpossibleName> {
    let reason = LabelKey::new(key).err()?;
    Some((reason.to_string(), "write a valid name".to_owned()))
}

/// Returns why the first impossible key of a path is impossible, or `None` if each key is possible.
fn impossible_keys(keys: &[Box<str>]) -> Option<ImpossibleName> {
    keys.iter().find_map(|key| impossible_key(key))
}

/// Returns why no map can have a key: the key is blank or has a control character. `None` if a map can have it.
fn impossible_key(key: &str) -> Option<ImpossibleName> {
    let reason = if is_blank(key) {
        "the key is empty".to_owned()
    } else if has_control(key) {
        format!("the key {:?} has a control character, which no key has", truncated(key))
    } else {
        return None;
    };
    Some((reason, "write a valid name".to_owned()))
}
