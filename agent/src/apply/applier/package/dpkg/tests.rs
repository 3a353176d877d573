//! The database of dpkg, from samples of real status files.

use super::*;
use crate::host::memory::MemoryHost;

/// Shortened stanzas of a Debian 12 host.
pub(in super::super) const STATUS_SAMPLE: &str = "\
Package: dpkg
Essential: yes
Status: install ok installed
Architecture: amd64
Version: 1.21.22

Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Provides: libc6-abi (= 2.36)
Version: 2.36-9+deb12u13
Conffiles:
 /etc/ld.so.conf.d/x86_64-linux-gnu.conf d4e7a7b88a71b5ffd9e2644e71a0cfab

Package: libc6
Status: hold ok installed
Architecture: i386
Version: 2.36-9+deb12u10

Package: postfix
Status: install ok installed
Architecture: amd64
Provides: default-mta,
 mail-transport-agent
Version: 3.7.11-0+deb12u1
Description: High-performance mail transport agent
 Package: this is no field

Package: nginx-common
Status: deinstall ok config-files
Architecture: all
Version: 1.22.1-9+deb12u3

Package: tzdata
Status: hold ok installed
Architecture: all
Version: 2025b-0+deb12u1

Package: curl
Status: purge ok not-installed
Architecture: amd64
";

fn read(host: &MemoryHost) -> Rc<Database> {
    read_with(host, &PackageCache::default())
}

fn read_with(host: &MemoryHost, cache: &PackageCache) -> Rc<Database> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(read_database(host, cache)).unwrap().unwrap()
}

fn database(status: &str) -> Rc<Database> {
    let host = MemoryHost::new();
    host.put("/var/lib/dpkg/status", status);
    read(&host)
}

#[test]
fn package_is_found_by_name_and_architecture() {
    let database = database(STATUS_SAMPLE);
    let version = |name: &str| database.package(name).version;
    for (name, expected) in [
        ("libc6", Some("2.36-9+deb12u13")),
        ("libc6:amd64", Some("2.36-9+deb12u13")),
        ("libc6:i386", Some("2.36-9+deb12u10")),
        ("libc6:arm64", None),
        ("tzdata", Some("2025b-0+deb12u1")),
        ("tzdata:amd64", Some("2025b-0+deb12u1")),
        ("tzdata:all", Some("2025b-0+deb12u1")),
        ("tzdata:i386", None),
        ("nginx-common", None),
        ("curl", None),
        ("this", None),
        ("mail-transport-agent", None),
    ] {
        assert_eq!(version(name).as_deref(), expected, "{name}");
    }
    let held: Vec<_> = ["libc6", "libc6:i386", "tzdata"].map(|name| database.package(name).is_held).into();
    assert_eq!(held, [false, true, true]);
    assert!(database.package("nginx-common").has_configuration && !database.package("curl").has_configuration);
    let names: Vec<_> = database.installed().into_keys().collect();
    assert_eq!(names, ["dpkg", "libc6", "libc6:i386", "postfix", "tzdata"]);
}

#[test]
fn provided_name_has_provider_if_nothing_has_name_itself() {
    let database = database(STATUS_SAMPLE);
    for (name, provider) in [
        ("mail-transport-agent", Some("postfix")),
        ("default-mta", Some("postfix")),
        ("libc6-abi", Some("libc6")),
        ("postfix", None),
        ("= 2.36", None),
    ] {
        assert_eq!(database.package(name).provider.as_deref(), provider, "{name}");
    }
}

/// The states of `dpkg-query(1)`: which of them count as installed, and which `dpkg --audit` reports.
#[test]
fn states_of_dpkg_are_installed_or_broken() {
    for (status, is_installed, broken) in [
        ("install ok installed", true, None),
        ("hold ok installed", true, None),
        ("deinstall ok installed", true, None),
        ("deinstall ok config-files", false, None),
        ("unknown ok not-installed", false, None),
        ("install ok unpacked", true, Some(BrokenState::NotConfigured("unpacked"))),
        ("install ok half-configured", true, Some(BrokenState::NotConfigured("half-configured"))),
        ("install ok triggers-pending", true, Some(BrokenState::NotConfigured("triggers-pending"))),
        ("install ok triggers-awaited", true, Some(BrokenState::NotConfigured("triggers-awaited"))),
        ("install ok half-installed", false, Some(BrokenState::MustReinstall)),
        ("install reinstreq half-configured", true, Some(BrokenState::MustReinstall)),
    ] {
        let database = database(&format!("Package: curl\nStatus: {status}\nArchitecture: amd64\nVersion: 7.88.1-10\n"));
        assert_eq!(database.package("curl").version.is_some(), is_installed, "{status}");
        assert_eq!(database.broken().first().map(|(_, state)| *state), broken, "{status}");
    }
}

/// A dpkg that was killed leaves its last changes in the journal.
#[test]
fn journal_of_dpkg_replaces_records_of_status_file() {
    let host = MemoryHost::new();
    host.put("/var/lib/dpkg/status", STATUS_SAMPLE);
    host.put(
        "/var/lib/dpkg/updates/0000",
        "Package: curl\nStatus: install reinstreq half-installed\nArchitecture: amd64\nVersion: 1\n",
    );
    host.put("/var/lib/dpkg/updates/0001", "Package: curl\nStatus: install ok unpacked\nArchitecture: amd64\nVersion: 1\n");
    host.put("/var/lib/dpkg/updates/0002", "Package: postfix\nStatus: purge ok not-installed\n");
    host.put("/var/lib/dpkg/updates/tmp.i", "Package: tzdata\nStatus: purge ok not-installed\nArchitecture: all\n");
    let database = read(&host);
    assert_eq!(database.broken(), [("curl".to_owned(), BrokenState::NotConfigured("unpacked"))]);
    let installed = ["curl", "postfix", "tzdata"].map(|name| database.package(name).version.is_some());
    assert_eq!(installed, [true, false, true]);
}

/// The parser gets the file in chunks, which end anywhere.
#[test]
fn parser_reads_chunks_of_each_size() {
    let expected = database(STATUS_SAMPLE);
    for size in [1, 2, 7, 64, 1000] {
        let mut parser = Parser::default();
        STATUS_SAMPLE.as_bytes().chunks(size).for_each(|chunk| parser.push(chunk));
        parser.end_stanza();
        assert_eq!(parser.database, *expected, "{size}");
    }
}

#[test]
fn database_is_read_again_only_after_change() {
    let host = MemoryHost::new();
    host.put("/var/lib/dpkg/status", STATUS_SAMPLE);
    let cache = PackageCache::default();
    let first = read_with(&host, &cache);
    assert!(Rc::ptr_eq(&first, &read_with(&host, &cache)));
    host.put("/var/lib/dpkg/status", "");
    assert_eq!(*read_with(&host, &cache), Database::default());
}

/// dpkg links the file to `status-old` before it replaces the file.
#[tokio::test(start_paused = true)]
async fn read_waits_until_dpkg_has_replaced_file() {
    let host = MemoryHost::new();
    host.put("/var/lib/dpkg/status", "");
    host.increase_link_count("/var/lib/dpkg/status");
    let cache = PackageCache::default();
    let replace = async {
        tokio::time::sleep(Duration::from_millis(120)).await;
        host.delete("/var/lib/dpkg/status");
        host.put("/var/lib/dpkg/status", STATUS_SAMPLE);
    };
    let (result, ()) = tokio::join!(read_database(&host, &cache), replace);
    assert!(result.unwrap().unwrap().package("postfix").version.is_some());
}

/// The status file of this system, if it has one, is compared with what dpkg itself reports.
#[test]
fn database_matches_dpkg_of_this_system() {
    let arguments = ["-W", "-f", "${db:Status-Status} ${binary:Package} ${Version}\n"];
    let Ok(output) = std::process::Command::new("dpkg-query").args(arguments).output() else { return };
    let host = crate::host::real::RealHost::new(std::path::Path::new("/")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let Some(database) = runtime.block_on(read_database(&host, &PackageCache::default())).unwrap() else { return };
    let lines = String::from_utf8(output.stdout).unwrap();
    let installed = lines.lines().filter_map(|line| line.strip_prefix("installed ")).filter_map(|line| line.split_once(' '));
    let mut count = 0;
    for (name, version) in installed {
        assert_eq!(database.package(name).version.as_deref(), Some(version), "{name}");
        count += 1;
    }
    assert_eq!(database.installed().len(), count);
}

/// The order of versions is that of the dpkg of this system, if it has one.
#[test]
fn versions_have_order_of_dpkg_of_this_system() {
    use stemma_core::task::compare_debian_versions;
    let versions = [
        "0~~",
        "0~",
        "0",
        "0a",
        "0+",
        "1.0~beta1",
        "1.0",
        "1.0-1",
        "1.0-1+b1",
        "1.0-1+deb12u1",
        "1.0-1.1",
        "1.0-2~bpo12+1",
        "1.0-2",
        "1.0a-1",
        "1.0+dfsg-1",
        "1.00.1-1",
        "1.0.1-01",
        "1.2-1",
        "1.10-1",
        "99999999999999999999-1",
        "1:0.1-1",
        "0:1.0",
    ];
    for (index, left) in versions.iter().enumerate() {
        for right in &versions[index..] {
            let operator = match compare_debian_versions(left, right) {
                std::cmp::Ordering::Less => "lt",
                std::cmp::Ordering::Equal => "eq",
                std::cmp::Ordering::Greater => "gt",
            };
            let result = std::process::Command::new("dpkg").args(["--compare-versions", left, operator, right]).status();
            let Ok(status) = result else { return };
            assert!(status.success(), "{left} {operator} {right}");
        }
    }
}
