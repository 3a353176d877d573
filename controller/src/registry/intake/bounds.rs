//! Limits what a host may store.
//!
//! A host may report anything, at any rate. Its reports must not fill the store, and no label, input or sentence in
//! them may be too long for those who read it.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::key::{MAX_KEY_NAME_BYTES, MAX_KEY_PREFIX_BYTES, MAX_VALUE_BYTES};
use stemma_core::labels::{MAX_EFFECTIVE_BYTES, MAX_KEYS};
use stemma_core::object::{
    DroppedInput, DroppedReportCounts, FactMap, MAX_RESULT_TEXT_BYTES, MAX_RESULTS, MAX_SENTENCE_BYTES, MAX_TASK_ID_BYTES,
    Observation, RefusedTraits, ReportedLabel, Timestamp, TraitSet,
};
use stemma_core::traits::{MAX_TRAITS, Trait, TraitNames};
use stemma_wire::error::quote;
use stemma_wire::message::PartDigest;
use stemma_wire::message::observed::{self, LocalState, Report, TaskResult};

use crate::records::reported::{ObservationRecord, ReportRecord, ResultsRecord, StoredResult};

/// Maximum number of refused traits whose names are stored.
const MAX_LISTED_TRAITS: usize = 10;

/// Maximum length of a label key, in bytes.
const MAX_LABEL_KEY_BYTES: usize = MAX_KEY_PREFIX_BYTES + 1 + MAX_KEY_NAME_BYTES;

/// Maximum length of a label's source, its place on the host, in bytes.
const MAX_SOURCE_BYTES: usize = 512;

/// Returns the stored form of an Observation. A fact that is not a JSON text is dropped, because it cannot be an input.
/// Valid traits are accepted up to the maximum of a source, standard traits before custom ones. The numbers of dropped
/// facts, labels and traits are recorded, and the names of some refused traits. The rest is accepted, because one bad
/// file on a host must not invalidate it.
pub(super) fn bounded_observation(
    at: Timestamp,
    digest: PartDigest,
    reported: observed::Observation,
    known: &TraitNames,
) -> ObservationRecord {
    let (labels, refused_labels) = accepted_labels(reported.labels);
    let label_sources = labels.iter().map(|label| (label.key.to_string(), label.source.to_string())).collect();
    let (traits, refused_traits) = accepted_traits(&reported.traits, known);
    let (facts, refused_facts) = FactMap::from_texts_counting_dropped(reported.facts);
    let dropped = DroppedInput { facts: refused_facts, labels: refused_labels, traits: refused_traits };
    let labels = labels.into_iter().collect();
    let observation = Observation { facts, traits: traits.into(), labels, not_taken: dropped.into_option_box() };
    ObservationRecord { at, digest, observation, label_sources }
}

/// Returns the stored form of a Report. Sentences are truncated, and facts are limited as in an Observation. The amount
/// that was dropped is recorded.
pub(super) fn bounded_report(at: Timestamp, reported: Report) -> ReportRecord {
    let mut texts = 0;
    let mut sentence = |text: String| {
        texts += u32::from(text.len() > MAX_SENTENCE_BYTES);
        truncate(text, MAX_SENTENCE_BYTES)
    };
    let LocalState { paused, hold, parked } = reported.local;
    let hold = hold.map(|(until, reason)| (until, sentence(reason)));
    let local = LocalState { paused, hold, parked: parked.map(&mut sentence) };
    let findings = reported.findings.into_iter().map(sentence).collect();
    let (accepted, refused_facts) = FactMap::from_texts_counting_dropped(reported.facts);
    let facts = accepted.iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
    let left_out = DroppedReportCounts { facts: refused_facts, texts, ..DroppedReportCounts::default() };
    ReportRecord { at, report: Report { local, facts, findings, ..reported }, left_out }
}

/// Adds results in their order. Results that are already stored are ignored. A result is dropped and counted if its
/// task id is longer than that of any release. The count begins again with the first result of another task set.
pub(super) fn add_results(record: &mut ResultsRecord, at: Timestamp, results: Vec<TaskResult>) {
    let mut task_set = newest_task_set(record);
    for result in results {
        if result.sequence <= record.acknowledged {
            continue;
        }
        if task_set.replace(result.task_set).is_some_and(|before| before != result.task_set) {
            record.left_out = 0;
        }
        record.acknowledged = result.sequence;
        if result.task.len() > MAX_TASK_ID_BYTES {
            record.left_out = record.left_out.saturating_add(1);
            continue;
        }
        let is_cut = result.message.len() > MAX_SENTENCE_BYTES;
        let result = TaskResult { message: truncate(result.message, MAX_SENTENCE_BYTES), ..result };
        record.tasks.insert(result.task.clone(), StoredResult { at, result, is_cut });
    }
    drop_surplus_results(record);
    drop_oldest_texts(record);
}

/// Returns the task set of the newest result.
fn newest_task_set(record: &ResultsRecord) -> Option<PartDigest> {
    record.tasks.values().max_by_key(|entry| entry.result.sequence).map(|one| one.result.task_set)
}

/// Returns the size of a result's texts, in bytes.
pub(super) fn text_bytes(result: &TaskResult) -> usize {
    result.message.len() + result.output.len() + result.diff.len()
}

/// Drops the texts (message, output, diff) of the oldest results until the remaining texts are within the limit.
fn drop_oldest_texts(record: &mut ResultsRecord) {
    let mut total: usize = record.tasks.values().map(|entry| text_bytes(&entry.result)).sum();
    if total <= MAX_RESULT_TEXT_BYTES {
        return;
    }
    let mut oldest: Vec<_> = record.tasks.values_mut().filter(|entry| text_bytes(&entry.result) > 0).collect();
    oldest.sort_unstable_by_key(|one| one.result.sequence);
    for StoredResult { result, is_cut, .. } in oldest {
        if total <= MAX_RESULT_TEXT_BYTES {
            return;
        }
        total -= text_bytes(result);
        (result.message, result.output, result.diff) = Default::default();
        *is_cut = true;
    }
}

/// Drops results over the limit: first those of task sets other than the newest, then the oldest. Only results of the
/// newest task set are counted as dropped, because the others do not concern what runs now.
fn drop_surplus_results(record: &mut ResultsRecord) {
    let surplus = record.tasks.len().saturating_sub(MAX_RESULTS);
    if surplus == 0 {
        return;
    }
    let newest = newest_task_set(record);
    let mut results: Vec<_> = record
        .tasks
        .values()
        .map(|StoredResult { result, .. }| (Some(result.task_set) == newest, result.sequence, result.task.clone()))
        .collect();
    results.sort_unstable();
    for (is_of_newest, _, task) in results.into_iter().take(surplus) {
        record.left_out = record.left_out.saturating_add(u32::from(is_of_newest));
        record.tasks.remove(&task);
    }
}

/// Returns the accepted labels in the order of their keys, and the number of refused ones. A host may send any text as
/// key. A key is accepted if it is no longer than the longest valid label key.
fn accepted_labels(reported: BTreeMap<String, observed::ReportedLabel>) -> (Vec<ReportedLabel>, u32) {
    let (mut total, mut refused) = (0, 0);
    let mut accepted = Vec::new();
    for (key, observed::ReportedLabel { value, source }) in reported {
        let bytes = key.len() + value.len();
        let is_too_long = key.len() > MAX_LABEL_KEY_BYTES || value.len() > MAX_VALUE_BYTES;
        if is_too_long || accepted.len() == MAX_KEYS || total + bytes > MAX_EFFECTIVE_BYTES {
            refused += 1;
            continue;
        }
        total += bytes;
        accepted.push(ReportedLabel { key: key.into(), value: value.into(), source: truncate(source, MAX_SOURCE_BYTES).into() });
    }
    (accepted, refused)
}

/// Returns the beginning of a text, with at most this number of bytes.
fn truncate(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// Returns the valid traits up to the maximum, standard traits before custom ones. Also returns the refused traits: the
/// unknown ones, and the number over the maximum.
fn accepted_traits(names: &[String], known: &TraitNames) -> (TraitSet, RefusedTraits) {
    let mut valid: BTreeSet<(bool, Trait)> = BTreeSet::new();
    let mut unknown: BTreeSet<&str> = BTreeSet::new();
    for name in names {
        match known.parse(name) {
            Ok(name) => drop(valid.insert((name.is_custom(), name))),
            Err(_) => drop(unknown.insert(name)),
        }
    }
    let surplus = valid.len().saturating_sub(MAX_TRAITS);
    let accepted = valid.into_iter().take(MAX_TRAITS).map(|(_, name)| name).collect();
    let refused = RefusedTraits {
        unknown: unknown.iter().take(MAX_LISTED_TRAITS).map(|name| quote(name).into()).collect(),
        unknown_count: unknown.len(),
        surplus,
    };
    (accepted, refused)
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
    fn add_results_drops_newest_task_set_last_when_full() {
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
    fn x01_add_results_counts_dropped_results_until_task_set_changes() {
        let mut record = ResultsRecord::default();
        add_results(&mut record, Timestamp(0), (1..=4099).map(|n| result(n, 1, format!("t{n}"))).collect());
        add_results(&mut record, Timestamp(0), vec![result(4100, 1, "x".repeat(1025))]);
        let long = TaskResult { message: "m".repeat(1025), ..result(4101, 1, "t9".into()) };
        add_results(&mut record, Timestamp(0), vec![long]);
        let left_out = |results, texts| DroppedReportCounts { results, texts, ..DroppedReportCounts::default() };
        assert_eq!(record.dropped_counts(), left_out(4, 1), "three beyond 4096, and one of a task that no release has");
        add_results(&mut record, Timestamp(0), vec![result(4102, 1, "t9".into())]);
        assert_eq!(record.dropped_counts(), left_out(4, 0), "the task said something else since");
        add_results(&mut record, Timestamp(0), vec![result(4103, 2, "t9".into())]);
        assert_eq!(record.dropped_counts(), left_out(0, 0));
    }

    #[test]
    fn s39_add_results_drops_texts_and_keeps_outcomes_when_full() {
        let mut record = ResultsRecord::default();
        let said = |n: u64| TaskResult { diff: "d".repeat(16384), ..result(n, 1, format!("t{n}")) };
        add_results(&mut record, Timestamp(0), (1..=70).map(said).collect());
        let kept: Vec<u64> =
            record.tasks.values().filter(|one| !one.result.diff.is_empty()).map(|one| one.result.sequence).collect();
        assert_eq!((record.tasks.len(), kept.len(), kept.iter().min()), (70, 64, Some(&7)), "a mebibyte, the newest");
        assert_eq!(record.dropped_counts().texts, 6);
        let long = TaskResult { message: "é".repeat(600), ..result(71, 1, "t71".into()) };
        add_results(&mut record, Timestamp(0), vec![long, result(72, 1, "x".repeat(1025))]);
        assert_eq!((record.acknowledged, record.tasks.len()), (72, 71), "no release has such a task");
        assert_eq!(record.tasks["t71"].result.message, "é".repeat(512));
    }

    #[test]
    fn s39_bounds_limit_labels_and_reports() {
        let label = |bytes: usize| observed::ReportedLabel { value: "v".repeat(bytes), source: "s".repeat(600) };
        let labels = (0..20).map(|n| (format!("l{n:02}"), label(4096)));
        let labels = labels.chain([("long".to_owned(), label(4097)), ("k".repeat(318), label(1))]).collect();
        let said = observed::Observation { labels, ..observed::Observation::default() };
        let record = bounded_observation(Timestamp(0), PartDigest([0; 32]), said, &TraitNames::default());
        assert_eq!(record.observation.labels.len(), 15, "64 KiB together");
        let many = (0..MAX_KEYS + 9).map(|n| (format!("l{n:03}"), label(1))).collect();
        let said = observed::Observation { labels: many, ..observed::Observation::default() };
        let surplus = bounded_observation(Timestamp(0), PartDigest([0; 32]), said, &TraitNames::default()).observation;
        assert_eq!(surplus.labels.iter().map(|label| &*label.key).next_back(), Some("l255"));
        assert_eq!(
            (surplus.labels.len(), surplus.not_taken),
            (256, DroppedInput { labels: 9, ..DroppedInput::default() }.into_option_box())
        );
        let seven = DroppedInput { labels: 7, ..DroppedInput::default() };
        assert_eq!(record.observation.not_taken, seven.into_option_box());
        assert!(record.label_sources.values().all(|source| source.len() == 512));

        let long = "r".repeat(2000);
        let local = LocalState { paused: true, hold: Some((7, long.clone())), parked: Some(long.clone()) };
        let facts = [("up".to_owned(), "1".to_owned()), ("a.".repeat(99_999), "1".to_owned())].into();
        let said = Report { findings: vec![long.clone()], facts, local, ..Report::default() };
        let ReportRecord { report, left_out, .. } = bounded_report(Timestamp(0), said);
        let Report { findings, facts, local, .. } = report;
        assert_eq!(facts.len(), 1);
        assert_eq!(left_out, DroppedReportCounts { facts: 1, texts: 3, ..DroppedReportCounts::default() });
        let sizes = [findings[0].len(), local.hold.unwrap().1.len(), local.parked.unwrap().len()];
        assert_eq!(sizes, [1024; 3]);
    }
}
