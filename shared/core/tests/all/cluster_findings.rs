//! Tests of the findings about a cluster's roles, tags, limits, tasks and requirements.

use std::sync::Arc;

use serde_json::json;
use stemma_core::fleet::FleetChange;
use stemma_core::object::Matching;
use stemma_core::resolve::{ResolveCache, resolve_cluster};

use crate::support::FuelScenario;

/// The scenario describes release `fuel@1` and cluster `c` in the form of Fuel. Role `unheld` and role `typo` have
/// mistakes: no node has the first, and the release does not declare the second.
#[test]
fn cluster_findings_cover_tags_tasks_roles_and_limits() {
    let scenario = json!({
        "tasks": [
            {"id": "run", "type": "shell", "parameters": {"script": "true"}, "role": ["app"]},
            {"id": "never", "type": "shell", "parameters": {"script": "true"}, "role": ["unheld"]},
        ],
        "roles_metadata": {
            "app": {"conflicts": ["db"], "limits": {"max": 2}, "tags": ["app"]},
            "db": {"limits": {"min": 2}, "tags": ["db"]},
            "unheld": {"limits": {"min": 1}, "tags": ["unheld"]},
        },
        "tags_metadata": {"app": {}, "db": {}, "unheld": {}},
        "nodes": [
            {"id": "n1", "roles": ["app"], "tags": ["app"]},
            {"id": "n2", "roles": ["app", "db"], "tags": ["app", "db"]},
            {"id": "n3", "roles": ["app", "typo"], "tags": ["app"]},
            {"id": "n4", "roles": ["db"], "tags": ["db", "unseen"]},
            {"id": "n5", "roles": ["typo"], "tags": []},
        ],
    });
    let site = FuelScenario::parse(&scenario, Matching::default()).expect("the release compiles");
    let findings = resolve_cluster(&site.fleet, &ResolveCache::new(), site.cluster).findings;
    let findings: Vec<_> =
        findings.iter().map(|finding| format!("{} {}: {}", finding.code, finding.object, finding.message)).collect();
    assert_eq!(
        findings,
        [
            "tag.unheld cluster/c tag/unheld: no node holds tag unheld, which release fuel@1 declares",
            "task.unplaced cluster/c task/never: task never of release fuel@1 runs on no node: it is placed by roles unheld",
            "role.conflict node/n2: has role app and role db, which conflict",
            "role.limit cluster/c role/app: role app requires at most 2 of the cluster's nodes, and 3 have it",
            "role.limit cluster/c role/unheld: role unheld requires at least 1 of the cluster's nodes, and 0 have it",
            "role.unknown node/n3: has role typo, which release fuel@1 does not declare: it produces no tag",
            "role.unknown node/n5: has role typo, which release fuel@1 does not declare: it produces no tag",
            "tag.unknown node/n4: is assigned tag unseen, which is declared neither in the release nor in the cluster",
        ]
    );
}

/// The requirement `>> 3` begins like the operator `>`, but is compared as a text.
#[test]
fn requirement_resembling_operator_is_finding() {
    let scenario = json!({
        "roles_metadata": {"db": {"has_primary": true, "tags": ["db"]}},
        "tags_metadata": {"db": {"has_primary": true}},
        "nodes": [{"id": "n1", "roles": ["db"], "tags": ["db"]}, {"id": "n2", "roles": ["db"], "tags": ["db"]}],
    });
    let mut site = FuelScenario::parse(&scenario, Matching::default()).expect("the release compiles");
    let findings = |site: &FuelScenario| -> Vec<String> {
        let findings = resolve_cluster(&site.fleet, &ResolveCache::new(), site.cluster).findings;
        findings
            .iter()
            .map(|finding| format!("{} {} {}: {}", finding.severity, finding.code, finding.object, finding.message))
            .collect()
    };
    assert_eq!(findings(&site), [""; 0]);
    // A valid entry of `primaries` is not a finding.
    let mut cluster = site.fleet.cluster(site.cluster).expect("the cluster exists").as_ref().clone();
    cluster.spec.primaries = [("db".parse().expect("a tag"), "n2".to_owned())].into();
    site.fleet.apply(FleetChange::Cluster(Arc::new(cluster)));
    let group = site.fleet.groups_in_cluster(site.cluster).next().expect("a group");
    let mut group = site.fleet.group(group).expect("the group exists").as_ref().clone();
    group.spec.requirements = serde_json::from_value(json!({"property:memory_mb": ">> 3"})).expect("requirements");
    site.fleet.apply(FleetChange::NodeGroup(Arc::new(group)));
    // Other findings follow, because the nodes do not meet the requirement.
    assert_eq!(
        findings(&site)[..1],
        [
            "warning requirement.text nodegroup/c/g: requirement property:memory_mb >> 3 compares with this exact text: an operator must be the first word, as in `>= 3`",
        ]
    );
}

/// Nodes n2 and n3 have no role, and their tags were assigned. The release declares only the tag of n3.
#[test]
fn undeclared_tag_is_finding_when_node_has_no_roles() {
    let scenario = json!({
        "roles_metadata": {"app": {"tags": ["app"]}},
        "tags_metadata": {"app": {}, "declared": {}},
        "nodes": [
            {"id": "n1", "roles": ["app"], "tags": ["app"]},
            {"id": "n2", "roles": [], "tags": ["unseen"]},
            {"id": "n3", "roles": [], "tags": ["declared"]},
        ],
    });
    let site = FuelScenario::parse(&scenario, Matching::default()).expect("the release compiles");
    let findings = resolve_cluster(&site.fleet, &ResolveCache::new(), site.cluster).findings;
    let findings: Vec<_> =
        findings.iter().map(|finding| format!("{} {}: {}", finding.code, finding.object, finding.message)).collect();
    assert_eq!(
        findings,
        ["tag.unknown node/n2: is assigned tag unseen, which is declared neither in the release nor in the cluster"]
    );
}

/// Role `app` gives tag `ghost`, which the release does not declare.
#[test]
fn release_findings_appear_in_clusters_running_release() {
    let scenario = json!({
        "tasks": [{"id": "run", "type": "shell", "parameters": {"script": "true"}, "tags": ["app"]}],
        "roles_metadata": {"app": {"tags": ["app", "ghost"]}},
        "tags_metadata": {"app": {}},
        "nodes": [{"id": "n1", "roles": ["app"], "tags": ["app"]}],
    });
    let site = FuelScenario::parse(&scenario, Matching::default()).expect("the release compiles");
    let findings = resolve_cluster(&site.fleet, &ResolveCache::new(), site.cluster).findings;
    assert!(findings.iter().any(|finding| finding.code == "tag.undeclared"), "{findings:?}");
}
