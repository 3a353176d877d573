//! The fields of a release.

use serde_json::Value;

use super::super::field_defs;
use super::super::task::MAX_TASKS;
use super::super::validate::{self, read_plain};
use super::{Field, SpecFields, field, help, to_json};
use crate::field::{DescribeFields, FieldBound, FieldDef, FieldType, Help};
use crate::object::{ExtensionUse, Extra, FieldOwners, MAX_TAGS, Matching, ReleaseSpec, RoleSpec, TagSpec};
use crate::task::Task;

const ROLE_MAP: &FieldType = &FieldType::MapOf(RoleSpec::FIELD_DEFS);
const TAG_MAP: &FieldType = &FieldType::MapOf(TagSpec::FIELD_DEFS);
const TASK_LIST: &FieldType = &FieldType::ListOf(Task::FIELD_DEFS);
/// Size limit of the field `foreign`: 1 MiB and 1,024 entries. It is larger than the usual limit of a map, because the
/// import of a release of Fuel stores all of Fuel's roles there.
const FOREIGN_BOUND: FieldBound = FieldType::Map.bound().max_entries(1_024).max_bytes(1024 * 1024);

impl SpecFields for ReleaseSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description: FieldType::Text, help::DESCRIPTION),
        field!(
            Self,
            labels: FieldType::Map,
            Help::new("{}", "Labels of the release itself, inherited by nobody.", r#"{"team": "web"}"#),
            validate::read_labels
        ),
        field!(
            Self,
            annotations: FieldType::Map,
            Help::new("{}", "Annotations of the release itself.", r#"{"source": "git"}"#),
            validate::read_annotations
        ),
        field!(
            Self,
            imports: FieldType::up_to(64, &FieldType::Names),
            Help::new("[]", "Releases whose roles, tags and tasks are added to this one's.", r#"["os-base@4"]"#)
        ),
        field!(
            Self,
            roles: FieldType::up_to(1_024, ROLE_MAP),
            Help::new("{}", "The roles, and the tags that each produces.", r#"{"web": {"tags": ["nginx"]}}"#),
            validate::read_roles
        ),
        field!(
            Self,
            tags: FieldType::up_to(MAX_TAGS, TAG_MAP),
            Help::new("{}", "The predefined tags.", r#"{"nginx": {}, "mysql": {"has_primary": true}}"#),
            validate::read_tags
        ),
        field!(
            Self,
            tasks: FieldType::up_to(MAX_TASKS, TASK_LIST),
            Help::new(
                "[]",
                "The tasks and groups of tasks.",
                r#"[{"id": "motd", "type": "file", "tags": ["nginx"], "parameters": {"path": "/etc/motd", "content": "hello\n"}}]"#
            ),
            validate::read_tasks_field
        ),
        Field {
            name: "matching",
            kind: FieldType::Object(Matching::FIELD_DEFS),
            help: Help::new(
                "own, adds",
                "The rules by which selectors of roles and of primary holders match.",
                r#"{"roles": "own", "primary": "adds"}"#,
            ),
            read: |spec, raw, names| read_plain(&mut spec.matching, raw, names),
            show: |spec, _| if spec.matching == Matching::default() { Value::Null } else { to_json(&spec.matching) },
        },
        field!(
            Self,
            extensions: FieldType::ListOf(ExtensionUse::FIELD_DEFS),
            Help::new("[]", "Roles whose tags an extension decides.", r#"[{"roles": ["web"], "use": "placement"}]"#),
            validate::read_extensions
        ),
        field!(
            Self,
            foreign: FieldType::UpTo(FOREIGN_BOUND, &FieldType::Map),
            Help::new("{}", "Fields of another system, stored and without effect here.", r#"{"ticket": "OPS-7"}"#),
            validate::read_free_json
        ),
    ];
    const IDENTITY_FIELDS: &'static [FieldDef] = field_defs::RELEASE_IDENTITY;
    fn extra_mut(&mut self) -> &mut Extra {
        &mut self.foreign
    }
    fn extra(&self) -> &Extra {
        &self.foreign
    }
    fn owners_mut(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners(&self) -> &FieldOwners {
        &self.owners
    }
}
