//! Names that others hold on to: no upgrade takes one away. The list is of 118d023; new names need not be in it.

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

use crate::served::Served;
use crate::upgrade::kept::{Kept, Then};
use crate::upgrade::operator;

const LIST: &str = include_str!("../../../data/118d023/names.txt");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The names of that version by class.
fn listed() -> Result<BTreeMap<&'static str, Vec<&'static str>>> {
    let mut classes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in LIST.lines() {
        let (class, name) = line.split_once(' ').with_context(|| format!("{line:?} is no class and name"))?;
        classes.entry(class).or_default().push(name);
    }
    Ok(classes)
}

/// That every listed name is among those of today.
fn all_there(class: &str, today: &BTreeSet<String>) -> Result<()> {
    let listed = listed()?.remove(class).with_context(|| format!("the list has no {class}"))?;
    let gone: Vec<_> = listed.into_iter().filter(|name| !today.contains(*name)).collect();
    ensure!(gone.is_empty(), "{class}: gone since 118d023: {gone:?}");
    Ok(())
}

#[test]
fn no_error_type_log_field_event_or_path_is_gone() -> Result<()> {
    let errors = ErrorType::ALL.iter().map(|kind| format!("{} {}", kind.name(), kind.status()));
    all_there("error", &errors.collect())?;
    all_there("log", &FIELDS.iter().map(|field| field.name.to_owned()).collect())?;
    all_there("event", &CATALOG.iter().map(|entry| format!("{} {}", entry.id, entry.message)).collect())?;
    let routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
    all_there("path", &routes.map(|route| format!("{} {}", route.method.as_str(), route.path)).collect())
}

#[test]
fn no_field_of_a_body_is_gone() -> Result<()> {
    let described = std::fs::read(Path::new(ROOT).join("docs/openapi.json"))?;
    let described: Value = serde_json::from_slice(&described)?;
    let schemas = described["components"]["schemas"].as_object().context("the description has schemas")?;
    let fields = schemas.iter().flat_map(|(name, schema)| {
        let properties = schema["properties"].as_object().into_iter().flatten();
        properties.map(move |(field, _)| format!("{name} {field}"))
    });
    all_there("schema", &fields.collect())
}

/// That each is found by code which is no test is looked at beside `cargo xtask modules`.
#[test]
fn no_finding_code_is_gone() -> Result<()> {
    all_there("finding", &rule::ALL.iter().map(|rule| rule.code.to_owned()).collect())
}

/// The words of the list by what says them. A word that two say stands with both: one of them alone may lose it.
const SAID: [(&str, &[&str]); 6] = [
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

/// The words of states, outcomes and modes, each from what says it.
#[test]
fn no_word_is_gone() -> Result<()> {
    let listed: BTreeSet<_> = listed()?.remove("word").context("the list has words")?.into_iter().collect();
    let said: BTreeSet<_> = SAID.iter().flat_map(|(_, words)| *words).copied().collect();
    ensure!(listed == said, "each listed word is said by something");
    let (kept, time) = (Kept::unpack("kept")?, Then::now());
    let served = crate::upgrade::serve(&kept, time)?;
    let explained = answer(&kept, &served, "/v1/nodes/web-1/explain?label=tier", time)?;
    let levels = explained["levels"].as_array().context("it has levels")?;
    let outcomes = [Outcome::Unchanged, Outcome::Changed, Outcome::Failed, Outcome::Unsupported, Outcome::Unknown];
    let progress = [Progress::Idle, Progress::Running, Progress::Converged, Progress::Failed, Progress::Waiting];
    let today: [Vec<String>; 6] = [
        State::ALL.iter().map(|state| state.name().to_owned()).collect(),
        Mode::WORDS.iter().map(ToString::to_string).collect(),
        [TraitSource::Operator, TraitSource::Detected].iter().map(ToString::to_string).collect(),
        outcomes.into_iter().chain([Outcome::Drifted]).map(words).collect(),
        progress.map(words).into(),
        levels.iter().filter_map(|level| level["result"].as_str()).map(str::to_owned).collect(),
    ];
    for ((what, then), now) in SAID.iter().zip(&today) {
        let gone: Vec<_> = then.iter().filter(|word| !now.iter().any(|one| one == *word)).collect();
        ensure!(gone.is_empty(), "{what}: gone since 118d023: {gone:?}");
    }
    Ok(())
}

#[test]
fn no_metric_or_field_of_an_answer_is_gone() -> Result<()> {
    let (kept, time) = (Kept::unpack("kept")?, Then::now());
    let served = crate::upgrade::serve(&kept, time)?;
    let metrics = served.metrics();
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    all_there("metric", &types.map(str::to_owned).collect())?;
    let listed = listed()?.remove("answer").context("the list has answers")?;
    let paths: BTreeSet<_> = listed.iter().filter_map(|line| line.split_once(' ')).map(|(path, _)| path).collect();
    let mut fields = BTreeSet::new();
    for path in paths {
        take_fields(path, "", &answer(&kept, &served, path, time)?, &mut fields);
    }
    all_there("answer", &fields)
}

fn answer(kept: &Kept, served: &Served, path: &str, time: Then) -> Result<Value> {
    let (status, body) = operator(kept, served, path, time)?;
    ensure!(status == 200, "GET {path}: {status}");
    serde_json::from_slice(&body).context("an answer is JSON")
}

/// Each field of an answer, as `PATH /field/*/field`.
fn take_fields(path: &str, at: &str, value: &Value, to: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let at = format!("{at}/{key}");
                take_fields(path, &at, value, to);
                to.insert(format!("{path} {at}"));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| take_fields(path, &format!("{at}/*"), item, to)),
        _ => {}
    }
}
