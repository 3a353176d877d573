//! Puts the library of a release together from its imports and itself, and checks the names that it declares.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compile::Compiler;
use super::library::Library;
use super::{CompiledRelease, ReleaseError};
use crate::finding::rule;
use crate::name::{Name, NameKind, ReleaseRef, TagName, near, suggest};
use crate::object::ReleaseSpec;
use crate::task::Task;

impl Compiler<'_> {
    /// Puts together what the imports and the release itself have.
    pub(super) fn gather(&mut self, spec: &ReleaseSpec, imports: &[Arc<CompiledRelease>]) -> Library {
        let mut library = Library {
            roles: BTreeMap::new(),
            tags: BTreeMap::new(),
            tasks: BTreeMap::new(),
            imports: imports.to_vec(),
            ids: Vec::new(),
        };
        let mut from: BTreeMap<String, String> = BTreeMap::new();
        for release in imports {
            self.merge(&mut library.roles, &release.roles, "role", &release.name);
            self.merge(&mut library.tags, &release.tags, "tag", &release.name);
            for task in &release.tasks {
                self.add_task(&mut library, &mut from, &task.task, &release.name);
            }
        }
        self.names(spec);
        self.merge(&mut library.roles, &spec.roles, "role", self.name);
        self.merge(&mut library.tags, &spec.tags, "tag", self.name);
        for task in &spec.tasks {
            self.add_task(&mut library, &mut from, &Arc::new(task.clone()), self.name);
        }
        library.ids = library.tasks.keys().cloned().collect();
        self.undeclared_tags(&library);
        self.undeclared_conflicts(spec, &library);
        library
    }

    fn merge<K: Ord + Clone + AsRef<str>, V: Clone + PartialEq>(
        &mut self,
        into: &mut BTreeMap<K, V>,
        from: &BTreeMap<K, V>,
        what: &'static str,
        import: &ReleaseRef,
    ) {
        for (key, value) in from {
            match into.get(key) {
                Some(known) if known != value => self.errors.push(ReleaseError::Redeclared {
                    what,
                    name: key.as_ref().to_owned(),
                    import: import.to_string(),
                }),
                Some(_) => {}
                None => drop(into.insert(key.clone(), value.clone())),
            }
        }
    }

    /// A task that two imports have from a third is one task.
    fn add_task(
        &mut self,
        library: &mut Library,
        from: &mut BTreeMap<String, String>,
        task: &Arc<Task>,
        release: &ReleaseRef,
    ) {
        if let Some(known) = library.tasks.get(&task.id) {
            if !Arc::ptr_eq(known, task) {
                let first = from.get(&task.id).cloned().unwrap_or_default();
                self.errors.push(ReleaseError::Twice { id: task.id.clone(), first, second: release.to_string() });
            }
            return;
        }
        from.insert(task.id.clone(), release.to_string());
        library.tasks.insert(task.id.clone(), Arc::clone(task));
    }

    fn names(&mut self, spec: &ReleaseSpec) {
        for role in spec.roles.keys() {
            let field = format!("roles.{role}");
            match Name::declare(role.as_str(), NameKind::Role) {
                Err(reason) => self.errors.push(ReleaseError::Name { field, reason }),
                Ok(name) if name.is_primary() => self.find(
                    rule::ROLE_PRIMARY,
                    &field,
                    "is named as the holder of a primary would be; Fuel's old releases have such roles",
                ),
                Ok(_) => {}
            }
        }
        for tag in spec.tags.keys() {
            if let Err(reason) = TagName::declare(tag.as_str()) {
                self.errors.push(ReleaseError::Name { field: format!("tags.{tag}"), reason });
            }
        }
        for (at, task) in spec.tasks.iter().enumerate() {
            if let Err(reason) = Name::declare(&task.id, NameKind::Task) {
                self.errors.push(ReleaseError::Name { field: format!("tasks[{at}].id"), reason });
            }
        }
    }

    fn undeclared_tags(&mut self, library: &Library) {
        for (role, spec) in &library.roles {
            for tag in spec.tags.iter().flatten().filter(|tag| !library.tags.contains_key(*tag)) {
                let message = format!("produces tag {tag}, which is not declared under tags: it has no primary");
                self.find(rule::TAG_UNDECLARED, &format!("roles.{role}"), &message);
            }
        }
    }

    fn undeclared_conflicts(&mut self, spec: &ReleaseSpec, library: &Library) {
        for (role, own) in &spec.roles {
            for other in own.conflicts.iter().filter(|other| !library.roles.contains_key(*other)) {
                let near = suggest(near(other.as_str(), library.roles.keys().map(Name::as_str)));
                let message = format!("names role {other}, which the release does not declare{near}");
                self.find(rule::ROLE_UNKNOWN, &format!("roles.{role}.conflicts"), &message);
            }
        }
    }
}
