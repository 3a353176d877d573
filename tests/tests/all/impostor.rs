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

/// Starts a server with a controller's certificate that names this fleet or another.
fn serve_controller(fleet: &TempFleet, name: &str, named: &str) -> Result<CountedServer> {
    serve_with_key(fleet, name, stand_in::server_key(&fleet.data(), named, "admin")?)
}

fn serve_with_key(fleet: &TempFleet, name: &str, own: ServerKey) -> Result<CountedServer> {
    let heard = Arc::new(AtomicU64::new(0));
    let hearing = Arc::clone(&heard);
    let handler = move |_: &Arc<Peer>, _: Request<RequestBody>| {
        hearing.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Response::new(Full::new(Bytes::new())))
    };
    let address = stand_in::serve_with_key(&fleet.data(), name, own, Arc::new(SystemClock), handler)?;
    Ok((address, heard))
}

/// The credentials that a node was given.
#[derive(serde::Deserialize)]
struct NodeCredentials {
    key: Vec<u8>,
    chain: Vec<Vec<u8>>,
}

/// Reads a file of an agent's state.
fn read_state_file<T: serde::de::DeserializeOwned>(agent: &TestAgent, name: &str) -> Result<T> {
    let path = agent.path(&format!("var/lib/stemma-agent/{name}"));
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// Starts a fleet with an agent that reaches it through a proxy. Also returns the fleet's name.
fn fleet_behind_proxy() -> Result<(TempFleet, Proxy, TestAgent, String)> {
    let mut fleet = TempFleet::start()?;
    let proxy = Proxy::start(fleet.addresses().agents.trim_start_matches("https://").parse()?, SeededRng::new(1))?;
    fleet.set_agent_address(proxy.address());
    fleet.stemma(&["apply", "-f", stemma_tests::site::SITE])?;
    let agent = fleet.join("web-1", "prod/frontends")?;
    let identity: HostIdentity = read_state_file(&agent, "identity.json")?;
    Ok((fleet, proxy, agent, identity.fleet))
}

/// Checks that an agent that is led to the server reports why it refuses the server, and sends it nothing.
fn check_refuses_server(agent: &mut TestAgent, proxy: &Proxy, (other, unheard): &CountedServer, why: &str) -> Result<()> {
    agent.kill()?;
    proxy.set_target(*other);
    agent.start()?;
    eventually("the agent tells of it", || {
        let log = agent.log();
        ensure!(log.contains(why), "{log}");
        let said = agent.status()?;
        ensure!(said.contains(why), "{said}");
        Ok(())
    })?;
    ensure!(unheard.load(Ordering::Relaxed) == 0, "a server that it refuses was told something");
    Ok(())
}

/// Neither the certificate of a node, nor one that the nodes' issuer could be made to sign, lets anybody impersonate
/// the controller.
#[test]
fn s04_agent_refuses_server_with_agent_certificate() -> Result<()> {
    let (fleet, proxy, mut agent, name) = fleet_behind_proxy()?;
    let other = fleet.join("web-2", "prod/frontends")?;
    let held: NodeCredentials = read_state_file(&other, "sync/credentials.json")?;
    let chain = held.chain.into_iter().map(CertificateDer::from).collect();
    let nodes_own = ServerKey { chain, key: PrivatePkcs8KeyDer::from(held.key).into() };
    for own in [nodes_own, stand_in::server_key(&fleet.data(), &name, "agents")?] {
        let server = serve_with_key(&fleet, &name, own)?;
        check_refuses_server(&mut agent, &proxy, &server, "is not trusted: the certificate was not issued for this use")?;
    }
    proxy.set_target(fleet.addresses().agents.trim_start_matches("https://").parse()?);
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=heard"])?;
    eventually("the controller's own is taken", || {
        check_file_contains(&agent.path("etc/nginx/conf.d/site.conf"), "tier heard").with_context(|| agent.log())
    })
}

/// A party that holds the controller's keys could send a host the certificate of another host. For renewals, this is
/// tested next to the agent's code.
#[test]
fn w10_04_join_refuses_certificate_of_other_host() -> Result<()> {
    let (fleet, _proxy, agent, _) = fleet_behind_proxy()?;
    let (held, identity): (NodeCredentials, HostIdentity) =
        (read_state_file(&agent, "sync/credentials.json")?, read_state_file(&agent, "identity.json")?);
    let token = fleet.dir().join("token");
    std::fs::write(&token, fleet.stemma(&["token", "create"])?)?;
    let hash = fleet.stemma(&["token", "ca-hash"])?;
    for (node, why) in [(identity.node, "for another key"), (uuid::Uuid::from_u128(7), "not this node's")] {
        let (chain, root) = (held.chain.clone(), identity.root.clone());
        let answer = Bytes::from(encode(&EnrollResponse { node, fleet: identity.fleet.clone(), chain, root }));
        let handler = move |_: &Arc<Peer>, _: Request<RequestBody>| std::future::ready(Response::new(Full::new(answer.clone())));
        let address = stand_in::serve(&fleet.data(), &identity.fleet, &identity.fleet, Arc::new(SystemClock), handler)?;
        let host = tempfile::tempdir()?;
        let (root, token, url) = (host.path().to_string_lossy(), token.to_string_lossy(), format!("https://{address}"));
        let words = ["--root", &root, "join", &url, "--token-file", &token, "--ca-hash", hash.trim()];
        let output = run("stemma-agent", words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && said.contains(why), "{why}: {} {said}", output.status);
        let state = host.path().join("var/lib/stemma-agent");
        let is_kept = |name: &str| state.join(name).exists();
        ensure!(!is_kept("identity.json") && !is_kept("sync/credentials.json"), "{why}: it is kept");
    }
    Ok(())
}

#[test]
fn w15_13_agent_refuses_server_of_other_fleet_under_same_root() -> Result<()> {
    let (fleet, proxy, mut agent, name) = fleet_behind_proxy()?;
    check_refuses_server(&mut agent, &proxy, &serve_controller(&fleet, &name, "another-fleet")?, "of another fleet")?;

    // Only the name matters: under the right name, the agent sends requests to the same server.
    let (same, heard) = serve_controller(&fleet, &name, &name)?;
    proxy.set_target(same);
    eventually("a server of this fleet is asked", || {
        ensure!(heard.load(Ordering::Relaxed) > 0, "{}", agent.log());
        Ok(())
    })
}
