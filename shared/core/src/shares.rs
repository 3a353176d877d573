//! Shares a limited amount among principals (authenticated clients). The amount is, for example, a number of bytes that
//! wait for clients, or of places in a list or stream.
//!
//! No principal can hold more than its part, except for one larger item that is all it holds. So a principal that
//! requests as much as possible shuts out only itself. Another part is reserved for fleet admins, so that an admin who
//! must stop an attack is served.

use std::collections::BTreeMap;

use crate::object::ClusterId;

/// A principal (authenticated client) that holds or requests a part of a shared amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareHolder {
    /// The principal's name.
    pub name: String,
    /// The cluster that the principal is bound to, or `None`. A bound principal can neither see nor change other
    /// clusters. All principals that are bound to a cluster share one part.
    pub cluster: Option<ClusterId>,
    /// True if the principal is a fleet admin. A part of the amount is reserved for fleet admins.
    pub is_fleet_admin: bool,
}

/// The amounts that each principal and each cluster hold of a shared amount, in the unit of that amount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareUsage {
    by_principal: BTreeMap<String, u64>,
    by_cluster: BTreeMap<ClusterId, u64>,
}

/// The error for a request that exceeds a part of the shared amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareExceeded {
    /// The part that the request would exceed.
    pub share: ShareKind,
    /// The amount that the principals of this part hold already.
    pub held: u64,
    /// The maximum amount that the principals of this part may hold.
    pub limit: u64,
}

/// A part of an amount that several principals (authenticated clients) share. The part has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareKind {
    /// The part of one principal.
    Principal,
    /// The part of all principals that are bound to one cluster.
    Cluster,
    /// The whole amount. For a principal that is not a fleet admin, the part reserved for admins is subtracted.
    Total,
}

/// The limits of an amount that several principals (authenticated clients) share, and of the parts of the amount. All
/// limits are in the unit of the amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The whole amount.
    pub total: u64,
    /// Maximum that one principal may hold. A principal that holds nothing may get one larger item, if the part of its
    /// cluster and the whole amount have room for that item.
    pub max_per_principal: u64,
    /// Maximum that all principals bound to one cluster may hold together. If they hold nothing, one of them may get
    /// one larger item. The limit for each principal is not enough, because an admin of a cluster can create more
    /// principals.
    pub max_per_cluster: u64,
    /// The part reserved for fleet admins.
    pub reserved_for_admins: u64,
}

impl Shares {
    /// Creates the limits for a shared amount. One principal may hold a quarter, and all principals of one cluster may
    /// hold half of the amount. A sixteenth is reserved for fleet admins.
    pub const fn from_total(total: u64) -> Self {
        Self { total, max_per_principal: total / 4, max_per_cluster: total / 2, reserved_for_admins: total / 16 }
    }

    /// Returns the part that a request for `amount` more would exceed, or `None` if the request fits. Checks the parts
    /// of the principal and of its cluster, then the whole amount. `total` is the amount that all principals hold.
    pub fn exceeded_share(&self, amount: u64, holder: &ShareHolder, holdings: &ShareUsage, total: u64) -> Option<ShareExceeded> {
        let exceeded = ShareExceeded { share: ShareKind::Total, held: total, limit: self.limit(holder.is_fleet_admin) };
        let find_exceeded_total = || (!self.has_room(amount, total, holder.is_fleet_admin)).then_some(exceeded);
        self.exceeded_own_share(amount, holder, holdings).or_else(find_exceeded_total)
    }

    /// Returns the part that a request for `amount` more would exceed, or `None` if the request fits. Checks only the
    /// parts of the principal and of its cluster, not the whole amount.
    pub fn exceeded_own_share(&self, amount: u64, holder: &ShareHolder, holdings: &ShareUsage) -> Option<ShareExceeded> {
        let parts = [
            (ShareKind::Principal, holdings.principal_usage(&holder.name), self.max_per_principal),
            (ShareKind::Cluster, holdings.cluster_usage(holder.cluster), self.max_per_cluster),
        ];
        let exceeded_part = parts.into_iter().find(|(_, held_amount, limit)| !has_capacity(amount, *held_amount, *limit));
        exceeded_part.map(|(part, held_amount, limit)| ShareExceeded { share: part, held: held_amount, limit })
    }

    /// Returns whether a request for `amount` more fits into the whole amount, if all principals hold `total_held`.
    /// Only a fleet admin's request can use the reserved part.
    const fn has_room(&self, amount: u64, total_held: u64, is_fleet_admin: bool) -> bool {
        total_held.saturating_add(amount) <= self.limit(is_fleet_admin)
    }

    /// Returns the maximum that all principals may hold together after a request. Only a fleet admin's request can use
    /// the reserved part.
    const fn limit(&self, is_fleet_admin: bool) -> u64 {
        if is_fleet_admin { self.total } else { self.total - self.reserved_for_admins }
    }

    /// Returns whether a principal that holds `held_amount` may get `amount` more without exceeding its own part. A
    /// principal that holds nothing may get one item of any size.
    pub const fn is_within_own_share(&self, amount: u64, held_amount: u64) -> bool {
        has_capacity(amount, held_amount, self.max_per_principal)
    }

    /// Returns the index in `waiting` of the request that is served next, or `None` if no request can be served now.
    /// `waiting` is in the order of arrival, and `total_held` is the amount that all principals hold.
    ///
    /// The request of the principal that holds least is next. If several principals hold the same amount, the first of
    /// their requests is next. Requests that exceed the principal's own part are skipped. If the whole amount has no
    /// room for the next request, no other request is served before it, except the next request of a fleet admin.
    pub fn next_request(&self, total_held: u64, waiting: &[ShareRequest]) -> Option<usize> {
        let request_of_least_holder = |is_eligible: fn(&ShareRequest) -> bool| {
            let eligible = waiting.iter().enumerate().filter(|(_, request)| is_eligible(request));
            let within = eligible.filter(|(_, request)| self.is_within_own_share(request.amount, request.held));
            within.min_by_key(|(index, request)| (request.held, *index))
        };
        let filters: [fn(&ShareRequest) -> bool; 2] = [|_| true, |request| request.is_fleet_admin];
        let has_room = |(_, request): &(usize, &ShareRequest)| self.has_room(request.amount, total_held, request.is_fleet_admin);
        filters.into_iter().filter_map(request_of_least_holder).find(has_room).map(|(index, _)| index)
    }
}

/// Returns whether a part with this limit has room for `amount` more, if `held` of the part is in use. An empty part
/// has room for one item of any size.
const fn has_capacity(amount: u64, held: u64, limit: u64) -> bool {
    held == 0 || held.saturating_add(amount) <= limit
}

impl ShareUsage {
    /// Returns the amount that a principal holds.
    pub fn principal_usage(&self, name: &str) -> u64 {
        self.by_principal.get(name).copied().unwrap_or_default()
    }

    /// Returns the amount that the principals bound to a cluster hold. Returns 0 if `cluster` is `None`.
    fn cluster_usage(&self, cluster: Option<ClusterId>) -> u64 {
        cluster.and_then(|cluster| self.by_cluster.get(&cluster)).copied().unwrap_or_default()
    }

    /// Replaces `old_amount` by `new_amount` in the amounts that the principal and its cluster hold.
    pub fn update(&mut self, holder: &ShareHolder, old_amount: u64, new_amount: u64) {
        update_entry(&mut self.by_principal, holder.name.clone(), old_amount, new_amount);
        if let Some(cluster) = holder.cluster {
            update_entry(&mut self.by_cluster, cluster, old_amount, new_amount);
        }
    }
}

/// Subtracts `old_amount` from the amount of one entry and adds `new_amount`. An entry of 0 is removed.
fn update_entry<K: Ord>(amounts: &mut BTreeMap<K, u64>, key: K, old_amount: u64, new_amount: u64) {
    let amount = amounts.get(&key).copied().unwrap_or_default().saturating_sub(old_amount).saturating_add(new_amount);
    if amount == 0 {
        amounts.remove(&key);
    } else {
        amounts.insert(key, amount);
    }
}

/// A request that waits until the shared amount has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// The requested amount.
    pub amount: u64,
    /// The amount that the request's principal holds.
    pub held: u64,
    /// True if the request's principal is a fleet admin, who may use the reserved part.
    pub is_fleet_admin: bool,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    /// Returns a principal that is not a fleet admin. `cluster` is the number of the cluster that it is bound to.
    fn holder(name: &str, cluster: Option<u128>) -> ShareHolder {
        let cluster = cluster.map(|id| ClusterId(Uuid::from_u128(id)));
        ShareHolder { name: name.to_owned(), cluster, is_fleet_admin: false }
    }

    /// Of the amount 64, one principal may hold 16, and 4 are reserved for fleet admins. A principal that holds nothing
    /// may get one larger item.
    #[test]
    fn shares_limit_principal_and_reserve_part_for_admins() {
        let shares = Shares::from_total(64);
        for (amount, own_held, total_held, is_fleet_admin, is_admitted) in [
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
            let (principal, mut holdings) = (ShareHolder { is_fleet_admin, ..holder("one", None) }, ShareUsage::default());
            holdings.update(&principal, 0, own_held);
            let exceeded = shares.exceeded_share(amount, &principal, &holdings, total_held);
            assert_eq!(exceeded.is_none(), is_admitted, "{amount} more to {own_held} of {total_held}, admin: {is_fleet_admin}");
        }
    }

    /// Of the amount 64, all principals bound to one cluster may hold 32 together. Principal `one` holds the amount
    /// `cluster_held`, and principal `two` requests `amount` more.
    #[test]
    fn x03_shares_limit_bound_principals_to_half_per_cluster() {
        let shares = Shares::from_total(64);
        for (amount, cluster_held, is_within) in
            [(1, 31, true), (1, 32, false), (40, 0, true), (32, 1, false), (u64::MAX, 1, false)]
        {
            let mut holdings = ShareUsage::default();
            holdings.update(&holder("one", Some(1)), 0, cluster_held);
            let exceeded = shares.exceeded_own_share(amount, &holder("two", Some(1)), &holdings);
            let refusal = ShareExceeded { share: ShareKind::Cluster, held: cluster_held, limit: 32 };
            assert_eq!(exceeded, (!is_within).then_some(refusal), "{amount} more, the cluster holds {cluster_held}");
            for other in [holder("two", Some(2)), holder("two", None)] {
                assert_eq!(shares.exceeded_own_share(amount, &other, &holdings), None, "{other:?} is not bound to this cluster");
            }
        }
    }

    /// Each principal requests 1 more of the amount 64. One principal may hold 16, and only fleet admins may use the
    /// last 4.
    #[test]
    fn x03_exceeded_share_reports_usage_and_limit() {
        let (shares, bound_holder, mut holdings) = (Shares::from_total(64), holder("one", Some(1)), ShareUsage::default());
        let admin_holder = ShareHolder { is_fleet_admin: true, ..holder("root", None) };
        for (principal, own_held, total_held, share, share_held, limit) in [
            (&bound_holder, 16, 16, ShareKind::Principal, 16, 16),
            (&bound_holder, 1, 60, ShareKind::Total, 60, 60),
            (&admin_holder, 1, 64, ShareKind::Total, 64, 64),
        ] {
            holdings.update(principal, 0, own_held);
            assert_eq!(
                shares.exceeded_share(1, principal, &holdings, total_held),
                Some(ShareExceeded { share, held: share_held, limit }),
                "{principal:?}"
            );
            holdings.update(principal, own_held, 0);
        }
        assert_eq!(holdings, ShareUsage::default(), "a principal that holds nothing has no entry");
    }

    /// Of the amount 64, one principal may hold 16, and 4 are reserved for fleet admins. Each row has the amount that
    /// all principals hold, the waiting requests, and the index of the next one.
    #[test]
    fn next_request_is_of_principal_with_least_usage() {
        let shares = Shares::from_total(64);
        let user_request = |amount, own_held| ShareRequest { amount, held: own_held, is_fleet_admin: false };
        let admin_request = |amount, own_held| ShareRequest { amount, held: own_held, is_fleet_admin: true };
        for (total_held, waiting, next) in [
            (0, vec![], None),
            (10, vec![user_request(5, 8), user_request(5, 2), user_request(5, 2)], Some(1)),
            (10, vec![user_request(5, 0), user_request(5, 0)], Some(0)),
            // The principal that holds nothing is next. Its request for 8 does not fit, so the request for 1 waits too.
            (53, vec![user_request(1, 10), user_request(8, 0)], None),
            (53, vec![user_request(1, 10), user_request(8, 0), admin_request(8, 8)], Some(2)),
            (57, vec![user_request(1, 10), user_request(8, 0), admin_request(8, 8)], None),
            // The first request exceeds the principal's own part.
            (20, vec![user_request(4, 14), user_request(2, 14)], Some(1)),
            (20, vec![user_request(4, 14)], None),
        ] {
            assert_eq!(shares.next_request(total_held, &waiting), next, "{total_held} {waiting:?}");
        }
    }
}
