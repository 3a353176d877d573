//! What resolve gives: the known part, and the task set.
//!
//! An answer holds shared parts of the model and computes the rest when asked: a fleet of a hundred thousand nodes
//! has a few hundred folds and task sets, and an answer is a handful of pointers to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use fixedbitset::FixedBitSet;
use serde_json::Value;

use crate::digest::{DigestVersion, TaskDigest, TaskHasher, canonical_object};
use crate::finding::{Finding, rule};
use crate::fleet::{GroupFold, Missing, NodeEntry};
use crate::host_labels::HostLabelRule;
use crate::input::{Input, Inputs, Reference};
use crate::inspection::Ruled;
use crate::labels::{Annotations, Labels, Parameters};
use crate::lifecycle::Limits;
use crate::name::{Name, TagName};
use crate::object::{Hold, Node, NodeGroupSpec, NodeId, Observation, SaidOnHost};
use crate::origin::{Level, Resolved};
use crate::release::{CompiledRelease, CompiledTask, OnHost, Profile, TaskIx};
use crate::requirement::Unmet;
use crate::shared_text::SharedTexts;
use crate::task::{Claims, Mode, PathRefused, PathTaken};
use crate::traits::{InstanceTraits, NodeTraits};

/// Resolved, or not to be resolved yet.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// Everything was there. Only this can be encoded and sent.
    Complete(Arc<Answer>),
    /// Something is missing: the host stays as it is, and this is a finding.
    Incomplete(Vec<Missing>),
}

/// What one node is told, and where each value comes from.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(crate) entry: Arc<NodeEntry>,
    pub(crate) ruled: Arc<Ruled>,
    pub(crate) said: Option<Arc<SaidOnHost>>,
    pub(crate) fold: Option<Arc<GroupFold>>,
    pub(crate) task_set: Option<Arc<TaskSet>>,
    pub(crate) unmet: Option<Box<AllUnmet>>,
}

/// What a node runs: replaced only when it is released. Nodes that are alike in all of it share it.
///
/// A fleet may have one for each node. So it holds what differs from the group's, and of the rest a bit for each task and read.
#[derive(Debug)]
pub struct TaskSet {
    /// Placement before conditions, and order.
    pub profile: Arc<Profile>,
    /// What a rollout compares, under the newest definition. [`Self::task_digest`] gives it under another.
    pub digest: TaskDigest,
    /// What most nodes of the group find, so that it can be stored once for them.
    pub group: Arc<GroupInputs>,
    /// The tasks that do not run for what their definition says, by their place in the release.
    by_definition: FixedBitSet,
    /// The other tasks that do not run, with the reason; in the order of ids.
    otherwise: Box<[(TaskIx, LeftOut)]>,
    /// What the templates of the tasks that run read, by the place among the profile's reads.
    read: FixedBitSet,
    /// The values of those reads that are not the group's, by that place; sorted.
    own: Box<[(u32, Input)]>,
    input_bytes: usize,
    /// The tasks that have no path, once somebody asked.
    without_path: OnceLock<Box<[WithoutPath]>>,
}

/// A task that runs and whose path the host refuses, or another path or program that it names.
#[derive(Clone, Debug)]
pub struct WithoutPath {
    /// The task.
    pub task: TaskIx,
    /// Why.
    pub why: NoPath,
}

/// Why a task has no path on a host.
#[derive(Clone, Debug)]
pub enum NoPath {
    /// It is that of a task before it.
    Taken(PathTaken<TaskIx>),
    /// What its template gives there is none that a host takes.
    Refused(PathRefused),
    /// What the template of another path or of a program gives there is none that a host takes.
    Name {
        /// The field of that template.
        field: Box<str>,
        /// Why.
        why: Box<str>,
    },
}

/// What the tasks of a profile read in one group, as a node finds it that says nothing itself. Nodes that were resolved with it share it.
#[derive(Debug)]
pub struct GroupInputs {
    pub(super) profile: Arc<Profile>,
    /// Per read of the profile, what another group of the cluster says: groups say most of it alike. What a node answers for itself is that of
    /// the node that was resolved first.
    alike: Arc<[Input]>,
    /// What this group says otherwise, by place; sorted.
    otherwise: Box<[(u32, Input)]>,
}

impl GroupInputs {
    /// These inputs, per read of the profile, held as differences from those of another group where that takes less. `may_share` says whether
    /// equal ones of a place may be held as one.
    pub(super) fn new(
        profile: &Arc<Profile>,
        inputs: Vec<Input>,
        known: Option<Arc<[Input]>>,
        may_share: impl Fn(u32) -> bool,
    ) -> Self {
        let profile = Arc::clone(profile);
        if let Some(alike) = known.filter(|known| known.len() == inputs.len()) {
            let differs = |(at, input): &(u32, Input)| {
                let other = &alike[*at as usize];
                !(other.is_same(input) || (may_share(*at) && other == input))
            };
            let otherwise: Box<[_]> = (0..).zip(inputs.iter().cloned()).filter(differs).collect();
            if otherwise.len() <= inputs.len() / 4 {
                return Self { profile, alike, otherwise };
            }
        }
        Self { profile, alike: inputs.into(), otherwise: Box::default() }
    }

    /// The inputs from which this one differs: another group may be held so too.
    pub(super) fn alike(&self) -> &Arc<[Input]> {
        &self.alike
    }

    /// The value of the profile's read at this place.
    pub(super) fn at(&self, at: u32) -> &Input {
        own_at(&self.otherwise, at).unwrap_or_else(|| &self.alike[at as usize])
    }

    /// The value of each read of the profile that the group answers. What a node answers for itself is left out, so that the values of two
    /// groups which say the same are equal.
    pub fn inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        let all = (0..).zip(&self.profile.reads).map(|(at, reference)| (reference, self.at(at)));
        all.filter(|(reference, _)| !reference.read().is_of_node())
    }

    /// The value of one read; `None`: the profile does not read it.
    pub fn input(&self, reference: &Reference) -> Option<&Input> {
        let at = self.profile.reads.binary_search(reference).ok()?;
        Some(self.at(u32::try_from(at).ok()?))
    }

    /// Why tasks of phase `apply` do not run: each task that may be left out for what all nodes are told alike, with this reason.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, LeftOut)> {
        let tasks = self.profile.tasks.iter().map(|ix| self.profile.release.task(*ix));
        tasks.filter_map(move |task| Some((task.task.id.as_str(), LeftOut::by_definition(task)?)))
    }

    /// The effective tags of its nodes, plain and sorted.
    pub fn tags(&self) -> &[TagName] {
        &self.profile.place.tags
    }

    /// Those held as primary, plain and sorted.
    pub fn primary_tags(&self) -> &[TagName] {
        &self.profile.place.primaries
    }
}

/// The entry of a place.
fn own_at(own: &[(u32, Input)], at: u32) -> Option<&Input> {
    let found = own.binary_search_by_key(&at, |(place, _)| *place).ok()?;
    Some(&own[found].1)
}

/// Why a task of the profile does not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum LeftOut {
    /// Its condition is false.
    #[display("condition is false: {condition}")]
    False {
        /// The condition as written.
        condition: Arc<str>,
    },
    /// Its condition could not be evaluated, which counts as false.
    #[display("condition counts as false: it {reason}")]
    Failed {
        /// Why.
        reason: Arc<str>,
    },
    /// Its condition takes more steps than it may, so nobody knows whether it holds. It counts as false for a host that does not run the
    /// task; one that runs it keeps the task set that it has.
    #[display("condition is undecided and counts as false: it {reason}")]
    Undecided {
        /// Why.
        reason: Arc<str>,
    },
    /// It is only a marker (`type: skipped`).
    #[display("type is skipped")]
    Marker,
    /// It is privileged, and falls to the node by something else than what operators gave it.
    #[display(
        "it is privileged, and no role or tag that an operator gave the node places it: what an extension adds does not count, \
         nor does the name master"
    )]
    NotAsserted,
    /// Its inputs are larger than may be sent.
    #[display("{reason}")]
    TooLarge {
        /// Which, and how large.
        reason: Arc<str>,
    },
}

/// Whether the condition of a task lets it run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    /// It does not run: its condition is false or failed, or what it reads is too large.
    No,
    /// Nobody knows: the condition takes more steps than it may.
    Undecided,
    /// It runs.
    Yes,
}

/// All that is not met. Apart, since a fleet has an answer a node, and few of them have any.
#[derive(Clone, Debug)]
pub(crate) struct AllUnmet(pub(crate) Vec<Unmet>);

impl LeftOut {
    /// Why a task does not run whose definition alone says so, once it does not; `None`: it always runs, or for another reason does not.
    pub(super) fn by_definition(task: &CompiledTask) -> Option<Self> {
        if task.is_skipped_type() {
            return Some(Self::Marker);
        }
        task.condition.is_some().then(|| Self::False { condition: Arc::clone(&task.condition_text) })
    }

    /// Holds its text as others hold it.
    pub(super) fn shared(mut self, texts: &SharedTexts) -> Self {
        match &mut self {
            Self::Failed { reason } | Self::Undecided { reason } | Self::TooLarge { reason } => {
                texts.share([reason].into_iter());
            }
            Self::False { .. } | Self::NotAsserted | Self::Marker => {}
        }
        self
    }

    /// What is found of a task of this id that it leaves out; `None`: nothing is wrong.
    fn finding(&self, task: &str) -> Option<Finding> {
        let found = |rule, message| Some(Finding::of(rule, format!("task/{task}"), message));
        match self {
            Self::Failed { .. } => found(rule::CONDITION_FAILED, self.to_string()),
            Self::Undecided { .. } => {
                let until = "A host that runs the task keeps the task set that it has until then";
                found(rule::CONDITION_FAILED, format!("{self}. {until}"))
            }
            Self::TooLarge { .. } => found(rule::INPUTS_SIZE, self.to_string()),
            Self::NotAsserted => {
                let advice = "assign the tag by hand, or let the role declare it";
                found(rule::TASK_NOT_ASSERTED, format!("{self}; {advice}"))
            }
            Self::False { .. } | Self::Marker => None,
        }
    }

    /// The length of what it says of its own.
    pub fn text_len(&self) -> usize {
        match self {
            Self::False { condition: text }
            | Self::Failed { reason: text }
            | Self::Undecided { reason: text }
            | Self::TooLarge { reason: text } => text.len(),
            Self::NotAsserted | Self::Marker => 0,
        }
    }
}

impl WithoutPath {
    /// The task that has its path; `None`: it is no path at all, or another text of the task is wrong.
    pub fn taken(&self) -> Option<&PathTaken<TaskIx>> {
        match &self.why {
            NoPath::Taken(taken) => Some(taken),
            NoPath::Refused(_) | NoPath::Name { .. } => None,
        }
    }

    /// The field of the task that says it.
    pub fn field(&self) -> &str {
        match &self.why {
            NoPath::Taken(_) | NoPath::Refused(_) => "parameters.path",
            NoPath::Name { field, .. } => field,
        }
    }

    /// Why, and what to do.
    pub fn sentence(&self, release: &CompiledRelease) -> String {
        match &self.why {
            NoPath::Taken(taken) => taken.sentence(release.id(taken.first.by)),
            NoPath::Refused(refused) => format!("the host refuses what its template of a path gives: {refused}"),
            NoPath::Name { field, why } => format!("the host refuses what the template of {field} gives: {why}"),
        }
    }

    fn finding(&self, release: &CompiledRelease) -> Finding {
        let sentence = self.sentence(release);
        Finding::of(rule::TASK_PATH, format!("task/{}", release.id(self.task)), sentence)
    }
}

impl Resolution {
    /// The answer, if there is one.
    pub fn answer(&self) -> Option<&Arc<Answer>> {
        match self {
            Self::Complete(answer) => Some(answer),
            Self::Incomplete(_) => None,
        }
    }
}

impl TaskSet {
    /// The task set of a group's profile without these tasks, in the order of ids, and with what the templates of the others read.
    pub fn new(group: &Arc<GroupInputs>, left_out: Vec<(TaskIx, LeftOut)>, inputs: &Inputs) -> Self {
        let profile = Arc::clone(&group.profile);
        let is_by_definition = |(ix, why): &(TaskIx, LeftOut)| {
            LeftOut::by_definition(profile.release.task(*ix)).is_some_and(|reason| reason == *why)
        };
        let (by_definition, otherwise): (Vec<_>, Vec<_>) = left_out.into_iter().partition(is_by_definition);
        let place = |(reference, input): (&Reference, &Input)| (profile.read_at(reference), input.clone());
        let inputs_of_places: Vec<(u32, Input)> = inputs.iter().map(place).collect();
        let mut set = Self {
            digest: TaskDigest([0; 32]),
            group: Arc::clone(group),
            by_definition: by_definition.iter().map(|(ix, _)| ix.at()).collect(),
            otherwise: otherwise.into(),
            read: inputs_of_places.iter().map(|(at, _)| *at as usize).collect(),
            own: inputs_of_places.into_iter().filter(|(at, input)| group.at(*at) != input).collect(),
            input_bytes: inputs.bytes(),
            without_path: OnceLock::new(),
            profile,
        };
        set.digest = set.digest_under(DigestVersion::NEWEST);
        set
    }

    /// What is found of its tasks: conditions that could not be evaluated, inputs that were too large, privileged tasks that nobody
    /// asserted, and paths that two of them write or that no host takes. Made anew each time, since a fleet has many such task sets.
    pub fn findings(&self) -> impl Iterator<Item = Finding> {
        let left_out = self.left_out_ids().filter_map(|(id, why)| why.finding(id));
        left_out.chain(self.without_path().iter().map(|one| one.finding(&self.profile.release)))
    }

    /// The tasks that run and that the host refuses for their path, or for another path or program that they name, in order.
    pub fn without_path(&self) -> &[WithoutPath] {
        if !self.profile.may_lack_paths() {
            return &[];
        }
        self.without_path.get_or_init(|| {
            let mut claims = Claims::default();
            let tasks = self.profile.may_lack_paths.iter().filter(|ix| self.runs(**ix));
            tasks.filter_map(|ix| self.claim(*ix, &mut claims).or_else(|| self.misnamed(*ix))).collect()
        })
    }

    fn claim(&self, ix: TaskIx, claims: &mut Claims<TaskIx>) -> Option<WithoutPath> {
        let task = self.profile.release.task(ix);
        let path = task.path.as_ref()?;
        let claimed = match path.on_host(|| self.inputs_of(task)) {
            OnHost::Path(text) => claims.claim(ix, &text, path.leaves),
            // Equal templates give equal paths, whatever it is that they read. So do their beginnings.
            OnHost::Unknown(template) => claims.claim(ix, template, path.leaves),
            OnHost::Refused(refused) => return Some(WithoutPath { task: ix, why: NoPath::Refused(refused) }),
        };
        Some(WithoutPath { task: ix, why: NoPath::Taken(claimed.err()?) })
    }

    /// The first of what a task names besides its path that no host takes.
    fn misnamed(&self, ix: TaskIx) -> Option<WithoutPath> {
        let task = self.profile.release.task(ix);
        let inputs = (!task.names.is_empty()).then(|| self.inputs_of(task))?;
        let (field, why) = task.names.iter().find_map(|one| Some((one.field.clone(), one.refused(&inputs)?)))?;
        Some(WithoutPath { task: ix, why: NoPath::Name { field, why: why.into() } })
    }

    /// What a task reads.
    fn inputs_of(&self, task: &CompiledTask) -> Inputs {
        let mut inputs = Inputs::new();
        for reference in &task.references {
            let inserted = inputs.insert(reference.clone(), self.input_at(self.profile.read_at(reference)).clone());
            inserted.expect("they were inputs of one task set before");
        }
        inputs
    }

    /// The value of everything that the templates of the tasks read that run, in the order of the references' texts.
    pub fn each_input(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        let places = self.read.ones().filter_map(|at| u32::try_from(at).ok());
        places.map(|at| (&self.profile.reads[at as usize], self.input_at(at)))
    }

    /// The same as one collection.
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::new();
        for (reference, input) in self.each_input() {
            inputs.insert(reference.clone(), input.clone()).expect("they were inputs of one task set before");
        }
        inputs
    }

    /// How many these are, and their bytes ([`Inputs::bytes`]).
    pub fn input_sizes(&self) -> (usize, usize) {
        (self.read.count_ones(..), self.input_bytes)
    }

    /// Those of them that are not the group's.
    pub fn own_inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        self.own.iter().map(|(at, input)| (&self.profile.reads[*at as usize], input))
    }

    /// The ids of the tasks of phase `apply` that do not run for another reason than what their definition says.
    pub fn otherwise_left_out_ids(&self) -> impl Iterator<Item = (&str, &LeftOut)> {
        let of_apply = self.otherwise.iter().filter(|(ix, _)| self.profile.has(*ix));
        of_apply.map(|(ix, why)| (self.profile.release.id(*ix), why))
    }

    fn input_at(&self, at: u32) -> &Input {
        own_at(&self.own, at).unwrap_or_else(|| self.group.at(at))
    }

    /// The tasks that run, in order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskIx> {
        self.profile.tasks.iter().copied().filter(|ix| self.runs(*ix))
    }

    /// Whether a task of the profile runs.
    pub fn runs(&self, ix: TaskIx) -> bool {
        !self.by_definition.contains(ix.at()) && self.otherwise_left_out(ix).is_none()
    }

    fn otherwise_left_out(&self, ix: TaskIx) -> Option<&LeftOut> {
        let at = self.otherwise.binary_search_by_key(&ix, |(ix, _)| *ix).ok()?;
        Some(&self.otherwise[at].1)
    }

    /// Why a task of the profile does not run; `None`: it does.
    pub fn why_left_out(&self, ix: TaskIx) -> Option<LeftOut> {
        if self.by_definition.contains(ix.at()) {
            return LeftOut::by_definition(self.profile.release.task(ix));
        }
        self.otherwise_left_out(ix).cloned()
    }

    /// The digest under one definition: what was released is compared under the one that it was released with.
    pub fn task_digest(&self, version: DigestVersion) -> TaskDigest {
        if version == DigestVersion::NEWEST {
            return self.digest;
        }
        self.digest_under(version)
    }

    /// The digest of the tasks of all phases that run, with what their templates read.
    fn digest_under(&self, version: DigestVersion) -> TaskDigest {
        let profile = &self.profile;
        let mut hasher = TaskHasher::new(version, &profile.place.tags, &profile.place.primaries);
        for ix in profile.all().into_iter().filter(|ix| self.runs(*ix)) {
            let task = profile.release.task(ix);
            hasher.task(&task.definition, task.task.is_untranslated(), &self.inputs_text(&task.references));
        }
        hasher.finish()
    }

    /// What a task reads, as the task digest takes it.
    fn inputs_text(&self, references: &[Reference]) -> String {
        if references.is_empty() {
            return "{}".to_owned();
        }
        let input = |reference: &Reference| (reference.to_string(), self.input_at(self.profile.read_at(reference)));
        canonical_object(references.iter().map(input).collect(), |out, input| input.write_canonical(out))
    }

    /// The ids of those that are placed and never started, in order.
    pub(crate) fn untranslated_ids(&self) -> impl Iterator<Item = &str> {
        let tasks = self.tasks().map(|ix| self.profile.release.task(ix));
        tasks.filter(|task| task.task.is_untranslated()).map(|task| task.task.id.as_str())
    }

    /// The ids of the tasks that run, in order.
    pub fn task_ids(&self) -> impl Iterator<Item = &str> {
        self.tasks().map(|ix| self.profile.release.id(ix))
    }

    /// The ids of the tasks of phase `apply` that do not run, with the reason.
    pub fn left_out_ids(&self) -> impl Iterator<Item = (&str, LeftOut)> {
        let by_definition = self.by_definition.ones().filter_map(|at| u32::try_from(at).ok()).map(TaskIx);
        let mut all: Vec<TaskIx> = by_definition.chain(self.otherwise.iter().map(|(ix, _)| *ix)).collect();
        all.sort_unstable();
        let of_apply = all.into_iter().filter(|ix| self.profile.has(*ix));
        of_apply.filter_map(|ix| Some((self.profile.release.id(ix), self.why_left_out(ix)?)))
    }

    /// The ids of those of them whose condition takes more steps than it may.
    pub(crate) fn undecided_ids(&self) -> impl Iterator<Item = &str> {
        let undecided = self.otherwise.iter().filter(|(_, why)| matches!(why, LeftOut::Undecided { .. }));
        undecided.filter(|(ix, _)| self.profile.has(*ix)).map(|(ix, _)| self.profile.release.id(*ix))
    }

    /// The ids of its privileged tasks whose conditions let them run, or may, and did not so in what the node had before; each with what its
    /// condition gives. Undecided counts, since a report of a host may decide it later, and then nobody is asked.
    pub fn privileged_started_since(&self, before: Option<&Self>) -> Vec<(&str, Met)> {
        let known: BTreeMap<&[u8; 32], Met> = before
            .into_iter()
            .flat_map(Self::privileged_by_condition)
            .map(|(task, met)| (&task.definition, met))
            .collect();
        let was = |definition: &[u8; 32]| known.get(definition).copied().unwrap_or(Met::No);
        let started = self.privileged_by_condition().filter(|(task, met)| *met > was(&task.definition));
        started.map(|(task, met)| (task.task.id.as_str(), met)).collect()
    }

    /// Whether one of its privileged tasks that have a condition runs, by its definition.
    pub fn runs_privileged(&self, definition: &[u8; 32]) -> bool {
        self.privileged_by_condition().any(|(task, met)| task.definition == *definition && met == Met::Yes)
    }

    /// Its privileged tasks that have a condition, each with what that gives.
    fn privileged_by_condition(&self) -> impl Iterator<Item = (&CompiledTask, Met)> {
        let tasks = self.profile.privileged.iter().map(|ix| (self.profile.release.task(*ix), *ix));
        tasks.filter(|(task, _)| task.condition.is_some()).map(|(task, ix)| (task, self.met(ix)))
    }

    fn met(&self, ix: TaskIx) -> Met {
        match self.why_left_out(ix) {
            None => Met::Yes,
            Some(LeftOut::Undecided { .. }) => Met::Undecided,
            Some(
                LeftOut::False { .. }
                | LeftOut::Failed { .. }
                | LeftOut::Marker
                | LeftOut::NotAsserted
                | LeftOut::TooLarge { .. },
            ) => Met::No,
        }
    }

    /// The effective tags, plain and sorted.
    pub fn tags(&self) -> &[TagName] {
        self.group.tags()
    }

    /// Those held as primary, plain and sorted.
    pub fn primary_tags(&self) -> &[TagName] {
        self.group.primary_tags()
    }
}

impl Answer {
    /// The node.
    pub fn id(&self) -> NodeId {
        self.entry.node.id()
    }

    /// The node's spec and meta.
    pub fn node(&self) -> &Arc<Node> {
        &self.entry.node
    }

    /// What the host said, if it ever did.
    pub fn observation(&self) -> Option<&Arc<Observation>> {
        self.entry.observation.as_ref()
    }

    /// What was said on the host itself; `None`: nothing.
    pub fn said(&self) -> Option<&SaidOnHost> {
        self.said.as_deref()
    }

    /// What comes down to the node's group; `None`: the node is unplaced.
    pub fn fold(&self) -> Option<&Arc<GroupFold>> {
        self.fold.as_ref()
    }

    /// What the node runs; `None`: it is unplaced, or no level names a release.
    pub fn task_set(&self) -> Option<&Arc<TaskSet>> {
        self.task_set.as_ref()
    }

    /// Requirements that are not met: while there is one, no new task set is released to the node.
    pub fn unmet(&self) -> &[Unmet] {
        self.unmet.as_ref().map_or(&[], |all| &all.0)
    }

    /// Checks that the node has the traits that its instance wants: as long as it has not, no first task set is released to it.
    ///
    /// # Errors
    /// [`InstanceTraits`].
    pub fn check_instance(&self) -> Result<(), InstanceTraits> {
        self.entry.check_instance(&self.ruled)
    }

    /// The release that the nearest level names. Its profile may carry another of the same content.
    pub fn release(&self) -> Option<&Arc<CompiledRelease>> {
        Some(&self.fold.as_ref()?.release.as_ref()?.value)
    }

    /// `CLUSTER/GROUP`; `None`: unplaced.
    pub fn place(&self) -> Option<String> {
        self.fold.as_ref().map(|fold| fold.place())
    }

    /// The effective labels, each with its whole line of descent; what the host may fill is filled in.
    pub fn labels(&self) -> Labels {
        self.entry.labels(self.fold.as_deref(), &self.ruled)
    }

    /// The effective annotations.
    pub fn annotations(&self) -> Annotations {
        self.entry.annotations(self.fold.as_deref())
    }

    /// The effective parameters.
    pub fn parameters(&self) -> Parameters {
        self.entry.parameters(self.fold.as_deref())
    }

    /// Which labels flow to the host label map.
    pub fn host_labels(&self) -> Arc<HostLabelRule> {
        self.fold.as_ref().map_or_else(Default::default, |fold| Arc::clone(&fold.host_labels.value))
    }

    /// The traits, each with its sources.
    pub fn traits(&self) -> NodeTraits {
        self.entry.traits(&self.ruled).resolve()
    }

    /// What inspection rules give it.
    pub fn ruled(&self) -> &Ruled {
        &self.ruled
    }

    /// The lifecycle fields, each with its origin.
    pub fn limits(&self) -> Limits {
        let mut levels = self.fold.as_ref().map(|fold| fold.lifecycle()).unwrap_or_default();
        levels.push((Level::Node, self.entry.node.spec.inherited.lifecycle));
        Limits::resolve(&levels)
    }

    /// The mode's ceiling: the node's own, else its group's, else `apply`.
    pub fn mode(&self) -> Resolved<Mode> {
        self.entry.mode(self.fold.as_ref().map(|fold| &*fold.group))
    }

    /// Over how many seconds the host spreads what it does at a change.
    pub fn splay_seconds(&self) -> u32 {
        self.fold.as_ref().and_then(|fold| fold.group.spec.splay_seconds).unwrap_or(0)
    }

    /// After how many seconds without a word the host counts as silent.
    pub fn silent_after_seconds(&self) -> u32 {
        let said = self.fold.as_ref().and_then(|fold| fold.group.spec.silent_after_seconds);
        said.unwrap_or(NodeGroupSpec::SILENT_AFTER_SECONDS)
    }

    /// Whether, until when and why the node keeps its task set.
    pub fn hold(&self) -> Option<&Hold> {
        self.entry.node.spec.hold.as_deref()
    }

    /// Whether its spec says that the node is out of budgets and barriers. What its host says is [`Self::said`].
    pub fn is_parked(&self) -> bool {
        self.entry.node.spec.parked
    }

    /// Whether the group or the cluster is paused: no new task set is released then.
    pub fn is_paused(&self) -> bool {
        self.fold.as_ref().is_some_and(|fold| fold.group.spec.paused || fold.cluster.spec.paused)
    }

    /// The plain roles: the group's and the node's own.
    pub fn roles(&self) -> BTreeSet<Name> {
        self.entry.roles(self.fold.as_deref())
    }

    /// The ready probes by tag, for the tags that have some.
    pub fn ready(&self) -> Vec<(&TagName, &[Value])> {
        let (Some(fold), Some(set)) = (&self.fold, &self.task_set) else { return Vec::new() };
        let Some(table) = &fold.table else { return Vec::new() };
        let probes = set.tags().iter().filter_map(|tag| Some((tag, table.tag(tag)?.ready.as_slice())));
        probes.filter(|(_, ready)| !ready.is_empty()).collect()
    }
}
