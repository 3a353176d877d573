//! `label`: single keys, what is not inherited, and whether a level merges.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use stemma_core::name::is_blank;
use stemma_wire::endpoint::Method;

use crate::api::{Api, Write};
use crate::args::{Kind, Output};
use crate::command::each::{Object, Objects, Step, each};
use crate::command::question;
use crate::exit::Exit;
use crate::output::printable;

/// What stands between several labels of one option.
const SEPARATORS: [char; 2] = [',', ';'];

/// What `label` is asked to do.
pub(crate) struct LabelChange<'a> {
    pub(crate) changes: &'a [String],
    pub(crate) not_inherited: &'a [String],
    pub(crate) merge: Option<bool>,
    /// Also to keys that another manager owns.
    pub(crate) overwrite: bool,
}

/// The words of `label`: names, then changes. The first is a name where `has_names`, also one that ends with a dash; the last is a change
/// where `has_changes`, whatever it looks like.
pub(crate) fn split(words: &[String], has_names: bool, has_changes: bool) -> (&[String], &[String]) {
    let is_change = |word: &String| word.contains('=') || word.ends_with('-');
    let first = usize::from(has_names && !words.is_empty());
    let last = if has_changes { words.len().saturating_sub(1).max(first) } else { words.len() };
    let names = words[first..].iter().position(is_change).map_or(last, |at| first + at);
    words.split_at(names)
}

/// `label`: of each object all of it in one write, so that nothing is done by half.
///
/// # Errors
/// When nothing is asked for, and the controller's refusal.
pub(crate) async fn label(api: &mut Api, objects: &Objects, wanted: LabelChange<'_>, output: Output) -> Result<()> {
    let patch = patch(wanted.changes, wanted.not_inherited)?;
    let only_patch = wanted.not_inherited.is_empty() && wanted.merge.is_none();
    if patch.is_empty() && only_patch {
        bail!("nothing to do: say KEY=VALUE, KEY-, --not-inherited KEY, --merge or --replace");
    }
    let plan = async |api: &mut Api, object: &Object| {
        let kind = object.kind();
        if !kind.has_manifest() {
            return Err(Exit::Usage.because(format!("{} has no labels", kind.with_article())));
        }
        if matches!(kind, Kind::Namespace | Kind::Inspectionrule) {
            return Err(Exit::Usage.because(of_manifest(kind)));
        }
        let before = question::one(api, kind, &object.name).await?;
        let mut after = provided(&before);
        let absent: Vec<&str> = absent(&patch, &after);
        let keys = printable(&absent.join(", "));
        if !absent.is_empty() && absent.len() == patch.len() && only_patch {
            let sentence = format!("{object} unchanged: no label {keys} is provided there");
            return Ok(Step::nothing(sentence, before));
        }
        if !absent.is_empty() {
            tell!("info: {object}: no label {keys} is provided there: nothing to take away");
        }
        after.retain(|key, _| !patch.contains_key(key));
        let set = patch.iter().filter(|(_, value)| !value.is_null());
        after.extend(set.map(|(key, value)| (key.clone(), value.clone())));
        after.extend(wanted.not_inherited.iter().map(|key| (key.clone(), Value::Null)));
        let write = write(kind, &object.name, &wanted, &patch, &before, &after)?;
        Ok(Step::of(write.overwriting(wanted.overwrite), format!("{object} labeled")))
    };
    each(api, objects, output, plan).await
}

/// The refusal where labels are one field as others are, without owners of single keys.
fn of_manifest(kind: Kind) -> String {
    format!("{}'s own labels are a field of its manifest: stemma apply -f", kind.with_article())
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
        let row = kind.row(method, below).with_context(|| format!("{} {why} labels", kind.with_article()))?;
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
            to(Method::Put, "/{map}", "has no")?.json(&body).if_still_at(revision)
        }
    })
}

/// `KEY=VALUE` and `KEY-` as a merge patch.
///
/// # Errors
/// For a word that is neither, for an empty key, and for a key about which two things are said, `--not-inherited` among them.
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
        check_key(key, change)?;
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

/// A key of nothing would be one that nobody named.
fn check_key(key: &str, said: &str) -> Result<()> {
    if is_blank(key) {
        return Err(Exit::Usage.because(format!("the key in {said:?} is empty: name a label")));
    }
    Ok(())
}

/// Labels of a new object, by the rule of Magnum's command: one option with several `=` holds several labels, joined by commas or
/// semicolons, and of several options each is one label. A key that stands twice has both values, joined by a comma. Unlike there an entry
/// of a value is not empty: a comma at the end is a label that was lost.
///
/// # Errors
/// For what is no `KEY=VALUE`, and for an empty key or entry.
pub(crate) fn of_new(options: &[String]) -> Result<Map<String, Value>> {
    let pieces: Vec<&str> = match options {
        [one] if one.matches('=').count() > 1 => one.split(SEPARATORS).collect(),
        all => all.iter().map(String::as_str).collect(),
    };
    let mut labels: BTreeMap<&str, String> = BTreeMap::new();
    for piece in pieces {
        let (key, value) = piece.split_once('=').with_context(|| {
            let stops =
                piece.strip_suffix('-').map(|key| format!("; `stemma label … --not-inherited {key}` stops one"));
            format!("labels must be a list of KEY=VALUE not {piece}{}", stops.unwrap_or_default())
        })?;
        check_key(key, piece)?;
        if value.contains(SEPARATORS) && value.split(SEPARATORS).any(is_blank) {
            let sentence = format!("an entry between the commas of {piece:?} is empty: leave the comma out");
            return Err(Exit::Usage.because(sentence));
        }
        labels
            .entry(key)
            .and_modify(|values| *values = format!("{values},{value}"))
            .or_insert_with(|| value.to_owned());
    }
    Ok(labels.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
}

/// The keys that are to be taken away and are not there.
fn absent<'a>(patch: &'a Map<String, Value>, provided: &Map<String, Value>) -> Vec<&'a str> {
    let is_absent = |(key, value): &(&String, &Value)| value.is_null() && !provided.contains_key(*key);
    patch.iter().filter(is_absent).map(|(key, _)| key.as_str()).collect()
}

/// What an object's own level provides.
fn provided(object: &Value) -> Map<String, Value> {
    object.get("provided_labels").and_then(Value::as_object).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y05_a_refusal_of_labels_names_the_kind_as_a_person_would() {
        let says = "an inspection rule's own labels are a field of its manifest: stemma apply -f";
        assert_eq!(of_manifest(Kind::Inspectionrule), says);
        for (kind, one) in [
            (Kind::Allocation, "an allocation"),
            (Kind::Nodegroup, "a node group"),
            (Kind::Clustertemplate, "a cluster template"),
            (Kind::Token, "a join token"),
        ] {
            assert_eq!(kind.with_article(), one);
        }
    }

    #[test]
    fn labels_are_set_and_taken_away() {
        let changes = ["tier=gold".to_owned(), "eq=a=b".to_owned(), "old-".to_owned(), "empty=".to_owned()];
        let patch = Value::Object(patch(&changes, &[]).unwrap());
        assert_eq!(patch, json!({"tier": "gold", "eq": "a=b", "old": null, "empty": ""}));
        assert!(super::patch(&["bare".to_owned()], &[]).unwrap_err().to_string().contains("write KEY=VALUE or KEY-"));
    }

    #[test]
    fn x06_a_key_or_an_entry_of_nothing_is_refused() {
        for change in ["-", "=", "=v", " =v", " -"] {
            let error = patch(&[change.to_owned()], &[]).unwrap_err();
            assert_eq!(error.to_string(), format!("the key in {change:?} is empty: name a label"));
            assert_eq!(Exit::of(&error), Exit::Usage);
        }
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for options in [&["a=b,"][..], &["a=b;"], &["a=b,,c"], &["a=,"], &["a=b,", "c=d"], &["=v"], &["a=b", "=v"]] {
            let error = of_new(&texts(options)).unwrap_err();
            assert!(error.to_string().contains(" is empty: "), "{options:?}: {error}");
        }
        for options in [&["a=b,c=d,"][..], &[",a=b,c=d"], &["a=b,,c=d"], &[""], &[","]] {
            let error = of_new(&texts(options)).unwrap_err();
            assert!(error.to_string().starts_with("labels must be a list of KEY=VALUE not "), "{options:?}: {error}");
        }
        for options in [&["a="][..], &["a=1,2,3"], &["a=1,2", "b=3"], &["a=b,c="]] {
            of_new(&texts(options)).unwrap();
        }
    }

    #[test]
    fn names_stand_before_changes() {
        for (words, has_names, has_changes, names) in [
            (&["web-1", "web-2", "a=b", "c-"][..], true, true, 2),
            (&["web-", "a-"], true, true, 1),
            (&["web-1", "tier"], true, true, 1),
            (&["web-1", "web-2"], true, false, 2),
            (&["web-1"], true, true, 1),
            (&["a=b"], false, true, 0),
            (&["tier"], false, true, 0),
            (&[], true, true, 0),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(split(&words, has_names, has_changes).0.len(), names, "{words:?}");
        }
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
}
