//! Finds the values that the condition of a privileged task reads and that the report of a host can decide.
//!
//! A report is not a write, so no permission is checked when it arrives. The permission is checked earlier: when a
//! write sets a value that a condition reads in addition to a reported one, and when a write lets reports decide a
//! value. Conditions are not analysed for this. If a report can decide one value that a condition reads, a write that
//! changes any other value of the condition counts as meeting it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fleet, NodeEntry, NodeView, ResolvedGroup};
use crate::input::{Input, Path, Read, Reference};
use crate::key::LabelKey;
use crate::labels::Labels;
use crate::object::NodeId;
use crate::release::{CompiledTask, Profile};

/// A value that the condition of a privileged task on a node reads, and that a host can decide by what it reports about
/// itself, such as facts and traits. This can be the host of the node or another host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostControlledRead<'a> {
    /// The id of the task.
    pub task: &'a str,
    /// The digest of the task's definition. It distinguishes two tasks with the same id.
    pub definition: &'a [u8; 32],
    /// A description of the value for people, such as `label rack` or `trait HW_ARCH_X86_64`.
    pub description: String,
}

/// A node with conditional privileged tasks, as if its host had never reported.
struct UnreportedNode<'a> {
    fleet: &'a Fleet,
    entry: NodeEntry,
    group: &'a ResolvedGroup,
    profile: &'a Profile,
}

impl Fleet {
    /// Returns the values that conditions of privileged tasks on a node read and that reports can decide. These are
    /// facts, reported fields, traits that no operator sets or suppresses, labels that no level decides and that hosts
    /// or inspection rules may fill, and properties that rules may set. They include reported fields of other nodes
    /// that a condition looks up.
    pub fn host_controlled_reads(&self, node: NodeId) -> BTreeSet<HostControlledRead<'_>> {
        self.unreported_node(node).map(|node| node.controlled_reads()).unwrap_or_default()
    }

    /// Returns the values by which a report can meet the condition of a privileged task after a write, but perhaps not
    /// before the write. The write placed the task on the node, let reports decide the value, or changed another value
    /// that the same condition reads. `old_fleet` is the fleet before the write.
    pub fn newly_host_controlled(&self, old_fleet: &Self, node: NodeId) -> BTreeSet<HostControlledRead<'_>> {
        let Some(new_node) = self.unreported_node(node) else { return BTreeSet::new() };
        let mut reads = new_node.controlled_reads();
        if reads.is_empty() {
            return reads;
        }
        let Some(old_node) = old_fleet.unreported_node(node) else { return reads };
        let old_reads = old_node.controlled_reads();
        let (inputs, old_inputs) = (new_node.inputs(), old_node.inputs());
        reads.retain(|read| !old_reads.contains(read) || inputs.get(read.definition) != old_inputs.get(read.definition));
        reads
    }

    /// Returns a node as if its host had never reported. Returns `None` if no privileged task of the node has a
    /// condition.
    fn unreported_node(&self, node: NodeId) -> Option<UnreportedNode<'_>> {
        let entry = self.entry(node)?;
        let profile = entry.profile.as_ref().filter(|profile| profile.has_privileged_condition())?;
        let group = self.resolved_parent(&entry.node.spec)?;
        Some(UnreportedNode { fleet: self, entry: entry.with_observation(None), group, profile })
    }
}

impl<'a> UnreportedNode<'a> {
    /// Returns the view of the node, from which the values of references are read.
    fn view(&self) -> NodeView<'_> {
        NodeView::new(self.fleet, &self.entry, Some(self.group))
    }

    /// Returns the conditional privileged tasks, each with the references of its condition.
    fn condition_references(&self) -> Vec<(&'a CompiledTask, &'a [Reference])> {
        let profile = self.profile;
        let with_references = |task: &'a CompiledTask| Some((task, task.condition.as_ref()?.references()));
        profile.privileged_tasks().filter_map(with_references).collect()
    }

    /// Returns the values that the condition of each privileged task reads as if the host of the node had never
    /// reported, by the digest of the definition of the task. Reports of other hosts are read.
    fn inputs(&self) -> BTreeMap<&'a [u8; 32], Vec<Input>> {
        let view = self.view();
        let mut inputs = BTreeMap::new();
        for (task, reads) in self.condition_references() {
            inputs.insert(&task.definition, reads.iter().map(|reference| view.input(reference)).collect());
        }
        inputs
    }

    /// Returns the values that conditions of privileged tasks of the node read and that reports can decide.
    fn controlled_reads(&self) -> BTreeSet<HostControlledRead<'a>> {
        let labels = self.view().labels();
        let mut controlled_reads = BTreeSet::new();
        for (task, reads) in self.condition_references() {
            let descriptions = reads.iter().flat_map(|reference| self.describe_controlled(&labels, reference));
            controlled_reads.extend(descriptions.map(|description| HostControlledRead {
                task: task.task.id.as_str(),
                definition: &task.definition,
                description,
            }));
        }
        controlled_reads
    }

    /// Returns a description of each value of a reference that reports can decide. Most references have one value, and
    /// a prefix of labels may have several.
    fn describe_controlled(&self, labels: &Labels, reference: &Reference) -> Vec<String> {
        let (is_controlled, description) = match reference.read() {
            Read::LabelsWithPrefix(prefix) => return self.controlled_labels(labels, prefix),
            Read::Label(key) => (self.is_controlled_label(labels, key), format!("label {key}")),
            Read::Trait(name) => (self.is_controlled_trait(name), format!("trait {name}")),
            Read::Fact(_) => (true, reference.to_string()),
            Read::Node(path) => (is_reported(path) || self.is_controlled_property(path), reference.to_string()),
            Read::Nodes { fields, .. } | Read::Primary { fields, .. } => {
                (fields.iter().any(is_reported), "values that hosts report about themselves".to_owned())
            }
            Read::Parameter(_) | Read::Tag(_) | Read::Cluster(_) | Read::Secret(_) => return Vec::new(),
        };
        if is_controlled { vec![description] } else { Vec::new() }
    }

    /// Returns whether a report can decide a label. It can if no level decides the label, and the host or an inspection
    /// rule may fill it.
    fn is_controlled_label(&self, labels: &Labels, key: &str) -> bool {
        let is_undecided = labels.provenance(key).is_none_or(|provenance| !provenance.is_decided_by_level());
        let effects = self.fleet.rules().possible_effects();
        let may_rule_set = || LabelKey::new(key).is_ok_and(|key| effects.may_set_label(&key));
        is_undecided && (self.group.host_labels.value.is_accepted(key) || may_rule_set())
    }

    /// Returns descriptions of the labels with this prefix that reports can decide.
    fn controlled_labels(&self, labels: &Labels, prefix: &str) -> Vec<String> {
        let accepted = self.group.host_labels.value.accepted_keys().iter().map(LabelKey::as_str);
        let keys = accepted.filter(|key| key.starts_with(prefix) && self.is_controlled_label(labels, key));
        let mut descriptions: Vec<String> = keys.map(|key| format!("label {key}")).collect();
        if self.fleet.rules().possible_effects().may_set_label_with_prefix(prefix) {
            descriptions.push(format!("labels that begin with {prefix}"));
        }
        descriptions
    }

    /// Returns whether a report can decide a trait. It can if no operator sets or suppresses the trait, because a host
    /// may detect any trait.
    fn is_controlled_trait(&self, name: &str) -> bool {
        let traits = self.entry.traits_without_rules();
        traits.from_operators.get(name).is_none() && !traits.suppressed.contains(name)
    }

    /// Returns whether a field of the node is a property that an inspection rule may set.
    fn is_controlled_property(&self, path: &Path) -> bool {
        let ("properties", [_, name]) = (path.first(), path.keys()) else { return false };
        self.fleet.rules().possible_effects().may_set_property(name)
    }
}

/// Returns whether a field of a node comes from the report of its host.
fn is_reported(field: &Path) -> bool {
    matches!(field.first(), "address" | "hostname" | "facts")
}
