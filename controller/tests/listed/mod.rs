//! A fleet whose lists are read, and writes beside that. Both the bench of lists and the test of who makes them ask here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::served::Served;

const GROUPS: usize = 20;

/// A cluster of so many nodes with templates to read.
pub(crate) async fn fill(served: &Served, nodes: usize) {
    let tasks: Vec<Value> = (0..12)
        .map(|n| {
            let parameters =
                json!({"path": format!("/etc/{n}.conf"), "template": "tier {{ labels.tier }} of {{ labels.site }}"});
            json!({"id": format!("conf-{n}"), "type": "file", "tags": ["web"], "parameters": parameters})
        })
        .collect();
    let mut objects = vec![
        json!({"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}}, "tasks": tasks}),
        json!({"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "standard", "debug": "true"}}),
        json!({"kind": "Cluster", "name": "prod", "cluster_template": "base", "labels": {"site": "fra1"}}),
    ];
    objects.extend((0..GROUPS).map(|n| {
        json!({"kind": "NodeGroup", "cluster": "prod", "name": format!("g{n}"), "roles": ["web"], "labels": {"tier": "gold"}})
    }));
    objects.extend((0..nodes).map(|n| {
        let rack = format!("r{}", n / 40);
        json!({"kind": "Node", "name": format!("n{n:05}"), "nodegroup": format!("prod/g{}", n % GROUPS), "labels": {"rack": rack}})
    }));
    for some in objects.chunks(1_000) {
        served.expect("POST", "/v1/apply?manager=bench", &json!({"objects": some}), 200).await;
    }
}

/// Edits a label of so many nodes, one after the other.
pub(crate) async fn edit(served: &Served, nodes: usize, value: &str) {
    for node in 0..nodes {
        let body = json!({"labels": {"edit": value}});
        served.expect("PATCH", &format!("/v1/nodes/n{node:05}/labels"), &body, 200).await;
    }
}

/// Reads all nodes in detail, page by page and again, until it is told to stop; gives how many pages.
pub(crate) async fn read_everything(served: Arc<Served>, stop: Arc<AtomicBool>) -> u32 {
    let mut pages = 0;
    let mut path = "/v1/nodes/detail".to_owned();
    while !stop.load(Ordering::Relaxed) {
        let text = served.text(&path).await;
        pages += 1;
        // As text: reading it as JSON would be the client's work, and runs here.
        let next =
            text.strip_prefix(b"{\"next\":\"http://localhost").and_then(|rest| rest.split(|byte| *byte == b'"').next());
        path = next.map_or_else(|| "/v1/nodes/detail".to_owned(), |next| String::from_utf8_lossy(next).into_owned());
    }
    pages
}
