//! Asks a running sentinel.

use std::time::Duration;

use reqwest::StatusCode;
use url::Url;
use watchfire_runtime::redact::address;

use super::{Answer, is_id};

/// Longer than a sentinel takes to give up.
const TIMEOUT: Duration = Duration::from_secs(12);

/// An answer is a few KiB; what is larger is none.
const MAX_ANSWER: usize = 1024 * 1024;

/// Why a running sentinel gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No address.
    #[error("{server:?} is no address of a sentinel")]
    Address {
        /// As typed.
        server: String,
    },
    /// No id.
    #[error("{id:?} is no id of a resource")]
    Id {
        /// As typed.
        id: String,
    },
    /// It can't be reached.
    #[error("ask the sentinel at {url}")]
    Reach {
        /// Where.
        url: String,
        /// What the client said.
        #[source]
        source: reqwest::Error,
    },
    /// Something else answers.
    #[error("ask the sentinel at {url}: it answers with status {status}, and not as a sentinel does")]
    Foreign {
        /// Where.
        url: String,
        /// The status.
        status: StatusCode,
    },
}

impl AskError {
    /// What the operator can check or change.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Address { .. } => "write the health address, for example http://localhost:8080",
            Self::Id { .. } => "copy the id as the API, an event or the log shows it",
            Self::Reach { .. } => {
                "check that it runs, and that its health port is the one; `kubectl port-forward` may be needed"
            }
            Self::Foreign { .. } => "name the health port of a sentinel of this release, not its metrics port",
        }
    }
}

/// Asks the sentinel whose health address is `server` about a resource.
pub async fn ask(server: &str, id: &str) -> Result<Answer, AskError> {
    if !is_id(id) {
        return Err(AskError::Id { id: id.chars().take(64).collect() });
    }
    let wrong = || AskError::Address { server: server.chars().take(128).collect() };
    let mut url: Url = server.parse().map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong());
    }
    url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend(["sentinel", "explain", id]);
    url.set_query(None);
    let name = address(&url);
    let reach = |source: reqwest::Error| AskError::Reach { url: name.clone(), source: source.without_url() };
    let client = watchfire_runtime::http::client_for(url.as_str()).timeout(TIMEOUT).build().map_err(reach)?;
    let mut response = client.get(url).send().await.map_err(reach)?;
    let status = response.status();
    let foreign = || AskError::Foreign { url: name.clone(), status };
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reach)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER {
            return Err(foreign());
        }
    }
    serde_json::from_slice(&body).map_err(|_| foreign())
}
