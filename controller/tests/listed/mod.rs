//! A fleet whose lists are read, for the lists bench and for the test that counts their work.

use serde_json::{Value, json};

use crate::served::TestApi;

const GROUPS: usize = 20;

/// Adds a cluster of this many nodes with templates.
pub(crate) async fn add_nodes(served: &TestApi, nodes: usize) {
    add_nodes_with(served, nodes, |_| json!({})).await;
}

/// Adds the same, with additional fields of each node by its number.
pub(crate) async fn add_nodes_with(served: &TestApi, nodes: usize, more: fn(usize) -> Value) {
    let tasks: Vec<Value> = (0..12)
        .map(|n| {
            let parameters = json!({"path": format!("/etc/{n}.conf"), "template": "tier {{ labels.tier }} of {{ labels.site }}"});
            json!({"id": format!("conf-{n}"), "type": "file", "tags": ["web"], "parameters": parameters})
        })
        .collect();
    let mut objects = vec![
        json!({
            "kind": "Release", "name": "site", "version": "1", "tasks": tasks,
            "roles": {"web": {"tags": ["web"]}, "db": {"tags": ["db"]}}, "tags": {"web": {}, "db": {}},
        }),
        json!({"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "standard", "debug": "true"}}),
        json!({"kind": "Cluster", "name": "prod", "cluster_template": "base", "labels": {"site": "fra1"}}),
    ];
    objects.extend((0..GROUPS).map(|n| {
        json!({"kind": "NodeGroup", "cluster": "prod", "name": format!("g{n}"), "roles": ["web"], "labels": {"tier": "gold"}})
    }));
    objects.extend((0..nodes).map(|n| {
        let rack = format!("r{}", n / 40);
        let mut node = json!({"kind": "Node", "name": format!("n{n:05}"), "nodegroup": format!("prod/g{}", n % GROUPS), "labels": {"rack": rack}});
        if let (Value::Object(node), Value::Object(more)) = (&mut node, more(n)) {
            node.extend(more);
        }
        node
    }));
    for some in objects.chunks(1_000) {
        served.expect("POST", "/v1/apply?manager=bench", &json!({"objects": some}), 200).await;
    }
}

/// Returns the fields that filters read, rare and common ones, by a node's number.
pub(crate) fn varied_fields(n: usize) -> Value {
    let is_each = |of: usize| n % of == of - 1;
    let traits = [("CUSTOM_HALF", 2), ("CUSTOM_SOME", 89), ("CUSTOM_FEW", 97), ("CUSTOM_RARE", 997)];
    let traits: Vec<&str> = traits.into_iter().filter(|(_, of)| is_each(*of)).map(|(name, _)| name).collect();
    let mut node = json!({
        "traits": traits, "properties": {"memory_mb": 1024 * (n % 128)}, "owner": format!("team-{}", n % 50), "parked": is_each(503),
        "labels": {"rack": format!("r{}", n / 40), "serial": format!("s{n}")},
    });
    if is_each(101) {
        node["labels"]["tier"] = "silver".into();
    }
    if is_each(499) {
        node["roles"] = json!(["db"]);
    }
    node
}

/// Filters of lists, and whether the index supports them.
pub(crate) const FILTERS: &[(&str, bool)] = &[
    ("", true),
    ("traits=CUSTOM_HALF", true),
    ("traits=CUSTOM_RARE", true),
    ("traits=CUSTOM_SOME,CUSTOM_FEW", true),
    ("traits-any=CUSTOM_RARE,CUSTOM_FEW", true),
    ("not-traits=CUSTOM_HALF", true),
    ("not-traits-any=CUSTOM_HALF,CUSTOM_RARE", true),
    ("selector=tier%3Dgold", true),
    ("selector=tier%3Dsilver", true),
    ("selector=tier%21%3Dgold", true),
    ("selector=rack%3Dr7", true),
    ("selector=rack+notin+(r0,r1,r2)", true),
    ("selector=%21rack", true),
    ("selector=site%3Dfra1,tier%3Dsilver", true),
    // A label that has another value on each node.
    ("selector=serial%3Ds7", true),
    ("selector=serial+notin+(s1,s2)", true),
    ("selector=serial", true),
    ("selector=%21serial", true),
    ("requirement=serial+%3Cor%3E+s7+%3Cor%3E+s9", true),
    ("tag=web", true),
    ("tag=db", true),
    ("role=db", true),
    ("nodegroup=prod/g7", true),
    ("cluster=prod", true),
    ("nodegroup=prod/g7&traits=CUSTOM_RARE", true),
    ("requirement=trait:CUSTOM_RARE+required", true),
    ("requirement=property:memory_mb+%3E%3D+130048", true),
    ("owner=team-7", true),
    ("maintenance=true", true),
    ("provision_state=active", true),
    ("sort_key=name", true),
    ("sort_key=name&sort_dir=desc&tag=web", true),
    ("sort_key=name&role=db", true),
    ("sort_key=name&traits=CUSTOM_HALF", true),
    ("sort_key=updated_at&role=db", true),
    ("sort_key=updated_at", false),
    ("requirement=fact:os.id+debian", false),
    ("requirement=param:replicas+3", false),
    ("state=failed", false),
];
