//! `stemma events` prints changes as they happen. `stemma wait` waits until objects meet a condition.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::status::State;
use stemma_wire::endpoint::{Endpoint, escape};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::{ApiClient, ApiRefusal, ServerEvent, StreamItem};
use crate::args::{EventArgs, EventClass, FilterArgs, KindArg, Output, SelectionArgs, WaitArgs, WaitCondition};
use crate::command::batch::select_names;
use crate::command::read::{self, read_objects};
use crate::exit::Exit;
use crate::output::{cell_text, printable};

/// Time that `stemma wait` lets pass after an event, or after [`MAX_POLL_INTERVAL`] without one, before it reads the
/// objects again. Further events that follow closely then need no read of their own.
const SETTLE_DELAY: Duration = Duration::from_millis(200);
/// Maximum wait for an event before the next poll, which reads all objects that do not meet the condition yet.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Prints events until Ctrl-C, which ends the command with status 0.
///
/// # Errors
/// If the events can't be read.
pub(crate) async fn events(api: &mut ApiClient, args: &EventArgs, output: Output) -> Result<()> {
    let mut events = api.events(events_path(args), args.from);
    // A stream ends only with an error.
    let event_loop = events.follow(|item| match item {
        StreamItem::Connected => Ok(()),
        StreamItem::Event(event) => print_event(&event, output),
    });
    tokio::select! {
        signal_result = tokio::signal::ctrl_c() => Ok(signal_result?),
        Err(error) = event_loop => Err(error),
    }
}

/// Returns the API path of the event stream, with the filter as its query.
fn events_path(args: &EventArgs) -> String {
    let class = match args.class {
        EventClass::Object => Some("object"),
        EventClass::Status => Some("status"),
        EventClass::All => None,
    };
    let kinds = args.kind.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(",");
    let parameters = [
        ("class", class.map(str::to_owned)),
        ("kind", Some(kinds).filter(|kinds| !kinds.is_empty())),
        ("selector", args.selector.clone()),
    ];
    let terms: Vec<String> =
        parameters.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(&value?)))).collect();
    format!("{}?{}", Endpoint::WatchEvents.path(&[]), terms.join("&"))
}

/// Prints an event in the requested format.
fn print_event(event: &ServerEvent, output: Output) -> Result<()> {
    let as_json = || {
        let mut value = json!({"event": event.class});
        if let (Some(map), Some(data)) = (value.as_object_mut(), event.data.as_object()) {
            map.extend(data.clone());
        }
        value
    };
    match output {
        Output::Json => outln!("{}", as_json()),
        Output::Yaml | Output::Manifest => {
            outln!("---");
            read::print_value(&as_json(), Output::Yaml)?;
        }
        Output::Name => outln!("{}", object_text(&event.data)),
        Output::Table | Output::Wide => match event_time(event, Timestamp::now()) {
            Some(time) => outln!("{time} {}", event_line(event)),
            None => outln!("{}", event_line(event)),
        },
    }
    Ok(())
}

/// Returns the UTC time of an event, with the date if the event is not of today. Returns `None` for an event without a
/// time, such as a status event, which is not stored. The function does not return the time of the client instead,
/// because users would mistake it for the time of the event.
fn event_time(event: &ServerEvent, now: Timestamp) -> Option<String> {
    let at: Timestamp = event.data.get("at")?.as_str()?.parse().ok()?;
    let is_today = at.strftime("%Y-%m-%d").to_string() == now.strftime("%Y-%m-%d").to_string();
    Some(at.strftime(if is_today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" }).to_string())
}

/// Returns `KIND/NAME` of the object that an event is about. The name of a node group contains its cluster.
fn object_text(data: &Value) -> String {
    let text = |field: &str| cell_text(data.get(field));
    match data.get("cluster").and_then(Value::as_str).filter(|_| text("kind") == "nodegroup") {
        Some(cluster) => format!("{}/{}/{}", text("kind"), printable(cluster), text("name")),
        None => format!("{}/{}", text("kind"), text("name")),
    }
}

/// Returns the line for people that describes an event: an action on an object, or the state of a node.
fn event_line(event: &ServerEvent) -> String {
    let text = |field: &str| cell_text(event.data.get(field));
    let object = object_text(&event.data);
    if event.class == "status" {
        return format!("{object} {} ({}), {}", text("state"), text("state_reason"), text("connection"));
    }
    format!("{object} {} at revision {}", text("action"), text("revision"))
}

/// Returns the names of the objects to wait for: the given names, or the objects that a selection finds now.
///
/// # Errors
/// As [`select_names`], if a selection is given. With status 3 if the selection finds no object.
pub(crate) async fn selected_names(
    api: &mut ApiClient,
    kind: KindArg,
    names: Vec<String>,
    selection: &SelectionArgs,
) -> Result<Vec<String>> {
    if selection.is_empty() {
        return Ok(names);
    }
    let matches = select_names(api, kind, &names, selection).await?;
    if matches.is_empty() {
        return Err(Exit::NotFound.with_message(format!("no {} is selected", kind.name())));
    }
    Ok(matches)
}

/// Waits until all objects meet the condition. The objects are polled after each event, and after
/// [`MAX_POLL_INTERVAL`] without an event.
///
/// # Errors
/// With status 1 after the timeout, naming the objects that do not meet the condition. With 2 if no object is named, or
/// for an unknown field or state. With 3 if an object does not exist and the condition is not its deletion. Also if the
/// first poll fails, the stream of events can't be opened, or the controller refuses a later poll.
pub(crate) async fn wait(api: &mut ApiClient, kind: KindArg, names: &[String], args: &WaitArgs) -> Result<()> {
    if names.is_empty() {
        return Err(Exit::Usage.with_message(format!("which {}? name some, or select them, as with -l KEY=VALUE", kind.name())));
    }
    check_state_value(kind, &args.wanted)?;
    let (notify, mut wakeups) = mpsc::unbounded_channel();
    let mut events = api.events(Endpoint::WatchEvents.path(&[]), None).without_warnings();
    let following = events.follow(move |_| Ok(notify.send(())?));
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let unchecked = |name: &String| (name.clone(), "was not checked yet".to_owned());
    let mut unmet: Vec<(String, String)> = names.iter().map(unchecked).collect();
    let polling = async {
        let (mut names, mut is_first) = (names.to_vec(), true);
        loop {
            match poll(api, kind, &names, args, is_first).await {
                Ok(remaining) => (unmet, is_first) = (remaining, false),
                // A controller that responded to the first poll is expected to respond again.
                // A missing object has an error with a suggested name, which is no `ApiRefusal`.
                Err(error) if is_first || error.is::<ApiRefusal>() || Exit::from_error(&error) == Exit::NotFound => {
                    return Err(error);
                }
                Err(_) => {}
            }
            if unmet.is_empty() {
                return Ok(());
            }
            names = unmet.iter().map(|(name, _)| name.clone()).collect();
            // An inherited value changes without an event of the object, so the wait for an event has a limit.
            let _event = timeout(MAX_POLL_INTERVAL, wakeups.recv()).await;
            sleep(SETTLE_DELAY).await;
            while wakeups.try_recv().is_ok() {}
        }
    };
    let waiting = async {
        tokio::select! {
            result = polling => result,
            Err(error) = following => Err(error),
        }
    };
    match Box::pin(timeout_at(deadline, waiting)).await {
        Ok(result) => result,
        Err(_) => {
            let reasons: Vec<String> =
                unmet.iter().map(|(name, reason)| format!("{}/{} {reason}", kind.name(), printable(name))).collect();
            let sentence = format!("condition not met after {} s: {}", args.timeout, reasons.join(", "));
            Err(Exit::Error.with_message(sentence))
        }
    }
}

/// Fails if the condition is a state that no node can have, because the wait would never succeed. A condition for
/// objects of another kind is accepted, because other kinds have other states.
fn check_state_value(kind: KindArg, condition: &WaitCondition) -> Result<()> {
    let WaitCondition::Field { path, value } = condition else { return Ok(()) };
    let states = State::ALL.map(State::name);
    if kind != KindArg::Node || path != "state" || states.contains(&value.as_str()) {
        return Ok(());
    }
    let hint = did_you_mean(closest_match(value, states));
    Err(Exit::Usage.with_message(format!("{value:?} is not a node state{hint}: use one of {}", states.join(", "))))
}

/// Fails if objects of the kind cannot have the field of the condition, or if the condition names a member of a field
/// that is not a map in any of the received `objects`. In both cases the wait would never succeed. A field of a
/// received object is accepted too, because a newer controller may have fields that this program does not know.
fn check_field_name(kind: KindArg, condition: &WaitCondition, objects: &[&Value]) -> Result<()> {
    let WaitCondition::Field { path, .. } = condition else { return Ok(()) };
    let (field, member) = path.split_once('.').map_or((path.as_str(), None), |(field, member)| (field, Some(member)));
    let received = objects.iter().filter_map(|object| object.as_object()).flat_map(|object| object.keys().cloned());
    let known_fields: BTreeSet<String> = kind.known_fields().into_iter().chain(received).collect();
    let noun = kind.name_with_article();
    if !known_fields.contains(field) {
        let known_fields: Vec<&str> = known_fields.iter().map(String::as_str).collect();
        // If no field has a similar name, the error lists all fields.
        let hint = match closest_match(field, known_fields.iter().copied()) {
            Some(similar) => format!("{}; `-o json` shows all of them", did_you_mean(Some(similar))),
            None => format!(": it has {}", known_fields.join(", ")),
        };
        return Err(Exit::Usage.with_message(format!("--for: {noun} has no field {field:?}{hint}")));
    }
    // A field that is still unset may become a map.
    let mut values = objects.iter().filter_map(|object| object.get(field)).filter(|value| !value.is_null()).peekable();
    let is_plain_field = values.peek().is_some() && values.all(|value| !value.is_object());
    match member.filter(|_| is_plain_field) {
        Some(member) => {
            let sentence = format!("--for: {field} of {noun} is not a map, so it has no {member:?}: use {field}=VALUE");
            Err(Exit::Usage.with_message(sentence))
        }
        None => Ok(()),
    }
}

/// Reads the objects once, and prints those that meet the condition. Returns the other objects by name, each with the
/// reason. The first poll also checks that the field of the condition exists.
async fn poll(
    api: &mut ApiClient,
    kind: KindArg,
    names: &[String],
    args: &WaitArgs,
    is_first: bool,
) -> Result<Vec<(String, String)>> {
    let mut received = Vec::new();
    let skips_missing = args.wanted == WaitCondition::Deleted;
    for name in names {
        let mut list = read_objects(api, kind, std::slice::from_ref(name), &FilterArgs::default(), skips_missing).await?;
        received.push(list.pop());
    }
    if is_first {
        check_field_name(kind, &args.wanted, &received.iter().flatten().collect::<Vec<_>>())?;
    }
    let mut unmet = Vec::new();
    for (name, object) in names.iter().zip(&received) {
        match unmet_reason(&args.wanted, object.as_ref()) {
            Some(reason) => unmet.push((name.clone(), reason)),
            None => outln!("{}/{} {}", kind.name(), printable(name), args.wanted),
        }
    }
    Ok(unmet)
}

/// Returns why an object does not meet the condition, or `None` if it does. The object is `None` if it does not exist.
fn unmet_reason(condition: &WaitCondition, object: Option<&Value>) -> Option<String> {
    let WaitCondition::Field { path, value } = condition else { return object.map(|_| "is there".to_owned()) };
    // The key of a label may contain dots.
    let actual = object.and_then(|object| path.splitn(2, '.').try_fold(object, |current, part| current.get(part)));
    let Some(actual) = actual.filter(|current| !current.is_null()) else { return Some(format!("has no {path}")) };
    // A list also meets the condition if its whole text is the value.
    let actual_text = cell_text(Some(actual));
    let is_listed = || actual.as_array().is_some_and(|items| items.iter().any(|item| cell_text(Some(item)) == *value));
    (actual_text != *value && !is_listed()).then(|| format!("has {path}={actual_text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmet_reason_shows_present_value() {
        let node = json!({"state": "failed", "labels": {"example.org/tier": "gold"}, "notes": ["held", "orphaned"]});
        let without_notes = json!({"notes": []});
        for (condition, object, expected) in [
            // y06: the list was compared as a whole, so a second note hid the first.
            ("notes=held", Some(&node), None),
            ("notes=orphaned", Some(&node), None),
            ("notes=held,orphaned", Some(&node), None),
            ("notes=untold", Some(&node), Some("has notes=held,orphaned")),
            ("notes=hel", Some(&node), Some("has notes=held,orphaned")),
            // An empty list has an empty text.
            ("notes=held", Some(&without_notes), Some("has notes=")),
            ("notes=", Some(&without_notes), None),
            ("state=failed", Some(&node), None),
            ("state=converged", Some(&node), Some("has state=failed")),
            ("labels.example.org/tier=gold", Some(&node), None),
            ("labels.tier=gold", Some(&node), Some("has no labels.tier")),
            ("state=failed", None, Some("has no state")),
            ("deleted", None, None),
            ("deleted", Some(&node), Some("is there")),
        ] {
            let parsed: WaitCondition = condition.parse().unwrap();
            assert_eq!(unmet_reason(&parsed, object).as_deref(), expected, "{condition}");
        }
    }

    /// Regression test: a wait for an unknown state ran until its timeout.
    #[test]
    fn check_state_value_rejects_unknown_state() {
        let check = |kind, condition: &str| check_state_value(kind, &condition.parse().unwrap());
        let refused = check(KindArg::Node, "state=convergd").unwrap_err();
        assert_eq!(Exit::from_error(&refused), Exit::Usage);
        let error = refused.to_string();
        assert!(error.starts_with("\"convergd\" is not a node state (did you mean \"converged\"?): use one of "), "{error}");
        for (kind, condition) in [
            (KindArg::Node, "state=converged"),
            (KindArg::Allocation, "state=active"),
            (KindArg::Node, "labels.state=x"),
            (KindArg::Node, "deleted"),
        ] {
            assert!(check(kind, condition).is_ok(), "{condition}");
        }
    }

    /// Regression test: a wait for an unknown field ran until its timeout. The field `of_a_newer_one` is not known to
    /// this program, but the received object has it.
    #[test]
    fn check_field_name_rejects_unknown_field() {
        let node = json!({"state": "failed", "labels": {"a.b/tier": "gold"}, "hold": null, "of_a_newer_one": 1});
        let check = |kind, condition: &str| check_field_name(kind, &condition.parse().unwrap(), &[&node]);
        for (kind, condition, expected) in [
            (KindArg::Node, "stat=converged", "--for: a node has no field \"stat\" (did you mean \"state\"?); "),
            (KindArg::Node, "note=held", "--for: a node has no field \"note\" (did you mean \"notes\"?); "),
            (KindArg::Node, "label.tier=gold", "--for: a node has no field \"label\" (did you mean \"labels\"?); "),
            (KindArg::Token, "bogus=1", "--for: a join token has no field \"bogus\": it has "),
            (KindArg::Node, "state.name=failed", "--for: state of a node is not a map, so it has no \"name\": use state=VALUE"),
        ] {
            let refused = check(kind, condition).unwrap_err();
            assert_eq!(Exit::from_error(&refused), Exit::Usage, "{condition}");
            assert!(refused.to_string().starts_with(expected), "{refused}");
        }
        let listed = check(KindArg::Token, "bogus=1").unwrap_err().to_string();
        assert!(listed.contains("expires_at, ") && listed.contains(", uses_left"), "{listed}");
        for (kind, condition) in [
            (KindArg::Node, "state=converged"),
            (KindArg::Node, "notes=held"),
            (KindArg::Node, "labels.tier=gold"),
            (KindArg::Node, "labels.a.b/tier=gold"),
            (KindArg::Node, "hold.reason=x"),
            (KindArg::Node, "last_error=x"),
            (KindArg::Node, "of_a_newer_one=2"),
            (KindArg::Node, "deleted"),
            (KindArg::Cluster, "node_states.converged=3"),
        ] {
            assert!(check(kind, condition).is_ok(), "{condition}");
        }
    }

    #[test]
    fn event_time_is_none_when_event_has_none() {
        let now: Timestamp = "2026-11-25T20:04:05Z".parse().unwrap();
        for (at, expected) in [
            (json!("2026-11-25T09:41:00+00:00"), Some("09:41:00")),
            (json!("2026-11-24T23:59:59+00:00"), Some("2026-11-24 23:59:59")),
            (json!(null), None),
        ] {
            let event = ServerEvent { class: "object".to_owned(), data: json!({"at": at}) };
            assert_eq!(event_time(&event, now).as_deref(), expected);
        }
        let status = ServerEvent { class: "status".to_owned(), data: json!({"kind": "node", "name": "n3", "state": "paused"}) };
        assert_eq!(event_time(&status, now), None, "the time of the client is not shown");
    }

    #[test]
    fn event_line_shows_action_or_state() {
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
            assert_eq!(event_line(&ServerEvent { class: class.to_owned(), data }), expected);
        }
    }
}
