//! The operating system: os-release, uname, host names, the time zone.

use std::borrow::Cow;

use stemma_core::input::facts::is_host_name;
use stemma_core::time::time_zone_name;

use super::source::HostRoot;
use super::{HostFacts, clean_text};

/// Directories of the time zone database, in order of precedence.
const ZONEINFO_DIRS: [&str; 2] = ["/usr/share/zoneinfo", "/etc/zoneinfo"];

/// The names that the system call `uname` returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uname {
    pub(super) system: String,
    pub(super) node: String,
    pub(super) release: String,
    pub(super) machine: String,
}

/// Calls `uname`. Bytes that are not UTF-8 are replaced.
pub(super) fn read_uname() -> Uname {
    let names = rustix::system::uname();
    Uname {
        system: names.sysname().to_string_lossy().into_owned(),
        node: names.nodename().to_string_lossy().into_owned(),
        release: names.release().to_string_lossy().into_owned(),
        machine: names.machine().to_string_lossy().into_owned(),
    }
}

/// Adds the stable facts about the operating system, the host's names and the time zone.
pub(super) fn add_facts(root: &HostRoot, uname: &Uname, facts: &mut HostFacts) {
    facts.add_name("architecture", Some(&*uname.machine));
    facts.add_name("kernel.name", Some(&*uname.system));
    facts.add_text("kernel.release", clean_text(&uname.release).as_deref());
    let release = root.text("/etc/os-release").or_else(|| root.text("/usr/lib/os-release")).unwrap_or_default();
    for (path, key) in
        [("os.codename", "VERSION_CODENAME"), ("os.id", "ID"), ("os.name", "PRETTY_NAME"), ("os.version", "VERSION_ID")]
    {
        facts.add_text(path, shell_value(&release, key).and_then(|text| clean_text(&text)).as_deref());
    }
    let short = uname.node.split('.').next().unwrap_or_default();
    facts.add_name("hostname", Some(short).filter(|name| is_host_name(name)));
    facts.add_name("fqdn", qualified_name(&uname.node, &root.text("/etc/hosts").unwrap_or_default()));
    facts.add_text("timezone", time_zone(root).as_deref());
}

/// Returns the time zone that programs use. Its name comes from the link `/etc/localtime` or from `/etc/timezone`, and
/// counts only if the rules of that zone equal `/etc/localtime`: another zone may be mounted or copied over that file,
/// and `/etc/timezone` may be out of date. If `/etc/localtime`, or the target of its link, does not exist, programs use
/// UTC.
fn time_zone(root: &HostRoot) -> Option<String> {
    if !root.exists("/etc/localtime") {
        return Some("UTC".to_owned());
    }
    let rules = root.bytes("/etc/localtime")?;
    let linked = root.read_link("/etc/localtime").and_then(|link| zone_from_link(&link).map(str::to_owned));
    let mut named = linked.into_iter().chain(root.line("/etc/timezone")).filter(|zone| is_zone_name(zone));
    named.find(|zone| has_rules(root, zone, &rules))
}

/// Returns whether a named zone has these rules (the content of `/etc/localtime`). Only the first database that has the
/// name is compared. If `/etc/localtime` links into the second database, a comparison with the second would compare the
/// file with itself. A zone file with a mount over it does not count.
fn has_rules(root: &HostRoot, zone: &str, rules: &[u8]) -> bool {
    let path = ZONEINFO_DIRS.iter().map(|database| format!("{database}/{zone}")).find(|path| root.exists(path));
    path.is_some_and(|path| !root.is_mounted_over(&path) && root.bytes(&path).is_some_and(|named| named == rules))
}

/// Returns the last value of a key in a file of `KEY=VALUE` lines, unquoted as a shell would.
fn shell_value(text: &str, key: &str) -> Option<String> {
    let value = |line: &str| Some(unquote(line.trim().strip_prefix(key)?.strip_prefix('=')?));
    text.lines().filter_map(value).next_back()
}

/// Removes the quotes and backslashes of a value, as a shell would.
fn unquote(value: &str) -> String {
    let inner = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    if let Some(plain) = inner('\'') {
        return plain.to_owned();
    }
    let mut text = String::new();
    let mut letters = inner('"').unwrap_or(value).chars();
    while let Some(letter) = letters.next() {
        text.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    text
}

/// Returns the host's name if it has a domain, else the first name of its line in `/etc/hosts`, as `hostname -f` does.
/// DNS is not queried, because it takes time and its answers vary.
fn qualified_name<'a>(node: &'a str, hosts: &'a str) -> Option<&'a str> {
    let is_full = |name: &&str| name.contains('.') && is_host_name(name);
    if node.contains('.') {
        return Some(node).filter(is_full);
    }
    let named = |line: &'a str| {
        let mut names = line.split('#').next()?.split_ascii_whitespace().skip(1);
        let first = names.next()?;
        (first == node || names.any(|name| name == node)).then_some(first)
    };
    hosts.lines().filter_map(named).find(is_full)
}

/// Returns the zone name in the target of the link `/etc/localtime`.
fn zone_from_link(link: &str) -> Option<&str> {
    let (_, zone) = link.split_once("zoneinfo/")?;
    Some(zone.strip_prefix("posix/").or_else(|| zone.strip_prefix("right/")).unwrap_or(zone))
}

/// Returns whether the IANA database has a zone of this name. Not each file of the directory is a zone: `posixrules`
/// and `localtime` are there too.
fn is_zone_name(zone: &str) -> bool {
    time_zone_name(zone).is_ok()
}

/// Adds uptime and load, which are volatile.
pub(super) fn add_volatile_facts(root: &HostRoot, facts: &mut HostFacts) {
    let uptime = root.line("/proc/uptime").unwrap_or_default();
    facts.add_volatile_number("uptime_seconds", uptime.split('.').next().and_then(|seconds| seconds.parse().ok()));
    let load: Cow<'_, str> = root.line("/proc/loadavg").unwrap_or_default().into();
    for (path, word) in ["load.1m", "load.5m", "load.15m"].into_iter().zip(load.split_ascii_whitespace()) {
        facts.add_volatile_decimal(path, word.parse().ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_value_reads_os_release_like_shell() {
        let text = "NAME=x\nID=debian\n# ID=comment\nPRETTY_NAME=\"Debian \\\"12\\\"\"\nVERSION_ID='12'\nID_LIKE=y\nA=\"\nB=\\\n";
        for (key, expected) in [
            ("ID", Some("debian")),
            ("PRETTY_NAME", Some("Debian \"12\"")),
            ("VERSION_ID", Some("12")),
            ("VERSION_CODENAME", None),
            ("A", Some("\"")),
            ("B", Some("")),
        ] {
            assert_eq!(shell_value(text, key).as_deref(), expected, "{key}");
        }
    }

    #[test]
    fn qualified_name_requires_domain() {
        let hosts = "127.0.0.1 localhost\n127.0.1.1 web-1.example.net web-1 # web-2\n::1 a_b.c web-3\n10.0.0.1\n";
        for (node, expected) in [
            ("web-1", Some("web-1.example.net")),
            ("db.example.org", Some("db.example.org")),
            ("web-2", None),
            ("web-3", None),
            ("localhost", None),
            ("-.x", None),
            ("", None),
        ] {
            assert_eq!(qualified_name(node, hosts), expected, "{node}");
        }
    }

    #[test]
    fn y09_time_zone_is_none_when_file_matches_no_zone() {
        let database = [
            ("usr/share/zoneinfo/Europe/Rome", "TZif-Rome"),
            ("usr/share/zoneinfo/posix/Europe/Rome", "TZif-Rome"),
            ("usr/share/zoneinfo/right/Europe/Rome", "TZif-leaps"),
            ("usr/share/zoneinfo/Europe/Berlin", "TZif-Berlin"),
            ("usr/share/zoneinfo/America/New_York", "TZif-York"),
            ("usr/share/zoneinfo/posixrules", "TZif-York"),
            ("usr/share/zoneinfo/Factory", "TZif-none"),
            ("etc/zoneinfo/Europe/Rome", "TZif-Rome"),
            ("etc/zoneinfo/Europe/Berlin", "TZif-Rome"),
            ("etc/zoneinfo/Asia/Tokyo", "TZif-Tokyo"),
            ("etc/zoneinfo/Asia/office", "TZif-office"),
        ];
        let stands = |link: Option<&str>, copy: Option<&str>, named: &str, expected: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            let etc = dir.path().join("etc");
            std::fs::create_dir_all(&etc).unwrap();
            for (path, rules) in database {
                let file = dir.path().join(path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, rules).unwrap();
            }
            if let Some(link) = link {
                std::os::unix::fs::symlink(link, etc.join("localtime")).unwrap();
            }
            if let Some(copy) = copy {
                std::fs::write(etc.join("localtime"), copy).unwrap();
            }
            if !named.is_empty() {
                std::fs::write(etc.join("timezone"), format!("{named}\n")).unwrap();
            }
            assert_eq!(time_zone(&HostRoot::new(dir.path())).as_deref(), expected, "{link:?} {copy:?} {named:?}");
        };
        stands(Some("../usr/share/zoneinfo/Europe/Rome"), None, "", Some("Europe/Rome"));
        stands(Some("../usr/share/zoneinfo/Europe/Rome"), None, "Europe/Berlin", Some("Europe/Rome"));
        stands(Some("../usr/share/zoneinfo/posix/Europe/Rome"), None, "", Some("Europe/Rome"));
        // This zone counts leap seconds. The zone with the plain name does not.
        stands(Some("../usr/share/zoneinfo/right/Europe/Rome"), None, "", None);
        stands(Some("../usr/share/zoneinfo/Europe/Atlantis"), None, "Europe/Berlin", Some("UTC"));
        stands(None, Some("TZif-Berlin"), "Europe/Berlin", Some("Europe/Berlin"));
        stands(None, Some("TZif-Berlin"), "Europe/Rome", None);
        stands(None, Some("TZif-Berlin"), "../../../etc/localtime", None);
        stands(None, Some("TZif-Berlin"), "", None);
        stands(None, None, "Europe/Berlin", Some("UTC"));
        stands(None, None, "", Some("UTC"));
        // Files in the database directory that are not zones.
        stands(Some("../usr/share/zoneinfo/posixrules"), None, "", None);
        stands(Some("../usr/share/zoneinfo/posixrules"), None, "America/New_York", Some("America/New_York"));
        stands(Some("../usr/share/zoneinfo/Factory"), None, "", None);
        stands(None, Some("TZif-York"), "posixrules", None);
        stands(None, Some("TZif-Rome"), "posix/Europe/Rome", None);
        // In the second database: a name that the first lacks, one with the same rules, one with other rules, and a
        // zone of the host's own.
        stands(Some("zoneinfo/Asia/Tokyo"), None, "", Some("Asia/Tokyo"));
        stands(None, Some("TZif-Tokyo"), "Asia/Tokyo", Some("Asia/Tokyo"));
        stands(Some("zoneinfo/Europe/Rome"), None, "", Some("Europe/Rome"));
        stands(Some("zoneinfo/Europe/Berlin"), None, "", None);
        stands(Some("zoneinfo/Europe/Berlin"), None, "Europe/Rome", Some("Europe/Rome"));
        stands(Some("zoneinfo/Asia/office"), None, "", None);
    }

    #[test]
    fn is_zone_name_requires_database_entry() {
        for (link, expected) in [
            ("/usr/share/zoneinfo/Europe/Berlin", Some("Europe/Berlin")),
            ("../usr/share/zoneinfo/posix/Etc/GMT+5", Some("Etc/GMT+5")),
            ("/usr/share/zoneinfo/right/Europe/Kiev", Some("Europe/Kiev")),
            ("/usr/share/zoneinfo/localtime", None),
            ("/usr/share/zoneinfo/posixrules", None),
            ("/usr/share/zoneinfo/posix/posixrules", None),
            ("/usr/share/zoneinfo/Factory", None),
            ("/usr/share/zoneinfo/tzdata.zi", None),
            ("/usr/share/zoneinfo/europe/berlin", None),
            ("/etc/my-zone", None),
            ("/usr/share/zoneinfo/../../x", None),
            ("/usr/share/zoneinfo/", None),
        ] {
            assert_eq!(zone_from_link(link).filter(|zone| is_zone_name(zone)), expected, "{link}");
        }
    }
}
