//! One client's stream: a position in the changes of the store and in those of where nodes stand, and a short queue of what is told.

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

use super::{Filter, told};
use crate::api::Api;
use crate::api::http::body::told_in;
use crate::api::http::budget::FRAME;
use crate::registry::Who;
use crate::registry::budget::{Budget, Share};
use crate::status::Position;
use crate::store::{Change, EventKind, Revision, Watch, WatchError};

/// How many streams there may be at the same time, whoever has them.
const MOST_STREAMS: u64 = 1_000;
/// How many texts wait for a client that takes them one by one.
const QUEUED: usize = 8;
/// How long it may take over one of them.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often something is said, so that both ends know of each other.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Changes of states within this time are told together.
const TOGETHER: Duration = Duration::from_millis(100);
/// How many changes behind the last a stream is caught up on a thread of its own, since they may have to be read from the disk.
const FAR_BEHIND: u64 = 1_024;
/// How many streams are told of a commit at the same time, of the threads that requests have as well.
const TOLD_AT_ONCE: usize = 4;
/// How many bytes may wait for all clients together.
const MOST_WAITING: u64 = 64 * 1024 * 1024;
/// How many times the bytes of what is stored an event of it may have as text. What it has is known when it is made.
const TEXT_OF_STORED: usize = 4;
/// Of how many nodes one text tells where they stand.
const NODES_AT_ONCE: usize = 256;

/// Who is told of events. A stream stays for as long as its client does, so streams have places of their own beside requests.
#[derive(Clone)]
pub struct Streams {
    places: Budget,
    threads: Arc<Semaphore>,
    waiting: Budget,
    over: Arc<watch::Sender<bool>>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            places: Budget::new(Shares::of(MOST_STREAMS)),
            threads: Arc::new(Semaphore::new(TOLD_AT_ONCE)),
            waiting: Budget::new(Shares::of(MOST_WAITING)),
            over: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl Streams {
    /// Ends all streams.
    pub fn end(&self) {
        self.over.send_replace(true);
    }

    /// A place for one stream of a principal, until it is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] when there are as many as may be, or as one principal, or all who are bound to one cluster, may have.
    pub(super) fn admit(&self, who: &Who) -> Result<Share, ApiError> {
        let message = format!(
            "{MOST_STREAMS} clients are told of events at most, a quarter of them of one principal and half of all who are bound to one cluster; \
             end some of yours, or try again"
        );
        self.places.try_take(who, 1).ok_or_else(|| ApiError::new(ErrorType::ServerBusy, message))
    }

    /// Room for a text of about so many bytes, where there is some now.
    fn room_now(&self, who: &Who, bytes: usize) -> Option<Share> {
        self.waiting.try_take(who, Self::amount(bytes))
    }

    /// What is taken for a text of so many bytes: of a larger one than there is room for all that one may have.
    fn amount(bytes: usize) -> u64 {
        (bytes as u64).clamp(1, MOST_WAITING - MOST_WAITING / 16)
    }

    /// Waits until a text of about so many bytes may be made. Its share is held until the client has taken the text.
    async fn room(&self, who: &Who, bytes: usize) -> Result<Share, End> {
        let bytes = Self::amount(bytes);
        let slow = || End::Cut(ErrorType::EventsSlow.into());
        self.waiting.take(who, bytes, PATIENCE).await.ok_or_else(slow)
    }
}

/// Why a stream ends.
enum End {
    /// The client went away.
    Left,
    /// The client is told why.
    Cut(ApiError),
}

/// What a client asked for, and who it is.
pub(super) struct Asked {
    pub(super) api: Api,
    pub(super) who: Who,
    pub(super) filter: Arc<Filter>,
}

/// A stream.
pub(super) struct Stream {
    asked: Asked,
    /// The last revision that was looked at.
    revision: Revision,
    /// The place of the last change of a state that was told; `None`: nothing was told yet.
    status: Option<Position>,
    events: Sender<Bytes>,
    last_word: OwnedPermit<Bytes>,
    _place: Share,
}

impl Stream {
    /// A stream behind a revision, and what it will tell.
    pub(super) fn new(asked: Asked, revision: Revision, place: Share) -> (Self, Receiver<Bytes>) {
        let (events, told) = channel(QUEUED + 1);
        let last_word = events.clone().try_reserve_owned().expect("a new queue is empty");
        (Self { asked, revision, status: None, events, last_word, _place: place }, told)
    }

    /// Tells what changes until the client goes away or is cut off.
    pub(super) async fn run(mut self, changes: Watch) {
        let mut over = self.asked.api.streams.over.subscribe();
        let end = tokio::select! {
            Err(end) = self.tell(changes) => end,
            () = async { drop(over.wait_for(|is_over| *is_over).await) } => End::Cut(ErrorType::ServerStopping.into()),
        };
        if let End::Cut(reason) = end {
            self.last_word.send(format!("event: end\ndata: {}\n\n", reason.body()).into());
        }
    }

    async fn tell(&mut self, changes: Watch) -> Result<Infallible, End> {
        self.say("begins").await?;
        let mut statuses = self.asked.statuses();
        if self.asked.filter.statuses {
            self.tell_all_statuses().await?;
        }
        // What the table of states comes to say from now on is told as it comes.
        self.asked.api.is_behind = false;
        let mut changes = self.catch_up(changes).await?;
        let mut alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.next() => self.tell_change(change.map_err(lost)?).await?,
                () = changed(&mut statuses) => {
                    sleep(TOGETHER).await;
                    self.tell_statuses().await?;
                }
                _ = alive.tick() => {
                    self.check()?;
                    self.say("keep-alive").await?;
                }
                () = self.events.closed() => return Err(End::Left),
            }
        }
    }

    /// Goes on until little is left to be told.
    async fn catch_up(&mut self, mut changes: Watch) -> Result<Watch, End> {
        while self.revision.get() + FAR_BEHIND < self.asked.api.cache().model().revision.get() {
            let next = async move { (changes.next().await, changes) };
            let (change, behind) = self.aside(next).await?;
            changes = behind;
            self.tell_change(change.map_err(lost)?).await?;
        }
        Ok(changes)
    }

    /// Says that the stream is there, and behind which revision a client goes on that was told nothing since.
    async fn say(&self, what: &str) -> Result<(), End> {
        let place = self.room(0).await?;
        self.send(format!(": {what}\nid: {}\n\n", self.revision), place).await
    }

    /// Who was told until now may be told no more.
    fn check(&self) -> Result<(), End> {
        let Asked { api, who, .. } = &self.asked;
        api.check_still(who).map_err(End::Cut)
    }

    async fn tell_change(&mut self, change: Arc<Change>) -> Result<(), End> {
        let Asked { api, filter, .. } = &self.asked;
        api.cache().reached(change.revision).await;
        self.check()?;
        let revision = change.revision;
        if filter.objects && told::is_commit(&change) {
            let (change, mut place) = self.with_room(change).await?;
            let text = self.aside(told::objects(api.clone(), Arc::clone(filter), change)).await??;
            if let Some(place) = &mut place {
                place.settle(text.capacity() as u64);
            }
            self.send(text, place).await?;
        }
        self.revision = revision;
        Ok(())
    }

    /// Tells what became of nodes since it was told last.
    async fn tell_statuses(&mut self) -> Result<(), End> {
        let Some(desired) = self.asked.api.desired.clone() else { return Ok(()) };
        let Some(status) = self.status else { return Ok(()) };
        match desired.status().since(status) {
            Ok(changes) => {
                let sequence = changes.last().map_or(status.sequence, |change| change.sequence);
                self.status = Some(Position { sequence, ..status });
                // Of a node that changed twice the last one counts.
                let nodes: BTreeSet<Uuid> = changes.iter().map(|change| change.node).collect();
                self.tell_statuses_of(nodes.into_iter().collect()).await
            }
            // The client fell behind what is kept.
            Err(_missed) => self.tell_all_statuses().await,
        }
    }

    async fn tell_all_statuses(&mut self) -> Result<(), End> {
        let Some(desired) = self.asked.api.desired.clone() else { return Ok(()) };
        self.status = Some(*desired.status().subscribe().borrow());
        let nodes = self.asked.api.model().nodes.iter().map(|node| node.meta.uuid).collect();
        self.tell_statuses_of(nodes).await
    }

    async fn tell_statuses_of(&mut self, nodes: Vec<Uuid>) -> Result<(), End> {
        for some in nodes.chunks(NODES_AT_ONCE) {
            self.check()?;
            let (api, filter, some) = (self.asked.api.clone(), Arc::clone(&self.asked.filter), some.to_vec());
            let place = self.room(some.len() * 256).await?;
            let text = self.aside(async move { told::statuses(&api, &filter, &some) }).await?;
            self.send(text, place).await?;
        }
        Ok(())
    }

    /// Whether a text of about so many bytes needs room. A small one for whom nothing else waits needs none, so that a client that takes
    /// what it is told is not cut because of others.
    fn needs_room(&self, bytes: usize) -> bool {
        bytes > FRAME || self.events.capacity() < QUEUED
    }

    /// Room for a text of about so many bytes; `None`: it needs none.
    async fn room(&self, bytes: usize) -> Result<Option<Share>, End> {
        if !self.needs_room(bytes) {
            return Ok(None);
        }
        self.asked.api.streams.room(&self.asked.who, bytes).await.map(Some)
    }

    /// A change, and room for what is told of it. While a stream waits for room it holds no change: one that was read from the disk is as
    /// large as it was written, and shared with no other stream.
    async fn with_room(&self, change: Arc<Change>) -> Result<(Arc<Change>, Option<Share>), End> {
        let Asked { api, who, .. } = &self.asked;
        let revision = change.revision;
        let stored = change.events.iter().map(|event| match &event.kind {
            EventKind::Put { value, .. } => value.len(),
            EventKind::Delete => 0,
        });
        let bytes = stored.sum::<usize>().saturating_mul(TEXT_OF_STORED);
        if !self.needs_room(bytes) {
            return Ok((change, None));
        }
        if let Some(room) = api.streams.room_now(who, bytes) {
            return Ok((change, Some(room)));
        }
        drop(change);
        let room = api.streams.room(who, bytes).await?;
        let change = api.registry.store().watch(revision).next().await.map_err(lost)?;
        Ok((change, Some(room)))
    }

    /// Gives a text to the client, which may take its time, but not all of it.
    async fn send(&self, text: String, place: Option<Share>) -> Result<(), End> {
        if text.is_empty() {
            return Ok(());
        }
        match timeout(PATIENCE, self.events.send(told_in(text, place))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Left),
            Err(_) => Err(End::Cut(ErrorType::EventsSlow.into())),
        }
    }

    /// Works something out on a thread that may compute. Of those there are few for all streams.
    async fn aside<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, End> {
        let threads = Arc::clone(&self.asked.api.streams.threads);
        let place = threads.acquire_owned().await;
        let runtime = Handle::current();
        let done = spawn_blocking(move || {
            let _until_it_is_done = place;
            runtime.block_on(work)
        });
        done.await.map_err(|_| End::Cut(ErrorType::ServerInternal.into()))
    }
}

impl Asked {
    /// The number of the last change of a state, where that is asked for.
    fn statuses(&self) -> Option<watch::Receiver<Position>> {
        let desired = self.api.desired.as_ref().filter(|_| self.filter.statuses);
        desired.map(|desired| desired.status().subscribe())
    }
}

impl From<ApiError> for End {
    fn from(error: ApiError) -> Self {
        Self::Cut(error)
    }
}

fn lost(error: WatchError) -> End {
    End::Cut(super::lost(error))
}

async fn changed(statuses: &mut Option<watch::Receiver<Position>>) {
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
    use crate::registry::testing::{bound, viewer};

    #[test]
    fn x03_who_takes_all_places_they_can_shuts_out_nobody_else() {
        let streams = Streams::default();
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            held.extend((0..250).map(|_| streams.admit(&viewer(name)).unwrap()));
            assert!(streams.admit(&viewer(name)).is_err(), "{name} has a quarter");
        }
        held.extend((0..188).map(|_| streams.admit(&viewer("d")).unwrap()));
        assert!(streams.admit(&viewer("d")).is_err() && streams.admit(&viewer("e")).is_err());
        held.extend((0..62).map(|_| streams.admit(&Who::by_way("root")).unwrap()));
        assert!(streams.admit(&Who::by_way("root")).is_err());
        held.clear();
        assert!(streams.admit(&viewer("e")).is_ok());
    }

    #[test]
    fn x03_principals_of_one_cluster_take_half_of_the_places_together() {
        let streams = Streams::default();
        let mut held = Vec::new();
        for name in ["a", "b"] {
            held.extend((0..250).map(|_| streams.admit(&bound(name, 1)).unwrap()));
        }
        let refused = streams.admit(&bound("c", 1)).err().expect("they have half");
        assert_eq!(refused.kind, ErrorType::ServerBusy);
        assert!(refused.message.contains("half of all who are bound to one cluster"), "{}", refused.message);
        assert!(streams.admit(&bound("d", 2)).is_ok() && streams.admit(&viewer("e")).is_ok());
        held.pop();
        assert!(streams.admit(&bound("c", 1)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn x03_a_client_is_cut_when_its_own_principal_or_all_leave_no_room_for_ten_seconds() {
        let streams = Streams::default();
        let (slow, other) = (viewer("slow"), viewer("other"));
        let Ok(first) = streams.room(&slow, 16 << 20).await else { panic!("nothing waits yet") };
        let began = Instant::now();
        let cut = streams.room(&slow, 1).await;
        assert!(matches!(&cut, Err(End::Cut(why)) if why.kind == ErrorType::EventsSlow));
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        assert!(streams.room(&other, 1).await.is_ok(), "it is not cut for the sake of another");
        drop(first);
        assert!(streams.room(&slow, 1).await.is_ok(), "its text was taken");
    }
}
