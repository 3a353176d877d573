//! The principals and clients of the tests, and the objects of two clusters.

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

use crate::fleet::{Fleet, new_request, private_key};

/// A response: the status, the error's type, and the body.
pub(crate) struct ApiAnswer {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) body: Value,
}

pub(crate) async fn send(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> ApiAnswer {
    let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = client.send(request.body(Bytes::from(body.to_owned())).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    ApiAnswer { status, kind: body["error"]["type"].as_str().unwrap_or_default().to_owned(), body }
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// Creates a principal, and a client with its own certificate.
pub(crate) async fn create_principal(fleet: &Fleet, name: &str, role: &str, cluster: Option<&str>) -> Client {
    let body = json!({"name": name, "role": role, "cluster": cluster});
    let (status, made) = fleet.request(Method::POST, "/v1/principals", &body).await;
    assert_eq!((status, &made["cluster"]), (201, &json!(cluster)), "{made}");
    client_with_certificate(fleet, name).await.0
}

/// Returns a client with a new certificate of a principal, and the serial number.
pub(crate) async fn client_with_certificate(fleet: &Fleet, name: &str) -> (Client, String) {
    let credential = ClientCertificate::issue(fleet, name, None).await;
    (credential.client(fleet), credential.serial)
}

/// A certificate of a principal, with its key.
pub(crate) struct ClientCertificate {
    pub(crate) serial: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ClientCertificate {
    /// Issues a new certificate, as the first admin.
    pub(crate) async fn issue(fleet: &Fleet, name: &str, ttl_s: Option<u64>) -> Self {
        let asking = new_request();
        let csr = pem::encode("CERTIFICATE REQUEST", &asking.csr);
        let body = json!({"principal": name, "csr": csr, "ttl_seconds": ttl_s});
        let (status, made) = fleet.request(Method::POST, "/v1/certificates", &body).await;
        assert_eq!(status, 201, "{made}");
        Self::read(&made, private_key(&asking.key))
    }

    /// Reads the certificate in a response.
    pub(crate) fn read(made: &Value, key: PrivateKeyDer<'static>) -> Self {
        let chain = made["certificate"].as_str().unwrap();
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        Self { serial: made["serial"].as_str().unwrap().to_owned(), chain, key }
    }

    /// Returns a client that presents the certificate, on its own connection.
    pub(crate) fn client(&self, fleet: &Fleet) -> Client {
        fleet.client_of(fleet.controller.admin_address(), self.chain.clone(), self.key.clone_key())
    }
}

/// Returns a certificate request with a new key, in PEM.
pub(crate) fn csr() -> String {
    pem::encode("CERTIFICATE REQUEST", &new_request().csr)
}

/// Returns a client on root's socket.
pub(crate) fn root_client(fleet: &Fleet) -> Client {
    let socket = fleet.directory.path().join("data/admin.sock");
    let target: Target = format!("unix:{}", socket.display()).parse().unwrap();
    Client::new(target, None, ClientLimits::default())
}

/// Creates a bearer token of a principal. Returns the token and its id.
pub(crate) async fn create_token(fleet: &Fleet, name: &str) -> (String, String) {
    let path = format!("/v1/principals/{name}/tokens");
    let (status, made) = fleet.request(Method::POST, &path, &json!({"ttl_seconds": 3600})).await;
    assert_eq!(status, 201, "{made}");
    (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned())
}

/// Restarts the controller of a fleet.
pub(crate) async fn restart(fleet: Fleet) -> Fleet {
    let clock = Arc::clone(&fleet.clock);
    let options = Options { clock: clock as _, publishing: Publishing::Manual, ..Options::default() };
    fleet.restart(options).await
}

pub(crate) mod pem {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    pub(crate) fn encode(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }
}

/// Returns a client without a certificate for the admin listener.
pub(crate) fn stranger(fleet: &Fleet) -> Client {
    let root = fleet.parts().authority.root().clone();
    let tls = client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock)).unwrap();
    let target: Target = format!("https://{}", fleet.controller.admin_address()).parse().unwrap();
    Client::new(target, Some(Arc::new(tls)), ClientLimits::default())
}

/// Creates two clusters with the same objects: a group, a node with an allocation, a join token, a principal with a
/// certificate. Returns for each cluster the values of the path parameters.
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
        let (status, told) = fleet.request(Method::PATCH, &format!("/v1/nodes/{cluster}-node"), &set).await;
        assert_eq!(status, 200, "{told}");
        let wanted = json!({"name": format!("{cluster}-allocation"), "resource_class": cluster});
        let (status, told) = fleet.request(Method::POST, "/v1/allocations", &wanted).await;
        assert_eq!((status, &told["state"]), (201, &json!("active")), "{told}");
        let token = fleet.create_token(json!({"nodegroup": format!("{cluster}/web")})).await;
        let holder = format!("{cluster}-principal");
        drop(create_principal(fleet, &holder, "viewer", Some(cluster)).await);
        let (_, serial) = client_with_certificate(fleet, &holder).await;
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

/// Returns a response without its request id, and with one word in place of these values.
pub(crate) fn comparable_answer(told: &ApiAnswer, values: &[(&str, String)]) -> (u16, String) {
    let mut body = told.body.clone();
    if let Some(error) = body["error"].as_object_mut() {
        error.remove("request_id");
    }
    let text = values.iter().fold(body.to_string(), |text, (_, value)| text.replace(value.as_str(), "VALUE"));
    (told.status, text)
}
