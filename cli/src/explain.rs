//! `explain` as people read it: one line a level, the winner in capitals, what the host said below.

use std::fmt::Write as _;

use serde_json::Value;
use stemma_core::catalog::Bound;
use stemma_core::key::LabelKey;
use stemma_core::status::awaited;

use crate::output::{cell, is_failure, is_observed, last_lines, printable_lines, since, table, words};

/// What a host says of a task that it does not run, in the reason of one that requires it. A task's id has no blank.
const NOT_RUN_BY_MODE: &str = " is neither run nor checked";

/// The line of descent of one label on one node.
pub(crate) fn label(node: &str, key: &str, explained: &Value) -> String {
    let mut text = match explained.get("value").and_then(Value::as_str) {
        Some(value) => format!("{key} = {value}      {}", place(node, explained)),
        None => format!("{key} is not set      {}", place(node, explained)),
    };
    let levels = rows(explained, "levels", |line| {
        vec![
            cell(line.get("level")),
            cell(line.get("object")),
            says(line),
            cell(line.get("owners").filter(|owners| owners.as_array().is_none_or(|all| !all.is_empty()))),
            since(line.get("since")),
            result(line),
        ]
    });
    let rules = rows(explained, "rules", |line| {
        vec!["(rule)".into(), cell(line.get("rule")), cell(line.get("says")), "-".into(), "-".into(), filled(line)]
    });
    let reported = rows(explained, "reported", |line| {
        let source = format!("host {}", cell(line.get("source")));
        vec!["(reported)".into(), node.into(), cell(line.get("value")), source, "-".into(), filled(line)]
    });
    let lines = table(
        &["level", "object", "says", "owner", "since", "result"],
        levels.into_iter().chain(rules).chain(reported),
    );
    let _ = write!(text, "\n  {}", lines.replace('\n', "\n  "));
    if let Some(tasks) = listed(explained, "used_by") {
        let word = if tasks.contains(',') { "tasks" } else { "task" };
        let _ = write!(text, "\nUsed by   {word} {tasks}");
    }
    let is_set = explained.get("value").is_some_and(Value::is_string);
    if let Some(flows) = listed(explained, "flows_to").filter(|_| is_set) {
        let map = if is(explained, "to_host_map") {
            ""
        } else {
            "; not the host label map (`host_labels` names no such key)"
        };
        let _ = write!(text, "\nFlows to  {flows}{map}");
    }
    if LabelKey::new(key).is_ok() {
        let _ = write!(text, "\nChange    stemma label {} {key}=…", winner(node, explained));
    }
    printable_lines(&text)
}

/// Where the label is changed: at the level that wins, or at the node itself.
fn winner(node: &str, explained: &Value) -> String {
    let levels = explained.get("levels").and_then(Value::as_array);
    let wins = levels.into_iter().flatten().find(|line| line.get("result").and_then(Value::as_str) == Some("wins"));
    wins.map_or_else(
        || format!("node {node}"),
        |line| format!("{} {}", cell(line.get("level")), cell(line.get("object"))),
    )
}

fn place(node: &str, explained: &Value) -> String {
    format!("{node} ({})", explained.get("group").and_then(Value::as_str).unwrap_or("unplaced"))
}

fn listed(explained: &Value, field: &str) -> Option<String> {
    let items = explained.get(field)?.as_array().filter(|items| !items.is_empty())?;
    Some(items.iter().map(|item| cell(Some(item))).collect::<Vec<_>>().join(", "))
}

fn rows(explained: &Value, field: &str, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    explained.get(field).and_then(Value::as_array).into_iter().flatten().map(row).collect()
}

fn is(explained: &Value, field: &str) -> bool {
    explained.get(field).and_then(Value::as_bool) == Some(true)
}

/// Why a task runs on a node or does not, what became of it, and what to do where it failed.
pub(crate) fn task(node: &str, id: &str, explained: &Value) -> String {
    let runs = is(explained, "runs");
    let why = cell(explained.get("why"));
    let release = explained.get("release").filter(|release| !release.is_null()).map(|release| cell(Some(release)));
    let kept = kept(explained);
    let mut lines: Vec<_> = match kept {
        Some(kept) => {
            let unconfirmed = if is(explained, "told") { "" } else { "; it has not confirmed that it holds it" };
            let next = release.map_or_else(String::new, |release| format!("{release}: "));
            vec![("host", format!("keeps {kept}, which has this task{unconfirmed}")), ("next", format!("{next}{why}"))]
        }
        None => {
            let reads = listed(explained, "reads").map(|reads| ("reads", reads));
            [Some(("why", why)), release.map(|release| ("release", release)), reads].into_iter().flatten().collect()
        }
    };
    if runs || kept.is_some() || is(explained, "released") {
        lines.extend(run(node, explained));
    }
    let verb = match kept {
        Some(_) => "still runs on",
        None if runs => "runs on",
        None => "does not run on",
    };
    let mut text = format!("{id} {verb} {}", place(node, explained));
    for (name, what) in lines {
        let _ = write!(text, "\n  {name:<9} {what}");
    }
    printable_lines(&text)
}

/// The release of the task set that a host keeps, where that has a task which the next one has not for the node; `None`: no such is known.
fn kept(explained: &Value) -> Option<&str> {
    let kept = explained.get("keeps").and_then(Value::as_str).filter(|_| !is(explained, "runs"))?;
    // What a host told of the task set that is in force, it told of a task in it.
    let of_before = explained.get("last").and_then(|last| last.get("of_before"));
    let is_of_kept = of_before.and_then(Value::as_bool) == Some(false);
    (is(explained, "released") || is_of_kept).then_some(kept)
}

/// What became of a task that runs, or that the host runs still.
fn run(node: &str, explained: &Value) -> Vec<(&'static str, String)> {
    // Of one that its host keeps, what the host has and what is next stands above.
    let mut lines = Vec::new();
    if kept(explained).is_none() {
        lines.push(("released", released(explained)));
    }
    let set_aside = explained.get("set_aside").and_then(Value::as_array).into_iter().flatten();
    lines.extend(set_aside.map(|said| ("but", cell(Some(said)))));
    let waits = explained.get("waits").and_then(Value::as_array).into_iter().flatten();
    lines.extend(waits.map(|row| ("waits", barrier(explained, row))));
    let Some(last) = explained.get("last").filter(|last| last.is_object()) else {
        lines.push(("last", "the host has told nothing of it yet".to_owned()));
        return lines;
    };
    let outcome = if is_observed(last) { "observed".to_owned() } else { words(&cell(last.get("outcome"))) };
    let said = last.get("message").and_then(Value::as_str).filter(|said| !said.is_empty());
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    let of_before = if is(last, "of_before") { " (of the task set before)" } else { "" };
    lines.push(("last", format!("{outcome}, {}{of_before}{said}", since(last.get("at")))));
    if is_failure(last.get("outcome")) {
        let printed = last_lines(last.get("output")).into_iter().enumerate();
        lines.extend(printed.map(|(at, line)| (if at == 0 { "printed" } else { "" }, line)));
        lines.extend(mend(node, explained, last));
    }
    lines
}

/// Whether a task is released, and how far that has come.
fn released(explained: &Value) -> String {
    let keeps = explained.get("keeps").and_then(Value::as_str);
    match (is(explained, "released"), is(explained, "told"), published(explained)) {
        (false, told, _) => match keeps {
            Some(keeps) => format!("no: its host keeps {keeps}"),
            None if told => "not yet: the host runs what it was told before".to_owned(),
            None => "not yet".to_owned(),
        },
        (true, true, Some(published)) if is(explained, "confirmed") => format!("yes: {published}"),
        (true, true, Some(published)) => {
            format!("yes: the host has this task set; what it is told besides was {published}")
        }
        (true, true, None) => "yes: the host was told of it".to_owned(),
        (true, false, _) if untold(explained).is_some() => {
            "yes, but nothing is sent to the host, as said below".to_owned()
        }
        (true, false, Some(published)) => format!("yes: {published}"),
        (true, false, None) => "yes, but the host has not confirmed it".to_owned(),
    }
}

/// At which revision that which a host is to hold was published, and which one it confirmed; a controller before this version says neither.
fn published(explained: &Value) -> Option<String> {
    let revision = |field: &str| explained.get(field).and_then(Value::as_u64);
    let at = revision("published_revision")?;
    if is(explained, "confirmed") {
        return Some(format!("published at revision {at}, which the host confirmed"));
    }
    let confirmed = match revision("confirmed_revision") {
        Some(confirmed) => format!("the host confirmed {confirmed}"),
        None => "the host has confirmed none since the controller started".to_owned(),
    };
    let is_silent = explained.get("connection").and_then(Value::as_str) == Some("silent");
    let silent =
        if is_silent { format!(" and is silent since {}", since(explained.get("last_seen"))) } else { String::new() };
    Some(format!("published at revision {at}; {confirmed}{silent}"))
}

/// What mends a task that failed, and what to do until then.
fn mend(node: &str, explained: &Value, last: &Value) -> Vec<(&'static str, String)> {
    let task = cell(explained.get("task"));
    match last.get("outcome").and_then(Value::as_str) {
        Some("DependencyFailed") => return vec![("mend", mend_before(node, explained, last))],
        Some("Unknown") => {
            return vec![(
                "mend",
                format!("look on the host, then there: stemma-agent resolve-unknown {task} done|again"),
            )];
        }
        _ => {}
    }
    let release = release(explained);
    if kept(explained).is_some() {
        return vec![("mend", format!("{task} ends on this host once {release} is given to it"))];
    }
    let reads =
        listed(explained, "reads").map_or(String::new(), |reads| format!(", or change what it reads ({reads})"));
    vec![
        ("mend", format!("apply a newer version of {release}, with {task} mended{reads}")),
        ("retry", "by itself, ever more seldom; at once, on the host: stemma-agent once".to_owned()),
        (
            "hold",
            format!(
                "stemma node hold {node} --reason TEXT keeps it from other task sets until stemma node unhold {node}"
            ),
        ),
    ]
}

/// What mends a task that did not run since another that it requires has not succeeded: that one failed, or its mode keeps it from being run.
fn mend_before(node: &str, explained: &Value, last: &Value) -> String {
    let said = last.get("message").and_then(Value::as_str).unwrap_or_default();
    if said.contains(NOT_RUN_BY_MODE) {
        let release = release(explained);
        let task = cell(explained.get("task"));
        return format!(
            "apply a newer version of {release}, where {task} does not require that one, or that one has another mode"
        );
    }
    format!("the task that failed first: stemma describe node {node} lists it")
}

fn release(explained: &Value) -> &str {
    explained.get("release").and_then(Value::as_str).unwrap_or("its release")
}

/// Why nothing is sent to the host, where that is so.
fn untold(explained: &Value) -> Option<&str> {
    explained.get("untold").and_then(Value::as_str)
}

/// Whether the node's agent is there, and when it last was: nothing reaches a host before. And why nothing is sent to it all the same.
pub(crate) fn contact(explained: &Value) -> String {
    let seen = explained.get("last_seen").filter(|at| !at.is_null());
    let seen = seen.map_or_else(|| "never".to_owned(), |at| since(Some(at)));
    let is_unconfirmed = explained.get("confirmed").and_then(Value::as_bool) == Some(false);
    let unconfirmed = || {
        let how_far = published(explained).map_or_else(String::new, |published| format!(": {published}"));
        format!("the host has not confirmed what it was told last{how_far}")
    };
    let but = untold(explained).map(str::to_owned).or_else(|| is_unconfirmed.then(unconfirmed));
    let but = but.map_or_else(String::new, |why| format!("\n  but       {why}"));
    printable_lines(&format!("  agent     {}\n  last seen {seen}{but}", cell(explained.get("connection"))))
}

/// A shut barrier before a task: what it waits for, on which nodes, and why these have not done it.
fn barrier(explained: &Value, row: &Value) -> String {
    let nodes = row.get("waits_for").and_then(Value::as_array).into_iter().flatten();
    let nodes: Vec<_> = nodes.map(|node| (cell(node.get("node")), cell(node.get("why")))).collect();
    let of = row.get("count").and_then(Value::as_u64).unwrap_or(0);
    let here = match row.get("here") {
        here if here == explained.get("task") => String::new(),
        here => format!("for {} here, which waits ", cell(here)),
    };
    format!("{here}for {}", awaited(&cell(row.get("task")), &cell(row.get("selector")), &nodes, of))
}

/// Why a node has a tag or has it not.
pub(crate) fn tag(node: &str, name: &str, explained: &Value) -> String {
    let has = if is(explained, "has") { "is on" } else { "is not on" };
    let primary = if is(explained, "primary") { ", as primary" } else { "" };
    let mut text =
        format!("tag {name} {has} {}{primary}\n  why       {}", place(node, explained), cell(explained.get("why")));
    if let Some(holder) = explained.get("holder").and_then(Value::as_str) {
        let _ = write!(text, "\n  primary   {holder} holds it");
    }
    if let Some(change) = explained.get("change").and_then(Value::as_str) {
        let _ = write!(text, "\n  change    stemma tag {change} {node} {name}");
    }
    printable_lines(&text)
}

/// Which sources gave a node a trait.
pub(crate) fn node_trait(node: &str, name: &str, explained: &Value) -> String {
    let place = place(node, explained);
    if is(explained, "has") {
        let sources = listed(explained, "sources").unwrap_or_default();
        return printable_lines(&format!("{place} has trait {name}\n  from      {sources}"));
    }
    let why = cell(explained.get("why"));
    let change = explained.get("change").and_then(Value::as_str);
    let change = change.map_or_else(String::new, |verb| format!("\n  change    stemma trait {verb} {node} {name}"));
    printable_lines(&format!("{place} has no trait {name}\n  why       {why}{change}"))
}

/// What the catalogue says of a key, a block for each namespace that binds it.
pub(crate) fn key(bound: Bound, key: &str, explained: &Value) -> String {
    let mut text = format!("{} {key}", bound.word());
    for binding in explained.get("bindings").and_then(Value::as_array).into_iter().flatten() {
        let property = |field: &str| binding.get("property").and_then(|property| property.get(field));
        let _ = write!(text, "\n  {:<12} {}", "title", cell(property("title")));
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
                let _ = write!(text, "\n  {name:<12} {}", cell(Some(value)));
            }
        }
        if let Some(values) = property("items").and_then(|items| items.get("enum")) {
            let _ = write!(text, "\n  {:<12} {}", "each one of", cell(Some(values)));
        }
        let operators = match property("operators").and_then(Value::as_array) {
            None => "any".to_owned(),
            Some(listed) if listed.is_empty() => "none of <or>, <in>, <all-in>".to_owned(),
            Some(_) => cell(property("operators")),
        };
        let _ = write!(text, "\n  {:<12} {operators}", "operators");
        let _ = write!(text, "\n  {:<12} {}", "namespace", cell(binding.get("namespace")));
    }
    printable_lines(&text)
}

/// The winner is seen at a glance; a level that is silent passes on what is above it.
fn result(line: &Value) -> String {
    match line.get("result").and_then(Value::as_str) {
        Some("wins") => "WINS: nearest level that sets it".to_owned(),
        Some("says nothing") => "merges".to_owned(),
        _ => cell(line.get("result")),
    }
}

/// The same of a rule or the host, which are no levels.
fn filled(line: &Value) -> String {
    match line.get("result").and_then(Value::as_str) {
        Some("wins") => "WINS: no level sets it".to_owned(),
        _ => cell(line.get("result")),
    }
}

fn says(line: &Value) -> String {
    if is(line, "stops") { "null (not inherited)".to_owned() } else { cell(line.get("says")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_level_has_a_line_and_the_host_is_shown_below() {
        let text = label(
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
    fn a_name_of_a_primary_is_answered_as_selectors_match_it() {
        let text = tag(
            "db-1",
            "primary-mysql",
            &json!({"group": "prod/databases", "has": true, "primary": true, "primary_of": "mysql", "holder": "db-1",
                "why": "it holds mysql as primary, and selectors match it by both names"}),
        );
        assert!(text.starts_with("tag primary-mysql is on db-1 (prod/databases), as primary"), "{text}");
        assert!(text.ends_with("\n  primary   db-1 holds it"), "no tag of that name is assigned: {text}");
    }

    #[test]
    fn a_suppressed_trait_says_so_and_who_gives_it() {
        let why = "an operator suppressed it; it is given by: detected";
        let has_none =
            json!({"group": "prod/web", "has": false, "sources": ["detected"], "why": why, "change": "unsuppress"});
        let text = node_trait("web-1", "CUSTOM_A", &has_none);
        assert!(text.contains(&format!("\n  why       {why}\n")), "{text}");
        assert!(text.ends_with("\n  change    stemma trait unsuppress web-1 CUSTOM_A"), "{text}");
    }

    #[test]
    fn only_a_command_that_would_be_taken_is_proposed() {
        let of =
            |change: Value| json!({"group": "prod/web", "has": false, "sources": [], "why": "x", "change": change});
        assert!(tag("web-1", "nginx", &of("assign".into())).ends_with("\n  change    stemma tag assign web-1 nginx"));
        assert!(node_trait("web-1", "HW_X", &of("add".into())).ends_with("\n  change    stemma trait add web-1 HW_X"));
        for text in [tag("web-1", "nosuch", &of(Value::Null)), node_trait("web-1", "BOGUS", &of(Value::Null))] {
            assert!(!text.contains("change"), "{text}");
        }
        assert!(!label("web-1", "a b", &json!({"levels": []})).contains("Change"));
    }

    #[test]
    fn w08_a_shut_barrier_is_said_with_what_it_waits_for() {
        let row = |here: &str| {
            json!({"here": here, "task": "db", "selector": "tags mysql", "count": 3,
                "waits_for": [{"node": "db-1", "why": "it is silent"}, {"node": "db-2", "why": "db failed there"}]})
        };
        let explained =
            json!({"task": "app", "runs": true, "released": true, "why": "x", "waits": [row("app"), row("conf")]});
        let text = task("web-1", "app", &explained);
        let waits = "for db on tags mysql: db-1 (it is silent), db-2 (db failed there) and 1 more";
        assert!(
            text.contains(&format!("\n  waits     {waits}\n  waits     for conf here, which waits {waits}\n")),
            "{text}"
        );
    }

    #[test]
    fn what_keeps_a_task_from_running_is_said() {
        let explained = json!({"runs": true, "released": true, "told": true, "why": "x",
            "set_aside": ["it is paused on its host, which applies nothing until it is resumed there"]});
        let text = task("web-1", "a", &explained);
        assert!(
            text.contains("released  yes: the host was told of it\n  but       it is paused on its host"),
            "{text}"
        );
    }

    #[test]
    fn a_task_that_the_host_runs_still_is_told_with_what_keeps_it_there() {
        let explained = json!({"runs": false, "released": true, "told": true, "why": "x",
            "set_aside": ["requirement a >= 1 is not met: no new task set is given"]});
        let text = task("web-1", "a", &explained);
        let told = "released  yes: the host was told of it\n  but       requirement a >= 1 is not met";
        assert!(text.starts_with("a does not run on") && text.contains(told), "{text}");
    }

    /// It said that the task does not run there, and what the host runs in no word.
    #[test]
    fn y06_of_a_task_that_the_next_release_lacks_it_is_said_what_the_host_has_and_what_is_next() {
        let held = "it is held (a disk is changed): no new task set is given";
        let of = |change: Value| {
            let mut explained = json!({"task": "a", "group": "c/g", "release": "site@2", "runs": false, "reads": [], "set_aside": [held],
                "why": "the node's release has no such task", "released": true, "keeps": "site@1", "told": true, "waits": [], "last": null});
            explained.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            task("n1", "a", &explained)
        };
        let expected = format!(
            "a still runs on n1 (c/g)\n  host      keeps site@1, which has this task\n  next      site@2: the node's release has no such task\n  \
             but       {held}\n  last      the host has told nothing of it yet"
        );
        assert_eq!(of(json!({})), expected);
        let unconfirmed = of(json!({"told": false}));
        assert!(unconfirmed.contains("which has this task; it has not confirmed that it holds it\n"), "{unconfirmed}");
        // The next release has it and does not place it here: it is not released, and was run of the task set that is kept.
        let elsewhere = json!({"released": false, "why": "it does not run on this node: it is placed by tags x"});
        let last = |of_before: bool| json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "Succeeded", "message": "", "of_before": of_before});
        for (of_before, heading) in
            [(false, "a still runs on n1 (c/g)\n  host "), (true, "a does not run on n1 (c/g)\n  why ")]
        {
            let mut change = elsewhere.clone();
            change["last"] = last(of_before);
            let text = of(change);
            assert!(text.starts_with(heading), "{text}");
        }
        let failed = of(
            json!({"last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Failed", "message": "x", "of_before": false}}),
        );
        assert!(failed.contains("\n  mend      a ends on this host once site@2 is given to it"), "{failed}");
        assert!(!failed.contains("with a mended"), "{failed}");
    }

    #[test]
    fn y06_a_held_host_is_not_said_to_have_been_told_and_results_of_before_are_named() {
        let explained = json!({"runs": true, "released": false, "told": true, "keeps": "r@1", "why": "x",
            "last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Changed", "message": "", "of_before": true}});
        let text = task("web-1", "a", &explained);
        assert!(text.contains("\n  released  no: its host keeps r@1\n"), "{text}");
        assert!(text.ends_with("(of the task set before)"), "{text}");
        for (confirmed, says) in [(json!(false), true), (json!(true), false), (json!(null), false)] {
            let told = contact(&json!({"connection": "silent", "confirmed": confirmed}));
            assert_eq!(
                told.ends_with("\n  but       the host has not confirmed what it was told last"),
                says,
                "{told}"
            );
        }
    }

    /// It said so of every task that was released, also to hosts that never had an agent.
    #[test]
    fn w08_a_host_was_told_of_a_task_only_where_it_said_that_it_holds_it() {
        for (released, told, said) in [
            (true, Some(true), "yes: the host was told of it"),
            (true, Some(false), "yes, but the host has not confirmed it"),
            (true, None, "yes, but the host has not confirmed it"),
            (false, Some(true), "not yet: the host runs what it was told before"),
            (false, Some(false), "not yet"),
        ] {
            let text = task("web-1", "a", &json!({"runs": true, "released": released, "told": told, "why": "x"}));
            assert!(text.contains(&format!("\n  released  {said}\n")), "{said:?} in\n{text}");
        }
    }

    #[test]
    fn y09_it_is_said_what_is_published_and_what_the_host_confirmed() {
        let of = |told: bool, confirmed: Value, held: Value, connection: &str| {
            json!({"runs": true, "released": true, "told": told, "why": "x", "confirmed": confirmed, "published_revision": 1285,
                "confirmed_revision": held, "connection": connection, "last_seen": "2026-11-20T12:27:00+00:00"})
        };
        for (explained, said) in [
            (
                of(true, json!(true), json!(1285), "connected"),
                "yes: published at revision 1285, which the host confirmed\n",
            ),
            (
                of(false, json!(false), json!(1266), "connected"),
                "yes: published at revision 1285; the host confirmed 1266\n",
            ),
            (
                of(false, json!(false), json!(1266), "silent"),
                "yes: published at revision 1285; the host confirmed 1266 and is silent since 2026-11-20 12:27 (",
            ),
            (
                of(false, json!(null), json!(null), "absent"),
                "yes: published at revision 1285; the host has confirmed none since the controller started\n",
            ),
            (
                of(true, json!(false), json!(1266), "connected"),
                "yes: the host has this task set; what it is told besides was published at revision 1285; the host confirmed 1266\n",
            ),
        ] {
            let text = task("web-1", "a", &explained);
            assert!(text.contains(&format!("\n  released  {said}")), "{said:?} in\n{text}");
        }
        let text = contact(&of(false, json!(false), json!(1266), "connected"));
        let but = "but       the host has not confirmed what it was told last: published at revision 1285; the host confirmed 1266";
        assert!(text.ends_with(but), "{text}");
    }

    #[test]
    fn when_a_host_was_last_there_is_said() {
        assert_eq!(
            contact(&json!({"connection": "absent", "last_seen": null})),
            "  agent     absent\n  last seen never"
        );
        let seen = contact(&json!({"connection": "silent", "last_seen": "2026-11-20T09:41:00+00:00"}));
        assert!(seen.starts_with("  agent     silent\n  last seen 2026-11-20 09:41 ("), "{seen}");
    }

    #[test]
    fn x02_a_host_to_which_nothing_is_sent_is_not_said_to_be_slow_to_confirm() {
        let why = "its host holds revision 185 of another store (epoch e1), and this one was restored from a backup and is at revision 1000025 \
                   of epoch e2; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
        let explained = json!({"runs": true, "released": true, "told": false, "why": "x", "connection": "connected", "untold": why});
        let text = task("web-1", "a", &explained);
        assert!(text.contains("\n  released  yes, but nothing is sent to the host, as said below\n"), "{text}");
        assert!(contact(&explained).ends_with(&format!("\n  but       {why}")), "of a label as well");
        let told = json!({"connection": "connected", "last_seen": null, "untold": null});
        assert!(!contact(&told).contains("but"), "{}", contact(&told));
    }

    #[test]
    fn what_mends_a_task_is_said_by_how_it_ended() {
        for (outcome, said) in [
            ("DependencyFailed", "\n  mend      the task that failed first: stemma describe node web-1 lists it"),
            ("Unknown", "\n  mend      look on the host, then there: stemma-agent resolve-unknown a done|again"),
            ("Unsupported", "\n  mend      apply a newer version of its release, with a mended\n"),
        ] {
            let last = json!({"at": "2026-11-20T09:41:00+00:00", "outcome": outcome, "message": "", "output": ""});
            let text = task("web-1", "a", &json!({"task": "a", "runs": true, "why": "x", "last": last}));
            assert!(text.contains(said), "{said:?} in\n{text}");
        }
    }

    #[test]
    fn y06_a_task_that_is_only_observed_would_change_nothing_and_what_requires_it_waits_for_no_failure() {
        let account = |last: Value| {
            task("web-1", "a", &json!({"task": "a", "release": "site@1", "runs": true, "why": "x", "last": last}))
        };
        let seen = account(
            json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "WouldChange", "is_observed": true, "output": "",
            "message": "its mode is observe: it is neither run nor checked"}),
        );
        assert!(
            seen.contains("\n  last      observed, 2026-11-20 09:41 (") && !seen.contains("would change"),
            "{seen}"
        );
        let after = account(json!({"at": "2026-11-20T09:41:00+00:00", "outcome": "DependencyFailed", "output": "",
            "message": "Not run: f, which it requires, is neither run nor checked, since its mode is observe."}));
        let mend = "\n  mend      apply a newer version of site@1, where a does not require that one, or that one has another mode";
        assert!(after.contains(mend) && !after.contains("failed first"), "{after}");
    }

    #[test]
    fn a_failed_task_says_what_the_host_said_and_what_to_do() {
        let explained = json!({"group": "prod/frontends", "task": "site-conf", "release": "site@1", "runs": true, "released": true,
            "why": "it runs on this node by tags nginx", "reads": ["labels.tier"],
            "last": {"at": "2026-11-20T09:41:00+00:00", "outcome": "Failed", "message": "no such user", "output": "a\nb\n"}});
        let text = task("web-1", "site-conf", &explained);
        for line in [
            "site-conf runs on web-1 (prod/frontends)\n  why       it runs on this node by tags nginx",
            "  last      failed, 2026-11-20 09:41 (",
            "): no such user\n  printed   a\n            b\n",
            "\n  mend      apply a newer version of site@1, with site-conf mended, or change what it reads (labels.tier)\n",
            "\n  retry     by itself, ever more seldom; at once, on the host: stemma-agent once\n",
            "\n  hold      stemma node hold web-1 ",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
        assert!(!text.contains("describe"), "that refers to this: {text}");
        assert!(!text.contains("at="), "{text}");
        let never = task(
            "db-1",
            "x",
            &json!({"runs": false, "why": "it does not run on this node: it is placed by tags nginx"}),
        );
        assert_eq!(
            never,
            "x does not run on db-1 (unplaced)\n  why       it does not run on this node: it is placed by tags nginx"
        );
    }
}
