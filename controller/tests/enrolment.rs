//! What enrolment refuses (docs/trust.md, S20 to S25, S30), and that a token burns exactly when it made something.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;

use std::sync::Arc;
use std::time::Duration;

use fleet::{Asking, Fleet, Refused, admin, asking, call, check_in, refused, send};
use hyper::Method;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P384_SHA384, SanType,
};
use serde_json::{Value, json};
use stemma_controller::agents::desired::{Batch, Change};
use stemma_controller::enrol::{GuessLimits, token};
use stemma_controller::registry::work::Work;
use stemma_controller::registry::{Answer, Decision};
use stemma_core::name::NodeName;
use stemma_core::object::NodeSpec;
use stemma_wire::message::Revision;
use stemma_wire::message::checkin::CheckInAnswer;
use stemma_wire::message::encode;
use stemma_wire::message::enroll::EnrollRequest;
use uuid::Uuid;

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
    token::get(&fleet.parts().registry, id).unwrap()["uses_left"].clone()
}

#[tokio::test]
async fn s20_a_used_token_is_worth_nothing() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({})).await;
    fleet.enrol(&token, "web-1", &asking().csr).await.unwrap();
    let revision = fleet.revision();
    assert_eq!(fleet.enrol(&token, "web-2", &asking().csr).await.unwrap_err(), no_good());
    assert_eq!(fleet.revision(), revision, "nothing is written");
    let two = fleet.token(json!({"uses": 2})).await;
    fleet.enrol(&two, "web-2", &asking().csr).await.unwrap();
    fleet.enrol(&two, "web-3", &asking().csr).await.unwrap();
    assert_eq!(fleet.enrol(&two, "web-4", &asking().csr).await.unwrap_err(), no_good());
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
async fn s22_an_expired_token_is_worth_nothing() {
    let fleet = Fleet::start().await;
    let (usual, short) = (fleet.token(json!({})).await, fleet.token(json!({"ttl_seconds": 60})).await);
    fleet.clock.forward(61);
    assert_eq!(fleet.enrol(&short, "web-1", &asking().csr).await.unwrap_err(), no_good());
    fleet.clock.forward(30 * 60);
    assert_eq!(fleet.enrol(&usual, "web-1", &asking().csr).await.unwrap_err(), no_good());
    assert_eq!(fleet.parts().registry.cache().model().nodes.iter().count(), 0);
}

#[tokio::test]
async fn s23_a_token_bound_elsewhere_is_refused_and_not_burnt() {
    let fleet = Fleet::start().await;
    let node = make_node(&fleet, "web-1").await;
    let token = fleet.token(json!({"node": "web-1"})).await;
    let got = fleet.enrol(&token, "web-2", &asking().csr).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (403, "token.invalid"));
    assert_eq!(got.message, "the token is bound to another node than 'web-2'");
    assert_eq!(uses_left(&fleet, &token), 1);
    assert_eq!(
        fleet.enrol(&token, "web-1", &asking().csr).await.unwrap().node,
        node,
        "it takes over the node that it is bound to"
    );
    let again = fleet.token(json!({"node": "web-1"})).await;
    let got = fleet.enrol(&again, "web-1", &asking().csr).await.unwrap_err();
    assert_eq!((got.status, got.message.as_str()), (409, "the name 'web-1' is taken: that node has joined already"));
    assert_eq!(uses_left(&fleet, &again), 1);
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
    let mut other = fleet.join("web-3").await;
    assert_eq!(other.renew(&taken.csr).await.unwrap_err().kind, "csr.invalid", "renewal looks at it too");
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
    while !fleet.parts().desired.is_parked(node) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    delete_node(&fleet, node).await;
    let cut = tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("cut within a second").unwrap();
    assert_eq!(cut.unwrap_err().kind, "auth.revoked");
    assert_eq!(host.check_in(0).await.unwrap_err().kind, "auth.revoked");
    let request = stemma_wire::message::enroll::RenewRequest { csr: asking().csr };
    let got = refused(&send(&mut host.client, Method::POST, "/agent/v1/renew", encode(&request)).await);
    assert_eq!(got.kind, "auth.revoked", "nor does it renew");
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
    fleet.parts().desired.publish(Batch { revision: Revision(fleet.revision()), changes });
}

#[tokio::test]
async fn s27_guessing_is_refused_unseen_after_a_while_and_a_fleet_that_joins_is_not() {
    let fleet =
        Fleet::start_with(|options| options.guesses = GuessLimits { of_one_address: 5, ..GuessLimits::default() })
            .await;
    let good = fleet.token(json!({"uses": 100})).await;
    let id = good.split('.').next().unwrap();
    for guess in [format!("{id}.wrong"), "0000000000000000.x".into(), "nonsense".into(), String::new(), ".".into()] {
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
async fn a_token_is_shown_without_its_secret_and_taken_back() {
    let fleet = Fleet::start().await;
    let token = fleet.token(json!({"uses": 3, "mode": "noop"})).await;
    let (id, secret) = token.split_once('.').unwrap();
    let listed = token::list(&fleet.parts().registry).unwrap();
    assert!(!listed.to_string().contains(secret));
    let shown = &listed["tokens"][0];
    assert_eq!((&shown["id"], &shown["uses_left"], &shown["mode"]), (&json!(id), &json!(3), &json!("noop")));
    let bytes = std::fs::read(fleet.directory.path().join("data/store.redb")).unwrap();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "the secret is nowhere at rest");
    fleet::delete_token(&fleet, id).await.unwrap();
    assert_eq!(fleet.enrol(&token, "web-1", &asking().csr).await.unwrap_err(), no_good());
    for (body, message) in [
        (json!({"usess": 1}), "unknown field `usess`"),
        (json!({"uses": 0}), "uses is 0, and may be 1 to 100000"),
        (json!({"ttl_seconds": 9_999_999}), "ttl_seconds is 9999999, and may be 1 to 2592000"),
        (json!({"node": "nobody"}), "there is no node 'nobody'"),
        (json!({"nodegroup": "a/b"}), "there is no nodegroup 'a/b'"),
    ] {
        let error = token::create(&fleet.parts().registry, &admin(), &body).await.unwrap_err();
        assert!(error.message.contains(message), "{body}: {}", error.message);
    }
}
