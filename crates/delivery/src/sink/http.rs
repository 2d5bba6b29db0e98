//! Posts events to an HTTP endpoint, one event per request.
//!
//! A 2xx means that the endpoint has taken the event. Redirects are never followed, since where they lead was not
//! configured. Answers are read up to a limit, only so that the connection can be used again; nothing of them is kept.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use reqwest::{Client, RequestBuilder, Response};
use secrecy::ExposeSecret;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;
use uuid::Uuid;
use watchfire_runtime::http::{Authorities, Identity};
use watchfire_runtime::redact::host;
use watchfire_runtime::{SecretSource, chain, clock};

use crate::event::{CloudEvent, STRUCTURED, percent_encode};
use crate::retry;
use crate::sink::{Cause, Error, EventSink};

mod handshake;
mod signature;

pub use handshake::Handshake;
use handshake::{Granted, ORIGIN, Refused};

/// Bytes of an answer that are read, to keep its connection; a longer answer costs the connection.
const ANSWER_LIMIT: usize = 64 << 10;
/// Time to read the rest of an answer whose status is known already.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// By which one request is told from another in the logs of the far side.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How an event is laid out in a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// The body is the event's frozen structured JSON.
    #[default]
    Structured,
    /// The attributes are headers and the body is `data`.
    Binary,
}

/// Where and how to post. `Debug` shows neither credentials nor headers, which may hold some.
#[derive(Clone)]
pub struct Config {
    /// The endpoint; userinfo in it becomes basic authentication.
    pub url: Url,
    /// How events are laid out.
    pub mode: Mode,
    /// Time for one request, from connecting to the end of the answer, which is not waited for longer than that.
    pub timeout: Duration,
    /// Requests of one window that are under way at the same time.
    pub concurrency: NonZeroUsize,
    /// Sent as a bearer token; asked for with each request, so that a rotated one is used at once.
    pub token: Option<SecretSource>,
    /// Sent with every request; they take precedence over all but the media type.
    pub headers: HeaderMap,
    /// The method.
    pub method: Method,
    /// The media type of a structured event.
    pub content_type: HeaderValue,
    /// Who sends it.
    pub user_agent: String,
    /// Whether each request has an `X-Request-ID` of its own.
    pub request_id: bool,
    /// How both sides show who they are.
    pub tls: Tls,
    /// The secrets that requests are signed with, separated by blanks; asked for with each request.
    pub signing: Option<SecretSource>,
    /// Asks the endpoint first whether it wants events.
    pub handshake: Option<Handshake>,
}

/// How both sides show who they are.
#[derive(Clone, Default)]
pub struct Tls {
    /// Trusted besides the system's.
    pub authorities: Authorities,
    /// This side's certificate and key.
    pub identity: Option<Identity>,
    /// Takes any certificate, and so whoever answers.
    pub insecure: bool,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("url", &host(&self.url))
            .field("mode", &self.mode)
            .field("timeout", &self.timeout)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The defaults for an endpoint: structured, 10 seconds, 16 at a time.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            mode: Mode::default(),
            timeout: Duration::from_secs(10),
            concurrency: NonZeroUsize::MIN.saturating_add(15),
            token: None,
            headers: HeaderMap::new(),
            method: Method::POST,
            content_type: HeaderValue::from_static(STRUCTURED),
            user_agent: concat!("watchfire/", env!("CARGO_PKG_VERSION")).to_owned(),
            request_id: false,
            tls: Tls::default(),
            signing: None,
            handshake: None,
        }
    }
}

/// An HTTP endpoint as a sink.
pub struct Http {
    client: Client,
    target: String,
    config: Config,
    granted: Granted,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Http {
    /// Builds the sink; connects to nothing yet.
    ///
    /// Fails if the URL or the token cannot be used.
    pub fn new(config: Config) -> Result<Self, Error> {
        let Config { url, timeout, concurrency, user_agent, tls, .. } = &config;
        let target = host(url);
        let misconfigured =
            |detail: &str, hint| Error::Misconfigured { target: target.clone(), detail: detail.to_owned(), hint };
        if !matches!(url.scheme(), "http" | "https") {
            return Err(misconfigured("its scheme is neither http nor https", "write the URL as https://host/path"));
        }
        // The client panics without one.
        watchfire_runtime::install_crypto_provider();
        let mut client = watchfire_runtime::http::client_for(url.as_str())
            .tls_certs_merge(tls.authorities.certificates())
            .tls_danger_accept_invalid_certs(tls.insecure)
            .gzip(false)
            .connect_timeout(*timeout)
            .pool_max_idle_per_host(concurrency.get())
            .user_agent(user_agent);
        if let Some(identity) = &tls.identity {
            client = client.identity(identity.clone());
        }
        let client =
            client.build().map_err(|error| misconfigured(&chain(&error), "check the TLS setup of this host"))?;
        let sink = Self { client, target, config, granted: Granted::default() };
        let Config { token, signing, .. } = &sink.config;
        for (source, found) in
            [(token, sink.request(Method::HEAD).map(drop)), (signing, sink.signature("", &[]).map(drop))]
        {
            match found {
                // A file that is not there, or not right yet: what is queued waits for it.
                Err(Error::Credentials { .. }) if source.as_ref().is_some_and(SecretSource::is_file) => {}
                found => found?,
            }
        }
        Ok(sink)
    }

    /// Fails if the token or the signing secret cannot be used as it is at this moment.
    pub fn credentials(&self) -> Result<(), Error> {
        drop(self.request(Method::HEAD)?);
        self.signature("", &[]).map(drop)
    }

    /// A request with what every one carries, and the token as it is at this moment.
    fn request(&self, method: Method) -> Result<RequestBuilder, Error> {
        let mut headers = self.config.headers.clone();
        if let Some(token) = self.config.token.as_ref().filter(|_| !headers.contains_key(header::AUTHORIZATION)) {
            let target = || self.target.clone();
            let token =
                token.current().map_err(|source| Error::Credentials { target: target(), source: source.into() })?;
            if token.expose_secret().get(..7).is_some_and(|begin| begin.eq_ignore_ascii_case("bearer ")) {
                return Err(Error::Credentials {
                    target: target(),
                    source: "it begins with Bearer, which is added here".into(),
                });
            }
            let value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()));
            let mut value = value.map_err(|_| Error::Credentials {
                target: target(),
                source: "the token has characters that a header cannot carry, such as line breaks".into(),
            })?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        if self.config.request_id && !headers.contains_key(REQUEST_ID) {
            let id = HeaderValue::from_str(&Uuid::new_v4().to_string());
            headers.extend(id.ok().map(|id| (REQUEST_ID, id)));
        }
        Ok(self.client.request(method, self.config.url.clone()).headers(headers))
    }

    async fn post(&self, event: &CloudEvent) -> Result<(), Error> {
        let Some(handshake) = &self.config.handshake else {
            return self.answer(self.message(event)?).await;
        };
        self.granted.turn(handshake, self.asked(handshake), |why| self.refused(why)).await?;
        let outcome = self.answer(self.message(event)?.header(ORIGIN, handshake.origin.clone())).await;
        if let Err(Error::Status { status: 401 | 403 | 405 | 410, .. }) = outcome {
            self.granted.forget();
        }
        outcome
    }

    /// Asks whether it wants events. The status says nothing about that, but where it is "not now".
    async fn asked(&self, handshake: &Handshake) -> Result<HeaderMap, Error> {
        let answer = self.send(self.request(Method::OPTIONS)?.headers(handshake.question())).await?;
        let status = answer.status().as_u16();
        if matches!(status, 429 | 500..) {
            return Err(Error::Status { target: self.target.clone(), status, retry_after: retry_after(&answer) });
        }
        Ok(answer.headers().clone())
    }

    fn refused(&self, why: Refused) -> Error {
        let target = self.target.clone();
        match why {
            Refused::NotAllowed(detail) => Error::NotAllowed { target, detail },
            Refused::Unanswered => {
                Error::Connect { target, source: "it was asked whether it wants events, and did not answer".into() }
            }
        }
    }

    /// The request that carries an event.
    fn message(&self, event: &CloudEvent) -> Result<RequestBuilder, Error> {
        let request = self.request(self.config.method.clone())?;
        let (request, body) = match self.config.mode {
            Mode::Structured => (request.header(header::CONTENT_TYPE, &self.config.content_type), event.body().clone()),
            Mode::Binary => {
                (request.headers(event.binary_headers()), Bytes::copy_from_slice(event.data().get().as_bytes()))
            }
        };
        let signature = self.signature(event.id(), &body)?;
        Ok(request.headers(signature).body(body))
    }

    /// The headers that say who sent a message and when: anew for each attempt, while its id stays.
    fn signature(&self, id: &str, body: &[u8]) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        let Some(secrets) = &self.config.signing else { return Ok(headers) };
        let target = || self.target.clone();
        let secrets =
            secrets.current().map_err(|source| Error::Credentials { target: target(), source: source.into() })?;
        let timestamp = clock::now().as_second();
        // What is signed is what the receiver finds in the header.
        let id = percent_encode(id);
        let signature = signature::sign(secrets.expose_secret(), &id, timestamp, body);
        let signature = signature.map_err(|error| Error::Credentials {
            target: target(),
            source: format!("the signing secret cannot be used: {error}").into(),
        })?;
        for (name, value) in [("id", &*id), ("timestamp", &timestamp.to_string()), ("signature", &signature)] {
            let name = HeaderName::try_from(format!("webhook-{name}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                headers.insert(name, value);
            }
        }
        Ok(headers)
    }

    async fn post_in_window(
        &self,
        event: &CloudEvent,
        unanswered: Arc<AtomicUsize>,
        end: Instant,
    ) -> Result<(), Error> {
        let not_sent = |why: &'static str| {
            let source = Cause::from(format!("not sent, because {why}"));
            Err(Error::Connect { target: self.target.clone(), source })
        };
        if unanswered.load(Ordering::Relaxed) >= self.config.concurrency.get() {
            return not_sent("the requests before it got no answer");
        }
        if Instant::now() >= end {
            return not_sent("those before it took all of the time that their window has");
        }
        let outcome = self.post(event).await;
        if let Err(Error::Connect { .. } | Error::Timeout { .. }) = outcome {
            unanswered.fetch_add(1, Ordering::Relaxed);
        } else {
            unanswered.store(0, Ordering::Relaxed);
        }
        outcome
    }

    async fn answer(&self, request: RequestBuilder) -> Result<(), Error> {
        let begun = Instant::now();
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let retry_after = retry_after(&response);
        let to = location(&response, &self.config.url).filter(|_| matches!(status, 300..=399));
        // What the answer says is decided by its status; a body that does not come only costs the connection.
        let until = (begun + self.config.timeout).min(Instant::now() + ANSWER_TIME);
        timeout_at(until, drain(response)).await.ok();
        if retry::is_delivered(status) {
            return Ok(());
        }
        if let Some(to) = to {
            return Err(Error::Redirected { target: self.target.clone(), to, status });
        }
        Err(Error::Status { target: self.target.clone(), status, retry_after })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        match timeout(self.config.timeout, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_timeout() => Err(self.late()),
            // Without its URL, which may carry credentials.
            Ok(Err(error)) => Err(Error::Connect { target: self.target.clone(), source: error.without_url().into() }),
            Err(_) => Err(self.late()),
        }
    }

    fn late(&self) -> Error {
        Error::Timeout { target: self.target.clone(), after: self.config.timeout }
    }
}

impl EventSink for Http {
    fn kind(&self) -> &'static str {
        "http"
    }

    /// Outcomes are in the order of the events. Once as many requests in a row as are under way at a time got no
    /// answer, the rest of the window is not sent, so that a dead endpoint costs few timeouts and not one per event. A
    /// slow one gets requests for as long as one of them may take; what is left then is not sent either.
    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        Box::pin(async move {
            let (unanswered, end) = (Arc::new(AtomicUsize::new(0)), Instant::now() + self.config.timeout);
            let posts: Vec<_> =
                events.iter().map(|event| self.post_in_window(event, Arc::clone(&unanswered), end)).collect();
            futures_util::stream::iter(posts).buffered(self.config.concurrency.get()).collect().await
        })
    }

    /// Asks whether it wants events, where that is asked at all, else with HEAD: an endpoint that answers anything but
    /// "not now" or "not you" is up.
    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if let Some(handshake) = &self.config.handshake {
                let answer = self.asked(handshake).await?;
                return Granted::check(handshake, &answer).map_err(|why| self.refused(why));
            }
            match self.answer(self.request(Method::HEAD)?).await {
                Err(error @ Error::Status { status: 401 | 403 | 410 | 429 | 502 | 503 | 504, .. }) => Err(error),
                Ok(()) | Err(Error::Status { .. } | Error::Redirected { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}

fn retry_after(response: &Response) -> Option<Duration> {
    let asked = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    retry::retry_after(asked, clock::now())
}

/// Where an answer leads, without what may be secret, such as the path.
fn location(response: &Response, from: &Url) -> Option<String> {
    let to = from.join(response.headers().get(header::LOCATION)?.to_str().ok()?).ok()?;
    Some(if host(&to) == host(from) { "another path of its own".to_owned() } else { host(&to) })
}

async fn drain(mut response: Response) {
    let mut left = ANSWER_LIMIT;
    while let Ok(Some(chunk)) = response.chunk().await {
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests;
