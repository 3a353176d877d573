//! One verb for several objects: each write is decided first, all of them are asked about once, then they are made one after another.
//!
//! They are no transaction (that is what `apply` is for): one may fail where others are made. What was done is printed as it is done;
//! what was not is said in the end with its reason, and the status is 1.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Error, Result};
use serde_json::Value;

use crate::api::{Api, Refusal, Write};
use crate::args::{Filter, Kind, Named, Output, Selection, Subject};
use crate::command::done::{Done, note_dry_run};
use crate::command::question;
use crate::exit::{self, Exit};
use crate::output::printable;
use crate::radius::{Together, moved_primaries};

/// An object that a verb is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Object {
    /// `node`, `cluster`, `tag`, …
    pub(crate) kind: &'static str,
    /// By which it is asked for again.
    pub(crate) name: String,
}

impl Object {
    /// Its kind, of an object that was named by one.
    pub(crate) fn kind(&self) -> Kind {
        Kind::named(self.kind).expect("objects with a kind are named by it")
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, printable(&self.name))
    }
}

/// The objects of one command.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    /// Each once, in the order in which they were named or listed.
    pub(crate) all: Vec<Object>,
    /// One was named, and is answered as itself and not as a list.
    is_single: bool,
    /// A selection found them, and nobody named them.
    pub(crate) is_selected: bool,
}

/// What a verb does to one object.
pub(crate) struct Step {
    /// Its writes, in order; none where nothing is to be done.
    pub(crate) writes: Vec<Write>,
    /// What is said once they are made.
    pub(crate) sentence: String,
    /// What is answered where there is no write.
    pub(crate) answer: Value,
    /// What a person should know of the writes before they are made; it is said once it is decided that they can be.
    pub(crate) note: Option<String>,
}

impl Step {
    /// One write.
    pub(crate) fn of(write: Write, sentence: String) -> Self {
        Self { writes: vec![write], ..Self::nothing(sentence, Value::Null) }
    }

    /// Nothing is to be done.
    pub(crate) fn nothing(sentence: String, answer: Value) -> Self {
        Self { writes: Vec::new(), sentence, answer, note: None }
    }
}

/// What was not done, in its words.
#[derive(Default)]
struct Failures {
    lines: Vec<(Object, String)>,
    is_unknown: bool,
    /// Of one of them something was done.
    is_partial: bool,
    /// The controller did not even answer: the other objects are not tried.
    is_last: bool,
}

impl Objects {
    /// Objects that were named, all of one kind.
    pub(crate) fn named(kind: &'static str, names: &[String]) -> Self {
        Self::once(names.iter().map(|name| Object { kind, name: name.clone() }))
    }

    /// Each of these once.
    fn once(all: impl Iterator<Item = Object>) -> Self {
        let mut seen = BTreeSet::new();
        let all: Vec<_> = all.filter(|object| seen.insert(object.clone())).collect();
        Self { is_single: all.len() == 1, is_selected: false, all }
    }

    /// Objects that were named as `KIND NAME…` or as `KIND/NAME …`, or that a selection finds.
    ///
    /// # Errors
    /// When nothing is named, when both is done, or when the list can't be read.
    pub(crate) async fn of(api: &mut Api, Named { subject, names, selection }: &Named) -> Result<Self> {
        let Some(first) = &subject.name else { return Self::of_kind(api, subject.kind, names, selection).await };
        check_unselected(names, selection)?;
        let mut all = vec![(subject.kind, subject.kind.bare(first).to_owned())];
        for name in names {
            match name.parse::<Subject>() {
                Ok(Subject { kind, name: Some(name) }) => all.push((kind, kind.bare(&name).to_owned())),
                _ => {
                    let name = subject.kind.bare(name);
                    let sentence =
                        format!("{name:?} has no kind: write KIND/NAME for each, as for the first, or KIND NAME…");
                    return Err(Exit::Usage.because(sentence));
                }
            }
        }
        Self::once(all.into_iter().map(|(kind, name)| Object { kind: kind.name(), name })).with_paths()
    }

    /// Objects of a kind that were named, or that a selection finds.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) async fn of_kind(api: &mut Api, kind: Kind, names: &[String], selection: &Selection) -> Result<Self> {
        if !selection.is_empty() {
            let names = selected(api, kind, names, selection).await?;
            if names.is_empty() {
                tell!("no {} is selected; nothing was changed", kind.name());
            }
            let all = names.into_iter().map(|name| Object { kind: kind.name(), name }).collect();
            return Ok(Self { all, is_single: false, is_selected: true });
        }
        if names.is_empty() {
            let sentence = format!("which {}? name some, or select them, as with -l KEY=VALUE", kind.name());
            return Err(Exit::Usage.because(sentence));
        }
        let names: Vec<String> = names.iter().map(|name| kind.bare(name).to_owned()).collect();
        Self::named(kind.name(), &names).with_paths()
    }

    /// The same, where each is named as its kind is: one that is none is refused before anything is done to another.
    fn with_paths(self) -> Result<Self> {
        let refused = |error: Error| Exit::Usage.because(format!("{error:#}"));
        self.all.iter().try_for_each(|object| object.kind().path(&object.name).map(drop).map_err(refused))?;
        Ok(self)
    }
}

/// The names of the objects of a kind that a selection finds.
///
/// # Errors
/// When names are given too, for a kind without labels, or when the list can't be read.
pub(crate) async fn selected(
    api: &mut Api,
    kind: Kind,
    names: &[String],
    selection: &Selection,
) -> Result<Vec<String>> {
    check_unselected(names, selection)?;
    if !kind.has_manifest() {
        return Err(Exit::Usage.because(format!("{} has no labels: name it", kind.with_article())));
    }
    let listed = question::list(api, kind, &Filter::of(selection)).await?;
    Ok(listed.iter().map(|object| question::name(kind, object)).collect())
}

/// Refuses names beside a selection.
///
/// # Errors
/// When both are there.
fn check_unselected(names: &[String], selection: &Selection) -> Result<()> {
    if names.is_empty() || selection.is_empty() {
        return Ok(());
    }
    Err(Exit::Usage.because(format!("{} is named, and others are selected: do one of them", names.join(", "))))
}

/// Does to each object what `plan` says.
///
/// # Errors
/// Of one object its own error; of several what was not done, and what was.
pub(crate) async fn each(
    api: &mut Api,
    objects: &Objects,
    output: Output,
    plan: impl AsyncFn(&mut Api, &Object) -> Result<Step>,
) -> Result<()> {
    let mut failures = Failures::default();
    let decided = decide_all(api, objects, &plan, &mut failures).await?;
    if !api.is_dry() {
        ask(api, objects, &decided)?;
    }
    let (mut done, mut values) = (Vec::new(), Vec::new());
    for (object, step) in decided {
        if failures.is_last {
            break;
        }
        match carry_out(api, object, step, &plan).await {
            Ok(one) => {
                values.extend(one.say_part(api, output, done.is_empty()).await?);
                done.push(object);
            }
            Err(error) if objects.is_single => return Err(error),
            Err(error) => failures.add(object, &error),
        }
    }
    if matches!(output, Output::Json | Output::Yaml) {
        let value = if objects.is_single { values.pop().unwrap_or_default() } else { Value::Array(values) };
        question::print(&value, output)?;
    }
    note_dry_run(api);
    failures.said(&objects.all, &done)
}

/// Asks whether what was decided may be done.
fn ask(api: &Api, objects: &Objects, decided: &[(&Object, Option<Step>)]) -> Result<()> {
    let reach = api.would_reach();
    let Some(kind) = objects.all.first().map(|object| object.kind).filter(|_| objects.is_selected) else {
        return api.may_reach(reach);
    };
    let is_written = |step: &Option<Step>| step.as_ref().is_none_or(|step| !step.writes.is_empty());
    let written = decided.iter().filter(|(_, step)| is_written(step)).map(|(object, _)| object.name.as_str());
    api.may_change_selected(kind, objects.all.len(), &written.collect::<Vec<_>>(), reach)
}

/// Has the writes of all objects decided. An object may be in use only by others of the same command: it is decided again after
/// those. Such objects come last, each before those that it refers to.
async fn decide_all<'a>(
    api: &mut Api,
    objects: &'a Objects,
    plan: &impl AsyncFn(&mut Api, &Object) -> Result<Step>,
    failures: &mut Failures,
) -> Result<Vec<(&'a Object, Option<Step>)>> {
    let (mut decided, mut used) = (Vec::new(), Vec::new());
    for object in &objects.all {
        match decide(api, object, plan).await {
            Ok(step) => decided.push((object, Some(step))),
            Err(error) if objects.is_single => return Err(error),
            Err(error) if api.is_dry() && is_used_by_others(&error, &objects.all) => failures.add(object, &error),
            Err(error) if is_in_use(&error) => used.push((object, None)),
            Err(error) => failures.add(object, &error),
        }
        if failures.is_last {
            break;
        }
    }
    tell_moves(api, &mut decided).await;
    used.sort_by_key(|(object, _)| Kind::named(object.kind));
    decided.extend(used);
    Ok(decided)
}

/// Says which primaries the writes move that were decided, each with what the others of the command do to the node that it would go to.
async fn tell_moves(api: &mut Api, decided: &mut [(&Object, Option<Step>)]) {
    let all = &*decided;
    if all.iter().filter_map(|(_, step)| step.as_ref()).all(|step| moved_primaries(&step.answer).is_empty()) {
        return;
    }
    let mut together = Together::default();
    let mut names = Vec::new();
    for (object, step) in all {
        let writes = step.as_ref().map_or(&[][..], |step| &step.writes[..]);
        if object.kind != Kind::Node.name() || writes.is_empty() {
            names.push(None);
            continue;
        }
        let name = node_name(api, &object.name).await;
        let nodes = if writes.iter().any(Write::deletes_node) { &mut together.deleted } else { &mut together.changed };
        nodes.insert(name.clone());
        names.push(Some(name));
    }
    for ((_, step), name) in decided.iter_mut().zip(names) {
        if let Some(step) = step {
            together.mark(name.as_deref(), &mut step.answer);
            api.tell_moves(&step.answer);
        }
    }
}

/// The name of a node that was named by it or by its uuid.
async fn node_name(api: &mut Api, given: &str) -> String {
    if given.parse::<uuid::Uuid>().is_err() {
        return given.to_owned();
    }
    let found = question::one(api, Kind::Node, given).await;
    found.map_or_else(|_| given.to_owned(), |node| question::name(Kind::Node, &node))
}

fn is_in_use(error: &Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(Refusal::is_in_use)
}

/// Whether an object is in use also by one that does not go with it. One that goes may be named by its uuid.
fn is_used_by_others(error: &Error, all: &[Object]) -> bool {
    let goes = |user: &str| {
        let (kind, name) = user.split_once('/').unwrap_or((user, ""));
        let mut alike = all.iter().filter(|object| object.kind == kind);
        alike.any(|object| object.name == name || object.name.parse::<uuid::Uuid>().is_ok())
    };
    error.downcast_ref::<Refusal>().is_some_and(|refusal| !refusal.users().iter().all(|user| goes(user)))
}

/// Has the writes of one object decided: what is to be done, with the answers.
async fn decide(
    api: &mut Api,
    object: &Object,
    plan: &impl AsyncFn(&mut Api, &Object) -> Result<Step>,
) -> Result<Step> {
    let mut step = plan(api, object).await?;
    for write in &step.writes {
        let (answer, _) = match api.decide(write).await {
            Err(error) if Exit::of(&error) == Exit::NotFound => {
                let Some(kind) = Kind::named(object.kind) else { return Err(error) };
                return Err(question::nearest(api, kind, &object.name, error).await);
            }
            decided => decided?,
        };
        step.answer = after_changes(&step.answer, answer);
    }
    if let Some(note) = &step.note {
        tell!("info: {object} {}", printable(note));
    }
    Ok(step)
}

/// Makes the writes of one object, which are decided now where they could not be before. A dry run has its answer already, or none
/// where the others had to go first.
async fn carry_out<'a>(
    api: &mut Api,
    object: &'a Object,
    step: Option<Step>,
    plan: &impl AsyncFn(&mut Api, &Object) -> Result<Step>,
) -> Result<Done<'a>> {
    let step = match step {
        Some(step) => step,
        None if api.is_dry() => {
            let sentence = format!("{object} is in use: it is decided once the others are gone");
            return Ok(Done { kind: object.kind, name: &object.name, sentence, answer: Value::Null });
        }
        None => {
            let asked = api.would_reach();
            let step = decide(api, object, plan).await?;
            api.tell_moves(&step.answer);
            if api.would_reach().hosts > asked.hosts {
                api.may_reach(api.would_reach())?;
            }
            step
        }
    };
    let is_to_be_made = !(api.is_dry() || step.writes.is_empty());
    let writes = if is_to_be_made { &step.writes[..] } else { &[] };
    let mut answer = if is_to_be_made { Value::Null } else { step.answer };
    for (at, write) in writes.iter().enumerate() {
        api.tell_moves_again(write).await.map_err(|error| after(error, &writes[..at]))?;
        let made = api.make(write).await.map_err(|error| after(error, &writes[..at]))?;
        answer = after_changes(&answer, made);
    }
    Ok(Done { kind: object.kind, name: &object.name, sentence: step.sentence, answer })
}

/// The answer of a write, with what the writes before it changed and moved.
fn after_changes(before: &Value, mut answer: Value) -> Value {
    for list in ["changes", "moved_primaries"] {
        if let (Some(Value::Array(earlier)), Some(Value::Array(later))) = (before.get(list), answer.get_mut(list)) {
            later.splice(0..0, earlier.iter().cloned());
        }
    }
    answer
}

/// The error of a write of an object whose earlier writes were made.
fn after(error: Error, made: &[Write]) -> Error {
    if made.is_empty() {
        return error;
    }
    let made: Vec<String> = made.iter().map(ToString::to_string).collect();
    Exit::of(&error).after_others(format!("{error:#}\n  already done before it: {}", made.join(", ")))
}

impl Failures {
    /// Notes what was not done.
    fn add(&mut self, object: &Object, error: &Error) {
        self.is_unknown |= Exit::of(error) == Exit::Unknown;
        self.is_partial |= exit::is_partial(error);
        let is_unanswered = matches!(Exit::given(error), Some(Exit::Error | Exit::Unknown)) && !exit::is_partial(error);
        self.is_last = is_unanswered && error.downcast_ref::<Refusal>().is_none();
        let reason = format!("{error:#}").replace('\n', "\n  ");
        self.lines.push((object.clone(), reason));
    }

    fn said(self, all: &[Object], done: &[&Object]) -> Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let listed = |objects: &[&Object]| objects.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let failed: Vec<String> = self.lines.iter().map(|(object, reason)| format!("{object}: {reason}")).collect();
        let mut text = format!("{} of {} failed\n  {}", failed.len(), all.len(), failed.join("\n  "));
        let is_told =
            |object: &&Object| done.contains(object) || self.lines.iter().any(|(failed, _)| failed == *object);
        let untried: Vec<&Object> = all.iter().filter(|object| !is_told(object)).collect();
        for (word, objects) in [("not tried", &untried[..]), ("done", done)] {
            if !objects.is_empty() {
                text.push_str(&format!("\n  {word}: {}", listed(objects)));
            }
        }
        let exit = if self.is_unknown { Exit::Unknown } else { Exit::Error };
        let is_unchanged = done.is_empty() && !self.is_partial;
        Err(if is_unchanged { exit.because(text) } else { exit.after_others(text) })
    }
}
