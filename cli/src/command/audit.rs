//! `stemma audit`: the changes by principals, and the refused requests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;
use stemma_wire::endpoint::{Endpoint, escape};

use crate::api::ApiClient;
use crate::args::{AuditArgs, Output};
use crate::command::read;
use crate::output::{cell_text, table, time_with_age};

/// Maximum number of changed fields that are printed below the row of an audit entry.
const MAX_CHANGE_LINES: usize = 20;
/// Maximum length of a printed value of a changed field, in characters.
const MAX_VALUE_CHARS: usize = 80;

/// Runs `stemma audit`: prints the newest entries that match, latest first.
pub(crate) async fn audit(api: &mut ApiClient, query: &AuditArgs, output: Output) -> Result<()> {
    let (entries, is_complete) = read_entries(api, query).await?;
    if entries.is_empty() && is_complete {
        // The list is correct without the warning, so an error of its requests is ignored.
        drop(warn_of_unknown_names(api, query).await);
    }
    let list = Value::Array(entries);
    let rows = list.as_array().into_iter().flatten();
    let revisions = rows.clone().map(|entry| cell_text(entry.get("revision"))).collect::<Vec<_>>();
    let head = ["revision", "at", "principal", "what", "reason", "address"];
    let reused_uuids = reused_name_uuids(rows.clone());
    let as_table = || table(&head, rows.flat_map(|entry| table_rows(entry, &reused_uuids)));
    read::print_list(&list, ("revision", revisions.iter().map(String::as_str)), as_table, output)?;
    if !is_complete {
        errln!("{}, and there are older ones: --limit N", row_count(revisions.len()));
    }
    Ok(())
}

/// Returns the sentence about the number of printed rows.
fn row_count(rows: usize) -> String {
    if rows == 1 { "1 row is shown".to_owned() } else { format!("{rows} rows are shown") }
}

/// Warns if no audit entry at all is about the given object, or by the given principal. The name may then be
/// misspelled.
async fn warn_of_unknown_names(api: &mut ApiClient, query: &AuditArgs) -> Result<()> {
    let base = AuditArgs { object: None, principal: None, since: None, until: None, refused: false, limit: 1 };
    let object = query.object.as_ref().map(|name| ("object", name, AuditArgs { object: Some(name.clone()), ..base.clone() }));
    let principal =
        query.principal.as_ref().map(|name| ("principal", name, AuditArgs { principal: Some(name.clone()), ..base.clone() }));
    for (noun, name, filter) in object.into_iter().chain(principal) {
        // The first part of the result is the list of entries.
        if read_entries(api, &filter).await?.0.is_empty() {
            errln!("warning: no audit entry is about {noun} {name:?}");
        }
    }
    Ok(())
}

/// Returns the newest entries that match, at most `limit` of the query, and whether there are no older matches. Several
/// pages are read, because a page contains few entries if few match. One entry more than the limit is requested, to
/// find out whether older entries exist.
async fn read_entries(api: &mut ApiClient, query: &AuditArgs) -> Result<(Vec<Value>, bool)> {
    let mut entries: Vec<Value> = Vec::new();
    let mut next = Some(audit_path(query));
    while let Some(path) = next.filter(|_| entries.len() <= query.limit) {
        let page = api.get(&path).await?;
        entries.extend(read::list_items(&page).cloned());
        next = read::next_page_path(&page);
    }
    let is_complete = entries.len() <= query.limit;
    entries.truncate(query.limit);
    Ok((entries, is_complete))
}

/// Returns the API path of the first page of entries that match the query. A page has at most 1000 entries. One entry
/// more than the limit of the query is requested, to find out whether older entries exist.
fn audit_path(query: &AuditArgs) -> String {
    let mut path = format!("{}?sort_dir=desc&limit={}", Endpoint::ListAudit.path(&[]), query.limit.saturating_add(1).min(1_000));
    let texts = [("object", query.object.clone()), ("principal", query.principal.clone())];
    let times = [("since", query.since.clone()), ("until", query.until.clone())];
    for (name, value) in texts.into_iter().chain(times) {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", escape(&value)));
        }
    }
    if query.refused {
        path.push_str("&refused=true");
    }
    path
}

/// Returns the table row of an audit entry, followed by one row for each line of [`change_lines`] about the changed
/// fields. `reused_uuids` contains the uuids of objects that shared a name.
fn table_rows(entry: &Value, reused_uuids: &BTreeSet<&str>) -> Vec<Vec<String>> {
    let text = |field: &str| cell_text(entry.get(field));
    let row = vec![
        text("revision"),
        time_with_age(entry.get("at")),
        text("principal"),
        action_text(entry, reused_uuids),
        text("reason"),
        source_address(entry),
    ];
    let empty = String::new;
    let change_row = |line: String| vec![empty(), empty(), empty(), format!("  {line}"), empty(), empty()];
    std::iter::once(row).chain(change_lines(entry, reused_uuids).into_iter().map(change_row)).collect()
}

/// Returns the uuids of the objects in the entries that share kind and name with another object. For example, a deleted
/// node and a new node may have had one name.
fn reused_name_uuids<'v>(entries: impl Iterator<Item = &'v Value>) -> BTreeSet<&'v str> {
    let mut by_name: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for object in entries.flat_map(entry_objects) {
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        if let (Some(kind), Some(name), Some(uuid)) = (text("kind"), text("name"), text("uuid")) {
            by_name.entry((kind, name)).or_default().insert(uuid);
        }
    }
    by_name.into_values().filter(|uuids| uuids.len() > 1).flatten().collect()
}

/// Returns the objects that an entry is about.
fn entry_objects(entry: &Value) -> impl Iterator<Item = &Value> {
    entry.get("objects").and_then(Value::as_array).into_iter().flatten()
}

/// Returns `KIND/NAME`. The uuid follows if it is in `reused_uuids`, the uuids of objects that shared a name.
fn object_label(object: &Value, reused_uuids: &BTreeSet<&str>) -> String {
    let text = |field: &str| cell_text(object.get(field));
    let uuid = object.get("uuid").and_then(Value::as_str).filter(|uuid| reused_uuids.contains(uuid));
    let uuid = uuid.map(|uuid| format!(" {uuid}")).unwrap_or_default();
    format!("{}/{}{uuid}", text("kind"), text("name"))
}

/// Returns one line for each changed field of the updated objects, at most [`MAX_CHANGE_LINES`]. The fields of created
/// and deleted objects are only in `-o json`. If the response lacks the changes of some objects, a line gives the
/// reason.
fn change_lines(entry: &Value, reused_uuids: &BTreeSet<&str>) -> Vec<String> {
    let is_only_object = entry_objects(entry).count() == 1;
    let mut lines: Vec<String> = Vec::new();
    for object in entry_objects(entry).filter(|object| cell_text(object.get("action")) == "updated") {
        let prefix = if is_only_object { String::new() } else { format!("{}: ", object_label(object, reused_uuids)) };
        let changes = object.get("changes").and_then(Value::as_array).into_iter().flatten();
        lines.extend(changes.map(|change| format!("{prefix}{}", change_line(change))));
        if missing_changes_reason(object) == Some("not_kept") {
            lines.push(format!("{prefix}the old values are no longer stored"));
        }
    }
    let excess = lines.len().saturating_sub(MAX_CHANGE_LINES);
    if excess > 0 {
        lines.truncate(MAX_CHANGE_LINES);
        lines.push(format!("and {excess} more: -o json shows them"));
    }
    let is_omitted = |object: &&Value| missing_changes_reason(object) == Some("no_room");
    let omitted = entry_objects(entry).filter(is_omitted).count();
    if omitted > 0 {
        lines.push(format!("the changes of {omitted} objects are left out; to see them: stemma audit KIND/NAME"));
    }
    lines
}

/// Returns why the response lacks the changes of an object, for example `not_kept` (no longer stored) or `no_room` (the
/// entry would be too large).
fn missing_changes_reason(object: &Value) -> Option<&str> {
    object.get("changes_left_out").and_then(Value::as_str)
}

/// Returns the text of a change: the field with its old and new value. If the change only counts further fields
/// (`left_out`), returns their number. The values of a sensitive field are not shown.
fn change_line(change: &Value) -> String {
    if let Some(count) = change.get("left_out") {
        return format!("and {count} more fields");
    }
    let field = cell_text(change.get("field"));
    if change.get("sensitive").and_then(Value::as_bool) == Some(true) {
        return format!("{field}: changed; its values are hidden");
    }
    let value = |name: &str| change.get(name).map_or_else(|| "(unset)".to_owned(), shortened);
    format!("{field}: {} -> {}", value("before"), value("after"))
}

/// Returns a value as JSON, cut after [`MAX_VALUE_CHARS`] characters.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}… (-o json shows more)", &text[..end]),
        None => text,
    }
}

/// Returns the address of the client, or both addresses if the request was refused because two hosts share an identity.
fn source_address(entry: &Value) -> String {
    let addresses = ["address", "other_address"].map(|field| entry.get(field).filter(|address| !address.is_null()));
    let texts: Vec<String> = addresses.into_iter().flatten().map(|address| cell_text(Some(address))).collect();
    if texts.is_empty() { cell_text(None) } else { texts.join(", ") }
}

/// Returns the actions of the principal, or why the request was refused. Of many objects, only the first three are
/// listed. The field `unsaid` of a refusal is the number of similar refusals that have no entry of their own.
fn action_text(entry: &Value, uuids: &BTreeSet<&str>) -> String {
    const MAX_OBJECTS: usize = 3;
    if let Some(reason) = entry.get("refused").and_then(Value::as_str) {
        let count = entry.get("unsaid").and_then(Value::as_u64).filter(|count| *count > 0);
        return format!("refused: {reason}{}", count.map(|count| format!(" (and {count} more)")).unwrap_or_default());
    }
    let objects: Vec<&Value> = entry_objects(entry).collect();
    let part = |object: &Value| {
        // A part is, for example, a token of a principal. An older controller does not report the action on it.
        let words: Vec<&str> = ["part_action", "part"].into_iter().filter_map(|field| object.get(field)?.as_str()).collect();
        if words.is_empty() { String::new() } else { format!(" ({})", words.join(" ")) }
    };
    let text = |object: &&Value| format!("{} {}{}", cell_text(object.get("action")), object_label(object, uuids), part(object));
    let mut texts: Vec<String> = objects.iter().take(MAX_OBJECTS).map(text).collect();
    if objects.len() > MAX_OBJECTS {
        texts.push(format!("and {} more", objects.len() - MAX_OBJECTS));
    }
    texts.extend(entry.get("action").filter(|action| action.is_object()).map(action_without_objects));
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

/// Returns the text of an action that is not about an object, such as a backup. A kind of action that only a newer
/// controller defines is returned unchanged.
fn action_without_objects(action: &Value) -> String {
    let text = |field: &str| cell_text(action.get(field));
    match action.get("kind").and_then(Value::as_str) {
        Some("fleet.resumed") => {
            format!("resumed the fleet: from epoch {} to {}", text("epoch_before"), text("epoch_after"))
        }
        Some("token.made") => format!("created join token {}", text("token")),
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
    fn action_text_shows_action_or_refusal() {
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
            assert_eq!(action_text(&entry, &BTreeSet::new()), expected);
        }
    }

    #[test]
    fn y09_change_lines_show_values_before_and_after() {
        let object = |name: &str, changes: Value| json!({"action": "updated", "kind": "node", "name": name, "changes": changes});
        let rack = json!({"field": "labels.rack", "before": "a", "after": "b"});
        let created = json!({"action": "created", "kind": "node", "name": "n", "changes": [{"field": "labels.a", "after": "b"}]});
        let not_kept = json!({"action": "updated", "kind": "node", "name": "n", "changes": null, "changes_left_out": "not_kept"});
        for (objects, expected) in [
            (json!([object("n", json!([rack]))]), &["labels.rack: \"a\" -> \"b\""][..]),
            (
                json!([object("n", json!([rack])), object("m", json!([{"field": "labels.a", "before": "x"}]))]),
                &["node/n: labels.rack: \"a\" -> \"b\"", "node/m: labels.a: \"x\" -> (unset)"],
            ),
            (json!([object("n", json!([{"field": "labels.a", "after": null}]))]), &["labels.a: (unset) -> null"]),
            (
                json!([object("n", json!([{"field": "actions", "sensitive": true}, {"field": "…", "left_out": 7}]))]),
                &["actions: changed; its values are hidden", "and 7 more fields"],
            ),
            (
                json!([object("n", json!([{"field": "description", "before": "x".repeat(90), "after": ""}]))]),
                // The opening quote is the first of the 80 characters.
                &[&format!("description: \"{}… (-o json shows more) -> \"\"", "x".repeat(79))],
            ),
            (json!([created]), &[]),
            (json!([not_kept]), &["the old values are no longer stored"]),
        ] {
            assert_eq!(change_lines(&json!({"objects": objects}), &BTreeSet::new()), expected);
        }
        let many = json!({"objects": [object("n", (0..27).map(|_| rack.clone()).collect())]});
        let lines = change_lines(&many, &BTreeSet::new());
        assert_eq!((lines.len(), &*lines[20]), (21, "and 7 more: -o json shows them"));
        let no_room = json!({"action": "updated", "kind": "node", "name": "m", "changes": null, "changes_left_out": "no_room"});
        let lines = change_lines(&json!({"objects": [no_room]}), &BTreeSet::new());
        assert_eq!(lines, ["the changes of 1 objects are left out; to see them: stemma audit KIND/NAME"]);
    }

    /// Node 1 was called `x`, then `y`, and node 2 is called `x`. So all texts about these two nodes contain the uuid.
    #[test]
    fn y09_object_label_has_uuid_when_name_was_reused() {
        let entry =
            |name: &str, uuid: &str| json!({"objects": [{"action": "updated", "kind": "node", "name": name, "uuid": uuid}]});
        let entries = [entry("x", "1"), entry("y", "1"), entry("x", "2"), entry("z", "3")];
        let reused_uuids = reused_name_uuids(entries.iter());
        let texts: Vec<String> = entries.iter().map(|entry| action_text(entry, &reused_uuids)).collect();
        assert_eq!(texts, ["updated node/x 1", "updated node/y 1", "updated node/x 2", "updated node/z"]);
    }
}
