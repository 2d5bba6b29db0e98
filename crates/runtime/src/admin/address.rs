//! Addresses to listen on, written as in Go, and how they are bound.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;

use super::AdminError;

/// Why a text is not an address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid address {text:?}: {problem}; write for example \":8080\", \"127.0.0.1:8080\" or \"[::1]:8080\"")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

/// Parses an address to listen on: `:8080` is every interface, IPv4 and IPv6, as in Go.
pub fn parse_bind_address(text: &str) -> Result<SocketAddr, AddressError> {
    let failed = |problem| AddressError { text: text.chars().take(128).collect(), problem };
    let (host, port) = text.rsplit_once(':').ok_or_else(|| failed("the port is missing"))?;
    // `parse` would take a plus sign.
    let port = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    let port = port.and_then(|port| port.parse().ok()).ok_or_else(|| failed("the port is no number up to 65535"))?;
    let ip = match host {
        "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(v6) => IpAddr::V6(v6.parse().map_err(|_| failed("no IPv6 address in the brackets"))?),
            None if host.contains(':') => return Err(failed("an IPv6 address stands in brackets")),
            None => IpAddr::V4(host.parse().map_err(|_| failed("the host is no IP address of this machine"))?),
        },
    };
    Ok(SocketAddr::new(ip, port))
}

/// Binds an address; "every interface" falls back to IPv4 on a machine without IPv6, as in Go.
pub(super) async fn bind(purpose: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), AdminError> {
    let failed = |source| AdminError::Bind { purpose, address, source };
    let listener = match TcpListener::bind(address).await {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != std::io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
    .map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_go_reads_them() {
        let table = [
            (":8080", "[::]:8080"),
            ("0.0.0.0:8080", "0.0.0.0:8080"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("localhost:9090", "127.0.0.1:9090"),
            ("[::1]:9090", "[::1]:9090"),
            ("[::]:9090", "[::]:9090"),
        ];
        for (text, expected) in table {
            assert_eq!(parse_bind_address(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn bad_addresses_say_what_is_wrong_and_show_an_example() {
        let table = [
            ("", "port is missing"),
            ("8080", "port is missing"),
            (":", "no number"),
            (":http", "no number"),
            (":65536", "no number"),
            (":-1", "no number"),
            (":+1", "no number"),
            ("::1:8080", "stands in brackets"),
            ("[::1:8080", "stands in brackets"),
            ("[localhost]:1", "in the brackets"),
            ("example.com:80", "no IP address"),
            ("http://127.0.0.1:80", "stands in brackets"),
        ];
        for (text, expected) in table {
            let error = parse_bind_address(text).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("\":8080\""), "{text}: {error}");
        }
    }
}
