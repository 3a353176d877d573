//! Renews the certificate with a new key at 70 to 90 % of its lifetime. The time is random within this range, so that
//! the hosts of a fleet do not renew at the same time.

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

/// Maximum lifetime of a certificate when the time of its renewal is computed, in seconds. A longer lifetime counts as
/// this one. So a wrong stored validity does not delay the renewal for years.
const MAX_LIFETIME_S: u64 = 366 * 24 * 3600;

/// Wait after a failed renewal. [`FailedRenewals`] doubles it while the new certificates cannot be used.
pub(super) const RETRY_DELAY: Duration = Duration::from_mins(5);
/// Maximum wait after repeated renewals whose certificate could not be used.
const MAX_RETRY_DELAY: Duration = Duration::from_hours(4);
/// If the progress of the wall clock and that of the monotonic clock differ by this number of seconds or more, somebody
/// has set the wall clock.
const CLOCK_JUMP_S: u64 = 60;

/// Returns the wait until the certificate should be renewed. The wait ends at 70 % of the lifetime, plus a random part
/// of at most 20 %. After 70 %, only the random part is left. Without the random part, the wait is at most one
/// lifetime, also if the clock is behind. `validity` (start and end) and `now` are in seconds since 1970.
pub(super) fn renewal_delay(validity: (u64, u64), now: u64) -> Duration {
    let lifetime_s = validity.1.saturating_sub(validity.0).min(MAX_LIFETIME_S);
    let renewal_time_s = validity.0.saturating_add(lifetime_s * 7 / 10);
    // The wait is at most one lifetime, because a clock that is years behind must not delay the renewal for years.
    Duration::from_secs(renewal_time_s.saturating_sub(now).min(lifetime_s)) + random_below(Duration::from_secs(lifetime_s / 5))
}

/// The key for the next certificate, stored until that certificate has arrived.
///
/// The key is stored before the request is sent, because the response may be lost or the process may end. If the
/// request is repeated with the same key, the controller recognises the host for which it already issued a certificate.
/// This works even if the current certificate has expired.
pub(super) struct PendingKey(Vec<u8>);

impl PendingKey {
    /// Returns the stored key of an earlier request, or creates and stores a new key. If the new key cannot be stored,
    /// only this process uses it.
    ///
    /// # Errors
    /// [`JoinError`] if no key can be created.
    pub(super) fn load_or_create(host: &dyn Host, current_credentials: &TlsCredentials) -> Result<Self, JoinError> {
        let stored = state::pending_key(host).unwrap_or_else(|error| {
            warn!(error:% = error_chain(&error); "the key of an unfinished renewal cannot be read; a new one is created");
            None
        });
        // The stored key is not used if its certificate is already in use. In that case an earlier process ended before
        // it could delete the file.
        if let Some(key) = stored.filter(|key| *key != current_credentials.key && key_pair(key).is_some()) {
            return Ok(Self(key));
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?.serialize_der();
        if let Err(error) = state::store_pending_key(host, &key) {
            warn!(error:% = error_chain(&error); "the key of this renewal cannot be stored");
        }
        Ok(Self(key))
    }
}

/// The consecutive renewals whose certificate could not be used, for example because the clock of this host or of the
/// controller is wrong.
///
/// The controller issues at most 256 certificates in 31 days for a node. So the waits between renewals increase. After
/// somebody has set the clock, the wait no longer applies, because the clock may be correct now.
#[derive(Debug, Default)]
pub(super) struct FailedRenewals {
    count: u32,
    /// Time of the last renewal whose certificate could not be used, by the monotonic clock and by the wall clock in
    /// seconds since 1970. `None` if there was none since this process started or last renewed the certificate.
    last_attempt: Option<(Instant, u64)>,
}

impl FailedRenewals {
    /// Records one more failure. Returns the time at which the next renewal is due. `now_s` is the time of the wall
    /// clock in seconds since 1970.
    pub(super) fn add(&mut self, now_s: u64) -> Instant {
        self.count = self.count.saturating_add(1);
        self.last_attempt = Some((Instant::now(), now_s));
        Instant::now() + self.retry_delay()
    }

    /// Returns whether to wait, because a renewal now would probably fail like the last one. True if the wait after the
    /// last failure is not over and nobody has set the clock since then.
    pub(super) fn should_wait(&self, now_s: u64) -> bool {
        self.last_attempt.is_some_and(|(last_attempt, last_attempt_s)| {
            let elapsed = last_attempt.elapsed();
            elapsed < self.retry_delay() && now_s.abs_diff(last_attempt_s.saturating_add(elapsed.as_secs())) < CLOCK_JUMP_S
        })
    }

    /// Returns the wait after the last failure: [`RETRY_DELAY`], doubled by each further failure, up to
    /// [`MAX_RETRY_DELAY`].
    fn retry_delay(&self) -> Duration {
        RETRY_DELAY.saturating_mul(1 << self.count.saturating_sub(1).min(16)).min(MAX_RETRY_DELAY)
    }
}

/// Parses a private key, PKCS#8 DER. Returns `None` if the key is damaged.
fn key_pair(der: &[u8]) -> Option<KeyPair> {
    KeyPair::try_from(der).ok()
}

/// Requests a new certificate for this key, in the newest wire version that the controller supports. Returns the new
/// credentials, with the given addresses of controllers. The caller has to check the certificate.
///
/// # Errors
/// [`JoinError`] if there is no response, the controller refuses, or the response cannot be read.
pub(super) async fn renew(
    mut client: Client,
    newest: WireVersion,
    controllers: Vec<String>,
    PendingKey(key): PendingKey,
) -> Result<TlsCredentials, JoinError> {
    let key = KeyPair::try_from(key.as_slice())?;
    let request = RenewRequest { csr: signing_request(&key)? };
    let (version, response) = post(&mut client, Endpoint::Renew, newest, &request).await?;
    if !response.status().is_success() {
        return Err(JoinError::refused(response.status(), response.body()));
    }
    let (_, RenewResponse { chain }) = decode_up_to(version, response.body())?;
    let leaf = chain.first().ok_or(JoinError::Unexpected("it contains no certificate"))?;
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
        let current_credentials = credentials(vec![1]);
        let PendingKey(first) = PendingKey::load_or_create(&host, &current_credentials).unwrap();
        let PendingKey(second) = PendingKey::load_or_create(&host, &current_credentials).unwrap();
        assert!(first == second, "the stored key is used again");
        let renewed = credentials(first.clone());
        renewed.store(&host).unwrap();
        let PendingKey(next) = PendingKey::load_or_create(&host, &renewed).unwrap();
        assert!(next != first, "a key that is in use and was not deleted is not used again");
        assert!(state::pending_key(&host).unwrap() == Some(next));
        state::delete_pending_key(&host).unwrap();
        assert!(state::pending_key(&host).unwrap().is_none());
        state::delete_pending_key(&host).unwrap();
        state::store_pending_key(&host, b"no key").unwrap();
        assert!(PendingKey::load_or_create(&host, &renewed).is_ok(), "a damaged key is replaced");
        host.set_full(true);
        assert!(PendingKey::load_or_create(&host, &renewed).is_ok(), "a key that cannot be stored is used");
    }

    /// The wait is limited if the clock or the stored validity is wrong. After 70 % of the lifetime, the wait is only a
    /// random time of at most 20 % of the lifetime.
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
