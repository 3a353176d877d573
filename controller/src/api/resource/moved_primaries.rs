//! The primaries that a write moves, as its response lists them.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::Severity;
use stemma_core::fleet::MovedPrimary;
use stemma_core::name::TagName;
use stemma_core::object::Node;

use crate::api::http::request::HttpRequest;
use crate::registry::work::PendingWrite;

/// Maximum number of moved primaries in one response.
const MAX_MOVED: usize = 500;

/// The primaries that a write moves away from their nodes.
pub(super) struct MovedPrimaries {
    rows: Vec<MovedRow>,
    omitted_count: usize,
}

/// A moved primary, with names in place of ids.
struct MovedRow {
    cluster: String,
    tag: TagName,
    from: String,
    to: Option<String>,
}

impl MovedPrimaries {
    /// The member of a response that lists the moved primaries. Its name is not `primaries`, because a cluster has a
    /// field of that name.
    pub(super) const FIELD: &'static str = "moved_primaries";

    /// Returns the primaries that a write has moved so far.
    pub(super) fn from_write(work: &PendingWrite<'_>) -> Self {
        let (before, after) = (&work.before().fleet, &work.model.fleet);
        let name = |node: Option<&Arc<Node>>| node.map(|node| node.display_name()).unwrap_or_default();
        let row = |moved: MovedPrimary| {
            let cluster = after.cluster(moved.cluster).or_else(|| before.cluster(moved.cluster));
            MovedRow {
                cluster: cluster.map(|cluster| cluster.meta.name.to_string()).unwrap_or_default(),
                from: name(before.node(moved.from)),
                to: moved.to.map(|to| name(after.node(to))),
                tag: moved.tag,
            }
        };
        let mut moved = work.moved_primaries();
        let omitted_count = moved.len().saturating_sub(MAX_MOVED);
        moved.truncate(MAX_MOVED);
        Self { rows: moved.into_iter().map(row).collect(), omitted_count }
    }

    /// Returns whether the write moves no primary.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the list for a response. If primaries beyond the limit are omitted, the last entry is their number.
    pub(super) fn to_json(&self) -> Value {
        let row = |row: &MovedRow| json!({"cluster": row.cluster, "tag": row.tag, "from": row.from, "to": row.to});
        let more = (self.omitted_count > 0).then(|| json!({"left_out": self.omitted_count}));
        self.rows.iter().map(row).chain(more).collect()
    }

    /// Returns a sentence for each moved primary, for clients whose response body does not list them. The sentences are
    /// not findings, which would refuse a strict write: a move is what the author requested.
    pub(super) fn sentences(&self, request: &HttpRequest) -> Vec<(Severity, String)> {
        let is_in_body = request.is_body_preferred() && !request.is_openstack_client();
        let sentence = |MovedRow { cluster, tag, from, to }: &MovedRow| match to {
            Some(to) => format!("the primary of tag {tag} in cluster {cluster} moves from {from} to {to}"),
            None => format!("tag {tag} in cluster {cluster} no longer has a primary; it was {from}"),
        };
        self.rows.iter().filter(|_| !is_in_body).map(|row| (Severity::Info, sentence(row))).collect()
    }
}
