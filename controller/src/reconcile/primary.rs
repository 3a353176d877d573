//! Primaries are stored choices: who holds a tag by rule and not by choice is chosen, so that a node which comes later
//! and sorts first takes nothing over.

use std::sync::Arc;

use stemma_core::fleet::Fleet;
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Meta, NodeId, Primary, PrimarySpec};
use stemma_core::ownership::Manager;
use stemma_wire::error::ApiError;
use uuid::Uuid;

use crate::registry::{Answer, Caller, Decision, Draft, Registry, Sight};

/// Stores the choices that are open.
///
/// # Errors
/// What the registry says.
pub(super) async fn choose(registry: &Registry, fleet: &Fleet) -> Result<(), ApiError> {
    let clusters: Vec<ClusterId> = fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid)).collect();
    for cluster in clusters {
        let open = fleet.unstored_holders(cluster);
        if !open.is_empty() {
            registry.write(&caller(), |sight| Ok(decide(sight, cluster, &open))).await?;
        }
    }
    Ok(())
}

fn decide(sight: &Sight<'_>, cluster: ClusterId, open: &[(TagName, NodeId)]) -> Decision {
    let mut draft = Draft::default();
    for (tag, node) in open {
        // Either may have gone since the fleet was looked at.
        let is_there = sight.model.nodes.get(node.0).is_some() && sight.model.clusters.get(cluster.0).is_some();
        if is_there {
            put(&mut draft, sight, cluster, tag, *node);
        }
    }
    Decision { draft, answer: Answer::empty(204) }
}

fn put(draft: &mut Draft, sight: &Sight<'_>, cluster: ClusterId, tag: &TagName, node: NodeId) {
    let since = sight.now;
    match sight.model.primaries.named(Some(cluster.0), tag.as_str()) {
        Some(before) if before.spec.node == node => {}
        Some(before) => {
            let mut next = Primary::clone(before);
            next.spec = PrimarySpec { cluster, node, since, epoch: before.spec.epoch + 1 };
            next.meta.generation += 1;
            next.meta.updated_at = since;
            draft.put(Some(before), &Arc::new(next));
        }
        None => {
            let spec = PrimarySpec { cluster, node, since, epoch: 1 };
            let meta = Meta::new(Uuid::now_v7(), tag.clone(), since);
            draft.put(None, &Arc::new(Primary { meta, spec }));
        }
    }
}

/// The controller's own name in the audit.
fn caller() -> Caller {
    let manager = Manager::new("stemma-controller").expect("a plain word is a manager's name");
    Caller {
        principal: "stemma-controller".to_owned(),
        manager,
        address: String::new(),
        reason: Some("elected".to_owned()),
        request_id: String::new(),
        mark: None,
    }
}
