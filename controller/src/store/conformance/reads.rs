//! Rules of reads.

use super::{TestEngine, commit, create, get, keys, list_all, next_change, put_singly};
use crate::store::{KeyRange, ListQuery, Revision, Transaction};

/// `put_singly` writes each of the six entries in its own commit, so the list is of revision 6.
pub(crate) async fn list_is_in_byte_order_and_returns_revision(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("b", ""), ("a/2", ""), ("a/10", ""), ("Z", ""), ("a", ""), ("ä", "")]).await;
    let list = store.snapshot().await.unwrap().list(&ListQuery::prefix("")).await.unwrap();
    let expected: [&[u8]; 6] = [b"Z", b"a", b"a/10", b"a/2", b"b", "ä".as_bytes()];
    assert_eq!(keys(&list.entries), expected);
    assert_eq!((list.revision, list.has_more), (Revision::new(6), false));
}

/// Each case is a range, and the keys that a list of the range returns.
pub(crate) async fn list_returns_only_keys_of_range(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", ""), ("b", ""), ("b/1", ""), ("b/2", ""), ("b0", ""), ("c", "")]).await;
    let range = |start: &'static str, end: Option<&'static str>| KeyRange { start: start.into(), end: end.map(Into::into) };
    let cases: [(KeyRange, &[&str]); 7] = [
        (KeyRange::prefix("b/"), &["b/1", "b/2"]),
        (KeyRange::prefix("b"), &["b", "b/1", "b/2", "b0"]),
        (KeyRange::prefix("x"), &[]),
        (range("b", Some("b/2")), &["b", "b/1"]),
        (range("b0", None), &["b0", "c"]),
        (range("c", Some("a")), &[]),
        (range("b", Some("b")), &[]),
    ];
    let snapshot = store.snapshot().await.unwrap();
    for (range, expected) in cases {
        let ascending = snapshot.list(&ListQuery::range(range.clone())).await.unwrap();
        let mut expected: Vec<&[u8]> = expected.iter().map(|key| key.as_bytes()).collect();
        assert_eq!(keys(&ascending.entries), expected, "{range:?}");
        let descending = snapshot.list(&ListQuery::range(range.clone()).descending()).await.unwrap();
        expected.reverse();
        assert_eq!(keys(&descending.entries), expected, "{range:?}");
    }
}

/// `read_page` returns the digits at the end of the keys of a page, and whether more entries follow.
pub(crate) async fn list_pages_by_count_from_both_ends(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", ""), ("b/1", ""), ("b/2", ""), ("b/3", ""), ("b/4", ""), ("b/5", ""), ("c", "")]).await;
    let snapshot = store.snapshot().await.unwrap();
    let read_page = async |range: KeyRange, query: fn(ListQuery) -> ListQuery| {
        let list = snapshot.list(&query(ListQuery::range(range))).await.unwrap();
        (keys(&list.entries).iter().map(|key| key[2] - b'0').collect::<Vec<_>>(), list.has_more)
    };
    let whole_range = KeyRange::prefix("b/");
    let first_two: fn(ListQuery) -> ListQuery = |query| query.with_limit(2);
    let last_two: fn(ListQuery) -> ListQuery = |query| query.with_limit(2).descending();
    assert_eq!(read_page(whole_range.clone(), first_two).await, (vec![1, 2], true));
    assert_eq!(read_page(whole_range.clone().after(b"b/2"), first_two).await, (vec![3, 4], true));
    assert_eq!(read_page(whole_range.clone().after(b"b/4"), first_two).await, (vec![5], false));
    assert_eq!(read_page(whole_range.clone().after(b"b/5"), first_two).await, (vec![], false));
    assert_eq!(read_page(whole_range.clone().after(b"b/3"), first_two).await, (vec![4, 5], false));
    assert_eq!(read_page(whole_range.clone(), last_two).await, (vec![5, 4], true));
    assert_eq!(read_page(whole_range.clone().before(b"b/4"), last_two).await, (vec![3, 2], true));
    assert_eq!(read_page(whole_range.clone().before(b"b/2"), last_two).await, (vec![1], false));
    assert_eq!(read_page(whole_range, |query| query.with_limit(0)).await, (vec![], true));
}

/// `read_page` returns the digits at the end of the keys of a page, and whether more entries follow. In this test, the
/// key and the value of an entry have 5 bytes together, but 103 bytes at `b/3` and 3 bytes at `b/5`. All five entries
/// have 121 bytes.
pub(crate) async fn list_pages_by_bytes(engine: &impl TestEngine) {
    let store = create(engine);
    let large_value = "x".repeat(100);
    for (key, value) in [("b/1", "11"), ("b/2", "22"), ("b/3", large_value.as_str()), ("b/4", "44"), ("b/5", "")] {
        commit(&store, Transaction::new().put(key, value.to_owned())).await;
    }
    let snapshot = store.snapshot().await.unwrap();
    let read_page = async |range: KeyRange, query: fn(ListQuery) -> ListQuery| {
        let list = snapshot.list(&query(ListQuery::range(range))).await.unwrap();
        (keys(&list.entries).iter().map(|key| key[2] - b'0').collect::<Vec<_>>(), list.has_more)
    };
    let whole_range = KeyRange::prefix("b/");
    let at_most_ten_bytes: fn(ListQuery) -> ListQuery = |query| query.with_max_bytes(10);
    assert_eq!(read_page(whole_range.clone(), at_most_ten_bytes).await, (vec![1, 2], true));
    assert_eq!(read_page(whole_range.clone().after(b"b/1"), at_most_ten_bytes).await, (vec![2], true));
    assert_eq!(
        read_page(whole_range.clone().after(b"b/2"), at_most_ten_bytes).await,
        (vec![3], true),
        "a page has at least one entry"
    );
    assert_eq!(read_page(whole_range.clone().after(b"b/3"), at_most_ten_bytes).await, (vec![4, 5], false));
    assert_eq!(read_page(whole_range.clone(), |query| query.with_max_bytes(10).descending()).await, (vec![5, 4], true));
    assert_eq!(read_page(whole_range.clone(), |query| query.with_max_bytes(10).with_limit(1)).await, (vec![1], true));
    assert_eq!(read_page(whole_range.clone(), |query| query.with_max_bytes(0)).await, (vec![1], true));
    assert_eq!(read_page(whole_range, |query| query.with_max_bytes(121)).await, (vec![1, 2, 3, 4, 5], false));
}

pub(crate) async fn store_accepts_empty_value_and_binary_key(engine: &impl TestEngine) {
    let store = create(engine);
    let unusual_keys: [&[u8]; 5] = [&[0], &[0, 0], &[0xff], &[0xff, 0xff], b"\n\"/"];
    for key in unusual_keys {
        commit(&store, Transaction::new().put(key, "")).await;
    }
    for key in unusual_keys {
        assert_eq!(get(&store, key).await.unwrap().value, "", "{key:?}");
    }
    assert_eq!(list_all(&store).await.len(), unusual_keys.len());
    let list = store.snapshot().await.unwrap().list(&ListQuery::prefix(vec![0xff])).await.unwrap();
    assert_eq!(keys(&list.entries), [&[0xff][..], &[0xff, 0xff]]);
    let large_value = vec![0xa5; 4000];
    commit(&store, Transaction::new().put("large", large_value.clone())).await;
    assert_eq!(get(&store, "large").await.unwrap().value, large_value);
}

pub(crate) async fn snapshot_is_unchanged_when_commits_follow(engine: &impl TestEngine) {
    let store = create(engine);
    put_singly(&store, &[("a", "1"), ("b", "1")]).await;
    let snapshot = store.snapshot().await.unwrap();
    commit(&store, Transaction::new().put("a", "2").delete("b").put("c", "2")).await;
    assert_eq!(snapshot.revision(), Revision::new(2));
    assert_eq!(snapshot.get(b"a").await.unwrap().unwrap().value, "1");
    assert_eq!(snapshot.get(b"c").await.unwrap(), None);
    let list = snapshot.list(&ListQuery::prefix("")).await.unwrap();
    assert_eq!((keys(&list.entries), list.revision), (vec![b"a".as_slice(), b"b"], Revision::new(2)));
    assert_eq!(store.snapshot().await.unwrap().revision(), Revision::new(3));
}

pub(crate) async fn snapshot_contains_commit_when_commit_has_returned(engine: &impl TestEngine) {
    let store = create(engine);
    for number in 0..50_u64 {
        let revision = store.commit(Transaction::new().put("a", number.to_string())).await.unwrap();
        assert!(store.head().await.unwrap() >= revision);
        assert!(store.snapshot().await.unwrap().revision() >= revision);
        assert_eq!(get(&store, "a").await.unwrap().value, number.to_string());
        assert_eq!(next_change(&mut store.watch(revision)).await.revision, revision);
    }
}
