//! Assigns a node to an allocation in the commit that creates the allocation, and releases the node in the commit that
//! deletes the allocation. As in Ironic, a node's instance is the uuid of the workload that uses the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use stemma_core::fleet::{IndexTerm, NodeSet};
use stemma_core::object::{Allocation, Kind, Node, NodeId, NodeSpec};
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::PendingWrite;
use super::delete::check_unused;
use crate::cache::Model;
use crate::records::audit::AuditedObject;
use crate::records::key;
use crate::registry::DecisionError;
use crate::store::Op;

impl PendingWrite<'_> {
    /// Assigns the chosen node to a new allocation. The uuid of the allocation becomes the instance of the node, and
    /// the traits of the allocation become those that the instance requires. Allocations of one resource class write
    /// the same mark, so they are created one after the other. Each of them sees the nodes that are already assigned.
    /// An allocation without a chosen node changes no node.
    ///
    /// # Errors
    /// Fails as [`PendingWrite::update`] does.
    pub fn assign_node(&mut self, allocation: &Allocation) -> Result<(), ApiError> {
        let mark = key::allocation_mark(&allocation.spec.resource_class);
        self.require_mark(&mark);
        self.draft.add_op(Op::Put { key: mark.into(), value: bytes::Bytes::new() });
        let chosen_node = allocation.spec.chosen_node().and_then(|node| self.model.nodes.get(node.0)).cloned();
        let Some(node) = chosen_node else { return Ok(()) };
        self.require_unchanged_levels(&node);
        let mut spec = node.spec.clone();
        spec.extra.insert("instance_uuid".to_owned(), allocation.meta.uuid.to_string().into());
        spec.instance_info.insert("traits".to_owned(), json!(allocation.spec.traits));
        self.update(&node, node.meta.name.clone(), spec).map(drop)
    }

    /// Requires at the commit that the levels above a node, and the inspection rules, are unchanged. The choice of the
    /// node depends on them.
    fn require_unchanged_levels(&mut self, node: &Node) {
        self.require_mark(key::RULES);
        let Some(group) = node.spec.nodegroup.and_then(|id| self.model.groups.get(id.0)) else { return };
        self.draft.require_unchanged(group);
        let Some(cluster) = self.model.clusters.get(group.spec.cluster.0) else { return };
        self.draft.require_unchanged(cluster);
        let template = cluster.spec.cluster_template.and_then(|id| self.model.templates.get(id.0));
        if let Some(template) = template {
            self.draft.require_unchanged(template);
        }
    }

    /// Writes the mark of the inspection rules ([`key::RULES`]) if the write contains a rule.
    pub(super) fn mark_rules(&mut self) {
        if self.draft.audited().iter().any(|object| object.kind == Kind::InspectionRule) {
            self.draft.add_op(Op::Put { key: key::RULES.into(), value: bytes::Bytes::new() });
        }
    }

    /// Deletes an allocation and releases its node. The node retains the traits that the instance required, as in
    /// Ironic.
    ///
    /// # Errors
    /// Fails as [`PendingWrite::update`] does.
    pub fn delete_allocation(&mut self, allocation: &Arc<Allocation>) -> Result<(), DecisionError> {
        self.delete(allocation)?;
        let assigned_node = allocation.spec.chosen_node().and_then(|node| self.model.nodes.get(node.0)).cloned();
        if let Some(node) = assigned_node.filter(|node| node.spec.instance() == Some(allocation.meta.uuid)) {
            let mut spec: NodeSpec = node.spec.clone();
            spec.extra.remove("instance_uuid");
            self.update(&node, node.meta.name.clone(), spec)?;
        }
        Ok(())
    }

    /// Fails if the node to delete is assigned to an allocation.
    pub(super) fn check_not_allocated(&self, node: &Node) -> Result<(), ApiError> {
        let holder = self.model.node_allocation(node).map(|allocation| (Kind::Allocation, allocation.display_name()));
        check_unused(&self.model, node, holder.into_iter())
    }

    /// Refuses a write that gives one instance to two nodes, or the instance of an allocation to a node other than the
    /// allocation's. In Ironic, instances are unique among nodes and allocations. Only added instances are checked. A
    /// store of an older version may contain an instance twice, and a write that removes one of the two must be
    /// possible. Also changes the mark of each added or removed instance ([`key::instance_mark`]).
    pub(super) fn check_instances(&mut self) -> Result<(), ApiError> {
        // The instances that an object gets or loses. The value is the object that gets the instance, if there is one.
        let mut changed_instances = BTreeMap::<Uuid, Option<&AuditedObject>>::new();
        for object in self.draft.audited() {
            let [old_instance, new_instance] =
                [self.context.full_model, &self.model].map(|model| instance_of(model, object.kind, object.uuid));
            if old_instance != new_instance {
                old_instance.map(|removed_instance| changed_instances.entry(removed_instance).or_default());
                new_instance.map(|added_instance| changed_instances.insert(added_instance, Some(object)));
            }
        }
        // Concurrent writes of an instance write the same mark, so only one of them is committed.
        let mut marks = Vec::new();
        for (instance, new_object) in changed_instances {
            let (nodes, allocation) = (instance_nodes(&self.model, instance), self.model.allocations.get(instance));
            new_object.map_or(Ok(()), |object| check_instance_free(instance, object, &nodes, allocation))?;
            marks.push((key::instance_mark(instance), allocation.is_some() || !nodes.is_empty()));
        }
        for (mark, is_in_use) in marks {
            if is_in_use {
                self.draft.add_op(Op::Put { key: mark.clone().into(), value: bytes::Bytes::new() });
            } else if self.context.mark_revision(&mark).is_some() {
                self.draft.add_op(Op::Delete { key: mark.clone().into() });
            }
            self.require_mark(&mark);
        }
        Ok(())
    }

    /// Refuses a write that moves a node into a group in which the node lacks traits that its instance requires.
    pub(super) fn check_group_moves(&mut self) -> Result<(), ApiError> {
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::Node);
        let nodes = written.filter_map(|(_, uuid)| self.model.nodes.get(uuid));
        let is_moved = |node: &&Arc<Node>| {
            let old_group = self.context.full_model.nodes.get(node.meta.uuid).and_then(|old_node| old_node.spec.nodegroup);
            node.spec.nodegroup.is_some() && node.spec.nodegroup != old_group
        };
        let moved: Vec<Arc<Node>> = nodes.filter(is_moved).cloned().collect();
        if !moved.is_empty() {
            // The nodes may have their traits from inspection rules, so the rules must be unchanged at the commit.
            self.require_mark(key::RULES);
        }
        for node in moved {
            let result = self.model.fleet.node_view(node.id()).map_or(Ok(()), |view| view.check_instance_traits());
            result.map_err(|missing_traits| {
                ApiError::new(ErrorType::ObjectInvalid, format!("{missing_traits}; nothing was changed"))
                    .field("nodegroup")
                    .extra("object", format!("node/{}", node.display_name()).into())
            })?;
        }
        Ok(())
    }
}

/// Fails if another object already has the instance. The message is Ironic's. It does not name the other object,
/// because the caller may not be allowed to see that object.
fn check_instance_free(
    instance: Uuid,
    object: &AuditedObject,
    nodes: &[NodeId],
    allocation: Option<&Arc<Allocation>>,
) -> Result<(), ApiError> {
    // At most one node may have the instance. If an allocation has it too, the node must be the allocation's.
    let is_unique = match (nodes, allocation) {
        ([], _) | ([_], None) => true,
        ([node], Some(allocation)) => allocation.spec.chosen_node() == Some(*node),
        _ => false,
    };
    if is_unique {
        return Ok(());
    }
    let (object_text, field) = match object.kind {
        Kind::Node => (format!("this other node {}", object.name), "instance_uuid"),
        _ => (format!("allocation {}", object.name), "uuid"),
    };
    let is_on_other_node = nodes.iter().any(|node| node.0 != object.uuid);
    let conflict = if is_on_other_node { "already associated with a node" } else { "the uuid of an allocation already" };
    let message = format!("Instance {instance} is {conflict}, it cannot be associated with {object_text}; nothing was changed");
    Err(ApiError::new(ErrorType::ObjectExists, message).field(field))
}

/// Returns the instance of a node. For an allocation, returns its uuid, which is the instance of its node. Returns
/// `None` for other kinds.
fn instance_of(model: &Model, kind: Kind, uuid: Uuid) -> Option<Uuid> {
    match kind {
        Kind::Node => model.nodes.get(uuid)?.spec.instance(),
        Kind::Allocation => model.allocations.get(uuid).map(|allocation| allocation.meta.uuid),
        _ => None,
    }
}

/// Returns the nodes that have this instance.
fn instance_nodes(model: &Model, instance: Uuid) -> Vec<NodeId> {
    let filter = NodeSet::Term(IndexTerm::ironic_field("instance_uuid", &instance.to_string()));
    // Without an index, all nodes are compared. A walk of the index has no start and is not reversed.
    let nodes: Box<dyn Iterator<Item = NodeId>> = match model.fleet.walk(filter, None, false) {
        Some(nodes) => Box::new(nodes),
        None => Box::new(model.fleet.nodes().map(|node| node.id())),
    };
    nodes.filter(|id| model.fleet.node(*id).is_some_and(|node| node.spec.instance() == Some(instance))).collect()
}
