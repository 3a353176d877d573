//! Deletes objects with what depends on them, unless other objects still refer to them.

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

/// Maximum number of referring objects that an error message lists.
const MAX_LISTED_REFERRERS: usize = 10;
/// Maximum number of referring objects in `used_by`, for programs.
const MAX_RETURNED_REFERRERS: usize = 1_000;

impl PendingWrite<'_> {
    /// Deletes a node with its primaries and stored reports, and retires its agent, so that the agent's certificates
    /// are no longer accepted.
    ///
    /// # Errors
    /// An allocation has the node; [`DecisionError`].
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
    /// The objects that refer to it; [`DecisionError`].
    pub fn delete_unused<S: Resource>(&mut self, object: &Arc<Object<S>>) -> Result<(), DecisionError> {
        check_unused(&self.model, object, self.model.referrers(&ObjectReference::new(object)))?;
        Ok(self.delete(object)?)
    }

    /// Deletes a cluster and its groups. The groups must have no nodes.
    ///
    /// # Errors
    /// A group has nodes; [`DecisionError`].
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

    /// Deletes a namespace of the catalogue and everything in it.
    ///
    /// # Errors
    /// The namespace is protected.
    pub fn delete_namespace(&mut self, namespace: &Arc<Object<NamespaceSpec>>) -> Result<(), DecisionError> {
        check_unprotected(namespace)?;
        Ok(self.delete(namespace)?)
    }

    /// Marks a node's agent as retired, so that none of its certificates is accepted any more (S26).
    fn retire_agent(&mut self, node: Uuid) -> Result<(), DecisionError> {
        let entry_key = enrolled::agent_key(node);
        let Some((record, written)) = self.context.record::<AgentRecord>(&entry_key)? else {
            // A host that joins as this node during the deletion must not survive it.
            self.draft.add_precondition(Precondition::absent(entry_key));
            return Ok(());
        };
        self.draft.add_precondition(Precondition::unchanged(entry_key.clone(), written));
        let record = AgentRecord { retired: true, ..record };
        self.draft.add_op(Op::Put { key: entry_key.into(), value: codec::encode(&record) });
        Ok(())
    }

    /// Deletes an object, if the caller may write it, and records which nodes this affects.
    pub(super) fn delete<S: Resource>(&mut self, object: &Arc<Object<S>>) -> Result<(), ApiError> {
        self.check_rights(object)?;
        let mark_revision = self.context.reference_mark(S::KIND, &ObjectReference::new(&**object).id);
        self.draft.delete(object, mark_revision);
        self.note_changed_elections(S::KIND, S::cluster(&self.model, object));
        if let Some((_, reach)) = self.model.remove::<S>(object.meta.uuid) {
            self.affected.extend(reach);
        }
        Ok(())
    }
}

/// Fails if a namespace is protected. Neither a protected namespace nor a whole list in it can be deleted.
///
/// # Errors
/// The namespace is protected.
pub fn check_unprotected(namespace: &Object<NamespaceSpec>) -> Result<(), ApiError> {
    let name = &namespace.meta.name;
    if namespace.spec.protected { Err(protected_error(name, "namespace", name)) } else { Ok(()) }
}

/// Fails if other objects refer to this one. The message lists up to ten of them.
pub(super) fn check_unused<S: Resource>(
    model: &Model,
    object: &Object<S>,
    users: impl Iterator<Item = (Kind, String)>,
) -> Result<(), ApiError> {
    refuse_used(model, object, users, "; nothing was deleted", "move or delete these first")
}

/// Fails if other objects refer to this one. `follows` ends the message, and `advice` says what to do.
pub(super) fn refuse_used<S: Resource>(
    model: &Model,
    object: &Object<S>,
    users: impl Iterator<Item = (Kind, String)>,
    follows: &str,
    advice: &str,
) -> Result<(), ApiError> {
    let users: Vec<(Kind, String)> = users.collect();
    if users.is_empty() {
        return Ok(());
    }
    let (kind, name) = (S::KIND.word(), S::full_title(model, object));
    let listed: Vec<String> = users.iter().map(|(kind, name)| format!("{} {name}", kind.word())).collect();
    let listed = join_first(listed.iter().map(String::as_str), MAX_LISTED_REFERRERS);
    let message = format!("{kind} {} is in use by {listed}{follows}", quote(&name));
    let references = users.iter().take(MAX_RETURNED_REFERRERS).map(|(kind, name)| format!("{}/{name}", kind.word()));
    let refused = ApiError::new(ErrorType::ObjectInUse, message).detail(advice);
    Err(refused.extra("used_by", references.collect()))
}
