//! Barriers that a node was told of and that nobody waits for any more.

use std::collections::BTreeSet;

/// The barriers of a task set that its node keeps, though it may have another, which the present order no longer has. Nobody waits for
/// them any more, so they are open: else what the node runs could never end.
pub fn dropped_barriers<'a, B: Ord + Clone + 'a, All: FromIterator<B>>(
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
    fn what_is_kept_and_no_longer_in_the_order_is_open_once() {
        let dropped = |kept: &[u8], present: &[u8]| dropped_barriers::<_, Vec<u8>>(kept.iter(), present.iter());
        for (kept, present, expected) in
            [(&[1, 2, 2, 1][..], &[2, 3][..], &[1][..]), (&[1], &[], &[1]), (&[1], &[1], &[]), (&[], &[1], &[])]
        {
            assert_eq!(dropped(kept, present), expected, "{kept:?} {present:?}");
        }
    }
}
