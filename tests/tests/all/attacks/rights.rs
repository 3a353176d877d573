//! Attacks on the rights of others: through exhaustion, knowledge of secrets, a reused name, and the clock. The memory
//! that each attack costs the controller is measured too.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain_controller::PlainController;
use stemma_tests::program::{MAX_WAIT, eventually, succeed};

use super::{
    JSON_PATCH_TYPE, JSON_TYPE, MERGE_PATCH_TYPE, MIB, begin_request, call, check_memory_of_site, create_cluster_token,
    wait_until_resolved,
};
use crate::clocks::FakeClock;
use crate::description::post;

/// No token. A request without one on the plain listener has the rights of a fleet admin.
const ADMIN_TOKEN: &str = "";

/// Maximum number of valid tokens of a principal (docs/access.md).
const MAX_TOKENS: usize = 64;

/// Number of refused requests of a principal: as many as are written to the audit per minute.
const REFUSAL_COUNT: usize = 10;

/// Calls a function for each item at the same time. Returns the results in the order of the items.
fn run_for_each<T: Sync, R: Send>(of: &[T], make: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let make = &make;
    std::thread::scope(|scope| {
        let made: Vec<_> = of.iter().map(|one| scope.spawn(move || make(one))).collect();
        made.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    })
}

/// Reads a path with this token. The response may be chunked.
fn read_json(site: &str, token: &str, path: &str) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", "-H", &format!("x-auth-token: {token}")]);
    let output = curl.arg(format!("{site}{path}")).output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the entries of a list, which must have a single page.
fn list_entries(list: &Value, key: &str) -> Result<Vec<Value>> {
    ensure!(list["next"].is_null(), "there is another page: {}", list["next"]);
    Ok(list[key].as_array().with_context(|| list.to_string())?.clone())
}

/// Returns two clusters with one group each.
fn two_clusters() -> Vec<Value> {
    let cluster =
        |name: &str| [json!({"kind": "Cluster", "name": name}), json!({"kind": "NodeGroup", "cluster": name, "name": "web"})];
    ["own", "far"].into_iter().flat_map(cluster).collect()
}

/// Returns all audit entries that a principal can see.
fn audit_entries(site: &str, token: &str) -> Result<Vec<Value>> {
    list_entries(&read_json(site, token, "/v1/audit?limit=1000")?, "audit")
}

/// Waits until an admin can see this number of refusals. They are written a little later than the responses.
fn wait_for_refusals(site: &str, count: usize) -> Result<()> {
    eventually("the refusals stand in the audit", || {
        let refused = list_entries(&read_json(site, ADMIN_TOKEN, "/v1/audit?refused=true&limit=1000")?, "audit")?;
        ensure!(refused.len() == count, "{} of {count}", refused.len());
        Ok(())
    })
}

/// Sends this number of requests that are refused, because they write outside the principal's cluster.
fn provoke_refusals(site: &str, token: &str, count: usize) -> Result<()> {
    let body = serde_json::to_vec(&json!({"name": "foreign"}))?;
    for _ in 0..count {
        let told = call(site, token, "POST /v1/clustertemplates", (JSON_TYPE, &body))?;
        ensure!(told.status == 403, "{} {}", told.status, told.body);
    }
    Ok(())
}

/// Creates this number of tokens for a principal. `by` is the token of the caller.
fn add_tokens(site: &str, by: &str, name: &str, count: usize) -> Result<Vec<String>> {
    let mut made = Vec::new();
    for _ in 0..count {
        let told = call(site, by, &format!("POST /v1/principals/{name}/tokens"), (JSON_TYPE, b"{}"))?;
        ensure!(told.status == 201, "{name}, after {}: {} {}", made.len(), told.status, told.body);
        let one: Value = serde_json::from_str(&told.body)?;
        made.push(one["token"].as_str().context("a token")?.to_owned());
    }
    Ok(made)
}

/// Returns the statuses of requests with these tokens.
fn token_statuses(site: &str, tokens: &[String]) -> Result<BTreeSet<u16>> {
    tokens.iter().map(|token| Ok(call(site, token, "GET /v1/nodes?limit=1", (JSON_TYPE, b""))?.status)).collect()
}

/// Returns a media type followed by further headers: an idempotency key, and a reason for the audit.
fn headers(kind: &str, key: &str, reason: &str) -> String {
    format!("{kind}\r\nidempotency-key: {key}\r\nstemma-reason: {reason}")
}

/// Returns an idempotency key.
fn request_key(number: usize) -> String {
    format!("0198c0de-0000-7000-8000-{number:012}")
}

/// Returns the ids of a node's tasks and the codes of its findings.
fn resolved_tasks_and_findings(site: &str, token: &str, node: &str) -> Result<(Vec<String>, Vec<String>)> {
    let told = read_json(site, token, &format!("/v1/nodes/{node}/resolved"))?;
    let text = |one: &Value| one.as_str().unwrap_or_default().to_owned();
    let tasks = told["tasks"].as_array().with_context(|| told.to_string())?;
    let findings = told["findings"].as_array().with_context(|| told.to_string())?;
    Ok((tasks.iter().map(text).collect(), findings.iter().map(|one| text(&one["code"])).collect()))
}

/// Creates two clusters with a release. Its tasks have this number of expensive conditions, and a cheap one.
fn apply_clusters_with_conditions(site: &str, conditions: usize) -> Result<()> {
    let script = json!({"script": "true"});
    let task = |id: String, condition: String| json!({"id": id, "type": "shell", "roles": ["web"], "condition": condition, "parameters": script});
    // About 48,000 steps each. Their texts differ, so that no result is shared.
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

/// Returns the body of an apply of nodes with these numbers in a cluster.
fn numbered_nodes(cluster: &str, numbers: Range<usize>) -> Value {
    let node = |n: usize| {
        let name = format!("{cluster}{n}");
        json!({"kind": "Node", "name": name, "nodegroup": format!("{cluster}/g"), "labels": {"zone": name}})
    };
    json!({"objects": numbers.map(node).collect::<Vec<_>>()})
}

/// A node in a cluster of five may use 4,000,000 steps, and one in a cluster of a thousand 31,250 (docs/adr/0014). A
/// single one of these conditions uses more than that. When all nodes of the fleet shared a budget, each had 62,500. A
/// condition that is undecided on a node takes about 3 KiB with its finding, 60 MiB in total. The limit is more than
/// twice that.
#[test]
fn x04_f06_conditions_leave_step_budget_of_other_cluster() -> Result<()> {
    const CONDITION_COUNT: usize = 20;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    apply_clusters_with_conditions(&at, CONDITION_COUNT)?;
    let otto = create_cluster_token(&at, "otto", "operator", Some("a"))?;
    let vera = create_cluster_token(&at, "vera", "viewer", Some("b"))?;
    post(&at, "/v1/apply", &numbered_nodes("b", 0..5))?;
    wait_until_resolved(&at, ADMIN_TOKEN)?;
    let alone = resolved_tasks_and_findings(&at, &vera, "b0")?;
    ensure!(alone.0.len() == CONDITION_COUNT + 1 && alone.1.is_empty(), "{alone:?}");
    let before = site.peak_memory_bytes()?;
    let body = serde_json::to_vec(&numbered_nodes("a", 0..1_000))?;
    let told = call(&at, &otto, "POST /v1/apply", (JSON_TYPE, &body))?;
    ensure!(told.status == 200, "{} {}", told.status, told.body);
    wait_until_resolved(&at, ADMIN_TOKEN)?;
    // The conditions of a node that is created later are evaluated too, and its tasks are placed.
    post(&at, "/v1/apply", &numbered_nodes("b", 5..6))?;
    wait_until_resolved(&at, ADMIN_TOKEN)?;
    for node in ["b0", "b4", "b5"] {
        let beside = resolved_tasks_and_findings(&at, &vera, node)?;
        ensure!(beside == alone, "{node}: {beside:?}, and {alone:?} without the thousand");
    }
    let (tasks, findings) = resolved_tasks_and_findings(&at, &otto, "a7")?;
    ensure!(tasks == ["z-cheap"], "the thousand pay for themselves: {tasks:?}");
    ensure!(findings == ["condition.failed"; CONDITION_COUNT], "{findings:?}");
    check_memory_of_site(&site, before, 160 * MIB)?;
    site.stop()
}

/// The principals, their tokens and older versions take about 10 MiB of the store. At most 80 MiB of the store's pages
/// and last changes are in memory. The limit is a little higher.
#[test]
fn x04_f10_tokens_of_cluster_admin_end_when_rights_grow() -> Result<()> {
    const MAX_BYTES: u64 = 96 * MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    post(&at, "/v1/clusters", &json!({"name": "own"}))?;
    let ada = create_cluster_token(&at, "ada", "admin", Some("own"))?;
    let before = site.peak_memory_bytes()?;
    let names: Vec<String> = (0..16).map(|n| format!("p{n}")).collect();
    // The maximum number per principal; the cluster's admin creates all but one of them.
    let made = run_for_each(&names, |name| {
        let body = serde_json::to_vec(&json!({"name": name, "role": "operator", "cluster": "own"}))?;
        let told = call(&at, &ada, "POST /v1/principals", (JSON_TYPE, &body))?;
        ensure!(told.status == 201, "{name}: {} {}", told.status, told.body);
        let of_ada = add_tokens(&at, &ada, name, MAX_TOKENS - 1)?;
        Ok((of_ada, add_tokens(&at, ADMIN_TOKEN, name, 1)?))
    })?;
    let told = call(&at, &ada, "POST /v1/principals/p0/tokens", (JSON_TYPE, b"{}"))?;
    ensure!(told.status == 429, "one more than a principal may have: {} {}", told.status, told.body);
    let answered = run_for_each(&made, |(of_ada, _)| token_statuses(&at, of_ada))?;
    ensure!(answered.iter().all(|answered| *answered == BTreeSet::from([200])), "all are good: {answered:?}");

    let grow = serde_json::to_vec(&json!({"role": "admin", "cluster": null}))?;
    let told = call(&at, &ada, "PATCH /v1/principals/p0", (MERGE_PATCH_TYPE, &grow))?;
    ensure!(told.status == 403, "ada gives nobody the fleet: {} {}", told.status, told.body);
    for name in &names {
        for query in ["?dry_run=true", ""] {
            let told = call(&at, ADMIN_TOKEN, &format!("PATCH /v1/principals/{name}{query}"), (MERGE_PATCH_TYPE, &grow))?;
            ensure!(told.status == 200, "{name}: {} {}", told.status, told.body);
            let changed: Value = serde_json::from_str(&told.body)?;
            let changes = changed["changes"].as_array().context("changes")?;
            let ended = changes.iter().filter(|change| change["old"] == "good").count();
            ensure!(ended == MAX_TOKENS - 1, "{name}{query}: each that ends is told: {ended}");
        }
    }
    // A client that sends too many invalid tokens is told to retry later, but is not authenticated.
    let refused = BTreeSet::from([401, 503]);
    let answered = run_for_each(&made, |(of_ada, _)| token_statuses(&at, of_ada))?;
    ensure!(answered.iter().all(|answered| answered.is_subset(&refused)), "none is good: {answered:?}");
    let answered = run_for_each(&made, |(_, own)| token_statuses(&at, own))?;
    ensure!(answered.iter().all(|answered| *answered == BTreeSet::from([200])), "what another made: {answered:?}");
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// Number of nodes that are written at the same time.
const CONCURRENT_NODES: usize = 8;
/// Number of writes to each of them.
const WRITES_PER_NODE: usize = 120;

/// Returns the number of audit entries under the name `otto`, which a second principal gets later.
fn audit_count_of_otto(site: &str, token: &str) -> Result<usize> {
    Ok(audit_entries(site, token)?.iter().filter(|entry| entry["principal"] == "otto").count())
}

/// Returns the statuses of the records of all requests.
fn record_statuses(site: &str, token: &str) -> Result<BTreeSet<u16>> {
    let hands: Vec<usize> = (0..CONCURRENT_NODES).collect();
    let answered = run_for_each(&hands, |hand| {
        let numbers = hand * WRITES_PER_NODE..(hand + 1) * WRITES_PER_NODE;
        let status = |number: usize| -> Result<u16> {
            Ok(call(site, token, &format!("GET /v1/requests/{}", request_key(number)), (JSON_TYPE, b""))?.status)
        };
        numbers.map(status).collect::<Result<BTreeSet<u16>>>()
    })?;
    Ok(answered.into_iter().flatten().collect())
}

/// The actions of the first principal: it writes with reasons and keys, is refused, and creates a join token.
fn act_as_otto(site: &str, otto: &str) -> Result<()> {
    let hands: Vec<usize> = (0..CONCURRENT_NODES).collect();
    run_for_each(&hands, |hand| {
        for number in hand * WRITES_PER_NODE..(hand + 1) * WRITES_PER_NODE {
            let patch = json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>4000}")}]);
            let kind = headers(JSON_PATCH_TYPE, &request_key(number), &format!("ticket {number}"));
            let told = call(site, otto, &format!("PATCH /v1/nodes/n{hand}"), (&kind, &serde_json::to_vec(&patch)?))?;
            ensure!(told.status == 200, "{number}: {} {}", told.status, told.body);
        }
        Ok(())
    })?;
    let body = serde_json::to_vec(&json!({"nodegroup": "own/web"}))?;
    let told = call(site, otto, "POST /v1/join-tokens", (JSON_TYPE, &body))?;
    ensure!(told.status == 201, "{} {}", told.status, told.body);
    provoke_refusals(site, otto, REFUSAL_COUNT)?;
    wait_for_refusals(site, REFUSAL_COUNT)
}

/// About 15 MiB are stored. At most 80 MiB of the store's pages and last changes are in memory. The limit is 50%
/// higher.
#[test]
fn x04_f11_principal_sees_nothing_of_earlier_one_with_same_name() -> Result<()> {
    const MAX_BYTES: u64 = 120 * MIB;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let nodes = (0..CONCURRENT_NODES).map(|n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "own/web"}));
    let objects: Vec<Value> = two_clusters().into_iter().chain(nodes).collect();
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let vera = create_cluster_token(&at, "vera", "viewer", Some("own"))?;
    let wim = create_cluster_token(&at, "wim", "viewer", Some("far"))?;
    let first = create_cluster_token(&at, "otto", "operator", Some("own"))?;
    let before = site.peak_memory_bytes()?;
    act_as_otto(&at, &first)?;
    let all = CONCURRENT_NODES * WRITES_PER_NODE + 1 + REFUSAL_COUNT;
    let told = [audit_count_of_otto(&at, ADMIN_TOKEN)?, audit_count_of_otto(&at, &vera)?, audit_count_of_otto(&at, &wim)?];
    ensure!(told == [all, all, 0], "who sees the first one sees what it did: {told:?}");
    ensure!(record_statuses(&at, &first)? == BTreeSet::from([200]), "its own requests");

    let told = call(&at, ADMIN_TOKEN, "DELETE /v1/principals/otto", (JSON_TYPE, b""))?;
    ensure!(told.status == 204, "{} {}", told.status, told.body);
    let second = create_cluster_token(&at, "otto", "operator", Some("far"))?;
    let told = [audit_count_of_otto(&at, &second)?, audit_count_of_otto(&at, &wim)?, audit_count_of_otto(&at, ADMIN_TOKEN)?];
    ensure!(told == [0, 0, all], "the second one has done nothing yet: {told:?}");
    let seen = json!([audit_entries(&at, &second)?, audit_entries(&at, &wim)?]).to_string();
    ensure!(!seen.contains("ticket") && !seen.contains("auth.forbidden"), "{seen}");
    let named = read_json(&at, &second, "/v1/audit?principal=otto&limit=1000")?;
    ensure!(list_entries(&named, "audit")?.is_empty(), "{named}");
    ensure!(record_statuses(&at, &second)? == BTreeSet::from([404]), "requests of another");
    let left = read_json(&at, ADMIN_TOKEN, "/v1/join-tokens")?;
    ensure!(list_entries(&left, "tokens")?.is_empty(), "its join token ended with the first one: {left}");
    let body = serde_json::to_vec(&json!({"nodegroup": "far/web"}))?;
    let kind = headers(JSON_TYPE, &request_key(0), "ticket of the second");
    let told = call(&at, &second, "POST /v1/join-tokens", (&kind, &body))?;
    ensure!(told.status == 201, "its key is its own: {} {}", told.status, told.body);
    ensure!(audit_count_of_otto(&at, &wim)? == 1, "who sees the second one sees what it did");
    let told = call(&at, &first, "GET /v1/nodes", (JSON_TYPE, b""))?;
    ensure!(told.status == 401, "the token of the first one: {} {}", told.status, told.body);
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// Everything expiring that principals created: tokens, join tokens with the records of their requests, and refusals.
struct ExpiringRecords {
    tokens: Vec<Vec<String>>,
    join_tokens: Vec<Vec<Value>>,
}

/// Number of join tokens that each principal creates.
const JOIN_TOKENS_PER_PRINCIPAL: usize = 40;

/// Creates a join token with an idempotency key of this principal.
fn create_join_token(site: &str, token: &str, (principal, nth): (usize, usize)) -> Result<Value> {
    let body = serde_json::to_vec(&json!({"nodegroup": "own/web"}))?;
    let kind = headers(JSON_TYPE, &request_key(principal * JOIN_TOKENS_PER_PRINCIPAL + nth), "a host");
    let told = call(site, token, "POST /v1/join-tokens", (&kind, &body))?;
    ensure!(told.status == 201, "{} {}", told.status, told.body);
    Ok(serde_json::from_str::<Value>(&told.body)?["id"].clone())
}

impl ExpiringRecords {
    /// Creates all of it for this number of principals.
    fn create(site: &str, principals: usize) -> Result<Self> {
        let numbers: Vec<usize> = (0..principals).collect();
        let made = run_for_each(&numbers, |number| {
            let name = format!("p{number}");
            post(site, "/v1/principals", &json!({"name": name, "role": "operator", "cluster": "own"}))?;
            let tokens = add_tokens(site, ADMIN_TOKEN, &name, MAX_TOKENS)?;
            let join = |nth| create_join_token(site, &tokens[0], (*number, nth));
            let join_tokens = (0..JOIN_TOKENS_PER_PRINCIPAL).map(join).collect::<Result<Vec<Value>>>()?;
            provoke_refusals(site, &tokens[0], REFUSAL_COUNT)?;
            Ok((tokens, join_tokens))
        })?;
        wait_for_refusals(site, principals * REFUSAL_COUNT)?;
        let (tokens, join_tokens) = made.into_iter().unzip();
        Ok(Self { tokens, join_tokens })
    }

    /// Checks that all tokens are valid, and that each repeated request gets its first response.
    fn check_valid(&self, site: &str) -> Result<()> {
        let answered = run_for_each(&self.tokens, |tokens| token_statuses(site, tokens))?;
        ensure!(answered.iter().all(|answered| *answered == BTreeSet::from([200])), "{answered:?}");
        let numbers: Vec<usize> = (0..self.tokens.len()).collect();
        let again = run_for_each(&numbers, |number| {
            let join = |nth| create_join_token(site, &self.tokens[*number][0], (*number, nth));
            (0..JOIN_TOKENS_PER_PRINCIPAL).map(join).collect::<Result<Vec<Value>>>()
        })?;
        ensure!(again == self.join_tokens, "{again:?}, and it was {:?}", self.join_tokens);
        Ok(())
    }
}

/// Returns the join tokens and refusals that an admin can see.
fn expiring_records(site: &str) -> Result<Value> {
    let join_tokens = list_entries(&read_json(site, ADMIN_TOKEN, "/v1/join-tokens?limit=1000")?, "tokens")?;
    let refused = list_entries(&read_json(site, ADMIN_TOKEN, "/v1/audit?refused=true&limit=1000")?, "audit")?;
    Ok(json!({"join tokens": join_tokens, "refused": refused}))
}

/// Returns the listed certificates of the first admin.
fn admin_certificates(site: &str) -> Result<Vec<Value>> {
    list_entries(&read_json(site, ADMIN_TOKEN, "/v1/principals/admin")?, "certificates")
}

/// Waits until the metrics report whether the clock is suspect, and how large the store is.
fn wait_for_clock_state(site: &str, is_suspect: bool) -> Result<()> {
    let said = format!("\nstemma_clock_suspect {}\n", u8::from(is_suspect));
    eventually("what is said of the clock", || {
        let metrics = call(site, ADMIN_TOKEN, "GET /metrics", (JSON_TYPE, b""))?.body;
        let has_counted = metrics.contains("\nstemma_store_bytes{of=\"requests\"}");
        ensure!(metrics.contains(&said) && has_counted, "{metrics}");
        Ok(())
    })
}

/// About 5 MiB are stored, with older versions. The limit is the maximum size of the store's page cache.
#[test]
fn x04_f12_store_keeps_records_when_clock_is_400_days_ahead() -> Result<()> {
    const MAX_BYTES: u64 = 64 * MIB;
    let dir = tempfile::tempdir()?;
    let Some(dial) = FakeClock::new(dir.path())? else { return Ok(()) };
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let objects = json!([{"kind": "Cluster", "name": "own"}, {"kind": "NodeGroup", "cluster": "own", "name": "web"}]);
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let before = site.peak_memory_bytes()?;
    let lasting = ExpiringRecords::create(&at, 8)?;
    let (told, known) = (expiring_records(&at)?, admin_certificates(&at)?);
    ensure!(known.len() == 1, "the certificate that `init` made: {known:?}");

    dial.set("+400d")?;
    let site = site.restart_under(&dial.command)?;
    let at = site.addresses.admin.clone();
    wait_for_clock_state(&at, true)?;
    let socket = format!("unix:{}", site.data_dir().join("admin.sock").display());
    let to = dir.path().join("again").display().to_string();
    succeed("stemma", ["--server", socket.as_str(), "cert", "create", "admin", "--to", to.as_str()])?;
    // By this clock all its tokens have expired. The new ones expire by the next clock. Together they exceed the limit
    // per principal.
    add_tokens(&at, ADMIN_TOKEN, "p0", MAX_TOKENS)?;
    dial.set("+800d")?;
    add_tokens(&at, ADMIN_TOKEN, "p0", 1)?;
    let ahead = expiring_records(&at)?;
    ensure!(ahead == told, "while the clock is ahead: {ahead}, and it was {told}");
    check_memory_of_site(&site, before, MAX_BYTES)?;

    dial.set("+0")?;
    wait_for_clock_state(&at, false)?;
    lasting.check_valid(&at)?;
    let after = expiring_records(&at)?;
    ensure!(after == told, "when it is right again: {after}, and it was {told}");
    let certificates = admin_certificates(&at)?;
    ensure!(certificates.len() == 2 && certificates[0] == known[0], "{certificates:?}");
    check_memory_of_site(&site, before, MAX_BYTES)?;
    site.stop()
}

/// The text that marks the last change in a stream of events.
const LAST_CHANGE: &str = "the-last-change";

/// Reads the next chunk of a chunked body.
fn read_chunk(reader: &mut impl BufRead) -> Result<String> {
    let mut size = String::new();
    reader.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim_end(), 16).with_context(|| format!("no size: {size:?}"))?;
    ensure!(size > 0, "the stream ends");
    let mut piece = vec![0; size + 2];
    reader.read_exact(&mut piece)?;
    piece.truncate(size);
    Ok(String::from_utf8(piece)?)
}

/// Returns all events that a principal gets, from the first revision up to the last change.
fn read_events(site: &str, token: &str) -> Result<String> {
    let (stream, status) = begin_request(site, token, "GET /v1/events?from=1", &[])?;
    ensure!(status == 200, "{status}");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the head has no end");
    }
    let (mut told, began) = (String::new(), Instant::now());
    loop {
        // A comment is sent every 30 seconds, so each read ends.
        ensure!(began.elapsed() < MAX_WAIT, "the last change is not among {} bytes", told.len());
        let looked_at = told.len().saturating_sub(LAST_CHANGE.len());
        let next = read_chunk(&mut reader).with_context(|| format!("after {} bytes", told.len()))?;
        told.push_str(&next);
        if told[looked_at..].contains(LAST_CHANGE) {
            return Ok(told);
        }
    }
}

/// Returns the names of updated nodes in these events.
fn updated_node_names(told: &str) -> BTreeSet<String> {
    let data = told.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let updated = data.filter(|event| event["kind"] == "node" && event["action"] == "updated");
    updated.filter_map(|event| Some(event["name"].as_str()?.to_owned())).collect()
}

/// Renames all nodes. The same write moves those with odd numbers to the other cluster, and takes the others out of any
/// cluster.
fn move_and_rename_nodes(site: &str, count: usize) -> Result<()> {
    const CONCURRENT_WRITES: usize = 4;
    let hands: Vec<usize> = (0..CONCURRENT_WRITES).collect();
    run_for_each(&hands, |hand| {
        for n in (*hand..count).step_by(CONCURRENT_WRITES) {
            let leave = match n % 2 {
                0 => json!({"op": "remove", "path": "/nodegroup"}),
                _ => json!({"op": "replace", "path": "/nodegroup", "value": "far/web"}),
            };
            let patch = json!([{"op": "replace", "path": "/name", "value": format!("anew-{n}")}, leave]);
            let body = serde_json::to_vec(&patch)?;
            let told = call(site, ADMIN_TOKEN, &format!("PATCH /v1/nodes/left-{n}"), (JSON_PATCH_TYPE, &body))?;
            ensure!(told.status == 200, "{n}: {} {}", told.status, told.body);
        }
        Ok(())
    })?;
    let last = json!({"labels": {"last": LAST_CHANGE}});
    for cluster in ["own", "far"] {
        let path = format!("PATCH /v1/clusters/{cluster}");
        let told = call(site, ADMIN_TOKEN, &path, (MERGE_PATCH_TYPE, &serde_json::to_vec(&last)?))?;
        ensure!([200, 202].contains(&told.status), "{} {}", told.status, told.body);
    }
    Ok(())
}

/// A node takes a few kilobytes with its older versions, a few MiB in total. The limit is the maximum size of the
/// store's page cache.
#[test]
fn x04_f15_events_hide_nodes_when_renamed_and_moved_away() -> Result<()> {
    const NODE_COUNT: usize = 500;
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let node = |n: usize| json!({"kind": "Node", "name": format!("left-{n}"), "nodegroup": "own/web"});
    let objects: Vec<Value> = two_clusters().into_iter().chain((0..NODE_COUNT).map(node)).collect();
    post(&at, "/v1/apply", &json!({"objects": objects}))?;
    let vera = create_cluster_token(&at, "vera", "viewer", Some("own"))?;
    let wim = create_cluster_token(&at, "wim", "viewer", Some("far"))?;
    let before = site.peak_memory_bytes()?;
    let (of_vera, of_wim) = std::thread::scope(|scope| -> Result<(String, String)> {
        let (at, vera, wim) = (&at, &vera, &wim);
        let [of_vera, of_wim] = [vera, wim].map(|token| scope.spawn(move || read_events(at, token)));
        move_and_rename_nodes(at, NODE_COUNT)?;
        let told = |one: std::thread::ScopedJoinHandle<'_, Result<String>>| one.join().expect("it does not panic");
        Ok((told(of_vera)?, told(of_wim)?))
    })?;
    let later = read_events(&at, &vera)?;
    let left: BTreeSet<String> = (0..NODE_COUNT).map(|n| format!("left-{n}")).collect();
    for (told, when) in [(&of_vera, "while they leave"), (&later, "later")] {
        ensure!(!told.contains("anew-"), "{when} the old cluster is told no new name");
        ensure!(updated_node_names(told) == left, "{when} it is told of each that left: {:?}", updated_node_names(told));
    }
    let came: BTreeSet<String> = (1..NODE_COUNT).step_by(2).map(|n| format!("anew-{n}")).collect();
    ensure!(!of_wim.contains("left-"), "the new cluster is told no old name");
    ensure!(updated_node_names(&of_wim) == came, "it is told of each that came: {:?}", updated_node_names(&of_wim));
    let audited = json!(audit_entries(&at, &vera)?).to_string();
    ensure!(audited.contains("left-499") && !audited.contains("anew-"), "the audit of the old cluster: {audited}");
    let guessed = list_entries(&read_json(&at, &vera, "/v1/audit?object=node/anew-1")?, "audit")?;
    ensure!(guessed.is_empty(), "a guessed name is not confirmed: {guessed:?}");
    let told = call(&at, &vera, "GET /v1/nodes/anew-1", (JSON_TYPE, b""))?;
    ensure!(told.status == 404, "{} {}", told.status, told.body);
    check_memory_of_site(&site, before, 64 * MIB)?;
    site.stop()
}
