//! `events`: what changes, as it happens; `wait`: until something is so.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};
use stemma_core::name::{near, suggest};
use stemma_core::status::State;
use stemma_wire::endpoint::{Endpoint, escape};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::{Api, Event, Refusal, Told};
use crate::args::{Condition, EventClass, EventsAsked, Filter, Kind, Output, Selection, Waited};
use crate::command::each::selected;
use crate::command::question::{self, objects};
use crate::exit::Exit;
use crate::output::{cell, printable};

/// How long to wait for more of what changes together.
const TOGETHER: Duration = Duration::from_millis(200);
/// It is looked again after so long at the latest.
const AT_LEAST: Duration = Duration::from_secs(5);

/// Prints events until Ctrl-C, which ends it well.
///
/// # Errors
/// Why there are none.
pub(crate) async fn events(api: &mut Api, asked: &EventsAsked, output: Output) -> Result<()> {
    let mut events = api.events(path(asked), asked.from);
    let following = events.follow(|told| match told {
        Told::Begins => Ok(()),
        Told::Event(event) => say(&event, output),
    });
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        Err(error) = following => Err(error),
    }
}

fn path(asked: &EventsAsked) -> String {
    let class = match asked.class {
        EventClass::Object => Some("object"),
        EventClass::Status => Some("status"),
        EventClass::All => None,
    };
    let kinds = asked.kind.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(",");
    let given = [
        ("class", class.map(str::to_owned)),
        ("kind", Some(kinds).filter(|kinds| !kinds.is_empty())),
        ("selector", asked.selector.clone()),
    ];
    let terms: Vec<String> =
        given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(&value?)))).collect();
    format!("{}?{}", Endpoint::WatchEvents.path(&[]), terms.join("&"))
}

fn say(event: &Event, output: Output) -> Result<()> {
    let told = || {
        let mut told = json!({"event": event.class});
        if let (Some(told), Some(data)) = (told.as_object_mut(), event.data.as_object()) {
            told.extend(data.clone());
        }
        told
    };
    match output {
        Output::Json => say!("{}", told()),
        Output::Yaml | Output::Manifest => {
            say!("---");
            question::print(&told(), Output::Yaml)?;
        }
        Output::Name => say!("{}", subject(&event.data)),
        Output::Table | Output::Wide => match time(event, Timestamp::now()) {
            Some(time) => say!("{time} {}", line(event)),
            None => say!("{}", line(event)),
        },
    }
    Ok(())
}

/// When an event was; `None`: it does not say, as where a node stands, which is stored nowhere. The reader's own time would be taken for it.
fn time(event: &Event, now: Timestamp) -> Option<String> {
    let at: Timestamp = event.data.get("at")?.as_str()?.parse().ok()?;
    let is_today = at.strftime("%Y-%m-%d").to_string() == now.strftime("%Y-%m-%d").to_string();
    Some(at.strftime(if is_today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" }).to_string())
}

fn subject(data: &Value) -> String {
    let text = |field: &str| cell(data.get(field));
    match data.get("cluster").and_then(Value::as_str).filter(|_| text("kind") == "nodegroup") {
        Some(cluster) => format!("{}/{}/{}", text("kind"), printable(cluster), text("name")),
        None => format!("{}/{}", text("kind"), text("name")),
    }
}

fn line(event: &Event) -> String {
    let text = |field: &str| cell(event.data.get(field));
    let what = subject(&event.data);
    if event.class == "status" {
        return format!("{what} {} ({}), {}", text("state"), text("state_reason"), text("connection"));
    }
    format!("{what} {} at revision {}", text("action"), text("revision"))
}

/// The names of the objects that are waited for: those that were named, or that a selection finds now.
///
/// # Errors
/// When both are given; with status 3 when the selection finds none.
pub(crate) async fn awaited(
    api: &mut Api,
    kind: Kind,
    names: Vec<String>,
    selection: &Selection,
) -> Result<Vec<String>> {
    if selection.is_empty() {
        return Ok(names);
    }
    let found = selected(api, kind, &names, selection).await?;
    if found.is_empty() {
        return Err(Exit::NotFound.because(format!("no {} is selected", kind.name())));
    }
    Ok(found)
}

/// Waits until objects are as they should be.
///
/// # Errors
/// With status 1 when the time is over, naming those that are not; with 2 for a field or a state that there is not; with 3 for an object that is not
/// there.
pub(crate) async fn wait(api: &mut Api, kind: Kind, names: &[String], waited: &Waited) -> Result<()> {
    if names.is_empty() {
        return Err(
            Exit::Usage.because(format!("which {}? name some, or select them, as with -l KEY=VALUE", kind.name()))
        );
    }
    check_state(kind, &waited.wanted)?;
    let (notify, mut noticed) = mpsc::unbounded_channel();
    let mut events = api.events(Endpoint::WatchEvents.path(&[]), None).quietly();
    let following = events.follow(move |_| Ok(notify.send(())?));
    let until = Instant::now() + Duration::from_secs(waited.timeout);
    let unseen = |name: &String| (name.clone(), "was not looked at yet".to_owned());
    let mut left: Vec<(String, String)> = names.iter().map(unseen).collect();
    let looking = async {
        let (mut names, mut is_first) = (names.to_vec(), true);
        loop {
            match look(api, kind, &names, waited, is_first).await {
                Ok(found) => (left, is_first) = (found, false),
                // A controller that was there comes back.
                Err(error) if is_first || error.is::<Refusal>() => return Err(error),
                Err(_) => {}
            }
            if left.is_empty() {
                return Ok(());
            }
            names = left.iter().map(|(name, _)| name.clone()).collect();
            // What an object inherits changes without an event of its own.
            let _something_happened = timeout(AT_LEAST, noticed.recv()).await;
            sleep(TOGETHER).await;
            while noticed.try_recv().is_ok() {}
        }
    };
    let waiting = async {
        tokio::select! {
            done = looking => done,
            Err(error) = following => Err(error),
        }
    };
    match Box::pin(timeout_at(until, waiting)).await {
        Ok(done) => done,
        Err(_) => {
            let still: Vec<String> =
                left.iter().map(|(name, now)| format!("{}/{} {now}", kind.name(), printable(name))).collect();
            let sentence = format!("not so after {} s: {}", waited.timeout, still.join(", "));
            Err(Exit::Error.because(sentence))
        }
    }
}

/// Refuses a state that no node is ever in: to wait for it would be to wait for the end.
fn check_state(kind: Kind, wanted: &Condition) -> Result<()> {
    let Condition::Field { path, value } = wanted else { return Ok(()) };
    let known = State::ALL.map(State::name);
    if kind != Kind::Node || path != "state" || known.contains(&value.as_str()) {
        return Ok(());
    }
    let near = suggest(near(value, known));
    Err(Exit::Usage.because(format!("{value:?} is no state of a node{near}: it is one of {}", known.join(", "))))
}

/// Refuses a field that no object of the kind has, and a member of one that is no map, for the same reason. What an object has is a field too: a newer
/// controller may show more than is known here.
fn check_field(kind: Kind, wanted: &Condition, objects: &[&Value]) -> Result<()> {
    let Condition::Field { path, .. } = wanted else { return Ok(()) };
    let (field, member) = path.split_once('.').map_or((path.as_str(), None), |(field, member)| (field, Some(member)));
    let own = objects.iter().filter_map(|object| object.as_object()).flat_map(|object| object.keys().cloned());
    let known: BTreeSet<String> = kind.fields().into_iter().chain(own).collect();
    let one = kind.with_article();
    if !known.contains(field) {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let meant = match near(field, known.iter().copied()) {
            Some(near) => format!("{}; `-o json` shows all of them", suggest(Some(near))),
            None => format!(": it has {}", known.join(", ")),
        };
        return Err(Exit::Usage.because(format!("--for: {one} has no field {field:?}{meant}")));
    }
    // One that is not there yet may be a map.
    let mut shown = objects.iter().filter_map(|object| object.get(field)).filter(|value| !value.is_null()).peekable();
    let is_no_map = shown.peek().is_some() && shown.all(|value| !value.is_object());
    match member.filter(|_| is_no_map) {
        Some(member) => {
            let sentence = format!("--for: {field} of {one} is no map, so it has no {member:?}: say {field}=VALUE");
            Err(Exit::Usage.because(sentence))
        }
        None => Ok(()),
    }
}

/// Those that are not yet as they should be, each with what it is; those that are so now are said. Where they are looked at for the first time, the
/// field that is waited for is checked.
async fn look(
    api: &mut Api,
    kind: Kind,
    names: &[String],
    waited: &Waited,
    is_first: bool,
) -> Result<Vec<(String, String)>> {
    let mut shown = Vec::new();
    for name in names {
        shown.push(match objects(api, kind, std::slice::from_ref(name), &Filter::default()).await {
            Ok(mut found) => found.pop(),
            Err(error) if Exit::of(&error) == Exit::NotFound && waited.wanted == Condition::Deleted => None,
            Err(error) => return Err(error),
        });
    }
    if is_first {
        check_field(kind, &waited.wanted, &shown.iter().flatten().collect::<Vec<_>>())?;
    }
    let mut left = Vec::new();
    for (name, found) in names.iter().zip(&shown) {
        match missing(&waited.wanted, found.as_ref()) {
            Some(now) => left.push((name.clone(), now)),
            None => say!("{}/{} {}", kind.name(), printable(name), waited.wanted),
        }
    }
    Ok(left)
}

/// What an object is that is not yet as it should be; `None`: it is.
fn missing(wanted: &Condition, object: Option<&Value>) -> Option<String> {
    let Condition::Field { path, value } = wanted else { return object.map(|_| "is there".to_owned()) };
    // A label's key may have dots of its own.
    let found = object.and_then(|object| path.splitn(2, '.').try_fold(object, |found, part| found.get(part)));
    let Some(found) = found.filter(|found| !found.is_null()) else { return Some(format!("has no {path}")) };
    let now = cell(Some(found));
    let is_listed = || found.as_array().is_some_and(|all| all.iter().any(|one| cell(Some(one)) == *value));
    (now != *value && !is_listed()).then(|| format!("has {path}={now}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_met_or_it_is_said_what_is_so() {
        let node = json!({"state": "failed", "labels": {"example.org/tier": "gold"}, "notes": ["held", "orphaned"]});
        let without = json!({"notes": []});
        for (condition, object, expected) in [
            // y06: the whole list was compared, so that a note which came beside it kept one from being seen.
            ("notes=held", Some(&node), None),
            ("notes=orphaned", Some(&node), None),
            ("notes=held,orphaned", Some(&node), None),
            ("notes=untold", Some(&node), Some("has notes=held,orphaned")),
            ("notes=hel", Some(&node), Some("has notes=held,orphaned")),
            ("notes=held", Some(&without), Some("has notes=")),
            ("notes=", Some(&without), None),
            ("state=failed", Some(&node), None),
            ("state=converged", Some(&node), Some("has state=failed")),
            ("labels.example.org/tier=gold", Some(&node), None),
            ("labels.tier=gold", Some(&node), Some("has no labels.tier")),
            ("state=failed", None, Some("has no state")),
            ("deleted", None, None),
            ("deleted", Some(&node), Some("is there")),
        ] {
            let wanted: Condition = condition.parse().unwrap();
            assert_eq!(missing(&wanted, object).as_deref(), expected, "{condition}");
        }
    }

    /// It waited for one until its time was over.
    #[test]
    fn a_state_that_there_is_not_is_not_waited_for() {
        let check = |kind, condition: &str| check_state(kind, &condition.parse().unwrap());
        let refused = check(Kind::Node, "state=convergd").unwrap_err();
        assert_eq!(Exit::of(&refused), Exit::Usage);
        let said = refused.to_string();
        assert!(
            said.starts_with("\"convergd\" is no state of a node (did you mean \"converged\"?): it is one of "),
            "{said}"
        );
        for (kind, condition) in [
            (Kind::Node, "state=converged"),
            (Kind::Allocation, "state=active"),
            (Kind::Node, "labels.state=x"),
            (Kind::Node, "deleted"),
        ] {
            assert!(check(kind, condition).is_ok(), "{condition}");
        }
    }

    /// It waited for one until its time was over.
    #[test]
    fn a_field_that_there_is_not_is_not_waited_for() {
        let node = json!({"state": "failed", "labels": {"a.b/tier": "gold"}, "hold": null, "of_a_newer_one": 1});
        let check = |kind, condition: &str| check_field(kind, &condition.parse().unwrap(), &[&node]);
        for (kind, condition, expected) in [
            (Kind::Node, "stat=converged", "--for: a node has no field \"stat\" (did you mean \"state\"?); "),
            (Kind::Node, "note=held", "--for: a node has no field \"note\" (did you mean \"notes\"?); "),
            (Kind::Node, "label.tier=gold", "--for: a node has no field \"label\" (did you mean \"labels\"?); "),
            (Kind::Token, "bogus=1", "--for: a join token has no field \"bogus\": it has "),
            (
                Kind::Node,
                "state.name=failed",
                "--for: state of a node is no map, so it has no \"name\": say state=VALUE",
            ),
        ] {
            let refused = check(kind, condition).unwrap_err();
            assert_eq!(Exit::of(&refused), Exit::Usage, "{condition}");
            assert!(refused.to_string().starts_with(expected), "{refused}");
        }
        let listed = check(Kind::Token, "bogus=1").unwrap_err().to_string();
        assert!(listed.contains("expires_at, ") && listed.contains(", uses_left"), "{listed}");
        for (kind, condition) in [
            (Kind::Node, "state=converged"),
            (Kind::Node, "notes=held"),
            (Kind::Node, "labels.tier=gold"),
            (Kind::Node, "labels.a.b/tier=gold"),
            (Kind::Node, "hold.reason=x"),
            (Kind::Node, "last_error=x"),
            (Kind::Node, "of_a_newer_one=2"),
            (Kind::Node, "deleted"),
            (Kind::Cluster, "node_states.converged=3"),
        ] {
            assert!(check(kind, condition).is_ok(), "{condition}");
        }
    }

    #[test]
    fn an_event_has_the_time_at_which_it_was_and_not_that_at_which_it_is_read() {
        let now: Timestamp = "2026-11-25T20:04:05Z".parse().unwrap();
        for (at, expected) in [
            (json!("2026-11-25T09:41:00+00:00"), Some("09:41:00")),
            (json!("2026-11-24T23:59:59+00:00"), Some("2026-11-24 23:59:59")),
            (json!(null), None),
        ] {
            let event = Event { class: "object".to_owned(), data: json!({"at": at}) };
            assert_eq!(time(&event, now).as_deref(), expected);
        }
        let status =
            Event { class: "status".to_owned(), data: json!({"kind": "node", "name": "n3", "state": "paused"}) };
        assert_eq!(time(&status, now), None, "the moment at which it is printed stood there");
    }

    #[test]
    fn an_event_is_one_line() {
        for (class, data, expected) in [
            (
                "object",
                json!({"kind": "nodegroup", "name": "web", "cluster": "prod", "action": "updated", "revision": 7}),
                "nodegroup/prod/web updated at revision 7",
            ),
            (
                "status",
                json!({"kind": "node", "name": "n1", "cluster": "prod", "state": "failed", "state_reason": "task a failed", "connection": "connected"}),
                "node/n1 failed (task a failed), connected",
            ),
        ] {
            assert_eq!(line(&Event { class: class.to_owned(), data }), expected);
        }
    }
}
