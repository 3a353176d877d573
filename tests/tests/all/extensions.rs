//! Tests of extensions that decide the tags of a role, with a real controller. The test itself is the extension, and
//! answers the controller at a real socket.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::{OperatorClient, OperatorWrite};
use stemma_tests::program::MAX_WAIT;
use uuid::Uuid;

use crate::store_copy::StoreCopy;
use crate::writes::{check_commit, write_twice};

/// Maximum timeout that the configuration accepts for an extension. Even on a busy machine, the test answers within
/// this time.
const MAX_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout in the test of an extension that does not answer.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A function that answers a question, which is the JSON request of the controller to an extension. Returns the HTTP
/// status and the body of the response.
type ReplyFn = Arc<dyn Fn(&Value) -> (u16, String) + Send + Sync>;

/// An extension that the test provides, at a Unix socket or a TCP port. It records the questions of the controller.
struct FakeExtension {
    path: PathBuf,
    questions: Arc<Mutex<Vec<Value>>>,
    reply: Arc<Mutex<ReplyFn>>,
}

impl FakeExtension {
    /// Starts an extension at a Unix socket.
    fn listen_on_socket(path: PathBuf) -> Result<Self> {
        let listener = UnixListener::bind(&path)?;
        Ok(Self::spawn(path, move || Ok(listener.accept()?.0)))
    }

    /// Starts an extension at a TCP port. Its `path` is then the URL.
    fn listen_on_port() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?).into();
        Ok(Self::spawn(url, move || Ok(listener.accept()?.0)))
    }

    /// Starts a thread that answers connections from `accept`: with the tag `nginx`, until the test sets another reply.
    fn spawn<S: Read + Write + Send + 'static>(path: PathBuf, accept: impl Fn() -> std::io::Result<S> + Send + 'static) -> Self {
        let (questions, reply) = (Arc::default(), Arc::new(Mutex::new(tags_reply(&["nginx"]))));
        let extension = Self { path, questions: Arc::clone(&questions), reply: Arc::clone(&reply) };
        std::thread::spawn(move || {
            while let Ok(stream) = accept() {
                let (questions, reply) = (Arc::clone(&questions), Arc::clone(&reply));
                std::thread::spawn(move || answer_request(stream, &questions, &reply));
            }
        });
        extension
    }

    fn set_reply(&self, reply: impl Fn(&Value) -> (u16, String) + Send + Sync + 'static) {
        *self.reply.lock().expect("nobody panics with it") = Arc::new(reply);
    }

    /// Sets a reply that gives these tags to each role of each node.
    fn set_tags(&self, tags: &[&str]) {
        *self.reply.lock().expect("nobody panics with it") = tags_reply(tags);
    }

    /// Returns the questions since the last call.
    fn take_questions(&self) -> Vec<Value> {
        std::mem::take(&mut self.questions.lock().expect("nobody panics with it"))
    }
}

/// Reads one HTTP request, records its body as a question, and writes the reply. Returns `None` if the request cannot
/// be read or answered.
fn answer_request(stream: impl Read + Write, questions: &Mutex<Vec<Value>>, reply: &Mutex<ReplyFn>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let question: Value = serde_json::from_slice(&body).ok()?;
    // The function is cloned so that the lock is free, and concurrent questions are answered in parallel.
    let reply = Arc::clone(&*reply.lock().ok()?);
    let (status, text) = reply(&question);
    questions.lock().ok()?.push(question);
    let stream = reader.get_mut();
    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}", text.len()).ok()
}

/// Returns a reply that gives these tags to each role of each node.
fn tags_reply(tags: &[&str]) -> ReplyFn {
    let tags: Vec<String> = tags.iter().map(|&tag| tag.to_owned()).collect();
    Arc::new(move |question| (200, answer_body(question, |_| tags.clone())))
}

/// Returns the body of the answer to a question. `tags` returns the tags for one node and role that the question lists.
fn answer_body(question: &Value, tags: impl Fn(&Value) -> Vec<String>) -> String {
    let pairs = question["asked"].as_array().into_iter().flatten();
    let answers = pairs.map(|pair| json!({"node": pair["node"], "role": pair["role"], "tags": tags(pair)}));
    json!({"answers": answers.collect::<Vec<_>>()}).to_string()
}

/// A fleet whose controller has the extensions `placement`, which decides the tags of role `web`, and `hook`, for role
/// `other`.
struct ExtensionSite {
    fleet: TempFleet,
    placement: FakeExtension,
    hook: FakeExtension,
    operator: OperatorClient,
}

const SITE: &str = r#"
kind: Release
name: site
version: "1"
roles: {web: {tags: [nginx, leader]}, db: {tags: [mysql]}, other: {tags: [slow]}}
tags: {nginx: {}, leader: {}, mysql: {}, slow: {}, spare: {}}
tasks: []
extensions: [{roles: [web], use: placement}, {roles: [other], use: hook}]
---
{kind: Release, name: site, version: "0", roles: {web: {tags: [nginx, leader]}}, tags: {nginx: {}, leader: {}}, tasks: []}
---
{kind: Cluster, name: prod, release: site@1}
---
{kind: NodeGroup, cluster: prod, name: all}
---
{kind: Node, name: n1, nodegroup: prod/all}
---
{kind: Node, name: n2, nodegroup: prod/all}
"#;

impl ExtensionSite {
    fn start() -> Result<Self> {
        Self::start_with_timeout(MAX_TIMEOUT)
    }

    /// Starts both extensions and a controller, with this timeout of `placement`. Then applies [`SITE`].
    fn start_with_timeout(timeout: Duration) -> Result<Self> {
        let sockets = tempfile::tempdir()?.keep();
        let placement = FakeExtension::listen_on_socket(sockets.join("placement.sock"))?;
        let hook = FakeExtension::listen_on_port()?;
        let config = format!(
            "[[extension]]\nname = 'placement'\nunix = '{}'\ntimeout_seconds = {}\n[[extension]]\nname = 'hook'\nurl = '{}/tags?site=1'\n",
            placement.path.display(),
            timeout.as_secs(),
            hook.path.display()
        );
        let fleet = TempFleet::start_with_config(&config)?;
        let file = fleet.dir().join("site.yaml");
        std::fs::write(&file, SITE)?;
        fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
        let operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
        Ok(Self { fleet, placement, hook, operator })
    }

    /// Sends a write under a new idempotency key. Returns the status and the body of the response.
    fn send(&mut self, method: &'static str, path: &str, body: Value) -> Result<(u16, Value)> {
        self.operator.write(&OperatorWrite { method, path: path.to_owned(), body, key: Uuid::now_v7() })
    }

    /// Sends a write that must succeed. Returns the body of the response.
    fn send_ok(&mut self, method: &'static str, path: &str, body: Value) -> Result<Value> {
        let (status, answer) = self.send(method, path, body)?;
        ensure!(status < 300, "{method} {path}: {status} {answer}");
        Ok(answer)
    }

    fn node(&mut self, name: &str) -> Result<Value> {
        Ok(self.operator.get(&format!("/v1/nodes/{name}"))?.1)
    }

    fn tags(&mut self, name: &str) -> Result<Value> {
        Ok(self.node(name)?["tags"].clone())
    }

    /// Assigns the role `web` to node `n1`. Fails unless the controller refuses this with an extension error that
    /// contains `sentence`, and changes nothing.
    fn check_refused(&mut self, sentence: &str) -> Result<()> {
        let node_before = self.node("n1")?;
        let (status, answer) = self.send("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
        ensure!((status, &answer["error"]["type"]) == (502, &json!("extension.failed")), "{status} {answer}");
        let message = answer["error"]["message"].as_str().context("a message")?;
        ensure!(message.contains(sentence), "{sentence:?}: {message}");
        ensure!(message.contains("role web of node n1") && message.ends_with("nothing was changed"), "{message}");
        let node_after = self.node("n1")?;
        let is_same = |field: &str| node_after[field] == node_before[field];
        ensure!(
            ["resource_version", "generation", "roles", "tags"].into_iter().all(is_same),
            "{node_after} is not {node_before}"
        );
        Ok(())
    }
}

#[test]
fn extension_answer_replaces_role_tags() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    assert!(site.placement.take_questions().is_empty(), "no node has the role yet");
    let answer = site.send_ok("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web", "db"]}))?;
    assert_eq!(site.tags("n1")?, json!(["mysql", "nginx"]));
    let changes = answer["changes"].as_array().context("changes")?.iter();
    let decided_changes =
        changes.filter(|change| change["field"].as_str().is_some_and(|field| field.starts_with("tags.decided")));
    assert_eq!(decided_changes.count(), 1, "{answer}");
    let questions = site.placement.take_questions();
    let nodes = json!([
        {"name": "n1", "nodegroup": "all", "roles": ["db", "web"], "tags": ["mysql"], "decided": {}},
        {"name": "n2", "nodegroup": "all", "roles": [], "tags": [], "decided": {}},
    ]);
    let pairs = json!([{"node": "n1", "role": "web", "release": "site@1", "tags": ["nginx", "leader"]}]);
    assert_eq!(questions, [json!({"extension": "placement", "cluster": "prod", "asked": pairs, "nodes": nodes})]);

    let explanation = site.fleet.stemma(&["explain", "node", "n1", "tag", "nginx"])?;
    assert!(explanation.contains("extension placement"), "{explanation}");
    let tag_details = site.operator.get("/v1/nodes/n1/tags")?.1;
    assert_eq!(tag_details["decided"]["web"]["extension"], "placement");
    assert_eq!(tag_details["decided"]["web"]["tags"], json!(["nginx"]));

    // A restart of the controller sends no question to the extension, and writes nothing.
    let node_before = site.node("n1")?;
    site.fleet.stop_controller()?;
    site.fleet.start_controller()?;
    site.operator = OperatorClient::from_data(&site.fleet.data(), site.fleet.addresses())?.without_versions();
    assert_eq!(site.node("n1")?["resource_version"], node_before["resource_version"]);
    assert_eq!(site.placement.take_questions(), Vec::<Value>::new());

    // Another write of the node sends no question either. The next question contains the decided tags.
    site.send_ok("PATCH", "/v1/nodes/n1", json!({"description": "first"}))?;
    assert_eq!(site.placement.take_questions(), Vec::<Value>::new());
    site.send_ok("PUT", "/v1/nodes/n2/roles", json!({"roles": ["web"]}))?;
    let questions = site.placement.take_questions();
    assert_eq!(questions[0]["nodes"][0]["decided"], json!({"web": ["nginx"]}));
    assert_eq!(questions[0]["nodes"][0]["tags"], json!(["mysql", "nginx"]));
    Ok(())
}

#[test]
fn write_is_refused_when_extension_answer_is_invalid() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    site.placement.set_reply(|_| (503, "not today".to_owned()));
    site.check_refused("status 503: not today")?;
    site.placement.set_reply(|_| (200, "{\"tags\": [\"nginx\"]}".to_owned()));
    site.check_refused("it is not {\"answers\"")?;
    site.placement.set_reply(|_| (200, "<html>".to_owned()));
    site.check_refused("it is not {\"answers\"")?;
    site.placement.set_reply(|_| (200, "x".repeat(200_000)));
    site.check_refused("the answer is larger than 66560 bytes")?;
    site.placement.set_reply(|_| (200, json!({"answers": []}).to_string()));
    site.check_refused("it has no entry for role web of node n1")?;
    site.placement.set_reply(|_| (200, json!({"answers": [{"node": "n2", "role": "web", "tags": []}]}).to_string()));
    site.check_refused("was not in the question")?;
    for (tag, sentence) in [
        ("nobody-has-it", "declared neither in the release nor in the cluster"),
        ("mysql", "the tag mysql, which is of role db"),
        ("primary-nginx", "is not a valid tag"),
    ] {
        site.placement.set_tags(&[tag]);
        site.check_refused(sentence)?;
    }
    // A tag that no role declares is accepted.
    site.placement.set_tags(&["spare"]);
    site.send_ok("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    assert_eq!(site.tags("n1")?, json!(["spare"]));
    // Without its socket, the extension cannot be reached.
    std::fs::remove_file(&site.placement.path)?;
    let (status, answer) = site.send("PUT", "/v1/nodes/n2/roles", json!({"roles": ["web"]}))?;
    assert_eq!((status, &answer["error"]["type"]), (502, &json!("extension.failed")));
    Ok(())
}

#[test]
fn write_is_refused_when_extension_times_out() -> Result<()> {
    let mut site = ExtensionSite::start_with_timeout(SHORT_TIMEOUT)?;
    // The extension answers only after the write has ended.
    let (done_tx, done_rx) = channel::<()>();
    let done_rx = Mutex::new(done_rx);
    site.placement.set_reply(move |_| {
        let _closed = done_rx.lock().expect("no panic").recv();
        (200, String::new())
    });
    let start = Instant::now();
    site.check_refused("it did not answer within 1s")?;
    let elapsed = start.elapsed();
    drop(done_tx);
    assert!(elapsed >= SHORT_TIMEOUT, "{elapsed:?}");
    Ok(())
}

#[test]
fn release_is_refused_when_extension_is_undeclared() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    let release = json!({"name": "bad", "roles": {"web": {}}, "tasks": [], "extensions": [{"roles": ["web"], "use": "nobody"}]});
    let (status, answer) = site.send("POST", "/v1/releases", release)?;
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("reference.dangling")));
    assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains("extension nobody")), "{answer}");
    Ok(())
}

#[test]
fn concurrent_writers_get_consistent_answers() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    let (question_count, barrier) = (AtomicUsize::new(0), Barrier::new(2));
    // The extension gives the tag `leader` only if no node has the tag. The barrier delays the first two answers until
    // both writers have sent a question.
    site.placement.set_reply(move |question| {
        if question_count.fetch_add(1, Ordering::Relaxed) < 2 {
            barrier.wait();
        }
        let is_leader = |node: &Value| node["tags"].as_array().is_some_and(|tags| tags.contains(&json!("leader")));
        let has_leader = question["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(is_leader));
        (200, answer_body(question, |_| vec![if has_leader { "nginx" } else { "leader" }.to_owned()]))
    });
    let writers = ["n1", "n2"].map(|node| {
        let mut operator = OperatorClient::from_data(&site.fleet.data(), site.fleet.addresses()).expect("a connection");
        std::thread::spawn(move || {
            let path = format!("/v1/nodes/{node}/roles");
            operator.write(&OperatorWrite { method: "PUT", path, body: json!({"roles": ["web"]}), key: Uuid::now_v7() })
        })
    });
    for writer in writers {
        let (status, answer) = writer.join().expect("no panic")?;
        assert_eq!(status, 200, "{answer}");
    }
    let mut tags = [site.tags("n1")?, site.tags("n2")?];
    tags.sort_by_key(Value::to_string);
    assert_eq!(tags, [json!(["leader"]), json!(["nginx"])]);
    Ok(())
}

#[test]
fn decisions_follow_roles_and_keep_manual_unassignment() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    site.placement.set_tags(&["nginx", "leader"]);
    site.send_ok("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    site.send_ok("DELETE", "/v1/nodes/n1/tags", json!({"tags": ["nginx"]}))?;
    assert_eq!(site.tags("n1")?, json!(["leader"]));
    // The operator has unassigned the tag `nginx`. The tag remains unassigned after two more answers of the extension:
    // the first without the tag, the second with the tag.
    for tags in [&["spare"][..], &["nginx", "spare"]] {
        site.placement.set_tags(tags);
        site.fleet.stemma(&["role", "refresh", "n1", "web"])?;
        assert_eq!(site.tags("n1")?, json!(["spare"]));
    }
    // No extension decides the tags of the role `db`.
    let output = site.fleet.cli(&["role", "refresh", "n1", "db"])?;
    assert!(!output.status.success());

    // When a whole group gets the role, the controller sends one question, which does not ask about n1 again.
    site.placement.take_questions();
    site.send_ok("PATCH", "/v1/clusters/prod/nodegroups/all", json!({"roles": ["web"]}))?;
    let questions = site.placement.take_questions();
    assert_eq!((questions.len(), questions[0]["asked"].as_array().map(Vec::len)), (1, Some(1)), "{questions:?}");
    assert_eq!(site.tags("n2")?, json!(["nginx", "spare"]));
    // The cluster changes to a release that does not use the extension, and then back.
    site.send_ok("PATCH", "/v1/clusters/prod", json!({"release": "site@0"}))?;
    assert_eq!(site.tags("n2")?, json!(["leader", "nginx"]));
    assert_eq!(site.operator.get("/v1/nodes/n2/tags")?.1["decided"], json!({}));
    site.placement.set_tags(&["leader"]);
    site.send_ok("PATCH", "/v1/clusters/prod", json!({"release": "site@1"}))?;
    assert_eq!((site.tags("n1")?, site.tags("n2")?), (json!(["leader"]), json!(["leader"])));
    // A node that leaves the cluster has no decided tags.
    site.send_ok("PATCH", "/v1/nodes/n2", json!({"nodegroup": null}))?;
    assert_eq!(site.operator.get("/v1/nodes/n2/tags")?.1["decided"], json!({}));
    Ok(())
}

/// `writes.rs` tests what most writes store. A refresh of roles is tested here, because it needs an extension.
#[test]
fn w15_02_refresh_stores_object_event_and_request_record() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    site.send_ok("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    site.placement.set_tags(&["spare"]);
    let (method, path) = ("POST", "/v1/nodes/n1/roles/refresh".to_owned());
    let refresh = OperatorWrite { method, path, body: json!({"roles": ["web"]}), key: Uuid::now_v7() };
    let (write, status, revision) = write_twice(&mut site.operator, refresh)?;
    assert_eq!(site.tags("n1")?, json!(["spare"]));
    site.fleet.stop_controller()?;
    let stored = StoreCopy::copy_from(&site.fleet.data())?;
    check_commit(&stored, &write, status, revision)?;
    let changed_kinds = stored.audit_event(revision).context("its audit event")?.objects.iter().map(|object| object.kind.word());
    assert_eq!(changed_kinds.collect::<Vec<_>>(), ["node"]);
    stored.check()
}

/// While an extension answers slowly, only those writes wait that assign a role whose tags this extension decides.
#[test]
fn slow_extension_delays_only_writes_of_own_roles() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    let ((question_tx, question_rx), (done_tx, done_rx)) = (channel(), channel::<()>());
    let done_rx = Mutex::new(done_rx);
    site.placement.set_reply(move |question| {
        let _closed = (question_tx.send(()), done_rx.lock().expect("no panic").recv());
        (200, answer_body(question, |_| vec!["nginx".to_owned()]))
    });
    site.hook.set_tags(&["spare"]);
    let mut operator = OperatorClient::from_data(&site.fleet.data(), site.fleet.addresses())?;
    let slow_write = std::thread::spawn(move || {
        let body = json!({"roles": ["web"]});
        let write = OperatorWrite { method: "PUT", path: "/v1/nodes/n1/roles".to_owned(), body, key: Uuid::now_v7() };
        operator.write(&write)
    });
    question_rx.recv_timeout(MAX_WAIT)?;
    site.send_ok("PATCH", "/v1/nodes/n1", json!({"description": "meanwhile"}))?;
    let answer = site.send_ok("PUT", "/v1/nodes/n2/roles", json!({"roles": ["other"]}))?;
    assert!(!slow_write.is_finished(), "the other writes end while the slow write waits for its extension");
    drop(done_tx);
    let slow_response = slow_write.join().expect("no panic")?;
    assert_eq!(slow_response.0, 200, "the slow write succeeds: {}", slow_response.1);
    assert_eq!(answer["roles"], json!(["other"]));
    assert_eq!((site.tags("n1")?, site.tags("n2")?), (json!(["nginx"]), json!(["spare"])));
    assert_eq!(site.node("n1")?["description"], "meanwhile");
    Ok(())
}

/// An extension is a program that the controller asks for the tags of a role. A write that assigns such a role to many
/// nodes sends one question, which contains each node of the cluster once.
#[test]
fn group_role_asks_extension_once() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    let nodes: Vec<Value> =
        (0..1500).map(|number| json!({"kind": "Node", "name": format!("w{number}"), "nodegroup": "prod/all"})).collect();
    site.send_ok("POST", "/v1/apply", json!({"objects": nodes}))?;
    site.send_ok("PATCH", "/v1/clusters/prod/nodegroups/all?dry_run=true", json!({"roles": ["web"]}))?;
    assert_eq!(
        (site.placement.take_questions().len(), site.tags("w7")?),
        (1, json!([])),
        "a dry run sends a question and stores nothing"
    );
    site.send_ok("PATCH", "/v1/clusters/prod/nodegroups/all", json!({"roles": ["web"]}))?;
    let questions = site.placement.take_questions();
    let count = |field: &str| questions[0][field].as_array().map(Vec::len);
    // The cluster has the 1,500 new nodes and two older nodes.
    assert_eq!((questions.len(), count("asked"), count("nodes")), (1, Some(1502), Some(1502)));
    assert_eq!((site.tags("w7")?, site.tags("n1")?), (json!(["nginx"]), json!(["nginx"])));
    Ok(())
}

/// A tag that an extension has given to a node ends when the tag is deleted. The next write of the node removes the tag
/// from the stored decision.
#[test]
fn decision_ends_when_tag_is_deleted() -> Result<()> {
    let mut site = ExtensionSite::start()?;
    site.send_ok("POST", "/v1/clusters/prod/tags", json!({"name": "own"}))?;
    site.placement.set_tags(&["nginx", "own"]);
    site.send_ok("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    assert_eq!(site.tags("n1")?, json!(["nginx", "own"]));
    site.send_ok("DELETE", "/v1/clusters/prod/tags/own", Value::Null)?;
    assert_eq!(site.tags("n1")?, json!(["nginx"]));
    site.send_ok("PATCH", "/v1/nodes/n1", json!({"description": "x"}))?;
    assert_eq!(site.operator.get("/v1/nodes/n1/tags")?.1["decided"]["web"]["tags"], json!(["nginx"]));
    Ok(())
}
