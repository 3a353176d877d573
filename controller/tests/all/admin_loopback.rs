//! The plain-HTTP admin listener (docs/trust.md, S75): it binds loopback only, needs agents on loopback, and requires a
//! loopback `Host` and no foreign `Origin`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::net::SocketAddr;

use serde_json::json;
use stemma_controller::args;
use stemma_controller::config::Config;
use stemma_controller::init::init;
use stemma_controller::run::{Options, start};
use stemma_controller::socket_activation::ActivatedSockets;
use stemma_wire::clock::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fleet::witness::{install_logger, logged_count, metric_count};
use crate::served::TestApi;

/// Loads a configuration with these listener addresses for admins and for agents.
fn config(directory: &std::path::Path, admin: &str, agents: &str) -> Result<Config, String> {
    let run = args::RunArgs {
        data_dir: Some(directory.join("data")),
        admin_listen: Some(admin.into()),
        agent_listen: Some(agents.into()),
        ..args::RunArgs::default()
    };
    Config::load_with_sockets(&run, &ActivatedSockets::default()).map_err(|error| error.to_string())
}

/// Sends a request for the list of nodes with these header lines, each with its line end. Returns the status, and the
/// text of the response with its headers.
async fn get_nodes(address: SocketAddr, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /v1/nodes HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    (response.split(' ').nth(1).unwrap().parse().unwrap(), response)
}

/// Each case is the headers, the expected status, and the type of the error. Each refused request is counted in the
/// metrics. It is also in the journal, where other tests of this process may add lines.
#[tokio::test]
async fn s75_w15_07_plain_listener_rejects_foreign_host_and_origin() {
    let logged_before = install_logger();
    let directory = tempfile::tempdir().unwrap();
    init(&directory.path().join("data"), &[], SystemClock.unix_seconds()).unwrap();
    let config = config(directory.path(), "http://127.0.0.1:0", "127.0.0.1:0").unwrap();
    let controller = start(config, Options::default()).await.unwrap();
    let address = controller.admin_address();
    let port = address.port();
    let revision_before = controller.components().registry.store().head().await.unwrap();
    let mut refused_count = 0;
    for (headers, status, kind) in [
        (format!("host: 127.0.0.1:{port}\r\n"), 200, None),
        (format!("host: localhost:{port}\r\n"), 200, None),
        (format!("host: 127.0.0.1:{port}\r\norigin: http://127.0.0.1:{port}\r\n"), 200, None),
        (format!("host: evil.example:{port}\r\n"), 400, Some("request.host")),
        (format!("host: 127.evil.example:{port}\r\n"), 400, Some("request.host")),
        (format!("host: localhost.evil.example:{port}\r\n"), 400, Some("request.host")),
        ("host: 192.0.2.1\r\n".to_owned(), 400, Some("request.host")),
        (String::new(), 400, Some("request.host")),
        (format!("host: localhost:{port}\r\nhost: localhost:{port}\r\n"), 400, Some("request.host")),
        (format!("host: localhost:{port}\r\norigin: http://evil.example\r\n"), 403, Some("request.origin")),
        (format!("host: localhost:{port}\r\norigin: null\r\n"), 403, Some("request.origin")),
        (format!("host: localhost:{port}\r\norigin: https://localhost:{port}\r\n"), 403, Some("request.origin")),
    ] {
        let (actual_status, response) = get_nodes(address, &headers).await;
        assert_eq!(actual_status, status, "{headers:?}: {response}");
        let Some(kind) = kind else { continue };
        assert!(response.contains(kind), "{headers:?}: {response}");
        let (counts, metrics) =
            (controller.components().rejected.counts(), controller.components().metrics.text_for_cluster(None));
        refused_count += 1;
        assert_eq!(counts.values().sum::<u64>(), refused_count, "{headers:?}: {counts:?}");
        for (reason, count) in counts {
            assert_eq!(metric_count(&metrics, reason), count);
            let lines = logged_count(reason) - logged_before.get(reason).copied().unwrap_or_default();
            assert!(lines >= count, "{reason}: {lines} lines in the journal");
        }
        let good_headers = format!("host: localhost:{port}\r\n");
        assert_eq!(get_nodes(address, &good_headers).await.0, 200, "the next good request succeeds after {headers:?}");
    }
    assert_eq!(controller.components().registry.store().head().await.unwrap(), revision_before, "nothing is written");
    controller.stop().await;
}

#[test]
fn s75_start_rejects_plain_http_when_address_is_not_loopback() {
    let directory = tempfile::tempdir().unwrap();
    for agents in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9444"] {
        let error = config(directory.path(), "http://127.0.0.1:0", agents).unwrap_err();
        assert!(error.contains("is plain HTTP, and agent_listen") && error.contains("refusing to start"), "{error}");
    }
    for admin in ["http://0.0.0.0:80", "http://192.0.2.1:80"] {
        let error = config(directory.path(), admin, "127.0.0.1:0").unwrap_err();
        assert!(error.contains("plain HTTP is served on a loopback address alone"), "{error}");
    }
}

/// A request without a token has the rights of an admin on this listener. Regression: a viewer's revoked token counted
/// as no token, so its sender was an admin.
#[tokio::test]
async fn x04_plain_listener_rejects_token_when_no_longer_valid() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/principals", &json!({"name": "vera", "role": "viewer"}), 201).await;
    let created = api.expect("POST", "/v1/principals/vera/tokens", &json!({}), 201).await;
    let (token, id) = (created["token"].as_str().unwrap(), created["id"].as_str().unwrap());
    let create_node = async |name: &str, token: &str| {
        let headers = [("x-auth-token", token), ("content-type", "application/json")];
        api.send("POST", "/v1/nodes", &headers, Some(&json!({"name": name}))).await.status
    };
    assert_eq!(create_node("a", token).await, 403, "a viewer's token");
    assert_eq!(api.send("DELETE", &format!("/v1/principals/vera/tokens/{id}"), &[], None).await.status, 204);
    assert_eq!(create_node("a", token).await, 401, "the token was revoked");
    assert_eq!(create_node("a", "0123456789abcdef.secret").await, 401, "no principal has this token");
    assert_eq!(create_node("a", "notused").await, 201, "a placeholder without the form of a token is ignored");
}

/// A request without a token has the rights of an admin on this listener. Regression: a viewer's token in a wrong
/// header form counted as no token, so its sender was an admin.
#[tokio::test]
async fn x04_plain_listener_rejects_token_when_header_is_malformed() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/principals", &json!({"name": "vera", "role": "viewer"}), 201).await;
    let created = api.expect("POST", "/v1/principals/vera/tokens", &json!({}), 201).await;
    let token = created["token"].as_str().unwrap();
    let (auth_header, token_header) = ("authorization", "x-auth-token");
    let create_node = async |name: &str, credentials: &[(&str, &str)]| {
        let credentials: Vec<(&str, String)> =
            credentials.iter().map(|(name, value)| (*name, value.replace("TOKEN", token))).collect();
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(credentials.iter().map(|(name, value)| (*name, value.as_str())));
        api.send("POST", "/v1/nodes", &headers, Some(&json!({"name": name}))).await.status
    };
    for credentials in [
        &[(auth_header, "Bearer\tTOKEN")][..],
        &[(auth_header, "Bearer \"TOKEN\"")],
        &[(auth_header, "Token TOKEN")],
        &[(token_header, "Bearer TOKEN")],
        &[(auth_header, "Bearer x"), (token_header, "TOKEN")],
        &[(auth_header, "Bearer x")],
        // A script sends this header for `X-Auth-Token: $TOKEN` if the variable is empty.
        &[(token_header, "")],
        &[(auth_header, "")],
        &[(auth_header, ""), (token_header, "TOKEN")],
    ] {
        assert_eq!(create_node("a", credentials).await, 401, "{credentials:?}");
    }
    assert_eq!(create_node("a", &[(auth_header, "Basic YTpi"), (token_header, "TOKEN")]).await, 403, "a viewer's token");
    for (name, placeholder) in [("a", "tok"), ("b", "secret"), ("c", "admin1")] {
        assert_eq!(
            create_node(name, &[(token_header, placeholder)]).await,
            201,
            "a placeholder without the form of a token is ignored"
        );
    }
}
