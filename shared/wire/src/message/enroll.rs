//! Joining and renewing: the only messages that an agent sends without, or for, a certificate.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::bounded;

/// `POST /agent/v1/enroll`, without a client certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// `id.secret`, at most 128 bytes. Never logged.
    #[serde(deserialize_with = "bounded::text::<_, 128>")]
    pub token: String,
    /// PKCS#10 in DER, at most 4 KiB. Only its public key is taken.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub csr: Vec<u8>,
    /// X25519 public key, made by apply; secrets are sealed to it.
    pub seal_key: [u8; 32],
    /// The name asked for; the controller refuses a taken one, and tells so only after a valid token.
    #[serde(deserialize_with = "bounded::text::<_, 255>")]
    pub name: String,
}

/// What a joined agent keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollAnswer {
    /// The node's identity from now on, also in the certificate's SAN.
    pub node: Uuid,
    /// The fleet's name, as in `spiffe://<fleet>/…`.
    #[serde(deserialize_with = "bounded::text::<_, 255>")]
    pub fleet: String,
    /// The new certificate first, then its issuers below the root, DER.
    #[serde(deserialize_with = "bounded::chain")]
    pub chain: Vec<Vec<u8>>,
    /// The fleet root, DER; the agent has checked it against `--ca-hash` before it asked.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub root: Vec<u8>,
}

/// `POST /agent/v1/renew`, over mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// PKCS#10 in DER for the next key.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub csr: Vec<u8>,
}

/// The next certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewAnswer {
    /// The new certificate first, then its issuers below the root, DER.
    #[serde(deserialize_with = "bounded::chain")]
    pub chain: Vec<Vec<u8>>,
}

impl fmt::Debug for EnrollRequest {
    /// Without the token: a request that is printed must not tell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnrollRequest").field("name", &self.name).finish_non_exhaustive()
    }
}
