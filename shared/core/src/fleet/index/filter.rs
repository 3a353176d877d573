//! Builds the node sets of filters. Inherited values are checked at the groups, of which there are few.

use std::sync::Arc;

use super::{Fleet, IndexTerm, NodeIndex, NodeSet};
use crate::fleet::ResolvedGroup;
use crate::key::{LabelKey, LabelValue};
use crate::name::Name;
use crate::object::{ClusterId, GroupId};
use crate::requirement::{Expression, LiteralValue, Requirement, RequirementField, TraitPresence};
use crate::selector::{LabelSource, Operator, Selector, Term as SelectorTerm};
use crate::traits::Trait;

/// Maximum number of distinct values of a key that are tested against a filter. If there are more, the set contains all
/// nodes for which the result is unknown, and the caller tests each of them.
const MAX_TESTED_VALUES: usize = 1024;

/// The values of a label that a filter selects. The test of the filter decides whether it also selects nodes without
/// the label.
enum LabelFilter<'a> {
    /// These values only. If the list is empty, no value is selected.
    In(Vec<&'a str>),
    /// Every value except these.
    NotIn(Vec<&'a str>),
    /// Every value that passes the test of the filter. The values are not listed.
    Matching,
}

impl<'a> LabelFilter<'a> {
    /// Returns the values of a label that a term of a selector selects. An empty list in `In` means that the label is
    /// absent, and an empty list in `NotIn` means any value.
    fn from_selector_term(term: &'a SelectorTerm) -> Self {
        let values = || term.values().collect();
        match term.operator() {
            Operator::Equals | Operator::DoubleEquals | Operator::In => Self::In(values()),
            Operator::DoesNotExist => Self::In(Vec::new()),
            Operator::NotEquals | Operator::NotIn => Self::NotIn(values()),
            Operator::Exists => Self::NotIn(Vec::new()),
            Operator::GreaterThan | Operator::LessThan => Self::Matching,
        }
    }

    /// Returns the values that the expression of a requirement accepts.
    fn from_expression(expression: &'a Expression) -> Self {
        expression.accepted_texts().map_or(Self::Matching, Self::In)
    }
}

impl Fleet {
    /// Returns the set of the nodes of a cluster.
    pub fn cluster_set(&self, cluster: ClusterId) -> NodeSet {
        NodeSet::any(self.groups_in_cluster(cluster).map(IndexTerm::Group))
    }

    /// Returns the set of the nodes that have a role, by their own spec or by their group.
    pub fn role_set(&self, role: &Name) -> NodeSet {
        let groups = self.groups_where(|resolved| resolved.roles.contains(role));
        NodeSet::any(groups.chain([IndexTerm::Role(role.clone())]))
    }

    /// Returns the set of the nodes that may have a trait or, if `has` is false, of those that may lack it. If an
    /// inspection rule may give the trait, any node may have it.
    pub fn trait_set(&self, name: &Trait, has: bool) -> NodeSet {
        if has && self.rules.possible_effects().may_set_trait(name) {
            return NodeSet::All;
        }
        NodeSet::Term(IndexTerm::Trait(name.clone())).complement_unless(has)
    }

    /// Returns the set of the nodes that a selector may select.
    pub fn selector_set(&self, selector: &Selector) -> NodeSet {
        let term = |term: &SelectorTerm| match term.source() {
            LabelSource::Effective => {
                self.label_set(term.key(), &LabelFilter::from_selector_term(term), &|value| term.matches(value))
            }
            LabelSource::Reported => {
                self.reported_label_set(term.key(), &LabelFilter::from_selector_term(term), &|value| term.matches(value))
            }
        };
        NodeSet::AllOf(selector.terms().iter().map(term).collect())
    }

    /// Returns the set of the nodes that may meet a requirement. Facts and parameters are not indexed, so a requirement
    /// of these returns all nodes.
    pub fn requirement_set(&self, requirement: &Requirement) -> NodeSet {
        let (field, expression) = match requirement {
            Requirement::Trait { name, presence } => {
                return self.trait_set(name, *presence == TraitPresence::Required);
            }
            Requirement::Field { field, expression } => (field, expression),
        };
        let is_match = |value: Option<&str>| value.is_some_and(|value| expression.matches(&LiteralValue::text(value)));
        match field {
            RequirementField::Label(key) => self.label_set(key, &LabelFilter::from_expression(expression), &is_match),
            RequirementField::Property(name) => self.property_set(name, expression),
            RequirementField::Fact(_) | RequirementField::Parameter(_) => NodeSet::All,
        }
    }

    /// Returns the set of the nodes whose effective label may match a filter. `is_match` tests a value, or `None` for
    /// an absent label. A node is in the set if one of these matches: the value that it inherits, its own value or
    /// tombstone, or a reported value that its group accepts. If an inspection rule may set the label, all nodes are in
    /// the set.
    fn label_set(&self, key: &str, filter: &LabelFilter<'_>, is_match: &dyn Fn(Option<&str>) -> bool) -> NodeSet {
        let Ok(key) = LabelKey::new(key) else { return NodeSet::All };
        if self.rules.possible_effects().may_set_label(&key) {
            return NodeSet::All;
        }
        let group_matches = |resolved: &ResolvedGroup| is_match(resolved.maps.labels.get(&*key).map(LabelValue::as_str));
        let provides_label = NodeSet::Term(IndexTerm::ProvidesLabel(key.clone()));
        let replaces_labels = || NodeSet::Term(IndexTerm::ReplacesLabels);
        let matches_absent = is_match(None);
        // A node with an incomplete group inherits no label.
        let inherited_matches = if matches_absent {
            let not_mismatching = NodeSet::any(self.groups_where(|resolved| !group_matches(resolved))).complement();
            NodeSet::AnyOf(vec![not_mismatching, replaces_labels()])
        } else {
            let matching = NodeSet::any(self.groups_where(group_matches));
            NodeSet::AllOf(vec![matching, replaces_labels().complement()])
        };
        // A node that provides the label itself does not inherit it.
        let mut sets = vec![NodeSet::AllOf(vec![inherited_matches, provides_label.complement()])];
        sets.push(match filter {
            LabelFilter::In(values) => own_values_set(&key, values),
            // This includes nodes with a tombstone for the key. The caller checks each node.
            LabelFilter::NotIn(values) => NodeSet::AllOf(vec![
                NodeSet::Term(IndexTerm::ProvidesLabel(key.clone())),
                own_values_set(&key, values).complement(),
            ]),
            LabelFilter::Matching => self.own_label_set(&key, is_match),
        });
        if matches_absent {
            sets.push(NodeSet::Term(IndexTerm::TombstonesLabel(key.clone())));
        }
        let accepting_groups = NodeSet::any(self.groups_where(|resolved| resolved.host_labels.value.is_accepted(&key)));
        sets.push(NodeSet::AllOf(vec![
            accepting_groups,
            self.reported_label_set(&key, filter, &|value| value.is_some() && is_match(value)),
        ]));
        NodeSet::AnyOf(sets)
    }

    /// Returns the set of the nodes that set a label themselves to a value for which `is_match` is true. If there are
    /// too many values to test, returns all nodes that provide the label.
    fn own_label_set(&self, key: &LabelKey, is_match: &dyn Fn(Option<&str>) -> bool) -> NodeSet {
        let new_term = |value| IndexTerm::SetsLabel(key.clone(), value);
        let value_of = |term: &IndexTerm| match term {
            IndexTerm::SetsLabel(term_key, value) if term_key == key => Some(value.clone()),
            _ => None,
        };
        // The empty value is the lowest.
        let first_term = LabelValue::new("").map(new_term);
        let values = first_term.ok().and_then(|first_term| self.index.as_ref()?.term_values(first_term, value_of));
        match values {
            Some(values) => NodeSet::any(values.into_iter().filter(|value| is_match(Some(value))).map(new_term)),
            None => NodeSet::Term(IndexTerm::ProvidesLabel(key.clone())),
        }
    }

    /// Returns the set of the nodes whose reported label may match a filter. `is_match` tests a value, or `None` for a
    /// label that is not reported. If there are too many values to test, returns all nodes.
    fn reported_label_set(&self, key: &str, filter: &LabelFilter<'_>, is_match: &dyn Fn(Option<&str>) -> bool) -> NodeSet {
        let new_term = |value| IndexTerm::ReportedLabel(key.into(), value);
        let matches_absent = is_match(None);
        let to_texts = |values: &[&str]| values.iter().map(|value| Arc::from(*value)).collect();
        // If nodes without the label match, the values that do not match are collected, and the complement is returned.
        let values: Option<Vec<Arc<str>>> = match (filter, matches_absent) {
            (LabelFilter::In(values), false) | (LabelFilter::NotIn(values), true) => Some(to_texts(values)),
            _ => self.reported_values(key).map(|mut values| {
                values.retain(|value| is_match(Some(value)) != matches_absent);
                values
            }),
        };
        values.map_or(NodeSet::All, |values| NodeSet::any(values.into_iter().map(new_term)).complement_unless(!matches_absent))
    }

    /// Returns the distinct values that hosts report for a label. Returns `None` if there are more than
    /// [`MAX_TESTED_VALUES`], or if the fleet has no index.
    fn reported_values(&self, key: &str) -> Option<Vec<Arc<str>>> {
        let value_of = |term: &IndexTerm| match term {
            IndexTerm::ReportedLabel(term_key, value) if **term_key == *key => Some(Arc::clone(value)),
            _ => None,
        };
        self.index.as_ref()?.term_values(IndexTerm::ReportedLabel(key.into(), "".into()), value_of)
    }

    /// Returns the set of the nodes whose property may meet the expression of a requirement.
    fn property_set(&self, name: &Arc<str>, expression: &Expression) -> NodeSet {
        if self.rules.possible_effects().may_set_property(name) {
            return NodeSet::All;
        }
        let value_of = |term: &IndexTerm| match term {
            IndexTerm::Property(term_name, value) if term_name == name => Some(value.clone()),
            _ => None,
        };
        let first_term = IndexTerm::Property(Arc::clone(name), None);
        let Some(values) = self.index.as_ref().and_then(|index| index.term_values(first_term, value_of)) else {
            return NodeSet::All;
        };
        let is_match = |value: &Option<Arc<str>>| {
            // The value is unknown if its text is too long for the index, so it may match.
            let json = value.as_ref().and_then(|text| serde_json::from_str(text).ok());
            json.is_none_or(|json| LiteralValue::from_json(&json).is_some_and(|value| expression.matches(&value)))
        };
        NodeSet::any(values.into_iter().filter(is_match).map(|value| IndexTerm::Property(Arc::clone(name), value)))
    }

    /// Returns the index terms of the groups for which `holds` is true. Groups with a missing parent are omitted.
    fn groups_where<'f>(&'f self, holds: impl Fn(&ResolvedGroup) -> bool + 'f) -> impl Iterator<Item = IndexTerm> + 'f {
        let matching = move |(id, entry): (&'f GroupId, &'f crate::fleet::GroupEntry)| {
            entry.resolved.as_ref().is_ok_and(|resolved| holds(resolved)).then_some(IndexTerm::Group(*id))
        };
        self.groups.iter().filter_map(matching)
    }
}

/// Returns the set of the nodes that set a label themselves to one of these values.
fn own_values_set(key: &LabelKey, values: &[&str]) -> NodeSet {
    let values = values.iter().filter_map(|value| LabelValue::new(value).ok());
    NodeSet::any(values.map(|value| IndexTerm::SetsLabel(key.clone(), value)))
}

impl NodeIndex {
    /// Returns the values of all terms of one kind in the index, in order. `first_term` is the lowest possible term of
    /// that kind. `value_of` returns the value of a term of that kind, and `None` for any other term. Returns `None` if
    /// there are more than [`MAX_TESTED_VALUES`] values.
    fn term_values<V>(&self, first_term: IndexTerm, value_of: impl Fn(&IndexTerm) -> Option<V>) -> Option<Vec<V>> {
        let (mut values, mut start) = (Vec::new(), (first_term, 0));
        while let Some(((term, _), _)) = self.blocks.range(start..).next() {
            let Some(term_value) = value_of(term) else { break };
            if values.len() == MAX_TESTED_VALUES {
                return None;
            }
            values.push(term_value);
            // Skips the other blocks of the term.
            start = (term.clone(), u32::MAX);
        }
        Some(values)
    }
}
