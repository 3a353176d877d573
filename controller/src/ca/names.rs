//! The DNS names and IP addresses in the controller's server certificate, at which clients reach the controller.

use std::net::IpAddr;
use std::str::FromStr;

/// A DNS name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum ServerName {
    /// A host name in lower case, without a trailing dot.
    Dns(String),
    /// An IP address.
    Ip(IpAddr),
}

/// The error for a text that is neither a DNS name nor an IP address. It contains the first 64 characters of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a DNS name (letters, digits, '-', '.', at most 253 characters, no '*') nor an IP address")]
pub struct BadServerName(String);

impl FromStr for ServerName {
    type Err = BadServerName;

    /// Parses an IP address or a DNS name. An address may be in brackets, and a name may end with a dot.
    fn from_str(text: &str) -> Result<Self, BadServerName> {
        let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = unbracketed.parse() {
            return Ok(Self::Ip(address));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // If the last label of a name has only digits, the text is a mistyped address, such as `10.0.0.256`. So the
        // text is refused.
        let ends_with_number = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if name.len() > 253 || ends_with_number || !name.split('.').all(is_label) {
            return Err(BadServerName(text.chars().take(64).collect()));
        }
        Ok(Self::Dns(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_parses_only_dns_names_and_addresses() {
        for (text, expected) in [
            ("stemma.example.net", Some("stemma.example.net")),
            ("Stemma.Example.", Some("stemma.example")),
            ("localhost", Some("localhost")),
            ("10.0.0.1", Some("10.0.0.1")),
            ("[::1]", Some("::1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("10.0.0.256", None),
            ("*.example", None),
            ("a..b", None),
            ("", None),
            ("-a.example", None),
            ("a_b", None),
            ("https://a", None),
            ("a:8443", None),
        ] {
            assert_eq!(text.parse::<ServerName>().ok().map(|name| name.to_string()).as_deref(), expected, "{text:?}");
        }
    }
}
