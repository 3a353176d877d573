//! Published names, on which users and other programs depend. An upgrade must not remove such a name. The list contains
//! the names of commit 118d023. Newer names need not be in the list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_agent::verbs::words;
use stemma_core::finding::rule;
use stemma_core::status::State;
use stemma_core::task::Mode;
use stemma_core::traits::TraitSource;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::ErrorType;
use stemma_wire::log::{CATALOG, FIELDS};
use stemma_wire::message::observed::{Outcome, Progress};

use crate::in_process::InProcessController;
use crate::upgrade::operator_get;
use crate::upgrade::stored_fleet::{RecordedTime, StoredFleet};

/// The names that commit 118d023 published, and on which other programs may rely. Each line has a class (such as
/// `error` or `path`), a space and a name.
const NAME_LIST: &str = include_str!("../../../data/118d023/names.txt");
const REPOSITORY_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the names that commit 118d023 published, by class.
fn listed_names() -> Result<BTreeMap<&'static str, Vec<&'static str>>> {
    let mut classes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in NAME_LIST.lines() {
        let (class, name) = line.split_once(' ').with_context(|| format!("{line:?} is not a class and a name"))?;
        classes.entry(class).or_default().push(name);
    }
    Ok(classes)
}

/// Checks that every listed name of a class is among the current names.
fn check_all_present(class: &str, current_names: &BTreeSet<String>) -> Result<()> {
    let names = listed_names()?.remove(class).with_context(|| format!("the list has no {class}"))?;
    let missing: Vec<_> = names.into_iter().filter(|name| !current_names.contains(*name)).collect();
    ensure!(missing.is_empty(), "{class}: missing since 118d023: {missing:?}");
    Ok(())
}

/// Every error type, log field, event and path that commit 118d023 published still exists. An error type keeps its HTTP
/// status, an event its message, and a path its method.
#[test]
fn published_error_types_log_fields_events_and_paths_exist() -> Result<()> {
    let errors = ErrorType::ALL.iter().map(|kind| format!("{} {}", kind.name(), kind.status()));
    check_all_present("error", &errors.collect())?;
    check_all_present("log", &FIELDS.iter().map(|field| field.name.to_owned()).collect())?;
    check_all_present("event", &CATALOG.iter().map(|entry| format!("{} {}", entry.id, entry.message)).collect())?;
    let routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
    check_all_present("path", &routes.map(|route| format!("{} {}", route.method.as_str(), route.path)).collect())
}

/// Every field that commit 118d023 published in a schema of the API is still in the description of the API.
#[test]
fn published_body_fields_exist() -> Result<()> {
    let described = std::fs::read(Path::new(REPOSITORY_DIR).join("docs/openapi.json"))?;
    let described: Value = serde_json::from_slice(&described)?;
    let schemas = described["components"]["schemas"].as_object().context("the description has schemas")?;
    let fields = schemas.iter().flat_map(|(name, schema)| {
        let properties = schema["properties"].as_object().into_iter().flatten();
        properties.map(move |(field, _)| format!("{name} {field}"))
    });
    check_all_present("schema", &fields.collect())
}

/// Every published code of a finding is still defined. A test of xtask checks that the programs use each code.
#[test]
fn published_finding_codes_exist() -> Result<()> {
    check_all_present("finding", &rule::ALL.iter().map(|rule| rule.code.to_owned()).collect())
}

/// The words that commit 118d023 published as values of fields, by field. A word of two fields is in both rows, because
/// one field alone could lose the word.
const WORDS: [(&str, &[&str]); 6] = [
    (
        "a node's state",
        &["changing", "converged", "drifted", "failed", "noop", "parked", "paused", "silent", "unplaced", "waiting"],
    ),
    ("a mode", &["apply", "noop", "observe"]),
    ("the source of a trait", &["detected", "operator"]),
    ("an outcome", &["changed", "drifted", "failed", "unchanged", "unknown", "unsupported"]),
    ("the progress of a host", &["converged", "failed", "idle", "running", "waiting"]),
    ("the result of a level", &["says nothing", "wins"]),
];

/// Every word that commit 118d023 published as a value of a field ([`WORDS`]) is still a value of this field.
#[test]
fn published_words_exist() -> Result<()> {
    let listed_words: BTreeSet<_> = listed_names()?.remove("word").context("the list has words")?.into_iter().collect();
    let row_words: BTreeSet<_> = WORDS.iter().flat_map(|(_, words)| *words).copied().collect();
    ensure!(listed_words == row_words, "the rows have other words than the list");
    let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
    let served = crate::upgrade::serve_fleet(&stored, time)?;
    let explained = get_json(&stored, &served, "/v1/nodes/web-1/explain?label=tier", time)?;
    let levels = explained["levels"].as_array().context("it has levels")?;
    // The rows below are in the order of `WORDS`.
    let outcomes = [Outcome::Unchanged, Outcome::Changed, Outcome::Failed, Outcome::Unsupported, Outcome::Unknown];
    let progress = [Progress::Idle, Progress::Running, Progress::Converged, Progress::Failed, Progress::Waiting];
    let current_rows: [Vec<String>; 6] = [
        State::ALL.iter().map(|state| state.name().to_owned()).collect(),
        Mode::VARIANTS.iter().map(ToString::to_string).collect(),
        [TraitSource::Operator, TraitSource::Detected].iter().map(ToString::to_string).collect(),
        outcomes.into_iter().chain([Outcome::Drifted]).map(words).collect(),
        progress.map(words).into(),
        levels.iter().filter_map(|level| level["result"].as_str()).map(str::to_owned).collect(),
    ];
    for ((field, old_words), current_words) in WORDS.iter().zip(&current_rows) {
        let missing: Vec<_> =
            old_words.iter().filter(|word| !current_words.iter().any(|current_word| current_word == *word)).collect();
        ensure!(missing.is_empty(), "{field}: missing since 118d023: {missing:?}");
    }
    Ok(())
}

/// Every metric, and every field of an answer, that commit 118d023 published still exists.
#[test]
fn published_metrics_and_answer_fields_exist() -> Result<()> {
    let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
    let served = crate::upgrade::serve_fleet(&stored, time)?;
    let metrics = served.metrics_text();
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    check_all_present("metric", &types.map(str::to_owned).collect())?;
    let listed_answers = listed_names()?.remove("answer").context("the list has answers")?;
    let paths: BTreeSet<_> = listed_answers.iter().filter_map(|line| line.split_once(' ')).map(|(path, _)| path).collect();
    let mut fields = BTreeSet::new();
    for path in paths {
        collect_fields(path, "", &get_json(&stored, &served, path, time)?, &mut fields);
    }
    check_all_present("answer", &fields)
}

/// Reads a path as an operator. Returns the JSON of the answer, which must have status 200.
fn get_json(stored: &StoredFleet, served: &InProcessController, path: &str, time: RecordedTime) -> Result<Value> {
    let (status, body) = operator_get(stored, served, path, time)?;
    ensure!(status == 200, "GET {path}: {status}");
    serde_json::from_slice(&body).context("an answer is JSON")
}

/// Adds each field below `value` to `fields`, as `PATH /field/*/field`. `pointer` is the place of `value` in the
/// answer.
fn collect_fields(path: &str, pointer: &str, value: &Value, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let pointer = format!("{pointer}/{key}");
                collect_fields(path, &pointer, value, fields);
                fields.insert(format!("{path} {pointer}"));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_fields(path, &format!("{pointer}/*"), item, fields)),
        _ => {}
    }
}
