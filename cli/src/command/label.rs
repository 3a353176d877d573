//! `label`, and what every write of labels says before it is made: which inherited keys hosts would lose.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use stemma_core::labels::{Folded, Layer};
use stemma_core::origin::Level;
use stemma_core::ownership::{Entry, OwnedMap, Said};
use stemma_wire::endpoint::Method;

use crate::api::{Api, Write};
use crate::args::{Kind, Output};
use crate::command::done::Done;

/// What `label` is asked to do.
pub(crate) struct LabelChange<'a> {
    pub(crate) changes: &'a [String],
    pub(crate) not_inherited: &'a [String],
    pub(crate) merge: Option<bool>,
}

/// `label`: all of it in one write, so that nothing is done by half.
///
/// # Errors
/// When nothing is asked for, and the controller's refusal.
pub(crate) async fn label(
    api: &mut Api,
    kind: Kind,
    name: &str,
    wanted: LabelChange<'_>,
    output: Output,
) -> Result<()> {
    let path = kind.path(name)?;
    if kind == Kind::Token {
        bail!("a token has no labels");
    }
    let patch = patch(wanted.changes, wanted.not_inherited)?;
    let only_patch = wanted.not_inherited.is_empty() && wanted.merge.is_none();
    if patch.is_empty() && only_patch {
        bail!("nothing to do: say KEY=VALUE, KEY-, --not-inherited KEY, --merge or --replace");
    }
    let before = api.get(&path).await?;
    let mut after = provided(&before);
    let absent: Vec<&str> = absent(&patch, &after);
    let what = format!("{} {name}", kind.name());
    if !absent.is_empty() && absent.len() == patch.len() && only_patch {
        let sentence = format!("{what} unchanged: no label {} is provided there", absent.join(", "));
        return Done { kind: kind.name(), name, sentence, answer: before }.say(api, output).await;
    }
    if !absent.is_empty() {
        let keys = crate::output::printable(&absent.join(", "));
        eprintln!("warning: {what}: no label {keys} is provided there: nothing to take away");
    }
    after.retain(|key, _| !patch.contains_key(key));
    after.extend(patch.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())));
    after.extend(wanted.not_inherited.iter().map(|key| (key.clone(), Value::Null)));
    say_lost(&what, &before, &after, wanted.merge);
    let answer = api.send(write(kind, name, &wanted, &patch, &before, &after)?).await?;
    Done { kind: kind.name(), name, sentence: format!("{what} labeled"), answer }.say(api, output).await
}

/// The write that makes the change: of its keys alone where that is all, else of the whole map, unless someone else wrote
/// meanwhile.
fn write(
    kind: Kind,
    name: &str,
    wanted: &LabelChange<'_>,
    patch: &Map<String, Value>,
    before: &Value,
    after: &Map<String, Value>,
) -> Result<Write> {
    let to = |method, below: &str, why: &str| {
        let row = kind.row(method, below).with_context(|| format!("a {} {why} labels", kind.name()))?;
        kind.write(row, name, if below.is_empty() { &[] } else { &["labels"] })
    };
    Ok(match (patch.is_empty(), wanted.not_inherited.is_empty(), wanted.merge) {
        (false, true, None) => to(Method::Patch, "/{map}", "has no")?.json(&json!({"labels": patch})),
        (true, false, None) => {
            to(Method::Post, "/{map}/tombstones", "inherits no")?.json(&json!({"keys": wanted.not_inherited}))
        }
        (true, true, Some(merge)) => to(Method::Patch, "", "has no")?.json(&json!({"merge_labels": merge})),
        (_, _, merge) => {
            let mut body = json!({"labels": after});
            if let Some(merge) = merge {
                body["merge_labels"] = merge.into();
            }
            let revision = before.get("resource_version").and_then(Value::as_u64);
            to(Method::Patch, "", "has no")?.json(&body).if_still_at(revision)
        }
    })
}

/// `KEY=VALUE` and `KEY-` as a merge patch.
///
/// # Errors
/// For a word that is neither, and for a key about which two things are said, `--not-inherited` among them.
pub(crate) fn patch(changes: &[String], not_inherited: &[String]) -> Result<Map<String, Value>> {
    let mut said: BTreeMap<&str, &str> = BTreeMap::new();
    let mut patch = Map::new();
    for change in changes {
        let (key, value) = match change.split_once('=') {
            Some((key, value)) => (key, Value::from(value)),
            None => {
                let key = change.strip_suffix('-');
                (key.with_context(|| format!("{change:?} is no label: write KEY=VALUE or KEY-"))?, Value::Null)
            }
        };
        if let Some(before) = said.insert(key, change) {
            bail!("label {key} stands twice, as {before:?} and {change:?}: keep one of them");
        }
        patch.insert(key.to_owned(), value);
    }
    for (at, key) in not_inherited.iter().enumerate() {
        if let Some(before) = said.get(key.as_str()) {
            bail!("label {key} stands twice, as {before:?} and --not-inherited {key}: keep one of them");
        }
        if not_inherited[..at].contains(key) {
            bail!("label {key} stands twice, both times as --not-inherited: keep one of them");
        }
    }
    Ok(patch)
}

/// The keys that are to be taken away and are not there.
fn absent<'a>(patch: &'a Map<String, Value>, provided: &Map<String, Value>) -> Vec<&'a str> {
    let is_absent = |(key, value): &(&String, &Value)| value.is_null() && !provided.contains_key(*key);
    patch.iter().filter(is_absent).map(|(key, _)| key.as_str()).collect()
}

/// What an object's own level provides.
pub(crate) fn provided(object: &Value) -> Map<String, Value> {
    object.get("provided_labels").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Says, before the write is made, which inherited keys hosts lose by it.
pub(crate) fn say_lost(what: &str, before: &Value, after: &Map<String, Value>, merge: Option<bool>) {
    let lost = lost(before, after, merge);
    if !lost.is_empty() {
        let keys = crate::output::printable(&lost.join(", "));
        eprintln!("warning: {what}: hosts lose the inherited labels {keys}");
    }
}

/// The keys that come from above and are effective here, and would be no longer. What stands above is taken as one level
/// that provides just those.
fn lost(before: &Value, after: &Map<String, Value>, merge: Option<bool>) -> Vec<String> {
    let map = |field: &str| before.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut inherited, added) = (map("labels"), map("labels_added"));
    inherited.retain(|key, _| !added.contains_key(key));
    let above = Folded::of([(Level::ClusterTemplate, &Layer { provided: Some(owned(&inherited)), merge: Some(true) })]);
    let was_provided = before.get("provided_labels").is_some_and(Value::is_object);
    let merges_now = before.get("merge_labels").and_then(Value::as_bool).unwrap_or(true);
    // A level that provides nothing yet merges once it does; one that provides nothing passes all on.
    let merge = merge.unwrap_or(!was_provided || merges_now);
    let provided = (was_provided || !after.is_empty()).then(|| owned(after));
    above.inherited_keys_lost(&above, &above.below(Level::Node, &Layer { provided, merge: Some(merge) }))
}

fn owned(map: &Map<String, Value>) -> OwnedMap<String, Value> {
    OwnedMap::from_entries(map.iter().map(|(key, value)| {
        let said = Said::from(Some(value.clone()).filter(|value| !value.is_null()));
        (key.clone(), Entry { said, owners: Arc::default(), since_ms: None })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_set_and_taken_away() {
        let changes = ["tier=gold".to_owned(), "eq=a=b".to_owned(), "old-".to_owned(), "empty=".to_owned()];
        let patch = Value::Object(patch(&changes, &[]).unwrap());
        assert_eq!(patch, json!({"tier": "gold", "eq": "a=b", "old": null, "empty": ""}));
        assert!(super::patch(&["bare".to_owned()], &[]).unwrap_err().to_string().contains("write KEY=VALUE or KEY-"));
    }

    #[test]
    fn a_key_is_said_once() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (changes, not_inherited, expected) in [
            (&["a=x", "a=y"][..], &[][..], "label a stands twice, as \"a=x\" and \"a=y\": keep one of them"),
            (&["a=x", "a=x"], &[], "label a stands twice, as \"a=x\" and \"a=x\": keep one of them"),
            (&["k=v", "k-"], &[], "label k stands twice, as \"k=v\" and \"k-\": keep one of them"),
            (&["k=v"], &["k"], "label k stands twice, as \"k=v\" and --not-inherited k: keep one of them"),
            (&[], &["k", "k"], "label k stands twice, both times as --not-inherited: keep one of them"),
        ] {
            let error = patch(&texts(changes), &texts(not_inherited)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn inherited_keys_that_hosts_lose_are_known_before() {
        let merging = json!({"labels": {"ntp": "a", "tier": "gold", "own": "x"}, "labels_added": {"own": "x"},
            "labels_overridden": {"tier": "standard"}, "provided_labels": {"tier": "gold", "own": "x"}, "merge_labels": true});
        let replacing = json!({"labels": {"tier": "gold"}, "labels_added": {}, "labels_skipped": {"ntp": "a"},
            "provided_labels": {"tier": "gold"}, "merge_labels": false});
        let nothing = json!({"labels": {"ntp": "a"}, "provided_labels": null, "merge_labels": false});
        for (before, after, merge, expected) in [
            (&merging, json!({"tier": "gold", "own": "x"}), Some(false), vec!["ntp"]),
            (&merging, json!({"own": "x"}), None, vec![]),
            (&merging, json!({"ntp": null, "tier": "gold"}), None, vec!["ntp"]),
            (&replacing, json!({}), None, vec!["tier"]),
            (&replacing, json!({"tier": "silver"}), None, vec![]),
            (&nothing, json!({"tier": "gold"}), None, vec![]),
            (&nothing, json!({"tier": "gold"}), Some(false), vec!["ntp"]),
            (&nothing, json!({}), Some(false), vec![]),
        ] {
            assert_eq!(lost(before, after.as_object().unwrap(), merge), expected, "{after} {merge:?}");
        }
    }
}
