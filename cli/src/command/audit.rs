//! `audit`: who did what, and what was refused.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;
use stemma_wire::endpoint::{Endpoint, escape};

use crate::api::Api;
use crate::args::{Audit, Output};
use crate::command::question;
use crate::output::{cell, since, table};

/// How many changed fields are printed below a row.
const MOST_LINES: usize = 20;
/// How much of a value is printed there, in characters.
const LONGEST_VALUE: usize = 80;

/// Prints the newest entries, the last one first.
pub(crate) async fn audit(api: &mut Api, asked: &Audit, output: Output) -> Result<()> {
    let (entries, are_all) = entries(api, asked).await?;
    if entries.is_empty() && are_all {
        // The answer stands, whatever becomes of the advice.
        drop(warn_of_names(api, asked).await);
    }
    let list = Value::Array(entries);
    let rows = list.as_array().into_iter().flatten();
    let revisions = rows.clone().map(|entry| cell(entry.get("revision"))).collect::<Vec<_>>();
    let head = ["revision", "at", "principal", "what", "reason", "address"];
    let alike = alike(rows.clone());
    let shown = || table(&head, rows.flat_map(|entry| lines(entry, &alike)));
    question::print_list(&list, ("revision", revisions.iter().map(String::as_str)), shown, output)?;
    if !are_all {
        tell!("{}, and there are older ones: --limit N", counted(revisions.len()));
    }
    Ok(())
}

fn counted(rows: usize) -> String {
    if rows == 1 { "1 row is shown".to_owned() } else { format!("{rows} rows are shown") }
}

/// Warns of an object and of a principal of whom the audit has nothing at all, at any time: its name may be misspelled.
async fn warn_of_names(api: &mut Api, asked: &Audit) -> Result<()> {
    let alone = Audit { object: None, principal: None, since: None, until: None, refused: false, limit: 1 };
    let object =
        asked.object.as_ref().map(|name| ("object", name, Audit { object: Some(name.clone()), ..alone.clone() }));
    let principal = asked
        .principal
        .as_ref()
        .map(|name| ("principal", name, Audit { principal: Some(name.clone()), ..alone.clone() }));
    for (what, name, alone) in object.into_iter().chain(principal) {
        if entries(api, &alone).await?.0.is_empty() {
            tell!("warning: the audit has nothing of {what} {name:?}");
        }
    }
    Ok(())
}

/// As many entries as were asked for, and whether these are all: a page may hold fewer, where few entries meet the filter. One more is
/// asked for, since only that tells whether there are older ones.
async fn entries(api: &mut Api, asked: &Audit) -> Result<(Vec<Value>, bool)> {
    let mut entries: Vec<Value> = Vec::new();
    let mut next = Some(path(asked));
    while let Some(path) = next.filter(|_| entries.len() <= asked.limit) {
        let page = api.get(&path).await?;
        entries.extend(question::items(&page).cloned());
        next = question::next(&page);
    }
    let are_all = entries.len() <= asked.limit;
    entries.truncate(asked.limit);
    Ok((entries, are_all))
}

fn path(asked: &Audit) -> String {
    let mut path =
        format!("{}?sort_dir=desc&limit={}", Endpoint::ListAudit.path(&[]), asked.limit.saturating_add(1).min(1_000));
    let texts = [("object", asked.object.clone()), ("principal", asked.principal.clone())];
    let times = [("since", asked.since.clone()), ("until", asked.until.clone())];
    for (name, value) in texts.into_iter().chain(times) {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", escape(&value)));
        }
    }
    if asked.refused {
        path.push_str("&refused=true");
    }
    path
}

/// The row of an entry, and below it what changed.
fn lines(entry: &Value, alike: &BTreeSet<&str>) -> Vec<Vec<String>> {
    let text = |field: &str| cell(entry.get(field));
    let row = vec![
        text("revision"),
        since(entry.get("at")),
        text("principal"),
        what(entry, alike),
        text("reason"),
        from(entry),
    ];
    let empty = String::new;
    let below = |line: String| vec![empty(), empty(), empty(), format!("  {line}"), empty(), empty()];
    std::iter::once(row).chain(changed(entry, alike).into_iter().map(below)).collect()
}

/// The uuids of objects that bore a name that others bore too.
fn alike<'v>(entries: impl Iterator<Item = &'v Value>) -> BTreeSet<&'v str> {
    let mut of_name: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for object in entries.flat_map(objects) {
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        if let (Some(kind), Some(name), Some(uuid)) = (text("kind"), text("name"), text("uuid")) {
            of_name.entry((kind, name)).or_default().insert(uuid);
        }
    }
    of_name.into_values().filter(|uuids| uuids.len() > 1).flatten().collect()
}

fn objects(entry: &Value) -> impl Iterator<Item = &Value> {
    entry.get("objects").and_then(Value::as_array).into_iter().flatten()
}

/// An object as it is told; where others bore its name, with its uuid.
fn named(object: &Value, alike: &BTreeSet<&str>) -> String {
    let text = |field: &str| cell(object.get(field));
    let uuid = object.get("uuid").and_then(Value::as_str).filter(|uuid| alike.contains(uuid));
    let uuid = uuid.map(|uuid| format!(" {uuid}")).unwrap_or_default();
    format!("{}/{}{uuid}", text("kind"), text("name"))
}

/// The fields that changed of objects that were there before and after, a line each; of those that were made or deleted `-o json` has them.
fn changed(entry: &Value, alike: &BTreeSet<&str>) -> Vec<String> {
    let is_alone = objects(entry).count() == 1;
    let mut lines: Vec<String> = Vec::new();
    for object in objects(entry).filter(|object| cell(object.get("action")) == "updated") {
        let of = if is_alone { String::new() } else { format!("{}: ", named(object, alike)) };
        let changes = object.get("changes").and_then(Value::as_array).into_iter().flatten();
        lines.extend(changes.map(|change| format!("{of}{}", change_line(change))));
        if why(object) == Some("not_kept") {
            lines.push(format!("{of}what it was is no longer kept"));
        }
    }
    let more = lines.len().saturating_sub(MOST_LINES);
    if more > 0 {
        lines.truncate(MOST_LINES);
        lines.push(format!("and {more} more: -o json shows them"));
    }
    let is_untold = |object: &&Value| why(object) == Some("no_room");
    let untold = objects(entry).filter(is_untold).count();
    if untold > 0 {
        lines.push(format!("{untold} of the objects are told only where they are asked for: stemma audit KIND/NAME"));
    }
    lines
}

/// Why the changes of an object are not told.
fn why(object: &Value) -> Option<&str> {
    object.get("changes_left_out").and_then(Value::as_str)
}

/// One field: what it was, and what it is.
fn change_line(change: &Value) -> String {
    if let Some(more) = change.get("left_out") {
        return format!("and {more} fields more");
    }
    let field = cell(change.get("field"));
    if change.get("sensitive").and_then(Value::as_bool) == Some(true) {
        return format!("{field}: changed, and its values are shown to nobody");
    }
    let value = |name: &str| change.get(name).map_or_else(|| "(unset)".to_owned(), short);
    format!("{field}: {} -> {}", value("before"), value("after"))
}

/// A value as JSON; of a long one the beginning.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}… (-o json shows more)", &text[..end]),
        None => text,
    }
}

/// From where; both addresses, where two hosts have one identity.
fn from(entry: &Value) -> String {
    let addresses = ["address", "other_address"].map(|field| entry.get(field).filter(|at| !at.is_null()));
    let known: Vec<String> = addresses.into_iter().flatten().map(|at| cell(Some(at))).collect();
    if known.is_empty() { cell(None) } else { known.join(", ") }
}

/// What was done, or why not; of many objects the first ones.
fn what(entry: &Value, alike: &BTreeSet<&str>) -> String {
    const FEW: usize = 3;
    if let Some(reason) = entry.get("refused").and_then(Value::as_str) {
        let more = entry.get("unsaid").and_then(Value::as_u64).filter(|more| *more > 0);
        return format!("refused: {reason}{}", more.map(|more| format!(" (and {more} more)")).unwrap_or_default());
    }
    let objects: Vec<&Value> = objects(entry).collect();
    let part = |object: &Value| {
        // An earlier controller does not say what became of it.
        let said: Vec<&str> =
            ["part_action", "part"].into_iter().filter_map(|field| object.get(field)?.as_str()).collect();
        if said.is_empty() { String::new() } else { format!(" ({})", said.join(" ")) }
    };
    let one = |object: &&Value| format!("{} {}{}", cell(object.get("action")), named(object, alike), part(object));
    let mut said: Vec<String> = objects.iter().take(FEW).map(one).collect();
    if objects.len() > FEW {
        said.push(format!("and {} more", objects.len() - FEW));
    }
    said.extend(entry.get("action").filter(|action| action.is_object()).map(done_to_fleet));
    if said.is_empty() { "-".to_owned() } else { said.join(", ") }
}

/// What was done to the fleet as a whole. A kind that a newer controller knows is said as it calls it.
fn done_to_fleet(action: &Value) -> String {
    let text = |field: &str| cell(action.get(field));
    match action.get("kind").and_then(Value::as_str) {
        Some("fleet.resumed") => {
            format!("resumed the fleet: from epoch {} to {}", text("epoch_before"), text("epoch_after"))
        }
        Some("token.made") => format!("made join token {}", text("token")),
        Some("token.deleted") => format!("deleted join token {}", text("token")),
        Some("backup.made") => format!("backed up revision {}", text("of_revision")),
        _ => text("kind"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_says_what_was_done_or_why_not() {
        let object = |name: &str| json!({"action": "updated", "kind": "node", "name": name});
        for (entry, expected) in [
            (json!({"refused": null, "objects": [object("a")]}), "updated node/a"),
            (
                json!({"objects": [{"action": "updated", "kind": "principal", "name": "ada", "part": "tokens.07"}]}),
                "updated principal/ada (tokens.07)",
            ),
            (
                json!({"objects": [{"action": "unchanged", "kind": "node", "name": "a", "part": "join-tokens.07", "part_action": "deleted"}]}),
                "unchanged node/a (deleted join-tokens.07)",
            ),
            (
                json!({"objects": [{"action": "updated", "kind": "node", "name": "a", "part": null, "part_action": null}]}),
                "updated node/a",
            ),
            (
                json!({"objects": [object("a"), object("b"), object("c"), object("d")]}),
                "updated node/a, updated node/b, updated node/c, and 1 more",
            ),
            (
                json!({"objects": [], "action": {"kind": "fleet.resumed", "epoch_before": "e1", "epoch_after": "e2"}}),
                "resumed the fleet: from epoch e1 to e2",
            ),
            (json!({"objects": [], "action": {"kind": "backup.made", "of_revision": 9}}), "backed up revision 9"),
            (json!({"objects": [], "action": {"kind": "of.later"}}), "of.later"),
            (json!({"objects": [], "action": null}), "-"),
            (json!({"refused": "auth.forbidden", "unsaid": 0, "objects": []}), "refused: auth.forbidden"),
            (json!({"refused": "auth.forbidden", "unsaid": 2, "objects": []}), "refused: auth.forbidden (and 2 more)"),
        ] {
            assert_eq!(what(&entry, &BTreeSet::new()), expected);
        }
    }

    #[test]
    fn y09_what_changed_stands_below_the_row() {
        let object =
            |name: &str, changes: Value| json!({"action": "updated", "kind": "node", "name": name, "changes": changes});
        let rack = json!({"field": "labels.rack", "before": "a", "after": "b"});
        let made =
            json!({"action": "created", "kind": "node", "name": "n", "changes": [{"field": "labels.a", "after": "b"}]});
        let not_kept =
            json!({"action": "updated", "kind": "node", "name": "n", "changes": null, "changes_left_out": "not_kept"});
        for (objects, expected) in [
            (json!([object("n", json!([rack]))]), &["labels.rack: \"a\" -> \"b\""][..]),
            (
                json!([object("n", json!([rack])), object("m", json!([{"field": "labels.a", "before": "x"}]))]),
                &["node/n: labels.rack: \"a\" -> \"b\"", "node/m: labels.a: \"x\" -> (unset)"],
            ),
            (json!([object("n", json!([{"field": "labels.a", "after": null}]))]), &["labels.a: (unset) -> null"]),
            (
                json!([object("n", json!([{"field": "actions", "sensitive": true}, {"field": "…", "left_out": 7}]))]),
                &["actions: changed, and its values are shown to nobody", "and 7 fields more"],
            ),
            (
                json!([object("n", json!([{"field": "description", "before": "x".repeat(90), "after": ""}]))]),
                &[&format!("description: \"{}… (-o json shows more) -> \"\"", "x".repeat(79))],
            ),
            (json!([made]), &[]),
            (json!([not_kept]), &["what it was is no longer kept"]),
        ] {
            assert_eq!(changed(&json!({"objects": objects}), &BTreeSet::new()), expected);
        }
        let many = json!({"objects": [object("n", (0..27).map(|_| rack.clone()).collect())]});
        let lines = changed(&many, &BTreeSet::new());
        assert_eq!((lines.len(), &*lines[20]), (21, "and 7 more: -o json shows them"));
        let no_room =
            json!({"action": "updated", "kind": "node", "name": "m", "changes": null, "changes_left_out": "no_room"});
        let lines = changed(&json!({"objects": [no_room]}), &BTreeSet::new());
        assert_eq!(lines, ["1 of the objects are told only where they are asked for: stemma audit KIND/NAME"]);
    }

    #[test]
    fn y09_objects_that_bore_one_name_are_told_apart_by_uuid() {
        let entry = |name: &str, uuid: &str| json!({"objects": [{"action": "updated", "kind": "node", "name": name, "uuid": uuid}]});
        let entries = [entry("x", "1"), entry("y", "1"), entry("x", "2"), entry("z", "3")];
        let alike = alike(entries.iter());
        let told: Vec<String> = entries.iter().map(|entry| what(entry, &alike)).collect();
        assert_eq!(told, ["updated node/x 1", "updated node/y 1", "updated node/x 2", "updated node/z"]);
    }
}
