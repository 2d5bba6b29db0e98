//! Durations as Go writes them: `10s`, `1h30m`, `1.5h`, `500ms`, `0`.
//!
//! Parsing accepts exactly what Go's `time.ParseDuration` accepts, except that a negative duration is refused:
//! nothing that is configured here can run backwards. No crate does this without a Kubernetes client behind it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration in Go syntax; never negative, at most about 292 years, as in Go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(Duration);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {text:?}: {problem}; write for example \"10s\", \"500ms\" or \"1h30m\"")]
pub struct DurationError {
    text: String,
    problem: Cow<'static, str>,
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The units, longest name first where one begins with another.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
];

impl GoDuration {
    /// Wraps a duration of the standard library.
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// Makes a duration of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns the duration as the standard library has it.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Says whether the duration is `0`.
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<GoDuration> for Duration {
    fn from(duration: GoDuration) -> Self {
        duration.0
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        parse(text).map_err(|problem| DurationError { text: text.chars().take(64).collect(), problem })
    }
}

fn parse(text: &str) -> Result<GoDuration, Cow<'static, str>> {
    if text.starts_with('-') {
        return Err("it must not be negative".into());
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err("it is empty".into());
    }
    if rest == "0" {
        return Ok(GoDuration::default());
    }
    let mut total = 0_u64;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err("a number is missing".into());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return Err("the unit is missing".into());
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit {unit:?}, known are ns, us, ms, s, m and h").into());
        };
        total = nanos(whole, fraction, *scale)
            .and_then(|part| total.checked_add(part))
            .filter(|total| i64::try_from(*total).is_ok())
            .ok_or("it is longer than 292 years")?;
        rest = next;
    }
    Ok(GoDuration(Duration::from_nanos(total)))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `whole.fraction` of a unit of `scale` nanoseconds; digits below a nanosecond are cut off.
fn nanos(whole: &str, fraction: &str, scale: u64) -> Option<u64> {
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    // An hour has 13 digits of nanoseconds, so what follows the 18th digit can't matter but by rounding.
    let kept = &fraction[..fraction.len().min(18)];
    let part = if kept.is_empty() { 0 } else { kept.parse::<u128>().ok()? };
    let part = part * u128::from(scale) / 10_u128.pow(u32::try_from(kept.len()).ok()?);
    whole.checked_mul(scale)?.checked_add(u64::try_from(part).ok()?)
}

impl fmt::Display for GoDuration {
    /// Writes the shortest form: `1h30m`, where Go writes `1h30m0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let second = u128::from(NANOS_PER_SECOND);
        if nanos < second {
            let (unit, scale) = match nanos {
                0..1_000 => ("ns", 1),
                1_000..1_000_000 => ("us", 1_000),
                _ => ("ms", 1_000_000),
            };
            return write_decimal(f, nanos, scale, unit);
        }
        let minutes = nanos / second / 60;
        if minutes >= 60 {
            write!(f, "{}h", minutes / 60)?;
        }
        if !minutes.is_multiple_of(60) {
            write!(f, "{}m", minutes % 60)?;
        }
        match nanos % (60 * second) {
            0 => Ok(()),
            below_minute => write_decimal(f, below_minute, second, "s"),
        }
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, nanos: u128, scale: u128, unit: &str) -> fmt::Result {
    write!(f, "{}", nanos / scale)?;
    if !nanos.is_multiple_of(scale) {
        let fraction = (scale + nanos % scale).to_string();
        write!(f, ".{}", fraction[1..].trim_end_matches('0'))?;
    }
    f.write_str(unit)
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DurationVisitor)
    }
}

struct DurationVisitor;

impl de::Visitor<'_> for DurationVisitor {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"10s\" or \"1h30m\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
        text.parse().map_err(E::custom)
    }
}

impl JsonSchema for GoDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "GoDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A duration in Go syntax, for example 10s, 500ms or 1h30m.",
            "pattern": r"^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$",
            "examples": ["10s", "1h30m"],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn millis(text: &str) -> u128 {
        text.parse::<GoDuration>().unwrap().get().as_millis()
    }

    #[test]
    fn every_form_that_go_accepts_is_accepted() {
        let table = [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("10s", 10_000),
            ("+5s", 5_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("5.s", 5_000),
            ("500ms", 500),
            ("2500us", 2),
            ("2500\u{b5}s", 2),
            ("2500\u{3bc}s", 2),
            ("3000000ns", 3),
            ("1m1m", 120_000),
            ("0.100000000000000000000h", 360_000),
        ];
        for (text, expected) in table {
            assert_eq!(millis(text), expected, "{text}");
        }
        assert_eq!(
            "2562047h47m16.854775807s".parse::<GoDuration>().unwrap().get(),
            Duration::from_nanos(i64::MAX as u64)
        );
    }

    #[test]
    fn bad_durations_say_what_is_wrong_and_show_an_example() {
        let table = [
            ("", "it is empty"),
            ("+", "it is empty"),
            ("-5s", "it must not be negative"),
            ("-0", "it must not be negative"),
            ("5", "the unit is missing"),
            ("1h5", "the unit is missing"),
            ("s", "a number is missing"),
            (".s", "a number is missing"),
            ("5 minutes", "unknown unit \" minutes\""),
            ("1d", "unknown unit \"d\""),
            ("10S", "unknown unit \"S\""),
            (" 10s", "a number is missing"),
            ("10s ", "unknown unit \"s \""),
            ("1e3s", "unknown unit \"e\""),
            ("2562047h47m16.854775808s", "longer than 292 years"),
            ("9999999999999999999999h", "longer than 292 years"),
        ];
        for (text, expected) in table {
            let error = text.parse::<GoDuration>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.contains("\"1h30m\""), "{error}");
        }
    }

    #[test]
    fn the_shortest_form_is_written() {
        for text in ["0s", "10s", "1h30m", "1h0.5s", "500ms", "1.5ms", "2.001us", "7ns", "24h", "1m0.000000001s"] {
            assert_eq!(text.parse::<GoDuration>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_document_holds_it_as_text() {
        assert_eq!(serde_json::to_string(&GoDuration::from_secs(90)).unwrap(), "\"1m30s\"");
        assert_eq!(serde_json::from_str::<GoDuration>("\"1m30s\"").unwrap(), GoDuration::from_secs(90));
        let error = serde_json::from_str::<GoDuration>("5").unwrap_err().to_string();
        assert!(error.contains("a duration such as \"10s\""), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(nanos in 0..=i64::MAX as u64) {
            let duration = GoDuration::new(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,24}") {
            let _outcome = text.parse::<GoDuration>();
        }
    }
}
