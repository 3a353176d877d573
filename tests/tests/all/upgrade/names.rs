//! Names that others depend on. No upgrade may remove one. The list is that of 118d023, and new names need not be in
//! it.

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

const NAME_LIST: &str = include_str!("../../../data/118d023/names.txt");
const REPOSITORY_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the names of that version, by class.
fn listed_names() -> Result<BTreeMap<&'static str, Vec<&'static str>>> {
    let mut classes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in NAME_LIST.lines() {
        let (class, name) = line.split_once(' ').with_context(|| format!("{line:?} is no class and name"))?;
        classes.entry(class).or_default().push(name);
    }
    Ok(classes)
}

/// Checks that every listed name still exists.
fn check_all_present(class: &str, today: &BTreeSet<String>) -> Result<()> {
    let listed = listed_names()?.remove(class).with_context(|| format!("the list has no {class}"))?;
    let gone: Vec<_> = listed.into_iter().filter(|name| !today.contains(*name)).collect();
    ensure!(gone.is_empty(), "{class}: gone since 118d023: {gone:?}");
    Ok(())
}

#[test]
fn published_error_types_log_fields_events_and_paths_exist() -> Result<()> {
    let errors = ErrorType::ALL.iter().map(|kind| format!("{} {}", kind.name(), kind.status()));
    check_all_present("error", &errors.collect())?;
    check_all_present("log", &FIELDS.iter().map(|field| field.name.to_owned()).collect())?;
    check_all_present("event", &CATALOG.iter().map(|entry| format!("{} {}", entry.id, entry.message)).collect())?;
    let routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
    check_all_present("path", &routes.map(|route| format!("{} {}", route.method.as_str(), route.path)).collect())
}

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

/// A test of xtask checks that code outside of tests reports each of them.
#[test]
fn published_finding_codes_exist() -> Result<()> {
    check_all_present("finding", &rule::ALL.iter().map(|rule| rule.code.to_owned()).collect())
}

/// The words of the list, by what uses them. A word that two of them use is in both rows, because one of the two alone
/// could lose it.
const WORDS: [(&str, &[&str]); 6] = [
    (
        "a node's state",
        &["changing", "converged", "drifted", "failed", "noop", "parked", "paused", "silent", "unplaced", "waiting"],
    ),
    ("a mode", &["apply", "noop", "observe"]),
    ("the source of a trait", &["detected", "operator"]),
    ("an outcome", &["changed", "drifted", "failed", "unchanged", "unknown", "unsupported"]),
    ("the progress of a host", &["converged", "failed", "idle", "running", "waiting"]),
    ("what came of a level's word", &["says nothing", "wins"]),
];

/// Checks the words of states, outcomes and modes against the types that define them.
#[test]
fn published_words_exist() -> Result<()> {
    let listed: BTreeSet<_> = listed_names()?.remove("word").context("the list has words")?.into_iter().collect();
    let covered: BTreeSet<_> = WORDS.iter().flat_map(|(_, words)| *words).copied().collect();
    ensure!(listed == covered, "each listed word is said by something");
    let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
    let served = crate::upgrade::serve_fleet(&stored, time)?;
    let explained = get_json(&stored, &served, "/v1/nodes/web-1/explain?label=tier", time)?;
    let levels = explained["levels"].as_array().context("it has levels")?;
    let outcomes = [Outcome::Unchanged, Outcome::Changed, Outcome::Failed, Outcome::Unsupported, Outcome::Unknown];
    let progress = [Progress::Idle, Progress::Running, Progress::Converged, Progress::Failed, Progress::Waiting];
    let today: [Vec<String>; 6] = [
        State::ALL.iter().map(|state| state.name().to_owned()).collect(),
        Mode::VARIANTS.iter().map(ToString::to_string).collect(),
        [TraitSource::Operator, TraitSource::Detected].iter().map(ToString::to_string).collect(),
        outcomes.into_iter().chain([Outcome::Drifted]).map(words).collect(),
        progress.map(words).into(),
        levels.iter().filter_map(|level| level["result"].as_str()).map(str::to_owned).collect(),
    ];
    for ((what, then), now) in WORDS.iter().zip(&today) {
        let gone: Vec<_> = then.iter().filter(|word| !now.iter().any(|one| one == *word)).collect();
        ensure!(gone.is_empty(), "{what}: gone since 118d023: {gone:?}");
    }
    Ok(())
}

#[test]
fn published_metrics_and_answer_fields_exist() -> Result<()> {
    let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
    let served = crate::upgrade::serve_fleet(&stored, time)?;
    let metrics = served.metrics_text();
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    check_all_present("metric", &types.map(str::to_owned).collect())?;
    let listed = listed_names()?.remove("answer").context("the list has answers")?;
    let paths: BTreeSet<_> = listed.iter().filter_map(|line| line.split_once(' ')).map(|(path, _)| path).collect();
    let mut fields = BTreeSet::new();
    for path in paths {
        collect_fields(path, "", &get_json(&stored, &served, path, time)?, &mut fields);
    }
    check_all_present("answer", &fields)
}

fn get_json(stored: &StoredFleet, served: &InProcessController, path: &str, time: RecordedTime) -> Result<Value> {
    let (status, body) = operator_get(stored, served, path, time)?;
    ensure!(status == 200, "GET {path}: {status}");
    serde_json::from_slice(&body).context("an answer is JSON")
}

/// Collects each field of an answer, as `PATH /field/*/field`.
fn collect_fields(path: &str, at: &str, value: &Value, to: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let at = format!("{at}/{key}");
                collect_fields(path, &at, value, to);
                to.insert(format!("{path} {at}"));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_fields(path, &format!("{at}/*"), item, to)),
        _ => {}
    }
}
