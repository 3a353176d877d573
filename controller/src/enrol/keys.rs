//! Records in the store which node owns each certificate key (S25).
//!
//! The cache is updated after a commit. If two hosts with copies of one key join at once, the key is free in the cache
//! for both. So each certificate key has an entry in the store that names its node. The commit that creates the entry
//! requires that the entry is absent. The commit that removes the key's last certificate from the node's record deletes
//! the entry. Each commit that changes a node's record requires that the record is unchanged, so a node's entries
//! change only together with its record.

use std::collections::BTreeSet;

use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use crate::records::enrolled::{AgentRecord, CertificateRecord, HexBytes, public_key_entry};
use crate::registry::{Context, DecisionError, Draft};
use crate::store::{Entry, Op, Precondition, Snapshot, StoreError};

/// Adds changes of key entries to a commit that issues a certificate. A key entry names the node that owns a key of
/// certificates. `new_key`, the key of the new certificate, then belongs to the node. Keys of `old_record` that have no
/// certificate in `remaining` are released, so that another node may use them. The commit must require that the record
/// is still `old_record`.
///
/// Call this before the certificate is issued. If an entry is not in memory yet, the decision is made again after a
/// read of the store, and a certificate that was already issued would be wasted.
///
/// # Errors
/// Fails if the key belongs to another node. [`DecisionError::NeedsRead`] if an entry must be read first.
pub(super) fn update_keys(
    context: &Context<'_>,
    draft: &mut Draft,
    node: Uuid,
    old_record: Option<&AgentRecord>,
    remaining: &[CertificateRecord],
    new_key: &HexBytes<32>,
) -> Result<(), DecisionError> {
    let new_entry = public_key_entry(new_key);
    match context.entry(&new_entry)? {
        None => {
            draft.add_precondition(Precondition::absent(new_entry.clone()));
            draft.add_op(Op::Put { key: new_entry.into(), value: node.to_string().into() });
        }
        Some(entry) if is_owned_by(entry, node) => {}
        Some(_) => return Err(key_in_use_error().into()),
    }
    let is_used = |key: &HexBytes<32>| key == new_key || remaining.iter().any(|certificate| certificate.spki_sha256 == *key);
    for old_entry in old_record.map(|record| key_entries(record, is_used)).unwrap_or_default() {
        if context.entry(&old_entry)?.is_some_and(|entry| is_owned_by(entry, node)) {
            draft.add_op(Op::Delete { key: old_entry.into() });
        }
    }
    Ok(())
}

/// Returns the operations that delete the entries of all keys of a node whose record is deleted.
///
/// # Errors
/// Any error of the store.
pub(super) async fn key_deletions(snapshot: &dyn Snapshot, node: Uuid, record: &AgentRecord) -> Result<Vec<Op>, StoreError> {
    let mut ops = Vec::new();
    // `|_| false`: no key of the record is in use any longer.
    for entry_key in key_entries(record, |_| false) {
        if snapshot.get(entry_key.as_bytes()).await?.is_some_and(|entry| is_owned_by(&entry, node)) {
            ops.push(Op::Delete { key: entry_key.into() });
        }
    }
    Ok(ops)
}

/// Builds the error for a key that belongs to another node.
pub(super) fn key_in_use_error() -> ApiError {
    let message = "the certificate request is refused: its key belongs to another node; create a new key";
    ApiError::new(ErrorType::CsrInvalid, message).field("csr")
}

/// Returns the store keys of the entries for a record's certificate keys, except those keys for which `is_used` returns
/// true.
fn key_entries(record: &AgentRecord, is_used: impl Fn(&HexBytes<32>) -> bool) -> BTreeSet<String> {
    record.certificates.iter().map(|entry| &entry.spki_sha256).filter(|key| !is_used(key)).map(public_key_entry).collect()
}

/// Returns whether an entry names this node as the owner of a certificate key. An older version stored no entries, so
/// the entry for a key in a node's record may name another node.
fn is_owned_by(entry: &Entry, node: Uuid) -> bool {
    entry.value == node.to_string()
}
