//! Switches that make the running API misbehave, who may call it, and what was asked of it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};

use crate::problem::Problem;

/// Requests kept in the log: more than any test looks back on.
pub const LOG_KEPT: usize = 10_000;

/// How a request goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status and body.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The `Retry-After` header, in seconds or as a date.
        retry_after: Option<String>,
        /// What is sent.
        body: FaultBody,
    },
    /// It is answered as usual, this much later.
    Delay(Duration),
    /// The connection is closed without an answer.
    Close,
}

impl Fault {
    /// A problem document with this status.
    pub fn status(status: u16) -> Self {
        Self::Answer { status, retry_after: None, body: FaultBody::Problem }
    }

    /// 200 with a body that is not what it should be.
    pub fn body(body: FaultBody) -> Self {
        Self::Answer { status: 200, retry_after: None, body }
    }
}

/// What is sent instead of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultBody {
    /// A problem document.
    Problem,
    /// A proxy's error page.
    Html,
    /// Nothing.
    Empty,
    /// The right answer, as `text/plain`.
    WrongType,
    /// The first half of the right answer, as if that were all.
    Truncated,
    /// The first half of the right answer, then the connection breaks.
    Cut,
    /// The right answer with bytes in it that no text has, so that nobody can take it for another right answer.
    Garbled,
    /// A list whose one item is a gigabyte long.
    Gigabyte,
    /// A list that never ends.
    Endless,
}

/// Which requests a fault meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Lists of resources.
    Lists,
    /// Single resources being read.
    Reads,
    /// Reports of adapters.
    Reports,
    /// Everything.
    All,
}

/// How often a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// The next so many requests in its scope.
    Next(u32),
    /// Until cleared.
    Always,
}

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When.
    pub at: Timestamp,
    /// `GET`, ...
    pub method: String,
    /// The path.
    pub path: String,
    /// The query, decoded.
    pub query: Vec<(String, String)>,
    /// What the request was about.
    pub scope: Scope,
    /// The trace that it belongs to, as its `traceparent` says.
    pub traceparent: Option<String>,
}

impl Request {
    /// The value of a query parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// The switches; all calls are immediate, and may come at any time.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    armed: VecDeque<(Scope, Fault, Times)>,
    injected: Vec<String>,
    log: VecDeque<Request>,
    token: Option<SecretString>,
    tenant: Option<(String, String)>,
}

impl Faults {
    /// Arms a fault. Several are used up in the order in which they were armed.
    pub fn arm(&self, scope: Scope, fault: Fault, times: Times) {
        self.state().armed.push_back((scope, fault, times));
    }

    /// Disarms every fault and forgets injected items; access rules and the log stay.
    pub fn clear(&self) {
        let mut state = self.state();
        state.armed.clear();
        state.injected.clear();
    }

    /// Adds this text, as it is, behind the rows of every list's first page.
    pub fn inject(&self, item: impl Into<String>) {
        self.state().injected.push(item.into());
    }

    /// Requires this bearer token from here on; `None` lets everyone in.
    pub fn require_token(&self, token: Option<SecretString>) {
        self.state().token = token;
    }

    /// Requires this header and value from here on, as a tenant's; `None` lets everyone in.
    pub fn require_tenant(&self, tenant: Option<(&str, &str)>) {
        self.state().tenant = tenant.map(|(header, value)| (header.to_owned(), value.to_owned()));
    }

    /// What was asked, oldest first; the last [`LOG_KEPT`].
    pub fn requests(&self) -> Vec<Request> {
        self.state().log.iter().cloned().collect()
    }

    /// The lists that were asked for, oldest first.
    pub fn lists(&self) -> Vec<Request> {
        self.state().log.iter().filter(|request| request.scope == Scope::Lists).cloned().collect()
    }

    /// Empties the log.
    pub fn forget_requests(&self) {
        self.state().log.clear();
    }

    pub(crate) fn record(&self, request: Request) {
        let mut state = self.state();
        if state.log.len() == LOG_KEPT {
            state.log.pop_front();
        }
        state.log.push_back(request);
    }

    /// Checks who asks.
    pub(crate) fn admit(&self, headers: &http::HeaderMap) -> Result<(), Problem> {
        let state = self.state();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(token) = &state.token {
            let given = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
            if given != Some(token.expose_secret()) {
                return Err(Problem::unauthenticated());
            }
        }
        match &state.tenant {
            Some((name, value)) if header(name) != Some(value.as_str()) => Err(Problem::forbidden()),
            _ => Ok(()),
        }
    }

    /// The fault that meets this request, if any.
    pub(crate) fn strike(&self, scope: Scope) -> Option<Fault> {
        let mut state = self.state();
        let meets = |armed: &(Scope, Fault, Times)| armed.0 == scope || armed.0 == Scope::All;
        let at = state.armed.iter().position(meets)?;
        let (_, fault, times) = state.armed.get_mut(at)?;
        let fault = fault.clone();
        match times {
            Times::Always => {}
            Times::Next(left) => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    state.armed.remove(at);
                }
            }
        }
        Some(fault)
    }

    pub(crate) fn injected(&self) -> Vec<String> {
        self.state().injected.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
