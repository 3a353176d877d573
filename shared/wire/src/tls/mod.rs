//! Mutual TLS 1.3, and who a certificate says that its holder is.
//!
//! Identity is the certificate (docs/trust.md, rule 1): the one URI in its subject alternative names. The subject is never
//! looked at, and a certificate of ours whose URI does not parse strictly is refused, never taken for "no restriction".
//!
//! # What certificates look like
//! All keys are P-256, but for a signer's, which is Ed25519 and never serves TLS. Under one fleet root stand three issuers; each has
//! an extended key usage of its own, and as path validation wants a leaf's usage in every issuer above it, no issuer
//! can make another's leaves:
//!
//! | certificate | issued by | CA, path length | extended key usage | SAN |
//! |---|---|---|---|---|
//! | fleet root | itself | yes, 1 | none | none |
//! | agents issuer | root | yes, 0 | clientAuth | none |
//! | admin issuer | root | yes, 0 | clientAuth, serverAuth | none |
//! | signers issuer | root | yes, 0 | codeSigning | none |
//! | node | agents issuer | no | clientAuth | `spiffe://<fleet>/node/<uuid>` |
//! | first admin | admin issuer | no | clientAuth | `spiffe://<fleet>/admin/<name>` |
//! | principal | admin issuer | no | clientAuth | `spiffe://<fleet>/principal/<name>` |
//! | controller | admin issuer | no | serverAuth | `spiffe://<fleet>/controller/<uuid>`, DNS names, IP addresses |
//! | signer | signers issuer | no | codeSigning | `spiffe://<fleet>/signer/<uuid>` |
//!
//! A listener has the issuer that it trusts as its trust anchor, not the root, so a handshake costs one signature check less and
//! another issuer's leaf finds no path. Clients pin the root, by certificate or by the hash of its key, so a server sends
//! leaf, issuer and root.
//!
//! There is no resumption and there are no tickets: they cost 45 µs a handshake, and a resumed session would pass by a
//! revocation (S15). HTTP/2 is not offered (S48).

mod certificate;
mod connect;
mod identity;
mod listen;
mod refusal;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

use crate::clock::Clock;

pub use connect::{ClientIdentity, Pin, client_config, server_identity};
pub use identity::{Class, Fleet, Identity, Name, NotAnIdentity, SpiffeId};
pub use listen::{Accepts, Listener, RENEW_GRACE_SECONDS, ServerKey, given_identity, peer_identity, server_config};
pub use refusal::Refusal;

use certificate::Leaf;
pub(crate) use certificate::{anchors, check_signer};

/// The only protocol that a handshake may agree on.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The most certificates that a peer may send: leaf, issuer, root (S09).
pub const MAX_CHAIN: usize = 3;

/// The largest certificate taken, in bytes of DER. Ours are below 700; 16k RSA does not fit (S09).
pub const MAX_CERTIFICATE_BYTES: usize = 4096;

/// SHA-256 of a certificate's whole `SubjectPublicKeyInfo`, in DER: what `--ca-hash` pins.
///
/// # Errors
/// [`Refusal::BadEncoding`] when it is no certificate.
pub fn spki_sha256(certificate: &[u8]) -> Result<[u8; 32], Refusal> {
    Leaf::parse(certificate).map(|leaf| leaf.spki_sha256)
}

/// Rustls's time, from ours.
#[derive(Debug)]
struct ClockTime(Arc<dyn Clock>);

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.unix_seconds()))
    }
}

fn unix_time(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

/// How a peer may sign a handshake: P-256 alone.
const SCHEMES: [SignatureScheme; 1] = [SignatureScheme::ECDSA_NISTP256_SHA256];

/// The same, as rustls's check of a signature wants it.
static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[webpki::ring::ECDSA_P256_SHA256])],
};

/// What the verifiers of both ends say of a handshake's signature. rustls asks it of two traits, in the same three methods.
macro_rules! checks_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &rustls::pki_types::CertificateDer<'_>,
            _signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            // Not built in, so never asked.
            Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls13_signature(message, certificate, signed, &super::ALGORITHMS)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            super::SCHEMES.to_vec()
        }
    };
}
use checks_signatures;

/// ring, with AES-128 and SHA-256 first: a handshake hashes some thirty times, and SHA-256 is in the processor where SHA-384 is not.
fn provider() -> Arc<CryptoProvider> {
    use rustls::crypto::ring::cipher_suite as suite;
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites =
        vec![suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384, suite::TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(provider)
}
