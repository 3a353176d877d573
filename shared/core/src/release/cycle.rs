//! Order and cycles among numbered things, deterministic: the same graph gives the same order and the same cycle.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Successors by thing, and how many predecessors each has; doubled edges count once.
struct Graph {
    after: Vec<Vec<usize>>,
    waits_for: Vec<usize>,
}

impl Graph {
    fn new(count: usize, edges: &[(usize, usize)]) -> Self {
        let mut after = vec![Vec::new(); count];
        for (before, next) in edges {
            after[*before].push(*next);
        }
        let mut waits_for = vec![0; count];
        for next in &mut after {
            next.sort_unstable();
            next.dedup();
            for at in next {
                waits_for[*at] += 1;
            }
        }
        Self { after, waits_for }
    }
}

/// Things in an order that heeds every edge, the lowest key first where several could come next.
///
/// `edges` are pairs of numbers below `count`, the first before the second.
///
/// # Errors
/// A cycle, each thing once, each before the next and the last before the first.
pub fn topological<K: Ord + Copy>(
    count: usize,
    edges: &[(usize, usize)],
    key: impl Fn(usize) -> K,
) -> Result<Vec<usize>, Vec<usize>> {
    let mut graph = Graph::new(count, edges);
    let mut ready: BinaryHeap<_> =
        (0..count).filter(|at| graph.waits_for[*at] == 0).map(|at| Reverse((key(at), at))).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse((_, at))) = ready.pop() {
        order.push(at);
        for next in &graph.after[at] {
            graph.waits_for[*next] -= 1;
            if graph.waits_for[*next] == 0 {
                ready.push(Reverse((key(*next), *next)));
            }
        }
    }
    if order.len() == count { Ok(order) } else { Err(cycle_in(&graph)) }
}

/// An order that heeds every edge that lies on no cycle: where only cycles are left, the lowest thing goes first.
pub(crate) fn rank(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut graph = Graph::new(count, edges);
    let mut done = vec![false; count];
    let mut ready: BinaryHeap<_> = (0..count).filter(|at| graph.waits_for[*at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(count);
    let mut lowest = 0;
    while order.len() < count {
        let at = ready.pop().map_or_else(
            || {
                lowest += done[lowest..].iter().position(|done| !done).unwrap_or(0);
                lowest
            },
            |Reverse(at)| at,
        );
        if std::mem::replace(&mut done[at], true) {
            continue;
        }
        order.push(at);
        for next in &graph.after[at] {
            graph.waits_for[*next] = graph.waits_for[*next].saturating_sub(1);
            if graph.waits_for[*next] == 0 && !done[*next] {
                ready.push(Reverse(*next));
            }
        }
    }
    order
}

/// A cycle, if there is one: each thing once, each before the next and the last before the first.
pub(crate) fn find_cycle(count: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    topological(count, edges, |_| ()).err()
}

/// Walks back from a thing that still waits: each such thing has a predecessor that waits too, so the walk returns.
fn cycle_in(graph: &Graph) -> Vec<usize> {
    let waits = |at: usize| graph.waits_for[at] > 0;
    let mut before = vec![None; graph.after.len()];
    for (at, next) in graph.after.iter().enumerate().filter(|(at, _)| waits(*at)) {
        for one in next {
            before[*one].get_or_insert(at);
        }
    }
    let mut seen = vec![None; graph.after.len()];
    let mut path = Vec::new();
    let mut at = (0..graph.after.len()).find(|at| waits(*at)).unwrap_or(0);
    while seen[at].is_none() {
        seen[at] = Some(path.len());
        path.push(at);
        at = before[at].unwrap_or(at);
    }
    let mut cycle = path.split_off(seen[at].unwrap_or(0));
    cycle.reverse();
    let first = cycle.iter().enumerate().min_by_key(|(_, at)| **at).map_or(0, |(place, _)| place);
    cycle.rotate_left(first);
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_by_key_where_edges_leave_it_open() {
        let edges = [(0, 3), (1, 3), (3, 2), (0, 3)];
        assert_eq!(topological(4, &edges, |at| at), Ok(vec![0, 1, 3, 2]));
        assert_eq!(topological(4, &edges, Reverse), Ok(vec![1, 0, 3, 2]));
    }

    #[test]
    fn a_cycle_is_spelled_out_in_the_direction_of_its_edges() {
        for (count, edges, cycle) in [
            (2, vec![(0, 1), (1, 0)], vec![0, 1]),
            (4, vec![(3, 2), (2, 1), (1, 3), (0, 1)], vec![1, 3, 2]),
            (1, vec![(0, 0)], vec![0]),
            (5, vec![(0, 1), (1, 2), (2, 1), (2, 3), (3, 4)], vec![1, 2]),
        ] {
            assert_eq!(topological(count, &edges, |at| at), Err(cycle), "{edges:?}");
        }
    }

    #[test]
    fn a_rank_is_given_even_where_there_is_a_cycle() {
        assert_eq!(rank(4, &[(2, 1), (1, 2), (2, 3), (0, 2)]), [0, 1, 2, 3]);
        assert_eq!(rank(3, &[(2, 0), (0, 1)]), [2, 0, 1]);
    }
}
