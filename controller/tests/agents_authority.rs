//! What an agent may not (docs/trust.md, S31 and S36): its certificate says who it is, and nothing that it sends says otherwise.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;

use fleet::{Fleet, check_in, refused, send, state};
use hyper::Method;
use stemma_wire::message::checkin::Held;
use stemma_wire::message::{Epoch, PartDigest, Revision, encode};

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
}

#[tokio::test]
async fn s36_an_agent_sets_neither_its_place_nor_its_revision() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, state("gold", None, &[]));
    host.news(0).await;
    let before = fleet.revision();
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
    assert_eq!(fleet.revision(), before, "nothing of it is written");
    let node = fleet.parts().registry.cache().model().nodes.get(host.node).cloned().unwrap();
    assert_eq!(node.spec.nodegroup, None);
    host.held = None;
    assert!(host.news(0).await.desired.is_some());
}

#[tokio::test]
async fn an_agent_that_holds_a_later_revision_is_told_at_a_later_one() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, state("gold", None, &[]));
    host.news(0).await;
    host.held = host.held.map(|held| Held { revision: Revision(8), known: PartDigest([9; 32]), ..held });
    assert_eq!(host.news(0).await.desired, None, "this controller knows revision 5: it waits");
    fleet.publish(fleet::asking_node(), 9, state("elsewhere", None, &[]));
    let told = host.news(0).await.desired.unwrap();
    assert_eq!(told.revision, Revision(9), "all nodes are resolved as of 9, also those that did not change");
}
