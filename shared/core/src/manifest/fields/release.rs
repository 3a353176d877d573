//! The fields of a release.

use serde_json::Value;

use super::super::parts;
use super::super::sound::{self, plain};
use super::super::task::MAX_TASKS;
use super::{Field, Fields, field, help, shown};
use crate::field::{Bound, Described, Form, Help, Part};
use crate::object::{ExtensionUse, Extra, FieldOwners, MAX_TAGS, Matching, ReleaseSpec, RoleSpec, TagSpec};
use crate::task::Task;

const ROLES: &Form = &Form::MapOf(RoleSpec::PARTS);
const TAGS: &Form = &Form::MapOf(TagSpec::PARTS);
const TASKS: &Form = &Form::ListOf(Task::PARTS);
/// The roles of one of Fuel's releases, as they came, are a megabyte at most.
const FOREIGN: Bound = Form::Map.bound().entries(1_024).bytes(1024 * 1024);

impl Fields for ReleaseSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description: Form::Text, help::DESCRIPTION),
        field!(
            Self,
            labels: Form::Map,
            Help::new("{}", "Labels of the release itself, inherited by nobody.", r#"{"team": "web"}"#),
            sound::labels
        ),
        field!(
            Self,
            annotations: Form::Map,
            Help::new("{}", "Annotations of the release itself.", r#"{"source": "git"}"#),
            sound::annotations
        ),
        field!(
            Self,
            imports: Form::up_to(64, &Form::Names),
            Help::new("[]", "Releases whose roles, tags and tasks are this one's too.", r#"["os-base@4"]"#)
        ),
        field!(
            Self,
            roles: Form::up_to(1_024, ROLES),
            Help::new("{}", "The roles, and the tags that each produces.", r#"{"web": {"tags": ["nginx"]}}"#),
            sound::roles
        ),
        field!(
            Self,
            tags: Form::up_to(MAX_TAGS, TAGS),
            Help::new("{}", "The predefined tags.", r#"{"nginx": {}, "mysql": {"has_primary": true}}"#),
            sound::tags
        ),
        field!(
            Self,
            tasks: Form::up_to(MAX_TASKS, TASKS),
            Help::new(
                "[]",
                "The tasks and groups of tasks.",
                r#"[{"id": "motd", "type": "file", "tags": ["nginx"], "parameters": {"path": "/etc/motd", "content": "hello\n"}}]"#
            ),
            sound::tasks
        ),
        Field {
            name: "matching",
            form: Form::Object(Matching::PARTS),
            help: Help::new(
                "own, adds",
                "How strictly roles and tags are kept apart.",
                r#"{"roles": "own", "primary": "adds"}"#,
            ),
            read: |spec, raw, names| plain(&mut spec.matching, raw, names),
            show: |spec, _| if spec.matching == Matching::default() { Value::Null } else { shown(&spec.matching) },
        },
        field!(
            Self,
            extensions: Form::ListOf(ExtensionUse::PARTS),
            Help::new("[]", "Roles whose tags an extension decides.", r#"[{"roles": ["web"], "use": "placement"}]"#),
            sound::extensions
        ),
        field!(
            Self,
            foreign: Form::UpTo(FOREIGN, &Form::Map),
            Help::new("{}", "Fields of another system, kept and without meaning here.", r#"{"ticket": "OPS-7"}"#),
            sound::free
        ),
    ];
    const NAMED_BY: &'static [Part] = parts::OF_RELEASE;
    fn extra(&mut self) -> &mut Extra {
        &mut self.foreign
    }
    fn extra_ref(&self) -> &Extra {
        &self.foreign
    }
    fn owners(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners_ref(&self) -> &FieldOwners {
        &self.owners
    }
}
