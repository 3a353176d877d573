//! Names: what roles, tags, tasks, releases and objects may be called.
//!
//! A name is compared, sorted and cloned many times in every resolve, so it is one shared string. It is checked
//! once, where it comes in; a value of these types can't be malformed, so nothing further in has to ask. The
//! words that selectors give a meaning to (`self`, `master`, `null`, `*`) and Fuel's `primary-…` are reserved
//! where something is *declared* ([`Name::declare`]), not where it is written: a selector may well say `master`.

mod blank;
mod near;
mod release;

use std::borrow::Cow;

use uuid::Uuid;

pub use blank::{has_control, is_blank};
pub use near::{near, suggest};
pub use release::{ReleaseRef, Version};

/// The longest name of a role, tag or task, in bytes.
pub const MAX_NAME: usize = 63;

/// The longest name of an object (node, group, cluster, template …), in bytes: Ironic's and Magnum's limit.
pub(crate) const MAX_OBJECT_NAME: usize = 255;

/// How much of a text from outside an error shows, in characters.
const MAX_SHOWN: usize = 64;

/// Words that no role, tag or task may be called, since selectors give them a meaning of their own.
pub const RESERVED: [&str; 4] = ["self", "master", "null", "*"];

/// What a name begins with that stands for the primary holder of a tag.
pub(crate) const PRIMARY_PREFIX: &str = "primary-";

/// What hosts call themselves to themselves, as distributions write it into `/etc/hosts` and `/etc/hostname`.
const NAMES_OF_EVERY_HOST: [&str; 8] = [
    "ip6-localhost",
    "ip6-loopback",
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost4.localdomain4",
    "localhost6",
    "localhost6.localdomain6",
];

/// Paths below `/v1/nodes/`, ours and Ironic's: a node of such a name could never be asked for.
const NODE_PATHS: [&str; 28] = [
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

/// Paths below `/v1/clusters/`, of Magnum's.
pub const CLUSTER_PATHS: &[&str] = &["detail"];

/// Defines checked, shared strings, with the traits that every one of them has.
macro_rules! checked_text {
    ($($(#[$doc:meta])* $type:ident: $error:ty;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(std::sync::Arc<str>);

        impl $type {
            /// The text.
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

/// A text that is no name of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The characters or the length are wrong.
    #[error("{kind} {name} is not well formed: {rule}")]
    Malformed {
        /// What was to be named, as `tag`.
        kind: &'static str,
        /// The text in quotes, cut at 64 characters.
        name: String,
        /// What is taken, in words.
        rule: &'static str,
    },
    /// The word means something else.
    #[error("{kind} {name} is reserved: {rule}")]
    Reserved {
        /// What was to be named.
        kind: &'static str,
        /// The text in quotes, cut at 64 characters.
        name: String,
        /// What the word means instead.
        rule: &'static str,
    },
}

impl InvalidName {
    /// The same refusal, of the text as it was written.
    fn of(self, text: &str) -> Self {
        match self {
            Self::Malformed { kind, rule, .. } => malformed(kind, text, rule),
            Self::Reserved { kind, rule, .. } => reserved(kind, text, rule),
        }
    }
}

/// What a [`Name`] is declared as.
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
    /// The name of a role or task, or the part of a tag before the colon: `[A-Za-z0-9][A-Za-z0-9_.-]{0,62}`.
    Name: InvalidName;

    /// A tag: a [`Name`], and after a colon a value if it has one. `mysql:1` is another tag than `mysql`.
    TagName: InvalidName;

    /// The name of an object that stands in a path: `[A-Za-z0-9_.~-]{1,255}` (Ironic's rule for nodes), not like a uuid,
    /// and neither `.` nor `..`, which a path would swallow.
    ObjectName: InvalidName;

    /// The name of a node: an [`ObjectName`] that is no path below `/v1/nodes/`.
    NodeName: InvalidName;

    /// The name of a namespace of the catalogue: 1 to 80 characters, as Glance's, but for slashes and control characters: it
    /// stands in a path.
    NamespaceName: InvalidName;
}

const NAME_RULE: &str = "a letter or digit, then up to 62 letters, digits, '_', '.' or '-'";
const TAG_RULE: &str = "a name, and if it has a value a colon and up to 63 letters, digits, '_', '.' or '-'";
const OBJECT_RULE: &str = "1 to 255 letters, digits, '_', '.', '~' or '-', but not '.' or '..'";
const NAMESPACE_RULE: &str =
    "1 to 80 characters without slashes and control characters, but not '.' or '..' or blanks alone";

impl NameKind {
    /// The word for it in messages.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Tag => "tag",
            Self::Task => "task",
        }
    }
}

impl Name {
    /// Reads a name.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        if is_name(text) { Ok(Self(text.into())) } else { Err(malformed("name", text, NAME_RULE)) }
    }

    /// Reads a name that something is to be called by: no reserved word, and for a tag no `primary-…`.
    ///
    /// A role may begin with `primary-` (Fuel's old releases have such roles); that is a finding of the caller's,
    /// who asks [`Name::is_primary`]. A task may, freely.
    ///
    /// # Errors
    /// [`InvalidName`], naming the kind.
    pub fn declare(text: &str, kind: NameKind) -> Result<Self, InvalidName> {
        check_reserved(text, kind)?;
        if is_name(text) { Ok(Self(text.into())) } else { Err(malformed(kind.word(), text, NAME_RULE)) }
    }

    /// The same of a name that somebody writes: reserved words are reserved in capitals too. A store may have such a one, of an older
    /// program.
    ///
    /// # Errors
    /// As [`Name::declare`].
    pub fn of_new(text: &str, kind: NameKind) -> Result<Self, InvalidName> {
        check_reserved(&text.to_ascii_lowercase(), kind).map_err(|why| why.of(text))?;
        Self::declare(text, kind)
    }

    /// Whether the name begins with `primary-`.
    pub fn is_primary(&self) -> bool {
        self.0.starts_with(PRIMARY_PREFIX)
    }
}

impl TagName {
    /// Reads a tag as a selector or an assignment names it.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        if is_name(name) && value.is_none_or(is_tag_value) {
            Ok(Self(text.into()))
        } else {
            Err(malformed("tag", text, TAG_RULE))
        }
    }

    /// Reads a tag that is to be declared: neither a reserved word nor `primary-…`.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn declare(text: &str) -> Result<Self, InvalidName> {
        check_reserved(text.split_once(':').map_or(text, |(base, _)| base), NameKind::Tag)?;
        Self::new(text)
    }

    /// The same of a tag that somebody writes: reserved words are reserved in capitals too.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn of_new(text: &str) -> Result<Self, InvalidName> {
        Self::declare(&text.to_ascii_lowercase()).map_err(|why| why.of(text))?;
        Self::new(text)
    }
}

impl ObjectName {
    /// Reads an object's name.
    ///
    /// # Errors
    /// [`InvalidName`]: odd characters, too long, or like a uuid (a path names an object by either).
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        check_object_name("name", text).map(|()| Self(text.into()))
    }

    /// Checks what an object may be called that gets its name now. A store may have others, of an older program.
    ///
    /// # Errors
    /// [`InvalidName::Reserved`]: what a command would take for an option, or one of these words, which stand in paths.
    pub fn check_new(&self, in_paths: &[&str]) -> Result<(), InvalidName> {
        check_no_option("name", self)?;
        if in_paths.iter().any(|word| word.eq_ignore_ascii_case(self)) {
            return Err(reserved("name", self, "it is a path, and the object could never be asked for"));
        }
        Ok(())
    }
}

impl NodeName {
    /// Reads a node's name.
    ///
    /// # Errors
    /// [`InvalidName`]: as [`ObjectName::new`], or a path below `/v1/nodes/`, as `detail`.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        check_object_name("node", text)?;
        if NODE_PATHS.contains(&text) {
            return Err(reserved("node", text, "it is a path below /v1/nodes/"));
        }
        Ok(Self(text.into()))
    }

    /// Checks the name by which a host joins as a new node. Who creates a node by its name may choose any, as Ironic's clients do.
    ///
    /// # Errors
    /// [`InvalidName::Reserved`]: what a command would take for an option, a path's word in capitals, a name that every host has, as
    /// `localhost`, or a final dot, which makes another text of the same host.
    pub fn check_of_host(&self) -> Result<(), InvalidName> {
        check_no_option("node", self)?;
        Self::new(&self.to_ascii_lowercase()).map_err(|why| why.of(self))?;
        if NAMES_OF_EVERY_HOST.iter().any(|name| self.eq_ignore_ascii_case(name)) {
            return Err(reserved("node", self, "every host calls itself so; give it a name of its own (join --name)"));
        }
        if self.ends_with('.') {
            return Err(reserved("node", self, "it is the same host without the final dot; leave the dot out"));
        }
        Ok(())
    }
}

impl NamespaceName {
    /// The longest, in characters.
    pub const MAX: usize = 80;

    /// Reads a namespace's name.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let is_odd = |c: char| c.is_control() || matches!(c, '/' | '\\');
        let is_short = text.chars().nth(Self::MAX).is_none();
        if text.is_empty() || !is_short || matches!(text, "." | "..") || text.contains(is_odd) {
            return Err(malformed("namespace", text, NAMESPACE_RULE));
        }
        Ok(Self(text.into()))
    }

    /// Reads the name of a namespace that somebody writes. One of blanks alone may stand in a store, and is given to no other.
    ///
    /// # Errors
    /// [`InvalidName::Malformed`].
    pub fn of_new(text: &str) -> Result<Self, InvalidName> {
        if is_blank(text) || has_control(text) {
            return Err(malformed("namespace", text, NAMESPACE_RULE));
        }
        Self::new(text)
    }
}

/// The reserved word that a selector spells in other letters than those in which it means something: `self` of `Self`. Of a tag it may also be
/// the beginning `primary-`. The text `null` is misspelled in any letters: nothing is called so.
pub(crate) fn misspelled(text: &str, kind: NameKind) -> Option<&'static str> {
    if let Some(word) = RESERVED.into_iter().find(|word| word.eq_ignore_ascii_case(text)) {
        return (word != text || word == "null").then_some(word);
    }
    let begin = text.get(..PRIMARY_PREFIX.len())?;
    let is_other = begin != PRIMARY_PREFIX && begin.eq_ignore_ascii_case(PRIMARY_PREFIX);
    (kind == NameKind::Tag && is_other).then_some(PRIMARY_PREFIX)
}

/// Writes a type as `Display` prints it, and reads it by `FromStr`.
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

/// A text from outside, cut so that an error can't grow with what was sent.
pub fn cut(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// The same in quotes. Where it is cut, that is marked, and the length of the whole text stands behind it: nothing else would say that a
/// name is too long.
pub(crate) fn quoted(text: &str) -> String {
    match text.chars().count() {
        0..=MAX_SHOWN => format!("{text:?}"),
        length => format!("{:?} ({length} characters)", cut(text) + "…"),
    }
}

/// The one form of a uuid in which it is stored and compared; a text that is none stays as it is.
pub(crate) fn uuid_form(text: &str) -> Cow<'_, str> {
    Uuid::parse_str(text).map_or(Cow::Borrowed(text), |uuid| uuid.to_string().into())
}

/// Whether a path segment would be taken for a uuid: 32 hexadecimal digits, whatever dashes, braces or
/// `urn:uuid:` stand around them (as Ironic's `is_uuid_like`).
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

/// What is wrong with the uuid that is meant for a host, as a sentence; `None`: nothing. Ironic takes the nil uuid, but here it is the
/// host's identity, and no certificate can name nobody.
pub fn odd_host_uuid(uuid: Uuid) -> Option<&'static str> {
    uuid.is_nil().then_some("the nil uuid names no host: leave uuid out, and the node gets one of its own")
}

/// Whether `run-parts` would take a file of this name (run-parts(8)): letters, digits, `_` and `-` alone. What editors and package managers
/// leave beside a file (`10-a~`, `10-a.dpkg-old`, `#10-a#`) has another one.
pub fn is_run_parts_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_name(text: &str) -> bool {
    is_word(text, MAX_NAME, |byte| byte.is_ascii_alphanumeric(), is_name_byte)
}

fn is_tag_value(text: &str) -> bool {
    is_word(text, MAX_NAME, is_name_byte, is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

fn is_word(text: &str, longest: usize, first: impl Fn(u8) -> bool, rest: impl Fn(u8) -> bool) -> bool {
    let Some((head, tail)) = text.as_bytes().split_first() else { return false };
    text.len() <= longest && first(*head) && tail.iter().all(|byte| rest(*byte))
}

fn check_object_name(kind: &'static str, text: &str) -> Result<(), InvalidName> {
    let byte = |byte: u8| is_name_byte(byte) || byte == b'~';
    if !is_word(text, MAX_OBJECT_NAME, byte, byte) || matches!(text, "." | "..") {
        return Err(malformed(kind, text, OBJECT_RULE));
    }
    if is_uuid_like(text) {
        return Err(reserved(kind, text, "it looks like a uuid, and a path names an object by either"));
    }
    Ok(())
}

fn check_no_option(kind: &'static str, text: &str) -> Result<(), InvalidName> {
    if text.starts_with('-') {
        return Err(reserved(kind, text, "commands take what begins with '-' for an option"));
    }
    Ok(())
}

fn check_reserved(text: &str, kind: NameKind) -> Result<(), InvalidName> {
    if RESERVED.contains(&text) {
        return Err(reserved(kind.word(), text, "selectors give this word a meaning of its own"));
    }
    if kind == NameKind::Tag && text.starts_with(PRIMARY_PREFIX) {
        return Err(reserved(
            "tag",
            text,
            "'primary-' stands for the primary holder of a tag; set has_primary instead",
        ));
    }
    Ok(())
}

fn malformed(kind: &'static str, text: &str, rule: &'static str) -> InvalidName {
    InvalidName::Malformed { kind, name: quoted(text), rule }
}

fn reserved(kind: &'static str, text: &str, rule: &'static str) -> InvalidName {
    InvalidName::Reserved { kind, name: quoted(text), rule }
}

#[cfg(test)]
mod tests;
