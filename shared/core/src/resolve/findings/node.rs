//! The findings about one node.

use std::fmt::Display;

use super::primary::primary_parked;
use crate::epoch::{EpochHistory, HostRevisions};
use crate::finding::{Finding, MAX_NAMES, Rule, TopFindings, first_error_except, join_first, rule};
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
use crate::status::{OrphanedPath, OrphanedPaths, StuckAgent, parked_by};
use crate::traits::{MAX_TRAIT_CHARS, MAX_TRAITS};
use crate::unimplemented;

/// Maximum number of characters shown of a host's sentence.
const MAX_SHOWN_CHARS: usize = 256;

/// Creates a finding of a rule about a node.
fn node_finding(rule: Rule, node: &Node, message: String) -> Finding {
    Finding::new(rule, format!("node/{}", node.display_name()), message)
}

/// Returns the finding that a node's desired state is too large to be sent.
pub fn too_large(node: &Node, error: &impl Display) -> Finding {
    let message = format!("{error}: its host keeps what it has; make labels, annotations or parameters smaller");
    node_finding(rule::DESIRED_TOO_LARGE, node, message)
}

/// Returns the finding that two hosts, at these addresses, check in with a node's identity.
pub fn duplicate_host(node: &Node, [one, other]: [impl Display; 2]) -> Finding {
    let message = format!(
        "two hosts check in with its identity, from {one} and {other}: a disk or container was copied, and each takes the other's place; \
         stop the agent of the copy, remove its state, and let it join as a node of its own"
    );
    node_finding(rule::IDENTITY_DOUBLED, node, message)
}

/// Returns the finding that a node's host has a state that this store never sent, or that another store sent. Nothing
/// is sent to this host.
pub fn host_ahead(node: &Node, host: HostRevisions, epochs: &EpochHistory, head: u64) -> Finding {
    node_finding(rule::HOST_AHEAD, node, epochs.not_sent_reason(host, head))
}

/// Returns the finding that nothing is sent to any host, because the store was restored from a backup and waits for an
/// admin to resume the fleet. `None` if the store does not wait.
pub fn fleet_waiting(node: &Node, epochs: &EpochHistory) -> Option<Finding> {
    epochs.waiting_reason().map(|why| node_finding(rule::FLEET_WAITING, node, why))
}

/// Returns the finding that a node's host has not checked in since the present epoch of the store began. Another copy
/// of the store may have sent it a state since then.
pub fn host_awaited(node: &Node) -> Finding {
    let message = "its host has not checked in since the present epoch of the store began: what it runs is not known until it checks in; from then on \
                   it follows this store";
    node_finding(rule::HOST_AWAITED, node, message.to_owned())
}

/// Returns the finding that a part of the host's last report was refused. The stored part of an earlier report is kept.
pub fn report_refused(node: &Node, part: &str, reason: &str) -> Finding {
    let message = format!(
        "the controller refused what its host reported last ({part}): {reason}; the node is shown as reported before, until the host reports \
         something else"
    );
    node_finding(rule::REPORT_REFUSED, node, message)
}

/// Returns the finding that a part of the host's last report is not stored yet. The host keeps the part and sends it
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

/// Returns the finding that a host's report lists things that the host could not use or do. `None` if the report lists
/// none.
///
/// The finding gives their number and the first of them. Their content is not interpreted, because they are sentences,
/// whose wording differs between versions of the agent.
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

/// Returns the finding that a node's agent cannot store or apply its desired state, with the reason that the agent
/// reports.
pub fn host_stuck(node: &Node, StuckAgent { reason: why, can_run_tasks: can_run }: &StuckAgent) -> Finding {
    let what = if *can_run {
        "its agent cannot write all of what services and people read on its host, and its tasks run on"
    } else {
        "its agent cannot store or apply its desired state, and begins no task"
    };
    let message = format!("{what}: {}", shorten(why));
    node_finding(rule::HOST_STUCK, node, message)
}

/// Returns the findings about paths that a node's tasks left on its host: one for each listed path, and one for the
/// paths that are not listed.
pub fn orphaned_paths(node: &Node, orphans: &OrphanedPaths) -> Vec<Finding> {
    let to_finding = |OrphanedPath { task, path }: &OrphanedPath| {
        let (task, path) = (shorten(task), shorten(path));
        let message = format!(
            "task {task} no longer manages {path}, which it wrote and which still exists: nothing removes it automatically; a task `file` \
             with `absent: true` does"
        );
        node_finding(rule::TASK_ORPHANED, node, message)
    };
    let more = (orphans.unlisted_count > 0).then(|| {
        let message = format!("{} more paths that tasks wrote and that no task manages now still exist", orphans.unlisted_count);
        node_finding(rule::TASK_ORPHANED, node, message)
    });
    orphans.listed.iter().map(to_finding).chain(more).collect()
}

/// Returns a host's sentence on one line, cut at [`MAX_SHOWN_CHARS`].
fn shorten(sentence: &str) -> String {
    let mut characters = sentence.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = characters.by_ref().take(MAX_SHOWN_CHARS).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Returns the finding that the record of a node's release is not stored, because the store can never accept it, or
/// because its cluster's records would become too large.
pub fn release_refused(node: &Node, reason: &str) -> Finding {
    let message = format!("the record of its next task set is not stored, and its host keeps what it has: {reason}");
    node_finding(rule::RELEASE_REFUSED, node, message)
}

/// Returns the finding that a stored release does not compile.
pub fn release_broken(name: &ReleaseRef, reason: &str) -> Finding {
    let message = format!("it is stored and does not compile: {reason}; hosts that need it stay as they are until it is mended");
    Finding::new(rule::RELEASE_BROKEN, format!("release/{name}"), message)
}

/// Returns the requirements that a node does not meet now, and that it met or did not have before.
///
/// No task set is resolved, because an edit may reach every node, and the cache holds task sets of one fleet only.
pub fn newly_unmet(before: &Fleet, after: &Fleet, id: NodeId) -> Vec<UnmetRequirement> {
    let unmet = |fleet: &Fleet| fleet.node_view(id).map(|view| view.unmet_requirements()).unwrap_or_default();
    let mut found = unmet(after);
    if !found.is_empty() {
        let known = unmet(before);
        found.retain(|requirement| !known.contains(requirement));
    }
    found
}

impl UnmetRequirement {
    /// Returns the finding about a node that does not meet the requirement.
    pub fn finding(&self, node: &Node) -> Finding {
        node_finding(rule::REQUIREMENT_UNMET, node, self.node_message())
    }

    /// Returns the message that a node does not meet the requirement, with what the node has.
    fn node_message(&self) -> String {
        format!("{self}: {}", self.actual)
    }

    /// Returns the message that these nodes do not meet the requirement, and the effect. For a single node, the message
    /// shows what the node has. Several nodes may have different values, which the finding of each node shows.
    pub fn message(&self, nodes: &[String]) -> String {
        let few = join_first(nodes.iter().map(String::as_str), MAX_NAMES);
        let found = if nodes.len() == 1 { format!(" ({})", self.actual) } else { String::new() };
        format!("{self} by {few}{found}: the next task set is withheld until it is met")
    }
}

/// Returns one message for each variable of `labels.env` that several labels of a node would have.
pub(super) fn label_collisions(labels: &Labels) -> Vec<String> {
    let collisions = labels::colliding_keys(labels.iter().map(|(key, _)| key.as_str()));
    let message = |(variable, keys): (String, Vec<&str>)| {
        format!("labels {} would all be {variable}: none of them is in labels.env; rename all but one", keys.join(", "))
    };
    collisions.into_iter().map(message).collect()
}

/// Returns the findings about labels of these nodes that would be the same variable of `labels.env` only since a
/// change.
pub fn newly_colliding(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let labels_of = |fleet: &Fleet, id| fleet.node_view(id).map(|view| view.labels()).unwrap_or_default();
    let mut found = TopFindings::<NodeId>::default();
    // Nodes without labels of their own share the map of their group, so the map is checked once for all of them.
    let mut last = (Labels::default(), Vec::new());
    for id in nodes {
        let labels = labels_of(after, id);
        if !labels.is_same(&last.0) {
            last = (labels.clone(), label_collisions(&labels));
        }
        if last.1.is_empty() {
            continue;
        }
        let (mut collisions, known) = (last.1.clone(), label_collisions(&labels_of(before, id)));
        collisions.retain(|message| !known.contains(message));
        let Some(node) = after.node(id) else { continue };
        found.extend(collisions.into_iter().map(|message| node_finding(rule::LABEL_VARIABLE, node, message)));
    }
    found.into_list("write")
}

/// Returns the findings that nodes have only since a change of inspection rules. Only nodes for which the rules give
/// another result are resolved. An unmet requirement that was unmet before is not new, even if the node has another
/// value now.
pub fn new_rule_findings(
    before: &Fleet,
    after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut found = TopFindings::<NodeId>::default();
    if before.rules().has_same_effects(after.rules()) {
        return Vec::new();
    }
    for node in nodes.filter(|node| before.has_rule_changes(after, *node)) {
        let findings_in = |fleet| {
            let resolved = resolve_node(fleet, cache, node);
            resolved.resolved_node().map(|answer| (answer.findings(), answer.unmet_requirements().to_vec())).unwrap_or_default()
        };
        let (mut known, unmet_before) = findings_in(before);
        let (findings, unmet) = findings_in(after);
        if let Some(node) = after.node(node) {
            let still_unmet = unmet.iter().filter(|requirement| unmet_before.contains(requirement));
            known.extend(still_unmet.map(|requirement| requirement.finding(node)));
        }
        found.extend(findings.into_iter().filter(|finding| !known.contains(finding)));
    }
    found.into_list("inspectionrule")
}

impl Resolution {
    /// Returns whether the findings about the node include an error. Its remarks are never errors.
    pub fn has_error(&self) -> bool {
        self.has_error_except(&[])
    }

    /// Returns whether the findings about the node include an error of a rule that is not in `rules`.
    pub fn has_error_except(&self, rules: &[Rule]) -> bool {
        match self {
            Self::Complete(node) => node.has_error_except(rules),
            Self::Incomplete(missing) => !missing.is_empty(),
        }
    }

    /// Returns the findings about the node that do not depend on the time: those of the resolved node, or what is
    /// missing.
    pub fn findings(&self, node: &Node) -> Vec<Finding> {
        match self {
            Self::Complete(resolved) => resolved.findings(),
            Self::Incomplete(missing) => {
                missing.iter().map(|item| node_finding(rule::NODE_INCOMPLETE, node, item.to_string())).collect()
            }
        }
    }

    /// Returns why the node cannot be used: it lacks traits that its instance requires, does not meet a requirement of
    /// its group, or an object above it is missing.
    pub fn unusable_reason(&self) -> Option<String> {
        let reasons: Vec<String> = match self {
            Self::Complete(node) => {
                let lacks = node.check_instance_traits().err().map(|lacks| lacks.to_string());
                lacks.into_iter().chain(node.unmet_requirements().iter().map(UnmetRequirement::node_message)).collect()
            }
            Self::Incomplete(missing) => missing.iter().map(ToString::to_string).collect(),
        };
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl ResolvedNode {
    /// Returns the findings about the node that do not depend on the time: remarks, and findings that may be
    /// errors.
    pub fn findings(&self) -> Vec<Finding> {
        let object = format!("node/{}", self.entry.node.display_name());
        let mut findings = self.remarks(&object);
        findings.extend(self.possible_errors(&object));
        findings
    }

    /// Returns whether the findings about the node include an error of a rule that is not in `rules`. Remarks are never
    /// errors and take the longest to compute, so they are left out.
    fn has_error_except(&self, rules: &[Rule]) -> bool {
        first_error_except(&self.possible_errors(""), rules).is_some()
    }

    /// Returns the findings that are never errors: about labels, fields that are not implemented, parked primaries and
    /// dropped parts of the host's report.
    fn remarks(&self, object: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for key in self.host_labels().map_labels(&self.labels()).withheld {
            let message = format!("label {key} has no Kubernetes label value: it does not flow to the host label map");
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
            findings.extend(primary_parked(node, self.resolved_group().map(|resolved| &*resolved.cluster), set.primary_tags()));
        }
        findings.extend(
            self.observation()
                .and_then(|seen| seen.not_taken.as_deref())
                .into_iter()
                .flat_map(|dropped| dropped_findings(object, dropped)),
        );
        findings
    }

    /// Returns the findings that may be errors: about inspection rules, requirements, instance traits and tasks.
    fn possible_errors(&self, object: &str) -> Vec<Finding> {
        let mut findings: Vec<_> = self.rule_outcome.notes.iter().map(|note| note_finding(object, note)).collect();
        findings.extend(self.unmet_requirements().iter().map(|unmet| unmet.finding(&self.entry.node)));
        if let Err(lacks) = self.check_instance_traits() {
            findings.push(Finding::new(rule::INSTANCE_TRAITS, object, lacks.to_string()));
        }
        let task_findings = self.task_set.iter().flat_map(|set| set.findings());
        findings.extend(task_findings.map(|finding| Finding { object: format!("{object} {}", finding.object), ..finding }));
        findings
    }

    /// Returns the findings about what was set on the host itself and is in force at `now`.
    pub fn host_findings(&self, now: Timestamp) -> Vec<Finding> {
        self.host_blocker_findings(now).map(|(rule, message)| node_finding(rule, &self.entry.node, message)).collect()
    }
}

/// Returns the finding about what an inspection rule noted about a node.
fn note_finding(object: &str, note: &RuleNote) -> Finding {
    let (rule, does) = match note.kind {
        NoteKind::Log => (rule::INSPECTION_LOG, "says"),
        NoteKind::Failed => (rule::INSPECTION_FAILED, "did nothing"),
        NoteKind::Refused => (rule::INSPECTION_REFUSED, "refuses it, and later rules were not evaluated"),
    };
    Finding::new(rule, object, format!("inspection rule {} {does}: {}", note.rule, escape_controls(&note.message)))
}

/// The characters that quote texts within a sentence, and the one that begins an escape.
const QUOTES: [char; 3] = ['"', '\'', '\\'];

/// Returns a sentence that may contain a host's text on one line, with control characters escaped. Quotes and
/// backslashes stay, because quoted texts are already escaped.
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
        let most = format!(
            "at most {MAX_KEYS} are accepted; a value has at most {MAX_VALUE_BYTES} bytes, all together {MAX_EFFECTIVE_BYTES}"
        );
        parts.push(format!("{} labels ({most})", dropped.labels));
    }
    if !parts.is_empty() {
        let message = format!("its host reports more than is accepted; dropped: {}", parts.join("; "));
        findings.push(Finding::new(rule::REPORT_LEFT_OUT, object, message));
    }
    findings
}

/// Returns the number of dropped facts, with the limits of facts.
fn dropped_facts_text(count: u32) -> String {
    format!(
        "{count} facts (a path has at most {MAX_PATH_KEYS} names and {MAX_FACT_PATH_BYTES} bytes, a value {MAX_FACT_VALUE_BYTES} bytes, all together \
         {MAX_FACTS_BYTES})"
    )
}

/// Returns the finding about traits of a host's report that were refused: unknown names, and those beyond the limit.
fn refused_traits_finding(object: &str, refused: &RefusedTraits) -> Finding {
    let mut parts = Vec::new();
    if refused.unknown_count > 0 {
        let more = refused.unknown_count - refused.unknown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        parts.push(format!(
            "{}{more} (a standard name, or CUSTOM_ and then capitals, digits and '_', at most {MAX_TRAIT_CHARS} characters)",
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

    #[test]
    fn remarks_contain_no_error() {
        let remarks = [
            rule::FIELD_IDLE,
            rule::LABEL_HELD_BACK,
            rule::LABEL_IDLE_NULL,
            rule::PRIMARY_PARKED,
            rule::REPORT_LEFT_OUT,
            rule::TRAIT_REFUSED,
        ];
        let host_rules = [rule::HOST_HELD, rule::HOST_PARKED, rule::HOST_PAUSED];
        assert!(remarks.iter().chain(&host_rules).all(|rule| rule.severity < Severity::Error));
    }

    #[test]
    fn x01_shorten_replaces_controls_and_truncates() {
        assert_eq!(shorten("a\nb\u{1b}[1m"), "a b [1m");
        assert_eq!(shorten(&"ä".repeat(256)), "ä".repeat(256));
        assert_eq!(shorten(&"ä".repeat(257)), format!("{}…", "ä".repeat(256)));
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
    fn refused_traits_finding_gives_reason_of_each_trait() {
        let beyond = format!("2 beyond the {MAX_TRAITS} that one source may give");
        let rule =
            format!("(a standard name, or CUSTOM_ and then capitals, digits and '_', at most {MAX_TRAIT_CHARS} characters)");
        for (unknown_count, surplus, says) in [
            (0, 2, beyond.clone()),
            (1, 0, format!("\"a\" {rule}")),
            (3, 0, format!("\"a\" and 2 more {rule}")),
            (1, 2, format!("\"a\" {rule}; {beyond}")),
        ] {
            let unknown: Vec<Box<str>> = vec!["\"a\"".into(); usize::from(unknown_count > 0)];
            let refused = RefusedTraits { unknown: unknown.into(), unknown_count, surplus };
            let found = refused_traits_finding("node/n", &refused);
            assert_eq!(found.message, format!("its host reports traits that are refused: {says}"));
        }
    }
}
