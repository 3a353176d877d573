//! Principals: who may send requests, with which rights and which credentials.
//!
//! No secret is stored here. A certificate is stored by its serial number, a token by the hash of its secret.

use serde::{Deserialize, Serialize};

use super::{ClusterId, Timestamp};

/// Maximum number of valid certificates, and of valid tokens, of one principal.
const MAX_VALID_CREDENTIALS: usize = 64;
/// Maximum number of stored certificates, and of stored tokens, of one principal, including those that have ended. Only
/// those that have ended are removed to keep to the maximum, so more may be stored.
const MAX_LISTED_CREDENTIALS: usize = 128;
/// Maximum period for which a certificate remains valid after its renewal, in milliseconds: one hour. If the client did
/// not receive the new certificate, it can retry with the old one during this period.
const RENEWAL_GRACE_MS: u64 = 3600 * 1000;

/// The error for a principal that already has the maximum number of valid certificates or tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the principal has {MAX_VALID_CREDENTIALS} valid certificates or tokens, which is the maximum")]
pub struct TooManyCredentials;

/// The role of a principal, which limits what it may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalRole {
    /// A principal that may only read.
    #[default]
    Viewer,
    /// A principal that may also write cluster templates, clusters, node groups, nodes, the tags of clusters and nodes,
    /// the chosen primaries, allocations, blobs and join tokens, and renew its own certificate.
    Operator,
    /// A principal that may also write the other objects that the whole fleet shares, such as releases, and create
    /// principals and credentials.
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
    /// The only cluster in which the principal has its role, or `None` for the whole fleet.
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
    /// True if certificates with the principal's name are accepted even if they are not in `certificates`, until one of
    /// them is renewed. This is the case only for the first admin, if the certificate that `init` created could not be
    /// read when the principal was stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takes_unlisted: bool,
}

/// A certificate that was issued to a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalCertificate {
    /// The serial number of the certificate, in hexadecimal digits.
    pub serial: String,
    /// Time at which the certificate was issued. For the certificate that `init` created, it is the beginning of its
    /// validity. For a certificate that was added to the list by its renewal, it is the time of the renewal.
    pub issued_at: Timestamp,
    /// The time from which the certificate is invalid.
    pub ends_at: Timestamp,
    /// Time at which the certificate was revoked, or `None` if it was not revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// The rights of the certificate's creator when it was issued, or `None` if they are unknown. A principal may
    /// create a certificate for itself with one of its older credentials. Then these are the rights of the creator of
    /// the older credential, because that creator may know its secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Rights>,
}

/// A bearer token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BearerToken {
    /// The part of the token before the dot.
    pub id: String,
    /// SHA-256 of the secret's text, in hexadecimal digits. There is no salt: a secret that the controller generates is
    /// 256 random bits, which nobody can guess. A client may also generate the secret and send only this hash.
    pub secret_sha256: String,
    /// Time at which the token was created.
    pub issued_at: Timestamp,
    /// The time from which the token is invalid.
    pub ends_at: Timestamp,
    /// The rights of the token's creator when it was issued, as in [`PrincipalCertificate::made_by`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Rights>,
}

impl PrincipalCertificate {
    /// Returns whether the certificate is valid at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.ends_at > now
    }

    /// Returns the time from the issue of the certificate to its end, in seconds.
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

    /// Returns whether the principal may use the certificate with this serial number at this time. A certificate that
    /// is not listed is accepted only if [`Self::takes_unlisted`] is set.
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

    /// Returns whether the principal has a valid credential at this time, or may have a certificate that is not listed.
    pub fn has_credential(&self, now: Timestamp) -> bool {
        let has_certificate = self.certificates.iter().any(|certificate| certificate.is_valid(now));
        has_certificate || self.takes_unlisted || self.tokens.iter().any(|token| token.ends_at > now)
    }

    /// Returns the certificate of the principal with this serial number, or `None` if it is not listed.
    pub fn certificate(&self, serial: &str) -> Option<&PrincipalCertificate> {
        self.certificates.iter().find(|listed| listed.serial == serial)
    }

    /// Adds a certificate to the principal. Certificates that were revoked or have ended do not count toward the
    /// maximum.
    ///
    /// # Errors
    /// Fails if the principal has the maximum number of valid certificates.
    pub fn add_certificate(&mut self, new_certificate: PrincipalCertificate) -> Result<(), TooManyCredentials> {
        if self.certificates.iter().filter(|listed| listed.is_valid(new_certificate.issued_at)).count() >= MAX_VALID_CREDENTIALS {
            return Err(TooManyCredentials);
        }
        self.certificates.push(new_certificate);
        Ok(())
    }

    /// Adds a token to the principal. Tokens that have ended do not count toward the maximum.
    ///
    /// # Errors
    /// Fails if the principal has the maximum number of valid tokens.
    pub fn add_token(&mut self, new_token: BearerToken) -> Result<(), TooManyCredentials> {
        if self.tokens.iter().filter(|listed| listed.ends_at > new_token.issued_at).count() >= MAX_VALID_CREDENTIALS {
            return Err(TooManyCredentials);
        }
        self.tokens.push(new_token);
        Ok(())
    }

    /// Sets the end of an old certificate after its renewal: at most one hour from now. If the client did not receive
    /// the new certificate, it can retry with the old one until then. If the old certificate was not listed, it is
    /// added to the list, and from then on only listed certificates are accepted.
    pub fn expire_after_renewal(&mut self, serial: &str, now: Timestamp) {
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

    /// Revokes the credentials whose creators have fewer rights than the principal, or unknown rights, if the
    /// principal's rights grew. Such a creator may know the secret of the credential, and would gain the new rights.
    /// `old_rights` are the rights before the change. Returns the names of the revoked credentials that were valid, as
    /// `certificates.SERIAL` and `tokens.ID`.
    ///
    /// Credentials that have ended are revoked too. If the clock is wrong and shows a later time, they would be valid
    /// again after the clock is corrected.
    pub fn revoke_created_with_fewer_rights(&mut self, old_rights: Rights, now: Timestamp) -> Vec<String> {
        let new_rights = self.rights();
        let mut revoked = Vec::new();
        if old_rights.covers(new_rights) {
            return revoked;
        }
        let has_fewer_rights = |creator: Option<Rights>| creator.is_none_or(|rights| !rights.covers(new_rights));
        for entry in self.certificates.iter_mut().filter(|entry| entry.revoked_at.is_none() && has_fewer_rights(entry.made_by)) {
            revoked.extend(entry.is_valid(now).then(|| format!("certificates.{}", entry.serial)));
            entry.revoked_at = Some(now);
        }
        // A token has no time of revocation, so a revoked token is removed.
        self.tokens.retain(|token| {
            let is_revoked = has_fewer_rights(token.made_by);
            revoked.extend((is_revoked && token.ends_at > now).then(|| format!("tokens.{}", token.id)));
            !is_revoked
        });
        revoked
    }

    /// Returns the principal without the certificates and tokens that exceed the maximum number of stored ones. Only
    /// credentials that have ended are removed, those with the earliest end first, so more may remain. Up to the
    /// maximum, ended credentials remain. If the clock is wrong and shows a later time, they are valid again after it
    /// is corrected.
    #[must_use]
    pub fn without_surplus_credentials(mut self, now: Timestamp) -> Self {
        // While unlisted certificates are accepted, a revoked one must stay listed, or it would be accepted again.
        let takes_unlisted = self.takes_unlisted;
        let is_removable = |entry: &PrincipalCertificate| entry.ends_at <= now && !(takes_unlisted && entry.revoked_at.is_some());
        drop_surplus(&mut self.certificates, |entry| is_removable(entry).then_some(entry.ends_at));
        drop_surplus(&mut self.tokens, |entry| (entry.ends_at <= now).then_some(entry.ends_at));
        self
    }
}

/// Removes the entries with the earliest end, until the number of entries is at most the maximum. `end_time` returns
/// the end of an entry, or `None` if the entry must not be removed. If no other entry can be removed, more entries may
/// remain.
fn drop_surplus<T>(entries: &mut Vec<T>, end_time: impl Fn(&T) -> Option<Timestamp>) {
    while entries.len() > MAX_LISTED_CREDENTIALS {
        let removable = entries.iter().enumerate().filter_map(|(index, entry)| Some((end_time(entry)?, index)));
        let Some((_, earliest)) = removable.min() else { return };
        drop(entries.remove(earliest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a certificate that was issued at time 0, with these times in milliseconds.
    fn test_certificate(serial: &str, ends_at: u64, revoked_at: Option<u64>) -> PrincipalCertificate {
        PrincipalCertificate {
            serial: serial.to_owned(),
            issued_at: Timestamp(0),
            ends_at: Timestamp(ends_at),
            revoked_at: revoked_at.map(Timestamp),
            made_by: None,
        }
    }

    /// In this test, each case has the principal's rights before and after a change, and the rights of the creator of
    /// the principal's credentials. The credentials `over` have ended at time 5: they are revoked too, but not
    /// returned. Certificate `02` was revoked at time 1.
    #[test]
    fn x04_f10_credentials_made_with_fewer_rights_end_when_rights_grow() {
        use PrincipalRole::{Admin, Operator, Viewer};
        let [own, other] = [1, 2].map(|id| Some(ClusterId(uuid::Uuid::from_u128(id))));
        let rights = |(role, within)| Rights { role, cluster: within };
        let spec_created_with = |made_by: Option<Rights>| {
            let tokens = [("t", 10), ("over", 5)].map(|(id, ends_at)| BearerToken { made_by, ..test_token(id, ends_at) });
            let listed =
                [test_certificate("01", 10, None), test_certificate("02", 10, Some(1)), test_certificate("over", 5, None)];
            let certificates = listed.map(|certificate| PrincipalCertificate { made_by, ..certificate });
            PrincipalSpec { certificates: certificates.into(), tokens: tokens.into(), ..PrincipalSpec::default() }
        };
        for (old_rights, new_rights, made_by, are_revoked) in [
            // First case: an admin of a cluster created the credentials, and the principal becomes an operator of the
            // whole fleet.
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
            let (old_rights, made_by) = (rights(old_rights), made_by.map(rights));
            let Rights { role, cluster } = rights(new_rights);
            let mut spec = PrincipalSpec { role, cluster, ..spec_created_with(made_by) };
            let expected: &[&str] = if are_revoked { &["certificates.01", "tokens.t"] } else { &[] };
            assert_eq!(
                spec.revoke_created_with_fewer_rights(old_rights, Timestamp(5)),
                expected,
                "{old_rights:?} {new_rights:?} {made_by:?}"
            );
            let are_accepted = [spec.accepts_certificate("01", Timestamp(5)), spec.accepts_token("t", Timestamp(5))];
            assert_eq!(are_accepted, [!are_revoked; 2]);
            // At time 4, `over` is still valid unless it was revoked.
            let were_accepted = [spec.accepts_certificate("over", Timestamp(4)), spec.accepts_token("over", Timestamp(4))];
            assert_eq!(were_accepted, [!are_revoked; 2], "also with a clock that is set back before the end");
            assert_eq!(spec.certificate("02").and_then(|certificate| certificate.revoked_at), Some(Timestamp(1)));
        }
    }

    #[test]
    fn principal_is_read_without_made_by() {
        let stored = r#"{"role":"viewer","certificates":[{"serial":"01","issued_at":0,"ends_at":10}],
            "tokens":[{"id":"t","secret_sha256":"","issued_at":0,"ends_at":10}]}"#;
        let spec: PrincipalSpec = serde_json::from_str(stored).unwrap();
        assert_eq!(spec.certificates, [test_certificate("01", 10, None)]);
        assert_eq!(spec.tokens[0].made_by, None);
        assert_eq!(serde_json::to_string(&spec).unwrap(), stored.replace(['\n', ' '], ""));
    }

    /// In this test, certificate `01` is listed, `02` is listed and revoked, and `03` is not listed. The principal
    /// `first_admin` has the same list, and its field `takes_unlisted` is set.
    #[test]
    fn certificate_is_accepted_while_listed_and_not_revoked() {
        let listed = PrincipalSpec {
            certificates: vec![test_certificate("01", 10, None), test_certificate("02", 20, Some(5))],
            ..PrincipalSpec::default()
        };
        let first_admin = PrincipalSpec { takes_unlisted: true, ..listed.clone() };
        for (serial, of_listed, of_first_admin) in [("01", true, true), ("02", false, false), ("03", false, true)] {
            let are_accepted = [&listed, &first_admin].map(|spec| spec.accepts_certificate(serial, Timestamp(9)));
            assert_eq!(are_accepted, [of_listed, of_first_admin], "{serial}");
        }
        assert!(!listed.accepts_certificate("01", Timestamp(10)), "certificate 01 ends at 10");
        assert!(listed.has_credential(Timestamp(9)) && !listed.has_credential(Timestamp(10)));
    }

    /// Returns a token that was issued at time 0, with this end in milliseconds.
    fn test_token(id: &str, ends_at: u64) -> BearerToken {
        BearerToken {
            id: id.to_owned(),
            secret_sha256: String::new(),
            issued_at: Timestamp(0),
            ends_at: Timestamp(ends_at),
            made_by: None,
        }
    }

    /// If enough entries have ended, at most 128 certificates and 128 tokens of a principal remain stored. In this
    /// test, entry `n` ends at time `n`, and the entry that ends last is listed first.
    #[test]
    fn x04_f12_surplus_credentials_are_dropped_by_end_time() {
        let listing = |count: u64| PrincipalSpec {
            certificates: (1..=count).rev().map(|n| test_certificate(&n.to_string(), n, None)).collect(),
            tokens: (1..=count).rev().map(|n| test_token(&n.to_string(), n)).collect(),
            ..PrincipalSpec::default()
        };
        let end_times = |spec: &PrincipalSpec| {
            let certificates: Vec<u64> = spec.certificates.iter().map(|entry| entry.ends_at.0).collect();
            assert_eq!(certificates, spec.tokens.iter().map(|entry| entry.ends_at.0).collect::<Vec<_>>());
            certificates
        };
        for (case, count, now, remaining) in [
            ("all have ended, but they do not exceed the maximum", 128, u64::MAX, 1..=128),
            ("all have ended, and two exceed the maximum", 130, u64::MAX, 3..=130),
            ("two exceed the maximum, and only one has ended", 130, 1, 2..=130),
            ("none has ended", 130, 0, 1..=130),
        ] {
            let spec = listing(count).without_surplus_credentials(Timestamp(now));
            assert_eq!(end_times(&spec), remaining.rev().collect::<Vec<_>>(), "{case}");
        }
    }

    /// In this test, all 130 certificates have ended, and two of them, `0` and `1`, are revoked. Two others are
    /// removed, because the maximum is 128.
    #[test]
    fn x04_f12_revoked_certificate_stays_listed_when_unlisted_are_accepted() {
        let certificates: Vec<_> = (0..130).map(|n| test_certificate(&n.to_string(), 10, (n < 2).then_some(5))).collect();
        let spec = PrincipalSpec { certificates, takes_unlisted: true, ..PrincipalSpec::default() };
        let remaining = spec.without_surplus_credentials(Timestamp(10));
        assert_eq!(remaining.certificates.len(), 128);
        for serial in ["0", "1"] {
            assert!(remaining.certificate(serial).is_some() && !remaining.accepts_certificate(serial, Timestamp(0)), "{serial}");
        }
    }

    /// The 100 stored tokens and certificates end at time 10, and the new ones are issued at time 20.
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
        let valid_certificate = |n: usize| test_certificate(&format!("{n:02}"), 10, None);
        let mut spec = PrincipalSpec {
            certificates: (0..MAX_VALID_CREDENTIALS).map(|n| test_certificate(&format!("r{n}"), 10, Some(1))).collect(),
            ..PrincipalSpec::default()
        };
        for n in 0..MAX_VALID_CREDENTIALS {
            assert_eq!(spec.add_certificate(valid_certificate(n)), Ok(()), "{n}");
        }
        assert_eq!(spec.add_certificate(valid_certificate(MAX_VALID_CREDENTIALS)), Err(TooManyCredentials));
    }

    /// An unlisted certificate of the first admin is added to the list when it is renewed.
    #[test]
    fn renewed_certificate_ends_within_an_hour() {
        let day = 24 * 3_600_000;
        let mut spec = PrincipalSpec { certificates: vec![test_certificate("01", day, None)], ..PrincipalSpec::default() };
        spec.expire_after_renewal("01", Timestamp(1000));
        assert_eq!(spec.certificates, [test_certificate("01", 3_601_000, None)]);
        spec.expire_after_renewal("01", Timestamp(2000));
        assert_eq!(spec.certificates, [test_certificate("01", 3_601_000, None)], "a second renewal does not extend it");
        let mut first_admin = PrincipalSpec { takes_unlisted: true, ..PrincipalSpec::default() };
        first_admin.expire_after_renewal("07", Timestamp(0));
        assert!(first_admin.accepts_certificate("07", Timestamp(0)));
        assert!(!first_admin.accepts_certificate("07", Timestamp(3_600_000)));
        assert!(!first_admin.accepts_certificate("08", Timestamp(0)), "only listed certificates are accepted after the renewal");
    }
}
