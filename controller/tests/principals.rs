//! Who may do what: principals with certificates and tokens at the real listener, and the matrix of the endpoint table (S40, S41).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fleet::{Fleet, asking, private_key};
use hyper::{Method, Request};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::clock::SystemClock;
use stemma_wire::endpoint::{Caller, Content, Endpoint, Listener, Method as RowMethod, Scope};
use stemma_wire::tls::{Pin, client_config};

/// An answer: the status, the error's type, and the body.
struct Told {
    status: u16,
    kind: String,
    body: Value,
}

async fn ask(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Told {
    let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = client.send(request.body(Bytes::from(body.to_owned())).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    Told { status, kind: body["error"]["type"].as_str().unwrap_or_default().to_owned(), body }
}

const JSON: (&str, &str) = ("content-type", "application/json");

/// Makes a principal, and a client with a certificate of its own.
async fn principal(fleet: &Fleet, name: &str, role: &str, cluster: Option<&str>) -> Client {
    let body = json!({"name": name, "role": role, "cluster": cluster});
    let (status, made) = fleet.ask(Method::POST, "/v1/principals", &body).await;
    assert_eq!((status, &made["cluster"]), (201, &json!(cluster)), "{made}");
    certified(fleet, name).await.0
}

/// A client with a new certificate of a principal, and its serial number.
async fn certified(fleet: &Fleet, name: &str) -> (Client, String) {
    let asking = asking();
    let csr = pem::encode("CERTIFICATE REQUEST", &asking.csr);
    let (status, made) = fleet.ask(Method::POST, "/v1/certificates", &json!({"principal": name, "csr": csr})).await;
    assert_eq!(status, 201, "{made}");
    let chain = made["certificate"].as_str().unwrap();
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let client = fleet.client_of(fleet.controller.admin_address(), chain, private_key(&asking.key));
    (client, made["serial"].as_str().unwrap().to_owned())
}

mod pem {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    pub(crate) fn encode(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }
}

/// A client that shows no certificate, at the operators' port.
fn stranger(fleet: &Fleet) -> Client {
    let root = fleet.parts().authority.root().clone();
    let tls = client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock)).unwrap();
    let target: Target = format!("https://{}", fleet.controller.admin_address()).parse().unwrap();
    Client::new(target, Some(Arc::new(tls)), ClientLimits::default())
}

/// Two clusters with the same in each: a group, a node with an allocation, a join token, a principal with a certificate. Gives for each the
/// values of what a path names.
async fn two_clusters(fleet: &Fleet) -> [Vec<(&'static str, String)>; 2] {
    let mut both = Vec::new();
    for cluster in ["own", "far"] {
        fleet
            .apply(json!([
                {"kind": "Cluster", "name": cluster},
                {"kind": "NodeGroup", "cluster": cluster, "name": "web"},
                {"kind": "Node", "name": format!("{cluster}-node"), "nodegroup": format!("{cluster}/web")},
            ]))
            .await;
        let set = json!([{"op": "add", "path": "/resource_class", "value": cluster}]);
        let (status, told) = fleet.ask(Method::PATCH, &format!("/v1/nodes/{cluster}-node"), &set).await;
        assert_eq!(status, 200, "{told}");
        let wanted = json!({"name": format!("{cluster}-allocation"), "resource_class": cluster});
        let (status, told) = fleet.ask(Method::POST, "/v1/allocations", &wanted).await;
        assert_eq!((status, &told["state"]), (201, &json!("active")), "{told}");
        let token = fleet.token(json!({"nodegroup": format!("{cluster}/web")})).await;
        let holder = format!("{cluster}-principal");
        drop(principal(fleet, &holder, "viewer", Some(cluster)).await);
        let (_, serial) = certified(fleet, &holder).await;
        both.push(vec![
            ("cluster", cluster.to_owned()),
            ("node", format!("{cluster}-node")),
            ("allocation", format!("{cluster}-allocation")),
            ("token", token.split('.').next().unwrap().to_owned()),
            ("principal", holder),
            ("certificate", serial),
        ]);
    }
    both.try_into().unwrap()
}

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
    let query = if endpoint.has_dry_run() { "?dry_run=true" } else { "" };
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

/// An answer without what differs from request to request, and with one word for these values.
fn told_of(told: &Told, values: &[(&str, String)]) -> (u16, String) {
    let mut body = told.body.clone();
    if let Some(error) = body["error"].as_object_mut() {
        error.remove("request_id");
    }
    let text = values.iter().fold(body.to_string(), |text, (_, value)| text.replace(value.as_str(), "VALUE"));
    (told.status, text)
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
            let may = row.allows(*caller) && !(writes && route.scope.is_shared());
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

#[tokio::test]
async fn lists_counts_metrics_and_audit_of_who_is_bound_hold_nothing_of_others() {
    let fleet = Fleet::start().await;
    let [own, far] = two_clusters(&fleet).await;
    let mut bound = principal(&fleet, "otto", "operator", Some("own")).await;
    let named = |list: &Value, key: &str, field: &str| -> Vec<String> {
        list[key].as_array().unwrap().iter().map(|one| one[field].as_str().unwrap_or_default().to_owned()).collect()
    };
    for (path, key, field, expected) in [
        ("/v1/nodes", "nodes", "name", vec!["own-node"]),
        ("/v1/nodes/detail", "nodes", "name", vec!["own-node"]),
        ("/v1/nodes?nodegroup=web", "nodes", "name", vec!["own-node"]),
        ("/v1/clusters", "clusters", "name", vec!["own"]),
        ("/v1/clusters/detail", "clusters", "name", vec!["own"]),
        ("/v1/clusters/own/nodegroups", "nodegroups", "name", vec!["web"]),
        ("/v1/allocations", "allocations", "name", vec!["own-allocation"]),
        ("/v1/join-tokens", "tokens", "nodegroup", vec!["own/web"]),
        ("/v1/principals", "principals", "name", vec!["own-principal", "otto"]),
        ("/v1/certificates", "certificates", "principal", vec!["own-principal", "own-principal", "otto"]),
    ] {
        let told = ask(&mut bound, "GET", path, &[], "").await;
        assert_eq!(told.status, 200, "{path}: {}", told.body);
        assert_eq!(named(&told.body, key, field), expected, "{path}");
    }
    for path in ["/v1/nodes?nodegroup=far/web", "/v1/nodes?cluster=far", "/v1/nodes/validate?node=far-node"] {
        let (told, none) = (ask(&mut bound, "GET", path, &[], "").await, path.replace("far", "nil"));
        let of_none = ask(&mut bound, "GET", &none, &[], "").await;
        let nil: Vec<_> = far.iter().map(|(name, value)| (*name, value.replace("far", "nil"))).collect();
        assert_eq!(told_of(&told, &far), told_of(&of_none, &nil), "{path}");
    }
    let request = Request::get("/metrics").body(Bytes::new()).unwrap();
    let metrics = String::from_utf8(bound.send(request).await.unwrap().body().to_vec()).unwrap();
    assert!(metrics.contains("principal=\"otto\"") && !metrics.contains("far") && !metrics.contains("\"admin\""));
    let nodes = metrics.lines().filter(|line| line.starts_with("stemma_nodes{"));
    let nodes: u64 = nodes.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert!(nodes <= 1, "{metrics}");
    let audit = ask(&mut bound, "GET", "/v1/audit", &[], "").await.body.to_string();
    assert!(audit.contains("own-node") && !audit.contains("far"), "{audit}");
    let (_, whole) = fleet.ask(Method::GET, "/v1/audit?principal=admin", &Value::Null).await;
    assert!(whole.to_string().contains("far-node"));
    // Also of what is gone.
    for cluster in ["own", "far"] {
        fleet.ask(Method::DELETE, &format!("/v1/allocations/{cluster}-allocation"), &Value::Null).await;
        let (status, told) = fleet.ask(Method::DELETE, &format!("/v1/nodes/{cluster}-node"), &Value::Null).await;
        assert_eq!(status, 204, "{told}");
    }
    let audit = ask(&mut bound, "GET", "/v1/audit?object=node/own-node", &[], "").await.body.to_string();
    assert!(audit.contains("deleted"), "{audit}");
    let audit = ask(&mut bound, "GET", "/v1/audit?object=node/far-node", &[], "").await.body;
    assert_eq!(audit["audit"], json!([]));
    assert_eq!(own.len(), far.len());
}

#[tokio::test]
async fn who_is_bound_writes_in_its_cluster_and_nowhere_else() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound = principal(&fleet, "otto", "operator", Some("own")).await;
    let mut admin = principal(&fleet, "ada", "admin", Some("own")).await;
    let revision = fleet.revision().await;
    let node = |name: &str, group: &str| json!({"kind": "Node", "name": name, "nodegroup": group});
    let apply = |objects: Value| json!({ "objects": objects }).to_string();
    let taken = json!({"name": "x", "resource_class": "far"}).to_string();
    for (method, path, body, status, kind) in [
        ("POST", "/v1/nodes", json!({"name": "stray"}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/nodes", json!({"name": "n", "nodegroup": "far/web"}).to_string(), 400, "reference.dangling"),
        ("POST", "/v1/apply", apply(json!([{"kind": "Cluster", "name": "far"}])), 403, "auth.forbidden"),
        ("POST", "/v1/apply", apply(json!([{"kind": "Cluster", "name": "new"}])), 403, "auth.forbidden"),
        ("POST", "/v1/apply", apply(json!([{"kind": "ClusterTemplate", "name": "t"}])), 403, "auth.forbidden"),
        (
            "POST",
            "/v1/apply",
            apply(json!([{"kind": "NodeGroup", "cluster": "far", "name": "web"}])),
            400,
            "reference.dangling",
        ),
        ("POST", "/v1/apply", apply(json!([node("own-node", "far/web")])), 400, "reference.dangling"),
        ("PATCH", "/v1/nodes/far-node", json!([]).to_string(), 404, "object.not_found"),
        ("DELETE", "/v1/nodes/far-node", String::new(), 404, "object.not_found"),
        ("POST", "/v1/join-tokens", json!({}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/join-tokens", json!({"nodegroup": "far/web"}).to_string(), 400, "reference.dangling"),
        ("POST", "/v1/clustertemplates", json!({"name": "t"}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/principals", json!({"name": "p", "role": "viewer"}).to_string(), 403, "auth.forbidden"),
    ] {
        let told = ask(&mut bound, method, path, &[JSON], &body).await;
        assert_eq!((told.status, &*told.kind), (status, kind), "{method} {path} {body}: {}", told.body);
    }
    for (body, status, kind) in [
        (json!({"name": "p", "role": "viewer", "cluster": "far"}), 400, "reference.dangling"),
        (json!({"name": "root", "role": "viewer"}), 400, "field.invalid"),
        (json!({"name": "a b", "role": "viewer"}), 400, "field.invalid"),
        (json!({"name": "p", "role": "king"}), 400, "field.invalid"),
    ] {
        let told = ask(&mut admin, "POST", "/v1/principals", &[JSON], &body.to_string()).await;
        assert_eq!((told.status, &*told.kind), (status, kind), "{body}: {}", told.body);
    }
    let told = ask(&mut admin, "PATCH", "/v1/principals/ada", &[JSON], &json!({"cluster": null}).to_string()).await;
    assert_eq!(told.kind, "auth.forbidden", "nobody frees themselves: {}", told.body);
    assert_eq!(fleet.revision().await, revision, "nothing was written");
    let told = ask(&mut bound, "POST", "/v1/apply", &[JSON], &apply(json!([node("own-2", "own/web")]))).await;
    assert_eq!(told.status, 200, "{}", told.body);
    let told = ask(&mut bound, "POST", "/v1/join-tokens", &[JSON], &json!({"nodegroup": "own/web"}).to_string()).await;
    assert_eq!(told.status, 201, "{}", told.body);
    // A pool stays its cluster's: a node of the class is there, and in another cluster.
    let (status, _) = fleet.ask(Method::DELETE, "/v1/allocations/far-allocation", &Value::Null).await;
    assert_eq!(status, 204);
    let told = ask(&mut bound, "POST", "/v1/allocations", &[JSON], &taken).await;
    assert_eq!((told.status, &told.body["state"]), (201, &json!("error")), "{}", told.body);
    let told = ask(&mut bound, "GET", "/v1/allocations/x", &[], "").await;
    assert_eq!(told.status, 200, "it sees what it asked for: {}", told.body);
    // An admin of a cluster makes principals of the cluster.
    let body = json!({"name": "p", "role": "viewer"}).to_string();
    let told = ask(&mut admin, "POST", "/v1/principals", &[JSON], &body).await;
    assert_eq!((told.status, &told.body["cluster"]), (201, &json!("own")), "{}", told.body);
}

#[tokio::test]
async fn the_last_admin_stays_and_a_cluster_with_principals_too() {
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    for (method, path, body) in [
        (Method::DELETE, "/v1/principals/admin", Value::Null),
        (Method::PATCH, "/v1/principals/admin", json!({"role": "operator"})),
        (Method::PATCH, "/v1/principals/admin", json!({"cluster": "prod"})),
    ] {
        let (status, told) = fleet.ask(method, path, &body).await;
        assert_eq!((status, &told["error"]["type"]), (409, &json!("object.in_use")), "{body}: {told}");
        assert!(told["error"]["message"].as_str().unwrap().contains("the last admin"), "{told}");
    }
    let mut otto = principal(&fleet, "otto", "admin", Some("prod")).await;
    let (status, told) = fleet.ask(Method::DELETE, "/v1/clusters/prod", &Value::Null).await;
    assert_eq!(status, 409, "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains("principal otto"), "{told}");
    let (status, _) = fleet.ask(Method::DELETE, "/v1/principals/admin", &Value::Null).await;
    assert_eq!(status, 409, "an admin of a cluster is none of the fleet");
    let mut ada = principal(&fleet, "ada", "admin", None).await;
    assert_eq!(ask(&mut otto, "GET", "/v1/nodes", &[], "").await.status, 200);
    let told = ask(&mut ada, "DELETE", "/v1/principals/admin", &[], "").await;
    assert_eq!(told.status, 204, "{}", told.body);
    let told = ask(&mut fleet.operator(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (403, "auth.revoked"), "its certificate went with it");
    let body = json!({"name": "admin", "role": "admin"}).to_string();
    assert_eq!(ask(&mut ada, "POST", "/v1/principals", &[JSON], &body).await.status, 201);
    let told = ask(&mut fleet.operator(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!(told.kind, "auth.revoked", "and does not come back with another of its name");
}

#[tokio::test]
async fn a_revoked_certificate_ends_at_once_on_its_own_connection_too() {
    let fleet = Fleet::start().await;
    drop(principal(&fleet, "vera", "viewer", None).await);
    let (mut client, serial) = certified(&fleet, "vera").await;
    let (mut other, _) = certified(&fleet, "vera").await;
    assert_eq!(ask(&mut client, "GET", "/v1/nodes", &[], "").await.status, 200);
    assert_eq!(ask(&mut other, "GET", "/v1/nodes", &[], "").await.status, 200);
    let (status, told) = fleet.ask(Method::DELETE, &format!("/v1/certificates/{serial}"), &Value::Null).await;
    assert_eq!(status, 204, "{told}");
    // Asked on a connection of its own: the one that it had is cut.
    let told = ask(&mut client, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (403, "auth.revoked"));
    assert_eq!(ask(&mut other, "GET", "/v1/nodes", &[], "").await.status, 200, "the other one is good");
    let open = ask(&mut client, "GET", "/healthz", &[], "").await;
    assert_eq!(open.status, 200, "what is open to all is open to it");
    let listed = fleet.read("/v1/certificates").await;
    let revoked = listed["certificates"].as_array().unwrap().iter().filter(|one| !one["revoked_at"].is_null()).count();
    assert_eq!(revoked, 1);
    fleet.audited("vera", "auth.revoked", 1).await;
    fleet.clock.forward(91 * 24 * 3600);
    let told = ask(&mut other, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (401, "auth.required"), "it has ended while its connection was open");
}

#[tokio::test]
async fn each_asks_for_its_own_certificate_and_an_admin_for_any() {
    let fleet = Fleet::start().await;
    let mut otto = principal(&fleet, "otto", "operator", None).await;
    drop(principal(&fleet, "vera", "viewer", None).await);
    let csr = || pem::encode("CERTIFICATE REQUEST", &asking().csr);
    let plain = csr();
    for (body, status, kind) in [
        (json!({"csr": plain}), 201, ""),
        (json!({"csr": csr(), "principal": "otto"}), 201, ""),
        (json!({"csr": csr(), "principal": "vera"}), 403, "auth.forbidden"),
        (json!({"csr": "no request"}), 400, "csr.invalid"),
        (json!({"csr": csr(), "ttl_seconds": 0}), 400, "field.invalid"),
        (json!({"csr": csr(), "ttl_seconds": 400 * 24 * 3600}), 400, "field.invalid"),
    ] {
        let told = ask(&mut otto, "POST", "/v1/certificates", &[JSON], &body.to_string()).await;
        assert_eq!((told.status, &*told.kind), (status, kind), "{}", told.body);
    }
}

#[tokio::test]
async fn tokens_select_a_principal_and_wrong_ones_are_paced_and_audited() {
    let fleet = Fleet::start().await;
    drop(principal(&fleet, "robot", "viewer", None).await);
    let (status, made) = fleet.ask(Method::POST, "/v1/principals/robot/tokens", &json!({"ttl_seconds": 3600})).await;
    assert_eq!(status, 201, "{made}");
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let (bearer, secret) = (format!("Bearer {token}"), token.split_once('.').unwrap().1);
    let mut client = stranger(&fleet);
    for header in [("authorization", bearer.as_str()), ("x-auth-token", token)] {
        assert_eq!(ask(&mut client, "GET", "/v1/nodes", &[header], "").await.status, 200, "{}", header.0);
        let told = ask(&mut client, "POST", "/v1/nodes", &[header, JSON], "{}").await;
        assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "S40: a viewer writes nothing");
    }
    fleet.audited("robot", "auth.forbidden", 2).await;
    let shown = fleet.read("/v1/principals/robot").await.to_string();
    let stored = std::fs::read(fleet.directory.path().join("data/store.redb")).unwrap();
    let holds = |bytes: &[u8]| stored.windows(bytes.len()).any(|window| window == bytes);
    assert!(!shown.contains(secret) && !holds(secret.as_bytes()) && holds(id.as_bytes()), "the secret is kept nowhere");
    let wrong = [format!("{id}.wrong"), "nothing".to_owned(), format!("0.{secret}")];
    for token in &wrong {
        let told = ask(&mut client, "GET", "/v1/nodes", &[("x-auth-token", token)], "").await;
        assert_eq!((told.status, &*told.kind), (401, "auth.required"), "{token}");
        assert!(!told.body.to_string().contains(token), "nothing of it is repeated");
    }
    fleet.audited(&format!("token/{id}"), "auth.required", 1).await;
    fleet.audited("nobody", "auth.required", 2).await;
    let mut paced = 0;
    for _ in 0..30 {
        paced += u32::from(ask(&mut client, "GET", "/v1/nodes", &[("x-auth-token", "a.b")], "").await.status == 503);
    }
    assert!(paced >= 10, "{paced}");
    assert!(fleet.rejected("token_guesses") >= u64::from(paced));
    let good = [("x-auth-token", token)];
    assert_eq!(ask(&mut client, "GET", "/v1/nodes", &good, "").await.status, 200, "a good one is served beside them");
    let (status, _) = fleet.ask(Method::DELETE, &format!("/v1/principals/robot/tokens/{id}"), &Value::Null).await;
    assert_eq!(status, 204);
    fleet.clock.forward(120);
    assert_eq!(ask(&mut client, "GET", "/v1/nodes", &good, "").await.status, 401, "revoked");
    let (_, made) = fleet.ask(Method::POST, "/v1/principals/robot/tokens", &json!({"ttl_seconds": 3600})).await;
    let good = [("x-auth-token", made["token"].as_str().unwrap())];
    assert_eq!(ask(&mut client, "GET", "/v1/nodes", &good, "").await.status, 200);
    fleet.clock.forward(3600);
    assert_eq!(ask(&mut client, "GET", "/v1/nodes", &good, "").await.status, 401, "ended");
}

#[tokio::test]
async fn root_mends_a_lost_admin_by_the_socket() {
    let fleet = Fleet::start().await;
    let socket = fleet.directory.path().join("data/admin.sock");
    let target: Target = format!("unix:{}", socket.display()).parse().unwrap();
    let mut root = Client::new(target, None, ClientLimits::default());
    assert_eq!(ask(&mut root, "GET", "/v1/nodes", &[], "").await.status, 200);
    let asking = asking();
    let csr = pem::encode("CERTIFICATE REQUEST", &asking.csr);
    let body = json!({"principal": "admin", "csr": csr}).to_string();
    let told = ask(&mut root, "POST", "/v1/certificates", &[JSON], &body).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let chain = told.body["certificate"].as_str().unwrap();
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let mut mended = fleet.client_of(fleet.controller.admin_address(), chain, private_key(&asking.key));
    assert_eq!(ask(&mut mended, "GET", "/v1/principals/admin", &[], "").await.body["role"], "admin");
    let audit = fleet.read("/v1/audit?principal=root").await;
    assert_eq!(audit["audit"][0]["address"], "unix", "{audit}");
    tokio::time::timeout(Duration::from_secs(10), fleet.controller.stop()).await.unwrap();
}
