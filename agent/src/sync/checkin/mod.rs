//! The loop of the network half. Except while it waits after a response or a failure, it has a pending check-in, which
//! the controller holds open until there is something new or a wait is over. In addition, the loop handles messages of
//! the root half (`apply`), changes of the label files and hooks, and timers.
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

/// Delay of a check-in after an event. Other events within this time are reported in the same check-in.
const BATCH_DELAY: Duration = Duration::from_millis(30);
/// Delay after a change of label files or hooks, so that their author can finish writing.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Interval at which facts, label files and hooks are read again without an event.
const OBSERVE_INTERVAL: Duration = Duration::from_hours(1);
/// Maximum wait that a controller can request before the next check-in. It equals the maximum wait after a failure.
const MAX_REQUESTED_WAIT: Duration = Duration::from_mins(1);
/// Maximum time to wait until the root half of the agent (apply) has accepted or refused an offered desired state.
/// After this time, a check-in is sent without an answer of apply.
const OFFER_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Message for the case that two hosts have the same identity, with a remedy.
const SHARED_IDENTITY_MESSAGE: &str = "another host, or another agent on this one, uses this host's certificate, as a copy of its disk does. Stop the \
     agent on the copy, remove /var/lib/stemma-agent there, and let it join with a token of its own";

/// A request to a controller that is in progress.
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
    /// The wire version (the version of the message format) of check-ins to the current controller. It is the newest
    /// version of this agent, or an older version if the controller refused the newest one.
    version: WireVersion,
    /// The wire version of the pending check-in and of its response.
    pending_version: WireVersion,
    backoff: Backoff,
    /// An open connection that no request uses now.
    idle_client: Option<Client>,
    pending_check_in: Option<InFlight<CheckInResponse>>,
    /// The previous check-in, if a newer one was sent before its response arrived.
    superseded_check_in: Option<InFlight<CheckInResponse>>,
    pending_fetch: Option<InFlight<bool>>,
    /// The hash of the content that `pending_fetch` fetches.
    pending_fetch_hash: Hash,
    /// The hash of the profile (task list) of the last offered task set. `None` before the first one, or if that task
    /// set has no profile. All other content that the root half (apply) requests is a blob of this profile.
    profile: Option<Hash>,
    /// Hashes of the content that the root half (apply) has requested, and for which a fetch has still to start.
    requested_bodies: VecDeque<Hash>,
    /// Time at which the next check-in is sent. It then supersedes a check-in that is still pending.
    check_in_at: Option<Instant>,
    renew_at: Instant,
    /// The renewal in progress.
    pending_renewal: Option<Pending<'static, Result<TlsCredentials, JoinError>>>,
    failed_renewals: FailedRenewals,
    connection_log: ConnectionLog,
    duplicate_host: DuplicateHost,
    /// True if a desired state was offered to the root half (apply), which has neither accepted nor refused it yet. The
    /// controller would answer a check-in at this time with the same state.
    is_offer_pending: bool,
    /// The consecutive offers that the root half (apply) refused. They determine the wait before the next check-in.
    refusal_backoff: Backoff,
}

/// The reason why the network half ended.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The credentials cannot be used, or the stored state of the connection cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The root half (`apply`) has ended, or a message to it is too large.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Runs the network half until the root half ends.
///
/// # Errors
/// [`SyncError`] if the credentials or the connection record cannot be used, and always when the root half has ended.
pub async fn run(
    host: Rc<dyn Host>,
    identity: HostIdentity,
    channel: SyncEnd,
    clock: Arc<dyn Clock>,
) -> Result<Infallible, SyncError> {
    let mut sync = Sync::new(host, identity, channel, clock)?;
    // A check-in contains the revision of the desired state that apply has. So nothing is sent before apply has
    // reported that revision in its first message.
    sync.wait_for_hello().await?;
    sync.check_in_at = Some(Instant::now());
    sync.run_loop().await
}

impl Sync {
    /// Reads credentials and connection record, observes the host, and creates the network half. Sends no request.
    fn new(host: Rc<dyn Host>, identity: HostIdentity, channel: SyncEnd, clock: Arc<dyn Clock>) -> Result<Self, SyncError> {
        let credentials = TlsCredentials::load(&*host)?;
        // An agent that was killed may have left an unfinished file, which may contain a private key.
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
            requested_bodies: VecDeque::new(),
            check_in_at: None,
            renew_at,
            pending_renewal: None,
            failed_renewals: FailedRenewals::default(),
            connection_log,
            duplicate_host: DuplicateHost::default(),
            is_offer_pending: false,
            refusal_backoff: Backoff::default(),
        })
    }

    /// Waits for the first message of the root half, apply. This message (`Hello`) contains the revision of the desired
    /// state that apply has.
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

    /// Handles responses of the controller, messages of the root half (apply), changed files and timers. Ends when the
    /// channel to the root half is closed.
    async fn run_loop(mut self) -> Result<Infallible, SyncError> {
        let dirs = [labels::DIR, paths::HOOKS].map(|dir| (self.host.system_path(&HostPath::from_static(dir)), WatchScope::All));
        let mut files = FileWatch::new(self.host.system_root(), dirs.into());
        let mut observe_at = Instant::now() + OBSERVE_INTERVAL;
        loop {
            tokio::select! {
                (client, response) = or_pending(self.pending_check_in.as_mut()) => {
                    self.pending_check_in = None;
                    self.on_response(client, response).await?;
                }
                (_, response) = or_pending(self.superseded_check_in.as_mut()) => {
                    self.superseded_check_in = None;
                    self.on_superseded_response(response);
                }
                (client, result) = or_pending(self.pending_fetch.as_mut()) => {
                    self.pending_fetch = None;
                    self.on_fetched(client, result).await?;
                }
                message = self.channel.receive() => self.on_received(message)?,
                () = or_pending(self.check_in_at.map(sleep_until)) => {
                    self.send_check_in();
                    // Some changes cause no event of the kernel, for example a mount. They are found at each check-in.
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
                result = or_pending(self.pending_renewal.as_mut()) => {
                    self.pending_renewal = None;
                    self.on_renewed(result);
                }
            }
        }
    }

    /// Sends a check-in. If another check-in is pending, the new one is sent on a second connection and supersedes the
    /// pending one, which means that the controller answers the older check-in at once.
    fn send_check_in(&mut self) {
        self.check_in_at = None;
        let client = self.idle_client.take().unwrap_or_else(|| self.new_client());
        if let Some(older) = self.pending_check_in.take()
            && self.superseded_check_in.replace(older).is_some()
        {
            // Two check-ins are superseded now. The older of these two is dropped. That check-in may not have arrived
            // at the controller, so its contents are sent again.
            self.outbox.resend_all();
        }
        self.pending_version = self.version;
        let request = self.next_check_in();
        self.pending_check_in = Some(Box::pin(check_in(client, self.version, request)));
    }

    /// Returns the next check-in. During an outage, it requests an immediate response. Only a response shows that a
    /// controller serves this host again, and a controller usually holds the response for the requested wait.
    fn next_check_in(&mut self) -> CheckIn {
        let request = self.outbox.check_in(self.version);
        // While another host uses the same identity, a response does not end the outage. Then check-ins without a wait
        // would be sent one after the other without a pause.
        let may_end_outage = self.connection_log.is_outage() && !self.duplicate_host.is_recent();
        CheckIn { wait_ms: if may_end_outage { 0 } else { request.wait_ms }, ..request }
    }

    /// Schedules a check-in after [`BATCH_DELAY`], if a check-in is pending. Everything that happens within the delay
    /// is reported in the same check-in. Without a pending check-in, a time for the next one is already set.
    fn schedule_check_in(&mut self) {
        if self.pending_check_in.is_some() {
            let soon = Instant::now() + BATCH_DELAY;
            self.check_in_at = Some(self.check_in_at.map_or(soon, |at| at.min(soon)));
        }
    }

    /// Handles the response to the pending check-in, and schedules the next one.
    async fn on_response(&mut self, client: Client, response: Result<CheckInResponse, ExchangeError>) -> Result<(), SyncError> {
        match response {
            Ok(CheckInResponse::Superseded) if self.superseded_check_in.take().is_some() => {
                // The older check-in arrived after the newer one and superseded it. Neither has a usable response, so
                // everything is sent again.
                self.outbox.resend_all();
                self.check_in_at = Some(Instant::now());
            }
            Ok(CheckInResponse::Superseded) => {
                // Another process with this identity checked in. It was not this process: before this process sends a
                // newer check-in, it moves the older one to `superseded_check_in`.
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
                let delay = if self.is_offer_pending { OFFER_ANSWER_TIMEOUT } else { requested_wait(&update) };
                self.check_in_at = Some(Instant::now() + delay);
                self.forward_offer(*update).await?;
            }
            Err(ExchangeError::Expired) => {
                self.check_in_at = Some(Instant::now() + self.backoff.fail());
                self.start_renewal();
            }
            // The controller does not support this version, and an older version exists.
            Err(ExchangeError::Version { version: refused_version, .. }) if refused_version > WireVersion::FIRST => {
                self.downgrade_version(refused_version);
                self.idle_client = Some(client);
                self.outbox.resend_all();
                self.check_in_at = Some(Instant::now());
            }
            Err(error) => self.on_failure(&error),
        }
        Ok(())
    }

    /// Switches to the wire version before the refused one, because the controller is older than this agent. The newest
    /// version is used again after a connection has failed, because a controller that is upgraded restarts.
    fn downgrade_version(&mut self, refused: WireVersion) {
        if let Some(older) = refused.previous().filter(|older| *older < self.version) {
            self.version = older;
            info!(version:% = older; "the controller is older; its version is used");
        }
    }

    /// Handles the end of a superseded check-in. A response is ignored, because the newer check-in gets one too. If the
    /// superseded check-in failed, it may never have arrived at the controller. So everything is reported again.
    fn on_superseded_response(&mut self, response: Result<CheckInResponse, ExchangeError>) {
        if let Err(error) = response {
            debug!(error:% = error_chain(&error); "a check-in was lost");
            if let ExchangeError::Version { version: refused_version, .. } = error {
                // The version must change here too. Otherwise each check-in could be superseded before its refusal
                // arrives, and the next check-in would use the same wrong version.
                self.downgrade_version(refused_version);
            }
            self.outbox.resend_all();
            self.schedule_check_in();
        }
    }

    /// Records that another process checks in with this host's certificate. Returns the wait before the next check-in.
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

    /// Handles a failed check-in: records the outage, switches to the next controller of the list, and schedules the
    /// next check-in after a wait. That check-in reports everything again, in the newest wire version of this agent.
    fn on_failure(&mut self, error: &ExchangeError) {
        let wait = self.backoff.fail();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let url = self.targets.front().map(ToString::to_string).unwrap_or_default();
        let cause = error_chain(error);
        let state = match error {
            ExchangeError::Unknown { .. } => ConnectionState::Unknown,
            _ => ConnectionState::Unserved,
        };
        // A cause is logged when it differs from the previous cause of this controller, not at each attempt. An agent
        // that was never connected logs the cause too, because its node may have been deleted.
        if self.connection_log.record(&*self.host, state, url.clone(), cause.clone()) {
            warn!(url, error = cause, wait_ms; "no controller serves this host");
        } else {
            debug!(url, error = cause, wait_ms; "still no controller");
        }
        // A rotation by one would panic if the list were empty.
        self.targets.rotate_left(1.min(self.targets.len()));
        self.version = self.channel.max_version();
        self.idle_client = None;
        self.outbox.resend_all();
        self.check_in_at = Some(Instant::now() + wait);
    }

    /// Removes the items that the controller has acknowledged from the outbox. Forwards the desired state, the grants
    /// and the acknowledged sequence number to the root half (apply). Stores the hash of the profile.
    async fn forward_offer(&mut self, update: CheckInUpdate) -> Result<(), SyncError> {
        self.outbox.on_acknowledged(&update);
        let CheckInUpdate { acknowledged, desired, grants, .. } = update;
        if let Some(task_set) = desired.as_ref().and_then(|desired| desired.task_set.as_deref()) {
            // Apply verifies the task set. Here its profile only determines the endpoint from which content is fetched.
            self.profile = decode_part::<TaskSet>(self.pending_version, task_set).ok().and_then(|task_set| task_set.profile);
        }
        let offer = SyncMessage::Offer { desired, grants, acknowledged };
        self.send_as(self.pending_version, &offer).await
    }

    /// Sends a message to the root half (apply). While the channel is full, messages of apply are received and handled,
    /// so that the two halves never wait for each other.
    async fn send(&mut self, message: &SyncMessage) -> Result<(), SyncError> {
        self.send_as(self.channel.max_version(), message).await
    }

    /// Sends a message like [`Self::send`], in a given wire version. The version must be that in which the parts of the
    /// message are encoded.
    async fn send_as(&mut self, version: WireVersion, message: &SyncMessage) -> Result<(), SyncError> {
        let to_apply = self.channel.sender();
        let mut sending = std::pin::pin!(to_apply.send_as(version, message));
        loop {
            tokio::select! {
                result = &mut sending => return Ok(result?),
                message = self.channel.receive() => self.on_received(message)?,
            }
        }
    }

    /// Handles a message that was received from the root half (apply). A message that cannot be decoded is logged and
    /// skipped. Fails if the channel is closed.
    fn on_received(&mut self, message: Result<ApplyMessage, ChannelError>) -> Result<(), SyncError> {
        match message {
            Ok(message) => self.handle_message(message),
            Err(ChannelError::Closed) => return Err(ChannelError::Closed.into()),
            Err(error) => warn!(error:% = error; "a message of apply is left out"),
        }
        Ok(())
    }

    /// Handles a message of the root half (apply): queues requested content, schedules the check-in after an offer was
    /// accepted or refused, and adds everything else to the outbox.
    fn handle_message(&mut self, message: ApplyMessage) {
        match message {
            ApplyMessage::ContentRequest(hash) => {
                // The hash is queued even while its content is being fetched. If a transfer was lost, apply requests
                // the same content again.
                if !self.requested_bodies.contains(&hash) {
                    self.requested_bodies.push_back(hash);
                }
                let client = self.new_client();
                self.fetch_next(client);
            }
            ApplyMessage::Refused { reason } => {
                warn!(error = reason; "an offer was refused");
                if std::mem::take(&mut self.is_offer_pending) {
                    // The controller would offer the same state again at once, so the waits increase.
                    self.check_in_at = Some(Instant::now() + self.refusal_backoff.fail());
                }
            }
            message => {
                if matches!(message, ApplyMessage::Accepted(_)) && std::mem::take(&mut self.is_offer_pending) {
                    self.refusal_backoff.succeed();
                    self.check_in_at = Some(Instant::now());
                }
                if self.outbox.handle_message(message) {
                    self.schedule_check_in();
                }
            }
        }
    }

    /// Starts to fetch the next requested content, unless a transfer is in progress or no content is requested.
    fn fetch_next(&mut self, client: Client) {
        if self.pending_fetch.is_none()
            && let Some(hash) = self.requested_bodies.pop_front()
        {
            self.pending_fetch_hash = hash;
            // Without an offered task set, it is not known whether the hash is that of a profile or of a blob.
            let kind = match self.profile {
                Some(profile) if profile == hash => BodyKind::Profile,
                Some(_) => BodyKind::Blob,
                None => BodyKind::Either,
            };
            self.pending_fetch = Some(Box::pin(fetch(client, hash, kind, self.channel.sender())));
        }
    }

    /// Handles the end of a transfer. If the content could not be fetched, notifies the root half (apply). Then fetches
    /// the next requested content.
    async fn on_fetched(&mut self, client: Client, result: Result<bool, ExchangeError>) -> Result<(), SyncError> {
        let hash = self.pending_fetch_hash;
        let has_failed = result.is_err();
        if let Err(error) = &result {
            warn!(hash:% = hash, error:% = error_chain(error); "a body could not be fetched");
        }
        if !result.unwrap_or(false) {
            self.send(&SyncMessage::BodyUnavailable(hash)).await?;
        }
        // The next content is fetched over the same connection, unless the transfer failed. A new client connects to
        // the first controller of the list, which may be another one now.
        let client = if has_failed { self.new_client() } else { client };
        self.fetch_next(client);
        Ok(())
    }

    /// Reads facts, label files and hooks of the host again, and sends the digest of this observation to the
    /// root half (apply). Schedules a check-in if there is something new to report.
    async fn observe(&mut self) -> Result<(), SyncError> {
        if self.outbox.refresh_observation(&*self.host) {
            self.schedule_check_in();
        }
        let digest: PartDigest = self.outbox.observation_digest(self.version);
        self.send(&SyncMessage::Observed(digest)).await
    }

    /// Starts a renewal of the certificate in the main loop, and schedules the next one after [`RETRY_DELAY`] in case
    /// it fails. Does nothing if one is in progress, or during the wait after an unusable certificate.
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

    /// Handles the result of a renewal: stores the new certificate and schedules the next renewal. A certificate that
    /// cannot be used is not stored, because the current certificate still works.
    fn on_renewed(&mut self, result: Result<TlsCredentials, JoinError>) {
        let result = result.and_then(|new_credentials| {
            new_credentials.check_issued(&self.identity, self.clock.unix_seconds())?;
            let tls = new_credentials.tls(&self.identity, self.clock.clone())?;
            Ok((new_credentials, tls))
        });
        let (new_credentials, tls) = match result {
            Ok(result) => result,
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
        let store_result = new_credentials.store(&*self.host);
        self.tls = tls;
        self.credentials = new_credentials;
        self.idle_client = None;
        self.schedule_check_in();
        match store_result {
            Ok(()) => {
                self.delete_pending_key();
                self.renew_at = renew_at(&self.credentials, &*self.clock);
                info!("certificate renewed");
            }
            // This process uses the new certificate, although it is not on disk. The next renewal, after `RETRY_DELAY`,
            // tries to store its own certificate.
            Err(error) => warn!(error:% = error_chain(&error); "the renewed certificate could not be stored"),
        }
    }

    /// Stores for `status` why this host refused a new certificate, or deletes the reason. Only logs an error.
    fn store_refused_renewal(&self, error: Option<&JoinError>) {
        let message =
            error.map(|error| format!("the certificate was not renewed, and the present one stays: {}", error_chain(error)));
        if let Err(error) = store_refused_renewal(&*self.host, message.as_deref()) {
            warn!(error:% = error_chain(&error); "the result of a renewal could not be stored for status");
        }
    }

    /// Deletes the stored key of a renewal that has ended. An error is only logged.
    fn delete_pending_key(&self) {
        if let Err(error) = delete_pending_key(&*self.host) {
            warn!(error:% = error_chain(&error); "the key of a finished renewal could not be deleted");
        }
    }

    /// Creates a client for the current controller, the first of the list. The client connects with the first request.
    fn new_client(&self) -> Client {
        let target = self.targets.front().cloned().expect("a list without a controller was refused by join");
        Client::new(target, Some(self.tls.clone()), ClientLimits::default())
    }
}

/// Returns the wait before the next check-in that the controller requests. The number is not signed, so it is limited
/// to [`MAX_REQUESTED_WAIT`].
fn requested_wait(update: &CheckInUpdate) -> Duration {
    Duration::from_millis(update.next_check_in_ms.into()).min(MAX_REQUESTED_WAIT)
}

fn renew_at(credentials: &TlsCredentials, clock: &dyn Clock) -> Instant {
    Instant::now() + renewal_delay(credentials.validity, clock.unix_seconds())
}

#[cfg(test)]
mod tests;
