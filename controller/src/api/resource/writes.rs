//! Creates, changes and deletes objects. Each request is one write, with the preconditions of the request. The response
//! is built from the model with the write.

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

/// Commits a request's write: the changes that `decide` makes to the model, and the response that it returns. With
/// `strict=true`, the write is refused if it causes a warning or an error.
///
/// # Errors
/// Fails if `decide` fails, or if the write itself is refused.
pub(super) async fn commit(
    api: &Api,
    request: &HttpRequest,
    caller: &Caller,
    decide: impl Fn(&mut PendingWrite<'_>) -> Result<StoredAnswer, DecisionError>,
) -> HandlerResult {
    // A strict apply is checked in its own handler, because it counts all findings about what it writes, including
    // those that existed before.
    let is_strict = request.query.flag("strict")?.unwrap_or(false) && request.endpoint != Endpoint::Apply;
    let answer = api.registry.write(caller, |context| {
        let mut work = PendingWrite::new(context);
        let answer = decide(&mut work)?;
        if is_strict {
            // A write can also end unassignments of tags on nodes that it does not name.
            work.drop_ended_unassignments()?;
            work.resolve_tags()?;
            check_strict("write", &introduced_findings(api, &work))?;
        }
        work.finish(answer)
    });
    Ok(HttpResponse::from_answer(answer.await?, &request.base_url).with_preference(request))
}

/// Checks the findings of a strict write. `what` is the word for it in the error: `write` or `apply`.
///
/// # Errors
/// Fails with all findings if one of them is a warning or an error.
pub(super) fn check_strict(what: &str, findings: &[Finding]) -> Result<(), ApiError> {
    let Some(counted) = strict_summary(findings) else { return Ok(()) };
    let message = format!("a strict {what}, and {counted}; nothing was changed");
    Err(ApiError::new(ErrorType::FindingStrict, message).extra("findings", json!(findings)))
}

/// `POST`: creates an object.
///
/// # Errors
/// Fails if a field is invalid or the name is in use.
pub(super) async fn post<S: ApiResource>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let mut fields = request.object()?;
    let (uuid, name) = S::identify(request, &mut fields)?;
    let body = read_body::<S>(fields.clone())?;
    let create = |work: &mut PendingWrite<'_>| {
        let blank = S::new_spec(&work.model, request)?;
        S::check_fixed(&work.model, &blank, &fields)?;
        let mut spec = update(api, work, &blank, &body, &caller, S::SHAPE)?;
        own_new_fields(&mut spec, &body, &caller.manager);
        work.create(uuid, name.clone(), spec)
    };
    commit(api, request, &caller, |work| {
        let object = create(work).map_err(|refusal| S::create_error(refusal, request))?.object;
        work.resolve_tags()?;
        let object = S::index(&work.model).get(object.meta.uuid).cloned().unwrap_or(object);
        let mut body = S::after_create(api, work, request, &object)?;
        let location = Some(S::path(&object));
        // A new object takes over a primary only if it is a node that the cluster names.
        let moved = MovedPrimaries::from_write(work);
        let sentences = moved.sentences(request).into_iter().chain(NewUnmetRequirements::from_write(work).sentences);
        let warning = warnings(sentences, &new_findings(work));
        if !moved.is_empty() && !request.is_openstack_client() {
            body.insert(MovedPrimaries::FIELD.to_owned(), moved.to_json());
        }
        Ok(StoredAnswer { location, warning, ..StoredAnswer::json(S::CREATED_STATUS, body.into()) })
    })
    .await
}

/// Changes the object that a request's path names. The response lists the changes. It has a warning if hosts lose
/// inherited labels, or if a node no longer meets a requirement. With `force=false`, the change is refused if it would
/// take something from another manager.
///
/// # Errors
/// Fails if `edit` fails, or if the write itself is refused.
pub(super) async fn change<S: ApiResource>(
    api: &Api,
    request: &HttpRequest,
    caller: &Caller,
    edit: impl Fn(&PendingWrite<'_>, &mut Object<S>) -> Result<(), ApiError>,
    answer: impl Fn(&Model, &Object<S>) -> StoredAnswer,
) -> HandlerResult {
    change_with(api, request, caller, edit, |_, _| Ok(()), answer).await
}

/// Changes an object as [`change`] does. `then` makes further changes in the same write, after the object has changed.
///
/// # Errors
/// As [`change`], and if `then` fails.
pub(super) async fn change_with<S: ApiResource>(
    api: &Api,
    request: &HttpRequest,
    caller: &Caller,
    edit: impl Fn(&PendingWrite<'_>, &mut Object<S>) -> Result<(), ApiError>,
    then: impl Fn(&mut PendingWrite<'_>, &Object<S>) -> Result<(), ApiError>,
    answer: impl Fn(&Model, &Object<S>) -> StoredAnswer,
) -> HandlerResult {
    let revision = request.if_match()?;
    let is_unforced = request.query.flag("force")? == Some(false);
    commit(api, request, caller, |work| {
        let before = S::locate(&work.model, request)?;
        check_revision(&before, revision)?;
        let mut next = Object::clone(&before);
        edit(work, &mut next)?;
        if is_unforced {
            let names = ModelNames::new(&work.model, &api.traits);
            check_update_conflicts(&before.spec, &next.spec, &caller.manager, &names).map_err(bad_body::<S>)?;
        }
        let model = work.model.clone();
        let written = work.update(&before, next.meta.name, next.spec)?.object;
        then(work, &written)?;
        work.resolve_tags()?;
        let written = S::index(&work.model).get(written.meta.uuid).cloned().unwrap_or(written);
        let mut changes = Changes::default();
        let listed = changes.for_update(api, (&model, &before), (&work.model, &written));
        let lost = LostLabels::from_write(work);
        // A response with a body lists the lost labels by name, so only a client without such a body needs the warning.
        let inherited =
            lost.inherited_sentence(&before).filter(|_| !request.is_body_preferred() || request.is_openstack_client());
        Ok(with_warnings(answer(&work.model, &written), inherited, request, listed, &lost, work))
    })
    .await
}

/// Returns the hosts that a write affects with what it has changed so far.
pub(super) fn affected_hosts(work: &PendingWrite<'_>) -> Value {
    work.visible_hosts().map(|node| node.to_string()).collect()
}

/// Adds to the answer of a write what the write changes and, for a dry run, the hosts that it would affect. An answer
/// without a body gets one if the request prefers that. `OpenStack`'s clients get none of these fields, because they do
/// not know them.
pub(super) fn with_changes(
    answer: StoredAnswer,
    request: &HttpRequest,
    changes: Value,
    lost: &LostLabels,
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
        body.insert("lost_labels".to_owned(), lost.to_json());
        body.insert(MovedPrimaries::FIELD.to_owned(), MovedPrimaries::from_write(work).to_json());
        if work.is_dry_run() {
            body.insert("hosts".to_owned(), affected_hosts(work));
        }
    }
    answer
}

/// Adds to an answer what [`with_changes`] adds, and a warning and findings about problems that the write causes.
/// `inherited` is the sentence about inherited labels that hosts lose.
pub(super) fn with_warnings(
    answer: StoredAnswer,
    inherited: Option<String>,
    request: &HttpRequest,
    changes: Value,
    lost: &LostLabels,
    work: &PendingWrite<'_>,
) -> StoredAnswer {
    let (unmet, mut found) = (NewUnmetRequirements::from_write(work), new_findings(work));
    let moved = MovedPrimaries::from_write(work).sentences(request);
    let inherited = inherited.map(|sentence| (Severity::Warning, sentence));
    let sentences = moved.into_iter().chain(inherited).chain(unmet.sentences);
    let warning = warnings(sentences, &found);
    found.splice(0..0, unmet.findings);
    with_findings(with_changes(StoredAnswer { warning, ..answer }, request, changes, lost, work), &found)
}

/// Adds findings to an answer that lists changes. The body of a node already has findings about the node, so a finding
/// that is there is not repeated.
fn with_findings(mut answer: StoredAnswer, found: &[Finding]) -> StoredAnswer {
    if let Value::Object(body) = &mut answer.body
        && body.contains_key("changes")
        && let Value::Array(findings) = body.entry("findings").or_insert_with(|| json!([]))
    {
        let new = found.iter().map(|finding| json!(finding)).filter(|finding| !findings.contains(finding));
        let new: Vec<Value> = new.collect();
        findings.extend(new);
    }
    answer
}

/// Maximum number of sentences in a warning, which is sent as a header and must stay short. The body has all findings.
const MAX_WARNED_FINDINGS: usize = 3;

/// Returns the text of a warning: the first of these sentences and findings, and then the number of the remaining ones
/// with the highest severity among them. Entries are separated by a semicolon, and no entry contains one, because
/// clients print each entry on a line of its own.
fn warnings(sentences: impl IntoIterator<Item = (Severity, String)>, findings: &[Finding]) -> Option<String> {
    let found = findings.iter().map(|finding| (finding.severity, format!("{}: {}", finding.object, finding.message)));
    let mut all = sentences.into_iter().chain(found);
    let mut list: Vec<String> =
        all.by_ref().take(MAX_WARNED_FINDINGS).map(|(severity, one)| warning_text(severity, &one)).collect();
    let rest: Vec<Severity> = all.map(|(severity, _)| severity).collect();
    let more = |gravest: &Severity| {
        warning_text(*gravest, &format!("{} more finding{}", rest.len(), if rest.len() == 1 { "" } else { "s" }))
    };
    list.extend(rest.iter().max().map(more));
    (!list.is_empty()).then(|| list.join("; "))
}

/// Returns an entry of a warning. It begins with the severity if that is not `warning`. Semicolons in the sentence are
/// replaced.
fn warning_text(severity: Severity, sentence: &str) -> String {
    let sentence = sentence.replace("; ", ", ");
    match severity {
        Severity::Warning => sentence,
        Severity::Info | Severity::Error => format!("{severity}: {sentence}"),
    }
}

/// `DELETE` of the object that a request's path names, with status 204. The changes list each of its fields as removed.
///
/// # Errors
/// Fails if the object cannot be deleted by itself, or if the write itself is refused.
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

/// `DELETE` of all objects of a kind, in one write.
pub(super) async fn delete_all<S: ApiResource>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    commit(api, request, &caller, |work| {
        let all: Vec<Arc<Object<S>>> = S::index(&work.model).iter().cloned().collect();
        let changes = Changes::default().for_delete_all(api, &work.model, &all);
        all.iter().try_for_each(|object| S::remove(work, object))?;
        Ok(with_warnings(StoredAnswer::empty(204), None, request, changes, &LostLabels::from_write(work), work))
    })
    .await
}

#[cfg(test)]
mod tests {
    use stemma_core::finding::rule;

    use super::*;

    #[test]
    fn warnings_lists_first_findings_and_counts_rest() {
        let finding = |number: usize| Finding::new(rule::REFERENCE_UNSET, format!("task/{number}"), "m".to_owned());
        let warning = |text: &str| (Severity::Warning, text.to_owned());
        let of = |count| warnings([warning("s")], &(0..count).map(finding).collect::<Vec<_>>());
        assert_eq!(of(0).as_deref(), Some("s"));
        assert_eq!(of(2).as_deref(), Some("s; task/0: m; task/1: m"));
        assert_eq!(of(300).as_deref(), Some("s; task/0: m; task/1: m; 298 more findings"));
        let held = (0..999).map(|number| (Severity::Error, format!("requirement {number}")));
        let told = "error: requirement 0; error: requirement 1; error: requirement 2; error: 996 more findings";
        assert_eq!(warnings(held, &[]).as_deref(), Some(told));
        let said = [warning("one does nothing; take it out"), warning("s")];
        assert_eq!(warnings(said, &[]).as_deref(), Some("one does nothing, take it out; s"));
    }

    #[test]
    fn y09_warning_text_names_severity_when_not_warning() {
        let finding = |severity| Finding { severity, ..Finding::new(rule::REFERENCE_UNSET, "task/0", "m") };
        let of = |severities: &[Severity]| {
            warnings(None::<(Severity, String)>, &severities.iter().copied().map(finding).collect::<Vec<_>>())
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
            assert_eq!(of(severities).as_deref(), Some(expected), "{severities:?}");
        }
    }
}
