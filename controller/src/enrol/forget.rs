//! Forgets what is over, so that a store does not grow with each host that ever joined: tokens, and the records of deleted nodes.
//!
//! A sweep is bounded in what it reads at once and in what it drops; what is left is the next one's. It writes
//! nothing when there is nothing to drop, and it drops nothing that changed since it looked.

use stemma_core::object::Timestamp;

use super::{decode, keys};
use crate::identity::Identities;
use crate::records::enrolled::{AgentRecord, TOKENS, TokenRecord, agent_key};
use crate::store::{Entry, KeyRange, Op, Precondition, Query, Store, StoreError, Transaction};

/// A token that is spent or expired is still shown for so long.
const SHOWN_MS: u64 = 24 * 3600 * 1000;
/// How many tokens are read at once.
const PAGE: usize = 1000;
/// How many records one commit drops.
const AT_ONCE: usize = 50;
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
    let mut range = KeyRange::prefix(TOKENS);
    let mut dropped = 0;
    loop {
        let page = store.snapshot().await?.list(&Query::range(range.clone()).limit(PAGE)).await?;
        let Some(last) = page.entries.last() else { return Ok(dropped) };
        range = range.after(&last.key);
        let mut old = Vec::new();
        for entry in page.entries {
            let token: TokenRecord = decode(&entry.key, &entry.value)?;
            let ended = token.spent_at.map_or(token.expires_at, |spent| spent.min(token.expires_at));
            if ended.0.saturating_add(SHOWN_MS) <= now.0 {
                old.push(Old { entry, with: Vec::new() });
            }
        }
        dropped += drop_unchanged(store, old).await?;
        if !page.more {
            return Ok(dropped);
        }
    }
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
            old.push(Old { with: keys::drop_all(snapshot.as_ref(), node, &record).await?, entry });
        }
    }
    drop(snapshot);
    // Memory follows by the store's watch.
    drop_unchanged(store, old).await
}

/// A record that is to go, and what goes with it.
struct Old {
    entry: Entry,
    with: Vec<Op>,
}

async fn drop_unchanged(store: &dyn Store, old: Vec<Old>) -> Result<usize, StoreError> {
    let mut dropped = 0;
    let mut old = old.into_iter().peekable();
    while old.peek().is_some() {
        let (mut transaction, mut count) = (Transaction::new(), 0);
        for Old { entry, with } in old.by_ref().take(AT_ONCE) {
            transaction = transaction.require(Precondition::unchanged(entry.key.clone(), entry.mod_revision));
            transaction = transaction.delete(entry.key);
            transaction.ops.extend(with);
            count += 1;
        }
        match store.commit(transaction).await {
            Ok(_) => dropped += count,
            // One of them was just written; the others are still old next time.
            Err(StoreError::PreconditionFailed(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(dropped)
}
