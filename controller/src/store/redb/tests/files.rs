//! Tests with files that are damaged, in use, of another version or missing: F11 (truncated), F30 (two controllers),
//! F36 (an older program).

use std::error::Error as StdError;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ::redb::{Database, ReadableDatabase};
use tempfile::TempDir;

use super::super::testing::create_options;
use super::super::{RedbOptions, RedbStore, open, schema};
use crate::store::{OpenError, PROGRAM_VERSION, Revision, SCHEMA_VERSION, Store, Transaction, WatchError};

/// Returns a temporary directory, and the path of a store in it that does not exist yet.
fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    (directory, path)
}

/// Creates a store, and commits an entry at revision 1.
async fn create_with_an_entry(path: &Path) -> RedbStore {
    let store = RedbStore::create(path, &create_options(), RedbOptions::default()).unwrap();
    store.commit(Transaction::new().put("a", "1")).await.unwrap();
    store
}

/// Returns the error of opening a store. Panics if the store opens.
fn open_error(path: &Path) -> OpenError {
    match RedbStore::open(path, RedbOptions::default()) {
        Ok(_) => panic!("{} opened", path.display()),
        Err(error) => error,
    }
}

/// Returns the error as the user sees it, with the directory of the test replaced by DIR.
fn error_text(error: &OpenError, path: &Path) -> String {
    error.to_string().replace(path.parent().unwrap().to_str().unwrap(), "DIR")
}

#[tokio::test]
async fn open_fails_without_creating_file_when_missing() {
    let (_directory, path) = directory();
    let error = open_error(&path);
    assert_eq!(
        error_text(&error, &path),
        "there is no store at DIR/store.redb: for a new fleet create one with `stemma-controller init --data-dir DIR`, \
         or, if the package is installed, with `touch /etc/stemma/create-fleet` and a start of stemma-controller.service; \
         otherwise restore a backup (docs/backup.md) or copy back DIR from a copy that was made while the controller was stopped"
    );
    assert!(!path.exists());
}

#[tokio::test]
async fn f11_open_refuses_and_keeps_file_when_truncated() {
    let (_directory, path) = directory();
    drop(create_with_an_entry(&path).await);
    let original = fs::read(&path).unwrap();
    for length in [0, 1, 100, 512, 4096, original.len() / 2] {
        fs::write(&path, &original[..length]).unwrap();
        let error = open_error(&path);
        let expected = if length == 0 {
            "the store DIR/store.redb is empty (0 bytes), and no new store was created in its place"
        } else {
            "the store DIR/store.redb is damaged and was not changed"
        };
        let expected = format!(
            "{expected}: restore a backup (docs/backup.md) or copy back DIR from a copy that was made while the controller was stopped"
        );
        assert_eq!(error_text(&error, &path), expected, "{length}");
        assert!(fs::read(&path).unwrap() == original[..length], "{length}: the file was changed");
    }
}

#[tokio::test]
async fn open_refuses_and_keeps_file_when_not_a_store() {
    let (_directory, path) = directory();
    let text = b"# not a database\n".repeat(1000);
    fs::write(&path, &text).unwrap();
    assert!(matches!(open_error(&path), OpenError::Damaged { .. }));
    assert!(fs::read(&path).unwrap() == text);

    fs::remove_file(&path).unwrap();
    drop(Database::create(&path).unwrap());
    let redb_file = fs::read(&path).unwrap();
    let error = open_error(&path);
    assert_eq!(error.source().unwrap().to_string(), "it is a redb database, but not a store");
    assert!(fs::read(&path).unwrap() == redb_file);
}

/// Only the owner can read the file of a store. A creation in a directory that does not exist fails too.
#[tokio::test]
async fn create_fails_without_side_effects_when_file_exists() {
    let (directory, path) = directory();
    drop(create_with_an_entry(&path).await);
    let bytes_before = fs::read(&path).unwrap();
    let result = RedbStore::create(&path, &create_options(), RedbOptions::default());
    assert!(matches!(result, Err(OpenError::Exists { .. })));
    assert!(fs::read(&path).unwrap() == bytes_before);
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["store.redb"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let result_without_directory =
        RedbStore::create(&directory.path().join("no/such/store"), &create_options(), RedbOptions::default());
    assert!(matches!(result_without_directory, Err(OpenError::Io { .. })));
}

/// The lock holds while the store is open, also after it was reopened.
#[tokio::test]
async fn f30_open_fails_when_store_is_locked() {
    let (_directory, path) = directory();
    let store = create_with_an_entry(&path).await;
    assert_eq!(
        error_text(&open_error(&path), &path),
        "the store DIR/store.redb is in use by another process: only one controller can run on it; \
         stop the other one first (`fuser DIR/store.redb` shows which)"
    );
    assert_eq!(store.commit(Transaction::new().put("a", "2")).await.unwrap(), Revision::new(2));
    drop(store);
    let store = RedbStore::open(&path, RedbOptions::default()).unwrap();
    assert!(matches!(open_error(&path), OpenError::Locked { .. }));
    drop(store);
}

/// Writes another schema version and a program's name into a store, as a program of that version would.
fn set_version(path: &Path, version: u32) {
    set_meta(path, "schema", Some(&version.to_be_bytes()));
    set_meta(path, "program", Some(b"stemma-controller 9.9.9"));
}

/// Writes an entry of the store's metadata, or removes the entry if `value` is `None`.
fn set_meta(path: &Path, name: &str, value: Option<&[u8]>) {
    let database = Database::open(path).unwrap();
    let transaction = schema::begin_durable(&database).unwrap();
    {
        let mut meta = transaction.open_table(schema::META).unwrap();
        match value {
            Some(value) => drop(meta.insert(name, value).unwrap()),
            None => drop(meta.remove(name).unwrap()),
        }
    }
    transaction.commit().unwrap();
}

#[tokio::test]
async fn store_writes_program_on_first_commit_and_not_on_open() {
    let (_directory, path) = directory();
    drop(create_with_an_entry(&path).await);
    // The store is now like that of an older program, which did not write this entry.
    set_meta(&path, "program", None);
    for _ in 0..10 {
        let store = RedbStore::open(&path, RedbOptions::default()).unwrap();
        assert_eq!((&store.identity().written_by, store.stats().syncs.get()), (&None, 0));
    }
    let store = RedbStore::open(&path, RedbOptions::default()).unwrap();
    store.commit(Transaction::new().put("a", "2")).await.unwrap();
    drop(store);
    let store = RedbStore::open(&path, RedbOptions::default()).unwrap();
    assert_eq!(store.identity().written_by.as_deref(), Some(PROGRAM_VERSION));
}

#[tokio::test]
async fn f36_open_refuses_and_keeps_file_when_version_is_newer() {
    let (directory, path) = directory();
    drop(create_with_an_entry(&path).await);
    set_version(&path, SCHEMA_VERSION + 41);
    let expected = format!(
        "the store DIR/store.redb has schema version {} (written by stemma-controller 9.9.9), this program supports up to version {SCHEMA_VERSION}; \
         it was not changed: run the newer stemma-controller, or restore a backup (docs/backup.md) or copy back DIR from a copy that was made while the controller was stopped",
        SCHEMA_VERSION + 41
    );
    let bytes_before = fs::read(&path).unwrap();
    assert_eq!(error_text(&open_error(&path), &path), expected);
    assert!(fs::read(&path).unwrap() == bytes_before);

    // The store of a crashed program needs a repair before it can be read. The repair must not change the file either.
    let database = Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(schema::ENTRIES).unwrap().insert(b"new".as_slice(), b"new".as_slice()).unwrap();
    transaction.commit().unwrap();
    let crashed_path = directory.path().join("crashed.redb");
    fs::copy(&path, &crashed_path).unwrap();
    drop(database);
    let crashed_bytes = fs::read(&crashed_path).unwrap();
    assert!(matches!(Database::open(&path), Ok(database) if database.begin_read().is_ok()));
    assert_eq!(error_text(&open_error(&crashed_path), &path).replace("crashed", "store"), expected);
    assert!(fs::read(&crashed_path).unwrap() == crashed_bytes);
}

/// The program supports the schema version after that of the file.
#[tokio::test]
async fn open_accepts_store_when_version_is_older() {
    let (_directory, path) = directory();
    drop(create_with_an_entry(&path).await);
    let database = open::open_file(&path, SCHEMA_VERSION + 1, &RedbOptions::default()).unwrap();
    assert_eq!(schema::read_meta(&database).unwrap().revision, Revision::new(1));
}

/// The file is copied while the store is open, so the copy is as after a crash.
#[tokio::test]
async fn open_returns_acknowledged_commits_when_copy_is_from_crash() {
    let (directory, path) = directory();
    let store = create_with_an_entry(&path).await;
    let copy = directory.path().join("copy.redb");
    fs::copy(&path, &copy).unwrap();
    let copied_store = RedbStore::open(&copy, RedbOptions::default()).unwrap();
    assert_eq!(copied_store.head().await.unwrap(), Revision::new(1));
    drop(store);
}

/// Each write replaces a value of 256 KiB. At the limit of 4 MiB, old values are dropped, and the file no longer grows.
#[tokio::test]
async fn w10_01_store_reuses_pages_when_superseded_bytes_reach_limit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let options = RedbOptions { kept_bytes: 4 << 20, ..RedbOptions::default() };
    let store = RedbStore::create(&path, &create_options(), options.clone()).unwrap();
    let large_write = |number: u8| Transaction::new().put("results", vec![number; 256 << 10]);
    let mut sizes = Vec::new();
    for number in 0..200 {
        store.commit(large_write(number)).await.unwrap();
        sizes.push(fs::metadata(&path).unwrap().len());
    }
    assert!(sizes[199] < 16 << 20, "50 MiB were written, and the file has {}", sizes[199]);
    assert_eq!(sizes[99], sizes[199], "the file no longer grows");

    let head = store.head().await.unwrap();
    let mut watch = store.watch(head);
    assert_eq!(watch.next().await.unwrap().revision, head, "the latest change can be watched");
    let mut early_watch = store.watch(Revision::new(1));
    assert!(matches!(early_watch.next().await, Err(WatchError::Compacted { .. })));
    drop((watch, early_watch, store));
    let reopened_store = RedbStore::open(&path, options).unwrap();
    assert_eq!(reopened_store.head().await.unwrap(), head);
    reopened_store.commit(large_write(7)).await.unwrap();
}

/// In this test, `kept_bytes` is 1 MiB. Old values are dropped after half of this size (512 KiB), or after four times
/// that half (2 MiB) while an open watch has not read them. Eight values of 250 KiB are below 2 MiB.
#[tokio::test]
async fn w10_01_store_retains_superseded_up_to_limit_for_follower() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let options = RedbOptions { kept_bytes: 1 << 20, recent_changes: 0, ..RedbOptions::default() };
    let store = RedbStore::create(&path, &create_options(), options).unwrap();
    let large_write = |number: u8| Transaction::new().put("results", vec![number; 250 << 10]);
    let mut watch = store.watch(Revision::ZERO);
    for number in 1..=8 {
        store.commit(large_write(number)).await.unwrap();
    }
    for number in 1..=8 {
        assert_eq!(
            watch.next().await.unwrap().revision,
            Revision::new(number),
            "the watch returns each change, although it began to read after the last write"
        );
    }
    for number in 0..40 {
        store.commit(large_write(number)).await.unwrap();
    }
    assert!(matches!(watch.next().await, Err(WatchError::Compacted { .. })), "a watch that does not read retains no disk space");
    let size = fs::metadata(&path).unwrap().len();
    assert!(size < 10 << 20, "13 MiB were written, and the file has {size}");
}

/// The store is reopened before each write of 250 KiB. The file stays small, so the size of old values is counted
/// across the restarts.
#[tokio::test]
async fn w10_01_superseded_bytes_persist_when_reopened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let options = RedbOptions { kept_bytes: 1 << 20, ..RedbOptions::default() };
    drop(RedbStore::create(&path, &create_options(), options.clone()).unwrap());
    for number in 0..40 {
        let store = RedbStore::open(&path, options.clone()).unwrap();
        store.commit(Transaction::new().put("results", vec![number; 250 << 10])).await.unwrap();
    }
    let size = fs::metadata(&path).unwrap().len();
    assert!(size < 5 << 20, "10 MiB were written, and the file has {size}");
}
