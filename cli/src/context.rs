//! The context: a small file with the controller's address and the client's credentials. `stemma-controller init`
//! writes one for the admin.

use std::fmt::Display;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use stemma_core::name::is_blank;
use stemma_wire::client::Target;
use stemma_wire::config::{self, ConfigError, FileSensitivity};
use stemma_wire::message::enroll::find_token_error;

use crate::args::GlobalArgs;
use crate::exit::Exit;

/// The prefix of a URL that names root's Unix socket. Root needs no credentials on this socket.
const SOCKET_PREFIX: &str = "unix:";

/// The path of root's socket in the packaged controller.
const ROOT_SOCKET: &str = "/var/lib/stemma-controller/admin.sock";

/// The name of the context that is used if neither `--context` nor `STEMMA_CONTEXT` names one.
const DEFAULT_NAME: &str = "default";

/// The content of a context file: the controller's URL, and the files with the credentials. In the file, their paths are
/// relative to the directory of the context file. The paths in this struct are already joined with that directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientContext {
    /// The controller's admin URL.
    pub(crate) url: String,
    /// File with the fleet's root certificate, in PEM. The client uses it to check the controller's certificate.
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
    /// File with the client's certificate chain, in PEM.
    #[serde(default)]
    pub(crate) cert: Option<PathBuf>,
    /// File with the client's private key, in PEM.
    #[serde(default)]
    pub(crate) key: Option<PathBuf>,
    /// File with a bearer token, in place of certificate and key.
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
}

impl ClientContext {
    /// Loads the context that the command line names, or else the context with the default name. A URL of the command
    /// line replaces the URL of the context. If that URL needs no credentials (`http:` or `unix:`), no context is read.
    ///
    /// If neither is given and the default context does not exist, root on the controller's own machine uses root's
    /// socket.
    ///
    /// # Errors
    /// Fails if the URL of the command line is invalid. Fails if the context file does not exist, is not a context, or can
    /// be written by other users. Fails for a context name if `HOME` is not an absolute path.
    pub(crate) fn load(global: &GlobalArgs) -> Result<Self> {
        let is_keyless = |url: &&str| url.starts_with("http://") || url.starts_with(SOCKET_PREFIX);
        let keyless_url = global.server.as_deref().filter(is_keyless);
        if let Some(url) = &global.server {
            url.parse::<Target>()?;
        }
        if let Some(url) = keyless_url {
            return Ok(Self::without_keys(url.to_owned()));
        }
        if global.context.is_none() && global.server.is_none() && is_root_on_controller(Path::new(ROOT_SOCKET)) {
            return Ok(Self::without_keys(format!("{SOCKET_PREFIX}{ROOT_SOCKET}")));
        }
        let home = home_directory();
        let file = match &global.context {
            Some(name) => context_file(name, home.as_deref())?,
            None => {
                let file = file_by_name(DEFAULT_NAME, home.as_deref())?;
                if global.server.is_none() && !file.exists() && is_stopped_controller(Path::new(ROOT_SOCKET)) {
                    bail!(
                        "the controller on this machine does not run, and there is no context at {}: run `systemctl start stemma-controller`, or name the context of another controller with --context FILE",
                        file.display()
                    );
                }
                file
            }
        };
        let mut context = Self::read(&file)?;
        if let Some(url) = &global.server {
            context.url.clone_from(url);
        }
        Ok(context)
    }

    /// Returns a context that contains only a URL.
    fn without_keys(url: String) -> Self {
        Self { url, ca: None, cert: None, key: None, token_file: None }
    }

    /// Returns whether the URL of the context is root's socket. The files next to that socket can be trusted as much as
    /// the socket.
    pub(crate) fn is_socket(&self) -> bool {
        self.url.starts_with(SOCKET_PREFIX)
    }

    /// Returns the context itself, unless its URL is root's socket. Then returns the context of the first admin, which
    /// is stored next to the socket and contains the URL for other machines.
    ///
    /// # Errors
    /// Fails if that file can't be read or is not a context.
    pub(crate) fn with_socket_context(self) -> Result<Self> {
        match self.url.strip_prefix(SOCKET_PREFIX).and_then(|path| Path::new(path).parent()) {
            Some(directory) => {
                let file = directory.join("admin/context.toml");
                let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
                Self::parse(&text, &file)
            }
            None => Ok(self),
        }
    }

    /// Returns the bearer token, or `None` if the context names no token file.
    ///
    /// # Errors
    /// Fails if the file can't be read, if other users can read it, or if it contains anything other than a token.
    pub(crate) fn token(&self) -> Result<Option<String>> {
        let Some(file) = self.token_file.as_deref() else { return Ok(None) };
        let token_error = |problem: &dyn Display| {
            let form = "a token is ID.SECRET, as `stemma principal token create` prints it, in a file of its own";
            anyhow!("{}: does not contain just a token: {problem}; {form}; nothing was sent", file.display())
        };
        let text = config::read(file, FileSensitivity::Secret).map_err(|error| match error {
            ConfigError::NotText { why, .. } => token_error(&why),
            other => other.into(),
        })?;
        let token = text.trim();
        find_token_error(token).map_or_else(|| Ok(Some(token.to_owned())), |problem| Err(token_error(&problem)))
    }

    /// Reads a context file. Fails if the file is not a context, or if other users can write it.
    fn read(file: &Path) -> Result<Self> {
        let text = config::read(file, FileSensitivity::Settings).map_err(|error| match error {
            ConfigError::Read { why, .. } if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                anyhow::Error::new(why).context(format!(
                    "no context at {}: name one with --context FILE or STEMMA_CONTEXT (init writes one to DATA_DIR/admin/context.toml)",
                    file.display()
                ))
            }
            // The file is also refused if other users can write it, because they could change the trusted controller
            // and the key.
            other => other.into(),
        })?;
        Self::parse(&text, file)
    }

    /// Parses the text of a context file, and resolves its paths against the directory of the file.
    fn parse(text: &str, file: &Path) -> Result<Self> {
        let mut context: Self = toml::from_str(text).with_context(|| format!("{} is not a context", file.display()))?;
        let dir = file.parent().unwrap_or(Path::new("."));
        let Self { ca, cert, key, token_file, .. } = &mut context;
        for path in [ca, cert, key, token_file].into_iter().flatten() {
            // An absolute path remains unchanged.
            *path = dir.join(&*path);
        }
        Ok(context)
    }
}

/// Returns whether root's socket is accessible and there is no default context. Only root and the controller's own user
/// can access the directory of the socket, so the caller is then one of these on the controller's machine.
fn is_root_on_controller(socket: &Path) -> bool {
    let has_context = file_by_name(DEFAULT_NAME, home_directory().as_deref()).is_ok_and(|file| file.exists());
    !has_context && std::fs::symlink_metadata(socket).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Returns whether a controller has its store on this machine and has no socket for root, because it does not run. Only
/// root and the controller's own user can see this.
fn is_stopped_controller(socket: &Path) -> bool {
    !socket.exists() && socket.with_file_name("store.redb").exists()
}

/// Returns the home directory from the variable `HOME`, if it is set.
fn home_directory() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

/// Returns the path of a context file. A text with a slash is a path. A text without a slash is a name below
/// `~/.config/stemma`. Such a name never means a file in the working directory, which others may be able to write. Fails
/// if the text is blank, `.` or `..`, or if only the working directory has a file of this name.
fn context_file(text: &str, home: Option<&Path>) -> Result<PathBuf> {
    if is_blank(text) {
        let sentence =
            "the context is empty: name a file, or one below ~/.config/stemma, with --context or STEMMA_CONTEXT, or unset that";
        return Err(Exit::Usage.with_message(sentence));
    }
    if text.contains('/') {
        return Ok(PathBuf::from(text));
    }
    if matches!(text, "." | "..") {
        return Err(
            Exit::Usage.with_message(format!("the context {text} is a directory: name a file in it, as {text}/context.toml"))
        );
    }
    let file = file_by_name(text, home)?;
    if !file.exists() && Path::new(text).is_file() {
        bail!("no context at {}: for the file in the working directory write ./{text}", file.display());
    }
    Ok(file)
}

/// Returns the path of the context file with this name below `~/.config/stemma`. Fails if the home directory is unset,
/// empty or relative, because the path would then lead below the working directory.
fn file_by_name(name: &str, home: Option<&Path>) -> Result<PathBuf> {
    let Some(home) = home.filter(|home| home.is_absolute()) else {
        bail!(
            "context {name:?} is a file below ~/.config/stemma, but HOME is not set to an absolute path: name a file with --context ./FILE"
        );
    };
    Ok(home.join(".config/stemma").join(format!("{name}.toml")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a variable that was not set produced the path `~/.config/stemma/.toml`.
    #[test]
    fn x06_context_file_rejects_empty_name() {
        for name in ["", " ", "\t", "\u{200b}"] {
            let refused = context_file(name, None).unwrap_err().to_string();
            assert!(refused.contains("the context is empty") && refused.contains("STEMMA_CONTEXT"), "{name:?}: {refused}");
        }
    }

    /// Regression test: with `HOME=`, the file `.config/stemma/default.toml` of the working directory was read.
    #[test]
    fn x06_context_file_rejects_empty_or_relative_home() {
        for home in [None, Some(""), Some("."), Some("home/ada")] {
            let refused = file_by_name(DEFAULT_NAME, home.map(Path::new)).unwrap_err().to_string();
            assert!(refused.contains("HOME is not set to an absolute path"), "{home:?}: {refused}");
        }
        let file = file_by_name(DEFAULT_NAME, Some(Path::new("/home/ada"))).unwrap();
        assert_eq!(file, Path::new("/home/ada/.config/stemma/default.toml"));
    }

    /// The tests of a package run in the package's directory, which contains `Cargo.toml`.
    #[test]
    fn x06_context_file_ignores_working_directory_for_bare_name() {
        let home = tempfile::tempdir().unwrap();
        let file = |text| context_file(text, Some(home.path()));
        let refused = file("Cargo.toml").unwrap_err().to_string();
        assert!(refused.contains("no context at ") && refused.ends_with("write ./Cargo.toml"), "{refused}");
        assert_eq!(file("./Cargo.toml").unwrap(), Path::new("./Cargo.toml"));
        let context_in_home = home.path().join(".config/stemma/Cargo.toml.toml");
        std::fs::create_dir_all(context_in_home.parent().unwrap()).unwrap();
        std::fs::write(&context_in_home, "").unwrap();
        assert_eq!(file("Cargo.toml").unwrap(), context_in_home);
    }

    #[test]
    fn s71_context_is_refused_with_fix_when_others_can_write() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "url = \"https://x:1\"\n").unwrap();
        for (mode, is_refused) in [(0o600, false), (0o644, false), (0o666, true), (0o664, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = ClientContext::read(&file).err().map(|error| format!("{error:#}"));
            let shown = file.display();
            let sentence =
                format!("{shown}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod go-w {shown}");
            assert_eq!(error, is_refused.then_some(sentence), "{mode:o}");
        }
    }

    #[test]
    fn y09_read_distinguishes_invalid_context_from_missing() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        let error = || format!("{:#}", ClientContext::read(&file).unwrap_err());
        let missing_error = error();
        assert!(
            missing_error.starts_with(&format!("no context at {}: name one with --context", file.display())),
            "{missing_error}"
        );
        assert!(missing_error.ends_with("context.toml): No such file or directory (os error 2)"), "{missing_error}");
        let utf_16: Vec<u8> = "url = \"https://x:1\"\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, why) in
            [(&utf_16[..], "it is a text in UTF-16: save it in UTF-8"), (b"url = \"\xff\"\n", "it is no text in UTF-8")]
        {
            std::fs::write(&file, bytes).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(error(), format!("{}: {why}", file.display()));
        }
    }

    #[test]
    fn y09_token_rejects_file_with_other_content() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let token = |text: &str| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            let context =
                ClientContext { token_file: Some(file.clone()), ..ClientContext::without_keys("https://x:1".to_owned()) };
            context.token().map_err(|error| error.to_string())
        };
        let (id, secret) = ("0123456789abcdef", "0123456789abcdef".repeat(4));
        let good = format!("{id}.{secret}");
        // A controller creates 32 random bytes in base64url, without padding.
        let base64_token = format!("{id}.{}-_{}", "A".repeat(20), "z9".repeat(10) + "Z");
        for good in [&good, &base64_token] {
            for (prefix, suffix) in [("", ""), ("", "\n"), (" ", "\r\n\n")] {
                let text = format!("{prefix}{good}{suffix}");
                assert_eq!(token(&text).unwrap().as_ref(), Some(good), "{text:?}");
            }
        }
        for (text, expected) in [
            (String::new(), "it is empty"),
            ("\n".to_owned(), "it is empty"),
            (format!("\u{feff}{good}\n"), "a byte order mark"),
            (format!("\"{good}\"\n"), "quotes"),
            (format!("# of ci\n{good}\n"), "more than one line"),
            (format!("{good}\n{good}\n"), "more than one line"),
            (format!("# {good}\n"), "a comment"),
            (format!("{good} # of ci"), "blanks"),
            (good.chars().flat_map(|letter| [letter, '\0']).collect(), ": it is a text in UTF-16: save it in UTF-8; "),
            (format!("{id}.s\u{e9}cret"), "not printable ASCII"),
            (format!("{id}.se\u{1}cret"), "not printable ASCII"),
            (format!("{good},"), "behind its dot has 65 characters"),
            (format!("{good}x"), "behind its dot has 65 characters"),
            (format!("{base64_token}x"), "behind its dot has 44 characters"),
            (good[..20].to_owned(), "behind its dot has 3 characters"),
            (good[..40].to_owned(), "behind its dot has 23 characters"),
            (good[1..].to_owned(), "before its dot has 15 characters"),
            (format!("token={good}"), "before its dot has 22 characters"),
            (format!("Bearer_{good}"), "before its dot has 23 characters"),
            (good.to_uppercase(), "before its dot is not all digits and letters from a to f"),
            (format!("{id}.{}", secret.replace('f', "g")), "behind its dot has characters that no secret has"),
            (format!("{id}.{}", secret.replace('f', ",")), "behind its dot has characters that no secret has"),
            (id.to_owned(), "it is not ID.SECRET"),
            ("abc".to_owned(), "it is not ID.SECRET"),
        ] {
            let error = token(&text).unwrap_err();
            assert!(error.starts_with(&format!("{}: does not contain just a token: ", file.display())), "{text:?}: {error}");
            assert!(error.contains(expected) && error.ends_with("; nothing was sent"), "{text:?}: {error}");
        }
    }

    #[test]
    fn context_paths_are_relative_to_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "url = \"https://x:1\"\nca = \"ca.pem\"\nkey = \"/k.pem\"\n").unwrap();
        let context = ClientContext::read(&file).unwrap();
        assert_eq!(context.ca, Some(dir.path().join("ca.pem")));
        assert_eq!(context.key, Some(PathBuf::from("/k.pem")));
        std::fs::write(&file, "url = \"https://x:1\"\ntoken = \"t\"\n").unwrap();
        assert!(format!("{:#}", ClientContext::read(&file).unwrap_err()).contains("unknown field `token`"));
    }
}
