//! Finds objects by their names, as authors write them, or by their uuids, which clients of the API prefer.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use stemma_core::manifest::NameResolver;
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::object::{ClusterId, GroupId, Kind, NodeGroup, NodeId, TemplateId};
use stemma_core::traits::TraitNames;
use stemma_wire::error::quote;
use uuid::Uuid;

use crate::cache::Model;

/// The names that objects had at an earlier revision, by uuid. A node group's name is `CLUSTER/GROUP`.
pub type PastNames = BTreeMap<Uuid, String>;

/// Finds the uuids of objects in a model (the cached fleet) by name, and the names of objects by uuid.
pub struct ModelNames<'a> {
    model: &'a Model,
    traits: &'a TraitNames,
    /// The names to show in a manifest of an earlier revision, or `None` to show the present names of the model.
    past: Option<&'a PastNames>,
}

impl<'a> ModelNames<'a> {
    /// Creates a lookup of the names of a model, with the traits that are defined at this site.
    pub const fn new(model: &'a Model, traits: &'a TraitNames) -> Self {
        Self { model, traits, past: None }
    }

    /// Creates a lookup that shows a manifest with the names of an earlier revision. An object that had no name at that
    /// revision is shown by its uuid.
    pub const fn with_past(model: &'a Model, traits: &'a TraitNames, past: &'a PastNames) -> Self {
        Self { model, traits, past: Some(past) }
    }

    /// Creates a lookup for the display of stored objects. It knows no traits, because display needs none.
    pub fn for_display(model: &'a Model) -> Self {
        static NONE: LazyLock<TraitNames> = LazyLock::new(TraitNames::default);
        Self { model, traits: &NONE, past: None }
    }
}

impl NameResolver for ModelNames<'_> {
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

    /// Returns the names of all cluster templates, node groups or nodes, for hints at a similar name. Returns an empty
    /// list for any other kind.
    fn all_names(&self, kind: Kind) -> Vec<String> {
        match kind {
            Kind::ClusterTemplate => self.model.templates.iter().map(|object| object.meta.name.to_string()).collect(),
            Kind::NodeGroup => {
                self.model.groups.iter().filter_map(|group| group_path(self.model, GroupId(group.meta.uuid))).collect()
            }
            Kind::Node => self.model.nodes.iter().filter_map(|node| node.meta.name.as_ref().map(ToString::to_string)).collect(),
            _ => Vec::new(),
        }
    }

    fn trait_names(&self) -> &TraitNames {
        self.traits
    }
}

/// Returns the full name of a node group, as `CLUSTER/GROUP`, or `None` if the group or its cluster is not in the
/// model.
pub fn group_path(model: &Model, id: GroupId) -> Option<String> {
    let group = model.groups.get(id.0)?;
    let cluster = model.clusters.get(group.spec.cluster.0)?;
    Some(format!("{}/{}", cluster.meta.name, group.meta.name))
}

/// Finds a node group by its uuid, or by its full name `CLUSTER/GROUP`.
pub fn group_at<'m>(model: &'m Model, path: &str) -> Option<&'m Arc<NodeGroup>> {
    match path.split_once('/') {
        // Names of groups belong to a cluster. So without a cluster, only a uuid is found.
        None => model.groups.find(None, path),
        Some((cluster, group)) => {
            let cluster = model.clusters.find(None, cluster)?;
            model.groups.find(Some(cluster.meta.uuid), group)
        }
    }
}

/// Returns the reason why [`group_at`] finds no node group for a path, with a hint at a similar name.
pub fn group_not_found(model: &Model, path: &str) -> String {
    let Some((cluster, group)) = path.split_once('/') else { return "write CLUSTER/GROUP".to_owned() };
    let Some(cluster) = model.clusters.find(None, cluster) else {
        let hint = did_you_mean(closest_match(cluster, model.clusters.iter().map(|object| object.meta.name.as_str())));
        return format!("there is no cluster {}{hint}", quote(cluster));
    };
    let siblings = model.groups.iter().filter(|group| group.spec.cluster.0 == cluster.meta.uuid);
    let hint = did_you_mean(closest_match(group, siblings.map(|object| object.meta.name.as_str())));
    format!("cluster {} has no node group {}{hint}", cluster.meta.name, quote(group))
}
