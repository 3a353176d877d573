//! Objects on the command line: their kinds, which of them a list shows, what a new one is made of.

use std::str::FromStr;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use stemma_core::name::{near, suggest};
use stemma_core::status::State;

/// A kind of object; one stands before what its objects refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
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

/// A kind, or one object of it, as `-o name` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The kind.
    pub(crate) kind: Kind,
    /// The object's name.
    pub(crate) name: Option<String>,
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::of(text, &[])
    }
}

/// What is asked for: objects of a kind, or tasks, which are no objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A kind, or one object of it.
    Objects(Subject),
    /// Tasks over the nodes that have them, or the one of this id.
    Tasks(Option<String>),
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, name) = parts(text);
        let is_task = ["task", "tasks"].iter().any(|known| known.eq_ignore_ascii_case(word));
        if is_task { Ok(Self::Tasks(name)) } else { Subject::of(text, &["task"]).map(Self::Objects) }
    }
}

/// The word of a kind, and the name behind it.
fn parts(text: &str) -> (&str, Option<String>) {
    text.split_once('/').map_or((text, None), |(word, name)| (word, Some(name.to_owned())))
}

impl Subject {
    /// Reads it. The error of a word that is no kind lists the kinds, and what else may stand there.
    fn of(text: &str, others: &[&str]) -> Result<Self, String> {
        let (word, name) = parts(text);
        let known = |kind: &Kind| kind.to_possible_value().map(|value| value.get_name().to_owned());
        let kind = Kind::from_str(word, true).map_err(|_| {
            let mut kinds: Vec<String> = Kind::value_variants().iter().filter_map(known).collect();
            kinds.extend(others.iter().map(|&other| other.to_owned()));
            let near = suggest(near(word, kinds.iter().map(String::as_str)));
            format!("unknown kind {word:?}{near}: it is one of {}", kinds.join(", "))
        })?;
        Ok(Self { kind, name })
    }

    /// The kind, with the names that were said of it.
    ///
    /// # Errors
    /// For a name of another kind.
    pub(crate) fn with(&self, names: impl IntoIterator<Item = String>) -> Result<(Kind, Vec<String>), String> {
        let mut all: Vec<String> = self.name.iter().cloned().collect();
        for name in names {
            match (&self.name, name.parse::<Self>()) {
                (Some(_), Ok(Self { kind, name: Some(name) })) if kind == self.kind => all.push(name),
                (Some(_), _) => {
                    return Err(format!("{name:?} is not of the kind of the first: they are shown kind by kind"));
                }
                (None, _) => all.push(name),
            }
        }
        Ok((self.kind, all))
    }
}

/// Which objects, where they are not named.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Selection {
    /// A Kubernetes label selector.
    #[arg(long, short = 'l')]
    pub(crate) selector: Option<String>,
    /// Is in this group (`CLUSTER/GROUP`).
    #[arg(long)]
    pub(crate) nodegroup: Option<String>,
    /// Of this cluster (nodes and node groups).
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Nodes that stand so, in one of these states.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(State::ALL.map(State::name)))]
    pub(crate) state: Vec<String>,
}

impl Selection {
    /// Whether nothing is selected.
    pub(crate) fn is_empty(&self) -> bool {
        let single = [&self.selector, &self.nodegroup, &self.cluster];
        single.iter().all(|said| said.is_none()) && self.state.is_empty()
    }
}

/// Objects by name, or a selection of them.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Named {
    /// The kind, as `node`, or one object of it.
    #[arg(value_name = "KIND[/NAME]")]
    pub(crate) subject: Subject,
    /// The objects, or more of them as KIND/NAME.
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: Selection,
}

/// Objects whose field `paused` is set.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Pausing {
    /// The kind, `cluster` or `nodegroup`, or one object of it.
    #[arg(value_name = "KIND[/NAME]")]
    pub(crate) subject: Subject,
    /// The objects, or more of them as KIND/NAME.
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Also where another manager owns the field.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// Which nodes or objects; several names are repeated or joined with commas.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Filter {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Has all of these traits.
    #[arg(long = "trait", value_name = "TRAIT")]
    pub(crate) traits: Vec<String>,
    /// Has none of these traits.
    #[arg(long, value_name = "TRAIT")]
    pub(crate) not_trait: Vec<String>,
    /// Has any of these traits.
    #[arg(long, value_name = "TRAIT")]
    pub(crate) trait_any: Vec<String>,
    /// Lacks at least one of these traits.
    #[arg(long, value_name = "TRAIT")]
    pub(crate) not_trait_any: Vec<String>,
    /// Has this tag.
    #[arg(long)]
    pub(crate) tag: Vec<String>,
    /// Has this role.
    #[arg(long)]
    pub(crate) role: Vec<String>,
    /// Meets this requirement: `KEY EXPRESSION`.
    #[arg(long)]
    pub(crate) requirement: Vec<String>,
    /// Only these fields.
    #[arg(long, value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
}

impl Kind {
    /// The kinds whose hosts can be paused.
    pub(crate) const PAUSED: &[Self] = &[Self::Nodegroup, Self::Cluster];
    /// The kinds with labels that `label` sets.
    pub(crate) const LABELED: &[Self] =
        &[Self::Node, Self::Nodegroup, Self::Cluster, Self::Clustertemplate, Self::Release];
}

impl Pausing {
    /// Which objects.
    pub(crate) fn named(&self) -> Named {
        let Self { subject, names, selection, .. } = self;
        Named { subject: subject.clone(), names: names.clone(), selection: selection.clone() }
    }
}

impl Filter {
    /// What is selected, and nothing else.
    pub(crate) fn of(selection: &Selection) -> Self {
        Self { selection: selection.clone(), ..Self::default() }
    }
}

/// Labels of a new object.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NewLabels {
    /// `KEY=VALUE`, repeated; where it is given once, several can be joined with commas.
    #[arg(long, value_name = "K=V,…")]
    pub(crate) labels: Vec<String>,
    /// Whether they are added to what is inherited: they are, unless this is `false` (`--override-labels` is Magnum's spec's name
    /// for it).
    #[arg(long, alias = "override-labels", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) merge_labels: Option<bool>,
}

/// What an allocation asks of a node.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Wanted {
    /// The node's class, letter by letter.
    #[arg(long)]
    pub(crate) resource_class: String,
    /// The node has this trait; several are repeated or joined with commas.
    #[arg(long = "trait", value_name = "TRAIT", value_delimiter = ',')]
    pub(crate) traits: Vec<String>,
    /// The node meets this requirement: `KEY EXPRESSION`.
    #[arg(long)]
    pub(crate) requirement: Vec<String>,
    /// The node is this one, or one of several.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub(crate) candidate_node: Vec<String>,
    /// The node is in this group (`CLUSTER/GROUP`), and meets what it requires.
    #[arg(long)]
    pub(crate) nodegroup: Option<String>,
    /// Who owns the node, or leases it.
    #[arg(long)]
    pub(crate) owner: Option<String>,
}

/// What to make.
#[derive(Debug, Subcommand)]
pub(crate) enum Create {
    /// A node for what is asked for: the one that fits best.
    Allocation {
        name: Option<String>,
        #[command(flatten)]
        wanted: Wanted,
    },
    /// Defaults for clusters.
    Clustertemplate {
        name: String,
        /// `NAME@VERSION`.
        #[arg(long)]
        release: Option<String>,
        #[command(flatten)]
        labels: NewLabels,
    },
    /// A cluster with its two default groups.
    Cluster {
        name: String,
        /// The template that it is made from.
        #[arg(long)]
        cluster_template: Option<String>,
        #[command(flatten)]
        labels: NewLabels,
    },
    /// A group of a cluster's nodes.
    Nodegroup {
        cluster: String,
        name: String,
        /// Roles of its nodes.
        #[arg(long, value_delimiter = ',')]
        roles: Vec<String>,
        #[command(flatten)]
        labels: NewLabels,
    },
    /// A node without an agent yet.
    Node {
        name: String,
        /// `CLUSTER/GROUP`.
        #[arg(long)]
        nodegroup: Option<String>,
        #[command(flatten)]
        labels: NewLabels,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `get` and `describe` take tasks, and their error listed the kinds of objects alone.
    #[test]
    fn y09_the_error_of_a_word_that_is_no_kind_lists_all_that_may_stand_there() {
        let asked = |word: &str| word.parse::<Asked>().unwrap_err();
        assert!(asked("tags").starts_with("unknown kind \"tags\"") && asked("tags").ends_with(", token, task"));
        assert!(asked("taks").contains("(did you mean \"task\"?)"), "{}", asked("taks"));
        let deleted = "tags".parse::<Subject>().unwrap_err();
        assert!(deleted.ends_with(", token"), "a task is no object: {deleted}");
        for word in ["task", "tasks"] {
            assert_eq!(word.parse::<Asked>(), Ok(Asked::Tasks(None)));
        }
    }
}
