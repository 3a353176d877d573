//! The agent's program.
fn main() {}
