//! The roles, tags and tasks of a release and its imports, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::name_selector::NamePattern;
use super::{CompiledRelease, TaskIndex};
use crate::name::{InvalidName, Name, NameKind, PRIMARY_PREFIX, TagName, closest_match, did_you_mean, quoted};
use crate::object::{RoleSpec, TagSpec};
use crate::task::Task;

/// The roles, tags and tasks of a release and its imports, by name.
pub(super) struct Library {
    pub(super) roles: BTreeMap<Name, RoleSpec>,
    pub(super) tags: BTreeMap<TagName, TagSpec>,
    pub(super) tasks: BTreeMap<String, Arc<Task>>,
    pub(super) imports: Vec<Arc<CompiledRelease>>,
    /// The ids of all tasks, sorted. The position of an id is the index of its task.
    pub(super) ids: Vec<String>,
}

impl Library {
    /// Returns the index of the task with this id, or `None` if the library has no such task.
    pub(super) fn task_index(&self, id: &str) -> Option<TaskIndex> {
        let position = self.ids.binary_search_by(|entry| entry.as_str().cmp(id)).ok()?;
        u32::try_from(position).ok().map(TaskIndex)
    }

    /// Returns the indexes of the tasks whose ids a pattern matches.
    pub(super) fn tasks_matching(&self, pattern: &NamePattern) -> Vec<TaskIndex> {
        let ids = self.tasks.keys().enumerate().filter(|(_, id)| pattern.matches(id));
        ids.filter_map(|(position, _)| u32::try_from(position).ok().map(TaskIndex)).collect()
    }

    /// Returns the most similar id of a task, as a suggestion in the error about an unknown id.
    pub(super) fn closest_match(&self, id: &str) -> Option<String> {
        closest_match(id, self.tasks.keys().map(String::as_str)).map(str::to_owned)
    }

    /// Returns whether a role selector can match this name: a declared role, or `primary-` and a declared role.
    pub(super) fn is_role(&self, name: &str) -> bool {
        let base_name = name.strip_prefix(PRIMARY_PREFIX);
        self.roles.contains_key(name) || base_name.is_some_and(|base_name| self.roles.contains_key(base_name))
    }

    /// Returns whether a tag selector can match this name: a declared tag or a tag that a role produces, also with the
    /// prefix `primary-`. A role whose `tags` is absent produces the tag of its own name.
    pub(super) fn is_tag(&self, name: &str) -> bool {
        let is_known = |name: &str| {
            self.tags.contains_key(name)
                || self.roles.get(name).is_some_and(|role| role.tags.is_none())
                || self.roles.values().any(|role| role.tags.iter().flatten().any(|tag| tag.as_str() == name))
        };
        is_known(name) || name.strip_prefix(PRIMARY_PREFIX).is_some_and(is_known)
    }

    /// Returns the message for a tag in a selector that the release neither declares nor produces. Such a tag may be
    /// user-defined if its name is valid for a declaration.
    pub(super) fn unknown_tag_message(&self, name: &str) -> String {
        let default_tags = self.roles.iter().filter(|(_, role)| role.tags.is_none()).map(|(role, _)| role.as_str());
        let role_tags = self.roles.values().flat_map(|role| role.tags.iter().flatten()).map(TagName::as_str);
        let hint = did_you_mean(closest_match(name, self.tags.keys().map(TagName::as_str).chain(default_tags).chain(role_tags)));
        match TagName::for_new_declaration(name.strip_prefix(PRIMARY_PREFIX).unwrap_or(name)) {
            Ok(_) => {
                let name = quoted(name);
                format!("no tag {name} is declared or produced here{hint}: only a user-defined one can match")
            }
            Err(reason) => no_match_message(&reason, &hint),
        }
    }

    /// Returns the message for a role in a selector that the release does not declare. A cluster may add such a role if
    /// its name is valid for a declaration.
    pub(super) fn unknown_role_message(&self, name: &str) -> String {
        let suggestion = did_you_mean(closest_match(name, self.roles.keys().map(Name::as_str)));
        match Name::for_new_declaration(name, NameKind::Role) {
            Ok(_) => {
                format!("no role {} is declared here{suggestion}: only one that a cluster adds can match", quoted(name))
            }
            Err(reason) => no_match_message(&reason, &suggestion),
        }
    }
}

/// Returns the message for a selector with a name that no object can have. `suggestion` is a similar name as a part of
/// a sentence, such as ` (did you mean "web"?)`, or empty.
fn no_match_message(reason: &InvalidName, suggestion: &str) -> String {
    format!("{reason}; nothing can have this name, so nothing matches it{suggestion}")
}
