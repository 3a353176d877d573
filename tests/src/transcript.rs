//! Operator scripts: texts of files, commands and their output that are easy to read and extend.
//!
//! ```text
//! What this shows, in words.
//! -- site.yaml --
//! kind: Cluster
//! name: prod
//! -- script --
//! $ stemma validate -f site.yaml
//! no findings: 0 nodes resolve
//! $ stemma render -f site.yaml web-1
//! error: no node "web-1" among these manifests
//! [status 3]
//! ```
//!
//! Standard output comes before standard error. A status other than 0 comes last. `$SITE` is `examples/site`, and
//! `SHA-256` replaces any hash. With `STEMMA_WRITE_TRANSCRIPTS=1` the current output of each command is written into
//! the script. Review it before you commit it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::program;

const SITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/site");
const SCRIPT_MARK: &str = "-- script --";

/// Runs one script and compares the output. With `STEMMA_WRITE_TRANSCRIPTS` set, writes the actual output into the file
/// instead.
///
/// # Errors
/// When the output differs from the script. The error contains both, and the name of the file.
pub fn check(file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let (head, script) = text.split_once(SCRIPT_MARK).with_context(|| format!("{} has no {SCRIPT_MARK}", file.display()))?;
    let dir = tempfile::tempdir()?;
    write_files(head, dir.path())?;
    // A line `$ COMMAND` of the script is a command. The other lines are the expected output.
    let mut actual = format!("{head}{SCRIPT_MARK}\n");
    for command in script.lines().filter_map(|line| line.strip_prefix("$ ")) {
        actual.push_str(&format!("$ {command}\n{}", run(command, dir.path())?));
    }
    if actual == text {
        return Ok(());
    }
    if std::env::var_os("STEMMA_WRITE_TRANSCRIPTS").is_some() {
        return Ok(std::fs::write(file, actual)?);
    }
    bail!("{} says\n{text}\nand this is printed:\n{actual}", file.display())
}

/// Writes the files that precede the script. A line `-- NAME --` begins a file. The lines before the first file are a
/// description.
fn write_files(head: &str, dir: &Path) -> Result<()> {
    let mut file = None;
    for line in head.lines() {
        if let Some(name) = line.strip_prefix("-- ").and_then(|line| line.strip_suffix(" --")) {
            file = Some((dir.join(name), String::new()));
        } else if let Some((_, text)) = &mut file {
            text.push_str(&format!("{line}\n"));
        }
        if let Some((path, text)) = &file {
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Runs one command of a script. Returns its output, and then its status if the status is not 0. Hashes, and the paths
/// of `dir` and of the demo's manifests, are replaced, because they differ between runs.
fn run(command: &str, dir: &Path) -> Result<String> {
    let words = split_words(command);
    let Some((program, arguments)) = words.split_first() else { bail!("a command without a program") };
    let output = Command::new(program::path(program))
        .args(arguments)
        .current_dir(dir)
        .env("NO_COLOR", "1")
        .env("HOME", dir)
        .env_remove("STEMMA_CONTEXT")
        .stdin(Stdio::null())
        .output()
        .with_context(|| command.to_owned())?;
    let mut text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    text = mask_hashes(&text).replace(SITE, "$SITE").replace(&dir.display().to_string(), "$DIR");
    if !output.status.success() {
        text.push_str(&format!("[status {}]\n", output.status.code().unwrap_or(-1)));
    }
    Ok(text)
}

/// Replaces each word of 64 hexadecimal digits with `SHA-256`. Other tests check the values of hashes.
fn mask_hashes(text: &str) -> String {
    let is_hash = |word: &&str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hashes: Vec<&str> = text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(is_hash).collect();
    // YAML quotes a hash that begins with a digit, so the quotes are removed too.
    let mask = |text: String, hash| text.replace(&format!("\"{hash}\""), "SHA-256").replace(hash, "SHA-256");
    hashes.into_iter().fold(text.to_owned(), mask)
}

/// Splits a command at spaces. A part in single quotes is one word. `$SITE` is replaced outside quotes.
fn split_words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in command.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(|word| word.replace("$SITE", SITE))),
            _ => words.push(part.to_owned()),
        }
    }
    words
}
