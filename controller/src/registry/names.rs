//! What objects are called, as authors write it: by name, or by uuid, which an API's clients prefer.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use stemma_core::manifest::Names;
use stemma_core::name::{near, suggest};
use stemma_core::object::{ClusterId, GroupId, Kind, NodeGroup, NodeId, TemplateId};
use stemma_core::traits::TraitNames;
use stemma_wire::error::quote;
use uuid::Uuid;

use crate::cache::Model;

/// What objects were called at an earlier revision, by their uuids; a group as `CLUSTER/GROUP`.
pub type PastNames = BTreeMap<Uuid, String>;

/// Looks names up in a model.
pub struct ModelNames<'a> {
    model: &'a Model,
    traits: &'a TraitNames,
    /// What objects were called when what is shown was written; `None`: as the model says.
    past: Option<&'a PastNames>,
}

impl<'a> ModelNames<'a> {
    /// Names of a model, and the traits that are known at this site.
    pub const fn new(model: &'a Model, traits: &'a TraitNames) -> Self {
        Self { model, traits, past: None }
    }

    /// The same, to show what was written when objects were called so. One of which that is not said is shown by its uuid.
    pub const fn of_past(model: &'a Model, traits: &'a TraitNames, past: &'a PastNames) -> Self {
        Self { model, traits, past: Some(past) }
    }

    /// Names of a model to show what is stored, for which no trait is looked up.
    pub fn to_show(model: &'a Model) -> Self {
        static NONE: LazyLock<TraitNames> = LazyLock::new(TraitNames::default);
        Self { model, traits: &NONE, past: None }
    }
}

impl Names for ModelNames<'_> {
    fn template(&self, name: &str) -> Option<TemplateId> {
        self.model.templates.find(None, name).map(|object| TemplateId(object.meta.uuid))
    }

    fn cluster(&self, name: &str) -> Option<ClusterId> {
        self.model.clusters.find(None, name).map(|object| ClusterId(object.meta.uuid))
    }

    fn group(&self, cluster: &str, group: &str) -> Option<GroupId> {
        let cluster = self.cluster(cluster)?;
        self.model.groups.find(Some(cluster.0), group).map(|object| GroupId(object.meta.uuid))
    }

    fn node(&self, name: &str) -> Option<NodeId> {
        self.model.nodes.find(None, name).map(|object| object.id())
    }

    fn template_name(&self, id: TemplateId) -> Option<String> {
        match self.past {
            Some(past) => past.get(&id.0).cloned(),
            None => self.model.templates.get(id.0).map(|object| object.meta.name.to_string()),
        }
    }

    fn group_name(&self, id: GroupId) -> Option<String> {
        match self.past {
            Some(past) => past.get(&id.0).cloned(),
            None => group_path(self.model, id),
        }
    }

    fn all(&self, kind: Kind) -> Vec<String> {
        match kind {
            Kind::ClusterTemplate => self.model.templates.iter().map(|one| one.meta.name.to_string()).collect(),
            Kind::NodeGroup => {
                self.model.groups.iter().filter_map(|one| group_path(self.model, GroupId(one.meta.uuid))).collect()
            }
            Kind::Node => {
                self.model.nodes.iter().filter_map(|one| one.meta.name.as_ref().map(ToString::to_string)).collect()
            }
            // No field names another kind by a name that is looked up here.
            _ => Vec::new(),
        }
    }

    fn traits(&self) -> &TraitNames {
        self.traits
    }
}

/// How a group is named from outside of its cluster.
pub fn group_path(model: &Model, id: GroupId) -> Option<String> {
    let group = model.groups.get(id.0)?;
    let cluster = model.clusters.get(group.spec.cluster.0)?;
    Some(format!("{}/{}", cluster.meta.name, group.meta.name))
}

/// The group of a uuid, or of a name from outside of its cluster.
pub fn group_at<'m>(model: &'m Model, path: &str) -> Option<&'m Arc<NodeGroup>> {
    match path.split_once('/') {
        None => model.groups.find(None, path),
        Some((cluster, group)) => {
            let cluster = model.clusters.find(None, cluster)?;
            model.groups.find(Some(cluster.meta.uuid), group)
        }
    }
}

/// What is to be said of a text by which [`group_at`] finds nothing.
pub fn no_group_at(model: &Model, path: &str) -> String {
    let Some((cluster, group)) = path.split_once('/') else { return "write CLUSTER/GROUP".to_owned() };
    let Some(found) = model.clusters.find(None, cluster) else {
        let meant = suggest(near(cluster, model.clusters.iter().map(|one| one.meta.name.as_str())));
        return format!("there is no cluster {}{meant}", quote(cluster));
    };
    let beside = model.groups.iter().filter(|one| one.spec.cluster.0 == found.meta.uuid);
    let meant = suggest(near(group, beside.map(|one| one.meta.name.as_str())));
    format!("cluster {} has no node group {}{meant}", found.meta.name, quote(group))
}
