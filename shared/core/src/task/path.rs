//! Checks of host paths as text. The controller checks a path when a task with it is written. The agent checks the path
//! by the same rules before it uses the path.
//!
//! These checks never depend on the state of a disk. The agent finds a problem that only the disk shows, such as a
//! symbolic link in the path, when it opens the path.

use crate::name::truncated;

/// The directory in which the agent stores its own state.
pub const AGENT_STATE_DIR: &str = "/var/lib/stemma-agent";

/// The directory in which the agent writes labels, traits and tags for services on the host.
pub const AGENT_RUN_DIR: &str = "/run/stemma";

/// The file in which the host's owner configures the agent.
pub const AGENT_CONFIG_FILE: &str = "/etc/stemma/agent.toml";

/// The default path of the file into which the agent writes labels of the host. The host's owner may configure another
/// path.
pub const DEFAULT_HOST_LABEL_MAP: &str = "/etc/stemma/node-labels";

/// Maximum length of a path, in bytes: the kernel's `PATH_MAX` without the NUL.
pub(super) const MAX_PATH_BYTES: usize = 4095;

/// Maximum length of a name in a directory, in bytes: `NAME_MAX`.
pub(super) const MAX_NAME_BYTES: usize = 255;

/// Prefix of the names under which the agent writes files before it renames them. After a crash, it removes the files with
/// such names ([`is_temporary_name`]).
pub const TEMPORARY_PREFIX: &str = ".stemma-";

/// Number of hexadecimal digits after [`TEMPORARY_PREFIX`]: the session of the agent and a random number.
const TEMPORARY_DIGITS: usize = 16;

/// The file systems of the kernel. A task cannot replace a file there, because that needs a temporary file and a
/// rename.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Pairs of paths that name one directory on most hosts, because one path is a link to the other. The second path is
/// the canonical one.
///
/// A host may lack the link, or have it in the other direction. The checks do not depend on this, because two tasks
/// that write to both paths are wrong on most hosts.
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

/// The two paths of the mail directory. On some hosts the first path is the link, on other hosts the second.
const MAIL_DIRS: (&str, &str) = ("/var/spool/mail", "/var/mail");

/// The error for a path that the agent would reject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathRefused {
    /// The path does not begin with a slash.
    #[error("path {0:?} is relative; write it from `/` on")]
    Relative(String),
    /// The path names the root, or ends with a slash.
    #[error("path {0:?} names no file: it ends with a slash")]
    TrailingSlash(String),
    /// The path has a part that is `.`, `..` or empty, as in `/a//b`.
    #[error("path {path:?} has {part:?} in it; write the plain path")]
    Detour {
        /// The whole path.
        path: String,
        /// The part that is not allowed: the text between two slashes, or after the last slash.
        part: String,
    },
    /// The path contains NUL or another control character.
    #[error("path {0:?} holds a control character")]
    ControlCharacter(String),
    /// The path, or a name in it, is longer than Linux allows.
    #[error("path of {length} bytes: at most {MAX_PATH_BYTES} in all and {MAX_NAME_BYTES} a name are allowed")]
    Long {
        /// The length of the whole path, in bytes. For a template, the length of the text before the first tag and
        /// after the last tag together.
        length: usize,
    },
    /// A task would write to a path in a file system of the kernel, such as `/proc`.
    #[error("path {0:?} lies in a tree of the kernel, where no file can be replaced; use a shell task")]
    KernelTree(String),
    /// A task would write to a file of the agent. Such a task could change verified state, or loosen a limit that the
    /// host's owner configured for the agent.
    #[error("{} belongs to the agent; no task may write there", .0.escape_debug())]
    AgentPath(String),
    /// The name is one under which the agent writes unfinished files, which it removes.
    #[error("the name of {0:?} is that of an unfinished file of the agent, which it removes: choose another name")]
    TemporaryName(String),
}

/// The use of a path by a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathUse {
    /// The task writes a file at the path.
    Write,
    /// The task only reads the path.
    Read,
    /// A command of the task runs in the directory.
    ChangeDir,
}

/// Checks that a text is a plain absolute path: without `.`, `..`, empty parts, control characters and a trailing
/// slash, and not too long. This check applies to every use of a path.
///
/// # Errors
/// Fails with [`PathRefused`] for any other text.
pub fn check_path(text: &str) -> Result<(), PathRefused> {
    check_rules(text, text)?;
    check_length(&[text])
}

/// Checks the path of a directory in which a command runs. The rules are those of [`check_path`], and `/` is allowed.
///
/// # Errors
/// Fails with [`PathRefused`] for any other text.
pub fn check_directory(text: &str) -> Result<(), PathRefused> {
    if text == "/" { Ok(()) } else { check_path(text) }
}

/// Checks that a task can replace the file at a plain path by a rename of a temporary file in the same directory.
///
/// # Errors
/// Fails with [`PathRefused::KernelTree`] for `/proc`, `/sys`, `/dev` and everything below them. A path that a task
/// only reads may be there, for example `creates: /dev/vg0/data`.
pub fn check_replaceable(text: &str) -> Result<(), PathRefused> {
    let is_in_kernel_tree = KERNEL_TREES.iter().any(|tree| is_at_or_below(text, tree));
    if is_in_kernel_tree { Err(PathRefused::KernelTree(truncated(text))) } else { Ok(()) }
}

/// Checks a plain path to which a task writes a file.
///
/// # Errors
/// Fails as [`check_replaceable`] does. Fails with [`PathRefused::AgentPath`] for the agent's own files and
/// directories, and for everything below them, and with [`PathRefused::TemporaryName`] for the name of an unfinished file.
pub fn check_writable(text: &str) -> Result<(), PathRefused> {
    check_replaceable(text)?;
    if text.rsplit('/').next().is_some_and(is_temporary_name) {
        return Err(PathRefused::TemporaryName(truncated(text)));
    }
    [AGENT_STATE_DIR, AGENT_RUN_DIR, AGENT_CONFIG_FILE, DEFAULT_HOST_LABEL_MAP]
        .into_iter()
        .try_for_each(|agent_path| check_not_agent_path(text, agent_path))
}

/// Checks that a plain path to which a task writes a file is not `base`, a file or directory of the host's agent.
///
/// # Errors
/// Fails with [`PathRefused::AgentPath`] if the path is `base` or below it. Known links such as `/var/run` are resolved
/// first.
pub fn check_not_agent_path(raw: &str, base: &str) -> Result<(), PathRefused> {
    if is_at_or_below(&canonical_path(raw), &canonical_path(base)) { Err(PathRefused::AgentPath(truncated(raw))) } else { Ok(()) }
}

/// Returns whether the agent may write an unfinished file under this name.
pub fn is_temporary_name(name: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix(TEMPORARY_PREFIX).is_some_and(|rest| rest.len() == TEMPORARY_DIGITS && rest.bytes().all(is_digit))
}

/// Returns whether a path equals a directory or is below it.
pub fn is_at_or_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|remainder| remainder.is_empty() || remainder.starts_with('/'))
}

/// Returns a path with its known link resolved: `/usr/bin/x` for `/bin/x`. Other paths are returned unchanged.
pub(crate) fn canonical_path(path: &str) -> String {
    KNOWN_LINKS.iter().find_map(|(link_path, target)| replace_prefix(path, link_path, target)).unwrap_or_else(|| path.to_owned())
}

/// Returns a path with its known link resolved, and then the path as it is written, if they differ: `/run/x` and
/// `/var/run/x` for `/var/run/x`.
///
/// Two tasks are compared by all of these paths. The canonical path is not enough: a task that replaces `/var` by a
/// file also breaks `/var/run/x`, because `/var` contains the link.
pub(crate) fn spellings(path: &str) -> Vec<String> {
    let canonical_path_text = canonical_path(path);
    // Either of the two mail directories can be the link, so a path there always has both spellings.
    let mail_spelling = replace_prefix(&canonical_path_text, MAIL_DIRS.1, MAIL_DIRS.0);
    let mut spellings = vec![canonical_path_text];
    for spelling in [path.to_owned()].into_iter().chain(mail_spelling) {
        if !spellings.contains(&spelling) {
            spellings.push(spelling);
        }
    }
    spellings
}

/// Returns a path with `old_directory` at its start replaced by `new_directory`. Returns `None` if the path is not at
/// or below `old_directory`.
fn replace_prefix(path: &str, old_directory: &str, new_directory: &str) -> Option<String> {
    is_at_or_below(path, old_directory).then(|| format!("{new_directory}{}", &path[old_directory.len()..]))
}

/// Returns the known link that a path is or leads through, and the target of the link. The mail directories are
/// skipped, because either of them can be the link.
pub(super) fn known_link(path: &str) -> Option<(&'static str, &'static str)> {
    KNOWN_LINKS.iter().copied().find(|link| *link != MAIL_DIRS && is_at_or_below(path, link.0))
}

/// Returns whether a known link is below a directory. Then a path below the directory may lead to another directory.
fn has_known_links(directory: &str) -> bool {
    KNOWN_LINKS.iter().any(|(link_path, _)| *link_path != directory && is_at_or_below(link_path, directory))
}

/// Returns a path and the directories above it, from the nearest to the root. The root is the empty text.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::once(path).chain(path.rmatch_indices('/').map(|(slash_index, _)| &path[..slash_index]))
}

/// Returns whether a text has a template tag, so that its value is known only after rendering. Rendering does not
/// change a text without tags.
pub fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag))
}

/// Returns the directory that contains the path of a template for all values, in the spellings that [`spellings`]
/// returns. The directory is known from the text before the first tag. Returns only the root (the empty text) if no
/// other directory is certain.
pub(crate) fn known_directories(template: &str) -> Vec<String> {
    let text_before_tags = TemplateEnds::from_template(template).map_or("", |ends| ends.text_before_tags);
    let directory = text_before_tags.rsplit_once('/').map_or("", |(directory, _)| directory);
    // A value may lead through a known link below the directory, to a path outside of the directory.
    if has_known_links(directory) { vec![String::new()] } else { spellings(directory) }
}

/// Checks a path as an author wrote it, by the rules for its use. In a template, only the text before the first tag and
/// after the last tag is checked, because the text between them depends on values. For this check, a sample of the
/// rendered path replaces the template.
pub(super) fn check_authored_path(text: &str, path_use: PathUse) -> Result<(), PathRefused> {
    let Some(ends) = TemplateEnds::from_template(text) else {
        return match path_use {
            PathUse::Write => check_path(text).and_then(|()| check_writable(text)),
            PathUse::Read => check_path(text),
            PathUse::ChangeDir => check_directory(text),
        };
    };
    let sample = ends.sample_path();
    check_rules(&sample, text)?;
    check_length(&[ends.text_before_tags, ends.text_after_tags])?;
    if path_use == PathUse::Write { check_writable(&sample).map_err(|error| error.with_shown_path(text)) } else { Ok(()) }
}

/// Checks that `text` is a plain absolute path, except its length. Errors show `authored_text`, the text that the
/// author wrote for this path.
fn check_rules(text: &str, authored_text: &str) -> Result<(), PathRefused> {
    let shown_text = || truncated(authored_text);
    if text.chars().any(char::is_control) {
        return Err(PathRefused::ControlCharacter(shown_text()));
    }
    let Some(relative_path) = text.strip_prefix('/') else { return Err(PathRefused::Relative(shown_text())) };
    if relative_path.is_empty() || relative_path.ends_with('/') {
        return Err(PathRefused::TrailingSlash(shown_text()));
    }
    if let Some(part) = relative_path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        return Err(PathRefused::Detour { path: shown_text(), part: part.into() });
    }
    Ok(())
}

/// Checks the total length of these parts of a path, and the length of each name in them.
fn check_length(texts: &[&str]) -> Result<(), PathRefused> {
    let length = texts.iter().map(|text| text.len()).sum();
    let has_long_name = texts.iter().flat_map(|text| text.split('/')).any(|part| part.len() > MAX_NAME_BYTES);
    if length > MAX_PATH_BYTES || has_long_name { Err(PathRefused::Long { length }) } else { Ok(()) }
}

impl PathRefused {
    /// Returns the error with the author's text in place of the checked path, which is a sample for a template. Only
    /// the errors of [`check_writable`] are replaced, because all other errors already show the author's text or no
    /// path.
    fn with_shown_path(self, authored_text: &str) -> Self {
        match self {
            Self::KernelTree(_) => Self::KernelTree(truncated(authored_text)),
            Self::AgentPath(_) => Self::AgentPath(truncated(authored_text)),
            Self::TemporaryName(_) => Self::TemporaryName(truncated(authored_text)),
            error => error,
        }
    }
}

/// The text before the first tag of a template, and the text after the last tag.
struct TemplateEnds<'a> {
    text_before_tags: &'a str,
    text_after_tags: &'a str,
}

impl<'a> TemplateEnds<'a> {
    /// Returns the text before the first tag and after the last tag of a template. Returns `None` if the text has no
    /// tags, or if its tags are not closed.
    fn from_template(text: &'a str) -> Option<Self> {
        let tag_start = ["{{", "{%", "{#"].iter().filter_map(|tag| text.find(tag)).min()?;
        let tag_end = ["}}", "%}", "#}"].iter().filter_map(|tag| text.rfind(tag)).max().filter(|tag_end| tag_start < *tag_end)?;
        // A tag such as `}}` has two bytes.
        let (text_before, text_after) = (&text[..tag_start], &text[tag_end + 2..]);
        // In the template language, a dash inside a tag removes the white space next to the tag.
        let text_before = if text[tag_start + 2..].starts_with('-') { text_before.trim_end() } else { text_before };
        let text_after = if text[..tag_end].ends_with('-') { text_after.trim_start() } else { text_after };
        Some(Self { text_before_tags: text_before, text_after_tags: text_after })
    }

    /// Returns a sample of the rendered path, with `x` in place of the text from the first tag to the last. A check of
    /// this sample rejects no path that a value could make valid. If the template begins with a tag, the sample begins
    /// with `/`, because the value may be an absolute path.
    fn sample_path(&self) -> String {
        format!("{}x{}", if self.text_before_tags.is_empty() { "/" } else { self.text_before_tags }, self.text_after_tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a task wrote a file with such a name, and the agent removed it as an unfinished file of its own.
    #[test]
    fn check_writable_refuses_names_of_unfinished_files() {
        for path in ["/srv/.stemma-0123456789abcdef", "/.stemma-ffffffffffffffff"] {
            assert_eq!(check_writable(path), Err(PathRefused::TemporaryName(path.to_owned())));
        }
        for path in
            ["/srv/.stemma-0123456789abcde", "/srv/.stemma-0123456789ABCDEF", "/.stemma-0123456789abcdef/f", "/a.stemma-0"]
        {
            assert_eq!(check_writable(path), Ok(()), "{path}");
        }
    }

    /// The second list has paths that are plain, but lie in a file system of the kernel. A task cannot write there.
    #[test]
    fn s63_check_path_rejects_path_tricks() {
        let long_name_path = format!("/{}", "a".repeat(256));
        for (text, expected) in [
            ("etc/passwd", PathRefused::Relative("etc/passwd".into())),
            ("", PathRefused::Relative(String::new())),
            ("/", PathRefused::TrailingSlash("/".into())),
            ("/etc/", PathRefused::TrailingSlash("/etc/".into())),
            ("/etc/../root/x", PathRefused::Detour { path: "/etc/../root/x".into(), part: "..".into() }),
            ("/etc/..", PathRefused::Detour { path: "/etc/..".into(), part: "..".into() }),
            ("/./etc", PathRefused::Detour { path: "/./etc".into(), part: ".".into() }),
            ("//etc", PathRefused::Detour { path: "//etc".into(), part: String::new() }),
            ("/etc/a\0b", PathRefused::ControlCharacter("/etc/a\0b".into())),
            ("/etc/a\nb", PathRefused::ControlCharacter("/etc/a\nb".into())),
            (long_name_path.as_str(), PathRefused::Long { length: 257 }),
        ] {
            assert_eq!(check_path(text), Err(expected), "{text:?}");
        }
        for (text, expected) in [
            ("/proc/self/root/etc/x", PathRefused::KernelTree("/proc/self/root/etc/x".into())),
            ("/proc", PathRefused::KernelTree("/proc".into())),
            ("/dev/sda", PathRefused::KernelTree("/dev/sda".into())),
        ] {
            assert_eq!(check_writable(text), Err(expected.clone()), "{text:?}");
            assert_eq!(check_replaceable(text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn check_authored_allows_reading_kernel_trees() {
        for text in ["/dev/vg0/data", "/sys/class/net/bond0", "/proc/1", "/sys/class/net/{{ params.bond }}"] {
            assert_eq!(
                (check_authored_path(text, PathUse::Read), check_authored_path(text, PathUse::ChangeDir)),
                (Ok(()), Ok(())),
                "{text}"
            );
            let error = check_authored_path(text, PathUse::Write).unwrap_err();
            assert_eq!(error, PathRefused::KernelTree(text.to_owned()), "{text}");
        }
        assert!(check_authored_path("/proc/../x", PathUse::Read).is_err(), "a path that is only read must be plain too");
    }

    /// In the first returned directory, a known link is resolved. The directory is the root (the empty text) if a value
    /// can lead out of it through a known link, or if the template begins with a tag or has an unclosed one.
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

    /// A name has at most 255 bytes, and a path at most 4095. The text within tags does not count.
    #[test]
    fn template_ends_are_limited_in_length() {
        let (longest_name, long_name) = ("a".repeat(255), "a".repeat(256));
        // This path has 4096 bytes, one more than Linux allows.
        let longest_path = format!("/{longest_name}").repeat(16);
        for (template, is_too_long) in [
            (format!("/etc/{longest_name}/{{{{ node.name }}}}"), false),
            (format!("/etc/{longest_name}{{{{ node.name }}}}"), false),
            (format!("/etc/{long_name}/{{{{ node.name }}}}"), true),
            (format!("/etc/{long_name}{{{{ node.name }}}}"), true),
            (format!("/etc/{{{{ node.name }}}}/{long_name}"), true),
            (format!("/etc/{{# {long_name} #}}a"), false),
            (format!("{longest_path}/{{{{ node.name }}}}"), true),
        ] {
            let result = check_authored_path(&template, PathUse::Write);
            assert_eq!(matches!(result, Err(PathRefused::Long { .. })), is_too_long, "{template}: {result:?}");
        }
    }

    #[test]
    fn s63_check_writable_rejects_agent_files() {
        for (text, is_rejected) in [
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
            assert_eq!(check_writable(text).is_err(), is_rejected, "{text}");
        }
    }

    /// Only the text before the first tag and after the last tag is certain, whatever the values are.
    #[test]
    fn w11_template_path_is_rejected_when_invalid_for_every_value() {
        for (template, message) in [
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
            let error = check_authored_path(template, PathUse::Write).unwrap_err().to_string();
            assert!(error.contains(message), "{template}: {error}");
        }
        for template in [
            // Some value makes each of these paths valid. A template without a closing tag is checked as a plain text.
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
            assert_eq!(check_authored_path(template, PathUse::Write), Ok(()), "{template}");
        }
    }
}
