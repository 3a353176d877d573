//! What root asks of the running controller of this machine, over the socket of its data directory.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response};
use serde_json::Value;
use stemma_wire::client::{Client, ClientLimits, RequestOutcome, Target};
use stemma_wire::endpoint::Endpoint;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::init::Layout;

/// The largest answer that is taken: a backup.
const MOST_BYTES: u64 = 1 << 40;

/// A controller that may run.
pub(crate) struct Asked {
    client: Client,
    runtime: Runtime,
}

impl Asked {
    /// The controller of a data directory. Nothing is sent yet.
    ///
    /// # Errors
    /// The directory has no path that a socket can have.
    pub(crate) fn new(layout: &Layout) -> Result<Self> {
        let target: Target = format!("unix:{}", std::path::absolute(layout.socket())?.display()).parse()?;
        let limits = ClientLimits { body_bytes: MOST_BYTES, ..ClientLimits::default() };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client: Client::new(target, None, limits), runtime })
    }

    /// Where what it waits for is run.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Sends a request and gives the answer; a body of null is none.
    ///
    /// # Errors
    /// The controller is not reached, or refuses.
    pub(crate) fn send(&mut self, endpoint: Endpoint, body: &Value) -> Result<Value> {
        let (method, bytes) = match body {
            Value::Null => (Method::GET, Bytes::new()),
            body => (Method::POST, Bytes::from(body.to_string())),
        };
        let request = Request::builder().method(method).uri(endpoint.path(&[]));
        let request =
            request.header(CONTENT_TYPE, "application/json").header("idempotency-key", Uuid::new_v4().to_string());
        let target = self.client.target().to_string();
        let answer = self.runtime.block_on(self.client.send(request.body(bytes)?));
        let answer = answer
            .with_context(|| format!("the controller is not reached at {target}: does it run, and are you root?"))?;
        Ok(serde_json::from_slice(taken(&answer)?).unwrap_or_default())
    }

    /// Hands the body of what is read to `sink`, piece by piece. `false`: no controller runs.
    ///
    /// # Errors
    /// The controller refuses, its answer ends before its end, or what `sink` says.
    pub(crate) fn stream(
        &mut self,
        endpoint: Endpoint,
        mut sink: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<bool> {
        let request = Request::get(endpoint.path(&[])).body(Bytes::new())?;
        let answer = self.client.stream(request, async |piece: Bytes| sink(&piece));
        match self.runtime.block_on(answer) {
            Err(error) if error.outcome() == RequestOutcome::NotSent => Ok(false),
            Err(error) => Err(error).context("the running controller gave no whole answer (does it know you as root?)"),
            Ok(answer) => taken(&answer).map(|_| true),
        }
    }
}

/// The body of an answer that is no refusal.
fn taken(answer: &Response<Bytes>) -> Result<&[u8]> {
    if !answer.status().is_success() {
        let said: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let message = said["error"]["message"].as_str().unwrap_or("it says no more");
        bail!("the controller refuses ({}): {message}", answer.status());
    }
    Ok(answer.body())
}
