//! Tasks across the nodes that have them: `stemma get tasks` and `stemma describe task`.

use anyhow::{Error, Result};
use serde_json::Value;
use stemma_core::name::{closest_match, did_you_mean};
use stemma_wire::endpoint::Endpoint;

use crate::api::ApiClient;
use crate::args::{FilterArgs, Output};
use crate::command::{manifest, read};
use crate::exit::Exit;
use crate::host_limit::host_count;
use crate::output::{cell_text, printable, printable_line, table};
use crate::path;

/// Maximum number of printed lines of a difference, or of the message of a task without one.
const MAX_DIFF_LINES: usize = 20;

/// The columns with a number of nodes, one for each state of a task on a node. Each is a field of the response, and its
/// label in the output.
const COUNT_COLUMNS: &[(&str, &str)] = &[
    ("converged", "converged"),
    ("would_change", "would change"),
    ("observed", "observed"),
    ("drifted", "drifted"),
    ("failed", "failed"),
    ("not_run", "not run"),
    ("blocked", "blocked"),
    ("waiting", "waiting"),
];

/// Runs `stemma get tasks`: prints the tasks of the nodes that a filter selects, or only the named tasks.
///
/// # Errors
/// With status 3 if none of these nodes has a named task. Also for an unknown field, and for `-o manifest`.
pub(crate) async fn get(api: &mut ApiClient, names: &[String], filter: &FilterArgs, output: Output) -> Result<()> {
    let mut rows = read::read_pages(api, path::node_list_path(Endpoint::ListTasks, &[], filter)).await?;
    if let Some(name) = names.iter().find(|name| rows.iter().all(|row| row_task_id(row) != **name)) {
        return Err(task_not_found_error(name, &rows));
    }
    rows.retain(|row| names.is_empty() || names.iter().any(|name| name == row_task_id(row)));
    read::check_fields("task", &rows, &filter.fields)?;
    match output {
        Output::Json | Output::Yaml => {
            let rows = rows.iter().map(|row| read::select_fields(row, &filter.fields));
            read::print_value(&rows.collect(), output)?;
        }
        Output::Name => unique_ids(&rows).iter().for_each(|task| outln!("task/{}", printable(task))),
        Output::Manifest => return Err(manifest::no_manifest_error("task")),
        Output::Table => outln!("{}", task_table(&rows, &filter.fields)),
        Output::Wide => {
            outln!("{}", task_table(&rows, &filter.fields));
            rows.retain(|row| count(row, "would_change") + count(row, "drifted") > 0);
            for task in unique_ids(&rows) {
                let task = api.get(&path::node_list_path(Endpoint::ShowTask, &[&task], filter)).await?;
                releases(&task).filter_map(difference_text).for_each(|text| outln!("\n{text}"));
            }
        }
    }
    Ok(())
}

/// Runs `stemma describe task NAME`.
///
/// # Errors
/// If no node has the task.
pub(crate) async fn describe(api: &mut ApiClient, name: &str, output: Output) -> Result<()> {
    let task = api.get(&path::node_list_path(Endpoint::ShowTask, &[name], &FilterArgs::default())).await?;
    match output {
        Output::Json | Output::Yaml => read::print_value(&task, output)?,
        Output::Name => outln!("task/{}", printable(name)),
        Output::Manifest => return Err(manifest::no_manifest_error("task")),
        Output::Table | Output::Wide => {
            outln!("{}", releases(&task).map(task_details).collect::<Vec<_>>().join("\n\n"));
        }
    }
    Ok(())
}

/// Returns the ids of all tasks of all nodes.
///
/// # Errors
/// If the list of tasks can't be read.
pub(crate) async fn task_ids(api: &mut ApiClient) -> Result<Vec<String>> {
    Ok(unique_ids(&read::read_pages(api, path::node_list_path(Endpoint::ListTasks, &[], &FilterArgs::default())).await?))
}

/// Returns the error for a task that no selected node has. It suggests a task with a similar name.
fn task_not_found_error(name: &str, rows: &[Value]) -> Error {
    let hint = did_you_mean(closest_match(name, rows.iter().map(row_task_id)));
    Exit::NotFound.with_message(format!("no selected node has task {name:?}{hint}"))
}

/// Returns the id of each task once. A task has one row for each release, and the rows of a task follow each other.
fn unique_ids(rows: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = rows.iter().map(|row| row_task_id(row).to_owned()).collect();
    ids.dedup();
    ids
}

fn row_task_id(row: &Value) -> &str {
    row.get("task").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the parts of a task's description, one for each release from which nodes have the task.
fn releases(task: &Value) -> impl Iterator<Item = &Value> {
    task.get("releases").and_then(Value::as_array).into_iter().flatten()
}

/// Returns the number in a field of a row, or 0 if the field is missing.
fn count(row: &Value, field: &str) -> usize {
    row.get(field).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok()).unwrap_or_default()
}

/// Returns the table of tasks, with the requested fields as columns, or else with the default columns.
fn task_table(rows: &[Value], requested: &[String]) -> String {
    if !requested.is_empty() {
        let head: Vec<&str> = requested.iter().map(String::as_str).collect();
        return table(&head, rows.iter().map(|row| head.iter().map(|field| cell_text(row.get(*field))).collect()));
    }
    let fields = || COUNT_COLUMNS.iter();
    let head = ["task", "release", "nodes"].into_iter().chain(fields().map(|(_, label)| *label)).chain(["failed on"]);
    let cells = |row: &Value| {
        let field_names = ["task", "release", "nodes"].into_iter().chain(fields().map(|(field, _)| *field));
        field_names.map(|field| cell_text(row.get(field))).chain([failed_nodes(row)]).collect::<Vec<_>>()
    };
    table(&head.collect::<Vec<_>>(), rows.iter().map(cells))
}

/// Returns the names of the first nodes on which a task failed, and the number of the others, or `-` if there are none.
fn failed_nodes(row: &Value) -> String {
    match count(row, "failed") {
        0 => "-".to_owned(),
        total => node_names(row.get("failed_on"), total),
    }
}

/// Returns the names of the listed nodes, and the number of the others. `total` is the number of all nodes.
fn node_names(nodes: Option<&Value>, total: usize) -> String {
    let listed_names: Vec<&str> = nodes.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    match total.saturating_sub(listed_names.len()) {
        0 => listed_names.join(", "),
        more => format!("{} and {more} more", listed_names.join(", ")),
    }
}

/// Returns the description of a task in one release: the number of nodes in each state, failures with their reasons,
/// nodes that did not run the task, nodes that have not finished it, and differences.
fn task_details(row: &Value) -> String {
    let counts: Vec<String> = COUNT_COLUMNS
        .iter()
        .filter(|(field, _)| count(row, field) > 0)
        .map(|(field, label)| format!("{} {label}", count(row, field)))
        .collect();
    let nodes = host_count(count(row, "nodes"));
    let mut text =
        printable(&format!("task {} of {}: {nodes}: {}", row_task_id(row), cell_text(row.get("release")), counts.join(", ")));
    if let Some(failed) = groups_text(row, "failures") {
        text.push_str(&format!("\n\nFAILED{failed}"));
    }
    if let Some(not_run) = groups_text(row, "not_run_because") {
        text.push_str(&format!("\n\nNOT RUN{not_run}"));
    }
    let unfinished = count(row, "waiting") + count(row, "blocked");
    if unfinished > 0 {
        text.push_str(&format!("\n\nNOT ENDED\n  {}", printable(&node_names(row.get("unended_on"), unfinished))));
    }
    if let Some(differs) = groups_text(row, "differences") {
        text.push_str(&format!("\n\nDIFFERS{differs}"));
    }
    text
}

/// Returns the differences of a task in one release, or `None` if there are none.
fn difference_text(row: &Value) -> Option<String> {
    let differs = groups_text(row, "differences")?;
    Some(printable(&format!("task {} of {}", row_task_id(row), cell_text(row.get("release")))) + &differs)
}

/// Returns the groups of nodes in a field of a task, as the texts of [`group_text`]. Returns `None` if there are no
/// groups. Nodes in no listed group are only counted.
fn groups_text(row: &Value, field: &str) -> Option<String> {
    let groups = row.get(field).and_then(Value::as_array).filter(|groups| !groups.is_empty())?;
    let mut text: String = groups.iter().map(group_text).collect();
    let listed_count: usize = groups.iter().map(|group| count(group, "count")).sum();
    // The response lists only the first groups. The number of nodes in all groups is in other fields of the task.
    let total = match field {
        "failures" => count(row, "failed"),
        "not_run_because" => count(row, "not_run"),
        _ => count(row, "would_change") + count(row, "drifted"),
    };
    if total > listed_count {
        text.push_str(&format!("\n  and {} with other results", host_count(total - listed_count)));
    }
    Some(text)
}

/// Returns the text for a group of nodes with the same result. It contains the nodes, and the difference or message,
/// cut after [`MAX_DIFF_LINES`] lines. The digest in parentheses tells one result from another.
fn group_text(group: &Value) -> String {
    let text = |field: &str| group.get(field).and_then(Value::as_str).unwrap_or_default();
    let total = count(group, "count");
    let nodes = node_names(group.get("nodes"), total);
    let head = match group.get("comparable").and_then(Value::as_bool) {
        Some(false) => format!("{}: {nodes}", incomparable_line(total, text("outcome"))),
        _ => format!("{}: {nodes} ({})", host_count(total), text("digest")),
    };
    let body = if text("diff").is_empty() { text("message") } else { text("diff") };
    let lines: Vec<String> = body.lines().take(MAX_DIFF_LINES).map(|line| format!("\n    {}", printable_line(line))).collect();
    let omitted = match body.lines().count().saturating_sub(MAX_DIFF_LINES) {
        0 => String::new(),
        omitted => format!("\n    and {omitted} more lines; -o json shows what the host sent"),
    };
    format!("\n  {}{}{omitted}", printable(&head), lines.concat())
}

/// Returns the first line for a group of nodes whose differences can't be compared, because they are cut or not shown.
fn incomparable_line(count: usize, outcome: &str) -> String {
    let effect = if outcome == "Drifted" { "left it drifted" } else { "would change it" };
    let reason = match count {
        1 => "the difference is cut or not shown, so it is not compared",
        _ => "the differences are cut or not shown, so they are not compared",
    };
    format!("{} {effect} ({reason})", host_count(count))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a task of one release that has nodes in most states.
    fn sample_row() -> Value {
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
    fn y09_task_details_count_hosts_with_same_difference() {
        assert_eq!(
            task_details(&sample_row()),
            "task conf of site@1: 15 hosts: 2 converged, 9 would change, 2 failed, 1 not run, 1 waiting\n\n\
             FAILED\n  2 hosts: n1, n2 (0123456789ab)\n    no space left\n\n\
             NOT RUN\n  1 host: n8 (0123456789ab)\n    it did not run: disk failed\n\n\
             NOT ENDED\n  n9\n\n\
             DIFFERS\n  8 hosts: n3, n4 and 6 more (0123456789ab)\n    -a\n    +b\n  1 host: n5 (0123456789ab)\n    -a\n    +\\u{1b}c"
        );
        assert!(difference_text(&sample_row()).unwrap().starts_with("task conf of site@1\n  8 hosts: "));
        assert_eq!(difference_text(&json!({"task": "conf", "differences": []})), None);
    }

    #[test]
    fn y09_group_line_explains_why_differences_are_not_compared() {
        // The host has cut this difference and added the last line.
        let cut = format!("{}… 9 more lines\n", "+a\n".repeat(20));
        let lines = "\n    +a".repeat(20);
        for (count, nodes, outcome, diff, shown) in [
            (
                2,
                json!(["a1", "a2"]),
                "WouldChange",
                "",
                "\n  2 hosts would change it (the differences are cut or not shown, so they are not compared): a1, a2".to_owned(),
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
            let group = json!({"digest": null, "comparable": false, "outcome": outcome, "count": count, "nodes": nodes, "message": "", "diff": diff});
            assert_eq!(group_text(&group), shown);
        }
    }

    #[test]
    fn y09_task_table_names_failed_hosts() {
        let shown = task_table(&[sample_row()], &[]);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        // Line 0 is the head of the table. Two hosts failed, and the response names one of them.
        assert_eq!(lines[1], ["conf", "site@1", "15", "2", "9", "0", "0", "2", "1", "0", "1", "n1", "and", "1", "more"]);
        assert_eq!(task_table(&[sample_row()], &["task".to_owned()]).lines().nth(1), Some("conf"));
    }

    /// An observed task is not checked, so it is unknown whether it would change anything.
    #[test]
    fn y06_task_details_show_no_difference_when_observed() {
        let row = json!({
            "id": "site@1/seen", "task": "seen", "release": "site@1", "nodes": 2, "converged": 0, "changed": 0, "waiting": 0, "blocked": 0,
            "failed": 0, "not_run": 0, "would_change": 0, "observed": 2, "drifted": 0, "failures": [], "not_run_because": [], "differences": [],
        });
        assert_eq!(task_details(&row), "task seen of site@1: 2 hosts: 2 observed");
        let shown = task_table(&[row], &[]);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["seen", "site@1", "2", "0", "0", "2", "0", "0", "0", "0", "0", "-"]);
    }

    #[test]
    fn y09_check_fields_rejects_unknown_task_field() {
        for (field, expected) in [
            ("faild", Some("--fields: a task has no field \"faild\" (did you mean \"failed\"?); `-o json` shows all of them")),
            ("failed", None),
        ] {
            let checked = read::check_fields("task", &[sample_row()], &[field.to_owned()]);
            assert_eq!(checked.err().map(|error| error.to_string()).as_deref(), expected);
        }
    }
}
