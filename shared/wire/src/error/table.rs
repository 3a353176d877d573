//! The table of error types: stable name, HTTP status, whether it is a refusal, and title. A test compares
//! `docs/errors.md` with it.

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

            /// Returns whether this is a refusal, as defined in docs/trust.md. Our programs never send a request that
            /// is refused, and an operator does not send one by mistake. The other types report a taken name, a
            /// misspelled field or a missing object.
            pub const fn is_refusal(self) -> bool {
                match self { $(Self::$variant => is_refusal!($class),)* }
            }

            /// Returns the complete body for when nothing of the request may be repeated: before authentication, or if
            /// it does not parse.
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
    RequestTooLarge "request.too_large" 413 refusal "The body is larger than is taken here.";
    RequestHeadTooLarge "request.head_too_large" 431 refusal "The request has more headers, or larger ones, than are taken here.";
    RequestEncoding "request.encoding" 415 refusal "Compressed bodies are not taken.";
    RequestMediaType "request.media_type" 415 answer "The body is of a kind that is not taken here.";
    RequestNotAcceptable "request.not_acceptable" 406 answer "The version or form that was asked for is not offered.";
    RequestMethod "request.method" 405 answer "This path does not take that method.";
    RequestQuery "request.query" 400 answer "A query parameter is unknown or has no such value.";
    RequestReused "request.reused" 409 refusal "The Idempotency-Key was used before, with another body.";
    PathUnknown "path.unknown" 404 answer "There is no such path.";
    MessageMalformed "message.malformed" 400 refusal "The message cannot be decoded.";
    MessageVersion "message.version" 400 refusal "The message is of a protocol version that is not spoken here.";
    AuthRequired "auth.required" 401 refusal "Authentication required: show a certificate or a token.";
    AuthForbidden "auth.forbidden" 403 refusal "Permission denied.";
    AuthRevoked "auth.revoked" 403 refusal "The certificate was revoked.";
    CertificateExpired "certificate_expired" 403 refusal "The certificate has expired; it can still be renewed, and nothing else.";
    CertificateSuperseded "certificate.superseded" 403 refusal "An expired certificate that is not the node's newest cannot be renewed.";
    CertificateTooMany "certificate.too_many" 429 refusal "The node has as many certificates that are not over as it may have.";
    TokenInvalid "token.invalid" 403 refusal "The join token is unknown, used up, expired, or bound to something else.";
    CsrInvalid "csr.invalid" 400 refusal "The certificate signing request is not taken.";
    FieldUnknown "field.unknown" 400 answer "A field has a name that is not known here.";
    FieldMissing "field.missing" 400 answer "A field that is needed is missing.";
    FieldInvalid "field.invalid" 400 answer "A field has a value that it cannot have.";
    FieldReadOnly "field.read_only" 403 answer "A field is given that the controller alone sets.";
    ActionUnsupported "action.unsupported" 400 answer "The action has no meaning here.";
    ObjectNotFound "object.not_found" 404 answer "There is no such object.";
    ObjectExists "object.exists" 409 answer "An object of that name exists.";
    ObjectInUse "object.in_use" 409 answer "Other objects refer to it.";
    ObjectProtected "object.protected" 403 answer "The object is protected, and so is what is in it.";
    FindingStrict "finding.strict" 400 answer "There are findings, and the request asks to be refused for them.";
    ObjectInvalid "object.invalid" 400 answer "The object does not hold together.";
    ObjectTooLarge "object.too_large" 413 answer "The object would be larger than one of its kind may be.";
    ObjectTooMany "object.too_many" 409 answer "There would be more of a kind than there may be.";
    ReferenceDangling "reference.dangling" 400 answer "The object refers to one that does not exist.";
    PreconditionFailed "precondition.failed" 412 answer "The object is no longer as the request presumes.";
    RevisionAhead "revision.ahead" 409 answer "The revision that was named is ahead of the store's.";
    EventsCompacted "events.compacted" 410 answer "The events after that revision are no longer kept: read everything again.";
    EventsSlow "events.slow" 503 answer "The client did not take its events in time.";
    DigestChanged "digest.changed" 409 answer "What would be applied is no longer what was shown.";
    LabelInvalid "label.invalid" 400 answer "A label's key or value is not of the allowed form.";
    LabelConflict "label.conflict" 409 answer "Another manager owns one of the keys that were applied.";
    LabelRestricted "label.restricted" 403 refusal "Permission denied: the label has a restricted prefix.";
    TraitInvalid "trait.invalid" 400 answer "A trait is unknown, malformed, or one too many.";
    TagAssigned "tag.assigned" 409 answer "The tag is assigned to the node already.";
    TagUnknown "tag.unknown" 400 answer "The tag is not visible in the node's cluster.";
    PrimaryKept "primary.kept" 409 answer "The primary stays where it is: the cluster names its holder, or no other node could hold it.";
    RoleInvalid "role.invalid" 400 answer "A role is unknown, or does not go with the others.";
    RequirementInvalid "requirement.invalid" 400 answer "A requirement cannot be evaluated.";
    RequirementUnmet "requirement.unmet" 400 answer "The node does not meet what its group requires.";
    SelectorInvalid "selector.invalid" 400 answer "The selector cannot be read.";
    BlobMismatch "blob.mismatch" 400 answer "The body does not have the hash that the path names.";
    BlobMissing "blob.missing" 400 answer "A file body that a manifest names was not sent before it.";
    BlobNoRoom "blob.no_room" 413 answer "The file bodies that nothing names take as much as they may.";
    StoreReadOnly "store.read_only" 503 answer "The store takes no writes until the controller is restarted.";
    StoreTooLarge "store.too_large" 413 refusal "The write is larger than the store can hold in one transaction.";
    OutcomeUnknown "store.outcome_unknown" 503 answer "Whether the write was made is not known; ask /v1/requests before trying again.";
    ServerBusy "server.busy" 503 answer "The controller has too much to do at the moment.";
    ServerStopping "server.stopping" 503 answer "The controller is stopping.";
    ExtensionFailed "extension.failed" 502 answer "An extension that decides tags gave no answer, or none that counts.";
    ServerInternal "server.internal" 500 answer "The controller failed on this request; its journal says why.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the rows of `docs/errors.md`: name, status, sentence.
    fn documented_rows() -> Vec<(String, String, String)> {
        include_str!("../../../../docs/errors.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
            .filter_map(|(name, rest)| rest.split_once(" | ").map(|(status, title)| (name.into(), status.into(), title.into())))
            .collect()
    }

    #[test]
    fn documentation_lists_every_error_type() {
        let table: Vec<_> = ErrorType::ALL
            .iter()
            .map(|kind| (kind.name().to_owned(), kind.status().to_string(), kind.title().to_owned()))
            .collect();
        assert_eq!(documented_rows(), table, "docs/errors.md and shared/wire/src/error/table.rs differ");
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
