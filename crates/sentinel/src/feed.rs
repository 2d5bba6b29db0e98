//! One walk over a list for all sentinels of a process that ask one API for one kind.
//!
//! A walk begins when one of them is due, and takes along those that are due within half of their interval, so that
//! sentinels of one interval stay together. It asks for what any of them selects, and for what any of them reads; each
//! applies its own selector to every page. A page is asked for when all have room for it. Nobody waits for long for one
//! whose broker takes nothing: it gets a walk of its own, which goes on from where it stands.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tracing::{Span, debug, info};
use watchfire_runtime::chain;
use watchfire_runtime::health::Dependency;
use watchfire_runtime::tasks::beside;

use crate::api::paging::{Pages, Place, Query};
use crate::api::projection::{Projection, Reads, is_about_the_query};
use crate::api::{Api, ApiConfig, Error, OnFailure};
use crate::config::{Form, SentinelConfig};
use crate::expression::Expression;
use crate::page::Page;
use crate::payload::Payload;
use crate::selector::MAX_SEARCH;

/// How long the others wait in a walk for those that are behind, besides as long as the walk took without: longer than
/// a busy machine leaves a task alone, and nothing against an outage.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long one that is late, or begins, waits for others that are, if its interval leaves time for it: those that
/// shared a walk are done with it within moments.
const GATHERING: Duration = Duration::from_millis(250);

/// Walks that are wanted soon begin so long after each other, where the interval is longer than five of it.
const AFTER_EACH_OTHER: Duration = Duration::from_secs(5);

/// What an API refused to search for is tried again after so long.
const APART_FOR: Duration = Duration::from_mins(10);

/// The lists that sentinels of this process walk; clones are the same.
#[derive(Clone, Default)]
pub struct Feeds {
    known: Arc<Mutex<Vec<Known>>>,
    hurry: watch::Sender<()>,
}

/// A list, by how it is asked for; gone with the last that takes part.
struct Known {
    api: ApiConfig,
    feed: Weak<Feed>,
}

impl Feeds {
    /// Lists that are not shared with those of these feeds.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { known: Arc::default(), hurry: self.hurry.clone() }
    }

    /// Every list is walked now, or a fifth of its interval after its last walk began, of a long one five seconds. One
    /// that is walked at this moment is walked once more.
    pub fn poll_soon(&self) {
        self.hurry.send_replace(());
    }

    /// Takes a seat at the list that a configuration asks for; fails where the client cannot be made.
    pub(crate) fn join(&self, config: &SentinelConfig, api_state: Dependency) -> Result<Seat, reqwest::Error> {
        let mut feeds = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.retain(|known| known.feed.strong_count() > 0);
        let known = feeds.iter().find(|known| known.api == config.api);
        let feed = if let Some(feed) = known.and_then(|known| known.feed.upgrade()) {
            feed
        } else {
            let feed = Arc::new(Feed { api: Api::new(&config.api)?, state: Mutex::default() });
            feeds.push(Known { api: config.api.clone(), feed: Arc::downgrade(&feed) });
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
        state.propose();
        drop(state);
        Ok(Seat { feed, id, reader, began: None, hurry: self.hurry.subscribe() })
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
struct Feed {
    api: Api,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    readers: BTreeMap<u64, Arc<Reader>>,
    waiting: HashMap<u64, Waiting>,
    projection: Projection,
    /// The API has refused to search for what any of several selects, and is not asked for it until then.
    apart: Option<Instant>,
    /// The API asked to be left alone until then.
    not_before: Option<Instant>,
}

impl State {
    /// What all of them read is to be proven anew.
    fn propose(&mut self) {
        self.projection = Projection::new(self.readers.values().map(|reader| reader.reads()));
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
    /// When its last walk began.
    began: Option<Instant>,
    hurry: watch::Receiver<()>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        state.readers.remove(&self.id);
        state.waiting.remove(&self.id);
        // It may have been the one that reads what cannot be projected.
        if state.projection == Projection::Off {
            state.propose();
        }
    }
}

impl Seat {
    /// The next walk: when it is `due`, or with another's up to `early` before; and the span that it belongs to.
    pub(crate) async fn walk(&mut self, mut due: Instant, early: Duration, span: impl Fn() -> Span) -> (Walk, Span) {
        loop {
            let (sender, mut walk) = oneshot::channel();
            let from = due.checked_sub(early).unwrap_or(due);
            let waiting = Waiting { from, reader: Arc::clone(&self.reader), sender };
            {
                let mut state = self.feed.lock();
                state.waiting.insert(self.id, waiting);
                if state.readers.len() > 1 {
                    due = due.max(Instant::now() + (early / 5).min(GATHERING));
                }
            }
            // Those that come at the same moment are given their turn to say so.
            let time = async {
                sleep_until(due).await;
                yield_now().await;
            };
            let (walk, span) = tokio::select! {
                biased;
                walk = &mut walk => (walk, span()),
                // One that is about to begin is not put off by whoever wishes for it again.
                () = hurried(&mut self.hurry), if Instant::now() + GATHERING < due => {
                    let now = Instant::now();
                    let soonest = self.began.map_or(now, |began| began + (early * 2 / 5).min(AFTER_EACH_OTHER));
                    due = due.min(soonest.max(now));
                    continue;
                }
                () = time => {
                    if let Some(later) = self.feed.not_before() {
                        due = later;
                        continue;
                    }
                    let span = span();
                    span.in_scope(|| self.feed.begin(Instant::now()));
                    (walk.await, span)
                }
            };
            if let Ok(walk) = walk {
                walk.own().span = span.clone();
                self.began = Some(walk.began);
                return (walk, span);
            }
        }
    }

    /// The API asks to be left alone for so long, by everyone.
    pub(crate) fn leave_alone(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.feed.lock();
        state.not_before = Some(state.not_before.map_or(until, |before| before.max(until)));
    }
}

/// Waits until a poll is wanted sooner.
async fn hurried(hurry: &mut watch::Receiver<()>) {
    if hurry.changed().await.is_err() {
        // Nobody is left who could want it.
        pending::<()>().await;
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
    own: Arc<Mutex<Own>>,
}

/// What of a walk is one sentinel's own.
struct Own {
    span: Span,
    /// Told when there is nothing to go on with.
    hungry: Arc<Notify>,
    /// Hands it the pages: with the last that holds it, it ends.
    work: BoxFuture<'static, ()>,
}

impl Walk {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next page; nothing after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<Page>>, Arc<Error>> {
        let piece = if let Ok(piece) = self.pieces.try_recv() {
            Some(piece)
        } else {
            self.own().hungry.notify_one();
            self.pieces.recv().await
        };
        match piece {
            Some(Piece::Page(page)) => Ok(Some(page)),
            Some(Piece::End(unlisted)) => {
                self.unlisted = unlisted?;
                Ok(None)
            }
            None => {
                // Without an end it was a panic, which goes on here.
                let work = std::mem::replace(&mut self.own().work, pending().boxed());
                work.await;
                pending().await
            }
        }
    }
}

/// One that is handed the pages of a walk.
struct Target {
    reader: Arc<Reader>,
    pieces: mpsc::Sender<Piece>,
    /// The walk's alone: the work ends when nobody wants its pages any more.
    own: Weak<Mutex<Own>>,
}

impl Target {
    /// Hands it the end, without waiting until it has room for it.
    fn end(self, end: Result<u64, Arc<Error>>) {
        if let Err(mpsc::error::TrySendError::Full(end)) = self.pieces.try_send(Piece::End(end)) {
            let pieces = self.pieces.clone();
            // Whoever stops meanwhile needs no end.
            own_work(&self.own, async move { drop(pieces.send(end).await) });
        }
    }

    fn tell(&self, error: &Error) {
        // Whoever has left may be served by another API by now.
        if !self.pieces.is_closed() {
            self.reader.api_state.down(error.why(self.reader.form));
        }
    }
}

/// A walk goes on with work of its own.
fn own_work(own: &Weak<Mutex<Own>>, work: impl Future<Output = ()> + Send + 'static) {
    if let Some(own) = own.upgrade() {
        let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
        own.work = own.span.in_scope(|| beside(work)).boxed();
        // Those that it leaves behind are not kept waiting by its hunger.
        own.hungry = Arc::default();
    }
}

impl Feed {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when the API is to be left alone, if it is.
    fn not_before(&self) -> Option<Instant> {
        self.lock().not_before.filter(|at| *at > Instant::now())
    }

    /// Begins a walk for all that are due, or nearly; where one cannot ask for all of them, one for each that asks for
    /// something else.
    fn begin(self: &Arc<Self>, now: Instant) {
        let mut state = self.lock();
        let (due, rest): (HashMap<_, _>, HashMap<_, _>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|(_, waiting)| waiting.from <= now);
        state.waiting = rest;
        let apart = state.apart.is_some_and(|until| now < until);
        drop(state);
        let due: Vec<_> = due.into_values().filter(|waiting| !waiting.sender.is_closed()).collect();
        let mut walks: BTreeMap<_, Vec<Waiting>> = BTreeMap::new();
        let together = !apart && ask(due.iter().map(|waiting| &*waiting.reader)).is_some();
        for waiting in due {
            let alike = (!together).then(|| (waiting.reader.search.clone(), waiting.reader.labels.clone()));
            walks.entry(alike).or_default().push(waiting);
        }
        for due in walks.into_values() {
            self.begin_together(now, due);
        }
    }

    fn begin_together(self: &Arc<Self>, now: Instant, due: Vec<Waiting>) {
        let (mut targets, mut walks, hungry) = (Vec::new(), Vec::new(), Arc::<Notify>::default());
        for Waiting { reader, sender, .. } in due {
            let (pieces, receiver) = mpsc::channel(1);
            let own = Own { span: Span::none(), hungry: Arc::clone(&hungry), work: pending().boxed() };
            let own = Arc::new(Mutex::new(own));
            targets.push(Target { reader, pieces, own: Arc::downgrade(&own) });
            walks.push((sender, Walk { began: now, unlisted: 0, pieces: receiver, own }));
        }
        let (go, ready) = oneshot::channel::<()>();
        let run = Arc::clone(self).run(targets, hungry);
        // Not before each has its hold on it: it may give one of them work of its own.
        let work = async move {
            drop(ready.await);
            run.await;
        };
        let work = beside(work).boxed().shared();
        for (sender, walk) in walks {
            walk.own().work = work.clone().boxed();
            // One that was told to stop does not take it.
            _ = sender.send(walk);
        }
        drop(go);
    }

    fn run(self: Arc<Self>, targets: Vec<Target>, hungry: Arc<Notify>) -> BoxFuture<'static, ()> {
        async move { self.walk(targets, hungry).await }.boxed()
    }

    async fn walk(self: Arc<Self>, targets: Vec<Target>, hungry: Arc<Notify>) {
        let targets = Mutex::new(targets);
        let here = || targets.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error: &Error| here().iter().for_each(|target| target.tell(error));
        let asked = ask(here().iter().map(|target| &*target.reader)).unwrap_or_default();
        let together = here().iter().any(|target| target.reader.search != asked.search);
        let end = self.list(asked, &targets, Patience::new(hungry), &failed).await;
        let left = std::mem::take(&mut *here());
        match &end {
            Err(error) if together && is_about_the_query(error) => {
                info!(error = %chain(error), "the API does not search for what any of several sentinels selects, each polls apart");
                self.lock().apart = Some(Instant::now() + APART_FOR);
                for target in left {
                    let own = target.own.clone();
                    own_work(&own, Arc::clone(&self).run(vec![target], Arc::default()));
                }
                return;
            }
            Err(error) => self.lock().projection.refused(error),
            Ok(_) => {}
        }
        let end = end.map_err(Arc::new);
        for target in left {
            target.end(end.clone());
        }
    }

    async fn list(
        self: &Arc<Self>,
        mut query: Query,
        targets: &Mutex<Vec<Target>>,
        mut patience: Patience,
        failed: OnFailure<'_>,
    ) -> Result<u64, Error> {
        let here = || targets.lock().unwrap_or_else(PoisonError::into_inner);
        query.fields = self.fields(query.search.as_deref(), failed).await?;
        let mut pages = Pages::new(&self.api, &query, failed);
        loop {
            let those = std::mem::take(&mut *here());
            let (ready, late) = patience.until_room(those).await;
            *here() = ready;
            for target in late {
                debug!("one of several sentinels is behind, and goes through the rest of the list alone");
                let pieces = target.pieces.clone();
                let rest = Arc::clone(self).alone(Arc::clone(&target.reader), pieces, query.clone(), pages.place());
                own_work(&target.own, rest);
            }
            if here().is_empty() {
                return Ok(0);
            }
            let Some(page) = pages.next().await? else { return Ok(pages.missing()) };
            let page = Arc::new(page);
            patience.fed();
            // There is room; whoever has left is missed with the next page.
            here().iter().for_each(|target| drop(target.pieces.try_send(Piece::Page(Arc::clone(&page)))));
        }
    }

    /// Hands the rest of a list to one that is behind, as fast as it takes it.
    async fn alone(self: Arc<Self>, reader: Arc<Reader>, pieces: mpsc::Sender<Piece>, query: Query, place: Place) {
        let failed = |error: &Error| {
            reader.api_state.down(error.why(reader.form));
        };
        let mut pages = Pages::go_on(&self.api, &query, &failed, place);
        while let Ok(room) = pieces.reserve().await {
            let end = match pages.next().await {
                Ok(Some(page)) => {
                    room.send(Piece::Page(Arc::new(page)));
                    continue;
                }
                Ok(None) => Ok(pages.missing()),
                Err(error) => {
                    self.lock().projection.refused(&error);
                    Err(Arc::new(error))
                }
            };
            room.send(Piece::End(end));
            return;
        }
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
        // Whoever joined meanwhile may read more, and is asked for in the next walk. Where nothing is listed nothing is
        // learnt, and another may know.
        if state.next == next && !matches!(projection, Projection::Unproven(_)) {
            state.projection = projection;
        }
        Ok(fields)
    }
}

/// How long those that are behind have kept the others of a walk.
struct Patience {
    began: Instant,
    waited: Duration,
    /// Told by one that has nothing to go on with.
    hungry: Arc<Notify>,
}

impl Patience {
    fn new(hungry: Arc<Notify>) -> Self {
        Self { began: Instant::now(), waited: Duration::ZERO, hungry }
    }

    /// A page is about to be handed out: hunger from before is over.
    fn fed(&self) {
        _ = self.hungry.notified().now_or_never();
    }

    /// Waits until all have room for a page: once one of them has nothing to go on with, for as long as patience lasts.
    /// Returns who has room, and who has not; whoever has left is neither.
    async fn until_room(&mut self, targets: Vec<Target>) -> (Vec<Target>, Vec<Target>) {
        let mut room = vec![None; targets.len()];
        let asking = targets.iter().enumerate();
        let mut asking: FuturesUnordered<_> =
            asking.map(async |(at, target)| (at, target.pieces.reserve().await.is_ok())).collect();
        let mut hungry = pin!(self.hungry.notified());
        let mut since = None;
        let until = |since: Instant| since + (PATIENCE + (since - self.began) / 2).saturating_sub(self.waited);
        loop {
            let next = tokio::select! {
                biased;
                next = asking.next() => next,
                () = &mut hungry, if since.is_none() => {
                    since = Some(Instant::now());
                    continue;
                }
                () = sleep_until(since.map_or(self.began, until)), if since.is_some() => None,
            };
            let Some((at, has_room)) = next else { break };
            room[at] = Some(has_room);
        }
        self.waited += since.map(|since| since.elapsed()).unwrap_or_default();
        drop(asking);
        let (mut ready, mut late) = (Vec::new(), Vec::new());
        for (target, room) in targets.into_iter().zip(room) {
            match room {
                Some(true) => ready.push(target),
                Some(false) => {}
                None => late.push(target),
            }
        }
        (ready, late)
    }
}

/// Asks for what any of them selects; nothing where the API cannot be told.
fn ask<'a>(readers: impl Iterator<Item = &'a Reader>) -> Option<Query> {
    let (searches, labels): (BTreeSet<_>, BTreeSet<_>) =
        readers.map(|reader| (reader.search.as_deref(), reader.labels.as_deref())).unzip();
    let only = |texts: &BTreeSet<Option<&str>>| match texts.iter().collect::<Vec<_>>().as_slice() {
        [Some(one)] => Some((*one).to_owned()),
        _ => None,
    };
    // One of them may want everything.
    let terms: Option<Vec<_>> = searches.iter().map(|search| search.map(|search| format!("({search})"))).collect();
    let search = only(&searches).or_else(|| Some(format!("({})", terms?.join(" or "))));
    let fits = search.as_ref().is_none_or(|search| search.len() <= MAX_SEARCH);
    fits.then(|| Query { search, labels: only(&labels), fields: None })
}

#[cfg(test)]
mod tests;
