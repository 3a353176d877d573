//! Limits what the reports of a host may store.
//!
//! A host may report anything, at any rate. Its reports must not fill the store. No label, input or sentence in a
//! report may be too long for its readers.

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

/// Maximum number of invalid trait names of a host that are stored. Other refused traits are only counted.
const MAX_LISTED_TRAITS: usize = 10;

/// Maximum length of a label key, in bytes.
const MAX_LABEL_KEY_BYTES: usize = MAX_KEY_PREFIX_BYTES + 1 + MAX_KEY_NAME_BYTES;

/// Maximum length of a label's source (the place on the host that the label comes from), in bytes.
const MAX_SOURCE_BYTES: usize = 512;

/// Returns the stored form of an Observation. A fact that is not a JSON text is dropped, because it cannot be an input.
/// Facts and labels over a limit are dropped too. Valid traits are accepted up to a maximum, standard traits before
/// custom ones. The record counts the dropped facts, labels and traits, and names some refused traits. The rest is
/// accepted, because one bad file on a host must not invalidate its whole Observation.
pub(super) fn bounded_observation(
    at: Timestamp,
    digest: PartDigest,
    host_observation: observed::Observation,
    site_traits: &TraitNames,
) -> ObservationRecord {
    let (labels, refused_labels) = accepted_labels(host_observation.labels);
    let label_sources = labels.iter().map(|label| (label.key.to_string(), label.source.to_string())).collect();
    let (traits, refused_traits) = accepted_traits(&host_observation.traits, site_traits);
    let (facts, refused_facts) = FactMap::from_texts_counting_dropped(host_observation.facts);
    let dropped_input = DroppedInput { facts: refused_facts, labels: refused_labels, traits: refused_traits };
    let labels = labels.into_iter().collect();
    // `not_taken` is `None` if nothing was dropped.
    let observation = Observation { facts, traits: traits.into(), labels, not_taken: dropped_input.into_option_box() };
    ObservationRecord { at, digest, observation, label_sources }
}

/// Returns the stored form of a Report. Findings and reasons are cut to a maximum length, and facts are limited as in
/// an Observation. The record counts what was dropped or cut.
pub(super) fn bounded_report(at: Timestamp, host_report: Report) -> ReportRecord {
    let mut cut_texts = 0;
    let mut cut_sentence = |text: String| {
        cut_texts += u32::from(text.len() > MAX_SENTENCE_BYTES);
        truncate(text, MAX_SENTENCE_BYTES)
    };
    let LocalState { paused, hold, parked } = host_report.local;
    let hold = hold.map(|(until, reason)| (until, cut_sentence(reason)));
    let local = LocalState { paused, hold, parked: parked.map(&mut cut_sentence) };
    let findings = host_report.findings.into_iter().map(cut_sentence).collect();
    let (accepted, refused_facts) = FactMap::from_texts_counting_dropped(host_report.facts);
    let facts = accepted.iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
    let left_out = DroppedReportCounts { facts: refused_facts, texts: cut_texts, ..DroppedReportCounts::default() };
    ReportRecord { at, report: Report { local, facts, findings, ..host_report }, left_out }
}

/// Adds results to a record. The results must be in the order of their sequence numbers: a result whose number is not
/// higher than that of every earlier result counts as already stored, and is ignored. Cuts long messages. Drops and
/// counts a result whose task id is longer than any release allows. The count of dropped results begins again with the
/// first result of another task set. Then drops the results and texts that exceed the limits of a record.
pub(super) fn add_results(record: &mut ResultsRecord, at: Timestamp, results: Vec<TaskResult>) {
    let mut task_set = newest_task_set(record);
    for result in results {
        if result.sequence <= record.acknowledged {
            continue;
        }
        if task_set.replace(result.task_set).is_some_and(|last_task_set| last_task_set != result.task_set) {
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

/// Returns the digest of the task set that the newest result belongs to, or `None` if there are no results.
fn newest_task_set(record: &ResultsRecord) -> Option<PartDigest> {
    record.tasks.values().max_by_key(|entry| entry.result.sequence).map(|newest| newest.result.task_set)
}

/// Drops message, output and diff of the oldest results, and marks these as cut, until the rest is within the limit.
fn drop_oldest_texts(record: &mut ResultsRecord) {
    let mut total: usize = record.tasks.values().map(|entry| entry.result.text_bytes()).sum();
    if total <= MAX_RESULT_TEXT_BYTES {
        return;
    }
    let mut oldest: Vec<_> = record.tasks.values_mut().filter(|entry| entry.result.text_bytes() > 0).collect();
    oldest.sort_unstable_by_key(|entry| entry.result.sequence);
    for StoredResult { result, is_cut, .. } in oldest {
        if total <= MAX_RESULT_TEXT_BYTES {
            return;
        }
        total -= result.text_bytes();
        (result.message, result.output, result.diff) = Default::default();
        *is_cut = true;
    }
}

/// Drops results over the maximum number: first those of task sets other than the newest, then the oldest. Only dropped
/// results of the newest task set are counted, because the others do not concern the tasks that the host runs now.
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
    for (is_newest_set, _, task) in results.into_iter().take(surplus) {
        record.left_out = record.left_out.saturating_add(u32::from(is_newest_set));
        record.tasks.remove(&task);
    }
}

/// Returns the accepted labels in the order of their keys, and the number of refused labels. A label is refused if its
/// key or value is too long, or if it exceeds the number or total size of a level's labels. A smaller label after it
/// may still be accepted. A long source of a label is cut. The syntax of a key is not checked.
fn accepted_labels(host_labels: BTreeMap<String, observed::ReportedLabel>) -> (Vec<ReportedLabel>, u32) {
    let (mut total_bytes, mut refused_count) = (0, 0);
    let mut accepted = Vec::new();
    for (key, observed::ReportedLabel { value, source }) in host_labels {
        let bytes = key.len() + value.len();
        let is_too_long = key.len() > MAX_LABEL_KEY_BYTES || value.len() > MAX_VALUE_BYTES;
        if is_too_long || accepted.len() == MAX_KEYS || total_bytes + bytes > MAX_EFFECTIVE_BYTES {
            refused_count += 1;
            continue;
        }
        total_bytes += bytes;
        accepted.push(ReportedLabel { key: key.into(), value: value.into(), source: truncate(source, MAX_SOURCE_BYTES).into() });
    }
    (accepted, refused_count)
}

/// Returns the beginning of a text, with at most `max_bytes` bytes. The text is cut between two characters.
fn truncate(mut text: String, max_bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(max_bytes));
    text
}

/// Returns the valid traits up to the maximum, standard traits before custom ones. Also returns the refused traits: the
/// names that are not traits (some of them and their number), and the number of valid traits over the maximum.
fn accepted_traits(names: &[String], site_traits: &TraitNames) -> (TraitSet, RefusedTraits) {
    let mut valid: BTreeSet<(bool, Trait)> = BTreeSet::new();
    let mut unknown: BTreeSet<&str> = BTreeSet::new();
    for name in names {
        match site_traits.parse(name) {
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

    /// Returns the result of a task, without texts. The digest of the task set consists of the byte `task_set`.
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

    /// A record has at most 4096 results. Results of older task sets are dropped first, then the oldest results.
    #[test]
    fn add_results_drops_newest_task_set_last_when_full() {
        let mut record = ResultsRecord::default();
        add_results(&mut record, Timestamp(0), vec![result(1, 2, "first".into())]);
        add_results(&mut record, Timestamp(0), (2..=4097).map(|n| result(n, 1, format!("old{n}"))).collect());
        assert_eq!(record.tasks.len(), 4096);
        assert!(!record.tasks.contains_key("first"), "its task set is not the newest");

        add_results(&mut record, Timestamp(0), (4098..=4100).map(|n| result(n, 3, format!("new{n}"))).collect());
        assert_eq!(record.tasks.len(), 4096);
        assert_eq!(record.acknowledged, 4100);
        assert_eq!(record.left_out, 0, "no result of the newest task set was dropped");
        let dropped: Vec<_> = (2..=6).filter(|n| !record.tasks.contains_key(&format!("old{n}"))).collect();
        assert_eq!(dropped, [2, 3, 4]);
        assert!((4098..=4100).all(|n| record.tasks.contains_key(&format!("new{n}"))));
    }

    /// A result is dropped if it is over the maximum of 4096, or if its task id is longer than 1024 bytes. A message
    /// longer than 1024 bytes is cut. The closure `left_out` gets the numbers of dropped results and cut texts.
    #[test]
    fn x01_add_results_counts_dropped_results_until_task_set_changes() {
        let mut record = ResultsRecord::default();
        add_results(&mut record, Timestamp(0), (1..=4099).map(|n| result(n, 1, format!("t{n}"))).collect());
        add_results(&mut record, Timestamp(0), vec![result(4100, 1, "x".repeat(1025))]);
        let long_result = TaskResult { message: "m".repeat(1025), ..result(4101, 1, "t9".into()) };
        add_results(&mut record, Timestamp(0), vec![long_result]);
        let left_out = |results, texts| DroppedReportCounts { results, texts, ..DroppedReportCounts::default() };
        assert_eq!(record.dropped_counts(), left_out(4, 1), "three results over 4096, and one with a long task id");
        add_results(&mut record, Timestamp(0), vec![result(4102, 1, "t9".into())]);
        assert_eq!(record.dropped_counts(), left_out(4, 0), "a later result of the task replaced the cut message");
        add_results(&mut record, Timestamp(0), vec![result(4103, 2, "t9".into())]);
        assert_eq!(record.dropped_counts(), left_out(0, 0));
    }

    /// The texts of all results together are limited to one mebibyte. Results without their texts remain.
    #[test]
    fn s39_add_results_drops_texts_and_keeps_outcomes_when_full() {
        let mut record = ResultsRecord::default();
        let result_with_diff = |n: u64| TaskResult { diff: "d".repeat(16384), ..result(n, 1, format!("t{n}")) };
        add_results(&mut record, Timestamp(0), (1..=70).map(result_with_diff).collect());
        let sequences_with_diff: Vec<u64> =
            record.tasks.values().filter(|entry| !entry.result.diff.is_empty()).map(|entry| entry.result.sequence).collect();
        assert_eq!(
            (record.tasks.len(), sequences_with_diff.len(), sequences_with_diff.iter().min()),
            (70, 64, Some(&7)),
            "the newest 64 diffs of 16 KiB are one mebibyte"
        );
        assert_eq!(record.dropped_counts().texts, 6);
        let long_result = TaskResult { message: "é".repeat(600), ..result(71, 1, "t71".into()) };
        add_results(&mut record, Timestamp(0), vec![long_result, result(72, 1, "x".repeat(1025))]);
        assert_eq!((record.acknowledged, record.tasks.len()), (72, 71), "result 72 is dropped, as its task id is too long");
        assert_eq!(record.tasks["t71"].result.message, "é".repeat(512));
    }

    /// A label value is limited to 4096 bytes, and all labels together to 64 KiB and 256 labels. Sentences of a Report
    /// are cut to 1024 bytes.
    #[test]
    fn s39_bounds_limit_labels_and_reports() {
        let label = |bytes: usize| observed::ReportedLabel { value: "v".repeat(bytes), source: "s".repeat(600) };
        let labels = (0..20).map(|n| (format!("l{n:02}"), label(4096)));
        let labels = labels.chain([("long".to_owned(), label(4097)), ("k".repeat(318), label(1))]).collect();
        let host_input = observed::Observation { labels, ..observed::Observation::default() };
        let record = bounded_observation(Timestamp(0), PartDigest([0; 32]), host_input, &TraitNames::default());
        assert_eq!(record.observation.labels.len(), 15, "with their keys, 16 labels of 4 KiB exceed 64 KiB");
        let many_labels = (0..MAX_KEYS + 9).map(|n| (format!("l{n:03}"), label(1))).collect();
        let host_input = observed::Observation { labels: many_labels, ..observed::Observation::default() };
        let surplus = bounded_observation(Timestamp(0), PartDigest([0; 32]), host_input, &TraitNames::default()).observation;
        assert_eq!(surplus.labels.iter().map(|label| &*label.key).next_back(), Some("l255"));
        assert_eq!(
            (surplus.labels.len(), surplus.not_taken),
            (256, DroppedInput { labels: 9, ..DroppedInput::default() }.into_option_box())
        );
        // Five labels exceed the total size. One has a long value, and one has a long key.
        let seven_labels = DroppedInput { labels: 7, ..DroppedInput::default() };
        assert_eq!(record.observation.not_taken, seven_labels.into_option_box());
        assert!(record.label_sources.values().all(|source| source.len() == 512));

        let long_text = "r".repeat(2000);
        let local = LocalState { paused: true, hold: Some((7, long_text.clone())), parked: Some(long_text.clone()) };
        let facts = [("up".to_owned(), "1".to_owned()), ("a.".repeat(99_999), "1".to_owned())].into();
        let host_input = Report { findings: vec![long_text.clone()], facts, local, ..Report::default() };
        let ReportRecord { report, left_out, .. } = bounded_report(Timestamp(0), host_input);
        let Report { findings, facts, local, .. } = report;
        assert_eq!(facts.len(), 1);
        assert_eq!(left_out, DroppedReportCounts { facts: 1, texts: 3, ..DroppedReportCounts::default() });
        let sizes = [findings[0].len(), local.hold.unwrap().1.len(), local.parked.unwrap().len()];
        assert_eq!(sizes, [1024; 3]);
    }
}
