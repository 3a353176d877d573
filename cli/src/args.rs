//! The command line, in the habits of kubectl.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

/// Labels, traits, tags and tasks of every host, and where each came from.
#[derive(Debug, Parser)]
#[command(name = "stemma", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Global {
    /// Which controller and as whom: a context file, or the name of one below ~/.config/stemma.
    #[arg(long, global = true, env = "STEMMA_CONTEXT", value_name = "FILE|NAME")]
    pub(crate) context: Option<String>,
    /// The controller's URL, in place of the context's.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Under which manager's name this writes; the principal's name unless said.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) manager: Option<String>,
    /// How to print.
    #[arg(long, short, global = true, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// Why, for the audit.
    #[arg(long, global = true, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print the requests that would be sent; write nothing.
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Refuse a write that reaches more hosts than this; above ten, a person at a terminal is asked otherwise.
    #[arg(long, global = true, value_name = "N")]
    pub(crate) max_nodes: Option<usize>,
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    Manifest,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Resolve manifests without a controller and print what each node gets.
    Resolve(Files),
    /// Render the templates of a node's tasks without a controller.
    Render {
        #[command(flatten)]
        files: Files,
        /// The node's name.
        node: String,
        /// One task's id; all of them unless said.
        task: Option<String>,
    },
    /// Check manifests without a controller and print the findings.
    Validate(Files),
    /// Print a shell's completion script.
    Completion { shell: clap_complete::Shell },
    /// Apply manifests: all of their objects, or none.
    Apply {
        #[command(flatten)]
        files: Files,
        /// Take over keys that another manager owns with another value.
        #[arg(long)]
        force: bool,
        /// Take over what this manager owns of the keys applied.
        #[arg(long, value_name = "MANAGER")]
        adopt: Option<String>,
    },
    /// List objects, or show some by name.
    Get {
        #[arg(required_unless_present = "raw")]
        kind: Option<Kind>,
        names: Vec<String>,
        /// A path of the API as it is, as `/metrics`.
        #[arg(long, value_name = "PATH", conflicts_with = "kind")]
        raw: Option<String>,
        #[command(flatten)]
        filter: Filter,
    },
    /// Everything about one object, for people.
    Describe { kind: Kind, name: String },
    /// Why a node has a label's value, a tag, a task or a trait.
    Explain {
        kind: Kind,
        name: String,
        #[command(subcommand)]
        question: Question,
    },
    /// Make an object.
    #[command(subcommand)]
    Create(Create),
    /// Delete an object.
    Delete { kind: Kind, name: String },
    /// Set (`k=v`), take away (`k-`) or stop (`--not-inherited k`) labels of an object.
    Label {
        kind: Kind,
        name: String,
        /// `KEY=VALUE` sets, `KEY-` takes away what is provided here.
        changes: Vec<String>,
        /// This key is not inherited here.
        #[arg(long, value_name = "KEY")]
        not_inherited: Vec<String>,
        /// What is provided here is added to what is inherited.
        #[arg(long, conflicts_with = "replace")]
        merge: bool,
        /// What is provided here is all there is.
        #[arg(long)]
        replace: bool,
    },
    /// A node's traits.
    #[command(subcommand)]
    Trait(Trait),
    /// A node's roles.
    #[command(subcommand)]
    Role(Role),
    /// Tags: user-defined ones, and a node's.
    #[command(subcommand)]
    Tag(Tag),
    /// The task library.
    #[command(subcommand)]
    Release(Release),
    /// Join tokens.
    #[command(subcommand)]
    Token(Token),
}

/// A question of `explain`.
#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    /// Where this label's value came from.
    Label { key: String },
    /// Why the node has this tag, or has it not.
    Tag { name: String },
    /// Why this task runs on the node, or does not.
    Task { id: String },
    /// Which source gave the node this trait.
    Trait { name: String },
}

/// Manifests to read.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Files {
    /// A manifest, or a directory of them (`*.yaml`, `*.yml`, `*.json`); `-` is standard input.
    #[arg(long = "filename", short = 'f', required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
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
    /// Of this cluster (node groups).
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Only these fields.
    #[arg(long, value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
}

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

/// Labels of a new object.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NewLabels {
    /// `KEY=VALUE`, repeated or joined with commas.
    #[arg(long, value_name = "K=V,…", value_delimiter = ',')]
    pub(crate) labels: Vec<String>,
    /// Add them to what is inherited (`--override-labels` is Magnum's spec's name for it).
    #[arg(long, alias = "override-labels")]
    pub(crate) merge_labels: bool,
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

/// A node's traits.
#[derive(Debug, Subcommand)]
pub(crate) enum Trait {
    /// Its traits, each with its source.
    List { node: String },
    /// Give it traits.
    Add {
        node: String,
        #[arg(required = true)]
        traits: Vec<String>,
    },
    /// Take traits from it.
    Remove {
        node: String,
        traits: Vec<String>,
        /// All that operators gave.
        #[arg(long)]
        all: bool,
    },
    /// Leave out traits that were detected or ruled.
    Suppress {
        node: String,
        #[arg(required = true)]
        traits: Vec<String>,
    },
}

/// A node's roles.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Give it roles.
    Add {
        node: String,
        #[arg(required = true)]
        roles: Vec<String>,
    },
    /// Take roles from it.
    Remove {
        node: String,
        #[arg(required = true)]
        roles: Vec<String>,
    },
}

/// Where a user-defined tag stands.
#[derive(Clone, Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub(crate) struct TagOwner {
    /// Visible in this cluster alone.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Visible in all clusters of this release, in all of its versions.
    #[arg(long)]
    pub(crate) release: Option<String>,
}

/// What a user-defined tag says.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct TagFields {
    /// A role that produces it.
    #[arg(long)]
    pub(crate) role: Option<String>,
    /// One node holds it as primary.
    #[arg(long)]
    pub(crate) has_primary: Option<bool>,
    /// For people.
    #[arg(long)]
    pub(crate) title: Option<String>,
}

/// Tags.
#[derive(Debug, Subcommand)]
pub(crate) enum Tag {
    /// The tags that are visible there.
    List {
        #[command(flatten)]
        owner: TagOwner,
    },
    /// Make a user-defined tag.
    Create {
        name: String,
        #[command(flatten)]
        owner: TagOwner,
        #[command(flatten)]
        fields: TagFields,
    },
    /// Change a user-defined tag.
    Update {
        name: String,
        #[command(flatten)]
        owner: TagOwner,
        #[command(flatten)]
        fields: TagFields,
    },
    /// Delete a user-defined tag that no node is assigned.
    Delete {
        name: String,
        #[command(flatten)]
        owner: TagOwner,
    },
    /// Assign tags to a node: all or none.
    Assign {
        node: String,
        #[arg(required = true)]
        tags: Vec<String>,
    },
    /// Unassign tags of a node: all or none.
    Unassign {
        node: String,
        #[arg(required = true)]
        tags: Vec<String>,
    },
}

/// The task library.
#[derive(Debug, Subcommand)]
pub(crate) enum Release {
    /// Import another system's library as a release.
    Import {
        /// A directory of Fuel's `tasks.yaml` files, or one JSON file with `graphs`, `roles` and `tags`.
        #[arg(long, value_name = "PATH")]
        fuel: PathBuf,
        /// The release's name.
        #[arg(long, default_value = "fuel")]
        name: String,
        /// The release's version.
        #[arg(long)]
        version: Option<String>,
        /// Which graph of a JSON file that holds several.
        #[arg(long, default_value = "default")]
        graph: String,
    },
}

/// Join tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token; it is printed once and kept nowhere.
    Create {
        /// Its nodes join this group (`CLUSTER/GROUP`).
        #[arg(long, conflicts_with = "node")]
        nodegroup: Option<String>,
        /// Only this node joins with it.
        #[arg(long)]
        node: Option<String>,
        /// How many nodes may use it.
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// For how many seconds.
        #[arg(long, default_value_t = 1800)]
        ttl_seconds: u64,
    },
    /// The tokens that can still be used, without their secrets.
    List,
    /// Make a token useless.
    Delete { id: String },
    /// What an agent pins: the hash of the fleet root's public key.
    CaHash,
}
