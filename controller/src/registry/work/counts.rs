//! Limits the number of objects of each kind.
//!
//! The size of each object is limited (`size`), and so is the rate of writes. Without a limit on the number of objects,
//! a patient writer could still fill memory and disk. So each kind has a rule here with its limit in the fleet. If
//! principals that are bound to a cluster can create the kind, it also has a limit in one cluster. So one cluster
//! cannot use up the limit of the fleet. Stored choices of primaries need no limit, because there are at most as many
//! as tags of clusters, which are limited.
//!
//! Objects are counted in the model after the whole write. An apply that adds several objects counts them together. An
//! apply that deletes as many objects as it creates is accepted. A write is refused only if a count grows: it adds an
//! object, or moves one into another cluster. So a store that already has too many objects (from an older version, or
//! with another configuration) can still be read and changed, and can shrink.
//!
//! A limit is not exact, because writes that are decided at the same moment do not see each other's objects. An exact
//! limit would make concurrently joining hosts wait for each other (`order`). The next write after the excess is
//! refused.

use std::collections::BTreeSet;

use stemma_core::access::AccessScope;
use stemma_core::inspection::MAX_RULES;
use stemma_core::object::{AllocationSpec, ClusterId, Kind};
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use crate::cache::Model;
use crate::cache::model::Resource;

/// Default maximum number of nodes in the fleet.
pub const DEFAULT_MAX_NODES: u64 = 100_000;

/// A limit on a number of objects.
#[derive(Clone, Copy)]
enum CountLimit {
    /// The configured maximum number of nodes in the fleet. It also limits the numbers of allocations and join tokens.
    Nodes,
    /// Half of [`CountLimit::Nodes`], rounded up. It is the limit of one cluster.
    HalfOfNodes,
    /// A fixed number.
    Fixed(usize),
}

/// The limits of one kind, and the function that counts its objects.
struct CountRule {
    /// The plural name of the kind, for messages.
    name: &'static str,
    /// Limit on the number of objects in the fleet.
    max: CountLimit,
    count: fn(&Model) -> usize,
    /// The limit in one cluster, or `None` if the kind has none.
    cluster_rule: Option<ClusterCountRule>,
}

/// The limit of one kind in one cluster, and the function that counts the objects of a cluster.
struct ClusterCountRule {
    /// The kind whose writes cause the check. With `None`, the limit is checked if the number of objects in the fleet
    /// grows.
    kind: Option<Kind>,
    max: CountLimit,
    count: fn(&Model, ClusterId) -> usize,
}

/// The numbers of objects before and after a write.
#[derive(Clone, Copy)]
struct CountChange {
    before: usize,
    after: usize,
}

/// All limits on numbers of objects. `docs/api.md` contains the same table, and a test compares the two.
static COUNT_RULES: [CountRule; 12] = [
    CountRule {
        name: "nodes",
        max: CountLimit::Nodes,
        count: |model| model.nodes.len(),
        cluster_rule: Some(ClusterCountRule {
            kind: Some(Kind::Node),
            max: CountLimit::HalfOfNodes,
            count: |model, cluster| model.fleet.node_count(cluster),
        }),
    },
    CountRule {
        name: "node groups",
        max: CountLimit::Fixed(20_000),
        count: |model| model.groups.len(),
        cluster_rule: Some(ClusterCountRule {
            kind: Some(Kind::NodeGroup),
            max: CountLimit::Fixed(10_000),
            count: |model, cluster| model.fleet.groups_in_cluster(cluster).count(),
        }),
    },
    CountRule { name: "clusters", max: CountLimit::Fixed(10_000), count: |model| model.clusters.len(), cluster_rule: None },
    CountRule {
        name: "cluster templates",
        max: CountLimit::Fixed(1_000),
        count: |model| model.templates.len(),
        cluster_rule: None,
    },
    CountRule { name: "releases", max: CountLimit::Fixed(10_000), count: |model| model.releases.len(), cluster_rule: None },
    CountRule {
        name: "lists of tags that are declared outside releases",
        max: CountLimit::Fixed(10_000),
        count: |model| model.release_tags.len(),
        cluster_rule: None,
    },
    CountRule {
        name: "allocations",
        max: CountLimit::Nodes,
        count: |model| model.allocations.len(),
        cluster_rule: Some(ClusterCountRule {
            kind: Some(Kind::Allocation),
            max: CountLimit::HalfOfNodes,
            count: |model, cluster| {
                let is_here = |place: AccessScope| place == AccessScope::Cluster(cluster);
                model.allocations.iter().filter(|item| is_here(AllocationSpec::access_scope(model, item))).count()
            },
        }),
    },
    CountRule {
        name: "principals",
        max: CountLimit::Fixed(10_000),
        count: |model| model.principals.len(),
        cluster_rule: Some(ClusterCountRule {
            kind: Some(Kind::Principal),
            max: CountLimit::Fixed(1_000),
            count: |model, cluster| model.principals.iter().filter(|principal| principal.spec.cluster == Some(cluster)).count(),
        }),
    },
    // A token can be created in advance for each host that will join. A token belongs to the cluster that its creator
    // is bound to.
    CountRule {
        name: "join tokens",
        max: CountLimit::Nodes,
        count: |model| model.tokens.len(),
        cluster_rule: Some(ClusterCountRule {
            kind: None,
            max: CountLimit::HalfOfNodes,
            count: |model, cluster| model.tokens.values().filter(|token| token.record.within == Some(cluster)).count(),
        }),
    },
    CountRule {
        name: "inspection rules",
        max: CountLimit::Fixed(MAX_RULES),
        count: |model| model.rules.len(),
        cluster_rule: None,
    },
    CountRule { name: "namespaces", max: CountLimit::Fixed(1_000), count: |model| model.namespaces.len(), cluster_rule: None },
    CountRule {
        name: "resource types",
        max: CountLimit::Fixed(10_000),
        count: |model| model.resource_types.len(),
        cluster_rule: None,
    },
];

impl PendingWrite<'_> {
    /// Refuses a write by which the number of objects of a kind grows and exceeds its limit in the fleet or a cluster.
    ///
    /// # Errors
    /// [`ErrorType::ObjectTooMany`], with the number, the limit, and advice.
    pub(super) fn check_counts(&self) -> Result<(), ApiError> {
        let (old_model, new_model) = (self.context.full_model, &self.model);
        let clusters = self.written_clusters();
        for kind_rule in &COUNT_RULES {
            let fleet_change = CountChange { before: (kind_rule.count)(old_model), after: (kind_rule.count)(new_model) };
            self.check_count(kind_rule.name, kind_rule.max, fleet_change, None)?;
            let Some(cluster_rule) = &kind_rule.cluster_rule else { continue };
            // No cluster has more objects than the fleet, so the counts of clusters need not be computed.
            if fleet_change.after <= self.max_count(cluster_rule.max) {
                continue;
            }
            let is_written = match cluster_rule.kind {
                Some(kind) => self.written_objects().any(|(written, _)| written == kind),
                None => fleet_change.after > fleet_change.before,
            };
            if !is_written {
                continue;
            }
            for cluster in &clusters {
                let count = cluster_rule.count;
                let cluster_change = CountChange { before: count(old_model, *cluster), after: count(new_model, *cluster) };
                self.check_count(kind_rule.name, cluster_rule.max, cluster_change, Some(*cluster))?;
            }
        }
        Ok(())
    }

    /// Returns the clusters of the written objects, and the cluster that the caller is bound to.
    fn written_clusters(&self) -> BTreeSet<ClusterId> {
        let cluster_of = |(kind, uuid)| match self.model.access_scope(kind, uuid)? {
            AccessScope::Cluster(cluster) => Some(cluster),
            AccessScope::Shared | AccessScope::Unplaced => None,
        };
        self.written_objects().filter_map(cluster_of).chain(self.context.caller.requester.rights.cluster).collect()
    }

    fn max_count(&self, limit: CountLimit) -> usize {
        match limit {
            CountLimit::Nodes => self.context.max_nodes,
            CountLimit::HalfOfNodes => self.context.max_nodes.div_ceil(2),
            CountLimit::Fixed(limit) => limit,
        }
    }

    /// Fails if the number of objects grows and exceeds the limit. `kind_name` is the plural name of their kind, for
    /// the message. The numbers and the limit are those of the cluster, or of the fleet if `cluster` is `None`.
    fn check_count(
        &self,
        kind_name: &str,
        limit: CountLimit,
        CountChange { before: old_count, after: new_count }: CountChange,
        cluster: Option<ClusterId>,
    ) -> Result<(), ApiError> {
        let max = self.max_count(limit);
        if new_count <= max || new_count <= old_count {
            return Ok(());
        }
        let owner = match cluster {
            Some(cluster) => format!("cluster {}", self.cluster_name(cluster)),
            None => "the fleet".to_owned(),
        };
        // A caller that is bound to a cluster may not see the number of objects in other clusters.
        let is_visible = cluster.is_some() || self.context.caller.requester.rights.cluster.is_none();
        let message = if is_visible {
            format!("{owner} would have {new_count} {kind_name} ({old_count} now), and the limit is {max}; nothing was changed")
        } else {
            format!("{owner} would have more {kind_name} than the limit of {max}; nothing was changed")
        };
        Err(ApiError::new(ErrorType::ObjectTooMany, message).detail(advice(limit)))
    }
}

/// Returns the advice to a user whose write exceeds this limit.
const fn advice(limit: CountLimit) -> &'static str {
    match limit {
        CountLimit::Nodes => "create fewer, or delete unused ones; most_nodes in the controller's configuration sets the limit",
        CountLimit::HalfOfNodes => {
            "create fewer, or delete unused ones; the limit of one cluster is half of most_nodes in the controller's configuration"
        }
        CountLimit::Fixed(_) => "create fewer, or delete unused ones",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a limit as `docs/api.md` shows it: with the default number of nodes, and a comma after the thousands.
    fn text(limit: CountLimit) -> String {
        let limit = match limit {
            CountLimit::Nodes => 100_000,
            CountLimit::HalfOfNodes => 50_000,
            CountLimit::Fixed(limit) => limit,
        };
        if limit < 1_000 { limit.to_string() } else { format!("{},{:03}", limit / 1_000, limit % 1_000) }
    }

    #[test]
    fn x03_documentation_lists_count_limit_of_each_kind() {
        let table_row = |rule: &CountRule| {
            let cluster_limit = rule.cluster_rule.as_ref().map_or_else(|| "–".to_owned(), |cluster_rule| text(cluster_rule.max));
            format!("| {} | {} | {cluster_limit} |", rule.name, text(rule.max))
        };
        let table: Vec<String> = COUNT_RULES.iter().map(table_row).collect();
        let lines = include_str!("../../../../docs/api.md").lines();
        let documented: Vec<&str> = lines
            .skip_while(|line| !line.starts_with("| of these | in the fleet"))
            // The heading of the table, and the line below it.
            .skip(2)
            .take_while(|line| line.starts_with("| "))
            .collect();
        assert_eq!(documented, table, "docs/api.md and the rows here differ");
    }
}
