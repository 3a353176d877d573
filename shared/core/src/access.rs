//! Access rules: whether a principal may read or write an object, given its role, its cluster and the object's scope.
//!
//! The endpoint table lists which classes of callers may use each route. This module decides what the table cannot
//! express: the rights of a principal that is bound to one cluster. Objects of other clusters are hidden from such a
//! principal, not forbidden, so that no response reveals that they exist.

use crate::object::{ClusterId, PrincipalRole};

pub use crate::object::Rights;

/// The kind of access to an object: to read it or to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessVerb {
    /// Reading an object.
    Read,
    /// Creating, changing or deleting an object.
    Write,
}

/// The place of an object, which access checks compare with the cluster to which the caller is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessScope {
    /// An object that is in no cluster and that every principal can read, such as a template, a release or a namespace
    /// of the catalogue.
    Shared,
    /// An object in this cluster, or the cluster itself.
    Cluster(ClusterId),
    /// An object in no cluster that only principals of the whole fleet can see, such as a node without a node group.
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

/// The reason why a certificate request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCertificate {
    /// The request is for another principal.
    #[error("only an admin can request a certificate for another principal")]
    OtherPrincipal,
    /// The caller presented no certificate, or one that its principal does not list.
    #[error("a caller that uses a token cannot request a certificate; an admin can issue one")]
    NotPresented,
    /// The requested certificate would be valid for longer than the certificate that the caller presented.
    #[error(
        "the certificate would be valid for longer than the one that requests it, which is valid for {most_s} seconds in total"
    )]
    TooLong {
        /// Maximum validity that the caller can request, in seconds.
        most_s: u64,
    },
}

/// The principal for which a certificate is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateSubject {
    /// The caller itself.
    Caller {
        /// Total validity of the certificate that the caller presented, in seconds. `None` if the caller presented no
        /// certificate, or one that its principal does not list.
        presented_s: Option<u64>,
    },
    /// A principal other than the caller.
    OtherPrincipal,
}

impl Rights {
    /// Returns the maximum validity of a certificate that the principal requests, in seconds. Returns `None` if only
    /// the general limit applies.
    ///
    /// An admin may request any validity. Another principal may request a certificate for itself only, with at most the
    /// validity of the certificate that it presents. So a stolen certificate cannot be used to obtain one that far
    /// outlives the stolen one.
    fn max_certificate_seconds(self, subject: CertificateSubject) -> Result<Option<u64>, NoCertificate> {
        match subject {
            _ if self.role == PrincipalRole::Admin => Ok(None),
            CertificateSubject::OtherPrincipal => Err(NoCertificate::OtherPrincipal),
            CertificateSubject::Caller { presented_s: validity_s } => validity_s.map(Some).ok_or(NoCertificate::NotPresented),
        }
    }

    /// Returns the validity of a certificate that the principal requests, in seconds. The result is `requested_s`, or
    /// `default_s` if the request contains no validity. The default is lowered to the principal's maximum.
    ///
    /// # Errors
    /// [`NoCertificate`] if the principal may not request this certificate, or requests too long a validity.
    pub fn certificate_seconds(
        self,
        subject: CertificateSubject,
        requested_s: Option<u64>,
        default_s: u64,
    ) -> Result<u64, NoCertificate> {
        match self.max_certificate_seconds(subject)? {
            None => Ok(requested_s.unwrap_or(default_s)),
            Some(max_s) if requested_s.is_some_and(|seconds| seconds > max_s) => Err(NoCertificate::TooLong { most_s: max_s }),
            Some(max_s) => Ok(requested_s.unwrap_or(default_s.min(max_s))),
        }
    }

    /// All rights: those of a fleet admin, of root on the local socket, of hosts that join and of the controller
    /// itself.
    pub const ALL: Self = Self { role: PrincipalRole::Admin, cluster: None };

    /// Returns whether these rights include all of `other`: at least the same role, for the same cluster or all
    /// clusters.
    pub fn covers(self, other: Self) -> bool {
        self.role >= other.role && self.cluster.is_none_or(|cluster| other.cluster == Some(cluster))
    }

    /// Decides whether the principal may read or write an object in this scope. If the principal is bound to a cluster,
    /// objects of other clusters and unplaced objects are hidden from it, and it may read shared objects but not write
    /// them. A viewer may write nothing.
    pub fn verdict(self, verb: AccessVerb, scope: AccessScope) -> Verdict {
        let is_hidden = match (self.cluster, scope) {
            (None, _) | (Some(_), AccessScope::Shared) => false,
            (Some(bound_cluster), AccessScope::Cluster(cluster)) => bound_cluster != cluster,
            (Some(_), AccessScope::Unplaced) => true,
        };
        if is_hidden {
            return Verdict::Hidden;
        }
        let may_write_scope = self.cluster.is_none() || scope != AccessScope::Shared;
        match verb {
            AccessVerb::Read => Verdict::Allowed,
            AccessVerb::Write if self.role > PrincipalRole::Viewer && may_write_scope => Verdict::Allowed,
            AccessVerb::Write => Verdict::Forbidden,
        }
    }

    /// Returns whether the principal can read objects in this scope.
    pub fn can_see(self, scope: AccessScope) -> bool {
        self.verdict(AccessVerb::Read, scope) == Verdict::Allowed
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    /// Checks the rights of each role, for a principal of the whole fleet and for one that is bound to a cluster. The
    /// columns are the verdicts about reads and writes, one for each of `scopes`.
    #[test]
    fn rights_hide_other_clusters_when_bound_to_one() {
        use PrincipalRole::{Admin, Operator, Viewer};
        use Verdict::{Allowed as Yes, Forbidden as No, Hidden as Hide};
        let [own_cluster, other_cluster] = [1, 2].map(|id| ClusterId(Uuid::from_u128(id)));
        let scopes =
            [AccessScope::Shared, AccessScope::Cluster(own_cluster), AccessScope::Cluster(other_cluster), AccessScope::Unplaced];
        for (role, bound_cluster, reads, writes) in [
            (Viewer, None, [Yes, Yes, Yes, Yes], [No, No, No, No]),
            (Operator, None, [Yes, Yes, Yes, Yes], [Yes, Yes, Yes, Yes]),
            (Admin, None, [Yes, Yes, Yes, Yes], [Yes, Yes, Yes, Yes]),
            (Viewer, Some(own_cluster), [Yes, Yes, Hide, Hide], [No, No, Hide, Hide]),
            (Operator, Some(own_cluster), [Yes, Yes, Hide, Hide], [No, Yes, Hide, Hide]),
            (Admin, Some(own_cluster), [Yes, Yes, Hide, Hide], [No, Yes, Hide, Hide]),
        ] {
            let rights = Rights { role, cluster: bound_cluster };
            assert_eq!(scopes.map(|scope| rights.verdict(AccessVerb::Read, scope)), reads, "{rights:?} reads");
            assert_eq!(scopes.map(|scope| rights.verdict(AccessVerb::Write, scope)), writes, "{rights:?} writes");
            assert_eq!(scopes.map(|scope| rights.can_see(scope)), reads.map(|verdict| verdict == Yes), "{rights:?} sees");
        }
    }

    #[test]
    fn rights_cover_others_when_role_and_cluster_are_wider() {
        use PrincipalRole::{Admin, Operator};
        let [own_cluster, other_cluster] = [1, 2].map(|id| Some(ClusterId(Uuid::from_u128(id))));
        for (rights, other_rights, covers) in [
            ((Admin, None), (Admin, None), true),
            ((Admin, None), (Operator, own_cluster), true),
            ((Operator, None), (Admin, own_cluster), false),
            ((Admin, own_cluster), (Operator, own_cluster), true),
            ((Admin, own_cluster), (Operator, other_cluster), false),
            ((Admin, own_cluster), (Operator, None), false),
        ] {
            let [rights, other_rights] =
                [rights, other_rights].map(|(role, bound_cluster)| Rights { role, cluster: bound_cluster });
            assert_eq!(rights.covers(other_rights), covers, "{rights:?} {other_rights:?}");
        }
    }

    /// An operator gets a certificate for itself only, with at most the validity of the one that it presents. An admin
    /// gets any certificate. In this test, the presented certificate is valid for 3600 s, and the default is 7200 s.
    #[test]
    fn certificate_lifetime_is_capped_when_caller_is_no_admin() {
        use PrincipalRole::{Admin, Operator};
        let certified = CertificateSubject::Caller { presented_s: Some(3600) };
        let by_token = CertificateSubject::Caller { presented_s: None };
        for (role, subject, requested_s, expected) in [
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
            assert_eq!(
                rights.certificate_seconds(subject, requested_s, 7200),
                expected,
                "{rights:?} {subject:?} {requested_s:?}"
            );
        }
    }
}
