//! What the configuration says of an extension: `[[extension]]` with a name and one way to reach it.

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
use stemma_wire::net::Connect;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where the sockets of `stemma-extension@NAME.socket` stand.
const SOCKETS: &str = "/run/stemma-extensions";
/// How long an answer may take, unless said, and at the most: less than who writes waits.
const TIMEOUT_S: u64 = 5;
const LONGEST_TIMEOUT_S: u64 = 10;

/// An extension, as it is reached.
#[derive(Clone, Debug)]
pub struct Declared {
    /// The name by which releases use it.
    pub name: String,
    /// How it is reached.
    pub via: Via,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// How an extension is reached.
#[derive(Clone, Debug)]
pub enum Via {
    /// At a socket of the file system.
    Socket(PathBuf),
    /// At a URL.
    Hook {
        /// Host and port.
        target: Target,
        /// The path there.
        path: String,
        /// What a server must show, where TLS is spoken.
        tls: Option<Arc<ClientConfig>>,
    },
}

/// The table, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenExtension {
    name: String,
    unix: Option<PathBuf>,
    #[serde(default)]
    unit: bool,
    url: Option<String>,
    ca: Option<PathBuf>,
    timeout_seconds: Option<u64>,
}

/// A table that declares no extension.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("extension {name:?}: {why}")]
pub struct BadExtension {
    name: String,
    why: String,
}

impl PartialEq for Declared {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.timeout, self.via.to_string()) == (&other.name, other.timeout, other.via.to_string())
    }
}

impl Eq for Declared {}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Hook { target, path, .. } => write!(f, "{target}{path}"),
        }
    }
}

impl WrittenExtension {
    /// Reads the tables; each name stands once.
    ///
    /// # Errors
    /// [`BadExtension`].
    pub fn read(all: Vec<Self>) -> Result<Vec<Declared>, BadExtension> {
        let mut declared: Vec<Declared> = Vec::with_capacity(all.len());
        for written in all {
            let refused = |why: &str| BadExtension { name: written.name.clone(), why: why.to_owned() };
            if declared.iter().any(|one| one.name == written.name) {
                return Err(refused("it is declared twice"));
            }
            Name::new(&written.name).map_err(|error| refused(&error.to_string()))?;
            let timeout = written.timeout_seconds.unwrap_or(TIMEOUT_S);
            if !(1..=LONGEST_TIMEOUT_S).contains(&timeout) {
                return Err(refused(&format!("timeout_seconds is from 1 to {LONGEST_TIMEOUT_S}")));
            }
            let via = written.via().map_err(|why| refused(&why))?;
            declared.push(Declared { name: written.name, via, timeout: Duration::from_secs(timeout) });
        }
        Ok(declared)
    }

    fn via(&self) -> Result<Via, String> {
        match (&self.unix, self.unit, &self.url) {
            (Some(path), false, None) if path.is_absolute() => Ok(Via::Socket(path.clone())),
            (Some(_), false, None) => Err("unix is the whole path of a socket, from / on".to_owned()),
            (None, true, None) => Ok(Via::Socket(PathBuf::from(format!("{SOCKETS}/{}.sock", self.name)))),
            (None, false, Some(url)) => self.hook(url),
            _ => Err("it has one of unix, unit and url: unix = PATH, unit = true, or url = \"https://…\"".to_owned()),
        }
    }

    fn hook(&self, url: &str) -> Result<Via, String> {
        if url.starts_with("unix:") {
            return Err("url is https://HOST[:PORT][/PATH]; a socket is given as unix = PATH".to_owned());
        }
        let scheme = url.find("://").map_or(0, |at| at + 3);
        let (authority, path) = url.split_at(url[scheme..].find('/').map_or(url.len(), |at| scheme + at));
        let path = if path.is_empty() { "/" } else { path };
        let target: Target = authority.parse().map_err(|error| format!("url: {error}"))?;
        if path.parse::<hyper::Uri>().is_err() {
            return Err(format!("url: {path:?} is no path"));
        }
        let tls = match (target.tls, &self.ca) {
            (true, Some(ca)) => Some(trusting(ca)?),
            (true, None) => return Err("a url with https wants ca = PATH: whose certificates are trusted".to_owned()),
            (false, Some(_)) => return Err("ca is for a url with https".to_owned()),
            (false, None) => None,
        };
        Ok(Via::Hook { target, path: path.to_owned(), tls })
    }
}

fn trusting(ca: &std::path::Path) -> Result<Arc<ClientConfig>, String> {
    let said = |error: &dyn fmt::Display| format!("ca {}: {error}", ca.display());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|error| said(&error))?;
    for certificate in certificates {
        roots.add(certificate.map_err(|error| said(&error))?).map_err(|error| said(&error))?;
    }
    if roots.is_empty() {
        return Err(said(&"there is no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| said(&error))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// TLS as others speak it: by names and authorities, and none of a fleet's own identities.
pub(super) struct Tls(pub(super) Arc<ClientConfig>);

impl Connect for Tls {
    type Stream = TlsStream<TcpStream>;

    async fn connect(&self, host: &str, port: u16) -> io::Result<Self::Stream> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TcpStream::connect((host, port)).await?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Declared>, String> {
        #[derive(Deserialize)]
        struct File {
            extension: Vec<WrittenExtension>,
        }
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        WrittenExtension::read(file.extension).map_err(|error| error.to_string())
    }

    #[test]
    fn an_extension_is_reached_in_one_way() {
        for (file, expected) in [
            ("unix = '/run/x.sock'", Ok("unix:/run/x.sock")),
            ("unit = true", Ok("unix:/run/stemma-extensions/p.sock")),
            ("url = 'http://127.0.0.1:8080/tags?x=1'", Ok("http://127.0.0.1:8080/tags?x=1")),
            ("url = 'http://localhost'", Ok("http://localhost:80/")),
            ("unix = 'x.sock'", Err("unix is the whole path")),
            ("unit = true\nunix = '/x'", Err("it has one of unix, unit and url")),
            ("", Err("it has one of unix, unit and url")),
            ("url = 'http://192.0.2.1/'", Err("plain HTTP to another machine")),
            ("url = 'https://hooks.example/'", Err("wants ca = PATH")),
            ("url = 'unix:/x'", Err("a socket is given as unix = PATH")),
            ("unit = true\ntimeout_seconds = 11", Err("from 1 to 10")),
            ("unit = true\ntimeout_seconds = 0", Err("from 1 to 10")),
            ("unit = true\ncommand = 'x'", Err("unknown field `command`")),
        ] {
            let read = read(&format!("[[extension]]\nname = 'p'\n{file}"));
            match (read, expected) {
                (Ok(declared), Ok(via)) => assert_eq!(declared[0].via.to_string(), via),
                (Err(refusal), Err(why)) => assert!(refusal.contains(why), "{file}: {refusal}"),
                (read, expected) => panic!("{file}: {read:?}, expected {expected:?}"),
            }
        }
        let twice = read("[[extension]]\nname = 'p'\nunit = true\n[[extension]]\nname = 'p'\nunit = true");
        assert!(twice.is_err_and(|refusal| refusal.contains("declared twice")));
        let bad = read("[[extension]]\nname = 'a/b'\nunit = true");
        assert!(bad.is_err(), "{bad:?}");
    }
}
