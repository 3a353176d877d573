//! From an answer to the parts of a desired state, and to the profile that nodes alike share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use stemma_core::digest::{DigestVersion, canonical_json};
use stemma_core::input::{Input, Reference};
use stemma_core::lifecycle::Limit;
use stemma_core::name::TagName;
use stemma_core::origin::{Level, Origin};
use stemma_core::release::{Profile, ProfileHash, sent_definition};
use stemma_core::resolve::Answer;
use stemma_core::rollout::dropped_barriers;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{self, Barrier, InputValue, Known, KnownLabel, ProfileTask, TaskSet};

use super::{EncodedProfile, PUBLISHED};

/// A profile as it is sent, with the blobs that it names.
#[derive(Clone, Debug)]
pub(crate) struct SentProfile {
    pub(crate) encoded: Arc<EncodedProfile>,
    pub(crate) blobs: Arc<[Hash]>,
}

impl SentProfile {
    /// Its name as it is stored and compared.
    pub(crate) fn name(&self) -> Hash {
        self.encoded.form(PUBLISHED).name
    }
}

/// Profiles that were encoded before: thousands of nodes share one.
#[derive(Default)]
pub(crate) struct Profiles {
    by_hash: HashMap<ProfileHash, SentProfile>,
    kept: HashMap<Hash, SentProfile>,
    dropped: HashMap<(Hash, Hash), Arc<[Barrier]>>,
}

/// How many characters a host is told of why a task is left out. `explain` has the whole of it.
pub(crate) const MOST_WHY: usize = 200;
/// More than a fleet has in use; past it all are forgotten.
const MOST_PROFILES: usize = 10_000;

impl Profiles {
    /// The profile as it is sent.
    pub(crate) fn encoded(&mut self, profile: &Profile) -> SentProfile {
        remembered(&mut self.by_hash, profile.hash, || {
            let sent = sent(profile);
            let blobs: BTreeSet<Hash> = sent.blobs().collect();
            SentProfile { encoded: Arc::new(EncodedProfile::new(&sent)), blobs: blobs.into_iter().collect() }
        })
    }

    /// A stored profile that hosts keep: read once, and shared by all of them.
    pub(crate) fn kept(&mut self, name: Hash, read: impl FnOnce() -> Option<SentProfile>) -> Option<SentProfile> {
        match self.kept.get(&name) {
            Some(known) => Some(known.clone()),
            None => read().map(|profile| remembered(&mut self.kept, name, || profile)),
        }
    }

    /// The barriers of a profile as it was sent before that the one of today no longer has, worked out once for each pair. A profile
    /// that cannot be read has none.
    pub(crate) fn dropped_barriers(&mut self, before: &SentProfile, today: &SentProfile) -> Arc<[Barrier]> {
        let read = |profile: &SentProfile| profile.encoded.form(PUBLISHED).read(PUBLISHED);
        remembered(&mut self.dropped, (before.name(), today.name()), || {
            let (Some(before), Some(today)) = (read(before), read(today)) else { return Arc::default() };
            dropped_barriers(barriers(&before), barriers(&today))
        })
    }
}

/// What was worked out before, or is now.
fn remembered<K: Eq + std::hash::Hash, V: Clone>(known: &mut HashMap<K, V>, key: K, work_out: impl FnOnce() -> V) -> V {
    if known.len() >= MOST_PROFILES {
        known.clear();
    }
    known.entry(key).or_insert_with(work_out).clone()
}

/// The part that goes out at once.
pub(crate) fn known(answer: &Answer) -> Known {
    let labels = answer.labels();
    let flows = answer.host_labels().decide(&labels).flows;
    let node = answer.node();
    Known {
        name: node.display_name(),
        group: answer.place().unwrap_or_default(),
        labels: labels
            .iter()
            .map(|(key, effective)| {
                let label = KnownLabel {
                    value: effective.value.as_str().to_owned(),
                    to_host: flows.contains(key),
                    origin: origin(answer, &effective.origin),
                };
                (key.as_str().to_owned(), label)
            })
            .collect(),
        annotations: answer
            .annotations()
            .iter()
            .map(|(key, effective)| (key.as_str().to_owned(), effective.value.as_str().to_owned()))
            .collect(),
        traits: answer.traits().names().map(|name| name.as_str().to_owned()).collect(),
        lifecycle: lifecycle(answer),
        ceiling: answer.mode().value,
        splay_s: answer.splay_seconds(),
        hold: answer.hold().map(|hold| (hold.end().map_or(u64::MAX, |end| end.0 / 1000), hold.reason.clone())),
        parked: answer.is_parked(),
        paused: answer.is_paused(),
        ready: answer
            .ready()
            .into_iter()
            .map(|(tag, probes)| (tag.as_str().to_owned(), canonical_json(&Value::Array(probes.to_vec()))))
            .collect(),
    }
}

/// Tags as they are sent.
pub(crate) fn texts_of(tags: &[TagName]) -> Vec<String> {
    tags.iter().map(|tag| tag.as_str().to_owned()).collect()
}

/// The part that goes out when it is released, its digest under one definition; of a node without a place, one
/// without tasks. `encoded` has the inputs that were encoded before.
pub(crate) fn task_set(
    answer: &Answer,
    profile: Option<Hash>,
    version: DigestVersion,
    encoded: impl Fn(&Reference, &Input) -> Option<InputValue>,
) -> TaskSet {
    let Some(set) = answer.task_set() else {
        return TaskSet { mode: answer.mode().value, ..TaskSet::default() };
    };
    TaskSet {
        group_revision: 0,
        digest_version: version.number(),
        task_digest: set.task_digest(version).0,
        mode: answer.mode().value,
        profile,
        tags: texts_of(set.tags()),
        primaries: texts_of(set.primary_tags()),
        left_out: set.left_out_ids().map(|(id, why)| (id.to_owned(), in_short(&why.to_string()).into())).collect(),
        inputs: set
            .each_input()
            .map(|(reference, input)| {
                let value = encoded(reference, input).unwrap_or_else(|| input.into());
                (reference.to_string(), value)
            })
            .collect(),
    }
}

/// Why a task is left out, as a host is told it: it is stored for each node, and conditions may be long.
pub(crate) fn in_short(why: &str) -> String {
    if why.chars().nth(MOST_WHY).is_none() {
        return why.to_owned();
    }
    why.chars().take(MOST_WHY).chain(['…']).collect()
}

/// The text by which both ends name a barrier.
pub(crate) fn barrier(profile: &Profile, barrier: &stemma_core::release::Barrier) -> Barrier {
    Barrier { task: profile.release.id(barrier.task).to_owned(), selector: barrier.to_string() }
}

/// The names of a profile's barriers.
fn barriers(profile: &desired::Profile) -> impl Iterator<Item = &Barrier> {
    profile.tasks.iter().flat_map(|task| &task.barriers)
}

fn sent(profile: &Profile) -> desired::Profile {
    let tasks = profile.tasks.iter().enumerate().map(|(at, ix)| {
        let compiled = profile.release.task(*ix);
        let before = profile.edges.iter().filter(|(_, after)| *after as usize == at).map(|(before, _)| *before);
        let waits = profile.waits.iter().filter(|(waiting, _)| *waiting as usize == at);
        ProfileTask {
            id: compiled.task.id.clone(),
            definition: sent_definition(&compiled.task),
            references: compiled.references.iter().map(ToString::to_string).collect(),
            after: before.map(|before| u16::try_from(before).expect("a release has at most 4096 tasks")).collect(),
            barriers: waits.map(|(_, wait)| barrier(profile, &profile.barriers[*wait as usize])).collect(),
        }
    });
    desired::Profile { tasks: tasks.collect() }
}

fn lifecycle(answer: &Answer) -> BTreeMap<String, u64> {
    let limited = answer.limits().each().into_iter().filter_map(|(field, limit)| match limit.value {
        Limit::Forever => None,
        Limit::Within(time) => Some((field.name().to_owned(), time.as_secs())),
    });
    limited.collect()
}

/// Where a label came from, in short.
fn origin(answer: &Answer, origin: &Origin) -> String {
    let at = |level: Level| {
        let fold = answer.fold();
        match level {
            Level::Node => format!("node {}", answer.node().display_name()),
            Level::NodeGroup => format!("nodegroup {}", answer.place().unwrap_or_default()),
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
        Origin::Level(level) => at(*level),
        Origin::Rule(rule) => format!("rule {rule}"),
        Origin::Host => "host".to_owned(),
        Origin::Default => "default".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x03_f07_why_a_task_is_left_out_is_told_and_stored_in_short() {
        let whole = format!("condition is false: {}", "é".repeat(180));
        assert_eq!(in_short(&whole), whole);
        assert_eq!(in_short(&format!("{whole}{}", "x".repeat(5_000))), format!("{whole}…"));
    }

    #[test]
    fn dropped_barriers_are_read_once_for_each_pair_of_profiles() {
        let barrier = |task: &str| Barrier { task: task.to_owned(), selector: "kind=node".to_owned() };
        let profile = |barriers: Vec<Barrier>| {
            let (id, definition) = (String::new(), String::new());
            let task = ProfileTask { id, definition, references: vec![], after: vec![], barriers };
            let encoded = Arc::new(EncodedProfile::new(&desired::Profile { tasks: vec![task] }));
            SentProfile { encoded, blobs: Arc::default() }
        };
        let (before, today) = (profile(vec![barrier("a"), barrier("b")]), profile(vec![barrier("b")]));
        let mut profiles = Profiles::default();
        let dropped = profiles.dropped_barriers(&before, &today);
        assert_eq!(*dropped, [barrier("a")]);
        assert!(Arc::ptr_eq(&dropped, &profiles.dropped_barriers(&before, &today)));
        assert!(profiles.dropped_barriers(&today, &before).is_empty());
    }
}
