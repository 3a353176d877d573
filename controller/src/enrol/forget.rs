//! Forgets what is over, so that a store does not grow with each host that ever joined: tokens, and the records of deleted nodes.

use stemma_core::object::Timestamp;

use super::{decode, keys};
use crate::identity::Identities;
use crate::records::enrolled::{AgentRecord, TOKENS, TokenRecord, agent_key};
use crate::store::{Over, Store, StoreError, drop_unchanged, sweep};

/// A token that is spent or expired is still shown for so long.
const SHOWN_MS: u64 = 24 * 3600 * 1000;
/// How many deleted nodes' records one sweep drops.
const MOST_AGENTS: usize = 5000;

/// Drops tokens that have been worth nothing for a day, and the records of deleted nodes of which nobody can show a certificate any more.
/// Gives back how many it dropped.
///
/// # Errors
/// What the store says.
pub async fn forget(store: &dyn Store, identities: &Identities, now: Timestamp) -> Result<usize, StoreError> {
    Ok(forget_tokens(store, now).await? + forget_agents(store, identities, now).await?)
}

async fn forget_tokens(store: &dyn Store, now: Timestamp) -> Result<usize, StoreError> {
    sweep(store, TOKENS, |entry| {
        let token: TokenRecord = decode(&entry.key, &entry.value)?;
        let ended = token.spent_at.map_or(token.expires_at, |spent| spent.min(token.expires_at));
        Ok(ended.0.saturating_add(SHOWN_MS) <= now.0)
    })
    .await
}

async fn forget_agents(store: &dyn Store, identities: &Identities, now: Timestamp) -> Result<usize, StoreError> {
    let now_s = now.0 / 1000;
    let mut old = Vec::new();
    let snapshot = store.snapshot().await?;
    for node in identities.over(now_s, MOST_AGENTS) {
        let Some(entry) = snapshot.get(agent_key(node).as_bytes()).await? else {
            // Dropped in a stretch of changes that the watch could not show.
            identities.forget(node, snapshot.revision().next());
            continue;
        };
        let record: AgentRecord = decode(&entry.key, &entry.value)?;
        if record.retired && record.over_s() <= now_s {
            old.push(Over { with: keys::drop_all(snapshot.as_ref(), node, &record).await?, entry });
        }
    }
    drop(snapshot);
    // Memory follows by the store's watch.
    drop_unchanged(store, old).await
}
