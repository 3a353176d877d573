//! Credentials of principals: how they are issued, checked and revoked.

use hyper::Method;
use serde_json::{Value, json};

use crate::fleet::{Fleet, TIMEOUT, new_key_and_request, private_key};
use crate::principals::clients::{
    ClientCertificate, JSON, client_with_certificate, create_principal, create_token, csr, pem, restart, root_client, send,
    stranger,
};

/// The last admin can be neither deleted nor restricted, and a cluster that a principal is bound to cannot be deleted.
/// With a second admin, the first one can be deleted, which revokes its certificate for good.
#[tokio::test]
async fn last_admin_and_cluster_with_principals_cannot_be_deleted() {
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    for (method, path, body) in [
        (Method::DELETE, "/v1/principals/admin", Value::Null),
        (Method::PATCH, "/v1/principals/admin", json!({"role": "operator"})),
        (Method::PATCH, "/v1/principals/admin", json!({"cluster": "prod"})),
    ] {
        let (status, answer) = fleet.request(method, path, &body).await;
        assert_eq!((status, &answer["error"]["type"]), (409, &json!("object.in_use")), "{body}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("the last admin"), "{answer}");
    }
    let mut otto = create_principal(&fleet, "otto", "admin", Some("prod")).await;
    let (status, answer) = fleet.request(Method::DELETE, "/v1/clusters/prod", &Value::Null).await;
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("principal otto"), "{answer}");
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/admin", &Value::Null).await;
    assert_eq!(status, 409, "an admin of a cluster is not an admin of the fleet");
    let mut ada = create_principal(&fleet, "ada", "admin", None).await;
    assert_eq!(send(&mut otto, "GET", "/v1/nodes", &[], "").await.status, 200);
    let answer = send(&mut ada, "DELETE", "/v1/principals/admin", &[], "").await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    let answer = send(&mut fleet.admin_client(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.revoked"), "the certificate is revoked with its principal");
    let body = json!({"name": "admin", "role": "admin"}).to_string();
    assert_eq!(send(&mut ada, "POST", "/v1/principals", &[JSON], &body).await.status, 201);
    let answer = send(&mut fleet.admin_client(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!(answer.kind, "auth.revoked", "the certificate stays revoked when the name is used again");
}

/// In this test, ada is a second admin of the fleet. The first admin can be deleted only after ada has a certificate.
#[tokio::test]
async fn last_admin_check_ignores_admin_without_credentials() {
    let fleet = Fleet::start().await;
    let (status, _) = fleet.request(Method::POST, "/v1/principals", &json!({"name": "ada", "role": "admin"})).await;
    assert_eq!(status, 201);
    let (status, answer) = fleet.request(Method::DELETE, "/v1/principals/admin", &Value::Null).await;
    assert_eq!((status, &answer["error"]["type"]), (409, &json!("object.in_use")), "{answer}");
    let mut ada = ClientCertificate::issue(&fleet, "ada", None).await.client(&fleet);
    let answer = send(&mut ada, "DELETE", "/v1/principals/admin", &[], "").await;
    assert_eq!(answer.status, 204, "{}", answer.body);
}

/// The admins ada and bob are the last two. In each round, one request deletes ada while another makes bob a viewer,
/// and exactly one of the two requests succeeds. The clients use root's Unix socket, so they do not depend on the two
/// admins.
#[tokio::test]
async fn last_two_admins_cannot_be_removed_concurrently() {
    let fleet = Fleet::start().await;
    let admin_body = |name: &str| json!({"name": name, "role": "admin"}).to_string();
    let (mut first_client, mut second_client) = (root_client(&fleet), root_client(&fleet));
    for name in ["ada", "bob"] {
        drop(create_principal(&fleet, name, "admin", None).await);
    }
    assert_eq!(send(&mut first_client, "DELETE", "/v1/principals/admin", &[], "").await.status, 204);
    for _ in 0..10 {
        let (ada, bob) = tokio::join!(
            send(&mut first_client, "DELETE", "/v1/principals/ada", &[], ""),
            send(&mut second_client, "PATCH", "/v1/principals/bob", &[JSON], "{\"role\": \"viewer\"}"),
        );
        let mut statuses = [ada.status, bob.status];
        statuses.sort_unstable();
        assert!(matches!(statuses, [200 | 204, 409]), "{} {}", ada.body, bob.body);
        // The admin that was removed is restored for the next round.
        if ada.status == 204 {
            assert_eq!(send(&mut first_client, "POST", "/v1/principals", &[JSON], &admin_body("ada")).await.status, 201);
            let request = json!({"principal": "ada", "csr": csr()}).to_string();
            assert_eq!(send(&mut first_client, "POST", "/v1/certificates", &[JSON], &request).await.status, 201);
        } else {
            let answer = send(&mut first_client, "PATCH", "/v1/principals/bob", &[JSON], "{\"role\": \"admin\"}").await;
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }
}

/// One of the certificates of a principal is revoked, which closes its connection. Another one is valid until it
/// expires.
#[tokio::test]
async fn certificate_is_refused_when_revoked_or_expired() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let (mut client, serial) = client_with_certificate(&fleet, "vera").await;
    let (mut other_client, _) = client_with_certificate(&fleet, "vera").await;
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &[], "").await.status, 200);
    assert_eq!(send(&mut other_client, "GET", "/v1/nodes", &[], "").await.status, 200);
    let (status, answer) = fleet.request(Method::DELETE, &format!("/v1/certificates/{serial}"), &Value::Null).await;
    assert_eq!(status, 204, "{answer}");
    // This request opens a new connection, because the previous one was closed.
    let answer = send(&mut client, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.revoked"));
    assert_eq!(send(&mut other_client, "GET", "/v1/nodes", &[], "").await.status, 200, "the other certificate is valid");
    let health = send(&mut client, "GET", "/healthz", &[], "").await;
    assert_eq!(health.status, 200, "this path needs no rights");
    let certificate_list = fleet.read("/v1/certificates").await;
    let revoked_count = certificate_list["certificates"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|certificate| !certificate["revoked_at"].is_null())
        .count();
    assert_eq!(revoked_count, 1);
    fleet.wait_until_audited("vera", "auth.revoked", 1).await;
    fleet.clock.advance(91 * 24 * 3600);
    let answer = send(&mut other_client, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((answer.status, &*answer.kind), (401, "auth.required"), "the certificate expired while its connection was open");
}

/// An operator requests certificates: two for itself, one for another principal, and three in invalid forms.
#[tokio::test]
async fn principal_requests_certificate_only_for_itself() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    for (body, status, kind) in [
        (json!({"csr": csr()}), 201, ""),
        (json!({"csr": csr(), "principal": "otto"}), 201, ""),
        (json!({"csr": csr(), "principal": "vera"}), 403, "auth.forbidden"),
        (json!({"csr": "no request"}), 400, "csr.invalid"),
        (json!({"csr": csr(), "ttl_seconds": 0}), 400, "field.invalid"),
        (json!({"csr": csr(), "ttl_seconds": 400 * 24 * 3600}), 400, "field.invalid"),
    ] {
        let answer = send(&mut otto, "POST", "/v1/certificates", &[JSON], &body.to_string()).await;
        assert_eq!((answer.status, &*answer.kind), (status, kind), "{}", answer.body);
    }
}

#[tokio::test]
async fn certificate_lifetime_is_capped_when_caller_is_not_admin() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    let day_s = 24 * 3600;
    let longer_request = json!({"csr": csr(), "ttl_seconds": 91 * day_s}).to_string();
    let answer = send(&mut otto, "POST", "/v1/certificates", &[JSON], &longer_request).await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.forbidden"), "{}", answer.body);
    assert!(answer.body.to_string().contains("longer than the one that requests it"), "{}", answer.body);
    // A caller with a token has no certificate whose end would limit the new one, so it gets none.
    let (token, _) = create_token(&fleet, "otto").await;
    let token_headers = [("x-auth-token", &*token), JSON];
    let body = json!({"csr": csr()}).to_string();
    let answer = send(&mut stranger(&fleet), "POST", "/v1/certificates", &token_headers, &body).await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.forbidden"), "{}", answer.body);
    // A certificate of one day cannot be used to get a certificate with a later end.
    let mut day_client = ClientCertificate::issue(&fleet, "otto", Some(day_s)).await.client(&fleet);
    for (ttl_s, status) in [(day_s, 201), (day_s + 1, 403)] {
        let body = json!({"csr": csr(), "principal": "otto", "ttl_seconds": ttl_s}).to_string();
        let answer = send(&mut day_client, "POST", "/v1/certificates", &[JSON], &body).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    // An admin may request any lifetime.
    let body = json!({"csr": csr(), "principal": "otto", "ttl_seconds": 365 * day_s});
    let (status, answer) = fleet.request(Method::POST, "/v1/certificates", &body).await;
    assert_eq!(status, 201, "{answer}");
}

#[tokio::test]
async fn renewal_revokes_old_certificate_after_hour() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    let request = new_key_and_request();
    let body = json!({"csr": pem::encode("CERTIFICATE REQUEST", &request.csr)}).to_string();
    let answer = send(&mut otto, "POST", "/v1/certificates", &[JSON], &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let mut renewed_client = ClientCertificate::read(&answer.body, private_key(&request.key)).client(&fleet);
    assert_eq!(
        send(&mut otto, "GET", "/v1/nodes", &[], "").await.status,
        200,
        "the old certificate stays valid for an hour, in case the answer was lost"
    );
    fleet.clock.advance(3601);
    let answer = send(&mut otto, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.revoked"));
    assert_eq!(send(&mut renewed_client, "GET", "/v1/nodes", &[], "").await.status, 200);
}

#[tokio::test]
async fn certificate_dry_run_issues_nothing() {
    let fleet = Fleet::start().await;
    let revision = fleet.last_revision().await;
    // The request is valid, so only `dry_run` prevents a new certificate.
    let body = json!({"csr": csr(), "principal": "admin"});
    let (status, answer) = fleet.request(Method::POST, "/v1/certificates?dry_run=true", &body).await;
    assert_eq!((status, &answer["serial"], answer.get("certificate")), (201, &Value::Null, None), "{answer}");
    assert!(!answer.to_string().contains("BEGIN CERTIFICATE"), "{answer}");
    assert_eq!(fleet.last_revision().await, revision);
}

#[tokio::test]
async fn revocation_survives_restart() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let (revoked_certificate, valid_certificate) =
        (ClientCertificate::issue(&fleet, "vera", None).await, ClientCertificate::issue(&fleet, "vera", None).await);
    let (token, id) = create_token(&fleet, "vera").await;
    for path in [format!("/v1/certificates/{}", revoked_certificate.serial), format!("/v1/principals/vera/tokens/{id}")] {
        let (status, answer) = fleet.request(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(status, 204, "{answer}");
    }
    let fleet = restart(fleet).await;
    let answer = send(&mut revoked_certificate.client(&fleet), "GET", "/v1/nodes", &[], "").await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.revoked"));
    let answer = send(&mut stranger(&fleet), "GET", "/v1/nodes", &[("x-auth-token", &token)], "").await;
    assert_eq!(answer.status, 401);
    assert_eq!(send(&mut valid_certificate.client(&fleet), "GET", "/v1/nodes", &[], "").await.status, 200);
}

/// A token has the rights of its principal, a viewer, in each of two headers. The store contains the token's id but not
/// its secret. The hash of an empty secret is refused for a new token.
#[tokio::test]
async fn token_selects_principal_and_secret_is_not_stored() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let (token, id) = create_token(&fleet, "robot").await;
    let (bearer, secret) = (format!("Bearer {token}"), token.split_once('.').unwrap().1);
    let mut client = stranger(&fleet);
    for header in [("authorization", bearer.as_str()), ("x-auth-token", &*token)] {
        assert_eq!(send(&mut client, "GET", "/v1/nodes", &[header], "").await.status, 200, "{}", header.0);
        let answer = send(&mut client, "POST", "/v1/nodes", &[header, JSON], "{}").await;
        assert_eq!((answer.status, &*answer.kind), (403, "auth.forbidden"), "S40: a viewer writes nothing");
    }
    fleet.wait_until_audited("robot", "auth.forbidden", 2).await;
    let principal = fleet.read("/v1/principals/robot").await.to_string();
    let store_bytes = std::fs::read(fleet.directory.path().join("data/store.redb")).unwrap();
    let has_bytes = |bytes: &[u8]| store_bytes.windows(bytes.len()).any(|window| window == bytes);
    assert!(
        !principal.contains(secret) && !has_bytes(secret.as_bytes()) && has_bytes(id.as_bytes()),
        "the store contains the id and not the secret"
    );
    // This is the SHA-256 hash of an empty text.
    let empty = json!({"secret_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"});
    let (status, answer) = fleet.request(Method::POST, "/v1/principals/robot/tokens", &empty).await;
    assert_eq!((status, &answer["error"]["field"]), (400, &json!("secret_sha256")), "the hash of the empty secret: {answer}");
}

/// Regression: if the client also presented an admin's certificate, a malformed token header was ignored, and the
/// request had the admin's rights.
#[tokio::test]
async fn x04_malformed_token_is_rejected_despite_certificate() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    drop(create_principal(&fleet, "rita", "viewer", None).await);
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let ((token, _), (other_token, _)) = (create_token(&fleet, "robot").await, create_token(&fleet, "rita").await);
    let (authorization_header, token_header) = ("authorization", "x-auth-token");
    let [basic, bearer_tab, bearer] = [format!("Basic {token}"), format!("Bearer\t{token}"), format!("Bearer {token}")];
    // With status 401, a header looks like a token but is malformed or blank, or there are two tokens. With 403, the
    // token's viewer lacks the right. With 201, no header looks like a token, so the admin's certificate counts.
    for (headers, status) in [
        (&[(authorization_header, &*basic)][..], 401),
        (&[(authorization_header, &*token)], 401),
        (&[(authorization_header, &*bearer_tab)], 401),
        (&[(authorization_header, "Bearer")], 401),
        (&[(authorization_header, "")], 401),
        (&[(token_header, "")], 401),
        (&[(token_header, " ")], 401),
        (&[(authorization_header, &*bearer), (token_header, &*other_token)], 401),
        (&[(authorization_header, &*bearer)], 403),
        (&[(token_header, &*token)], 403),
        (&[(authorization_header, "Basic YTpi")], 201),
        (&[], 201),
    ] {
        let headers: Vec<_> = headers.iter().copied().chain([JSON]).collect();
        let answer = send(&mut admin, "POST", "/v1/nodes", &headers, r#"{"driver": "fake-hardware"}"#).await;
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
    }
}

#[tokio::test]
async fn wrong_tokens_are_throttled_and_audited_without_delaying_valid_token() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let ((token, id), mut client) = (create_token(&fleet, "robot").await, stranger(&fleet));
    let secret = token.split_once('.').unwrap().1;
    for wrong_token in [format!("{id}.wrong"), "nothing".to_owned(), format!("0.{secret}")] {
        let answer = send(&mut client, "GET", "/v1/nodes", &[("x-auth-token", &wrong_token)], "").await;
        assert_eq!((answer.status, &*answer.kind), (401, "auth.required"), "{wrong_token}");
        assert!(!answer.body.to_string().contains(&wrong_token), "the answer does not contain the token");
    }
    fleet.wait_until_audited(&format!("token/{id}"), "auth.required", 1).await;
    fleet.wait_until_audited("nobody", "auth.required", 2).await;
    // A guess has the form of a token, but its id does not exist. Too many guesses from one address get status 503.
    let (mut throttled_count, guess) = (0, format!("{}.{secret}", "0".repeat(16)));
    for _ in 0..40 {
        throttled_count += u32::from(send(&mut client, "GET", "/v1/nodes", &[("x-auth-token", &guess)], "").await.status == 503);
    }
    assert!(throttled_count >= 10, "{throttled_count}");
    assert!(fleet.refused_count("token_guesses") >= u64::from(throttled_count));
    let headers = [("x-auth-token", &*token)];
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &headers, "").await.status, 200, "a valid token is served all the same");
}

/// Regression: a malformed token or a join token counted as a guess of a principal's token. After some of these
/// requests, a client got 503, as did each client at the same address whose token had expired.
#[tokio::test]
async fn y09_malformed_principal_token_is_not_counted() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let ((token, id), mut client) = (create_token(&fleet, "robot").await, stranger(&fleet));
    let join_token = fleet.create_token(json!({"uses": 1})).await;
    // Neither a malformed token nor a join token counts as a guess. A join token is not a principal's token.
    let malformed_tokens = [
        format!("{token},"),
        format!("{token}x"),
        token[..20].to_owned(),
        token[..40].to_owned(),
        format!("token={token}"),
        format!("{id}.hunter2"),
        "no-token-at-all".to_owned(),
    ];
    for wrong_token in malformed_tokens.iter().chain([&join_token]).cycle().take(40) {
        let answer = send(&mut client, "GET", "/v1/nodes", &[("x-auth-token", wrong_token)], "").await;
        assert_eq!((answer.status, &*answer.kind), (401, "auth.required"), "{wrong_token}");
        assert!(!answer.body.to_string().contains(&**wrong_token), "the answer does not contain the token");
        let names_join_token = answer.body.to_string().contains("it is a join token for hosts");
        assert_eq!(names_join_token, *wrong_token == join_token, "{}", answer.body);
    }
    assert_eq!(fleet.refused_count("token_guesses"), 0);
    fleet.enrol(&join_token, "web-1", &new_key_and_request().csr).await.unwrap();
}

/// The first token is revoked, and the second one expires after an hour. The audit has an entry for the creation of the
/// first token and one for its revocation.
#[tokio::test]
async fn token_ends_when_revoked_or_expired() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let ((token, id), mut client) = (create_token(&fleet, "robot").await, stranger(&fleet));
    let headers = [("x-auth-token", &*token)];
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &headers, "").await.status, 200);
    let (status, _) = fleet.request(Method::DELETE, &format!("/v1/principals/robot/tokens/{id}"), &Value::Null).await;
    assert_eq!(status, 204);
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &headers, "").await.status, 401, "revoked");
    let (second_token, _) = create_token(&fleet, "robot").await;
    let headers = [("x-auth-token", &*second_token)];
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &headers, "").await.status, 200);
    fleet.clock.advance(3600);
    assert_eq!(send(&mut client, "GET", "/v1/nodes", &headers, "").await.status, 401, "expired");
    let audit = fleet.read("/v1/audit?object=principal/robot").await;
    // The entries 0 and 1 are the creation of the principal and its certificate.
    let parts: Vec<&Value> = audit["audit"].as_array().unwrap().iter().map(|entry| &entry["objects"][0]["part"]).collect();
    assert_eq!(parts[2..4], [&json!(format!("tokens.{id}")); 2], "created and revoked: {audit}");
    let part_actions: Vec<&Value> =
        audit["audit"].as_array().unwrap().iter().map(|entry| &entry["objects"][0]["part_action"]).collect();
    assert_eq!(part_actions[2..4], [&json!("made"), &json!("revoked")], "{audit}");
}

/// Regression: an admin of a cluster issued credentials for another principal of the cluster. When that principal got
/// rights for the whole fleet, these credentials had the new rights too.
#[tokio::test]
async fn x04_f10_widening_revokes_credentials_from_lesser_principals() {
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "own"}])).await;
    let mut ada = create_principal(&fleet, "ada", "admin", Some("own")).await;
    // The first admin created this principal and its certificate, so the certificate stays valid.
    let mut carol = create_principal(&fleet, "carol", "operator", Some("own")).await;
    let first_request = new_key_and_request();
    let carol_certificate_body =
        |csr: &[u8]| json!({"principal": "carol", "csr": pem::encode("CERTIFICATE REQUEST", csr)}).to_string();
    let body = carol_certificate_body(&first_request.csr);
    let answer = send(&mut ada, "POST", "/v1/certificates", &[JSON], &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let first_certificate = ClientCertificate::read(&answer.body, private_key(&first_request.key));
    let answer = send(&mut ada, "POST", "/v1/principals/carol/tokens", &[JSON], "{}").await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let (token, token_id) = (answer.body["token"].as_str().unwrap().to_owned(), answer.body["id"].as_str().unwrap());
    // Ada holds the key of carol's certificate. What is issued with this certificate counts as issued by ada too.
    let second_request = new_key_and_request();
    let body = carol_certificate_body(&second_request.csr);
    let answer = send(&mut first_certificate.client(&fleet), "POST", "/v1/certificates", &[JSON], &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let second_certificate = ClientCertificate::read(&answer.body, private_key(&second_request.key));

    let wider_rights = json!({"role": "admin", "cluster": null});
    let mut expected = vec![
        format!("certificates.{}", first_certificate.serial),
        format!("certificates.{}", second_certificate.serial),
        format!("tokens.{token_id}"),
    ];
    expected.sort();
    let revoked_credentials = |answer: &Value| {
        let changes = answer["changes"].as_array().unwrap().iter().filter(|change| change["old"] == "good");
        let mut fields: Vec<String> = changes.map(|change| change["field"].as_str().unwrap().to_owned()).collect();
        fields.sort();
        fields
    };
    let (status, dry_run_answer) = fleet.request(Method::PATCH, "/v1/principals/carol?dry_run=true", &wider_rights).await;
    assert_eq!((status, revoked_credentials(&dry_run_answer)), (200, expected.clone()), "{dry_run_answer}");
    for certificate in [&first_certificate, &second_certificate] {
        assert_eq!(
            send(&mut certificate.client(&fleet), "GET", "/v1/nodes", &[], "").await.status,
            200,
            "a dry run revokes nothing"
        );
    }
    // An admin of the cluster has the rights that ada has, so nothing ends.
    let (status, answer) = fleet.request(Method::PATCH, "/v1/principals/carol", &json!({"role": "admin"})).await;
    assert_eq!((status, revoked_credentials(&answer)), (200, Vec::<String>::new()), "{answer}");
    let (status, answer) = fleet.request(Method::PATCH, "/v1/principals/carol", &wider_rights).await;
    assert_eq!((status, revoked_credentials(&answer)), (200, expected), "{answer}");
    for certificate in [&first_certificate, &second_certificate] {
        let answer = send(&mut certificate.client(&fleet), "GET", "/v1/nodes", &[], "").await;
        assert_eq!((answer.status, &*answer.kind), (403, "auth.revoked"));
    }
    let answer = send(&mut stranger(&fleet), "GET", "/v1/nodes", &[("x-auth-token", &token)], "").await;
    assert_eq!(answer.status, 401);
    let answer = send(&mut carol, "GET", "/v1/principals", &[], "").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let audit = fleet.read("/v1/audit?object=principal/carol&sort_dir=desc&limit=1").await;
    let part = audit["audit"][0]["objects"][0]["part"].as_str().unwrap_or_default();
    assert!(
        part.contains(&first_certificate.serial) && part.contains(&second_certificate.serial) && part.contains(token_id),
        "{audit}"
    );
}

/// Reads a path through root's Unix socket, and returns the body.
async fn read_as_root(fleet: &Fleet, path: &str) -> Value {
    let answer = send(&mut root_client(fleet), "GET", path, &[], "").await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

/// Returns whether the controller suspects its clock, because the clock has jumped. Checks that the metrics, the
/// fleet's findings and the findings of cluster prod agree.
async fn is_clock_suspect(fleet: &Fleet) -> bool {
    let mut finding_flags = Vec::new();
    for path in ["/v1/fleet", "/v1/clusters/prod/validate"] {
        let body = read_as_root(fleet, path).await;
        finding_flags.push(body["findings"].as_array().unwrap().iter().any(|finding| finding["code"] == "clock.jumped"));
    }
    let metrics = fleet.components().metrics.text_for_cluster(None);
    let is_suspect = metrics.contains("\nstemma_clock_suspect 1\n");
    assert!(is_suspect || metrics.contains("\nstemma_clock_suspect 0\n"), "{metrics}");
    assert_eq!(finding_flags, [is_suspect; 2]);
    is_suspect
}

/// The clock jumps ahead by 400 days, first for a short time, and then while the controller starts twice. All
/// credentials would have expired by this clock, but none is deleted.
#[tokio::test]
async fn x04_f12_clock_jump_removes_no_credentials() {
    const AHEAD_S: i64 = 400 * 24 * 3600;
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    let token = fleet.create_token(json!({})).await;
    let join_token_path = format!("/v1/join-tokens/{}", token.split_once('.').unwrap().0);
    let certificate_before = fleet.read("/v1/principals/admin").await["certificates"][0].clone();
    assert!(!is_clock_suspect(&fleet).await);

    fleet.clock.set_offset(AHEAD_S);
    let issue_certificate = async |fleet: &Fleet| {
        let body = json!({"principal": "admin", "csr": csr()}).to_string();
        let answer = send(&mut root_client(fleet), "POST", "/v1/certificates", &[JSON], &body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    };
    issue_certificate(&fleet).await;
    assert!(is_clock_suspect(&fleet).await);
    fleet.clock.set_offset(0);
    let answer = send(&mut fleet.admin_client(), "GET", "/v1/nodes", &[], "").await;
    assert_eq!(answer.status, 200, "the certificate from before the jump is valid: {}", answer.body);
    assert!(!is_clock_suspect(&fleet).await, "the clock is right again");

    // A controller that starts with a wrong clock deletes nothing either.
    fleet.clock.set_offset(AHEAD_S);
    assert!(is_clock_suspect(&fleet).await);
    // The second start must not trust the time that the first one has recorded.
    let fleet = restart(restart(fleet).await).await;
    assert!(is_clock_suspect(&fleet).await, "after two starts");
    issue_certificate(&fleet).await;
    let uses_left = read_as_root(&fleet, &join_token_path).await["uses_left"].clone();
    assert_eq!(uses_left, 1, "the join token exists, although it has expired by this clock");
    fleet.clock.set_offset(0);
    assert!(!is_clock_suspect(&fleet).await);
    let certificates = read_as_root(&fleet, "/v1/principals/admin").await["certificates"].clone();
    assert_eq!(certificates[0], certificate_before);
    assert_eq!(certificates.as_array().unwrap().len(), 3, "and the two that were issued with the wrong clock: {certificates}");
}

/// A renewal normally ends the old certificate after an hour. While the clock is 10 days ahead, the renewal leaves the
/// old certificate as it is.
#[tokio::test]
async fn x04_f12_renewal_by_suspect_clock_leaves_old_certificate_unchanged() {
    let fleet = Fleet::start().await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    let certificate_before = fleet.read("/v1/principals/otto").await["certificates"][0].clone();
    fleet.clock.set_offset(10 * 24 * 3600);
    let answer = send(&mut otto, "POST", "/v1/certificates", &[JSON], &json!({"csr": csr()}).to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    fleet.clock.set_offset(0);
    let certificates_after = fleet.read("/v1/principals/otto").await["certificates"].clone();
    assert_eq!(
        (&certificates_after[0], certificates_after.as_array().unwrap().len()),
        (&certificate_before, 2),
        "{certificates_after}"
    );
}

#[tokio::test]
async fn x04_f12_expired_credential_is_hidden_and_in_metrics_for_month() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let (_, id) = create_token(&fleet, "robot").await;
    let has_metric = |text: &str| fleet.components().metrics.text_for_cluster(None).contains(text);
    let token_label = format!("id=\"{id}\"");
    assert!(has_metric(&token_label));
    // The token expires after an hour. The metrics still contain it after 1 and 30 days, but not after 32 days.
    for (days, is_exported) in [(1, true), (29, true), (2, false)] {
        fleet.clock.advance(days * 24 * 3600);
        let tokens = read_as_root(&fleet, "/v1/principals/robot").await["tokens"].clone();
        assert_eq!((tokens, has_metric(&token_label)), (json!([]), is_exported), "{days} more days");
    }
    // The clock jumps ahead and is suspect, so every credential is exported, also the token that expired before.
    let certificate = "stemma_credential_end_seconds{principal=\"robot\",kind=\"certificate\"";
    assert!(has_metric(certificate));
    fleet.clock.set_offset(400 * 24 * 3600);
    assert!(has_metric(certificate) && has_metric(&token_label));
}

/// Root on the controller's machine issues a certificate for the first admin, without the admin's credentials. Then the
/// controller stops, although root's connection to the Unix socket is open.
#[tokio::test]
async fn root_socket_repairs_lost_admin() {
    let fleet = Fleet::start().await;
    let mut root = root_client(&fleet);
    assert_eq!(send(&mut root, "GET", "/v1/nodes", &[], "").await.status, 200);
    let request = new_key_and_request();
    let body = json!({"principal": "admin", "csr": pem::encode("CERTIFICATE REQUEST", &request.csr)}).to_string();
    let answer = send(&mut root, "POST", "/v1/certificates", &[JSON], &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let mut new_client = ClientCertificate::read(&answer.body, private_key(&request.key)).client(&fleet);
    assert_eq!(send(&mut new_client, "GET", "/v1/principals/admin", &[], "").await.body["role"], "admin");
    let audit = fleet.read("/v1/audit?principal=root").await;
    assert_eq!(audit["audit"][0]["address"], "unix", "{audit}");
    tokio::time::timeout(TIMEOUT, fleet.controller.stop()).await.unwrap();
}

/// Regression: connections were limited by address only. One viewer could have three quarters of all connections from
/// one address, and all of them from two addresses. In this test, a principal may have two connections in all, with its
/// certificates and tokens together. A third connection of the principal closes its oldest one.
#[tokio::test]
async fn x03_connections_are_limited_per_principal() {
    let fleet = Fleet::start_with(|options| options.admin_limits.max_connections_per_principal = Some(2)).await;
    let mut first_client = create_principal(&fleet, "vera", "viewer", None).await;
    let (mut second_client, _) = client_with_certificate(&fleet, "vera").await;
    let (token, _) = create_token(&fleet, "vera").await;
    for client in [&mut first_client, &mut second_client] {
        assert_eq!(send(client, "GET", "/v1/nodes", &[], "").await.status, 200);
    }
    let reason = "too_many_connections_of_one_principal";
    let count_before = fleet.refused_count(reason);
    let mut token_client = stranger(&fleet);
    let answer = send(&mut token_client, "GET", "/v1/nodes", &[("x-auth-token", &token)], "").await;
    assert_eq!(answer.status, 200, "the principal's oldest connection is closed for this one: {}", answer.body);
    assert!(fleet.refused_count(reason) > count_before);
    let (mut third_client, _) = client_with_certificate(&fleet, "vera").await;
    let count_before = fleet.refused_count(reason);
    assert_eq!(send(&mut third_client, "GET", "/v1/nodes", &[], "").await.status, 200);
    assert!(fleet.refused_count(reason) > count_before);
}
