//! Writes a context for another person: a new directory with everything that the person needs, readable only by its
//! owner.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The credential in a new context.
pub(crate) enum ContextSecret<'a> {
    /// A certificate chain and its private key.
    Certificate {
        /// The certificates in PEM, the leaf first.
        chain: &'a str,
        /// The private key in PEM (PKCS#8).
        key: &'a str,
    },
    /// A bearer token.
    Token(&'a str),
}

/// A new directory for a context. It is removed on drop, unless a write of the context into it has begun.
pub(crate) struct ContextDir {
    directory: PathBuf,
    is_written: bool,
}

impl ContextDir {
    /// Creates the directory. In a dry run, only checks that nothing exists at the path.
    ///
    /// # Errors
    /// Fails if something exists at the path, or if the system can't create the directory.
    pub(crate) fn create(directory: &Path, is_dry: bool) -> Result<Self> {
        if std::fs::symlink_metadata(directory).is_ok() {
            anyhow::bail!("{}: something exists there already; name a new directory", directory.display());
        }
        let directory = directory.to_owned();
        if is_dry {
            // Nothing was created, so nothing is removed on drop.
            return Ok(Self { directory, is_written: true });
        }
        DirBuilder::new().mode(0o700).create(&directory).with_context(|| directory.display().to_string())?;
        Ok(Self { directory, is_written: false })
    }

    /// Writes `context.toml` and the files that it names into the directory. Returns the path of the directory.
    ///
    /// # Errors
    /// Fails if a file can't be written.
    pub(crate) fn write(mut self, url: &str, ca: Option<&str>, secret: &ContextSecret<'_>) -> Result<PathBuf> {
        // From here on, the directory remains, even if a file cannot be written. The credential exists already.
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
            let _ignored = std::fs::remove_dir(&self.directory);
        }
    }
}

/// Creates a file that only its owner can read and write, and syncs it to disk.
///
/// # Errors
/// Fails if something exists at the path, or if the file can't be written.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(|| path.display().to_string())
}

/// Replaces the content of a file atomically, by renaming a temporary file that only its owner can read and write.
///
/// # Errors
/// Fails if the temporary file can't be written or renamed.
pub(crate) fn replace_file(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_added_extension("new");
    // An interrupted replacement may have left a temporary file.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    write_file(&temporary, text)?;
    std::fs::rename(&temporary, path).with_context(|| path.display().to_string())
}
