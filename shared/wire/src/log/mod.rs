//! Where log lines go, and what their fields are called.
//!
//! A program uses the `log` macros with a constant message and key-values (`info!(node:% = name, revision = r; "task
//! set released")`). Under systemd each key becomes a journal field (`journalctl NODE=web-17`), elsewhere it stands behind the
//! message, or is a member of an object ([`Format`]). [`FIELDS`] is the dictionary: a test reads the whole workspace and finds a key
//! that it does not explain, so that one thing has one name everywhere. `docs/logs.md` shows it, and is compared with it.

mod catalog;
mod lines;

use std::io::Write as _;
use std::str::FromStr;

use env_logger::fmt::Formatter;
use log::{LevelFilter, Record};

pub use catalog::{CATALOG, Entry, catalog_file, explained};

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Warnings and errors.
    Quiet,
    /// Transitions too: what a person wants to read a week later.
    #[default]
    Normal,
    /// Single requests and decisions too.
    Debug,
}

/// How lines are written on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `[TIME LEVEL] message key=value`, where a value with a blank, `=`, a quote or a control character stands in quotes.
    #[default]
    Text,
    /// One object of JSON a line.
    Json,
}

/// A text that names no [`Format`].
#[derive(Debug, thiserror::Error)]
#[error("unknown log format: write text or json")]
pub struct UnknownFormat;

impl Format {
    /// The words that name one.
    pub const WORDS: [&'static str; 2] = ["text", "json"];

    fn line(self, out: &Formatter, record: &Record<'_>) -> String {
        match self {
            Self::Text => lines::text(&out.timestamp_seconds().to_string(), record),
            Self::Json => lines::json(&out.timestamp_millis().to_string(), record),
        }
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(UnknownFormat),
        }
    }
}

/// A field that log lines may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The key in the macros; in the journal it is upper case.
    pub name: &'static str,
    /// What its value is.
    pub meaning: &'static str,
}

macro_rules! fields {
    ($($name:ident: $meaning:literal;)*) => {
        /// All fields, by name.
        pub const FIELDS: &[Field] = &[$(Field { name: stringify!($name), meaning: $meaning },)*];
    };
}

fields! {
    address: "a socket address on which something listens, or that was called";
    bytes: "a size in bytes";
    cause: "what led to it, a stable word";
    certificate: "a certificate's serial number, in hexadecimal";
    change: "what changed, a stable word";
    cluster: "a cluster's name";
    connections: "how many connections";
    count: "how many things";
    digest: "the beginning of a digest, in hexadecimal";
    duration_ms: "how long it took, in milliseconds";
    epoch: "the store's epoch, in hexadecimal";
    error: "what failed, with its causes";
    facts: "how many facts";
    field: "the path of a field";
    from: "what it was before";
    group: "a node group, as CLUSTER/GROUP";
    hash: "the hash that names a profile or blob";
    host_epoch: "the epoch of what a host holds";
    host_revision: "the revision of what a host holds";
    kind: "the kind of an object or message";
    labels: "how many labels";
    late: "how many could not be written when they came, and are counted";
    lease: "a lease's kind";
    lost: "how many were not kept";
    message_id: "the line's entry in the catalog (journalctl -x)";
    missing: "what a node lacks to be resolved";
    name: "an object's name";
    node: "a node's name or uuid";
    nodes: "how many nodes";
    object: "an object, as KIND/NAME";
    outcome: "what became of a task";
    output: "the last lines that a failed command wrote; never of a sensitive task";
    path: "a file";
    peer: "the address of who asked";
    principal: "who asked, by certificate or token";
    profile: "the hash that names a task profile";
    reason: "why, a stable word; the label of rejected_total where it is a refusal";
    refusal: "why a write was refused";
    release: "a release, as NAME@VERSION";
    request: "a request's id";
    results: "how many results of tasks";
    revision: "a revision of the store";
    sequence: "the number of a result of a task";
    source: "where a value or fact came from";
    status: "an HTTP or exit status";
    surplus: "how many are beyond the measure";
    tag: "a tag's name";
    task: "a task's id";
    texts: "how many texts";
    to: "what it is now";
    token: "a join token's id, never its secret";
    trait_name: "a trait's name";
    traits: "names of traits, with commas";
    unsaid: "how many like it were counted and not logged since the last one";
    url: "the address of a controller";
    version: "a version of a program or protocol";
    wait_ms: "how long it is waited, in milliseconds";
}

/// Where the lines go could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Standard error is the journal's, and the journal does not answer.
    #[error("the journal cannot be reached")]
    Journal(#[source] std::io::Error),
    /// A logger stands already.
    #[error("a logger is installed already")]
    Installed(#[from] log::SetLoggerError),
}

/// Sends this process's log lines to the journal, when standard error is connected to it and no format is given, and else to standard
/// error, as text unless a format is given. `program` is the name under which they stand in the journal.
///
/// # Errors
/// [`LogError`].
pub fn init(program: &str, verbosity: Verbosity, format: Option<Format>) -> Result<(), LogError> {
    let level = level_of(verbosity);
    if format.is_none() && systemd_journal_logger::connected_to_journal() {
        let journal = systemd_journal_logger::JournalLog::empty().map_err(LogError::Journal)?;
        let journal = journal.with_syslog_identifier(program.to_owned());
        log::set_boxed_logger(Box::new(catalog::Explaining(journal)))?;
        log::set_max_level(level);
        return Ok(());
    }
    let format = format.unwrap_or_default();
    // It warns when a watched directory goes, which its user is told as an event.
    let notify = level.min(LevelFilter::Error);
    env_logger::Builder::new()
        .filter_level(level)
        .filter_module("notify", notify)
        .format(move |out, record| {
            let line = format.line(out, record);
            writeln!(out, "{line}")
        })
        .try_init()?;
    Ok(())
}

fn level_of(verbosity: Verbosity) -> LevelFilter {
    match verbosity {
        Verbosity::Quiet => LevelFilter::Warn,
        Verbosity::Normal => LevelFilter::Info,
        Verbosity::Debug => LevelFilter::Debug,
    }
}

/// An error with its causes in one line, as the field `error` has it: `cannot be reached: connection refused`.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        // Some errors repeat their source in their own sentence.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The keys of every log macro in a source text, also of those that are written as the name of a variable alone.
    fn keys(source: &str) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for level in ["trace!(", "debug!(", "info!(", "warn!(", "error!("] {
            for after in source.split(level).skip(1) {
                let Some((arguments, _)) = after.split_once(';') else { continue };
                // A macro without key-values begins with its message.
                if arguments.trim_start().starts_with('"') || arguments.contains(");") {
                    continue;
                }
                keys.extend(arguments.split(',').filter_map(key));
            }
        }
        keys
    }

    fn key(argument: &str) -> Option<String> {
        let name = argument.split(['=', ':']).next()?.trim();
        let plain = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit());
        plain.then(|| name.to_owned())
    }

    fn visit(directory: &Path, found: &mut BTreeSet<(String, String)>) {
        for entry in std::fs::read_dir(directory).expect("the workspace").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
                visit(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path).expect("a source file");
                found.extend(keys(&source).into_iter().map(|key| (key, path.display().to_string())));
            }
        }
    }

    #[test]
    fn every_field_that_is_logged_is_in_the_dictionary() {
        let mut found = BTreeSet::new();
        visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), &mut found);
        let known: BTreeSet<_> = FIELDS.iter().map(|field| field.name).collect();
        let unknown: Vec<_> = found.iter().filter(|(key, _)| !known.contains(key.as_str())).collect();
        assert!(
            unknown.is_empty(),
            "explain these in shared/wire/src/log.rs, or use a name that is there: {unknown:?}"
        );
        assert!(found.iter().any(|(key, _)| key == "reason"), "the search finds what is there");
    }

    #[test]
    fn every_line_that_is_explained_is_logged() {
        let mut sources = String::new();
        for directory in ["controller/src", "agent/src", "shared/wire/src/serve"] {
            read_all(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(directory), &mut sources);
        }
        for entry in CATALOG {
            assert!(sources.contains(&format!("\"{}\")", entry.message)), "nobody logs {:?}", entry.message);
            let named = entry.subject.split('@').skip(1).step_by(2);
            for field in named {
                assert!(FIELDS.iter().any(|known| known.name == field.to_ascii_lowercase()), "{field}");
            }
        }
    }

    fn read_all(directory: &Path, sources: &mut String) {
        for entry in std::fs::read_dir(directory).expect("the workspace").flatten() {
            if entry.path().is_dir() {
                read_all(&entry.path(), sources);
            } else {
                sources.push_str(&std::fs::read_to_string(entry.path()).expect("a source file"));
            }
        }
    }

    #[test]
    fn y09_the_documentation_lists_every_field_as_it_is() {
        let page = include_str!("../../../../docs/logs.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "));
        let documented: Vec<_> = rows.collect();
        let fields: Vec<_> = FIELDS.iter().map(|field| (field.name, field.meaning)).collect();
        assert_eq!(documented, fields, "docs/logs.md and shared/wire/src/log/mod.rs differ");
    }

    #[test]
    fn y09_a_form_is_named_by_one_of_two_words() {
        assert_eq!(Format::WORDS.map(|word| word.parse::<Format>().ok()), [Some(Format::Text), Some(Format::Json)]);
        for other in ["", "JSON", "logfmt"] {
            assert_eq!(other.parse::<Format>().unwrap_err().to_string(), "unknown log format: write text or json");
        }
    }

    #[test]
    fn the_dictionary_is_in_order_and_fits_the_journal() {
        assert!(FIELDS.is_sorted_by_key(|field| field.name));
        for field in FIELDS {
            assert!(field.name.len() <= 64 && field.name.starts_with(|first: char| first.is_ascii_lowercase()));
        }
    }

    #[test]
    fn keys_are_found_in_all_their_forms() {
        let source = r#"info!(node:% = n, revision = r; "x"); warn!("a {b}"); log::error!(
            error:% = chain(&e),
            peer:? = p; "y"); info!(task, name:%; "z");"#;
        let found: Vec<_> = keys(source).into_iter().collect();
        assert_eq!(found, ["error", "name", "node", "peer", "revision", "task"]);
    }

    #[test]
    fn causes_stand_behind_their_error_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] Middle);
        #[derive(Debug, thiserror::Error)]
        #[error("middle: inner")]
        struct Middle(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner;
        assert_eq!(chain(&Outer(Middle(Inner))), "outer: middle: inner");
    }
}
