//! The configuration of `run`: a TOML file, flags over it, and what cannot go together refused before anything is bound.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use stemma_core::field::{Form, Help, Part};
use stemma_core::name::is_blank;
use stemma_core::retention::{AuditKeep, HistoryKeep, MAX_DAYS, MAX_MEBIBYTES, MAX_REVISIONS};
use stemma_wire::config;

use crate::age::{BadRecipient, Recipient};
use crate::args;
use crate::blobs::MOST_UNNAMED_BYTES;
use crate::ca::{BadServerName, ServerName};
use crate::extension::{BadExtension, Declared, WrittenExtension};
use crate::handed::Handed;
use crate::registry::work::MOST_NODES;

/// Why there is no configuration to run with. Each says what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read, others may write it (S71), or it does not say what it should.
    #[error(transparent)]
    File(#[from] config::ConfigError),
    /// Nothing says where the data is.
    #[error("no data directory: give --data-dir DIR, or data_dir in the file that --config names")]
    NoDataDir,
    /// The data directory is a path of blanks.
    #[error("data_dir {0:?} is empty: name the directory that `init` made; nothing was changed")]
    BlankDataDir(PathBuf),
    /// A listener's address cannot be used.
    #[error("{field} {value:?}: {why}")]
    Listen {
        /// Which field or flag.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// A name for the server certificate.
    #[error("names: {0}")]
    Name(#[from] BadServerName),
    /// A recipient of backups.
    #[error("backup_recipients[{index}]: {why}")]
    Recipient {
        /// Which one, from 0 on.
        index: usize,
        /// What is wrong with it.
        why: BadRecipient,
    },
    /// An extension.
    #[error(transparent)]
    Extension(#[from] BadExtension),
    /// How much is kept.
    #[error("{field} = {value}: write a whole number from 1 to {most}")]
    Keep {
        /// Which field.
        field: &'static str,
        /// What was given.
        value: u64,
        /// The largest that is taken.
        most: u64,
    },
    /// A listener that the service manager has bound is told to be elsewhere.
    #[error(
        "{field} {value:?}: the service manager has bound this listener already, at {bound}; take {field} out of the configuration, and give \
         another address by `systemctl edit {unit}` (an empty ListenStream=, then the new one)"
    )]
    Handed {
        /// Which field or flag.
        field: &'static str,
        /// What was given.
        value: String,
        /// Where the socket is.
        bound: SocketAddr,
        /// The unit that has it.
        unit: &'static str,
    },
    /// A listener that the service manager has bound says no address.
    #[error("the socket of {unit} has no address: {source}")]
    NoAddress {
        /// The unit that has it.
        unit: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Plain HTTP for operators where a configuration file is: that is how a real fleet is run.
    #[error(
        "admin_listen {admin} is plain HTTP, which is for development and tests; refusing to start with --config: give --admin-listen \
         HOST:PORT (TLS), or --data-dir, --admin-listen and --agent-listen and no --config to develop and test"
    )]
    PlainBesideFile {
        /// What was asked for operators.
        admin: String,
    },
    /// Plain HTTP for operators beside agents that others can reach (S75).
    #[error(
        "admin_listen {admin} is plain HTTP, and agent_listen {agents} is no loopback address: whoever is on this machine would own a \
         real fleet; refusing to start: give --admin-listen HOST:PORT (TLS), or --agent-listen 127.0.0.1:PORT to develop and test"
    )]
    PlainBesideRealAgents {
        /// What was asked for operators.
        admin: String,
        /// And for agents.
        agents: SocketAddr,
    },
}

/// Where operators are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminListen {
    /// TLS, with client certificates.
    Tls(SocketAddr),
    /// Plain HTTP on a loopback address, for development and tests.
    Plain(SocketAddr),
}

/// What `run` runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What `init` made.
    pub data_dir: PathBuf,
    /// Where operators are served.
    pub admin: AdminListen,
    /// Where agents are served.
    pub agents: SocketAddr,
    /// Where the service manager keeps keys for the controller (`systemd.exec(5)`, Credentials).
    pub credentials: Option<PathBuf>,
    /// Names in the server certificate beside those that `init` was given.
    pub names: Vec<ServerName>,
    /// Names of traits that are taken for standard ones beside os-traits' own.
    pub extra_standard_traits: Vec<String>,
    /// Who can read a backup.
    pub backup_recipients: Vec<Recipient>,
    /// Programs that decide tags.
    pub extensions: Vec<Declared>,
    /// How much of the history of objects is kept.
    pub history_keep: HistoryKeep,
    /// How much of the audit is kept.
    pub audit_keep: AuditKeep,
    /// How much file bodies that nothing names may take together.
    pub unnamed_files_mebibytes: u64,
    /// How many nodes there may be.
    pub most_nodes: u64,
}

/// The file, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
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
    extension: Vec<WrittenExtension>,
    #[serde(default)]
    history_keep: HistoryKeep,
    #[serde(default)]
    audit_keep: AuditKeep,
    unnamed_files_mebibytes: Option<u64>,
    most_nodes: Option<u64>,
}

/// The fields of the file, for its manual page.
pub const FIELDS: &[Part] = &[
    Part::new(
        "data_dir",
        Form::Text,
        Help::new(
            "required",
            "The directory that `init` made: store, keys and file bodies.",
            "\"/var/lib/stemma-controller\"",
        ),
    ),
    Part::new(
        "admin_listen",
        Form::Text,
        Help::new(
            "[::]:9443, or the socket unit's",
            "Where operators are served, as HOST:PORT. Not where the service manager hands over a socket.",
            "\"10.0.0.1:9443\"",
        ),
    ),
    Part::new(
        "agent_listen",
        Form::Text,
        Help::new(
            "[::]:9444, or the socket unit's",
            "Where agents are served, as HOST:PORT. Not where the service manager hands over a socket.",
            "\"10.0.0.1:9444\"",
        ),
    ),
    Part::new(
        "names",
        Form::Names,
        Help::new(
            "[]",
            "DNS names and addresses by which hosts and people reach this controller, beside those of `init`. New tokens name the first.",
            "[\"stemma.example.net\"]",
        ),
    ),
    Part::new(
        "extra_standard_traits",
        Form::Names,
        Help::new("[]", "Traits that count as standard ones beside those of os-traits.", "[\"HW_SITE_LIQUID_COOLED\"]"),
    ),
    Part::new(
        "backup_recipients",
        Form::Names,
        Help::new(
            "[]",
            "Public keys of age to which `backup` encrypts, as age-keygen prints them. The secret ones are kept elsewhere; docs/backup.md.",
            "[\"age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8\"]",
        ),
    ),
    Part::new(
        "extension",
        Form::Objects,
        Help::new(
            "[]",
            "Programs that decide tags, each a table [[extension]] with name, and unix, unit or url; docs/extensions.md.",
            "[{name = \"placement\", unit = true}]",
        ),
    ),
    Part::new(
        "history_keep",
        Form::Object(HISTORY_KEEP),
        Help::new(
            "90 days, 100 revisions, 1024 mebibytes",
            "How much of what objects were is kept. What a living object is stays, whatever it takes.",
            "{days = 30, mebibytes = 512}",
        ),
    ),
    Part::new(
        "audit_keep",
        Form::Object(AUDIT_KEEP),
        Help::new("400 days, 1024 mebibytes", "How much of the audit is kept.", "{days = 1000, mebibytes = 4096}"),
    ),
    Part::new(
        "unnamed_files_mebibytes",
        Form::Count,
        Help::new(
            "1024",
            "How much file bodies that no release and no released task set names may take together. They go a day after they were sent last.",
            "256",
        ),
    ),
    Part::new(
        "most_nodes",
        Form::Count,
        Help::new(
            "100000",
            "How many nodes there may be; one cluster has half of them. Each takes some 8 KiB of memory. A fleet that has more goes on, and no node is added.",
            "250000",
        ),
    ),
];

/// The fields of `history_keep`.
const HISTORY_KEEP: &[Part] = &[
    Part::new(
        "days",
        Form::Count,
        Help::new("90", "For how long it is kept what an object was, from when it became something else.", "30"),
    ),
    Part::new("revisions", Form::Count, Help::new("100", "How many revisions of one object are kept.", "20")),
    Part::new(
        "mebibytes",
        Form::Count,
        Help::new("1024", "How much all together take; beyond it those go first that were replaced first.", "512"),
    ),
];

/// The fields of `audit_keep`.
const AUDIT_KEEP: &[Part] = &[
    Part::new(
        "days",
        Form::Count,
        Help::new("400", "For how long an entry is kept; one of a refusal for 90 days at most.", "1000"),
    ),
    Part::new(
        "mebibytes",
        Form::Count,
        Help::new("1024", "How much all entries together take; beyond it the oldest go first.", "4096"),
    ),
];

/// The largest `most_nodes`.
const MOST_NODES_SAID: u64 = 1_000_000;

/// Where operators are served unless said otherwise.
const ADMIN_DEFAULT: &str = "[::]:9443";
/// Where agents are served unless said otherwise.
const AGENTS_DEFAULT: &str = "[::]:9444";

/// The unit of the operators' socket.
const ADMIN_UNIT: &str = "stemma-controller-admin.socket";
/// And of the agents'.
const AGENTS_UNIT: &str = "stemma-controller-agents.socket";

impl Config {
    /// Reads the file that the flags name, if any, and puts the flags over it. Sockets that are there already say where a listener is.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load_with(run: &args::Run, handed: &Handed) -> Result<Self, ConfigError> {
        let written = run.config.as_deref().map(config::load::<Written>).transpose()?.unwrap_or_default();
        let admin_said = run.admin_listen.clone().or(written.admin_listen);
        let agents_said = run.agent_listen.clone().or(written.agent_listen);
        let admin = admin_said.clone().unwrap_or_else(|| ADMIN_DEFAULT.to_owned());
        let agents = agents_said.clone().unwrap_or_else(|| AGENTS_DEFAULT.to_owned());
        let config = Self {
            data_dir: data_dir(run.data_dir.clone().or(written.data_dir))?,
            admin: match bound("admin_listen", ADMIN_UNIT, handed.admin.as_ref(), admin_said)? {
                Some(bound) => AdminListen::Tls(bound),
                None => admin_listen(&admin)?,
            },
            agents: match bound("agent_listen", AGENTS_UNIT, handed.agents.as_ref(), agents_said)? {
                Some(bound) => bound,
                None => address("agent_listen", &agents, &agents)?,
            },
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            names: written.names.iter().map(|name| ServerName::from_str(name)).collect::<Result<_, _>>()?,
            extra_standard_traits: written.extra_standard_traits,
            backup_recipients: recipients(&written.backup_recipients)?,
            extensions: WrittenExtension::read(written.extension)?,
            history_keep: written.history_keep,
            audit_keep: written.audit_keep,
            unnamed_files_mebibytes: written.unnamed_files_mebibytes.unwrap_or(MOST_UNNAMED_BYTES / (1024 * 1024)),
            most_nodes: written.most_nodes.unwrap_or(MOST_NODES),
        };
        check_keep(&config)?;
        let is_plain = matches!(config.admin, AdminListen::Plain(_));
        if is_plain && run.config.is_some() {
            return Err(ConfigError::PlainBesideFile { admin });
        }
        if is_plain && !config.agents.ip().to_canonical().is_loopback() {
            return Err(ConfigError::PlainBesideRealAgents { admin, agents: config.agents });
        }
        Ok(config)
    }
}

/// Where the data is. A path of blanks comes of a variable that is not set.
fn data_dir(said: Option<PathBuf>) -> Result<PathBuf, ConfigError> {
    let path = said.ok_or(ConfigError::NoDataDir)?;
    if path.to_str().is_some_and(is_blank) { Err(ConfigError::BlankDataDir(path)) } else { Ok(path) }
}

impl AdminListen {
    /// The address, whichever is spoken there.
    pub fn address(self) -> SocketAddr {
        match self {
            Self::Tls(address) | Self::Plain(address) => address,
        }
    }

    /// The URL of this listener, bound to `address`.
    pub fn url(self, address: SocketAddr) -> Url {
        match self {
            Self::Tls(_) => Url { scheme: "https", address },
            Self::Plain(_) => Url { scheme: "http", address },
        }
    }
}

/// How a listener is dialled from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: &'static str,
    address: SocketAddr,
}

impl Url {
    /// The URL of the agents' listener.
    pub fn of_agents(address: SocketAddr) -> Self {
        Self { scheme: "https", address }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // "All addresses" cannot be dialled; from here this machine's own can.
        let ip = match self.address.ip().to_canonical() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            // Its own too: where it is bound to that family alone, or the machine has no other, nothing answers at 127.0.0.1.
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        write!(f, "{}://{}", self.scheme, SocketAddr::new(ip, self.address.port()))
    }
}

/// Refuses what keeps or holds nothing, or without end.
fn check_keep(config: &Config) -> Result<(), ConfigError> {
    let (history, audit) = (&config.history_keep, &config.audit_keep);
    let fields = [
        ("history_keep.days", history.days, MAX_DAYS),
        ("history_keep.revisions", history.revisions, MAX_REVISIONS),
        ("history_keep.mebibytes", history.mebibytes, MAX_MEBIBYTES),
        ("audit_keep.days", audit.days, MAX_DAYS),
        ("audit_keep.mebibytes", audit.mebibytes, MAX_MEBIBYTES),
        ("unnamed_files_mebibytes", config.unnamed_files_mebibytes, MAX_MEBIBYTES),
        ("most_nodes", config.most_nodes, MOST_NODES_SAID),
    ];
    let wrong = fields.into_iter().find(|(_, value, most)| !(1..=*most).contains(value));
    wrong.map_or(Ok(()), |(field, value, most)| Err(ConfigError::Keep { field, value, most }))
}

/// Where a socket is that was handed over; it cannot be said to be elsewhere as well.
fn bound(
    field: &'static str,
    unit: &'static str,
    socket: Option<&TcpListener>,
    said: Option<String>,
) -> Result<Option<SocketAddr>, ConfigError> {
    let Some(socket) = socket else { return Ok(None) };
    let bound = socket.local_addr().map_err(|source| ConfigError::NoAddress { unit, source })?;
    match said {
        Some(value) => Err(ConfigError::Handed { field, value, bound, unit }),
        None => Ok(Some(bound)),
    }
}

fn recipients(texts: &[String]) -> Result<Vec<Recipient>, ConfigError> {
    let refused = |index| move |why| ConfigError::Recipient { index, why };
    texts.iter().enumerate().map(|(index, text)| text.parse::<Recipient>().map_err(refused(index))).collect()
}

fn admin_listen(text: &str) -> Result<AdminListen, ConfigError> {
    let refused =
        |why: &str| ConfigError::Listen { field: "admin_listen", value: text.to_owned(), why: why.to_owned() };
    if let Some(rest) = text.strip_prefix("http://") {
        let address = address("admin_listen", text, rest.strip_suffix('/').unwrap_or(rest))?;
        if !address.ip().to_canonical().is_loopback() {
            return Err(refused(
                "plain HTTP is served on a loopback address alone: write http://127.0.0.1:PORT, or HOST:PORT for TLS",
            ));
        }
        return Ok(AdminListen::Plain(address));
    }
    let rest = text.strip_prefix("https://").unwrap_or(text);
    address("admin_listen", text, rest.strip_suffix('/').unwrap_or(rest)).map(AdminListen::Tls)
}

fn address(field: &'static str, whole: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    let refused = |why: String| ConfigError::Listen { field, value: whole.to_owned(), why };
    let mut found = text.to_socket_addrs().map_err(|error| refused(format!("{error}; write HOST:PORT")))?;
    found.next().ok_or_else(|| refused("the host has no address".to_owned()))
}

impl args::Place {
    /// What the command line and the file of `run` say.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn config(&self) -> Result<Config, ConfigError> {
        let run = args::Run { config: self.config.clone(), data_dir: self.data_dir.clone(), ..args::Run::default() };
        Config::load_with(&run, &Handed::default())
    }

    /// Where the data is.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn data_dir(&self) -> Result<PathBuf, ConfigError> {
        Ok(self.config()?.data_dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, flags: args::Run) -> Result<Config, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("controller.toml");
        std::fs::write(&path, file).unwrap();
        Config::load_with(&args::Run { config: Some(path), ..flags }, &Handed::default())
    }

    #[test]
    fn x06_a_data_directory_of_blanks_is_refused() {
        for said in ["", " ", "\\t"] {
            let refused = load(&format!("data_dir = \"{said}\"\n"), args::Run::default()).unwrap_err();
            assert!(matches!(refused, ConfigError::BlankDataDir(_)), "{said:?}: {refused}");
        }
    }

    #[test]
    fn flags_stand_over_the_file() {
        let file = r#"
            data_dir = "/var/lib/stemma"
            admin_listen = "127.0.0.1:1"
            agent_listen = "127.0.0.1:2"
            names = ["stemma.example", "10.0.0.1"]
        "#;
        let config =
            load(file, args::Run { agent_listen: Some("127.0.0.1:0".into()), ..args::Run::default() }).unwrap();
        assert_eq!(config.data_dir, PathBuf::from("/var/lib/stemma"));
        assert_eq!(config.admin, AdminListen::Tls("127.0.0.1:1".parse().unwrap()));
        assert_eq!(config.agents, "127.0.0.1:0".parse().unwrap());
        assert_eq!(config.names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["stemma.example", "10.0.0.1"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_change() {
        for (file, sentence) in [
            ("", "no data directory: give --data-dir DIR, or data_dir in the file that --config names"),
            ("data_dirr = 'x'", "unknown field `data_dirr`, expected one of `data_dir`, `admin_listen`"),
            ("data_dir = 7", "invalid type: integer `7`, expected path string"),
            (
                "data_dir = 'x'\nadmin_listen = '10.1.2.3'",
                "admin_listen \"10.1.2.3\": invalid socket address; write HOST:PORT",
            ),
            (
                "data_dir = 'x'\nadmin_listen = 'http://192.0.2.1:80'",
                "admin_listen \"http://192.0.2.1:80\": plain HTTP is served on a loopback address alone: write http://127.0.0.1:PORT, \
                 or HOST:PORT for TLS",
            ),
            ("data_dir = 'x'\nnames = ['a b']", "names: \"a b\" is neither a DNS name"),
            (
                "data_dir = 'x'\nbackup_recipients = ['age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8', 'x']",
                "backup_recipients[1]: this is no recipient of age: write age1 and 58 letters and digits",
            ),
            (
                "data_dir = 'x'\nbackup_recipients = ['AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX']",
                "backup_recipients[0]: this is a secret key: give its public half",
            ),
            (
                "data_dir = 'x'\nhistory_keep = {days = 0}",
                "history_keep.days = 0: write a whole number from 1 to 36500",
            ),
            (
                "data_dir = 'x'\naudit_keep = {mebibytes = 1048577}",
                "audit_keep.mebibytes = 1048577: write a whole number from 1 to 1048576",
            ),
            (
                "data_dir = 'x'\nunnamed_files_mebibytes = 0",
                "unnamed_files_mebibytes = 0: write a whole number from 1 to 1048576",
            ),
            ("data_dir = 'x'\nmost_nodes = 0", "most_nodes = 0: write a whole number from 1 to 1000000"),
            (
                "data_dir = 'x'\naudit_keep = {revisions = 7}",
                "unknown field `revisions`, expected `days` or `mebibytes`",
            ),
        ] {
            let error = load(file, args::Run::default()).unwrap_err().to_string();
            assert!(error.contains(sentence), "{file:?}: {error}");
        }
    }

    #[test]
    fn x03_what_is_not_said_of_what_is_kept_has_its_default() {
        let config = load("data_dir = 'x'\nhistory_keep = {days = 30}", args::Run::default()).unwrap();
        assert_eq!(config.history_keep, HistoryKeep { days: 30, revisions: 100, mebibytes: 1024 });
        assert_eq!(config.audit_keep, AuditKeep { days: 400, mebibytes: 1024 });
        assert_eq!(config.unnamed_files_mebibytes, 1024);
        assert_eq!(config.most_nodes, 100_000);
    }

    #[test]
    fn s75_plain_http_beside_agents_on_a_real_address_is_refused() {
        let run = |agents: &str| {
            Config::load_with(
                &args::Run {
                    data_dir: Some("x".into()),
                    admin_listen: Some("http://127.0.0.1:0".into()),
                    agent_listen: Some(agents.into()),
                    ..args::Run::default()
                },
                &Handed::default(),
            )
        };
        assert_eq!(
            run("0.0.0.0:9444").unwrap_err().to_string(),
            "admin_listen http://127.0.0.1:0 is plain HTTP, and agent_listen 0.0.0.0:9444 is no loopback address: whoever is on this machine \
             would own a real fleet; refusing to start: give --admin-listen HOST:PORT (TLS), or --agent-listen 127.0.0.1:PORT to develop and test"
        );
        assert!(run("127.0.0.2:9444").is_ok());
    }

    #[test]
    fn w10_12_plain_http_with_a_configuration_file_is_refused() {
        let plain = || Some("http://127.0.0.1:0".to_owned());
        let in_file = "data_dir = 'x'\nagent_listen = '127.0.0.1:0'\nadmin_listen = 'http://127.0.0.1:0'";
        for (file, admin_listen) in [(in_file, None), ("data_dir = 'x'\nagent_listen = '127.0.0.1:0'", plain())] {
            assert_eq!(
                load(file, args::Run { admin_listen, ..args::Run::default() }).unwrap_err().to_string(),
                "admin_listen http://127.0.0.1:0 is plain HTTP, which is for development and tests; refusing to start with --config: give \
                 --admin-listen HOST:PORT (TLS), or --data-dir, --admin-listen and --agent-listen and no --config to develop and test"
            );
        }
        let tls = args::Run { admin_listen: Some("127.0.0.1:0".into()), ..args::Run::default() };
        assert!(load(in_file, tls).is_ok(), "the flag stands over the file");
    }

    #[test]
    fn the_manual_page_has_the_fields_that_are_read() {
        let known = load("nosuch = 1", args::Run::default()).unwrap_err().to_string();
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).skip(1).collect();
        assert_eq!(known, FIELDS.iter().map(|field| field.name).collect::<Vec<_>>());
    }

    #[test]
    fn a_socket_that_was_handed_over_says_where_a_listener_is() {
        let socket = || Some(TcpListener::bind("127.0.0.1:0").unwrap());
        let handed = Handed { admin: socket(), agents: socket(), root: None };
        let [admin, agents] = [&handed.admin, &handed.agents].map(|one| one.as_ref().unwrap().local_addr().unwrap());
        let run = || args::Run { data_dir: Some("x".into()), ..args::Run::default() };
        let config = Config::load_with(&run(), &handed).unwrap();
        assert_eq!((config.admin, config.agents), (AdminListen::Tls(admin), agents));
        let elsewhere = args::Run { agent_listen: Some("127.0.0.1:9444".into()), ..run() };
        assert_eq!(
            Config::load_with(&elsewhere, &handed).unwrap_err().to_string(),
            format!(
                "agent_listen \"127.0.0.1:9444\": the service manager has bound this listener already, at {agents}; take agent_listen out \
                 of the configuration, and give another address by `systemctl edit stemma-controller-agents.socket` (an empty ListenStream=, \
                 then the new one)"
            )
        );
    }

    #[test]
    fn a_listener_on_all_addresses_is_dialled_here() {
        let url = AdminListen::Plain("127.0.0.1:0".parse().unwrap()).url("127.0.0.1:80".parse().unwrap());
        assert_eq!(url.to_string(), "http://127.0.0.1:80");
        assert_eq!(Url::of_agents("[::]:9444".parse().unwrap()).to_string(), "https://[::1]:9444");
    }

    /// RFC 4291, section 2.5.5.2: an IPv4 address as IPv6 has it is that address.
    #[test]
    fn y04_an_ipv4_address_in_its_ipv6_form_is_shown_as_what_it_is() {
        for (bound, shown) in [
            ("[::ffff:0.0.0.0]:9443", "https://127.0.0.1:9443"),
            ("[::ffff:10.0.0.5]:9443", "https://10.0.0.5:9443"),
            ("0.0.0.0:9443", "https://127.0.0.1:9443"),
            ("[2001:db8::5]:9443", "https://[2001:db8::5]:9443"),
        ] {
            assert_eq!(Url::of_agents(bound.parse().unwrap()).to_string(), shown, "{bound}");
        }
        let plain =
            admin_listen("http://[::ffff:127.0.0.1]:9443").map(|listen| listen.url(listen.address()).to_string());
        assert_eq!(plain.ok().as_deref(), Some("http://127.0.0.1:9443"));
        assert!(admin_listen("http://[::ffff:10.0.0.5]:9443").is_err());
    }
}
