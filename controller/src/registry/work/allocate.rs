//! An allocation's node: taken and given back in the commit that makes or deletes the allocation.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::object::{Allocation, Kind, Node, NodeSpec};
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use super::delete::unused;
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
        let mut spec = before.spec.clone();
        spec.extra.insert("instance_uuid".to_owned(), allocation.meta.uuid.to_string().into());
        spec.instance_info.insert("traits".to_owned(), json!(allocation.spec.traits));
        self.update(&before, before.meta.name.clone(), spec).map(drop)
    }

    /// Deletes an allocation, and gives its node back. What its instance wanted stays noted there, as in Ironic.
    ///
    /// # Errors
    /// As [`Work::update`].
    pub fn delete_allocation(&mut self, allocation: &Arc<Allocation>) -> Result<(), Undecided> {
        self.delete(allocation)?;
        let taken = allocation.spec.node().and_then(|node| self.model.nodes.get(node.0)).cloned();
        if let Some(before) = taken.filter(|node| is_instance(node, allocation)) {
            let mut spec: NodeSpec = before.spec.clone();
            spec.extra.remove("instance_uuid");
            self.update(&before, before.meta.name.clone(), spec)?;
        }
        Ok(())
    }

    /// Refuses the deletion of a node that an allocation has.
    pub(super) fn check_not_allocated(&self, node: &Node) -> Result<(), ApiError> {
        let holder = self.model.allocation_of(node).map(|one| format!("allocation {}", one.display_name()));
        unused(Kind::Node, &node.display_name(), holder.into_iter())
    }

    /// Refuses a write that moves a node into a group while it has not the traits that its instance wants.
    pub(super) fn check_moved(&self) -> Result<(), ApiError> {
        let written = self.written().filter(|(kind, _)| *kind == Kind::Node);
        for node in written.filter_map(|(_, uuid)| self.model.nodes.get(uuid)) {
            let before = self.context.whole.nodes.get(node.meta.uuid).and_then(|before| before.spec.nodegroup);
            if node.spec.nodegroup.is_none() || node.spec.nodegroup == before {
                continue;
            }
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

/// Whether a node is used by this very allocation.
fn is_instance(node: &Node, allocation: &Allocation) -> bool {
    let instance = node.spec.extra.get("instance_uuid").and_then(Value::as_str);
    instance == Some(&*allocation.meta.uuid.to_string())
}
