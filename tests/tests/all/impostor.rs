//! A server that has a certificate under the fleet's own root, in the name of another fleet or of a kind that is no server's: an agent
//! says nothing to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use stemma_agent::identity::Identity;
use stemma_tests::chance::Chance;
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains, run};
use stemma_tests::proxy::Proxy;
use stemma_tests::stand_in;
use stemma_wire::clock::SystemClock;
use stemma_wire::message::encode;
use stemma_wire::message::enroll::EnrollAnswer;
use stemma_wire::serve::{Peer, RequestBody};
use stemma_wire::tls::ServerKey;

/// A server on the loopback, and how many requests have come to it.
type Heard = (SocketAddr, Arc<AtomicU64>);

/// Serves with a controller's certificate that names this fleet or another.
fn serve(fleet: &Fleet, name: &str, named: &str) -> Result<Heard> {
    serve_as(fleet, name, stand_in::server_key(&fleet.data(), named, "admin")?)
}

fn serve_as(fleet: &Fleet, name: &str, own: ServerKey) -> Result<Heard> {
    let heard = Arc::new(AtomicU64::new(0));
    let hearing = Arc::clone(&heard);
    let handler = move |_: &Arc<Peer>, _: Request<RequestBody>| {
        hearing.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Response::new(Full::new(Bytes::new())))
    };
    let address = stand_in::serve_as(&fleet.data(), name, own, Arc::new(SystemClock), handler)?;
    Ok((address, heard))
}

/// What a node was given.
#[derive(serde::Deserialize)]
struct Held {
    key: Vec<u8>,
    chain: Vec<Vec<u8>>,
}

/// A file of an agent's state.
fn read<T: serde::de::DeserializeOwned>(agent: &Agent, name: &str) -> Result<T> {
    let path = agent.path(&format!("var/lib/stemma-agent/{name}"));
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// A fleet with an agent that reaches it through a proxy, and the fleet's name.
fn behind_proxy() -> Result<(Fleet, Proxy, Agent, String)> {
    let mut fleet = Fleet::start()?;
    let proxy = Proxy::to(fleet.bound().agents.trim_start_matches("https://").parse()?, Chance::new(1))?;
    fleet.reach_agents_by(proxy.address());
    fleet.stemma(&["apply", "-f", stemma_tests::site::SITE])?;
    let agent = fleet.join("web-1", "prod/frontends")?;
    let identity: Identity = read(&agent, "identity.json")?;
    Ok((fleet, proxy, agent, identity.fleet))
}

/// The agent is led to the server, says why it refuses it, and tells it nothing.
fn refuses(agent: &mut Agent, proxy: &Proxy, (other, unheard): &Heard, why: &str) -> Result<()> {
    agent.kill()?;
    proxy.turn_to(*other);
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

/// What a node has, and what the nodes' issuer could be made to sign: neither lets anybody stand in for the controller.
#[test]
fn s04_an_agent_says_nothing_to_a_server_with_an_agents_certificate() -> Result<()> {
    let (fleet, proxy, mut agent, name) = behind_proxy()?;
    let other = fleet.join("web-2", "prod/frontends")?;
    let held: Held = read(&other, "sync/credentials.json")?;
    let chain = held.chain.into_iter().map(CertificateDer::from).collect();
    let nodes_own = ServerKey { chain, key: PrivatePkcs8KeyDer::from(held.key).into() };
    for own in [nodes_own, stand_in::server_key(&fleet.data(), &name, "agents")?] {
        let server = serve_as(&fleet, &name, own)?;
        refuses(&mut agent, &proxy, &server, "is not trusted: the certificate was not issued for this use")?;
    }
    proxy.turn_to(fleet.bound().agents.trim_start_matches("https://").parse()?);
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=heard"])?;
    eventually("the controller's own is taken", || {
        file_contains(&agent.path("etc/nginx/conf.d/site.conf"), "tier heard").with_context(|| agent.log())
    })
}

/// Whoever holds what a controller does may give a host what is another's. The renewals' side of this is tried beside the agent's code.
#[test]
fn w10_04_a_certificate_that_is_another_hosts_is_not_joined_with() -> Result<()> {
    let (fleet, _proxy, agent, _) = behind_proxy()?;
    let (held, identity): (Held, Identity) = (read(&agent, "sync/credentials.json")?, read(&agent, "identity.json")?);
    let token = fleet.dir().join("token");
    std::fs::write(&token, fleet.stemma(&["token", "create"])?)?;
    let hash = fleet.stemma(&["token", "ca-hash"])?;
    for (node, why) in [(identity.node, "for another key"), (uuid::Uuid::from_u128(7), "not this node's")] {
        let (chain, root) = (held.chain.clone(), identity.root.clone());
        let answer = Bytes::from(encode(&EnrollAnswer { node, fleet: identity.fleet.clone(), chain, root }));
        let handler =
            move |_: &Arc<Peer>, _: Request<RequestBody>| std::future::ready(Response::new(Full::new(answer.clone())));
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
fn w15_13_an_agent_says_nothing_to_a_server_of_another_fleet_under_its_own_root() -> Result<()> {
    let (fleet, proxy, mut agent, name) = behind_proxy()?;
    refuses(&mut agent, &proxy, &serve(&fleet, &name, "another-fleet")?, "of another fleet")?;

    // It is the name alone: under the right one the same server is told.
    let (same, heard) = serve(&fleet, &name, &name)?;
    proxy.turn_to(same);
    eventually("a server of this fleet is asked", || {
        ensure!(heard.load(Ordering::Relaxed) > 0, "{}", agent.log());
        Ok(())
    })
}
