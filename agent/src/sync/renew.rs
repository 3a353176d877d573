//! Renewing: a new key and a new certificate at 70 to 90 % of the old one's life, spread by jitter.

use std::time::Duration;

use hyper::Request;
use hyper::body::Bytes;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use stemma_wire::client::Client;
use stemma_wire::message::enroll::{RenewAnswer, RenewRequest};
use stemma_wire::message::{decode, encode};

use super::backoff::within;
use super::join::{JoinError, sentence, signing_request, validity};
use super::state::Credentials;

/// Longer than any certificate of a node lives; what stands on disk may say anything.
const LONGEST_LIFE: u64 = 366 * 24 * 3600;

/// How long from now until the certificate should be renewed; nothing where that is past.
pub(super) fn due_in(validity: (u64, u64), now: u64) -> Duration {
    let life = validity.1.saturating_sub(validity.0).min(LONGEST_LIFE);
    let at = validity.0.saturating_add(life * 7 / 10);
    // A clock that is years behind must not put it off for years.
    Duration::from_secs(at.saturating_sub(now).min(life)) + within(Duration::from_secs(life / 5))
}

/// Asks for the next certificate under a new key.
///
/// # Errors
/// [`JoinError`].
pub(super) async fn renewed(client: &mut Client, present: &Credentials) -> Result<Credentials, JoinError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let body = Bytes::from(encode(&RenewRequest { csr: signing_request(&key)? }));
    let post = Request::post("/agent/v1/renew").body(body).expect("the path is a path");
    let answer = client.send(post).await?;
    if !answer.status().is_success() {
        return Err(JoinError::Refused { status: answer.status().as_u16(), message: sentence(answer.body()) });
    }
    let RenewAnswer { chain } = decode(answer.body())?;
    let leaf = chain.first().ok_or(JoinError::Odd("it holds no certificate"))?;
    let validity = validity(leaf).ok_or(JoinError::Odd("its certificate cannot be read"))?;
    Ok(Credentials { controllers: present.controllers.clone(), key: key.serialize_der(), chain, validity })
}

#[cfg(test)]
mod tests {
    use super::*;

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
