//! Whose key it is, as the store has it (S25).
//!
//! What is known in memory follows a commit and comes after it, so of two hosts with a copy of one key who join at once both
//! would find it free. So each key of a certificate has an entry with its node, which is required absent by the commit that makes it,
//! and goes in the commit that takes the last of the key's certificates off its node's record. That record is a condition of each
//! commit that changes it, so a node's entries change with its record alone.

use std::collections::BTreeSet;

use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use crate::records::enrolled::{AgentRecord, CertificateRecord, Hex, key_key};
use crate::registry::{Context, Draft, Undecided};
use crate::store::{Entry, Op, Precondition, Snapshot, StoreError};

/// Adds to a commit that gives a node a certificate what becomes of its keys: that of the new certificate is its own, and those whose
/// certificates are not `kept` are nobody's. The commit must be conditioned on the record being as `before`.
///
/// This comes before the certificate is issued: a decision that has to wait for a read is made again, and a certificate that it had
/// issued would be thrown away.
///
/// # Errors
/// When the key is another node's; [`Undecided::Unread`].
pub(super) fn follow(
    context: &Context<'_>,
    draft: &mut Draft,
    node: Uuid,
    before: Option<&AgentRecord>,
    kept: &[CertificateRecord],
    new: &Hex<32>,
) -> Result<(), Undecided> {
    let at = key_key(new);
    match context.entry(&at)? {
        None => {
            draft.require(Precondition::absent(at.clone()));
            draft.entry(Op::Put { key: at.into(), value: node.to_string().into() });
        }
        Some(entry) if is_of(entry, node) => {}
        Some(_) => return Err(taken().into()),
    }
    let is_kept = |key: &Hex<32>| key == new || kept.iter().any(|kept| kept.spki_sha256 == *key);
    for at in before.map(|record| entries_of(record, is_kept)).unwrap_or_default() {
        if context.entry(&at)?.is_some_and(|entry| is_of(entry, node)) {
            draft.entry(Op::Delete { key: at.into() });
        }
    }
    Ok(())
}

/// What drops all entries of a node whose record goes.
///
/// # Errors
/// What the store says.
pub(super) async fn drop_all(snapshot: &dyn Snapshot, node: Uuid, record: &AgentRecord) -> Result<Vec<Op>, StoreError> {
    let mut ops = Vec::new();
    for at in entries_of(record, |_| false) {
        if snapshot.get(at.as_bytes()).await?.is_some_and(|entry| is_of(&entry, node)) {
            ops.push(Op::Delete { key: at.into() });
        }
    }
    Ok(ops)
}

/// The refusal of a key that another node has.
pub(super) fn taken() -> ApiError {
    let message = "the certificate request is refused: its key is another node's; make a new one";
    ApiError::new(ErrorType::CsrInvalid, message).field("csr")
}

fn entries_of(record: &AgentRecord, is_kept: impl Fn(&Hex<32>) -> bool) -> BTreeSet<String> {
    record.certificates.iter().map(|old| &old.spki_sha256).filter(|key| !is_kept(key)).map(key_key).collect()
}

/// Whether an entry is there and a node's. A store that was written before there were entries may lack some.
fn is_of(entry: &Entry, node: Uuid) -> bool {
    entry.value == node.to_string()
}
