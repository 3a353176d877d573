//! What rules may give at all, whatever is reported: so that a list knows of which nodes it has to ask.

use std::collections::BTreeSet;

use crate::key::LabelKey;

/// The names of what the actions of rules may give.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gives {
    pub(super) traits: BTreeSet<Box<str>>,
    pub(super) labels: BTreeSet<LabelKey>,
    pub(super) properties: BTreeSet<String>,
    /// Some trait's name is filled in of what is reported.
    pub(super) any_trait: bool,
    /// Some attribute's path is.
    pub(super) any_attribute: bool,
}

impl Gives {
    /// Whether a node may have labels of a rule.
    pub(crate) fn may_give_labels(&self) -> bool {
        self.any_attribute || !self.labels.is_empty()
    }

    /// Whether a node may have labels or properties of a rule.
    pub(crate) fn may_give_attributes(&self) -> bool {
        self.may_give_labels() || !self.properties.is_empty()
    }

    /// Whether a node may have this trait of a rule.
    pub(crate) fn may_give_trait(&self, name: &str) -> bool {
        self.any_trait || self.traits.contains(name)
    }

    /// Whether a node may have this label of a rule.
    pub(crate) fn may_give_label(&self, key: &LabelKey) -> bool {
        self.any_attribute || self.labels.contains(key)
    }

    /// Whether a node may have a label of a rule whose key begins so.
    pub(crate) fn may_give_label_below(&self, prefix: &str) -> bool {
        self.any_attribute || self.labels.iter().any(|key| key.as_str().starts_with(prefix))
    }

    /// Whether a node may have this property of a rule.
    pub(crate) fn may_give_property(&self, name: &str) -> bool {
        self.any_attribute || self.properties.contains(name)
    }
}
