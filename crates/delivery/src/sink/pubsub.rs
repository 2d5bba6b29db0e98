//! Google Cloud Pub/Sub: batches of up to 1,000, a few of them in flight, and a retry of seconds.
//!
//! Messages have no ordering key (the client keeps one actor per key, for ever) and are never hedged (a hedge can
//! send twice). The client retries inside our timeout; how long to wait after that is the caller's retry policy. The
//! process installs the TLS provider before the first use.

use std::error::Error as StdError;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use google_cloud_auth::credentials::anonymous;
use google_cloud_gax::error::CredentialsError;
use google_cloud_gax::error::rpc::Code;
use google_cloud_gax::exponential_backoff::ExponentialBackoff;
use google_cloud_gax::retry_policy::RetryPolicyExt;
use google_cloud_pubsub::client::{Publisher, TopicAdmin};
use google_cloud_pubsub::error::PublishError;
use google_cloud_pubsub::model::Message;
use google_cloud_pubsub::retry_policy::RetryableErrors;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use watchfire_runtime::chain;

use crate::event::CloudEvent;
use crate::sink::{Error, EventSink};

/// Messages in one request: the service's own limit.
const BATCH: u32 = 1_000;
/// Messages in flight at most; a request alone on the wire reaches two thirds of what four do.
const WINDOW: usize = 4 * BATCH as usize;
/// A request is sent when it has this many bytes; the service takes 10 MB.
const BATCH_BYTES: u32 = 4 << 20;
/// The service takes 10 MB for a message with its attributes, which share the rest.
const MAX_BODY: usize = 9_900_000;
/// The service's limit for the value of an attribute; one larger value fails its whole batch.
const MAX_ATTRIBUTE: usize = 1_024;
/// The only attribute that consumers in the field ask for.
const UUID_ATTRIBUTE: &str = "_watermill_message_uuid";

/// Everything the sink needs to know; nothing is contacted until the first publish or check.
#[derive(Debug, Clone)]
pub struct PubSubConfig {
    /// Google Cloud project.
    pub project: String,
    /// Topic; it has to exist.
    pub topic: String,
    /// Where to connect, and as whom.
    pub endpoint: Endpoint,
    /// What to do about a topic that does not exist.
    pub missing_topic: MissingTopic,
    /// How long each window of events may take, retries of the client included.
    pub timeout: Duration,
}

/// Where to connect, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The service, with Application Default Credentials.
    Google,
    /// An emulator, `host:port` as in `PUBSUB_EMULATOR_HOST`, without credentials.
    Emulator(String),
}

/// What to do about a topic that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingTopic {
    /// Say so; consumers have no subscription on it either.
    #[default]
    Fail,
    /// Create it; for emulators, which forget their topics.
    Create,
}

impl PubSubConfig {
    /// The service itself, a topic that exists, 10 seconds.
    pub fn new(project: impl Into<String>, topic: impl Into<String>) -> Self {
        Self {
            project: project.into(),
            topic: topic.into(),
            endpoint: Endpoint::Google,
            missing_topic: MissingTopic::default(),
            timeout: Duration::from_secs(10),
        }
    }

    fn topic_name(&self) -> String {
        format!("projects/{}/topics/{}", self.project, self.topic)
    }

    fn url(&self) -> Option<String> {
        match &self.endpoint {
            Endpoint::Google => None,
            Endpoint::Emulator(host) if host.contains("://") => Some(host.clone()),
            Endpoint::Emulator(host) => Some(format!("http://{host}")),
        }
    }

    /// Names the target in errors.
    fn target(&self) -> String {
        match self.url() {
            None => self.topic_name(),
            Some(url) => format!("{} at {url}", self.topic_name()),
        }
    }
}

/// Publishes to one topic.
#[derive(Debug)]
pub struct PubSub {
    config: PubSubConfig,
    // Held while a window is in flight: the client's own queue has no bound.
    clients: Mutex<Option<Clients>>,
}

#[derive(Debug, Clone)]
struct Clients {
    publisher: Publisher,
    topics: TopicAdmin,
}

impl PubSub {
    /// Makes a sink that connects when it is first used.
    pub fn new(config: PubSubConfig) -> Self {
        Self { config, clients: Mutex::new(None) }
    }

    /// Whether the topic is there.
    pub async fn exists(&self) -> Result<bool, Error> {
        let mut slot = self.clients.lock().await;
        match self.find(&mut slot).await {
            Ok(()) => Ok(true),
            Err(Failure::Rpc(e)) if code(&e) == Some(Code::NotFound) => Ok(false),
            Err(e) => Err(self.explain(e)),
        }
    }

    /// Asks for the topic; that it may not be looked at is no failure.
    async fn find(&self, slot: &mut Option<Clients>) -> Result<(), Failure> {
        let asked = async {
            let topics = &self.clients(slot).await?.topics;
            let asked = topics.get_topic().set_topic(self.config.topic_name()).send().await;
            asked.map(drop).or_else(looked)
        };
        timeout_at(Instant::now() + self.config.timeout, asked).await.unwrap_or(Err(Failure::TimedOut))
    }

    /// Counts the topic's subscriptions, which are who gets the events; no more than the first page of them.
    pub async fn subscriptions(&self) -> Result<usize, Error> {
        let mut slot = self.clients.lock().await;
        let asked = async {
            let topics = &self.clients(&mut slot).await?.topics;
            let listed = topics.list_topic_subscriptions().set_topic(self.config.topic_name()).send().await;
            listed.map(|listed| listed.subscriptions.len()).map_err(|e| Failure::Rpc(Arc::new(e)))
        };
        let asked = timeout_at(Instant::now() + self.config.timeout, asked).await;
        asked.unwrap_or(Err(Failure::TimedOut)).map_err(|e| self.explain(e))
    }

    async fn clients<'a>(&self, slot: &'a mut Option<Clients>) -> Result<&'a Clients, Failure> {
        match slot {
            Some(clients) => Ok(clients),
            None => Ok(slot.insert(self.build().await?)),
        }
    }

    /// Builds the clients, and creates the topic where that is asked for.
    async fn build(&self) -> Result<Clients, Failure> {
        // Within our own timeout, so that an error says what was wrong instead of how long it took.
        let retries = || RetryableErrors.with_time_limit(self.config.timeout * 4 / 5);
        let mut publisher = Publisher::builder(self.config.topic_name())
            .set_message_count_threshold(BATCH)
            .set_byte_threshold(BATCH_BYTES)
            .with_retry_policy(retries())
            .with_backoff_policy(ExponentialBackoff::default());
        let mut topics =
            TopicAdmin::builder().with_retry_policy(retries()).with_backoff_policy(ExponentialBackoff::default());
        if let Some(url) = self.config.url() {
            publisher = publisher.with_endpoint(&url);
            topics = topics.with_endpoint(url);
        }
        if let Endpoint::Emulator(_) = self.config.endpoint {
            publisher = publisher.with_credentials(anonymous::Builder::new().build());
            topics = topics.with_credentials(anonymous::Builder::new().build());
        }
        let clients = Clients {
            publisher: publisher.build().await.map_err(|e| Failure::Build(Arc::new(e)))?,
            topics: topics.build().await.map_err(|e| Failure::Build(Arc::new(e)))?,
        };
        if self.config.missing_topic == MissingTopic::Create {
            let created = clients.topics.create_topic().set_name(self.config.topic_name()).send().await;
            match created {
                // Whoever may not create it can still publish to one that exists; if none does, publishing says so.
                Err(e) if !matches!(code(&e), Some(Code::AlreadyExists | Code::PermissionDenied)) => {
                    return Err(Failure::Topic(Arc::new(e)));
                }
                _ => {}
            }
        }
        Ok(clients)
    }

    /// Publishes one window; what did not come before `deadline` is `TimedOut`.
    async fn publish_window(&self, publisher: &Publisher, window: &[CloudEvent], deadline: Instant) -> Vec<Outcome> {
        let publish = |event| match self.oversized(event) {
            Some(error) => Err(error),
            None => Ok(publisher.publish(message(event))),
        };
        let sent: Vec<_> = window.iter().map(publish).collect();
        // Without it, a window smaller than a batch waits for the batch's timer.
        let flushed = timeout_at(deadline, publisher.flush()).await;
        let mut outcomes = Vec::with_capacity(sent.len());
        for result in sent {
            let future = match result {
                Ok(future) => future,
                Err(error) => {
                    outcomes.push(Err(Failure::Unsent(error)));
                    continue;
                }
            };
            // After a flush every answer is in; without one, take those that are.
            let until = if flushed.is_ok() { deadline } else { Instant::now() };
            outcomes.push(match timeout_at(until, future).await {
                Ok(answer) => answer.map(drop).map_err(Failure::from),
                Err(_) => Err(Failure::TimedOut),
            });
        }
        outcomes
    }

    /// Why the event cannot be sent at all, if so.
    fn oversized(&self, event: &CloudEvent) -> Option<Error> {
        let too_large = |target, size, limit| Some(Error::TooLarge { target, size, limit });
        match (event.id().len(), event.body().len()) {
            (id, _) if id > MAX_ATTRIBUTE => {
                too_large(format!("attribute {UUID_ATTRIBUTE} of {}", self.config.target()), id, MAX_ATTRIBUTE)
            }
            (_, body) if body > MAX_BODY => too_large(self.config.target(), body, MAX_BODY),
            _ => None,
        }
    }

    /// Says what a failure means for the event that got it, and what to do about it.
    fn explain(&self, failure: Failure) -> Error {
        let target = self.config.target();
        let unusable = |detail| {
            let hint = "create the topic (gcloud pubsub topics create TOPIC --project PROJECT), or check the configured \
                        project and topic (BROKER_PROJECT_ID and BROKER_TOPIC, or broker.yaml and clients.broker.topic)";
            Error::Misconfigured { target: self.config.target(), detail, hint }
        };
        let error = match failure {
            Failure::Unsent(error) => return error,
            Failure::TimedOut => return Error::Timeout { target, after: self.config.timeout },
            Failure::Closed => return Error::Connect { target, source: PublishError::Shutdown.into() },
            Failure::Build(error) if error.is_transport() => return Error::Connect { target, source: error.into() },
            Failure::Build(error) => return self.without_credentials(&error),
            Failure::Topic(error) if is_invalid(&error) => return unusable(error.to_string()),
            Failure::Topic(error) | Failure::Rpc(error) => error,
        };
        match code(&error) {
            Some(Code::NotFound) => unusable("the topic does not exist".to_owned()),
            Some(Code::PermissionDenied | Code::Unauthenticated) => Error::Denied { target, source: error.into() },
            Some(Code::InvalidArgument | Code::FailedPrecondition) => {
                Error::Refused { target, detail: error.to_string() }
            }
            Some(Code::DeadlineExceeded) => Error::Timeout { target, after: self.config.timeout },
            _ if is_about_credentials(&error) => self.without_credentials(&error),
            _ if error.is_timeout() => Error::Timeout { target, after: self.config.timeout },
            _ => Error::Connect { target, source: error.into() },
        }
    }

    /// This process has no credentials, or none that can be used; which file that is about is in the cause.
    fn without_credentials(&self, cause: &(dyn StdError + 'static)) -> Error {
        let hint = "check the credentials of this process: GOOGLE_APPLICATION_CREDENTIALS with the path of their file, \
                    workload identity in a cluster, or `gcloud auth application-default login` on your own machine; for \
                    an emulator, set PUBSUB_EMULATOR_HOST";
        Error::Misconfigured { target: self.config.target(), detail: chain(cause), hint }
    }
}

type Outcome = Result<(), Failure>;

/// What went wrong, before it is explained; the client shares one error among the messages of a batch.
#[derive(Debug)]
enum Failure {
    Unsent(Error),
    TimedOut,
    Closed,
    Build(Arc<google_cloud_gax::client_builder::Error>),
    /// The topic could not be created.
    Topic(Arc<google_cloud_pubsub::Error>),
    Rpc(Arc<google_cloud_pubsub::Error>),
}

impl Failure {
    /// Whether another event may well be taken.
    fn is_about_the_event(&self) -> bool {
        match self {
            Self::Unsent(_) => true,
            Self::Rpc(error) => is_invalid(error),
            Self::TimedOut | Self::Closed | Self::Build(_) | Self::Topic(_) => false,
        }
    }

    /// The same failure for another event of the call.
    fn again(&self) -> Self {
        match self {
            Self::Unsent(_) | Self::TimedOut => Self::TimedOut,
            Self::Closed => Self::Closed,
            Self::Build(error) => Self::Build(Arc::clone(error)),
            Self::Topic(error) => Self::Topic(Arc::clone(error)),
            Self::Rpc(error) => Self::Rpc(Arc::clone(error)),
        }
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Rpc(error) => Self::Rpc(error),
            // Without ordering keys nothing is ever paused; a client that stopped is built again.
            _ => Self::Closed,
        }
    }
}

fn code(error: &google_cloud_pubsub::Error) -> Option<Code> {
    error.status().map(|status| status.code)
}

fn is_invalid(error: &google_cloud_pubsub::Error) -> bool {
    code(error) == Some(Code::InvalidArgument)
}

/// Whether the service was not even asked, since there is no token to show it. The client tries that again as well, and
/// tells it as the cause of having given up.
fn is_about_credentials(error: &google_cloud_pubsub::Error) -> bool {
    let mut causes = successors(error.source(), |cause| (*cause).source());
    error.is_authentication() || causes.any(<dyn StdError>::is::<CredentialsError>)
}

/// What a look at the topic says about publishing to it. To look takes a permission that `roles/pubsub.publisher` does
/// not have, so that being denied it says nothing: if publishing is denied as well, that tells.
fn looked(error: google_cloud_pubsub::Error) -> Outcome {
    if code(&error) == Some(Code::PermissionDenied) { Ok(()) } else { Err(Failure::Rpc(Arc::new(error))) }
}

/// Data and attributes. An attribute too large for the service is left out: the data has them all.
fn message(event: &CloudEvent) -> Message {
    let repeated = event.attribute_pairs().filter(|(_, value)| value.len() <= MAX_ATTRIBUTE);
    let repeated = repeated.map(|(name, value)| (["ce-", name].concat(), value.into_owned()));
    let uuid = (UUID_ATTRIBUTE.to_owned(), event.id().to_owned());
    Message::new().set_data(event.body().clone()).set_attributes(repeated.chain([uuid]))
}

impl EventSink for PubSub {
    fn kind(&self) -> &'static str {
        "gcp-pubsub"
    }

    fn window(&self) -> usize {
        WINDOW
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        Box::pin(async move {
            let mut slot = self.clients.lock().await;
            let mut settled = Vec::with_capacity(events.len());
            for window in events.chunks(WINDOW) {
                let deadline = Instant::now() + self.config.timeout;
                let built = timeout_at(deadline, self.clients(&mut slot)).await;
                let outcomes = match built.unwrap_or(Err(Failure::TimedOut)) {
                    Ok(clients) => self.publish_window(&clients.publisher, window, deadline).await,
                    Err(failure) => vec![Err(failure)],
                };
                let failures = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
                let stuck = failures.filter(|failure| !failure.is_about_the_event()).map(Failure::again).next();
                settled.extend(outcomes.into_iter().map(|outcome| outcome.map_err(|e| self.explain(e))));
                if let Some(failure) = stuck {
                    // The client may still be busy with what it was given; a fresh one starts with an empty queue.
                    *slot = None;
                    settled.resize_with(events.len(), || Err(self.explain(failure.again())));
                    break;
                }
            }
            settled
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            // Whoever is first may learn that the service is away: what is not known yet is no answer.
            let mut slot = self.clients.lock().await;
            self.find(&mut slot).await.map_err(|e| self.explain(e))
        })
    }
}

#[cfg(test)]
mod tests {
    use google_cloud_gax::error::rpc::Status;

    use super::*;

    /// An emulator lets everyone do everything, so no test over one can show this.
    #[test]
    fn only_publishing_tells_that_publishing_is_denied() {
        let sink = PubSub::new(PubSubConfig::new("p", "t"));
        let kind = |code| {
            let error = google_cloud_pubsub::Error::service(Status::default().set_code(code).set_message("no"));
            looked(error).map_err(|failure| sink.explain(failure).kind())
        };
        assert_eq!(kind(Code::PermissionDenied), Ok(()), "the role to publish is not the one to look");
        assert_eq!(kind(Code::Unauthenticated), Err("denied"));
        assert_eq!(kind(Code::NotFound), Err("misconfigured"));
        assert_eq!(kind(Code::Unavailable), Err("connect"));
    }
}
