//! What a person should know of one node.

use std::fmt::Display;

use super::primary::primary_parked;
use crate::epoch::{EpochLine, HeldAndTold};
use crate::finding::{FEW, Finding, Gravest, Rule, error_beside, first_few, rule};
use crate::fleet::Fleet;
use crate::idle;
use crate::input::MAX_DEPTH;
use crate::inspection::{Note, NoteKind};
use crate::key::MAX_VALUE;
use crate::labels::{self, Labels, MAX_EFFECTIVE, MAX_KEYS};
use crate::name::ReleaseRef;
use crate::object::{
    MAX_FACT, MAX_FACT_PATH, MAX_FACTS, MAX_RESULT_TEXTS, MAX_RESULTS, MAX_SENTENCE, MAX_TASK_ID, Node, NodeId,
    NotTaken, RefusedTraits, ReportLeftOut, Timestamp,
};
use crate::requirement::Unmet;
use crate::resolve::{Answer, Resolution, ResolveCache, resolve_node};
use crate::status::{Orphan, Orphans, Stuck, parked};
use crate::traits::{MAX_TRAIT, MAX_TRAITS};

/// The most characters that are shown of a sentence of a host's.
const MAX_SHOWN: usize = 256;

/// A finding of a rule about a node.
fn of_node(rule: Rule, node: &Node, message: String) -> Finding {
    Finding::of(rule, format!("node/{}", node.display_name()), message)
}

/// What a node would be told is too large to be sent.
pub fn too_large(node: &Node, error: &impl Display) -> Finding {
    let message = format!("{error}: its host keeps what it has; make labels, annotations or parameters smaller");
    of_node(rule::DESIRED_TOO_LARGE, node, message)
}

/// Two hosts check in with a node's identity, from these addresses.
pub fn doubled(node: &Node, [one, other]: [impl Display; 2]) -> Finding {
    let message = format!(
        "two hosts check in with its identity, from {one} and {other}: a disk or container was copied, and each takes the other's place; \
         stop the agent of the copy, remove its state, and let it join as a node of its own"
    );
    of_node(rule::IDENTITY_DOUBLED, node, message)
}

/// A node's host holds what this store never told it, or what another store told it: nothing is sent to it.
pub fn host_ahead(node: &Node, host: HeldAndTold, line: &EpochLine, head: u64) -> Finding {
    of_node(rule::HOST_AHEAD, node, line.why_untold(host, head))
}

/// Nothing is sent to a node's host, as to no other: the store was restored from a backup and waits. `None`: it does not wait.
pub fn fleet_waiting(node: &Node, line: &EpochLine) -> Option<Finding> {
    line.why_all_wait().map(|why| of_node(rule::FLEET_WAITING, node, why))
}

/// A node's host has not come since the present epoch of the store began: another copy of the store may have told it something since.
pub fn host_awaited(node: &Node) -> Finding {
    let message = "its host has not come since the present epoch of the store began: what it runs is not known until it checks in; from then on \
                   it follows this store";
    of_node(rule::HOST_AWAITED, node, message.to_owned())
}

/// A part of what a node's host reported last was refused: what was kept of that part before stands.
pub fn report_refused(node: &Node, part: &str, reason: &str) -> Finding {
    let message = format!(
        "the controller refused what its host reported last ({part}): {reason}; the node stands as reported before, until the host reports \
         something else"
    );
    of_node(rule::REPORT_REFUSED, node, message)
}

/// A part of what a node's host reported last is not kept yet: its host has it and sends it again.
pub fn report_waiting(node: &Node, part: &str, reason: &str) -> Finding {
    let message = format!(
        "the controller has not kept yet what its host reported last ({part}): {reason}; the host keeps it and sends it again, and the node \
         stands as reported before until then"
    );
    of_node(rule::REPORT_WAITING, node, message)
}

/// Some of what a node's host last said of itself and of its tasks was not kept; nothing where all was.
pub fn report_left_out(node: &Node, left_out: ReportLeftOut) -> Option<Finding> {
    let ReportLeftOut { facts, results, texts } = left_out;
    let parts = [
        (facts, facts_left_out(facts)),
        (
            results,
            format!(
                "{results} results of tasks (at most {MAX_RESULTS} are kept; a task's id has at most {MAX_TASK_ID} bytes)"
            ),
        ),
        (
            texts,
            format!(
                "a part of {texts} texts (a sentence has at most {MAX_SENTENCE} bytes, all that its tasks say together \
                 {MAX_RESULT_TEXTS})"
            ),
        ),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
    let message = format!("its host reports more than is kept; left out: {}", parts.join("; "));
    (!parts.is_empty()).then(|| of_node(rule::REPORT_LEFT_OUT, node, message))
}

/// What a node's host says in its own report that it could not use or do; nothing where it says nothing.
///
/// All of these are counted, whatever they are about: they are sentences, and an earlier agent has others.
pub fn report_findings(node: &Node, said: &[&str]) -> Option<Finding> {
    let first = shown(said.first()?);
    let count = said.len();
    let message = format!(
        "its host reports what it could not use or do, findings of its own: {count}; the first: {first}; all of them are in its report \
         (GET /v1/nodes/{}/report) and in `stemma-agent status` there",
        node.display_name()
    );
    Some(of_node(rule::REPORT_FINDINGS, node, message))
}

/// A node's agent cannot keep or apply what it is told, and says why.
pub fn host_stuck(node: &Node, Stuck { why, runs_on }: &Stuck) -> Finding {
    let what = if *runs_on {
        "its agent cannot write all of what services and people read on its host, and its tasks run on"
    } else {
        "its agent cannot keep or apply what it is told, and begins nothing"
    };
    let message = format!("{what}: {}", shown(why));
    of_node(rule::HOST_STUCK, node, message)
}

/// The paths that tasks of a node left on its host: one finding for each, and one for those that are not named.
pub fn orphaned_paths(node: &Node, orphans: &Orphans) -> Vec<Finding> {
    let of = |Orphan { task, path }: &Orphan| {
        let (task, path) = (shown(task), shown(path));
        let message = format!(
            "task {task} no longer keeps {path}, which it wrote and which is still there: nothing takes it away by itself; a task `file` \
             with `absent: true` does"
        );
        of_node(rule::TASK_ORPHANED, node, message)
    };
    let more = (orphans.more > 0).then(|| {
        let message = format!("{} more paths that tasks wrote and no task keeps now are still there", orphans.more);
        of_node(rule::TASK_ORPHANED, node, message)
    });
    orphans.named.iter().map(of).chain(more).collect()
}

/// A sentence of a host's on one line, cut at [`MAX_SHOWN`].
fn shown(sentence: &str) -> String {
    let mut characters = sentence.chars().map(|one| if one.is_control() { ' ' } else { one });
    let mut shown: String = characters.by_ref().take(MAX_SHOWN).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// The record of what is released to a node is not stored: the store can never take it, or its cluster's nodes would have too much.
pub fn release_refused(node: &Node, reason: &str) -> Finding {
    let message = format!("the record of its next task set is not stored, and its host keeps what it has: {reason}");
    of_node(rule::RELEASE_REFUSED, node, message)
}

/// A release that is stored does not compile.
pub fn broken(name: &ReleaseRef, reason: &str) -> Finding {
    let message =
        format!("it is stored and does not compile: {reason}; hosts that need it stay as they are until it is mended");
    Finding::of(rule::RELEASE_BROKEN, format!("release/{name}"), message)
}

/// The requirements that a node does not meet, and met before or was not asked for.
///
/// No task set is resolved for it: an edit may reach every node, and the memory of task sets is of one fleet at a time.
pub fn newly_unmet(before: &Fleet, after: &Fleet, id: NodeId) -> Vec<Unmet> {
    let unmet = |fleet: &Fleet| fleet.node_view(id).map(|view| view.unmet()).unwrap_or_default();
    let mut found = unmet(after);
    if !found.is_empty() {
        let known = unmet(before);
        found.retain(|one| !known.contains(one));
    }
    found
}

impl Unmet {
    /// The finding of a node that does not meet it.
    pub fn finding(&self, node: &Node) -> Finding {
        of_node(rule::REQUIREMENT_UNMET, node, self.of_a_node())
    }

    /// That a node does not meet it, and what the node has.
    fn of_a_node(&self) -> String {
        format!("{self}: {}", self.found)
    }

    /// What it means that these nodes do not meet it. Of one alone it says what that has; several have each their finding.
    pub fn sentence(&self, nodes: &[String]) -> String {
        let few = first_few(nodes.iter().map(String::as_str), FEW);
        let found = if nodes.len() == 1 { format!(" ({})", self.found) } else { String::new() };
        format!("{self} by {few}{found}: the next task set is held until it is")
    }
}

/// What is said of labels of one node that have one variable.
pub(super) fn meeting(labels: &Labels) -> Vec<String> {
    let met = labels::meeting(labels.iter().map(|(key, _)| key.as_str()));
    let message = |(variable, keys): (String, Vec<&str>)| {
        format!("labels {} would all be {variable}: none of them is in labels.env; rename all but one", keys.join(", "))
    };
    met.into_iter().map(message).collect()
}

/// Labels of these nodes that have one variable by a step of the fleet, and had not before.
pub fn newly_meeting(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let of = |fleet: &Fleet, id| fleet.node_view(id).map(|view| view.labels()).unwrap_or_default();
    let mut found = Gravest::<NodeId>::default();
    // Nodes of a group that have no labels of their own share its map: it is looked at once.
    let mut last = (Labels::default(), Vec::new());
    for id in nodes {
        let labels = of(after, id);
        if !labels.is_same(&last.0) {
            last = (labels.clone(), meeting(&labels));
        }
        if last.1.is_empty() {
            continue;
        }
        let (mut met, known) = (last.1.clone(), meeting(&of(before, id)));
        met.retain(|message| !known.contains(message));
        let Some(node) = after.node(id) else { continue };
        found.extend(met.into_iter().map(|message| of_node(rule::LABEL_VARIABLE, node, message)));
    }
    found.list("write")
}

/// The new findings of nodes to which inspection rules give something else than before.
pub fn newly_ruled(
    before: &Fleet,
    after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut found = Gravest::<NodeId>::default();
    if before.rules().decides_like(after.rules()) {
        return Vec::new();
    }
    for node in nodes.filter(|node| before.rules_otherwise(after, *node)) {
        let of = |fleet| {
            let resolved = resolve_node(fleet, cache, node);
            resolved.answer().map(|answer| (answer.findings(), answer.unmet().to_vec())).unwrap_or_default()
        };
        let (mut known, stood) = of(before);
        let (findings, unmet) = of(after);
        if let Some(node) = after.node(node) {
            let still = unmet.iter().filter(|one| stood.contains(one));
            known.extend(still.map(|one| one.finding(node)));
        }
        found.extend(findings.into_iter().filter(|finding| !known.contains(finding)));
    }
    found.list("inspectionrule")
}

impl Resolution {
    /// Whether an error is among the findings about the node: what was said on its host is none.
    pub fn has_error(&self) -> bool {
        self.has_error_beside(&[])
    }

    /// The same beside the errors of these rules.
    pub fn has_error_beside(&self, rules: &[Rule]) -> bool {
        match self {
            Self::Complete(answer) => answer.has_error_beside(rules),
            Self::Incomplete(missing) => !missing.is_empty(),
        }
    }

    /// The findings about the node that was resolved that hold at any time: those of its answer, or what is missing.
    pub fn findings(&self, node: &Node) -> Vec<Finding> {
        match self {
            Self::Complete(answer) => answer.findings(),
            Self::Incomplete(missing) => {
                missing.iter().map(|what| of_node(rule::NODE_INCOMPLETE, node, what.to_string())).collect()
            }
        }
    }

    /// Why the node cannot be used: it has not the traits that its instance wants, does not meet what its group requires, or something
    /// above it is missing.
    pub fn unusable(&self) -> Option<String> {
        let reasons: Vec<String> = match self {
            Self::Complete(answer) => {
                let lacks = answer.check_instance().err().map(|lacks| lacks.to_string());
                lacks.into_iter().chain(answer.unmet().iter().map(Unmet::of_a_node)).collect()
            }
            Self::Incomplete(missing) => missing.iter().map(ToString::to_string).collect(),
        };
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl Answer {
    /// The findings about the node that hold at any time: odd labels, conditions that failed, requirements that are not met.
    pub fn findings(&self) -> Vec<Finding> {
        let object = format!("node/{}", self.entry.node.display_name());
        let mut findings = self.remarks(&object);
        findings.extend(self.obstacles(&object));
        findings
    }

    /// Whether one of them is an error that is of none of these rules. Remarks are none, and cost most.
    fn has_error_beside(&self, rules: &[Rule]) -> bool {
        error_beside(&self.obstacles(""), rules).is_some()
    }

    /// The findings that are no errors, whatever is found: of labels, of fields that nothing acts on, and of what a host reports.
    fn remarks(&self, object: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for key in self.host_labels().decide(&self.labels()).held_back {
            let message = format!("label {key} has no Kubernetes label value: it does not flow to the host label map");
            findings.push(Finding::of(rule::LABEL_HELD_BACK, object, message));
        }
        for key in self.entry.node.spec.inherited.labels.idle_tombstones() {
            let message = format!("label {key} is null where nothing is merged: it has no effect");
            findings.push(Finding::of(rule::LABEL_IDLE_NULL, object, message));
        }
        let labels = self.labels();
        findings.extend(meeting(&labels).into_iter().map(|message| Finding::of(rule::LABEL_VARIABLE, object, message)));
        findings.extend(idle::findings(object, &self.entry.node.spec));
        let node = &self.entry.node;
        if let Some(set) = self.task_set().filter(|_| parked(&node.spec, self.said()).next().is_some()) {
            findings.extend(primary_parked(node, self.fold().map(|fold| &*fold.cluster), set.primary_tags()));
        }
        findings.extend(
            self.observation()
                .and_then(|seen| seen.not_taken.as_deref())
                .into_iter()
                .flat_map(|one| not_taken(object, one)),
        );
        findings
    }

    /// The findings of what the node is used for, among which errors may be.
    fn obstacles(&self, object: &str) -> Vec<Finding> {
        let mut findings: Vec<_> = self.ruled.notes.iter().map(|note| noted(object, note)).collect();
        findings.extend(self.unmet().iter().map(|unmet| unmet.finding(&self.entry.node)));
        if let Err(lacks) = self.check_instance() {
            findings.push(Finding::of(rule::INSTANCE_TRAITS, object, lacks.to_string()));
        }
        let of_tasks = self.task_set.iter().flat_map(|set| set.findings());
        findings.extend(of_tasks.map(|one| Finding { object: format!("{object} {}", one.object), ..one }));
        findings
    }

    /// What was said on the host itself and is in force at that time.
    pub fn findings_of_host(&self, now: Timestamp) -> Vec<Finding> {
        self.found_on_host(now).map(|(rule, message)| of_node(rule, &self.entry.node, message)).collect()
    }
}

fn noted(object: &str, note: &Note) -> Finding {
    let (rule, does) = match note.kind {
        NoteKind::Log => (rule::INSPECTION_LOG, "says"),
        NoteKind::Failed => (rule::INSPECTION_FAILED, "did nothing"),
        NoteKind::Refused => (rule::INSPECTION_REFUSED, "refuses it, and no rule behind it was asked"),
    };
    Finding::of(rule, object, format!("inspection rule {} {does}: {}", note.rule, on_one_line(&note.message)))
}

/// What texts within a sentence stand in, and how their escapes begin.
const QUOTES: [char; 3] = ['"', '\'', '\\'];

/// A sentence that may hold a host's text, on one line: what controls a terminal is shown as its escape. Quotes and backslashes stay, since
/// texts that stand in quotes are escaped already.
fn on_one_line(sentence: &str) -> String {
    let mut line = String::new();
    for piece in sentence.split_inclusive(QUOTES) {
        let text = piece.trim_end_matches(QUOTES);
        line.extend(text.escape_debug());
        line.push_str(&piece[text.len()..]);
    }
    line
}

fn not_taken(object: &str, left_out: &NotTaken) -> Vec<Finding> {
    let mut findings = Vec::new();
    if left_out.traits != RefusedTraits::default() {
        findings.push(refused_traits(object, &left_out.traits));
    }
    let mut parts = Vec::new();
    if left_out.facts > 0 {
        parts.push(facts_left_out(left_out.facts));
    }
    if left_out.labels > 0 {
        let most = format!(
            "at most {MAX_KEYS} are taken; a value has at most {MAX_VALUE} bytes, all together {MAX_EFFECTIVE}"
        );
        parts.push(format!("{} labels ({most})", left_out.labels));
    }
    if !parts.is_empty() {
        let message = format!("its host reports more than is taken; left out: {}", parts.join("; "));
        findings.push(Finding::of(rule::REPORT_LEFT_OUT, object, message));
    }
    findings
}

fn facts_left_out(count: u32) -> String {
    format!(
        "{count} facts (a path has at most {MAX_DEPTH} names and {MAX_FACT_PATH} bytes, a value {MAX_FACT} bytes, all together \
         {MAX_FACTS})"
    )
}

fn refused_traits(object: &str, refused: &RefusedTraits) -> Finding {
    let mut parts = Vec::new();
    if refused.unknown_count > 0 {
        let more = refused.unknown_count - refused.unknown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        parts.push(format!(
            "{}{more} (a standard name, or CUSTOM_ and then capitals, digits and '_', at most {MAX_TRAIT} characters)",
            refused.unknown.join(", ")
        ));
    }
    if refused.surplus > 0 {
        parts.push(format!("{} beyond the {MAX_TRAITS} that one source may give", refused.surplus));
    }
    let message = format!("its host reports traits that are not taken: {}", parts.join("; "));
    Finding::of(rule::TRAIT_REFUSED, object, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    #[test]
    fn no_remark_is_an_error() {
        let remarks = [
            rule::FIELD_IDLE,
            rule::LABEL_HELD_BACK,
            rule::LABEL_IDLE_NULL,
            rule::PRIMARY_PARKED,
            rule::REPORT_LEFT_OUT,
            rule::TRAIT_REFUSED,
        ];
        let said_on_host = [rule::HOST_HELD, rule::HOST_PARKED, rule::HOST_PAUSED];
        assert!(remarks.iter().chain(&said_on_host).all(|rule| rule.severity < Severity::Error));
    }

    #[test]
    fn x01_a_sentence_of_a_host_is_shown_on_one_line_and_cut() {
        assert_eq!(shown("a\nb\u{1b}[1m"), "a b [1m");
        assert_eq!(shown(&"ä".repeat(256)), "ä".repeat(256));
        assert_eq!(shown(&"ä".repeat(257)), format!("{}…", "ä".repeat(256)));
    }

    #[test]
    fn y03_what_a_rule_notes_is_escaped_once() {
        for (message, shown) in [
            (r#""hostcap" is no capability"#, r#""hostcap" is no capability"#),
            (r#""a\n" isn't one"#, r#""a\n" isn't one"#),
            ("a\nb\u{1b}[1m\u{202e}", r"a\nb\u{1b}[1m\u{202e}"),
            ("ä \u{1f600}", "ä \u{1f600}"),
        ] {
            assert_eq!(on_one_line(message), shown);
        }
    }

    #[test]
    fn refused_traits_are_told_by_what_is_wrong_with_them() {
        let beyond = format!("2 beyond the {MAX_TRAITS} that one source may give");
        let rule =
            format!("(a standard name, or CUSTOM_ and then capitals, digits and '_', at most {MAX_TRAIT} characters)");
        for (unknown_count, surplus, says) in [
            (0, 2, beyond.clone()),
            (1, 0, format!("\"a\" {rule}")),
            (3, 0, format!("\"a\" and 2 more {rule}")),
            (1, 2, format!("\"a\" {rule}; {beyond}")),
        ] {
            let unknown: Vec<Box<str>> = vec!["\"a\"".into(); usize::from(unknown_count > 0)];
            let refused = RefusedTraits { unknown: unknown.into(), unknown_count, surplus };
            let found = refused_traits("node/n", &refused);
            assert_eq!(found.message, format!("its host reports traits that are not taken: {says}"));
        }
    }
}
