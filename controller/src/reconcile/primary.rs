//! Primaries are stored choices: who holds a tag by rule and not by choice is chosen, so that a node which comes later
//! and sorts first takes nothing over.

use stemma_core::fleet::Fleet;
use stemma_core::object::ClusterId;
use stemma_wire::error::ApiError;

use crate::records::request::Answer;
use crate::registry::work::Work;
use crate::registry::{Caller, Context, Decision, Registry, Undecided};

/// Stores the choices that are open. One cluster's that cannot be stored keeps no other's from it.
///
/// # Errors
/// What the registry said last.
pub(super) async fn choose(registry: &Registry, fleet: &Fleet) -> Result<(), ApiError> {
    let clusters: Vec<ClusterId> = fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid)).collect();
    let mut outcome = Ok(());
    for cluster in clusters {
        if !fleet.unstored_holders(cluster).is_empty() {
            let stored = registry.write(&Caller::controller("elected"), |context| decide(context, cluster)).await;
            outcome = stored.map(drop).and(outcome);
        }
    }
    outcome
}

/// On what is there by now: a choice that was open may be made, and its node or cluster gone.
fn decide(context: &Context<'_>, cluster: ClusterId) -> Result<Decision, Undecided> {
    let mut work = Work::on(context);
    for (tag, node) in context.model.fleet.unstored_holders(cluster) {
        work.elect(cluster, &tag, node)?;
    }
    work.finish(Answer::empty(204))
}
