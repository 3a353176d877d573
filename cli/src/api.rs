//! The controller's HTTP API as the command uses it: one connection, JSON, an idempotency key on each write.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode, header};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use stemma_wire::client::{Client, ClientError, ClientLimits, Outcome, Target};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};
use uuid::Uuid;

use crate::args::Global;
use crate::context::Context;
use crate::exit::Exit;

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// `application/json`.
    Json,
    /// RFC 7386.
    Merge,
    /// A file.
    Bytes,
}

/// A write, before it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    method: Method,
    path: String,
    kind: Body,
    body: Bytes,
    /// The revision that the object must still have.
    revision: Option<u64>,
}

impl Write {
    /// A write of a JSON value.
    pub(crate) fn json(method: Method, path: impl Into<String>, kind: Body, body: &Value) -> Self {
        Self { method, path: path.into(), kind, body: Bytes::from(body.to_string()), revision: None }
    }

    /// A write of a text that is JSON already, to the letter.
    pub(crate) fn text(method: Method, path: impl Into<String>, kind: Body, body: String) -> Self {
        Self { method, path: path.into(), kind, body: Bytes::from(body), revision: None }
    }

    /// A write without a body.
    pub(crate) fn empty(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), kind: Body::Json, body: Bytes::new(), revision: None }
    }

    /// Only if the object still has this revision.
    pub(crate) fn if_still_at(self, revision: Option<u64>) -> Self {
        Self { revision, ..self }
    }

    /// A file.
    pub(crate) fn file(path: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { method: Method::PUT, path: path.into(), kind: Body::Bytes, body: Bytes::from(bytes), revision: None }
    }
}

/// A connection to a controller.
pub(crate) struct Api {
    client: Client,
    manager: Option<String>,
    reason: Option<String>,
    dry_run: bool,
    max_nodes: Option<usize>,
}

impl Api {
    /// Prepares to talk to the context's controller; nothing is sent yet.
    ///
    /// # Errors
    /// When a file of the context can't be read, or the URL is none.
    pub(crate) fn new(global: &Global) -> Result<Self> {
        let context = Context::load(global)?;
        let target: Target = context.url.parse()?;
        let tls = if target.tls { Some(Arc::new(tls(&context)?)) } else { None };
        let client = Client::new(target, tls, ClientLimits::default());
        Ok(Self {
            client,
            manager: global.manager.clone(),
            reason: global.reason.clone(),
            dry_run: global.dry_run,
            max_nodes: global.max_nodes,
        })
    }

    /// Under which manager's name writes are made, if the command line says.
    pub(crate) fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// How many hosts a write may reach, if the command line says.
    pub(crate) fn max_nodes(&self) -> Option<usize> {
        self.max_nodes
    }

    /// Whether writes are printed and not sent.
    pub(crate) fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// Reads a path as JSON.
    ///
    /// # Errors
    /// [`Exit`] with the controller's own sentence.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value> {
        let text = self.get_raw(path).await?;
        serde_json::from_slice(&text).with_context(|| format!("the answer to GET {path} is no JSON"))
    }

    /// Reads a path as JSON; `None`: nothing is there.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub(crate) async fn find(&mut self, path: &str) -> Result<Option<Value>> {
        match self.get(path).await {
            Err(error) if Exit::of(&error) == Exit::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Reads a path as it is.
    ///
    /// # Errors
    /// [`Exit`] with the controller's own sentence.
    pub(crate) async fn get_raw(&mut self, path: &str) -> Result<Bytes> {
        let request = Request::get(path).header(header::ACCEPT, "application/json").body(Bytes::new())?;
        let answer = self.client.send(request).await.map_err(|error| unsent(&error))?;
        checked(answer, &Method::GET, path)
    }

    /// Sends a write; its answer's JSON, or `null` where it has none or was not sent (`--dry-run`).
    ///
    /// # Errors
    /// [`Exit`] with the controller's own sentence; with status 5 when the answer was lost and the record of the request
    /// could not be read either.
    pub(crate) async fn send(&mut self, write: Write) -> Result<Value> {
        let path = self.with_manager(&write.path);
        if self.dry_run {
            say!("would send {} {path}", write.method);
            if write.kind != Body::Bytes {
                say!("  {}", String::from_utf8_lossy(&write.body));
            }
            return Ok(Value::Null);
        }
        let key = Uuid::from_bytes(random()?);
        let answer = match self.client.send(self.request(&write, &path, key)?).await {
            Ok(answer) => answer,
            Err(error) if error.outcome() == Outcome::Unknown => self.became_of(&write, &path, key, error).await?,
            Err(error) => return Err(unsent(&error)),
        };
        warn(&answer);
        let body = checked(answer, &write.method, &path)?;
        if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body).context("the answer is no JSON") }
    }

    fn request(&self, write: &Write, path: &str, key: Uuid) -> Result<Request<Bytes>> {
        let kind = match write.kind {
            Body::Json => "application/json",
            Body::Merge => "application/merge-patch+json",
            Body::Bytes => "application/octet-stream",
        };
        let mut request = Request::builder()
            .method(&write.method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header("Idempotency-Key", key.to_string());
        if !write.body.is_empty() {
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

    fn with_manager(&self, path: &str) -> String {
        match &self.manager {
            Some(manager) => {
                format!("{path}{}manager={}", if path.contains('?') { '&' } else { '?' }, escaped(manager))
            }
            None => path.to_owned(),
        }
    }

    /// The answer was lost: asks what became of the request. One that the controller never saw is sent again under
    /// the same key, which makes it once whatever happened.
    async fn became_of(&mut self, write: &Write, path: &str, key: Uuid, error: ClientError) -> Result<Response<Bytes>> {
        self.client.close();
        let unknown = |error: ClientError| {
            Exit::Unknown.because(format!(
                "{:#}; whether it was carried out is not known\n  ask again: stemma get --raw /v1/requests/{key}",
                anyhow!(error)
            ))
        };
        let request = Request::get(format!("/v1/requests/{key}")).body(Bytes::new())?;
        match self.client.send(request).await {
            Ok(answer) if answer.status() == StatusCode::OK => recorded(answer.body()).ok_or_else(|| unknown(error)),
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {
                self.client.send(self.request(write, path, key)?).await.map_err(unknown)
            }
            Ok(_) | Err(_) => Err(unknown(error)),
        }
    }
}

/// Why nothing came of a request, and what to look at.
fn unsent(error: &ClientError) -> anyhow::Error {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let chain: String = causes.map(|cause| format!(": {cause}")).collect();
    Exit::Error.because(format!(
        "{error}{chain}; nothing was changed\n  is the controller running there? --context or --server names another one"
    ))
}

/// The answer that a write got, from the record of its request.
fn recorded(record: &[u8]) -> Option<Response<Bytes>> {
    let record: Value = serde_json::from_slice(record).ok()?;
    let status = u16::try_from(record.get("status")?.as_u64()?).ok()?;
    let body = record.get("body").filter(|body| !body.is_null()).map(|body| Bytes::from(body.to_string()));
    Response::builder().status(status).body(body.unwrap_or_default()).ok()
}

/// What an agent pins with `--ca-hash`: SHA-256 of the public key of the context's fleet root, in hex.
///
/// # Errors
/// When the context names no `ca`, or it holds no certificate.
pub(crate) fn ca_hash(global: &Global) -> Result<String> {
    let context = Context::load(global)?;
    let ca = context.ca.as_ref().context("the context names no `ca`")?;
    let certificates = certificates(ca)?;
    let root = certificates.first().with_context(|| format!("{} holds no certificate", ca.display()))?;
    let hash = stemma_wire::tls::spki_sha256(root).with_context(|| format!("{} is no certificate", ca.display()))?;
    Ok(stemma_core::digest::Hex(&hash).to_string())
}

/// A path segment or a query's value: what is not plainly a name is escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut to = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~@:".contains(&byte) {
            to.push(char::from(byte));
        } else {
            to.push_str(&format!("%{byte:02X}"));
        }
    }
    to
}

fn tls(context: &Context) -> Result<rustls::ClientConfig> {
    let ca = context.ca.as_ref().context("the context names no `ca`, which https needs")?;
    let roots = certificates(ca)?;
    let own = match (&context.cert, &context.key) {
        (Some(cert), Some(key)) => {
            let key_der = PrivateKeyDer::from_pem_file(key).with_context(|| format!("{} is no key", key.display()))?;
            Some(ClientIdentity { chain: certificates(cert)?, key: key_der })
        }
        (None, None) => None,
        _ => return Err(anyhow!("the context names one of `cert` and `key`: it takes both or neither")),
    };
    Ok(client_config(&Pin::Roots(roots), None, own, Arc::new(SystemClock))?)
}

fn certificates(file: &std::path::Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<std::result::Result<Vec<_>, _>>();
    read().with_context(|| format!("{} holds no certificate", file.display()))
}

fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").context("/dev/urandom")?, &mut bytes)?;
    // A version 4 UUID, as RFC 9562 marks it.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// A write may be carried out and still have something to say (keys that hosts lose).
fn warn(answer: &Response<Bytes>) {
    for warning in answer.headers().get_all(header::WARNING) {
        eprintln!("warning: {}", crate::output::printable(&String::from_utf8_lossy(warning.as_bytes())));
    }
}

fn checked(answer: Response<Bytes>, method: &Method, path: &str) -> Result<Bytes> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let exit = match status {
        _ if is_outcome_unknown(answer.body()) => Exit::Unknown,
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => Exit::Conflict,
        _ => Exit::Error,
    };
    Err(exit.because(sentence(answer.body(), status, method, path)))
}

/// The controller itself does not know what became of the write.
fn is_outcome_unknown(body: &[u8]) -> bool {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    parsed.as_ref().and_then(|body| body.pointer("/error/type")).is_some_and(|kind| kind == "store.outcome_unknown")
}

/// The controller's own sentence, with field and detail; or what came, where that is not one of its errors.
fn sentence(body: &[u8], status: StatusCode, method: &Method, path: &str) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let error = parsed.as_ref().and_then(|value| value.get("error")).filter(|error| error.is_object());
    let Some(error) = error else { return format!("{method} {path}: {status}") };
    let text = |name: &str| error.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let mut sentence = text("message").unwrap_or("refused without a reason").to_owned();
    if let Some(field) = text("field").filter(|field| !sentence.contains(field)) {
        sentence = format!("{field}: {sentence}");
    }
    if let Some(detail) = text("detail") {
        sentence = format!("{sentence}\n  {}", detail.replace('\n', "\n  "));
    }
    let conflicts = error.get("conflicts").or_else(|| parsed.as_ref()?.get("conflicts"));
    for conflict in conflicts.and_then(Value::as_array).into_iter().flatten() {
        sentence.push_str(&format!("\n  {}", crate::output::cell(Some(conflict))));
    }
    if *method != Method::GET && !is_outcome_unknown(body) {
        sentence.push_str("\n  nothing was changed");
    }
    crate::output::printable_lines(&sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_controllers_own_sentence() {
        let body = br#"{"error": {"code": 409, "type": "label.conflict", "title": "x", "message": "tier is owned by git", "field": "labels.tier",
            "detail": "force it, or leave it out", "conflicts": [{"key": "tier", "manager": "git:apply", "value": "gold"}]}}"#;
        assert_eq!(
            sentence(body, StatusCode::CONFLICT, &Method::PATCH, "/v1/clusters/c"),
            "labels.tier: tier is owned by git\n  force it, or leave it out\n  key=tier,manager=git:apply,value=gold\n  nothing was changed"
        );
        assert_eq!(
            sentence(b"<html>", StatusCode::BAD_GATEWAY, &Method::GET, "/v1/nodes"),
            "GET /v1/nodes: 502 Bad Gateway"
        );
    }

    #[test]
    fn a_lost_answer_is_read_from_its_record() {
        let answer =
            recorded(br#"{"id": "k", "revision": 7, "status": 201, "body": {"token": "t"}, "warning": null}"#).unwrap();
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::CREATED, &br#"{"token":"t"}"#[..]));
        let empty = recorded(br#"{"status": 204, "body": null}"#).unwrap();
        assert_eq!((empty.status(), empty.body().len()), (StatusCode::NO_CONTENT, 0));
        assert!(recorded(b"{}").is_none());
    }

    #[test]
    fn what_is_no_name_is_escaped() {
        assert_eq!(escaped("a b/c?d&e=ü"), "a%20b%2Fc%3Fd%26e%3D%C3%BC");
        assert_eq!(escaped("site@2026.11"), "site@2026.11");
    }
}
