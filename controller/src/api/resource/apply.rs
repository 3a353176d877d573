//! `POST /v1/apply`: writes several objects in one commit. If one object is refused, none is written.

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
/// Maximum number of refused objects, apart from unreadable ones. When it is reached, the others are not checked.
const MAX_REFUSED: usize = 50;
/// The field of an object in the body with the revision that the stored object is expected to have. Requests that write
/// one object have this revision in the header `If-Match` instead.
const RESOURCE_VERSION: &str = "resource_version";

/// One object of an apply request.
struct ApplyItem {
    /// The object's index in the body.
    index: usize,
    /// The object's manifest.
    document: Document,
    /// The expected revision of the stored object. 0 means that the object must not exist yet.
    expected_revision: Option<u64>,
}

/// The state of an apply, which handles one object after the other.
struct ApplyBatch<'a> {
    api: &'a Api,
    author: WriteMode<'a>,
    changes: Changes,
    entries: Vec<Value>,
    refused: RefusedItems,
    /// The keys of the refused or skipped objects of this apply whose new content the model lacks. A release that
    /// imports one of these objects is skipped too, because the release could be refused only for that reason.
    missing_object_keys: BTreeSet<String>,
    /// The owners that had keys or fields of the objects before the apply. They are collected only with the query
    /// parameter `adopt`, which takes over what another manager owns.
    previous_owners: BTreeSet<Owner>,
}

/// The refused objects of an apply: the index of each, with its error.
#[derive(Default)]
struct RefusedItems(Vec<(usize, ApiError)>);

/// `POST /v1/apply`: applies the manifests of the body in one commit, or refuses all of them. With the parameter
/// `partial`, nothing that the manifests omit is removed. A dry run also returns the hosts that the apply would change.
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
        let mut batch = ApplyBatch::new(api, author);
        for item in &items {
            batch.add_item(work, item);
        }
        let (entries, warning) = batch.finish(adopt.as_ref(), items.len())?;
        // A write can also end unassignments of tags on nodes that it does not name.
        work.drop_ended_unassignments()?;
        work.resolve_tags()?;
        let lost_labels = LostLabels::from_write(work).to_json();
        let findings = super::findings::for_write(api, work);
        if strict {
            writes::check_strict("apply", &findings)?;
        }
        let moved_primaries = MovedPrimaries::from_write(work).to_json();
        // The revision is known only after the commit.
        let mut answer = json!({"revision": null, "objects": entries, "lost_labels": lost_labels, "findings": findings});
        answer[MovedPrimaries::FIELD] = moved_primaries;
        if work.is_dry_run() {
            answer["hosts"] = writes::affected_hosts(work);
        }
        Ok(StoredAnswer { warning, ..StoredAnswer::json(200, answer) })
    })
    .await
}

/// Returns a warning if `adopted_owner`, the value of the query parameter `adopt`, owns nothing of these objects,
/// because its name may be misspelled. `owners` are the owners of the objects before the apply.
fn owns_nothing_message(adopted_owner: &OwnerMatch, owners: &BTreeSet<Owner>) -> Option<String> {
    if owners.iter().any(|owner| adopted_owner.matches(owner)) {
        return None;
    }
    let suggestion = suggest_owner(adopted_owner, owners);
    Some(format!("{adopted_owner} owns nothing of these objects, so nothing was taken over from it{suggestion}"))
}

/// Returns a "did you mean" question with the owner of the most similar name, or an empty text if no name is similar.
fn suggest_owner(adopted_owner: &OwnerMatch, owners: &BTreeSet<Owner>) -> String {
    let names: Vec<String> = owners.iter().flat_map(|owner| [owner.manager.to_string(), owner.to_string()]).collect();
    did_you_mean(closest_match(&adopted_owner.to_string(), names.iter().map(String::as_str)))
}

/// Fails if the value of `adopt` does not look like a manager: it has an unknown operation, a comma, or surrounding
/// white space. This function is called only if this manager owns nothing of the objects. A manager that owns something
/// may have such a name, so its name is not checked.
fn check_owner_match(adopted_owner: &OwnerMatch, owners: &BTreeSet<Owner>) -> Result<(), ApiError> {
    let name = adopted_owner.manager.as_str();
    // The text after the last colon is an operation if it resembles one, or if the text before the colon is a manager.
    let has_invalid_operation = |(manager, operation): (&str, &str)| {
        operation.is_empty()
            || closest_match(operation, ["apply", "update"]).is_some()
            || owners.iter().any(|owner| owner.manager.as_str() == manager)
    };
    let is_malformed = name.trim() != name || name.contains(',') || name.rsplit_once(':').is_some_and(has_invalid_operation);
    if !is_malformed {
        return Ok(());
    }
    let (quoted_owner, suggestion) = (quote(&adopted_owner.to_string()), suggest_owner(adopted_owner, owners));
    let message = format!(
        "adopt accepts one manager, as MANAGER, MANAGER:apply or MANAGER:update, and {quoted_owner} owns nothing of these objects{suggestion}; nothing was \
         changed"
    );
    Err(ApiError::new(ErrorType::RequestQuery, message).field("adopt"))
}

/// Reads the objects of an apply request. Sorts them so that an object comes after the objects that it refers to. There
/// is one exception: a cluster comes before the nodes in its `primaries` and the groups in its `rollout.order`.
fn read_items(mut body: Map<String, Value>) -> Result<Vec<ApplyItem>, ApiError> {
    let objects = body.remove("objects");
    // Unknown members are refused. For example, a client may send the digest of a diff, and expects an error if the
    // digest is out of date. This version has no diffs, so the client must not rely on the digest.
    if let Some(member) = body.keys().next() {
        return Err(ApiError::new(
            ErrorType::FieldUnknown,
            format!("an apply is {{\"objects\": […]}}, without {}", quote(member)),
        )
        .field(member.clone()));
    }
    let Some(Value::Array(objects)) = objects else {
        return Err(ApiError::new(ErrorType::FieldMissing, "an apply is {\"objects\": […]}").field("objects"));
    };
    if objects.len() > MAX_OBJECTS {
        return Err(ApiError::new(
            ErrorType::FieldInvalid,
            format!("at most {MAX_OBJECTS} objects can be applied at once, but the request has {}", objects.len()),
        )
        .field("objects"));
    }
    let (mut items, mut refused_items) = (Vec::new(), RefusedItems::default());
    for (index, object) in objects.into_iter().enumerate() {
        match read_item(index, object, &items) {
            Ok(item) => items.push(item),
            Err(refusal) => refused_items.add(index, refusal),
        }
    }
    refused_items.into_result()?;
    items.sort_by_key(|item| item.document.key.kind());
    sort_imports(&mut items);
    Ok(items)
}

/// Reads the object at an index of the body. Fails if the object is one of `previous_items`, the objects that precede
/// it in the body.
fn read_item(index: usize, mut object: Value, previous_items: &[ApplyItem]) -> Result<ApplyItem, ApiError> {
    let revision = object.as_object_mut().and_then(|fields| fields.remove(RESOURCE_VERSION)).filter(|value| !value.is_null());
    let revision = revision.map(|value| value.as_u64().ok_or_else(|| invalid_revision(index, &value))).transpose()?;
    let document = read_document(&object.to_string()).map_err(|error| {
        // Only the type and the reason of this error are used. Neither depends on the kind.
        let base = bad_field(Kind::Node.word(), &error);
        ApiError { message: format!("object {index}: {error}"), field: Some(format!("objects[{index}].{}", error.field)), ..base }
    })?;
    match previous_items.iter().find(|other| other.document.key == document.key) {
        Some(ApplyItem { index: first, .. }) => {
            let key = &document.key;
            let message = format!("{key} is in this apply twice, as object {first} and object {index}; keep one of them");
            Err(ApiError::new(ErrorType::ObjectInvalid, message).field(format!("objects[{index}]")))
        }
        None => Ok(ApplyItem { index, document, expected_revision: revision }),
    }
}

/// Returns the error for a `resource_version` that is not a whole number. `position` is the index of the object in the
/// body.
fn invalid_revision(position: usize, value: &Value) -> ApiError {
    let reason = format!("{RESOURCE_VERSION} is a whole number, not {}; nothing was changed", quote(&value.to_string()));
    let message = format!("object {position}: {reason}");
    ApiError::new(ErrorType::FieldInvalid, message).field(format!("objects[{position}].{RESOURCE_VERSION}")).reason(reason)
}

/// Moves each release behind the releases of this apply that it imports. The releases are the first items. Releases
/// that import each other stay in their order. They are refused later, because the first of them imports a release that
/// does not exist yet.
fn sort_imports(items: &mut Vec<ApplyItem>) {
    let releases = items.iter().take_while(|item| item.document.key.kind() == Kind::Release).count();
    let mut unsorted: Vec<_> = items.drain(..releases).collect();
    let mut sorted: Vec<ApplyItem> = Vec::new();
    while !unsorted.is_empty() {
        let has_unsorted_import = |document: &Document, unsorted: &[ApplyItem]| {
            let imports = imports(document);
            let mut others = unsorted.iter().map(|other| &other.document.key).filter(|key| **key != document.key);
            others.any(|key| imports.contains(&key.to_string()))
        };
        let next = unsorted.iter().position(|item| !has_unsorted_import(&item.document, &unsorted)).unwrap_or(0);
        sorted.push(unsorted.remove(next));
    }
    items.splice(0..0, sorted);
}

/// Returns the keys of the releases that a release imports.
fn imports(document: &Document) -> Vec<String> {
    let imports = document.body.get("imports").and_then(|raw| serde_json::from_str(raw.get()).ok());
    let imports: Vec<String> = imports.unwrap_or_default();
    imports.into_iter().map(|import| format!("release/{import}")).collect()
}

impl<'a> ApplyBatch<'a> {
    fn new(api: &'a Api, author: WriteMode<'a>) -> Self {
        let (changes, rows, refused, missing_object_keys, previous_owners) = Default::default();
        Self { api, author, changes, entries: rows, refused, missing_object_keys, previous_owners }
    }

    /// Applies one object. If the object is refused, the apply is refused, but the remaining objects are still checked.
    /// So an author can correct all manifests at once. Skips the object if the limit of refused objects is reached, if
    /// the client no longer waits, or if the errors would only follow from a refused release.
    fn add_item(&mut self, work: &mut PendingWrite<'_>, item: &ApplyItem) {
        let ApplyItem { index: item_index, document, .. } = item;
        if self.refused.is_full() || !work.is_active() {
            return;
        }
        if imports(document).iter().any(|import| self.missing_object_keys.contains(import)) {
            self.missing_object_keys.insert(document.key.to_string());
            return;
        }
        match self.apply_item(work, item) {
            Ok(entry) => self.entries.push(entry),
            Err(refusal) => self.refused.add(*item_index, with_item(refusal, *item_index, document)),
        }
    }

    /// Ends an apply. `object_count` is the number of its objects. Returns the entries of the response, and a warning
    /// if the manager in `adopt` owned nothing.
    ///
    /// Fails if objects were refused. If an object conflicts with other managers, the error includes that warning,
    /// because a misspelled `adopt` may be the cause. Also fails if `adopt` owned nothing and is malformed.
    fn finish(self, adopt: Option<&OwnerMatch>, object_count: usize) -> Result<(Vec<Value>, Option<String>), ApiError> {
        let Self { entries: rows, refused, previous_owners, .. } = self;
        // If some objects were not checked, the manager may own something of those, so there is no warning.
        let adopt = adopt.filter(|_| rows.len() + refused.0.len() == object_count);
        let warning = adopt.and_then(|adopted_owner| owns_nothing_message(adopted_owner, &previous_owners));
        if let (Some(adopted_owner), Some(_)) = (adopt, &warning) {
            check_owner_match(adopted_owner, &previous_owners)?;
        }
        let hint = warning.clone().filter(|_| refused.has_conflict());
        refused.into_result().map_err(|refusal| match hint {
            Some(hint) => refusal.extra("warning", format!("{hint}; nothing was changed").into()),
            None => refusal,
        })?;
        Ok((rows, warning))
    }

    /// Applies one object of any kind. Returns the object's entry of the response.
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

    /// Writes an object. If a new object is refused, creates it without its fields in the model of this write, which
    /// will not be committed. Otherwise a later object that refers to it would be refused only because it does not
    /// exist.
    fn put_object<S: ApiResource>(
        &mut self,
        work: &mut PendingWrite<'_>,
        item: &ApplyItem,
        name: S::Name,
        empty_spec: S,
    ) -> Result<Value, ApiError> {
        let find_stored = |work: &PendingWrite<'_>| {
            let text = S::name_text(&name)?;
            S::index(&work.model).get_by_name(empty_spec.scope(), &text).cloned()
        };
        let old_object = find_stored(work);
        let outcome = self.write_object(work, item, old_object.as_ref(), name.clone(), empty_spec.clone());
        if outcome.is_err() {
            // The write can fail after the object was changed in the model. Then the model has the new content.
            let is_unchanged = match (&old_object, find_stored(work)) {
                (Some(old_object), Some(current_object)) => Arc::ptr_eq(old_object, &current_object),
                (_, current_object) => current_object.is_none(),
            };
            if is_unchanged {
                self.missing_object_keys.insert(item.document.key.to_string());
            }
            if is_unchanged && old_object.is_none() {
                // If this fails too, the reason was already reported.
                drop(work.create(Uuid::now_v7(), name, empty_spec));
            }
        }
        outcome
    }

    /// Checks one manifest and writes its object. Returns the object's entry of the response. `old_object` is the
    /// stored object, and `empty_spec` the spec of an object without fields.
    fn write_object<S: ApiResource>(
        &mut self,
        work: &mut PendingWrite<'_>,
        ApplyItem { document, expected_revision: revision, .. }: &ApplyItem,
        old_object: Option<&Arc<Object<S>>>,
        name: S::Name,
        empty_spec: S,
    ) -> Result<Value, ApiError> {
        if let (WriteMode::Apply { adopt: Some(_), .. }, Some(old_object)) = (self.author, old_object) {
            self.previous_owners.extend(owners(&old_object.spec).values().flat_map(|owners| owners.iter().cloned()));
        }
        match old_object {
            Some(old_object) => check_revision(old_object, *revision)?,
            None => check_absent_precondition(*revision)?,
        }
        check_no_reports(document.body.get("reports").is_some_and(|raw| !is_null(raw)))?;
        if let (Some(uuid), Some(old_object)) = (document.uuid, old_object)
            && uuid != old_object.meta.uuid
        {
            let message = format!("{} has the uuid {}, not {uuid}", document.key, old_object.meta.uuid);
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field("uuid"));
        }
        let mut spec = old_object.map_or(empty_spec, |object| object.spec.clone());
        check_computed(&spec, |name| serde_json::from_str(document.body.get(name)?.get()).ok())?;
        let names = ModelNames::new(&work.model, &self.api.traits);
        write_body(&mut spec, &document.body, self.author, &names, work.now().0).map_err(bad_body::<S>)?;
        // A client uploads file bodies before the actual write, not before a dry run.
        if !work.is_dry_run() {
            S::check_blobs(self.api, &spec)?;
        }
        let model = work.model.clone();
        let result = match old_object {
            Some(old_object) => work.update(old_object, old_object.meta.name.clone(), spec)?,
            None => work.create(document.uuid.unwrap_or_else(Uuid::now_v7), name, spec)?,
        };
        let name = document.key.to_string();
        let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name);
        let mut entry = json!({"kind": S::KIND, "name": name, "uuid": result.object.meta.uuid, "action": result.action});
        if let Some(old_object) = old_object {
            entry["changes"] = self.changes.for_update(self.api, (&model, old_object), (&work.model, &result.object));
            let retained = retained_fields(&old_object.spec, &result.object.spec, self.author.manager());
            if !retained.is_null() {
                entry["kept"] = retained;
            }
        }
        Ok(entry)
    }
}

impl RefusedItems {
    /// Adds a refused object with its index in the body.
    fn add(&mut self, index: usize, refusal: ApiError) {
        self.0.push((index, refusal));
    }

    /// Returns whether the maximum number of refused objects is reached.
    fn is_full(&self) -> bool {
        self.0.len() >= MAX_REFUSED
    }

    /// Returns whether an object was refused because it would change what another manager owns.
    fn has_conflict(&self) -> bool {
        self.0.iter().any(|(_, refusal)| matches!(refusal.kind, ErrorType::LabelConflict))
    }

    /// Fails with the first refusal in the order of the objects, if there is one. If there are several, the body of the
    /// error lists all of them.
    fn into_result(mut self) -> Result<(), ApiError> {
        self.0.sort_by_key(|(index, _)| *index);
        let Some((_, first)) = self.0.first() else { return Ok(()) };
        if self.0.len() == 1 {
            return Err(first.clone());
        }
        let bodies = self.0.iter().map(|(_, refusal)| refusal.body()).collect();
        Err(first.clone().extra("refusals", bodies))
    }
}

/// Returns the error with the object of the apply that caused it: the object's index in `field`, and its key in the
/// message.
fn with_item(error: ApiError, index: usize, document: &Document) -> ApiError {
    let field = error.field.as_deref().map_or_else(|| format!("objects[{index}]"), |field| format!("objects[{index}].{field}"));
    let message = format!("{}: {}", document.key, error.message);
    ApiError { message, field: Some(field), reason: error.reason.or(Some(error.message.into())), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_owns_nothing_message_suggests_owner_with_similar_name() {
        let owners = ["git:apply", "admin:update"].into_iter().map(|owner| owner.parse().unwrap()).collect();
        for (adopted_owner, expected) in [
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
            assert_eq!(owns_nothing_message(&adopted_owner.parse().unwrap(), &owners).as_deref(), expected, "{adopted_owner}");
        }
    }

    #[test]
    fn y09_check_owner_match_rejects_text_unlike_manager() {
        let owners = ["git:apply", "admin:update", "ci:prod:apply"].into_iter().map(|owner| owner.parse().unwrap());
        let owners = owners.collect();
        for (adopted_owner, suggestion) in [
            ("admin:", Some(" (did you mean \"admin\"?)")),
            ("admin ", Some(" (did you mean \"admin\"?)")),
            (" admin:update", Some(" (did you mean \"admin:update\"?)")),
            ("admin:updat", Some(" (did you mean \"admin:update\"?)")),
            ("Git:Apply", Some(" (did you mean \"git:apply\"?)")),
            ("nobody:aply", Some("")),
            ("nobody,other", Some("")),
            // The text before the colon is a manager here, so the text after it is an invalid operation.
            ("git:write", Some(" (did you mean \"git\"?)")),
            ("nobody", None),
            ("nobody:update", None),
            ("ci:test", None),
            ("ci:test:apply", None),
        ] {
            let result =
                check_owner_match(&adopted_owner.parse().unwrap(), &owners).map_err(|refusal| (refusal.kind, refusal.message));
            let expected = suggestion.map(|suggestion| {
                let message = format!(
                    "adopt accepts one manager, as MANAGER, MANAGER:apply or MANAGER:update, and '{adopted_owner}' owns nothing of these objects{suggestion}; \
                     nothing was changed"
                );
                (ErrorType::RequestQuery, message)
            });
            assert_eq!(result.err(), expected, "{adopted_owner}");
        }
    }
}
