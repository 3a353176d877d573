//! How many objects of each kind there may be.
//!
//! Each object has an end (`size`), and whoever writes is held to a pace. Without an end to their number a patient writer fills memory and
//! disk all the same. So each kind has a row here: how many there may be in the fleet and, where whoever is bound to a cluster makes them,
//! how many of these in one cluster, so that none takes the room of all others. Stored choices of primaries have none: they are as many as
//! the tags of clusters, which are bounded.
//!
//! They are counted in the model, as it is after the whole write: an apply that adds several counts them together, and one that deletes as
//! many as it makes is taken. A write that adds none is never refused. So a store that holds more already (of an older program, or of another
//! configuration) is read and changed as ever, and becomes smaller.
//!
//! A bound is not exact. Writes that are decided at the same moment do not see each other, and that they did would make hosts that join side
//! by side wait for each other (`order`). The next write is refused.

use std::collections::BTreeSet;

use stemma_core::access::Place;
use stemma_core::inspection::MAX_RULES;
use stemma_core::object::{AllocationSpec, ClusterId, Kind};
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use crate::cache::Model;
use crate::cache::model::Resource;

/// How many nodes there may be, unless the configuration says otherwise.
pub const MOST_NODES: u64 = 100_000;

/// How many there may be of something.
#[derive(Clone, Copy)]
enum Most {
    /// As many as nodes in the fleet.
    Nodes,
    /// Half as many.
    HalfOfNodes,
    /// So many.
    Of(usize),
}

/// How many there may be of one kind, and how they are counted.
struct Row {
    /// What they are called.
    what: &'static str,
    /// In the fleet.
    most: Most,
    count: fn(&Model) -> usize,
    /// In one cluster.
    within: Option<Within>,
}

/// How many there may be of one kind in one cluster.
struct Within {
    /// They are counted where such an object is written; `None`: where there come to be more in the fleet.
    kind: Option<Kind>,
    most: Most,
    count: fn(&Model, ClusterId) -> usize,
}

/// How many there are of something.
#[derive(Clone, Copy)]
struct Counted {
    before: usize,
    after: usize,
}

/// Every kind. `docs/api.md` has the same table, which a test compares.
static ROWS: [Row; 12] = [
    Row {
        what: "nodes",
        most: Most::Nodes,
        count: |model| model.nodes.len(),
        within: Some(Within {
            kind: Some(Kind::Node),
            most: Most::HalfOfNodes,
            count: |model, cluster| model.fleet.count_of(cluster),
        }),
    },
    Row {
        what: "node groups",
        most: Most::Of(20_000),
        count: |model| model.groups.len(),
        within: Some(Within {
            kind: Some(Kind::NodeGroup),
            most: Most::Of(10_000),
            count: |model, cluster| model.fleet.groups_of(cluster).count(),
        }),
    },
    Row { what: "clusters", most: Most::Of(10_000), count: |model| model.clusters.len(), within: None },
    Row { what: "cluster templates", most: Most::Of(1_000), count: |model| model.templates.len(), within: None },
    Row { what: "releases", most: Most::Of(10_000), count: |model| model.releases.len(), within: None },
    Row {
        what: "lists of tags beside releases",
        most: Most::Of(10_000),
        count: |model| model.release_tags.len(),
        within: None,
    },
    Row {
        what: "allocations",
        most: Most::Nodes,
        count: |model| model.allocations.len(),
        within: Some(Within {
            kind: Some(Kind::Allocation),
            most: Most::HalfOfNodes,
            count: |model, cluster| {
                let stands = |place: Place| place == Place::Cluster(cluster);
                model.allocations.iter().filter(|one| stands(AllocationSpec::place(model, one))).count()
            },
        }),
    },
    Row {
        what: "principals",
        most: Most::Of(10_000),
        count: |model| model.principals.len(),
        within: Some(Within {
            kind: Some(Kind::Principal),
            most: Most::Of(1_000),
            count: |model, cluster| {
                model.principals.iter().filter(|principal| principal.spec.cluster == Some(cluster)).count()
            },
        }),
    },
    // One for each host that is to join may be made beforehand. Those of a cluster are those that were made by who is bound to it.
    Row {
        what: "join tokens",
        most: Most::Nodes,
        count: |model| model.tokens.len(),
        within: Some(Within {
            kind: None,
            most: Most::HalfOfNodes,
            count: |model, cluster| model.tokens.values().filter(|token| token.record.within == Some(cluster)).count(),
        }),
    },
    Row { what: "inspection rules", most: Most::Of(MAX_RULES), count: |model| model.rules.len(), within: None },
    Row { what: "namespaces", most: Most::Of(1_000), count: |model| model.namespaces.len(), within: None },
    Row { what: "resource types", most: Most::Of(10_000), count: |model| model.resource_types.len(), within: None },
];

impl Work<'_> {
    /// Refuses a write that makes more of a kind than there may be.
    ///
    /// # Errors
    /// [`ErrorType::ObjectTooMany`], with how many there are and may be, and what to do.
    pub(super) fn check_counts(&self) -> Result<(), ApiError> {
        let (before, after) = (self.context.whole, &self.model);
        let clusters = self.clusters_written();
        for row in &ROWS {
            let fleet = Counted { before: (row.count)(before), after: (row.count)(after) };
            self.check_count(row.what, row.most, fleet, None)?;
            let Some(within) = &row.within else { continue };
            // No cluster has more than the fleet.
            if fleet.after <= self.most(within.most) {
                continue;
            }
            let is_written = match within.kind {
                Some(kind) => self.written().any(|(written, _)| written == kind),
                None => fleet.after > fleet.before,
            };
            if !is_written {
                continue;
            }
            for cluster in &clusters {
                let count = within.count;
                let counted = Counted { before: count(before, *cluster), after: count(after, *cluster) };
                self.check_count(row.what, within.most, counted, Some(*cluster))?;
            }
        }
        Ok(())
    }

    /// The clusters in which something stands that is written, and that of who asks.
    fn clusters_written(&self) -> BTreeSet<ClusterId> {
        let stands = |(kind, uuid)| match self.model.place_of(kind, uuid)? {
            Place::Cluster(cluster) => Some(cluster),
            Place::Shared | Place::Nowhere => None,
        };
        self.written().filter_map(stands).chain(self.context.caller.who.rights.within).collect()
    }

    fn most(&self, most: Most) -> usize {
        match most {
            Most::Nodes => self.context.most_nodes,
            Most::HalfOfNodes => self.context.most_nodes.div_ceil(2),
            Most::Of(most) => most,
        }
    }

    fn check_count(
        &self,
        what: &str,
        bound: Most,
        Counted { before, after }: Counted,
        cluster: Option<ClusterId>,
    ) -> Result<(), ApiError> {
        let most = self.most(bound);
        if after <= most || after <= before {
            return Ok(());
        }
        let whose = match cluster {
            Some(cluster) => format!("cluster {}", self.cluster_name(cluster)),
            None => "the fleet".to_owned(),
        };
        // How many others have is no matter of who is bound to a cluster.
        let is_told = cluster.is_some() || self.context.caller.who.rights.within.is_none();
        let message = if is_told {
            format!("{whose} would have {after} {what} ({before} now), and the most are {most}; nothing was changed")
        } else {
            format!("{whose} would have more {what} than it may have, which are {most}; nothing was changed")
        };
        Err(ApiError::new(ErrorType::ObjectTooMany, message).detail(advice(bound)))
    }
}

/// What to do about a refusal.
const fn advice(bound: Most) -> &'static str {
    match bound {
        Most::Nodes => {
            "make fewer, or delete some that are no longer used; most_nodes in the controller's configuration says how many there may be"
        }
        Most::HalfOfNodes => {
            "make fewer, or delete some that are no longer used; one cluster has half of most_nodes in the controller's configuration"
        }
        Most::Of(_) => "make fewer, or delete some that are no longer used",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(most: Most) -> String {
        let most = match most {
            Most::Nodes => 100_000,
            Most::HalfOfNodes => 50_000,
            Most::Of(most) => most,
        };
        if most < 1_000 { most.to_string() } else { format!("{},{:03}", most / 1_000, most % 1_000) }
    }

    #[test]
    fn x03_the_documentation_says_how_many_of_each_kind_there_may_be() {
        let row = |row: &Row| {
            let within = row.within.as_ref().map_or_else(|| "–".to_owned(), |within| text(within.most));
            format!("| {} | {} | {within} |", row.what, text(row.most))
        };
        let table: Vec<String> = ROWS.iter().map(row).collect();
        let lines = include_str!("../../../../docs/api.md").lines();
        let documented: Vec<&str> = lines
            .skip_while(|line| !line.starts_with("| of these | in the fleet"))
            .skip(2)
            .take_while(|line| line.starts_with("| "))
            .collect();
        assert_eq!(documented, table, "docs/api.md and the rows here differ");
    }
}
