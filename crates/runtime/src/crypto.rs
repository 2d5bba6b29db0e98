//! The one TLS provider of the process.

/// Installs `ring` as the provider of rustls; call it first in `main`. Calling it again changes nothing.
pub fn install_crypto_provider() {
    // The only error is that a provider is installed already, which is what is wanted.
    drop(rustls::crypto::ring::default_provider().install_default());
}

#[cfg(test)]
mod tests {
    #[test]
    fn installing_twice_is_harmless() {
        super::install_crypto_provider();
        super::install_crypto_provider();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
