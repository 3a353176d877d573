//! Labels compared with Magnum (merge and differences), Kubernetes (syntax, restricted keys) and Cluster API (labels
//! exported to a node). Cases in which Stemma differs on purpose are listed, each with a sentence of the design about
//! the difference.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use stemma_core::host_labels::HostLabels;
use stemma_core::key::{AnnotationKey, LabelKey, LabelValue, check_annotations, is_kubernetes_value, is_restricted};
use stemma_core::labels::{
    BodyShape, IntentJson, LabelLayer, Labels, Level, map_diff, merge_labels_after_write, parse_merge_labels,
};
use stemma_core::ownership::{Manager, OwnedMap};

use crate::vectors;

type TextMap = BTreeMap<String, String>;

#[derive(Deserialize)]
struct MergeVectors {
    vectors: Vec<CreateCase>,
}

/// A recorded request to Magnum that creates a cluster or node group, with the labels of the parent. `provided` are the
/// sent labels, if `provided_sent` is true. `merge` is the sent field `merge_labels`, if `merge_sent` is true. `status`
/// and `upstream_error` are the response. `recommended_status` is set if Magnum's status is wrong: the right status.
/// `level` is `cluster` or `nodegroup`. The last four fields were read from the created object: its effective labels,
/// and their differences from the labels of the parent.
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

/// Parses the labels of a request. Returns `None` for `null`, or the text of the error for an invalid value.
fn parse_labels(raw: &RawValue) -> Result<Option<OwnedMap<LabelKey, LabelValue>>, String> {
    let manager = Manager::new("magnum").unwrap();
    let intent = IntentJson::from_json(raw).map_err(|error| error.to_string())?;
    Ok(intent.map(|IntentJson(intent)| OwnedMap::default().update(&manager, &intent)))
}

/// Returns the labels and `merge_labels` that a create request would store for its object.
fn create_layer(case: &CreateCase) -> Result<LabelLayer, String> {
    let provided = if case.provided_sent { parse_labels(&case.provided)? } else { None };
    let sent_merge = if case.merge_sent { parse_merge_labels(&case.merge).map_err(|error| error.to_string())? } else { None };
    let merge = merge_labels_after_write(None, sent_merge, provided.is_some(), BodyShape::Magnum);
    Ok(LabelLayer { provided, merge })
}

/// Pairs of errors for the same mistake: a part of Magnum's recorded error, and the beginning of Stemma's error. Magnum
/// fails with status 500 if `merge_labels` is invalid.
const EQUIVALENT_ERRORS: [(&str, &str); 3] = [
    (
        "field/attribute labels. Value: '{'a': {'b': 'c'}}'. Wrong type",
        "a: a label's value is text, a number, true, false or null, not an object",
    ),
    ("Value not a valid dict", "a map of keys and values is needed here, not "),
    ("(unhandled, HTML 500)", "merge_labels is true or false "),
];

/// Compares the effective labels of a case, and their differences from the inherited labels, with those of Magnum.
/// Returns the first mismatch as the error. A case that Magnum rejects passes if Stemma reports an equivalent error. If
/// Stemma accepts such a case, the error is `accepted`. If Stemma reports any other error, that error is returned.
fn check_case(case: &CreateCase) -> Result<(), String> {
    let parent = LabelLayer { provided: parse_labels(&case.parent)?, merge: Some(true) };
    let layer = match create_layer(case) {
        Err(error) => {
            let is_rejection = case.status == 400 || case.recommended_status == Some(400);
            let is_equivalent =
                EQUIVALENT_ERRORS.iter().any(|(part, start)| case.upstream_error.contains(part) && error.starts_with(start));
            return if is_rejection && is_equivalent { Ok(()) } else { Err(error) };
        }
        Ok(_) if case.status != 202 => return Err("accepted".to_owned()),
        Ok(layer) => layer,
    };
    let (parent_level, level) = match case.level.as_str() {
        "cluster" => (Level::ClusterTemplate, Level::Cluster),
        "nodegroup" => (Level::Cluster, Level::NodeGroup),
        other => return Err(format!("level {other}")),
    };
    let inherited = Labels::from_levels([(parent_level, &parent)]);
    let effective = inherited.with_level(level, &layer);
    let diff = map_diff(&inherited.values(), &effective.values());
    for (name, computed, expected) in [
        ("labels", effective.values(), &case.result),
        ("labels_overridden", diff.overridden, &case.overridden),
        ("labels_added", diff.added, &case.added),
        ("labels_skipped", diff.skipped, &case.skipped),
    ] {
        let computed: TextMap = computed.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        if computed != *expected {
            return Err(format!("{name} {computed:?}, want {expected:?}"));
        }
    }
    Ok(())
}

/// Parses lines with the id of a case, a tab, and a sentence of the design. Skips empty lines and lines that begin with
/// `#`.
fn listed_cases(table: &str) -> BTreeMap<&str, &str> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once('\t').unwrap_or_else(|| panic!("no tab: {line}"))).collect()
}

/// Returns whether a sentence of the design permits the difference in a case. The first three words identify the
/// sentence.
fn is_explained_by(sentence: &str, difference: &str) -> bool {
    // Magnum writes booleans as Python does.
    let to_json_booleans = |python: &str| python.replace("\"True\"", "\"true\"").replace("\"False\"", "\"false\"");
    let labels = difference.strip_prefix("labels ").and_then(|labels| labels.split_once(", want "));
    match sentence.split(' ').take(3).collect::<Vec<_>>()[..] {
        ["`{}`", "is", "provided,"] => labels.is_some_and(|(computed, _)| computed == "{}"),
        ["every", "label", "is"] | ["A", "tombstone", "(`null`)"] => difference == "accepted",
        ["A", "key", "is"] => difference.starts_with("key ") && difference.contains(" needs a name of 1 to 63 letters"),
        ["a", "value", "is"] => difference.contains(": a label's value has no control characters"),
        // The parent's text `true` differs from the text `True` of the request.
        ["A", "number", "or"] if labels.is_none() => difference == "labels_overridden {\"t\": \"true\"}, want {}",
        ["A", "number", "or"] => labels.is_some_and(|(computed, expected)| computed == to_json_booleans(expected)),
        _ => false,
    }
}

#[test]
fn label_merge_matches_magnum_except_listed_cases() {
    let Some(MergeVectors { vectors }) = vectors::read_json("vectors/labels/label_merge.json") else { return };
    let mut listed = listed_cases(include_str!("../../../../tests/data/magnum_listed.txt"));
    let mut mismatches = Vec::new();
    for case in &vectors {
        let (id, result, sentence) = (&case.id, check_case(case), listed.remove(case.id.as_str()));
        match (&result, sentence) {
            (Ok(()), Some(_)) => mismatches.push(format!("{id}: passes, although it is listed")),
            (Err(difference), None) => mismatches.push(format!("{id}: {difference}")),
            (Err(difference), Some(sentence)) if !is_explained_by(sentence, difference) => {
                mismatches.push(format!("{id}: not explained by {sentence:?}: {difference}"));
            }
            (Ok(()), None) | (Err(_), Some(_)) => {}
        }
    }
    mismatches.extend(listed.keys().map(|id| format!("{id}: listed, but in no vector")));
    assert!(mismatches.is_empty(), "\n{}", mismatches.join("\n"));
}

#[derive(Deserialize)]
struct DiffVectors {
    vectors: Vec<DiffCase>,
}

/// The differences that Magnum computed between the labels of a parent and of its child.
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
        let diff = map_diff(&case.parent, &case.labels);
        let expected = (&case.overridden, &case.added, &case.skipped);
        assert_eq!((&diff.overridden, &diff.added, &diff.skipped), expected, "{:?} {:?}", case.parent, case.labels);
    }
}

/// Cases of the syntax of labels and annotations in Kubernetes. The `format_value` cases of the file are left out:
/// Cluster API replaces an invalid value of a label by a hash, and Stemma leaves the label out of the host label map.
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

/// Returns whether all keys are valid and all annotations together are not too large.
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

/// A key, whether a kubelet may write the label, and whether Cluster API copies the label to the node by default.
#[derive(Deserialize)]
struct RestrictedKey {
    key: String,
    kubelet_may_write: bool,
    capi_synced_by_default: bool,
}

/// A change of the labels of a node by its kubelet, with the keys that Kubernetes forbids to change.
#[derive(Deserialize)]
struct UpdateCase {
    name: String,
    old: TextMap,
    new: TextMap,
    forbidden: Vec<String>,
}

/// Returns whether a key is in a domain in which no host may set a label for itself in Stemma: `node.cluster.x-k8s.io`,
/// `node.stemma.io`, or a domain below them. Kubernetes lets a kubelet write the first domain.
fn is_in_controller_domain(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    ["node.cluster.x-k8s.io", "node.stemma.io"]
        .iter()
        .any(|restricted_domain| domain == *restricted_domain || domain.ends_with(&format!(".{restricted_domain}")))
}

#[test]
fn s32_restricted_keys_match_node_restriction_and_controller_domains() {
    let Some(file) = vectors::read_json::<RestrictionVectors>("vectors/propagation/node_restriction.json") else {
        return;
    };
    let rule = HostLabels::default().compile().unwrap();
    for case in file.keys {
        let expected = !case.kubelet_may_write || is_in_controller_domain(&case.key);
        assert_eq!(is_restricted(&case.key), expected, "{}", case.key);
        assert_eq!(rule.is_exported(&case.key), case.capi_synced_by_default, "{} is exported", case.key);
    }
    for case in file.updates {
        let all_keys: BTreeSet<_> = case.old.keys().chain(case.new.keys()).collect();
        let changed_keys: Vec<_> = all_keys.into_iter().filter(|key| case.old.get(*key) != case.new.get(*key)).collect();
        let controller_keys = changed_keys.iter().copied().filter(|key| is_in_controller_domain(key));
        let mut expected: Vec<_> = controller_keys.chain(&case.forbidden).collect();
        expected.sort();
        let restricted_keys: Vec<_> = changed_keys.into_iter().filter(|key| is_restricted(key)).collect();
        assert_eq!(restricted_keys, expected, "{}", case.name);
    }
}

/// Cases of labels that Cluster API copies from a machine to its node. Two parts of the file are left out: taints,
/// which Stemma does not store, and annotations, which Stemma does not export to a host yet. If the field
/// `host_labels.annotations` is set, a finding reports that the field has no effect.
#[derive(Deserialize)]
struct SyncVectors {
    cases: Vec<SyncCase>,
}

/// A machine, and the labels that Cluster API sets on its node.
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

/// A label that Cluster API derives from the state of its infrastructure. Stemma has no such state, so the test skips
/// the label.
const DERIVED_LABEL: &str = "cluster.x-k8s.io/interruptible";
/// Converts patterns of Cluster API, which match any part of a key, to patterns of Stemma, which match the whole key.
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
        let expected: Vec<_> = case.expect.managed_labels.keys().filter(|key| *key != DERIVED_LABEL).collect();
        assert_eq!(exported, expected, "{}", case.name);
    }
}
