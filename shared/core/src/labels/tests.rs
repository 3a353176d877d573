//! Lines of descent as `explain` reads them. Values by hand.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::origin::Origin;
use crate::ownership::OwnedMap;
use crate::ownership::{Intent, Manager, Said};
use Level::{Cluster, ClusterTemplate, Node, NodeGroup};

fn intent(pairs: &[(&str, Option<&str>)]) -> Intent<LabelKey, LabelValue> {
    let said = |value: Option<&str>| Said::from(value.map(|text| LabelValue::new(text).unwrap()));
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
    Labels::of(levels.iter().map(|(level, layer)| (*level, layer)))
}

fn values(pairs: &[(&str, &str)]) -> BTreeMap<LabelKey, LabelValue> {
    pairs.iter().map(|(key, value)| (LabelKey::new(key).unwrap(), LabelValue::new(value).unwrap())).collect()
}

/// What came of each word that was said of a key, as `LEVEL VALUE OUTCOME`.
fn explained(labels: &Labels, key: &str) -> Vec<String> {
    let Some(line) = labels.line(key) else { return Vec::new() };
    let said = line.outcomes().map(|(said, outcome)| {
        let value = said.said.value().map_or("-", LabelValue::as_str);
        format!("{} {value} {outcome:?}", said.level)
    });
    let offers = line.offers.iter().enumerate().map(|(at, offer)| {
        let outcome = if line.standing == (Standing::Filled { at }) { "Wins" } else { "NoEffect" };
        format!("{} {} {outcome}", offer.origin, offer.value)
    });
    said.chain(offers).collect()
}

#[test]
fn every_level_that_spoke_is_told_with_what_came_of_it() {
    let levels = [
        (ClusterTemplate, merging(&[("tier", Some("standard")), ("debug", Some("1")), ("ntp", Some("a"))])),
        (Cluster, LabelLayer::default()),
        (NodeGroup, merging(&[("tier", Some("gold")), ("debug", None)])),
        (Node, merging(&[("rack", Some("r1"))])),
    ];
    let labels = fold(&levels);
    for (key, value, lines) in [
        ("tier", Some("gold"), vec!["clustertemplate standard OverriddenBy(NodeGroup)", "nodegroup gold Wins"]),
        ("debug", None, vec!["clustertemplate 1 StoppedBy(NodeGroup)", "nodegroup - Stops"]),
        ("ntp", Some("a"), vec!["clustertemplate a Wins"]),
        ("rack", Some("r1"), vec!["node r1 Wins"]),
        ("absent", None, vec![]),
    ] {
        assert_eq!(labels.get(key).map(LabelValue::as_str), value, "{key}");
        assert_eq!(explained(&labels, key), lines, "{key}");
    }
    assert_eq!(labels.line("tier").unwrap().statements[0].owners[0].to_string(), "site:apply");
}

#[test]
fn a_level_that_does_not_merge_cuts_off_what_is_above() {
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
        assert_eq!(explained(&labels, key), lines, "{key}");
    }
    let idle: Vec<_> = levels[1].1.idle_tombstones().map(LabelKey::as_str).collect();
    assert_eq!(idle, ["a", "d"]);
    assert_eq!(levels[0].1.idle_tombstones().count(), 0);
}

#[test]
fn a_null_without_effect_is_replaced_by_nothing() {
    let labels = fold(&[(Cluster, replacing(&[("a", None)])), (NodeGroup, replacing(&[("b", Some("1"))]))]);
    assert_eq!(explained(&labels, "a"), ["cluster - NoEffect"]);
}

#[test]
fn s34_rules_and_the_host_fill_what_no_level_sets_or_stops() {
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
    let labels = before.fill(&Fill { origin: Origin::Rule("gpu".into()), grants: true, labels: &rule });
    let labels = labels.fill(&Fill { origin: Origin::Host, grants: false, labels: &host });
    let expected =
        [("hosted", "host"), ("idle", "rule"), ("node.stemma.io/a", "rule"), ("ruled", "rule"), ("set", "op")];
    assert_eq!(labels.values(), values(&expected));
    for (key, lines) in [
        ("set", vec!["clustertemplate op OverriddenBy(Cluster)", "cluster op Wins", "rule gpu rule NoEffect"]),
        ("idle", vec!["cluster - NoEffect", "rule gpu rule Wins"]),
        ("stopped", vec!["clustertemplate - StoppedBy(NodeGroup)", "nodegroup - Stops", "host host NoEffect"]),
        ("cut", vec!["clustertemplate op ReplacedBy(Cluster)", "host host NoEffect"]),
        ("ruled", vec!["rule gpu rule Wins", "host host NoEffect"]),
        ("kubernetes.io/x", vec!["host host NoEffect"]),
        ("node.stemma.io/a", vec!["rule gpu rule Wins", "host host NoEffect"]),
    ] {
        assert_eq!(explained(&labels, key), lines, "{key}");
    }
    let by_gpu = OfferEffect::FilledBy(Origin::Rule("gpu".into()));
    for (key, effects) in [
        ("set", vec![OfferEffect::SaidBy(Cluster)]),
        ("stopped", vec![OfferEffect::SaidBy(NodeGroup)]),
        ("cut", vec![OfferEffect::SaidBy(Cluster)]),
        ("hosted", vec![OfferEffect::Wins]),
        ("ruled", vec![OfferEffect::Wins, by_gpu.clone()]),
        ("kubernetes.io/x", vec![OfferEffect::Restricted]),
        ("node.stemma.io/a", vec![OfferEffect::Wins, by_gpu]),
    ] {
        let offered: Vec<_> = labels.line(key).unwrap().offered().map(|(_, effect)| effect).collect();
        assert_eq!(offered, effects, "{key}");
    }
    assert_eq!(labels.line("ruled").unwrap().effective().unwrap().origin, Origin::Rule("gpu".into()));
}

#[test]
fn a_restricted_key_is_filled_by_the_first_that_grants() {
    let key = values(&[("node.stemma.io/a", "x")]);
    let by = |name: &str, grants| Fill { origin: Origin::Rule(name.into()), grants, labels: &key };
    let labels = Labels::default().fill(&by("plain", false)).fill(&by("gpu", true)).fill(&by("late", true));
    let offered: Vec<_> = labels.line("node.stemma.io/a").unwrap().offered().map(|(_, effect)| effect).collect();
    let by_gpu = OfferEffect::FilledBy(Origin::Rule("gpu".into()));
    assert_eq!(offered, [OfferEffect::Restricted, OfferEffect::Wins, by_gpu]);
}

#[test]
fn a_level_that_replaces_leaves_a_null_without_effect_open_to_the_host() {
    let host = values(&[("a", "host")]);
    let labels = fold(&[(Cluster, replacing(&[("a", None)])), (NodeGroup, replacing(&[("b", Some("1"))]))])
        .fill(&Fill { origin: Origin::Host, grants: false, labels: &host });
    assert_eq!(labels.values(), values(&[("a", "host"), ("b", "1")]));
    let labels = fold(&[(Cluster, replacing(&[("a", None)])), (NodeGroup, replacing(&[("b", Some("1"))]))]);
    assert_eq!(labels.line("a").unwrap().standing, Standing::Absent);
}

#[test]
fn provided_empty_is_not_the_same_as_not_provided() {
    let template = (ClusterTemplate, merging(&[("a", Some("1"))]));
    for (layer, expected) in
        [(LabelLayer::default(), &[("a", "1")][..]), (merging(&[]), &[("a", "1")]), (replacing(&[]), &[])]
    {
        assert_eq!(fold(&[template.clone(), (Cluster, layer)]).values(), values(expected));
    }
    let taken_away =
        provided(&[("b", Some("1"))]).patch(&Manager::new("u").unwrap(), &removing(intent(&[("b", None)])));
    assert!(taken_away.is_empty());
    assert_eq!(
        fold(&[template, (Cluster, Layer { provided: Some(taken_away), merge: Some(false) })]).values(),
        values(&[])
    );
}

#[test]
fn annotations_and_parameters_go_the_same_way() {
    let manager = Manager::new("site").unwrap();
    let read = |text: serde_json::Value| -> OwnedMap<LabelKey, ParameterValue> {
        let Written(intent) = serde_json::from_value(text).unwrap();
        OwnedMap::default().update(&manager, &intent)
    };
    let above = Parameters::default().below(
        Cluster,
        &Layer {
            provided: Some(read(json!({"sizes": {"a": 1, "b": 2}, "peers": [1], "mtu": 1500}))),
            merge: Some(true),
        },
    );
    let own = above
        .below(Node, &Layer { provided: Some(read(json!({"sizes": {"a": 9}, "peers": null}))), merge: Some(true) });
    assert_eq!(own.get("sizes").map(|value| (**value).clone()), Some(json!({"a": 9})), "no deep merge");
    assert_eq!(own.get("peers"), None);
    assert_eq!(own.get("mtu").map(|value| (**value).clone()), Some(json!(1500)));

    let Written(written) = serde_json::from_value(json!({"Example.com/Note": "any\ntext", "old": null})).unwrap();
    let layer: AnnotationLayer = Layer { provided: Some(OwnedMap::default().update(&manager, &written)), merge: None };
    let annotations = Annotations::of([(Node, &layer)]);
    assert_eq!(annotations.get("Example.com/Note").map(AnnotationValue::as_str), Some("any\ntext"));
    assert!(annotations.line("old").is_some_and(|line| line.value().is_none()));
}

#[test]
fn what_is_effective_and_what_a_level_has_are_bounded() {
    let many: Vec<_> = (0..257).map(|index| format!("k{index:03}")).collect();
    let pairs: Vec<_> = many.iter().map(|key| (key.as_str(), Some("v"))).collect();
    assert_eq!(merging(&pairs).check(), Err(TooManyKeys { count: 257 }));
    assert_eq!(merging(&pairs[1..]).check(), Ok(()));

    let long = "v".repeat(4092);
    let full: Vec<_> = many.iter().take(16).map(|key| (key.as_str(), Some(long.as_str()))).collect();
    assert_eq!(fold(&[(Node, merging(&full))]).check_size(), Ok(()));
    let over: Vec<_> = full.iter().copied().chain([("k", Some(""))]).collect();
    assert_eq!(
        fold(&[(Node, merging(&over))]).check_size().unwrap_err().to_string(),
        "the effective labels have at most 65536 bytes together, these 65537"
    );
}
