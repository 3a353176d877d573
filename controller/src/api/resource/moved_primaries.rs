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
    /// The number of moved primaries that exceed the limit.
    omitted_count: usize,
}

/// A moved primary, with names in place of ids.
struct MovedRow {
    cluster: String,
    tag: TagName,
    /// The node that was primary before the write.
    from: String,
    /// The node that is primary after the write. `None` if the tag no longer has a primary.
    to: Option<String>,
}

impl MovedPrimaries {
    /// The member of a response that lists the moved primaries. Its name is not `primaries`, because a cluster has a
    /// field of that name.
    pub(super) const FIELD: &'static str = "moved_primaries";

    /// Returns the primaries that a write has moved so far.
    pub(super) fn from_write(work: &PendingWrite<'_>) -> Self {
        let (old_fleet, new_fleet) = (&work.old_model().fleet, &work.model.fleet);
        let name = |node: Option<&Arc<Node>>| node.map(|node| node.display_name()).unwrap_or_default();
        let row = |moved: MovedPrimary| {
            let cluster = new_fleet.cluster(moved.cluster).or_else(|| old_fleet.cluster(moved.cluster));
            MovedRow {
                cluster: cluster.map(|cluster| cluster.meta.name.to_string()).unwrap_or_default(),
                from: name(old_fleet.node(moved.from)),
                to: moved.to.map(|to| name(new_fleet.node(to))),
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

    /// Returns the list for a response. If primaries beyond the limit are omitted, the last entry is the number of
    /// omitted primaries.
    pub(super) fn to_json(&self) -> Value {
        let row = |row: &MovedRow| json!({"cluster": row.cluster, "tag": row.tag, "from": row.from, "to": row.to});
        let more = (self.omitted_count > 0).then(|| json!({"left_out": self.omitted_count}));
        self.rows.iter().map(row).chain(more).collect()
    }

    /// Returns a sentence for each moved primary, for clients whose response body does not list the moved primaries.
    /// Returns none for other clients. The sentences are not findings, because the author requested the move. A warning
    /// among the findings would refuse a strict write.
    pub(super) fn sentences(&self, request: &HttpRequest) -> Vec<(Severity, String)> {
        let is_in_body = request.is_body_preferred() && !request.is_openstack_client();
        let sentence = |MovedRow { cluster, tag, from, to }: &MovedRow| match to {
            Some(to) => format!("the primary of tag {tag} in cluster {cluster} moves from {from} to {to}"),
            None => format!("tag {tag} in cluster {cluster} no longer has a primary; it was {from}"),
        };
        self.rows.iter().filter(|_| !is_in_body).map(|row| (Severity::Info, sentence(row))).collect()
    }
}
