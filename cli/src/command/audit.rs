//! `audit`: who did what, and what was refused.

use anyhow::Result;
use serde_json::Value;
use stemma_wire::endpoint::{Endpoint, escape};

use crate::api::Api;
use crate::args::{Audit, Output};
use crate::command::question;
use crate::output::{cell, since, table};

/// Prints the newest entries, the last one first.
pub(crate) async fn audit(api: &mut Api, asked: &Audit, output: Output) -> Result<()> {
    let entries = entries(api, asked).await?;
    if entries.is_empty() {
        // The answer stands, whatever becomes of the advice.
        drop(warn_of_names(api, asked).await);
    }
    let list = Value::Array(entries);
    let rows = list.as_array().into_iter().flatten();
    let revisions = rows.clone().map(|entry| cell(entry.get("revision"))).collect::<Vec<_>>();
    let head = ["revision", "at", "principal", "what", "reason", "address"];
    let shown = || table(&head, rows.map(row));
    question::print_list(&list, ("revision", revisions.iter().map(String::as_str)), shown, output)
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
        if entries(api, &alone).await?.is_empty() {
            tell!("warning: the audit has nothing of {what} {name:?}");
        }
    }
    Ok(())
}

/// As many entries as were asked for: a page may hold fewer, where few entries meet the filter.
async fn entries(api: &mut Api, asked: &Audit) -> Result<Vec<Value>> {
    let mut entries: Vec<Value> = Vec::new();
    let mut next = Some(path(asked));
    while let Some(path) = next.filter(|_| entries.len() < asked.limit) {
        let page = api.get(&path).await?;
        entries.extend(question::items(&page).cloned());
        next = question::next(&page);
    }
    entries.truncate(asked.limit);
    Ok(entries)
}

fn path(asked: &Audit) -> String {
    let mut path = format!("{}?sort_dir=desc&limit={}", Endpoint::ListAudit.path(&[]), asked.limit.clamp(1, 1_000));
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

fn row(entry: &Value) -> Vec<String> {
    let text = |field: &str| cell(entry.get(field));
    vec![text("revision"), since(entry.get("at")), text("principal"), what(entry), text("reason"), from(entry)]
}

/// From where; both addresses, where two hosts have one identity.
fn from(entry: &Value) -> String {
    let addresses = ["address", "other_address"].map(|field| entry.get(field).filter(|at| !at.is_null()));
    let known: Vec<String> = addresses.into_iter().flatten().map(|at| cell(Some(at))).collect();
    if known.is_empty() { cell(None) } else { known.join(", ") }
}

/// What was done, or why not; of many objects the first ones.
fn what(entry: &Value) -> String {
    const FEW: usize = 3;
    if let Some(reason) = entry.get("refused").and_then(Value::as_str) {
        let more = entry.get("unsaid").and_then(Value::as_u64).filter(|more| *more > 0);
        return format!("refused: {reason}{}", more.map(|more| format!(" (and {more} more)")).unwrap_or_default());
    }
    let objects: Vec<&Value> = entry.get("objects").and_then(Value::as_array).into_iter().flatten().collect();
    let text = |object: &Value, field: &str| cell(object.get(field));
    let part = |object: &Value| {
        object.get("part").and_then(Value::as_str).map(|part| format!(" ({part})")).unwrap_or_default()
    };
    let one = |object: &&Value| {
        format!("{} {}/{}{}", text(object, "action"), text(object, "kind"), text(object, "name"), part(object))
    };
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
            assert_eq!(what(&entry), expected);
        }
    }
}
