//! What a deletion takes with it, and what stands against it.

use std::sync::Arc;

use stemma_core::object::{
    ClusterId, ClusterSpec, ClusterTemplateSpec, Kind, NamespaceSpec, NodeGroupSpec, NodeSpec, Object, PrimarySpec,
    PrincipalSpec, ReleaseSpec,
};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::Work;
use crate::cache::model::{Reference, Resource, protected};
use crate::records::enrolled::{self, AgentRecord};
use crate::records::{codec, key};
use crate::registry::{Draft, Undecided};
use crate::store::{Op, Precondition};

/// How many of those who refer to an object a refusal lists.
const MOST_LISTED: usize = 10;

impl Work<'_> {
    /// Deletes a node. Its primaries go with it, and its agent's certificates are good for nothing from then on.
    ///
    /// # Errors
    /// That an allocation has it; [`Undecided`].
    pub fn delete_node(&mut self, node: &Arc<Object<NodeSpec>>) -> Result<(), Undecided> {
        self.check_not_allocated(node)?;
        let held: Vec<_> = self.model.primaries.iter().filter(|p| p.spec.node.0 == node.meta.uuid).cloned().collect();
        for primary in held {
            self.delete::<PrimarySpec>(&primary)?;
        }
        self.retire_agent(node.meta.uuid)?;
        for at in key::all_of_node(node.meta.uuid) {
            self.draft.entry(Op::Delete { key: at.into() });
        }
        for image in self.context.keys_below(&key::observed(node.meta.uuid))? {
            self.draft.entry(Op::Delete { key: image.clone() });
        }
        Ok(self.delete(node)?)
    }

    /// Deletes a group that no node stands in.
    ///
    /// # Errors
    /// That nodes stand in it; [`Undecided`].
    pub fn delete_group(&mut self, group: &Arc<Object<NodeGroupSpec>>) -> Result<(), Undecided> {
        let nodes = self.model.nodes.iter().filter(|n| n.spec.nodegroup.is_some_and(|g| g.0 == group.meta.uuid));
        unused(Kind::NodeGroup, &group.meta.name, nodes.map(|n| format!("node {}", n.display_name())))?;
        Ok(self.delete(group)?)
    }

    /// Deletes a cluster whose groups have no nodes, with its groups.
    ///
    /// # Errors
    /// That its groups have nodes; [`Undecided`].
    pub fn delete_cluster(&mut self, cluster: &Arc<Object<ClusterSpec>>) -> Result<(), Undecided> {
        let groups: Vec<_> =
            self.model.groups.iter().filter(|g| g.spec.cluster.0 == cluster.meta.uuid).cloned().collect();
        let stands_here = |node: &&Arc<Object<NodeSpec>>| {
            node.spec.nodegroup.is_some_and(|id| groups.iter().any(|group| group.meta.uuid == id.0))
        };
        let nodes = self.model.nodes.iter().filter(stands_here).map(|n| format!("node {}", n.display_name()));
        let bound = self.model.principals.iter().filter(|p| p.spec.cluster.is_some_and(|c| c.0 == cluster.meta.uuid));
        let bound = bound.map(|p| format!("principal {}", p.meta.name));
        unused(Kind::Cluster, &cluster.meta.name, nodes.chain(bound))?;
        let primaries: Vec<_> =
            self.model.primaries.iter().filter(|p| p.spec.cluster.0 == cluster.meta.uuid).cloned().collect();
        for primary in primaries {
            self.delete::<PrimarySpec>(&primary)?;
        }
        for group in &groups {
            self.delete(group)?;
        }
        self.unmark(ClusterId(cluster.meta.uuid));
        Ok(self.delete(cluster)?)
    }

    /// Deletes a template that no cluster is made from.
    ///
    /// # Errors
    /// That clusters are; [`Undecided`].
    pub fn delete_template(&mut self, template: &Arc<Object<ClusterTemplateSpec>>) -> Result<(), Undecided> {
        let clusters =
            self.model.clusters.iter().filter(|c| c.spec.cluster_template.is_some_and(|t| t.0 == template.meta.uuid));
        unused(Kind::ClusterTemplate, &template.meta.name, clusters.map(|c| format!("cluster {}", c.meta.name)))?;
        Ok(self.delete(template)?)
    }

    /// Deletes a release that nothing names.
    ///
    /// # Errors
    /// That something does; [`Undecided`].
    pub fn delete_release(&mut self, release: &Arc<Object<ReleaseSpec>>) -> Result<(), Undecided> {
        let id = release.meta.name.to_string();
        let model = &self.model;
        let refers = |references: Vec<Reference>| references.iter().any(|r| r.kind == Kind::Release && r.id == id);
        let users = (model
            .templates
            .iter()
            .filter(|o| refers(o.spec.references()))
            .map(|o| format!("clustertemplate {}", o.meta.name)))
        .chain(
            model.clusters.iter().filter(|o| refers(o.spec.references())).map(|o| format!("cluster {}", o.meta.name)),
        )
        .chain(
            model.groups.iter().filter(|o| refers(o.spec.references())).map(|o| format!("nodegroup {}", o.meta.name)),
        )
        .chain(
            model.releases.iter().filter(|o| refers(o.spec.references())).map(|o| format!("release {}", o.meta.name)),
        );
        unused(Kind::Release, &id, users)?;
        Ok(self.delete(release)?)
    }

    /// Deletes a namespace of the catalogue with all that is in it.
    ///
    /// # Errors
    /// That it is protected.
    pub fn delete_namespace(&mut self, namespace: &Arc<Object<NamespaceSpec>>) -> Result<(), Undecided> {
        check_unprotected(namespace)?;
        Ok(self.delete(namespace)?)
    }

    /// Makes every certificate of a node's agent worthless from now on (S26).
    fn retire_agent(&mut self, node: Uuid) -> Result<(), Undecided> {
        let at = enrolled::agent_key(node);
        let Some((record, written)) = self.context.record::<AgentRecord>(&at)? else {
            // Whoever joins as it meanwhile must not outlive it.
            self.draft.require(Precondition::absent(at));
            return Ok(());
        };
        self.draft.require(Precondition::unchanged(at.clone(), written));
        let record = AgentRecord { retired: true, ..record };
        self.draft.entry(Op::Put { key: at.into(), value: codec::encode(&record) });
        Ok(())
    }

    /// Deletes a principal: whatever it is known by is worth nothing from then on.
    ///
    /// # Errors
    /// That it is not the caller's to delete.
    pub fn delete_principal(&mut self, principal: &Arc<Object<PrincipalSpec>>) -> Result<(), Undecided> {
        Ok(self.delete(principal)?)
    }

    pub(super) fn delete<S: Resource>(&mut self, object: &Arc<Object<S>>) -> Result<(), ApiError> {
        self.check_rights(object)?;
        let referred = self.context.referred(S::KIND, &Draft::id_of(object));
        self.draft.delete(object, referred);
        self.note_elected(S::KIND, S::cluster(&self.model, object));
        if let Some((_, reach)) = self.model.remove::<S>(object.meta.uuid) {
            self.reach.extend(reach);
        }
        Ok(())
    }
}

/// Refuses while a namespace is protected, to delete it or all of a list in it.
///
/// # Errors
/// That it is.
pub fn check_unprotected(namespace: &Object<NamespaceSpec>) -> Result<(), ApiError> {
    let name = &namespace.meta.name;
    if namespace.spec.protected { Err(protected(name, "namespace", name)) } else { Ok(()) }
}

/// Refuses while somebody refers to an object, and lists up to ten.
pub(super) fn unused(kind: Kind, name: &str, users: impl Iterator<Item = String>) -> Result<(), ApiError> {
    let mut users = users.peekable();
    if users.peek().is_none() {
        return Ok(());
    }
    let listed: Vec<String> = users.by_ref().take(MOST_LISTED).collect();
    let more = match users.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message =
        format!("{} {} is in use by {}{more}; nothing was deleted", kind.word(), quote(name), listed.join(", "));
    Err(ApiError::new(ErrorType::ObjectInUse, message).detail("move or delete these first"))
}
