//! `POST /sentinel/poll`: whoever knows that something changed need not wait for the next poll.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use watchfire_sentinel::Feeds;

const USAGE: &str = "POST /sentinel/poll makes each sentinel of this process poll now, or a fifth of its poll interval \
                     (at most 5 s) after its last poll \
                     began\n";

/// The page of a process with these lists.
pub(super) fn pages(feeds: Feeds) -> Router {
    let poll = async move || {
        feeds.poll_soon();
        (StatusCode::ACCEPTED, "polling\n")
    };
    Router::new().route("/", get(async || USAGE).post(poll))
}
