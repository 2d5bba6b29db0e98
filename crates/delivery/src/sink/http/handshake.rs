//! Asks the endpoint whether it wants events at all, as the CloudEvents webhook specification has it (section 4, abuse
//! protection), and keeps to the rate that it allows.
//!
//! The status of the answer proves nothing: what counts is that it names the origin, or any.

use std::num::NonZeroU32;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Who asks, in the question and in each request behind it.
pub(super) const ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
const RATE: HeaderName = HeaderName::from_static("webhook-request-rate");
const ALLOWED_ORIGIN: &str = "webhook-allowed-origin";
const ALLOWED_RATE: &str = "webhook-allowed-rate";

/// How this side asks.
#[derive(Debug, Clone)]
pub struct Handshake {
    /// The DNS name that stands for the system that sends.
    pub origin: HeaderValue,
    /// Requests per minute that are asked for; none asks for no number.
    pub rate: Option<NonZeroU32>,
}

/// What the endpoint said, and when it may be sent the next request.
#[derive(Debug, Default)]
pub(super) struct Granted(Mutex<Option<Pace>>);

#[derive(Debug)]
struct Pace {
    /// From one request to the next.
    apart: Duration,
    next: Instant,
}

impl Handshake {
    /// The headers of the question.
    pub(super) fn question(&self) -> HeaderMap {
        let rate = self.rate.map(|rate| (RATE, HeaderValue::from(rate.get())));
        [(ORIGIN, self.origin.clone())].into_iter().chain(rate).collect()
    }

    /// What an answer allows: the time from one request to the next.
    fn allowed(&self, answer: &HeaderMap) -> Result<Duration, String> {
        let said =
            |name: &str| answer.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned());
        let origin = self.origin.to_str().unwrap_or_default();
        match said(ALLOWED_ORIGIN) {
            Some(allowed) if allowed == "*" || allowed.eq_ignore_ascii_case(origin) => {}
            Some(allowed) => return Err(format!("it allows events of {allowed:?}, and not of {origin:?}")),
            None => return Err(format!("its answer to OPTIONS has no WebHook-Allowed-Origin for {origin:?}")),
        }
        match said(ALLOWED_RATE).as_deref() {
            None | Some("*") => Ok(Duration::ZERO),
            Some(rate) => match rate.parse::<NonZeroU32>() {
                Ok(rate) => Ok(Duration::from_mins(1) / rate.get()),
                Err(_) => {
                    Err(format!("its WebHook-Allowed-Rate is neither * nor a number of requests per minute: {rate:?}"))
                }
            },
        }
    }
}

impl Granted {
    /// Waits until a request may go out; asks first if nothing is granted. One asks, and all others wait for the answer.
    pub(super) async fn turn<E>(
        &self,
        handshake: &Handshake,
        ask: impl Future<Output = Result<HeaderMap, E>>,
        refused: impl FnOnce(String) -> E,
    ) -> Result<(), E> {
        let mut granted = self.0.lock().await;
        if granted.is_none() {
            let apart = handshake.allowed(&ask.await?).map_err(refused)?;
            *granted = Some(Pace { apart, next: Instant::now() });
        }
        let Some(pace) = granted.as_mut() else { return Ok(()) };
        let turn = pace.next.max(Instant::now());
        pace.next = turn + pace.apart;
        drop(granted);
        sleep_until(turn).await;
        Ok(())
    }

    /// The endpoint lets nothing in: it is asked again before the next request.
    pub(super) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_names_the_origin_grants_anything() {
        let handshake = Handshake { origin: HeaderValue::from_static("fleet.example.com"), rate: None };
        let answer = |pairs: &[(&'static str, &'static str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            handshake.allowed(&pairs.collect())
        };
        assert_eq!(answer(&[("webhook-allowed-origin", "*")]), Ok(Duration::ZERO));
        assert_eq!(
            answer(&[("webhook-allowed-origin", "Fleet.example.com"), ("webhook-allowed-rate", "*")]),
            Ok(Duration::ZERO)
        );
        let paced = answer(&[("webhook-allowed-origin", "*"), ("webhook-allowed-rate", "120")]);
        assert_eq!(paced, Ok(Duration::from_millis(500)));
        for refused in [&[][..], &[("webhook-allowed-origin", "other.example.com")], &[("webhook-allowed-rate", "*")]] {
            assert!(answer(refused).is_err(), "{refused:?}");
        }
        for rate in ["0", "-1", "many", ""] {
            assert!(answer(&[("webhook-allowed-origin", "*"), ("webhook-allowed-rate", rate)]).is_err(), "{rate}");
        }
    }
}
