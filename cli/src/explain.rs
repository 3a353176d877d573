//! Formats the result of `stemma explain` for people. A label has a table with one line for each level. Below the levels
//! are the values of inspection rules and of the host. The word WINS marks the line whose value applies.

use std::fmt::Write as _;

use serde_json::Value;
use stemma_core::catalog::KeyKind;
use stemma_core::key::LabelKey;
use stemma_core::status::closed_barrier_text;

use crate::output::{cell_text, is_failure, is_observed, last_lines, printable_lines, split_words, table, time_with_age};

/// A part of the host's message about a task that did not run. This part states that a required task does not run
/// because of that task's mode. The part begins with a blank. A task id contains no blank, so no id can imitate it.
const NOT_RUN_BY_MODE: &str = " is neither run nor checked";

/// Returns the text about one label of one node. A table contains the values of the levels, of inspection rules and of
/// the host. Below are the tasks that read the label, where its value is sent, and the command that changes it.
pub(crate) fn explain_label(node: &str, key: &str, explained: &Value) -> String {
    let mut text = match explained.get("value").and_then(Value::as_str) {
        Some(value) => format!("{key} = {value}      {}", node_with_group(node, explained)),
        None => format!("{key} is not set      {}", node_with_group(node, explained)),
    };
    let levels = table_rows(explained, "levels", |entry| {
        vec![
            cell_text(entry.get("level")),
            cell_text(entry.get("object")),
            provided_text(entry),
            cell_text(entry.get("owners").filter(|owners| owners.as_array().is_none_or(|owners| !owners.is_empty()))),
            time_with_age(entry.get("since")),
            level_result(entry),
        ]
    });
    let rules = table_rows(explained, "rules", |entry| {
        vec![
            "(rule)".into(),
            cell_text(entry.get("rule")),
            cell_text(entry.get("says")),
            "-".into(),
            "-".into(),
            source_result(entry),
        ]
    });
    let reported = table_rows(explained, "reported", |entry| {
        let source = format!("host {}", cell_text(entry.get("source")));
        vec!["(reported)".into(), node.into(), cell_text(entry.get("value")), source, "-".into(), source_result(entry)]
    });
    let lines = table(&["level", "object", "says", "owner", "since", "result"], levels.into_iter().chain(rules).chain(reported));
    let _ = write!(text, "\n  {}", lines.replace('\n', "\n  "));
    if let Some(tasks) = joined_list(explained, "used_by") {
        let word = if tasks.contains(',') { "tasks" } else { "task" };
        let _ = write!(text, "\nUsed by   {word} {tasks}");
    }
    let is_set = explained.get("value").is_some_and(Value::is_string);
    if let Some(targets) = joined_list(explained, "flows_to").filter(|_| is_set) {
        let host_map_note =
            if is_true(explained, "to_host_map") { "" } else { "; not the host label map (`host_labels` names no such key)" };
        let _ = write!(text, "\nFlows to  {targets}{host_map_note}");
    }
    if LabelKey::new(key).is_ok() {
        let _ = write!(text, "\nChange    stemma label {} {key}=…", edited_object(node, explained));
    }
    printable_lines(&text)
}

/// Returns the object to edit in order to change a label: the object of the winning level, or the node itself if no
/// level wins.
fn edited_object(node: &str, explained: &Value) -> String {
    let levels = explained.get("levels").and_then(Value::as_array);
    let winner = levels.into_iter().flatten().find(|level| level.get("result").and_then(Value::as_str) == Some("wins"));
    winner.map_or_else(
        || format!("node {node}"),
        |level| format!("{} {}", cell_text(level.get("level")), cell_text(level.get("object"))),
    )
}

/// Returns the name of the node with its group, or with `unplaced`.
fn node_with_group(node: &str, explained: &Value) -> String {
    format!("{node} ({})", explained.get("group").and_then(Value::as_str).unwrap_or("unplaced"))
}

/// Returns the items of a list as text, separated by commas. Returns `None` if the list is absent or empty.
fn joined_list(explained: &Value, field: &str) -> Option<String> {
    let items = explained.get(field)?.as_array().filter(|items| !items.is_empty())?;
    Some(items.iter().map(|item| cell_text(Some(item))).collect::<Vec<_>>().join(", "))
}

/// Returns a table row for each item of a list in the response.
fn table_rows(explained: &Value, field: &str, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    explained.get(field).and_then(Value::as_array).into_iter().flatten().map(row).collect()
}

/// Returns whether a field of the response is `true`.
fn is_true(explained: &Value, field: &str) -> bool {
    explained.get(field).and_then(Value::as_bool) == Some(true)
}

/// Returns the text about one task of one node: why it runs there or not, its last result, and what to do if it failed.
/// If the host retains an older task set with this task, which the next one lacks, the text names both releases. In the
/// response, `told` is true if the host has confirmed the task set that was released to it.
pub(crate) fn explain_task(node: &str, id: &str, explained: &Value) -> String {
    let runs = is_true(explained, "runs");
    let reason = cell_text(explained.get("why"));
    let release = explained.get("release").filter(|release| !release.is_null()).map(|release| cell_text(Some(release)));
    let retained = retained_release(explained);
    let mut lines: Vec<_> = match retained {
        Some(retained) => {
            let unconfirmed = if is_true(explained, "told") { "" } else { "; it has not confirmed that it has it" };
            let next = release.map_or_else(String::new, |release| format!("{release}: "));
            vec![("host", format!("keeps {retained}, which has this task{unconfirmed}")), ("next", format!("{next}{reason}"))]
        }
        None => {
            let reads = joined_list(explained, "reads").map(|reads| ("reads", reads));
            [Some(("why", reason)), release.map(|release| ("release", release)), reads].into_iter().flatten().collect()
        }
    };
    // For a task that does not concern the host, there is nothing more to show.
    if runs || retained.is_some() || is_true(explained, "released") {
        lines.extend(run_lines(node, explained));
    }
    let verb = match retained {
        Some(_) => "still runs on",
        None if runs => "runs on",
        None => "does not run on",
    };
    let mut text = format!("{id} {verb} {}", node_with_group(node, explained));
    for (name, value) in lines {
        let _ = write!(text, "\n  {name:<9} {value}");
    }
    printable_lines(&text)
}

/// Returns the release of an older task set, if the host still runs the task from it and the node's next task set does
/// not contain the task. Otherwise returns `None`.
fn retained_release(explained: &Value) -> Option<&str> {
    let release = explained.get("keeps").and_then(Value::as_str).filter(|_| !is_true(explained, "runs"))?;
    // If the last result of the task is from the current task set of the host, that task set contains the task.
    let is_of_previous_set = explained.get("last").and_then(|last| last.get("of_before"));
    let is_in_force = is_of_previous_set.and_then(Value::as_bool) == Some(false);
    (is_true(explained, "released") || is_in_force).then_some(release)
}

/// Returns the lines about a task that the host runs or still runs. They show the delivery of the task set, what stops
/// the task, its barriers, and its last result.
fn run_lines(node: &str, explained: &Value) -> Vec<(&'static str, String)> {
    // For a retained task, `explain_task` already shows the release that the host has and the next release.
    let mut lines = Vec::new();
    if retained_release(explained).is_none() {
        lines.push(("released", release_line(explained)));
    }
    let obstacles = explained.get("set_aside").and_then(Value::as_array).into_iter().flatten();
    lines.extend(obstacles.map(|reason| ("but", cell_text(Some(reason)))));
    let barriers = explained.get("waits").and_then(Value::as_array).into_iter().flatten();
    lines.extend(barriers.map(|barrier| ("waits", barrier_line(explained, barrier))));
    let Some(last) = explained.get("last").filter(|last| last.is_object()) else {
        lines.push(("last", "the host has reported no result of it yet".to_owned()));
        return lines;
    };
    let outcome = if is_observed(last) { "observed".to_owned() } else { split_words(&cell_text(last.get("outcome"))) };
    let message = last.get("message").and_then(Value::as_str).filter(|text| !text.is_empty());
    let message = message.map_or_else(String::new, |text| format!(": {text}"));
    let previous_set_note = if is_true(last, "of_before") { " (of the previous task set)" } else { "" };
    lines.push(("last", format!("{outcome}, {}{previous_set_note}{message}", time_with_age(last.get("at")))));
    if is_failure(last.get("outcome")) {
        let output_lines = last_lines(last.get("output")).into_iter().enumerate();
        lines.extend(output_lines.map(|(index, line)| (if index == 0 { "printed" } else { "" }, line)));
        lines.extend(remedy_lines(node, explained, last));
    }
    lines
}

/// Returns whether the task was released to the host, and whether the host has confirmed it. In the response, `told` is
/// as in [`explain_task`], and `keeps` is the release of the host's task set if a newer one is withheld.
fn release_line(explained: &Value) -> String {
    let retained = explained.get("keeps").and_then(Value::as_str);
    match (is_true(explained, "released"), is_true(explained, "told"), published_line(explained)) {
        (false, is_received, _) => match retained {
            Some(retained) => format!("no: its host keeps {retained}"),
            None if is_received => "not yet: the host runs its previous task set".to_owned(),
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

/// Returns the revision at which the host's desired state was published, and the revision that the host confirmed.
/// Returns `None` if no desired state is published for the node, or for an older controller, which reports neither.
fn published_line(explained: &Value) -> Option<String> {
    let revision = |field: &str| explained.get(field).and_then(Value::as_u64);
    let published = revision("published_revision")?;
    if is_true(explained, "confirmed") {
        return Some(format!("published at revision {published}, which the host confirmed"));
    }
    let confirmed = match revision("confirmed_revision") {
        Some(confirmed) => format!("the host confirmed {confirmed}"),
        None => "the host has confirmed none since the controller started".to_owned(),
    };
    let is_silent = explained.get("connection").and_then(Value::as_str) == Some("silent");
    let silence_note = if is_silent {
        format!(" and has been silent since {}", time_with_age(explained.get("last_seen")))
    } else {
        String::new()
    };
    Some(format!("published at revision {published}; {confirmed}{silence_note}"))
}

/// Returns how to fix a failed task, and what to do until it is fixed.
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
    let reads = joined_list(explained, "reads").map_or(String::new(), |reads| format!(", or change what it reads ({reads})"));
    vec![
        ("remedy", format!("apply a newer version of {release}, with {task} fixed{reads}")),
        ("retry", "automatic, less and less often; to retry now, run on the host: stemma-agent once".to_owned()),
        ("hold", format!("stemma node hold {node} --reason TEXT keeps it from other task sets until stemma node unhold {node}")),
    ]
}

/// Returns how to fix a task that did not run because a required task has not succeeded. The required task failed, or
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

/// Returns the name of the node's release, or a general word if the response contains no release.
fn release_name(explained: &Value) -> &str {
    explained.get("release").and_then(Value::as_str).unwrap_or("its release")
}

/// Returns why the controller sends nothing to the host. Returns `None` if there is no such reason.
fn unsent_reason(explained: &Value) -> Option<&str> {
    explained.get("untold").and_then(Value::as_str)
}

/// Returns whether the node's agent is connected, and when it was last seen. Adds why the controller sends nothing to
/// the host, or else that the host has not confirmed its latest desired state.
pub(crate) fn contact_line(explained: &Value) -> String {
    let last_seen = explained.get("last_seen").filter(|time| !time.is_null());
    let last_seen = last_seen.map_or_else(|| "never".to_owned(), |time| time_with_age(Some(time)));
    let is_unconfirmed = explained.get("confirmed").and_then(Value::as_bool) == Some(false);
    let unconfirmed = || {
        let progress = published_line(explained).map_or_else(String::new, |published| format!(": {published}"));
        format!("the host has not confirmed its latest desired state{progress}")
    };
    let reason = unsent_reason(explained).map(str::to_owned).or_else(|| is_unconfirmed.then(unconfirmed));
    let note = reason.map_or_else(String::new, |text| format!("\n  but       {text}"));
    printable_lines(&format!("  agent     {}\n  last seen {last_seen}{note}", cell_text(explained.get("connection"))))
}

/// Returns the text about a closed barrier before a task: the task that it waits for, and the nodes that have not
/// finished that task, with the reasons. If the barrier is before another task of this host, the id of that other task
/// is added.
fn barrier_line(explained: &Value, entry: &Value) -> String {
    let nodes = entry.get("waits_for").and_then(Value::as_array).into_iter().flatten();
    let nodes: Vec<_> = nodes.map(|node| (cell_text(node.get("node")), cell_text(node.get("why")))).collect();
    let count = entry.get("count").and_then(Value::as_u64).unwrap_or(0);
    let text = match entry.get("here") {
        task if task == explained.get("task") => String::new(),
        task => format!("for {} here, which waits ", cell_text(task)),
    };
    format!("{text}for {}", closed_barrier_text(&cell_text(entry.get("task")), &cell_text(entry.get("selector")), &nodes, count))
}

/// Returns the text about one tag of one node: why the node has the tag or not, the holder of the primary, and the
/// command that assigns or unassigns the tag.
pub(crate) fn explain_tag(node: &str, name: &str, explained: &Value) -> String {
    let verb = if is_true(explained, "has") { "is on" } else { "is not on" };
    let primary = if is_true(explained, "primary") { ", as primary" } else { "" };
    let mut text = format!(
        "tag {name} {verb} {}{primary}\n  why       {}",
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

/// Returns the text about one trait of one node: the sources that gave the trait to the node, or why the node lacks it.
pub(crate) fn explain_trait(node: &str, name: &str, explained: &Value) -> String {
    let place = node_with_group(node, explained);
    if is_true(explained, "has") {
        let sources = joined_list(explained, "sources").unwrap_or_default();
        return printable_lines(&format!("{place} has trait {name}\n  from      {sources}"));
    }
    let reason = cell_text(explained.get("why"));
    let change = explained.get("change").and_then(Value::as_str);
    let change = change.map_or_else(String::new, |verb| format!("\n  change    stemma trait {verb} {node} {name}"));
    printable_lines(&format!("{place} has no trait {name}\n  why       {reason}{change}"))
}

/// Returns the text about a key of the catalogue. It has one block for each namespace that defines the key.
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
        // `name` is the word for people, and `field` the field of the property in the response.
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
            Some(operators) if operators.is_empty() => "none of <or>, <in>, <all-in>".to_owned(),
            Some(_) => cell_text(property("operators")),
        };
        let _ = write!(text, "\n  {:<12} {operators}", "operators");
        let _ = write!(text, "\n  {:<12} {}", "namespace", cell_text(binding.get("namespace")));
    }
    printable_lines(&text)
}

/// Returns the text in the result column for a level: `merges` if it lacks the key and replaces no labels.
fn level_result(level: &Value) -> String {
    match level.get("result").and_then(Value::as_str) {
        Some("wins") => "WINS: nearest level that sets it".to_owned(),
        Some("says nothing") => "merges".to_owned(),
        _ => cell_text(level.get("result")),
    }
}

/// Returns the text in the result column for a rule or a host. These are not levels: they win only if no level sets the
/// key.
fn source_result(source: &Value) -> String {
    match source.get("result").and_then(Value::as_str) {
        Some("wins") => "WINS: no level sets it".to_owned(),
        _ => cell_text(source.get("result")),
    }
}

/// Returns the value that a level provides, with a special text for a tombstone.
fn provided_text(level: &Value) -> String {
    if is_true(level, "stops") { "null (not inherited)".to_owned() } else { cell_text(level.get("says")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// In the response, `says` is the value of a level, and `stops` is true for a tombstone. In this test, the node
    /// group wins, so the last line names it as the object to edit.
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

    /// The node that holds the primary of `mysql` also has the name `primary-mysql` as a tag, for selectors. Nobody can
    /// assign that name, so no command is shown.
    #[test]
    fn explain_tag_shows_no_command_for_primary_name() {
        let text = explain_tag(
            "db-1",
            "primary-mysql",
            &json!({"group": "prod/databases", "has": true, "primary": true, "primary_of": "mysql", "holder": "db-1",
                "why": "it holds mysql as primary, and selectors match it by both names"}),
        );
        assert!(text.starts_with("tag primary-mysql is on db-1 (prod/databases), as primary"), "{text}");
        assert!(text.ends_with("\n  primary   db-1 holds it"), "no tag of that name is assigned: {text}");
    }

    /// The agent detected the trait and an operator suppressed it. The text gives both as the reason, and the command
    /// that ends the suppression.
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
        let explained = |change: Value| json!({"group": "prod/web", "has": false, "sources": [], "why": "x", "change": change});
        assert!(
            explain_tag("web-1", "nginx", &explained("assign".into())).ends_with("\n  change    stemma tag assign web-1 nginx")
        );
        assert!(explain_trait("web-1", "HW_X", &explained("add".into())).ends_with("\n  change    stemma trait add web-1 HW_X"));
        for text in
            [explain_tag("web-1", "nosuch", &explained(Value::Null)), explain_trait("web-1", "BOGUS", &explained(Value::Null))]
        {
            assert!(!text.contains("change"), "{text}");
        }
        assert!(!explain_label("web-1", "a b", &json!({"levels": []})).contains("Change"));
    }

    /// `here` is the task of this host before which the barrier is. The second barrier is before `conf`, which the task
    /// `app` requires.
    #[test]
    fn w08_barrier_line_shows_unfinished_nodes() {
        let barrier = |here: &str| {
            json!({"here": here, "task": "db", "selector": "tags mysql", "count": 3,
                "waits_for": [{"node": "db-1", "why": "it is silent"}, {"node": "db-2", "why": "db failed there"}]})
        };
        let explained =
            json!({"task": "app", "runs": true, "released": true, "why": "x", "waits": [barrier("app"), barrier("conf")]});
        let text = explain_task("web-1", "app", &explained);
        let waits = "for db on tags mysql: db-1 (it is silent), db-2 (db failed there) and 1 more";
        assert!(text.contains(&format!("\n  waits     {waits}\n  waits     for conf here, which waits {waits}\n")), "{text}");
    }

    #[test]
    fn explain_task_shows_reason_when_host_is_paused() {
        let explained = json!({"runs": true, "released": true, "told": true, "why": "x",
            "set_aside": ["it is paused on its host, which applies nothing until it is resumed there"]});
        let text = explain_task("web-1", "a", &explained);
        assert!(text.contains("released  yes: it was sent to the host\n  but       it is paused on its host"), "{text}");
    }

    /// The released task set runs the task (`released`), and the next task set does not (`runs`). The text shows why
    /// the next one is not released.
    #[test]
    fn explain_task_shows_why_new_task_set_is_not_released() {
        let explained = json!({"runs": false, "released": true, "told": true, "why": "x",
            "set_aside": ["requirement a >= 1 is not met: no new task set is released"]});
        let text = explain_task("web-1", "a", &explained);
        let expected = "released  yes: it was sent to the host\n  but       requirement a >= 1 is not met";
        assert!(text.starts_with("a does not run on") && text.contains(expected), "{text}");
    }

    /// The host is held and has the task from the release `site@1` (`keeps`), which `site@2` does not contain.
    /// Regression test: the text did not mention the release that the host runs.
    #[test]
    fn y06_explain_task_shows_retained_and_next_release() {
        let held = "it is held (a disk is changed): no new task set is released";
        let explain_with = |change: Value| {
            let mut explained = json!({"task": "a", "group": "c/g", "release": "site@2", "runs": false, "reads": [], "set_aside": [held],
                "why": "the node's release has no such task", "released": true, "keeps": "site@1", "told": true, "waits": [], "last": null});
            explained.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            explain_task("n1", "a", &explained)
        };
        let expected = format!(
            "a still runs on n1 (c/g)\n  host      keeps site@1, which has this task\n  next      site@2: the node's release has no such task\n  \
             but       {held}\n  last      the host has reported no result of it yet"
        );
        assert_eq!(explain_with(json!({})), expected);
        let unconfirmed = explain_with(json!({"told": false}));
        assert!(unconfirmed.contains("which has this task; it has not confirmed that it has it\n"), "{unconfirmed}");
        // The next release has the task and does not place it here. The host ran it as part of the retained task set.
        let elsewhere = json!({"released": false, "why": "it does not run on this node: it is placed by tags x"});
        let last = |of_before: bool| json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "Succeeded", "message": "", "of_before": of_before});
        for (of_before, heading) in [(false, "a still runs on n1 (c/g)\n  host "), (true, "a does not run on n1 (c/g)\n  why ")] {
            let mut change = elsewhere.clone();
            change["last"] = last(of_before);
            let text = explain_with(change);
            assert!(text.starts_with(heading), "{text}");
        }
        let failed = explain_with(
            json!({"last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Failed", "message": "x", "of_before": false}}),
        );
        assert!(failed.contains("\n  remedy    a ends on this host once it gets site@2"), "{failed}");
        assert!(!failed.contains("with a fixed"), "{failed}");
    }

    /// The next task set is not released, and the host retains the one of `r@1`. The last result belongs to an earlier
    /// task set. The contact line notes a desired state that the host has not confirmed.
    #[test]
    fn y06_explain_task_marks_earlier_results_when_host_is_held() {
        let explained = json!({"runs": true, "released": false, "told": true, "keeps": "r@1", "why": "x",
            "last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Changed", "message": "", "of_before": true}});
        let text = explain_task("web-1", "a", &explained);
        assert!(text.contains("\n  released  no: its host keeps r@1\n"), "{text}");
        assert!(text.ends_with("(of the previous task set)"), "{text}");
        for (confirmed, has_note) in [(json!(false), true), (json!(true), false), (json!(null), false)] {
            let contact = contact_line(&json!({"connection": "silent", "confirmed": confirmed}));
            assert_eq!(
                contact.ends_with("\n  but       the host has not confirmed its latest desired state"),
                has_note,
                "{contact}"
            );
        }
    }

    /// `told` is true if the host has confirmed the released task set. Regression test: every released task was shown
    /// as delivered, even on a host that never had an agent.
    #[test]
    fn w08_release_line_claims_delivery_when_host_confirmed() {
        for (released, is_confirmed, expected) in [
            (true, Some(true), "yes: it was sent to the host"),
            (true, Some(false), "yes, but the host has not confirmed it"),
            (true, None, "yes, but the host has not confirmed it"),
            (false, Some(true), "not yet: the host runs its previous task set"),
            (false, Some(false), "not yet"),
        ] {
            let text = explain_task("web-1", "a", &json!({"runs": true, "released": released, "told": is_confirmed, "why": "x"}));
            assert!(text.contains(&format!("\n  released  {expected}\n")), "{expected:?} in\n{text}");
        }
    }

    /// Each text shows the revision at which the desired state was published, and the revision that the host confirmed.
    /// In the last case, the host has confirmed the task set, but not the latest change of the known part.
    #[test]
    fn y09_published_line_shows_published_and_confirmed_revisions() {
        let explained_with = |is_confirmed: bool, confirmed: Value, confirmed_revision: Value, connection: &str| {
            json!({"runs": true, "released": true, "told": is_confirmed, "why": "x", "confirmed": confirmed, "published_revision": 1285,
                "confirmed_revision": confirmed_revision, "connection": connection, "last_seen": "2026-11-20T12:27:00+00:00"})
        };
        for (explained, expected) in [
            (
                explained_with(true, json!(true), json!(1285), "connected"),
                "yes: published at revision 1285, which the host confirmed\n",
            ),
            (
                explained_with(false, json!(false), json!(1266), "connected"),
                "yes: published at revision 1285; the host confirmed 1266\n",
            ),
            (
                explained_with(false, json!(false), json!(1266), "silent"),
                "yes: published at revision 1285; the host confirmed 1266 and has been silent since 2026-11-20 12:27 (",
            ),
            (
                explained_with(false, json!(null), json!(null), "absent"),
                "yes: published at revision 1285; the host has confirmed none since the controller started\n",
            ),
            (
                explained_with(true, json!(false), json!(1266), "connected"),
                "yes: the host has this task set; its other desired state was published at revision 1285; the host confirmed 1266\n",
            ),
        ] {
            let text = explain_task("web-1", "a", &explained);
            assert!(text.contains(&format!("\n  released  {expected}")), "{expected:?} in\n{text}");
        }
        let text = contact_line(&explained_with(false, json!(false), json!(1266), "connected"));
        let note =
            "but       the host has not confirmed its latest desired state: published at revision 1285; the host confirmed 1266";
        assert!(text.ends_with(note), "{text}");
    }

    #[test]
    fn contact_line_shows_last_contact() {
        assert_eq!(contact_line(&json!({"connection": "absent", "last_seen": null})), "  agent     absent\n  last seen never");
        let contact = contact_line(&json!({"connection": "silent", "last_seen": "2026-11-20T09:41:00+00:00"}));
        assert!(contact.starts_with("  agent     silent\n  last seen 2026-11-20 09:41 ("), "{contact}");
    }

    #[test]
    fn x02_explain_task_shows_unsent_reason() {
        let why = "its host holds revision 185 of another store (epoch e1), and this one was restored from a backup and is at revision 1000025 \
                   of epoch e2; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
        let explained =
            json!({"runs": true, "released": true, "told": false, "why": "x", "connection": "connected", "untold": why});
        let text = explain_task("web-1", "a", &explained);
        assert!(text.contains("\n  released  yes, but nothing is sent to the host: see below\n"), "{text}");
        assert!(
            contact_line(&explained).ends_with(&format!("\n  but       {why}")),
            "contact_line shows the reason for each kind of explanation"
        );
        let contact = json!({"connection": "connected", "last_seen": null, "untold": null});
        assert!(!contact_line(&contact).contains("but"), "{}", contact_line(&contact));
    }

    #[test]
    fn remedy_lines_depend_on_outcome() {
        for (outcome, expected) in [
            ("DependencyFailed", "\n  remedy    the task that failed first: stemma describe node web-1 lists it"),
            ("Unknown", "\n  remedy    check the host, then run there: stemma-agent resolve-unknown a done|again"),
            ("Unsupported", "\n  remedy    apply a newer version of its release, with a fixed\n"),
        ] {
            let last = json!({"at": "2026-11-20T09:41:00+00:00", "outcome": outcome, "message": "", "output": ""});
            let text = explain_task("web-1", "a", &json!({"task": "a", "runs": true, "why": "x", "last": last}));
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }

    /// An observed task is not shown as a change. A task that requires the observed task does not run although nothing
    /// failed, so the remedy is about the mode.
    #[test]
    fn y06_explain_task_shows_observed_task_without_failure() {
        let explain_last = |last: Value| {
            explain_task("web-1", "a", &json!({"task": "a", "release": "site@1", "runs": true, "why": "x", "last": last}))
        };
        let observed =
            explain_last(json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "WouldChange", "is_observed": true, "output": "",
            "message": "its mode is observe: it is neither run nor checked"}));
        assert!(
            observed.contains("\n  last      observed, 2026-11-20 09:41 (") && !observed.contains("would change"),
            "{observed}"
        );
        let dependent = explain_last(json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "DependencyFailed", "output": "",
            "message": "Not run: f, which it requires, is neither run nor checked, since its mode is observe."}));
        let remedy = "\n  remedy    apply a newer version of site@1 in which a does not require the other task, or the other task has another mode";
        assert!(dependent.contains(remedy) && !dependent.contains("failed first"), "{dependent}");
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
        assert!(!text.contains("describe"), "the remedy does not refer to another command: {text}");
        assert!(!text.contains("at="), "{text}");
        // A task that does not run on the node has only a reason.
        let not_placed =
            explain_task("db-1", "x", &json!({"runs": false, "why": "it does not run on this node: it is placed by tags nginx"}));
        assert_eq!(
            not_placed,
            "x does not run on db-1 (unplaced)\n  why       it does not run on this node: it is placed by tags nginx"
        );
    }
}
