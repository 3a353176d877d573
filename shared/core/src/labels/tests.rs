//! Tests of the provenance of labels, as `stemma explain` shows it. The expected values are written by hand.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::origin::Origin;
use crate::ownership::OwnedMap;
use crate::ownership::{Intent, Manager, ProvidedValue};
use Level::{Cluster, ClusterTemplate, Node, NodeGroup};

/// Returns an intent for these keys. A key without a value is a tombstone.
fn intent(pairs: &[(&str, Option<&str>)]) -> Intent<LabelKey, LabelValue> {
    let provided_value = |value: Option<&str>| ProvidedValue::from(value.map(|text| LabelValue::new(text).unwrap()));
    pairs.iter().map(|(key, value)| (LabelKey::new(key).unwrap(), provided_value(*value))).collect()
}

/// Returns the labels that the manager `site` provides at one level. A key without a value is a tombstone.
fn provided_labels(pairs: &[(&str, Option<&str>)]) -> OwnedMap<LabelKey, LabelValue> {
    OwnedMap::default().apply(&Manager::new("site").unwrap(), &intent(pairs), false).unwrap()
}

/// Returns a level's labels that are merged with the inherited labels.
fn merging_layer(pairs: &[(&str, Option<&str>)]) -> LabelLayer {
    Layer { provided: Some(provided_labels(pairs)), merge: Some(true) }
}

/// Returns a level's labels that replace the inherited labels.
fn replacing_layer(pairs: &[(&str, Option<&str>)]) -> LabelLayer {
    Layer { provided: Some(provided_labels(pairs)), merge: Some(false) }
}

/// Returns the effective labels below these levels.
fn effective_labels(levels: &[(Level, LabelLayer)]) -> Labels {
    Labels::from_levels(levels.iter().map(|(level, layer)| (*level, layer)))
}

fn values(pairs: &[(&str, &str)]) -> BTreeMap<LabelKey, LabelValue> {
    pairs.iter().map(|(key, value)| (LabelKey::new(key).unwrap(), LabelValue::new(value).unwrap())).collect()
}

/// Returns a line for each level that provides a key, as `LEVEL VALUE OUTCOME`. It adds lines for the rules and the
/// host that offer a value, as `ORIGIN VALUE OUTCOME`.
fn explain_lines(labels: &Labels, key: &str) -> Vec<String> {
    let Some(provenance) = labels.provenance(key) else { return Vec::new() };
    let level_lines = provenance.level_effects().map(|(entry, outcome)| {
        let value = entry.value.value().map_or("-", LabelValue::as_str);
        format!("{} {value} {outcome:?}", entry.level)
    });
    let candidate_lines = provenance.candidates.iter().enumerate().map(|(index, candidate)| {
        let outcome = if provenance.state == (KeyState::Filled { index }) { "Wins" } else { "NoEffect" };
        format!("{} {} {outcome}", candidate.origin, candidate.value)
    });
    level_lines.chain(candidate_lines).collect()
}

#[test]
fn provenance_lists_every_level_with_effect() {
    let levels = [
        (ClusterTemplate, merging_layer(&[("tier", Some("standard")), ("debug", Some("1")), ("ntp", Some("a"))])),
        (Cluster, LabelLayer::default()),
        (NodeGroup, merging_layer(&[("tier", Some("gold")), ("debug", None)])),
        (Node, merging_layer(&[("rack", Some("r1"))])),
    ];
    let labels = effective_labels(&levels);
    for (key, value, lines) in [
        ("tier", Some("gold"), vec!["clustertemplate standard OverriddenBy(NodeGroup)", "nodegroup gold Wins"]),
        ("debug", None, vec!["clustertemplate 1 TombstonedBy(NodeGroup)", "nodegroup - Tombstone"]),
        ("ntp", Some("a"), vec!["clustertemplate a Wins"]),
        ("rack", Some("r1"), vec!["node r1 Wins"]),
        ("absent", None, vec![]),
    ] {
        assert_eq!(labels.get(key).map(LabelValue::as_str), value, "{key}");
        assert_eq!(explain_lines(&labels, key), lines, "{key}");
    }
    assert_eq!(labels.provenance("tier").unwrap().entries[0].owners[0].to_string(), "site:apply");
}

/// The cluster does not merge, so its labels replace those of the template. Its tombstones have no effect.
#[test]
fn effective_map_drops_upper_levels_when_level_does_not_merge() {
    let levels = [
        (ClusterTemplate, merging_layer(&[("a", Some("1")), ("b", None), ("c", Some("1"))])),
        (Cluster, replacing_layer(&[("c", Some("2")), ("d", None), ("a", None)])),
        (NodeGroup, merging_layer(&[("d", Some("4"))])),
    ];
    let labels = effective_labels(&levels);
    assert_eq!(labels.values(), values(&[("c", "2"), ("d", "4")]));
    for (key, lines) in [
        ("a", vec!["clustertemplate 1 ReplacedBy(Cluster)", "cluster - NoEffect"]),
        ("b", vec!["clustertemplate - ReplacedBy(Cluster)"]),
        ("c", vec!["clustertemplate 1 OverriddenBy(Cluster)", "cluster 2 Wins"]),
        ("d", vec!["cluster - NoEffect", "nodegroup 4 Wins"]),
    ] {
        assert_eq!(explain_lines(&labels, key), lines, "{key}");
    }
    let ineffective: Vec<_> = levels[1].1.ineffective_tombstones().map(LabelKey::as_str).collect();
    assert_eq!(ineffective, ["a", "d"]);
    assert_eq!(levels[0].1.ineffective_tombstones().count(), 0);
}

#[test]
fn tombstone_has_no_effect_when_level_does_not_merge() {
    let labels =
        effective_labels(&[(Cluster, replacing_layer(&[("a", None)])), (NodeGroup, replacing_layer(&[("b", Some("1"))]))]);
    assert_eq!(explain_lines(&labels, "a"), ["cluster - NoEffect"]);
}

#[test]
fn s34_rules_and_host_fill_key_when_no_level_decides() {
    let level_labels = effective_labels(&[
        (ClusterTemplate, merging_layer(&[("set", Some("op")), ("stopped", None), ("cut", Some("op"))])),
        (Cluster, replacing_layer(&[("set", Some("op")), ("idle", None)])),
        (NodeGroup, merging_layer(&[("stopped", None)])),
    ]);
    let rule_labels = values(&[("set", "rule"), ("idle", "rule"), ("ruled", "rule"), ("node.stemma.io/a", "rule")]);
    let host_labels = values(&[
        ("stopped", "host"),
        ("cut", "host"),
        ("ruled", "host"),
        ("hosted", "host"),
        ("kubernetes.io/x", "host"),
        ("node.stemma.io/a", "host"),
    ]);
    let labels =
        level_labels.fill(&FillSource { origin: Origin::Rule("gpu".into()), can_set_restricted: true, labels: &rule_labels });
    let labels = labels.fill(&FillSource { origin: Origin::Host, can_set_restricted: false, labels: &host_labels });
    let expected = [("hosted", "host"), ("idle", "rule"), ("node.stemma.io/a", "rule"), ("ruled", "rule"), ("set", "op")];
    assert_eq!(labels.values(), values(&expected));
    for (key, lines) in [
        ("set", vec!["clustertemplate op OverriddenBy(Cluster)", "cluster op Wins", "rule gpu rule NoEffect"]),
        ("idle", vec!["cluster - NoEffect", "rule gpu rule Wins"]),
        ("stopped", vec!["clustertemplate - TombstonedBy(NodeGroup)", "nodegroup - Tombstone", "host host NoEffect"]),
        ("cut", vec!["clustertemplate op ReplacedBy(Cluster)", "host host NoEffect"]),
        ("ruled", vec!["rule gpu rule Wins", "host host NoEffect"]),
        ("kubernetes.io/x", vec!["host host NoEffect"]),
        ("node.stemma.io/a", vec!["rule gpu rule Wins", "host host NoEffect"]),
    ] {
        assert_eq!(explain_lines(&labels, key), lines, "{key}");
    }
    let by_gpu = FillEffect::FilledBy(Origin::Rule("gpu".into()));
    for (key, effects) in [
        ("set", vec![FillEffect::DecidedBy(Cluster)]),
        ("stopped", vec![FillEffect::DecidedBy(NodeGroup)]),
        ("cut", vec![FillEffect::DecidedBy(Cluster)]),
        ("hosted", vec![FillEffect::Wins]),
        ("ruled", vec![FillEffect::Wins, by_gpu.clone()]),
        ("kubernetes.io/x", vec![FillEffect::Restricted]),
        ("node.stemma.io/a", vec![FillEffect::Wins, by_gpu]),
    ] {
        let actual_effects: Vec<_> = labels.provenance(key).unwrap().fill_effects().map(|(_, effect)| effect).collect();
        assert_eq!(actual_effects, effects, "{key}");
    }
    assert_eq!(labels.provenance("ruled").unwrap().effective().unwrap().origin, Origin::Rule("gpu".into()));
}

#[test]
fn restricted_key_is_filled_by_first_source_with_grant() {
    let labels_of_rule = values(&[("node.stemma.io/a", "x")]);
    let source = |name: &str, grants| FillSource {
        origin: Origin::Rule(name.into()),
        can_set_restricted: grants,
        labels: &labels_of_rule,
    };
    let labels = Labels::default().fill(&source("plain", false)).fill(&source("gpu", true)).fill(&source("late", true));
    let actual_effects: Vec<_> =
        labels.provenance("node.stemma.io/a").unwrap().fill_effects().map(|(_, effect)| effect).collect();
    let by_gpu = FillEffect::FilledBy(Origin::Rule("gpu".into()));
    assert_eq!(actual_effects, [FillEffect::Restricted, FillEffect::Wins, by_gpu]);
}

/// A tombstone has no effect at a level that replaces the inherited labels, so the host can fill the key. Without a
/// value of the host, the key is absent.
#[test]
fn host_fills_tombstoned_key_when_level_replaces() {
    let host_labels = values(&[("a", "host")]);
    let labels =
        effective_labels(&[(Cluster, replacing_layer(&[("a", None)])), (NodeGroup, replacing_layer(&[("b", Some("1"))]))])
            .fill(&FillSource { origin: Origin::Host, can_set_restricted: false, labels: &host_labels });
    assert_eq!(labels.values(), values(&[("a", "host"), ("b", "1")]));
    let labels =
        effective_labels(&[(Cluster, replacing_layer(&[("a", None)])), (NodeGroup, replacing_layer(&[("b", Some("1"))]))]);
    assert_eq!(labels.provenance("a").unwrap().state, KeyState::Absent);
}

/// An empty map of a level that does not merge hides the inherited labels, also if the map became empty later. A level
/// that never provided labels inherits them.
#[test]
fn layer_differs_when_provided_empty_or_not_provided() {
    let template = (ClusterTemplate, merging_layer(&[("a", Some("1"))]));
    for (layer, expected) in
        [(LabelLayer::default(), &[("a", "1")][..]), (merging_layer(&[]), &[("a", "1")]), (replacing_layer(&[]), &[])]
    {
        assert_eq!(effective_labels(&[template.clone(), (Cluster, layer)]).values(), values(expected));
    }
    let emptied_labels =
        provided_labels(&[("b", Some("1"))]).patch(&Manager::new("u").unwrap(), &to_merge_patch(intent(&[("b", None)])));
    assert!(emptied_labels.is_empty());
    assert_eq!(
        effective_labels(&[template, (Cluster, Layer { provided: Some(emptied_labels), merge: Some(false) })]).values(),
        values(&[])
    );
}

#[test]
fn annotations_and_parameters_are_inherited_like_labels() {
    let manager = Manager::new("site").unwrap();
    let provided_by_site = |text: serde_json::Value| -> OwnedMap<LabelKey, ParameterValue> {
        let IntentJson(intent) = serde_json::from_value(text).unwrap();
        OwnedMap::default().update(&manager, &intent)
    };
    let cluster_level = Parameters::default().with_level(
        Cluster,
        &Layer {
            provided: Some(provided_by_site(json!({"sizes": {"a": 1, "b": 2}, "peers": [1], "mtu": 1500}))),
            merge: Some(true),
        },
    );
    let node_level = cluster_level.with_level(
        Node,
        &Layer { provided: Some(provided_by_site(json!({"sizes": {"a": 9}, "peers": null}))), merge: Some(true) },
    );
    assert_eq!(node_level.get("sizes").map(|value| (**value).clone()), Some(json!({"a": 9})), "no deep merge");
    assert_eq!(node_level.get("peers"), None);
    assert_eq!(node_level.get("mtu").map(|value| (**value).clone()), Some(json!(1500)));

    let IntentJson(annotation_intent) = serde_json::from_value(json!({"Example.com/Note": "any\ntext", "old": null})).unwrap();
    let layer: AnnotationLayer = Layer { provided: Some(OwnedMap::default().update(&manager, &annotation_intent)), merge: None };
    let annotations = Annotations::from_levels([(Node, &layer)]);
    assert_eq!(annotations.get("Example.com/Note").map(AnnotationValue::as_str), Some("any\ntext"));
    assert!(annotations.provenance("old").is_some_and(|provenance| provenance.value().is_none()));
}

/// A level may have 256 keys, and the effective labels 64 KiB, counted over keys and values. In this test, each of 16
/// labels has a key of 4 bytes and a value of 4,092 bytes, so together they have exactly 64 KiB.
#[test]
fn check_limits_keys_of_level_and_effective_bytes() {
    let keys: Vec<_> = (0..257).map(|index| format!("k{index:03}")).collect();
    let pairs: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("v"))).collect();
    assert_eq!(merging_layer(&pairs).check_key_count(), Err(TooManyKeys { count: 257 }));
    assert_eq!(merging_layer(&pairs[1..]).check_key_count(), Ok(()));

    let long_value = "v".repeat(4092);
    let largest_labels: Vec<_> = keys.iter().take(16).map(|key| (key.as_str(), Some(long_value.as_str()))).collect();
    assert_eq!(effective_labels(&[(Node, merging_layer(&largest_labels))]).check_size(), Ok(()));
    let excess_labels: Vec<_> = largest_labels.iter().copied().chain([("k", Some(""))]).collect();
    assert_eq!(
        effective_labels(&[(Node, merging_layer(&excess_labels))]).check_size().unwrap_err().to_string(),
        "the effective labels have at most 65536 bytes together, these 65537"
    );
}
