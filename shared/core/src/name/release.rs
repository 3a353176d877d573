//! References to a release: `site@2026.11`, or `site` for one without a version.

use super::{
    InvalidName, MAX_NAME_BYTES, NAME_RULE, Name, checked_text, has_valid_bytes, is_name_byte, is_valid_name, malformed_error,
    written_as_text,
};
use std::fmt;
use std::str::FromStr;

const VERSION_RULE: &str = "a letter or digit, then up to 62 letters, digits, '_', '.', '+' or '-'";

/// A reference to a release: `site@2026.11`, or `site` for a release without a version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Debug)]
#[debug("{:?}", self.to_string())]
pub struct ReleaseRef {
    /// Name of the release.
    pub name: Name,
    /// Version of the release, or `None` if the release has none.
    pub version: Option<Version>,
}

checked_text! {
    /// The version of a release: text of the form `[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}`, compared as text.
    Version: InvalidName;
}

impl Version {
    /// Parses a version.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let is_other_byte = |byte: u8| is_name_byte(byte) || byte == b'+';
        if has_valid_bytes(text, MAX_NAME_BYTES, |byte| byte.is_ascii_alphanumeric(), is_other_byte) {
            Ok(Self(text.into()))
        } else {
            Err(malformed_error("version", text, VERSION_RULE))
        }
    }
}

impl ReleaseRef {
    /// Parses `NAME` or `NAME@VERSION`.
    ///
    /// # Errors
    /// [`InvalidName`] for the first invalid part.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
        let name = if is_valid_name(name) {
            Name(name.into())
        } else {
            return Err(malformed_error("release", name, NAME_RULE));
        };
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
