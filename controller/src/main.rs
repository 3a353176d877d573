//! `stemma-controller`: runs a subcommand, and prints its error to standard error.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use stemma_controller::args::{Args, Command, InitArgs};
use stemma_controller::config::Config;
use stemma_controller::init::plan::FleetPlan;
use stemma_controller::socket_activation::ActivatedSockets;
use stemma_controller::{backup, resume, run};
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
    let plan = FleetPlan::from_args(args)?;
    let mut out = std::io::stdout().lock();
    let Some(created) = plan.create(args.if_missing, SystemClock.unix_seconds())? else {
        writeln!(out, "stemma-controller: a fleet exists in {}; it was not changed", plan.directory.display())?;
        return Ok(());
    };
    let directory = plan.directory.display();
    // With a configuration file, the service manager runs the controller, and root needs no context.
    if args.config.is_some() {
        let name = plan.names.first().map(|name| format!(", {name}")).unwrap_or_default();
        writeln!(out, "stemma-controller: created a fleet in {directory}; this machine is its controller{name}.")?;
        writeln!(out, "As root here, `stemma token create` prints the command that joins a host.")?;
        return Ok(());
    }
    writeln!(out, "fleet {} made in {directory}", created.fleet)?;
    writeln!(out, "start it:    stemma-controller run --data-dir {directory}")?;
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
