//! Whom the tests let in, and what two clusters hold.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, Request};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use stemma_controller::run::{Options, Publishing};
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{Pin, client_config};

use crate::fleet::{Fleet, asking, private_key};

/// An answer: the status, the error's type, and the body.
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) body: Value,
}

pub(crate) async fn ask(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Told {
    let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = client.send(request.body(Bytes::from(body.to_owned())).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    Told { status, kind: body["error"]["type"].as_str().unwrap_or_default().to_owned(), body }
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// Makes a principal, and a client with a certificate of its own.
pub(crate) async fn principal(fleet: &Fleet, name: &str, role: &str, cluster: Option<&str>) -> Client {
    let body = json!({"name": name, "role": role, "cluster": cluster});
    let (status, made) = fleet.ask(Method::POST, "/v1/principals", &body).await;
    assert_eq!((status, &made["cluster"]), (201, &json!(cluster)), "{made}");
    certified(fleet, name).await.0
}

/// A client with a new certificate of a principal, and its serial number.
pub(crate) async fn certified(fleet: &Fleet, name: &str) -> (Client, String) {
    let credential = Credential::issued(fleet, name, None).await;
    (credential.client(fleet), credential.serial)
}

/// A certificate of a principal, with its key.
pub(crate) struct Credential {
    pub(crate) serial: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Credential {
    /// A new one, by the first admin.
    pub(crate) async fn issued(fleet: &Fleet, name: &str, ttl_s: Option<u64>) -> Self {
        let asking = asking();
        let csr = pem::encode("CERTIFICATE REQUEST", &asking.csr);
        let body = json!({"principal": name, "csr": csr, "ttl_seconds": ttl_s});
        let (status, made) = fleet.ask(Method::POST, "/v1/certificates", &body).await;
        assert_eq!(status, 201, "{made}");
        Self::read(&made, private_key(&asking.key))
    }

    /// The one of an answer.
    pub(crate) fn read(made: &Value, key: PrivateKeyDer<'static>) -> Self {
        let chain = made["certificate"].as_str().unwrap();
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        Self { serial: made["serial"].as_str().unwrap().to_owned(), chain, key }
    }

    /// A client that shows it, on a connection of its own.
    pub(crate) fn client(&self, fleet: &Fleet) -> Client {
        fleet.client_of(fleet.controller.admin_address(), self.chain.clone(), self.key.clone_key())
    }
}

/// A request for a certificate of a new key, in PEM.
pub(crate) fn csr() -> String {
    pem::encode("CERTIFICATE REQUEST", &asking().csr)
}

/// A client on the socket of root.
pub(crate) fn root(fleet: &Fleet) -> Client {
    let socket = fleet.directory.path().join("data/admin.sock");
    let target: Target = format!("unix:{}", socket.display()).parse().unwrap();
    Client::new(target, None, ClientLimits::default())
}

/// A new bearer token of a principal, and its id.
pub(crate) async fn bearer(fleet: &Fleet, name: &str) -> (String, String) {
    let path = format!("/v1/principals/{name}/tokens");
    let (status, made) = fleet.ask(Method::POST, &path, &json!({"ttl_seconds": 3600})).await;
    assert_eq!(status, 201, "{made}");
    (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned())
}

/// Starts the controller of a fleet again.
pub(crate) async fn restart(fleet: Fleet) -> Fleet {
    let clock = Arc::clone(&fleet.clock);
    let options = Options { clock: clock as _, publishing: Publishing::ByHand, ..Options::default() };
    fleet.restart(options).await
}

pub(crate) mod pem {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    pub(crate) fn encode(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }
}

/// A client that shows no certificate, at the operators' port.
pub(crate) fn stranger(fleet: &Fleet) -> Client {
    let root = fleet.parts().authority.root().clone();
    let tls = client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock)).unwrap();
    let target: Target = format!("https://{}", fleet.controller.admin_address()).parse().unwrap();
    Client::new(target, Some(Arc::new(tls)), ClientLimits::default())
}

/// Two clusters with the same in each: a group, a node with an allocation, a join token, a principal with a certificate. Gives for each the
/// values of what a path names.
pub(crate) async fn two_clusters(fleet: &Fleet) -> [Vec<(&'static str, String)>; 2] {
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

/// An answer without what differs from request to request, and with one word for these values.
pub(crate) fn told_of(told: &Told, values: &[(&str, String)]) -> (u16, String) {
    let mut body = told.body.clone();
    if let Some(error) = body["error"].as_object_mut() {
        error.remove("request_id");
    }
    let text = values.iter().fold(body.to_string(), |text, (_, value)| text.replace(value.as_str(), "VALUE"));
    (told.status, text)
}
