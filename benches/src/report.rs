//! The table that a person reads, of the rows that a program reads.

use std::io::{self, Write};

use serde::Serialize;

/// One measured thing, with what it has to be.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The same work with nothing in between, in the same run and unit.
    pub(crate) ceiling: Option<f64>,
    /// Such as `<= 2 s`, `40 MB`, `>= 80 %` of the ceiling; empty where nothing is asked.
    pub(crate) must: &'static str,
    pub(crate) aim: &'static str,
}

impl Row {
    /// Ours in per cent of the ceiling, where more is better.
    fn ratio(&self) -> Option<f64> {
        let ceiling = self.ceiling?;
        Some(if self.unit.ends_with("/s") { self.value / ceiling } else { ceiling / self.value } * 100.0)
    }
}

impl Row {
    /// Whether it falls short of what it must be. A bound that cannot be read holds nothing, and neither does a number
    /// that is none.
    fn misses(&self) -> bool {
        if self.must.is_empty() {
            return false;
        }
        let least = self.must.starts_with('>');
        let (bound, unit) = self.must.trim_start_matches(['<', '>', '=', ' ']).split_once(' ').unwrap_or_default();
        let measured = if unit == "%" { self.ratio() } else { Some(self.value).filter(|_| unit == self.unit) };
        let holds = measured
            .zip(bound.parse::<f64>().ok())
            .is_some_and(|(measured, bound)| if least { measured >= bound } else { measured <= bound });
        !holds
    }
}

/// The rows that fall short of what they must be, one a line.
pub(crate) fn missed(rows: &[Row]) -> Vec<&str> {
    rows.iter().filter(|row| row.misses()).map(|row| row.what.as_str()).collect()
}

/// Prints the rows.
pub(crate) fn print(rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:<58} {:>12} {:>12} {:>6}  {:<18} aim", "what", "measured", "ceiling", "ratio", "must")?;
    for row in rows {
        let number = |value: f64| match value {
            value if value >= 1000.0 => format!("{value:.0}"),
            value => format!("{value:.2}"),
        };
        let unit = row.unit;
        let ceiling = row.ceiling.map(|value| format!("{} {unit}", number(value))).unwrap_or_default();
        let ratio = row.ratio().map(|ratio| format!("{ratio:.0} %")).unwrap_or_default();
        let value = format!("{} {unit}", number(row.value));
        writeln!(out, "{:<58} {value:>12} {ceiling:>12} {ratio:>6}  {:<18} {}", row.what, row.must, row.aim)?;
    }
    Ok(())
}

/// The middle of an odd number of measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f64, unit: &'static str, ceiling: Option<f64>, must: &'static str) -> Row {
        Row { what: "row".to_owned(), value, unit, ceiling, must, aim: "" }
    }

    #[test]
    fn a_row_that_falls_short_is_named_and_no_other() {
        for good in [
            row(2.0, "s", None, "<= 2 s"),
            row(999.0, "ns", None, "< 1000 ns"),
            row(40.0, "MB", None, "40 MB"),
            row(800.0, "/s", Some(1000.0), ">= 80 %"),
            row(10.0, "s", Some(8.0), ">= 80 %"),
            row(9.0, "s", None, ""),
        ] {
            assert!(!good.misses(), "{good:?}");
        }
        for bad in [
            row(2.1, "s", None, "<= 2 s"),
            row(41.0, "MB", None, "40 MB"),
            row(f64::NAN, "s", None, "<= 2 s"),
            row(790.0, "/s", Some(1000.0), ">= 80 %"),
            row(10.1, "s", Some(8.0), ">= 80 %"),
            row(1.0, "/s", None, ">= 80 %"),
            row(1.0, "ms", None, "<= 2 s"),
            row(1.0, "s", None, "fast"),
        ] {
            assert_eq!(missed(&[bad]), ["row"]);
        }
    }
}
