//! Deletes tokens and records of deleted nodes that are no longer needed, so that the store does not grow with each
//! host that joins.

use stemma_core::object::Timestamp;

use super::{decode, keys};
use crate::identity::Identities;
use crate::records::enrolled::{AgentRecord, TOKENS, TokenRecord, agent_key};
use crate::store::{ExpiredEntry, Store, StoreError, drop_if_unchanged, sweep};

/// How long a token is retained after it was used up or expired, in milliseconds.
const RETENTION_MS: u64 = 24 * 3600 * 1000;
/// Maximum number of deleted nodes whose records one sweep removes.
const MAX_AGENTS: usize = 5000;

/// Deletes tokens that were used up or expired a day ago, and records of deleted nodes whose certificates can no longer
/// be presented. Returns how many it deleted.
///
/// # Errors
/// Any error of the store.
pub async fn prune(store: &dyn Store, identities: &Identities, now: Timestamp) -> Result<usize, StoreError> {
    Ok(prune_tokens(store, now).await? + prune_agents(store, identities, now).await?)
}

async fn prune_tokens(store: &dyn Store, now: Timestamp) -> Result<usize, StoreError> {
    sweep(store, TOKENS, |entry| {
        let token: TokenRecord = decode(&entry.key, &entry.value)?;
        let ended = token.spent_at.map_or(token.expires_at, |spent| spent.min(token.expires_at));
        Ok(ended.0.saturating_add(RETENTION_MS) <= now.0)
    })
    .await
}

/// Deletes the records and key entries of deleted nodes whose certificates can no longer be presented.
async fn prune_agents(store: &dyn Store, identities: &Identities, now: Timestamp) -> Result<usize, StoreError> {
    let now_s = now.0 / 1000;
    let mut expired = Vec::new();
    let snapshot = store.snapshot().await?;
    for node in identities.expired(now_s, MAX_AGENTS) {
        let Some(entry) = snapshot.get(agent_key(node).as_bytes()).await? else {
            // The record was deleted by a commit whose changes the watch could not deliver.
            identities.remove(node, snapshot.revision().next());
            continue;
        };
        let record: AgentRecord = decode(&entry.key, &entry.value)?;
        if record.retired && record.grace_ends_s() <= now_s {
            expired.push(ExpiredEntry { ops: keys::remove_keys(snapshot.as_ref(), node, &record).await?, entry });
        }
    }
    drop(snapshot);
    // The cache is updated through the watch of the store.
    drop_if_unchanged(store, expired).await
}
