//! Records in the store which node owns each certificate key (S25).
//!
//! The cache is updated after a commit. If two hosts with copies of one key join at once, the key is free in the cache
//! for both. So each certificate key has an entry in the store that names its node. The commit that creates the entry
//! requires that it is absent. The commit that removes the key's last certificate from the node's record deletes the
//! entry. Each commit that changes this record requires it unchanged, so a node's entries change only together with its
//! record.

use std::collections::BTreeSet;

use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use crate::records::enrolled::{AgentRecord, CertificateRecord, HexBytes, public_key_entry};
use crate::registry::{Context, DecisionError, Draft};
use crate::store::{Entry, Op, Precondition, Snapshot, StoreError};

/// Adds the key entries to a commit that issues a certificate. The key of the new certificate then belongs to the node.
/// Keys of certificates that are not in `kept` are released. The commit must require that the record is still as in
/// `before`.
///
/// This is called before the certificate is issued: a decision that has to wait for a read is made again, and a
/// certificate that it had issued would be wasted.
///
/// # Errors
/// If the key belongs to another node, and [`DecisionError::NeedsRead`].
pub(super) fn update_keys(
    context: &Context<'_>,
    draft: &mut Draft,
    node: Uuid,
    before: Option<&AgentRecord>,
    kept: &[CertificateRecord],
    new: &HexBytes<32>,
) -> Result<(), DecisionError> {
    let at = public_key_entry(new);
    match context.entry(&at)? {
        None => {
            draft.add_precondition(Precondition::absent(at.clone()));
            draft.add_op(Op::Put { key: at.into(), value: node.to_string().into() });
        }
        Some(entry) if is_owned_by(entry, node) => {}
        Some(_) => return Err(key_in_use_error().into()),
    }
    let is_kept = |key: &HexBytes<32>| key == new || kept.iter().any(|kept| kept.spki_sha256 == *key);
    for at in before.map(|record| key_entries(record, is_kept)).unwrap_or_default() {
        if context.entry(&at)?.is_some_and(|entry| is_owned_by(entry, node)) {
            draft.add_op(Op::Delete { key: at.into() });
        }
    }
    Ok(())
}

/// Returns the operations that delete all key entries of a node whose record is deleted.
///
/// # Errors
/// Any error of the store.
pub(super) async fn remove_keys(snapshot: &dyn Snapshot, node: Uuid, record: &AgentRecord) -> Result<Vec<Op>, StoreError> {
    let mut ops = Vec::new();
    for at in key_entries(record, |_| false) {
        if snapshot.get(at.as_bytes()).await?.is_some_and(|entry| is_owned_by(&entry, node)) {
            ops.push(Op::Delete { key: at.into() });
        }
    }
    Ok(ops)
}

/// Builds the error for a key that belongs to another node.
pub(super) fn key_in_use_error() -> ApiError {
    let message = "the certificate request is refused: its key belongs to another node; create a new key";
    ApiError::new(ErrorType::CsrInvalid, message).field("csr")
}

fn key_entries(record: &AgentRecord, is_kept: impl Fn(&HexBytes<32>) -> bool) -> BTreeSet<String> {
    record.certificates.iter().map(|old| &old.spki_sha256).filter(|key| !is_kept(key)).map(public_key_entry).collect()
}

/// Returns whether an entry belongs to a node. A store of an older version may lack some entries.
fn is_owned_by(entry: &Entry, node: Uuid) -> bool {
    entry.value == node.to_string()
}
