//! What is looked up of a node: terms that follow from its own entry alone, and from nothing above it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::fleet::NodeEntry;
use crate::key::{LabelKey, LabelValue};
use crate::name::{Name, TagName, uuid_form};
use crate::object::{GroupId, Node};
use crate::ownership::Said;
use crate::traits::Trait;

/// Texts that are longer are not told apart: all nodes that have one are in one set.
const LONGEST: usize = 128;

/// Ironic's fields that lists are filtered by as they were given.
pub const KEPT: [&str; 7] =
    ["resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// Something that a node has or has not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Term {
    /// It is there.
    Present,
    /// Of no node.
    Nothing,
    /// It has no name.
    Nameless,
    /// It is parked.
    Parked,
    /// Something uses it.
    Used,
    /// Where its instance stands, in Ironic's words.
    Provision(Cow<'static, str>),
    /// It is in this group.
    Group(GroupId),
    /// It has this role itself; its group's are not meant.
    Role(Name),
    /// It has this tag.
    Tag(TagName),
    /// It has this trait.
    Trait(Trait),
    /// It replaces the labels that come from above.
    Replaces,
    /// It says something of a label itself.
    Speaks(LabelKey),
    /// It gives a label a value itself.
    Own(LabelKey, LabelValue),
    /// It stops a label.
    Stops(LabelKey),
    /// Its host reports a label with this value.
    Reported(Arc<str>, Arc<str>),
    /// It has a property, of this JSON text; `None`: of a long one.
    Property(Arc<str>, Option<Arc<str>>),
    /// It has one of [`KEPT`] with this text; `None`: with a long one.
    Kept(&'static str, Option<Arc<str>>),
}

impl Term {
    /// One of [`KEPT`], with a text.
    pub fn kept(field: &'static str, text: &str) -> Self {
        Self::Kept(field, short(&kept_form(field, text)))
    }
}

/// How a text of one of [`KEPT`] is compared: an instance is one in whatever form its uuid is written.
pub fn kept_form<'a>(field: &str, text: &'a str) -> Cow<'a, str> {
    if field == "instance_uuid" { uuid_form(text) } else { text.into() }
}

fn short(text: &str) -> Option<Arc<str>> {
    (text.len() <= LONGEST).then(|| text.into())
}

/// A part of a node's entry: whether two entries have the same, and the terms that follow from it.
struct Part {
    is_same: fn(&NodeEntry, &NodeEntry) -> bool,
    terms: fn(&NodeEntry, &mut Vec<Term>),
}

const PARTS: [Part; 4] = [
    Part {
        is_same: |one, other| Arc::ptr_eq(&one.node, &other.node),
        terms: |entry, terms| of_node(&entry.node, terms),
    },
    Part {
        // What rules give is not there: it is another whenever a rule is, and `seek.rs` asks whether one may give it.
        is_same: |one, other| one.unruled_traits().names().eq(other.unruled_traits().names()),
        terms: |entry, terms| terms.extend(entry.unruled_traits().names().cloned().map(Term::Trait)),
    },
    Part {
        is_same: |one, other| one.tags().eq(other.tags()),
        terms: |entry, terms| terms.extend(entry.tags().cloned().map(Term::Tag)),
    },
    Part {
        is_same: |one, other| {
            let labels = |entry| NodeEntry::reported(entry).iter().map(|label| (&label.key, &label.value));
            labels(one).eq(labels(other))
        },
        terms: |entry, terms| {
            let reported = entry.reported().iter();
            terms.extend(reported.map(|label| Term::Reported(Arc::clone(&label.key), Arc::clone(&label.value))));
        },
    },
];

/// The terms that held and do not any more, and those that hold since.
pub(super) fn changes(before: Option<&NodeEntry>, after: Option<&NodeEntry>) -> (Vec<Term>, Vec<Term>) {
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    for part in PARTS {
        if before.zip(after).is_some_and(|(before, after)| (part.is_same)(before, after)) {
            continue;
        }
        for (entry, terms) in [(before, &mut gone), (after, &mut new)] {
            if let Some(entry) = entry {
                (part.terms)(entry, terms);
            }
        }
    }
    gone.sort_unstable();
    new.sort_unstable();
    new.dedup();
    let stays: Vec<bool> = gone.iter().map(|term| new.binary_search(term).is_ok()).collect();
    new.retain(|term| gone.binary_search(term).is_err());
    let mut stays = stays.into_iter();
    gone.retain(|_| !stays.next().unwrap_or_default());
    (gone, new)
}

fn of_node(node: &Node, terms: &mut Vec<Term>) {
    let spec = &node.spec;
    terms.extend([Term::Present, Term::Provision(Cow::Borrowed(node.provision_state()))]);
    let flags = [(Term::Nameless, node.meta.name.is_none()), (Term::Parked, spec.parked), (Term::Used, node.is_used())];
    terms.extend(flags.into_iter().filter(|(_, holds)| *holds).map(|(term, _)| term));
    terms.extend(spec.nodegroup.map(Term::Group));
    terms.extend(spec.roles.iter().cloned().map(Term::Role));
    of_labels(node, terms);
    for (name, value) in &spec.properties {
        terms.push(Term::Property(name.as_str().into(), short(&value.to_string())));
    }
    let kept = KEPT.iter().filter_map(|field| Some(Term::kept(field, spec.extra.get(*field)?.as_str()?)));
    terms.extend(kept);
}

fn of_labels(node: &Node, terms: &mut Vec<Term>) {
    let own = &node.spec.inherited.labels;
    let Some(provided) = &own.provided else { return };
    if !own.merges() {
        terms.push(Term::Replaces);
    }
    for (key, entry) in provided.iter() {
        terms.push(Term::Speaks(key.clone()));
        terms.push(match &entry.said {
            Said::Value(value) => Term::Own(key.clone(), value.clone()),
            Said::Tombstone => Term::Stops(key.clone()),
        });
    }
}
