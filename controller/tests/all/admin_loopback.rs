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

fn config(directory: &std::path::Path, admin: &str, agents: &str) -> Result<Config, String> {
    let run = args::RunArgs {
        data_dir: Some(directory.join("data")),
        admin_listen: Some(admin.into()),
        agent_listen: Some(agents.into()),
        ..args::RunArgs::default()
    };
    Config::load_with_sockets(&run, &ActivatedSockets::default()).map_err(|error| error.to_string())
}

/// Sends a request with these header lines. Returns the status and the text of the response.
async fn get(at: SocketAddr, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET /v1/nodes HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[tokio::test]
async fn s75_w15_07_plain_listener_rejects_foreign_host_and_origin() {
    let said_before = install_logger();
    let directory = tempfile::tempdir().unwrap();
    init(&directory.path().join("data"), &[], SystemClock.unix_seconds()).unwrap();
    let config = config(directory.path(), "http://127.0.0.1:0", "127.0.0.1:0").unwrap();
    let controller = start(config, Options::default()).await.unwrap();
    let at = controller.admin_address();
    let port = at.port();
    let before = controller.components().registry.store().head().await.unwrap();
    let mut refused = 0;
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
        let (got, answer) = get(at, &headers).await;
        assert_eq!(got, status, "{headers:?}: {answer}");
        let Some(kind) = kind else { continue };
        assert!(answer.contains(kind), "{headers:?}: {answer}");
        let (counted, reasons) =
            (controller.components().rejected.counts(), controller.components().metrics.text_for_cluster(None));
        refused += 1;
        assert_eq!(counted.values().sum::<u64>(), refused, "{headers:?}: {counted:?}");
        for (reason, count) in counted {
            assert_eq!(metric_count(&reasons, reason), count);
            let lines = logged_count(reason) - said_before.get(reason).copied().unwrap_or_default();
            assert!(lines >= count, "{reason}: {lines} lines in the journal");
        }
        let good = format!("host: localhost:{port}\r\n");
        assert_eq!(get(at, &good).await.0, 200, "the next good request succeeds after {headers:?}");
    }
    assert_eq!(controller.components().registry.store().head().await.unwrap(), before, "nothing is written");
    controller.stop().await;
}

#[test]
fn s75_start_rejects_plain_http_when_agent_address_is_not_loopback() {
    let directory = tempfile::tempdir().unwrap();
    for agents in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9444"] {
        let refused = config(directory.path(), "http://127.0.0.1:0", agents).unwrap_err();
        assert!(refused.contains("is plain HTTP, and agent_listen") && refused.contains("refusing to start"), "{refused}");
    }
    for admin in ["http://0.0.0.0:80", "http://192.0.2.1:80"] {
        let refused = config(directory.path(), admin, "127.0.0.1:0").unwrap_err();
        assert!(refused.contains("plain HTTP is served on a loopback address alone"), "{refused}");
    }
}

/// Regression: a viewer's revoked token counted as no token, so its sender was an admin.
#[tokio::test]
async fn x04_plain_listener_rejects_token_when_no_longer_valid() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/principals", &json!({"name": "vera", "role": "viewer"}), 201).await;
    let made = served.expect("POST", "/v1/principals/vera/tokens", &json!({}), 201).await;
    let (token, id) = (made["token"].as_str().unwrap(), made["id"].as_str().unwrap());
    let node = async |name: &str, token: &str| {
        let headers = [("x-auth-token", token), ("content-type", "application/json")];
        served.send("POST", "/v1/nodes", &headers, Some(&json!({"name": name}))).await.status
    };
    assert_eq!(node("a", token).await, 403, "a viewer's");
    assert_eq!(served.send("DELETE", &format!("/v1/principals/vera/tokens/{id}"), &[], None).await.status, 204);
    assert_eq!(node("a", token).await, 401, "it was revoked");
    assert_eq!(node("a", "0123456789abcdef.secret").await, 401, "nobody has it");
    assert_eq!(node("a", "notused").await, 201, "a client that has to send some token");
}

/// Regression: a viewer's token in a wrong header form counted as no token, so its sender was an admin.
#[tokio::test]
async fn x04_plain_listener_rejects_token_when_header_is_malformed() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/principals", &json!({"name": "vera", "role": "viewer"}), 201).await;
    let made = served.expect("POST", "/v1/principals/vera/tokens", &json!({}), 201).await;
    let token = made["token"].as_str().unwrap();
    let (auth, named) = ("authorization", "x-auth-token");
    let node = async |name: &str, shown: &[(&str, &str)]| {
        let shown: Vec<(&str, String)> = shown.iter().map(|(name, value)| (*name, value.replace("TOKEN", token))).collect();
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(shown.iter().map(|(name, value)| (*name, value.as_str())));
        served.send("POST", "/v1/nodes", &headers, Some(&json!({"name": name}))).await.status
    };
    for shown in [
        &[(auth, "Bearer\tTOKEN")][..],
        &[(auth, "Bearer \"TOKEN\"")],
        &[(auth, "Token TOKEN")],
        &[(named, "Bearer TOKEN")],
        &[(auth, "Bearer x"), (named, "TOKEN")],
        &[(auth, "Bearer x")],
        // The result of `X-Auth-Token: $TOKEN` if the variable is empty.
        &[(named, "")],
        &[(auth, "")],
        &[(auth, ""), (named, "TOKEN")],
    ] {
        assert_eq!(node("a", shown).await, 401, "{shown:?}");
    }
    assert_eq!(node("a", &[(auth, "Basic YTpi"), (named, "TOKEN")]).await, 403, "a viewer's");
    for (name, shown) in [("a", "tok"), ("b", "secret"), ("c", "admin1")] {
        assert_eq!(node(name, &[(named, shown)]).await, 201, "a client that has to send some token");
    }
}
