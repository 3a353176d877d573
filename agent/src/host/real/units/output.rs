//! The outputs of commands: named pipes, which a later agent can open.
//!
//! A command has its pipe open for reading too. So it gets no SIGPIPE while no agent runs, and systemd, which holds the
//! same open file, keeps what no agent has read.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use stemma_core::task::AGENT_RUN_DIR;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::host::command::OutputTail;
use crate::host::real::spawn::{OUTPUT_LINGER, read_output, read_until};

/// The directory of the pipes. Each pipe has the name of its unit.
const OUTPUT_DIR: &str = "/run/stemma/output";

/// The capacity of a pipe, in bytes.
const PIPE_BYTES: usize = 64 * 1024;

/// The output of a command, as the agent reads it.
pub(super) struct CommandOutput {
    reader: pipe::Receiver,
    tail: OutputTail,
}

impl CommandOutput {
    /// Opens the output of a unit.
    ///
    /// # Errors
    /// Fails if the pipe does not exist or cannot be opened.
    pub(super) fn open(unit: &str) -> io::Result<Self> {
        Ok(Self { reader: pipe::OpenOptions::new().open_receiver(path(unit))?, tail: OutputTail::default() })
    }

    /// Waits for the end of the command. Until then, reads its output.
    pub(super) async fn read_until<T>(&mut self, end: impl Future<Output = T>) -> T {
        read_until(end, &mut self.reader, &mut self.tail).await
    }

    /// Reads the rest of the output of a command that has ended, and returns the end of the output. If a program of the
    /// command continues, reads for [`OUTPUT_LINGER`], and then what the pipe contains.
    pub(super) async fn into_text(mut self, has_processes: bool) -> String {
        if has_processes {
            let _ = timeout(OUTPUT_LINGER, read_output(&mut self.reader, &mut self.tail)).await;
        }
        // The pipe is read directly, because `try_read` returns nothing if the pipe was not polled yet.
        let mut buffer = [0; 4096];
        for _ in 0..PIPE_BYTES / buffer.len() {
            let Ok(length @ 1..) = rustix::io::read(&self.reader, &mut buffer) else { break };
            self.tail.push(&buffer[..length]);
        }
        self.tail.into_text()
    }
}

/// Creates the pipe for the output of a unit, and returns the open file for the command.
///
/// # Errors
/// Fails if the pipe cannot be created, for example because `/run` is full.
pub(super) fn create(unit: &str) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o755).create(AGENT_RUN_DIR)?;
    DirBuilder::new().recursive(true).mode(0o700).create(OUTPUT_DIR)?;
    rustix::fs::mknodat(CWD, path(unit), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    File::options().read(true).write(true).open(path(unit))
}

/// Lets writes to the output fail when the pipe is full. A program that continues after its command would otherwise wait
/// for a reader forever.
pub(super) fn abandon(writer: &File) {
    let _ = rustix::fs::fcntl_setfl(writer, OFlags::RDWR | OFlags::NONBLOCK);
}

/// Removes the name of a unit's pipe, if it exists.
pub(super) fn remove(unit: &str) {
    let _ = fs::remove_file(path(unit));
}

/// Removes the names of the pipes of the units that `is_removed` selects.
pub(super) fn sweep(is_removed: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(OUTPUT_DIR) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_removed(name)).for_each(|name| remove(&name));
}

/// Returns the path of the pipe of a unit.
fn path(unit: &str) -> PathBuf {
    PathBuf::from(OUTPUT_DIR).join(unit)
}
