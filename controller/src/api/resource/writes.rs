//! Making, changing and deleting an object: one write each, under what the request presumes, with the answer made of what was written.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Severity, strictly};
use stemma_core::manifest::{check_taken, own_said};
use stemma_core::object::Object;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

use super::changes::{Changes, LostLabels};
use super::findings::{NewlyUnmet, brought, newly_found};
use super::moved_primaries::MovedPrimaries;
use super::objects::{Shown, read_body, update};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::admit::bad_body;
use crate::registry::names::ModelNames;
use crate::registry::work::{Work, check_presumed};
use crate::registry::{Caller, Undecided};

/// Makes a request's write: what `decide` does to the model, with the answer that it gives. With `strict=true` it is refused where it brings
/// a finding of warning or error.
///
/// # Errors
/// What `decide` refuses, and what is refused of every write.
pub(super) async fn commit(
    api: &Api,
    request: &Request,
    caller: &Caller,
    decide: impl Fn(&mut Work<'_>) -> Result<Answer, Undecided>,
) -> HandlerResult {
    // An apply is judged by all that is found of what it writes, also by what was so before.
    let is_strict = request.query.flag("strict")?.unwrap_or(false) && request.endpoint != Endpoint::Apply;
    let answer = api.registry.write(caller, |context| {
        let mut work = Work::on(context);
        let answer = decide(&mut work)?;
        if is_strict {
            // With what the write ends on nodes that it does not name.
            work.forget()?;
            work.settle_tags()?;
            check_strict("write", &brought(api, &work))?;
        }
        work.finish(answer)
    });
    Ok(Reply::written(answer.await?, &request.base).with_preference(request))
}

/// Refuses a strict write, or a strict apply, for what is found.
///
/// # Errors
/// With all findings, where one of them is a warning or an error.
pub(super) fn check_strict(what: &str, findings: &[Finding]) -> Result<(), ApiError> {
    let Some(counted) = strictly(findings) else { return Ok(()) };
    let message = format!("a strict {what}, and {counted}; nothing was changed");
    Err(ApiError::new(ErrorType::FindingStrict, message).extra("findings", json!(findings)))
}

/// `POST` of a new object.
///
/// # Errors
/// What is wrong with its fields; that its name is taken.
pub(super) async fn post<S: Shown>(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let mut fields = request.object()?;
    let (uuid, name) = S::identify(request, &mut fields)?;
    let body = read_body::<S>(fields.clone())?;
    let create = |work: &mut Work<'_>| {
        let blank = S::blank(&work.model, request)?;
        S::check_fixed(&work.model, &blank, &fields)?;
        let mut spec = update(api, work, &blank, &body, &caller, S::SHAPE)?;
        own_said(&mut spec, &body, &caller.manager);
        work.create(uuid, name.clone(), spec)
    };
    commit(api, request, &caller, |work| {
        let made = create(work).map_err(|refusal| S::refuse_new(refusal, request))?.object;
        work.settle_tags()?;
        let made = S::shelf(&work.model).get(made.meta.uuid).cloned().unwrap_or(made);
        let mut shown = S::made(api, work, request, &made)?;
        let location = Some(S::path(&made));
        // Of what is new only a node that the cluster names takes one over.
        let moved = MovedPrimaries::by(work);
        let sentences = moved.sentences(request).into_iter().chain(NewlyUnmet::by(work).sentences);
        let warning = warnings(sentences, &newly_found(work));
        if !moved.is_empty() && !request.is_of_openstack() {
            shown.insert(MovedPrimaries::MEMBER.to_owned(), moved.to_json());
        }
        Ok(Answer { location, warning, ..Answer::json(S::CREATED, shown.into()) })
    })
    .await
}

/// Changes the object that a request's path names. The answer warns of inherited keys that hosts lose by it, and of requirements that
/// its node no longer meets, and says what was changed. With `force=false` the change is refused where it would take something from
/// another manager.
///
/// # Errors
/// What `edit` refuses, and what is refused of every write.
pub(super) async fn change<S: Shown>(
    api: &Api,
    request: &Request,
    caller: &Caller,
    edit: impl Fn(&Work<'_>, &mut Object<S>) -> Result<(), ApiError>,
    answer: impl Fn(&Model, &Object<S>) -> Answer,
) -> HandlerResult {
    change_and(api, request, caller, edit, |_, _| Ok(()), answer).await
}

/// The same, with what else is done in the same write once the object is changed.
///
/// # Errors
/// As [`change`], and what `and` refuses.
pub(super) async fn change_and<S: Shown>(
    api: &Api,
    request: &Request,
    caller: &Caller,
    edit: impl Fn(&Work<'_>, &mut Object<S>) -> Result<(), ApiError>,
    and: impl Fn(&mut Work<'_>, &Object<S>) -> Result<(), ApiError>,
    answer: impl Fn(&Model, &Object<S>) -> Answer,
) -> HandlerResult {
    let presumed = request.presumed()?;
    let takes_nothing = request.query.flag("force")? == Some(false);
    commit(api, request, caller, |work| {
        let before = S::locate(&work.model, request)?;
        check_presumed(&before, presumed)?;
        let mut next = Object::clone(&before);
        edit(work, &mut next)?;
        if takes_nothing {
            let names = ModelNames::new(&work.model, &api.traits);
            check_taken(&before.spec, &next.spec, &caller.manager, &names).map_err(bad_body::<S>)?;
        }
        let model = work.model.clone();
        let written = work.update(&before, next.meta.name, next.spec)?.object;
        and(work, &written)?;
        work.settle_tags()?;
        let written = S::shelf(&work.model).get(written.meta.uuid).cloned().unwrap_or(written);
        let mut changes = Changes::default();
        let listed = changes.of(api, (&model, &before), (&work.model, &written));
        let lost = LostLabels::by(work);
        // Whoever asks for a body has them there, by name.
        let inherited = lost.inherited(&before).filter(|_| !request.prefers_body() || request.is_of_openstack());
        Ok(warn(answer(&work.model, &written), inherited, request, listed, &lost, work))
    })
    .await
}

/// The hosts that a write reaches, so far.
pub(super) fn hosts(work: &Work<'_>) -> Value {
    work.told_hosts().map(|node| node.to_string()).collect()
}

/// An answer with what the write changes, and the hosts that it would reach where it is tried out. One without a body gets one where the
/// request prefers that. `OpenStack`'s clients know the fields of theirs alone.
pub(super) fn tell(answer: Answer, request: &Request, changes: Value, lost: &LostLabels, work: &Work<'_>) -> Answer {
    let mut answer = match answer.body {
        Value::Null if request.prefers_body() => Answer { status: 200, body: json!({}), ..answer },
        _ => answer,
    };
    if let Value::Object(body) = &mut answer.body
        && !request.is_of_openstack()
    {
        body.insert("changes".to_owned(), changes);
        body.insert("lost_labels".to_owned(), lost.to_json());
        body.insert(MovedPrimaries::MEMBER.to_owned(), MovedPrimaries::by(work).to_json());
        if work.is_dry_run() {
            body.insert("hosts".to_owned(), hosts(work));
        }
    }
    answer
}

/// The same, with a warning of what is so by the write and was not before it.
pub(super) fn warn(
    answer: Answer,
    inherited: Option<String>,
    request: &Request,
    changes: Value,
    lost: &LostLabels,
    work: &Work<'_>,
) -> Answer {
    let (unmet, mut found) = (NewlyUnmet::by(work), newly_found(work));
    let moved = MovedPrimaries::by(work).sentences(request);
    let inherited = inherited.map(|sentence| (Severity::Warning, sentence));
    let sentences = moved.into_iter().chain(inherited).chain(unmet.sentences);
    let warning = warnings(sentences, &found);
    found.splice(0..0, unmet.findings);
    with_findings(tell(Answer { warning, ..answer }, request, changes, lost, work), &found)
}

/// An answer that says what the write changes, with what was found. A node has findings of its own, and what is among them is told once.
fn with_findings(mut answer: Answer, found: &[Finding]) -> Answer {
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

/// How many sentences stand in a warning, which is a header; the body has all findings.
const MOST_WARNED: usize = 3;

/// The text of a warning: the first of these sentences and of the findings, and how many there are more, as grave as the gravest of those. A
/// semicolon stands between them alone: clients print each on a line of its own.
fn warnings(sentences: impl IntoIterator<Item = (Severity, String)>, findings: &[Finding]) -> Option<String> {
    let found = findings.iter().map(|finding| (finding.severity, format!("{}: {}", finding.object, finding.message)));
    let mut all = sentences.into_iter().chain(found);
    let mut told: Vec<String> = all.by_ref().take(MOST_WARNED).map(|(severity, one)| warned(severity, &one)).collect();
    let left: Vec<Severity> = all.map(|(severity, _)| severity).collect();
    let more = |gravest: &Severity| {
        warned(*gravest, &format!("{} more finding{}", left.len(), if left.len() == 1 { "" } else { "s" }))
    };
    told.extend(left.iter().max().map(more));
    (!told.is_empty()).then(|| told.join("; "))
}

/// A sentence as a warning says it. One that is no warning says first how grave it is.
fn warned(severity: Severity, sentence: &str) -> String {
    let sentence = sentence.replace("; ", ", ");
    match severity {
        Severity::Warning => sentence,
        Severity::Info | Severity::Error => format!("{severity}: {sentence}"),
    }
}

/// `DELETE` of the object that a request's path names: 204. Each of its fields goes.
///
/// # Errors
/// What the kind refuses, and what is refused of every write.
pub(super) async fn delete<S: Shown>(api: &Api, request: &Request) -> HandlerResult {
    let (caller, presumed) = (request.caller()?, request.presumed()?);
    commit(api, request, &caller, |work| {
        let object = S::locate(&work.model, request)?;
        check_presumed(&object, presumed)?;
        let gone = Changes::default().gone(api, &work.model, &object);
        S::remove(work, &object)?;
        Ok(warn(Answer::empty(204), None, request, gone, &LostLabels::by(work), work))
    })
    .await
}

/// `DELETE` of all objects of a kind.
pub(super) async fn delete_all<S: Shown>(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    commit(api, request, &caller, |work| {
        let all: Vec<Arc<Object<S>>> = S::shelf(&work.model).iter().cloned().collect();
        let gone = Changes::default().all_gone(api, &work.model, &all);
        all.iter().try_for_each(|object| S::remove(work, object))?;
        Ok(warn(Answer::empty(204), None, request, gone, &LostLabels::by(work), work))
    })
    .await
}

#[cfg(test)]
mod tests {
    use stemma_core::finding::rule;

    use super::*;

    #[test]
    fn a_warning_holds_the_first_findings_and_counts_the_others() {
        let finding = |number: usize| Finding::of(rule::REFERENCE_UNSET, format!("task/{number}"), "m".to_owned());
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
    fn y09_a_warning_says_how_grave_a_finding_is_that_is_none() {
        let finding = |severity| Finding { severity, ..Finding::of(rule::REFERENCE_UNSET, "task/0", "m") };
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
