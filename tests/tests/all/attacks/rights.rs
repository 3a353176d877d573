//! Who reached what others have: by what they use up, by what they know, by a name that was given anew, and by a clock. What each attack
//! costs the controller is measured as well.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain::Plain;
use stemma_tests::program::{PATIENCE, eventually, succeed};

use super::{JSON, JSON_PATCH, MERGE_PATCH, MIB, ask, begin, is_served_within, token_within, until_resolved};
use crate::clocks::Dial;
use crate::description::post;

/// No token: who shows none on the plain listener is an admin of the fleet.
const ADMIN: &str = "";

/// How many tokens a principal may have that are good (docs/access.md).
const MOST_TOKENS: usize = 64;

/// How often a principal is refused: as often as is written in a minute.
const REFUSALS: usize = 10;

/// Does something for each at the same time, and gives what each gave, in their order.
fn for_each_at_once<T: Sync, R: Send>(of: &[T], make: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let make = &make;
    std::thread::scope(|scope| {
        let made: Vec<_> = of.iter().map(|one| scope.spawn(move || make(one))).collect();
        made.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    })
}

/// What a principal reads, also where it comes in pieces.
fn read(site: &str, token: &str, path: &str) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", "-H", &format!("x-auth-token: {token}")]);
    let output = curl.arg(format!("{site}{path}")).output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The entries of a list. It is of one page.
fn entries(list: &Value, key: &str) -> Result<Vec<Value>> {
    ensure!(list["next"].is_null(), "there is another page: {}", list["next"]);
    Ok(list[key].as_array().with_context(|| list.to_string())?.clone())
}

/// Two clusters with a group each.
fn two_clusters() -> Vec<Value> {
    let cluster = |name: &str| {
        [json!({"kind": "Cluster", "name": name}), json!({"kind": "NodeGroup", "cluster": name, "name": "web"})]
    };
    ["own", "far"].into_iter().flat_map(cluster).collect()
}

/// All entries of the audit that a principal is told of.
fn audit(site: &str, token: &str) -> Result<Vec<Value>> {
    entries(&read(site, token, "/v1/audit?limit=1000")?, "audit")
}

/// Waits until an admin is told of so many refusals: they are written a little later than they are answered.
fn until_refusals_are_told(site: &str, count: usize) -> Result<()> {
    eventually("the refusals stand in the audit", || {
        let refused = entries(&read(site, ADMIN, "/v1/audit?refused=true&limit=1000")?, "audit")?;
        ensure!(refused.len() == count, "{} of {count}", refused.len());
        Ok(())
    })
}

/// Is refused so often, as who writes what is not of its cluster.
fn be_refused(site: &str, token: &str, count: usize) -> Result<()> {
    let body = serde_json::to_vec(&json!({"name": "foreign"}))?;
    for _ in 0..count {
        let told = ask(site, token, "POST /v1/clustertemplates", (JSON, &body))?;
        ensure!(told.status == 403, "{} {}", told.status, told.body);
    }
    Ok(())
}

/// Makes so many tokens of a principal; `by` is the token of who makes them.
fn make_tokens(site: &str, by: &str, name: &str, count: usize) -> Result<Vec<String>> {
    let mut made = Vec::new();
    for _ in 0..count {
        let told = ask(site, by, &format!("POST /v1/principals/{name}/tokens"), (JSON, b"{}"))?;
        ensure!(told.status == 201, "{name}, after {}: {} {}", made.len(), told.status, told.body);
        let one: Value = serde_json::from_str(&told.body)?;
        made.push(one["token"].as_str().context("a token")?.to_owned());
    }
    Ok(made)
}

/// How those are answered who show these tokens.
fn statuses(site: &str, tokens: &[String]) -> Result<BTreeSet<u16>> {
    tokens.iter().map(|token| Ok(ask(site, token, "GET /v1/nodes?limit=1", (JSON, b""))?.status)).collect()
}

/// The kind of a body, with the lines of a head that follow it: a key by which the request can be sent again, and the reason for the audit.
fn kept_under(kind: &str, key: &str, reason: &str) -> String {
    format!("{kind}\r\nidempotency-key: {key}\r\nstemma-reason: {reason}")
}

/// The key of a request.
fn key(number: usize) -> String {
    format!("0198c0de-0000-7000-8000-{number:012}")
}

/// What a node is to run, by the ids of its tasks, and the codes of what is found of it.
fn resolved(site: &str, token: &str, node: &str) -> Result<(Vec<String>, Vec<String>)> {
    let told = read(site, token, &format!("/v1/nodes/{node}/resolved"))?;
    let text = |one: &Value| one.as_str().unwrap_or_default().to_owned();
    let tasks = told["tasks"].as_array().with_context(|| told.to_string())?;
    let findings = told["findings"].as_array().with_context(|| told.to_string())?;
    Ok((tasks.iter().map(text).collect(), findings.iter().map(|one| text(&one["code"])).collect()))
}

/// Two clusters with a release, whose nodes have so many costly conditions each, and a cheap one.
fn clusters_with_conditions(site: &str, conditions: usize) -> Result<()> {
    let script = json!({"script": "true"});
    let task = |id: String, condition: String| json!({"id": id, "type": "shell", "roles": ["web"], "condition": condition, "parameters": script});
    // Some 48,000 steps each. Each has its own text, so that nothing is shared between them.
    let each = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let costly = (0..conditions).map(|n| task(format!("c-{n:03}"), format!("{each} || '{n}' == '{n}'")));
    let cheap = task("z-cheap".to_owned(), "labels.zone != ''".to_owned());
    let tasks: Vec<Value> = costly.chain([cheap]).collect();
    post(site, "/v1/releases", &json!({"name": "site", "version": "1", "roles": {"web": {}}, "tasks": tasks}))?;
    let many: Vec<usize> = (0..50).collect();
    for name in ["a", "b"] {
        let objects = json!([
            {"kind": "Cluster", "name": name, "release": "site@1", "parameters": {"many": many}},
            {"kind": "NodeGroup", "cluster": name, "name": "g", "roles": ["web"]},
        ]);
        post(site, "/v1/apply", &json!({"objects": objects}))?;
    }
    Ok(())
}

/// The body of an apply of nodes of a cluster of these numbers.
fn zoned(cluster: &str, numbers: Range<usize>) -> Value {
    let node = |n: usize| {
        let name = format!("{cluster}{n}");
        json!({"kind": "Node", "name": name, "nodegroup": format!("{cluster}/g"), "labels": {"zone": name}})
    };
    json!({"objects": numbers.map(node).collect::<Vec<_>>()})
}

/// A node of a cluster of five may take 4,000,000 steps, and one of a thousand 31,250 (docs/adr/0014), which one of the conditions takes
/// alone. As long as all nodes of the fleet shared a budget, each had 62,500. Of each condition that is undecided on a node some 3 KiB are
/// kept with what is said of it, so 60 MiB; the bound is more than twice that.
#[test]
fn x04_f06_a_thousand_nodes_with_many_conditions_take_nothing_from_a_condition_of_another_cluster() -> Result<()> {
    const CONDITIONS: usize = 20;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    clusters_with_conditions(&at, CONDITIONS)?;
    let otto = token_within(&at, "otto", "operator", Some("a"))?;
    let vera = token_within(&at, "vera", "viewer", Some("b"))?;
    post(&at, "/v1/apply", &zoned("b", 0..5))?;
    until_resolved(&at, ADMIN)?;
    let alone = resolved(&at, &vera, "b0")?;
    ensure!(alone.0.len() == CONDITIONS + 1 && alone.1.is_empty(), "{alone:?}");
    let before = site.most_memory()?;
    let body = serde_json::to_vec(&zoned("a", 0..1_000))?;
    let told = ask(&at, &otto, "POST /v1/apply", (JSON, &body))?;
    ensure!(told.status == 200, "{} {}", told.status, told.body);
    until_resolved(&at, ADMIN)?;
    // Also a node that comes after them has its conditions decided and its tasks placed.
    post(&at, "/v1/apply", &zoned("b", 5..6))?;
    until_resolved(&at, ADMIN)?;
    for node in ["b0", "b4", "b5"] {
        let beside = resolved(&at, &vera, node)?;
        ensure!(beside == alone, "{node}: {beside:?}, and {alone:?} without the thousand");
    }
    let (tasks, findings) = resolved(&at, &otto, "a7")?;
    ensure!(tasks == ["z-cheap"], "the thousand pay for themselves: {tasks:?}");
    ensure!(findings == ["condition.failed"; CONDITIONS], "{findings:?}");
    is_served_within(&site, before, 160 * MIB)?;
    site.stop()
}

/// The principals with their tokens take some 10 MiB of the store with what they were before. Of the store's pages and last changes 80 MiB
/// at most are in memory; the bound is a little more.
#[test]
fn x04_f10_no_token_that_an_admin_of_a_cluster_made_is_good_for_the_fleet() -> Result<()> {
    const MOST: u64 = 96 * MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    post(&at, "/v1/clusters", &json!({"name": "own"}))?;
    let ada = token_within(&at, "ada", "admin", Some("own"))?;
    let before = site.most_memory()?;
    let names: Vec<String> = (0..16).map(|n| format!("p{n}")).collect();
    // As many as a principal may have, all but one by the admin of the cluster.
    let made = for_each_at_once(&names, |name| {
        let body = serde_json::to_vec(&json!({"name": name, "role": "operator", "cluster": "own"}))?;
        let told = ask(&at, &ada, "POST /v1/principals", (JSON, &body))?;
        ensure!(told.status == 201, "{name}: {} {}", told.status, told.body);
        let of_ada = make_tokens(&at, &ada, name, MOST_TOKENS - 1)?;
        Ok((of_ada, make_tokens(&at, ADMIN, name, 1)?))
    })?;
    let told = ask(&at, &ada, "POST /v1/principals/p0/tokens", (JSON, b"{}"))?;
    ensure!(told.status == 429, "one more than a principal may have: {} {}", told.status, told.body);
    let answered = for_each_at_once(&made, |(of_ada, _)| statuses(&at, of_ada))?;
    ensure!(answered.iter().all(|answered| *answered == BTreeSet::from([200])), "all are good: {answered:?}");

    let grow = serde_json::to_vec(&json!({"role": "admin", "cluster": null}))?;
    let told = ask(&at, &ada, "PATCH /v1/principals/p0", (MERGE_PATCH, &grow))?;
    ensure!(told.status == 403, "ada gives nobody the fleet: {} {}", told.status, told.body);
    for name in &names {
        for query in ["?dry_run=true", ""] {
            let told = ask(&at, ADMIN, &format!("PATCH /v1/principals/{name}{query}"), (MERGE_PATCH, &grow))?;
            ensure!(told.status == 200, "{name}: {} {}", told.status, told.body);
            let changed: Value = serde_json::from_str(&told.body)?;
            let changes = changed["changes"].as_array().context("changes")?;
            let ended = changes.iter().filter(|change| change["old"] == "good").count();
            ensure!(ended == MOST_TOKENS - 1, "{name}{query}: each that ends is told: {ended}");
        }
    }
    // Whoever shows too many that are none is told to wait, and let in no more for that.
    let refused = BTreeSet::from([401, 503]);
    let answered = for_each_at_once(&made, |(of_ada, _)| statuses(&at, of_ada))?;
    ensure!(answered.iter().all(|answered| answered.is_subset(&refused)), "none is good: {answered:?}");
    let answered = for_each_at_once(&made, |(_, own)| statuses(&at, own))?;
    ensure!(answered.iter().all(|answered| *answered == BTreeSet::from([200])), "what another made: {answered:?}");
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// How many nodes are written at the same time.
const HANDS: usize = 8;
/// How often each of them is written.
const WRITES: usize = 120;

/// The entries of the audit that are under the name of the principal that was made anew.
fn of_otto(site: &str, token: &str) -> Result<usize> {
    Ok(audit(site, token)?.iter().filter(|entry| entry["principal"] == "otto").count())
}

/// How the requests that were made under all the keys are answered by now.
fn records(site: &str, token: &str) -> Result<BTreeSet<u16>> {
    let hands: Vec<usize> = (0..HANDS).collect();
    let answered = for_each_at_once(&hands, |hand| {
        let numbers = hand * WRITES..(hand + 1) * WRITES;
        let status = |number: usize| -> Result<u16> {
            Ok(ask(site, token, &format!("GET /v1/requests/{}", key(number)), (JSON, b""))?.status)
        };
        numbers.map(status).collect::<Result<BTreeSet<u16>>>()
    })?;
    Ok(answered.into_iter().flatten().collect())
}

/// What the first one does: it writes with reasons and keys, is refused, and makes a join token.
fn act(site: &str, otto: &str) -> Result<()> {
    let hands: Vec<usize> = (0..HANDS).collect();
    for_each_at_once(&hands, |hand| {
        for number in hand * WRITES..(hand + 1) * WRITES {
            let patch = json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>4000}")}]);
            let kind = kept_under(JSON_PATCH, &key(number), &format!("ticket {number}"));
            let told = ask(site, otto, &format!("PATCH /v1/nodes/n{hand}"), (&kind, &serde_json::to_vec(&patch)?))?;
            ensure!(told.status == 200, "{number}: {} {}", told.status, told.body);
        }
        Ok(())
    })?;
    let body = serde_json::to_vec(&json!({"nodegroup": "own/web"}))?;
    let told = ask(site, otto, "POST /v1/join-tokens", (JSON, &body))?;
    ensure!(told.status == 201, "{} {}", told.status, told.body);
    be_refused(site, otto, REFUSALS)?;
    until_refusals_are_told(site, REFUSALS)
}

/// Some 15 MiB are stored. Of the store's pages and last changes 80 MiB at most are in memory; the bound is half as much again.
#[test]
fn x04_f11_a_principal_of_a_name_that_had_another_sees_nothing_of_that_one() -> Result<()> {
    const MOST: u64 = 120 * MIB;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let nodes = (0..HANDS).map(|n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "own/web"}));
    let objects: Vec<Value> = two_clusters().into_iter().chain(nodes).collect();
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let vera = token_within(&at, "vera", "viewer", Some("own"))?;
    let wim = token_within(&at, "wim", "viewer", Some("far"))?;
    let first = token_within(&at, "otto", "operator", Some("own"))?;
    let before = site.most_memory()?;
    act(&at, &first)?;
    let all = HANDS * WRITES + 1 + REFUSALS;
    let told = [of_otto(&at, ADMIN)?, of_otto(&at, &vera)?, of_otto(&at, &wim)?];
    ensure!(told == [all, all, 0], "who sees the first one sees what it did: {told:?}");
    ensure!(records(&at, &first)? == BTreeSet::from([200]), "its own requests");

    let told = ask(&at, ADMIN, "DELETE /v1/principals/otto", (JSON, b""))?;
    ensure!(told.status == 204, "{} {}", told.status, told.body);
    let second = token_within(&at, "otto", "operator", Some("far"))?;
    let told = [of_otto(&at, &second)?, of_otto(&at, &wim)?, of_otto(&at, ADMIN)?];
    ensure!(told == [0, 0, all], "the second one has done nothing yet: {told:?}");
    let seen = json!([audit(&at, &second)?, audit(&at, &wim)?]).to_string();
    ensure!(!seen.contains("ticket") && !seen.contains("auth.forbidden"), "{seen}");
    let named = read(&at, &second, "/v1/audit?principal=otto&limit=1000")?;
    ensure!(entries(&named, "audit")?.is_empty(), "{named}");
    ensure!(records(&at, &second)? == BTreeSet::from([404]), "requests of another");
    let left = read(&at, ADMIN, "/v1/join-tokens")?;
    ensure!(entries(&left, "tokens")?.is_empty(), "its join token ended with the first one: {left}");
    let body = serde_json::to_vec(&json!({"nodegroup": "far/web"}))?;
    let kind = kept_under(JSON, &key(0), "ticket of the second");
    let told = ask(&at, &second, "POST /v1/join-tokens", (&kind, &body))?;
    ensure!(told.status == 201, "its key is its own: {} {}", told.status, told.body);
    ensure!(of_otto(&at, &wim)? == 1, "who sees the second one sees what it did");
    let told = ask(&at, &first, "GET /v1/nodes", (JSON, b""))?;
    ensure!(told.status == 401, "the token of the first one: {} {}", told.status, told.body);
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// What principals made and did that ends by time: tokens, join tokens with the keys of their requests, and refusals.
struct Lasting {
    tokens: Vec<Vec<String>>,
    join_tokens: Vec<Vec<Value>>,
}

/// How many join tokens each principal makes.
const JOIN_TOKENS: usize = 40;

/// A join token, under a key of this principal's own.
fn join_token(site: &str, token: &str, (principal, nth): (usize, usize)) -> Result<Value> {
    let body = serde_json::to_vec(&json!({"nodegroup": "own/web"}))?;
    let kind = kept_under(JSON, &key(principal * JOIN_TOKENS + nth), "a host");
    let told = ask(site, token, "POST /v1/join-tokens", (&kind, &body))?;
    ensure!(told.status == 201, "{} {}", told.status, told.body);
    Ok(serde_json::from_str::<Value>(&told.body)?["id"].clone())
}

impl Lasting {
    /// Of so many principals.
    fn make(site: &str, principals: usize) -> Result<Self> {
        let numbers: Vec<usize> = (0..principals).collect();
        let made = for_each_at_once(&numbers, |number| {
            let name = format!("p{number}");
            post(site, "/v1/principals", &json!({"name": name, "role": "operator", "cluster": "own"}))?;
            let tokens = make_tokens(site, ADMIN, &name, MOST_TOKENS)?;
            let join = |nth| join_token(site, &tokens[0], (*number, nth));
            let join_tokens = (0..JOIN_TOKENS).map(join).collect::<Result<Vec<Value>>>()?;
            be_refused(site, &tokens[0], REFUSALS)?;
            Ok((tokens, join_tokens))
        })?;
        until_refusals_are_told(site, principals * REFUSALS)?;
        let (tokens, join_tokens) = made.into_iter().unzip();
        Ok(Self { tokens, join_tokens })
    }

    /// All tokens are good, and each request that is sent again is answered as before.
    fn is_good(&self, site: &str) -> Result<()> {
        let answered = for_each_at_once(&self.tokens, |tokens| statuses(site, tokens))?;
        ensure!(answered.iter().all(|answered| *answered == BTreeSet::from([200])), "{answered:?}");
        let numbers: Vec<usize> = (0..self.tokens.len()).collect();
        let again = for_each_at_once(&numbers, |number| {
            let join = |nth| join_token(site, &self.tokens[*number][0], (*number, nth));
            (0..JOIN_TOKENS).map(join).collect::<Result<Vec<Value>>>()
        })?;
        ensure!(again == self.join_tokens, "{again:?}, and it was {:?}", self.join_tokens);
        Ok(())
    }
}

/// What an admin is told of join tokens and refusals.
fn told_of_what_ends(site: &str) -> Result<Value> {
    let join_tokens = entries(&read(site, ADMIN, "/v1/join-tokens?limit=1000")?, "tokens")?;
    let refused = entries(&read(site, ADMIN, "/v1/audit?refused=true&limit=1000")?, "audit")?;
    Ok(json!({"join tokens": join_tokens, "refused": refused}))
}

/// The certificates that the first admin is told to have.
fn certificates(site: &str) -> Result<Vec<Value>> {
    entries(&read(site, ADMIN, "/v1/principals/admin")?, "certificates")
}

/// Waits until the controller says of its clock whether it is suspect, and what its store has.
fn says_of_its_clock(site: &str, is_suspect: bool) -> Result<()> {
    let said = format!("\nstemma_clock_suspect {}\n", u8::from(is_suspect));
    eventually("what is said of the clock", || {
        let metrics = ask(site, ADMIN, "GET /metrics", (JSON, b""))?.body;
        let has_counted = metrics.contains("\nstemma_store_bytes{of=\"requests\"}");
        ensure!(metrics.contains(&said) && has_counted, "{metrics}");
        Ok(())
    })
}

/// Some 5 MiB are stored, with what principals were before. The bound is what the store keeps of its pages at most.
#[test]
fn x04_f12_by_a_clock_that_is_400_days_ahead_no_token_record_or_refusal_is_dropped() -> Result<()> {
    const MOST: u64 = 64 * MIB;
    let dir = tempfile::tempdir()?;
    let Some(dial) = Dial::new(dir.path())? else { return Ok(()) };
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let objects = json!([{"kind": "Cluster", "name": "own"}, {"kind": "NodeGroup", "cluster": "own", "name": "web"}]);
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let before = site.most_memory()?;
    let lasting = Lasting::make(&at, 8)?;
    let (told, known) = (told_of_what_ends(&at)?, certificates(&at)?);
    ensure!(known.len() == 1, "the certificate that `init` made: {known:?}");

    dial.set("+400d")?;
    let site = site.restarted_under(&dial.words)?;
    let at = site.bound.admin.clone();
    says_of_its_clock(&at, true)?;
    let socket = format!("unix:{}", site.data().join("admin.sock").display());
    let to = dir.path().join("again").display().to_string();
    succeed("stemma", ["--server", socket.as_str(), "cert", "create", "admin", "--to", to.as_str()])?;
    // All that it had have ended by this clock, and those it is given now by the next one: more than are listed of one principal.
    make_tokens(&at, ADMIN, "p0", MOST_TOKENS)?;
    dial.set("+800d")?;
    make_tokens(&at, ADMIN, "p0", 1)?;
    let ahead = told_of_what_ends(&at)?;
    ensure!(ahead == told, "while the clock is ahead: {ahead}, and it was {told}");
    is_served_within(&site, before, MOST)?;

    dial.set("+0")?;
    says_of_its_clock(&at, false)?;
    lasting.is_good(&at)?;
    let after = told_of_what_ends(&at)?;
    ensure!(after == told, "when it is right again: {after}, and it was {told}");
    let certificates = certificates(&at)?;
    ensure!(certificates.len() == 2 && certificates[0] == known[0], "{certificates:?}");
    is_served_within(&site, before, MOST)?;
    site.stop()
}

/// The last change that a stream of events is read to.
const LAST: &str = "the-last-change";

/// The next piece of a body that goes in pieces.
fn piece(reader: &mut impl BufRead) -> Result<String> {
    let mut size = String::new();
    reader.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim_end(), 16).with_context(|| format!("no size: {size:?}"))?;
    ensure!(size > 0, "the stream ends");
    let mut piece = vec![0; size + 2];
    reader.read_exact(&mut piece)?;
    piece.truncate(size);
    Ok(String::from_utf8(piece)?)
}

/// All that a principal is told by events from the first revision on, up to the last change.
fn told_by_events(site: &str, token: &str) -> Result<String> {
    let (stream, status) = begin(site, token, "GET /v1/events?from=1", &[])?;
    ensure!(status == 200, "{status}");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the head has no end");
    }
    let (mut told, began) = (String::new(), Instant::now());
    loop {
        // A comment comes every 30 seconds, so a read ends in any case.
        ensure!(began.elapsed() < PATIENCE, "the last change is not among {} bytes", told.len());
        let looked_at = told.len().saturating_sub(LAST.len());
        let next = piece(&mut reader).with_context(|| format!("after {} bytes", told.len()))?;
        told.push_str(&next);
        if told[looked_at..].contains(LAST) {
            return Ok(told);
        }
    }
}

/// The names by which a principal was told that nodes were updated.
fn updated_nodes(told: &str) -> BTreeSet<String> {
    let data = told.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let updated = data.filter(|event| event["kind"] == "node" && event["action"] == "updated");
    updated.filter_map(|event| Some(event["name"].as_str()?.to_owned())).collect()
}

/// All nodes are given other names; those of odd numbers go to the other cluster with the same write, the others leave theirs for none.
fn leave_under_new_names(site: &str, count: usize) -> Result<()> {
    const AT_ONCE: usize = 4;
    let hands: Vec<usize> = (0..AT_ONCE).collect();
    for_each_at_once(&hands, |hand| {
        for n in (*hand..count).step_by(AT_ONCE) {
            let leave = match n % 2 {
                0 => json!({"op": "remove", "path": "/nodegroup"}),
                _ => json!({"op": "replace", "path": "/nodegroup", "value": "far/web"}),
            };
            let patch = json!([{"op": "replace", "path": "/name", "value": format!("anew-{n}")}, leave]);
            let body = serde_json::to_vec(&patch)?;
            let told = ask(site, ADMIN, &format!("PATCH /v1/nodes/left-{n}"), (JSON_PATCH, &body))?;
            ensure!(told.status == 200, "{n}: {} {}", told.status, told.body);
        }
        Ok(())
    })?;
    let last = json!({"labels": {"last": LAST}});
    for cluster in ["own", "far"] {
        let path = format!("PATCH /v1/clusters/{cluster}");
        let told = ask(site, ADMIN, &path, (MERGE_PATCH, &serde_json::to_vec(&last)?))?;
        ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
    }
    Ok(())
}

/// A node takes some kilobytes with what it was before, so a few MiB in all. The bound is what the store keeps of its pages at most.
#[test]
fn x04_f15_nodes_that_leave_a_cluster_under_new_names_tell_it_none_of_them() -> Result<()> {
    const NODES: usize = 500;
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let node = |n: usize| json!({"kind": "Node", "name": format!("left-{n}"), "nodegroup": "own/web"});
    let objects: Vec<Value> = two_clusters().into_iter().chain((0..NODES).map(node)).collect();
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let vera = token_within(&at, "vera", "viewer", Some("own"))?;
    let wim = token_within(&at, "wim", "viewer", Some("far"))?;
    let before = site.most_memory()?;
    let (of_vera, of_wim) = std::thread::scope(|scope| -> Result<(String, String)> {
        let (at, vera, wim) = (&at, &vera, &wim);
        let [of_vera, of_wim] = [vera, wim].map(|token| scope.spawn(move || told_by_events(at, token)));
        leave_under_new_names(at, NODES)?;
        let told = |one: std::thread::ScopedJoinHandle<'_, Result<String>>| one.join().expect("it does not panic");
        Ok((told(of_vera)?, told(of_wim)?))
    })?;
    let later = told_by_events(&at, &vera)?;
    let left: BTreeSet<String> = (0..NODES).map(|n| format!("left-{n}")).collect();
    for (told, when) in [(&of_vera, "while they leave"), (&later, "later")] {
        ensure!(!told.contains("anew-"), "{when} the old cluster is told no new name");
        ensure!(updated_nodes(told) == left, "{when} it is told of each that left: {:?}", updated_nodes(told));
    }
    let came: BTreeSet<String> = (1..NODES).step_by(2).map(|n| format!("anew-{n}")).collect();
    ensure!(!of_wim.contains("left-"), "the new cluster is told no old name");
    ensure!(updated_nodes(&of_wim) == came, "it is told of each that came: {:?}", updated_nodes(&of_wim));
    let audited = json!(audit(&at, &vera)?).to_string();
    ensure!(audited.contains("left-499") && !audited.contains("anew-"), "the audit of the old cluster: {audited}");
    let guessed = entries(&read(&at, &vera, "/v1/audit?object=node/anew-1")?, "audit")?;
    ensure!(guessed.is_empty(), "a guessed name is not confirmed: {guessed:?}");
    let told = ask(&at, &vera, "GET /v1/nodes/anew-1", (JSON, b""))?;
    ensure!(told.status == 404, "{} {}", told.status, told.body);
    is_served_within(&site, before, 64 * MIB)?;
    site.stop()
}
