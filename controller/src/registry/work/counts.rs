//! Limits the number of objects of each kind.
//!
//! The size of each object is limited (`size`), and so is the rate of writes. Without a limit on their number, a
//! patient writer could still fill memory and disk. So each kind has a row here: its limit in the fleet and, if
//! principals bound to a cluster can create it, its limit in one cluster, so that no cluster uses up the room of all
//! others. Stored choices of primaries need no limit. There are as many as tags of clusters, which are limited.
//!
//! Objects are counted in the model after the whole write. An apply that adds several counts them together, and one
//! that deletes as many as it creates is accepted. A write that adds none is never refused. So a store that already has
//! more (of an older version, or with another configuration) can still be read and changed, and can shrink.
//!
//! A limit is not exact. Writes that are decided at the same moment do not see each other. If they had to, hosts that
//! join concurrently would wait for each other (`order`). The next write is refused.

use std::collections::BTreeSet;

use stemma_core::access::AccessScope;
use stemma_core::inspection::MAX_RULES;
use stemma_core::object::{AllocationSpec, ClusterId, Kind};
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use crate::cache::Model;
use crate::cache::model::Resource;

/// Default maximum number of nodes.
pub const DEFAULT_MAX_NODES: u64 = 100_000;

/// The limit on a number of objects.
#[derive(Clone, Copy)]
enum CountLimit {
    /// The maximum number of nodes in the fleet.
    Nodes,
    /// Half of the maximum number of nodes in the fleet.
    HalfOfNodes,
    /// A fixed number.
    Fixed(usize),
}

/// The limits of one kind, and how its objects are counted.
struct CountRule {
    /// The plural name of the kind, for messages.
    name: &'static str,
    /// The limit on the number of objects in the fleet.
    max: CountLimit,
    count: fn(&Model) -> usize,
    /// The limit in one cluster; `None` if there is none.
    cluster_rule: Option<ClusterCountRule>,
}

/// The limit of one kind in one cluster.
struct ClusterCountRule {
    /// The limit is checked if an object of this kind is written or, with `None`, if the number in the fleet grows.
    kind: Option<Kind>,
    max: CountLimit,
    count: fn(&Model, ClusterId) -> usize,
}

/// The number of objects before and after a write.
#[derive(Clone, Copy)]
struct CountChange {
    before: usize,
    after: usize,
}

/// The limits of all kinds. `docs/api.md` has the same table, and a test compares them.
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
                model.allocations.iter().filter(|one| is_here(AllocationSpec::access_scope(model, one))).count()
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
    // A token for each joining host may be created in advance. Tokens of a cluster are those whose creator is bound to
    // it.
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
    /// Refuses a write that exceeds the limit of a kind.
    ///
    /// # Errors
    /// [`ErrorType::ObjectTooMany`], with the number, the limit, and what to do.
    pub(super) fn check_counts(&self) -> Result<(), ApiError> {
        let (before, after) = (self.context.full_model, &self.model);
        let clusters = self.written_clusters();
        for row in &COUNT_RULES {
            let fleet = CountChange { before: (row.count)(before), after: (row.count)(after) };
            self.check_count(row.name, row.max, fleet, None)?;
            let Some(rule) = &row.cluster_rule else { continue };
            // No cluster has more objects than the fleet.
            if fleet.after <= self.max_count(rule.max) {
                continue;
            }
            let is_written = match rule.kind {
                Some(kind) => self.written_objects().any(|(written, _)| written == kind),
                None => fleet.after > fleet.before,
            };
            if !is_written {
                continue;
            }
            for cluster in &clusters {
                let count = rule.count;
                let counted = CountChange { before: count(before, *cluster), after: count(after, *cluster) };
                self.check_count(row.name, rule.max, counted, Some(*cluster))?;
            }
        }
        Ok(())
    }

    /// Returns the clusters of written objects, and the cluster that the caller is bound to.
    fn written_clusters(&self) -> BTreeSet<ClusterId> {
        let cluster_of = |(kind, uuid)| match self.model.access_scope(kind, uuid)? {
            AccessScope::Cluster(cluster) => Some(cluster),
            AccessScope::Shared | AccessScope::Unplaced => None,
        };
        self.written_objects().filter_map(cluster_of).chain(self.context.caller.requester.rights.cluster).collect()
    }

    fn max_count(&self, most: CountLimit) -> usize {
        match most {
            CountLimit::Nodes => self.context.max_nodes,
            CountLimit::HalfOfNodes => self.context.max_nodes.div_ceil(2),
            CountLimit::Fixed(most) => most,
        }
    }

    /// Fails if the number of objects grows and exceeds the limit. `what` is the plural name of their kind. The limit
    /// is that of the cluster, or of the fleet if `cluster` is `None`.
    fn check_count(
        &self,
        what: &str,
        bound: CountLimit,
        CountChange { before, after }: CountChange,
        cluster: Option<ClusterId>,
    ) -> Result<(), ApiError> {
        let most = self.max_count(bound);
        if after <= most || after <= before {
            return Ok(());
        }
        let whose = match cluster {
            Some(cluster) => format!("cluster {}", self.cluster_name(cluster)),
            None => "the fleet".to_owned(),
        };
        // A caller that is bound to a cluster may not learn the number of objects elsewhere.
        let is_visible = cluster.is_some() || self.context.caller.requester.rights.cluster.is_none();
        let message = if is_visible {
            format!("{whose} would have {after} {what} ({before} now), and the limit is {most}; nothing was changed")
        } else {
            format!("{whose} would have more {what} than the limit of {most}; nothing was changed")
        };
        Err(ApiError::new(ErrorType::ObjectTooMany, message).detail(advice(bound)))
    }
}

/// Returns the advice for an exceeded limit.
const fn advice(bound: CountLimit) -> &'static str {
    match bound {
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

    fn text(most: CountLimit) -> String {
        let most = match most {
            CountLimit::Nodes => 100_000,
            CountLimit::HalfOfNodes => 50_000,
            CountLimit::Fixed(most) => most,
        };
        if most < 1_000 { most.to_string() } else { format!("{},{:03}", most / 1_000, most % 1_000) }
    }

    #[test]
    fn x03_documentation_lists_count_limit_of_each_kind() {
        let row = |row: &CountRule| {
            let within = row.cluster_rule.as_ref().map_or_else(|| "–".to_owned(), |within| text(within.max));
            format!("| {} | {} | {within} |", row.name, text(row.max))
        };
        let table: Vec<String> = COUNT_RULES.iter().map(row).collect();
        let lines = include_str!("../../../../docs/api.md").lines();
        let documented: Vec<&str> = lines
            .skip_while(|line| !line.starts_with("| of these | in the fleet"))
            .skip(2)
            .take_while(|line| line.starts_with("| "))
            .collect();
        assert_eq!(documented, table, "docs/api.md and the rows here differ");
    }
}
