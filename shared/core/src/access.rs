//! Access rules: whether a principal may read or write an object, given its role, its cluster and the object's scope.
//!
//! The endpoint table lists which classes of callers may use each route. This module decides what the table cannot
//! express: the rights of a principal that is bound to one cluster. Objects of other clusters are hidden from such a
//! principal, not forbidden, so that no response reveals that they exist.

use crate::object::{ClusterId, PrincipalRole};

pub use crate::object::Rights;

/// The kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessVerb {
    /// Reading an object.
    Read,
    /// Creating, changing or deleting an object.
    Write,
}

/// The scope of an object for access checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessScope {
    /// In no cluster and readable by everyone: templates, releases, the catalogue.
    Shared,
    /// In a cluster, or the cluster itself.
    Cluster(ClusterId),
    /// In no cluster: a node without a group.
    Unplaced,
}

/// The result of an access check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The access is allowed.
    Allowed,
    /// The access is refused with an error.
    Forbidden,
    /// The object is treated as if it did not exist.
    Hidden,
}

/// The reason why a certificate is not issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCertificate {
    /// The request is for another principal.
    #[error("only an admin can request a certificate for another principal")]
    OtherPrincipal,
    /// The caller did not present a certificate.
    #[error("a caller that uses a token cannot request a certificate; an admin can issue one")]
    NotPresented,
    /// The certificate would be valid for longer than the one that the caller presented.
    #[error(
        "the certificate would be valid for longer than the one that requests it, which is valid for {most_s} seconds in total"
    )]
    TooLong {
        /// Maximum validity, in seconds.
        most_s: u64,
    },
}

/// The subject of a certificate request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateSubject {
    /// The caller itself.
    Caller {
        /// Total validity of the certificate that the caller presented, in seconds. `None` if it presented none.
        presented_s: Option<u64>,
    },
    /// Another principal.
    OtherPrincipal,
}

impl Rights {
    /// Returns the maximum validity of a certificate that the principal requests, or `None` if only the general limit
    /// applies. An admin may request any validity. Another principal may request at most the validity of the
    /// certificate that it presents, so that whoever steals a certificate cannot obtain one that far outlives the
    /// stolen one.
    fn max_certificate_seconds(self, subject: CertificateSubject) -> Result<Option<u64>, NoCertificate> {
        match subject {
            _ if self.role == PrincipalRole::Admin => Ok(None),
            CertificateSubject::OtherPrincipal => Err(NoCertificate::OtherPrincipal),
            CertificateSubject::Caller { presented_s: shown_s } => shown_s.map(Some).ok_or(NoCertificate::NotPresented),
        }
    }

    /// Returns the validity of a certificate that the principal requests, in seconds. It is `requested`, or `usual` if
    /// the request contains no validity.
    ///
    /// # Errors
    /// [`NoCertificate`].
    pub fn certificate_seconds(
        self,
        subject: CertificateSubject,
        requested: Option<u64>,
        usual: u64,
    ) -> Result<u64, NoCertificate> {
        match self.max_certificate_seconds(subject)? {
            None => Ok(requested.unwrap_or(usual)),
            Some(most_s) if requested.is_some_and(|asked| asked > most_s) => Err(NoCertificate::TooLong { most_s }),
            Some(most_s) => Ok(requested.unwrap_or(usual.min(most_s))),
        }
    }

    /// The rights of a fleet admin and of the controller itself.
    pub const ALL: Self = Self { role: PrincipalRole::Admin, cluster: None };

    /// Returns whether these rights include all of `other`: at least the same role, for the same cluster or all
    /// clusters.
    pub fn covers(self, other: Self) -> bool {
        self.role >= other.role && self.cluster.is_none_or(|cluster| other.cluster == Some(cluster))
    }

    /// Decides whether the principal may access an object in this scope. An object of another cluster is hidden from a
    /// principal that is bound to a cluster. Such a principal may read shared objects, and not write them.
    pub fn verdict(self, act: AccessVerb, place: AccessScope) -> Verdict {
        let is_hidden = match (self.cluster, place) {
            (None, _) | (Some(_), AccessScope::Shared) => false,
            (Some(own), AccessScope::Cluster(cluster)) => own != cluster,
            (Some(_), AccessScope::Unplaced) => true,
        };
        if is_hidden {
            return Verdict::Hidden;
        }
        let writes_shared = self.cluster.is_none() || place != AccessScope::Shared;
        match act {
            AccessVerb::Read => Verdict::Allowed,
            AccessVerb::Write if self.role > PrincipalRole::Viewer && writes_shared => Verdict::Allowed,
            AccessVerb::Write => Verdict::Forbidden,
        }
    }

    /// Returns whether the principal can read objects in this scope.
    pub fn can_see(self, place: AccessScope) -> bool {
        self.verdict(AccessVerb::Read, place) == Verdict::Allowed
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn rights_hide_other_clusters_when_bound_to_one() {
        use PrincipalRole::{Admin, Operator, Viewer};
        use Verdict::{Allowed as Yes, Forbidden as No, Hidden as Gone};
        let [own, other] = [1, 2].map(|id| ClusterId(Uuid::from_u128(id)));
        let places = [AccessScope::Shared, AccessScope::Cluster(own), AccessScope::Cluster(other), AccessScope::Unplaced];
        for (role, within, reads, writes) in [
            (Viewer, None, [Yes, Yes, Yes, Yes], [No, No, No, No]),
            (Operator, None, [Yes, Yes, Yes, Yes], [Yes, Yes, Yes, Yes]),
            (Admin, None, [Yes, Yes, Yes, Yes], [Yes, Yes, Yes, Yes]),
            (Viewer, Some(own), [Yes, Yes, Gone, Gone], [No, No, Gone, Gone]),
            (Operator, Some(own), [Yes, Yes, Gone, Gone], [No, Yes, Gone, Gone]),
            (Admin, Some(own), [Yes, Yes, Gone, Gone], [No, Yes, Gone, Gone]),
        ] {
            let rights = Rights { role, cluster: within };
            assert_eq!(places.map(|place| rights.verdict(AccessVerb::Read, place)), reads, "{rights:?} reads");
            assert_eq!(places.map(|place| rights.verdict(AccessVerb::Write, place)), writes, "{rights:?} writes");
            assert_eq!(places.map(|place| rights.can_see(place)), reads.map(|verdict| verdict == Yes), "{rights:?} sees");
        }
    }

    #[test]
    fn rights_cover_others_when_role_and_cluster_are_wider() {
        use PrincipalRole::{Admin, Operator};
        let [own, other] = [1, 2].map(|id| Some(ClusterId(Uuid::from_u128(id))));
        for (one, another, covers) in [
            ((Admin, None), (Admin, None), true),
            ((Admin, None), (Operator, own), true),
            ((Operator, None), (Admin, own), false),
            ((Admin, own), (Operator, own), true),
            ((Admin, own), (Operator, other), false),
            ((Admin, own), (Operator, None), false),
        ] {
            let [one, another] = [one, another].map(|(role, within)| Rights { role, cluster: within });
            assert_eq!(one.covers(another), covers, "{one:?} {another:?}");
        }
    }

    #[test]
    fn certificate_lifetime_is_capped_when_caller_is_no_admin() {
        use PrincipalRole::{Admin, Operator};
        let certified = CertificateSubject::Caller { presented_s: Some(3600) };
        let by_token = CertificateSubject::Caller { presented_s: None };
        for (role, whose, asked, given) in [
            (Operator, certified, Some(3600), Ok(3600)),
            (Operator, certified, Some(3601), Err(NoCertificate::TooLong { most_s: 3600 })),
            (Operator, certified, None, Ok(3600)),
            (Operator, by_token, Some(1), Err(NoCertificate::NotPresented)),
            (Operator, CertificateSubject::OtherPrincipal, Some(1), Err(NoCertificate::OtherPrincipal)),
            (Admin, certified, Some(9000), Ok(9000)),
            (Admin, by_token, None, Ok(7200)),
            (Admin, CertificateSubject::OtherPrincipal, None, Ok(7200)),
        ] {
            let rights = Rights { role, cluster: None };
            assert_eq!(rights.certificate_seconds(whose, asked, 7200), given, "{rights:?} {whose:?} {asked:?}");
        }
    }
}
