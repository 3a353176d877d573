//! The admin listener's side: what is served there.

use std::sync::Arc;

use hyper::Request;
use stemma_core::traits::TraitNames;
use stemma_wire::serve::{Peer, RequestBody};

use super::Parts;
use crate::api::{Answering, Api, Guarding, Readers, Writers};
use crate::config::{AdminListen, Config};

/// What answers operators.
pub(super) fn handler(
    parts: &Arc<Parts>,
    config: &Config,
    traits: TraitNames,
    agents_port: u16,
) -> impl Fn(&Arc<Peer>, Request<RequestBody>) -> Answering + Send + Sync + 'static {
    let guarding = match config.admin {
        AdminListen::Tls(_) => Guarding::Certificates,
        AdminListen::Plain(_) => Guarding::Loopback,
    };
    let api = Api {
        registry: Arc::clone(&parts.registry),
        blobs: Arc::clone(&parts.blobs),
        desired: Some(Arc::clone(&parts.desired)),
        reconciler: Some(Arc::clone(&parts.reconciler)),
        metrics: Some(Arc::clone(&parts.metrics)),
        rejected: Arc::clone(&parts.rejected),
        traits,
        readers: Readers::default(),
        writers: Writers::default(),
        agents_port,
        guarding,
    };
    crate::api::handler(Arc::new(api))
}
