//! The side of the controller for operators. It creates the API, serves the API on root's socket, and closes the
//! connections of callers whose access was revoked.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use stemma_core::digest::Hex;
use stemma_core::traits::TraitNames;
use stemma_wire::net::UnixAcceptor;
use stemma_wire::serve::{HolderSource, ListenerLimits, OpenConnections, Server};
use stemma_wire::tls::Identity;

use super::Components;
use crate::api::{AgentEndpoint, Api, Budgets, EventStreams, ListenerAuth, StreamLimiter, WriteLimiter, handler};
use crate::config::{AdminListen, Config};
use crate::enrol::{AttemptLimits, TokenAttempts};
use crate::init::first_admin;
use crate::registry::{Credential, Registry, Requester, certificate_holder};

/// Creates the API for operators, as the admin listener serves it.
pub(super) fn new_api(
    components: &Arc<Components>,
    config: &Config,
    attempt_limits: AttemptLimits,
    traits: TraitNames,
    agent_endpoint: AgentEndpoint,
) -> Arc<Api> {
    let listener_auth = match config.admin {
        AdminListen::Tls(_) => ListenerAuth::Certificates,
        AdminListen::Plain(_) => ListenerAuth::Loopback,
    };
    Arc::new(Api {
        registry: Arc::clone(&components.registry),
        blobs: Arc::clone(&components.blobs),
        desired: Some(Arc::clone(&components.desired)),
        reconciler: Some(Arc::clone(&components.reconciler)),
        metrics: Some(Arc::clone(&components.metrics)),
        rejections: Arc::clone(&components.rejected),
        traits,
        stream_limiter: StreamLimiter::default(),
        write_limiter: WriteLimiter::default(),
        streams: EventStreams::default(),
        budgets: Budgets::default(),
        agent_endpoint,
        listener_auth,
        authority: Some(Arc::clone(&components.authority)),
        token_attempts: Arc::new(TokenAttempts::new(attempt_limits)),
        first_admin: Some(Arc::new(first_admin::first_admin(&components.layout))),
        visible_cluster: None,
        is_stale: false,
        identities: Some(Arc::clone(&components.identities)),
        layout: Some(components.layout.clone()),
    })
}

/// Returns the function that finds the principal of a connection from the client's certificate. The server limits
/// connections by principal.
pub(super) fn holder_source(registry: &Arc<Registry>) -> HolderSource {
    let registry = Arc::clone(registry);
    Arc::new(move |identity: &Identity| {
        let model = registry.cache().model();
        let uuid = certificate_holder(&model, identity)?;
        let principal = model.principals.get(uuid)?;
        let credential = Credential::Certificate(Hex(&identity.serial).to_string());
        Some(Requester::from_principal(principal, credential).holder())
    })
}

/// Opens root's socket, and returns the future that serves the API to root on it until `stop` completes. The socket is
/// `inherited_socket`, or else one in the data directory. Root can use this socket to regain control of a fleet whose
/// last admin lost their credentials. If the socket cannot be opened, a warning is logged. The future never ends, so
/// the other listeners are served nevertheless.
pub(super) fn serve_root_socket(
    components: &Arc<Components>,
    api: &Arc<Api>,
    inherited_socket: Option<UnixListener>,
    limits: ListenerLimits,
    stop: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = String> + Send + 'static {
    let (path, rejected) = (components.layout.socket(), Arc::clone(&components.rejected));
    let counter = Arc::clone(&rejected);
    let refuse = move |_| counter.record("socket_not_root", None);
    let socket = match inherited_socket {
        Some(socket) => UnixAcceptor::from_socket(socket, refuse),
        None => UnixAcceptor::bind(&path, refuse),
    };
    let socket = socket.inspect_err(|error| {
        log::warn!(path:% = path.display(), error:% = error; "root's socket could not be opened");
    });
    let api = Arc::new(Api { listener_auth: ListenerAuth::Root, ..Api::clone(api) });
    let clock = Arc::clone(&components.clock);
    async move {
        if let Ok(socket) = socket {
            Server::new(socket, None, limits, clock, rejected).run(handler(api), stop).await;
        }
        std::future::pending().await
    }
}

/// Closes connections as soon as their certificate is revoked or their principal is deleted. Checks all connections
/// after each change of a principal, and then also closes those with an expired certificate. Never returns.
pub(super) async fn close_revoked(api: Arc<Api>, connections: OpenConnections) -> String {
    let mut checked_versions = Vec::new();
    loop {
        let model = api.cache().model();
        let versions: Vec<_> = model.principals.iter().map(|object| (object.meta.uuid, object.meta.resource_version)).collect();
        if versions != checked_versions {
            checked_versions = versions;
            connections.close_where(|peer| peer.identity.as_ref().is_some_and(|identity| api.is_revoked(identity)));
        }
        api.cache().wait_for(model.revision.next()).await;
    }
}
