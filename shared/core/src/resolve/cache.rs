//! Caches resolve results by content.
//!
//! Nodes of a group that have one profile read the same references, and most of them get the same values. So for each
//! group and profile a [`GroupBase`] stores the values of its first node. For any other node, only what the node itself
//! provides is read: its own labels and parameters, its facts and traits. Nodes that differ from the base in the same
//! values share one task set. Conditions and digests are evaluated once for all of them.
//!
//! The cache is never the source of truth. A base is used only if the group is resolved to the same values that the
//! base was made from. If the base reads other nodes, their state must be unchanged too. Clearing the cache changes no
//! result.

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

/// Minimum number of entries before unused entries are dropped. From then on unused entries are dropped each time the
/// number has doubled.
const MIN_SWEEP_ENTRIES: usize = 64;
/// Maximum number of task sets that are cached although no node uses them. A small change is resolved three times: when
/// it is admitted, for its response and when it is published.
const MAX_RECENT_TASK_SETS: usize = 64;

/// A cache of resolve results, by content. It can be cleared at any time and is never wrong.
///
/// It is shared between threads. The locks are held for lookups, never during a long computation.
#[derive(Debug, Default)]
pub struct ResolveCache {
    bases: Mutex<BTreeMap<(GroupId, ProfileHash), CachedBase>>,
    profiles: Mutex<BTreeMap<(ClusterId, ProfileHash), Weak<ProfileReads>>>,
    outcomes: Arc<OutcomeCaches>,
    recent_task_sets: Mutex<VecDeque<Arc<TaskSet>>>,
    texts: SharedTexts,
}

/// The base of a group and profile, with the resolved group that it was last used for.
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

    /// Returns the shared copies of large texts. Code that stores such texts elsewhere uses the same copies.
    pub const fn texts(&self) -> &SharedTexts {
        &self.texts
    }

    /// Returns the task set of a node. A new task set is kept for a while, even if no node uses it yet.
    pub(super) fn task_set(&self, view: &NodeView<'_>, resolved: &Arc<ResolvedGroup>, profile: &Arc<Profile>) -> Arc<TaskSet> {
        let base = self.base(view, resolved, profile);
        let differences = base.differences(view);
        let set = base.shared_task_set(&differences);
        if Arc::strong_count(&set) == 1 {
            let mut recent = self.recent_task_sets.lock().unwrap_or_else(PoisonError::into_inner);
            recent.push_back(Arc::clone(&set));
            if recent.len() > MAX_RECENT_TASK_SETS {
                recent.pop_front();
            }
        }
        set
    }

    /// Returns the base of a node's group and profile. Builds it again if the group was resolved again, or if a look-up
    /// has another result.
    fn base(&self, view: &NodeView<'_>, resolved: &Arc<ResolvedGroup>, profile: &Arc<Profile>) -> Arc<GroupBase> {
        let key = (GroupId(resolved.group.meta.uuid), profile.hash);
        let bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = bases.get(&key).map(|known| (Arc::ptr_eq(&known.group, resolved), Arc::clone(&known.base)));
        drop(bases);
        if let Some((true, base)) = &cached
            && base.is_current(view)
        {
            return Arc::clone(base);
        }
        let reads = self.profile_reads(ClusterId(resolved.cluster.meta.uuid), profile);
        let base = GroupBase::new(view, profile, reads, (&self.outcomes, &self.texts));
        // If the group was resolved again without a change of what the tasks read, the earlier base and its task sets
        // remain valid.
        let before = cached.map(|(_, before)| before).filter(|before| before.is_equivalent(&base));
        let base = before.unwrap_or_else(|| Arc::new(base));
        let cached = CachedBase { group: Arc::clone(resolved), base: Arc::clone(&base) };
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if bases.len() >= MIN_SWEEP_ENTRIES && bases.len().is_power_of_two() {
            bases.retain(|(group, profile), known| view.fleet().is_profile_used(*group, profile, &known.group));
        }
        bases.insert(key, cached);
        base
    }

    /// Returns the reads of a profile in a cluster, built once for all groups of the cluster.
    fn profile_reads(&self, cluster: ClusterId, profile: &Profile) -> Arc<ProfileReads> {
        let mut profiles = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (cluster, profile.hash);
        if let Some(cached) = profiles.get(&key).and_then(Weak::upgrade) {
            return cached;
        }
        if profiles.len() >= MIN_SWEEP_ENTRIES && profiles.len().is_power_of_two() {
            profiles.retain(|_, reads| reads.strong_count() > 0);
        }
        let reads = Arc::new(ProfileReads::from_profile(profile));
        profiles.insert(key, Arc::downgrade(&reads));
        reads
    }
}

/// The reads of the tasks of a profile, in the groups of one cluster.
#[derive(Debug, Default)]
pub(super) struct ProfileReads {
    /// The reads that look up other nodes or secrets. Their values depend on the fleet, not on the group.
    fleetwide: Box<[u32]>,
    /// The reads that are computed for every node, because only the node itself has the values.
    own: Box<[u32]>,
    /// The reads of each label, which a node's own label overrides.
    labels: BTreeMap<Box<str>, Vec<u32>>,
    /// The reads of each parameter, which a node's own parameter overrides.
    parameters: BTreeMap<Box<str>, Vec<u32>>,
    /// The reads of each task of the profile.
    tasks: Box<[ReadIndexes]>,
    /// The values of the group that was resolved last. The inputs of the next group are stored as differences from
    /// these values.
    last_inputs: Mutex<Option<Weak<[Input]>>>,
}

/// What the nodes of one group with one profile have in common.
#[derive(Debug)]
pub(super) struct GroupBase {
    profile: Arc<Profile>,
    reads: Arc<ProfileReads>,
    /// The values of the group, one per read of the profile. For a read that only a node answers, this is the value of
    /// the first node.
    group_inputs: Arc<GroupInputs>,
    /// Maximum number of steps of one condition per node, for conditions that look up other nodes and also read values
    /// that differ by node.
    condition_step_limit: usize,
    /// Maximum number of steps of all conditions of a node together.
    node_step_limit: usize,
    outcomes: Arc<OutcomeCaches>,
    texts: SharedTexts,
    /// The task sets, by the hash of the values in which nodes differ from the group.
    task_sets: Mutex<BTreeMap<[u8; 32], Weak<TaskSet>>>,
}

/// The indexes of what one task reads, in the list of the profile's reads.
#[derive(Debug)]
struct ReadIndexes {
    index: TaskIndex,
    condition: Box<[u32]>,
    /// The nodes that share the outcome of its condition.
    scope: CacheScope,
    templates: Box<[u32]>,
}

impl ProfileReads {
    /// Collects the reads of a profile by what decides their values.
    pub(super) fn from_profile(profile: &Profile) -> Self {
        let index_of = |reference: &Reference| profile.read_index(reference);
        let task_reads = |index: TaskIndex| {
            let task = profile.release.task(index);
            let condition_reads = task.condition.as_ref().map_or(&[][..], |condition| condition.references());
            ReadIndexes {
                index,
                condition: condition_reads.iter().map(index_of).collect(),
                scope: CacheScope::from_references(condition_reads),
                templates: task.references.iter().map(index_of).collect(),
            }
        };
        let mut reads = Self { tasks: profile.all_tasks().into_iter().map(task_reads).collect(), ..Self::default() };
        let (mut fleetwide, mut own) = (Vec::new(), Vec::new());
        for (at, reference) in (0..).zip(&profile.reads) {
            match reference.read() {
                Read::Label(key) => reads.labels.entry(key.clone()).or_default().push(at),
                Read::Parameter(path) => reads.parameters.entry(path.first().into()).or_default().push(at),
                Read::LabelsWithPrefix(_) | Read::Trait(_) | Read::Fact(_) | Read::Node(_) => own.push(at),
                Read::Nodes { .. } | Read::Primary { .. } | Read::Secret(_) => fleetwide.push(at),
                Read::Tag(_) | Read::Cluster(_) => {}
            }
        }
        (reads.fleetwide, reads.own) = (fleetwide.into(), own.into());
        reads
    }

    /// Builds a group's inputs, stored as differences from those of another group of the cluster.
    fn group_inputs(&self, profile: &Arc<Profile>, inputs: Vec<Input>) -> GroupInputs {
        let mut last = self.last_inputs.lock().unwrap_or_else(PoisonError::into_inner);
        // A look-up counts as unchanged if its stored value has the same address. So a value must not be replaced by an
        // equal one at another address.
        let may_share = |at| self.fleetwide.binary_search(&at).is_err();
        let group = GroupInputs::new(profile, inputs, last.as_ref().and_then(Weak::upgrade), may_share);
        *last = Some(Arc::downgrade(group.base()));
        group
    }
}

impl GroupBase {
    /// Creates the base from the first node of a group with this profile.
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

    /// Returns whether the step limits and the values of the reads that look up other nodes or secrets are unchanged.
    fn is_current(&self, view: &NodeView<'_>) -> bool {
        let finds = |at: &u32| self.group_inputs.get(*at).is_identical(&view.input(&self.profile.reads[*at as usize]));
        self.node_step_limit == view.node_step_limit()
            && self.reads.fleetwide.iter().all(finds)
            && (self.reads.fleetwide.is_empty() || self.condition_step_limit == view.condition_step_limit())
    }

    /// Returns whether this base gives each node the same result as `other`. Reads that only a node answers are not
    /// compared, because they are computed for each node. A map of labels is compared nevertheless: most nodes have the
    /// group's map, and with another map in the base each of them would store its map as its own.
    fn is_equivalent(&self, other: &Self) -> bool {
        let is_alike = |at: u32| {
            let (one, other) = (self.group_inputs.get(at), other.group_inputs.get(at));
            one.is_identical(other) || (self.reads.fleetwide.binary_search(&at).is_err() && one == other)
        };
        let of_group = (0..).zip(&self.profile.reads).filter(|(_, reference)| !reference.read().is_node_local());
        Arc::ptr_eq(&self.profile, &other.profile)
            && (self.condition_step_limit, self.node_step_limit) == (other.condition_step_limit, other.node_step_limit)
            && of_group.map(|(at, _)| at).all(is_alike)
    }

    /// Returns the inputs of a node that differ from the base, sorted by index.
    fn differences(&self, view: &NodeView<'_>) -> Vec<(u32, Input)> {
        let ProfileReads { own, labels, parameters, .. } = &*self.reads;
        let mut indexes: Vec<u32> = own.to_vec();
        let spec = &view.node().spec.inherited;
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
        let values = indexes.into_iter().map(|at| (at, view.input(&self.profile.reads[at as usize]).into_shared(&self.texts)));
        values.filter(|(at, input)| input != self.group_inputs.get(*at)).collect()
    }

    /// Returns the task set of all nodes that differ from the base in these values.
    fn shared_task_set(&self, differences: &[(u32, Input)]) -> Arc<TaskSet> {
        let key = sha256(values_text(differences.iter().map(|(at, input)| (*at, input))).as_bytes());
        let cached = self.task_sets.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade);
        if let Some(known) = cached {
            return known;
        }
        let set = Arc::new(self.build_task_set(differences));
        let mut sets = self.task_sets.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= MIN_SWEEP_ENTRIES && sets.len().is_power_of_two() {
            sets.retain(|_, set| set.strong_count() > 0);
        }
        sets.insert(key, Arc::downgrade(&set));
        set
    }

    /// Computes the task set of a node that differs from the base in these values. A task is skipped if its condition
    /// does not hold or its inputs are too large.
    pub(super) fn build_task_set(&self, differences: &[(u32, Input)]) -> TaskSet {
        let values = InputValues { group: &self.group_inputs, own: differences };
        let (mut set, mut account) = (TaskSetBuilder::new(&self.group_inputs), StepBudget::new(self.node_step_limit));
        for reads in &self.reads.tasks {
            let task = self.profile.release.task(reads.index);
            match self.skip_reason(task, reads, &values, &mut account) {
                Some(why) => set.skipped.push((reads.index, why)),
                None => {
                    if let Err(why) = self.collect(&reads.templates, &values).and_then(|inputs| set.add(&inputs)) {
                        set.skipped.push((reads.index, why));
                    }
                }
            }
        }
        set.finish()
    }

    /// Returns why a task does not run, or `None` if it runs. The outcome of its condition is cached by what the
    /// condition reads. A node is charged for the steps even if the outcome is cached, so that the result does not
    /// depend on the cache.
    fn skip_reason(
        &self,
        task: &CompiledTask,
        reads: &ReadIndexes,
        values: &InputValues<'_>,
        account: &mut StepBudget,
    ) -> Option<SkipReason> {
        if task.is_skipped_type() {
            return Some(SkipReason::Marker);
        }
        if self.profile.not_asserted.binary_search(&reads.index).is_ok() {
            return Some(SkipReason::NotAsserted);
        }
        let condition = task.condition.as_ref()?;
        let max_steps = if reads.scope == CacheScope::Node { self.condition_step_limit } else { MAX_CONDITION_STEPS };
        let key = (task.definition, sha256(condition_key(reads, values, max_steps).as_bytes()));
        let cached = self.outcomes.get(reads.scope, &key);
        let mut outcome = cached.clone().unwrap_or_else(|| self.cost(&**condition, reads, values, max_steps));
        let charged = account.charge(self.price_for_node(reads, outcome.steps));
        if charged.is_ok() && outcome.result == Evaluation::Pending {
            outcome.result = self.evaluate(&**condition, reads, values);
        }
        let skip_reason = charged.map_or_else(Some, |()| outcome.result.skip_reason(task));
        if cached.as_ref() != Some(&outcome) {
            self.outcomes.insert(reads.scope, key, outcome);
        }
        skip_reason
    }

    /// Returns the number of steps that a condition takes, without its result. A condition that cannot be evaluated
    /// costs nothing.
    fn cost(&self, condition: &dyn Condition, reads: &ReadIndexes, values: &InputValues<'_>, most: usize) -> CachedOutcome {
        let steps = self
            .collect(&reads.condition, values)
            .and_then(|inputs| condition.cost(&inputs, most).map_err(|reason| evaluation_failure(&reason)));
        match steps {
            Ok(steps) => CachedOutcome { steps, result: Evaluation::Pending },
            Err(why) => CachedOutcome { steps: 0, result: Evaluation::Skipped(why.interned(&self.texts)) },
        }
    }

    /// Evaluates a condition.
    fn evaluate(&self, condition: &dyn Condition, reads: &ReadIndexes, values: &InputValues<'_>) -> Evaluation {
        let holds = self
            .collect(&reads.condition, values)
            .and_then(|inputs| condition.evaluate(&inputs).map_err(|reason| evaluation_failure(&reason)));
        holds.map_or_else(|why| Evaluation::Skipped(why.interned(&self.texts)), Evaluation::Decided)
    }

    /// Returns the number of steps that a node is charged for a condition. The nodes of a cluster share the cost of a
    /// condition whose outcome is the same for all of them.
    fn price_for_node(&self, reads: &ReadIndexes, steps: usize) -> usize {
        if reads.scope == CacheScope::Cluster { node_share(steps, self.condition_step_limit) } else { steps }
    }

    /// Returns the inputs at these indexes. Fails if they are larger than may be sent.
    fn collect(&self, places: &[u32], values: &InputValues<'_>) -> Result<Inputs, SkipReason> {
        let mut inputs = Inputs::new();
        for at in places {
            let added = inputs.insert(self.profile.reads[*at as usize].clone(), values.get(*at).clone());
            added.map_err(|reason| SkipReason::TooLarge { reason: reason.to_string().into() })?;
        }
        Ok(inputs)
    }
}

/// The inputs of a node: the group's, overridden by those that differ.
struct InputValues<'a> {
    group: &'a GroupInputs,
    own: &'a [(u32, Input)],
}

impl<'a> InputValues<'a> {
    fn get(&self, at: u32) -> &'a Input {
        let position = self.own.binary_search_by_key(&at, |(place, _)| *place);
        position.map_or_else(|_| self.group.get(at), |index| &self.own[index].1)
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

    /// Adds the inputs of a task that runs. Fails if all inputs together are larger than may be sent.
    fn add(&mut self, inputs: &Inputs) -> Result<(), SkipReason> {
        for (reference, input) in inputs {
            let added = self.inputs.insert(reference.clone(), input.clone());
            added.map_err(|reason| SkipReason::TooLarge { reason: reason.to_string().into() })?;
        }
        Ok(())
    }

    fn finish(self) -> TaskSet {
        TaskSet::new(&self.group, self.skipped, &self.inputs)
    }
}

/// Returns everything that decides a condition, as a text that is different for different inputs. The text is at most
/// as long as the condition and the small values that it reads, so a node is not charged for building it.
fn condition_key(reads: &ReadIndexes, values: &InputValues<'_>, most: usize) -> String {
    format!("{most}\n{}", values_text((0..).zip(&reads.condition).map(|(nth, at)| (nth, values.get(*at)))))
}

/// Returns values with their indexes as a text that is different for different values. A shared value is written as its
/// digest.
fn values_text<'a>(values: impl Iterator<Item = (u32, &'a Input)>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (at, input) in values {
        // Writing to a string cannot fail. JSON has no bare control characters, so every value ends at its line end.
        let _ = match input {
            Input::Value(value) => writeln!(text, "{at}={value}"),
            Input::Shared(shared) => writeln!(text, "{at}#{}", shared.value_digest()),
            Input::Absent => writeln!(text, "{at}-"),
            Input::Secret { name, version } => writeln!(text, "{at}${version} {name}"),
        };
    }
    text
}
