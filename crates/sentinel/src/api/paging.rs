//! Walks a list from its first to its last page: none missed, none twice.
//!
//! By key (`order=id asc`, `search=id > 'last'`) where the API understands it: the second request shows, by answering
//! and by repeating nothing of the first. Otherwise by offset, where what moves between two requests can be missed
//! (the next cycle heals it) and what is repeated is dropped. Ids are never compared for order: only the server knows
//! its collation. A page that brings nothing new ends the walk, and so does one by key that ends where an earlier one
//! did. One that brings far more than the API counts is an error, so no server can keep us in it; what one that brings
//! far less lacks can be asked for, see [`Pages::missing`].

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use tracing::debug;

use super::{Api, Error, OnFailure};
use crate::page::Page;
use crate::resource::parse_id;

/// What the API takes at the most.
pub const PAGE_SIZE: usize = 100;

/// Resources beyond twice what the API counts that a walk takes: a count that is wrong, or of one page only, does not
/// stop it early, and one that never ends is stopped after a thousand pages.
const SLACK: u64 = 100_000;

/// The same where the API counts nothing: ten times the largest fleet that we measure with.
const UNCOUNTED: u64 = 10_000_000;

/// The share of a list, one in so many, that may be deleted while it is walked without being missed.
const DELETED_MEANWHILE: u64 = 20;

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Today's filter.
    pub search: Option<String>,
    /// The filter of older APIs.
    pub labels: Option<String>,
    /// Only these fields.
    pub fields: Option<String>,
}

/// A walk over one list.
pub struct Pages<'a> {
    api: &'a Api,
    query: &'a Query,
    failed: OnFailure<'a>,
    state: State,
    /// Requests made so far.
    pub requests: usize,
    served: u64,
    /// Of them, those that no earlier page brought.
    listed: u64,
    /// How many the API said there are, the first time that it did.
    counted: Option<u64>,
}

/// Where a walk stands; another one can go on from there.
pub struct Place {
    state: State,
    served: u64,
    listed: u64,
    counted: Option<u64>,
}

#[derive(Clone)]
enum State {
    First,
    /// The first page is out; whether the API pages by key is not known yet.
    Undecided {
        last: String,
        first: HashSet<String>,
        /// Whether the API counts more than the first page holds.
        announced: bool,
        /// Whether nothing says that there is more: it may well be the whole list.
        whole: bool,
    },
    Key {
        last: String,
        guard: Guard,
    },
    Offset {
        page: usize,
        before: HashSet<u64>,
        walked: HashSet<u64>,
        hasher: RandomState,
    },
    Done,
}

impl<'a> Pages<'a> {
    /// Begins a walk; `failed` hears of every attempt that is tried again.
    pub fn new(api: &'a Api, query: &'a Query, failed: OnFailure<'a>) -> Self {
        Self { api, query, failed, state: State::First, requests: 0, served: 0, listed: 0, counted: None }
    }

    /// Goes on from where another walk over the same list stood.
    pub fn go_on(api: &'a Api, query: &'a Query, failed: OnFailure<'a>, place: Place) -> Self {
        let Place { state, served, listed, counted } = place;
        Self { api, query, failed, state, requests: 0, served, listed, counted }
    }

    /// Where this walk stands.
    pub fn place(&self) -> Place {
        let &Self { served, listed, counted, .. } = self;
        Place { state: self.state.clone(), served, listed, counted }
    }

    /// The next page, with only what no earlier page brought; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        let page = self.step().await?;
        self.listed += page.as_ref().map_or(0, |page| page.len() as u64);
        Ok(page)
    }

    /// After the end: how many resources the API counted and did not list, beyond what may have been deleted meanwhile.
    /// It stops paging early, or it counts what the selector leaves out.
    pub fn missing(&self) -> u64 {
        let counted = self.counted.unwrap_or_default();
        let missing = counted.saturating_sub(self.listed);
        if missing > counted / DELETED_MEANWHILE { missing } else { 0 }
    }

    async fn step(&mut self) -> Result<Option<Page>, Error> {
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Ok(None),
                State::First => {
                    let page = self.by_key(None).await?;
                    // More than we asked for, and no count that says there is more: the API does not page.
                    let unpaged = page.len() > self.api.page_size && page.total.is_none();
                    self.state = match last_id(&page) {
                        Some(last) if !unpaged && self.more(&page) => {
                            let announced = announces_more(&page);
                            let whole = page.len() < self.api.page_size && !announced && !page.numbered;
                            State::Undecided { last, first: ids(&page), announced, whole }
                        }
                        _ => State::Done,
                    };
                    return Ok(Some(page));
                }
                State::Undecided { last, first, announced, whole } => match self.by_key(Some(&last)).await {
                    Ok(page) if page.is_empty() && announced => {
                        self.fall_back(&first, "the API finds nothing behind the first page, and counts more");
                    }
                    Ok(page) if page.items().filter_map(parse_id).all(|id| !first.contains(id.as_ref())) => {
                        return Ok(self.advance(page, Guard::new(last)));
                    }
                    Ok(_) if whole => return Ok(None),
                    Ok(_) => self.fall_back(&first, "the API repeats the first page"),
                    Err(Error::Status { status, .. }) if matches!(status.as_u16(), 400 | 422) => {
                        if whole {
                            return Ok(None);
                        }
                        self.fall_back(&first, "the API refuses a search by id");
                    }
                    Err(error) => return Err(error),
                },
                State::Key { last, guard } => {
                    let page = self.by_key(Some(&last)).await?;
                    return Ok(self.advance(page, guard));
                }
                State::Offset { page: number, before, mut walked, hasher } => {
                    let mut page = self.by_offset(number).await?;
                    let (count, total, more) = (page.len(), page.total, self.more(&page));
                    let mut fresh = false;
                    page.retain(|item| {
                        // What has no id can't be recognised; whoever reads it will tell.
                        let Some(id) = parse_id(item) else { return true };
                        let hash = hasher.hash_one(id.as_ref());
                        let first_time = walked.insert(hash);
                        fresh |= first_time;
                        first_time && !before.contains(&hash)
                    });
                    let all_walked = total.is_some_and(|total| walked.len() as u64 >= total);
                    if fresh && (more || (count > 0 && total.is_some() && !all_walked)) {
                        self.state = State::Offset { page: number + 1, before, walked, hasher };
                    }
                    return Ok(Some(page));
                }
            }
        }
    }

    /// Takes a page by key and says where the next one begins.
    fn advance(&mut self, page: Page, mut guard: Guard) -> Option<Page> {
        if page.is_empty() {
            return None;
        }
        self.state = match last_id(&page) {
            Some(next) if guard.passes(&next) && self.more(&page) => State::Key { last: next, guard },
            _ => State::Done,
        };
        Some(page)
    }

    /// Whether there may be more behind this page: it is full, or the API counts more than it holds, or counts nothing:
    /// then it may serve fewer than were asked for.
    fn more(&self, page: &Page) -> bool {
        !page.is_empty() && (page.len() >= self.api.page_size || announces_more(page) || page.total.is_none())
    }

    fn fall_back(&mut self, first: &HashSet<String>, why: &str) {
        debug!(why, "paging by offset");
        let hasher = RandomState::new();
        let before = first.iter().map(|id| hasher.hash_one(id.as_str())).collect();
        self.state = State::Offset { page: 1, before, walked: HashSet::new(), hasher };
    }

    async fn by_key(&mut self, after: Option<&str>) -> Result<Page, Error> {
        let after = after.map(|id| format!("id > '{}'", id.replace('\'', "''")));
        let search = match (after, &self.query.search) {
            (Some(after), Some(search)) => Some(format!("{after} and {search}")),
            (after, search) => after.or_else(|| search.clone()),
        };
        self.get("id asc", search.as_deref(), None).await
    }

    async fn by_offset(&mut self, page: usize) -> Result<Page, Error> {
        let search = self.query.search.clone();
        self.get("created_time asc,id asc", search.as_deref(), Some(&page.to_string())).await
    }

    async fn get(&mut self, order: &str, search: Option<&str>, page: Option<&str>) -> Result<Page, Error> {
        self.requests += 1;
        let size = self.api.page_size.to_string();
        let mut query = vec![("size", size.as_str()), ("order", order)];
        query.extend(page.map(|page| ("page", page)));
        query.extend(search.map(|search| ("search", search)));
        query.extend(self.query.labels.as_deref().map(|labels| ("labels", labels)));
        query.extend(self.query.fields.as_deref().map(|fields| ("fields", fields)));
        let page = self.api.get(&query, self.failed).await?;
        self.served += page.len() as u64;
        self.counted = self.counted.or(page.total);
        if self.served > self.counted.map_or(UNCOUNTED, |counted| counted.saturating_mul(2).saturating_add(SLACK)) {
            return Err(self.api.endless(self.served, self.counted.unwrap_or_default()));
        }
        Ok(page)
    }
}

/// Notices that a walk by key goes in circles (Brent's way): one end of a page is kept, a later one after twice as many
/// pages each time, so that it costs one id however long the list is.
#[derive(Clone)]
struct Guard {
    kept: String,
    left: u64,
    period: u64,
}

impl Guard {
    fn new(last: String) -> Self {
        Self { kept: last, left: 1, period: 1 }
    }

    /// Whether a page that ends here leads on.
    fn passes(&mut self, next: &str) -> bool {
        if next == self.kept {
            return false;
        }
        self.left -= 1;
        if self.left == 0 {
            self.period *= 2;
            self.left = self.period;
            next.clone_into(&mut self.kept);
        }
        true
    }
}

fn announces_more(page: &Page) -> bool {
    page.total.is_some_and(|total| total > page.len() as u64)
}

/// Where the next page begins: the last item that has an id.
fn last_id(page: &Page) -> Option<String> {
    page.items().rev().find_map(parse_id).map(std::borrow::Cow::into_owned)
}

fn ids(page: &Page) -> HashSet<String> {
    page.items().filter_map(parse_id).map(std::borrow::Cow::into_owned).collect()
}
