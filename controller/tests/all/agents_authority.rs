//! What an agent must not do (docs/trust.md, S31 and S36): its certificate alone identifies it, whatever it sends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::intake::{Intake as _, SentParts};
use stemma_core::epoch::HeldRevision;
use stemma_wire::message::checkin::HeldDesired;
use stemma_wire::message::enroll::RenewRequest;
use stemma_wire::message::{Epoch, Message as _, PartDigest, Revision, encode};

use crate::fleet::{self, Fleet, Host, desired_state, error_response, idle_check_in, send_request};

/// Each of two hosts has a desired state at revision 5. The first host requests that of the second in several ways.
#[tokio::test]
async fn s31_agent_listener_rejects_request_for_other_nodes_state() {
    let fleet = Fleet::start().await;
    let (mut first_host, mut second_host) = (fleet.join("web-1").await, fleet.join("web-2").await);
    fleet.publish(first_host.node, 5, desired_state("one", None, &[]));
    fleet.publish(second_host.node, 5, desired_state("other", None, &[]));
    let (first_state, second_state) =
        (first_host.next_update(0).await.desired.unwrap(), second_host.next_update(0).await.desired.unwrap());
    assert_ne!(first_state.known_digest, second_state.known_digest);
    for path in [
        format!("/agent/v1/checkin/{}", second_host.node),
        format!("/agent/v1/nodes/{}", second_host.node),
        format!("/agent/v1/checkin/../nodes/{}", second_host.node),
        "/v1/nodes".to_owned(),
        "/metrics".to_owned(),
    ] {
        for method in [Method::GET, Method::POST] {
            let response = send_request(&mut first_host.client, method, &path, encode(&idle_check_in(None, 0))).await;
            assert_eq!(response.status(), 404, "{path}");
        }
    }
    let path_with_node = format!("/agent/v1/checkin?node={}", second_host.node);
    let response = send_request(&mut first_host.client, Method::POST, &path_with_node, encode(&idle_check_in(None, 0))).await;
    let check_in_response: stemma_wire::message::checkin::CheckInResponse =
        stemma_wire::message::decode(response.body()).unwrap();
    let stemma_wire::message::checkin::CheckInResponse::Current(update) = check_in_response else { panic!("superseded") };
    assert_eq!(update.desired.unwrap().known_digest, first_state.known_digest, "the unknown parameter has no effect");
    // Ten requests were refused, and the audit accepts ten entries a minute.
    fleet.wait_until_audited(&format!("node/{}", first_host.node), "path.unknown", 10).await;
    assert_eq!(fleet.refused_count("path.unknown"), 10);
}

/// The host claims to hold a desired state of a later revision or of another epoch. Then it adds the name of a group to
/// its message.
#[tokio::test]
async fn s36_check_in_cannot_set_placement_or_revision() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    host.next_update(0).await;
    let revision_before = fleet.last_revision().await;
    let epoch = Epoch(*fleet.components().registry.store().identity().epoch.as_bytes());
    let later_state =
        HeldDesired { epoch, revision: Revision(u64::MAX), known: PartDigest([9; 32]), task_set: PartDigest([9; 32]) };
    host.held_desired = Some(later_state);
    assert_eq!(host.next_update(0).await.desired, None, "the controller waits until its store reaches the reported revision");
    let other_epoch_state = HeldDesired { epoch: Epoch([9; 16]), ..later_state };
    host.held_desired = Some(other_epoch_state);
    assert_eq!(host.next_update(0).await.desired, None, "a change of the epoch must be signed, and no such change exists");
    let mut body = encode(&idle_check_in(None, 0));
    body.extend(b"nodegroup=prod/admins");
    let error = error_response(&send_request(&mut host.client, Method::POST, "/agent/v1/checkin", body).await);
    assert_eq!((error.status, error.kind.as_str()), (400, "message.malformed"));
    assert_eq!(fleet.last_revision().await, revision_before, "the requests write nothing");
    let node = fleet.components().registry.cache().model().nodes.get(host.node).cloned().unwrap();
    assert_eq!(node.spec.nodegroup, None);
    host.held_desired = None;
    assert!(host.next_update(0).await.desired.is_some(), "the next good request succeeds");
    fleet.wait_until_audited(&format!("node/{}", host.node), "message.malformed", 1).await;
}

/// In this test, the host holds a desired state of revision 8, and its published state has revision 5. So the
/// controller sends that state only after a publication for another node has raised its revision to 9.
#[tokio::test]
async fn check_in_returns_state_once_revision_passes_held_revision() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.advance_revision(9).await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    let epoch = fleet.read("/v1/fleet").await["epoch"].as_str().unwrap().parse().unwrap();
    let parts = SentParts { known: PartDigest([9; 32]), task_set: PartDigest([9; 32]) };
    fleet.components().intake.store_sent(host.node, HeldRevision { epoch, revision: 8 }, parts).await.unwrap();
    host.next_update(0).await;
    host.held_desired =
        host.held_desired.map(|held_state| HeldDesired { revision: Revision(8), known: PartDigest([9; 32]), ..held_state });
    assert_eq!(host.next_update(0).await.desired, None, "the state has revision 5, so the controller sends nothing yet");
    fleet.publish(fleet::other_node(), 9, desired_state("elsewhere", None, &[]));
    let desired = host.next_update(0).await.desired.unwrap();
    assert_eq!(desired.revision, Revision(9), "a pass at revision 9 raises the revision of every node");
}

/// Asserts that the controller refuses a request of an enrolled agent with the error type `kind`. The store must be
/// unchanged, the refusal must be audited and counted, and the next good request must succeed.
async fn assert_refused(fleet: &Fleet, host: &mut Host, request: AgentRequest<'_>, kind: &str) {
    let revision_before = fleet.last_revision().await;
    let count_before = fleet.refused_count(kind);
    let error = error_response(&send_request(&mut host.client, request.method, request.path, request.body).await);
    assert_eq!(error.kind, kind, "{}", request.path);
    assert_eq!(fleet.refused_count(kind), count_before + 1);
    fleet.wait_until_audited(&format!("node/{}", host.node), kind, usize::try_from(count_before).unwrap() + 1).await;
    assert_eq!(fleet.last_revision().await, revision_before, "no state change");
    // The refusal may have closed the connection.
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    assert!(host.next_update(0).await.observation.is_some(), "the next good request succeeds");
}

/// A request of an agent that the controller must refuse.
struct AgentRequest<'a> {
    method: Method,
    path: &'a str,
    body: Vec<u8>,
}

/// The body has one byte more than a request for a certificate may have.
#[tokio::test]
async fn s43_agent_listener_rejects_oversized_body_and_audits() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let body = vec![0; RenewRequest::MAX_BYTES + 1];
    let request = AgentRequest { method: Method::POST, path: "/agent/v1/renew", body };
    assert_refused(&fleet, &mut host, request, "request.too_large").await;
}

#[tokio::test]
async fn s50_agent_listener_rejects_undecodable_body_and_audits() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    // A list with a claimed length of 2^63 entries, a truncated message, and a message with trailing bytes.
    let mut overlong_list = encode(&idle_check_in(None, 0))[..18].to_vec();
    overlong_list.extend([0xff; 9]);
    let valid_body = encode(&idle_check_in(None, 0));
    let truncated = valid_body[..valid_body.len() - 1].to_vec();
    for body in [overlong_list, truncated, [valid_body.clone(), vec![0]].concat()] {
        let request = AgentRequest { method: Method::POST, path: "/agent/v1/checkin", body };
        assert_refused(&fleet, &mut host, request, "message.malformed").await;
    }
    let request =
        AgentRequest { method: Method::POST, path: "/agent/v1/checkin", body: [vec![99], valid_body[1..].to_vec()].concat() };
    assert_refused(&fleet, &mut host, request, "message.version").await;
}

/// The paths contain encoded slashes, dots or a zero byte in the place of an identifier. The first loop is about the
/// agent listener, the second about the admin listener.
#[tokio::test]
async fn s54_agent_listener_rejects_path_as_id_and_audits() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    for path in ["/agent/v1/profiles/..%2f..%2fetc%2fpasswd", "/agent/v1/blobs/%2e%2e", "/agent/v1/blobs/%00"] {
        let request = AgentRequest { method: Method::GET, path, body: Vec::new() };
        assert_refused(&fleet, &mut host, request, "path.unknown").await;
    }
    let revision_before = fleet.last_revision().await;
    for (index, (path, status, kind)) in [
        ("/v1/nodes/..%2f..%2fetc", 400, "field.invalid"),
        ("/v1/clusters/%2e%2e", 404, "object.not_found"),
        ("/v1/nodes/a%00b", 400, "request.malformed"),
    ]
    .into_iter()
    .enumerate()
    {
        let (actual_status, body) = fleet.request(Method::GET, path, &Value::Null).await;
        assert_eq!((actual_status, &body["error"]["type"]), (status, &json!(kind)), "{path}");
        fleet.wait_until_audited("admin", kind, 1).await;
        assert_eq!(fleet.refused_count(kind), 1, "{index}");
        assert!(fleet.read("/v1/nodes/web-1").await["uuid"].is_string(), "the next good request succeeds");
    }
    assert_eq!(fleet.last_revision().await, revision_before, "no state change");
}

/// Only a body that is not JSON is audited. The other requests are ordinary mistakes of an operator.
#[tokio::test]
async fn admin_listener_audits_refusal_when_request_does_not_parse() {
    let fleet = Fleet::start().await;
    for (method, path, body) in [
        (Method::GET, "/v1/nodes/no-such", Value::Null),
        (Method::POST, "/v1/nodes", json!({"name": "a b"})),
        (Method::GET, "/v1/nodes?colour=red", Value::Null),
    ] {
        let (status, body) = fleet.request(method, path, &body).await;
        assert!((400..500).contains(&status), "{path}: {body}");
    }
    let request = hyper::Request::post("/v1/nodes").body(bytes::Bytes::from_static(b"{\"name\": ")).unwrap();
    let response = fleet.admin_client().send(request).await.unwrap();
    assert_eq!(response.status(), 400);
    fleet.wait_until_audited("admin", "request.malformed", 1).await;
    for reason in ["object.not_found", "field.invalid", "request.query"] {
        assert_eq!(fleet.refused_count(reason), 0, "{reason}");
    }
    let (status, body) = fleet.request(Method::POST, "/v1/nodes", &json!({"name": "web-1"})).await;
    assert_eq!(status, 201, "the next good request succeeds: {body}");
}
