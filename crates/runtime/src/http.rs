//! How every HTTP client of the process begins.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder};
pub use reqwest::{Error, Identity, Response};
use url::{Host, Url};

use crate::file::open_regular;

/// A bundle of all public authorities has a quarter of it; a path that was mistyped may lead to anything.
const MAX_PEM: u64 = 4 << 20;

/// Whether two sides could not talk for what TLS asks of them, certificates above all.
pub fn is_about_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    // What an I/O error wraps is not among its sources.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = wrapped.map(|it| it as &(dyn std::error::Error + 'static)).or_else(|| error.source());
    error.is::<rustls::Error>() || inner.is_some_and(is_about_tls)
}

/// Authorities of one's own, besides those of the system.
#[derive(Debug, Clone, Default)]
pub struct Authorities {
    found: Vec<Certificate>,
    /// What they were read from.
    pem: Vec<u8>,
}

/// The same, if they were read from the same.
impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.pem == other.pem
    }
}

/// Why a file in PEM form cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It cannot be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is too large to be one.
    #[error("read {}: it is larger than 4 MiB, is the path right?", .0.display())]
    TooLarge(PathBuf),
    /// It is in PEM form, and has something else.
    #[error("{} holds no {what}; it has to be in PEM form", path.display())]
    Lacks {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// What is in it is none.
    #[error("read {}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Error,
    },
}

impl Authorities {
    /// Reads certificates in PEM form.
    pub fn read(path: &Path) -> Result<Self, PemError> {
        let pem = read_pem(path)?;
        let found = Certificate::from_pem_bundle(&pem);
        let found = found.map_err(|source| PemError::Wrong { path: path.to_owned(), source })?;
        if found.is_empty() {
            return Err(PemError::Lacks { path: path.to_owned(), what: "certificate" });
        }
        Ok(Self { found, pem })
    }

    /// The certificates, for a client.
    pub fn certificates(&self) -> impl Iterator<Item = Certificate> {
        self.found.iter().cloned()
    }
}

/// Reads a certificate of this process and its key, by which it shows who it is.
pub fn read_identity(certificate: &Path, key: &Path) -> Result<Identity, PemError> {
    let mut pem = read_pem(certificate)?;
    pem.push(b'\n');
    pem.extend(read_pem(key)?);
    Identity::from_pem(&pem).map_err(|source| PemError::Wrong { path: certificate.to_owned(), source })
}

fn read_pem(path: &Path) -> Result<Vec<u8>, PemError> {
    let mut pem = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_PEM + 1).read_to_end(&mut pem));
    match read {
        Ok(bytes) if bytes as u64 > MAX_PEM => Err(PemError::TooLarge(path.to_owned())),
        Ok(_) => Ok(pem),
        Err(source) => Err(PemError::Read { path: path.to_owned(), source }),
    }
}

/// Begins a client for `url`: it follows no redirects, and what runs on this machine is never asked for through the
/// proxy that the environment names, which would look for it on its own.
pub fn client_for(url: &str) -> ClientBuilder {
    let client = ClientBuilder::new().redirect(Policy::none());
    if is_here(url) { client.no_proxy() } else { client }
}

fn is_here(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::is_here;

    #[test]
    fn this_machine_is_known_by_its_name_and_its_addresses() {
        for here in
            ["http://localhost:8000", "http://LOCALHOST/a", "http://127.0.0.1/", "http://127.8.9.1", "http://[::1]:1"]
        {
            assert!(is_here(here), "{here}");
        }
        for away in ["http://api:8000", "http://localhost.example.com", "http://10.0.0.1", "http://[::2]", "no address"]
        {
            assert!(!is_here(away), "{away}");
        }
    }
}
