//! Caches resolve results by content.
//!
//! Nodes of a group that have one profile (the same placed tasks) read the same references, and most of them get the
//! same values. So for each group and profile, a [`GroupBase`] stores the values that the first node would have without
//! labels and parameters of its own. For each node, only the values that the node itself provides are read: its own
//! labels and parameters, its facts and traits. Nodes that differ from the base in the same values share one task set.
//! Conditions and digests are evaluated once for all of them.
//!
//! The cache is never the source of truth. A base is used only if the group is still resolved to the same values. If
//! the tasks read other nodes, the values of these nodes must be unchanged too. Clearing the cache changes no result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::outcome_cache::{CacheScope, CachedOutcome, Evaluation, OutcomeCaches, StepBudget, evaluation_failure};
use super::resolved_node::{GroupInputs, SkipReason, TaskSet};
use crate::condition::{Condition, MAX_CONDITION_STEPS, node_share};
use crate::digest::sha256;
use crate::fleet::{NodeView, ResolvedGroup};
use crate::input::{Input, Inputs, Read, Reference};
use crate::object::{ClusterId, GroupId};
use crate::ownership::OwnedMap;
use crate::release::{CompiledTask, Profile, ProfileHash, TaskIndex};
use crate::shared_text::SharedTexts;

/// Minimum number of entries at which a map of the resolve cache drops its unused entries. A map drops these entries
/// before an entry is added, if the number of its entries is a power of two.
const MIN_SWEEP_ENTRIES: usize = 64;
/// Maximum number of task sets that are cached although no node uses them. They are needed because a small change is
/// resolved three times: when it is checked, for its response, and when it is published.
const MAX_RECENT_TASK_SETS: usize = 64;

/// A cache of task sets and of the values that they depend on, by content. The cache can be cleared at any time without
/// a change of any result.
///
/// It is shared between threads. No lock is held while conditions are evaluated.
#[derive(Debug, Default)]
pub struct ResolveCache {
    bases: Mutex<BTreeMap<(GroupId, ProfileHash), CachedBase>>,
    profiles: Mutex<BTreeMap<(ClusterId, ProfileHash), Weak<ProfileReads>>>,
    outcomes: Arc<OutcomeCaches>,
    recent_task_sets: Mutex<VecDeque<Arc<TaskSet>>>,
    texts: SharedTexts,
}

/// The [`GroupBase`] of a group and profile, with the resolved group for which it was last used.
#[derive(Debug)]
struct CachedBase {
    group: Arc<ResolvedGroup>,
    base: Arc<GroupBase>,
}

impl ResolveCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the collection that has one copy of each text of the cached values. Other code that keeps such texts
    /// uses the same copies.
    pub const fn texts(&self) -> &SharedTexts {
        &self.texts
    }

    /// Returns the task set of a node. A task set that no node uses yet is stored in the list of recent task sets, so
    /// that it need not be computed again soon.
    pub(super) fn task_set(&self, view: &NodeView<'_>, group: &Arc<ResolvedGroup>, profile: &Arc<Profile>) -> Arc<TaskSet> {
        let base = self.base(view, group, profile);
        let differences = base.differences(view);
        let set = base.shared_task_set(&differences);
        // The base does not own the task set, so a count of 1 means that no node uses the task set.
        if Arc::strong_count(&set) == 1 {
            let mut recent = self.recent_task_sets.lock().unwrap_or_else(PoisonError::into_inner);
            recent.push_back(Arc::clone(&set));
            if recent.len() > MAX_RECENT_TASK_SETS {
                recent.pop_front();
            }
        }
        set
    }

    /// Returns the [`GroupBase`] of a node's group and profile: the values that their nodes have in common. A new base
    /// is built if none is cached, if the group was resolved again, if a look-up of the tasks has another result, or if
    /// a step limit changed. The new base replaces the cached base only if their limits or values differ.
    fn base(&self, view: &NodeView<'_>, resolved_group: &Arc<ResolvedGroup>, profile: &Arc<Profile>) -> Arc<GroupBase> {
        let key = (GroupId(resolved_group.group.meta.uuid), profile.hash);
        let bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = bases.get(&key).map(|entry| (Arc::ptr_eq(&entry.group, resolved_group), Arc::clone(&entry.base)));
        drop(bases);
        if let Some((true, base)) = &cached
            && base.is_current(view)
        {
            return Arc::clone(base);
        }
        let reads = self.profile_reads(ClusterId(resolved_group.cluster.meta.uuid), profile);
        let base = GroupBase::new(view, profile, reads, (&self.outcomes, &self.texts));
        // If the values that the tasks read are unchanged, the earlier base and its task sets remain valid.
        let earlier = cached.map(|(_, earlier)| earlier).filter(|earlier| earlier.is_equivalent(&base));
        let base = earlier.unwrap_or_else(|| Arc::new(base));
        let cached = CachedBase { group: Arc::clone(resolved_group), base: Arc::clone(&base) };
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        // Unused entries are dropped if the number of entries is a power of two.
        if bases.len() >= MIN_SWEEP_ENTRIES && bases.len().is_power_of_two() {
            bases.retain(|(group, profile), entry| view.fleet().is_profile_used(*group, profile, &entry.group));
        }
        bases.insert(key, cached);
        base
    }

    /// Returns the reads of a profile in a cluster: the values that its tasks read, by what decides them. The reads are
    /// built once for all groups of the cluster.
    fn profile_reads(&self, cluster: ClusterId, profile: &Profile) -> Arc<ProfileReads> {
        let mut profiles = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (cluster, profile.hash);
        if let Some(cached) = profiles.get(&key).and_then(Weak::upgrade) {
            return cached;
        }
        // Unused entries are dropped if the number of entries is a power of two.
        if profiles.len() >= MIN_SWEEP_ENTRIES && profiles.len().is_power_of_two() {
            profiles.retain(|_, reads| reads.strong_count() > 0);
        }
        let reads = Arc::new(ProfileReads::from_profile(profile));
        profiles.insert(key, Arc::downgrade(&reads));
        reads
    }
}

/// The values that the templates and conditions of a profile's tasks read (their reads), for the groups of one cluster.
/// They are listed by what decides the value. A read is stored as the index of its reference in [`Profile::reads`].
#[derive(Debug, Default)]
pub(super) struct ProfileReads {
    /// The reads that look up other nodes or secrets, as indexes in [`Profile::reads`]. Their values depend on the
    /// fleet, not on the group.
    fleetwide: Box<[u32]>,
    /// The reads whose values depend on the node itself, as indexes in [`Profile::reads`]. They are computed for every
    /// node.
    own: Box<[u32]>,
    /// The reads of each label, by the label's key, as indexes in [`Profile::reads`]. A node's own label overrides the
    /// group's value.
    labels: BTreeMap<Box<str>, Vec<u32>>,
    /// The reads of each parameter, by the parameter's key, as indexes in [`Profile::reads`]. A node's own parameter
    /// overrides the group's value.
    parameters: BTreeMap<Box<str>, Vec<u32>>,
    /// The reads of each task of the profile.
    tasks: Box<[ReadIndexes]>,
    /// The values to which the inputs of the last resolved group refer. The inputs of the next group are stored as
    /// differences from these values, if few differ.
    last_inputs: Mutex<Option<Weak<[Input]>>>,
}

/// The values and limits that the nodes of one group with one profile have in common.
#[derive(Debug)]
pub(super) struct GroupBase {
    profile: Arc<Profile>,
    reads: Arc<ProfileReads>,
    /// The values of the group, one per read of the profile. If only the node itself has the value of a read, it is the
    /// value of the node from which the base was built.
    group_inputs: Arc<GroupInputs>,
    /// Maximum number of steps that the evaluation of one condition takes on one node. It limits only conditions that
    /// look up other nodes and also read values that differ by node. It also decides the share of the steps that a node
    /// is charged for a condition with the same outcome in the whole cluster.
    condition_step_limit: usize,
    /// Maximum number of steps of all conditions of a node together.
    node_step_limit: usize,
    outcomes: Arc<OutcomeCaches>,
    texts: SharedTexts,
    /// The task sets, by the hash of the values in which nodes differ from the group.
    task_sets: Mutex<BTreeMap<[u8; 32], Weak<TaskSet>>>,
}

/// The reads of one task, as indexes in the list of the profile's reads.
#[derive(Debug)]
struct ReadIndexes {
    /// The task.
    task: TaskIndex,
    condition: Box<[u32]>,
    /// The nodes that share the outcome of the task's condition.
    scope: CacheScope,
    templates: Box<[u32]>,
}

impl ProfileReads {
    /// Collects the reads of a profile, by what decides their values: the fleet, the node, a label or a parameter.
    pub(super) fn from_profile(profile: &Profile) -> Self {
        let index_of = |reference: &Reference| profile.read_index(reference);
        let task_reads = |index: TaskIndex| {
            let task = profile.release.task(index);
            let condition_reads = task.condition.as_ref().map_or(&[][..], |condition| condition.references());
            ReadIndexes {
                task: index,
                condition: condition_reads.iter().map(index_of).collect(),
                scope: CacheScope::from_references(condition_reads),
                templates: task.references.iter().map(index_of).collect(),
            }
        };
        let mut reads = Self { tasks: profile.all_tasks().into_iter().map(task_reads).collect(), ..Self::default() };
        let (mut fleetwide, mut node_local) = (Vec::new(), Vec::new());
        for (position, reference) in (0..).zip(&profile.reads) {
            match reference.read() {
                Read::Label(key) => reads.labels.entry(key.clone()).or_default().push(position),
                Read::Parameter(path) => reads.parameters.entry(path.first().into()).or_default().push(position),
                Read::LabelsWithPrefix(_) | Read::Trait(_) | Read::Fact(_) | Read::Node(_) => node_local.push(position),
                Read::Nodes { .. } | Read::Primary { .. } | Read::Secret(_) => fleetwide.push(position),
                // All nodes of a group with this profile have the same value.
                Read::Tag(_) | Read::Cluster(_) => {}
            }
        }
        (reads.fleetwide, reads.own) = (fleetwide.into(), node_local.into());
        reads
    }

    /// Returns a group's inputs. If they differ in few values from the inputs of another group of the cluster, only the
    /// differences are stored. `inputs` has one value per read of the profile.
    fn group_inputs(&self, profile: &Arc<Profile>, inputs: Vec<Input>) -> GroupInputs {
        let mut last_inputs = self.last_inputs.lock().unwrap_or_else(PoisonError::into_inner);
        // The cache compares the value of a look-up by its address. So the value must not be replaced by an equal value
        // at another address.
        let may_share = |index| self.fleetwide.binary_search(&index).is_err();
        let group_inputs = GroupInputs::new(profile, inputs, last_inputs.as_ref().and_then(Weak::upgrade), may_share);
        *last_inputs = Some(Arc::downgrade(group_inputs.base()));
        group_inputs
    }
}

impl GroupBase {
    /// Creates the base of a group and profile from any node (`view`) of the group with this profile.
    pub(super) fn new(
        view: &NodeView<'_>,
        profile: &Arc<Profile>,
        reads: Arc<ProfileReads>,
        (outcomes, texts): (&Arc<OutcomeCaches>, &SharedTexts),
    ) -> Self {
        let inputs = profile.reads.iter().map(|reference| view.group_input(reference).into_shared(texts)).collect();
        Self {
            profile: Arc::clone(profile),
            group_inputs: Arc::new(reads.group_inputs(profile, inputs)),
            reads,
            condition_step_limit: view.condition_step_limit(),
            node_step_limit: view.node_step_limit(),
            outcomes: Arc::clone(outcomes),
            texts: texts.clone(),
            task_sets: Mutex::default(),
        }
    }

    /// Returns whether the step limits are unchanged, and also the values of the reads that look up other nodes or
    /// secrets. All other values depend only on the group and on the node.
    fn is_current(&self, view: &NodeView<'_>) -> bool {
        let is_same = |index: &u32| self.group_inputs.get(*index).is_identical(&view.input(&self.profile.reads[*index as usize]));
        self.node_step_limit == view.node_step_limit()
            && self.reads.fleetwide.iter().all(is_same)
            // This limit applies only to conditions that look up other nodes.
            && (self.reads.fleetwide.is_empty() || self.condition_step_limit == view.condition_step_limit())
    }

    /// Returns whether this base gives each node the same result as `other`. Reads that only a node answers (traits,
    /// facts and fields) are not compared, because they are computed for each node. Maps of labels are computed for
    /// each node too, but they are compared: most nodes have the group's map, and would otherwise store it as a
    /// difference.
    fn is_equivalent(&self, other: &Self) -> bool {
        let has_equal_value = |index: u32| {
            let (value, other_value) = (self.group_inputs.get(index), other.group_inputs.get(index));
            // A value that was looked up must also be at the same address, because the cache compares it by address.
            value.is_identical(other_value) || (self.reads.fleetwide.binary_search(&index).is_err() && value == other_value)
        };
        let group_reads = (0..).zip(&self.profile.reads).filter(|(_, reference)| !reference.read().is_node_local());
        Arc::ptr_eq(&self.profile, &other.profile)
            && (self.condition_step_limit, self.node_step_limit) == (other.condition_step_limit, other.node_step_limit)
            && group_reads.map(|(index, _)| index).all(has_equal_value)
    }

    /// Returns the inputs of a node that differ from the base, each with the index of its read, sorted by this index.
    /// Only the reads whose values the node itself may decide are computed.
    fn differences(&self, view: &NodeView<'_>) -> Vec<(u32, Input)> {
        let ProfileReads { own: node_local, labels, parameters, .. } = &*self.reads;
        let mut indexes: Vec<u32> = node_local.to_vec();
        let spec = &view.node().spec.inherited;
        // Without merging, or with labels that a rule or the host fills, any label may differ from the group's.
        if view.has_filled_labels() || !spec.labels.is_merging() {
            indexes.extend(labels.values().flatten());
        } else {
            let provided = spec.labels.provided.iter().flat_map(OwnedMap::iter);
            indexes.extend(provided.filter_map(|(key, _)| labels.get(key.as_str())).flatten());
        }
        let provided = spec.parameters.provided.iter().flat_map(OwnedMap::iter);
        indexes.extend(provided.filter_map(|(key, _)| parameters.get(key.as_str())).flatten());
        indexes.sort_unstable();
        indexes.dedup();
        let values = indexes.into_iter().map(|ix| (ix, view.input(&self.profile.reads[ix as usize]).into_shared(&self.texts)));
        values.filter(|(ix, input)| input != self.group_inputs.get(*ix)).collect()
    }

    /// Returns the task set of the nodes that differ from the base in these values. All such nodes share it. Builds it
    /// if no node has it yet.
    fn shared_task_set(&self, differences: &[(u32, Input)]) -> Arc<TaskSet> {
        let key = sha256(values_text(differences.iter().map(|(index, input)| (*index, input))).as_bytes());
        let cached = self.task_sets.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade);
        if let Some(existing) = cached {
            return existing;
        }
        let set = Arc::new(self.build_task_set(differences));
        let mut sets = self.task_sets.lock().unwrap_or_else(PoisonError::into_inner);
        // Unused entries are dropped if the number of entries is a power of two.
        if sets.len() >= MIN_SWEEP_ENTRIES && sets.len().is_power_of_two() {
            sets.retain(|_, set| set.strong_count() > 0);
        }
        sets.insert(key, Arc::downgrade(&set));
        set
    }

    /// Computes the task set of a node that differs from the base in these values. A task is skipped for any
    /// [`SkipReason`], for example because its condition is not true, or because its inputs are too large.
    pub(super) fn build_task_set(&self, differences: &[(u32, Input)]) -> TaskSet {
        let values = InputValues { group: &self.group_inputs, own: differences };
        let (mut builder, mut budget) = (TaskSetBuilder::new(&self.group_inputs), StepBudget::new(self.node_step_limit));
        for reads in &self.reads.tasks {
            let task = self.profile.release.task(reads.task);
            match self.skip_reason(task, reads, &values, &mut budget) {
                Some(reason) => builder.skipped.push((reads.task, reason)),
                None => {
                    if let Err(reason) = self.collect_inputs(&reads.templates, &values).and_then(|inputs| builder.add(&inputs)) {
                        builder.skipped.push((reads.task, reason));
                    }
                }
            }
        }
        builder.finish()
    }

    /// Returns why a task does not run, or `None` if it runs. Does not check the size of the inputs that the task's
    /// templates read. The outcome of the task's condition is cached by the values that the condition reads. `budget`
    /// is charged for the steps even if the outcome is cached, so that the result does not depend on the cache.
    fn skip_reason(
        &self,
        task: &CompiledTask,
        reads: &ReadIndexes,
        values: &InputValues<'_>,
        budget: &mut StepBudget,
    ) -> Option<SkipReason> {
        if task.is_marker_type() {
            return Some(SkipReason::Marker);
        }
        if self.profile.not_asserted.binary_search(&reads.task).is_ok() {
            return Some(SkipReason::NotAsserted);
        }
        let condition = task.condition.as_ref()?;
        let max_steps = if reads.scope == CacheScope::Node { self.condition_step_limit } else { MAX_CONDITION_STEPS };
        let key = (task.definition, sha256(condition_key(reads, values, max_steps).as_bytes()));
        let cached = self.outcomes.get(reads.scope, &key);
        let mut outcome = cached.clone().unwrap_or_else(|| self.count_steps(&**condition, reads, values, max_steps));
        let charge_result = budget.charge(self.charged_steps(reads, outcome.steps));
        if charge_result.is_ok() && outcome.result == Evaluation::Pending {
            outcome.result = self.evaluate(&**condition, reads, values);
        }
        let skip_reason = charge_result.map_or_else(Some, |()| outcome.result.skip_reason(task));
        if cached.as_ref() != Some(&outcome) {
            self.outcomes.insert(reads.scope, key, outcome);
        }
        skip_reason
    }

    /// Returns the number of steps that the evaluation of a condition takes, without its result. If the condition
    /// cannot be evaluated, or its loops take more than `max` steps, returns the reason to skip the task, with 0 steps.
    fn count_steps(&self, condition: &dyn Condition, reads: &ReadIndexes, values: &InputValues<'_>, max: usize) -> CachedOutcome {
        let steps = self
            .collect_inputs(&reads.condition, values)
            .and_then(|inputs| condition.cost(&inputs, max).map_err(|reason| evaluation_failure(&reason)));
        match steps {
            Ok(steps) => CachedOutcome { steps, result: Evaluation::Pending },
            Err(failure) => CachedOutcome { steps: 0, result: Evaluation::Skipped(failure.interned(&self.texts)) },
        }
    }

    /// Evaluates a condition. If this fails, returns the reason to skip the task.
    fn evaluate(&self, condition: &dyn Condition, reads: &ReadIndexes, values: &InputValues<'_>) -> Evaluation {
        let outcome = self
            .collect_inputs(&reads.condition, values)
            .and_then(|inputs| condition.evaluate(&inputs).map_err(|reason| evaluation_failure(&reason)));
        outcome.map_or_else(|failure| Evaluation::Skipped(failure.interned(&self.texts)), Evaluation::Decided)
    }

    /// Returns the number of steps that a node is charged for a condition. If the outcome is the same for all nodes of
    /// a cluster, it is evaluated once for them, and each node is charged only its share of the steps.
    fn charged_steps(&self, reads: &ReadIndexes, steps: usize) -> usize {
        if reads.scope == CacheScope::Cluster { node_share(steps, self.condition_step_limit) } else { steps }
    }

    /// Returns the inputs for the reads at these indexes. Fails if the inputs are larger than may be sent to a host.
    fn collect_inputs(&self, indexes: &[u32], values: &InputValues<'_>) -> Result<Inputs, SkipReason> {
        let mut inputs = Inputs::new();
        for index in indexes {
            let inserted = inputs.insert(self.profile.reads[*index as usize].clone(), values.get(*index).clone());
            inserted.map_err(|reason| SkipReason::TooLarge { reason: reason.to_string().into() })?;
        }
        Ok(inputs)
    }
}

/// The inputs of a node: the inputs of the group, overridden by the node's own inputs.
struct InputValues<'a> {
    group: &'a GroupInputs,
    /// The inputs that differ from the group's, each with the index of its read, sorted by this index.
    own: &'a [(u32, Input)],
}

impl<'a> InputValues<'a> {
    /// Returns the input for the read at this index of the profile's reads.
    fn get(&self, read_index: u32) -> &'a Input {
        let position = self.own.binary_search_by_key(&read_index, |(own_index, _)| *own_index);
        position.map_or_else(|_| self.group.get(read_index), |position| &self.own[position].1)
    }
}

/// Builds a task set, one task at a time.
struct TaskSetBuilder {
    group: Arc<GroupInputs>,
    skipped: Vec<(TaskIndex, SkipReason)>,
    inputs: Inputs,
}

impl TaskSetBuilder {
    fn new(group: &Arc<GroupInputs>) -> Self {
        Self { group: Arc::clone(group), skipped: Vec::new(), inputs: Inputs::new() }
    }

    /// Adds the inputs of a task that runs. Fails if the inputs of all tasks together are larger than may be sent to a
    /// host. The inputs of the task that were added before the failure remain.
    fn add(&mut self, inputs: &Inputs) -> Result<(), SkipReason> {
        for (reference, input) in inputs {
            let inserted = self.inputs.insert(reference.clone(), input.clone());
            inserted.map_err(|reason| SkipReason::TooLarge { reason: reason.to_string().into() })?;
        }
        Ok(())
    }

    /// Returns the task set: the profile's tasks without those in `skipped`, and the inputs that were added.
    fn finish(self) -> TaskSet {
        TaskSet::new(&self.group, self.skipped, &self.inputs)
    }
}

/// Returns the step limit and the values that a condition reads, which decide its outcome, as a text that differs for
/// different inputs. Large values are in it as digests, so it is short, and no steps are charged for it.
fn condition_key(reads: &ReadIndexes, values: &InputValues<'_>, max_steps: usize) -> String {
    format!("{max_steps}\n{}", values_text((0..).zip(&reads.condition).map(|(position, index)| (position, values.get(*index)))))
}

/// Returns values with their indexes as a text that differs for different values. A value that is shared between nodes
/// may be large, so the text has only its digest.
fn values_text<'a>(values: impl Iterator<Item = (u32, &'a Input)>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (index, input) in values {
        // Writing to a string cannot fail. JSON has no bare control characters, so every value ends at its line end.
        let _ = match input {
            Input::Value(value) => writeln!(text, "{index}={value}"),
            Input::Shared(shared) => writeln!(text, "{index}#{}", shared.value_digest()),
            Input::Absent => writeln!(text, "{index}-"),
            Input::Secret { name, version } => writeln!(text, "{index}${version} {name}"),
        };
    }
    text
}
