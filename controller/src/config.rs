//! The configuration of `run`: a TOML file, flags over it, and what cannot go together refused before anything is bound.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use stemma_wire::config;

use crate::args;
use crate::ca::{BadServerName, ServerName};

/// Why there is no configuration to run with. Each says what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read, others may write it (S71), or it does not say what it should.
    #[error(transparent)]
    File(#[from] config::ConfigError),
    /// Nothing says where the data is.
    #[error("no data directory: give --data-dir DIR, or data_dir in the file that --config names")]
    NoDataDir,
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
    /// Names in the server certificate beside those that `init` was given.
    pub names: Vec<ServerName>,
    /// Names of traits that are taken for standard ones beside os-traits' own.
    pub extra_standard_traits: Vec<String>,
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
}

/// Where operators are served unless said otherwise.
const ADMIN_DEFAULT: &str = "[::]:9443";
/// Where agents are served unless said otherwise.
const AGENTS_DEFAULT: &str = "[::]:9444";

impl Config {
    /// Reads the file that the flags name, if any, and puts the flags over it.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(run: &args::Run) -> Result<Self, ConfigError> {
        let written = run.config.as_deref().map(config::load::<Written>).transpose()?.unwrap_or_default();
        let admin = run.admin_listen.clone().or(written.admin_listen).unwrap_or_else(|| ADMIN_DEFAULT.to_owned());
        let agents = run.agent_listen.clone().or(written.agent_listen).unwrap_or_else(|| AGENTS_DEFAULT.to_owned());
        let config = Self {
            data_dir: run.data_dir.clone().or(written.data_dir).ok_or(ConfigError::NoDataDir)?,
            admin: admin_listen(&admin)?,
            agents: address("agent_listen", &agents, &agents)?,
            names: written.names.iter().map(|name| ServerName::from_str(name)).collect::<Result<_, _>>()?,
            extra_standard_traits: written.extra_standard_traits,
        };
        let is_plain = matches!(config.admin, AdminListen::Plain(_));
        if is_plain && run.config.is_some() {
            return Err(ConfigError::PlainBesideFile { admin });
        }
        if is_plain && !config.agents.ip().is_loopback() {
            return Err(ConfigError::PlainBesideRealAgents { admin, agents: config.agents });
        }
        Ok(config)
    }
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
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            ip => ip,
        };
        write!(f, "{}://{}", self.scheme, SocketAddr::new(ip, self.address.port()))
    }
}

fn admin_listen(text: &str) -> Result<AdminListen, ConfigError> {
    let refused =
        |why: &str| ConfigError::Listen { field: "admin_listen", value: text.to_owned(), why: why.to_owned() };
    if let Some(rest) = text.strip_prefix("http://") {
        let address = address("admin_listen", text, rest.strip_suffix('/').unwrap_or(rest))?;
        if !address.ip().is_loopback() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, flags: args::Run) -> Result<Config, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("controller.toml");
        std::fs::write(&path, file).unwrap();
        Config::load(&args::Run { config: Some(path), ..flags })
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
        ] {
            let error = load(file, args::Run::default()).unwrap_err().to_string();
            assert!(error.contains(sentence), "{file:?}: {error}");
        }
    }

    #[test]
    fn s75_plain_http_beside_agents_on_a_real_address_is_refused() {
        let run = |agents: &str| {
            Config::load(&args::Run {
                data_dir: Some("x".into()),
                admin_listen: Some("http://127.0.0.1:0".into()),
                agent_listen: Some(agents.into()),
                config: None,
            })
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
    fn a_listener_on_all_addresses_is_dialled_here() {
        let url = AdminListen::Plain("127.0.0.1:0".parse().unwrap()).url("127.0.0.1:80".parse().unwrap());
        assert_eq!(url.to_string(), "http://127.0.0.1:80");
        assert_eq!(Url::of_agents("[::]:9444".parse().unwrap()).to_string(), "https://127.0.0.1:9444");
    }
}
