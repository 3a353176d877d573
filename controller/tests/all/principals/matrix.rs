//! Every endpoint of the admin listener with every class of caller and every scope, and every kind in an apply with
//! every class.

use serde_json::{Value, json};
use stemma_core::object::Kind;
use stemma_wire::client::Client;
use stemma_wire::endpoint::{BodyType, CallerClass, Endpoint, Method as RowMethod, Scope, SocketKind};

use crate::fleet::Fleet;
use crate::principals::clients::{ApiAnswer, JSON, comparable_answer, create_principal, send, stranger, two_clusters};

/// Returns the path of an endpoint, with values for its path parameters. The values are looked up by the parameter's
/// name, except that a group is `web` and a map is `labels`. A parameter without a value is `word`.
fn endpoint_path(endpoint: Endpoint, values: &[(&str, String)]) -> String {
    let parameters = endpoint.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let value = |part: &str| match part {
        "group" => "web".to_owned(),
        "map" => "labels".to_owned(),
        _ => values.iter().find(|(name, _)| *name == part).map_or("word".to_owned(), |(_, value)| value.clone()),
    };
    let values: Vec<String> = parameters.map(value).collect();
    endpoint.path(&values.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Calls an endpoint with an empty body of its type. Writes except uploads are dry runs, so that the objects remain.
async fn call_endpoint(client: &mut Client, endpoint: Endpoint, values: &[(&str, String)]) -> ApiAnswer {
    let route = endpoint.route();
    let media_type = route.request.media_types().first().copied();
    let headers: Vec<(&str, &str)> = media_type.map(|media_type| ("content-type", media_type)).into_iter().collect();
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
    send(client, route.method.as_str(), &format!("{}{query}", endpoint_path(endpoint, values)), &headers, body).await
}

/// Returns the endpoints of the admin listener.
fn admin_endpoints() -> impl Iterator<Item = Endpoint> {
    Endpoint::ALL.iter().copied().filter(|endpoint| endpoint.route().listener == SocketKind::Admin)
}

#[tokio::test]
async fn s41_endpoint_admits_only_listed_caller_classes() {
    let fleet = Fleet::start().await;
    let [own_values, _] = two_clusters(&fleet).await;
    let mut clients = vec![
        (CallerClass::Nobody, stranger(&fleet)),
        (CallerClass::Viewer, create_principal(&fleet, "vera", "viewer", None).await),
        (CallerClass::Operator, create_principal(&fleet, "otto", "operator", None).await),
        (CallerClass::Admin, create_principal(&fleet, "ada", "admin", None).await),
    ];
    let revision = fleet.last_revision().await;
    for endpoint in admin_endpoints() {
        for (caller, client) in &mut clients {
            let answer = call_endpoint(client, endpoint, &own_values).await;
            let expected = match (endpoint.allows(*caller), *caller) {
                // Only root may read a backup, through the Unix socket.
                (true, _) if endpoint == Endpoint::GetBackup => "auth.forbidden",
                (true, _) => "",
                (false, CallerClass::Nobody) => "auth.required",
                (false, _) => "auth.forbidden",
            };
            let is_refused = answer.kind.starts_with("auth.");
            assert_eq!(if is_refused { &*answer.kind } else { "" }, expected, "{endpoint:?} as {caller:?}: {}", answer.body);
            assert!(answer.status < 500, "{endpoint:?} as {caller:?}: {}", answer.body);
            assert!(!is_refused || answer.status == if *caller == CallerClass::Nobody { 401 } else { 403 });
        }
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn s41_bound_principal_gets_not_found_for_other_cluster() {
    let fleet = Fleet::start().await;
    let [own_values, far_values] = two_clusters(&fleet).await;
    // Objects that do not exist, with names as long as those of cluster `far`.
    let missing_values: Vec<(&str, String)> =
        far_values.iter().map(|(name, value)| (*name, value.replace("far", "nil"))).collect();
    // The ids of tokens and certificates contain no cluster name, so they are replaced as a whole.
    let missing_values: Vec<_> = missing_values
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
    for endpoint in admin_endpoints() {
        let route = endpoint.route();
        let is_write = route.method != RowMethod::Get;
        for (caller, client) in &mut clients {
            let answer = call_endpoint(client, endpoint, &own_values).await;
            // Only root may read a backup, through the Unix socket.
            let is_allowed =
                endpoint.allows(*caller) && endpoint != Endpoint::GetBackup && !(is_write && route.scope.is_fleet_wide());
            let is_refused = answer.kind.starts_with("auth.");
            // The objects of such a write are in its body. The body here is empty, so the check may find nothing to
            // refuse.
            let is_empty_write = is_write && route.scope == Scope::Body;
            assert!(is_refused != is_allowed || is_empty_write, "{endpoint:?} as {caller:?}: {} {}", answer.status, answer.body);
            assert!(answer.status < 500, "{endpoint:?} as {caller:?}: {}", answer.body);
            if !is_allowed || route.scope.parameter().is_none() || route.scope.is_fleet_wide() {
                continue;
            }
            // An object in another cluster gets the same response as an object that does not exist.
            let (far_answer, missing_answer) =
                (call_endpoint(client, endpoint, &far_values).await, call_endpoint(client, endpoint, &missing_values).await);
            assert_eq!(
                comparable_answer(&far_answer, &far_values),
                comparable_answer(&missing_answer, &missing_values),
                "{endpoint:?} as {caller:?}"
            );
            assert!((400..500).contains(&far_answer.status), "{endpoint:?} as {caller:?}: {}", far_answer.body);
        }
    }
}

/// Returns a document of each kind that an apply accepts, and whether an operator may write it. An admin may write all
/// kinds, and a viewer none.
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

/// An apply needs for each object the right to the endpoint that creates such objects, or is refused as a whole.
#[tokio::test]
async fn s41_apply_checks_right_to_create_each_object() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut clients = vec![
        (CallerClass::Viewer, create_principal(&fleet, "vera", "viewer", None).await),
        (CallerClass::Operator, create_principal(&fleet, "otto", "operator", None).await),
        (CallerClass::Admin, create_principal(&fleet, "ada", "admin", None).await),
    ];
    let revision = fleet.last_revision().await;
    for (kind, document, is_operator_allowed) in documents_by_kind() {
        let endpoint = Endpoint::for_create(kind).unwrap();
        for (caller, client) in &mut clients {
            let is_allowed = *caller == CallerClass::Admin || (*caller == CallerClass::Operator && is_operator_allowed);
            assert_eq!(endpoint.allows(*caller), is_allowed, "{endpoint:?} as {caller:?}");
            let body = json!({"objects": [&document]}).to_string();
            let answer = send(client, "POST", "/v1/apply?dry_run=true", &[JSON], &body).await;
            let expected = if is_allowed { (200, "") } else { (403, "auth.forbidden") };
            assert_eq!((answer.status, &*answer.kind), expected, "{kind:?} as {caller:?}: {}", answer.body);
        }
    }
    let documents: Vec<Value> = documents_by_kind().into_iter().map(|(_, document, _)| document).collect();
    let answer = send(&mut clients[1].1, "POST", "/v1/apply", &[JSON], &json!({ "objects": documents }).to_string()).await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.forbidden"), "an apply is refused as a whole: {}", answer.body);
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

/// By an apply, a principal that is bound to cluster `own` may create only node groups and nodes of this cluster.
#[tokio::test]
async fn s41_bound_principal_applies_only_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    for role in ["operator", "admin"] {
        let mut client = create_principal(&fleet, &format!("bound-{role}"), role, Some("own")).await;
        for (kind, document, _) in documents_by_kind() {
            let is_allowed = matches!(kind, Kind::NodeGroup | Kind::Node);
            let body = json!({"objects": [&document]}).to_string();
            let answer = send(&mut client, "POST", "/v1/apply?dry_run=true", &[JSON], &body).await;
            let expected = if is_allowed { (200, "") } else { (403, "auth.forbidden") };
            assert_eq!((answer.status, &*answer.kind), expected, "{kind:?} as bound {role}: {}", answer.body);
        }
    }
}
