//! The operating system: os-release, the kernel's own words, names of the host, the time zone.

use std::borrow::Cow;

use stemma_core::input::facts::is_host_name;
use stemma_core::time::zone_name;

use super::source::Root;
use super::{Seen, clean};

/// Where distributions have the time zones, first the one that goes before the other.
const DATABASES: [&str; 2] = ["/usr/share/zoneinfo", "/etc/zoneinfo"];

/// What `uname` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uname {
    pub(super) system: String,
    pub(super) node: String,
    pub(super) release: String,
    pub(super) machine: String,
}

/// Asks the kernel.
pub(super) fn uname() -> Uname {
    let said = rustix::system::uname();
    Uname {
        system: said.sysname().to_string_lossy().into_owned(),
        node: said.nodename().to_string_lossy().into_owned(),
        release: said.release().to_string_lossy().into_owned(),
        machine: said.machine().to_string_lossy().into_owned(),
    }
}

/// Writes the facts down.
pub(super) fn say(root: &Root, uname: &Uname, seen: &mut Seen) {
    seen.name("architecture", Some(&*uname.machine));
    seen.name("kernel.name", Some(&*uname.system));
    seen.text("kernel.release", clean(&uname.release).as_deref());
    let release = root.text("/etc/os-release").or_else(|| root.text("/usr/lib/os-release")).unwrap_or_default();
    for (path, key) in
        [("os.codename", "VERSION_CODENAME"), ("os.id", "ID"), ("os.name", "PRETTY_NAME"), ("os.version", "VERSION_ID")]
    {
        seen.text(path, assigned(&release, key).and_then(|text| clean(&text)).as_deref());
    }
    let short = uname.node.split('.').next().unwrap_or_default();
    seen.name("hostname", Some(short).filter(|name| is_host_name(name)));
    seen.name("fqdn", full_name(&uname.node, &root.text("/etc/hosts").unwrap_or_default()));
    seen.text("timezone", zone(root).as_deref());
}

/// The time zone that programs have: the named one whose rules are those of `/etc/localtime`. A name alone says nothing: another zone may be
/// mounted or copied over the file, and `/etc/timezone` be older than it. Where there is no file, also behind a link, programs have UTC.
fn zone(root: &Root) -> Option<String> {
    if !root.has("/etc/localtime") {
        return Some("UTC".to_owned());
    }
    let rules = root.bytes("/etc/localtime")?;
    let linked = root.link("/etc/localtime").and_then(|link| zone_of(&link).map(str::to_owned));
    let mut named = linked.into_iter().chain(root.line("/etc/timezone")).filter(|zone| is_zone(zone));
    named.find(|zone| has_rules(root, zone, &rules))
}

/// Whether the zone of that name has these rules. The first database that has the name decides: where `/etc/localtime` is a link into the other
/// one, that one would be compared with itself, and says nothing against the first. What is mounted over a zone's file are another one's rules.
fn has_rules(root: &Root, zone: &str, rules: &[u8]) -> bool {
    let path = DATABASES.iter().map(|database| format!("{database}/{zone}")).find(|path| root.has(path));
    path.is_some_and(|path| !root.is_mounted_over(&path) && root.bytes(&path).is_some_and(|named| named == rules))
}

/// The last value that a file of `KEY=VALUE` lines gives a key, its quotes taken off as a shell would.
fn assigned(text: &str, key: &str) -> Option<String> {
    let value = |line: &str| Some(unquoted(line.trim().strip_prefix(key)?.strip_prefix('=')?));
    text.lines().filter_map(value).next_back()
}

fn unquoted(value: &str) -> String {
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

/// The host's name if it has a domain, else the first name of its line in `/etc/hosts`, as `hostname -f` gives it
/// there. DNS is not asked: it takes time, and answers differently at times.
fn full_name<'a>(node: &'a str, hosts: &'a str) -> Option<&'a str> {
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

fn zone_of(link: &str) -> Option<&str> {
    let (_, zone) = link.split_once("zoneinfo/")?;
    Some(zone.strip_prefix("posix/").or_else(|| zone.strip_prefix("right/")).unwrap_or(zone))
}

/// Whether the IANA has a zone of that name. Not each file of the database is one: `posixrules` and `localtime` stand there too.
fn is_zone(zone: &str) -> bool {
    zone_name(zone).is_ok()
}

/// How long it runs and how much it has to do: these pass.
pub(super) fn say_passing(root: &Root, seen: &mut Seen) {
    let uptime = root.line("/proc/uptime").unwrap_or_default();
    seen.passing_number("uptime_seconds", uptime.split('.').next().and_then(|seconds| seconds.parse().ok()));
    let load: Cow<'_, str> = root.line("/proc/loadavg").unwrap_or_default().into();
    for (path, word) in ["load.1m", "load.5m", "load.15m"].into_iter().zip(load.split_ascii_whitespace()) {
        seen.passing_decimal(path, word.parse().ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_is_read_as_a_shell_would() {
        let text = "NAME=x\nID=debian\n# ID=comment\nPRETTY_NAME=\"Debian \\\"12\\\"\"\nVERSION_ID='12'\nID_LIKE=y\nA=\"\nB=\\\n";
        for (key, expected) in [
            ("ID", Some("debian")),
            ("PRETTY_NAME", Some("Debian \"12\"")),
            ("VERSION_ID", Some("12")),
            ("VERSION_CODENAME", None),
            ("A", Some("\"")),
            ("B", Some("")),
        ] {
            assert_eq!(assigned(text, key).as_deref(), expected, "{key}");
        }
    }

    #[test]
    fn a_full_name_has_a_domain() {
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
            assert_eq!(full_name(node, hosts), expected, "{node}");
        }
    }

    #[test]
    fn y09_the_zone_is_that_of_the_file_or_unknown() {
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
            assert_eq!(zone(&Root::new(dir.path())).as_deref(), expected, "{link:?} {copy:?} {named:?}");
        };
        stands(Some("../usr/share/zoneinfo/Europe/Rome"), None, "", Some("Europe/Rome"));
        stands(Some("../usr/share/zoneinfo/Europe/Rome"), None, "Europe/Berlin", Some("Europe/Rome"));
        stands(Some("../usr/share/zoneinfo/posix/Europe/Rome"), None, "", Some("Europe/Rome"));
        // It counts leap seconds, as the zone of that name does not.
        stands(Some("../usr/share/zoneinfo/right/Europe/Rome"), None, "", None);
        stands(Some("../usr/share/zoneinfo/Europe/Atlantis"), None, "Europe/Berlin", Some("UTC"));
        stands(None, Some("TZif-Berlin"), "Europe/Berlin", Some("Europe/Berlin"));
        stands(None, Some("TZif-Berlin"), "Europe/Rome", None);
        stands(None, Some("TZif-Berlin"), "../../../etc/localtime", None);
        stands(None, Some("TZif-Berlin"), "", None);
        stands(None, None, "Europe/Berlin", Some("UTC"));
        stands(None, None, "", Some("UTC"));
        // Files of the database that are no zones.
        stands(Some("../usr/share/zoneinfo/posixrules"), None, "", None);
        stands(Some("../usr/share/zoneinfo/posixrules"), None, "America/New_York", Some("America/New_York"));
        stands(Some("../usr/share/zoneinfo/Factory"), None, "", None);
        stands(None, Some("TZif-York"), "posixrules", None);
        stands(None, Some("TZif-Rome"), "posix/Europe/Rome", None);
        // The other database has a name alone, has the same rules, has others, and has one that is the host's own.
        stands(Some("zoneinfo/Asia/Tokyo"), None, "", Some("Asia/Tokyo"));
        stands(None, Some("TZif-Tokyo"), "Asia/Tokyo", Some("Asia/Tokyo"));
        stands(Some("zoneinfo/Europe/Rome"), None, "", Some("Europe/Rome"));
        stands(Some("zoneinfo/Europe/Berlin"), None, "", None);
        stands(Some("zoneinfo/Europe/Berlin"), None, "Europe/Rome", Some("Europe/Rome"));
        stands(Some("zoneinfo/Asia/office"), None, "", None);
    }

    #[test]
    fn a_zone_is_a_name_of_the_database() {
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
            assert_eq!(zone_of(link).filter(|zone| is_zone(zone)), expected, "{link}");
        }
    }
}
