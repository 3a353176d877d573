//! Arguments that name objects: their kinds, the filter of a list, and the fields of a new object.

use std::str::FromStr;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::status::State;

/// A kind of object that the command line names. The order of the variants matters for deletions: a kind precedes the
/// kinds that its objects refer to. Join tokens are last, because no deletion is refused because of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum KindArg {
    #[value(alias = "allocations")]
    Allocation,
    #[value(alias = "nodes")]
    Node,
    #[value(aliases = ["nodegroups", "group", "groups", "ng"])]
    Nodegroup,
    #[value(alias = "clusters")]
    Cluster,
    #[value(aliases = ["clustertemplates", "template", "templates"])]
    Clustertemplate,
    #[value(alias = "releases")]
    Release,
    #[value(aliases = ["namespaces", "ns"])]
    Namespace,
    #[value(aliases = ["inspectionrules", "rule", "rules"])]
    Inspectionrule,
    #[value(aliases = ["tokens", "jointoken", "jointokens"])]
    Token,
}

/// A kind, or one object in the form `KIND/NAME`, as `-o name` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    /// The kind.
    pub(crate) kind: KindArg,
    /// The name of the object. `None` if only the kind is given.
    pub(crate) name: Option<String>,
}

impl FromStr for ObjectRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse_with_words(text, &[])
    }
}

/// The subject of `stemma get` and `stemma describe`: objects, or tasks, which are not objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GetTarget {
    /// All objects of a kind, or one object.
    Objects(ObjectRef),
    /// The tasks of all nodes, or only the task with this id.
    Tasks(Option<String>),
}

impl FromStr for GetTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, name) = split_kind_and_name(text);
        let is_task = ["task", "tasks"].iter().any(|task_word| task_word.eq_ignore_ascii_case(word));
        if is_task { Ok(Self::Tasks(name)) } else { ObjectRef::parse_with_words(text, &["task"]).map(Self::Objects) }
    }
}

/// Splits `KIND/NAME` at the first slash into kind and name. Without a slash, the whole text is the kind.
fn split_kind_and_name(text: &str) -> (&str, Option<String>) {
    text.split_once('/').map_or((text, None), |(word, name)| (word, Some(name.to_owned())))
}

impl ObjectRef {
    /// Parses `KIND` or `KIND/NAME`. The error for an unknown kind lists the kinds, and also `extra_words`, which the
    /// caller accepts in place of a kind.
    fn parse_with_words(text: &str, extra_words: &[&str]) -> Result<Self, String> {
        let (word, name) = split_kind_and_name(text);
        let kind_name = |kind: &KindArg| kind.to_possible_value().map(|value| value.get_name().to_owned());
        let kind = KindArg::from_str(word, true).map_err(|_| {
            let mut kinds: Vec<String> = KindArg::value_variants().iter().filter_map(kind_name).collect();
            kinds.extend(extra_words.iter().map(|&other| other.to_owned()));
            let hint = did_you_mean(closest_match(word, kinds.iter().map(String::as_str)));
            format!("unknown kind {word:?}{hint}: it is one of {}", kinds.join(", "))
        })?;
        Ok(Self { kind, name })
    }

    /// Returns the kind, and the names of the objects. If `self` has a name, that name is the first, and each of
    /// `names` must have the form `KIND/NAME` with the same kind, of which only NAME is returned.
    ///
    /// # Errors
    /// Fails for an object of another kind or form.
    pub(crate) fn with_names(&self, names: impl IntoIterator<Item = String>) -> Result<(KindArg, Vec<String>), String> {
        let mut objects: Vec<String> = self.name.iter().cloned().collect();
        for name in names {
            match (&self.name, name.parse::<Self>()) {
                (Some(_), Ok(Self { kind, name: Some(name) })) if kind == self.kind => objects.push(name),
                (Some(_), _) => {
                    return Err(format!(
                        "{name:?} is of another kind than the first object: use a separate command for each kind"
                    ));
                }
                (None, _) => objects.push(name),
            }
        }
        Ok((self.kind, objects))
    }
}

/// The options that select objects by their properties, in place of names.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct SelectionArgs {
    /// Select objects by a Kubernetes label selector.
    #[arg(long, short = 'l')]
    pub(crate) selector: Option<String>,
    /// Select nodes in this group (`CLUSTER/GROUP`).
    #[arg(long)]
    pub(crate) nodegroup: Option<String>,
    /// Select nodes and node groups of this cluster.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Select nodes in one of these states.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(State::ALL.map(State::name)))]
    pub(crate) state: Vec<String>,
}

impl SelectionArgs {
    /// Returns whether none of the options is given.
    pub(crate) fn is_empty(&self) -> bool {
        let options = [&self.selector, &self.nodegroup, &self.cluster];
        options.iter().all(|option| option.is_none()) && self.state.is_empty()
    }
}

/// Objects, by name or by selection.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ObjectArgs {
    /// The kind, such as `node`, or one object as KIND/NAME.
    #[arg(value_name = "KIND[/NAME]")]
    pub(crate) subject: ObjectRef,
    /// Names of the objects, or more objects as KIND/NAME.
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// The objects that `stemma pause` or `stemma resume` changes, by name or by selection.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PauseArgs {
    /// The kind (`cluster` or `nodegroup`), or one object as KIND/NAME.
    #[arg(value_name = "KIND[/NAME]")]
    pub(crate) subject: ObjectRef,
    /// Names of the objects, or more objects as KIND/NAME.
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Also change the field if another manager owns it.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// A filter for nodes or other objects. The options for states, traits, tags, roles and fields accept several names:
/// separated by commas, or by repeating the option. `--requirement` can only be repeated. The label selector, the
/// cluster and the group can be given once.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct FilterArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Select objects that have all of these traits.
    #[arg(long = "trait", value_name = "TRAIT")]
    pub(crate) traits: Vec<String>,
    /// Select objects that have none of these traits.
    #[arg(long, value_name = "TRAIT")]
    pub(crate) not_trait: Vec<String>,
    /// Select objects that have any of these traits.
    #[arg(long, value_name = "TRAIT")]
    pub(crate) trait_any: Vec<String>,
    /// Select objects that lack at least one of these traits.
    #[arg(long, value_name = "TRAIT")]
    pub(crate) not_trait_any: Vec<String>,
    /// Select objects with this tag.
    #[arg(long)]
    pub(crate) tag: Vec<String>,
    /// Select objects with this role.
    #[arg(long)]
    pub(crate) role: Vec<String>,
    /// Select objects that meet this requirement: `KEY EXPRESSION`.
    #[arg(long)]
    pub(crate) requirement: Vec<String>,
    /// Show only these fields of each object.
    #[arg(long, value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
}

impl KindArg {
    /// The kinds of objects whose hosts can be paused.
    pub(crate) const PAUSABLE: &[Self] = &[Self::Nodegroup, Self::Cluster];
    /// The kinds of objects whose labels `stemma label` can change.
    pub(crate) const LABELED: &[Self] = &[Self::Node, Self::Nodegroup, Self::Cluster, Self::Clustertemplate, Self::Release];
}

impl PauseArgs {
    /// Returns the objects to pause or resume as [`ObjectArgs`], without `overwrite`.
    pub(crate) fn object_args(&self) -> ObjectArgs {
        let Self { subject, names, selection, .. } = self;
        ObjectArgs { subject: subject.clone(), names: names.clone(), selection: selection.clone() }
    }
}

impl FilterArgs {
    /// Creates a filter from a selection. The other options of the filter are unset.
    pub(crate) fn from_selection(selection: &SelectionArgs) -> Self {
        Self { selection: selection.clone(), ..Self::default() }
    }
}

/// The labels of a new object.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NewLabelArgs {
    /// Label as `KEY=VALUE`. The option can be repeated. If it is given once, commas separate several labels.
    #[arg(long, value_name = "K=V,…")]
    pub(crate) labels: Vec<String>,
    /// Add these labels to the inherited labels. This is the default; with `false` these labels replace the inherited
    /// labels. (The alias `--override-labels` is the name in the spec of Magnum, `OpenStack`'s cluster service.)
    #[arg(long, alias = "override-labels", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) merge_labels: Option<bool>,
}

/// The requirements of an allocation.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct AllocationArgs {
    /// Resource class of the node. Must match exactly.
    #[arg(long)]
    pub(crate) resource_class: String,
    /// Trait that the node must have. The option can be repeated, and commas separate several traits.
    #[arg(long = "trait", value_name = "TRAIT", value_delimiter = ',')]
    pub(crate) traits: Vec<String>,
    /// Requirement that the node must meet: `KEY EXPRESSION`.
    #[arg(long)]
    pub(crate) requirement: Vec<String>,
    /// Node that may be allocated. The option can be repeated, and commas separate several nodes.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub(crate) candidate_node: Vec<String>,
    /// Group of the node (`CLUSTER/GROUP`). The node must meet the group's requirements.
    #[arg(long)]
    pub(crate) nodegroup: Option<String>,
    /// Owner or lessee of the node.
    #[arg(long)]
    pub(crate) owner: Option<String>,
}

/// The kinds of objects to create.
#[derive(Debug, Subcommand)]
pub(crate) enum CreateCommand {
    /// Allocate the node that fits the requirements best.
    Allocation {
        name: Option<String>,
        #[command(flatten)]
        wanted: AllocationArgs,
    },
    /// Create a cluster template, with defaults for clusters.
    Clustertemplate {
        name: String,
        /// Release, as `NAME@VERSION`.
        #[arg(long)]
        release: Option<String>,
        #[command(flatten)]
        labels: NewLabelArgs,
    },
    /// Create a cluster with the node groups `default-master` and `default-worker`.
    Cluster {
        name: String,
        /// Template of the cluster.
        #[arg(long)]
        cluster_template: Option<String>,
        #[command(flatten)]
        labels: NewLabelArgs,
    },
    /// Create a node group in a cluster.
    Nodegroup {
        cluster: String,
        name: String,
        /// Roles of its nodes.
        #[arg(long, value_delimiter = ',')]
        roles: Vec<String>,
        #[command(flatten)]
        labels: NewLabelArgs,
    },
    /// Create a node for a host that has no agent yet.
    Node {
        name: String,
        /// Group of the node, as `CLUSTER/GROUP`.
        #[arg(long)]
        nodegroup: Option<String>,
        #[command(flatten)]
        labels: NewLabelArgs,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: `get` and `describe` accept tasks, but their error listed only the kinds of objects.
    #[test]
    fn y09_parse_error_lists_accepted_words_when_kind_is_unknown() {
        let parse_error = |word: &str| word.parse::<GetTarget>().unwrap_err();
        assert!(parse_error("tags").starts_with("unknown kind \"tags\"") && parse_error("tags").ends_with(", token, task"));
        assert!(parse_error("taks").contains("(did you mean \"task\"?)"), "{}", parse_error("taks"));
        let object_error = "tags".parse::<ObjectRef>().unwrap_err();
        assert!(object_error.ends_with(", token"), "a task is not an object: {object_error}");
        for word in ["task", "tasks"] {
            assert_eq!(word.parse::<GetTarget>(), Ok(GetTarget::Tasks(None)));
        }
    }
}
