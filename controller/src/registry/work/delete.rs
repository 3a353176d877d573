//! Deletes objects together with the objects that depend on them. Fails if other objects still refer to them.

use std::sync::Arc;

use stemma_core::finding::join_first;
use stemma_core::object::{ClusterId, ClusterSpec, Kind, NamespaceSpec, NodeSpec, Object, PrimarySpec};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::PendingWrite;
use crate::cache::Model;
use crate::cache::model::{ObjectReference, Resource, protected_error};
use crate::records::enrolled::{self, AgentRecord};
use crate::records::{codec, key};
use crate::registry::DecisionError;
use crate::store::{Op, Precondition};

/// Maximum number of referring objects that the text of an error lists.
const MAX_LISTED_REFERRERS: usize = 10;
/// Maximum number of referring objects in the error's member `used_by`, which is for programs.
const MAX_RETURNED_REFERRERS: usize = 1_000;

impl PendingWrite<'_> {
    /// Deletes a node, its stored reports, and the stored choices that make it primary of tags. Also retires its agent,
    /// so that certificates of the agent are no longer accepted.
    ///
    /// # Errors
    /// Fails if the node is assigned to an allocation, if the caller may not delete it, or if an entry of the store
    /// must be read first ([`DecisionError::NeedsRead`]).
    pub fn delete_node(&mut self, node: &Arc<Object<NodeSpec>>) -> Result<(), DecisionError> {
        self.check_not_allocated(node)?;
        let primaries: Vec<_> = self.model.primaries.iter().filter(|p| p.spec.node.0 == node.meta.uuid).cloned().collect();
        for primary in primaries {
            self.delete::<PrimarySpec>(&primary)?;
        }
        self.retire_agent(node.meta.uuid)?;
        for entry_key in key::node_entries(node.meta.uuid) {
            self.draft.add_op(Op::Delete { key: entry_key.into() });
        }
        for image in self.context.keys_below(&key::observation_images(node.meta.uuid))? {
            self.draft.add_op(Op::Delete { key: image.clone() });
        }
        Ok(self.delete(node)?)
    }

    /// Deletes an object that no other object refers to, such as a group without nodes, a template or a release.
    ///
    /// # Errors
    /// Fails if other objects refer to the object (the error lists them), or if the caller may not delete it.
    pub fn delete_unused<S: Resource>(&mut self, object: &Arc<Object<S>>) -> Result<(), DecisionError> {
        check_unused(&self.model, object, self.model.referrers(&ObjectReference::new(object)))?;
        Ok(self.delete(object)?)
    }

    /// Deletes a cluster with its groups and the stored choices of its primaries. The groups must have no nodes.
    ///
    /// # Errors
    /// Fails if a group has nodes, if another object refers to the cluster, or if the caller may not delete it.
    pub fn delete_cluster(&mut self, cluster: &Arc<Object<ClusterSpec>>) -> Result<(), DecisionError> {
        let id = ClusterId(cluster.meta.uuid);
        let groups: Vec<_> = self.model.fleet.groups_in_cluster(id).filter_map(|id| self.model.groups.get(id.0)).collect();
        let groups: Vec<_> = groups.into_iter().cloned().collect();
        let group_references: Vec<ObjectReference> = groups.iter().map(|group| ObjectReference::new(&**group)).collect();
        let reference = ObjectReference::new(&**cluster);
        let others = self.model.referrers(&reference).filter(|(kind, _)| *kind != Kind::NodeGroup);
        check_unused(&self.model, cluster, group_references.iter().flat_map(|group| self.model.referrers(group)).chain(others))?;
        let primaries: Vec<_> = self.model.fleet.primaries(id).cloned().collect();
        for primary in primaries {
            self.delete::<PrimarySpec>(&primary)?;
        }
        for group in &groups {
            self.delete(group)?;
        }
        self.delete_marks(id);
        Ok(self.delete(cluster)?)
    }

    /// Deletes a namespace of the catalogue with everything in it.
    ///
    /// # Errors
    /// Fails if the namespace is protected, or if the caller may not delete it.
    pub fn delete_namespace(&mut self, namespace: &Arc<Object<NamespaceSpec>>) -> Result<(), DecisionError> {
        check_unprotected(namespace)?;
        Ok(self.delete(namespace)?)
    }

    /// Marks a node's agent as retired, so that none of its certificates is accepted any more.
    fn retire_agent(&mut self, node: Uuid) -> Result<(), DecisionError> {
        let entry_key = enrolled::agent_key(node);
        let Some((record, revision)) = self.context.record::<AgentRecord>(&entry_key)? else {
            // If a host joins as this node at the same time, one of the two commits fails. So no agent remains without
            // its node.
            self.draft.add_precondition(Precondition::absent(entry_key));
            return Ok(());
        };
        self.draft.add_precondition(Precondition::unchanged(entry_key.clone(), revision));
        let record = AgentRecord { retired: true, ..record };
        self.draft.add_op(Op::Put { key: entry_key.into(), value: codec::encode(&record) });
        Ok(())
    }

    /// Deletes an object, and records which nodes this affects. Fails if the caller may not write the object.
    pub(super) fn delete<S: Resource>(&mut self, object: &Arc<Object<S>>) -> Result<(), ApiError> {
        self.check_rights(object)?;
        let mark_revision = self.context.reference_mark(S::KIND, &ObjectReference::new(&**object).id);
        self.draft.delete(object, mark_revision);
        self.record_changed_primary(S::KIND, S::cluster(&self.model, object));
        if let Some((_, affected_nodes)) = self.model.remove::<S>(object.meta.uuid) {
            self.affected.extend(affected_nodes);
        }
        Ok(())
    }
}

/// Fails if a namespace is protected. A protected namespace cannot be deleted, and no list in it can be deleted as a
/// whole.
///
/// # Errors
/// Fails if the namespace is protected.
pub fn check_unprotected(namespace: &Object<NamespaceSpec>) -> Result<(), ApiError> {
    let name = &namespace.meta.name;
    if namespace.spec.protected { Err(protected_error(name, "namespace", name)) } else { Ok(()) }
}

/// Fails if `referrers`, the objects that refer to this object, is not empty. The message lists up to ten of them.
pub(super) fn check_unused<S: Resource>(
    model: &Model,
    object: &Object<S>,
    referrers: impl Iterator<Item = (Kind, String)>,
) -> Result<(), ApiError> {
    refuse_used(model, object, referrers, "; nothing was deleted", "move or delete these first")
}

/// Fails if `referrers`, the objects that refer to this object, is not empty. `message_end` ends the message, and
/// `advice` states what the user can do.
pub(super) fn refuse_used<S: Resource>(
    model: &Model,
    object: &Object<S>,
    referrers: impl Iterator<Item = (Kind, String)>,
    message_end: &str,
    advice: &str,
) -> Result<(), ApiError> {
    let referrers: Vec<(Kind, String)> = referrers.collect();
    if referrers.is_empty() {
        return Ok(());
    }
    let (kind, name) = (S::KIND.word(), S::full_title(model, object));
    let listed_referrers: Vec<String> = referrers.iter().map(|(kind, name)| format!("{} {name}", kind.word())).collect();
    let listed_referrers = join_first(listed_referrers.iter().map(String::as_str), MAX_LISTED_REFERRERS);
    let message = format!("{kind} {} is in use by {listed_referrers}{message_end}", quote(&name));
    let references = referrers.iter().take(MAX_RETURNED_REFERRERS).map(|(kind, name)| format!("{}/{name}", kind.word()));
    let error = ApiError::new(ErrorType::ObjectInUse, message).detail(advice);
    Err(error.extra("used_by", references.collect()))
}
