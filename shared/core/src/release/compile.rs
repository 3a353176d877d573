//! Compiles a stored release into one that can be resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::content::{release_hash, task_hash};
use super::cycle::{find_cycle, rank};
use super::library::Library;
use super::name_selector::{InvalidPattern, NamePattern, NameSelector, is_regex};
use super::task_cycle::{StageDependencies, task_cycle};
use super::{
    CompiledCross, CompiledRelease, CompiledTask, DependencyTarget, HostPathTemplate, ReleaseError, TaskIndex, TaskPath,
    TaskPlacement,
};
use crate::condition::TemplateParser;
use crate::finding::{Finding, Rule, rule};
use crate::input::{NodeQuery, Read, Reference, RequiredReference};
use crate::name::ReleaseRef;
use crate::object::{ReleaseSpec, RoleMatching};
use crate::task::{
    CrossEntry, CrossSelector, Task, check_release_tasks, paths_through_links, task_type, template_tags_in_content,
    unsupported_types,
};
use crate::unimplemented;

/// Compiles a release.
///
/// `imports` returns the compiled releases that this release imports. They must be compiled before it (see
/// [`compile_set`]).
///
/// # Errors
/// Every [`ReleaseError`] that was found, in the order of the fields.
pub fn compile(
    name: &ReleaseRef,
    spec: &ReleaseSpec,
    imports: &dyn Fn(&ReleaseRef) -> Option<Arc<CompiledRelease>>,
    parser: &dyn TemplateParser,
) -> Result<Arc<CompiledRelease>, Vec<ReleaseError>> {
    let mut compiler = Compiler { name, parser, errors: Vec::new(), findings: check_release_tasks(name, &spec.tasks, parser) };
    let imported = compiler.imports(spec, imports);
    let library = compiler.gather(spec, &imported);
    let mut tasks = compiler.compile_tasks(&library, spec);
    if compiler.errors.is_empty() {
        compiler.check_cycles(&tasks);
        compiler.break_stage_cycles(&mut tasks);
    }
    if !compiler.errors.is_empty() {
        return Err(compiler.errors);
    }
    Ok(Arc::new(compiler.finish(spec, library, tasks)))
}

/// Compiles releases that may import each other, imports first.
///
/// # Errors
/// All errors by release. An import cycle is reported for each release on it.
pub fn compile_set(
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    parser: &dyn TemplateParser,
) -> Result<BTreeMap<ReleaseRef, Arc<CompiledRelease>>, BTreeMap<ReleaseRef, Vec<ReleaseError>>> {
    let (done, failed) = compile_each(specs, parser);
    if failed.is_empty() { Ok(done) } else { Err(failed) }
}

/// Compiles releases like [`compile_set`], but returns the releases that compile even if others fail, and the errors of
/// those that fail. A failed release affects only the releases that import it.
pub fn compile_each(
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    parser: &dyn TemplateParser,
) -> (BTreeMap<ReleaseRef, Arc<CompiledRelease>>, BTreeMap<ReleaseRef, Vec<ReleaseError>>) {
    let mut done = BTreeMap::new();
    let mut failed = BTreeMap::new();
    for name in specs.keys() {
        compile_into(name, specs, parser, &mut Vec::new(), &mut done, &mut failed);
    }
    (done, failed)
}

/// Compiles a release after its imports, and adds it to `done` or `failed`. `path` contains the releases whose imports
/// are being compiled, by which an import cycle is found.
fn compile_into(
    name: &ReleaseRef,
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    parser: &dyn TemplateParser,
    path: &mut Vec<ReleaseRef>,
    done: &mut BTreeMap<ReleaseRef, Arc<CompiledRelease>>,
    failed: &mut BTreeMap<ReleaseRef, Vec<ReleaseError>>,
) {
    let Some(spec) = specs.get(name) else { return };
    if done.contains_key(name) || failed.contains_key(name) {
        return;
    }
    if let Some(start) = path.iter().position(|entry| entry == name) {
        let mut cycle = path[start..].to_vec();
        cycle.push(name.clone());
        failed.insert(name.clone(), vec![ReleaseError::ImportCycle { path: cycle }]);
        return;
    }
    path.push(name.clone());
    for import in &spec.imports {
        compile_into(import, specs, parser, path, done, failed);
    }
    path.pop();
    if spec.imports.iter().any(|import| failed.contains_key(import)) && failed.contains_key(name) {
        return;
    }
    match compile(name, spec, &|import| done.get(import).cloned(), parser) {
        Ok(release) => drop(done.insert(name.clone(), release)),
        Err(errors) => drop(failed.insert(name.clone(), errors)),
    }
}

/// Everything that the templates of a task read.
#[derive(Default)]
struct CompiledReads {
    references: BTreeSet<Reference>,
    needs: BTreeSet<RequiredReference>,
    /// True if a template inserts values unquoted.
    has_unquoted: bool,
}

pub(super) struct Compiler<'a> {
    pub(super) name: &'a ReleaseRef,
    parser: &'a dyn TemplateParser,
    pub(super) errors: Vec<ReleaseError>,
    findings: Vec<Finding>,
}

impl Compiler<'_> {
    /// Returns the compiled imports. An import that is unknown, or that imports this release, is an error.
    fn imports(
        &mut self,
        spec: &ReleaseSpec,
        imports: &dyn Fn(&ReleaseRef) -> Option<Arc<CompiledRelease>>,
    ) -> Vec<Arc<CompiledRelease>> {
        let mut releases = Vec::new();
        for import in &spec.imports {
            match imports(import) {
                _ if import == self.name => {
                    self.errors.push(ReleaseError::ImportCycle { path: vec![import.clone(), import.clone()] });
                }
                Some(release) if release.all_imports.contains(self.name) => {
                    let path = vec![self.name.clone(), import.clone(), self.name.clone()];
                    self.errors.push(ReleaseError::ImportCycle { path });
                }
                Some(release) => releases.push(release),
                None => self.errors.push(ReleaseError::UnknownImport(import.clone())),
            }
        }
        releases
    }

    /// Compiles all tasks of the library, then their groups and ranks.
    fn compile_tasks(&mut self, library: &Library, spec: &ReleaseSpec) -> Vec<CompiledTask> {
        let mut tasks: Vec<CompiledTask> =
            library.tasks.values().map(|task| self.compile_task(library, task, spec.matching.roles)).collect();
        for (group, members) in library.tasks.values().filter(|task| task.is_group()).map(|task| (task, &task.tasks)) {
            self.compile_group(library, group, members, &mut tasks);
        }
        for (task, rank) in task_ranks(&tasks) {
            tasks[task].rank = rank;
        }
        tasks
    }

    /// Adds a group to each of its members. A member that is unknown or a group itself is an error.
    fn compile_group(&mut self, library: &Library, group: &Task, members: &[String], tasks: &mut [CompiledTask]) {
        let Some(index) = library.task_index(&group.id) else { return };
        for (at, member) in members.iter().enumerate() {
            let field = format!("task {} tasks[{at}]", group.id);
            match library.task_index(member) {
                None => self.add_unknown(field, member, library),
                Some(ix) if tasks[ix.as_usize()].task.is_group() => {
                    self.errors.push(ReleaseError::GroupInGroup { field, name: member.clone() });
                }
                Some(ix) => {
                    let mut groups = tasks[ix.as_usize()].groups.to_vec();
                    groups.push(index);
                    tasks[ix.as_usize()].groups = groups.into();
                }
            }
        }
    }

    /// Parses the templates, condition and selectors of a task, and resolves the names of other tasks in it.
    fn compile_task(&mut self, library: &Library, task: &Arc<Task>, roles: RoleMatching) -> CompiledTask {
        let field = |name: &str| format!("task {} {name}", task.id);
        let CompiledReads { references, needs, has_unquoted } = self.read_references(task);
        let condition = task.condition.as_ref().and_then(|text| {
            self.parser
                .parse_condition(text)
                .map_err(|reason| self.errors.push(ReleaseError::Author { field: field("condition"), reason }))
                .ok()
        });
        let condition_reads = condition.iter().flat_map(|condition| condition.references());
        self.check_lookups(library, task, references.iter().chain(condition_reads));
        let on_unassign = task.on_unassign.as_ref().and_then(|name| {
            let index = library.task_index(name);
            if index.is_none() {
                self.add_unknown(field("on_unassign"), name, library);
            }
            index
        });
        let subscribes = self.task_references(library, task, "subscribes", &task.subscribes);
        let placement = self.compile_placement(library, task, roles);
        let requires = self.task_references(library, task, "requires", &task.requires);
        // A task runs again after a task that it subscribes to has changed, so it must come after that task.
        let requires: BTreeSet<TaskIndex> = requires.iter().chain(&subscribes).copied().collect();
        CompiledTask {
            definition: task_hash(task),
            references: references.into_iter().collect(),
            needs: needs.into_iter().collect(),
            condition,
            condition_text: task.condition.as_deref().unwrap_or_default().into(),
            path: TaskPath::from_task(task, self.parser),
            host_paths: HostPathTemplate::from_task(task, self.parser),
            has_unquoted,
            rank: 0,
            groups: Box::new([]),
            subscribes,
            on_unassign,
            placement,
            requires: requires.into_iter().collect(),
            required_for: self.task_references(library, task, "required_for", &task.required_for),
            cross_depends: self.cross_dependencies(library, task, "cross_depends", &task.cross_depends, roles),
            cross_depended_by: self.cross_dependencies(library, task, "cross_depended_by", &task.cross_depended_by, roles),
            task: Arc::clone(task),
        }
    }

    /// Returns what the task's templates read, the references without which they fail, and whether they insert values
    /// unquoted.
    fn read_references(&mut self, task: &Task) -> CompiledReads {
        let mut reads = CompiledReads::default();
        let Some(kind) = task_type(&task.kind) else {
            let message = format!("type {:?} is not known here: agents report it as unsupported", task.kind);
            self.add_finding(rule::TASK_TYPE, &format!("task {}", task.id), &message);
            return reads;
        };
        for template in kind.template_texts(&task.parameters) {
            match kind.read_template(&template, self.parser) {
                Ok(read) => {
                    reads.references.extend(read.references);
                    reads.needs.extend(read.needs);
                    reads.has_unquoted |= !read.unquoted.is_empty();
                }
                Err(reason) => {
                    let field = format!("task {} {}", task.id, template.path);
                    self.errors.push(ReleaseError::Author { field, reason });
                }
            }
        }
        reads
    }

    /// Returns the selector that places a task: its tags if they count, or else its roles.
    fn compile_placement(&mut self, library: &Library, task: &Task, roles: RoleMatching) -> TaskPlacement {
        let by_tags = match (&task.tags, roles) {
            (Some(tags), RoleMatching::Tags) => Some(tags),
            (Some(tags), RoleMatching::Own) if !tags.is_empty() => Some(tags),
            (Some(_) | None, _) => None,
        };
        match by_tags {
            Some(tags) => {
                let selector = self.selector(task, "tags", NameSelector::for_tags(tags));
                self.check_tags(library, task, "tags", &selector);
                TaskPlacement::Tags(selector)
            }
            None => {
                let selector = self.selector(task, "roles", NameSelector::for_roles(&task.roles));
                self.check_roles(library, task, "roles", &selector, roles);
                TaskPlacement::Roles(selector)
            }
        }
    }

    /// Returns a parsed selector. An invalid pattern is an error, and the selector then matches nothing.
    fn selector(&mut self, task: &Task, field: &str, read: Result<NameSelector, InvalidPattern>) -> NameSelector {
        read.unwrap_or_else(|reason| {
            self.errors.push(ReleaseError::Pattern { field: format!("task {} {field}", task.id), reason });
            NameSelector::Union(Box::new([]))
        })
    }

    /// Resolves the names and patterns of other tasks in a field. An unknown name is an error. A pattern that matches
    /// no task is a finding.
    fn task_references(&mut self, library: &Library, task: &Task, field: &str, names: &[String]) -> Box<[TaskIndex]> {
        let mut tasks = BTreeSet::new();
        for (at, name) in names.iter().enumerate() {
            let field = format!("task {} {field}[{at}]", task.id);
            tasks.extend(self.task_names(library, &field, name));
        }
        // Only the cycle check of exact names considers the task itself. A pattern that matches it selects the others.
        if let Some(index) = library.task_index(&task.id) {
            tasks.remove(&index);
        }
        tasks.into_iter().collect()
    }

    /// Returns the tasks that a name or a pattern selects.
    fn task_names(&mut self, library: &Library, field: &str, name: &str) -> Vec<TaskIndex> {
        if !is_regex(name) {
            return library.task_index(name).map_or_else(
                || {
                    self.add_unknown(field.to_owned(), name, library);
                    Vec::new()
                },
                |ix| vec![ix],
            );
        }
        match NamePattern::new(name) {
            Err(reason) => {
                self.errors.push(ReleaseError::Pattern { field: field.to_owned(), reason });
                Vec::new()
            }
            Ok(pattern) => {
                let matches = library.matching(&pattern);
                if matches.is_empty() {
                    self.add_finding(rule::TASK_PATTERN, field, &format!("pattern {name} matches no task"));
                }
                matches
            }
        }
    }

    /// Resolves the entries of `cross_depends` or `cross_depended_by` of a task.
    fn cross_dependencies(
        &mut self,
        library: &Library,
        task: &Task,
        field: &str,
        entries: &[CrossEntry],
        roles: RoleMatching,
    ) -> Box<[CompiledCross]> {
        let mut resolved = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let field = format!("{field}[{at}]");
            let tasks = self.task_names(library, &format!("task {} {field}.name", task.id), &entry.name).into();
            let target = self.dependency_target(library, task, &field, entry, roles);
            resolved.push(CompiledCross { tasks, target, policy: entry.policy });
        }
        resolved.into()
    }

    /// Resolves the nodes that an entry selects. `tags` takes precedence over `role`. Without either, the entry selects
    /// every node. With role matching `own`, an empty `tags` counts as absent.
    fn dependency_target(
        &mut self,
        library: &Library,
        task: &Task,
        field: &str,
        entry: &CrossEntry,
        roles: RoleMatching,
    ) -> DependencyTarget {
        let tags_count = match &entry.tags {
            CrossSelector::Absent => false,
            CrossSelector::Null => roles == RoleMatching::Tags || entry.role.is_absent(),
            CrossSelector::Names(names) => roles == RoleMatching::Tags || !names.is_empty(),
        };
        let (cross_selector, by_tags) = if tags_count { (&entry.tags, true) } else { (&entry.role, false) };
        let names = match cross_selector {
            CrossSelector::Absent => return DependencyTarget::Everyone,
            CrossSelector::Null => return DependencyTarget::Stages,
            CrossSelector::Names(names) => names,
        };
        if *names == ["self"] {
            return DependencyTarget::Same;
        }
        if by_tags {
            let selector = self.selector(task, &format!("{field}.tags"), NameSelector::for_tags(names));
            self.check_tags(library, task, field, &selector);
            DependencyTarget::Tags(Arc::new(selector))
        } else {
            let selector = self.selector(task, &format!("{field}.role"), NameSelector::for_roles(names));
            self.check_roles(library, task, field, &selector, roles);
            DependencyTarget::Roles(Arc::new(selector))
        }
    }

    /// Adds findings about undeclared roles and tags by which a task's templates and condition look up nodes.
    fn check_lookups<'r>(&mut self, library: &Library, task: &Task, references: impl Iterator<Item = &'r Reference>) {
        let exact = |names: &'r [Box<str>]| names.iter().map(|name| &**name).filter(|name| !is_regex(name) && *name != "*");
        let (mut tags, mut roles) = (BTreeSet::new(), BTreeSet::new());
        for reference in references {
            let (by_tags, by_roles): (&[Box<str>], &[Box<str>]) = match reference.read() {
                Read::Nodes { query: NodeQuery::Tag(tags), .. } => (tags.as_slice(), &[]),
                Read::Nodes { query: NodeQuery::Role(roles), .. } => (&[], roles.as_slice()),
                Read::Nodes { query: NodeQuery::TagOrRole { tags, roles }, .. } => (tags.as_slice(), roles.as_slice()),
                Read::Primary { tag, .. } => (std::slice::from_ref(tag), &[]),
                _ => continue,
            };
            tags.extend(exact(by_tags).filter(|name| !library.is_tag(name)));
            roles.extend(exact(by_roles).filter(|name| !library.is_role(name)));
        }
        let field = format!("task {}", task.id);
        for name in tags {
            self.add_finding(rule::SELECTOR_TAG, &field, &format!("it looks up nodes: {}", library.unknown_tag_message(name)));
        }
        for name in roles {
            self.add_finding(rule::SELECTOR_ROLE, &field, &format!("it looks up nodes: {}", library.unknown_role_message(name)));
        }
    }

    /// Adds a finding for each name in a tag selector that no tag can match.
    fn check_tags(&mut self, library: &Library, task: &Task, field: &str, selector: &NameSelector) {
        for name in selector.exact_names().filter(|name| !library.is_tag(name)) {
            self.add_finding(rule::SELECTOR_TAG, &format!("task {} {field}", task.id), &library.unknown_tag_message(name));
        }
    }

    /// Adds a finding for each name in a role selector that is neither declared as role nor, with matching by tags, as
    /// tag.
    fn check_roles(&mut self, library: &Library, task: &Task, field: &str, selector: &NameSelector, roles: RoleMatching) {
        let is_known = |name: &str| match roles {
            RoleMatching::Own => library.is_role(name),
            RoleMatching::Tags => library.is_tag(name),
        };
        for name in selector.exact_names().filter(|name| !is_known(name)) {
            let message = match roles {
                RoleMatching::Own => library.unknown_role_message(name),
                RoleMatching::Tags => library.unknown_tag_message(name),
            };
            self.add_finding(rule::SELECTOR_ROLE, &format!("task {} {field}", task.id), &message);
        }
    }

    /// Rejects tasks that wait for each other by exact names.
    fn check_cycles(&mut self, tasks: &[CompiledTask]) {
        let definitions: Vec<&Task> = tasks.iter().map(|task| &*task.task).collect();
        if let Some(path) = task_cycle(&definitions, StageDependencies::OnStages) {
            self.errors.push(ReleaseError::Cycle { path });
        }
    }

    /// Drops the dependencies of stages on tasks if they close a cycle, because hosts would wait for each other for
    /// ever. A store may have such a release from an older version, which ignored these dependencies.
    fn break_stage_cycles(&mut self, tasks: &mut [CompiledTask]) {
        let is_stage: Vec<bool> = tasks.iter().map(|task| task.task.is_stage()).collect();
        let is_kept = |from: usize, to: TaskIndex| !is_stage[from] || is_stage[to.as_usize()];
        if !has_cycle(tasks, |_, _| true) || has_cycle(tasks, is_kept) {
            return;
        }
        for (at, task) in tasks.iter_mut().enumerate().filter(|(at, _)| is_stage[*at]) {
            let count = task.requires.len() + task.required_for.len();
            for names in [&mut task.requires, &mut task.required_for] {
                *names = names.iter().copied().filter(|ix| is_kept(at, *ix)).collect();
            }
            if task.requires.len() + task.required_for.len() < count {
                let message = "dependencies on tasks that are not stages are ignored: with them, tasks of the release \
                               would wait for each other; remove one of these dependencies";
                self.add_finding(rule::STAGE_CIRCLE, &format!("task {}", task.task.id), message);
            }
        }
    }

    fn add_unknown(&mut self, field: String, name: &str, library: &Library) {
        self.errors.push(ReleaseError::UnknownTask { field, name: name.to_owned(), near: library.closest_match(name) });
    }

    pub(super) fn add_finding(&mut self, rule: Rule, field: &str, message: &str) {
        let object = format!("release/{} {field}", self.name);
        self.findings.push(Finding::new(rule, object, message));
    }

    /// Adds the findings about the whole release, and returns it compiled.
    fn finish(mut self, spec: &ReleaseSpec, library: Library, tasks: Vec<CompiledTask>) -> CompiledRelease {
        let select = |predicate: &dyn Fn(&CompiledTask) -> bool| -> Box<[TaskIndex]> {
            (0..).map(TaskIndex).zip(&tasks).filter(|(_, task)| predicate(task)).map(|(ix, _)| ix).collect()
        };
        let (stages, privileged) = (select(&|task| task.task.is_stage()), select(&|task| task.is_effectively_privileged(&tasks)));
        let object = format!("release/{}", self.name);
        self.findings.extend(unimplemented::findings(&object, spec));
        let task_by_id = |id: &str| library.tasks.get(id).map(|task| &**task);
        self.findings.extend(unimplemented::groups_in_order(&object, &spec.tasks, task_by_id));
        self.findings.extend(unsupported_types(self.name, &spec.tasks));
        let roles = spec.extensions.iter().flat_map(|extension| &extension.roles);
        for role in roles.filter(|role| !library.roles.contains_key(*role)) {
            let message = format!("an extension decides the tags of role {role}, which the release does not declare");
            self.add_finding(rule::ROLE_UNKNOWN, "extensions", &message);
        }
        // The release's own extensions precede those of its imports.
        let imported = library.imports.iter().flat_map(|release| &release.extensions);
        let extensions = spec.extensions.iter().chain(imported).cloned().collect();
        self.findings.extend(template_tags_in_content(self.name, &spec.tasks));
        self.findings.extend(paths_through_links(self.name, &spec.tasks));
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

/// Returns each task's position in an order that respects every dependency. Selectors are ignored.
fn task_ranks(tasks: &[CompiledTask]) -> Vec<(usize, u32)> {
    let mut edges = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let before = task.requires.iter().chain(task.cross_depends.iter().flat_map(|cross| &*cross.tasks));
        edges.extend(before.map(|before| (before.as_usize(), at)));
        let after = task.required_for.iter().chain(task.cross_depended_by.iter().flat_map(|cross| &*cross.tasks));
        edges.extend(after.map(|after| (at, after.as_usize())));
    }
    edges.retain(|(before, after)| before != after);
    rank(tasks.len(), &edges).into_iter().zip(0..).collect()
}

/// Returns the stages that entries of a task's cross dependencies select. They order tasks like `requires` and
/// `required_for`. A stage does not wait for itself.
fn awaited_stages<'a>(tasks: &'a [CompiledTask], index: usize, entries: &'a [CompiledCross]) -> impl Iterator<Item = usize> + 'a {
    let stage_entries = entries.iter().filter(|entry| matches!(entry.target, DependencyTarget::Stages));
    let indexes = stage_entries.flat_map(|entry| entry.tasks.iter()).map(|ix| ix.as_usize());
    indexes.filter(move |ix| *ix != index && tasks[*ix].task.is_stage())
}

/// Returns whether tasks wait for each other on one node or through stages, by names and patterns. A dependency of a
/// task counts only if `counts` accepts it.
fn has_cycle(tasks: &[CompiledTask], counts: impl Fn(usize, TaskIndex) -> bool) -> bool {
    let mut edges = Vec::new();
    for (at, task) in tasks.iter().enumerate().filter(|(_, task)| !task.task.is_group()) {
        let counted = |ix: &&TaskIndex| !tasks[ix.as_usize()].task.is_group() && counts(at, **ix);
        edges.extend(task.requires.iter().filter(counted).map(|before| (before.as_usize(), at)));
        edges.extend(task.required_for.iter().filter(counted).map(|after| (at, after.as_usize())));
        edges.extend(awaited_stages(tasks, at, &task.cross_depends).map(|before| (before, at)));
        edges.extend(awaited_stages(tasks, at, &task.cross_depended_by).map(|after| (at, after)));
    }
    find_cycle(tasks.len(), &edges).is_some()
}
