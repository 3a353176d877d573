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
    /// Returns the library of the release: the roles, tags and tasks of its imports and of the release itself. Adds the
    /// errors and findings about the names that they declare.
    pub(super) fn build_library(&mut self, spec: &ReleaseSpec, imports: &[Arc<CompiledRelease>]) -> Library {
        let mut library = Library {
            roles: BTreeMap::new(),
            tags: BTreeMap::new(),
            tasks: BTreeMap::new(),
            imports: imports.to_vec(),
            ids: Vec::new(),
        };
        let mut release_by_task: BTreeMap<String, String> = BTreeMap::new();
        for release in imports {
            self.merge(&mut library.roles, &release.roles, "role", &release.name);
            self.merge(&mut library.tags, &release.tags, "tag", &release.name);
            for task in &release.tasks {
                self.add_task(&mut library, &mut release_by_task, &task.task, &release.name);
            }
        }
        self.check_names(spec);
        self.merge(&mut library.roles, &spec.roles, "role", self.name);
        self.merge(&mut library.tags, &spec.tags, "tag", self.name);
        for task in &spec.tasks {
            self.add_task(&mut library, &mut release_by_task, &Arc::new(task.clone()), self.name);
        }
        library.ids = library.tasks.keys().cloned().collect();
        self.report_undeclared_tags(&library);
        self.report_undeclared_conflicts(spec, &library);
        library
    }

    /// Adds the roles or tags that a release declares to those of the library. Adds an error for each name that the
    /// library already has with another declaration. `kind` is `role` or `tag`.
    fn merge<K: Ord + Clone + AsRef<str>, V: Clone + PartialEq>(
        &mut self,
        merged: &mut BTreeMap<K, V>,
        declared: &BTreeMap<K, V>,
        kind: &'static str,
        release: &ReleaseRef,
    ) {
        for (key, value) in declared {
            match merged.get(key) {
                Some(existing) if existing != value => {
                    self.errors.push(ReleaseError::Redeclared {
                        what: kind,
                        name: key.as_ref().to_owned(),
                        import: release.to_string(),
                    });
                }
                Some(_) => {}
                None => drop(merged.insert(key.clone(), value.clone())),
            }
        }
    }

    /// Adds a task of a release to the library. A task that two imports have from the same third release is added once.
    /// Any other second task with the same id is an error, which names the release of each task.
    fn add_task(
        &mut self,
        library: &mut Library,
        release_by_task: &mut BTreeMap<String, String>,
        task: &Arc<Task>,
        release: &ReleaseRef,
    ) {
        if let Some(existing) = library.tasks.get(&task.id) {
            if !Arc::ptr_eq(existing, task) {
                let first = release_by_task.get(&task.id).cloned().unwrap_or_default();
                self.errors.push(ReleaseError::DuplicateTask { id: task.id.clone(), first, second: release.to_string() });
            }
            return;
        }
        release_by_task.insert(task.id.clone(), release.to_string());
        library.tasks.insert(task.id.clone(), Arc::clone(task));
    }

    /// Checks the names of the roles, tags and tasks that the release itself declares. Adds an error for each invalid
    /// name, and a finding for each role whose name begins with `primary-`.
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
        for (position, task) in spec.tasks.iter().enumerate() {
            if let Err(reason) = Name::for_declaration(&task.id, NameKind::Task) {
                self.errors.push(ReleaseError::Name { field: format!("tasks[{position}].id"), reason });
            }
        }
    }

    /// Adds a finding for each undeclared tag in the `tags` of a role. Such a tag has no primary.
    fn report_undeclared_tags(&mut self, library: &Library) {
        for (role, spec) in &library.roles {
            for tag in spec.tags.iter().flatten().filter(|tag| !library.tags.contains_key(*tag)) {
                let message = format!("produces tag {tag}, which is not declared under tags: it has no primary");
                self.add_finding(rule::TAG_UNDECLARED, &format!("roles.{role}"), &message);
            }
        }
    }

    /// Adds a finding for each undeclared role in the `conflicts` of a role of the release itself.
    fn report_undeclared_conflicts(&mut self, spec: &ReleaseSpec, library: &Library) {
        for (role, role_spec) in &spec.roles {
            for other in role_spec.conflicts.iter().filter(|other| !library.roles.contains_key(*other)) {
                let suggestion = did_you_mean(closest_match(other.as_str(), library.roles.keys().map(Name::as_str)));
                let message = format!("names role {other}, which the release does not declare{suggestion}");
                self.add_finding(rule::ROLE_UNKNOWN, &format!("roles.{role}.conflicts"), &message);
            }
        }
    }
}
