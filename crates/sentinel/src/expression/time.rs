//! Times and durations as Go reads and writes them.

use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, Zoned};
use watchfire_runtime::duration::GoDuration;

/// The first and the last second that an expression can have: the years 1 to 9999.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

const SECOND: i64 = 1_000_000_000;

/// Reads RFC 3339, exactly: with `T`, seconds and an offset.
pub(super) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let (date_time, rest) = text.as_bytes().split_at_checked(19)?;
    let shaped = date_time.iter().zip(b"0000-00-00T00:00:00").all(|(found, wanted)| match wanted {
        b'0' => found.is_ascii_digit(),
        wanted => found == wanted,
    });
    let second_60 = date_time.ends_with(b"60");
    let fraction =
        rest.strip_prefix(b".").map_or(0, |digits| 1 + digits.iter().take_while(|byte| byte.is_ascii_digit()).count());
    let offset = match rest.get(fraction..)? {
        b"Z" => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].into_iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !shaped || !offset || second_60 || fraction == 1 {
        return None;
    }
    // Digits below a nanosecond are cut off, as in Go; jiff refuses them.
    let kept = (19 + fraction).min(29);
    let trimmed;
    let text = if 19 + fraction > kept {
        trimmed = format!("{}{}", text.get(..kept)?, text.get(19 + fraction..)?);
        &trimmed
    } else {
        text
    };
    in_range(text.parse().ok()?)
}

/// A time, where it is one that an expression can have.
pub(super) fn in_range(time: Timestamp) -> Option<Timestamp> {
    SECONDS.contains(&time.as_second()).then_some(time)
}

/// Seconds since 1970 as a time.
pub(super) fn from_seconds(seconds: i64) -> Option<Timestamp> {
    Timestamp::from_second(seconds).ok().and_then(in_range)
}

/// `time` moved by nanoseconds.
pub(super) fn shift(time: Timestamp, nanos: i128) -> Option<Timestamp> {
    Timestamp::from_nanosecond(time.as_nanosecond().checked_add(nanos)?).ok().and_then(in_range)
}

/// RFC 3339 in UTC, with the digits that it needs.
pub(super) fn format_timestamp(time: Timestamp) -> String {
    time.to_string()
}

/// Reads what Go's `time.ParseDuration` reads, as nanoseconds.
pub(super) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) if rest.starts_with(['+', '-']) => return None,
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let nanos = i64::try_from(rest.parse::<GoDuration>().ok()?.get().as_nanos()).ok()?;
    Some(if negative { -nanos } else { nanos })
}

/// Seconds, with an `s`.
pub(super) fn format_duration(nanos: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "as Go's Duration.Seconds: whole seconds and the rest apart")]
    let seconds = (nanos / SECOND) as f64 + (nanos % SECOND) as f64 / 1e9;
    format!("{seconds}s")
}

/// A part of a time that an expression can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Date,
    DayOfMonth,
    DayOfWeek,
    DayOfYear,
    FullYear,
    Hours,
    Milliseconds,
    Minutes,
    Month,
    Seconds,
}

/// A part of `time`, in the zone called `zone`, else in UTC; `None` when there is no such zone.
pub(super) fn part_of_timestamp(time: Timestamp, part: Part, zone: Option<&str>) -> Option<i64> {
    let zone = zone.map_or(Some(TimeZone::UTC), parse_zone)?;
    let local: Zoned = time.to_zoned(zone);
    Some(match part {
        Part::Date => local.day().into(),
        Part::DayOfMonth => i64::from(local.day()) - 1,
        Part::DayOfWeek => local.weekday().to_sunday_zero_offset().into(),
        Part::DayOfYear => i64::from(local.day_of_year()) - 1,
        Part::FullYear => local.year().into(),
        Part::Hours => local.hour().into(),
        Part::Milliseconds => local.millisecond().into(),
        Part::Minutes => local.minute().into(),
        Part::Month => i64::from(local.month()) - 1,
        Part::Seconds => local.second().into(),
    })
}

/// `+02:00`, or a name such as `Europe/Berlin`.
fn parse_zone(text: &str) -> Option<TimeZone> {
    let Some((hours, minutes)) = text.split_once(':') else {
        return if matches!(text, "" | "UTC") { Some(TimeZone::UTC) } else { TimeZone::get(text).ok() };
    };
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let minutes = if hours < 0 { hours.checked_mul(60)? - minutes } else { hours.checked_mul(60)? + minutes };
    Offset::from_seconds(minutes.checked_mul(60)?).ok().map(TimeZone::fixed)
}

/// A duration as a whole number of hours, minutes, seconds or milliseconds; `None` for the other parts.
pub(super) fn part_of_duration(nanos: i64, part: Part) -> Option<i64> {
    Some(match part {
        Part::Hours => nanos / (3_600 * SECOND),
        Part::Minutes => nanos / (60 * SECOND),
        Part::Seconds => nanos / SECOND,
        Part::Milliseconds => nanos / 1_000_000,
        Part::Date | Part::DayOfMonth | Part::DayOfWeek | Part::DayOfYear | Part::FullYear | Part::Month => {
            return None;
        }
    })
}
