//! Mutual TLS 1.3, and the identity in a certificate.
//!
//! The certificate is the identity (docs/trust.md, rule 1), by the only URI in its subject alternative names. The
//! subject is never read. A certificate whose URI does not parse strictly is refused, and never treated as "no
//! restriction".
//!
//! # Certificates
//! All keys are P-256, except a signer's, which is Ed25519 and never used for TLS. Three issuers are below the fleet
//! root. Path validation requires a leaf's extended key usage in every issuer below the trust anchor. So for a client
//! that pins the root, only the admin issuer can issue certificates of servers, and only the signers issuer those of
//! signers:
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
//! The trust anchor of a listener is its issuer, not the root. This saves one signature check in each handshake, and a
//! certificate of another issuer has no valid path. Clients pin the root, by certificate or by the hash of its key. So
//! a server sends its own certificate, its issuer's and the root.
//!
//! Sessions cannot be resumed, and the server sends no session tickets. Tickets cost 45 µs in each handshake, and a
//! resumed session would bypass a revocation (S15). HTTP/2 is not offered (S48).

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
pub use identity::{FleetName, Identity, IdentityClass, NotAnIdentity, PrincipalName, SpiffeId};
pub use listen::{
    ListenerRole, RENEW_GRACE_SECONDS, ServerKey, TlsListener, peer_identity, server_config, verify_issued_identity,
};
pub use refusal::Refusal;

use certificate::ParsedCertificate;
pub(crate) use certificate::{check_signer, trust_anchors};

/// The only application protocol that a TLS handshake may select.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Maximum number of certificates in a chain that a peer sends: its own, its issuer's and the root.
pub const MAX_CHAIN_CERTIFICATES: usize = 3;

/// Maximum size of each certificate that a peer sends, in bytes of DER. The fleet's own usually have less than 700
/// bytes, but a controller's grows with each of its names. A huge RSA key and signature exceed the maximum.
pub const MAX_CERTIFICATE_BYTES: usize = 4096;

/// Returns the SHA-256 of a certificate's public key (the whole `SubjectPublicKeyInfo` in DER). For the certificate of
/// the fleet's root, this is the hash that an agent that joins gets as the argument `--ca-hash`.
///
/// # Errors
/// [`Refusal::BadEncoding`] if the bytes are not exactly one certificate in DER.
pub fn spki_sha256(certificate: &[u8]) -> Result<[u8; 32], Refusal> {
    ParsedCertificate::parse(certificate).map(|leaf| leaf.spki_sha256)
}

/// The time source of rustls, which uses a [`Clock`] of Stemma.
#[derive(Debug)]
struct ClockTime(Arc<dyn Clock>);

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.unix_seconds()))
    }
}

/// Converts seconds since 1970 to the time type of rustls.
fn unix_time(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

/// The signature schemes of a handshake: P-256 only.
const SIGNATURE_SCHEMES: [SignatureScheme; 1] = [SignatureScheme::ECDSA_NISTP256_SHA256];

/// The signature scheme of [`SIGNATURE_SCHEMES`], in the form that rustls needs to verify a signature.
static SIGNATURE_ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[webpki::ring::ECDSA_P256_SHA256])],
};

/// Defines the methods for the check of the peer's signature in a handshake, which `ServerCertVerifier` and
/// `ClientCertVerifier` of rustls have in common. The check fails for TLS 1.2.
macro_rules! impl_signature_checks {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &rustls::pki_types::CertificateDer<'_>,
            _signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            // TLS 1.2 is not compiled in, so rustls never calls this.
            Err(rustls::Error::General("only TLS 1.3 is supported".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls13_signature(message, certificate, signed, &super::SIGNATURE_ALGORITHMS)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            super::SIGNATURE_SCHEMES.to_vec()
        }
    };
}
use impl_signature_checks;

/// Returns the cryptography of the library `ring` for rustls. The cipher suite with AES-128 and SHA-256 is preferred,
/// because a handshake computes about thirty hashes, and processors have instructions for SHA-256 but not for SHA-384.
fn crypto_provider() -> Arc<CryptoProvider> {
    use rustls::crypto::ring::cipher_suite as suite;
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites =
        vec![suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384, suite::TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(provider)
}
