//! Asks a HyperFleet API for a list, page by page.
//!
//! One request has a timeout, a cap on what it reads, and retries with backoff within a budget; a `Retry-After` is
//! not undercut, up to five minutes. What the API says when it refuses is explained; bodies never reach a log.

use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderName, HeaderValue, StatusCode, header};
use reqwest::Client;
use secrecy::ExposeSecret;
use tracing::{Instrument, Span, debug};
use url::Url;
use watchfire_delivery::retry::{Backoff, retry_after};
use watchfire_runtime::clock;
use watchfire_runtime::http::Authorities;
use watchfire_runtime::redact::address;
use watchfire_runtime::secret::{self, SecretSource};
use watchfire_runtime::telemetry::traceparent;

use crate::config::Form;
use crate::page::Page;
use crate::resource::without_text;
use crate::trace;

pub mod paging;
mod problem;
pub mod projection;

/// What one answer may weigh. A page of 100 is some 200 KB; an API that answers everything at once still fits with
/// tens of thousands of resources.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// How long one request is retried before the cycle gives up on it.
const RETRY_BUDGET: Duration = Duration::from_secs(30);

/// The longest that an API is left alone because it asked for it: changes of the fleet wait meanwhile, and an API that
/// asks for a day is more likely wrong than in need of one. One more request after that costs it nothing.
pub const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);

/// What to check where the API counts more than it lists.
pub const UNLISTED: &str = "nothing is published for them: check that the API pages (search, page, size), and that its \
                            total counts only what search selects";

/// 500 ms, doubled, at most 8 s.
const BACKOFF: Backoff =
    Backoff { initial: Duration::from_millis(500), multiplier: 2.0, jitter: 0.1, max: Duration::from_secs(8) };

/// Why a list could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The token could not be read.
    #[error("read the API token")]
    Token(#[source] secret::Error),
    /// The token is no header value.
    #[error("send the API token: it has characters that a header cannot carry")]
    TokenCharacters,
    /// A configured header could not be read.
    #[error("read the header {name}")]
    Header {
        /// Its name.
        name: HeaderName,
        /// Why.
        #[source]
        source: secret::Error,
    },
    /// A configured header is no header value.
    #[error("send the header {name}: it has characters that a header cannot carry")]
    HeaderCharacters {
        /// Its name.
        name: HeaderName,
    },
    /// The API could not be reached, or the connection broke before it answered.
    #[error("reach {url}")]
    Connect {
        /// What was asked, without its query.
        url: String,
        /// What the client said.
        #[source]
        source: reqwest::Error,
    },
    /// The connection broke within the answer, or what came cannot be unpacked.
    #[error("read the answer of {url} to its end")]
    Cut {
        /// What was asked.
        url: String,
        /// What the client said.
        #[source]
        source: reqwest::Error,
    },
    /// No answer in time.
    #[error("wait for {url}, {after:?} and no complete answer")]
    Timeout {
        /// What was asked.
        url: String,
        /// The configured timeout.
        after: Duration,
    },
    /// The API refused.
    #[error("list {url}: status {status}{detail}")]
    Status {
        /// What was asked.
        url: String,
        /// The answer's status.
        status: StatusCode,
        /// What its problem document says, if it is one.
        detail: String,
        /// The answer's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// An answer that is not JSON.
    #[error("list {url}: the answer is {content_type}, not JSON")]
    NotJson {
        /// What was asked.
        url: String,
        /// The answer's content type.
        content_type: String,
    },
    /// JSON that is no list, or breaks off.
    #[error("read the list of {url}")]
    Malformed {
        /// What was asked.
        url: String,
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
    /// More than we are willing to read.
    #[error("read the list of {url}: the answer is larger than {} MiB", MAX_BODY / 1024 / 1024)]
    TooLarge {
        /// What was asked.
        url: String,
    },
    /// A list that goes on and on.
    #[error("read the list of {url}: it has no end, {served} resources came and the API counts {counted}")]
    Endless {
        /// What was asked.
        url: String,
        /// Resources that came.
        served: u64,
        /// How many the API said there are, 0 where it did not.
        counted: u64,
    },
}

impl Error {
    /// Whether it is about who we are, not about what we asked.
    pub fn is_auth(&self) -> bool {
        match self {
            Self::Token(_) | Self::TokenCharacters | Self::Header { .. } | Self::HeaderCharacters { .. } => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 401 | 403),
            Self::Connect { .. }
            | Self::Cut { .. }
            | Self::Timeout { .. }
            | Self::NotJson { .. }
            | Self::Malformed { .. }
            | Self::TooLarge { .. }
            | Self::Endless { .. } => false,
        }
    }

    /// `auth_error` or `fetch_error`, as dashboards know them.
    pub fn kind(&self) -> &'static str {
        if self.is_auth() { "auth_error" } else { "fetch_error" }
    }

    /// What the operator can check or change, with the keys that a file of this form has.
    pub fn hint(&self, form: Form) -> String {
        let (endpoint, timeout) = (form.key("hyperfleet_api.endpoint"), form.key("hyperfleet_api.timeout"));
        let (resource_type, interval) = (form.key("resource_type"), form.key("poll_interval"));
        let token = match form {
            Form::Object => "the Secret of spec.hyperfleetAPI.tokenSecretRef",
            Form::Flat | Form::HyperFleet => "HYPERFLEET_API_TOKEN or the token file",
        };
        let hint = match self {
            Self::Token(_) => "check the token file's path and permissions",
            Self::TokenCharacters => "check the token for line breaks, and that it is the token alone",
            Self::Header { .. } => "check the path and permissions of the file that the header is read from",
            Self::HeaderCharacters { .. } => {
                "check the header's file for line breaks, and that it holds the value alone"
            }
            Self::Connect { .. } => &format!("check {endpoint}, DNS, and that the API is running"),
            Self::Cut { .. } => "check the API's log for this request, and the limits of proxies in between",
            Self::Timeout { .. } => &format!("check the API's load, or raise {timeout}"),
            Self::Status { status, .. } => match status.as_u16() {
                400 => &format!("the API does not take this query; check its version and {resource_type}"),
                401 => &format!("the token is missing, expired or of the wrong audience; check {token}"),
                403 => "the token is valid but may not list this; check its role and tenant at the API",
                404 => &format!("check {resource_type} (the plural the API serves, such as clusters) and {endpoint}"),
                300..=399 => &format!("redirects are not followed; set {endpoint} to the final address"),
                429 => &format!("the API asks to slow down; raise {interval} or its limits"),
                _ => "check the API's log for this request",
            },
            Self::NotJson { .. } => {
                &format!("something else answers at {endpoint}: a login page, a proxy or another service?")
            }
            Self::Malformed { .. } => {
                "the answer breaks off or is no list; check the API's version and proxies in between"
            }
            Self::TooLarge { .. } => "the API answers without paging; select fewer resources, or use an API that pages",
            Self::Endless { .. } => "the API serves ever new ids: report it to its owners",
        };
        hint.to_owned()
    }

    /// What readiness says of it.
    pub(crate) fn why(&self, form: Form) -> String {
        format!("{}; {}", watchfire_runtime::chain(self), self.hint(form))
    }

    /// How long we stay away at least because the API asked for it, at most [`LONGEST_RETRY_AFTER`].
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => retry_after.map(|asked| asked.min(LONGEST_RETRY_AFTER)),
            Self::Token(_)
            | Self::TokenCharacters
            | Self::Header { .. }
            | Self::HeaderCharacters { .. }
            | Self::Connect { .. }
            | Self::Cut { .. }
            | Self::Timeout { .. }
            | Self::NotJson { .. }
            | Self::Malformed { .. }
            | Self::TooLarge { .. }
            | Self::Endless { .. } => None,
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Cut { .. } | Self::Timeout { .. } => true,
            // An answer that breaks off may be whole the next time; one of another shape will not.
            Self::Malformed { source, .. } => source.is_eof(),
            Self::Status { status, .. } => matches!(status.as_u16(), 408 | 429 | 500..=599),
            Self::Token(_)
            | Self::TokenCharacters
            | Self::Header { .. }
            | Self::HeaderCharacters { .. }
            | Self::NotJson { .. }
            | Self::TooLarge { .. }
            | Self::Endless { .. } => false,
        }
    }
}

/// Hears of every failed attempt but the last, so that readiness can say why before the retries are used up.
pub type OnFailure<'a> = &'a (dyn Fn(&Error) + Send + Sync);

/// What the client needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiConfig {
    /// Base address, for example `http://hyperfleet-api:8000`.
    pub endpoint: Url,
    /// For one request, from connecting to the last byte.
    pub timeout: Duration,
    /// Bearer token.
    pub token: Option<SecretSource>,
    /// A plural such as `clusters`.
    pub resource_type: String,
    /// Resources in one answer, at most [`paging::PAGE_SIZE`].
    pub page_size: usize,
    /// Sent with every request, besides our own.
    pub headers: Vec<(HeaderName, SecretSource)>,
    /// Trusted besides the system's.
    pub authorities: Authorities,
}

/// A client of one list endpoint.
pub struct Api {
    http: Client,
    list: Url,
    timeout: Duration,
    token: Option<SecretSource>,
    headers: Vec<(HeaderName, SecretSource)>,
    pub(crate) page_size: usize,
}

impl Api {
    /// Prepares the client; connects to nothing.
    pub fn new(config: &ApiConfig) -> Result<Self, reqwest::Error> {
        let http = watchfire_runtime::http::client_for(config.endpoint.as_str())
            .timeout(config.timeout)
            .connect_timeout(config.timeout.min(Duration::from_secs(5)))
            .user_agent(concat!("watchfire-sentinel/", env!("CARGO_PKG_VERSION")))
            .tls_certs_merge(config.authorities.certificates())
            .build()?;
        let mut list = config.endpoint.clone();
        let base = list.path().trim_end_matches('/').to_owned();
        list.set_path(&format!("{base}/api/hyperfleet/v1/{}", config.resource_type));
        Ok(Self {
            http,
            list,
            timeout: config.timeout,
            token: config.token.clone(),
            headers: config.headers.clone(),
            page_size: config.page_size,
        })
    }

    /// Reads one page, retrying what may pass within the budget; `failed` hears of every attempt that is tried again.
    pub async fn get(&self, query: &[(&str, &str)], failed: OnFailure<'_>) -> Result<Page, Error> {
        let begun = tokio::time::Instant::now();
        let mut attempt = 0;
        loop {
            let error = match self.get_traced(query, attempt).await {
                Ok(page) => return Ok(page),
                Err(error) => error,
            };
            let wait = BACKOFF.delay(attempt, rand::random(), error.retry_after());
            if !error.is_transient() || begun.elapsed() + wait > RETRY_BUDGET {
                return Err(error);
            }
            failed(&error);
            debug!(error = %watchfire_runtime::chain(&error), attempt, "list refused, trying again");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    /// Reads one page, once.
    pub async fn once(&self, query: &[(&str, &str)]) -> Result<Page, Error> {
        self.get_traced(query, 0).await
    }

    /// Reads one resource, once: whoever asks is there to ask again. The id becomes one segment of the path.
    pub async fn get_one(&self, id: &str) -> Result<String, Error> {
        let mut url = self.list.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.push(id);
        }
        self.ask(url).await
    }

    /// One attempt, with its own span.
    async fn get_traced(&self, query: &[(&str, &str)], attempt: u32) -> Result<Page, Error> {
        let mut url = self.list.clone();
        url.query_pairs_mut().extend_pairs(query);
        let span = trace::get(&url, attempt);
        let answer = self.get_once(url).instrument(span.clone()).await;
        if let Err(error) = &answer {
            trace::failed(&span, error.kind(), error);
        }
        answer
    }

    async fn get_once(&self, url: Url) -> Result<Page, Error> {
        let body = self.ask(url).await?;
        Page::parse(body).map_err(|error| Error::Malformed { url: self.name(), source: without_text(error) })
    }

    /// Reads an answer that may be JSON.
    async fn ask(&self, url: Url) -> Result<String, Error> {
        let mut request = self.http.get(url).header(header::ACCEPT, "application/json");
        let token = self.token.as_ref().map(SecretSource::current).transpose().map_err(Error::Token)?;
        if let Some(token) = &token {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()));
            let mut value = value.map_err(|_| Error::TokenCharacters)?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let mut secrets: Vec<_> = token.into_iter().collect();
        for (name, source) in &self.headers {
            let secret = source.current().map_err(|source| Error::Header { name: name.clone(), source })?;
            let mut value = HeaderValue::from_str(secret.expose_secret())
                .map_err(|_| Error::HeaderCharacters { name: name.clone() })?;
            value.set_sensitive(true);
            request = request.header(name, value);
            secrets.push(secret);
        }
        if let Some(parent) = traceparent(&Span::current()) {
            request = request.header("traceparent", parent);
        }
        let mut response = request.send().await.map_err(|source| {
            self.late(&source).unwrap_or_else(|| Error::Connect { url: self.name(), source: source.without_url() })
        })?;

        let status = response.status();
        Span::current().record("http.response.status_code", status.as_u16());
        let headers = response.headers().clone();
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("untyped");
        let body = match self.read(&mut response).await {
            Ok(body) => body,
            // The status explains more than the body that did not come.
            Err(_) if !status.is_success() => Vec::new(),
            Err(error) => return Err(error),
        };
        if !status.is_success() {
            return Err(Error::Status {
                url: self.name(),
                status,
                detail: problem::explain(content_type, &body, &secrets),
                retry_after: headers
                    .get(header::RETRY_AFTER)
                    .and_then(|value| value.to_str().ok())
                    .and_then(|value| retry_after(value, clock::now())),
            });
        }
        // As in a Go program, a byte that is no UTF-8 costs the text that it stands in, and nothing else.
        let body =
            String::from_utf8(body).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        if content_type.contains("json") || body.trim_start().starts_with(['{', '[']) {
            return Ok(body);
        }
        let content_type = problem::quote(content_type, &secrets).chars().take(80).collect();
        Err(Error::NotJson { url: self.name(), content_type })
    }

    async fn read(&self, response: &mut reqwest::Response) -> Result<Vec<u8>, Error> {
        let announced = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        let mut body = BytesMut::with_capacity(announced.min(1024 * 1024));
        let cut = |source: reqwest::Error| {
            self.late(&source).unwrap_or_else(|| Error::Cut { url: self.name(), source: source.without_url() })
        };
        while let Some(chunk) = response.chunk().await.map_err(cut)? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(Error::TooLarge { url: self.name() });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.into())
    }

    /// Where the time is over, what broke first does not matter.
    fn late(&self, source: &reqwest::Error) -> Option<Error> {
        (source.is_timeout() && !source.is_connect()).then(|| Error::Timeout { url: self.name(), after: self.timeout })
    }

    fn endless(&self, served: u64, counted: u64) -> Error {
        Error::Endless { url: self.name(), served, counted }
    }

    /// What is asked, for errors: without userinfo and query.
    fn name(&self) -> String {
        address(&self.list)
    }
}
