//! Paths on a host, judged as text: the one list of rules for a write that is to be refused and for the agent that would open them.
//!
//! What is refused here never depends on the state of a disk. What only the disk can show (a symbolic link in the way) the agent
//! refuses where it opens the path.

use crate::name::cut;

/// What the agent keeps.
pub const AGENT_STATE: &str = "/var/lib/stemma-agent";

/// What the agent writes for services: labels, traits, tags.
pub const AGENT_RUN: &str = "/run/stemma";

/// What the host's owner decides for the agent.
pub const AGENT_CONFIG: &str = "/etc/stemma/agent.toml";

/// The host label map, which the agent writes, unless the host's owner names another file.
pub const HOST_LABEL_MAP: &str = "/etc/stemma/node-labels";

/// The longest path, as the kernel's `PATH_MAX` without its NUL.
const LONGEST: usize = 4095;

/// The longest name in a directory, as `NAME_MAX`.
const LONGEST_NAME: usize = 255;

/// Trees of the kernel: nothing there can be written to a temporary file and renamed.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Directories that are one on the hosts that we know, by a link from the one to the other. Each has the name that is kept.
///
/// It does not matter which of the two is the link on a host, nor whether one has it: who writes both is mistaken on most.
const LINKS: [(&str, &str); 10] = [
    ("/bin", "/usr/bin"),
    ("/sbin", "/usr/sbin"),
    ("/lib", "/usr/lib"),
    ("/lib32", "/usr/lib32"),
    ("/lib64", "/usr/lib64"),
    ("/libx32", "/usr/libx32"),
    ("/usr/tmp", "/var/tmp"),
    ("/var/lock", "/run/lock"),
    ("/var/run", "/run"),
    MAIL,
];

/// The directories of mail: the first is the link on some hosts, and the second on others.
const MAIL: (&str, &str) = ("/var/spool/mail", "/var/mail");

/// Why a text is no path that an agent would touch.
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
    /// The agent keeps its own files there: a task that wrote them could undo what was verified, or lift the host's own ceiling.
    #[error("{} is the agent's own; no task writes there", .0.escape_debug())]
    Own(String),
}

/// What is done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A file is put there.
    Put,
    /// It is looked at.
    Look,
    /// A command is run there.
    Enter,
}

/// Judges a path, whatever is done with it.
///
/// # Errors
/// [`PathRefused`] for anything but a plain absolute path (S63).
pub fn check_path(text: &str) -> Result<(), PathRefused> {
    check(text, text)?;
    check_length(&[text])
}

/// Judges the path of a directory in which a command is run: the root will do.
///
/// # Errors
/// As [`check_path`].
pub fn check_directory(text: &str) -> Result<(), PathRefused> {
    if text == "/" { Ok(()) } else { check_path(text) }
}

/// Judges a plain path at which a file is put: it is written beside its place and renamed.
///
/// # Errors
/// [`PathRefused::Kernel`] for the kernel's trees (S63). What only looks may look there: `creates: /dev/vg0/data`.
pub fn check_replaceable(text: &str) -> Result<(), PathRefused> {
    let is_of_kernel = KERNEL_TREES.iter().any(|tree| is_at_or_below(text, tree));
    if is_of_kernel { Err(PathRefused::Kernel(cut(text))) } else { Ok(()) }
}

/// Judges a plain path at which a task puts a file.
///
/// # Errors
/// As [`check_replaceable`]; [`PathRefused::Own`] for what the agent keeps, and all below it.
pub fn check_put(text: &str) -> Result<(), PathRefused> {
    check_replaceable(text)?;
    [AGENT_STATE, AGENT_RUN, AGENT_CONFIG, HOST_LABEL_MAP].into_iter().try_for_each(|own| check_beside(text, own))
}

/// Judges a plain path at which a task puts a file, on a host whose agent keeps a file or a directory of its own at another.
///
/// # Errors
/// [`PathRefused::Own`] for that path, and all below it, also through a link that is known.
pub fn check_beside(text: &str, own: &str) -> Result<(), PathRefused> {
    if is_at_or_below(&place(text), &place(own)) { Err(PathRefused::Own(cut(text))) } else { Ok(()) }
}

/// Whether a path is another, or lies below it.
pub fn is_at_or_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path without the links that are known.
pub(crate) fn place(path: &str) -> String {
    LINKS.iter().find_map(|(from, to)| moved(path, from, to)).unwrap_or_else(|| path.to_owned())
}

/// Every spelling of a path by the links that are known, its place first: each names directories that it needs.
///
/// Its place alone is not enough: `/var/run/x` also needs `/var`, in which the link lies.
pub(crate) fn spellings(path: &str) -> Vec<String> {
    let place = place(path);
    let by_mail = moved(&place, MAIL.1, MAIL.0);
    let mut spellings = vec![place];
    for other in [path.to_owned()].into_iter().chain(by_mail) {
        if !spellings.contains(&other) {
            spellings.push(other);
        }
    }
    spellings
}

/// A path at or below the one directory, at or below the other; `None`: it is elsewhere.
fn moved(path: &str, from: &str, to: &str) -> Option<String> {
    is_at_or_below(path, from).then(|| format!("{to}{}", &path[from.len()..]))
}

/// The link that is known at or above a path, and what it leads to. Which of the two directories of mail is the link differs from host
/// to host, so nothing is said of those.
pub(super) fn known_link(path: &str) -> Option<(&'static str, &'static str)> {
    LINKS.iter().copied().find(|link| *link != MAIL && is_at_or_below(path, link.0))
}

/// Whether a link that is known lies below a directory, so that a path below it may lie elsewhere.
fn has_links(directory: &str) -> bool {
    LINKS.iter().any(|(from, _)| *from != directory && is_at_or_below(from, directory))
}

/// A place and the directories above it, the nearest first; at last the root, which is the empty text.
pub(crate) fn at_or_above(place: &str) -> impl Iterator<Item = &str> {
    std::iter::once(place).chain(place.rmatch_indices('/').map(|(at, _)| &place[..at]))
}

/// Whether a text is only known where it is rendered. One without these marks is its own rendering.
pub fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag))
}

/// The spellings of the directory in which a path surely lies that a template gives; the empty text where no such is known below the root.
pub(crate) fn sure_directory(template: &str) -> Vec<String> {
    let head = Around::tags(template).map_or("", |around| around.head);
    let directory = head.rsplit_once('/').map_or("", |(directory, _)| directory);
    // What stands behind it may lead through a link that is known.
    if has_links(directory) { vec![String::new()] } else { spellings(directory) }
}

/// Judges a path as an author wrote it: of a template what stands before its first tag and after its last.
pub(super) fn check_written(text: &str, how: Use) -> Result<(), PathRefused> {
    let Some(around) = Around::tags(text) else {
        return match how {
            Use::Put => check_path(text).and_then(|()| check_put(text)),
            Use::Look => check_path(text),
            Use::Enter => check_directory(text),
        };
    };
    let rendered = around.with_x();
    check(&rendered, text)?;
    check_length(&[around.head, around.tail])?;
    if how == Use::Put { check_put(&rendered).map_err(|refused| refused.shown_as(text)) } else { Ok(()) }
}

/// The rules but for length, for a `text` that an author wrote as `written`.
fn check(text: &str, written: &str) -> Result<(), PathRefused> {
    let shown = || cut(written);
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

/// The rules of length, for what surely stands in a path.
fn check_length(texts: &[&str]) -> Result<(), PathRefused> {
    let length = texts.iter().map(|text| text.len()).sum();
    let has_long_name = texts.iter().flat_map(|text| text.split('/')).any(|part| part.len() > LONGEST_NAME);
    if length > LONGEST || has_long_name { Err(PathRefused::Long { length }) } else { Ok(()) }
}

impl PathRefused {
    /// The same of a path that was written otherwise.
    fn shown_as(self, written: &str) -> Self {
        match self {
            Self::Kernel(_) => Self::Kernel(cut(written)),
            Self::Own(_) => Self::Own(cut(written)),
            other => other,
        }
    }
}

/// What stands before the first tag of a template and after its last.
struct Around<'a> {
    head: &'a str,
    tail: &'a str,
}

impl<'a> Around<'a> {
    /// `None` for what is no template, or one whose tags do not end.
    fn tags(text: &'a str) -> Option<Self> {
        let open = ["{{", "{%", "{#"].iter().filter_map(|tag| text.find(tag)).min()?;
        let close = ["}}", "%}", "#}"].iter().filter_map(|tag| text.rfind(tag)).max().filter(|close| open < *close)?;
        let (head, tail) = (&text[..open], &text[close + 2..]);
        // A dash beside a tag takes away the blanks next to it.
        let head = if text[open + 2..].starts_with('-') { head.trim_end() } else { head };
        let tail = if text[..close].ends_with('-') { tail.trim_start() } else { tail };
        Some(Self { head, tail })
    }

    /// The path with `x` in the place of the template. A name next to `x` is never complete, so nothing is refused that a real value
    /// could make valid. If the path begins with the template, `/` stands before it.
    fn with_x(&self) -> String {
        format!("{}x{}", if self.head.is_empty() { "/" } else { self.head }, self.tail)
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
        ] {
            assert_eq!(check_path(text), Err(refused), "{text:?}");
        }
        for (text, refused) in [
            ("/proc/self/root/etc/x", PathRefused::Kernel("/proc/self/root/etc/x".into())),
            ("/proc", PathRefused::Kernel("/proc".into())),
            ("/dev/sda", PathRefused::Kernel("/dev/sda".into())),
        ] {
            assert_eq!(check_put(text), Err(refused.clone()), "{text:?}");
            assert_eq!(check_replaceable(text), Err(refused), "{text:?}");
        }
    }

    #[test]
    fn what_only_looks_may_look_at_the_kernels_trees() {
        for text in ["/dev/vg0/data", "/sys/class/net/bond0", "/proc/1", "/sys/class/net/{{ params.bond }}"] {
            assert_eq!((check_written(text, Use::Look), check_written(text, Use::Enter)), (Ok(()), Ok(())), "{text}");
            let refused = check_written(text, Use::Put).unwrap_err();
            assert_eq!(refused, PathRefused::Kernel(text.to_owned()), "{text}");
        }
        assert!(check_written("/proc/../x", Use::Look).is_err(), "and only by a plain path");
    }

    #[test]
    fn y01_the_directory_of_a_template_is_what_no_value_changes() {
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
            assert_eq!(sure_directory(template)[0], directory, "{template}");
        }
        assert_eq!(sure_directory("/var/run/{{ params.x }}"), ["/run", "/var/run"]);
    }

    #[test]
    fn y01_a_path_is_spelled_as_it_is_written_and_by_each_link_that_is_known() {
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
    fn of_a_template_each_part_beside_its_tags_has_a_length() {
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
            let found = check_written(&template, Use::Put);
            assert_eq!(matches!(found, Err(PathRefused::Long { .. })), is_long, "{template}: {found:?}");
        }
    }

    #[test]
    fn s63_the_agents_own_files_are_no_tasks() {
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
            assert_eq!(check_put(text).is_err(), is, "{text}");
        }
    }

    #[test]
    fn w11_of_a_template_only_what_no_value_mends_is_refused() {
        for (template, said) in [
            ("etc/{{ params.x }}", "is relative"),
            (" /etc/{{ params.x }}", "is relative"),
            ("/etc/../{{ params.x }}", "has \"..\" in it"),
            ("{{ params.x }}/../y", "has \"..\" in it"),
            ("//{{ params.x }}", "has \"\" in it"),
            ("/etc/{{ params.x }}/", "ends with a slash"),
            ("/etc/\n{{ params.x }}", "control character"),
            ("/proc/{{ params.x }}", "tree of the kernel"),
            ("/run/stemma/{% if true %}a{% endif %}", "/run/stemma/{% if true %}a{% endif %} is the agent's own"),
        ] {
            let error = check_written(template, Use::Put).unwrap_err().to_string();
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
            assert_eq!(check_written(template, Use::Put), Ok(()), "{template}");
        }
    }
}
