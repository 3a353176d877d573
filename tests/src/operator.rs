//! A client that sends an operator's requests over one persistent connection. The caller chooses the `Idempotency-Key`
//! of each write. The `stemma` command sends one request and ends, but a test needs many requests at once, and requests
//! whose response is lost.

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

use crate::fleet::ListenerAddresses;

/// Headers that request the latest API versions of Ironic and Magnum, the two interfaces with versions.
const API_VERSIONS: [(&str, &str); 2] =
    [("x-openstack-ironic-api-version", "latest"), ("openstack-api-version", "container-infra latest")];

/// A write that can be sent again with the same idempotency key.
#[derive(Clone, Debug)]
pub struct OperatorWrite {
    /// The HTTP method.
    pub method: &'static str,
    /// The path with the query.
    pub path: String,
    /// The JSON body, or `null` for a request without a body.
    pub body: Value,
    /// The `Idempotency-Key` of the write.
    pub key: Uuid,
}

/// A client that has the admin's certificate and one connection.
pub struct OperatorClient {
    runtime: Runtime,
    client: Client,
    versions: &'static [(&'static str, &'static str)],
}

impl OperatorClient {
    /// Creates a client with the certificate that `init` wrote into the data directory.
    ///
    /// # Errors
    /// When the certificate cannot be read.
    pub fn from_data(data: &Path, addresses: &ListenerAddresses) -> Result<Self> {
        let path = |name: &str| data.join("admin").join(name);
        let chain = CertificateDer::pem_file_iter(path("admin.pem"))?.collect::<Result<Vec<_>, _>>()?;
        let identity = ClientIdentity { chain, key: PrivateKeyDer::from_pem_file(path("admin.key"))? };
        let pin = Pin::Roots(vec![CertificateDer::from_pem_file(&addresses.ca)?]);
        let tls = client_config(&pin, None, Some(identity), Arc::new(SystemClock))?;
        let client = Client::new(addresses.admin.parse()?, Some(Arc::new(tls)), ClientLimits::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, client, versions: &API_VERSIONS })
    }

    /// Returns this client without the headers for API versions. The controller then responds with the fields of its
    /// own API.
    #[must_use]
    pub fn without_versions(self) -> Self {
        Self { versions: &[], ..self }
    }

    /// Sends a write. Returns the status and the body of the response.
    ///
    /// # Errors
    /// When no response arrives. The controller may have made the write nevertheless.
    pub fn write(&mut self, write: &OperatorWrite) -> Result<(u16, Value)> {
        self.write_with(write, &[])
    }

    /// Same as [`OperatorClient::write`], with additional headers.
    ///
    /// # Errors
    /// As [`OperatorClient::write`].
    pub fn write_with(&mut self, write: &OperatorWrite, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
        let media_type = match write.method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let key = write.key.to_string();
        let headers = [&[("content-type", media_type), ("idempotency-key", &key)], headers].concat();
        self.send(write.method, &write.path, &write.body, &headers)
    }

    /// Sends a JSON body with this media type. Returns the status and the body of the response.
    ///
    /// # Errors
    /// When no response arrives.
    pub fn send_typed(&mut self, method: &str, path: &str, media_type: &str, body: &Value) -> Result<(u16, Value)> {
        self.send(method, path, body, &[("content-type", media_type)])
    }

    /// Same as [`OperatorClient::send_typed`], with a body that need not be JSON.
    ///
    /// # Errors
    /// When no response arrives.
    pub fn send_text(&mut self, method: &str, path: &str, media_type: &str, body: String) -> Result<(u16, Value)> {
        self.send_bytes(method, path, body.into(), &[("content-type", media_type)])
    }

    /// Sends a GET. Returns the status and the body of the response.
    ///
    /// # Errors
    /// When no response arrives.
    pub fn get(&mut self, path: &str) -> Result<(u16, Value)> {
        self.send("GET", path, &Value::Null, &[])
    }

    /// Sends a request. The value `null` means an empty body.
    fn send(&mut self, method: &str, path: &str, body: &Value, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        self.send_bytes(method, path, body, headers)
    }

    /// Sends a request. Returns the status and the body of the response, with `null` for a body that is not JSON.
    fn send_bytes(&mut self, method: &str, path: &str, body: Bytes, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().chain(self.versions).fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = self.runtime.block_on(self.client.send(request.body(body)?)).context("no answer")?;
        Ok((answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default()))
    }
}
