//! The agent's program: reads its arguments and does what they say.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use stemma_agent::args::{Arguments, Verb};
use stemma_agent::host::real::surroundings;
use stemma_agent::verbs::{self, Exit};
use stemma_wire::log::{self, Verbosity};

fn main() -> ExitCode {
    surroundings::settle();
    let arguments = Arguments::parse();
    let verbosity = if matches!(arguments.verb, Verb::Run) { Verbosity::Normal } else { Verbosity::Quiet };
    if let Err(error) = log::init("stemma-agent", verbosity, arguments.log_format) {
        return fail(&anyhow::Error::new(error).context("the log"));
    }
    match act(&arguments) {
        Ok(exit) => ExitCode::from(exit.status()),
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // Where standard error is gone there is nobody to tell.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("error: {error:#}\n").as_bytes());
    ExitCode::from(Exit::Failed.status())
}

fn act(arguments: &Arguments) -> Result<Exit> {
    let root = arguments.root.as_path();
    match &arguments.verb {
        Verb::Join(join) => verbs::join(root, join),
        Verb::Leave(leave) => verbs::leave(root, *leave),
        Verb::Run => verbs::run(root),
        Verb::Once => verbs::once(root),
        Verb::Check(printed) => verbs::check(root, printed.output),
        Verb::Status(printed) => verbs::status(root, printed.output),
        Verb::Explain { kind, name, printed } => verbs::explain(root, *kind, name, printed.output),
        Verb::Pause => verbs::pause(root),
        Verb::Resume => verbs::resume(root),
        Verb::ResolveUnknown { task, answer } => verbs::resolve_unknown(root, task, *answer),
        Verb::Refill => verbs::refill(root),
    }
}
