//! Principals: who may ask, as what, and by what each is known.
//!
//! No secret stands here: of a certificate its serial number, of a token the hash of its secret.

use serde::{Deserialize, Serialize};

use super::{ClusterId, Timestamp};

/// What a principal may do at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalRole {
    /// Reads.
    #[default]
    Viewer,
    /// Runs clusters.
    Operator,
    /// Writes what belongs to the whole fleet, and what makes trust.
    Admin,
}

/// A person or program on the operators' side. The object's name is what stands in its certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrincipalSpec {
    /// What it may do.
    pub role: PrincipalRole,
    /// The one cluster in which it may; `None`: the whole fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Who that is, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Those that have not ended, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<PrincipalCertificate>,
    /// Those that have not ended, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<BearerToken>,
    /// Certificates of this name that are not listed are good too. So it is for the first admin alone, where the certificate that
    /// `init` made could not be read when the principal was stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takes_unlisted: bool,
}

/// A certificate that was issued to a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalCertificate {
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// When it was issued; of the first admin's when it was first read.
    pub issued_at: Timestamp,
    /// From then on it is worth nothing.
    pub ends_at: Timestamp,
    /// When it was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

/// A bearer token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BearerToken {
    /// What stands before the dot.
    pub id: String,
    /// SHA-256 of the secret's text, in hexadecimal digits. The secret is 256 random bits, so there is nothing to guess and no salt to add.
    pub secret_sha256: String,
    /// When it was made.
    pub issued_at: Timestamp,
    /// From then on it is worth nothing.
    pub ends_at: Timestamp,
}

impl PrincipalRole {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The role of a word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == word)
    }
}

impl PrincipalSpec {
    /// Whether it is an admin of the whole fleet.
    pub fn is_fleet_admin(&self) -> bool {
        self.role == PrincipalRole::Admin && self.cluster.is_none()
    }

    /// Whether the certificate of this serial number is good, as far as the principal says; its own end stands in itself.
    pub fn takes_certificate(&self, serial: &str) -> bool {
        match self.certificates.iter().find(|listed| listed.serial == serial) {
            Some(listed) => listed.revoked_at.is_none(),
            None => self.takes_unlisted,
        }
    }

    /// The same without what ended before this time: nobody can show it any more.
    #[must_use]
    pub fn without_ended(mut self, now: Timestamp) -> Self {
        self.certificates.retain(|certificate| certificate.ends_at > now);
        self.tokens.retain(|token| token.ends_at > now);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(serial: &str, ends_at: u64, revoked_at: Option<u64>) -> PrincipalCertificate {
        PrincipalCertificate {
            serial: serial.to_owned(),
            issued_at: Timestamp(0),
            ends_at: Timestamp(ends_at),
            revoked_at: revoked_at.map(Timestamp),
        }
    }

    #[test]
    fn a_certificate_counts_while_it_is_listed_and_not_revoked() {
        let listed = PrincipalSpec {
            certificates: vec![certificate("01", 10, None), certificate("02", 20, Some(5))],
            ..PrincipalSpec::default()
        };
        let first_admin = PrincipalSpec { takes_unlisted: true, ..listed.clone() };
        for (serial, of_listed, of_first_admin) in [("01", true, true), ("02", false, false), ("03", false, true)] {
            let taken = [&listed, &first_admin].map(|spec| spec.takes_certificate(serial));
            assert_eq!(taken, [of_listed, of_first_admin], "{serial}");
        }
        let later = listed.without_ended(Timestamp(10));
        assert_eq!(later.certificates, [certificate("02", 20, Some(5))]);
    }
}
