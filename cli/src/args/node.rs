//! Arguments of the commands for nodes: their group, traits, roles, tags, releases and join tokens.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::{SelectionArgs, parse_whole};

/// The commands for existing nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Stop running tasks on nodes. Other hosts stop waiting for these nodes. Each tag that a node holds as primary
    /// stays with the node, unless --release-primary is given. The park ends with `unpark`. Until then, a `--reason` is
    /// stored with the node as its `maintenance_reason`.
    Park {
        #[command(flatten)]
        nodes: NodeFieldArgs,
        /// Make the next node by name the primary of each tag that a parked node holds as primary.
        #[arg(long)]
        release_primary: bool,
    },
    /// Run tasks on nodes again after `park`. Other hosts wait for these nodes again.
    Unpark(NodeFieldArgs),
    /// Give no new task set to nodes. They go on with the one that they have, and label changes still reach them.
    /// Requires a `--reason`, or an end of the hold (--until or --for). The hold ends with `unhold`, or at its end.
    Hold {
        #[command(flatten)]
        nodes: NodeFieldArgs,
        /// End of the hold, such as 2026-11-24T18:00:00Z. Without --until and --for, the hold lasts until `unhold`.
        #[arg(long, value_name = "TIME", conflicts_with = "duration")]
        until: Option<String>,
        /// Duration of the hold, such as 90m, 2h or 3d.
        #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
        duration: Option<u64>,
    },
    /// Give new task sets to nodes again after `hold`.
    Unhold(NodeFieldArgs),
    /// Move nodes into another group, or out of their groups with `--out`.
    Move {
        /// Names of the nodes, then the group (`CLUSTER/GROUP`).
        #[arg(value_name = "NODE… GROUP")]
        words: Vec<String>,
        /// Remove the nodes from their groups. The nodes then have no release and no tasks.
        #[arg(long)]
        out: bool,
        #[command(flatten)]
        selection: SelectionArgs,
        /// Also move nodes that another manager placed.
        #[arg(long)]
        overwrite: bool,
    },
    /// Reboot the hosts of nodes, whether or not their tasks ask for it. A host reboots when its running tasks have ended
    /// and no program inhibits it. It must be connected. `describe node` shows what prevents a reboot.
    Reboot {
        names: Vec<String>,
        #[command(flatten)]
        selection: SelectionArgs,
    },
    /// Rename a node.
    Rename { node: String, name: String },
}

/// The nodes on which a command sets a field, given by name or by selection.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NodeFieldArgs {
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Also change the field if another manager owns it.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// Nodes, and the names of the traits, roles or tags that a command adds to these nodes or removes from them.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NodeListArgs {
    /// Nodes (commas separate several), then the names of traits, roles or tags. A word `node/NAME`, as `-o name` prints
    /// it, is a node in any position.
    #[arg(value_name = "NODE[,NODE…] NAME…")]
    words: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Nodes, and the names of the traits, roles or tags to add to them or remove from them. The command changes what
/// another manager owns only with `--overwrite`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct OwnedNodeListArgs {
    #[command(flatten)]
    pub(crate) targets: NodeListArgs,
    /// Also change what another manager owns.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

impl NodeListArgs {
    /// Splits the words into nodes and other names, of which repeated ones are dropped. If no word begins with `node/`
    /// and no option selects nodes, the first word contains the nodes.
    pub(crate) fn split(&self) -> (Vec<String>, Vec<String>) {
        let is_node = |word: &&String| word.starts_with("node/");
        let (mut nodes, mut other_words): (Vec<&String>, Vec<&String>) = self.words.iter().partition(is_node);
        if nodes.is_empty() && self.selection.is_empty() && !other_words.is_empty() {
            nodes.push(other_words.remove(0));
        }
        let nodes = nodes.into_iter().flat_map(|word| word.split(',')).map(str::to_owned).collect();
        let mut unique_words = BTreeSet::new();
        (nodes, other_words.into_iter().filter(|word| unique_words.insert(*word)).cloned().collect())
    }
}

/// The commands for a node's traits.
#[derive(Debug, Subcommand)]
pub(crate) enum TraitCommand {
    /// List the traits of a node with their sources.
    List { node: String },
    /// Add traits to nodes.
    Add(NodeListArgs),
    /// Remove traits from nodes.
    Remove {
        #[command(flatten)]
        what: OwnedNodeListArgs,
        /// Remove all traits that operators added.
        #[arg(long)]
        all: bool,
    },
    /// Suppress traits that an agent detected or an inspection rule added.
    Suppress(OwnedNodeListArgs),
    /// Stop suppressing traits.
    Unsuppress(OwnedNodeListArgs),
}

/// The commands for a node's roles.
#[derive(Debug, Subcommand)]
pub(crate) enum RoleCommand {
    /// Add roles to nodes.
    Add(OwnedNodeListArgs),
    /// Remove roles from nodes.
    Remove(OwnedNodeListArgs),
    /// Let the extensions (programs that decide the tags of roles) decide again which tags nodes get.
    Refresh(NodeListArgs),
}

/// The cluster or release that a user-defined tag belongs to.
#[derive(Clone, Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub(crate) struct TagOwnerArgs {
    /// Cluster of the tag. The tag is visible only there.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Release of the tag. The tag is visible in all clusters of this release, for all of its versions.
    #[arg(long)]
    pub(crate) release: Option<String>,
}

/// The fields of a user-defined tag.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct TagFieldArgs {
    /// Role that gives the tag to nodes.
    #[arg(long)]
    pub(crate) role: Option<String>,
    /// True if one of the nodes with the tag holds it as primary.
    #[arg(long)]
    pub(crate) has_primary: Option<bool>,
    /// Title for people.
    #[arg(long)]
    pub(crate) title: Option<String>,
}

/// The commands for tags.
#[derive(Debug, Subcommand)]
pub(crate) enum TagCommand {
    /// List the tags that are visible in a cluster or release.
    List {
        #[command(flatten)]
        owner: TagOwnerArgs,
    },
    /// Create a user-defined tag.
    Create {
        name: String,
        #[command(flatten)]
        owner: TagOwnerArgs,
        #[command(flatten)]
        fields: TagFieldArgs,
        /// Also change the tags of the cluster if another manager owns them.
        #[arg(long, conflicts_with = "release")]
        overwrite: bool,
    },
    /// Update a user-defined tag. Fields that are not given stay unchanged.
    Update {
        name: String,
        #[command(flatten)]
        owner: TagOwnerArgs,
        #[command(flatten)]
        fields: TagFieldArgs,
        /// Also change the cluster's tags if another manager owns them.
        #[arg(long, conflicts_with = "release")]
        overwrite: bool,
    },
    /// Delete user-defined tags that are assigned to no node.
    Delete {
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        owner: TagOwnerArgs,
        /// Also change the cluster's tags if another manager owns them.
        #[arg(long, conflicts_with = "release")]
        overwrite: bool,
    },
    /// Assign tags to nodes. Each node gets all of the tags or none.
    Assign(OwnedNodeListArgs),
    /// Unassign tags from nodes. Each node loses all of the tags or none.
    Unassign(OwnedNodeListArgs),
}

/// The commands for primaries.
#[derive(Debug, Subcommand)]
pub(crate) enum PrimaryCommand {
    /// Show which node holds each tag of a cluster as primary, and why.
    Show {
        cluster: String,
        /// Show only this tag.
        tag: Option<String>,
    },
    /// Make a node the primary for a tag of a cluster.
    Set { cluster: String, tag: String, node: String },
}

/// The commands for releases.
#[derive(Debug, Subcommand)]
pub(crate) enum ReleaseCommand {
    /// Import the task library of another system as a release.
    Import {
        /// Library of Fuel (an `OpenStack` installer): a directory of `tasks.yaml` files, or one JSON file with `graphs`,
        /// `roles` and `tags`. Files and directories whose names `run-parts` does not accept are skipped and reported.
        #[arg(long, value_name = "PATH")]
        fuel: PathBuf,
        /// Name of the release.
        #[arg(long, default_value = "fuel")]
        name: String,
        /// Version of the release.
        #[arg(long)]
        version: Option<String>,
        /// Task graph to import, if a JSON file contains several graphs.
        #[arg(long, default_value = "default")]
        graph: String,
        /// Take over fields that another manager owns with another value.
        #[arg(long)]
        force: bool,
    },
}

/// The commands for join tokens, with which hosts join the fleet.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token. The secret of the token is printed once, and stored nowhere. With --join-script, it is written
    /// into the script, and not printed.
    Create {
        /// Group that nodes with this token join (`CLUSTER/GROUP`).
        #[arg(long, conflicts_with = "node")]
        nodegroup: Option<String>,
        /// The only node that can join with this token.
        #[arg(long)]
        node: Option<String>,
        /// Number of nodes that can join with this token.
        #[arg(long, default_value_t = 1, value_parser = parse_whole::<u32>)]
        uses: u32,
        /// Lifetime, such as `90s`, `30m`, `1h` or `7d`.
        #[arg(long, default_value = "30m", value_name = "TIME", value_parser = parse_duration)]
        ttl: u64,
        /// Lifetime in seconds.
        #[arg(long, value_name = "N", conflicts_with = "ttl", hide = true, value_parser = parse_whole::<u64>)]
        ttl_seconds: Option<u64>,
        /// New file for a shell script that joins a host. The script contains the token, and only you can read it.
        #[arg(long, value_name = "FILE")]
        join_script: Option<PathBuf>,
    },
    /// List the tokens that can still be used, without their secrets.
    List,
    /// Delete a token, so that no node can use it any more.
    Delete { id: String },
    /// Print the hash of the public key of the fleet's root certificate. An agent that joins with `--ca-hash` accepts
    /// only controllers with this root.
    CaHash,
}

/// Parses a duration such as `1h30m`. Returns it in seconds.
pub(super) use stemma_core::time::parse_duration;

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::Args;
    use super::*;

    /// A whole number consists only of digits, without a zero before it. The options `--limit` and `--max-nodes` use
    /// this parser.
    #[test]
    fn y04_parse_whole_accepts_only_plain_digits() {
        for (text, expected) in [
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
            assert_eq!(parse_whole::<u32>(text).ok(), expected, "{text:?}");
        }
        assert_eq!(parse_whole::<u32>("4294967296").unwrap_err(), "the number is too large");
        for option in ["--limit", "--max-nodes"] {
            for (number, is_valid) in [("5", true), ("05", false), ("+5", false)] {
                let parsed = Args::try_parse_from(["stemma", "audit", option, number]);
                assert_eq!(parsed.is_ok(), is_valid, "{option} {number}");
            }
        }
    }

    /// `stemma audit --limit 0` fails while the command line is parsed. The controller would refuse `limit=0` too.
    #[test]
    fn y09_row_limit_is_refused_when_zero() {
        let error = Args::try_parse_from(["stemma", "audit", "--limit", "0"]).unwrap_err().to_string();
        assert!(error.contains("no row would be shown: use a whole number of at least 1"), "{error}");
        for limit in ["1", "1000"] {
            Args::try_parse_from(["stemma", "audit", "--limit", limit]).unwrap();
        }
    }

    #[test]
    fn duration_is_numbers_with_units() {
        for (text, expected) in [
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
            assert_eq!(parse_duration(text).ok(), expected, "{text}");
        }
    }
}
