//! `get --watch`: the list, then what changes of it, each with the time in UTC at which that was seen.
//!
//! An event says that something changed; the list is then asked for again and compared, object by object, since what an object
//! inherits changes without it. A controller that is away for a while is said once and asked again.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};
use stemma_wire::endpoint::Endpoint;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::api::Api;
use crate::args::{Filter, Kind, Output};
use crate::command::question::{self, name, objects};
use crate::output::printable;

/// How long to wait for more of what changes together.
const TOGETHER: Duration = Duration::from_secs(1);
/// The list is asked for after so long at the latest: not everything that it shows has events.
const AT_LEAST: Duration = Duration::from_secs(5);

/// What is watched, and how it is shown.
pub(crate) struct Watched<'a> {
    pub(crate) kind: Kind,
    pub(crate) names: &'a [String],
    pub(crate) filter: &'a Filter,
    pub(crate) output: Output,
}

/// Prints the list, and then each change until Ctrl-C, which ends it well.
///
/// # Errors
/// As `get`, for the first list; later only when standard output is gone.
pub(crate) async fn watch(api: &mut Api, watched: Watched<'_>) -> Result<()> {
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        ended = follow(api, &watched) => ended,
    }
}

async fn follow(api: &mut Api, watched: &Watched<'_>) -> Result<()> {
    let (notify, mut noticed) = unbounded_channel();
    let class = if watched.kind == Kind::Node { "" } else { "?class=object" };
    let mut events = api.events(format!("{}{class}", Endpoint::WatchEvents.path(&[])), None).quietly();
    // Where there are none the list is asked for all the same.
    let following = async {
        drop(events.follow(move |_| Ok(notify.send(())?)).await);
        pending().await
    };
    tokio::select! {
        ended = lists(api, watched, &mut noticed) => ended,
        ended = following => ended,
    }
}

async fn lists(api: &mut Api, watched: &Watched<'_>, noticed: &mut UnboundedReceiver<()>) -> Result<()> {
    let Watched { kind, names, filter, output } = *watched;
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    let mut is_first = true;
    let mut is_away = false;
    loop {
        match objects(api, kind, names, filter).await {
            Ok(objects) => {
                is_away = false;
                let now: BTreeMap<_, _> = objects.into_iter().map(|object| (name(kind, &object), object)).collect();
                if is_first && matches!(output, Output::Table | Output::Wide) {
                    let all: Vec<Value> = now.values().cloned().collect();
                    say!("{}", question::rows(kind, &all, &filter.fields, output));
                } else {
                    changes(&known, &now).into_iter().try_for_each(|change| say_change(watched, &change))?;
                }
                (known, is_first) = (now, false);
            }
            Err(error) if is_first => return Err(error),
            Err(error) => {
                if !is_away {
                    tell!("warning: {error:#}");
                }
                is_away = true;
            }
        }
        if matches!(timeout(AT_LEAST, noticed.recv()).await, Ok(None)) {
            sleep(TOGETHER).await;
        }
        sleep(TOGETHER).await;
        while noticed.try_recv().is_ok() {}
    }
}

/// One object that came, changed or went.
#[derive(Debug, PartialEq)]
struct Change<'a> {
    what: &'static str,
    name: &'a str,
    object: &'a Value,
}

fn changes<'a>(before: &'a BTreeMap<String, Value>, now: &'a BTreeMap<String, Value>) -> Vec<Change<'a>> {
    let gone = before.iter().filter(|(name, _)| !now.contains_key(*name));
    let gone = gone.map(|(name, object)| Change { what: "deleted", name, object });
    let came = now.iter().filter_map(|(name, object)| match before.get(name) {
        Some(same) if is_same(same, object) => None,
        Some(_) => Some(Change { what: "changed", name, object }),
        None => Some(Change { what: "added", name, object }),
    });
    gone.chain(came).collect()
}

/// Whether nothing changed but when it was heard of.
fn is_same(before: &Value, now: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        object.as_object_mut().map(|fields| fields.remove("last_seen"));
        object
    };
    before == now || without(before) == without(now)
}

fn say_change(watched: &Watched<'_>, change: &Change<'_>) -> Result<()> {
    let (kind, now) = (watched.kind, Timestamp::now());
    let told = || {
        json!({"at": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "change": change.what,
        "object": question::shown(kind, change.object, &watched.filter.fields)})
    };
    match watched.output {
        Output::Name => say!("{}/{}", kind.name(), printable(change.name)),
        Output::Json => say!("{}", told()),
        Output::Yaml | Output::Manifest => {
            say!("---");
            question::print(&told(), Output::Yaml)?;
        }
        Output::Table | Output::Wide => {
            let row = question::rows(kind, std::slice::from_ref(change.object), &watched.filter.fields, watched.output);
            let row = row.lines().skip(1).collect::<Vec<_>>().join("\n");
            say!("{} {:<8} {row}", now.strftime("%H:%M:%S"), change.what);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_changed_or_went_is_told_once() {
        let list = |all: &[(&str, u64)]| -> BTreeMap<String, Value> {
            all.iter().map(|(name, state)| ((*name).to_owned(), json!({"state": state}))).collect()
        };
        let (before, now) = (list(&[("a", 1), ("b", 1), ("c", 1)]), list(&[("a", 1), ("b", 2), ("d", 1)]));
        let found: Vec<_> = changes(&before, &now).iter().map(|change| (change.what, change.name)).collect();
        assert_eq!(found, [("deleted", "c"), ("changed", "b"), ("added", "d")]);
        assert_eq!(changes(&now, &now), []);
    }
}
