//! Paths as manifests write them, with nothing in them that could lead elsewhere.
//!
//! A path is judged as text before any system call sees it, by core's rules. What only the disk can show (a symbolic link in the
//! way) is refused at the open, in `real`.

use std::fmt;

pub use stemma_core::task::PathRefused;
use stemma_core::task::check_path;

/// An absolute path on the host, below the agent's `--root`: `/etc/nginx/site.conf`. Never `/` itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPath(String);

impl HostPath {
    /// Reads a path that an author wrote.
    ///
    /// # Errors
    /// [`PathRefused`] for anything but a plain absolute path (S63).
    pub fn parse(text: &str) -> Result<Self, PathRefused> {
        check_path(text)?;
        Ok(Self(text.into()))
    }

    /// A path of the agent's own, known when this is compiled.
    ///
    /// # Panics
    /// When the text is no plain absolute path: a mistake in this program.
    #[must_use]
    pub fn own(text: &str) -> Self {
        Self::parse(text).expect("the agent's own paths are plain")
    }

    /// The name in the last place.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// The directory that it lies in; `None` for one directly below the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once('/').and_then(|(parent, _)| (!parent.is_empty()).then(|| Self(parent.into())))
    }

    /// A name below this one.
    ///
    /// # Errors
    /// [`PathRefused`] when the name is none.
    pub fn join(&self, name: &str) -> Result<Self, PathRefused> {
        Self::parse(&format!("{}/{name}", self.0))
    }

    /// The names from the root on.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0[1..].split('/')
    }

    /// The text, with its leading slash.
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
    fn a_plain_path_has_a_name_and_a_parent() {
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
