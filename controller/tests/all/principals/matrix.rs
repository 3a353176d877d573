//! Every row of the endpoint table against every class and every place, and every kind of an apply against every class.

use serde_json::{Value, json};
use stemma_core::object::Kind;
use stemma_wire::client::Client;
use stemma_wire::endpoint::{Caller, Content, Endpoint, Listener, Method as RowMethod, Scope};

use crate::fleet::Fleet;
use crate::principals::people::{JSON, Told, ask, principal, stranger, told_of, two_clusters};

/// The path of a row, with these values for what it names and `web`, `labels` or a word for the rest.
fn path(endpoint: Endpoint, values: &[(&str, String)]) -> String {
    let parts = endpoint.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let value = |part: &str| match part {
        "group" => "web".to_owned(),
        "map" => "labels".to_owned(),
        _ => values.iter().find(|(name, _)| *name == part).map_or("word".to_owned(), |(_, value)| value.clone()),
    };
    let values: Vec<String> = parts.map(value).collect();
    endpoint.path(&values.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Calls a row; a write is only tried out, so that the rows after it find what they name.
async fn call(client: &mut Client, endpoint: Endpoint, values: &[(&str, String)]) -> Told {
    let route = endpoint.route();
    let media = route.request.media_types().first().copied();
    let headers: Vec<(&str, &str)> = media.map(|media| ("content-type", media)).into_iter().collect();
    let body = match route.request {
        Content::Nothing | Content::Bytes => "",
        Content::AnyPatch => "[]",
        _ => "{}",
    };
    // What goes on for ever is asked for in a form that is refused once it is known that who asks may.
    let query = match route.answer {
        Content::Events => "?from=none",
        _ if endpoint.has_dry_run() => "?dry_run=true",
        _ => "",
    };
    ask(client, route.method.as_str(), &format!("{}{query}", path(endpoint, values)), &headers, body).await
}

fn rows() -> impl Iterator<Item = Endpoint> {
    Endpoint::ALL.iter().copied().filter(|row| row.route().listener == Listener::Admin)
}

#[tokio::test]
async fn s41_every_row_takes_the_classes_of_its_column_and_no_other() {
    let fleet = Fleet::start().await;
    let [own, _] = two_clusters(&fleet).await;
    let mut clients = vec![
        (Caller::Nobody, stranger(&fleet)),
        (Caller::Viewer, principal(&fleet, "vera", "viewer", None).await),
        (Caller::Operator, principal(&fleet, "otto", "operator", None).await),
        (Caller::Admin, principal(&fleet, "ada", "admin", None).await),
    ];
    let revision = fleet.revision().await;
    for row in rows() {
        for (caller, client) in &mut clients {
            let told = call(client, row, &own).await;
            let expected = match (row.allows(*caller), *caller) {
                // Of the admins root alone, on its socket.
                (true, _) if row == Endpoint::GetBackup => "auth.forbidden",
                (true, _) => "",
                (false, Caller::Nobody) => "auth.required",
                (false, _) => "auth.forbidden",
            };
            let is_refused = told.kind.starts_with("auth.");
            assert_eq!(if is_refused { &*told.kind } else { "" }, expected, "{row:?} as {caller:?}: {}", told.body);
            assert!(told.status < 500, "{row:?} as {caller:?}: {}", told.body);
            assert!(!is_refused || told.status == if *caller == Caller::Nobody { 401 } else { 403 });
        }
    }
    assert_eq!(fleet.revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn s41_who_is_bound_to_a_cluster_is_answered_of_another_as_of_none() {
    let fleet = Fleet::start().await;
    let [own, far] = two_clusters(&fleet).await;
    let none: Vec<(&str, String)> = far.iter().map(|(name, value)| (*name, value.replace("far", "nil"))).collect();
    let none: Vec<_> = none
        .into_iter()
        .map(|(name, value)| match name {
            "token" => (name, "0".repeat(value.len())),
            "certificate" => (name, "1".repeat(value.len())),
            _ => (name, value),
        })
        .collect();
    let mut clients = vec![
        (Caller::Viewer, principal(&fleet, "vera", "viewer", Some("own")).await),
        (Caller::Operator, principal(&fleet, "otto", "operator", Some("own")).await),
        (Caller::Admin, principal(&fleet, "ada", "admin", Some("own")).await),
    ];
    for row in rows() {
        let route = row.route();
        let writes = route.method != RowMethod::Get;
        for (caller, client) in &mut clients {
            let told = call(client, row, &own).await;
            // A backup is for root alone, on its socket.
            let may = row.allows(*caller) && row != Endpoint::GetBackup && !(writes && route.scope.is_shared());
            let is_refused = told.kind.starts_with("auth.");
            let is_empty_write = writes && route.scope == Scope::Body;
            assert!(is_refused != may || is_empty_write, "{row:?} as {caller:?}: {} {}", told.status, told.body);
            assert!(told.status < 500, "{row:?} as {caller:?}: {}", told.body);
            if !may || route.scope.parameter().is_none() || route.scope.is_shared() {
                continue;
            }
            let (of_far, of_none) = (call(client, row, &far).await, call(client, row, &none).await);
            assert_eq!(told_of(&of_far, &far), told_of(&of_none, &none), "{row:?} as {caller:?}");
            assert!((400..500).contains(&of_far.status), "{row:?} as {caller:?}: {}", of_far.body);
        }
    }
}

/// A document of each kind that an apply takes, and whether an operator may write it; an admin may write all, a viewer none.
fn documents() -> Vec<(Kind, Value, bool)> {
    vec![
        (Kind::Release, json!({"kind": "Release", "name": "new", "version": "1"}), false),
        (Kind::Namespace, json!({"kind": "Namespace", "namespace": "New"}), false),
        (
            Kind::InspectionRule,
            json!({"kind": "InspectionRule", "name": "new", "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]}),
            false,
        ),
        (Kind::ClusterTemplate, json!({"kind": "ClusterTemplate", "name": "new"}), true),
        (Kind::Cluster, json!({"kind": "Cluster", "name": "new"}), true),
        (Kind::NodeGroup, json!({"kind": "NodeGroup", "cluster": "own", "name": "new"}), true),
        (Kind::Node, json!({"kind": "Node", "name": "new", "nodegroup": "own/web"}), true),
    ]
}

#[tokio::test]
async fn s41_an_apply_is_held_for_each_object_to_the_roles_of_the_row_that_makes_one() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut clients = vec![
        (Caller::Viewer, principal(&fleet, "vera", "viewer", None).await),
        (Caller::Operator, principal(&fleet, "otto", "operator", None).await),
        (Caller::Admin, principal(&fleet, "ada", "admin", None).await),
    ];
    let revision = fleet.revision().await;
    for (kind, document, by_operator) in documents() {
        let row = Endpoint::creating(kind).unwrap();
        for (caller, client) in &mut clients {
            let may = *caller == Caller::Admin || (*caller == Caller::Operator && by_operator);
            assert_eq!(row.allows(*caller), may, "{row:?} as {caller:?}");
            let body = json!({"objects": [&document]}).to_string();
            let told = ask(client, "POST", "/v1/apply?dry_run=true", &[JSON], &body).await;
            let expected = if may { (200, "") } else { (403, "auth.forbidden") };
            assert_eq!((told.status, &*told.kind), expected, "{kind:?} as {caller:?}: {}", told.body);
        }
    }
    let all: Vec<Value> = documents().into_iter().map(|(_, document, _)| document).collect();
    let told = ask(&mut clients[1].1, "POST", "/v1/apply", &[JSON], &json!({ "objects": all }).to_string()).await;
    assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "all or none: {}", told.body);
    assert_eq!(fleet.revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn s41_who_is_bound_to_a_cluster_applies_what_stands_in_it_and_no_more() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    for role in ["operator", "admin"] {
        let mut client = principal(&fleet, &format!("bound-{role}"), role, Some("own")).await;
        for (kind, document, _) in documents() {
            let may = matches!(kind, Kind::NodeGroup | Kind::Node);
            let body = json!({"objects": [&document]}).to_string();
            let told = ask(&mut client, "POST", "/v1/apply?dry_run=true", &[JSON], &body).await;
            let expected = if may { (200, "") } else { (403, "auth.forbidden") };
            assert_eq!((told.status, &*told.kind), expected, "{kind:?} as bound {role}: {}", told.body);
        }
    }
}
