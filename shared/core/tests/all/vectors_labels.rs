//! Labels against Magnum (merge and differences), Kubernetes (syntax, restricted keys) and Cluster API (what flows
//! to a node). Cases that the design decides otherwise are listed with its sentence.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use stemma_core::host_labels::HostLabels;
use stemma_core::key::{AnnotationKey, LabelKey, LabelValue, check_annotations, is_kubernetes_value, is_restricted};
use stemma_core::labels::{BodyShape, LabelLayer, Labels, Level, Written, differences, merge_after, read_merge};
use stemma_core::ownership::{Manager, OwnedMap};

use crate::given;

type Texts = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Merges {
    vectors: Vec<Creation>,
}

#[derive(Deserialize)]
struct Creation {
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
    result: Texts,
    #[serde(default)]
    overridden: Texts,
    #[serde(default)]
    added: Texts,
    #[serde(default)]
    skipped: Texts,
}

fn written(raw: &RawValue) -> Result<Option<OwnedMap<LabelKey, LabelValue>>, String> {
    let manager = Manager::new("magnum").unwrap();
    let read = Written::from_json(raw).map_err(|error| error.to_string())?;
    Ok(read.map(|Written(intent)| OwnedMap::default().update(&manager, &intent)))
}

/// A create request over its parent: the layer that would be stored.
fn create(case: &Creation) -> Result<LabelLayer, String> {
    let provided = if case.provided_sent { written(&case.provided)? } else { None };
    let sent = if case.merge_sent { read_merge(&case.merge).map_err(|error| error.to_string())? } else { None };
    let merge = merge_after(None, sent, provided.is_some(), BodyShape::Magnum);
    Ok(LabelLayer { provided, merge })
}

/// What Magnum's recorded error says, and how ours for the same mistake begins. Its 500 is of a `merge_labels` that is none.
const SAME_ERROR: [(&str, &str); 3] = [
    (
        "field/attribute labels. Value: '{'a': {'b': 'c'}}'. Wrong type",
        "a: a label's value is text, a number, true, false or null, not an object",
    ),
    ("Value not a valid dict", "a map of keys and values is needed here, not "),
    ("(unhandled, HTML 500)", "merge_labels is true or false "),
];

fn outcome(case: &Creation) -> Result<(), String> {
    let parent = LabelLayer { provided: written(&case.parent)?, merge: Some(true) };
    let layer = match create(case) {
        Err(error) => {
            let refused = case.status == 400 || case.recommended_status == Some(400);
            let is_same =
                SAME_ERROR.iter().any(|(theirs, ours)| case.upstream_error.contains(theirs) && error.starts_with(ours));
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
    let above = Labels::of([(above, &parent)]);
    let own = above.below(level, &layer);
    let found = differences(&above.values(), &own.values());
    for (what, found, wanted) in [
        ("labels", own.values(), &case.result),
        ("labels_overridden", found.overridden, &case.overridden),
        ("labels_added", found.added, &case.added),
        ("labels_skipped", found.skipped, &case.skipped),
    ] {
        let found: Texts = found.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        if found != *wanted {
            return Err(format!("{what} {found:?}, want {wanted:?}"));
        }
    }
    Ok(())
}

/// `ID<TAB>sentence of the design` a line, `#` a comment.
fn listed(table: &str) -> BTreeMap<&str, &str> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once('\t').unwrap_or_else(|| panic!("no tab: {line}"))).collect()
}

/// Whether a case comes out otherwise in the way that the design's sentence gives, and not in any other.
fn is_by(sentence: &str, why: &str) -> bool {
    let as_json = |python: &str| python.replace("\"True\"", "\"true\"").replace("\"False\"", "\"false\"");
    let labels = why.strip_prefix("labels ").and_then(|labels| labels.split_once(", want "));
    match sentence.split(' ').take(3).collect::<Vec<_>>()[..] {
        ["`{}`", "is", "provided,"] => labels.is_some_and(|(found, _)| found == "{}"),
        ["every", "label", "is"] | ["A", "tombstone", "(`null`)"] => why == "taken",
        ["A", "key", "is"] => why.starts_with("key ") && why.contains(" needs a name of 1 to 63 letters"),
        ["a", "value", "is"] => why.contains(": a label's value has no control characters"),
        // The parent's `true` is another text than the `True` that is sent.
        ["A", "number", "or"] if labels.is_none() => why == "labels_overridden {\"t\": \"true\"}, want {}",
        ["A", "number", "or"] => labels.is_some_and(|(found, wanted)| found == as_json(wanted)),
        _ => false,
    }
}

#[test]
fn labels_merge_as_magnum_merges_them_but_where_it_is_listed() {
    let Some(Merges { vectors }) = given::read("vectors/labels/label_merge.json") else { return };
    let mut listed = listed(include_str!("../../../../tests/data/magnum_listed.txt"));
    let mut wrong = Vec::new();
    for case in &vectors {
        let (id, found, sentence) = (&case.id, outcome(case), listed.remove(case.id.as_str()));
        match (&found, sentence) {
            (Ok(()), Some(_)) => wrong.push(format!("{id}: passes, and is listed")),
            (Err(why), None) => wrong.push(format!("{id}: {why}")),
            (Err(why), Some(sentence)) if !is_by(sentence, why) => {
                wrong.push(format!("{id}: not by {sentence:?}: {why}"));
            }
            (Ok(()), None) | (Err(_), Some(_)) => {}
        }
    }
    wrong.extend(listed.keys().map(|id| format!("{id}: listed, and in no vector")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[derive(Deserialize)]
struct Diffs {
    vectors: Vec<Diff>,
}

#[derive(Deserialize)]
struct Diff {
    parent: Texts,
    labels: Texts,
    overridden: Texts,
    added: Texts,
    skipped: Texts,
}

#[test]
fn the_three_differences_are_magnums() {
    let Some(Diffs { vectors }) = given::read("vectors/labels/label_diff.json") else { return };
    for case in vectors {
        let found = differences(&case.parent, &case.labels);
        let wanted = (&case.overridden, &case.added, &case.skipped);
        assert_eq!((&found.overridden, &found.added, &found.skipped), wanted, "{:?} {:?}", case.parent, case.labels);
    }
}

/// The file's cases of `format_value` are not met: no value is made fit for Kubernetes, one that is not does not flow.
#[derive(Deserialize)]
struct Syntax {
    keys: Vec<KeyCase>,
    values: Vec<ValueCase>,
    annotation_maps: Vec<Annotated>,
    annotation_total_size: Vec<Sizes>,
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
struct Annotated {
    annotations: Texts,
    valid: bool,
}

#[derive(Deserialize)]
struct Sizes {
    name: String,
    entries: Vec<Size>,
    valid: bool,
}

#[derive(Deserialize)]
struct Size {
    key_bytes: usize,
    value_bytes: usize,
}

fn annotations_hold<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)> + Clone) -> bool {
    entries.clone().into_iter().all(|(key, _)| AnnotationKey::new(key).is_ok()) && check_annotations(entries).is_ok()
}

#[test]
fn keys_and_values_are_kubernetes_ones() {
    let Some(file) = given::read::<Syntax>("vectors/propagation/label_syntax.json") else { return };
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
        assert_eq!(annotations_hold(entries), case.valid, "{:?}", case.annotations);
    }
    for case in file.annotation_total_size {
        let texts: Vec<_> =
            case.entries.iter().map(|size| ("k".repeat(size.key_bytes), "v".repeat(size.value_bytes))).collect();
        let entries = texts.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        assert_eq!(check_annotations(entries).is_ok(), case.valid, "{}", case.name);
    }
}

#[derive(Deserialize)]
struct Restriction {
    keys: Vec<RestrictedKey>,
    updates: Vec<Update>,
}

#[derive(Deserialize)]
struct RestrictedKey {
    key: String,
    kubelet_may_write: bool,
    capi_synced_by_default: bool,
}

#[derive(Deserialize)]
struct Update {
    name: String,
    old: Texts,
    new: Texts,
    forbidden: Vec<String>,
}

/// The two domains of which the design says: "all keys at or below `node.cluster.x-k8s.io` and `node.stemma.io`",
/// the former of which a kubelet may write.
fn is_controllers_alone(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    ["node.cluster.x-k8s.io", "node.stemma.io"]
        .iter()
        .any(|ours| domain == *ours || domain.ends_with(&format!(".{ours}")))
}

#[test]
fn s32_restricted_keys_are_node_restrictions_and_the_controllers_own() {
    let Some(file) = given::read::<Restriction>("vectors/propagation/node_restriction.json") else { return };
    let rule = HostLabels::default().compile().unwrap();
    for case in file.keys {
        let wanted = !case.kubelet_may_write || is_controllers_alone(&case.key);
        assert_eq!(is_restricted(&case.key), wanted, "{}", case.key);
        assert_eq!(rule.flows(&case.key), case.capi_synced_by_default, "{} flows", case.key);
    }
    for case in file.updates {
        let both: BTreeSet<_> = case.old.keys().chain(case.new.keys()).collect();
        let changed: Vec<_> = both.into_iter().filter(|key| case.old.get(*key) != case.new.get(*key)).collect();
        let ours = changed.iter().copied().filter(|key| is_controllers_alone(key));
        let mut wanted: Vec<_> = ours.chain(&case.forbidden).collect();
        wanted.sort();
        let refused: Vec<_> = changed.into_iter().filter(|key| is_restricted(key)).collect();
        assert_eq!(refused, wanted, "{}", case.name);
    }
}

/// Two parts of the file are not met. Cases of taints: "Taints are not kept". What becomes of annotations: no annotation flows to a
/// host yet, which `host_labels.annotations` is a finding for.
#[derive(Deserialize)]
struct Syncs {
    cases: Vec<Sync>,
}

#[derive(Deserialize)]
struct Sync {
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
    labels: Texts,
}

#[derive(Deserialize)]
struct SyncExpect {
    managed_labels: Texts,
}

/// Labels that Cluster API makes up from the state of its infrastructure; Stemma has no such state.
const MADE_UP: &str = "cluster.x-k8s.io/interruptible";
/// Cluster API's patterns are unanchored, ours "match the whole key".
fn unanchored(patterns: &[String]) -> Vec<String> {
    patterns.iter().map(|pattern| format!(".*(?:{pattern}).*")).collect()
}

#[test]
fn what_flows_to_the_host_is_cluster_apis_rule() {
    let Some(Syncs { cases }) = given::read("vectors/propagation/node_label_sync.json") else { return };
    for case in cases {
        let host_labels =
            HostLabels { patterns: unanchored(&case.input.additional_sync_machine_labels), ..HostLabels::default() };
        let rule = host_labels.compile().unwrap();
        let flowing: Vec<_> = case.input.machine.labels.keys().filter(|key| rule.flows(key)).collect();
        let wanted: Vec<_> = case.expect.managed_labels.keys().filter(|key| *key != MADE_UP).collect();
        assert_eq!(flowing, wanted, "{}", case.name);
    }
}
