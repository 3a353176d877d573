//! A controller's registry, cache and API over a store in a temporary directory.

#![allow(dead_code, reason = "each test file uses its own part")]

#[path = "../../src/store/late.rs"]
mod late;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use late::LateStore;
use serde_json::Value;
use stemma_controller::api::{Api, Budgets, Guarding, Reached, Readers, Streams, Writers, answer};
use stemma_controller::blobs::Blobs;
use stemma_controller::cache::Cache;
use stemma_controller::registry::Registry;
use stemma_controller::store::{
    BoxFuture, Change, ChangeSource, CreateOptions, Entry, Epoch, Health, Identity, List, Query, RedbOptions,
    RedbStore, Revision, Snapshot, Stats, Store, StoreError, Transaction, Watch, WatchError,
};
use stemma_core::traits::TraitNames;
use stemma_wire::clock::SystemClock;
use stemma_wire::endpoint::{Found, Listener, find};

/// What is served.
pub(crate) struct Served {
    api: Arc<Api>,
    _directory: tempfile::TempDir,
}

/// An answer.
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: u16,
    /// The body; `null` where it is no JSON.
    pub(crate) body: Value,
    /// The header `Allow`.
    pub(crate) allow: Option<String>,
    /// The header `Preference-Applied`.
    pub(crate) applied: Option<String>,
    /// The header `Warning`.
    pub(crate) warning: Option<String>,
}

impl Answer {
    /// The stable name of the error; empty for none.
    pub(crate) fn kind(&self) -> &str {
        self.body["error"]["type"].as_str().unwrap_or_default()
    }

    /// The sentence of the error; empty for none.
    pub(crate) fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

/// Checks that a request that went well was answered with a status of its row of the endpoint table.
fn check_status(method: &str, path: &str, prefers_body: bool, status: u16) {
    let path = path.split('?').next().unwrap_or_default();
    if let Found::Route(endpoint, _) = find(Listener::Admin, method, path) {
        let is_of_row = match endpoint.preferred_status().filter(|_| prefers_body) {
            Some(preferred) => status == preferred,
            None => endpoint.route().statuses.contains(&status),
        };
        assert!(status >= 300 || is_of_row, "{method} {path}: {status}, {endpoint:?}");
    }
}

/// What file bodies that nothing names may take.
pub(crate) const UNNAMED_BYTES: u64 = 8 << 20;

/// Whether this binary tests over an engine that answers late.
fn is_late() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_late")
}

impl Served {
    /// Starts over an empty store.
    pub(crate) async fn start() -> Self {
        Self::start_over(is_late().then_some(late::LATE), RedbOptions::default()).await
    }

    /// Starts over an empty store with these options, whose engine, where it is late, answers commits that late.
    pub(crate) async fn start_over(late: Option<Duration>, options: RedbOptions) -> Self {
        Self::start_as(late, options, |registry| registry).await
    }

    /// Starts over an empty store of a fleet that may have so many nodes.
    pub(crate) async fn start_holding(most_nodes: u64) -> Self {
        let late = is_late().then_some(late::LATE);
        Self::start_as(late, RedbOptions::default(), |registry| registry.holding(most_nodes)).await
    }

    async fn start_as(late: Option<Duration>, options: RedbOptions, change: impl FnOnce(Registry) -> Registry) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::default(), fleet: Bytes::new() };
        let store = RedbStore::create(&directory.path().join("store.redb"), &create, options).expect("a new store");
        let store: Arc<dyn Store> = Arc::new(store);
        let store = late.map_or(Arc::clone(&store), |late| Arc::new(LateStore::new(store, late)));
        let cache = Arc::new(Cache::load(store.as_ref()).await.expect("an empty store is read"));
        let bodies = directory.path().join("blobs");
        std::fs::create_dir(&bodies).expect("a new directory");
        let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { following.follow(followed.as_ref()).await });
        let api = Api {
            registry: Arc::new(change(Registry::new(store, cache, Arc::new(SystemClock)))),
            blobs: Arc::new(Blobs::new(&bodies).at_most(UNNAMED_BYTES)),
            desired: None,
            reconciler: None,
            metrics: None,
            rejected: Arc::default(),
            traits: TraitNames::default(),
            readers: Readers::default(),
            writers: Writers::default(),
            streams: Streams::default(),
            budgets: Budgets::default(),
            agents: Reached { port: 9444, name: None },
            guarding: Guarding::Loopback,
            authority: None,
            guesses: Arc::default(),
            first_admin: None,
            within: None,
            is_behind: false,
            identities: None,
            layout: None,
        };
        Self { api: Arc::new(api), _directory: directory }
    }

    /// What is served, for a listener.
    pub(crate) fn api(&self) -> Arc<Api> {
        Arc::clone(&self.api)
    }

    /// Sends a request.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        self.send_text(method, path, headers, &body.map(ToString::to_string).unwrap_or_default()).await
    }

    /// Reads, and gives the body as it came.
    pub(crate) async fn text(&self, path: &str) -> Bytes {
        let request = Request::builder().uri(path).header("host", "localhost");
        let request = request.body(Full::new(Bytes::new())).expect("a request");
        let response = answer(Arc::clone(&self.api), None, request).await;
        assert_eq!(response.status().as_u16(), 200, "GET {path}");
        response.into_body().collect().await.expect("a body of bytes").to_bytes()
    }

    /// Sends a request whose body need be no JSON.
    pub(crate) async fn send_text(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.header("host", "localhost");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        let response = answer(Arc::clone(&self.api), None, request).await;
        let status = response.status().as_u16();
        check_status(method, path, headers.iter().any(|(name, _)| *name == "prefer"), status);
        let [allow, applied, warning] = ["allow", "preference-applied", "warning"]
            .map(|name| response.headers().get(name).map(|value| value.to_str().expect("a text").to_owned()));
        let bytes = response.into_body().collect().await.expect("a body of bytes").to_bytes();
        Answer { status, body: serde_json::from_slice(&bytes).unwrap_or_default(), allow, applied, warning }
    }

    /// Sends a body, and expects a status.
    pub(crate) async fn expect(&self, method: &str, path: &str, body: &Value, status: u16) -> Value {
        let answer = self.send(method, path, &[], Some(body)).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.body);
        answer.body
    }

    /// Reads.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.send("GET", path, &[], None).await;
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.body);
        answer.body
    }
}
