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
