//! Labels that people and programs on the host provide, as lines `KEY=VALUE` in the files `/etc/stemma/labels.d/*`.
//!
//! The agent only reports these labels to the controllers. If several files contain a key, the last file by name wins.
//! A file is skipped, with a finding, if an unprivileged user could have written it, or if it is not a regular file. It
//! is also skipped if `run-parts`, the tool that runs the files of such a directory, would not accept its name. If an
//! unprivileged user can write the directory or a directory above it, no file is read, just as no hook is run.

use std::collections::BTreeMap;

use stemma_core::json;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::name::is_run_parts_name;
use stemma_wire::message::observed::ReportedLabel;

use crate::findings::skipped_by_name;
use crate::host::{Dir, FileKind, Host, HostError, HostPath, Stat};

/// Directory of the label files. Each line of a file is `KEY=VALUE`.
pub(super) const DIR: &str = "/etc/stemma/labels.d";
/// Maximum size of a label file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Maximum number of labels that are taken from all label files of a host together.
const MAX_LABELS: usize = 256;

/// Maximum number of listed findings about lines and files, without skipped names. A further finding counts the rest.
const MAX_FINDINGS: usize = 32;

/// The labels from the label files, and the findings about the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLabels {
    /// The labels by key, each with the file and line that it comes from.
    pub labels: BTreeMap<String, ReportedLabel>,
    /// Findings about files and lines that are not used, one sentence each.
    pub findings: Vec<String>,
}

impl LocalLabels {
    /// Returns a value without labels and with one finding, which contains the reason why no label file was read.
    fn with_finding(finding: String) -> Self {
        Self { findings: vec![finding], ..Self::default() }
    }
}

/// Reads all label files of the host. If the directory cannot be read, the error is the only finding.
pub(super) fn read(host: &dyn Host) -> LocalLabels {
    read_dir(host).unwrap_or_else(|error| LocalLabels::with_finding(error.sentence()))
}

/// Reads the label files in the directory. If an unprivileged user can write the directory or a directory above it, no
/// file is read, and the result contains only a finding.
fn read_dir(host: &dyn Host) -> Result<LocalLabels, HostError> {
    let path = HostPath::from_static(DIR);
    let Some(dir) = host.dir(&path)? else { return Ok(LocalLabels::default()) };
    let user = host.user_and_group().0;
    if let Some((untrusted_dir, stat)) = host.first_untrusted_dir(&path)? {
        return Ok(LocalLabels::with_finding(open_directory_finding(&untrusted_dir, &stat, user)));
    }
    let accepted_names = dir.names()?.into_iter().filter(|name| !name.starts_with('.'));
    let (accepted_names, mut skipped_names): (Vec<_>, Vec<_>) = accepted_names.partition(|name| is_run_parts_name(name));
    let unreadable = dir.non_utf8_names()?.into_iter().map(|(name, _)| name);
    skipped_names.extend(unreadable.filter(|name| !name.starts_with('.')));
    let mut local_labels = read_files(accepted_names.into_iter().map(|name| {
        let text = read_text(&*dir, &name, user);
        (name, text)
    }));
    local_labels.findings.extend(skipped_by_name(DIR, &skipped_names));
    Ok(local_labels)
}

/// Parses label files in the given order. Each item contains the name of a file and its text, or a finding if the file
/// could not be read.
pub fn read_files(files: impl IntoIterator<Item = (String, Result<String, String>)>) -> LocalLabels {
    let mut local_labels = LocalLabels::default();
    for (name, text) in files {
        match text {
            Ok(text) => parse_lines(&mut local_labels, &name, &text),
            Err(finding) => local_labels.findings.push(finding),
        }
    }
    limit_findings(&mut local_labels.findings);
    local_labels
}

/// Removes the findings above [`MAX_FINDINGS`]. Then adds a last finding with the number of removed findings.
fn limit_findings(findings: &mut Vec<String>) {
    if let Some(removed_count) = findings.len().checked_sub(MAX_FINDINGS).filter(|removed_count| *removed_count > 0) {
        findings.truncate(MAX_FINDINGS);
        findings.push(format!("{DIR}: {removed_count} more lines or files cannot be used"));
    }
}

/// Returns the finding that an unprivileged user can write `untrusted_dir`, which is the label directory or a directory
/// above it. Such a user could create label files. `user` is the user that the agent runs as.
fn open_directory_finding(untrusted_dir: &str, stat: &Stat, user: u32) -> String {
    let relative_path = DIR.strip_prefix(untrusted_dir).unwrap_or_default().trim_start_matches('/');
    let unread_subject = if relative_path.is_empty() { "it".to_owned() } else { format!("{relative_path} in it") };
    format!("{untrusted_dir}: {}", untrusted_reason(stat, user, &unread_subject).unwrap_or_default())
}

/// Returns why an unprivileged user could have written a file or directory, as part of a finding. Returns `None` if
/// only root and the agent's user (`user`) could have written it. `unread_subject` names the files that are therefore
/// not read, for the text of the finding.
fn untrusted_reason(stat: &Stat, user: u32, unread_subject: &str) -> Option<String> {
    if stat.mode & 0o022 != 0 {
        Some(format!("can be written by others (mode {:04o}), so {unread_subject} is not read: chmod go-w it", stat.mode))
    } else if stat.user != 0 && stat.user != user {
        Some(format!("belongs to user {}, so {unread_subject} is not read: chown it to root", stat.user))
    } else {
        None
    }
}

/// Returns the text of a label file. Returns a finding as the error if the file cannot be read, or if an unprivileged
/// user could have written it.
fn read_text(dir: &dyn Dir, name: &str, user: u32) -> Result<String, String> {
    // Unlike the other findings here, the message of a `HostError` already contains the path.
    let error_text = |error: HostError| error.sentence();
    let stat = dir.stat(name).map_err(error_text)?.ok_or_else(|| format!("{DIR}/{name}: is gone"))?;
    if stat.kind == FileKind::File
        && let Some(reason) = untrusted_reason(&stat, user, "it")
    {
        return Err(format!("{DIR}/{name}: {reason}"));
    }
    let bytes = dir.read(name, MAX_FILE_BYTES).map_err(error_text)?.unwrap_or_default();
    json::decode_utf8(bytes).map_err(|reason| format!("{DIR}/{name}: {reason}"))
}

/// Parses the text of one file and adds its labels. A label replaces the label with the same key from an earlier line
/// or file. Skips empty lines and comments (`#`). Each other line that is not a label, and each new label above
/// [`MAX_LABELS`], adds a finding.
fn parse_lines(local_labels: &mut LocalLabels, file: &str, text: &str) {
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let source = format!("labels.d/{file}:{}", index + 1);
        match parse_label(line) {
            Ok((key, value)) if local_labels.labels.len() < MAX_LABELS || local_labels.labels.contains_key(&key) => {
                local_labels.labels.insert(key, ReportedLabel { value, source });
            }
            Ok(_) => {
                local_labels.findings.push(format!("{source}: more than {MAX_LABELS} labels: this one is left out"));
            }
            Err(reason) => local_labels.findings.push(format!("{source}: {reason}")),
        }
    }
}

/// Parses a line `KEY=VALUE` and returns key and value. The error is the reason why a controller would not accept them.
fn parse_label(line: &str) -> Result<(String, String), String> {
    if line.starts_with('\u{feff}') {
        return Err("the line begins with a byte order mark: save the file without it".to_owned());
    }
    let (key, value) = line.split_once('=').ok_or("a line is KEY=VALUE")?;
    LabelKey::new(key.trim()).map_err(|error| error.to_string())?;
    LabelValue::new(value.trim()).map_err(|error| error.to_string())?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::{DirBuilder, Permissions, create_dir_all, set_permissions, write};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::host::memory::MemoryHost;
    use crate::host::real::RealHost;

    /// Creates the label directory below this root. For any umask, other users cannot write it.
    fn make_dir(root: &Path) -> PathBuf {
        let dir = root.join("etc/stemma/labels.d");
        DirBuilder::new().recursive(true).mode(0o755).create(&dir).unwrap();
        dir
    }

    /// Regression test: a user who can write a directory above can replace the label directory. Its labels were read.
    #[test]
    fn y08_read_returns_no_label_when_others_can_write_directory() {
        for (untrusted_dir, unread_subject) in
            [("/etc", "stemma/labels.d in it"), ("/etc/stemma", "labels.d in it"), ("/etc/stemma/labels.d", "it")]
        {
            for (mode, user, reason) in [
                (0o777, 0, format!("can be written by others (mode 0777), so {unread_subject} is not read: chmod go-w it")),
                (0o775, 0, format!("can be written by others (mode 0775), so {unread_subject} is not read: chmod go-w it")),
                (0o755, 1000, format!("belongs to user 1000, so {unread_subject} is not read: chown it to root")),
            ] {
                let host = MemoryHost::new();
                host.put("/etc/stemma/labels.d/10-a", "rack=7\n");
                assert_eq!(read(&host).labels.len(), 1);
                host.chmod(untrusted_dir, mode);
                host.chown(untrusted_dir, user);
                let expected = LocalLabels { labels: BTreeMap::new(), findings: vec![format!("{untrusted_dir}: {reason}")] };
                assert_eq!(read(&host), expected);
            }
        }
    }

    /// If other users can write the directory itself, no file in it is read.
    #[test]
    fn s37_read_skips_file_when_writable_by_others_or_irregular() {
        let root = tempfile::tempdir().unwrap();
        let dir = make_dir(root.path());
        for (name, mode) in [("10-good", 0o644), ("20-group", 0o664), ("30-all", 0o646)] {
            write(dir.join(name), format!("from-{name}=1\n")).unwrap();
            set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        }
        symlink(dir.join("10-good"), dir.join("40-link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("50-fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        create_dir_all(dir.join("60-dir")).unwrap();
        write(dir.join(".hidden"), "hidden=1\n").unwrap();

        let host = RealHost::new(root.path()).unwrap();
        let local_labels = read(&host);
        assert_eq!(local_labels.labels.keys().collect::<Vec<_>>(), ["from-10-good"]);
        let paths: Vec<&str> = local_labels.findings.iter().map(|text| text.split([':', ' ']).next().unwrap()).collect();
        let names = ["20-group", "30-all", "40-link", "50-fifo", "60-dir"];
        assert_eq!(paths, names.map(|name| format!("/etc/stemma/labels.d/{name}")), "{:?}", local_labels.findings);

        set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let local_labels = read(&host);
        assert!(local_labels.labels.is_empty());
        assert_eq!(
            local_labels.findings,
            ["/etc/stemma/labels.d: can be written by others (mode 0777), so it is not read: chmod go-w it"]
        );
    }

    #[test]
    fn y08_read_skips_editor_and_package_files_with_one_finding() {
        let root = tempfile::tempdir().unwrap();
        let dir = make_dir(root.path());
        let skipped_names = ["#10-a#", "10-a.bak", "10-a.dpkg-dist", "10-a.orig", "10-a.rpmnew", "10-a.ucf-old", "10-a~"];
        for name in skipped_names.into_iter().chain(["10-a", "local", ".10-a.swp"]) {
            let key = if skipped_names.contains(&name) { "skipped" } else { name.trim_start_matches('.') };
            write(dir.join(name), format!("{key}=1\n")).unwrap();
            set_permissions(dir.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        let local_labels = read(&RealHost::new(root.path()).unwrap());
        assert_eq!(local_labels.labels.keys().collect::<Vec<_>>(), ["10-a", "local"]);
        assert_eq!(local_labels.findings, [skipped_by_name(DIR, &skipped_names.map(str::to_owned)).unwrap()]);
    }

    /// Hidden files, and hooks without execute permission, are ignored without a finding. Regression test: a name that
    /// is not UTF-8 was skipped without a finding, in `labels.d` and in `hooks.d`.
    #[test]
    fn y08_read_skips_and_reports_name_when_not_utf_8() {
        let root = tempfile::tempdir().unwrap();
        let labels = make_dir(root.path());
        let hooks = root.path().join("etc/stemma/hooks.d");
        DirBuilder::new().mode(0o755).create(&hooks).unwrap();
        let name = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        for (bytes, mode) in [(&b"bad\xff"[..], 0o755), (b"a b", 0o755), (b".bad\xff", 0o755), (b"README\xff", 0o644)] {
            write(hooks.join(name(bytes)), "#!/bin/sh\n").unwrap();
            set_permissions(hooks.join(name(bytes)), Permissions::from_mode(mode)).unwrap();
        }
        for bytes in [&b"bad\xff"[..], b"a b", b".bad\xff", b"10-a"] {
            write(labels.join(name(bytes)), "a=1\n").unwrap();
            set_permissions(labels.join(name(bytes)), Permissions::from_mode(0o644)).unwrap();
        }
        let host = RealHost::new(root.path()).unwrap();
        let skipped_names = ["a b".to_owned(), "bad\u{fffd}".to_owned()];
        assert_eq!(crate::hook_files::findings(&host), [skipped_by_name("/etc/stemma/hooks.d", &skipped_names).unwrap()]);
        let local_labels = read(&host);
        assert_eq!(local_labels.labels["a"].source, "labels.d/10-a:1");
        assert_eq!(local_labels.findings, [skipped_by_name(DIR, &skipped_names).unwrap()]);
    }

    /// Regression test: a finding contained the path of its file twice, and the path of a link three times.
    #[test]
    fn y08_finding_names_path_once() {
        let root = tempfile::tempdir().unwrap();
        let stemma = root.path().join("etc/stemma");
        make_dir(root.path());
        write(stemma.join("labels.d/10-large"), vec![b'#'; 64 * 1024 + 1]).unwrap();
        write(stemma.join("labels.d/20-latin"), b"a=\xe9\n").unwrap();
        symlink("10-large", stemma.join("labels.d/30-link")).unwrap();
        create_dir_all(stemma.join("labels.d/40-dir")).unwrap();
        for name in ["10-large", "20-latin"] {
            set_permissions(stemma.join("labels.d").join(name), Permissions::from_mode(0o644)).unwrap();
        }
        symlink("elsewhere", stemma.join("hooks.d")).unwrap();
        let host = RealHost::new(root.path()).unwrap();
        let findings = || crate::hook_files::findings(&host).into_iter().chain(read(&host).findings).collect::<Vec<_>>();
        let link = "is a symbolic link, and links are not followed: write";
        let moved = "was expected: move it away, or name another path";
        let expected = [
            format!("/etc/stemma/hooks.d {link} /etc/stemma/elsewhere"),
            "/etc/stemma/labels.d/10-large is larger than 65536 bytes".to_owned(),
            "/etc/stemma/labels.d/20-latin: it is no text in UTF-8".to_owned(),
            format!("/etc/stemma/labels.d/30-link {link} /etc/stemma/labels.d/10-large"),
            format!("/etc/stemma/labels.d/40-dir is a directory, where a regular file {moved}"),
        ];
        assert_eq!(findings(), expected);
        std::fs::remove_file(stemma.join("hooks.d")).unwrap();
        write(stemma.join("hooks.d"), "").unwrap();
        assert_eq!(findings()[0], format!("/etc/stemma/hooks.d is a regular file, where a directory {moved}"));
    }

    /// In this test, the agent runs as user 7. A file of root is not trusted if its group can write it.
    #[test]
    fn untrusted_reason_is_none_only_for_root_and_agent_user() {
        let stat = |user, mode| Stat { kind: FileKind::File, mode, user, group: 0, size: 0, links: 1 };
        for (stat, trusted) in [(stat(0, 0o644), true), (stat(7, 0o600), true), (stat(8, 0o600), false), (stat(0, 0o620), false)]
        {
            assert_eq!(untrusted_reason(&stat, 7, "it").is_none(), trusted, "{stat:?}");
        }
    }

    /// In this test, 44 of 300 labels exceed the limit of labels, and each of them gives a finding. Of these findings,
    /// 32 are listed and 12 are counted.
    #[test]
    fn limit_findings_counts_rest_when_over_limit() {
        let mut local_labels = LocalLabels::default();
        let lines: String = (0..300).map(|number| format!("k{number}=1\n")).collect();
        parse_lines(&mut local_labels, "10-a", &lines);
        limit_findings(&mut local_labels.findings);
        assert_eq!((local_labels.labels.len(), local_labels.findings.len()), (256, 33));
        assert_eq!(local_labels.findings[0], "labels.d/10-a:257: more than 256 labels: this one is left out");
        assert_eq!(local_labels.findings[32], "/etc/stemma/labels.d: 12 more lines or files cannot be used");
    }

    /// A byte order mark before a text in UTF-8 makes only the first line invalid.
    #[test]
    fn y09_read_names_encoding_when_file_is_not_utf_8() {
        let root = tempfile::tempdir().unwrap();
        let dir = make_dir(root.path());
        let utf_16: Vec<u8> = "rack=7\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (name, bytes) in [
            ("10-utf-16", &[&[0xff, 0xfe], &utf_16[..]].concat()[..]),
            ("20-unmarked", &utf_16),
            ("30-utf-32", b"\xff\xfe\0\0r\0\0\0"),
            ("40-latin-1", b"town=K\xf6ln\n"),
            ("50-marked", b"\xef\xbb\xbfrack=7\nrow=3\n"),
            ("60-marked", b"\xef\xbb\xbf# of the rack\nshelf=1\n"),
        ] {
            write(dir.join(name), bytes).unwrap();
            set_permissions(dir.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        let local_labels = read(&RealHost::new(root.path()).unwrap());
        assert_eq!(local_labels.labels.keys().collect::<Vec<_>>(), ["row", "shelf"]);
        let mark_message = "the line begins with a byte order mark: save the file without it";
        let expected = [
            format!("{DIR}/10-utf-16: it is a text in UTF-16: save it in UTF-8"),
            format!("{DIR}/20-unmarked: it is a text in UTF-16: save it in UTF-8"),
            format!("{DIR}/30-utf-32: it is no text in UTF-8"),
            format!("{DIR}/40-latin-1: it is no text in UTF-8"),
            format!("labels.d/50-marked:1: {mark_message}"),
            format!("labels.d/60-marked:1: {mark_message}"),
        ];
        assert_eq!(local_labels.findings, expected);
    }

    /// The label `rack` of the second file replaces that of the first file. The value of a label may be empty.
    #[test]
    fn parse_lines_reports_line_number_when_invalid() {
        let mut local_labels = LocalLabels::default();
        parse_lines(&mut local_labels, "10-a", "# rack\nrack = 7\n\nno label\nbad//key=1\nexample.com/x=\n");
        parse_lines(&mut local_labels, "20-b", "rack=8");
        assert_eq!(local_labels.labels["rack"], ReportedLabel { value: "8".to_owned(), source: "labels.d/20-b:1".to_owned() });
        assert_eq!(local_labels.labels["example.com/x"].value, "");
        assert_eq!(local_labels.findings.len(), 2);
        assert!(local_labels.findings[0].starts_with("labels.d/10-a:4: a line is KEY=VALUE"), "{local_labels:?}");
    }
}
