//! Everything that a release has, its imports' included, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::select::Pattern;
use super::{CompiledRelease, TaskIx};
use crate::name::{InvalidName, Name, NameKind, PRIMARY_PREFIX, TagName, near, quoted, suggest};
use crate::object::{RoleSpec, TagSpec};
use crate::task::Task;

/// Everything that a release has, its imports' included, by name.
pub(super) struct Library {
    pub(super) roles: BTreeMap<Name, RoleSpec>,
    pub(super) tags: BTreeMap<TagName, TagSpec>,
    pub(super) tasks: BTreeMap<String, Arc<Task>>,
    pub(super) imports: Vec<Arc<CompiledRelease>>,
    /// The ids in order: a task's place among them is its index.
    pub(super) ids: Vec<String>,
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
        near(id, self.tasks.keys().map(String::as_str)).map(str::to_owned)
    }

    /// Whether a role selector can mean this name.
    pub(super) fn is_role(&self, name: &str) -> bool {
        let plain = name.strip_prefix(PRIMARY_PREFIX);
        self.roles.contains_key(name) || plain.is_some_and(|plain| self.roles.contains_key(plain))
    }

    /// A role without tags produces the tag of its own name, declared or not.
    pub(super) fn is_tag(&self, name: &str) -> bool {
        let known = |name: &str| {
            self.tags.contains_key(name)
                || self.roles.get(name).is_some_and(|role| role.tags.is_none())
                || self.roles.values().any(|role| role.tags.iter().flatten().any(|tag| tag.as_str() == name))
        };
        known(name) || name.strip_prefix(PRIMARY_PREFIX).is_some_and(known)
    }

    /// What is said of a tag that a selector names, and that nobody declares or produces here. A user-defined one is called as any tag is.
    pub(super) fn unknown_tag(&self, name: &str) -> String {
        let own = self.roles.iter().filter(|(_, role)| role.tags.is_none()).map(|(role, _)| role.as_str());
        let produced = self.roles.values().flat_map(|role| role.tags.iter().flatten()).map(TagName::as_str);
        let near = suggest(near(name, self.tags.keys().map(TagName::as_str).chain(own).chain(produced)));
        match TagName::of_new(name.strip_prefix(PRIMARY_PREFIX).unwrap_or(name)) {
            Ok(_) => {
                let name = quoted(name);
                format!("no tag {name} is declared or produced here{near}: only a user-defined one can match")
            }
            Err(why) => no_match(&why, &near),
        }
    }

    /// What is said of a role that a selector names, and that is not declared here. One that a cluster adds is called as any role is.
    pub(super) fn unknown_role(&self, name: &str) -> String {
        let near = suggest(near(name, self.roles.keys().map(Name::as_str)));
        match Name::of_new(name, NameKind::Role) {
            Ok(_) => format!("no role {} is declared here{near}: only one that a cluster adds can match", quoted(name)),
            Err(why) => no_match(&why, &near),
        }
    }
}

/// That a selector names what nothing is called.
fn no_match(why: &InvalidName, near: &str) -> String {
    format!("{why}; nothing can be called so, and nothing matches it{near}")
}
