//! What an agent may not (docs/trust.md, S31 and S36): its certificate says who it is, and nothing that it sends says otherwise.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::intake::{Intake as _, ToldParts};
use stemma_core::epoch::HeldRevision;
use stemma_wire::message::checkin::Held;
use stemma_wire::message::enroll::RenewRequest;
use stemma_wire::message::{Epoch, Message as _, PartDigest, Revision, encode};

use crate::fleet::{self, Fleet, Host, check_in, refused, send, state};

#[tokio::test]
async fn s31_another_nodes_state_cannot_be_named() {
    let fleet = Fleet::start().await;
    let (mut one, mut other) = (fleet.join("web-1").await, fleet.join("web-2").await);
    fleet.publish(one.node, 5, state("one", None, &[]));
    fleet.publish(other.node, 5, state("other", None, &[]));
    let (told_one, told_other) = (one.news(0).await.desired.unwrap(), other.news(0).await.desired.unwrap());
    assert_ne!(told_one.known_digest, told_other.known_digest);
    for path in [
        format!("/agent/v1/checkin/{}", other.node),
        format!("/agent/v1/nodes/{}", other.node),
        format!("/agent/v1/checkin/../nodes/{}", other.node),
        "/v1/nodes".to_owned(),
        "/metrics".to_owned(),
    ] {
        for method in [Method::GET, Method::POST] {
            let got = send(&mut one.client, method, &path, encode(&check_in(None, 0))).await;
            assert_eq!(got.status(), 404, "{path}");
        }
    }
    let named = format!("/agent/v1/checkin?node={}", other.node);
    let got = send(&mut one.client, Method::POST, &named, encode(&check_in(None, 0))).await;
    let answer: stemma_wire::message::checkin::CheckInAnswer = stemma_wire::message::decode(got.body()).unwrap();
    let stemma_wire::message::checkin::CheckInAnswer::Current(news) = answer else { panic!("superseded") };
    assert_eq!(news.desired.unwrap().known_digest, told_one.known_digest, "what is not read decides nothing");
    // Ten paths and methods were refused: ten entries a minute.
    fleet.audited(&format!("node/{}", one.node), "path.unknown", 10).await;
    assert_eq!(fleet.rejected("path.unknown"), 10);
}

#[tokio::test]
async fn s36_an_agent_sets_neither_its_place_nor_its_revision() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, state("gold", None, &[]));
    host.news(0).await;
    let before = fleet.revision().await;
    let epoch = Epoch(*fleet.parts().registry.store().identity().epoch.as_bytes());
    let beyond =
        Held { epoch, revision: Revision(u64::MAX), known: PartDigest([9; 32]), task_set: PartDigest([9; 32]) };
    host.held = Some(beyond);
    assert_eq!(
        host.news(0).await.desired,
        None,
        "a revision that this store has not reached is waited for, not believed"
    );
    let elsewhere = Held { epoch: Epoch([9; 16]), ..beyond };
    host.held = Some(elsewhere);
    assert_eq!(host.news(0).await.desired, None, "another epoch needs a signed change, which nobody has made");
    let mut more = encode(&check_in(None, 0));
    more.extend(b"nodegroup=prod/admins");
    let got = refused(&send(&mut host.client, Method::POST, "/agent/v1/checkin", more).await);
    assert_eq!((got.status, got.kind.as_str()), (400, "message.malformed"));
    assert_eq!(fleet.revision().await, before, "nothing of it is written");
    let node = fleet.parts().registry.cache().model().nodes.get(host.node).cloned().unwrap();
    assert_eq!(node.spec.nodegroup, None);
    host.held = None;
    assert!(host.news(0).await.desired.is_some(), "the next good request");
    fleet.audited(&format!("node/{}", host.node), "message.malformed", 1).await;
}

#[tokio::test]
async fn an_agent_that_holds_a_later_revision_is_told_at_a_later_one() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.reach(9).await;
    fleet.publish(host.node, 5, state("gold", None, &[]));
    let epoch = fleet.read("/v1/fleet").await["epoch"].as_str().unwrap().parse().unwrap();
    let parts = ToldParts { known: PartDigest([9; 32]), task_set: PartDigest([9; 32]) };
    fleet.parts().intake.told(host.node, HeldRevision { epoch, revision: 8 }, parts).await.unwrap();
    host.news(0).await;
    host.held = host.held.map(|held| Held { revision: Revision(8), known: PartDigest([9; 32]), ..held });
    assert_eq!(host.news(0).await.desired, None, "this controller knows revision 5: it waits");
    fleet.publish(fleet::asking_node(), 9, state("elsewhere", None, &[]));
    let told = host.news(0).await.desired.unwrap();
    assert_eq!(told.revision, Revision(9), "all nodes are resolved as of 9, also those that did not change");
}

/// A refusal of a known agent: no state change, an entry in the audit, a count, and the next good request succeeds.
async fn refuses(fleet: &Fleet, host: &mut Host, sent: Sent<'_>, kind: &str) {
    let before = fleet.revision().await;
    let counted = fleet.rejected(kind);
    let got = refused(&send(&mut host.client, sent.method, sent.path, sent.body).await);
    assert_eq!(got.kind, kind, "{}", sent.path);
    assert_eq!(fleet.rejected(kind), counted + 1);
    fleet.audited(&format!("node/{}", host.node), kind, usize::try_from(counted).unwrap() + 1).await;
    assert_eq!(fleet.revision().await, before, "no state change");
    // What was refused may have cost the connection.
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    assert!(host.news(0).await.observation.is_some(), "the next good request");
}

struct Sent<'a> {
    method: Method,
    path: &'a str,
    body: Vec<u8>,
}

#[tokio::test]
async fn s43_an_agents_body_beyond_its_measure_is_refused_and_audited() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.news(0).await;
    let body = vec![0; RenewRequest::MAX_BYTES + 1];
    let sent = Sent { method: Method::POST, path: "/agent/v1/renew", body };
    refuses(&fleet, &mut host, sent, "request.too_large").await;
}

#[tokio::test]
async fn s50_what_does_not_decode_is_refused_and_audited() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.news(0).await;
    // A list that says that it has 2^63 entries, a message that is cut short, one with something behind it.
    let mut bomb = encode(&check_in(None, 0))[..18].to_vec();
    bomb.extend([0xff; 9]);
    let whole = encode(&check_in(None, 0));
    let cut = whole[..whole.len() - 1].to_vec();
    for body in [bomb, cut, [whole.clone(), vec![0]].concat()] {
        let sent = Sent { method: Method::POST, path: "/agent/v1/checkin", body };
        refuses(&fleet, &mut host, sent, "message.malformed").await;
    }
    let sent = Sent { method: Method::POST, path: "/agent/v1/checkin", body: [vec![99], whole[1..].to_vec()].concat() };
    refuses(&fleet, &mut host, sent, "message.version").await;
}

#[tokio::test]
async fn s54_an_id_written_as_a_path_is_refused_and_audited() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.news(0).await;
    for path in ["/agent/v1/profiles/..%2f..%2fetc%2fpasswd", "/agent/v1/blobs/%2e%2e", "/agent/v1/blobs/%00"] {
        let sent = Sent { method: Method::GET, path, body: Vec::new() };
        refuses(&fleet, &mut host, sent, "path.unknown").await;
    }
    let before = fleet.revision().await;
    for (at, (path, status, kind)) in [
        ("/v1/nodes/..%2f..%2fetc", 400, "field.invalid"),
        ("/v1/clusters/%2e%2e", 404, "object.not_found"),
        ("/v1/nodes/a%00b", 400, "request.malformed"),
    ]
    .into_iter()
    .enumerate()
    {
        let (got, body) = fleet.ask(Method::GET, path, &Value::Null).await;
        assert_eq!((got, &body["error"]["type"]), (status, &json!(kind)), "{path}");
        fleet.audited("admin", kind, 1).await;
        assert_eq!(fleet.rejected(kind), 1, "{at}");
        assert!(fleet.read("/v1/nodes/web-1").await["uuid"].is_string(), "the next good request");
    }
    assert_eq!(fleet.revision().await, before, "no state change");
}

#[tokio::test]
async fn what_a_person_mistypes_is_no_refusal_and_what_does_not_parse_is() {
    let fleet = Fleet::start().await;
    for (method, path, body) in [
        (Method::GET, "/v1/nodes/no-such", Value::Null),
        (Method::POST, "/v1/nodes", json!({"name": "a b"})),
        (Method::GET, "/v1/nodes?colour=red", Value::Null),
    ] {
        let (status, body) = fleet.ask(method, path, &body).await;
        assert!((400..500).contains(&status), "{path}: {body}");
    }
    let request = hyper::Request::post("/v1/nodes").body(bytes::Bytes::from_static(b"{\"name\": ")).unwrap();
    let answer = fleet.operator().send(request).await.unwrap();
    assert_eq!(answer.status(), 400);
    fleet.audited("admin", "request.malformed", 1).await;
    for reason in ["object.not_found", "field.invalid", "request.query"] {
        assert_eq!(fleet.rejected(reason), 0, "{reason}");
    }
    let (status, body) = fleet.ask(Method::POST, "/v1/nodes", &json!({"name": "web-1"})).await;
    assert_eq!(status, 201, "the next good request: {body}");
}
