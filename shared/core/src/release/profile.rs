//! Profiles: which tasks fall to nodes of one kind, before conditions, and in which order.
//!
//! Nodes that are matched by the same names under the same release run the same tasks, so placement, order on the
//! node and the barriers that it waits for are computed once for all of them, and sent to all of them under one
//! hash. Nothing of a node's own enters: no label, no fact, no value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fixedbitset::FixedBitSet;

use super::cycle::topological;
use super::path::may_lack_paths;
use super::select::{NameSelector, Pattern};
use super::{CompiledRelease, CompiledTask, Placement, Target, TaskIx};
use crate::digest::{Hex, sha256};
use crate::input::{Read, Reference};
use crate::name::{Name, PRIMARY_PREFIX, TagName};
use crate::object::{PrimaryMatching, RoleMatching};
use crate::role::MatchNames;
use crate::task::{Phase, Policy};

/// The identity of a profile: release content, names that selectors match, primaries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[display("{}", Hex(_0))]
#[debug("ProfileHash({self})")]
pub struct ProfileHash(pub [u8; 32]);

/// What a profile is made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// What selectors are matched against.
    pub names: MatchNames,
    /// What those of privileged tasks are matched against: the names that operators gave. `None`: they gave all, or no task asks.
    pub asserted: Option<Box<MatchNames>>,
    /// The roles, plain and sorted.
    pub roles: Box<[Name]>,
    /// The effective tags, plain and sorted.
    pub tags: Box<[TagName]>,
    /// Those held as primary, plain and sorted.
    pub primaries: Box<[TagName]>,
    /// Whether it is the controller's own host.
    pub is_master: bool,
}

/// What is known of nodes that selectors are matched against.
#[derive(Clone, Copy)]
struct Known<'a> {
    names: &'a MatchNames,
    is_master: bool,
}

/// The tasks of nodes that are alike.
#[derive(Debug)]
pub struct Profile {
    /// The identity.
    pub hash: ProfileHash,
    /// The release.
    pub release: Arc<CompiledRelease>,
    /// What it was made for.
    pub place: Place,
    /// The tasks of phase `apply`, those of type `skipped` among them, in order; positions index this list.
    pub tasks: Box<[TaskIx]>,
    /// The tasks of phase `drain`, in order.
    pub drain: Box<[TaskIx]>,
    /// The tasks of phase `cleanup`, in order.
    pub cleanup: Box<[TaskIx]>,
    /// Order on the node: positions in `tasks`, the first before the second; sorted, each once.
    pub edges: Box<[(u32, u32)]>,
    /// What tasks wait for beyond the node: positions in `tasks` and in `barriers`; sorted, each once.
    pub waits: Box<[(u32, u32)]>,
    /// The barriers that `waits` names.
    pub barriers: Box<[Barrier]>,
    /// The privileged tasks that fall to the nodes by what operators gave them, in the order of ids.
    pub privileged: Box<[TaskIx]>,
    /// Those that fall to the nodes otherwise alone, and so do not run; in the order of ids.
    pub not_asserted: Box<[TaskIx]>,
    /// Everything that conditions and templates of its tasks read, sorted, each once.
    pub reads: Box<[Reference]>,
    /// Tasks of one node that wait for each other, by a pattern or a dependency on the same node.
    pub cycle: Option<Box<[TaskIx]>>,
    /// Those of `tasks` whose paths may be those of others, or that may name a path or a program that no host takes, in order: none in most
    /// releases.
    pub(crate) may_lack_paths: Box<[TaskIx]>,
    /// Whether a path that is written out may be that of another task.
    pub may_share_plain_paths: bool,
    /// Those of `tasks`, by their place in the release.
    of_apply: FixedBitSet,
}

/// A point that opens when each node that it means has succeeded in a task. Its text, beside the id of the task, names it at both ends.
#[derive(Clone, Debug, derive_more::Display)]
#[display("{}{source}", match policy { Policy::All => "", Policy::Any => "any of " })]
pub struct Barrier {
    /// The task.
    pub task: TaskIx,
    /// On which nodes.
    pub source: Source,
    /// Every node, or the first that succeeds.
    pub policy: Policy,
}

/// Which nodes a barrier waits for. A node is never held back by its own instance of the task that waits.
#[derive(Clone, Debug, derive_more::Display)]
pub enum Source {
    /// The task is a stage: it opens with all that the stage waits for.
    #[display("stage")]
    Stage,
    /// Every node that has the task, whatever its roles and tags.
    #[display("anywhere")]
    Anywhere,
    /// Every node that has a role or a tag, never `master`.
    #[display("*")]
    Everyone,
    /// The nodes that these tags match.
    #[display("tags {_0}")]
    Tags(Arc<NameSelector>),
    /// The nodes that these roles match.
    #[display("roles {_0}")]
    Roles(Arc<NameSelector>),
}

/// What comes before a marker (`type: skipped`) on its node, through other markers too.
pub(crate) struct BeforeMarker<'a> {
    /// The tasks that are none, in order.
    pub(crate) tasks: Vec<TaskIx>,
    /// What it and these markers wait for beyond the node.
    pub(crate) barriers: Vec<&'a Barrier>,
}

impl Place {
    /// The hash of the profile for this place under a release.
    pub fn hash(&self, release: &CompiledRelease) -> ProfileHash {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&release.hash.0);
        bytes.push(u8::from(self.is_master));
        let mut list = |items: &mut dyn Iterator<Item = &str>| {
            for item in items {
                bytes.extend_from_slice(item.as_bytes());
                bytes.push(0);
            }
            bytes.push(1);
        };
        list(&mut self.names.role_names());
        list(&mut self.names.tag_names());
        list(&mut self.roles.iter().map(Name::as_str));
        list(&mut self.tags.iter().map(TagName::as_str));
        list(&mut self.primaries.iter().map(TagName::as_str));
        if let Some(asserted) = &self.asserted {
            list(&mut asserted.role_names());
            list(&mut asserted.tag_names());
        }
        ProfileHash(sha256(&bytes))
    }

    /// Whether a selector of `target` means a node at this place.
    pub(crate) fn is_meant(&self, matching: RoleMatching, target: &Target) -> bool {
        match target {
            Target::Same | Target::Stages => false,
            Target::Everyone => self.known().has_name() && !self.is_master,
            Target::Tags(selector) => self.known().matches_tags(selector),
            Target::Roles(selector) => self.known().matches_roles(matching, selector),
        }
    }

    /// Whether a barrier means a node at this place.
    pub(crate) fn is_source(&self, matching: RoleMatching, source: &Source) -> bool {
        match source {
            Source::Stage => false,
            Source::Anywhere => true,
            Source::Everyone => self.known().has_name() && !self.is_master,
            Source::Tags(selector) => self.known().matches_tags(selector),
            Source::Roles(selector) => self.known().matches_roles(matching, selector),
        }
    }

    fn known(&self) -> Known<'_> {
        Known { names: &self.names, is_master: self.is_master }
    }

    /// What operators gave alone. `master` is a node's name, which a host may choose for itself where it joins.
    fn asserted_alone(&self) -> Known<'_> {
        Known { names: self.asserted.as_deref().unwrap_or(&self.names), is_master: false }
    }
}

impl Known<'_> {
    fn has_name(self) -> bool {
        !(self.names.roles.is_empty() && self.names.tags.is_empty())
    }

    fn matches_tags(self, selector: &NameSelector) -> bool {
        selector.matches(self.names.tag_names()) || (self.is_master && selector.means_master())
    }

    fn matches_roles(self, matching: RoleMatching, selector: &NameSelector) -> bool {
        let matched = match matching {
            RoleMatching::Own => selector.matches(self.names.role_names()),
            RoleMatching::Tags => selector.matches(self.names.tag_names()),
        };
        matched || (self.is_master && selector.means_master())
    }

    /// Whether a task falls to the nodes, by its own selectors or by those of a group.
    fn has(self, release: &CompiledRelease, task: &CompiledTask) -> bool {
        let by = |task: &CompiledTask| match &task.placement {
            Placement::Tags(selector) => self.matches_tags(selector),
            Placement::Roles(selector) => self.matches_roles(release.matching.roles, selector),
        };
        !task.task.is_group()
            && !task.task.is_stage()
            && (by(task) || task.groups.iter().any(|ix| by(release.task(*ix))))
    }
}

impl CompiledRelease {
    /// The privileged tasks that fall to other nodes, or whose conditions give something else, where another node holds a tag as primary.
    pub(crate) fn privileged_by_primary(&self, tag: &str) -> Vec<&CompiledTask> {
        let primary = format!("{PRIMARY_PREFIX}{tag}");
        let held = match self.matching.primary {
            PrimaryMatching::Adds => vec![tag, primary.as_str()],
            PrimaryMatching::Replaces => vec![primary.as_str()],
        };
        let is_placed = |task: &CompiledTask| match &task.placement {
            Placement::Tags(selector) | Placement::Roles(selector) => {
                selector.matches(held.iter().copied()) != selector.matches([tag])
            }
        };
        let is_moved = |task: &CompiledTask| is_placed(task) || task.groups.iter().any(|ix| is_placed(self.task(*ix)));
        let reads_it = |task: &CompiledTask| {
            let mut references = task.condition.iter().flat_map(|condition| condition.references());
            references.any(|reference| reads_primary(reference.read(), tag, &held))
        };
        let privileged = self.privileged.iter().map(|ix| self.task(*ix));
        privileged.filter(|&task| is_moved(task) || reads_it(task)).collect()
    }
}

impl Profile {
    /// The profile for a place under a release.
    pub fn new(release: &Arc<CompiledRelease>, place: Place) -> Self {
        let placed: Vec<TaskIx> = (0..)
            .map(TaskIx)
            .zip(&release.tasks)
            .filter(|(_, task)| place.known().has(release, task))
            .map(|(ix, _)| ix)
            .collect();
        let privileged = release.privileged.iter().copied().filter(|ix| placed.binary_search(ix).is_ok());
        let (privileged, not_asserted): (Vec<_>, Vec<_>) =
            privileged.partition(|ix| place.asserted_alone().has(release, release.task(*ix)));
        let of =
            |phase: Phase| placed.iter().copied().filter(|ix| release.task(*ix).phase() == phase).collect::<Vec<_>>();
        let apply = ordered(release, &place, of(Phase::Apply));
        let drain = ordered(release, &place, of(Phase::Drain));
        let cleanup = ordered(release, &place, of(Phase::Cleanup));
        let waits = Waits::of(release, &place, &apply.tasks);
        let (may_lack_paths, may_share_plain_paths) = may_lack_paths(release, &apply.tasks);
        let cycle = [apply.cycle, drain.cycle, cleanup.cycle].into_iter().flatten().next();
        Self {
            hash: place.hash(release),
            release: Arc::clone(release),
            privileged: privileged.into(),
            not_asserted: not_asserted.into(),
            reads: reads(release, &placed),
            place,
            may_lack_paths,
            may_share_plain_paths,
            of_apply: apply.tasks.iter().map(|ix| ix.at()).collect(),
            tasks: apply.tasks.into(),
            edges: apply.edges.into(),
            drain: drain.tasks.into(),
            cleanup: cleanup.tasks.into(),
            waits: waits.places.into(),
            barriers: waits.barriers.into(),
            cycle: cycle.map(Into::into),
        }
    }

    /// Every task that falls to the nodes, of all phases, in the order of ids.
    pub fn all(&self) -> Vec<TaskIx> {
        let mut all: Vec<_> = self.tasks.iter().chain(&self.drain).chain(&self.cleanup).copied().collect();
        all.sort_unstable();
        all
    }

    /// The place, among its reads, of what one of its tasks reads.
    pub(crate) fn read_at(&self, reference: &Reference) -> u32 {
        let at = self.reads.binary_search(reference).expect("a profile reads whatever its tasks read");
        u32::try_from(at).expect("a profile has fewer reads than u32 counts")
    }

    /// Whether two of its tasks may write one path, or one may name a path or a program that no host takes: where not, no node is looked at for that.
    pub fn may_lack_paths(&self) -> bool {
        !self.may_lack_paths.is_empty()
    }

    /// Whether the task falls to the nodes, in phase `apply`.
    pub fn has(&self, ix: TaskIx) -> bool {
        self.of_apply.contains(ix.at())
    }

    /// The ids of the privileged tasks that fall to its nodes and not to those of another profile. One of the same id that is defined
    /// otherwise is another task.
    pub fn privileged_beyond(&self, other: Option<&Self>) -> Vec<&str> {
        let known: BTreeSet<&[u8; 32]> =
            other.into_iter().flat_map(Self::privileged_tasks).map(|task| &task.definition).collect();
        let new = self.privileged_tasks().filter(|task| !known.contains(&task.definition));
        new.map(|task| task.task.id.as_str()).collect()
    }

    /// Whether one of its privileged tasks has a condition, so that it may stand on a node and not run there.
    pub fn has_privileged_condition(&self) -> bool {
        self.privileged_tasks().any(|task| task.condition.is_some())
    }

    /// Whether such a condition looks other nodes up.
    pub(crate) fn has_privileged_look_up(&self) -> bool {
        let conditions = self.privileged_tasks().filter_map(|task| task.condition.as_ref());
        let mut references = conditions.flat_map(|condition| condition.references());
        references.any(|reference| matches!(reference.read(), Read::Nodes { .. } | Read::Primary { .. }))
    }

    pub(crate) fn privileged_tasks(&self) -> impl Iterator<Item = &CompiledTask> {
        self.privileged.iter().map(|ix| self.release.task(*ix))
    }

    /// Whether one of its tasks waits for itself on other nodes of the same profile: with one node nobody waits, and each further
    /// one closes a cycle.
    pub fn waits_for_itself(&self) -> bool {
        self.waits.iter().any(|(at, barrier)| {
            let barrier = &self.barriers[*barrier as usize];
            barrier.task == self.tasks[*at as usize]
                && self.place.is_source(self.release.matching.roles, &barrier.source)
        })
    }

    /// The barriers that stand before a task on its nodes, its own and those of what comes before it there, each with the task
    /// that waits at it.
    pub fn barriers_before(&self, ix: TaskIx) -> Vec<(TaskIx, &Barrier)> {
        let waits = self.waits_before(ix);
        waits.map(|(at, barrier)| (self.tasks[*at as usize], &self.barriers[*barrier as usize])).collect()
    }

    /// The tasks of its nodes that wait at these barriers, in the order in which they run. A marker does nothing: for one that waits there
    /// stand the tasks that come after it, and it is named itself where no task waits.
    pub fn waiting_at(&self, is_it: impl Fn(&Barrier) -> bool) -> Vec<TaskIx> {
        let is_marker = |ix: TaskIx| self.release.task(ix).is_skipped_type();
        let here = self.waits.iter().filter(|(_, barrier)| is_it(&self.barriers[*barrier as usize]));
        let here: BTreeSet<u32> = here.map(|(at, _)| *at).collect();
        let task = |at: &u32| self.tasks[*at as usize];
        let mut behind: BTreeSet<u32> = here.iter().copied().filter(|at| is_marker(task(at))).collect();
        // The edges of later tasks come later in the list.
        for (first, second) in &self.edges {
            if behind.contains(first) {
                behind.insert(*second);
            }
        }
        let waits = |at: &u32| !is_marker(task(at)) && (here.contains(at) || behind.contains(at));
        let waiting: Vec<TaskIx> = (0..).take(self.tasks.len()).filter(waits).map(|at| task(&at)).collect();
        if waiting.is_empty() { here.iter().map(task).collect() } else { waiting }
    }

    /// The places in `barriers` of those that stand before a task on its nodes; each once.
    pub(crate) fn barrier_places_before(&self, ix: TaskIx) -> BTreeSet<usize> {
        self.waits_before(ix).map(|(_, barrier)| *barrier as usize).collect()
    }

    fn waits_before(&self, ix: TaskIx) -> impl Iterator<Item = &(u32, u32)> {
        let before = self.up_to(ix, |_| true);
        self.waits.iter().filter(move |(at, _)| before.contains(at))
    }

    /// The positions of a task and of what comes before it, as far as each task on the way leads on.
    fn up_to(&self, ix: TaskIx, leads_on: impl Fn(TaskIx) -> bool) -> BTreeSet<u32> {
        let is_it = |at: &u32| self.tasks[*at as usize] == ix;
        let mut before: BTreeSet<u32> = (0..).take(self.tasks.len()).filter(is_it).collect();
        // The edges of later tasks come later in the list, so one pass backwards meets all that comes before it.
        for (first, second) in self.edges.iter().rev() {
            if before.contains(second) && leads_on(self.tasks[*second as usize]) {
                before.insert(*first);
            }
        }
        before
    }

    /// What is over when the node has passed a marker of `tasks`. A marker runs nowhere, so nobody reports it.
    pub(crate) fn before_marker(&self, marker: TaskIx) -> BeforeMarker<'_> {
        let is_marker = |ix: TaskIx| self.release.task(ix).is_skipped_type();
        let up_to = self.up_to(marker, is_marker);
        let (markers, tasks): (BTreeSet<u32>, BTreeSet<u32>) =
            up_to.into_iter().partition(|at| is_marker(self.tasks[*at as usize]));
        let waits = self.waits.iter().filter(|(at, _)| markers.contains(at));
        BeforeMarker {
            tasks: tasks.into_iter().map(|at| self.tasks[at as usize]).collect(),
            barriers: waits.map(|(_, barrier)| &self.barriers[*barrier as usize]).collect(),
        }
    }
}

impl CompiledRelease {
    /// What a stage waits for: stages, and tasks on the nodes that have them.
    pub(crate) fn stage_waits(&self, stage: TaskIx) -> Vec<Barrier> {
        let own = self.task(stage);
        let mut waits = Vec::new();
        let mut wait = |task: TaskIx, source: Source, policy| waits.push(Barrier { task, source, policy });
        for (ix, before) in
            own.requires.iter().map(|ix| (*ix, &self.task(*ix).task)).filter(|(_, task)| !task.is_group())
        {
            wait(ix, if before.is_stage() { Source::Stage } else { Source::Anywhere }, Policy::All);
        }
        for cross in &own.cross_depends {
            for ix in &cross.tasks {
                match (&cross.target, self.task(*ix).task.is_stage()) {
                    (Target::Same | Target::Stages, true) if *ix != stage => wait(*ix, Source::Stage, Policy::All),
                    (Target::Same | Target::Stages, _) | (_, true) => {}
                    (target, false) => wait(*ix, source(target), cross.policy),
                }
            }
        }
        for (ix, task) in (0..).map(TaskIx).zip(&self.tasks) {
            let to_stages = |target: &Target| match target {
                Target::Stages => true,
                Target::Same => task.task.is_stage(),
                Target::Everyone | Target::Tags(_) | Target::Roles(_) => false,
            };
            let by_cross =
                task.cross_depended_by.iter().any(|cross| to_stages(&cross.target) && cross.tasks.contains(&stage));
            if ix != stage && !task.task.is_group() && (by_cross || task.required_for.contains(&stage)) {
                let source = if task.task.is_stage() { Source::Stage } else { Source::Anywhere };
                wait(ix, source, Policy::All);
            }
        }
        waits
    }
}

struct Ordered {
    tasks: Vec<TaskIx>,
    edges: Vec<(u32, u32)>,
    cycle: Option<Vec<TaskIx>>,
}

/// The tasks of one phase in order, with the order among them.
fn ordered(release: &CompiledRelease, place: &Place, mut tasks: Vec<TaskIx>) -> Ordered {
    let positions: BTreeMap<TaskIx, usize> = tasks.iter().copied().zip(0..).collect();
    let mut edges = Vec::new();
    for (at, ix) in tasks.iter().enumerate() {
        let task = release.task(*ix);
        let here = |cross: &&super::Cross| {
            let same = matches!(cross.target, Target::Same);
            same || (cross.policy == Policy::All && place.is_meant(release.matching.roles, &cross.target))
        };
        let before = task.cross_depends.iter().filter(here).flat_map(|cross| &*cross.tasks).chain(&task.requires);
        edges.extend(before.filter_map(|ix| positions.get(ix)).map(|before| (*before, at)));
        let after =
            task.cross_depended_by.iter().filter(here).flat_map(|cross| &*cross.tasks).chain(&task.required_for);
        edges.extend(after.filter_map(|ix| positions.get(ix)).map(|after| (at, *after)));
    }
    edges.retain(|(before, after)| before != after);
    let (order, cycle) = match topological(tasks.len(), &edges, |at| release.task(tasks[at]).rank) {
        Ok(order) => (order, None),
        Err(cycle) => ((0..tasks.len()).collect(), Some(cycle.into_iter().map(|at| tasks[at]).collect())),
    };
    let mut moved = vec![0; tasks.len()];
    for (to, from) in order.iter().enumerate() {
        moved[*from] = u32::try_from(to).expect("a release has fewer tasks than u32 counts");
    }
    let mut edges: Vec<_> = edges.into_iter().map(|(before, after)| (moved[before], moved[after])).collect();
    edges.sort_unstable();
    edges.dedup();
    tasks = order.into_iter().map(|at| tasks[at]).collect();
    Ordered { tasks, edges, cycle }
}

/// Collects barriers, each once.
#[derive(Default)]
struct Waits {
    places: Vec<(u32, u32)>,
    barriers: Vec<Barrier>,
    known: BTreeMap<(TaskIx, String, bool), u32>,
}

impl Waits {
    fn of(release: &CompiledRelease, place: &Place, tasks: &[TaskIx]) -> Self {
        let mut waits = Self::default();
        for (at, ix) in (0..).zip(tasks) {
            waits.declared(release, at, *ix);
        }
        let positions: BTreeMap<TaskIx, u32> = tasks.iter().copied().zip(0..).collect();
        for (ix, task) in (0..).map(TaskIx).zip(&release.tasks).filter(|(_, task)| !task.task.is_group()) {
            let behind = task.required_for.iter().filter(|_| task.task.is_stage());
            for at in behind.filter_map(|after| positions.get(after)) {
                waits.add(*at, ix, Source::Stage, Policy::All);
            }
            for cross in task.cross_depended_by.iter().filter(|cross| cross.policy == Policy::All) {
                if place.is_meant(release.matching.roles, &cross.target) {
                    let source = if task.task.is_stage() { Source::Stage } else { Source::Anywhere };
                    let after = cross.tasks.iter().filter(|after| **after != ix || !task.task.is_stage());
                    for at in after.filter_map(|after| positions.get(after)) {
                        waits.add(*at, ix, source.clone(), Policy::All);
                    }
                }
            }
        }
        waits.places.sort_unstable();
        waits.places.dedup();
        waits
    }

    /// What the task itself says that it waits for.
    fn declared(&mut self, release: &CompiledRelease, at: u32, ix: TaskIx) {
        let task = release.task(ix);
        for stage in task.requires.iter().filter(|ix| release.task(**ix).task.is_stage()) {
            self.add(at, *stage, Source::Stage, Policy::All);
        }
        for cross in &task.cross_depends {
            for before in &cross.tasks {
                match (&cross.target, release.task(*before).task.is_stage()) {
                    (Target::Stages, true) => self.add(at, *before, Source::Stage, Policy::All),
                    (Target::Same | Target::Stages, _) | (_, true) => {}
                    (target, false) => self.add(at, *before, source(target), cross.policy),
                }
            }
        }
    }

    fn add(&mut self, at: u32, task: TaskIx, source: Source, policy: Policy) {
        let next = u32::try_from(self.barriers.len()).expect("a release has fewer barriers than u32 counts");
        let key = (task, source.to_string(), policy == Policy::Any);
        let barrier = *self.known.entry(key).or_insert(next);
        if barrier == next {
            self.barriers.push(Barrier { task, source, policy });
        }
        self.places.push((at, barrier));
    }
}

fn source(target: &Target) -> Source {
    match target {
        Target::Everyone | Target::Same | Target::Stages => Source::Everyone,
        Target::Tags(selector) => Source::Tags(Arc::clone(selector)),
        Target::Roles(selector) => Source::Roles(Arc::clone(selector)),
    }
}

fn reads(release: &CompiledRelease, placed: &[TaskIx]) -> Box<[Reference]> {
    let mut reads = Vec::new();
    for ix in placed {
        let task = release.task(*ix);
        reads.extend(task.references.iter().cloned());
        reads.extend(task.condition.iter().flat_map(|condition| condition.references()).cloned());
    }
    reads.sort();
    reads.dedup();
    reads.into()
}

/// Whether what is read may be something else where another node holds a tag as primary, whose holder has the names of `held` for it.
fn reads_primary(read: &Read, tag: &str, held: &[&str]) -> bool {
    match read {
        Read::Primary { tag: read, .. } => **read == *tag,
        Read::Tag(name) => held.contains(&&**name) != (**name == *tag),
        Read::Nodes { query, .. } => query.names().any(|name| {
            Pattern::new(name)
                .is_ok_and(|pattern| held.iter().any(|held| pattern.matches(held)) != pattern.matches(tag))
        }),
        Read::Label(_)
        | Read::LabelsWithPrefix(_)
        | Read::Parameter(_)
        | Read::Trait(_)
        | Read::Fact(_)
        | Read::Node(_)
        | Read::Cluster(_)
        | Read::Secret(_) => false,
    }
}
