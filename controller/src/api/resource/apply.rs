//! Several objects at once: all of them, or none.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::manifest::{Author, Document, Key, Scope, is_null, owners, read_document, write};
use stemma_core::name::{near, suggest};
use stemma_core::object::{
    ClusterId, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec, NodeGroupSpec, NodeSpec,
    Object, ReleaseSpec,
};
use stemma_core::ownership::{InvalidOwner, Owner, Party};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::changes::{Changes, LostLabels, shown_kept};
use super::moved_primaries::MovedPrimaries;
use super::nodes::check_reports;
use super::objects::{Shown, check_computed};
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Request};
use crate::records::request::Answer;
use crate::registry::admit::{bad_body, bad_field};
use crate::registry::names::ModelNames;
use crate::registry::work::{Work, check_absent, check_presumed};

/// The most objects of one apply.
const MOST_OBJECTS: usize = 2_000;
/// The most objects that are refused at once; behind them no other is looked at.
const MOST_REFUSED: usize = 50;
/// What an object of an apply may be presumed to be at, as `If-Match` does for one.
const REVISION: &str = "resource_version";

/// An object of an apply.
struct Given {
    /// Its place in the body.
    at: usize,
    /// What it says.
    document: Document,
    /// The revision that it is presumed to be at; 0: it is not there yet.
    presumed: Option<u64>,
}

/// An apply, object by object.
struct Applying<'a> {
    api: &'a Api,
    author: Author<'a>,
    changes: Changes,
    rows: Vec<Value>,
    refused: Refused,
    /// Releases that are not there as the apply has them: those that import one are not judged by what it lacks.
    absent: BTreeSet<String>,
    /// Where a manager's keys are taken over, who owned something of the objects before.
    owners: BTreeSet<Owner>,
}

/// What is refused of an apply, each with the place of its object.
#[derive(Default)]
struct Refused(Vec<(usize, ApiError)>);

/// `POST /v1/apply`.
pub(super) async fn post(api: &Api, request: &Request) -> HandlerResult {
    let parameters = &request.query;
    let caller = request.caller()?;
    let force = parameters.flag("force")?.unwrap_or(false);
    let strict = parameters.flag("strict")?.unwrap_or(false);
    let bad_manager = |e: InvalidOwner| ApiError::new(ErrorType::RequestQuery, e.to_string()).field("adopt");
    let adopt = parameters.one("adopt")?.map(str::parse::<Party>).transpose().map_err(bad_manager)?;
    let manager = &caller.manager;
    let author = match (parameters.flag("partial")?.unwrap_or(false), adopt.as_ref()) {
        (false, adopt) => Author::Apply { manager, scope: Scope::Object, force, adopt },
        (true, None) => Author::Add { manager, force },
        (true, Some(_)) => {
            let message =
                "partial and adopt exclude each other: a part takes over what it changes alone; nothing was changed";
            return Err(ApiError::new(ErrorType::RequestQuery, message).field("adopt"));
        }
    };
    let documents = read(request.object()?)?;
    writes::commit(api, request, &caller, |work| {
        let mut applying = Applying::new(api, author);
        for given in &documents {
            applying.take(work, given);
        }
        let (rows, warning) = applying.done(adopt.as_ref(), documents.len())?;
        // With what the write ends on nodes that it does not name.
        work.forget()?;
        work.settle_tags()?;
        let lost = LostLabels::by(work).to_json();
        let findings = super::findings::of_write(api, work);
        if strict {
            writes::check_strict("apply", &findings)?;
        }
        let moved = MovedPrimaries::by(work).to_json();
        let mut answer = json!({"revision": null, "objects": rows, "lost_labels": lost, "findings": findings});
        answer[MovedPrimaries::MEMBER] = moved;
        if work.is_dry_run() {
            answer["hosts"] = writes::hosts(work);
        }
        Ok(Answer { warning, ..Answer::json(200, answer) })
    })
    .await
}

/// What is said where a manager's keys are to be taken over that has none of these objects: its name may be another one's, misspelled.
fn owns_nothing(from: &Party, owners: &BTreeSet<Owner>) -> Option<String> {
    if owners.iter().any(|owner| from.is(owner)) {
        return None;
    }
    let meant = meant(from, owners);
    Some(format!("{from} owns nothing of these objects, so nothing was taken over from it{meant}"))
}

/// The owner whose name is near, as a question.
fn meant(from: &Party, owners: &BTreeSet<Owner>) -> String {
    let known: Vec<String> = owners.iter().flat_map(|owner| [owner.manager.to_string(), owner.to_string()]).collect();
    suggest(near(&from.to_string(), known.iter().map(String::as_str)))
}

/// Refuses who owns nothing of these objects and looks like no manager: like an owner with another operation, like several, or with a blank
/// too many. A manager may be called so, and one that owns something here is asked for nothing.
fn check_party(from: &Party, owners: &BTreeSet<Owner>) -> Result<(), ApiError> {
    let name = from.manager.as_str();
    let is_of_owner = |(manager, operation): (&str, &str)| {
        operation.is_empty()
            || near(operation, ["apply", "update"]).is_some()
            || owners.iter().any(|owner| owner.manager.as_str() == manager)
    };
    let is_odd = name.trim() != name || name.contains(',') || name.rsplit_once(':').is_some_and(is_of_owner);
    if !is_odd {
        return Ok(());
    }
    let (given, meant) = (quote(&from.to_string()), meant(from, owners));
    let message = format!(
        "adopt takes one manager, as MANAGER, MANAGER:apply or MANAGER:update, and {given} owns nothing of these objects{meant}; nothing was \
         changed"
    );
    Err(ApiError::new(ErrorType::RequestQuery, message).field("adopt"))
}

/// Reads the objects, and sorts them so that what is referred to comes first.
fn read(mut body: Map<String, Value>) -> Result<Vec<Given>, ApiError> {
    let objects = body.remove("objects");
    // The digest that a diff gave: whoever sends one wants to be refused when it no longer holds, and there is no diff yet.
    if let Some(other) = body.keys().next() {
        return Err(ApiError::new(
            ErrorType::FieldUnknown,
            format!("an apply is {{\"objects\": […]}}, without {}", quote(other)),
        )
        .field(other.clone()));
    }
    let Some(Value::Array(objects)) = objects else {
        return Err(ApiError::new(ErrorType::FieldMissing, "an apply is {\"objects\": […]}").field("objects"));
    };
    if objects.len() > MOST_OBJECTS {
        return Err(ApiError::new(
            ErrorType::FieldInvalid,
            format!("at most {MOST_OBJECTS} objects are applied at once, these are {}", objects.len()),
        )
        .field("objects"));
    }
    let (mut documents, mut refused) = (Vec::new(), Refused::default());
    for (at, object) in objects.into_iter().enumerate() {
        match read_one(at, object, &documents) {
            Ok(given) => documents.push(given),
            Err(refusal) => refused.add(at, refusal),
        }
    }
    refused.check()?;
    documents.sort_by_key(|given| given.document.key.kind());
    sort_imports(&mut documents);
    Ok(documents)
}

/// Reads the object at a place; `before` are those that stand before it.
fn read_one(at: usize, mut object: Value, before: &[Given]) -> Result<Given, ApiError> {
    let presumed = object.as_object_mut().and_then(|fields| fields.remove(REVISION)).filter(|given| !given.is_null());
    let presumed = presumed.map(|given| given.as_u64().ok_or_else(|| no_revision(at, &given))).transpose()?;
    let document = read_document(&object.to_string()).map_err(|e| {
        let error = bad_field(Kind::Node.word(), &e);
        ApiError { message: format!("object {at}: {e}"), field: Some(format!("objects[{at}].{}", e.field)), ..error }
    })?;
    match before.iter().find(|other| other.document.key == document.key) {
        Some(Given { at: before, .. }) => {
            let key = &document.key;
            let message = format!("{key} is in this apply twice, as object {before} and object {at}; keep one of them");
            Err(ApiError::new(ErrorType::ObjectInvalid, message).field(format!("objects[{at}]")))
        }
        None => Ok(Given { at, document, presumed }),
    }
}

fn no_revision(at: usize, given: &Value) -> ApiError {
    let reason = format!("{REVISION} is a whole number, not {}; nothing was changed", quote(&given.to_string()));
    let message = format!("object {at}: {reason}");
    ApiError::new(ErrorType::FieldInvalid, message).field(format!("objects[{at}].{REVISION}")).reason(reason)
}

/// A release comes after those of this apply that it imports. What stands in a cycle keeps its place, and is refused
/// as an import that is not there.
fn sort_imports(documents: &mut Vec<Given>) {
    let releases = documents.iter().take_while(|given| given.document.key.kind() == Kind::Release).count();
    let mut waiting: Vec<_> = documents.drain(..releases).collect();
    let mut sorted: Vec<Given> = Vec::new();
    while !waiting.is_empty() {
        let waits = |document: &Document, waiting: &[Given]| {
            let imports = imports(document);
            let mut others = waiting.iter().map(|other| &other.document.key).filter(|key| **key != document.key);
            others.any(|key| imports.contains(&key.to_string()))
        };
        let next = waiting.iter().position(|given| !waits(&given.document, &waiting)).unwrap_or(0);
        sorted.push(waiting.remove(next));
    }
    documents.splice(0..0, sorted);
}

/// The keys of the releases that a release imports.
fn imports(document: &Document) -> Vec<String> {
    let imports = document.body.get("imports").and_then(|raw| serde_json::from_str(raw.get()).ok());
    let imports: Vec<String> = imports.unwrap_or_default();
    imports.into_iter().map(|import| format!("release/{import}")).collect()
}

impl<'a> Applying<'a> {
    fn new(api: &'a Api, author: Author<'a>) -> Self {
        let (changes, rows, refused, absent, owners) = Default::default();
        Self { api, author, changes, rows, refused, absent, owners }
    }

    /// Applies one object. Where it is refused, so is the apply, and the others are looked at all the same: a person mends a set of
    /// manifests, not one error a run.
    fn take(&mut self, work: &mut Work<'_>, given: &Given) {
        let Given { at, document, .. } = given;
        if self.refused.is_full() || !work.is_awaited() {
            return;
        }
        if imports(document).iter().any(|import| self.absent.contains(import)) {
            self.absent.insert(document.key.to_string());
            return;
        }
        match self.apply(work, given) {
            Ok(row) => self.rows.push(row),
            Err(refusal) => self.refused.add(*at, within(refusal, *at, document)),
        }
    }

    /// Ends the apply of so many objects: gives the lines of the answer, and what is to be said of whom something was to be taken over from.
    ///
    /// # Errors
    /// What is refused of the objects, with what is to be said where others own something; who is no manager.
    fn done(self, adopt: Option<&Party>, objects: usize) -> Result<(Vec<Value>, Option<String>), ApiError> {
        let Self { rows, refused, owners, .. } = self;
        // Where not all objects were looked at, the others may have something of it.
        let adopt = adopt.filter(|_| rows.len() + refused.0.len() == objects);
        let warning = adopt.and_then(|from| owns_nothing(from, &owners));
        if let (Some(from), Some(_)) = (adopt, &warning) {
            check_party(from, &owners)?;
        }
        let said = warning.clone().filter(|_| refused.has_conflict());
        refused.check().map_err(|refusal| match said {
            Some(said) => refusal.extra("warning", format!("{said}; nothing was changed").into()),
            None => refusal,
        })?;
        Ok((rows, warning))
    }

    /// Applies one object, and gives its line of the answer.
    fn apply(&mut self, work: &mut Work<'_>, given: &Given) -> Result<Value, ApiError> {
        match &given.document.key {
            Key::Release(name) => self.put(work, given, name.clone(), ReleaseSpec::default()),
            Key::ClusterTemplate(name) => self.put(work, given, name.clone(), ClusterTemplateSpec::default()),
            Key::Cluster(name) => self.put(work, given, name.clone(), ClusterSpec::default()),
            Key::NodeGroup { cluster, name } => {
                let parent = work.model.clusters.find(None, cluster).cloned().ok_or_else(|| {
                    let message = format!("there is no cluster {}", quote(cluster));
                    ApiError::new(ErrorType::ReferenceDangling, message)
                        .field("cluster")
                        .detail("create the cluster first, or apply it together with this group")
                })?;
                self.put(work, given, name.clone(), NodeGroupSpec::new(ClusterId(parent.meta.uuid)))
            }
            Key::Node(name) => self.put(work, given, Some(name.clone()), NodeSpec::default()),
            Key::Namespace(name) => self.put(work, given, name.clone(), NamespaceSpec::default()),
            Key::InspectionRule(name) => self.put(work, given, Some(name.clone()), InspectionRuleSpec::default()),
        }
    }

    /// Puts an object. A new one that is refused stands there without its fields: what refers to it is judged by itself.
    fn put<S: Shown>(&mut self, work: &mut Work<'_>, given: &Given, name: S::Name, new: S) -> Result<Value, ApiError> {
        let stored = |work: &Work<'_>| {
            let text = S::name_text(&name)?;
            S::shelf(&work.model).named(new.scope(), &text).cloned()
        };
        let before = stored(work);
        let put = self.write(work, given, before.as_ref(), name.clone(), new.clone());
        if put.is_err() {
            let is_as_before = match (&before, stored(work)) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, &now),
                (_, now) => now.is_none(),
            };
            if is_as_before {
                self.absent.insert(given.document.key.to_string());
            }
            if is_as_before && before.is_none() {
                // If this is refused too, the reason was reported above.
                drop(work.create(Uuid::now_v7(), name, new));
            }
        }
        put
    }

    fn write<S: Shown>(
        &mut self,
        work: &mut Work<'_>,
        Given { document, presumed, .. }: &Given,
        before: Option<&Arc<Object<S>>>,
        name: S::Name,
        new: S,
    ) -> Result<Value, ApiError> {
        if let (Author::Apply { adopt: Some(_), .. }, Some(before)) = (self.author, before) {
            self.owners.extend(owners(&before.spec).values().flat_map(|owners| owners.iter().cloned()));
        }
        match before {
            Some(before) => check_presumed(before, *presumed)?,
            None => check_absent(*presumed)?,
        }
        check_reports(document.body.get("reports").is_some_and(|raw| !is_null(raw)))?;
        if let (Some(uuid), Some(before)) = (document.uuid, before)
            && uuid != before.meta.uuid
        {
            let message = format!("{} has the uuid {}, not {uuid}", document.key, before.meta.uuid);
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field("uuid"));
        }
        let mut spec = before.map_or(new, |object| object.spec.clone());
        check_computed(&spec, |name| serde_json::from_str(document.body.get(name)?.get()).ok())?;
        let names = ModelNames::new(&work.model, &self.api.traits);
        write(&mut spec, &document.body, self.author, &names, work.now().0).map_err(bad_body::<S>)?;
        // File bodies are sent before a write that is made, not before one that is tried out.
        if !work.is_dry_run() {
            S::check_bodies(self.api, &spec)?;
        }
        let model = work.model.clone();
        let written = match before {
            Some(before) => work.update(before, before.meta.name.clone(), spec)?,
            None => work.create(document.uuid.unwrap_or_else(Uuid::now_v7), name, spec)?,
        };
        let name = document.key.to_string();
        let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name);
        let mut row =
            json!({"kind": S::KIND, "name": name, "uuid": written.object.meta.uuid, "action": written.action});
        if let Some(before) = before {
            row["changes"] = self.changes.of(self.api, (&model, before), (&work.model, &written.object));
            let kept = shown_kept(&before.spec, &written.object.spec, self.author.manager());
            if !kept.is_null() {
                row["kept"] = kept;
            }
        }
        Ok(row)
    }
}

impl Refused {
    fn add(&mut self, at: usize, refusal: ApiError) {
        self.0.push((at, refusal));
    }

    fn is_full(&self) -> bool {
        self.0.len() >= MOST_REFUSED
    }

    /// Whether others own what an object would change.
    fn has_conflict(&self) -> bool {
        self.0.iter().any(|(_, refusal)| matches!(refusal.kind, ErrorType::LabelConflict))
    }

    /// The first refusal in the order of the objects, with the body of each where there are several.
    fn check(mut self) -> Result<(), ApiError> {
        self.0.sort_by_key(|(at, _)| *at);
        let Some((_, first)) = self.0.first() else { return Ok(()) };
        if self.0.len() == 1 {
            return Err(first.clone());
        }
        let all = self.0.iter().map(|(_, refusal)| refusal.body()).collect();
        Err(first.clone().extra("refusals", all))
    }
}

/// Says which object of the apply is meant.
fn within(error: ApiError, at: usize, document: &Document) -> ApiError {
    let field =
        error.field.as_deref().map_or_else(|| format!("objects[{at}]"), |field| format!("objects[{at}].{field}"));
    let message = format!("{}: {}", document.key, error.message);
    ApiError { message, field: Some(field), reason: error.reason.or(Some(error.message.into())), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_a_manager_that_owns_nothing_is_told_with_the_one_that_was_meant() {
        let owners = ["git:apply", "admin:update"].into_iter().map(|owner| owner.parse().unwrap()).collect();
        for (from, expected) in [
            ("git", None),
            ("git:apply", None),
            ("admin:update", None),
            (
                "git:update",
                Some(
                    "git:update owns nothing of these objects, so nothing was taken over from it (did you mean \"git\"?)",
                ),
            ),
            (
                "Git",
                Some("Git owns nothing of these objects, so nothing was taken over from it (did you mean \"git\"?)"),
            ),
            (
                "gti",
                Some("gti owns nothing of these objects, so nothing was taken over from it (did you mean \"git\"?)"),
            ),
            ("nobody", Some("nobody owns nothing of these objects, so nothing was taken over from it")),
        ] {
            assert_eq!(owns_nothing(&from.parse().unwrap(), &owners).as_deref(), expected, "{from}");
        }
    }

    #[test]
    fn y09_who_owns_nothing_and_is_no_manager_is_refused() {
        let owners = ["git:apply", "admin:update", "ci:prod:apply"].into_iter().map(|owner| owner.parse().unwrap());
        let owners = owners.collect();
        for (from, meant) in [
            ("admin:", Some(" (did you mean \"admin\"?)")),
            ("admin ", Some(" (did you mean \"admin\"?)")),
            (" admin:update", Some(" (did you mean \"admin:update\"?)")),
            ("admin:updat", Some(" (did you mean \"admin:update\"?)")),
            ("Git:Apply", Some(" (did you mean \"git:apply\"?)")),
            ("nobody:aply", Some("")),
            ("nobody,other", Some("")),
            // What stands before the colon is a manager here, so the rest was to be an operation.
            ("git:write", Some(" (did you mean \"git\"?)")),
            ("nobody", None),
            ("nobody:update", None),
            ("ci:test", None),
            ("ci:test:apply", None),
        ] {
            let said = check_party(&from.parse().unwrap(), &owners).map_err(|refusal| (refusal.kind, refusal.message));
            let refused = meant.map(|meant| {
                let message = format!(
                    "adopt takes one manager, as MANAGER, MANAGER:apply or MANAGER:update, and '{from}' owns nothing of these objects{meant}; \
                     nothing was changed"
                );
                (ErrorType::RequestQuery, message)
            });
            assert_eq!(said.err(), refused, "{from}");
        }
    }
}
