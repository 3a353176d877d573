//! The findings about one node.

use std::fmt::Display;

use super::primary::primary_parked;
use crate::epoch::{EpochHistory, HostRevisions};
use crate::finding::{Finding, MAX_NAMES, Rule, TopFindings, first_error_except, join_first, rule, shorten};
use crate::fleet::Fleet;
use crate::input::MAX_PATH_KEYS;
use crate::inspection::{NoteKind, RuleNote};
use crate::key::MAX_VALUE_BYTES;
use crate::labels::{self, Labels, MAX_EFFECTIVE_BYTES, MAX_KEYS};
use crate::name::ReleaseRef;
use crate::object::{
    DroppedInput, DroppedReportCounts, MAX_FACT_PATH_BYTES, MAX_FACT_VALUE_BYTES, MAX_FACTS_BYTES, MAX_RESULT_TEXT_BYTES,
    MAX_RESULTS, MAX_SENTENCE_BYTES, MAX_TASK_ID_BYTES, Node, NodeId, RefusedTraits, Timestamp,
};
use crate::requirement::UnmetRequirement;
use crate::resolve::{Resolution, ResolveCache, ResolvedNode, resolve_node};
use crate::status::{CleanUpReport, CleanUpState, OrphanedObject, Orphans, RebootReport, StuckAgent, parked_by};
use crate::traits::{MAX_TRAIT_CHARS, MAX_TRAITS};
use crate::unimplemented;

/// Returns a finding of a rule about a node.
fn node_finding(rule: Rule, node: &Node, message: String) -> Finding {
    Finding::new(rule, format!("node/{}", node.display_name()), message)
}

/// Returns the finding that a node's desired state is too large to be sent.
pub fn too_large(node: &Node, error: &impl Display) -> Finding {
    let message = format!("{error}: its host keeps what it has; make labels, annotations or parameters smaller");
    node_finding(rule::DESIRED_TOO_LARGE, node, message)
}

/// Returns the finding that two hosts, at these addresses, check in with a node's identity.
pub fn duplicate_host(node: &Node, [first_address, second_address]: [impl Display; 2]) -> Finding {
    let message = format!(
        "two hosts check in with its identity, from {first_address} and {second_address}: a disk or container was copied, and each takes the other's place; \
         stop the agent of the copy, remove its state, and let it join as a node of its own"
    );
    node_finding(rule::IDENTITY_DOUBLED, node, message)
}

/// Returns the finding that a node's host has a state that this store never sent, or a state of another store. Nothing
/// is sent to such a host. `head` is the current revision of the store.
pub fn host_ahead(node: &Node, host: HostRevisions, epochs: &EpochHistory, head: u64) -> Finding {
    node_finding(rule::HOST_AHEAD, node, epochs.not_sent_reason(host, head))
}

/// Returns the finding that nothing is sent to any host, because the store was restored from a backup and waits for an
/// admin to resume the fleet. `None` if the store does not wait.
pub fn fleet_waiting(node: &Node, epochs: &EpochHistory) -> Option<Finding> {
    epochs.waiting_reason().map(|reason| node_finding(rule::FLEET_WAITING, node, reason))
}

/// Returns the finding that a node's host has not checked in since the present epoch of the store began. A new epoch
/// begins after the store was restored from a backup, so another copy of the store may have sent the host a later
/// state.
pub fn host_awaited(node: &Node) -> Finding {
    let message = "its host has not checked in since the present epoch of the store began: what it runs is not known until it checks in; from then on \
                   it follows this store";
    node_finding(rule::HOST_AWAITED, node, message.to_owned())
}

/// Returns the finding that a part of the host's last report was refused. The same part of an earlier report stays
/// stored.
pub fn report_refused(node: &Node, part: &str, reason: &str) -> Finding {
    let message = format!(
        "the controller refused what its host reported last ({part}): {reason}; the node is shown as reported before, until the host reports \
         something else"
    );
    node_finding(rule::REPORT_REFUSED, node, message)
}

/// Returns the finding that a part of the host's last report is not stored yet. The host retains the part and sends it
/// again.
pub fn report_waiting(node: &Node, part: &str, reason: &str) -> Finding {
    let message = format!(
        "the controller has not stored yet what its host reported last ({part}): {reason}; the host keeps it and sends it again, and the node \
         is shown as reported before until then"
    );
    node_finding(rule::REPORT_WAITING, node, message)
}

/// Returns the finding that a part of a host's last report about itself and its tasks was dropped. `None` if nothing
/// was dropped.
pub fn report_dropped(node: &Node, counts: DroppedReportCounts) -> Option<Finding> {
    let DroppedReportCounts { facts, results, texts } = counts;
    let parts = [
        (facts, dropped_facts_text(facts)),
        (
            results,
            format!(
                "{results} results of tasks (at most {MAX_RESULTS} are stored; a task's id has at most {MAX_TASK_ID_BYTES} bytes)"
            ),
        ),
        (
            texts,
            format!(
                "a part of {texts} texts (a sentence has at most {MAX_SENTENCE_BYTES} bytes, all messages of its tasks together \
                 {MAX_RESULT_TEXT_BYTES})"
            ),
        ),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
    let message = format!("its host reports more than is stored; dropped: {}", parts.join("; "));
    (!parts.is_empty()).then(|| node_finding(rule::REPORT_LEFT_OUT, node, message))
}

/// Returns the finding about the sentences in a host's report about what the host could not use or do. `None` if there
/// are no such sentences.
///
/// The finding has the number of sentences and the first sentence. Their content is not interpreted, because the
/// wording differs between versions of the agent.
pub fn report_findings(node: &Node, reported: &[&str]) -> Option<Finding> {
    let first = shorten(reported.first()?);
    let count = reported.len();
    let message = format!(
        "its host reports findings of its own, about what it could not use or do: {count}; the first: {first}; all of them are in its report \
         (GET /v1/nodes/{}/report) and in `stemma-agent status` there",
        node.display_name()
    );
    Some(node_finding(rule::REPORT_FINDINGS, node, message))
}

/// Returns the finding that a node's agent is stuck, with the reason that the agent reports.
pub fn host_stuck(node: &Node, StuckAgent { reason, can_run_tasks }: &StuckAgent) -> Finding {
    let problem = if *can_run_tasks {
        "its agent cannot write all of what services and people read on its host, and its tasks run on"
    } else {
        "its agent cannot store or apply its desired state, and begins no task"
    };
    let message = format!("{problem}: {}", shorten(reason));
    node_finding(rule::HOST_STUCK, node, message)
}

/// Returns the finding that tasks of a node ask for a reboot of its host, or that the reboot which an operator began has
/// not happened.
pub fn reboot_wanted(node: &Node, report: &RebootReport) -> Finding {
    let name = node.display_name();
    let mut parts: Vec<String> = report.wait_text(&name).into_iter().collect();
    parts.extend(report.tasks.first().map(|task| format!("the reason: {}", shorten(&task.reason))));
    parts.extend(report.problem.as_ref().map(|problem| format!("the last reboot has not happened: {}", shorten(problem))));
    node_finding(rule::REBOOT_WANTED, node, parts.join("; "))
}

/// Returns the findings about what a node's tasks left on its host: one for each listed object, one for those that are not
/// listed, and one for each clean-up that has yet to succeed.
pub fn orphans(node: &Node, orphans: &Orphans) -> Vec<Finding> {
    let to_finding = |orphan: &OrphanedObject| {
        let (task, object) = (shorten(&orphan.task), shorten(&orphan.object_text()));
        let secret = if orphan.is_secret { " and may hold a secret" } else { "" };
        let advice = match &orphan.kept {
            Some(reason) => format!("remove_orphans does not remove it: {}", shorten(reason)),
            None if orphan.kind == "file" => {
                "nothing removes it automatically; a task `file` with `absent: true` does, or `remove_orphans` of the nodegroup"
                    .to_owned()
            }
            None => "nothing removes it automatically".to_owned(),
        };
        let message = format!("task {task} no longer manages {object}, which it left and which still exists{secret}: {advice}");
        node_finding(rule::TASK_ORPHANED, node, message)
    };
    let more = (orphans.unlisted_count > 0).then(|| {
        let message = format!("{} more objects that tasks left and that no task manages now still exist", orphans.unlisted_count);
        node_finding(rule::TASK_ORPHANED, node, message)
    });
    let clean_ups = orphans.clean_ups.iter().filter_map(|clean_up| clean_up_finding(node, clean_up));
    orphans.listed.iter().map(to_finding).chain(more).chain(clean_ups).collect()
}

/// Returns the finding about a clean-up that has not succeeded. `None` if it has.
fn clean_up_finding(node: &Node, clean_up: &CleanUpReport) -> Option<Finding> {
    let (task, on_unassign) = (shorten(&clean_up.task), shorten(&clean_up.on_unassign));
    let run = match clean_up.state {
        CleanUpState::Succeeded => return None,
        CleanUpState::Waiting => "has not run yet".to_owned(),
        CleanUpState::Failed => format!("failed, and the host tries again: {}", shorten(&clean_up.message)),
    };
    let message = format!("task {task} is no longer placed on it, and {on_unassign}, which it names in on_unassign, {run}");
    Some(node_finding(rule::TASK_UNASSIGN, node, message))
}

/// Returns the finding that the record of a task set's release to a node is not stored. Either the store can never
/// accept the record, or the records of the node's cluster would become too large.
pub fn release_refused(node: &Node, reason: &str) -> Finding {
    let message = format!("the record of its next task set is not stored, and its host keeps what it has: {reason}");
    node_finding(rule::RELEASE_REFUSED, node, message)
}

/// Returns the finding that a stored release does not compile.
pub fn release_broken(name: &ReleaseRef, reason: &str) -> Finding {
    let text = format!("it is stored and does not compile: {reason}; hosts that need it stay as they are until it is corrected");
    Finding::new(rule::RELEASE_BROKEN, format!("release/{name}"), text)
}

/// Returns the requirements that a node does not meet after a change, and that it met or did not have before.
///
/// No task set is resolved, because a change may affect every node, and the cache has the task sets of only one state
/// of the fleet.
pub fn newly_unmet(fleet_before: &Fleet, fleet_after: &Fleet, id: NodeId) -> Vec<UnmetRequirement> {
    let unmet_in = |fleet: &Fleet| fleet.node_view(id).map(|view| view.unmet_requirements()).unwrap_or_default();
    let mut unmet_after = unmet_in(fleet_after);
    if !unmet_after.is_empty() {
        let unmet_before = unmet_in(fleet_before);
        unmet_after.retain(|requirement| !unmet_before.contains(requirement));
    }
    unmet_after
}

impl UnmetRequirement {
    /// Returns the finding about a node that does not meet the requirement.
    pub fn finding(&self, node: &Node) -> Finding {
        node_finding(rule::REQUIREMENT_UNMET, node, self.node_message())
    }

    /// Returns the message that a node does not meet the requirement, with the actual value of the node.
    fn node_message(&self) -> String {
        format!("{self}: {}", self.actual)
    }

    /// Returns the message that these nodes do not meet the requirement, and the effect. For a single node, the message
    /// has the actual value. Several nodes may have different values, so their values are only in the finding of each
    /// node.
    pub fn message(&self, nodes: &[String]) -> String {
        let names = join_first(nodes.iter().map(String::as_str), MAX_NAMES);
        let actual = if nodes.len() == 1 { format!(" ({})", self.actual) } else { String::new() };
        format!("{self} by {names}{actual}: the next task set is withheld until it is met")
    }
}

/// Returns one message for each variable of `labels.env` that several of these labels would be. An agent writes this
/// file of environment variables from the labels of its node.
pub(super) fn label_collisions(labels: &Labels) -> Vec<String> {
    let collisions = labels::colliding_keys(labels.iter().map(|(key, _)| key.as_str()));
    let message = |(variable, keys): (String, Vec<&str>)| {
        format!("labels {} would all be {variable}: none of them is in labels.env; rename all but one", keys.join(", "))
    };
    collisions.into_iter().map(message).collect()
}

/// Returns the findings about labels of these nodes that would be the same variable of `labels.env`. Omits those that
/// existed before a change. The number of findings is limited by [`TopFindings`].
pub fn newly_colliding(fleet_before: &Fleet, fleet_after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let labels_of = |fleet: &Fleet, id| fleet.node_view(id).map(|view| view.labels()).unwrap_or_default();
    let mut findings = TopFindings::<NodeId>::default();
    // Nodes without own labels share the map of their group, so a map that was checked for the last node is not checked
    // again.
    // `last_checked` has the labels that were checked last, and the messages about them.
    let mut last_checked = (Labels::default(), Vec::new());
    for id in nodes {
        let labels = labels_of(fleet_after, id);
        if !labels.shares_data_with(&last_checked.0) {
            last_checked = (labels.clone(), label_collisions(&labels));
        }
        if last_checked.1.is_empty() {
            continue;
        }
        let (mut collisions, old_collisions) = (last_checked.1.clone(), label_collisions(&labels_of(fleet_before, id)));
        collisions.retain(|message| !old_collisions.contains(message));
        let Some(node) = fleet_after.node(id) else { continue };
        findings.extend(collisions.into_iter().map(|message| node_finding(rule::LABEL_VARIABLE, node, message)));
    }
    findings.into_list("write")
}

/// Returns the findings about nodes that a change of inspection rules causes. Resolves only the nodes for which the
/// rules give another result. A requirement that was unmet before is not new, even if the node has another value now.
/// The number of findings is limited by [`TopFindings`].
pub fn new_rule_findings(
    fleet_before: &Fleet,
    fleet_after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut new_findings = TopFindings::<NodeId>::default();
    if fleet_before.rules().has_same_effects(fleet_after.rules()) {
        return Vec::new();
    }
    for node in nodes.filter(|node| fleet_before.has_rule_changes(fleet_after, *node)) {
        let findings_in = |fleet| {
            let resolution = resolve_node(fleet, cache, node);
            resolution.resolved_node().map(|found| (found.findings(), found.unmet_requirements().to_vec())).unwrap_or_default()
        };
        let (mut old_findings, unmet_before) = findings_in(fleet_before);
        let (findings, unmet) = findings_in(fleet_after);
        if let Some(node) = fleet_after.node(node) {
            let still_unmet = unmet.iter().filter(|requirement| unmet_before.contains(requirement));
            old_findings.extend(still_unmet.map(|requirement| requirement.finding(node)));
        }
        new_findings.extend(findings.into_iter().filter(|finding| !old_findings.contains(finding)));
    }
    new_findings.into_list("inspectionrule")
}

impl Resolution {
    /// Returns whether the findings about the node include an error.
    pub fn has_error(&self) -> bool {
        self.has_error_except(&[])
    }

    /// Returns whether the findings about the node include an error of a rule that is not in `rules`.
    pub fn has_error_except(&self, rules: &[Rule]) -> bool {
        match self {
            Self::Complete(node) => node.has_error_except(rules),
            // Each missing object is an error.
            Self::Incomplete(missing) => !missing.is_empty(),
        }
    }

    /// Returns the findings about the node that do not depend on the time: those of the resolved node, or one for each
    /// object that is missing to resolve it.
    pub fn findings(&self, node: &Node) -> Vec<Finding> {
        match self {
            Self::Complete(resolved_node) => resolved_node.findings(),
            Self::Incomplete(missing) => {
                missing.iter().map(|item| node_finding(rule::NODE_INCOMPLETE, node, item.to_string())).collect()
            }
        }
    }

    /// Returns why the node cannot be deployed through Ironic's API. The reasons are traits that its instance (the
    /// allocated use of the host) requires and the node lacks, unmet requirements of its group, or missing objects
    /// above the node. `None` if there is no such reason.
    pub fn unusable_reason(&self) -> Option<String> {
        let reasons: Vec<String> = match self {
            Self::Complete(node) => {
                let missing_traits = node.check_instance_traits().err().map(|missing_traits| missing_traits.to_string());
                missing_traits.into_iter().chain(node.unmet_requirements().iter().map(UnmetRequirement::node_message)).collect()
            }
            Self::Incomplete(missing) => missing.iter().map(ToString::to_string).collect(),
        };
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl ResolvedNode {
    /// Returns the findings about the node that do not depend on the time: remarks, which are never errors, and
    /// findings that may be errors.
    pub fn findings(&self) -> Vec<Finding> {
        let object = format!("node/{}", self.entry.node.display_name());
        let mut findings = self.remarks(&object);
        findings.extend(self.possible_errors(&object));
        findings
    }

    /// Returns whether the findings about the node include an error of a rule that is not in `rules`. Does not compute
    /// the remarks, because they are never errors and take the longest time.
    fn has_error_except(&self, rules: &[Rule]) -> bool {
        first_error_except(&self.possible_errors(""), rules).is_some()
    }

    /// Returns the findings about the node that are never errors: about labels, fields that are not implemented, parked
    /// primaries, an agent that does not know a task, and dropped parts of the host's report. `object` is the node's name in findings.
    fn remarks(&self, object: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for key in self.host_labels().map_labels(&self.labels()).withheld {
            let message = format!("label {key} has no Kubernetes label value: it is not exported to the host label map");
            findings.push(Finding::new(rule::LABEL_HELD_BACK, object, message));
        }
        for key in self.entry.node.spec.inherited.labels.ineffective_tombstones() {
            let message = format!("label {key} is null where nothing is merged: it has no effect");
            findings.push(Finding::new(rule::LABEL_IDLE_NULL, object, message));
        }
        let labels = self.labels();
        findings.extend(label_collisions(&labels).into_iter().map(|message| Finding::new(rule::LABEL_VARIABLE, object, message)));
        findings.extend(unimplemented::findings(object, &self.entry.node.spec));
        let node = &self.entry.node;
        if let Some(set) = self.task_set().filter(|_| parked_by(&node.spec, self.reported_state()).next().is_some()) {
            findings.extend(primary_parked(node, self.resolved_group().map(|group| &*group.cluster), set.primary_tags()));
        }
        findings.extend(self.unknown_features().map(|unknown| Finding::new(rule::TASK_TYPE, object, unknown.message())));
        findings.extend(
            self.observation()
                .and_then(|observation| observation.not_taken.as_deref())
                .into_iter()
                .flat_map(|dropped| dropped_findings(object, dropped)),
        );
        findings
    }

    /// Returns the findings about the node that may be errors: about inspection rules, requirements, instance traits
    /// and tasks. `object` is the node's name in findings.
    fn possible_errors(&self, object: &str) -> Vec<Finding> {
        let mut findings: Vec<_> = self.rule_outcome.notes.iter().map(|note| note_finding(object, note)).collect();
        findings.extend(self.unmet_requirements().iter().map(|unmet| unmet.finding(&self.entry.node)));
        if let Err(missing_traits) = self.check_instance_traits() {
            findings.push(Finding::new(rule::INSTANCE_TRAITS, object, missing_traits.to_string()));
        }
        let task_findings = self.task_set.iter().flat_map(|set| set.findings());
        findings.extend(task_findings.map(|finding| Finding { object: format!("{object} {}", finding.object), ..finding }));
        findings
    }

    /// Returns the findings about the pause, hold and park that were set on the host itself and are in force at `now`.
    pub fn host_findings(&self, now: Timestamp) -> Vec<Finding> {
        self.host_blocker_findings(now).map(|(rule, message)| node_finding(rule, &self.entry.node, message)).collect()
    }
}

/// Returns the finding about a note of an inspection rule: a logged message, a failure, or a refusal of the node.
fn note_finding(object: &str, note: &RuleNote) -> Finding {
    let (rule, effect) = match note.kind {
        NoteKind::Log => (rule::INSPECTION_LOG, "says"),
        NoteKind::Failed => (rule::INSPECTION_FAILED, "did nothing"),
        NoteKind::Refused => (rule::INSPECTION_REFUSED, "refuses it, and later rules were not evaluated"),
    };
    Finding::new(rule, object, format!("inspection rule {} {effect}: {}", note.rule, escape_controls(&note.message)))
}

/// The characters that quote texts within a sentence, and the backslash, which begins an escape.
const QUOTES: [char; 3] = ['"', '\'', '\\'];

/// Returns a sentence on one line, with control characters escaped, because the sentence may contain a text of a host.
/// Quotes and backslashes are not escaped, because quoted texts in the sentence are already escaped.
fn escape_controls(sentence: &str) -> String {
    let mut line = String::new();
    for piece in sentence.split_inclusive(QUOTES) {
        let text = piece.trim_end_matches(QUOTES);
        line.extend(text.escape_debug());
        line.push_str(&piece[text.len()..]);
    }
    line
}

/// Returns the findings about traits, facts and labels of a host's report that were not stored.
fn dropped_findings(object: &str, dropped: &DroppedInput) -> Vec<Finding> {
    let mut findings = Vec::new();
    if dropped.traits != RefusedTraits::default() {
        findings.push(refused_traits_finding(object, &dropped.traits));
    }
    let mut parts = Vec::new();
    if dropped.facts > 0 {
        parts.push(dropped_facts_text(dropped.facts));
    }
    if dropped.labels > 0 {
        let limits = format!(
            "at most {MAX_KEYS} are accepted; a value has at most {MAX_VALUE_BYTES} bytes, all together {MAX_EFFECTIVE_BYTES}"
        );
        parts.push(format!("{} labels ({limits})", dropped.labels));
    }
    if !parts.is_empty() {
        let message = format!("its host reports more than is accepted; dropped: {}", parts.join("; "));
        findings.push(Finding::new(rule::REPORT_LEFT_OUT, object, message));
    }
    findings
}

/// Returns the text about a number of dropped facts, with the limits of facts.
fn dropped_facts_text(count: u32) -> String {
    format!(
        "{count} facts (a path has at most {MAX_PATH_KEYS} names and {MAX_FACT_PATH_BYTES} bytes, a value {MAX_FACT_VALUE_BYTES} bytes, all together \
         {MAX_FACTS_BYTES})"
    )
}

/// Returns the finding about traits of a host's report that were refused: traits with unknown names, and traits beyond
/// the maximum number.
fn refused_traits_finding(object: &str, refused: &RefusedTraits) -> Finding {
    let mut parts = Vec::new();
    if refused.unknown_count > 0 {
        let unlisted_count = refused.unknown_count - refused.unknown.len();
        let unlisted_text = if unlisted_count > 0 { format!(" and {unlisted_count} more") } else { String::new() };
        parts.push(format!(
            "{}{unlisted_text} (a standard name, or CUSTOM_ and then capitals, digits and '_', at most {MAX_TRAIT_CHARS} characters)",
            refused.unknown.join(", ")
        ));
    }
    if refused.surplus > 0 {
        parts.push(format!("{} beyond the {MAX_TRAITS} that one source may give", refused.surplus));
    }
    let message = format!("its host reports traits that are refused: {}", parts.join("; "));
    Finding::new(rule::TRAIT_REFUSED, object, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    /// `has_error_except` does not compute the remarks about a node, so the rules of remarks must not be errors. The
    /// same holds for the rules about a pause, hold or park on the host.
    #[test]
    fn remarks_contain_no_error() {
        let remarks = [
            rule::FIELD_IDLE,
            rule::LABEL_HELD_BACK,
            rule::LABEL_IDLE_NULL,
            rule::PRIMARY_PARKED,
            rule::REPORT_LEFT_OUT,
            rule::TASK_TYPE,
            rule::TRAIT_REFUSED,
        ];
        let host_rules = [rule::HOST_HELD, rule::HOST_PARKED, rule::HOST_PAUSED];
        assert!(remarks.iter().chain(&host_rules).all(|rule| rule.severity < Severity::Error));
    }

    #[test]
    fn y03_escape_controls_escapes_text_once() {
        for (message, shown) in [
            (r#""hostcap" is no capability"#, r#""hostcap" is no capability"#),
            (r#""a\n" isn't one"#, r#""a\n" isn't one"#),
            ("a\nb\u{1b}[1m\u{202e}", r"a\nb\u{1b}[1m\u{202e}"),
            ("ä \u{1f600}", "ä \u{1f600}"),
        ] {
            assert_eq!(escape_controls(message), shown);
        }
    }

    #[test]
    fn refused_traits_finding_lists_unknown_traits_and_counts_others() {
        let beyond = format!("2 beyond the {MAX_TRAITS} that one source may give");
        let rule =
            format!("(a standard name, or CUSTOM_ and then capitals, digits and '_', at most {MAX_TRAIT_CHARS} characters)");
        for (unknown_count, surplus, expected) in [
            (0, 2, beyond.clone()),
            (1, 0, format!("\"a\" {rule}")),
            (3, 0, format!("\"a\" and 2 more {rule}")),
            (1, 2, format!("\"a\" {rule}; {beyond}")),
        ] {
            // In this test, the record lists one of the unknown traits, and only counts the others.
            let unknown: Vec<Box<str>> = vec!["\"a\"".into(); usize::from(unknown_count > 0)];
            let refused = RefusedTraits { unknown: unknown.into(), unknown_count, surplus };
            let finding = refused_traits_finding("node/n", &refused);
            assert_eq!(finding.message, format!("its host reports traits that are refused: {expected}"));
        }
    }
}
