//! From a stored release to one that can be resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::circle::{OfStages, circle};
use super::content::{release_hash, task_hash};
use super::cycle::{find_cycle, rank};
use super::library::Library;
use super::select::{InvalidPattern, NameSelector, Pattern, is_pattern};
use super::{CompiledRelease, CompiledTask, Cross, Placement, ReleaseError, Target, TaskIx, TaskName, TaskPath};
use crate::condition::Author;
use crate::finding::{Finding, Rule, rule};
use crate::idle;
use crate::input::{Need, Query, Read, Reference};
use crate::name::ReleaseRef;
use crate::object::{ReleaseSpec, RoleMatching};
use crate::task::{CrossEntry, Task, Where, judge, not_run_yet, tags_in_content, task_type, through_links};

/// Compiles a release.
///
/// `imports` gives the compiled releases that it names; of a set of releases, compile those first (`compile_set`).
///
/// # Errors
/// Every [`ReleaseError`] that was found, in the order of the fields.
pub fn compile(
    name: &ReleaseRef,
    spec: &ReleaseSpec,
    imports: &dyn Fn(&ReleaseRef) -> Option<Arc<CompiledRelease>>,
    author: &dyn Author,
) -> Result<Arc<CompiledRelease>, Vec<ReleaseError>> {
    let mut compiler = Compiler { name, author, errors: Vec::new(), findings: judge(name, &spec.tasks, author) };
    let found = compiler.imports(spec, imports);
    let library = compiler.gather(spec, &found);
    let mut tasks = compiler.tasks(&library, spec);
    if compiler.errors.is_empty() {
        compiler.cycles(&tasks);
        compiler.open_stages(&mut tasks);
    }
    if !compiler.errors.is_empty() {
        return Err(compiler.errors);
    }
    Ok(Arc::new(compiler.finish(spec, library, tasks)))
}

/// Compiles releases that may import each other, in the order that this needs.
///
/// # Errors
/// By release, every error that was found; an import cycle stands with each release on it.
pub fn compile_set(
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    author: &dyn Author,
) -> Result<BTreeMap<ReleaseRef, Arc<CompiledRelease>>, BTreeMap<ReleaseRef, Vec<ReleaseError>>> {
    let (done, failed) = compile_each(specs, author);
    if failed.is_empty() { Ok(done) } else { Err(failed) }
}

/// The same, with what compiles beside what does not and why: one that does not takes none away that does not import it.
pub fn compile_each(
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    author: &dyn Author,
) -> (BTreeMap<ReleaseRef, Arc<CompiledRelease>>, BTreeMap<ReleaseRef, Vec<ReleaseError>>) {
    let mut done = BTreeMap::new();
    let mut failed = BTreeMap::new();
    for name in specs.keys() {
        compile_into(name, specs, author, &mut Vec::new(), &mut done, &mut failed);
    }
    (done, failed)
}

fn compile_into(
    name: &ReleaseRef,
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    author: &dyn Author,
    path: &mut Vec<ReleaseRef>,
    done: &mut BTreeMap<ReleaseRef, Arc<CompiledRelease>>,
    failed: &mut BTreeMap<ReleaseRef, Vec<ReleaseError>>,
) {
    let Some(spec) = specs.get(name) else { return };
    if done.contains_key(name) || failed.contains_key(name) {
        return;
    }
    if let Some(start) = path.iter().position(|one| one == name) {
        let mut round = path[start..].to_vec();
        round.push(name.clone());
        failed.insert(name.clone(), vec![ReleaseError::ImportCycle { path: round }]);
        return;
    }
    path.push(name.clone());
    for import in &spec.imports {
        compile_into(import, specs, author, path, done, failed);
    }
    path.pop();
    if spec.imports.iter().any(|import| failed.contains_key(import)) && failed.contains_key(name) {
        return;
    }
    match compile(name, spec, &|import| done.get(import).cloned(), author) {
        Ok(release) => drop(done.insert(name.clone(), release)),
        Err(errors) => drop(failed.insert(name.clone(), errors)),
    }
}

/// What a task's templates read together.
#[derive(Default)]
struct TaskReads {
    references: BTreeSet<Reference>,
    needs: BTreeSet<Need>,
    /// Whether one of them puts values in unquoted.
    raw: bool,
}

pub(super) struct Compiler<'a> {
    pub(super) name: &'a ReleaseRef,
    author: &'a dyn Author,
    pub(super) errors: Vec<ReleaseError>,
    findings: Vec<Finding>,
}

impl Compiler<'_> {
    fn imports(
        &mut self,
        spec: &ReleaseSpec,
        imports: &dyn Fn(&ReleaseRef) -> Option<Arc<CompiledRelease>>,
    ) -> Vec<Arc<CompiledRelease>> {
        let mut found = Vec::new();
        for import in &spec.imports {
            match imports(import) {
                _ if import == self.name => {
                    self.errors.push(ReleaseError::ImportCycle { path: vec![import.clone(), import.clone()] });
                }
                Some(release) if release.all_imports.contains(self.name) => {
                    let path = vec![self.name.clone(), import.clone(), self.name.clone()];
                    self.errors.push(ReleaseError::ImportCycle { path });
                }
                Some(release) => found.push(release),
                None => self.errors.push(ReleaseError::UnknownImport(import.clone())),
            }
        }
        found
    }

    fn tasks(&mut self, library: &Library, spec: &ReleaseSpec) -> Vec<CompiledTask> {
        let mut tasks: Vec<CompiledTask> =
            library.tasks.values().map(|task| self.task(library, task, spec.matching.roles)).collect();
        for (group, at) in library.tasks.values().filter(|task| task.is_group()).map(|task| (task, &task.tasks)) {
            self.group(library, group, at, &mut tasks);
        }
        for (task, rank) in tasks_ranks(&tasks) {
            tasks[task].rank = rank;
        }
        tasks
    }

    fn group(&mut self, library: &Library, group: &Task, members: &[String], tasks: &mut [CompiledTask]) {
        let Some(own) = library.find(&group.id) else { return };
        for (at, member) in members.iter().enumerate() {
            let field = format!("task {} tasks[{at}]", group.id);
            match library.find(member) {
                None => self.unknown(field, member, library),
                Some(ix) if tasks[ix.at()].task.is_group() => {
                    self.errors.push(ReleaseError::GroupInGroup { field, name: member.clone() });
                }
                Some(ix) => {
                    let mut groups = tasks[ix.at()].groups.to_vec();
                    groups.push(own);
                    tasks[ix.at()].groups = groups.into();
                }
            }
        }
    }

    fn task(&mut self, library: &Library, task: &Arc<Task>, roles: RoleMatching) -> CompiledTask {
        let field = |name: &str| format!("task {} {name}", task.id);
        let TaskReads { references, needs, raw } = self.references(task);
        let condition = task.condition.as_ref().and_then(|text| {
            self.author
                .condition(text)
                .map_err(|reason| self.errors.push(ReleaseError::Author { field: field("condition"), reason }))
                .ok()
        });
        let asked = condition.iter().flat_map(|condition| condition.references());
        self.look_ups(library, task, references.iter().chain(asked));
        let on_unassign = task.on_unassign.as_ref().and_then(|name| {
            let found = library.find(name);
            if found.is_none() {
                self.unknown(field("on_unassign"), name, library);
            }
            found
        });
        let subscribes = self.named(library, task, "subscribes", &task.subscribes);
        let placement = self.placement(library, task, roles);
        let requires = self.named(library, task, "requires", &task.requires);
        // It runs again after what it subscribes to has changed, so it comes after it.
        let requires: BTreeSet<TaskIx> = requires.iter().chain(&subscribes).copied().collect();
        CompiledTask {
            definition: task_hash(task),
            references: references.into_iter().collect(),
            needs: needs.into_iter().collect(),
            condition,
            condition_text: task.condition.as_deref().unwrap_or_default().into(),
            path: TaskPath::of(task, self.author),
            names: TaskName::all_of(task, self.author),
            raw,
            rank: 0,
            groups: Box::new([]),
            subscribes,
            on_unassign,
            placement,
            requires: requires.into_iter().collect(),
            required_for: self.named(library, task, "required_for", &task.required_for),
            cross_depends: self.cross(library, task, "cross_depends", &task.cross_depends, roles),
            cross_depended_by: self.cross(library, task, "cross_depended_by", &task.cross_depended_by, roles),
            task: Arc::clone(task),
        }
    }

    /// What the task's templates read, need and put in unquoted.
    fn references(&mut self, task: &Task) -> TaskReads {
        let mut all = TaskReads::default();
        let Some(kind) = task_type(&task.kind) else {
            let message = format!("type {:?} is not known here: agents report it as unsupported", task.kind);
            self.find(rule::TASK_TYPE, &format!("task {}", task.id), &message);
            return all;
        };
        for template in kind.template_texts(&task.parameters) {
            match kind.read(&template, self.author) {
                Ok(read) => {
                    all.references.extend(read.references);
                    all.needs.extend(read.needs);
                    all.raw |= !read.raw.is_empty();
                }
                Err(reason) => {
                    let field = format!("task {} {}", task.id, template.path);
                    self.errors.push(ReleaseError::Author { field, reason });
                }
            }
        }
        all
    }

    fn placement(&mut self, library: &Library, task: &Task, roles: RoleMatching) -> Placement {
        let by_tags = match (&task.tags, roles) {
            (Some(tags), RoleMatching::Tags) => Some(tags),
            (Some(tags), RoleMatching::Own) if !tags.is_empty() => Some(tags),
            (Some(_) | None, _) => None,
        };
        match by_tags {
            Some(tags) => {
                let selector = self.selector(task, "tags", NameSelector::tags(tags));
                self.check_tags(library, task, "tags", &selector);
                Placement::Tags(selector)
            }
            None => {
                let selector = self.selector(task, "roles", NameSelector::roles(&task.roles));
                self.check_roles(library, task, "roles", &selector, roles);
                Placement::Roles(selector)
            }
        }
    }

    fn selector(&mut self, task: &Task, field: &str, read: Result<NameSelector, InvalidPattern>) -> NameSelector {
        read.unwrap_or_else(|reason| {
            self.errors.push(ReleaseError::Pattern { field: format!("task {} {field}", task.id), reason });
            NameSelector::Union(Box::new([]))
        })
    }

    /// Names and patterns of tasks. An unknown name is an error, a pattern that means nothing a finding.
    fn named(&mut self, library: &Library, task: &Task, field: &str, names: &[String]) -> Box<[TaskIx]> {
        let mut found = BTreeSet::new();
        for (at, name) in names.iter().enumerate() {
            let field = format!("task {} {field}[{at}]", task.id);
            found.extend(self.task_names(library, &field, name));
        }
        // Only the cycle check of exact names asks after the task itself; a pattern that matches it means the others.
        if let Some(own) = library.find(&task.id) {
            found.remove(&own);
        }
        found.into_iter().collect()
    }

    fn task_names(&mut self, library: &Library, field: &str, name: &str) -> Vec<TaskIx> {
        if !is_pattern(name) {
            return library.find(name).map_or_else(
                || {
                    self.unknown(field.to_owned(), name, library);
                    Vec::new()
                },
                |ix| vec![ix],
            );
        }
        match Pattern::new(name) {
            Err(reason) => {
                self.errors.push(ReleaseError::Pattern { field: field.to_owned(), reason });
                Vec::new()
            }
            Ok(pattern) => {
                let found = library.matching(&pattern);
                if found.is_empty() {
                    self.find(rule::TASK_PATTERN, field, &format!("pattern {name} matches no task"));
                }
                found
            }
        }
    }

    fn cross(
        &mut self,
        library: &Library,
        task: &Task,
        field: &str,
        entries: &[CrossEntry],
        roles: RoleMatching,
    ) -> Box<[Cross]> {
        let mut resolved = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let field = format!("{field}[{at}]");
            let tasks = self.task_names(library, &format!("task {} {field}.name", task.id), &entry.name).into();
            let target = self.target(library, task, &field, entry, roles);
            resolved.push(Cross { tasks, target, policy: entry.policy });
        }
        resolved.into()
    }

    /// `tags` before `role`; neither means everyone. Under `own` an empty `tags` counts as none.
    fn target(
        &mut self,
        library: &Library,
        task: &Task,
        field: &str,
        entry: &CrossEntry,
        roles: RoleMatching,
    ) -> Target {
        let tags_count = match &entry.tags {
            Where::Absent => false,
            Where::Null => roles == RoleMatching::Tags || entry.role.is_absent(),
            Where::Names(names) => roles == RoleMatching::Tags || !names.is_empty(),
        };
        let (place, by_tags) = if tags_count { (&entry.tags, true) } else { (&entry.role, false) };
        let names = match place {
            Where::Absent => return Target::Everyone,
            Where::Null => return Target::Stages,
            Where::Names(names) => names,
        };
        if *names == ["self"] {
            return Target::Same;
        }
        if by_tags {
            let selector = self.selector(task, &format!("{field}.tags"), NameSelector::tags(names));
            self.check_tags(library, task, field, &selector);
            Target::Tags(Arc::new(selector))
        } else {
            let selector = self.selector(task, &format!("{field}.role"), NameSelector::roles(names));
            self.check_roles(library, task, field, &selector, roles);
            Target::Roles(Arc::new(selector))
        }
    }

    /// Names that nobody declares among those by which a task's templates and its condition look up nodes.
    fn look_ups<'r>(&mut self, library: &Library, task: &Task, references: impl Iterator<Item = &'r Reference>) {
        let exact =
            |names: &'r [Box<str>]| names.iter().map(|name| &**name).filter(|name| !is_pattern(name) && *name != "*");
        let (mut tags, mut roles) = (BTreeSet::new(), BTreeSet::new());
        for reference in references {
            let (by_tags, by_roles): (&[Box<str>], &[Box<str>]) = match reference.read() {
                Read::Nodes { query: Query::Tag(tags), .. } => (tags.as_slice(), &[]),
                Read::Nodes { query: Query::Role(roles), .. } => (&[], roles.as_slice()),
                Read::Nodes { query: Query::TagOrRole { tags, roles }, .. } => (tags.as_slice(), roles.as_slice()),
                Read::Primary { tag, .. } => (std::slice::from_ref(tag), &[]),
                _ => continue,
            };
            tags.extend(exact(by_tags).filter(|name| !library.is_tag(name)));
            roles.extend(exact(by_roles).filter(|name| !library.is_role(name)));
        }
        let place = format!("task {}", task.id);
        for name in tags {
            self.find(rule::SELECTOR_TAG, &place, &format!("it looks up nodes: {}", library.unknown_tag(name)));
        }
        for name in roles {
            self.find(rule::SELECTOR_ROLE, &place, &format!("it looks up nodes: {}", library.unknown_role(name)));
        }
    }

    fn check_tags(&mut self, library: &Library, task: &Task, field: &str, selector: &NameSelector) {
        for name in selector.exact_names().filter(|name| !library.is_tag(name)) {
            self.find(rule::SELECTOR_TAG, &format!("task {} {field}", task.id), &library.unknown_tag(name));
        }
    }

    fn check_roles(
        &mut self,
        library: &Library,
        task: &Task,
        field: &str,
        selector: &NameSelector,
        roles: RoleMatching,
    ) {
        let known = |name: &str| match roles {
            RoleMatching::Own => library.is_role(name),
            RoleMatching::Tags => library.is_tag(name),
        };
        for name in selector.exact_names().filter(|name| !known(name)) {
            let message = match roles {
                RoleMatching::Own => library.unknown_role(name),
                RoleMatching::Tags => library.unknown_tag(name),
            };
            self.find(rule::SELECTOR_ROLE, &format!("task {} {field}", task.id), &message);
        }
    }

    /// Refuses tasks that wait for each other by exact names.
    fn cycles(&mut self, tasks: &[CompiledTask]) {
        let own: Vec<&Task> = tasks.iter().map(|task| &*task.task).collect();
        if let Some(path) = circle(&own, OfStages::Stages) {
            self.errors.push(ReleaseError::Cycle { path });
        }
    }

    /// Drops what stages say of tasks where that closes a circle. A store may hold such a release from when nothing acted on it, and its
    /// hosts would wait for themselves for ever.
    fn open_stages(&mut self, tasks: &mut [CompiledTask]) {
        let is_stage: Vec<bool> = tasks.iter().map(|task| task.task.is_stage()).collect();
        let of_stages = |from: usize, to: TaskIx| !is_stage[from] || is_stage[to.at()];
        if !is_circular(tasks, |_, _| true) || is_circular(tasks, of_stages) {
            return;
        }
        for (at, task) in tasks.iter_mut().enumerate().filter(|(at, _)| is_stage[*at]) {
            let before = task.requires.len() + task.required_for.len();
            for names in [&mut task.requires, &mut task.required_for] {
                *names = names.iter().copied().filter(|ix| of_stages(at, *ix)).collect();
            }
            if task.requires.len() + task.required_for.len() < before {
                let message = "nothing acts on what it says of tasks that are no stages: with it, tasks of the release \
                               would wait for each other; take one of these dependencies away";
                self.find(rule::STAGE_CIRCLE, &format!("task {}", task.task.id), message);
            }
        }
    }

    fn unknown(&mut self, field: String, name: &str, library: &Library) {
        self.errors.push(ReleaseError::UnknownTask { field, name: name.to_owned(), near: library.near(name) });
    }

    pub(super) fn find(&mut self, rule: Rule, field: &str, message: &str) {
        let object = format!("release/{} {field}", self.name);
        self.findings.push(Finding::of(rule, object, message));
    }

    fn finish(mut self, spec: &ReleaseSpec, library: Library, tasks: Vec<CompiledTask>) -> CompiledRelease {
        let those = |is: &dyn Fn(&CompiledTask) -> bool| -> Box<[TaskIx]> {
            (0..).map(TaskIx).zip(&tasks).filter(|(_, task)| is(task)).map(|(ix, _)| ix).collect()
        };
        let (stages, privileged) = (those(&|task| task.task.is_stage()), those(&|task| task.is_privileged(&tasks)));
        let object = format!("release/{}", self.name);
        self.findings.extend(idle::findings(&object, spec));
        let named = |id: &str| library.tasks.get(id).map(|task| &**task);
        self.findings.extend(idle::groups_in_order(&object, &spec.tasks, named));
        self.findings.extend(not_run_yet(self.name, &spec.tasks));
        let named = spec.extensions.iter().flat_map(|one| &one.roles);
        for role in named.filter(|role| !library.roles.contains_key(*role)) {
            let message =
                format!("an extension is to decide the tags of role {role}, which the release does not declare");
            self.find(rule::ROLE_UNKNOWN, "extensions", &message);
        }
        // Its own before those of its imports.
        let imported = library.imports.iter().flat_map(|one| &one.extensions);
        let extensions = spec.extensions.iter().chain(imported).cloned().collect();
        self.findings.extend(tags_in_content(self.name, &spec.tasks));
        self.findings.extend(through_links(self.name, &spec.tasks));
        let all_imports = library.imports.iter().flat_map(|one| one.all_imports.iter().chain([&one.name])).cloned();
        CompiledRelease {
            name: self.name.clone(),
            hash: release_hash(spec, &library.imports),
            matching: spec.matching,
            extensions,
            stages,
            privileged,
            imports: spec.imports.clone(),
            all_imports: all_imports.collect(),
            findings: self.findings,
            tasks: tasks.into(),
            roles: library.roles,
            tags: library.tags,
        }
    }
}

/// A task's place in an order of all tasks that heeds every dependency, selectors left aside.
fn tasks_ranks(tasks: &[CompiledTask]) -> Vec<(usize, u32)> {
    let mut edges = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let before = task.requires.iter().chain(task.cross_depends.iter().flat_map(|cross| &*cross.tasks));
        edges.extend(before.map(|before| (before.at(), at)));
        let after = task.required_for.iter().chain(task.cross_depended_by.iter().flat_map(|cross| &*cross.tasks));
        edges.extend(after.map(|after| (at, after.at())));
    }
    edges.retain(|(before, after)| before != after);
    rank(tasks.len(), &edges).into_iter().zip(0..).collect()
}

/// The stages that entries of a task mean, which hold as what `requires` and `required_for` say. A stage does not wait for itself.
fn stages_of<'a>(tasks: &'a [CompiledTask], of: usize, entries: &'a [Cross]) -> impl Iterator<Item = usize> + 'a {
    let of_stages = entries.iter().filter(|entry| matches!(entry.target, Target::Stages));
    let meant = of_stages.flat_map(|entry| entry.tasks.iter()).map(|ix| ix.at());
    meant.filter(move |ix| *ix != of && tasks[*ix].task.is_stage())
}

/// Whether tasks wait for each other on one node or through stages, by names and patterns, where of what a task says of others only that
/// counts which `counts` keeps.
fn is_circular(tasks: &[CompiledTask], counts: impl Fn(usize, TaskIx) -> bool) -> bool {
    let mut edges = Vec::new();
    for (at, task) in tasks.iter().enumerate().filter(|(_, task)| !task.task.is_group()) {
        let counted = |ix: &&TaskIx| !tasks[ix.at()].task.is_group() && counts(at, **ix);
        edges.extend(task.requires.iter().filter(counted).map(|before| (before.at(), at)));
        edges.extend(task.required_for.iter().filter(counted).map(|after| (at, after.at())));
        edges.extend(stages_of(tasks, at, &task.cross_depends).map(|before| (before, at)));
        edges.extend(stages_of(tasks, at, &task.cross_depended_by).map(|after| (at, after)));
    }
    find_cycle(tasks.len(), &edges).is_some()
}
