//! What an object looks like from outside: its fields as they went in, its maps with what they come to, and its
//! differences against its parent.

use std::collections::BTreeMap;

use jiff::Timestamp as Instant;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use stemma_core::fleet::{Levels, Maps};
use stemma_core::labels::{Differences, Folded, Labels, Layer, differences};
use stemma_core::object::{Extra, Inherited, Meta, Timestamp};
use stemma_core::origin::Level;
use stemma_core::ownership::OwnedMap;

/// A body in the making.
pub(super) type Body = Map<String, Value>;

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
type MapField = fn(&Maps, &Inherited) -> Value;

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
    mut chain: Levels<'a>,
    level: Level,
    own: &'a Inherited,
    wanted: &dyn Fn(&str) -> bool,
) {
    let differ = ["labels_overridden", "labels_added", "labels_skipped"].into_iter().any(wanted);
    let parent = (!chain.is_empty() && differ).then(|| Maps::of(&chain));
    chain.push((level, own));
    let folds = Maps::of(&chain);
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
