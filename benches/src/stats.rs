//! Medians and Markdown tables. Must not know: what was measured.

/// Samples of one quantity, one a round.
#[derive(Debug, Clone, Default)]
pub struct Series(Vec<f64>);

impl Series {
    /// No samples yet.
    pub const fn new() -> Series {
        Series(Vec::new())
    }

    /// Adds one round's sample.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The smallest sample; NaN when there is none.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest sample; NaN when there is none.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The middle sample; NaN when there is none.
    pub fn median(&self) -> f64 {
        quantile(&self.0, 0.5)
    }

    /// Round by round, this over `other`: noise that both share cancels.
    pub fn over(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(mine, limit)| mine / limit).collect())
    }
}

/// The sample at `share` (0 to 1) of the sorted samples; NaN when there is none.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// A Markdown table of quantities, each with its smallest, middle and largest round.
#[derive(Debug)]
pub struct Table {
    title: String,
    rows: Vec<String>,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>) -> Table {
        Table { title: title.into(), rows: Vec::new() }
    }

    /// A row: what, its unit, its samples, and the figure that was promised (empty: none).
    pub fn row(&mut self, what: &str, unit: &str, samples: &Series, promise: &str) {
        let (min, median, max) = (samples.min(), samples.median(), samples.max());
        self.rows.push(format!("| {what} | {unit} | {min:.2} | {median:.2} | {max:.2} | {promise} |"));
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "\n### {}\n", self.title)?;
        writeln!(f, "| what | unit | min | median | max | wanted |\n|---|---|---|---|---|---|")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Series, Table, quantile};

    fn series(samples: &[f64]) -> Series {
        let mut series = Series::default();
        samples.iter().for_each(|sample| series.push(*sample));
        series
    }

    #[test]
    fn middle_and_ends() {
        let samples = series(&[3.0, 1.0, 2.0]);
        assert_eq!((samples.min(), samples.median(), samples.max()), (1.0, 2.0, 3.0));
        assert!(series(&[]).median().is_nan());
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0, 5.0], 0.99), 5.0);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let ratios = series(&[2.0, 20.0]).over(&series(&[1.0, 10.0]));
        assert_eq!((ratios.min(), ratios.max()), (2.0, 2.0));
    }

    #[test]
    fn tables_are_markdown() {
        let mut table = Table::new("Copies");
        table.row("offload / memcpy", "x", &series(&[1.0]), ">= 1");
        assert!(table.to_string().contains("| offload / memcpy | x | 1.00 | 1.00 | 1.00 | >= 1 |"));
    }
}
