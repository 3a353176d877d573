//! Encodes a resolved node as the parts of a desired state, and the profile that equal nodes share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use stemma_core::digest::{DigestVersion, canonical_json};
use stemma_core::input::{Input, Reference};
use stemma_core::lifecycle::Limit;
use stemma_core::name::TagName;
use stemma_core::origin::{Level, Origin};
use stemma_core::release::{Profile, ProfileHash, sent_definition};
use stemma_core::resolve::ResolvedNode;
use stemma_core::rollout::obsolete_barriers;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{self, Barrier, InputValue, Known, KnownLabel, ProfileTask, TaskSet};

use super::{EncodedProfile, PUBLISHED_VERSION};

/// A profile as it is sent, with the blobs that it names.
#[derive(Clone, Debug)]
pub(crate) struct SentProfile {
    pub(crate) encoded: Arc<EncodedProfile>,
    pub(crate) blobs: Arc<[Hash]>,
}

impl SentProfile {
    /// Returns the name by which the profile is stored and compared.
    pub(crate) fn name(&self) -> Hash {
        self.encoded.for_version(PUBLISHED_VERSION).name
    }
}

/// A cache of encoded profiles, because thousands of nodes share one profile.
#[derive(Default)]
pub(crate) struct ProfileCache {
    by_hash: HashMap<ProfileHash, SentProfile>,
    /// Profiles that were read from the store because hosts still have them.
    stored: HashMap<Hash, SentProfile>,
    /// The barriers that the first of two profiles has and the second lacks.
    obsolete_barriers: HashMap<(Hash, Hash), Arc<[Barrier]>>,
}

/// Maximum length of the reason for a task that is left out, as it is sent to a host, in characters. `explain` shows
/// the full reason.
pub(crate) const MAX_REASON_CHARS: usize = 200;
/// Maximum number of cached profiles, more than a fleet has in use. When it is reached, the cache is cleared.
const MAX_PROFILES: usize = 10_000;

impl ProfileCache {
    /// Returns a profile in the form that is sent to hosts.
    pub(crate) fn encode(&mut self, profile: &Profile) -> SentProfile {
        get_or_insert(&mut self.by_hash, profile.hash, || {
            let sent = wire_profile(profile);
            let blobs: BTreeSet<Hash> = sent.blobs().collect();
            SentProfile { encoded: Arc::new(EncodedProfile::new(&sent)), blobs: blobs.into_iter().collect() }
        })
    }

    /// Returns a stored profile that hosts still have. It is read once and shared by all of them.
    pub(crate) fn stored(&mut self, name: Hash, read: impl FnOnce() -> Option<SentProfile>) -> Option<SentProfile> {
        match self.stored.get(&name) {
            Some(stored) => Some(stored.clone()),
            None => read().map(|profile| get_or_insert(&mut self.stored, name, || profile)),
        }
    }

    /// Returns the barriers that a profile had when it was sent and that today's profile no longer has, computed once
    /// for each pair. Returns none for a profile that cannot be read.
    pub(crate) fn obsolete_barriers(&mut self, before: &SentProfile, today: &SentProfile) -> Arc<[Barrier]> {
        let read = |profile: &SentProfile| profile.encoded.for_version(PUBLISHED_VERSION).decode(PUBLISHED_VERSION);
        get_or_insert(&mut self.obsolete_barriers, (before.name(), today.name()), || {
            let (Some(before), Some(today)) = (read(before), read(today)) else { return Arc::default() };
            obsolete_barriers(barrier_names(&before), barrier_names(&today))
        })
    }
}

/// Returns the cached value, or computes and caches it.
fn get_or_insert<K: Eq + std::hash::Hash, V: Clone>(cache: &mut HashMap<K, V>, key: K, compute: impl FnOnce() -> V) -> V {
    if cache.len() >= MAX_PROFILES {
        cache.clear();
    }
    cache.entry(key).or_insert_with(compute).clone()
}

/// Returns the known part of a node's desired state, which is sent at once.
pub(crate) fn known_part(resolved: &ResolvedNode) -> Known {
    let labels = resolved.labels();
    let flows = resolved.host_labels().map_labels(&labels).exported;
    let node = resolved.node();
    Known {
        name: node.display_name(),
        group: resolved.group_path().unwrap_or_default(),
        labels: labels
            .iter()
            .map(|(key, effective)| {
                let label = KnownLabel {
                    value: effective.value.as_str().to_owned(),
                    to_host: flows.contains(key),
                    origin: origin_text(resolved, &effective.origin),
                };
                (key.as_str().to_owned(), label)
            })
            .collect(),
        annotations: resolved
            .annotations()
            .iter()
            .map(|(key, effective)| (key.as_str().to_owned(), effective.value.as_str().to_owned()))
            .collect(),
        traits: resolved.traits().names().map(|name| name.as_str().to_owned()).collect(),
        lifecycle: lifecycle(resolved),
        ceiling: resolved.mode().value,
        splay_s: resolved.splay_seconds(),
        hold: resolved.hold().map(|hold| (hold.end_time().map_or(u64::MAX, |end| end.0 / 1000), hold.reason.clone())),
        parked: resolved.is_parked(),
        paused: resolved.is_paused(),
        ready: resolved
            .ready_probes()
            .into_iter()
            .map(|(tag, probes)| (tag.as_str().to_owned(), canonical_json(&Value::Array(probes.to_vec()))))
            .collect(),
    }
}

/// Returns the names of tags in the form that is sent to hosts.
pub(crate) fn tag_texts(tags: &[TagName]) -> Vec<String> {
    tags.iter().map(|tag| tag.as_str().to_owned()).collect()
}

/// Returns a node's task set, which is sent when it is released, with its digest under the definition `version`. A node
/// that has no task set gets one without tasks. `encoded` returns inputs that were encoded before.
pub(crate) fn task_set(
    resolved: &ResolvedNode,
    profile: Option<Hash>,
    version: DigestVersion,
    encoded: impl Fn(&Reference, &Input) -> Option<InputValue>,
) -> TaskSet {
    let Some(set) = resolved.task_set() else {
        return TaskSet { mode: resolved.mode().value, ..TaskSet::default() };
    };
    TaskSet {
        group_revision: 0,
        digest_version: version.number(),
        task_digest: set.task_digest(version).0,
        mode: resolved.mode().value,
        profile,
        tags: tag_texts(set.tags()),
        primaries: tag_texts(set.primary_tags()),
        left_out: set.skipped_ids().map(|(id, why)| (id.to_owned(), short_reason(&why.to_string()).into())).collect(),
        inputs: set
            .iter_inputs()
            .map(|(reference, input)| {
                let value = encoded(reference, input).unwrap_or_else(|| input.into());
                (reference.to_string(), value)
            })
            .collect(),
    }
}

/// Shortens the reason for a task that is left out, before it is sent to a host. It is stored for each node, and
/// conditions may be long.
pub(crate) fn short_reason(reason: &str) -> String {
    if reason.chars().nth(MAX_REASON_CHARS).is_none() {
        return reason.to_owned();
    }
    reason.chars().take(MAX_REASON_CHARS).chain(['…']).collect()
}

/// Returns the name by which both ends know a barrier.
pub(crate) fn wire_barrier(profile: &Profile, barrier: &stemma_core::release::Barrier) -> Barrier {
    Barrier { task: profile.release.id(barrier.task).to_owned(), selector: barrier.to_string() }
}

/// Returns the names of a profile's barriers.
fn barrier_names(profile: &desired::Profile) -> impl Iterator<Item = &Barrier> {
    profile.tasks.iter().flat_map(|task| &task.barriers)
}

/// Returns a profile in the form of the wire messages.
fn wire_profile(profile: &Profile) -> desired::Profile {
    let tasks = profile.tasks.iter().enumerate().map(|(index, ix)| {
        let compiled = profile.release.task(*ix);
        let before = profile.edges.iter().filter(|(_, after)| *after as usize == index).map(|(before, _)| *before);
        let waits = profile.waits.iter().filter(|(waiting, _)| *waiting as usize == index);
        ProfileTask {
            id: compiled.task.id.clone(),
            definition: sent_definition(&compiled.task),
            references: compiled.references.iter().map(ToString::to_string).collect(),
            after: before.map(|before| u16::try_from(before).expect("a release has at most 4096 tasks")).collect(),
            barriers: waits.map(|(_, wait)| wire_barrier(profile, &profile.barriers[*wait as usize])).collect(),
        }
    });
    desired::Profile { tasks: tasks.collect() }
}

fn lifecycle(resolved: &ResolvedNode) -> BTreeMap<String, u64> {
    let limited = resolved.lifecycle_limits().by_field().into_iter().filter_map(|(field, limit)| match limit.value {
        Limit::Forever => None,
        Limit::Within(time) => Some((field.name().to_owned(), time.as_secs())),
    });
    limited.collect()
}

/// Returns the origin of a label as a short text.
fn origin_text(resolved: &ResolvedNode, origin: &Origin) -> String {
    let level_text = |level: Level| {
        let fold = resolved.resolved_group();
        match level {
            Level::Node => format!("node {}", resolved.node().display_name()),
            Level::NodeGroup => format!("nodegroup {}", resolved.group_path().unwrap_or_default()),
            Level::Cluster => {
                format!("cluster {}", fold.map(|fold| fold.cluster.meta.name.to_string()).unwrap_or_default())
            }
            Level::ClusterTemplate => {
                let template = fold.and_then(|fold| fold.template.as_ref());
                format!("clustertemplate {}", template.map(|one| one.meta.name.to_string()).unwrap_or_default())
            }
        }
    };
    match origin {
        Origin::Level(level) => level_text(*level),
        Origin::Rule(rule) => format!("rule {rule}"),
        Origin::Host => "host".to_owned(),
        Origin::Default => "default".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x03_f07_short_reason_limits_text() {
        let whole = format!("condition is false: {}", "é".repeat(180));
        assert_eq!(short_reason(&whole), whole);
        assert_eq!(short_reason(&format!("{whole}{}", "x".repeat(5_000))), format!("{whole}…"));
    }

    #[test]
    fn obsolete_barriers_is_computed_once_per_profile_pair() {
        let barrier = |task: &str| Barrier { task: task.to_owned(), selector: "kind=node".to_owned() };
        let profile = |barriers: Vec<Barrier>| {
            let (id, definition) = (String::new(), String::new());
            let task = ProfileTask { id, definition, references: vec![], after: vec![], barriers };
            let encoded = Arc::new(EncodedProfile::new(&desired::Profile { tasks: vec![task] }));
            SentProfile { encoded, blobs: Arc::default() }
        };
        let (before, today) = (profile(vec![barrier("a"), barrier("b")]), profile(vec![barrier("b")]));
        let mut profiles = ProfileCache::default();
        let dropped = profiles.obsolete_barriers(&before, &today);
        assert_eq!(*dropped, [barrier("a")]);
        assert!(Arc::ptr_eq(&dropped, &profiles.obsolete_barriers(&before, &today)));
        assert!(profiles.obsolete_barriers(&today, &before).is_empty());
    }
}
