//! Who may do what: one rule over a principal's role, the cluster that it is bound to, and where a thing stands.
//!
//! The classes of callers of each route stand in the endpoint table. What is decided here is what the table cannot say: what becomes of
//! a principal that is bound to one cluster. What stands in another cluster is hidden from it and not forbidden to it, so that no
//! answer tells that it is there.

use crate::object::{ClusterId, PrincipalRole};

pub use crate::object::Rights;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is looked at.
    Read,
    /// It is made, changed or taken away.
    Write,
}

/// Where a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In no cluster, and for all to read: templates, releases, the catalogue.
    Shared,
    /// In a cluster, or the cluster itself.
    Cluster(ClusterId),
    /// In no cluster: a node without a group.
    Nowhere,
}

/// What becomes of who tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allowed,
    /// It may not, and is told so.
    Forbidden,
    /// For it the thing is not there.
    Hidden,
}

/// Why somebody is given no certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCertificate {
    /// It is for another.
    #[error("an admin alone asks for another's certificate")]
    Others,
    /// It is for who showed none.
    #[error("who is known by a token is given no certificate but by an admin")]
    NoneShown,
    /// It would be good for longer than the one that was shown.
    #[error(
        "the certificate would be good for longer than the one that asks for it, which is good for {most_s} seconds in all"
    )]
    TooLong {
        /// The longest, in seconds.
        most_s: u64,
    },
}

/// For whom a certificate is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForWhom {
    /// For who asks; of the certificate that was shown, for how long it is good in all, in seconds.
    Oneself {
        /// `None`: none was shown.
        shown_s: Option<u64>,
    },
    /// For somebody else.
    Another,
}

impl Rights {
    /// The longest validity of a certificate that a principal asks for; `None`: only the general bound holds. An admin may give any
    /// time. Others get at most the time of the certificate that they show: a stolen one must not make one that far outlives it.
    fn longest_certificate(self, whose: ForWhom) -> Result<Option<u64>, NoCertificate> {
        match whose {
            _ if self.role == PrincipalRole::Admin => Ok(None),
            ForWhom::Another => Err(NoCertificate::Others),
            ForWhom::Oneself { shown_s } => shown_s.map(Some).ok_or(NoCertificate::NoneShown),
        }
    }

    /// The validity of a certificate that a principal asks for, in seconds: `asked`, or `usual` where the principal does not say.
    ///
    /// # Errors
    /// [`NoCertificate`].
    pub fn certificate_seconds(self, whose: ForWhom, asked: Option<u64>, usual: u64) -> Result<u64, NoCertificate> {
        match self.longest_certificate(whose)? {
            None => Ok(asked.unwrap_or(usual)),
            Some(most_s) if asked.is_some_and(|asked| asked > most_s) => Err(NoCertificate::TooLong { most_s }),
            Some(most_s) => Ok(asked.unwrap_or(usual.min(most_s))),
        }
    }

    /// Of an admin of the fleet, and of the controller itself.
    pub const ALL: Self = Self { role: PrincipalRole::Admin, within: None };

    /// Whether it may all that another may.
    pub fn covers(self, other: Self) -> bool {
        self.role >= other.role && self.within.is_none_or(|own| other.within == Some(own))
    }

    /// Whether it may do this to a thing there.
    pub fn judge(self, act: Act, place: Place) -> Verdict {
        let is_hidden = match (self.within, place) {
            (None, _) | (Some(_), Place::Shared) => false,
            (Some(own), Place::Cluster(cluster)) => own != cluster,
            (Some(_), Place::Nowhere) => true,
        };
        if is_hidden {
            return Verdict::Hidden;
        }
        let writes_shared = self.within.is_none() || place != Place::Shared;
        match act {
            Act::Read => Verdict::Allowed,
            Act::Write if self.role > PrincipalRole::Viewer && writes_shared => Verdict::Allowed,
            Act::Write => Verdict::Forbidden,
        }
    }

    /// Whether it sees a thing there.
    pub fn sees(self, place: Place) -> bool {
        self.judge(Act::Read, place) == Verdict::Allowed
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn who_is_bound_to_a_cluster_is_told_nothing_of_others() {
        use PrincipalRole::{Admin, Operator, Viewer};
        use Verdict::{Allowed as Yes, Forbidden as No, Hidden as Gone};
        let [own, other] = [1, 2].map(|id| ClusterId(Uuid::from_u128(id)));
        let places = [Place::Shared, Place::Cluster(own), Place::Cluster(other), Place::Nowhere];
        for (role, within, reads, writes) in [
            (Viewer, None, [Yes, Yes, Yes, Yes], [No, No, No, No]),
            (Operator, None, [Yes, Yes, Yes, Yes], [Yes, Yes, Yes, Yes]),
            (Admin, None, [Yes, Yes, Yes, Yes], [Yes, Yes, Yes, Yes]),
            (Viewer, Some(own), [Yes, Yes, Gone, Gone], [No, No, Gone, Gone]),
            (Operator, Some(own), [Yes, Yes, Gone, Gone], [No, Yes, Gone, Gone]),
            (Admin, Some(own), [Yes, Yes, Gone, Gone], [No, Yes, Gone, Gone]),
        ] {
            let rights = Rights { role, within };
            assert_eq!(places.map(|place| rights.judge(Act::Read, place)), reads, "{rights:?} reads");
            assert_eq!(places.map(|place| rights.judge(Act::Write, place)), writes, "{rights:?} writes");
            assert_eq!(places.map(|place| rights.sees(place)), reads.map(|verdict| verdict == Yes), "{rights:?} sees");
        }
    }

    #[test]
    fn who_may_all_that_another_may_has_its_role_at_least_and_is_bound_to_no_other_cluster() {
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
            let [one, another] = [one, another].map(|(role, within)| Rights { role, within });
            assert_eq!(one.covers(another), covers, "{one:?} {another:?}");
        }
    }

    #[test]
    fn who_is_no_admin_is_given_no_certificate_that_is_better_than_its_own() {
        use PrincipalRole::{Admin, Operator};
        let certified = ForWhom::Oneself { shown_s: Some(3600) };
        let by_token = ForWhom::Oneself { shown_s: None };
        for (role, whose, asked, given) in [
            (Operator, certified, Some(3600), Ok(3600)),
            (Operator, certified, Some(3601), Err(NoCertificate::TooLong { most_s: 3600 })),
            (Operator, certified, None, Ok(3600)),
            (Operator, by_token, Some(1), Err(NoCertificate::NoneShown)),
            (Operator, ForWhom::Another, Some(1), Err(NoCertificate::Others)),
            (Admin, certified, Some(9000), Ok(9000)),
            (Admin, by_token, None, Ok(7200)),
            (Admin, ForWhom::Another, None, Ok(7200)),
        ] {
            let rights = Rights { role, within: None };
            assert_eq!(rights.certificate_seconds(whose, asked, 7200), given, "{rights:?} {whose:?} {asked:?}");
        }
    }
}
