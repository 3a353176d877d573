//! Handlers that create, change and delete objects of any kind. Each request is one write, and fails if its
//! preconditions (such as `If-Match`) are not met. The response shows the objects as they are after the write.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Severity, strict_summary};
use stemma_core::manifest::{check_update_conflicts, own_new_fields};
use stemma_core::object::Object;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

use super::changes::{Changes, LostLabels};
use super::findings::{NewUnmetRequirements, introduced_findings, new_findings};
use super::moved_primaries::MovedPrimaries;
use super::objects::{ApiResource, read_body, update};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::admit::bad_body;
use crate::registry::names::ModelNames;
use crate::registry::work::{PendingWrite, check_revision};
use crate::registry::{Caller, DecisionError};

/// Commits a request's write. `decide` makes the changes and returns the response. It can be called several times, for
/// example if another write has changed the same objects before the commit. With `strict=true`, the write is refused if
/// it causes a finding that is a warning or an error.
///
/// # Errors
/// Fails if `decide` fails, or if the commit is refused.
pub(super) async fn commit(
    api: &Api,
    request: &HttpRequest,
    caller: &Caller,
    decide: impl Fn(&mut PendingWrite<'_>) -> Result<StoredAnswer, DecisionError>,
) -> HandlerResult {
    // The handler of `apply` itself checks a strict apply, because there all findings about the written objects count,
    // also those that existed before.
    let is_strict = request.query.flag("strict")?.unwrap_or(false) && request.endpoint != Endpoint::Apply;
    let answer = api.registry.write(caller, |context| {
        let mut work = PendingWrite::new(context);
        let answer = decide(&mut work)?;
        if is_strict {
            // A write that changes roles can end unassignments of tags on nodes that it does not name. The findings
            // must include the effects of this.
            work.drop_ended_unassignments()?;
            work.resolve_tags()?;
            check_strict("write", &introduced_findings(api, &work))?;
        }
        work.finish(answer)
    });
    Ok(HttpResponse::from_answer(answer.await?, &request.base_url).with_preference(request))
}

/// Refuses a strict write if its findings require this. `write_word` is the word for the write in the error: `write` or
/// `apply`.
///
/// # Errors
/// Fails with all findings if one of them is a warning or an error.
pub(super) fn check_strict(write_word: &str, findings: &[Finding]) -> Result<(), ApiError> {
    let Some(summary) = strict_summary(findings) else { return Ok(()) };
    let message = format!("a strict {write_word}, and {summary}; nothing was changed");
    Err(ApiError::new(ErrorType::FindingStrict, message).extra("findings", json!(findings)))
}

/// Handles `POST`: creates an object.
///
/// # Errors
/// Fails if a field is invalid or the name is in use.
pub(super) async fn post<S: ApiResource>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let mut fields = request.object()?;
    let (uuid, name) = S::identify(request, &mut fields)?;
    let body = read_body::<S>(fields.clone())?;
    let create = |work: &mut PendingWrite<'_>| {
        let empty_spec = S::new_spec(&work.model, request)?;
        S::check_fixed(&work.model, &empty_spec, &fields)?;
        let mut spec = update(api, work, &empty_spec, &body, &caller, S::SHAPE)?;
        // The author of a new object also owns the fields that the body sets to their defaults.
        own_new_fields(&mut spec, &body, &caller.manager);
        work.create(uuid, name.clone(), spec)
    };
    commit(api, request, &caller, |work| {
        let object = create(work).map_err(|error| S::create_error(error, request))?.object;
        // `resolve_tags` may have changed the new object, so it is read from the model again.
        work.resolve_tags()?;
        let object = S::index(&work.model).get(object.meta.uuid).cloned().unwrap_or(object);
        let mut body = S::after_create(api, work, request, &object)?;
        let location = Some(S::path(&object));
        // A new object can change a primary only if the object is a node that its cluster names in `primaries`.
        let moved_primaries = MovedPrimaries::from_write(work);
        let sentences = moved_primaries.sentences(request).into_iter().chain(NewUnmetRequirements::from_write(work).sentences);
        let warning = warning_header(sentences, &new_findings(work));
        if !moved_primaries.is_empty() && !request.is_openstack_client() {
            body.insert(MovedPrimaries::FIELD.to_owned(), moved_primaries.to_json());
        }
        Ok(StoredAnswer { location, warning, ..StoredAnswer::json(S::CREATED_STATUS, body.into()) })
    })
    .await
}

/// Changes the object that the request's path names, with `edit`. The response lists the changes. It has a warning
/// about moved primaries, inherited labels that hosts lose, requirements that a node no longer meets, and other new
/// findings. With `force=false`, the change is refused if another manager owns a value that it would change.
///
/// # Errors
/// Fails if the object does not exist, if `If-Match` names another revision, if `edit` fails, or if the commit is
/// refused.
pub(super) async fn change<S: ApiResource>(
    api: &Api,
    request: &HttpRequest,
    caller: &Caller,
    edit: impl Fn(&PendingWrite<'_>, &mut Object<S>) -> Result<(), ApiError>,
    answer: impl Fn(&Model, &Object<S>) -> StoredAnswer,
) -> HandlerResult {
    change_with(api, request, caller, edit, |_, _| Ok(()), answer).await
}

/// Changes an object as [`change`] does. Then it calls `edit_more`, which makes further changes in the same write.
///
/// # Errors
/// Fails as [`change`] does, and if `edit_more` fails.
pub(super) async fn change_with<S: ApiResource>(
    api: &Api,
    request: &HttpRequest,
    caller: &Caller,
    edit: impl Fn(&PendingWrite<'_>, &mut Object<S>) -> Result<(), ApiError>,
    edit_more: impl Fn(&mut PendingWrite<'_>, &Object<S>) -> Result<(), ApiError>,
    answer: impl Fn(&Model, &Object<S>) -> StoredAnswer,
) -> HandlerResult {
    let revision = request.if_match()?;
    let is_unforced = request.query.flag("force")? == Some(false);
    commit(api, request, caller, |work| {
        let old_object = S::locate(&work.model, request)?;
        check_revision(&old_object, revision)?;
        let mut new_object = Object::clone(&old_object);
        edit(work, &mut new_object)?;
        if is_unforced {
            let names = ModelNames::new(&work.model, &api.traits);
            check_update_conflicts(&old_object.spec, &new_object.spec, &caller.manager, &names).map_err(bad_body::<S>)?;
        }
        let old_model = work.model.clone();
        let updated_object = work.update(&old_object, new_object.meta.name, new_object.spec)?.object;
        edit_more(work, &updated_object)?;
        // `resolve_tags` may have changed the object, so it is read from the model again.
        work.resolve_tags()?;
        let updated_object = S::index(&work.model).get(updated_object.meta.uuid).cloned().unwrap_or(updated_object);
        let mut changes = Changes::default();
        let change_list = changes.for_update(api, (&old_model, &old_object), (&work.model, &updated_object));
        let lost_labels = LostLabels::from_write(work);
        // A response with a body lists the lost labels by name. So the warning is only for clients that did not ask for
        // a body, and for those of `OpenStack`, whose body does not list the labels.
        let lost_labels_sentence =
            lost_labels.inherited_sentence(&old_object).filter(|_| !request.is_body_preferred() || request.is_openstack_client());
        Ok(with_warnings(answer(&work.model, &updated_object), lost_labels_sentence, request, change_list, &lost_labels, work))
    })
    .await
}

/// Returns the uuids of the visible nodes that the changes of the write so far affect.
pub(super) fn affected_hosts(work: &PendingWrite<'_>) -> Value {
    work.visible_affected_nodes().map(|node| node.to_string()).collect()
}

/// Adds the changes of a write to its response: changed fields, lost labels, and moved primaries. A dry run also lists
/// the hosts that it would affect. A response without a body gets one if the request prefers a body. `OpenStack`'s
/// clients do not know these fields, so they do not get them.
pub(super) fn with_changes(
    answer: StoredAnswer,
    request: &HttpRequest,
    changes: Value,
    lost_labels: &LostLabels,
    work: &PendingWrite<'_>,
) -> StoredAnswer {
    let mut answer = match answer.body {
        Value::Null if request.is_body_preferred() => StoredAnswer { status: 200, body: json!({}), ..answer },
        _ => answer,
    };
    if let Value::Object(body) = &mut answer.body
        && !request.is_openstack_client()
    {
        body.insert("changes".to_owned(), changes);
        body.insert("lost_labels".to_owned(), lost_labels.to_json());
        body.insert(MovedPrimaries::FIELD.to_owned(), MovedPrimaries::from_write(work).to_json());
        if work.is_dry_run() {
            body.insert("hosts".to_owned(), affected_hosts(work));
        }
    }
    answer
}

/// Adds the fields of [`with_changes`] to a response, and also a warning and findings about problems that the write
/// causes. `lost_labels_sentence` is the sentence about inherited labels that hosts lose, if there is one.
pub(super) fn with_warnings(
    answer: StoredAnswer,
    lost_labels_sentence: Option<String>,
    request: &HttpRequest,
    changes: Value,
    lost_labels: &LostLabels,
    work: &PendingWrite<'_>,
) -> StoredAnswer {
    let (unmet, mut findings) = (NewUnmetRequirements::from_write(work), new_findings(work));
    let moved_primaries = MovedPrimaries::from_write(work).sentences(request);
    let lost_labels_sentence = lost_labels_sentence.map(|sentence| (Severity::Warning, sentence));
    let sentences = moved_primaries.into_iter().chain(lost_labels_sentence).chain(unmet.sentences);
    let warning = warning_header(sentences, &findings);
    // Unmet requirements are the first in the list.
    findings.splice(0..0, unmet.findings);
    with_findings(with_changes(StoredAnswer { warning, ..answer }, request, changes, lost_labels, work), &findings)
}

/// Adds findings to a response that lists changes. The body of a node already has findings about the node. So a finding
/// that the body already has is not added again.
fn with_findings(mut answer: StoredAnswer, added_findings: &[Finding]) -> StoredAnswer {
    if let Value::Object(body) = &mut answer.body
        && body.contains_key("changes")
        && let Value::Array(findings) = body.entry("findings").or_insert_with(|| json!([]))
    {
        let new_findings = added_findings.iter().map(|finding| json!(finding)).filter(|finding| !findings.contains(finding));
        let new_findings: Vec<Value> = new_findings.collect();
        findings.extend(new_findings);
    }
    answer
}

/// Maximum number of sentences and findings that a warning lists, before an entry that counts the others. A warning
/// must be short, because it is sent as a header.
const MAX_WARNED_FINDINGS: usize = 3;

/// Returns the text of a warning: the first [`MAX_WARNED_FINDINGS`] of these sentences and findings, and then an entry
/// with the number of the others and their highest severity. The text `; ` separates the entries. No entry contains it,
/// because clients print each entry on its own line.
fn warning_header(sentences: impl IntoIterator<Item = (Severity, String)>, findings: &[Finding]) -> Option<String> {
    let finding_entries = findings.iter().map(|finding| (finding.severity, format!("{}: {}", finding.object, finding.message)));
    let mut entries = sentences.into_iter().chain(finding_entries);
    let mut texts: Vec<String> =
        entries.by_ref().take(MAX_WARNED_FINDINGS).map(|(severity, sentence)| warning_text(severity, &sentence)).collect();
    let remaining: Vec<Severity> = entries.map(|(severity, _)| severity).collect();
    let count_text = |severity: &Severity| {
        warning_text(*severity, &format!("{} more finding{}", remaining.len(), if remaining.len() == 1 { "" } else { "s" }))
    };
    texts.extend(remaining.iter().max().map(count_text));
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns an entry of a warning. If its severity is not `warning`, the entry begins with the severity. Each semicolon
/// before a space becomes a comma, because `; ` separates the entries.
fn warning_text(severity: Severity, sentence: &str) -> String {
    let sentence = sentence.replace("; ", ", ");
    match severity {
        Severity::Warning => sentence,
        Severity::Info | Severity::Error => format!("{severity}: {sentence}"),
    }
}

/// Handles `DELETE` of the object that the request's path names. The status is 204 without a body. If the request
/// prefers a body, the status is 200, and the changes in the body list each of the object's fields as removed.
///
/// # Errors
/// Fails if the object cannot be deleted by itself (for example because another object uses it), or if the commit is
/// refused.
pub(super) async fn delete<S: ApiResource>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, revision) = (request.caller()?, request.if_match()?);
    commit(api, request, &caller, |work| {
        let object = S::locate(&work.model, request)?;
        check_revision(&object, revision)?;
        let changes = Changes::default().for_delete(api, &work.model, &object);
        S::remove(work, &object)?;
        Ok(with_warnings(StoredAnswer::empty(204), None, request, changes, &LostLabels::from_write(work), work))
    })
    .await
}

/// Handles `DELETE` of all objects of one kind, in a single write. If one of them cannot be deleted, none is deleted.
pub(super) async fn delete_all<S: ApiResource>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    commit(api, request, &caller, |work| {
        let objects: Vec<Arc<Object<S>>> = S::index(&work.model).iter().cloned().collect();
        let changes = Changes::default().for_delete_all(api, &work.model, &objects);
        objects.iter().try_for_each(|object| S::remove(work, object))?;
        Ok(with_warnings(StoredAnswer::empty(204), None, request, changes, &LostLabels::from_write(work), work))
    })
    .await
}

#[cfg(test)]
mod tests {
    use stemma_core::finding::rule;

    use super::*;

    /// The entries are separated by semicolons, so a semicolon within a sentence becomes a comma.
    #[test]
    fn warning_header_lists_first_entries_and_counts_rest() {
        let finding = |number: usize| Finding::new(rule::REFERENCE_UNSET, format!("task/{number}"), "m".to_owned());
        let warning = |text: &str| (Severity::Warning, text.to_owned());
        let warning_with_findings = |count| warning_header([warning("s")], &(0..count).map(finding).collect::<Vec<_>>());
        assert_eq!(warning_with_findings(0).as_deref(), Some("s"));
        assert_eq!(warning_with_findings(2).as_deref(), Some("s; task/0: m; task/1: m"));
        assert_eq!(warning_with_findings(300).as_deref(), Some("s; task/0: m; task/1: m; 298 more findings"));
        let requirement_errors = (0..999).map(|number| (Severity::Error, format!("requirement {number}")));
        let expected = "error: requirement 0; error: requirement 1; error: requirement 2; error: 996 more findings";
        assert_eq!(warning_header(requirement_errors, &[]).as_deref(), Some(expected));
        let sentences = [warning("one does nothing; take it out"), warning("s")];
        assert_eq!(warning_header(sentences, &[]).as_deref(), Some("one does nothing, take it out; s"));
    }

    #[test]
    fn y09_warning_text_names_severity_when_not_warning() {
        let finding = |severity| Finding { severity, ..Finding::new(rule::REFERENCE_UNSET, "task/0", "m") };
        let warning_with_severities = |severities: &[Severity]| {
            warning_header(None::<(Severity, String)>, &severities.iter().copied().map(finding).collect::<Vec<_>>())
        };
        for (severities, expected) in [
            (&[Severity::Info][..], "info: task/0: m"),
            (&[Severity::Warning], "task/0: m"),
            (&[Severity::Error], "error: task/0: m"),
            (&[Severity::Warning; 4], "task/0: m; task/0: m; task/0: m; 1 more finding"),
            (&[Severity::Warning; 5], "task/0: m; task/0: m; task/0: m; 2 more findings"),
            (
                &[Severity::Warning, Severity::Warning, Severity::Warning, Severity::Info],
                "task/0: m; task/0: m; task/0: m; info: 1 more finding",
            ),
            (
                &[Severity::Warning, Severity::Warning, Severity::Warning, Severity::Info, Severity::Error],
                "task/0: m; task/0: m; task/0: m; error: 2 more findings",
            ),
        ] {
            assert_eq!(warning_with_severities(severities).as_deref(), Some(expected), "{severities:?}");
        }
    }
}
