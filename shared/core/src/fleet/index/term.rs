//! The index terms of a node. They depend on its own entry only, not on the levels above it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::fleet::NodeEntry;
use crate::key::{LabelKey, LabelValue};
use crate::name::{Name, TagName, canonical_uuid};
use crate::object::{GroupId, Node};
use crate::ownership::ProvidedValue;
use crate::traits::Trait;

/// Maximum length of the text of a property or of a field of Ironic in the index, in bytes. All nodes with a longer
/// text of the same property or field have the same term.
const MAX_TEXT_BYTES: usize = 128;

/// The fields of Ironic (`OpenStack`'s service for bare-metal hosts) by which list filters can select nodes.
pub const IRONIC_FIELDS: [&str; 7] = ["resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// A statement about a node that is true or false. The index has, for each term, the set of nodes for which the
/// statement is true.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IndexTerm {
    /// The node exists.
    Present,
    /// True for no node.
    Never,
    /// The node has no name.
    Nameless,
    /// The node was parked by an operator. A park that was set on its host does not count.
    Parked,
    /// The node has an `instance_uuid`: an instance, possibly of an allocation, uses the node.
    InUse,
    /// The node has this provision state, in the words of Ironic.
    ProvisionState(Cow<'static, str>),
    /// The node is in this group.
    Group(GroupId),
    /// The node has this role itself, not through its group.
    Role(Name),
    /// The node has this tag.
    Tag(TagName),
    /// The node has this trait from an operator or, if no operator suppressed it, from its host. Rules do not count.
    Trait(Trait),
    /// The node provides labels that replace the inherited labels.
    ReplacesLabels,
    /// The node itself provides a value or a tombstone for this label.
    ProvidesLabel(LabelKey),
    /// The node itself sets a label to this value.
    SetsLabel(LabelKey, LabelValue),
    /// The node itself has a tombstone for this label.
    TombstonesLabel(LabelKey),
    /// The host of the node reports this label with this value.
    ReportedLabel(Arc<str>, Arc<str>),
    /// The spec of the node has this property with this JSON text. `None` represents every text that is too long.
    Property(Arc<str>, Option<Arc<str>>),
    /// The node has this field (one of [`IRONIC_FIELDS`]) with this text. `None` represents every text that is too long
    /// to be indexed.
    IronicField(&'static str, Option<Arc<str>>),
}

impl IndexTerm {
    /// Returns the term for one of [`IRONIC_FIELDS`] with this text.
    pub fn ironic_field(field: &'static str, text: &str) -> Self {
        Self::IronicField(field, short_text(&normalized_text(field, text)))
    }
}

/// Returns the text of one of [`IRONIC_FIELDS`] in the form in which it is compared. All notations of the same instance
/// uuid are equal then.
pub fn normalized_text<'a>(field: &str, text: &'a str) -> Cow<'a, str> {
    if field == "instance_uuid" { canonical_uuid(text) } else { text.into() }
}

/// Returns a text, or `None` if it is too long to be indexed.
fn short_text(text: &str) -> Option<Arc<str>> {
    (text.len() <= MAX_TEXT_BYTES).then(|| text.into())
}

/// A part of the entry of a node. `is_same` compares the part in two entries, and `terms` adds the terms that follow
/// from the part.
struct EntryPart {
    is_same: fn(&NodeEntry, &NodeEntry) -> bool,
    terms: fn(&NodeEntry, &mut Vec<IndexTerm>),
}

/// The parts of the entry of a node that have index terms: the node, its traits, its tags and its reported labels.
const ENTRY_PARTS: [EntryPart; 4] = [
    EntryPart {
        is_same: |entry, other| Arc::ptr_eq(&entry.node, &other.node),
        terms: |entry, terms| push_node_terms(&entry.node, terms),
    },
    EntryPart {
        // Traits from rules are not indexed. They change with every rule, and `filter.rs` checks whether a rule may
        // give one.
        is_same: |entry, other| entry.traits_without_rules().names().eq(other.traits_without_rules().names()),
        terms: |entry, terms| terms.extend(entry.traits_without_rules().names().cloned().map(IndexTerm::Trait)),
    },
    EntryPart {
        is_same: |entry, other| entry.tags().eq(other.tags()),
        terms: |entry, terms| terms.extend(entry.tags().cloned().map(IndexTerm::Tag)),
    },
    EntryPart {
        is_same: |entry, other| {
            let labels = |entry| NodeEntry::reported_labels(entry).iter().map(|label| (&label.key, &label.value));
            labels(entry).eq(labels(other))
        },
        terms: |entry, terms| {
            let reported = entry.reported_labels().iter();
            terms.extend(reported.map(|label| IndexTerm::ReportedLabel(Arc::clone(&label.key), Arc::clone(&label.value))));
        },
    },
];

/// Compares two entries of a node. Returns the terms that hold for the old entry only, and the terms that hold for the
/// new entry only. Parts that are the same in both are skipped.
pub(super) fn term_changes(old_entry: Option<&NodeEntry>, new_entry: Option<&NodeEntry>) -> (Vec<IndexTerm>, Vec<IndexTerm>) {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for part in ENTRY_PARTS {
        if old_entry.zip(new_entry).is_some_and(|(old_entry, new_entry)| (part.is_same)(old_entry, new_entry)) {
            continue;
        }
        for (entry, terms) in [(old_entry, &mut removed), (new_entry, &mut added)] {
            if let Some(entry) = entry {
                (part.terms)(entry, terms);
            }
        }
    }
    removed.sort_unstable();
    added.sort_unstable();
    added.dedup();
    // A term that holds for both entries is removed from both lists, so that its bit is not written.
    let unchanged: Vec<bool> = removed.iter().map(|term| added.binary_search(term).is_ok()).collect();
    added.retain(|term| removed.binary_search(term).is_err());
    let mut unchanged = unchanged.into_iter();
    removed.retain(|_| !unchanged.next().unwrap_or_default());
    (removed, added)
}

/// Adds the terms that follow from the name and spec of a node.
fn push_node_terms(node: &Node, terms: &mut Vec<IndexTerm>) {
    let spec = &node.spec;
    terms.extend([IndexTerm::Present, IndexTerm::ProvisionState(Cow::Borrowed(node.provision_state()))]);
    let flags =
        [(IndexTerm::Nameless, node.meta.name.is_none()), (IndexTerm::Parked, spec.parked), (IndexTerm::InUse, node.is_in_use())];
    terms.extend(flags.into_iter().filter(|(_, holds)| *holds).map(|(term, _)| term));
    terms.extend(spec.nodegroup.map(IndexTerm::Group));
    terms.extend(spec.roles.iter().cloned().map(IndexTerm::Role));
    push_label_terms(node, terms);
    for (name, value) in &spec.properties {
        terms.push(IndexTerm::Property(name.as_str().into(), short_text(&value.to_string())));
    }
    let ironic_terms =
        IRONIC_FIELDS.iter().filter_map(|field| Some(IndexTerm::ironic_field(field, spec.extra.get(*field)?.as_str()?)));
    terms.extend(ironic_terms);
}

/// Adds the terms that follow from the labels that the node itself provides, not its group.
fn push_label_terms(node: &Node, terms: &mut Vec<IndexTerm>) {
    let layer = &node.spec.inherited.labels;
    let Some(provided) = &layer.provided else { return };
    if !layer.is_merging() {
        terms.push(IndexTerm::ReplacesLabels);
    }
    for (key, entry) in provided.iter() {
        terms.push(IndexTerm::ProvidesLabel(key.clone()));
        terms.push(match &entry.value {
            ProvidedValue::Value(value) => IndexTerm::SetsLabel(key.clone(), value.clone()),
            ProvidedValue::Tombstone => IndexTerm::TombstonesLabel(key.clone()),
        });
    }
}
