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
        for (first, second) in edges {
            successors[*first].push(*second);
        }
        let mut predecessor_counts = vec![0; count];
        for vertices in &mut successors {
            vertices.sort_unstable();
            vertices.dedup();
            for vertex in vertices {
                predecessor_counts[*vertex] += 1;
            }
        }
        Self { successors, predecessor_counts }
    }
}

/// Returns the vertices in an order that respects every edge. If several vertices could come next, the vertex with the
/// lowest key comes next.
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
        (0..count).filter(|vertex| graph.predecessor_counts[*vertex] == 0).map(|vertex| Reverse((key(vertex), vertex))).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse((_, vertex))) = ready.pop() {
        order.push(vertex);
        for next in &graph.successors[vertex] {
            graph.predecessor_counts[*next] -= 1;
            if graph.predecessor_counts[*next] == 0 {
                ready.push(Reverse((key(*next), *next)));
            }
        }
    }
    if order.len() == count { Ok(order) } else { Err(cycle_in(&graph)) }
}

/// Returns the vertices in an order that respects every edge if there is no cycle. If every remaining vertex waits for
/// another, the one with the lowest number is next, even if it is in no cycle. `edges` are as in [`topological_order`].
pub(crate) fn order_despite_cycles(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut graph = OrderGraph::new(count, edges);
    let mut is_ordered = vec![false; count];
    let mut ready: BinaryHeap<_> = (0..count).filter(|vertex| graph.predecessor_counts[*vertex] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(count);
    let mut lowest = 0;
    while order.len() < count {
        let vertex = ready.pop().map_or_else(
            || {
                // No vertex is ready, so the unordered vertex with the lowest number is next.
                lowest += is_ordered[lowest..].iter().position(|is_ordered| !is_ordered).unwrap_or(0);
                lowest
            },
            |Reverse(vertex)| vertex,
        );
        // No vertex is ordered twice.
        if std::mem::replace(&mut is_ordered[vertex], true) {
            continue;
        }
        order.push(vertex);
        for next in &graph.successors[vertex] {
            graph.predecessor_counts[*next] = graph.predecessor_counts[*next].saturating_sub(1);
            if graph.predecessor_counts[*next] == 0 && !is_ordered[*next] {
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

/// Returns a cycle of a graph whose vertices could not all be ordered. The predecessor counts must be those that
/// remain.
///
/// Walks back from a vertex that has unordered predecessors. Each such vertex has a predecessor of the same kind, so
/// the walk returns to a vertex that it has visited. The returned cycle begins with its lowest vertex.
fn cycle_in(graph: &OrderGraph) -> Vec<usize> {
    let is_waiting = |vertex: usize| graph.predecessor_counts[vertex] > 0;
    let mut predecessors = vec![None; graph.successors.len()];
    for (vertex, successors) in graph.successors.iter().enumerate().filter(|(vertex, _)| is_waiting(*vertex)) {
        for successor in successors {
            predecessors[*successor].get_or_insert(vertex);
        }
    }
    let mut path_positions = vec![None; graph.successors.len()];
    let mut path = Vec::new();
    let mut vertex = (0..graph.successors.len()).find(|vertex| is_waiting(*vertex)).unwrap_or(0);
    while path_positions[vertex].is_none() {
        path_positions[vertex] = Some(path.len());
        path.push(vertex);
        vertex = predecessors[vertex].unwrap_or(vertex);
    }
    let mut cycle = path.split_off(path_positions[vertex].unwrap_or(0));
    cycle.reverse();
    let lowest = cycle.iter().enumerate().min_by_key(|(_, vertex)| **vertex).map_or(0, |(position, _)| position);
    cycle.rotate_left(lowest);
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The edge from 0 to 3 is listed twice, and counts once.
    #[test]
    fn topological_order_sorts_by_key_when_edges_allow() {
        let edges = [(0, 3), (1, 3), (3, 2), (0, 3)];
        assert_eq!(topological_order(4, &edges, |at| at), Ok(vec![0, 1, 3, 2]));
        assert_eq!(topological_order(4, &edges, Reverse), Ok(vec![1, 0, 3, 2]));
    }

    #[test]
    fn topological_order_returns_cycle_along_edges() {
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
    fn order_despite_cycles_orders_all_vertices() {
        assert_eq!(order_despite_cycles(4, &[(2, 1), (1, 2), (2, 3), (0, 2)]), [0, 1, 2, 3]);
        assert_eq!(order_despite_cycles(3, &[(2, 0), (0, 1)]), [2, 0, 1]);
    }
}
