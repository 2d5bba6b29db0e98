//! The authorities that are trusted where the system names none, as in an image without certificates.
//!
//! Every TLS client of the process finds the authorities by itself: reqwest, the client of RabbitMQ, and Google's,
//! which can be given none. All of them go by `SSL_CERT_FILE`. The surprise: a program cannot safely change its own
//! environment while it runs, so this one starts itself again, as the same process, with that variable at a file in
//! memory.

use std::io;

use crate::config::Env;

/// Where every client looks first.
const VARIABLE: &str = "SSL_CERT_FILE";

/// Where they look besides.
const FOLDERS: &str = "SSL_CERT_DIR";

/// What an open file of this process is called by itself.
const OPEN_FILES: &str = "/proc/self/fd/";

/// Whether the authorities that are trusted are those built into the program.
pub fn are_built_in(env: &Env) -> bool {
    env.get(VARIABLE).is_some_and(|path| path.starts_with(OPEN_FILES))
}

/// Makes sure that there are authorities to trust: where the system has none, starts the program again with those built
/// into it. Call it first in `main`, before anything is read or begun.
///
/// Returns if there is nothing to do, or if it cannot be done; then no client can be built that may speak TLS. Whoever
/// has said whom to trust is never given others in their place.
#[cfg(target_os = "linux")]
pub fn ensure() -> io::Result<()> {
    let env = Env::from_process();
    // Once is enough: what cannot be read the second time cannot be read the third time.
    if are_built_in(&env) || !rustls_native_certs::load_native_certs().certs.is_empty() {
        return Ok(());
    }
    if let Some((name, value)) = [VARIABLE, FOLDERS].iter().find_map(|name| Some((name, env.get(name)?))) {
        return Err(io::Error::other(format!(
            "{name}={value} holds none; correct it, or unset it to trust those built in"
        )));
    }
    Err(linux::start_again())
}

/// Does nothing: elsewhere the system has a store of its own.
#[cfg(not(target_os = "linux"))]
pub fn ensure() -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fmt::Write as _;
    use std::fs::File;
    use std::io::{self, Write as _};
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::{FOLDERS, OPEN_FILES, VARIABLE};

    /// Returns only if it fails.
    pub(super) fn start_again() -> io::Error {
        let again = || {
            let file = bundle()?;
            let mut arguments = std::env::args_os();
            let mut program = Command::new(std::env::current_exe()?);
            program.arg0(arguments.next().unwrap_or_default()).args(arguments);
            program.env(VARIABLE, format!("{OPEN_FILES}{}", file.as_raw_fd())).env_remove(FOLDERS);
            io::Result::Ok(program.exec())
        };
        again().unwrap_or_else(|error| error)
    }

    /// The certificates in memory, open for this program and for what it becomes.
    fn bundle() -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("certificates.pem", MemfdFlags::empty())?);
        file.write_all(pem().as_bytes())?;
        Ok(file.into())
    }

    pub(super) fn pem() -> String {
        let mut text = String::new();
        for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
            let body = BASE64_STANDARD.encode(certificate);
            // Writing to a String cannot fail.
            let _infallible = writeln!(text, "-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----");
        }
        text
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustls::RootCertStore;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn what_is_built_in_is_read_as_it_was_written_and_can_be_used() {
        let read: Vec<_> = CertificateDer::pem_slice_iter(linux::pem().as_bytes()).map(Result::unwrap).collect();
        assert_eq!(read, webpki_root_certs::TLS_SERVER_ROOT_CERTS);
        let (usable, unusable) = RootCertStore::empty().add_parsable_certificates(read);
        assert!(usable > 100 && unusable == 0, "{usable} and {unusable}");
    }

    #[test]
    fn where_they_come_from_is_told_by_the_variable() {
        assert!(are_built_in(&Env::from([(VARIABLE, "/proc/self/fd/3")])));
        assert!(!are_built_in(&Env::from([(VARIABLE, "/etc/ssl/certs/ca-certificates.crt")])));
        assert!(!are_built_in(&Env::default()));
    }
}
