//! Primaries are stored choices. If nobody chose the primary of a tag, it is the first unparked node by name with the
//! tag. That node is then stored as the choice. So a node that is added later and sorts first does not become primary.

use stemma_core::fleet::Fleet;
use stemma_core::object::ClusterId;
use stemma_wire::error::ApiError;

use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;
use crate::registry::{Caller, Context, Decision, DecisionError, Registry};

/// Stores, in each cluster, the present primary of each tag as the chosen node, unless it is stored as such already. A
/// failure in one cluster does not affect the others.
///
/// # Errors
/// The last error of a write.
pub(super) async fn choose_primaries(registry: &Registry, fleet: &Fleet) -> Result<(), ApiError> {
    let clusters: Vec<ClusterId> = fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid)).collect();
    let mut outcome = Ok(());
    for cluster in clusters {
        if !fleet.unstored_holders(cluster).is_empty() {
            // The audit log shows `elected` as the reason of the write.
            let stored = registry.write(&Caller::controller("elected"), |context| decide_primaries(context, cluster)).await;
            // If several writes fail, the last error is returned.
            outcome = stored.map(drop).and(outcome);
        }
    }
    outcome
}

/// Decides which primaries to store. This uses the present model. Since the pass, a choice may have been stored, or its
/// node or cluster may have been deleted.
fn decide_primaries(context: &Context<'_>, cluster: ClusterId) -> Result<Decision, DecisionError> {
    let mut work = PendingWrite::new(context);
    for (tag, node) in context.model.fleet.unstored_holders(cluster) {
        work.set_primary(cluster, &tag, node)?;
    }
    work.finish(StoredAnswer::empty(204))
}
