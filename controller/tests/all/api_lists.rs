//! Lists: every filter finds the right rows, with and without the index. Paging continues while others write. Unknown
//! filters are refused.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_wire::endpoint::{Endpoint, Method, PAGE, SocketKind};

use crate::served::TestApi;

/// More nodes than a few blocks of the index hold.
const NODES: usize = 1_300;

/// Builds a node of the fleet from its number. Every field that a filter reads differs between some of the nodes.
fn node(n: usize) -> Value {
    let mut node = json!({
        "kind": "Node", "name": format!("n{n:04}"), "labels": {"rack": format!("r{}", n % 7)},
        "properties": {"memory_mb": 1024 * (n % 16), "cpus": format!("{}", n % 5)},
    });
    let body = node.as_object_mut().expect("an object");
    if !n.is_multiple_of(11) {
        body.insert("nodegroup".into(), format!("prod/g{}", n % 3).into());
    }
    match n % 13 {
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

async fn create_fleet(served: &TestApi) {
    let release = json!({
        "kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}, "db": {"tags": ["db"]}},
        "tags": {"web": {}, "db": {}}, "tasks": [],
    });
    let group = |name: &str, more: Value| {
        let mut group = json!({"kind": "NodeGroup", "cluster": "prod", "name": name, "roles": ["web"]});
        group.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
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
    // Not in the order of their names.
    objects.extend((0..NODES).map(|n| node(n * 7 % NODES)));
    for some in objects.chunks(500) {
        served.expect("POST", "/v1/apply?manager=test", &json!({"objects": some}), 200).await;
    }
    served.expect("POST", "/v1/nodes", &json!({"driver": "fake"}), 201).await;
}

/// Returns the rows of all pages of a list.
async fn rows(served: &TestApi, mut path: String) -> Vec<Value> {
    let mut rows = Vec::new();
    loop {
        let page = served.get(&path).await;
        rows.extend(page["nodes"].as_array().into_iter().flatten().cloned());
        let Some(next) = page["next"].as_str().and_then(|next| next.strip_prefix("http://localhost")) else {
            return rows;
        };
        next.clone_into(&mut path);
    }
}

fn row_name(row: &Value) -> String {
    row["name"].as_str().unwrap_or_default().to_owned()
}

/// Returns the names of all pages of a list.
async fn names(served: &TestApi, query: &str) -> Vec<String> {
    rows(served, format!("/v1/nodes?{query}&fields=name&limit=97")).await.iter().map(row_name).collect()
}

fn text_values<'a>(row: &'a Value, field: &str) -> Vec<&'a str> {
    row[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A filter, and a function that returns whether a detailed row matches it.
type Case = (&'static str, fn(&Value) -> bool);

const CASES: &[Case] = &[
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
async fn list_filters_return_matches_in_every_order() {
    let served = TestApi::start().await;
    create_fleet(&served).await;
    let all = rows(&served, "/v1/nodes/detail".to_owned()).await;
    assert_eq!(all.len(), NODES + 1);
    for (query, means) in CASES {
        let mut expected: Vec<String> = all.iter().filter(|row| means(row)).map(row_name).collect();
        assert_eq!(names(&served, query).await, expected, "{query}");
        expected.reverse();
        assert_eq!(names(&served, &format!("{query}&sort_dir=desc")).await, expected, "{query}");
        expected.sort();
        assert_eq!(names(&served, &format!("{query}&sort_key=name")).await, expected, "{query} by name");
        assert_eq!(names(&served, &format!("{query}&sort_key=uuid")).await.len(), expected.len(), "{query} by uuid");
        expected.reverse();
        let by_name = names(&served, &format!("{query}&sort_key=name&sort_dir=desc")).await;
        assert_eq!(by_name, expected, "{query} by name, the last first");
    }
}

#[tokio::test]
async fn list_changes_after_write() {
    let served = TestApi::start().await;
    create_fleet(&served).await;
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
        let told = served.send(method, path, &[], Some(&body)).await;
        assert!(told.status < 300, "{method} {path}: {}", told.body);
        let page = served.get(&format!("/v1/nodes?{query}&sort_key=name")).await;
        let rows: Vec<&str> = page["nodes"].as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(rows, expected, "{query} after {method} {path}");
    }
    assert_eq!(names(&served, "selector=site%3Dber1").await.len(), names(&served, "cluster=prod").await.len() - 90);
}

#[tokio::test]
async fn list_pages_continue_when_objects_are_added_and_deleted() {
    let served = TestApi::start().await;
    let some: Vec<Value> = (0..20).map(|n| json!({"kind": "Node", "name": format!("n{n:02}"), "labels": {"a": "b"}})).collect();
    served.expect("POST", "/v1/apply?manager=test", &json!({"objects": some}), 200).await;
    for order in ["", "&sort_key=name", "&sort_dir=desc", "&sort_key=name&sort_dir=desc", "&sort_key=uuid"] {
        let first = served.get(&format!("/v1/nodes?selector=a%3Db&limit=5{order}")).await;
        let next = first["next"].as_str().unwrap().strip_prefix("http://localhost").unwrap().to_owned();
        let row = |page: &Value, at: usize| page["nodes"][at]["name"].as_str().unwrap().to_owned();
        let rows = |page: &Value| (0..page["nodes"].as_array().unwrap().len()).map(|at| row(page, at)).collect::<BTreeSet<_>>();
        let second = served.get(&next).await;
        assert!(rows(&first).is_disjoint(&rows(&second)), "{order}");
        // A row of the first page and one of the second are deleted, and the marker no longer matches. The rest of the
        // second page stays the same.
        let (gone, ahead, marker) = (row(&first, 0), row(&second, 0), row(&first, 4));
        for name in [&gone, &ahead] {
            assert_eq!(served.send("DELETE", &format!("/v1/nodes/{name}"), &[], None).await.status, 204);
        }
        served.expect("PATCH", &format!("/v1/nodes/{marker}/labels"), &json!({"labels": {"a": null}}), 200).await;
        let again = served.get(&next).await;
        assert!(rows(&second).difference(&rows(&again)).eq([&ahead]), "{order}: {:?}, {:?}", rows(&second), rows(&again));
        // The marker is deleted, so it has no position any more.
        assert_eq!(served.send("DELETE", &format!("/v1/nodes/{marker}"), &[], None).await.status, 204);
        let told = served.send("GET", &next, &[], None).await;
        assert_eq!((told.status, told.body["error"]["field"].as_str()), (404, Some("marker")), "{order}: {}", told.body);
        for name in [gone, ahead, marker] {
            let body = json!({"objects": [{"kind": "Node", "name": name, "labels": {"a": "b"}}]});
            served.expect("POST", "/v1/apply?manager=test", &body, 200).await;
        }
    }
}

/// Filters of Ironic's nodes that compare texts.
const IRONIC_TEXT_FILTERS: [&str; 7] =
    ["resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// Lists of Ironic that accept a choice of fields.
const IRONIC_LISTS: [&str; 3] = ["/v1/nodes", "/v1/allocations", "/v1/inspection_rules"];

/// The version header of Ironic's clients.
const IRONIC_HEADER: (&str, &str) = ("x-openstack-ironic-api-version", "latest");

/// Tests every list in the endpoint table, on an empty fleet with one cluster.
#[tokio::test]
async fn list_rejects_unknown_filter_when_empty() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/clusters", &json!({"name": "c1"}), 202).await;
    let is_list = |row: &&Endpoint| {
        let route = row.route();
        let pages = route.query.parameter_names().any(|name| name == PAGE[0]) && !route.path.starts_with("/v2/");
        route.listener == SocketKind::Admin && route.method == Method::Get && pages
    };
    for row in Endpoint::ALL.iter().filter(is_list) {
        let path = row.route().path.replace("{cluster}", "c1");
        for query in ["bogus=1", "limit=0", "limit=x", "limit=", "sort_dir=up", "sort_key=bogus", "marker=x", "marker="] {
            let told = served.send("GET", &format!("{path}?{query}"), &[], None).await;
            let is_gone = query == "marker=x" && told.status == 404;
            assert!(told.status == 400 || is_gone, "{path}?{query}: {} {}", told.status, told.body);
        }
        let filters = row.route().query.parameter_names().filter(|name| !PAGE.contains(name));
        for (name, value) in filters.flat_map(|name| ["", "%20", "+%09"].map(|value| (name, value))) {
            let address = format!("{path}?{name}={value}");
            let told = served.send("GET", &address, &[], None).await;
            assert_eq!(told.status, 400, "{address}: {}", told.body);
            // For its own clients Ironic compares any text, and treats an empty list of fields as no choice.
            let is_ironics = path.starts_with("/v1/nodes") && IRONIC_TEXT_FILTERS.contains(&name)
                || name == "fields" && IRONIC_LISTS.contains(&&*path);
            let told = served.send("GET", &address, &[IRONIC_HEADER], None).await;
            assert_eq!(told.status, if is_ironics { 200 } else { 400 }, "{address}, to Ironic: {}", told.body);
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
        let told = served.send("GET", &format!("/v1/nodes?{query}"), &[], None).await;
        assert_eq!(told.status, status, "{query}: {}", told.body);
    }
}

/// Tests every read in the endpoint table that accepts a choice of fields, with an existing object.
#[tokio::test]
async fn list_rejects_unknown_field_selection() {
    let served = TestApi::start().await;
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "tasks": [{"id": "x", "type": "stage"}]},
        {"kind": "ClusterTemplate", "name": "base", "labels": {"a": "b"}},
        {"kind": "Cluster", "name": "c1", "cluster_template": "base"},
        {"kind": "NodeGroup", "cluster": "c1", "name": "g1"},
        {"kind": "Node", "name": "n1", "nodegroup": "c1/g1", "resource_class": "small"},
        {"kind": "InspectionRule", "name": "epyc", "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]},
    ]);
    served.expect("POST", "/v1/apply?manager=test", &json!({"objects": objects}), 200).await;
    served.expect("POST", "/v1/allocations", &json!({"name": "a1", "resource_class": "small"}), 201).await;
    served.expect("POST", "/v1/principals", &json!({"name": "anna", "role": "viewer"}), 201).await;
    let token = served.expect("POST", "/v1/join-tokens", &json!({}), 201).await;
    let named = [
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
    let mut rows = 0;
    for row in Endpoint::ALL {
        let Some(fields) = row.selectable_fields() else { continue };
        let path = named.iter().fold(row.route().path.to_owned(), |path, (part, name)| path.replace(part, name));
        for query in ["fields=bogus", "fields=links", "fields=uuid&fields=bogus"] {
            let told = served.send("GET", &format!("{path}?{query}"), &[], None).await;
            assert_eq!((told.status, told.body["error"]["field"].as_str()), (400, Some("fields")), "{path}?{query}");
            assert!(told.message().contains("the fields here are "), "{}", told.message());
        }
        if row.route().path.ends_with("/detail") && row.route().path.contains("nodes") {
            continue;
        }
        let shown = |body: &Value| match &fields.list_name {
            Some(list) => body[list].get(0).cloned().unwrap_or(json!({})),
            None => body.clone(),
        };
        let whole = shown(&served.get(&path).await);
        for name in whole.as_object().unwrap().keys().filter(|name| *name != "links") {
            assert!(fields.names.contains(name), "{path}: the description has no {name}");
        }
        for name in &fields.names {
            let body = shown(&served.get(&format!("{path}?fields={name}")).await);
            let others = body.as_object().unwrap().keys().filter(|key| *key != name && *key != "links").count();
            assert_eq!(others, 0, "{path}?fields={name}: {body}");
            assert_eq!(body.get(name), whole.get(name).or_else(|| body.get(name)), "{path}?fields={name}");
        }
        rows += 1;
    }
    assert!(rows > 15, "{rows}");
}

#[tokio::test]
async fn non_object_lists_are_paged() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/clusters", &json!({"name": "c1"}), 202).await;
    for name in ["bea", "anna", "carl"] {
        served.expect("POST", "/v1/principals", &json!({"name": name, "role": "viewer", "cluster": "c1"}), 201).await;
    }
    served.expect("POST", "/v1/principals", &json!({"name": "otto", "role": "admin"}), 201).await;
    let mut path = "/v1/principals?role=viewer&cluster=c1&sort_key=name&limit=2&fields=name".to_owned();
    let mut names = Vec::new();
    loop {
        let page = served.get(&path).await;
        names.extend(page["principals"].as_array().unwrap().iter().map(row_name));
        let Some(next) = page["next"].as_str() else { break };
        assert!(next.contains("role=viewer&cluster=c1&fields=name"), "{next}");
        path = next.strip_prefix("http://localhost").unwrap().to_owned();
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
        assert_eq!(served.send("GET", path, &[], None).await.status, status, "{path}");
    }
}
