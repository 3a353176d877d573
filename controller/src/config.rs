//! The configuration of `run`: a TOML file, and flags that override it. Combinations that are not allowed are refused
//! before anything is bound.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use stemma_core::field::{FieldDef, FieldType, Help};
use stemma_core::name::is_blank;
use stemma_core::retention::{AuditRetention, HistoryRetention, MAX_DAYS, MAX_MEBIBYTES, MAX_REVISIONS};
use stemma_wire::config;

use crate::age::{BadRecipient, Recipient};
use crate::args;
use crate::blobs::MAX_UNNAMED_BYTES;
use crate::ca::{BadServerName, ServerName};
use crate::extension::{BadExtension, ExtensionConfig, ExtensionTable};
use crate::registry::work::DEFAULT_MAX_NODES;
use crate::socket_activation::ActivatedSockets;

/// The reasons why a configuration is refused. Most messages state how to correct the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read, other users may write it (S71), or its content is invalid.
    #[error(transparent)]
    File(#[from] config::ConfigError),
    /// No data directory is configured.
    #[error("no data directory: give --data-dir DIR, or data_dir in the file that --config names")]
    NoDataDir,
    /// The configured path of the data directory has no visible character.
    #[error("data_dir {0:?} is empty: name the directory that `init` made; nothing was changed")]
    BlankDataDir(PathBuf),
    /// A listener's address cannot be used.
    #[error("{field} {value:?}: {why}")]
    Listen {
        /// The name of the field in the file, `admin_listen` or `agent_listen`. The value may be from the flag instead.
        field: &'static str,
        /// The configured value.
        value: String,
        /// The reason why the address cannot be used.
        why: String,
    },
    /// A name for the server certificate is invalid.
    #[error("names: {0}")]
    Name(#[from] BadServerName),
    /// A recipient of backups is invalid.
    #[error("backup_recipients[{index}]: {why}")]
    Recipient {
        /// The index of the recipient in the list, from 0.
        index: usize,
        /// The reason why the text is not a recipient.
        why: BadRecipient,
    },
    /// An extension in the file is invalid. An extension is a program that decides which tags a role gives to a node.
    #[error(transparent)]
    Extension(#[from] BadExtension),
    /// A configured limit, such as a number of days, is out of range.
    #[error("{field} = {value}: write a whole number from 1 to {most}")]
    Keep {
        /// The path of the field, such as `history_keep.days`.
        field: &'static str,
        /// The configured value.
        value: u64,
        /// The maximum allowed value.
        most: u64,
    },
    /// The configuration sets an address for a listener that the service manager has bound already.
    #[error(
        "{field} {value:?}: the service manager has already bound this listener to {bound}; remove {field} from the configuration, and set \
         another address with `systemctl edit {unit}` (an empty ListenStream=, then the new one)"
    )]
    Handed {
        /// The name of the field in the file, `admin_listen` or `agent_listen`. The value may be from the flag instead.
        field: &'static str,
        /// The configured value.
        value: String,
        /// The address to which the service manager bound the socket.
        bound: SocketAddr,
        /// The systemd unit of the socket.
        unit: &'static str,
    },
    /// A socket that the service manager has bound has no address.
    #[error("the socket of {unit} has no address: {source}")]
    NoAddress {
        /// The systemd unit of the socket.
        unit: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Plain HTTP for operators is configured together with a configuration file. A real fleet is run with such a file,
    /// and plain HTTP is only for development and tests.
    #[error(
        "admin_listen {admin} is plain HTTP, which is for development and tests; refusing to start with --config: give --admin-listen \
         HOST:PORT (TLS), or for development and tests --data-dir, --admin-listen and --agent-listen without --config"
    )]
    PlainHttpWithFile {
        /// The configured admin listener, as a URL.
        admin: String,
    },
    /// Plain HTTP for operators is configured, and other machines can reach the agents' listener (S75). Plain HTTP is
    /// only for development and tests, which need no other machine.
    #[error(
        "admin_listen {admin} is plain HTTP, and agent_listen {agents} is not a loopback address: every user of this machine would control a \
         real fleet; refusing to start: give --admin-listen HOST:PORT (TLS), or --agent-listen 127.0.0.1:PORT to develop and test"
    )]
    PlainHttpWithRealAgents {
        /// The configured admin listener, as a URL.
        admin: String,
        /// The configured address of the agents' listener.
        agents: SocketAddr,
    },
}

/// The address and protocol of the admin listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminListen {
    /// TLS. A caller is identified by its client certificate or by a principal's token.
    Tls(SocketAddr),
    /// Plain HTTP on a loopback address, for development and tests.
    Plain(SocketAddr),
}

/// The configuration of `run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The directory that `init` created.
    pub data_dir: PathBuf,
    /// The address and protocol of the admin listener, which serves operators.
    pub admin: AdminListen,
    /// The address of the agents' listener.
    pub agents: SocketAddr,
    /// The directory in which the service manager provides keys to the controller (`systemd.exec(5)`, Credentials).
    /// `None` if the service manager provides no keys.
    pub credentials: Option<PathBuf>,
    /// DNS names and IP addresses in the server certificate, in addition to those that `init` was given.
    pub names: Vec<ServerName>,
    /// Names of traits that are accepted as standard traits, in addition to those of os-traits, `OpenStack`'s list.
    pub extra_standard_traits: Vec<String>,
    /// The public keys to which a backup is encrypted. The holder of any one of the secret keys can decrypt the backup.
    pub backup_recipients: Vec<Recipient>,
    /// The extensions: programs that decide which tags a role gives to a node.
    pub extensions: Vec<ExtensionConfig>,
    /// The limits of the stored history of objects.
    pub history_keep: HistoryRetention,
    /// The limits of the stored audit log.
    pub audit_keep: AuditRetention,
    /// Maximum total size of the stored file bodies that no release and no released task set names, in MiB.
    pub unnamed_files_mebibytes: u64,
    /// Maximum number of nodes in the fleet. It is also the maximum number of allocations, and of join tokens.
    pub max_nodes: u64,
}

/// The content of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    data_dir: Option<PathBuf>,
    admin_listen: Option<String>,
    agent_listen: Option<String>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    extra_standard_traits: Vec<String>,
    #[serde(default)]
    backup_recipients: Vec<String>,
    #[serde(default)]
    extension: Vec<ExtensionTable>,
    #[serde(default)]
    history_keep: HistoryRetention,
    #[serde(default)]
    audit_keep: AuditRetention,
    unnamed_files_mebibytes: Option<u64>,
    most_nodes: Option<u64>,
}

/// The fields of the controller's configuration file, for the manual page of the file.
pub const FILE_FIELDS: &[FieldDef] = &[
    FieldDef::new(
        "data_dir",
        FieldType::Text,
        Help::new("required", "The directory that `init` made: store, keys and file bodies.", "\"/var/lib/stemma-controller\""),
    ),
    FieldDef::new(
        "admin_listen",
        FieldType::Text,
        Help::new(
            "[::]:9443, or the socket unit's",
            "Address of the admin listener, as HOST:PORT. Leave it out if the service manager provides the socket.",
            "\"10.0.0.1:9443\"",
        ),
    ),
    FieldDef::new(
        "agent_listen",
        FieldType::Text,
        Help::new(
            "[::]:9444, or the socket unit's",
            "Address of the agents' listener, as HOST:PORT. Leave it out if the service manager provides the socket.",
            "\"10.0.0.1:9444\"",
        ),
    ),
    FieldDef::new(
        "names",
        FieldType::Names,
        Help::new(
            "[]",
            "DNS names and addresses by which hosts and people reach this controller, in addition to those of `init`. New tokens contain the first.",
            "[\"stemma.example.net\"]",
        ),
    ),
    FieldDef::new(
        "extra_standard_traits",
        FieldType::Names,
        Help::new("[]", "Traits that count as standard in addition to those of os-traits.", "[\"HW_SITE_LIQUID_COOLED\"]"),
    ),
    FieldDef::new(
        "backup_recipients",
        FieldType::Names,
        Help::new(
            "[]",
            "Public age keys to which `backup` encrypts, as age-keygen prints them. Store the secret keys elsewhere; docs/backup.md.",
            "[\"age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8\"]",
        ),
    ),
    FieldDef::new(
        "extension",
        FieldType::Objects,
        Help::new(
            "[]",
            "Programs that decide tags, each a table [[extension]] with name, and unix, unit or url; docs/extensions.md.",
            "[{name = \"placement\", unit = true}]",
        ),
    ),
    FieldDef::new(
        "history_keep",
        FieldType::Object(HISTORY_KEEP),
        Help::new(
            "90 days, 100 revisions, 1024 mebibytes",
            "How much of the history of objects is retained. The present state of an object is always retained.",
            "{days = 30, mebibytes = 512}",
        ),
    ),
    FieldDef::new(
        "audit_keep",
        FieldType::Object(AUDIT_KEEP),
        Help::new("400 days, 1024 mebibytes", "How much of the audit is retained.", "{days = 1000, mebibytes = 4096}"),
    ),
    FieldDef::new(
        "unnamed_files_mebibytes",
        FieldType::Count,
        Help::new(
            "1024",
            "Maximum total size of file bodies that no release and no released task set names. They are deleted a day after they were last sent.",
            "256",
        ),
    ),
    FieldDef::new(
        "most_nodes",
        FieldType::Count,
        Help::new(
            "100000",
            "Maximum number of nodes; one cluster may have half of them. Each takes some 8 KiB of memory. A fleet that has more keeps working, but no node can be added.",
            "250000",
        ),
    ),
];

/// The fields of the table `history_keep` in the configuration file, for its manual page.
const HISTORY_KEEP: &[FieldDef] = &[
    FieldDef::new(
        "days",
        FieldType::Count,
        Help::new("90", "How long an earlier state of an object is retained after it was replaced.", "30"),
    ),
    FieldDef::new("revisions", FieldType::Count, Help::new("100", "How many revisions of one object are retained.", "20")),
    FieldDef::new(
        "mebibytes",
        FieldType::Count,
        Help::new("1024", "Maximum total size; beyond it, the states that were replaced first are deleted first.", "512"),
    ),
];

/// The fields of the table `audit_keep` in the configuration file, for its manual page.
const AUDIT_KEEP: &[FieldDef] = &[
    FieldDef::new(
        "days",
        FieldType::Count,
        Help::new("400", "How long an entry is retained; an entry of a refusal for at most 90 days.", "1000"),
    ),
    FieldDef::new(
        "mebibytes",
        FieldType::Count,
        Help::new("1024", "Maximum total size of all entries; beyond it, the oldest are deleted first.", "4096"),
    ),
];

/// Maximum value of the field `most_nodes`.
const MAX_NODES: u64 = 1_000_000;

/// The default address of the admin listener.
const DEFAULT_ADMIN_LISTEN: &str = "[::]:9443";
/// The default address of the agents' listener.
const DEFAULT_AGENT_LISTEN: &str = "[::]:9444";

/// The systemd unit of the admin listener's socket.
const ADMIN_SOCKET_UNIT: &str = "stemma-controller-admin.socket";
/// The systemd unit of the agents' listener's socket.
const AGENT_SOCKET_UNIT: &str = "stemma-controller-agents.socket";

impl Config {
    /// Reads the configuration file that the flags name, if any. A flag overrides the same value of the file. A
    /// listener whose socket the service manager has bound gets the address of that socket, uses TLS, and must have no
    /// configured address.
    ///
    /// Refuses plain HTTP for operators with a configuration file, or if other machines can reach the agents' listener.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load_with_sockets(flags: &args::RunArgs, sockets: &ActivatedSockets) -> Result<Self, ConfigError> {
        let file = flags.config.as_deref().map(config::load::<ConfigFile>).transpose()?.unwrap_or_default();
        let admin_text = flags.admin_listen.clone().or(file.admin_listen);
        let agents_text = flags.agent_listen.clone().or(file.agent_listen);
        let admin_or_default = admin_text.clone().unwrap_or_else(|| DEFAULT_ADMIN_LISTEN.to_owned());
        let agents_or_default = agents_text.clone().unwrap_or_else(|| DEFAULT_AGENT_LISTEN.to_owned());
        let config = Self {
            data_dir: data_dir(flags.data_dir.clone().or(file.data_dir))?,
            admin: match socket_address("admin_listen", ADMIN_SOCKET_UNIT, sockets.admin.as_ref(), admin_text)? {
                Some(bound) => AdminListen::Tls(bound),
                None => parse_admin_listen(&admin_or_default)?,
            },
            agents: match socket_address("agent_listen", AGENT_SOCKET_UNIT, sockets.agents.as_ref(), agents_text)? {
                Some(bound) => bound,
                None => parse_address("agent_listen", &agents_or_default, &agents_or_default)?,
            },
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            names: file.names.iter().map(|name| ServerName::from_str(name)).collect::<Result<_, _>>()?,
            extra_standard_traits: file.extra_standard_traits,
            backup_recipients: parse_recipients(&file.backup_recipients)?,
            extensions: ExtensionTable::read(file.extension)?,
            history_keep: file.history_keep,
            audit_keep: file.audit_keep,
            unnamed_files_mebibytes: file.unnamed_files_mebibytes.unwrap_or(MAX_UNNAMED_BYTES / (1024 * 1024)),
            max_nodes: file.most_nodes.unwrap_or(DEFAULT_MAX_NODES),
        };
        check_limits(&config)?;
        let is_plain_http = matches!(config.admin, AdminListen::Plain(_));
        if is_plain_http && flags.config.is_some() {
            return Err(ConfigError::PlainHttpWithFile { admin: admin_or_default });
        }
        if is_plain_http && !config.agents.ip().to_canonical().is_loopback() {
            return Err(ConfigError::PlainHttpWithRealAgents { admin: admin_or_default, agents: config.agents });
        }
        Ok(config)
    }
}

/// Returns the configured data directory. Fails if none is configured. Also fails if the path is blank, because a blank
/// path usually comes from an unset variable.
fn data_dir(configured: Option<PathBuf>) -> Result<PathBuf, ConfigError> {
    let path = configured.ok_or(ConfigError::NoDataDir)?;
    if path.to_str().is_some_and(is_blank) { Err(ConfigError::BlankDataDir(path)) } else { Ok(path) }
}

impl AdminListen {
    /// Returns the address of the listener, for either protocol.
    pub fn address(self) -> SocketAddr {
        match self {
            Self::Tls(address) | Self::Plain(address) => address,
        }
    }

    /// Returns the URL of this listener. `address` is the address to which the listener is bound, because the
    /// configured port may be 0.
    pub fn url(self, address: SocketAddr) -> Url {
        match self {
            Self::Tls(_) => Url { scheme: "https", address },
            Self::Plain(_) => Url { scheme: "http", address },
        }
    }
}

/// The URL at which clients on this machine reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: &'static str,
    address: SocketAddr,
}

impl Url {
    /// Returns the URL of the agents' listener, which is bound to `address`. The agents' listener always uses TLS.
    pub fn for_agents(address: SocketAddr) -> Self {
        Self { scheme: "https", address }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Clients cannot connect to the unspecified address. From this machine they can use the loopback address.
        let ip = match self.address.ip().to_canonical() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            // IPv6 has a loopback address of its own. If the listener is bound to IPv6 only, or the machine has no
            // IPv4, nothing answers at 127.0.0.1.
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        write!(f, "{}://{}", self.scheme, SocketAddr::new(ip, self.address.port()))
    }
}

/// Checks that each configured limit is from 1 to its maximum. Fails with the first limit that is not.
fn check_limits(config: &Config) -> Result<(), ConfigError> {
    let (history, audit) = (&config.history_keep, &config.audit_keep);
    let fields = [
        ("history_keep.days", history.days, MAX_DAYS),
        ("history_keep.revisions", history.revisions, MAX_REVISIONS),
        ("history_keep.mebibytes", history.mebibytes, MAX_MEBIBYTES),
        ("audit_keep.days", audit.days, MAX_DAYS),
        ("audit_keep.mebibytes", audit.mebibytes, MAX_MEBIBYTES),
        ("unnamed_files_mebibytes", config.unnamed_files_mebibytes, MAX_MEBIBYTES),
        ("most_nodes", config.max_nodes, MAX_NODES),
    ];
    let invalid = fields.into_iter().find(|(_, value, max)| !(1..=*max).contains(value));
    invalid.map_or(Ok(()), |(field, value, most)| Err(ConfigError::Keep { field, value, most }))
}

/// Returns the address of a listener's socket that the service manager has bound, or `None` if there is no such socket.
/// Fails if the configuration sets an address too: `configured` is that address. `field` and `unit` are for the error.
fn socket_address(
    field: &'static str,
    unit: &'static str,
    socket: Option<&TcpListener>,
    configured: Option<String>,
) -> Result<Option<SocketAddr>, ConfigError> {
    let Some(socket) = socket else { return Ok(None) };
    let bound = socket.local_addr().map_err(|source| ConfigError::NoAddress { unit, source })?;
    match configured {
        Some(value) => Err(ConfigError::Handed { field, value, bound, unit }),
        None => Ok(Some(bound)),
    }
}

/// Parses the public keys to which backups are encrypted. Fails with the index of the first invalid text.
fn parse_recipients(texts: &[String]) -> Result<Vec<Recipient>, ConfigError> {
    let invalid = |index| move |why| ConfigError::Recipient { index, why };
    texts.iter().enumerate().map(|(index, text)| text.parse::<Recipient>().map_err(invalid(index))).collect()
}

/// Parses the address of the admin listener: an `http://` URL for plain HTTP, or an `https://` URL or HOST:PORT for
/// TLS. Plain HTTP is refused unless the address is a loopback address.
fn parse_admin_listen(text: &str) -> Result<AdminListen, ConfigError> {
    let invalid = |why: &str| ConfigError::Listen { field: "admin_listen", value: text.to_owned(), why: why.to_owned() };
    if let Some(address_text) = text.strip_prefix("http://") {
        let address = parse_address("admin_listen", text, address_text.strip_suffix('/').unwrap_or(address_text))?;
        if !address.ip().to_canonical().is_loopback() {
            return Err(invalid(
                "plain HTTP is served on a loopback address alone: write http://127.0.0.1:PORT, or HOST:PORT for TLS",
            ));
        }
        return Ok(AdminListen::Plain(address));
    }
    let address_text = text.strip_prefix("https://").unwrap_or(text);
    parse_address("admin_listen", text, address_text.strip_suffix('/').unwrap_or(address_text)).map(AdminListen::Tls)
}

/// Returns the first address of `host_and_port`, whose host may be a DNS name. `field` and `value` are for the error:
/// the configured field and its whole value.
fn parse_address(field: &'static str, value: &str, host_and_port: &str) -> Result<SocketAddr, ConfigError> {
    let invalid = |why: String| ConfigError::Listen { field, value: value.to_owned(), why };
    let mut addresses = host_and_port.to_socket_addrs().map_err(|error| invalid(format!("{error}; write HOST:PORT")))?;
    addresses.next().ok_or_else(|| invalid("the host has no address".to_owned()))
}

impl args::DataDirArgs {
    /// Loads the configuration with which `run` would start with these flags, if the service manager bound no socket.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn config(&self) -> Result<Config, ConfigError> {
        let run = args::RunArgs { config: self.config.clone(), data_dir: self.data_dir.clone(), ..args::RunArgs::default() };
        Config::load_with_sockets(&run, &ActivatedSockets::default())
    }

    /// Returns the data directory that the flags or the configuration file name.
    ///
    /// # Errors
    /// [`ConfigError`], also if another part of the configuration is invalid.
    pub fn data_dir(&self) -> Result<PathBuf, ConfigError> {
        Ok(self.config()?.data_dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads a configuration from a file with this content and from flags, without inherited sockets.
    fn load(file: &str, flags: args::RunArgs) -> Result<Config, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("controller.toml");
        std::fs::write(&path, file).unwrap();
        Config::load_with_sockets(&args::RunArgs { config: Some(path), ..flags }, &ActivatedSockets::default())
    }

    #[test]
    fn x06_config_rejects_blank_data_directory() {
        // In TOML, `\t` is a tab.
        for blank in ["", " ", "\\t"] {
            let error = load(&format!("data_dir = \"{blank}\"\n"), args::RunArgs::default()).unwrap_err();
            assert!(matches!(error, ConfigError::BlankDataDir(_)), "{blank:?}: {error}");
        }
    }

    #[test]
    fn config_prefers_flags_over_file() {
        let file = r#"
            data_dir = "/var/lib/stemma"
            admin_listen = "127.0.0.1:1"
            agent_listen = "127.0.0.1:2"
            names = ["stemma.example", "10.0.0.1"]
        "#;
        let config = load(file, args::RunArgs { agent_listen: Some("127.0.0.1:0".into()), ..args::RunArgs::default() }).unwrap();
        assert_eq!(config.data_dir, PathBuf::from("/var/lib/stemma"));
        assert_eq!(config.admin, AdminListen::Tls("127.0.0.1:1".parse().unwrap()));
        assert_eq!(config.agents, "127.0.0.1:0".parse().unwrap());
        assert_eq!(config.names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["stemma.example", "10.0.0.1"]);
    }

    #[test]
    fn config_error_names_cause() {
        for (file, sentence) in [
            ("", "no data directory: give --data-dir DIR, or data_dir in the file that --config names"),
            ("data_dirr = 'x'", "unknown field `data_dirr`, expected one of `data_dir`, `admin_listen`"),
            ("data_dir = 7", "invalid type: integer `7`, expected path string"),
            ("data_dir = 'x'\nadmin_listen = '10.1.2.3'", "admin_listen \"10.1.2.3\": invalid socket address; write HOST:PORT"),
            (
                "data_dir = 'x'\nadmin_listen = 'http://192.0.2.1:80'",
                "admin_listen \"http://192.0.2.1:80\": plain HTTP is served on a loopback address alone: write http://127.0.0.1:PORT, \
                 or HOST:PORT for TLS",
            ),
            ("data_dir = 'x'\nnames = ['a b']", "names: \"a b\" is neither a DNS name"),
            (
                "data_dir = 'x'\nbackup_recipients = ['age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8', 'x']",
                "backup_recipients[1]: this is not an age recipient: write age1 and 58 letters and digits",
            ),
            (
                "data_dir = 'x'\nbackup_recipients = ['AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX']",
                "backup_recipients[0]: this is a secret key: give its public key",
            ),
            ("data_dir = 'x'\nhistory_keep = {days = 0}", "history_keep.days = 0: write a whole number from 1 to 36500"),
            (
                "data_dir = 'x'\naudit_keep = {mebibytes = 1048577}",
                "audit_keep.mebibytes = 1048577: write a whole number from 1 to 1048576",
            ),
            (
                "data_dir = 'x'\nunnamed_files_mebibytes = 0",
                "unnamed_files_mebibytes = 0: write a whole number from 1 to 1048576",
            ),
            ("data_dir = 'x'\nmost_nodes = 0", "most_nodes = 0: write a whole number from 1 to 1000000"),
            ("data_dir = 'x'\naudit_keep = {revisions = 7}", "unknown field `revisions`, expected `days` or `mebibytes`"),
        ] {
            let error = load(file, args::RunArgs::default()).unwrap_err().to_string();
            assert!(error.contains(sentence), "{file:?}: {error}");
        }
    }

    #[test]
    fn x03_config_uses_defaults_for_unset_limits() {
        let config = load("data_dir = 'x'\nhistory_keep = {days = 30}", args::RunArgs::default()).unwrap();
        assert_eq!(config.history_keep, HistoryRetention { days: 30, revisions: 100, mebibytes: 1024 });
        assert_eq!(config.audit_keep, AuditRetention { days: 400, mebibytes: 1024 });
        assert_eq!(config.unnamed_files_mebibytes, 1024);
        assert_eq!(config.max_nodes, 100_000);
    }

    #[test]
    fn s75_config_rejects_plain_http_when_agent_address_is_not_loopback() {
        let load_with_agents = |agents: &str| {
            Config::load_with_sockets(
                &args::RunArgs {
                    data_dir: Some("x".into()),
                    admin_listen: Some("http://127.0.0.1:0".into()),
                    agent_listen: Some(agents.into()),
                    ..args::RunArgs::default()
                },
                &ActivatedSockets::default(),
            )
        };
        assert_eq!(
            load_with_agents("0.0.0.0:9444").unwrap_err().to_string(),
            "admin_listen http://127.0.0.1:0 is plain HTTP, and agent_listen 0.0.0.0:9444 is not a loopback address: every user of this \
             machine would control a real fleet; refusing to start: give --admin-listen HOST:PORT (TLS), or --agent-listen 127.0.0.1:PORT to develop and test"
        );
        assert!(load_with_agents("127.0.0.2:9444").is_ok());
    }

    #[test]
    fn w10_12_config_rejects_plain_http_when_file_is_given() {
        let plain_http = || Some("http://127.0.0.1:0".to_owned());
        let in_file = "data_dir = 'x'\nagent_listen = '127.0.0.1:0'\nadmin_listen = 'http://127.0.0.1:0'";
        for (file, admin_listen) in [(in_file, None), ("data_dir = 'x'\nagent_listen = '127.0.0.1:0'", plain_http())] {
            assert_eq!(
                load(file, args::RunArgs { admin_listen, ..args::RunArgs::default() }).unwrap_err().to_string(),
                "admin_listen http://127.0.0.1:0 is plain HTTP, which is for development and tests; refusing to start with --config: give \
                 --admin-listen HOST:PORT (TLS), or for development and tests --data-dir, --admin-listen and --agent-listen without --config"
            );
        }
        let tls_flags = args::RunArgs { admin_listen: Some("127.0.0.1:0".into()), ..args::RunArgs::default() };
        assert!(load(in_file, tls_flags).is_ok(), "the flag overrides the file");
    }

    #[test]
    fn config_file_fields_match_manual_page() {
        let names_in_error = load("nosuch = 1", args::RunArgs::default()).unwrap_err().to_string();
        // The error has the unknown field and then all valid fields, each between backticks.
        let names_in_error: Vec<&str> = names_in_error.split('`').skip(1).step_by(2).skip(1).collect();
        assert_eq!(names_in_error, FILE_FIELDS.iter().map(|field| field.name).collect::<Vec<_>>());
    }

    /// In this test, the service manager has bound both listeners. A configured address of such a listener is an error.
    #[test]
    fn config_uses_inherited_socket_address() {
        let socket = || Some(TcpListener::bind("127.0.0.1:0").unwrap());
        let sockets = ActivatedSockets { admin: socket(), agents: socket(), root: None };
        let [admin, agents] = [&sockets.admin, &sockets.agents].map(|socket| socket.as_ref().unwrap().local_addr().unwrap());
        let run = || args::RunArgs { data_dir: Some("x".into()), ..args::RunArgs::default() };
        let config = Config::load_with_sockets(&run(), &sockets).unwrap();
        assert_eq!((config.admin, config.agents), (AdminListen::Tls(admin), agents));
        let flags_with_address = args::RunArgs { agent_listen: Some("127.0.0.1:9444".into()), ..run() };
        assert_eq!(
            Config::load_with_sockets(&flags_with_address, &sockets).unwrap_err().to_string(),
            format!(
                "agent_listen \"127.0.0.1:9444\": the service manager has already bound this listener to {agents}; remove agent_listen \
                 from the configuration, and set another address with `systemctl edit stemma-controller-agents.socket` (an empty ListenStream=, \
                 then the new one)"
            )
        );
    }

    /// The URL has the port to which the listener is bound, and not the configured port 0.
    #[test]
    fn url_has_bound_port_and_loopback_for_unspecified_address() {
        let url = AdminListen::Plain("127.0.0.1:0".parse().unwrap()).url("127.0.0.1:80".parse().unwrap());
        assert_eq!(url.to_string(), "http://127.0.0.1:80");
        assert_eq!(Url::for_agents("[::]:9444".parse().unwrap()).to_string(), "https://[::1]:9444");
    }

    /// RFC 4291, section 2.5.5.2: an IPv4-mapped IPv6 address is that IPv4 address. So `::ffff:127.0.0.1` is a loopback
    /// address, at which plain HTTP is allowed.
    #[test]
    fn y04_url_shows_ipv4_when_address_is_mapped() {
        for (bound, expected_url) in [
            ("[::ffff:0.0.0.0]:9443", "https://127.0.0.1:9443"),
            ("[::ffff:10.0.0.5]:9443", "https://10.0.0.5:9443"),
            ("0.0.0.0:9443", "https://127.0.0.1:9443"),
            ("[2001:db8::5]:9443", "https://[2001:db8::5]:9443"),
        ] {
            assert_eq!(Url::for_agents(bound.parse().unwrap()).to_string(), expected_url, "{bound}");
        }
        let plain_http_url =
            parse_admin_listen("http://[::ffff:127.0.0.1]:9443").map(|listen| listen.url(listen.address()).to_string());
        assert_eq!(plain_http_url.ok().as_deref(), Some("http://127.0.0.1:9443"));
        assert!(parse_admin_listen("http://[::ffff:10.0.0.5]:9443").is_err());
    }
}
