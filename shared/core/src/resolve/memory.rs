//! What was resolved before, by content.
//!
//! Nodes of a group that have one profile read the same things, and most of them find the same values. So for each
//! group and profile a [`Base`] keeps what its first node found, and a node is looked at only for what it says itself:
//! its own labels and parameters, its facts and traits. Those that differ from the base's in the same way share one
//! task set; conditions and digests are worked out once for all of them.
//!
//! Nothing here is ever the truth. A base is used only for the very fold and (where it reads other nodes) the very
//! state of its cluster that it was made of; throwing everything away changes no answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::answer::{GroupInputs, LeftOut, TaskSet, task_digest};
use super::conditions::{Account, Evaluated, Evaluation, Outcomes, Scope, unevaluated};
use crate::condition::{Condition, MAX_STEPS, share_of};
use crate::digest::{DigestVersion, sha256};
use crate::fleet::{GroupFold, NodeView};
use crate::input::{Input, Inputs, Read, Reference};
use crate::object::GroupId;
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
        let known = bases.get(&key).filter(|known| Arc::ptr_eq(&known.fold, fold)).map(|known| Arc::clone(&known.base));
        drop(bases);
        if let Some(base) = known.filter(|base| base.is_current(view)) {
            return base;
        }
        let base = Arc::new(Base::new(view, profile, (&self.outcomes, &self.texts)));
        let known = Known { fold: Arc::clone(fold), base: Arc::clone(&base) };
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if bases.len() >= MIN_KEPT && bases.len().is_power_of_two() {
            bases.retain(|(group, profile), known| view.fleet().uses(*group, profile, &known.fold));
        }
        bases.insert(key, known);
        base
    }
}

/// What the nodes of one group with one profile have in common.
#[derive(Debug)]
pub(super) struct Base {
    profile: Arc<Profile>,
    /// Per read of the profile, what the group says; what only a node says, as the first one did.
    group: Arc<GroupInputs>,
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

impl Base {
    pub(super) fn new(
        view: &NodeView<'_>,
        profile: &Arc<Profile>,
        (outcomes, texts): (&Arc<Outcomes>, &SharedTexts),
    ) -> Self {
        let reads = &profile.reads;
        let place = |reference: &Reference| {
            let at = reads.binary_search(reference).expect("a profile reads whatever its tasks read");
            u32::try_from(at).expect("a profile has fewer reads than u32 counts")
        };
        let mut base = Self {
            profile: Arc::clone(profile),
            group: Arc::new(GroupInputs {
                profile: Arc::clone(profile),
                inputs: reads.iter().map(|one| view.group_input(one).shared(texts)).collect(),
            }),
            fleetwide: Box::new([]),
            own: Box::new([]),
            labels: BTreeMap::new(),
            parameters: BTreeMap::new(),
            tasks: profile
                .all()
                .into_iter()
                .map(|ix| {
                    let task = profile.release.task(ix);
                    let of_condition = task.condition.as_ref().map_or(&[][..], |condition| condition.references());
                    TaskReads {
                        ix,
                        condition: of_condition.iter().map(place).collect(),
                        scope: Scope::of(of_condition),
                        templates: task.references.iter().map(place).collect(),
                    }
                })
                .collect(),
            steps: view.steps(),
            together: view.steps_together(),
            outcomes: Arc::clone(outcomes),
            texts: texts.clone(),
            sets: Mutex::default(),
        };
        base.sort_reads();
        base
    }

    fn sort_reads(&mut self) {
        let (mut fleetwide, mut own) = (Vec::new(), Vec::new());
        for (at, reference) in (0..).zip(&self.profile.reads) {
            match reference.read() {
                Read::Label(key) => self.labels.entry(key.clone()).or_default().push(at),
                Read::Parameter(path) => self.parameters.entry(path.first().into()).or_default().push(at),
                Read::LabelsWithPrefix(_) | Read::Trait(_) | Read::Fact(_) | Read::Node(_) => own.push(at),
                Read::Nodes { .. } | Read::Primary { .. } | Read::Secret(_) => fleetwide.push(at),
                Read::Tag(_) | Read::Cluster(_) => {}
            }
        }
        (self.fleetwide, self.own) = (fleetwide.into(), own.into());
    }

    /// Whether the reads that look at other nodes or at secrets find what they found.
    fn is_current(&self, view: &NodeView<'_>) -> bool {
        let finds = |at: &u32| self.group.inputs[*at as usize].is_same(&view.input(&self.profile.reads[*at as usize]));
        self.together == view.steps_together()
            && self.fleetwide.iter().all(finds)
            && (self.fleetwide.is_empty() || self.steps == view.steps())
    }

    /// What a node says otherwise than the base, by place; sorted.
    fn differences(&self, view: &NodeView<'_>) -> Vec<(u32, Input)> {
        let mut asked: Vec<u32> = self.own.to_vec();
        let spec = &view.node().spec.inherited;
        if view.fills_labels() || !spec.labels.merges() {
            asked.extend(self.labels.values().flatten());
        } else {
            let provided = spec.labels.provided.iter().flat_map(OwnedMap::iter);
            asked.extend(provided.filter_map(|(key, _)| self.labels.get(key.as_str())).flatten());
        }
        let provided = spec.parameters.provided.iter().flat_map(OwnedMap::iter);
        asked.extend(provided.filter_map(|(key, _)| self.parameters.get(key.as_str())).flatten());
        asked.sort_unstable();
        asked.dedup();
        let answered =
            asked.into_iter().map(|at| (at, view.input(&self.profile.reads[at as usize]).shared(&self.texts)));
        answered.filter(|(at, input)| *input != self.group.inputs[*at as usize]).collect()
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
        let values = Values { base: &self.group.inputs, own };
        let (mut set, mut account) = (TaskSetBuilder::new(&self.group), Account::of(self.together));
        for reads in &self.tasks {
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
            Err(why) => Evaluated { steps: 0, result: Evaluation::LeftOut(why) },
        }
    }

    fn evaluate(&self, condition: &dyn Condition, reads: &TaskReads, values: &Values<'_>) -> Evaluation {
        let holds = self
            .collect(&reads.condition, values)
            .and_then(|inputs| condition.evaluate(&inputs).map_err(|reason| unevaluated(&reason)));
        holds.map_or_else(Evaluation::LeftOut, Evaluation::Decided)
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

/// The base's inputs with a node's own before them.
struct Values<'a> {
    base: &'a [Input],
    own: &'a [(u32, Input)],
}

impl<'a> Values<'a> {
    fn at(&self, at: u32) -> &'a Input {
        let own = self.own.binary_search_by_key(&at, |(place, _)| *place);
        own.map_or_else(|_| &self.base[at as usize], |found| &self.own[found].1)
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
        let profile = Arc::clone(&self.group.profile);
        TaskSet {
            digest: task_digest(DigestVersion::NEWEST, &profile, &self.left_out, &self.inputs),
            profile,
            group: self.group,
            left_out: self.left_out.into(),
            inputs: self.inputs,
        }
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
