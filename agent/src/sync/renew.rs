//! Renewing: a new key and a new certificate at 70 to 90 % of the old one's life, spread by jitter.

use std::time::Duration;

use log::warn;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use stemma_wire::client::Client;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::log::chain;
use stemma_wire::message::enroll::{RenewAnswer, RenewRequest};
use stemma_wire::message::{WireVersion, decode_up_to};

use tokio::time::Instant;

use super::backoff::within;
use super::join::{JoinError, signing_request, validity};
use super::post::post;
use super::state::{self, Credentials};
use crate::host::Host;

/// Longer than any certificate of a node lives; what stands on disk may say anything.
const LONGEST_LIFE: u64 = 366 * 24 * 3600;

/// After a renewal that failed.
pub(super) const AGAIN: Duration = Duration::from_mins(5);
/// At most, after one that gave a certificate which could not be kept.
const AGAIN_AT_MOST: Duration = Duration::from_hours(4);
/// A clock that moves by so much beside the time that goes by was set.
const SET_S: u64 = 60;

/// How long from now until the certificate should be renewed; nothing where that is past.
pub(super) fn due_in(validity: (u64, u64), now: u64) -> Duration {
    let life = validity.1.saturating_sub(validity.0).min(LONGEST_LIFE);
    let at = validity.0.saturating_add(life * 7 / 10);
    // A clock that is years behind must not put it off for years.
    Duration::from_secs(at.saturating_sub(now).min(life)) + within(Duration::from_secs(life / 5))
}

/// The key that the next certificate is asked for with, until it has come.
///
/// It is on disk before it is asked with. An answer may be lost, also with the process: asked again with the same key, the
/// controller knows the host that it has made a certificate for already, even when the present one has expired (F21).
pub(super) struct PendingKey(Vec<u8>);

impl PendingKey {
    /// The one that was asked with before, or a new one. One that cannot be kept serves this process.
    ///
    /// # Errors
    /// [`JoinError`] when no key can be made.
    pub(super) fn take_up(host: &dyn Host, present: &Credentials) -> Result<Self, JoinError> {
        let kept = state::pending_key(host).unwrap_or_else(|error| {
            warn!(error:% = chain(&error); "the key of a renewal that was begun cannot be read; another is made");
            None
        });
        // What has come is pending no more: a process ended between the two.
        if let Some(key) = kept.filter(|key| *key != present.key && key_pair(key).is_some()) {
            return Ok(Self(key));
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?.serialize_der();
        if let Err(error) = state::keep_pending_key(host, &key) {
            warn!(error:% = chain(&error); "the key of this renewal cannot be kept");
        }
        Ok(Self(key))
    }
}

/// Renewals in a row that gave a certificate which could not be kept, as they do while this clock or the controller's is wrong.
///
/// Each counts among those of the node, which is given 256 in 31 days. So they are asked for ever more seldom; but at once when this
/// clock was set, since it may be right now.
#[derive(Debug, Default)]
pub(super) struct InVain {
    in_a_row: u32,
    /// When it was asked for last, by the time that goes by and by the clock, in seconds since 1970.
    asked: Option<(Instant, u64)>,
}

impl InVain {
    /// One more; when the next is due.
    pub(super) fn add(&mut self, now_s: u64) -> Instant {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.asked = Some((Instant::now(), now_s));
        Instant::now() + self.wait()
    }

    /// Whether one that is asked for now would be as much in vain as the last.
    pub(super) fn holds_back(&self, now_s: u64) -> bool {
        self.asked.is_some_and(|(at, asked_s)| {
            let went_by = at.elapsed();
            went_by < self.wait() && now_s.abs_diff(asked_s.saturating_add(went_by.as_secs())) < SET_S
        })
    }

    fn wait(&self) -> Duration {
        AGAIN.saturating_mul(1 << self.in_a_row.saturating_sub(1).min(16)).min(AGAIN_AT_MOST)
    }
}

fn key_pair(der: &[u8]) -> Option<KeyPair> {
    KeyPair::try_from(der).ok()
}

/// Asks for the next certificate with a key, in the newest version that the controller reads.
///
/// # Errors
/// [`JoinError`].
pub(super) async fn renewed(
    mut client: Client,
    newest: WireVersion,
    controllers: Vec<String>,
    PendingKey(key): PendingKey,
) -> Result<Credentials, JoinError> {
    let key = KeyPair::try_from(key.as_slice())?;
    let request = RenewRequest { csr: signing_request(&key)? };
    let (version, answer) = post(&mut client, Endpoint::Renew, newest, &request).await?;
    if !answer.status().is_success() {
        return Err(JoinError::refused(answer.status(), answer.body()));
    }
    let (_, RenewAnswer { chain }) = decode_up_to(version, answer.body())?;
    let leaf = chain.first().ok_or(JoinError::Unexpected("it holds no certificate"))?;
    let validity = validity(leaf).ok_or(JoinError::Unexpected("its certificate cannot be read"))?;
    Ok(Credentials { controllers, key: key.serialize_der(), chain, validity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    fn credentials(key: Vec<u8>) -> Credentials {
        Credentials { controllers: vec!["https://c:1".into()], key, chain: vec![vec![1]], validity: (1, 2) }
    }

    #[test]
    fn f21_a_renewal_is_asked_for_with_the_same_key_until_its_certificate_has_come() {
        let host = MemoryHost::new();
        let present = credentials(vec![1]);
        let PendingKey(first) = PendingKey::take_up(&host, &present).unwrap();
        let PendingKey(again) = PendingKey::take_up(&host, &present).unwrap();
        assert!(first == again, "also by another process");
        let came = credentials(first.clone());
        came.store(&host).unwrap();
        let PendingKey(next) = PendingKey::take_up(&host, &came).unwrap();
        assert!(next != first, "killed before it was taken away, it is not asked with again");
        assert!(state::pending_key(&host).unwrap() == Some(next));
        state::drop_pending_key(&host).unwrap();
        assert!(state::pending_key(&host).unwrap().is_none());
        state::drop_pending_key(&host).unwrap();
        state::keep_pending_key(&host, b"no key").unwrap();
        assert!(PendingKey::take_up(&host, &came).is_ok(), "a damaged one costs nothing");
        host.fill(true);
        assert!(PendingKey::take_up(&host, &came).is_ok(), "nor does a full disk");
    }

    #[test]
    fn a_certificate_is_renewed_between_70_and_90_percent_of_its_life() {
        for _ in 0..100 {
            let due = due_in((1000, 2000), 1000).as_secs_f64();
            assert!((700.0..=900.0).contains(&due), "{due}");
        }
        assert!(
            due_in((1_800_000_000, 1_800_086_400), 1_500_000_000) <= Duration::from_hours(29),
            "a clock ten years behind"
        );
        assert!(due_in((0, u64::MAX), 0) <= Duration::from_hours(2 * 366 * 24));
        assert!(due_in((1000, 2000), 5000) <= Duration::from_secs(200));
    }
}
