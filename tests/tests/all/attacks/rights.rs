//! Attacks on the rights of other principals: through exhaustion, knowledge of secrets, a reused name, and the clock.
//! Each test also measures how much memory the attack costs the controller.

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
    JSON_PATCH_TYPE, JSON_TYPE, MERGE_PATCH_TYPE, MIB, begin_request, call, check_controller_memory, create_cluster_token,
    wait_until_resolved,
};
use crate::clocks::FakeClock;
use crate::description::post;

/// The empty token, which is not sent. A request without a token on the plain HTTP listener has the rights of a fleet
/// admin.
const ADMIN_TOKEN: &str = "";

/// Maximum number of valid tokens of a principal (docs/access.md).
const MAX_TOKENS: usize = 64;

/// Number of refused requests of a principal: the maximum that the audit log records per minute.
const REFUSAL_COUNT: usize = 10;

/// Calls a function for all items at the same time. Returns the results in the order of the items.
fn run_for_each<T: Sync, R: Send>(items: &[T], function: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let function = &function;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || function(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    })
}

/// Sends a GET with this token, and returns the JSON of the response. The response may be chunked.
fn read_json(url: &str, token: &str, path: &str) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", "-H", &format!("x-auth-token: {token}")]);
    let output = curl.arg(format!("{url}{path}")).output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the entries of a list under this key. The list must have a single page.
fn list_entries(list: &Value, key: &str) -> Result<Vec<Value>> {
    ensure!(list["next"].is_null(), "there is another page: {}", list["next"]);
    Ok(list[key].as_array().with_context(|| list.to_string())?.clone())
}

/// Returns the objects for two clusters, `own` and `far`, each with a node group `web`.
fn two_clusters() -> Vec<Value> {
    let cluster =
        |name: &str| [json!({"kind": "Cluster", "name": name}), json!({"kind": "NodeGroup", "cluster": name, "name": "web"})];
    ["own", "far"].into_iter().flat_map(cluster).collect()
}

/// Returns all entries of the audit log that the owner of the token may read.
fn audit_entries(url: &str, token: &str) -> Result<Vec<Value>> {
    list_entries(&read_json(url, token, "/v1/audit?limit=1000")?, "audit")
}

/// Waits until the audit log has this number of refusals. The controller writes a refusal a little later than its
/// response.
fn wait_for_refusals(url: &str, count: usize) -> Result<()> {
    eventually("the refusals are in the audit log", || {
        let refusals = list_entries(&read_json(url, ADMIN_TOKEN, "/v1/audit?refused=true&limit=1000")?, "audit")?;
        ensure!(refusals.len() == count, "{} of {count}", refusals.len());
        Ok(())
    })
}

/// Sends this number of writes outside the principal's cluster. The controller must refuse each of them.
fn provoke_refusals(url: &str, token: &str, count: usize) -> Result<()> {
    let body = serde_json::to_vec(&json!({"name": "foreign"}))?;
    for _ in 0..count {
        let response = call(url, token, "POST /v1/clustertemplates", (JSON_TYPE, &body))?;
        ensure!(response.status == 403, "{} {}", response.status, response.body);
    }
    Ok(())
}

/// Creates this number of tokens for the principal `name`, and returns them. The caller of the request has
/// `caller_token`.
fn add_tokens(url: &str, caller_token: &str, name: &str, count: usize) -> Result<Vec<String>> {
    let mut tokens = Vec::new();
    for _ in 0..count {
        let response = call(url, caller_token, &format!("POST /v1/principals/{name}/tokens"), (JSON_TYPE, b"{}"))?;
        ensure!(response.status == 201, "{name}, after {}: {} {}", tokens.len(), response.status, response.body);
        let created: Value = serde_json::from_str(&response.body)?;
        tokens.push(created["token"].as_str().context("a token")?.to_owned());
    }
    Ok(tokens)
}

/// Sends a request with each token. Returns the different statuses of the responses.
fn token_statuses(url: &str, tokens: &[String]) -> Result<BTreeSet<u16>> {
    tokens.iter().map(|token| Ok(call(url, token, "GET /v1/nodes?limit=1", (JSON_TYPE, b""))?.status)).collect()
}

/// Returns a media type followed by two header lines: an idempotency key, and a reason for the audit log. The text
/// replaces the media type in the head of a request.
fn media_type_with_headers(media_type: &str, key: &str, reason: &str) -> String {
    format!("{media_type}\r\nidempotency-key: {key}\r\nstemma-reason: {reason}")
}

/// Returns the idempotency key with this number.
fn request_key(number: usize) -> String {
    format!("0198c0de-0000-7000-8000-{number:012}")
}

/// Returns the ids of the tasks of a node, and the codes of its findings.
fn resolved_tasks_and_findings(url: &str, token: &str, node: &str) -> Result<(Vec<String>, Vec<String>)> {
    let resolved = read_json(url, token, &format!("/v1/nodes/{node}/resolved"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tasks = resolved["tasks"].as_array().with_context(|| resolved.to_string())?;
    let findings = resolved["findings"].as_array().with_context(|| resolved.to_string())?;
    Ok((tasks.iter().map(text).collect(), findings.iter().map(|value| text(&value["code"])).collect()))
}

/// Creates the clusters `a` and `b`, which use one release. The release has this number of tasks with an expensive
/// condition, and a task with a cheap condition.
fn apply_clusters_with_conditions(url: &str, conditions: usize) -> Result<()> {
    let script = json!({"script": "true"});
    let task = |id: String, condition: String| json!({"id": id, "type": "shell", "roles": ["web"], "condition": condition, "parameters": script});
    // Each expensive condition takes about 48,000 evaluation steps. The texts differ, so that the controller cannot
    // share a result.
    let expression = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let costly_tasks =
        (0..conditions).map(|number| task(format!("c-{number:03}"), format!("{expression} || '{number}' == '{number}'")));
    let cheap_task = task("z-cheap".to_owned(), "labels.zone != ''".to_owned());
    let tasks: Vec<Value> = costly_tasks.chain([cheap_task]).collect();
    post(url, "/v1/releases", &json!({"name": "site", "version": "1", "roles": {"web": {}}, "tasks": tasks}))?;
    let numbers: Vec<usize> = (0..50).collect();
    for name in ["a", "b"] {
        let objects = json!([
            {"kind": "Cluster", "name": name, "release": "site@1", "parameters": {"many": numbers}},
            {"kind": "NodeGroup", "cluster": name, "name": "g", "roles": ["web"]},
        ]);
        post(url, "/v1/apply", &json!({"objects": objects}))?;
    }
    Ok(())
}

/// Returns the body of an apply that creates nodes with these numbers in a cluster.
fn numbered_nodes(cluster: &str, numbers: Range<usize>) -> Value {
    let node = |number: usize| {
        let name = format!("{cluster}{number}");
        json!({"kind": "Node", "name": name, "nodegroup": format!("{cluster}/g"), "labels": {"zone": name}})
    };
    json!({"objects": numbers.map(node).collect::<Vec<_>>()})
}

/// In a fleet of two clusters, the conditions of a node together may use 4,000,000 evaluation steps in a cluster of
/// five nodes (`b`), and 31,250 in a cluster of a thousand (`a`, docs/adr/0014). Each expensive condition uses more
/// than 31,250 steps, so it is undecided on the nodes of `a`, but not on those of `b`. Previously, all nodes of the
/// fleet shared a budget, which left 62,500 steps to each node. All undecided conditions with their findings take about
/// 60 MiB (3 KiB for each on each node). The memory limit is more than twice that.
#[test]
fn x04_f06_conditions_leave_step_budget_of_other_cluster() -> Result<()> {
    const CONDITION_COUNT: usize = 20;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    apply_clusters_with_conditions(&url, CONDITION_COUNT)?;
    let otto_token = create_cluster_token(&url, "otto", "operator", Some("a"))?;
    let vera_token = create_cluster_token(&url, "vera", "viewer", Some("b"))?;
    post(&url, "/v1/apply", &numbered_nodes("b", 0..5))?;
    wait_until_resolved(&url, ADMIN_TOKEN)?;
    let result_before = resolved_tasks_and_findings(&url, &vera_token, "b0")?;
    // All tasks run on the node, and it has no finding.
    ensure!(result_before.0.len() == CONDITION_COUNT + 1 && result_before.1.is_empty(), "{result_before:?}");
    let memory_before = controller.peak_memory_bytes()?;
    let body = serde_json::to_vec(&numbered_nodes("a", 0..1_000))?;
    let response = call(&url, &otto_token, "POST /v1/apply", (JSON_TYPE, &body))?;
    ensure!(response.status == 200, "{} {}", response.status, response.body);
    wait_until_resolved(&url, ADMIN_TOKEN)?;
    // The conditions of a node that is created later are evaluated too, and its tasks are placed.
    post(&url, "/v1/apply", &numbered_nodes("b", 5..6))?;
    wait_until_resolved(&url, ADMIN_TOKEN)?;
    for node in ["b0", "b4", "b5"] {
        let result_after = resolved_tasks_and_findings(&url, &vera_token, node)?;
        ensure!(
            result_after == result_before,
            "{node}: {result_after:?}, and {result_before:?} without the thousand nodes of the other cluster"
        );
    }
    let (tasks, findings) = resolved_tasks_and_findings(&url, &otto_token, "a7")?;
    ensure!(tasks == ["z-cheap"], "the large cluster runs only the cheap task: {tasks:?}");
    ensure!(findings == ["condition.failed"; CONDITION_COUNT], "{findings:?}");
    check_controller_memory(&controller, memory_before, 160 * MIB)?;
    controller.stop()
}

/// In this test, principals of a cluster become fleet admins. Their tokens from the admin of the cluster end, and those
/// from a fleet admin remain valid. All records take about 10 MiB of the store with their older versions. The store has
/// at most 80 MiB of its pages and last changes in memory. The memory limit is a little higher.
#[test]
fn x04_f10_tokens_of_cluster_admin_end_when_rights_grow() -> Result<()> {
    const MAX_BYTES: u64 = 96 * MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    post(&url, "/v1/clusters", &json!({"name": "own"}))?;
    let ada_token = create_cluster_token(&url, "ada", "admin", Some("own"))?;
    let memory_before = controller.peak_memory_bytes()?;
    let names: Vec<String> = (0..16).map(|n| format!("p{n}")).collect();
    // Each principal gets the maximum number of tokens. The admin of the cluster creates all of them but one.
    let tokens_by_principal = run_for_each(&names, |name| {
        let body = serde_json::to_vec(&json!({"name": name, "role": "operator", "cluster": "own"}))?;
        let response = call(&url, &ada_token, "POST /v1/principals", (JSON_TYPE, &body))?;
        ensure!(response.status == 201, "{name}: {} {}", response.status, response.body);
        let ada_tokens = add_tokens(&url, &ada_token, name, MAX_TOKENS - 1)?;
        Ok((ada_tokens, add_tokens(&url, ADMIN_TOKEN, name, 1)?))
    })?;
    let response = call(&url, &ada_token, "POST /v1/principals/p0/tokens", (JSON_TYPE, b"{}"))?;
    ensure!(response.status == 429, "a token more than a principal may have: {} {}", response.status, response.body);
    let statuses = run_for_each(&tokens_by_principal, |(ada_tokens, _)| token_statuses(&url, ada_tokens))?;
    ensure!(statuses.iter().all(|statuses| *statuses == BTreeSet::from([200])), "all tokens are valid: {statuses:?}");

    let patch = serde_json::to_vec(&json!({"role": "admin", "cluster": null}))?;
    let response = call(&url, &ada_token, "PATCH /v1/principals/p0", (MERGE_PATCH_TYPE, &patch))?;
    ensure!(response.status == 403, "a cluster admin cannot give fleet rights: {} {}", response.status, response.body);
    for name in &names {
        for query in ["?dry_run=true", ""] {
            let response = call(&url, ADMIN_TOKEN, &format!("PATCH /v1/principals/{name}{query}"), (MERGE_PATCH_TYPE, &patch))?;
            ensure!(response.status == 200, "{name}: {} {}", response.status, response.body);
            let result: Value = serde_json::from_str(&response.body)?;
            let changes = result["changes"].as_array().context("changes")?;
            let ended_count = changes.iter().filter(|change| change["old"] == "good").count();
            ensure!(ended_count == MAX_TOKENS - 1, "{name}{query}: ended tokens in the response: {ended_count}");
        }
    }
    // A client that sends too many invalid tokens gets 503 with a retry time, but is not authenticated.
    let refusal_statuses = BTreeSet::from([401, 503]);
    let statuses = run_for_each(&tokens_by_principal, |(ada_tokens, _)| token_statuses(&url, ada_tokens))?;
    ensure!(
        statuses.iter().all(|statuses| statuses.is_subset(&refusal_statuses)),
        "no token of the cluster admin is valid: {statuses:?}"
    );
    let statuses = run_for_each(&tokens_by_principal, |(_, fleet_admin_tokens)| token_statuses(&url, fleet_admin_tokens))?;
    ensure!(
        statuses.iter().all(|statuses| *statuses == BTreeSet::from([200])),
        "the tokens of the fleet admin remain valid: {statuses:?}"
    );
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// Number of nodes that are written at the same time.
const CONCURRENT_NODES: usize = 8;
/// Number of writes to each node.
const WRITES_PER_NODE: usize = 120;

/// Returns the number of entries of the audit log under the name `otto` that the owner of the token may read. The test
/// gives this name to two principals, one after the other.
fn audit_count_of_otto(url: &str, token: &str) -> Result<usize> {
    Ok(audit_entries(url, token)?.iter().filter(|entry| entry["principal"] == "otto").count())
}

/// Requests the stored record of each write for which `otto` sent an idempotency key. Returns the different statuses of
/// the responses.
fn record_statuses(url: &str, token: &str) -> Result<BTreeSet<u16>> {
    let workers: Vec<usize> = (0..CONCURRENT_NODES).collect();
    let statuses = run_for_each(&workers, |worker| {
        let numbers = worker * WRITES_PER_NODE..(worker + 1) * WRITES_PER_NODE;
        let status = |number: usize| -> Result<u16> {
            Ok(call(url, token, &format!("GET /v1/requests/{}", request_key(number)), (JSON_TYPE, b""))?.status)
        };
        numbers.map(status).collect::<Result<BTreeSet<u16>>>()
    })?;
    Ok(statuses.into_iter().flatten().collect())
}

/// Performs the actions of the first principal `otto`: it writes with reasons and idempotency keys, creates a join
/// token, and is refused.
fn act_as_otto(url: &str, otto_token: &str) -> Result<()> {
    let workers: Vec<usize> = (0..CONCURRENT_NODES).collect();
    run_for_each(&workers, |worker| {
        for number in worker * WRITES_PER_NODE..(worker + 1) * WRITES_PER_NODE {
            let patch = json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>4000}")}]);
            let media_type = media_type_with_headers(JSON_PATCH_TYPE, &request_key(number), &format!("ticket {number}"));
            let response =
                call(url, otto_token, &format!("PATCH /v1/nodes/n{worker}"), (&media_type, &serde_json::to_vec(&patch)?))?;
            ensure!(response.status == 200, "{number}: {} {}", response.status, response.body);
        }
        Ok(())
    })?;
    let body = serde_json::to_vec(&json!({"nodegroup": "own/web"}))?;
    let response = call(url, otto_token, "POST /v1/join-tokens", (JSON_TYPE, &body))?;
    ensure!(response.status == 201, "{} {}", response.status, response.body);
    provoke_refusals(url, otto_token, REFUSAL_COUNT)?;
    wait_for_refusals(url, REFUSAL_COUNT)
}

/// The test stores about 15 MiB. The store has at most 80 MiB of its pages and last changes in memory. The memory limit
/// is 50% higher.
#[test]
fn x04_f11_principal_sees_nothing_of_earlier_principal_with_same_name() -> Result<()> {
    const MAX_BYTES: u64 = 120 * MIB;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let nodes = (0..CONCURRENT_NODES).map(|number| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "own/web"}));
    let objects: Vec<Value> = two_clusters().into_iter().chain(nodes).collect();
    post(&url, "/v1/apply", &json!({"objects": objects}))?;
    let vera_token = create_cluster_token(&url, "vera", "viewer", Some("own"))?;
    let wim_token = create_cluster_token(&url, "wim", "viewer", Some("far"))?;
    let first_token = create_cluster_token(&url, "otto", "operator", Some("own"))?;
    let memory_before = controller.peak_memory_bytes()?;
    act_as_otto(&url, &first_token)?;
    let entry_count = CONCURRENT_NODES * WRITES_PER_NODE + 1 + REFUSAL_COUNT;
    let counts = [
        audit_count_of_otto(&url, ADMIN_TOKEN)?,
        audit_count_of_otto(&url, &vera_token)?,
        audit_count_of_otto(&url, &wim_token)?,
    ];
    ensure!(counts == [entry_count, entry_count, 0], "the first principal's entries, for those who may see it: {counts:?}");
    ensure!(record_statuses(&url, &first_token)? == BTreeSet::from([200]), "the first principal reads its requests");

    let response = call(&url, ADMIN_TOKEN, "DELETE /v1/principals/otto", (JSON_TYPE, b""))?;
    ensure!(response.status == 204, "{} {}", response.status, response.body);
    let second_token = create_cluster_token(&url, "otto", "operator", Some("far"))?;
    let counts = [
        audit_count_of_otto(&url, &second_token)?,
        audit_count_of_otto(&url, &wim_token)?,
        audit_count_of_otto(&url, ADMIN_TOKEN)?,
    ];
    ensure!(counts == [0, 0, entry_count], "the second principal has done nothing yet: {counts:?}");
    let visible_entries = json!([audit_entries(&url, &second_token)?, audit_entries(&url, &wim_token)?]).to_string();
    ensure!(!visible_entries.contains("ticket") && !visible_entries.contains("auth.forbidden"), "{visible_entries}");
    let entries_of_otto = read_json(&url, &second_token, "/v1/audit?principal=otto&limit=1000")?;
    ensure!(list_entries(&entries_of_otto, "audit")?.is_empty(), "{entries_of_otto}");
    ensure!(record_statuses(&url, &second_token)? == BTreeSet::from([404]), "requests of the first principal");
    let join_tokens = read_json(&url, ADMIN_TOKEN, "/v1/join-tokens")?;
    ensure!(list_entries(&join_tokens, "tokens")?.is_empty(), "the join token ended with the first principal: {join_tokens}");
    let body = serde_json::to_vec(&json!({"nodegroup": "far/web"}))?;
    let media_type = media_type_with_headers(JSON_TYPE, &request_key(0), "ticket of the second");
    let response = call(&url, &second_token, "POST /v1/join-tokens", (&media_type, &body))?;
    ensure!(
        response.status == 201,
        "an idempotency key of the first principal can be used: {} {}",
        response.status,
        response.body
    );
    ensure!(audit_count_of_otto(&url, &wim_token)? == 1, "viewers of its cluster see what the second principal did");
    let response = call(&url, &first_token, "GET /v1/nodes", (JSON_TYPE, b""))?;
    ensure!(response.status == 401, "the token of the first principal is invalid: {} {}", response.status, response.body);
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// Records with an expiry time: the tokens of principals, and the join tokens that these principals created. `create`
/// also causes the records of the requests for join tokens, and refusals in the audit log.
struct ExpiringRecords {
    /// The tokens of each principal.
    tokens: Vec<Vec<String>>,
    /// The ids of the join tokens that each principal created.
    join_tokens: Vec<Vec<Value>>,
}

/// Number of join tokens that each principal creates.
const JOIN_TOKENS_PER_PRINCIPAL: usize = 40;

/// Creates a join token, and returns its id. The numbers of the principal and of the join token determine the
/// idempotency key.
fn create_join_token(url: &str, token: &str, (principal, number): (usize, usize)) -> Result<Value> {
    let body = serde_json::to_vec(&json!({"nodegroup": "own/web"}))?;
    let media_type = media_type_with_headers(JSON_TYPE, &request_key(principal * JOIN_TOKENS_PER_PRINCIPAL + number), "a host");
    let response = call(url, token, "POST /v1/join-tokens", (&media_type, &body))?;
    ensure!(response.status == 201, "{} {}", response.status, response.body);
    Ok(serde_json::from_str::<Value>(&response.body)?["id"].clone())
}

impl ExpiringRecords {
    /// Creates this number of principals with their tokens, join tokens and refusals.
    fn create(url: &str, principals: usize) -> Result<Self> {
        let numbers: Vec<usize> = (0..principals).collect();
        let records = run_for_each(&numbers, |number| {
            let name = format!("p{number}");
            post(url, "/v1/principals", &json!({"name": name, "role": "operator", "cluster": "own"}))?;
            let tokens = add_tokens(url, ADMIN_TOKEN, &name, MAX_TOKENS)?;
            let create_token_with_key = |index| create_join_token(url, &tokens[0], (*number, index));
            let join_tokens = (0..JOIN_TOKENS_PER_PRINCIPAL).map(create_token_with_key).collect::<Result<Vec<Value>>>()?;
            provoke_refusals(url, &tokens[0], REFUSAL_COUNT)?;
            Ok((tokens, join_tokens))
        })?;
        wait_for_refusals(url, principals * REFUSAL_COUNT)?;
        let (tokens, join_tokens) = records.into_iter().unzip();
        Ok(Self { tokens, join_tokens })
    }

    /// Checks that all tokens are valid. Also repeats the creation of each join token, and checks that each response is
    /// the first one.
    fn check_valid(&self, url: &str) -> Result<()> {
        let statuses = run_for_each(&self.tokens, |tokens| token_statuses(url, tokens))?;
        ensure!(statuses.iter().all(|statuses| *statuses == BTreeSet::from([200])), "{statuses:?}");
        let numbers: Vec<usize> = (0..self.tokens.len()).collect();
        let repeated_ids = run_for_each(&numbers, |number| {
            let create_again = |index| create_join_token(url, &self.tokens[*number][0], (*number, index));
            (0..JOIN_TOKENS_PER_PRINCIPAL).map(create_again).collect::<Result<Vec<Value>>>()
        })?;
        ensure!(repeated_ids == self.join_tokens, "{repeated_ids:?}, and the first responses had {:?}", self.join_tokens);
        Ok(())
    }
}

/// Returns the join tokens and the refusals that a fleet admin can see.
fn expiring_records(url: &str) -> Result<Value> {
    let join_tokens = list_entries(&read_json(url, ADMIN_TOKEN, "/v1/join-tokens?limit=1000")?, "tokens")?;
    let refusals = list_entries(&read_json(url, ADMIN_TOKEN, "/v1/audit?refused=true&limit=1000")?, "audit")?;
    Ok(json!({"join tokens": join_tokens, "refused": refusals}))
}

/// Returns the certificates of the first admin.
fn admin_certificates(url: &str) -> Result<Vec<Value>> {
    list_entries(&read_json(url, ADMIN_TOKEN, "/v1/principals/admin")?, "certificates")
}

/// Waits until the metrics report this state of the clock, and the size of the store.
fn wait_for_clock_state(url: &str, is_suspect: bool) -> Result<()> {
    let expected = format!("\nstemma_clock_suspect {}\n", u8::from(is_suspect));
    eventually("the metrics of the clock", || {
        let metrics = call(url, ADMIN_TOKEN, "GET /metrics", (JSON_TYPE, b""))?.body;
        let has_store_size = metrics.contains("\nstemma_store_bytes{of=\"requests\"}");
        ensure!(metrics.contains(&expected) && has_store_size, "{metrics}");
        Ok(())
    })
}

/// By the wrong clock, all these records have expired. The tokens are valid again when the clock is right. The test
/// stores about 5 MiB, with older versions. The memory limit is the maximum size of the store's page cache.
#[test]
fn x04_f12_store_keeps_records_when_clock_is_400_days_ahead() -> Result<()> {
    const MAX_BYTES: u64 = 64 * MIB;
    let dir = tempfile::tempdir()?;
    let Some(fake_clock) = FakeClock::new(dir.path())? else { return Ok(()) };
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let objects = json!([{"kind": "Cluster", "name": "own"}, {"kind": "NodeGroup", "cluster": "own", "name": "web"}]);
    post(&url, "/v1/apply", &json!({"objects": objects}))?;
    let memory_before = controller.peak_memory_bytes()?;
    let records = ExpiringRecords::create(&url, 8)?;
    let (entries_before, certificates_before) = (expiring_records(&url)?, admin_certificates(&url)?);
    ensure!(certificates_before.len() == 1, "the certificate that `init` created: {certificates_before:?}");

    fake_clock.set("+400d")?;
    let controller = controller.restart_under(&fake_clock.command)?;
    let url = controller.addresses.admin.clone();
    wait_for_clock_state(&url, true)?;
    let socket = format!("unix:{}", controller.data_dir().join("admin.sock").display());
    let context_dir = dir.path().join("again").display().to_string();
    succeed("stemma", ["--server", socket.as_str(), "cert", "create", "admin", "--to", context_dir.as_str()])?;
    // By the fake clock, all tokens of `p0` have expired. At +800 days, the new tokens have expired too. All these
    // tokens together exceed the limit per principal.
    add_tokens(&url, ADMIN_TOKEN, "p0", MAX_TOKENS)?;
    fake_clock.set("+800d")?;
    add_tokens(&url, ADMIN_TOKEN, "p0", 1)?;
    let entries_ahead = expiring_records(&url)?;
    ensure!(entries_ahead == entries_before, "while the clock is ahead: {entries_ahead}, not {entries_before}");
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;

    fake_clock.set("+0")?;
    wait_for_clock_state(&url, false)?;
    records.check_valid(&url)?;
    let entries_after = expiring_records(&url)?;
    ensure!(entries_after == entries_before, "when the clock is right again: {entries_after}, not {entries_before}");
    let certificates = admin_certificates(&url)?;
    ensure!(certificates.len() == 2 && certificates[0] == certificates_before[0], "{certificates:?}");
    check_controller_memory(&controller, memory_before, MAX_BYTES)?;
    controller.stop()
}

/// The text that marks the last change in a stream of events.
const LAST_CHANGE: &str = "the-last-change";

/// Reads the next chunk of a chunked body. Fails at the end of the body.
fn read_chunk(reader: &mut impl BufRead) -> Result<String> {
    let mut size = String::new();
    reader.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim_end(), 16).with_context(|| format!("no size: {size:?}"))?;
    ensure!(size > 0, "the stream ends");
    // A line end of two bytes follows the chunk.
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok(String::from_utf8(chunk)?)
}

/// Returns the text of all events that a principal gets, from the first revision of the store up to [`LAST_CHANGE`].
fn read_events(url: &str, token: &str) -> Result<String> {
    let (stream, status) = begin_request(url, token, "GET /v1/events?from=1", &[])?;
    ensure!(status == 200, "{status}");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the head has no end");
    }
    let (mut events, start_time) = (String::new(), Instant::now());
    loop {
        // A comment is sent every 30 seconds, so each read ends.
        ensure!(start_time.elapsed() < MAX_WAIT, "the last change is not in the first {} bytes", events.len());
        let search_start = events.len().saturating_sub(LAST_CHANGE.len());
        let chunk = read_chunk(&mut reader).with_context(|| format!("after {} bytes", events.len()))?;
        events.push_str(&chunk);
        if events[search_start..].contains(LAST_CHANGE) {
            return Ok(events);
        }
    }
}

/// Returns the names of the updated nodes in a text of events.
fn updated_node_names(events: &str) -> BTreeSet<String> {
    let event_values = events.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let node_updates = event_values.filter(|event| event["kind"] == "node" && event["action"] == "updated");
    node_updates.filter_map(|event| Some(event["name"].as_str()?.to_owned())).collect()
}

/// Renames the nodes `left-N` of the cluster `own` to `anew-N`. The same write moves each node with an odd number to
/// the cluster `far`, and takes each other node out of any cluster. Then marks the last change in both clusters.
fn move_and_rename_nodes(url: &str, count: usize) -> Result<()> {
    const CONCURRENT_WRITES: usize = 4;
    let workers: Vec<usize> = (0..CONCURRENT_WRITES).collect();
    run_for_each(&workers, |worker| {
        for number in (*worker..count).step_by(CONCURRENT_WRITES) {
            let move_operation = match number % 2 {
                0 => json!({"op": "remove", "path": "/nodegroup"}),
                _ => json!({"op": "replace", "path": "/nodegroup", "value": "far/web"}),
            };
            let patch = json!([{"op": "replace", "path": "/name", "value": format!("anew-{number}")}, move_operation]);
            let body = serde_json::to_vec(&patch)?;
            let response = call(url, ADMIN_TOKEN, &format!("PATCH /v1/nodes/left-{number}"), (JSON_PATCH_TYPE, &body))?;
            ensure!(response.status == 200, "{number}: {} {}", response.status, response.body);
        }
        Ok(())
    })?;
    let last_change = json!({"labels": {"last": LAST_CHANGE}});
    for cluster in ["own", "far"] {
        let path = format!("PATCH /v1/clusters/{cluster}");
        let response = call(url, ADMIN_TOKEN, &path, (MERGE_PATCH_TYPE, &serde_json::to_vec(&last_change)?))?;
        ensure!([200, 202].contains(&response.status), "{} {}", response.status, response.body);
    }
    Ok(())
}

/// One write renames a node and moves the node from the cluster `own` to `far`, or out of any cluster. A viewer of
/// `own` sees only the old names, and a viewer of `far` only the new names of the nodes that moved to `far`.
///
/// A node takes a few kilobytes of the store with its older versions, and all nodes take a few MiB. The memory limit is
/// the maximum size of the store's page cache.
#[test]
fn x04_f15_events_hide_nodes_when_renamed_and_moved_away() -> Result<()> {
    const NODE_COUNT: usize = 500;
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let node = |number: usize| json!({"kind": "Node", "name": format!("left-{number}"), "nodegroup": "own/web"});
    let objects: Vec<Value> = two_clusters().into_iter().chain((0..NODE_COUNT).map(node)).collect();
    post(&url, "/v1/apply", &json!({"objects": objects}))?;
    let vera_token = create_cluster_token(&url, "vera", "viewer", Some("own"))?;
    let wim_token = create_cluster_token(&url, "wim", "viewer", Some("far"))?;
    let memory_before = controller.peak_memory_bytes()?;
    let (vera_events, wim_events) = std::thread::scope(|scope| -> Result<(String, String)> {
        let (url, vera_token, wim_token) = (&url, &vera_token, &wim_token);
        let [vera_events, wim_events] = [vera_token, wim_token].map(|token| scope.spawn(move || read_events(url, token)));
        move_and_rename_nodes(url, NODE_COUNT)?;
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<String>>| thread.join().expect("no panic");
        Ok((join(vera_events)?, join(wim_events)?))
    })?;
    let later_events = read_events(&url, &vera_token)?;
    let old_names: BTreeSet<String> = (0..NODE_COUNT).map(|number| format!("left-{number}")).collect();
    for (events, period) in [(&vera_events, "during the moves"), (&later_events, "later")] {
        ensure!(!events.contains("anew-"), "{period} the old cluster gets no new name");
        ensure!(
            updated_node_names(events) == old_names,
            "{period} the old cluster gets each moved node: {:?}",
            updated_node_names(events)
        );
    }
    let new_names: BTreeSet<String> = (1..NODE_COUNT).step_by(2).map(|number| format!("anew-{number}")).collect();
    ensure!(!wim_events.contains("left-"), "the new cluster gets no old name");
    ensure!(
        updated_node_names(&wim_events) == new_names,
        "the new cluster gets each moved node: {:?}",
        updated_node_names(&wim_events)
    );
    let audit_text = json!(audit_entries(&url, &vera_token)?).to_string();
    ensure!(audit_text.contains("left-499") && !audit_text.contains("anew-"), "the audit of the old cluster: {audit_text}");
    let entries = list_entries(&read_json(&url, &vera_token, "/v1/audit?object=node/anew-1")?, "audit")?;
    ensure!(entries.is_empty(), "a guessed name is not confirmed: {entries:?}");
    let response = call(&url, &vera_token, "GET /v1/nodes/anew-1", (JSON_TYPE, b""))?;
    ensure!(response.status == 404, "{} {}", response.status, response.body);
    check_controller_memory(&controller, memory_before, 64 * MIB)?;
    controller.stop()
}
