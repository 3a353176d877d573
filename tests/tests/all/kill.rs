//! Tests of SIGKILL at random points, and between the commit of a write and its answer. No answered write is lost.
//! No write is made twice or in part, and no file is torn. No manual repair is needed. The seed is printed. A run with
//! `STEMMA_SEED` set to it repeats the choices.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::{ListenerAddresses, TempFleet, TestAgent};
use stemma_tests::operator::{OperatorClient, OperatorWrite};
use stemma_tests::program::{MAX_WAIT, check_file_contains, eventually};
use stemma_tests::seed::{SeededRng, is_long};
use stemma_tests::site::{SITE, check_files};
use uuid::Uuid;

use crate::store_copy::StoreCopy;
use crate::writes::{self, RULES_PATH, UNLISTED_CREATIONS, writes_with_suffix};

/// Number of times that the agent is killed.
const AGENT_KILL_COUNT: u64 = 50;
/// Number of kills between two checks that an edit reaches the host.
const KILLS_PER_CHECK: u64 = 10;
/// Maximum delay between the start of a write and the kill of the agent, in milliseconds.
const MAX_DELAY_MS: usize = 80;

/// Number of concurrent writers.
const WRITER_COUNT: usize = 8;
/// Minimum number of kills that fall between the commit of a write and its answer.
const MIN_UNANSWERED_KILLS: u64 = 20;
/// Minimum number of deletions that the test makes and checks.
const MIN_DELETED: usize = 10;
/// Maximum number of kills of the controller for each required kill between a commit and its answer.
const MAX_KILLS_PER_UNANSWERED_KILL: u64 = 3;
/// Maximum number of pauses of the controller before each kill. The test searches for a pause that falls between a
/// commit and its answer. Such a pause is the last one.
const MAX_PAUSES: usize = 8;
/// Maximum number of answers before a pause, of all writers together.
const MAX_ANSWERS_BEFORE_PAUSE: usize = 8;
/// Mean number of writes of a writer for each write to an object that all writers share.
const SHARED_WRITE_INTERVAL: usize = 4;

/// Returns the factor for the numbers of kills: 5 in a long run, else 1.
fn repeat_factor() -> u64 {
    if is_long() { 5 } else { 1 }
}

/// A writer that repeats the list of all kinds of writes, each time on new objects of its own. Some of its writes are
/// to an object that all writers share. Only one writer writes inspection rules.
struct Writer {
    number: usize,
    /// Number of times that the list of writes was begun. It is a part of the names of the objects.
    round_count: usize,
    /// The next writes: method, path, body.
    queue: VecDeque<(&'static str, String, Value)>,
    /// Idempotency keys of writes that create an object whose path only the answer contains.
    unlisted: Vec<Uuid>,
}

impl Writer {
    /// Returns the next write, under a random idempotency key.
    fn next_write(&mut self, rng: &mut SeededRng) -> OperatorWrite {
        let key = Uuid::from_u64_pair(rng.next_u64(), rng.next_u64());
        if rng.next_below(SHARED_WRITE_INTERVAL) == 0 {
            let change = json!({format!("writer-{}", self.number): key.to_string()});
            let group = "/v1/clusters/prod/nodegroups/frontends";
            let (path, body) = match rng.next_below(2) {
                0 => (format!("{group}/labels"), change),
                _ => (group.to_owned(), json!({"parameters": change})),
            };
            return OperatorWrite { method: "PATCH", path, body, key };
        }
        if self.queue.is_empty() {
            self.round_count += 1;
            let may_write_rules = self.number == rule_writer_number();
            self.queue = writes_with_suffix(&format!("w{}-{}", self.number, self.round_count), may_write_rules).into();
        }
        let (method, path, body) = self.queue.pop_front().expect("there are writes");
        OperatorWrite { method, path, body, key }
    }

    /// Records the key of a write if only its answer contains the path of the created object. The key is recorded even
    /// without an answer, because an unanswered write is sent again before the next writes.
    fn record_sent(&mut self, write: &OperatorWrite) -> Result<()> {
        if UNLISTED_CREATIONS.contains(&writes::find_endpoint(write.method, &write.path)?) {
            self.unlisted.push(write.key);
        }
        Ok(())
    }

    /// Queues the deletion of the objects that were created under the recorded keys, before all other writes. If the
    /// controller is down, the next call tries again.
    fn queue_deletion(&mut self, operator: &mut OperatorClient) {
        while let Some(key) = self.unlisted.last()
            && let Ok(path) = writes::created_location(operator, *key)
        {
            self.unlisted.pop();
            self.queue.push_front(("DELETE", path, Value::Null));
        }
    }
}

/// Returns the number of the only writer that writes inspection rules. A request of this writer deletes all rules, so
/// the rules of another writer would be lost. The writers start at different places in the list of writes. The result
/// is the last writer that starts before the rules, so this writer soon writes them.
fn rule_writer_number() -> usize {
    let writes = writes_with_suffix("", true);
    let first_rule_index = writes.iter().position(|(_, path, _)| path.starts_with(RULES_PATH)).expect("rules are written");
    first_rule_index * WRITER_COUNT / writes.len()
}

/// The result of one writer: the answered writes, each with the status of its answer, and the write that was pending
/// when the controller ended.
struct WriterLog {
    answered: Vec<(OperatorWrite, u16)>,
    unanswered: Option<OperatorWrite>,
}

/// An event of a write, with its idempotency key: the write is sent, or its answer has arrived.
enum WriterEvent {
    Sent(Uuid),
    Answered(Uuid),
}

/// Writes until the controller does not answer.
fn write_until_killed(
    mut operator: OperatorClient,
    mut rng: SeededRng,
    writer: &mut Writer,
    sender: &Sender<WriterEvent>,
) -> Result<WriterLog> {
    let mut answered = Vec::new();
    loop {
        writer.queue_deletion(&mut operator);
        let write = writer.next_write(&mut rng);
        // The receiver is dropped before the controller is killed, so a failed send is ignored.
        let _closed = sender.send(WriterEvent::Sent(write.key));
        writer.record_sent(&write)?;
        match operator.write(&write) {
            Ok((status @ 200..300, _)) => {
                let _closed = sender.send(WriterEvent::Answered(write.key));
                answered.push((write, status));
            }
            Ok((status, body)) => bail!("{write:?}: {status} {body}"),
            Err(_) => return Ok(WriterLog { answered, unanswered: Some(write) }),
        }
    }
}

/// Creates writers that start at different places in the list of writes, so that each kill interrupts different writes.
fn create_writers(fleet: &TempFleet, rng: &mut SeededRng) -> Result<Vec<Writer>> {
    let (data, addresses) = (fleet.data(), fleet.addresses());
    let create_writer = |number: usize, mut rng: SeededRng| -> Result<Writer> {
        let mut operator = OperatorClient::from_data(&data, addresses)?;
        let mut writer = Writer { number, round_count: 0, queue: VecDeque::new(), unlisted: Vec::new() };
        // The writer makes its first writes now, so that it starts at another place in the list.
        for _ in 0..number * writes_with_suffix("", true).len() / WRITER_COUNT {
            let write = writer.next_write(&mut rng);
            let (status, body) = operator.write(&write)?;
            ensure!((200..300).contains(&status), "{write:?}: {status} {body}");
        }
        Ok(writer)
    };
    std::thread::scope(|scope| {
        let create_writer = &create_writer;
        let spawn = |number| {
            let rng = SeededRng::new(rng.next_u64());
            scope.spawn(move || create_writer(number, rng))
        };
        let threads: Vec<_> = (0..WRITER_COUNT).map(spawn).collect();
        threads.into_iter().map(|writer| writer.join().expect("a writer does not panic")).collect()
    })
}

/// The writes of all writers that were sent and not answered, according to the events of the writers.
struct PendingWrites {
    events: Receiver<WriterEvent>,
    keys: BTreeSet<Uuid>,
}

impl PendingWrites {
    /// Waits until `count` more writes are answered.
    fn wait_for_answers(&mut self, mut count: usize) -> Result<()> {
        while count > 0 {
            let event = self.events.recv_timeout(MAX_WAIT).context("the writers are answered")?;
            count -= usize::from(self.record(&event));
        }
        Ok(())
    }

    /// Records an event. Returns whether it is the answer to a pending write.
    fn record(&mut self, event: &WriterEvent) -> bool {
        match event {
            WriterEvent::Sent(key) => {
                self.keys.insert(*key);
                false
            }
            WriterEvent::Answered(key) => self.keys.remove(key),
        }
    }

    /// Records all arrived events. Then returns whether this copy of the store has a write that is still pending.
    fn is_any_stored(&mut self, stored: &StoreCopy) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.record(&event);
        }
        self.keys.iter().any(|key| stored.request_record("admin", *key).is_some())
    }
}

/// Pauses the controller at random points until its store has a write that was not answered. A kill at this point falls
/// between the commit and its answer. After [`MAX_PAUSES`] pauses, the last point is used in any case. The controller
/// remains paused. Returns a copy of the store.
fn pause_between_commit_and_answer(fleet: &TempFleet, rng: &mut SeededRng, receiver: Receiver<WriterEvent>) -> Result<StoreCopy> {
    let mut pending = PendingWrites { events: receiver, keys: BTreeSet::new() };
    for _ in 1..MAX_PAUSES {
        pending.wait_for_answers(1 + rng.next_below(MAX_ANSWERS_BEFORE_PAUSE))?;
        fleet.pause_controller()?;
        let stored = StoreCopy::copy_from(&fleet.data())?;
        if pending.is_any_stored(&stored) {
            return Ok(stored);
        }
        fleet.resume_controller()?;
    }
    pending.wait_for_answers(1)?;
    fleet.pause_controller()?;
    StoreCopy::copy_from(&fleet.data())
}

/// Runs all writers and kills the controller. Returns the result of each writer, and a copy of the store.
fn kill_under_writers(fleet: &mut TempFleet, rng: &mut SeededRng, writers: &mut [Writer]) -> Result<(Vec<WriterLog>, StoreCopy)> {
    let (data, addresses): (_, ListenerAddresses) = (fleet.data(), fleet.addresses().clone());
    let operators = writers.iter().map(|_| OperatorClient::from_data(&data, &addresses)).collect::<Result<Vec<_>>>()?;
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        let writers: Vec<_> = writers
            .iter_mut()
            .zip(operators)
            .map(|(writer, operator)| {
                let (rng, sender) = (SeededRng::new(rng.next_u64()), sender.clone());
                scope.spawn(move || write_until_killed(operator, rng, writer, &sender))
            })
            .collect();
        drop(sender);
        let stored = pause_between_commit_and_answer(fleet, rng, receiver);
        fleet.kill_controller()?;
        let logs = writers.into_iter().map(|writer| writer.join().expect("a writer does not panic"));
        let logs = logs.collect::<Result<Vec<_>>>();
        Ok((logs?, stored?))
    })
}

/// Checks that each answered write is stored as it was answered. Checks that each stored write is complete: object,
/// after-image, audit event and request record. Returns the number of stored writes that were not answered.
fn check_committed(stored: &StoreCopy, logs: &[WriterLog]) -> Result<usize> {
    stored.check()?;
    for (write, status) in logs.iter().flat_map(|writer| &writer.answered) {
        let (_, revision) = stored.request_record("admin", write.key).with_context(|| format!("answered and lost: {write:?}"))?;
        writes::check_commit(stored, write, *status, *revision).with_context(|| format!("{write:?}"))?;
    }
    let mut unanswered = 0;
    for write in logs.iter().filter_map(|writer| writer.unanswered.as_ref()) {
        let Some((record, revision)) = stored.request_record("admin", write.key) else { continue };
        writes::check_commit(stored, write, record.answer.status, *revision).with_context(|| format!("{write:?}"))?;
        unanswered += 1;
    }
    Ok(unanswered)
}

/// Sends each unanswered write again under its key. Each write takes effect once: if the first request was committed,
/// its revision stays the same. Checks that all deleted objects are gone, and returns their number.
fn resend_unanswered(fleet: &TempFleet, stored: &StoreCopy, logs: &[WriterLog]) -> Result<usize> {
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    for write in logs.iter().filter_map(|writer| writer.unanswered.as_ref()) {
        let (status, body) = operator.write(write)?;
        ensure!((200..300).contains(&status), "{write:?} sent again: {status} {body}");
        if let Some((_, revision)) = stored.request_record("admin", write.key) {
            let (_, record) = operator.get(&format!("/v1/requests/{}", write.key))?;
            ensure!(record["revision"] == *revision, "{write:?} was made at {revision}, and is now {record}");
        }
    }
    // A longer path names a part of an object. After its deletion, the part can still be read and is empty. A
    // certificate has no path that can be read, because only the list shows it.
    let is_object = |write: &&OperatorWrite| {
        let parts: Vec<_> = write.path.split('/').collect();
        matches!(parts[..], ["", "v1", kind, _] if kind != "certificates")
    };
    let deleted: Vec<_> = all_writes(logs).filter(|write| write.method == "DELETE").filter(is_object).collect();
    for write in &deleted {
        let (status, body) = operator.get(&write.path)?;
        ensure!(status == 404, "{write:?}: the deleted object exists: {status} {body}");
    }
    Ok(deleted.len())
}

/// Returns all writes that were sent, answered or not.
fn all_writes(logs: &[WriterLog]) -> impl Iterator<Item = &OperatorWrite> {
    logs.iter().flat_map(|log| log.answered.iter().map(|(write, _)| write).chain(&log.unanswered))
}

/// Kills the controller again and again while writers write. Each answered write must be stored. An unanswered write is
/// sent again, and must take effect only once. The edits must also reach a host.
#[test]
#[allow(clippy::print_stdout, reason = "the output shows the number of kills between a commit and its answer")]
fn controller_stores_each_write_once_when_killed() -> Result<()> {
    let mut rng = SeededRng::from_env()?;
    // The check at the end needs the whole history, so none of it is dropped during the test.
    let mut fleet = TempFleet::start_with_config("history_keep = {revisions = 1000000}\n")?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || check_files(&web))?;
    let mut writers = create_writers(&fleet, &mut rng)?;
    let (mut kills, mut unanswered_kills, mut unanswered, mut answered, mut deleted) = (0, 0, 0, 0, 0);
    // The kinds of writes that no writer has sent since the creation of the writers.
    let mut untried = writes::write_endpoint_names();
    while unanswered_kills < MIN_UNANSWERED_KILLS * repeat_factor() || deleted < MIN_DELETED || !untried.is_empty() {
        kills += 1;
        let (logs, stored) = kill_under_writers(&mut fleet, &mut rng, &mut writers)?;
        answered += logs.iter().map(|writer| writer.answered.len()).sum::<usize>();
        // `found` is the number of writes that this kill left stored but not answered.
        let found = check_committed(&stored, &logs).with_context(|| format!("kill {kills}"))?;
        unanswered += found;
        unanswered_kills += u64::from(found > 0);
        for write in all_writes(&logs) {
            untried.remove(writes::find_endpoint(write.method, &write.path)?.name());
        }
        fleet.start_controller()?;
        deleted += resend_unanswered(&fleet, &stored, &logs).with_context(|| format!("kill {kills}"))?;
        check_existing_files(&web)?;
        if kills % KILLS_PER_CHECK == 0 {
            wait_for_edit(&fleet, &web, &format!("after-{kills}")).with_context(|| format!("kill {kills}"))?;
        }
        ensure!(
            kills < MAX_KILLS_PER_UNANSWERED_KILL * MIN_UNANSWERED_KILLS * repeat_factor(),
            "of {kills} kills {unanswered_kills} fell between commit and answer, {deleted} objects were deleted, not tried: {untried:?}"
        );
    }
    println!(
        "{kills} kills, {unanswered_kills} of them between a commit and its answer; {answered} writes answered, {unanswered} committed and not \
         answered, {deleted} objects deleted"
    );
    wait_for_edit(&fleet, &web, "last")?;
    fleet.kill_controller()?;
    StoreCopy::copy_from(&fleet.data())?.check()
}

/// Kills the agent at a random time after the start of each edit of two labels. The edit may not be stored yet. Every
/// file on the host must be complete, and the edits must reach the host.
#[test]
fn agent_loses_no_edit_and_tears_no_file_when_killed() -> Result<()> {
    let mut rng = SeededRng::from_env()?;
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || check_files(&web))?;
    for number in 1..=AGENT_KILL_COUNT * repeat_factor() {
        // A label that is in the label files only, and one that the template and the command read.
        let (change, tier) = (format!("number={number}"), format!("tier=t{number}"));
        let write = fleet.spawn_cli(&["label", "nodegroup", "prod/frontends", &change, &tier])?;
        std::thread::sleep(Duration::from_millis(rng.next_below(MAX_DELAY_MS) as u64));
        web.kill()?;
        web.start()?;
        ensure!(write.wait()?, "the controller runs, so the write succeeds");
        ensure!(stored_number(&fleet)? == number, "kill {number}: an answered write is lost");
        check_existing_files(&web)?;
        if number % KILLS_PER_CHECK == 0 {
            wait_for_edit(&fleet, &web, &format!("after-{number}")).with_context(|| format!("kill {number}"))?;
        }
    }
    Ok(())
}

/// Edits a label, and waits until the edit is in the label files, in the file of a template that reads it, and in the
/// output of the command that runs for it.
fn wait_for_edit(fleet: &TempFleet, web: &TestAgent, tier: &str) -> Result<()> {
    fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier={tier}")])?;
    eventually("the last edit on the host", || {
        check_file_contains(&web.path("run/stemma/labels.json"), &format!("\"tier\":\"{tier}\"")).with_context(|| web.log())?;
        check_file_contains(&web.path("etc/nginx/conf.d/site.conf"), &format!("tier {tier}")).with_context(|| web.log())
    })?;
    eventually("the output of the command for the last value", || {
        let text = std::fs::read_to_string(web.path("var/log/site.log"))?;
        ensure!(text.ends_with(&format!("serves {tier}\n")), "{text}\n{}", web.log());
        Ok(())
    })
}

/// Returns the label `number` of the node group, or 0 if the group does not have the label.
fn stored_number(fleet: &TempFleet) -> Result<u64> {
    let group = eventually("the controller answers", || fleet.stemma(&["get", "nodegroup", "prod/frontends", "-o", "json"]))?;
    let group: Value = serde_json::from_str(&group)?;
    Ok(group["labels"]["number"].as_str().map_or(Ok(0), str::parse)?)
}

/// Checks that the host's files are complete, unless the label files do not exist yet.
fn check_existing_files(web: &TestAgent) -> Result<()> {
    if web.path("run/stemma/labels.json").exists() { check_files(web) } else { Ok(()) }
}
