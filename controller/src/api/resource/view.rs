//! Parts of the JSON form of an object: metadata, links, its effective maps, what it provides itself, and how its
//! labels differ from those of its parent.

use std::collections::BTreeMap;

use jiff::Timestamp as Instant;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use stemma_core::fleet::{InheritedMaps, Levels};
use stemma_core::labels::{EffectiveMap, Labels, Layer, MapDiff, map_diff};
use stemma_core::object::{Extra, Inherited, Meta, Timestamp};
use stemma_core::origin::Level;
use stemma_core::ownership::OwnedMap;

/// The body of an object, to which the functions here add members.
pub(super) type JsonMap = Map<String, Value>;

/// Adds the metadata that every object has: uuid, versions and times.
pub(super) fn add_meta<N>(body: &mut JsonMap, meta: &Meta<N>) {
    body.insert("uuid".into(), meta.uuid.to_string().into());
    body.insert("generation".into(), meta.generation.into());
    body.insert("resource_version".into(), meta.resource_version.into());
    body.insert("created_at".into(), format_time(meta.created_at).into());
    body.insert("updated_at".into(), updated_at(meta));
}

/// Returns when an object was changed, or `null` if it never was.
pub(super) fn updated_at<N>(meta: &Meta<N>) -> Value {
    if meta.updated_at == meta.created_at { Value::Null } else { format_time(meta.updated_at).into() }
}

/// Formats a time as `OpenStack` does.
pub(super) fn format_time(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    let instant = Instant::from_millisecond(millis).unwrap_or(Instant::UNIX_EPOCH);
    instant.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}

/// A function that computes a field of a body from the effective maps and from what the level itself provides.
type MapField = fn(&InheritedMaps, &Inherited) -> Value;

const MAPS: &[(&str, MapField)] = &[
    ("labels", |folds, _| json!(effective_values(&folds.labels))),
    ("merge_labels", |_, own| own.labels.merge.unwrap_or(false).into()),
    ("annotations", |folds, _| json!(effective_values(&folds.annotations))),
    ("parameters", |folds, _| json!(effective_values(&folds.parameters))),
    ("provided_labels", |_, own| json!(provided_values(&own.labels))),
    ("provided_annotations", |_, own| json!(provided_values(&own.annotations))),
    ("provided_parameters", |_, own| json!(provided_values(&own.parameters))),
    ("label_owners", |_, own| json!(owners(&own.labels))),
    ("annotation_owners", |_, own| json!(owners(&own.annotations))),
    ("parameter_owners", |_, own| json!(owners(&own.parameters))),
];

/// Adds the fields about inherited maps to the body of an object: the effective maps, what the object provides, the
/// owners, and how the labels differ from the parent's. `chain` are the levels above the object.
pub(super) fn add_maps<'a>(
    body: &mut JsonMap,
    mut chain: Levels<'a>,
    level: Level,
    own: &'a Inherited,
    wanted: &dyn Fn(&str) -> bool,
) {
    let differ = ["labels_overridden", "labels_added", "labels_skipped"].into_iter().any(wanted);
    let parent = (!chain.is_empty() && differ).then(|| InheritedMaps::from_levels(&chain));
    chain.push((level, own));
    let folds = InheritedMaps::from_levels(&chain);
    if let Some(parent) = parent {
        let MapDiff { overridden, added, skipped } = map_diff(&parent.labels.values(), &folds.labels.values());
        body.insert("labels_overridden".into(), json!(overridden));
        body.insert("labels_added".into(), json!(added));
        body.insert("labels_skipped".into(), json!(skipped));
    }
    let wanted = MAPS.iter().filter(|(name, _)| wanted(name));
    body.extend(wanted.map(|(name, make)| ((*name).to_owned(), make(&folds, own))));
}

/// Adds the passthrough fields with these names that an object does not set, with the values of the level above.
pub(super) fn inherit_fields(body: &mut JsonMap, parent: &Extra, names: &[&str]) {
    for name in names {
        if let Some(value) = parent.get(*name) {
            body.entry(*name).or_insert_with(|| value.clone());
        }
    }
}

/// Returns effective labels as text.
pub(super) fn label_map(labels: &Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(key, entry)| (key.to_string(), entry.value.to_string())).collect()
}

/// Returns the values of an effective map.
pub(super) fn effective_values<K: Ord + Serialize, V: Serialize>(map: &EffectiveMap<K, V>) -> impl Serialize {
    Entries(move || map.iter().map(|(key, entry)| (key, entry.value)))
}

/// Returns the values of a map that a level itself provides, or `null` if the level does not provide the map.
pub(super) fn provided_values<K: Ord + Clone + Serialize, V: Clone + Serialize>(layer: &Layer<K, V>) -> impl Serialize {
    let entries = |map| Entries(move || OwnedMap::iter(map).map(|(key, entry)| (key, entry.value.value())));
    layer.provided.as_ref().map(entries)
}

/// Returns the three maps that a level itself provides.
pub(super) fn provided_maps(own: &Inherited) -> [(String, Value); 3] {
    let maps = [
        ("labels", json!(provided_values(&own.labels))),
        ("annotations", json!(provided_values(&own.annotations))),
        ("parameters", json!(provided_values(&own.parameters))),
    ];
    maps.map(|(name, map)| (name.to_owned(), map))
}

/// Returns the owners of each key that a level provides.
pub(super) fn owners<K: Ord + Clone + Serialize, V: Clone>(layer: &Layer<K, V>) -> impl Serialize {
    Entries(move || layer.provided.iter().flat_map(OwnedMap::iter).map(|(key, entry)| (key, &*entry.owners)))
}

/// Serializes the pairs of an iterator as a JSON object.
pub(super) struct Entries<F>(pub F);

impl<K: Serialize, V: Serialize, I: Iterator<Item = (K, V)>, F: Fn() -> I> Serialize for Entries<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map((self.0)())
    }
}

/// Returns the two links of a body in `OpenStack`'s form, `self` and `bookmark`. A bookmark has no version in its path.
pub(super) fn links(base: &str, path: &str) -> [Link; 2] {
    let bookmark = path.strip_prefix("/v1").unwrap_or(path);
    [("self", path), ("bookmark", bookmark)].map(|(rel, path)| Link { href: [base, path].concat(), rel })
}

/// A URL, and its relation to the object that contains it.
#[derive(Serialize)]
pub(super) struct Link {
    href: String,
    rel: &'static str,
}
