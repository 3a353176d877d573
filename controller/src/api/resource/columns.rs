//! The columns of a node's body. A list computes only the requested columns. A value that several columns need is
//! computed once for each node, when the first of them needs it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stemma_core::catalog::SuggestionCache;
use stemma_core::finding::Finding;
use stemma_core::fleet::NodeView;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::labels::MapDiff;
use stemma_core::manifest::{ALWAYS_NULL, Field, SpecFields};
use stemma_core::object::{Inherited, Node, NodeSpec};
use stemma_core::resolve::Resolution;
use stemma_core::status::{Liveness, StateInputs, Status};
use stemma_core::task::Mode;
use stemma_core::traits::NodeTraits;
use stemma_wire::endpoint::{MinorVersion, field_min_version};

use super::objects::ApiResource;
use super::state;
use super::view::{self, Link};
use crate::api::Api;
use crate::cache::Model;
use crate::reconcile::state_inputs;
use crate::registry::names::{ModelNames, group_path};

/// A node whose columns are computed. A costly value that several columns need is stored here when it is computed.
pub(super) struct NodeRow<'a> {
    api: &'a Api,
    model: &'a Model,
    node: &'a Node,
    base: &'a str,
    suggestions: &'a SuggestionCache,
    /// True if the node is requested alone. Its columns may then take longer to compute than those of a list.
    is_single: bool,
    path: OnceCell<String>,
    resolution: OnceCell<Resolution>,
    state_inputs: OnceCell<StateInputs>,
    view: OnceCell<Option<NodeView<'a>>>,
    findings: OnceCell<Vec<Finding>>,
    traits: OnceCell<Option<NodeTraits>>,
    label_differences: OnceCell<Option<MapDiff<LabelKey, LabelValue>>>,
}

impl<'a> NodeRow<'a> {
    /// Creates a row whose values are not computed yet. `base` is the base URL of links. The rows of a list share
    /// `cache`, which holds suggestions for misspelled keys.
    pub(super) fn new(api: &'a Api, model: &'a Model, node: &'a Node, base: &'a str, cache: &'a SuggestionCache) -> Self {
        Self {
            api,
            model,
            node,
            base,
            suggestions: cache,
            is_single: false,
            path: OnceCell::new(),
            resolution: OnceCell::new(),
            state_inputs: OnceCell::new(),
            view: OnceCell::new(),
            findings: OnceCell::new(),
            traits: OnceCell::new(),
            label_differences: OnceCell::new(),
        }
    }

    /// Returns the row for a node that is requested alone, not in a list. Its columns may then take longer to compute.
    #[must_use]
    pub(super) fn single(self) -> Self {
        Self { is_single: true, ..self }
    }

    /// Returns the node with all values that it inherits, or the objects above it that are missing.
    fn resolution(&self) -> &Resolution {
        self.resolution.get_or_init(|| self.model.resolve(self.node.meta.uuid))
    }

    /// Returns the inputs that decide the node's state.
    fn state_inputs(&self) -> &StateInputs {
        self.state_inputs.get_or_init(|| state::state_inputs(self.api, self.model, self.node, self.resolution()))
    }

    /// Returns the node's state.
    fn status(&self) -> Status {
        self.state_inputs().status()
    }

    /// Returns the node's mode. If an object above the node is missing, the node runs no task, so its mode is
    /// `observe`.
    fn mode(&self) -> Mode {
        self.resolution().resolved_node().map_or(Mode::Observe, |resolved| resolved.mode().value)
    }

    /// Returns the node with everything that it inherits, as far as the objects above it exist.
    fn view(&self) -> Option<&NodeView<'a>> {
        self.view.get_or_init(|| self.model.fleet.node_view(self.node.id())).as_ref()
    }

    fn traits(&self) -> Option<&NodeTraits> {
        self.traits.get_or_init(|| self.view().map(NodeView::traits)).as_ref()
    }

    fn inherited(&self) -> &Inherited {
        &self.node.spec.inherited
    }

    fn liveness(&self) -> Liveness {
        state::liveness(self.api, self.node.meta.uuid)
    }

    fn findings(&self) -> &[Finding] {
        self.findings.get_or_init(|| state::findings(self.api, self.model, self.node, self.resolution(), self.suggestions))
    }

    /// Returns the differences between the labels that levels provide to the node and to its group. Returns `None` if
    /// the node is in no group or is incomplete.
    fn label_differences(&self) -> Option<&MapDiff<LabelKey, LabelValue>> {
        self.label_differences.get_or_init(|| self.view()?.label_diff()).as_ref()
    }

    /// Returns links to the URL of the node with the path `below` appended.
    fn links(&self, below: &str) -> [Link; 2] {
        let path = self.path.get_or_init(|| NodeSpec::path(self.node));
        view::links(self.base, &[path, below].concat())
    }
}

/// One column of a node's body.
enum Column {
    /// A field of the spec, and its default. The default is shown if the field is not set. Without a default, an unset
    /// field is omitted.
    Field(&'static Field<NodeSpec>, Option<Box<RawValue>>),
    /// A field that Stemma stores and returns without reading it, with its default. The default is shown if the field
    /// is not set.
    Passthrough(Option<Box<RawValue>>),
    /// A value that is the same for every node.
    Fixed(Box<RawValue>),
    /// Links to the node's URL with this path appended.
    Links(&'static str),
    /// A value that is computed from the row.
    Computed(WriteCell),
}

impl Column {
    /// Writes the column of a node as the next member of its JSON text.
    fn write(&self, row: &NodeRow<'_>, cell: Cell<'_>) {
        match self {
            Self::Field(field, default) => match (field.show)(&row.node.spec, &ModelNames::new(row.model, &row.api.traits)) {
                Value::Null => cell.put_optional(default.as_ref()),
                value => cell.put(&value),
            },
            Self::Passthrough(default) => match row.node.spec.extra.get(cell.name) {
                Some(value) => cell.put(value),
                None => cell.put_optional(default.as_ref()),
            },
            Self::Fixed(value) => cell.put(value),
            Self::Links(below) => cell.put(&row.links(below)),
            Self::Computed(write_cell) => write_cell(row, cell),
        }
    }
}

/// The place of one column in the JSON text of a row. If nothing is written to it, the column is omitted.
struct Cell<'t> {
    name: &'static str,
    text: &'t mut Vec<u8>,
}

impl Cell<'_> {
    /// Writes the column's name and its value.
    fn put(self, value: &(impl Serialize + ?Sized)) {
        // Every member but the first follows a comma.
        if self.text.last() != Some(&b'{') {
            self.text.push(b',');
        }
        self.text.push(b'"');
        self.text.extend_from_slice(self.name.as_bytes());
        self.text.extend_from_slice(b"\":");
        serde_json::to_writer(self.text, value).expect("a value is written to memory");
    }

    /// Writes the column's name and its value, or nothing if there is no value.
    fn put_optional(self, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.put(&value);
        }
    }
}

/// All columns of a node's body, by name.
static COLUMNS: LazyLock<BTreeMap<&'static str, Column>> = LazyLock::new(|| {
    let mut columns = BTreeMap::new();
    for field in NodeSpec::FIELDS {
        let default = match field.name {
            "description" => Some(raw_json("null")),
            "properties" | "instance_info" => Some(raw_json("{}")),
            _ => None,
        };
        columns.insert(field.name, Column::Field(field, default));
    }
    columns
        .extend(NodeSpec::PASSTHROUGH_FIELDS.iter().map(|field| (field.name, Column::Passthrough(field.default.map(raw_json)))));
    columns.extend(ALWAYS_NULL.iter().map(|name| (*name, Column::Fixed(raw_json("null")))));
    columns.extend(
        [("console_enabled", "false"), ("raid_config", "{}"), ("target_raid_config", "{}")]
            .map(|(name, text)| (name, Column::Fixed(raw_json(text)))),
    );
    columns.extend(LINKS.iter().map(|(name, below)| (*name, Column::Links(below))));
    columns.extend(COMPUTED.iter().map(|(name, write_cell)| (*name, Column::Computed(*write_cell))));
    columns
});

/// Returns a JSON text as a value that is written unchanged.
fn raw_json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("the defaults of columns are valid JSON")
}

/// The columns with links, each with the path that its links append to the node's URL.
const LINKS: &[(&str, &str)] =
    &[("links", ""), ("ports", "/ports"), ("portgroups", "/portgroups"), ("states", "/states"), ("volume", "/volume")];

/// A function that writes a computed column.
type WriteCell = fn(&NodeRow<'_>, Cell<'_>);

/// The columns that are computed, each with its function.
const COMPUTED: &[(&str, WriteCell)] = &[
    ("uuid", |row, cell| cell.put(&row.node.meta.uuid)),
    ("name", |row, cell| cell.put(&row.node.meta.name)),
    ("generation", |row, cell| cell.put(&row.node.meta.generation)),
    ("resource_version", |row, cell| cell.put(&row.node.meta.resource_version)),
    ("created_at", |row, cell| cell.put(&view::format_time(row.node.meta.created_at))),
    ("updated_at", |row, cell| cell.put(&view::updated_at(&row.node.meta))),
    ("parked", |row, cell| cell.put(&row.node.spec.parked)),
    ("provision_state", |row, cell| cell.put(row.node.provision_state())),
    ("allocation_uuid", |row, cell| cell.put(&row.model.node_allocation(row.node).map(|allocation| allocation.meta.uuid))),
    ("maintenance", |row, cell| cell.put(&row.node.spec.parked)),
    ("labels", |row, cell| cell.put_optional(row.view().map(NodeView::labels).as_ref().map(view::effective_values))),
    ("labels_overridden", |row, cell| cell.put_optional(row.label_differences().map(|labels| &labels.overridden))),
    ("labels_added", |row, cell| cell.put_optional(row.label_differences().map(|labels| &labels.added))),
    ("labels_skipped", |row, cell| cell.put_optional(row.label_differences().map(|labels| &labels.skipped))),
    ("merge_labels", |row, cell| cell.put(&row.inherited().labels.merge.unwrap_or(false))),
    ("annotations", |row, cell| {
        cell.put_optional(row.view().map(NodeView::annotations).as_ref().map(view::effective_values));
    }),
    ("parameters", |row, cell| {
        cell.put_optional(row.view().map(NodeView::parameters).as_ref().map(view::effective_values));
    }),
    ("provided_labels", |row, cell| cell.put(&view::provided_values(&row.inherited().labels))),
    ("provided_annotations", |row, cell| cell.put(&view::provided_values(&row.inherited().annotations))),
    ("provided_parameters", |row, cell| cell.put(&view::provided_values(&row.inherited().parameters))),
    ("field_owners", |row, cell| cell.put(row.node.spec.owners())),
    ("label_owners", |row, cell| cell.put(&view::owners(&row.inherited().labels))),
    ("annotation_owners", |row, cell| cell.put(&view::owners(&row.inherited().annotations))),
    ("parameter_owners", |row, cell| cell.put(&view::owners(&row.inherited().parameters))),
    ("traits", |row, cell| cell.put_optional(row.traits().map(|traits| traits.names().collect::<Vec<_>>()))),
    ("trait_sources", |row, cell| cell.put_optional(row.traits().map(state::trait_sources))),
    ("ruled_properties", |row, cell| {
        cell.put_optional(row.view().map(NodeView::rule_properties).filter(|ruled| !ruled.is_empty()));
    }),
    ("suppressed_traits", |row, cell| cell.put(&row.node.spec.suppressed_traits)),
    ("reported_state", |row, cell| cell.put(&state::reported_state(row.model, row.node))),
    ("reboot", |row, cell| cell.put(&state::reboot(row.model, row.node))),
    ("reported_labels", |row, cell| cell.put(&state::reported_labels(row.model, row.node))),
    ("connected", |row, cell| cell.put(&(row.liveness() == Liveness::Connected))),
    ("connection", |row, cell| cell.put(row.liveness().name())),
    ("last_seen", |row, cell| {
        cell.put(&state::last_seen(row.api, row.model, row.node.meta.uuid).map(view::format_time));
    }),
    ("state", |row, cell| cell.put(&row.status().state)),
    ("state_reason", |row, cell| {
        let inputs = (row.state_inputs(), row.resolution(), row.mode());
        cell.put(&*state::status_reason(row.api, row.model, row.node, inputs, row.is_single));
    }),
    ("notes", |row, cell| cell.put(&row.state_inputs().notes().collect::<Vec<_>>())),
    ("unmanaged", |row, cell| cell.put(&state::unmanaged(row.model, row.node))),
    ("clean_ups", |row, cell| cell.put(&state_inputs::orphans(row.model, row.node.meta.uuid).clean_ups)),
    // The release that the node runs, which a hold or a pause retains.
    ("release", |row, cell| {
        cell.put(&row.model.released.get(&row.node.meta.uuid).map(|released| &released.release));
    }),
    // Ironic's field, which its clients print.
    ("last_error", |row, cell| cell.put(&state::last_error(row.model, row.node))),
    ("mode", |row, cell| match row.resolution() {
        Resolution::Complete(answer) => cell.put(&answer.mode().value),
        Resolution::Incomplete(_) => cell.put_optional(row.node.spec.mode),
    }),
    ("findings", |row, cell| cell.put(row.findings())),
    ("assigned_tags", |row, cell| cell.put(&row.node.spec.tags.assigned.members().collect::<Vec<_>>())),
    ("unassigned_tags", |row, cell| cell.put(&row.node.spec.tags.unassigned.members().collect::<Vec<_>>())),
    ("roles", |row, cell| cell.put_optional(row.view().map(NodeView::roles))),
    ("tags", |row, cell| cell.put_optional(row.view().map(NodeView::tags))),
    ("primary_tags", |row, cell| cell.put_optional(row.view().map(NodeView::primary_tags))),
    ("nodegroup", |row, cell| cell.put(&row.node.spec.nodegroup.and_then(|id| group_path(row.model, id)))),
];

/// The columns of a node's body that an answer shows.
#[derive(Clone)]
pub(super) struct ColumnSet(Vec<(&'static str, &'static Column)>);

impl ColumnSet {
    /// Returns all columns, except those of Ironic that this version of its API does not have yet.
    pub(super) fn all(version: MinorVersion) -> Self {
        let is_in_version = |name: &str| version >= field_min_version(name);
        Self(COLUMNS.iter().map(|(name, column)| (*name, column)).filter(|(name, _)| is_in_version(name)).collect())
    }

    /// Returns only the columns for which `is_selected` is true, and the links.
    #[must_use]
    pub(super) fn only(mut self, is_selected: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|(name, _)| *name == "links" || is_selected(name));
        self
    }

    /// Returns the columns except those with these names.
    #[must_use]
    pub(super) fn without(mut self, names: &[&str]) -> Self {
        self.0.retain(|(name, _)| !names.contains(name));
        self
    }

    /// Returns the body of a node.
    pub(super) fn body(&self, row: &NodeRow<'_>) -> Map<String, Value> {
        let mut text = Vec::new();
        self.write(row, &mut text);
        serde_json::from_slice(&text).expect("a row is a JSON object")
    }

    /// Writes the body of a node as JSON text.
    pub(super) fn write(&self, row: &NodeRow<'_>, text: &mut Vec<u8>) {
        text.push(b'{');
        for (name, column) in &self.0 {
            column.write(row, Cell { name, text });
        }
        text.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stemma_wire::endpoint::Endpoint;

    use super::*;

    /// The API description lists the fields that a request can select. `links` is not among them, because every body
    /// contains it.
    #[test]
    fn columns_match_api_description() {
        let described = &Endpoint::GetNode.selectable_fields().expect("fields of a node").names;
        let names = COLUMNS.keys().filter(|name| **name != "links").map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(names, *described);
    }

    #[test]
    fn computed_columns_exclude_always_null_fields() {
        for (name, _) in COMPUTED {
            assert!(!ALWAYS_NULL.contains(name), "{name}");
        }
    }
}
