//! What an object looks like from outside: its fields as they went in, its maps with what they come to, and its
//! differences against its parent.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp as Instant;
use serde::Serialize;
use serde_json::{Map, Value, json};
use stemma_core::labels::{Annotations, Differences, Labels, Layer, Parameters, differences};
use stemma_core::object::{Inherited, Meta, Timestamp};
use stemma_core::origin::Level;
use stemma_core::ownership::OwnedMap;

use crate::cache::Model;

/// A body in the making.
pub(super) type Body = Map<String, Value>;

/// A level of an object's descent, and what it provides.
pub(super) type Chain<'a> = Vec<(Level, &'a Inherited)>;

/// The three maps, folded.
pub(super) struct Folds {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Annotations,
    /// Parameters.
    pub parameters: Parameters,
}

impl Folds {
    /// Folds a chain, the farthest level first.
    pub(super) fn of(chain: &[(Level, &Inherited)]) -> Self {
        Self {
            labels: Labels::of(chain.iter().map(|(level, said)| (*level, &said.labels))),
            annotations: Annotations::of(chain.iter().map(|(level, said)| (*level, &said.annotations))),
            parameters: Parameters::of(chain.iter().map(|(level, said)| (*level, &said.parameters))),
        }
    }

    /// The effective labels.
    pub(super) fn label_map(&self) -> BTreeMap<String, String> {
        self.labels.iter().map(|(key, said)| (key.to_string(), said.value.to_string())).collect()
    }
}

/// The template's descent.
pub(super) fn template_chain(inherited: &Inherited) -> Chain<'_> {
    vec![(Level::ClusterTemplate, inherited)]
}

/// What stands above a cluster's level, the farthest first.
pub(super) fn above_cluster(model: &Model, cluster: &stemma_core::object::ClusterSpec) -> Vec<(Level, Inherited)> {
    let template = cluster.cluster_template.and_then(|id| model.templates.get(id.0));
    template.map(|template| (Level::ClusterTemplate, template.spec.inherited.clone())).into_iter().collect()
}

/// What stands above a group's level.
pub(super) fn above_group(model: &Model, group: &stemma_core::object::NodeGroupSpec) -> Vec<(Level, Inherited)> {
    let Some(cluster) = model.clusters.get(group.cluster.0) else { return Vec::new() };
    let mut above = above_cluster(model, &cluster.spec);
    above.push((Level::Cluster, cluster.spec.inherited.clone()));
    above
}

/// What stands above a node's level.
pub(super) fn above_node(model: &Model, node: &stemma_core::object::NodeSpec) -> Vec<(Level, Inherited)> {
    let Some(group) = node.nodegroup.and_then(|id| model.groups.get(id.0)) else { return Vec::new() };
    let mut above = above_group(model, &group.spec);
    above.push((Level::NodeGroup, group.spec.inherited.clone()));
    above
}

/// What every object has: identity, versions, times.
pub(super) fn meta<N>(body: &mut Body, meta: &Meta<N>) {
    body.insert("uuid".into(), meta.uuid.to_string().into());
    body.insert("generation".into(), meta.generation.into());
    body.insert("resource_version".into(), meta.resource_version.into());
    body.insert("created_at".into(), time(meta.created_at).into());
    let changed = meta.updated_at != meta.created_at;
    body.insert("updated_at".into(), if changed { time(meta.updated_at).into() } else { Value::Null });
}

/// A time as `OpenStack` writes it.
pub(super) fn time(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    let instant = Instant::from_millisecond(millis).unwrap_or(Instant::UNIX_EPOCH);
    instant.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}

/// The maps that go down the levels: effective, provided, owned, and how they differ from the parent's.
pub(super) fn maps(body: &mut Body, above: &[(Level, Inherited)], level: Level, own: &Inherited) {
    let mut chain: Chain<'_> = above.iter().map(|(level, said)| (*level, said)).collect();
    let parent = (!chain.is_empty()).then(|| Folds::of(&chain));
    chain.push((level, own));
    let folds = Folds::of(&chain);
    let labels = folds.label_map();
    if let Some(parent) = parent {
        let Differences { overridden, added, skipped } = differences(&parent.label_map(), &labels);
        body.insert("labels_overridden".into(), json!(overridden));
        body.insert("labels_added".into(), json!(added));
        body.insert("labels_skipped".into(), json!(skipped));
    }
    body.insert("labels".into(), json!(labels));
    body.insert("merge_labels".into(), own.labels.merge.unwrap_or(false).into());
    let annotations: BTreeMap<String, &str> =
        folds.annotations.iter().map(|(key, said)| (key.to_string(), &**said.value)).collect();
    body.insert("annotations".into(), json!(annotations));
    let parameters: BTreeMap<String, &Value> =
        folds.parameters.iter().map(|(key, said)| (key.to_string(), &**said.value)).collect();
    body.insert("parameters".into(), json!(parameters));
    provided(body, "provided_labels", "label_owners", &own.labels);
    provided(body, "provided_annotations", "annotation_owners", &own.annotations);
    provided(body, "provided_parameters", "parameter_owners", &own.parameters);
}

fn provided<K: Ord + Clone + fmt::Display, V: Clone + Serialize>(
    body: &mut Body,
    said: &str,
    owned: &str,
    layer: &Layer<K, V>,
) {
    let Some(map) = &layer.provided else {
        body.insert(said.into(), Value::Null);
        body.insert(owned.into(), json!({}));
        return;
    };
    let values: BTreeMap<String, Option<&V>> =
        map.iter().map(|(key, entry)| (key.to_string(), entry.said.value())).collect();
    body.insert(said.into(), json!(values));
    body.insert(owned.into(), owners(map));
}

fn owners<K: Ord + fmt::Display, V>(map: &OwnedMap<K, V>) -> Value {
    map.iter().map(|(key, entry)| (key.to_string(), json!(*entry.owners))).collect::<Map<_, _>>().into()
}

/// The two links that `OpenStack`'s bodies have.
pub(super) fn links(base: &str, path: &str) -> Value {
    json!([{"href": format!("{base}/v1/{path}"), "rel": "self"}, {"href": format!("{base}/{path}"), "rel": "bookmark"}])
}
