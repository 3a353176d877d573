//! Measures the commits per second of 64 concurrent writers, where each commit is durable when it is answered. The
//! result is compared with a group commit of the same bytes in bare redb. Both run in turns in one process. The speed
//! of a shared machine drifts, but the ratio of the two results stays the same.
//!
//! `cargo bench -p stemma-controller --bench commit`

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use redb::{Database, TableDefinition};
use stemma_controller::store::{CreateOptions, Epoch, Precondition, RedbOptions, RedbStore, Revision, Store, Transaction};
use tokio::sync::{mpsc, oneshot};

const WRITERS: u64 = 64;
const ROUNDS: u32 = 8;
const ROUND_TIME: Duration = Duration::from_millis(1500);
/// The number of objects per writer. Each writer edits its own objects in turn.
const OBJECTS_PER_WRITER: u64 = 16;

/// The values that one write of the API stores: the object, a copy of the object for its history, an audit event, and
/// the entry that remembers the request.
struct ApiWrite {
    object: Bytes,
    audit: Bytes,
    request: Bytes,
}

impl ApiWrite {
    fn new() -> Self {
        Self { object: vec![b'o'; 600].into(), audit: vec![b'a'; 400].into(), request: vec![b'r'; 200].into() }
    }
}

/// Measures commits of the store and of bare redb in turns, and prints the commits per second.
fn main() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Arc::new(RedbStore::create(
        &directory.path().join("store.redb"),
        &CreateOptions { epoch: Epoch::new([1; 16]), base: Revision::ZERO, fleet: Bytes::new() },
        RedbOptions::default(),
    )?);
    let bare = BareStore::create(&directory.path().join("bare.redb"))?;
    let (mut store_sum, mut bare_sum) = (0.0, 0.0);
    for round in 0..=ROUNDS {
        let (store_rate, bare_rate) = (runtime.block_on(measure_store(&store)), runtime.block_on(measure_bare(&bare)));
        let (store_rate, bare_rate) = (store_rate?, bare_rate?);
        // The first round fills caches and the file, and is not counted.
        if round > 0 {
            print_rates(&format!("round {round}"), store_rate, bare_rate);
            store_sum += store_rate;
            bare_sum += bare_rate;
        }
    }
    print_rates("mean", store_sum / f64::from(ROUNDS), bare_sum / f64::from(ROUNDS));
    Ok(())
}

/// Prints the commits per second of the store and of bare redb, and their ratio.
#[expect(clippy::print_stdout, reason = "a benchmark prints its results")]
fn print_rates(title: &str, store: f64, bare: f64) {
    println!("{title:8} store {store:7.0} commits/s   bare redb {bare:7.0} commits/s   ratio {:.2}", store / bare);
}

/// Lets all writers commit to the store for [`ROUND_TIME`]. Returns the commits per second.
async fn measure_store(store: &Arc<RedbStore>) -> anyhow::Result<f64> {
    let start = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let (write, mut commits) = (ApiWrite::new(), 0);
                while start.elapsed() < ROUND_TIME {
                    store.commit(new_transaction(&store, writer, commits, &write).await?).await?;
                    commits += 1;
                }
                anyhow::Ok(commits)
            })
        })
        .collect();
    commit_rate(start, tasks).await
}

/// Builds the transaction of an edit as the API does. Reads the object, and requires that it is still unchanged at the
/// commit.
async fn new_transaction(store: &RedbStore, writer: u64, commits: u64, write: &ApiWrite) -> anyhow::Result<Transaction> {
    let uuid = format!("{writer:08x}-0000-7000-8000-{:012x}", commits % OBJECTS_PER_WRITER);
    let object = format!("object/node/{uuid}");
    let precondition = match store.snapshot().await?.get(object.as_bytes()).await? {
        Some(entry) => Precondition::unchanged(object.clone(), entry.mod_revision),
        None => Precondition::absent(object.clone()),
    };
    Ok(Transaction::new()
        .require(precondition)
        .put(object, write.object.clone())
        .put_at_revision(format!("history/node/{uuid}/"), write.object.clone())
        .put_at_revision("audit/", write.audit.clone())
        .put(request_key(), write.request.clone()))
}

/// Returns the key under which a new request is remembered.
fn request_key() -> String {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    // Request ids are random, so their keys are spread over the whole table.
    let request_id = REQUESTS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("request/{request_id:016x}-0000-4000-8000-000000000000")
}

/// Waits for all writers, each of which returns its number of commits. Returns their commits per second since `start`.
async fn commit_rate(start: Instant, tasks: Vec<tokio::task::JoinHandle<anyhow::Result<u64>>>) -> anyhow::Result<f64> {
    let mut commits = 0;
    for task in tasks {
        commits += task.await??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    Ok(commits as f64 / start.elapsed().as_secs_f64())
}

/// The key-value pairs of one write, and the sender that confirms to the writer that they are durable.
type QueuedWrite = (Vec<(Bytes, Bytes)>, oneshot::Sender<()>);

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bare");

/// A group commit without revisions, preconditions, changes or watchers. A thread writes the pairs of all waiting
/// writes into one table, and commits them together, with the same two-phase commit as the store.
struct BareStore {
    queue: mpsc::Sender<QueuedWrite>,
}

impl BareStore {
    /// Creates the database, and starts the thread that commits the queued writes.
    fn create(path: &Path) -> anyhow::Result<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size(RedbOptions::default().cache_bytes);
        let database = builder.create(path)?;
        let (queue, mut receiver) = mpsc::channel::<QueuedWrite>(1024);
        std::thread::spawn(move || -> anyhow::Result<()> {
            while let Some(first) = receiver.blocking_recv() {
                let mut batch = vec![first];
                while let Ok(next) = receiver.try_recv() {
                    batch.push(next);
                }
                let mut transaction = database.begin_write()?;
                transaction.set_two_phase_commit(true);
                transaction.set_quick_repair(true);
                let mut table = transaction.open_table(TABLE)?;
                for (key, value) in batch.iter().flat_map(|(pairs, _)| pairs) {
                    table.insert(key.as_ref(), value.as_ref())?;
                }
                drop(table);
                transaction.commit()?;
                for (_, answer) in batch {
                    let _ = answer.send(());
                }
            }
            Ok(())
        });
        Ok(Self { queue })
    }
}

/// Lets all writers commit to bare redb for [`ROUND_TIME`], with the same keys and values as in [`measure_store`].
/// Returns the commits per second.
async fn measure_bare(bare: &BareStore) -> anyhow::Result<f64> {
    static REVISION: AtomicU64 = AtomicU64::new(0);
    let start = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let queue = bare.queue.clone();
            tokio::spawn(async move {
                let (write, mut commits) = (ApiWrite::new(), 0);
                while start.elapsed() < ROUND_TIME {
                    let revision = REVISION.fetch_add(1, Ordering::Relaxed).to_be_bytes();
                    let uuid = format!("{writer:08x}-0000-7000-8000-{:012x}", commits % OBJECTS_PER_WRITER);
                    let history = [format!("history/node/{uuid}/").as_bytes(), &revision].concat();
                    let pairs = vec![
                        (format!("object/node/{uuid}").into(), write.object.clone()),
                        (history.into(), write.object.clone()),
                        ([b"audit/".as_slice(), &revision].concat().into(), write.audit.clone()),
                        (request_key().into(), write.request.clone()),
                    ];
                    let (sender, receiver) = oneshot::channel();
                    queue.send((pairs, sender)).await?;
                    receiver.await?;
                    commits += 1;
                }
                anyhow::Ok(commits)
            })
        })
        .collect();
    commit_rate(start, tasks).await
}
