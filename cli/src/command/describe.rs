//! `stemma describe`: one object for a person who has to act on it. Problems are first, then the fields, then the maps
//! with their owners. Unset fields are left out, as are the defaults of fields that only clients of other systems use.

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use stemma_core::status::stopping_task;
use stemma_core::task::CLEAN_UP_PREFIX;
use stemma_wire::endpoint::Endpoint;

use crate::api::ApiClient;
use crate::args::{FilterArgs, KindArg, Output};
use crate::command::{allocation, manifest, primary, read};
use crate::output::{cell_text, is_difference, is_failure, last_lines, printable, split_words, table, time_with_age};

/// Maximum length of a printed value in a map, in characters. In a map that is printed with owners, values are not cut.
const MAX_VALUE_CHARS: usize = 160;

/// Maximum number of printed lines of a task's difference.
const MAX_DIFF_LINES: usize = 20;

/// Fields that are printed in addition to those that a manifest of the kind can set. Most are computed.
const SHOWN_FIELDS: &[&str] = &[
    "uuid",
    "state",
    "state_reason",
    "notes",
    "connection",
    "last_seen",
    "release",
    "tags",
    "primary_tags",
    "assigned_tags",
    "unassigned_tags",
    "roles",
    "mode",
    "nodegroup",
    "cluster",
    "version",
    "task_count",
    "merge_labels",
    "generation",
    "resource_version",
    "created_at",
    "updated_at",
    "id",
    "node",
    "uses",
    "uses_left",
    "expires_at",
    "created_by",
];

/// Runs `stemma describe`: prints one object with its problems. With `-o json` and other formats for programs, prints
/// the object as `stemma get` does.
///
/// # Errors
/// If the object does not exist or can't be read.
pub(crate) async fn describe(api: &mut ApiClient, kind: KindArg, name: &str, output: Output) -> Result<()> {
    let object = read::read_object(api, kind, name).await?;
    if !matches!(output, Output::Table | Output::Wide) {
        return read::print_objects(api, kind, &[name.to_owned()], &[object], &FilterArgs::default(), output).await;
    }
    let Some(fields) = object.as_object() else { bail!("{} {name} is not an object", kind.name()) };
    outln!("{} {}", kind.name(), printable(&read::object_name(kind, &object)));
    let (findings, primaries) = if kind == KindArg::Cluster {
        cluster_details(api, &read::object_name(kind, &object)).await?
    } else {
        (finding_lines(object.get("findings")), None)
    };
    if let Some(findings) = findings {
        outln!("\n{findings}\n");
    }
    // The results of tasks are not part of the node and are read separately.
    if kind == KindArg::Node {
        let report = api.get(&kind.endpoint_path(Endpoint::NodeReport, name, &[])?).await?;
        let results = current_results(&report);
        for section in
            [failure_lines(&read::object_name(kind, &object), &results), difference_lines(&results)].into_iter().flatten()
        {
            outln!("\n{section}\n");
        }
        if let Some(orphans) = orphan_lines(&object) {
            outln!("\n{orphans}\n");
        }
    }
    if kind == KindArg::Allocation {
        outln!("\n{}\n", allocation_decision(api, &object).await?);
    }
    outln!("{}", indented(&plain_fields(kind, fields)));
    if let Some(primaries) = primaries {
        outln!("\n{primaries}");
    }
    for (section, value) in fields.iter().filter(|(name, value)| is_section(kind, name, value)) {
        outln!("\n{}", section.to_uppercase());
        outln!("{}", indented(&describe_section(fields, section, value)));
    }
    Ok(())
}

/// Returns a table of the findings with severity, code and message, or `None` if there are no findings.
fn finding_lines(findings: Option<&Value>) -> Option<String> {
    let findings = findings.and_then(Value::as_array).filter(|list| !list.is_empty())?;
    let row = |finding: &Value| ["severity", "code", "message"].map(|field| cell_text(finding.get(field))).to_vec();
    Some(format!("FINDINGS\n{}", indented(&table(&["severity", "code", "message"], findings.iter().map(row)))))
}

/// Returns two texts for a cluster: its findings with those of the nodes that hold its primaries, and the table of its
/// primaries. A text without content is `None`.
async fn cluster_details(api: &mut ApiClient, name: &str) -> Result<(Option<String>, Option<String>)> {
    let list = api.get(&KindArg::Cluster.endpoint_path(Endpoint::ListPrimaries, name, &[])?).await?;
    let path = KindArg::Cluster.endpoint_path(Endpoint::ValidateCluster, name, &[])?;
    let checked = api.get(&path).await?;
    let rows: Vec<&Value> = read::list_items(&list).collect();
    let findings = cluster_findings(checked.get("findings"), name, &rows, &path);
    let primaries = (!rows.is_empty()).then(|| format!("PRIMARIES\n{}", indented(&primary::primary_table(&rows))));
    Ok((findings, primaries))
}

/// Returns a table of the findings about the cluster itself, and about the nodes that hold one of its tags as primary.
/// The other findings are only counted, because there may be as many of them as the cluster has nodes. Their number is
/// followed by the command that prints all findings from the API path `path`. Returns `None` if there are no findings.
fn cluster_findings(findings: Option<&Value>, cluster: &str, primaries: &[&Value], path: &str) -> Option<String> {
    let holders = primaries.iter().filter_map(|primary| Some(format!("node/{}", primary.get("node")?.as_str()?)));
    let objects: Vec<String> = holders.chain([format!("cluster/{cluster}")]).collect();
    let is_shown = |finding: &&Value| {
        // The object may be followed by a part of it, as in `cluster/eu tag/x`.
        let object = finding.get("object").and_then(Value::as_str).and_then(|object| object.split(' ').next());
        object.is_some_and(|object| objects.iter().any(|name| name == object))
    };
    let findings = findings.and_then(Value::as_array).filter(|list| !list.is_empty())?;
    let (shown_findings, other_findings): (Vec<&Value>, Vec<&Value>) = findings.iter().partition(is_shown);
    let mut text = String::from("FINDINGS");
    if !shown_findings.is_empty() {
        let head = ["severity", "code", "object", "message"];
        let row = |finding: &&Value| head.map(|field| cell_text(finding.get(field))).to_vec();
        text.push_str(&format!("\n{}", indented(&table(&head, shown_findings.iter().map(row)))));
    }
    if !other_findings.is_empty() {
        text.push_str(&format!("\n  {} about its groups and other nodes: stemma get --raw {path}", other_findings.len()));
    }
    Some(text)
}

/// Returns the decision about an allocation: its node and the reason of the choice, or why it has no node and the next
/// step.
async fn allocation_decision(api: &mut ApiClient, object: &Value) -> Result<String> {
    let Some(node) = allocation::node_name(api, object).await? else {
        let next_step = allocation::next_step(&read::object_name(KindArg::Allocation, object), object);
        let rows = [("error", cell_text(object.get("last_error"))), ("next", next_step)];
        return Ok(format!("FAILED\n{}", indented(&row_lines(&rows))));
    };
    let reason = allocation::reason(object).unwrap_or_default();
    let rows = [("node", format!("{node} ({})", cell_text(object.get("node_uuid")))), ("why", reason)];
    Ok(format!("CHOSEN\n{}", indented(&row_lines(&rows))))
}

/// Returns one line for each pair of a name and its value.
fn row_lines(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(name, value)| printable(&format!("{name:<5} {value}"))).collect::<Vec<_>>().join("\n")
}

/// Returns the results of the tasks in the current task set. A result counts as current if the response does not mark
/// it as outdated.
fn current_results(report: &Value) -> Vec<&Value> {
    let results = report.get("results").and_then(Value::as_array).into_iter().flatten();
    results.filter(|result| result.get("is_current") != Some(&Value::Bool(false))).collect()
}

/// Returns a table of the tasks with a difference that remains on the host, each with its outcome and time. The
/// differences follow the table, each cut after [`MAX_DIFF_LINES`] lines. Returns `None` if there are no such tasks.
fn difference_lines(results: &[&Value]) -> Option<String> {
    let differing: Vec<_> = results.iter().filter(|result| is_difference(result)).collect();
    let row = |result: &&&Value| {
        vec![cell_text(result.get("task")), split_words(&cell_text(result.get("outcome"))), time_with_age(result.get("at"))]
    };
    let mut text = format!("DIFFERS\n{}", indented(&table(&["task", "outcome", "since"], differing.iter().map(row))));
    for result in &differing {
        let diff = result.get("diff").and_then(Value::as_str).unwrap_or_default();
        if !diff.is_empty() {
            text.push_str(&format!("\n  {}:", printable(&cell_text(result.get("task")))));
        }
        diff.lines().take(MAX_DIFF_LINES).for_each(|line| text.push_str(&format!("\n    {}", printable(line))));
        let omitted = diff.lines().count().saturating_sub(MAX_DIFF_LINES);
        if omitted > 0 {
            text.push_str(&format!("\n    and {omitted} more lines; on the host: stemma-agent check"));
        }
    }
    (!differing.is_empty()).then_some(text)
}

/// Returns a table of what the host of a node once got from tasks and no task manages now, each with the task that left it.
/// The clean-ups of these tasks follow. Returns `None` if there is neither.
fn orphan_lines(node: &Value) -> Option<String> {
    let list = |field: &str| node.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (unmanaged, clean_ups) = (list("unmanaged"), list("clean_ups"));
    let objects: Vec<&Value> = unmanaged.iter().filter(|object| object.get("more").is_none()).collect();
    let mut text = String::from("ORPHANED");
    if !objects.is_empty() {
        let row = |object: &&Value| {
            let secret = if object["secret"] == true { "may hold a secret" } else { "" };
            let kept = object["kept"].as_str().map(|reason| format!("not removed: {reason}")).unwrap_or_default();
            let notes = [secret, &kept].into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join("; ");
            vec![cell_text(object.get("task")), cell_text(object.get("kind")), cell_text(object.get("name")), notes]
        };
        text.push_str(&format!("\n{}", indented(&table(&["task", "left", "name", ""], objects.iter().map(row)))));
    }
    for more in unmanaged.iter().filter_map(|object| object.get("more")) {
        text.push_str(&format!("\n  and {more} more; on the host: stemma-agent status"));
    }
    for clean_up in clean_ups {
        let field = |name: &str| printable(&cell_text(clean_up.get(name)));
        let message = clean_up["message"].as_str().map(|message| format!(": {}", printable(message))).unwrap_or_default();
        let (task, on_unassign, state) = (field("task"), field("on_unassign"), field("state"));
        text.push_str(&format!("\n  {task}: its on_unassign task {on_unassign} {}{message}", clean_up_text(&state)));
    }
    (!unmanaged.is_empty() || !clean_ups.is_empty()).then_some(text)
}

/// Returns the state of a clean-up as words that follow its name.
fn clean_up_text(state: &str) -> &str {
    match state {
        "waiting" => "has not run yet",
        "failed" => "failed, and is tried again",
        "succeeded" => "has succeeded",
        other => other,
    }
}

/// Returns the failed tasks, each with time, message and the end of its output, and the next step. Returns `None` if no
/// task failed. The next step is about a task that itself failed, in preference to a task that only requires a failed
/// task.
fn failure_lines(node: &str, results: &[&Value]) -> Option<String> {
    let failed: Vec<&Value> = results.iter().copied().filter(|result| is_failure(result.get("outcome"))).collect();
    let first = failed.iter().find(|result| result["outcome"] != "DependencyFailed").or(failed.first())?;
    let rows = failed.iter().map(|result| {
        let message = cell_text(result.get("message").filter(|message| message.as_str() != Some("")));
        vec![
            cell_text(result.get("task")),
            split_words(&cell_text(result.get("outcome"))),
            time_with_age(result.get("at")),
            message,
        ]
    });
    let rows = table(&["task", "outcome", "since", "message"], rows);
    let mut text = format!("FAILED\n{}", indented(&rows));
    for result in &failed {
        let lines = last_lines(result.get("output"));
        if !lines.is_empty() {
            text.push_str(&format!(
                "\n  the end of what {} printed:\n    {}",
                cell_text(result.get("task")),
                lines.join("\n    ")
            ));
        }
    }
    for result in failed.iter().filter(|result| result["outcome"] != "DependencyFailed") {
        let task = cell_text(result.get("task"));
        let stopped = tasks_stopped_by(&task, &failed);
        if !stopped.is_empty() {
            text.push_str(&format!("\n  not run because of {}: {}", printable(&task), printable(&stopped.join(", "))));
        }
    }
    let task = cell_text(first.get("task"));
    // A clean-up is a task of an earlier task set, so `explain` does not know it.
    let explain = if task.starts_with(CLEAN_UP_PREFIX) {
        String::new()
    } else {
        format!("stemma explain node {node} task {task} shows how to fix it; ")
    };
    text.push_str(&format!("\n  next: {explain}on the host: stemma-agent status, stemma-agent check"));
    Some(text)
}

/// Returns the ids of the tasks that did not run because this task failed.
fn tasks_stopped_by(task: &str, results: &[&Value]) -> Vec<String> {
    let is_stopped = |result: &&&Value| {
        let message = result["message"].as_str().unwrap_or_default();
        result["outcome"] == "DependencyFailed" && stopping_task(message) == Some(task)
    };
    results.iter().filter(is_stopped).map(|result| cell_text(result.get("task"))).collect()
}

/// Returns a table of the fields that are not maps: those that a manifest can set, and those of [`SHOWN_FIELDS`]. Unset
/// fields are left out. An empty map is included if its presence has a meaning. A passthrough field (which only clients
/// of other systems use) is included if it has another value than its default.
fn plain_fields(kind: KindArg, object: &Map<String, Value>) -> String {
    let (fields, passthrough) = manifest::kind_fields(kind);
    let rows = object.iter().filter(|(name, value)| {
        let name = name.as_str();
        let field = fields.iter().find(|(field_name, _)| *field_name == name);
        let is_selected = field.is_some() || SHOWN_FIELDS.contains(&name);
        let is_empty_map = field.is_some_and(|(_, field_type)| manifest::is_empty_object(*field_type, value));
        // `merge_labels: false` cuts off all inherited labels, so it must be visible.
        let is_merge_flag = name == "merge_labels" && object.get("provided_labels").is_some_and(Value::is_object);
        (!value.is_object() || is_empty_map)
            && (manifest::is_set(value) || is_empty_map || (is_merge_flag && kind != KindArg::Clustertemplate))
            && (is_selected || passthrough.iter().any(|item| item.name == name && !manifest::is_unset_passthrough(item, value)))
    });
    let cell = |name: &str, value: &Value| match value {
        Value::String(_) if read::is_time(name) => time_with_age(Some(value)),
        Value::Object(_) => "set, without fields".to_owned(),
        Value::Array(items) if items.iter().any(Value::is_object) => format!("{} (-o json shows them)", items.len()),
        other => cell_text(Some(other)),
    };
    let table = table(&["", ""], rows.map(|(name, value)| vec![name.clone(), cell(name, value)]));
    // The head of the table is empty, so it is removed.
    table.lines().skip_while(|line| line.trim().is_empty()).collect::<Vec<_>>().join("\n")
}

/// Returns whether a field is a map that gets a section of its own in the output. Maps without interest for people,
/// maps that are printed elsewhere, maps of owners, and empty maps get none.
fn is_section(kind: KindArg, name: &str, value: &Value) -> bool {
    // These maps are for programs, or are printed in another form.
    let is_noise = ["links", "trait_sources", "driver_info", "clean_step", "deploy_step", "explanation"].contains(&name);
    // The table of primaries already shows the node that the cluster names.
    let is_shown_before = kind == KindArg::Cluster && name == "primaries";
    value.is_object()
        && manifest::is_set(value)
        && !name.ends_with("_owners")
        && !is_noise
        && !is_shown_before
        && (kind != KindArg::Node || name != "traits")
}

/// Returns the entries of a map as table rows. For a map with the labels, annotations or parameters that the object
/// itself provides (`provided_labels` and so on), the rows also contain the owners of each key, and tombstones.
fn describe_section(object: &Map<String, Value>, section: &str, value: &Value) -> String {
    // For example, the owners of `provided_labels` are in the field `label_owners`.
    let owners = section.strip_prefix("provided_").map(|map| format!("{}_owners", map.trim_end_matches('s')));
    let owners = owners.and_then(|owners| object.get(&owners));
    let map = value.as_object().into_iter().flatten();
    let Some(owners) = owners else {
        return table(&["key", "value"], map.map(|(key, value)| vec![key.clone(), shortened(value)]));
    };
    let text = |value: &Value| if value.is_null() { "null (not inherited)".to_owned() } else { cell_text(Some(value)) };
    table(&["key", "value", "owner"], map.map(|(key, value)| vec![key.clone(), text(value), cell_text(owners.get(key))]))
}

/// Returns a value for a table cell, cut after [`MAX_VALUE_CHARS`] characters.
fn shortened(value: &Value) -> String {
    let text = cell_text(Some(value));
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}… (-o json shows all of it)", &text[..end]),
        None => text,
    }
}

/// Returns the text with two blanks before each line.
fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Each difference is printed below the name of its task. The task `run` has no difference, so it is only in the
    /// table.
    #[test]
    fn y09_difference_lines_name_task() {
        let result = |task: &str, diff: &str| json!({"at": "2026-11-20T09:41:00+00:00", "task": task, "outcome": "WouldChange", "message": "", "diff": diff});
        let results = [result("motd", "-a\n+b\n"), result("run", ""), result("site", "-c\n")];
        let text = difference_lines(&results.iter().collect::<Vec<_>>()).unwrap();
        assert!(text.ends_with("\n  motd:\n    -a\n    +b\n  site:\n    -c"), "{text}");
    }

    /// A task whose own mode is `observe` has no difference that is known.
    #[test]
    fn y06_difference_lines_omit_observed_task() {
        let result = |is_observed: Value| json!({"at": "2026-11-20T09:41:00+00:00", "task": "ob", "outcome": "WouldChange", "diff": "", "is_observed": is_observed});
        for (is_observed, differs) in [(json!(true), false), (json!(false), true), (Value::Null, true)] {
            assert_eq!(difference_lines(&[&result(is_observed.clone())]).is_some(), differs, "{is_observed}");
        }
    }

    #[test]
    fn shortened_cuts_long_value() {
        let roles: Map<String, Value> = (0..40).map(|number| (format!("role-{number}"), json!({"tags": ["a", "b"]}))).collect();
        let shown = shortened(&roles.into());
        assert!(shown.starts_with("role-0=tags=a,b,role-1=") && shown.ends_with("… (-o json shows all of it)"), "{shown}");
        assert_eq!((shown.chars().count() < 200, shortened(&json!("short"))), (true, "short".to_owned()));
    }

    /// A row has the task, the object and its notes. The table is followed by the clean-ups.
    #[test]
    fn orphan_lines_show_objects_and_clean_ups() {
        let node = json!({
            "unmanaged": [
                {"task": "conf", "kind": "file", "name": "/etc/app", "secret": true, "kept": "somebody changed it"},
                {"task": "web", "kind": "package", "name": "nginx", "secret": false, "kept": null},
                {"more": 3},
            ],
            "clean_ups": [{"task": "conf", "on_unassign": "undo", "state": "failed", "message": "no disk"}],
        });
        let text = orphan_lines(&node).unwrap();
        for part in [
            "ORPHANED\n",
            "may hold a secret; not removed: somebody changed it",
            "package  nginx",
            "and 3 more; on the host",
            "conf: its on_unassign task undo failed, and is tried again: no disk",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert_eq!(orphan_lines(&json!({"unmanaged": [], "clean_ups": []})), None);
        assert_eq!(orphan_lines(&json!({})), None, "the controller is of an older version");
    }

    /// The next step names `site-conf`, the first task that itself failed. The result of `gone` belongs to an earlier
    /// task set.
    #[test]
    fn failure_lines_show_task_and_next_step() {
        let report = json!({"results": [
            {"at": "2026-11-20T09:41:00+00:00", "task": "motd", "outcome": "Changed", "message": ""},
            {"at": "2026-11-20T09:41:00+00:00", "task": "note", "outcome": "DependencyFailed", "message": "Not run: site-conf, which it requires, failed."},
            {"at": "2026-11-20T09:41:00+00:00", "task": "last", "outcome": "DependencyFailed", "message": "Not run: site-conf, which it requires, failed."},
            {"at": "2026-11-20T09:41:00+00:00", "task": "gone", "outcome": "Failed", "message": "of before", "is_current": false},
            {"at": "2026-11-20T09:41:00+00:00", "task": "site-conf", "outcome": "Failed", "message": "the command ended with status 1", "output": "a\nb: no such user\n"},
            {"at": "2026-11-20T09:41:00+00:00", "task": "app", "outcome": "Failed", "message": "", "output": "disk full\n", "is_current": true}]});
        let text = failure_lines("web-1", &current_results(&report)).unwrap();
        for line in [
            "site-conf  failed             2026-11-20 09:41",
            "the command ended with status 1",
            "the end of what site-conf printed:",
            "not run because of site-conf: note, last\n",
            "b: no such user",
            "the end of what app printed:\n    disk full",
            "next: stemma explain node web-1 task site-conf",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
        assert!(!text.contains("motd") && !text.contains("gone"), "{text}");
        assert_eq!(failure_lines("web-1", &current_results(&json!({"results": null}))), None);
    }

    /// The findings of the cluster, and of the node `db-1` that holds a primary, are shown. The others are counted.
    #[test]
    fn x07_cluster_findings_show_own_and_count_others() {
        let finding =
            |object: &str| json!({"severity": "warning", "code": "a.rule", "object": object, "message": format!("of {object}.")});
        let rows = [json!({"tag": "db", "node": "db-1"}), json!({"tag": "mq", "node": null})];
        let rows: Vec<&Value> = rows.iter().collect();
        let shown = |objects: &[&str]| {
            let objects: Value = objects.iter().map(|object| finding(object)).collect();
            cluster_findings(Some(&objects), "eu", &rows, "/v1/clusters/eu/validate")
        };
        let text = shown(&["cluster/eu", "cluster/eu tag/x", "node/db-1", "node/db-11", "nodegroup/eu/web"]).unwrap();
        assert!(text.starts_with("FINDINGS\n"), "{text}");
        for part in ["of cluster/eu.", "of cluster/eu tag/x.", "of node/db-1.", "a.rule", "warning"] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains("of node/db-11.") && !text.contains("of nodegroup/eu/web."), "{text}");
        let omitted_line = "\n  2 about its groups and other nodes: stemma get --raw /v1/clusters/eu/validate";
        assert!(text.ends_with(omitted_line), "{text}");
        assert_eq!(shown(&["node/x"]).unwrap(), omitted_line.replace("\n  2", "FINDINGS\n  1"));
        assert_eq!(shown(&[]), None);
        assert_eq!(cluster_findings(None, "eu", &[], ""), None);
    }

    #[test]
    fn finding_lines_show_code_and_message() {
        let findings = json!([{"severity": "error", "code": "identity.doubled", "object": "node/a", "message": "two hosts, 10.0.0.1 and 10.0.0.2"}]);
        let shown = finding_lines(Some(&findings)).unwrap();
        assert!(shown.starts_with("FINDINGS\n"), "{shown}");
        for part in ["error", "identity.doubled", "two hosts, 10.0.0.1 and 10.0.0.2"] {
            assert!(shown.contains(part), "{shown}");
        }
        assert_eq!(finding_lines(Some(&json!([]))), None);
        assert_eq!(finding_lines(None), None);
    }
}
