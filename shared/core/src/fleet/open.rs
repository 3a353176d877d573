//! What a report may still decide where the condition of a privileged task reads it.
//!
//! What is reported grants nothing. A report is no write, and nobody is asked when it comes: so it is asked when a write gives what a condition
//! reads beside it, and when a write opens something to reports. A condition is not taken apart for that: whoever writes another value into
//! what it reads counts as meeting it, as long as a report has a part in it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fleet, GroupFold, NodeEntry, NodeView};
use crate::input::{Input, Path, Read, Reference};
use crate::key::LabelKey;
use crate::labels::Labels;
use crate::object::NodeId;
use crate::release::{CompiledTask, Profile};

/// Something that the condition of a privileged task on a node reads, and that a report decides, of its host or of another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenRead<'a> {
    /// The task's id.
    pub task: &'a str,
    /// What the task is: one of the same id that is defined otherwise is another.
    pub definition: &'a [u8; 32],
    /// What is read, in words: `label rack`, `trait HW_ARCH_X86_64`.
    pub what: String,
}

/// A node with privileged tasks that have conditions, as it is while its host has reported nothing.
struct Unreported<'a> {
    fleet: &'a Fleet,
    entry: NodeEntry,
    fold: &'a GroupFold,
    profile: &'a Profile,
}

impl Fleet {
    /// What reports decide of what conditions of privileged tasks that stand on a node read: facts, traits that no operator gives or suppresses,
    /// labels that hosts or inspection rules may fill and of which no level says anything, properties of rules, and what look-ups see of these.
    pub fn open_reads(&self, node: NodeId) -> BTreeSet<OpenRead<'_>> {
        self.unreported(node).map(|node| node.open()).unwrap_or_default()
    }

    /// Those by which a report may meet conditions after a write, and perhaps could not before it: the write opened them to reports, or it
    /// changed something else that the same condition reads.
    pub fn opened_since(&self, before: &Self, node: NodeId) -> BTreeSet<OpenRead<'_>> {
        let Some(now) = self.unreported(node) else { return BTreeSet::new() };
        let mut opened = now.open();
        if opened.is_empty() {
            return opened;
        }
        let Some(then) = before.unreported(node) else { return opened };
        let was_open = then.open();
        let (inputs, known) = (now.inputs(), then.inputs());
        opened.retain(|read| !was_open.contains(read) || inputs.get(read.definition) != known.get(read.definition));
        opened
    }

    fn unreported(&self, node: NodeId) -> Option<Unreported<'_>> {
        let entry = self.entry(node)?;
        let profile = entry.profile.as_ref().filter(|profile| profile.has_privileged_condition())?;
        let fold = self.fold_above(&entry.node.spec)?;
        Some(Unreported { fleet: self, entry: entry.with_observation(None), fold, profile })
    }
}

impl<'a> Unreported<'a> {
    fn view(&self) -> NodeView<'_> {
        NodeView::new(self.fleet, &self.entry, Some(self.fold))
    }

    /// The tasks, each with what its condition reads.
    fn reads(&self) -> Vec<(&'a CompiledTask, &'a [Reference])> {
        let profile = self.profile;
        let read = |task: &'a CompiledTask| Some((task, task.condition.as_ref()?.references()));
        profile.privileged_tasks().filter_map(read).collect()
    }

    /// What operators say of all that conditions read, by the definitions of their tasks.
    fn inputs(&self) -> BTreeMap<&'a [u8; 32], Vec<Input>> {
        let view = self.view();
        let mut inputs = BTreeMap::new();
        for (task, reads) in self.reads() {
            inputs.insert(&task.definition, reads.iter().map(|reference| view.input(reference)).collect());
        }
        inputs
    }

    fn open(&self) -> BTreeSet<OpenRead<'a>> {
        let labels = self.view().labels();
        let mut found = BTreeSet::new();
        for (task, reads) in self.reads() {
            let open = reads.iter().flat_map(|reference| self.open_in(&labels, reference));
            found.extend(open.map(|what| OpenRead { task: task.task.id.as_str(), definition: &task.definition, what }));
        }
        found
    }

    /// What reports decide of one reference, in words.
    fn open_in(&self, labels: &Labels, reference: &Reference) -> Vec<String> {
        let (is_open, what) = match reference.read() {
            Read::LabelsWithPrefix(prefix) => return self.open_below(labels, prefix),
            Read::Label(key) => (self.is_open_label(labels, key), format!("label {key}")),
            Read::Trait(name) => (self.is_open_trait(name), format!("trait {name}")),
            Read::Fact(_) => (true, reference.to_string()),
            Read::Node(path) => (is_reported(path) || self.is_open_property(path), reference.to_string()),
            Read::Nodes { fields, .. } | Read::Primary { fields, .. } => {
                (fields.iter().any(is_reported), "what hosts report of themselves".to_owned())
            }
            Read::Parameter(_) | Read::Tag(_) | Read::Cluster(_) | Read::Secret(_) => return Vec::new(),
        };
        if is_open { vec![what] } else { Vec::new() }
    }

    /// Whether no level says anything of a label that the host or a rule may fill.
    fn is_open_label(&self, labels: &Labels, key: &str) -> bool {
        let is_free = labels.line(key).is_none_or(|line| !line.is_spoken_for());
        let gives = self.fleet.rules().gives();
        let is_ruled = || LabelKey::new(key).is_ok_and(|key| gives.may_give_label(&key));
        is_free && (self.fold.host_labels.value.accepts(key) || is_ruled())
    }

    fn open_below(&self, labels: &Labels, prefix: &str) -> Vec<String> {
        let accepted = self.fold.host_labels.value.accepted().iter().map(LabelKey::as_str);
        let open = accepted.filter(|key| key.starts_with(prefix) && self.is_open_label(labels, key));
        let mut open: Vec<String> = open.map(|key| format!("label {key}")).collect();
        if self.fleet.rules().gives().may_give_label_below(prefix) {
            open.push(format!("labels that begin with {prefix}"));
        }
        open
    }

    /// Whether no operator says anything of a trait: any may be detected.
    fn is_open_trait(&self, name: &str) -> bool {
        let said = self.entry.unruled_traits();
        said.operators.get(name).is_none() && !said.suppressed.contains(name)
    }

    /// Whether a field of the node itself is a property that a rule may give.
    fn is_open_property(&self, path: &Path) -> bool {
        let ("properties", [_, name]) = (path.first(), path.keys()) else { return false };
        self.fleet.rules().gives().may_give_property(name)
    }
}

/// Whether a field of a node is one that its host reports.
fn is_reported(field: &Path) -> bool {
    matches!(field.first(), "address" | "hostname" | "facts")
}
