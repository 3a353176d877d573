//! The outbox: everything that this host has to report to the controllers. It also records which parts a controller has
//! acknowledged, because these parts are not sent again.

use std::collections::BTreeMap;

use log::{info, warn};
use stemma_core::task::{AGENT_VERSION_FACT, TASK_TYPES_FACT, declared_task_types};
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

/// Maximum time for which a controller may hold a check-in open while no task runs, in milliseconds. It is less than
/// the 90 s after which a host is `silent` by default.
const WAIT_MS: u32 = 45_000;
/// Maximum time for which a controller may hold a check-in open while tasks run, or while more results are stored than
/// one check-in can contain, in milliseconds. It is short, so that a controller gets the results of the tasks soon.
const BUSY_WAIT_MS: u32 = 2_000;
/// Maximum number of task results in one check-in.
const MAX_RESULTS: usize = 256;
/// Maximum number of findings in a report. A controller refuses more.
const MAX_FINDINGS: usize = 256;
/// Maximum number of leases and roles of primary that one check-in returns to the controller, which refuses more. A
/// lease permits an action of the host, such as a reboot.
const MAX_RETURNED_ITEMS: usize = 1024;

/// Everything that this host has to report.
#[derive(Default)]
pub(super) struct Outbox {
    boot_id: [u8; 16],
    /// The revision and digests of the desired state that the root half (apply) has accepted.
    held_desired: Option<HeldDesired>,
    /// The task results that no controller has acknowledged.
    results: Vec<TaskResult>,
    /// The observation (facts, traits and labels) of the network half.
    network_observation: Observation,
    /// The findings of the network half, about label files, hooks and facts.
    network_findings: Vec<String>,
    /// The observation of the root half.
    apply_observation: Observation,
    /// The merged observations of both halves.
    observation: Observation,
    /// The digest of the last observation that a controller has acknowledged. `None` if it must be sent again.
    acknowledged_digest: Option<PartDigest>,
    /// The last report of the root half.
    report: Report,
    /// The volatile facts, which change by themselves, such as the load. The network half collects them.
    volatile_facts: BTreeMap<String, String>,
    /// True if the next check-in contains the report, because it has changed or must be sent again.
    has_new_report: bool,
    requested_leases: Vec<LeaseKind>,
    /// The leases (permissions for an action, such as a reboot) and the roles of primary that this host does not need
    /// any more. No controller has acknowledged their return yet.
    returned_items: Vec<ReturnedItem>,
    /// Number of `returned_items`, from the first on, that the last check-in contains. 0 after its response.
    sent_returned_items: usize,
    /// The pause, hold and park that were set on the host itself, for example by `stemma-agent pause`.
    local_state: LocalState,
}

impl Outbox {
    /// Creates an outbox with a new observation of the host. Nothing in the outbox was sent yet.
    pub(super) fn observe(host: &dyn Host) -> Self {
        let mut outbox = Self { boot_id: crate::host::boot_id(), has_new_report: true, ..Self::default() };
        outbox.refresh_observation(host);
        outbox
    }

    /// Reads facts, label files and hooks of the host again. Logs findings that were not reported before. Returns
    /// whether there is something new to report.
    pub(super) fn refresh_observation(&mut self, host: &dyn Host) -> bool {
        let labels = labels::read(host);
        let host_facts = facts::observe();
        let mut facts = host_facts.stable;
        facts.extend(declaration());
        self.network_observation = Observation { facts, traits: host_facts.traits, labels: labels.labels };
        let findings = host_facts.findings.into_iter().chain(labels.findings).chain(hook_files::findings(host));
        let findings: Vec<String> = findings.collect();
        if findings != self.network_findings {
            for finding in findings.iter().filter(|finding| !self.network_findings.contains(finding)) {
                warn!(error = finding.as_str(); "a label file or hook of this host cannot be used");
            }
            if findings.is_empty() {
                info!("all label files and hooks of this host can be used again");
            }
            self.network_findings = findings;
            self.has_new_report = true;
        }
        self.volatile_facts = host_facts.volatile;
        self.merge_observations() || self.has_new_report
    }

    /// Stores the content of a message of the root half (apply). Returns whether a controller should get the content
    /// soon. Results that are already in the outbox are skipped.
    pub(super) fn handle_message(&mut self, message: ApplyMessage) -> bool {
        match message {
            ApplyMessage::Hello { held, .. } => self.held_desired = held,
            ApplyMessage::Accepted(held) => self.held_desired = Some(held),
            ApplyMessage::Results(results) => {
                let last_sequence = self.results.last().map_or(0, |result| result.sequence);
                self.results.extend(results.into_iter().filter(|result| result.sequence > last_sequence));
            }
            ApplyMessage::Observed(observation) => {
                self.apply_observation = observation;
                return self.merge_observations();
            }
            ApplyMessage::Report(report) => {
                self.report = report;
                self.has_new_report = true;
            }
            ApplyMessage::LeaseRequest(leases) => self.requested_leases = leases,
            ApplyMessage::Returned(items) => self.returned_items.extend(items),
            ApplyMessage::Local(local) if local == self.local_state => return false,
            ApplyMessage::Local(local) => self.local_state = local,
            ApplyMessage::ContentRequest(_) | ApplyMessage::Refused { .. } => return false,
        }
        true
    }

    /// Returns the next check-in for this wire version: everything that no controller has acknowledged, up to the
    /// maximum numbers of items. Marks the report as sent, until it changes or [`Self::resend_all`] is called.
    pub(super) fn check_in(&mut self, version: WireVersion) -> CheckIn {
        let digest = self.observation_digest(version);
        let report = std::mem::take(&mut self.has_new_report).then(|| {
            let mut report = self.report.clone();
            env!("CARGO_PKG_VERSION").clone_into(&mut report.agent_version);
            for (path, text) in &self.volatile_facts {
                report.facts.entry(path.clone()).or_insert_with(|| text.clone());
            }
            report.findings.extend(self.network_findings.iter().cloned());
            limit(&mut report.findings, MAX_FINDINGS);
            report.local = self.local_state.clone();
            report
        });
        self.sent_returned_items = self.returned_items.len().min(MAX_RETURNED_ITEMS);
        // Results above the maximum should be sent soon, in the next check-in.
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

    /// Handles the response to a check-in: removes the results and returned items that the controller has acknowledged,
    /// and stores the digest of the observation that the controller now has.
    pub(super) fn on_acknowledged(&mut self, update: &CheckInUpdate) {
        self.results.retain(|result| result.sequence > update.acknowledged);
        self.returned_items.drain(..std::mem::take(&mut self.sent_returned_items));
        if update.observation.is_some() {
            self.acknowledged_digest = update.observation;
        }
    }

    /// Marks report and observation to be sent again, because the last check-in was lost or another controller is used.
    pub(super) fn resend_all(&mut self) {
        self.has_new_report = true;
        self.acknowledged_digest = None;
    }

    /// Returns the digest of the current observation as encoded in this wire version.
    pub(super) fn observation_digest(&self, version: WireVersion) -> PartDigest {
        digest_part(version, &encode_part(version, &self.observation))
    }

    /// Merges the observations of both halves of the agent. Labels in the label files take precedence over those in the
    /// host label map, another file of labels, which the root half reports. Returns whether the result differs from the
    /// previous one.
    fn merge_observations(&mut self) -> bool {
        let mut merged = self.network_observation.clone();
        merged.facts.extend(self.apply_observation.facts.clone());
        merged.traits.extend(self.apply_observation.traits.iter().cloned());
        merged.traits.sort();
        merged.traits.dedup();
        for (key, label) in &self.apply_observation.labels {
            merged.labels.entry(key.clone()).or_insert_with(|| label.clone());
        }
        let has_changed = merged != self.observation;
        self.observation = merged;
        has_changed
    }
}

/// Returns the facts about the agent itself that are part of the observation: its version, and the task types and
/// parameters that it knows. They change only with the version of the agent.
fn declaration() -> [(String, String); 2] {
    let version = serde_json::Value::from(env!("CARGO_PKG_VERSION")).to_string();
    [(AGENT_VERSION_FACT.to_owned(), version), (TASK_TYPES_FACT.to_owned(), declared_task_types().to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::ledger::tests::result;
    use crate::host::memory::MemoryHost;

    /// Returns a response that acknowledges results and an observation, and contains nothing else.
    fn acknowledgement(acknowledged: u64, observation: Option<PartDigest>) -> CheckInUpdate {
        CheckInUpdate { acknowledged, observation, desired: None, grants: Vec::new(), next_check_in_ms: 0 }
    }

    #[test]
    fn check_in_repeats_report_when_unanswered() {
        let mut outbox = Outbox::observe(&MemoryHost::new());
        let returned_primary = ReturnedItem::Primary("mysql".to_owned());
        assert!(outbox.handle_message(ApplyMessage::Returned(vec![returned_primary.clone()])));
        let first = outbox.check_in(WireVersion::CURRENT);
        assert!(first.observation.is_some() && first.report.is_some());
        assert_eq!(first.returned_items, std::slice::from_ref(&returned_primary));

        outbox.resend_all();
        let second = outbox.check_in(WireVersion::CURRENT);
        assert_eq!((second.observation.is_some(), second.report.is_some()), (true, true));
        assert_eq!(second.returned_items, [returned_primary]);

        assert!(outbox.handle_message(ApplyMessage::Returned(vec![ReturnedItem::Lease(LeaseKind::Mend)])));
        outbox.on_acknowledged(&acknowledgement(0, Some(second.observation_digest)));
        let third = outbox.check_in(WireVersion::CURRENT);
        assert_eq!((third.observation, third.report), (None, None));
        assert_eq!(
            third.returned_items,
            [ReturnedItem::Lease(LeaseKind::Mend)],
            "items that were added after the check-in are not lost"
        );
    }

    /// The declaration does not change when the agent starts again, so the observation is not stored again.
    #[test]
    fn check_in_contains_version_and_task_types() {
        let declared_facts = || {
            let observation = Outbox::observe(&MemoryHost::new()).check_in(WireVersion::CURRENT).observation.unwrap();
            ["agent.version", "agent.task_types"].map(|path| observation.facts[path].clone())
        };
        let [version, types_text] = declared_facts();
        assert_eq!(version, format!("\"{}\"", env!("CARGO_PKG_VERSION")));
        let types: Vec<String> = serde_json::from_str(&types_text).unwrap();
        assert!(types.iter().any(|line| line.starts_with("file,upload_file,upload_files absent content ")), "{types:?}");
        assert_eq!(declared_facts(), [version, types_text]);
    }

    #[test]
    fn results_are_split_over_check_ins_when_too_many() {
        let mut outbox = Outbox::observe(&MemoryHost::new());
        let result = |sequence| TaskResult { sequence, ..result("motd") };
        outbox.handle_message(ApplyMessage::Results((1..=300).map(result).collect()));
        let first = outbox.check_in(WireVersion::CURRENT);
        assert_eq!((first.results.len(), first.wait_ms), (256, 2_000));
        outbox.on_acknowledged(&acknowledgement(256, None));
        let second = outbox.check_in(WireVersion::CURRENT);
        assert_eq!((second.results.len(), second.wait_ms), (44, 45_000));
    }

    #[test]
    fn y06_check_in_drops_fact_when_absent_from_new_report() {
        let mut outbox = Outbox::observe(&MemoryHost::new());
        outbox.volatile_facts = [("load".to_owned(), "1".to_owned())].into();
        let mut facts = |stuck: Option<&str>| {
            let facts = stuck.map(|reason| ("agent.stuck".to_owned(), reason.to_owned())).into_iter().collect();
            outbox.handle_message(ApplyMessage::Report(Report { facts, ..Report::default() }));
            outbox.check_in(WireVersion::CURRENT).report.unwrap().facts.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(facts(Some("\"full\"")), ["agent.stuck", "load"]);
        assert_eq!(facts(None), ["load"]);
    }

    /// Regression test: a finding about a skipped hook was reported only when a label changed, and remained until the
    /// next change of a label.
    #[test]
    fn y08_check_in_reports_skipped_hooks_until_deleted() {
        let host = MemoryHost::new();
        let mut outbox = Outbox::observe(&host);
        let refresh_and_report = |outbox: &mut Outbox| {
            let is_new = outbox.refresh_observation(&host);
            let findings = outbox.check_in(WireVersion::CURRENT).report.map(|report| report.findings).unwrap_or_default();
            let hook_findings = findings.into_iter().filter(|finding| finding.contains("hooks.d"));
            (is_new, hook_findings.map(|finding| finding.split_once(": a name").unwrap().0.to_owned()).collect::<Vec<_>>())
        };
        let create_hook = |name: &str| {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), 0o755);
        };
        let skipped_finding = |names: &str| vec![format!("/etc/stemma/hooks.d: skipped because of their names: {names}")];
        refresh_and_report(&mut outbox);
        create_hook("10-a.sh");
        assert_eq!(refresh_and_report(&mut outbox), (true, skipped_finding(r#""10-a.sh""#)));
        create_hook("20-b.sh");
        assert_eq!(refresh_and_report(&mut outbox), (true, skipped_finding(r#""10-a.sh", "20-b.sh""#)));
        host.delete("/etc/stemma/hooks.d/10-a.sh");
        host.delete("/etc/stemma/hooks.d/20-b.sh");
        assert_eq!(refresh_and_report(&mut outbox), (true, vec![]));
    }

    #[test]
    fn x01_report_counts_findings_over_limit() {
        let mut outbox = Outbox::observe(&MemoryHost::new());
        // Findings about this machine are not part of the test.
        outbox.network_findings.clear();
        let report = Report { findings: vec!["x".to_owned(); 300], ..Report::default() };
        outbox.handle_message(ApplyMessage::Report(report));
        let findings = outbox.check_in(WireVersion::CURRENT).report.unwrap().findings;
        assert_eq!(findings.len(), 256);
        assert_eq!(findings[254..], ["x", "and 45 more findings; only the first 255 are listed"]);
    }
}
