//! The database of dpkg: `/var/lib/dpkg/status`, and the journal `updates` of changes that are not in it yet.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::PackageCache;
use super::state::{BrokenState, PackageState};
use crate::host::{Dir, FileVersion, Host, HostError, HostPath};

/// The directory of the database.
const DPKG_DIR: &str = "/var/lib/dpkg";

/// The file with the state of each package.
const STATUS: &str = "status";

/// The directory of the journal.
const UPDATES: &str = "updates";

/// Maximum size of the status file, in bytes. The file of a large installation has 10 MB.
const MAX_STATUS_BYTES: u64 = 256 * 1024 * 1024;

/// Number of attempts to read the database while dpkg changes it, and the time between two attempts.
const MAX_READS: usize = 20;
const READ_PAUSE: Duration = Duration::from_millis(50);

/// The packages that dpkg knows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Database {
    /// The records of the packages, by name. A name has several records if it is installed for several architectures.
    packages: BTreeMap<String, Vec<DpkgRecord>>,
}

/// What dpkg knows about one package of one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DpkgRecord {
    architecture: String,
    version: String,
    state: DpkgState,
    /// True if an administrator or a task holds the package at its version.
    is_held: bool,
    /// True if the package must be installed again, because dpkg stopped in the middle of its installation.
    must_reinstall: bool,
    /// The names that the package provides.
    provides: Vec<String>,
}

/// The state of a package, in the order in which an installation passes through these states (`dpkg(1)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DpkgState {
    #[default]
    NotInstalled,
    ConfigFiles,
    HalfInstalled,
    Unpacked,
    HalfConfigured,
    TriggersAwaited,
    TriggersPending,
    Installed,
}

/// The versions of the status file and of the directory of the journal. As long as they are the same, so is the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DatabaseVersion {
    status: FileVersion,
    updates: Option<FileVersion>,
}

/// Returns the database of the host, or `None` if the host has no dpkg. Reads the file only if it has changed since the last
/// call.
pub(super) async fn read_database(host: &dyn Host, cache: &PackageCache) -> Result<Option<Rc<Database>>, HostError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match try_read(host, cache) {
            // dpkg makes a hard link of the file before it replaces the file.
            Ok(ReadAttempt::Changing) | Err(HostError::HardLinks { .. }) if attempt < MAX_READS => {
                tokio::time::sleep(READ_PAUSE).await;
            }
            Ok(ReadAttempt::Changing) => return Err(changing_error()),
            Ok(ReadAttempt::Missing) => return Ok(None),
            Ok(ReadAttempt::Database(database)) => return Ok(Some(database)),
            Err(error) => return Err(error),
        }
    }
}

/// Returns the database of the host. Returns `None` if the host has no dpkg, or if dpkg changes the database now.
pub(super) fn read_database_once(host: &dyn Host, cache: &PackageCache) -> Result<Option<Rc<Database>>, HostError> {
    match try_read(host, cache) {
        Ok(ReadAttempt::Database(database)) => Ok(Some(database)),
        Ok(ReadAttempt::Missing | ReadAttempt::Changing) | Err(HostError::HardLinks { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The result of one attempt to read the database.
enum ReadAttempt {
    /// The host has no dpkg.
    Missing,
    /// The database was changed during the read.
    Changing,
    Database(Rc<Database>),
}

fn changing_error() -> HostError {
    HostError::io("read", "/var/lib/dpkg/status")(std::io::Error::other("dpkg changes it all the time"))
}

fn try_read(host: &dyn Host, cache: &PackageCache) -> Result<ReadAttempt, HostError> {
    let Some(dir) = host.dir(&HostPath::from_static(DPKG_DIR))? else { return Ok(ReadAttempt::Missing) };
    let Some(version) = database_version(&*dir)? else { return Ok(ReadAttempt::Missing) };
    if let Some(database) = cache.database(&version) {
        return Ok(ReadAttempt::Database(database));
    }
    let mut parser = Parser::default();
    dir.read_chunks(STATUS, MAX_STATUS_BYTES, &mut |chunk| {
        parser.push(chunk);
        Ok(())
    })?;
    parser.end_stanza();
    // A file of the journal has the number of the change as its name. `tmp.i` is a change that dpkg is still writing.
    if let Some(updates) = dir.dir(UPDATES)? {
        let names = updates.names()?;
        for name in names.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            updates.read_chunks(name, MAX_STATUS_BYTES, &mut |chunk| {
                parser.push(chunk);
                Ok(())
            })?;
            parser.end_stanza();
        }
    }
    if database_version(&*dir)?.as_ref() != Some(&version) {
        return Ok(ReadAttempt::Changing);
    }
    let database = Rc::new(parser.database);
    cache.store_database(version, &database);
    Ok(ReadAttempt::Database(database))
}

fn database_version(dir: &dyn Dir) -> Result<Option<DatabaseVersion>, HostError> {
    let Some(status) = dir.version(STATUS)? else { return Ok(None) };
    Ok(Some(DatabaseVersion { status, updates: dir.version(UPDATES)? }))
}

impl Database {
    /// Returns the state of the package with this name. A name without an architecture means the architecture of the host,
    /// as for apt.
    pub(super) fn package(&self, name: &str) -> PackageState {
        let (base_name, architecture) =
            name.split_once(':').map_or((name, None), |(base, architecture)| (base, Some(architecture)));
        let native = self.native_architecture();
        let wanted = architecture.or(native);
        let has_architecture = |record: &&DpkgRecord| {
            wanted.is_none_or(|wanted| record.architecture == wanted)
                // apt has packages for all architectures as those of the host.
                || (record.architecture == "all" && (wanted == native || architecture.is_none()))
        };
        let record = self.packages.get(base_name).and_then(|records| records.iter().find(has_architecture));
        let is_installed = record.is_some_and(|record| record.state.is_installed());
        PackageState {
            name: name.to_owned(),
            version: record.filter(|record| record.state.is_installed()).map(|record| record.version.clone()),
            has_configuration: record.is_some_and(|record| record.state != DpkgState::NotInstalled),
            is_held: record.is_some_and(|record| record.is_held),
            provider: if is_installed || architecture.is_some() { None } else { self.provider(base_name) },
        }
    }

    /// Returns whether the package with this name is installed.
    pub(super) fn is_installed(&self, name: &str) -> bool {
        self.package(name).version.is_some()
    }

    /// Returns the names and versions of all installed packages. A package of another architecture has it in its name.
    pub(super) fn installed(&self) -> BTreeMap<String, String> {
        let native = self.native_architecture();
        let is_native =
            |record: &DpkgRecord| record.architecture == "all" || native.is_none_or(|native| record.architecture == native);
        let full_name = |name: &str, record: &DpkgRecord| {
            if is_native(record) { name.to_owned() } else { format!("{name}:{}", record.architecture) }
        };
        let records = self.packages.iter().flat_map(|(name, records)| records.iter().map(move |record| (name, record)));
        records
            .filter(|(_, record)| record.state.is_installed())
            .map(|(name, record)| (full_name(name, record), record.version.clone()))
            .collect()
    }

    /// Returns the packages whose installation or removal has stopped before its end.
    pub(super) fn broken(&self) -> Vec<(String, BrokenState)> {
        let records = self.packages.iter().flat_map(|(name, records)| records.iter().map(move |record| (name, record)));
        records.filter_map(|(name, record)| Some((name.clone(), record.broken()?))).collect()
    }

    /// Returns the name of an installed package that provides this name.
    fn provider(&self, name: &str) -> Option<String> {
        let provides =
            |record: &DpkgRecord| record.state.is_installed() && record.provides.iter().any(|provided| provided == name);
        let found = self.packages.iter().find(|(_, records)| records.iter().any(provides));
        found.map(|(provider, _)| provider.clone())
    }

    /// Returns the architecture of the host, which is that of dpkg itself.
    fn native_architecture(&self) -> Option<&str> {
        self.packages.get("dpkg")?.first().map(|record| record.architecture.as_str())
    }
}

impl DpkgRecord {
    fn broken(&self) -> Option<BrokenState> {
        if self.must_reinstall || self.state == DpkgState::HalfInstalled {
            return Some(BrokenState::MustReinstall);
        }
        matches!(
            self.state,
            DpkgState::Unpacked | DpkgState::HalfConfigured | DpkgState::TriggersAwaited | DpkgState::TriggersPending
        )
        .then(|| BrokenState::NotConfigured(self.state.as_str()))
    }
}

impl DpkgState {
    /// Parses the third word of the field `Status`.
    fn parse(word: &str) -> Self {
        match word {
            "config-files" => Self::ConfigFiles,
            "half-installed" => Self::HalfInstalled,
            "unpacked" => Self::Unpacked,
            "half-configured" => Self::HalfConfigured,
            "triggers-awaited" => Self::TriggersAwaited,
            "triggers-pending" => Self::TriggersPending,
            "installed" => Self::Installed,
            _ => Self::NotInstalled,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::NotInstalled => "not-installed",
            Self::ConfigFiles => "config-files",
            Self::HalfInstalled => "half-installed",
            Self::Unpacked => "unpacked",
            Self::HalfConfigured => "half-configured",
            Self::TriggersAwaited => "triggers-awaited",
            Self::TriggersPending => "triggers-pending",
            Self::Installed => "installed",
        }
    }

    /// Returns whether the files of the package are on the host.
    const fn is_installed(self) -> bool {
        !matches!(self, Self::NotInstalled | Self::ConfigFiles | Self::HalfInstalled)
    }
}

/// A parser of status files, which reads them in chunks. A later stanza of a package replaces an earlier one.
#[derive(Default)]
struct Parser {
    database: Database,
    /// The beginning of a line whose end has not arrived yet.
    line_start: Vec<u8>,
    name: String,
    record: DpkgRecord,
    /// True if the next lines that begin with a space continue the field `Provides`.
    is_in_provides: bool,
}

impl Parser {
    fn push(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, next) = (&rest[..end], &rest[end + 1..]);
            if self.line_start.is_empty() {
                self.parse_line(line);
            } else {
                self.line_start.extend_from_slice(line);
                let whole_line = std::mem::take(&mut self.line_start);
                self.parse_line(&whole_line);
            }
            rest = next;
        }
        self.line_start.extend_from_slice(rest);
    }

    /// Ends the last line and the last stanza of a file.
    fn end_stanza(&mut self) {
        let line = std::mem::take(&mut self.line_start);
        self.parse_line(&line);
        self.store_record();
    }

    fn parse_line(&mut self, line: &[u8]) {
        match line.first() {
            None => self.store_record(),
            Some(b' ' | b'\t') => {
                if self.is_in_provides {
                    self.add_provided(&String::from_utf8_lossy(line));
                }
            }
            // The first letters of the fields that are read.
            Some(b'P' | b'S' | b'V' | b'A' | b'p' | b's' | b'v' | b'a') => self.parse_field(line),
            Some(_) => self.is_in_provides = false,
        }
    }

    fn parse_field(&mut self, line: &[u8]) {
        self.is_in_provides = false;
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (field, value) = (&line[..colon], &line[colon + 1..]);
        let text = || String::from_utf8_lossy(value).trim().to_owned();
        if field.eq_ignore_ascii_case(b"package") {
            self.name = text();
        } else if field.eq_ignore_ascii_case(b"architecture") {
            self.record.architecture = text();
        } else if field.eq_ignore_ascii_case(b"version") {
            self.record.version = text();
        } else if field.eq_ignore_ascii_case(b"status") {
            let status = text();
            let mut words = status.split_ascii_whitespace();
            self.record.is_held = words.next() == Some("hold");
            self.record.must_reinstall = words.next() == Some("reinstreq");
            self.record.state = DpkgState::parse(words.next().unwrap_or_default());
        } else if field.eq_ignore_ascii_case(b"provides") {
            self.is_in_provides = true;
            self.add_provided(&text());
        }
    }

    /// Adds the names of a part of the field `Provides`, such as `awk, libc6-abi (= 2.36)`.
    fn add_provided(&mut self, text: &str) {
        let names = text.split(',').filter_map(|item| item.split_ascii_whitespace().next());
        self.record.provides.extend(names.map(str::to_owned));
    }

    fn store_record(&mut self) {
        let (name, record) = (std::mem::take(&mut self.name), std::mem::take(&mut self.record));
        self.is_in_provides = false;
        if name.is_empty() {
            return;
        }
        let records = self.database.packages.entry(name).or_default();
        // A stanza without an architecture, of a package that is no longer known, replaces all others.
        records.retain(|old| old.architecture != record.architecture && !record.architecture.is_empty());
        // A held package that is not installed has a record too.
        if record.state != DpkgState::NotInstalled || record.is_held {
            records.push(record);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
