//! Formats `explain` for people: one line per level, the winner in capitals, the host's report below.

use std::fmt::Write as _;

use serde_json::Value;
use stemma_core::catalog::KeyKind;
use stemma_core::key::LabelKey;
use stemma_core::status::closed_barrier_text;

use crate::output::{cell_text, is_failure, is_observed, last_lines, printable_lines, split_words, table, time_with_age};

/// The words of a host about a task that it does not run, in the message of a task that requires it. A task id contains
/// no blank.
const NOT_RUN_BY_MODE: &str = " is neither run nor checked";

/// Formats the provenance of one label on one node.
pub(crate) fn explain_label(node: &str, key: &str, explained: &Value) -> String {
    let mut text = match explained.get("value").and_then(Value::as_str) {
        Some(value) => format!("{key} = {value}      {}", node_with_group(node, explained)),
        None => format!("{key} is not set      {}", node_with_group(node, explained)),
    };
    let levels = table_rows(explained, "levels", |line| {
        vec![
            cell_text(line.get("level")),
            cell_text(line.get("object")),
            provided_text(line),
            cell_text(line.get("owners").filter(|owners| owners.as_array().is_none_or(|owners| !owners.is_empty()))),
            time_with_age(line.get("since")),
            level_result(line),
        ]
    });
    let rules = table_rows(explained, "rules", |line| {
        vec![
            "(rule)".into(),
            cell_text(line.get("rule")),
            cell_text(line.get("says")),
            "-".into(),
            "-".into(),
            source_result(line),
        ]
    });
    let reported = table_rows(explained, "reported", |line| {
        let source = format!("host {}", cell_text(line.get("source")));
        vec!["(reported)".into(), node.into(), cell_text(line.get("value")), source, "-".into(), source_result(line)]
    });
    let lines = table(&["level", "object", "says", "owner", "since", "result"], levels.into_iter().chain(rules).chain(reported));
    let _ = write!(text, "\n  {}", lines.replace('\n', "\n  "));
    if let Some(tasks) = joined(explained, "used_by") {
        let word = if tasks.contains(',') { "tasks" } else { "task" };
        let _ = write!(text, "\nUsed by   {word} {tasks}");
    }
    let is_set = explained.get("value").is_some_and(Value::is_string);
    if let Some(flows) = joined(explained, "flows_to").filter(|_| is_set) {
        let map =
            if is_true(explained, "to_host_map") { "" } else { "; not the host label map (`host_labels` names no such key)" };
        let _ = write!(text, "\nFlows to  {flows}{map}");
    }
    if LabelKey::new(key).is_ok() {
        let _ = write!(text, "\nChange    stemma label {} {key}=…", edited_object(node, explained));
    }
    printable_lines(&text)
}

/// Returns the object to edit to change the label: that of the winning level, or the node itself.
fn edited_object(node: &str, explained: &Value) -> String {
    let levels = explained.get("levels").and_then(Value::as_array);
    let wins = levels.into_iter().flatten().find(|line| line.get("result").and_then(Value::as_str) == Some("wins"));
    wins.map_or_else(
        || format!("node {node}"),
        |line| format!("{} {}", cell_text(line.get("level")), cell_text(line.get("object"))),
    )
}

fn node_with_group(node: &str, explained: &Value) -> String {
    format!("{node} ({})", explained.get("group").and_then(Value::as_str).unwrap_or("unplaced"))
}

/// Returns the items of a list separated by commas, or `None` if the list is absent or empty.
fn joined(explained: &Value, field: &str) -> Option<String> {
    let items = explained.get(field)?.as_array().filter(|items| !items.is_empty())?;
    Some(items.iter().map(|item| cell_text(Some(item))).collect::<Vec<_>>().join(", "))
}

fn table_rows(explained: &Value, field: &str, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    explained.get(field).and_then(Value::as_array).into_iter().flatten().map(row).collect()
}

fn is_true(explained: &Value, field: &str) -> bool {
    explained.get(field).and_then(Value::as_bool) == Some(true)
}

/// Formats why a task runs on a node or not, its last result, and what to do if it failed.
pub(crate) fn explain_task(node: &str, id: &str, explained: &Value) -> String {
    let runs = is_true(explained, "runs");
    let why = cell_text(explained.get("why"));
    let release = explained.get("release").filter(|release| !release.is_null()).map(|release| cell_text(Some(release)));
    let retained = retained_release(explained);
    let mut lines: Vec<_> = match retained {
        Some(retained) => {
            let unconfirmed = if is_true(explained, "told") { "" } else { "; it has not confirmed that it has it" };
            let next = release.map_or_else(String::new, |release| format!("{release}: "));
            vec![("host", format!("keeps {retained}, which has this task{unconfirmed}")), ("next", format!("{next}{why}"))]
        }
        None => {
            let reads = joined(explained, "reads").map(|reads| ("reads", reads));
            [Some(("why", why)), release.map(|release| ("release", release)), reads].into_iter().flatten().collect()
        }
    };
    if runs || retained.is_some() || is_true(explained, "released") {
        lines.extend(run_lines(node, explained));
    }
    let verb = match retained {
        Some(_) => "still runs on",
        None if runs => "runs on",
        None => "does not run on",
    };
    let mut text = format!("{id} {verb} {}", node_with_group(node, explained));
    for (name, what) in lines {
        let _ = write!(text, "\n  {name:<9} {what}");
    }
    printable_lines(&text)
}

/// Returns the release of the task set that the host retains, if that release has the task and the next one does not
/// place it on this node. `None` if no such release is known.
fn retained_release(explained: &Value) -> Option<&str> {
    let release = explained.get("keeps").and_then(Value::as_str).filter(|_| !is_true(explained, "runs"))?;
    // If the host reported the task under the task set in force, then that task set contains the task.
    let of_before = explained.get("last").and_then(|last| last.get("of_before"));
    let is_in_force = of_before.and_then(Value::as_bool) == Some(false);
    (is_true(explained, "released") || is_in_force).then_some(release)
}

/// Returns the lines about a task that runs, or that the host still runs.
fn run_lines(node: &str, explained: &Value) -> Vec<(&'static str, String)> {
    // For a retained task, the lines above already show what the host has and what is next.
    let mut lines = Vec::new();
    if retained_release(explained).is_none() {
        lines.push(("released", release_line(explained)));
    }
    let set_aside = explained.get("set_aside").and_then(Value::as_array).into_iter().flatten();
    lines.extend(set_aside.map(|reason| ("but", cell_text(Some(reason)))));
    let waits = explained.get("waits").and_then(Value::as_array).into_iter().flatten();
    lines.extend(waits.map(|row| ("waits", barrier_line(explained, row))));
    let Some(last) = explained.get("last").filter(|last| last.is_object()) else {
        lines.push(("last", "the host has reported nothing about it yet".to_owned()));
        return lines;
    };
    let outcome = if is_observed(last) { "observed".to_owned() } else { split_words(&cell_text(last.get("outcome"))) };
    let message = last.get("message").and_then(Value::as_str).filter(|said| !said.is_empty());
    let message = message.map_or_else(String::new, |said| format!(": {said}"));
    let of_before = if is_true(last, "of_before") { " (of the previous task set)" } else { "" };
    lines.push(("last", format!("{outcome}, {}{of_before}{message}", time_with_age(last.get("at")))));
    if is_failure(last.get("outcome")) {
        let printed = last_lines(last.get("output")).into_iter().enumerate();
        lines.extend(printed.map(|(at, line)| (if at == 0 { "printed" } else { "" }, line)));
        lines.extend(remedy_lines(node, explained, last));
    }
    lines
}

/// Formats whether a task is released, and how far its delivery is.
fn release_line(explained: &Value) -> String {
    let keeps = explained.get("keeps").and_then(Value::as_str);
    match (is_true(explained, "released"), is_true(explained, "told"), published_line(explained)) {
        (false, is_sent, _) => match keeps {
            Some(keeps) => format!("no: its host keeps {keeps}"),
            None if is_sent => "not yet: the host runs its previous task set".to_owned(),
            None => "not yet".to_owned(),
        },
        (true, true, Some(published)) if is_true(explained, "confirmed") => format!("yes: {published}"),
        (true, true, Some(published)) => {
            format!("yes: the host has this task set; its other desired state was {published}")
        }
        (true, true, None) => "yes: it was sent to the host".to_owned(),
        (true, false, _) if unsent_reason(explained).is_some() => "yes, but nothing is sent to the host: see below".to_owned(),
        (true, false, Some(published)) => format!("yes: {published}"),
        (true, false, None) => "yes, but the host has not confirmed it".to_owned(),
    }
}

/// Formats the revision at which the host's desired state was published, and the revision that the host confirmed.
/// `None` from a controller before this version, which reports neither.
fn published_line(explained: &Value) -> Option<String> {
    let revision = |field: &str| explained.get(field).and_then(Value::as_u64);
    let at = revision("published_revision")?;
    if is_true(explained, "confirmed") {
        return Some(format!("published at revision {at}, which the host confirmed"));
    }
    let confirmed = match revision("confirmed_revision") {
        Some(confirmed) => format!("the host confirmed {confirmed}"),
        None => "the host has confirmed none since the controller started".to_owned(),
    };
    let is_silent = explained.get("connection").and_then(Value::as_str) == Some("silent");
    let silent = if is_silent {
        format!(" and has been silent since {}", time_with_age(explained.get("last_seen")))
    } else {
        String::new()
    };
    Some(format!("published at revision {at}; {confirmed}{silent}"))
}

/// Returns how to fix a failed task, and what to do until then.
fn remedy_lines(node: &str, explained: &Value, last: &Value) -> Vec<(&'static str, String)> {
    let task = cell_text(explained.get("task"));
    match last.get("outcome").and_then(Value::as_str) {
        Some("DependencyFailed") => return vec![("remedy", remedy_for_required(node, explained, last))],
        Some("Unknown") => {
            return vec![("remedy", format!("check the host, then run there: stemma-agent resolve-unknown {task} done|again"))];
        }
        _ => {}
    }
    let release = release_name(explained);
    if retained_release(explained).is_some() {
        return vec![("remedy", format!("{task} ends on this host once it gets {release}"))];
    }
    let reads = joined(explained, "reads").map_or(String::new(), |reads| format!(", or change what it reads ({reads})"));
    vec![
        ("remedy", format!("apply a newer version of {release}, with {task} fixed{reads}")),
        ("retry", "automatic, less and less often; to retry now, run on the host: stemma-agent once".to_owned()),
        ("hold", format!("stemma node hold {node} --reason TEXT keeps it from other task sets until stemma node unhold {node}")),
    ]
}

/// Returns how to fix a task that did not run because a task that it requires has not succeeded. That task failed, or
/// its mode prevents it from running.
fn remedy_for_required(node: &str, explained: &Value, last: &Value) -> String {
    let message = last.get("message").and_then(Value::as_str).unwrap_or_default();
    if message.contains(NOT_RUN_BY_MODE) {
        let release = release_name(explained);
        let task = cell_text(explained.get("task"));
        return format!(
            "apply a newer version of {release} in which {task} does not require the other task, or the other task has another mode"
        );
    }
    format!("the task that failed first: stemma describe node {node} lists it")
}

fn release_name(explained: &Value) -> &str {
    explained.get("release").and_then(Value::as_str).unwrap_or("its release")
}

/// Returns why nothing is sent to the host, or `None` if it is sent.
fn unsent_reason(explained: &Value) -> Option<&str> {
    explained.get("untold").and_then(Value::as_str)
}

/// Formats whether the node's agent is connected, when it was last seen, and why nothing is sent to the host, if so.
/// Nothing reaches a host while its agent is away.
pub(crate) fn contact_line(explained: &Value) -> String {
    let seen = explained.get("last_seen").filter(|at| !at.is_null());
    let seen = seen.map_or_else(|| "never".to_owned(), |at| time_with_age(Some(at)));
    let is_unconfirmed = explained.get("confirmed").and_then(Value::as_bool) == Some(false);
    let unconfirmed = || {
        let how_far = published_line(explained).map_or_else(String::new, |published| format!(": {published}"));
        format!("the host has not confirmed its latest desired state{how_far}")
    };
    let reason = unsent_reason(explained).map(str::to_owned).or_else(|| is_unconfirmed.then(unconfirmed));
    let note = reason.map_or_else(String::new, |why| format!("\n  but       {why}"));
    printable_lines(&format!("  agent     {}\n  last seen {seen}{note}", cell_text(explained.get("connection"))))
}

/// Formats a closed barrier before a task: the task that it waits for, the nodes that have not passed it, and why.
fn barrier_line(explained: &Value, row: &Value) -> String {
    let nodes = row.get("waits_for").and_then(Value::as_array).into_iter().flatten();
    let nodes: Vec<_> = nodes.map(|node| (cell_text(node.get("node")), cell_text(node.get("why")))).collect();
    let count = row.get("count").and_then(Value::as_u64).unwrap_or(0);
    let here = match row.get("here") {
        here if here == explained.get("task") => String::new(),
        here => format!("for {} here, which waits ", cell_text(here)),
    };
    format!("{here}for {}", closed_barrier_text(&cell_text(row.get("task")), &cell_text(row.get("selector")), &nodes, count))
}

/// Formats why a node has a tag or not.
pub(crate) fn explain_tag(node: &str, name: &str, explained: &Value) -> String {
    let has = if is_true(explained, "has") { "is on" } else { "is not on" };
    let primary = if is_true(explained, "primary") { ", as primary" } else { "" };
    let mut text = format!(
        "tag {name} {has} {}{primary}\n  why       {}",
        node_with_group(node, explained),
        cell_text(explained.get("why"))
    );
    if let Some(holder) = explained.get("holder").and_then(Value::as_str) {
        let _ = write!(text, "\n  primary   {holder} holds it");
    }
    if let Some(change) = explained.get("change").and_then(Value::as_str) {
        let _ = write!(text, "\n  change    stemma tag {change} {node} {name}");
    }
    printable_lines(&text)
}

/// Formats the sources that gave a node a trait.
pub(crate) fn explain_trait(node: &str, name: &str, explained: &Value) -> String {
    let place = node_with_group(node, explained);
    if is_true(explained, "has") {
        let sources = joined(explained, "sources").unwrap_or_default();
        return printable_lines(&format!("{place} has trait {name}\n  from      {sources}"));
    }
    let why = cell_text(explained.get("why"));
    let change = explained.get("change").and_then(Value::as_str);
    let change = change.map_or_else(String::new, |verb| format!("\n  change    stemma trait {verb} {node} {name}"));
    printable_lines(&format!("{place} has no trait {name}\n  why       {why}{change}"))
}

/// Formats the catalogue's definition of a key, one block for each namespace that binds it.
pub(crate) fn explain_key(kind: KeyKind, key: &str, explained: &Value) -> String {
    let mut text = format!("{} {key}", kind.description());
    for binding in explained.get("bindings").and_then(Value::as_array).into_iter().flatten() {
        let property = |field: &str| binding.get("property").and_then(|property| property.get(field));
        let _ = write!(text, "\n  {:<12} {}", "title", cell_text(property("title")));
        let rows = [
            ("description", "description"),
            ("type", "type"),
            ("values", "enum"),
            ("least", "minimum"),
            ("most", "maximum"),
            ("fewest chars", "minLength"),
            ("most chars", "maxLength"),
            ("pattern", "pattern"),
            ("default", "default"),
        ];
        for (name, field) in rows {
            if let Some(value) = property(field).filter(|value| !value.is_null()) {
                let _ = write!(text, "\n  {name:<12} {}", cell_text(Some(value)));
            }
        }
        if let Some(values) = property("items").and_then(|items| items.get("enum")) {
            let _ = write!(text, "\n  {:<12} {}", "each one of", cell_text(Some(values)));
        }
        let operators = match property("operators").and_then(Value::as_array) {
            None => "any".to_owned(),
            Some(listed) if listed.is_empty() => "none of <or>, <in>, <all-in>".to_owned(),
            Some(_) => cell_text(property("operators")),
        };
        let _ = write!(text, "\n  {:<12} {operators}", "operators");
        let _ = write!(text, "\n  {:<12} {}", "namespace", cell_text(binding.get("namespace")));
    }
    printable_lines(&text)
}

/// Returns the result column of a level. The winner is in capitals. A level without a value passes on the value from
/// above.
fn level_result(line: &Value) -> String {
    match line.get("result").and_then(Value::as_str) {
        Some("wins") => "WINS: nearest level that sets it".to_owned(),
        Some("says nothing") => "merges".to_owned(),
        _ => cell_text(line.get("result")),
    }
}

/// Like [`level_result`], for a rule or a host, which are not levels.
fn source_result(line: &Value) -> String {
    match line.get("result").and_then(Value::as_str) {
        Some("wins") => "WINS: no level sets it".to_owned(),
        _ => cell_text(line.get("result")),
    }
}

fn provided_text(line: &Value) -> String {
    if is_true(line, "stops") { "null (not inherited)".to_owned() } else { cell_text(line.get("says")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn explain_label_has_line_per_level_and_host() {
        let text = explain_label(
            "web-1",
            "tier",
            &json!({"group": "prod/frontends", "value": "gold",
                "levels": [
                    {"level": "clustertemplate", "object": "base", "says": "standard", "owners": ["site:apply"], "result": "overridden by nodegroup"},
                    {"level": "cluster", "object": "prod", "says": null, "owners": [], "result": null},
                    {"level": "nodegroup", "object": "frontends", "says": "gold", "owners": ["site:apply"], "result": "wins"},
                    {"level": "node", "object": "web-1", "stops": true, "owners": ["ops:update"], "result": null}],
                "reported": [{"value": "silver", "source": "labels.d/local:1", "result": "shadowed: cannot override an operator"}],
                "used_by": ["site-conf"]}),
        );
        for line in [
            "tier = gold      web-1 (prod/frontends)",
            "clustertemplate  base       standard",
            "WINS: nearest level that sets it",
            "null (not inherited)",
            "host labels.d/local:1",
            "Change    stemma label nodegroup frontends tier=…",
            "Used by   task site-conf",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
    }

    #[test]
    fn explain_tag_matches_primary_name_like_selectors() {
        let text = explain_tag(
            "db-1",
            "primary-mysql",
            &json!({"group": "prod/databases", "has": true, "primary": true, "primary_of": "mysql", "holder": "db-1",
                "why": "it holds mysql as primary, and selectors match it by both names"}),
        );
        assert!(text.starts_with("tag primary-mysql is on db-1 (prod/databases), as primary"), "{text}");
        assert!(text.ends_with("\n  primary   db-1 holds it"), "no tag of that name is assigned: {text}");
    }

    #[test]
    fn explain_trait_shows_sources_when_suppressed() {
        let why = "an operator suppressed it; it is given by: detected";
        let has_none = json!({"group": "prod/web", "has": false, "sources": ["detected"], "why": why, "change": "unsuppress"});
        let text = explain_trait("web-1", "CUSTOM_A", &has_none);
        assert!(text.contains(&format!("\n  why       {why}\n")), "{text}");
        assert!(text.ends_with("\n  change    stemma trait unsuppress web-1 CUSTOM_A"), "{text}");
    }

    #[test]
    fn explain_proposes_only_valid_commands() {
        let of = |change: Value| json!({"group": "prod/web", "has": false, "sources": [], "why": "x", "change": change});
        assert!(explain_tag("web-1", "nginx", &of("assign".into())).ends_with("\n  change    stemma tag assign web-1 nginx"));
        assert!(explain_trait("web-1", "HW_X", &of("add".into())).ends_with("\n  change    stemma trait add web-1 HW_X"));
        for text in [explain_tag("web-1", "nosuch", &of(Value::Null)), explain_trait("web-1", "BOGUS", &of(Value::Null))] {
            assert!(!text.contains("change"), "{text}");
        }
        assert!(!explain_label("web-1", "a b", &json!({"levels": []})).contains("Change"));
    }

    #[test]
    fn w08_barrier_line_shows_missing_nodes() {
        let row = |here: &str| {
            json!({"here": here, "task": "db", "selector": "tags mysql", "count": 3,
                "waits_for": [{"node": "db-1", "why": "it is silent"}, {"node": "db-2", "why": "db failed there"}]})
        };
        let explained = json!({"task": "app", "runs": true, "released": true, "why": "x", "waits": [row("app"), row("conf")]});
        let text = explain_task("web-1", "app", &explained);
        let waits = "for db on tags mysql: db-1 (it is silent), db-2 (db failed there) and 1 more";
        assert!(text.contains(&format!("\n  waits     {waits}\n  waits     for conf here, which waits {waits}\n")), "{text}");
    }

    #[test]
    fn explain_task_shows_reason_when_skipped() {
        let explained = json!({"runs": true, "released": true, "told": true, "why": "x",
            "set_aside": ["it is paused on its host, which applies nothing until it is resumed there"]});
        let text = explain_task("web-1", "a", &explained);
        assert!(text.contains("released  yes: it was sent to the host\n  but       it is paused on its host"), "{text}");
    }

    #[test]
    fn explain_task_shows_retained_task() {
        let explained = json!({"runs": false, "released": true, "told": true, "why": "x",
            "set_aside": ["requirement a >= 1 is not met: no new task set is released"]});
        let text = explain_task("web-1", "a", &explained);
        let told = "released  yes: it was sent to the host\n  but       requirement a >= 1 is not met";
        assert!(text.starts_with("a does not run on") && text.contains(told), "{text}");
    }

    /// The output said that the task does not run there, and did not mention what the host runs.
    #[test]
    fn y06_explain_task_shows_retained_and_next_release() {
        let held = "it is held (a disk is changed): no new task set is released";
        let of = |change: Value| {
            let mut explained = json!({"task": "a", "group": "c/g", "release": "site@2", "runs": false, "reads": [], "set_aside": [held],
                "why": "the node's release has no such task", "released": true, "keeps": "site@1", "told": true, "waits": [], "last": null});
            explained.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            explain_task("n1", "a", &explained)
        };
        let expected = format!(
            "a still runs on n1 (c/g)\n  host      keeps site@1, which has this task\n  next      site@2: the node's release has no such task\n  \
             but       {held}\n  last      the host has reported nothing about it yet"
        );
        assert_eq!(of(json!({})), expected);
        let unconfirmed = of(json!({"told": false}));
        assert!(unconfirmed.contains("which has this task; it has not confirmed that it has it\n"), "{unconfirmed}");
        // The next release has the task and does not place it here. The host ran it as part of the retained task set.
        let elsewhere = json!({"released": false, "why": "it does not run on this node: it is placed by tags x"});
        let last = |of_before: bool| json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "Succeeded", "message": "", "of_before": of_before});
        for (of_before, heading) in [(false, "a still runs on n1 (c/g)\n  host "), (true, "a does not run on n1 (c/g)\n  why ")] {
            let mut change = elsewhere.clone();
            change["last"] = last(of_before);
            let text = of(change);
            assert!(text.starts_with(heading), "{text}");
        }
        let failed =
            of(json!({"last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Failed", "message": "x", "of_before": false}}));
        assert!(failed.contains("\n  remedy    a ends on this host once it gets site@2"), "{failed}");
        assert!(!failed.contains("with a fixed"), "{failed}");
    }

    #[test]
    fn y06_explain_task_marks_earlier_results_when_host_is_held() {
        let explained = json!({"runs": true, "released": false, "told": true, "keeps": "r@1", "why": "x",
            "last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Changed", "message": "", "of_before": true}});
        let text = explain_task("web-1", "a", &explained);
        assert!(text.contains("\n  released  no: its host keeps r@1\n"), "{text}");
        assert!(text.ends_with("(of the previous task set)"), "{text}");
        for (confirmed, says) in [(json!(false), true), (json!(true), false), (json!(null), false)] {
            let told = contact_line(&json!({"connection": "silent", "confirmed": confirmed}));
            assert_eq!(told.ends_with("\n  but       the host has not confirmed its latest desired state"), says, "{told}");
        }
    }

    /// It claimed delivery for every released task, also on hosts that never had an agent.
    #[test]
    fn w08_release_line_claims_delivery_when_host_confirmed() {
        for (released, told, said) in [
            (true, Some(true), "yes: it was sent to the host"),
            (true, Some(false), "yes, but the host has not confirmed it"),
            (true, None, "yes, but the host has not confirmed it"),
            (false, Some(true), "not yet: the host runs its previous task set"),
            (false, Some(false), "not yet"),
        ] {
            let text = explain_task("web-1", "a", &json!({"runs": true, "released": released, "told": told, "why": "x"}));
            assert!(text.contains(&format!("\n  released  {said}\n")), "{said:?} in\n{text}");
        }
    }

    #[test]
    fn y09_published_line_shows_published_and_confirmed_revisions() {
        let of = |told: bool, confirmed: Value, held: Value, connection: &str| {
            json!({"runs": true, "released": true, "told": told, "why": "x", "confirmed": confirmed, "published_revision": 1285,
                "confirmed_revision": held, "connection": connection, "last_seen": "2026-11-20T12:27:00+00:00"})
        };
        for (explained, said) in [
            (of(true, json!(true), json!(1285), "connected"), "yes: published at revision 1285, which the host confirmed\n"),
            (of(false, json!(false), json!(1266), "connected"), "yes: published at revision 1285; the host confirmed 1266\n"),
            (
                of(false, json!(false), json!(1266), "silent"),
                "yes: published at revision 1285; the host confirmed 1266 and has been silent since 2026-11-20 12:27 (",
            ),
            (
                of(false, json!(null), json!(null), "absent"),
                "yes: published at revision 1285; the host has confirmed none since the controller started\n",
            ),
            (
                of(true, json!(false), json!(1266), "connected"),
                "yes: the host has this task set; its other desired state was published at revision 1285; the host confirmed 1266\n",
            ),
        ] {
            let text = explain_task("web-1", "a", &explained);
            assert!(text.contains(&format!("\n  released  {said}")), "{said:?} in\n{text}");
        }
        let text = contact_line(&of(false, json!(false), json!(1266), "connected"));
        let but =
            "but       the host has not confirmed its latest desired state: published at revision 1285; the host confirmed 1266";
        assert!(text.ends_with(but), "{text}");
    }

    #[test]
    fn contact_line_shows_last_contact() {
        assert_eq!(contact_line(&json!({"connection": "absent", "last_seen": null})), "  agent     absent\n  last seen never");
        let seen = contact_line(&json!({"connection": "silent", "last_seen": "2026-11-20T09:41:00+00:00"}));
        assert!(seen.starts_with("  agent     silent\n  last seen 2026-11-20 09:41 ("), "{seen}");
    }

    #[test]
    fn x02_explain_task_shows_unsent_reason() {
        let why = "its host holds revision 185 of another store (epoch e1), and this one was restored from a backup and is at revision 1000025 \
                   of epoch e2; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
        let explained =
            json!({"runs": true, "released": true, "told": false, "why": "x", "connection": "connected", "untold": why});
        let text = explain_task("web-1", "a", &explained);
        assert!(text.contains("\n  released  yes, but nothing is sent to the host: see below\n"), "{text}");
        assert!(contact_line(&explained).ends_with(&format!("\n  but       {why}")), "of a label as well");
        let told = json!({"connection": "connected", "last_seen": null, "untold": null});
        assert!(!contact_line(&told).contains("but"), "{}", contact_line(&told));
    }

    #[test]
    fn remedy_lines_depend_on_outcome() {
        for (outcome, said) in [
            ("DependencyFailed", "\n  remedy    the task that failed first: stemma describe node web-1 lists it"),
            ("Unknown", "\n  remedy    check the host, then run there: stemma-agent resolve-unknown a done|again"),
            ("Unsupported", "\n  remedy    apply a newer version of its release, with a fixed\n"),
        ] {
            let last = json!({"at": "2026-11-20T09:41:00+00:00", "outcome": outcome, "message": "", "output": ""});
            let text = explain_task("web-1", "a", &json!({"task": "a", "runs": true, "why": "x", "last": last}));
            assert!(text.contains(said), "{said:?} in\n{text}");
        }
    }

    #[test]
    fn y06_explain_task_shows_observed_task_without_failure() {
        let account = |last: Value| {
            explain_task("web-1", "a", &json!({"task": "a", "release": "site@1", "runs": true, "why": "x", "last": last}))
        };
        let seen =
            account(json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "WouldChange", "is_observed": true, "output": "",
            "message": "its mode is observe: it is neither run nor checked"}));
        assert!(seen.contains("\n  last      observed, 2026-11-20 09:41 (") && !seen.contains("would change"), "{seen}");
        let after = account(json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "DependencyFailed", "output": "",
            "message": "Not run: f, which it requires, is neither run nor checked, since its mode is observe."}));
        let remedy = "\n  remedy    apply a newer version of site@1 in which a does not require the other task, or the other task has another mode";
        assert!(after.contains(remedy) && !after.contains("failed first"), "{after}");
    }

    #[test]
    fn explain_task_shows_output_and_remedy_when_failed() {
        let explained = json!({"group": "prod/frontends", "task": "site-conf", "release": "site@1", "runs": true, "released": true,
            "why": "it runs on this node by tags nginx", "reads": ["labels.tier"],
            "last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Failed", "message": "no such user", "output": "a\nb\n"}});
        let text = explain_task("web-1", "site-conf", &explained);
        for line in [
            "site-conf runs on web-1 (prod/frontends)\n  why       it runs on this node by tags nginx",
            "  last      failed, 2026-11-20 09:41 (",
            "): no such user\n  printed   a\n            b\n",
            "\n  remedy    apply a newer version of site@1, with site-conf fixed, or change what it reads (labels.tier)\n",
            "\n  retry     automatic, less and less often; to retry now, run on the host: stemma-agent once\n",
            "\n  hold      stemma node hold web-1 ",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
        assert!(!text.contains("describe"), "that refers to this: {text}");
        assert!(!text.contains("at="), "{text}");
        let never =
            explain_task("db-1", "x", &json!({"runs": false, "why": "it does not run on this node: it is placed by tags nginx"}));
        assert_eq!(
            never,
            "x does not run on db-1 (unplaced)\n  why       it does not run on this node: it is placed by tags nginx"
        );
    }
}
