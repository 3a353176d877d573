//! The metrics of the controller, for `/metrics`, as text in the `OpenMetrics` format.
//!
//! Other parts of the controller count some things already: the store, the refusals and the desired table. These counts
//! are read from those parts at each scrape. A second counter for the same thing could differ from the first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use stemma_core::object::{ClusterId, NodeId, Timestamp};
use stemma_core::status::{State, StateInputs, StatusNote};
use stemma_wire::serve::{OpenConnections, RejectionCounter};
use uuid::Uuid;

use crate::blobs::BlobGauges;
use crate::cache::{Cache, Model};
use crate::clock::WatchedClock;
use crate::desired::DesiredTable;
use crate::identity::Identities;
use crate::records::key;
use crate::status;
use crate::store::Store;

/// The parts of the store in the metric `stemma_store_bytes`: the value of its label `of`, and the prefix of the keys.
const MEASURED_PREFIXES: [(&str, &str); 8] = [
    ("objects", key::OBJECTS),
    ("history", key::HISTORY),
    ("audit", key::AUDIT),
    ("requests", key::REQUESTS),
    ("released", key::RELEASED),
    ("released_values", key::COMMON_PARTS),
    ("released_value_lists", key::COMMON_VALUES),
    ("released_texts", key::COMMON_CHUNKS),
];
/// Time for which `/metrics` still contains the expiry of a principal's certificate or token after it has expired, in
/// milliseconds.
const ENDED_RETENTION_MS: u64 = 31 * 24 * 3600 * 1000;

/// The events that this process has counted since its start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Number of decoded check-ins of agents with a valid certificate, also of those that are refused afterwards.
    pub check_ins: Counter,
    /// Number of agents that joined.
    pub enrolments: Counter,
    /// Number of certificates that agents renewed.
    pub renewals: Counter,
    /// Number of times that a node was resolved and its desired state was not too large to be sent.
    pub resolved: Counter,
    /// Number of full resolves that found a node out of date. A full resolve runs on a slow timer as a check of the
    /// other passes, and should find none.
    pub missed: Counter,
    /// Number of blobs (files and scripts of releases, stored by hash) that were found to be damaged.
    pub damaged_blobs: Counter,
    /// The total size of the stored blobs, and the total size of those that no release and no released task set names.
    pub blobs: BlobGauges,
}

/// The metrics of `/metrics`: a registry of the controller's own, and the sources of those that each scrape computes.
pub struct Metrics {
    registry: Registry,
    counters: Arc<Counters>,
    listeners: Arc<Listeners>,
    desired: Arc<DesiredTable>,
    cache: Arc<Cache>,
    clock: Arc<WatchedClock>,
}

/// The open connections of the two listeners. Each is set when its listener is bound.
#[derive(Debug, Default)]
struct Listeners {
    agents: OnceLock<OpenConnections>,
    admin: OnceLock<OpenConnections>,
}

impl Metrics {
    /// Creates the metrics: registers the counters, and the sources that are read at each scrape. `file` is the path of
    /// the store's file. Its size is exported.
    pub fn new(
        (store, file): (Arc<dyn Store>, PathBuf),
        rejected: Arc<RejectionCounter>,
        desired: Arc<DesiredTable>,
        cache: Arc<Cache>,
        counters: Arc<Counters>,
        clock: Arc<WatchedClock>,
        identities: Arc<Identities>,
    ) -> Self {
        let mut registry = Registry::default();
        let (listeners, stats) = (Arc::new(Listeners::default()), store.stats());
        for (name, help, counter) in [
            ("stemma_checkins", "Accepted check-ins", &counters.check_ins),
            ("stemma_enrolments", "Agents that joined", &counters.enrolments),
            ("stemma_renewals", "Certificates that agents renewed", &counters.renewals),
            ("stemma_nodes_resolved", "Nodes resolved", &counters.resolved),
            ("stemma_blobs_damaged", "File bodies that were found damaged and set aside", &counters.damaged_blobs),
            ("stemma_reconcile_missed", "Full resolves that found a node out of date", &counters.missed),
            ("stemma_store_commits", "Commits by this process that changed something", &stats.commits),
            ("stemma_store_puts", "Entries written", &stats.puts),
            ("stemma_store_deletes", "Entries deleted", &stats.deletes),
            ("stemma_store_syncs", "Engine transactions made durable", &stats.syncs),
            ("stemma_store_unmet", "Transactions whose preconditions did not hold", &stats.conflicts),
            ("stemma_desired_published", "Desired states published whose digest is new", &desired.published_count),
            ("stemma_desired_sent", "Desired states sent to agents", &desired.sent_count),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, gauge) in [
            ("stemma_blobs_bytes", "Total size of the file bodies", &counters.blobs.all),
            (
                "stemma_blobs_unnamed_bytes",
                "Size of the file bodies that nothing names, when last counted",
                &counters.blobs.unnamed,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        let sources = MetricSources {
            store,
            file,
            rejected,
            desired: Arc::clone(&desired),
            listeners: Arc::clone(&listeners),
            cache: Arc::clone(&cache),
            clock: Arc::clone(&clock),
            identities,
        };
        registry.register_collector(Box::new(sources));
        Self { registry, counters, listeners, desired, cache, clock }
    }

    /// Returns the counters of this process.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Sets the open connections of the two listeners, whose numbers are in `/metrics`. Call this once, when the
    /// listeners are bound. Further calls have no effect.
    pub fn watch_connections(&self, agents: OpenConnections, admin: OpenConnections) {
        let _results = (self.listeners.agents.set(agents), self.listeners.admin.set(admin));
    }

    /// Returns the text of `/metrics`, as `application/openmetrics-text; version=1.0.0; charset=utf-8`. With a cluster
    /// in `within`, the text counts and names only the objects of that cluster. It then contains no metrics of the
    /// controller, because these count all clusters together.
    pub fn text_for_cluster(&self, within: Option<ClusterId>) -> String {
        self.text_from(within, None)
    }

    /// Returns the text of `/metrics`, as [`Self::text_for_cluster`] describes it. Usually the status table has the
    /// states of the nodes. If that table is out of date, `inputs` has the inputs of all visible nodes, and the states
    /// are computed from them.
    pub(crate) fn text_from(&self, within: Option<ClusterId>, inputs: Option<&[StateInputs]>) -> String {
        let mut object_registry = Registry::default();
        let model = self.cache.model().visible_in(within);
        // While the clock may be wrong, the expiry of every credential is exported, even if it seems to be long ago.
        let ends_after = self.clock.trusted_now().map_or(0, |now| now.0.saturating_sub(ENDED_RETENTION_MS));
        let (desired, ends_after) = (Arc::clone(&self.desired), Timestamp(ends_after));
        let node_counts = inputs.map(|inputs| (status::state_counts(inputs.iter()), status::note_counts(inputs.iter())));
        object_registry.register_collector(Box::new(ObjectMetrics { model, desired, ends_after, node_counts }));
        let mut text = String::new();
        let mut registries = within.is_none().then_some(&self.registry).into_iter().chain([&object_registry]);
        let result = registries.try_for_each(|registry| encode_registry(&mut text, registry));
        result.and_then(|()| encode_eof(&mut text)).expect("writing to a string cannot fail");
        text
    }
}

/// The sources of the controller's own metrics, which are read at each scrape.
struct MetricSources {
    store: Arc<dyn Store>,
    file: PathBuf,
    rejected: Arc<RejectionCounter>,
    desired: Arc<DesiredTable>,
    listeners: Arc<Listeners>,
    cache: Arc<Cache>,
    clock: Arc<WatchedClock>,
    identities: Arc<Identities>,
}

impl MetricSources {
    /// Returns the age of the last backup in seconds, or `None` if there is none.
    fn backup_age(&self) -> Option<u64> {
        let created_at = self.cache.model().last_backup.as_ref()?.record.at;
        Some(self.clock.now().0.saturating_sub(created_at.0) / 1000)
    }

    /// Encodes the sizes of the store's file and of its [`MEASURED_PREFIXES`], in bytes. Unknown sizes are omitted.
    fn encode_sizes(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = |bytes: u64| ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX));
        if let Ok(file) = std::fs::metadata(&self.file) {
            let (name, help) = ("stemma_store_file_bytes", "The size of the store's file, which does not shrink");
            gauge(file.len()).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let (name, help) = ("stemma_store_bytes", "Size of the keys and values in the store, by kind");
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (part, prefix) in MEASURED_PREFIXES {
            if let Some(bytes) = self.store.stats().prefix_bytes(prefix) {
                gauge(bytes).encode(family.encode_family(&[("of", part)])?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for MetricSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricSources").finish_non_exhaustive()
    }
}

impl Collector for MetricSources {
    /// Encodes the metrics that other parts of the controller count, such as connections, refusals and the last backup.
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let backup_gauge = |age| ("stemma_backup_age_seconds", "How long ago the last backup was made", age);
        let backup = self.backup_age().map(backup_gauge);
        let gauges = [
            ("stemma_store_revision", "The store's last durable revision", self.store.stats().revision()),
            ("stemma_desired_revision", "Store revision up to which all nodes are resolved", self.desired.resolved_revision().0),
            ("stemma_checkins_parked", "Check-ins that are waiting for a change", self.desired.waiting_check_ins() as u64),
            (
                "stemma_hosts_unknown",
                "Hosts with a certificate of this fleet but without a node, since the start: each has to leave and join again",
                self.identities.unknown_count() as u64,
            ),
            (
                "stemma_clock_suspect",
                "1 if the clock has jumped; nothing counts as expired until it is right again",
                u64::from(self.clock.finding().is_some()),
            ),
            ("stemma_agent_connections", "Open connections of the agents' listener", connection_count(&self.listeners.agents)),
            ("stemma_admin_connections", "Open connections of the admin listener", connection_count(&self.listeners.admin)),
        ];
        for (name, help, value) in gauges.into_iter().chain(backup) {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(to.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        self.encode_sizes(&mut to)?;
        let mut family =
            to.encode_descriptor("stemma_rejected", "Refused requests and connections, by reason", None, MetricType::Counter)?;
        for (reason, count) in self.rejected.counts() {
            ConstCounter::new(count).encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

/// The metrics of the objects that the caller may see.
struct ObjectMetrics {
    model: Arc<Model>,
    desired: Arc<DesiredTable>,
    /// Only credentials that expire after this time are exported.
    ends_after: Timestamp,
    /// The number of nodes in each state and with each note. Set only if the status table is out of date.
    node_counts: Option<(BTreeMap<State, usize>, BTreeMap<StatusNote, usize>)>,
}

impl fmt::Debug for ObjectMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectMetrics").finish_non_exhaustive()
    }
}

impl ObjectMetrics {
    /// Returns the nodes that the caller may see, or `None` for all nodes.
    fn nodes(&self) -> Option<Vec<Uuid>> {
        let cluster = self.model.visible_cluster?;
        Some(self.model.fleet.nodes_in_cluster(cluster).map(|node| node.0).collect())
    }

    /// Encodes the expiry of each certificate and token of a principal, except revoked certificates and credentials
    /// that expired long ago.
    fn encode_credential_expiries(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) =
            ("stemma_credential_end_seconds", "Expiry of each certificate and token of a principal, in seconds since 1970");
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for principal in self.model.principals.iter() {
            let spec = &principal.spec;
            let active = spec.certificates.iter().filter(|certificate| certificate.revoked_at.is_none());
            let certificates = active.map(|certificate| ("certificate", &certificate.serial, certificate.ends_at));
            let tokens = spec.tokens.iter().map(|token| ("token", &token.id, token.ends_at));
            for (kind, id, ends_at) in certificates.chain(tokens).filter(|(.., ends_at)| *ends_at > self.ends_after) {
                let labels = [("principal", &*principal.meta.name), ("kind", kind), ("id", id.as_str())];
                let gauge = ConstGauge::new(i64::try_from(ends_at.0 / 1000).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for ObjectMetrics {
    /// Encodes the numbers of nodes by state, by note and by problem, and the expiry of credentials.
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let (nodes, status) = (self.nodes(), self.desired.status());
        let duplicate_count = match &nodes {
            None => self.desired.duplicate_count(),
            Some(nodes) => nodes.iter().filter(|node| self.desired.duplicate_hosts(**node).is_some()).count(),
        };
        let (name, help) = ("stemma_nodes_doubled", "Nodes whose identity is used by two hosts");
        let gauge = ConstGauge::new(i64::try_from(duplicate_count).unwrap_or(i64::MAX));
        gauge.encode(to.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        let is_visible = |node: &Uuid| match &nodes {
            None => self.model.fleet.node(NodeId(*node)).is_some(),
            Some(nodes) => nodes.contains(node),
        };
        for (name, help, node_list) in [
            (
                "stemma_nodes_ahead",
                "Nodes whose host holds a revision of another copy of the store, and is sent nothing",
                status.hosts_ahead().into_keys().collect(),
            ),
            (
                "stemma_nodes_report_refused",
                "Nodes whose host's last report was refused in part",
                status.refused_reports().nodes(),
            ),
            (
                "stemma_nodes_report_waiting",
                "Nodes whose host's last report is not completely stored yet",
                status.waiting_reports().nodes(),
            ),
            (
                "stemma_nodes_report_left_out",
                "Nodes whose host's last report was stored incompletely because of limits",
                self.model.nodes_with_dropped_reports().collect(),
            ),
            (
                "stemma_nodes_report_findings",
                "Nodes whose host reports findings of its own",
                self.model.nodes_with_host_findings().collect(),
            ),
            (
                "stemma_nodes_release_refused",
                "Nodes whose released task set the store refuses",
                status.nodes_with_refused_release(),
            ),
        ] {
            let count = node_list.into_iter().filter(is_visible).count();
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(to.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let (states, notes) = self.node_counts.clone().unwrap_or_else(|| {
            let notes = status.count_notes(nodes.as_deref());
            (nodes.map_or_else(|| status.count_all_states(), |nodes| status.count_states(nodes)), notes)
        });
        let mut family = to.encode_descriptor("stemma_nodes", "Number of nodes, by state", None, MetricType::Gauge)?;
        for state in State::ALL {
            let nodes = states.get(&state).copied().unwrap_or_default();
            let gauge = ConstGauge::new(i64::try_from(nodes).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&[("state", state.name())])?)?;
        }
        let (name, help) = ("stemma_nodes_noted", "Number of nodes, by note");
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for note in StatusNote::ALL {
            let nodes = notes.get(&note).copied().unwrap_or_default();
            let gauge = ConstGauge::new(i64::try_from(nodes).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&[("note", note.name())])?)?;
        }
        self.encode_credential_expiries(&mut to)
    }
}

/// Converts a text in the `OpenMetrics` format to the Prometheus text format. In the Prometheus format, the comments of
/// a counter have the name of its sample (`NAME_total`). The format has no units, and no line that marks the end.
pub(crate) fn prometheus_text(open_metrics: &str) -> String {
    let is_counter = |line: &str| line.strip_prefix("# TYPE ").and_then(|remainder| remainder.strip_suffix(" counter")).is_some();
    let counters: BTreeSet<&str> =
        open_metrics.lines().filter(|line| is_counter(line)).filter_map(|line| line.split(' ').nth(2)).collect();
    let lines = open_metrics.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT "));
    let mut text = String::with_capacity(open_metrics.len());
    for line in lines {
        let mut parts = line.splitn(4, ' ');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("#"), Some(keyword), Some(name), Some(remainder)) if counters.contains(name) => {
                let _infallible = writeln!(text, "# {keyword} {name}_total {remainder}");
            }
            _ => {
                let _infallible = writeln!(text, "{line}");
            }
        }
    }
    text
}

/// Returns the number of open connections of a listener, or 0 if the listener is not bound yet.
fn connection_count(connections: &OnceLock<OpenConnections>) -> u64 {
    connections.get().map_or(0, |connections| connections.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected text follows the Prometheus text format, in which the comments of a counter contain the name of its
    /// sample.
    #[test]
    fn y09_prometheus_text_names_counters_as_samples() {
        let open_metrics = "# HELP a What is refused.\n# TYPE a counter\na_total{reason=\"x y\"} 1\n# HELP b Bytes.\n# TYPE b gauge\n# UNIT b bytes\nb 2\n# EOF\n";
        let text = "# HELP a_total What is refused.\n# TYPE a_total counter\na_total{reason=\"x y\"} 1\n# HELP b Bytes.\n# TYPE b gauge\nb 2\n";
        assert_eq!(prometheus_text(open_metrics), text);
    }
}
