//! `stemma-controller`: reads the command line, does what it says, and tells a person what went wrong.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use stemma_controller::args::{Args, Command, Init};
use stemma_controller::config::Config;
use stemma_controller::handed::Handed;
use stemma_controller::{backup, init, resume, run};
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::log::{Verbosity, chain};

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Init(args) => make_fleet(&args),
        Command::Run(args) => serve(&args),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::ResumeFleet(args) => resume::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The logger may not stand yet, and a start that fails is read where it was started.
            let _nobody_may_read = writeln!(std::io::stderr(), "stemma-controller: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn make_fleet(args: &Init) -> anyhow::Result<()> {
    let made = init::init(&args.data_dir, &args.names, SystemClock.unix_seconds())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "fleet {} made in {}", made.fleet, args.data_dir.display())?;
    writeln!(out, "start it:    stemma-controller run --data-dir {}", args.data_dir.display())?;
    writeln!(out, "operate it:  stemma --context {} get nodes", made.context.display())?;
    writeln!(out, "agents join with --ca-hash {}", made.ca_hash)?;
    Ok(())
}

fn serve(args: &stemma_controller::args::Run) -> anyhow::Result<()> {
    let handed = Handed::take()?;
    let config = Config::load_with(args, &handed)?;
    stemma_wire::log::init("stemma-controller", Verbosity::Normal, args.log_format)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run::run(config, handed))
}
