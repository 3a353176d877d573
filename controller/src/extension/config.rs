//! Configuration of an extension: a table `[[extension]]` with a name and one address.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use stemma_core::name::Name;
use stemma_wire::client::Target;
use stemma_wire::net::Connector;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The directory of the sockets that systemd creates for `stemma-extension@NAME.socket`.
const SOCKET_DIRECTORY: &str = "/run/stemma-extensions";
/// Default time for the answer of an extension, in seconds. Shorter than the time for which a client waits for its
/// write.
const DEFAULT_TIMEOUT_S: u64 = 5;
/// Maximum configurable time for the answer of an extension, in seconds. Shorter than the time for which a client waits
/// for its write.
const MAX_TIMEOUT_S: u64 = 10;

/// A configured extension: a program of the site that decides which tags a role gives to a node.
#[derive(Clone, Debug)]
pub struct ExtensionConfig {
    /// The name by which releases refer to the extension.
    pub name: String,
    /// The address of the extension.
    pub address: ExtensionAddress,
    /// Maximum time for an answer.
    pub timeout: Duration,
}

/// The address of an extension.
#[derive(Clone, Debug)]
pub enum ExtensionAddress {
    /// A Unix socket.
    Socket(PathBuf),
    /// An HTTP hook, given by its URL.
    Hook {
        /// The host and port of the URL.
        target: Target,
        /// The path of the URL.
        path: String,
        /// The TLS configuration with the authorities that may certify the server; `None` if the URL is not https.
        tls: Option<Arc<ClientConfig>>,
    },
}

/// An `[[extension]]` table of the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionTable {
    name: String,
    unix: Option<PathBuf>,
    #[serde(default)]
    unit: bool,
    url: Option<String>,
    ca: Option<PathBuf>,
    timeout_seconds: Option<u64>,
}

/// The error for an invalid extension table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("extension {name:?}: {why}")]
pub struct BadExtension {
    name: String,
    why: String,
}

impl PartialEq for ExtensionConfig {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.timeout, self.address.to_string()) == (&other.name, other.timeout, other.address.to_string())
    }
}

impl Eq for ExtensionConfig {}

impl fmt::Display for ExtensionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Hook { target, path, .. } => write!(f, "{target}{path}"),
        }
    }
}

impl ExtensionTable {
    /// Converts the tables of the configuration file. Fails if a table is invalid, or if two tables have the same name.
    ///
    /// # Errors
    /// [`BadExtension`].
    pub fn read(tables: Vec<Self>) -> Result<Vec<ExtensionConfig>, BadExtension> {
        let mut declared: Vec<ExtensionConfig> = Vec::with_capacity(tables.len());
        for table in tables {
            let invalid = |why: &str| BadExtension { name: table.name.clone(), why: why.to_owned() };
            if declared.iter().any(|extension| extension.name == table.name) {
                return Err(invalid("it is declared twice"));
            }
            Name::new(&table.name).map_err(|error| invalid(&error.to_string()))?;
            let timeout = table.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_S);
            if !(1..=MAX_TIMEOUT_S).contains(&timeout) {
                return Err(invalid(&format!("timeout_seconds is from 1 to {MAX_TIMEOUT_S}")));
            }
            let address = table.address().map_err(|why| invalid(&why))?;
            declared.push(ExtensionConfig { name: table.name, address, timeout: Duration::from_secs(timeout) });
        }
        Ok(declared)
    }

    /// Returns the address of the extension. Fails unless exactly one of `unix`, `unit` and `url` is set and valid.
    fn address(&self) -> Result<ExtensionAddress, String> {
        match (&self.unix, self.unit, &self.url) {
            (Some(path), false, None) if path.is_absolute() => Ok(ExtensionAddress::Socket(path.clone())),
            (Some(_), false, None) => Err("unix must be the absolute path of a socket".to_owned()),
            (None, true, None) => Ok(ExtensionAddress::Socket(PathBuf::from(format!("{SOCKET_DIRECTORY}/{}.sock", self.name)))),
            (None, false, Some(url)) => self.parse_hook(url),
            _ => Err("set exactly one of unix, unit and url: unix = PATH, unit = true, or url = \"https://…\"".to_owned()),
        }
    }

    /// Parses the URL of an HTTP hook. If the URL is https, loads the certificates of the authorities from the file
    /// `ca`.
    fn parse_hook(&self, url: &str) -> Result<ExtensionAddress, String> {
        if url.starts_with("unix:") {
            return Err("url is https://HOST[:PORT][/PATH]; a socket is given as unix = PATH".to_owned());
        }
        // The authority is the part before the first slash after the scheme: the scheme, the host and the port.
        let scheme_end = url.find("://").map_or(0, |index| index + 3);
        let (authority, path) = url.split_at(url[scheme_end..].find('/').map_or(url.len(), |index| scheme_end + index));
        let path = if path.is_empty() { "/" } else { path };
        let target: Target = authority.parse().map_err(|error| format!("url: {error}"))?;
        if path.parse::<hyper::Uri>().is_err() {
            return Err(format!("url: {path:?} is not a path"));
        }
        let tls = match (target.is_tls, &self.ca) {
            (true, Some(ca)) => Some(tls_config(ca)?),
            (true, None) => {
                return Err("a url with https needs ca = PATH, the certificates of the trusted authorities".to_owned());
            }
            (false, Some(_)) => return Err("ca is for a url with https".to_owned()),
            (false, None) => None,
        };
        Ok(ExtensionAddress::Hook { target, path: path.to_owned(), tls })
    }
}

/// Returns a TLS configuration that trusts only the certificates in the file `ca`.
fn tls_config(ca: &std::path::Path) -> Result<Arc<ClientConfig>, String> {
    let error_text = |error: &dyn fmt::Display| format!("ca {}: {error}", ca.display());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|error| error_text(&error))?;
    for certificate in certificates {
        roots.add(certificate.map_err(|error| error_text(&error))?).map_err(|error| error_text(&error))?;
    }
    if roots.is_empty() {
        return Err(error_text(&"there is no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error_text(&error))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// A connector that uses TLS with a server outside the fleet. The server is verified by its host name and a configured
/// authority, and not by an identity of the fleet.
pub(super) struct PublicTls(pub(super) Arc<ClientConfig>);

impl Connector for PublicTls {
    type Stream = TlsStream<TcpStream>;

    /// Connects to a server, and verifies its certificate for `host`.
    async fn connect(&self, host: &str, port: u16) -> io::Result<Self::Stream> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TcpStream::connect((host, port)).await?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the extension tables of a configuration file with this content.
    fn read(text: &str) -> Result<Vec<ExtensionConfig>, String> {
        #[derive(Deserialize)]
        struct ExtensionsFile {
            extension: Vec<ExtensionTable>,
        }
        let file: ExtensionsFile = toml::from_str(text).map_err(|error| error.to_string())?;
        ExtensionTable::read(file.extension).map_err(|error| error.to_string())
    }

    /// Each case has the lines of the table of extension `p`, and its address or a part of the error.
    #[test]
    fn extension_table_read_returns_address_or_error() {
        for (file, expected) in [
            ("unix = '/run/x.sock'", Ok("unix:/run/x.sock")),
            ("unit = true", Ok("unix:/run/stemma-extensions/p.sock")),
            ("url = 'http://127.0.0.1:8080/tags?x=1'", Ok("http://127.0.0.1:8080/tags?x=1")),
            ("url = 'http://localhost'", Ok("http://localhost:80/")),
            ("unix = 'x.sock'", Err("unix must be the absolute path")),
            ("unit = true\nunix = '/x'", Err("set exactly one of unix, unit and url")),
            ("", Err("set exactly one of unix, unit and url")),
            ("url = 'http://192.0.2.1/'", Err("plain HTTP to another machine")),
            ("url = 'https://hooks.example/'", Err("needs ca = PATH")),
            ("url = 'unix:/x'", Err("a socket is given as unix = PATH")),
            ("unit = true\ntimeout_seconds = 11", Err("from 1 to 10")),
            ("unit = true\ntimeout_seconds = 0", Err("from 1 to 10")),
            ("unit = true\ncommand = 'x'", Err("unknown field `command`")),
        ] {
            let read = read(&format!("[[extension]]\nname = 'p'\n{file}"));
            match (read, expected) {
                (Ok(declared), Ok(expected_address)) => assert_eq!(declared[0].address.to_string(), expected_address),
                (Err(error), Err(expected_text)) => assert!(error.contains(expected_text), "{file}: {error}"),
                (read, expected) => panic!("{file}: {read:?}, expected {expected:?}"),
            }
        }
        let duplicate_result = read("[[extension]]\nname = 'p'\nunit = true\n[[extension]]\nname = 'p'\nunit = true");
        assert!(duplicate_result.is_err_and(|error| error.contains("declared twice")));
        let result = read("[[extension]]\nname = 'a/b'\nunit = true");
        assert!(result.is_err(), "{result:?}");
    }
}
