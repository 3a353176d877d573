//! Tests for bugs of the controller that no earlier test had found. Tests for other such bugs are in the modules of
//! their subjects, with `w15_` and the number of the bug in their names.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::{Method, Request};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use stemma_wire::client::Client;

use crate::fleet::{self, Fleet, error_response, new_key_and_request, private_key};

/// The idempotency key of each request.
const KEY: &str = "0198c0de-0000-7000-8000-000000000015";

/// Sends a request with the idempotency key `KEY`. Returns status and body.
async fn send(client: &mut Client, method: Method, path: &str) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("idempotency-key", KEY);
    let request = request.header("content-type", "application/json").body(Bytes::from_static(b"{}")).unwrap();
    let answer = client.send(request).await.unwrap();
    (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default())
}

/// Creates another admin of the fleet, and returns a client with its certificate.
async fn admin_client(fleet: &Fleet, name: &str) -> Client {
    let (status, answer) = fleet.request(Method::POST, "/v1/principals", &json!({"name": name, "role": "admin"})).await;
    assert_eq!(status, 201, "{answer}");
    let request_key = new_key_and_request();
    let csr = STANDARD.encode(&request_key.csr);
    let csr = format!("-----BEGIN CERTIFICATE REQUEST-----\n{csr}\n-----END CERTIFICATE REQUEST-----\n");
    let (status, answer) = fleet.request(Method::POST, "/v1/certificates", &json!({"principal": name, "csr": csr})).await;
    assert_eq!(status, 201, "{answer}");
    let chain = CertificateDer::pem_slice_iter(answer["certificate"].as_str().unwrap().as_bytes());
    let chain = chain.map(Result::unwrap).collect();
    fleet.client_at(fleet.controller.admin_address(), chain, private_key(&request_key.key))
}

/// Two admins send requests with the same idempotency key. Neither sees the request or the answer of the other one.
#[tokio::test]
async fn w15_05_idempotency_key_is_scoped_to_principal() {
    let fleet = Fleet::start().await;
    let mut eve = admin_client(&fleet, "eve").await;
    let mut ada = fleet.admin_client();
    let record_path = format!("/v1/requests/{KEY}");
    let (status, ada_answer) = send(&mut ada, Method::POST, "/v1/join-tokens").await;
    assert_eq!(status, 201);
    assert_eq!(send(&mut eve, Method::GET, &record_path).await.0, 404, "the request of another principal is hidden");
    let (status, eve_answer) = send(&mut eve, Method::POST, "/v1/join-tokens").await;
    assert_eq!(status, 201);
    assert_ne!(eve_answer["id"], ada_answer["id"], "the answer of another principal is not returned");
    for (client, first_answer) in [(&mut ada, &ada_answer), (&mut eve, &eve_answer)] {
        assert_eq!(
            send(client, Method::POST, "/v1/join-tokens").await.1["id"],
            first_answer["id"],
            "a repeated request returns the first answer"
        );
        assert_eq!(send(client, Method::GET, &record_path).await.0, 200);
    }
}

/// A client without a certificate requests the renewal of a certificate. The refusal is in the log and in the metrics,
/// and not in the store.
#[tokio::test]
async fn w15_03_w15_04_refusal_is_logged_and_counted_in_metrics() {
    let fleet = Fleet::start().await;
    let revision_before = fleet.last_revision().await;
    let answer = fleet::send_request(&mut fleet.client_without_certificate(), Method::POST, "/agent/v1/renew", "").await;
    assert_eq!(error_response(&answer).kind, "auth.required");
    fleet.wait_until_counted("auth.required", 1).await;
    let answer = fleet.admin_client().send(Request::get("/metrics").body(Bytes::new()).unwrap()).await.unwrap();
    let metrics = String::from_utf8(answer.body().to_vec()).unwrap();
    assert_eq!(fleet::witness::metric_count(&metrics, "auth.required"), 1, "{metrics}");
    assert_eq!(fleet.last_revision().await, revision_before, "nothing is written");
}
