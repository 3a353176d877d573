//! Principals: who may send requests, with which rights and which credentials.
//!
//! No secret is stored here. A certificate is stored by its serial number, a token by the hash of its secret.

use serde::{Deserialize, Serialize};

use super::{ClusterId, Timestamp};

/// Maximum number of valid certificates, and of valid tokens, of one principal.
const MAX_VALID_CREDENTIALS: usize = 64;
/// Maximum number of listed certificates, and of listed tokens, including those that have ended.
const MAX_LISTED_CREDENTIALS: usize = 128;
/// How long a certificate remains valid after its renewal, in milliseconds. It is one hour, because the client may
/// retry for that long if it did not get the answer.
const RENEWAL_GRACE_MS: u64 = 3600 * 1000;

/// The principal already has the maximum number of valid certificates or tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the principal has {MAX_VALID_CREDENTIALS} that are good, and is given no more")]
pub struct TooManyCredentials;

/// The role of a principal, which limits what it may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalRole {
    /// May read.
    #[default]
    Viewer,
    /// May also operate clusters: write clusters, groups, nodes, tags, allocations and join tokens.
    Operator,
    /// May also write what the whole fleet shares, and create principals and credentials.
    Admin,
}

/// The rights of a principal: a role, in one cluster or everywhere. [`crate::access`] defines what they allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The role.
    pub role: PrincipalRole,
    /// The only cluster in which the rights apply, or `None` for the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "within")]
    pub cluster: Option<ClusterId>,
}

/// A person or program that uses the operators' API. The object's name is the name in its certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrincipalSpec {
    /// The role of the principal.
    pub role: PrincipalRole,
    /// The only cluster in which it has this role, or `None` for the whole fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// A description of the person or program, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The certificates of the principal, the newest last. Certificates that have ended are included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<PrincipalCertificate>,
    /// The tokens of the principal, the newest last. Tokens that have ended are included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<BearerToken>,
    /// True if certificates with this name are accepted even if they are not listed. This is the case only for the
    /// first admin, if the certificate that `init` created could not be read when the principal was stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takes_unlisted: bool,
}

/// A certificate that was issued to a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalCertificate {
    /// The serial number of the certificate, in hexadecimal digits.
    pub serial: String,
    /// When it was issued. For the certificate of the first admin, when it was first read.
    pub issued_at: Timestamp,
    /// The time from which it is invalid.
    pub ends_at: Timestamp,
    /// When the certificate was revoked, or `None` if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// The rights of its creator at that time, or `None` if they are unknown. If a principal created it with another of
    /// its own credentials, the rights are those of the creator of that credential, who may know its secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Rights>,
}

/// A bearer token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BearerToken {
    /// The part of the token before the dot.
    pub id: String,
    /// SHA-256 of the secret's text, in hexadecimal digits. The secret is 256 random bits, so there is nothing to guess and no salt to add.
    pub secret_sha256: String,
    /// When it was created.
    pub issued_at: Timestamp,
    /// The time from which it is invalid.
    pub ends_at: Timestamp,
    /// The rights of its creator at that time, as for a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Rights>,
}

impl PrincipalCertificate {
    /// Returns whether the certificate is valid at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.ends_at > now
    }

    /// Returns its whole lifetime, in seconds.
    pub fn lifetime_seconds(&self) -> u64 {
        self.ends_at.0.saturating_sub(self.issued_at.0) / 1000
    }
}

impl PrincipalRole {
    /// Returns the name of the role.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl PrincipalSpec {
    /// Returns the rights of the principal.
    pub fn rights(&self) -> Rights {
        Rights { role: self.role, cluster: self.cluster }
    }

    /// Returns whether the principal is an admin of the whole fleet.
    pub fn is_fleet_admin(&self) -> bool {
        self.role == PrincipalRole::Admin && self.cluster.is_none()
    }

    /// Returns whether the principal accepts the certificate with this serial number at this time.
    pub fn accepts_certificate(&self, serial: &str, now: Timestamp) -> bool {
        match self.certificate(serial) {
            Some(listed) => listed.is_valid(now),
            None => self.takes_unlisted,
        }
    }

    /// Returns whether the token with this id is valid at this time.
    pub fn accepts_token(&self, id: &str, now: Timestamp) -> bool {
        self.tokens.iter().any(|token| token.id == id && token.ends_at > now)
    }

    /// Returns whether the principal has any valid credential at this time.
    pub fn has_credential(&self, now: Timestamp) -> bool {
        let by_certificate = self.certificates.iter().any(|certificate| certificate.is_valid(now));
        by_certificate || self.takes_unlisted || self.tokens.iter().any(|token| token.ends_at > now)
    }

    /// Returns the listed certificate with this serial number.
    pub fn certificate(&self, serial: &str) -> Option<&PrincipalCertificate> {
        self.certificates.iter().find(|listed| listed.serial == serial)
    }

    /// Lists another certificate. Certificates that were revoked or have ended do not count toward the maximum.
    ///
    /// # Errors
    /// Fails if the principal has the maximum number of valid certificates.
    pub fn add_certificate(&mut self, new: PrincipalCertificate) -> Result<(), TooManyCredentials> {
        if self.certificates.iter().filter(|listed| listed.is_valid(new.issued_at)).count() >= MAX_VALID_CREDENTIALS {
            return Err(TooManyCredentials);
        }
        self.certificates.push(new);
        Ok(())
    }

    /// Lists another token. Tokens that have ended do not count toward the maximum.
    ///
    /// # Errors
    /// Fails if the principal has the maximum number of valid tokens.
    pub fn add_token(&mut self, new: BearerToken) -> Result<(), TooManyCredentials> {
        if self.tokens.iter().filter(|listed| listed.ends_at > new.issued_at).count() >= MAX_VALID_CREDENTIALS {
            return Err(TooManyCredentials);
        }
        self.tokens.push(new);
        Ok(())
    }

    /// Lets a renewed certificate expire an hour from now. If the client did not receive the new certificate, it can
    /// retry with the renewed one until then. A certificate that was not listed is added to the list. From then on only
    /// listed certificates are accepted.
    pub fn expire_renewed(&mut self, serial: &str, now: Timestamp) {
        let ends_at = Timestamp(now.0.saturating_add(RENEWAL_GRACE_MS));
        match self.certificates.iter_mut().find(|listed| listed.serial == serial) {
            Some(listed) => listed.ends_at = listed.ends_at.min(ends_at),
            None => {
                let serial = serial.to_owned();
                let made_by = None;
                self.certificates.push(PrincipalCertificate { serial, issued_at: now, ends_at, revoked_at: None, made_by });
                self.takes_unlisted = false;
            }
        }
    }

    /// If the rights of the principal grew, revokes the credentials whose creators had fewer rights than it has now.
    /// Their creators may know the key or the secret, and would gain these rights. Returns the names of the revoked
    /// credentials, as `certificates.SERIAL` and `tokens.ID`. Credentials that have ended are revoked too, but not
    /// returned: if the clock is ahead, they would be valid again once it is correct.
    pub fn revoke_by_lesser_rights(&mut self, before: Rights, now: Timestamp) -> Vec<String> {
        let rights = self.rights();
        let mut revoked = Vec::new();
        if before.covers(rights) {
            return revoked;
        }
        let is_lesser = |made_by: Option<Rights>| made_by.is_none_or(|maker| !maker.covers(rights));
        for listed in self.certificates.iter_mut().filter(|one| one.revoked_at.is_none() && is_lesser(one.made_by)) {
            revoked.extend(listed.is_valid(now).then(|| format!("certificates.{}", listed.serial)));
            listed.revoked_at = Some(now);
        }
        self.tokens.retain(|token| {
            let is_revoked = is_lesser(token.made_by);
            revoked.extend((is_revoked && token.ends_at > now).then(|| format!("tokens.{}", token.id)));
            !is_revoked
        });
        revoked
    }

    /// Returns the principal with at most the maximum number of listed credentials. Credentials that ended first are
    /// removed first. Below the maximum, none is removed because it has ended: if the clock is ahead, it is needed
    /// again when the clock is correct.
    #[must_use]
    pub fn without_surplus_credentials(mut self, now: Timestamp) -> Self {
        // While unlisted certificates are accepted, a revoked one must stay listed.
        let takes_unlisted = self.takes_unlisted;
        let may_go = |one: &PrincipalCertificate| one.ends_at <= now && !(takes_unlisted && one.revoked_at.is_some());
        drop_surplus(&mut self.certificates, |one| may_go(one).then_some(one.ends_at));
        drop_surplus(&mut self.tokens, |one| (one.ends_at <= now).then_some(one.ends_at));
        self
    }
}

/// Removes the entries that ended first, until no more than the maximum are listed. `end_time` returns when an entry
/// ended, or `None` if it must stay.
fn drop_surplus<T>(entries: &mut Vec<T>, end_time: impl Fn(&T) -> Option<Timestamp>) {
    while entries.len() > MAX_LISTED_CREDENTIALS {
        let ends = entries.iter().enumerate().filter_map(|(at, one)| Some((end_time(one)?, at)));
        let Some((_, first)) = ends.min() else { return };
        drop(entries.remove(first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_certificate(serial: &str, ends_at: u64, revoked_at: Option<u64>) -> PrincipalCertificate {
        PrincipalCertificate {
            serial: serial.to_owned(),
            issued_at: Timestamp(0),
            ends_at: Timestamp(ends_at),
            revoked_at: revoked_at.map(Timestamp),
            made_by: None,
        }
    }

    #[test]
    fn x04_f10_credentials_made_with_fewer_rights_end_when_rights_grow() {
        use PrincipalRole::{Admin, Operator, Viewer};
        let [own, other] = [1, 2].map(|id| Some(ClusterId(uuid::Uuid::from_u128(id))));
        let rights = |(role, within)| Rights { role, cluster: within };
        let known_by = |made_by: Option<Rights>| {
            let tokens = [("t", 10), ("over", 5)].map(|(id, ends_at)| BearerToken { made_by, ..test_token(id, ends_at) });
            let listed =
                [test_certificate("01", 10, None), test_certificate("02", 10, Some(1)), test_certificate("over", 5, None)];
            let certificates = listed.map(|one| PrincipalCertificate { made_by, ..one });
            PrincipalSpec { certificates: certificates.into(), tokens: tokens.into(), ..PrincipalSpec::default() }
        };
        for (before, after, made_by, ends) in [
            // An admin of a cluster created it, and then its principal becomes an operator of the fleet.
            ((Operator, own), (Operator, None), Some((Admin, own)), true),
            ((Operator, own), (Admin, None), Some((Admin, own)), true),
            ((Operator, own), (Operator, other), Some((Admin, own)), true),
            ((Operator, own), (Operator, other), Some((Admin, other)), false),
            ((Viewer, own), (Admin, own), Some((Admin, own)), false),
            ((Viewer, None), (Admin, None), Some((Admin, None)), false),
            ((Viewer, None), (Admin, None), Some((Operator, None)), true),
            ((Viewer, None), (Operator, None), None, true),
            // The principal does not gain rights.
            ((Admin, None), (Operator, own), Some((Viewer, other)), false),
            ((Operator, own), (Operator, own), None, false),
        ] {
            let (before, made_by) = (rights(before), made_by.map(rights));
            let Rights { role, cluster } = rights(after);
            let mut spec = PrincipalSpec { role, cluster, ..known_by(made_by) };
            let expected: &[&str] = if ends { &["certificates.01", "tokens.t"] } else { &[] };
            assert_eq!(spec.revoke_by_lesser_rights(before, Timestamp(5)), expected, "{before:?} {after:?} {made_by:?}");
            let is_known = [spec.accepts_certificate("01", Timestamp(5)), spec.accepts_token("t", Timestamp(5))];
            assert_eq!(is_known, [!ends; 2]);
            let was_known = [spec.accepts_certificate("over", Timestamp(4)), spec.accepts_token("over", Timestamp(4))];
            assert_eq!(was_known, [!ends; 2], "the clock was ahead when it ended");
            assert_eq!(spec.certificate("02").and_then(|one| one.revoked_at), Some(Timestamp(1)));
        }
    }

    #[test]
    fn principal_reads_records_without_made_by() {
        let stored = r#"{"role":"viewer","certificates":[{"serial":"01","issued_at":0,"ends_at":10}],
            "tokens":[{"id":"t","secret_sha256":"","issued_at":0,"ends_at":10}]}"#;
        let spec: PrincipalSpec = serde_json::from_str(stored).unwrap();
        assert_eq!(spec.certificates, [test_certificate("01", 10, None)]);
        assert_eq!(spec.tokens[0].made_by, None);
        assert_eq!(serde_json::to_string(&spec).unwrap(), stored.replace(['\n', ' '], ""));
    }

    #[test]
    fn certificate_is_accepted_while_listed_and_not_revoked() {
        let listed = PrincipalSpec {
            certificates: vec![test_certificate("01", 10, None), test_certificate("02", 20, Some(5))],
            ..PrincipalSpec::default()
        };
        let first_admin = PrincipalSpec { takes_unlisted: true, ..listed.clone() };
        for (serial, of_listed, of_first_admin) in [("01", true, true), ("02", false, false), ("03", false, true)] {
            let taken = [&listed, &first_admin].map(|spec| spec.accepts_certificate(serial, Timestamp(9)));
            assert_eq!(taken, [of_listed, of_first_admin], "{serial}");
        }
        assert!(!listed.accepts_certificate("01", Timestamp(10)), "it has ended");
        assert!(listed.has_credential(Timestamp(9)) && !listed.has_credential(Timestamp(10)));
    }

    fn test_token(id: &str, ends_at: u64) -> BearerToken {
        BearerToken {
            id: id.to_owned(),
            secret_sha256: String::new(),
            issued_at: Timestamp(0),
            ends_at: Timestamp(ends_at),
            made_by: None,
        }
    }

    #[test]
    fn x04_f12_surplus_credentials_are_dropped_by_end_time() {
        let listing = |count: u64| PrincipalSpec {
            certificates: (1..=count).rev().map(|n| test_certificate(&n.to_string(), n, None)).collect(),
            tokens: (1..=count).rev().map(|n| test_token(&n.to_string(), n)).collect(),
            ..PrincipalSpec::default()
        };
        let ends = |spec: &PrincipalSpec| {
            let certificates: Vec<u64> = spec.certificates.iter().map(|one| one.ends_at.0).collect();
            assert_eq!(certificates, spec.tokens.iter().map(|one| one.ends_at.0).collect::<Vec<_>>());
            certificates
        };
        for (what, listed, now, left) in [
            ("a clock that is ahead of them all", 128, u64::MAX, 1..=128),
            ("two too many that have ended", 130, u64::MAX, 3..=130),
            ("one of the two that are too many has ended", 130, 1, 2..=130),
            ("none has ended", 130, 0, 1..=130),
        ] {
            let spec = listing(listed).without_surplus_credentials(Timestamp(now));
            assert_eq!(ends(&spec), left.rev().collect::<Vec<_>>(), "{what}");
        }
    }

    #[test]
    fn x04_f12_revoked_certificate_stays_listed_when_unlisted_are_accepted() {
        let certificates: Vec<_> = (0..130).map(|n| test_certificate(&n.to_string(), 10, (n < 2).then_some(5))).collect();
        let spec = PrincipalSpec { certificates, takes_unlisted: true, ..PrincipalSpec::default() };
        let left = spec.without_surplus_credentials(Timestamp(10));
        assert_eq!(left.certificates.len(), 128);
        for serial in ["0", "1"] {
            assert!(left.certificate(serial).is_some() && !left.accepts_certificate(serial, Timestamp(0)), "{serial}");
        }
    }

    #[test]
    fn x04_f12_ended_credentials_do_not_count_toward_maximum() {
        let mut spec = PrincipalSpec {
            tokens: (0..100).map(|n| test_token(&n.to_string(), 10)).collect(),
            certificates: (0..100).map(|n| test_certificate(&n.to_string(), 10, None)).collect(),
            ..PrincipalSpec::default()
        };
        let issued_at = Timestamp(20);
        let new_token = BearerToken { issued_at, ..test_token("new", 30) };
        let new_certificate = PrincipalCertificate { issued_at, ..test_certificate("new", 30, None) };
        for _ in 0..MAX_VALID_CREDENTIALS {
            assert_eq!(spec.add_token(new_token.clone()), Ok(()));
            assert_eq!(spec.add_certificate(new_certificate.clone()), Ok(()));
        }
        assert_eq!(spec.add_token(new_token), Err(TooManyCredentials));
        assert_eq!(spec.add_certificate(new_certificate), Err(TooManyCredentials));
    }

    #[test]
    fn revoked_certificates_do_not_count_toward_maximum() {
        let good = |n: usize| test_certificate(&format!("{n:02}"), 10, None);
        let mut spec = PrincipalSpec {
            certificates: (0..MAX_VALID_CREDENTIALS).map(|n| test_certificate(&format!("r{n}"), 10, Some(1))).collect(),
            ..PrincipalSpec::default()
        };
        for n in 0..MAX_VALID_CREDENTIALS {
            assert_eq!(spec.add_certificate(good(n)), Ok(()), "{n}");
        }
        assert_eq!(spec.add_certificate(good(MAX_VALID_CREDENTIALS)), Err(TooManyCredentials));
    }

    #[test]
    fn renewed_certificate_ends_within_an_hour() {
        let day = 24 * 3_600_000;
        let mut spec = PrincipalSpec { certificates: vec![test_certificate("01", day, None)], ..PrincipalSpec::default() };
        spec.expire_renewed("01", Timestamp(1000));
        assert_eq!(spec.certificates, [test_certificate("01", 3_601_000, None)]);
        spec.expire_renewed("01", Timestamp(2000));
        assert_eq!(spec.certificates, [test_certificate("01", 3_601_000, None)], "and is not given more");
        let mut first_admin = PrincipalSpec { takes_unlisted: true, ..PrincipalSpec::default() };
        first_admin.expire_renewed("07", Timestamp(0));
        assert!(first_admin.accepts_certificate("07", Timestamp(0)));
        assert!(!first_admin.accepts_certificate("07", Timestamp(3_600_000)));
        assert!(!first_admin.accepts_certificate("08", Timestamp(0)), "it is known by what is listed from then on");
    }
}
