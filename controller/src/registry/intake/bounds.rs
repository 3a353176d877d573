//! How much of what a host says is stored.
//!
//! A host may say anything, and as often as it likes: what it says must not fill the store, nor make a label, an input or a
//! sentence longer than what reads them takes.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::key::{MAX_KEY_NAME, MAX_KEY_PREFIX, MAX_VALUE};
use stemma_core::labels::{MAX_EFFECTIVE, MAX_KEYS};
use stemma_core::object::{
    FactMap, MAX_RESULT_TEXTS, MAX_RESULTS, MAX_SENTENCE, MAX_TASK_ID, NotTaken, Observation, RefusedTraits,
    ReportLeftOut, ReportedLabel, Timestamp, TraitSet,
};
use stemma_core::traits::{MAX_TRAITS, Trait, TraitNames};
use stemma_wire::error::quote;
use stemma_wire::message::PartDigest;
use stemma_wire::message::observed::{self, LocalState, Report, TaskResult};

use crate::records::reported::{ObservationRecord, ReportRecord, ResultsRecord, StoredResult};

/// How many of the traits that were not taken are named.
const MOST_NAMED: usize = 10;

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

/// The stored form of a Report: sentences are cut, and facts are bounded as an Observation's are. How much that leaves out is recorded.
pub(super) fn report(at: Timestamp, said: Report) -> ReportRecord {
    let mut texts = 0;
    let mut sentence = |text: String| {
        texts += u32::from(text.len() > MAX_SENTENCE);
        cut_to(text, MAX_SENTENCE)
    };
    let LocalState { paused, hold, parked } = said.local;
    let hold = hold.map(|(until, reason)| (until, sentence(reason)));
    let local = LocalState { paused, hold, parked: parked.map(&mut sentence) };
    let findings = said.findings.into_iter().map(sentence).collect();
    let (taken, left_out) = FactMap::take_texts(said.facts);
    let facts = taken.iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
    let left_out = ReportLeftOut { facts: left_out, texts, ..ReportLeftOut::default() };
    ReportRecord { at, report: Report { local, facts, findings, ..said }, left_out }
}

/// Adds results in their order. Those that are stored already are dropped. Those of tasks that no release can have are left out, and
/// counted until there are results of another task set.
pub(super) fn add_results(record: &mut ResultsRecord, at: Timestamp, results: Vec<TaskResult>) {
    let mut task_set = newest(record);
    for result in results {
        if result.sequence <= record.acknowledged {
            continue;
        }
        if task_set.replace(result.task_set).is_some_and(|before| before != result.task_set) {
            record.left_out = 0;
        }
        record.acknowledged = result.sequence;
        if result.task.len() > MAX_TASK_ID {
            record.left_out = record.left_out.saturating_add(1);
            continue;
        }
        let is_cut = result.message.len() > MAX_SENTENCE;
        let result = TaskResult { message: cut_to(result.message, MAX_SENTENCE), ..result };
        record.tasks.insert(result.task.clone(), StoredResult { at, result, is_cut });
    }
    drop_surplus(record);
    drop_texts(record);
}

/// The task set of the newest result.
fn newest(record: &ResultsRecord) -> Option<PartDigest> {
    record.tasks.values().max_by_key(|one| one.result.sequence).map(|one| one.result.task_set)
}

/// The bytes of what a result says.
pub(super) fn texts(result: &TaskResult) -> usize {
    result.message.len() + result.output.len() + result.diff.len()
}

/// Drops what the oldest results say, until the rest is as much as is kept.
fn drop_texts(record: &mut ResultsRecord) {
    let mut total: usize = record.tasks.values().map(|one| texts(&one.result)).sum();
    if total <= MAX_RESULT_TEXTS {
        return;
    }
    let mut oldest: Vec<_> = record.tasks.values_mut().filter(|one| texts(&one.result) > 0).collect();
    oldest.sort_unstable_by_key(|one| one.result.sequence);
    for StoredResult { result, is_cut, .. } in oldest {
        if total <= MAX_RESULT_TEXTS {
            return;
        }
        total -= texts(result);
        (result.message, result.output, result.diff) = Default::default();
        *is_cut = true;
    }
}

/// Drops what is more than is kept: first results of other task sets than the newest, and of these the oldest. Only those of the newest are
/// counted as left out: the others say nothing of what runs now.
fn drop_surplus(record: &mut ResultsRecord) {
    let surplus = record.tasks.len().saturating_sub(MAX_RESULTS);
    if surplus == 0 {
        return;
    }
    let newest = newest(record);
    let mut all: Vec<_> = record
        .tasks
        .values()
        .map(|StoredResult { result, .. }| (Some(result.task_set) == newest, result.sequence, result.task.clone()))
        .collect();
    all.sort_unstable();
    for (is_of_newest, _, task) in all.into_iter().take(surplus) {
        record.left_out = record.left_out.saturating_add(u32::from(is_of_newest));
        record.tasks.remove(&task);
    }
}

/// The labels that are taken, by their keys' order, and how many are not. A key may be any text, and none is longer than the longest
/// label's.
fn taken_labels(said: BTreeMap<String, observed::ReportedLabel>) -> (Vec<ReportedLabel>, u32) {
    let (mut total, mut refused) = (0, 0);
    let mut taken = Vec::new();
    for (key, observed::ReportedLabel { value, source }) in said {
        let bytes = key.len() + value.len();
        let is_too_long = key.len() > MAX_KEY || value.len() > MAX_VALUE;
        if is_too_long || taken.len() == MAX_KEYS || total + bytes > MAX_EFFECTIVE {
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
        assert_eq!(record.left_out, 0, "all of the newest task set are kept");
        let gone: Vec<_> = (2..=6).filter(|n| !record.tasks.contains_key(&format!("old{n}"))).collect();
        assert_eq!(gone, [2, 3, 4]);
        assert!((4098..=4100).all(|n| record.tasks.contains_key(&format!("new{n}"))));
    }

    #[test]
    fn x01_what_is_not_kept_of_results_is_counted_until_there_is_another_task_set() {
        let mut record = ResultsRecord::default();
        add_results(&mut record, Timestamp(0), (1..=4099).map(|n| result(n, 1, format!("t{n}"))).collect());
        add_results(&mut record, Timestamp(0), vec![result(4100, 1, "x".repeat(1025))]);
        let long = TaskResult { message: "m".repeat(1025), ..result(4101, 1, "t9".into()) };
        add_results(&mut record, Timestamp(0), vec![long]);
        let left_out = |results, texts| ReportLeftOut { results, texts, ..ReportLeftOut::default() };
        assert_eq!(record.left_out(), left_out(4, 1), "three beyond 4096, and one of a task that no release has");
        add_results(&mut record, Timestamp(0), vec![result(4102, 1, "t9".into())]);
        assert_eq!(record.left_out(), left_out(4, 0), "the task said something else since");
        add_results(&mut record, Timestamp(0), vec![result(4103, 2, "t9".into())]);
        assert_eq!(record.left_out(), left_out(0, 0));
    }

    #[test]
    fn s39_what_results_say_is_bounded_and_what_became_of_a_task_is_kept_of_all() {
        let mut record = ResultsRecord::default();
        let said = |n: u64| TaskResult { diff: "d".repeat(16384), ..result(n, 1, format!("t{n}")) };
        add_results(&mut record, Timestamp(0), (1..=70).map(said).collect());
        let kept: Vec<u64> =
            record.tasks.values().filter(|one| !one.result.diff.is_empty()).map(|one| one.result.sequence).collect();
        assert_eq!((record.tasks.len(), kept.len(), kept.iter().min()), (70, 64, Some(&7)), "a mebibyte, the newest");
        assert_eq!(record.left_out().texts, 6);
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
        let many = (0..MAX_KEYS + 9).map(|n| (format!("l{n:03}"), label(1))).collect();
        let said = observed::Observation { labels: many, ..observed::Observation::default() };
        let surplus = observation(Timestamp(0), PartDigest([0; 32]), said, &TraitNames::default()).observation;
        assert_eq!(surplus.labels.iter().map(|label| &*label.key).next_back(), Some("l255"));
        assert_eq!(
            (surplus.labels.len(), surplus.not_taken),
            (256, NotTaken { labels: 9, ..NotTaken::default() }.boxed())
        );
        let seven = NotTaken { labels: 7, ..NotTaken::default() };
        assert_eq!(record.observation.not_taken, seven.boxed());
        assert!(record.label_sources.values().all(|source| source.len() == 512));

        let long = "r".repeat(2000);
        let local = LocalState { paused: true, hold: Some((7, long.clone())), parked: Some(long.clone()) };
        let facts = [("up".to_owned(), "1".to_owned()), ("a.".repeat(99_999), "1".to_owned())].into();
        let said = Report { findings: vec![long.clone()], facts, local, ..Report::default() };
        let ReportRecord { report, left_out, .. } = report(Timestamp(0), said);
        let Report { findings, facts, local, .. } = report;
        assert_eq!(facts.len(), 1);
        assert_eq!(left_out, ReportLeftOut { facts: 1, texts: 3, ..ReportLeftOut::default() });
        let sizes = [findings[0].len(), local.hold.unwrap().1.len(), local.parked.unwrap().len()];
        assert_eq!(sizes, [1024; 3]);
    }
}
