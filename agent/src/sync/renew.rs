//! Renews the certificate with a new key at 70 to 90 % of its lifetime. Jitter spreads the renewals of a fleet.

use std::time::Duration;

use log::warn;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use stemma_wire::client::Client;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::log::error_chain;
use stemma_wire::message::enroll::{RenewRequest, RenewResponse};
use stemma_wire::message::{WireVersion, decode_up_to};

use tokio::time::Instant;

use super::backoff::random_below;
use super::join::{JoinError, signing_request, validity};
use super::post::post;
use super::state::{self, TlsCredentials};
use crate::host::Host;

/// Upper bound of a certificate's lifetime for the time of its renewal, in seconds. A wrong stored validity must not
/// delay the renewal for years.
const MAX_LIFETIME_S: u64 = 366 * 24 * 3600;

/// Wait after a renewal failed.
pub(super) const RETRY_DELAY: Duration = Duration::from_mins(5);
/// Maximum wait after renewals whose certificate could not be used.
const MAX_RETRY_DELAY: Duration = Duration::from_hours(4);
/// If the clock has advanced by this many seconds more or less than the monotonic clock, somebody has set it.
const CLOCK_JUMP_S: u64 = 60;

/// Returns the time until the certificate should be renewed, or zero if it is overdue.
pub(super) fn renewal_delay(validity: (u64, u64), now: u64) -> Duration {
    let life = validity.1.saturating_sub(validity.0).min(MAX_LIFETIME_S);
    let at = validity.0.saturating_add(life * 7 / 10);
    // The wait is at most one lifetime, because a clock that is years behind must not delay the renewal for years.
    Duration::from_secs(at.saturating_sub(now).min(life)) + random_below(Duration::from_secs(life / 5))
}

/// The key for the next certificate, stored until that certificate has arrived.
///
/// It is stored before the request is sent. The response, or the whole process, may be lost. If the request is repeated
/// with the same key, the controller recognises the host for which it already issued a certificate, even if the present
/// one has expired (F21).
pub(super) struct PendingKey(Vec<u8>);

impl PendingKey {
    /// Returns the stored key of an earlier request, or a new one. A key that cannot be stored is used by this process
    /// only.
    ///
    /// # Errors
    /// [`JoinError`] if no key can be created.
    pub(super) fn load_or_create(host: &dyn Host, present: &TlsCredentials) -> Result<Self, JoinError> {
        let stored = state::pending_key(host).unwrap_or_else(|error| {
            warn!(error:% = error_chain(&error); "the key of an unfinished renewal cannot be read; a new one is created");
            None
        });
        // A key whose certificate is already in use is not pending. Its file exists because an earlier process ended
        // before it deleted the file.
        if let Some(key) = stored.filter(|key| *key != present.key && key_pair(key).is_some()) {
            return Ok(Self(key));
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?.serialize_der();
        if let Err(error) = state::store_pending_key(host, &key) {
            warn!(error:% = error_chain(&error); "the key of this renewal cannot be stored");
        }
        Ok(Self(key))
    }
}

/// Consecutive renewals whose certificate could not be used, as happens while this clock or the controller's is wrong.
///
/// Each renewal counts against the limit of the node (256 certificates in 31 days). So the waits between renewals
/// increase. After somebody has set the clock, the next attempt is immediate, because the clock may be right now.
#[derive(Debug, Default)]
pub(super) struct FailedRenewals {
    count: u32,
    /// Time of the last attempt: monotonic, and by the clock in seconds since 1970.
    last_attempt: Option<(Instant, u64)>,
}

impl FailedRenewals {
    /// Records one more failure. Returns when the next renewal is due.
    pub(super) fn add(&mut self, now_s: u64) -> Instant {
        self.count = self.count.saturating_add(1);
        self.last_attempt = Some((Instant::now(), now_s));
        Instant::now() + self.retry_delay()
    }

    /// Returns whether a renewal now would probably fail like the last one.
    pub(super) fn should_wait(&self, now_s: u64) -> bool {
        self.last_attempt.is_some_and(|(at, asked_s)| {
            let elapsed = at.elapsed();
            elapsed < self.retry_delay() && now_s.abs_diff(asked_s.saturating_add(elapsed.as_secs())) < CLOCK_JUMP_S
        })
    }

    /// Returns the wait after the last failure: [`RETRY_DELAY`], doubled by each further failure, up to the maximum.
    fn retry_delay(&self) -> Duration {
        RETRY_DELAY.saturating_mul(1 << self.count.saturating_sub(1).min(16)).min(MAX_RETRY_DELAY)
    }
}

fn key_pair(der: &[u8]) -> Option<KeyPair> {
    KeyPair::try_from(der).ok()
}

/// Requests the next certificate with this key, in the newest version that the controller supports.
///
/// # Errors
/// [`JoinError`].
pub(super) async fn renew(
    mut client: Client,
    newest: WireVersion,
    controllers: Vec<String>,
    PendingKey(key): PendingKey,
) -> Result<TlsCredentials, JoinError> {
    let key = KeyPair::try_from(key.as_slice())?;
    let request = RenewRequest { csr: signing_request(&key)? };
    let (version, answer) = post(&mut client, Endpoint::Renew, newest, &request).await?;
    if !answer.status().is_success() {
        return Err(JoinError::refused(answer.status(), answer.body()));
    }
    let (_, RenewResponse { chain }) = decode_up_to(version, answer.body())?;
    let leaf = chain.first().ok_or(JoinError::Unexpected("it holds no certificate"))?;
    let validity = validity(leaf).ok_or(JoinError::Unexpected("its certificate cannot be read"))?;
    Ok(TlsCredentials { controllers, key: key.serialize_der(), chain, validity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    fn credentials(key: Vec<u8>) -> TlsCredentials {
        TlsCredentials { controllers: vec!["https://c:1".into()], key, chain: vec![vec![1]], validity: (1, 2) }
    }

    #[test]
    fn f21_renewal_reuses_key_until_certificate_arrives() {
        let host = MemoryHost::new();
        let present = credentials(vec![1]);
        let PendingKey(first) = PendingKey::load_or_create(&host, &present).unwrap();
        let PendingKey(again) = PendingKey::load_or_create(&host, &present).unwrap();
        assert!(first == again, "also by another process");
        let came = credentials(first.clone());
        came.store(&host).unwrap();
        let PendingKey(next) = PendingKey::load_or_create(&host, &came).unwrap();
        assert!(next != first, "killed before it was taken away, it is not asked with again");
        assert!(state::pending_key(&host).unwrap() == Some(next));
        state::delete_pending_key(&host).unwrap();
        assert!(state::pending_key(&host).unwrap().is_none());
        state::delete_pending_key(&host).unwrap();
        state::store_pending_key(&host, b"no key").unwrap();
        assert!(PendingKey::load_or_create(&host, &came).is_ok(), "a damaged one costs nothing");
        host.set_full(true);
        assert!(PendingKey::load_or_create(&host, &came).is_ok(), "nor does a full disk");
    }

    #[test]
    fn renewal_delay_is_70_to_90_percent_of_lifetime() {
        for _ in 0..100 {
            let due = renewal_delay((1000, 2000), 1000).as_secs_f64();
            assert!((700.0..=900.0).contains(&due), "{due}");
        }
        assert!(
            renewal_delay((1_800_000_000, 1_800_086_400), 1_500_000_000) <= Duration::from_hours(29),
            "a clock ten years behind"
        );
        assert!(renewal_delay((0, u64::MAX), 0) <= Duration::from_hours(2 * 366 * 24));
        assert!(renewal_delay((1000, 2000), 5000) <= Duration::from_secs(200));
    }
}
