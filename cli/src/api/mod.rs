//! The controller's HTTP API, as the command uses it: one connection, JSON, an idempotency key for each write.

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
    row: Endpoint,
    path: String,
    body: Bytes,
    /// The revision that the object must still have.
    revision: Option<u64>,
    /// The object that the write changes, for warnings.
    object: Option<String>,
    /// The command line with `--overwrite`, which also takes over what other managers own. The error of a conflict
    /// shows it.
    overwrite_command: Option<String>,
    /// The files that the body refers to, by their SHA-256 in hex.
    files: BTreeMap<String, PathBuf>,
}

impl WriteRequest {
    /// Creates a write without a body, at a path of the endpoint.
    pub(crate) fn new(row: Endpoint, path: String) -> Self {
        Self { row, path, body: Bytes::new(), revision: None, object: None, overwrite_command: None, files: BTreeMap::new() }
    }

    /// Creates a write without a body, at the endpoint's path with these parameters.
    pub(crate) fn with_parameters(row: Endpoint, parameters: &[&str]) -> Self {
        Self::new(row, row.path(parameters))
    }

    /// Sets the body to a JSON value.
    pub(crate) fn with_json(self, body: &Value) -> Self {
        self.with_bytes(body.to_string())
    }

    /// Sets the body to these bytes: a file, or JSON text that is sent unchanged.
    pub(crate) fn with_bytes(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// Makes the write conditional on the object's revision.
    pub(crate) fn if_revision(self, revision: Option<u64>) -> Self {
        Self { revision, ..self }
    }

    /// Sets the object that the write changes.
    pub(crate) fn for_object(self, object: String) -> Self {
        Self { object: Some(object), ..self }
    }

    /// Makes the write fail if it would take something from another manager, unless `overwrites` is set. The error then
    /// contains the command with `--overwrite` added.
    pub(crate) fn without_force(self, overwrites: bool) -> Self {
        if overwrites {
            return self;
        }
        let arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        Self { path: append_query(&self.path, "force=false"), overwrite_command: Some(overwrite_command(arguments)), ..self }
    }

    /// Adds a query parameter.
    pub(crate) fn with_query(self, term: &str) -> Self {
        Self { path: append_query(&self.path, term), ..self }
    }

    /// Sets the files that the write refers to. They are sent after the write was checked and before it is made, so a
    /// refused write sends none.
    pub(crate) fn with_files(self, files: BTreeMap<String, PathBuf>) -> Self {
        Self { files, ..self }
    }

    /// Returns whether the write deletes a node.
    pub(crate) fn deletes_node(&self) -> bool {
        self.row == Endpoint::DeleteNode
    }

    fn method(&self) -> &'static str {
        self.row.route().method.as_str()
    }

    /// Returns the media type of the body, or `None` if the endpoint takes no body.
    fn media_type(&self) -> Option<&'static str> {
        match self.row.route().request {
            // Of the patch types of an endpoint, `stemma` sends only merge patches.
            BodyType::AnyPatch | BodyType::FieldPatch => BodyType::MergePatch,
            content => content,
        }
        .media_types()
        .first()
        .copied()
    }
}

/// Returns the command line with `--overwrite` added to its options and without `--dry-run`.
fn overwrite_command(arguments: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = std::iter::once("stemma".to_owned()).chain(arguments).collect();
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let operands = words.split_off(end);
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

/// A connection to a controller.
pub(crate) struct ApiClient {
    client: Client,
    tls: Option<Arc<ClientConfig>>,
    manager: Option<String>,
    /// True if a write is refused when it causes warnings or errors.
    is_strict: bool,
    token: Option<header::HeaderValue>,
    reason: Option<header::HeaderValue>,
    limit: HostLimit,
    /// The writes made so far, as text.
    done_writes: Vec<String>,
    /// The moved primaries that were already reported.
    announced_moves: BTreeSet<String>,
    /// True if a write has moved a primary. Earlier decisions about other writes may be outdated then.
    has_moved_primary: bool,
}

impl ApiClient {
    /// Creates a client for the context's controller. Nothing is sent yet.
    ///
    /// # Errors
    /// Fails if a file of the context can't be read, or the URL is invalid.
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

    /// Returns whether writes are only checked (`--dry-run`).
    pub(crate) fn is_dry(&self) -> bool {
        self.limit.is_dry_run
    }

    /// Returns the manager in whose name writes are made, or `None` if that is the manager of the principal.
    pub(crate) fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// Returns the reach of all writes checked so far. Each host counts once.
    pub(crate) fn total_reach(&self) -> WriteReach {
        self.limit.reach()
    }

    /// Reads a path as JSON.
    ///
    /// # Errors
    /// [`Exit`] with the controller's own message.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value> {
        parse_json(path, &self.get_bytes(path).await?)
    }

    /// Reads a path as JSON. Returns `None` if nothing is there.
    ///
    /// # Errors
    /// As [`ApiClient::get`].
    pub(crate) async fn find(&mut self, path: &str) -> Result<Option<Value>> {
        optional(self.get(path).await)
    }

    /// Like [`Self::find`], and also returns the revision of the object.
    ///
    /// # Errors
    /// As [`ApiClient::get`], or if the response contains no revision.
    pub(crate) async fn find_tagged(&mut self, path: &str) -> Result<Option<(Value, u64)>> {
        let Some(answer) = optional(self.get_response(path).await)? else { return Ok(None) };
        let tag = answer.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let revision = tag.and_then(|tag| tag.trim_matches('"').parse().ok());
        let revision = revision.with_context(|| format!("the response to GET {path} contains no revision"))?;
        Ok(Some((parse_json(path, answer.body())?, revision)))
    }

    /// Reads a path without parsing the body.
    ///
    /// # Errors
    /// [`Exit`] with the controller's own message.
    pub(crate) async fn get_bytes(&mut self, path: &str) -> Result<Bytes> {
        Ok(self.get_response(path).await?.into_body())
    }

    /// Sends a GET. Fails if the response is not a success.
    async fn get_response(&mut self, path: &str) -> Result<Response<Bytes>> {
        let request = Request::get(path).header(header::ACCEPT, "application/json").body(Bytes::new())?;
        let answer = self.send_with_retries(request).await.map_err(|error| self.send_error(&error))?;
        if answer.status().is_success() { Ok(answer) } else { Err(ApiRefusal::from_response(&answer, "GET", path).into()) }
    }

    /// Makes a write, after its reach is known and confirmed. Returns the JSON of the response, or `null` if the
    /// response has no body. With `--dry-run`, the write is only checked.
    ///
    /// # Errors
    /// [`ApiRefusal`]. Also fails if the reach exceeds `--max-nodes`, or if the person declines. Fails with status 5 if
    /// the response was lost and the record of the request could not be read either.
    pub(crate) async fn send(&mut self, write: WriteRequest) -> Result<Value> {
        let result = self.send_one(&write).await;
        if result.is_ok() {
            self.done_writes.push(write.to_string());
        }
        result.map_err(|error| match self.done_writes.as_slice() {
            made if made.is_empty() || self.is_dry() => error,
            made => {
                let sentence = format!("{error:#}\n  already done before it: {}", made.join(", "));
                Exit::from_error(&error).partial_failure(sentence)
            }
        })
    }

    /// Checks a write in a dry run, asks for confirmation, sends the files, and makes the write.
    async fn send_one(&mut self, write: &WriteRequest) -> Result<Value> {
        let (checked, reach) = self.check_write(write).await?;
        self.announce_moves(&checked);
        if self.is_dry() {
            return Ok(checked);
        }
        self.check_reach(reach)?;
        self.send_files(&write.files).await?;
        self.send_checked(write).await
    }

    /// Has the controller check a write in a dry run, if the endpoint supports that. Returns the response and
    /// the reach. Labels that hosts lose are reported as information, not as a finding, so a strict write may remove
    /// them. Moved primaries are reported by [`Self::announce_moves`].
    ///
    /// # Errors
    /// [`ApiRefusal`], or why there was no response.
    pub(crate) async fn check_write(&mut self, write: &WriteRequest) -> Result<(Value, WriteReach)> {
        if !write.row.has_dry_run() {
            return Ok((Value::Null, WriteReach::default()));
        }
        let (checked, reach) = self.send_dry_run(write).await?;
        if let Some(lost) = lost_label_message(&checked) {
            let about = write.object.iter().map(|about| format!("{about}: ")).collect::<String>();
            errln!("info: {about}{lost}");
        }
        self.limit.add(&checked, reach);
        Ok((checked, reach))
    }

    /// Reports each primary that a write moves, once. Moves are not findings, so a strict write may cause them.
    pub(crate) fn announce_moves(&mut self, answer: &Value) {
        for sentence in moved_primary_messages(answer) {
            if self.announced_moves.insert(sentence.clone()) {
                errln!("info: {sentence}");
            }
        }
    }

    /// Has the controller check a write again if another write has moved a primary in the meantime. The primaries
    /// that the write moves now are reported before it is made.
    ///
    /// # Errors
    /// As [`Self::check_write`].
    pub(crate) async fn announce_new_moves(&mut self, write: &WriteRequest) -> Result<()> {
        if self.has_moved_primary && write.row.has_dry_run() {
            let (checked, _) = self.send_dry_run(write).await?;
            self.announce_moves(&checked);
        }
        Ok(())
    }

    /// Checks the reach of the writes. A person at a terminal is asked for confirmation.
    ///
    /// # Errors
    /// Fails if the reach exceeds `--max-nodes`, or if the person declines.
    pub(crate) fn check_reach(&self, reach: WriteReach) -> Result<()> {
        self.limit.check_reach(reach)
    }

    /// Checks that the selected objects may be changed. `selected` is the number of objects that the selector found. If
    /// it is more than one, a person at a terminal is asked for confirmation.
    ///
    /// # Errors
    /// Fails if the reach exceeds `--max-nodes`, or if the person declines.
    pub(crate) fn check_selected(&self, kind: &str, selected: usize, changed: &[&str], reach: WriteReach) -> Result<()> {
        self.limit.check_selected(kind, selected, changed, reach)
    }

    /// Asks the person at a terminal whether these certificates and tokens of a principal may end, if there are any.
    ///
    /// # Errors
    /// Fails if the person declines.
    pub(crate) fn check_ended(&self, principal: &str, ended: &[&str]) -> Result<()> {
        self.limit.check_credentials(principal, ended)
    }

    /// Sends the files that a write refers to. A file that no object refers to has no effect, and the controller
    /// deletes it after a day. So sending files does not count as a write.
    async fn send_files(&mut self, files: &BTreeMap<String, PathBuf>) -> Result<()> {
        for (hash, path) in files {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            let result = self.send_checked(&WriteRequest::with_parameters(Endpoint::PutBlob, &[hash]).with_bytes(bytes)).await;
            result.with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Has the controller check a write in a dry run. Returns the response and the reach.
    async fn send_dry_run(&mut self, write: &WriteRequest) -> Result<(Value, WriteReach)> {
        let path = append_query(&self.path_with_options(write), "dry_run=true");
        let request = self.request(write, &path, None)?;
        let answer = self.send_with_retries(request).await.map_err(|error| self.send_error(&error))?;
        if self.is_dry() {
            print_warnings(&answer);
        }
        let count =
            |name: &str| -> Option<usize> { answer.headers().get(name).and_then(|count| count.to_str().ok()?.parse().ok()) };
        let reach = WriteReach { hosts: count("stemma-hosts").unwrap_or(0), task_sets: count("stemma-task-sets") };
        Ok((parse_body(&check_success(answer, write, &path)?)?, reach))
    }

    /// Makes a write that was checked before.
    ///
    /// # Errors
    /// As [`Self::send`], except for the reach.
    pub(crate) async fn send_checked(&mut self, write: &WriteRequest) -> Result<Value> {
        let path = self.path_with_options(write);
        let key = uuid::Builder::from_random_bytes(random_bytes()?).into_uuid();
        let answer = match self.send_with_retries(self.request(write, &path, Some(key))?).await {
            Ok(answer) => answer,
            Err(error) if network::request_outcome(&error) == RequestOutcome::Unknown => {
                self.recover_response(write, &path, key, error).await?
            }
            Err(error) => return Err(self.send_error(&error)),
        };
        print_warnings(&answer);
        let made = parse_body(&check_success(answer, write, &path)?)?;
        self.has_moved_primary |= !moved_primary_messages(&made).is_empty();
        self.announce_moves(&made);
        Ok(made)
    }

    /// Sends a request, and repeats it unchanged (with the same key) while the controller is busy.
    async fn send_with_retries(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let deadline = RetryDeadline::new(Instant::now());
        loop {
            let answer = self.send_once(request.clone()).await?;
            let Some(delay) = deadline.delay(&answer, Instant::now()) else { return Ok(answer) };
            tokio::time::sleep(delay).await;
        }
    }

    /// Sends a request as the context's principal.
    async fn send_once(&mut self, mut request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        self.client.send(request).await
    }

    /// Returns an error with why the request failed, and what to check.
    fn send_error(&self, error: &ClientError) -> anyhow::Error {
        Exit::Error.with_message(network::error_message(error, &self.client.target().to_string()))
    }

    /// Returns the request of a write to a path. `key` is the idempotency key, which a dry run does not have.
    fn request(&self, write: &WriteRequest, path: &str, key: Option<Uuid>) -> Result<Request<Bytes>> {
        let mut request = Request::builder().method(write.method()).uri(path).header(header::ACCEPT, "application/json");
        // Requests the changed object in the response, which is otherwise empty for some writes.
        request = request.header("Prefer", "return=representation");
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key.to_string());
        }
        if let Some(kind) = write.media_type() {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        if let Some(revision) = write.revision {
            request = request.header(header::IF_MATCH, format!("\"{revision}\""));
        }
        if let Some(reason) = &self.reason {
            request = request.header("Stemma-Reason", reason);
        }
        Ok(request.body(write.body.clone())?)
    }

    /// Returns the path of a write, with the options that apply to all writes of the command.
    fn path_with_options(&self, write: &WriteRequest) -> String {
        let path = match &self.manager {
            Some(manager) => append_query(&write.path, &format!("manager={}", escape(manager))),
            None => write.path.clone(),
        };
        // Sending a file does not change the model.
        if self.is_strict && write.row.has_dry_run() { append_query(&path, "strict=true") } else { path }
    }

    /// Asks for the result of a request whose response was lost. If the controller never received the request, it is
    /// sent again with the same key, so that it is carried out only once.
    async fn recover_response(
        &mut self,
        write: &WriteRequest,
        path: &str,
        key: Uuid,
        error: ClientError,
    ) -> Result<Response<Bytes>> {
        self.client.close();
        let url = self.client.target().to_string();
        let asked = Endpoint::GetRequest.path(&[&key.to_string()]);
        let unknown = |error: &ClientError| {
            Exit::Unknown.with_message(format!(
                "{}\n  it is unknown whether it was carried out; to find out, run: stemma get --raw {asked}",
                network::error_message(error, &url)
            ))
        };
        let request = Request::get(&asked).body(Bytes::new())?;
        match self.send_once(request).await {
            Ok(answer) if answer.status() == StatusCode::OK => recorded_response(answer.body()).ok_or_else(|| unknown(&error)),
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {
                self.send_with_retries(self.request(write, path, Some(key))?).await.map_err(|error| unknown(&error))
            }
            Ok(_) | Err(_) => Err(unknown(&error)),
        }
    }
}

/// Converts a "not found" error of a GET to `None`.
fn optional<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(error) if Exit::from_error(&error) == Exit::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

/// Parses the JSON response to a GET of a path.
fn parse_json(path: &str, text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).with_context(|| format!("the response to GET {path} is not JSON"))
}

/// Returns the response to a write, from the record of its request.
fn recorded_response(record: &[u8]) -> Option<Response<Bytes>> {
    let record: Value = serde_json::from_slice(record).ok()?;
    let status = u16::try_from(record.get("status")?.as_u64()?).ok()?;
    let body = record.get("body").filter(|body| !body.is_null()).map(|body| Bytes::from(body.to_string()));
    Response::builder().status(status).body(body.unwrap_or_default()).ok()
}

/// Returns random bytes of the system.
///
/// # Errors
/// Fails if the system provides none.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").context("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

/// Prints the warnings of a successful write. Labels that hosts lose are in the body, and were reported before the
/// write.
fn print_warnings(answer: &Response<Bytes>) {
    for warning in answer.headers().get_all(header::WARNING) {
        let text = String::from_utf8_lossy(warning.as_bytes());
        let sentences = text.strip_prefix("299 stemma ").unwrap_or(&text).trim_matches('"');
        for part in sentences.split("; ") {
            errln!("{}", crate::output::printable(&with_severity(part)));
        }
    }
}

/// Adds `warning:` to a part of a `Warning` header, unless the controller has put another severity before it.
fn with_severity(part: &str) -> Cow<'_, str> {
    let has_severity = ["info: ", "error: "].iter().any(|word| part.starts_with(word));
    if has_severity { part.into() } else { format!("warning: {part}").into() }
}

/// Returns the body of a successful write, or the error.
fn check_success(answer: Response<Bytes>, write: &WriteRequest, path: &str) -> Result<Bytes> {
    if answer.status().is_success() {
        return Ok(answer.into_body());
    }
    let mut refusal = ApiRefusal::from_response(&answer, write.method(), path);
    refusal.overwrite_command = write.overwrite_command.clone().filter(|_| !refusal.conflicts.is_empty());
    Err(refusal.into())
}

fn parse_body(body: &Bytes) -> Result<Value> {
    if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(body).context("the response is not JSON") }
}

/// Appends a term to the query of a path.
fn append_query(path: &str, term: &str) -> String {
    format!("{path}{}{term}", if path.contains('?') { '&' } else { '?' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_response_is_read_when_answer_is_lost() {
        let answer =
            recorded_response(br#"{"id": "k", "revision": 7, "status": 201, "body": {"token": "t"}, "warning": null}"#).unwrap();
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::CREATED, &br#"{"token":"t"}"#[..]));
        let empty = recorded_response(br#"{"status": 204, "body": null}"#).unwrap();
        assert_eq!((empty.status(), empty.body().len()), (StatusCode::NO_CONTENT, 0));
        assert!(recorded_response(b"{}").is_none());
    }

    #[test]
    fn y09_warning_is_printed_with_severity() {
        for (part, said) in [
            ("node/a: m", "warning: node/a: m"),
            ("info: node/a: m", "info: node/a: m"),
            ("error: node/a: m", "error: node/a: m"),
            ("information: m", "warning: information: m"),
            ("2 more findings", "warning: 2 more findings"),
            ("info: 1 more finding", "info: 1 more finding"),
        ] {
            assert_eq!(with_severity(part), said);
        }
    }

    #[test]
    fn overwrite_command_omits_dry_run() {
        for (given, proposed) in [
            ("label web-1 a=b", "stemma label web-1 a=b --overwrite"),
            ("--dry-run label web-1 a=b", "stemma label web-1 a=b --overwrite"),
            ("label web-1 --dry-run -- -a=b --dry-run", "stemma label web-1 --overwrite -- -a=b --dry-run"),
        ] {
            assert_eq!(overwrite_command(given.split(' ').map(str::to_owned)), proposed);
        }
    }
}
