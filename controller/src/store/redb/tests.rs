//! What is redb's alone; what every engine must do is in `conformance`.

use ::redb::backends::InMemoryBackend;

use super::*;
use crate::store::{Precondition, Query, StoreError, Transaction};

fn creation() -> CreateOptions {
    CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::from_static(b"fleet") }
}

#[tokio::test]
async fn smoke() {
    let store =
        RedbStore::create_on(InMemoryBackend::new(), Path::new("memory"), &creation(), RedbOptions::default()).unwrap();
    let mut watch = store.watch(Revision::ZERO);
    let tx = Transaction::new().require(Precondition::absent("a")).put("a", "1").put_at_revision("history/", "x");
    assert_eq!(store.commit(tx.clone()).await.unwrap(), Revision::new(1));
    assert!(matches!(store.commit(tx).await, Err(StoreError::PreconditionFailed(_))));
    assert_eq!(watch.next().await.unwrap().events.len(), 2);
    let list = store.snapshot().unwrap().list(&Query::prefix("")).unwrap();
    assert_eq!(list.entries.len(), 2);
}
