//! Parts of the JSON form of an object: its metadata, its links, its effective labels and other inherited maps, the
//! maps that it provides itself, and the differences between its labels and those of its parent.

use std::collections::BTreeMap;

use jiff::Timestamp as Instant;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use stemma_core::fleet::{InheritedMaps, Levels};
use stemma_core::labels::{EffectiveMap, Labels, Layer, MapDiff, map_diff};
use stemma_core::object::{Extra, Inherited, Meta, Timestamp};
use stemma_core::origin::Level;
use stemma_core::ownership::OwnedMap;

/// The body of an object in a response. The functions of this module add fields to it.
pub(super) type JsonMap = Map<String, Value>;

/// Adds the metadata that every object has: uuid, versions and times.
pub(super) fn add_meta<N>(body: &mut JsonMap, meta: &Meta<N>) {
    body.insert("uuid".into(), meta.uuid.to_string().into());
    body.insert("generation".into(), meta.generation.into());
    body.insert("resource_version".into(), meta.resource_version.into());
    body.insert("created_at".into(), format_time(meta.created_at).into());
    body.insert("updated_at".into(), updated_at(meta));
}

/// Returns the time of the last change of an object, or `null` if it was never changed after its creation.
pub(super) fn updated_at<N>(meta: &Meta<N>) -> Value {
    if meta.updated_at == meta.created_at { Value::Null } else { format_time(meta.updated_at).into() }
}

/// Formats a time in `OpenStack`'s form, in UTC: `2026-01-31T23:59:00+00:00`. A time that the calendar cannot hold is
/// shown as 1970.
pub(super) fn format_time(timestamp: Timestamp) -> String {
    let millis = i64::try_from(timestamp.0).unwrap_or(i64::MAX);
    let instant = Instant::from_millisecond(millis).unwrap_or(Instant::UNIX_EPOCH);
    instant.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}

/// A function that computes one field of a body. Its arguments are the effective maps, and the maps that the level
/// itself provides.
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

/// Adds the fields about inherited maps to the body of an object: the effective maps, the provided maps, their owners,
/// and the differences between its labels and its parent's. `levels` are the levels above the object. Only fields for
/// which `is_requested` is true are added; the three fields of the differences only together.
pub(super) fn add_maps<'a>(
    body: &mut JsonMap,
    mut levels: Levels<'a>,
    level: Level,
    provided_maps: &'a Inherited,
    is_requested: &dyn Fn(&str) -> bool,
) {
    let needs_diff = ["labels_overridden", "labels_added", "labels_skipped"].into_iter().any(is_requested);
    let parent_maps = (!levels.is_empty() && needs_diff).then(|| InheritedMaps::from_levels(&levels));
    levels.push((level, provided_maps));
    let effective_maps = InheritedMaps::from_levels(&levels);
    if let Some(parent_maps) = parent_maps {
        let MapDiff { overridden, added, skipped } = map_diff(&parent_maps.labels.values(), &effective_maps.labels.values());
        body.insert("labels_overridden".into(), json!(overridden));
        body.insert("labels_added".into(), json!(added));
        body.insert("labels_skipped".into(), json!(skipped));
    }
    let requested_fields = MAPS.iter().filter(|(name, _)| is_requested(name));
    body.extend(requested_fields.map(|(name, compute)| ((*name).to_owned(), compute(&effective_maps, provided_maps))));
}

/// Copies the fields `names` of Magnum's API from `parent`, the passthrough fields of a level above an object, to the
/// body of the object. A field that the body already has is unchanged.
pub(super) fn inherit_fields(body: &mut JsonMap, parent: &Extra, names: &[&str]) {
    for name in names {
        if let Some(value) = parent.get(*name) {
            body.entry(*name).or_insert_with(|| value.clone());
        }
    }
}

/// Returns the keys and values of effective labels as text, without their origins.
pub(super) fn label_map(labels: &Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(key, entry)| (key.to_string(), entry.value.to_string())).collect()
}

/// Returns the values of an effective map by key, without their origins.
pub(super) fn effective_values<K: Ord + Serialize, V: Serialize>(map: &EffectiveMap<K, V>) -> impl Serialize {
    Entries(move || map.iter().map(|(key, entry)| (key, entry.value)))
}

/// Returns the values of a map that a level itself provides, or `null` if the level does not provide the map.
pub(super) fn provided_values<K: Ord + Clone + Serialize, V: Clone + Serialize>(layer: &Layer<K, V>) -> impl Serialize {
    let entries = |map| Entries(move || OwnedMap::iter(map).map(|(key, entry)| (key, entry.value.value())));
    layer.provided.as_ref().map(entries)
}

/// Returns the labels, annotations and parameters that a level itself provides, by the names of these maps.
pub(super) fn provided_maps(inherited: &Inherited) -> [(String, Value); 3] {
    let maps = [
        ("labels", json!(provided_values(&inherited.labels))),
        ("annotations", json!(provided_values(&inherited.annotations))),
        ("parameters", json!(provided_values(&inherited.parameters))),
    ];
    maps.map(|(name, map)| (name.to_owned(), map))
}

/// Returns the owners of each key that a level provides, by key: managers and their operations (`apply`, `update`).
pub(super) fn owners<K: Ord + Clone + Serialize, V: Clone>(layer: &Layer<K, V>) -> impl Serialize {
    Entries(move || layer.provided.iter().flat_map(OwnedMap::iter).map(|(key, entry)| (key, &*entry.owners)))
}

/// A value that is serialized as a JSON object. `F` returns an iterator over the pairs of the object.
pub(super) struct Entries<F>(pub F);

impl<K: Serialize, V: Serialize, I: Iterator<Item = (K, V)>, F: Fn() -> I> Serialize for Entries<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map((self.0)())
    }
}

/// Returns the two links of an object in `OpenStack`'s form, `self` and `bookmark`. The bookmark is the same URL
/// without the version of the API.
pub(super) fn links(base_url: &str, path: &str) -> [Link; 2] {
    let bookmark = path.strip_prefix("/v1").unwrap_or(path);
    [("self", path), ("bookmark", bookmark)].map(|(rel, path)| Link { href: [base_url, path].concat(), rel })
}

/// A URL in a response, and its relation to the object: `self` or `bookmark`.
#[derive(Serialize)]
pub(super) struct Link {
    href: String,
    rel: &'static str,
}
