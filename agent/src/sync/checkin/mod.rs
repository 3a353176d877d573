//! The loop of the network half: one parked check-in at a time, and what comes from `apply`, the label files, the hooks and
//! the clock meanwhile.
//!
//! ```text
//!              something to say (after a moment, so that several things are said at once)
//!   parked ───────────────────────────────────────────────▶ parked on a second connection
//!     │ answer                                                  (the first is answered `superseded`)
//!     ├──▶ offer to apply, then parked again
//!     │ failure
//!     └──▶ waiting (exponential, full jitter) ──▶ parked at the next controller of the list
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log::{debug, info, warn};
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::clock::Clock;
use stemma_wire::log::chain;
use stemma_wire::message::channel::{FromApply, FromSync};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer, News};
use stemma_wire::message::desired::TaskSet;
use stemma_wire::message::{Hash, PartDigest, WireVersion, decode_part};
use tokio::time::{Instant, sleep_until};

use super::backoff::{Backoff, Rival};
use super::connection::{Connections, Standing};
use super::exchange::{BodyKind, ExchangeError, Returned, check_in, fetch};
use super::join::JoinError;
use super::labels;
use super::outbox::Outbox;
use super::renew::{AGAIN, InVain, PendingKey, due_in, renewed};
use super::state::{Credentials, StateError, drop_pending_key, keep_refused_renewal, sweep_own};
use crate::channel::{ChannelError, SyncEnd};
use crate::host::{Host, HostPath, Pending, or_never};
use crate::identity::Identity;
use crate::paths;
use crate::watch::{Part, Watch};

/// Several things that are said within this time are said at once.
const GATHER: Duration = Duration::from_millis(30);
/// Whoever writes label files or hooks is done with it after this time.
const SETTLE: Duration = Duration::from_millis(100);
/// Stable facts are looked at again so often.
const OBSERVE: Duration = Duration::from_hours(1);
/// A controller may ask for no longer a silence, as no failure does.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);
/// By then apply has said what it makes of an offer, however slow its disk.
const JUDGED: Duration = Duration::from_secs(30);

/// What is the matter where two hosts have one identity, and what to do.
const SHARED: &str = "another host, or another agent on this one, uses this host's certificate, as a copy of its disk does. Stop the \
     agent on the copy, remove /var/lib/stemma-agent there, and let it join with a token of its own";

type InFlight<T> = Pending<'static, Returned<T>>;

/// The network half.
pub struct Sync {
    host: Rc<dyn Host>,
    identity: Identity,
    credentials: Credentials,
    targets: VecDeque<Target>,
    tls: Arc<rustls::ClientConfig>,
    clock: Arc<dyn Clock>,
    end: SyncEnd,
    said: Outbox,
    /// In which version the controller is spoken to: the newest of this agent, or an older one that the present controller reads.
    speaks: WireVersion,
    /// The version of the check-in that is parked, and of its answer.
    asked_in: WireVersion,
    backoff: Backoff,
    idle: Option<Client>,
    parked: Option<InFlight<CheckInAnswer>>,
    superseded: Option<InFlight<CheckInAnswer>>,
    fetching: Option<InFlight<bool>>,
    fetched: Hash,
    /// The profile of the desired state that was offered last: all else that is wanted are its blobs.
    profile: Option<Hash>,
    wanted: VecDeque<Hash>,
    /// When the next check-in is due; the parked one is superseded then.
    speak_at: Option<Instant>,
    renew_at: Instant,
    /// A renewal that was asked for.
    renewing: Option<Pending<'static, Result<Credentials, JoinError>>>,
    in_vain: InVain,
    connections: Connections,
    rival: Rival,
    /// A desired state was offered, and apply has not said yet what it makes of it: a check-in now would only bring it again.
    offered: bool,
    /// Offers that were refused in a row.
    refusals: Backoff,
}

/// Why the network half ended.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// Without credentials.
    #[error(transparent)]
    State(#[from] StateError),
    /// `apply` has ended.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Runs until the other half ends.
///
/// # Errors
/// [`SyncError`].
pub async fn run(
    host: Rc<dyn Host>,
    identity: Identity,
    end: SyncEnd,
    clock: Arc<dyn Clock>,
) -> Result<Infallible, SyncError> {
    let mut sync = Sync::new(host, identity, end, clock)?;
    // Who is held decides what is asked for, so nothing is sent before apply has said it.
    sync.first_word().await?;
    sync.speak_at = Some(Instant::now());
    sync.turn().await
}

impl Sync {
    fn new(host: Rc<dyn Host>, identity: Identity, end: SyncEnd, clock: Arc<dyn Clock>) -> Result<Self, SyncError> {
        let credentials = Credentials::load(&*host)?;
        // A key may lie there that was asked with and never kept.
        if let Err(error) = sweep_own(&*host) {
            warn!(error = error.sentence().as_str(); "an unfinished file of an agent that was killed cannot be taken away");
        }
        let tls = credentials.tls(&identity, clock.clone())?;
        let renew_at = renew_at(&credentials, &*clock);
        let connections = Connections::load(&*host).map_err(StateError::from)?;
        Ok(Self {
            targets: credentials.targets().into(),
            said: Outbox::observe(&*host),
            speaks: end.newest(),
            asked_in: end.newest(),
            host,
            identity,
            credentials,
            tls,
            clock,
            end,
            backoff: Backoff::default(),
            idle: None,
            parked: None,
            superseded: None,
            fetching: None,
            fetched: Hash([0; 32]),
            profile: None,
            wanted: VecDeque::new(),
            speak_at: None,
            renew_at,
            renewing: None,
            in_vain: InVain::default(),
            connections,
            rival: Rival::default(),
            offered: false,
            refusals: Backoff::default(),
        })
    }

    async fn first_word(&mut self) -> Result<(), SyncError> {
        loop {
            match self.end.receive().await {
                Ok(message @ FromApply::Hello { .. }) => {
                    self.hear(message);
                    return Ok(());
                }
                Ok(message) => self.hear(message),
                Err(ChannelError::Closed) => return Err(ChannelError::Closed.into()),
                Err(error) => warn!(error:% = error; "a message of apply is left out"),
            }
        }
    }

    async fn turn(mut self) -> Result<Infallible, SyncError> {
        let dirs = [labels::DIR, paths::HOOKS].map(|dir| (self.host.outside(&HostPath::own(dir)), Part::All));
        let mut files = Watch::new(self.host.outside_root(), dirs.into());
        let mut observe_at = Instant::now() + OBSERVE;
        loop {
            tokio::select! {
                (client, answer) = or_never(self.parked.as_mut()) => {
                    self.parked = None;
                    self.answered(client, answer).await?;
                }
                (_, answer) = or_never(self.superseded.as_mut()) => {
                    self.superseded = None;
                    self.superseded_ended(answer);
                }
                (client, given) = or_never(self.fetching.as_mut()) => {
                    self.fetching = None;
                    self.fetched(client, given).await?;
                }
                message = self.end.receive() => self.received(message)?,
                () = or_never(self.speak_at.map(sleep_until)) => {
                    self.speak();
                    if files.is_outdated() {
                        observe_at = observe_at.min(Instant::now() + SETTLE);
                    }
                }
                () = files.changed() => observe_at = observe_at.min(Instant::now() + SETTLE),
                () = sleep_until(observe_at) => {
                    observe_at = Instant::now() + OBSERVE;
                    files.renew();
                    self.observe().await?;
                }
                () = sleep_until(self.renew_at), if self.renewing.is_none() => self.renew(),
                renewed = or_never(self.renewing.as_mut()) => {
                    self.renewing = None;
                    self.renewed(renewed);
                }
            }
        }
    }

    /// Sends a check-in; one that is parked is superseded by it.
    fn speak(&mut self) {
        self.speak_at = None;
        let client = self.idle.take().unwrap_or_else(|| self.client());
        if let Some(parked) = self.parked.take()
            && self.superseded.replace(parked).is_some()
        {
            // Two have had their place taken, and the older may not have arrived yet: now it never will.
            self.said.again();
        }
        self.asked_in = self.speaks;
        let request = self.check_in();
        self.parked = Some(Box::pin(check_in(client, self.speaks, request)));
    }

    /// The next check-in. One that may end an outage asks for its answer at once: only an answer shows that this host is served, and a check-in
    /// that is held gets it only at the end of its wait.
    fn check_in(&mut self) -> CheckIn {
        let said = self.said.check_in(self.speaks);
        // While a rival is about, an answer does not end it, and check-ins without a wait would follow each other without a pause.
        let may_end_outage = self.connections.is_outage() && !self.rival.is_about();
        CheckIn { wait_ms: if may_end_outage { 0 } else { said.wait_ms }, ..said }
    }

    /// Something is to be said: soon, and together with what else comes at once.
    fn speak_soon(&mut self) {
        if self.parked.is_some() {
            let soon = Instant::now() + GATHER;
            self.speak_at = Some(self.speak_at.map_or(soon, |at| at.min(soon)));
        }
    }

    async fn answered(
        &mut self,
        client: Client,
        answer: Result<CheckInAnswer, ExchangeError>,
    ) -> Result<(), SyncError> {
        match answer {
            Ok(CheckInAnswer::Superseded) if self.superseded.take().is_some() => {
                // The older one was slower on its way and came after it: neither says what is so now.
                self.said.again();
                self.speak_at = Some(Instant::now());
            }
            Ok(CheckInAnswer::Superseded) => {
                // Another process of this host checked in: a check-in of our own would have replaced this one here.
                self.speak_at = Some(Instant::now() + self.shared(&client));
            }
            Ok(CheckInAnswer::Current(news)) => {
                let url = client.target().to_string();
                if !self.rival.is_about()
                    && self.connections.note(&*self.host, Standing::Connected, url.clone(), String::new())
                {
                    info!(url; "connected");
                }
                self.idle = Some(client);
                self.backoff.succeed();
                self.offered = news.desired.is_some();
                let next = if self.offered { JUDGED } else { next_in(&news) };
                self.speak_at = Some(Instant::now() + next);
                self.offer(*news).await?;
            }
            Err(ExchangeError::Expired) => {
                self.speak_at = Some(Instant::now() + self.backoff.fail());
                self.renew();
            }
            Err(ExchangeError::Version { asked, .. }) if asked > WireVersion::FIRST => {
                self.speak_before(asked);
                self.idle = Some(client);
                self.said.again();
                self.speak_at = Some(Instant::now());
            }
            Err(error) => self.failed(&error),
        }
        Ok(())
    }

    /// The controller does not read this version, as it is older than this agent: it is spoken to in the one before. The newest is tried
    /// again after a failure, since a controller is upgraded by starting it anew.
    fn speak_before(&mut self, refused: WireVersion) {
        if let Some(before) = refused.before().filter(|before| *before < self.speaks) {
            self.speaks = before;
            info!(version:% = before; "the controller is older, and is spoken to in its version");
        }
    }

    /// A check-in whose place was taken may never have arrived: what it said is said again then.
    fn superseded_ended(&mut self, answer: Result<CheckInAnswer, ExchangeError>) {
        if let Err(error) = answer {
            debug!(error:% = chain(&error); "a check-in was lost");
            if let ExchangeError::Version { asked, .. } = error {
                // Without this, each check-in could have its place taken before it is refused, and the next be as wrong.
                self.speak_before(asked);
            }
            self.said.again();
            self.speak_soon();
        }
    }

    /// Another process checks in with this host's certificate; how long this one waits.
    fn shared(&mut self, client: &Client) -> Duration {
        let (is_news, wait) = self.rival.meet();
        if is_news {
            warn!(error = SHARED; "another agent with this host's certificate has checked in");
        }
        self.connections.note(&*self.host, Standing::Shared, client.target().to_string(), SHARED.to_owned());
        wait
    }

    /// The next controller of the list has its turn.
    fn failed(&mut self, error: &ExchangeError) {
        let wait = self.backoff.fail();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let url = self.targets.front().map(ToString::to_string).unwrap_or_default();
        let cause = chain(error);
        let standing = match error {
            ExchangeError::Unknown { .. } => Standing::Unknown,
            _ => Standing::Unserved,
        };
        // Said once of each cause and not at each try: also by an agent that never was connected, whose node may have been deleted.
        if self.connections.note(&*self.host, standing, url.clone(), cause.clone()) {
            warn!(url, error = cause, wait_ms; "no controller serves this host");
        } else {
            debug!(url, error = cause, wait_ms; "still no controller");
        }
        self.targets.rotate_left(1.min(self.targets.len()));
        self.speaks = self.end.newest();
        self.idle = None;
        self.said.again();
        self.speak_at = Some(Instant::now() + wait);
    }

    async fn offer(&mut self, news: News) -> Result<(), SyncError> {
        self.said.acknowledged(&news);
        let News { acknowledged, desired, grants, .. } = news;
        if let Some(set) = desired.as_ref().and_then(|desired| desired.task_set.as_deref()) {
            // Apply verifies it; here it only says where to ask.
            self.profile = decode_part::<TaskSet>(self.asked_in, set).ok().and_then(|set| set.profile);
        }
        let offer = FromSync::Offer { desired, grants, acknowledged };
        self.tell_as(self.asked_in, &offer).await
    }

    /// Says something to apply, and hears it meanwhile: two halves that both have much to say never wait for each other.
    async fn tell(&mut self, message: &FromSync) -> Result<(), SyncError> {
        self.tell_as(self.end.newest(), message).await
    }

    /// The same in a version, which is that of the parts in the message.
    async fn tell_as(&mut self, version: WireVersion, message: &FromSync) -> Result<(), SyncError> {
        let to_apply = self.end.sender();
        let mut telling = std::pin::pin!(to_apply.send_as(version, message));
        loop {
            tokio::select! {
                told = &mut telling => return Ok(told?),
                message = self.end.receive() => self.received(message)?,
            }
        }
    }

    fn received(&mut self, message: Result<FromApply, ChannelError>) -> Result<(), SyncError> {
        match message {
            Ok(message) => self.hear(message),
            Err(ChannelError::Closed) => return Err(ChannelError::Closed.into()),
            Err(error) => warn!(error:% = error; "a message of apply is left out"),
        }
        Ok(())
    }

    fn hear(&mut self, message: FromApply) {
        match message {
            FromApply::Want(hash) => {
                // Queued even while it is being fetched: apply asks again only if the transfer was lost.
                if !self.wanted.contains(&hash) {
                    self.wanted.push_back(hash);
                }
                let client = self.client();
                self.fetch_next(client);
            }
            FromApply::Refused { reason } => {
                warn!(error = reason; "an offer was refused");
                if std::mem::take(&mut self.offered) {
                    // The same would come again at once: it is asked for ever more seldom.
                    self.speak_at = Some(Instant::now() + self.refusals.fail());
                }
            }
            message => {
                if matches!(message, FromApply::Accepted(_)) && std::mem::take(&mut self.offered) {
                    self.refusals.succeed();
                    self.speak_at = Some(Instant::now());
                }
                if self.said.hear(message) {
                    self.speak_soon();
                }
            }
        }
    }

    fn fetch_next(&mut self, client: Client) {
        if self.fetching.is_none()
            && let Some(hash) = self.wanted.pop_front()
        {
            self.fetched = hash;
            let place = match self.profile {
                Some(profile) if profile == hash => BodyKind::Profile,
                Some(_) => BodyKind::Blob,
                None => BodyKind::Either,
            };
            self.fetching = Some(Box::pin(fetch(client, hash, place, self.end.sender())));
        }
    }

    async fn fetched(&mut self, client: Client, given: Result<bool, ExchangeError>) -> Result<(), SyncError> {
        let hash = self.fetched;
        let is_lost = given.is_err();
        if let Err(error) = &given {
            warn!(hash:% = hash, error:% = chain(error); "a body could not be fetched");
        }
        if !given.unwrap_or(false) {
            self.tell(&FromSync::NoBody(hash)).await?;
        }
        // One connection serves all that is wanted, unless it broke; the list may name another controller by now.
        let client = if is_lost { self.client() } else { client };
        self.fetch_next(client);
        Ok(())
    }

    async fn observe(&mut self) -> Result<(), SyncError> {
        if self.said.observe_again(&*self.host) {
            self.speak_soon();
        }
        let digest: PartDigest = self.said.observation_digest(self.speaks);
        self.tell(&FromSync::Observed(digest)).await
    }

    /// Asks for the next certificate, once at a time; both halves are listened to meanwhile.
    fn renew(&mut self) {
        if self.renewing.is_some() || self.in_vain.holds_back(self.clock.unix_seconds()) {
            return;
        }
        self.renew_at = Instant::now() + AGAIN;
        match PendingKey::take_up(&*self.host, &self.credentials) {
            Ok(key) => {
                let controllers = self.credentials.controllers.clone();
                self.renewing = Some(Box::pin(renewed(self.client(), self.end.newest(), controllers, key)));
            }
            Err(error) => warn!(error:% = chain(&error); "the certificate could not be renewed"),
        }
    }

    /// Takes up the next certificate, and says when the one after it is due. What cannot be used is not kept: the present
    /// one still can.
    fn renewed(&mut self, renewed: Result<Credentials, JoinError>) {
        let renewed = renewed.and_then(|next| {
            next.check_given(&self.identity, self.clock.unix_seconds())?;
            let tls = next.tls(&self.identity, self.clock.clone())?;
            Ok((next, tls))
        });
        let (next, tls) = match renewed {
            Ok(renewed) => renewed,
            Err(error) => {
                if matches!(error, JoinError::Refused { status: 400, .. }) {
                    // With this key there will never be one.
                    self.forget_pending();
                }
                if matches!(error, JoinError::Given(_)) {
                    self.note_refused(Some(&error));
                    self.renew_at = self.in_vain.add(self.clock.unix_seconds());
                }
                return warn!(error:% = chain(&error); "the certificate could not be renewed");
            }
        };
        self.note_refused(None);
        self.in_vain = InVain::default();
        let kept = next.store(&*self.host);
        self.tls = tls;
        self.credentials = next;
        self.idle = None;
        self.speak_soon();
        match kept {
            Ok(()) => {
                self.forget_pending();
                self.renew_at = renew_at(&self.credentials, &*self.clock);
                info!("certificate renewed");
            }
            // It serves until the next start; another is asked for, that may be kept.
            Err(error) => warn!(error:% = chain(&error); "the renewed certificate could not be kept"),
        }
    }

    fn note_refused(&self, error: Option<&JoinError>) {
        let why =
            error.map(|error| format!("the certificate was not renewed, and the present one stays: {}", chain(error)));
        if let Err(error) = keep_refused_renewal(&*self.host, why.as_deref()) {
            warn!(error:% = chain(&error); "what became of a renewal could not be kept for status");
        }
    }

    fn forget_pending(&self) {
        if let Err(error) = drop_pending_key(&*self.host) {
            warn!(error:% = chain(&error); "the key of a renewal that is over could not be taken away");
        }
    }

    fn client(&self) -> Client {
        let target = self.targets.front().cloned().expect("join refused a list without a controller");
        Client::new(target, Some(self.tls.clone()), ClientLimits::default())
    }
}

/// How long a controller asks to wait before the next check-in. Nothing signs that number: it silences nobody for long.
fn next_in(news: &News) -> Duration {
    Duration::from_millis(news.next_ms.into()).min(LONGEST_SILENCE)
}

fn renew_at(credentials: &Credentials, clock: &dyn Clock) -> Instant {
    Instant::now() + due_in(credentials.validity, clock.unix_seconds())
}

#[cfg(test)]
mod tests;
