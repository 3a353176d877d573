//! Barriers in a node's task set that the present order no longer has.

use std::collections::BTreeSet;

/// Returns the barriers of a kept task set that the present order no longer has. The node keeps the task set because
/// its tasks are the current ones, not because a newer task set is withheld. These barriers must be open, because the
/// order no longer gives them anything to wait for. Otherwise the tasks behind them could never end.
pub fn obsolete_barriers<'a, B: Ord + Clone + 'a, All: FromIterator<B>>(
    kept: impl Iterator<Item = &'a B>,
    present: impl Iterator<Item = &'a B>,
) -> All {
    let (kept, present): (BTreeSet<_>, BTreeSet<_>) = (kept.collect(), present.collect());
    kept.difference(&present).map(|barrier| (*barrier).clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obsolete_barriers_lists_dropped_barrier_once() {
        let dropped = |kept: &[u8], present: &[u8]| obsolete_barriers::<_, Vec<u8>>(kept.iter(), present.iter());
        for (kept, present, expected) in
            [(&[1, 2, 2, 1][..], &[2, 3][..], &[1][..]), (&[1], &[], &[1]), (&[1], &[1], &[]), (&[], &[1], &[])]
        {
            assert_eq!(dropped(kept, present), expected, "{kept:?} {present:?}");
        }
    }
}
