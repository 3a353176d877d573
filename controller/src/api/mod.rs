//! The operators' API over HTTP.
//!
//! It has two layers. [`http`] is the protocol: it reads a request, finds its endpoint in the table
//! `stemma_wire::endpoint`, and renders the response. [`principal`] authenticates the caller. [`resource`] maps each
//! endpoint to its handler, by an exhaustive match. Resources use the protocol, and the protocol does not depend on
//! resources. Handlers read objects from the cache and write through the registry. From the store itself, handlers read
//! only events, the audit, the records of earlier requests, and backups. No handler uses a socket. Handlers get the
//! current time from the registry.

mod http;
mod principal;
mod resource;

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, Response, body::Body};
use stemma_core::object::{ClusterId, PrincipalSpec};
use stemma_core::traits::TraitNames;
use stemma_wire::serve::{BoxError, Peer, RejectionCounter};

pub use http::body::{BoxedBody, StreamLimiter};
pub use http::budget::Budgets;
pub use http::serve::{ListenerAuth, ServeFuture};
pub use http::write_limiter::WriteLimiter;
pub use resource::EventStreams;

use crate::blobs::BlobStore;
use crate::ca::{Authority, ServerName};
use crate::cache::{Cache, Model};
use crate::desired::DesiredTable;
use crate::enrol::TokenAttempts;
use crate::identity::Identities;
use crate::init::Layout;
use crate::metrics::Metrics;
use crate::reconcile::Reconciler;
use crate::registry::Registry;

/// The address at which agents reach a controller.
#[derive(Clone, Debug)]
pub struct AgentEndpoint {
    /// The port of the listener for agents.
    pub port: u16,
    /// The name of this machine for other hosts, if `init` or the configuration sets one.
    pub name: Option<ServerName>,
}

/// The state that all handlers share. A clone shares the same state, and may restrict what its caller sees.
#[derive(Clone)]
pub struct Api {
    /// The registry, which executes writes.
    pub registry: Arc<Registry>,
    /// The stored contents of files.
    pub blobs: Arc<BlobStore>,
    /// The desired states of all nodes, and the check-ins that wait for them. `None` in a test without agents.
    pub desired: Option<Arc<DesiredTable>>,
    /// The reconciler, which explains what nodes wait for. `None` in a test without agents.
    pub reconciler: Option<Arc<Reconciler>>,
    /// The metrics. `None` in a test without agents.
    pub metrics: Option<Arc<Metrics>>,
    /// The counters of refused requests.
    pub rejections: Arc<RejectionCounter>,
    /// The accepted names of traits, including those that this site adds in its configuration.
    pub traits: TraitNames,
    /// The limit on the number of clients to which a response is sent in pieces.
    pub stream_limiter: StreamLimiter,
    /// The limits on concurrent writes and costly reads.
    pub write_limiter: WriteLimiter,
    /// The event streams of clients.
    pub streams: EventStreams,
    /// The limits on the memory that clients use for bodies and responses.
    pub budgets: Budgets,
    /// The address at which agents reach this controller. The response to a new join token contains it.
    pub agent_endpoint: AgentEndpoint,
    /// The way in which the listener authenticates callers.
    pub listener_auth: ListenerAuth,
    /// The certificate authority of the fleet. `None` in a test without agents.
    pub authority: Option<Arc<Authority>>,
    /// The recent wrong tokens, counted by the network of the client.
    pub token_attempts: Arc<TokenAttempts>,
    /// The first admin. A fleet that was created by a version without principals does not contain the first admin yet.
    /// In such a fleet, the first admin is stored together with the first principal. `None` in tests.
    pub first_admin: Option<Arc<PrincipalSpec>>,
    /// The cluster to which the caller is bound. `None` if the caller sees the whole fleet.
    pub visible_cluster: Option<ClusterId>,
    /// True if the table of node states may lack a write that the caller made before. States are then computed from the
    /// model.
    pub is_stale: bool,
    /// The enrolled hosts. `None` in a test without agents.
    pub identities: Option<Arc<Identities>>,
    /// The data directory. `None` in a test without one.
    pub layout: Option<Layout>,
}

impl Api {
    /// Returns the part of the fleet that the caller can see.
    fn model(&self) -> Arc<Model> {
        self.cache().model().visible_in(self.visible_cluster)
    }

    /// Returns the cache, which answers all reads of objects.
    pub fn cache(&self) -> &Arc<Cache> {
        self.registry.cache()
    }
}

/// Returns the response to one request. An error becomes a response too.
pub async fn respond<B>(api: Arc<Api>, peer: Option<Arc<Peer>>, request: Request<B>) -> Response<BoxedBody>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    http::serve::respond(api, peer, request).await
}

/// Returns the function that a listener calls for each request.
pub fn handler<B>(api: Arc<Api>) -> impl Fn(&Arc<Peer>, Request<B>) -> ServeFuture + Send + Sync + 'static
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    move |peer, request| Box::pin(respond(Arc::clone(&api), Some(Arc::clone(peer)), request))
}
