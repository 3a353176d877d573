//! Labels that the host's own people and programs give: `/etc/stemma/labels.d/*`, lines `KEY=VALUE`.
//!
//! They decide nothing by themselves; they are reported. Of one key in several files the last file by name wins. A file
//! that someone without rights could have written, or that is no regular file, is left out, and said (S37), and so is one with a name that
//! `run-parts` would not take. Where someone without rights could write the directory or one above it, none is read, as no hook is run.

use std::collections::BTreeMap;

use stemma_core::json;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::name::is_run_parts_name;
use stemma_wire::message::observed::ReportedLabel;

use crate::findings::left_out;
use crate::host::{Dir, Host, HostError, HostPath, Kind, Stat};

/// Where they stand.
pub(super) const DIR: &str = "/etc/stemma/labels.d";
/// The largest file that is read.
const LARGEST: u64 = 64 * 1024;
/// The most labels that are reported.
const MOST: usize = 256;

/// The most findings that are said one by one.
const MOST_FINDINGS: usize = 32;

/// What the files say, and what is wrong with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLabels {
    /// By key.
    pub labels: BTreeMap<String, ReportedLabel>,
    /// One sentence each.
    pub findings: Vec<String>,
}

impl LocalLabels {
    /// What is found where nothing is read, for this reason.
    fn unread(finding: String) -> Self {
        Self { findings: vec![finding], ..Self::default() }
    }
}

/// Reads every file.
pub(super) fn read(host: &dyn Host) -> LocalLabels {
    of_dir(host).unwrap_or_else(|error| LocalLabels::unread(error.sentence()))
}

fn of_dir(host: &dyn Host) -> Result<LocalLabels, HostError> {
    let path = HostPath::own(DIR);
    let Some(dir) = host.dir(&path)? else { return Ok(LocalLabels::default()) };
    let own = host.identity().0;
    if let Some((open, stat)) = host.open_to_others(&path)? {
        return Ok(LocalLabels::unread(said_of_directory(&open, &stat, own)));
    }
    let names = dir.names()?.into_iter().filter(|name| !name.starts_with('.'));
    let (names, mut left): (Vec<_>, Vec<_>) = names.partition(|name| is_run_parts_name(name));
    let unreadable = dir.unreadable_names()?.into_iter().map(|(name, _)| name);
    left.extend(unreadable.filter(|name| !name.starts_with('.')));
    let mut found = read_files(names.into_iter().map(|name| {
        let text = text(&*dir, &name, own);
        (name, text)
    }));
    found.findings.extend(left_out(DIR, &left));
    Ok(found)
}

/// Reads the texts of files by name, or takes the sentence that says why there is none.
pub fn read_files(files: impl IntoIterator<Item = (String, Result<String, String>)>) -> LocalLabels {
    let mut found = LocalLabels::default();
    for (name, text) in files {
        match text {
            Ok(text) => read_lines(&mut found, &name, &text),
            Err(finding) => found.findings.push(finding),
        }
    }
    bound(&mut found.findings);
    found
}

/// How many are named; of the others only their number is.
fn bound(findings: &mut Vec<String>) {
    if let Some(more) = findings.len().checked_sub(MOST_FINDINGS).filter(|more| *more > 0) {
        findings.truncate(MOST_FINDINGS);
        findings.push(format!("{DIR}: {more} more lines or files cannot be used"));
    }
}

/// Who may write the directory, or one above it, may put a file of somebody else's there.
fn said_of_directory(open: &str, stat: &Stat, own: u32) -> String {
    let below = DIR.strip_prefix(open).unwrap_or_default().trim_start_matches('/');
    let unread = if below.is_empty() { "it".to_owned() } else { format!("{below} in it") };
    format!("{open}: {}", written_by_others(stat, own, &unread).unwrap_or_default())
}

/// Why somebody without the agent's rights could have written this, so that something is not read; `None` where only root or the agent's own
/// user can.
fn written_by_others(stat: &Stat, own: u32, unread: &str) -> Option<String> {
    if stat.mode & 0o022 != 0 {
        Some(format!("can be written by others (mode {:04o}), so {unread} is not read: chmod go-w it", stat.mode))
    } else if stat.user != 0 && stat.user != own {
        Some(format!("belongs to user {}, so {unread} is not read: chown it to root", stat.user))
    } else {
        None
    }
}

fn text(dir: &dyn Dir, name: &str, own: u32) -> Result<String, String> {
    // It names the file itself.
    let said = |error: HostError| error.sentence();
    let stat = dir.stat(name).map_err(said)?.ok_or_else(|| format!("{DIR}/{name}: is gone"))?;
    if stat.kind == Kind::File
        && let Some(why) = written_by_others(&stat, own, "it")
    {
        return Err(format!("{DIR}/{name}: {why}"));
    }
    let bytes = dir.read(name, LARGEST).map_err(said)?.unwrap_or_default();
    json::utf_8(bytes).map_err(|why| format!("{DIR}/{name}: {why}"))
}

fn read_lines(found: &mut LocalLabels, file: &str, text: &str) {
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let source = format!("labels.d/{file}:{}", at + 1);
        match label(line) {
            Ok((key, value)) if found.labels.len() < MOST || found.labels.contains_key(&key) => {
                found.labels.insert(key, ReportedLabel { value, source });
            }
            Ok(_) => found.findings.push(format!("{source}: more than {MOST} labels: this one is left out")),
            Err(why) => found.findings.push(format!("{source}: {why}")),
        }
    }
}

fn label(line: &str) -> Result<(String, String), String> {
    if line.starts_with('\u{feff}') {
        return Err("a byte order mark stands before the line, which is not read: save the file without it".to_owned());
    }
    let (key, value) = line.split_once('=').ok_or("a line is KEY=VALUE")?;
    LabelKey::new(key.trim()).map_err(|why| why.to_string())?;
    LabelValue::new(value.trim()).map_err(|why| why.to_string())?;
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

    /// The directory below this root, with those above it: nobody else may write them, whatever the umask is.
    fn made(root: &Path) -> PathBuf {
        let dir = root.join("etc/stemma/labels.d");
        DirBuilder::new().recursive(true).mode(0o755).create(&dir).unwrap();
        dir
    }

    /// Who may write a directory above could put another in its place, and its labels were read.
    #[test]
    fn y08_no_label_is_read_from_a_directory_that_others_may_write() {
        for (open, unread) in
            [("/etc", "stemma/labels.d in it"), ("/etc/stemma", "labels.d in it"), ("/etc/stemma/labels.d", "it")]
        {
            for (mode, user, said) in [
                (0o777, 0, format!("can be written by others (mode 0777), so {unread} is not read: chmod go-w it")),
                (0o775, 0, format!("can be written by others (mode 0775), so {unread} is not read: chmod go-w it")),
                (0o755, 1000, format!("belongs to user 1000, so {unread} is not read: chown it to root")),
            ] {
                let host = MemoryHost::new();
                host.put("/etc/stemma/labels.d/10-a", "rack=7\n");
                assert_eq!(read(&host).labels.len(), 1);
                host.chmod(open, mode);
                host.chown(open, user);
                let expected = LocalLabels { labels: BTreeMap::new(), findings: vec![format!("{open}: {said}")] };
                assert_eq!(read(&host), expected);
            }
        }
    }

    #[test]
    fn s37_a_file_that_others_could_have_written_or_that_is_none_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let dir = made(root.path());
        for (name, mode) in [("10-good", 0o644), ("20-group", 0o664), ("30-all", 0o646)] {
            write(dir.join(name), format!("from-{name}=1\n")).unwrap();
            set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        }
        symlink(dir.join("10-good"), dir.join("40-link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("50-fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        create_dir_all(dir.join("60-dir")).unwrap();
        write(dir.join(".hidden"), "hidden=1\n").unwrap();

        let host = RealHost::new(root.path()).unwrap();
        let found = read(&host);
        assert_eq!(found.labels.keys().collect::<Vec<_>>(), ["from-10-good"]);
        let about: Vec<&str> = found.findings.iter().map(|text| text.split([':', ' ']).next().unwrap()).collect();
        let names = ["20-group", "30-all", "40-link", "50-fifo", "60-dir"];
        assert_eq!(about, names.map(|name| format!("/etc/stemma/labels.d/{name}")), "{:?}", found.findings);

        set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let found = read(&host);
        assert!(found.labels.is_empty());
        assert_eq!(
            found.findings,
            ["/etc/stemma/labels.d: can be written by others (mode 0777), so it is not read: chmod go-w it"]
        );
    }

    #[test]
    fn y08_what_editors_and_package_managers_leave_is_not_read_and_said_in_one_sentence() {
        let root = tempfile::tempdir().unwrap();
        let dir = made(root.path());
        let left = ["#10-a#", "10-a.bak", "10-a.dpkg-dist", "10-a.orig", "10-a.rpmnew", "10-a.ucf-old", "10-a~"];
        for name in left.into_iter().chain(["10-a", "local", ".10-a.swp"]) {
            let key = if left.contains(&name) { "left" } else { name.trim_start_matches('.') };
            write(dir.join(name), format!("{key}=1\n")).unwrap();
            set_permissions(dir.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        let found = read(&RealHost::new(root.path()).unwrap());
        assert_eq!(found.labels.keys().collect::<Vec<_>>(), ["10-a", "local"]);
        assert_eq!(found.findings, [left_out(DIR, &left.map(str::to_owned)).unwrap()]);
    }

    /// It was left out without a word, in both directories.
    #[test]
    fn y08_a_name_that_is_no_utf_8_is_left_out_as_any_other_and_said() {
        let root = tempfile::tempdir().unwrap();
        let labels = made(root.path());
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
        let left = ["a b".to_owned(), "bad\u{fffd}".to_owned()];
        assert_eq!(crate::hook_files::findings(&host), [left_out("/etc/stemma/hooks.d", &left).unwrap()]);
        let found = read(&host);
        assert_eq!(found.labels["a"].source, "labels.d/10-a:1");
        assert_eq!(found.findings, [left_out(DIR, &left).unwrap()]);
    }

    /// A path was said twice, and that of a link three times.
    #[test]
    fn y08_a_finding_names_its_path_once() {
        let root = tempfile::tempdir().unwrap();
        let stemma = root.path().join("etc/stemma");
        made(root.path());
        write(stemma.join("labels.d/10-large"), vec![b'#'; 64 * 1024 + 1]).unwrap();
        write(stemma.join("labels.d/20-latin"), b"a=\xe9\n").unwrap();
        symlink("10-large", stemma.join("labels.d/30-link")).unwrap();
        create_dir_all(stemma.join("labels.d/40-dir")).unwrap();
        for name in ["10-large", "20-latin"] {
            set_permissions(stemma.join("labels.d").join(name), Permissions::from_mode(0o644)).unwrap();
        }
        symlink("elsewhere", stemma.join("hooks.d")).unwrap();
        let host = RealHost::new(root.path()).unwrap();
        let said = || crate::hook_files::findings(&host).into_iter().chain(read(&host).findings).collect::<Vec<_>>();
        let link = "is a symbolic link, and links are not followed: write";
        let moved = "was expected: move it away, or name another path";
        let expected = [
            format!("/etc/stemma/hooks.d {link} /etc/stemma/elsewhere"),
            "/etc/stemma/labels.d/10-large is larger than 65536 bytes".to_owned(),
            "/etc/stemma/labels.d/20-latin: it is no text in UTF-8".to_owned(),
            format!("/etc/stemma/labels.d/30-link {link} /etc/stemma/labels.d/10-large"),
            format!("/etc/stemma/labels.d/40-dir is a directory, where a regular file {moved}"),
        ];
        assert_eq!(said(), expected);
        std::fs::remove_file(stemma.join("hooks.d")).unwrap();
        write(stemma.join("hooks.d"), "").unwrap();
        assert_eq!(said()[0], format!("/etc/stemma/hooks.d is a regular file, where a directory {moved}"));
    }

    #[test]
    fn only_root_and_the_agents_own_user_are_trusted() {
        let stat = |user, mode| Stat { kind: Kind::File, mode, user, group: 0, size: 0, links: 1 };
        for (stat, trusted) in
            [(stat(0, 0o644), true), (stat(7, 0o600), true), (stat(8, 0o600), false), (stat(0, 0o620), false)]
        {
            assert_eq!(written_by_others(&stat, 7, "it").is_none(), trusted, "{stat:?}");
        }
    }

    #[test]
    fn of_many_findings_the_number_is_said() {
        let mut found = LocalLabels::default();
        let lines: String = (0..300).map(|at| format!("k{at}=1\n")).collect();
        read_lines(&mut found, "10-a", &lines);
        bound(&mut found.findings);
        assert_eq!((found.labels.len(), found.findings.len()), (256, 33));
        assert_eq!(found.findings[0], "labels.d/10-a:257: more than 256 labels: this one is left out");
        assert_eq!(found.findings[32], "/etc/stemma/labels.d: 12 more lines or files cannot be used");
    }

    #[test]
    fn y09_a_label_file_of_another_encoding_is_said_to_be_that() {
        let root = tempfile::tempdir().unwrap();
        let dir = made(root.path());
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
        let found = read(&RealHost::new(root.path()).unwrap());
        assert_eq!(found.labels.keys().collect::<Vec<_>>(), ["row", "shelf"]);
        let mark = "a byte order mark stands before the line, which is not read: save the file without it";
        let expected = [
            format!("{DIR}/10-utf-16: it is a text in UTF-16: save it in UTF-8"),
            format!("{DIR}/20-unmarked: it is a text in UTF-16: save it in UTF-8"),
            format!("{DIR}/30-utf-32: it is no text in UTF-8"),
            format!("{DIR}/40-latin-1: it is no text in UTF-8"),
            format!("labels.d/50-marked:1: {mark}"),
            format!("labels.d/60-marked:1: {mark}"),
        ];
        assert_eq!(found.findings, expected);
    }

    #[test]
    fn lines_are_labels_and_what_is_wrong_is_said_with_its_line() {
        let mut found = LocalLabels::default();
        read_lines(&mut found, "10-a", "# rack\nrack = 7\n\nno label\nbad//key=1\nexample.com/x=\n");
        read_lines(&mut found, "20-b", "rack=8");
        assert_eq!(found.labels["rack"], ReportedLabel { value: "8".to_owned(), source: "labels.d/20-b:1".to_owned() });
        assert_eq!(found.labels["example.com/x"].value, "");
        assert_eq!(found.findings.len(), 2);
        assert!(found.findings[0].starts_with("labels.d/10-a:4: a line is KEY=VALUE"), "{found:?}");
    }
}
