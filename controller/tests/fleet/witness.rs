//! Checks of the traces of a refusal that an operator can see: a log line, a count in `/metrics`, and an audit record
//! if the caller is known. Each check also sends a valid request, which the controller must serve.

use std::collections::BTreeMap;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use hyper::Method;
use log::{LevelFilter, Log, Metadata, Record};
use serde_json::Value;
use stemma_controller::records::audit::{AuditEvent, AuditRecord, RefusalRecord};
use stemma_controller::records::codec;
use stemma_controller::store::{ListQuery, Snapshot};

use super::Fleet;

/// Maximum number of log lines per minute for one reason and address.
const MAX_LOG_LINES: u64 = 10;
/// Maximum number of polls for a metric, log line or audit entry that is written shortly after a response. The polls
/// last two minutes, for busy machines.
const MAX_POLLS: usize = 12_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The number of refusals logged in this process, by reason. All fleets of a process share one logger, so a test can
/// only check a minimum of new lines since its own fleet was started.
static LOGGED_REFUSALS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

struct TestLogger;

impl Log for TestLogger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    /// Counts a log line about a refusal by its reason. Ignores other lines.
    fn log(&self, record: &Record<'_>) {
        let fields = record.key_values();
        let is_refusal = record.args().as_str() == Some("request refused");
        // A line without the address of the refused peer is not counted.
        let Some(reason) = fields.get("reason".into()).filter(|_| is_refusal && fields.get("peer".into()).is_some()) else {
            return;
        };
        *LOGGED_REFUSALS.lock().unwrap_or_else(PoisonError::into_inner).entry(reason.to_string()).or_default() += 1;
    }

    fn flush(&self) {}
}

/// Installs the logger once. Returns the numbers of refusals that this process has logged so far, by reason.
pub(crate) fn install_logger() -> BTreeMap<String, u64> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&TestLogger).unwrap();
        log::set_max_level(LevelFilter::Info);
    });
    LOGGED_REFUSALS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns the number of logged refusals with this reason.
pub(crate) fn logged_count(reason: &str) -> u64 {
    LOGGED_REFUSALS.lock().unwrap_or_else(PoisonError::into_inner).get(reason).copied().unwrap_or_default()
}

/// Returns the number of refusals with a reason from the text of `/metrics`.
pub(crate) fn metric_count(metrics: &str, reason: &str) -> u64 {
    let name = format!("stemma_rejected_total{{reason=\"{reason}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

/// Returns all audit records in the order of revisions.
async fn audit_records(snapshot: &dyn Snapshot) -> Vec<AuditRecord> {
    let entries = snapshot.list(&ListQuery::prefix("audit/")).await.unwrap().entries;
    entries.iter().map(|entry| codec::decode(&entry.value).unwrap()).collect()
}

/// Returns the audit records of refusals.
async fn refusal_records(snapshot: &dyn Snapshot) -> Vec<RefusalRecord> {
    let refusal = |record| match record {
        AuditRecord::Refusal(refusal) => Some(refusal),
        AuditRecord::Commit(_) => None,
    };
    audit_records(snapshot).await.into_iter().filter_map(refusal).collect()
}

impl Fleet {
    /// Returns the number of refusals for a reason, from the text of `/metrics`.
    pub(crate) fn refused_count(&self, reason: &str) -> u64 {
        metric_count(&self.components().metrics.text_for_cluster(None), reason)
    }

    /// Returns the store's revision minus the number of commits that only record a refusal. Such commits are written at
    /// any time, so a test must not count them.
    pub(crate) async fn last_revision(&self) -> u64 {
        let snapshot = self.components().registry.store().snapshot().await.unwrap();
        snapshot.revision().get() - refusal_records(snapshot.as_ref()).await.len() as u64
    }

    /// Returns the audit records of commits.
    pub(crate) async fn audit_events(&self) -> Vec<AuditEvent> {
        let snapshot = self.components().registry.store().snapshot().await.unwrap();
        let event = |record| match record {
            AuditRecord::Commit(event) => Some(event),
            AuditRecord::Refusal(_) => None,
        };
        audit_records(snapshot.as_ref()).await.into_iter().filter_map(event).collect()
    }

    /// Waits until `/metrics` has this count for a reason, because a refused handshake is counted a moment after its
    /// alert is sent. Then checks the log, and that the next request is served.
    pub(crate) async fn wait_until_counted(&self, reason: &str, count: u64) {
        for _ in 0..MAX_POLLS {
            if self.refused_count(reason) >= count {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        assert_eq!(
            self.refused_count(reason),
            count,
            "{reason} in /metrics:\n{}",
            self.components().metrics.text_for_cluster(None)
        );
        self.wait_until_logged(reason, count).await;
    }

    /// Waits until the audit has this number of refusals of a principal for a reason. Then checks `/metrics`, the log,
    /// and that the next request is served.
    pub(crate) async fn wait_until_audited(&self, principal: &str, reason: &str, count: usize) {
        let mut refusals = Vec::new();
        for _ in 0..MAX_POLLS {
            let snapshot = self.components().registry.store().snapshot().await.unwrap();
            refusals = refusal_records(snapshot.as_ref()).await;
            let matches = |record: &&RefusalRecord| record.principal == principal && record.refused == reason;
            let matching: Vec<_> = refusals.iter().filter(matches).collect();
            if matching.len() == count {
                assert!(
                    matching.iter().all(|record| record.address.starts_with("127.0.0.1:") && record.at.0 > 0),
                    "{matching:?}"
                );
                return self.wait_until_logged(reason, count as u64).await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("{count} of {principal} for {reason}: {refusals:?}");
    }

    /// Returns the reasons of the refusals of a principal so far.
    pub(crate) async fn refusal_reasons(&self, principal: &str) -> Vec<String> {
        let snapshot = self.components().registry.store().snapshot().await.unwrap();
        let records = refusal_records(snapshot.as_ref()).await.into_iter();
        records.filter(|record| record.principal == principal).map(|record| record.refused).collect()
    }

    /// Checks that `/metrics` counts at least `count` refusals for a reason, and waits until this process has logged as
    /// many since the fleet started, or the maximum per minute. Then checks that the next request is served.
    async fn wait_until_logged(&self, reason: &str, count: u64) {
        assert!(
            self.refused_count(reason) >= count,
            "{reason} in /metrics:\n{}",
            self.components().metrics.text_for_cluster(None)
        );
        // A refusal is counted first, and logged a moment later.
        let lines = || logged_count(reason) - self.logged_before.get(reason).copied().unwrap_or_default();
        for _ in 0..MAX_POLLS {
            if lines() >= count.min(MAX_LOG_LINES) {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let lines = lines();
        assert!(lines >= count.min(MAX_LOG_LINES), "{lines} log lines have the reason {reason}, not {count}");
        assert_eq!(self.request(Method::GET, "/v1", &Value::Null).await.0, 200, "the next valid request succeeds");
    }
}
