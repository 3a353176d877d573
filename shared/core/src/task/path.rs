//! Checks of host paths as text. The controller checks a path when it is written, and the agent when it uses the path,
//! by the same rules.
//!
//! These checks never depend on the state of a disk. A problem that only the disk shows, such as a symbolic link in the
//! path, is found when the agent opens the path.

use crate::name::truncated;

/// Directory of the agent's own state.
pub const AGENT_STATE_DIR: &str = "/var/lib/stemma-agent";

/// Directory that the agent writes for services: labels, traits, tags.
pub const AGENT_RUN_DIR: &str = "/run/stemma";

/// File in which the host's owner configures the agent.
pub const AGENT_CONFIG_FILE: &str = "/etc/stemma/agent.toml";

/// Default path of the host label map, which the agent writes. The host's owner may configure another one.
pub const DEFAULT_HOST_LABEL_MAP: &str = "/etc/stemma/node-labels";

/// Maximum length of a path, in bytes: the kernel's `PATH_MAX` without the NUL.
const MAX_PATH_BYTES: usize = 4095;

/// Maximum length of a name in a directory, in bytes: `NAME_MAX`.
const MAX_NAME_BYTES: usize = 255;

/// Trees of the kernel. No file there can be replaced by writing a temporary file and renaming it.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Pairs of directories that are the same directory on known hosts, because one is a link to the other. The second
/// name is the canonical one.
///
/// Which of the two is the link, and whether a host has it, does not matter: tasks that write to both are wrong on most
/// hosts.
const KNOWN_LINKS: [(&str, &str); 10] = [
    ("/bin", "/usr/bin"),
    ("/sbin", "/usr/sbin"),
    ("/lib", "/usr/lib"),
    ("/lib32", "/usr/lib32"),
    ("/lib64", "/usr/lib64"),
    ("/libx32", "/usr/libx32"),
    ("/usr/tmp", "/var/tmp"),
    ("/var/lock", "/run/lock"),
    ("/var/run", "/run"),
    MAIL_DIRS,
];

/// The mail directories. On some hosts the first is the link, on others the second.
const MAIL_DIRS: (&str, &str) = ("/var/spool/mail", "/var/mail");

/// Reasons why the agent would not use a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathRefused {
    /// The path does not begin with a slash.
    #[error("path {0:?} is relative; write it from `/` on")]
    Relative(String),
    /// The path names the root, or ends with a slash.
    #[error("path {0:?} names no file: it ends with a slash")]
    TrailingSlash(String),
    /// The path contains `.`, `..` or nothing between two slashes.
    #[error("path {path:?} has {part:?} in it; write the plain path")]
    Detour {
        /// The whole path.
        path: String,
        /// The text between the slashes.
        part: String,
    },
    /// The path contains NUL or another control character.
    #[error("path {0:?} holds a control character")]
    Control(String),
    /// The path, or a name in it, is longer than Linux allows.
    #[error("path of {length} bytes: at most {MAX_PATH_BYTES} in all and {MAX_NAME_BYTES} a name are allowed")]
    Long {
        /// Bytes of the whole path.
        length: usize,
    },
    /// The path is in a tree of the kernel.
    #[error("path {0:?} lies in a tree of the kernel, where no file can be replaced; use a shell task")]
    Kernel(String),
    /// The path is that of the agent's own files. A task that writes them could undo what the agent has verified, or
    /// raise the limit that the host's owner set.
    #[error("{} belongs to the agent; no task may write there", .0.escape_debug())]
    Own(String),
}

/// How a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathUse {
    /// A file is written to the path.
    Write,
    /// The path is only read.
    Read,
    /// A command runs in the directory.
    ChangeDir,
}

/// Checks the rules that hold for every use of a path.
///
/// # Errors
/// [`PathRefused`] for anything but a plain absolute path (S63).
pub fn check_path(text: &str) -> Result<(), PathRefused> {
    check_rules(text, text)?;
    check_length(&[text])
}

/// Checks the path of a directory in which a command runs. The root is allowed.
///
/// # Errors
/// As [`check_path`].
pub fn check_directory(text: &str) -> Result<(), PathRefused> {
    if text == "/" { Ok(()) } else { check_path(text) }
}

/// Checks that the file at a plain path can be replaced by renaming a temporary file next to it.
///
/// # Errors
/// [`PathRefused::Kernel`] for trees of the kernel (S63). Paths that are only read may be there: `creates:
/// /dev/vg0/data`.
pub fn check_replaceable(text: &str) -> Result<(), PathRefused> {
    let is_of_kernel = KERNEL_TREES.iter().any(|tree| is_at_or_below(text, tree));
    if is_of_kernel { Err(PathRefused::Kernel(truncated(text))) } else { Ok(()) }
}

/// Checks a plain path to which a task writes a file.
///
/// # Errors
/// As [`check_replaceable`], and [`PathRefused::Own`] for the agent's own files and everything below them.
pub fn check_writable(text: &str) -> Result<(), PathRefused> {
    check_replaceable(text)?;
    [AGENT_STATE_DIR, AGENT_RUN_DIR, AGENT_CONFIG_FILE, DEFAULT_HOST_LABEL_MAP]
        .into_iter()
        .try_for_each(|own| check_not_own(text, own))
}

/// Checks a plain path to which a task writes a file against `own`, a file or directory of the host's agent.
///
/// # Errors
/// [`PathRefused::Own`] for that path and everything below it, also through a known link.
pub fn check_not_own(text: &str, own: &str) -> Result<(), PathRefused> {
    if is_at_or_below(&canonical_path(text), &canonical_path(own)) { Err(PathRefused::Own(truncated(text))) } else { Ok(()) }
}

/// Returns whether a path equals another or is below it.
pub fn is_at_or_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a path with known links resolved.
pub(crate) fn canonical_path(path: &str) -> String {
    KNOWN_LINKS.iter().find_map(|(from, to)| replace_prefix(path, from, to)).unwrap_or_else(|| path.to_owned())
}

/// Returns every spelling of a path by known links, the canonical path first. The path requires the directories of each
/// spelling.
///
/// The canonical path alone is not enough: `/var/run/x` also requires `/var`, which contains the link.
pub(crate) fn spellings(path: &str) -> Vec<String> {
    let place = canonical_path(path);
    let mail_spelling = replace_prefix(&place, MAIL_DIRS.1, MAIL_DIRS.0);
    let mut spellings = vec![place];
    for other in [path.to_owned()].into_iter().chain(mail_spelling) {
        if !spellings.contains(&other) {
            spellings.push(other);
        }
    }
    spellings
}

/// Moves a path from one directory to another. Returns `None` if the path is not at or below the first directory.
fn replace_prefix(path: &str, from: &str, to: &str) -> Option<String> {
    is_at_or_below(path, from).then(|| format!("{to}{}", &path[from.len()..]))
}

/// Returns the known link at or above a path, and its target. The mail directories are skipped, because it differs
/// between hosts which of them is the link.
pub(super) fn known_link(path: &str) -> Option<(&'static str, &'static str)> {
    KNOWN_LINKS.iter().copied().find(|link| *link != MAIL_DIRS && is_at_or_below(path, link.0))
}

/// Returns whether a known link is below a directory, so that a path below the directory may be elsewhere.
fn has_known_links(directory: &str) -> bool {
    KNOWN_LINKS.iter().any(|(from, _)| *from != directory && is_at_or_below(from, directory))
}

/// Returns a path and the directories above it, the nearest first. The root comes last, as the empty text.
pub(crate) fn ancestors(place: &str) -> impl Iterator<Item = &str> {
    std::iter::once(place).chain(place.rmatch_indices('/').map(|(at, _)| &place[..at]))
}

/// Returns whether a text is a template, so that its value is known only after rendering. A text without these tags
/// renders to itself.
pub fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag))
}

/// Returns the spellings of the directory that contains the path of a template, whatever values are filled in. Returns
/// the empty text if only the root is known to contain it.
pub(crate) fn known_directories(template: &str) -> Vec<String> {
    let head = TemplateEnds::from_template(template).map_or("", |ends| ends.head);
    let directory = head.rsplit_once('/').map_or("", |(directory, _)| directory);
    // The rest of the path may lead through a known link.
    if has_known_links(directory) { vec![String::new()] } else { spellings(directory) }
}

/// Checks a path as an author wrote it. In a template, only the text before the first tag and after the last one is
/// checked, because the rest depends on values.
pub(super) fn check_authored(text: &str, usage: PathUse) -> Result<(), PathRefused> {
    let Some(ends) = TemplateEnds::from_template(text) else {
        return match usage {
            PathUse::Write => check_path(text).and_then(|()| check_writable(text)),
            PathUse::Read => check_path(text),
            PathUse::ChangeDir => check_directory(text),
        };
    };
    let rendered = ends.sample_path();
    check_rules(&rendered, text)?;
    check_length(&[ends.head, ends.tail])?;
    if usage == PathUse::Write { check_writable(&rendered).map_err(|refused| refused.with_shown_path(text)) } else { Ok(()) }
}

/// Checks all rules but the length. Errors show `written`, the author's text for `text`.
fn check_rules(text: &str, written: &str) -> Result<(), PathRefused> {
    let shown = || truncated(written);
    if text.chars().any(char::is_control) {
        return Err(PathRefused::Control(shown()));
    }
    let Some(rest) = text.strip_prefix('/') else { return Err(PathRefused::Relative(shown())) };
    if rest.is_empty() || rest.ends_with('/') {
        return Err(PathRefused::TrailingSlash(shown()));
    }
    if let Some(part) = rest.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        return Err(PathRefused::Detour { path: shown(), part: part.into() });
    }
    Ok(())
}

/// Checks the length of the parts of a path that are known before rendering.
fn check_length(texts: &[&str]) -> Result<(), PathRefused> {
    let length = texts.iter().map(|text| text.len()).sum();
    let has_long_name = texts.iter().flat_map(|text| text.split('/')).any(|part| part.len() > MAX_NAME_BYTES);
    if length > MAX_PATH_BYTES || has_long_name { Err(PathRefused::Long { length }) } else { Ok(()) }
}

impl PathRefused {
    /// Returns the same error with the author's text in place of the checked path.
    fn with_shown_path(self, written: &str) -> Self {
        match self {
            Self::Kernel(_) => Self::Kernel(truncated(written)),
            Self::Own(_) => Self::Own(truncated(written)),
            other => other,
        }
    }
}

/// The text before the first tag of a template and after the last one.
struct TemplateEnds<'a> {
    head: &'a str,
    tail: &'a str,
}

impl<'a> TemplateEnds<'a> {
    /// Finds the ends of a template. Returns `None` if the text is not a template, or if its tags are not closed.
    fn from_template(text: &'a str) -> Option<Self> {
        let open = ["{{", "{%", "{#"].iter().filter_map(|tag| text.find(tag)).min()?;
        let close = ["}}", "%}", "#}"].iter().filter_map(|tag| text.rfind(tag)).max().filter(|close| open < *close)?;
        let (head, tail) = (&text[..open], &text[close + 2..]);
        // A dash next to a tag removes the blanks before or after the tag.
        let head = if text[open + 2..].starts_with('-') { head.trim_end() } else { head };
        let tail = if text[..close].ends_with('-') { tail.trim_start() } else { tail };
        Some(Self { head, tail })
    }

    /// Returns the path with `x` in place of the part between the ends. The name that contains `x` is never complete,
    /// so no path is rejected that a real value could make valid. If the path begins with a tag, `/` is put before it.
    fn sample_path(&self) -> String {
        format!("{}x{}", if self.head.is_empty() { "/" } else { self.head }, self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s63_check_path_rejects_path_tricks() {
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
        ] {
            assert_eq!(check_path(text), Err(refused), "{text:?}");
        }
        for (text, refused) in [
            ("/proc/self/root/etc/x", PathRefused::Kernel("/proc/self/root/etc/x".into())),
            ("/proc", PathRefused::Kernel("/proc".into())),
            ("/dev/sda", PathRefused::Kernel("/dev/sda".into())),
        ] {
            assert_eq!(check_writable(text), Err(refused.clone()), "{text:?}");
            assert_eq!(check_replaceable(text), Err(refused), "{text:?}");
        }
    }

    #[test]
    fn check_authored_allows_reading_kernel_trees() {
        for text in ["/dev/vg0/data", "/sys/class/net/bond0", "/proc/1", "/sys/class/net/{{ params.bond }}"] {
            assert_eq!(
                (check_authored(text, PathUse::Read), check_authored(text, PathUse::ChangeDir)),
                (Ok(()), Ok(())),
                "{text}"
            );
            let refused = check_authored(text, PathUse::Write).unwrap_err();
            assert_eq!(refused, PathRefused::Kernel(text.to_owned()), "{text}");
        }
        assert!(check_authored("/proc/../x", PathUse::Read).is_err(), "and only by a plain path");
    }

    #[test]
    fn y01_known_directories_of_template_are_independent_of_values() {
        for (template, directory) in [
            ("/var/spool/{{ params.x }}", ""),
            ("/etc/app/{{ params.x }}.conf", "/etc/app"),
            ("/etc/app/x-{{ params.x }}", "/etc/app"),
            ("/etc/{{ params.x }}/y", "/etc"),
            ("/var/run/{{ params.x }}", "/run"),
            ("/bin/{{ params.x }}", "/usr/bin"),
            ("/var/lib/{{ params.x }}", "/var/lib"),
            ("/var/{{ params.x }}", ""),
            ("/var/r{{ params.x }}", ""),
            ("/usr/{{ params.x }}", ""),
            ("/{{ params.x }}/z", ""),
            ("{{ params.dir }}/z", ""),
            ("{# x #}/etc/z", ""),
            ("/etc/{{ params.x", ""),
        ] {
            assert_eq!(known_directories(template)[0], directory, "{template}");
        }
        assert_eq!(known_directories("/var/run/{{ params.x }}"), ["/run", "/var/run"]);
    }

    #[test]
    fn y01_spellings_returns_path_as_written_and_by_known_links() {
        for (path, expected) in [
            ("/etc/z", &["/etc/z"][..]),
            ("/run/z", &["/run/z"]),
            ("/var/run/z", &["/run/z", "/var/run/z"]),
            ("/var/run", &["/run", "/var/run"]),
            ("/bin/z", &["/usr/bin/z", "/bin/z"]),
            ("/usr/tmp/z", &["/var/tmp/z", "/usr/tmp/z"]),
            ("/var/mail/z", &["/var/mail/z", "/var/spool/mail/z"]),
            ("/var/spool/mail/z", &["/var/mail/z", "/var/spool/mail/z"]),
            ("/var/spool", &["/var/spool"]),
            ("/var/mailbox", &["/var/mailbox"]),
            ("", &[""]),
        ] {
            assert_eq!(spellings(path), expected, "{path}");
        }
    }

    #[test]
    fn template_ends_are_limited_in_length() {
        let (name, long) = ("a".repeat(255), "a".repeat(256));
        let path = format!("/{name}").repeat(16);
        for (template, is_long) in [
            (format!("/etc/{name}/{{{{ node.name }}}}"), false),
            (format!("/etc/{name}{{{{ node.name }}}}"), false),
            (format!("/etc/{long}/{{{{ node.name }}}}"), true),
            (format!("/etc/{long}{{{{ node.name }}}}"), true),
            (format!("/etc/{{{{ node.name }}}}/{long}"), true),
            (format!("/etc/{{# {long} #}}a"), false),
            (format!("{path}/{{{{ node.name }}}}"), true),
        ] {
            let found = check_authored(&template, PathUse::Write);
            assert_eq!(matches!(found, Err(PathRefused::Long { .. })), is_long, "{template}: {found:?}");
        }
    }

    #[test]
    fn s63_check_writable_rejects_agent_files() {
        for (text, is) in [
            ("/var/lib/stemma-agent", true),
            ("/var/lib/stemma-agent/apply/accepted", true),
            ("/run/stemma/labels.json", true),
            ("/etc/stemma/agent.toml", true),
            ("/etc/stemma/node-labels", true),
            ("/var/run/stemma", true),
            ("/var/run/stemma/labels.env", true),
            ("/var/run/stemmata", false),
            ("/etc/stemma/node-labels.d", false),
            ("/etc/stemma/labels.d/site", false),
            ("/etc/stemma/hooks.d/10-a", false),
            ("/var/lib/stemma-agents", false),
            ("/etc/stemma/agent.toml.d", false),
        ] {
            assert_eq!(check_writable(text).is_err(), is, "{text}");
        }
    }

    #[test]
    fn w11_template_path_is_rejected_when_invalid_for_every_value() {
        for (template, said) in [
            ("etc/{{ params.x }}", "is relative"),
            (" /etc/{{ params.x }}", "is relative"),
            ("/etc/../{{ params.x }}", "has \"..\" in it"),
            ("{{ params.x }}/../y", "has \"..\" in it"),
            ("//{{ params.x }}", "has \"\" in it"),
            ("/etc/{{ params.x }}/", "ends with a slash"),
            ("/etc/\n{{ params.x }}", "control character"),
            ("/proc/{{ params.x }}", "tree of the kernel"),
            ("/run/stemma/{% if true %}a{% endif %}", "/run/stemma/{% if true %}a{% endif %} belongs to the agent"),
        ] {
            let error = check_authored(template, PathUse::Write).unwrap_err().to_string();
            assert!(error.contains(said), "{template}: {error}");
        }
        for template in [
            "{{ params.x }}",
            "{{ params.root }}/a",
            "{# a #}/etc/motd",
            "/proc{{ params.x }}",
            "/etc/.{{ params.x }}",
            "/etc/{{ params.x }}..",
            "/run/stemma{{ params.x }}",
            "/etc/\n{{- params.x -}}\n/a",
            "  {%- if true %}/a{% endif %}",
            "/{{ params.x }}/../{{ params.y }}",
            "/a{{ params.x",
        ] {
            assert_eq!(check_authored(template, PathUse::Write), Ok(()), "{template}");
        }
    }
}
