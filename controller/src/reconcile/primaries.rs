//! Primaries are stored choices. If a node holds a tag by rule and not by choice, it is stored as the choice. So a node
//! that is added later and sorts first does not take over.

use stemma_core::fleet::Fleet;
use stemma_core::object::ClusterId;
use stemma_wire::error::ApiError;

use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;
use crate::registry::{Caller, Context, Decision, DecisionError, Registry};

/// Stores the choices of primaries that are not stored yet. A failure in one cluster does not affect the others.
///
/// # Errors
/// The last error of the registry.
pub(super) async fn choose_primaries(registry: &Registry, fleet: &Fleet) -> Result<(), ApiError> {
    let clusters: Vec<ClusterId> = fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid)).collect();
    let mut outcome = Ok(());
    for cluster in clusters {
        if !fleet.unstored_holders(cluster).is_empty() {
            let stored = registry.write(&Caller::controller("elected"), |context| decide_primaries(context, cluster)).await;
            outcome = stored.map(drop).and(outcome);
        }
    }
    outcome
}

/// Decides which choices to store. It uses the present model, because since the pass a choice may have been stored, or
/// its node or cluster deleted.
fn decide_primaries(context: &Context<'_>, cluster: ClusterId) -> Result<Decision, DecisionError> {
    let mut work = PendingWrite::new(context);
    for (tag, node) in context.model.fleet.unstored_holders(cluster) {
        work.set_primary(cluster, &tag, node)?;
    }
    work.finish(StoredAnswer::empty(204))
}
