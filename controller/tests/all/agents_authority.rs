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

#[tokio::test]
async fn s31_agent_listener_rejects_request_for_other_nodes_state() {
    let fleet = Fleet::start().await;
    let (mut one, mut other) = (fleet.join("web-1").await, fleet.join("web-2").await);
    fleet.publish(one.node, 5, desired_state("one", None, &[]));
    fleet.publish(other.node, 5, desired_state("other", None, &[]));
    let (told_one, told_other) = (one.next_update(0).await.desired.unwrap(), other.next_update(0).await.desired.unwrap());
    assert_ne!(told_one.known_digest, told_other.known_digest);
    for path in [
        format!("/agent/v1/checkin/{}", other.node),
        format!("/agent/v1/nodes/{}", other.node),
        format!("/agent/v1/checkin/../nodes/{}", other.node),
        "/v1/nodes".to_owned(),
        "/metrics".to_owned(),
    ] {
        for method in [Method::GET, Method::POST] {
            let got = send_request(&mut one.client, method, &path, encode(&idle_check_in(None, 0))).await;
            assert_eq!(got.status(), 404, "{path}");
        }
    }
    let named = format!("/agent/v1/checkin?node={}", other.node);
    let got = send_request(&mut one.client, Method::POST, &named, encode(&idle_check_in(None, 0))).await;
    let answer: stemma_wire::message::checkin::CheckInResponse = stemma_wire::message::decode(got.body()).unwrap();
    let stemma_wire::message::checkin::CheckInResponse::Current(news) = answer else { panic!("superseded") };
    assert_eq!(news.desired.unwrap().known_digest, told_one.known_digest, "what is not read decides nothing");
    // Ten requests were refused, and the audit accepts ten entries a minute.
    fleet.wait_until_audited(&format!("node/{}", one.node), "path.unknown", 10).await;
    assert_eq!(fleet.refused_count("path.unknown"), 10);
}

#[tokio::test]
async fn s36_check_in_cannot_set_placement_or_revision() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    host.next_update(0).await;
    let before = fleet.last_revision().await;
    let epoch = Epoch(*fleet.parts().registry.store().identity().epoch.as_bytes());
    let beyond = HeldDesired { epoch, revision: Revision(u64::MAX), known: PartDigest([9; 32]), task_set: PartDigest([9; 32]) };
    host.held_desired = Some(beyond);
    assert_eq!(host.next_update(0).await.desired, None, "a revision that this store has not reached is waited for, not believed");
    let elsewhere = HeldDesired { epoch: Epoch([9; 16]), ..beyond };
    host.held_desired = Some(elsewhere);
    assert_eq!(host.next_update(0).await.desired, None, "another epoch needs a signed change, which nobody has made");
    let mut more = encode(&idle_check_in(None, 0));
    more.extend(b"nodegroup=prod/admins");
    let got = error_response(&send_request(&mut host.client, Method::POST, "/agent/v1/checkin", more).await);
    assert_eq!((got.status, got.kind.as_str()), (400, "message.malformed"));
    assert_eq!(fleet.last_revision().await, before, "nothing of it is written");
    let node = fleet.parts().registry.cache().model().nodes.get(host.node).cloned().unwrap();
    assert_eq!(node.spec.nodegroup, None);
    host.held_desired = None;
    assert!(host.next_update(0).await.desired.is_some(), "the next good request");
    fleet.wait_until_audited(&format!("node/{}", host.node), "message.malformed", 1).await;
}

#[tokio::test]
async fn check_in_returns_later_revision_when_agent_holds_later_one() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.advance_revision(9).await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    let epoch = fleet.read("/v1/fleet").await["epoch"].as_str().unwrap().parse().unwrap();
    let parts = SentParts { known: PartDigest([9; 32]), task_set: PartDigest([9; 32]) };
    fleet.parts().intake.store_sent(host.node, HeldRevision { epoch, revision: 8 }, parts).await.unwrap();
    host.next_update(0).await;
    host.held_desired = host.held_desired.map(|held| HeldDesired { revision: Revision(8), known: PartDigest([9; 32]), ..held });
    assert_eq!(host.next_update(0).await.desired, None, "this controller knows revision 5: it waits");
    fleet.publish(fleet::other_node(), 9, desired_state("elsewhere", None, &[]));
    let told = host.next_update(0).await.desired.unwrap();
    assert_eq!(told.revision, Revision(9), "all nodes are resolved as of 9, also those that did not change");
}

/// Checks that a request of a known agent is refused: the state is unchanged, the refusal is audited and counted, and
/// the next good request succeeds.
async fn assert_refused(fleet: &Fleet, host: &mut Host, sent: AgentRequest<'_>, kind: &str) {
    let before = fleet.last_revision().await;
    let counted = fleet.refused_count(kind);
    let got = error_response(&send_request(&mut host.client, sent.method, sent.path, sent.body).await);
    assert_eq!(got.kind, kind, "{}", sent.path);
    assert_eq!(fleet.refused_count(kind), counted + 1);
    fleet.wait_until_audited(&format!("node/{}", host.node), kind, usize::try_from(counted).unwrap() + 1).await;
    assert_eq!(fleet.last_revision().await, before, "no state change");
    // The refusal may have closed the connection.
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    assert!(host.next_update(0).await.observation.is_some(), "the next good request");
}

struct AgentRequest<'a> {
    method: Method,
    path: &'a str,
    body: Vec<u8>,
}

#[tokio::test]
async fn s43_agent_listener_rejects_oversized_body_and_audits() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let body = vec![0; RenewRequest::MAX_BYTES + 1];
    let sent = AgentRequest { method: Method::POST, path: "/agent/v1/renew", body };
    assert_refused(&fleet, &mut host, sent, "request.too_large").await;
}

#[tokio::test]
async fn s50_agent_listener_rejects_undecodable_body_and_audits() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    // A list with a claimed length of 2^63 entries, a truncated message, and a message with trailing bytes.
    let mut bomb = encode(&idle_check_in(None, 0))[..18].to_vec();
    bomb.extend([0xff; 9]);
    let whole = encode(&idle_check_in(None, 0));
    let cut = whole[..whole.len() - 1].to_vec();
    for body in [bomb, cut, [whole.clone(), vec![0]].concat()] {
        let sent = AgentRequest { method: Method::POST, path: "/agent/v1/checkin", body };
        assert_refused(&fleet, &mut host, sent, "message.malformed").await;
    }
    let sent = AgentRequest { method: Method::POST, path: "/agent/v1/checkin", body: [vec![99], whole[1..].to_vec()].concat() };
    assert_refused(&fleet, &mut host, sent, "message.version").await;
}

#[tokio::test]
async fn s54_agent_listener_rejects_path_as_id_and_audits() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    for path in ["/agent/v1/profiles/..%2f..%2fetc%2fpasswd", "/agent/v1/blobs/%2e%2e", "/agent/v1/blobs/%00"] {
        let sent = AgentRequest { method: Method::GET, path, body: Vec::new() };
        assert_refused(&fleet, &mut host, sent, "path.unknown").await;
    }
    let before = fleet.last_revision().await;
    for (at, (path, status, kind)) in [
        ("/v1/nodes/..%2f..%2fetc", 400, "field.invalid"),
        ("/v1/clusters/%2e%2e", 404, "object.not_found"),
        ("/v1/nodes/a%00b", 400, "request.malformed"),
    ]
    .into_iter()
    .enumerate()
    {
        let (got, body) = fleet.request(Method::GET, path, &Value::Null).await;
        assert_eq!((got, &body["error"]["type"]), (status, &json!(kind)), "{path}");
        fleet.wait_until_audited("admin", kind, 1).await;
        assert_eq!(fleet.refused_count(kind), 1, "{at}");
        assert!(fleet.read("/v1/nodes/web-1").await["uuid"].is_string(), "the next good request");
    }
    assert_eq!(fleet.last_revision().await, before, "no state change");
}

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
    let answer = fleet.admin_client().send(request).await.unwrap();
    assert_eq!(answer.status(), 400);
    fleet.wait_until_audited("admin", "request.malformed", 1).await;
    for reason in ["object.not_found", "field.invalid", "request.query"] {
        assert_eq!(fleet.refused_count(reason), 0, "{reason}");
    }
    let (status, body) = fleet.request(Method::POST, "/v1/nodes", &json!({"name": "web-1"})).await;
    assert_eq!(status, 201, "the next good request: {body}");
}
