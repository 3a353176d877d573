//! Deterministic order and cycle search over a graph of numbered vertices. The same graph always gives the same result.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The successors of each vertex and the number of its predecessors. Duplicate edges count once.
struct OrderGraph {
    successors: Vec<Vec<usize>>,
    predecessor_counts: Vec<usize>,
}

impl OrderGraph {
    /// Creates the graph from pairs of numbers below `count`. The first of a pair comes before the second.
    fn new(count: usize, edges: &[(usize, usize)]) -> Self {
        let mut successors = vec![Vec::new(); count];
        for (before, next) in edges {
            successors[*before].push(*next);
        }
        let mut predecessor_counts = vec![0; count];
        for next in &mut successors {
            next.sort_unstable();
            next.dedup();
            for at in next {
                predecessor_counts[*at] += 1;
            }
        }
        Self { successors, predecessor_counts }
    }
}

/// Returns the vertices in an order that respects every edge. If several vertices could come next, the one with the
/// lowest key does.
///
/// `edges` are pairs of numbers below `count`. The first of a pair comes before the second.
///
/// # Errors
/// A cycle. Each of its vertices is listed once and comes before the next, and the last comes before the first.
pub fn topological_order<K: Ord + Copy>(
    count: usize,
    edges: &[(usize, usize)],
    key: impl Fn(usize) -> K,
) -> Result<Vec<usize>, Vec<usize>> {
    let mut graph = OrderGraph::new(count, edges);
    let mut ready: BinaryHeap<_> =
        (0..count).filter(|at| graph.predecessor_counts[*at] == 0).map(|at| Reverse((key(at), at))).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse((_, at))) = ready.pop() {
        order.push(at);
        for next in &graph.successors[at] {
            graph.predecessor_counts[*next] -= 1;
            if graph.predecessor_counts[*next] == 0 {
                ready.push(Reverse((key(*next), *next)));
            }
        }
    }
    if order.len() == count { Ok(order) } else { Err(cycle_in(&graph)) }
}

/// Returns the vertices in an order that respects the edges as far as cycles allow. If every remaining vertex waits for
/// another, the lowest vertex comes first.
pub(crate) fn rank(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut graph = OrderGraph::new(count, edges);
    let mut done = vec![false; count];
    let mut ready: BinaryHeap<_> = (0..count).filter(|at| graph.predecessor_counts[*at] == 0).map(Reverse).collect();
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
        for next in &graph.successors[at] {
            graph.predecessor_counts[*next] = graph.predecessor_counts[*next].saturating_sub(1);
            if graph.predecessor_counts[*next] == 0 && !done[*next] {
                ready.push(Reverse(*next));
            }
        }
    }
    order
}

/// Returns a cycle, if there is one. Each of its vertices is listed once and comes before the next, and the last comes
/// before the first.
pub(crate) fn find_cycle(count: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    topological_order(count, edges, |_| ()).err()
}

/// Finds a cycle by walking back from a vertex that has unordered predecessors. Each such vertex has a predecessor of
/// the same kind, so the walk returns to a vertex that it has visited.
fn cycle_in(graph: &OrderGraph) -> Vec<usize> {
    let waits = |at: usize| graph.predecessor_counts[at] > 0;
    let mut predecessors = vec![None; graph.successors.len()];
    for (at, next) in graph.successors.iter().enumerate().filter(|(at, _)| waits(*at)) {
        for successor in next {
            predecessors[*successor].get_or_insert(at);
        }
    }
    let mut seen = vec![None; graph.successors.len()];
    let mut path = Vec::new();
    let mut at = (0..graph.successors.len()).find(|at| waits(*at)).unwrap_or(0);
    while seen[at].is_none() {
        seen[at] = Some(path.len());
        path.push(at);
        at = predecessors[at].unwrap_or(at);
    }
    let mut cycle = path.split_off(seen[at].unwrap_or(0));
    cycle.reverse();
    let first = cycle.iter().enumerate().min_by_key(|(_, at)| **at).map_or(0, |(position, _)| position);
    cycle.rotate_left(first);
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topological_order_sorts_by_key_when_edges_allow() {
        let edges = [(0, 3), (1, 3), (3, 2), (0, 3)];
        assert_eq!(topological_order(4, &edges, |at| at), Ok(vec![0, 1, 3, 2]));
        assert_eq!(topological_order(4, &edges, Reverse), Ok(vec![1, 0, 3, 2]));
    }

    #[test]
    fn find_cycle_follows_direction_of_edges() {
        for (count, edges, cycle) in [
            (2, vec![(0, 1), (1, 0)], vec![0, 1]),
            (4, vec![(3, 2), (2, 1), (1, 3), (0, 1)], vec![1, 3, 2]),
            (1, vec![(0, 0)], vec![0]),
            (5, vec![(0, 1), (1, 2), (2, 1), (2, 3), (3, 4)], vec![1, 2]),
        ] {
            assert_eq!(topological_order(count, &edges, |at| at), Err(cycle), "{edges:?}");
        }
    }

    #[test]
    fn rank_gives_order_when_edges_form_cycle() {
        assert_eq!(rank(4, &[(2, 1), (1, 2), (2, 3), (0, 2)]), [0, 1, 2, 3]);
        assert_eq!(rank(3, &[(2, 0), (0, 1)]), [2, 0, 1]);
    }
}
