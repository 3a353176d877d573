//! The operating system: os-release, uname, host names, the time zone.

use std::borrow::Cow;

use stemma_core::input::facts::is_host_name;
use stemma_core::time::time_zone_name;

use super::source::HostRoot;
use super::{HostFacts, clean_text};

/// Directories of the time zone database, in order of precedence.
const ZONEINFO_DIRS: [&str; 2] = ["/usr/share/zoneinfo", "/etc/zoneinfo"];

/// The names that the system call `uname` returns: of the kernel, the host, the kernel's release and the architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uname {
    pub(super) system: String,
    pub(super) node: String,
    pub(super) release: String,
    pub(super) machine: String,
}

/// Returns the result of the system call `uname`. Replaces bytes that are not UTF-8.
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
    let host_name = uname.node.split('.').next().unwrap_or_default();
    facts.add_name("hostname", Some(host_name).filter(|name| is_host_name(name)));
    facts.add_name("fqdn", qualified_name(&uname.node, &root.text("/etc/hosts").unwrap_or_default()));
    facts.add_text("timezone", time_zone(root).as_deref());
}

/// Returns the name of the time zone that programs use, or `None` if it is not certain.
///
/// Programs use the rules in the file `/etc/localtime`. The name of the zone is in the target of this link, or in
/// `/etc/timezone`. But another file may be mounted or copied over `/etc/localtime`, and `/etc/timezone` may be out of
/// date. So a name is valid only if the database has the same rules for it. If `/etc/localtime` or the target of the
/// link does not exist, programs use UTC.
fn time_zone(root: &HostRoot) -> Option<String> {
    if !root.exists("/etc/localtime") {
        return Some("UTC".to_owned());
    }
    let rules = root.bytes("/etc/localtime")?;
    let linked_zone = root.read_link("/etc/localtime").and_then(|link| zone_from_link(&link).map(str::to_owned));
    let mut candidates = linked_zone.into_iter().chain(root.line("/etc/timezone")).filter(|zone| is_zone_name(zone));
    candidates.find(|zone| has_rules(root, zone, &rules))
}

/// Returns whether the time zone database has these rules (the content of `/etc/localtime`) for a zone name.
///
/// Compares only with the first database that has the name. If `/etc/localtime` is a link into the second database, a
/// comparison with the second would compare the file with itself. Returns `false` if another file is mounted over the
/// zone file, because its content may then be of another zone.
fn has_rules(root: &HostRoot, zone: &str, rules: &[u8]) -> bool {
    let path = ZONEINFO_DIRS.iter().map(|database| format!("{database}/{zone}")).find(|path| root.exists(path));
    path.is_some_and(|path| !root.is_mounted_over(&path) && root.bytes(&path).is_some_and(|zone_rules| zone_rules == rules))
}

/// Returns the last value of a key in a text of lines `KEY=VALUE`, without its quotes. A shell that reads such a file
/// also uses the last value.
fn shell_value(text: &str, key: &str) -> Option<String> {
    let value = |line: &str| Some(unquote(line.trim().strip_prefix(key)?.strip_prefix('=')?));
    text.lines().filter_map(value).next_back()
}

/// Returns a value without its outer quotes, similar to a shell. Each backslash is removed, and the character after it
/// remains. Between single quotes, a backslash is an ordinary character.
fn unquote(value: &str) -> String {
    let between_quotes = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    if let Some(literal) = between_quotes('\'') {
        return literal.to_owned();
    }
    let mut text = String::new();
    let mut letters = between_quotes('"').unwrap_or(value).chars();
    while let Some(letter) = letters.next() {
        text.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    text
}

/// Returns the host's name with its domain, or `None` if no valid one is known. If the name `node` from `uname` has no
/// domain, the result is the first name in the line of `/etc/hosts` that contains `node`, as for `hostname -f`.
///
/// This does not query DNS, because a query needs time and its answers vary.
fn qualified_name<'a>(node: &'a str, hosts: &'a str) -> Option<&'a str> {
    let is_qualified = |name: &&str| name.contains('.') && is_host_name(name);
    if node.contains('.') {
        return Some(node).filter(is_qualified);
    }
    let first_name = |line: &'a str| {
        let mut names = line.split('#').next()?.split_ascii_whitespace().skip(1);
        let first = names.next()?;
        (first == node || names.any(|name| name == node)).then_some(first)
    };
    hosts.lines().filter_map(first_name).find(is_qualified)
}

/// Returns the unchecked name of the time zone in the target of the link `/etc/localtime`: without the directory of the
/// time zone database, and without `posix/` or `right/`, its variants without and with leap seconds.
fn zone_from_link(link: &str) -> Option<&str> {
    let (_, zone) = link.split_once("zoneinfo/")?;
    Some(zone.strip_prefix("posix/").or_else(|| zone.strip_prefix("right/")).unwrap_or(zone))
}

/// Returns whether the IANA time zone database has a zone with this name. Some files in the directory of the database
/// are not zones, for example `posixrules` and `localtime`.
fn is_zone_name(zone: &str) -> bool {
    time_zone_name(zone).is_ok()
}

/// Adds the volatile facts about uptime and load.
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

    /// Quotes and escapes are removed. The quote in `A`, which no second quote closes, remains.
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

    /// Each case contains a host name from `uname`, and the full name that `/etc/hosts` or the name itself gives. In
    /// `hosts`, `web-2` is only in a comment, and the first name in the line of `web-3` is not valid.
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
        let check = |link: Option<&str>, copy: Option<&str>, timezone_text: &str, expected: Option<&str>| {
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
            if !timezone_text.is_empty() {
                std::fs::write(etc.join("timezone"), format!("{timezone_text}\n")).unwrap();
            }
            assert_eq!(time_zone(&HostRoot::new(dir.path())).as_deref(), expected, "{link:?} {copy:?} {timezone_text:?}");
        };
        check(Some("../usr/share/zoneinfo/Europe/Rome"), None, "", Some("Europe/Rome"));
        check(Some("../usr/share/zoneinfo/Europe/Rome"), None, "Europe/Berlin", Some("Europe/Rome"));
        check(Some("../usr/share/zoneinfo/posix/Europe/Rome"), None, "", Some("Europe/Rome"));
        // This zone counts leap seconds. The zone with the plain name does not.
        check(Some("../usr/share/zoneinfo/right/Europe/Rome"), None, "", None);
        check(Some("../usr/share/zoneinfo/Europe/Atlantis"), None, "Europe/Berlin", Some("UTC"));
        check(None, Some("TZif-Berlin"), "Europe/Berlin", Some("Europe/Berlin"));
        check(None, Some("TZif-Berlin"), "Europe/Rome", None);
        check(None, Some("TZif-Berlin"), "../../../etc/localtime", None);
        check(None, Some("TZif-Berlin"), "", None);
        check(None, None, "Europe/Berlin", Some("UTC"));
        check(None, None, "", Some("UTC"));
        // Files in the database directory that are not zones.
        check(Some("../usr/share/zoneinfo/posixrules"), None, "", None);
        check(Some("../usr/share/zoneinfo/posixrules"), None, "America/New_York", Some("America/New_York"));
        check(Some("../usr/share/zoneinfo/Factory"), None, "", None);
        check(None, Some("TZif-York"), "posixrules", None);
        check(None, Some("TZif-Rome"), "posix/Europe/Rome", None);
        // In the second database: a name that the first lacks, one with the same rules, one with other rules, and a
        // zone of the host's own.
        check(Some("zoneinfo/Asia/Tokyo"), None, "", Some("Asia/Tokyo"));
        check(None, Some("TZif-Tokyo"), "Asia/Tokyo", Some("Asia/Tokyo"));
        check(Some("zoneinfo/Europe/Rome"), None, "", Some("Europe/Rome"));
        check(Some("zoneinfo/Europe/Berlin"), None, "", None);
        check(Some("zoneinfo/Europe/Berlin"), None, "Europe/Rome", Some("Europe/Rome"));
        check(Some("zoneinfo/Asia/office"), None, "", None);
    }

    /// Each case contains the target of the link `/etc/localtime`, and the name in it if a zone has that name.
    #[test]
    fn zone_from_link_gives_valid_zone_only_for_database_entry() {
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
