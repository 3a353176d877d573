//! Pages and completions of the three programs, from their command lines.

use std::fs;
use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

/// The shells, and where a program's completions stand below its directory.
const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

/// Writes all of it below a directory.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(to: &Path) -> Result<()> {
    let man = to.join("man");
    fs::create_dir_all(&man)?;
    pages(stemma::command_line(), "1", &man)?;
    for program in [stemma_agent::args::Arguments::command(), stemma_controller::args::Args::command()] {
        // `stemma` has a verb for its own, which know the fleet's names.
        completions(program.clone(), &to.join("completions"))?;
        pages(program, "8", &man)?;
    }
    Ok(())
}

/// A page of the program, and one of each verb.
fn pages(program: Command, section: &str, to: &Path) -> Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    page(&program, section, to)
}

fn page(command: &Command, section: &str, to: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        page(below, section, to)?;
    }
    let page = Man::new(command.clone()).section(section).manual("Stemma");
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok(fs::write(to.join(page.get_filename()), text)?)
}

fn completions(mut program: Command, to: &Path) -> Result<()> {
    let name = program.get_name().to_owned();
    for (shell, directory) in SHELLS {
        let directory = to.join(directory);
        fs::create_dir_all(&directory)?;
        clap_complete::generate_to(shell, &mut program, name.clone(), directory)?;
    }
    Ok(())
}
