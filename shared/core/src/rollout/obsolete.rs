//! Barriers in a node's task set that the present order no longer has.

use std::collections::BTreeSet;

/// Returns the barriers in `kept_barriers` that are not in `present_barriers`, each once. `kept_barriers` are those of
/// a node's released task set, and `present_barriers` are those of the present order of tasks. The caller must open the
/// returned barriers: nothing in the present order ends their wait, so the tasks behind them could never run.
///
/// The function is for a node whose tasks are the current ones. It is not for a node whose newer task set is withheld.
pub fn obsolete_barriers<'a, B: Ord + Clone + 'a, BarrierCollection: FromIterator<B>>(
    kept_barriers: impl Iterator<Item = &'a B>,
    present_barriers: impl Iterator<Item = &'a B>,
) -> BarrierCollection {
    let (kept_barriers, present_barriers): (BTreeSet<_>, BTreeSet<_>) = (kept_barriers.collect(), present_barriers.collect());
    kept_barriers.difference(&present_barriers).map(|barrier| (*barrier).clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obsolete_barriers_lists_each_missing_barrier_once() {
        let find_obsolete = |kept_barriers: &[u8], present_barriers: &[u8]| {
            obsolete_barriers::<_, Vec<u8>>(kept_barriers.iter(), present_barriers.iter())
        };
        for (kept_barriers, present_barriers, expected) in
            [(&[1, 2, 2, 1][..], &[2, 3][..], &[1][..]), (&[1], &[], &[1]), (&[1], &[1], &[]), (&[], &[1], &[])]
        {
            assert_eq!(find_obsolete(kept_barriers, present_barriers), expected, "{kept_barriers:?} {present_barriers:?}");
        }
    }
}
