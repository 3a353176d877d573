//! A name resolver for tests of single bodies. Every template and group that is named exists.

use uuid::Uuid;

use super::NameResolver;
use crate::object::{ClusterId, GroupId, Kind, TemplateId};
use crate::traits::TraitNames;

/// A resolver for tests, in which every name of a template or group exists and has the nil uuid. No cluster exists.
#[derive(Default)]
pub(super) struct AnyNameResolver(TraitNames);

impl NameResolver for AnyNameResolver {
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

    fn all_names(&self, _: Kind) -> Vec<String> {
        Vec::new()
    }

    fn trait_names(&self) -> &TraitNames {
        &self.0
    }
}
