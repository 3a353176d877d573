//! The client of the controller's HTTP API. It uses one connection, JSON, and an idempotency key for each write.

mod events;
mod network;
mod refusal;
mod retry;
mod trust;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hyper::{Request, Response, StatusCode, header};
use rustls::ClientConfig;
use serde_json::Value;
use stemma_wire::client::{Client, ClientError, ClientLimits, RequestOutcome, Target};
use stemma_wire::endpoint::{BodyType, Endpoint, escape};
use uuid::Uuid;

pub(crate) use events::{ServerEvent, StreamItem};
pub(crate) use refusal::ApiRefusal;
use retry::RetryDeadline;
pub(crate) use trust::ca_hash;

use crate::args::GlobalArgs;
use crate::context::ClientContext;
use crate::exit::Exit;
use crate::host_limit::{HostLimit, WriteReach, lost_label_message, moved_primary_messages};
use crate::output::shell_quoted;

/// A write to an endpoint, before it is sent.
#[derive(Clone, Debug)]
pub(crate) struct WriteRequest {
    endpoint: Endpoint,
    /// The path and query in the API.
    path: String,
    body: Bytes,
    /// The revision that the object must still have, so that the controller accepts the write.
    revision: Option<u64>,
    /// The object that the write changes, as text for messages.
    object: Option<String>,
    /// The command line of this process with `--overwrite` added and `--dry-run` removed. The error of a conflict with
    /// another manager suggests this command.
    overwrite_command: Option<String>,
    /// The files that the body refers to, by their SHA-256 in hex.
    files: BTreeMap<String, PathBuf>,
}

impl WriteRequest {
    /// Creates a write without a body to this path, which must be a path of the endpoint.
    pub(crate) fn new(endpoint: Endpoint, path: String) -> Self {
        Self { endpoint, path, body: Bytes::new(), revision: None, object: None, overwrite_command: None, files: BTreeMap::new() }
    }

    /// Creates a write without a body. The path is the endpoint's path with these parameters.
    pub(crate) fn with_parameters(endpoint: Endpoint, parameters: &[&str]) -> Self {
        Self::new(endpoint, endpoint.path(parameters))
    }

    /// Sets the body to a JSON value.
    pub(crate) fn with_json(self, body: &Value) -> Self {
        self.with_bytes(body.to_string())
    }

    /// Sets the body to these bytes, for example the content of a file. They are sent unchanged.
    pub(crate) fn with_bytes(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// Makes the controller refuse the write if the object has another revision. `None` removes this condition.
    pub(crate) fn if_revision(self, revision: Option<u64>) -> Self {
        Self { revision, ..self }
    }

    /// Sets the object that the write changes.
    pub(crate) fn for_object(self, object: String) -> Self {
        Self { object: Some(object), ..self }
    }

    /// Makes the write fail if another manager owns a key or field that it changes. The error then contains the command
    /// with `--overwrite` added. If `overwrites` is true, the write is not changed, and takes over such keys and
    /// fields.
    pub(crate) fn without_force(self, overwrites: bool) -> Self {
        if overwrites {
            return self;
        }
        let arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        Self { path: append_query(&self.path, "force=false"), overwrite_command: Some(overwrite_command(arguments)), ..self }
    }

    /// Adds a query parameter, in the form `name=value`.
    pub(crate) fn with_query(self, parameter: &str) -> Self {
        Self { path: append_query(&self.path, parameter), ..self }
    }

    /// Sets the files that the write refers to, by their SHA-256 in hex. The files are sent after the controller has
    /// checked the write and before the write itself. So no file is sent for a refused write.
    pub(crate) fn with_files(self, files: BTreeMap<String, PathBuf>) -> Self {
        Self { files, ..self }
    }

    /// Returns whether the write deletes a node.
    pub(crate) fn deletes_node(&self) -> bool {
        self.endpoint == Endpoint::DeleteNode
    }

    /// Returns the HTTP method of the write.
    fn method(&self) -> &'static str {
        self.endpoint.route().method.as_str()
    }

    /// Returns the media type of the body, or `None` if the endpoint takes no body.
    fn media_type(&self) -> Option<&'static str> {
        match self.endpoint.route().request {
            // Of the patch types of an endpoint, `stemma` sends only merge patches.
            BodyType::AnyPatch | BodyType::FieldPatch => BodyType::MergePatch,
            content => content,
        }
        .media_types()
        .first()
        .copied()
    }
}

/// Returns the command line `stemma ARGUMENTS` with `--overwrite` added and `--dry-run` removed. Words after `--` are
/// operands and are not changed. Each word is quoted for a shell.
fn overwrite_command(arguments: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = std::iter::once("stemma".to_owned()).chain(arguments).collect();
    let options_end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let operands = words.split_off(options_end);
    words.retain(|word| word != "--dry-run");
    words.push("--overwrite".to_owned());
    words.extend(operands);
    words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for WriteRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method(), self.path)
    }
}

/// A client of a controller, with the options that apply to all requests of the command.
pub(crate) struct ApiClient {
    client: Client,
    tls: Option<Arc<ClientConfig>>,
    /// The manager in whose name writes are made, if it is not that of the principal.
    manager: Option<String>,
    /// True if the controller must refuse a write that causes findings of severity warning or error (`--strict`).
    is_strict: bool,
    /// The value of the `Authorization` header.
    token: Option<header::HeaderValue>,
    /// The reason of the writes (`--reason`), which the controller stores in its audit log.
    reason: Option<header::HeaderValue>,
    /// The limits on the number of hosts that the writes affect, and the hosts counted so far.
    limit: HostLimit,
    /// The writes that [`Self::send`] has made or, with `--dry-run`, checked so far, as text.
    done_writes: Vec<String>,
    /// The messages about moved primaries that were already printed.
    announced_moves: BTreeSet<String>,
    /// True if a write has moved a primary. The dry runs of later writes may then be outdated.
    has_moved_primary: bool,
}

impl ApiClient {
    /// Creates a client for the controller of the current context, which is a named set of URL and credentials. No
    /// request is sent yet.
    ///
    /// # Errors
    /// Fails if a file of the context cannot be read, or if the URL, the token or `--reason` is invalid.
    pub(crate) fn new(global: &GlobalArgs) -> Result<Self> {
        let context = ClientContext::load(global)?;
        let target: Target = context.url.parse()?;
        let tls = if target.is_tls { Some(Arc::new(trust::tls_config(&context)?)) } else { None };
        let token = context.token()?.map(|token| header::HeaderValue::from_str(&format!("Bearer {token}")));
        let reason = global.reason.as_ref().map(|reason| header::HeaderValue::from_bytes(reason.as_bytes()));
        Ok(Self {
            client: Client::new(target, tls.clone(), ClientLimits::default()),
            tls,
            manager: global.manager.clone(),
            is_strict: global.strict,
            token: token.transpose().context("the context's token is one line of text")?,
            reason: reason.transpose().context("--reason takes one line of text")?,
            limit: HostLimit::from_args(global),
            done_writes: Vec::new(),
            announced_moves: BTreeSet::new(),
            has_moved_primary: false,
        })
    }

    /// Returns whether writes are only checked and not made (`--dry-run`).
    pub(crate) fn is_dry(&self) -> bool {
        self.limit.is_dry_run
    }

    /// Returns the manager in whose name writes are made. Returns `None` if the controller derives the manager from the
    /// principal (the identity that sends the requests).
    pub(crate) fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// Returns the number of hosts that all writes checked so far affect. A host that several writes affect is counted
    /// once.
    pub(crate) fn total_reach(&self) -> WriteReach {
        self.limit.reach()
    }

    /// Sends a GET for a path, and returns the body of the response as JSON.
    ///
    /// # Errors
    /// If the controller refuses, an error with the controller's own message and an [`Exit`] status. Also fails if there
    /// is no response or the response is not JSON.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value> {
        parse_json(path, &self.get_bytes(path).await?)
    }

    /// Sends a GET for a path, and returns the body of the response as JSON. Returns `None` if the path does not exist
    /// (404).
    ///
    /// # Errors
    /// As [`ApiClient::get`].
    pub(crate) async fn find(&mut self, path: &str) -> Result<Option<Value>> {
        none_if_not_found(self.get(path).await)
    }

    /// Like [`Self::find`], and also returns the revision of the object, from the `ETag` of the response.
    ///
    /// # Errors
    /// As [`ApiClient::get`], or if the response contains no revision.
    pub(crate) async fn find_tagged(&mut self, path: &str) -> Result<Option<(Value, u64)>> {
        let Some(response) = none_if_not_found(self.get_response(path).await)? else { return Ok(None) };
        let tag = response.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let revision = tag.and_then(|tag| tag.trim_matches('"').parse().ok());
        let revision = revision.with_context(|| format!("the response to GET {path} contains no revision"))?;
        Ok(Some((parse_json(path, response.body())?, revision)))
    }

    /// Sends a GET for a path, and returns the body of the response without parsing it.
    ///
    /// # Errors
    /// As [`ApiClient::get`].
    pub(crate) async fn get_bytes(&mut self, path: &str) -> Result<Bytes> {
        Ok(self.get_response(path).await?.into_body())
    }

    /// Sends a GET for a path, and returns the response. Fails if the status of the response is not a success.
    async fn get_response(&mut self, path: &str) -> Result<Response<Bytes>> {
        let request = Request::get(path).header(header::ACCEPT, "application/json").body(Bytes::new())?;
        let response = self.send_with_retries(request).await.map_err(|error| self.send_error(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(ApiRefusal::from_response(&response, "GET", path).into()) }
    }

    /// Makes a write, after a dry run has shown its reach (the number of affected hosts) and the person has confirmed
    /// it if necessary. Returns the JSON of the response, or `null` if the response has no body. With `--dry-run`, the
    /// write is only checked.
    ///
    /// # Errors
    /// [`ApiRefusal`] if the controller refuses. Also fails if the reach exceeds `--max-nodes`, or if the person does
    /// not confirm. Fails with exit status 5 if the response was lost, and neither the controller's record of the
    /// request nor a second attempt shows the result. The error lists the writes that [`Self::send`] made before.
    pub(crate) async fn send(&mut self, write: WriteRequest) -> Result<Value> {
        let result = self.send_unrecorded(&write).await;
        if result.is_ok() {
            self.done_writes.push(write.to_string());
        }
        result.map_err(|error| match self.done_writes.as_slice() {
            // Nothing was written before this error.
            done_writes if done_writes.is_empty() || self.is_dry() => error,
            done_writes => {
                let sentence = format!("{error:#}\n  already done before it: {}", done_writes.join(", "));
                Exit::from_error(&error).partial_failure(sentence)
            }
        })
    }

    /// Checks a write in a dry run, requests confirmation from the person if necessary, sends the files, and makes the
    /// write. With `--dry-run`, returns after the check.
    async fn send_unrecorded(&mut self, write: &WriteRequest) -> Result<Value> {
        let (dry_run_response, reach) = self.check_write(write).await?;
        self.announce_moves(&dry_run_response);
        if self.is_dry() {
            return Ok(dry_run_response);
        }
        self.check_reach(reach)?;
        self.send_files(&write.files).await?;
        self.send_checked(write).await
    }

    /// Sends a write as a dry run, if the endpoint supports dry runs. Returns the response and the reach (the number of
    /// affected hosts), which is also added to [`Self::total_reach`]. Prints the labels that hosts would lose. This is
    /// information and not a finding, so a strict write may remove labels. Moved primaries are not printed here, but by
    /// [`Self::announce_moves`].
    ///
    /// # Errors
    /// [`ApiRefusal`], or why there was no response.
    pub(crate) async fn check_write(&mut self, write: &WriteRequest) -> Result<(Value, WriteReach)> {
        if !write.endpoint.has_dry_run() {
            return Ok((Value::Null, WriteReach::default()));
        }
        let (response, reach) = self.send_dry_run(write).await?;
        if let Some(lost_labels) = lost_label_message(&response) {
            let object_prefix = write.object.iter().map(|object| format!("{object}: ")).collect::<String>();
            errln!("info: {object_prefix}{lost_labels}");
        }
        self.limit.add(&response, reach);
        Ok((response, reach))
    }

    /// Prints each primary that a write moves, from the response to the write or its dry run. A move that was already
    /// printed is skipped. Moves are not findings, so a strict write may cause them.
    pub(crate) fn announce_moves(&mut self, response: &Value) {
        for sentence in moved_primary_messages(response) {
            if self.announced_moves.insert(sentence.clone()) {
                errln!("info: {sentence}");
            }
        }
    }

    /// Repeats the dry run of a write if an earlier write of the command has moved a primary. So the primaries that
    /// this write now moves are printed before the write is made.
    ///
    /// # Errors
    /// As [`Self::check_write`].
    pub(crate) async fn announce_new_moves(&mut self, write: &WriteRequest) -> Result<()> {
        if self.has_moved_primary && write.endpoint.has_dry_run() {
            let (response, _) = self.send_dry_run(write).await?;
            self.announce_moves(&response);
        }
        Ok(())
    }

    /// Checks the number of hosts that writes affect, as [`HostLimit::check_reach`].
    pub(crate) fn check_reach(&self, reach: WriteReach) -> Result<()> {
        self.limit.check_reach(reach)
    }

    /// Checks a write of the objects that a selector found, as [`HostLimit::check_selected`].
    pub(crate) fn check_selected(&self, kind: &str, selected: usize, changed: &[&str], reach: WriteReach) -> Result<()> {
        self.limit.check_selected(kind, selected, changed, reach)
    }

    /// Asks for confirmation before credentials become invalid, as [`HostLimit::check_credentials`].
    pub(crate) fn confirm_invalid_credentials(&self, principal: &str, credential_names: &[&str]) -> Result<()> {
        self.limit.check_credentials(principal, credential_names)
    }

    /// Sends the files that a write refers to, without confirmation. If the write then fails, the files have no effect,
    /// and the controller deletes them after a day.
    async fn send_files(&mut self, files: &BTreeMap<String, PathBuf>) -> Result<()> {
        for (hash, path) in files {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            let result = self.send_checked(&WriteRequest::with_parameters(Endpoint::PutBlob, &[hash]).with_bytes(bytes)).await;
            result.with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Sends a write as a dry run. Returns the JSON of the response, and the reach (the number of affected hosts) from
    /// its headers.
    async fn send_dry_run(&mut self, write: &WriteRequest) -> Result<(Value, WriteReach)> {
        let path = append_query(&self.path_with_options(write), "dry_run=true");
        let request = self.request(write, &path, None)?;
        let response = self.send_with_retries(request).await.map_err(|error| self.send_error(&error))?;
        // Without `--dry-run`, the response to the real write contains the same warnings, and they are printed then.
        if self.is_dry() {
            print_warnings(&response);
        }
        let count =
            |name: &str| -> Option<usize> { response.headers().get(name).and_then(|value| value.to_str().ok()?.parse().ok()) };
        let reach = WriteReach { hosts: count("stemma-hosts").unwrap_or(0), task_sets: count("stemma-task-sets") };
        Ok((parse_body(&check_success(response, write, &path)?)?, reach))
    }

    /// Makes a write whose reach was already checked and whose files were already sent. If the response is lost,
    /// determines the result from the controller's record of the request. Returns the JSON of the response.
    ///
    /// # Errors
    /// As [`Self::send`], but does not fail because of the reach.
    pub(crate) async fn send_checked(&mut self, write: &WriteRequest) -> Result<Value> {
        let path = self.path_with_options(write);
        let key = uuid::Builder::from_random_bytes(random_bytes()?).into_uuid();
        let response = match self.send_with_retries(self.request(write, &path, Some(key))?).await {
            Ok(response) => response,
            Err(error) if network::request_outcome(&error) == RequestOutcome::Unknown => {
                self.recover_response(write, &path, key, error).await?
            }
            Err(error) => return Err(self.send_error(&error)),
        };
        print_warnings(&response);
        let body = parse_body(&check_success(response, write, &path)?)?;
        self.has_moved_primary |= !moved_primary_messages(&body).is_empty();
        self.announce_moves(&body);
        Ok(body)
    }

    /// Sends a request. While the controller is busy, repeats the unchanged request until a deadline. The idempotency
    /// key is the same, so that a write is made only once.
    async fn send_with_retries(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let deadline = RetryDeadline::new(Instant::now());
        loop {
            let response = self.send_once(request.clone()).await?;
            let Some(delay) = deadline.delay(&response, Instant::now()) else { return Ok(response) };
            tokio::time::sleep(delay).await;
        }
    }

    /// Sends a request once, with the token of the context if there is one.
    async fn send_once(&mut self, mut request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        self.client.send(request).await
    }

    /// Converts the error of a request without a response. The message contains the reason and advice.
    fn send_error(&self, error: &ClientError) -> anyhow::Error {
        Exit::Error.with_message(network::error_message(error, &self.client.target().to_string()))
    }

    /// Returns the HTTP request for a write. `path` is the path with all query parameters. `key` is the idempotency
    /// key, which a dry run does not have.
    fn request(&self, write: &WriteRequest, path: &str, key: Option<Uuid>) -> Result<Request<Bytes>> {
        let mut request = Request::builder().method(write.method()).uri(path).header(header::ACCEPT, "application/json");
        // Without this header, the response to some writes has no body, and so does not list the changes.
        request = request.header("Prefer", "return=representation");
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key.to_string());
        }
        if let Some(media_type) = write.media_type() {
            request = request.header(header::CONTENT_TYPE, media_type);
        }
        if let Some(revision) = write.revision {
            request = request.header(header::IF_MATCH, format!("\"{revision}\""));
        }
        if let Some(reason) = &self.reason {
            request = request.header("Stemma-Reason", reason);
        }
        Ok(request.body(write.body.clone())?)
    }

    /// Returns the path of a write with the options of the command as query parameters: `manager`, and `strict` if the
    /// endpoint supports findings.
    fn path_with_options(&self, write: &WriteRequest) -> String {
        let path = match &self.manager {
            Some(manager) => append_query(&write.path, &format!("manager={}", escape(manager))),
            None => write.path.clone(),
        };
        // The upload of a file has no dry run and causes no findings.
        if self.is_strict && write.endpoint.has_dry_run() { append_query(&path, "strict=true") } else { path }
    }

    /// Reads the controller's record of a write whose response was lost, and returns the recorded response. If the
    /// controller has no record, it has not made the write so far. Then the write is sent again with the same
    /// idempotency key, so that it is made only once. `error` is the error of the first attempt.
    async fn recover_response(
        &mut self,
        write: &WriteRequest,
        path: &str,
        key: Uuid,
        error: ClientError,
    ) -> Result<Response<Bytes>> {
        // The old connection may be broken, so the next request opens a new one.
        self.client.close();
        let url = self.client.target().to_string();
        let record_path = Endpoint::GetRequest.path(&[&key.to_string()]);
        let unknown_error = |error: &ClientError| {
            Exit::Unknown.with_message(format!(
                "{}\n  it is unknown whether it was carried out; to find out, run: stemma get --raw {record_path}",
                network::error_message(error, &url)
            ))
        };
        let request = Request::get(&record_path).body(Bytes::new())?;
        match self.send_once(request).await {
            Ok(reply) if reply.status() == StatusCode::OK => recorded_response(reply.body()).ok_or_else(|| unknown_error(&error)),
            Ok(reply) if reply.status() == StatusCode::NOT_FOUND => {
                self.send_with_retries(self.request(write, path, Some(key))?).await.map_err(|error| unknown_error(&error))
            }
            Ok(_) | Err(_) => Err(unknown_error(&error)),
        }
    }
}

/// Converts the "not found" error of a GET to `None`. Any other result is unchanged.
fn none_if_not_found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if Exit::from_error(&error) == Exit::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Parses the JSON response to a GET of a path.
fn parse_json(path: &str, text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).with_context(|| format!("the response to GET {path} is not JSON"))
}

/// Returns the response to a write from the controller's record of the request, which is JSON. Returns `None` if the
/// record contains no valid status.
fn recorded_response(record: &[u8]) -> Option<Response<Bytes>> {
    let record: Value = serde_json::from_slice(record).ok()?;
    let status = u16::try_from(record.get("status")?.as_u64()?).ok()?;
    let body = record.get("body").filter(|body| !body.is_null()).map(|body| Bytes::from(body.to_string()));
    Response::builder().status(status).body(body.unwrap_or_default()).ok()
}

/// Returns random bytes from the operating system.
///
/// # Errors
/// Fails if the system provides none.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").context("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

/// Prints the warnings in the headers of the response to a write, one line each. Labels that hosts lose are not among
/// them: these are in the body, and [`ApiClient::check_write`] printed them before the write.
fn print_warnings(response: &Response<Bytes>) {
    for warning in response.headers().get_all(header::WARNING) {
        let text = String::from_utf8_lossy(warning.as_bytes());
        // A `Warning` header is a code (299), the name of the sender, and the text in quotes.
        let sentences = text.strip_prefix("299 stemma ").unwrap_or(&text).trim_matches('"');
        for part in sentences.split("; ") {
            errln!("{}", crate::output::printable(&with_severity(part)));
        }
    }
}

/// Returns a part of a `Warning` header with `warning:` before it, unless the part already begins with another
/// severity.
fn with_severity(part: &str) -> Cow<'_, str> {
    let has_severity = ["info: ", "error: "].iter().any(|word| part.starts_with(word));
    if has_severity { part.into() } else { format!("warning: {part}").into() }
}

/// Returns the body of the response to a successful write. Converts any other response to an [`ApiRefusal`]. After a
/// conflict with another manager, the refusal contains the command with `--overwrite`.
fn check_success(response: Response<Bytes>, write: &WriteRequest, path: &str) -> Result<Bytes> {
    if response.status().is_success() {
        return Ok(response.into_body());
    }
    let mut refusal = ApiRefusal::from_response(&response, write.method(), path);
    refusal.overwrite_command = write.overwrite_command.clone().filter(|_| !refusal.conflicts.is_empty());
    Err(refusal.into())
}

/// Parses the body of a response as JSON. Returns `null` for an empty body.
fn parse_body(body: &Bytes) -> Result<Value> {
    if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(body).context("the response is not JSON") }
}

/// Appends a query parameter, in the form `name=value`, to a path with or without a query.
fn append_query(path: &str, parameter: &str) -> String {
    format!("{path}{}{parameter}", if path.contains('?') { '&' } else { '?' })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The controller records the response to a write under the request's key: its status, and its body, which may be
    /// null. A record without a status is not valid, so it gives no response.
    #[test]
    fn recorded_response_has_recorded_status_and_body() {
        let response =
            recorded_response(br#"{"id": "k", "revision": 7, "status": 201, "body": {"token": "t"}, "warning": null}"#).unwrap();
        assert_eq!((response.status(), &response.body()[..]), (StatusCode::CREATED, &br#"{"token":"t"}"#[..]));
        let empty = recorded_response(br#"{"status": 204, "body": null}"#).unwrap();
        assert_eq!((empty.status(), empty.body().len()), (StatusCode::NO_CONTENT, 0));
        assert!(recorded_response(b"{}").is_none());
    }

    #[test]
    fn y09_with_severity_adds_warning_unless_severity_is_present() {
        for (part, expected) in [
            ("node/a: m", "warning: node/a: m"),
            ("info: node/a: m", "info: node/a: m"),
            ("error: node/a: m", "error: node/a: m"),
            ("information: m", "warning: information: m"),
            ("2 more findings", "warning: 2 more findings"),
            ("info: 1 more finding", "info: 1 more finding"),
        ] {
            assert_eq!(with_severity(part), expected);
        }
    }

    #[test]
    fn overwrite_command_adds_overwrite_and_omits_dry_run() {
        for (arguments, expected) in [
            ("label web-1 a=b", "stemma label web-1 a=b --overwrite"),
            ("--dry-run label web-1 a=b", "stemma label web-1 a=b --overwrite"),
            ("label web-1 --dry-run -- -a=b --dry-run", "stemma label web-1 --overwrite -- -a=b --dry-run"),
        ] {
            assert_eq!(overwrite_command(arguments.split(' ').map(str::to_owned)), expected);
        }
    }
}
