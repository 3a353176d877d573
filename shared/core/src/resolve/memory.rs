//! What was resolved before, by content.
//!
//! Nodes of a group that have one profile read the same things, and most of them find the same values. So for each
//! group and profile a [`Base`] keeps what its first node found, and a node is looked at only for what it says itself:
//! its own labels and parameters, its facts and traits. Those that differ from the base's in the same way share one
//! task set; conditions and digests are worked out once for all of them.
//!
//! Nothing here is ever the truth. A base is used only for a fold that says just what the one said that it was made of, and (where it reads other
//! nodes) for the very state of its cluster; throwing everything away changes no answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::answer::{GroupInputs, LeftOut, TaskSet};
use super::conditions::{Account, Evaluated, Evaluation, Outcomes, Scope, unevaluated};
use crate::condition::{Condition, MAX_STEPS, share_of};
use crate::digest::sha256;
use crate::fleet::{GroupFold, NodeView};
use crate::input::{Input, Inputs, Read, Reference};
use crate::object::{ClusterId, GroupId};
use crate::ownership::OwnedMap;
use crate::release::{CompiledTask, Profile, ProfileHash, TaskIx};
use crate::shared_text::SharedTexts;

/// Below so many of a kind nothing is forgotten; then, each time their number has doubled, what nobody uses any more.
const MIN_KEPT: usize = 64;
/// How many task sets are kept that nobody has: a small change is resolved by its admission, for its answer and when it is published.
const RECENT: usize = 64;

/// Memory of what was resolved before, by content: it can be thrown away at any time, and is never wrong.
///
/// Shared between threads; the locks are held for a look, never while something is worked out for long.
#[derive(Debug, Default)]
pub struct ResolveCache {
    bases: Mutex<BTreeMap<(GroupId, ProfileHash), Known>>,
    profiles: Mutex<BTreeMap<(ClusterId, ProfileHash), Weak<ProfileReads>>>,
    outcomes: Arc<Outcomes>,
    recent: Mutex<VecDeque<Arc<TaskSet>>>,
    texts: SharedTexts,
}

#[derive(Debug)]
struct Known {
    fold: Arc<GroupFold>,
    base: Arc<Base>,
}

impl ResolveCache {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The texts of large values. Whoever holds such texts elsewhere shares them.
    pub const fn texts(&self) -> &SharedTexts {
        &self.texts
    }

    pub(super) fn task_set(&self, view: &NodeView<'_>, fold: &Arc<GroupFold>, profile: &Arc<Profile>) -> Arc<TaskSet> {
        let base = self.base(view, fold, profile);
        let own = base.differences(view);
        let set = base.shared(&own);
        if Arc::strong_count(&set) == 1 {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.push_back(Arc::clone(&set));
            if recent.len() > RECENT {
                recent.pop_front();
            }
        }
        set
    }

    fn base(&self, view: &NodeView<'_>, fold: &Arc<GroupFold>, profile: &Arc<Profile>) -> Arc<Base> {
        let key = (GroupId(fold.group.meta.uuid), profile.hash);
        let bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let known = bases.get(&key).map(|known| (Arc::ptr_eq(&known.fold, fold), Arc::clone(&known.base)));
        drop(bases);
        if let Some((true, base)) = &known
            && base.is_current(view)
        {
            return Arc::clone(base);
        }
        let reads = self.reads(ClusterId(fold.cluster.meta.uuid), profile);
        let base = Base::new(view, profile, reads, (&self.outcomes, &self.texts));
        // Where another fold says nothing else of what the tasks read, what was worked out by the one before holds.
        let before = known.map(|(_, before)| before).filter(|before| before.says_as(&base));
        let base = before.unwrap_or_else(|| Arc::new(base));
        let known = Known { fold: Arc::clone(fold), base: Arc::clone(&base) };
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if bases.len() >= MIN_KEPT && bases.len().is_power_of_two() {
            bases.retain(|(group, profile), known| view.fleet().uses(*group, profile, &known.fold));
        }
        bases.insert(key, known);
        base
    }

    fn reads(&self, cluster: ClusterId, profile: &Profile) -> Arc<ProfileReads> {
        let mut profiles = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (cluster, profile.hash);
        if let Some(known) = profiles.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        if profiles.len() >= MIN_KEPT && profiles.len().is_power_of_two() {
            profiles.retain(|_, reads| reads.strong_count() > 0);
        }
        let reads = Arc::new(ProfileReads::of(profile));
        profiles.insert(key, Arc::downgrade(&reads));
        reads
    }
}

/// What the tasks of a profile read, in the groups of one cluster.
#[derive(Debug, Default)]
pub(super) struct ProfileReads {
    /// The reads that look at other nodes or at secrets.
    fleetwide: Box<[u32]>,
    /// The reads that every node answers itself.
    own: Box<[u32]>,
    /// Per label, the reads that a node's own label answers.
    labels: BTreeMap<Box<str>, Vec<u32>>,
    /// Per parameter, likewise.
    parameters: BTreeMap<Box<str>, Vec<u32>>,
    /// Per task of the profile, its reads.
    tasks: Box<[TaskReads]>,
    /// What the group says that was resolved last, for the next one to be held as differences from it.
    last: Mutex<Option<Weak<[Input]>>>,
}

/// What the nodes of one group with one profile have in common.
#[derive(Debug)]
pub(super) struct Base {
    profile: Arc<Profile>,
    reads: Arc<ProfileReads>,
    /// Per read of the profile, what the group says; what only a node says, as the first one did.
    group: Arc<GroupInputs>,
    /// What a condition may take for each node, where it looks others up and reads what differs by node.
    steps: usize,
    /// What all conditions may take together for each node.
    together: usize,
    outcomes: Arc<Outcomes>,
    texts: SharedTexts,
    /// By the hash of what nodes say otherwise.
    sets: Mutex<BTreeMap<[u8; 32], Weak<TaskSet>>>,
}

/// The places, among the reads of a profile, of what one task reads.
#[derive(Debug)]
struct TaskReads {
    ix: TaskIx,
    condition: Box<[u32]>,
    /// How many nodes share what its condition gives.
    scope: Scope,
    templates: Box<[u32]>,
}

impl ProfileReads {
    pub(super) fn of(profile: &Profile) -> Self {
        let place = |reference: &Reference| profile.read_at(reference);
        let of_task = |ix: TaskIx| {
            let task = profile.release.task(ix);
            let of_condition = task.condition.as_ref().map_or(&[][..], |condition| condition.references());
            TaskReads {
                ix,
                condition: of_condition.iter().map(place).collect(),
                scope: Scope::of(of_condition),
                templates: task.references.iter().map(place).collect(),
            }
        };
        let mut of = Self { tasks: profile.all().into_iter().map(of_task).collect(), ..Self::default() };
        let (mut fleetwide, mut own) = (Vec::new(), Vec::new());
        for (at, reference) in (0..).zip(&profile.reads) {
            match reference.read() {
                Read::Label(key) => of.labels.entry(key.clone()).or_default().push(at),
                Read::Parameter(path) => of.parameters.entry(path.first().into()).or_default().push(at),
                Read::LabelsWithPrefix(_) | Read::Trait(_) | Read::Fact(_) | Read::Node(_) => own.push(at),
                Read::Nodes { .. } | Read::Primary { .. } | Read::Secret(_) => fleetwide.push(at),
                Read::Tag(_) | Read::Cluster(_) => {}
            }
        }
        (of.fleetwide, of.own) = (fleetwide.into(), own.into());
        of
    }

    /// What a group says, held as differences from what another one of the cluster does.
    fn group(&self, profile: &Arc<Profile>, inputs: Vec<Input>) -> GroupInputs {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Whether a look-up finds what it found is told by where that is held.
        let may_share = |at| self.fleetwide.binary_search(&at).is_err();
        let group = GroupInputs::new(profile, inputs, last.as_ref().and_then(Weak::upgrade), may_share);
        *last = Some(Arc::downgrade(group.alike()));
        group
    }
}

impl Base {
    pub(super) fn new(
        view: &NodeView<'_>,
        profile: &Arc<Profile>,
        reads: Arc<ProfileReads>,
        (outcomes, texts): (&Arc<Outcomes>, &SharedTexts),
    ) -> Self {
        let inputs = profile.reads.iter().map(|one| view.group_input(one).shared(texts)).collect();
        Self {
            profile: Arc::clone(profile),
            group: Arc::new(reads.group(profile, inputs)),
            reads,
            steps: view.steps(),
            together: view.steps_together(),
            outcomes: Arc::clone(outcomes),
            texts: texts.clone(),
            sets: Mutex::default(),
        }
    }

    /// Whether the reads that look at other nodes or at secrets find what they found.
    fn is_current(&self, view: &NodeView<'_>) -> bool {
        let finds = |at: &u32| self.group.at(*at).is_same(&view.input(&self.profile.reads[*at as usize]));
        self.together == view.steps_together()
            && self.reads.fleetwide.iter().all(finds)
            && (self.reads.fleetwide.is_empty() || self.steps == view.steps())
    }

    /// Whether it gives each node the same as another one does. What only a node says is asked of each. A map of labels is asked of each too, but most
    /// nodes find the group's: if that is another one, each of them would hold it as its own.
    fn says_as(&self, other: &Self) -> bool {
        let is_alike = |at: u32| {
            let (one, other) = (self.group.at(at), other.group.at(at));
            one.is_same(other) || (self.reads.fleetwide.binary_search(&at).is_err() && one == other)
        };
        let of_group = (0..).zip(&self.profile.reads).filter(|(_, reference)| !reference.read().is_of_node());
        Arc::ptr_eq(&self.profile, &other.profile)
            && (self.steps, self.together) == (other.steps, other.together)
            && of_group.map(|(at, _)| at).all(is_alike)
    }

    /// What a node says otherwise than the base, by place; sorted.
    fn differences(&self, view: &NodeView<'_>) -> Vec<(u32, Input)> {
        let ProfileReads { own, labels, parameters, .. } = &*self.reads;
        let mut asked: Vec<u32> = own.to_vec();
        let spec = &view.node().spec.inherited;
        if view.fills_labels() || !spec.labels.merges() {
            asked.extend(labels.values().flatten());
        } else {
            let provided = spec.labels.provided.iter().flat_map(OwnedMap::iter);
            asked.extend(provided.filter_map(|(key, _)| labels.get(key.as_str())).flatten());
        }
        let provided = spec.parameters.provided.iter().flat_map(OwnedMap::iter);
        asked.extend(provided.filter_map(|(key, _)| parameters.get(key.as_str())).flatten());
        asked.sort_unstable();
        asked.dedup();
        let answered =
            asked.into_iter().map(|at| (at, view.input(&self.profile.reads[at as usize]).shared(&self.texts)));
        answered.filter(|(at, input)| input != self.group.at(*at)).collect()
    }

    /// The task set of all nodes that differ so.
    fn shared(&self, own: &[(u32, Input)]) -> Arc<TaskSet> {
        let key = sha256(text(own.iter().map(|(at, input)| (*at, input))).as_bytes());
        let known = self.sets.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade);
        if let Some(known) = known {
            return known;
        }
        let set = Arc::new(self.task_set(own));
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= MIN_KEPT && sets.len().is_power_of_two() {
            sets.retain(|_, set| set.strong_count() > 0);
        }
        sets.insert(key, Arc::downgrade(&set));
        set
    }

    /// Works a task set out.
    pub(super) fn task_set(&self, own: &[(u32, Input)]) -> TaskSet {
        let values = Values { group: &self.group, own };
        let (mut set, mut account) = (TaskSetBuilder::new(&self.group), Account::of(self.together));
        for reads in &self.reads.tasks {
            let task = self.profile.release.task(reads.ix);
            match self.left_out(task, reads, &values, &mut account) {
                Some(why) => set.left_out.push((reads.ix, why)),
                None => {
                    if let Err(why) = self.collect(&reads.templates, &values).and_then(|inputs| set.add(&inputs)) {
                        set.left_out.push((reads.ix, why));
                    }
                }
            }
        }
        set.finish()
    }

    /// Why a task does not run; what its condition gives is remembered by what it reads. The node pays for it, whoever had it evaluated.
    fn left_out(
        &self,
        task: &CompiledTask,
        reads: &TaskReads,
        values: &Values<'_>,
        account: &mut Account,
    ) -> Option<LeftOut> {
        if task.is_skipped_type() {
            return Some(LeftOut::Marker);
        }
        if self.profile.not_asserted.binary_search(&reads.ix).is_ok() {
            return Some(LeftOut::NotAsserted);
        }
        let condition = task.condition.as_ref()?;
        let most = if reads.scope == Scope::Each { self.steps } else { MAX_STEPS };
        let key = (task.definition, sha256(condition_text(reads, values, most).as_bytes()));
        let known = self.outcomes.get(reads.scope, &key);
        let mut outcome = known.clone().unwrap_or_else(|| self.weigh(&**condition, reads, values, most));
        let paid = account.pay(self.price(reads, outcome.steps));
        if paid.is_ok() && outcome.result == Evaluation::Pending {
            outcome.result = self.evaluate(&**condition, reads, values);
        }
        let left_out = paid.map_or_else(Some, |()| outcome.result.left_out(task));
        if known.as_ref() != Some(&outcome) {
            self.outcomes.insert(reads.scope, key, outcome);
        }
        left_out
    }

    /// What a condition costs. One that cannot be evaluated costs nothing.
    fn weigh(&self, condition: &dyn Condition, reads: &TaskReads, values: &Values<'_>, most: usize) -> Evaluated {
        let steps = self
            .collect(&reads.condition, values)
            .and_then(|inputs| condition.weigh(&inputs, most).map_err(|reason| unevaluated(&reason)));
        match steps {
            Ok(steps) => Evaluated { steps, result: Evaluation::Pending },
            Err(why) => Evaluated { steps: 0, result: Evaluation::LeftOut(why.shared(&self.texts)) },
        }
    }

    fn evaluate(&self, condition: &dyn Condition, reads: &TaskReads, values: &Values<'_>) -> Evaluation {
        let holds = self
            .collect(&reads.condition, values)
            .and_then(|inputs| condition.evaluate(&inputs).map_err(|reason| unevaluated(&reason)));
        holds.map_or_else(|why| Evaluation::LeftOut(why.shared(&self.texts)), Evaluation::Decided)
    }

    /// What a node pays for a condition.
    fn price(&self, reads: &TaskReads, steps: usize) -> usize {
        if reads.scope == Scope::Cluster { share_of(steps, self.steps) } else { steps }
    }

    fn collect(&self, places: &[u32], values: &Values<'_>) -> Result<Inputs, LeftOut> {
        let mut inputs = Inputs::new();
        for at in places {
            let added = inputs.insert(self.profile.reads[*at as usize].clone(), values.at(*at).clone());
            added.map_err(|reason| LeftOut::TooLarge { reason: reason.to_string().into() })?;
        }
        Ok(inputs)
    }
}

/// The group's inputs with a node's own before them.
struct Values<'a> {
    group: &'a GroupInputs,
    own: &'a [(u32, Input)],
}

impl<'a> Values<'a> {
    fn at(&self, at: u32) -> &'a Input {
        let own = self.own.binary_search_by_key(&at, |(place, _)| *place);
        own.map_or_else(|_| self.group.at(at), |found| &self.own[found].1)
    }
}

/// Builds a task set, task by task.
struct TaskSetBuilder {
    group: Arc<GroupInputs>,
    left_out: Vec<(TaskIx, LeftOut)>,
    inputs: Inputs,
}

impl TaskSetBuilder {
    fn new(group: &Arc<GroupInputs>) -> Self {
        Self { group: Arc::clone(group), left_out: Vec::new(), inputs: Inputs::new() }
    }

    fn add(&mut self, inputs: &Inputs) -> Result<(), LeftOut> {
        for (reference, input) in inputs {
            let added = self.inputs.insert(reference.clone(), input.clone());
            added.map_err(|reason| LeftOut::TooLarge { reason: reason.to_string().into() })?;
        }
        Ok(())
    }

    fn finish(self) -> TaskSet {
        TaskSet::new(&self.group, self.left_out, &self.inputs)
    }
}

/// What decides a condition, as a text that tells any two apart. It is no longer than what the condition says and reads of small values, so
/// nobody pays for it.
fn condition_text(reads: &TaskReads, values: &Values<'_>, most: usize) -> String {
    format!("{most}\n{}", text((0..).zip(&reads.condition).map(|(nth, at)| (nth, values.at(*at)))))
}

/// Values by place, as one text that tells any two apart. What is shared stands there by its digest.
fn text<'a>(values: impl Iterator<Item = (u32, &'a Input)>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (at, input) in values {
        // Writing to a string can't fail; JSON has no bare control characters, so that none of its texts runs on.
        let _ = match input {
            Input::Value(value) => writeln!(text, "{at}={value}"),
            Input::Shared(shared) => writeln!(text, "{at}#{}", shared.digest()),
            Input::Absent => writeln!(text, "{at}-"),
            Input::Secret { name, version } => writeln!(text, "{at}${version} {name}"),
        };
    }
    text
}
