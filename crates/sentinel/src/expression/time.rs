//! Times and durations as Go reads and writes them.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use watchfire_runtime::duration::GoDuration;

/// The first and the last second that an expression can have: the years 1 to 9999.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

const SECOND: i64 = 1_000_000_000;

/// After 400 years the calendar repeats itself, days of the week included.
const CYCLE_YEARS: i64 = 400;
const CYCLE_SECONDS: i64 = 146_097 * 24 * 60 * 60;

/// A time that an expression can have. The library's own end a day before the last of them, which are looked at a
/// [cycle](CYCLE_YEARS) earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// Since 1970.
    second: i64,
    /// Since the second began.
    nanosecond: i64,
}

impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        let (second, nanosecond) = (time.as_second(), i64::from(time.subsec_nanosecond()));
        // Before 1970 the library counts the fraction backwards.
        let borrowed = i64::from(nanosecond < 0);
        Self { second: second - borrowed, nanosecond: nanosecond + borrowed * SECOND }
    }
}

impl Moment {
    /// Seconds since 1970.
    pub(super) fn as_second(self) -> i64 {
        self.second
    }

    pub(super) fn as_nanosecond(self) -> i128 {
        i128::from(self.second) * i128::from(SECOND) + i128::from(self.nanosecond)
    }

    fn from_nanosecond(nanos: i128) -> Option<Self> {
        let (second, rest) = (nanos.div_euclid(SECOND.into()), nanos.rem_euclid(SECOND.into()));
        let moment = Self { second: i64::try_from(second).ok()?, nanosecond: i64::try_from(rest).ok()? };
        Some(moment).filter(|moment| SECONDS.contains(&moment.second))
    }

    /// The library's time, and how many years earlier than this it is.
    fn held(self) -> Option<(Timestamp, i64)> {
        let at = |second| Timestamp::new(second, i32::try_from(self.nanosecond).ok()?).ok();
        let earlier = || Some((at(self.second - CYCLE_SECONDS)?, CYCLE_YEARS));
        at(self.second).map(|time| (time, 0)).or_else(earlier)
    }
}

/// Reads RFC 3339, exactly: with `T`, seconds and an offset.
pub(super) fn parse_timestamp(text: &str) -> Option<Moment> {
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
    let (time, cycle) = match text.strip_prefix("9999") {
        Some(rest) => (format!("9599{rest}").parse::<Timestamp>().ok()?, CYCLE_SECONDS),
        None => (text.parse().ok()?, 0),
    };
    shift(time.into(), i128::from(cycle) * i128::from(SECOND))
}

/// Seconds since 1970 as a time.
pub(super) fn from_seconds(seconds: i64) -> Option<Moment> {
    SECONDS.contains(&seconds).then_some(Moment { second: seconds, nanosecond: 0 })
}

/// `time` moved by nanoseconds.
pub(super) fn shift(time: Moment, nanos: i128) -> Option<Moment> {
    Moment::from_nanosecond(time.as_nanosecond().checked_add(nanos)?)
}

/// RFC 3339 in UTC, with the digits that it needs.
pub(super) fn format_timestamp(time: Moment) -> String {
    match time.held() {
        // The year is what differs.
        Some((earlier, years @ 1..)) => {
            let text = earlier.to_string();
            let (year, rest) = text.split_once('-').unwrap_or_default();
            format!("{}-{rest}", year.parse::<i64>().unwrap_or_default() + years)
        }
        Some((time, _)) => time.to_string(),
        // No time is beyond both.
        None => String::new(),
    }
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
pub(super) fn part_of_timestamp(time: Moment, part: Part, zone: Option<&str>) -> Option<i64> {
    let mut zone = zone.map_or(Some(TimeZone::UTC), parse_zone)?;
    let (time, years) = time.held()?;
    if years > 0 {
        // Rules of a zone are not those of a cycle ago.
        zone = zone.to_offset(Timestamp::MAX).to_time_zone();
    }
    let local = time.to_zoned(zone);
    Some(match part {
        Part::Date => local.day().into(),
        Part::DayOfMonth => i64::from(local.day()) - 1,
        Part::DayOfWeek => local.weekday().to_sunday_zero_offset().into(),
        Part::DayOfYear => i64::from(local.day_of_year()) - 1,
        Part::FullYear => i64::from(local.year()) + years,
        Part::Hours => local.hour().into(),
        Part::Milliseconds => local.millisecond().into(),
        Part::Minutes => local.minute().into(),
        Part::Month => i64::from(local.month()) - 1,
        Part::Seconds => local.second().into(),
    })
}

/// Whether there is a zone that is called so.
pub(super) fn is_zone(text: &str) -> bool {
    parse_zone(text).is_some()
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
