//! What is done to nodes, given to them and made for them: their place, traits, roles, tags, releases, join tokens.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::{Selection, whole};

/// What is done to nodes as they are.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeVerb {
    /// Stop running tasks there. Other hosts stop waiting for them; what they hold as primary stays with them, unless --release-primary gives
    /// it away. It ends with `unpark`; until then a `--reason` is kept with the node, as its `maintenance_reason`.
    Park {
        #[command(flatten)]
        nodes: Nodes,
        /// Give what they hold as primary to the next node by name.
        #[arg(long)]
        release_primary: bool,
    },
    /// Run tasks there again after `park`, and have others wait for them again.
    Unpark(Nodes),
    /// Give them no new task set: they go on with the one that they have, and labels flow. Say why with `--reason`, or give it an end. It
    /// ends with `unhold`, or at its own end.
    Hold {
        #[command(flatten)]
        nodes: Nodes,
        /// Until then, as 2026-11-24T18:00:00Z; until it is taken back unless said.
        #[arg(long, value_name = "TIME", conflicts_with = "duration")]
        until: Option<String>,
        /// For so long, as 90m, 2h or 3d.
        #[arg(long = "for", value_name = "DURATION", value_parser = seconds)]
        duration: Option<u64>,
    },
    /// Give them new task sets again after `hold`.
    Unhold(Nodes),
    /// Move them into another group, or out of theirs with `--out`.
    Move {
        /// The nodes, and last the group (`CLUSTER/GROUP`).
        #[arg(value_name = "NODE… GROUP")]
        words: Vec<String>,
        /// Out of their groups: they have no release and no tasks then.
        #[arg(long)]
        out: bool,
        #[command(flatten)]
        selection: Selection,
        /// Also where another manager placed them.
        #[arg(long)]
        overwrite: bool,
    },
    /// Give a node another name.
    Rename { node: String, name: String },
}

/// Nodes by name or a selection of them, of which a field is set.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Nodes {
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Also where another manager owns the field.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// Nodes, and what is given to them or taken from them.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NodesAndNames {
    /// The node (several with commas), then what it is about. `node/NAME`, as `-o name` prints it, is a node wherever it stands.
    #[arg(value_name = "NODE[,NODE…] NAME…")]
    words: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: Selection,
}

/// The same, where another manager may own what is given or taken.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NodesAndOwned {
    #[command(flatten)]
    pub(crate) what: NodesAndNames,
    /// Also where another manager owns what it changes.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

impl NodesAndNames {
    /// The nodes that are named, and what it is about, each once.
    pub(crate) fn split(&self) -> (Vec<String>, Vec<String>) {
        let is_node = |word: &&String| word.starts_with("node/");
        let (mut nodes, mut rest): (Vec<&String>, Vec<&String>) = self.words.iter().partition(is_node);
        if nodes.is_empty() && self.selection.is_empty() && !rest.is_empty() {
            nodes.push(rest.remove(0));
        }
        let nodes = nodes.into_iter().flat_map(|word| word.split(',')).map(str::to_owned).collect();
        let mut seen = BTreeSet::new();
        (nodes, rest.into_iter().filter(|word| seen.insert(*word)).cloned().collect())
    }
}

/// A node's traits.
#[derive(Debug, Subcommand)]
pub(crate) enum Trait {
    /// Its traits, each with its source.
    List { node: String },
    /// Give them traits.
    Add(NodesAndNames),
    /// Take traits from them.
    Remove {
        #[command(flatten)]
        what: NodesAndOwned,
        /// All that operators gave.
        #[arg(long)]
        all: bool,
    },
    /// Leave out traits that were detected or ruled.
    Suppress(NodesAndOwned),
    /// No longer leave them out.
    Unsuppress(NodesAndOwned),
}

/// A node's roles.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Give them roles.
    Add(NodesAndOwned),
    /// Take roles from them.
    Remove(NodesAndOwned),
    /// Have extensions decide again which tags roles give them.
    Refresh(NodesAndNames),
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
        /// Also where another manager owns the cluster's tags.
        #[arg(long, conflicts_with = "release")]
        overwrite: bool,
    },
    /// Change a user-defined tag; what is not said stays as it is.
    Update {
        name: String,
        #[command(flatten)]
        owner: TagOwner,
        #[command(flatten)]
        fields: TagFields,
        /// Also where another manager owns the cluster's tags.
        #[arg(long, conflicts_with = "release")]
        overwrite: bool,
    },
    /// Delete user-defined tags that no node is assigned.
    Delete {
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        owner: TagOwner,
        /// Also where another manager owns the cluster's tags.
        #[arg(long, conflicts_with = "release")]
        overwrite: bool,
    },
    /// Assign tags to nodes: of each node all or none.
    Assign(NodesAndOwned),
    /// Unassign tags of nodes: of each node all or none.
    Unassign(NodesAndOwned),
}

/// Primaries.
#[derive(Debug, Subcommand)]
pub(crate) enum Primary {
    /// Who holds each tag of a cluster that has a primary, and why.
    Show {
        cluster: String,
        /// This tag alone.
        tag: Option<String>,
    },
    /// Give a tag of a cluster to a node as primary.
    Set { cluster: String, tag: String, node: String },
}

/// The task library.
#[derive(Debug, Subcommand)]
pub(crate) enum Release {
    /// Import another system's library as a release.
    Import {
        /// A directory of Fuel's `tasks.yaml` files, or one JSON file with `graphs`, `roles` and `tags`. Files and directories whose names
        /// `run-parts` would not take are left out and said.
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
        #[arg(long, default_value_t = 1, value_parser = whole::<u32>)]
        uses: u32,
        /// For how long it is good, as `90s`, `30m`, `1h` or `7d`.
        #[arg(long, default_value = "30m", value_name = "TIME", value_parser = seconds)]
        ttl: u64,
        /// The same in seconds.
        #[arg(long, value_name = "N", conflicts_with = "ttl", hide = true, value_parser = whole::<u64>)]
        ttl_seconds: Option<u64>,
    },
    /// The tokens that can still be used, without their secrets.
    List,
    /// Make a token useless.
    Delete { id: String },
    /// What an agent pins: the hash of the fleet root's public key.
    CaHash,
}

/// A length of time in seconds.
pub(super) use stemma_core::time::seconds;

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::Args;
    use super::*;

    #[test]
    fn y04_the_whole_number_of_an_option_is_written_as_that_of_a_field() {
        for (text, read) in [
            ("0", Some(0)),
            ("5", Some(5)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("+5", None),
            ("-5", None),
            ("05", None),
            ("00", None),
            (" 5", None),
            ("5.0", None),
            ("5e0", None),
            ("", None),
        ] {
            assert_eq!(whole::<u32>(text).ok(), read, "{text:?}");
        }
        assert_eq!(whole::<u32>("4294967296").unwrap_err(), "the number is too great");
        for option in ["--limit", "--max-nodes"] {
            for (number, taken) in [("5", true), ("05", false), ("+5", false)] {
                let read = Args::try_parse_from(["stemma", "audit", option, number]);
                assert_eq!(read.is_ok(), taken, "{option} {number}");
            }
        }
    }

    /// The API's `limit=0` is a 400.
    #[test]
    fn y09_a_list_of_no_rows_is_not_asked_for() {
        let said = Args::try_parse_from(["stemma", "audit", "--limit", "0"]).unwrap_err().to_string();
        assert!(said.contains("no row would be shown: write a whole number from 1"), "{said}");
        for limit in ["1", "1000"] {
            Args::try_parse_from(["stemma", "audit", "--limit", limit]).unwrap();
        }
    }

    #[test]
    fn a_time_is_numbers_with_units() {
        for (text, read) in [
            ("90s", Some(90)),
            ("30m", Some(1_800)),
            ("1h", Some(3_600)),
            ("1h30m", Some(5_400)),
            ("soon", None),
            ("7d", Some(604_800)),
            ("", None),
            ("3600", None),
            ("1h30", None),
            ("0s", None),
            ("h", None),
            ("1 h", None),
            ("1y", None),
            ("-1h", None),
            ("99999999999999999999d", None),
            ("9999999999999999d", None),
        ] {
            assert_eq!(seconds(text).ok(), read, "{text}");
        }
    }
}
