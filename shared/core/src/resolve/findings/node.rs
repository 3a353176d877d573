//! What a person should know of one node.

use crate::finding::{Finding, rule};
use crate::idle;
use crate::input::MAX_DEPTH;
use crate::key::MAX_VALUE;
use crate::labels::MAX_EFFECTIVE;
use crate::name::cut;
use crate::object::{MAX_FACT, MAX_FACT_PATH, MAX_FACTS, NotTaken, RefusedTraits, SaidOnHost, Timestamp};
use crate::resolve::Answer;
use crate::traits::{MAX_TRAIT, MAX_TRAITS};

impl Answer {
    /// The findings about the node that hold at any time: odd labels, conditions that failed, requirements that are not met.
    pub fn findings(&self) -> Vec<Finding> {
        let object = format!("node/{}", self.entry.node.display_name());
        let mut findings = Vec::new();
        for key in self.host_labels().decide(&self.labels()).held_back {
            let message = format!("label {key} has no Kubernetes label value: it does not flow to the host label map");
            findings.push(Finding::of(rule::LABEL_HELD_BACK, object.as_str(), message));
        }
        for key in self.entry.node.spec.inherited.labels.idle_tombstones() {
            let message = format!("label {key} is null where nothing is merged: it has no effect");
            findings.push(Finding::of(rule::LABEL_IDLE_NULL, object.as_str(), message));
        }
        findings.extend(idle::findings(&object, &self.entry.node.spec));
        findings.extend(
            self.observation()
                .and_then(|seen| seen.not_taken.as_deref())
                .into_iter()
                .flat_map(|one| not_taken(&object, one)),
        );
        for unmet in self.unmet() {
            findings.push(Finding::of(rule::REQUIREMENT_UNMET, object.as_str(), unmet.to_string()));
        }
        if let Err(lacks) = self.check_instance() {
            findings.push(Finding::of(rule::INSTANCE_TRAITS, object.as_str(), lacks.to_string()));
        }
        let of_tasks = self.task_set.iter().flat_map(|set| &*set.findings);
        findings.extend(of_tasks.map(|one| Finding { object: format!("{object} {}", one.object), ..one.clone() }));
        findings
    }

    /// What was said on the host itself and is in force at that time.
    pub fn findings_of_host(&self, now: Timestamp) -> Vec<Finding> {
        let found = |said| said_findings(&format!("node/{}", self.entry.node.display_name()), said, now);
        self.said().map(found).unwrap_or_default()
    }
}

fn not_taken(object: &str, left_out: &NotTaken) -> Vec<Finding> {
    let mut findings = Vec::new();
    if left_out.traits != RefusedTraits::default() {
        findings.push(refused_traits(object, &left_out.traits));
    }
    let mut parts = Vec::new();
    if left_out.facts > 0 {
        parts.push(format!(
            "{} facts (a path has at most {MAX_DEPTH} names and {MAX_FACT_PATH} bytes, a value {MAX_FACT} bytes, all together \
             {MAX_FACTS})",
            left_out.facts
        ));
    }
    if left_out.labels > 0 {
        let most = format!("a value has at most {MAX_VALUE} bytes, all together {MAX_EFFECTIVE}");
        parts.push(format!("{} labels ({most})", left_out.labels));
    }
    if !parts.is_empty() {
        let message = format!("its host reports more than is taken; left out: {}", parts.join("; "));
        findings.push(Finding::of(rule::REPORT_LEFT_OUT, object, message));
    }
    findings
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

fn said_findings(object: &str, said: &SaidOnHost, now: Timestamp) -> Vec<Finding> {
    let because =
        |reason: &str| if reason.is_empty() { String::new() } else { format!(" ({})", cut(reason).escape_debug()) };
    let mut findings = Vec::new();
    if said.paused {
        let message = "it was paused on its host: nothing is applied there, and barriers wait for it, until `stemma-agent resume`";
        findings.push(Finding::of(rule::HOST_PAUSED, object, message));
    }
    if let Some((_, reason)) = said.held().filter(|(held, _)| held.is_in_force(now)) {
        let message = format!("it is held on its host{}: it keeps its task set", because(reason));
        findings.push(Finding::of(rule::HOST_HELD, object, message));
    }
    if let Some(reason) = &said.parked {
        let message = format!("it is parked on its host{}: barriers and primaries pass it over", because(reason));
        findings.push(Finding::of(rule::HOST_PARKED, object, message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_on_the_host_is_told_until_it_is_over() {
        let held = |until_s| SaidOnHost { hold: Some((until_s, "a disk".into())), ..SaidOnHost::default() };
        for (until_s, now_ms, is_told) in
            [(5, 4_999, true), (5, 5_000, false), (5, 9_000, false), (u64::MAX, 9_000, true)]
        {
            let found = said_findings("node/n", &held(until_s), Timestamp(now_ms));
            assert_eq!(!found.is_empty(), is_told, "{until_s} s at {now_ms} ms");
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
