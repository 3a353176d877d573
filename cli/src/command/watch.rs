//! `stemma get --watch`: prints the list, then its changes, each with the UTC time at which the change was noticed.
//!
//! An event only triggers a new read of the list, which is then compared with the previous list, object by object. The
//! list is also read at intervals, because inherited values change without an event of the object. If the controller is
//! unreachable, one warning is printed and the reads are retried.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};
use stemma_wire::endpoint::Endpoint;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::api::ApiClient;
use crate::args::{FilterArgs, KindArg, Output};
use crate::command::read::{self, object_name, read_objects};
use crate::output::printable;

/// Time to wait after an event before the list is read, so that one read covers changes that belong together.
const SETTLE_DELAY: Duration = Duration::from_secs(1);
/// Maximum time to wait for an event before the list is read again. Some changes of the list have no event.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The objects to watch, and the output format.
pub(crate) struct WatchOptions<'a> {
    pub(crate) kind: KindArg,
    pub(crate) names: &'a [String],
    pub(crate) filter: &'a FilterArgs,
    pub(crate) output: Output,
}

/// Prints the list, and then each change until Ctrl-C, which ends the command with status 0.
///
/// # Errors
/// If the first list can't be read. A later read that fails is only reported.
pub(crate) async fn watch(api: &mut ApiClient, options: WatchOptions<'_>) -> Result<()> {
    tokio::select! {
        signal_result = tokio::signal::ctrl_c() => Ok(signal_result?),
        result = follow_events(api, &options) => result,
    }
}

/// Prints the list and its changes. Each event of the controller is a wakeup that triggers a new read of the list.
async fn follow_events(api: &mut ApiClient, options: &WatchOptions<'_>) -> Result<()> {
    let (notify, mut wakeups) = unbounded_channel();
    // The state of a node changes with events of class `status`. For other kinds, only changes of objects matter.
    let class = if options.kind == KindArg::Node { "" } else { "?class=object" };
    let mut events = api.events(format!("{}{class}", Endpoint::WatchEvents.path(&[])), None).without_warnings();
    // If the events can't be followed, the list is still read at intervals. So this future never ends.
    let following = async {
        drop(events.follow(move |_| Ok(notify.send(())?)).await);
        pending().await
    };
    tokio::select! {
        result = print_lists(api, options, &mut wakeups) => result,
        result = following => result,
    }
}

/// Prints the list, in formats other than a table as added objects, and after each further read only the differences
/// from the previous list. The list is read after each wakeup, and after [`MAX_POLL_INTERVAL`] without one. A read
/// after the first that fails is retried, and only the first of several failures in a row is reported.
async fn print_lists(api: &mut ApiClient, options: &WatchOptions<'_>, wakeups: &mut UnboundedReceiver<()>) -> Result<()> {
    let WatchOptions { kind, names, filter, output } = *options;
    let mut previous: BTreeMap<String, Value> = BTreeMap::new();
    let mut is_first = true;
    let mut is_reported = false;
    loop {
        match read_objects(api, kind, names, filter, !is_first).await {
            Ok(objects) => {
                is_reported = false;
                let current: BTreeMap<_, _> = objects.into_iter().map(|object| (object_name(kind, &object), object)).collect();
                if is_first && matches!(output, Output::Table | Output::Wide) {
                    let current_objects: Vec<Value> = current.values().cloned().collect();
                    outln!("{}", read::object_table(kind, &current_objects, &filter.fields, output));
                } else {
                    diff_lists(&previous, &current).into_iter().try_for_each(|change| print_change(options, &change))?;
                }
                (previous, is_first) = (current, false);
            }
            Err(error) if is_first => return Err(error),
            Err(error) => {
                if !is_reported {
                    errln!("warning: {error:#}");
                }
                is_reported = true;
            }
        }
        // If no wakeup can follow, `recv` returns at once. The additional sleep then limits the rate of reads.
        if matches!(timeout(MAX_POLL_INTERVAL, wakeups.recv()).await, Ok(None)) {
            sleep(SETTLE_DELAY).await;
        }
        sleep(SETTLE_DELAY).await;
        while wakeups.try_recv().is_ok() {}
    }
}

/// An object that was added, changed or deleted between two reads of the list.
#[derive(Debug, PartialEq)]
struct ObjectChange<'a> {
    action: &'static str,
    name: &'a str,
    object: &'a Value,
}

/// Returns the objects that were added, changed or deleted between two reads of the list. Both maps have the names of
/// objects as keys.
fn diff_lists<'a>(old_objects: &'a BTreeMap<String, Value>, new_objects: &'a BTreeMap<String, Value>) -> Vec<ObjectChange<'a>> {
    let deleted = old_objects.iter().filter(|(name, _)| !new_objects.contains_key(*name));
    let deleted = deleted.map(|(name, object)| ObjectChange { action: "deleted", name, object });
    let changed = new_objects.iter().filter_map(|(name, object)| match old_objects.get(name) {
        Some(previous) if is_unchanged(previous, object) => None,
        Some(_) => Some(ObjectChange { action: "changed", name, object }),
        None => Some(ObjectChange { action: "added", name, object }),
    });
    deleted.chain(changed).collect()
}

/// Returns whether two states of an object are equal except for `last_seen`, which changes at each contact with the
/// host.
fn is_unchanged(old_object: &Value, new_object: &Value) -> bool {
    let without_last_seen = |object: &Value| {
        let mut object = object.clone();
        object.as_object_mut().map(|fields| fields.remove("last_seen"));
        object
    };
    old_object == new_object || without_last_seen(old_object) == without_last_seen(new_object)
}

/// Prints a changed object in the requested format, with the current time.
fn print_change(options: &WatchOptions<'_>, change: &ObjectChange<'_>) -> Result<()> {
    let (kind, now) = (options.kind, Timestamp::now());
    let as_json = || {
        json!({"at": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "change": change.action,
        "object": read::visible_fields(kind, change.object, &options.filter.fields)})
    };
    match options.output {
        Output::Name => outln!("{}/{}", kind.name(), printable(change.name)),
        Output::Json => outln!("{}", as_json()),
        Output::Yaml | Output::Manifest => {
            outln!("---");
            read::print_value(&as_json(), Output::Yaml)?;
        }
        Output::Table | Output::Wide => {
            let row = read::object_table(kind, std::slice::from_ref(change.object), &options.filter.fields, options.output);
            let row = row.lines().skip(1).collect::<Vec<_>>().join("\n");
            outln!("{} {:<8} {row}", now.strftime("%H:%M:%S"), change.action);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_lists_reports_each_change_once() {
        let list = |entries: &[(&str, u64)]| -> BTreeMap<String, Value> {
            entries.iter().map(|(name, state)| ((*name).to_owned(), json!({"state": state}))).collect()
        };
        let (old_objects, new_objects) = (list(&[("a", 1), ("b", 1), ("c", 1)]), list(&[("a", 1), ("b", 2), ("d", 1)]));
        let changes: Vec<_> = diff_lists(&old_objects, &new_objects).iter().map(|change| (change.action, change.name)).collect();
        assert_eq!(changes, [("deleted", "c"), ("changed", "b"), ("added", "d")]);
        assert_eq!(diff_lists(&new_objects, &new_objects), []);
    }
}
