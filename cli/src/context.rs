//! Which controller is asked, and as whom: one small file, written by `stemma-controller init` for the admin.

use std::fmt::Display;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use stemma_core::name::is_blank;
use stemma_wire::client::Target;
use stemma_wire::config::{self, ConfigError, Holds};
use stemma_wire::message::enroll::odd_in_token;

use crate::args::Global;
use crate::exit::Exit;

/// What the URL of root's socket begins with.
const SOCKET: &str = "unix:";

/// Root's socket where the packaged controller has it.
const ROOT_SOCKET: &str = "/var/lib/stemma-controller/admin.sock";

/// What a context is called that nobody named.
const DEFAULT: &str = "default";

/// A context as its file says it; paths are relative to the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// The controller's admin URL.
    pub(crate) url: String,
    /// The fleet root's certificate, PEM.
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate chain, PEM.
    #[serde(default)]
    pub(crate) cert: Option<PathBuf>,
    /// Its key, PEM.
    #[serde(default)]
    pub(crate) key: Option<PathBuf>,
    /// A bearer token, in place of both.
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
}

impl Context {
    /// The context that the command line, or the default name, means. Where nobody names one and there is none of the default name, whoever
    /// may see root's socket on the controller's own machine is led there.
    ///
    /// # Errors
    /// When no file is there, or it can't be read as a context.
    pub(crate) fn load(global: &Global) -> Result<Self> {
        let needs_nothing = |url: &&str| url.starts_with("http://") || url.starts_with(SOCKET);
        let plain = global.server.as_deref().filter(needs_nothing);
        if let Some(url) = &global.server {
            url.parse::<Target>()?;
        }
        if let Some(url) = plain {
            return Ok(Self::without_keys(url.to_owned()));
        }
        if global.context.is_none() && global.server.is_none() && is_on_controller(Path::new(ROOT_SOCKET)) {
            return Ok(Self::without_keys(format!("{SOCKET}{ROOT_SOCKET}")));
        }
        let home = home_directory();
        let file = match &global.context {
            Some(said) => file(said, home.as_deref())?,
            None => below_home(DEFAULT, home.as_deref())?,
        };
        let mut context = Self::read(&file)?;
        if let Some(url) = &global.server {
            context.url.clone_from(url);
        }
        Ok(context)
    }

    fn without_keys(url: String) -> Self {
        Self { url, ca: None, cert: None, key: None, token_file: None }
    }

    /// Whether it is root's socket: what stands beside that belongs to whoever answers there, and is believed as they are.
    pub(crate) fn is_socket(&self) -> bool {
        self.url.starts_with(SOCKET)
    }

    /// Of root's socket, the context of the first admin that stands beside it: it says how the controller is reached by others.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn beside_socket(self) -> Result<Self> {
        match self.url.strip_prefix(SOCKET).and_then(|path| Path::new(path).parent()) {
            Some(directory) => {
                let file = directory.join("admin/context.toml");
                let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
                Self::parse(&text, &file)
            }
            None => Ok(self),
        }
    }

    /// The bearer token, where the context names one.
    ///
    /// # Errors
    /// When its file can't be read, when others may read it, or when it holds something else than a token.
    pub(crate) fn token(&self) -> Result<Option<String>> {
        let Some(file) = self.token_file.as_deref() else { return Ok(None) };
        let no_token = |what: &dyn Display| {
            let form = "a token is ID.SECRET, as `stemma principal token create` prints it, in a file of its own";
            anyhow!("{}: holds no token alone: {what}; {form}; nothing was sent", file.display())
        };
        let text = config::read(file, Holds::Secret).map_err(|error| match error {
            ConfigError::NotText { why, .. } => no_token(&why),
            refused => refused.into(),
        })?;
        let token = text.trim();
        odd_in_token(token).map_or_else(|| Ok(Some(token.to_owned())), |what| Err(no_token(&what)))
    }

    fn read(file: &Path) -> Result<Self> {
        let text = config::read(file, Holds::Settings).map_err(|error| match error {
            ConfigError::Read { why, .. } if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                anyhow::Error::new(why).context(format!(
                    "no context at {}: name one with --context FILE or STEMMA_CONTEXT (init writes one to DATA_DIR/admin/context.toml)",
                    file.display()
                ))
            }
            // Whoever may write it says whom we trust and which key we show.
            refused => refused.into(),
        })?;
        Self::parse(&text, file)
    }

    fn parse(text: &str, file: &Path) -> Result<Self> {
        let mut context: Self = toml::from_str(text).with_context(|| format!("{} is no context", file.display()))?;
        let dir = file.parent().unwrap_or(Path::new("."));
        let Self { ca, cert, key, token_file, .. } = &mut context;
        for path in [ca, cert, key, token_file].into_iter().flatten() {
            *path = dir.join(&*path);
        }
        Ok(context)
    }
}

/// Whether this is root on the controller's machine, without a context of their own. To others the directory is closed.
fn is_on_controller(socket: &Path) -> bool {
    let own = below_home(DEFAULT, home_directory().as_deref()).is_ok_and(|file| file.exists());
    !own && std::fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket())
}

fn home_directory() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

/// What has a slash is a path. A bare name stands below `~/.config/stemma`, whatever lies in the working directory: others may have filled that.
fn file(said: &str, home: Option<&Path>) -> Result<PathBuf> {
    if is_blank(said) {
        let sentence = "the context is empty: name a file, or one below ~/.config/stemma, with --context or STEMMA_CONTEXT, or unset that";
        return Err(Exit::Usage.because(sentence));
    }
    if said.contains('/') {
        return Ok(PathBuf::from(said));
    }
    if matches!(said, "." | "..") {
        return Err(Exit::Usage
            .because(format!("the context {said} is a directory: name a file in it, as {said}/context.toml")));
    }
    let file = below_home(said, home)?;
    if !file.exists() && Path::new(said).is_file() {
        bail!("no context at {}: for the file in the working directory write ./{said}", file.display());
    }
    Ok(file)
}

/// The file of a context of that name. An empty or relative home would lead below the working directory.
fn below_home(name: &str, home: Option<&Path>) -> Result<PathBuf> {
    let Some(home) = home.filter(|home| home.is_absolute()) else {
        bail!(
            "context {name:?} stands below ~/.config/stemma, and HOME is not set, or is no absolute path: name a file with --context ./FILE"
        );
    };
    Ok(home.join(".config/stemma").join(format!("{name}.toml")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable that is not set made the path `~/.config/stemma/.toml`.
    #[test]
    fn x06_no_path_is_made_of_an_empty_context() {
        for said in ["", " ", "\t", "\u{200b}"] {
            let refused = file(said, None).unwrap_err().to_string();
            assert!(
                refused.contains("the context is empty") && refused.contains("STEMMA_CONTEXT"),
                "{said:?}: {refused}"
            );
        }
    }

    /// `HOME=` read `.config/stemma/default.toml` of the working directory.
    #[test]
    fn x06_no_path_is_made_of_an_empty_or_relative_home() {
        for home in [None, Some(""), Some("."), Some("home/ada")] {
            let refused = below_home(DEFAULT, home.map(Path::new)).unwrap_err().to_string();
            assert!(refused.contains("HOME is not set, or is no absolute path"), "{home:?}: {refused}");
        }
        let own = below_home(DEFAULT, Some(Path::new("/home/ada"))).unwrap();
        assert_eq!(own, Path::new("/home/ada/.config/stemma/default.toml"));
    }

    /// A test of a package runs in the package's directory, where `Cargo.toml` lies.
    #[test]
    fn x06_a_bare_name_is_no_file_of_the_working_directory() {
        let home = tempfile::tempdir().unwrap();
        let file = |said| file(said, Some(home.path()));
        let refused = file("Cargo.toml").unwrap_err().to_string();
        assert!(refused.contains("no context at ") && refused.ends_with("write ./Cargo.toml"), "{refused}");
        assert_eq!(file("./Cargo.toml").unwrap(), Path::new("./Cargo.toml"));
        let named = home.path().join(".config/stemma/Cargo.toml.toml");
        std::fs::create_dir_all(named.parent().unwrap()).unwrap();
        std::fs::write(&named, "").unwrap();
        assert_eq!(file("Cargo.toml").unwrap(), named);
    }

    #[test]
    fn s71_a_context_that_others_may_write_is_refused_with_the_fixing_command() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "url = \"https://x:1\"\n").unwrap();
        for (mode, refused) in [(0o600, false), (0o644, false), (0o666, true), (0o664, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let said = Context::read(&file).err().map(|error| format!("{error:#}"));
            let shown = file.display();
            let sentence = format!(
                "{shown}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod go-w {shown}"
            );
            assert_eq!(said, refused.then_some(sentence), "{mode:o}");
        }
    }

    #[test]
    fn y09_a_context_that_is_there_and_no_text_is_not_called_absent() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        let said = || format!("{:#}", Context::read(&file).unwrap_err());
        let absent = said();
        assert!(absent.starts_with(&format!("no context at {}: name one with --context", file.display())), "{absent}");
        assert!(absent.ends_with("context.toml): No such file or directory (os error 2)"), "{absent}");
        let utf_16: Vec<u8> = "url = \"https://x:1\"\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, why) in
            [(&utf_16[..], "it is a text in UTF-16: save it in UTF-8"), (b"url = \"\xff\"\n", "it is no text in UTF-8")]
        {
            std::fs::write(&file, bytes).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(said(), format!("{}: {why}", file.display()));
        }
    }

    #[test]
    fn y09_the_file_of_a_token_holds_one_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let token = |text: &str| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            let context = Context { token_file: Some(file.clone()), ..Context::without_keys("https://x:1".to_owned()) };
            context.token().map_err(|error| error.to_string())
        };
        let (id, secret) = ("0123456789abcdef", "0123456789abcdef".repeat(4));
        let good = format!("{id}.{secret}");
        // A controller makes 32 random bytes in base64url, without what fills it up.
        let of_controller = format!("{id}.{}-_{}", "A".repeat(20), "z9".repeat(10) + "Z");
        for good in [&good, &of_controller] {
            for (before, behind) in [("", ""), ("", "\n"), (" ", "\r\n\n")] {
                let text = format!("{before}{good}{behind}");
                assert_eq!(token(&text).unwrap().as_ref(), Some(good), "{text:?}");
            }
        }
        for (text, what) in [
            (String::new(), "it is empty"),
            ("\n".to_owned(), "it is empty"),
            (format!("\u{feff}{good}\n"), "a byte order mark"),
            (format!("\"{good}\"\n"), "quotes"),
            (format!("# of ci\n{good}\n"), "more than one line"),
            (format!("{good}\n{good}\n"), "more than one line"),
            (format!("# {good}\n"), "a comment"),
            (format!("{good} # of ci"), "blanks"),
            (good.chars().flat_map(|letter| [letter, '\0']).collect(), ": it is a text in UTF-16: save it in UTF-8; "),
            (format!("{id}.s\u{e9}cret"), "no ASCII"),
            (format!("{id}.se\u{1}cret"), "no ASCII"),
            (format!("{good},"), "behind its dot has 65 characters"),
            (format!("{good}x"), "behind its dot has 65 characters"),
            (format!("{of_controller}x"), "behind its dot has 44 characters"),
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
            let said = token(&text).unwrap_err();
            assert!(said.starts_with(&format!("{}: holds no token alone: ", file.display())), "{text:?}: {said}");
            assert!(said.contains(what) && said.ends_with("; nothing was sent"), "{text:?}: {said}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_file_and_unknown_fields_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "url = \"https://x:1\"\nca = \"ca.pem\"\nkey = \"/k.pem\"\n").unwrap();
        let context = Context::read(&file).unwrap();
        assert_eq!(context.ca, Some(dir.path().join("ca.pem")));
        assert_eq!(context.key, Some(PathBuf::from("/k.pem")));
        std::fs::write(&file, "url = \"https://x:1\"\ntoken = \"t\"\n").unwrap();
        assert!(format!("{:#}", Context::read(&file).unwrap_err()).contains("unknown field `token`"));
    }
}
