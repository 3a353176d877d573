//! Tests of lists: the filters of nodes find the right nodes in every order. Paging continues while others write.
//! Unknown filters and invalid values are refused.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_wire::endpoint::{Endpoint, Method, PAGING_PARAMETERS, SocketKind};

use crate::served::TestApi;

/// Number of nodes with a name, enough to fill several blocks of the list's index. One more node has no name.
const NODES: usize = 1_300;

/// Returns the node with this number. Most fields that [`FILTER_CASES`] reads differ between some of the nodes.
fn node(number: usize) -> Value {
    let mut node = json!({
        "kind": "Node", "name": format!("n{number:04}"), "labels": {"rack": format!("r{}", number % 7)},
        "properties": {"memory_mb": 1024 * (number % 16), "cpus": format!("{}", number % 5)},
    });
    let body = node.as_object_mut().expect("an object");
    if !number.is_multiple_of(11) {
        body.insert("nodegroup".into(), format!("prod/g{}", number % 3).into());
    }
    match number % 13 {
        0 => drop(body.insert("merge_labels".into(), false.into())),
        1 => body["labels"]["tier"] = "silver".into(),
        2 => body["labels"]["tier"] = Value::Null,
        3 => drop(body.insert("roles".into(), json!(["db"]))),
        4 => drop(body.insert("parked".into(), true.into())),
        5 => drop(body.insert("traits".into(), json!(["CUSTOM_A"]))),
        6 => drop(body.insert("traits".into(), json!(["CUSTOM_A", "CUSTOM_B"]))),
        7 => drop(body.insert("owner".into(), "anna".into())),
        _ => {}
    }
    node
}

/// Creates a release, two clusters, three groups, `NODES` nodes of [`node`], and one node without a name.
async fn create_fleet(api: &TestApi) {
    let release = json!({
        "kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}, "db": {"tags": ["db"]}},
        "tags": {"web": {}, "db": {}}, "tasks": [],
    });
    let group = |name: &str, fields: Value| {
        let mut group = json!({"kind": "NodeGroup", "cluster": "prod", "name": name, "roles": ["web"]});
        group.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        group
    };
    let mut objects = vec![
        release,
        json!({"kind": "Cluster", "name": "prod", "release": "site@1", "labels": {"site": "fra1"}}),
        json!({"kind": "Cluster", "name": "empty"}),
        group("g0", json!({"labels": {"tier": "gold"}})),
        group("g1", json!({"labels": {"tier": "bronze", "level": "3"}})),
        group("g2", json!({"roles": []})),
    ];
    // The nodes are not created in the order of their names.
    objects.extend((0..NODES).map(|number| node(number * 7 % NODES)));
    for batch in objects.chunks(500) {
        api.expect("POST", "/v1/apply?manager=test", &json!({"objects": batch}), 200).await;
    }
    api.expect("POST", "/v1/nodes", &json!({"driver": "fake"}), 201).await;
}

/// Returns the nodes on all pages of a list of nodes.
async fn nodes_on_all_pages(api: &TestApi, mut path: String) -> Vec<Value> {
    let mut nodes = Vec::new();
    loop {
        let page = api.get(&path).await;
        nodes.extend(page["nodes"].as_array().into_iter().flatten().cloned());
        let Some(next_path) = page["next"].as_str().and_then(|next_path| next_path.strip_prefix("http://localhost")) else {
            return nodes;
        };
        next_path.clone_into(&mut path);
    }
}

fn object_name(object: &Value) -> String {
    object["name"].as_str().unwrap_or_default().to_owned()
}

/// Returns the names of the nodes that match a query, in the order of the list. Reads all pages.
async fn matching_names(api: &TestApi, query: &str) -> Vec<String> {
    nodes_on_all_pages(api, format!("/v1/nodes?{query}&fields=name&limit=97")).await.iter().map(object_name).collect()
}

/// Returns the texts in a list field of a node.
fn text_values<'a>(node: &'a Value, field: &str) -> Vec<&'a str> {
    node[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A filter of the node list, and a function that returns whether a node with all its fields matches the filter.
type FilterCase = (&'static str, fn(&Value) -> bool);

const FILTER_CASES: &[FilterCase] = &[
    ("traits=CUSTOM_A", |row| text_values(row, "traits").contains(&"CUSTOM_A")),
    ("traits=CUSTOM_A,CUSTOM_B", |row| text_values(row, "traits").len() == 2),
    ("traits-any=CUSTOM_A,CUSTOM_B", |row| !text_values(row, "traits").is_empty()),
    ("not-traits=CUSTOM_A,CUSTOM_B", |row| text_values(row, "traits").is_empty()),
    ("not-traits-any=CUSTOM_A,CUSTOM_B", |row| text_values(row, "traits").len() < 2),
    ("traits=CUSTOM_A&not-traits=CUSTOM_A", |_| false),
    ("traits=CUSTOM_A&not-traits=CUSTOM_B&cluster=prod", |row| {
        text_values(row, "traits") == ["CUSTOM_A"] && !row["nodegroup"].is_null()
    }),
    ("selector=tier%3Dgold", |row| row["labels"]["tier"] == "gold"),
    ("selector=tier%21%3Dgold", |row| row["labels"]["tier"] != "gold"),
    ("selector=tier", |row| !row["labels"]["tier"].is_null()),
    ("selector=%21tier", |row| row["labels"]["tier"].is_null()),
    ("selector=tier+in+(silver,bronze)", |row| ["silver", "bronze"].map(Value::from).contains(&row["labels"]["tier"])),
    ("selector=tier+notin+(silver,gold)", |row| !["silver", "gold"].map(Value::from).contains(&row["labels"]["tier"])),
    ("selector=level%3E2", |row| row["labels"]["level"] == "3"),
    ("selector=rack%3Dr3,site%3Dfra1", |row| row["labels"]["rack"] == "r3" && row["labels"]["site"] == "fra1"),
    ("selector=reported:x", |_| false),
    ("tag=db", |row| text_values(row, "tags").contains(&"db")),
    ("tag=db,web", |row| text_values(row, "tags").len() == 2),
    ("tag=db&tag=nowhere", |_| false),
    ("role=web", |row| text_values(row, "roles").contains(&"web")),
    ("role=web,db", |row| text_values(row, "roles").len() == 2),
    ("nodegroup=prod/g1", |row| row["nodegroup"] == "prod/g1"),
    ("nodegroup=g2", |row| row["nodegroup"] == "prod/g2"),
    ("cluster=prod", |row| !row["nodegroup"].is_null()),
    ("cluster=empty", |_| false),
    ("requirement=property:memory_mb+%3E%3D+14336", |row| {
        row["properties"]["memory_mb"].as_u64().is_some_and(|size| size >= 14336)
    }),
    ("requirement=property:cpus+%3Cor%3E+3+%3Cor%3E+4&requirement=trait:CUSTOM_A+forbidden", |row| {
        ["3", "4"].map(Value::from).contains(&row["properties"]["cpus"]) && text_values(row, "traits").is_empty()
    }),
    ("requirement=tier+gold", |row| row["labels"]["tier"] == "gold"),
    ("requirement=fact:os.id+debian", |_| false),
    ("maintenance=true", |row| row["parked"] == true),
    ("maintenance=false", |row| row["parked"] == false),
    ("associated=true", |_| false),
    ("owner=anna", |row| row["owner"] == "anna"),
    ("driver=fake", |row| row["name"].is_null()),
    ("provision_state=enroll&role=db", |row| text_values(row, "roles").contains(&"db")),
    ("provision_state=active", |_| false),
    ("deleting=true", |_| false),
    ("deleting=false&owner=anna", |row| row["owner"] == "anna"),
];

#[tokio::test]
async fn list_filters_return_matches_by_creation_and_by_name() {
    let api = TestApi::start().await;
    create_fleet(&api).await;
    let nodes = nodes_on_all_pages(&api, "/v1/nodes/detail".to_owned()).await;
    assert_eq!(nodes.len(), NODES + 1);
    for (query, matches) in FILTER_CASES {
        let mut expected: Vec<String> = nodes.iter().filter(|node| matches(node)).map(object_name).collect();
        assert_eq!(matching_names(&api, query).await, expected, "{query}");
        expected.reverse();
        assert_eq!(matching_names(&api, &format!("{query}&sort_dir=desc")).await, expected, "{query}");
        expected.sort();
        assert_eq!(matching_names(&api, &format!("{query}&sort_key=name")).await, expected, "{query} by name");
        assert_eq!(matching_names(&api, &format!("{query}&sort_key=uuid")).await.len(), expected.len(), "{query} by uuid");
        expected.reverse();
        let by_name = matching_names(&api, &format!("{query}&sort_key=name&sort_dir=desc")).await;
        assert_eq!(by_name, expected, "{query} by name, the last first");
    }
}

/// Each case is a write, and the list that a query returns directly after it.
#[tokio::test]
async fn list_changes_after_write() {
    let api = TestApi::start().await;
    create_fleet(&api).await;
    let edits = [
        ("PATCH", "/v1/nodes/n0005/labels", json!({"labels": {"tier": "tin"}}), "selector=tier%3Dtin", &["n0005"][..]),
        ("PATCH", "/v1/nodes/n0005/labels", json!({"labels": {"tier": null}}), "selector=tier%3Dtin", &[]),
        ("PUT", "/v1/nodes/n0007/traits", json!({"traits": ["CUSTOM_NEW"]}), "traits=CUSTOM_NEW", &["n0007"]),
        ("PUT", "/v1/nodes/n0007/traits", json!({"traits": []}), "traits=CUSTOM_NEW", &[]),
        (
            "POST",
            "/v1/nodes/n0002/roles",
            json!({"roles": ["db"]}),
            "role=db&nodegroup=g2&selector=rack%3Dr2&limit=1",
            &["n0002"],
        ),
        ("POST", "/v1/nodes/n0002/tags", json!({"assign": ["db"]}), "tag=db&nodegroup=g2&selector=rack%3Dr2&limit=1", &["n0002"]),
        ("PATCH", "/v1/clusters/prod/labels", json!({"labels": {"site": "ber1"}}), "selector=site%3Dfra1", &[]),
    ];
    for (method, path, body, query, expected) in edits {
        let response = api.send(method, path, &[], Some(&body)).await;
        assert!(response.status < 300, "{method} {path}: {}", response.body);
        let page = api.get(&format!("/v1/nodes?{query}&sort_key=name")).await;
        let listed_names: Vec<&str> = page["nodes"].as_array().unwrap().iter().filter_map(|node| node["name"].as_str()).collect();
        assert_eq!(listed_names, expected, "{query} after {method} {path}");
    }
    // 90 nodes of the cluster do not inherit the label, because their merge_labels is false.
    assert_eq!(matching_names(&api, "selector=site%3Dber1").await.len(), matching_names(&api, "cluster=prod").await.len() - 90);
}

/// Nodes without a name (only a driver) come last in the descending order of names. Regression: a page that ended with
/// one of them was the last page, so the other nodes without a name were missing.
#[tokio::test]
async fn list_by_name_has_every_unnamed_node_when_descending() {
    let api = TestApi::start().await;
    for body in [
        json!({"name": "a"}),
        json!({"driver": "fake"}),
        json!({"name": "b"}),
        json!({"driver": "fake"}),
        json!({"driver": "fake"}),
    ] {
        api.expect("POST", "/v1/nodes", &body, 201).await;
    }
    for (direction, expected_names) in [("asc", ["", "", "", "a", "b"]), ("desc", ["b", "a", "", "", ""])] {
        let nodes = nodes_on_all_pages(&api, format!("/v1/nodes?sort_key=name&sort_dir={direction}&limit=1")).await;
        assert_eq!(nodes.iter().map(object_name).collect::<Vec<_>>(), expected_names, "{direction}");
        let uuids: BTreeSet<&str> = nodes.iter().filter_map(|node| node["uuid"].as_str()).collect();
        assert_eq!(uuids.len(), nodes.len(), "each node is listed once");
    }
}

#[tokio::test]
async fn list_pages_continue_when_objects_are_added_and_deleted() {
    let api = TestApi::start().await;
    let nodes: Vec<Value> = (0..20).map(|n| json!({"kind": "Node", "name": format!("n{n:02}"), "labels": {"a": "b"}})).collect();
    api.expect("POST", "/v1/apply?manager=test", &json!({"objects": nodes}), 200).await;
    for order in ["", "&sort_key=name", "&sort_dir=desc", "&sort_key=name&sort_dir=desc", "&sort_key=uuid"] {
        let first_page = api.get(&format!("/v1/nodes?selector=a%3Db&limit=5{order}")).await;
        let next_path = first_page["next"].as_str().unwrap().strip_prefix("http://localhost").unwrap().to_owned();
        let name_at = |page: &Value, index: usize| page["nodes"][index]["name"].as_str().unwrap().to_owned();
        let names_on = |page: &Value| {
            (0..page["nodes"].as_array().unwrap().len()).map(|index| name_at(page, index)).collect::<BTreeSet<_>>()
        };
        let second_page = api.get(&next_path).await;
        assert!(names_on(&first_page).is_disjoint(&names_on(&second_page)), "{order}");
        // A node of the first page and a node of the second page are deleted. The marker, which is the last node of the
        // first page, loses its label, so it no longer matches. The rest of the second page remains the same.
        let (first_page_node, second_page_node, marker) =
            (name_at(&first_page, 0), name_at(&second_page, 0), name_at(&first_page, 4));
        for name in [&first_page_node, &second_page_node] {
            assert_eq!(api.send("DELETE", &format!("/v1/nodes/{name}"), &[], None).await.status, 204);
        }
        api.expect("PATCH", &format!("/v1/nodes/{marker}/labels"), &json!({"labels": {"a": null}}), 200).await;
        let second_page_again = api.get(&next_path).await;
        assert!(
            names_on(&second_page).difference(&names_on(&second_page_again)).eq([&second_page_node]),
            "{order}: {:?}, {:?}",
            names_on(&second_page),
            names_on(&second_page_again)
        );
        // When the marker is deleted, it has no position in the order, so the next page is not found.
        assert_eq!(api.send("DELETE", &format!("/v1/nodes/{marker}"), &[], None).await.status, 204);
        let response = api.send("GET", &next_path, &[], None).await;
        assert_eq!(
            (response.status, response.body["error"]["field"].as_str()),
            (404, Some("marker")),
            "{order}: {}",
            response.body
        );
        for name in [first_page_node, second_page_node, marker] {
            let body = json!({"objects": [{"kind": "Node", "name": name, "labels": {"a": "b"}}]});
            api.expect("POST", "/v1/apply?manager=test", &body, 200).await;
        }
    }
}

/// Names of the filters of Ironic's node list that compare texts.
const IRONIC_TEXT_FILTERS: [&str; 7] =
    ["resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// Paths of the lists in Ironic's API that accept the parameter `fields`.
const IRONIC_LISTS: [&str; 3] = ["/v1/nodes", "/v1/allocations", "/v1/inspection_rules"];

/// The version header of Ironic's clients.
const IRONIC_HEADER: (&str, &str) = ("x-openstack-ironic-api-version", "latest");

/// Tests every list of the admin listener that has pages, except those of Glance's API, on a fleet with one cluster.
#[tokio::test]
async fn list_rejects_invalid_filter_and_empty_value() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/clusters", &json!({"name": "c1"}), 202).await;
    let is_list = |endpoint: &&Endpoint| {
        let route = endpoint.route();
        let pages = route.query.parameter_names().any(|name| name == PAGING_PARAMETERS[0]) && !route.path.starts_with("/v2/");
        route.listener == SocketKind::Admin && route.method == Method::Get && pages
    };
    for endpoint in Endpoint::ALL.iter().filter(is_list) {
        let path = endpoint.route().path.replace("{cluster}", "c1");
        for query in ["bogus=1", "limit=0", "limit=x", "limit=", "sort_dir=up", "sort_key=bogus", "marker=x", "marker="] {
            let response = api.send("GET", &format!("{path}?{query}"), &[], None).await;
            let is_missing_marker = query == "marker=x" && response.status == 404;
            assert!(response.status == 400 || is_missing_marker, "{path}?{query}: {} {}", response.status, response.body);
        }
        let filters = endpoint.route().query.parameter_names().filter(|name| !PAGING_PARAMETERS.contains(name));
        for (name, value) in filters.flat_map(|name| ["", "%20", "+%09"].map(|value| (name, value))) {
            let address = format!("{path}?{name}={value}");
            let response = api.send("GET", &address, &[], None).await;
            assert_eq!(response.status, 400, "{address}: {}", response.body);
            // As in Ironic, its clients may send an empty text for a text filter, and an empty list of fields.
            let is_ironics = path.starts_with("/v1/nodes") && IRONIC_TEXT_FILTERS.contains(&name)
                || name == "fields" && IRONIC_LISTS.contains(&&*path);
            let response = api.send("GET", &address, &[IRONIC_HEADER], None).await;
            assert_eq!(
                response.status,
                if is_ironics { 200 } else { 400 },
                "{address}, from a client of Ironic: {}",
                response.body
            );
        }
    }
    for (query, status) in [
        ("traits=lower", 400),
        ("traits=CUSTOM_A,,CUSTOM_B", 400),
        ("tag=a+b", 400),
        ("role=a+b", 400),
        ("state=odd", 400),
        ("selector=a+b", 400),
        ("requirement=property:x", 400),
        ("requirement=property:x+%3Cor%3E", 400),
        ("requirement=cpu_info:features+x", 400),
        ("maintenance=maybe", 400),
        ("nodegroup=nowhere", 404),
        ("cluster=nowhere", 404),
        ("nodegroup=c1/default-worker&cluster=c1", 200),
    ] {
        let response = api.send("GET", &format!("/v1/nodes?{query}"), &[], None).await;
        assert_eq!(response.status, status, "{query}: {}", response.body);
    }
}

/// Tests every read in the endpoint table that accepts a choice of fields, with an existing object.
#[tokio::test]
async fn list_rejects_unknown_field_selection() {
    let api = TestApi::start().await;
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "tasks": [{"id": "x", "type": "stage"}]},
        {"kind": "ClusterTemplate", "name": "base", "labels": {"a": "b"}},
        {"kind": "Cluster", "name": "c1", "cluster_template": "base"},
        {"kind": "NodeGroup", "cluster": "c1", "name": "g1"},
        {"kind": "Node", "name": "n1", "nodegroup": "c1/g1", "resource_class": "small"},
        {"kind": "InspectionRule", "name": "epyc", "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]},
    ]);
    api.expect("POST", "/v1/apply?manager=test", &json!({"objects": objects}), 200).await;
    api.expect("POST", "/v1/allocations", &json!({"name": "a1", "resource_class": "small"}), 201).await;
    api.expect("POST", "/v1/principals", &json!({"name": "anna", "role": "viewer"}), 201).await;
    let token = api.expect("POST", "/v1/join-tokens", &json!({}), 201).await;
    let path_values = [
        ("{node}", "n1"),
        ("{template}", "base"),
        ("{cluster}", "c1"),
        ("{group}", "g1"),
        ("{release}", "site@1"),
        ("{allocation}", "a1"),
        ("{principal}", "anna"),
        ("{token}", token["id"].as_str().unwrap()),
        ("{rule}", "epyc"),
    ];
    let mut tested_count = 0;
    for endpoint in Endpoint::ALL {
        let Some(fields) = endpoint.selectable_fields() else { continue };
        let path = path_values.iter().fold(endpoint.route().path.to_owned(), |path, (part, name)| path.replace(part, name));
        for query in ["fields=bogus", "fields=links", "fields=uuid&fields=bogus"] {
            let response = api.send("GET", &format!("{path}?{query}"), &[], None).await;
            assert_eq!((response.status, response.body["error"]["field"].as_str()), (400, Some("fields")), "{path}?{query}");
            assert!(response.message().contains("the fields here are "), "{}", response.message());
        }
        if endpoint.route().path.ends_with("/detail") && endpoint.route().path.contains("nodes") {
            continue;
        }
        let first_object = |body: &Value| match &fields.list_name {
            Some(list) => body[list].get(0).cloned().unwrap_or(json!({})),
            None => body.clone(),
        };
        let all_fields = first_object(&api.get(&path).await);
        for name in all_fields.as_object().unwrap().keys().filter(|name| *name != "links") {
            assert!(fields.names.contains(name), "{path}: selectable_fields lacks {name}");
        }
        for name in &fields.names {
            let body = first_object(&api.get(&format!("{path}?fields={name}")).await);
            let other_count = body.as_object().unwrap().keys().filter(|key| *key != name && *key != "links").count();
            assert_eq!(other_count, 0, "{path}?fields={name}: {body}");
            assert_eq!(body.get(name), all_fields.get(name).or_else(|| body.get(name)), "{path}?fields={name}");
        }
        tested_count += 1;
    }
    assert!(tested_count > 15, "{tested_count}");
}

/// Principals, certificates and join tokens cannot be in a manifest, but their lists have filters too.
#[tokio::test]
async fn principal_list_is_paged_and_access_lists_check_filters() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/clusters", &json!({"name": "c1"}), 202).await;
    for name in ["bea", "anna", "carl"] {
        api.expect("POST", "/v1/principals", &json!({"name": name, "role": "viewer", "cluster": "c1"}), 201).await;
    }
    api.expect("POST", "/v1/principals", &json!({"name": "otto", "role": "admin"}), 201).await;
    let mut path = "/v1/principals?role=viewer&cluster=c1&sort_key=name&limit=2&fields=name".to_owned();
    let mut names = Vec::new();
    loop {
        let page = api.get(&path).await;
        names.extend(page["principals"].as_array().unwrap().iter().map(object_name));
        let Some(next_url) = page["next"].as_str() else { break };
        assert!(next_url.contains("role=viewer&cluster=c1&fields=name"), "{next_url}");
        path = next_url.strip_prefix("http://localhost").unwrap().to_owned();
    }
    assert_eq!(names, ["anna", "bea", "carl"]);
    for (path, status) in [
        ("/v1/principals?role=king", 400),
        ("/v1/principals?cluster=nowhere", 404),
        ("/v1/certificates?principal=nobody", 404),
        ("/v1/certificates?principal=anna", 200),
        ("/v1/join-tokens?node=nowhere", 404),
        ("/v1/join-tokens?nodegroup=c1/nowhere", 404),
        ("/v1/join-tokens?nodegroup=c1/default-worker", 200),
    ] {
        assert_eq!(api.send("GET", path, &[], None).await.status, status, "{path}");
    }
}
