//! `GET /v1/events`: what changes, as server-sent events, for as long as the client stays.
//!
//! There are two classes. A change of objects has its revision as id, on the last event of the revision alone: a client that was cut
//! off goes on behind what it has seen whole. Where a node stands is stored nowhere and has no id: a stream begins with what is so,
//! and goes on with what changes.

mod stream;
mod told;

use std::sync::Arc;

use stemma_core::object::Kind;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};

use super::filter;
use crate::api::Api;
use crate::api::http::query::{BadQuery, Parameters};
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::registry::store_error;
use crate::store::{Revision, WatchError};
use stream::{Asked, Stream};

pub use stream::Streams;

/// The header with which a client goes on.
const LAST_EVENT_ID: &str = "last-event-id";

/// `GET /v1/events`.
pub(super) async fn watch(api: &Api, request: &Request) -> HandlerResult {
    let filter = Arc::new(Filter::read(&request.query)?);
    let place = api.streams.admit(&request.who)?;
    let store = api.registry.store();
    let head = store.head().await.map_err(|error| store_error(&error))?;
    let from = first(request)?.unwrap_or(head.next());
    if from > head.next() {
        let message = format!("revision {from} is ahead of the store's, which is {head}");
        return Err(ApiError::new(ErrorType::RevisionAhead, message).field("from"));
    }
    // What is no longer kept is refused by its status, and not by a stream that ends at once.
    if from <= head {
        drop(store.watch(from).next().await.map_err(lost)?);
    }
    let changes = store.watch(from);
    let asked = Asked { api: api.clone(), who: request.who.clone(), filter };
    let behind = Revision::new(from.get().saturating_sub(1));
    let (stream, events) = Stream::new(asked, behind, place);
    tokio::spawn(stream.run(changes));
    Ok(Reply::events(events))
}

/// The first revision that is asked for. A browser that connects again sends the last id with the address of before.
fn first(request: &Request) -> Result<Option<Revision>, ApiError> {
    if let Some(text) = request.text(LAST_EVENT_ID) {
        let refused = |_| {
            let message = format!("Last-Event-ID {} is no id that an event had", stemma_wire::error::quote(&text));
            ApiError::new(ErrorType::RequestMalformed, message)
        };
        return text.trim().parse().map(|last| Some(Revision::new(last).next())).map_err(refused);
    }
    let first: Option<u64> = request.query.whole("from", "it is a revision")?;
    Ok(first.map(Revision::new))
}

/// Why a stream goes no further.
fn lost(error: WatchError) -> ApiError {
    match error {
        WatchError::Compacted { from, oldest } => {
            let message = format!("the events of revision {from} are no longer kept, but those from {oldest} on");
            let advice = "read everything again, and then the events behind the revision of that";
            ApiError::new(ErrorType::EventsCompacted, message).detail(advice)
        }
        WatchError::Store(error) => store_error(&error),
    }
}

/// What is asked for.
struct Filter {
    objects: bool,
    statuses: bool,
    /// Of these kinds; `None`: of all.
    kinds: Option<Vec<Kind>>,
    selector: Option<Selector>,
}

impl Filter {
    fn read(query: &Parameters) -> Result<Self, ApiError> {
        let classes = query.list("class")?;
        if let Some(class) = classes.iter().flatten().find(|class| !["object", "status"].contains(*class)) {
            return Err(BadQuery::value("class", class, "it is object or status").into());
        }
        let kinds = query.list("kind")?.map(|words| words.into_iter().map(kind).collect::<Result<Vec<_>, _>>());
        let kinds = kinds.transpose()?;
        let wants = |class| classes.as_ref().is_none_or(|classes| classes.contains(&class));
        Ok(Self {
            objects: wants("object"),
            statuses: wants("status") && kinds.as_ref().is_none_or(|kinds| kinds.contains(&Kind::Node)),
            kinds,
            selector: filter::read_selector(query)?,
        })
    }

    fn takes(&self, kind: Kind) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    }
}

fn kind(word: &str) -> Result<Kind, BadQuery> {
    let told = || Kind::ALL.iter().copied().filter(|kind| kind.is_stored());
    let known = told().find(|kind| kind.name().eq_ignore_ascii_case(word));
    known.ok_or_else(|| {
        let words: Vec<&str> = told().map(Kind::word).collect();
        BadQuery::value("kind", word, format!("it is one of {}", words.join(", ")))
    })
}
