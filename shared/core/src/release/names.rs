//! Names by which templates and conditions read: those that nothing can have are refused of what is new.
//!
//! A look-up means nodes as a task's `roles` and `tags` do, so its names have the same rule: no reserved word in letters that no selector
//! reads, and no pattern that matches the empty text. A key that no map can have is a slip of the pen likewise. A release that is stored
//! with such names is read, and runs as before.

use crate::input::{Names, Query, Read};
use crate::key::LabelKey;
use crate::name::{NameKind, PRIMARY_PREFIX, cut, has_control, is_blank, misspelled};
use crate::release::select::{Pattern, is_pattern, means_everything};

/// Why a name cannot be that of anything, and what to write instead.
pub type OddName = (String, String);

/// The first name of a read that nothing can have. The fields that are read of a look-up's nodes are not asked: [`odd_field`] does.
pub fn odd_name(read: &Read) -> Option<OddName> {
    match read {
        Read::Tag(tag) | Read::Primary { tag, .. } => odd_selector(tag, NameKind::Tag),
        Read::Nodes { query, .. } => odd_query(query),
        Read::Parameter(path) => odd_label(path.first()).or_else(|| odd_keys(&path.keys()[1..])),
        Read::Fact(path) | Read::Node(path) | Read::Cluster(path) => odd_keys(path.keys()),
        // Every key begins with the empty text.
        Read::LabelsWithPrefix(prefix) if prefix.is_empty() => None,
        Read::LabelsWithPrefix(prefix) => odd_key(prefix),
        // What is neither a label's key nor the name of a trait or a secret is no reference.
        Read::Label(_) | Read::Trait(_) | Read::Secret(_) => None,
    }
}

/// The same of a field of a look-up's nodes.
pub fn odd_field(keys: &[Box<str>]) -> Option<OddName> {
    match keys {
        [first, key] if &**first == "labels" => odd_label(key),
        keys => odd_keys(keys),
    }
}

fn odd_query(query: &Query) -> Option<OddName> {
    let of = |names: &Names, kind| names.as_slice().iter().find_map(|name| odd_selector(name, kind));
    match query {
        Query::Tag(tags) => of(tags, NameKind::Tag),
        Query::Role(roles) => of(roles, NameKind::Role),
        Query::TagOrRole { tags, roles } => of(tags, NameKind::Tag).or_else(|| of(roles, NameKind::Role)),
    }
}

fn odd_selector(name: &str, kind: NameKind) -> Option<OddName> {
    if has_control(name) {
        return Some((
            format!("{:?} has a control character, which no name has", cut(name)),
            "leave it out".to_owned(),
        ));
    }
    if let Some(word) = misspelled(name, kind) {
        let remedy = if word == PRIMARY_PREFIX {
            format!("write {word}, in small letters, for the primary holder of a tag")
        } else {
            format!("no {} is called so: write the name of one", kind.word())
        };
        return Some((format!("{:?} is reserved", cut(name)), remedy));
    }
    if means_everything(name) {
        let why = format!("{:?} matches the empty text, and so may mean every name", cut(name));
        return Some((why, format!("mend the pattern, or write '/.+/' for every {}", kind.word())));
    }
    let unread = is_pattern(name).then(|| Pattern::new(name).err()).flatten()?;
    Some((unread.to_string(), "write a smaller pattern".to_owned()))
}

/// Parameters are keyed as labels are.
fn odd_label(key: &str) -> Option<OddName> {
    let why = LabelKey::new(key).err()?;
    Some((why.to_string(), "write a name that there can be".to_owned()))
}

fn odd_keys(keys: &[Box<str>]) -> Option<OddName> {
    keys.iter().find_map(|key| odd_key(key))
}

fn odd_key(key: &str) -> Option<OddName> {
    let why = if is_blank(key) {
        "the key is empty".to_owned()
    } else if has_control(key) {
        format!("the key {:?} has a control character, which no key has", cut(key))
    } else {
        return None;
    };
    Some((why, "write a name that there can be".to_owned()))
}
