//! `describe`: one object for a person who has to do something about it. What is wrong stands first, then what it is, then its
//! maps with their owners. What is unset, and what only other systems' clients look for, is left out.

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use stemma_wire::endpoint::Endpoint;

use crate::api::Api;
use crate::args::{Filter, Kind, Output};
use crate::command::{allocation, primary, question, written};
use crate::output::{cell, is_difference, is_failure, last_lines, printable, since, table, words};

/// How many characters of a computed value are shown.
const LONGEST: usize = 160;

/// How many lines of a task's difference are shown.
const MOST_DIFF_LINES: usize = 20;

/// What is computed of an object and worth knowing, beside what its author said.
const TOLD: &[&str] = &[
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

/// Shows one object.
///
/// # Errors
/// When it is not there.
pub(crate) async fn describe(api: &mut Api, kind: Kind, name: &str, output: Output) -> Result<()> {
    let object = question::one(api, kind, name).await?;
    if !matches!(output, Output::Table | Output::Wide) {
        return question::show(api, kind, &[name.to_owned()], &[object], &Filter::default(), output).await;
    }
    let Some(fields) = object.as_object() else { bail!("{} {name} is no object", kind.name()) };
    say!("{} {}", kind.name(), printable(&question::name(kind, &object)));
    let (found, primaries) = if kind == Kind::Cluster {
        of_cluster(api, &question::name(kind, &object)).await?
    } else {
        (findings(object.get("findings")), None)
    };
    if let Some(found) = found {
        say!("\n{found}\n");
    }
    if kind == Kind::Node {
        let report = api.get(&kind.path_of(Endpoint::NodeReport, name, &[])?).await?;
        let current = current(&report);
        for told in [failed(&question::name(kind, &object), &current), differing(&current)].into_iter().flatten() {
            say!("\n{told}\n");
        }
    }
    if kind == Kind::Allocation {
        say!("\n{}\n", decided(api, &object).await?);
    }
    say!("{}", indented(&plain(kind, fields)));
    if let Some(primaries) = primaries {
        say!("\n{primaries}");
    }
    for (section, value) in fields.iter().filter(|(name, value)| is_section(kind, name, value)) {
        say!("\n{}", section.to_uppercase());
        say!("{}", indented(&describe_section(fields, section, value)));
    }
    Ok(())
}

/// What is found of it: how grave, by which rule, and the sentence.
fn findings(found: Option<&Value>) -> Option<String> {
    let found = found.and_then(Value::as_array).filter(|found| !found.is_empty())?;
    let row = |one: &Value| ["severity", "code", "message"].map(|field| cell(one.get(field))).to_vec();
    Some(format!("FINDINGS\n{}", indented(&table(&["severity", "code", "message"], found.iter().map(row)))))
}

/// What is found of a cluster and of those who hold its tags as primary, and who they are.
async fn of_cluster(api: &mut Api, name: &str) -> Result<(Option<String>, Option<String>)> {
    let list = api.get(&Kind::Cluster.path_of(Endpoint::ListPrimaries, name, &[])?).await?;
    let check = Kind::Cluster.path_of(Endpoint::ValidateCluster, name, &[])?;
    let checked = api.get(&check).await?;
    let rows: Vec<&Value> = question::items(&list).collect();
    let found = findings_of_cluster(checked.get("findings"), name, &rows, &check);
    let held = (!rows.is_empty()).then(|| format!("PRIMARIES\n{}", indented(&primary::shown(&rows))));
    Ok((found, held))
}

/// The findings that are about a cluster itself or about a node that holds one of its tags as primary; of the others how many there are, and
/// where they stand. They may be as many as the cluster has nodes.
fn findings_of_cluster(found: Option<&Value>, cluster: &str, primaries: &[&Value], all: &str) -> Option<String> {
    let holders = primaries.iter().filter_map(|row| Some(format!("node/{}", row.get("node")?.as_str()?)));
    let about: Vec<String> = holders.chain([format!("cluster/{cluster}")]).collect();
    let is_told = |one: &&Value| {
        let object = one.get("object").and_then(Value::as_str).and_then(|object| object.split(' ').next());
        object.is_some_and(|object| about.iter().any(|own| own == object))
    };
    let found = found.and_then(Value::as_array).filter(|found| !found.is_empty())?;
    let (told, others): (Vec<&Value>, Vec<&Value>) = found.iter().partition(is_told);
    let mut text = String::from("FINDINGS");
    if !told.is_empty() {
        let head = ["severity", "code", "object", "message"];
        let row = |one: &&Value| head.map(|field| cell(one.get(field))).to_vec();
        text.push_str(&format!("\n{}", indented(&table(&head, told.iter().map(row)))));
    }
    if !others.is_empty() {
        text.push_str(&format!("\n  {} about its groups and other nodes: stemma get --raw {all}", others.len()));
    }
    Some(text)
}

/// What was decided of an allocation: which node it has and why, or why it has none and what to do.
async fn decided(api: &mut Api, object: &Value) -> Result<String> {
    let Some(node) = allocation::node(api, object).await? else {
        let next = allocation::next(&question::name(Kind::Allocation, object), object);
        let rows = [("error", cell(object.get("last_error"))), ("next", next)];
        return Ok(format!("FAILED\n{}", indented(&lines(&rows))));
    };
    let why = allocation::why(object).unwrap_or_default();
    let rows = [("node", format!("{node} ({})", cell(object.get("node_uuid")))), ("why", why)];
    Ok(format!("CHOSEN\n{}", indented(&lines(&rows))))
}

fn lines(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(name, said)| printable(&format!("{name:<5} {said}"))).collect::<Vec<_>>().join("\n")
}

/// The results of the tasks that run there now.
fn current(report: &Value) -> Vec<&Value> {
    let results = report.get("results").and_then(Value::as_array).into_iter().flatten();
    results.filter(|result| result.get("is_current") != Some(&Value::Bool(false))).collect()
}

/// What is not as its tasks say and was not mended: which, since when, and the difference.
fn differing(results: &[&Value]) -> Option<String> {
    let differing: Vec<_> = results.iter().filter(|result| is_difference(result)).collect();
    let row =
        |result: &&&Value| vec![cell(result.get("task")), words(&cell(result.get("outcome"))), since(result.get("at"))];
    let mut text = format!("DIFFERS\n{}", indented(&table(&["task", "outcome", "since"], differing.iter().map(row))));
    for result in &differing {
        let diff = result.get("diff").and_then(Value::as_str).unwrap_or_default();
        if !diff.is_empty() {
            text.push_str(&format!("\n  {}:", printable(&cell(result.get("task")))));
        }
        diff.lines().take(MOST_DIFF_LINES).for_each(|line| text.push_str(&format!("\n    {}", printable(line))));
        let more = diff.lines().count().saturating_sub(MOST_DIFF_LINES);
        if more > 0 {
            text.push_str(&format!("\n    and {more} more lines; on the host: stemma-agent check"));
        }
    }
    (!differing.is_empty()).then_some(text)
}

/// The tasks that failed, of those that run there now: which, since when, what they said and printed, and what to do next.
fn failed(node: &str, results: &[&Value]) -> Option<String> {
    let failed: Vec<&Value> = results.iter().copied().filter(|result| is_failure(result.get("outcome"))).collect();
    let first = failed.iter().find(|result| result["outcome"] != "DependencyFailed").or(failed.first())?;
    let rows = failed.iter().map(|result| {
        let message = cell(result.get("message").filter(|message| message.as_str() != Some("")));
        vec![cell(result.get("task")), words(&cell(result.get("outcome"))), since(result.get("at")), message]
    });
    let rows = table(&["task", "outcome", "since", "what it said"], rows);
    let mut text = format!("FAILED\n{}", indented(&rows));
    for result in &failed {
        let lines = last_lines(result.get("output"));
        if !lines.is_empty() {
            text.push_str(&format!(
                "\n  the end of what {} printed:\n    {}",
                cell(result.get("task")),
                lines.join("\n    ")
            ));
        }
    }
    let task = cell(first.get("task"));
    text.push_str(&format!(
        "\n  next: stemma explain node {node} task {task} says what mends it; on the host: stemma-agent status, stemma-agent check"
    ));
    Some(text)
}

/// What is no map: the author's fields and what is worth knowing of the rest.
fn plain(kind: Kind, object: &Map<String, Value>) -> String {
    let (said, other) = written::known_of(kind);
    let rows = object.iter().filter(|(name, value)| {
        let name = name.as_str();
        let field = said.iter().find(|(known, _)| *known == name);
        let is_ours = field.is_some() || TOLD.contains(&name);
        let is_bare = field.is_some_and(|(_, form)| written::is_bare(*form, value));
        // What cuts off all that is inherited has to be seen.
        let cuts = name == "merge_labels" && object.get("provided_labels").is_some_and(Value::is_object);
        (!value.is_object() || is_bare)
            && (written::is_said(value) || is_bare || (cuts && kind != Kind::Clustertemplate))
            && (is_ours || other.iter().any(|kept| kept.name == name && !written::is_filled(kept, value)))
    });
    let shown = |name: &str, value: &Value| match value {
        Value::String(_) if question::is_time(name) => since(Some(value)),
        Value::Object(_) => "set, without a word more".to_owned(),
        Value::Array(items) if items.iter().any(Value::is_object) => format!("{} (-o json shows them)", items.len()),
        other => cell(Some(other)),
    };
    let table = table(&["", ""], rows.map(|(name, value)| vec![name.clone(), shown(name, value)]));
    table.lines().skip_while(|line| line.trim().is_empty()).collect::<Vec<_>>().join("\n")
}

/// A map of an object that is shown; a release's own maps are in its manifest.
fn is_section(kind: Kind, name: &str, value: &Value) -> bool {
    let is_noise =
        ["links", "trait_sources", "driver_info", "clean_step", "deploy_step", "explanation"].contains(&name);
    // Whom the cluster names is told with who holds the tag.
    let is_told = kind == Kind::Cluster && name == "primaries";
    value.is_object()
        && written::is_said(value)
        && !name.ends_with("_owners")
        && !is_noise
        && !is_told
        && (kind != Kind::Node || name != "traits")
}

/// A map as rows; of what is provided also the owners, and what is stopped here.
fn describe_section(object: &Map<String, Value>, section: &str, value: &Value) -> String {
    let owners = section.strip_prefix("provided_").map(|map| format!("{}_owners", map.trim_end_matches('s')));
    let owners = owners.and_then(|owners| object.get(&owners));
    let map = value.as_object().into_iter().flatten();
    let Some(owners) = owners else {
        return table(&["key", "value"], map.map(|(key, value)| vec![key.clone(), begun(value)]));
    };
    let said = |value: &Value| if value.is_null() { "null (not inherited)".to_owned() } else { cell(Some(value)) };
    table(&["key", "value", "owner"], map.map(|(key, value)| vec![key.clone(), said(value), cell(owners.get(key))]))
}

/// A value in a cell; of a long one its beginning.
fn begun(value: &Value) -> String {
    let text = cell(Some(value));
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}… (-o json shows all of it)", &text[..end]),
        None => text,
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn y09_each_difference_is_said_with_its_task() {
        let result = |task: &str, diff: &str| json!({"at": "2026-11-20T09:41:00+00:00", "task": task, "outcome": "WouldChange", "message": "", "diff": diff});
        let results = [result("motd", "-a\n+b\n"), result("run", ""), result("site", "-c\n")];
        let text = differing(&results.iter().collect::<Vec<_>>()).unwrap();
        assert!(text.ends_with("\n  motd:\n    -a\n    +b\n  site:\n    -c"), "{text}");
    }

    #[test]
    fn y06_a_task_that_is_only_observed_is_not_said_to_differ() {
        let result = |is_observed: Value| json!({"at": "2026-11-20T09:41:00+00:00", "task": "ob", "outcome": "WouldChange", "diff": "", "is_observed": is_observed});
        for (is_observed, differs) in [(json!(true), false), (json!(false), true), (Value::Null, true)] {
            assert_eq!(differing(&[&result(is_observed.clone())]).is_some(), differs, "{is_observed}");
        }
    }

    #[test]
    fn a_long_value_is_begun() {
        let roles: Map<String, Value> = (0..40).map(|n| (format!("role-{n}"), json!({"tags": ["a", "b"]}))).collect();
        let shown = begun(&roles.into());
        assert!(
            shown.starts_with("role-0=tags=a,b,role-1=") && shown.ends_with("… (-o json shows all of it)"),
            "{shown}"
        );
        assert_eq!((shown.chars().count() < 200, begun(&json!("short"))), (true, "short".to_owned()));
    }

    #[test]
    fn a_failed_node_says_which_task_and_what_to_do() {
        let report = json!({"results": [
            {"at": "2026-11-20T09:41:00+00:00", "task": "motd", "outcome": "Changed", "message": ""},
            {"at": "2026-11-20T09:41:00+00:00", "task": "note", "outcome": "DependencyFailed", "message": "site-conf failed"},
            {"at": "2026-11-20T09:41:00+00:00", "task": "gone", "outcome": "Failed", "message": "of before", "is_current": false},
            {"at": "2026-11-20T09:41:00+00:00", "task": "site-conf", "outcome": "Failed", "message": "the command ended with status 1", "output": "a\nb: no such user\n"},
            {"at": "2026-11-20T09:41:00+00:00", "task": "app", "outcome": "Failed", "message": "", "output": "disk full\n", "is_current": true}]});
        let text = failed("web-1", &current(&report)).unwrap();
        for line in [
            "site-conf  failed             2026-11-20 09:41",
            "the command ended with status 1",
            "the end of what site-conf printed:",
            "b: no such user",
            "the end of what app printed:\n    disk full",
            "next: stemma explain node web-1 task site-conf",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
        assert!(!text.contains("motd") && !text.contains("gone"), "{text}");
        assert_eq!(failed("web-1", &current(&json!({"results": null}))), None);
    }

    #[test]
    fn x07_of_a_cluster_its_own_findings_and_those_of_its_primaries_are_shown_and_the_others_counted() {
        let one = |object: &str| json!({"severity": "warning", "code": "a.rule", "object": object, "message": format!("of {object}.")});
        let rows = [json!({"tag": "db", "node": "db-1"}), json!({"tag": "mq", "node": null})];
        let rows: Vec<&Value> = rows.iter().collect();
        let shown = |found: &[&str]| {
            let found: Value = found.iter().map(|object| one(object)).collect();
            findings_of_cluster(Some(&found), "eu", &rows, "/v1/clusters/eu/validate")
        };
        let text = shown(&["cluster/eu", "cluster/eu tag/x", "node/db-1", "node/db-11", "nodegroup/eu/web"]).unwrap();
        assert!(text.starts_with("FINDINGS\n"), "{text}");
        for told in ["of cluster/eu.", "of cluster/eu tag/x.", "of node/db-1.", "a.rule", "warning"] {
            assert!(text.contains(told), "{told:?} in {text}");
        }
        assert!(!text.contains("of node/db-11.") && !text.contains("of nodegroup/eu/web."), "{text}");
        let more = "\n  2 about its groups and other nodes: stemma get --raw /v1/clusters/eu/validate";
        assert!(text.ends_with(more), "{text}");
        assert_eq!(shown(&["node/x"]).unwrap(), more.replace("\n  2", "FINDINGS\n  1"));
        assert_eq!(shown(&[]), None);
        assert_eq!(findings_of_cluster(None, "eu", &[], ""), None);
    }

    #[test]
    fn what_is_found_stands_with_its_rule_and_its_sentence() {
        let found = json!([{"severity": "error", "code": "identity.doubled", "object": "node/a", "message": "two hosts, 10.0.0.1 and 10.0.0.2"}]);
        let shown = findings(Some(&found)).unwrap();
        assert!(shown.starts_with("FINDINGS\n"), "{shown}");
        for part in ["error", "identity.doubled", "two hosts, 10.0.0.1 and 10.0.0.2"] {
            assert!(shown.contains(part), "{shown}");
        }
        assert_eq!(findings(Some(&json!([]))), None);
        assert_eq!(findings(None), None);
    }
}
