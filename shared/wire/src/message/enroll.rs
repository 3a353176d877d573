//! Joining and renewing: the only messages that an agent sends without, or for, a certificate.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `POST /agent/v1/enroll`, without a client certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// `id.secret`, at most 128 bytes. Never logged.
    pub token: String,
    /// PKCS#10 in DER, at most 4 KiB. Only its public key is taken.
    pub csr: Vec<u8>,
    /// X25519 public key, made by apply; secrets are sealed to it.
    pub seal_key: [u8; 32],
    /// The name asked for; the controller refuses a taken one, and tells so only after a valid token.
    pub name: String,
}

/// What a joined agent keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollAnswer {
    /// The node's identity from now on, also in the certificate's SAN.
    pub node: Uuid,
    /// The fleet's name, as in `spiffe://<fleet>/…`.
    pub fleet: String,
    /// The new certificate first, then its issuers below the root, DER.
    pub chain: Vec<Vec<u8>>,
    /// The fleet root, DER; the agent has checked it against `--ca-hash` before it asked.
    pub root: Vec<u8>,
}

/// `POST /agent/v1/renew`, over mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// PKCS#10 in DER for the next key.
    pub csr: Vec<u8>,
}

/// The next certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewAnswer {
    /// The new certificate first, then its issuers below the root, DER.
    pub chain: Vec<Vec<u8>>,
}
