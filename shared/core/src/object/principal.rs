//! Principals: who may ask, as what, and by what each is known.
//!
//! No secret stands here: of a certificate its serial number, of a token the hash of its secret.

use serde::{Deserialize, Serialize};

use super::{ClusterId, Timestamp};

/// How many certificates, and how many tokens, a principal may have that are good.
const MOST_KNOWN_BY: usize = 64;
/// How many certificates, and how many tokens, are listed with those that have ended.
const MOST_LISTED: usize = 128;
/// For how long a certificate is good after it was renewed: an hour, as long as its own client may ask for the lost answer.
const RENEWED_MS: u64 = 3600 * 1000;

/// A principal has as many certificates or tokens as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the principal has {MOST_KNOWN_BY} that are good, and is given no more")]
pub struct TooMany;

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

/// What a principal may; [`crate::access`] says what that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// At most.
    pub role: PrincipalRole,
    /// In this one cluster; `None`: in the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
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
    /// The newest last, also those that have ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<PrincipalCertificate>,
    /// The newest last, also those that have ended.
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
    /// What whoever made it might do then; `None`: that is not known. Who made one by another of the same principal has that one's maker,
    /// who may have been at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Rights>,
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
    /// What whoever made it might do then, as of a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Rights>,
}

impl PrincipalCertificate {
    /// Whether it can be shown at this time.
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.ends_at > now
    }

    /// For how long it is good in all, in seconds.
    pub fn seconds(&self) -> u64 {
        self.ends_at.0.saturating_sub(self.issued_at.0) / 1000
    }
}

impl PrincipalRole {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl PrincipalSpec {
    /// What it may.
    pub fn rights(&self) -> Rights {
        Rights { role: self.role, within: self.cluster }
    }

    /// Whether it is an admin of the whole fleet.
    pub fn is_fleet_admin(&self) -> bool {
        self.role == PrincipalRole::Admin && self.cluster.is_none()
    }

    /// Whether the certificate of this serial number is good at this time, as far as the principal says.
    pub fn takes_certificate(&self, serial: &str, now: Timestamp) -> bool {
        match self.certificate(serial) {
            Some(listed) => listed.is_good(now),
            None => self.takes_unlisted,
        }
    }

    /// Whether the token of this id is good at this time.
    pub fn takes_token(&self, id: &str, now: Timestamp) -> bool {
        self.tokens.iter().any(|token| token.id == id && token.ends_at > now)
    }

    /// Whether it is known by anything at all at this time.
    pub fn is_known(&self, now: Timestamp) -> bool {
        let by_certificate = self.certificates.iter().any(|one| one.is_good(now));
        by_certificate || self.takes_unlisted || self.tokens.iter().any(|token| token.ends_at > now)
    }

    /// The certificate of a serial number, where it is listed.
    pub fn certificate(&self, serial: &str) -> Option<&PrincipalCertificate> {
        self.certificates.iter().find(|listed| listed.serial == serial)
    }

    /// Lists another certificate. One that was revoked or has ended takes nobody's room.
    ///
    /// # Errors
    /// That it has as many as it may have.
    pub fn add_certificate(&mut self, one: PrincipalCertificate) -> Result<(), TooMany> {
        if self.certificates.iter().filter(|listed| listed.is_good(one.issued_at)).count() >= MOST_KNOWN_BY {
            return Err(TooMany);
        }
        self.certificates.push(one);
        Ok(())
    }

    /// Lists another token. One that has ended takes nobody's room.
    ///
    /// # Errors
    /// That it has as many as it may have.
    pub fn add_token(&mut self, one: BearerToken) -> Result<(), TooMany> {
        if self.tokens.iter().filter(|listed| listed.ends_at > one.issued_at).count() >= MOST_KNOWN_BY {
            return Err(TooMany);
        }
        self.tokens.push(one);
        Ok(())
    }

    /// Ends the certificate that was renewed, an hour from now: the answer that brings the new one may be lost, and is asked for again
    /// with the old one. If it was not listed, it is added; from then on only listed certificates are accepted.
    pub fn end_renewed(&mut self, serial: &str, now: Timestamp) {
        let ends_at = Timestamp(now.0.saturating_add(RENEWED_MS));
        match self.certificates.iter_mut().find(|listed| listed.serial == serial) {
            Some(listed) => listed.ends_at = listed.ends_at.min(ends_at),
            None => {
                let serial = serial.to_owned();
                let made_by = None;
                self.certificates.push(PrincipalCertificate {
                    serial,
                    issued_at: now,
                    ends_at,
                    revoked_at: None,
                    made_by,
                });
                self.takes_unlisted = false;
            }
        }
    }

    /// Where it may more than it might before, ends what was made by those who might not all that it may now: they may know the key or the
    /// secret, and would have been given more with it. Gives what ends, as `certificates.SERIAL` and `tokens.ID`. What has ended by this time
    /// is taken back too, without a word: the clock may be ahead, and it would be good for more once that is right again.
    pub fn end_lesser(&mut self, before: Rights, now: Timestamp) -> Vec<String> {
        let rights = self.rights();
        let mut ended = Vec::new();
        if before.covers(rights) {
            return ended;
        }
        let is_lesser = |made_by: Option<Rights>| made_by.is_none_or(|maker| !maker.covers(rights));
        for one in self.certificates.iter_mut().filter(|one| one.revoked_at.is_none() && is_lesser(one.made_by)) {
            ended.extend(one.is_good(now).then(|| format!("certificates.{}", one.serial)));
            one.revoked_at = Some(now);
        }
        self.tokens.retain(|token| {
            let ends = is_lesser(token.made_by);
            ended.extend((ends && token.ends_at > now).then(|| format!("tokens.{}", token.id)));
            !ends
        });
        ended
    }

    /// The same without what ended first by this time, where more is listed than may be. Time alone takes nothing away: the clock by which
    /// something has ended may be ahead, and what is gone does not come back when the clock is right again.
    #[must_use]
    pub fn without_surplus(mut self, now: Timestamp) -> Self {
        // Where unlisted certificates are good, one that was revoked must stay listed.
        let takes_unlisted = self.takes_unlisted;
        let may_go = |one: &PrincipalCertificate| one.ends_at <= now && !(takes_unlisted && one.revoked_at.is_some());
        drop_surplus(&mut self.certificates, |one| may_go(one).then_some(one.ends_at));
        drop_surplus(&mut self.tokens, |one| (one.ends_at <= now).then_some(one.ends_at));
        self
    }
}

/// Drops what ended first, until no more is listed than may be or nothing is left that may go; `ended` says when something ended that may.
fn drop_surplus<T>(listed: &mut Vec<T>, ended: impl Fn(&T) -> Option<Timestamp>) {
    while listed.len() > MOST_LISTED {
        let ends = listed.iter().enumerate().filter_map(|(at, one)| Some((ended(one)?, at)));
        let Some((_, first)) = ends.min() else { return };
        drop(listed.remove(first));
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
            made_by: None,
        }
    }

    #[test]
    fn x04_f10_what_was_made_by_those_who_might_less_ends_where_rights_grow() {
        use PrincipalRole::{Admin, Operator, Viewer};
        let [own, other] = [1, 2].map(|id| Some(ClusterId(uuid::Uuid::from_u128(id))));
        let rights = |(role, within)| Rights { role, within };
        let known_by = |made_by: Option<Rights>| {
            let tokens = [("t", 10), ("over", 5)].map(|(id, ends_at)| BearerToken { made_by, ..token(id, ends_at) });
            let listed = [certificate("01", 10, None), certificate("02", 10, Some(1)), certificate("over", 5, None)];
            let certificates = listed.map(|one| PrincipalCertificate { made_by, ..one });
            PrincipalSpec { certificates: certificates.into(), tokens: tokens.into(), ..PrincipalSpec::default() }
        };
        for (before, after, made_by, ends) in [
            // An admin of a cluster made it, and its principal becomes one of the fleet.
            ((Operator, own), (Operator, None), Some((Admin, own)), true),
            ((Operator, own), (Admin, None), Some((Admin, own)), true),
            ((Operator, own), (Operator, other), Some((Admin, own)), true),
            ((Operator, own), (Operator, other), Some((Admin, other)), false),
            ((Viewer, own), (Admin, own), Some((Admin, own)), false),
            ((Viewer, None), (Admin, None), Some((Admin, None)), false),
            ((Viewer, None), (Admin, None), Some((Operator, None)), true),
            ((Viewer, None), (Operator, None), None, true),
            // It may no more than it might.
            ((Admin, None), (Operator, own), Some((Viewer, other)), false),
            ((Operator, own), (Operator, own), None, false),
        ] {
            let (before, made_by) = (rights(before), made_by.map(rights));
            let Rights { role, within: cluster } = rights(after);
            let mut spec = PrincipalSpec { role, cluster, ..known_by(made_by) };
            let expected: &[&str] = if ends { &["certificates.01", "tokens.t"] } else { &[] };
            assert_eq!(spec.end_lesser(before, Timestamp(5)), expected, "{before:?} {after:?} {made_by:?}");
            let is_known = [spec.takes_certificate("01", Timestamp(5)), spec.takes_token("t", Timestamp(5))];
            assert_eq!(is_known, [!ends; 2]);
            let was_known = [spec.takes_certificate("over", Timestamp(4)), spec.takes_token("over", Timestamp(4))];
            assert_eq!(was_known, [!ends; 2], "the clock was ahead when it ended");
            assert_eq!(spec.certificate("02").and_then(|one| one.revoked_at), Some(Timestamp(1)));
        }
    }

    #[test]
    fn what_was_listed_before_it_was_noted_who_made_it_is_read() {
        let stored = r#"{"role":"viewer","certificates":[{"serial":"01","issued_at":0,"ends_at":10}],
            "tokens":[{"id":"t","secret_sha256":"","issued_at":0,"ends_at":10}]}"#;
        let spec: PrincipalSpec = serde_json::from_str(stored).unwrap();
        assert_eq!(spec.certificates, [certificate("01", 10, None)]);
        assert_eq!(spec.tokens[0].made_by, None);
        assert_eq!(serde_json::to_string(&spec).unwrap(), stored.replace(['\n', ' '], ""));
    }

    #[test]
    fn a_certificate_counts_while_it_is_listed_and_not_revoked() {
        let listed = PrincipalSpec {
            certificates: vec![certificate("01", 10, None), certificate("02", 20, Some(5))],
            ..PrincipalSpec::default()
        };
        let first_admin = PrincipalSpec { takes_unlisted: true, ..listed.clone() };
        for (serial, of_listed, of_first_admin) in [("01", true, true), ("02", false, false), ("03", false, true)] {
            let taken = [&listed, &first_admin].map(|spec| spec.takes_certificate(serial, Timestamp(9)));
            assert_eq!(taken, [of_listed, of_first_admin], "{serial}");
        }
        assert!(!listed.takes_certificate("01", Timestamp(10)), "it has ended");
        assert!(listed.is_known(Timestamp(9)) && !listed.is_known(Timestamp(10)));
    }

    fn token(id: &str, ends_at: u64) -> BearerToken {
        BearerToken {
            id: id.to_owned(),
            secret_sha256: String::new(),
            issued_at: Timestamp(0),
            ends_at: Timestamp(ends_at),
            made_by: None,
        }
    }

    #[test]
    fn x04_f12_time_alone_takes_nothing_away_and_of_too_many_those_go_that_ended_first() {
        let listing = |count: u64| PrincipalSpec {
            certificates: (1..=count).rev().map(|n| certificate(&n.to_string(), n, None)).collect(),
            tokens: (1..=count).rev().map(|n| token(&n.to_string(), n)).collect(),
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
            let spec = listing(listed).without_surplus(Timestamp(now));
            assert_eq!(ends(&spec), left.rev().collect::<Vec<_>>(), "{what}");
        }
    }

    #[test]
    fn x04_f12_what_was_revoked_stays_listed_where_unlisted_certificates_are_good() {
        let certificates: Vec<_> = (0..130).map(|n| certificate(&n.to_string(), 10, (n < 2).then_some(5))).collect();
        let spec = PrincipalSpec { certificates, takes_unlisted: true, ..PrincipalSpec::default() };
        let left = spec.without_surplus(Timestamp(10));
        assert_eq!(left.certificates.len(), 128);
        for serial in ["0", "1"] {
            assert!(left.certificate(serial).is_some() && !left.takes_certificate(serial, Timestamp(0)), "{serial}");
        }
    }

    #[test]
    fn x04_f12_what_has_ended_takes_nobodys_room() {
        let mut spec = PrincipalSpec {
            tokens: (0..100).map(|n| token(&n.to_string(), 10)).collect(),
            certificates: (0..100).map(|n| certificate(&n.to_string(), 10, None)).collect(),
            ..PrincipalSpec::default()
        };
        let issued_at = Timestamp(20);
        let new_token = BearerToken { issued_at, ..token("new", 30) };
        let new_certificate = PrincipalCertificate { issued_at, ..certificate("new", 30, None) };
        for _ in 0..MOST_KNOWN_BY {
            assert_eq!(spec.add_token(new_token.clone()), Ok(()));
            assert_eq!(spec.add_certificate(new_certificate.clone()), Ok(()));
        }
        assert_eq!(spec.add_token(new_token), Err(TooMany));
        assert_eq!(spec.add_certificate(new_certificate), Err(TooMany));
    }

    #[test]
    fn what_was_revoked_takes_nobodys_room() {
        let good = |n: usize| certificate(&format!("{n:02}"), 10, None);
        let mut spec = PrincipalSpec {
            certificates: (0..MOST_KNOWN_BY).map(|n| certificate(&format!("r{n}"), 10, Some(1))).collect(),
            ..PrincipalSpec::default()
        };
        for n in 0..MOST_KNOWN_BY {
            assert_eq!(spec.add_certificate(good(n)), Ok(()), "{n}");
        }
        assert_eq!(spec.add_certificate(good(MOST_KNOWN_BY)), Err(TooMany));
    }

    #[test]
    fn a_renewed_certificate_ends_within_the_hour() {
        let day = 24 * 3_600_000;
        let mut spec = PrincipalSpec { certificates: vec![certificate("01", day, None)], ..PrincipalSpec::default() };
        spec.end_renewed("01", Timestamp(1000));
        assert_eq!(spec.certificates, [certificate("01", 3_601_000, None)]);
        spec.end_renewed("01", Timestamp(2000));
        assert_eq!(spec.certificates, [certificate("01", 3_601_000, None)], "and is not given more");
        let mut first_admin = PrincipalSpec { takes_unlisted: true, ..PrincipalSpec::default() };
        first_admin.end_renewed("07", Timestamp(0));
        assert!(first_admin.takes_certificate("07", Timestamp(0)));
        assert!(!first_admin.takes_certificate("07", Timestamp(3_600_000)));
        assert!(!first_admin.takes_certificate("08", Timestamp(0)), "it is known by what is listed from then on");
    }
}
