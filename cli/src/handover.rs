//! A context for somebody else: a new directory with all that they need, which they alone may read.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::context::Context;

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

/// Checks that a directory can be made there, before anything is asked for that would go into it.
///
/// # Errors
/// That something is there.
pub(crate) fn check(directory: &Path) -> Result<()> {
    if std::fs::symlink_metadata(directory).is_ok() {
        anyhow::bail!("{}: something is there already; name a new directory", directory.display());
    }
    Ok(())
}

/// Writes the directory. It must not be there yet.
///
/// # Errors
/// What the system said.
pub(crate) fn write(directory: &Path, own: &Context, url: Option<&str>, secret: &Secret<'_>) -> Result<()> {
    let ca = own.ca.as_ref().map(|ca| std::fs::read_to_string(ca).with_context(|| ca.display().to_string()));
    let ca = ca.transpose()?;
    DirBuilder::new().mode(0o700).create(directory).with_context(|| directory.display().to_string())?;
    let mut context = toml::Table::new();
    context.insert("url".to_owned(), url.unwrap_or(&own.url).into());
    let mut put = |field: &str, file: &str, text: &str| -> Result<()> {
        context.insert(field.to_owned(), file.into());
        write_file(&directory.join(file), text)
    };
    if let Some(ca) = &ca {
        put("ca", "ca.pem", ca)?;
    }
    match secret {
        Secret::Certificate { chain, key } => {
            put("cert", "cert.pem", chain)?;
            put("key", "key.pem", key)?;
        }
        Secret::Token(token) => put("token_file", "token", token)?,
    }
    write_file(&directory.join("context.toml"), &toml::to_string(&context)?)
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
