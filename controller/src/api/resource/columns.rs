//! What a node's body has, column by column: a list makes those alone that were asked for, and what several of them need is made
//! once for each node.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stemma_core::catalog::Meant;
use stemma_core::finding::Finding;
use stemma_core::fleet::NodeView;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::labels::Differences;
use stemma_core::manifest::{Field, Fields, UNDRIVEN};
use stemma_core::object::{Inherited, Node, NodeSpec};
use stemma_core::resolve::Resolution;
use stemma_core::status::{Facts, Liveness, Status};
use stemma_core::task::Mode;
use stemma_core::traits::NodeTraits;
use stemma_wire::endpoint::{Minor, field_since};

use super::objects::Shown;
use super::state;
use super::view::{self, Link};
use crate::api::Api;
use crate::cache::Model;
use crate::registry::names::{ModelNames, group_path};

/// A node whose columns are made.
pub(super) struct Row<'a> {
    api: &'a Api,
    model: &'a Model,
    node: &'a Node,
    base: &'a str,
    meant: &'a Meant,
    /// Whether it is asked for alone, and what costs more than a row of a list may be worked out.
    is_alone: bool,
    path: OnceCell<String>,
    outcome: OnceCell<Resolution>,
    facts: OnceCell<Facts>,
    view: OnceCell<Option<NodeView<'a>>>,
    findings: OnceCell<Vec<Finding>>,
    traits: OnceCell<Option<NodeTraits>>,
    differences: OnceCell<Option<Differences<LabelKey, LabelValue>>>,
}

impl<'a> Row<'a> {
    /// A row of which nothing is made yet. The rows of a list have one `meant`.
    pub(super) fn new(api: &'a Api, model: &'a Model, node: &'a Node, base: &'a str, meant: &'a Meant) -> Self {
        Self {
            api,
            model,
            node,
            base,
            meant,
            is_alone: false,
            path: OnceCell::new(),
            outcome: OnceCell::new(),
            facts: OnceCell::new(),
            view: OnceCell::new(),
            findings: OnceCell::new(),
            traits: OnceCell::new(),
            differences: OnceCell::new(),
        }
    }

    /// The same of a node that is asked for alone.
    #[must_use]
    pub(super) fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    fn outcome(&self) -> &Resolution {
        self.outcome.get_or_init(|| self.model.resolve(self.node.meta.uuid))
    }

    /// What decides where the node stands.
    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| state::facts_of(self.api, self.model, self.node, self.outcome()))
    }

    /// Where the node stands.
    fn status(&self) -> Status {
        self.facts().status()
    }

    /// The mode that is the node's ceiling. A node above which something is missing begins nothing, so its ceiling is `observe`.
    fn mode(&self) -> Mode {
        self.outcome().answer().map_or(Mode::Observe, |answer| answer.mode().value)
    }

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
        self.findings.get_or_init(|| state::findings(self.api, self.model, self.node, self.outcome(), self.meant))
    }

    fn differences(&self) -> Option<&Differences<LabelKey, LabelValue>> {
        self.differences.get_or_init(|| self.view()?.label_differences()).as_ref()
    }

    fn links(&self, below: &str) -> [Link; 2] {
        let path = self.path.get_or_init(|| NodeSpec::path(self.node));
        view::links(self.base, &[path, below].concat())
    }
}

/// One column of a node's body.
enum Column {
    /// A field of the spec, and what stands for its default.
    Field(&'static Field<NodeSpec>, Option<Box<RawValue>>),
    /// A field that is kept and means nothing here, likewise.
    Kept(Option<Box<RawValue>>),
    /// The same for every node.
    Fixed(Box<RawValue>),
    /// Links to the node's path, with this behind it.
    Links(&'static str),
    /// What is made of the row.
    Made(Make),
}

impl Column {
    fn write(&self, row: &Row<'_>, cell: Cell<'_>) {
        match self {
            Self::Field(field, default) => {
                match (field.show)(&row.node.spec, &ModelNames::new(row.model, &row.api.traits)) {
                    Value::Null => cell.put_some(default.as_ref()),
                    value => cell.put(&value),
                }
            }
            Self::Kept(default) => match row.node.spec.extra.get(cell.name) {
                Some(value) => cell.put(value),
                None => cell.put_some(default.as_ref()),
            },
            Self::Fixed(value) => cell.put(value),
            Self::Links(below) => cell.put(&row.links(below)),
            Self::Made(make) => make(row, cell),
        }
    }
}

/// Where one column of a row goes. A column that puts nothing is left out of the row.
struct Cell<'t> {
    name: &'static str,
    text: &'t mut Vec<u8>,
}

impl Cell<'_> {
    /// Writes the column's name and its value.
    fn put(self, value: &(impl Serialize + ?Sized)) {
        if self.text.last() != Some(&b'{') {
            self.text.push(b',');
        }
        self.text.push(b'"');
        self.text.extend_from_slice(self.name.as_bytes());
        self.text.extend_from_slice(b"\":");
        serde_json::to_writer(self.text, value).expect("a value is written to memory");
    }

    /// Writes a value, where there is one.
    fn put_some(self, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.put(&value);
        }
    }
}

/// All columns.
static COLUMNS: LazyLock<BTreeMap<&'static str, Column>> = LazyLock::new(|| {
    let mut columns = BTreeMap::new();
    for field in NodeSpec::FIELDS {
        let default = match field.name {
            "description" => Some(constant("null")),
            "properties" | "instance_info" => Some(constant("{}")),
            _ => None,
        };
        columns.insert(field.name, Column::Field(field, default));
    }
    columns.extend(NodeSpec::EXTRA.iter().map(|kept| (kept.name, Column::Kept(kept.default.map(constant)))));
    columns.extend(UNDRIVEN.iter().map(|name| (*name, Column::Fixed(constant("null")))));
    columns.extend(
        [("console_enabled", "false"), ("raid_config", "{}"), ("target_raid_config", "{}")]
            .map(|(name, text)| (name, Column::Fixed(constant(text)))),
    );
    columns.extend(LINKS.iter().map(|(name, below)| (*name, Column::Links(below))));
    columns.extend(MADE.iter().map(|(name, make)| (*name, Column::Made(*make))));
    columns
});

fn constant(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("the tables of columns hold JSON texts")
}

/// Links, and what stands behind the node's path in each.
const LINKS: &[(&str, &str)] =
    &[("links", ""), ("ports", "/ports"), ("portgroups", "/portgroups"), ("states", "/states"), ("volume", "/volume")];

type Make = fn(&Row<'_>, Cell<'_>);

const MADE: &[(&str, Make)] = &[
    ("uuid", |row, cell| cell.put(&row.node.meta.uuid)),
    ("name", |row, cell| cell.put(&row.node.meta.name)),
    ("generation", |row, cell| cell.put(&row.node.meta.generation)),
    ("resource_version", |row, cell| cell.put(&row.node.meta.resource_version)),
    ("created_at", |row, cell| cell.put(&view::time(row.node.meta.created_at))),
    ("updated_at", |row, cell| cell.put(&view::updated_at(&row.node.meta))),
    ("parked", |row, cell| cell.put(&row.node.spec.parked)),
    ("provision_state", |row, cell| cell.put(row.node.provision_state())),
    ("allocation_uuid", |row, cell| cell.put(&row.model.allocation_of(row.node).map(|one| one.meta.uuid))),
    ("maintenance", |row, cell| cell.put(&row.node.spec.parked)),
    ("labels", |row, cell| cell.put_some(row.view().map(NodeView::labels).as_ref().map(view::effective))),
    ("labels_overridden", |row, cell| cell.put_some(row.differences().map(|labels| &labels.overridden))),
    ("labels_added", |row, cell| cell.put_some(row.differences().map(|labels| &labels.added))),
    ("labels_skipped", |row, cell| cell.put_some(row.differences().map(|labels| &labels.skipped))),
    ("merge_labels", |row, cell| cell.put(&row.inherited().labels.merge.unwrap_or(false))),
    ("annotations", |row, cell| cell.put_some(row.view().map(NodeView::annotations).as_ref().map(view::effective))),
    ("parameters", |row, cell| cell.put_some(row.view().map(NodeView::parameters).as_ref().map(view::effective))),
    ("provided_labels", |row, cell| cell.put(&view::provided(&row.inherited().labels))),
    ("provided_annotations", |row, cell| cell.put(&view::provided(&row.inherited().annotations))),
    ("provided_parameters", |row, cell| cell.put(&view::provided(&row.inherited().parameters))),
    ("field_owners", |row, cell| cell.put(row.node.spec.owners_ref())),
    ("label_owners", |row, cell| cell.put(&view::owners(&row.inherited().labels))),
    ("annotation_owners", |row, cell| cell.put(&view::owners(&row.inherited().annotations))),
    ("parameter_owners", |row, cell| cell.put(&view::owners(&row.inherited().parameters))),
    ("traits", |row, cell| cell.put_some(row.traits().map(|traits| traits.names().collect::<Vec<_>>()))),
    ("trait_sources", |row, cell| cell.put_some(row.traits().map(state::trait_sources))),
    ("ruled_properties", |row, cell| {
        cell.put_some(row.view().map(NodeView::ruled_properties).filter(|ruled| !ruled.is_empty()));
    }),
    ("suppressed_traits", |row, cell| cell.put(&row.node.spec.suppressed_traits)),
    ("reported_state", |row, cell| cell.put(&state::said(row.model, row.node))),
    ("reported_labels", |row, cell| cell.put(&state::reported(row.model, row.node))),
    ("connected", |row, cell| cell.put(&(row.liveness() == Liveness::Connected))),
    ("connection", |row, cell| cell.put(row.liveness().name())),
    ("last_seen", |row, cell| {
        cell.put(&state::last_seen(row.api, row.model, row.node.meta.uuid).map(view::time));
    }),
    ("state", |row, cell| cell.put(&row.status().state)),
    ("state_reason", |row, cell| {
        let where_it_stands = (row.facts(), row.outcome(), row.mode());
        cell.put(&*state::reason(row.api, row.model, row.node, where_it_stands, row.is_alone));
    }),
    ("notes", |row, cell| cell.put(&row.facts().notes().collect::<Vec<_>>())),
    // Of what runs on it, which a hold or a pause keeps.
    ("release", |row, cell| {
        cell.put(&row.model.released.get(&row.node.meta.uuid).map(|released| &released.release));
    }),
    // Ironic's field, which its clients print.
    ("last_error", |row, cell| cell.put(&state::last_error(row.model, row.node))),
    ("mode", |row, cell| match row.outcome() {
        Resolution::Complete(answer) => cell.put(&answer.mode().value),
        Resolution::Incomplete(_) => cell.put_some(row.node.spec.mode),
    }),
    ("findings", |row, cell| cell.put(row.findings())),
    ("assigned_tags", |row, cell| cell.put(&row.node.spec.tags.assigned.members().collect::<Vec<_>>())),
    ("unassigned_tags", |row, cell| cell.put(&row.node.spec.tags.unassigned.members().collect::<Vec<_>>())),
    ("roles", |row, cell| cell.put_some(row.view().map(NodeView::roles))),
    ("tags", |row, cell| cell.put_some(row.view().map(NodeView::tags))),
    ("primary_tags", |row, cell| cell.put_some(row.view().map(NodeView::primary_tags))),
    ("nodegroup", |row, cell| cell.put(&row.node.spec.nodegroup.and_then(|id| group_path(row.model, id)))),
];

/// The columns that a body has.
#[derive(Clone)]
pub(super) struct Chosen(Vec<(&'static str, &'static Column)>);

impl Chosen {
    /// All that a client's version of Ironic's API knows.
    pub(super) fn all(version: Minor) -> Self {
        let known = |name: &str| version >= field_since(name);
        Self(COLUMNS.iter().map(|(name, column)| (*name, column)).filter(|(name, _)| known(name)).collect())
    }

    /// Those that are wanted, and the links.
    #[must_use]
    pub(super) fn only(mut self, wanted: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|(name, _)| *name == "links" || wanted(name));
        self
    }

    /// Those of other names.
    #[must_use]
    pub(super) fn without(mut self, names: &[&str]) -> Self {
        self.0.retain(|(name, _)| !names.contains(name));
        self
    }

    /// The body of a node.
    pub(super) fn body(&self, row: &Row<'_>) -> Map<String, Value> {
        let mut text = Vec::new();
        self.write(row, &mut text);
        serde_json::from_slice(&text).expect("a row is a JSON object")
    }

    /// Writes the body of a node as JSON text.
    pub(super) fn write(&self, row: &Row<'_>, text: &mut Vec<u8>) {
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

    /// The description says which fields can be chosen.
    #[test]
    fn the_columns_are_those_that_the_description_has() {
        let described = &Endpoint::GetNode.fields().expect("fields of a node").names;
        let here =
            COLUMNS.keys().filter(|name| **name != "links").map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(here, *described);
    }

    #[test]
    fn what_nothing_drives_is_made_nowhere() {
        for (name, _) in MADE {
            assert!(!UNDRIVEN.contains(name), "{name}");
        }
    }
}
