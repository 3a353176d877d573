//! SIGKILL at random points, and where a write is committed and not answered: no acknowledged write is lost, none is made twice or in
//! half, no file is torn, and nobody has to mend anything. The seed is printed, and `STEMMA_SEED` repeats it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use stemma_tests::chance::{Chance, is_long};
use stemma_tests::fleet::{Agent, Bound, Fleet};
use stemma_tests::operator::{Operator, Write};
use stemma_tests::program::{PATIENCE, eventually, file_contains};
use stemma_tests::site::{SITE, whole};
use uuid::Uuid;

use crate::stored::Stored;
use crate::writes::{self, NAMED_BY_ANSWER, RULES, writes_on};

/// How often the agent is killed.
const AGENT_KILLS: u64 = 50;
/// How often between two looks at what it has come to.
const UNTIL_CONVERGED: u64 = 10;
/// Somewhere in this time after a write began.
const WITHIN_MS: usize = 80;

/// How many write at once.
const WRITERS: usize = 8;
/// The controller is killed until so many kills fell between the commit of a write and its answer.
const UNANSWERED_KILLS: u64 = 20;
/// And so many objects were deleted.
const DELETED: usize = 10;
/// How often the controller is killed at most, for each kill that is to fall there.
const KILLS_FOR_EACH: u64 = 3;
/// How often a controller is held, at most, until it stands there.
const HOLDS: usize = 8;
/// It is held after so many answers at most, all writers' together.
const WITHIN_ANSWERS: usize = 8;
/// Of so many writes one is of what all writers write.
const SHARED: usize = 4;

/// How much more often in a long run.
fn times() -> u64 {
    if is_long() { 5 } else { 1 }
}

/// One who writes all that can be written, again and again, each time on new objects of its own; and now and then what all write. Rules are
/// written by one alone.
struct Writer {
    number: usize,
    rounds: usize,
    ahead: VecDeque<(&'static str, String, Value)>,
    /// The requests that made what their answers alone name.
    unlocated: Vec<Uuid>,
}

impl Writer {
    fn next(&mut self, chance: &mut Chance) -> Write {
        let key = Uuid::from_u64_pair(chance.bits(), chance.bits());
        if chance.below(SHARED) == 0 {
            let change = json!({format!("writer-{}", self.number): key.to_string()});
            let group = "/v1/clusters/prod/nodegroups/frontends";
            let (path, body) = match chance.below(2) {
                0 => (format!("{group}/labels"), change),
                _ => (group.to_owned(), json!({"parameters": change})),
            };
            return Write { method: "PATCH", path, body, key };
        }
        if self.ahead.is_empty() {
            self.rounds += 1;
            let writes_rules = self.number == writer_of_rules();
            self.ahead = writes_on(&format!("w{}-{}", self.number, self.rounds), writes_rules).into();
        }
        let (method, path, body) = self.ahead.pop_front().expect("there are writes");
        Write { method, path, body, key }
    }

    /// Keeps a write that makes what its answer alone names. One that was not answered is sent again before the next writes.
    fn note_sent(&mut self, write: &Write) -> Result<()> {
        if NAMED_BY_ANSWER.contains(&writes::endpoint(write.method, &write.path)?) {
            self.unlocated.push(write.key);
        }
        Ok(())
    }

    /// Deletes next what such a write made. A controller that is gone is asked again when it is back.
    fn take_back(&mut self, operator: &mut Operator) {
        while let Some(key) = self.unlocated.last()
            && let Ok(path) = writes::located(operator, *key)
        {
            self.unlocated.pop();
            self.ahead.push_front(("DELETE", path, Value::Null));
        }
    }
}

/// The number of the writer who writes rules: the last to begin before them. All rules are deleted at once, so that they have to be its own.
fn writer_of_rules() -> usize {
    let all = writes_on("", true);
    let first = all.iter().position(|(_, path, _)| path.starts_with(RULES)).expect("rules are written");
    first * WRITERS / all.len()
}

/// What one writer came to: the writes that were answered, and the one that was under way when the controller ended.
struct Written {
    answered: Vec<(Write, u16)>,
    unanswered: Option<Write>,
}

/// What a writer tells of the write with this key.
enum Told {
    Sent(Uuid),
    Answered(Uuid),
}

/// Writes until there is no answer.
fn write_on(mut operator: Operator, mut chance: Chance, writer: &mut Writer, tell: &Sender<Told>) -> Result<Written> {
    let mut answered = Vec::new();
    loop {
        writer.take_back(&mut operator);
        let write = writer.next(&mut chance);
        // Nobody listens any more once the controller was killed.
        let _unheard = tell.send(Told::Sent(write.key));
        writer.note_sent(&write)?;
        match operator.write(&write) {
            Ok((status @ 200..300, _)) => {
                let _unheard = tell.send(Told::Answered(write.key));
                answered.push((write, status));
            }
            Ok((status, body)) => bail!("{write:?}: {status} {body}"),
            Err(_) => return Ok(Written { answered, unanswered: Some(write) }),
        }
    }
}

/// Writers who are spread over all that there is to write, so that each kill meets other writes.
fn begun(fleet: &Fleet, chance: &mut Chance) -> Result<Vec<Writer>> {
    let (data, bound) = (fleet.data(), fleet.bound());
    let begin = |number: usize, mut chance: Chance| -> Result<Writer> {
        let mut operator = Operator::of(&data, bound)?;
        let mut writer = Writer { number, rounds: 0, ahead: VecDeque::new(), unlocated: Vec::new() };
        for _ in 0..number * writes_on("", true).len() / WRITERS {
            let write = writer.next(&mut chance);
            let (status, body) = operator.write(&write)?;
            ensure!((200..300).contains(&status), "{write:?}: {status} {body}");
        }
        Ok(writer)
    };
    std::thread::scope(|scope| {
        let begin = &begin;
        let of = |number| {
            let chance = Chance::new(chance.bits());
            scope.spawn(move || begin(number, chance))
        };
        let begun: Vec<_> = (0..WRITERS).map(of).collect();
        begun.into_iter().map(|writer| writer.join().expect("a writer does not panic")).collect()
    })
}

/// The writes that writers have under way, by what they tell.
struct UnderWay {
    told: Receiver<Told>,
    keys: BTreeSet<Uuid>,
}

impl UnderWay {
    /// Waits until so many more are answered.
    fn answers(&mut self, mut count: usize) -> Result<()> {
        while count > 0 {
            let told = self.told.recv_timeout(PATIENCE).context("the writers are answered")?;
            count -= usize::from(self.hear(&told));
        }
        Ok(())
    }

    /// Whether an answer was told.
    fn hear(&mut self, told: &Told) -> bool {
        match told {
            Told::Sent(key) => {
                self.keys.insert(*key);
                false
            }
            Told::Answered(key) => self.keys.remove(key),
        }
    }

    /// Whether one of them is in the store.
    fn is_in(&mut self, stored: &Stored) -> bool {
        while let Ok(told) = self.told.try_recv() {
            self.hear(&told);
        }
        self.keys.iter().any(|key| stored.request("admin", *key).is_some())
    }
}

/// Holds the controller at random points until its store has a write that was not answered, so that to kill it is to kill it between
/// commit and answer. Where no point of several is such, it stands at the last. Gives the store as it is there.
fn held(fleet: &Fleet, chance: &mut Chance, told: Receiver<Told>) -> Result<Stored> {
    let mut under_way = UnderWay { told, keys: BTreeSet::new() };
    for _ in 1..HOLDS {
        under_way.answers(1 + chance.below(WITHIN_ANSWERS))?;
        fleet.hold_controller()?;
        let stored = Stored::copied(&fleet.data())?;
        if under_way.is_in(&stored) {
            return Ok(stored);
        }
        fleet.let_controller_go_on()?;
    }
    under_way.answers(1)?;
    fleet.hold_controller()?;
    Stored::copied(&fleet.data())
}

/// All write, the controller is killed, and what each came to is given, with the store that was left.
fn kill_under_writers(
    fleet: &mut Fleet,
    chance: &mut Chance,
    writers: &mut [Writer],
) -> Result<(Vec<Written>, Stored)> {
    let (data, bound): (_, Bound) = (fleet.data(), fleet.bound().clone());
    let operators = writers.iter().map(|_| Operator::of(&data, &bound)).collect::<Result<Vec<_>>>()?;
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let writers: Vec<_> = writers
            .iter_mut()
            .zip(operators)
            .map(|(writer, operator)| {
                let (chance, tell) = (Chance::new(chance.bits()), tell.clone());
                scope.spawn(move || write_on(operator, chance, writer, &tell))
            })
            .collect();
        drop(tell);
        let stored = held(fleet, chance, told);
        fleet.kill_controller()?;
        let written = writers.into_iter().map(|writer| writer.join().expect("a writer does not panic"));
        let written = written.collect::<Result<Vec<_>>>();
        Ok((written?, stored?))
    })
}

/// What was answered is there, as it was answered; how many are there that were not answered. What is there is there as a whole:
/// object, after-image, audit event and the request's record.
fn committed(stored: &Stored, written: &[Written]) -> Result<usize> {
    stored.check()?;
    for (write, status) in written.iter().flat_map(|writer| &writer.answered) {
        let (_, revision) =
            stored.request("admin", write.key).with_context(|| format!("answered and lost: {write:?}"))?;
        writes::whole(stored, write, *status, *revision).with_context(|| format!("{write:?}"))?;
    }
    let mut unanswered = 0;
    for write in written.iter().filter_map(|writer| writer.unanswered.as_ref()) {
        let Some((record, revision)) = stored.request("admin", write.key) else { continue };
        writes::whole(stored, write, record.answer.status, *revision).with_context(|| format!("{write:?}"))?;
        unanswered += 1;
    }
    Ok(unanswered)
}

/// What was not answered is sent again under its key: it is made once, by the first commit where that had come about. Gives how many
/// objects were deleted, all of which are gone.
fn send_again(fleet: &Fleet, stored: &Stored, written: &[Written]) -> Result<usize> {
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    for write in written.iter().filter_map(|writer| writer.unanswered.as_ref()) {
        let (status, body) = operator.write(write)?;
        ensure!((200..300).contains(&status), "{write:?} sent again: {status} {body}");
        if let Some((_, revision)) = stored.request("admin", write.key) {
            let (_, record) = operator.get(&format!("/v1/requests/{}", write.key))?;
            ensure!(record["revision"] == *revision, "{write:?} was made at {revision}, and is now {record}");
        }
    }
    // What stands deeper is a part of an object, which may be asked for and empty; certificates are in their list alone.
    let is_object = |write: &&Write| {
        let parts: Vec<_> = write.path.split('/').collect();
        matches!(parts[..], ["", "v1", kind, _] if kind != "certificates")
    };
    let deleted: Vec<_> = all(written).filter(|write| write.method == "DELETE").filter(is_object).collect();
    for write in &deleted {
        let (status, body) = operator.get(&write.path)?;
        ensure!(status == 404, "{write:?}, and it is there: {status} {body}");
    }
    Ok(deleted.len())
}

/// All writes that were tried.
fn all(written: &[Written]) -> impl Iterator<Item = &Write> {
    written.iter().flat_map(|one| one.answered.iter().map(|(write, _)| write).chain(&one.unanswered))
}

#[test]
#[allow(clippy::print_stdout, reason = "how often the moment in question was met")]
fn killing_the_controller_under_writers_loses_nothing_halves_nothing_and_doubles_nothing() -> Result<()> {
    let mut chance = Chance::seeded()?;
    // Nothing may be missing in the end, so nothing of the history is dropped meanwhile.
    let mut fleet = Fleet::start_with("history_keep = {revisions = 1000000}\n")?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;
    let mut writers = begun(&fleet, &mut chance)?;
    let (mut kills, mut met, mut unanswered, mut answered, mut deleted) = (0, 0, 0, 0, 0);
    let mut untried = writes::rows();
    while met < UNANSWERED_KILLS * times() || deleted < DELETED || !untried.is_empty() {
        kills += 1;
        let (written, stored) = kill_under_writers(&mut fleet, &mut chance, &mut writers)?;
        answered += written.iter().map(|writer| writer.answered.len()).sum::<usize>();
        let found = committed(&stored, &written).with_context(|| format!("kill {kills}"))?;
        unanswered += found;
        met += u64::from(found > 0);
        for write in all(&written) {
            untried.remove(writes::endpoint(write.method, &write.path)?.name());
        }
        fleet.start_controller()?;
        deleted += send_again(&fleet, &stored, &written).with_context(|| format!("kill {kills}"))?;
        whole_if_there(&web)?;
        if kills % UNTIL_CONVERGED == 0 {
            converges(&fleet, &web, &format!("after-{kills}")).with_context(|| format!("kill {kills}"))?;
        }
        ensure!(
            kills < KILLS_FOR_EACH * UNANSWERED_KILLS * times(),
            "of {kills} kills {met} fell between commit and answer, {deleted} objects were deleted, not tried: {untried:?}"
        );
    }
    println!(
        "{kills} kills, {met} of them between a commit and its answer; {answered} writes answered, {unanswered} committed and not \
         answered, {deleted} objects deleted"
    );
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
    for number in 1..=AGENT_KILLS * times() {
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
