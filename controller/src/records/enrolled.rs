//! The stored records of agents' certificates and of join tokens.
//!
//! Secrets are never stored. A token's record has the hash of its secret, and a certificate's record has its serial
//! number and the hash of its key. The record of an agent outlives its node: if a node is deleted and created again
//! with the same uuid, its old certificate must stay invalid (S26). So the record of a deleted node stays and is marked
//! as retired, until the grace period of its last certificate has ended. After that, no certificate of the node can be
//! presented, and the sweep ([`crate::enrol::prune`]) deletes the record. The sweep also deletes tokens a day after
//! they were used up or expired.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stemma_core::object::{ClusterId, Timestamp};
use stemma_core::task::Mode;
use stemma_wire::tls::RENEW_GRACE_SECONDS;
use uuid::Uuid;

pub use super::key::{AGENT_KEYS as KEYS, AGENTS, TOKENS};

/// Maximum number of certificates of a node whose grace period has not ended, with the revoked ones. A node that renews
/// in time has 45 of them at the end of its first month. A node with this number gets no more. Each certificate stays
/// in the record until its grace period ends, so that it can be named and revoked.
pub(crate) const MAX_CERTIFICATES: usize = 256;

/// Returns the store key of an agent's record.
pub fn agent_key(node: Uuid) -> String {
    format!("{AGENTS}{node}")
}

/// Returns the node in the store key of an agent's record, or `None` if the key is not of that form.
pub fn read_agent_key(key: &[u8]) -> Option<Uuid> {
    std::str::from_utf8(key).ok()?.strip_prefix(AGENTS)?.parse().ok()
}

/// Returns the store key of the entry that names the node which owns a certificate's public key. `spki_sha256` is the
/// SHA-256 of that public key.
pub fn public_key_entry(spki_sha256: &HexBytes<32>) -> String {
    format!("{KEYS}{}", stemma_core::digest::Hex(&spki_sha256.0))
}

/// Returns the store key of a join token.
pub fn token_key(id: &str) -> String {
    format!("{TOKENS}{id}")
}

/// Bytes that are stored as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HexBytes<const N: usize>(pub [u8; N]);

/// The record of a node's agent: its certificates, its key for secrets, and when and with which token it joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// The X25519 public key of the agent's root process, with which secrets for the host are encrypted.
    pub seal_key: HexBytes<32>,
    /// The time at which the agent joined.
    pub joined_at: Timestamp,
    /// The id of the token that the agent joined with.
    pub token: String,
    /// The certificates of the node, the newest last, without those whose grace period had ended at the last renewal.
    /// Revoked ones are included, and those of an earlier agent of the node.
    pub certificates: Vec<CertificateRecord>,
    /// True if the node was deleted. All of its certificates are then invalid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
}

/// A certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRecord {
    /// The serial number.
    pub serial: HexBytes<16>,
    /// SHA-256 of the public key.
    pub spki_sha256: HexBytes<32>,
    /// The time at which the certificate was issued.
    pub issued_at: Timestamp,
    /// The last second in which the certificate is valid, in seconds since 1970.
    pub not_after_s: u64,
    /// True if the certificate was revoked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

impl AgentRecord {
    /// Returns the record without the certificates whose grace period has ended by `now`.
    #[must_use]
    pub fn without_expired(mut self, now: Timestamp) -> Self {
        self.certificates.retain(|certificate| certificate.grace_ends_s() > now.0 / 1000);
        self
    }

    /// Returns the serial numbers of the certificates that may be renewed after they expired. The newest one always
    /// may. An older one may if all later certificates are for one key and not revoked. The responses with the later
    /// certificates may have been lost, and the host then requests another one with the older certificate and the same
    /// key. The code that handles such a request refuses another key, and a certificate that is itself revoked.
    pub fn renewable_serials(&self) -> impl Iterator<Item = [u8; 16]> {
        let list = &self.certificates;
        let may_renew =
            |n: usize| list[n + 1..].iter().all(|later| !later.revoked && later.spki_sha256 == list[list.len() - 1].spki_sha256);
        list.iter().enumerate().filter(move |(n, _)| may_renew(*n)).map(|(_, certificate)| certificate.serial.0)
    }

    /// Returns the number of certificates, also revoked ones, whose grace period has not ended at the Unix time
    /// `now_s`.
    pub(crate) fn usable_count(&self, now_s: u64) -> usize {
        self.certificates.iter().filter(|certificate| certificate.grace_ends_s() > now_s).count()
    }

    /// Returns the time at which the last grace period of all certificates ends, in seconds since 1970. Returns 0 if
    /// there are no certificates.
    pub fn grace_ends_s(&self) -> u64 {
        self.certificates.iter().map(CertificateRecord::grace_ends_s).max().unwrap_or(0)
    }
}

impl CertificateRecord {
    /// Returns the time at which the grace period ends, in seconds since 1970. From then on, the certificate cannot be
    /// presented, not even for a renewal.
    pub fn grace_ends_s(&self) -> u64 {
        self.not_after_s.saturating_add(RENEW_GRACE_SECONDS)
    }
}

/// A join token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// The part of the token before the dot.
    pub id: String,
    /// SHA-256 of the secret's text. The secret has 256 random bits, so it cannot be guessed and the hash needs no
    /// salt.
    pub secret_sha256: HexBytes<32>,
    /// The number of hosts that can still join with the token.
    pub uses_left: u32,
    /// The number of hosts that could join with the token when it was created.
    pub uses: u32,
    /// The time at which the token expires.
    pub expires_at: Timestamp,
    /// The time of the last use, if the token is used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_at: Option<Timestamp>,
    /// The nodes for which the token can be used.
    pub bound: TokenTarget,
    /// The mode of a node that a host joins as with the token, unless the node has a mode of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The time at which the token was created.
    pub created_at: Timestamp,
    /// The name of the caller that created the token.
    pub created_by: String,
    /// The uuid of the principal that created the token. `None` if the creator was not a principal (for example root on
    /// the local socket), and in a token of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maker: Option<Uuid>,
    /// The cluster to which the creator of the token was bound, if any. With this token, a host can join no other
    /// cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
}

/// The nodes for which a join token can be used. A retired agent, whose node was deleted, does not count as a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenTarget {
    /// Any new node, without a group.
    Fleet,
    /// New nodes of this group, and existing nodes of this group that no host has joined as.
    Group(Uuid),
    /// This node, if no host has joined as it.
    Node(Uuid),
}

impl<const N: usize> Serialize for HexBytes<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&stemma_core::digest::Hex(&self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for HexBytes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = stemma_core::digest::from_hex(&text);
        bytes.map(Self).ok_or_else(|| D::Error::custom(format_args!("not {N} bytes as hexadecimal digits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a certificate that was issued at `issued_s` and is valid for a day. Its serial determines its key.
    fn certificate(serial: u8, issued_s: u64) -> CertificateRecord {
        CertificateRecord {
            serial: HexBytes([serial; 16]),
            spki_sha256: HexBytes([serial; 32]),
            issued_at: Timestamp(issued_s * 1000),
            not_after_s: issued_s + 86_400,
            revoked: false,
        }
    }

    /// In this test, a certificate is valid for a day, and its grace period ends 30 days later. Each renewal removes
    /// the certificates whose grace period has ended.
    #[test]
    fn agent_record_drops_certificate_when_grace_has_ended() {
        let record = AgentRecord {
            seal_key: HexBytes([1; 32]),
            joined_at: Timestamp(0),
            token: "t".into(),
            certificates: vec![certificate(1, 0)],
            retired: false,
        };
        let serials =
            |record: &AgentRecord| record.certificates.iter().map(|certificate| certificate.serial.0[0]).collect::<Vec<_>>();
        let renewed = |mut record: AgentRecord, certificate: CertificateRecord| {
            record = record.without_expired(certificate.issued_at);
            record.certificates.push(certificate);
            record
        };
        let later = renewed(record, certificate(2, 60_000));
        assert_eq!(serials(&later), [1, 2]);
        // The first certificate expires on day 1, and its grace period ends on day 31.
        let much_later = renewed(later, certificate(3, 31 * 86_400));
        assert_eq!(serials(&much_later), [2, 3]);
        let many = (0..200).fold(much_later, |record, serial| renewed(record, certificate(serial, 31 * 86_400)));
        assert_eq!(many.certificates.len(), 202, "no grace period has ended, so each can be revoked");
        assert_eq!((many.usable_count(62 * 86_400 - 1), many.usable_count(62 * 86_400)), (201, 0));
        assert_eq!(many.grace_ends_s(), 62 * 86_400);
        let last = renewed(many, certificate(1, 63 * 86_400));
        assert_eq!(last.certificates, [certificate(1, 63 * 86_400)]);
    }

    #[test]
    fn hex_bytes_round_trip_and_reject_malformed_text() {
        let text = serde_json::to_string(&HexBytes([0x0f, 0xa0])).unwrap();
        assert_eq!(text, "\"0fa0\"");
        assert_eq!(serde_json::from_str::<HexBytes<2>>(&text).unwrap(), HexBytes([0x0f, 0xa0]));
        // Rust's integer parser accepts `+f`, which is not two hexadecimal digits.
        for bad in ["\"0f\"", "\"0fa0aa\"", "\"0fzz\"", "\"+f+f\"", "7"] {
            assert!(serde_json::from_str::<HexBytes<2>>(bad).is_err(), "{bad}");
        }
    }
}
