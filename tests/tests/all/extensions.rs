//! Extensions that decide tags: a real controller, and an extension at a real socket that the test answers for.

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
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::{Operator, Write as Sent};
use stemma_tests::program::PATIENCE;
use uuid::Uuid;

use crate::stored::Stored;
use crate::writes::{one, whole};

/// The longest that a controller may be told to wait for an extension: no machine is too busy to answer in that time.
const LONGEST: Duration = Duration::from_secs(10);

/// So long it waits where nobody answers.
const SHORTEST: Duration = Duration::from_secs(1);

/// What the extension does with a question.
type Reply = Arc<dyn Fn(&Value) -> (u16, String) + Send + Sync>;

/// An extension at a socket.
struct Extension {
    path: PathBuf,
    questions: Arc<Mutex<Vec<Value>>>,
    reply: Arc<Mutex<Reply>>,
}

impl Extension {
    /// At a socket.
    fn listen(path: PathBuf) -> Result<Self> {
        let listener = UnixListener::bind(&path)?;
        Ok(Self::serving(path, move || Ok(listener.accept()?.0)))
    }

    /// At a port; its path is the URL.
    fn hook() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?).into();
        Ok(Self::serving(url, move || Ok(listener.accept()?.0)))
    }

    fn serving<S: Read + Write + Send + 'static>(
        path: PathBuf,
        accept: impl Fn() -> std::io::Result<S> + Send + 'static,
    ) -> Self {
        let (questions, reply) = (Arc::default(), Arc::new(Mutex::new(giving(&["nginx"]))));
        let this = Self { path, questions: Arc::clone(&questions), reply: Arc::clone(&reply) };
        std::thread::spawn(move || {
            while let Ok(stream) = accept() {
                let (questions, reply) = (Arc::clone(&questions), Arc::clone(&reply));
                std::thread::spawn(move || serve(stream, &questions, &reply));
            }
        });
        this
    }

    fn replies(&self, reply: impl Fn(&Value) -> (u16, String) + Send + Sync + 'static) {
        *self.reply.lock().expect("nobody panics with it") = Arc::new(reply);
    }

    fn gives(&self, tags: &[&str]) {
        *self.reply.lock().expect("nobody panics with it") = giving(tags);
    }

    /// The questions since the last look.
    fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut self.questions.lock().expect("nobody panics with it"))
    }
}

fn serve(stream: impl Read + Write, questions: &Mutex<Vec<Value>>, reply: &Mutex<Reply>) -> Option<()> {
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
    // Questions that come at once are answered beside each other.
    let reply = Arc::clone(&*reply.lock().ok()?);
    let (status, text) = reply(&question);
    questions.lock().ok()?.push(question);
    let stream = reader.get_mut();
    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}", text.len()).ok()
}

/// Gives each role of each node the same tags.
fn giving(tags: &[&str]) -> Reply {
    let tags: Vec<String> = tags.iter().map(|&tag| tag.to_owned()).collect();
    Arc::new(move |question| (200, answer(question, |_| tags.clone())))
}

fn answer(question: &Value, tags: impl Fn(&Value) -> Vec<String>) -> String {
    let asked = question["asked"].as_array().into_iter().flatten();
    let answers = asked.map(|one| json!({"node": one["node"], "role": one["role"], "tags": tags(one)}));
    json!({"answers": answers.collect::<Vec<_>>()}).to_string()
}

struct Site {
    fleet: Fleet,
    placement: Extension,
    hook: Extension,
    operator: Operator,
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

impl Site {
    fn start() -> Result<Self> {
        Self::waiting(LONGEST)
    }

    /// Whose controller waits so long for the extension `placement`.
    fn waiting(waits: Duration) -> Result<Self> {
        let sockets = tempfile::tempdir()?.keep();
        let placement = Extension::listen(sockets.join("placement.sock"))?;
        let hook = Extension::hook()?;
        let config = format!(
            "[[extension]]\nname = 'placement'\nunix = '{}'\ntimeout_seconds = {}\n[[extension]]\nname = 'hook'\nurl = '{}/tags?site=1'\n",
            placement.path.display(),
            waits.as_secs(),
            hook.path.display()
        );
        let fleet = Fleet::start_with(&config)?;
        let file = fleet.dir().join("site.yaml");
        std::fs::write(&file, SITE)?;
        fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
        let operator = Operator::of(&fleet.data(), fleet.bound())?.without_versions();
        Ok(Self { fleet, placement, hook, operator })
    }

    fn send(&mut self, method: &'static str, path: &str, body: Value) -> Result<(u16, Value)> {
        self.operator.write(&Sent { method, path: path.to_owned(), body, key: Uuid::now_v7() })
    }

    fn done(&mut self, method: &'static str, path: &str, body: Value) -> Result<Value> {
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

    /// Gives a node the role, which must be refused as the extension's failure, and changes nothing.
    fn refused(&mut self, sentence: &str) -> Result<()> {
        let before = self.node("n1")?;
        let (status, answer) = self.send("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
        ensure!((status, &answer["error"]["type"]) == (502, &json!("extension.failed")), "{status} {answer}");
        let message = answer["error"]["message"].as_str().context("a message")?;
        ensure!(message.contains(sentence), "{sentence:?}: {message}");
        ensure!(message.contains("role web of node n1") && message.ends_with("nothing was changed"), "{message}");
        let after = self.node("n1")?;
        let is_same = |field: &str| after[field] == before[field];
        ensure!(
            ["resource_version", "generation", "roles", "tags"].into_iter().all(is_same),
            "{after} is not {before}"
        );
        Ok(())
    }
}

#[test]
fn what_an_extension_answers_stands_in_the_place_of_the_roles_tags() -> Result<()> {
    let mut site = Site::start()?;
    assert!(site.placement.asked().is_empty(), "nobody has the role yet");
    let given = site.done("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web", "db"]}))?;
    assert_eq!(site.tags("n1")?, json!(["mysql", "nginx"]));
    let changed = given["changes"].as_array().context("changes")?.iter();
    let decided =
        changed.filter(|change| change["field"].as_str().is_some_and(|field| field.starts_with("tags.decided")));
    assert_eq!(decided.count(), 1, "{given}");
    let asked = site.placement.asked();
    let nodes = json!([
        {"name": "n1", "nodegroup": "all", "roles": ["db", "web"], "tags": ["mysql"], "decided": {}},
        {"name": "n2", "nodegroup": "all", "roles": [], "tags": [], "decided": {}},
    ]);
    let about = json!([{"node": "n1", "role": "web", "release": "site@1", "tags": ["nginx", "leader"]}]);
    assert_eq!(asked, [json!({"extension": "placement", "cluster": "prod", "asked": about, "nodes": nodes})]);

    let why = site.fleet.stemma(&["explain", "node", "n1", "tag", "nginx"])?;
    assert!(why.contains("extension placement"), "{why}");
    let shown = site.operator.get("/v1/nodes/n1/tags")?.1;
    assert_eq!(shown["decided"]["web"]["extension"], "placement");
    assert_eq!(shown["decided"]["web"]["tags"], json!(["nginx"]));

    // A restart asks nothing and rewrites nothing.
    let before = site.node("n1")?;
    site.fleet.stop_controller()?;
    site.fleet.start_controller()?;
    site.operator = Operator::of(&site.fleet.data(), site.fleet.bound())?.without_versions();
    assert_eq!(site.node("n1")?["resource_version"], before["resource_version"]);
    assert_eq!(site.placement.asked(), Vec::<Value>::new());

    // Nor does another write of the node, and what is decided is told with the next question.
    site.done("PATCH", "/v1/nodes/n1", json!({"description": "first"}))?;
    assert_eq!(site.placement.asked(), Vec::<Value>::new());
    site.done("PUT", "/v1/nodes/n2/roles", json!({"roles": ["web"]}))?;
    let asked = site.placement.asked();
    assert_eq!(asked[0]["nodes"][0]["decided"], json!({"web": ["nginx"]}));
    assert_eq!(asked[0]["nodes"][0]["tags"], json!(["mysql", "nginx"]));
    Ok(())
}

#[test]
fn what_is_no_answer_refuses_the_write() -> Result<()> {
    let mut site = Site::start()?;
    site.placement.replies(|_| (503, "not today".to_owned()));
    site.refused("status 503: not today")?;
    site.placement.replies(|_| (200, "{\"tags\": [\"nginx\"]}".to_owned()));
    site.refused("it is not {\"answers\"")?;
    site.placement.replies(|_| (200, "<html>".to_owned()));
    site.refused("it is not {\"answers\"")?;
    site.placement.replies(|_| (200, "x".repeat(200_000)));
    site.refused("the answer is larger than 66560 bytes")?;
    site.placement.replies(|_| (200, json!({"answers": []}).to_string()));
    site.refused("it says nothing of role web of node n1")?;
    site.placement.replies(|_| (200, json!({"answers": [{"node": "n2", "role": "web", "tags": []}]}).to_string()));
    site.refused("was not asked about")?;
    for (tag, sentence) in [
        ("nobody-has-it", "declared neither in the release nor in the cluster"),
        ("mysql", "the tag mysql, which is of role db"),
        ("primary-nginx", "is none"),
    ] {
        site.placement.gives(&[tag]);
        site.refused(sentence)?;
    }
    // A tag that no role declares may be given.
    site.placement.gives(&["spare"]);
    site.done("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    assert_eq!(site.tags("n1")?, json!(["spare"]));
    std::fs::remove_file(&site.placement.path)?;
    let (status, answer) = site.send("PUT", "/v1/nodes/n2/roles", json!({"roles": ["web"]}))?;
    assert_eq!((status, &answer["error"]["type"]), (502, &json!("extension.failed")));
    Ok(())
}

#[test]
fn an_extension_that_does_not_answer_refuses_the_write_when_its_time_is_over() -> Result<()> {
    let mut site = Site::waiting(SHORTEST)?;
    // It answers when the write is over.
    let (over, until_over) = channel::<()>();
    let until_over = Mutex::new(until_over);
    site.placement.replies(move |_| {
        let _over = until_over.lock().expect("nobody panics with it").recv();
        (200, String::new())
    });
    let begun = Instant::now();
    site.refused("it did not answer within 1s")?;
    let waited = begun.elapsed();
    drop(over);
    assert!(waited >= SHORTEST, "{waited:?}");
    Ok(())
}

#[test]
fn an_extension_that_is_not_declared_is_found_where_it_is_named() -> Result<()> {
    let mut site = Site::start()?;
    let release =
        json!({"name": "bad", "roles": {"web": {}}, "tasks": [], "extensions": [{"roles": ["web"], "use": "nobody"}]});
    let (status, answer) = site.send("POST", "/v1/releases", release)?;
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("reference.dangling")));
    assert!(answer["error"]["message"].as_str().is_some_and(|said| said.contains("extension nobody")), "{answer}");
    Ok(())
}

#[test]
fn two_writers_at_once_get_no_answers_that_contradict() -> Result<()> {
    let mut site = Site::start()?;
    let (asked, both) = (AtomicUsize::new(0), Barrier::new(2));
    // The first to have the role leads. Both writers have asked before either is answered.
    site.placement.replies(move |question| {
        if asked.fetch_add(1, Ordering::Relaxed) < 2 {
            both.wait();
        }
        let leads = |node: &Value| node["tags"].as_array().is_some_and(|tags| tags.contains(&json!("leader")));
        let led = question["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(leads));
        (200, answer(question, |_| vec![if led { "nginx" } else { "leader" }.to_owned()]))
    });
    let writers = ["n1", "n2"].map(|node| {
        let mut operator = Operator::of(&site.fleet.data(), site.fleet.bound()).expect("a connection");
        std::thread::spawn(move || {
            let path = format!("/v1/nodes/{node}/roles");
            operator.write(&Sent { method: "PUT", path, body: json!({"roles": ["web"]}), key: Uuid::now_v7() })
        })
    });
    for writer in writers {
        let (status, answer) = writer.join().expect("it ends")?;
        assert_eq!(status, 200, "{answer}");
    }
    let mut tags = [site.tags("n1")?, site.tags("n2")?];
    tags.sort_by_key(Value::to_string);
    assert_eq!(tags, [json!(["leader"]), json!(["nginx"])]);
    Ok(())
}

#[test]
fn decisions_go_with_their_roles_and_what_was_said_by_hand_stays() -> Result<()> {
    let mut site = Site::start()?;
    site.placement.gives(&["nginx", "leader"]);
    site.done("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    site.done("DELETE", "/v1/nodes/n1/tags", json!({"tags": ["nginx"]}))?;
    assert_eq!(site.tags("n1")?, json!(["leader"]));
    // Asked again, also without the tag in between, the word of an operator stands.
    for tags in [&["spare"][..], &["nginx", "spare"]] {
        site.placement.gives(tags);
        site.fleet.stemma(&["role", "refresh", "n1", "web"])?;
        assert_eq!(site.tags("n1")?, json!(["spare"]));
    }
    let refused = site.fleet.cli(&["role", "refresh", "n1", "db"])?;
    assert!(!refused.status.success());

    // A whole group gets the role: one question, and what n1 has is not asked again.
    site.placement.asked();
    site.done("PATCH", "/v1/clusters/prod/nodegroups/all", json!({"roles": ["web"]}))?;
    let asked = site.placement.asked();
    assert_eq!((asked.len(), asked[0]["asked"].as_array().map(Vec::len)), (1, Some(1)), "{asked:?}");
    assert_eq!(site.tags("n2")?, json!(["nginx", "spare"]));
    // A release that asks nobody, and back.
    site.done("PATCH", "/v1/clusters/prod", json!({"release": "site@0"}))?;
    assert_eq!(site.tags("n2")?, json!(["leader", "nginx"]));
    assert_eq!(site.operator.get("/v1/nodes/n2/tags")?.1["decided"], json!({}));
    site.placement.gives(&["leader"]);
    site.done("PATCH", "/v1/clusters/prod", json!({"release": "site@1"}))?;
    assert_eq!((site.tags("n1")?, site.tags("n2")?), (json!(["leader"]), json!(["leader"])));
    // Out of the cluster nothing decided is left.
    site.done("PATCH", "/v1/nodes/n2", json!({"nodegroup": null}))?;
    assert_eq!(site.operator.get("/v1/nodes/n2/tags")?.1["decided"], json!({}));
    Ok(())
}

/// `writes.rs` makes every other write so; this one needs an extension that answers.
#[test]
fn w15_02_asking_again_leaves_object_image_audit_event_and_request_record() -> Result<()> {
    let mut site = Site::start()?;
    site.done("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    site.placement.gives(&["spare"]);
    let (method, path) = ("POST", "/v1/nodes/n1/roles/refresh".to_owned());
    let refresh = Sent { method, path, body: json!({"roles": ["web"]}), key: Uuid::now_v7() };
    let (write, status, revision) = one(&mut site.operator, refresh)?;
    assert_eq!(site.tags("n1")?, json!(["spare"]));
    site.fleet.stop_controller()?;
    let stored = Stored::copied(&site.fleet.data())?;
    whole(&stored, &write, status, revision)?;
    let changed = stored.event(revision).context("its audit event")?.objects.iter().map(|object| object.kind.word());
    assert_eq!(changed.collect::<Vec<_>>(), ["node"]);
    stored.check()
}

/// One that is slow keeps nobody waiting who asks another, or none, and those who write meanwhile go on.
#[test]
fn a_slow_extension_is_waited_for_by_those_alone_who_ask_it() -> Result<()> {
    let mut site = Site::start()?;
    let ((asks, is_asked), (over, until_over)) = (channel(), channel::<()>());
    let until_over = Mutex::new(until_over);
    site.placement.replies(move |question| {
        let _over = (asks.send(()), until_over.lock().expect("nobody panics with it").recv());
        (200, answer(question, |_| vec!["nginx".to_owned()]))
    });
    site.hook.gives(&["spare"]);
    let mut other = Operator::of(&site.fleet.data(), site.fleet.bound())?;
    let slow = std::thread::spawn(move || {
        let body = json!({"roles": ["web"]});
        let sent = Sent { method: "PUT", path: "/v1/nodes/n1/roles".to_owned(), body, key: Uuid::now_v7() };
        other.write(&sent)
    });
    is_asked.recv_timeout(PATIENCE)?;
    site.done("PATCH", "/v1/nodes/n1", json!({"description": "meanwhile"}))?;
    let asked = site.done("PUT", "/v1/nodes/n2/roles", json!({"roles": ["other"]}))?;
    assert!(!slow.is_finished(), "both were written while the extension was waited for");
    drop(over);
    let written = slow.join().expect("it ends")?;
    assert_eq!(written.0, 200, "the write of the same node is made all the same: {}", written.1);
    assert_eq!(asked["roles"], json!(["other"]));
    assert_eq!((site.tags("n1")?, site.tags("n2")?), (json!(["nginx"]), json!(["spare"])));
    assert_eq!(site.node("n1")?["description"], "meanwhile");
    Ok(())
}

/// However many nodes get a role by a write, there is one question, and each node of the cluster stands in it once.
#[test]
fn a_group_that_gets_a_role_is_one_question() -> Result<()> {
    let mut site = Site::start()?;
    let nodes: Vec<Value> =
        (0..1500).map(|n| json!({"kind": "Node", "name": format!("w{n}"), "nodegroup": "prod/all"})).collect();
    site.done("POST", "/v1/apply", json!({"objects": nodes}))?;
    site.done("PATCH", "/v1/clusters/prod/nodegroups/all?dry_run=true", json!({"roles": ["web"]}))?;
    assert_eq!((site.placement.asked().len(), site.tags("w7")?), (1, json!([])), "tried out, and nothing stored");
    site.done("PATCH", "/v1/clusters/prod/nodegroups/all", json!({"roles": ["web"]}))?;
    let asked = site.placement.asked();
    let count = |field: &str| asked[0][field].as_array().map(Vec::len);
    assert_eq!((asked.len(), count("asked"), count("nodes")), (1, Some(1502), Some(1502)));
    assert_eq!((site.tags("w7")?, site.tags("n1")?), (json!(["nginx"]), json!(["nginx"])));
    Ok(())
}

/// A decided tag that nothing declares any more is left out, said, and gone with the next write of the node.
#[test]
fn a_decision_outlives_no_tag() -> Result<()> {
    let mut site = Site::start()?;
    site.done("POST", "/v1/clusters/prod/tags", json!({"name": "own"}))?;
    site.placement.gives(&["nginx", "own"]);
    site.done("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?;
    assert_eq!(site.tags("n1")?, json!(["nginx", "own"]));
    site.done("DELETE", "/v1/clusters/prod/tags/own", Value::Null)?;
    assert_eq!(site.tags("n1")?, json!(["nginx"]));
    site.done("PATCH", "/v1/nodes/n1", json!({"description": "x"}))?;
    assert_eq!(site.operator.get("/v1/nodes/n1/tags")?.1["decided"]["web"]["tags"], json!(["nginx"]));
    Ok(())
}
