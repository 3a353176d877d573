//! The outbox: what this host has to report, and which parts of the report a controller has acknowledged.

use std::collections::BTreeMap;

use log::{info, warn};
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::checkin::{CheckIn, CheckInUpdate, HeldDesired, ReturnedItem};
use stemma_wire::message::observed::{LocalState, Observation, Progress, Report, TaskResult};
use stemma_wire::message::signed::LeaseKind;
use stemma_wire::message::{PartDigest, WireVersion, digest_part, encode_part};

use super::labels;
use crate::facts;
use crate::findings::limit;
use crate::hook_files;
use crate::host::Host;

/// Wait of a check-in while no task runs, in milliseconds. Less than the 90 s after which a host counts as silent.
const WAIT_MS: u32 = 45_000;
/// Wait of a check-in while tasks run, in milliseconds, so that a controller gets their results soon.
const BUSY_WAIT_MS: u32 = 2_000;
/// Maximum number of results in one check-in.
const MAX_RESULTS: usize = 256;
/// Maximum number of findings in a report. It is the limit of the controller.
const MAX_FINDINGS: usize = 256;
/// Maximum number of returned items in a check-in. It is the limit of the controller.
const MAX_RETURNED_ITEMS: usize = 1024;

/// Everything that this host has to report.
#[derive(Default)]
pub(super) struct Outbox {
    boot_id: [u8; 16],
    held_desired: Option<HeldDesired>,
    results: Vec<TaskResult>,
    /// The observation of the network half. `apply_observation` is the observation of the root half, and `observation`
    /// is both, merged.
    own_observation: Observation,
    own_findings: Vec<String>,
    apply_observation: Observation,
    observation: Observation,
    acknowledged_digest: Option<PartDigest>,
    /// The last report of the root half.
    report: Report,
    /// The volatile facts, collected by the network half.
    volatile: BTreeMap<String, String>,
    has_new_report: bool,
    requested_leases: Vec<LeaseKind>,
    returned_items: Vec<ReturnedItem>,
    /// Number of `returned_items` in the last check-in.
    sent_returned_items: usize,
    local_state: LocalState,
}

impl Outbox {
    /// Creates an outbox from which nothing was sent yet, with a new observation of the host.
    pub(super) fn observe(host: &dyn Host) -> Self {
        let mut outbox = Self { boot_id: facts::boot_id(), has_new_report: true, ..Self::default() };
        outbox.refresh_observation(host);
        outbox
    }

    /// Reads facts, label files and hooks of the host again. Logs new findings. Returns whether there is something new
    /// to report.
    pub(super) fn refresh_observation(&mut self, host: &dyn Host) -> bool {
        let labels = labels::read(host);
        let host_facts = facts::observe();
        self.own_observation = Observation { facts: host_facts.stable, traits: host_facts.traits, labels: labels.labels };
        let findings = host_facts.findings.into_iter().chain(labels.findings).chain(hook_files::findings(host));
        let findings: Vec<String> = findings.collect();
        if findings != self.own_findings {
            for finding in findings.iter().filter(|finding| !self.own_findings.contains(finding)) {
                warn!(error = finding.as_str(); "a label file or hook of this host cannot be used");
            }
            if findings.is_empty() {
                info!("all of this host's own files can be used again");
            }
            self.own_findings = findings;
            self.has_new_report = true;
        }
        self.volatile = host_facts.volatile;
        self.merge_observations() || self.has_new_report
    }

    /// Stores what a message of the root half contains. Returns whether a controller should get it soon.
    pub(super) fn handle_message(&mut self, message: ApplyMessage) -> bool {
        match message {
            ApplyMessage::Hello { held, .. } => self.held_desired = held,
            ApplyMessage::Accepted(held) => self.held_desired = Some(held),
            ApplyMessage::Results(results) => {
                let last = self.results.last().map_or(0, |result| result.sequence);
                self.results.extend(results.into_iter().filter(|result| result.sequence > last));
            }
            ApplyMessage::Observed(observation) => {
                self.apply_observation = observation;
                return self.merge_observations();
            }
            ApplyMessage::Report(report) => {
                self.report = report;
                self.has_new_report = true;
            }
            ApplyMessage::LeaseRequest(wants) => self.requested_leases = wants,
            ApplyMessage::Returned(items) => self.returned_items.extend(items),
            ApplyMessage::Local(local) if local == self.local_state => return false,
            ApplyMessage::Local(local) => self.local_state = local,
            ApplyMessage::ContentRequest(_) | ApplyMessage::Refused { .. } => return false,
        }
        true
    }

    /// Builds the next check-in, in this wire version. It contains all that no controller has acknowledged, up to the
    /// maximum numbers.
    pub(super) fn check_in(&mut self, version: WireVersion) -> CheckIn {
        let digest = self.observation_digest(version);
        let report = std::mem::take(&mut self.has_new_report).then(|| {
            let mut report = self.report.clone();
            env!("CARGO_PKG_VERSION").clone_into(&mut report.agent_version);
            for (path, text) in &self.volatile {
                report.facts.entry(path.clone()).or_insert_with(|| text.clone());
            }
            report.findings.extend(self.own_findings.iter().cloned());
            limit(&mut report.findings, MAX_FINDINGS);
            report.local = self.local_state.clone();
            report
        });
        self.sent_returned_items = self.returned_items.len().min(MAX_RETURNED_ITEMS);
        let is_busy = self.report.progress == Progress::Running || self.results.len() > MAX_RESULTS;
        CheckIn {
            boot_id: self.boot_id,
            held_desired: self.held_desired,
            results: self.results.iter().take(MAX_RESULTS).cloned().collect(),
            observation_digest: digest,
            observation: (self.acknowledged_digest != Some(digest)).then(|| self.observation.clone()),
            report,
            requested_leases: self.requested_leases.clone(),
            returned_items: self.returned_items[..self.sent_returned_items].to_vec(),
            local: self.local_state.clone(),
            wait_ms: if is_busy { BUSY_WAIT_MS } else { WAIT_MS },
        }
    }

    /// Removes the results and returned items that a controller has acknowledged, and stores the digest of the
    /// observation that it has.
    pub(super) fn on_acknowledged(&mut self, update: &CheckInUpdate) {
        self.results.retain(|result| result.sequence > update.acknowledged);
        self.returned_items.drain(..std::mem::take(&mut self.sent_returned_items));
        if update.observation.is_some() {
            self.acknowledged_digest = update.observation;
        }
    }

    /// Marks everything to be reported again: the last check-in was lost, or another controller is used.
    pub(super) fn resend_all(&mut self) {
        self.has_new_report = true;
        self.acknowledged_digest = None;
    }

    /// Returns the digest of the current observation, in this version.
    pub(super) fn observation_digest(&self, version: WireVersion) -> PartDigest {
        digest_part(version, &encode_part(version, &self.observation))
    }

    /// Merges the observations of both halves of the agent. Labels in the label files take precedence over labels in
    /// the host label map. Returns whether the result differs from the last one.
    fn merge_observations(&mut self) -> bool {
        let mut merged = self.own_observation.clone();
        merged.facts.extend(self.apply_observation.facts.clone());
        merged.traits.extend(self.apply_observation.traits.iter().cloned());
        merged.traits.sort();
        merged.traits.dedup();
        for (key, label) in &self.apply_observation.labels {
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

    fn news(acknowledged: u64, observation: Option<PartDigest>) -> CheckInUpdate {
        CheckInUpdate { acknowledged, observation, desired: None, grants: Vec::new(), next_check_in_ms: 0 }
    }

    #[test]
    fn check_in_repeats_report_when_unanswered() {
        let mut said = Outbox::observe(&MemoryHost::new());
        let back = ReturnedItem::Primary("mysql".to_owned());
        assert!(said.handle_message(ApplyMessage::Returned(vec![back.clone()])));
        let first = said.check_in(WireVersion::CURRENT);
        assert!(first.observation.is_some() && first.report.is_some());
        assert_eq!(first.returned_items, std::slice::from_ref(&back));

        said.resend_all();
        let second = said.check_in(WireVersion::CURRENT);
        assert_eq!((second.observation.is_some(), second.report.is_some()), (true, true));
        assert_eq!(second.returned_items, [back]);

        assert!(said.handle_message(ApplyMessage::Returned(vec![ReturnedItem::Lease(LeaseKind::Mend)])));
        said.on_acknowledged(&news(0, Some(second.observation_digest)));
        let third = said.check_in(WireVersion::CURRENT);
        assert_eq!((third.observation, third.report), (None, None));
        assert_eq!(third.returned_items, [ReturnedItem::Lease(LeaseKind::Mend)], "what came after the check-in is not lost");
    }

    #[test]
    fn results_are_split_over_check_ins_when_too_many() {
        let mut said = Outbox::observe(&MemoryHost::new());
        let result = |sequence| TaskResult { sequence, ..result("motd") };
        said.handle_message(ApplyMessage::Results((1..=300).map(result).collect()));
        let first = said.check_in(WireVersion::CURRENT);
        assert_eq!((first.results.len(), first.wait_ms), (256, 2_000));
        said.on_acknowledged(&news(256, None));
        let rest = said.check_in(WireVersion::CURRENT);
        assert_eq!((rest.results.len(), rest.wait_ms), (44, 45_000));
    }

    #[test]
    fn y06_merge_drops_apply_fact_when_absent_from_report() {
        let mut said = Outbox::observe(&MemoryHost::new());
        said.volatile = [("load".to_owned(), "1".to_owned())].into();
        let mut facts = |stuck: Option<&str>| {
            let facts = stuck.map(|why| ("agent.stuck".to_owned(), why.to_owned())).into_iter().collect();
            said.handle_message(ApplyMessage::Report(Report { facts, ..Report::default() }));
            said.check_in(WireVersion::CURRENT).report.unwrap().facts.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(facts(Some("\"full\"")), ["agent.stuck", "load"]);
        assert_eq!(facts(None), ["load"]);
    }

    /// Such a finding appeared only when a label changed, and stayed until the next change.
    #[test]
    fn y08_check_in_reports_skipped_hooks_until_deleted() {
        let host = MemoryHost::new();
        let mut said = Outbox::observe(&host);
        let reported = |said: &mut Outbox| {
            let is_new = said.refresh_observation(&host);
            let findings = said.check_in(WireVersion::CURRENT).report.map(|report| report.findings).unwrap_or_default();
            let of_hooks = findings.into_iter().filter(|finding| finding.contains("hooks.d"));
            (is_new, of_hooks.map(|finding| finding.split_once(": a name").unwrap().0.to_owned()).collect::<Vec<_>>())
        };
        let put = |name: &str| {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), 0o755);
        };
        let left_out = |names: &str| vec![format!("/etc/stemma/hooks.d: skipped because of their names: {names}")];
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
    fn x01_report_counts_findings_over_limit() {
        let mut said = Outbox::observe(&MemoryHost::new());
        // Findings about this machine are not part of the test.
        said.own_findings.clear();
        let report = Report { findings: vec!["x".to_owned(); 300], ..Report::default() };
        said.handle_message(ApplyMessage::Report(report));
        let findings = said.check_in(WireVersion::CURRENT).report.unwrap().findings;
        assert_eq!(findings.len(), 256);
        assert_eq!(findings[254..], ["x", "and 45 more findings; only the first 255 are listed"]);
    }
}
