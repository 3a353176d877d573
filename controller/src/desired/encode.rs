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
use stemma_wire::message::desired::{self, Barrier, InputValue, Known, KnownLabel, ProfileTask, REMOVE_ORPHANS, TaskSet};

use super::{EncodedProfile, PUBLISHED_VERSION};

/// A profile in the form that is sent to hosts, with the blobs that its tasks name.
#[derive(Clone, Debug)]
pub(crate) struct SentProfile {
    pub(crate) encoded: Arc<EncodedProfile>,
    pub(crate) blobs: Arc<[Hash]>,
}

impl SentProfile {
    /// Returns the hash by which the profile is stored and compared: that of its form in [`PUBLISHED_VERSION`].
    pub(crate) fn name(&self) -> Hash {
        self.encoded.for_version(PUBLISHED_VERSION).name
    }
}

/// A cache of encoded profiles. Thousands of nodes share one profile, which is encoded once.
#[derive(Default)]
pub(crate) struct ProfileCache {
    by_hash: HashMap<ProfileHash, SentProfile>,
    /// Profiles that were read from the store because hosts still have them, by hash.
    stored: HashMap<Hash, SentProfile>,
    /// The barriers that the first of two profiles has and the second lacks, by the hashes of both profiles.
    obsolete_barriers: HashMap<(Hash, Hash), Arc<[Barrier]>>,
}

/// Maximum length of the reason why a task is left out, as it is sent to a host, in characters without the ellipsis of
/// a shortened reason. `explain` shows the full reason.
pub(crate) const MAX_REASON_CHARS: usize = 200;
/// Maximum number of entries in each map of the cache, more than a fleet has in use. A full map is cleared.
const MAX_PROFILES: usize = 10_000;

impl ProfileCache {
    /// Returns a profile in the form that is sent to hosts. Encodes each profile once.
    pub(crate) fn encode(&mut self, profile: &Profile) -> SentProfile {
        get_or_insert(&mut self.by_hash, profile.hash, || {
            let sent = wire_profile(profile);
            let blobs: BTreeSet<Hash> = sent.blobs().collect();
            SentProfile { encoded: Arc::new(EncodedProfile::new(&sent)), blobs: blobs.into_iter().collect() }
        })
    }

    /// Returns the profile with this hash, which was stored earlier and which hosts still have. Calls `load` only if
    /// the profile is not in the cache. Returns `None` if `load` does.
    pub(crate) fn stored(&mut self, name: Hash, load: impl FnOnce() -> Option<SentProfile>) -> Option<SentProfile> {
        match self.stored.get(&name) {
            Some(cached) => Some(cached.clone()),
            None => load().map(|profile| get_or_insert(&mut self.stored, name, || profile)),
        }
    }

    /// Returns the barriers of `sent_profile`, whose tasks a host still runs, that the present profile of its node
    /// lacks. Each pair of profiles is compared once. The result is empty if one of them cannot be decoded.
    pub(crate) fn obsolete_barriers(&mut self, sent_profile: &SentProfile, present_profile: &SentProfile) -> Arc<[Barrier]> {
        let decode = |profile: &SentProfile| profile.encoded.for_version(PUBLISHED_VERSION).decode(PUBLISHED_VERSION);
        get_or_insert(&mut self.obsolete_barriers, (sent_profile.name(), present_profile.name()), || {
            let (Some(sent), Some(present)) = (decode(sent_profile), decode(present_profile)) else { return Arc::default() };
            obsolete_barriers(barrier_names(&sent), barrier_names(&present))
        })
    }
}

/// Returns the cached value of a key, or computes and caches the value. Clears the whole map first if it is full.
fn get_or_insert<K: Eq + std::hash::Hash, V: Clone>(cache: &mut HashMap<K, V>, key: K, compute: impl FnOnce() -> V) -> V {
    if cache.len() >= MAX_PROFILES {
        cache.clear();
    }
    cache.entry(key).or_insert_with(compute).clone()
}

/// Returns the known part of a node's desired state: labels, traits, lifecycle fields and the like. Unlike the task
/// set, this part is sent to the host at once.
pub(crate) fn known_part(resolved: &ResolvedNode) -> Known {
    let labels = resolved.labels();
    let exported_keys = resolved.host_labels().map_labels(&labels).exported;
    let node = resolved.node();
    Known {
        name: node.display_name(),
        group: resolved.group_path().unwrap_or_default(),
        labels: labels
            .iter()
            .map(|(key, effective)| {
                let label = KnownLabel {
                    value: effective.value.as_str().to_owned(),
                    to_host: exported_keys.contains(key),
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
        // The host runs in the lower of this mode and the mode of its task set, so a lower mode applies at once.
        ceiling: resolved.mode().value,
        splay_s: resolved.splay_seconds(),
        // The time at which the hold ends, in seconds since 1970, or the largest number if the hold has no end.
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

/// Returns a node's task set, which is sent to the host when it is released. If the node has no task set, the result
/// contains no tasks. `profile` is the hash of the profile. `version` is the version of the computation of the task
/// digest. `find_encoded` returns an input in its encoded form, if the caller has this form already.
pub(crate) fn task_set(
    resolved: &ResolvedNode,
    profile: Option<Hash>,
    version: DigestVersion,
    find_encoded: impl Fn(&Reference, &Input) -> Option<InputValue>,
) -> TaskSet {
    let Some(task_set) = resolved.task_set() else {
        return TaskSet { mode: resolved.mode().value, ..TaskSet::default() };
    };
    TaskSet {
        // The field is for rollouts, which do not exist yet.
        group_revision: 0,
        digest_version: version.number(),
        task_digest: task_set.task_digest(version).0,
        mode: resolved.mode().value,
        profile,
        tags: tag_texts(task_set.tags()),
        primaries: tag_texts(task_set.primary_tags()),
        left_out: task_set
            .skipped_ids()
            .chain(task_set.unassign_ids())
            .map(|(id, reason)| (id.to_owned(), short_reason(&reason.to_string()).into()))
            .collect(),
        inputs: task_set
            .iter_inputs()
            .map(|(reference, input)| {
                let value = find_encoded(reference, input).unwrap_or_else(|| input.into());
                (reference.to_string(), value)
            })
            .collect(),
    }
}

/// Returns the reason why a task is left out, shortened to [`MAX_REASON_CHARS`] characters and an ellipsis. The reason
/// is stored for each node and sent to its host, and it may contain a long condition.
pub(crate) fn short_reason(reason: &str) -> String {
    if reason.chars().nth(MAX_REASON_CHARS).is_none() {
        return reason.to_owned();
    }
    reason.chars().take(MAX_REASON_CHARS).chain(['…']).collect()
}

/// Returns a barrier of a profile in the form of the messages, in which the task and the selector name the barrier.
pub(crate) fn wire_barrier(profile: &Profile, barrier: &stemma_core::release::Barrier) -> Barrier {
    Barrier { task: profile.release.id(barrier.task).to_owned(), selector: barrier.to_string() }
}

/// Returns the barriers of all tasks of a profile.
fn barrier_names(profile: &desired::Profile) -> impl Iterator<Item = &Barrier> {
    profile.tasks.iter().flat_map(|task| &task.barriers)
}

/// Returns a profile in the form of the messages. Each task has the indexes of the tasks that run before it on the same
/// host, and the barriers at which it waits for other hosts. The tasks that hosts get only for `on_unassign` are the last,
/// and the task set of each node leaves them out.
fn wire_profile(profile: &Profile) -> desired::Profile {
    // Edges and waits name tasks by their position in `tasks`. So nothing orders a task of `on_unassign`, which hosts
    // run after the task set that has it.
    let tasks = profile.tasks.iter().chain(&profile.unassign).enumerate().map(|(index, task_index)| {
        let compiled = profile.release.task(*task_index);
        let predecessors = profile.edges.iter().filter(|(_, after)| *after as usize == index).map(|(task, _)| *task);
        let waits = profile.waits.iter().filter(|(waiting, _)| *waiting as usize == index);
        ProfileTask {
            id: compiled.task.id.clone(),
            definition: sent_definition(&compiled.task),
            references: compiled.references.iter().map(ToString::to_string).collect(),
            after: predecessors.map(|task| u16::try_from(task).expect("a release has at most 4096 tasks")).collect(),
            barriers: waits.map(|(_, barrier_index)| wire_barrier(profile, &profile.barriers[*barrier_index as usize])).collect(),
        }
    });
    desired::Profile { tasks: tasks.collect() }
}

/// Returns the lifecycle limits of a node by field name, in seconds. A field without a limit is omitted. Also has
/// [`REMOVE_ORPHANS`] if the nodegroup sets it.
fn lifecycle(resolved: &ResolvedNode) -> BTreeMap<String, u64> {
    let limited = resolved.lifecycle_limits().by_field().into_iter().filter_map(|(field, limit)| match limit.value {
        Limit::Forever => None,
        Limit::Within(time) => Some((field.name().to_owned(), time.as_secs())),
    });
    limited.chain(resolved.removes_orphans().then(|| (REMOVE_ORPHANS.to_owned(), 1))).collect()
}

/// Returns the origin of a label as a short text for the host, such as `cluster NAME` or `rule NAME`.
fn origin_text(resolved: &ResolvedNode, origin: &Origin) -> String {
    let level_text = |level: Level| {
        let group = resolved.resolved_group();
        match level {
            Level::Node => format!("node {}", resolved.node().display_name()),
            Level::NodeGroup => format!("nodegroup {}", resolved.group_path().unwrap_or_default()),
            Level::Cluster => {
                format!("cluster {}", group.map(|group| group.cluster.meta.name.to_string()).unwrap_or_default())
            }
            Level::ClusterTemplate => {
                let template = group.and_then(|group| group.template.as_ref());
                format!("clustertemplate {}", template.map(|template| template.meta.name.to_string()).unwrap_or_default())
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

    /// `longest` has exactly [`MAX_REASON_CHARS`] characters.
    #[test]
    fn x03_f07_short_reason_limits_text() {
        let longest = format!("condition is false: {}", "é".repeat(180));
        assert_eq!(short_reason(&longest), longest);
        assert_eq!(short_reason(&format!("{longest}{}", "x".repeat(5_000))), format!("{longest}…"));
    }

    /// A barrier is obsolete if only the sent profile has it. The second call for a pair returns the cached list.
    #[test]
    fn obsolete_barriers_is_computed_once_per_profile_pair() {
        let barrier = |task: &str| Barrier { task: task.to_owned(), selector: "kind=node".to_owned() };
        let profile = |barriers: Vec<Barrier>| {
            let (id, definition) = (String::new(), String::new());
            let task = ProfileTask { id, definition, references: vec![], after: vec![], barriers };
            let encoded = Arc::new(EncodedProfile::new(&desired::Profile { tasks: vec![task] }));
            SentProfile { encoded, blobs: Arc::default() }
        };
        let (sent, present) = (profile(vec![barrier("a"), barrier("b")]), profile(vec![barrier("b")]));
        let mut profiles = ProfileCache::default();
        let obsolete = profiles.obsolete_barriers(&sent, &present);
        assert_eq!(*obsolete, [barrier("a")]);
        assert!(Arc::ptr_eq(&obsolete, &profiles.obsolete_barriers(&sent, &present)));
        assert!(profiles.obsolete_barriers(&present, &sent).is_empty());
    }
}
