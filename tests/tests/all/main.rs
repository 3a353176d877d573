//! The tests that start programs, as one program, which is linked once.

#[path = "../served/mod.rs"]
mod served;
#[path = "../stored/mod.rs"]
mod stored;

mod access;
mod api_examples;
mod attacks;
mod backup;
mod baremetal;
mod catalog;
mod cli;
mod cli_audit;
mod cli_completion;
mod cli_directories;
mod cli_lists;
mod cli_primaries;
mod cli_several;
mod cli_states;
mod clients;
mod clocks;
mod described;
mod description;
mod events;
mod extensions;
mod faults;
mod found;
mod fuel;
mod fuzz;
mod held;
mod host;
mod host_refusals;
mod impostor;
mod inspection;
mod ironic;
mod join;
mod kill;
mod labels_cli;
mod network;
mod one_path;
mod order;
mod ports;
mod refused;
mod round_trip;
mod same_answer;
mod secrets;
mod ssa;
mod syncs;
mod tag_lifecycle;
mod thin_line;
mod transcripts;
mod units;
mod upgrade;
mod vectors;
mod writes;
mod yaml_readers;
