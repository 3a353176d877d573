//! SIGKILL at random points: no acknowledged write is lost, none is made twice or in half, no file is torn, and nobody has to mend
//! anything. The points are random; the seed is printed, and `STEMMA_SEED` repeats it.

mod stored;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use stemma_tests::chance::Chance;
use stemma_tests::fleet::{Agent, Bound, Fleet};
use stemma_tests::operator::{Operator, Write};
use stemma_tests::program::{PATIENCE, eventually, file_contains};
use stemma_tests::site::{SITE, whole};
use uuid::Uuid;

use stored::Stored;

/// How often the agent is killed.
const AGENT_KILLS: u64 = 50;
/// How often between two looks at what it has come to.
const UNTIL_CONVERGED: u64 = 10;
/// Somewhere in this time after a write began.
const WITHIN_MS: usize = 80;

/// How many write at once.
const WRITERS: usize = 16;
/// The controller is killed at least so often, and on until so many writes were committed whose answer never came.
const CONTROLLER_KILLS: usize = 20;
const UNANSWERED: usize = 20;
/// And so many objects deleted.
const DELETED: usize = 10;
/// No run needs so many.
const MOST_KILLS: usize = 300;
/// After so many answers at most, all writers' together.
const WITHIN_ANSWERS: usize = 32;

/// What one writer came to: the writes that were answered, and the one that was under way when the controller ended.
struct Written {
    answered: Vec<(Write, u16)>,
    unanswered: Option<Write>,
}

/// A writer's next write: of one of many verbs, on objects of its own and on one that all of them write. Of the nodes that it has made it
/// deletes one now and then.
fn next(chance: &mut Chance, writer: usize, number: u64, own: &mut Vec<String>) -> Write {
    let key = Uuid::from_u64_pair(number, chance.bits());
    let node = format!("k{writer}-{number}");
    let group = "/v1/clusters/prod/nodegroups/frontends";
    let gone = (chance.below(5) == 0).then(|| own.pop()).flatten();
    if let Some(path) = gone {
        return Write { method: "DELETE", path, body: Value::Null, key };
    }
    let (method, path, body) = match chance.below(8) {
        0 => ("POST", "/v1/nodes".to_owned(), json!({"name": node})),
        1 => ("PATCH", format!("{group}/labels"), json!({format!("writer-{writer}"): number.to_string()})),
        2 => ("PATCH", group.to_owned(), json!({"parameters": {format!("writer-{writer}"): number}})),
        3 => (
            "POST",
            "/v1/apply".to_owned(),
            json!({"objects": [{"kind": "Node", "name": node}, {"kind": "Node", "name": format!("{node}-b")}]}),
        ),
        4 => ("POST", "/v1/join-tokens".to_owned(), json!({})),
        5 => ("PUT", format!("/v1/nodes/own-{writer}/labels"), json!({"labels": {"number": number.to_string()}})),
        6 => ("PUT", format!("/v1/nodes/own-{writer}/traits"), json!({"traits": [format!("CUSTOM_N{number}")]})),
        _ => ("POST", format!("/v1/nodes/own-{writer}/labels/tombstones"), json!({"keys": [format!("k{number}")]})),
    };
    Write { method, path, body, key }
}

/// Writes until there is no answer.
fn write_on(
    mut operator: Operator,
    mut chance: Chance,
    (writer, own): (usize, &mut Vec<String>),
    numbers: &AtomicU64,
    told: &Sender<()>,
) -> Result<Written> {
    let mut answered = Vec::new();
    loop {
        let write = next(&mut chance, writer, numbers.fetch_add(1, Ordering::Relaxed), own);
        match operator.write(&write) {
            Ok((status @ 200..300, _)) => {
                let name = write.body["name"].as_str().filter(|_| write.path == "/v1/nodes");
                own.extend(name.map(|name| format!("/v1/nodes/{name}")));
                answered.push((write, status));
            }
            Ok((status, body)) => bail!("{write:?}: {status} {body}"),
            Err(_) => return Ok(Written { answered, unanswered: Some(write) }),
        }
        // Nobody counts any more once the controller was told to end.
        let _counted = told.send(());
    }
}

/// All write, the controller is killed after so many answers, and what each came to is given.
fn kill_under_writers(
    fleet: &mut Fleet,
    chance: &mut Chance,
    numbers: &AtomicU64,
    own: &mut [Vec<String>; WRITERS],
) -> Result<Vec<Written>> {
    let (data, bound): (_, Bound) = (fleet.data(), fleet.bound().clone());
    let operators = (0..WRITERS).map(|_| Operator::of(&data, &bound)).collect::<Result<Vec<_>>>()?;
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let writers: Vec<_> = own
            .iter_mut()
            .enumerate()
            .zip(operators)
            .map(|(writer, operator)| {
                let (chance, tell) = (Chance::new(chance.bits()), tell.clone());
                scope.spawn(move || write_on(operator, chance, writer, numbers, &tell))
            })
            .collect();
        let answers = 1 + chance.below(WITHIN_ANSWERS);
        let waited = (0..answers).try_for_each(|_| told.recv_timeout(PATIENCE));
        fleet.kill_controller()?;
        let written = writers.into_iter().map(|writer| writer.join().expect("a writer does not panic")).collect();
        waited.context("the writers are answered")?;
        written
    })
}

/// What was answered is there, as it was answered; how many are there that were not answered.
fn committed(stored: &Stored, written: &[Written]) -> Result<usize> {
    stored.check()?;
    for (write, status) in written.iter().flat_map(|writer| &writer.answered) {
        let (record, _) =
            stored.request("admin", write.key).with_context(|| format!("answered and lost: {write:?}"))?;
        ensure!(
            record.answer.status == *status,
            "{write:?} was answered {status}, the record says {}",
            record.answer.status
        );
    }
    let unanswered = written.iter().filter_map(|writer| writer.unanswered.as_ref());
    Ok(unanswered.filter(|write| stored.request("admin", write.key).is_some()).count())
}

/// What was not answered is sent again under its key: it is made once, by the first commit where that had come about. Gives how many
/// objects were deleted, all of which are gone.
fn send_again(fleet: &Fleet, stored: &Stored, written: &[Written]) -> Result<usize> {
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    for write in written.iter().filter_map(|writer| writer.unanswered.as_ref()) {
        let (status, body) = operator.write(write)?;
        ensure!((200..300).contains(&status), "{write:?} sent again: {status} {body}");
        let (_, record) = operator.get(&format!("/v1/requests/{}", write.key))?;
        if let Some((_, revision)) = stored.request("admin", write.key) {
            ensure!(record["revision"] == *revision, "{write:?} was made at {revision}, and is now {record}");
        }
    }
    let all = written.iter().flat_map(|one| one.answered.iter().map(|(write, _)| write).chain(&one.unanswered));
    let deleted: Vec<_> = all.filter(|write| write.method == "DELETE").collect();
    for write in &deleted {
        let (status, body) = operator.get(&write.path)?;
        ensure!(status == 404, "{write:?}, and it is there: {status} {body}");
    }
    Ok(deleted.len())
}

#[test]
#[allow(clippy::print_stdout, reason = "how often the moment in question was met")]
fn killing_the_controller_under_writers_loses_nothing_halves_nothing_and_doubles_nothing() -> Result<()> {
    let mut chance = Chance::seeded()?;
    let mut fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    for (writer, key) in (0..WRITERS).zip(1..) {
        let body = json!({"name": format!("own-{writer}")});
        operator.write(&Write { method: "POST", path: "/v1/nodes".into(), body, key: Uuid::from_u128(key) })?;
    }
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;
    let (mut unanswered, mut answered, mut deleted, mut kills) = (0, 0, 0, 0);
    let (numbers, mut own) = (AtomicU64::new(1), std::array::from_fn(|_| Vec::new()));
    while kills < CONTROLLER_KILLS || unanswered < UNANSWERED || deleted < DELETED {
        kills += 1;
        let written = kill_under_writers(&mut fleet, &mut chance, &numbers, &mut own)?;
        let stored = Stored::copied(&fleet.data())?;
        answered += written.iter().map(|writer| writer.answered.len()).sum::<usize>();
        unanswered += committed(&stored, &written).with_context(|| format!("kill {kills}"))?;
        fleet.start_controller()?;
        deleted += send_again(&fleet, &stored, &written).with_context(|| format!("kill {kills}"))?;
        whole_if_there(&web)?;
        ensure!(kills < MOST_KILLS, "of {kills} kills {unanswered} fell between commit and answer, {deleted} deleted");
    }
    println!("{kills} kills, {answered} writes answered, {unanswered} committed and not answered, {deleted} deleted");
    converges(&fleet, &web, "last")?;
    fleet.kill_controller()?;
    Stored::copied(&fleet.data())?.check()
}

#[test]
fn killing_the_agent_loses_and_tears_nothing() -> Result<()> {
    let mut chance = Chance::seeded()?;
    let fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;
    for number in 1..=AGENT_KILLS {
        // One that only the label files know, and one that the template and the command read.
        let (change, tier) = (format!("number={number}"), format!("tier=t{number}"));
        let write = fleet.begin(&["label", "nodegroup", "prod/frontends", &change, &tier])?;
        std::thread::sleep(Duration::from_millis(chance.below(WITHIN_MS) as u64));
        web.kill()?;
        web.start()?;
        ensure!(write.ended()?, "the controller runs, and takes the write");
        ensure!(number_of(&fleet)? == number, "kill {number}: acknowledged and lost");
        whole_if_there(&web)?;
        if number % UNTIL_CONVERGED == 0 {
            converges(&fleet, &web, &format!("after-{number}")).with_context(|| format!("kill {number}"))?;
        }
    }
    Ok(())
}

/// An edit arrives in the label files, in the file of a template that reads it, and in the command that is run for it.
fn converges(fleet: &Fleet, web: &Agent, tier: &str) -> Result<()> {
    fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier={tier}")])?;
    eventually("the last edit on the host", || {
        file_contains(&web.path("run/stemma/labels.json"), &format!("\"tier\":\"{tier}\""))
            .with_context(|| web.log())?;
        file_contains(&web.path("etc/nginx/conf.d/site.conf"), &format!("tier {tier}")).with_context(|| web.log())
    })?;
    eventually("the command that reads the label, run for its last value", || {
        let notes = std::fs::read_to_string(web.path("var/log/site.log"))?;
        ensure!(notes.ends_with(&format!("serves {tier}\n")), "{notes}\n{}", web.log());
        Ok(())
    })
}

fn number_of(fleet: &Fleet) -> Result<u64> {
    let group =
        eventually("the controller answers", || fleet.stemma(&["get", "nodegroup", "prod/frontends", "-o", "json"]))?;
    let group: Value = serde_json::from_str(&group)?;
    Ok(group["labels"]["number"].as_str().map_or(Ok(0), str::parse)?)
}

/// The host's files as a reader finds them: whole, or not there yet.
fn whole_if_there(web: &Agent) -> Result<()> {
    if web.path("run/stemma/labels.json").exists() { whole(web) } else { Ok(()) }
}
