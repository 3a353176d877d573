//! The result of resolve: the known part, and the task set.
//!
//! A resolved node holds shared parts of the model and computes the rest on demand. A fleet of a hundred thousand nodes
//! has a few hundred resolved groups and task sets, and a resolved node is a handful of pointers to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use fixedbitset::FixedBitSet;
use serde_json::Value;

use crate::digest::{DigestVersion, TaskDigest, TaskDigestHasher, canonical_object};
use crate::finding::{Finding, rule};
use crate::fleet::{MissingParent, NodeEntry, ResolvedGroup};
use crate::host_labels::HostLabelRule;
use crate::input::{Input, Inputs, Reference};
use crate::inspection::RuleOutcome;
use crate::labels::{Annotations, Labels, Parameters};
use crate::lifecycle::LifecycleLimits;
use crate::name::{Name, TagName};
use crate::object::{Hold, Node, NodeGroupSpec, NodeId, Observation, ReportedState};
use crate::origin::{Level, ValueWithOrigin};
use crate::release::{CompiledRelease, CompiledTask, Profile, RenderedPath, TaskIndex};
use crate::requirement::UnmetRequirement;
use crate::shared_text::SharedTexts;
use crate::task::{Mode, PathClaims, PathConflict, PathRefused};
use crate::traits::{InstanceTraits, NodeTraits};

/// The result of resolving one node.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// Nothing is missing. Only this can be encoded and sent.
    Complete(Arc<ResolvedNode>),
    /// Something is missing. The host stays unchanged, and findings report what is missing.
    Incomplete(Vec<MissingParent>),
}

/// Everything that resolve computed for one node, with the origin of each value.
#[derive(Clone, Debug)]
pub struct ResolvedNode {
    pub(crate) entry: Arc<NodeEntry>,
    pub(crate) rule_outcome: Arc<RuleOutcome>,
    pub(crate) reported_state: Option<Arc<ReportedState>>,
    pub(crate) group: Option<Arc<ResolvedGroup>>,
    pub(crate) task_set: Option<Arc<TaskSet>>,
    pub(crate) unmet_requirements: Option<Box<UnmetRequirements>>,
}

/// The tasks that a node runs, with their inputs. The host gets another task set only by a release. Nodes with the same
/// tasks and inputs share one task set.
///
/// A fleet may have one task set for each node. So a task set stores only the inputs that differ from the group's, and
/// one bit for each task and each read.
#[derive(Debug)]
pub struct TaskSet {
    /// The placement of tasks before conditions, and their order.
    pub profile: Arc<Profile>,
    /// The digest that a rollout compares, under the newest digest version. [`Self::task_digest`] returns it under
    /// another version.
    pub digest: TaskDigest,
    /// The values that most nodes of the group read, stored once for all of them.
    pub group_inputs: Arc<GroupInputs>,
    /// The tasks that are skipped for the reason that follows from their definition alone, by index in the release.
    skipped_by_definition: FixedBitSet,
    /// The other skipped tasks, with the reason, in the order of ids.
    other_skips: Box<[(TaskIndex, SkipReason)]>,
    /// The references that the templates of the running tasks read, by index in the profile's reads.
    read_references: FixedBitSet,
    /// The inputs that differ from the group's, sorted by their index in the profile's reads.
    own_inputs: Box<[(u32, Input)]>,
    /// The size of all inputs, in bytes.
    input_bytes: usize,
    /// The tasks with an unusable path, computed when they are first needed.
    unusable_paths: OnceLock<Box<[UnusablePath]>>,
}

/// A running task that the host refuses because of a path: its own path, or another path or program that it names.
#[derive(Clone, Debug)]
pub struct UnusablePath {
    /// The index of the task in the release.
    pub task: TaskIndex,
    /// The problem.
    pub reason: PathProblem,
}

/// The reason why a task has no usable path on a host.
#[derive(Clone, Debug)]
pub enum PathProblem {
    /// An earlier task claimed the path, or a path above or below it.
    Conflict(PathConflict<TaskIndex>),
    /// The template of the task's path gives a text that no host accepts.
    Refused(PathRefused),
    /// The template of another path or of a program gives a text that no host accepts.
    Name {
        /// The field with that template.
        field: Box<str>,
        /// The reason.
        why: Box<str>,
    },
}

/// The values that the tasks of a profile read in one group, for a node that provides no values itself. The nodes whose
/// task sets were built from these values share them.
#[derive(Debug)]
pub struct GroupInputs {
    pub(super) profile: Arc<Profile>,
    /// The values that the differences refer to, one per read of the profile. They come from another group of the
    /// cluster, because most values of groups are equal. For reads that each node answers itself, they are the values
    /// of the node that was resolved first.
    base: Arc<[Input]>,
    /// The values of this group that differ from `base`, sorted by index.
    differences: Box<[(u32, Input)]>,
}

impl GroupInputs {
    /// Creates the inputs of a group from one value per read of the profile. The values are stored as differences from
    /// another group's values if that takes less memory. `may_share` returns whether two equal values at an index may
    /// be stored as one.
    pub(super) fn new(
        profile: &Arc<Profile>,
        inputs: Vec<Input>,
        other_inputs: Option<Arc<[Input]>>,
        may_share: impl Fn(u32) -> bool,
    ) -> Self {
        let profile = Arc::clone(profile);
        if let Some(base) = other_inputs.filter(|known| known.len() == inputs.len()) {
            let differs = |(at, input): &(u32, Input)| {
                let base_input = &base[*at as usize];
                !(base_input.is_identical(input) || (may_share(*at) && base_input == input))
            };
            let differences: Box<[_]> = (0..).zip(inputs.iter().cloned()).filter(differs).collect();
            if differences.len() <= inputs.len() / 4 {
                return Self { profile, base, differences };
            }
        }
        Self { profile, base: inputs.into(), differences: Box::default() }
    }

    /// Returns the values that the differences of this group refer to. The inputs of another group can be stored as
    /// differences from these values too.
    pub(super) fn base(&self) -> &Arc<[Input]> {
        &self.base
    }

    /// Returns the value of the profile's read at this index.
    pub(super) fn get(&self, at: u32) -> &Input {
        find_own_input(&self.differences, at).unwrap_or_else(|| &self.base[at as usize])
    }

    /// Returns the values of those reads of the profile that the group answers. Reads that a node answers itself are
    /// omitted, so that two groups that provide the same values give the same result.
    pub fn inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        let all = (0..).zip(&self.profile.reads).map(|(at, reference)| (reference, self.get(at)));
        all.filter(|(reference, _)| !reference.read().is_node_local())
    }

    /// Returns the value of one read, or `None` if the profile does not read it.
    pub fn input(&self, reference: &Reference) -> Option<&Input> {
        let at = self.profile.reads.binary_search(reference).ok()?;
        Some(self.get(u32::try_from(at).ok()?))
    }

    /// Returns the tasks of phase `apply` that can be skipped for a reason that follows from their definition alone,
    /// each with that reason.
    pub fn skipped_tasks(&self) -> impl Iterator<Item = (&str, SkipReason)> {
        let tasks = self.profile.tasks.iter().map(|ix| self.profile.release.task(*ix));
        tasks.filter_map(move |task| Some((task.task.id.as_str(), SkipReason::from_definition(task)?)))
    }

    /// Returns the effective tags of the nodes with this profile, sorted, by their plain names.
    pub fn tags(&self) -> &[TagName] {
        &self.profile.key.tags
    }

    /// Returns the tags that the nodes with this profile hold as primary, sorted, by their plain names.
    pub fn primary_tags(&self) -> &[TagName] {
        &self.profile.key.primaries
    }
}

/// Returns the value at an index of the profile's reads, if the list has one.
fn find_own_input(own: &[(u32, Input)], at: u32) -> Option<&Input> {
    let position = own.binary_search_by_key(&at, |(place, _)| *place).ok()?;
    Some(&own[position].1)
}

/// The reason why a task of the profile does not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum SkipReason {
    /// The condition of the task is false.
    #[display("condition is false: {condition}")]
    False {
        /// The condition as written.
        condition: Arc<str>,
    },
    /// The condition could not be evaluated, which counts as false.
    #[display("condition counts as false: it {reason}")]
    Failed {
        /// The error of the evaluation.
        reason: Arc<str>,
    },
    /// The condition takes more steps than allowed, so it is not known whether it holds. It counts as false for a host
    /// that does not run the task. A host that runs the task keeps its task set.
    #[display("condition is undecided and counts as false: it {reason}")]
    Undecided {
        /// The limit that the condition exceeds.
        reason: Arc<str>,
    },
    /// The task is only a marker (`type: skipped`).
    #[display("type is skipped")]
    Marker,
    /// The task is privileged, and no role or tag that an operator gave the node places it there.
    #[display(
        "it is privileged, and no role or tag that an operator gave the node places it: what an extension adds does not count, \
         nor does the name master"
    )]
    NotAsserted,
    /// The inputs of the task are larger than may be sent.
    #[display("{reason}")]
    TooLarge {
        /// The inputs and their size.
        reason: Arc<str>,
    },
}

/// Whether the condition of a task lets it run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionOutcome {
    /// The task does not run: its condition is false or failed, or its inputs are too large.
    No,
    /// The outcome is not known, because the condition takes more steps than allowed.
    Undecided,
    /// The task runs.
    Yes,
}

/// The unmet requirements of a node. The list is behind a pointer of its own, because a fleet has one resolved node per
/// node, and few of them have unmet requirements.
#[derive(Clone, Debug)]
pub(crate) struct UnmetRequirements(pub(crate) Vec<UnmetRequirement>);

impl SkipReason {
    /// Returns the reason for which a task can be skipped by its definition alone: it is a marker, or its condition is
    /// false. `None` if the task is not a marker and has no condition.
    pub(super) fn from_definition(task: &CompiledTask) -> Option<Self> {
        if task.is_skipped_type() {
            return Some(Self::Marker);
        }
        task.condition.is_some().then(|| Self::False { condition: Arc::clone(&task.condition_text) })
    }

    /// Replaces the text of the reason with the copy that all nodes share.
    pub(super) fn interned(mut self, texts: &SharedTexts) -> Self {
        match &mut self {
            Self::Failed { reason } | Self::Undecided { reason } | Self::TooLarge { reason } => {
                texts.intern_all([reason].into_iter());
            }
            Self::False { .. } | Self::NotAsserted | Self::Marker => {}
        }
        self
    }

    /// Returns the finding about a skipped task, or `None` if nothing is wrong.
    fn finding(&self, task: &str) -> Option<Finding> {
        let finding = |rule, message| Some(Finding::new(rule, format!("task/{task}"), message));
        match self {
            Self::Failed { .. } => finding(rule::CONDITION_FAILED, self.to_string()),
            Self::Undecided { .. } => {
                let until = "A host that runs the task keeps the task set that it has until then";
                finding(rule::CONDITION_FAILED, format!("{self}. {until}"))
            }
            Self::TooLarge { .. } => finding(rule::INPUTS_SIZE, self.to_string()),
            Self::NotAsserted => {
                let advice = "assign the tag by hand, or let the role declare it";
                finding(rule::TASK_NOT_ASSERTED, format!("{self}; {advice}"))
            }
            Self::False { .. } | Self::Marker => None,
        }
    }

    /// Returns the length of the reason's own text, in bytes.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::False { condition: text }
            | Self::Failed { reason: text }
            | Self::Undecided { reason: text }
            | Self::TooLarge { reason: text } => text.len(),
            Self::NotAsserted | Self::Marker => 0,
        }
    }
}

impl UnusablePath {
    /// Returns the conflict with the task that has the path. `None` if the problem is an invalid text.
    pub fn conflict(&self) -> Option<&PathConflict<TaskIndex>> {
        match &self.reason {
            PathProblem::Conflict(conflict) => Some(conflict),
            PathProblem::Refused(_) | PathProblem::Name { .. } => None,
        }
    }

    /// Returns the field of the task that has the problem.
    pub fn field(&self) -> &str {
        match &self.reason {
            PathProblem::Conflict(_) | PathProblem::Refused(_) => "parameters.path",
            PathProblem::Name { field, .. } => field,
        }
    }

    /// Returns the message: what is wrong, and what to do.
    pub fn message(&self, release: &CompiledRelease) -> String {
        match &self.reason {
            PathProblem::Conflict(conflict) => conflict.message(release.id(conflict.first_claim.owner)),
            PathProblem::Refused(refused) => format!("the host refuses the path that its template gives: {refused}"),
            PathProblem::Name { field, why } => {
                format!("the host refuses the text that the template of {field} gives: {why}")
            }
        }
    }

    fn finding(&self, release: &CompiledRelease) -> Finding {
        let message = self.message(release);
        Finding::new(rule::TASK_PATH, format!("task/{}", release.id(self.task)), message)
    }
}

impl Resolution {
    /// Returns the resolved node, if nothing is missing.
    pub fn resolved_node(&self) -> Option<&Arc<ResolvedNode>> {
        match self {
            Self::Complete(node) => Some(node),
            Self::Incomplete(_) => None,
        }
    }
}

impl TaskSet {
    /// Creates the task set of a node with the group's profile. `skipped` lists the tasks that do not run, in the order
    /// of ids. `inputs` holds what the templates of the other tasks read.
    pub fn new(group: &Arc<GroupInputs>, skipped: Vec<(TaskIndex, SkipReason)>, inputs: &Inputs) -> Self {
        let profile = Arc::clone(&group.profile);
        let is_by_definition = |(ix, why): &(TaskIndex, SkipReason)| {
            SkipReason::from_definition(profile.release.task(*ix)).is_some_and(|reason| reason == *why)
        };
        let (by_definition, other_skips): (Vec<_>, Vec<_>) = skipped.into_iter().partition(is_by_definition);
        let with_index = |(reference, input): (&Reference, &Input)| (profile.read_index(reference), input.clone());
        let indexed_inputs: Vec<(u32, Input)> = inputs.iter().map(with_index).collect();
        let mut set = Self {
            digest: TaskDigest([0; 32]),
            group_inputs: Arc::clone(group),
            skipped_by_definition: by_definition.iter().map(|(ix, _)| ix.as_usize()).collect(),
            other_skips: other_skips.into(),
            read_references: indexed_inputs.iter().map(|(at, _)| *at as usize).collect(),
            own_inputs: indexed_inputs.into_iter().filter(|(at, input)| group.get(*at) != input).collect(),
            input_bytes: inputs.size_bytes(),
            unusable_paths: OnceLock::new(),
            profile,
        };
        set.digest = set.compute_digest(DigestVersion::LATEST);
        set
    }

    /// Returns the findings about the tasks: conditions that could not be evaluated, inputs that are too large,
    /// privileged tasks that no operator asserted, and paths that two tasks write or that no host accepts. The findings
    /// are not stored, because a fleet has many task sets.
    pub fn findings(&self) -> impl Iterator<Item = Finding> {
        let skipped = self.skipped_ids().filter_map(|(id, why)| why.finding(id));
        skipped.chain(self.unusable_paths().iter().map(|path| path.finding(&self.profile.release)))
    }

    /// Returns the running tasks that the host refuses because of a path, in order: their own path, or another path or
    /// program that they name.
    pub fn unusable_paths(&self) -> &[UnusablePath] {
        if !self.profile.should_check_paths() {
            return &[];
        }
        self.unusable_paths.get_or_init(|| {
            let mut claims = PathClaims::default();
            let tasks = self.profile.path_check_tasks.iter().filter(|ix| self.should_run(**ix));
            tasks.filter_map(|ix| self.claim_path(*ix, &mut claims).or_else(|| self.unusable_name(*ix))).collect()
        })
    }

    /// Claims the path of a task. Returns the task if its path is invalid or claimed by an earlier task.
    fn claim_path(&self, ix: TaskIndex, claims: &mut PathClaims<TaskIndex>) -> Option<UnusablePath> {
        let task = self.profile.release.task(ix);
        let path = task.path.as_ref()?;
        let claim = match path.host_path(|| self.inputs_of(task)) {
            RenderedPath::Path(text) => claims.claim(ix, &text, path.path_content),
            // The path is not known here. Equal templates give equal paths, and templates that begin alike give paths
            // that begin alike, so the text of the template is claimed.
            RenderedPath::Unknown(template) => claims.claim(ix, template, path.path_content),
            RenderedPath::Refused(refused) => {
                return Some(UnusablePath { task: ix, reason: PathProblem::Refused(refused) });
            }
        };
        Some(UnusablePath { task: ix, reason: PathProblem::Conflict(claim.err()?) })
    }

    /// Returns a task that names an invalid path or program in addition to its own path, with the first such field.
    fn unusable_name(&self, ix: TaskIndex) -> Option<UnusablePath> {
        let task = self.profile.release.task(ix);
        let inputs = (!task.host_paths.is_empty()).then(|| self.inputs_of(task))?;
        let (field, why) = task.host_paths.iter().find_map(|name| Some((name.field.clone(), name.rejection(&inputs)?)))?;
        Some(UnusablePath { task: ix, reason: PathProblem::Name { field, why: why.into() } })
    }

    /// Returns the inputs that the templates of a task read.
    fn inputs_of(&self, task: &CompiledTask) -> Inputs {
        let mut inputs = Inputs::new();
        for reference in &task.references {
            let inserted = inputs.insert(reference.clone(), self.input_at(self.profile.read_index(reference)).clone());
            inserted.expect("they were inputs of one task set before");
        }
        inputs
    }

    /// Returns the inputs of the running tasks, in the order of the references' texts.
    pub fn iter_inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        let indexes = self.read_references.ones().filter_map(|at| u32::try_from(at).ok());
        indexes.map(|at| (&self.profile.reads[at as usize], self.input_at(at)))
    }

    /// Returns the inputs of the running tasks as one collection.
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::new();
        for (reference, input) in self.iter_inputs() {
            inputs.insert(reference.clone(), input.clone()).expect("they were inputs of one task set before");
        }
        inputs
    }

    /// Returns the number of inputs, and their size in bytes ([`Inputs::bytes`]).
    pub fn input_sizes(&self) -> (usize, usize) {
        (self.read_references.count_ones(..), self.input_bytes)
    }

    /// Returns the inputs that differ from the group's.
    pub fn own_inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        self.own_inputs.iter().map(|(at, input)| (&self.profile.reads[*at as usize], input))
    }

    /// Returns the tasks of phase `apply` that are skipped for a reason other than their definition, by id, with the
    /// reason.
    pub fn other_skipped_ids(&self) -> impl Iterator<Item = (&str, &SkipReason)> {
        let of_apply = self.other_skips.iter().filter(|(ix, _)| self.profile.has_task(*ix));
        of_apply.map(|(ix, why)| (self.profile.release.id(*ix), why))
    }

    /// Returns the input for the profile's read at this index: the node's own, else the group's.
    fn input_at(&self, at: u32) -> &Input {
        find_own_input(&self.own_inputs, at).unwrap_or_else(|| self.group_inputs.get(at))
    }

    /// Returns the tasks that run, in order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskIndex> {
        self.profile.tasks.iter().copied().filter(|ix| self.should_run(*ix))
    }

    /// Returns whether a task of the profile runs.
    pub fn should_run(&self, ix: TaskIndex) -> bool {
        !self.skipped_by_definition.contains(ix.as_usize()) && self.other_skip_reason(ix).is_none()
    }

    /// Returns why a task is skipped, unless the reason follows from its definition alone.
    fn other_skip_reason(&self, ix: TaskIndex) -> Option<&SkipReason> {
        let at = self.other_skips.binary_search_by_key(&ix, |(ix, _)| *ix).ok()?;
        Some(&self.other_skips[at].1)
    }

    /// Returns why a task of the profile does not run, or `None` if it runs.
    pub fn skip_reason(&self, ix: TaskIndex) -> Option<SkipReason> {
        if self.skipped_by_definition.contains(ix.as_usize()) {
            return SkipReason::from_definition(self.profile.release.task(ix));
        }
        self.other_skip_reason(ix).cloned()
    }

    /// Returns the digest of the task set under a digest version. A released task set is compared under the version
    /// that it was released with.
    pub fn task_digest(&self, version: DigestVersion) -> TaskDigest {
        if version == DigestVersion::LATEST {
            return self.digest;
        }
        self.compute_digest(version)
    }

    /// Computes the digest of the running tasks of all phases, with the inputs that their templates read.
    fn compute_digest(&self, version: DigestVersion) -> TaskDigest {
        let profile = &self.profile;
        let mut hasher = TaskDigestHasher::new(version, &profile.key.tags, &profile.key.primaries);
        for ix in profile.all_tasks().into_iter().filter(|ix| self.should_run(*ix)) {
            let task = profile.release.task(ix);
            hasher.add_task(&task.definition, task.task.is_untranslated(), &self.digest_text(&task.references));
        }
        hasher.finish()
    }

    /// Returns the inputs of a task as the text that the task digest hashes.
    fn digest_text(&self, references: &[Reference]) -> String {
        if references.is_empty() {
            return "{}".to_owned();
        }
        let input = |reference: &Reference| (reference.to_string(), self.input_at(self.profile.read_index(reference)));
        canonical_object(references.iter().map(input).collect(), |out, input| input.write_canonical(out))
    }

    /// Returns the ids of the running tasks that have an expression which is not evaluated, in order. The host never
    /// starts such a task.
    pub(crate) fn untranslated_ids(&self) -> impl Iterator<Item = &str> {
        let tasks = self.tasks().map(|ix| self.profile.release.task(ix));
        tasks.filter(|task| task.task.is_untranslated()).map(|task| task.task.id.as_str())
    }

    /// Returns the ids of the tasks that run, in order.
    pub fn task_ids(&self) -> impl Iterator<Item = &str> {
        self.tasks().map(|ix| self.profile.release.id(ix))
    }

    /// Returns the ids of the tasks of phase `apply` that do not run, with the reason.
    pub fn skipped_ids(&self) -> impl Iterator<Item = (&str, SkipReason)> {
        let by_definition = self.skipped_by_definition.ones().filter_map(|at| u32::try_from(at).ok()).map(TaskIndex);
        let mut all: Vec<TaskIndex> = by_definition.chain(self.other_skips.iter().map(|(ix, _)| *ix)).collect();
        all.sort_unstable();
        let of_apply = all.into_iter().filter(|ix| self.profile.has_task(*ix));
        of_apply.filter_map(|ix| Some((self.profile.release.id(ix), self.skip_reason(ix)?)))
    }

    /// Returns the ids of the skipped tasks whose condition takes more steps than allowed.
    pub(crate) fn undecided_ids(&self) -> impl Iterator<Item = &str> {
        let undecided = self.other_skips.iter().filter(|(_, why)| matches!(why, SkipReason::Undecided { .. }));
        undecided.filter(|(ix, _)| self.profile.has_task(*ix)).map(|(ix, _)| self.profile.release.id(*ix))
    }

    /// Returns the privileged tasks with a condition that may run now and could not in the node's earlier task set,
    /// each with the outcome of its condition. An undecided condition counts, because a later report of the host can
    /// decide it, and no permission is checked when a report arrives.
    pub fn newly_run_privileged(&self, before: Option<&Self>) -> Vec<(&str, ConditionOutcome)> {
        let known: BTreeMap<&[u8; 32], ConditionOutcome> =
            before.into_iter().flat_map(Self::conditional_privileged).map(|(task, met)| (&task.definition, met)).collect();
        let earlier = |definition: &[u8; 32]| known.get(definition).copied().unwrap_or(ConditionOutcome::No);
        let started = self.conditional_privileged().filter(|(task, met)| *met > earlier(&task.definition));
        started.map(|(task, met)| (task.task.id.as_str(), met)).collect()
    }

    /// Returns whether a privileged task with this definition has a condition and runs.
    pub fn has_privileged(&self, definition: &[u8; 32]) -> bool {
        self.conditional_privileged().any(|(task, met)| task.definition == *definition && met == ConditionOutcome::Yes)
    }

    /// Returns the privileged tasks that have a condition, each with the outcome of the condition.
    fn conditional_privileged(&self) -> impl Iterator<Item = (&CompiledTask, ConditionOutcome)> {
        let tasks = self.profile.privileged.iter().map(|ix| (self.profile.release.task(*ix), *ix));
        tasks.filter(|(task, _)| task.condition.is_some()).map(|(task, ix)| (task, self.condition_outcome(ix)))
    }

    /// Returns the outcome of a task's condition, given whether the task runs and why not.
    fn condition_outcome(&self, ix: TaskIndex) -> ConditionOutcome {
        match self.skip_reason(ix) {
            None => ConditionOutcome::Yes,
            Some(SkipReason::Undecided { .. }) => ConditionOutcome::Undecided,
            Some(
                SkipReason::False { .. }
                | SkipReason::Failed { .. }
                | SkipReason::Marker
                | SkipReason::NotAsserted
                | SkipReason::TooLarge { .. },
            ) => ConditionOutcome::No,
        }
    }

    /// Returns the effective tags, sorted, by their plain names.
    pub fn tags(&self) -> &[TagName] {
        self.group_inputs.tags()
    }

    /// Returns the tags that the node holds as primary, sorted, by their plain names.
    pub fn primary_tags(&self) -> &[TagName] {
        self.group_inputs.primary_tags()
    }
}

impl ResolvedNode {
    /// Returns the node's id.
    pub fn id(&self) -> NodeId {
        self.entry.node.id()
    }

    /// Returns the node's spec and meta.
    pub fn node(&self) -> &Arc<Node> {
        &self.entry.node
    }

    /// Returns what the host reported, if it ever reported.
    pub fn observation(&self) -> Option<&Arc<Observation>> {
        self.entry.observation.as_ref()
    }

    /// Returns the pause, hold and park that were set on the host itself, or `None` if nothing was.
    pub fn reported_state(&self) -> Option<&ReportedState> {
        self.reported_state.as_deref()
    }

    /// Returns the node's group with everything that it inherits, or `None` if the node is unplaced.
    pub fn resolved_group(&self) -> Option<&Arc<ResolvedGroup>> {
        self.group.as_ref()
    }

    /// Returns the tasks that the node should run, or `None` if it is unplaced or no level names a release.
    pub fn task_set(&self) -> Option<&Arc<TaskSet>> {
        self.task_set.as_ref()
    }

    /// Returns the requirements of the group that the node does not meet. While there is one, no new task set is
    /// released to the node.
    pub fn unmet_requirements(&self) -> &[UnmetRequirement] {
        self.unmet_requirements.as_ref().map_or(&[], |all| &all.0)
    }

    /// Checks that the node has the traits that its instance requires. Until it has them, no first task set is released
    /// to it.
    ///
    /// # Errors
    /// [`InstanceTraits`].
    pub fn check_instance_traits(&self) -> Result<(), InstanceTraits> {
        self.entry.check_instance_traits(&self.rule_outcome)
    }

    /// Returns the release that the nearest level names. The profile of the node may come from another release with the
    /// same content.
    pub fn release(&self) -> Option<&Arc<CompiledRelease>> {
        Some(&self.group.as_ref()?.release.as_ref()?.value)
    }

    /// Returns `CLUSTER/GROUP`, or `None` if the node is unplaced.
    pub fn group_path(&self) -> Option<String> {
        self.group.as_ref().map(|resolved| resolved.path())
    }

    /// Returns the effective labels, each with its full provenance, including those that rules and the host fill.
    pub fn labels(&self) -> Labels {
        self.entry.labels(self.group.as_deref(), &self.rule_outcome)
    }

    /// Returns the effective annotations.
    pub fn annotations(&self) -> Annotations {
        self.entry.annotations(self.group.as_deref())
    }

    /// Returns the effective parameters.
    pub fn parameters(&self) -> Parameters {
        self.entry.parameters(self.group.as_deref())
    }

    /// Returns the rule that selects the labels for the host label map.
    pub fn host_labels(&self) -> Arc<HostLabelRule> {
        self.group.as_ref().map_or_else(Default::default, |resolved| Arc::clone(&resolved.host_labels.value))
    }

    /// Returns the traits, each with its sources.
    pub fn traits(&self) -> NodeTraits {
        self.entry.traits(&self.rule_outcome).resolve()
    }

    /// Returns what inspection rules give the node.
    pub fn rule_outcome(&self) -> &RuleOutcome {
        &self.rule_outcome
    }

    /// Returns the lifecycle fields, each with its origin.
    pub fn lifecycle_limits(&self) -> LifecycleLimits {
        let mut levels = self.group.as_ref().map(|resolved| resolved.lifecycle()).unwrap_or_default();
        levels.push((Level::Node, self.entry.node.spec.inherited.lifecycle));
        LifecycleLimits::resolve(&levels)
    }

    /// Returns the mode that limits what the host does with its tasks: the node's, else the group's, else `apply`.
    pub fn mode(&self) -> ValueWithOrigin<Mode> {
        self.entry.mode(self.group.as_ref().map(|resolved| &*resolved.group))
    }

    /// Returns the number of seconds over which the host spreads its work after a change.
    pub fn splay_seconds(&self) -> u32 {
        self.group.as_ref().and_then(|resolved| resolved.group.spec.splay_seconds).unwrap_or(0)
    }

    /// Returns the number of seconds without contact after which the host counts as silent.
    pub fn silent_after_seconds(&self) -> u32 {
        let seconds = self.group.as_ref().and_then(|resolved| resolved.group.spec.silent_after_seconds);
        seconds.unwrap_or(NodeGroupSpec::DEFAULT_SILENT_AFTER_SECONDS)
    }

    /// Returns the operator's hold on the node's task set, if there is one.
    pub fn hold(&self) -> Option<&Hold> {
        self.entry.node.spec.hold.as_deref()
    }

    /// Returns whether the spec parks the node, so that budgets and barriers skip it. [`Self::reported_state`] has what
    /// was set on the host.
    pub fn is_parked(&self) -> bool {
        self.entry.node.spec.parked
    }

    /// Returns whether the group or the cluster is paused, so that no new task set is released.
    pub fn is_paused(&self) -> bool {
        self.group.as_ref().is_some_and(|resolved| resolved.group.spec.paused || resolved.cluster.spec.paused)
    }

    /// Returns the roles: the group's and the node's own.
    pub fn roles(&self) -> BTreeSet<Name> {
        self.entry.roles(self.group.as_deref())
    }

    /// Returns the ready probes by tag, for the tags that have some.
    pub fn ready_probes(&self) -> Vec<(&TagName, &[Value])> {
        let (Some(resolved), Some(set)) = (&self.group, &self.task_set) else { return Vec::new() };
        let Some(table) = &resolved.role_table else { return Vec::new() };
        let probes = set.tags().iter().filter_map(|tag| Some((tag, table.tag(tag)?.ready.as_slice())));
        probes.filter(|(_, ready)| !ready.is_empty()).collect()
    }
}
