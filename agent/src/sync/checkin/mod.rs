//! The loop of the network half. One check-in is pending at a time. While it waits for the response, the loop handles
//! messages of the root half (`apply`), changes of the label files and hooks, and timers.
//!
//! ```text
//!              something to report (after a short delay, so that several things are reported together)
//!   pending ───────────────────────────────────────────────▶ pending on a second connection
//!     │ response                                                (the first gets the response `superseded`)
//!     ├──▶ offer to apply, then pending again
//!     │ failure
//!     └──▶ waiting (exponential, full jitter) ──▶ pending at the next controller of the list
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log::{debug, info, warn};
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::clock::Clock;
use stemma_wire::log::error_chain;
use stemma_wire::message::channel::{ApplyMessage, SyncMessage};
use stemma_wire::message::checkin::{CheckIn, CheckInResponse, CheckInUpdate};
use stemma_wire::message::desired::TaskSet;
use stemma_wire::message::{Hash, PartDigest, WireVersion, decode_part};
use tokio::time::{Instant, sleep_until};

use super::backoff::{Backoff, DuplicateHost};
use super::connection::{ConnectionLog, ConnectionState};
use super::exchange::{BodyKind, ExchangeError, ExchangeResult, check_in, fetch};
use super::join::JoinError;
use super::labels;
use super::outbox::Outbox;
use super::renew::{FailedRenewals, PendingKey, RETRY_DELAY, renew, renewal_delay};
use super::state::{StateError, TlsCredentials, delete_pending_key, store_refused_renewal, sweep_state_dir};
use crate::channel::{ChannelError, SyncEnd};
use crate::host::{Host, HostPath, Pending, or_pending};
use crate::identity::HostIdentity;
use crate::paths;
use crate::watch::{FileWatch, WatchScope};

/// Delay of a check-in after an event, so that other events within this time are reported in the same check-in.
const BATCH_DELAY: Duration = Duration::from_millis(30);
/// Delay after a change of label files or hooks, so that their author can finish writing.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Interval at which the stable facts are collected again.
const OBSERVE_INTERVAL: Duration = Duration::from_hours(1);
/// Maximum wait that a controller can request before the next check-in. It is no longer than the wait after a failure.
const MAX_REQUESTED_WAIT: Duration = Duration::from_mins(1);
/// Maximum time to wait until apply has accepted or refused an offer. Then a check-in is sent anyway.
const OFFER_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Explanation for two hosts with one identity, and what to do.
const SHARED_IDENTITY_MESSAGE: &str = "another host, or another agent on this one, uses this host's certificate, as a copy of its disk does. Stop the \
     agent on the copy, remove /var/lib/stemma-agent there, and let it join with a token of its own";

/// An exchange in progress.
type InFlight<T> = Pending<'static, ExchangeResult<T>>;

/// The network half of the agent: its connections, timers and everything that it has to send.
pub struct Sync {
    host: Rc<dyn Host>,
    identity: HostIdentity,
    credentials: TlsCredentials,
    targets: VecDeque<Target>,
    tls: Arc<rustls::ClientConfig>,
    clock: Arc<dyn Clock>,
    channel: SyncEnd,
    outbox: Outbox,
    /// The wire version that is used with the controller: the newest of this agent, or an older one that the current
    /// controller supports.
    version: WireVersion,
    /// The wire version of the pending check-in and of its response.
    pending_version: WireVersion,
    backoff: Backoff,
    idle_client: Option<Client>,
    pending_check_in: Option<InFlight<CheckInResponse>>,
    superseded_check_in: Option<InFlight<CheckInResponse>>,
    pending_fetch: Option<InFlight<bool>>,
    pending_fetch_hash: Hash,
    /// The profile of the desired state that was offered last. All other content that apply requests are blobs of this
    /// profile.
    profile: Option<Hash>,
    wanted_bodies: VecDeque<Hash>,
    /// Time of the next check-in, which supersedes the pending one.
    check_in_at: Option<Instant>,
    renew_at: Instant,
    /// The renewal in progress.
    pending_renewal: Option<Pending<'static, Result<TlsCredentials, JoinError>>>,
    failed_renewals: FailedRenewals,
    connection_log: ConnectionLog,
    duplicate_host: DuplicateHost,
    /// True if a desired state was offered to apply, and apply has neither accepted nor refused it yet. A check-in now
    /// would only return the same state again.
    is_offer_pending: bool,
    /// Determines the wait after offers that apply refused.
    refusals: Backoff,
}

/// Why the network half ended.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The credentials cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The root half (`apply`) has ended.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Runs the network half until the root half ends.
///
/// # Errors
/// [`SyncError`].
pub async fn run(
    host: Rc<dyn Host>,
    identity: HostIdentity,
    end: SyncEnd,
    clock: Arc<dyn Clock>,
) -> Result<Infallible, SyncError> {
    let mut sync = Sync::new(host, identity, end, clock)?;
    // The check-in contains the desired state that apply has, so nothing is sent before apply has reported it.
    sync.wait_for_hello().await?;
    sync.check_in_at = Some(Instant::now());
    sync.run_loop().await
}

impl Sync {
    /// Reads credentials and connection record, observes the host, and creates the network half without any exchange.
    fn new(host: Rc<dyn Host>, identity: HostIdentity, channel: SyncEnd, clock: Arc<dyn Clock>) -> Result<Self, SyncError> {
        let credentials = TlsCredentials::load(&*host)?;
        // An unfinished file may contain a private key.
        if let Err(error) = sweep_state_dir(&*host) {
            warn!(error = error.sentence().as_str(); "an unfinished file of a killed agent cannot be deleted");
        }
        let tls = credentials.tls(&identity, clock.clone())?;
        let renew_at = renew_at(&credentials, &*clock);
        let connection_log = ConnectionLog::load(&*host).map_err(StateError::from)?;
        Ok(Self {
            targets: credentials.targets().into(),
            outbox: Outbox::observe(&*host),
            version: channel.max_version(),
            pending_version: channel.max_version(),
            host,
            identity,
            credentials,
            tls,
            clock,
            channel,
            backoff: Backoff::default(),
            idle_client: None,
            pending_check_in: None,
            superseded_check_in: None,
            pending_fetch: None,
            pending_fetch_hash: Hash([0; 32]),
            profile: None,
            wanted_bodies: VecDeque::new(),
            check_in_at: None,
            renew_at,
            pending_renewal: None,
            failed_renewals: FailedRenewals::default(),
            connection_log,
            duplicate_host: DuplicateHost::default(),
            is_offer_pending: false,
            refusals: Backoff::default(),
        })
    }

    /// Waits for the first message of apply, which contains the desired state that it has.
    async fn wait_for_hello(&mut self) -> Result<(), SyncError> {
        loop {
            match self.channel.receive().await {
                Ok(message @ ApplyMessage::Hello { .. }) => {
                    self.handle_message(message);
                    return Ok(());
                }
                Ok(message) => self.handle_message(message),
                Err(ChannelError::Closed) => return Err(ChannelError::Closed.into()),
                Err(error) => warn!(error:% = error; "a message of apply is left out"),
            }
        }
    }

    /// Handles responses, messages of apply, changed files and timers, until the channel to apply is closed.
    async fn run_loop(mut self) -> Result<Infallible, SyncError> {
        let dirs = [labels::DIR, paths::HOOKS].map(|dir| (self.host.system_path(&HostPath::from_static(dir)), WatchScope::All));
        let mut files = FileWatch::new(self.host.system_root(), dirs.into());
        let mut observe_at = Instant::now() + OBSERVE_INTERVAL;
        loop {
            tokio::select! {
                (client, answer) = or_pending(self.pending_check_in.as_mut()) => {
                    self.pending_check_in = None;
                    self.on_response(client, answer).await?;
                }
                (_, answer) = or_pending(self.superseded_check_in.as_mut()) => {
                    self.superseded_check_in = None;
                    self.on_superseded_response(answer);
                }
                (client, result) = or_pending(self.pending_fetch.as_mut()) => {
                    self.pending_fetch = None;
                    self.on_fetched(client, result).await?;
                }
                message = self.channel.receive() => self.on_received(message)?,
                () = or_pending(self.check_in_at.map(sleep_until)) => {
                    self.send_check_in();
                    if files.is_outdated() {
                        observe_at = observe_at.min(Instant::now() + SETTLE_TIME);
                    }
                }
                () = files.changed() => observe_at = observe_at.min(Instant::now() + SETTLE_TIME),
                () = sleep_until(observe_at) => {
                    observe_at = Instant::now() + OBSERVE_INTERVAL;
                    files.renew();
                    self.observe().await?;
                }
                () = sleep_until(self.renew_at), if self.pending_renewal.is_none() => self.start_renewal(),
                renewed = or_pending(self.pending_renewal.as_mut()) => {
                    self.pending_renewal = None;
                    self.on_renewed(renewed);
                }
            }
        }
    }

    /// Sends a check-in on a second connection if one is pending. The new check-in supersedes the pending one.
    fn send_check_in(&mut self) {
        self.check_in_at = None;
        let client = self.idle_client.take().unwrap_or_else(|| self.new_client());
        if let Some(pending) = self.pending_check_in.take()
            && self.superseded_check_in.replace(pending).is_some()
        {
            // Two check-ins are superseded now. The older one is dropped. It may not have arrived, so its contents are
            // sent again.
            self.outbox.resend_all();
        }
        self.pending_version = self.version;
        let request = self.next_check_in();
        self.pending_check_in = Some(Box::pin(check_in(client, self.version, request)));
    }

    /// Returns the next check-in. If it may end an outage, it requests an immediate response. Only a response shows
    /// that a controller serves this host, and a pending check-in gets it only at the end of its wait.
    fn next_check_in(&mut self) -> CheckIn {
        let request = self.outbox.check_in(self.version);
        // While a duplicate host is active, a response does not end the outage. Check-ins without a wait would then
        // follow each other without a pause.
        let may_end_outage = self.connection_log.is_outage() && !self.duplicate_host.is_recent();
        CheckIn { wait_ms: if may_end_outage { 0 } else { request.wait_ms }, ..request }
    }

    /// Schedules a check-in soon, so that everything that happens shortly after is reported with it.
    fn schedule_check_in(&mut self) {
        if self.pending_check_in.is_some() {
            let soon = Instant::now() + BATCH_DELAY;
            self.check_in_at = Some(self.check_in_at.map_or(soon, |at| at.min(soon)));
        }
    }

    /// Handles the response to the pending check-in, and schedules the next one.
    async fn on_response(&mut self, client: Client, answer: Result<CheckInResponse, ExchangeError>) -> Result<(), SyncError> {
        match answer {
            Ok(CheckInResponse::Superseded) if self.superseded_check_in.take().is_some() => {
                // The older check-in arrived last and superseded this one. Both are lost, so everything is sent again.
                self.outbox.resend_all();
                self.check_in_at = Some(Instant::now());
            }
            Ok(CheckInResponse::Superseded) => {
                // Another process with this identity checked in. A newer check-in of this process would have moved
                // this one to `superseded_check_in`.
                self.check_in_at = Some(Instant::now() + self.record_duplicate(&client));
            }
            Ok(CheckInResponse::Current(update)) => {
                let url = client.target().to_string();
                if !self.duplicate_host.is_recent()
                    && self.connection_log.record(&*self.host, ConnectionState::Connected, url.clone(), String::new())
                {
                    info!(url; "connected");
                }
                self.idle_client = Some(client);
                self.backoff.succeed();
                self.is_offer_pending = update.desired.is_some();
                let next = if self.is_offer_pending { OFFER_ANSWER_TIMEOUT } else { requested_wait(&update) };
                self.check_in_at = Some(Instant::now() + next);
                self.forward_offer(*update).await?;
            }
            Err(ExchangeError::Expired) => {
                self.check_in_at = Some(Instant::now() + self.backoff.fail());
                self.start_renewal();
            }
            Err(ExchangeError::Version { version: asked, .. }) if asked > WireVersion::FIRST => {
                self.downgrade_version(asked);
                self.idle_client = Some(client);
                self.outbox.resend_all();
                self.check_in_at = Some(Instant::now());
            }
            Err(error) => self.on_failure(&error),
        }
        Ok(())
    }

    /// Switches to the wire version before the refused one, because the controller is older than this agent. The newest
    /// version is tried again after a connection failed, because a controller that is upgraded restarts.
    fn downgrade_version(&mut self, refused: WireVersion) {
        if let Some(before) = refused.previous().filter(|before| *before < self.version) {
            self.version = before;
            info!(version:% = before; "the controller is older; its version is used");
        }
    }

    /// Handles the end of a superseded check-in. If it failed, it may never have arrived, so everything is reported
    /// again.
    fn on_superseded_response(&mut self, answer: Result<CheckInResponse, ExchangeError>) {
        if let Err(error) = answer {
            debug!(error:% = error_chain(&error); "a check-in was lost");
            if let ExchangeError::Version { version: asked, .. } = error {
                // Otherwise each check-in could be superseded before it is refused, and the next would use the same
                // wrong version.
                self.downgrade_version(asked);
            }
            self.outbox.resend_all();
            self.schedule_check_in();
        }
    }

    /// Records that another process checks in with this host's certificate. Returns how long to wait.
    fn record_duplicate(&mut self, client: &Client) -> Duration {
        let (is_new, wait) = self.duplicate_host.record();
        if is_new {
            warn!(error = SHARED_IDENTITY_MESSAGE; "another agent with this host's certificate has checked in");
        }
        self.connection_log.record(
            &*self.host,
            ConnectionState::Shared,
            client.target().to_string(),
            SHARED_IDENTITY_MESSAGE.to_owned(),
        );
        wait
    }

    /// Handles a failed check-in: switches to the next controller of the list.
    fn on_failure(&mut self, error: &ExchangeError) {
        let wait = self.backoff.fail();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let url = self.targets.front().map(ToString::to_string).unwrap_or_default();
        let cause = error_chain(error);
        let state = match error {
            ExchangeError::Unknown { .. } => ConnectionState::Unknown,
            _ => ConnectionState::Unserved,
        };
        // Each cause is logged once, not at each attempt. An agent that never was connected logs it too, because its
        // node may have been deleted.
        if self.connection_log.record(&*self.host, state, url.clone(), cause.clone()) {
            warn!(url, error = cause, wait_ms; "no controller serves this host");
        } else {
            debug!(url, error = cause, wait_ms; "still no controller");
        }
        self.targets.rotate_left(1.min(self.targets.len()));
        self.version = self.channel.max_version();
        self.idle_client = None;
        self.outbox.resend_all();
        self.check_in_at = Some(Instant::now() + wait);
    }

    /// Removes what the controller has acknowledged from the outbox, and forwards the rest of its response to apply.
    async fn forward_offer(&mut self, update: CheckInUpdate) -> Result<(), SyncError> {
        self.outbox.on_acknowledged(&update);
        let CheckInUpdate { acknowledged, desired, grants, .. } = update;
        if let Some(set) = desired.as_ref().and_then(|desired| desired.task_set.as_deref()) {
            // Apply verifies the task set. Here it only determines which endpoint to use.
            self.profile = decode_part::<TaskSet>(self.pending_version, set).ok().and_then(|set| set.profile);
        }
        let offer = SyncMessage::Offer { desired, grants, acknowledged };
        self.send_as(self.pending_version, &offer).await
    }

    /// Sends a message to apply. While the channel is full, messages of apply are received, so that the two halves
    /// never wait for each other.
    async fn send(&mut self, message: &SyncMessage) -> Result<(), SyncError> {
        self.send_as(self.channel.max_version(), message).await
    }

    /// Sends a message like [`Self::send`], in a given version, which must be that of the encoded parts in the message.
    async fn send_as(&mut self, version: WireVersion, message: &SyncMessage) -> Result<(), SyncError> {
        let to_apply = self.channel.sender();
        let mut sending = std::pin::pin!(to_apply.send_as(version, message));
        loop {
            tokio::select! {
                sent = &mut sending => return Ok(sent?),
                message = self.channel.receive() => self.on_received(message)?,
            }
        }
    }

    /// Handles a message of apply. A message that cannot be decoded is logged and skipped.
    fn on_received(&mut self, message: Result<ApplyMessage, ChannelError>) -> Result<(), SyncError> {
        match message {
            Ok(message) => self.handle_message(message),
            Err(ChannelError::Closed) => return Err(ChannelError::Closed.into()),
            Err(error) => warn!(error:% = error; "a message of apply is left out"),
        }
        Ok(())
    }

    /// Handles a message of apply: queues requested content, schedules the check-in after an offer was accepted or
    /// refused, and adds everything else to the outbox.
    fn handle_message(&mut self, message: ApplyMessage) {
        match message {
            ApplyMessage::ContentRequest(hash) => {
                // Queued even while it is being fetched, because apply requests it again only if the transfer was lost.
                if !self.wanted_bodies.contains(&hash) {
                    self.wanted_bodies.push_back(hash);
                }
                let client = self.new_client();
                self.fetch_next(client);
            }
            ApplyMessage::Refused { reason } => {
                warn!(error = reason; "an offer was refused");
                if std::mem::take(&mut self.is_offer_pending) {
                    // The controller would offer the same state again at once, so the waits increase.
                    self.check_in_at = Some(Instant::now() + self.refusals.fail());
                }
            }
            message => {
                if matches!(message, ApplyMessage::Accepted(_)) && std::mem::take(&mut self.is_offer_pending) {
                    self.refusals.succeed();
                    self.check_in_at = Some(Instant::now());
                }
                if self.outbox.handle_message(message) {
                    self.schedule_check_in();
                }
            }
        }
    }

    /// Starts to fetch the next requested content, unless a transfer is in progress.
    fn fetch_next(&mut self, client: Client) {
        if self.pending_fetch.is_none()
            && let Some(hash) = self.wanted_bodies.pop_front()
        {
            self.pending_fetch_hash = hash;
            let kind = match self.profile {
                Some(profile) if profile == hash => BodyKind::Profile,
                Some(_) => BodyKind::Blob,
                None => BodyKind::Either,
            };
            self.pending_fetch = Some(Box::pin(fetch(client, hash, kind, self.channel.sender())));
        }
    }

    /// Handles the end of a transfer. Tells apply if the content is not available, and fetches the next one.
    async fn on_fetched(&mut self, client: Client, result: Result<bool, ExchangeError>) -> Result<(), SyncError> {
        let hash = self.pending_fetch_hash;
        let is_lost = result.is_err();
        if let Err(error) = &result {
            warn!(hash:% = hash, error:% = error_chain(error); "a body could not be fetched");
        }
        if !result.unwrap_or(false) {
            self.send(&SyncMessage::BodyUnavailable(hash)).await?;
        }
        // One connection serves all wanted bodies, unless it broke. A new client connects to the first controller of
        // the list, which may have changed.
        let client = if is_lost { self.new_client() } else { client };
        self.fetch_next(client);
        Ok(())
    }

    /// Observes the host again, and sends the digest of the observation to apply. Schedules a check-in if there is
    /// something new.
    async fn observe(&mut self) -> Result<(), SyncError> {
        if self.outbox.refresh_observation(&*self.host) {
            self.schedule_check_in();
        }
        let digest: PartDigest = self.outbox.observation_digest(self.version);
        self.send(&SyncMessage::Observed(digest)).await
    }

    /// Starts a renewal, unless one is in progress. Messages and responses are handled in the meantime.
    fn start_renewal(&mut self) {
        if self.pending_renewal.is_some() || self.failed_renewals.should_wait(self.clock.unix_seconds()) {
            return;
        }
        self.renew_at = Instant::now() + RETRY_DELAY;
        match PendingKey::load_or_create(&*self.host, &self.credentials) {
            Ok(key) => {
                let controllers = self.credentials.controllers.clone();
                self.pending_renewal = Some(Box::pin(renew(self.new_client(), self.channel.max_version(), controllers, key)));
            }
            Err(error) => warn!(error:% = error_chain(&error); "the certificate could not be renewed"),
        }
    }

    /// Stores the new certificate and schedules the next renewal. A certificate that cannot be used is not stored,
    /// because the present one still works.
    fn on_renewed(&mut self, renewed: Result<TlsCredentials, JoinError>) {
        let renewed = renewed.and_then(|next| {
            next.check_issued(&self.identity, self.clock.unix_seconds())?;
            let tls = next.tls(&self.identity, self.clock.clone())?;
            Ok((next, tls))
        });
        let (next, tls) = match renewed {
            Ok(renewed) => renewed,
            Err(error) => {
                if matches!(error, JoinError::Refused { status: 400, .. }) {
                    // The controller will never issue a certificate for this key.
                    self.delete_pending_key();
                }
                if matches!(error, JoinError::Issued(_)) {
                    self.store_refused_renewal(Some(&error));
                    self.renew_at = self.failed_renewals.add(self.clock.unix_seconds());
                }
                return warn!(error:% = error_chain(&error); "the certificate could not be renewed");
            }
        };
        self.store_refused_renewal(None);
        self.failed_renewals = FailedRenewals::default();
        let stored = next.store(&*self.host);
        self.tls = tls;
        self.credentials = next;
        self.idle_client = None;
        self.schedule_check_in();
        match stored {
            Ok(()) => {
                self.delete_pending_key();
                self.renew_at = renew_at(&self.credentials, &*self.clock);
                info!("certificate renewed");
            }
            // The certificate is used until the next start. The next renewal may be stored.
            Err(error) => warn!(error:% = error_chain(&error); "the renewed certificate could not be stored"),
        }
    }

    fn store_refused_renewal(&self, error: Option<&JoinError>) {
        let why =
            error.map(|error| format!("the certificate was not renewed, and the present one stays: {}", error_chain(error)));
        if let Err(error) = store_refused_renewal(&*self.host, why.as_deref()) {
            warn!(error:% = error_chain(&error); "the result of a renewal could not be stored for status");
        }
    }

    fn delete_pending_key(&self) {
        if let Err(error) = delete_pending_key(&*self.host) {
            warn!(error:% = error_chain(&error); "the key of a finished renewal could not be deleted");
        }
    }

    fn new_client(&self) -> Client {
        let target = self.targets.front().cloned().expect("join refused a list without a controller");
        Client::new(target, Some(self.tls.clone()), ClientLimits::default())
    }
}

/// Returns how long the controller wants this host to wait. The number is not signed, so it is limited.
fn requested_wait(update: &CheckInUpdate) -> Duration {
    Duration::from_millis(update.next_check_in_ms.into()).min(MAX_REQUESTED_WAIT)
}

fn renew_at(credentials: &TlsCredentials, clock: &dyn Clock) -> Instant {
    Instant::now() + renewal_delay(credentials.validity, clock.unix_seconds())
}

#[cfg(test)]
mod tests;
