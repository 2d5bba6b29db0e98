//! The table that a person reads, of the rows that a program reads.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

/// One measured thing, with what it has to be.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The same work with nothing in between, in the same run and unit.
    pub(crate) ceiling: Option<f64>,
    pub(crate) must: Option<Bound>,
    pub(crate) aim: Option<Bound>,
}

/// What a row has to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// At most so much, in the row's unit.
    AtMost(f64),
    /// At least so many per cent of the ceiling.
    OfCeiling(f64),
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text(""))
    }
}

impl Bound {
    fn text(self, unit: &str) -> String {
        match self {
            Self::AtMost(most) => format!("<= {most} {unit}").trim_end().to_owned(),
            Self::OfCeiling(percent) => format!(">= {percent} %"),
        }
    }
}

impl Row {
    /// Ours in per cent of the ceiling, where more is better.
    fn ratio(&self) -> Option<f64> {
        let ceiling = self.ceiling?;
        Some(if self.unit.ends_with("/s") { self.value / ceiling } else { ceiling / self.value } * 100.0)
    }
}

impl Row {
    /// Whether it falls short of what it must be.
    fn misses(&self) -> bool {
        match self.must {
            // A measurement that is no number holds nothing.
            Some(Bound::AtMost(most)) => self.value.is_nan() || self.value > most,
            Some(Bound::OfCeiling(percent)) => !self.ratio().is_some_and(|ratio| ratio >= percent),
            None => false,
        }
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
        let [must, aim] = [row.must, row.aim].map(|bound| bound.map(|bound| bound.text(unit)).unwrap_or_default());
        writeln!(out, "{:<58} {value:>12} {ceiling:>12} {ratio:>6}  {must:<18} {aim}", row.what)?;
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

    fn row(value: f64, unit: &'static str, ceiling: Option<f64>, must: Option<Bound>) -> Row {
        Row { what: "row".to_owned(), value, unit, ceiling, must, aim: None }
    }

    #[test]
    fn a_row_that_falls_short_is_named_and_no_other() {
        let (most, share) = (Some(Bound::AtMost(2.0)), Some(Bound::OfCeiling(80.0)));
        for good in [
            row(2.0, "s", None, most),
            row(800.0, "/s", Some(1000.0), share),
            row(10.0, "s", Some(8.0), share),
            row(9.0, "s", None, None),
        ] {
            assert!(!good.misses(), "{good:?}");
        }
        for bad in [
            row(2.1, "s", None, most),
            row(f64::NAN, "s", None, most),
            row(790.0, "/s", Some(1000.0), share),
            row(10.1, "s", Some(8.0), share),
            row(1.0, "/s", None, share),
        ] {
            assert_eq!(missed(&[bad]), ["row"]);
        }
    }
}
