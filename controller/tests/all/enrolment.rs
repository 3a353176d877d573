//! What enrolment refuses (docs/trust.md, S20 to S25, S30), and that a token is used up exactly when it created
//! something.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::{Arc, Barrier};

use hyper::Method;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P384_SHA384, SanType,
};
use serde_json::{Value, json};
use stemma_controller::desired::{DesiredChange, PassResult};
use stemma_controller::enrol::{AttemptLimits, prune, token};
use stemma_controller::records::enrolled::{KEYS, agent_key};
use stemma_controller::records::request::StoredAnswer;
use stemma_controller::registry::Decision;
use stemma_controller::registry::work::PendingWrite;
use stemma_controller::store::{ListQuery, Revision as StoreRevision};
use stemma_core::name::NodeName;
use stemma_core::object::NodeSpec;
use stemma_wire::message::Revision;
use stemma_wire::message::checkin::CheckInResponse;
use stemma_wire::message::encode;
use stemma_wire::message::enroll::EnrollRequest;
use uuid::Uuid;

use crate::fleet::{
    self, ErrorResponse, Fleet, KeyAndRequest, admin_caller, call, error_response, idle_check_in, new_request, send_request,
    wait_until,
};

const DAY_S: u64 = 24 * 3600;
const BAD_TOKEN_MESSAGE: &str = "The join token is unknown, used up, expired, or bound to something else.";

fn bad_token_error() -> ErrorResponse {
    ErrorResponse { status: 403, kind: "token.invalid".into(), message: BAD_TOKEN_MESSAGE.into() }
}

/// Creates a node as an operator does.
async fn create_node(fleet: &Fleet, name: &str) -> Uuid {
    let uuid = Uuid::from_u128(0x0190_b6c8_4c1e_7d2a_9f00_0000_0000_0001);
    let name = NodeName::new(name).unwrap();
    let caller = admin_caller();
    let made = fleet.parts().registry.write(&caller, |sight| {
        let mut work = PendingWrite::new(sight);
        work.create(uuid, Some(name.clone()), NodeSpec::default())?;
        work.finish(StoredAnswer::empty(201))
    });
    made.await.unwrap();
    uuid
}

fn uses_left(fleet: &Fleet, token: &str) -> Value {
    let id = token.split('.').next().unwrap();
    token::get(&fleet.parts().registry.cache().model(), id).unwrap()["uses_left"].clone()
}

#[tokio::test]
async fn s20_token_is_rejected_when_used_up() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({})).await;
    fleet.enrol(&token, "web-1", &new_request().csr).await.unwrap();
    let revision = fleet.last_revision().await;
    assert_eq!(fleet.enrol(&token, "web-2", &new_request().csr).await.unwrap_err(), bad_token_error());
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    let two = fleet.create_token(json!({"uses": 2})).await;
    fleet.enrol(&two, "web-2", &new_request().csr).await.unwrap();
    fleet.enrol(&two, "web-3", &new_request().csr).await.unwrap();
    assert_eq!(fleet.enrol(&two, "web-4", &new_request().csr).await.unwrap_err(), bad_token_error());
    fleet.wait_until_counted("token.invalid", 2).await;
    fleet.join("web-4").await;
}

#[tokio::test]
async fn s20_repeated_join_returns_certificate_for_same_key() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({})).await;
    let own = new_request();
    let first = fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
    for _ in 0..3 {
        let again = fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
        assert_eq!((again.node, &again.root, &again.fleet), (first.node, &first.root, &first.fleet));
    }
    assert_eq!(uses_left(&fleet, &token), 0);
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), 1);
    let other = fleet.create_token(json!({})).await;
    let revision = fleet.last_revision().await;
    for (what, name, csr) in [("another key", "web-1", &new_request().csr), ("another name", "web-2", &own.csr)] {
        assert_eq!(fleet.enrol(&token, name, csr).await.unwrap_err(), bad_token_error(), "{what}");
    }
    // A valid token of another join is refused too.
    let refused = fleet.enrol(&other, "web-1", &own.csr).await.unwrap_err();
    assert!(refused.message.contains("another node"), "{refused:?}");
    fleet.clock.advance(3600);
    assert_eq!(fleet.enrol(&token, "web-1", &own.csr).await.unwrap_err(), bad_token_error(), "its time is over");
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
}

#[tokio::test]
async fn s20_repeated_join_fails_when_token_or_node_is_gone() {
    let fleet = Fleet::start().await;
    // A token that was deleted.
    let (token, own) = (fleet.create_token(json!({})).await, new_request());
    fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
    fleet::delete_token(&fleet, token.split('.').next().unwrap()).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &own.csr).await.unwrap_err(), bad_token_error());

    // A node that was deleted.
    let (token, own) = (fleet.create_token(json!({})).await, new_request());
    let joined = fleet.enrol(&token, "web-2", &own.csr).await.unwrap();
    delete_node(&fleet, joined.node).await;
    let refused = fleet.enrol(&token, "web-2", &own.csr).await.unwrap_err();
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(fleet.parts().registry.cache().model().nodes.get(joined.node).is_none());

    // Two concurrent requests get the same node.
    let (token, own) = (fleet.create_token(json!({})).await, new_request());
    let joined = fleet.enrol(&token, "web-3", &own.csr).await.unwrap();
    let (one, other) = tokio::join!(fleet.enrol(&token, "web-3", &own.csr), fleet.enrol(&token, "web-3", &own.csr));
    assert_eq!((one.unwrap().node, other.unwrap().node), (joined.node, joined.node));
    for _ in 3..256 {
        fleet.enrol(&token, "web-3", &own.csr).await.unwrap();
    }
    let refused = fleet.enrol(&token, "web-3", &own.csr).await.unwrap_err();
    assert!(refused.message.contains("256 certificates that can still be used"), "{refused:?}");
}

#[tokio::test]
async fn s20_repeated_join_fails_when_host_has_renewed() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({})).await;
    let own = new_request();
    let answer = fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
    let mut host = fleet.host(answer.node, &own, answer.chain);
    host.renew(&new_request().csr).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &own.csr).await.unwrap_err(), bad_token_error());
}

#[tokio::test]
async fn s21_single_use_token_admits_one_of_two_joins() {
    let fleet = Arc::new(Fleet::start().await);
    for round in 0..1000 {
        let token = fleet.create_token(json!({})).await;
        let racers = ["a", "b"].map(|racer| {
            let (fleet, token) = (Arc::clone(&fleet), token.clone());
            let from = format!("127.0.0.1:{}", 1000 + round).parse().unwrap();
            tokio::spawn(async move {
                let KeyAndRequest { csr, .. } = new_request();
                let name = format!("n{round}-{racer}");
                let request = EnrollRequest { token, csr, seal_key: [7; 32], name };
                fleet.parts().enrolment.enrol(from, request).await
            })
        });
        let mut won = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error.message, BAD_TOKEN_MESSAGE),
            }
        }
        assert_eq!(won, 1, "round {round}");
        assert_eq!(uses_left(&fleet, &token), 0);
    }
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), 1000);
}

#[tokio::test]
async fn s21_single_use_token_admits_one_when_two_connections_race() {
    let fleet = Arc::new(Fleet::start().await);
    let rounds = if std::env::var_os("STEMMA_TEST_LONG").is_some() { 1000 } else { 100 };
    for round in 0..rounds {
        let token = fleet.create_token(json!({})).await;
        let start = Arc::new(Barrier::new(2));
        let racers = ["a", "b"].map(|racer| {
            let (fleet, token, start) = (Arc::clone(&fleet), token.clone(), Arc::clone(&start));
            // Each on its own thread and its own connection.
            tokio::task::spawn_blocking(move || {
                let KeyAndRequest { csr, .. } = new_request();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                start.wait();
                runtime.block_on(fleet.enrol(&token, &format!("n{round}-{racer}"), &csr))
            })
        });
        let mut won = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error, bad_token_error()),
            }
        }
        assert_eq!(won, 1, "round {round}");
        assert_eq!(uses_left(&fleet, &token), 0);
    }
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), rounds);
    fleet.wait_until_counted("token.invalid", rounds as u64).await;
}

#[tokio::test]
async fn s22_token_is_rejected_when_expired() {
    let fleet = Fleet::start().await;
    let (usual, short) = (fleet.create_token(json!({})).await, fleet.create_token(json!({"ttl_seconds": 60})).await);
    let revision = fleet.last_revision().await;
    fleet.clock.advance(61);
    assert_eq!(fleet.enrol(&short, "web-1", &new_request().csr).await.unwrap_err(), bad_token_error());
    fleet.clock.advance(30 * 60);
    assert_eq!(fleet.enrol(&usual, "web-1", &new_request().csr).await.unwrap_err(), bad_token_error());
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), 0);
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    fleet.wait_until_counted("token.invalid", 2).await;
    fleet.join("web-1").await;
}

#[tokio::test]
async fn s23_token_keeps_uses_when_bound_to_other_target() {
    let fleet = Fleet::start().await;
    let node = create_node(&fleet, "web-1").await;
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    let again = fleet.create_token(json!({"node": "web-1"})).await;
    let got = fleet.enrol(&token, "web-2", &new_request().csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (403, "token.invalid"));
    assert_eq!(got.message, "the token is bound to another node than 'web-2'");
    fleet.wait_until_audited(&token_principal(&token), "token.invalid", 1).await;
    assert_eq!(uses_left(&fleet, &token), 1);
    assert_eq!(
        fleet.enrol(&token, "web-1", &new_request().csr).await.unwrap().node,
        node,
        "it takes over the node that it is bound to"
    );
    let got = fleet.enrol(&again, "web-1", &new_request().csr).await.unwrap_err();
    assert_eq!((got.status, got.message.as_str()), (409, &*has_host_message("web-1")));
    assert_eq!(uses_left(&fleet, &again), 1);
}

/// Returns the error text for a node that has a host already.
fn has_host_message(name: &str) -> String {
    format!("{name} already has a host. To replace it: `stemma delete node {name}`, then make a new token.")
}

/// Regression: such a token was created, and no host could ever join with it.
#[tokio::test]
async fn y09_token_creation_fails_when_node_has_host() {
    let fleet = Fleet::start().await;
    let node = create_node(&fleet, "web-1").await;
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    fleet.enrol(&token, "web-1", &new_request().csr).await.unwrap();
    let tokens = fleet.parts().registry.cache().model().tokens.len();
    for name in ["web-1".to_owned(), node.to_string()] {
        let error = token::create(&fleet.parts().registry, &admin_caller(), &json!({"node": name})).await.unwrap_err();
        assert_eq!((error.status(), error.kind.name(), error.message), (409, "object.exists", has_host_message("web-1")));
    }
    assert_eq!(fleet.parts().registry.cache().model().tokens.len(), tokens, "no token was made");
    // Following the advice of the message leads to a working token.
    delete_node(&fleet, node).await;
    let again = create_node(&fleet, "web-1").await;
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    assert_eq!(fleet.enrol(&token, "web-1", &new_request().csr).await.unwrap().node, again);
}

#[tokio::test]
async fn s24_enrol_lists_each_refused_field() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({})).await;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "root");
    params.subject_alt_names = vec![SanType::URI("spiffe://f/admin/ada".try_into().unwrap())];
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().unwrap();
    let csr = params.serialize_request(&key).unwrap().der().to_vec();
    let got = fleet.enrol(&token, "web-1", &csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (400, "csr.invalid"));
    assert_eq!(
        got.message,
        "the certificate request is refused: only its public key is used, but it also requests: basicConstraints, extKeyUsage, \
         keyUsage, subject, subjectAltName; remove these fields"
    );
    assert_eq!(uses_left(&fleet, &token), 1, "the token is not burnt");
    fleet.wait_until_audited(&token_principal(&token), "csr.invalid", 1).await;
    fleet.enrol(&token, "web-1", &new_request().csr).await.expect("the next good request");
}

/// Returns the name in the audit for the holder of a valid token.
fn token_principal(token: &str) -> String {
    format!("token/{}", token.split('.').next().unwrap())
}

#[tokio::test]
async fn s24_certificate_holds_only_controller_values() {
    let fleet = Fleet::start().await;
    let host = fleet.join("web-1").await;
    let (_, leaf) = x509_parser::parse_x509_certificate(&host.chain[0]).unwrap();
    assert_eq!(leaf.validity().not_after.timestamp() - leaf.validity().not_before.timestamp(), 86_400 + 300);
    assert!(!leaf.is_ca());
    let names = leaf.subject_alternative_name().unwrap().unwrap().value;
    assert_eq!(names.general_names.len(), 1);
    assert_eq!(leaf.subject().iter_attributes().count(), 0);
}

#[tokio::test]
async fn s25_enrol_rejects_bad_signature_weak_key_and_other_nodes_key() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({"uses": 10})).await;
    let mut torn = new_request().csr;
    *torn.last_mut().unwrap() ^= 1;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let weak = params.serialize_request(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap()).unwrap().der().to_vec();
    let taken = new_request();
    fleet.enrol(&token, "web-1", &taken.csr).await.unwrap();
    for (csr, why) in [
        (&torn, "its signature was not made with its own key"),
        (&weak, "its key is not ECDSA on P-256"),
        (&vec![0x30, 0x80], "it is not a PKCS#10 request in DER of at most 4096 bytes"),
        (&taken.csr, "its key belongs to another node; create a new key"),
    ] {
        let got = fleet.enrol(&token, "web-2", csr).await.unwrap_err();
        assert_eq!((got.status, got.kind.as_str()), (400, "csr.invalid"));
        assert_eq!(got.message, format!("the certificate request is refused: {why}"));
    }
    assert_eq!(uses_left(&fleet, &token), 9);
    fleet.wait_until_audited(&token_principal(&token), "csr.invalid", 4).await;
    let mut other = fleet.join("web-3").await;
    assert_eq!(other.renew(&taken.csr).await.unwrap_err().kind, "csr.invalid", "renewal looks at it too");
}

#[tokio::test]
async fn enrol_admits_one_host_when_two_share_name() {
    let fleet = Arc::new(Fleet::start().await);
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    for round in 0..300 {
        let token = fleet.create_token(json!({"nodegroup": "c/g", "uses": 2})).await;
        let racers = ["a", "b"].map(|_| {
            let (fleet, token) = (Arc::clone(&fleet), token.clone());
            let from = format!("127.0.0.1:{}", 1000 + round).parse().unwrap();
            tokio::spawn(async move {
                let request = EnrollRequest { token, csr: new_request().csr, seal_key: [7; 32], name: format!("n{round}") };
                fleet.parts().enrolment.enrol(from, request).await
            })
        });
        let mut won = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => {
                    assert_eq!(error.message, has_host_message(&format!("n{round}")));
                }
            }
        }
        assert_eq!((won, uses_left(&fleet, &token)), (1, json!(1)), "round {round}");
    }
}

#[tokio::test]
async fn enrol_checks_name_and_key_in_store_when_cache_lags() {
    let fleet = Fleet::start().await;
    let objects = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Node", "name": "web-1", "nodegroup": "c/g"}]);
    fleet.apply(objects).await;
    let token = fleet.create_token(json!({"nodegroup": "c/g", "uses": 10})).await;
    let of_node = fleet.create_token(json!({"node": "web-1"})).await;
    let taken = new_request();
    let node = fleet.enrol(&token, "web-1", &taken.csr).await.unwrap().node;
    let mut other = fleet.join("web-3").await;
    // The memory is updated after the commit. Here it is not updated yet.
    let forgotten = || fleet.parts().identities.remove(node, StoreRevision::new(u64::MAX));
    forgotten();
    let got = fleet.enrol(&token, "web-2", &taken.csr).await.unwrap_err();
    assert_eq!(got.message, "the certificate request is refused: its key belongs to another node; create a new key");
    assert_eq!(other.renew(&taken.csr).await.unwrap_err().kind, "csr.invalid");
    for token in [&token, &of_node] {
        forgotten();
        let got = fleet.enrol(token, "web-1", &new_request().csr).await.unwrap_err();
        assert_eq!((got.status, got.message.as_str()), (409, &*has_host_message("web-1")));
    }
    assert_eq!(uses_left(&fleet, &token), 9);
}

#[tokio::test]
async fn s26_certificate_is_rejected_when_node_was_recreated() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let node = host.node;
    let mut parked = fleet.client(host.chain.clone(), host.key.clone_key());
    let waiting =
        tokio::spawn(
            async move { call::<_, CheckInResponse>(&mut parked, "/agent/v1/checkin", &idle_check_in(None, 30_000)).await },
        );
    wait_until(|| fleet.parts().desired.is_waiting(node)).await;
    delete_node(&fleet, node).await;
    let cut = waiting.await.unwrap();
    assert_eq!(cut.unwrap_err().kind, "auth.revoked", "it is cut, and not answered when its time is over");
    assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
    let request = stemma_wire::message::enroll::RenewRequest { csr: new_request().csr };
    let response = send_request(&mut host.client, Method::POST, "/agent/v1/renew", encode(&request)).await;
    assert_eq!(error_response(&response).kind, "auth.revoked", "nor does it renew");
    assert_eq!(response.headers()["connection"], "close", "its connection ends");
    // A node is created again with the same uuid and joins again. The old certificate remains revoked.
    let name = NodeName::new("web-1").unwrap();
    let caller = admin_caller();
    let again = fleet.parts().registry.write(&caller, |sight| {
        let mut work = PendingWrite::new(sight);
        work.create(node, Some(name.clone()), NodeSpec::default())?;
        work.finish(StoredAnswer::empty(201))
    });
    again.await.unwrap();
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    let new = new_request();
    let answer = fleet.enrol(&token, "web-1", &new.csr).await.unwrap();
    assert_eq!(answer.node, node);
    assert!(fleet.host(node, &new, answer.chain).check_in(0).await.is_ok());
    assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
    fleet.wait_until_audited(&format!("node/{node}"), "auth.revoked", 4).await;
}

async fn delete_node(fleet: &Fleet, node: Uuid) {
    let caller = admin_caller();
    let deleted = fleet.parts().registry.write(&caller, |sight| -> Result<Decision, _> {
        let mut work = PendingWrite::new(sight);
        let object = sight.model.nodes.get(node).cloned().expect("the node is there");
        work.delete_node(&object)?;
        work.finish(StoredAnswer::empty(204))
    });
    deleted.await.unwrap();
    let changes = vec![(node, DesiredChange::Deleted)];
    fleet.parts().desired.publish(PassResult { revision: Revision(fleet.last_revision().await), changes });
}

#[tokio::test]
async fn s27_wrong_tokens_are_limited_without_delaying_joining_fleet() {
    let fleet =
        Fleet::start_with(|options| options.attempt_limits = AttemptLimits { per_network: 5, ..AttemptLimits::default() }).await;
    let good = fleet.create_token(json!({"uses": 100})).await;
    let id = good.split('.').next().unwrap();
    let (of_stemma, of_controller) = ("0".repeat(64), "-".repeat(43));
    for guess in [
        format!("{id}.{of_stemma}"),
        format!("{id}.{of_controller}"),
        format!("0000000000000000.{of_stemma}"),
        format!("0000000000000000.{of_controller}"),
        format!("ffffffffffffffff.{of_stemma}"),
    ] {
        assert_eq!(fleet.enrol(&guess, "web-1", &new_request().csr).await.unwrap_err(), bad_token_error(), "all alike");
    }
    let got = fleet.enrol(&good, "web-1", &new_request().csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (503, "server.busy"));
    assert_eq!(fleet.refused_count("token_guesses"), 1);
    fleet.clock.advance(60);
    for n in 0..20 {
        fleet.enrol(&good, &format!("web-{n}"), &new_request().csr).await.unwrap();
    }
}

/// Regression: a token that was truncated or had trailing characters was refused as unknown, and counted as a guess.
#[tokio::test]
async fn y09_malformed_token_is_not_counted_as_attempt() {
    let limits = AttemptLimits { per_network: 2, total: 2, ..AttemptLimits::default() };
    let fleet = Fleet::start_with(|options| options.attempt_limits = limits).await;
    let good = fleet.create_token(json!({})).await;
    let id = good.split('.').next().unwrap();
    let shorter = &good[..good.len() - 1];
    for (text, why) in [
        (shorter, "has 42 characters, and a secret has 64, or 43 if a controller created it"),
        (&good[..20], "has 3 characters, and a secret has 64"),
        (&*format!("{good}0"), "has 44 characters"),
        (&*format!("{good}{good}"), "has 103 characters"),
        (&*"x".repeat(163), "it is not ID.SECRET"),
        (&*format!("{id}.zz"), "has 2 characters"),
        (&*format!("{id}.{}", "z".repeat(64)), "has characters that no secret has"),
        (&*format!("{}.{}", "Z".repeat(16), "0".repeat(64)), "is not all digits and letters from a to f"),
        ("nonsense", "it is not ID.SECRET"),
        ("", "it is not ID.SECRET"),
    ] {
        let got = fleet.enrol(text, "web-1", &new_request().csr).await.unwrap_err();
        assert_eq!((got.status, &*got.kind), (400, "field.invalid"), "{text}");
        assert!(got.message.contains(why) && got.message.contains("nothing was changed"), "{}", got.message);
    }
    assert_eq!(fleet.refused_count("token_guesses"), 0);
    // A name that is too long is refused by the rule for names, and the token is not used up.
    let got = fleet.enrol(&good, &"a".repeat(256), &new_request().csr).await.unwrap_err();
    assert_eq!((got.status, &*got.kind), (400, "field.invalid"));
    assert!(got.message.contains("1 to 255 letters") && got.message.contains("--name"), "{}", got.message);
    fleet.enrol(&good, "web-1", &new_request().csr).await.unwrap();
}

/// Enrols as if from an address that a test on loopback cannot have.
async fn enrol_from(fleet: &Fleet, from: &str, token: &str, name: &str) -> Result<Uuid, (u16, &'static str)> {
    let KeyAndRequest { csr, .. } = new_request();
    let request = EnrollRequest { token: token.into(), csr, seal_key: [7; 32], name: name.into() };
    let answer = fleet.parts().enrolment.enrol(from.parse().unwrap(), request).await;
    answer.map(|answer| answer.node).map_err(|error| (error.status(), error.kind.name()))
}

#[tokio::test]
async fn s27_s29_enrol_accepts_good_token_when_many_guess() {
    let limits = AttemptLimits { per_network: 5, total: 8, refill_s: 3 };
    let fleet = Fleet::start_with(|options| options.attempt_limits = limits).await;
    let (good, spent) = (fleet.create_token(json!({"uses": 10})).await, fleet.create_token(json!({})).await);
    let (unknown, other) = (format!("{}.{}", "0".repeat(16), "0".repeat(64)), format!("{}.{}", "f".repeat(16), "0".repeat(43)));
    enrol_from(&fleet, "[2001:db8::1]:1", &spent, "web-0").await.unwrap();
    // One site has the limit of one address, however many addresses it uses.
    for host in 1..=5 {
        let guessed = enrol_from(&fleet, &format!("[2001:db8:0:7::{host}]:1"), &unknown, "web-1").await;
        assert_eq!(guessed, Err((403, "token.invalid")));
    }
    for token in [&unknown, &good] {
        let refused = enrol_from(&fleet, "[2001:db8:0:7:5::5]:1", token, "web-1").await;
        assert_eq!(refused, Err((503, "server.busy")), "unseen");
    }
    for site in 1..=3 {
        let guessed = enrol_from(&fleet, &format!("10.0.0.{site}:1"), &unknown, "web-1").await;
        assert_eq!(guessed, Err((403, "token.invalid")));
    }
    // The limit of all networks together is used up. Bad tokens get no reason, and valid ones still join.
    let revision = fleet.last_revision().await;
    for (from, token) in [("10.0.0.4:1", &unknown), ("10.0.0.5:1", &other), ("10.0.0.6:1", &spent)] {
        assert_eq!(enrol_from(&fleet, from, token, "web-1").await, Err((503, "server.busy")), "{from}");
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    assert_eq!(fleet.refused_count("token_guesses"), 5);
    enrol_from(&fleet, "10.0.0.7:1", &good, "web-1").await.unwrap();
    let body = encode(&EnrollRequest { token: other, csr: new_request().csr, seal_key: [7; 32], name: "web-2".into() });
    let answer = send_request(&mut fleet.client_without_certificate(), Method::POST, "/agent/v1/enroll", body).await;
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (503, "10"));
    fleet.enrol(&good, "web-2", &new_request().csr).await.unwrap();
}

#[tokio::test]
async fn prune_removes_only_expired_records() {
    let fleet = Fleet::start().await;
    let parts = fleet.parts();
    let forget = async || prune::prune(parts.registry.store().as_ref(), &parts.identities, parts.registry.now()).await;
    // A sweep commits to the store only, and the cache follows through its watch.
    let tokens = async || {
        let head = parts.registry.store().head().await.unwrap();
        parts.registry.cache().wait_for(head).await;
        token::list(&parts.registry.cache().model(), &[]).len()
    };
    let (stays, goes) = (fleet.join("web-1").await, fleet.join("web-2").await);
    fleet.create_token(json!({"ttl_seconds": 7 * DAY_S})).await;
    fleet.create_token(json!({})).await;
    assert_eq!((forget().await.unwrap(), tokens().await), (0, 4));
    fleet.clock.advance(DAY_S - 60);
    assert_eq!((forget().await.unwrap(), tokens().await), (0, 4), "what ended is still shown for a day");
    fleet.clock.advance(120);
    assert_eq!((forget().await.unwrap(), tokens().await), (2, 2), "those that were spent");
    fleet.clock.advance(30 * 60);
    assert_eq!((forget().await.unwrap(), tokens().await), (1, 1), "the one that expired");
    delete_node(&fleet, goes.node).await;
    fleet.clock.advance(29 * DAY_S);
    assert_eq!((forget().await.unwrap(), tokens().await), (1, 0), "the one that expired late");
    let record = async |node: Uuid| {
        let snapshot = parts.registry.store().snapshot().await.unwrap();
        snapshot.get(agent_key(node).as_bytes()).await.unwrap()
    };
    assert!(record(goes.node).await.is_some(), "its certificate can still be shown to renew");
    fleet.clock.advance(2 * DAY_S);
    let revision = fleet.last_revision().await;
    assert_eq!(forget().await.unwrap(), 1);
    assert_eq!((record(goes.node).await, record(stays.node).await.is_some()), (None, true));
    let keys = parts.registry.store().snapshot().await.unwrap().list(&ListQuery::prefix(KEYS)).await.unwrap().entries;
    assert_eq!(keys.len(), 1, "the key of what is gone is nobody's");
    assert_eq!(keys[0].value, stays.node.to_string());
    wait_until(|| parts.identities.expired(u64::MAX, 10).is_empty()).await;
    assert!(parts.identities.is_enrolled(stays.node));
    assert_eq!(fleet.last_revision().await, revision + 1);
    assert_eq!((forget().await.unwrap(), fleet.last_revision().await), (0, revision + 1), "nothing to drop writes nothing");
}

#[tokio::test]
async fn certificate_records_are_kept_and_limited_per_node() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let csr = new_request().csr;
    for _ in 1..256 {
        host.renew(&csr).await.unwrap();
    }
    let revision = fleet.last_revision().await;
    let got = host.renew(&csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (429, "certificate.too_many"));
    assert_eq!(got.message, "the node has 256 certificates that can still be used, and cannot get more");
    assert_eq!((fleet.last_revision().await, fleet.refused_count("certificate.too_many")), (revision, 1));
    assert!(host.check_in(0).await.is_ok(), "all else goes on");
    let snapshot = fleet.parts().registry.store().snapshot().await.unwrap();
    let bytes = snapshot.get(agent_key(host.node).as_bytes()).await.unwrap().unwrap();
    let stored: Value = serde_json::from_slice(&bytes.value).unwrap();
    assert_eq!(stored["record"]["certificates"].as_array().unwrap().len(), 256);
}

#[tokio::test]
async fn s30_node_names_are_revealed_only_to_good_tokens() {
    let fleet = Fleet::start().await;
    fleet.join("web-1").await;
    let used = fleet.create_token(json!({})).await;
    fleet.enrol(&used, "web-2", &new_request().csr).await.unwrap();
    for name in ["web-1", "free", "not a name"] {
        assert_eq!(fleet.enrol(&used, name, &new_request().csr).await.unwrap_err(), bad_token_error(), "{name}");
    }
    let good = fleet.create_token(json!({})).await;
    let got = fleet.enrol(&good, "web-1", &new_request().csr).await.unwrap_err();
    assert_eq!(
        (got.status, got.message.as_str()),
        (409, "the name 'web-1' is taken: a token that is bound to neither node nor group cannot take over a node")
    );
    assert_eq!(fleet.enrol(&good, "validate", &new_request().csr).await.unwrap_err().status, 400);
    fleet.enrol(&good, "free", &new_request().csr).await.unwrap();
}

#[tokio::test]
async fn y04_enrol_rejects_foreign_or_ambiguous_host_name() {
    let fleet = Fleet::start().await;
    let good = fleet.create_token(json!({})).await;
    for name in ["--help", "-x", "x.", "localhost", "LocalHost", "Detail"] {
        let got = fleet.enrol(&good, name, &new_request().csr).await.unwrap_err();
        assert_eq!((got.status, got.kind.as_str()), (400, "field.invalid"), "{name}: {}", got.message);
        assert!(got.message.ends_with("; join with --name and another name"), "{}", got.message);
    }
    // Ironic's clients may choose such a name for a node, and its host can take it over.
    let node = create_node(&fleet, "dot.").await;
    let bound = fleet.create_token(json!({"node": "dot."})).await;
    assert_eq!(fleet.enrol(&bound, "dot.", &new_request().csr).await.unwrap().node, node);
    fleet.enrol(&good, "dot", &new_request().csr).await.unwrap();
}

#[tokio::test]
async fn token_is_shown_without_secret_and_can_be_deleted() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({"uses": 3, "mode": "noop"})).await;
    let (id, secret) = token.split_once('.').unwrap();
    let listed = Value::from(token::list(&fleet.parts().registry.cache().model(), &[]));
    assert!(!listed.to_string().contains(secret));
    let shown = &listed[0];
    assert_eq!((&shown["id"], &shown["uses_left"], &shown["mode"]), (&json!(id), &json!(3), &json!("noop")));
    let bytes = std::fs::read(fleet.directory.path().join("data/store.redb")).unwrap();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "the secret is nowhere at rest");
    fleet::delete_token(&fleet, id).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &new_request().csr).await.unwrap_err(), bad_token_error());
    for (body, message) in [
        (json!({"usess": 1}), "Unknown attribute for join token: 'usess': is not a field here (did you mean \"uses\"?)"),
        (json!({"uses": 0}), "uses is 0, and may be 1 to 100000"),
        (json!({"ttl_seconds": 9_999_999}), "ttl_seconds is 9999999, and may be 1 to 2592000"),
        (json!({"node": "nobody"}), "there is no node 'nobody'"),
        (json!({"nodegroup": "a/b"}), "there is no nodegroup 'a/b'"),
    ] {
        let error = token::create(&fleet.parts().registry, &admin_caller(), &body).await.unwrap_err();
        assert!(error.message.contains(message), "{body}: {}", error.message);
    }
}

/// Regression: a join that took over a node named no node in the audit, and neither did a repeated response.
#[tokio::test]
async fn join_is_audited_with_token_node_and_certificate() {
    let fleet = Fleet::start().await;
    create_node(&fleet, "web-1").await;
    let (bound, free, own) =
        (fleet.create_token(json!({"node": "web-1"})).await, fleet.create_token(json!({})).await, new_request());
    for _ in 0..2 {
        fleet.enrol(&bound, "web-1", &own.csr).await.unwrap();
    }
    fleet.enrol(&free, "web-2", &new_request().csr).await.unwrap();
    for (token, name, actions) in [(&bound, "web-1", &["unchanged"; 2][..]), (&free, "web-2", &["created"])] {
        for query in
            [format!("principal={}", token_principal(token)), format!("principal={}&object=node/{name}", token_principal(token))]
        {
            let audit = fleet.read(&format!("/v1/audit?{query}")).await;
            let entries = audit["audit"].as_array().unwrap();
            let objects: Vec<&Value> = entries.iter().flat_map(|one| one["objects"].as_array().unwrap()).collect();
            let done: Vec<&str> = objects.iter().map(|one| one["action"].as_str().unwrap()).collect();
            assert_eq!((entries.len(), &*done), (actions.len(), actions), "{query}: {audit}");
            let is_named = |one: &&Value| {
                let part = one["part"].as_str().unwrap_or_default();
                one["kind"] == "node"
                    && one["name"] == name
                    && part.starts_with("certificates.")
                    && part.len() == 45
                    && one["part_action"] == "issued"
            };
            assert!(objects.iter().all(is_named), "{audit}");
        }
    }
}
