//! Credentials of principals: how they are issued, checked and revoked.

use hyper::Method;
use serde_json::{Value, json};

use crate::fleet::{Fleet, TIMEOUT, new_request, private_key};
use crate::principals::clients::{
    ClientCertificate, JSON, client_with_certificate, create_principal, create_token, csr, pem, restart, root_client, send,
    stranger,
};

#[tokio::test]
async fn last_admin_and_cluster_with_principals_cannot_be_deleted() {
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    for (method, path, body) in [
        (Method::DELETE, "/v1/principals/admin", Value::Null),
        (Method::PATCH, "/v1/principals/admin", json!({"role": "operator"})),
        (Method::PATCH, "/v1/principals/admin", json!({"cluster": "prod"})),
    ] {
        let (status, told) = fleet.request(method, path, &body).await;
        assert_eq!((status, &told["error"]["type"]), (409, &json!("object.in_use")), "{body}: {told}");
        assert!(told["error"]["message"].as_str().unwrap().contains("the last admin"), "{told}");
    }
    let mut otto = create_principal(&fleet, "otto", "admin", Some("prod")).await;
    let (status, told) = fleet.request(Method::DELETE, "/v1/clusters/prod", &Value::Null).await;
    assert_eq!(status, 409, "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains("principal otto"), "{told}");
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/admin", &Value::Null).await;
    assert_eq!(status, 409, "an admin of a cluster is none of the fleet");
    let mut ada = create_principal(&fleet, "ada", "admin", None).await;
    assert_eq!(send(&mut otto, "GET", "/v1/nodes", &[], "").await.status, 200);
    let told = send(&mut ada, "DELETE", "/v1/principals/admin", &[], "").await;
    assert_eq!(told.status, 204, "{}", told.body);
    let told = send(&mut fleet.admin_client(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (403, "auth.revoked"), "its certificate went with it");
    let body = json!({"name": "admin", "role": "admin"}).to_string();
    assert_eq!(send(&mut ada, "POST", "/v1/principals", &[JSON], &body).await.status, 201);
    let told = send(&mut fleet.admin_client(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!(told.kind, "auth.revoked", "and does not come back with another of its name");
}

#[tokio::test]
async fn admin_without_credentials_does_not_count_as_last() {
    let fleet = Fleet::start().await;
    let (status, _) = fleet.request(Method::POST, "/v1/principals", &json!({"name": "ada", "role": "admin"})).await;
    assert_eq!(status, 201);
    let (status, told) = fleet.request(Method::DELETE, "/v1/principals/admin", &Value::Null).await;
    assert_eq!((status, &told["error"]["type"]), (409, &json!("object.in_use")), "{told}");
    let mut ada = ClientCertificate::issue(&fleet, "ada", None).await.client(&fleet);
    let told = send(&mut ada, "DELETE", "/v1/principals/admin", &[], "").await;
    assert_eq!(told.status, 204, "{}", told.body);
}

#[tokio::test]
async fn last_two_admins_cannot_be_removed_concurrently() {
    let fleet = Fleet::start().await;
    let admin = |name: &str| json!({"name": name, "role": "admin"}).to_string();
    let (mut one, mut two) = (root_client(&fleet), root_client(&fleet));
    for name in ["ada", "bob"] {
        drop(create_principal(&fleet, name, "admin", None).await);
    }
    assert_eq!(send(&mut one, "DELETE", "/v1/principals/admin", &[], "").await.status, 204);
    for _ in 0..10 {
        let (ada, bob) = tokio::join!(
            send(&mut one, "DELETE", "/v1/principals/ada", &[], ""),
            send(&mut two, "PATCH", "/v1/principals/bob", &[JSON], "{\"role\": \"viewer\"}"),
        );
        let mut statuses = [ada.status, bob.status];
        statuses.sort_unstable();
        assert!(matches!(statuses, [200 | 204, 409]), "{} {}", ada.body, bob.body);
        if ada.status == 204 {
            assert_eq!(send(&mut one, "POST", "/v1/principals", &[JSON], &admin("ada")).await.status, 201);
            let wanted = json!({"principal": "ada", "csr": csr()}).to_string();
            assert_eq!(send(&mut one, "POST", "/v1/certificates", &[JSON], &wanted).await.status, 201);
        } else {
            let again = send(&mut one, "PATCH", "/v1/principals/bob", &[JSON], "{\"role\": \"admin\"}").await;
            assert_eq!(again.status, 200, "{}", again.body);
        }
    }
}

#[tokio::test]
async fn revoked_certificate_closes_own_connection() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let (mut client, serial) = client_with_certificate(&fleet, "vera").await;
    let (mut other, _) = client_with_certificate(&fleet, "vera").await;
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &[], "").await.status, 200);
    assert_eq!(send(&mut other, "GET", "/v1/nodes", &[], "").await.status, 200);
    let (status, told) = fleet.request(Method::DELETE, &format!("/v1/certificates/{serial}"), &Value::Null).await;
    assert_eq!(status, 204, "{told}");
    // This request opens a new connection, because the previous one was closed.
    let told = send(&mut client, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (403, "auth.revoked"));
    assert_eq!(send(&mut other, "GET", "/v1/nodes", &[], "").await.status, 200, "the other one is good");
    let open = send(&mut client, "GET", "/healthz", &[], "").await;
    assert_eq!(open.status, 200, "what is open to all is open to it");
    let listed = fleet.read("/v1/certificates").await;
    let revoked = listed["certificates"].as_array().unwrap().iter().filter(|one| !one["revoked_at"].is_null()).count();
    assert_eq!(revoked, 1);
    fleet.wait_until_audited("vera", "auth.revoked", 1).await;
    fleet.clock.advance(91 * 24 * 3600);
    let told = send(&mut other, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (401, "auth.required"), "it has ended while its connection was open");
}

#[tokio::test]
async fn principal_requests_own_certificate_and_admin_any() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let plain = csr();
    for (body, status, kind) in [
        (json!({"csr": plain}), 201, ""),
        (json!({"csr": csr(), "principal": "otto"}), 201, ""),
        (json!({"csr": csr(), "principal": "vera"}), 403, "auth.forbidden"),
        (json!({"csr": "no request"}), 400, "csr.invalid"),
        (json!({"csr": csr(), "ttl_seconds": 0}), 400, "field.invalid"),
        (json!({"csr": csr(), "ttl_seconds": 400 * 24 * 3600}), 400, "field.invalid"),
    ] {
        let told = send(&mut otto, "POST", "/v1/certificates", &[JSON], &body.to_string()).await;
        assert_eq!((told.status, &*told.kind), (status, kind), "{}", told.body);
    }
}

#[tokio::test]
async fn certificate_lifetime_is_capped_when_caller_is_not_admin() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    let day = 24 * 3600;
    let longer = json!({"csr": csr(), "ttl_seconds": 91 * day}).to_string();
    let told = send(&mut otto, "POST", "/v1/certificates", &[JSON], &longer).await;
    assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "{}", told.body);
    assert!(told.body.to_string().contains("longer than the one that requests it"), "{}", told.body);
    let (token, _) = create_token(&fleet, "otto").await;
    let by_token = [("x-auth-token", &*token), JSON];
    let body = json!({"csr": csr()}).to_string();
    let told = send(&mut stranger(&fleet), "POST", "/v1/certificates", &by_token, &body).await;
    assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "{}", told.body);
    // A certificate of one day cannot produce one of two days.
    let mut short = ClientCertificate::issue(&fleet, "otto", Some(day)).await.client(&fleet);
    for (ttl_s, status) in [(day, 201), (day + 1, 403)] {
        let body = json!({"csr": csr(), "principal": "otto", "ttl_seconds": ttl_s}).to_string();
        let told = send(&mut short, "POST", "/v1/certificates", &[JSON], &body).await;
        assert_eq!(told.status, status, "{}", told.body);
    }
    // An admin may request any lifetime.
    let body = json!({"csr": csr(), "principal": "otto", "ttl_seconds": 365 * day});
    let (status, told) = fleet.request(Method::POST, "/v1/certificates", &body).await;
    assert_eq!(status, 201, "{told}");
}

#[tokio::test]
async fn renewed_certificate_closes_old_within_hour() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    let asking = new_request();
    let body = json!({"csr": pem::encode("CERTIFICATE REQUEST", &asking.csr)}).to_string();
    let told = send(&mut otto, "POST", "/v1/certificates", &[JSON], &body).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let mut renewed = ClientCertificate::read(&told.body, private_key(&asking.key)).client(&fleet);
    assert_eq!(send(&mut otto, "GET", "/v1/nodes", &[], "").await.status, 200, "the answer may have been lost");
    fleet.clock.advance(3601);
    let told = send(&mut otto, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (403, "auth.revoked"));
    assert_eq!(send(&mut renewed, "GET", "/v1/nodes", &[], "").await.status, 200);
}

#[tokio::test]
async fn certificate_dry_run_issues_nothing() {
    let fleet = Fleet::start().await;
    let revision = fleet.last_revision().await;
    let body = json!({"csr": csr(), "principal": "admin"});
    let (status, told) = fleet.request(Method::POST, "/v1/certificates?dry_run=true", &body).await;
    assert_eq!((status, &told["serial"], told.get("certificate")), (201, &Value::Null, None), "{told}");
    assert!(!told.to_string().contains("BEGIN CERTIFICATE"), "{told}");
    assert_eq!(fleet.last_revision().await, revision);
}

#[tokio::test]
async fn revocation_survives_restart() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let (revoked, kept) =
        (ClientCertificate::issue(&fleet, "vera", None).await, ClientCertificate::issue(&fleet, "vera", None).await);
    let (token, id) = create_token(&fleet, "vera").await;
    for path in [format!("/v1/certificates/{}", revoked.serial), format!("/v1/principals/vera/tokens/{id}")] {
        let (status, told) = fleet.request(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(status, 204, "{told}");
    }
    let fleet = restart(fleet).await;
    let told = send(&mut revoked.client(&fleet), "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (403, "auth.revoked"));
    let told = send(&mut stranger(&fleet), "GET", "/v1/nodes", &[("x-auth-token", &token)], "").await;
    assert_eq!(told.status, 401);
    assert_eq!(send(&mut kept.client(&fleet), "GET", "/v1/nodes", &[], "").await.status, 200);
}

#[tokio::test]
async fn token_selects_principal_and_secret_is_not_stored() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let (token, id) = create_token(&fleet, "robot").await;
    let (shown, secret) = (format!("Bearer {token}"), token.split_once('.').unwrap().1);
    let mut client = stranger(&fleet);
    for header in [("authorization", shown.as_str()), ("x-auth-token", &*token)] {
        assert_eq!(send(&mut client, "GET", "/v1/nodes", &[header], "").await.status, 200, "{}", header.0);
        let told = send(&mut client, "POST", "/v1/nodes", &[header, JSON], "{}").await;
        assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "S40: a viewer writes nothing");
    }
    fleet.wait_until_audited("robot", "auth.forbidden", 2).await;
    let shown = fleet.read("/v1/principals/robot").await.to_string();
    let stored = std::fs::read(fleet.directory.path().join("data/store.redb")).unwrap();
    let holds = |bytes: &[u8]| stored.windows(bytes.len()).any(|window| window == bytes);
    assert!(!shown.contains(secret) && !holds(secret.as_bytes()) && holds(id.as_bytes()), "the secret is kept nowhere");
    let empty = json!({"secret_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"});
    let (status, told) = fleet.request(Method::POST, "/v1/principals/robot/tokens", &empty).await;
    assert_eq!((status, &told["error"]["field"]), (400, &json!("secret_sha256")), "the hash of nothing: {told}");
}

/// Regression: next to an admin's certificate such a header was ignored, and the request had the admin's rights.
#[tokio::test]
async fn x04_malformed_token_is_rejected_despite_certificate() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    drop(create_principal(&fleet, "rita", "viewer", None).await);
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let ((token, _), (other, _)) = (create_token(&fleet, "robot").await, create_token(&fleet, "rita").await);
    let (auth, named) = ("authorization", "x-auth-token");
    let [basic, bearer_tab, bearer] = [format!("Basic {token}"), format!("Bearer\t{token}"), format!("Bearer {token}")];
    for (headers, status) in [
        (&[(auth, &*basic)][..], 401),
        (&[(auth, &*token)], 401),
        (&[(auth, &*bearer_tab)], 401),
        (&[(auth, "Bearer")], 401),
        (&[(auth, "")], 401),
        (&[(named, "")], 401),
        (&[(named, " ")], 401),
        (&[(auth, &*bearer), (named, &*other)], 401),
        (&[(auth, &*bearer)], 403),
        (&[(named, &*token)], 403),
        (&[(auth, "Basic YTpi")], 201),
        (&[], 201),
    ] {
        let headers: Vec<_> = headers.iter().copied().chain([JSON]).collect();
        let told = send(&mut admin, "POST", "/v1/nodes", &headers, r#"{"driver": "fake-hardware"}"#).await;
        assert_eq!(told.status, status, "{headers:?}: {}", told.body);
    }
}

#[tokio::test]
async fn wrong_tokens_are_throttled_and_audited_without_delaying_good() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let ((token, id), mut client) = (create_token(&fleet, "robot").await, stranger(&fleet));
    let secret = token.split_once('.').unwrap().1;
    for wrong in [format!("{id}.wrong"), "nothing".to_owned(), format!("0.{secret}")] {
        let told = send(&mut client, "GET", "/v1/nodes", &[("x-auth-token", &wrong)], "").await;
        assert_eq!((told.status, &*told.kind), (401, "auth.required"), "{wrong}");
        assert!(!told.body.to_string().contains(&wrong), "nothing of it is repeated");
    }
    fleet.wait_until_audited(&format!("token/{id}"), "auth.required", 1).await;
    fleet.wait_until_audited("nobody", "auth.required", 2).await;
    let (mut paced, guess) = (0, format!("{}.{secret}", "0".repeat(16)));
    for _ in 0..40 {
        paced += u32::from(send(&mut client, "GET", "/v1/nodes", &[("x-auth-token", &guess)], "").await.status == 503);
    }
    assert!(paced >= 10, "{paced}");
    assert!(fleet.refused_count("token_guesses") >= u64::from(paced));
    let good = [("x-auth-token", &*token)];
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &good, "").await.status, 200, "a good one is served beside them");
}

/// Regression: after some requests with a malformed token or a join token, a script got 503. So did every client at its
/// address whose token had expired.
#[tokio::test]
async fn y09_malformed_principal_token_is_not_counted() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let ((token, id), mut client) = (create_token(&fleet, "robot").await, stranger(&fleet));
    let to_join = fleet.create_token(json!({"uses": 1})).await;
    let others = [
        format!("{token},"),
        format!("{token}x"),
        token[..20].to_owned(),
        token[..40].to_owned(),
        format!("token={token}"),
        format!("{id}.hunter2"),
        "no-token-at-all".to_owned(),
    ];
    for wrong in others.iter().chain([&to_join]).cycle().take(40) {
        let told = send(&mut client, "GET", "/v1/nodes", &[("x-auth-token", wrong)], "").await;
        assert_eq!((told.status, &*told.kind), (401, "auth.required"), "{wrong}");
        assert!(!told.body.to_string().contains(&**wrong), "nothing of it is repeated");
        let says_so = told.body.to_string().contains("it is a join token for hosts");
        assert_eq!(says_so, *wrong == to_join, "{}", told.body);
    }
    assert_eq!(fleet.refused_count("token_guesses"), 0);
    fleet.enrol(&to_join, "web-1", &new_request().csr).await.unwrap();
}

#[tokio::test]
async fn token_ends_when_revoked_or_expired() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let ((token, id), mut client) = (create_token(&fleet, "robot").await, stranger(&fleet));
    let good = [("x-auth-token", &*token)];
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &good, "").await.status, 200);
    let (status, _) = fleet.request(Method::DELETE, &format!("/v1/principals/robot/tokens/{id}"), &Value::Null).await;
    assert_eq!(status, 204);
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &good, "").await.status, 401, "revoked");
    let (other, _) = create_token(&fleet, "robot").await;
    let good = [("x-auth-token", &*other)];
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &good, "").await.status, 200);
    fleet.clock.advance(3600);
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &good, "").await.status, 401, "ended");
    let audit = fleet.read("/v1/audit?object=principal/robot").await;
    let parts: Vec<&Value> = audit["audit"].as_array().unwrap().iter().map(|one| &one["objects"][0]["part"]).collect();
    assert_eq!(parts[2..4], [&json!(format!("tokens.{id}")); 2], "made and taken back: {audit}");
    let done: Vec<&Value> = audit["audit"].as_array().unwrap().iter().map(|one| &one["objects"][0]["part_action"]).collect();
    assert_eq!(done[2..4], [&json!("made"), &json!("revoked")], "{audit}");
}

/// Regression: credentials from an admin of a cluster, or made with its credentials, were valid for the whole fleet as
/// soon as their principal was.
#[tokio::test]
async fn x04_f10_widened_rights_drop_credentials_made_by_lesser_principals() {
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "own"}])).await;
    let mut ada = create_principal(&fleet, "ada", "admin", Some("own")).await;
    // Created by the first admin, so nothing of it has to end.
    let mut kept = create_principal(&fleet, "carol", "operator", Some("own")).await;
    let asking_of_ada = new_request();
    let of_carol = |csr: &[u8]| json!({"principal": "carol", "csr": pem::encode("CERTIFICATE REQUEST", csr)}).to_string();
    let wanted = of_carol(&asking_of_ada.csr);
    let told = send(&mut ada, "POST", "/v1/certificates", &[JSON], &wanted).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let of_ada = ClientCertificate::read(&told.body, private_key(&asking_of_ada.key));
    let told = send(&mut ada, "POST", "/v1/principals/carol/tokens", &[JSON], "{}").await;
    assert_eq!(told.status, 201, "{}", told.body);
    let (token, token_id) = (told.body["token"].as_str().unwrap().to_owned(), told.body["id"].as_str().unwrap());
    // Ada uses carol's certificate. What it creates counts as created by ada too.
    let asking_again = new_request();
    let wanted = of_carol(&asking_again.csr);
    let told = send(&mut of_ada.client(&fleet), "POST", "/v1/certificates", &[JSON], &wanted).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let laundered = ClientCertificate::read(&told.body, private_key(&asking_again.key));

    let grow = json!({"role": "admin", "cluster": null});
    let mut expected = vec![
        format!("certificates.{}", of_ada.serial),
        format!("certificates.{}", laundered.serial),
        format!("tokens.{token_id}"),
    ];
    expected.sort();
    let ended = |told: &Value| {
        let changes = told["changes"].as_array().unwrap().iter().filter(|change| change["old"] == "good");
        let mut fields: Vec<String> = changes.map(|change| change["field"].as_str().unwrap().to_owned()).collect();
        fields.sort();
        fields
    };
    let (status, tried) = fleet.request(Method::PATCH, "/v1/principals/carol?dry_run=true", &grow).await;
    assert_eq!((status, ended(&tried)), (200, expected.clone()), "{tried}");
    for one in [&of_ada, &laundered] {
        assert_eq!(send(&mut one.client(&fleet), "GET", "/v1/nodes", &[], "").await.status, 200, "it was tried out");
    }
    // An admin of the cluster has the rights that ada has, so nothing ends.
    let (status, told) = fleet.request(Method::PATCH, "/v1/principals/carol", &json!({"role": "admin"})).await;
    assert_eq!((status, ended(&told)), (200, Vec::<String>::new()), "{told}");
    let (status, told) = fleet.request(Method::PATCH, "/v1/principals/carol", &grow).await;
    assert_eq!((status, ended(&told)), (200, expected), "{told}");
    for one in [&of_ada, &laundered] {
        let told = send(&mut one.client(&fleet), "GET", "/v1/nodes", &[], "").await;
        assert_eq!((told.status, &*told.kind), (403, "auth.revoked"));
    }
    let told = send(&mut stranger(&fleet), "GET", "/v1/nodes", &[("x-auth-token", &token)], "").await;
    assert_eq!(told.status, 401);
    let told = send(&mut kept, "GET", "/v1/principals", &[], "").await;
    assert_eq!(told.status, 200, "{}", told.body);
    let audit = fleet.read("/v1/audit?object=principal/carol&sort_dir=desc&limit=1").await;
    let part = audit["audit"][0]["objects"][0]["part"].as_str().unwrap_or_default();
    assert!(part.contains(&of_ada.serial) && part.contains(&laundered.serial) && part.contains(token_id), "{audit}");
}

/// Reads as root.
async fn read_as_root(fleet: &Fleet, path: &str) -> Value {
    let told = send(&mut root_client(fleet), "GET", path, &[], "").await;
    assert_eq!(told.status, 200, "{path}: {}", told.body);
    told.body
}

/// Returns whether the controller reports a suspect clock, in its metrics and in a finding of the fleet and of a
/// cluster.
async fn is_clock_suspect(fleet: &Fleet) -> bool {
    let mut said = Vec::new();
    for path in ["/v1/fleet", "/v1/clusters/prod/validate"] {
        let body = read_as_root(fleet, path).await;
        said.push(body["findings"].as_array().unwrap().iter().any(|finding| finding["code"] == "clock.jumped"));
    }
    let metrics = fleet.parts().metrics.text_for_cluster(None);
    let suspect = metrics.contains("\nstemma_clock_suspect 1\n");
    assert!(suspect || metrics.contains("\nstemma_clock_suspect 0\n"), "{metrics}");
    assert_eq!(said, [suspect; 2]);
    suspect
}

#[tokio::test]
async fn x04_f12_clock_jump_removes_no_credentials() {
    const AHEAD_S: i64 = 400 * 24 * 3600;
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    let token = fleet.create_token(json!({})).await;
    let path = format!("/v1/join-tokens/{}", token.split_once('.').unwrap().0);
    let before = fleet.read("/v1/principals/admin").await["certificates"][0].clone();
    assert!(!is_clock_suspect(&fleet).await);

    fleet.clock.set_offset(AHEAD_S);
    let mend = async |fleet: &Fleet| {
        let body = json!({"principal": "admin", "csr": csr()}).to_string();
        let told = send(&mut root_client(fleet), "POST", "/v1/certificates", &[JSON], &body).await;
        assert_eq!(told.status, 201, "{}", told.body);
    };
    mend(&fleet).await;
    assert!(is_clock_suspect(&fleet).await);
    fleet.clock.set_offset(0);
    let told = send(&mut fleet.admin_client(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!(told.status, 200, "the certificate of before is good: {}", told.body);
    assert!(!is_clock_suspect(&fleet).await, "it is right again");

    // Also nothing that a controller would delete at its start.
    fleet.clock.set_offset(AHEAD_S);
    assert!(is_clock_suspect(&fleet).await);
    let fleet = restart(restart(fleet).await).await;
    assert!(is_clock_suspect(&fleet).await, "after two starts");
    mend(&fleet).await;
    assert_eq!(read_as_root(&fleet, &path).await["uses_left"], 1, "the join token is there, though its time is over");
    fleet.clock.set_offset(0);
    assert!(!is_clock_suspect(&fleet).await);
    let certificates = read_as_root(&fleet, "/v1/principals/admin").await["certificates"].clone();
    assert_eq!(certificates[0], before);
    assert_eq!(certificates.as_array().unwrap().len(), 3, "and those that were made meanwhile: {certificates}");
}

#[tokio::test]
async fn x04_f12_renewal_by_suspect_clock_keeps_own_end() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    let before = fleet.read("/v1/principals/otto").await["certificates"][0].clone();
    fleet.clock.set_offset(10 * 24 * 3600);
    let told = send(&mut otto, "POST", "/v1/certificates", &[JSON], &json!({"csr": csr()}).to_string()).await;
    assert_eq!(told.status, 201, "{}", told.body);
    fleet.clock.set_offset(0);
    let after = fleet.read("/v1/principals/otto").await["certificates"].clone();
    assert_eq!((&after[0], after.as_array().unwrap().len()), (&before, 2), "{after}");
}

#[tokio::test]
async fn x04_f12_expired_credential_is_hidden_and_in_metrics_for_month() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let (_, id) = create_token(&fleet, "robot").await;
    let told = |what: &str| fleet.parts().metrics.text_for_cluster(None).contains(what);
    let of_token = format!("id=\"{id}\"");
    assert!(told(&of_token));
    for (days, is_told) in [(1, true), (29, true), (2, false)] {
        fleet.clock.advance(days * 24 * 3600);
        let shown = read_as_root(&fleet, "/v1/principals/robot").await["tokens"].clone();
        assert_eq!((shown, told(&of_token)), (json!([]), is_told), "{days} more days");
    }
    // The clock is set by far more than that. The credentials that end by it are still exported.
    let certificate = "stemma_credential_end_seconds{principal=\"robot\",kind=\"certificate\"";
    assert!(told(certificate));
    fleet.clock.set_offset(400 * 24 * 3600);
    assert!(told(certificate) && told(&of_token));
}

#[tokio::test]
async fn root_socket_repairs_lost_admin() {
    let fleet = Fleet::start().await;
    let mut root = root_client(&fleet);
    assert_eq!(send(&mut root, "GET", "/v1/nodes", &[], "").await.status, 200);
    let asking = new_request();
    let body = json!({"principal": "admin", "csr": pem::encode("CERTIFICATE REQUEST", &asking.csr)}).to_string();
    let told = send(&mut root, "POST", "/v1/certificates", &[JSON], &body).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let mut mended = ClientCertificate::read(&told.body, private_key(&asking.key)).client(&fleet);
    assert_eq!(send(&mut mended, "GET", "/v1/principals/admin", &[], "").await.body["role"], "admin");
    let audit = fleet.read("/v1/audit?principal=root").await;
    assert_eq!(audit["audit"][0]["address"], "unix", "{audit}");
    tokio::time::timeout(TIMEOUT, fleet.controller.stop()).await.unwrap();
}

/// Regression: connections were counted by address only. One viewer got three quarters of all from one address, and all
/// from two.
#[tokio::test]
async fn x03_connections_are_limited_by_certificate_and_token() {
    let fleet = Fleet::start_with(|options| options.admin_limits.max_connections_per_principal = Some(2)).await;
    let mut first = create_principal(&fleet, "vera", "viewer", None).await;
    let (mut second, _) = client_with_certificate(&fleet, "vera").await;
    let (token, _) = create_token(&fleet, "vera").await;
    for client in [&mut first, &mut second] {
        assert_eq!(send(client, "GET", "/v1/nodes", &[], "").await.status, 200);
    }
    let reason = "too_many_connections_of_one_principal";
    let before = fleet.refused_count(reason);
    let mut by_token = stranger(&fleet);
    let told = send(&mut by_token, "GET", "/v1/nodes", &[("x-auth-token", &token)], "").await;
    assert_eq!(told.status, 200, "its oldest connection has made room: {}", told.body);
    assert!(fleet.refused_count(reason) > before);
    let (mut third, _) = client_with_certificate(&fleet, "vera").await;
    let before = fleet.refused_count(reason);
    assert_eq!(send(&mut third, "GET", "/v1/nodes", &[], "").await.status, 200);
    assert!(fleet.refused_count(reason) > before);
}
