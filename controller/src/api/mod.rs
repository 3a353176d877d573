//! The operators' side over HTTP.
//!
//! It has two floors. [`http`] is the protocol: it opens a request, finds its row of `stemma_wire::endpoint`, and renders the
//! answer. [`principal`] says who asks. [`resource`] gives each row what it does, by an exhaustive match. A resource uses the protocol; the protocol knows no
//! resource. Handlers read the cache and write through the registry. Only events, the audit and requests
//! of before are read from the store, and no decision is. No handler sees a socket or a clock.

mod http;
mod principal;
mod resource;

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, Response, body::Body};
use stemma_core::object::{ClusterId, PrincipalSpec};
use stemma_core::traits::TraitNames;
use stemma_wire::serve::{BoxError, Peer, Rejected};

pub use http::body::{AnswerBody, Readers};
pub use http::budget::Budgets;
pub use http::serve::{Answering, Guarding};
pub use http::writers::Writers;
pub use resource::Streams;

use crate::blobs::Blobs;
use crate::ca::{Authority, ServerName};
use crate::cache::{Cache, Model};
use crate::desired::DesiredTable;
use crate::enrol::Guesses;
use crate::identity::Identities;
use crate::init::Layout;
use crate::metrics::Metrics;
use crate::reconcile::Reconciler;
use crate::registry::Registry;

/// How agents reach a controller.
#[derive(Clone, Debug)]
pub struct Reached {
    /// The port of their listener.
    pub port: u16,
    /// The name by which others know this machine, where `init` or the configuration says one.
    pub name: Option<ServerName>,
}

/// What the handlers share; a clone is another handle of the same.
#[derive(Clone)]
pub struct Api {
    /// Writes.
    pub registry: Arc<Registry>,
    /// Bodies of files.
    pub blobs: Arc<Blobs>,
    /// What nodes were told, and who waits to hear more; none in a test without agents.
    pub desired: Option<Arc<DesiredTable>>,
    /// Who knows what nodes wait for; likewise.
    pub reconciler: Option<Arc<Reconciler>>,
    /// What is counted; likewise.
    pub metrics: Option<Arc<Metrics>>,
    /// What is refused.
    pub rejected: Arc<Rejected>,
    /// The traits that are known at this site.
    pub traits: TraitNames,
    /// Who is sent an answer in pieces.
    pub readers: Readers,
    /// Whose write is worked on.
    pub writers: Writers,
    /// Who is told of events.
    pub streams: Streams,
    /// What clients may hold of bodies and answers.
    pub budgets: Budgets,
    /// How agents reach this controller: a new token's answer says where to join.
    pub agents: Reached,
    /// Which requests the listener takes.
    pub guarding: Guarding,
    /// Who makes certificates; none in a test without agents.
    pub authority: Option<Arc<Authority>>,
    /// Who was wrong about a token.
    pub guesses: Arc<Guesses>,
    /// The first admin: stored together with the first principal of a fleet that was made before there were principals. `None` in tests.
    pub first_admin: Option<Arc<PrincipalSpec>>,
    /// The cluster to which whoever asks is bound.
    pub within: Option<ClusterId>,
    /// Whether the table of states has not reached what whoever asks may have written: states are worked out of the model then.
    pub is_behind: bool,
    /// Which hosts are known; none in a test without agents.
    pub identities: Option<Arc<Identities>>,
    /// Where the data is; none in a test without a data directory.
    pub layout: Option<Layout>,
}

impl Api {
    /// The fleet as whoever asks sees it.
    fn model(&self) -> Arc<Model> {
        self.cache().model().seen_within(self.within)
    }

    /// What all reads come from.
    pub fn cache(&self) -> &Arc<Cache> {
        self.registry.cache()
    }
}

/// Answers one request. Never fails: what goes wrong is an answer.
pub async fn answer<B>(api: Arc<Api>, peer: Option<Arc<Peer>>, request: Request<B>) -> Response<AnswerBody>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    http::serve::answer(api, peer, request).await
}

/// The handler of a listener.
pub fn handler<B>(api: Arc<Api>) -> impl Fn(&Arc<Peer>, Request<B>) -> Answering + Send + Sync + 'static
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    move |peer, request| Box::pin(answer(Arc::clone(&api), Some(Arc::clone(peer)), request))
}
