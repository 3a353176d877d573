//! The agent's program: parses the arguments and runs the command.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use stemma_agent::args::{AgentCommand, Arguments};
use stemma_agent::host::real::process_setup;
use stemma_agent::verbs::{self, AgentExit};
use stemma_wire::log::{self, Verbosity};

/// Sets up the process, parses the arguments, sets up logging, and runs the command.
fn main() -> ExitCode {
    process_setup::set_up_process();
    let arguments = Arguments::parse();
    let verbosity = if matches!(arguments.verb, AgentCommand::Run) { Verbosity::Normal } else { Verbosity::Quiet };
    if let Err(error) = log::init("stemma-agent", verbosity, arguments.log_format) {
        return fail(&anyhow::Error::new(error).context("the log"));
    }
    match run_command(&arguments) {
        Ok(exit) => ExitCode::from(exit.status()),
        Err(error) => fail(&error),
    }
}

/// Prints an error on standard error. Returns the exit status for a failure.
fn fail(error: &anyhow::Error) -> ExitCode {
    // If standard error is closed, the error cannot be reported.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("error: {error:#}\n").as_bytes());
    ExitCode::from(AgentExit::Failed.status())
}

/// Runs the command that the arguments name.
fn run_command(arguments: &Arguments) -> Result<AgentExit> {
    let root = arguments.root.as_path();
    match &arguments.verb {
        AgentCommand::Join(join) => verbs::join(root, join),
        AgentCommand::Leave(leave) => verbs::leave(root, *leave),
        AgentCommand::Run => verbs::run(root),
        AgentCommand::Once => verbs::once(root),
        AgentCommand::Check(printed) => verbs::check(root, printed.output),
        AgentCommand::Status(printed) => verbs::status(root, printed.output),
        AgentCommand::Explain { kind, name, printed } => verbs::explain(root, *kind, name, printed.output),
        AgentCommand::Pause => verbs::pause(root),
        AgentCommand::Resume => verbs::resume(root),
        AgentCommand::ResolveUnknown { task, answer } => verbs::resolve_unknown(root, task, *answer),
        AgentCommand::Refill => verbs::refill(root),
    }
}
