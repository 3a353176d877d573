//! An operator's requests, as a program sends them: over one kept connection, each write under an `Idempotency-Key` of the caller's
//! choice. The command sends one and ends; a test needs many at once, and those whose answer never comes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hyper::Request;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use stemma_wire::client::{Client, ClientLimits};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::fleet::Bound;

/// Versions of the two interfaces whose calls depend on one, late enough for all of them.
const VERSIONS: [(&str, &str); 2] =
    [("x-openstack-ironic-api-version", "latest"), ("openstack-api-version", "container-infra latest")];

/// A write that can be sent again.
#[derive(Clone, Debug)]
pub struct Write {
    /// The method.
    pub method: &'static str,
    /// The path with its query.
    pub path: String,
    /// The body; `null` for none.
    pub body: Value,
    /// Its `Idempotency-Key`.
    pub key: Uuid,
}

/// One connection with the admin's certificate.
pub struct Operator {
    runtime: Runtime,
    client: Client,
    versions: &'static [(&'static str, &'static str)],
}

impl Operator {
    /// With the certificate that `init` wrote into the data directory.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn of(data: &Path, bound: &Bound) -> Result<Self> {
        let read = |name: &str| data.join("admin").join(name);
        let chain = CertificateDer::pem_file_iter(read("admin.pem"))?.collect::<Result<Vec<_>, _>>()?;
        let own = ClientIdentity { chain, key: PrivateKeyDer::from_pem_file(read("admin.key"))? };
        let pin = Pin::Roots(vec![CertificateDer::from_pem_file(&bound.ca)?]);
        let tls = client_config(&pin, None, Some(own), Arc::new(SystemClock))?;
        let client = Client::new(bound.admin.parse()?, Some(Arc::new(tls)), ClientLimits::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, client, versions: &VERSIONS })
    }

    /// As a client of neither interface: it names no version, and is answered with this API's own fields.
    #[must_use]
    pub fn without_versions(self) -> Self {
        Self { versions: &[], ..self }
    }

    /// Sends a write; status and body of its answer.
    ///
    /// # Errors
    /// When no answer comes: whether it was made is not known then.
    pub fn write(&mut self, write: &Write) -> Result<(u16, Value)> {
        self.write_with(write, &[])
    }

    /// The same with more headers.
    ///
    /// # Errors
    /// As [`Operator::write`].
    pub fn write_with(&mut self, write: &Write, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
        let kind = match write.method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let key = write.key.to_string();
        let headers = [&[("content-type", kind), ("idempotency-key", &key)], headers].concat();
        self.send(write.method, &write.path, &write.body, &headers)
    }

    /// Sends a body of another kind than a write's usual one; status and body of its answer.
    ///
    /// # Errors
    /// When no answer comes.
    pub fn call(&mut self, method: &str, path: &str, kind: &str, body: &Value) -> Result<(u16, Value)> {
        self.send(method, path, body, &[("content-type", kind)])
    }

    /// The same with a body that need be no JSON.
    ///
    /// # Errors
    /// When no answer comes.
    pub fn call_text(&mut self, method: &str, path: &str, kind: &str, body: String) -> Result<(u16, Value)> {
        self.send_bytes(method, path, body.into(), &[("content-type", kind)])
    }

    /// Reads; status and body.
    ///
    /// # Errors
    /// When no answer comes.
    pub fn get(&mut self, path: &str) -> Result<(u16, Value)> {
        self.send("GET", path, &Value::Null, &[])
    }

    fn send(&mut self, method: &str, path: &str, body: &Value, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        self.send_bytes(method, path, body, headers)
    }

    fn send_bytes(&mut self, method: &str, path: &str, body: Bytes, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
        let request = Request::builder().method(method).uri(path);
        let request =
            headers.iter().chain(self.versions).fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = self.runtime.block_on(self.client.send(request.body(body)?)).context("no answer")?;
        Ok((answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default()))
    }
}
