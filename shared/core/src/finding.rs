//! Findings: messages about a state that a person should know, and that is no reason to refuse a write.
//!
//! An error stops a write. A finding does not, unless the author requests it (`--strict`). So a finding is plain data
//! that every stage of a decision may add, and that `validate`, `apply`, `diff` and `resolve` print in the same form.
//! [`rule`] is the only table of codes and severities.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Useful to know. No action is required.
    Info,
    /// Something may not work as its author expects.
    Warning,
    /// Something does not work until a person acts. For example, a task or a whole desired state is withheld.
    Error,
}

/// A message about a state of an object that a person should know, with its severity and rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("{severity} {code} {object}: {message}")]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The stable code of the rule, for example `task.unplaced`.
    pub code: String,
    /// The object that the finding is about, for example `node/web-1`. The path of a field may follow after a space, as
    /// in `release/site@1 task ntp parameters.path`.
    pub object: String,
    /// The message for people.
    pub message: String,
    /// The object whose write causes this finding, as `KIND/NAME`, if the finding is about another object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "written")]
    pub caused_by: Option<String>,
}

/// A kind of finding: its stable code, its usual severity and the field that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The stable code of the rule, for example `task.unplaced`.
    pub code: &'static str,
    /// The usual severity of a finding of this rule. Code may give a single finding a higher or lower severity.
    pub severity: Severity,
    /// The manifest field that the findings are about. Used if the object of a finding names no field. Empty if the
    /// findings are about whole objects.
    pub field: &'static str,
}

/// The rules of findings, one constant for each.
pub mod rule {
    use super::{Rule, Severity};

    macro_rules! rules {
        ($($severity:ident $name:ident $code:literal $(in $field:literal)?: $what:literal;)*) => {
            $(
                #[doc = $what]
                pub const $name: Rule =
                    Rule { code: $code, severity: Severity::$severity, field: concat!($($field)?) };
            )*
            /// All rules of findings.
            pub const ALL: &[Rule] = &[$($name,)*];
        };
    }

    rules! {
        Info CATALOG_KEY "catalog.key": "A key is not in the catalogue but resembles one that is.";
        Warning CATALOG_OPERATOR "catalog.operator": "A requirement is of a form that the catalogue does not allow.";
        Warning CATALOG_VALUE "catalog.value": "A value is not allowed by the catalogue.";
        Warning CLOCK_JUMPED "clock.jumped": "The controller's clock jumped.";
        Warning CONDITION_FAILED "condition.failed": "A condition cannot be evaluated.";
        Error DESIRED_TOO_LARGE "desired.too_large": "A node's desired state is too large to be sent.";
        Info FIELD_IDLE "field.idle": "A field is set that nothing uses yet.";
        Info FINDINGS_LEFT_OFF "findings.left_off": "More findings than are listed.";
        Warning FLEET_WAITING "fleet.waiting": "The store was restored and waits, so nothing is sent to a node's host.";
        Warning FUEL_REFERENCE "fuel.reference": "A dependency of an imported task on a task that the imported graph does not have is dropped.";
        Warning FUEL_UNTRANSLATED "fuel.untranslated": "A value of an imported task is not translated, for example an expression.";
        Error HOST_AHEAD "host.ahead": "A node's host holds a revision of another copy of the store, so nothing is sent to it.";
        Warning HOST_AWAITED "host.awaited": "A node's host has not checked in since the current epoch of the store began.";
        Info HOST_HELD "host.held": "A node is held on its host.";
        Info HOST_PARKED "host.parked": "A node is parked on its host.";
        Warning HOST_PAUSED "host.paused": "A node is paused on its host.";
        Error HOST_STUCK "host.stuck": "A node's agent cannot store or apply its desired state.";
        Error IDENTITY_DOUBLED "identity.doubled": "Two hosts check in with a node's identity.";
        Error INPUTS_SIZE "inputs.size": "A task's inputs are too large to be sent.";
        Warning INSPECTION_FAILED "inspection.failed": "An inspection rule could not be evaluated for a report.";
        Info INSPECTION_LOG "inspection.log": "An inspection rule logs a message about a machine.";
        Error INSPECTION_REFUSED "inspection.refused": "An inspection rule refuses a machine.";
        Error INSTANCE_TRAITS "instance.traits" in "instance_info": "A node lacks traits that its instance requires.";
        Warning LABEL_HELD_BACK "label.held_back" in "labels": "A label cannot be exported to the host label map.";
        Warning LABEL_IDLE_NULL "label.idle_null" in "labels": "A label is null where nothing is merged.";
        Warning LABEL_VARIABLE "label.variable" in "labels": "Several labels have the same variable in labels.env, so it has none of them.";
        Warning MASTER_ABSENT "master.absent": "Tasks are placed on master, and no node has that name.";
        Warning NAME_RESERVED "name.reserved" in "name": "An object has a name that new objects cannot have.";
        Error NODE_INCOMPLETE "node.incomplete": "An object above a node is missing.";
        Warning PRIMARY_PARKED "primary.parked": "A node that is parked holds a tag as primary.";
        Warning PRIMARY_UNKNOWN "primary.unknown" in "primaries": "A named primary cannot hold its tag. It is an error if a write of the name would be refused.";
        Warning REBOOT_WANTED "reboot.wanted": "A task asks for a reboot of its host, or the reboot that an operator began has not happened.";
        Warning REFERENCE_UNSET "reference.unset": "A template reads what hosts do not have.";
        Error RELEASE_BROKEN "release.broken": "A stored release does not compile.";
        Error RELEASE_REFUSED "release.refused": "A node's released task set is not stored: the store refuses it, or the records of its cluster's nodes would be too large.";
        Warning REPORT_FINDINGS "report.findings": "A host reports findings of its own.";
        Warning REPORT_LEFT_OUT "report.left_out": "A host reports more than is accepted.";
        Error REPORT_REFUSED "report.refused": "The last report of a host was refused.";
        Warning REPORT_WAITING "report.waiting": "The last report of a host is not stored yet.";
        Warning REQUIREMENT_TEXT "requirement.text" in "requirements": "A requirement is an exact text that begins like an operator.";
        Error REQUIREMENT_UNMET "requirement.unmet" in "requirements": "A node does not meet a requirement of its group.";
        Warning ROLE_CONFLICT "role.conflict" in "roles": "A node has roles that conflict.";
        Warning ROLE_LIMIT "role.limit": "A role has too few or too many nodes.";
        Warning ROLE_PRIMARY "role.primary": "A role is named as the holder of a primary.";
        Warning ROLE_UNKNOWN "role.unknown" in "roles": "A role is not declared anywhere.";
        Warning SELECTOR_ROLE "selector.role": "A selector names a role that is not declared.";
        Warning SELECTOR_TAG "selector.tag": "A selector names a tag that is not declared.";
        Error STAGE_CIRCLE "stage.circle": "A stage and tasks wait for each other, so the stage's dependencies on tasks are ignored.";
        Warning TAG_UNDECLARED "tag.undeclared": "A role produces a tag that is not declared.";
        Info TAG_UNHELD "tag.unheld": "No node holds a predefined tag.";
        Warning TAG_UNKNOWN "tag.unknown" in "tags": "A tag is assigned that is not declared anywhere.";
        Warning TASK_CONFLICT "task.conflict": "Two tasks of a node want one package, unit, user or group in different ways.";
        Info TASK_CONTENT "task.content": "A text that hosts do not render, such as a file's content, contains a template tag.";
        Warning TASK_LINK "task.link": "A task's path is a known link or leads through one, and hosts follow no links.";
        Warning TASK_NOT_ASSERTED "task.not_asserted": "A privileged task is placed on a node by a name that no operator assigned.";
        Info TASK_ORPHANED "task.orphaned": "A task no longer runs on a node, or left a file or another object there.";
        Error TASK_PARAMETERS "task.parameters": "A task has parameters that its type does not accept.";
        Error TASK_PATH "task.path": "A task writes a path of another task of the node, or has a path or a program that no host accepts.";
        Warning TASK_PATTERN "task.pattern": "A pattern matches no task.";
        Warning TASK_TYPE "task.type": "A task has a type or parameter that the agents of some of its hosts do not know.";
        Warning TASK_UNASSIGN "task.unassign": "The `on_unassign` task of a task that is no longer placed on a node has not succeeded.";
        Info TASK_UNPLACED "task.unplaced": "A task runs on no node.";
        Warning TRAIT_REFUSED "trait.refused": "A host reports traits that are not accepted.";
    }
}

impl Finding {
    /// Returns the object that the finding is about, as `KIND/NAME`, and the path of the field in it. If the finding
    /// names no field, this is the field of its rule. The path is empty if the finding is about the whole object.
    pub fn object_and_field(&self) -> (&str, &str) {
        let (object, field) = self.object.split_once(' ').unwrap_or((&self.object, ""));
        let rule_field = || rule::ALL.iter().find(|rule| rule.code == self.code).map_or("", |rule| rule.field);
        (object, if field.is_empty() { rule_field() } else { field })
    }

    /// Creates a finding of a rule about an object.
    pub fn new(rule: Rule, object: impl Into<String>, message: impl Into<String>) -> Self {
        let (object, message) = (object.into(), message.into());
        Self { severity: rule.severity, code: rule.code.to_owned(), object, message, caused_by: None }
    }
}

/// Returns whether at least one of the findings is an error.
pub fn has_error(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Error)
}

/// Returns the first finding that is an error and is not of one of these rules.
pub fn first_error_except<'a>(findings: &'a [Finding], rules: &[Rule]) -> Option<&'a Finding> {
    let has_excepted_rule = |finding: &Finding| rules.iter().any(|rule| rule.code == finding.code);
    findings.iter().find(|finding| finding.severity == Severity::Error && !has_excepted_rule(finding))
}

/// Sorts findings by severity, the most severe first, then by code and then by object. Removes duplicates.
pub fn sort_findings(findings: &mut Vec<Finding>) {
    findings.sort_by(|a, b| (Reverse(a.severity), a).cmp(&(Reverse(b.severity), b)));
    findings.dedup();
}

/// The most severe findings of one response, in the order of [`sort_findings`]. The number of listed findings is
/// limited, and the others are only counted. `H` is the host that a finding is about, if any.
#[derive(Debug)]
pub struct TopFindings<H> {
    /// The listed findings, each with its host.
    findings: BTreeMap<(Reverse<Severity>, Finding), Option<H>>,
    /// Number of findings that are not listed.
    dropped_count: usize,
}

impl<H> Default for TopFindings<H> {
    fn default() -> Self {
        Self { findings: BTreeMap::new(), dropped_count: 0 }
    }
}

impl<H> TopFindings<H> {
    /// Maximum number of findings that one response lists, besides the finding that contains the number of the others.
    const MAX_LISTED: usize = 500;

    /// Adds findings without a host.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.extend_with_hosts(findings.into_iter().map(|finding| (finding, None)));
    }

    /// Adds findings, each with the host that it is about, if any. A finding that is listed already is not added again.
    /// Beyond the maximum, the least severe finding is dropped and counted.
    pub fn extend_with_hosts(&mut self, findings: impl IntoIterator<Item = (Finding, Option<H>)>) {
        for (finding, host) in findings {
            self.findings.entry((Reverse(finding.severity), finding)).or_insert(host);
            if self.findings.len() > Self::MAX_LISTED {
                drop(self.findings.pop_last());
                self.dropped_count += 1;
            }
        }
    }

    /// Returns the listed findings. If others were dropped, a last finding about `object` contains their number.
    pub fn into_list(self, object: &str) -> Vec<Finding> {
        self.into_list_with(object, |finding, _| finding)
    }

    /// Returns the list as [`into_list`](Self::into_list) does. Each finding with a host is replaced by the result of
    /// `finish`.
    pub fn into_list_with(self, object: &str, finish: impl Fn(Finding, H) -> Finding) -> Vec<Finding> {
        let remainder = (self.dropped_count > 0).then(|| {
            let message = format!("{} more findings are not listed; none is graver than these", self.dropped_count);
            Finding::new(rule::FINDINGS_LEFT_OFF, object, message)
        });
        let finished = |((_, finding), host): ((Reverse<Severity>, Finding), Option<H>)| match host {
            Some(host) => finish(finding, host),
            None => finding,
        };
        self.findings.into_iter().map(finished).chain(remainder).collect()
    }
}

/// Returns a text with the number of errors and warnings among the findings. A strict write is refused for these.
/// Returns `None` if there are none.
pub fn strict_summary(findings: &[Finding]) -> Option<String> {
    let count_of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let phrase = |count: usize, word: &str| (count > 0).then(|| format!("{count} {word}{}", if count == 1 { "" } else { "s" }));
    let words: Vec<String> = [Severity::Error, Severity::Warning]
        .into_iter()
        .filter_map(|severity| phrase(count_of(severity), &severity.to_string()))
        .collect();
    (!words.is_empty()).then(|| format!("{} among the findings", words.join(" and ")))
}

/// Usual maximum number of names that a finding lists.
pub(crate) const MAX_NAMES: usize = 3;

/// Joins the first `max_names` names with commas, and adds the number of the others. A finding may be about all tasks
/// of a release, so its list of names is limited.
pub fn join_first<'a>(names: impl Iterator<Item = &'a str>, max_names: usize) -> String {
    let names: Vec<&str> = names.collect();
    let (listed, omitted) = names.split_at(names.len().min(max_names));
    match omitted.len() {
        0 => listed.join(", "),
        omitted => format!("{} and {omitted} more", listed.join(", ")),
    }
}

/// Maximum number of characters that a message shows of a text that a host sent.
const MAX_SHOWN_CHARS: usize = 256;

/// Returns a text that a host sent, on one line and cut at [`MAX_SHOWN_CHARS`] characters.
pub(crate) fn shorten(sentence: &str) -> String {
    let mut characters = sentence.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = characters.by_ref().take(MAX_SHOWN_CHARS).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x01_shorten_replaces_controls_and_truncates() {
        assert_eq!(shorten("a\nb\u{1b}[1m"), "a b [1m");
        assert_eq!(shorten(&"ä".repeat(256)), "ä".repeat(256));
        assert_eq!(shorten(&"ä".repeat(257)), format!("{}…", "ä".repeat(256)));
    }

    #[test]
    fn join_first_names_three_and_counts_others() {
        for (names, expected) in
            [(&["a"][..], "a"), (&["a", "b", "c"], "a, b, c"), (&["a", "b", "c", "d", "e"], "a, b, c and 2 more")]
        {
            assert_eq!(join_first(names.iter().copied(), MAX_NAMES), expected);
        }
    }

    #[test]
    fn has_error_is_true_only_for_error_rules() {
        for rule in rule::ALL {
            let findings = [Finding::new(rule::FIELD_IDLE, "x", "y"), Finding::new(*rule, "x", "y")];
            assert_eq!(has_error(&findings), rule.severity == Severity::Error, "{}", rule.code);
        }
    }

    /// Of 600 infos, an error and a warning, 500 findings are listed, the gravest first. One more finding counts the
    /// 102 others.
    #[test]
    fn top_findings_keeps_gravest_and_counts_others() {
        let test_finding = |severity, code, object: &str| Finding::new(Rule { code, severity, field: "" }, object, "said");
        let mut findings = TopFindings::<()>::default();
        let infos = (0..600).map(|number| test_finding(Severity::Info, "a.info", &format!("node/n{number:03}")));
        findings.extend(infos);
        findings
            .extend([test_finding(Severity::Error, "z.error", "node/z"), test_finding(Severity::Warning, "m.warning", "node/m")]);
        let list = findings.into_list("cluster/c");
        assert_eq!(list.len(), 501);
        assert_eq!((list[0].code.as_str(), list[1].code.as_str()), ("z.error", "m.warning"));
        assert_eq!((list[2].object.as_str(), list[499].object.as_str()), ("node/n000", "node/n497"));
        assert_eq!(
            list[500].to_string(),
            "info findings.left_off cluster/c: 102 more findings are not listed; none is graver than these"
        );
        let mut few_findings = TopFindings::<()>::default();
        few_findings.extend([test_finding(Severity::Info, "a", "b")]);
        assert_eq!(few_findings.into_list("cluster/c").len(), 1);
    }

    #[test]
    fn strict_summary_counts_errors_and_warnings_only() {
        let test_finding = |rule| Finding::new(rule, "x", "y");
        let (info, warning, error) =
            (test_finding(rule::FIELD_IDLE), test_finding(rule::TASK_TYPE), test_finding(rule::INPUTS_SIZE));
        for (findings, expected) in [
            (vec![], None),
            (vec![info.clone(), info.clone()], None),
            (vec![warning.clone(), info], Some("1 warning among the findings")),
            (vec![warning, error.clone(), error], Some("2 errors and 1 warning among the findings")),
        ] {
            assert_eq!(strict_summary(&findings).as_deref(), expected);
        }
    }

    /// The field is in the object of the finding, or is that of the rule, or there is none.
    #[test]
    fn object_and_field_names_field_when_object_or_rule_does() {
        for (rule, object, expected) in [
            (rule::TASK_PARAMETERS, "release/site@1 task a parameters.mode", ("release/site@1", "task a parameters.mode")),
            (rule::ROLE_UNKNOWN, "nodegroup/prod/web", ("nodegroup/prod/web", "roles")),
            (rule::MASTER_ABSENT, "cluster/prod", ("cluster/prod", "")),
        ] {
            assert_eq!(Finding::new(rule, object, "said").object_and_field(), expected);
        }
    }
}
