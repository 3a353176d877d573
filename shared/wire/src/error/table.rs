//! The table of error types: stable name, HTTP status, whether the type is a refusal, and title. A test compares
//! `docs/errors.md` with the table.

macro_rules! error_types {
    ($($variant:ident $name:literal $status:literal $class:ident $title:literal;)*) => {
        /// The type of an error. A name never changes its meaning or its status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorType {
            $(#[doc = $title] $variant,)*
        }

        impl ErrorType {
            /// All types, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the stable name, as in the body's `type`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Returns the sentence that explains the type.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// Returns whether an error of this type is a refusal (docs/trust.md), which is counted and, for a known
            /// caller, recorded in the audit. A refusal points to a faulty or foreign program, to an attack, or to
            /// missing, expired or insufficient credentials. The other types are ordinary errors, such as a misspelled
            /// field or a missing object.
            pub const fn is_refusal(self) -> bool {
                match self { $(Self::$variant => is_refusal!($class),)* }
            }

            /// Returns the complete JSON body of a response that repeats nothing of the request. A listener sends it
            /// for a request that it refuses before the handler runs, and after a panic of the handler.
            pub const fn fixed_body(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!(
                        r#"{"error":{"code":"#, $status, r#","type":""#, $name, r#"","title":""#, $title, r#"","message":""#, $title, r#""}}"#
                    ),)*
                }
            }
        }
    };
}

macro_rules! is_refusal {
    (refusal) => {
        true
    };
    (answer) => {
        false
    };
}

error_types! {
    RequestMalformed "request.malformed" 400 refusal "The request is not well formed.";
    RequestHost "request.host" 400 refusal "The request needs exactly one Host header, and one that is served here.";
    RequestOrigin "request.origin" 403 refusal "The request comes from a page of another origin.";
    RequestTimeout "request.timeout" 408 refusal "The request did not arrive in time.";
    RequestTooLarge "request.too_large" 413 refusal "The body is larger than the endpoint accepts.";
    RequestHeadTooLarge "request.head_too_large" 431 refusal "The request has too many headers, or its headers are too large.";
    RequestEncoding "request.encoding" 415 refusal "Compressed bodies are not accepted.";
    RequestMediaType "request.media_type" 415 answer "The endpoint does not accept a body of this media type.";
    RequestNotAcceptable "request.not_acceptable" 406 answer "The requested version or format is not supported.";
    RequestMethod "request.method" 405 answer "The path does not support this method.";
    RequestQuery "request.query" 400 answer "A query parameter is unknown or has an invalid value.";
    RequestReused "request.reused" 409 refusal "The Idempotency-Key was used before, with another body.";
    PathUnknown "path.unknown" 404 answer "The path does not exist.";
    MessageMalformed "message.malformed" 400 refusal "The message cannot be decoded.";
    MessageVersion "message.version" 400 refusal "The message has a protocol version that the controller does not support.";
    AuthRequired "auth.required" 401 refusal "Authentication required: send a certificate or a token.";
    AuthForbidden "auth.forbidden" 403 refusal "Permission denied.";
    AuthRevoked "auth.revoked" 403 refusal "The certificate was revoked.";
    CertificateExpired "certificate_expired" 403 refusal "The certificate has expired. The host can only renew it.";
    CertificateSuperseded "certificate.superseded" 403 refusal "An expired certificate that is not the node's newest cannot be renewed.";
    CertificateTooMany "certificate.too_many" 429 refusal "The node has the maximum number of unexpired certificates.";
    TokenInvalid "token.invalid" 403 refusal "The join token is unknown, used up, expired, or bound to something else.";
    CsrInvalid "csr.invalid" 400 refusal "The certificate signing request is not accepted.";
    FieldUnknown "field.unknown" 400 answer "A field has an unknown name.";
    FieldMissing "field.missing" 400 answer "A required field is missing.";
    FieldInvalid "field.invalid" 400 answer "A field has an invalid value.";
    FieldReadOnly "field.read_only" 403 answer "The request sets a field that only the controller may set.";
    ActionUnsupported "action.unsupported" 400 answer "The action is not supported.";
    ObjectNotFound "object.not_found" 404 answer "The object does not exist.";
    ObjectExists "object.exists" 409 answer "An object with this name exists already.";
    ObjectInUse "object.in_use" 409 answer "Other objects refer to the object.";
    ObjectProtected "object.protected" 403 answer "The object is protected, and so is what is in it.";
    FindingStrict "finding.strict" 400 answer "There are findings, and a strict request is refused for them.";
    ObjectInvalid "object.invalid" 400 answer "The fields of the object contradict each other.";
    ObjectTooLarge "object.too_large" 413 answer "The object would be larger than the maximum of its kind.";
    ObjectTooMany "object.too_many" 409 answer "There would be more objects of a kind than the maximum.";
    ReferenceDangling "reference.dangling" 400 answer "The object refers to an object that does not exist.";
    PreconditionFailed "precondition.failed" 412 answer "The object has changed since the version that the request expects.";
    RevisionAhead "revision.ahead" 409 answer "The requested revision is ahead of the store's.";
    EventsCompacted "events.compacted" 410 answer "The events after that revision are no longer stored: read everything again.";
    EventsSlow "events.slow" 503 answer "The client did not read its events in time.";
    DigestChanged "digest.changed" 409 answer "The change that would be applied differs from the change that was shown.";
    LabelInvalid "label.invalid" 400 answer "A label's key or value is not of the allowed form.";
    LabelConflict "label.conflict" 409 answer "Another manager owns one of the keys that were applied.";
    LabelRestricted "label.restricted" 403 refusal "Permission denied: the label has a restricted prefix.";
    TraitInvalid "trait.invalid" 400 answer "A trait is unknown or malformed, or there are too many traits.";
    TagAssigned "tag.assigned" 409 answer "The tag is assigned to the node already.";
    TagUnknown "tag.unknown" 400 answer "The tag is not visible in the node's cluster.";
    PrimaryKept "primary.kept" 409 answer "The primary does not move: the cluster names its node, or no other node can be primary.";
    RoleInvalid "role.invalid" 400 answer "A role is unknown, or conflicts with another role.";
    RequirementInvalid "requirement.invalid" 400 answer "A requirement cannot be evaluated.";
    RequirementUnmet "requirement.unmet" 400 answer "The node does not meet what its group requires.";
    SelectorInvalid "selector.invalid" 400 answer "The selector cannot be read.";
    BlobMismatch "blob.mismatch" 400 answer "The body does not have the hash that the path names.";
    BlobMissing "blob.missing" 400 answer "A file body that a manifest names was not sent before the manifest.";
    BlobNoRoom "blob.no_room" 413 answer "The file bodies that no manifest names already use all of their space.";
    StoreReadOnly "store.read_only" 503 answer "The store accepts no writes until the controller is restarted.";
    StoreTooLarge "store.too_large" 413 refusal "The write is larger than the store can hold in one transaction.";
    OutcomeUnknown "store.outcome_unknown" 503 answer "The result of the write is unknown: read /v1/requests before another attempt.";
    ServerBusy "server.busy" 503 answer "The controller is overloaded at the moment.";
    ServerStopping "server.stopping" 503 answer "The controller is stopping.";
    ExtensionFailed "extension.failed" 502 answer "An extension that decides tags sent no valid response.";
    ServerInternal "server.internal" 500 answer "The controller failed on this request. Its journal contains the reason.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the rows of the table in `docs/errors.md`: name, status and title of each error type.
    fn documented_rows() -> Vec<(String, String, String)> {
        include_str!("../../../../docs/errors.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
            .filter_map(|(name, rest)| rest.split_once(" | ").map(|(status, title)| (name.into(), status.into(), title.into())))
            .collect()
    }

    #[test]
    fn documentation_lists_every_error_type() {
        let expected_rows: Vec<_> = ErrorType::ALL
            .iter()
            .map(|kind| (kind.name().to_owned(), kind.status().to_string(), kind.title().to_owned()))
            .collect();
        assert_eq!(documented_rows(), expected_rows, "docs/errors.md and shared/wire/src/error/table.rs differ");
    }

    #[test]
    fn error_types_have_unique_names_and_json_bodies() {
        let names: BTreeSet<_> = ErrorType::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ErrorType::ALL.len());
        for kind in ErrorType::ALL {
            let body = super::super::ErrorBody::parse(kind.fixed_body().as_bytes()).expect("a body of our form");
            assert_eq!((body.code, body.kind.as_str()), (kind.status(), kind.name()));
        }
    }
}
