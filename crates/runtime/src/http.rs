//! How every HTTP client of the process begins.

use reqwest::ClientBuilder;
pub use reqwest::Error;
use reqwest::redirect::Policy;
use url::{Host, Url};

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
