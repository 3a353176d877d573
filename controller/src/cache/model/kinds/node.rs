//! Nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use stemma_core::fleet::{Change, GroupFold};
use stemma_core::name::{Name, NodeName, TagName};
use stemma_core::object::{ClusterId, Kind, NodeId, NodeSpec, NodeTags, Object};
use stemma_core::ownership::OwnedMap;
use stemma_core::role::RoleTable;
use stemma_core::traits::MAX_TRAITS;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::{Reference, Resource, bad_name};
use crate::cache::model::Model;

impl Resource for NodeSpec {
    fn name_text(name: &Option<NodeName>) -> Option<String> {
        name.as_ref().map(ToString::to_string)
    }

    fn parse_name(text: &str) -> Result<Option<NodeName>, ApiError> {
        NodeName::new(text).map(Some).map_err(|e| bad_name(&e))
    }

    fn references(&self) -> Vec<Reference> {
        self.nodegroup.map(|id| Reference::uuid(Kind::NodeGroup, id.0)).into_iter().collect()
    }

    kept_in!(nodes, Node);

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveNode(NodeId(object.meta.uuid)))
    }

    fn cluster(model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(model.groups.get(object.spec.nodegroup?.0)?.spec.cluster)
    }

    fn standing_in(model: &Model, cluster: ClusterId, most: usize) -> Option<Vec<Uuid>> {
        let some: Vec<Uuid> =
            model.fleet.nodes_of_cluster(cluster).take(most.saturating_add(1)).map(|node| node.0).collect();
        (some.len() <= most).then_some(some)
    }

    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.traits.len() > MAX_TRAITS {
            let message = format!(
                "these would be {} traits from its operators; the maximum number of traits per node is {MAX_TRAITS}",
                self.traits.len()
            );
            return Err(ApiError::new(ErrorType::TraitInvalid, message).field("traits"));
        }
        let both = self.tags.assigned.members().find(|tag| self.tags.unassigned.get(*tag).is_some());
        both.map_or(Ok(()), |tag| {
            let message = format!("the tag {} can't be assigned and unassigned at once", quote(tag));
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("tags"))
        })
    }

    /// Its instance is an allocation for as long as that is there.
    fn check_change(&self, next: &Self, _name: &Option<NodeName>, model: &Model) -> Result<(), ApiError> {
        let instance = |spec: &Self| spec.extra.get("instance_uuid").and_then(Value::as_str).map(str::to_owned);
        let holder = instance(self).filter(|own| instance(next).as_ref() != Some(own));
        match holder.and_then(|uuid| model.allocations.get(uuid.parse().ok()?)) {
            None => Ok(()),
            Some(allocation) => {
                let message = format!(
                    "the node is used by allocation {}: it keeps its instance_uuid; nothing was changed",
                    allocation.display_name()
                );
                let advice = format!("stemma delete allocation {}", allocation.display_name());
                Err(ApiError::new(ErrorType::ObjectInUse, message).field("instance_uuid").detail(advice))
            }
        }
    }

    fn settled(self, uuid: Uuid, before: &Model, after: &Model) -> Self {
        match ended_unassignments(before, after, uuid, &self) {
            Some(tags) => Self { tags, ..self },
            None => self,
        }
    }
}

/// A node's tags by hand without the unassignments that end; `None`: none does.
///
/// An unassignment lasts while some role of the node produces its tag, and is forgotten with the last of them. Else the tag would
/// be missing when the role comes back, by a word that nobody remembers. One whose tag nothing produced before either stays: so
/// applying a manifest again changes nothing.
pub fn ended_unassignments(before: &Model, after: &Model, node: Uuid, spec: &NodeSpec) -> Option<NodeTags> {
    if spec.tags.unassigned.is_empty() {
        return None;
    }
    let produced_before = Produced::of(before, &before.nodes.get(node)?.spec)?;
    let produced_after = Produced::of(after, spec)?;
    let ends = |tag: &TagName| produced_before.has(tag) && !produced_after.has(tag);
    if !spec.tags.unassigned.members().any(ends) {
        return None;
    }
    let kept = spec.tags.unassigned.iter().filter(|(tag, _)| !ends(tag));
    let unassigned = OwnedMap::from_entries(kept.map(|(tag, entry)| (tag.clone(), entry.clone())));
    Some(NodeTags { unassigned, ..spec.tags.clone() })
}

/// What the roles of a node produce.
struct Produced {
    table: Option<Arc<RoleTable>>,
    roles: BTreeSet<Name>,
}

impl Produced {
    /// `None`: something above the node is missing, so nobody knows.
    fn of(model: &Model, spec: &NodeSpec) -> Option<Self> {
        let fold: Option<&GroupFold> = match spec.nodegroup {
            Some(group) => Some(model.fleet.fold(group).ok()?),
            None => None,
        };
        let of_group = fold.into_iter().flat_map(|fold| &fold.roles);
        let roles = of_group.chain(&spec.roles).cloned().collect();
        Some(Self { table: fold.and_then(|fold| fold.table.clone()), roles })
    }

    fn has(&self, tag: &TagName) -> bool {
        self.table.as_ref().is_some_and(|table| table.is_produced(&self.roles, tag))
    }
}
