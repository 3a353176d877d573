//! Writes a context for another person: a new directory with everything that they need, readable only by its owner.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The credential of the other person.
pub(crate) enum ContextSecret<'a> {
    /// A certificate chain and its key, both PEM.
    Certificate {
        /// The certificates in PEM, the leaf first.
        chain: &'a str,
        /// The private key in PEM (PKCS#8).
        key: &'a str,
    },
    /// A bearer token.
    Token(&'a str),
}

/// A new directory for a context. It is removed on drop if nothing was written into it.
pub(crate) struct ContextDir {
    directory: PathBuf,
    is_written: bool,
}

impl ContextDir {
    /// Creates the directory. In a dry run, only checks that the path is free.
    ///
    /// # Errors
    /// Fails if the path exists already, or with the error of the system.
    pub(crate) fn create(directory: &Path, is_dry: bool) -> Result<Self> {
        if std::fs::symlink_metadata(directory).is_ok() {
            anyhow::bail!("{}: something is there already; name a new directory", directory.display());
        }
        let directory = directory.to_owned();
        if is_dry {
            return Ok(Self { directory, is_written: true });
        }
        DirBuilder::new().mode(0o700).create(&directory).with_context(|| directory.display().to_string())?;
        Ok(Self { directory, is_written: false })
    }

    /// Writes a context into the directory and returns its path.
    ///
    /// # Errors
    /// Fails with the error of the system.
    pub(crate) fn write(mut self, url: &str, ca: Option<&str>, secret: &ContextSecret<'_>) -> Result<PathBuf> {
        self.is_written = true;
        let mut context = toml::Table::new();
        context.insert("url".to_owned(), url.into());
        let mut put = |field: &str, file: &str, text: &str| -> Result<()> {
            context.insert(field.to_owned(), file.into());
            write_file(&self.directory.join(file), text)
        };
        if let Some(ca) = ca {
            put("ca", "ca.pem", ca)?;
        }
        match secret {
            ContextSecret::Certificate { chain, key } => {
                put("cert", "cert.pem", chain)?;
                put("key", "key.pem", key)?;
            }
            ContextSecret::Token(token) => put("token_file", "token", token)?,
        }
        write_file(&self.directory.join("context.toml"), &toml::to_string(&context)?)?;
        Ok(self.directory.clone())
    }
}

impl Drop for ContextDir {
    fn drop(&mut self) {
        if !self.is_written {
            // The directory is empty. If it can't be removed, the next run reports that it exists.
            let _stays = std::fs::remove_dir(&self.directory);
        }
    }
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(|| path.display().to_string())
}

/// Replaces the content of a file atomically.
///
/// # Errors
/// Fails with the error of the system.
pub(crate) fn replace_file(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_added_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    write_file(&temporary, text)?;
    std::fs::rename(&temporary, path).with_context(|| path.display().to_string())
}
