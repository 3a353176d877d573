//! What enrolment refuses (docs/trust.md, S20 to S27, S29, S30), and that a join consumes a use of its token exactly
//! when the join creates a node or takes one over.

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
    self, ErrorResponse, Fleet, KeyAndRequest, admin_caller, call, error_response, idle_check_in, new_key_and_request,
    send_request, wait_until,
};

const DAY_S: u64 = 24 * 3600;
const BAD_TOKEN_MESSAGE: &str = "The join token is unknown, used up, expired, or bound to something else.";

fn bad_token_error() -> ErrorResponse {
    ErrorResponse { status: 403, kind: "token.invalid".into(), message: BAD_TOKEN_MESSAGE.into() }
}

/// Creates a node as an operator does, and returns its uuid. The uuid is the same in each call.
async fn create_node(fleet: &Fleet, name: &str) -> Uuid {
    let uuid = Uuid::from_u128(0x0190_b6c8_4c1e_7d2a_9f00_0000_0000_0001);
    let name = NodeName::new(name).unwrap();
    let caller = admin_caller();
    let creation = fleet.components().registry.write(&caller, |context| {
        let mut work = PendingWrite::new(context);
        work.create(uuid, Some(name.clone()), NodeSpec::default())?;
        work.finish(StoredAnswer::empty(201))
    });
    creation.await.unwrap();
    uuid
}

/// Returns the number of joins that a join token still allows.
fn uses_left(fleet: &Fleet, token: &str) -> Value {
    let id = token.split('.').next().unwrap();
    token::get(&fleet.components().registry.cache().model(), id).unwrap()["uses_left"].clone()
}

/// By default, a token has one use. The second token has two.
#[tokio::test]
async fn s20_token_is_rejected_when_used_up() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({})).await;
    fleet.enrol(&token, "web-1", &new_key_and_request().csr).await.unwrap();
    let revision = fleet.last_revision().await;
    assert_eq!(fleet.enrol(&token, "web-2", &new_key_and_request().csr).await.unwrap_err(), bad_token_error());
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    let two_use_token = fleet.create_token(json!({"uses": 2})).await;
    fleet.enrol(&two_use_token, "web-2", &new_key_and_request().csr).await.unwrap();
    fleet.enrol(&two_use_token, "web-3", &new_key_and_request().csr).await.unwrap();
    assert_eq!(fleet.enrol(&two_use_token, "web-4", &new_key_and_request().csr).await.unwrap_err(), bad_token_error());
    fleet.wait_until_counted("token.invalid", 2).await;
    fleet.join("web-4").await;
}

/// A host that did not receive the response repeats its request. The repetition works only with the same token, name
/// and key, and until the token expires.
#[tokio::test]
async fn s20_repeated_join_returns_certificate_for_same_key() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({})).await;
    let request = new_key_and_request();
    let first_answer = fleet.enrol(&token, "web-1", &request.csr).await.unwrap();
    for _ in 0..3 {
        let repeated_answer = fleet.enrol(&token, "web-1", &request.csr).await.unwrap();
        assert_eq!(
            (repeated_answer.node, &repeated_answer.root, &repeated_answer.fleet),
            (first_answer.node, &first_answer.root, &first_answer.fleet)
        );
    }
    assert_eq!(uses_left(&fleet, &token), 0);
    assert_eq!(fleet.components().registry.cache().model().nodes.iter().count(), 1);
    let other_token = fleet.create_token(json!({})).await;
    let revision = fleet.last_revision().await;
    for (difference, name, csr) in [("another key", "web-1", &new_key_and_request().csr), ("another name", "web-2", &request.csr)]
    {
        assert_eq!(fleet.enrol(&token, name, csr).await.unwrap_err(), bad_token_error(), "{difference}");
    }
    // Another valid token is refused too, because the key of the request belongs to the node of the first join.
    let error = fleet.enrol(&other_token, "web-1", &request.csr).await.unwrap_err();
    assert!(error.message.contains("another node"), "{error:?}");
    fleet.clock.advance(3600);
    assert_eq!(fleet.enrol(&token, "web-1", &request.csr).await.unwrap_err(), bad_token_error(), "the token has expired");
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
}

/// Also shows that concurrent repetitions get one node, and that a node has at most 256 valid certificates.
#[tokio::test]
async fn s20_repeated_join_fails_when_token_or_node_was_deleted() {
    let fleet = Fleet::start().await;
    // The token was deleted.
    let (token, request) = (fleet.create_token(json!({})).await, new_key_and_request());
    fleet.enrol(&token, "web-1", &request.csr).await.unwrap();
    fleet::delete_token(&fleet, token.split('.').next().unwrap()).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &request.csr).await.unwrap_err(), bad_token_error());

    // The node was deleted.
    let (token, request) = (fleet.create_token(json!({})).await, new_key_and_request());
    let first_answer = fleet.enrol(&token, "web-2", &request.csr).await.unwrap();
    delete_node(&fleet, first_answer.node).await;
    let error = fleet.enrol(&token, "web-2", &request.csr).await.unwrap_err();
    assert_eq!(error.status, 403, "{error:?}");
    assert!(fleet.components().registry.cache().model().nodes.get(first_answer.node).is_none());

    // Two concurrent requests get the same node.
    let (token, request) = (fleet.create_token(json!({})).await, new_key_and_request());
    let first_answer = fleet.enrol(&token, "web-3", &request.csr).await.unwrap();
    let (second_answer, third_answer) =
        tokio::join!(fleet.enrol(&token, "web-3", &request.csr), fleet.enrol(&token, "web-3", &request.csr));
    assert_eq!((second_answer.unwrap().node, third_answer.unwrap().node), (first_answer.node, first_answer.node));
    // Each join issues a certificate, up to the maximum of 256 per node.
    for _ in 3..256 {
        fleet.enrol(&token, "web-3", &request.csr).await.unwrap();
    }
    let error = fleet.enrol(&token, "web-3", &request.csr).await.unwrap_err();
    assert!(error.message.contains("256 certificates that can still be used"), "{error:?}");
}

/// A renewal ends the time in which the host may repeat its join.
#[tokio::test]
async fn s20_repeated_join_fails_when_host_has_renewed() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({})).await;
    let request = new_key_and_request();
    let answer = fleet.enrol(&token, "web-1", &request.csr).await.unwrap();
    let mut host = fleet.host_with_certificate(answer.node, &request, answer.chain);
    host.renew(&new_key_and_request().csr).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &request.csr).await.unwrap_err(), bad_token_error());
}

/// In each round, two hosts join at once with one token.
#[tokio::test]
async fn s21_single_use_token_admits_one_of_two_joins() {
    let fleet = Arc::new(Fleet::start().await);
    for round in 0..1000 {
        let token = fleet.create_token(json!({})).await;
        let racers = ["a", "b"].map(|racer| {
            let (fleet, token) = (Arc::clone(&fleet), token.clone());
            let source_address = format!("127.0.0.1:{}", 1000 + round).parse().unwrap();
            tokio::spawn(async move {
                let KeyAndRequest { csr, .. } = new_key_and_request();
                let name = format!("n{round}-{racer}");
                let request = EnrollRequest { token, csr, seal_key: [7; 32], name };
                fleet.components().enrolment.enrol(source_address, request).await
            })
        });
        let mut joined_count = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => joined_count += 1,
                Err(error) => assert_eq!(error.message, BAD_TOKEN_MESSAGE),
            }
        }
        assert_eq!(joined_count, 1, "round {round}");
        assert_eq!(uses_left(&fleet, &token), 0);
    }
    assert_eq!(fleet.components().registry.cache().model().nodes.iter().count(), 1000);
}

/// In each round, two hosts join at once with one token, each over its own connection.
#[tokio::test]
async fn s21_single_use_token_admits_one_when_two_connections_race() {
    let fleet = Arc::new(Fleet::start().await);
    let rounds = if std::env::var_os("STEMMA_TEST_LONG").is_some() { 1000 } else { 100 };
    for round in 0..rounds {
        let token = fleet.create_token(json!({})).await;
        let start = Arc::new(Barrier::new(2));
        let racers = ["a", "b"].map(|racer| {
            let (fleet, token, start) = (Arc::clone(&fleet), token.clone(), Arc::clone(&start));
            // Each join runs on its own thread and its own connection.
            tokio::task::spawn_blocking(move || {
                let KeyAndRequest { csr, .. } = new_key_and_request();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                start.wait();
                runtime.block_on(fleet.enrol(&token, &format!("n{round}-{racer}"), &csr))
            })
        });
        let mut joined_count = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => joined_count += 1,
                Err(error) => assert_eq!(error, bad_token_error()),
            }
        }
        assert_eq!(joined_count, 1, "round {round}");
        assert_eq!(uses_left(&fleet, &token), 0);
    }
    assert_eq!(fleet.components().registry.cache().model().nodes.iter().count(), rounds);
    fleet.wait_until_counted("token.invalid", rounds as u64).await;
}

/// By default, a token is valid for 30 minutes.
#[tokio::test]
async fn s22_token_is_rejected_when_expired() {
    let fleet = Fleet::start().await;
    let (default_token, short_lived_token) =
        (fleet.create_token(json!({})).await, fleet.create_token(json!({"ttl_seconds": 60})).await);
    let revision = fleet.last_revision().await;
    fleet.clock.advance(61);
    assert_eq!(fleet.enrol(&short_lived_token, "web-1", &new_key_and_request().csr).await.unwrap_err(), bad_token_error());
    fleet.clock.advance(30 * 60);
    assert_eq!(fleet.enrol(&default_token, "web-1", &new_key_and_request().csr).await.unwrap_err(), bad_token_error());
    assert_eq!(fleet.components().registry.cache().model().nodes.iter().count(), 0);
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    fleet.wait_until_counted("token.invalid", 2).await;
    fleet.join("web-1").await;
}

/// A token for web-1 admits no other host, and no second host of web-1. A refused join does not use up the token.
#[tokio::test]
async fn s23_token_keeps_uses_when_bound_to_other_target() {
    let fleet = Fleet::start().await;
    let node = create_node(&fleet, "web-1").await;
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    let second_token = fleet.create_token(json!({"node": "web-1"})).await;
    let error = fleet.enrol(&token, "web-2", &new_key_and_request().csr).await.unwrap_err();
    assert_eq!((error.status, error.kind.as_str()), (403, "token.invalid"));
    assert_eq!(error.message, "the token is bound to another node than 'web-2'");
    fleet.wait_until_audited(&token_principal(&token), "token.invalid", 1).await;
    assert_eq!(uses_left(&fleet, &token), 1);
    assert_eq!(
        fleet.enrol(&token, "web-1", &new_key_and_request().csr).await.unwrap().node,
        node,
        "the host takes over the node of the token"
    );
    let error = fleet.enrol(&second_token, "web-1", &new_key_and_request().csr).await.unwrap_err();
    assert_eq!((error.status, error.message.as_str()), (409, &*has_host_message("web-1")));
    assert_eq!(uses_left(&fleet, &second_token), 1);
}

/// Returns the message of the error that a node already has a host.
fn has_host_message(name: &str) -> String {
    format!("{name} already has a host. To replace it: `stemma delete node {name}`, then make a new token.")
}

/// Regression: a token for a node with a host was created, and no host could ever join with it.
#[tokio::test]
async fn y09_token_creation_fails_when_node_has_host() {
    let fleet = Fleet::start().await;
    let node = create_node(&fleet, "web-1").await;
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    fleet.enrol(&token, "web-1", &new_key_and_request().csr).await.unwrap();
    let token_count = fleet.components().registry.cache().model().tokens.len();
    for name in ["web-1".to_owned(), node.to_string()] {
        let error = token::create(&fleet.components().registry, &admin_caller(), &json!({"node": name})).await.unwrap_err();
        assert_eq!((error.status(), error.kind.name(), error.message), (409, "object.exists", has_host_message("web-1")));
    }
    assert_eq!(fleet.components().registry.cache().model().tokens.len(), token_count, "no token was created");
    // Following the advice of the message leads to a working token.
    delete_node(&fleet, node).await;
    let new_node = create_node(&fleet, "web-1").await;
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    assert_eq!(fleet.enrol(&token, "web-1", &new_key_and_request().csr).await.unwrap().node, new_node);
}

/// The certificate request asks for the rights of an authority and for the name of an admin.
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
    let error = fleet.enrol(&token, "web-1", &csr).await.unwrap_err();
    assert_eq!((error.status, error.kind.as_str()), (400, "csr.invalid"));
    assert_eq!(
        error.message,
        "the certificate request is refused: only its public key is used, but it also requests: basicConstraints, extKeyUsage, \
         keyUsage, subject, subjectAltName; remove these fields"
    );
    assert_eq!(uses_left(&fleet, &token), 1, "the token is not used up");
    fleet.wait_until_audited(&token_principal(&token), "csr.invalid", 1).await;
    fleet.enrol(&token, "web-1", &new_key_and_request().csr).await.expect("the next good request");
}

/// Returns the principal under which the audit records a host that shows this join token.
fn token_principal(token: &str) -> String {
    format!("token/{}", token.split('.').next().unwrap())
}

/// The certificate is for a day, has one name, and is not that of an authority.
#[tokio::test]
async fn s24_certificate_holds_only_controller_values() {
    let fleet = Fleet::start().await;
    let host = fleet.join("web-1").await;
    let (_, certificate) = x509_parser::parse_x509_certificate(&host.chain[0]).unwrap();
    // A day, and the five minutes by which the certificate begins before its issue.
    assert_eq!(certificate.validity().not_after.timestamp() - certificate.validity().not_before.timestamp(), 86_400 + 300);
    assert!(!certificate.is_ca());
    let names = certificate.subject_alternative_name().unwrap().unwrap().value;
    assert_eq!(names.general_names.len(), 1);
    assert_eq!(certificate.subject().iter_attributes().count(), 0);
}

/// The key on another curve (P-384) is refused, because only P-256 is allowed.
#[tokio::test]
async fn s25_enrol_rejects_bad_signature_weak_key_and_other_nodes_key() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({"uses": 10})).await;
    let mut badly_signed_csr = new_key_and_request().csr;
    *badly_signed_csr.last_mut().unwrap() ^= 1;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let weak_key_csr = params.serialize_request(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap()).unwrap().der().to_vec();
    let first_request = new_key_and_request();
    fleet.enrol(&token, "web-1", &first_request.csr).await.unwrap();
    for (csr, reason) in [
        (&badly_signed_csr, "its signature was not made with its own key"),
        (&weak_key_csr, "its key is not ECDSA on P-256"),
        (&vec![0x30, 0x80], "it is not a PKCS#10 request in DER of at most 4096 bytes"),
        (&first_request.csr, "its key belongs to another node; create a new key"),
    ] {
        let error = fleet.enrol(&token, "web-2", csr).await.unwrap_err();
        assert_eq!((error.status, error.kind.as_str()), (400, "csr.invalid"));
        assert_eq!(error.message, format!("the certificate request is refused: {reason}"));
    }
    assert_eq!(uses_left(&fleet, &token), 9);
    fleet.wait_until_audited(&token_principal(&token), "csr.invalid", 4).await;
    let mut other_host = fleet.join("web-3").await;
    assert_eq!(other_host.renew(&first_request.csr).await.unwrap_err().kind, "csr.invalid", "a renewal refuses the key too");
}

/// Two hosts of one name join at once with one token of two uses. The refused host does not use up the token.
#[tokio::test]
async fn enrol_admits_one_host_when_two_share_name() {
    let fleet = Arc::new(Fleet::start().await);
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    for round in 0..300 {
        let token = fleet.create_token(json!({"nodegroup": "c/g", "uses": 2})).await;
        let racers = ["a", "b"].map(|_| {
            let (fleet, token) = (Arc::clone(&fleet), token.clone());
            let source_address = format!("127.0.0.1:{}", 1000 + round).parse().unwrap();
            tokio::spawn(async move {
                let request =
                    EnrollRequest { token, csr: new_key_and_request().csr, seal_key: [7; 32], name: format!("n{round}") };
                fleet.components().enrolment.enrol(source_address, request).await
            })
        });
        let mut joined_count = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => joined_count += 1,
                Err(error) => {
                    assert_eq!(error.message, has_host_message(&format!("n{round}")));
                }
            }
        }
        assert_eq!((joined_count, uses_left(&fleet, &token)), (1, json!(1)), "round {round}");
    }
}

#[tokio::test]
async fn enrol_checks_name_and_key_in_store_when_cache_lags() {
    let fleet = Fleet::start().await;
    let objects = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Node", "name": "web-1", "nodegroup": "c/g"}]);
    fleet.apply(objects).await;
    let token = fleet.create_token(json!({"nodegroup": "c/g", "uses": 10})).await;
    let node_token = fleet.create_token(json!({"node": "web-1"})).await;
    let first_request = new_key_and_request();
    let node = fleet.enrol(&token, "web-1", &first_request.csr).await.unwrap().node;
    let mut other_host = fleet.join("web-3").await;
    // The cache of identities is updated after the commit. The removal of the node from the cache imitates a cache that
    // is not updated yet.
    let remove_from_cache = || fleet.components().identities.remove(node, StoreRevision::new(u64::MAX));
    remove_from_cache();
    let error = fleet.enrol(&token, "web-2", &first_request.csr).await.unwrap_err();
    assert_eq!(error.message, "the certificate request is refused: its key belongs to another node; create a new key");
    assert_eq!(other_host.renew(&first_request.csr).await.unwrap_err().kind, "csr.invalid");
    for token in [&token, &node_token] {
        remove_from_cache();
        let error = fleet.enrol(token, "web-1", &new_key_and_request().csr).await.unwrap_err();
        assert_eq!((error.status, error.message.as_str()), (409, &*has_host_message("web-1")));
    }
    assert_eq!(uses_left(&fleet, &token), 9);
}

#[tokio::test]
async fn s26_certificate_is_rejected_when_node_was_recreated() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let node = host.node;
    let mut waiting_client = fleet.client(host.chain.clone(), host.key.clone_key());
    let waiting_check_in = tokio::spawn(async move {
        call::<_, CheckInResponse>(&mut waiting_client, "/agent/v1/checkin", &idle_check_in(None, 30_000)).await
    });
    wait_until(|| fleet.components().desired.is_waiting(node)).await;
    delete_node(&fleet, node).await;
    let result = waiting_check_in.await.unwrap();
    assert_eq!(result.unwrap_err().kind, "auth.revoked", "the deletion ends the waiting check-in at once");
    assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
    let request = stemma_wire::message::enroll::RenewRequest { csr: new_key_and_request().csr };
    let response = send_request(&mut host.client, Method::POST, "/agent/v1/renew", encode(&request)).await;
    assert_eq!(error_response(&response).kind, "auth.revoked", "a renewal is refused too");
    assert_eq!(response.headers()["connection"], "close", "the controller closes the connection");
    // A node is created again with the same uuid and joins again. The old certificate remains revoked.
    let name = NodeName::new("web-1").unwrap();
    let caller = admin_caller();
    let creation = fleet.components().registry.write(&caller, |context| {
        let mut work = PendingWrite::new(context);
        work.create(node, Some(name.clone()), NodeSpec::default())?;
        work.finish(StoredAnswer::empty(201))
    });
    creation.await.unwrap();
    let token = fleet.create_token(json!({"node": "web-1"})).await;
    let second_request = new_key_and_request();
    let answer = fleet.enrol(&token, "web-1", &second_request.csr).await.unwrap();
    assert_eq!(answer.node, node);
    assert!(fleet.host_with_certificate(node, &second_request, answer.chain).check_in(0).await.is_ok());
    assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
    fleet.wait_until_audited(&format!("node/{node}"), "auth.revoked", 4).await;
}

/// Deletes a node as the API does, and publishes the deletion as the reconciler does.
async fn delete_node(fleet: &Fleet, node: Uuid) {
    let caller = admin_caller();
    let deletion = fleet.components().registry.write(&caller, |context| -> Result<Decision, _> {
        let mut work = PendingWrite::new(context);
        let object = context.model.nodes.get(node).cloned().expect("the node exists");
        work.delete_node(&object)?;
        work.finish(StoredAnswer::empty(204))
    });
    deletion.await.unwrap();
    let changes = vec![(node, DesiredChange::Deleted)];
    fleet.components().desired.publish(PassResult { revision: Revision(fleet.last_revision().await), changes });
}

/// In this test, the limit is five wrong tokens from one network. After that, each token from the network is refused
/// for a time, also a good one. Joins with a good token do not count towards this limit.
#[tokio::test]
async fn s27_wrong_tokens_are_limited_without_delaying_joining_fleet() {
    let fleet =
        Fleet::start_with(|options| options.attempt_limits = AttemptLimits { per_network: 5, ..AttemptLimits::default() }).await;
    let good_token = fleet.create_token(json!({"uses": 100})).await;
    let id = good_token.split('.').next().unwrap();
    let (long_secret, short_secret) = ("0".repeat(64), "-".repeat(43));
    for guess in [
        format!("{id}.{long_secret}"),
        format!("{id}.{short_secret}"),
        format!("0000000000000000.{long_secret}"),
        format!("0000000000000000.{short_secret}"),
        format!("ffffffffffffffff.{long_secret}"),
    ] {
        assert_eq!(
            fleet.enrol(&guess, "web-1", &new_key_and_request().csr).await.unwrap_err(),
            bad_token_error(),
            "each wrong token gets the same error"
        );
    }
    let error = fleet.enrol(&good_token, "web-1", &new_key_and_request().csr).await.unwrap_err();
    assert_eq!((error.status, error.kind.as_str()), (503, "server.busy"));
    assert_eq!(fleet.refused_count("token_guesses"), 1);
    fleet.clock.advance(60);
    for n in 0..20 {
        fleet.enrol(&good_token, &format!("web-{n}"), &new_key_and_request().csr).await.unwrap();
    }
}

/// Regression: a token that was truncated or had trailing characters was refused as unknown, and counted as a guess.
#[tokio::test]
async fn y09_malformed_token_is_not_counted_as_attempt() {
    let limits = AttemptLimits { per_network: 2, total: 2, ..AttemptLimits::default() };
    let fleet = Fleet::start_with(|options| options.attempt_limits = limits).await;
    let good_token = fleet.create_token(json!({})).await;
    let id = good_token.split('.').next().unwrap();
    let truncated_token = &good_token[..good_token.len() - 1];
    for (text, reason) in [
        (truncated_token, "has 42 characters, and a secret has 64, or 43 if a controller created it"),
        (&good_token[..20], "has 3 characters, and a secret has 64"),
        (&*format!("{good_token}0"), "has 44 characters"),
        (&*format!("{good_token}{good_token}"), "has 103 characters"),
        (&*"x".repeat(163), "it is not ID.SECRET"),
        (&*format!("{id}.zz"), "has 2 characters"),
        (&*format!("{id}.{}", "z".repeat(64)), "has characters that no secret has"),
        (&*format!("{}.{}", "Z".repeat(16), "0".repeat(64)), "is not all digits and letters from a to f"),
        ("nonsense", "it is not ID.SECRET"),
        ("", "it is not ID.SECRET"),
    ] {
        let error = fleet.enrol(text, "web-1", &new_key_and_request().csr).await.unwrap_err();
        assert_eq!((error.status, &*error.kind), (400, "field.invalid"), "{text}");
        assert!(error.message.contains(reason) && error.message.contains("nothing was changed"), "{}", error.message);
    }
    assert_eq!(fleet.refused_count("token_guesses"), 0);
    // A name that is too long is refused by the rule for names, and the token is not used up.
    let error = fleet.enrol(&good_token, &"a".repeat(256), &new_key_and_request().csr).await.unwrap_err();
    assert_eq!((error.status, &*error.kind), (400, "field.invalid"));
    assert!(error.message.contains("1 to 255 letters") && error.message.contains("--name"), "{}", error.message);
    fleet.enrol(&good_token, "web-1", &new_key_and_request().csr).await.unwrap();
}

/// Enrols from this source address, which no real connection on loopback can have. Returns the node, or the status and
/// the type of the error.
async fn enrol_from(fleet: &Fleet, source_address: &str, token: &str, name: &str) -> Result<Uuid, (u16, &'static str)> {
    let KeyAndRequest { csr, .. } = new_key_and_request();
    let request = EnrollRequest { token: token.into(), csr, seal_key: [7; 32], name: name.into() };
    let answer = fleet.components().enrolment.enrol(source_address.parse().unwrap(), request).await;
    answer.map(|answer| answer.node).map_err(|error| (error.status(), error.kind.name()))
}

/// In this test, a network may send five wrong tokens, and all networks together eight. A good token is refused only in
/// a network that has reached its own limit.
#[tokio::test]
async fn s27_s29_enrol_accepts_good_token_when_many_guess_tokens() {
    let limits = AttemptLimits { per_network: 5, total: 8, refill_s: 3 };
    let fleet = Fleet::start_with(|options| options.attempt_limits = limits).await;
    let (good_token, spent_token) = (fleet.create_token(json!({"uses": 10})).await, fleet.create_token(json!({})).await);
    let (unknown_token, other_token) =
        (format!("{}.{}", "0".repeat(16), "0".repeat(64)), format!("{}.{}", "f".repeat(16), "0".repeat(43)));
    enrol_from(&fleet, "[2001:db8::1]:1", &spent_token, "web-0").await.unwrap();
    // All addresses of one network (a /64 of IPv6) share one limit.
    for host in 1..=5 {
        let result = enrol_from(&fleet, &format!("[2001:db8:0:7::{host}]:1"), &unknown_token, "web-1").await;
        assert_eq!(result, Err((403, "token.invalid")));
    }
    for token in [&unknown_token, &good_token] {
        let result = enrol_from(&fleet, "[2001:db8:0:7:5::5]:1", token, "web-1").await;
        assert_eq!(result, Err((503, "server.busy")), "the token is not checked");
    }
    for site in 1..=3 {
        let result = enrol_from(&fleet, &format!("10.0.0.{site}:1"), &unknown_token, "web-1").await;
        assert_eq!(result, Err((403, "token.invalid")));
    }
    // The limit of all networks together is used up. An invalid token now gets `server.busy`, whatever is wrong with
    // it, and a host with a valid token still joins.
    let revision = fleet.last_revision().await;
    for (source_address, token) in [("10.0.0.4:1", &unknown_token), ("10.0.0.5:1", &other_token), ("10.0.0.6:1", &spent_token)] {
        assert_eq!(enrol_from(&fleet, source_address, token, "web-1").await, Err((503, "server.busy")), "{source_address}");
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    assert_eq!(fleet.refused_count("token_guesses"), 5);
    enrol_from(&fleet, "10.0.0.7:1", &good_token, "web-1").await.unwrap();
    let body =
        encode(&EnrollRequest { token: other_token, csr: new_key_and_request().csr, seal_key: [7; 32], name: "web-2".into() });
    let answer = send_request(&mut fleet.client_without_certificate(), Method::POST, "/agent/v1/enroll", body).await;
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (503, "10"));
    fleet.enrol(&good_token, "web-2", &new_key_and_request().csr).await.unwrap();
}

/// Ended tokens are removed after a day. The record of a deleted node is removed when its certificate can no longer be
/// used for a renewal.
#[tokio::test]
async fn prune_removes_only_expired_records() {
    let fleet = Fleet::start().await;
    let parts = fleet.components();
    let prune_once = async || prune::prune(parts.registry.store().as_ref(), &parts.identities, parts.registry.now()).await;
    // `prune` commits to the store only. The cache follows through a watch of the store.
    let count_tokens = async || {
        let head = parts.registry.store().head().await.unwrap();
        parts.registry.cache().wait_for(head).await;
        token::list(&parts.registry.cache().model(), &[]).len()
    };
    let (remaining_host, deleted_host) = (fleet.join("web-1").await, fleet.join("web-2").await);
    fleet.create_token(json!({"ttl_seconds": 7 * DAY_S})).await;
    fleet.create_token(json!({})).await;
    assert_eq!((prune_once().await.unwrap(), count_tokens().await), (0, 4));
    fleet.clock.advance(DAY_S - 60);
    assert_eq!((prune_once().await.unwrap(), count_tokens().await), (0, 4), "an ended token is still shown for a day");
    fleet.clock.advance(120);
    assert_eq!((prune_once().await.unwrap(), count_tokens().await), (2, 2), "the two used tokens are removed");
    fleet.clock.advance(30 * 60);
    assert_eq!((prune_once().await.unwrap(), count_tokens().await), (1, 1), "the token that expired early is removed");
    delete_node(&fleet, deleted_host.node).await;
    fleet.clock.advance(29 * DAY_S);
    assert_eq!((prune_once().await.unwrap(), count_tokens().await), (1, 0), "the token that expired late is removed");
    let record = async |node: Uuid| {
        let snapshot = parts.registry.store().snapshot().await.unwrap();
        snapshot.get(agent_key(node).as_bytes()).await.unwrap()
    };
    assert!(record(deleted_host.node).await.is_some(), "a renewal could still present its certificate");
    fleet.clock.advance(2 * DAY_S);
    let revision = fleet.last_revision().await;
    assert_eq!(prune_once().await.unwrap(), 1);
    assert_eq!((record(deleted_host.node).await, record(remaining_host.node).await.is_some()), (None, true));
    let keys = parts.registry.store().snapshot().await.unwrap().list(&ListQuery::prefix(KEYS)).await.unwrap().entries;
    assert_eq!(keys.len(), 1, "the key of the deleted node belongs to no node");
    assert_eq!(keys[0].value, remaining_host.node.to_string());
    wait_until(|| parts.identities.expired_nodes(u64::MAX, 10).is_empty()).await;
    assert!(parts.identities.is_enrolled(remaining_host.node));
    assert_eq!(fleet.last_revision().await, revision + 1);
    assert_eq!(
        (prune_once().await.unwrap(), fleet.last_revision().await),
        (0, revision + 1),
        "without an expired record, nothing is written"
    );
}

/// The node requests certificates until it has 256 of them.
#[tokio::test]
async fn certificate_records_are_kept_and_limited_per_node() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let csr = new_key_and_request().csr;
    for _ in 1..256 {
        host.renew(&csr).await.unwrap();
    }
    let revision = fleet.last_revision().await;
    let error = host.renew(&csr).await.unwrap_err();
    assert_eq!((error.status, error.kind.as_str()), (429, "certificate.too_many"));
    assert_eq!(error.message, "the node has 256 certificates that can still be used, and cannot get more");
    assert_eq!((fleet.last_revision().await, fleet.refused_count("certificate.too_many")), (revision, 1));
    assert!(host.check_in(0).await.is_ok(), "check-ins still succeed");
    let snapshot = fleet.components().registry.store().snapshot().await.unwrap();
    let bytes = snapshot.get(agent_key(host.node).as_bytes()).await.unwrap().unwrap();
    let node_record: Value = serde_json::from_slice(&bytes.value).unwrap();
    assert_eq!(node_record["record"]["certificates"].as_array().unwrap().len(), 256);
}

/// With a used token, the error is the same for an existing, a free and an invalid name. A good token gets an error
/// that describes the name. The name `validate` is reserved, because it is also a path of the API.
#[tokio::test]
async fn s30_node_names_are_revealed_only_to_good_tokens() {
    let fleet = Fleet::start().await;
    fleet.join("web-1").await;
    let used_token = fleet.create_token(json!({})).await;
    fleet.enrol(&used_token, "web-2", &new_key_and_request().csr).await.unwrap();
    for name in ["web-1", "free", "not a name"] {
        assert_eq!(fleet.enrol(&used_token, name, &new_key_and_request().csr).await.unwrap_err(), bad_token_error(), "{name}");
    }
    let good_token = fleet.create_token(json!({})).await;
    let error = fleet.enrol(&good_token, "web-1", &new_key_and_request().csr).await.unwrap_err();
    assert_eq!(
        (error.status, error.message.as_str()),
        (409, "the name 'web-1' is taken: a token that is bound to neither node nor group cannot take over a node")
    );
    assert_eq!(fleet.enrol(&good_token, "validate", &new_key_and_request().csr).await.unwrap_err().status, 400);
    fleet.enrol(&good_token, "free", &new_key_and_request().csr).await.unwrap();
}

/// Each name could also be an option, a path of the API, or the name of every host or (with a final dot) of another.
#[tokio::test]
async fn y04_enrol_rejects_foreign_or_ambiguous_host_name() {
    let fleet = Fleet::start().await;
    let good_token = fleet.create_token(json!({})).await;
    for name in ["--help", "-x", "x.", "localhost", "LocalHost", "Detail"] {
        let error = fleet.enrol(&good_token, name, &new_key_and_request().csr).await.unwrap_err();
        assert_eq!((error.status, error.kind.as_str()), (400, "field.invalid"), "{name}: {}", error.message);
        assert!(error.message.ends_with("; join with --name and another name"), "{}", error.message);
    }
    // A client of Ironic may create a node with such a name. A host with a token for that node can take it over.
    let node = create_node(&fleet, "dot.").await;
    let bound_token = fleet.create_token(json!({"node": "dot."})).await;
    assert_eq!(fleet.enrol(&bound_token, "dot.", &new_key_and_request().csr).await.unwrap().node, node);
    fleet.enrol(&good_token, "dot", &new_key_and_request().csr).await.unwrap();
}

/// The secret is not in the store either. The second half lists invalid requests for a token.
#[tokio::test]
async fn token_is_shown_without_secret_and_can_be_deleted() {
    let fleet = Fleet::start().await;
    let token = fleet.create_token(json!({"uses": 3, "mode": "noop"})).await;
    let (id, secret) = token.split_once('.').unwrap();
    let token_list = Value::from(token::list(&fleet.components().registry.cache().model(), &[]));
    assert!(!token_list.to_string().contains(secret));
    let shown_token = &token_list[0];
    assert_eq!((&shown_token["id"], &shown_token["uses_left"], &shown_token["mode"]), (&json!(id), &json!(3), &json!("noop")));
    let bytes = std::fs::read(fleet.directory.path().join("data/store.redb")).unwrap();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "the secret is nowhere at rest");
    fleet::delete_token(&fleet, id).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &new_key_and_request().csr).await.unwrap_err(), bad_token_error());
    for (body, message) in [
        (json!({"usess": 1}), "Unknown attribute for join token: 'usess': is not a field here (did you mean \"uses\"?)"),
        (json!({"uses": 0}), "uses is 0, and may be 1 to 100000"),
        (json!({"ttl_seconds": 9_999_999}), "ttl_seconds is 9999999, and may be 1 to 2592000"),
        (json!({"node": "nobody"}), "there is no node 'nobody'"),
        (json!({"nodegroup": "a/b"}), "there is no nodegroup 'a/b'"),
    ] {
        let error = token::create(&fleet.components().registry, &admin_caller(), &body).await.unwrap_err();
        assert!(error.message.contains(message), "{body}: {}", error.message);
    }
}

/// Regression: the audit of a join that took over a node did not name the node. The audit of a repeated join did not
/// name it either.
#[tokio::test]
async fn join_is_audited_with_token_node_and_certificate() {
    let fleet = Fleet::start().await;
    create_node(&fleet, "web-1").await;
    let (bound_token, free_token, request) =
        (fleet.create_token(json!({"node": "web-1"})).await, fleet.create_token(json!({})).await, new_key_and_request());
    for _ in 0..2 {
        fleet.enrol(&bound_token, "web-1", &request.csr).await.unwrap();
    }
    fleet.enrol(&free_token, "web-2", &new_key_and_request().csr).await.unwrap();
    for (token, name, actions) in [(&bound_token, "web-1", &["unchanged"; 2][..]), (&free_token, "web-2", &["created"])] {
        for query in
            [format!("principal={}", token_principal(token)), format!("principal={}&object=node/{name}", token_principal(token))]
        {
            let audit = fleet.read(&format!("/v1/audit?{query}")).await;
            let entries = audit["audit"].as_array().unwrap();
            let objects: Vec<&Value> = entries.iter().flat_map(|entry| entry["objects"].as_array().unwrap()).collect();
            let found_actions: Vec<&str> = objects.iter().map(|object| object["action"].as_str().unwrap()).collect();
            assert_eq!((entries.len(), &*found_actions), (actions.len(), actions), "{query}: {audit}");
            let is_certificate_issue = |object: &&Value| {
                let part = object["part"].as_str().unwrap_or_default();
                object["kind"] == "node"
                    && object["name"] == name
                    && part.starts_with("certificates.")
                    // `certificates.` and a serial number of 32 digits.
                    && part.len() == 45
                    && object["part_action"] == "issued"
            };
            assert!(objects.iter().all(is_certificate_issue), "{audit}");
        }
    }
}
