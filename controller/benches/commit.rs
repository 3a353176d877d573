//! Measures the commits per second of 64 concurrent writers, where each commit is durable when it is answered. It is
//! compared with a group commit of the same bytes in bare redb. Both run in turns in one process: the speed of a shared
//! machine drifts, a ratio holds.
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

/// What one write of the API stores: the object, its image in the history, an audit event, and the record of the
/// request.
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

fn main() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Arc::new(RedbStore::create(
        &directory.path().join("store.redb"),
        &CreateOptions { epoch: Epoch::new([1; 16]), base: Revision::ZERO, fleet: Bytes::new() },
        RedbOptions::default(),
    )?);
    let bare = BareStore::create(&directory.path().join("bare.redb"))?;
    let (mut stored, mut bared) = (0.0, 0.0);
    for round in 0..=ROUNDS {
        let (of_store, of_bare) = (runtime.block_on(measure_store(&store)), runtime.block_on(measure_bare(&bare)));
        let (of_store, of_bare) = (of_store?, of_bare?);
        // The first round fills caches and the file.
        if round > 0 {
            print_rates(&format!("round {round}"), of_store, of_bare);
            stored += of_store;
            bared += of_bare;
        }
    }
    print_rates("mean", stored / f64::from(ROUNDS), bared / f64::from(ROUNDS));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a bench tells its figures there")]
fn print_rates(what: &str, store: f64, bare: f64) {
    println!("{what:8} store {store:7.0} commits/s   bare redb {bare:7.0} commits/s   ratio {:.2}", store / bare);
}

/// Lets all writers commit for one round. Returns the commits per second.
async fn measure_store(store: &Arc<RedbStore>) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let (write, mut commits) = (ApiWrite::new(), 0);
                while begun.elapsed() < ROUND_TIME {
                    store.commit(new_transaction(&store, writer, commits, &write).await?).await?;
                    commits += 1;
                }
                anyhow::Ok(commits)
            })
        })
        .collect();
    rate(begun, tasks).await
}

/// Builds an edit as the registry does: it requires that the object is unchanged since it was read.
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

fn request_key() -> String {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    // Request ids are random, so their keys are spread over the whole table.
    let scattered = REQUESTS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("request/{scattered:016x}-0000-4000-8000-000000000000")
}

async fn rate(begun: Instant, tasks: Vec<tokio::task::JoinHandle<anyhow::Result<u64>>>) -> anyhow::Result<f64> {
    let mut commits = 0;
    for task in tasks {
        commits += task.await??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    Ok(commits as f64 / begun.elapsed().as_secs_f64())
}

/// The key-value pairs of one write, and the sender that answers it.
type QueuedWrite = (Vec<(Bytes, Bytes)>, oneshot::Sender<()>);

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bare");

/// A group commit without revisions, preconditions, changes or watchers. It writes pairs of bytes into one table,
/// flushes all waiting writes together, and uses the same two-phase commit.
struct BareStore {
    queue: mpsc::Sender<QueuedWrite>,
}

impl BareStore {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size(RedbOptions::default().cache_bytes);
        let database = builder.create(path)?;
        let (queue, mut waiting) = mpsc::channel::<QueuedWrite>(1024);
        std::thread::spawn(move || -> anyhow::Result<()> {
            while let Some(first) = waiting.blocking_recv() {
                let mut batch = vec![first];
                while let Ok(next) = waiting.try_recv() {
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

/// Measures the same as `measure_store`, with the same keys and values, in bare redb.
async fn measure_bare(bare: &BareStore) -> anyhow::Result<f64> {
    static REVISION: AtomicU64 = AtomicU64::new(0);
    let begun = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let queue = bare.queue.clone();
            tokio::spawn(async move {
                let (write, mut commits) = (ApiWrite::new(), 0);
                while begun.elapsed() < ROUND_TIME {
                    let revision = REVISION.fetch_add(1, Ordering::Relaxed).to_be_bytes();
                    let uuid = format!("{writer:08x}-0000-7000-8000-{:012x}", commits % OBJECTS_PER_WRITER);
                    let history = [format!("history/node/{uuid}/").as_bytes(), &revision].concat();
                    let pairs = vec![
                        (format!("object/node/{uuid}").into(), write.object.clone()),
                        (history.into(), write.object.clone()),
                        ([b"audit/".as_slice(), &revision].concat().into(), write.audit.clone()),
                        (request_key().into(), write.request.clone()),
                    ];
                    let (answer, answered) = oneshot::channel();
                    queue.send((pairs, answer)).await?;
                    answered.await?;
                    commits += 1;
                }
                anyhow::Ok(commits)
            })
        })
        .collect();
    rate(begun, tasks).await
}
