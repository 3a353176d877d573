//! One command for several objects. The controller first checks all writes in a dry run. Then the user confirms all of
//! them at once, and they are sent one after another.
//!
//! They are not a transaction (`apply` is): one may fail while others succeed. Each success is printed at once.
//! Failures are printed at the end with their reasons, and the status is 1.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Error, Result};
use serde_json::Value;

use crate::api::{ApiClient, ApiRefusal, WriteRequest};
use crate::args::{FilterArgs, KindArg, ObjectArgs, ObjectRef, Output, SelectionArgs};
use crate::command::read;
use crate::command::report::{WriteReport, print_dry_run};
use crate::exit::{self, Exit};
use crate::host_limit::{ChangedNodes, moved_primary_messages};
use crate::output::printable;

/// An object that a command acts on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetObject {
    /// `node`, `cluster`, `tag`, …
    pub(crate) kind: &'static str,
    /// The name by which the object can be read.
    pub(crate) name: String,
}

impl TargetObject {
    /// Returns the kind. Panics if no [`KindArg`] has this name.
    pub(crate) fn kind_arg(&self) -> KindArg {
        KindArg::from_name(self.kind).expect("objects with a kind are named by it")
    }
}

impl fmt::Display for TargetObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, printable(&self.name))
    }
}

/// The objects of one command.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    /// The objects without repetition, in the order of the command line or the list.
    pub(crate) all: Vec<TargetObject>,
    /// True if one object was named. The result is then printed as an object, not as a list.
    is_single: bool,
    /// True if a selection found the objects.
    pub(crate) is_selected: bool,
}

/// The writes that a command plans for one object.
pub(crate) struct WritePlan {
    /// The writes in order. Empty if there is nothing to do.
    pub(crate) writes: Vec<WriteRequest>,
    /// The sentence to print after the writes.
    pub(crate) sentence: String,
    /// The value to print if there is no write.
    pub(crate) answer: Value,
    /// A note about the writes. It is printed after their dry run and before they are sent.
    pub(crate) note: Option<String>,
}

impl WritePlan {
    /// Returns a plan with one write.
    pub(crate) fn from_write(write: WriteRequest, sentence: String) -> Self {
        Self { writes: vec![write], ..Self::no_change(sentence, Value::Null) }
    }

    /// Returns a plan without writes.
    pub(crate) fn no_change(sentence: String, answer: Value) -> Self {
        Self { writes: Vec::new(), sentence, answer, note: None }
    }
}

/// The objects that failed, each with its error.
#[derive(Default)]
struct BatchFailures {
    lines: Vec<(TargetObject, String)>,
    /// True if the outcome of a write is unknown.
    is_unknown: bool,
    /// True if a failed object was partly changed.
    is_partial: bool,
    /// True if the controller did not respond. The remaining objects are then not tried.
    should_stop: bool,
}

impl Targets {
    /// Returns the named objects, all of one kind.
    pub(crate) fn from_names(kind: &'static str, names: &[String]) -> Self {
        Self::deduplicate(names.iter().map(|name| TargetObject { kind, name: name.clone() }))
    }

    /// Returns the objects, each once.
    fn deduplicate(objects: impl Iterator<Item = TargetObject>) -> Self {
        let mut seen = BTreeSet::new();
        let objects: Vec<_> = objects.filter(|object| seen.insert(object.clone())).collect();
        Self { is_single: objects.len() == 1, is_selected: false, all: objects }
    }

    /// Returns the objects named as `KIND NAME…` or as `KIND/NAME …`, or those that a selection finds.
    ///
    /// # Errors
    /// If nothing is named, if names and a selection are both given, or if the list can't be read.
    pub(crate) async fn from_args(api: &mut ApiClient, ObjectArgs { subject, names, selection }: &ObjectArgs) -> Result<Self> {
        let Some(first) = &subject.name else { return Self::for_kind(api, subject.kind, names, selection).await };
        check_names_or_selection(names, selection)?;
        let mut objects = vec![(subject.kind, subject.kind.bare_name(first).to_owned())];
        for name in names {
            match name.parse::<ObjectRef>() {
                Ok(ObjectRef { kind, name: Some(name) }) => objects.push((kind, kind.bare_name(&name).to_owned())),
                _ => {
                    let name = subject.kind.bare_name(name);
                    let sentence = format!("{name:?} has no kind: write KIND/NAME for each, as for the first, or KIND NAME…");
                    return Err(Exit::Usage.with_message(sentence));
                }
            }
        }
        Self::deduplicate(objects.into_iter().map(|(kind, name)| TargetObject { kind: kind.name(), name })).validate()
    }

    /// Returns the named objects of a kind, or those that a selection finds.
    ///
    /// # Errors
    /// As [`Self::from_args`].
    pub(crate) async fn for_kind(
        api: &mut ApiClient,
        kind: KindArg,
        names: &[String],
        selection: &SelectionArgs,
    ) -> Result<Self> {
        if !selection.is_empty() {
            let names = select_names(api, kind, names, selection).await?;
            if names.is_empty() {
                errln!("no {} is selected; nothing was changed", kind.name());
            }
            let all = names.into_iter().map(|name| TargetObject { kind: kind.name(), name }).collect();
            return Ok(Self { all, is_single: false, is_selected: true });
        }
        if names.is_empty() {
            let sentence = format!("which {}? name some, or select them, as with -l KEY=VALUE", kind.name());
            return Err(Exit::Usage.with_message(sentence));
        }
        let names: Vec<String> = names.iter().map(|name| kind.bare_name(name).to_owned()).collect();
        Self::from_names(kind.name(), &names).validate()
    }

    /// Fails if a name is not valid for its kind. All names are checked before any object is changed.
    fn validate(self) -> Result<Self> {
        let usage_error = |error: Error| Exit::Usage.with_message(format!("{error:#}"));
        self.all.iter().try_for_each(|object| object.kind_arg().path(&object.name).map(drop).map_err(usage_error))?;
        Ok(self)
    }
}

/// Returns the names of the objects of a kind that a selection finds.
///
/// # Errors
/// If names are given too, if the kind has no labels, or if the list can't be read.
pub(crate) async fn select_names(
    api: &mut ApiClient,
    kind: KindArg,
    names: &[String],
    selection: &SelectionArgs,
) -> Result<Vec<String>> {
    check_names_or_selection(names, selection)?;
    if !kind.has_manifest() {
        return Err(Exit::Usage.with_message(format!("{} has no labels: name it", kind.name_with_article())));
    }
    let objects = read::list_all(api, kind, &FilterArgs::from_selection(selection)).await?;
    Ok(objects.iter().map(|object| read::object_name(kind, object)).collect())
}

/// Fails if names and a selection are both given.
fn check_names_or_selection(names: &[String], selection: &SelectionArgs) -> Result<()> {
    if names.is_empty() || selection.is_empty() {
        return Ok(());
    }
    Err(Exit::Usage
        .with_message(format!("{} is named and others are selected: use names or a selection, not both", names.join(", "))))
}

/// Plans and checks the writes of each object, asks for confirmation once, then sends the writes. Each success is
/// printed at once.
///
/// # Errors
/// If one object was named, the error of that object. Otherwise a list of the failures and of what was done.
pub(crate) async fn run_batch(
    api: &mut ApiClient,
    objects: &Targets,
    output: Output,
    plan: impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
) -> Result<()> {
    let mut failures = BatchFailures::default();
    let planned = check_all(api, objects, &plan, &mut failures).await?;
    if !api.is_dry() {
        confirm(api, objects, &planned)?;
    }
    let (mut done, mut values) = (Vec::new(), Vec::new());
    for (object, step) in planned {
        if failures.should_stop {
            break;
        }
        match write_object(api, object, step, &plan).await {
            Ok(report) => {
                values.extend(report.print_part(api, output, done.is_empty()).await?);
                done.push(object);
            }
            Err(error) if objects.is_single => return Err(error),
            Err(error) => failures.add(object, &error),
        }
    }
    if matches!(output, Output::Json | Output::Yaml) {
        let value = if objects.is_single { values.pop().unwrap_or_default() } else { Value::Array(values) };
        read::print_value(&value, output)?;
    }
    print_dry_run(api);
    failures.into_result(&objects.all, &done)
}

/// Asks the user to confirm the planned writes.
fn confirm(api: &ApiClient, objects: &Targets, planned: &[(&TargetObject, Option<WritePlan>)]) -> Result<()> {
    let reach = api.total_reach();
    let Some(kind) = objects.all.first().map(|object| object.kind).filter(|_| objects.is_selected) else {
        return api.check_reach(reach);
    };
    let is_written = |step: &Option<WritePlan>| step.as_ref().is_none_or(|step| !step.writes.is_empty());
    let written = planned.iter().filter(|(_, step)| is_written(step)).map(|(object, _)| object.name.as_str());
    api.check_selected(kind, objects.all.len(), &written.collect::<Vec<_>>(), reach)
}

/// Plans the writes of all objects and checks them in a dry run. An object that is still in use can't be deleted yet.
/// It gets no plan, and is checked again after the other objects of the command are deleted. Such objects come last,
/// each before the objects that it refers to.
async fn check_all<'a>(
    api: &mut ApiClient,
    objects: &'a Targets,
    plan: &impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
    failures: &mut BatchFailures,
) -> Result<Vec<(&'a TargetObject, Option<WritePlan>)>> {
    let (mut planned, mut deferred) = (Vec::new(), Vec::new());
    for object in &objects.all {
        match check_object(api, object, plan).await {
            Ok(step) => planned.push((object, Some(step))),
            Err(error) if objects.is_single => return Err(error),
            Err(error) if api.is_dry() && is_used_outside(&error, &objects.all) => failures.add(object, &error),
            Err(error) if is_in_use(&error) => deferred.push((object, None)),
            Err(error) => failures.add(object, &error),
        }
        if failures.should_stop {
            break;
        }
    }
    announce_moves(api, &mut planned).await;
    deferred.sort_by_key(|(object, _)| KindArg::from_name(object.kind));
    planned.extend(deferred);
    Ok(planned)
}

/// Prints the primaries that the planned writes move. Each line also says whether this command changes or deletes the
/// node that the primary would move to.
async fn announce_moves(api: &mut ApiClient, planned: &mut [(&TargetObject, Option<WritePlan>)]) {
    let plans = &*planned;
    if plans.iter().filter_map(|(_, step)| step.as_ref()).all(|step| moved_primary_messages(&step.answer).is_empty()) {
        return;
    }
    let mut batch = ChangedNodes::default();
    let mut names = Vec::new();
    for (object, step) in plans {
        let writes = step.as_ref().map_or(&[][..], |step| &step.writes[..]);
        if object.kind != KindArg::Node.name() || writes.is_empty() {
            names.push(None);
            continue;
        }
        let name = node_name(api, &object.name).await;
        let nodes = if writes.iter().any(WriteRequest::deletes_node) { &mut batch.deleted } else { &mut batch.changed };
        nodes.insert(name.clone());
        names.push(Some(name));
    }
    for ((_, step), name) in planned.iter_mut().zip(names) {
        if let Some(step) = step {
            batch.mark_moves(name.as_deref(), &mut step.answer);
            api.announce_moves(&step.answer);
        }
    }
}

/// Returns the name of a node that was given by name or by uuid.
async fn node_name(api: &mut ApiClient, name: &str) -> String {
    if name.parse::<uuid::Uuid>().is_err() {
        return name.to_owned();
    }
    let found = read::read_one(api, KindArg::Node, name).await;
    found.map_or_else(|_| name.to_owned(), |node| read::object_name(KindArg::Node, &node))
}

fn is_in_use(error: &Error) -> bool {
    error.downcast_ref::<ApiRefusal>().is_some_and(ApiRefusal::is_in_use)
}

/// Returns whether an object outside this command also uses the object that could not be deleted. A target that is
/// named by its uuid counts as any user of its kind, because the controller lists users by name.
fn is_used_outside(error: &Error, objects: &[TargetObject]) -> bool {
    let is_included = |user: &str| {
        let (kind, name) = user.split_once('/').unwrap_or((user, ""));
        let mut same_kind = objects.iter().filter(|object| object.kind == kind);
        same_kind.any(|object| object.name == name || object.name.parse::<uuid::Uuid>().is_ok())
    };
    error.downcast_ref::<ApiRefusal>().is_some_and(|refusal| !refusal.users().iter().all(|user| is_included(user)))
}

/// Plans the writes of one object and checks them in a dry run. Returns the plan with the responses.
async fn check_object(
    api: &mut ApiClient,
    object: &TargetObject,
    plan: &impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
) -> Result<WritePlan> {
    let mut step = plan(api, object).await?;
    for write in &step.writes {
        let (answer, _) = match api.check_write(write).await {
            Err(error) if Exit::from_error(&error) == Exit::NotFound => {
                let Some(kind) = KindArg::from_name(object.kind) else { return Err(error) };
                return Err(read::with_suggestion(api, kind, &object.name, error).await);
            }
            decided => decided?,
        };
        step.answer = merge_changes(&step.answer, answer);
    }
    if let Some(note) = &step.note {
        errln!("info: {object} {}", printable(note));
    }
    Ok(step)
}

/// Sends the writes of one object. Without a plan, the writes are planned and checked first, which was impossible
/// before other objects of the command were deleted. With `--dry-run`, nothing is sent, and the report contains the
/// response of the check, if any.
async fn write_object<'a>(
    api: &mut ApiClient,
    object: &'a TargetObject,
    step: Option<WritePlan>,
    plan: &impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
) -> Result<WriteReport<'a>> {
    let step = match step {
        Some(step) => step,
        None if api.is_dry() => {
            let sentence = format!("{object} is in use: it is decided after the others are deleted");
            return Ok(WriteReport { kind: object.kind, name: &object.name, sentence, answer: Value::Null });
        }
        None => {
            let confirmed = api.total_reach();
            let step = check_object(api, object, plan).await?;
            api.announce_moves(&step.answer);
            if api.total_reach().hosts > confirmed.hosts {
                api.check_reach(api.total_reach())?;
            }
            step
        }
    };
    let is_sent = !(api.is_dry() || step.writes.is_empty());
    let writes = if is_sent { &step.writes[..] } else { &[] };
    let mut answer = if is_sent { Value::Null } else { step.answer };
    for (index, write) in writes.iter().enumerate() {
        api.announce_new_moves(write).await.map_err(|error| partial_error(error, &writes[..index]))?;
        let response = api.send_checked(write).await.map_err(|error| partial_error(error, &writes[..index]))?;
        answer = merge_changes(&answer, response);
    }
    Ok(WriteReport { kind: object.kind, name: &object.name, sentence: step.sentence, answer })
}

/// Adds the changes and moved primaries of earlier writes to the response of a write.
fn merge_changes(before: &Value, mut answer: Value) -> Value {
    for list in ["changes", "moved_primaries"] {
        if let (Some(Value::Array(earlier)), Some(Value::Array(later))) = (before.get(list), answer.get_mut(list)) {
            later.splice(0..0, earlier.iter().cloned());
        }
    }
    answer
}

/// Returns the error of a write, with the earlier writes of the object that succeeded.
fn partial_error(error: Error, earlier: &[WriteRequest]) -> Error {
    if earlier.is_empty() {
        return error;
    }
    let earlier: Vec<String> = earlier.iter().map(ToString::to_string).collect();
    Exit::from_error(&error).partial_failure(format!("{error:#}\n  already done before it: {}", earlier.join(", ")))
}

impl BatchFailures {
    /// Records a failure.
    fn add(&mut self, object: &TargetObject, error: &Error) {
        self.is_unknown |= Exit::from_error(error) == Exit::Unknown;
        self.is_partial |= exit::is_partial(error);
        let is_unanswered = matches!(Exit::from_exit_error(error), Some(Exit::Error | Exit::Unknown)) && !exit::is_partial(error);
        self.should_stop = is_unanswered && error.downcast_ref::<ApiRefusal>().is_none();
        let reason = format!("{error:#}").replace('\n', "\n  ");
        self.lines.push((object.clone(), reason));
    }

    /// Returns the error of the command: the failed objects with their reasons, the objects that were not tried, and
    /// those that succeeded. `Ok` if none failed.
    fn into_result(self, targets: &[TargetObject], done: &[&TargetObject]) -> Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let joined = |objects: &[&TargetObject]| objects.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let failed: Vec<String> = self.lines.iter().map(|(object, reason)| format!("{object}: {reason}")).collect();
        let mut text = format!("{} of {} failed\n  {}", failed.len(), targets.len(), failed.join("\n  "));
        let is_reported =
            |object: &&TargetObject| done.contains(object) || self.lines.iter().any(|(failed, _)| failed == *object);
        let untried: Vec<&TargetObject> = targets.iter().filter(|object| !is_reported(object)).collect();
        for (word, objects) in [("not tried", &untried[..]), ("done", done)] {
            if !objects.is_empty() {
                text.push_str(&format!("\n  {word}: {}", joined(objects)));
            }
        }
        let exit = if self.is_unknown { Exit::Unknown } else { Exit::Error };
        let is_unchanged = done.is_empty() && !self.is_partial;
        Err(if is_unchanged { exit.with_message(text) } else { exit.partial_failure(text) })
    }
}
