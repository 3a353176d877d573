//! Tasks over the nodes that have them: `get tasks` and `describe task`.

use anyhow::{Error, Result};
use serde_json::Value;
use stemma_core::name::{near, suggest};
use stemma_wire::endpoint::Endpoint;

use crate::api::Api;
use crate::args::{Filter, Output};
use crate::command::{question, written};
use crate::exit::Exit;
use crate::output::{cell, printable, printable_line, table};
use crate::path;
use crate::radius::counted;

/// How many lines of a difference are shown.
const MOST_LINES: usize = 20;

/// What is counted of a task's nodes: the field, and how it is said.
const COUNTED: &[(&str, &str)] = &[
    ("converged", "converged"),
    ("would_change", "would change"),
    ("observed", "observed"),
    ("drifted", "drifted"),
    ("failed", "failed"),
    ("not_run", "not run"),
    ("blocked", "blocked"),
    ("waiting", "waiting"),
];

/// `get tasks`: those of the nodes that a filter leaves, or those of these names.
///
/// # Errors
/// A task that none of these nodes has.
pub(crate) async fn get(api: &mut Api, names: &[String], filter: &Filter, output: Output) -> Result<()> {
    let mut rows = question::pages(api, path::of_nodes(Endpoint::ListTasks, &[], filter)).await?;
    if let Some(name) = names.iter().find(|name| rows.iter().all(|row| task_of(row) != **name)) {
        return Err(missing(name, &rows));
    }
    rows.retain(|row| names.is_empty() || names.iter().any(|name| name == task_of(row)));
    question::check_fields("task", &rows, &filter.fields)?;
    match output {
        Output::Json | Output::Yaml => {
            let rows = rows.iter().map(|row| question::fields(row, &filter.fields));
            question::print(&rows.collect(), output)?;
        }
        Output::Name => ids(&rows).iter().for_each(|task| say!("task/{}", printable(task))),
        Output::Manifest => return Err(written::no_manifest("task")),
        Output::Table => say!("{}", listed(&rows, &filter.fields)),
        Output::Wide => {
            say!("{}", listed(&rows, &filter.fields));
            rows.retain(|row| count(row, "would_change") + count(row, "drifted") > 0);
            for task in ids(&rows) {
                let task = api.get(&path::of_nodes(Endpoint::ShowTask, &[&task], filter)).await?;
                releases(&task).filter_map(differing).for_each(|text| say!("\n{text}"));
            }
        }
    }
    Ok(())
}

/// `describe task NAME`.
///
/// # Errors
/// When no node has it.
pub(crate) async fn describe(api: &mut Api, name: &str, output: Output) -> Result<()> {
    let task = api.get(&path::of_nodes(Endpoint::ShowTask, &[name], &Filter::default())).await?;
    match output {
        Output::Json | Output::Yaml => question::print(&task, output)?,
        Output::Name => say!("task/{}", printable(name)),
        Output::Manifest => return Err(written::no_manifest("task")),
        Output::Table | Output::Wide => {
            say!("{}", releases(&task).map(described).collect::<Vec<_>>().join("\n\n"));
        }
    }
    Ok(())
}

/// The ids of all tasks that nodes have.
///
/// # Errors
/// When the controller does not tell them.
pub(crate) async fn names(api: &mut Api) -> Result<Vec<String>> {
    Ok(ids(&question::pages(api, path::of_nodes(Endpoint::ListTasks, &[], &Filter::default())).await?))
}

fn missing(name: &str, rows: &[Value]) -> Error {
    let near = suggest(near(name, rows.iter().map(task_of)));
    Exit::NotFound.because(format!("no node that is asked for has task {name:?}{near}"))
}

/// Each task once: there is a row for each release.
fn ids(rows: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = rows.iter().map(|row| task_of(row).to_owned()).collect();
    ids.dedup();
    ids
}

fn task_of(row: &Value) -> &str {
    row.get("task").and_then(Value::as_str).unwrap_or_default()
}

fn releases(task: &Value) -> impl Iterator<Item = &Value> {
    task.get("releases").and_then(Value::as_array).into_iter().flatten()
}

fn count(row: &Value, field: &str) -> usize {
    row.get(field).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok()).unwrap_or_default()
}

fn listed(rows: &[Value], wanted: &[String]) -> String {
    if !wanted.is_empty() {
        let head: Vec<&str> = wanted.iter().map(String::as_str).collect();
        return table(&head, rows.iter().map(|row| head.iter().map(|field| cell(row.get(*field))).collect()));
    }
    let fields = || COUNTED.iter();
    let head = ["task", "release", "nodes"].into_iter().chain(fields().map(|(_, said)| *said)).chain(["failed on"]);
    let cells = |row: &Value| {
        let own = ["task", "release", "nodes"].into_iter().chain(fields().map(|(field, _)| *field));
        own.map(|field| cell(row.get(field))).chain([failed_on(row)]).collect::<Vec<_>>()
    };
    table(&head.collect::<Vec<_>>(), rows.iter().map(cells))
}

/// The first nodes on which a task failed, and how many more.
fn failed_on(row: &Value) -> String {
    match count(row, "failed") {
        0 => "-".to_owned(),
        all => named(row.get("failed_on"), all),
    }
}

/// Names of nodes, and how many more there are.
fn named(nodes: Option<&Value>, all: usize) -> String {
    let named: Vec<&str> = nodes.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    match all.saturating_sub(named.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A task of one release: how many nodes stand where, who failed and why, who did not run it, who is waited for, and what differs.
fn described(row: &Value) -> String {
    let counts: Vec<String> = COUNTED
        .iter()
        .filter(|(field, _)| count(row, field) > 0)
        .map(|(field, said)| format!("{} {said}", count(row, field)))
        .collect();
    let nodes = counted(count(row, "nodes"));
    let mut text =
        printable(&format!("task {} of {}: {nodes}: {}", task_of(row), cell(row.get("release")), counts.join(", ")));
    if let Some(failed) = groups(row, "failures") {
        text.push_str(&format!("\n\nFAILED{failed}"));
    }
    if let Some(not_run) = groups(row, "not_run_because") {
        text.push_str(&format!("\n\nNOT RUN{not_run}"));
    }
    let unended = count(row, "waiting") + count(row, "blocked");
    if unended > 0 {
        text.push_str(&format!("\n\nNOT ENDED\n  {}", printable(&named(row.get("unended_on"), unended))));
    }
    if let Some(differs) = groups(row, "differences") {
        text.push_str(&format!("\n\nDIFFERS{differs}"));
    }
    text
}

/// What differs of a task of one release, where something does.
fn differing(row: &Value) -> Option<String> {
    let differs = groups(row, "differences")?;
    Some(printable(&format!("task {} of {}", task_of(row), cell(row.get("release")))) + &differs)
}

fn groups(row: &Value, field: &str) -> Option<String> {
    let groups = row.get(field).and_then(Value::as_array).filter(|groups| !groups.is_empty())?;
    let mut text: String = groups.iter().map(group).collect();
    let shown: usize = groups.iter().map(|group| count(group, "count")).sum();
    let all = match field {
        "failures" => count(row, "failed"),
        "not_run_because" => count(row, "not_run"),
        _ => count(row, "would_change") + count(row, "drifted"),
    };
    if all > shown {
        text.push_str(&format!("\n  and {} with others", counted(all - shown)));
    }
    Some(text)
}

/// Nodes of which one thing is true, and what.
fn group(group: &Value) -> String {
    let said = |field: &str| group.get(field).and_then(Value::as_str).unwrap_or_default();
    let all = count(group, "count");
    let nodes = named(group.get("nodes"), all);
    let head = match group.get("comparable").and_then(Value::as_bool) {
        Some(false) => format!("{}: {nodes}", not_compared(all, said("outcome"))),
        _ => format!("{}: {nodes} ({})", counted(all), said("digest")),
    };
    let body = if said("diff").is_empty() { said("message") } else { said("diff") };
    let lines: Vec<String> =
        body.lines().take(MOST_LINES).map(|line| format!("\n    {}", printable_line(line))).collect();
    let more = match body.lines().count().saturating_sub(MOST_LINES) {
        0 => String::new(),
        more => format!("\n    and {more} more lines; -o json shows what the host sent"),
    };
    format!("\n  {}{}{more}", printable(&head), lines.concat())
}

/// So many hosts of which nobody knows whether they would change the same.
fn not_compared(count: usize, outcome: &str) -> String {
    let what = if outcome == "Drifted" { "left it drifted" } else { "would change it" };
    let why = match count {
        1 => "the difference is cut or not shown, so it is not compared",
        _ => "the differences are cut or not shown, so they are not compared",
    };
    format!("{} {what} ({why})", counted(count))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row() -> Value {
        let group = |count: u64, nodes: &[&str], message: &str, diff: &str| json!({"digest": "0123456789ab", "outcome": "WouldChange", "count": count, "nodes": nodes, "message": message, "diff": diff});
        json!({
            "id": "site@1/conf", "task": "conf", "release": "site@1", "nodes": 15, "converged": 2, "changed": 1, "waiting": 1, "blocked": 0,
            "failed": 2, "not_run": 1, "would_change": 9, "observed": 0, "drifted": 0, "failed_on": ["n1"], "different_changes": 2, "unended_on": ["n9"],
            "failures": [group(2, &["n1", "n2"], "no space left", "")],
            "not_run_because": [group(1, &["n8"], "it did not run: disk failed", "")],
            "differences": [group(8, &["n3", "n4"], "", "-a\n+b\n"), group(1, &["n5"], "", "-a\n+\u{1b}c\n")],
        })
    }

    #[test]
    fn y09_a_task_says_how_many_hosts_would_change_the_same() {
        assert_eq!(
            described(&row()),
            "task conf of site@1: 15 hosts: 2 converged, 9 would change, 2 failed, 1 not run, 1 waiting\n\n\
             FAILED\n  2 hosts: n1, n2 (0123456789ab)\n    no space left\n\n\
             NOT RUN\n  1 host: n8 (0123456789ab)\n    it did not run: disk failed\n\n\
             NOT ENDED\n  n9\n\n\
             DIFFERS\n  8 hosts: n3, n4 and 6 more (0123456789ab)\n    -a\n    +b\n  1 host: n5 (0123456789ab)\n    -a\n    +\\u{1b}c"
        );
        assert!(differing(&row()).unwrap().starts_with("task conf of site@1\n  8 hosts: "));
        assert_eq!(differing(&json!({"task": "conf", "differences": []})), None);
    }

    #[test]
    fn y09_hosts_whose_differences_are_not_whole_are_not_said_to_change_the_same() {
        let cut = format!("{}… 9 more lines\n", "+a\n".repeat(20));
        let lines = "\n    +a".repeat(20);
        for (count, nodes, outcome, diff, shown) in [
            (
                2,
                json!(["a1", "a2"]),
                "WouldChange",
                "",
                "\n  2 hosts would change it (the differences are cut or not shown, so they are not compared): a1, a2"
                    .to_owned(),
            ),
            (
                1,
                json!(["a1"]),
                "Drifted",
                &*cut,
                format!(
                    "\n  1 host left it drifted (the difference is cut or not shown, so it is not compared): a1{lines}\n    \
                     and 1 more lines; -o json shows what the host sent"
                ),
            ),
        ] {
            let of = json!({"digest": null, "comparable": false, "outcome": outcome, "count": count, "nodes": nodes, "message": "", "diff": diff});
            assert_eq!(group(&of), shown);
        }
    }

    #[test]
    fn y09_a_list_of_tasks_names_the_hosts_that_failed() {
        let shown = listed(&[row()], &[]);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["conf", "site@1", "15", "2", "9", "0", "0", "2", "1", "0", "1", "n1", "and", "1", "more"]
        );
        assert_eq!(listed(&[row()], &["task".to_owned()]).lines().nth(1), Some("conf"));
    }

    /// Nobody looked whether such a task would change anything.
    #[test]
    fn y06_a_task_that_is_only_observed_is_not_said_to_change_anything() {
        let row = json!({
            "id": "site@1/seen", "task": "seen", "release": "site@1", "nodes": 2, "converged": 0, "changed": 0, "waiting": 0, "blocked": 0,
            "failed": 0, "not_run": 0, "would_change": 0, "observed": 2, "drifted": 0, "failures": [], "not_run_because": [], "differences": [],
        });
        assert_eq!(described(&row), "task seen of site@1: 2 hosts: 2 observed");
        let shown = listed(&[row], &[]);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["seen", "site@1", "2", "0", "0", "2", "0", "0", "0", "0", "0", "-"]);
    }

    #[test]
    fn y09_a_field_that_no_task_has_is_refused() {
        for (field, said) in [
            (
                "faild",
                Some("--fields: a task has no field \"faild\" (did you mean \"failed\"?); `-o json` shows all of them"),
            ),
            ("failed", None),
        ] {
            let checked = question::check_fields("task", &[row()], &[field.to_owned()]);
            assert_eq!(checked.err().map(|error| error.to_string()).as_deref(), said);
        }
    }
}
