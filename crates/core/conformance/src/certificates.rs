//! Certificates for tests of TLS, in folders with the file names of nbdkit, libnbd and QEMU.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use std::path::Path;

/// An authority that signs certificates of servers and clients.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// From 1975 to 4096.
    Always,
    /// Until 2001.
    Expired,
    /// From 4000 on.
    Future,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Panics
    /// If the generation fails.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// Writes `ca-cert.pem` of this authority, and a certificate and key of `localhost` and `127.0.0.1` for
    /// each of the roles `server` and `client`.
    ///
    /// # Panics
    /// If the folder can't be written.
    pub fn fill(&self, folder: &Path) {
        self.trust(folder);
        self.sign(folder, "server", Validity::Always, &["localhost", "127.0.0.1"]);
        self.sign(folder, "client", Validity::Always, &["localhost", "127.0.0.1"]);
    }

    /// Writes `ca-cert.pem` of this authority.
    ///
    /// # Panics
    /// If the folder can't be written.
    pub fn trust(&self, folder: &Path) {
        std::fs::write(folder.join("ca-cert.pem"), &self.certificate).expect("a writable folder");
    }

    /// Writes certificate and key of this role.
    ///
    /// # Panics
    /// If the folder can't be written, or a name is no name.
    pub fn sign(&self, folder: &Path, role: &str, validity: Validity, names: &[&str]) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, role);
        match validity {
            Validity::Always => {}
            Validity::Expired => params.not_after = date_time_ymd(2001, 1, 1),
            Validity::Future => params.not_before = date_time_ymd(4000, 1, 1),
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(folder.join(format!("{role}-cert.pem")), certificate.pem()).expect("written");
        std::fs::write(folder.join(format!("{role}-key.pem")), key.serialize_pem()).expect("written");
    }
}
