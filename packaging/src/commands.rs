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
        let path = clap_complete::generate_to(shell, &mut program, name.clone(), directory)?;
        if shell == Shell::Bash {
            // The script has two names for a program with a hyphen, so it completes no options of subcommands. A later
            // version of clap_complete may have one name.
            let (own_name, name_in_cases) = (name.replace('-', "__"), name.replace('-', "__subcmd__"));
            fs::write(&path, fs::read_to_string(&path)?.replace(&name_in_cases, &own_name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    /// Runs a script in a shell, and returns its output.
    fn run(shell: &str, script: &str) -> String {
        let output = process::Command::new(shell).args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin").output();
        let output = output.unwrap_or_else(|error| panic!("{shell}: {error}"));
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    }

    /// In this test, bash and zsh call the completion function of the script as they do for a line of a terminal.
    #[test]
    fn completion_returns_options_of_subcommands() {
        let directory = tempfile::tempdir().unwrap();
        for (program, verb, begin, expected) in [
            (stemma_agent::args::Arguments::command(), "join", "--to", "--token-file"),
            (stemma_controller::args::Args::command(), "run", "--data", "--data-dir"),
        ] {
            write_completions(program.clone(), directory.path()).unwrap();
            let (name, path) = (program.get_name(), directory.path().display());
            let function = name.replace('-', "__");
            let bash = format!(
                "source {path}/bash/{name}.bash; COMP_WORDS=({name} {verb} {begin}); COMP_CWORD=2; _{function} {name} {begin} {verb}; \
                 echo \"${{COMPREPLY[@]}}\""
            );
            assert_eq!(run("bash", &bash), format!("{expected}\n"));
            let fish = format!("source {path}/fish/{name}.fish; complete -C '{name} {verb} {begin}'");
            assert!(run("fish", &fish).starts_with(expected), "{}", run("fish", &fish));
            // `_arguments` gets the options of the subcommand.
            let zsh = format!(
                "fpath=({path}/zsh $fpath); autoload -Uz _{name}; _arguments() {{ print -l -- \"$@\"; line=({verb}); state={name} }}; \
                 is-at-least() {{ true }}; compdef() {{ }}; words=({name} {verb} {begin}); CURRENT=3; curcontext=; _{name}"
            );
            assert!(run("zsh", &zsh).contains(&format!("{expected}=")), "{}", run("zsh", &zsh));
        }
    }
}
