//! `GET /v1/events`: changes as server-sent events, until the client disconnects.
//!
//! There are two classes of events. The events of changed objects belong to a revision of the store, and only the last
//! event of a revision has that revision as its id. A client that was disconnected therefore resumes after the last
//! revision that it received completely. Node states are not stored and have no id. A stream begins with all states,
//! and continues with changes.

mod encode;
mod stream;

use std::sync::Arc;

use stemma_core::object::Kind;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};

use super::filter;
use crate::api::Api;
use crate::api::http::query::{BadQuery, QueryString};
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::registry::store_error;
use crate::store::{Revision, WatchError};
use stream::{EventSender, StreamRequest};

pub use stream::EventStreams;

/// The header with the id of the last event that a client received. The stream resumes after that event.
const LAST_EVENT_ID: &str = "last-event-id";

/// `GET /v1/events`: starts a stream of events. An asynchronous task of its own sends the events after this function
/// has returned. Fails if too many streams are open, or if the first requested revision is no longer stored or is later
/// than the store's next one.
pub(super) async fn watch(api: &Api, request: &HttpRequest) -> HandlerResult {
    let filter = Arc::new(EventFilter::read(&request.query)?);
    let slot = api.streams.admit(&request.requester)?;
    let store = api.registry.store();
    let head = store.head().await.map_err(|error| store_error(&error))?;
    let start = first_revision(request)?.unwrap_or(head.next());
    if start > head.next() {
        let message = format!("revision {start} is ahead of the store's, which is {head}");
        return Err(ApiError::new(ErrorType::RevisionAhead, message).field("from"));
    }
    // If the first revision was compacted, the request fails with a status, instead of a stream that ends at once.
    if start <= head {
        drop(store.watch(start).next().await.map_err(watch_error)?);
    }
    let changes = store.watch(start);
    let stream_request = StreamRequest { api: api.clone(), requester: request.requester.clone(), filter };
    let previous = Revision::new(start.get().saturating_sub(1));
    let (stream, events) = EventSender::new(stream_request, previous, slot);
    tokio::spawn(stream.run(changes));
    Ok(HttpResponse::events(events))
}

/// Returns the first requested revision, or `None` if the stream begins with new changes. The header `Last-Event-ID`
/// has precedence over the parameter `from`, because a browser that reconnects sends that header together with the
/// original URL.
fn first_revision(request: &HttpRequest) -> Result<Option<Revision>, ApiError> {
    if let Some(text) = request.header_text(LAST_EVENT_ID) {
        let invalid = |_| {
            let message = format!("Last-Event-ID {} is not the id of an event", stemma_wire::error::quote(&text));
            ApiError::new(ErrorType::RequestMalformed, message)
        };
        return text.trim().parse().map(|last| Some(Revision::new(last).next())).map_err(invalid);
    }
    let first: Option<u64> = request.query.integer("from", "it is a revision")?;
    Ok(first.map(Revision::new))
}

/// Converts the error of a watch of the store into the error for the client.
fn watch_error(error: WatchError) -> ApiError {
    match error {
        WatchError::Compacted { from, oldest } => {
            let message = format!("the events of revision {from} are no longer stored; the oldest ones are of revision {oldest}");
            let advice = "list the objects again, then watch from the revision after that list";
            ApiError::new(ErrorType::EventsCompacted, message).detail(advice)
        }
        WatchError::Store(error) => store_error(&error),
    }
}

/// The events that a request selects.
struct EventFilter {
    /// True if the events of changed objects are requested.
    has_objects: bool,
    /// True if the states of nodes are requested.
    has_statuses: bool,
    /// The kinds of objects. `None` for all kinds.
    kinds: Option<Vec<Kind>>,
    selector: Option<Selector>,
}

impl EventFilter {
    /// Reads the filter from the query. Without `class` and `kind`, all events are requested. Only nodes have states,
    /// so a `kind` without nodes excludes states.
    fn read(query: &QueryString) -> Result<Self, ApiError> {
        let classes = query.list("class")?;
        if let Some(class) = classes.iter().flatten().find(|class| !["object", "status"].contains(*class)) {
            return Err(BadQuery::bad_value("class", class, "it is object or status").into());
        }
        let kinds = query.list("kind")?.map(|words| words.into_iter().map(parse_kind).collect::<Result<Vec<_>, _>>());
        let kinds = kinds.transpose()?;
        let has_class = |class| classes.as_ref().is_none_or(|classes| classes.contains(&class));
        Ok(Self {
            has_objects: has_class("object"),
            has_statuses: has_class("status") && kinds.as_ref().is_none_or(|kinds| kinds.contains(&Kind::Node)),
            kinds,
            selector: filter::read_selector(query)?,
        })
    }

    fn has_kind(&self, kind: Kind) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    }
}

/// Parses the word for a kind of stored objects.
fn parse_kind(word: &str) -> Result<Kind, BadQuery> {
    let kinds = || Kind::ALL.iter().copied().filter(|kind| kind.is_stored());
    let found = kinds().find(|kind| kind.name().eq_ignore_ascii_case(word));
    found.ok_or_else(|| {
        let words: Vec<&str> = kinds().map(Kind::word).collect();
        BadQuery::bad_value("kind", word, format!("it is one of {}", words.join(", ")))
    })
}
