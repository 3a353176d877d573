//! The agents' listener: five paths, matched by hand. The certificate identifies the agent.
//!
//! There is no router crate. With five fixed paths it would cost more than the rest of a check-in without changes. No
//! path and no body names a node (S31, S36), so there is nothing to compare and no comparison to get wrong.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use stemma_wire::clock::Clock;
use stemma_wire::endpoint::{AgentEndpoint, CallerClass, Endpoint, RouteMatch, SocketKind, find_route};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::checkin::CheckIn;
use stemma_wire::message::{DecodeError, Hash, Message, WireVersion, decode_up_to, encode_as};
use stemma_wire::serve::{Peer, RejectionCounter, RequestBody};

use super::checkin::CheckInHandler;
use super::content::{self, FileBody};
use crate::desired::DesiredTable;
use crate::desired::slot::NodeSlot;
use crate::enrol::Enrolment;
use crate::identity::{Access, Identities};
use crate::intake::Intake;
use crate::metrics::Counters;

/// The path of check-ins, which are nearly all requests.
pub(crate) const CHECK_IN_PATH: &str = Endpoint::CheckIn.route().path;

/// The body of a response to an agent.
#[derive(Debug)]
pub struct AgentBody(BodySource);

/// The content of a response body.
#[derive(Debug)]
enum BodySource {
    /// All bytes in memory. `None` after they are sent.
    Whole(Option<Bytes>),
    /// A file that is sent in chunks.
    File(FileBody),
}

/// The handler of the requests of agents: enrolment, renewal, check-ins, profiles and blobs.
pub struct AgentsListener {
    check_ins: CheckInHandler,
    identities: Arc<Identities>,
    enrolment: Arc<Enrolment>,
    clock: Arc<dyn Clock>,
    rejected: Arc<RejectionCounter>,
    counters: Arc<Counters>,
    /// The newest wire version that the listener accepts.
    newest_version: WireVersion,
}

impl AgentsListener {
    /// Returns a listener that sends the states of `desired` and stores reports with `intake`.
    pub fn new(
        desired: Arc<DesiredTable>,
        intake: Arc<dyn Intake>,
        identities: Arc<Identities>,
        enrolment: Arc<Enrolment>,
        clock: Arc<dyn Clock>,
        rejected: Arc<RejectionCounter>,
        counters: Arc<Counters>,
    ) -> Self {
        let check_ins = CheckInHandler { desired, intake, clock: Arc::clone(&clock), rejected: Arc::clone(&rejected) };
        Self { check_ins, identities, enrolment, clock, rejected, counters, newest_version: WireVersion::CURRENT }
    }

    /// Returns the listener, restricted to wire versions up to `newest_version`.
    #[must_use]
    pub fn with_newest_version(self, newest_version: WireVersion) -> Self {
        Self { newest_version, ..self }
    }

    /// Answers one request of an agent. An error becomes an error response.
    pub async fn handle(self: Arc<Self>, peer: Arc<Peer>, request: Request<RequestBody>) -> Response<AgentBody> {
        let result = if request.method() == Method::POST && request.uri().path() == CHECK_IN_PATH {
            self.check_in(&peer, request.into_body()).await
        } else {
            // Other requests are rare, and their future is large. It is boxed, so that waiting check-ins do not reserve
            // memory for it.
            Box::pin(self.route(&peer, request)).await
        };
        result.unwrap_or_else(|error| self.error_response(&peer, &error))
    }

    /// Records that a request of a host was refused before it reached the handler. Has an effect only for a check-in
    /// with a valid certificate: the refusal is then a finding of the certificate's node.
    pub fn record_refusal(&self, peer: &Arc<Peer>, path: &str, kind: ErrorType) {
        if path == CHECK_IN_PATH
            && let Ok(slot) = self.authenticate(peer)
        {
            self.check_ins.record_refusal(&slot, &ApiError::from(kind));
        }
    }

    /// Answers a check-in. If it is refused after authentication, records the refusal as a finding of the node.
    async fn check_in(&self, peer: &Arc<Peer>, body: RequestBody) -> Result<Response<AgentBody>, ApiError> {
        let slot = self.authenticate(peer)?;
        let result = self.check_in_on_slot(Arc::clone(&slot), peer, body).await;
        if let Err(error) = &result {
            self.check_ins.record_refusal(&slot, error);
        }
        result
    }

    /// Reads a check-in, and handles it for the node of the slot (the node's data in memory).
    async fn check_in_on_slot(
        &self,
        slot: Arc<NodeSlot>,
        peer: &Arc<Peer>,
        body: RequestBody,
    ) -> Result<Response<AgentBody>, ApiError> {
        let (version, check_in) = self.read_message::<CheckIn>(body).await?;
        self.counters.check_ins.inc();
        let reply = self.check_ins.handle(slot, peer, version, check_in).await?;
        // There is no `content-type`, because agents ignore it.
        let mut response = Response::new(AgentBody(BodySource::Whole(Some(encode_as(version, &reply.response).into()))));
        if reply.should_close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    /// Answers a request. Fails for an unknown path or method, and if the caller's class may not use the endpoint.
    async fn route(&self, peer: &Arc<Peer>, request: Request<RequestBody>) -> Result<Response<AgentBody>, ApiError> {
        let path = request.uri().path().to_owned();
        let (endpoint, parameters) = match find_route(SocketKind::Agents, request.method().as_str(), &path) {
            RouteMatch::Route(endpoint, parameters) => (endpoint, parameters),
            RouteMatch::MethodNotAllowed(_) => return Err(ApiError::from(ErrorType::RequestMethod)),
            RouteMatch::NotFound => return Err(ApiError::from(ErrorType::PathUnknown)),
        };
        if !endpoint.allows(CallerClass::for_agents_listener(peer.identity.as_ref())) {
            let kind = if peer.identity.is_none() { ErrorType::AuthRequired } else { ErrorType::AuthForbidden };
            return Err(ApiError::from(kind));
        }
        let unknown_path = || ApiError::from(ErrorType::PathUnknown);
        let hash_in_path = || parameters.first().and_then(|text| text.parse().ok()).ok_or_else(unknown_path);
        match AgentEndpoint::from_endpoint(endpoint).ok_or_else(unknown_path)? {
            AgentEndpoint::Enroll => {
                let (version, request) = self.read_message(request.into_body()).await?;
                let enrolment = self.enrolment.enrol(peer.address, request).await?;
                let is_enrolled = || self.identities.is_enrolled(enrolment.node);
                self.check_ins.desired.note_enrolled(enrolment.node, is_enrolled);
                Ok(message_response(version, &enrolment))
            }
            AgentEndpoint::Renew => self.renew(peer, request.into_body()).await,
            AgentEndpoint::CheckIn => self.check_in(peer, request.into_body()).await,
            AgentEndpoint::AgentProfile => self.profile(peer, hash_in_path()?),
            AgentEndpoint::AgentBlob => self.blob(peer, hash_in_path()?).await,
        }
    }

    /// Renews the certificate of the calling agent. An expired certificate is accepted here for as long as it may be
    /// renewed.
    async fn renew(&self, peer: &Arc<Peer>, body: RequestBody) -> Result<Response<AgentBody>, ApiError> {
        let identity = peer.identity.as_ref().ok_or(ApiError::from(ErrorType::AuthRequired))?;
        let (Access::AllRequests(node) | Access::RenewOnly(node)) =
            self.identities.check(identity, self.clock.unix_seconds()).map_err(ApiError::from)?;
        let (version, request) = self.read_message(body).await?;
        Ok(message_response(version, &self.enrolment.renew(node, identity, peer.address, request).await?))
    }

    /// Reads the message in a request. Returns it with its wire version, which the response uses too.
    async fn read_message<M: Message>(&self, body: RequestBody) -> Result<(WireVersion, M), ApiError> {
        let bytes = body.collect(M::MAX_BYTES as u64).await.map_err(|error| ApiError::from(error.kind()))?;
        decode_up_to(self.newest_version, &bytes).map_err(|error| match error {
            DecodeError::Version { .. } => ApiError::new(ErrorType::MessageVersion, error.to_string()),
            _ => ApiError::from(ErrorType::MessageMalformed),
        })
    }

    /// Returns a profile that the desired state of the calling agent's node names.
    fn profile(&self, peer: &Peer, hash: Hash) -> Result<Response<AgentBody>, ApiError> {
        let slot = self.authenticate(peer)?;
        let bytes = content::profile(&slot, hash).ok_or(ApiError::from(ErrorType::ObjectNotFound))?;
        Ok(response(Endpoint::AgentProfile, BodySource::Whole(Some(bytes))))
    }

    /// Returns the response with a blob that the desired state of the calling agent's node names. The blob is read
    /// while it is sent.
    async fn blob(&self, peer: &Peer, hash: Hash) -> Result<Response<AgentBody>, ApiError> {
        let slot = self.authenticate(peer)?;
        if !content::may_have_blob(&slot, hash) {
            return Err(ApiError::from(ErrorType::ObjectNotFound));
        }
        let intake = Arc::clone(&self.check_ins.intake);
        let result = tokio::task::spawn_blocking(move || intake.open_blob(hash)?.map(FileBody::new).transpose()).await;
        match result.map_err(io::Error::other).flatten() {
            Ok(Some(body)) => Ok(response(Endpoint::AgentBlob, BodySource::File(body))),
            Ok(None) => Err(ApiError::from(ErrorType::ObjectNotFound)),
            Err(error) => {
                log::error!(hash:% = hash, error:% = error; "blob cannot be read");
                Err(ApiError::from(ErrorType::ServerInternal))
            }
        }
    }

    /// Returns the slot (the data in memory) of the calling agent's node. The agent is identified only by its
    /// certificate, which must be valid and not expired.
    fn authenticate(&self, peer: &Peer) -> Result<Arc<NodeSlot>, ApiError> {
        let identity = peer.identity.as_ref().ok_or(ApiError::from(ErrorType::AuthRequired))?;
        match self.identities.check(identity, self.clock.unix_seconds()).map_err(ApiError::from)? {
            Access::AllRequests(node) => {
                let slot = self.check_ins.desired.enrolled_slot(node, || self.identities.is_enrolled(node));
                slot.ok_or(ApiError::from(ErrorType::AuthRevoked))
            }
            Access::RenewOnly(_) => Err(ApiError::from(ErrorType::CertificateExpired)),
        }
    }

    /// Returns the response for an error, and counts the request as rejected.
    fn error_response(&self, peer: &Peer, error: &ApiError) -> Response<AgentBody> {
        // An error of the controller is not counted against the caller. Any other error is counted against the caller,
        // because a correct agent sends nothing that is refused.
        if error.status() < 500 {
            self.rejected.record_peer(error.kind.name(), peer);
        } else {
            self.rejected.record(error.kind.name(), Some(peer.address.ip()));
        }
        let mut response = Response::new(AgentBody(BodySource::Whole(Some(error.body().to_string().into()))));
        *response.status_mut() = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if error.status() == 503 {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("10"));
        }
        // With a revoked certificate or a deleted node, the agent has no further use for the connection.
        if matches!(error.kind, ErrorType::AuthRevoked) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Returns the response with a message. All messages have the media type of the check-in.
fn message_response<M: Message>(version: WireVersion, message: &M) -> Response<AgentBody> {
    response(Endpoint::CheckIn, BodySource::Whole(Some(encode_as(version, message).into())))
}

/// Returns the response with this content and the media type of the endpoint.
fn response(endpoint: Endpoint, content: BodySource) -> Response<AgentBody> {
    let mut response = Response::new(AgentBody(content));
    if let Some(media_type) = endpoint.route().response.media_types().first() {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    response
}

impl Body for AgentBody {
    type Data = Bytes;
    type Error = io::Error;

    /// Returns the next part of the body: all bytes, or the next chunk of the file.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.0 {
            BodySource::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            BodySource::File(file) => Pin::new(file).poll_frame(cx),
        }
    }

    /// Returns whether the whole body was sent.
    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Whole(bytes) => bytes.is_none(),
            BodySource::File(file) => file.is_end_stream(),
        }
    }

    /// Returns the number of bytes that are not sent yet.
    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            BodySource::File(file) => file.size_hint(),
        }
    }
}
