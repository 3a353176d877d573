//! How principals share a limited amount: bytes that wait for clients, or places in lists and streams.
//!
//! No principal can take more than its part, so a principal that takes as much as it can shuts out only itself. Another
//! part is reserved for fleet admins, so that an admin who must stop an attack is served.

use std::collections::BTreeMap;

use crate::object::ClusterId;

/// A principal, as far as the limits of shares depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareHolder {
    /// The principal's name.
    pub name: String,
    /// The cluster that the principal is bound to. All principals of a cluster share one part.
    pub cluster: Option<ClusterId>,
    /// True if the principal is a fleet admin. A part of the amount is reserved for fleet admins.
    pub is_fleet_admin: bool,
}

/// How much of a shared amount each principal and each cluster holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareUsage {
    by_principal: BTreeMap<String, u64>,
    by_cluster: BTreeMap<ClusterId, u64>,
}

/// The error for a request that a part of the amount has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareExceeded {
    /// The part that has no room.
    pub share: ShareKind,
    /// How much of the part is held already.
    pub held: u64,
    /// How much of the part may be held.
    pub limit: u64,
}

/// A part of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareKind {
    /// The part of one principal.
    Principal,
    /// The part of all principals that are bound to one cluster.
    Cluster,
    /// The whole amount, without the reserved part if the principal is not a fleet admin.
    Total,
}

/// A shared amount, with the limits of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The whole amount.
    pub total: u64,
    /// Maximum of one principal. A principal that holds nothing may take one larger item, if there is room for it.
    pub max_per_principal: u64,
    /// Maximum of all principals that are bound to one cluster, with the same exception. A limit for each principal is
    /// not enough, because an admin of a cluster can create more principals there.
    pub max_per_cluster: u64,
    /// The part reserved for fleet admins.
    pub reserved_for_admins: u64,
}

impl Shares {
    /// Creates an amount of which a principal may hold a quarter, all principals of one cluster half. A sixteenth is
    /// reserved for fleet admins.
    pub const fn from_total(all: u64) -> Self {
        Self { total: all, max_per_principal: all / 4, max_per_cluster: all / 2, reserved_for_admins: all / 16 }
    }

    /// Returns the part that has no room for the request, or `None` if the request fits. `held` is what all principals
    /// together hold.
    pub fn exceeded_share(&self, amount: u64, holder: &ShareHolder, holdings: &ShareUsage, held: u64) -> Option<ShareExceeded> {
        let exceeded = ShareExceeded { share: ShareKind::Total, held, limit: self.limit(holder.is_fleet_admin) };
        let total = || (!self.has_room(amount, held, holder.is_fleet_admin)).then_some(exceeded);
        self.exceeded_own_share(amount, holder, holdings).or_else(total)
    }

    /// Like [`exceeded_share`](Self::exceeded_share), but checks only the parts of the principal and of its cluster.
    pub fn exceeded_own_share(&self, amount: u64, holder: &ShareHolder, holdings: &ShareUsage) -> Option<ShareExceeded> {
        let parts = [
            (ShareKind::Principal, holdings.principal_usage(&holder.name), self.max_per_principal),
            (ShareKind::Cluster, holdings.cluster_usage(holder.cluster), self.max_per_cluster),
        ];
        let full = parts.into_iter().find(|(_, held, most)| !has_capacity(amount, *held, *most));
        full.map(|(part, held, most)| ShareExceeded { share: part, held, limit: most })
    }

    /// Returns whether the whole amount has room for this much more.
    const fn has_room(&self, amount: u64, held: u64, is_fleet_admin: bool) -> bool {
        held.saturating_add(amount) <= self.limit(is_fleet_admin)
    }

    /// Returns how much all principals together may hold when a request is granted.
    const fn limit(&self, is_fleet_admin: bool) -> u64 {
        if is_fleet_admin { self.total } else { self.total - self.reserved_for_admins }
    }

    /// Returns whether a principal that holds `held` may have `amount` more without exceeding its own part.
    pub const fn is_within_own_share(&self, amount: u64, held: u64) -> bool {
        has_capacity(amount, held, self.max_per_principal)
    }

    /// Returns the index of the request that is served next, if all principals together hold `held`. `waiting` is in
    /// the order of arrival.
    ///
    /// It is the request of the principal that holds least, and of several such requests the first. If there is no room
    /// for it, only a fleet admin's request can be served before it. Requests that exceed the principal's own part are
    /// skipped.
    pub fn next_request(&self, held: u64, waiting: &[ShareRequest]) -> Option<usize> {
        let least = |is_eligible: fn(&ShareRequest) -> bool| {
            let eligible = waiting.iter().enumerate().filter(|(_, request)| is_eligible(request));
            let within = eligible.filter(|(_, request)| self.is_within_own_share(request.amount, request.held));
            within.min_by_key(|(index, request)| (request.held, *index))
        };
        let passes: [fn(&ShareRequest) -> bool; 2] = [|_| true, |one| one.is_fleet_admin];
        let has_room = |(_, request): &(usize, &ShareRequest)| self.has_room(request.amount, held, request.is_fleet_admin);
        passes.into_iter().filter_map(least).find(has_room).map(|(place, _)| place)
    }
}

/// Returns whether a part has room for `amount` more. An empty part has room for one item of any size.
const fn has_capacity(amount: u64, held: u64, limit: u64) -> bool {
    held == 0 || held.saturating_add(amount) <= limit
}

impl ShareUsage {
    /// Returns how much a principal holds.
    pub fn principal_usage(&self, name: &str) -> u64 {
        self.by_principal.get(name).copied().unwrap_or_default()
    }

    /// Returns how much the principals of a cluster hold. Returns 0 without a cluster.
    fn cluster_usage(&self, within: Option<ClusterId>) -> u64 {
        within.and_then(|cluster| self.by_cluster.get(&cluster)).copied().unwrap_or_default()
    }

    /// Records that a principal now holds `to` where it held `from`, for the principal and for its cluster.
    pub fn update(&mut self, holder: &ShareHolder, from: u64, to: u64) {
        update_entry(&mut self.by_principal, holder.name.clone(), from, to);
        if let Some(cluster) = holder.cluster {
            update_entry(&mut self.by_cluster, cluster, from, to);
        }
    }
}

/// Records the change of one entry. An entry of 0 is removed.
fn update_entry<K: Ord>(held: &mut BTreeMap<K, u64>, key: K, from: u64, to: u64) {
    let amount = held.get(&key).copied().unwrap_or_default().saturating_sub(from).saturating_add(to);
    if amount == 0 {
        held.remove(&key);
    } else {
        held.insert(key, amount);
    }
}

/// A request that waits for a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// The requested amount.
    pub amount: u64,
    /// How much the principal holds.
    pub held: u64,
    /// True if the principal is a fleet admin.
    pub is_fleet_admin: bool,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn holder(name: &str, within: Option<u128>) -> ShareHolder {
        let within = within.map(|id| ClusterId(Uuid::from_u128(id)));
        ShareHolder { name: name.to_owned(), cluster: within, is_fleet_admin: false }
    }

    #[test]
    fn shares_limit_principal_and_reserve_part_for_admins() {
        let shares = Shares::from_total(64);
        for (asked, own, held, is_fleet_admin, admits) in [
            (1, 0, 0, false, true),
            (1, 15, 15, false, true),
            (1, 16, 16, false, false),
            (20, 0, 0, false, true),
            (20, 1, 1, false, false),
            (60, 0, 0, false, true),
            (61, 0, 0, false, false),
            (61, 0, 0, true, true),
            (1, 0, 60, false, false),
            (4, 0, 60, true, true),
            (5, 0, 60, true, false),
            (1, 16, 60, true, false),
            (u64::MAX, 0, 1, true, false),
        ] {
            let (by, mut holdings) = (ShareHolder { is_fleet_admin, ..holder("one", None) }, ShareUsage::default());
            holdings.update(&by, 0, own);
            let full = shares.exceeded_share(asked, &by, &holdings, held);
            assert_eq!(full.is_none(), admits, "{asked} beside {own} of {held}, admin: {is_fleet_admin}");
        }
    }

    #[test]
    fn x03_shares_limit_bound_principals_to_half_per_cluster() {
        let shares = Shares::from_total(64);
        for (asked, of_cluster, is_within) in [(1, 31, true), (1, 32, false), (40, 0, true), (32, 1, false), (u64::MAX, 1, false)]
        {
            let mut holdings = ShareUsage::default();
            holdings.update(&holder("one", Some(1)), 0, of_cluster);
            let full = shares.exceeded_own_share(asked, &holder("two", Some(1)), &holdings);
            let refusal = ShareExceeded { share: ShareKind::Cluster, held: of_cluster, limit: 32 };
            assert_eq!(full, (!is_within).then_some(refusal), "{asked} beside {of_cluster}");
            for other in [holder("two", Some(2)), holder("two", None)] {
                assert_eq!(shares.exceeded_own_share(asked, &other, &holdings), None, "{other:?} is bound elsewhere");
            }
        }
    }

    #[test]
    fn x03_exceeded_share_reports_usage_and_limit() {
        let (shares, one, mut holdings) = (Shares::from_total(64), holder("one", Some(1)), ShareUsage::default());
        let root = ShareHolder { is_fleet_admin: true, ..holder("root", None) };
        for (by, own, held, part, of_part, most) in [
            (&one, 16, 16, ShareKind::Principal, 16, 16),
            (&one, 1, 60, ShareKind::Total, 60, 60),
            (&root, 1, 64, ShareKind::Total, 64, 64),
        ] {
            holdings.update(by, 0, own);
            assert_eq!(
                shares.exceeded_share(1, by, &holdings, held),
                Some(ShareExceeded { share: part, held: of_part, limit: most }),
                "{by:?}"
            );
            holdings.update(by, own, 0);
        }
        assert_eq!(holdings, ShareUsage::default(), "of who holds nothing nothing is noted");
    }

    #[test]
    fn next_request_is_of_principal_with_least_usage() {
        let shares = Shares::from_total(64);
        let one = |asked, own| ShareRequest { amount: asked, held: own, is_fleet_admin: false };
        let admin = |asked, own| ShareRequest { amount: asked, held: own, is_fleet_admin: true };
        for (held, waiting, next) in [
            (0, vec![], None),
            (10, vec![one(5, 8), one(5, 2), one(5, 2)], Some(1)),
            (10, vec![one(5, 0), one(5, 0)], Some(0)),
            // The request of the principal that holds nothing is for 8, and does not fit. A request for 1 would fit.
            (53, vec![one(1, 10), one(8, 0)], None),
            (53, vec![one(1, 10), one(8, 0), admin(8, 8)], Some(2)),
            (57, vec![one(1, 10), one(8, 0), admin(8, 8)], None),
            // The first request exceeds the principal's own part.
            (20, vec![one(4, 14), one(2, 14)], Some(1)),
            (20, vec![one(4, 14)], None),
        ] {
            assert_eq!(shares.next_request(held, &waiting), next, "{held} {waiting:?}");
        }
    }
}
