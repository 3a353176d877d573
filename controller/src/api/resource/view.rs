//! What an object looks like from outside: its fields as they went in, its maps with what they come to, and its
//! differences against its parent.

use std::collections::BTreeMap;

use jiff::Timestamp as Instant;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use stemma_core::fleet::GroupFold;
use stemma_core::labels::{Annotations, Differences, Folded, Labels, Layer, Parameters, differences};
use stemma_core::object::{ClusterSpec, Extra, Inherited, Meta, NodeGroupSpec, NodeSpec, Timestamp};
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

    /// What a group's nodes inherit.
    pub(super) fn of_group(fold: &GroupFold) -> Self {
        let (labels, annotations, parameters) = (&fold.labels, &fold.annotations, &fold.parameters);
        Self { labels: labels.clone(), annotations: annotations.clone(), parameters: parameters.clone() }
    }
}

/// What stands above a cluster's level, the farthest first.
pub(super) fn above_cluster<'m>(model: &'m Model, cluster: &ClusterSpec) -> Chain<'m> {
    let template = cluster.cluster_template.and_then(|id| model.templates.get(id.0));
    template.map(|template| (Level::ClusterTemplate, &template.spec.inherited)).into_iter().collect()
}

/// What stands above a group's level.
pub(super) fn above_group<'m>(model: &'m Model, group: &NodeGroupSpec) -> Chain<'m> {
    let Some(cluster) = model.clusters.get(group.cluster.0) else { return Vec::new() };
    let mut above = above_cluster(model, &cluster.spec);
    above.push((Level::Cluster, &cluster.spec.inherited));
    above
}

/// What stands above a node's level.
pub(super) fn above_node<'m>(model: &'m Model, node: &NodeSpec) -> Chain<'m> {
    let Some(group) = node.nodegroup.and_then(|id| model.groups.get(id.0)) else { return Vec::new() };
    let mut above = above_group(model, &group.spec);
    above.push((Level::NodeGroup, &group.spec.inherited));
    above
}

/// What every object has: identity, versions, times.
pub(super) fn meta<N>(body: &mut Body, meta: &Meta<N>) {
    body.insert("uuid".into(), meta.uuid.to_string().into());
    body.insert("generation".into(), meta.generation.into());
    body.insert("resource_version".into(), meta.resource_version.into());
    body.insert("created_at".into(), time(meta.created_at).into());
    body.insert("updated_at".into(), updated_at(meta));
}

/// When an object was changed; `null` where it never was.
pub(super) fn updated_at<N>(meta: &Meta<N>) -> Value {
    if meta.updated_at == meta.created_at { Value::Null } else { time(meta.updated_at).into() }
}

/// A time as `OpenStack` writes it.
pub(super) fn time(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    let instant = Instant::from_millisecond(millis).unwrap_or(Instant::UNIX_EPOCH);
    instant.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}

/// A field of a level's maps, made of what all levels come to and of what the level itself provides.
type MapField = fn(&Folds, &Inherited) -> Value;

const MAPS: &[(&str, MapField)] = &[
    ("labels", |folds, _| json!(effective(&folds.labels))),
    ("merge_labels", |_, own| own.labels.merge.unwrap_or(false).into()),
    ("annotations", |folds, _| json!(effective(&folds.annotations))),
    ("parameters", |folds, _| json!(effective(&folds.parameters))),
    ("provided_labels", |_, own| json!(provided(&own.labels))),
    ("provided_annotations", |_, own| json!(provided(&own.annotations))),
    ("provided_parameters", |_, own| json!(provided(&own.parameters))),
    ("label_owners", |_, own| json!(owners(&own.labels))),
    ("annotation_owners", |_, own| json!(owners(&own.annotations))),
    ("parameter_owners", |_, own| json!(owners(&own.parameters))),
];

/// The maps that go down the levels: effective, provided, owned, and how the labels differ from the parent's.
pub(super) fn maps<'a>(
    body: &mut Body,
    mut chain: Chain<'a>,
    level: Level,
    own: &'a Inherited,
    wanted: &dyn Fn(&str) -> bool,
) {
    let parent = (!chain.is_empty() && wanted("labels_added")).then(|| Folds::of(&chain));
    chain.push((level, own));
    let folds = Folds::of(&chain);
    if let Some(parent) = parent {
        let Differences { overridden, added, skipped } = differences(&parent.labels.values(), &folds.labels.values());
        body.insert("labels_overridden".into(), json!(overridden));
        body.insert("labels_added".into(), json!(added));
        body.insert("labels_skipped".into(), json!(skipped));
    }
    let wanted = MAPS.iter().filter(|(name, _)| wanted(name));
    body.extend(wanted.map(|(name, make)| ((*name).to_owned(), make(&folds, own))));
}

/// Fields that an object takes over from what stands above it, where it has none of its own.
pub(super) fn take_over(body: &mut Body, above: &Extra, names: &[&str]) {
    for name in names {
        if let Some(value) = above.get(*name) {
            body.entry(*name).or_insert_with(|| value.clone());
        }
    }
}

/// Effective labels, as text.
pub(super) fn label_map(labels: &Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(key, said)| (key.to_string(), said.value.to_string())).collect()
}

/// The values of an effective map.
pub(super) fn effective<K: Ord + Serialize, V: Serialize>(map: &Folded<K, V>) -> impl Serialize {
    Entries(move || map.iter().map(|(key, said)| (key, said.value)))
}

/// What a level itself provides; `null` where it provides no such map.
pub(super) fn provided<K: Ord + Clone + Serialize, V: Clone + Serialize>(layer: &Layer<K, V>) -> impl Serialize {
    let entries = |map| Entries(move || OwnedMap::iter(map).map(|(key, entry)| (key, entry.said.value())));
    layer.provided.as_ref().map(entries)
}

/// The three maps as a level itself provides them.
pub(super) fn provided_maps(own: &Inherited) -> [(String, Value); 3] {
    let maps = [
        ("labels", json!(provided(&own.labels))),
        ("annotations", json!(provided(&own.annotations))),
        ("parameters", json!(provided(&own.parameters))),
    ];
    maps.map(|(name, map)| (name.to_owned(), map))
}

/// The owners of each key that a level provides.
pub(super) fn owners<K: Ord + Clone + Serialize, V: Clone>(layer: &Layer<K, V>) -> impl Serialize {
    Entries(move || layer.provided.iter().flat_map(OwnedMap::iter).map(|(key, entry)| (key, &*entry.owners)))
}

/// A JSON object of what an iterator gives.
pub(super) struct Entries<F>(pub F);

impl<K: Serialize, V: Serialize, I: Iterator<Item = (K, V)>, F: Fn() -> I> Serialize for Entries<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map((self.0)())
    }
}

/// The two links that `OpenStack`'s bodies have; in that of a bookmark, no version.
pub(super) fn links(base: &str, path: &str) -> [Link; 2] {
    let bookmark = path.strip_prefix("/v1").unwrap_or(path);
    [("self", path), ("bookmark", bookmark)].map(|(rel, path)| Link { href: [base, path].concat(), rel })
}

/// An address, and what it is of the object that it stands in.
#[derive(Serialize)]
pub(super) struct Link {
    href: String,
    rel: &'static str,
}
