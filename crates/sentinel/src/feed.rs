//! One walk over a list for all sentinels of a process that ask one API for one kind.
//!
//! A walk begins when one of them is due, and takes along those that are due within half of their interval, so that
//! sentinels of one interval stay together. It asks for what any of them selects, and for what any of them reads; each
//! applies its own selector to every page. Nobody waits for one whose broker takes nothing: it is given a moment, and
//! then a walk of its own, which goes on from where it stands.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::{Span, debug};
use watchfire_runtime::health::Dependency;
use watchfire_runtime::tasks::beside;

use crate::api::paging::{Pages, Place, Query};
use crate::api::projection::{Projection, Reads};
use crate::api::{Api, ApiConfig, Error, OnFailure};
use crate::config::{Form, SentinelConfig};
use crate::expression::Expression;
use crate::page::Page;
use crate::payload::Payload;
use crate::selector::MAX_SEARCH;

/// Pages that one of several sentinels may be behind the first.
const AHEAD: usize = 4;

/// How long the others wait for one that is behind: longer than a busy machine leaves a task alone, and nothing against
/// an outage.
const PATIENCE: Duration = Duration::from_millis(250);

/// The lists that sentinels of this process walk; clones are the same.
#[derive(Clone, Default)]
pub struct Feeds(Arc<Mutex<Vec<Known>>>);

/// A list, by how it is asked for; gone with the last that takes part.
struct Known(ApiConfig, Weak<Feed>);

impl Feeds {
    /// Takes a seat at the list that a configuration asks for.
    pub(crate) fn join(&self, config: &SentinelConfig, api_state: Dependency) -> Result<Seat, reqwest::Error> {
        let mut feeds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.retain(|Known(_, feed)| feed.strong_count() > 0);
        let known = feeds.iter().find(|Known(api, _)| *api == config.api);
        let feed = if let Some(feed) = known.and_then(|Known(_, feed)| feed.upgrade()) {
            feed
        } else {
            let feed = Arc::new(Feed { api: Api::new(&config.api)?, state: Mutex::default() });
            feeds.push(Known(config.api.clone(), Arc::downgrade(&feed)));
            feed
        };
        let reader = Arc::new(Reader {
            search: config.selector.search(),
            labels: config.selector.labels(),
            payload: Arc::clone(&config.payload),
            expression: config.expression.clone(),
            form: config.form,
            api_state,
        });
        let mut state = feed.lock();
        let id = state.next;
        state.next += 1;
        state.readers.insert(id, Arc::clone(&reader));
        state.projection = Projection::new(state.readers.values().map(|reader| reader.reads()));
        drop(state);
        Ok(Seat { feed, id, reader })
    }
}

/// What a sentinel asks of a list.
struct Reader {
    search: Option<String>,
    labels: Option<String>,
    payload: Arc<Payload>,
    expression: Option<Arc<Expression>>,
    form: Form,
    api_state: Dependency,
}

impl Reader {
    fn reads(&self) -> Reads<'_> {
        Reads { payload: &self.payload, expression: self.expression.as_deref() }
    }
}

/// A list that is walked.
pub(crate) struct Feed {
    api: Api,
    state: Mutex<State>,
}

struct State {
    next: u64,
    readers: BTreeMap<u64, Arc<Reader>>,
    waiting: HashMap<u64, Waiting>,
    projection: Projection,
}

impl Default for State {
    fn default() -> Self {
        Self { next: 0, readers: BTreeMap::new(), waiting: HashMap::new(), projection: Projection::Off }
    }
}

/// One that waits for its next walk.
struct Waiting {
    /// From when on it goes along with others.
    from: Instant,
    reader: Arc<Reader>,
    sender: oneshot::Sender<Walk>,
}

/// A sentinel's part in a feed, for as long as it lives.
pub(crate) struct Seat {
    feed: Arc<Feed>,
    id: u64,
    reader: Arc<Reader>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        state.readers.remove(&self.id);
        state.waiting.remove(&self.id);
    }
}

impl Seat {
    /// The next walk: when it is `due`, or with another's up to `early` before; and the span that it belongs to.
    pub(crate) async fn walk(&self, due: Instant, early: Duration, span: impl FnOnce() -> Span) -> (Walk, Span) {
        let (sender, mut walk) = oneshot::channel();
        let waiting = Waiting { from: due.checked_sub(early).unwrap_or(due), reader: Arc::clone(&self.reader), sender };
        self.feed.lock().waiting.insert(self.id, waiting);
        let (walk, span) = tokio::select! {
            biased;
            walk = &mut walk => (walk, span()),
            () = sleep_until(due) => {
                let span = span();
                span.in_scope(|| self.feed.begin(Instant::now()));
                (walk.await, span)
            }
        };
        match walk {
            Ok(walk) => (walk, span),
            // Whoever takes this one from those that wait sends it a walk.
            Err(_) => std::future::pending().await,
        }
    }
}

/// What comes of a walk.
enum Piece {
    Page(Arc<Page>),
    /// The end of the list, and how many the API counted and did not list.
    End(Result<u64, Arc<Error>>),
}

/// A walk, as one of its sentinels sees it.
pub(crate) struct Walk {
    pub(crate) began: Instant,
    /// After the end: how many resources the API counted and did not list.
    pub(crate) unlisted: u64,
    pieces: mpsc::Receiver<Piece>,
    /// Ends with the last that holds it.
    work: Shared<BoxFuture<'static, ()>>,
}

impl Walk {
    /// The next page; nothing after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<Page>>, Arc<Error>> {
        match self.pieces.recv().await {
            Some(Piece::Page(page)) => Ok(Some(page)),
            Some(Piece::End(unlisted)) => {
                self.unlisted = unlisted?;
                Ok(None)
            }
            None => {
                // Without an end it was a panic, which goes on here.
                self.work.clone().await;
                std::future::pending().await
            }
        }
    }
}

/// One that is handed the pages of a walk.
struct Target {
    reader: Arc<Reader>,
    pieces: mpsc::Sender<Piece>,
}

impl Target {
    async fn end(self, result: Result<u64, Arc<Error>>) {
        // Whoever stopped meanwhile needs no end.
        _ = self.pieces.send(Piece::End(result)).await;
    }
}

impl Feed {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a walk for all that are due, or nearly.
    fn begin(self: &Arc<Self>, now: Instant) {
        let mut state = self.lock();
        let (due, rest): (HashMap<_, _>, HashMap<_, _>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|(_, waiting)| waiting.from <= now);
        state.waiting = rest;
        drop(state);
        let due: Vec<_> = due.into_values().filter(|waiting| !waiting.sender.is_closed()).collect();
        if due.is_empty() {
            return;
        }
        let ahead = if due.len() > 1 { AHEAD } else { 1 };
        let (targets, walks): (Vec<_>, Vec<_>) = due
            .into_iter()
            .map(|Waiting { reader, sender, .. }| {
                let (pieces, receiver) = mpsc::channel(ahead);
                (Target { reader, pieces }, (sender, receiver))
            })
            .unzip();
        let work = beside(Arc::clone(self).run(targets)).boxed().shared();
        for (sender, pieces) in walks {
            // One that was told to stop does not take it.
            _ = sender.send(Walk { began: now, unlisted: 0, pieces, work: work.clone() });
        }
    }

    async fn run(self: Arc<Self>, mut targets: Vec<Target>) {
        let readers: Vec<_> = targets.iter().map(|target| Arc::clone(&target.reader)).collect();
        let failed = |error: &Error| tell(&readers, error);
        let mut behind = Vec::new();
        let result = self.list(&mut targets, &mut behind, &failed).await;
        if let Err(error) = &result {
            self.lock().projection.refused(error);
        }
        let result = result.map_err(Arc::new);
        join_all(targets.into_iter().map(|target| target.end(result.clone()))).await;
        join_all(behind).await;
    }

    async fn list(
        self: &Arc<Self>,
        targets: &mut Vec<Target>,
        behind: &mut Vec<BoxFuture<'static, ()>>,
        failed: OnFailure<'_>,
    ) -> Result<u64, Error> {
        let mut query = ask(targets.iter().map(|target| &*target.reader));
        query.fields = self.fields(query.search.as_deref(), failed).await?;
        let mut pages = Pages::new(&self.api, &query, failed);
        while let Some(page) = pages.next().await? {
            let page = Arc::new(page);
            for late in hand_out(&page, targets).await {
                debug!("one of several sentinels is behind, and goes through the rest of the list alone");
                let rest = Arc::clone(self).alone(late, query.clone(), pages.place(), Arc::clone(&page));
                behind.push(beside(rest).boxed());
            }
            if targets.is_empty() {
                break;
            }
        }
        Ok(pages.missing())
    }

    /// Hands the rest of a list to one that is behind, as fast as it takes it.
    async fn alone(self: Arc<Self>, target: Target, query: Query, place: Place, page: Arc<Page>) {
        let readers = [Arc::clone(&target.reader)];
        let failed = |error: &Error| tell(&readers, error);
        let mut pages = Pages::go_on(&self.api, &query, &failed, place);
        let mut next = Ok(Some(page));
        let end = loop {
            match next {
                Ok(Some(page)) => {
                    if target.pieces.send(Piece::Page(page)).await.is_err() {
                        return;
                    }
                    next = pages.next().await.map(|page| page.map(Arc::new));
                }
                Ok(None) => break Ok(pages.missing()),
                Err(error) => break Err(Arc::new(error)),
            }
        };
        target.end(end).await;
    }

    /// The fields that are asked for, as far as the API is known to serve them.
    async fn fields(&self, search: Option<&str>, failed: OnFailure<'_>) -> Result<Option<String>, Error> {
        let (mut projection, readers, next) = {
            let state = self.lock();
            (state.projection.clone(), state.readers.values().cloned().collect::<Vec<_>>(), state.next)
        };
        let reads: Vec<_> = readers.iter().map(|reader| reader.reads()).collect();
        projection.prove(&self.api, search, &reads, failed).await?;
        let fields = projection.fields().map(str::to_owned);
        let mut state = self.lock();
        // Whoever joined meanwhile may read more, and is asked for in the next walk.
        if state.next == next {
            state.projection = projection;
        }
        Ok(fields)
    }
}

fn tell(readers: &[Arc<Reader>], error: &Error) {
    for reader in readers {
        reader.api_state.down(error.why(reader.form));
    }
}

/// Hands a page to everyone, and takes those out that do not take it in time, or any more; returns the former.
async fn hand_out(page: &Arc<Page>, targets: &mut Vec<Target>) -> Vec<Target> {
    let only = targets.len() == 1;
    let handing = targets.drain(..).map(async |target| {
        let piece = Piece::Page(Arc::clone(page));
        let taken = if only {
            target.pieces.send(piece).await.map_err(|closed| SendTimeoutError::Closed(closed.0))
        } else {
            target.pieces.send_timeout(piece, PATIENCE).await
        };
        (target, taken)
    });
    let mut late = Vec::new();
    for (target, taken) in join_all(handing).await {
        match taken {
            Ok(()) => targets.push(target),
            Err(SendTimeoutError::Timeout(_)) => late.push(target),
            Err(SendTimeoutError::Closed(_)) => {}
        }
    }
    late
}

/// Asks for what any of them selects, as far as the API can be told.
fn ask<'a>(readers: impl Iterator<Item = &'a Reader>) -> Query {
    let (searches, labels): (BTreeSet<_>, BTreeSet<_>) =
        readers.map(|reader| (reader.search.as_deref(), reader.labels.as_deref())).unzip();
    let only = |texts: &BTreeSet<Option<&str>>| match texts.iter().collect::<Vec<_>>().as_slice() {
        [Some(one)] => Some((*one).to_owned()),
        _ => None,
    };
    // One of them may want everything.
    let any = || {
        let terms: Option<Vec<_>> = searches.iter().map(|search| search.map(|search| format!("({search})"))).collect();
        Some(format!("({})", terms?.join(" or "))).filter(|any| any.len() <= MAX_SEARCH)
    };
    Query { search: only(&searches).or_else(any), labels: only(&labels), fields: None }
}

#[cfg(test)]
mod tests {
    use watchfire_runtime::health::Health;

    use super::*;

    fn asked(readers: &[(Option<&str>, Option<&str>)]) -> (Option<String>, Option<String>) {
        let health = Health::new();
        let reader = |(search, labels): &(Option<&str>, Option<&str>)| Reader {
            search: search.map(str::to_owned),
            labels: labels.map(str::to_owned),
            payload: Arc::new(Payload::default_payload()),
            expression: None,
            form: Form::Flat,
            api_state: health.dependency("api"),
        };
        let readers: Vec<_> = readers.iter().map(reader).collect();
        let query = ask(readers.iter());
        (query.search, query.labels)
    }

    #[test]
    fn what_any_of_them_selects_is_asked_for() {
        let (a, b) = ((Some("a='1'"), Some("a=1")), (Some("b='2'"), Some("b=2")));
        let owned = |text: &str| Some(text.to_owned());
        assert_eq!(asked(&[a]), (owned("a='1'"), owned("a=1")));
        assert_eq!(asked(&[a, a]), (owned("a='1'"), owned("a=1")));
        assert_eq!(asked(&[a, b]), (owned("((a='1') or (b='2'))"), None));
        assert_eq!(asked(&[a, (None, None)]), (None, None));
        assert_eq!(asked(&[(None, None), (None, None)]), (None, None));
        let long = format!("a='{}'", "x".repeat(MAX_SEARCH - 10));
        assert_eq!(asked(&[b, (Some(&long), None)]), (None, None), "more than the API takes");
    }
}
