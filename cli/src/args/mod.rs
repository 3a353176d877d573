//! The command line, with the conventions of kubectl.

mod access;
mod catalog;
mod events;
mod node;
mod object;

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub(crate) use access::{
    CertCommand, CreatePrincipalArgs, NewContextArgs, PrincipalCommand, PrincipalRoleArg, PrincipalTokenCommand,
    UpdatePrincipalArgs,
};
pub(crate) use catalog::{CatalogCommand, ExplainTarget, ImportMode};
pub(crate) use events::{EventArgs, EventClass, WaitArgs, WaitCondition};
pub(crate) use node::{
    NodeCommand, NodeFieldArgs, NodeListArgs, OwnedNodeListArgs, PrimaryCommand, ReleaseCommand, RoleCommand, TagCommand,
    TagFieldArgs, TagOwnerArgs, TokenCommand, TraitCommand,
};
pub(crate) use object::{
    AllocationArgs, CreateCommand, FilterArgs, GetTarget, KindArg, NewLabelArgs, ObjectArgs, ObjectRef, PauseArgs, SelectionArgs,
};

/// Manage labels, traits, tags and tasks of every host, and show where each came from.
#[derive(Debug, Parser)]
#[command(name = "stemma", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options of every command.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "For every command")]
pub(crate) struct GlobalArgs {
    /// Context to use, which has the controller's URL and your credentials: a file with a slash in its path (./FILE),
    /// or the name of a context in ~/.config/stemma.
    #[arg(long, global = true, env = "STEMMA_CONTEXT", value_name = "FILE|NAME")]
    pub(crate) context: Option<String>,
    /// URL of the controller, instead of the URL in the context.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Manager in whose name this command writes. Default: for `apply`, the manager in `stemma.toml` next to the
    /// manifests; for an import, `catalog-import` or `fuel-import`; else the manager of the principal. With `get -o
    /// manifest`, print only what this manager applies.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) manager: Option<String>,
    /// Output format.
    #[arg(long, short, global = true, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// Reason for the write, which is stored in the audit log.
    #[arg(long, global = true, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Let the controller check a write, but write nothing. Print the number of hosts that the write would reach, and
    /// on how many of them the task set would change.
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Refuse a write that causes a finding of severity warning or error. An apply is also refused for such findings
    /// that existed before.
    #[arg(long, global = true)]
    pub(crate) strict: bool,
    /// Refuse a write that reaches more hosts than this number. By default, a write that reaches more than ten hosts
    /// needs confirmation.
    #[arg(long, global = true, value_name = "N", value_parser = parse_whole::<usize>)]
    pub(crate) max_nodes: Option<usize>,
    /// Do not request confirmation, however many hosts a write reaches.
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
}

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    Manifest,
}

/// The commands of `stemma`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compute what the manifests define for each node (such as labels, tags and tasks) without a controller, and print
    /// it. The parameters of tasks are not checked against their task types; use validate or render for that.
    Resolve(ManifestArgs),
    /// Render the templates of a node's tasks without a controller. Fails for tasks that hosts would refuse.
    Render {
        #[command(flatten)]
        files: ManifestArgs,
        /// Name of the node.
        node: String,
        /// Id of one task. Default: all tasks.
        task: Option<String>,
    },
    /// Check manifests without a controller and print the findings. Findings end with status 0 unless --strict is
    /// given.
    Validate {
        #[command(flatten)]
        files: ManifestArgs,
        /// End with status 1 if a finding is an error or a warning. Without it, findings end with status 0, even
        /// errors. Manifests that cannot be read or combined end with status 1 in both cases.
        #[arg(long)]
        strict: bool,
    },
    /// Describe the fields of manifests: of all kinds, of one kind, or of one field, such as `nodegroup.strategy`. With
    /// -o json, print the JSON Schema.
    Fields {
        /// A kind, or the path of a field that begins with its kind. After `release.tasks.parameters`, name a task
        /// type.
        #[arg(value_name = "KIND[.FIELD…]")]
        path: Option<String>,
    },
    /// Print the completion script of a shell.
    Completion { shell: clap_complete::Shell },
    /// Apply manifests: all of their objects, or none.
    Apply {
        #[command(flatten)]
        files: ManifestArgs,
        /// Take over keys that another manager owns with another value.
        #[arg(long)]
        force: bool,
        /// Take over the applied keys that this manager owns. A name with `:apply` or `:update`, such as `admin:update`
        /// in the message of a conflict, means only the keys that the manager owns by this kind of write.
        #[arg(long, value_name = "MANAGER[:apply|:update]")]
        adopt: Option<String>,
    },
    /// List objects, or show some by name.
    Get {
        /// The kind, such as `nodes` (`stemma fields` lists the kinds of manifests), or one object as KIND/NAME.
        /// `tasks` lists the tasks of nodes, with the number of nodes by result.
        #[arg(required_unless_present = "raw", value_name = "KIND[/NAME]")]
        subject: Option<GetTarget>,
        /// Names of the objects. Default: all objects that match the options below.
        names: Vec<String>,
        /// Print the response to a path of the API unchanged, such as `/metrics`.
        #[arg(long, value_name = "PATH", conflicts_with = "subject")]
        raw: Option<String>,
        #[command(flatten)]
        filter: FilterArgs,
        /// Print the list, then each change of it until Ctrl-C.
        #[arg(long, short, conflicts_with = "raw")]
        watch: bool,
    },
    /// Show all details of one object, for people.
    Describe {
        /// The kind, such as `node`, or the object as KIND/NAME. For a `task`, the nodes on which it failed are shown,
        /// and what it would change on which nodes.
        #[arg(value_name = "KIND[/NAME]")]
        subject: GetTarget,
        /// Name of the object, if the first argument is only a kind.
        name: Option<String>,
    },
    /// Explain why a node has a label's value, a tag, a task or a trait; or which values the key of a label, parameter,
    /// property or fact may have.
    Explain {
        kind: ExplainTarget,
        /// Name of the node, or the key.
        name: String,
        /// The part of the node to explain: a label, tag, task or trait.
        #[arg(requires = "about")]
        question: Option<ExplainTopic>,
        /// Key of the label, name of the tag or trait, or id of the task.
        about: Option<String>,
    },
    /// List the changes by principals and the requests that were refused, newest first.
    Audit(AuditArgs),
    /// Print changes as they happen, until Ctrl-C.
    Events(EventArgs),
    /// Wait until objects meet a condition.
    Wait(WaitArgs),
    /// Create an object.
    #[command(subcommand)]
    Create(CreateCommand),
    /// Delete objects.
    Delete(ObjectArgs),
    /// Set (`k=v`), remove (`k-`) or stop inheriting (`--not-inherited k`) labels of objects.
    Label {
        /// The kind (`node`, `nodegroup`, `cluster`, `clustertemplate` or `release`), or one object of it.
        #[arg(value_name = "KIND[/NAME]")]
        subject: ObjectRef,
        /// Names of the objects, then the changes: `KEY=VALUE` sets a label, `KEY-` removes a label that the object
        /// itself provides.
        #[arg(value_name = "NAME… CHANGE…")]
        words: Vec<String>,
        #[command(flatten)]
        selection: SelectionArgs,
        /// Also change keys that another manager owns.
        #[arg(long)]
        overwrite: bool,
        /// Key that the objects no longer inherit. The objects get a tombstone for it.
        #[arg(long, value_name = "KEY")]
        not_inherited: Vec<String>,
        /// Add the labels that the objects themselves provide to the inherited labels.
        #[arg(long, conflicts_with = "replace")]
        merge: bool,
        /// Use only the labels that the objects themselves provide, without inherited labels.
        #[arg(long)]
        replace: bool,
    },
    /// Park, hold, move and rename nodes.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Give no new task set to the hosts of clusters or node groups. The hosts go on with the one that they have, and
    /// label changes still reach them. Ends with `resume`.
    Pause(PauseArgs),
    /// Give new task sets to the hosts of clusters or node groups again, after `pause`.
    Resume(PauseArgs),
    /// Manage the traits of nodes.
    #[command(subcommand)]
    Trait(TraitCommand),
    /// Manage the roles of nodes.
    #[command(subcommand)]
    Role(RoleCommand),
    /// Manage user-defined tags, and the tags of nodes.
    #[command(subcommand)]
    Tag(TagCommand),
    /// Show or set which node of a cluster holds each tag as primary.
    #[command(subcommand)]
    Primary(PrimaryCommand),
    /// Manage releases, the libraries of roles, tags and tasks.
    #[command(subcommand)]
    Release(ReleaseCommand),
    /// Manage join tokens, with which hosts join the fleet.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Manage principals: viewers, operators and admins, of the fleet or of one cluster.
    #[command(subcommand)]
    Principal(PrincipalCommand),
    /// Manage certificates of principals.
    #[command(subcommand)]
    Cert(CertCommand),
    /// Manage the catalogue: which keys exist, which values they may have, and which operators they support.
    #[command(subcommand)]
    Catalog(CatalogCommand),
}

impl Command {
    /// Returns the arguments that name the manifests, or `None` if the command reads no manifests.
    pub(crate) fn manifests(&self) -> Option<&ManifestArgs> {
        match self {
            Self::Resolve(files) | Self::Render { files, .. } | Self::Validate { files, .. } | Self::Apply { files, .. } => {
                Some(files)
            }
            _ => None,
        }
    }

    /// Returns whether the command writes to the controller. If such a command fails before it has changed anything,
    /// its error must report that nothing was changed.
    pub(crate) fn is_write(&self) -> bool {
        match self {
            Self::Apply { .. }
            | Self::Create(_)
            | Self::Delete(_)
            | Self::Label { .. }
            | Self::Node(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Role(_)
            | Self::Release(ReleaseCommand::Import { .. })
            | Self::Catalog(CatalogCommand::Import { .. }) => true,
            Self::Trait(command) => !matches!(command, TraitCommand::List { .. }),
            Self::Tag(command) => !matches!(command, TagCommand::List { .. }),
            Self::Primary(command) => !matches!(command, PrimaryCommand::Show { .. }),
            Self::Token(command) => !matches!(command, TokenCommand::List | TokenCommand::CaHash),
            Self::Principal(command) => command.is_write(),
            Self::Cert(command) => command.is_write(),
            Self::Resolve(_)
            | Self::Render { .. }
            | Self::Validate { .. }
            | Self::Fields { .. }
            | Self::Completion { .. }
            | Self::Get { .. }
            | Self::Describe { .. }
            | Self::Audit(_)
            | Self::Events(_)
            | Self::Wait(_)
            | Self::Explain { .. } => false,
        }
    }
}

/// The filter of `stemma audit`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct AuditArgs {
    /// Only entries about this object, such as node/web-1, nodegroup/prod/web or primary/prod/db. A deleted object and
    /// an earlier name of an object are found too.
    #[arg(value_name = "KIND/NAME|UUID")]
    pub(crate) object: Option<String>,
    /// Only entries of this principal.
    #[arg(long, value_name = "NAME")]
    pub(crate) principal: Option<String>,
    /// Only entries since this time, such as 2026-11-24T18:00:00Z, or within this duration before now, such as 2h or
    /// 3d.
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_past_time)]
    pub(crate) since: Option<String>,
    /// Only entries before this time, in the same forms as for --since.
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_past_time)]
    pub(crate) until: Option<String>,
    /// Only refused requests.
    #[arg(long)]
    pub(crate) refused: bool,
    /// Maximum number of entries, newest first.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_row_limit)]
    pub(crate) limit: usize,
}

/// Parses a whole number. As in fields of manifests, a sign, a blank or a zero before the number is an error.
fn parse_whole<N: FromStr + Display>(text: &str) -> Result<N, String> {
    let is_well_formed = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let problem = if is_well_formed && !text.is_empty() {
        "the number is too large"
    } else {
        "write a whole number such as 50, without a sign, blank or zero before it"
    };
    stemma_core::field::parse_integer(text).ok_or_else(|| problem.to_owned())
}

/// Parses a number of rows. The number 0 is an error, because an empty list would be useless. A controller refuses 0
/// too.
fn parse_row_limit(text: &str) -> Result<usize, String> {
    match parse_whole(text)? {
        0 => Err("no row would be shown: use a whole number of at least 1".to_owned()),
        rows => Ok(rows),
    }
}

/// Parses a time, which is returned unchanged, or a duration such as `2h`. For a duration, returns the time that is
/// this long before now, as text.
fn parse_past_time(text: &str) -> Result<String, String> {
    let Err(time_error) = stemma_core::time::parse(text) else { return Ok(text.to_owned()) };
    // A time contains a dash, and a duration does not. So a text with a dash gets the error about a time.
    if text.contains('-') {
        return Err(time_error.to_string());
    }
    let parse_error = |error: &dyn Display| format!("neither a time, such as 2026-11-24T18:00:00Z, nor a duration: {error}");
    let seconds = node::parse_duration(text).map_err(|error| parse_error(&error))?;
    let duration = jiff::SignedDuration::from_secs(i64::try_from(seconds).map_err(|error| parse_error(&error))?);
    jiff::Timestamp::now().checked_sub(duration).map(|time| time.to_string()).map_err(|error| parse_error(&error))
}

/// The part of a node that `stemma explain` explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainTopic {
    /// The origin of this label's value.
    Label,
    /// The reason why the node has this tag or not.
    Tag,
    /// The reason why this task runs on the node or not.
    Task,
    /// The sources that gave the node this trait.
    Trait,
}

/// The options that name the manifests to read.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ManifestArgs {
    /// A manifest, or a directory of manifests (`NAME.yaml`, `.yml` or `.json`, with a NAME of letters, digits, - and
    /// _). `-` is standard input. A file `stemma.toml` next to the manifests sets their manager: `manager = "team-a"`.
    #[arg(long = "filename", short = 'f', required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Also read the directories below a named directory, except links, hidden directories and backups (such as
    /// sub.bak).
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
}
