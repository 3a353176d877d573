//! `stemma label`: sets and removes single labels, stops inherited labels, and sets whether an object merges its labels
//! with the inherited labels.

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

/// Characters that separate several labels in one option.
const SEPARATORS: [char; 2] = [',', ';'];

/// The changes that `stemma label` requests for each object.
pub(crate) struct LabelChange<'a> {
    /// The words `KEY=VALUE`, which set a label, and `KEY-`, which remove a label.
    pub(crate) changes: &'a [String],
    /// The keys that the objects no longer inherit.
    pub(crate) not_inherited: &'a [String],
    /// True if the objects merge their labels with the inherited labels, false if they replace these. `None` changes
    /// nothing.
    pub(crate) merge: Option<bool>,
    /// True if keys that another manager owns may be changed.
    pub(crate) overwrite: bool,
}

/// Splits the words of `stemma label` into names of objects and changes. `needs_name` is true if the command needs a
/// name. The first word is then a name even if it ends with a dash. `needs_change` is true if the command needs a
/// change. The last word is then a change whatever its form is, so that a mistake in it is reported. If there is only
/// one word and the command needs both, the word is a name.
pub(crate) fn split_words(words: &[String], needs_name: bool, needs_change: bool) -> (&[String], &[String]) {
    let is_change = |word: &String| word.contains('=') || word.ends_with('-');
    let first = usize::from(needs_name && !words.is_empty());
    let last = if needs_change { words.len().saturating_sub(1).max(first) } else { words.len() };
    let name_count = words[first..].iter().position(is_change).map_or(last, |index| first + index);
    words.split_at(name_count)
}

/// Runs `stemma label`. Each object is changed in one write, so it gets either all of the changes or none.
///
/// # Errors
/// If no change is given, a change is invalid, `stemma label` can't change labels of the kind, or a write fails.
pub(crate) async fn label(api: &mut ApiClient, objects: &Targets, change: LabelChange<'_>, output: Output) -> Result<()> {
    let patch = label_patch(change.changes, change.not_inherited)?;
    let is_patch_only = change.not_inherited.is_empty() && change.merge.is_none();
    if patch.is_empty() && is_patch_only {
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
        let current = read::read_object(api, kind, &object.name).await?;
        let mut new_labels = provided_labels(&current);
        let absent_labels: Vec<&str> = absent_keys(&patch, &new_labels);
        let keys = printable(&absent_labels.join(", "));
        // The command only removes labels that the object does not provide, so there is nothing to write.
        if !absent_labels.is_empty() && absent_labels.len() == patch.len() && is_patch_only {
            let sentence = format!("{object} unchanged: no label {keys} is provided there");
            return Ok(WritePlan::no_change(sentence, current));
        }
        if !absent_labels.is_empty() {
            errln!("info: {object}: no label {keys} is provided there: nothing to remove");
        }
        // From here on, `new_labels` becomes the labels of the object after the change.
        new_labels.retain(|key, _| !patch.contains_key(key));
        let set_labels = patch.iter().filter(|(_, value)| !value.is_null());
        new_labels.extend(set_labels.map(|(key, value)| (key.clone(), value.clone())));
        new_labels.extend(change.not_inherited.iter().map(|key| (key.clone(), Value::Null)));
        let write = label_write(kind, &object.name, &change, &patch, &current, &new_labels)?;
        Ok(WritePlan::from_write(write.without_force(change.overwrite), format!("{object} labeled")))
    };
    run_batch(api, objects, output, plan).await
}

/// Returns the message for a kind whose labels are a plain field of the manifest. Single keys of that field have no
/// owners, so `stemma label` can't change them.
fn manifest_only_error(kind: KindArg) -> String {
    format!("{}'s own labels are a field of its manifest: stemma apply -f", kind.name_with_article())
}

/// Builds the write of `stemma label` for one object. If the command only sets and removes keys, only adds tombstones,
/// or only sets `merge_labels`, the write changes nothing else. Otherwise the write replaces all labels of the object
/// with `new_labels`. It then fails if another client has changed the object since the read.
fn label_write(
    kind: KindArg,
    name: &str,
    change: &LabelChange<'_>,
    patch: &Map<String, Value>,
    current: &Value,
    new_labels: &Map<String, Value>,
) -> Result<WriteRequest> {
    // `suffix` is the end of the path after the object. `verb` is for the error of a kind without such a path, as in
    // `an allocation has no labels`.
    let build = |method, suffix: &str, verb: &str| {
        let endpoint = kind.endpoint(method, suffix).with_context(|| format!("{} {verb} labels", kind.name_with_article()))?;
        kind.write_request(endpoint, name, if suffix.is_empty() { &[] } else { &["labels"] })
    };
    Ok(match (patch.is_empty(), change.not_inherited.is_empty(), change.merge) {
        (false, true, None) => build(Method::Patch, "/{map}", "has no")?.with_json(&json!({"labels": patch})),
        (true, false, None) => {
            build(Method::Post, "/{map}/tombstones", "inherits no")?.with_json(&json!({"keys": change.not_inherited}))
        }
        (true, true, Some(merge)) => build(Method::Patch, "", "has no")?.with_json(&json!({"merge_labels": merge})),
        (_, _, merge) => {
            let mut body = json!({"labels": new_labels});
            if let Some(merge) = merge {
                body["merge_labels"] = merge.into();
            }
            let revision = current.get("resource_version").and_then(Value::as_u64);
            build(Method::Put, "/{map}", "has no")?.with_json(&body).if_revision(revision)
        }
    })
}

/// Converts the words `KEY=VALUE` and `KEY-` into a JSON merge patch, in which `null` removes a key.
///
/// # Errors
/// For a word of another form, for an empty key, and for a key that is given twice, also if it is in `--not-inherited`.
pub(crate) fn label_patch(changes: &[String], not_inherited: &[String]) -> Result<Map<String, Value>> {
    let mut word_by_key: BTreeMap<&str, &str> = BTreeMap::new();
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
        if let Some(first) = word_by_key.insert(key, change) {
            bail!("label {key} is given twice, as {first:?} and {change:?}: keep one of them");
        }
        patch.insert(key.to_owned(), value);
    }
    for (index, key) in not_inherited.iter().enumerate() {
        if let Some(first) = word_by_key.get(key.as_str()) {
            bail!("label {key} is given twice, as {first:?} and --not-inherited {key}: keep one of them");
        }
        if not_inherited[..index].contains(key) {
            bail!("label {key} is given twice, both times as --not-inherited: keep one of them");
        }
    }
    Ok(patch)
}

/// Fails if the key is empty, because the user must have mistyped it. `text` is the word that contains the key.
fn check_key(key: &str, text: &str) -> Result<()> {
    if is_blank(key) {
        return Err(Exit::Usage.with_message(format!("the key in {text:?} is empty: name a label")));
    }
    Ok(())
}

/// Parses the labels of a new object by the rules of the command line of Magnum, `OpenStack`'s cluster service. A
/// single option with several `=` contains several labels, separated by commas or semicolons. Of several options, each
/// is one label. A repeated key gets both values, joined by a comma.
///
/// Unlike in Magnum, a part of a value between two separators must not be empty: a trailing comma means that a label
/// was lost.
///
/// # Errors
/// For a word that is not `KEY=VALUE`, and for an empty key or part of a value.
pub(crate) fn parse_new_labels(options: &[String]) -> Result<Map<String, Value>> {
    let pieces: Vec<&str> = match options {
        [option] if option.matches('=').count() > 1 => option.split(SEPARATORS).collect(),
        several => several.iter().map(String::as_str).collect(),
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

/// Returns the keys that the patch would remove, but that the object does not provide.
fn absent_keys<'a>(patch: &'a Map<String, Value>, provided: &Map<String, Value>) -> Vec<&'a str> {
    let is_absent = |(key, value): &(&String, &Value)| value.is_null() && !provided.contains_key(*key);
    patch.iter().filter(is_absent).map(|(key, _)| key.as_str()).collect()
}

/// Returns the labels that the object itself provides, without inherited labels.
fn provided_labels(object: &Value) -> Map<String, Value> {
    object.get("provided_labels").and_then(Value::as_object).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message calls a kind `an inspection rule`, and not `inspectionrule` as on the command line.
    #[test]
    fn y05_kind_has_name_for_people_in_message() {
        let expected = "an inspection rule's own labels are a field of its manifest: stemma apply -f";
        assert_eq!(manifest_only_error(KindArg::Inspectionrule), expected);
        for (kind, noun) in [
            (KindArg::Allocation, "an allocation"),
            (KindArg::Nodegroup, "a node group"),
            (KindArg::Clustertemplate, "a cluster template"),
            (KindArg::Token, "a join token"),
        ] {
            assert_eq!(kind.name_with_article(), noun);
        }
    }

    #[test]
    fn label_patch_sets_and_removes_keys() {
        let changes = ["tier=gold".to_owned(), "eq=a=b".to_owned(), "old-".to_owned(), "empty=".to_owned()];
        let patch = Value::Object(label_patch(&changes, &[]).unwrap());
        assert_eq!(patch, json!({"tier": "gold", "eq": "a=b", "old": null, "empty": ""}));
        assert!(label_patch(&["bare".to_owned()], &[]).unwrap_err().to_string().contains("write KEY=VALUE or KEY-"));
    }

    /// The first list has words of `stemma label`, and the others have values of `--labels`. The last list is valid,
    /// because a whole value may be empty.
    #[test]
    fn x06_label_parsers_reject_empty_key_or_entry() {
        for change in ["-", "=", "=v", " =v", " -"] {
            let error = label_patch(&[change.to_owned()], &[]).unwrap_err();
            assert_eq!(error.to_string(), format!("the key in {change:?} is empty: name a label"));
            assert_eq!(Exit::from_error(&error), Exit::Usage);
        }
        let texts = |words: &[&str]| words.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
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

    /// The last column is the number of names. The other words are changes.
    #[test]
    fn split_words_finds_names_before_changes() {
        for (words, needs_name, needs_change, name_count) in [
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
            assert_eq!(split_words(&words, needs_name, needs_change).0.len(), name_count, "{words:?}");
        }
    }

    #[test]
    fn label_patch_rejects_repeated_key() {
        let texts = |words: &[&str]| words.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
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
