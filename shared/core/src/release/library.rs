//! Everything that a release has, its imports' included, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compile::Compiler;
use super::select::Pattern;
use super::{CompiledRelease, ReleaseError, TaskIx};
use crate::name::{Name, NameKind, ReleaseRef, TagName};
use crate::object::{ReleaseSpec, RoleSpec, TagSpec};
use crate::task::Task;

/// Everything that a release has, its imports' included, by name.
pub(super) struct Library {
    pub(super) roles: BTreeMap<Name, RoleSpec>,
    pub(super) tags: BTreeMap<TagName, TagSpec>,
    pub(super) tasks: BTreeMap<String, Arc<Task>>,
    pub(super) imports: Vec<Arc<CompiledRelease>>,
    /// The ids in order: a task's place among them is its index.
    ids: Vec<String>,
}

impl Library {
    /// The index of a task.
    pub(super) fn find(&self, id: &str) -> Option<TaskIx> {
        let at = self.ids.binary_search_by(|own| own.as_str().cmp(id)).ok()?;
        u32::try_from(at).ok().map(TaskIx)
    }

    /// The tasks that a pattern matches.
    pub(super) fn matching(&self, pattern: &Pattern) -> Vec<TaskIx> {
        let ids = self.tasks.keys().enumerate().filter(|(_, id)| pattern.matches(id));
        ids.filter_map(|(at, _)| u32::try_from(at).ok().map(TaskIx)).collect()
    }

    /// A task of a like name, for an error.
    pub(super) fn near(&self, id: &str) -> Option<String> {
        crate::name::near(id, self.tasks.keys().map(String::as_str)).map(str::to_owned)
    }

    /// Whether a role selector can mean this name.
    pub(super) fn is_role(&self, name: &str) -> bool {
        let plain = name.strip_prefix(crate::name::PRIMARY_PREFIX);
        self.roles.contains_key(name) || plain.is_some_and(|plain| self.roles.contains_key(plain))
    }

    /// A role without tags produces the tag of its own name, declared or not.
    pub(super) fn is_tag(&self, name: &str) -> bool {
        let known = |name: &str| {
            self.tags.contains_key(name)
                || self.roles.get(name).is_some_and(|role| role.tags.is_none())
                || self.roles.values().any(|role| role.tags.iter().flatten().any(|tag| tag.as_str() == name))
        };
        known(name) || name.strip_prefix(crate::name::PRIMARY_PREFIX).is_some_and(known)
    }
}

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
                Ok(name) if name.is_primary() => self.find_odd(
                    "role.primary",
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
                self.find_odd("tag.undeclared", &format!("roles.{role}"), &message);
            }
        }
    }
}
