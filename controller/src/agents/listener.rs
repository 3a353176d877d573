//! The agents' listener: five paths, matched by hand, and who asks is what the certificate says.
//!
//! No router crate stands here: with five fixed paths one costs more than all the rest of a check-in in which nothing
//! changed. No path and no body names a node (S31, S36), so there is nothing to compare and nothing to get wrong.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use stemma_wire::clock::Clock;
use stemma_wire::endpoint::{AgentEndpoint, Caller, Endpoint, Found, Listener, find};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::checkin::CheckIn;
use stemma_wire::message::{DecodeError, Hash, Message, WireVersion, decode_up_to, encode_as};
use stemma_wire::serve::{Peer, Rejected, RequestBody};

use super::checkin::CheckIns;
use super::content::{self, FileBody};
use crate::desired::DesiredTable;
use crate::desired::slot::Slot;
use crate::enrol::Enrolment;
use crate::identity::{Access, Identities};
use crate::intake::Intake;
use crate::metrics::Counters;

/// The path of nearly every request.
pub(crate) const CHECK_IN: &str = Endpoint::CheckIn.route().path;

/// The body of an answer to an agent.
#[derive(Debug)]
pub struct AgentBody(Content);

#[derive(Debug)]
enum Content {
    Whole(Option<Bytes>),
    File(FileBody),
}

/// What answers agents.
pub struct AgentsListener {
    check_ins: CheckIns,
    identities: Arc<Identities>,
    enrolment: Arc<Enrolment>,
    clock: Arc<dyn Clock>,
    rejected: Arc<Rejected>,
    counters: Arc<Counters>,
    /// The newest version that is spoken here.
    newest: WireVersion,
}

impl AgentsListener {
    /// A listener over what was decided and whoever takes in what hosts say.
    pub fn new(
        desired: Arc<DesiredTable>,
        intake: Arc<dyn Intake>,
        identities: Arc<Identities>,
        enrolment: Arc<Enrolment>,
        clock: Arc<dyn Clock>,
        rejected: Arc<Rejected>,
        counters: Arc<Counters>,
    ) -> Self {
        let check_ins = CheckIns { desired, intake, clock: Arc::clone(&clock), rejected: Arc::clone(&rejected) };
        Self { check_ins, identities, enrolment, clock, rejected, counters, newest: WireVersion::CURRENT }
    }

    /// The same listener, which speaks wire versions up to this one.
    #[must_use]
    pub fn up_to(self, newest: WireVersion) -> Self {
        Self { newest, ..self }
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, peer: Arc<Peer>, request: Request<RequestBody>) -> Response<AgentBody> {
        let answered = if request.method() == Method::POST && request.uri().path() == CHECK_IN {
            self.check_in(&peer, request.into_body()).await
        } else {
            // Rare, and larger: not to be carried by every parked check-in.
            Box::pin(self.other(&peer, request)).await
        };
        answered.unwrap_or_else(|error| self.refuse(&peer, &error))
    }

    /// Notes that a request of a host was refused before it came here: a check-in is a finding of its node.
    pub fn note_refused(&self, peer: &Arc<Peer>, path: &str, kind: ErrorType) {
        if path == CHECK_IN
            && let Ok(slot) = self.agent(peer)
        {
            self.check_ins.note_refused(&slot, &ApiError::from(kind));
        }
    }

    async fn check_in(&self, peer: &Arc<Peer>, body: RequestBody) -> Result<Response<AgentBody>, ApiError> {
        let slot = self.agent(peer)?;
        let answered = self.check_in_at(Arc::clone(&slot), peer, body).await;
        if let Err(error) = &answered {
            self.check_ins.note_refused(&slot, error);
        }
        answered
    }

    async fn check_in_at(
        &self,
        slot: Arc<Slot>,
        peer: &Arc<Peer>,
        body: RequestBody,
    ) -> Result<Response<AgentBody>, ApiError> {
        let (version, said) = self.read::<CheckIn>(body).await?;
        self.counters.check_ins.inc();
        let answered = self.check_ins.answer(slot, peer, version, said).await?;
        // No type of content: no agent looks at it.
        let mut response = Response::new(AgentBody(Content::Whole(Some(encode_as(version, &answered.answer).into()))));
        if answered.close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    async fn other(&self, peer: &Arc<Peer>, request: Request<RequestBody>) -> Result<Response<AgentBody>, ApiError> {
        let path = request.uri().path().to_owned();
        let (endpoint, parameters) = match find(Listener::Agents, request.method().as_str(), &path) {
            Found::Route(endpoint, parameters) => (endpoint, parameters),
            Found::OtherMethods(_) => return Err(ApiError::from(ErrorType::RequestMethod)),
            Found::Nothing => return Err(ApiError::from(ErrorType::PathUnknown)),
        };
        if !endpoint.allows(Caller::at_agents_listener(peer.identity.as_ref())) {
            let kind = if peer.identity.is_none() { ErrorType::AuthRequired } else { ErrorType::AuthForbidden };
            return Err(ApiError::from(kind));
        }
        let unknown = || ApiError::from(ErrorType::PathUnknown);
        let hash = || parameters.first().and_then(|text| text.parse().ok()).ok_or_else(unknown);
        match AgentEndpoint::of(endpoint).ok_or_else(unknown)? {
            AgentEndpoint::Enroll => {
                let (version, request) = self.read(request.into_body()).await?;
                let answer = self.enrolment.enrol(peer.address, request).await?;
                let is_enrolled = || self.identities.is_enrolled(answer.node);
                self.check_ins.desired.note_enrolled(answer.node, is_enrolled);
                Ok(message(version, &answer))
            }
            AgentEndpoint::Renew => self.renew(peer, request.into_body()).await,
            AgentEndpoint::CheckIn => self.check_in(peer, request.into_body()).await,
            AgentEndpoint::AgentProfile => self.profile(peer, hash()?),
            AgentEndpoint::AgentBlob => self.blob(peer, hash()?).await,
        }
    }

    async fn renew(&self, peer: &Arc<Peer>, body: RequestBody) -> Result<Response<AgentBody>, ApiError> {
        let identity = peer.identity.as_ref().ok_or(ApiError::from(ErrorType::AuthRequired))?;
        let (Access::Good(node) | Access::RenewOnly(node)) =
            self.identities.judge(identity, self.clock.unix_seconds()).map_err(ApiError::from)?;
        let (version, request) = self.read(body).await?;
        Ok(message(version, &self.enrolment.renew(node, identity, peer.address, request).await?))
    }

    /// Reads a request with its version, in which it is answered.
    async fn read<M: Message>(&self, body: RequestBody) -> Result<(WireVersion, M), ApiError> {
        let bytes = body.collect(M::MAX_BYTES as u64).await.map_err(|error| ApiError::from(error.kind()))?;
        decode_up_to(self.newest, &bytes).map_err(|error| match error {
            DecodeError::Version { .. } => ApiError::new(ErrorType::MessageVersion, error.to_string()),
            _ => ApiError::from(ErrorType::MessageMalformed),
        })
    }

    fn profile(&self, peer: &Peer, hash: Hash) -> Result<Response<AgentBody>, ApiError> {
        let slot = self.agent(peer)?;
        let bytes = content::profile(&slot, hash).ok_or(ApiError::from(ErrorType::ObjectNotFound))?;
        Ok(answer(Endpoint::AgentProfile, Content::Whole(Some(bytes))))
    }

    async fn blob(&self, peer: &Peer, hash: Hash) -> Result<Response<AgentBody>, ApiError> {
        let slot = self.agent(peer)?;
        if !content::may_have_blob(&slot, hash) {
            return Err(ApiError::from(ErrorType::ObjectNotFound));
        }
        let intake = Arc::clone(&self.check_ins.intake);
        let opened = tokio::task::spawn_blocking(move || intake.blob(hash)?.map(FileBody::new).transpose()).await;
        match opened.map_err(io::Error::other).flatten() {
            Ok(Some(body)) => Ok(answer(Endpoint::AgentBlob, Content::File(body))),
            Ok(None) => Err(ApiError::from(ErrorType::ObjectNotFound)),
            Err(error) => {
                log::error!(hash:% = hash, error:% = error; "blob cannot be read");
                Err(ApiError::from(ErrorType::ServerInternal))
            }
        }
    }

    /// The place of the agent who asks: by its certificate, which is still good, and by nothing else.
    fn agent(&self, peer: &Peer) -> Result<Arc<Slot>, ApiError> {
        let identity = peer.identity.as_ref().ok_or(ApiError::from(ErrorType::AuthRequired))?;
        match self.identities.judge(identity, self.clock.unix_seconds()).map_err(ApiError::from)? {
            Access::Good(node) => {
                let slot = self.check_ins.desired.slot_of_agent(node, || self.identities.is_enrolled(node));
                slot.ok_or(ApiError::from(ErrorType::AuthRevoked))
            }
            Access::RenewOnly(_) => Err(ApiError::from(ErrorType::CertificateExpired)),
        }
    }

    fn refuse(&self, peer: &Peer, error: &ApiError) -> Response<AgentBody> {
        // A failure of the controller itself is not counted against the caller. Any other error is: a sound agent sends nothing that is refused.
        if error.status() < 500 {
            self.rejected.refuse_peer(error.kind.name(), peer);
        } else {
            self.rejected.refuse(error.kind.name(), Some(peer.address.ip()));
        }
        let mut response = Response::new(AgentBody(Content::Whole(Some(error.body().to_string().into()))));
        *response.status_mut() = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if error.status() == 503 {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("10"));
        }
        if matches!(error.kind, ErrorType::AuthRevoked) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn message<M: Message>(version: WireVersion, message: &M) -> Response<AgentBody> {
    answer(Endpoint::CheckIn, Content::Whole(Some(encode_as(version, message).into())))
}

fn answer(endpoint: Endpoint, content: Content) -> Response<AgentBody> {
    let mut response = Response::new(AgentBody(content));
    if let Some(media_type) = endpoint.route().answer.media_types().first() {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    response
}

impl Body for AgentBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.0 {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::File(file) => Pin::new(file).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Whole(bytes) => bytes.is_none(),
            Content::File(file) => file.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Content::File(file) => file.size_hint(),
        }
    }
}
