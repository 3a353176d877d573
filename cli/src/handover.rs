//! A context for somebody else: a new directory with all that they need, which they alone may read.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// By what the other is known.
pub(crate) enum Secret<'a> {
    /// A certificate chain and its key, both PEM.
    Certificate {
        /// Leaf first.
        chain: &'a str,
        /// PKCS#8.
        key: &'a str,
    },
    /// A bearer token.
    Token(&'a str),
}

/// A new directory that waits for what is to go into it. It goes again where nothing comes.
pub(crate) struct Place {
    directory: PathBuf,
    is_written: bool,
}

impl Place {
    /// Makes the directory; of one that is only tried out it is looked whether it could be made.
    ///
    /// # Errors
    /// When something is there already; what the system said.
    pub(crate) fn take(directory: &Path, is_dry: bool) -> Result<Self> {
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

    /// Writes a context there, and gives the directory.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn write(mut self, url: &str, ca: Option<&str>, secret: &Secret<'_>) -> Result<PathBuf> {
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
            Secret::Certificate { chain, key } => {
                put("cert", "cert.pem", chain)?;
                put("key", "key.pem", key)?;
            }
            Secret::Token(token) => put("token_file", "token", token)?,
        }
        write_file(&self.directory.join("context.toml"), &toml::to_string(&context)?)?;
        Ok(self.directory.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_written {
            // It is empty; where it stays, it is told so the next time.
            let _stays = std::fs::remove_dir(&self.directory);
        }
    }
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(|| path.display().to_string())
}

/// Puts a text in the place of a file's, at once.
///
/// # Errors
/// What the system said.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_added_extension("new");
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    write_file(&beside, text)?;
    std::fs::rename(&beside, path).with_context(|| path.display().to_string())
}
