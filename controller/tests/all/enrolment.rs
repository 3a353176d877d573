//! What enrolment refuses (docs/trust.md, S20 to S25, S30), and that a token burns exactly when it made something.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::{Arc, Barrier};

use hyper::Method;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P384_SHA384, SanType,
};
use serde_json::{Value, json};
use stemma_controller::desired::{Batch, Change};
use stemma_controller::enrol::{GuessLimits, forget, token};
use stemma_controller::records::enrolled::{KEYS, agent_key};
use stemma_controller::records::request::Answer;
use stemma_controller::registry::Decision;
use stemma_controller::registry::work::Work;
use stemma_controller::store::{Query, Revision as StoreRevision};
use stemma_core::name::NodeName;
use stemma_core::object::NodeSpec;
use stemma_wire::message::Revision;
use stemma_wire::message::checkin::CheckInAnswer;
use stemma_wire::message::encode;
use stemma_wire::message::enroll::EnrollRequest;
use uuid::Uuid;

use crate::fleet::{self, Asking, Fleet, Refused, admin, asking, call, check_in, refused, send, wait_until};

const DAY_S: u64 = 24 * 3600;
const NO_GOOD: &str = "The join token is unknown, used up, expired, or bound to something else.";

fn no_good() -> Refused {
    Refused { status: 403, kind: "token.invalid".into(), message: NO_GOOD.into() }
}

/// Makes a node as an operator does.
async fn make_node(fleet: &Fleet, name: &str) -> Uuid {
    let uuid = Uuid::from_u128(0x0190_b6c8_4c1e_7d2a_9f00_0000_0000_0001);
    let name = NodeName::new(name).unwrap();
    let caller = admin();
    let made = fleet.parts().registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        work.create(uuid, Some(name.clone()), NodeSpec::default())?;
        work.finish(Answer::empty(201))
    });
    made.await.unwrap();
    uuid
}

fn uses_left(fleet: &Fleet, token: &str) -> Value {
    let id = token.split('.').next().unwrap();
    token::get(&fleet.parts().registry.cache().model(), id).unwrap()["uses_left"].clone()
}

#[tokio::test]
async fn s20_a_used_token_is_worth_nothing() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({})).await;
    fleet.enrol(&token, "web-1", &asking().csr).await.unwrap();
    let revision = fleet.revision().await;
    assert_eq!(fleet.enrol(&token, "web-2", &asking().csr).await.unwrap_err(), no_good());
    assert_eq!(fleet.revision().await, revision, "nothing is written");
    let two = fleet.token(json!({"uses": 2})).await;
    fleet.enrol(&two, "web-2", &asking().csr).await.unwrap();
    fleet.enrol(&two, "web-3", &asking().csr).await.unwrap();
    assert_eq!(fleet.enrol(&two, "web-4", &asking().csr).await.unwrap_err(), no_good());
    fleet.counted("token.invalid", 2).await;
    fleet.join("web-4").await;
}

#[tokio::test]
async fn s20_who_has_joined_and_asks_again_with_its_key_is_told_the_same_and_nobody_else() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({})).await;
    let own = asking();
    let first = fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
    for _ in 0..3 {
        let again = fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
        assert_eq!((again.node, &again.root, &again.fleet), (first.node, &first.root, &first.fleet));
    }
    assert_eq!(uses_left(&fleet, &token), 0);
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), 1);
    let other = fleet.token(json!({})).await;
    let revision = fleet.revision().await;
    for (what, name, csr) in [("another key", "web-1", &asking().csr), ("another name", "web-2", &own.csr)] {
        assert_eq!(fleet.enrol(&token, name, csr).await.unwrap_err(), no_good(), "{what}");
    }
    // A good token of another join is not for it either.
    let refused = fleet.enrol(&other, "web-1", &own.csr).await.unwrap_err();
    assert!(refused.message.contains("another node's"), "{refused:?}");
    fleet.clock.forward(3600);
    assert_eq!(fleet.enrol(&token, "web-1", &own.csr).await.unwrap_err(), no_good(), "its time is over");
    assert_eq!(fleet.revision().await, revision, "nothing is written");
}

#[tokio::test]
async fn s20_asking_again_ends_with_the_token_the_node_and_the_most_certificates() {
    let fleet = Fleet::start().await;
    // A token that was taken back.
    let (token, own) = (fleet.token(json!({})).await, asking());
    fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
    fleet::delete_token(&fleet, token.split('.').next().unwrap()).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &own.csr).await.unwrap_err(), no_good());

    // A node that was deleted.
    let (token, own) = (fleet.token(json!({})).await, asking());
    let joined = fleet.enrol(&token, "web-2", &own.csr).await.unwrap();
    delete_node(&fleet, joined.node).await;
    let refused = fleet.enrol(&token, "web-2", &own.csr).await.unwrap_err();
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(fleet.parts().registry.cache().model().nodes.get(joined.node).is_none());

    // Two at once are told of one node.
    let (token, own) = (fleet.token(json!({})).await, asking());
    let joined = fleet.enrol(&token, "web-3", &own.csr).await.unwrap();
    let (one, other) = tokio::join!(fleet.enrol(&token, "web-3", &own.csr), fleet.enrol(&token, "web-3", &own.csr));
    assert_eq!((one.unwrap().node, other.unwrap().node), (joined.node, joined.node));
    for _ in 3..256 {
        fleet.enrol(&token, "web-3", &own.csr).await.unwrap();
    }
    let refused = fleet.enrol(&token, "web-3", &own.csr).await.unwrap_err();
    assert!(refused.message.contains("256 certificates that are not over"), "{refused:?}");
}

#[tokio::test]
async fn s20_who_has_joined_and_renewed_since_has_nothing_to_ask_again() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({})).await;
    let own = asking();
    let answer = fleet.enrol(&token, "web-1", &own.csr).await.unwrap();
    let mut host = fleet.host(answer.node, &own, answer.chain);
    host.renew(&asking().csr).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &own.csr).await.unwrap_err(), no_good());
}

#[tokio::test]
async fn s21_two_at_once_exactly_one() {
    let fleet = Arc::new(Fleet::start().await);
    for round in 0..1000 {
        let token = fleet.token(json!({})).await;
        let racers = ["a", "b"].map(|racer| {
            let (fleet, token) = (Arc::clone(&fleet), token.clone());
            let from = format!("127.0.0.1:{}", 1000 + round).parse().unwrap();
            tokio::spawn(async move {
                let Asking { csr, .. } = asking();
                let name = format!("n{round}-{racer}");
                let request = EnrollRequest { token, csr, seal_key: [7; 32], name };
                fleet.parts().enrolment.enrol(from, request).await
            })
        });
        let mut won = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error.message, NO_GOOD),
            }
        }
        assert_eq!(won, 1, "round {round}");
        assert_eq!(uses_left(&fleet, &token), 0);
    }
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), 1000);
}

#[tokio::test]
async fn s21_two_at_once_over_two_connections_exactly_one() {
    let fleet = Arc::new(Fleet::start().await);
    let rounds = if std::env::var_os("STEMMA_TEST_LONG").is_some() { 1000 } else { 100 };
    for round in 0..rounds {
        let token = fleet.token(json!({})).await;
        let start = Arc::new(Barrier::new(2));
        let racers = ["a", "b"].map(|racer| {
            let (fleet, token, start) = (Arc::clone(&fleet), token.clone(), Arc::clone(&start));
            // Each on a thread of its own, by a connection of its own.
            tokio::task::spawn_blocking(move || {
                let Asking { csr, .. } = asking();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                start.wait();
                runtime.block_on(fleet.enrol(&token, &format!("n{round}-{racer}"), &csr))
            })
        });
        let mut won = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error, no_good()),
            }
        }
        assert_eq!(won, 1, "round {round}");
        assert_eq!(uses_left(&fleet, &token), 0);
    }
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), rounds);
    fleet.counted("token.invalid", rounds as u64).await;
}

#[tokio::test]
async fn s22_an_expired_token_is_worth_nothing() {
    let fleet = Fleet::start().await;
    let (usual, short) = (fleet.token(json!({})).await, fleet.token(json!({"ttl_seconds": 60})).await);
    let revision = fleet.revision().await;
    fleet.clock.forward(61);
    assert_eq!(fleet.enrol(&short, "web-1", &asking().csr).await.unwrap_err(), no_good());
    fleet.clock.forward(30 * 60);
    assert_eq!(fleet.enrol(&usual, "web-1", &asking().csr).await.unwrap_err(), no_good());
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), 0);
    assert_eq!(fleet.revision().await, revision, "nothing is written");
    fleet.counted("token.invalid", 2).await;
    fleet.join("web-1").await;
}

#[tokio::test]
async fn s23_a_token_bound_elsewhere_is_refused_and_not_burnt() {
    let fleet = Fleet::start().await;
    let node = make_node(&fleet, "web-1").await;
    let token = fleet.token(json!({"node": "web-1"})).await;
    let again = fleet.token(json!({"node": "web-1"})).await;
    let got = fleet.enrol(&token, "web-2", &asking().csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (403, "token.invalid"));
    assert_eq!(got.message, "the token is bound to another node than 'web-2'");
    fleet.audited(&holder(&token), "token.invalid", 1).await;
    assert_eq!(uses_left(&fleet, &token), 1);
    assert_eq!(
        fleet.enrol(&token, "web-1", &asking().csr).await.unwrap().node,
        node,
        "it takes over the node that it is bound to"
    );
    let got = fleet.enrol(&again, "web-1", &asking().csr).await.unwrap_err();
    assert_eq!((got.status, got.message.as_str()), (409, &*has_host("web-1")));
    assert_eq!(uses_left(&fleet, &again), 1);
}

/// What is told where a node has a host.
fn has_host(name: &str) -> String {
    format!("{name} already has a host. To replace it: `stemma delete node {name}`, then make a new token.")
}

/// Such a token was made, and no host could ever join with it.
#[tokio::test]
async fn y09_no_token_is_made_for_a_node_that_has_a_host() {
    let fleet = Fleet::start().await;
    let node = make_node(&fleet, "web-1").await;
    let token = fleet.token(json!({"node": "web-1"})).await;
    fleet.enrol(&token, "web-1", &asking().csr).await.unwrap();
    let tokens = fleet.parts().registry.cache().model().tokens.len();
    for name in ["web-1".to_owned(), node.to_string()] {
        let error = token::create(&fleet.parts().registry, &admin(), &json!({"node": name})).await.unwrap_err();
        assert_eq!((error.status(), error.kind.name(), error.message), (409, "object.exists", has_host("web-1")));
    }
    assert_eq!(fleet.parts().registry.cache().model().tokens.len(), tokens, "no token was made");
    // Who does what the sentence says gets a token that works.
    delete_node(&fleet, node).await;
    let again = make_node(&fleet, "web-1").await;
    let token = fleet.token(json!({"node": "web-1"})).await;
    assert_eq!(fleet.enrol(&token, "web-1", &asking().csr).await.unwrap().node, again);
}

#[tokio::test]
async fn s24_a_request_for_more_lists_each_refused_field() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({})).await;
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
        "the certificate request is refused: only its public key is taken, and it also asks for: basicConstraints, extKeyUsage, \
         keyUsage, subject, subjectAltName; leave them out"
    );
    assert_eq!(uses_left(&fleet, &token), 1, "the token is not burnt");
    fleet.audited(&holder(&token), "csr.invalid", 1).await;
    fleet.enrol(&token, "web-1", &asking().csr).await.expect("the next good request");
}

/// What whoever holds a good token is called in the audit.
fn holder(token: &str) -> String {
    format!("token/{}", token.split('.').next().unwrap())
}

#[tokio::test]
async fn s24_what_is_issued_says_what_we_say() {
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
async fn s25_a_bad_signature_a_weak_key_and_another_nodes_key_are_refused() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({"uses": 10})).await;
    let mut torn = asking().csr;
    *torn.last_mut().unwrap() ^= 1;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let weak =
        params.serialize_request(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap()).unwrap().der().to_vec();
    let taken = asking();
    fleet.enrol(&token, "web-1", &taken.csr).await.unwrap();
    for (csr, why) in [
        (&torn, "its signature was not made with its own key"),
        (&weak, "its key is not ECDSA on P-256"),
        (&vec![0x30, 0x80], "it is no PKCS#10 request in DER of at most 4096 bytes"),
        (&taken.csr, "its key is another node's; make a new one"),
    ] {
        let got = fleet.enrol(&token, "web-2", csr).await.unwrap_err();
        assert_eq!((got.status, got.kind.as_str()), (400, "csr.invalid"));
        assert_eq!(got.message, format!("the certificate request is refused: {why}"));
    }
    assert_eq!(uses_left(&fleet, &token), 9);
    fleet.audited(&holder(&token), "csr.invalid", 4).await;
    let mut other = fleet.join("web-3").await;
    assert_eq!(other.renew(&taken.csr).await.unwrap_err().kind, "csr.invalid", "renewal looks at it too");
}

#[tokio::test]
async fn two_hosts_with_one_name_that_join_a_group_at_once_are_one_and_a_refusal() {
    let fleet = Arc::new(Fleet::start().await);
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    for round in 0..300 {
        let token = fleet.token(json!({"nodegroup": "c/g", "uses": 2})).await;
        let racers = ["a", "b"].map(|_| {
            let (fleet, token) = (Arc::clone(&fleet), token.clone());
            let from = format!("127.0.0.1:{}", 1000 + round).parse().unwrap();
            tokio::spawn(async move {
                let request = EnrollRequest { token, csr: asking().csr, seal_key: [7; 32], name: format!("n{round}") };
                fleet.parts().enrolment.enrol(from, request).await
            })
        });
        let mut won = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => {
                    assert_eq!(error.message, has_host(&format!("n{round}")));
                }
            }
        }
        assert_eq!((won, uses_left(&fleet, &token)), (1, json!(1)), "round {round}");
    }
}

#[tokio::test]
async fn who_has_joined_and_whose_key_it_is_says_the_store_and_not_what_follows_it() {
    let fleet = Fleet::start().await;
    let objects = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Node", "name": "web-1", "nodegroup": "c/g"}]);
    fleet.apply(objects).await;
    let token = fleet.token(json!({"nodegroup": "c/g", "uses": 10})).await;
    let of_node = fleet.token(json!({"node": "web-1"})).await;
    let taken = asking();
    let node = fleet.enrol(&token, "web-1", &taken.csr).await.unwrap().node;
    let mut other = fleet.join("web-3").await;
    // What is known in memory comes after the commit: here, not yet.
    let forgotten = || fleet.parts().identities.forget(node, StoreRevision::new(u64::MAX));
    forgotten();
    let got = fleet.enrol(&token, "web-2", &taken.csr).await.unwrap_err();
    assert_eq!(got.message, "the certificate request is refused: its key is another node's; make a new one");
    assert_eq!(other.renew(&taken.csr).await.unwrap_err().kind, "csr.invalid");
    for token in [&token, &of_node] {
        forgotten();
        let got = fleet.enrol(token, "web-1", &asking().csr).await.unwrap_err();
        assert_eq!((got.status, got.message.as_str()), (409, &*has_host("web-1")));
    }
    assert_eq!(uses_left(&fleet, &token), 9);
}

#[tokio::test]
async fn s26_a_deleted_nodes_certificate_is_dead_also_when_it_is_made_again() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.news(0).await;
    let node = host.node;
    let mut parked = fleet.client(host.chain.clone(), host.key.clone_key());
    let waiting = tokio::spawn(async move {
        call::<_, CheckInAnswer>(&mut parked, "/agent/v1/checkin", &check_in(None, 30_000)).await
    });
    wait_until(|| fleet.parts().desired.is_parked(node)).await;
    delete_node(&fleet, node).await;
    let cut = waiting.await.unwrap();
    assert_eq!(cut.unwrap_err().kind, "auth.revoked", "it is cut, and not answered when its time is over");
    assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
    let request = stemma_wire::message::enroll::RenewRequest { csr: asking().csr };
    let response = send(&mut host.client, Method::POST, "/agent/v1/renew", encode(&request)).await;
    assert_eq!(refused(&response).kind, "auth.revoked", "nor does it renew");
    assert_eq!(response.headers()["connection"], "close", "its connection ends");
    // Made again under the same uuid and joined anew: the old certificate stays dead.
    let name = NodeName::new("web-1").unwrap();
    let caller = admin();
    let again = fleet.parts().registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        work.create(node, Some(name.clone()), NodeSpec::default())?;
        work.finish(Answer::empty(201))
    });
    again.await.unwrap();
    let token = fleet.token(json!({"node": "web-1"})).await;
    let new = asking();
    let answer = fleet.enrol(&token, "web-1", &new.csr).await.unwrap();
    assert_eq!(answer.node, node);
    assert!(fleet.host(node, &new, answer.chain).check_in(0).await.is_ok());
    assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
    fleet.audited(&format!("node/{node}"), "auth.revoked", 4).await;
}

async fn delete_node(fleet: &Fleet, node: Uuid) {
    let caller = admin();
    let deleted = fleet.parts().registry.write(&caller, |sight| -> Result<Decision, _> {
        let mut work = Work::on(sight);
        let object = sight.model.nodes.get(node).cloned().expect("the node is there");
        work.delete_node(&object)?;
        work.finish(Answer::empty(204))
    });
    deleted.await.unwrap();
    let changes = vec![(node, Change::Gone)];
    fleet.parts().desired.publish(Batch { revision: Revision(fleet.revision().await), changes });
}

#[tokio::test]
async fn s27_guessing_is_refused_unseen_after_a_while_and_a_fleet_that_joins_is_not() {
    let fleet =
        Fleet::start_with(|options| options.guesses = GuessLimits { of_one_network: 5, ..GuessLimits::default() })
            .await;
    let good = fleet.token(json!({"uses": 100})).await;
    let id = good.split('.').next().unwrap();
    let (of_stemma, of_controller) = ("0".repeat(64), "-".repeat(43));
    for guess in [
        format!("{id}.{of_stemma}"),
        format!("{id}.{of_controller}"),
        format!("0000000000000000.{of_stemma}"),
        format!("0000000000000000.{of_controller}"),
        format!("ffffffffffffffff.{of_stemma}"),
    ] {
        assert_eq!(fleet.enrol(&guess, "web-1", &asking().csr).await.unwrap_err(), no_good(), "all alike");
    }
    let got = fleet.enrol(&good, "web-1", &asking().csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (503, "server.busy"));
    assert_eq!(fleet.rejected("token_guesses"), 1);
    fleet.clock.forward(60);
    for n in 0..20 {
        fleet.enrol(&good, &format!("web-{n}"), &asking().csr).await.unwrap();
    }
}

/// A token that was cut or had something behind it was refused as an unknown one, and counted as a guess.
#[tokio::test]
async fn y09_what_cannot_be_a_token_is_no_guess_and_is_told_so() {
    let limits = GuessLimits { of_one_network: 2, of_all: 2, ..GuessLimits::default() };
    let fleet = Fleet::start_with(|options| options.guesses = limits).await;
    let good = fleet.token(json!({})).await;
    let id = good.split('.').next().unwrap();
    let shorter = &good[..good.len() - 1];
    for (text, why) in [
        (shorter, "has 42 characters, and a secret has 64, or 43 where a controller made it"),
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
        let got = fleet.enrol(text, "web-1", &asking().csr).await.unwrap_err();
        assert_eq!((got.status, &*got.kind), (400, "field.invalid"), "{text}");
        assert!(got.message.contains(why) && got.message.contains("nothing was changed"), "{}", got.message);
    }
    assert_eq!(fleet.rejected("token_guesses"), 0);
    // A name that is too long is refused by the rule of names, and the token is not used up.
    let got = fleet.enrol(&good, &"a".repeat(256), &asking().csr).await.unwrap_err();
    assert_eq!((got.status, &*got.kind), (400, "field.invalid"));
    assert!(got.message.contains("1 to 255 letters") && got.message.contains("--name"), "{}", got.message);
    fleet.enrol(&good, "web-1", &asking().csr).await.unwrap();
}

/// Asks as if from an address that a test on loopback cannot have.
async fn enrol_from(fleet: &Fleet, from: &str, token: &str, name: &str) -> Result<Uuid, (u16, &'static str)> {
    let Asking { csr, .. } = asking();
    let request = EnrollRequest { token: token.into(), csr, seal_key: [7; 32], name: name.into() };
    let answer = fleet.parts().enrolment.enrol(from.parse().unwrap(), request).await;
    answer.map(|answer| answer.node).map_err(|error| (error.status(), error.kind.name()))
}

#[tokio::test]
async fn s27_s29_many_who_guess_keep_nobody_out() {
    let limits = GuessLimits { of_one_network: 5, of_all: 8, refill_s: 3 };
    let fleet = Fleet::start_with(|options| options.guesses = limits).await;
    let (good, spent) = (fleet.token(json!({"uses": 10})).await, fleet.token(json!({})).await);
    let (unknown, other) =
        (format!("{}.{}", "0".repeat(16), "0".repeat(64)), format!("{}.{}", "f".repeat(16), "0".repeat(43)));
    enrol_from(&fleet, "[2001:db8::1]:1", &spent, "web-0").await.unwrap();
    // One site with as many addresses as it likes has the measure of one.
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
    // All together have had theirs: what is no good is not told so, and what is good joins.
    let revision = fleet.revision().await;
    for (from, token) in [("10.0.0.4:1", &unknown), ("10.0.0.5:1", &other), ("10.0.0.6:1", &spent)] {
        assert_eq!(enrol_from(&fleet, from, token, "web-1").await, Err((503, "server.busy")), "{from}");
    }
    assert_eq!(fleet.revision().await, revision, "nothing is written");
    assert_eq!(fleet.rejected("token_guesses"), 5);
    enrol_from(&fleet, "10.0.0.7:1", &good, "web-1").await.unwrap();
    let body = encode(&EnrollRequest { token: other, csr: asking().csr, seal_key: [7; 32], name: "web-2".into() });
    let answer = send(&mut fleet.stranger(), Method::POST, "/agent/v1/enroll", body).await;
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (503, "10"));
    fleet.enrol(&good, "web-2", &asking().csr).await.unwrap();
}

#[tokio::test]
async fn what_is_over_is_forgotten_and_nothing_else() {
    let fleet = Fleet::start().await;
    let parts = fleet.parts();
    let forget =
        async || forget::forget(parts.registry.store().as_ref(), &parts.identities, parts.registry.now()).await;
    // A sweep commits to the store alone, and the cache follows by its watch.
    let tokens = async || {
        let head = parts.registry.store().head().await.unwrap();
        parts.registry.cache().reached(head).await;
        token::list(&parts.registry.cache().model(), &[]).len()
    };
    let (stays, goes) = (fleet.join("web-1").await, fleet.join("web-2").await);
    fleet.token(json!({"ttl_seconds": 7 * DAY_S})).await;
    fleet.token(json!({})).await;
    assert_eq!((forget().await.unwrap(), tokens().await), (0, 4));
    fleet.clock.forward(DAY_S - 60);
    assert_eq!((forget().await.unwrap(), tokens().await), (0, 4), "what ended is still shown for a day");
    fleet.clock.forward(120);
    assert_eq!((forget().await.unwrap(), tokens().await), (2, 2), "those that were spent");
    fleet.clock.forward(30 * 60);
    assert_eq!((forget().await.unwrap(), tokens().await), (1, 1), "the one that expired");
    delete_node(&fleet, goes.node).await;
    fleet.clock.forward(29 * DAY_S);
    assert_eq!((forget().await.unwrap(), tokens().await), (1, 0), "the one that expired late");
    let record = async |node: Uuid| {
        let snapshot = parts.registry.store().snapshot().await.unwrap();
        snapshot.get(agent_key(node).as_bytes()).await.unwrap()
    };
    assert!(record(goes.node).await.is_some(), "its certificate can still be shown to renew");
    fleet.clock.forward(2 * DAY_S);
    let revision = fleet.revision().await;
    assert_eq!(forget().await.unwrap(), 1);
    assert_eq!((record(goes.node).await, record(stays.node).await.is_some()), (None, true));
    let keys = parts.registry.store().snapshot().await.unwrap().list(&Query::prefix(KEYS)).await.unwrap().entries;
    assert_eq!(keys.len(), 1, "the key of what is gone is nobody's");
    assert_eq!(keys[0].value, stays.node.to_string());
    wait_until(|| parts.identities.over(u64::MAX, 10).is_empty()).await;
    assert!(parts.identities.is_enrolled(stays.node));
    assert_eq!(fleet.revision().await, revision + 1);
    assert_eq!((forget().await.unwrap(), fleet.revision().await), (0, revision + 1), "nothing to drop writes nothing");
}

#[tokio::test]
async fn every_certificate_stays_on_record_and_a_node_is_given_only_so_many() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let csr = asking().csr;
    for _ in 1..256 {
        host.renew(&csr).await.unwrap();
    }
    let revision = fleet.revision().await;
    let got = host.renew(&csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (429, "certificate.too_many"));
    assert_eq!(got.message, "the node has 256 certificates that are not over, and is given no more");
    assert_eq!((fleet.revision().await, fleet.rejected("certificate.too_many")), (revision, 1));
    assert!(host.check_in(0).await.is_ok(), "all else goes on");
    let snapshot = fleet.parts().registry.store().snapshot().await.unwrap();
    let bytes = snapshot.get(agent_key(host.node).as_bytes()).await.unwrap().unwrap();
    let stored: Value = serde_json::from_slice(&bytes.value).unwrap();
    assert_eq!(stored["record"]["certificates"].as_array().unwrap().len(), 256);
}

#[tokio::test]
async fn s30_names_are_told_to_good_tokens_alone() {
    let fleet = Fleet::start().await;
    fleet.join("web-1").await;
    let used = fleet.token(json!({})).await;
    fleet.enrol(&used, "web-2", &asking().csr).await.unwrap();
    for name in ["web-1", "free", "not a name"] {
        assert_eq!(fleet.enrol(&used, name, &asking().csr).await.unwrap_err(), no_good(), "{name}");
    }
    let good = fleet.token(json!({})).await;
    let got = fleet.enrol(&good, "web-1", &asking().csr).await.unwrap_err();
    assert_eq!(
        (got.status, got.message.as_str()),
        (409, "the name 'web-1' is taken: a token that is bound to neither node nor group takes over no node")
    );
    assert_eq!(fleet.enrol(&good, "validate", &asking().csr).await.unwrap_err().status, 400);
    fleet.enrol(&good, "free", &asking().csr).await.unwrap();
}

#[tokio::test]
async fn y04_a_host_joins_by_no_name_that_is_not_its_own_or_that_a_command_reads_otherwise() {
    let fleet = Fleet::start().await;
    let good = fleet.token(json!({})).await;
    for name in ["--help", "-x", "x.", "localhost", "LocalHost", "Detail"] {
        let got = fleet.enrol(&good, name, &asking().csr).await.unwrap_err();
        assert_eq!((got.status, got.kind.as_str()), (400, "field.invalid"), "{name}: {}", got.message);
        assert!(got.message.ends_with("; join with --name and another name"), "{}", got.message);
    }
    // A node of Ironic's clients is called as they like, and its host takes it over.
    let node = make_node(&fleet, "dot.").await;
    let bound = fleet.token(json!({"node": "dot."})).await;
    assert_eq!(fleet.enrol(&bound, "dot.", &asking().csr).await.unwrap().node, node);
    fleet.enrol(&good, "dot", &asking().csr).await.unwrap();
}

#[tokio::test]
async fn a_token_is_shown_without_its_secret_and_taken_back() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({"uses": 3, "mode": "noop"})).await;
    let (id, secret) = token.split_once('.').unwrap();
    let listed = Value::from(token::list(&fleet.parts().registry.cache().model(), &[]));
    assert!(!listed.to_string().contains(secret));
    let shown = &listed[0];
    assert_eq!((&shown["id"], &shown["uses_left"], &shown["mode"]), (&json!(id), &json!(3), &json!("noop")));
    let bytes = std::fs::read(fleet.directory.path().join("data/store.redb")).unwrap();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "the secret is nowhere at rest");
    fleet::delete_token(&fleet, id).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &asking().csr).await.unwrap_err(), no_good());
    for (body, message) in [
        (json!({"usess": 1}), "Unknown attribute for join token: 'usess': is no field here (did you mean \"uses\"?)"),
        (json!({"uses": 0}), "uses is 0, and may be 1 to 100000"),
        (json!({"ttl_seconds": 9_999_999}), "ttl_seconds is 9999999, and may be 1 to 2592000"),
        (json!({"node": "nobody"}), "there is no node 'nobody'"),
        (json!({"nodegroup": "a/b"}), "there is no nodegroup 'a/b'"),
    ] {
        let error = token::create(&fleet.parts().registry, &admin(), &body).await.unwrap_err();
        assert!(error.message.contains(message), "{body}: {}", error.message);
    }
}

/// A join that took over a node named none in the audit, and neither did a second answer.
#[tokio::test]
async fn each_join_is_audited_with_its_token_its_node_and_its_certificate() {
    let fleet = Fleet::start().await;
    make_node(&fleet, "web-1").await;
    let (bound, free, own) = (fleet.token(json!({"node": "web-1"})).await, fleet.token(json!({})).await, asking());
    for _ in 0..2 {
        fleet.enrol(&bound, "web-1", &own.csr).await.unwrap();
    }
    fleet.enrol(&free, "web-2", &asking().csr).await.unwrap();
    for (token, name, actions) in [(&bound, "web-1", &["unchanged"; 2][..]), (&free, "web-2", &["created"])] {
        for query in [format!("principal={}", holder(token)), format!("principal={}&object=node/{name}", holder(token))]
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
