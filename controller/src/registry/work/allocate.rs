//! An allocation's node: taken and given back in the commit that makes or deletes the allocation.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use stemma_core::fleet::{Among, Term};
use stemma_core::object::{Allocation, Kind, Node, NodeId, NodeSpec};
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::Work;
use super::delete::unused;
use crate::cache::Model;
use crate::records::audit::AuditedObject;
use crate::records::key;
use crate::registry::Undecided;
use crate::store::Op;

impl Work<'_> {
    /// Gives a new allocation the node that was chosen for it: it is its instance, and its traits are what the instance wants. All
    /// allocations of a class are made one after the other, so that each sees which nodes those before it took.
    ///
    /// # Errors
    /// As [`Work::update`].
    pub fn take_node(&mut self, allocation: &Allocation) -> Result<(), ApiError> {
        let mark = key::allocated(&allocation.spec.resource_class);
        self.require_mark(&mark);
        self.draft.entry(Op::Put { key: mark.into(), value: bytes::Bytes::new() });
        let chosen = allocation.spec.node().and_then(|node| self.model.nodes.get(node.0)).cloned();
        let Some(before) = chosen else { return Ok(()) };
        self.require_chosen(&before);
        let mut spec = before.spec.clone();
        spec.extra.insert("instance_uuid".to_owned(), allocation.meta.uuid.to_string().into());
        spec.instance_info.insert("traits".to_owned(), json!(allocation.spec.traits));
        self.update(&before, before.meta.name.clone(), spec).map(drop)
    }

    /// Requires that the levels above a node and the inspection rules are those by which it was chosen.
    fn require_chosen(&mut self, node: &Node) {
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

    /// Marks that inspection rules are others than before.
    pub(super) fn note_rules(&mut self) {
        if self.draft.touched().iter().any(|one| one.kind == Kind::InspectionRule) {
            self.draft.entry(Op::Put { key: key::RULES.into(), value: bytes::Bytes::new() });
        }
    }

    /// Deletes an allocation, and gives its node back. What its instance wanted stays noted there, as in Ironic.
    ///
    /// # Errors
    /// As [`Work::update`].
    pub fn delete_allocation(&mut self, allocation: &Arc<Allocation>) -> Result<(), Undecided> {
        self.delete(allocation)?;
        let taken = allocation.spec.node().and_then(|node| self.model.nodes.get(node.0)).cloned();
        if let Some(before) = taken.filter(|node| node.spec.instance() == Some(allocation.meta.uuid)) {
            let mut spec: NodeSpec = before.spec.clone();
            spec.extra.remove("instance_uuid");
            self.update(&before, before.meta.name.clone(), spec)?;
        }
        Ok(())
    }

    /// Refuses the deletion of a node that an allocation has.
    pub(super) fn check_not_allocated(&self, node: &Node) -> Result<(), ApiError> {
        let holder = self.model.allocation_of(node).map(|one| (Kind::Allocation, one.display_name()));
        unused(&self.model, node, holder.into_iter())
    }

    /// Refuses a write that gives an instance to two nodes, or that of an allocation to another node: Ironic keeps both unique together.
    /// What an object loses is not judged: an older store may have an instance twice, and is mended so.
    pub(super) fn check_instances(&mut self) -> Result<(), ApiError> {
        let mut changed = BTreeMap::<Uuid, Option<&AuditedObject>>::new();
        for object in self.draft.touched() {
            let [before, after] =
                [self.context.whole, &self.model].map(|model| instance_of(model, object.kind, object.uuid));
            if before != after {
                before.map(|lost| changed.entry(lost).or_default());
                after.map(|gained| changed.insert(gained, Some(object)));
            }
        }
        let mut marks = Vec::new();
        for (instance, gains) in changed {
            let (nodes, allocation) = (nodes_of(&self.model, instance), self.model.allocations.get(instance));
            gains.map_or(Ok(()), |object| check_gained(instance, object, &nodes, allocation))?;
            marks.push((key::instance(instance), allocation.is_some() || !nodes.is_empty()));
        }
        for (mark, is_held) in marks {
            if is_held {
                self.draft.entry(Op::Put { key: mark.clone().into(), value: bytes::Bytes::new() });
            } else if self.context.marked(&mark).is_some() {
                self.draft.entry(Op::Delete { key: mark.clone().into() });
            }
            self.require_mark(&mark);
        }
        Ok(())
    }

    /// Refuses a write that moves a node into a group while it has not the traits that its instance wants.
    pub(super) fn check_moved(&mut self) -> Result<(), ApiError> {
        let written = self.written().filter(|(kind, _)| *kind == Kind::Node);
        let nodes = written.filter_map(|(_, uuid)| self.model.nodes.get(uuid));
        let is_moved = |node: &&Arc<Node>| {
            let before = self.context.whole.nodes.get(node.meta.uuid).and_then(|before| before.spec.nodegroup);
            node.spec.nodegroup.is_some() && node.spec.nodegroup != before
        };
        let moved: Vec<Arc<Node>> = nodes.filter(is_moved).cloned().collect();
        if !moved.is_empty() {
            // They may have their traits of inspection rules.
            self.require_mark(key::RULES);
        }
        for node in moved {
            let checked = self.model.fleet.node_view(node.id()).map_or(Ok(()), |view| view.check_instance());
            checked.map_err(|lacks| {
                ApiError::new(ErrorType::ObjectInvalid, format!("{lacks}; nothing was changed"))
                    .field("nodegroup")
                    .extra("object", format!("node/{}", node.display_name()).into())
            })?;
        }
        Ok(())
    }
}

/// Refuses an instance that another has, in Ironic's words. The other may be one that whoever asks does not see.
fn check_gained(
    instance: Uuid,
    object: &AuditedObject,
    nodes: &[NodeId],
    allocation: Option<&Arc<Allocation>>,
) -> Result<(), ApiError> {
    let is_of_one = match (nodes, allocation) {
        ([], _) | ([_], None) => true,
        ([node], Some(allocation)) => allocation.spec.node() == Some(*node),
        _ => false,
    };
    if is_of_one {
        return Ok(());
    }
    let (asks, field) = match object.kind {
        Kind::Node => (format!("this other node {}", object.name), "instance_uuid"),
        _ => (format!("allocation {}", object.name), "uuid"),
    };
    let is_of_another = nodes.iter().any(|node| node.0 != object.uuid);
    let has = if is_of_another { "already associated with a node" } else { "the uuid of an allocation already" };
    let message = format!("Instance {instance} is {has}, it cannot be associated with {asks}; nothing was changed");
    Err(ApiError::new(ErrorType::ObjectExists, message).field(field))
}

/// The instance that an object is of, or is.
fn instance_of(model: &Model, kind: Kind, uuid: Uuid) -> Option<Uuid> {
    match kind {
        Kind::Node => model.nodes.get(uuid)?.spec.instance(),
        Kind::Allocation => model.allocations.get(uuid).map(|one| one.meta.uuid),
        _ => None,
    }
}

/// The nodes of an instance.
fn nodes_of(model: &Model, instance: Uuid) -> Vec<NodeId> {
    let among = Among::Of(Term::kept("instance_uuid", &instance.to_string()));
    let found: Box<dyn Iterator<Item = NodeId>> = match model.fleet.walk(among, None, false) {
        Some(found) => Box::new(found),
        None => Box::new(model.fleet.nodes().map(|node| node.id())),
    };
    found.filter(|id| model.fleet.node(*id).is_some_and(|node| node.spec.instance() == Some(instance))).collect()
}
