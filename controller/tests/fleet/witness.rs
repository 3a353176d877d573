//! The traces of a refusal that an operator can see: a log line, a count in `/metrics`, an entry in the audit if the
//! caller is known, and a controller that serves the next request.

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

/// Maximum number of log lines per minute for one reason.
const MAX_LOG_LINES: u64 = 10;
/// Maximum number of polls for something that is written shortly after a response. They last two minutes, for busy
/// machines.
const MAX_POLLS: usize = 12_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The number of refusals logged in this process, by reason. All fleets of a process share one logger, so a test can
/// only check a minimum of new lines since its own fleet was started.
static LOGGED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

struct TestLogger;

impl Log for TestLogger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let fields = record.key_values();
        let is_refusal = record.args().as_str() == Some("request refused");
        // A line that does not name the refused party does not count.
        let Some(reason) = fields.get("reason".into()).filter(|_| is_refusal && fields.get("peer".into()).is_some()) else {
            return;
        };
        *LOGGED.lock().unwrap_or_else(PoisonError::into_inner).entry(reason.to_string()).or_default() += 1;
    }

    fn flush(&self) {}
}

/// Installs the logger. Returns the counts of what other fleets of this process have logged already.
pub(crate) fn install_logger() -> BTreeMap<String, u64> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&TestLogger).unwrap();
        log::set_max_level(LevelFilter::Info);
    });
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns the number of log lines with this reason.
pub(crate) fn logged_count(reason: &str) -> u64 {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).get(reason).copied().unwrap_or_default()
}

/// Returns the count of a reason in the text of `/metrics`.
pub(crate) fn metric_count(metrics: &str, reason: &str) -> u64 {
    let name = format!("stemma_rejected_total{{reason=\"{reason}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

/// Returns the audit in the order of revisions.
async fn audit_records(snapshot: &dyn Snapshot) -> Vec<AuditRecord> {
    let entries = snapshot.list(&ListQuery::prefix("audit/")).await.unwrap().entries;
    entries.iter().map(|entry| codec::decode(&entry.value).unwrap()).collect()
}

/// Returns the refusals in the audit.
async fn refusal_records(snapshot: &dyn Snapshot) -> Vec<RefusalRecord> {
    let refusal = |record| match record {
        AuditRecord::Refusal(refusal) => Some(refusal),
        AuditRecord::Commit(_) => None,
    };
    audit_records(snapshot).await.into_iter().filter_map(refusal).collect()
}

impl Fleet {
    /// Returns how often something was refused for a reason, from the text of `/metrics`.
    pub(crate) fn refused_count(&self, reason: &str) -> u64 {
        metric_count(&self.parts().metrics.text_for_cluster(None), reason)
    }

    /// Returns the store's revision without the commits that only record a refusal, which are written at any time.
    pub(crate) async fn last_revision(&self) -> u64 {
        let snapshot = self.parts().registry.store().snapshot().await.unwrap();
        snapshot.revision().get() - refusal_records(snapshot.as_ref()).await.len() as u64
    }

    /// Returns the audit records of commits.
    pub(crate) async fn audit_events(&self) -> Vec<AuditEvent> {
        let snapshot = self.parts().registry.store().snapshot().await.unwrap();
        let event = |record| match record {
            AuditRecord::Commit(event) => Some(event),
            AuditRecord::Refusal(_) => None,
        };
        audit_records(snapshot.as_ref()).await.into_iter().filter_map(event).collect()
    }

    /// Waits until `/metrics` has this count for a reason, then checks the log and that the next request is served. The
    /// alert of a refused handshake is sent a moment before it is counted.
    pub(crate) async fn wait_until_counted(&self, reason: &str, count: u64) {
        for _ in 0..MAX_POLLS {
            if self.refused_count(reason) >= count {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        assert_eq!(self.refused_count(reason), count, "{reason} in /metrics:\n{}", self.parts().metrics.text_for_cluster(None));
        self.wait_until_logged(reason, count).await;
    }

    /// Waits until the audit has this number of refusals of a principal for a reason. Then checks `/metrics`, the log,
    /// and that the next request is served.
    pub(crate) async fn wait_until_audited(&self, principal: &str, reason: &str, count: usize) {
        let mut found = Vec::new();
        for _ in 0..MAX_POLLS {
            let snapshot = self.parts().registry.store().snapshot().await.unwrap();
            found = refusal_records(snapshot.as_ref()).await;
            let matches = |one: &&RefusalRecord| one.principal == principal && one.refused == reason;
            let matching: Vec<_> = found.iter().filter(matches).collect();
            if matching.len() == count {
                assert!(matching.iter().all(|one| one.address.starts_with("127.0.0.1:") && one.at.0 > 0), "{matching:?}");
                return self.wait_until_logged(reason, count as u64).await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("{count} of {principal} for {reason}: {found:?}");
    }

    /// Returns the reasons of the refusals of a principal so far.
    pub(crate) async fn refusals_of(&self, principal: &str) -> Vec<String> {
        let snapshot = self.parts().registry.store().snapshot().await.unwrap();
        let all = refusal_records(snapshot.as_ref()).await.into_iter();
        all.filter(|one| one.principal == principal).map(|one| one.refused).collect()
    }

    async fn wait_until_logged(&self, reason: &str, count: u64) {
        assert!(self.refused_count(reason) >= count, "{reason} in /metrics:\n{}", self.parts().metrics.text_for_cluster(None));
        // A refusal is counted first, and logged a moment later.
        let lines = || logged_count(reason) - self.logged_before.get(reason).copied().unwrap_or_default();
        for _ in 0..MAX_POLLS {
            if lines() >= count.min(MAX_LOG_LINES) {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let lines = lines();
        assert!(lines >= count.min(MAX_LOG_LINES), "{lines} lines in the journal tell of {reason}, not {count}");
        assert_eq!(self.request(Method::GET, "/v1", &Value::Null).await.0, 200, "the next good request succeeds");
    }
}
