//! Every row of the endpoint table with every class of caller and every scope, and every kind in an apply with every
//! class.

use serde_json::{Value, json};
use stemma_core::object::Kind;
use stemma_wire::client::Client;
use stemma_wire::endpoint::{BodyType, CallerClass, Endpoint, Method as RowMethod, Scope, SocketKind};

use crate::fleet::Fleet;
use crate::principals::clients::{ApiAnswer, JSON, comparable_answer, create_principal, send, stranger, two_clusters};

/// Returns the path of a row. It uses these values for named parts, and `web`, `labels` or a fixed word for the others.
fn row_path(endpoint: Endpoint, values: &[(&str, String)]) -> String {
    let parts = endpoint.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let value = |part: &str| match part {
        "group" => "web".to_owned(),
        "map" => "labels".to_owned(),
        _ => values.iter().find(|(name, _)| *name == part).map_or("word".to_owned(), |(_, value)| value.clone()),
    };
    let values: Vec<String> = parts.map(value).collect();
    endpoint.path(&values.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Calls a row. A write is a dry run, so that later rows find their objects.
async fn call_row(client: &mut Client, endpoint: Endpoint, values: &[(&str, String)]) -> ApiAnswer {
    let route = endpoint.route();
    let media = route.request.media_types().first().copied();
    let headers: Vec<(&str, &str)> = media.map(|media| ("content-type", media)).into_iter().collect();
    let body = match route.request {
        BodyType::Nothing | BodyType::Bytes => "",
        BodyType::AnyPatch => "[]",
        _ => "{}",
    };
    // An endless response is requested with a query that is refused after the check of the caller's rights.
    let query = match route.response {
        BodyType::Events => "?from=none",
        _ if endpoint.has_dry_run() => "?dry_run=true",
        _ => "",
    };
    send(client, route.method.as_str(), &format!("{}{query}", row_path(endpoint, values)), &headers, body).await
}

fn tested_rows() -> impl Iterator<Item = Endpoint> {
    Endpoint::ALL.iter().copied().filter(|row| row.route().listener == SocketKind::Admin)
}

#[tokio::test]
async fn s41_endpoint_row_admits_only_listed_classes() {
    let fleet = Fleet::start().await;
    let [own, _] = two_clusters(&fleet).await;
    let mut clients = vec![
        (CallerClass::Nobody, stranger(&fleet)),
        (CallerClass::Viewer, create_principal(&fleet, "vera", "viewer", None).await),
        (CallerClass::Operator, create_principal(&fleet, "otto", "operator", None).await),
        (CallerClass::Admin, create_principal(&fleet, "ada", "admin", None).await),
    ];
    let revision = fleet.last_revision().await;
    for row in tested_rows() {
        for (caller, client) in &mut clients {
            let told = call_row(client, row, &own).await;
            let expected = match (row.allows(*caller), *caller) {
                // Of all admins only root may do this, on its socket.
                (true, _) if row == Endpoint::GetBackup => "auth.forbidden",
                (true, _) => "",
                (false, CallerClass::Nobody) => "auth.required",
                (false, _) => "auth.forbidden",
            };
            let is_refused = told.kind.starts_with("auth.");
            assert_eq!(if is_refused { &*told.kind } else { "" }, expected, "{row:?} as {caller:?}: {}", told.body);
            assert!(told.status < 500, "{row:?} as {caller:?}: {}", told.body);
            assert!(!is_refused || told.status == if *caller == CallerClass::Nobody { 401 } else { 403 });
        }
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn s41_bound_principal_gets_not_found_for_other_cluster() {
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
        (CallerClass::Viewer, create_principal(&fleet, "vera", "viewer", Some("own")).await),
        (CallerClass::Operator, create_principal(&fleet, "otto", "operator", Some("own")).await),
        (CallerClass::Admin, create_principal(&fleet, "ada", "admin", Some("own")).await),
    ];
    for row in tested_rows() {
        let route = row.route();
        let writes = route.method != RowMethod::Get;
        for (caller, client) in &mut clients {
            let told = call_row(client, row, &own).await;
            // Only root may take a backup, on its socket.
            let may = row.allows(*caller) && row != Endpoint::GetBackup && !(writes && route.scope.is_fleet_wide());
            let is_refused = told.kind.starts_with("auth.");
            let is_empty_write = writes && route.scope == Scope::Body;
            assert!(is_refused != may || is_empty_write, "{row:?} as {caller:?}: {} {}", told.status, told.body);
            assert!(told.status < 500, "{row:?} as {caller:?}: {}", told.body);
            if !may || route.scope.parameter().is_none() || route.scope.is_fleet_wide() {
                continue;
            }
            let (of_far, of_none) = (call_row(client, row, &far).await, call_row(client, row, &none).await);
            assert_eq!(comparable_answer(&of_far, &far), comparable_answer(&of_none, &none), "{row:?} as {caller:?}");
            assert!((400..500).contains(&of_far.status), "{row:?} as {caller:?}: {}", of_far.body);
        }
    }
}

/// Returns a document of each kind that an apply accepts, and whether an operator may write it. An admin may write all,
/// a viewer none.
fn documents_by_kind() -> Vec<(Kind, Value, bool)> {
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
async fn s41_apply_checks_role_of_each_created_object() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut clients = vec![
        (CallerClass::Viewer, create_principal(&fleet, "vera", "viewer", None).await),
        (CallerClass::Operator, create_principal(&fleet, "otto", "operator", None).await),
        (CallerClass::Admin, create_principal(&fleet, "ada", "admin", None).await),
    ];
    let revision = fleet.last_revision().await;
    for (kind, document, by_operator) in documents_by_kind() {
        let row = Endpoint::for_create(kind).unwrap();
        for (caller, client) in &mut clients {
            let may = *caller == CallerClass::Admin || (*caller == CallerClass::Operator && by_operator);
            assert_eq!(row.allows(*caller), may, "{row:?} as {caller:?}");
            let body = json!({"objects": [&document]}).to_string();
            let told = send(client, "POST", "/v1/apply?dry_run=true", &[JSON], &body).await;
            let expected = if may { (200, "") } else { (403, "auth.forbidden") };
            assert_eq!((told.status, &*told.kind), expected, "{kind:?} as {caller:?}: {}", told.body);
        }
    }
    let all: Vec<Value> = documents_by_kind().into_iter().map(|(_, document, _)| document).collect();
    let told = send(&mut clients[1].1, "POST", "/v1/apply", &[JSON], &json!({ "objects": all }).to_string()).await;
    assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "all or none: {}", told.body);
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn s41_bound_principal_applies_only_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    for role in ["operator", "admin"] {
        let mut client = create_principal(&fleet, &format!("bound-{role}"), role, Some("own")).await;
        for (kind, document, _) in documents_by_kind() {
            let may = matches!(kind, Kind::NodeGroup | Kind::Node);
            let body = json!({"objects": [&document]}).to_string();
            let told = send(&mut client, "POST", "/v1/apply?dry_run=true", &[JSON], &body).await;
            let expected = if may { (200, "") } else { (403, "auth.forbidden") };
            assert_eq!((told.status, &*told.kind), expected, "{kind:?} as bound {role}: {}", told.body);
        }
    }
}
