//! The controller's HTTP API as the command uses it: one connection, JSON, an idempotency key on each write.

mod events;
mod network;
mod patience;
mod refusal;
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
use stemma_wire::endpoint::{Content, Endpoint, escape};
use uuid::Uuid;

pub(crate) use events::{Event, Told};
use patience::Patience;
pub(crate) use refusal::Refusal;
pub(crate) use trust::ca_hash;

use crate::args::Global;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::shell_word;
use crate::radius::{Radius, Reach, lost_labels, moved_primaries};

/// A write to a row of the endpoint table, before it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    row: Endpoint,
    path: String,
    body: Bytes,
    /// The revision that the object must still have.
    revision: Option<u64>,
    /// The object that it is about, for warnings.
    about: Option<String>,
    /// The command that also takes what others own.
    overwriting: Option<String>,
    /// Files that it names, by their SHA-256 in hex.
    files: BTreeMap<String, PathBuf>,
}

impl Write {
    /// A write without a body, at a path of the row.
    pub(crate) fn at(row: Endpoint, path: String) -> Self {
        Self { row, path, body: Bytes::new(), revision: None, about: None, overwriting: None, files: BTreeMap::new() }
    }

    /// A write without a body, at the row's path with these parameters.
    pub(crate) fn to(row: Endpoint, parameters: &[&str]) -> Self {
        Self::at(row, row.path(parameters))
    }

    /// The write with a JSON value.
    pub(crate) fn json(self, body: &Value) -> Self {
        self.bytes(body.to_string())
    }

    /// The write with these bytes: a file, or a text that is JSON already, to the letter.
    pub(crate) fn bytes(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// The write, only if the object still has this revision.
    pub(crate) fn if_still_at(self, revision: Option<u64>) -> Self {
        Self { revision, ..self }
    }

    /// The write, about this object.
    pub(crate) fn about(self, object: String) -> Self {
        Self { about: Some(object), ..self }
    }

    /// The write, refused where it would take something from another manager unless `overwrites`: then the command as it was given,
    /// with `--overwrite`, takes it.
    pub(crate) fn overwriting(self, overwrites: bool) -> Self {
        if overwrites {
            return self;
        }
        let given = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        Self { path: with_term(&self.path, "force=false"), overwriting: Some(with_overwrite(given)), ..self }
    }

    /// The write, with one more term of its query.
    pub(crate) fn with_term(self, term: &str) -> Self {
        Self { path: with_term(&self.path, term), ..self }
    }

    /// The write, with the files that it names: they are sent once it was decided and before it is made, so one that is refused
    /// sends none.
    pub(crate) fn with_files(self, files: BTreeMap<String, PathBuf>) -> Self {
        Self { files, ..self }
    }

    /// Whether a node is gone once it is made.
    pub(crate) fn deletes_node(&self) -> bool {
        self.row == Endpoint::DeleteNode
    }

    fn method(&self) -> &'static str {
        self.row.route().method.as_str()
    }

    /// The type of its body; none where the row takes no body.
    fn media_type(&self) -> Option<&'static str> {
        match self.row.route().request {
            // Of the patches that a row takes, the command sends this one alone.
            Content::AnyPatch | Content::FieldPatch => Content::MergePatch,
            content => content,
        }
        .media_types()
        .first()
        .copied()
    }
}

/// The words of a command that is made with `--overwrite`, among its options, and not tried out.
fn with_overwrite(given: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = std::iter::once("stemma".to_owned()).chain(given).collect();
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let operands = words.split_off(end);
    words.retain(|word| word != "--dry-run");
    words.push("--overwrite".to_owned());
    words.extend(operands);
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method(), self.path)
    }
}

/// A connection to a controller.
pub(crate) struct Api {
    client: Client,
    tls: Option<Arc<ClientConfig>>,
    manager: Option<String>,
    /// Writes are refused for what they bring of warnings and errors.
    strict: bool,
    token: Option<header::HeaderValue>,
    reason: Option<header::HeaderValue>,
    radius: Radius,
    /// The writes that were made so far, each in a word.
    made: Vec<String>,
    /// What was said of primaries that move.
    moves: BTreeSet<String>,
    /// A write that was made moved one, so what was decided of others before it may no longer be so.
    has_moved: bool,
}

impl Api {
    /// Prepares to talk to the context's controller; nothing is sent yet.
    ///
    /// # Errors
    /// When a file of the context can't be read, or the URL is none.
    pub(crate) fn new(global: &Global) -> Result<Self> {
        let context = Context::load(global)?;
        let target: Target = context.url.parse()?;
        let tls = if target.tls { Some(Arc::new(trust::tls(&context)?)) } else { None };
        let token = context.token()?.map(|token| header::HeaderValue::from_str(&format!("Bearer {token}")));
        let reason = global.reason.as_ref().map(|reason| header::HeaderValue::from_bytes(reason.as_bytes()));
        Ok(Self {
            client: Client::new(target, tls.clone(), ClientLimits::default()),
            tls,
            manager: global.manager.clone(),
            strict: global.strict,
            token: token.transpose().context("the context's token is one line of text")?,
            reason: reason.transpose().context("--reason takes one line of text")?,
            radius: Radius::of(global),
            made: Vec::new(),
            moves: BTreeSet::new(),
            has_moved: false,
        })
    }

    /// Whether writes are only tried out.
    pub(crate) fn is_dry(&self) -> bool {
        self.radius.dry_run
    }

    /// The manager that was named, under whose name writes are made.
    pub(crate) fn manager(&self) -> Option<&str> {
        self.manager.as_deref()
    }

    /// How far the writes reach that were decided so far, each host counted once.
    pub(crate) fn would_reach(&self) -> Reach {
        self.radius.reach()
    }

    /// Reads a path as JSON.
    ///
    /// # Errors
    /// [`Exit`] with the controller's own sentence.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value> {
        read(path, &self.get_raw(path).await?)
    }

    /// Reads a path as JSON; `None`: nothing is there.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub(crate) async fn find(&mut self, path: &str) -> Result<Option<Value>> {
        found(self.get(path).await)
    }

    /// The same, with the revision of the object that is there.
    ///
    /// # Errors
    /// As [`Api::get`]; that the answer names no revision.
    pub(crate) async fn find_tagged(&mut self, path: &str) -> Result<Option<(Value, u64)>> {
        let Some(answer) = found(self.get_answer(path).await)? else { return Ok(None) };
        let tag = answer.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let revision = tag.and_then(|tag| tag.trim_matches('"').parse().ok());
        let revision = revision.with_context(|| format!("the answer to GET {path} names no revision"))?;
        Ok(Some((read(path, answer.body())?, revision)))
    }

    /// Reads a path as it is.
    ///
    /// # Errors
    /// [`Exit`] with the controller's own sentence.
    pub(crate) async fn get_raw(&mut self, path: &str) -> Result<Bytes> {
        Ok(self.get_answer(path).await?.into_body())
    }

    async fn get_answer(&mut self, path: &str) -> Result<Response<Bytes>> {
        let request = Request::get(path).header(header::ACCEPT, "application/json").body(Bytes::new())?;
        let answer = self.patiently(request).await.map_err(|error| self.unsent(&error))?;
        if answer.status().is_success() { Ok(answer) } else { Err(Refusal::of(&answer, "GET", path).into()) }
    }

    /// Makes a write, once it is known how many hosts it reaches and that it may; its answer's JSON, or `null` where it has
    /// none. Under `--dry-run` it is only tried out.
    ///
    /// # Errors
    /// [`Refusal`]; above `--max-nodes`, or when a person says no; with status 5 when the answer was lost and the record of
    /// the request could not be read either.
    pub(crate) async fn send(&mut self, write: Write) -> Result<Value> {
        let done = self.send_one(&write).await;
        if done.is_ok() {
            self.made.push(write.to_string());
        }
        done.map_err(|error| match self.made.as_slice() {
            made if made.is_empty() || self.is_dry() => error,
            made => {
                let sentence = format!("{error:#}\n  already done before it: {}", made.join(", "));
                Exit::of(&error).after_others(sentence)
            }
        })
    }

    async fn send_one(&mut self, write: &Write) -> Result<Value> {
        let (tried, reach) = self.decide(write).await?;
        self.tell_moves(&tried);
        if self.is_dry() {
            return Ok(tried);
        }
        self.may_reach(reach)?;
        self.send_files(&write.files).await?;
        self.make(write).await
    }

    /// Has a write decided and not made, where its row can do that: its answer, and how far it reaches. Labels that hosts lose
    /// are told, and are no finding: a strict write takes them away too. Primaries that move are told by [`Self::tell_moves`].
    ///
    /// # Errors
    /// [`Refusal`], or why nothing came of it.
    pub(crate) async fn decide(&mut self, write: &Write) -> Result<(Value, Reach)> {
        if !write.row.has_dry_run() {
            return Ok((Value::Null, Reach::default()));
        }
        let (tried, reach) = self.try_out(write).await?;
        if let Some(lost) = lost_labels(&tried) {
            let about = write.about.iter().map(|about| format!("{about}: ")).collect::<String>();
            tell!("info: {about}{lost}");
        }
        self.radius.note(&tried, reach);
        Ok((tried, reach))
    }

    /// Says which primaries a write moves, each once. They are no finding: a strict write moves them too.
    pub(crate) fn tell_moves(&mut self, answer: &Value) {
        for sentence in moved_primaries(answer) {
            if self.moves.insert(sentence.clone()) {
                tell!("info: {sentence}");
            }
        }
    }

    /// Has a write that was decided already decided again, where another one that was made since has moved a primary: what it moves now is
    /// told before it is made.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub(crate) async fn tell_moves_again(&mut self, write: &Write) -> Result<()> {
        if self.has_moved && write.row.has_dry_run() {
            let (tried, _) = self.try_out(write).await?;
            self.tell_moves(&tried);
        }
        Ok(())
    }

    /// Checks that writes may reach so far; a person at a terminal is asked.
    ///
    /// # Errors
    /// Above `--max-nodes`, or when a person says no.
    pub(crate) fn may_reach(&self, reach: Reach) -> Result<()> {
        self.radius.check(reach)
    }

    /// Checks that these objects may be changed, of so many that a selector found, and which reach so far; a person at a terminal is asked
    /// where it found more than one.
    ///
    /// # Errors
    /// Above `--max-nodes`, or when a person says no.
    pub(crate) fn may_change_selected(
        &self,
        kind: &str,
        selected: usize,
        changed: &[&str],
        reach: Reach,
    ) -> Result<()> {
        self.radius.check_selected(kind, selected, changed, reach)
    }

    /// Checks that these certificates and tokens of a principal may end; a person at a terminal is asked.
    ///
    /// # Errors
    /// When a person says no.
    pub(crate) fn may_end(&self, principal: &str, ended: &[&str]) -> Result<()> {
        self.radius.check_ended(principal, ended)
    }

    /// A file that nothing names changes nothing, and the controller drops it after a day: so it is no write of its own.
    async fn send_files(&mut self, files: &BTreeMap<String, PathBuf>) -> Result<()> {
        for (hash, path) in files {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            let sent = self.make(&Write::to(Endpoint::PutBlob, &[hash]).bytes(bytes)).await;
            sent.with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Has a write decided and not made: its answer, and how far it reaches.
    async fn try_out(&mut self, write: &Write) -> Result<(Value, Reach)> {
        let path = with_term(&self.terms_of(write), "dry_run=true");
        let request = self.request(write, &path, None)?;
        let answer = self.patiently(request).await.map_err(|error| self.unsent(&error))?;
        if self.is_dry() {
            warn(&answer);
        }
        let count = |name: &str| -> Option<usize> {
            answer.headers().get(name).and_then(|count| count.to_str().ok()?.parse().ok())
        };
        let reach = Reach { hosts: count("stemma-hosts").unwrap_or(0), task_sets: count("stemma-task-sets") };
        Ok((parsed(&checked(answer, write, &path)?)?, reach))
    }

    /// Makes a write that was decided.
    ///
    /// # Errors
    /// As [`Self::send`], but for how far it reaches.
    pub(crate) async fn make(&mut self, write: &Write) -> Result<Value> {
        let path = self.terms_of(write);
        let key = uuid::Builder::from_random_bytes(random()?).into_uuid();
        let answer = match self.patiently(self.request(write, &path, Some(key))?).await {
            Ok(answer) => answer,
            Err(error) if network::outcome(&error) == RequestOutcome::Unknown => {
                self.became_of(write, &path, key, error).await?
            }
            Err(error) => return Err(self.unsent(&error)),
        };
        warn(&answer);
        let made = parsed(&checked(answer, write, &path)?)?;
        self.has_moved |= !moved_primaries(&made).is_empty();
        self.tell_moves(&made);
        Ok(made)
    }

    /// Sends a request, and again as it is (under the same key) while the controller says that it is busy.
    async fn patiently(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let patience = Patience::new(Instant::now());
        loop {
            let answer = self.once(request.clone()).await?;
            let Some(wait) = patience.wait(&answer, Instant::now()) else { return Ok(answer) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends a request as the context's principal.
    async fn once(&mut self, mut request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        self.client.send(request).await
    }

    /// Why nothing came of a request, and what to look at.
    fn unsent(&self, error: &ClientError) -> anyhow::Error {
        Exit::Error.because(network::sentence(error, &self.client.target().to_string()))
    }

    fn request(&self, write: &Write, path: &str, key: Option<Uuid>) -> Result<Request<Bytes>> {
        let mut request =
            Request::builder().method(write.method()).uri(path).header(header::ACCEPT, "application/json");
        // What it changes, also of a write that is answered with nothing elsewhere.
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

    /// The path of a write, with the terms on which all writes of the command are made.
    fn terms_of(&self, write: &Write) -> String {
        let path = match &self.manager {
            Some(manager) => with_term(&write.path, &format!("manager={}", escape(manager))),
            None => write.path.clone(),
        };
        // A file's bytes are no write of the model.
        if self.strict && write.row.has_dry_run() { with_term(&path, "strict=true") } else { path }
    }

    /// The answer was lost: asks what became of the request. One that the controller never saw is sent again under
    /// the same key, which makes it once whatever happened.
    async fn became_of(&mut self, write: &Write, path: &str, key: Uuid, error: ClientError) -> Result<Response<Bytes>> {
        self.client.close();
        let url = self.client.target().to_string();
        let asked = Endpoint::GetRequest.path(&[&key.to_string()]);
        let unknown = |error: &ClientError| {
            Exit::Unknown.because(format!(
                "{}\n  whether it was carried out is not known; ask: stemma get --raw {asked}",
                network::sentence(error, &url)
            ))
        };
        let request = Request::get(&asked).body(Bytes::new())?;
        match self.once(request).await {
            Ok(answer) if answer.status() == StatusCode::OK => recorded(answer.body()).ok_or_else(|| unknown(&error)),
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {
                self.patiently(self.request(write, path, Some(key))?).await.map_err(|error| unknown(&error))
            }
            Ok(_) | Err(_) => Err(unknown(&error)),
        }
    }
}

/// What a GET found, where nothing may be there.
fn found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(error) if Exit::of(&error) == Exit::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

/// The JSON that a GET of a path answered.
fn read(path: &str, text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).with_context(|| format!("the answer to GET {path} is no JSON"))
}

/// The answer that a write got, from the record of its request.
fn recorded(record: &[u8]) -> Option<Response<Bytes>> {
    let record: Value = serde_json::from_slice(record).ok()?;
    let status = u16::try_from(record.get("status")?.as_u64()?).ok()?;
    let body = record.get("body").filter(|body| !body.is_null()).map(|body| Bytes::from(body.to_string()));
    Response::builder().status(status).body(body.unwrap_or_default()).ok()
}

/// Random bytes of the system.
///
/// # Errors
/// When it gives none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").context("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

/// A write may be carried out and still have something to say. Labels that hosts lose stand in its body, and were told before it was made.
fn warn(answer: &Response<Bytes>) {
    for warning in answer.headers().get_all(header::WARNING) {
        let text = String::from_utf8_lossy(warning.as_bytes());
        let said = text.strip_prefix("299 stemma ").unwrap_or(&text).trim_matches('"');
        for part in said.split("; ") {
            tell!("{}", crate::output::printable(&graded(part)));
        }
    }
}

/// A part of a warning, with how grave it is before it: a controller says that of what is no warning.
fn graded(part: &str) -> Cow<'_, str> {
    let is_graded = ["info: ", "error: "].iter().any(|word| part.starts_with(word));
    if is_graded { part.into() } else { format!("warning: {part}").into() }
}

/// The body of a write's success; anything else as what it is.
fn checked(answer: Response<Bytes>, write: &Write, path: &str) -> Result<Bytes> {
    if answer.status().is_success() {
        return Ok(answer.into_body());
    }
    let mut refusal = Refusal::of(&answer, write.method(), path);
    refusal.overwriting = write.overwriting.clone().filter(|_| !refusal.conflicts.is_empty());
    Err(refusal.into())
}

fn parsed(body: &Bytes) -> Result<Value> {
    if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(body).context("the answer is no JSON") }
}

fn with_term(path: &str, term: &str) -> String {
    format!("{path}{}{term}", if path.contains('?') { '&' } else { '?' })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn y09_a_warning_is_said_with_how_grave_it_is() {
        for (part, said) in [
            ("node/a: m", "warning: node/a: m"),
            ("info: node/a: m", "info: node/a: m"),
            ("error: node/a: m", "error: node/a: m"),
            ("information: m", "warning: information: m"),
            ("2 more findings", "warning: 2 more findings"),
            ("info: 1 more finding", "info: 1 more finding"),
        ] {
            assert_eq!(graded(part), said);
        }
    }

    #[test]
    fn the_proposed_command_makes_the_write_and_does_not_try_it_out() {
        for (given, proposed) in [
            ("label web-1 a=b", "stemma label web-1 a=b --overwrite"),
            ("--dry-run label web-1 a=b", "stemma label web-1 a=b --overwrite"),
            ("label web-1 --dry-run -- -a=b --dry-run", "stemma label web-1 --overwrite -- -a=b --dry-run"),
        ] {
            assert_eq!(with_overwrite(given.split(' ').map(str::to_owned)), proposed);
        }
    }
}
