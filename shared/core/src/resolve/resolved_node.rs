//! The result of resolve for one node: the values that its host always gets (*known*), and the task set.
//!
//! A resolved node has pointers to shared parts of the model, and computes all other values on demand. A fleet of a
//! hundred thousand nodes has a few hundred resolved groups and task sets, to which the resolved nodes point.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use fixedbitset::FixedBitSet;
use serde_json::Value;

use crate::digest::{DigestVersion, TaskDigest, TaskDigestHasher, canonical_object, sha256_of_parts};
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
use crate::task::{Mode, ObjectDemands, PathClaims, PathConflict, PathRefused, UNASSIGN_REASON, task_type};
use crate::traits::{InstanceTraitsError, NodeTraits};

/// The result of resolving one node.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// The resolved node, if no object is missing. Only this variant can be encoded and sent to the host.
    Complete(Arc<ResolvedNode>),
    /// The objects that are missing to resolve the node. The host stays unchanged, and findings report these objects.
    Incomplete(Vec<MissingParent>),
}

/// The desired state of one node as resolve computed it, with the origin of each value.
#[derive(Clone, Debug)]
pub struct ResolvedNode {
    pub(crate) entry: Arc<NodeEntry>,
    pub(crate) rule_outcome: Arc<RuleOutcome>,
    pub(crate) reported_state: Option<Arc<ReportedState>>,
    pub(crate) group: Option<Arc<ResolvedGroup>>,
    pub(crate) task_set: Option<Arc<TaskSet>>,
    pub(crate) unmet_requirements: Option<Box<UnmetRequirements>>,
}

/// The tasks that a node runs, with their inputs. A new task set reaches the host only when it is released to the node.
/// Nodes of one group with the same tasks and inputs share one task set.
///
/// In the worst case, a fleet has one task set for each node. So a task set stores only the inputs that differ from
/// those of the group, and one bit for each task and each read.
#[derive(Debug)]
pub struct TaskSet {
    /// The tasks that are placed on the node before conditions are evaluated, and their order.
    pub profile: Arc<Profile>,
    /// The task digest under the newest digest version. [`Self::task_digest`] returns the digest under another version.
    pub digest: TaskDigest,
    /// The values that most nodes of the group read, stored once for all of them.
    pub group_inputs: Arc<GroupInputs>,
    /// The indexes in the release of the tasks that are skipped because they are markers or their condition is false.
    /// For these, the reason is [`SkipReason::from_definition`].
    skipped_by_definition: FixedBitSet,
    /// The tasks that are skipped for another reason, with the reason, in the order of ids.
    other_skips: Box<[(TaskIndex, SkipReason)]>,
    /// The references that the templates of the running tasks read, as indexes in the profile's reads.
    read_references: FixedBitSet,
    /// The inputs that differ from those of the group, each with the index in the profile's reads, sorted by this
    /// index.
    own_inputs: Box<[(u32, Input)]>,
    /// The size of all inputs, in bytes.
    input_bytes: usize,
    /// The tasks with an unusable path, which are computed when they are first needed.
    unusable_paths: OnceLock<Box<[UnusablePath]>>,
}

/// A running task that the host refuses because of a path: its own path, or another path or program that it names.
#[derive(Clone, Debug)]
pub struct UnusablePath {
    /// The index of the task in the release.
    pub task: TaskIndex,
    /// The field of the path that the task writes.
    path_field: &'static str,
    /// The reason why the host refuses the task.
    pub reason: PathProblem,
}

/// The reason why a host refuses a task because of a path.
#[derive(Clone, Debug)]
pub enum PathProblem {
    /// An earlier task claimed the path, or a path above or below it.
    Conflict(PathConflict<TaskIndex>),
    /// The template of the task's own path renders to a text that hosts refuse.
    Refused(PathRefused),
    /// The template of another path, or of a program, renders to a text that hosts refuse.
    Name {
        /// The path of the field with the template, such as `parameters.creates`.
        field: Box<str>,
        /// The reason why hosts refuse the text.
        why: Box<str>,
    },
}

/// The values that the tasks of a profile read in one group, for a node that provides no values itself. All task sets
/// that were built from these values share this copy.
#[derive(Debug)]
pub struct GroupInputs {
    pub(super) profile: Arc<Profile>,
    /// The values to which `differences` refers, one per read of the profile. They may be those of another group of the
    /// cluster, because most values of two groups are equal. If only a node itself has the value of a read, the value
    /// is that of the node that was resolved first.
    base: Arc<[Input]>,
    /// The values of this group that differ from `base`, sorted by index.
    differences: Box<[(u32, Input)]>,
}

impl GroupInputs {
    /// Creates the inputs of a group from `inputs`, one value per read of the profile. If at most a quarter of the
    /// values differ from those of another group, only the differences are stored. `may_share` returns whether equal
    /// values of the read at an index may be stored once.
    pub(super) fn new(
        profile: &Arc<Profile>,
        inputs: Vec<Input>,
        other_inputs: Option<Arc<[Input]>>,
        may_share: impl Fn(u32) -> bool,
    ) -> Self {
        let profile = Arc::clone(profile);
        if let Some(base) = other_inputs.filter(|values| values.len() == inputs.len()) {
            let differs = |(index, input): &(u32, Input)| {
                let base_input = &base[*index as usize];
                !(base_input.is_identical(input) || (may_share(*index) && base_input == input))
            };
            let differences: Box<[_]> = (0..).zip(inputs.iter().cloned()).filter(differs).collect();
            if differences.len() <= inputs.len() / 4 {
                return Self { profile, base, differences };
            }
        }
        Self { profile, base: inputs.into(), differences: Box::default() }
    }

    /// Returns the values to which the differences of this group refer, one per read of the profile. The inputs of
    /// another group can be stored as differences from these values too.
    pub(super) fn base(&self) -> &Arc<[Input]> {
        &self.base
    }

    /// Returns the value of the profile's read at this index.
    pub(super) fn get(&self, index: u32) -> &Input {
        find_input_by_index(&self.differences, index).unwrap_or_else(|| &self.base[index as usize])
    }

    /// Returns the reads of the profile, each with the value that the group stores for it. Reads of a node's traits,
    /// facts and fields are omitted, so that two groups that provide the same values give the same result.
    pub fn inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        let values = (0..).zip(&self.profile.reads).map(|(index, reference)| (reference, self.get(index)));
        values.filter(|(reference, _)| !reference.read().is_node_local())
    }

    /// Returns the value of one read, or `None` if the profile does not read it.
    pub fn input(&self, reference: &Reference) -> Option<&Input> {
        let index = self.profile.reads.binary_search(reference).ok()?;
        Some(self.get(u32::try_from(index).ok()?))
    }

    /// Returns the ids of the tasks of phase `apply` that are markers or have a condition. Each comes with the reason
    /// why it is skipped if it does not run: it is a marker, or its condition is false. Also returns the ids of the tasks
    /// that hosts get only for `on_unassign`.
    pub fn skipped_tasks(&self) -> impl Iterator<Item = (&str, SkipReason)> {
        let (release, profile) = (&self.profile.release, &self.profile);
        let tasks = profile.tasks.iter().map(|ix| release.task(*ix));
        let skipped_tasks = tasks.filter_map(move |task| Some((task.task.id.as_str(), SkipReason::from_definition(task)?)));
        skipped_tasks.chain(profile.unassign.iter().map(|ix| (release.id(*ix), SkipReason::OnUnassign)))
    }

    /// Returns the effective tags of the nodes with this profile, sorted, without the prefix `primary-`.
    pub fn tags(&self) -> &[TagName] {
        &self.profile.key.tags
    }

    /// Returns the tags that the nodes with this profile hold as primary, sorted, without the prefix `primary-`.
    pub fn primary_tags(&self) -> &[TagName] {
        &self.profile.key.primaries
    }
}

/// Returns the value for a read, by the read's index, from a list that is sorted by this index. `None` if the list has
/// no value for the read.
fn find_input_by_index(inputs: &[(u32, Input)], read_index: u32) -> Option<&Input> {
    let position = inputs.binary_search_by_key(&read_index, |(index, _)| *index).ok()?;
    Some(&inputs[position].1)
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
    /// The evaluation of the condition takes more steps than allowed, so its outcome is not known. On a node that does
    /// not run the task, the condition counts as false. A node that runs the task retains its present task set.
    #[display("condition is undecided and counts as false: it {reason}")]
    Undecided {
        /// The message about the steps of the condition and the limit that they exceed.
        reason: Arc<str>,
    },
    /// The task is a marker (`type: skipped`), which runs nothing.
    #[display("type is skipped")]
    Marker,
    /// The task is privileged, and no role or tag that an operator gave the node places it there.
    #[display(
        "it is privileged, and no role or tag that an operator gave the node places it: what an extension adds does not count, \
         nor does the name master"
    )]
    NotAsserted,
    /// The task is not placed on the node, and the host gets it only for `on_unassign` ([`Profile::unassign`]).
    #[display("{UNASSIGN_REASON}")]
    OnUnassign,
    /// The inputs of the task, alone or together with those of earlier tasks, are more or larger than may be sent.
    #[display("{reason}")]
    TooLarge {
        /// The message with the limits of inputs and the reference whose input exceeds them.
        reason: Arc<str>,
    },
}

/// The outcome of a task's condition: whether it lets the task run. The variants are ordered from no to yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionOutcome {
    /// The task does not run, for any reason but an undecided condition.
    No,
    /// The outcome is not known, because the evaluation of the condition takes more steps than allowed.
    Undecided,
    /// The task runs.
    Yes,
}

/// The unmet requirements of a node. A resolved node points to the list instead of containing it. This saves memory,
/// because few of the many resolved nodes have unmet requirements.
#[derive(Clone, Debug)]
pub(crate) struct UnmetRequirements(pub(crate) Vec<UnmetRequirement>);

impl SkipReason {
    /// Returns the reason that the definition of a task gives for skipping it: the task is a marker, or its condition
    /// is false. `None` if the task is not a marker and has no condition. Does not evaluate the condition.
    pub(super) fn from_definition(task: &CompiledTask) -> Option<Self> {
        if task.is_marker_type() {
            return Some(Self::Marker);
        }
        task.condition.is_some().then(|| Self::False { condition: Arc::clone(&task.condition_text) })
    }

    /// Replaces the text of the reason with the copy in `texts`, which all nodes share.
    pub(super) fn interned(mut self, texts: &SharedTexts) -> Self {
        match &mut self {
            Self::Failed { reason } | Self::Undecided { reason } | Self::TooLarge { reason } => {
                texts.intern_all([reason].into_iter());
            }
            Self::False { .. } | Self::NotAsserted | Self::OnUnassign | Self::Marker => {}
        }
        self
    }

    /// Returns the finding about a task that is skipped for this reason. `None` if the reason is not a problem.
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
            Self::False { .. } | Self::OnUnassign | Self::Marker => None,
        }
    }

    /// Returns the length of the reason's own text, in bytes.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::False { condition: text }
            | Self::Failed { reason: text }
            | Self::Undecided { reason: text }
            | Self::TooLarge { reason: text } => text.len(),
            Self::NotAsserted | Self::OnUnassign | Self::Marker => 0,
        }
    }
}

/// Returns the field of the path that a task writes.
fn path_field(task: &CompiledTask) -> &'static str {
    task_type(&task.task.kind).map_or("parameters.path", |kind| kind.path_field())
}

impl UnusablePath {
    /// Returns the conflict with an earlier task that claimed the path. `None` if the problem is an invalid text.
    pub fn conflict(&self) -> Option<&PathConflict<TaskIndex>> {
        match &self.reason {
            PathProblem::Conflict(conflict) => Some(conflict),
            PathProblem::Refused(_) | PathProblem::Name { .. } => None,
        }
    }

    /// Returns the field of the task that has the problem.
    pub fn field(&self) -> &str {
        match &self.reason {
            PathProblem::Conflict(_) | PathProblem::Refused(_) => self.path_field,
            PathProblem::Name { field, .. } => field,
        }
    }

    /// Returns the message about the problem. `release` is the release of the task.
    pub fn message(&self, release: &CompiledRelease) -> String {
        match &self.reason {
            PathProblem::Conflict(conflict) => conflict.message(release.id(conflict.first_claim.owner)),
            PathProblem::Refused(refused) => format!("the host refuses the path that its template gives: {refused}"),
            PathProblem::Name { field, why: reason } => {
                format!("the host refuses the text that the template of {field} gives: {reason}")
            }
        }
    }

    fn finding(&self, release: &CompiledRelease) -> Finding {
        let message = self.message(release);
        Finding::new(rule::TASK_PATH, format!("task/{}", release.id(self.task)), message)
    }
}

impl Resolution {
    /// Returns the resolved node, or `None` if an object is missing to resolve it.
    pub fn resolved_node(&self) -> Option<&Arc<ResolvedNode>> {
        match self {
            Self::Complete(node) => Some(node),
            Self::Incomplete(_) => None,
        }
    }
}

impl TaskSet {
    /// Creates the task set of a node with the group's profile. `skipped` lists the tasks that do not run, in the order
    /// of ids. `inputs` are the values that the templates of the other tasks read.
    pub fn new(group: &Arc<GroupInputs>, skipped: Vec<(TaskIndex, SkipReason)>, inputs: &Inputs) -> Self {
        let profile = Arc::clone(&group.profile);
        let is_by_definition = |(ix, skip_reason): &(TaskIndex, SkipReason)| {
            SkipReason::from_definition(profile.release.task(*ix)).is_some_and(|reason| reason == *skip_reason)
        };
        let (by_definition, other_skips): (Vec<_>, Vec<_>) = skipped.into_iter().partition(is_by_definition);
        let with_index = |(reference, input): (&Reference, &Input)| (profile.read_index(reference), input.clone());
        let indexed_inputs: Vec<(u32, Input)> = inputs.iter().map(with_index).collect();
        let mut set = Self {
            digest: TaskDigest([0; 32]),
            group_inputs: Arc::clone(group),
            skipped_by_definition: by_definition.iter().map(|(ix, _)| ix.as_usize()).collect(),
            other_skips: other_skips.into(),
            read_references: indexed_inputs.iter().map(|(index, _)| *index as usize).collect(),
            own_inputs: indexed_inputs.into_iter().filter(|(index, input)| group.get(*index) != input).collect(),
            input_bytes: inputs.size_bytes(),
            unusable_paths: OnceLock::new(),
            profile,
        };
        set.digest = set.compute_digest(DigestVersion::LATEST);
        set
    }

    /// Returns the findings about the tasks: conditions that could not be evaluated, inputs that are too large,
    /// privileged tasks that no operator asserted, paths that two tasks write or that no host accepts, and packages and
    /// other objects that two tasks want in different ways. The findings are not stored, because a fleet has many task
    /// sets.
    pub fn findings(&self) -> impl Iterator<Item = Finding> {
        let skipped = self.skipped_ids().filter_map(|(id, reason)| reason.finding(id));
        let paths = self.unusable_paths().iter().map(|path| path.finding(&self.profile.release));
        skipped.chain(paths).chain(self.object_conflicts())
    }

    /// Returns the findings about running tasks that want one package, unit, user or group in different ways.
    fn object_conflicts(&self) -> impl Iterator<Item = Finding> {
        let release = &self.profile.release;
        let mut demands = ObjectDemands::default();
        let tasks = self.profile.conflicting_tasks.iter().filter(|ix| self.should_run(**ix));
        tasks.filter_map(move |ix| {
            let conflict = demands.add(*ix, &release.task(*ix).task)?;
            let message = conflict.message(release.id(conflict.first));
            Some(Finding::new(rule::TASK_CONFLICT, format!("task/{}", release.id(*ix)), message))
        })
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

    /// Claims the path of a task in `claims`. Returns the task with the reason if the template of its path renders to
    /// an invalid path, or if an earlier task claimed the path or a path above or below it.
    fn claim_path(&self, ix: TaskIndex, claims: &mut PathClaims<TaskIndex>) -> Option<UnusablePath> {
        let task = self.profile.release.task(ix);
        let (mut paths, path_field) = (Vec::new(), path_field(task));
        for path in &task.paths {
            let text = match path.host_path(|| self.task_inputs(task)) {
                RenderedPath::Path(text) => text.into_owned(),
                // The path is not known here, so the text of the template is claimed instead. Equal templates give equal
                // paths, and templates that begin with the same directory give paths that begin with the same directory.
                RenderedPath::Unknown(template) => template.to_owned(),
                RenderedPath::Refused(refused) => {
                    return Some(UnusablePath { task: ix, path_field, reason: PathProblem::Refused(refused) });
                }
            };
            paths.push((text, path.path_content));
        }
        let claim = claims.claim_all(ix, &paths, &task.ignored);
        Some(UnusablePath { task: ix, path_field, reason: PathProblem::Conflict(claim.err()?) })
    }

    /// Returns the task if a template names a path or program that hosts refuse, other than the path that the task
    /// writes. The result has the field of the first such template.
    fn unusable_name(&self, ix: TaskIndex) -> Option<UnusablePath> {
        let task = self.profile.release.task(ix);
        let inputs = (!task.host_paths.is_empty()).then(|| self.task_inputs(task))?;
        let (field, reason) = task.host_paths.iter().find_map(|path| Some((path.field.clone(), path.rejection(&inputs)?)))?;
        Some(UnusablePath { task: ix, path_field: path_field(task), reason: PathProblem::Name { field, why: reason.into() } })
    }

    /// Returns the inputs that the templates of a task read.
    fn task_inputs(&self, task: &CompiledTask) -> Inputs {
        let mut inputs = Inputs::new();
        for reference in &task.references {
            let inserted = inputs.insert(reference.clone(), self.input_at(self.profile.read_index(reference)).clone());
            inserted.expect("the inputs of a task set are within the limits of size");
        }
        inputs
    }

    /// Returns the inputs of the running tasks, in the order of the references' texts.
    pub fn iter_inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        let indexes = self.read_references.ones().filter_map(|index| u32::try_from(index).ok());
        indexes.map(|index| (&self.profile.reads[index as usize], self.input_at(index)))
    }

    /// Returns the inputs of the running tasks as one collection.
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::new();
        for (reference, input) in self.iter_inputs() {
            inputs.insert(reference.clone(), input.clone()).expect("the inputs of a task set are within the limits of size");
        }
        inputs
    }

    /// Returns the number of inputs, and their size in bytes ([`Inputs::size_bytes`]).
    pub fn input_count_and_bytes(&self) -> (usize, usize) {
        (self.read_references.count_ones(..), self.input_bytes)
    }

    /// Returns the references whose inputs differ from those of the group, each with its input.
    pub fn own_inputs(&self) -> impl Iterator<Item = (&Reference, &Input)> {
        self.own_inputs.iter().map(|(index, input)| (&self.profile.reads[*index as usize], input))
    }

    /// Returns the ids of the tasks of phase `apply` that are skipped for another reason than that they are markers or
    /// that their condition is false, each with the reason.
    pub fn other_skipped_ids(&self) -> impl Iterator<Item = (&str, &SkipReason)> {
        let apply_skips = self.other_skips.iter().filter(|(ix, _)| self.profile.has_task(*ix));
        apply_skips.map(|(ix, reason)| (self.profile.release.id(*ix), reason))
    }

    /// Returns the input for the profile's read at this index: the node's own input, or else the group's input.
    fn input_at(&self, index: u32) -> &Input {
        find_input_by_index(&self.own_inputs, index).unwrap_or_else(|| self.group_inputs.get(index))
    }

    /// Returns the tasks of phase `apply` that run, in order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskIndex> {
        self.profile.tasks.iter().copied().filter(|ix| self.should_run(*ix))
    }

    /// Returns whether a task of the profile runs.
    pub fn should_run(&self, ix: TaskIndex) -> bool {
        !self.skipped_by_definition.contains(ix.as_usize()) && self.other_skip_reason(ix).is_none()
    }

    /// Returns why a task is skipped. `None` if it runs, if it is a marker, or if its condition is false.
    fn other_skip_reason(&self, ix: TaskIndex) -> Option<&SkipReason> {
        let position = self.other_skips.binary_search_by_key(&ix, |(ix, _)| *ix).ok()?;
        Some(&self.other_skips[position].1)
    }

    /// Returns why a task of the profile does not run, or `None` if it runs.
    pub fn skip_reason(&self, ix: TaskIndex) -> Option<SkipReason> {
        if self.skipped_by_definition.contains(ix.as_usize()) {
            return SkipReason::from_definition(self.profile.release.task(ix));
        }
        self.other_skip_reason(ix).cloned()
    }

    /// Returns the digest of the task set under a digest version. The digest of a released task set has the version
    /// with which it was released, so it is compared with a digest of the same version.
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
            // A task that changes between placed and sent for `on_unassign` is another content of the task set.
            let definition = match profile.unassign.binary_search(&ix) {
                Ok(_) => sha256_of_parts([&b"on_unassign"[..], &task.definition].into_iter()),
                Err(_) => task.definition,
            };
            hasher.add_task(&definition, task.task.is_untranslated(), &self.digest_text(&task.references));
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

    /// Returns the ids of the untranslated tasks among the tasks of phase `apply` that are not skipped, in order. Such
    /// a task has an expression of another system that is not evaluated, so the host never starts it.
    pub(crate) fn untranslated_ids(&self) -> impl Iterator<Item = &str> {
        let tasks = self.tasks().map(|ix| self.profile.release.task(ix));
        tasks.filter(|task| task.task.is_untranslated()).map(|task| task.task.id.as_str())
    }

    /// Returns the ids of the tasks of phase `apply` that run, in order.
    pub fn task_ids(&self) -> impl Iterator<Item = &str> {
        self.tasks().map(|ix| self.profile.release.id(ix))
    }

    /// Returns the ids of the tasks of phase `apply` that do not run, each with the reason, in the order of ids.
    pub fn skipped_ids(&self) -> impl Iterator<Item = (&str, SkipReason)> {
        let by_definition = self.skipped_by_definition.ones().filter_map(|index| u32::try_from(index).ok()).map(TaskIndex);
        let mut skipped: Vec<TaskIndex> = by_definition.chain(self.other_skips.iter().map(|(ix, _)| *ix)).collect();
        skipped.sort_unstable();
        let apply_tasks = skipped.into_iter().filter(|ix| self.profile.has_task(*ix));
        apply_tasks.filter_map(|ix| Some((self.profile.release.id(ix), self.skip_reason(ix)?)))
    }

    /// Returns the ids of the tasks that the host gets only for `on_unassign`, in the order of ids. Each comes with the
    /// reason why it is not among the tasks that run: [`SkipReason::OnUnassign`], or the reason why it must not run at all.
    pub fn unassign_ids(&self) -> impl Iterator<Item = (&str, SkipReason)> {
        let reason = |ix: TaskIndex| self.skip_reason(ix).unwrap_or(SkipReason::OnUnassign);
        self.profile.unassign.iter().map(move |ix| (self.profile.release.id(*ix), reason(*ix)))
    }

    /// Returns the ids of the skipped tasks of phase `apply` whose condition takes more steps than allowed.
    pub(crate) fn undecided_ids(&self) -> impl Iterator<Item = &str> {
        let undecided = self.other_skips.iter().filter(|(_, reason)| matches!(reason, SkipReason::Undecided { .. }));
        undecided.filter(|(ix, _)| self.profile.has_task(*ix)).map(|(ix, _)| self.profile.release.id(*ix))
    }

    /// Returns the ids of the privileged tasks whose condition has a higher outcome in this task set than in the node's
    /// earlier task set `old`, each with the new outcome. A task that `old` lacks, or has with another definition,
    /// counts as not met before.
    ///
    /// A task with an undecided condition may run too, because a later report of the host can decide the condition. No
    /// permission is checked when a report arrives.
    pub fn newly_run_privileged(&self, old: Option<&Self>) -> Vec<(&str, ConditionOutcome)> {
        let old_outcomes: BTreeMap<&[u8; 32], ConditionOutcome> =
            old.into_iter().flat_map(Self::conditional_privileged).map(|(task, outcome)| (&task.definition, outcome)).collect();
        let old_outcome = |definition: &[u8; 32]| old_outcomes.get(definition).copied().unwrap_or(ConditionOutcome::No);
        let newly_running = self.conditional_privileged().filter(|(task, outcome)| *outcome > old_outcome(&task.definition));
        newly_running.map(|(task, outcome)| (task.task.id.as_str(), outcome)).collect()
    }

    /// Returns whether a privileged task with this definition has a condition and runs.
    pub fn runs_conditional_privileged(&self, definition: &[u8; 32]) -> bool {
        self.conditional_privileged().any(|(task, outcome)| task.definition == *definition && outcome == ConditionOutcome::Yes)
    }

    /// Returns the privileged tasks that have a condition, each with the outcome of the condition.
    fn conditional_privileged(&self) -> impl Iterator<Item = (&CompiledTask, ConditionOutcome)> {
        let tasks = self.profile.privileged.iter().map(|ix| (self.profile.release.task(*ix), *ix));
        tasks.filter(|(task, _)| task.condition.is_some()).map(|(task, ix)| (task, self.condition_outcome(ix)))
    }

    /// Returns the outcome of a task's condition. It follows from the reason why the task does not run, if there is
    /// one.
    fn condition_outcome(&self, ix: TaskIndex) -> ConditionOutcome {
        match self.skip_reason(ix) {
            None => ConditionOutcome::Yes,
            Some(SkipReason::Undecided { .. }) => ConditionOutcome::Undecided,
            Some(
                SkipReason::False { .. }
                | SkipReason::Failed { .. }
                | SkipReason::Marker
                | SkipReason::NotAsserted
                | SkipReason::OnUnassign
                | SkipReason::TooLarge { .. },
            ) => ConditionOutcome::No,
        }
    }

    /// Returns the effective tags of the node, sorted, without the prefix `primary-`.
    pub fn tags(&self) -> &[TagName] {
        self.group_inputs.tags()
    }

    /// Returns the tags that the node holds as primary, sorted, without the prefix `primary-`.
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

    /// Returns the observation of the host's last report, or `None` if the host never reported.
    pub fn observation(&self) -> Option<&Arc<Observation>> {
        self.entry.observation.as_ref()
    }

    /// Returns the pause, hold and park that were set on the host itself, or `None` if the host reported none.
    pub fn reported_state(&self) -> Option<&ReportedState> {
        self.reported_state.as_deref()
    }

    /// Returns the node's group with everything that it inherits, or `None` if the node is unplaced.
    pub fn resolved_group(&self) -> Option<&Arc<ResolvedGroup>> {
        self.group.as_ref()
    }

    /// Returns the task set that the node should run. `None` if the node is in no group, or if no level names a
    /// release.
    pub fn task_set(&self) -> Option<&Arc<TaskSet>> {
        self.task_set.as_ref()
    }

    /// Returns the requirements of the group that the node does not meet. As long as there are such requirements, no
    /// new task set is released to the node.
    pub fn unmet_requirements(&self) -> &[UnmetRequirement] {
        self.unmet_requirements.as_ref().map_or(&[], |list| &list.0)
    }

    /// Checks that the node has the traits that its instance (the allocated use of the host) requires. Until the node
    /// has these traits, its first task set is not released.
    ///
    /// # Errors
    /// [`InstanceTraitsError`] with the missing traits, or if the list of required traits is invalid.
    pub fn check_instance_traits(&self) -> Result<(), InstanceTraitsError> {
        self.entry.check_instance_traits(&self.rule_outcome)
    }

    /// Returns the release that the nearest level names, or `None` if no level names one. The profile of the node may
    /// have been computed for another release with the same content.
    pub fn release(&self) -> Option<&Arc<CompiledRelease>> {
        Some(&self.group.as_ref()?.release.as_ref()?.value)
    }

    /// Returns `CLUSTER/GROUP`, or `None` if the node is unplaced.
    pub fn group_path(&self) -> Option<String> {
        self.group.as_ref().map(|resolved_group| resolved_group.path())
    }

    /// Returns the effective labels, including those that inspection rules and the host fill. Each label comes with
    /// every level that provides it.
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

    /// Returns the rule that selects the labels for the host label map, the map of labels for other programs on the
    /// host.
    pub fn host_labels(&self) -> Arc<HostLabelRule> {
        self.group.as_ref().map_or_else(Default::default, |resolved_group| Arc::clone(&resolved_group.host_labels.value))
    }

    /// Returns the traits, each with its sources.
    pub fn traits(&self) -> NodeTraits {
        self.entry.traits(&self.rule_outcome).resolve()
    }

    /// Returns the labels, properties and traits that inspection rules give the node, and the notes of these rules.
    pub fn rule_outcome(&self) -> &RuleOutcome {
        &self.rule_outcome
    }

    /// Returns the lifecycle fields, each with its origin.
    pub fn lifecycle_limits(&self) -> LifecycleLimits {
        let mut levels = self.group.as_ref().map(|resolved_group| resolved_group.lifecycle()).unwrap_or_default();
        levels.push((Level::Node, self.entry.node.spec.inherited.lifecycle));
        LifecycleLimits::resolve(&levels)
    }

    /// Returns the mode in which the host handles its tasks: that of the node, or else that of the group, or else
    /// `apply`.
    pub fn mode(&self) -> ValueWithOrigin<Mode> {
        self.entry.mode(self.group.as_ref().map(|resolved_group| &*resolved_group.group))
    }

    /// Returns whether the host removes files that only tasks wrote and that no task manages any more.
    pub fn removes_orphans(&self) -> bool {
        self.group.as_ref().is_some_and(|resolved_group| resolved_group.group.spec.remove_orphans)
    }

    /// Returns the number of seconds over which the host spreads its work after a change.
    pub fn splay_seconds(&self) -> u32 {
        self.group.as_ref().and_then(|resolved_group| resolved_group.group.spec.splay_seconds).unwrap_or(0)
    }

    /// Returns the number of seconds without a check-in after which the host is in state `silent`.
    pub fn silent_after_seconds(&self) -> u32 {
        let seconds = self.group.as_ref().and_then(|resolved_group| resolved_group.group.spec.silent_after_seconds);
        seconds.unwrap_or(NodeGroupSpec::DEFAULT_SILENT_AFTER_SECONDS)
    }

    /// Returns the operator's hold on the node's task set, if the spec has one. The hold may have ended.
    pub fn hold(&self) -> Option<&Hold> {
        self.entry.node.spec.hold.as_deref()
    }

    /// Returns whether the spec parks the node, so that its host runs no task and barriers skip the node.
    /// [`Self::reported_state`] shows whether it was parked on its host.
    pub fn is_parked(&self) -> bool {
        self.entry.node.spec.parked
    }

    /// Returns whether the group or the cluster is paused, so that no new task set is released.
    pub fn is_paused(&self) -> bool {
        self.group.as_ref().is_some_and(|resolved_group| resolved_group.group.spec.paused || resolved_group.cluster.spec.paused)
    }

    /// Returns the roles of the node: those of its group and its own.
    pub fn roles(&self) -> BTreeSet<Name> {
        self.entry.roles(self.group.as_deref())
    }

    /// Returns the tags of the node that have ready probes, each with its probes. A probe decides whether the software
    /// of the tag is ready.
    pub fn ready_probes(&self) -> Vec<(&TagName, &[Value])> {
        let (Some(resolved_group), Some(set)) = (&self.group, &self.task_set) else { return Vec::new() };
        let Some(table) = &resolved_group.role_table else { return Vec::new() };
        let probes = set.tags().iter().filter_map(|tag| Some((tag, table.tag(tag)?.ready.as_slice())));
        probes.filter(|(_, ready)| !ready.is_empty()).collect()
    }
}
