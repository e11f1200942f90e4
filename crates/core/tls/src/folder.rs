//! Folder of certificates, with the file names that nbdkit, libnbd and QEMU use.
//!
//! | file | content (PEM) | needed by |
//! |---|---|---|
//! | `ca-cert.pem` | authorities that sign the peers' certificates | clients; servers that verify clients |
//! | `server-cert.pem`, `server-key.pem` | certificate chain and private key | servers |
//! | `client-cert.pem`, `client-key.pem` | certificate chain and private key | clients, if both files exist |

use block::{Error, Result};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, version};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const AUTHORITIES: &str = "ca-cert.pem";

/// A folder with certificates and keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// Certificate, key and rules of a server.
#[derive(Clone)]
pub struct ServerConfig {
    pub(crate) rules: Arc<rustls::ServerConfig>,
    verifies_clients: bool,
}

impl ServerConfig {
    /// Whether clients need a certificate.
    pub fn verifies_clients(&self) -> bool {
        self.verifies_clients
    }
}

/// Rules of a client, and its certificate and key if it has them.
#[derive(Clone)]
pub struct ClientConfig {
    pub(crate) rules: Arc<rustls::ClientConfig>,
    pub(crate) server: ServerName<'static>,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ServerConfig")
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClientConfig({:?})", self.server)
    }
}

/// Clock by which the validity of certificates is checked.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(runtime::wall_clock()))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Folder {
    /// Names a folder; reads nothing.
    pub fn new(path: impl Into<PathBuf>) -> Folder {
        Folder(path.into())
    }

    /// Reads the files of a server. With `verify_client`, clients need a certificate that an authority of
    /// `ca-cert.pem` has signed.
    ///
    /// # Errors
    /// [`Error::Invalid`] or an error of reading, with the path, for a file that is missing or has something
    /// else than expected.
    pub fn server(&self, verify_client: bool) -> Result<ServerConfig> {
        let refused = |error: rustls::Error| self.refused("server-cert.pem and server-key.pem", &error);
        let builder = rustls::ServerConfig::builder_with_details(provider(), Arc::new(Clock))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(refused)?;
        let builder = match verify_client {
            true => {
                let verifier = WebPkiClientVerifier::builder_with_provider(self.authorities()?, provider());
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|error| self.refused(AUTHORITIES, &error))?,
                )
            }
            false => builder.with_no_client_auth(),
        };
        let (certificates, key) = self.identity("server")?;
        let mut config = builder.with_single_cert(certificates, key).map_err(refused)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ServerConfig { rules: Arc::new(config), verifies_clients: verify_client })
    }

    /// Reads the files of a client that expects `server`, a DNS name or an IP address, in the server's
    /// certificate.
    ///
    /// # Errors
    /// As [`server`](Self::server); [`Error::Invalid`] if `server` is no name.
    pub fn client(&self, server: &str) -> Result<ClientConfig> {
        let name = ServerName::try_from(server.to_owned()).map_err(|_| {
            Error::invalid(format!("TLS: server name \"{server}\": expected a DNS name or an IP address"))
        })?;
        let refused = |error: rustls::Error| self.refused("client-cert.pem and client-key.pem", &error);
        let builder = rustls::ClientConfig::builder_with_details(provider(), Arc::new(Clock))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(refused)?
            .with_root_certificates(self.authorities()?);
        let has_identity = ["client-cert.pem", "client-key.pem"].map(|name| self.0.join(name).exists());
        let mut config = match has_identity.contains(&true) {
            true => {
                let (certificates, key) = self.identity("client")?;
                builder.with_client_auth_cert(certificates, key).map_err(refused)?
            }
            false => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(ClientConfig { rules: Arc::new(config), server: name })
    }

    fn refused(&self, files: &str, error: &dyn fmt::Display) -> Error {
        Error::invalid(format!("TLS: folder \"{}\": {files}: {error}", self.0.display()))
    }

    fn authorities(&self) -> Result<Arc<RootCertStore>> {
        let path = self.0.join(AUTHORITIES);
        let mut store = RootCertStore::empty();
        for certificate in certificates(&path)? {
            store.add(certificate).map_err(|error| self.refused(AUTHORITIES, &error))?;
        }
        Ok(Arc::new(store))
    }

    /// Reads certificate chain and key of this `role`.
    fn identity(&self, role: &str) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = self.0.join(format!("{role}-key.pem"));
        let chain = certificates(&self.0.join(format!("{role}-cert.pem")))?;
        let key =
            PrivateKeyDer::from_pem_file(&key).map_err(|error| unreadable(&key, "a private key", &error))?;
        Ok((chain, key))
    }
}

/// Reads all certificates of a file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let expected = "at least one certificate";
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(unreadable(path, expected, &pem::Error::NoItemsFound))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(path, expected, &error)),
    }
}

fn unreadable(path: &Path, expected: &str, error: &pem::Error) -> Error {
    let file = format!("TLS: file \"{}\"", path.display());
    match error {
        pem::Error::Io(error) => {
            let error = Error::from_io(error, &file);
            error.with_detail(format!("{}; expected {expected} in PEM form", error.detail()))
        }
        pem::Error::NoItemsFound => {
            Error::invalid(format!("{file}: expected {expected} in PEM form; it has none"))
        }
        error => Error::invalid(format!("{file}: {error}; expected {expected} in PEM form")),
    }
}
