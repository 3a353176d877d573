//! Compiles a stored release into one that can be resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::content::{release_hash, task_hash};
use super::cycle::{find_cycle, order_despite_cycles};
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
use crate::task::tree_rules::ignored_patterns;
use crate::task::{
    CrossEntry, CrossSelector, Task, check_release_tasks, paths_through_links, task_type, template_tags_in_plain_texts,
};
use crate::unimplemented;

/// Compiles a release: checks it, and resolves the names in it to indexes.
///
/// `find_release` returns the compiled release of a name, or `None` if there is none. The imports of the release must
/// be compiled before the release itself (see [`compile_set`]).
///
/// # Errors
/// Every [`ReleaseError`] that was found. Cycles of tasks are searched only if there is no other error.
pub fn compile(
    name: &ReleaseRef,
    spec: &ReleaseSpec,
    find_release: &dyn Fn(&ReleaseRef) -> Option<Arc<CompiledRelease>>,
    parser: &dyn TemplateParser,
) -> Result<Arc<CompiledRelease>, Vec<ReleaseError>> {
    let mut compiler = Compiler { name, parser, errors: Vec::new(), findings: check_release_tasks(name, &spec.tasks, parser) };
    let imported = compiler.resolve_imports(spec, find_release);
    let library = compiler.build_library(spec, &imported);
    let mut tasks = compiler.compile_tasks(&library, spec);
    if compiler.errors.is_empty() {
        compiler.check_cycles(&tasks);
        compiler.break_stage_cycles(&mut tasks);
    }
    if !compiler.errors.is_empty() {
        return Err(compiler.errors);
    }
    Ok(Arc::new(compiler.into_release(spec, library, tasks)))
}

/// Compiles a set of releases, each after the releases that it imports.
///
/// # Errors
/// All errors, by release. An import cycle is reported for one of its releases. Every other release that imports a
/// failed release has the error [`ReleaseError::UnknownImport`].
pub fn compile_set(
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    parser: &dyn TemplateParser,
) -> Result<BTreeMap<ReleaseRef, Arc<CompiledRelease>>, BTreeMap<ReleaseRef, Vec<ReleaseError>>> {
    let (compiled, failures) = compile_each(specs, parser);
    if failures.is_empty() { Ok(compiled) } else { Err(failures) }
}

/// Compiles releases like [`compile_set`], but returns two maps: the releases that compile, and the errors of the
/// releases that fail. A failed release affects only the releases that import it.
pub fn compile_each(
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    parser: &dyn TemplateParser,
) -> (BTreeMap<ReleaseRef, Arc<CompiledRelease>>, BTreeMap<ReleaseRef, Vec<ReleaseError>>) {
    let mut compiled = BTreeMap::new();
    let mut failures = BTreeMap::new();
    for name in specs.keys() {
        compile_into(name, specs, parser, &mut Vec::new(), &mut compiled, &mut failures);
    }
    (compiled, failures)
}

/// Compiles a release after its imports, and adds the release to `compiled` or its errors to `failures`.
///
/// `path` lists the releases whose imports are being compiled at this moment. A release that is already in the list
/// imports itself, directly or through others. So the cycle is added to `failures`, and the release is not compiled.
fn compile_into(
    name: &ReleaseRef,
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    parser: &dyn TemplateParser,
    path: &mut Vec<ReleaseRef>,
    compiled: &mut BTreeMap<ReleaseRef, Arc<CompiledRelease>>,
    failures: &mut BTreeMap<ReleaseRef, Vec<ReleaseError>>,
) {
    // `compile` reports an unknown import as an error of the release that imports it.
    let Some(spec) = specs.get(name) else { return };
    if compiled.contains_key(name) || failures.contains_key(name) {
        return;
    }
    if let Some(start) = path.iter().position(|entry| entry == name) {
        let mut cycle = path[start..].to_vec();
        cycle.push(name.clone());
        failures.insert(name.clone(), vec![ReleaseError::ImportCycle { path: cycle }]);
        return;
    }
    path.push(name.clone());
    for import in &spec.imports {
        compile_into(import, specs, parser, path, compiled, failures);
    }
    path.pop();
    // If the release is part of an import cycle that was found above, the error about the cycle is not replaced.
    if spec.imports.iter().any(|import| failures.contains_key(import)) && failures.contains_key(name) {
        return;
    }
    match compile(name, spec, &|import| compiled.get(import).cloned(), parser) {
        Ok(release) => drop(compiled.insert(name.clone(), release)),
        Err(errors) => drop(failures.insert(name.clone(), errors)),
    }
}

/// The values that the templates of a task read.
#[derive(Default)]
struct CompiledReads {
    /// The references to all values that the templates read, such as `labels.ntp`.
    references: BTreeSet<Reference>,
    /// The references whose values a template reads without a test for presence. If one is missing, rendering fails.
    needs: BTreeSet<RequiredReference>,
}

/// The compilation of one release, with the errors and findings so far.
pub(super) struct Compiler<'a> {
    pub(super) name: &'a ReleaseRef,
    parser: &'a dyn TemplateParser,
    pub(super) errors: Vec<ReleaseError>,
    findings: Vec<Finding>,
}

impl Compiler<'_> {
    /// Returns the compiled imports of the release. Adds an error for an import that is unknown, that is the release
    /// itself, or that imports the release.
    fn resolve_imports(
        &mut self,
        spec: &ReleaseSpec,
        find_release: &dyn Fn(&ReleaseRef) -> Option<Arc<CompiledRelease>>,
    ) -> Vec<Arc<CompiledRelease>> {
        let mut releases = Vec::new();
        for import in &spec.imports {
            match find_release(import) {
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

    /// Compiles all tasks of the library: the tasks of the release and its imports. Then sets the groups of each task,
    /// and its rank (a position in an order that respects the dependencies).
    fn compile_tasks(&mut self, library: &Library, spec: &ReleaseSpec) -> Vec<CompiledTask> {
        let mut tasks: Vec<CompiledTask> =
            library.tasks.values().map(|task| self.compile_task(library, task, spec.matching.roles)).collect();
        for (group, members) in library.tasks.values().filter(|task| task.is_group()).map(|task| (task, &task.tasks)) {
            self.compile_group(library, group, members, &mut tasks);
        }
        for task in &tasks {
            self.check_unassign(task, &tasks);
        }
        for (task, rank) in task_ranks(&tasks) {
            tasks[task].rank = rank;
        }
        tasks
    }

    /// Adds a group to the `groups` of each task that the group lists. Adds an error for a member that is unknown or is
    /// a group itself.
    fn compile_group(&mut self, library: &Library, group: &Task, members: &[String], tasks: &mut [CompiledTask]) {
        let Some(group_index) = library.task_index(&group.id) else { return };
        for (position, member) in members.iter().enumerate() {
            let field = format!("task {} tasks[{position}]", group.id);
            match library.task_index(member) {
                None => self.add_unknown_task(field, member, library),
                Some(member_index) if tasks[member_index.as_usize()].task.is_group() => {
                    self.errors.push(ReleaseError::GroupInGroup { field, name: member.clone() });
                }
                Some(member_index) => {
                    let mut groups = tasks[member_index.as_usize()].groups.to_vec();
                    groups.push(group_index);
                    tasks[member_index.as_usize()].groups = groups.into();
                }
            }
        }
    }

    /// Parses the templates, condition and selectors of a task, and resolves the names of other tasks in it to indexes.
    /// Adds an error for each invalid text and each unknown task. `rank` and `groups` are set later.
    fn compile_task(&mut self, library: &Library, task: &Arc<Task>, roles: RoleMatching) -> CompiledTask {
        let field = |name: &str| format!("task {} {name}", task.id);
        let CompiledReads { references, needs } = self.read_references(task);
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
                self.add_unknown_task(field("on_unassign"), name, library);
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
            paths: TaskPath::from_task(task, self.parser),
            ignored: ignored_patterns(&task.parameters),
            host_paths: HostPathTemplate::from_task(task, self.parser),
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

    /// Adds a finding if no host runs the task that `compiled_task` names in `on_unassign`. `tasks` are all tasks of
    /// the release, with their groups.
    fn check_unassign(&mut self, compiled_task: &CompiledTask, tasks: &[CompiledTask]) {
        let Some(compiled_target) = compiled_task.on_unassign.map(|ix| &tasks[ix.as_usize()]) else { return };
        let (task, target) = (&compiled_task.task, &compiled_target.task);
        let reason = if target.id == task.id {
            "it names the task itself: name another task, which removes what this one leaves".to_owned()
        } else if target.is_marker() {
            format!("task {} has type {}, which runs nothing: name a task that runs", target.id, target.kind)
        } else if compiled_target.is_effectively_privileged(tasks) && !compiled_task.is_effectively_privileged(tasks) {
            format!("task {} is privileged and this task is not, so no host gets it: set `privileged` here too", target.id)
        } else {
            return;
        };
        self.add_finding(rule::FIELD_IDLE, &format!("task {} on_unassign", task.id), &format!("nothing acts on it: {reason}"));
    }

    /// Returns the references that the task's templates read, and those of them that a template reads without a test
    /// whether the value is present. Adds a finding for an unknown type of task, and an error for an invalid template.
    fn read_references(&mut self, task: &Task) -> CompiledReads {
        let mut reads = CompiledReads::default();
        let Some(kind) = task_type(&task.kind) else {
            let message = format!("type {:?} is not known here: agents report it as unsupported", task.kind);
            self.add_finding(rule::TASK_TYPE, &format!("task {}", task.id), &message);
            return reads;
        };
        for template in kind.template_texts(&task.parameters) {
            match kind.read_template(&template, self.parser) {
                Ok(template_reads) => {
                    reads.references.extend(template_reads.references);
                    reads.needs.extend(template_reads.required_references);
                }
                Err(reason) => {
                    let field = format!("task {} {}", task.id, template.path);
                    self.errors.push(ReleaseError::Author { field, reason });
                }
            }
        }
        reads
    }

    /// Returns the selector that places a task on nodes: its `tags`, or else its `roles`. With role matching `own`, an
    /// empty `tags` counts as absent. Adds an error for an invalid pattern, and a finding for each unknown tag or role.
    fn compile_placement(&mut self, library: &Library, task: &Task, roles: RoleMatching) -> TaskPlacement {
        let tag_selector = match (&task.tags, roles) {
            (Some(tags), RoleMatching::Tags) => Some(tags),
            (Some(tags), RoleMatching::Own) if !tags.is_empty() => Some(tags),
            (Some(_) | None, _) => None,
        };
        match tag_selector {
            Some(tags) => {
                let selector = self.selector_or_error(task, "tags", NameSelector::for_tags(tags));
                self.report_unknown_tags(library, task, "tags", &selector);
                TaskPlacement::Tags(selector)
            }
            None => {
                let selector = self.selector_or_error(task, "roles", NameSelector::for_roles(&task.roles));
                self.report_unknown_roles(library, task, "roles", &selector, roles);
                TaskPlacement::Roles(selector)
            }
        }
    }

    /// Returns the selector that was parsed from a field of a task. If a pattern is invalid, adds an error and returns
    /// a selector that matches nothing.
    fn selector_or_error(&mut self, task: &Task, field: &str, parsed: Result<NameSelector, InvalidPattern>) -> NameSelector {
        parsed.unwrap_or_else(|reason| {
            self.errors.push(ReleaseError::Pattern { field: format!("task {} {field}", task.id), reason });
            NameSelector::Union(Box::new([]))
        })
    }

    /// Returns the indexes of the other tasks that the names and patterns in a field select. Adds an error for an
    /// unknown name or an invalid pattern, and a finding for a pattern that matches no task.
    fn task_references(&mut self, library: &Library, task: &Task, field: &str, names: &[String]) -> Box<[TaskIndex]> {
        let mut tasks = BTreeSet::new();
        for (position, name) in names.iter().enumerate() {
            let field = format!("task {} {field}[{position}]", task.id);
            tasks.extend(self.find_tasks(library, &field, name));
        }
        // A pattern that matches the task itself selects only the other tasks. A task that names itself exactly is
        // reported by the check for cycles.
        if let Some(index) = library.task_index(&task.id) {
            tasks.remove(&index);
        }
        tasks.into_iter().collect()
    }

    /// Returns the tasks that a name or a `/pattern/` selects. Adds an error if the name is unknown or the pattern is
    /// invalid, and a finding if the pattern matches no task.
    fn find_tasks(&mut self, library: &Library, field: &str, name: &str) -> Vec<TaskIndex> {
        if !is_regex(name) {
            return library.task_index(name).map_or_else(
                || {
                    self.add_unknown_task(field.to_owned(), name, library);
                    Vec::new()
                },
                |index| vec![index],
            );
        }
        match NamePattern::new(name) {
            Err(reason) => {
                self.errors.push(ReleaseError::Pattern { field: field.to_owned(), reason });
                Vec::new()
            }
            Ok(pattern) => {
                let matches = library.tasks_matching(&pattern);
                if matches.is_empty() {
                    self.add_finding(rule::TASK_PATTERN, field, &format!("pattern {name} matches no task"));
                }
                matches
            }
        }
    }

    /// Resolves the entries of a task's field `cross_depends` or `cross_depended_by`: the tasks that each entry names,
    /// and the nodes that it selects.
    fn cross_dependencies(
        &mut self,
        library: &Library,
        task: &Task,
        field: &str,
        entries: &[CrossEntry],
        roles: RoleMatching,
    ) -> Box<[CompiledCross]> {
        let mut dependencies = Vec::new();
        for (position, entry) in entries.iter().enumerate() {
            let field = format!("{field}[{position}]");
            let tasks = self.find_tasks(library, &format!("task {} {field}.name", task.id), &entry.name).into();
            let target = self.dependency_target(library, task, &field, entry, roles);
            dependencies.push(CompiledCross { tasks, target, policy: entry.policy });
        }
        dependencies.into()
    }

    /// Returns the nodes that an entry of a cross dependency selects. `tags` has precedence over `role`. An entry
    /// without both selects every node that has a role or a tag, except the controller's own host. `null` selects the
    /// stages, and `self` selects the task's own node.
    ///
    /// With role matching `own`, an empty `tags` counts as absent, and so does `tags: null` if there is a `role`. Adds
    /// an error for an invalid pattern, and a finding for each unknown tag or role.
    fn dependency_target(
        &mut self,
        library: &Library,
        task: &Task,
        field: &str,
        entry: &CrossEntry,
        roles: RoleMatching,
    ) -> DependencyTarget {
        let has_tags = match &entry.tags {
            CrossSelector::Absent => false,
            CrossSelector::Null => roles == RoleMatching::Tags || entry.role.is_absent(),
            CrossSelector::Names(names) => roles == RoleMatching::Tags || !names.is_empty(),
        };
        let (cross_selector, is_by_tags) = if has_tags { (&entry.tags, true) } else { (&entry.role, false) };
        let names = match cross_selector {
            CrossSelector::Absent => return DependencyTarget::Everyone,
            CrossSelector::Null => return DependencyTarget::Stages,
            CrossSelector::Names(names) => names,
        };
        if *names == ["self"] {
            return DependencyTarget::Same;
        }
        if is_by_tags {
            let selector = self.selector_or_error(task, &format!("{field}.tags"), NameSelector::for_tags(names));
            self.report_unknown_tags(library, task, field, &selector);
            DependencyTarget::Tags(Arc::new(selector))
        } else {
            let selector = self.selector_or_error(task, &format!("{field}.role"), NameSelector::for_roles(names));
            self.report_unknown_roles(library, task, field, &selector, roles);
            DependencyTarget::Roles(Arc::new(selector))
        }
    }

    /// Adds a finding for each undeclared role or tag by which a task's templates and condition look up nodes. Patterns
    /// and `*` are not checked.
    fn check_lookups<'r>(&mut self, library: &Library, task: &Task, references: impl Iterator<Item = &'r Reference>) {
        let exact_names = |names: &'r [Box<str>]| names.iter().map(|name| &**name).filter(|name| !is_regex(name) && *name != "*");
        let (mut tags, mut roles) = (BTreeSet::new(), BTreeSet::new());
        for reference in references {
            let (by_tags, by_roles): (&[Box<str>], &[Box<str>]) = match reference.read() {
                Read::Nodes { query: NodeQuery::Tag(tags), .. } => (tags.as_slice(), &[]),
                Read::Nodes { query: NodeQuery::Role(roles), .. } => (&[], roles.as_slice()),
                Read::Nodes { query: NodeQuery::TagOrRole { tags, roles }, .. } => (tags.as_slice(), roles.as_slice()),
                Read::Primary { tag, .. } => (std::slice::from_ref(tag), &[]),
                _ => continue,
            };
            tags.extend(exact_names(by_tags).filter(|name| !library.is_tag(name)));
            roles.extend(exact_names(by_roles).filter(|name| !library.is_role(name)));
        }
        let field = format!("task {}", task.id);
        for name in tags {
            self.add_finding(rule::SELECTOR_TAG, &field, &format!("it looks up nodes: {}", library.unknown_tag_message(name)));
        }
        for name in roles {
            self.add_finding(rule::SELECTOR_ROLE, &field, &format!("it looks up nodes: {}", library.unknown_role_message(name)));
        }
    }

    /// Adds a finding for each exact name in a tag selector that is neither a declared tag nor one that a role
    /// produces.
    fn report_unknown_tags(&mut self, library: &Library, task: &Task, field: &str, selector: &NameSelector) {
        for name in selector.exact_names().filter(|name| !library.is_tag(name)) {
            self.add_finding(rule::SELECTOR_TAG, &format!("task {} {field}", task.id), &library.unknown_tag_message(name));
        }
    }

    /// Adds a finding for each exact name in a role selector that is unknown. The name must be a declared role, or a
    /// tag if role selectors are matched against tags.
    fn report_unknown_roles(&mut self, library: &Library, task: &Task, field: &str, selector: &NameSelector, mode: RoleMatching) {
        let is_known = |name: &str| match mode {
            RoleMatching::Own => library.is_role(name),
            RoleMatching::Tags => library.is_tag(name),
        };
        for name in selector.exact_names().filter(|name| !is_known(name)) {
            let message = match mode {
                RoleMatching::Own => library.unknown_role_message(name),
                RoleMatching::Tags => library.unknown_tag_message(name),
            };
            self.add_finding(rule::SELECTOR_ROLE, &format!("task {} {field}", task.id), &message);
        }
    }

    /// Adds an error if tasks wait for each other by exact names. A cycle through a pattern depends on the placement of
    /// tasks, so it is found later. [`Self::break_stage_cycles`] handles the dependencies of stages on other tasks.
    fn check_cycles(&mut self, tasks: &[CompiledTask]) {
        let definitions: Vec<&Task> = tasks.iter().map(|task| &*task.task).collect();
        if let Some(path) = task_cycle(&definitions, StageDependencies::OnStages) {
            self.errors.push(ReleaseError::Cycle { path });
        }
    }

    /// Removes all dependencies of stages on tasks that are not stages, if one of them closes a cycle, and adds a
    /// finding for each such stage. Hosts would otherwise wait for each other for ever. A store may contain such a
    /// release from an older version, which ignored these dependencies. If a cycle would remain without them, nothing
    /// is removed.
    fn break_stage_cycles(&mut self, tasks: &mut [CompiledTask]) {
        let is_stage: Vec<bool> = tasks.iter().map(|task| task.task.is_stage()).collect();
        let is_retained = |from: usize, to: TaskIndex| !is_stage[from] || is_stage[to.as_usize()];
        if !has_cycle(tasks, |_, _| true) || has_cycle(tasks, is_retained) {
            return;
        }
        for (index, task) in tasks.iter_mut().enumerate().filter(|(index, _)| is_stage[*index]) {
            let old_count = task.requires.len() + task.required_for.len();
            for dependencies in [&mut task.requires, &mut task.required_for] {
                *dependencies = dependencies.iter().copied().filter(|ix| is_retained(index, *ix)).collect();
            }
            if task.requires.len() + task.required_for.len() < old_count {
                let message = "dependencies on tasks that are not stages are ignored: with them, tasks of the release \
                               would wait for each other; remove one of these dependencies";
                self.add_finding(rule::STAGE_CIRCLE, &format!("task {}", task.task.id), message);
            }
        }
    }

    /// Adds the error that a field names an unknown task, with the most similar id as a suggestion.
    fn add_unknown_task(&mut self, field: String, name: &str, library: &Library) {
        self.errors.push(ReleaseError::UnknownTask { field, name: name.to_owned(), near: library.closest_match(name) });
    }

    /// Adds a finding about a field of the release.
    pub(super) fn add_finding(&mut self, rule: Rule, field: &str, message: &str) {
        let object = format!("release/{} {field}", self.name);
        self.findings.push(Finding::new(rule, object, message));
    }

    /// Adds the findings about the whole release, and returns the compiled release.
    fn into_release(mut self, spec: &ReleaseSpec, library: Library, tasks: Vec<CompiledTask>) -> CompiledRelease {
        let select = |predicate: &dyn Fn(&CompiledTask) -> bool| -> Box<[TaskIndex]> {
            (0..).map(TaskIndex).zip(&tasks).filter(|(_, task)| predicate(task)).map(|(ix, _)| ix).collect()
        };
        let (stages, privileged) = (select(&|task| task.task.is_stage()), select(&|task| task.is_effectively_privileged(&tasks)));
        let object = format!("release/{}", self.name);
        self.findings.extend(unimplemented::findings(&object, spec));
        let task_by_id = |id: &str| library.tasks.get(id).map(|task| &**task);
        self.findings.extend(unimplemented::group_order_findings(&object, &spec.tasks, task_by_id));
        let roles = spec.extensions.iter().flat_map(|extension| &extension.roles);
        for role in roles.filter(|role| !library.roles.contains_key(*role)) {
            let message = format!("an extension decides the tags of role {role}, which the release does not declare");
            self.add_finding(rule::ROLE_UNKNOWN, "extensions", &message);
        }
        // The release's own extensions precede those of its imports.
        let imported = library.imports.iter().flat_map(|release| &release.extensions);
        let extensions = spec.extensions.iter().chain(imported).cloned().collect();
        self.findings.extend(template_tags_in_plain_texts(self.name, &spec.tasks));
        self.findings.extend(paths_through_links(self.name, &spec.tasks));
        let all_imports = library.imports.iter().flat_map(|import| import.all_imports.iter().chain([&import.name])).cloned();
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

/// Returns the index of each task with its rank: its position in an order that respects every dependency, as far as
/// cycles allow. A cross dependency orders its tasks here whatever nodes it selects.
fn task_ranks(tasks: &[CompiledTask]) -> Vec<(usize, u32)> {
    let mut edges = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        let predecessors = task.requires.iter().chain(task.cross_depends.iter().flat_map(|cross| &*cross.tasks));
        edges.extend(predecessors.map(|first| (first.as_usize(), index)));
        let successors = task.required_for.iter().chain(task.cross_depended_by.iter().flat_map(|cross| &*cross.tasks));
        edges.extend(successors.map(|second| (index, second.as_usize())));
    }
    edges.retain(|(first, second)| first != second);
    order_despite_cycles(tasks.len(), &edges).into_iter().zip(0..).collect()
}

/// Returns the indexes of the stages that entries of a task's cross dependencies select. Such an entry orders tasks
/// like `requires` or `required_for`. The task itself, at `index`, is omitted, because a stage does not wait for
/// itself.
fn awaited_stages<'a>(tasks: &'a [CompiledTask], index: usize, entries: &'a [CompiledCross]) -> impl Iterator<Item = usize> + 'a {
    let stage_entries = entries.iter().filter(|entry| matches!(entry.target, DependencyTarget::Stages));
    let indexes = stage_entries.flat_map(|entry| entry.tasks.iter()).map(|ix| ix.as_usize());
    indexes.filter(move |ix| *ix != index && tasks[*ix].task.is_stage())
}

/// Returns whether tasks wait for each other on one node or through stages, by names and patterns. `requires` and
/// `required_for` of a task are considered only if `is_included` accepts the pair of the task and the other task.
fn has_cycle(tasks: &[CompiledTask], is_included: impl Fn(usize, TaskIndex) -> bool) -> bool {
    let mut edges = Vec::new();
    for (index, task) in tasks.iter().enumerate().filter(|(_, task)| !task.task.is_group()) {
        let is_edge = |ix: &&TaskIndex| !tasks[ix.as_usize()].task.is_group() && is_included(index, **ix);
        edges.extend(task.requires.iter().filter(is_edge).map(|first| (first.as_usize(), index)));
        edges.extend(task.required_for.iter().filter(is_edge).map(|second| (index, second.as_usize())));
        edges.extend(awaited_stages(tasks, index, &task.cross_depends).map(|first| (first, index)));
        edges.extend(awaited_stages(tasks, index, &task.cross_depended_by).map(|second| (index, second)));
    }
    find_cycle(tasks.len(), &edges).is_some()
}
