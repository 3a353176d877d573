//! What a refusal leaves behind, as an operator finds it: a line in the journal, a number in the text of `/metrics`, an entry of the
//! audit where it is known who asked, and a controller that serves the next one.

use std::collections::BTreeMap;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use hyper::Method;
use log::{LevelFilter, Log, Metadata, Record};
use serde_json::Value;
use stemma_controller::records::audit::{AuditEvent, AuditRecord, Refusal};
use stemma_controller::records::codec;
use stemma_controller::store::{Query, Snapshot};

use super::Fleet;

/// Lines a minute that the journal has of one reason.
const LINES: u64 = 10;
/// How often a look is repeated for what is written a moment after its answer: two minutes on a busy machine, and seldom more than once.
const LOOKS: usize = 12_000;
const BETWEEN: Duration = Duration::from_millis(10);

/// The journal's lines of refusals in this process, by reason. All fleets of a process have one journal, so a test can say how many
/// lines there are at least since its own began.
static SAID: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

struct Journal;

impl Log for Journal {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let fields = record.key_values();
        let is_refusal = record.args().as_str() == Some("request refused");
        // A line that does not say who was refused is none.
        let Some(reason) = fields.get("reason".into()).filter(|_| is_refusal && fields.get("peer".into()).is_some())
        else {
            return;
        };
        *SAID.lock().unwrap_or_else(PoisonError::into_inner).entry(reason.to_string()).or_default() += 1;
    }

    fn flush(&self) {}
}

/// Begins to keep what the journal is told of; the lines that other fleets of this process were told of already.
pub(crate) fn listen() -> BTreeMap<String, u64> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Journal).unwrap();
        log::set_max_level(LevelFilter::Info);
    });
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// How many lines tell of a reason.
pub(crate) fn said(reason: &str) -> u64 {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).get(reason).copied().unwrap_or_default()
}

/// The count of a reason in the text of `/metrics`.
pub(crate) fn exported(metrics: &str, reason: &str) -> u64 {
    let name = format!("stemma_rejected_total{{reason=\"{reason}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

/// The audit in the order of revisions.
async fn audit(snapshot: &dyn Snapshot) -> Vec<AuditRecord> {
    let entries = snapshot.list(&Query::prefix("audit/")).await.unwrap().entries;
    entries.iter().map(|entry| codec::decode(&entry.value).unwrap()).collect()
}

/// The refusals in the audit.
async fn refusals(snapshot: &dyn Snapshot) -> Vec<Refusal> {
    let refusal = |record| match record {
        AuditRecord::Refusal(refusal) => Some(refusal),
        AuditRecord::Commit(_) => None,
    };
    audit(snapshot).await.into_iter().filter_map(refusal).collect()
}

impl Fleet {
    /// How often something was refused for a reason, by the text of `/metrics`.
    pub(crate) fn rejected(&self, reason: &str) -> u64 {
        exported(&self.parts().metrics.text_within(None), reason)
    }

    /// The store's revision, commits that only tell of a refusal left out: these come when they come.
    pub(crate) async fn revision(&self) -> u64 {
        let snapshot = self.parts().registry.store().snapshot().await.unwrap();
        snapshot.revision().get() - refusals(snapshot.as_ref()).await.len() as u64
    }

    /// What commits did, by the audit.
    pub(crate) async fn events(&self) -> Vec<AuditEvent> {
        let snapshot = self.parts().registry.store().snapshot().await.unwrap();
        let event = |record| match record {
            AuditRecord::Commit(event) => Some(event),
            AuditRecord::Refusal(_) => None,
        };
        audit(snapshot.as_ref()).await.into_iter().filter_map(event).collect()
    }

    /// Waits until `/metrics` has counted a reason so often (the alert of a handshake is on the way a moment before), finds it in the
    /// journal, and is served.
    pub(crate) async fn counted(&self, reason: &str, count: u64) {
        for _ in 0..LOOKS {
            if self.rejected(reason) >= count {
                break;
            }
            tokio::time::sleep(BETWEEN).await;
        }
        assert_eq!(self.rejected(reason), count, "{reason} in /metrics:\n{}", self.parts().metrics.text_within(None));
        self.told(reason, count).await;
    }

    /// Waits until so many refusals of a principal for a reason stand in the audit, finds them in `/metrics` and the journal too, and
    /// is served.
    pub(crate) async fn audited(&self, principal: &str, reason: &str, count: usize) {
        let mut found = Vec::new();
        for _ in 0..LOOKS {
            let snapshot = self.parts().registry.store().snapshot().await.unwrap();
            found = refusals(snapshot.as_ref()).await;
            let of = |one: &&Refusal| one.principal == principal && one.refused == reason;
            let own: Vec<_> = found.iter().filter(of).collect();
            if own.len() == count {
                assert!(own.iter().all(|one| one.address.starts_with("127.0.0.1:") && one.at.0 > 0), "{own:?}");
                return self.told(reason, count as u64).await;
            }
            tokio::time::sleep(BETWEEN).await;
        }
        panic!("{count} of {principal} for {reason}: {found:?}");
    }

    /// What the audit has against a principal so far.
    pub(crate) async fn accused(&self, principal: &str) -> Vec<String> {
        let snapshot = self.parts().registry.store().snapshot().await.unwrap();
        let all = refusals(snapshot.as_ref()).await.into_iter();
        all.filter(|one| one.principal == principal).map(|one| one.refused).collect()
    }

    async fn told(&self, reason: &str, count: u64) {
        assert!(self.rejected(reason) >= count, "{reason} in /metrics:\n{}", self.parts().metrics.text_within(None));
        // A refusal is counted first, and told to the journal a moment later.
        let lines = || said(reason) - self.said_before.get(reason).copied().unwrap_or_default();
        for _ in 0..LOOKS {
            if lines() >= count.min(LINES) {
                break;
            }
            tokio::time::sleep(BETWEEN).await;
        }
        let lines = lines();
        assert!(lines >= count.min(LINES), "{lines} lines in the journal tell of {reason}, not {count}");
        assert_eq!(self.ask(Method::GET, "/v1", &Value::Null).await.0, 200, "the next good request succeeds");
    }
}
