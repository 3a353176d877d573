//! `POST /v1/apply`: writes several objects in one commit, all or none.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::manifest::{ApplyScope, Document, ObjectKey, WriteMode, is_null, owners, read_document, write_body};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::object::{
    ClusterId, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec, NodeGroupSpec, NodeSpec, Object,
    ReleaseSpec,
};
use stemma_core::ownership::{InvalidOwner, Owner, OwnerMatch};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::changes::{Changes, LostLabels, retained_fields};
use super::moved_primaries::MovedPrimaries;
use super::nodes::check_no_reports;
use super::objects::{ApiResource, check_computed};
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest};
use crate::records::request::StoredAnswer;
use crate::registry::admit::{bad_body, bad_field};
use crate::registry::names::ModelNames;
use crate::registry::work::{PendingWrite, check_absent_precondition, check_revision};

/// Maximum number of objects in one apply.
const MAX_OBJECTS: usize = 2_000;
/// Maximum number of refused objects. Objects after the last of them are not checked.
const MAX_REFUSED: usize = 50;
/// The field with the revision that an object is expected to have, as `If-Match` has it for a single object.
const RESOURCE_VERSION: &str = "resource_version";

/// An object of an apply.
struct ApplyItem {
    /// The object's index in the body.
    index: usize,
    /// The object's manifest.
    document: Document,
    /// The expected revision. 0 means that the object must not exist yet.
    expected_revision: Option<u64>,
}

/// The state of an apply, which handles one object after the other.
struct ApplyBatch<'a> {
    api: &'a Api,
    author: WriteMode<'a>,
    changes: Changes,
    rows: Vec<Value>,
    refused: RefusedItems,
    /// The releases of this apply that were refused or skipped, so that the model lacks their new content. A release
    /// that imports one of them is skipped too, because its errors could be mere consequences.
    missing_releases: BTreeSet<String>,
    /// The owners that had keys or fields of the objects before the apply. Collected only with `adopt`.
    previous_owners: BTreeSet<Owner>,
}

/// The refused objects of an apply: the index of each, with its error.
#[derive(Default)]
struct RefusedItems(Vec<(usize, ApiError)>);

/// `POST /v1/apply`: applies the manifests of the body in one commit, or refuses all of them.
pub(super) async fn post(api: &Api, request: &HttpRequest) -> HandlerResult {
    let parameters = &request.query;
    let caller = request.caller()?;
    let force = parameters.flag("force")?.unwrap_or(false);
    let strict = parameters.flag("strict")?.unwrap_or(false);
    let bad_manager = |e: InvalidOwner| ApiError::new(ErrorType::RequestQuery, e.to_string()).field("adopt");
    let adopt = parameters.get("adopt")?.map(str::parse::<OwnerMatch>).transpose().map_err(bad_manager)?;
    let manager = &caller.manager;
    let author = match (parameters.flag("partial")?.unwrap_or(false), adopt.as_ref()) {
        (false, adopt) => WriteMode::Apply { manager, scope: ApplyScope::Object, force, adopt },
        (true, None) => WriteMode::Add { manager, force },
        (true, Some(_)) => {
            let message = "partial and adopt cannot be combined: a partial apply takes over only the fields that it changes; nothing was changed";
            return Err(ApiError::new(ErrorType::RequestQuery, message).field("adopt"));
        }
    };
    let items = read_items(request.object()?)?;
    writes::commit(api, request, &caller, |work| {
        let mut applying = ApplyBatch::new(api, author);
        for item in &items {
            applying.add_item(work, item);
        }
        let (rows, warning) = applying.finish(adopt.as_ref(), items.len())?;
        // A write can also end unassignments of tags on nodes that it does not name.
        work.drop_ended_unassignments()?;
        work.resolve_tags()?;
        let lost = LostLabels::from_write(work).to_json();
        let findings = super::findings::for_write(api, work);
        if strict {
            writes::check_strict("apply", &findings)?;
        }
        let moved = MovedPrimaries::from_write(work).to_json();
        let mut answer = json!({"revision": null, "objects": rows, "lost_labels": lost, "findings": findings});
        answer[MovedPrimaries::FIELD] = moved;
        if work.is_dry_run() {
            answer["hosts"] = writes::affected_hosts(work);
        }
        Ok(StoredAnswer { warning, ..StoredAnswer::json(200, answer) })
    })
    .await
}

/// Returns the warning for `adopt` if the manager that it names owns nothing of these objects: the name may be
/// misspelled. `owners` are the owners of the objects before the apply.
fn owns_nothing_message(from: &OwnerMatch, owners: &BTreeSet<Owner>) -> Option<String> {
    if owners.iter().any(|owner| from.matches(owner)) {
        return None;
    }
    let meant = suggest_owner(from, owners);
    Some(format!("{from} owns nothing of these objects, so nothing was taken over from it{meant}"))
}

/// Returns a "did you mean" question with the owner of the most similar name.
fn suggest_owner(from: &OwnerMatch, owners: &BTreeSet<Owner>) -> String {
    let known: Vec<String> = owners.iter().flat_map(|owner| [owner.manager.to_string(), owner.to_string()]).collect();
    did_you_mean(closest_match(&from.to_string(), known.iter().map(String::as_str)))
}

/// Fails if the name in `adopt` does not look like a manager: it has an unknown operation, a comma, or surrounding
/// white space. This is called only if that manager owns nothing of these objects. A manager may have such a name, so
/// one that owns something is always accepted.
fn check_owner_match(from: &OwnerMatch, owners: &BTreeSet<Owner>) -> Result<(), ApiError> {
    let name = from.manager.as_str();
    let is_of_owner = |(manager, operation): (&str, &str)| {
        operation.is_empty()
            || closest_match(operation, ["apply", "update"]).is_some()
            || owners.iter().any(|owner| owner.manager.as_str() == manager)
    };
    let is_odd = name.trim() != name || name.contains(',') || name.rsplit_once(':').is_some_and(is_of_owner);
    if !is_odd {
        return Ok(());
    }
    let (given, meant) = (quote(&from.to_string()), suggest_owner(from, owners));
    let message = format!(
        "adopt takes one manager, as MANAGER, MANAGER:apply or MANAGER:update, and {given} owns nothing of these objects{meant}; nothing was \
         changed"
    );
    Err(ApiError::new(ErrorType::RequestQuery, message).field("adopt"))
}

/// Reads the objects of an apply, and sorts them so that an object follows the objects that it refers to.
fn read_items(mut body: Map<String, Value>) -> Result<Vec<ApplyItem>, ApiError> {
    let objects = body.remove("objects");
    // Unknown members are refused. A client that sends the digest of a diff expects an error if the digest is out of
    // date, and there are no diffs yet.
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
    if objects.len() > MAX_OBJECTS {
        return Err(ApiError::new(
            ErrorType::FieldInvalid,
            format!("at most {MAX_OBJECTS} objects are applied at once, these are {}", objects.len()),
        )
        .field("objects"));
    }
    let (mut items, mut refused) = (Vec::new(), RefusedItems::default());
    for (index, object) in objects.into_iter().enumerate() {
        match read_item(index, object, &items) {
            Ok(item) => items.push(item),
            Err(refusal) => refused.add(index, refusal),
        }
    }
    refused.into_result()?;
    items.sort_by_key(|item| item.document.key.kind());
    sort_imports(&mut items);
    Ok(items)
}

/// Reads the object at an index of the body. `before` are the objects that precede it, and it must not repeat one.
fn read_item(at: usize, mut object: Value, before: &[ApplyItem]) -> Result<ApplyItem, ApiError> {
    let revision = object.as_object_mut().and_then(|fields| fields.remove(RESOURCE_VERSION)).filter(|value| !value.is_null());
    let revision = revision.map(|value| value.as_u64().ok_or_else(|| invalid_revision(at, &value))).transpose()?;
    let document = read_document(&object.to_string()).map_err(|e| {
        let error = bad_field(Kind::Node.word(), &e);
        ApiError { message: format!("object {at}: {e}"), field: Some(format!("objects[{at}].{}", e.field)), ..error }
    })?;
    match before.iter().find(|other| other.document.key == document.key) {
        Some(ApplyItem { index: before, .. }) => {
            let key = &document.key;
            let message = format!("{key} is in this apply twice, as object {before} and object {at}; keep one of them");
            Err(ApiError::new(ErrorType::ObjectInvalid, message).field(format!("objects[{at}]")))
        }
        None => Ok(ApplyItem { index: at, document, expected_revision: revision }),
    }
}

fn invalid_revision(at: usize, value: &Value) -> ApiError {
    let reason = format!("{RESOURCE_VERSION} is a whole number, not {}; nothing was changed", quote(&value.to_string()));
    let message = format!("object {at}: {reason}");
    ApiError::new(ErrorType::FieldInvalid, message).field(format!("objects[{at}].{RESOURCE_VERSION}")).reason(reason)
}

/// Moves each release behind the releases of this apply that it imports. Releases that import each other keep their
/// order, and are refused later, because the first one imports a release that does not exist yet.
fn sort_imports(documents: &mut Vec<ApplyItem>) {
    let releases = documents.iter().take_while(|item| item.document.key.kind() == Kind::Release).count();
    let mut waiting: Vec<_> = documents.drain(..releases).collect();
    let mut sorted: Vec<ApplyItem> = Vec::new();
    while !waiting.is_empty() {
        let waits = |document: &Document, waiting: &[ApplyItem]| {
            let imports = imports(document);
            let mut others = waiting.iter().map(|other| &other.document.key).filter(|key| **key != document.key);
            others.any(|key| imports.contains(&key.to_string()))
        };
        let next = waiting.iter().position(|item| !waits(&item.document, &waiting)).unwrap_or(0);
        sorted.push(waiting.remove(next));
    }
    documents.splice(0..0, sorted);
}

/// Returns the keys of the releases that a release imports.
fn imports(document: &Document) -> Vec<String> {
    let imports = document.body.get("imports").and_then(|raw| serde_json::from_str(raw.get()).ok());
    let imports: Vec<String> = imports.unwrap_or_default();
    imports.into_iter().map(|import| format!("release/{import}")).collect()
}

impl<'a> ApplyBatch<'a> {
    fn new(api: &'a Api, author: WriteMode<'a>) -> Self {
        let (changes, rows, refused, missing_releases, previous_owners) = Default::default();
        Self { api, author, changes, rows, refused, missing_releases, previous_owners }
    }

    /// Applies one object. If it is refused, the apply is refused, but the remaining objects are still checked. An
    /// author can then correct all manifests at once, instead of one error per run.
    fn add_item(&mut self, work: &mut PendingWrite<'_>, item: &ApplyItem) {
        let ApplyItem { index: at, document, .. } = item;
        if self.refused.is_full() || !work.is_active() {
            return;
        }
        if imports(document).iter().any(|import| self.missing_releases.contains(import)) {
            self.missing_releases.insert(document.key.to_string());
            return;
        }
        match self.apply_item(work, item) {
            Ok(row) => self.rows.push(row),
            Err(refusal) => self.refused.add(*at, with_item(refusal, *at, document)),
        }
    }

    /// Ends an apply. `objects` is the number of its objects. Returns the rows of the answer, and a warning if the
    /// manager of `adopt` owned nothing.
    ///
    /// Fails if objects were refused. The error includes that warning if an object conflicts with other managers, since
    /// a misspelled `adopt` may be the cause. Fails also if `adopt` does not name a manager.
    fn finish(self, adopt: Option<&OwnerMatch>, objects: usize) -> Result<(Vec<Value>, Option<String>), ApiError> {
        let Self { rows, refused, previous_owners, .. } = self;
        // If some objects were not checked, the manager may own something of those, so there is no warning.
        let adopt = adopt.filter(|_| rows.len() + refused.0.len() == objects);
        let warning = adopt.and_then(|from| owns_nothing_message(from, &previous_owners));
        if let (Some(from), Some(_)) = (adopt, &warning) {
            check_owner_match(from, &previous_owners)?;
        }
        let hint = warning.clone().filter(|_| refused.has_conflict());
        refused.into_result().map_err(|refusal| match hint {
            Some(hint) => refusal.extra("warning", format!("{hint}; nothing was changed").into()),
            None => refusal,
        })?;
        Ok((rows, warning))
    }

    /// Applies one object and returns its row of the answer.
    fn apply_item(&mut self, work: &mut PendingWrite<'_>, item: &ApplyItem) -> Result<Value, ApiError> {
        match &item.document.key {
            ObjectKey::Release(name) => self.put_object(work, item, name.clone(), ReleaseSpec::default()),
            ObjectKey::ClusterTemplate(name) => self.put_object(work, item, name.clone(), ClusterTemplateSpec::default()),
            ObjectKey::Cluster(name) => self.put_object(work, item, name.clone(), ClusterSpec::default()),
            ObjectKey::NodeGroup { cluster, name } => {
                let parent = work.model.clusters.find(None, cluster).cloned().ok_or_else(|| {
                    let message = format!("there is no cluster {}", quote(cluster));
                    ApiError::new(ErrorType::ReferenceDangling, message)
                        .field("cluster")
                        .detail("create the cluster first, or apply it together with this group")
                })?;
                self.put_object(work, item, name.clone(), NodeGroupSpec::new(ClusterId(parent.meta.uuid)))
            }
            ObjectKey::Node(name) => self.put_object(work, item, Some(name.clone()), NodeSpec::default()),
            ObjectKey::Namespace(name) => self.put_object(work, item, name.clone(), NamespaceSpec::default()),
            ObjectKey::InspectionRule(name) => self.put_object(work, item, Some(name.clone()), InspectionRuleSpec::default()),
        }
    }

    /// Writes an object. If a new object is refused, it is created without its fields in the model of this write, which
    /// is not committed then. So later objects that refer to it are not refused merely because it does not exist.
    fn put_object<S: ApiResource>(
        &mut self,
        work: &mut PendingWrite<'_>,
        item: &ApplyItem,
        name: S::Name,
        new: S,
    ) -> Result<Value, ApiError> {
        let stored = |work: &PendingWrite<'_>| {
            let text = S::name_text(&name)?;
            S::index(&work.model).get_by_name(new.scope(), &text).cloned()
        };
        let before = stored(work);
        let put = self.write_object(work, item, before.as_ref(), name.clone(), new.clone());
        if put.is_err() {
            let is_as_before = match (&before, stored(work)) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, &now),
                (_, now) => now.is_none(),
            };
            if is_as_before {
                self.missing_releases.insert(item.document.key.to_string());
            }
            if is_as_before && before.is_none() {
                // If this fails too, the reason was already reported.
                drop(work.create(Uuid::now_v7(), name, new));
            }
        }
        put
    }

    /// Checks one manifest and writes its object. Returns the object's row of the answer. `before` is the stored
    /// object, and `new` the spec of an object without fields.
    fn write_object<S: ApiResource>(
        &mut self,
        work: &mut PendingWrite<'_>,
        ApplyItem { document, expected_revision: revision, .. }: &ApplyItem,
        before: Option<&Arc<Object<S>>>,
        name: S::Name,
        new: S,
    ) -> Result<Value, ApiError> {
        if let (WriteMode::Apply { adopt: Some(_), .. }, Some(before)) = (self.author, before) {
            self.previous_owners.extend(owners(&before.spec).values().flat_map(|owners| owners.iter().cloned()));
        }
        match before {
            Some(before) => check_revision(before, *revision)?,
            None => check_absent_precondition(*revision)?,
        }
        check_no_reports(document.body.get("reports").is_some_and(|raw| !is_null(raw)))?;
        if let (Some(uuid), Some(before)) = (document.uuid, before)
            && uuid != before.meta.uuid
        {
            let message = format!("{} has the uuid {}, not {uuid}", document.key, before.meta.uuid);
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field("uuid"));
        }
        let mut spec = before.map_or(new, |object| object.spec.clone());
        check_computed(&spec, |name| serde_json::from_str(document.body.get(name)?.get()).ok())?;
        let names = ModelNames::new(&work.model, &self.api.traits);
        write_body(&mut spec, &document.body, self.author, &names, work.now().0).map_err(bad_body::<S>)?;
        // A client uploads file bodies before the actual write, not before a dry run.
        if !work.is_dry_run() {
            S::check_blobs(self.api, &spec)?;
        }
        let model = work.model.clone();
        let written = match before {
            Some(before) => work.update(before, before.meta.name.clone(), spec)?,
            None => work.create(document.uuid.unwrap_or_else(Uuid::now_v7), name, spec)?,
        };
        let name = document.key.to_string();
        let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name);
        let mut row = json!({"kind": S::KIND, "name": name, "uuid": written.object.meta.uuid, "action": written.action});
        if let Some(before) = before {
            row["changes"] = self.changes.for_update(self.api, (&model, before), (&work.model, &written.object));
            let retained = retained_fields(&before.spec, &written.object.spec, self.author.manager());
            if !retained.is_null() {
                row["kept"] = retained;
            }
        }
        Ok(row)
    }
}

impl RefusedItems {
    fn add(&mut self, at: usize, refusal: ApiError) {
        self.0.push((at, refusal));
    }

    fn is_full(&self) -> bool {
        self.0.len() >= MAX_REFUSED
    }

    /// Returns whether other managers own something that an object would change.
    fn has_conflict(&self) -> bool {
        self.0.iter().any(|(_, refusal)| matches!(refusal.kind, ErrorType::LabelConflict))
    }

    /// Returns the first refusal in the order of the objects. If there are several, its body lists all of them.
    fn into_result(mut self) -> Result<(), ApiError> {
        self.0.sort_by_key(|(at, _)| *at);
        let Some((_, first)) = self.0.first() else { return Ok(()) };
        if self.0.len() == 1 {
            return Err(first.clone());
        }
        let all = self.0.iter().map(|(_, refusal)| refusal.body()).collect();
        Err(first.clone().extra("refusals", all))
    }
}

/// Adds to an error which object of the apply caused it: its index in `field`, and its key in the message.
fn with_item(error: ApiError, at: usize, document: &Document) -> ApiError {
    let field = error.field.as_deref().map_or_else(|| format!("objects[{at}]"), |field| format!("objects[{at}].{field}"));
    let message = format!("{}: {}", document.key, error.message);
    ApiError { message, field: Some(field), reason: error.reason.or(Some(error.message.into())), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_owns_nothing_message_suggests_owner_with_similar_name() {
        let owners = ["git:apply", "admin:update"].into_iter().map(|owner| owner.parse().unwrap()).collect();
        for (from, expected) in [
            ("git", None),
            ("git:apply", None),
            ("admin:update", None),
            (
                "git:update",
                Some("git:update owns nothing of these objects, so nothing was taken over from it (did you mean \"git\"?)"),
            ),
            ("Git", Some("Git owns nothing of these objects, so nothing was taken over from it (did you mean \"git\"?)")),
            ("gti", Some("gti owns nothing of these objects, so nothing was taken over from it (did you mean \"git\"?)")),
            ("nobody", Some("nobody owns nothing of these objects, so nothing was taken over from it")),
        ] {
            assert_eq!(owns_nothing_message(&from.parse().unwrap(), &owners).as_deref(), expected, "{from}");
        }
    }

    #[test]
    fn y09_check_owner_match_rejects_non_manager_without_objects() {
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
            // The text before the colon is a manager here, so the text after it was meant as an operation.
            ("git:write", Some(" (did you mean \"git\"?)")),
            ("nobody", None),
            ("nobody:update", None),
            ("ci:test", None),
            ("ci:test:apply", None),
        ] {
            let said = check_owner_match(&from.parse().unwrap(), &owners).map_err(|refusal| (refusal.kind, refusal.message));
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
