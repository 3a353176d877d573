//! What this host has to report, and how much of it a controller has acknowledged.

use std::collections::BTreeMap;

use log::{info, warn};
use stemma_wire::message::channel::FromApply;
use stemma_wire::message::checkin::{CheckIn, GiveBack, Held, News};
use stemma_wire::message::observed::{LocalState, Observation, Progress, Report, TaskResult};
use stemma_wire::message::signed::LeaseKind;
use stemma_wire::message::{PartDigest, WireVersion, digest_part, encode_part};

use super::labels;
use crate::facts;
use crate::findings::bound;
use crate::hook_files;
use crate::host::Host;

/// How long a check-in waits while nothing runs. Below the 90 s after which a host counts as silent.
const WAIT_MS: u32 = 45_000;
/// The wait while tasks run, so that a controller gets their results soon.
const BUSY_WAIT_MS: u32 = 2_000;
/// The most results of one check-in.
const MOST_RESULTS: usize = 256;
/// The most findings of one report, and things given back by one check-in: as many as a controller reads.
const MOST_FINDINGS: usize = 256;
const MOST_GIVEN_BACK: usize = 1024;

/// What is to be reported.
#[derive(Default)]
pub(super) struct Outbox {
    boot_id: [u8; 16],
    held: Option<Held>,
    results: Vec<TaskResult>,
    /// What the network half observed. `applied` is what the root half observed.
    own: Observation,
    own_findings: Vec<String>,
    applied: Observation,
    observation: Observation,
    acknowledged: Option<PartDigest>,
    /// What the root half reported.
    report: Report,
    /// The facts of this half, which change by themselves.
    passing: BTreeMap<String, String>,
    report_is_new: bool,
    wants: Vec<LeaseKind>,
    gives_back: Vec<GiveBack>,
    /// How many of `gives_back` the last check-in sent.
    given_back: usize,
    local: LocalState,
}

impl Outbox {
    /// An outbox that has sent nothing, with what is observed now.
    pub(super) fn observe(host: &dyn Host) -> Self {
        let mut said = Self { boot_id: facts::boot_id(), report_is_new: true, ..Self::default() };
        said.observe_again(host);
        said
    }

    /// Observes again. Returns whether there is something new to report.
    pub(super) fn observe_again(&mut self, host: &dyn Host) -> bool {
        let labels = labels::read(host);
        let seen = facts::observe();
        self.own = Observation { facts: seen.stable, traits: seen.traits, labels: labels.labels };
        let findings = seen.findings.into_iter().chain(labels.findings).chain(hook_files::findings(host));
        let findings: Vec<String> = findings.collect();
        if findings != self.own_findings {
            for finding in findings.iter().filter(|finding| !self.own_findings.contains(finding)) {
                warn!(error = finding.as_str(); "something of this host's own files cannot be used");
            }
            if findings.is_empty() {
                info!("all of this host's own files can be used again");
            }
            self.own_findings = findings;
            self.report_is_new = true;
        }
        self.passing = seen.passing;
        self.merge() || self.report_is_new
    }

    /// Takes a message of the root half. Returns whether a controller should get it soon.
    pub(super) fn hear(&mut self, message: FromApply) -> bool {
        match message {
            FromApply::Hello { held, .. } => self.held = held,
            FromApply::Accepted(held) => self.held = Some(held),
            FromApply::Results(results) => {
                let last = self.results.last().map_or(0, |result| result.sequence);
                self.results.extend(results.into_iter().filter(|result| result.sequence > last));
            }
            FromApply::Observed(observation) => {
                self.applied = observation;
                return self.merge();
            }
            FromApply::Report(report) => {
                self.report = report;
                self.report_is_new = true;
            }
            FromApply::LeaseWanted(wants) => self.wants = wants,
            FromApply::GiveBack(gives) => self.gives_back.extend(gives),
            FromApply::Local(local) if local == self.local => return false,
            FromApply::Local(local) => self.local = local,
            FromApply::Want(_) | FromApply::Refused { .. } => return false,
        }
        true
    }

    /// The check-in that reports all of it, in a version.
    pub(super) fn check_in(&mut self, version: WireVersion) -> CheckIn {
        let digest = self.observation_digest(version);
        let report = std::mem::take(&mut self.report_is_new).then(|| {
            let mut report = self.report.clone();
            env!("CARGO_PKG_VERSION").clone_into(&mut report.agent_version);
            for (path, text) in &self.passing {
                report.facts.entry(path.clone()).or_insert_with(|| text.clone());
            }
            report.findings.extend(self.own_findings.iter().cloned());
            bound(&mut report.findings, MOST_FINDINGS);
            report.local = self.local.clone();
            report
        });
        self.given_back = self.gives_back.len().min(MOST_GIVEN_BACK);
        let is_busy = self.report.progress == Progress::Running || self.results.len() > MOST_RESULTS;
        CheckIn {
            boot_id: self.boot_id,
            held: self.held,
            results: self.results.iter().take(MOST_RESULTS).cloned().collect(),
            observation_digest: digest,
            observation: (self.acknowledged != Some(digest)).then(|| self.observation.clone()),
            report,
            wants: self.wants.clone(),
            gives_back: self.gives_back[..self.given_back].to_vec(),
            local: self.local.clone(),
            wait_ms: if is_busy { BUSY_WAIT_MS } else { WAIT_MS },
        }
    }

    /// Drops what a controller has acknowledged.
    pub(super) fn acknowledged(&mut self, news: &News) {
        self.results.retain(|result| result.sequence > news.acknowledged);
        self.gives_back.drain(..std::mem::take(&mut self.given_back));
        if news.observation.is_some() {
            self.acknowledged = news.observation;
        }
    }

    /// Reports everything again: the last check-in was lost, or another controller is asked.
    pub(super) fn again(&mut self) {
        self.report_is_new = true;
        self.acknowledged = None;
    }

    /// The digest of what is observed now, in a version.
    pub(super) fn observation_digest(&self, version: WireVersion) -> PartDigest {
        digest_part(version, &encode_part(version, &self.observation))
    }

    /// Both halves' observations in one; the host's own files speak before the host label map.
    fn merge(&mut self) -> bool {
        let mut merged = self.own.clone();
        merged.facts.extend(self.applied.facts.clone());
        merged.traits.extend(self.applied.traits.iter().cloned());
        merged.traits.sort();
        merged.traits.dedup();
        for (key, label) in &self.applied.labels {
            merged.labels.entry(key.clone()).or_insert_with(|| label.clone());
        }
        let is_new = merged != self.observation;
        self.observation = merged;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::ledger::tests::result;
    use crate::host::memory::MemoryHost;

    fn news(acknowledged: u64, observation: Option<PartDigest>) -> News {
        News { acknowledged, observation, desired: None, grants: Vec::new(), next_ms: 0 }
    }

    #[test]
    fn what_was_not_answered_is_said_again() {
        let mut said = Outbox::observe(&MemoryHost::new());
        let back = GiveBack::Primary("mysql".to_owned());
        assert!(said.hear(FromApply::GiveBack(vec![back.clone()])));
        let first = said.check_in(WireVersion::CURRENT);
        assert!(first.observation.is_some() && first.report.is_some());
        assert_eq!(first.gives_back, std::slice::from_ref(&back));

        said.again();
        let second = said.check_in(WireVersion::CURRENT);
        assert_eq!((second.observation.is_some(), second.report.is_some()), (true, true));
        assert_eq!(second.gives_back, [back]);

        assert!(said.hear(FromApply::GiveBack(vec![GiveBack::Lease(LeaseKind::Mend)])));
        said.acknowledged(&news(0, Some(second.observation_digest)));
        let third = said.check_in(WireVersion::CURRENT);
        assert_eq!((third.observation, third.report), (None, None));
        assert_eq!(third.gives_back, [GiveBack::Lease(LeaseKind::Mend)], "what came after the check-in is not lost");
    }

    #[test]
    fn results_that_do_not_all_fit_are_followed_by_the_rest_soon() {
        let mut said = Outbox::observe(&MemoryHost::new());
        let result = |sequence| TaskResult { sequence, ..result("motd") };
        said.hear(FromApply::Results((1..=300).map(result).collect()));
        let first = said.check_in(WireVersion::CURRENT);
        assert_eq!((first.results.len(), first.wait_ms), (256, 2_000));
        said.acknowledged(&news(256, None));
        let rest = said.check_in(WireVersion::CURRENT);
        assert_eq!((rest.results.len(), rest.wait_ms), (44, 45_000));
    }

    #[test]
    fn y06_a_fact_of_the_root_half_goes_when_it_no_longer_says_it_and_those_of_this_half_stay() {
        let mut said = Outbox::observe(&MemoryHost::new());
        said.passing = [("load".to_owned(), "1".to_owned())].into();
        let mut facts = |stuck: Option<&str>| {
            let facts = stuck.map(|why| ("agent.stuck".to_owned(), why.to_owned())).into_iter().collect();
            said.hear(FromApply::Report(Report { facts, ..Report::default() }));
            said.check_in(WireVersion::CURRENT).report.unwrap().facts.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(facts(Some("\"full\"")), ["agent.stuck", "load"]);
        assert_eq!(facts(None), ["load"]);
    }

    /// It came when a label changed, and stayed until the next one did.
    #[test]
    fn y08_what_is_not_run_of_the_hooks_is_reported_while_it_is_there() {
        let host = MemoryHost::new();
        let mut said = Outbox::observe(&host);
        let reported = |said: &mut Outbox| {
            let is_new = said.observe_again(&host);
            let findings = said.check_in(WireVersion::CURRENT).report.map(|report| report.findings).unwrap_or_default();
            let of_hooks = findings.into_iter().filter(|finding| finding.contains("hooks.d"));
            (is_new, of_hooks.map(|finding| finding.split_once(": a name").unwrap().0.to_owned()).collect::<Vec<_>>())
        };
        let put = |name: &str| {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), 0o755);
        };
        let left_out = |names: &str| vec![format!("/etc/stemma/hooks.d: left out by their names: {names}")];
        reported(&mut said);
        put("10-a.sh");
        assert_eq!(reported(&mut said), (true, left_out(r#""10-a.sh""#)));
        put("20-b.sh");
        assert_eq!(reported(&mut said), (true, left_out(r#""10-a.sh", "20-b.sh""#)));
        host.delete("/etc/stemma/hooks.d/10-a.sh");
        host.delete("/etc/stemma/hooks.d/20-b.sh");
        assert_eq!(reported(&mut said), (true, vec![]));
    }

    #[test]
    fn x01_a_report_has_no_more_findings_than_a_controller_reads_and_says_how_many_there_are_more() {
        let mut said = Outbox::observe(&MemoryHost::new());
        // What this machine is seen to lack is none of the test's.
        said.own_findings.clear();
        let report = Report { findings: vec!["x".to_owned(); 300], ..Report::default() };
        said.hear(FromApply::Report(report));
        let findings = said.check_in(WireVersion::CURRENT).report.unwrap().findings;
        assert_eq!(findings.len(), 256);
        assert_eq!(findings[254..], ["x", "and 45 more findings: the first 255 are named"]);
    }
}
