//! What is given to nodes and made for them: traits, roles, tags, releases, join tokens.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

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
        /// Take over fields that another manager owns with another value.
        #[arg(long)]
        force: bool,
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
