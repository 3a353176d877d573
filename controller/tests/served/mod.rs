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
use stemma_wire::endpoint::{RouteMatch, SocketKind, find_route};

/// The API of a controller, and the directory of its store.
pub(crate) struct TestApi {
    api: Arc<Api>,
    _directory: tempfile::TempDir,
}

/// A response of the API, with the headers that tests check.
pub(crate) struct ApiResponse {
    /// The HTTP status.
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
    /// Returns the type of the error, such as `field.invalid`, or an empty text.
    pub(crate) fn kind(&self) -> &str {
        self.body["error"]["type"].as_str().unwrap_or_default()
    }

    /// Returns the message of the error, or an empty text.
    pub(crate) fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

/// Checks that the endpoint table lists the status of a successful response. If the request has the header `prefer`,
/// and the endpoint has a status for responses with the requested body, the response must have that status.
fn check_status(method: &str, path: &str, prefers_body: bool, status: u16) {
    let path = path.split('?').next().unwrap_or_default();
    if let RouteMatch::Route(endpoint, _) = find_route(SocketKind::Admin, method, path) {
        let is_listed = match endpoint.representation_status().filter(|_| prefers_body) {
            Some(preferred) => status == preferred,
            None => endpoint.route().statuses.contains(&status),
        };
        assert!(status >= 300 || is_listed, "{method} {path}: {status}, {endpoint:?}");
    }
}

/// Maximum total size of the file bodies that no stored release names, in bytes.
pub(crate) const MAX_UNNAMED_BYTES: u64 = 8 << 20;

/// Returns whether this test binary uses a store engine whose answers are delayed (`api_late`).
fn is_delayed() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_late")
}

impl TestApi {
    /// Starts an API with an empty store. In the test binary `api_late`, each answer of the store is delayed by 5 ms.
    pub(crate) async fn start() -> Self {
        Self::start_on_store(is_delayed().then_some(delayed::ANSWER_DELAY), RedbOptions::default()).await
    }

    /// Starts an API with an empty store with these options. If `commit_delay` is set, the store's answers to commits
    /// are delayed by this time, and those to reads by 5 ms.
    pub(crate) async fn start_on_store(commit_delay: Option<Duration>, options: RedbOptions) -> Self {
        Self::start_with(commit_delay, options, |registry| registry).await
    }

    /// Starts an API with an empty store, for a fleet with this maximum number of nodes.
    pub(crate) async fn start_with_max_nodes(max_nodes: u64) -> Self {
        let commit_delay = is_delayed().then_some(delayed::ANSWER_DELAY);
        Self::start_with(commit_delay, RedbOptions::default(), |registry| registry.with_max_nodes(max_nodes)).await
    }

    /// Starts an API with an empty store. If `commit_delay` is set, the store's answers to commits are delayed by this
    /// time, and those to reads by 5 ms. `change` adjusts the registry.
    async fn start_with(commit_delay: Option<Duration>, options: RedbOptions, change: impl FnOnce(Registry) -> Registry) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::default(), fleet: Bytes::new() };
        let store = RedbStore::create(&directory.path().join("store.redb"), &create, options).expect("a new store");
        let store: Arc<dyn Store> = Arc::new(store);
        let store = commit_delay.map_or(Arc::clone(&store), |commit_delay| Arc::new(DelayedStore::new(store, commit_delay)));
        let cache = Arc::new(Cache::load(store.as_ref()).await.expect("an empty store is read"));
        let blob_directory = directory.path().join("blobs");
        std::fs::create_dir(&blob_directory).expect("a new directory");
        let (watching_cache, watched_store) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { watching_cache.follow(watched_store.as_ref()).await });
        let api = Api {
            registry: Arc::new(change(Registry::new(store, cache, Arc::new(SystemClock)))),
            blobs: Arc::new(BlobStore::new(&blob_directory).with_max_unnamed_bytes(MAX_UNNAMED_BYTES)),
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

    /// Returns the API itself, as a listener needs it.
    pub(crate) fn api(&self) -> Arc<Api> {
        Arc::clone(&self.api)
    }

    /// Sends a request with a JSON body, if any, and returns the response.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> ApiResponse {
        self.send_text(method, path, headers, &body.map(ToString::to_string).unwrap_or_default()).await
    }

    /// Reads a path, checks that the status is 200, and returns the bytes of the body.
    pub(crate) async fn get_text(&self, path: &str) -> Bytes {
        let request = Request::builder().uri(path).header("host", "localhost");
        let request = request.body(Full::new(Bytes::new())).expect("a request");
        let response = respond(Arc::clone(&self.api), None, request).await;
        assert_eq!(response.status().as_u16(), 200, "GET {path}");
        response.into_body().collect().await.expect("a body of bytes").to_bytes()
    }

    /// Sends a request whose body need not be JSON, and returns the response. The header `host` has a default.
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
        let [allow, preference, warning] = ["allow", "preference-applied", "warning"]
            .map(|name| response.headers().get(name).map(|value| value.to_str().expect("a text").to_owned()));
        let bytes = response.into_body().collect().await.expect("a body of bytes").to_bytes();
        ApiResponse {
            status,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            allow,
            preference_applied: preference,
            warning,
        }
    }

    /// Sends a request with this body, checks the status of the response, and returns its body.
    pub(crate) async fn expect(&self, method: &str, path: &str, body: &Value, status: u16) -> Value {
        let answer = self.send(method, path, &[], Some(body)).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.body);
        answer.body
    }

    /// Reads a path, checks that the status is 200, and returns the body.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.send("GET", path, &[], None).await;
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.body);
        answer.body
    }
}
