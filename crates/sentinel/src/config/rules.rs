//! Checks the keys that say when a resource is due.

use std::num::NonZeroU32;
use std::time::Duration;

use watchfire_runtime::duration::GoDuration;

use super::check::Report;
use super::raw::Republish;
use super::{RawConfig, RawDecision, RawPolicy};
use crate::decision::{MaxAge, NoProgress, Policy, Rules, Spread};

/// Keys that a decision takes no notice of; an expression of one's own is held to the max ages only by an event of ours
/// that is under way.
pub(super) fn unused(decision: RawPolicy, own: Option<&RawDecision>, republish: Republish) -> &'static [&'static str] {
    match (decision, republish) {
        (RawPolicy::GenerationAware, Republish::InFlight) => &[],
        (RawPolicy::GenerationAware, Republish::Always) | (RawPolicy::TimeOnly, _) => {
            &["no_progress_after", "max_age_no_progress"]
        }
        (RawPolicy::Expression, Republish::Always) if own.is_some() => {
            &["refresh_spread", "no_progress_after", "max_age_no_progress", "max_age_not_ready", "max_age_ready"]
        }
        (RawPolicy::Expression, _) => &["refresh_spread", "no_progress_after", "max_age_no_progress"],
    }
}

/// What to try where an expression of one's own leaves the max ages nothing to say.
const OR_IN_FLIGHT: &str =
    "leave it out, or write republish: in_flight, with which an event of this generation counts for so long";

/// The ages that the other keys are checked with where those of the file are wrong.
const ANY: MaxAge = MaxAge { ready: Duration::from_mins(30), not_ready: Duration::from_secs(10) };

/// Makes the rules of checked max ages, if they are right, and what else the file says; says what is wrong with that.
pub(super) fn check(
    raw: &RawConfig,
    decision: Option<RawPolicy>,
    unused: &[&str],
    max_age: Option<MaxAge>,
    report: &mut Report<'_>,
) -> Option<Rules> {
    let policy = match decision {
        // Where an expression decides, it does so in place of these.
        None | Some(RawPolicy::GenerationAware | RawPolicy::Expression) => Policy::GenerationAware,
        Some(RawPolicy::TimeOnly) => Policy::TimeOnly,
    };
    for (key, given) in [
        ("refresh_spread", raw.refresh_spread.is_some()),
        ("no_progress_after", raw.no_progress_after.is_some()),
        ("max_age_no_progress", raw.max_age_no_progress.is_some()),
    ] {
        if given && unused.contains(&key) {
            let message = "not used here; leave it out, or write decision: generation_aware and republish: in_flight";
            report.warn(key, message);
        }
    }
    for (key, given) in
        [("max_age_not_ready", raw.max_age_not_ready.is_some()), ("max_age_ready", raw.max_age_ready.is_some())]
    {
        if given && unused.contains(&key) {
            report.warn(key, format!("not used here, where message_decision alone decides; {OR_IN_FLIGHT}"));
        }
    }
    let rules = Rules::new(policy, max_age.unwrap_or(ANY));
    let refresh_spread = match raw.refresh_spread.as_deref() {
        None => Some(rules.refresh_spread),
        Some(text) => check_spread(text, report),
    };
    let no_progress = check_no_progress(raw, rules, max_age, report);
    max_age?;
    Some(Rules { refresh_spread: refresh_spread?, no_progress: no_progress?, ..rules })
}

fn check_spread(text: &str, report: &mut Report<'_>) -> Option<Spread> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    let spread = percent.and_then(Spread::from_percent);
    if spread.is_none() {
        let most = Spread::MAX_PERCENT;
        report.push("refresh_spread", format!("{text:?} is not a percentage from 0% to {most}%; for example 20%"));
    }
    spread
}

fn check_no_progress(
    raw: &RawConfig,
    rules: Rules,
    bounds: Option<MaxAge>,
    report: &mut Report<'_>,
) -> Option<NoProgress> {
    let after = raw.no_progress_after.map_or(rules.no_progress.after, GoDuration::get);
    let max_age = raw.max_age_no_progress.map_or(rules.no_progress.max_age, GoDuration::get);
    let mut fine = true;
    if after.is_zero() {
        report.push("no_progress_after", "must be longer than 0, for example 30m");
        fine = false;
    }
    if let Some(MaxAge { ready, not_ready }) = bounds
        && raw.max_age_no_progress.is_some()
        && !(not_ready..=ready.max(not_ready)).contains(&max_age)
    {
        let (from, to) = (GoDuration::new(not_ready), GoDuration::new(ready));
        let message = format!("must be from max_age_not_ready ({from}) to max_age_ready ({to})");
        report.push("max_age_no_progress", message);
        fine = false;
    }
    fine.then_some(NoProgress { after, max_age })
}

/// The most events in a second, if the file says so.
pub(super) fn check_ceiling(raw: Option<u32>, report: &mut Report<'_>) -> Option<NonZeroU32> {
    let ceiling = NonZeroU32::new(raw?);
    if ceiling.is_none() {
        report.push("max_events_per_second", "0 would publish nothing; leave it out for no ceiling");
    }
    ceiling
}
