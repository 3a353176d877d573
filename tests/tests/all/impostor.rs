//! An agent sends nothing to a server whose certificate is under the fleet's own root but names another fleet, or was
//! not issued for a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use stemma_agent::identity::HostIdentity;
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually, run};
use stemma_tests::proxy::Proxy;
use stemma_tests::seed::SeededRng;
use stemma_tests::stand_in;
use stemma_wire::clock::SystemClock;
use stemma_wire::message::encode;
use stemma_wire::message::enroll::EnrollResponse;
use stemma_wire::serve::{Peer, RequestBody};
use stemma_wire::tls::ServerKey;

/// The address of a server on the loopback interface, and the number of requests that it received.
type CountedServer = (SocketAddr, Arc<AtomicU64>);

/// Starts a server for the agents of the fleet `fleet_name`. It has a controller's certificate for the fleet
/// `certificate_fleet`, which may be another fleet.
fn serve_controller(fleet: &TempFleet, fleet_name: &str, certificate_fleet: &str) -> Result<CountedServer> {
    serve_with_key(fleet, fleet_name, stand_in::server_key(&fleet.data(), certificate_fleet, "admin")?)
}

/// Starts a server for the agents of the fleet `fleet_name`, with this certificate and key. The server counts the
/// requests, and answers each with an empty body.
fn serve_with_key(fleet: &TempFleet, fleet_name: &str, server_key: ServerKey) -> Result<CountedServer> {
    let request_count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&request_count);
    let handler = move |_: &Arc<Peer>, _: Request<RequestBody>| {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Response::new(Full::new(Bytes::new())))
    };
    let address = stand_in::serve_with_key(&fleet.data(), fleet_name, server_key, Arc::new(SystemClock), handler)?;
    Ok((address, request_count))
}

/// The private key and the certificate chain of a node, as the agent stores them.
#[derive(serde::Deserialize)]
struct NodeCredentials {
    key: Vec<u8>,
    chain: Vec<Vec<u8>>,
}

/// Reads a JSON file in the state directory of an agent.
fn read_state_file<T: serde::de::DeserializeOwned>(agent: &TestAgent, name: &str) -> Result<T> {
    let path = agent.path(&format!("var/lib/stemma-agent/{name}"));
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// Starts a fleet with an agent that connects to the controller through a proxy. The last value is the fleet's name.
fn fleet_behind_proxy() -> Result<(TempFleet, Proxy, TestAgent, String)> {
    let mut fleet = TempFleet::start()?;
    let proxy = Proxy::start(fleet.addresses().agents.trim_start_matches("https://").parse()?, SeededRng::new(1))?;
    fleet.set_agent_address(proxy.address());
    fleet.stemma(&["apply", "-f", stemma_tests::site::SITE])?;
    let agent = fleet.join("web-1", "prod/frontends")?;
    let identity: HostIdentity = read_state_file(&agent, "identity.json")?;
    Ok((fleet, proxy, agent, identity.fleet))
}

/// Connects the proxy of an agent to a server that the agent must refuse. Checks that the agent logs and reports the
/// reason, and sends no request to the server.
fn check_refuses_server(
    agent: &mut TestAgent,
    proxy: &Proxy,
    (address, request_count): &CountedServer,
    reason: &str,
) -> Result<()> {
    agent.kill()?;
    proxy.set_target(*address);
    agent.start()?;
    eventually("the reason in the log and in the status", || {
        let log = agent.log();
        ensure!(log.contains(reason), "{log}");
        let status = agent.status()?;
        ensure!(status.contains(reason), "{status}");
        Ok(())
    })?;
    ensure!(request_count.load(Ordering::Relaxed) == 0, "the agent sent a request to a server that it refuses");
    Ok(())
}

/// Nobody can impersonate the controller with the certificate of a node, or with a controller's certificate from the
/// issuer of the nodes' certificates.
#[test]
fn s04_agent_refuses_server_with_agent_certificate() -> Result<()> {
    let (fleet, proxy, mut agent, fleet_name) = fleet_behind_proxy()?;
    let second_agent = fleet.join("web-2", "prod/frontends")?;
    let credentials: NodeCredentials = read_state_file(&second_agent, "sync/credentials.json")?;
    let chain = credentials.chain.into_iter().map(CertificateDer::from).collect();
    let node_key = ServerKey { chain, key: PrivatePkcs8KeyDer::from(credentials.key).into() };
    // `agents` is the issuer of the nodes' certificates.
    for impostor_key in [node_key, stand_in::server_key(&fleet.data(), &fleet_name, "agents")?] {
        let server = serve_with_key(&fleet, &fleet_name, impostor_key)?;
        check_refuses_server(&mut agent, &proxy, &server, "is not trusted: the certificate was not issued for this use")?;
    }
    proxy.set_target(fleet.addresses().agents.trim_start_matches("https://").parse()?);
    // The agent accepts the real controller afterwards, so a new label reaches its host.
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=heard"])?;
    eventually("an edit through the real controller", || {
        check_file_contains(&agent.path("etc/nginx/conf.d/site.conf"), "tier heard").with_context(|| agent.log())
    })
}

/// A party that has the controller's keys could send a host the certificate of another host. The host must refuse this
/// certificate. A test in the agent's crate shows the same for renewals.
#[test]
fn w10_04_join_refuses_certificate_of_other_host() -> Result<()> {
    let (fleet, _proxy, agent, _) = fleet_behind_proxy()?;
    let (credentials, identity): (NodeCredentials, HostIdentity) =
        (read_state_file(&agent, "sync/credentials.json")?, read_state_file(&agent, "identity.json")?);
    let token = fleet.dir().join("token");
    std::fs::write(&token, fleet.stemma(&["token", "create"])?)?;
    let hash = fleet.stemma(&["token", "ca-hash"])?;
    // Both responses have the certificate of the first host: under the node that it names, and under another node.
    for (node, reason) in [(identity.node, "for another key"), (uuid::Uuid::from_u128(7), "not this node's")] {
        let (chain, root) = (credentials.chain.clone(), identity.root.clone());
        let answer = Bytes::from(encode(&EnrollResponse { node, fleet: identity.fleet.clone(), chain, root }));
        let handler = move |_: &Arc<Peer>, _: Request<RequestBody>| std::future::ready(Response::new(Full::new(answer.clone())));
        let address = stand_in::serve(&fleet.data(), &identity.fleet, &identity.fleet, Arc::new(SystemClock), handler)?;
        let host = tempfile::tempdir()?;
        let (root, token, url) = (host.path().to_string_lossy(), token.to_string_lossy(), format!("https://{address}"));
        let arguments = ["--root", &root, "join", &url, "--token-file", &token, "--ca-hash", hash.trim()];
        let output = run("stemma-agent", arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && stderr.contains(reason), "{reason}: {} {stderr}", output.status);
        let state = host.path().join("var/lib/stemma-agent");
        let exists = |name: &str| state.join(name).exists();
        ensure!(!exists("identity.json") && !exists("sync/credentials.json"), "{reason}: the refused certificate is stored");
    }
    Ok(())
}

#[test]
fn w15_13_agent_refuses_server_of_other_fleet_under_same_root() -> Result<()> {
    let (fleet, proxy, mut agent, fleet_name) = fleet_behind_proxy()?;
    check_refuses_server(&mut agent, &proxy, &serve_controller(&fleet, &fleet_name, "another-fleet")?, "of another fleet")?;

    // The agent refused only the name: it sends requests to the same server with the right name.
    let (address, request_count) = serve_controller(&fleet, &fleet_name, &fleet_name)?;
    proxy.set_target(address);
    eventually("a request to the server of this fleet", || {
        ensure!(request_count.load(Ordering::Relaxed) > 0, "{}", agent.log());
        Ok(())
    })
}
