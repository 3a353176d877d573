//! From a request on the wire to an answer on it: who asks, which route, what body, which headers. Everything that is
//! refused before a handler runs is refused here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Body as HttpBody;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method as HttpMethod, Request as HttpRequest, Response, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use stemma_wire::endpoint::{Content, Endpoint, Found, Listener, Method, Route, Since, field_since, find};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::serve::{BoxError, Peer, Rejected};
use uuid::Uuid;

use super::body::{self, AnswerBody};
use super::budget::Budgets;
use super::query::{Parameters, without_dry_run};
use super::render::render;
use super::request::{Body, Chosen, HandlerResult, MOST_BODY_BYTES, Reply, Request};
use super::version::{Negotiated, NotAcceptable, Service, negotiate};
use super::who::{Unknown, admitted};
use crate::blobs;
use crate::registry::budget::Share;
use crate::registry::{Abandoned, Who};

/// Which requests a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarding {
    /// TLS: who asks is what the certificate says.
    Certificates,
    /// Plain HTTP on a loopback address, for development and tests: whoever reaches it is admin, so nothing that a browser
    /// was lured into sending is taken (`Host` a loopback name, `Origin` absent or equal).
    Loopback,
    /// A socket of this machine's file system on which root alone is let in: whoever comes is admin.
    Root,
}

/// What stands behind a listener.
pub(crate) trait Operations: Send + Sync {
    /// Which requests the listener takes.
    fn guarding(&self) -> Guarding;
    /// Where refusals are counted.
    fn rejected(&self) -> &Rejected;
    /// What clients may hold of bytes.
    fn budgets(&self) -> &Budgets;
    /// Who asks; `None`: nobody.
    fn who(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Who>, Unknown>;
    /// Refuses who asks where it is no longer what it was when its request began.
    fn check_still(&self, who: &Who) -> Result<(), ApiError>;
    /// Does what a row of the endpoint table is for.
    fn call(self: Arc<Self>, endpoint: Endpoint, request: Request) -> impl Future<Output = HandlerResult> + Send;
}

/// Answers one request. Never fails: what goes wrong is an answer.
pub(crate) async fn answer<A, B>(api: Arc<A>, peer: Option<Arc<Peer>>, request: HttpRequest<B>) -> Response<AnswerBody>
where
    A: Operations,
    B: HttpBody<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let id = format!("req-{}", Uuid::new_v4());
    let (parts, body) = request.into_parts();
    let service = Service::of_path(parts.uri.path());
    let versions = negotiate(parts.uri.path(), &parts.headers);
    let is_head = parts.method == HttpMethod::HEAD;
    let method = if is_head { HttpMethod::GET } else { parts.method };
    let who = api.who(peer.as_deref(), &parts.headers);
    let named = match &who {
        Ok(who) => who.as_ref().map(|who| (who.name.clone(), who.uuid)),
        Err(unknown) => Some((unknown.name.clone(), unknown.uuid)),
    };
    let asker = who.as_ref().ok().cloned().flatten();
    let outcome = match &versions {
        Err(refused) => Err(not_acceptable(refused)),
        Ok(versions) => {
            let opened =
                Opened { id: &id, method: &method, uri: &parts.uri, headers: &parts.headers, versions: *versions };
            opened.answer(&api, who, peer.clone(), body).await
        }
    };
    let is_made = method != HttpMethod::GET;
    let answered = outcome.and_then(|reply| with_room(api.budgets(), asker.as_ref(), reply, is_made));
    let (outcome, share) = match answered {
        Ok((reply, share)) => (Ok(reply), share),
        Err(refusal) => (Err(refusal), None),
    };
    let outcome = outcome.map_err(|refusal| as_of_path(refusal, parts.uri.path()));
    if let Err(refusal) = &outcome {
        note_refusal(&*api, peer.as_deref(), named, parts.uri.path(), refusal);
    }
    let mut response = render(outcome, share, &id, service);
    match &versions {
        Ok(versions) => versions.write(response.headers_mut()),
        Err(refused) => refused.write(response.headers_mut()),
    }
    if is_head { without_body(response) } else { response }
}

/// An answer with room for its body. What nobody asks who is known is small.
fn with_room(
    budgets: &Budgets,
    asker: Option<&Who>,
    reply: Reply,
    is_made: bool,
) -> Result<(Reply, Option<Share>), ApiError> {
    let reply = reply.written_out();
    let share = match (&reply.body, asker) {
        (Body::Written(text, _), Some(who)) => budgets.answer(who, text.len(), is_made)?,
        _ => None,
    };
    Ok((reply, share))
}

/// The head of an answer alone, with the length that its body would have where that is known (RFC 9110, 9.3.2).
fn without_body(response: Response<AnswerBody>) -> Response<AnswerBody> {
    let length = response.body().size_hint().exact();
    let mut response = response.map(|_| body::whole(Bytes::new(), None));
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// Glance's client prints the message alone, where Glance's own begins with the status.
fn as_of_path(refusal: ApiError, path: &str) -> ApiError {
    if !path.starts_with("/v2/") {
        return refusal;
    }
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    ApiError { message: format!("{status}: {}", refusal.message), ..refusal }
}

/// Counts what is refused, and tells of it where who asks is known.
fn note_refusal(
    api: &impl Operations,
    peer: Option<&Peer>,
    named: Option<(String, Option<Uuid>)>,
    path: &str,
    refusal: &ApiError,
) {
    let is_refusal = refusal.kind.is_refusal() || (refusal.status() < 500 && has_odd_segment(path));
    if !is_refusal {
        return;
    }
    let reason = refusal.kind.name();
    api.rejected().refuse(reason, peer.map(|peer| peer.address.ip()));
    // On the plain listener a browser may have been lured into it, by whomever.
    let is_anybodys = matches!(refusal.kind, ErrorType::RequestHost | ErrorType::RequestOrigin);
    let named = named.filter(|_| api.guarding() != Guarding::Loopback || !is_anybodys);
    if let (Some(peer), Some((name, uuid))) = (peer, named) {
        api.rejected().tell(reason, &name, uuid, peer.address);
    }
}

/// Whether a segment is one that no program of ours sends: an id that is written as a path (S54).
fn has_odd_segment(path: &str) -> bool {
    let is_odd = |text: String| matches!(text.as_str(), "." | "..") || text.contains(['/', '\\']);
    path.split('/').any(|segment| decode(segment).map_or(true, is_odd))
}

/// A request whose head was read.
struct Opened<'a> {
    id: &'a str,
    method: &'a HttpMethod,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    versions: Negotiated,
}

impl Opened<'_> {
    async fn answer<A, B>(
        &self,
        api: &Arc<A>,
        who: Result<Option<Who>, Unknown>,
        peer: Option<Arc<Peer>>,
        body: B,
    ) -> HandlerResult
    where
        A: Operations,
        B: HttpBody<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let host = self.host()?;
        self.check_guarded(api.guarding(), &host)?;
        let (endpoint, path) = self.route()?;
        if self.versions.service == Some(Service::Baremetal) {
            self.check_accept()?;
        }
        let who = admitted(endpoint, who)?;
        let route = endpoint.route();
        if let Some(since) = route.since.filter(|since| self.versions.is_before(since)) {
            return Err(since.refuse());
        }
        let base = format!("{}://{host}", if api.guarding() == Guarding::Certificates { "https" } else { "http" });
        let mut request = self.request(endpoint, path, (who, peer), base)?;
        let is_blob = route.request == Content::Bytes;
        let most = if is_blob { blobs::MAX_BYTES } else { MOST_BODY_BYTES };
        let budgets = api.budgets();
        let arriving = budgets.arriving(&request.who, body_bytes(&body, most), is_blob).await?;
        request.body = read_with_room(body, most, arriving.as_ref()).await?;
        check_no_body(route, &request.body)?;
        let decided = if is_blob { None } else { budgets.decided(&request.who, &request.body).await? };
        // Until then the body takes the room of those that arrive. A file body stays there until it is stored.
        let arrived = arriving.filter(|_| is_blob);
        if !self.is_read() {
            budgets.check_takes_answers(&request.who)?;
        }
        // A body takes as long as its client likes.
        api.check_still(&request.who)?;
        let outcome = Box::pin(Arc::clone(api).call(endpoint, request)).await;
        drop((arrived, decided));
        outcome
    }

    /// The request, before its body is read.
    fn request(
        &self,
        endpoint: Endpoint,
        path: Vec<(String, String)>,
        (who, peer): (Who, Option<Arc<Peer>>),
        base: String,
    ) -> Result<Request, ApiError> {
        let (uri, dry_run) =
            if endpoint.has_dry_run() { without_dry_run(self.uri)? } else { (self.uri.clone(), false) };
        let query = Parameters::read(&uri, endpoint.route().query)?;
        query.check_not_empty(endpoint.route().query, self.is_of_ironic())?;
        let fields = self.fields(endpoint, &query)?;
        Ok(Request {
            endpoint,
            fields,
            method: self.method.clone(),
            query,
            uri,
            dry_run,
            path,
            headers: self.headers.clone(),
            body: Bytes::new(),
            versions: self.versions,
            peer,
            who,
            id: self.id.to_owned(),
            base,
            abandoned: Abandoned::default(),
        })
    }

    /// Whether a client of Ironic asks Ironic's API.
    fn is_of_ironic(&self) -> bool {
        self.versions.is_ironics && self.versions.service == Some(Service::Baremetal)
    }

    /// The fields that a request chooses, where its client knows all that its query says.
    fn fields(&self, endpoint: Endpoint, query: &Parameters) -> Result<Chosen, ApiError> {
        let is_late = |since: &&'static Since| self.versions.is_before(since);
        for (name, _) in query.pairs() {
            if let Some(since) = endpoint.parameter_since(name).filter(is_late) {
                return Err(since.refuse().field(name));
            }
        }
        let known = endpoint.fields();
        let named = known.map(|known| query.fields(&known.names, self.is_of_ironic())).transpose()?.flatten();
        let has_version = self.versions.service == Some(Service::Baremetal);
        let is_late = |name: &&&str| has_version && self.versions.baremetal < field_since(name);
        match named.iter().flatten().find(is_late) {
            Some(name) => {
                let message = format!("the field {name} is not there in version 1.{}", self.versions.baremetal.0);
                Err(ApiError::new(ErrorType::RequestNotAcceptable, message).field("fields"))
            }
            None => {
                let listed = endpoint.route().shows;
                Ok(Chosen { named, listed, links: has_version, is_ironics: self.versions.is_ironics })
            }
        }
    }

    fn host(&self) -> Result<String, ApiError> {
        let sent = self.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = sent.or_else(|| self.uri.authority().map(hyper::http::uri::Authority::as_str));
        host.map(str::to_owned).ok_or_else(|| ApiError::new(ErrorType::RequestHost, ErrorType::RequestHost.title()))
    }

    /// Refuses what a page of another site may have sent.
    fn check_guarded(&self, guarding: Guarding, host: &str) -> Result<(), ApiError> {
        match guarding {
            Guarding::Loopback => self.check_loopback(host),
            Guarding::Certificates if !self.is_read() && *self.method != HttpMethod::OPTIONS => self.check_site(host),
            // No page reaches a file's socket.
            Guarding::Certificates | Guarding::Root => Ok(()),
        }
    }

    /// A name that only this machine has, and no page of another origin (S55, S56, S75).
    fn check_loopback(&self, host: &str) -> Result<(), ApiError> {
        let name = host
            .rsplit_once(':')
            .map_or(host, |(name, port)| if port.bytes().all(|b| b.is_ascii_digit()) { name } else { host });
        // Read as an address, not by how it begins: `127.example.net` is anybody's.
        let loopback = name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        if !matches!(name, "localhost" | "[::1]") && !loopback {
            return Err(ApiError::new(ErrorType::RequestHost, ErrorType::RequestHost.title()));
        }
        self.check_origin("http", host)
    }

    /// No write that a page of another site made a browser send, with the certificate of the person before it (S56).
    fn check_site(&self, host: &str) -> Result<(), ApiError> {
        let mut sites = self.headers.get_all("sec-fetch-site").iter();
        if sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none")) {
            return self.check_origin("https", host);
        }
        Err(ApiError::new(ErrorType::RequestOrigin, ErrorType::RequestOrigin.title()))
    }

    /// `Origin` is absent, or this server's own.
    fn check_origin(&self, scheme: &str, host: &str) -> Result<(), ApiError> {
        let own = format!("{scheme}://{host}");
        if self.headers.get_all(header::ORIGIN).iter().all(|origin| origin.as_bytes() == own.as_bytes()) {
            return Ok(());
        }
        Err(ApiError::new(ErrorType::RequestOrigin, ErrorType::RequestOrigin.title()))
    }

    fn is_read(&self) -> bool {
        *self.method == HttpMethod::GET
    }

    /// Ironic's answers are JSON alone, and it says so to who wants something else.
    fn check_accept(&self) -> Result<(), ApiError> {
        let Some(accept) = self.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()) else {
            return Ok(());
        };
        let takes_json = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
        if takes_json.into_iter().any(|kind| matches!(kind, "" | "*/*" | "application/*" | "application/json")) {
            return Ok(());
        }
        Err(ApiError::new(ErrorType::RequestNotAcceptable, "answers are application/json here"))
    }

    fn route(&self) -> Result<(Endpoint, Vec<(String, String)>), ApiError> {
        let path = self.uri.path();
        let baremetal = Service::of_path(path) == Some(Service::Baremetal);
        match find(Listener::Admin, self.method.as_str(), path) {
            Found::Route(endpoint, values) => {
                let names =
                    endpoint.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
                let decoded: Result<Vec<_>, ApiError> =
                    names.zip(values).map(|(name, value)| Ok((name.to_owned(), decode(value)?))).collect();
                Ok((endpoint, decoded?))
            }
            // As Ironic, which takes what follows a node for the name of a field.
            Found::Nothing if baremetal && path.trim_end_matches('/').ends_with("/detail") => {
                Err(ApiError::new(ErrorType::FieldInvalid, "a node has no field of that name"))
            }
            Found::OtherMethods(methods) => {
                let allow = methods.iter().map(|method| method.as_str()).collect::<Vec<_>>().join(", ");
                let refusal = ApiError::new(ErrorType::RequestMethod, format!("this path takes {allow}"));
                Err(ApiError { allow: Some(allow.into()), ..refusal })
            }
            Found::Nothing => Err(ApiError::new(ErrorType::PathUnknown, ErrorType::PathUnknown.title())),
        }
    }
}

/// Refuses a deletion with a body where none is read: whoever names there what is to go would lose all of it.
fn check_no_body(route: &Route, body: &[u8]) -> Result<(), ApiError> {
    let says_nothing = matches!(body.trim_ascii(), b"" | b"null" | b"{}");
    if route.method != Method::Delete || route.request != Content::Nothing || says_nothing {
        return Ok(());
    }
    let message = "this deletes all that the path names, and takes no body; nothing was changed";
    let advice = "leave the body out, or name a single one in the path";
    Err(ApiError::new(ErrorType::FieldInvalid, message).detail(advice))
}

/// How many bytes a body takes at most, before it is read: as many as it knows of itself, and otherwise as many as are taken. Its head
/// does not say it where the body came with the head.
fn body_bytes(body: &impl HttpBody, most: usize) -> usize {
    let known = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    known.unwrap_or(most).min(most)
}

/// Reads a body whole, unless its room is to be given to somebody else meanwhile.
async fn read_with_room<B>(body: B, most: usize, room: Option<&Share>) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let Some(room) = room else { return read(body, most).await };
    tokio::select! {
        body = read(body, most) => body,
        () = room.gives_way() => {
            let message = "the body took long to arrive, and others wait for its room; nothing was changed, send it again";
            Err(ApiError::new(ErrorType::ServerBusy, message))
        }
    }
}

/// Reads a body whole.
async fn read<B>(body: B, most: usize) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    match Limited::new(Box::pin(body), most).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(failure) if failure.is::<http_body_util::LengthLimitError>() => Err(ApiError::new(
            ErrorType::RequestTooLarge,
            format!("the body is larger than the {most} bytes that are taken here"),
        )),
        Err(_) => Err(ApiError::new(ErrorType::RequestMalformed, "the body did not arrive whole")),
    }
}

/// Decodes one segment of a path. What it names is checked by whoever looks it up; it can hold no slash that would
/// make two segments of it, and no control character.
fn decode(segment: &str) -> Result<String, ApiError> {
    let refused = || ApiError::new(ErrorType::RequestMalformed, "a segment of the path can't be decoded");
    let is_escape = |rest: &[u8]| rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_hexdigit);
    if !segment.as_bytes().split(|byte| *byte == b'%').skip(1).all(is_escape) {
        return Err(refused());
    }
    let text = percent_decode_str(segment).decode_utf8().map_err(|_| refused())?.into_owned();
    if text.chars().any(char::is_control) { Err(refused()) } else { Ok(text) }
}

fn not_acceptable(refused: &NotAcceptable) -> ApiError {
    ApiError::new(ErrorType::RequestNotAcceptable, refused.to_string())
}

/// An answer to come.
pub type Answering = Pin<Box<dyn Future<Output = Response<AnswerBody>> + Send>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_once_and_bounded() {
        for (segment, decoded) in [
            ("web-1", Some("web-1")),
            ("a%20b", Some("a b")),
            ("%252e", Some("%2e")),
            ("%43USTOM", Some("CUSTOM")),
            ("%00", None),
            ("%0A", None),
            ("%zz", None),
            ("%f", None),
            ("%+f", None),
            ("%ff", None),
        ] {
            assert_eq!(decode(segment).ok().as_deref(), decoded, "{segment}");
        }
    }
}
