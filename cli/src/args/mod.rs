//! The command line, in the habits of kubectl.

mod access;
mod catalog;
mod events;
mod node;
mod object;

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub(crate) use access::{Cert, Handover, NewPrincipal, Principal, PrincipalChange, PrincipalRole, PrincipalToken};
pub(crate) use catalog::{Catalog, Explained, Mode};
pub(crate) use events::{Condition, EventClass, EventsAsked, Waited};
pub(crate) use node::{
    NodeVerb, Nodes, NodesAndNames, NodesAndOwned, Primary, Release, Role, Tag, TagFields, TagOwner, Token, Trait,
};
pub(crate) use object::{Asked, Create, Filter, Kind, Named, NewLabels, Pausing, Selection, Subject, Wanted};

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
#[command(next_help_heading = "For every command")]
pub(crate) struct Global {
    /// Which controller and as whom: a context file (with a slash: ./FILE), or the name of one below ~/.config/stemma.
    #[arg(long, global = true, env = "STEMMA_CONTEXT", value_name = "FILE|NAME")]
    pub(crate) context: Option<String>,
    /// The controller's URL, in place of the context's.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Under which manager's name this writes; unless said, the one that `stemma.toml` beside the manifests of `apply` names,
    /// that of an import (`catalog-import`, `fuel-import`), or the principal's. `get -o manifest` prints what this manager applies alone.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) manager: Option<String>,
    /// How to print.
    #[arg(long, short, global = true, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// Why, for the audit.
    #[arg(long, global = true, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Have the controller decide a write and say what it would do, how many hosts it would reach and of how many the task sets change; nothing is
    /// written.
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Refuse a write that brings a finding of warning or error to any node; an apply also for what was so before.
    #[arg(long, global = true)]
    pub(crate) strict: bool,
    /// Refuse a write that reaches more hosts than this. Unless said, one that reaches more than ten is asked about.
    #[arg(long, global = true, value_name = "N", value_parser = whole::<usize>)]
    pub(crate) max_nodes: Option<usize>,
    /// Do not ask, however many hosts a write reaches.
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
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
    /// Resolve manifests without a controller and print what each node gets. What the types of tasks take is judged by validate and render.
    Resolve(Files),
    /// Render the templates of a node's tasks without a controller. What hosts would refuse of these tasks is an error.
    Render {
        #[command(flatten)]
        files: Files,
        /// The node's name.
        node: String,
        /// One task's id; all of them unless said.
        task: Option<String>,
    },
    /// Check manifests without a controller and print the findings, which end with status 0 unless --strict is said.
    Validate {
        #[command(flatten)]
        files: Files,
        /// End with status 1 where one of the findings is an error or a warning. Without it they end with 0, errors among them too; manifests that
        /// cannot be read or put together end with 1 either way.
        #[arg(long)]
        strict: bool,
    },
    /// Which fields manifests have: of all kinds, of one, or of a field, as `nodegroup.strategy`. -o json: as JSON Schema.
    Fields {
        /// A kind, and the way to a field; after `release.tasks.parameters` a type of task.
        #[arg(value_name = "KIND[.FIELD…]")]
        path: Option<String>,
    },
    /// Print a shell's completion script.
    Completion { shell: clap_complete::Shell },
    /// Apply manifests: all of their objects, or none.
    Apply {
        #[command(flatten)]
        files: Files,
        /// Take over keys that another manager owns with another value.
        #[arg(long)]
        force: bool,
        /// Take over what this manager owns of the keys applied; written as a conflict names it (`admin:update`), what it owns by that alone.
        #[arg(long, value_name = "MANAGER[:apply|:update]")]
        adopt: Option<String>,
    },
    /// List objects, or show some by name.
    Get {
        /// The kind, as `nodes` (`stemma fields` lists those of manifests), or one object of it; `tasks` are those that nodes have, with how
        /// many of these stand where.
        #[arg(required_unless_present = "raw", value_name = "KIND[/NAME]")]
        subject: Option<Asked>,
        /// Which of them; all that the options below leave unless said.
        names: Vec<String>,
        /// A path of the API as it is, as `/metrics`.
        #[arg(long, value_name = "PATH", conflicts_with = "subject")]
        raw: Option<String>,
        #[command(flatten)]
        filter: Filter,
        /// Go on and print what changes, until Ctrl-C.
        #[arg(long, short, conflicts_with = "raw")]
        watch: bool,
    },
    /// Everything about one object, for people.
    Describe {
        /// The kind, as `node`, or the object; of a `task`, where it failed and what it would change on which nodes.
        #[arg(value_name = "KIND[/NAME]")]
        subject: Asked,
        /// The object, where it does not stand behind the kind.
        name: Option<String>,
    },
    /// Why a node has a label's value, a tag, a task or a trait; or what a label's, parameter's, property's or fact's key may be.
    Explain {
        kind: Explained,
        /// The node's name, or the key.
        name: String,
        /// Of a node: what is asked about.
        #[arg(requires = "about")]
        question: Option<Question>,
        /// The label's key, the tag's or trait's name, or the task's id.
        about: Option<String>,
    },
    /// Who did what and what was refused, the last first.
    Audit(Audit),
    /// What changes, as it happens, until Ctrl-C.
    Events(EventsAsked),
    /// Wait until objects are as they should be.
    Wait(Waited),
    /// Make an object.
    #[command(subcommand)]
    Create(Create),
    /// Delete objects.
    Delete(Named),
    /// Set (`k=v`), take away (`k-`) or stop (`--not-inherited k`) labels of objects.
    Label {
        /// The kind, `node`, `nodegroup`, `cluster`, `clustertemplate` or `release`, or one object of it.
        #[arg(value_name = "KIND[/NAME]")]
        subject: Subject,
        /// The objects, then the changes: `KEY=VALUE` sets, `KEY-` takes away what is provided here.
        #[arg(value_name = "NAME… CHANGE…")]
        words: Vec<String>,
        #[command(flatten)]
        selection: Selection,
        /// Also keys that another manager owns.
        #[arg(long)]
        overwrite: bool,
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
    /// Nodes: set aside, hold, move, rename.
    #[command(subcommand)]
    Node(NodeVerb),
    /// Give no new task set to the hosts of clusters or node groups: they go on with the one that they have, and labels flow. It ends with
    /// `resume`.
    Pause(Pausing),
    /// Give their hosts new task sets again after `pause`.
    Resume(Pausing),
    /// A node's traits.
    #[command(subcommand)]
    Trait(Trait),
    /// A node's roles.
    #[command(subcommand)]
    Role(Role),
    /// Tags: user-defined ones, and a node's.
    #[command(subcommand)]
    Tag(Tag),
    /// Who holds the tags of a cluster as primary.
    #[command(subcommand)]
    Primary(Primary),
    /// The task library.
    #[command(subcommand)]
    Release(Release),
    /// Join tokens.
    #[command(subcommand)]
    Token(Token),
    /// Who may ask: viewers, operators and admins, of the fleet or of one cluster.
    #[command(subcommand)]
    Principal(Principal),
    /// Certificates of principals.
    #[command(subcommand)]
    Cert(Cert),
    /// The catalogue: which keys there are, what their values may be, and which operators they take.
    #[command(subcommand)]
    Catalog(Catalog),
}

impl Command {
    /// The manifests that it reads.
    pub(crate) fn files(&self) -> Option<&Files> {
        match self {
            Self::Resolve(files)
            | Self::Render { files, .. }
            | Self::Validate { files, .. }
            | Self::Apply { files, .. } => Some(files),
            _ => None,
        }
    }

    /// Whether it changes something at the controller, so that an error must say that it did not.
    pub(crate) fn writes(&self) -> bool {
        match self {
            Self::Apply { .. }
            | Self::Create(_)
            | Self::Delete(_)
            | Self::Label { .. }
            | Self::Node(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Role(_)
            | Self::Release(Release::Import { .. })
            | Self::Catalog(Catalog::Import { .. }) => true,
            Self::Trait(what) => !matches!(what, Trait::List { .. }),
            Self::Tag(what) => !matches!(what, Tag::List { .. }),
            Self::Primary(what) => !matches!(what, Primary::Show { .. }),
            Self::Token(what) => !matches!(what, Token::List | Token::CaHash),
            Self::Principal(what) => what.writes(),
            Self::Cert(what) => what.writes(),
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

/// Which entries of the audit.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Audit {
    /// What was done to this object, as node/web-1, nodegroup/prod/web or primary/prod/db, also when it is gone, and under its other names.
    #[arg(value_name = "KIND/NAME|UUID")]
    pub(crate) object: Option<String>,
    /// Of this principal.
    #[arg(long, value_name = "NAME")]
    pub(crate) principal: Option<String>,
    /// Since then, as 2026-11-24T18:00:00Z, or for so long, as 2h or 3d.
    #[arg(long, value_name = "TIME|DURATION", value_parser = past)]
    pub(crate) since: Option<String>,
    /// Before then, likewise.
    #[arg(long, value_name = "TIME|DURATION", value_parser = past)]
    pub(crate) until: Option<String>,
    /// What was refused alone.
    #[arg(long)]
    pub(crate) refused: bool,
    /// The last so many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = rows)]
    pub(crate) limit: usize,
}

/// A whole number, in the grammar of those of fields.
fn whole<N: FromStr + Display>(text: &str) -> Result<N, String> {
    let is_written = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let why = if is_written && !text.is_empty() {
        "the number is too great"
    } else {
        "write a whole number as 50: no sign, blank or zero stands before it"
    };
    stemma_core::field::whole(text).ok_or_else(|| why.to_owned())
}

/// How many rows are asked for. A list of none would say nothing, and a controller refuses it too.
fn rows(text: &str) -> Result<usize, String> {
    match whole(text)? {
        0 => Err("no row would be shown: write a whole number from 1".to_owned()),
        rows => Ok(rows),
    }
}

/// A time, as it was written, or that of so long ago.
fn past(text: &str) -> Result<String, String> {
    let Err(no_time) = stemma_core::time::read(text) else { return Ok(text.to_owned()) };
    // Of two refusals, the one that speaks of what was meant.
    if text.contains('-') {
        return Err(no_time.to_string());
    }
    let refused = |error: &dyn Display| format!("neither a time, as 2026-11-24T18:00:00Z, nor a duration: {error}");
    let seconds = node::seconds(text).map_err(|error| refused(&error))?;
    let ago = jiff::SignedDuration::from_secs(i64::try_from(seconds).map_err(|error| refused(&error))?);
    jiff::Timestamp::now().checked_sub(ago).map(|at| at.to_string()).map_err(|error| refused(&error))
}

/// A question of `explain` about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Question {
    /// Where this label's value came from.
    Label,
    /// Why the node has this tag, or has it not.
    Tag,
    /// Why this task runs on the node, or does not.
    Task,
    /// Which source gave the node this trait.
    Trait,
}

/// Manifests to read.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Files {
    /// A manifest, or a directory of them (`NAME.yaml`, `.yml` or `.json`, with a NAME of letters, digits, - and _); `-` is standard input. A file
    /// `stemma.toml` beside them names their manager: `manager = "team-a"`.
    #[arg(long = "filename", short = 'f', required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Also the directories below a directory, but for links, hidden ones and those that were put away (sub.bak).
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
}
