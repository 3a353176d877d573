//! Requests by root to the running controller of this machine, over the socket in its data directory.

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

/// Maximum size of a response, in bytes. It is large because the response to a backup request is the whole backup.
const MAX_RESPONSE_BYTES: u64 = 1 << 40;

/// A client for the controller that uses a data directory. The controller may or may not be running.
pub(crate) struct RunningController {
    client: Client,
    runtime: Runtime,
}

impl RunningController {
    /// Returns a client for the controller of a data directory. Sends nothing yet.
    ///
    /// # Errors
    /// The directory's path is not valid for a socket.
    pub(crate) fn new(layout: &Layout) -> Result<Self> {
        let target: Target = format!("unix:{}", std::path::absolute(layout.socket())?.display()).parse()?;
        let limits = ClientLimits { max_body_bytes: MAX_RESPONSE_BYTES, ..ClientLimits::default() };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client: Client::new(target, None, limits), runtime })
    }

    /// Returns the asynchronous runtime in which this client sends its requests.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Sends a request and returns the body of the response, or null if the response has no JSON body. The request is a
    /// `POST` with `body`, or a `GET` if `body` is null.
    ///
    /// # Errors
    /// The controller is unreachable, or refuses the request.
    pub(crate) fn send(&mut self, endpoint: Endpoint, body: &Value) -> Result<Value> {
        let (method, bytes) = match body {
            Value::Null => (Method::GET, Bytes::new()),
            body => (Method::POST, Bytes::from(body.to_string())),
        };
        let request = Request::builder().method(method).uri(endpoint.path(&[]));
        let request = request.header(CONTENT_TYPE, "application/json").header("idempotency-key", Uuid::new_v4().to_string());
        let target = self.client.target().to_string();
        let response = self.runtime.block_on(self.client.send(request.body(bytes)?));
        let response =
            response.with_context(|| format!("cannot reach the controller at {target}: is it running, and are you root?"))?;
        Ok(serde_json::from_slice(success_body(&response)?).unwrap_or_default())
    }

    /// Sends a `GET` request, and passes the body of the response to `sink`, piece by piece. Returns `false` if no
    /// connection can be opened, for example because no controller is running or the user is not root.
    ///
    /// # Errors
    /// The controller refuses the request, the response is incomplete, or `sink` fails.
    pub(crate) fn stream(&mut self, endpoint: Endpoint, mut sink: impl FnMut(&[u8]) -> std::io::Result<()>) -> Result<bool> {
        let request = Request::get(endpoint.path(&[])).body(Bytes::new())?;
        let response = self.client.stream(request, async |piece: Bytes| sink(&piece));
        match self.runtime.block_on(response) {
            Err(error) if error.outcome() == RequestOutcome::NotSent => Ok(false),
            Err(error) => Err(error).context("the response of the running controller is incomplete (are you root?)"),
            Ok(response) => success_body(&response).map(|_| true),
        }
    }
}

/// Returns the body of a successful response. Fails with the message of an error response.
fn success_body(response: &Response<Bytes>) -> Result<&[u8]> {
    if !response.status().is_success() {
        let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        let message = body["error"]["message"].as_str().unwrap_or("no further details");
        bail!("the controller refused the request ({}): {message}", response.status());
    }
    Ok(response.body())
}
