//! The traits, labels and properties that rules may set on any node, for any report of its host. An index excludes no
//! node by a value that rules may set. A write uses these effects to find out which values a report can decide, and
//! whether the rules must run for its checks.

use std::collections::BTreeSet;

use crate::key::LabelKey;

/// The traits, labels and properties that the actions of the fleet's inspection rules may set on any node.
#[derive(Clone, Debug, Default)]
pub(crate) struct PossibleEffects {
    /// The names of the traits that rules may add.
    pub(super) traits: BTreeSet<Box<str>>,
    /// The keys of the labels that rules may set.
    pub(super) labels: BTreeSet<LabelKey>,
    /// The names of the properties that rules may set.
    pub(super) properties: BTreeSet<String>,
    /// True if any trait counts as one that rules may add, because the name of an added trait has placeholders.
    pub(super) has_any_trait: bool,
    /// True if rules may set any label or property, because an attribute's path has placeholders or is invalid.
    pub(super) has_any_attribute: bool,
}

impl PossibleEffects {
    /// Returns whether inspection rules may set a label on a node.
    pub(crate) fn may_set_labels(&self) -> bool {
        self.has_any_attribute || !self.labels.is_empty()
    }

    /// Returns whether inspection rules may set a label or a property on a node.
    pub(crate) fn may_set_attributes(&self) -> bool {
        self.may_set_labels() || !self.properties.is_empty()
    }

    /// Returns whether inspection rules may add this trait to a node.
    pub(crate) fn may_set_trait(&self, name: &str) -> bool {
        self.has_any_trait || self.traits.contains(name)
    }

    /// Returns whether inspection rules may set this label on a node.
    pub(crate) fn may_set_label(&self, key: &LabelKey) -> bool {
        self.has_any_attribute || self.labels.contains(key)
    }

    /// Returns whether inspection rules may set a label whose key begins with `prefix` on a node.
    pub(crate) fn may_set_label_with_prefix(&self, prefix: &str) -> bool {
        self.has_any_attribute || self.labels.iter().any(|key| key.as_str().starts_with(prefix))
    }

    /// Returns whether inspection rules may set this property on a node.
    pub(crate) fn may_set_property(&self, name: &str) -> bool {
        self.has_any_attribute || self.properties.contains(name)
    }
}
