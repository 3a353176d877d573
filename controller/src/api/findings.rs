//! Findings: what a person should know of a write or of a cluster, and nothing refuses.

use std::collections::BTreeSet;

use stemma_core::finding::Finding;
use stemma_core::graph::ClusterGraph;
use stemma_core::object::ClusterId;
use stemma_core::resolve::Outcome;
use stemma_core::validate;

use crate::cache::Model;
use crate::registry::work::Work;

/// The most findings that one answer lists.
const MOST: usize = 500;

/// The findings of a write: of what it reaches, that were not there before.
pub(super) fn of_write(work: &Work<'_>) -> Vec<Finding> {
    let mut clusters = BTreeSet::new();
    let mut findings = BTreeSet::new();
    for node in work.reach().dirty.nodes() {
        clusters.extend(work.model.cluster_of(node.0));
        if let Outcome::Complete(answer) = work.model.resolve(node.0)
            && findings.len() < MOST
        {
            findings.extend(answer.findings());
        }
    }
    for cluster in clusters {
        findings.extend(of_order(&work.model, cluster));
    }
    findings.into_iter().take(MOST).collect()
}

/// The findings of a cluster.
pub(super) fn of_cluster(model: &Model, cluster: ClusterId) -> Vec<Finding> {
    let mut findings: BTreeSet<Finding> = of_order(model, cluster).into_iter().collect();
    for node in model.fleet.nodes_of_cluster(cluster) {
        match model.resolve(node.0) {
            Outcome::Complete(answer) => findings.extend(answer.findings()),
            Outcome::Incomplete(missing) => findings.extend(
                missing
                    .iter()
                    .map(|what| Finding::error("node.incomplete", format!("node/{}", node.0), what.to_string())),
            ),
        }
    }
    findings.into_iter().take(MOST).collect()
}

fn of_order(model: &Model, cluster: ClusterId) -> Vec<Finding> {
    validate::cluster(&model.fleet, cluster, &ClusterGraph::of(&model.fleet, cluster))
}
