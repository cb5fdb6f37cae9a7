//! What was compared so far, and what came out.

/// Largest error allowed, relative to the largest recorded value.
const TOLERANCE: f64 = 2e-5;

#[derive(Default)]
pub(crate) struct Comparison {
    compared: usize,
    worst: f64,
    worst_name: String,
    /// Sequences that were generated again.
    generated: usize,
    pub(crate) failures: Vec<String>,
    /// What is to be said beside.
    pub(crate) remarks: Vec<String>,
    /// Recorded, and not computed by this library.
    pub(crate) left: Vec<String>,
}

impl Comparison {
    /// Compares with an error relative to the largest expected value.
    pub(crate) fn relative(&mut self, name: &str, actual: &[f32], expected: &[f32]) {
        let largest = expected.iter().fold(0.0f64, |max, &x| max.max(f64::from(x).abs()));
        self.scaled(name, actual, expected, largest.max(f64::MIN_POSITIVE));
    }

    pub(crate) fn scaled(&mut self, name: &str, actual: &[f32], expected: &[f32], unit: f64) {
        self.within(name, actual, expected, unit, TOLERANCE);
    }

    /// Compares with an error of up to `tolerance` units.
    pub(crate) fn within(
        &mut self,
        name: &str,
        actual: &[f32],
        expected: &[f32],
        unit: f64,
        tolerance: f64,
    ) {
        self.compared += 1;
        if actual.len() != expected.len() {
            let why = format!("{name}: {} values, expected {}", actual.len(), expected.len());
            return self.failures.push(why);
        }
        let errors =
            actual.iter().zip(expected).map(|(&a, &e)| (f64::from(a) - f64::from(e)).abs());
        // NaN must count as the largest error, which `max` alone would drop.
        let error = errors.fold(0.0, |max: f64, e| if e <= max { max } else { e }) / unit;
        if error > self.worst || error.is_nan() {
            self.worst = error;
            self.worst_name = name.to_owned();
        }
        if error.is_nan() || error > tolerance {
            self.failures.push(format!("{name}: error {error:.1e}"));
        }
    }

    /// The same sequence computed in two ways.
    pub(crate) fn same_bits(&mut self, what: &str, a: &[f32], b: &[f32]) {
        let same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        self.require(same, || format!("{what}: other bits"));
    }

    pub(crate) fn require(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(why());
        }
    }

    /// Counts a recorded sequence that was generated again.
    pub(crate) fn count_generated(&mut self) {
        self.generated += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.compared + self.generated == 0
    }

    pub(crate) fn note(&self) -> String {
        let Comparison { compared, worst, worst_name, generated, remarks, left, .. } = self;
        let mut note = format!("{compared} tensors, largest error {worst:.1e} in {worst_name}");
        if *generated > 0 {
            note += &format!("; {generated} generated sequences");
        }
        for remark in remarks {
            note += &format!("; {remark}");
        }
        if !left.is_empty() {
            note += &format!("; not compared: {}", left.join(", "));
        }
        note
    }
}
