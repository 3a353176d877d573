//! What a node's body has, column by column: a list makes those alone that were asked for, and what several of them need is made
//! once for each node.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::Serialize;
use serde_json::{Map, Value, json};
use stemma_core::finding::Finding;
use stemma_core::fleet::NodeView;
use stemma_core::labels::{Differences, differences};
use stemma_core::manifest::{Field, Fields};
use stemma_core::object::{Node, NodeSpec};
use stemma_core::origin::Level;
use stemma_core::resolve::Resolution;
use stemma_core::status::{Liveness, Status};
use stemma_wire::endpoint::{Minor, since};

use super::kept;
use super::objects::Shown;
use super::state;
use super::view::{self, Folds, Link};
use crate::api::Api;
use crate::cache::Model;
use crate::desired::size;
use crate::registry::names::{ModelNames, group_path};

/// A node whose columns are made.
pub(super) struct Row<'a> {
    api: &'a Api,
    model: &'a Model,
    node: &'a Node,
    base: &'a str,
    path: OnceCell<String>,
    outcome: OnceCell<Resolution>,
    status: OnceCell<Status>,
    view: OnceCell<Option<NodeView<'a>>>,
    findings: OnceCell<Vec<Finding>>,
    above: OnceCell<Option<Folds>>,
    differences: OnceCell<Option<Differences<String, String>>>,
}

impl<'a> Row<'a> {
    /// A row of which nothing is made yet.
    pub(super) fn new(api: &'a Api, model: &'a Model, node: &'a Node, base: &'a str) -> Self {
        Self {
            api,
            model,
            node,
            base,
            path: OnceCell::new(),
            outcome: OnceCell::new(),
            status: OnceCell::new(),
            view: OnceCell::new(),
            findings: OnceCell::new(),
            above: OnceCell::new(),
            differences: OnceCell::new(),
        }
    }

    fn outcome(&self) -> &Resolution {
        self.outcome.get_or_init(|| self.model.resolve(self.node.meta.uuid))
    }

    /// Where the node stands.
    pub(super) fn status(&self) -> &Status {
        self.status.get_or_init(|| state::status(self.api, self.model, self.node, self.outcome(), self.findings()))
    }

    fn view(&self) -> Option<&NodeView<'a>> {
        self.view.get_or_init(|| self.model.fleet.node_view(self.node.id())).as_ref()
    }

    fn findings(&self) -> &[Finding] {
        self.findings.get_or_init(|| match self.outcome() {
            Resolution::Complete(answer) => {
                size::findings(answer).into_iter().chain(state::doubled(self.api, self.node)).collect()
            }
            Resolution::Incomplete(_) => Vec::new(),
        })
    }

    /// What stands above the node, folded; none for one without a group.
    fn above(&self) -> Option<&Folds> {
        let folded = || {
            let fold = self.model.fleet.fold(self.node.spec.nodegroup?);
            Some(match fold {
                Ok(fold) => Folds::of_group(fold),
                // Something above the group is missing.
                Err(_) => Folds::of(&view::above_node(self.model, &self.node.spec)),
            })
        };
        self.above.get_or_init(folded).as_ref()
    }

    fn differences(&self) -> Option<&Differences<String, String>> {
        let compare = || {
            let above = self.above()?;
            let own = above.labels.below(Level::Node, &self.node.spec.inherited.labels);
            Some(differences(&above.label_map(), &view::label_map(&own)))
        };
        self.differences.get_or_init(compare).as_ref()
    }

    fn links(&self, below: &str) -> [Link; 2] {
        let path = self.path.get_or_init(|| NodeSpec::path(self.node));
        view::links(self.base, &[path, below].concat())
    }
}

/// One column of a node's body.
pub(super) enum Column {
    /// A field of the spec, and what stands for its default.
    Field(&'static Field<NodeSpec>, Option<Value>),
    /// A field that is kept and means nothing here, likewise.
    Kept(Option<Value>),
    /// The same for every node.
    Fixed(Value),
    /// Links to the node's path, with this behind it.
    Links(&'static str),
    /// What is made of the row; none where it has nothing to say.
    Made(fn(&Row<'_>) -> Option<Value>),
}

impl Column {
    fn cell<'r>(&'r self, name: &str, row: &'r Row<'_>) -> Option<Cell<'r>> {
        let value = match self {
            Self::Field(field, default) => {
                let value = (field.show)(&row.node.spec, &ModelNames::new(row.model, &row.api.traits));
                if value.is_null() { default.as_ref().map(Cow::Borrowed) } else { Some(Cow::Owned(value)) }
            }
            Self::Kept(default) => row.node.spec.extra.get(name).or(default.as_ref()).map(Cow::Borrowed),
            Self::Fixed(value) => Some(Cow::Borrowed(value)),
            Self::Links(below) => return Some(Cell::Links(row.links(below))),
            Self::Made(make) => make(row).map(Cow::Owned),
        };
        value.map(Cell::Value)
    }
}

/// What stands in one column of a row.
#[derive(Serialize)]
#[serde(untagged)]
enum Cell<'r> {
    Value(Cow<'r, Value>),
    Links([Link; 2]),
}

impl Cell<'_> {
    fn into_value(self) -> Value {
        match self {
            Self::Value(value) => value.into_owned(),
            Self::Links(links) => json!(links),
        }
    }
}

/// All columns.
static COLUMNS: LazyLock<BTreeMap<&'static str, Column>> = LazyLock::new(|| {
    let mut columns = BTreeMap::new();
    for field in NodeSpec::FIELDS {
        let default = match field.name {
            "description" => Some(Value::Null),
            "properties" | "instance_info" => Some(json!({})),
            _ => None,
        };
        columns.insert(field.name, Column::Field(field, default));
    }
    let mut defaults = Map::new();
    kept::fill(NodeSpec::EXTRA, &mut defaults);
    columns.extend(NodeSpec::EXTRA.iter().map(|kept| (kept.name, Column::Kept(defaults.remove(kept.name)))));
    columns.extend(UNDRIVEN.iter().map(|name| (*name, Column::Fixed(Value::Null))));
    columns.extend([
        ("console_enabled", Column::Fixed(false.into())),
        ("raid_config", Column::Fixed(json!({}))),
        ("target_raid_config", Column::Fixed(json!({}))),
    ]);
    columns.extend(LINKS.iter().map(|(name, below)| (*name, Column::Links(below))));
    columns.extend(MADE.iter().map(|(name, make)| (*name, Column::Made(*make))));
    columns
});

/// What Ironic's bodies say of a machine's life, which nothing here drives.
const UNDRIVEN: &[&str] = &[
    "power_state",
    "target_power_state",
    "target_provision_state",
    "provision_updated_at",
    "reservation",
    "last_error",
    "fault",
    "inspection_finished_at",
    "inspection_started_at",
    "conductor",
    "secure_boot",
    "boot_mode",
];

/// Links, and what stands behind the node's path in each.
const LINKS: &[(&str, &str)] =
    &[("links", ""), ("ports", "/ports"), ("portgroups", "/portgroups"), ("states", "/states"), ("volume", "/volume")];

type Make = fn(&Row<'_>) -> Option<Value>;

const MADE: &[(&str, Make)] = &[
    ("uuid", |row| Some(row.node.meta.uuid.to_string().into())),
    ("name", |row| Some(json!(row.node.meta.name.as_ref().map(ToString::to_string)))),
    ("generation", |row| Some(row.node.meta.generation.into())),
    ("resource_version", |row| Some(row.node.meta.resource_version.into())),
    ("created_at", |row| Some(view::time(row.node.meta.created_at).into())),
    ("updated_at", |row| Some(view::updated_at(&row.node.meta))),
    ("parked", |row| Some(row.node.spec.parked.into())),
    ("provision_state", |row| Some(row.node.provision_state().into())),
    ("allocation_uuid", |row| Some(json!(row.model.allocation_of(row.node).map(|one| one.meta.uuid)))),
    ("maintenance", |row| Some(row.node.spec.parked.into())),
    ("labels", |row| Some(view::texts(&row.view()?.labels()))),
    ("labels_overridden", |row| row.differences().map(|labels| json!(labels.overridden))),
    ("labels_added", |row| row.differences().map(|labels| json!(labels.added))),
    ("labels_skipped", |row| row.differences().map(|labels| json!(labels.skipped))),
    ("merge_labels", |row| Some(row.node.spec.inherited.labels.merge.unwrap_or(false).into())),
    ("annotations", |row| {
        let own = &row.node.spec.inherited.annotations;
        Some(view::texts(
            &row.above().map(|above| above.annotations.clone()).unwrap_or_default().below(Level::Node, own),
        ))
    }),
    ("parameters", |row| {
        let own = &row.node.spec.inherited.parameters;
        Some(view::values(
            &row.above().map(|above| above.parameters.clone()).unwrap_or_default().below(Level::Node, own),
        ))
    }),
    ("provided_labels", |row| Some(view::provided(&row.node.spec.inherited.labels))),
    ("provided_annotations", |row| Some(view::provided(&row.node.spec.inherited.annotations))),
    ("provided_parameters", |row| Some(view::provided(&row.node.spec.inherited.parameters))),
    ("label_owners", |row| Some(view::owners(&row.node.spec.inherited.labels))),
    ("annotation_owners", |row| Some(view::owners(&row.node.spec.inherited.annotations))),
    ("parameter_owners", |row| Some(view::owners(&row.node.spec.inherited.parameters))),
    ("traits", |row| Some(json!(row.view()?.traits().names().collect::<Vec<_>>()))),
    ("trait_sources", |row| Some(state::trait_sources(&row.view()?.traits()))),
    ("suppressed_traits", |row| Some(json!(row.node.spec.suppressed_traits))),
    ("reported_state", |row| Some(state::said(row.model, row.node))),
    ("reported_labels", |row| Some(json!(state::reported(row.model, row.node)))),
    ("connected", |row| Some((state::liveness(row.api, row.node.meta.uuid) == Liveness::Connected).into())),
    ("connection", |row| Some(state::liveness(row.api, row.node.meta.uuid).name().into())),
    ("last_seen", |row| Some(json!(state::last_seen(row.api, row.model, row.node.meta.uuid).map(view::time)))),
    ("state", |row| Some(json!(row.status().state))),
    ("state_reason", |row| Some(row.status().reason.into())),
    // Of what runs on it, which a hold or a pause keeps.
    ("release", |row| Some(json!(row.model.released.get(&row.node.meta.uuid).map(|released| &released.release)))),
    // Ironic's field, which its clients print.
    ("last_error", |row| Some(json!(state::last_error(row.model, row.node)))),
    ("mode", |row| match row.outcome() {
        Resolution::Complete(answer) => Some(json!(answer.mode().value)),
        Resolution::Incomplete(_) => row.node.spec.mode.map(|mode| json!(mode)),
    }),
    ("findings", |row| match row.outcome() {
        Resolution::Complete(_) => Some(json!(row.findings())),
        Resolution::Incomplete(_) => None,
    }),
    ("assigned_tags", |row| Some(json!(row.node.spec.tags.assigned.members().collect::<Vec<_>>()))),
    ("unassigned_tags", |row| Some(json!(row.node.spec.tags.unassigned.members().collect::<Vec<_>>()))),
    ("roles", |row| Some(json!(row.view()?.roles()))),
    ("tags", |row| Some(json!(row.view()?.tags()))),
    ("primary_tags", |row| Some(json!(row.view()?.primary_tags()))),
    ("nodegroup", |row| Some(json!(row.node.spec.nodegroup.and_then(|id| group_path(row.model, id))))),
];

/// Whether a node has a column of that name which can be asked for.
pub(super) fn is_known(name: &str) -> bool {
    COLUMNS.contains_key(name)
}

/// The columns that a body has.
#[derive(Clone)]
pub(super) struct Chosen(Vec<(&'static str, &'static Column)>);

impl Chosen {
    /// All that a client's version of Ironic's API knows.
    pub(super) fn all(version: Minor) -> Self {
        let known = |name: &str| match name {
            "traits" => version >= since::TRAITS,
            "resource_class" => version >= since::RESOURCE_CLASS,
            _ => true,
        };
        Self(COLUMNS.iter().map(|(name, column)| (*name, column)).filter(|(name, _)| known(name)).collect())
    }

    /// Those of these names, and the links.
    #[must_use]
    pub(super) fn only<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        let names: BTreeSet<&str> = names.into_iter().chain(["links"]).collect();
        self.0.retain(|(name, _)| names.contains(name));
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
        let columns = self.0.iter();
        columns.filter_map(|(name, column)| Some(((*name).to_owned(), column.cell(name, row)?.into_value()))).collect()
    }

    /// Writes the same as JSON text.
    pub(super) fn write(&self, row: &Row<'_>, text: &mut Vec<u8>) {
        let mut separator = b'{';
        for (name, column) in &self.0 {
            let Some(cell) = column.cell(name, row) else { continue };
            text.push(separator);
            separator = b',';
            text.push(b'"');
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            serde_json::to_writer(&mut *text, &cell).expect("a value is written to memory");
        }
        text.push(b'}');
    }
}
