//! Findings: what a person should know and nothing refuses.
//!
//! An error stops a write; a finding never does, unless its author asks for that (`--strict`). So it is plain data that every
//! stage of a decision may add to, and that `validate`, `apply`, `diff` and `resolve` print in the same form.
//! [`rule`] is the one table of codes and severities.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How much a finding matters. Ordered, the gravest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, nothing to do.
    Info,
    /// Something does not act as its author may think.
    Warning,
    /// Something is held back, or can never run, until a person acts.
    Error,
}

/// One finding: how grave, which rule, about what, and the sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("{severity} {code} {object}: {message}")]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The stable name of the rule, as `task.unplaced`.
    pub code: String,
    /// What it is about, as `node/web-1` or `release/site@1 task/ntp`.
    pub object: String,
    /// The sentence for people.
    pub message: String,
    /// The key of the object of a write by which it is so, where it is about another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
}

/// What is looked for: a stable code, and how much it matters where it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name, as `task.unplaced`.
    pub code: &'static str,
    /// How grave each finding of it is.
    pub severity: Severity,
    /// The field of a manifest that its findings are about, where their object names none.
    pub field: &'static str,
}

/// Every rule there is.
pub mod rule {
    use super::{Rule, Severity};

    macro_rules! rules {
        ($($severity:ident $name:ident $code:literal $(in $field:literal)?: $what:literal;)*) => {
            $(
                #[doc = $what]
                pub const $name: Rule =
                    Rule { code: $code, severity: Severity::$severity, field: concat!($($field)?) };
            )*
            /// All of them.
            pub const ALL: &[Rule] = &[$($name,)*];
        };
    }

    rules! {
        Info CATALOG_KEY "catalog.key": "A key is not in the catalogue, and is like one that is.";
        Warning CATALOG_OPERATOR "catalog.operator": "A requirement asks in a way that the catalogue does not allow.";
        Warning CATALOG_VALUE "catalog.value": "A value is none that the catalogue allows.";
        Warning CLOCK_JUMPED "clock.jumped": "The controller's clock is not where it was to be expected.";
        Warning CONDITION_FAILED "condition.failed": "A condition cannot be evaluated.";
        Error DESIRED_TOO_LARGE "desired.too_large": "A node would be told more than may be sent.";
        Info FIELD_IDLE "field.idle": "A field is given that nothing acts on yet.";
        Info FINDINGS_LEFT_OFF "findings.left_off": "More findings than are listed.";
        Warning FLEET_WAITING "fleet.waiting": "The store was restored and waits, and a node's host is told nothing.";
        Warning FUEL_UNTRANSLATED "fuel.untranslated": "An import has an expression that is not evaluated.";
        Error HOST_AHEAD "host.ahead": "A node's host holds a revision of another copy of the store, and is told nothing.";
        Warning HOST_AWAITED "host.awaited": "A node's host has not come since the present epoch of the store began.";
        Info HOST_HELD "host.held": "A node is held on its host.";
        Info HOST_PARKED "host.parked": "A node is parked on its host.";
        Warning HOST_PAUSED "host.paused": "A node is paused on its host.";
        Error HOST_STUCK "host.stuck": "A node's agent cannot keep or apply what it is told.";
        Error IDENTITY_DOUBLED "identity.doubled": "Two hosts check in with a node's identity.";
        Error INPUTS_SIZE "inputs.size": "A task reads more than may be sent.";
        Warning INSPECTION_FAILED "inspection.failed": "An inspection rule could not be asked of a report.";
        Info INSPECTION_LOG "inspection.log": "An inspection rule has something to say of a machine.";
        Error INSPECTION_REFUSED "inspection.refused": "An inspection rule says that a machine is not as it should be.";
        Error INSTANCE_TRAITS "instance.traits" in "instance_info": "A node has not the traits that its instance wants.";
        Warning LABEL_HELD_BACK "label.held_back" in "labels": "A label cannot flow to the host label map.";
        Warning LABEL_IDLE_NULL "label.idle_null" in "labels": "A label is null where nothing is merged.";
        Warning LABEL_VARIABLE "label.variable" in "labels": "Labels have one variable of labels.env, so that none is in it.";
        Warning MASTER_ABSENT "master.absent": "Tasks are placed on master, and no node has that name.";
        Warning NAME_RESERVED "name.reserved" in "name": "An object has a name that no new object is given.";
        Error NODE_INCOMPLETE "node.incomplete": "Something above a node is missing.";
        Warning PRIMARY_PARKED "primary.parked": "A node that is parked holds a tag as primary.";
        Warning PRIMARY_UNKNOWN "primary.unknown" in "primaries": "A primary is named that cannot hold its tag: an error where a write of that would be refused.";
        Warning REFERENCE_UNSET "reference.unset": "A template reads what hosts do not have.";
        Error RELEASE_BROKEN "release.broken": "A stored release does not compile.";
        Error RELEASE_REFUSED "release.refused": "What is released to a node is not stored: the store refuses it, or the records of its cluster's nodes would take too much.";
        Warning REPORT_FINDINGS "report.findings": "A host has findings of its own in what it reports.";
        Warning REPORT_LEFT_OUT "report.left_out": "A host reports more than is taken.";
        Error REPORT_REFUSED "report.refused": "What a host reported last was refused.";
        Warning REPORT_WAITING "report.waiting": "What a host reported last is not kept yet.";
        Warning REQUIREMENT_TEXT "requirement.text" in "requirements": "A requirement is an exact text that begins as an operator does.";
        Error REQUIREMENT_UNMET "requirement.unmet" in "requirements": "A node does not meet a requirement of its group.";
        Warning ROLE_CONFLICT "role.conflict" in "roles": "Roles that conflict meet on a node.";
        Warning ROLE_LIMIT "role.limit": "A role has too few or too many nodes.";
        Warning ROLE_PRIMARY "role.primary": "A role is named as the holder of a primary.";
        Warning ROLE_UNKNOWN "role.unknown" in "roles": "A role is declared nowhere.";
        Warning SELECTOR_ROLE "selector.role": "A selector names a role that is not declared.";
        Warning SELECTOR_TAG "selector.tag": "A selector names a tag that is not declared.";
        Error STAGE_CIRCLE "stage.circle": "A stage and tasks wait for each other, so that what the stage says of tasks is left out.";
        Warning TAG_UNDECLARED "tag.undeclared": "A role produces a tag that is not declared.";
        Info TAG_UNHELD "tag.unheld": "No node holds a predefined tag.";
        Warning TAG_UNKNOWN "tag.unknown" in "tags": "A tag is assigned that is declared nowhere.";
        Info TASK_CONTENT "task.content": "A file's content has a template's tag in it, and is written as it stands.";
        Warning TASK_LINK "task.link": "A task's path is a known link or leads through one, and hosts follow none.";
        Warning TASK_NOT_ASSERTED "task.not_asserted": "A privileged task is placed on a node by what no operator gave it.";
        Info TASK_ORPHANED "task.orphaned": "A task no longer runs on a node, or left a path there.";
        Error TASK_PARAMETERS "task.parameters": "A task has parameters that its type does not take.";
        Error TASK_PATH "task.path": "A task writes a path that another task of the node has, or names a path or a program that no host takes.";
        Warning TASK_PATTERN "task.pattern": "A pattern matches no task.";
        Warning TASK_TYPE "task.type": "A task has a type that no agent runs.";
        Info TASK_UNPLACED "task.unplaced": "A task runs on no node.";
        Warning TRAIT_REFUSED "trait.refused": "A host reports traits that are not taken.";
    }
}

impl Finding {
    /// The object that it is about, as a manifest's key, and the path of the field there; empty where it is about the whole.
    pub fn place(&self) -> (&str, &str) {
        let (object, field) = self.object.split_once(' ').unwrap_or((&self.object, ""));
        let of_rule = || rule::ALL.iter().find(|rule| rule.code == self.code).map_or("", |rule| rule.field);
        (object, if field.is_empty() { of_rule() } else { field })
    }

    /// A finding of a rule.
    pub fn of(rule: Rule, object: impl Into<String>, message: impl Into<String>) -> Self {
        let (object, message) = (object.into(), message.into());
        Self { severity: rule.severity, code: rule.code.to_owned(), object, message, written: None }
    }
}

/// Whether an error is among findings.
pub fn has_error(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Error)
}

/// The first error among findings that is of none of these rules.
pub fn error_beside<'a>(findings: &'a [Finding], rules: &[Rule]) -> Option<&'a Finding> {
    let is_of_these = |finding: &Finding| rules.iter().any(|rule| rule.code == finding.code);
    findings.iter().find(|finding| finding.severity == Severity::Error && !is_of_these(finding))
}

/// Each finding once, the gravest first, then by what it is about.
pub fn sort_findings(findings: &mut Vec<Finding>) {
    findings.sort_by(|a, b| (Reverse(a.severity), a).cmp(&(Reverse(b.severity), b)));
    findings.dedup();
}

/// The findings of one answer in the order of [`sort_findings`], no more than it lists. Each has the host that it is about, where one
/// is known.
#[derive(Debug)]
pub struct Gravest<H> {
    kept: BTreeMap<(Reverse<Severity>, Finding), Option<H>>,
    left_off: usize,
}

impl<H> Default for Gravest<H> {
    fn default() -> Self {
        Self { kept: BTreeMap::new(), left_off: 0 }
    }
}

impl<H> Gravest<H> {
    /// The most findings that one answer lists.
    const MOST: usize = 500;

    /// Takes in findings about no host in particular.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.extend_of(findings.into_iter().map(|finding| (finding, None)));
    }

    /// Takes in findings, each with its host.
    pub fn extend_of(&mut self, findings: impl IntoIterator<Item = (Finding, Option<H>)>) {
        for (finding, host) in findings {
            self.kept.entry((Reverse(finding.severity), finding)).or_insert(host);
            if self.kept.len() > Self::MOST {
                drop(self.kept.pop_last());
                self.left_off += 1;
            }
        }
    }

    /// The list; where some were left off, its last entry says how many.
    pub fn list(self, object: &str) -> Vec<Finding> {
        self.list_by(object, |finding, _| finding)
    }

    /// The same, each finished with the host that it is about.
    pub fn list_by(self, object: &str, finish: impl Fn(Finding, H) -> Finding) -> Vec<Finding> {
        let left_off = (self.left_off > 0).then(|| {
            let message = format!("{} more findings are not listed; none is graver than these", self.left_off);
            Finding::of(rule::FINDINGS_LEFT_OFF, object, message)
        });
        let finished = |((_, finding), host): ((Reverse<Severity>, Finding), Option<H>)| match host {
            Some(host) => finish(finding, host),
            None => finding,
        };
        self.kept.into_iter().map(finished).chain(left_off).collect()
    }
}

/// How many findings count where a person asks to be strict, in words; nothing where none does.
pub fn strictly(findings: &[Finding]) -> Option<String> {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let counted =
        |count: usize, word: &str| (count > 0).then(|| format!("{count} {word}{}", if count == 1 { "" } else { "s" }));
    let words: Vec<String> = [Severity::Error, Severity::Warning]
        .into_iter()
        .filter_map(|severity| counted(of(severity), &severity.to_string()))
        .collect();
    (!words.is_empty()).then(|| format!("{} among the findings", words.join(" and ")))
}

/// How many names a finding lists.
pub(crate) const FEW: usize = 3;

/// The first names of a sentence, and how many more there are: a finding may be about as many tasks as a release has.
pub fn first_few<'a>(names: impl Iterator<Item = &'a str>, most: usize) -> String {
    let names: Vec<&str> = names.collect();
    let (first, more) = names.split_at(names.len().min(most));
    match more.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_three_and_counts_the_others() {
        for (names, said) in
            [(&["a"][..], "a"), (&["a", "b", "c"], "a, b, c"), (&["a", "b", "c", "d", "e"], "a, b, c and 2 more")]
        {
            assert_eq!(first_few(names.iter().copied(), FEW), said);
        }
    }

    #[test]
    fn every_rule_of_an_error_is_one_among_findings() {
        for rule in rule::ALL {
            let found = [Finding::of(rule::FIELD_IDLE, "x", "y"), Finding::of(*rule, "x", "y")];
            assert_eq!(has_error(&found), rule.severity == Severity::Error, "{}", rule.code);
        }
    }

    #[test]
    fn the_gravest_are_kept_and_the_rest_is_counted() {
        let found = |severity, code, object: &str| Finding::of(Rule { code, severity, field: "" }, object, "said");
        let mut findings = Gravest::<()>::default();
        let infos = (0..600).map(|n| found(Severity::Info, "a.info", &format!("node/n{n:03}")));
        findings.extend(infos);
        findings.extend([found(Severity::Error, "z.error", "node/z"), found(Severity::Warning, "m.warning", "node/m")]);
        let list = findings.list("cluster/c");
        assert_eq!(list.len(), 501);
        assert_eq!((list[0].code.as_str(), list[1].code.as_str()), ("z.error", "m.warning"));
        assert_eq!((list[2].object.as_str(), list[499].object.as_str()), ("node/n000", "node/n497"));
        assert_eq!(
            list[500].to_string(),
            "info findings.left_off cluster/c: 102 more findings are not listed; none is graver than these"
        );
        let mut few = Gravest::<()>::default();
        few.extend([found(Severity::Info, "a", "b")]);
        assert_eq!(few.list("cluster/c").len(), 1);
    }

    #[test]
    fn errors_and_warnings_count_and_info_never_does() {
        let found = |rule| Finding::of(rule, "x", "y");
        let (info, warning, error) = (found(rule::FIELD_IDLE), found(rule::TASK_TYPE), found(rule::INPUTS_SIZE));
        for (findings, expected) in [
            (vec![], None),
            (vec![info.clone(), info.clone()], None),
            (vec![warning.clone(), info], Some("1 warning among the findings")),
            (vec![warning, error.clone(), error], Some("2 errors and 1 warning among the findings")),
        ] {
            assert_eq!(strictly(&findings).as_deref(), expected);
        }
    }

    #[test]
    fn a_finding_is_about_a_field_where_its_object_or_its_rule_names_one() {
        for (rule, object, expected) in [
            (
                rule::TASK_PARAMETERS,
                "release/site@1 task a parameters.mode",
                ("release/site@1", "task a parameters.mode"),
            ),
            (rule::ROLE_UNKNOWN, "nodegroup/prod/web", ("nodegroup/prod/web", "roles")),
            (rule::MASTER_ABSENT, "cluster/prod", ("cluster/prod", "")),
        ] {
            assert_eq!(Finding::of(rule, object, "said").place(), expected);
        }
    }
}
