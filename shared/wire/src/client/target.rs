//! The address of a controller as users write it: `https://HOST:PORT`, or `unix:PATH`.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::pki_types::ServerName;

use crate::error::quote;

/// The address of a controller: `https://HOST:PORT`, `http://LOOPBACK_ADDRESS:PORT`, or `unix:PATH`. Root on the
/// controller's machine uses the last form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// True if the connection uses TLS.
    pub is_tls: bool,
    /// The DNS name or IP address of the controller, without brackets. `localhost` for a Unix socket.
    pub host: String,
    /// The TCP port, or 0 for a Unix socket.
    pub port: u16,
    /// The path of the Unix socket. `None` if the controller is reached over TCP.
    pub socket: Option<PathBuf>,
}

/// The error for a text that is not the address of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    /// The text begins with `unix:`, and no absolute path follows.
    #[error("{0} is not the socket of a controller: write unix:/PATH, with the whole path")]
    Socket(String),
    /// The text does not begin with `https://`, `http://` or `unix:`.
    #[error("{0} is not the address of a controller: write https://HOST:PORT")]
    Scheme(String),
    /// The text after `https://` or `http://` is neither a host nor a host with a port. For example, there is no host,
    /// there is a path after the host, or the port is not a number up to 65535.
    #[error("{0} is not the address of a controller: write https://, then HOST:PORT and nothing else")]
    Authority(String),
    /// The host is an IPv6 address without brackets, so it is unclear where the port begins. The second text is the
    /// address with brackets, and with the word `PORT` if the port is unclear.
    #[error("{0} is not the address of a controller: an IPv6 address is written in brackets, as {1}")]
    Brackets(String, String),
    /// The text is an `http://` address of another machine. Tokens would be sent there without encryption.
    #[error(
        "{0} is plain HTTP to another machine: only a loopback address (127.0.0.1, [::1], localhost) can be used without TLS"
    )]
    PlainRemote(String),
}

impl Target {
    /// Returns `HOST:PORT` for the header `Host`, with an IPv6 address in brackets. For a Unix socket, returns only the
    /// host.
    pub fn authority(&self) -> String {
        if self.socket.is_some() {
            self.host.clone()
        } else if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns whether the host is `localhost` or a loopback address.
    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(path) => write!(f, "unix:{}", path.display()),
            None => write!(f, "{}://{}", if self.is_tls { "https" } else { "http" }, self.authority()),
        }
    }
}

impl std::str::FromStr for Target {
    type Err = InvalidTarget;

    /// Parses an address as a user writes it. For `https` and `http`, a trailing slash is ignored, and a missing port
    /// is 443 or 80. Fails if the text is not an address, or is an `http` address of another machine.
    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        if let Some(path) = text.strip_prefix("unix:").map(Path::new) {
            let socket = Some(path.to_owned()).filter(|path| path.is_absolute());
            let socket = Some(socket.ok_or_else(|| InvalidTarget::Socket(quote(text)))?);
            return Ok(Self { is_tls: false, host: "localhost".to_owned(), port: 0, socket });
        }
        let (is_tls, address) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(address), _) => (true, address),
            (None, Some(address)) => (false, address),
            (None, None) => return Err(InvalidTarget::Scheme(quote(text))),
        };
        let scheme = &text[..text.len() - address.len()];
        let error = || match bracketed_authority(address) {
            Some(authority) => InvalidTarget::Brackets(quote(text), format!("{scheme}{authority}")),
            None => InvalidTarget::Authority(quote(text)),
        };
        let (host, port) = split_authority(address.strip_suffix('/').unwrap_or(address)).ok_or_else(error)?;
        let port = match port {
            Some(port) => port.parse().map_err(|_| error())?,
            None if is_tls => 443,
            None => 80,
        };
        let target = Self { is_tls, host: host.to_owned(), port, socket: None };
        if !is_tls && !target.is_loopback() {
            return Err(InvalidTarget::PlainRemote(quote(text)));
        }
        Ok(target)
    }
}

/// Adds brackets to an IPv6 address that a user wrote without them, for the advice in an error. If the text before the
/// last colon is a whole address, the number after this colon is the port. Otherwise the returned port is the word
/// `PORT`. Returns `None` if the text is not an IPv6 address, with or without a port.
fn bracketed_authority(text: &str) -> Option<String> {
    let text = text.trim_end_matches('/');
    let is_address = |text: &str| text.parse::<std::net::Ipv6Addr>().is_ok();
    let host_and_port = text.rsplit_once(':').filter(|(host, port)| is_address(host) && port.parse::<u16>().is_ok());
    match host_and_port {
        Some((host, port)) => Some(format!("[{host}]:{port}")),
        None => is_address(text).then(|| format!("[{text}]:PORT")),
    }
}

/// Splits `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT` into the host without brackets and the optional port, which is
/// not checked. Returns `None` for another form, or if the host is neither a DNS name nor an IP address.
fn split_authority(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(after_bracket) = text.strip_prefix('[') {
        let (host, after_bracket) = after_bracket.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match after_bracket {
            "" => Some((host, None)),
            after_bracket => Some((host, Some(after_bracket.strip_prefix(':')?))),
        };
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    ServerName::try_from(host).ok()?;
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_parses_and_displays_each_form() {
        for (text, is_tls, host, port, displayed) in [
            ("https://ctl.example:8443", true, "ctl.example", 8443, "https://ctl.example:8443"),
            ("https://ctl.example/", true, "ctl.example", 443, "https://ctl.example:443"),
            ("https://[fd00::1]:1", true, "fd00::1", 1, "https://[fd00::1]:1"),
            ("http://127.0.0.1:8080", false, "127.0.0.1", 8080, "http://127.0.0.1:8080"),
            ("http://localhost", false, "localhost", 80, "http://localhost:80"),
            ("http://[::1]:9", false, "::1", 9, "http://[::1]:9"),
        ] {
            let target: Target = text.parse().expect("a good address");
            assert_eq!(target, Target { is_tls, host: host.to_owned(), port, socket: None });
            assert_eq!(target.to_string(), displayed);
        }
        let target: Target = "unix:/var/lib/stemma-controller/admin.sock".parse().expect("a good address");
        assert_eq!(target.to_string(), "unix:/var/lib/stemma-controller/admin.sock");
        assert_eq!(target.authority(), "localhost");
    }

    #[test]
    fn target_parse_explains_error_when_address_is_refused() {
        for (text, message_part) in [
            ("ctl.example:8443", "write https://HOST:PORT"),
            ("ftp://x", "write https://HOST:PORT"),
            ("unix:admin.sock", "with the whole path"),
            ("https://", "HOST:PORT and nothing else"),
            ("https://a:b", "HOST:PORT and nothing else"),
            ("https://a:70000", "HOST:PORT and nothing else"),
            ("https://a/v1", "HOST:PORT and nothing else"),
            ("https://u:p@a", "HOST:PORT and nothing else"),
            ("https://a b", "HOST:PORT and nothing else"),
            ("https://::1:9443", "is written in brackets, as https://[::1]:9443"),
            ("http://fd00::1:2:8080/", "is written in brackets, as http://[fd00::1:2]:8080"),
            ("https://::1", "is written in brackets, as https://[::1]:PORT"),
            ("https://fe80::abcd", "is written in brackets, as https://[fe80::abcd]:PORT"),
            ("https://[::1", "HOST:PORT and nothing else"),
            ("http://ctl.example:80", "plain HTTP to another machine"),
            ("http://192.0.2.1", "plain HTTP to another machine"),
        ] {
            let error = text.parse::<Target>().expect_err(text);
            assert!(error.to_string().contains(message_part), "{text}: {error}");
        }
    }

    #[test]
    fn target_error_truncates_long_text() {
        let error = format!("spiffe://{}", "\u{16}".repeat(10_000)).parse::<Target>().expect_err("no address").to_string();
        assert!(error.starts_with("'spiffe://") && error.len() < 1_000, "{} bytes", error.len());
    }
}
