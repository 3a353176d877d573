//! Absolute paths, as in manifests, without components such as `..` that leave the directory.
//!
//! The function `check_path` of the crate `stemma_core` checks a path as text before any system call uses the path. A
//! symbolic link on the path can be detected only on the disk. The module `real` refuses it when it opens the path.
//! That module follows links only on the path of a command's working directory.

use std::fmt;

pub use stemma_core::task::PathRefused;
use stemma_core::task::check_path;

/// An absolute path of a file or directory on the host, for example `/etc/nginx/site.conf`. The path is relative to the
/// agent's `--root`, and is never `/` itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPath(String);

impl HostPath {
    /// Parses a path that is not part of the source code: from a task, the agent's configuration or a stored record.
    ///
    /// # Errors
    /// [`PathRefused`] if the text is not a plain absolute path, for example because it contains `..`.
    pub fn parse(text: &str) -> Result<Self, PathRefused> {
        check_path(text)?;
        Ok(Self(text.into()))
    }

    /// Creates the path of a file or directory that the agent itself uses from a text in the source code.
    ///
    /// # Panics
    /// If the text is not a plain absolute path, which is a bug in this program.
    #[must_use]
    pub fn from_static(text: &str) -> Self {
        Self::parse(text).expect("the agent's own paths are plain")
    }

    /// Returns the last component of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// Returns the directory that contains the path, or `None` if that directory is the root directory.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once('/').and_then(|(parent, _)| (!parent.is_empty()).then(|| Self(parent.into())))
    }

    /// Returns the path of `name` below this directory. A `name` with slashes is accepted too.
    ///
    /// # Errors
    /// [`PathRefused`] if the result is not a plain absolute path, for example because `name` is empty or `..`.
    pub fn join(&self, name: &str) -> Result<Self, PathRefused> {
        Self::parse(&format!("{}/{name}", self.0))
    }

    /// Returns the components of the path in order, the top directory first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0[1..].split('/')
    }

    /// Returns the path as text, with its leading slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_path_returns_name_and_parent() {
        for (text, parent, name) in [
            ("/etc/nginx/site.conf", Some("/etc/nginx"), "site.conf"),
            ("/motd", None, "motd"),
            ("/process/..x", Some("/process"), "..x"),
        ] {
            let path = HostPath::parse(text).unwrap();
            assert_eq!((path.parent().as_ref().map(HostPath::as_str), path.name()), (parent, name), "{text}");
        }
    }
}
