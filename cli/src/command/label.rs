//! `label`: sets and removes single keys, stops inherited keys, and sets whether a level merges.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use stemma_core::name::is_blank;
use stemma_wire::endpoint::Method;

use crate::api::{ApiClient, WriteRequest};
use crate::args::{KindArg, Output};
use crate::command::batch::{TargetObject, Targets, WritePlan, run_batch};
use crate::command::read;
use crate::exit::Exit;
use crate::output::printable;

/// Separators between several labels in one option.
const SEPARATORS: [char; 2] = [',', ';'];

/// The changes that `label` makes.
pub(crate) struct LabelChange<'a> {
    /// The words `KEY=VALUE` and `KEY-`.
    pub(crate) changes: &'a [String],
    /// The keys that this level stops inheriting.
    pub(crate) not_inherited: &'a [String],
    /// Whether the level merges its labels with the inherited ones. `None` leaves that unchanged.
    pub(crate) merge: Option<bool>,
    /// True to change keys that another manager owns.
    pub(crate) overwrite: bool,
}

/// Splits the words of `label` into names and changes. With `has_names`, the first word is a name even if it ends with
/// a dash. With `has_changes`, the last word is a change whatever it looks like.
pub(crate) fn split_words(words: &[String], has_names: bool, has_changes: bool) -> (&[String], &[String]) {
    let is_change = |word: &String| word.contains('=') || word.ends_with('-');
    let first = usize::from(has_names && !words.is_empty());
    let last = if has_changes { words.len().saturating_sub(1).max(first) } else { words.len() };
    let names = words[first..].iter().position(is_change).map_or(last, |at| first + at);
    words.split_at(names)
}

/// Runs `label`. Each object is changed in one write, so either all of its changes are made or none.
///
/// # Errors
/// If there is no change, or the controller refuses.
pub(crate) async fn label(api: &mut ApiClient, objects: &Targets, change: LabelChange<'_>, output: Output) -> Result<()> {
    let patch = label_patch(change.changes, change.not_inherited)?;
    let only_patch = change.not_inherited.is_empty() && change.merge.is_none();
    if patch.is_empty() && only_patch {
        bail!("nothing to do: give KEY=VALUE, KEY-, --not-inherited KEY, --merge or --replace");
    }
    let plan = async |api: &mut ApiClient, object: &TargetObject| {
        let kind = object.kind_arg();
        if !kind.has_manifest() {
            return Err(Exit::Usage.with_message(format!("{} has no labels", kind.name_with_article())));
        }
        if matches!(kind, KindArg::Namespace | KindArg::Inspectionrule) {
            return Err(Exit::Usage.with_message(manifest_only_error(kind)));
        }
        let before = read::read_one(api, kind, &object.name).await?;
        let mut after = provided_labels(&before);
        let absent: Vec<&str> = absent_keys(&patch, &after);
        let keys = printable(&absent.join(", "));
        if !absent.is_empty() && absent.len() == patch.len() && only_patch {
            let sentence = format!("{object} unchanged: no label {keys} is provided there");
            return Ok(WritePlan::no_change(sentence, before));
        }
        if !absent.is_empty() {
            errln!("info: {object}: no label {keys} is provided there: nothing to remove");
        }
        after.retain(|key, _| !patch.contains_key(key));
        let set = patch.iter().filter(|(_, value)| !value.is_null());
        after.extend(set.map(|(key, value)| (key.clone(), value.clone())));
        after.extend(change.not_inherited.iter().map(|key| (key.clone(), Value::Null)));
        let write = label_write(kind, &object.name, &change, &patch, &before, &after)?;
        Ok(WritePlan::from_write(write.without_force(change.overwrite), format!("{object} labeled")))
    };
    run_batch(api, objects, output, plan).await
}

/// Returns the error for a kind whose labels are a plain field, without owners of single keys.
fn manifest_only_error(kind: KindArg) -> String {
    format!("{}'s own labels are a field of its manifest: stemma apply -f", kind.name_with_article())
}

/// Builds the write of `label`. If only keys change, the write changes these keys. Otherwise the write replaces the
/// whole map, and fails if another client has written since the read.
fn label_write(
    kind: KindArg,
    name: &str,
    change: &LabelChange<'_>,
    patch: &Map<String, Value>,
    before: &Value,
    after: &Map<String, Value>,
) -> Result<WriteRequest> {
    let build = |method, suffix: &str, verb: &str| {
        let row = kind.endpoint(method, suffix).with_context(|| format!("{} {verb} labels", kind.name_with_article()))?;
        kind.write_request(row, name, if suffix.is_empty() { &[] } else { &["labels"] })
    };
    Ok(match (patch.is_empty(), change.not_inherited.is_empty(), change.merge) {
        (false, true, None) => build(Method::Patch, "/{map}", "has no")?.with_json(&json!({"labels": patch})),
        (true, false, None) => {
            build(Method::Post, "/{map}/tombstones", "inherits no")?.with_json(&json!({"keys": change.not_inherited}))
        }
        (true, true, Some(merge)) => build(Method::Patch, "", "has no")?.with_json(&json!({"merge_labels": merge})),
        (_, _, merge) => {
            let mut body = json!({"labels": after});
            if let Some(merge) = merge {
                body["merge_labels"] = merge.into();
            }
            let revision = before.get("resource_version").and_then(Value::as_u64);
            build(Method::Put, "/{map}", "has no")?.with_json(&body).if_revision(revision)
        }
    })
}

/// Converts `KEY=VALUE` and `KEY-` into a merge patch.
///
/// # Errors
/// For a word of another form, for an empty key, and for a key that is given twice, also in `--not-inherited`.
pub(crate) fn label_patch(changes: &[String], not_inherited: &[String]) -> Result<Map<String, Value>> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut patch = Map::new();
    for change in changes {
        let (key, value) = match change.split_once('=') {
            Some((key, value)) => (key, Value::from(value)),
            None => {
                let key = change.strip_suffix('-');
                (key.with_context(|| format!("{change:?} is not a label: write KEY=VALUE or KEY-"))?, Value::Null)
            }
        };
        check_key(key, change)?;
        if let Some(first) = seen.insert(key, change) {
            bail!("label {key} is given twice, as {first:?} and {change:?}: keep one of them");
        }
        patch.insert(key.to_owned(), value);
    }
    for (index, key) in not_inherited.iter().enumerate() {
        if let Some(first) = seen.get(key.as_str()) {
            bail!("label {key} is given twice, as {first:?} and --not-inherited {key}: keep one of them");
        }
        if not_inherited[..index].contains(key) {
            bail!("label {key} is given twice, both times as --not-inherited: keep one of them");
        }
    }
    Ok(patch)
}

/// Fails if the key is empty, which is always a slip.
fn check_key(key: &str, text: &str) -> Result<()> {
    if is_blank(key) {
        return Err(Exit::Usage.with_message(format!("the key in {text:?} is empty: name a label")));
    }
    Ok(())
}

/// Parses the labels of a new object by the rules of Magnum's command. A single option with several `=` contains
/// several labels, separated by commas or semicolons. Of several options, each is one label. A repeated key gets both
/// values, joined by a comma. Unlike in Magnum, an entry of a value must not be empty: a trailing comma means that a
/// label was lost.
///
/// # Errors
/// For a word that is not `KEY=VALUE`, and for an empty key or entry.
pub(crate) fn parse_new_labels(options: &[String]) -> Result<Map<String, Value>> {
    let pieces: Vec<&str> = match options {
        [option] if option.matches('=').count() > 1 => option.split(SEPARATORS).collect(),
        all => all.iter().map(String::as_str).collect(),
    };
    let mut labels: BTreeMap<&str, String> = BTreeMap::new();
    for piece in pieces {
        let (key, value) = piece.split_once('=').with_context(|| {
            let hint =
                piece.strip_suffix('-').map(|key| format!("; `stemma label … --not-inherited {key}` stops an inherited one"));
            format!("labels must be a list of KEY=VALUE not {piece}{}", hint.unwrap_or_default())
        })?;
        check_key(key, piece)?;
        if value.contains(SEPARATORS) && value.split(SEPARATORS).any(is_blank) {
            let sentence = format!("an entry between the commas of {piece:?} is empty: leave the comma out");
            return Err(Exit::Usage.with_message(sentence));
        }
        labels.entry(key).and_modify(|values| *values = format!("{values},{value}")).or_insert_with(|| value.to_owned());
    }
    Ok(labels.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
}

/// Returns the keys to remove that do not exist.
fn absent_keys<'a>(patch: &'a Map<String, Value>, provided: &Map<String, Value>) -> Vec<&'a str> {
    let is_absent = |(key, value): &(&String, &Value)| value.is_null() && !provided.contains_key(*key);
    patch.iter().filter(is_absent).map(|(key, _)| key.as_str()).collect()
}

/// Returns the labels that the object's own level provides.
fn provided_labels(object: &Value) -> Map<String, Value> {
    object.get("provided_labels").and_then(Value::as_object).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y05_label_refusal_uses_words_for_kind() {
        let says = "an inspection rule's own labels are a field of its manifest: stemma apply -f";
        assert_eq!(manifest_only_error(KindArg::Inspectionrule), says);
        for (kind, one) in [
            (KindArg::Allocation, "an allocation"),
            (KindArg::Nodegroup, "a node group"),
            (KindArg::Clustertemplate, "a cluster template"),
            (KindArg::Token, "a join token"),
        ] {
            assert_eq!(kind.name_with_article(), one);
        }
    }

    #[test]
    fn label_patch_sets_and_removes_keys() {
        let changes = ["tier=gold".to_owned(), "eq=a=b".to_owned(), "old-".to_owned(), "empty=".to_owned()];
        let patch = Value::Object(label_patch(&changes, &[]).unwrap());
        assert_eq!(patch, json!({"tier": "gold", "eq": "a=b", "old": null, "empty": ""}));
        assert!(label_patch(&["bare".to_owned()], &[]).unwrap_err().to_string().contains("write KEY=VALUE or KEY-"));
    }

    #[test]
    fn x06_label_patch_rejects_empty_key_or_entry() {
        for change in ["-", "=", "=v", " =v", " -"] {
            let error = label_patch(&[change.to_owned()], &[]).unwrap_err();
            assert_eq!(error.to_string(), format!("the key in {change:?} is empty: name a label"));
            assert_eq!(Exit::from_error(&error), Exit::Usage);
        }
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for options in [&["a=b,"][..], &["a=b;"], &["a=b,,c"], &["a=,"], &["a=b,", "c=d"], &["=v"], &["a=b", "=v"]] {
            let error = parse_new_labels(&texts(options)).unwrap_err();
            assert!(error.to_string().contains(" is empty: "), "{options:?}: {error}");
        }
        for options in [&["a=b,c=d,"][..], &[",a=b,c=d"], &["a=b,,c=d"], &[""], &[","]] {
            let error = parse_new_labels(&texts(options)).unwrap_err();
            assert!(error.to_string().starts_with("labels must be a list of KEY=VALUE not "), "{options:?}: {error}");
        }
        for options in [&["a="][..], &["a=1,2,3"], &["a=1,2", "b=3"], &["a=b,c="]] {
            parse_new_labels(&texts(options)).unwrap();
        }
    }

    #[test]
    fn split_words_finds_names_before_changes() {
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
            assert_eq!(split_words(&words, has_names, has_changes).0.len(), names, "{words:?}");
        }
    }

    #[test]
    fn label_patch_rejects_repeated_key() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (changes, not_inherited, expected) in [
            (&["a=x", "a=y"][..], &[][..], "label a is given twice, as \"a=x\" and \"a=y\": keep one of them"),
            (&["a=x", "a=x"], &[], "label a is given twice, as \"a=x\" and \"a=x\": keep one of them"),
            (&["k=v", "k-"], &[], "label k is given twice, as \"k=v\" and \"k-\": keep one of them"),
            (&["k=v"], &["k"], "label k is given twice, as \"k=v\" and --not-inherited k: keep one of them"),
            (&[], &["k", "k"], "label k is given twice, both times as --not-inherited: keep one of them"),
        ] {
            let error = label_patch(&texts(changes), &texts(not_inherited)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }
}
