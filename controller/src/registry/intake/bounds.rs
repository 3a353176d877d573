//! How much of what a host says is stored.
//!
//! A host may say anything, and as often as it likes: what it says must not fill the store, nor make a label, an input or a
//! sentence longer than what reads them takes.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::key::{MAX_KEY_NAME, MAX_KEY_PREFIX, MAX_VALUE};
use stemma_core::labels::MAX_EFFECTIVE;
use stemma_core::object::{FactMap, NotTaken, Observation, RefusedTraits, ReportedLabel, Timestamp, TraitSet};
use stemma_core::traits::{MAX_TRAITS, Trait, TraitNames};
use stemma_wire::error::quote;
use stemma_wire::message::PartDigest;
use stemma_wire::message::observed::{self, LocalState, Report, TaskResult};

use crate::records::reported::{ObservationRecord, ReportRecord, ResultsRecord, StoredResult};

/// How many of the traits that were not taken are named.
const MOST_NAMED: usize = 10;

/// How many tasks' results are kept of a node: as many as a release may have, whatever ids its agent names.
const MOST_RESULTS: usize = 4096;

/// The bytes of messages, outputs and diffs that are kept of a node: those of the newest results. What became of each task
/// is kept of all.
const MOST_RESULT_TEXTS: usize = 1024 * 1024;

/// The longest task id; no release has a longer one.
const MOST_TASK_ID: usize = 1024;

/// The longest sentence that a host says: a task's message, a finding, a reason. In bytes.
const MOST_SENTENCE: usize = 1024;

/// The longest key of a label, in bytes.
const MAX_KEY: usize = MAX_KEY_PREFIX + 1 + MAX_KEY_NAME;

/// The longest name of a place on a host at which a label stands, in bytes.
const MOST_SOURCE: usize = 512;

/// The stored form of an Observation. A fact that is no JSON text is left out: it cannot be an input. Of the traits the good ones
/// are taken, up to the limit of a source, standard names first. How much else was not taken is recorded, for traits also which:
/// one bad file on a host must not cost it all the rest.
pub(super) fn observation(
    at: Timestamp,
    digest: PartDigest,
    said: observed::Observation,
    known: &TraitNames,
) -> ObservationRecord {
    let (labels, refused_labels) = taken_labels(said.labels);
    let label_sources = labels.iter().map(|label| (label.key.to_string(), label.source.to_string())).collect();
    let (traits, refused_traits) = taken_traits(&said.traits, known);
    let (facts, refused_facts) = FactMap::take_texts(said.facts);
    let not_taken = NotTaken { facts: refused_facts, labels: refused_labels, traits: refused_traits };
    let labels = labels.into_iter().collect();
    let observation = Observation { facts, traits: traits.into(), labels, not_taken: not_taken.boxed() };
    ObservationRecord { at, digest, observation, label_sources }
}

/// The stored form of a Report: sentences are cut, and facts are bounded as an Observation's are.
pub(super) fn report(at: Timestamp, said: Report) -> ReportRecord {
    let sentence = |text| cut_to(text, MOST_SENTENCE);
    let LocalState { paused, hold, parked } = said.local;
    let local = LocalState {
        paused,
        hold: hold.map(|(until, reason)| (until, sentence(reason))),
        parked: parked.map(sentence),
    };
    let facts = FactMap::from_texts(said.facts);
    let facts = facts.iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
    let findings = said.findings.into_iter().map(sentence).collect();
    ReportRecord { at, report: Report { local, facts, findings, ..said } }
}

/// Adds results in their order; those that are stored already are dropped, as are those of tasks that no release can have.
pub(super) fn add_results(record: &mut ResultsRecord, at: Timestamp, results: Vec<TaskResult>) {
    for result in results {
        if result.sequence <= record.acknowledged {
            continue;
        }
        record.acknowledged = result.sequence;
        if result.task.len() > MOST_TASK_ID {
            continue;
        }
        let result = TaskResult { message: cut_to(result.message, MOST_SENTENCE), ..result };
        record.tasks.insert(result.task.clone(), StoredResult { at, result });
    }
    drop_surplus(record);
    drop_texts(record);
}

/// The bytes of what a result says.
pub(super) fn texts(result: &TaskResult) -> usize {
    result.message.len() + result.output.len() + result.diff.len()
}

/// Drops what the oldest results say, until the rest is as much as is kept.
fn drop_texts(record: &mut ResultsRecord) {
    let mut total: usize = record.tasks.values().map(|one| texts(&one.result)).sum();
    if total <= MOST_RESULT_TEXTS {
        return;
    }
    let mut oldest: Vec<_> = record.tasks.values_mut().map(|one| &mut one.result).collect();
    oldest.sort_unstable_by_key(|result| result.sequence);
    for result in oldest {
        if total <= MOST_RESULT_TEXTS {
            return;
        }
        total -= texts(result);
        (result.message, result.output, result.diff) = Default::default();
    }
}

/// Drops what is more than is kept: first results of other task sets than the newest, and of these the oldest.
fn drop_surplus(record: &mut ResultsRecord) {
    let surplus = record.tasks.len().saturating_sub(MOST_RESULTS);
    if surplus == 0 {
        return;
    }
    let newest = record.tasks.values().max_by_key(|one| one.result.sequence).map(|one| one.result.task_set);
    let mut all: Vec<_> = record
        .tasks
        .values()
        .map(|StoredResult { result, .. }| (Some(result.task_set) == newest, result.sequence, result.task.clone()))
        .collect();
    all.sort_unstable();
    for (_, _, task) in all.into_iter().take(surplus) {
        record.tasks.remove(&task);
    }
}

/// The labels that are taken, and how many are not. A key may be any text, and none is longer than the longest label's.
fn taken_labels(said: BTreeMap<String, observed::ReportedLabel>) -> (Vec<ReportedLabel>, u32) {
    let (mut total, mut refused) = (0, 0);
    let mut taken = Vec::new();
    for (key, observed::ReportedLabel { value, source }) in said {
        let bytes = key.len() + value.len();
        if key.len() > MAX_KEY || value.len() > MAX_VALUE || total + bytes > MAX_EFFECTIVE {
            refused += 1;
            continue;
        }
        total += bytes;
        taken.push(ReportedLabel { key: key.into(), value: value.into(), source: cut_to(source, MOST_SOURCE).into() });
    }
    (taken, refused)
}

/// The beginning of a text, at most so many bytes.
fn cut_to(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

fn taken_traits(said: &[String], known: &TraitNames) -> (TraitSet, RefusedTraits) {
    let mut good: BTreeSet<(bool, Trait)> = BTreeSet::new();
    let mut unknown: BTreeSet<&str> = BTreeSet::new();
    for name in said {
        match known.parse(name) {
            Ok(name) => drop(good.insert((name.is_custom(), name))),
            Err(_) => drop(unknown.insert(name)),
        }
    }
    let surplus = good.len().saturating_sub(MAX_TRAITS);
    let taken = good.into_iter().take(MAX_TRAITS).map(|(_, name)| name).collect();
    let refused = RefusedTraits {
        unknown: unknown.iter().take(MOST_NAMED).map(|name| quote(name).into()).collect(),
        unknown_count: unknown.len(),
        surplus,
    };
    (taken, refused)
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::observed::Outcome;

    use super::*;

    fn result(sequence: u64, task_set: u8, task: String) -> TaskResult {
        TaskResult {
            sequence,
            task_set: PartDigest([task_set; 32]),
            task,
            outcome: Outcome::Changed,
            message: String::new(),
            output: String::new(),
            diff: String::new(),
            duration_ms: 0,
        }
    }

    #[test]
    fn results_are_bounded_and_those_of_the_newest_task_set_go_last() {
        let mut record = ResultsRecord::default();
        add_results(&mut record, Timestamp(0), vec![result(1, 2, "kept".into())]);
        add_results(&mut record, Timestamp(0), (2..=4097).map(|n| result(n, 1, format!("old{n}"))).collect());
        assert_eq!(record.tasks.len(), 4096);
        assert!(!record.tasks.contains_key("kept"), "the only one of another task set than the newest");

        add_results(&mut record, Timestamp(0), (4098..=4100).map(|n| result(n, 3, format!("new{n}"))).collect());
        assert_eq!(record.tasks.len(), 4096);
        assert_eq!(record.acknowledged, 4100);
        let gone: Vec<_> = (2..=6).filter(|n| !record.tasks.contains_key(&format!("old{n}"))).collect();
        assert_eq!(gone, [2, 3, 4]);
        assert!((4098..=4100).all(|n| record.tasks.contains_key(&format!("new{n}"))));
    }
    #[test]
    fn s39_what_results_say_is_bounded_and_what_became_of_a_task_is_kept_of_all() {
        let mut record = ResultsRecord::default();
        let said = |n: u64| TaskResult { diff: "d".repeat(16384), ..result(n, 1, format!("t{n}")) };
        add_results(&mut record, Timestamp(0), (1..=70).map(said).collect());
        let kept: Vec<u64> =
            record.tasks.values().filter(|one| !one.result.diff.is_empty()).map(|one| one.result.sequence).collect();
        assert_eq!((record.tasks.len(), kept.len(), kept.iter().min()), (70, 64, Some(&7)), "a mebibyte, the newest");
        let long = TaskResult { message: "é".repeat(600), ..result(71, 1, "t71".into()) };
        add_results(&mut record, Timestamp(0), vec![long, result(72, 1, "x".repeat(1025))]);
        assert_eq!((record.acknowledged, record.tasks.len()), (72, 71), "no release has such a task");
        assert_eq!(record.tasks["t71"].result.message, "é".repeat(512));
    }

    #[test]
    fn s39_labels_and_reports_are_bounded() {
        let label = |bytes: usize| observed::ReportedLabel { value: "v".repeat(bytes), source: "s".repeat(600) };
        let labels = (0..20).map(|n| (format!("l{n:02}"), label(4096)));
        let labels = labels.chain([("long".to_owned(), label(4097)), ("k".repeat(318), label(1))]).collect();
        let said = observed::Observation { labels, ..observed::Observation::default() };
        let record = observation(Timestamp(0), PartDigest([0; 32]), said, &TraitNames::default());
        assert_eq!(record.observation.labels.len(), 15, "64 KiB together");
        let seven = NotTaken { labels: 7, ..NotTaken::default() };
        assert_eq!(record.observation.not_taken, seven.boxed());
        assert!(record.label_sources.values().all(|source| source.len() == 512));

        let long = "r".repeat(2000);
        let local = LocalState { paused: true, hold: Some((7, long.clone())), parked: Some(long.clone()) };
        let facts = [("up".to_owned(), "1".to_owned()), ("a.".repeat(99_999), "1".to_owned())].into();
        let said = Report { findings: vec![long.clone()], facts, local, ..Report::default() };
        let Report { findings, facts, local, .. } = report(Timestamp(0), said).report;
        assert_eq!(facts.len(), 1);
        let sizes = [findings[0].len(), local.hold.unwrap().1.len(), local.parked.unwrap().len()];
        assert_eq!(sizes, [1024; 3]);
    }
}
