//! The destination of log lines, and the names of their fields.
//!
//! A program uses the `log` macros with a constant message and key-values (`info!(node:% = name, revision = r; "task
//! set released")`). Under systemd each key becomes a journal field (`journalctl NODE=web-17`). Elsewhere it follows
//! the message, or is a member of a JSON object ([`LogFormat`]). [`FIELDS`] is the dictionary of keys. A test scans the
//! whole workspace for keys that the dictionary lacks, so that one thing has one name everywhere. Another test compares
//! `docs/logs.md` with the dictionary.

mod catalog;
mod lines;

use std::io::Write as _;
use std::str::FromStr;

use env_logger::fmt::Formatter;
use log::{LevelFilter, Record};

pub use catalog::{CATALOG, CatalogEntry, catalog_entry, catalog_file};

/// The amount of log lines that a program writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Only warnings and errors.
    Quiet,
    /// Warnings, errors, and state transitions, which an operator may still want to read a week later.
    #[default]
    Normal,
    /// All lines except those of level trace. So lines about single requests and decisions are included.
    Debug,
}

/// The format of log lines on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `[TIME LEVEL] message key=value`. A text value is quoted if it is empty, or has white space, `=`, a double
    /// quote, a control character or a character that changes the direction of text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The error for a text that is not the name of a [`LogFormat`].
#[derive(Debug, thiserror::Error)]
#[error("unknown log format: write text or json")]
pub struct UnknownFormat;

impl LogFormat {
    /// The names of the formats.
    pub const NAMES: [&'static str; 2] = ["text", "json"];

    /// Returns a record as a line in this format. The time of a text line has seconds, for people. The time of a JSON
    /// line has milliseconds, for programs.
    fn format_line(self, formatter: &Formatter, record: &Record<'_>) -> String {
        match self {
            Self::Text => lines::format_text(&formatter.timestamp_seconds().to_string(), record),
            Self::Json => lines::format_json(&formatter.timestamp_millis().to_string(), record),
        }
    }
}

impl FromStr for LogFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(UnknownFormat),
        }
    }
}

/// A field of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogField {
    /// The key in the `log` macros. The name of the journal field is this key in upper case.
    pub name: &'static str,
    /// The meaning of the field's value.
    pub meaning: &'static str,
}

macro_rules! fields {
    ($($name:ident: $meaning:literal;)*) => {
        /// All fields that a log line may have, sorted by name.
        pub const FIELDS: &[LogField] = &[$(LogField { name: stringify!($name), meaning: $meaning },)*];
    };
}

fields! {
    address: "a socket address on which something listens, or that was called";
    bytes: "a size in bytes";
    cause: "the cause of the event, as a stable word";
    certificate: "a certificate's serial number, in hexadecimal";
    change: "the kind of change, as a stable word";
    cluster: "a cluster's name";
    connections: "how many connections";
    count: "how many things";
    digest: "the beginning of a digest, in hexadecimal";
    duration_ms: "the duration, in milliseconds";
    epoch: "the store's epoch, in hexadecimal";
    error: "what failed, with its causes";
    facts: "how many facts";
    field: "the path of a field";
    from: "what it was before";
    group: "a node group, as CLUSTER/GROUP";
    hash: "the hash that names a profile or blob";
    holder: "the process that holds a lock";
    host_epoch: "the epoch of what a host holds";
    host_revision: "the revision of what a host holds";
    kind: "the kind of an object or message";
    labels: "how many labels";
    late: "how many could not be written in time, and are only counted";
    lease: "a lease's kind";
    lost: "how many were not stored";
    message_id: "the line's entry in the catalog (journalctl -x)";
    missing: "what a node lacks to be resolved";
    name: "an object's name";
    node: "a node's name or uuid";
    nodes: "how many nodes";
    object: "an object, as KIND/NAME";
    outcome: "the result of a task";
    output: "the last lines that a failed command wrote; never of a sensitive task";
    path: "a file";
    peer: "the address of the caller";
    principal: "the name of the caller, by certificate or token";
    profile: "the hash that names a task profile";
    reason: "the reason, as a stable word; for a refusal, it is the label of rejected_total";
    refusal: "why a write was refused";
    release: "a release, as NAME@VERSION";
    request: "a request's id";
    results: "how many results of tasks";
    revision: "a revision of the store";
    sequence: "the number of a result of a task";
    source: "where a value or fact came from";
    status: "an HTTP or exit status";
    surplus: "how many are above the limit";
    tag: "a tag's name";
    task: "a task's id";
    texts: "how many texts";
    to: "what it is now";
    token: "a join token's id, never its secret";
    trait_name: "a trait's name";
    traits: "names of traits, separated by commas";
    unit: "the systemd unit in which a command runs";
    unsaid: "how many such lines were counted but not logged since the last one";
    url: "the address of a controller";
    version: "a version of a program or protocol";
    wait_ms: "how long the program waits, in milliseconds";
}

/// The reason why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Standard error is connected to the journal, and an empty message cannot be sent to the journal's socket.
    #[error("the journal cannot be reached")]
    Journal(#[source] std::io::Error),
    /// A logger is installed already.
    #[error("a logger is installed already")]
    Installed(#[from] log::SetLoggerError),
}

/// Installs the logger of this process. If `format` is `None` and standard error is connected to the journal, the
/// logger writes to the journal, with `program` as the identifier of the lines. Otherwise the logger writes to standard
/// error, as text unless `format` is given.
///
/// # Errors
/// [`LogError`].
pub fn init(program: &str, verbosity: Verbosity, format: Option<LogFormat>) -> Result<(), LogError> {
    let level = level_filter(verbosity);
    if format.is_none() && systemd_journal_logger::connected_to_journal() {
        let journal = systemd_journal_logger::JournalLog::empty().map_err(LogError::Journal)?;
        let journal = journal.with_syslog_identifier(program.to_owned());
        log::set_boxed_logger(Box::new(catalog::CatalogLogger(journal)))?;
        log::set_max_level(level);
        return Ok(());
    }
    let format = format.unwrap_or_default();
    // The library `notify` logs a warning when a watched directory is deleted. The program gets an event for the
    // deletion anyway, so only errors of this library are logged.
    let notify_level = level.min(LevelFilter::Error);
    env_logger::Builder::new()
        .filter_level(level)
        .filter_module("notify", notify_level)
        .format(move |formatter, record| {
            let line = format.format_line(formatter, record);
            writeln!(formatter, "{line}")
        })
        .try_init()?;
    Ok(())
}

/// Returns the least severe level that is logged at this verbosity.
fn level_filter(verbosity: Verbosity) -> LevelFilter {
    match verbosity {
        Verbosity::Quiet => LevelFilter::Warn,
        Verbosity::Normal => LevelFilter::Info,
        Verbosity::Debug => LevelFilter::Debug,
    }
}

/// Returns the message of an error and the messages of its causes, separated by colons. Example: `cannot be reached:
/// connection refused`. Omits a cause that the text already contains. The log field `error` contains the result.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        // The message of some errors already contains the message of their source.
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Returns the keys of all log macros in a source text, including keys that are only the name of a variable.
    fn log_keys(source: &str) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for level in ["trace!(", "debug!(", "info!(", "warn!(", "error!("] {
            for rest in source.split(level).skip(1) {
                let Some((arguments, _)) = rest.split_once(';') else { continue };
                // The arguments of a macro without key-values start with its message.
                if arguments.trim_start().starts_with('"') {
                    continue;
                }
                keys.extend(arguments.split(',').filter_map(log_key));
            }
        }
        keys
    }

    /// Returns the key of one argument of a log macro, or `None` if the argument is not a key-value.
    fn log_key(argument: &str) -> Option<String> {
        let name = argument.split(['=', ':']).next()?.trim();
        let is_key =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit());
        is_key.then(|| name.to_owned())
    }

    /// Adds the keys of all log macros in the Rust files below a directory, each with the path of its file.
    fn collect_log_keys(directory: &Path, found: &mut BTreeSet<(String, String)>) {
        for entry in std::fs::read_dir(directory).expect("the workspace").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
                collect_log_keys(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path).expect("a source file");
                found.extend(log_keys(&source).into_iter().map(|key| (key, path.display().to_string())));
            }
        }
    }

    #[test]
    fn fields_list_every_logged_key() {
        let mut found = BTreeSet::new();
        collect_log_keys(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), &mut found);
        let known: BTreeSet<_> = FIELDS.iter().map(|field| field.name).collect();
        let unknown: Vec<_> = found.iter().filter(|(key, _)| !known.contains(key.as_str())).collect();
        assert!(unknown.is_empty(), "explain these in shared/wire/src/log/mod.rs, or use a listed name: {unknown:?}");
        assert!(found.iter().any(|(key, _)| key == "reason"), "the search finds a key that is logged");
    }

    #[test]
    fn catalog_entries_are_all_logged() {
        let mut sources = String::new();
        for directory in ["controller/src", "agent/src", "shared/wire/src/serve"] {
            read_sources(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(directory), &mut sources);
        }
        for entry in CATALOG {
            // The message is the last argument of a log macro.
            assert!(sources.contains(&format!("\"{}\")", entry.message)), "nobody logs {:?}", entry.message);
            // In a subject such as `node @NODE@ is back`, every second part is the name of a field.
            let field_names = entry.subject.split('@').skip(1).step_by(2);
            for field in field_names {
                assert!(FIELDS.iter().any(|log_field| log_field.name == field.to_ascii_lowercase()), "{field}");
            }
        }
    }

    /// Appends the text of all files below a directory.
    fn read_sources(directory: &Path, sources: &mut String) {
        for entry in std::fs::read_dir(directory).expect("the workspace").flatten() {
            if entry.path().is_dir() {
                read_sources(&entry.path(), sources);
            } else {
                sources.push_str(&std::fs::read_to_string(entry.path()).expect("a source file"));
            }
        }
    }

    #[test]
    fn y09_documentation_lists_every_log_field() {
        let page = include_str!("../../../../docs/logs.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "));
        let documented: Vec<_> = rows.collect();
        let fields: Vec<_> = FIELDS.iter().map(|field| (field.name, field.meaning)).collect();
        assert_eq!(documented, fields, "docs/logs.md and shared/wire/src/log/mod.rs differ");
    }

    #[test]
    fn y09_log_format_parses_two_names() {
        assert_eq!(LogFormat::NAMES.map(|name| name.parse::<LogFormat>().ok()), [Some(LogFormat::Text), Some(LogFormat::Json)]);
        for invalid_name in ["", "JSON", "logfmt"] {
            assert_eq!(invalid_name.parse::<LogFormat>().unwrap_err().to_string(), "unknown log format: write text or json");
        }
    }

    #[test]
    fn fields_are_sorted_and_fit_journal_limits() {
        assert!(FIELDS.is_sorted_by_key(|field| field.name));
        for field in FIELDS {
            assert!(field.name.len() <= 64 && field.name.starts_with(|first: char| first.is_ascii_lowercase()));
        }
    }

    #[test]
    fn log_keys_finds_shorthand_and_multiline_keys() {
        let source = r#"info!(node:% = n, revision = r; "x"); warn!("a {b}"); log::error!(
            error:% = chain(&e),
            peer:? = p; "y"); info!(task, name:%; "z");"#;
        let found: Vec<_> = log_keys(source).into_iter().collect();
        assert_eq!(found, ["error", "name", "node", "peer", "revision", "task"]);
    }

    #[test]
    fn error_chain_appends_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct OuterError(#[source] MiddleError);
        #[derive(Debug, thiserror::Error)]
        #[error("middle: inner")]
        struct MiddleError(#[source] InnerError);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct InnerError;
        assert_eq!(error_chain(&OuterError(MiddleError(InnerError))), "outer: middle: inner");
    }
}
