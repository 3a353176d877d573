//! `stemma-controller`: runs a subcommand, and prints its error to standard error.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use stemma_controller::args::{Args, Command, InitArgs};
use stemma_controller::config::Config;
use stemma_controller::socket_activation::ActivatedSockets;
use stemma_controller::{backup, init, resume, run};
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::log::{Verbosity, error_chain};

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Init(args) => init_fleet(&args),
        Command::Run(args) => run_controller(&args),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::ResumeFleet(args) => resume::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The logger may not be set up yet, and a failed start is read in the terminal that started it.
            let _ignored = writeln!(std::io::stderr(), "stemma-controller: {}", error_chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Creates a fleet, and prints how to start and operate it.
fn init_fleet(args: &InitArgs) -> anyhow::Result<()> {
    let created = init::init(&args.data_dir, &args.names, SystemClock.unix_seconds())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "fleet {} made in {}", created.fleet, args.data_dir.display())?;
    writeln!(out, "start it:    stemma-controller run --data-dir {}", args.data_dir.display())?;
    writeln!(out, "operate it:  stemma --context {} get nodes", created.context.display())?;
    writeln!(out, "agents join with --ca-hash {}", created.ca_hash)?;
    Ok(())
}

/// Loads the configuration, sets up the logger, and runs the controller until it stops.
fn run_controller(args: &stemma_controller::args::RunArgs) -> anyhow::Result<()> {
    let sockets = ActivatedSockets::from_environment()?;
    let config = Config::load_with_sockets(args, &sockets)?;
    stemma_wire::log::init("stemma-controller", Verbosity::Normal, args.log_format)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run::run(config, sockets))
}
