//! Limits on the memory that all clients together use in this process: bytes of bodies and responses.
//!
//! A share is acquired before a response is built or a body is read. The share of a response is released when its last
//! bytes went to the connection, and the share of a body when its request was answered. [`Shares`] in core decides how
//! much each principal may have, and who is next.
//!
//! | what | limit for all | held while |
//! |---|---|---|
//! | small bodies that arrive | 32 MiB | they are read; a slow one yields to a waiting principal that holds less |
//! | large bodies that arrive | 64 MiB | likewise |
//! | small bodies that are decided | 32 MiB of memory ([estimated](stemma_core::json::parse_memory_bytes)) | they are decided |
//! | large bodies that are decided, and small ones that need more than 8 MiB | 64 MiB of memory | likewise |
//! | file bodies | 192 MiB | they are read and stored; likewise |
//! | responses | 64 MiB | they wait for their clients |

use std::time::Duration;

use stemma_core::json;
use stemma_core::shares::Shares;
use stemma_wire::error::{ApiError, ErrorType};

use crate::registry::Requester;
use crate::registry::budget::{Share, SharedBudget};

const MIB: u64 = 1024 * 1024;
/// Maximum size of a small body, in bytes.
const MAX_SMALL_BODY_BYTES: usize = 64 * 1024;
/// Maximum memory of a parsed body that counts as small, in bytes. It is the part of `deciding_small` that one
/// principal may have. A body of 64 KiB may need 40 MiB, and such a body would never fit into that budget.
const MAX_SMALL_PARSED_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of a response that needs no share of the budget, in bytes. It is the size of one frame.
pub(crate) const MAX_FREE_RESPONSE_BYTES: usize = 16 * 1024;
/// Time after which a small body that still arrives can lose its share to another principal. It is the time that the
/// largest small body needs at the lowest accepted rate, plus a second.
const SMALL_PREEMPTIBLE_AFTER: Duration = Duration::from_secs(5);
/// Maximum time that a request waits for a share.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The memory budgets of a listener.
#[derive(Clone)]
pub struct Budgets {
    /// The budget for the bytes of large bodies that are not files, while they arrive.
    incoming: SharedBudget,
    /// The budget for the bytes of small bodies while they arrive.
    incoming_small: SharedBudget,
    /// The budget for the memory of parsed requests, until they are decided, if the body or its memory is large.
    deciding: SharedBudget,
    /// The budget for the memory of parsed requests, until they are decided, if body and memory are small.
    deciding_small: SharedBudget,
    /// The budget for the bytes of large files, until they are stored. A small file uses `incoming_small`.
    blobs: SharedBudget,
    /// The budget for the bytes of responses that their clients have not read yet.
    responses: SharedBudget,
}

impl Default for Budgets {
    /// Returns the budgets of a listener. A duration in a budget is the time after which a body that still arrives can
    /// lose its share to another principal.
    fn default() -> Self {
        // Bodies are short-lived, so the principals of one cluster may use a whole budget of bodies. A response lasts until
        // its client has read it, so one cluster may use only a half of the budget of responses (`Shares::from_total`).
        let small = Shares { max_per_cluster: 32 * MIB, ..Shares::from_total(32 * MIB) };
        // Admins can always send a body of the maximum size (8 MiB, or 64 MiB for a file), whatever other callers hold. For
        // its decision, 20 MiB of memory are reserved. A body with very many values needs more and may have to wait.
        let incoming =
            Shares { total: 64 * MIB, max_per_principal: 16 * MIB, max_per_cluster: 64 * MIB, reserved_for_admins: 8 * MIB };
        let deciding =
            Shares { total: 64 * MIB, max_per_principal: 16 * MIB, max_per_cluster: 64 * MIB, reserved_for_admins: 20 * MIB };
        let blobs =
            Shares { total: 192 * MIB, max_per_principal: 64 * MIB, max_per_cluster: 192 * MIB, reserved_for_admins: 64 * MIB };
        Self {
            incoming: SharedBudget::with_yielding(incoming, Some(Duration::from_secs(10))),
            incoming_small: SharedBudget::with_yielding(small, Some(SMALL_PREEMPTIBLE_AFTER)),
            deciding: SharedBudget::new(deciding),
            deciding_small: SharedBudget::new(small),
            blobs: SharedBudget::with_yielding(blobs, Some(Duration::from_mins(1))),
            responses: SharedBudget::new(Shares::from_total(64 * MIB)),
        }
    }
}

/// Maximum memory of a parsed body, in bytes, as [`parse_memory_bytes`](stemma_core::json::parse_memory_bytes)
/// estimates it. It is less than the 44 MiB of `deciding` that are not reserved for admins. So one body of this size
/// fits if its principal uses nothing of `deciding`, and other principals use at most 4 MiB.
const MAX_PARSED_BYTES: usize = 40 * 1024 * 1024;

impl Budgets {
    /// Waits for the share of a body of this size that arrives. Returns `None` for an empty body, which needs no share.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if no share is free within [`MAX_WAIT`], or if too many requests of the caller wait.
    pub(crate) async fn admit_body(&self, requester: &Requester, bytes: usize, is_blob: bool) -> Result<Option<Share>, ApiError> {
        let budget = match bytes {
            0 => return Ok(None),
            1..=MAX_SMALL_BODY_BYTES => &self.incoming_small,
            _ if is_blob => &self.blobs,
            _ => &self.incoming,
        };
        share_or_busy(budget.take(requester, bytes as u64, MAX_WAIT).await).map(Some)
    }

    /// Waits for the share of a request while its body is parsed and the request is decided. Returns `None` for an
    /// empty body, which needs no share.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if no share is free within [`MAX_WAIT`], or if too many requests of the caller wait.
    /// [`ErrorType::RequestTooLarge`] if the parsed body would need more memory than [`MAX_PARSED_BYTES`].
    pub(crate) async fn admit_decision(&self, requester: &Requester, body: &[u8]) -> Result<Option<Share>, ApiError> {
        if body.is_empty() {
            return Ok(None);
        }
        let memory_bytes = json::parse_memory_bytes(body);
        if memory_bytes > MAX_PARSED_BYTES {
            let message = format!(
                "the body has too many values: parsed, its {} bytes would need more than the {} MiB of memory that one body may use; nothing was changed",
                body.len(),
                MAX_PARSED_BYTES as u64 / MIB
            );
            return Err(ApiError::new(ErrorType::RequestTooLarge, message).detail("send it in several requests"));
        }
        let is_small = body.len() <= MAX_SMALL_BODY_BYTES && memory_bytes <= MAX_SMALL_PARSED_BYTES;
        let budget = if is_small { &self.deciding_small } else { &self.deciding };
        share_or_busy(budget.take(requester, memory_bytes as u64, MAX_WAIT).await).map(Some)
    }

    /// Refuses a write of a caller that does not read its earlier responses. The check is before the write, because the
    /// response of a completed write is always sent.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if the unread responses of the caller use all that it may have.
    pub(crate) fn check_reads_responses(&self, requester: &Requester) -> Result<(), ApiError> {
        if self.responses.has_headroom(requester) {
            return Ok(());
        }
        let message = "you have too many responses that you have not read; nothing was changed, read them and try again";
        Err(ApiError::new(ErrorType::ServerBusy, message))
    }

    /// Returns the share of a response, which counts until its client has read it. Returns `None` for a small response,
    /// which needs no share. The response of a completed write always gets a share, because the client must learn what
    /// was written.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if clients hold too many responses that they do not read.
    pub(crate) fn admit_response(&self, requester: &Requester, bytes: usize, is_write: bool) -> Result<Option<Share>, ApiError> {
        if bytes <= MAX_FREE_RESPONSE_BYTES {
            return Ok(None);
        }
        if is_write {
            return Ok(Some(self.responses.take_unchecked(requester, bytes as u64)));
        }
        let message = "too many responses wait for their clients; read the pending ones, or request less, and try again";
        let share = self.responses.try_take(requester, bytes as u64);
        share.map(Some).ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
    }
}

/// Returns the share, or the error [`ErrorType::ServerBusy`] if there is none.
fn share_or_busy(share: Option<Share>) -> Result<Share, ApiError> {
    let message = "too many requests with a body are running; nothing was changed, try again";
    share.ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::registry::testing::viewer;

    /// In this test, two callers use 40 of the 44 MiB that the budget for large bodies does not reserve for admins.
    #[tokio::test(start_paused = true)]
    async fn x03_f05_admit_decision_limits_large_bodies_but_not_small() {
        let budgets = Budgets::default();
        let [caller_a, caller_b, caller_c, admin] =
            [viewer("one"), viewer("other"), viewer("third"), Requester::from_listener("root")];
        let large = vec![b'x'; 20 << 20];
        let (first, second) =
            (budgets.admit_decision(&caller_a, &large).await.unwrap(), budgets.admit_decision(&caller_b, &large).await.unwrap());
        assert!(budgets.admit_decision(&caller_c, &large).await.is_err());
        assert!(budgets.admit_decision(&caller_c, b"{}").await.is_ok());
        assert!(budgets.admit_decision(&admin, &large).await.is_ok(), "a part of the budget is reserved for admins");
        drop((first, second));
        assert!(budgets.admit_decision(&caller_c, &vec![b'x'; MAX_PARSED_BYTES]).await.is_ok());
        let refusal = budgets.admit_decision(&caller_c, &vec![b'x'; MAX_PARSED_BYTES + 1]).await.map(drop).unwrap_err();
        assert_eq!(refusal.kind, ErrorType::RequestTooLarge);
    }

    /// A body of 60,000 opening braces needs 38 MB of memory. In an earlier version it waited for the budget of small
    /// bodies, which could never hold it, and small bodies of all other callers waited behind it.
    #[tokio::test(start_paused = true)]
    async fn x03_admit_decision_serves_small_body_when_memory_is_large() {
        let (budgets, start) = (Budgets::default(), Instant::now());
        let nested = budgets.admit_decision(&viewer("nested"), &vec![b'{'; 60_000]).await.unwrap();
        assert!(nested.is_some());
        assert!(budgets.admit_decision(&viewer("honest"), b"{}").await.unwrap().is_some());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    /// Earlier, four principals with 128 incomplete bodies of 64 KiB each made every small write wait for 15 s.
    #[tokio::test(start_paused = true)]
    async fn x03_admit_body_preempts_slow_small_body_for_other_caller() {
        let budgets = Budgets::default();
        let start = Instant::now();
        for name in ["one", "two", "three", "four"] {
            for _ in 0..128 {
                let (budgets, caller) = (budgets.clone(), viewer(name));
                tokio::spawn(async move {
                    if let Ok(Some(share)) = budgets.admit_body(&caller, MAX_SMALL_BODY_BYTES, false).await {
                        let _result = timeout(Duration::from_secs(15), share.wait_for_yield()).await;
                    }
                });
            }
        }
        // Waits until the bodies of the four principals use the whole budget.
        while budgets.incoming_small.try_take(&viewer("honest"), 1).is_some() {
            tokio::task::yield_now().await;
        }
        assert!(budgets.admit_body(&viewer("honest"), 1000, false).await.unwrap().is_some());
        assert!(start.elapsed() < Duration::from_secs(7), "it waited for {:?}", start.elapsed());
    }

    #[test]
    fn budgets_refuse_only_caller_when_responses_are_unread() {
        let budgets = Budgets::default();
        let (slow, other) = (viewer("slow"), viewer("other"));
        let six_mib = 6 << 20;
        let mut shares: Vec<_> = (0..2).map(|_| budgets.admit_response(&slow, six_mib, false).unwrap()).collect();
        assert_eq!(budgets.admit_response(&slow, six_mib, false).map(drop).unwrap_err().kind, ErrorType::ServerBusy);
        // A small response needs no share.
        assert!(budgets.admit_response(&slow, MAX_FREE_RESPONSE_BYTES, false).unwrap().is_none());
        assert!(budgets.check_reads_responses(&slow).is_ok());
        // The response of a write always gets a share. With it, the caller exceeds what it may have.
        shares.push(budgets.admit_response(&slow, six_mib, true).unwrap());
        assert_eq!(budgets.check_reads_responses(&slow).unwrap_err().kind, ErrorType::ServerBusy);
        assert!(budgets.check_reads_responses(&other).is_ok());
        assert!(budgets.admit_response(&other, six_mib, false).is_ok());
    }
}
