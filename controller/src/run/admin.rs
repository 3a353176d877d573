//! The side for operators: creates the API, serves it on root's socket, and closes the connections of callers whose
//! access was revoked.

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

/// Creates the API for operators, as it is served on the admin listener.
pub(super) fn new_api(
    parts: &Arc<Components>,
    config: &Config,
    limits: AttemptLimits,
    traits: TraitNames,
    agents: AgentEndpoint,
) -> Arc<Api> {
    let listener_auth = match config.admin {
        AdminListen::Tls(_) => ListenerAuth::Certificates,
        AdminListen::Plain(_) => ListenerAuth::Loopback,
    };
    Arc::new(Api {
        registry: Arc::clone(&parts.registry),
        blobs: Arc::clone(&parts.blobs),
        desired: Some(Arc::clone(&parts.desired)),
        reconciler: Some(Arc::clone(&parts.reconciler)),
        metrics: Some(Arc::clone(&parts.metrics)),
        rejections: Arc::clone(&parts.rejected),
        traits,
        stream_limiter: StreamLimiter::default(),
        write_limiter: WriteLimiter::default(),
        streams: EventStreams::default(),
        budgets: Budgets::default(),
        agent_endpoint: agents,
        listener_auth,
        authority: Some(Arc::clone(&parts.authority)),
        token_attempts: Arc::new(TokenAttempts::new(limits)),
        first_admin: Some(Arc::new(first_admin::first_admin(&parts.layout))),
        visible_cluster: None,
        is_stale: false,
        identities: Some(Arc::clone(&parts.identities)),
        layout: Some(parts.layout.clone()),
    })
}

/// Returns the source that finds the principal of a connection from its certificate.
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

/// Serves root on a socket in the data directory, for as long as the future is polled. Through this socket, root
/// regains control of a fleet whose last admin lost their credentials. If the socket cannot be bound, a warning is
/// logged and everything else is served.
pub(super) fn serve_root_socket(
    parts: &Arc<Components>,
    api: &Arc<Api>,
    inherited: Option<UnixListener>,
    limits: ListenerLimits,
    stop: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = String> + Send + 'static {
    let (path, rejected) = (parts.layout.socket(), Arc::clone(&parts.rejected));
    let counter = Arc::clone(&rejected);
    let refuse = move |_| counter.record("socket_not_root", None);
    let socket = match inherited {
        Some(socket) => UnixAcceptor::from_socket(socket, refuse),
        None => UnixAcceptor::bind(&path, refuse),
    };
    let socket = socket.inspect_err(|error| {
        log::warn!(path:% = path.display(), error:% = error; "root's socket could not be opened");
    });
    let api = Arc::new(Api { listener_auth: ListenerAuth::Root, ..Api::clone(api) });
    let clock = Arc::clone(&parts.clock);
    async move {
        if let Ok(socket) = socket {
            Server::new(socket, None, limits, clock, rejected).run(handler(api), stop).await;
        }
        std::future::pending().await
    }
}

/// Closes connections at once when their certificate is revoked or their principal is deleted.
pub(super) async fn close_revoked(api: Arc<Api>, connections: OpenConnections) -> String {
    let mut principals = Vec::new();
    loop {
        let model = api.cache().model();
        let current: Vec<_> = model.principals.iter().map(|one| (one.meta.uuid, one.meta.resource_version)).collect();
        if current != principals {
            principals = current;
            connections.close_where(|peer| peer.identity.as_ref().is_some_and(|identity| api.is_revoked(identity)));
        }
        api.cache().wait_for(model.revision.next()).await;
    }
}
