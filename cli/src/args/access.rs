//! Arguments of the commands for principals and their certificates and tokens.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::node::parse_duration;

/// The role of a principal. A principal is a person or program that uses the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrincipalRoleArg {
    /// Can read.
    Viewer,
    /// Can read, and write clusters, node groups, nodes, tags, allocations and join tokens.
    Operator,
    /// Can do everything.
    Admin,
}

/// The lifetime of a new certificate or token.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LifetimeArgs {
    /// Lifetime as a duration, such as `30d`; at most a year.
    #[arg(long, default_value = "90d", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) ttl: u64,
}

/// The options for a new context: a directory with the controller's URL and the credentials of a principal.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NewContextArgs {
    /// New directory for a context file and the files that it names. The directory then contains everything that the
    /// principal needs, including secrets.
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// URL of the controller in the new context. Default: the URL in your own context.
    #[arg(long, value_name = "URL", requires = "to")]
    pub(crate) url: Option<String>,
}

/// The subcommands of `stemma principal`.
#[derive(Debug, Subcommand)]
pub(crate) enum PrincipalCommand {
    /// Create a principal. With --to, also create a certificate and a context for it.
    Create(CreatePrincipalArgs),
    /// List principals, with their credentials and the expiry of each.
    List,
    /// Change the role, the cluster or the description of a principal.
    Update(UpdatePrincipalArgs),
    /// Delete a principal. Its certificates and tokens are no longer accepted.
    Delete { name: String },
    /// Manage bearer tokens, for clients without a certificate.
    #[command(subcommand)]
    Token(PrincipalTokenCommand),
}

/// The arguments of `stemma principal create`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CreatePrincipalArgs {
    pub(crate) name: String,
    /// The principal's role.
    #[arg(long, value_enum)]
    pub(crate) role: PrincipalRoleArg,
    /// Cluster in which the principal has its role. Default: the whole fleet.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Description of the principal, such as the person or program that uses it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    #[command(flatten)]
    pub(crate) handover: NewContextArgs,
    #[command(flatten)]
    pub(crate) lifetime: LifetimeArgs,
}

/// The arguments of `stemma principal update`.
#[derive(Debug, ClapArgs)]
pub(crate) struct UpdatePrincipalArgs {
    pub(crate) name: String,
    #[arg(long, value_enum)]
    pub(crate) role: Option<PrincipalRoleArg>,
    /// Cluster in which the principal has its role.
    #[arg(long, conflicts_with = "fleet")]
    pub(crate) cluster: Option<String>,
    /// Give the principal its role in the whole fleet.
    #[arg(long)]
    pub(crate) fleet: bool,
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
}

/// The subcommands of `stemma principal token`.
#[derive(Debug, Subcommand)]
pub(crate) enum PrincipalTokenCommand {
    /// Create a token. With --to, the token is written into a new context. Otherwise it is printed once, and stored
    /// nowhere.
    Create {
        /// Name of the principal.
        name: String,
        #[command(flatten)]
        handover: NewContextArgs,
        #[command(flatten)]
        lifetime: LifetimeArgs,
    },
    /// Revoke a token.
    Revoke {
        /// Name of the principal.
        name: String,
        /// Id of the token: its part before the dot.
        id: String,
    },
}

/// The subcommands of `stemma cert`.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Create a key and a certificate for a principal, in a new context.
    Create {
        /// Name of the principal.
        name: String,
        /// New directory for a context file and the files that it names.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// URL of the controller in the new context. Default: the URL in your own context.
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        #[command(flatten)]
        lifetime: LifetimeArgs,
    },
    /// List the certificates that have not expired.
    List,
    /// Replace the certificate of your context with a new one for the same key. The old certificate expires an hour
    /// later.
    Renew {
        /// Lifetime, such as `30d`. Default: 90 days. Without the admin role, at most the lifetime of the old
        /// certificate.
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        ttl: Option<u64>,
    },
    /// Revoke a certificate by its serial number.
    Revoke { serial: String },
}

impl PrincipalCommand {
    /// Returns whether the command changes anything.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Self::List)
    }
}

impl CertCommand {
    /// Returns whether the command changes anything.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Self::List)
    }
}
