//! A controller's registry, cache and API over a store in a temporary directory.

#![allow(dead_code, reason = "each test file uses its own part")]

#[path = "../../src/store/delayed.rs"]
mod delayed;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use delayed::DelayedStore;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use serde_json::Value;
use stemma_controller::api::{AgentEndpoint, Api, Budgets, EventStreams, ListenerAuth, StreamLimiter, WriteLimiter, respond};
use stemma_controller::blobs::BlobStore;
use stemma_controller::cache::Cache;
use stemma_controller::registry::Registry;
use stemma_controller::store::{
    BoxFuture, Change, ChangeSource, CreateOptions, Entry, EntryList, Epoch, Health, ListQuery, RedbOptions, RedbStore, Revision,
    Snapshot, Stats, Store, StoreError, StoreIdentity, Transaction, Watch, WatchError,
};
use stemma_core::traits::TraitNames;
use stemma_wire::clock::SystemClock;
use stemma_wire::endpoint::{RouteMatch, SocketKind, find};

/// The API of a controller, and the directory of its store.
pub(crate) struct TestApi {
    api: Arc<Api>,
    _directory: tempfile::TempDir,
}

/// A response.
pub(crate) struct ApiResponse {
    /// The status.
    pub(crate) status: u16,
    /// The body, or `null` if it is not JSON.
    pub(crate) body: Value,
    /// The header `Allow`.
    pub(crate) allow: Option<String>,
    /// The header `Preference-Applied`.
    pub(crate) preference_applied: Option<String>,
    /// The header `Warning`.
    pub(crate) warning: Option<String>,
}

impl ApiResponse {
    /// Returns the stable name of the error, or an empty text.
    pub(crate) fn kind(&self) -> &str {
        self.body["error"]["type"].as_str().unwrap_or_default()
    }

    /// Returns the message of the error, or an empty text.
    pub(crate) fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

/// Checks that a successful request got a status of its row in the endpoint table.
fn check_status(method: &str, path: &str, prefers_body: bool, status: u16) {
    let path = path.split('?').next().unwrap_or_default();
    if let RouteMatch::Route(endpoint, _) = find(SocketKind::Admin, method, path) {
        let is_of_row = match endpoint.preferred_status().filter(|_| prefers_body) {
            Some(preferred) => status == preferred,
            None => endpoint.route().statuses.contains(&status),
        };
        assert!(status >= 300 || is_of_row, "{method} {path}: {status}, {endpoint:?}");
    }
}

/// Maximum total size of file bodies that nothing names, in bytes.
pub(crate) const UNNAMED_BYTES: u64 = 8 << 20;

/// Returns whether this binary tests an engine with late answers.
fn is_delayed() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_late")
}

impl TestApi {
    /// Starts with an empty store.
    pub(crate) async fn start() -> Self {
        Self::start_on_store(is_delayed().then_some(delayed::READ_DELAY), RedbOptions::default()).await
    }

    /// Starts with an empty store with these options. If `late` is given, its engine answers commits that late.
    pub(crate) async fn start_on_store(late: Option<Duration>, options: RedbOptions) -> Self {
        Self::start_with(late, options, |registry| registry).await
    }

    /// Starts with an empty store of a fleet with this maximum number of nodes.
    pub(crate) async fn start_with_max_nodes(most_nodes: u64) -> Self {
        let late = is_delayed().then_some(delayed::READ_DELAY);
        Self::start_with(late, RedbOptions::default(), |registry| registry.with_max_nodes(most_nodes)).await
    }

    async fn start_with(late: Option<Duration>, options: RedbOptions, change: impl FnOnce(Registry) -> Registry) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::default(), fleet: Bytes::new() };
        let store = RedbStore::create(&directory.path().join("store.redb"), &create, options).expect("a new store");
        let store: Arc<dyn Store> = Arc::new(store);
        let store = late.map_or(Arc::clone(&store), |late| Arc::new(DelayedStore::new(store, late)));
        let cache = Arc::new(Cache::load(store.as_ref()).await.expect("an empty store is read"));
        let bodies = directory.path().join("blobs");
        std::fs::create_dir(&bodies).expect("a new directory");
        let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { following.follow(followed.as_ref()).await });
        let api = Api {
            registry: Arc::new(change(Registry::new(store, cache, Arc::new(SystemClock)))),
            blobs: Arc::new(BlobStore::new(&bodies).with_max_unnamed_bytes(UNNAMED_BYTES)),
            desired: None,
            reconciler: None,
            metrics: None,
            rejections: Arc::default(),
            traits: TraitNames::default(),
            stream_limiter: StreamLimiter::default(),
            write_limiter: WriteLimiter::default(),
            streams: EventStreams::default(),
            budgets: Budgets::default(),
            agent_endpoint: AgentEndpoint { port: 9444, name: None },
            listener_auth: ListenerAuth::Loopback,
            authority: None,
            token_attempts: Arc::default(),
            first_admin: None,
            visible_cluster: None,
            is_stale: false,
            identities: None,
            layout: None,
        };
        Self { api: Arc::new(api), _directory: directory }
    }

    /// Returns the API, for a listener.
    pub(crate) fn api(&self) -> Arc<Api> {
        Arc::clone(&self.api)
    }

    /// Sends a request.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> ApiResponse {
        self.send_text(method, path, headers, &body.map(ToString::to_string).unwrap_or_default()).await
    }

    /// Reads a path, and returns the body as it was sent.
    pub(crate) async fn get_text(&self, path: &str) -> Bytes {
        let request = Request::builder().uri(path).header("host", "localhost");
        let request = request.body(Full::new(Bytes::new())).expect("a request");
        let response = respond(Arc::clone(&self.api), None, request).await;
        assert_eq!(response.status().as_u16(), 200, "GET {path}");
        response.into_body().collect().await.expect("a body of bytes").to_bytes()
    }

    /// Sends a request whose body need not be JSON.
    pub(crate) async fn send_text(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> ApiResponse {
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.header("host", "localhost");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        let response = respond(Arc::clone(&self.api), None, request).await;
        let status = response.status().as_u16();
        check_status(method, path, headers.iter().any(|(name, _)| *name == "prefer"), status);
        let [allow, applied, warning] = ["allow", "preference-applied", "warning"]
            .map(|name| response.headers().get(name).map(|value| value.to_str().expect("a text").to_owned()));
        let bytes = response.into_body().collect().await.expect("a body of bytes").to_bytes();
        ApiResponse {
            status,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            allow,
            preference_applied: applied,
            warning,
        }
    }

    /// Sends a body, checks the status, and returns the body of the response.
    pub(crate) async fn expect(&self, method: &str, path: &str, body: &Value, status: u16) -> Value {
        let answer = self.send(method, path, &[], Some(body)).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.body);
        answer.body
    }

    /// Reads a path.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.send("GET", path, &[], None).await;
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.body);
        answer.body
    }
}
