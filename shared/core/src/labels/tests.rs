//! Provenance as `explain` shows it. The expected values are written by hand.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::origin::Origin;
use crate::ownership::OwnedMap;
use crate::ownership::{Intent, Manager, ProvidedValue};
use Level::{Cluster, ClusterTemplate, Node, NodeGroup};

fn intent(pairs: &[(&str, Option<&str>)]) -> Intent<LabelKey, LabelValue> {
    let said = |value: Option<&str>| ProvidedValue::from(value.map(|text| LabelValue::new(text).unwrap()));
    pairs.iter().map(|(key, value)| (LabelKey::new(key).unwrap(), said(*value))).collect()
}

fn provided(pairs: &[(&str, Option<&str>)]) -> OwnedMap<LabelKey, LabelValue> {
    OwnedMap::default().apply(&Manager::new("site").unwrap(), &intent(pairs), false).unwrap()
}

fn merging(pairs: &[(&str, Option<&str>)]) -> LabelLayer {
    Layer { provided: Some(provided(pairs)), merge: Some(true) }
}

fn replacing(pairs: &[(&str, Option<&str>)]) -> LabelLayer {
    Layer { provided: Some(provided(pairs)), merge: Some(false) }
}

fn fold(levels: &[(Level, LabelLayer)]) -> Labels {
    Labels::from_levels(levels.iter().map(|(level, layer)| (*level, layer)))
}

fn values(pairs: &[(&str, &str)]) -> BTreeMap<LabelKey, LabelValue> {
    pairs.iter().map(|(key, value)| (LabelKey::new(key).unwrap(), LabelValue::new(value).unwrap())).collect()
}

/// Returns the effect of each entry and candidate of a key, as `LEVEL VALUE OUTCOME`.
fn explain_lines(labels: &Labels, key: &str) -> Vec<String> {
    let Some(line) = labels.provenance(key) else { return Vec::new() };
    let said = line.level_effects().map(|(said, outcome)| {
        let value = said.value.value().map_or("-", LabelValue::as_str);
        format!("{} {value} {outcome:?}", said.level)
    });
    let offers = line.candidates.iter().enumerate().map(|(at, offer)| {
        let outcome = if line.state == (KeyState::Filled { at }) { "Wins" } else { "NoEffect" };
        format!("{} {} {outcome}", offer.origin, offer.value)
    });
    said.chain(offers).collect()
}

#[test]
fn provenance_lists_every_level_with_effect() {
    let levels = [
        (ClusterTemplate, merging(&[("tier", Some("standard")), ("debug", Some("1")), ("ntp", Some("a"))])),
        (Cluster, LabelLayer::default()),
        (NodeGroup, merging(&[("tier", Some("gold")), ("debug", None)])),
        (Node, merging(&[("rack", Some("r1"))])),
    ];
    let labels = fold(&levels);
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

#[test]
fn effective_map_drops_upper_levels_when_level_does_not_merge() {
    let levels = [
        (ClusterTemplate, merging(&[("a", Some("1")), ("b", None), ("c", Some("1"))])),
        (Cluster, replacing(&[("c", Some("2")), ("d", None), ("a", None)])),
        (NodeGroup, merging(&[("d", Some("4"))])),
    ];
    let labels = fold(&levels);
    assert_eq!(labels.values(), values(&[("c", "2"), ("d", "4")]));
    for (key, lines) in [
        ("a", vec!["clustertemplate 1 ReplacedBy(Cluster)", "cluster - NoEffect"]),
        ("b", vec!["clustertemplate - ReplacedBy(Cluster)"]),
        ("c", vec!["clustertemplate 1 OverriddenBy(Cluster)", "cluster 2 Wins"]),
        ("d", vec!["cluster - NoEffect", "nodegroup 4 Wins"]),
    ] {
        assert_eq!(explain_lines(&labels, key), lines, "{key}");
    }
    let idle: Vec<_> = levels[1].1.ineffective_tombstones().map(LabelKey::as_str).collect();
    assert_eq!(idle, ["a", "d"]);
    assert_eq!(levels[0].1.ineffective_tombstones().count(), 0);
}

#[test]
fn tombstone_has_no_effect_when_level_does_not_merge() {
    let labels = fold(&[(Cluster, replacing(&[("a", None)])), (NodeGroup, replacing(&[("b", Some("1"))]))]);
    assert_eq!(explain_lines(&labels, "a"), ["cluster - NoEffect"]);
}

#[test]
fn s34_rules_and_host_fill_key_when_no_level_decides() {
    let before = fold(&[
        (ClusterTemplate, merging(&[("set", Some("op")), ("stopped", None), ("cut", Some("op"))])),
        (Cluster, replacing(&[("set", Some("op")), ("idle", None)])),
        (NodeGroup, merging(&[("stopped", None)])),
    ]);
    let rule = values(&[("set", "rule"), ("idle", "rule"), ("ruled", "rule"), ("node.stemma.io/a", "rule")]);
    let host = values(&[
        ("stopped", "host"),
        ("cut", "host"),
        ("ruled", "host"),
        ("hosted", "host"),
        ("kubernetes.io/x", "host"),
        ("node.stemma.io/a", "host"),
    ]);
    let labels = before.fill(&FillSource { origin: Origin::Rule("gpu".into()), can_set_restricted: true, labels: &rule });
    let labels = labels.fill(&FillSource { origin: Origin::Host, can_set_restricted: false, labels: &host });
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
        let offered: Vec<_> = labels.provenance(key).unwrap().fill_effects().map(|(_, effect)| effect).collect();
        assert_eq!(offered, effects, "{key}");
    }
    assert_eq!(labels.provenance("ruled").unwrap().effective().unwrap().origin, Origin::Rule("gpu".into()));
}

#[test]
fn restricted_key_is_filled_by_first_source_with_grant() {
    let key = values(&[("node.stemma.io/a", "x")]);
    let by = |name: &str, grants| FillSource { origin: Origin::Rule(name.into()), can_set_restricted: grants, labels: &key };
    let labels = Labels::default().fill(&by("plain", false)).fill(&by("gpu", true)).fill(&by("late", true));
    let offered: Vec<_> = labels.provenance("node.stemma.io/a").unwrap().fill_effects().map(|(_, effect)| effect).collect();
    let by_gpu = FillEffect::FilledBy(Origin::Rule("gpu".into()));
    assert_eq!(offered, [FillEffect::Restricted, FillEffect::Wins, by_gpu]);
}

#[test]
fn host_fills_tombstoned_key_when_level_replaces() {
    let host = values(&[("a", "host")]);
    let labels = fold(&[(Cluster, replacing(&[("a", None)])), (NodeGroup, replacing(&[("b", Some("1"))]))]).fill(&FillSource {
        origin: Origin::Host,
        can_set_restricted: false,
        labels: &host,
    });
    assert_eq!(labels.values(), values(&[("a", "host"), ("b", "1")]));
    let labels = fold(&[(Cluster, replacing(&[("a", None)])), (NodeGroup, replacing(&[("b", Some("1"))]))]);
    assert_eq!(labels.provenance("a").unwrap().state, KeyState::Absent);
}

#[test]
fn layer_differs_when_provided_empty_or_not_provided() {
    let template = (ClusterTemplate, merging(&[("a", Some("1"))]));
    for (layer, expected) in [(LabelLayer::default(), &[("a", "1")][..]), (merging(&[]), &[("a", "1")]), (replacing(&[]), &[])] {
        assert_eq!(fold(&[template.clone(), (Cluster, layer)]).values(), values(expected));
    }
    let taken_away = provided(&[("b", Some("1"))]).patch(&Manager::new("u").unwrap(), &to_merge_patch(intent(&[("b", None)])));
    assert!(taken_away.is_empty());
    assert_eq!(fold(&[template, (Cluster, Layer { provided: Some(taken_away), merge: Some(false) })]).values(), values(&[]));
}

#[test]
fn annotations_and_parameters_are_inherited_like_labels() {
    let manager = Manager::new("site").unwrap();
    let read = |text: serde_json::Value| -> OwnedMap<LabelKey, ParameterValue> {
        let IntentJson(intent) = serde_json::from_value(text).unwrap();
        OwnedMap::default().update(&manager, &intent)
    };
    let above = Parameters::default().with_level(
        Cluster,
        &Layer { provided: Some(read(json!({"sizes": {"a": 1, "b": 2}, "peers": [1], "mtu": 1500}))), merge: Some(true) },
    );
    let own =
        above.with_level(Node, &Layer { provided: Some(read(json!({"sizes": {"a": 9}, "peers": null}))), merge: Some(true) });
    assert_eq!(own.get("sizes").map(|value| (**value).clone()), Some(json!({"a": 9})), "no deep merge");
    assert_eq!(own.get("peers"), None);
    assert_eq!(own.get("mtu").map(|value| (**value).clone()), Some(json!(1500)));

    let IntentJson(written) = serde_json::from_value(json!({"Example.com/Note": "any\ntext", "old": null})).unwrap();
    let layer: AnnotationLayer = Layer { provided: Some(OwnedMap::default().update(&manager, &written)), merge: None };
    let annotations = Annotations::from_levels([(Node, &layer)]);
    assert_eq!(annotations.get("Example.com/Note").map(AnnotationValue::as_str), Some("any\ntext"));
    assert!(annotations.provenance("old").is_some_and(|line| line.value().is_none()));
}

#[test]
fn check_limits_keys_of_level_and_effective_bytes() {
    let many: Vec<_> = (0..257).map(|index| format!("k{index:03}")).collect();
    let pairs: Vec<_> = many.iter().map(|key| (key.as_str(), Some("v"))).collect();
    assert_eq!(merging(&pairs).check_key_count(), Err(TooManyKeys { count: 257 }));
    assert_eq!(merging(&pairs[1..]).check_key_count(), Ok(()));

    let long = "v".repeat(4092);
    let full: Vec<_> = many.iter().take(16).map(|key| (key.as_str(), Some(long.as_str()))).collect();
    assert_eq!(fold(&[(Node, merging(&full))]).check_size(), Ok(()));
    let over: Vec<_> = full.iter().copied().chain([("k", Some(""))]).collect();
    assert_eq!(
        fold(&[(Node, merging(&over))]).check_size().unwrap_err().to_string(),
        "the effective labels have at most 65536 bytes together, these 65537"
    );
}
