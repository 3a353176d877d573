//! A fleet whose nodes are listed, for the lists bench and for the test that counts the cost of lists.

use serde_json::{Value, json};

use crate::served::TestApi;

const GROUPS: usize = 20;

/// Adds a cluster of `nodes` nodes in 20 groups. Each node runs 12 tasks with templates.
pub(crate) async fn add_nodes(api: &TestApi, nodes: usize) {
    add_nodes_with(api, nodes, |_| json!({})).await;
}

/// Adds a cluster as [`add_nodes`] does. `extra_fields` returns additional fields of the node with the given number.
pub(crate) async fn add_nodes_with(api: &TestApi, nodes: usize, extra_fields: fn(usize) -> Value) {
    let tasks: Vec<Value> = (0..12)
        .map(|number| {
            let parameters =
                json!({"path": format!("/etc/{number}.conf"), "template": "tier {{ labels.tier }} of {{ labels.site }}"});
            json!({"id": format!("conf-{number}"), "type": "file", "tags": ["web"], "parameters": parameters})
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
    objects.extend((0..GROUPS).map(|number| {
        json!({"kind": "NodeGroup", "cluster": "prod", "name": format!("g{number}"), "roles": ["web"], "labels": {"tier": "gold"}})
    }));
    objects.extend((0..nodes).map(|number| {
        let rack = format!("r{}", number / 40);
        let mut node = json!({"kind": "Node", "name": format!("n{number:05}"), "nodegroup": format!("prod/g{}", number % GROUPS), "labels": {"rack": rack}});
        if let (Value::Object(node), Value::Object(extra_fields)) = (&mut node, extra_fields(number)) {
            node.extend(extra_fields);
        }
        node
    }));
    for chunk in objects.chunks(1_000) {
        api.expect("POST", "/v1/apply?manager=bench", &json!({"objects": chunk}), 200).await;
    }
}

/// Returns fields of the node with this number, for filters. Some values occur in many nodes, and others in few.
pub(crate) fn varied_fields(number: usize) -> Value {
    // Returns true for one number in each interval of this length.
    let is_nth = |interval: usize| number % interval == interval - 1;
    let traits = [("CUSTOM_HALF", 2), ("CUSTOM_SOME", 89), ("CUSTOM_FEW", 97), ("CUSTOM_RARE", 997)];
    let traits: Vec<&str> = traits.into_iter().filter(|(_, interval)| is_nth(*interval)).map(|(name, _)| name).collect();
    let mut node = json!({
        "traits": traits, "properties": {"memory_mb": 1024 * (number % 128)}, "owner": format!("team-{}", number % 50), "parked": is_nth(503),
        "labels": {"rack": format!("r{}", number / 40), "serial": format!("s{number}")},
    });
    if is_nth(101) {
        node["labels"]["tier"] = "silver".into();
    }
    if is_nth(499) {
        node["roles"] = json!(["db"]);
    }
    node
}

/// Query strings of filters, each with whether the index supports the filter.
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
