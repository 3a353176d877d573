//! What the controller counts of itself, for `/metrics`, as text of the `OpenMetrics` format.
//!
//! What others count already (the store, the refusals, the desired table) is read when it is asked for and kept in one place
//! only; a second counter beside it would one day differ.

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
use stemma_core::status::{Facts, Note, State};
use stemma_wire::serve::{Connections, Rejected};
use uuid::Uuid;

use crate::blobs::Gauges;
use crate::cache::{Cache, Model};
use crate::clock::WatchedClock;
use crate::desired::DesiredTable;
use crate::identity::Identities;
use crate::records::key;
use crate::status;
use crate::store::Store;

/// What of the store is measured: the label `of`, and the prefix of its keys.
const MEASURED: [(&str, &str); 8] = [
    ("objects", key::OBJECTS),
    ("history", key::HISTORY),
    ("audit", key::AUDIT),
    ("requests", key::REQUESTS),
    ("released", key::RELEASED),
    ("released_values", key::COMMON_PARTS),
    ("released_value_lists", key::COMMON),
    ("released_texts", key::COMMON_CHUNKS),
];
/// For how long after its end it is told when a principal's certificate or token has ended.
const ENDED_TOLD_MS: u64 = 31 * 24 * 3600 * 1000;

/// What is counted here, since the start of the process.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Check-ins taken.
    pub check_ins: Counter,
    /// Certificates given to agents that joined.
    pub enrolments: Counter,
    /// Certificates given to agents that renewed.
    pub renewals: Counter,
    /// Nodes resolved.
    pub resolved: Counter,
    /// Full resolves on the slow timer, which must find nothing to do, that found something.
    pub missed: Counter,
    /// File bodies that were found damaged.
    pub damaged_blobs: Counter,
    /// What file bodies take.
    pub blobs: Gauges,
}

/// Everything that `/metrics` shows.
pub struct Metrics {
    registry: Registry,
    counters: Arc<Counters>,
    listeners: Arc<Listeners>,
    desired: Arc<DesiredTable>,
    cache: Arc<Cache>,
    clock: Arc<WatchedClock>,
}

/// The connections of the two listeners, once they are bound.
#[derive(Debug, Default)]
struct Listeners {
    agents: OnceLock<Connections>,
    admin: OnceLock<Connections>,
}

impl Metrics {
    /// The metrics of a controller over these parts: the store with its file, and what else is counted.
    pub fn new(
        (store, file): (Arc<dyn Store>, PathBuf),
        rejected: Arc<Rejected>,
        desired: Arc<DesiredTable>,
        cache: Arc<Cache>,
        counters: Arc<Counters>,
        clock: Arc<WatchedClock>,
        identities: Arc<Identities>,
    ) -> Self {
        let mut registry = Registry::default();
        let (listeners, stats) = (Arc::new(Listeners::default()), store.stats());
        for (name, help, counter) in [
            ("stemma_checkins", "Check-ins taken", &counters.check_ins),
            ("stemma_enrolments", "Agents that joined", &counters.enrolments),
            ("stemma_renewals", "Certificates that agents renewed", &counters.renewals),
            ("stemma_nodes_resolved", "Nodes resolved", &counters.resolved),
            ("stemma_blobs_damaged", "File bodies that were found damaged and set aside", &counters.damaged_blobs),
            ("stemma_reconcile_missed", "Slow full resolves that found something to do", &counters.missed),
            ("stemma_store_commits", "Commits by this process that changed something", &stats.commits),
            ("stemma_store_puts", "Entries written", &stats.puts),
            ("stemma_store_deletes", "Entries taken away", &stats.deletes),
            ("stemma_store_syncs", "Engine transactions made durable", &stats.syncs),
            ("stemma_store_unmet", "Transactions whose preconditions did not hold", &stats.unmet),
            ("stemma_desired_published", "Desired states published whose digest is new", &desired.published),
            ("stemma_desired_sent", "Desired states sent to agents", &desired.sent),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, gauge) in [
            ("stemma_blobs_bytes", "What file bodies take", &counters.blobs.all),
            (
                "stemma_blobs_unnamed_bytes",
                "What of it nothing names, as of when it was last counted",
                &counters.blobs.unnamed,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        let parts = Parts {
            store,
            file,
            rejected,
            desired: Arc::clone(&desired),
            listeners: Arc::clone(&listeners),
            cache: Arc::clone(&cache),
            clock: Arc::clone(&clock),
            identities,
        };
        registry.register_collector(Box::new(parts));
        Self { registry, counters, listeners, desired, cache, clock }
    }

    /// What is counted here.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Whose connections are shown, once the listeners are bound. What is told later is not taken.
    pub fn watch_connections(&self, agents: Connections, admin: Connections) {
        let _told_once = (self.listeners.agents.set(agents), self.listeners.admin.set(admin));
    }

    /// The text of `/metrics`, as `application/openmetrics-text; version=1.0.0; charset=utf-8`. For who is bound to a cluster: of objects, what stands there alone is counted and named, and nothing of the controller, which
    /// counts what all clusters do.
    pub fn text_within(&self, within: Option<ClusterId>) -> String {
        self.text_by(within, None)
    }

    /// The same; `facts`: what decides the states of the nodes that are seen, where the table of states is behind.
    pub(crate) fn text_by(&self, within: Option<ClusterId>, facts: Option<&[Facts]>) -> String {
        let mut of_objects = Registry::default();
        let model = self.cache.model().seen_within(within);
        // By a suspect clock nothing has ended so long ago that it is not told.
        let ends_after = self.clock.trusted_now().map_or(0, |now| now.0.saturating_sub(ENDED_TOLD_MS));
        let (desired, ends_after) = (Arc::clone(&self.desired), Timestamp(ends_after));
        let of_model = facts.map(|facts| (status::counted(facts.iter()), status::noted(facts.iter())));
        of_objects.register_collector(Box::new(Objects { model, desired, ends_after, of_model }));
        let mut text = String::new();
        let mut registries = within.is_none().then_some(&self.registry).into_iter().chain([&of_objects]);
        let written = registries.try_for_each(|registry| encode_registry(&mut text, registry));
        written.and_then(|()| encode_eof(&mut text)).expect("a string takes all text");
        text
    }
}

/// What is read where it is counted.
struct Parts {
    store: Arc<dyn Store>,
    file: PathBuf,
    rejected: Arc<Rejected>,
    desired: Arc<DesiredTable>,
    listeners: Arc<Listeners>,
    cache: Arc<Cache>,
    clock: Arc<WatchedClock>,
    identities: Arc<Identities>,
}

impl Parts {
    /// How old the last backup is, in seconds; `None` before the first.
    fn backup_age(&self) -> Option<u64> {
        let made = self.cache.model().last_backup.as_ref()?.record.at;
        Some(self.clock.now().0.saturating_sub(made.0) / 1000)
    }

    /// What the store takes. What is not known yet is left out.
    fn encode_sizes(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = |bytes: u64| ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX));
        if let Ok(file) = std::fs::metadata(&self.file) {
            let (name, help) = ("stemma_store_file_bytes", "The size of the store's file, which does not shrink");
            gauge(file.len()).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let (name, help) = ("stemma_store_bytes", "What keys and values in the store take, by what they are");
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (of, prefix) in MEASURED {
            if let Some(bytes) = self.store.stats().bytes_below(prefix) {
                gauge(bytes).encode(family.encode_family(&[("of", of)])?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

impl Collector for Parts {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let of_backup = |age| ("stemma_backup_age_seconds", "How long ago the last backup was made", age);
        let backup = self.backup_age().map(of_backup);
        let gauges = [
            ("stemma_store_revision", "The store's last durable revision", self.store.stats().revision()),
            ("stemma_desired_revision", "All nodes are resolved as of this revision", self.desired.resolved().0),
            ("stemma_checkins_parked", "Check-ins held right now", self.desired.parked() as u64),
            (
                "stemma_hosts_unknown",
                "Hosts with a certificate of this fleet that are none of its nodes, since the start: each has to leave and join again",
                self.identities.unknown() as u64,
            ),
            (
                "stemma_clock_suspect",
                "Whether the clock has jumped, so that nothing is dropped because its time is over",
                u64::from(self.clock.finding().is_some()),
            ),
            ("stemma_agent_connections", "Open connections of the agents' listener", count(&self.listeners.agents)),
            ("stemma_admin_connections", "Open connections of the admin listener", count(&self.listeners.admin)),
        ];
        for (name, help, value) in gauges.into_iter().chain(backup) {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(to.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        self.encode_sizes(&mut to)?;
        let mut family =
            to.encode_descriptor("stemma_rejected", "What was refused, by reason", None, MetricType::Counter)?;
        for (reason, count) in self.rejected.counts() {
            ConstCounter::new(count).encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

/// What is told of objects, as somebody sees them.
struct Objects {
    model: Arc<Model>,
    desired: Arc<DesiredTable>,
    /// What a principal is known by is told where it ends after this.
    ends_after: Timestamp,
    /// How many of the nodes stand in each state and have each note, where the table of states is behind.
    of_model: Option<(BTreeMap<State, usize>, BTreeMap<Note, usize>)>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}

impl Objects {
    /// The nodes that are seen, where these are not all.
    fn nodes(&self) -> Option<Vec<Uuid>> {
        let cluster = self.model.within?;
        Some(self.model.fleet.nodes_of_cluster(cluster).map(|node| node.0).collect())
    }

    fn encode_ends(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("stemma_credential_end_seconds", "When what a principal is known by ends, since 1970");
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for principal in self.model.principals.iter() {
            let spec = &principal.spec;
            let good = spec.certificates.iter().filter(|one| one.revoked_at.is_none());
            let certificates = good.map(|one| ("certificate", &one.serial, one.ends_at));
            let tokens = spec.tokens.iter().map(|one| ("token", &one.id, one.ends_at));
            for (kind, id, ends_at) in certificates.chain(tokens).filter(|(.., ends_at)| *ends_at > self.ends_after) {
                let labels = [("principal", &*principal.meta.name), ("kind", kind), ("id", id.as_str())];
                let gauge = ConstGauge::new(i64::try_from(ends_at.0 / 1000).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for Objects {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let (nodes, status) = (self.nodes(), self.desired.status());
        let doubled = match &nodes {
            None => self.desired.doubled(),
            Some(nodes) => nodes.iter().filter(|node| self.desired.two_hosts(**node).is_some()).count(),
        };
        let (name, help) = ("stemma_nodes_doubled", "Nodes with whose identity two hosts check in");
        let gauge = ConstGauge::new(i64::try_from(doubled).unwrap_or(i64::MAX));
        gauge.encode(to.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        let is_seen = |node: &Uuid| match &nodes {
            None => self.model.fleet.node(NodeId(*node)).is_some(),
            Some(nodes) => nodes.contains(node),
        };
        for (name, help, concerned) in [
            (
                "stemma_nodes_ahead",
                "Nodes whose host holds a revision of another copy of the store, and is told nothing",
                status.all_ahead().into_keys().collect(),
            ),
            (
                "stemma_nodes_report_refused",
                "Nodes of whose host's last report a part was refused",
                status.refused_reports().nodes(),
            ),
            (
                "stemma_nodes_report_waiting",
                "Nodes of whose host's last report a part is not kept yet",
                status.waiting_reports().nodes(),
            ),
            (
                "stemma_nodes_report_left_out",
                "Nodes of whose host's last report less was kept than it said",
                self.model.nodes_with_left_out().collect(),
            ),
            (
                "stemma_nodes_report_findings",
                "Nodes whose host could not use or do something, as its last report says",
                self.model.nodes_with_findings_of_hosts().collect(),
            ),
            (
                "stemma_nodes_release_refused",
                "Nodes of which the store refuses what is released to them",
                status.nodes_with_refused_release(),
            ),
        ] {
            let count = concerned.into_iter().filter(is_seen).count();
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(to.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let (states, notes) = self.of_model.clone().unwrap_or_else(|| {
            let notes = status.count_noted(nodes.as_deref());
            (nodes.map_or_else(|| status.count_all(), |nodes| status.count(nodes)), notes)
        });
        let mut family = to.encode_descriptor("stemma_nodes", "Nodes, by where they stand", None, MetricType::Gauge)?;
        for state in State::ALL {
            let nodes = states.get(&state).copied().unwrap_or_default();
            let gauge = ConstGauge::new(i64::try_from(nodes).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&[("state", state.name())])?)?;
        }
        let (name, help) = ("stemma_nodes_noted", "Nodes, by what is so beside where they stand");
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for note in Note::ALL {
            let nodes = notes.get(&note).copied().unwrap_or_default();
            let gauge = ConstGauge::new(i64::try_from(nodes).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&[("note", note.name())])?)?;
        }
        self.encode_ends(&mut to)
    }
}

/// The same metrics in the text form of Prometheus, of a text of `OpenMetrics`: there a counter is called as its sample is, there are no units,
/// and nothing ends the text.
pub(crate) fn prometheus_text(open_metrics: &str) -> String {
    let is_counter = |line: &str| line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")).is_some();
    let counters: BTreeSet<&str> =
        open_metrics.lines().filter(|line| is_counter(line)).filter_map(|line| line.split(' ').nth(2)).collect();
    let kept = open_metrics.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT "));
    let mut text = String::with_capacity(open_metrics.len());
    for line in kept {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(word), Some(name), Some(rest)) if counters.contains(name) => {
                let _infallible = writeln!(text, "# {word} {name}_total {rest}");
            }
            _ => {
                let _infallible = writeln!(text, "{line}");
            }
        }
    }
    text
}

fn count(connections: &OnceLock<Connections>) -> u64 {
    connections.get().map_or(0, |connections| connections.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected: Prometheus' exposition formats, where a counter's TYPE names the sample.
    #[test]
    fn y09_the_text_form_of_prometheus_names_counters_as_their_samples() {
        let open = "# HELP a What is refused.\n# TYPE a counter\na_total{reason=\"x y\"} 1\n# HELP b Bytes.\n# TYPE b gauge\n# UNIT b bytes\nb 2\n# EOF\n";
        let text = "# HELP a_total What is refused.\n# TYPE a_total counter\na_total{reason=\"x y\"} 1\n# HELP b Bytes.\n# TYPE b gauge\nb 2\n";
        assert_eq!(prometheus_text(open), text);
    }
}
