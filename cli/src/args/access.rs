//! Who may ask: principals, their certificates and tokens.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::node::seconds;

/// What a principal may do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrincipalRole {
    /// Reads.
    Viewer,
    /// Runs clusters.
    Operator,
    /// Does everything.
    Admin,
}

/// For how long something is good.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Lifetime {
    /// For how long it is good, as `30d`; at most a year.
    #[arg(long, default_value = "90d", value_name = "TIME", value_parser = seconds)]
    pub(crate) ttl: u64,
}

/// Where a context of its own is written.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Handover {
    /// A new directory, for a context file and what it names: all that the principal needs, secrets included.
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// The controller's URL in that context; that of your own unless said.
    #[arg(long, value_name = "URL", requires = "to")]
    pub(crate) url: Option<String>,
}

/// `principal`.
#[derive(Debug, Subcommand)]
pub(crate) enum Principal {
    /// Make a principal; with --to also a certificate and a context of its own.
    Create(NewPrincipal),
    /// Who there is, with what each is known by and until when.
    List,
    /// Change a principal.
    Update(PrincipalChange),
    /// Delete a principal: its certificates and tokens are worth nothing from then on.
    Delete { name: String },
    /// Bearer tokens, for clients that show no certificate.
    #[command(subcommand)]
    Token(PrincipalToken),
}

/// `principal create`.
#[derive(Debug, ClapArgs)]
pub(crate) struct NewPrincipal {
    pub(crate) name: String,
    /// What it may do at most.
    #[arg(long, value_enum)]
    pub(crate) role: PrincipalRole,
    /// The one cluster in which it may; the whole fleet unless said.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Who that is.
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    #[command(flatten)]
    pub(crate) handover: Handover,
    #[command(flatten)]
    pub(crate) lifetime: Lifetime,
}

/// `principal update`.
#[derive(Debug, ClapArgs)]
pub(crate) struct PrincipalChange {
    pub(crate) name: String,
    #[arg(long, value_enum)]
    pub(crate) role: Option<PrincipalRole>,
    /// The one cluster in which it may.
    #[arg(long, conflicts_with = "fleet")]
    pub(crate) cluster: Option<String>,
    /// It may in the whole fleet.
    #[arg(long)]
    pub(crate) fleet: bool,
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
}

/// `principal token`.
#[derive(Debug, Subcommand)]
pub(crate) enum PrincipalToken {
    /// Make a token; it is printed once and kept nowhere, or written with --to into a context of its own.
    Create {
        /// The principal.
        name: String,
        #[command(flatten)]
        handover: Handover,
        #[command(flatten)]
        lifetime: Lifetime,
    },
    /// Take a token back.
    Revoke {
        /// The principal.
        name: String,
        /// What stands before the token's dot.
        id: String,
    },
}

/// `cert`.
#[derive(Debug, Subcommand)]
pub(crate) enum Cert {
    /// Make a key and a certificate for a principal, in a context of its own.
    Create {
        /// The principal.
        name: String,
        /// A new directory, for a context file and what it names.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// The controller's URL in that context; that of your own unless said.
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        #[command(flatten)]
        lifetime: Lifetime,
    },
    /// The certificates that have not ended.
    List,
    /// Put a new certificate for the same key in the place of your context's; the old one ends an hour later.
    Renew {
        /// For how long it is good, as `30d`: 90 days unless said, and who is no admin no longer than the one before.
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        ttl: Option<u64>,
    },
    /// Take a certificate back, by its serial number.
    Revoke { serial: String },
}

impl Principal {
    /// Whether it changes something.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Self::List)
    }
}

impl Cert {
    /// Whether it changes something.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Self::List)
    }
}
