//! Paths as manifests write them, with nothing in them that could lead elsewhere.
//!
//! A path is judged as text before any system call sees it: what is refused here never depends on the state
//! of a disk. What only the disk can show (a symbolic link in the way) is refused at the open, in `real`.

use std::fmt;

/// The longest path, as the kernel's `PATH_MAX` without its NUL.
const LONGEST: usize = 4095;

/// The longest name in a directory, as `NAME_MAX`.
const LONGEST_NAME: usize = 255;

/// Trees of the kernel: nothing there can be written to a temporary file and renamed.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// An absolute path on the host, below the agent's `--root`: `/etc/nginx/site.conf`. Never `/` itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPath(String);

/// Why a text is no path that the agent would touch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathRefused {
    /// It does not begin with a slash.
    #[error("path {0:?} is relative; write it from `/` on")]
    Relative(String),
    /// It names the root, or ends with a slash.
    #[error("path {0:?} names no file: it ends with a slash")]
    TrailingSlash(String),
    /// `.`, `..` or nothing stands between two slashes.
    #[error("path {path:?} has {part:?} in it; write the plain path")]
    Detour {
        /// The whole path.
        path: String,
        /// What stands between two slashes.
        part: String,
    },
    /// It holds NUL or another control character.
    #[error("path {0:?} holds a control character")]
    Control(String),
    /// It, or a name in it, is longer than Linux allows.
    #[error("path of {length} bytes: at most {LONGEST} in all and {LONGEST_NAME} a name are allowed")]
    Long {
        /// Bytes of the whole path.
        length: usize,
    },
    /// It lies in a tree of the kernel.
    #[error("path {0:?} lies in a tree of the kernel, where no file can be replaced; use a shell task")]
    Kernel(String),
}

impl HostPath {
    /// Reads a path that an author wrote.
    ///
    /// # Errors
    /// [`PathRefused`] for anything but a plain absolute path of a file outside the kernel's trees (S63).
    pub fn parse(text: &str) -> Result<Self, PathRefused> {
        if text.chars().any(char::is_control) {
            return Err(PathRefused::Control(text.into()));
        }
        let Some(rest) = text.strip_prefix('/') else { return Err(PathRefused::Relative(text.into())) };
        if rest.is_empty() || rest.ends_with('/') {
            return Err(PathRefused::TrailingSlash(text.into()));
        }
        if let Some(part) = rest.split('/').find(|part| matches!(*part, "" | "." | "..")) {
            return Err(PathRefused::Detour { path: text.into(), part: part.into() });
        }
        if text.len() > LONGEST || rest.split('/').any(|part| part.len() > LONGEST_NAME) {
            return Err(PathRefused::Long { length: text.len() });
        }
        if KERNEL_TREES
            .iter()
            .any(|tree| text.strip_prefix(tree).is_some_and(|rest| rest.starts_with('/') || rest.is_empty()))
        {
            return Err(PathRefused::Kernel(text.into()));
        }
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
    fn s63_path_tricks_are_refused_as_text() {
        let long = format!("/{}", "a".repeat(256));
        for (text, refused) in [
            ("etc/passwd", PathRefused::Relative("etc/passwd".into())),
            ("", PathRefused::Relative(String::new())),
            ("/", PathRefused::TrailingSlash("/".into())),
            ("/etc/", PathRefused::TrailingSlash("/etc/".into())),
            ("/etc/../root/x", PathRefused::Detour { path: "/etc/../root/x".into(), part: "..".into() }),
            ("/etc/..", PathRefused::Detour { path: "/etc/..".into(), part: "..".into() }),
            ("/./etc", PathRefused::Detour { path: "/./etc".into(), part: ".".into() }),
            ("//etc", PathRefused::Detour { path: "//etc".into(), part: String::new() }),
            ("/etc/a\0b", PathRefused::Control("/etc/a\0b".into())),
            ("/etc/a\nb", PathRefused::Control("/etc/a\nb".into())),
            (long.as_str(), PathRefused::Long { length: 257 }),
            ("/proc/self/root/etc/x", PathRefused::Kernel("/proc/self/root/etc/x".into())),
            ("/proc", PathRefused::Kernel("/proc".into())),
            ("/dev/sda", PathRefused::Kernel("/dev/sda".into())),
        ] {
            assert_eq!(HostPath::parse(text), Err(refused), "{text:?}");
        }
    }

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
