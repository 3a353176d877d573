//! The principals and clients of the tests, and the objects of two clusters.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, Request};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use stemma_controller::run::{Options, PublishMode};
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{Pin, client_config};

use crate::fleet::{Fleet, new_key_and_request, private_key};

/// A response: the status, the error's type, and the body.
pub(crate) struct ApiAnswer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The type of the error, or an empty text.
    pub(crate) kind: String,
    /// The body, or `null` if it is not JSON.
    pub(crate) body: Value,
}

/// Sends a request, and reads the whole response.
pub(crate) async fn send(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> ApiAnswer {
    let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = client.send(request.body(Bytes::from(body.to_owned())).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    ApiAnswer { status, kind: body["error"]["type"].as_str().unwrap_or_default().to_owned(), body }
}

/// The header of a JSON body.
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// Creates a principal. Returns a client of the admin listener with a certificate of the principal.
pub(crate) async fn create_principal(fleet: &Fleet, name: &str, role: &str, cluster: Option<&str>) -> Client {
    let body = json!({"name": name, "role": role, "cluster": cluster});
    let (status, answer) = fleet.request(Method::POST, "/v1/principals", &body).await;
    assert_eq!((status, &answer["cluster"]), (201, &json!(cluster)), "{answer}");
    client_with_certificate(fleet, name).await.0
}

/// Returns a client with a new certificate of a principal, and the serial number of the certificate.
pub(crate) async fn client_with_certificate(fleet: &Fleet, name: &str) -> (Client, String) {
    let credential = ClientCertificate::issue(fleet, name, None).await;
    (credential.client(fleet), credential.serial)
}

/// A certificate of a principal, with its key.
pub(crate) struct ClientCertificate {
    /// The serial number, as the API shows it.
    pub(crate) serial: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ClientCertificate {
    /// Issues a new certificate of a principal, on request of the first admin. `ttl_s` is its lifetime in seconds, if
    /// not the default.
    pub(crate) async fn issue(fleet: &Fleet, name: &str, ttl_s: Option<u64>) -> Self {
        let request = new_key_and_request();
        let csr = pem::encode("CERTIFICATE REQUEST", &request.csr);
        let body = json!({"principal": name, "csr": csr, "ttl_seconds": ttl_s});
        let (status, answer) = fleet.request(Method::POST, "/v1/certificates", &body).await;
        assert_eq!(status, 201, "{answer}");
        Self::read(&answer, private_key(&request.key))
    }

    /// Reads the certificate in a response to `POST /v1/certificates`. `key` is the key of the request.
    pub(crate) fn read(answer: &Value, key: PrivateKeyDer<'static>) -> Self {
        let chain = answer["certificate"].as_str().unwrap();
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        Self { serial: answer["serial"].as_str().unwrap().to_owned(), chain, key }
    }

    /// Returns a client of the admin listener that presents the certificate, on a connection of its own.
    pub(crate) fn client(&self, fleet: &Fleet) -> Client {
        fleet.client_at(fleet.controller.admin_address(), self.chain.clone(), self.key.clone_key())
    }
}

/// Returns a certificate request with a new key, in PEM.
pub(crate) fn csr() -> String {
    pem::encode("CERTIFICATE REQUEST", &new_key_and_request().csr)
}

/// Returns a client of the controller's Unix socket. A caller without a token has the rights of root there.
pub(crate) fn root_client(fleet: &Fleet) -> Client {
    let socket = fleet.directory.path().join("data/admin.sock");
    let target: Target = format!("unix:{}", socket.display()).parse().unwrap();
    Client::new(target, None, ClientLimits::default())
}

/// Creates a bearer token of a principal, which is valid for an hour. Returns the token and its id.
pub(crate) async fn create_token(fleet: &Fleet, name: &str) -> (String, String) {
    let path = format!("/v1/principals/{name}/tokens");
    let (status, answer) = fleet.request(Method::POST, &path, &json!({"ttl_seconds": 3600})).await;
    assert_eq!(status, 201, "{answer}");
    (answer["token"].as_str().unwrap().to_owned(), answer["id"].as_str().unwrap().to_owned())
}

/// Restarts the controller of a fleet with the same data and the same clock. As before, the test itself publishes
/// desired states.
pub(crate) async fn restart(fleet: Fleet) -> Fleet {
    let clock = Arc::clone(&fleet.clock);
    let options = Options { clock: clock as _, publishing: PublishMode::Manual, ..Options::default() };
    fleet.restart(options).await
}

pub(crate) mod pem {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    /// Encodes DER as PEM with this label.
    pub(crate) fn encode(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }
}

/// Returns a client of the admin listener that has no certificate.
pub(crate) fn stranger(fleet: &Fleet) -> Client {
    let root = fleet.components().authority.root().clone();
    let tls = client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock)).unwrap();
    let target: Target = format!("https://{}", fleet.controller.admin_address()).parse().unwrap();
    Client::new(target, Some(Arc::new(tls)), ClientLimits::default())
}

/// Creates the clusters `own` and `far`, each with a group, a node, an allocation, a join token and a viewer. Returns
/// for each cluster the names and values of path parameters of the API, such as `node` and `own-node`.
pub(crate) async fn two_clusters(fleet: &Fleet) -> [Vec<(&'static str, String)>; 2] {
    let mut all_values = Vec::new();
    for cluster in ["own", "far"] {
        fleet
            .apply(json!([
                {"kind": "Cluster", "name": cluster},
                {"kind": "NodeGroup", "cluster": cluster, "name": "web"},
                {"kind": "Node", "name": format!("{cluster}-node"), "nodegroup": format!("{cluster}/web")},
            ]))
            .await;
        let patch = json!([{"op": "add", "path": "/resource_class", "value": cluster}]);
        let (status, answer) = fleet.request(Method::PATCH, &format!("/v1/nodes/{cluster}-node"), &patch).await;
        assert_eq!(status, 200, "{answer}");
        let allocation = json!({"name": format!("{cluster}-allocation"), "resource_class": cluster});
        let (status, answer) = fleet.request(Method::POST, "/v1/allocations", &allocation).await;
        assert_eq!((status, &answer["state"]), (201, &json!("active")), "{answer}");
        let token = fleet.create_token(json!({"nodegroup": format!("{cluster}/web")})).await;
        let holder = format!("{cluster}-principal");
        drop(create_principal(fleet, &holder, "viewer", Some(cluster)).await);
        let (_, serial) = client_with_certificate(fleet, &holder).await;
        all_values.push(vec![
            ("cluster", cluster.to_owned()),
            ("node", format!("{cluster}-node")),
            ("allocation", format!("{cluster}-allocation")),
            ("token", token.split('.').next().unwrap().to_owned()),
            ("principal", holder),
            ("certificate", serial),
        ]);
    }
    all_values.try_into().unwrap()
}

/// Returns status and body of a response in a form in which responses can be compared: without the request id, and with
/// `VALUE` in place of each of these values.
pub(crate) fn comparable_answer(answer: &ApiAnswer, values: &[(&str, String)]) -> (u16, String) {
    let mut body = answer.body.clone();
    if let Some(error) = body["error"].as_object_mut() {
        error.remove("request_id");
    }
    let text = values.iter().fold(body.to_string(), |text, (_, value)| text.replace(value.as_str(), "VALUE"));
    (answer.status, text)
}
