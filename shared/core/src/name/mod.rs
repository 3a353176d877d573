//! Names: what roles, tags, tasks, releases and objects may be called.
//!
//! A name is compared, sorted and cloned many times when nodes are resolved, so it is one shared string. It is checked
//! once, when it is parsed. A value of these types is always well-formed, so no other code has to check it. The words
//! with a meaning in selectors (`self`, `master`, `null`, `*`) and Fuel's `primary-…` are reserved where something is
//! *declared* ([`Name::for_declaration`]), but not where it is referred to: a selector may contain `master`.

mod blank;
mod release;
mod suggest;

use std::borrow::Cow;

use uuid::Uuid;

pub use blank::{has_control, is_blank};
pub use release::{ReleaseRef, Version};
pub use suggest::{closest_match, did_you_mean};

/// Maximum length of the name of a release, role or task, of each part of a tag, and of a version, in bytes.
pub const MAX_NAME_BYTES: usize = 63;

/// Maximum length of the name of a cluster template, cluster, node group, node, allocation, inspection rule or
/// principal, in bytes. Ironic and Magnum have the same limit.
pub(crate) const MAX_OBJECT_NAME_BYTES: usize = 255;

/// Maximum number of characters that an error shows of a text from a request, manifest or report.
const MAX_SHOWN_CHARS: usize = 64;

/// Words that cannot be the name of a role, tag or task, because they have a meaning in selectors.
pub const RESERVED_WORDS: [&str; 4] = ["self", "master", "null", "*"];

/// The prefix that selects the primary holder of a tag: `primary-mysql` is the primary of `mysql`.
pub(crate) const PRIMARY_PREFIX: &str = "primary-";

/// Names that every host has for itself. Distributions write them into `/etc/hosts` and `/etc/hostname`.
const LOCALHOST_NAMES: [&str; 8] = [
    "ip6-localhost",
    "ip6-loopback",
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost4.localdomain4",
    "localhost6",
    "localhost6.localdomain6",
];

/// Names of the paths `/v1/nodes/NAME` that the APIs of Stemma and Ironic use for something else. A node with such a
/// name could not be requested.
const RESERVED_NODE_NAMES: [&str; 28] = [
    "allocation",
    "annotations",
    "bios",
    "children",
    "detail",
    "explain",
    "firmware",
    "heartbeat",
    "history",
    "indicators",
    "inventory",
    "labels",
    "maintenance",
    "management",
    "parameters",
    "portgroups",
    "ports",
    "report",
    "resolved",
    "roles",
    "states",
    "tags",
    "traits",
    "validate",
    "vendor_passthru",
    "vifs",
    "vmedia",
    "volume",
];

/// Names of the paths `/v1/clusters/NAME` that Magnum's API uses for something else. A cluster with such a name could
/// not be requested.
pub const RESERVED_CLUSTER_NAMES: &[&str] = &["detail"];

/// Defines types for checked, shared strings, with their common traits.
macro_rules! checked_text {
    ($($(#[$doc:meta])* $type:ident: $error:ty;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(std::sync::Arc<str>);

        impl $type {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::ops::Deref for $type {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::str::FromStr for $type {
            type Err = $error;
            fn from_str(text: &str) -> Result<Self, $error> {
                Self::new(text)
            }
        }

        crate::name::written_as_text!($type);
    )+};
}
pub(crate) use checked_text;

/// The error for a text that is not a valid name of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The characters or the length are wrong, or the name is `.` or `..`, which clients remove from a path.
    #[error("{kind} {name} is not well formed: {rule}")]
    Malformed {
        /// The kind of name, such as `tag`.
        kind: &'static str,
        /// The text in quotes. If the text has more than 64 characters, it is cut, and its length follows.
        name: String,
        /// The valid form, in words.
        rule: &'static str,
    },
    /// The text cannot be a name of this kind, because it has another meaning or use. Examples are a word of selectors,
    /// a path of the API, a text that looks like a uuid, and a text that a command would parse as an option.
    #[error("{kind} {name} is reserved: {rule}")]
    Reserved {
        /// The kind of name.
        kind: &'static str,
        /// The text in quotes. If the text has more than 64 characters, it is cut, and its length follows.
        name: String,
        /// The reason why the word is reserved. Some reasons end with a correction.
        rule: &'static str,
    },
}

impl InvalidName {
    /// Returns the error with this text in place of the checked text. Callers check a text in lower case, and then show
    /// it as its author wrote it.
    fn with_text(self, text: &str) -> Self {
        match self {
            Self::Malformed { kind, rule, .. } => malformed_error(kind, text, rule),
            Self::Reserved { kind, rule, .. } => reserved_error(kind, text, rule),
        }
    }
}

/// The kind of a declaration, which decides the rules for its [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameKind {
    /// A role of a release.
    Role,
    /// A tag, predefined or user-defined.
    Tag,
    /// A task's id.
    Task,
}

checked_text! {
    /// The name of a release, role or task, or a tag's part before the colon: `[A-Za-z0-9][A-Za-z0-9_.-]{0,62}`.
    Name: InvalidName;

    /// A tag: a [`Name`], optionally followed by a colon and a value. `mysql:1` and `mysql` are two tags.
    TagName: InvalidName;

    /// The name of an object such as a cluster or allocation, as used in paths: `[A-Za-z0-9_.~-]{1,255}` (Ironic's rule
    /// for nodes). It must not look like a uuid, and must not be `.` or `..`, which clients remove from a path.
    ObjectName: InvalidName;

    /// The name of a node: an [`ObjectName`] that is not a path below `/v1/nodes/`.
    NodeName: InvalidName;

    /// The name of a namespace of the catalogue: 1 to 80 characters, as in Glance, but without slashes, backslashes and
    /// control characters, and not `.` or `..`, because the name is used in paths.
    NamespaceName: InvalidName;
}

const NAME_RULE: &str = "a letter or digit, then up to 62 letters, digits, '_', '.' or '-'";
const TAG_RULE: &str = "a name, and if it has a value a colon and up to 63 letters, digits, '_', '.' or '-'";
const OBJECT_RULE: &str = "1 to 255 letters, digits, '_', '.', '~' or '-', but not '.' or '..'";
const NAMESPACE_RULE: &str = "1 to 80 characters without slashes and control characters, but not '.' or '..' or blanks alone";

impl NameKind {
    /// Returns the word for this kind in messages, such as `role`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Tag => "tag",
            Self::Task => "task",
        }
    }
}

impl Name {
    /// Parses a name.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        if is_valid_name(text) { Ok(Self(text.into())) } else { Err(malformed_error("name", text, NAME_RULE)) }
    }

    /// Parses the name of a role, tag or task where it is declared. It must not be a reserved word
    /// ([`RESERVED_WORDS`]), and a tag must not begin with `primary-`.
    ///
    /// A role may begin with `primary-`, because Fuel's old releases have such roles. The caller checks
    /// [`Name::has_primary_prefix`] and reports a finding. A task may begin with it without a finding.
    ///
    /// # Errors
    /// [`InvalidName`], which names the kind.
    pub fn for_declaration(text: &str, kind: NameKind) -> Result<Self, InvalidName> {
        check_reserved(text, kind)?;
        if is_valid_name(text) { Ok(Self(text.into())) } else { Err(malformed_error(kind.as_str(), text, NAME_RULE)) }
    }

    /// Parses a name in a new declaration. Unlike [`Name::for_declaration`], it also refuses a reserved word in another
    /// case, such as `Self`. A store may still contain such a name, because older versions accepted it.
    ///
    /// # Errors
    /// As [`Name::for_declaration`].
    pub fn for_new_declaration(text: &str, kind: NameKind) -> Result<Self, InvalidName> {
        check_reserved(&text.to_ascii_lowercase(), kind).map_err(|why| why.with_text(text))?;
        Self::for_declaration(text, kind)
    }

    /// Returns whether the name begins with `primary-`.
    pub fn has_primary_prefix(&self) -> bool {
        self.0.starts_with(PRIMARY_PREFIX)
    }
}

impl TagName {
    /// Parses a tag in a selector or an assignment.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        if is_valid_name(name) && value.is_none_or(is_valid_tag_value) {
            Ok(Self(text.into()))
        } else {
            Err(malformed_error("tag", text, TAG_RULE))
        }
    }

    /// Parses a tag where it is declared. The part before the colon must not be a reserved word ([`RESERVED_WORDS`]),
    /// and must not begin with `primary-`.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn for_declaration(text: &str) -> Result<Self, InvalidName> {
        check_reserved(text.split_once(':').map_or(text, |(base, _)| base), NameKind::Tag)?;
        Self::new(text)
    }

    /// Parses a tag in a new declaration. Unlike [`TagName::for_declaration`], it also refuses a reserved word in
    /// another case, such as `Self`, and the prefix `primary-` in another case.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn for_new_declaration(text: &str) -> Result<Self, InvalidName> {
        Self::for_declaration(&text.to_ascii_lowercase()).map_err(|why| why.with_text(text))?;
        Self::new(text)
    }
}

impl ObjectName {
    /// Parses an object's name.
    ///
    /// # Errors
    /// [`InvalidName`] if the name has invalid characters, is too long, or looks like a uuid. A path of the API may
    /// contain the name or the uuid of an object, so a name must not be mistaken for a uuid.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        check_object_name("name", text).map(|()| Self(text.into()))
    }

    /// Checks the name of a new or renamed object. A store may contain names that fail this check, because older
    /// versions accepted them.
    ///
    /// # Errors
    /// [`InvalidName::Reserved`] if a command would parse the name as an option, or if the name is one of `path_words`,
    /// in capital or small letters. These words are paths of the API, so the object could not be requested.
    pub fn check_new(&self, path_words: &[&str]) -> Result<(), InvalidName> {
        check_no_leading_dash("name", self)?;
        if path_words.iter().any(|word| word.eq_ignore_ascii_case(self)) {
            return Err(reserved_error("name", self, "it is a path of the API, so the object could not be requested"));
        }
        Ok(())
    }
}

impl NodeName {
    /// Parses a node's name.
    ///
    /// # Errors
    /// [`InvalidName`] as for [`ObjectName::new`], or if the name is a path below `/v1/nodes/`, such as `detail`.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        check_object_name("node", text)?;
        if RESERVED_NODE_NAMES.contains(&text) {
            return Err(reserved_error("node", text, "it is a path below /v1/nodes/"));
        }
        Ok(Self(text.into()))
    }

    /// Checks the name with which a host joins as a new node. A client that creates a node by request may choose any
    /// valid [`NodeName`], as Ironic's clients do.
    ///
    /// # Errors
    /// [`InvalidName::Reserved`] in four cases. A command would parse the name as an option. The name is a path below
    /// `/v1/nodes/`, if case is ignored. Every host has the name, such as `localhost`. The name ends in a dot, so it
    /// names the same host as the name without the dot.
    pub fn check_host_name(&self) -> Result<(), InvalidName> {
        check_no_leading_dash("node", self)?;
        Self::new(&self.to_ascii_lowercase()).map_err(|why| why.with_text(self))?;
        if LOCALHOST_NAMES.iter().any(|name| self.eq_ignore_ascii_case(name)) {
            return Err(reserved_error("node", self, "every host has this name for itself; choose another (join --name)"));
        }
        if self.ends_with('.') {
            return Err(reserved_error(
                "node",
                self,
                "with the final dot it is another name for the same host; leave the dot out",
            ));
        }
        Ok(())
    }
}

impl NamespaceName {
    /// Maximum length of the name of a namespace, in characters.
    pub const MAX_CHARS: usize = 80;

    /// Parses a namespace's name.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let is_forbidden = |c: char| c.is_control() || matches!(c, '/' | '\\');
        let is_short = text.chars().nth(Self::MAX_CHARS).is_none();
        if text.is_empty() || !is_short || matches!(text, "." | "..") || text.contains(is_forbidden) {
            return Err(malformed_error("namespace", text, NAMESPACE_RULE));
        }
        Ok(Self(text.into()))
    }

    /// Parses the name of a new namespace. Unlike [`NamespaceName::new`], it refuses a name without visible characters
    /// or with a line or paragraph separator. A store may contain such a name from an older version.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn for_new_namespace(text: &str) -> Result<Self, InvalidName> {
        if is_blank(text) || has_control(text) {
            return Err(malformed_error("namespace", text, NAMESPACE_RULE));
        }
        Self::new(text)
    }
}

/// Returns the reserved word from which a name in a selector differs only in case, such as `self` for `Self`. For a
/// tag, a prefix such as `Primary-` returns `primary-`. The text `null` returns `null`, because nothing can have that
/// name. Returns `None` for any other name.
pub(crate) fn reserved_word_in_other_case(text: &str, kind: NameKind) -> Option<&'static str> {
    if let Some(word) = RESERVED_WORDS.into_iter().find(|word| word.eq_ignore_ascii_case(text)) {
        return (word != text || word == "null").then_some(word);
    }
    let prefix = text.get(..PRIMARY_PREFIX.len())?;
    let is_other_case = prefix != PRIMARY_PREFIX && prefix.eq_ignore_ascii_case(PRIMARY_PREFIX);
    (kind == NameKind::Tag && is_other_case).then_some(PRIMARY_PREFIX)
}

/// Implements serialization with `Display` and deserialization with `FromStr`.
macro_rules! written_as_text {
    ($($type:ty),+ $(,)?) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}
pub(crate) use written_as_text;

/// Returns the first 64 characters of a text, so that a long text in a request does not make an error long.
pub fn truncated(text: &str) -> String {
    text.chars().take(MAX_SHOWN_CHARS).collect()
}

/// Returns the first 64 characters of a text in quotes. If the text is longer, `…` and the length of the whole text
/// follow, so that the reader sees that a name is too long.
pub(crate) fn quoted(text: &str) -> String {
    match text.chars().count() {
        0..=MAX_SHOWN_CHARS => format!("{text:?}"),
        length => format!("{:?} ({length} characters)", truncated(text) + "…"),
    }
}

/// Returns a uuid in lower case with dashes, in which form it is stored and compared. A text that is not a uuid is
/// returned unchanged.
pub(crate) fn canonical_uuid(text: &str) -> Cow<'_, str> {
    Uuid::parse_str(text).map_or(Cow::Borrowed(text), |uuid| uuid.to_string().into())
}

/// Returns whether a segment of a path would be parsed as a uuid, as Ironic's `is_uuid_like` does: 32 hexadecimal
/// digits with any dashes between them, optionally in braces or after `urn:uuid:`.
pub fn is_uuid_like(text: &str) -> bool {
    let text = text.trim_start_matches("urn:").trim_start_matches("uuid:");
    let digits = text.trim_matches(['{', '}']).bytes().filter(|byte| *byte != b'-');
    let mut count = 0;
    for byte in digits {
        if !byte.is_ascii_hexdigit() || count == 32 {
            return false;
        }
        count += 1;
    }
    count == 32
}

/// Returns the error message about a uuid that no host may have, or `None` if the uuid is valid. Only the nil uuid is
/// invalid, because the uuid identifies the host in its certificate. Ironic accepts the nil uuid.
pub fn host_uuid_error(uuid: Uuid) -> Option<&'static str> {
    uuid.is_nil().then_some("the nil uuid cannot identify a host: omit uuid, and the node gets a generated one")
}

/// Returns whether `run-parts` accepts a file of this name (run-parts(8)): only letters, digits, `_` and `-`. Backup
/// files of editors and package managers (`10-a~`, `10-a.dpkg-old`, `#10-a#`) do not match.
pub fn is_run_parts_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_valid_name(text: &str) -> bool {
    has_valid_bytes(text, MAX_NAME_BYTES, |byte| byte.is_ascii_alphanumeric(), is_name_byte)
}

/// Returns whether a text is a valid value of a tag, which follows the colon. Unlike a name, it may begin with any byte
/// of a name.
fn is_valid_tag_value(text: &str) -> bool {
    has_valid_bytes(text, MAX_NAME_BYTES, is_name_byte, is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

/// Returns whether a text has 1 to `max_len` bytes, its first byte is one that `accepts_first` accepts, and its other
/// bytes are those that `accepts_other` accepts.
fn has_valid_bytes(text: &str, max_len: usize, accepts_first: impl Fn(u8) -> bool, accepts_other: impl Fn(u8) -> bool) -> bool {
    let Some((first_byte, other_bytes)) = text.as_bytes().split_first() else { return false };
    text.len() <= max_len && accepts_first(*first_byte) && other_bytes.iter().all(|byte| accepts_other(*byte))
}

/// Fails if a text is not a valid name of an object, or looks like a uuid. `kind` is the word for the name in the
/// error.
fn check_object_name(kind: &'static str, text: &str) -> Result<(), InvalidName> {
    let is_valid = |byte: u8| is_name_byte(byte) || byte == b'~';
    if !has_valid_bytes(text, MAX_OBJECT_NAME_BYTES, is_valid, is_valid) || matches!(text, "." | "..") {
        return Err(malformed_error(kind, text, OBJECT_RULE));
    }
    if is_uuid_like(text) {
        return Err(reserved_error(kind, text, "it looks like a uuid, and a path may have the name or the uuid"));
    }
    Ok(())
}

/// Fails if a name begins with `-`, because a command would parse the name as an option.
fn check_no_leading_dash(kind: &'static str, text: &str) -> Result<(), InvalidName> {
    if text.starts_with('-') {
        return Err(reserved_error(kind, text, "commands would parse a name with '-' at the beginning as an option"));
    }
    Ok(())
}

/// Fails if a text cannot be declared as a role, tag or task, because it has a meaning in selectors: it is one of
/// [`RESERVED_WORDS`], or a tag that begins with `primary-`.
fn check_reserved(text: &str, kind: NameKind) -> Result<(), InvalidName> {
    if RESERVED_WORDS.contains(&text) {
        return Err(reserved_error(kind.as_str(), text, "it has a meaning in selectors"));
    }
    if kind == NameKind::Tag && text.starts_with(PRIMARY_PREFIX) {
        return Err(reserved_error("tag", text, "'primary-' stands for the primary holder of a tag; set has_primary instead"));
    }
    Ok(())
}

fn malformed_error(kind: &'static str, text: &str, rule: &'static str) -> InvalidName {
    InvalidName::Malformed { kind, name: quoted(text), rule }
}

fn reserved_error(kind: &'static str, text: &str, rule: &'static str) -> InvalidName {
    InvalidName::Reserved { kind, name: quoted(text), rule }
}

#[cfg(test)]
mod tests;
