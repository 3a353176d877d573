//! The traits, labels and properties that rules may set on any node, for any report of its host. An index excludes no
//! node by a value that rules may set. A write uses these effects to find out which values a report can decide, and
//! whether the rules must run for its checks.

use std::collections::BTreeSet;

use crate::key::LabelKey;

/// The traits, labels and properties that the actions of rules may set.
#[derive(Clone, Debug, Default)]
pub(crate) struct PossibleEffects {
    /// The names of the traits.
    pub(super) traits: BTreeSet<Box<str>>,
    /// The keys of the labels.
    pub(super) labels: BTreeSet<LabelKey>,
    /// The names of the properties.
    pub(super) properties: BTreeSet<String>,
    /// True if rules may add any trait, because the name of an added trait is filled in from a report.
    pub(super) has_any_trait: bool,
    /// True if rules may set any label or property, because the path of an attribute is filled in from a report.
    pub(super) has_any_attribute: bool,
}

impl PossibleEffects {
    /// Returns whether rules may set labels.
    pub(crate) fn may_set_labels(&self) -> bool {
        self.has_any_attribute || !self.labels.is_empty()
    }

    /// Returns whether rules may set labels or properties.
    pub(crate) fn may_set_attributes(&self) -> bool {
        self.may_set_labels() || !self.properties.is_empty()
    }

    /// Returns whether rules may add this trait.
    pub(crate) fn may_set_trait(&self, name: &str) -> bool {
        self.has_any_trait || self.traits.contains(name)
    }

    /// Returns whether rules may set this label.
    pub(crate) fn may_set_label(&self, key: &LabelKey) -> bool {
        self.has_any_attribute || self.labels.contains(key)
    }

    /// Returns whether rules may set a label whose key begins with `prefix`.
    pub(crate) fn may_set_label_with_prefix(&self, prefix: &str) -> bool {
        self.has_any_attribute || self.labels.iter().any(|key| key.as_str().starts_with(prefix))
    }

    /// Returns whether rules may set this property.
    pub(crate) fn may_set_property(&self, name: &str) -> bool {
        self.has_any_attribute || self.properties.contains(name)
    }
}
