//! The event stream of one client. It consists of a position in the changes of the store, a position in the changes of
//! node states, and a short queue of texts to send.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stemma_core::shares::Shares;
use stemma_wire::error::{ApiError, ErrorType};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use uuid::Uuid;

use super::{EventFilter, encode};
use crate::api::Api;
use crate::api::http::body::bytes_with_share;
use crate::api::http::budget::MAX_FREE_RESPONSE_BYTES;
use crate::registry::Requester;
use crate::registry::budget::{Share, SharedBudget};
use crate::status::StatusPosition;
use crate::store::{Change, EventKind, Revision, Watch, WatchError};

/// Maximum number of streams of all clients.
const MAX_STREAMS: u64 = 1_000;
/// Maximum number of texts (encoded events, or a comment with the revision) that are queued for one client.
const MAX_QUEUED_TEXTS: usize = 8;
/// Maximum time that a stream waits for a place in the queue of its client, or for memory. Then the stream ends.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of keep-alive comments, by which both ends notice a broken connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time between a change of a state and its event. All changes of states within this time are sent together.
const STATUS_DEBOUNCE: Duration = Duration::from_millis(100);
/// Maximum number of revisions that a new stream reads without a blocking thread. A new stream that is further behind
/// the fleet in memory reads the older changes on a blocking thread, because they may be on the disk.
const CATCH_UP_LAG: u64 = 1_024;
/// Maximum number of blocking threads that all streams use together, to encode events and to read old changes. Requests
/// need blocking threads too.
const MAX_ENCODE_THREADS: usize = 4;
/// Maximum number of bytes that all streams together reserve for queued texts. A small text may need no reservation.
const MAX_QUEUED_BYTES: u64 = 64 * 1024 * 1024;
/// Estimated size of the events of a commit, as a multiple of the bytes that the commit stored. The actual size is
/// known only after the events are encoded.
const TEXT_EXPANSION: usize = 4;
/// Maximum number of nodes whose states are sent in one text.
const NODES_PER_TEXT: usize = 256;

/// The state that all event streams share: their limits, and the signal that ends them. A stream lasts as long as its
/// client, so streams have limits of their own, separate from requests.
#[derive(Clone)]
pub struct EventStreams {
    slots: SharedBudget,
    threads: Arc<Semaphore>,
    queued_bytes: SharedBudget,
    close_signal: Arc<watch::Sender<bool>>,
}

impl Default for EventStreams {
    fn default() -> Self {
        Self {
            slots: SharedBudget::new(Shares::from_total(MAX_STREAMS)),
            threads: Arc::new(Semaphore::new(MAX_ENCODE_THREADS)),
            queued_bytes: SharedBudget::new(Shares::from_total(MAX_QUEUED_BYTES)),
            close_signal: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl EventStreams {
    /// Ends all streams.
    pub fn close(&self) {
        self.close_signal.send_replace(true);
    }

    /// Reserves one of the [`MAX_STREAMS`] slots for a stream of a principal. The slot is released when the returned
    /// share is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if the limit of all streams, of one principal, or of the principals of one cluster is
    /// reached.
    pub(super) fn admit(&self, requester: &Requester) -> Result<Share, ApiError> {
        let message = format!(
            "{MAX_STREAMS} clients can watch events at once, a quarter of them of one principal and half of all who are bound to one cluster; \
             end some of yours, or try again"
        );
        self.slots.try_take(requester, 1).ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
    }

    /// Reserves about `bytes` of memory for a text. Returns `None` if that amount is not free now, if it exceeds the
    /// limit of the principal or its cluster, or if another stream waits for memory.
    fn try_reserve(&self, requester: &Requester, bytes: usize) -> Option<Share> {
        self.queued_bytes.try_take(requester, Self::capped_bytes(bytes))
    }

    /// Returns the number of bytes to reserve for a text: its size, but at most the total without the sixteenth that is
    /// reserved for admins. A reservation of more bytes could never succeed for other callers.
    fn capped_bytes(bytes: usize) -> u64 {
        (bytes as u64).clamp(1, MAX_QUEUED_BYTES - MAX_QUEUED_BYTES / 16)
    }

    /// Waits until about `bytes` are free for a text. The share is held until the client has accepted the text. Fails
    /// if the memory is not free in time.
    async fn reserve(&self, requester: &Requester, bytes: usize) -> Result<Share, StreamEnd> {
        let bytes = Self::capped_bytes(bytes);
        let too_slow = || StreamEnd::Error(ErrorType::EventsSlow.into());
        self.queued_bytes.take(requester, bytes, SEND_TIMEOUT).await.ok_or_else(too_slow)
    }
}

/// The reason why a stream ends. The end of all streams, when the controller stops, is an error too.
enum StreamEnd {
    /// The client disconnected.
    Disconnected,
    /// An error. The client receives it as the last event.
    Error(ApiError),
}

/// The request for a stream, with its caller.
pub(super) struct StreamRequest {
    pub(super) api: Api,
    pub(super) requester: Requester,
    pub(super) filter: Arc<EventFilter>,
}

/// The sender of one stream.
pub(super) struct EventSender {
    request: StreamRequest,
    /// The last revision that was handled.
    revision: Revision,
    /// The position of the last state change that was sent. `None` until the states of all nodes are being sent.
    status_position: Option<StatusPosition>,
    /// The queue of texts for the client.
    events: Sender<Bytes>,
    /// A reserved place in the queue for the last text, which contains the reason why the stream ends.
    final_permit: OwnedPermit<Bytes>,
    /// The slot of the stream, which is released when the stream ends.
    _slot: Share,
}

impl EventSender {
    /// Creates the sender of a stream that begins after a revision, and the receiver of its texts.
    pub(super) fn new(request: StreamRequest, revision: Revision, slot: Share) -> (Self, Receiver<Bytes>) {
        let (events, receiver) = channel(MAX_QUEUED_TEXTS + 1);
        let final_permit = events.clone().try_reserve_owned().expect("a new queue is empty");
        (Self { request, revision, status_position: None, events, final_permit, _slot: slot }, receiver)
    }

    /// Runs the stream until the client disconnects, an error occurs, or all streams are ended. The last text contains
    /// the reason why the stream ends.
    pub(super) async fn run(mut self, changes: Watch) {
        let mut stop = self.request.api.streams.close_signal.subscribe();
        let end = tokio::select! {
            Err(end) = self.run_loop(changes) => end,
            () = async { drop(stop.wait_for(|is_over| *is_over).await) } => StreamEnd::Error(ErrorType::ServerStopping.into()),
        };
        if let StreamEnd::Error(reason) = end {
            self.final_permit.send(format!("event: end\ndata: {}\n\n", reason.body()).into());
        }
    }

    /// Sends the states of all nodes, then the changes that the client missed, and then each change and each new state
    /// when it occurs. Returns only when the stream ends, with the reason.
    async fn run_loop(&mut self, changes: Watch) -> Result<Infallible, StreamEnd> {
        self.send_bookmark("begins").await?;
        let mut statuses = self.request.status_updates();
        if self.request.filter.has_statuses {
            self.send_all_statuses().await?;
        }
        // From now on, the client gets the states from the table of states. The first states may have been computed
        // from the model, to include the caller's own writes.
        self.request.api.is_stale = false;
        let mut changes = self.catch_up(changes).await?;
        let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE_INTERVAL, KEEP_ALIVE_INTERVAL);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.next() => self.send_change(change.map_err(watch_end)?).await?,
                () = next_status(&mut statuses) => {
                    sleep(STATUS_DEBOUNCE).await;
                    self.send_statuses().await?;
                }
                _ = keep_alive.tick() => {
                    self.recheck()?;
                    self.send_bookmark("keep-alive").await?;
                }
                () = self.events.closed() => return Err(StreamEnd::Disconnected),
            }
        }
    }

    /// Sends changes until the stream is at most [`CATCH_UP_LAG`] revisions behind. Returns the watch, which continues
    /// after these changes.
    async fn catch_up(&mut self, mut changes: Watch) -> Result<Watch, StreamEnd> {
        while self.revision.get() + CATCH_UP_LAG < self.request.api.cache().model().revision.get() {
            // An old change may be read from the disk, so a blocking thread reads it. The future returns the watch too.
            let next = async move { (changes.next().await, changes) };
            let (change, remaining) = self.run_blocking(next).await?;
            changes = remaining;
            self.send_change(change.map_err(watch_end)?).await?;
        }
        Ok(changes)
    }

    /// Sends a comment with the revision of the stream as its id. A client that gets no events then resumes after that
    /// revision. `comment` is the text of the comment.
    async fn send_bookmark(&self, comment: &str) -> Result<(), StreamEnd> {
        let share = self.reserve(0).await?;
        self.send(format!(": {comment}\nid: {}\n\n", self.revision), share).await
    }

    /// Fails if the caller's credential is no longer valid, or if its role or cluster has changed.
    fn recheck(&self) -> Result<(), StreamEnd> {
        let StreamRequest { api, requester, .. } = &self.request;
        api.recheck(requester).map_err(StreamEnd::Error)
    }

    /// Sends the events of one change of the store, if it is a commit. First waits until the cache has the change,
    /// because the events are encoded with the model.
    async fn send_change(&mut self, change: Arc<Change>) -> Result<(), StreamEnd> {
        let StreamRequest { api, filter, .. } = &self.request;
        api.cache().wait_for(change.revision).await;
        self.recheck()?;
        let revision = change.revision;
        if filter.has_objects && encode::is_commit(&change) {
            let (change, mut share) = self.reserve_change(change).await?;
            let text = self.run_blocking(encode::encode_objects(api.clone(), Arc::clone(filter), change)).await??;
            if let Some(share) = &mut share {
                share.set_amount(text.capacity() as u64);
            }
            self.send(text, share).await?;
        }
        self.revision = revision;
        Ok(())
    }

    /// Sends the states that changed since the last time, or all if the table no longer has all of these changes.
    async fn send_statuses(&mut self) -> Result<(), StreamEnd> {
        // Without agents, and before the first states are sent, there is nothing to send.
        let Some(desired) = self.request.api.desired.clone() else { return Ok(()) };
        let Some(position) = self.status_position else { return Ok(()) };
        match desired.status().changes_since(position) {
            Ok(changes) => {
                let sequence = changes.last().map_or(position.sequence, |change| change.sequence);
                self.status_position = Some(StatusPosition { sequence, ..position });
                // If a node changed twice, only its present state is sent.
                let nodes: BTreeSet<Uuid> = changes.iter().map(|change| change.node).collect();
                self.send_node_statuses(nodes.into_iter().collect()).await
            }
            // The client is further behind than the retained changes.
            Err(_missed) => self.send_all_statuses().await,
        }
    }

    /// Sends the states of all nodes. Stores the position of the last state change before it reads the states, so that
    /// no later change is missed.
    async fn send_all_statuses(&mut self) -> Result<(), StreamEnd> {
        let Some(desired) = self.request.api.desired.clone() else { return Ok(()) };
        self.status_position = Some(*desired.status().subscribe().borrow());
        let nodes = self.request.api.model().nodes.iter().map(|node| node.meta.uuid).collect();
        self.send_node_statuses(nodes).await
    }

    /// Sends the states of these nodes, in texts of at most [`NODES_PER_TEXT`] nodes.
    async fn send_node_statuses(&mut self, nodes: Vec<Uuid>) -> Result<(), StreamEnd> {
        for chunk in nodes.chunks(NODES_PER_TEXT) {
            self.recheck()?;
            let (api, filter, chunk) = (self.request.api.clone(), Arc::clone(&self.request.filter), chunk.to_vec());
            // The estimated size of one state is 256 bytes.
            let share = self.reserve(chunk.len() * 256).await?;
            let text = self.run_blocking(async move { encode::encode_statuses(&api, &filter, &chunk) }).await?;
            self.send(text, share).await?;
        }
        Ok(())
    }

    /// Returns whether memory must be reserved for a text. A small text in an empty queue needs no reservation, so that
    /// a client that reads its events is not disconnected because other clients use up the memory.
    fn should_reserve(&self, bytes: usize) -> bool {
        bytes > MAX_FREE_RESPONSE_BYTES || self.events.capacity() < MAX_QUEUED_TEXTS
    }

    /// Reserves about `bytes` of memory for a text. Returns `None` if the text needs no reservation.
    async fn reserve(&self, bytes: usize) -> Result<Option<Share>, StreamEnd> {
        if !self.should_reserve(bytes) {
            return Ok(None);
        }
        self.request.api.streams.reserve(&self.request.requester, bytes).await.map(Some)
    }

    /// Returns a change with the memory that is reserved for its events. If the stream must wait for that memory, it
    /// drops the change and reads the change again later. A change that was read from the disk is as large as its
    /// commit, and many waiting streams would each hold one in memory.
    async fn reserve_change(&self, change: Arc<Change>) -> Result<(Arc<Change>, Option<Share>), StreamEnd> {
        let StreamRequest { api, requester, .. } = &self.request;
        let revision = change.revision;
        let stored_sizes = change.events.iter().map(|event| match &event.kind {
            EventKind::Put { value, .. } => value.len(),
            EventKind::Delete => 0,
        });
        let bytes = stored_sizes.sum::<usize>().saturating_mul(TEXT_EXPANSION);
        if !self.should_reserve(bytes) {
            return Ok((change, None));
        }
        if let Some(share) = api.streams.try_reserve(requester, bytes) {
            return Ok((change, Some(share)));
        }
        drop(change);
        let share = api.streams.reserve(requester, bytes).await?;
        let change = api.registry.store().watch(revision).next().await.map_err(watch_end)?;
        Ok((change, Some(share)))
    }

    /// Sends a text to the client, unless the text is empty. Fails if the client does not read it in time. `share` is
    /// its share of [`MAX_QUEUED_BYTES`], which is released when the text was passed to the client's connection.
    async fn send(&self, text: String, share: Option<Share>) -> Result<(), StreamEnd> {
        if text.is_empty() {
            return Ok(());
        }
        match timeout(SEND_TIMEOUT, self.events.send(bytes_with_share(text, share))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(StreamEnd::Disconnected),
            Err(_) => Err(StreamEnd::Error(ErrorType::EventsSlow.into())),
        }
    }

    /// Runs work on a blocking thread. All streams together use at most [`MAX_ENCODE_THREADS`] such threads.
    async fn run_blocking<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, StreamEnd> {
        let threads = Arc::clone(&self.request.api.streams.threads);
        let permit = threads.acquire_owned().await;
        let runtime = Handle::current();
        let task = spawn_blocking(move || {
            let _permit = permit;
            runtime.block_on(work)
        });
        task.await.map_err(|_| StreamEnd::Error(ErrorType::ServerInternal.into()))
    }
}

impl StreamRequest {
    /// Subscribes to the position of the last state change, if states are requested.
    fn status_updates(&self) -> Option<watch::Receiver<StatusPosition>> {
        let desired = self.api.desired.as_ref().filter(|_| self.filter.has_statuses);
        desired.map(|desired| desired.status().subscribe())
    }
}

impl From<ApiError> for StreamEnd {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

/// Returns the end of a stream whose watch of the store failed.
fn watch_end(error: WatchError) -> StreamEnd {
    StreamEnd::Error(super::watch_error(error))
}

/// Waits for the next change of a state. Waits forever if states are not requested, or if no more changes will be sent.
async fn next_status(statuses: &mut Option<watch::Receiver<StatusPosition>>) {
    let is_changed = match statuses {
        Some(statuses) => statuses.changed().await.is_ok(),
        None => false,
    };
    if !is_changed {
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::{bound_viewer, viewer};

    /// Of the 1000 slots, a principal may have 250. The last 62 (a sixteenth) are reserved for admins, so the viewers
    /// have 938 slots together. `Requester::from_listener` creates an admin.
    #[test]
    fn x03_admit_serves_others_when_principal_is_at_limit() {
        let streams = EventStreams::default();
        let mut slots = Vec::new();
        for name in ["a", "b", "c"] {
            slots.extend((0..250).map(|_| streams.admit(&viewer(name)).unwrap()));
            assert!(streams.admit(&viewer(name)).is_err(), "{name} has a quarter");
        }
        slots.extend((0..188).map(|_| streams.admit(&viewer("d")).unwrap()));
        assert!(streams.admit(&viewer("d")).is_err() && streams.admit(&viewer("e")).is_err());
        slots.extend((0..62).map(|_| streams.admit(&Requester::from_listener("root")).unwrap()));
        assert!(streams.admit(&Requester::from_listener("root")).is_err());
        slots.clear();
        assert!(streams.admit(&viewer("e")).is_ok());
    }

    /// In this test, two principals that are bound to cluster 1 take 500 of the 1000 slots. A third principal of that
    /// cluster is refused, and callers outside the cluster are not.
    #[test]
    fn x03_admit_limits_principals_of_cluster_to_half_of_slots() {
        let streams = EventStreams::default();
        let mut slots = Vec::new();
        for name in ["a", "b"] {
            slots.extend((0..250).map(|_| streams.admit(&bound_viewer(name, 1)).unwrap()));
        }
        let error = streams.admit(&bound_viewer("c", 1)).err().expect("the principals of cluster 1 have half of the slots");
        assert_eq!(error.kind, ErrorType::ServerBusy);
        assert!(error.message.contains("half of all who are bound to one cluster"), "{}", error.message);
        assert!(streams.admit(&bound_viewer("d", 2)).is_ok() && streams.admit(&viewer("e")).is_ok());
        slots.pop();
        assert!(streams.admit(&bound_viewer("c", 1)).is_ok());
    }

    /// The slow principal reserves 16 MiB, its whole quarter of the memory for texts. Its next reservation fails after
    /// ten seconds.
    #[tokio::test(start_paused = true)]
    async fn x03_reserve_ends_stream_when_no_bytes_are_freed() {
        let streams = EventStreams::default();
        let (slow, other) = (viewer("slow"), viewer("other"));
        let Ok(first_share) = streams.reserve(&slow, 16 << 20).await else { panic!("no bytes are reserved yet") };
        let start = Instant::now();
        let result = streams.reserve(&slow, 1).await;
        assert!(matches!(&result, Err(StreamEnd::Error(error)) if error.kind == ErrorType::EventsSlow));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        assert!(streams.reserve(&other, 1).await.is_ok(), "another principal has a quarter of its own");
        drop(first_share);
        assert!(streams.reserve(&slow, 1).await.is_ok(), "the first share was released");
    }
}
