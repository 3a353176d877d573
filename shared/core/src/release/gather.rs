//! Builds the library of a release from its imports and its own content, and checks the names that it declares.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compile::Compiler;
use super::library::Library;
use super::{CompiledRelease, ReleaseError};
use crate::finding::rule;
use crate::name::{Name, NameKind, ReleaseRef, TagName, closest_match, did_you_mean};
use crate::object::ReleaseSpec;
use crate::task::Task;

impl Compiler<'_> {
    /// Merges the content of the imports and of the release itself.
    pub(super) fn gather(&mut self, spec: &ReleaseSpec, imports: &[Arc<CompiledRelease>]) -> Library {
        let mut library = Library {
            roles: BTreeMap::new(),
            tags: BTreeMap::new(),
            tasks: BTreeMap::new(),
            imports: imports.to_vec(),
            ids: Vec::new(),
        };
        let mut sources: BTreeMap<String, String> = BTreeMap::new();
        for release in imports {
            self.merge(&mut library.roles, &release.roles, "role", &release.name);
            self.merge(&mut library.tags, &release.tags, "tag", &release.name);
            for task in &release.tasks {
                self.add_task(&mut library, &mut sources, &task.task, &release.name);
            }
        }
        self.check_names(spec);
        self.merge(&mut library.roles, &spec.roles, "role", self.name);
        self.merge(&mut library.tags, &spec.tags, "tag", self.name);
        for task in &spec.tasks {
            self.add_task(&mut library, &mut sources, &Arc::new(task.clone()), self.name);
        }
        library.ids = library.tasks.keys().cloned().collect();
        self.report_undeclared_tags(&library);
        self.report_undeclared_conflicts(spec, &library);
        library
    }

    /// Merges roles or tags into the library. One that is declared differently elsewhere is an error.
    fn merge<K: Ord + Clone + AsRef<str>, V: Clone + PartialEq>(
        &mut self,
        into: &mut BTreeMap<K, V>,
        from: &BTreeMap<K, V>,
        what: &'static str,
        import: &ReleaseRef,
    ) {
        for (key, value) in from {
            match into.get(key) {
                Some(existing) if existing != value => {
                    self.errors.push(ReleaseError::Redeclared {
                        what,
                        name: key.as_ref().to_owned(),
                        import: import.to_string(),
                    });
                }
                Some(_) => {}
                None => drop(into.insert(key.clone(), value.clone())),
            }
        }
    }

    /// Adds a task to the library. A task that two imports have from the same third release is added once. Any other
    /// second task with the same id is an error.
    fn add_task(
        &mut self,
        library: &mut Library,
        sources: &mut BTreeMap<String, String>,
        task: &Arc<Task>,
        release: &ReleaseRef,
    ) {
        if let Some(existing) = library.tasks.get(&task.id) {
            if !Arc::ptr_eq(existing, task) {
                let first = sources.get(&task.id).cloned().unwrap_or_default();
                self.errors.push(ReleaseError::DuplicateTask { id: task.id.clone(), first, second: release.to_string() });
            }
            return;
        }
        sources.insert(task.id.clone(), release.to_string());
        library.tasks.insert(task.id.clone(), Arc::clone(task));
    }

    /// Checks the names of the roles, tags and tasks that the release itself declares.
    fn check_names(&mut self, spec: &ReleaseSpec) {
        for role in spec.roles.keys() {
            let field = format!("roles.{role}");
            match Name::for_declaration(role.as_str(), NameKind::Role) {
                Err(reason) => self.errors.push(ReleaseError::Name { field, reason }),
                Ok(name) if name.has_primary_prefix() => self.add_finding(
                    rule::ROLE_PRIMARY,
                    &field,
                    "is named like the holder of a primary; Fuel's old releases have such roles",
                ),
                Ok(_) => {}
            }
        }
        for tag in spec.tags.keys() {
            if let Err(reason) = TagName::for_declaration(tag.as_str()) {
                self.errors.push(ReleaseError::Name { field: format!("tags.{tag}"), reason });
            }
        }
        for (at, task) in spec.tasks.iter().enumerate() {
            if let Err(reason) = Name::for_declaration(&task.id, NameKind::Task) {
                self.errors.push(ReleaseError::Name { field: format!("tasks[{at}].id"), reason });
            }
        }
    }

    /// Adds a finding for each tag that a role produces and that is not declared. Such a tag has no primary.
    fn report_undeclared_tags(&mut self, library: &Library) {
        for (role, spec) in &library.roles {
            for tag in spec.tags.iter().flatten().filter(|tag| !library.tags.contains_key(*tag)) {
                let message = format!("produces tag {tag}, which is not declared under tags: it has no primary");
                self.add_finding(rule::TAG_UNDECLARED, &format!("roles.{role}"), &message);
            }
        }
    }

    /// Adds a finding for each role that a role conflicts with and that is not declared.
    fn report_undeclared_conflicts(&mut self, spec: &ReleaseSpec, library: &Library) {
        for (role, own) in &spec.roles {
            for other in own.conflicts.iter().filter(|other| !library.roles.contains_key(*other)) {
                let near = did_you_mean(closest_match(other.as_str(), library.roles.keys().map(Name::as_str)));
                let message = format!("names role {other}, which the release does not declare{near}");
                self.add_finding(rule::ROLE_UNKNOWN, &format!("roles.{role}.conflicts"), &message);
            }
        }
    }
}
