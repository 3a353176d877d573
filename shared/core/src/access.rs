//! Who may do what: one rule over a principal's role, the cluster that it is bound to, and where a thing stands.
//!
//! The classes of callers of each route stand in the endpoint table. What is decided here is what the table cannot say: what becomes of
//! a principal that is bound to one cluster. What stands in another cluster is hidden from it and not forbidden to it, so that no
//! answer tells that it is there.

use crate::object::{ClusterId, PrincipalRole};

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

/// What a principal may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// At most.
    pub role: PrincipalRole,
    /// In this one cluster; `None`: in the whole fleet.
    pub within: Option<ClusterId>,
}

impl Rights {
    /// Of an admin of the fleet, and of the controller itself.
    pub const ALL: Self = Self { role: PrincipalRole::Admin, within: None };

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
        }
    }
}
