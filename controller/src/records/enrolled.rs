//! What is stored of agents' certificates and of join tokens.
//!
//! Secrets are never stored: of a token its hash, of a certificate its serial number and the hash of its key. The record of
//! an agent outlives its node: a node that is deleted and made again under the same uuid must not bring the old certificate back to life
//! (S26), so the record stays, retired, until the last of its certificates is past its grace; then nobody can show one, and the sweep
//! ([`crate::enrol::forget`]) drops it, as it drops tokens a day after they are spent or expired.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stemma_core::object::{ClusterId, Timestamp};
use stemma_core::task::Mode;
use stemma_wire::tls::RENEW_GRACE_SECONDS;
use uuid::Uuid;

pub use super::key::{AGENT_KEYS as KEYS, AGENTS, TOKENS};

/// How many certificates one node may have that can still be shown. One that renews in time has 45 of them by the end
/// of its first month; more than these it is not given, because each stays on record, to be named and taken back,
/// until it is past its grace.
pub(crate) const MOST_CERTIFICATES: usize = 256;

/// The key of an agent's record.
pub fn agent_key(node: Uuid) -> String {
    format!("{AGENTS}{node}")
}

/// The node of an agent's key.
pub fn read_agent_key(key: &[u8]) -> Option<Uuid> {
    std::str::from_utf8(key).ok()?.strip_prefix(AGENTS)?.parse().ok()
}

/// The key under which it stands whose key of a certificate this is.
pub fn key_key(spki_sha256: &Hex<32>) -> String {
    format!("{KEYS}{}", stemma_core::digest::Hex(&spki_sha256.0))
}

/// The key of a token.
pub fn token_key(id: &str) -> String {
    format!("{TOKENS}{id}")
}

/// Bytes that stand in a record as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex<const N: usize>(pub [u8; N]);

/// What is known of one agent's certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// X25519 public key of its root half: secrets are sealed to it.
    pub seal_key: Hex<32>,
    /// When it joined.
    pub joined_at: Timestamp,
    /// By which token.
    pub token: String,
    /// Those that may still be shown, the newest last.
    pub certificates: Vec<CertificateRecord>,
    /// Its node was deleted: nothing of it is good any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
}

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRecord {
    /// Its serial number.
    pub serial: Hex<16>,
    /// SHA-256 of its public key.
    pub spki_sha256: Hex<32>,
    /// When it was issued.
    pub issued_at: Timestamp,
    /// Its last second, since 1970.
    pub not_after_s: u64,
    /// It was taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

impl AgentRecord {
    /// The same without the certificates that nobody can show any more.
    #[must_use]
    pub fn without_over(mut self, now: Timestamp) -> Self {
        self.certificates.retain(|old| old.over_s() > now.0 / 1000);
        self
    }

    /// The serial numbers that may renew past their end: the newest's, and those after which certificates of one key alone were made.
    /// The answers that brought these may have been lost, so the host asks with the same key again; whoever asks with another is
    /// refused when the request is read.
    pub fn renewable(&self) -> impl Iterator<Item = [u8; 16]> {
        let all = &self.certificates;
        let is_last = |at: usize| {
            all[at + 1..].iter().all(|later| !later.revoked && later.spki_sha256 == all[all.len() - 1].spki_sha256)
        };
        all.iter().enumerate().filter(move |(at, _)| is_last(*at)).map(|(_, certificate)| certificate.serial.0)
    }

    /// How many of its certificates can still be shown at this second.
    pub(crate) fn showable(&self, now_s: u64) -> usize {
        self.certificates.iter().filter(|certificate| certificate.over_s() > now_s).count()
    }

    /// From this second on nobody can show any of its certificates; a record without any is over at once.
    pub fn over_s(&self) -> u64 {
        self.certificates.iter().map(CertificateRecord::over_s).max().unwrap_or(0)
    }
}

impl CertificateRecord {
    /// From this second on nobody can show it: its grace is over.
    pub fn over_s(&self) -> u64 {
        self.not_after_s.saturating_add(RENEW_GRACE_SECONDS)
    }
}

/// A join token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// What stands before the dot.
    pub id: String,
    /// SHA-256 of the secret's text. The secret is 256 random bits, so there is nothing to guess and no salt to add.
    pub secret_sha256: Hex<32>,
    /// How many more times it may be used.
    pub uses_left: u32,
    /// How many times in all.
    pub uses: u32,
    /// From then on it is worth nothing.
    pub expires_at: Timestamp,
    /// When the last of its uses was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_at: Option<Timestamp>,
    /// For whom.
    pub bound: Bound,
    /// The mode of the nodes that it makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// The principal of that name; `None` for who is none, and in a token of before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maker: Option<Uuid>,
    /// The cluster to which its maker was bound: no host joins by it in another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
}

/// For whom a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Any new node, which will stand in no group.
    Fleet,
    /// New nodes of this group, or those of it that never enrolled.
    Group(Uuid),
    /// This node, which never enrolled.
    Node(Uuid),
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&stemma_core::digest::Hex(&self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = stemma_core::digest::from_hex(&text);
        bytes.map(Self).ok_or_else(|| D::Error::custom(format_args!("not {N} bytes as hexadecimal digits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(serial: u8, issued_s: u64) -> CertificateRecord {
        CertificateRecord {
            serial: Hex([serial; 16]),
            spki_sha256: Hex([serial; 32]),
            issued_at: Timestamp(issued_s * 1000),
            not_after_s: issued_s + 86_400,
            revoked: false,
        }
    }

    #[test]
    fn a_record_keeps_what_can_still_be_shown() {
        let record = AgentRecord {
            seal_key: Hex([1; 32]),
            joined_at: Timestamp(0),
            token: "t".into(),
            certificates: vec![certificate(1, 0)],
            retired: false,
        };
        let serials = |record: &AgentRecord| record.certificates.iter().map(|c| c.serial.0[0]).collect::<Vec<_>>();
        let with = |mut record: AgentRecord, certificate: CertificateRecord| {
            record = record.without_over(certificate.issued_at);
            record.certificates.push(certificate);
            record
        };
        let later = with(record, certificate(2, 60_000));
        assert_eq!(serials(&later), [1, 2]);
        // The first one's last day is day 1, its grace ends with day 31.
        let much_later = with(later, certificate(3, 31 * 86_400));
        assert_eq!(serials(&much_later), [2, 3]);
        let many = (0..200).fold(much_later, |record, n| with(record, certificate(n, 31 * 86_400)));
        assert_eq!(many.certificates.len(), 202, "each can be named and taken back to its end");
        assert_eq!((many.showable(62 * 86_400 - 1), many.showable(62 * 86_400)), (201, 0));
        assert_eq!(many.over_s(), 62 * 86_400);
        let over = with(many, certificate(1, 63 * 86_400));
        assert_eq!(over.certificates, [certificate(1, 63 * 86_400)]);
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let text = serde_json::to_string(&Hex([0x0f, 0xa0])).unwrap();
        assert_eq!(text, "\"0fa0\"");
        assert_eq!(serde_json::from_str::<Hex<2>>(&text).unwrap(), Hex([0x0f, 0xa0]));
        for bad in ["\"0f\"", "\"0fa0aa\"", "\"0fzz\"", "\"+f+f\"", "7"] {
            assert!(serde_json::from_str::<Hex<2>>(bad).is_err(), "{bad}");
        }
    }
}
