//! Turns an HTTP request into a response: authentication, routing, body and headers. The checks that precede a handler
//! are here, except those that the server (`stemma_wire::serve`) makes before.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Body as HttpBody;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method as HttpMethod, Response, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use stemma_wire::endpoint::{
    BodyType, Endpoint, Method, MinVersion, Route, RouteMatch, SocketKind, field_min_version, find_route,
};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::serve::{BoxError, Peer, RejectionCounter};
use uuid::Uuid;

use super::auth::{AuthFailure, authorize};
use super::body::{self, BoxedBody};
use super::budget::Budgets;
use super::query::{QueryString, split_dry_run};
use super::render::render;
use super::request::{FieldSelection, HandlerResult, HttpRequest, HttpResponse, MAX_BODY_BYTES, ResponseBody};
use super::version::{NegotiatedVersions, NotAcceptable, OpenStackApi, negotiate};
use crate::blobs;
use crate::registry::budget::Share;
use crate::registry::{Canceled, Requester};

/// The way in which a listener authenticates callers, with the requests that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerAuth {
    /// TLS: the caller is identified by its client certificate or by a token.
    Certificates,
    /// Plain HTTP on a loopback address, for development and tests. Every caller without a principal's token is admin,
    /// so a request that a web page made the browser send is refused: the header `Host` must be a loopback name, and
    /// `Origin` must be absent or name this server.
    Loopback,
    /// A Unix socket that only root can open. Every caller without a principal's token is admin.
    Root,
}

/// The request handler behind a listener.
pub(crate) trait RequestHandler: Send + Sync {
    /// Returns how the listener authenticates callers.
    fn listener_auth(&self) -> ListenerAuth;
    /// Returns the counters of refused requests.
    fn rejections(&self) -> &RejectionCounter;
    /// Returns the limits on the memory that clients use.
    fn budgets(&self) -> &Budgets;
    /// Returns the caller, or `None` for an anonymous caller.
    fn authenticate(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Requester>, AuthFailure>;
    /// Fails if the caller's credential or rights have changed since the request began.
    fn recheck(&self, requester: &Requester) -> Result<(), ApiError>;
    /// Calls the handler of an endpoint.
    fn call(self: Arc<Self>, endpoint: Endpoint, request: HttpRequest) -> impl Future<Output = HandlerResult> + Send;
}

/// Returns the response to one request. An error becomes a response too. A HEAD request is handled as GET, and the body
/// of the response is removed.
pub(crate) async fn respond<A, B>(api: Arc<A>, peer: Option<Arc<Peer>>, request: hyper::Request<B>) -> Response<BoxedBody>
where
    A: RequestHandler,
    B: HttpBody<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let id = format!("req-{}", Uuid::new_v4());
    let (parts, body) = request.into_parts();
    let service = OpenStackApi::from_path(parts.uri.path());
    let versions = negotiate(parts.uri.path(), &parts.headers);
    let is_head = parts.method == HttpMethod::HEAD;
    let method = if is_head { HttpMethod::GET } else { parts.method };
    let caller = api.authenticate(peer.as_deref(), &parts.headers);
    // The name and uuid for the audit, also if the credentials are invalid.
    let principal = match &caller {
        Ok(caller) => caller.as_ref().map(|caller| (caller.name.clone(), caller.uuid)),
        Err(failure) => Some((failure.name.clone(), failure.uuid)),
    };
    let requester = caller.as_ref().ok().cloned().flatten();
    let outcome = match &versions {
        Err(version_error) => Err(not_acceptable(version_error)),
        Ok(versions) => {
            let head = RequestHead { id: &id, method: &method, uri: &parts.uri, headers: &parts.headers, versions: *versions };
            head.respond(&api, caller, peer.clone(), body).await
        }
    };
    let is_write = method != HttpMethod::GET;
    let result = outcome.and_then(|reply| with_budget(api.budgets(), requester.as_ref(), reply, is_write));
    let (outcome, share) = match result {
        Ok((reply, share)) => (Ok(reply), share),
        Err(refusal) => (Err(refusal), None),
    };
    let outcome = outcome.map_err(|refusal| adapt_to_glance(refusal, parts.uri.path()));
    if let Err(refusal) = &outcome {
        record_refusal(&*api, peer.as_deref(), principal, parts.uri.path(), refusal);
    }
    let mut response = render(outcome, share, &id, service);
    match &versions {
        Ok(versions) => versions.write_headers(response.headers_mut()),
        Err(version_error) => version_error.write_headers(response.headers_mut()),
    }
    if is_head { without_body(response) } else { response }
}

/// Encodes a response, and reserves memory for its body until the returned share is dropped. A response to an anonymous
/// caller is small and gets no share, and neither does a body that is sent in pieces. Fails if a read can get no share.
fn with_budget(
    budgets: &Budgets,
    requester: Option<&Requester>,
    reply: HttpResponse,
    is_write: bool,
) -> Result<(HttpResponse, Option<Share>), ApiError> {
    let reply = reply.encode();
    let share = match (&reply.body, requester) {
        (ResponseBody::Encoded(text, _), Some(caller)) => budgets.admit_response(caller, text.len(), is_write)?,
        _ => None,
    };
    Ok((reply, share))
}

/// Returns the head of a response, with the length of its body if that is known (RFC 9110, 9.3.2).
fn without_body(response: Response<BoxedBody>) -> Response<BoxedBody> {
    let length = response.body().size_hint().exact();
    let mut response = response.map(|_| body::full_body(Bytes::new(), None));
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// Prefixes the message of an error with the HTTP status, if the path belongs to Glance's API (`OpenStack`'s image
/// service). Glance's client prints only the message, and Glance's own messages have that prefix.
fn adapt_to_glance(refusal: ApiError, path: &str) -> ApiError {
    if !path.starts_with("/v2/") {
        return refusal;
    }
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    ApiError { message: format!("{status}: {}", refusal.message), ..refusal }
}

/// Counts an error if its type is a refusal ([`ErrorType::is_refusal`]), or if the path looks like an attack. With a
/// `principal`, the refusal is also recorded for the audit, even if the credentials are invalid.
fn record_refusal(
    api: &impl RequestHandler,
    peer: Option<&Peer>,
    principal: Option<(String, Option<Uuid>)>,
    path: &str,
    refusal: &ApiError,
) {
    let is_refusal = refusal.kind.is_refusal() || (refusal.status() < 500 && has_path_in_segment(path));
    if !is_refusal {
        return;
    }
    let reason = refusal.kind.name();
    api.rejections().record(reason, peer.map(|peer| peer.address.ip()));
    // On the plain HTTP listener, a web page may have made the caller's browser send this request. Then the refusal is
    // not recorded under the caller's name.
    let may_be_forged = matches!(refusal.kind, ErrorType::RequestHost | ErrorType::RequestOrigin);
    let principal = principal.filter(|_| api.listener_auth() != ListenerAuth::Loopback || !may_be_forged);
    if let (Some(peer), Some((name, uuid))) = (peer, principal) {
        api.rejections().notify(reason, &name, uuid, peer.address);
    }
}

/// Returns whether a path has a segment that Stemma's clients never send, such as an id that is itself a path (security
/// property S54).
fn has_path_in_segment(path: &str) -> bool {
    let has_path = |text: String| matches!(text.as_str(), "." | "..") || text.contains(['/', '\\']);
    path.split('/').any(|segment| decode_segment(segment).map_or(true, has_path))
}

/// A request without its body, which is read later.
struct RequestHead<'a> {
    id: &'a str,
    method: &'a HttpMethod,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    versions: NegotiatedVersions,
}

impl RequestHead<'_> {
    /// Checks the request, reads its body and calls the handler of its endpoint. The checks of the head come first, so
    /// that a refused request costs no memory for a body.
    async fn respond<A, B>(
        &self,
        api: &Arc<A>,
        caller: Result<Option<Requester>, AuthFailure>,
        peer: Option<Arc<Peer>>,
        body: B,
    ) -> HandlerResult
    where
        A: RequestHandler,
        B: HttpBody<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let host = self.host()?;
        self.check_cross_site(api.listener_auth(), &host)?;
        let (endpoint, path) = self.route()?;
        if self.versions.upstream == Some(OpenStackApi::Baremetal) {
            self.check_accept()?;
        }
        let caller = authorize(endpoint, caller)?;
        let route = endpoint.route();
        if let Some(min_version) = route.min_version.filter(|min_version| self.versions.is_before(min_version)) {
            return Err(min_version.version_error());
        }
        let base = format!("{}://{host}", if api.listener_auth() == ListenerAuth::Certificates { "https" } else { "http" });
        let mut request = self.read_request(endpoint, path, (caller, peer), base)?;
        let is_blob = route.request == BodyType::Bytes;
        let max_bytes = if is_blob { blobs::MAX_BYTES } else { MAX_BODY_BYTES };
        let budgets = api.budgets();
        let body_share = budgets.admit_body(&request.requester, max_body_bytes(&body, max_bytes), is_blob).await?;
        request.body = read_with_share(body, max_bytes, body_share.as_ref()).await?;
        check_delete_body(route, &request.body)?;
        let decision_share = if is_blob { None } else { budgets.admit_decision(&request.requester, &request.body).await? };
        // From here on, `decision_share` counts the memory of the body. A file body has no decision, so `body_share`
        // counts its memory until the file is stored.
        let blob_share = body_share.filter(|_| is_blob);
        if !self.is_read() {
            budgets.check_reads_responses(&request.requester)?;
        }
        // The client may have needed much time to send the body, so the rights of the caller are checked again.
        api.recheck(&request.requester)?;
        let outcome = Box::pin(Arc::clone(api).call(endpoint, request)).await;
        drop((blob_share, decision_share));
        outcome
    }

    /// Returns the request for the handler, with an empty body. The body is read later.
    fn read_request(
        &self,
        endpoint: Endpoint,
        params: Vec<(String, String)>,
        (requester, peer): (Requester, Option<Arc<Peer>>),
        base_url: String,
    ) -> Result<HttpRequest, ApiError> {
        let (uri, dry_run) = if endpoint.has_dry_run() { split_dry_run(self.uri)? } else { (self.uri.clone(), false) };
        let query = QueryString::read(&uri, endpoint.route().query)?;
        query.check_not_blank(endpoint.route().query, self.is_ironic_client())?;
        let fields = self.field_selection(endpoint, &query)?;
        Ok(HttpRequest {
            endpoint,
            fields,
            method: self.method.clone(),
            query,
            uri,
            dry_run,
            params,
            headers: self.headers.clone(),
            body: Bytes::new(),
            versions: self.versions,
            peer,
            requester,
            id: self.id.to_owned(),
            base_url,
            canceled: Canceled::default(),
        })
    }

    /// Returns whether a client of Ironic (`OpenStack`'s bare-metal service) calls Ironic's API.
    fn is_ironic_client(&self) -> bool {
        self.versions.is_ironic_client && self.versions.upstream == Some(OpenStackApi::Baremetal)
    }

    /// Returns the fields that a request selects. Fails if the query selects an unknown field, or has a parameter or a
    /// field that is newer than the client's API version.
    fn field_selection(&self, endpoint: Endpoint, query: &QueryString) -> Result<FieldSelection, ApiError> {
        let is_newer = |min_version: &&'static MinVersion| self.versions.is_before(min_version);
        for (name, _) in query.pairs() {
            if let Some(min_version) = endpoint.parameter_min_version(name).filter(is_newer) {
                return Err(min_version.version_error().field(name));
            }
        }
        let fields = endpoint.selectable_fields();
        let requested = fields.map(|fields| query.fields(&fields.names, self.is_ironic_client())).transpose()?.flatten();
        let is_ironic = self.versions.upstream == Some(OpenStackApi::Baremetal);
        // Only fields of Ironic's objects have a minimum version.
        let is_newer = |name: &&&str| is_ironic && self.versions.baremetal < field_min_version(name);
        match requested.iter().flatten().find(is_newer) {
            Some(name) => {
                let message = format!("the field {name} does not exist in version 1.{}", self.versions.baremetal.0);
                Err(ApiError::new(ErrorType::RequestNotAcceptable, message).field("fields"))
            }
            None => {
                let list_default = endpoint.route().default_fields;
                Ok(FieldSelection {
                    requested,
                    list_default,
                    has_links: is_ironic,
                    is_ironic_client: self.versions.is_ironic_client,
                })
            }
        }
    }

    /// Returns the server's address as the client wrote it: the header `Host`, or the authority of the URI. Fails if
    /// the request has neither.
    fn host(&self) -> Result<String, ApiError> {
        let header = self.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = header.or_else(|| self.uri.authority().map(hyper::http::uri::Authority::as_str));
        host.map(str::to_owned).ok_or_else(|| ApiError::new(ErrorType::RequestHost, ErrorType::RequestHost.title()))
    }

    /// Refuses a request that a page of another site may have sent. A listener with certificates checks only writes.
    fn check_cross_site(&self, auth: ListenerAuth, host: &str) -> Result<(), ApiError> {
        match auth {
            ListenerAuth::Loopback => self.check_loopback(host),
            ListenerAuth::Certificates if !self.is_read() && *self.method != HttpMethod::OPTIONS => self.check_same_site(host),
            // A web page cannot reach a Unix socket.
            ListenerAuth::Certificates | ListenerAuth::Root => Ok(()),
        }
    }

    /// Fails if `Host` is not a loopback name, or if the request comes from a page of another origin (security
    /// properties S55, S56 and S75).
    fn check_loopback(&self, host: &str) -> Result<(), ApiError> {
        // The text after the last colon is a port if it has only digits. In `[::1]` it does not.
        let name =
            host.rsplit_once(':').map_or(host, |(name, port)| if port.bytes().all(|b| b.is_ascii_digit()) { name } else { host });
        // The name is parsed as an address. A comparison of its prefix is not enough, because anybody can own
        // `127.example.net`.
        let is_loopback = name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        if !matches!(name, "localhost" | "[::1]") && !is_loopback {
            return Err(ApiError::new(ErrorType::RequestHost, ErrorType::RequestHost.title()));
        }
        self.check_origin("http", host)
    }

    /// Fails if the browser states that a page of another origin caused this write. The browser would send such a write
    /// with the certificate of its user (security property S56).
    fn check_same_site(&self, host: &str) -> Result<(), ApiError> {
        let mut sites = self.headers.get_all("sec-fetch-site").iter();
        if sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none")) {
            return self.check_origin("https", host);
        }
        Err(ApiError::new(ErrorType::RequestOrigin, ErrorType::RequestOrigin.title()))
    }

    /// Fails if the request has a header `Origin` other than this server's own origin.
    fn check_origin(&self, scheme: &str, host: &str) -> Result<(), ApiError> {
        let expected = format!("{scheme}://{host}");
        if self.headers.get_all(header::ORIGIN).iter().all(|origin| origin.as_bytes() == expected.as_bytes()) {
            return Ok(());
        }
        Err(ApiError::new(ErrorType::RequestOrigin, ErrorType::RequestOrigin.title()))
    }

    /// Returns whether the request only reads. A HEAD request was changed to GET before.
    fn is_read(&self) -> bool {
        *self.method == HttpMethod::GET
    }

    /// Fails if the client does not accept JSON, the only format of Ironic's responses. Without a header `Accept`, the
    /// client accepts every format.
    fn check_accept(&self) -> Result<(), ApiError> {
        let Some(accept) = self.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()) else {
            return Ok(());
        };
        let media_types = accept.split(',').map(|media_type| media_type.split(';').next().unwrap_or_default().trim());
        if media_types.into_iter().any(|media_type| matches!(media_type, "" | "*/*" | "application/*" | "application/json")) {
            return Ok(());
        }
        Err(ApiError::new(ErrorType::RequestNotAcceptable, "responses are application/json here"))
    }

    /// Returns the endpoint of the request with the variable parts of the path, decoded. Fails if the path is unknown,
    /// or if it does not allow the method.
    fn route(&self) -> Result<(Endpoint, Vec<(String, String)>), ApiError> {
        let path = self.uri.path();
        let is_baremetal = OpenStackApi::from_path(path) == Some(OpenStackApi::Baremetal);
        match find_route(SocketKind::Admin, self.method.as_str(), path) {
            RouteMatch::Route(endpoint, values) => {
                let names = endpoint.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
                let decoded: Result<Vec<_>, ApiError> =
                    names.zip(values).map(|(name, value)| Ok((name.to_owned(), decode_segment(value)?))).collect();
                Ok((endpoint, decoded?))
            }
            // Ironic reads the part of the path after a node's id as a field name. Its clients expect the error for an
            // unknown field.
            RouteMatch::NotFound if is_baremetal && path.trim_end_matches('/').ends_with("/detail") => {
                Err(ApiError::new(ErrorType::FieldInvalid, "a node has no field of that name"))
            }
            RouteMatch::MethodNotAllowed(methods) => {
                let allow = methods.iter().map(|method| method.as_str()).collect::<Vec<_>>().join(", ");
                let refusal = ApiError::new(ErrorType::RequestMethod, format!("this path takes {allow}"));
                Err(ApiError { allow: Some(allow.into()), ..refusal })
            }
            RouteMatch::NotFound => Err(ApiError::new(ErrorType::PathUnknown, ErrorType::PathUnknown.title())),
        }
    }
}

/// Refuses a deletion with a body if its endpoint reads no body. A caller that lists in the body what to delete would
/// otherwise delete everything that the path names. An empty JSON body is accepted.
fn check_delete_body(route: &Route, body: &[u8]) -> Result<(), ApiError> {
    let is_empty = matches!(body.trim_ascii(), b"" | b"null" | b"{}");
    if route.method != Method::Delete || route.request != BodyType::Nothing || is_empty {
        return Ok(());
    }
    let message = "this deletes everything that the path names, and accepts no body; nothing was changed";
    let advice = "omit the body, or name a single entry in the path";
    Err(ApiError::new(ErrorType::FieldInvalid, message).detail(advice))
}

/// Returns the largest possible size of a body before it is read: the exact length that the body reports, else the
/// limit. The headers are not used, because they lack the length of a body that arrived together with its head.
fn max_body_bytes(body: &impl HttpBody, limit: usize) -> usize {
    let length = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    length.unwrap_or(limit).min(limit)
}

/// Reads the complete body. Fails if another caller needs the memory that `share` reserves before the body is complete.
async fn read_with_share<B>(body: B, max_bytes: usize, share: Option<&Share>) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let Some(share) = share else { return read_body(body, max_bytes).await };
    tokio::select! {
        body = read_body(body, max_bytes) => body,
        () = share.wait_for_yield() => {
            let message = "the body arrived too slowly, and other requests need its memory; nothing was changed, send it again";
            Err(ApiError::new(ErrorType::ServerBusy, message))
        }
    }
}

/// Reads the complete body. Fails if the body is incomplete or larger than `max_bytes`.
async fn read_body<B>(body: B, max_bytes: usize) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    match Limited::new(Box::pin(body), max_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(failure) if failure.is::<http_body_util::LengthLimitError>() => {
            Err(ApiError::new(ErrorType::RequestTooLarge, format!("the body is larger than the maximum of {max_bytes} bytes")))
        }
        Err(_) => Err(ApiError::new(ErrorType::RequestMalformed, "the body is incomplete")),
    }
}

/// Decodes one segment of a path. Fails if an escape is invalid, or if the text is not UTF-8 or has control characters.
/// The handler checks whether the text is a valid name.
fn decode_segment(segment: &str) -> Result<String, ApiError> {
    let decode_error = || ApiError::new(ErrorType::RequestMalformed, "a segment of the path can't be decoded");
    let is_escape = |rest: &[u8]| rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_hexdigit);
    if !segment.as_bytes().split(|byte| *byte == b'%').skip(1).all(is_escape) {
        return Err(decode_error());
    }
    let text = percent_decode_str(segment).decode_utf8().map_err(|_| decode_error())?.into_owned();
    if text.chars().any(char::is_control) { Err(decode_error()) } else { Ok(text) }
}

/// Returns the error for a requested version that this server does not offer or cannot parse (406).
fn not_acceptable(version_error: &NotAcceptable) -> ApiError {
    ApiError::new(ErrorType::RequestNotAcceptable, version_error.to_string())
}

/// A future that resolves to the response.
pub type ServeFuture = Pin<Box<dyn Future<Output = Response<BoxedBody>> + Send>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_segment_decodes_once_and_rejects_invalid_text() {
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
            assert_eq!(decode_segment(segment).ok().as_deref(), decoded, "{segment}");
        }
    }
}
