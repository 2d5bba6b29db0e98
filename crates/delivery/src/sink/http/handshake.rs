//! Asks the endpoint whether it wants events at all, as the CloudEvents webhook specification has it (section 4, abuse
//! protection), and keeps to the rate that it allows.
//!
//! The status of the answer proves nothing: what counts is that it names the origin, or any.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
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
pub(super) struct Granted {
    state: Mutex<State>,
    /// Whether what was granted is not granted any more.
    forgotten: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// From one request to the next, where the endpoint allows any.
    apart: Option<Duration>,
    /// When the next may go out, whatever was granted since.
    next: Option<Instant>,
    /// When it was last asked in vain, and what came of it.
    vain: Option<(Instant, Refused)>,
}

/// Why an event may not be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// The endpoint does not allow it, or not now.
    NotAllowed(String),
    /// Whoever asked got no answer.
    Unanswered,
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
        let short = |text: &str| text.chars().take(100).collect::<String>();
        match said(ALLOWED_ORIGIN) {
            Some(allowed) if allowed == "*" || allowed.eq_ignore_ascii_case(origin) => {}
            Some(allowed) => return Err(format!("it allows events of {:?}, and not of {origin:?}", short(&allowed))),
            None => return Err(format!("its answer to OPTIONS has no WebHook-Allowed-Origin for {origin:?}")),
        }
        match said(ALLOWED_RATE).as_deref() {
            None | Some("*") => Ok(Duration::ZERO),
            Some(rate) => rate.parse::<NonZeroU32>().map(|rate| Duration::from_mins(1) / rate.get()).map_err(|_| {
                let rate = short(rate);
                format!("its WebHook-Allowed-Rate is neither * nor a number of requests per minute: {rate:?}")
            }),
        }
    }
}

impl Granted {
    /// Waits until a request may go out; asks first if nothing is granted. One asks, and all others wait for the
    /// answer.
    pub(super) async fn turn<E>(
        &self,
        handshake: &Handshake,
        ask: impl Future<Output = Result<HeaderMap, E>>,
        refused: impl Fn(Refused) -> E,
    ) -> Result<(), E> {
        let (came, mut ask) = (Instant::now(), Some(ask));
        // Held while it asks and waits: all others wait for the answer, and behind it for their turn.
        let mut state = self.state.lock().await;
        loop {
            if self.forgotten.swap(false, Ordering::Relaxed) {
                state.apart = None;
            }
            let apart = match (state.apart, &state.vain) {
                (Some(apart), _) => apart,
                (None, Some((at, why))) if *at > came => return Err(refused(why.clone())),
                (None, _) => {
                    let Some(ask) = ask.take() else { return Err(refused(Refused::Unanswered)) };
                    let answer = ask.await;
                    let allowed = answer.as_ref().map_err(|_| Refused::Unanswered);
                    match allowed.and_then(|answer| handshake.allowed(answer).map_err(Refused::NotAllowed)) {
                        Ok(apart) => *state.apart.insert(apart),
                        Err(why) => {
                            state.vain = Some((Instant::now(), why.clone()));
                            answer?;
                            return Err(refused(why));
                        }
                    }
                }
            };
            let now = Instant::now();
            let Some(turn) = state.next.filter(|next| *next > now) else {
                state.next = Some(now + apart);
                return Ok(());
            };
            // What is granted may be forgotten meanwhile.
            sleep_until(turn).await;
        }
    }

    /// The endpoint lets nothing in: it is asked again before the next request, which comes no sooner for that.
    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
    }

    /// Whether the answer to the question allows anything.
    pub(super) fn check(handshake: &Handshake, answer: &HeaderMap) -> Result<(), Refused> {
        handshake.allowed(answer).map(drop).map_err(Refused::NotAllowed)
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

    #[tokio::test(start_paused = true)]
    async fn one_asks_and_all_keep_to_the_rate_also_when_it_is_forgotten() {
        let handshake = Handshake { origin: HeaderValue::from_static("fleet.example.com"), rate: None };
        let (granted, asked) = (Granted::default(), std::cell::Cell::new(0));
        let allowed = |rate: &'static str| {
            let pairs = [("webhook-allowed-origin", "*"), ("webhook-allowed-rate", rate)];
            pairs
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .into_iter()
                .collect()
        };
        let turn = async |answer: Option<HeaderMap>| {
            let ask = async {
                asked.set(asked.get() + 1);
                tokio::time::sleep(Duration::from_secs(1)).await;
                answer.ok_or(Refused::Unanswered)
            };
            granted.turn(&handshake, ask, |why| why).await
        };
        let refused = futures_util::join!(turn(None), turn(None), turn(None));
        assert_eq!(refused.0.and(refused.1).and(refused.2), Err(Refused::Unanswered));
        assert_eq!(asked.get(), 1, "the others waited, and are told the same");

        let begun = Instant::now();
        assert_eq!(turn(Some(allowed("60"))).await, Ok(()));
        granted.forget();
        assert_eq!(turn(Some(allowed("20"))).await, Ok(()));
        assert_eq!(begun.elapsed(), Duration::from_secs(2), "asking takes one, and is the wait for the turn as well");
        assert_eq!(turn(None).await, Ok(()));
        assert_eq!((begun.elapsed(), asked.get()), (Duration::from_secs(5), 3));
        granted.forget();
        assert_eq!(turn(Some(allowed("1"))).await, Ok(()));
        let slow = Instant::now();
        let waited = futures_util::join!(turn(None), turn(None));
        assert_eq!(waited.0.and(waited.1), Ok(()), "whoever waits for its turn is refused nothing");
        assert_eq!(slow.elapsed(), Duration::from_mins(2));
    }
}
