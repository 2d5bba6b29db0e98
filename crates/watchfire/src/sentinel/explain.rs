//! `watchfire sentinel explain`: what an operator asks at three in the morning; the answer first, then what led to it.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::extract::{self, Path};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream::{FuturesOrdered, StreamExt};
use jiff::{SignedDuration, Timestamp};
use watchfire_delivery::outbox::{self, Entry, State};
use watchfire_delivery::store::Store;
use watchfire_runtime::config::{ConfigError, Env};
use watchfire_runtime::{clock, one_line};
use watchfire_sentinel::decision::Explanation;
use watchfire_sentinel::event::SOURCE;
use watchfire_sentinel::explain::{Adapter, Answer, Delivery, Evaluated, Explainer, Inputs, Outcome, Part, ask};

use crate::cli::Format;
use crate::cli::sentinel::ExplainArgs;
use crate::config;
use crate::failure::{Failure, say, tell};

const USAGE: &str = "GET /sentinel/explain/{id} says why a resource is, or is not, published; it is read-only\n";

/// How long the store may take; the page that asks is given up after ten seconds, of which the API may take eight.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// The sentinels of this process, in the order in which they began; they come and go where objects say so.
#[derive(Clone, Default)]
pub(super) struct Sentinels(Arc<Mutex<Vec<Arc<Asked>>>>);

impl Sentinels {
    pub(super) fn begins(&self, asked: Asked) {
        self.lock().push(Arc::new(asked));
    }

    pub(super) fn ends(&self, name: &str) {
        self.lock().retain(|asked| asked.name != name);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Asked>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pages of a process with these sentinels: one question, one request to each one's API, all at the same time: one
/// that takes long leaves no time for another.
pub(super) fn pages(sentinels: Sentinels) -> Router {
    Router::new().route("/", get(async || USAGE)).route("/{id}", get(answer)).with_state(sentinels)
}

/// A sentinel of this process, and where its broker keeps what it delivers, if that is the embedded one.
pub(super) struct Asked {
    /// Empty, where it is the only one.
    pub(super) name: String,
    pub(super) explainer: Explainer,
    pub(super) store: Option<Store>,
}

impl Asked {
    async fn explain(&self, id: &str, now: Timestamp) -> Answer {
        let mut answer = self.explainer.explain(id, now).await;
        if let (Some(store), Some(event)) = (&self.store, &answer.last_event) {
            let id = event.id.clone();
            let reading = store.read(move |connection| outbox::of_event(connection, SOURCE, &id));
            // A store that is busy or fails is told by /readyz; the answer is worth having without it.
            if let Ok(Ok(entries)) = tokio::time::timeout(STORE_PATIENCE, reading).await {
                answer.deliveries = entries.into_iter().map(delivery).collect();
                answer.store = Some(store.path().to_owned());
            }
        }
        answer
    }
}

fn delivery(entry: Entry) -> Delivery {
    let Entry { seq, sink, state, attempts, reason, changed, .. } = entry;
    Delivery { number: Some(seq), subscriber: sink, state, attempts, reason, changed }
}

async fn answer(extract::State(sentinels): extract::State<Sentinels>, Path(id): Path<String>) -> Response {
    let now = clock::now();
    let sentinels = sentinels.lock().clone();
    let mut asked: FuturesOrdered<_> = sentinels.iter().map(|sentinel| sentinel.explain(&id, now)).collect();
    let mut answers = Vec::new();
    while let Some(answer) = asked.next().await {
        let knows = rank(answer.outcome) == 0;
        answers.push(answer);
        if knows {
            break;
        }
    }
    let Some(answer) = answers.into_iter().min_by_key(|answer| rank(answer.outcome)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let status = match answer.outcome {
        Outcome::Due | Outcome::NotDue | Outcome::NotSelected | Outcome::Unreadable => StatusCode::OK,
        Outcome::NotFound => StatusCode::NOT_FOUND,
        Outcome::ApiFailed => StatusCode::BAD_GATEWAY,
        Outcome::NoId => StatusCode::BAD_REQUEST,
        Outcome::Busy => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = (status, Json(answer)).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Which of several sentinels' answers says most.
fn rank(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Due | Outcome::NotDue | Outcome::Unreadable | Outcome::NoId => 0,
        // Who could not look may be the one that watches it.
        Outcome::Busy | Outcome::ApiFailed => 1,
        Outcome::NotSelected => 2,
        Outcome::NotFound => 3,
    }
}

pub(super) async fn run(args: &ExplainArgs, env: &Env) -> Result<(), Failure> {
    let answer = if let Some(server) = &args.server {
        ask(server, &args.id).await.context("explain")?
    } else {
        let config = config::sentinel(&args.config, env).map_err(|error| unnamed(error, &args.id))?;
        Explainer::new(Arc::new(config)).context("make the API client")?.explain(&args.id, clock::now()).await
    };
    if args.output.format == Format::Json {
        say(&serde_json::to_string_pretty(&answer).context("print the explanation")?)?;
    }
    match answer.outcome {
        Outcome::Due | Outcome::NotDue | Outcome::NotSelected => match args.output.format {
            Format::Text => tell(&text(&answer)),
            Format::Json => Ok(()),
        },
        Outcome::Unreadable | Outcome::NotFound | Outcome::ApiFailed | Outcome::NoId | Outcome::Busy => {
            let last = last_event(&answer).map(|last| format!("; its last event: {last}"));
            let became = deliveries(&answer).map(|became| format!("; to {}", one_line(&became)));
            let rest: String = last.into_iter().chain(became).collect();
            Err(Failure::Failed(anyhow!("explain {}: {}{rest}", one_line(&answer.id), one_line(&answer.verdict))))
        }
    }
}

/// Says whom one can ask, where nobody was named.
fn unnamed(error: ConfigError, id: &str) -> Failure {
    if !config::is_default_missing(&error) {
        return error.into();
    }
    let asked = format!(
        "explain {}: name a running sentinel with --server URL, which knows its own events, or a sentinel's file with \
         --config FILE, whose API is asked",
        one_line(id)
    );
    Failure::Configuration(anyhow::Error::new(error).context(asked))
}

fn text(answer: &Answer) -> String {
    let kind = answer.inputs.as_ref().map(|inputs| inputs.kind.as_str()).filter(|kind| !kind.is_empty());
    let kind = kind.unwrap_or(&answer.resource_type);
    let mut text = format!("{} {}: {}\n\n", one_line(kind), one_line(&answer.id), one_line(&answer.verdict));
    let last = last_event(answer).unwrap_or_else(|| {
        let unknown = "not known: only the API was asked; --server URL asks the running sentinel";
        if answer.from_memory { "none that this process remembers" } else { unknown }.to_owned()
    });
    line(&mut text, "last event", &last);
    for became in deliveries(answer) {
        line(&mut text, "  to a subscriber", &became);
    }
    if let Some(event) = &answer.event {
        line(&mut text, "the event that is due", event);
    }
    if let Some(inputs) = &answer.inputs {
        saw(&mut text, answer, inputs);
    }
    if let Some(decision) = &answer.decision {
        rules(&mut text, decision);
    }
    text
}

fn last_event(answer: &Answer) -> Option<String> {
    let fate = answer.last_event.as_ref()?;
    let ago = ago(fate.at, answer.now);
    let became = match &fate.refused {
        None => format!("confirmed {ago}"),
        Some(why) => format!("not confirmed {ago}: {};", one_line(why)),
    };
    Some(format!("{became}, {}, event {}", fate.reason, fate.id))
}

/// What became of the last event at each subscriber, and what to do about a dead letter.
fn deliveries(answer: &Answer) -> impl Iterator<Item = String> {
    answer.deliveries.iter().map(|Delivery { number, subscriber, state, attempts, reason, changed }| {
        let attempts = if *attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") };
        let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let way_out = match (state, number) {
            (State::Dead, Some(number)) => {
                let store = answer.store.as_ref().map(|store| format!(" --store {}", store.display()));
                let store = store.unwrap_or_default();
                format!("; `watchfire outbox{store} retry --number {number}` sends it again")
            }
            // Without its number, all that are dead would be sent.
            (State::Dead, None) => "; `watchfire outbox list` has its number".to_owned(),
            (State::Pending | State::Delivered | State::Discarded, _) => String::new(),
        };
        format!("{subscriber}: {} {}, {attempts}{why}{way_out}", state.as_str(), ago(*changed, answer.now))
    })
}

fn saw(text: &mut String, answer: &Answer, inputs: &Inputs) {
    let time = |at: Option<Timestamp>| at.map_or_else(|| "none".to_owned(), |at| since(at, answer.now));
    text.push_str("\nwhat it saw\n");
    line(text, "  generation", &number(inputs.generation));
    line(text, "  seen by the adapters", &number(inputs.observed_generation));
    line(text, "  ready", if inputs.ready { "yes" } else { "no" });
    let report = if inputs.policy == "time_only" { "  last change of state" } else { "  last report" };
    line(text, report, &time(inputs.report));
    if inputs.last_progress.is_some() {
        line(text, "  last progress", &time(inputs.last_progress));
    }
    if inputs.deleted_time.is_some() {
        line(text, "  being deleted since", &time(inputs.deleted_time));
    }
    for Adapter { name, generation, at, silent } in &inputs.adapters {
        let said = match (generation, at) {
            (Some(generation), Some(at)) => format!("saw generation {generation}, {}", since(*at, answer.now)),
            (Some(generation), None) => format!("saw generation {generation}"),
            (None, _) => "has never reported".to_owned(),
        };
        let silent = if *silent { "; silent since our last event" } else { "" };
        line(text, "  adapter", &format!("{name}: {said}{silent}"));
    }
    if let Some(ours) = &inputs.published {
        let what = format!("generation {}, {} since it was last ready", number(ours.generation), ours.attempts);
        line(text, "  our last event", &format!("{} ({what})", since(ours.at, answer.now)));
    }
    let ages = format!("max age {} ready, {} not ready", inputs.max_age_ready, inputs.max_age_not_ready);
    line(text, "  policy", &format!("{} ({ages})", inputs.policy));
    if let Some(Evaluated { params, result }) = &inputs.expression {
        for Part { name, source, value, error } in params.iter().chain(result) {
            let value = value.as_ref().map(ToString::to_string);
            let came_to = value.or_else(|| error.clone()).unwrap_or_default();
            line(text, &format!("  {name}"), &format!("{came_to} <- {source}"));
        }
    }
    for requirement in &answer.selector {
        let value =
            requirement.value.as_ref().map_or_else(|| "no such label".to_owned(), |value| format!("has {value:?}"));
        let holds = if requirement.holds { "holds" } else { "does not hold" };
        line(text, "  selector", &format!("{} {holds} ({value})", requirement.requirement));
    }
    line(text, "  now", &format!("{:.3}", answer.now));
}

// Writing to a String cannot fail.
fn rules(text: &mut String, decision: &Explanation) {
    for rule in decision.rules.iter().filter(|rule| rule.fired) {
        let _infallible = writeln!(text, "\nwhy: {}", rule.reason);
        for condition in &rule.conditions {
            let _infallible = writeln!(text, "  {}", condition.text);
        }
    }
    if decision.from_future {
        text.push_str(
            "  the report time is in the future, and ignored until it has passed; check the adapters' clocks\n",
        );
    }
    if decision.observed_ahead {
        text.push_str("  adapters claim a generation that does not exist yet; look at the one that reported it\n");
    }
    text.push_str("\nwhy not\n");
    let mut of_other_policies = Vec::new();
    for rule in decision.rules.iter().filter(|rule| !rule.fired) {
        let missing = rule.conditions.iter().find(|condition| !condition.holds).map_or("", |condition| &condition.text);
        if missing.starts_with("the policy is") {
            of_other_policies.push(rule.reason.as_str());
        } else {
            let _infallible = writeln!(text, "  {:<50}{missing}", rule.reason);
        }
    }
    let _infallible = writeln!(text, "  of other policies: {}", of_other_policies.join("; "));
}

fn line(text: &mut String, what: &str, value: &str) {
    // Writing to a String cannot fail.
    let _infallible = writeln!(text, "{:<23} {}", one_line(what), one_line(value));
}

fn number(number: Option<i64>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| number.to_string())
}

fn since(at: Timestamp, now: Timestamp) -> String {
    format!("{at:.3} ({})", ago(at, now))
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs();
    let span = format!("{:#}", SignedDuration::from_secs(seconds.abs()));
    if seconds < 0 { format!("in {span}") } else { format!("{span} ago") }
}
