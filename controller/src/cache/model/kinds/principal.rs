//! Principals. They are not part of the fleet that is resolved: the admin listener looks up who a caller is.

use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::fleet::FleetChange;
use stemma_core::manifest::{BodyError, NameResolver};
use stemma_core::name::ObjectName;
use stemma_core::object::{Kind, Object, PrincipalSpec};
use stemma_core::release::ReleaseError;
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::tls::PrincipalName;

use super::{KIB, ObjectReference, Resource, bad_name_error};
use crate::cache::model::Model;

/// Names with another meaning in the audit log: root's socket, the controller itself, a caller without a credential,
/// and callers that are counted together. They are compared without case, because people would take `Root` for `root`.
const RESERVED_NAMES: [&str; 4] = ["root", "stemma-controller", "nobody", "others"];

impl Resource for PrincipalSpec {
    const MAX_BYTES: usize = 256 * KIB;

    /// Does nothing: the description is limited where it is parsed, and the lists where an entry is added.
    fn check_bounds(&self, _before: Option<&Self>, _names: &dyn NameResolver) -> Result<(), BodyError> {
        let Self { role: _, cluster: _, description: _, certificates: _, tokens: _, takes_unlisted: _ } = self;
        Ok(())
    }

    fn name_text(name: &ObjectName) -> Option<String> {
        Some(name.to_string())
    }

    /// Parses a name that is also valid in a certificate and is not reserved.
    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        let refused = |message: String| ApiError::new(ErrorType::FieldInvalid, message).field("name");
        text.parse::<PrincipalName>().map_err(|e| refused(e.to_string()))?;
        if RESERVED_NAMES.iter().any(|reserved| reserved.eq_ignore_ascii_case(text)) {
            return Err(refused(format!("the name {} is reserved: the audit log uses it for other callers", quote(text))));
        }
        ObjectName::new(text).map_err(|e| bad_name_error(&e))
    }

    fn check_new_name(name: &ObjectName) -> Result<(), ApiError> {
        name.check_new(&[]).map_err(|e| bad_name_error(&e))
    }

    fn references(&self) -> Vec<ObjectReference> {
        self.cluster.map(|id| ObjectReference::for_uuid(Kind::Cluster, id.0)).into_iter().collect()
    }

    indexed_in!(principals);

    fn put_changes(_model: &Model, _object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
        Ok(Vec::new())
    }

    fn remove_change(_object: &Object<Self>) -> Option<FleetChange> {
        None
    }

    fn lookup_keys(&self) -> Vec<String> {
        let certificates = self.certificates.iter().map(|certificate| certificate_key(&certificate.serial));
        certificates.chain(self.tokens.iter().map(|token| token_key(&token.id))).collect()
    }

    fn access_scope(_model: &Model, object: &Object<Self>) -> AccessScope {
        object.spec.cluster.map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }
}

/// Returns the key that finds the principal with the certificate of this serial number.
pub fn certificate_key(serial: &str) -> String {
    format!("certificate/{serial}")
}

/// Returns the key that finds the principal with the bearer token of this id.
pub fn token_key(id: &str) -> String {
    format!("token/{id}")
}
