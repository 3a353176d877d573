//! One command for several objects. The controller first checks all writes in a dry run. Then the user confirms all of
//! the writes at once, and they are sent one after another.
//!
//! The writes are not a transaction (an `apply` is): one write may fail while others succeed. Each success is printed
//! at once, except in JSON and YAML. Failures are printed at the end with their reasons, and the exit status is 1, or 5
//! if it is unknown whether a write was carried out. If the user named only one object, the command ends with the error
//! and the exit status of this object.

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
    /// The word for the kind, such as `node`, `cluster` or `tag`.
    pub(crate) kind: &'static str,
    /// The name or uuid with which the API can read the object.
    pub(crate) name: String,
}

impl TargetObject {
    /// Returns the kind. Panics if no [`KindArg`] has this name, which is the case for tags.
    pub(crate) fn kind_arg(&self) -> KindArg {
        KindArg::from_name(self.kind).expect("each target of this command has a known kind")
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
    /// The objects without repetition, in the order of the command line or of the controller's list.
    pub(crate) objects: Vec<TargetObject>,
    /// True if the user named exactly one object. The result is then printed as an object, not as a list.
    is_single: bool,
    /// True if the objects were found by a selection, such as `-l`, and not named by the user.
    pub(crate) is_selected: bool,
}

/// The writes that a command plans for one object.
pub(crate) struct WritePlan {
    /// The writes in order. Empty if there is nothing to do.
    pub(crate) writes: Vec<WriteRequest>,
    /// The sentence to print after the writes.
    pub(crate) sentence: String,
    /// The value to print if no write is sent. After the check, this is the response to the dry run of the writes.
    pub(crate) answer: Value,
    /// A note about the writes. It is printed after the dry run, before the writes are sent.
    pub(crate) note: Option<String>,
}

impl WritePlan {
    /// Returns a plan with one write.
    pub(crate) fn from_write(write: WriteRequest, sentence: String) -> Self {
        Self { writes: vec![write], ..Self::no_change(sentence, Value::Null) }
    }

    /// Returns a plan without writes. `answer` is the object to print in place of a response.
    pub(crate) fn no_change(sentence: String, answer: Value) -> Self {
        Self { writes: Vec::new(), sentence, answer, note: None }
    }
}

/// The objects that failed, each with the text of its error.
#[derive(Default)]
struct BatchFailures {
    lines: Vec<(TargetObject, String)>,
    /// True if the outcome of a write is unknown, because its response was lost, or because the controller itself does
    /// not know whether it stored the write.
    is_outcome_unknown: bool,
    /// True if a failed object was changed by an earlier write of this command.
    is_partial: bool,
    /// True if the command does not try the remaining objects.
    should_stop: bool,
}

impl Targets {
    /// Returns the named objects, all of one kind.
    pub(crate) fn from_names(kind: &'static str, names: &[String]) -> Self {
        Self::deduplicate(names.iter().map(|name| TargetObject { kind, name: name.clone() }))
    }

    /// Creates targets from objects, without repeated objects.
    fn deduplicate(objects: impl Iterator<Item = TargetObject>) -> Self {
        let mut unique_objects = BTreeSet::new();
        let objects: Vec<_> = objects.filter(|object| unique_objects.insert(object.clone())).collect();
        Self { is_single: objects.len() == 1, is_selected: false, objects }
    }

    /// Returns the objects that are named as `KIND NAME…` or as `KIND/NAME …`, or the objects that a selection finds.
    ///
    /// # Errors
    /// If neither names nor a selection are given, or both, if a name is invalid, if the kind can't be selected, or if
    /// the list can't be read. A selection that finds nothing is not an error.
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

    /// Returns the named objects of a kind, or the objects that a selection finds.
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
            let targets = names.into_iter().map(|name| TargetObject { kind: kind.name(), name }).collect();
            return Ok(Self { objects: targets, is_single: false, is_selected: true });
        }
        if names.is_empty() {
            let sentence = format!("which {}? name some, or select them, as with -l KEY=VALUE", kind.name());
            return Err(Exit::Usage.with_message(sentence));
        }
        let names: Vec<String> = names.iter().map(|name| kind.bare_name(name).to_owned()).collect();
        Self::from_names(kind.name(), &names).validate()
    }

    /// Returns the targets if each name is valid for its kind. All names are checked before any object is changed.
    fn validate(self) -> Result<Self> {
        let usage_error = |error: Error| Exit::Usage.with_message(format!("{error:#}"));
        self.objects.iter().try_for_each(|object| object.kind_arg().path(&object.name).map(drop).map_err(usage_error))?;
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

/// Fails if the user gave both names and a selection.
fn check_names_or_selection(names: &[String], selection: &SelectionArgs) -> Result<()> {
    if names.is_empty() || selection.is_empty() {
        return Ok(());
    }
    Err(Exit::Usage
        .with_message(format!("{} is named and others are selected: use names or a selection, not both", names.join(", "))))
}

/// Plans and checks the writes of each object, requests confirmation of all writes if necessary, then sends the writes.
/// Each success is printed at once, or at the end in JSON and YAML. `plan` returns the writes for one object.
///
/// # Errors
/// If the user does not confirm. If the user named one object, the error of that object. Otherwise a list of the
/// failed, untried and successful objects.
pub(crate) async fn run_batch(
    api: &mut ApiClient,
    targets: &Targets,
    output: Output,
    plan: impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
) -> Result<()> {
    let mut failures = BatchFailures::default();
    let planned = check_all(api, targets, &plan, &mut failures).await?;
    if !api.is_dry() {
        confirm(api, targets, &planned)?;
    }
    let (mut succeeded, mut values) = (Vec::new(), Vec::new());
    for (object, write_plan) in planned {
        if failures.should_stop {
            break;
        }
        match write_object(api, object, write_plan, &plan).await {
            Ok(report) => {
                // The last argument is true for the first printed result.
                values.extend(report.print_part(api, output, succeeded.is_empty()).await?);
                succeeded.push(object);
            }
            Err(error) if targets.is_single => return Err(error),
            Err(error) => failures.add(object, &error),
        }
    }
    if matches!(output, Output::Json | Output::Yaml) {
        let value = if targets.is_single { values.pop().unwrap_or_default() } else { Value::Array(values) };
        read::print_value(&value, output)?;
    }
    print_dry_run(api);
    failures.into_result(&targets.objects, &succeeded)
}

/// Requests confirmation of the planned writes, if it is necessary. For objects that a selection found, the question
/// names the objects that will be written. An object without a plan counts as written.
fn confirm(api: &ApiClient, targets: &Targets, planned: &[(&TargetObject, Option<WritePlan>)]) -> Result<()> {
    let reach = api.total_reach();
    let Some(kind) = targets.objects.first().map(|object| object.kind).filter(|_| targets.is_selected) else {
        return api.check_reach(reach);
    };
    let is_written = |write_plan: &Option<WritePlan>| write_plan.as_ref().is_none_or(|write_plan| !write_plan.writes.is_empty());
    let written = planned.iter().filter(|(_, write_plan)| is_written(write_plan)).map(|(object, _)| object.name.as_str());
    api.check_selected(kind, targets.objects.len(), &written.collect::<Vec<_>>(), reach)
}

/// Plans the writes of all objects and checks them in a dry run. An object that other objects use can't be deleted yet,
/// so it gets no plan. It is checked again after the other objects of the command were deleted.
///
/// Objects without a plan are last in the result. Each of them precedes the objects of other kinds that it refers to.
async fn check_all<'a>(
    api: &mut ApiClient,
    targets: &'a Targets,
    plan: &impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
    failures: &mut BatchFailures,
) -> Result<Vec<(&'a TargetObject, Option<WritePlan>)>> {
    let (mut planned, mut deferred) = (Vec::new(), Vec::new());
    for object in &targets.objects {
        match check_object(api, object, plan).await {
            Ok(write_plan) => planned.push((object, Some(write_plan))),
            Err(error) if targets.is_single => return Err(error),
            // No other write of this command can free an object that is also used by others.
            Err(error) if api.is_dry() && is_used_outside(&error, &targets.objects) => failures.add(object, &error),
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

/// Prints the primaries that the planned writes move. If this command also changes or deletes the node to which a
/// primary would move, the printed line and the response in the plan state this.
async fn announce_moves(api: &mut ApiClient, planned: &mut [(&TargetObject, Option<WritePlan>)]) {
    let plans = &*planned;
    if plans.iter().filter_map(|(_, plan)| plan.as_ref()).all(|plan| moved_primary_messages(&plan.answer).is_empty()) {
        return;
    }
    let mut changes = ChangedNodes::default();
    // For each plan, the name of the node that it writes, or `None` for another object.
    let mut names = Vec::new();
    for (object, plan) in plans {
        let writes = plan.as_ref().map_or(&[][..], |plan| &plan.writes[..]);
        if object.kind != KindArg::Node.name() || writes.is_empty() {
            names.push(None);
            continue;
        }
        let name = node_name(api, &object.name).await;
        let nodes = if writes.iter().any(WriteRequest::deletes_node) { &mut changes.deleted } else { &mut changes.changed };
        nodes.insert(name.clone());
        names.push(Some(name));
    }
    for ((_, plan), name) in planned.iter_mut().zip(names) {
        if let Some(plan) = plan {
            changes.mark_moves(name.as_deref(), &mut plan.answer);
            api.announce_moves(&plan.answer);
        }
    }
}

/// Returns the name of a node that was given by name or by uuid. If the node can't be read, returns the given text.
async fn node_name(api: &mut ApiClient, name: &str) -> String {
    if name.parse::<uuid::Uuid>().is_err() {
        return name.to_owned();
    }
    let result = read::read_object(api, KindArg::Node, name).await;
    result.map_or_else(|_| name.to_owned(), |node| read::object_name(KindArg::Node, &node))
}

/// Returns whether the controller refused a delete because other objects still use the object.
fn is_in_use(error: &Error) -> bool {
    error.downcast_ref::<ApiRefusal>().is_some_and(ApiRefusal::is_in_use)
}

/// Returns whether an object outside this command also uses the object that could not be deleted. The controller lists
/// users by name. So a target that is given by uuid is assumed to be any user of its kind.
fn is_used_outside(error: &Error, targets: &[TargetObject]) -> bool {
    let is_included = |user: &str| {
        let (kind, name) = user.split_once('/').unwrap_or((user, ""));
        let mut targets_of_kind = targets.iter().filter(|object| object.kind == kind);
        targets_of_kind.any(|object| object.name == name || object.name.parse::<uuid::Uuid>().is_ok())
    };
    error.downcast_ref::<ApiRefusal>().is_some_and(|refusal| !refusal.users().iter().all(|user| is_included(user)))
}

/// Plans the writes of one object, and checks them in a dry run. Returns the plan with the responses to the dry run. If
/// the object does not exist, the error suggests a similar name.
async fn check_object(
    api: &mut ApiClient,
    object: &TargetObject,
    plan: &impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
) -> Result<WritePlan> {
    let mut write_plan = plan(api, object).await?;
    for write in &write_plan.writes {
        let (answer, _) = match api.check_write(write).await {
            Err(error) if Exit::from_error(&error) == Exit::NotFound => {
                let Some(kind) = KindArg::from_name(object.kind) else { return Err(error) };
                return Err(read::with_suggestion(api, kind, &object.name, error).await);
            }
            result => result?,
        };
        write_plan.answer = merge_changes(&write_plan.answer, answer);
    }
    if let Some(note) = &write_plan.note {
        errln!("info: {object} {}", printable(note));
    }
    Ok(write_plan)
}

/// Sends the writes of one object, and returns the report to print. Without a plan, the writes are planned and checked
/// first. That was not possible earlier, because the object was still used by objects that this command has deleted
/// now. If the writes of the command then reach more hosts than before, the number of hosts is checked again.
///
/// With `--dry-run`, nothing is sent, and the report contains the response to the check, if any.
async fn write_object<'a>(
    api: &mut ApiClient,
    object: &'a TargetObject,
    write_plan: Option<WritePlan>,
    plan: &impl AsyncFn(&mut ApiClient, &TargetObject) -> Result<WritePlan>,
) -> Result<WriteReport<'a>> {
    let write_plan = match write_plan {
        Some(write_plan) => write_plan,
        None if api.is_dry() => {
            let sentence = format!("{object} is in use: it is decided after the others are deleted");
            return Ok(WriteReport { kind: object.kind, name: &object.name, sentence, answer: Value::Null });
        }
        None => {
            let confirmed_reach = api.total_reach();
            let write_plan = check_object(api, object, plan).await?;
            api.announce_moves(&write_plan.answer);
            if api.total_reach().hosts > confirmed_reach.hosts {
                api.check_reach(api.total_reach())?;
            }
            write_plan
        }
    };
    let is_sent = !(api.is_dry() || write_plan.writes.is_empty());
    let writes = if is_sent { &write_plan.writes[..] } else { &[] };
    let mut answer = if is_sent { Value::Null } else { write_plan.answer };
    for (index, write) in writes.iter().enumerate() {
        api.announce_new_moves(write).await.map_err(|error| partial_error(error, &writes[..index]))?;
        let response = api.send_checked(write).await.map_err(|error| partial_error(error, &writes[..index]))?;
        answer = merge_changes(&answer, response);
    }
    Ok(WriteReport { kind: object.kind, name: &object.name, sentence: write_plan.sentence, answer })
}

/// Returns the response to a write. The changes and moved primaries of the earlier response are added to its lists.
fn merge_changes(earlier_answer: &Value, mut answer: Value) -> Value {
    for list in ["changes", "moved_primaries"] {
        if let (Some(Value::Array(earlier)), Some(Value::Array(later))) = (earlier_answer.get(list), answer.get_mut(list)) {
            later.splice(0..0, earlier.iter().cloned());
        }
    }
    answer
}

/// Returns the error of a write. Its message also lists the earlier writes of the object, which succeeded.
fn partial_error(error: Error, earlier: &[WriteRequest]) -> Error {
    if earlier.is_empty() {
        return error;
    }
    let earlier: Vec<String> = earlier.iter().map(ToString::to_string).collect();
    Exit::from_error(&error).partial_failure(format!("{error:#}\n  already done before it: {}", earlier.join(", ")))
}

impl BatchFailures {
    /// Records the failure of an object. The command stops if the error has the attached status [`Exit::Error`] or
    /// [`Exit::Unknown`] (a refusal has none): the controller did not respond, or the hosts are more than `--max-nodes`
    /// allows. An error after an earlier write of the same object (`is_partial`) does not stop the command.
    fn add(&mut self, object: &TargetObject, error: &Error) {
        self.is_outcome_unknown |= Exit::from_error(error) == Exit::Unknown;
        self.is_partial |= exit::is_partial(error);
        let has_stop_status = matches!(Exit::attached_status(error), Some(Exit::Error | Exit::Unknown));
        self.should_stop = has_stop_status && !exit::is_partial(error);
        let reason = format!("{error:#}").replace('\n', "\n  ");
        self.lines.push((object.clone(), reason));
    }

    /// Returns the error of the command, or `Ok` if no object failed. The error lists the failed objects with their
    /// reasons, the objects that were not tried, and the objects that succeeded.
    fn into_result(self, targets: &[TargetObject], succeeded: &[&TargetObject]) -> Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let joined = |objects: &[&TargetObject]| objects.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let failed: Vec<String> = self.lines.iter().map(|(object, reason)| format!("{object}: {reason}")).collect();
        let mut text = format!("{} of {} failed\n  {}", failed.len(), targets.len(), failed.join("\n  "));
        let is_reported =
            |object: &&TargetObject| succeeded.contains(object) || self.lines.iter().any(|(failed, _)| failed == *object);
        let untried: Vec<&TargetObject> = targets.iter().filter(|object| !is_reported(object)).collect();
        for (word, objects) in [("not tried", &untried[..]), ("done", succeeded)] {
            if !objects.is_empty() {
                text.push_str(&format!("\n  {word}: {}", joined(objects)));
            }
        }
        let exit = if self.is_outcome_unknown { Exit::Unknown } else { Exit::Error };
        let is_unchanged = succeeded.is_empty() && !self.is_partial;
        Err(if is_unchanged { exit.with_message(text) } else { exit.partial_failure(text) })
    }
}
