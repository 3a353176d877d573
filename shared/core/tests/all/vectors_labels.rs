//! Labels compared with Magnum (merge and differences), Kubernetes (syntax, restricted keys) and Cluster API (labels
//! exported to a node). Cases in which Stemma differs on purpose are listed, each with the sentence of the
//! design that says so.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use stemma_core::host_labels::HostLabels;
use stemma_core::key::{AnnotationKey, LabelKey, LabelValue, check_annotations, is_kubernetes_value, is_restricted};
use stemma_core::labels::{BodyShape, IntentJson, LabelLayer, Labels, Level, map_diff, merge_after, read_merge};
use stemma_core::ownership::{Manager, OwnedMap};

use crate::vectors;

type TextMap = BTreeMap<String, String>;

#[derive(Deserialize)]
struct MergeVectors {
    vectors: Vec<CreateCase>,
}

#[derive(Deserialize)]
struct CreateCase {
    id: String,
    level: String,
    parent: Box<RawValue>,
    provided_sent: bool,
    provided: Box<RawValue>,
    merge_sent: bool,
    merge: Box<RawValue>,
    status: u16,
    #[serde(default)]
    upstream_error: String,
    recommended_status: Option<u16>,
    #[serde(default)]
    result: TextMap,
    #[serde(default)]
    overridden: TextMap,
    #[serde(default)]
    added: TextMap,
    #[serde(default)]
    skipped: TextMap,
}

fn parse_labels(raw: &RawValue) -> Result<Option<OwnedMap<LabelKey, LabelValue>>, String> {
    let manager = Manager::new("magnum").unwrap();
    let read = IntentJson::from_json(raw).map_err(|error| error.to_string())?;
    Ok(read.map(|IntentJson(intent)| OwnedMap::default().update(&manager, &intent)))
}

/// Returns the layer that a create request would store.
fn create_layer(case: &CreateCase) -> Result<LabelLayer, String> {
    let provided = if case.provided_sent { parse_labels(&case.provided)? } else { None };
    let sent = if case.merge_sent { read_merge(&case.merge).map_err(|error| error.to_string())? } else { None };
    let merge = merge_after(None, sent, provided.is_some(), BodyShape::Magnum);
    Ok(LabelLayer { provided, merge })
}

/// Parts of Magnum's recorded errors, and the beginning of Stemma's error for the same mistake. Magnum's 500 is for an
/// invalid `merge_labels`.
const EQUIVALENT_ERRORS: [(&str, &str); 3] = [
    (
        "field/attribute labels. Value: '{'a': {'b': 'c'}}'. Wrong type",
        "a: a label's value is text, a number, true, false or null, not an object",
    ),
    ("Value not a valid dict", "a map of keys and values is needed here, not "),
    ("(unhandled, HTML 500)", "merge_labels is true or false "),
];

fn check_case(case: &CreateCase) -> Result<(), String> {
    let parent = LabelLayer { provided: parse_labels(&case.parent)?, merge: Some(true) };
    let layer = match create_layer(case) {
        Err(error) => {
            let refused = case.status == 400 || case.recommended_status == Some(400);
            let is_same =
                EQUIVALENT_ERRORS.iter().any(|(theirs, ours)| case.upstream_error.contains(theirs) && error.starts_with(ours));
            return if refused && is_same { Ok(()) } else { Err(error) };
        }
        Ok(_) if case.status != 202 => return Err("taken".to_owned()),
        Ok(layer) => layer,
    };
    let (above, level) = match case.level.as_str() {
        "cluster" => (Level::ClusterTemplate, Level::Cluster),
        "nodegroup" => (Level::Cluster, Level::NodeGroup),
        other => return Err(format!("level {other}")),
    };
    let above = Labels::from_levels([(above, &parent)]);
    let own = above.with_level(level, &layer);
    let found = map_diff(&above.values(), &own.values());
    for (what, found, wanted) in [
        ("labels", own.values(), &case.result),
        ("labels_overridden", found.overridden, &case.overridden),
        ("labels_added", found.added, &case.added),
        ("labels_skipped", found.skipped, &case.skipped),
    ] {
        let found: TextMap = found.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        if found != *wanted {
            return Err(format!("{what} {found:?}, want {wanted:?}"));
        }
    }
    Ok(())
}

/// Parses lines of `ID<TAB>sentence of the design`. Lines that begin with `#` are comments.
fn listed_cases(table: &str) -> BTreeMap<&str, &str> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once('\t').unwrap_or_else(|| panic!("no tab: {line}"))).collect()
}

/// Returns whether a case differs exactly as the design's sentence says.
fn is_explained_by(sentence: &str, why: &str) -> bool {
    let as_json = |python: &str| python.replace("\"True\"", "\"true\"").replace("\"False\"", "\"false\"");
    let labels = why.strip_prefix("labels ").and_then(|labels| labels.split_once(", want "));
    match sentence.split(' ').take(3).collect::<Vec<_>>()[..] {
        ["`{}`", "is", "provided,"] => labels.is_some_and(|(found, _)| found == "{}"),
        ["every", "label", "is"] | ["A", "tombstone", "(`null`)"] => why == "taken",
        ["A", "key", "is"] => why.starts_with("key ") && why.contains(" needs a name of 1 to 63 letters"),
        ["a", "value", "is"] => why.contains(": a label's value has no control characters"),
        // The parent's `true` differs from the `True` that is sent.
        ["A", "number", "or"] if labels.is_none() => why == "labels_overridden {\"t\": \"true\"}, want {}",
        ["A", "number", "or"] => labels.is_some_and(|(found, wanted)| found == as_json(wanted)),
        _ => false,
    }
}

#[test]
fn label_merge_matches_magnum_except_listed_cases() {
    let Some(MergeVectors { vectors }) = vectors::read_json("vectors/labels/label_merge.json") else { return };
    let mut listed = listed_cases(include_str!("../../../../tests/data/magnum_listed.txt"));
    let mut wrong = Vec::new();
    for case in &vectors {
        let (id, found, sentence) = (&case.id, check_case(case), listed.remove(case.id.as_str()));
        match (&found, sentence) {
            (Ok(()), Some(_)) => wrong.push(format!("{id}: passes, and is listed")),
            (Err(why), None) => wrong.push(format!("{id}: {why}")),
            (Err(why), Some(sentence)) if !is_explained_by(sentence, why) => {
                wrong.push(format!("{id}: not by {sentence:?}: {why}"));
            }
            (Ok(()), None) | (Err(_), Some(_)) => {}
        }
    }
    wrong.extend(listed.keys().map(|id| format!("{id}: listed, and in no vector")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[derive(Deserialize)]
struct DiffVectors {
    vectors: Vec<DiffCase>,
}

#[derive(Deserialize)]
struct DiffCase {
    parent: TextMap,
    labels: TextMap,
    overridden: TextMap,
    added: TextMap,
    skipped: TextMap,
}

#[test]
fn label_differences_match_magnum() {
    let Some(DiffVectors { vectors }) = vectors::read_json("vectors/labels/label_diff.json") else { return };
    for case in vectors {
        let found = map_diff(&case.parent, &case.labels);
        let wanted = (&case.overridden, &case.added, &case.skipped);
        assert_eq!((&found.overridden, &found.added, &found.skipped), wanted, "{:?} {:?}", case.parent, case.labels);
    }
}

/// The `format_value` cases of the file are left out. Stemma does not adapt values for Kubernetes. It does not export
/// invalid ones.
#[derive(Deserialize)]
struct SyntaxVectors {
    keys: Vec<KeyCase>,
    values: Vec<ValueCase>,
    annotation_maps: Vec<AnnotationCase>,
    annotation_total_size: Vec<TotalSizeCase>,
}

#[derive(Deserialize)]
struct KeyCase {
    key: String,
    valid: bool,
    len_bytes: usize,
}

#[derive(Deserialize)]
struct ValueCase {
    value: String,
    valid: bool,
    len_bytes: usize,
}

#[derive(Deserialize)]
struct AnnotationCase {
    annotations: TextMap,
    valid: bool,
}

#[derive(Deserialize)]
struct TotalSizeCase {
    name: String,
    entries: Vec<EntrySize>,
    valid: bool,
}

#[derive(Deserialize)]
struct EntrySize {
    key_bytes: usize,
    value_bytes: usize,
}

fn are_annotations_valid<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)> + Clone) -> bool {
    entries.clone().into_iter().all(|(key, _)| AnnotationKey::new(key).is_ok()) && check_annotations(entries).is_ok()
}

#[test]
fn keys_and_values_match_kubernetes() {
    let Some(file) = vectors::read_json::<SyntaxVectors>("vectors/propagation/label_syntax.json") else { return };
    for case in file.keys {
        assert_eq!(case.key.len(), case.len_bytes);
        assert_eq!(LabelKey::new(&case.key).is_ok(), case.valid, "{:?}", case.key);
    }
    for case in file.values {
        assert_eq!(case.value.len(), case.len_bytes);
        assert_eq!(is_kubernetes_value(&case.value), case.valid, "{:?}", case.value);
    }
    for case in file.annotation_maps {
        let entries = case.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        assert_eq!(are_annotations_valid(entries), case.valid, "{:?}", case.annotations);
    }
    for case in file.annotation_total_size {
        let texts: Vec<_> = case.entries.iter().map(|size| ("k".repeat(size.key_bytes), "v".repeat(size.value_bytes))).collect();
        let entries = texts.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        assert_eq!(check_annotations(entries).is_ok(), case.valid, "{}", case.name);
    }
}

#[derive(Deserialize)]
struct RestrictionVectors {
    keys: Vec<RestrictedKey>,
    updates: Vec<UpdateCase>,
}

#[derive(Deserialize)]
struct RestrictedKey {
    key: String,
    kubelet_may_write: bool,
    capi_synced_by_default: bool,
}

#[derive(Deserialize)]
struct UpdateCase {
    name: String,
    old: TextMap,
    new: TextMap,
    forbidden: Vec<String>,
}

/// Returns whether a key is in one of the two domains of the design: "all keys at or below `node.cluster.x-k8s.io` and
/// `node.stemma.io`". A kubelet may write the former.
fn is_controller_only(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    ["node.cluster.x-k8s.io", "node.stemma.io"].iter().any(|ours| domain == *ours || domain.ends_with(&format!(".{ours}")))
}

#[test]
fn s32_restricted_keys_match_node_restriction_and_controller_domains() {
    let Some(file) = vectors::read_json::<RestrictionVectors>("vectors/propagation/node_restriction.json") else {
        return;
    };
    let rule = HostLabels::default().compile().unwrap();
    for case in file.keys {
        let wanted = !case.kubelet_may_write || is_controller_only(&case.key);
        assert_eq!(is_restricted(&case.key), wanted, "{}", case.key);
        assert_eq!(rule.is_exported(&case.key), case.capi_synced_by_default, "{} flows", case.key);
    }
    for case in file.updates {
        let both: BTreeSet<_> = case.old.keys().chain(case.new.keys()).collect();
        let changed: Vec<_> = both.into_iter().filter(|key| case.old.get(*key) != case.new.get(*key)).collect();
        let reserved = changed.iter().copied().filter(|key| is_controller_only(key));
        let mut wanted: Vec<_> = reserved.chain(&case.forbidden).collect();
        wanted.sort();
        let refused: Vec<_> = changed.into_iter().filter(|key| is_restricted(key)).collect();
        assert_eq!(refused, wanted, "{}", case.name);
    }
}

/// Two parts of the file are left out. One is about taints, because "Taints are not kept". The other is about
/// annotations, which are not exported to a host yet. A finding reports this if `host_labels.annotations` is set.
#[derive(Deserialize)]
struct SyncVectors {
    cases: Vec<SyncCase>,
}

#[derive(Deserialize)]
struct SyncCase {
    name: String,
    input: SyncInput,
    expect: SyncExpect,
}

#[derive(Deserialize)]
struct SyncInput {
    machine: Machine,
    additional_sync_machine_labels: Vec<String>,
}

#[derive(Deserialize)]
struct Machine {
    labels: TextMap,
}

#[derive(Deserialize)]
struct SyncExpect {
    managed_labels: TextMap,
}

/// A label that Cluster API derives from the state of its infrastructure. Stemma has no such state.
const DERIVED_LABEL: &str = "cluster.x-k8s.io/interruptible";
/// Converts patterns of Cluster API, which are not anchored. Stemma's "match the whole key".
fn unanchor_patterns(patterns: &[String]) -> Vec<String> {
    patterns.iter().map(|pattern| format!(".*(?:{pattern}).*")).collect()
}

#[test]
fn host_label_sync_matches_cluster_api() {
    let Some(SyncVectors { cases }) = vectors::read_json("vectors/propagation/node_label_sync.json") else { return };
    for case in cases {
        let host_labels =
            HostLabels { patterns: unanchor_patterns(&case.input.additional_sync_machine_labels), ..HostLabels::default() };
        let rule = host_labels.compile().unwrap();
        let exported: Vec<_> = case.input.machine.labels.keys().filter(|key| rule.is_exported(key)).collect();
        let wanted: Vec<_> = case.expect.managed_labels.keys().filter(|key| *key != DERIVED_LABEL).collect();
        assert_eq!(exported, wanted, "{}", case.name);
    }
}
