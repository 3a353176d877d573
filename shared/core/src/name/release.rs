//! How a release is named: `site@2026.11`, or `site` for one without a version.

use super::{
    InvalidName, MAX_NAME, NAME_RULE, Name, checked_text, is_name, is_name_byte, is_word, malformed, written_as_text,
};
use std::fmt;
use std::str::FromStr;

const VERSION_RULE: &str = "a letter or digit, then up to 62 letters, digits, '_', '.', '+' or '-'";

/// A release as others name it: `site@2026.11`, or `site` for one without a version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Debug)]
#[debug("{:?}", self.to_string())]
pub struct ReleaseRef {
    /// The release's name.
    pub name: Name,
    /// Its version; `None` for a release without one.
    pub version: Option<Version>,
}

checked_text! {
    /// The version of a release: text of `[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}`, compared as text.
    Version: InvalidName;
}

impl Version {
    /// Reads a version.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let rest = |byte: u8| is_name_byte(byte) || byte == b'+';
        if is_word(text, MAX_NAME, |byte| byte.is_ascii_alphanumeric(), rest) {
            Ok(Self(text.into()))
        } else {
            Err(malformed("version", text, VERSION_RULE))
        }
    }
}

impl ReleaseRef {
    /// Reads `NAME` or `NAME@VERSION`.
    ///
    /// # Errors
    /// [`InvalidName`] of the part that is wrong.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
        let name = if is_name(name) { Name(name.into()) } else { return Err(malformed("release", name, NAME_RULE)) };
        Ok(Self { name, version: version.map(Version::new).transpose()? })
    }
}

impl fmt::Display for ReleaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            None => f.write_str(&self.name),
            Some(version) => write!(f, "{}@{version}", self.name),
        }
    }
}

impl FromStr for ReleaseRef {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

written_as_text!(ReleaseRef);
