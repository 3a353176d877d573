//! Deletes tokens and records of deleted nodes that are no longer needed, so that the store does not grow with each
//! host that joins.

use stemma_core::object::Timestamp;

use super::{decode_record, keys};
use crate::identity::Identities;
use crate::records::enrolled::{AgentRecord, TOKENS, TokenRecord, agent_key};
use crate::store::{ExpiredEntry, Store, StoreError, drop_if_unchanged, sweep};

/// Time for which a token is retained after it was used up or expired, in milliseconds.
const RETENTION_MS: u64 = 24 * 3600 * 1000;
/// Maximum number of deleted nodes whose records one sweep removes.
const MAX_AGENTS: usize = 5000;

/// Deletes tokens that were used up or expired at least a day ago. Also deletes records of deleted nodes whose
/// certificates can no longer be presented. Returns how many tokens and records it deleted.
///
/// # Errors
/// Any error of the store.
pub async fn prune(store: &dyn Store, identities: &Identities, now: Timestamp) -> Result<usize, StoreError> {
    Ok(prune_tokens(store, now).await? + prune_agents(store, identities, now).await?)
}

/// Deletes the tokens that were used up or expired at least a day ago. Returns their number.
async fn prune_tokens(store: &dyn Store, now: Timestamp) -> Result<usize, StoreError> {
    sweep(store, TOKENS, |entry| {
        let token: TokenRecord = decode_record(&entry.key, &entry.value)?;
        let end = token.spent_at.map_or(token.expires_at, |spent_at| spent_at.min(token.expires_at));
        Ok(end.0.saturating_add(RETENTION_MS) <= now.0)
    })
    .await
}

/// Deletes the records and key entries of deleted nodes whose certificates can no longer be presented. Returns the
/// number of these nodes.
async fn prune_agents(store: &dyn Store, identities: &Identities, now: Timestamp) -> Result<usize, StoreError> {
    let now_s = now.0 / 1000;
    let mut expired = Vec::new();
    let snapshot = store.snapshot().await?;
    for node in identities.expired_nodes(now_s, MAX_AGENTS) {
        let Some(entry) = snapshot.get(agent_key(node).as_bytes()).await? else {
            // A commit deleted the record, but the watch of the store did not deliver this change to the cache.
            // A record that a later commit than the snapshot wrote stays in the cache.
            identities.remove(node, snapshot.revision().next());
            continue;
        };
        let record: AgentRecord = decode_record(&entry.key, &entry.value)?;
        if record.retired && record.grace_ends_s() <= now_s {
            expired.push(ExpiredEntry { ops: keys::key_deletions(snapshot.as_ref(), node, &record).await?, entry });
        }
    }
    drop(snapshot);
    // The watch of the store removes the deleted records from the cache.
    drop_if_unchanged(store, expired).await
}
