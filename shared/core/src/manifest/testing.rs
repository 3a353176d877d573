//! Names for tests of single bodies: whatever is named is there, or nothing is asked for by name.

use uuid::Uuid;

use super::Names;
use crate::object::{ClusterId, GroupId, Kind, TemplateId};
use crate::traits::TraitNames;

/// Finds a template and a group by any name, and knows the standard traits.
#[derive(Default)]
pub(super) struct Anybody(TraitNames);

impl Names for Anybody {
    fn template(&self, _: &str) -> Option<TemplateId> {
        Some(TemplateId(Uuid::nil()))
    }

    fn cluster(&self, _: &str) -> Option<ClusterId> {
        None
    }

    fn group(&self, _: &str, _: &str) -> Option<GroupId> {
        Some(GroupId(Uuid::nil()))
    }

    fn template_name(&self, _: TemplateId) -> Option<String> {
        None
    }

    fn group_name(&self, _: GroupId) -> Option<String> {
        None
    }

    fn all(&self, _: Kind) -> Vec<String> {
        Vec::new()
    }

    fn traits(&self) -> &TraitNames {
        &self.0
    }
}
