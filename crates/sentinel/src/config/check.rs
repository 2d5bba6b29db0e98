//! Checks what was read: raw in, checked out, every problem told at its place.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use watchfire_runtime::config::{Env, Origin, Problems};
use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::telemetry::{LogFormat, LogOutput, check_level};

use super::broker::is_ours;
use super::raw::{RawConfig, RawDecision, RawPolicy, RawSelector, Republish};
use super::setting::{Overrides, RawProcess, TOPIC, Whole};
use super::{Form, Process, Reading, SentinelConfig, api, rules, selector};
use crate::api::ApiConfig;
use crate::decision::MaxAge;
use crate::expression::Expression;
use crate::payload::{Leaves, Payload};

/// A poll interval below this is no interval: a list takes longer.
const HASTE: Duration = Duration::from_millis(10);

/// Collects what is wrong, each under the name and at the place where the user wrote it.
pub(super) struct Report<'a> {
    form: Form,
    overrides: &'a Overrides,
    problems: Problems,
}

impl Report<'_> {
    fn origin(&self, key: &str) -> Origin {
        self.overrides.origin(key).unwrap_or_else(|| Origin::key(self.form.key(key)))
    }

    /// Whether it is an object that is read.
    pub(super) fn is_object(&self) -> bool {
        self.form == Form::Object
    }

    pub(super) fn push(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(self.origin(key), message);
    }

    pub(super) fn warn(&mut self, key: &str, message: impl Into<String>) {
        self.problems.warn(self.origin(key), message);
    }

    /// Whether what stands there could not be taken, which was told: nothing is judged by what stands for it.
    pub(super) fn is_left_out(&self, key: &str) -> bool {
        self.problems.is_left_out(self.origin(key))
    }

    pub(super) fn take<T, E: std::error::Error>(&mut self, key: &str, result: Result<T, E>) -> Option<T> {
        self.problems.take(self.origin(key), result)
    }

    /// What a key is called where the user writes it, as the last part of its path.
    pub(super) fn name(&self, key: &str) -> String {
        let key = self.form.key(key);
        key.rsplit('.').next().unwrap_or_default().to_owned()
    }
}

/// Lays what is given elsewhere on top, and checks all of it.
pub(super) fn check(form: Form, mut whole: Whole, overrides: &Overrides, env: &Env, mut problems: Problems) -> Reading {
    refuse_garbled(env, &mut problems);
    overrides.apply(&mut whole, &mut problems);
    let mut report = Report { form, overrides, problems };
    let sentinel = sentinel(&whole.config, env, &mut report);
    let process = process(&whole.process, &mut report);
    let topic = whole.process.topic.map(|topic| (topic, report.origin(TOPIC)));
    Reading { form, sentinel, process, topic, problems: report.problems }
}

/// A password that is read with other bytes than it has would be refused by whoever asks for it, and nobody would know
/// why.
fn refuse_garbled(env: &Env, problems: &mut Problems) {
    for name in env.garbled().filter(|name| name.starts_with("HYPERFLEET_") || is_ours(name)) {
        problems
            .leave_out(Origin::env(name), "is not UTF-8, so that it cannot be read as it is; set it anew, in UTF-8");
    }
}

impl Process {
    /// Reads what flags and environment say about the process, where there is no file.
    pub fn read(overrides: &Overrides) -> (Option<Self>, Problems) {
        let (mut whole, mut problems) = (Whole::default(), Problems::without_file());
        overrides.apply(&mut whole, &mut problems);
        let mut report = Report { form: Form::HyperFleet, overrides, problems };
        let process = process(&whole.process, &mut report);
        (process, report.problems)
    }
}

fn process(raw: &RawProcess, report: &mut Report<'_>) -> Option<Process> {
    if let Some(version) = raw.version.as_deref().filter(|version| !matches!(*version, "" | "v1")) {
        let message = format!("{version:?} is not used: the API's path is /api/hyperfleet/v1, whatever stands here");
        report.warn("clients.hyperfleet_api.version", message);
    }
    let level = raw.log.level.as_deref().unwrap_or("info");
    let level = report.take("log.level", check_level(level).map(|()| level.to_owned()));
    let format = raw.log.format.as_deref().map_or(Ok(LogFormat::default()), str::parse);
    let format = report.take("log.format", format);
    let output = raw.log.output.as_deref().map_or(Ok(LogOutput::default()), str::parse);
    let output = report.take("log.output", output);
    Some(Process {
        name: raw.name.clone().unwrap_or_else(|| "hyperfleet-sentinel".to_owned()),
        debug_config: raw.debug_config.unwrap_or(false),
        tracing: raw.tracing_enabled.unwrap_or(true),
        log_level: level?,
        log_format: format?,
        log_output: output?,
    })
}

fn sentinel(raw: &RawConfig, env: &Env, report: &mut Report<'_>) -> Option<SentinelConfig> {
    let resource_type = resource_type(raw.resource_type.as_deref(), report);
    let poll_interval = positive("poll_interval", raw.poll_interval, 5, report);
    if poll_interval.is_some_and(|interval| interval < HASTE) {
        report.warn("poll_interval", "lists the whole fleet without a pause in between; write it like 5s");
    }
    let max_age = max_age(raw, report);
    let api = api::check(raw.hyperfleet_api.as_ref(), env, report);
    let selector = selector::check(raw.resource_selector.as_ref(), report);
    let decision = decision(raw, report);
    // Paths and templates are understood there too: they begin as no expression does.
    let leaves = match decision {
        _ if report.form != Form::Flat => Some(Leaves::Mixed),
        Some(RawPolicy::Expression) => Some(Leaves::Mixed),
        Some(RawPolicy::GenerationAware | RawPolicy::TimeOnly) => Some(Leaves::Paths),
        None => None,
    };
    let payload = payload(raw.message_data.as_ref(), leaves, report);
    let expression = expression(decision, raw.message_decision.as_ref(), max_age.as_ref(), report);
    let republish = raw.republish.unwrap_or(match raw.message_decision {
        Some(_) => Republish::Always,
        None => Republish::InFlight,
    });
    let unused = decision.map_or(&[][..], |decision| rules::unused(decision, raw.message_decision.as_ref(), republish));
    let rules = rules::check(raw, decision, unused, max_age, report);
    let max_events_per_second = rules::check_ceiling(raw.max_events_per_second, report);
    let (api, effective_api) = api?;
    let mut config = SentinelConfig {
        form: report.form,
        api: ApiConfig { resource_type: resource_type?, ..api },
        poll_interval: poll_interval?,
        rules: rules?,
        expression,
        max_events_per_second,
        republish,
        selector: selector?,
        payload: Arc::new(payload?),
        effective: RawConfig::default(),
    };
    config.effective = RawConfig { hyperfleet_api: Some(effective_api), decision, ..effective(raw, &config, unused) };
    Some(config)
}

/// What decides; nothing where that, or what would imply it, is of the wrong kind.
fn decision(raw: &RawConfig, report: &Report<'_>) -> Option<RawPolicy> {
    if report.is_left_out("decision") || (raw.decision.is_none() && report.is_left_out("message_decision")) {
        return None;
    }
    Some(raw.decision.unwrap_or_else(|| RawPolicy::implied_by(raw.message_decision.as_ref())))
}

fn max_age(raw: &RawConfig, report: &mut Report<'_>) -> Option<MaxAge> {
    let not_ready = positive("max_age_not_ready", raw.max_age_not_ready, 10, report);
    let ready = positive("max_age_ready", raw.max_age_ready, 30 * 60, report);
    let max_age = MaxAge { ready: ready?, not_ready: not_ready? };
    if max_age.not_ready > max_age.ready {
        let ready = report.name("max_age_ready");
        let message =
            format!("longer than {ready}: resources that are not ready are looked at less often than those that are");
        report.warn("max_age_not_ready", message);
    }
    Some(max_age)
}

/// The file with its defaults filled in, but for what only the checks know.
fn effective(raw: &RawConfig, config: &SentinelConfig, unused: &[&str]) -> RawConfig {
    let rules = &config.rules;
    let in_effect = |key| Some(rules).filter(|_| !unused.contains(&key));
    RawConfig {
        resource_type: Some(config.api.resource_type.clone()),
        poll_interval: Some(GoDuration::new(config.poll_interval)),
        max_age_not_ready: in_effect("max_age_not_ready").map(|rules| GoDuration::new(rules.max_age.not_ready)),
        max_age_ready: in_effect("max_age_ready").map(|rules| GoDuration::new(rules.max_age.ready)),
        refresh_spread: in_effect("refresh_spread").map(|rules| format!("{}%", rules.refresh_spread.percent())),
        no_progress_after: in_effect("no_progress_after").map(|rules| GoDuration::new(rules.no_progress.after)),
        max_age_no_progress: in_effect("max_age_no_progress").map(|rules| GoDuration::new(rules.no_progress.max_age)),
        resource_selector: Some(raw.resource_selector.clone().unwrap_or(RawSelector::Pairs(Vec::new()))),
        republish: Some(config.republish),
        ..raw.clone()
    }
}

pub(super) fn positive(
    key: &str,
    value: Option<GoDuration>,
    default: u64,
    report: &mut Report<'_>,
) -> Option<Duration> {
    if report.is_left_out(key) {
        return None;
    }
    if value.is_some_and(GoDuration::is_zero) {
        report.push(key, format!("must be longer than 0, for example {}", GoDuration::from_secs(default)));
        return None;
    }
    Some(value.map_or_else(|| Duration::from_secs(default), GoDuration::get))
}

fn resource_type(raw: Option<&str>, report: &mut Report<'_>) -> Option<String> {
    let Some(plural) = raw.filter(|plural| !plural.is_empty()) else {
        report.push("resource_type", "missing; write the plural that the API serves, for example clusters");
        return None;
    };
    // One path segment: anything else would ask for another endpoint.
    if !plural.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) {
        report.push(
            "resource_type",
            format!("{plural:?} is not a plural: only letters, digits, '-' and '_', for example clusters"),
        );
        return None;
    }
    Some(plural.to_owned())
}

fn expression(
    decision: Option<RawPolicy>,
    raw: Option<&RawDecision>,
    max_age: Option<&MaxAge>,
    report: &mut Report<'_>,
) -> Option<Arc<Expression>> {
    if decision.is_some_and(|decision| decision != RawPolicy::Expression) {
        if raw.is_some() {
            report.push("message_decision", "not used by this decision; leave one of the two out");
        }
        return None;
    }
    // What is written is looked at whatever the ages.
    let compiled = match raw {
        Some(raw) => super::decision::compile(raw),
        None => super::decision::built_in(max_age?),
    };
    match compiled {
        Ok(expression) => {
            for doubt in expression.doubts() {
                report.warn(&format!("message_decision.{}", doubt.part.key()), doubt.to_string());
            }
            Some(Arc::new(expression))
        }
        Err(found) => {
            for (key, message) in found {
                report.push(&format!("message_decision.{key}"), message);
            }
            None
        }
    }
}

/// Where it is not known how its texts are understood, what is wrong either way is told.
fn payload(raw: Option<&Value>, leaves: Option<Leaves>, report: &mut Report<'_>) -> Option<Payload> {
    let Some(raw) = raw.filter(|raw| !raw.is_null()) else { return Some(Payload::default_payload()) };
    let compiled = match leaves {
        Some(leaves) => Payload::compile(raw, leaves),
        None => Payload::compile(raw, Leaves::Paths).map_err(|mut errors| {
            let others = Payload::compile(raw, Leaves::Mixed).err().unwrap_or_default();
            errors.retain(|error| others.iter().any(|other| other.field == error.field));
            errors
        }),
    };
    match compiled {
        Ok(payload) => {
            for (field, doubt) in payload.doubts() {
                report.warn(&format!("message_data.{field}"), format!("expression: {doubt}"));
            }
            Some(payload)
        }
        Err(errors) => {
            for error in errors {
                report.push(&error.field, error.problem.to_string());
            }
            None
        }
    }
}
