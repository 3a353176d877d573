//! The operators' side: what is served there, on the listener and on the socket of root, and who is cut off.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use stemma_core::digest::Hex;
use stemma_core::traits::TraitNames;
use stemma_wire::net::UnixListen;
use stemma_wire::serve::{Connections, HolderSource, Limits, Server};
use stemma_wire::tls::Identity;

use super::Parts;
use crate::api::{Api, Budgets, Guarding, Reached, Readers, Streams, Writers, handler};
use crate::config::{AdminListen, Config};
use crate::enrol::{GuessLimits, Guesses};
use crate::init::first;
use crate::registry::{Registry, Shown, Who, holder_of};

/// What answers operators.
pub(super) fn api(
    parts: &Arc<Parts>,
    config: &Config,
    guesses: GuessLimits,
    traits: TraitNames,
    agents: Reached,
) -> Arc<Api> {
    let guarding = match config.admin {
        AdminListen::Tls(_) => Guarding::Certificates,
        AdminListen::Plain(_) => Guarding::Loopback,
    };
    Arc::new(Api {
        registry: Arc::clone(&parts.registry),
        blobs: Arc::clone(&parts.blobs),
        desired: Some(Arc::clone(&parts.desired)),
        reconciler: Some(Arc::clone(&parts.reconciler)),
        metrics: Some(Arc::clone(&parts.metrics)),
        rejected: Arc::clone(&parts.rejected),
        traits,
        readers: Readers::default(),
        writers: Writers::default(),
        streams: Streams::default(),
        budgets: Budgets::default(),
        agents,
        guarding,
        authority: Some(Arc::clone(&parts.authority)),
        guesses: Arc::new(Guesses::new(guesses)),
        first_admin: Some(Arc::new(first::admin(&parts.layout))),
        within: None,
        is_behind: false,
        identities: Some(Arc::clone(&parts.identities)),
        layout: Some(parts.layout.clone()),
    })
}

/// Whose a connection is by its certificate.
pub(super) fn holders(registry: &Arc<Registry>) -> HolderSource {
    let registry = Arc::clone(registry);
    Arc::new(move |identity: &Identity| {
        let model = registry.cache().model();
        let uuid = holder_of(&model, identity)?;
        let principal = model.principals.get(uuid)?;
        let shown = Shown::Certificate(Hex(&identity.serial).to_string());
        Some(Who::shown(principal, shown).holder())
    })
}

/// Serves root on a socket in the data directory, for as long as it is polled: how a fleet is reached whose last admin lost what they
/// were known by. Where there can be none, the rest is served all the same.
pub(super) fn socket(
    parts: &Arc<Parts>,
    api: &Arc<Api>,
    handed: Option<UnixListener>,
    limits: Limits,
    stop: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = String> + Send + 'static {
    let (path, rejected) = (parts.layout.socket(), Arc::clone(&parts.rejected));
    let refused = Arc::clone(&rejected);
    let refuse = move |_| refused.refuse("socket_not_root", None);
    let socket = match handed {
        Some(socket) => UnixListen::bound(socket, refuse),
        None => UnixListen::bind(&path, refuse),
    };
    let socket = socket.inspect_err(|error| {
        log::warn!(path:% = path.display(), error:% = error; "root is not served on a socket");
    });
    let api = Arc::new(Api { guarding: Guarding::Root, ..Api::clone(api) });
    let clock = Arc::clone(&parts.clock);
    async move {
        if let Ok(socket) = socket {
            Server::new(socket, None, limits, clock, rejected).run(handler(api), stop).await;
        }
        std::future::pending().await
    }
}

/// Cuts the connections of those whose certificate was revoked, or whose principal is gone, at once.
pub(super) async fn cut_revoked(api: Arc<Api>, connections: Connections) -> String {
    let mut principals = Vec::new();
    loop {
        let model = api.cache().model();
        let known: Vec<_> = model.principals.iter().map(|one| (one.meta.uuid, one.meta.resource_version)).collect();
        if known != principals {
            principals = known;
            connections.cut(|peer| peer.identity.as_ref().is_some_and(|identity| api.is_revoked(identity)));
        }
        api.cache().reached(model.revision.next()).await;
    }
}
