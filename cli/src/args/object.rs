//! Objects on the command line: their kinds, which of them a list shows, what a new one is made of.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
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
    #[value(aliases = ["tokens", "jointoken", "jointokens"])]
    Token,
}

/// Which nodes or objects; several names are repeated or joined with commas.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Filter {
    /// A Kubernetes label selector.
    #[arg(long, short = 'l')]
    pub(crate) selector: Option<String>,
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
    /// Stands in this group (`CLUSTER/GROUP`).
    #[arg(long)]
    pub(crate) nodegroup: Option<String>,
    /// Of this cluster (nodes and node groups).
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Only these fields.
    #[arg(long, value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
}

/// Labels of a new object.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NewLabels {
    /// `KEY=VALUE`, repeated or joined with commas.
    #[arg(long, value_name = "K=V,…", value_delimiter = ',')]
    pub(crate) labels: Vec<String>,
    /// Whether they are added to what is inherited: they are, unless this is `false` (`--override-labels` is Magnum's spec's name
    /// for it).
    #[arg(long, alias = "override-labels", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) merge_labels: Option<bool>,
}

/// What to make.
#[derive(Debug, Subcommand)]
pub(crate) enum Create {
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
