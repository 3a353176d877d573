//! Which primaries a write moves, as its answer says it.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::Severity;
use stemma_core::fleet::MovedPrimary;
use stemma_core::name::TagName;
use stemma_core::object::Node;

use crate::api::http::request::Request;
use crate::registry::work::Work;

/// How many primaries that a write moves one answer lists.
const MOST_MOVED: usize = 500;

/// The primaries that a write takes from their holders.
pub(super) struct MovedPrimaries {
    rows: Vec<MovedRow>,
    left_out: usize,
}

/// One of them, by names.
struct MovedRow {
    cluster: String,
    tag: TagName,
    from: String,
    to: Option<String>,
}

impl MovedPrimaries {
    /// The member of an answer that lists them. A cluster has a field `primaries` of its own.
    pub(super) const MEMBER: &'static str = "moved_primaries";

    /// Those of a write so far.
    pub(super) fn by(work: &Work<'_>) -> Self {
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
        let mut all = work.moved_primaries();
        let left_out = all.len().saturating_sub(MOST_MOVED);
        all.truncate(MOST_MOVED);
        Self { rows: all.into_iter().map(row).collect(), left_out }
    }

    /// Whether the write moves none.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As an answer lists them; those beyond what it lists are counted in one entry.
    pub(super) fn to_json(&self) -> Value {
        let row = |row: &MovedRow| json!({"cluster": row.cluster, "tag": row.tag, "from": row.from, "to": row.to});
        let more = (self.left_out > 0).then(|| json!({"left_out": self.left_out}));
        self.rows.iter().map(row).chain(more).collect()
    }

    /// A sentence for each, for who is told of them in no body. It is no finding: a primary that moves is what was asked for, and a strict
    /// write moves it too.
    pub(super) fn sentences(&self, request: &Request) -> Vec<(Severity, String)> {
        let is_in_body = request.prefers_body() && !request.is_of_openstack();
        let sentence = |MovedRow { cluster, tag, from, to }: &MovedRow| match to {
            Some(to) => format!("the primary of tag {tag} in cluster {cluster} moves from {from} to {to}"),
            None => format!("nobody holds tag {tag} of cluster {cluster} as primary any more; {from} did"),
        };
        self.rows.iter().filter(|_| !is_in_body).map(|row| (Severity::Info, sentence(row))).collect()
    }
}
