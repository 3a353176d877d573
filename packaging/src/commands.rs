//! Writes the manual pages and completions of the programs, generated from their command lines.

use std::fs;
use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

/// The shells, each with the name of the subdirectory for its completions.
const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

/// Writes the manual pages to `man` and the completions to `completions`, both below the directory `out_dir`.
///
/// # Errors
/// Fails if a directory or a file cannot be written.
pub(crate) fn write(out_dir: &Path) -> Result<()> {
    let man = out_dir.join("man");
    fs::create_dir_all(&man)?;
    write_pages(stemma::command_line(), "1", &man)?;
    for program in [stemma_agent::args::Arguments::command(), stemma_controller::args::Args::command()] {
        // `stemma` has a command for its own completions, which include the names in the fleet.
        write_completions(program.clone(), &out_dir.join("completions"))?;
        write_pages(program, "8", &man)?;
    }
    Ok(())
}

/// Writes a manual page for the program and one for each of its visible commands. `section` is the section of the
/// manual.
fn write_pages(program: Command, section: &str, out_dir: &Path) -> Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write_page(&program, section, out_dir)
}

/// Writes the manual page of a command, and the pages of its visible subcommands.
fn write_page(command: &Command, section: &str, out_dir: &Path) -> Result<()> {
    for subcommand in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        write_page(subcommand, section, out_dir)?;
    }
    let page = Man::new(command.clone()).section(section).manual("Stemma");
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok(fs::write(out_dir.join(page.get_filename()), text)?)
}

/// Writes the completions of a program, in one subdirectory for each shell.
fn write_completions(mut program: Command, out_dir: &Path) -> Result<()> {
    let name = program.get_name().to_owned();
    for (shell, directory) in SHELLS {
        let directory = out_dir.join(directory);
        fs::create_dir_all(&directory)?;
        clap_complete::generate_to(shell, &mut program, name.clone(), directory)?;
    }
    Ok(())
}
