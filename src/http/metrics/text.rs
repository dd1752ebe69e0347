//! The text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;

named! {
    /// The type of a metric.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        Counter = "counter",
        Gauge = "gauge",
        Histogram = "histogram",
        Summary = "summary",
    }
}

/// A metric with its samples, each behind the end of its name.
struct Family {
    kind: Kind,
    help: String,
    samples: Vec<String>,
}

/// Metrics by their names. Each has its samples together, in whatever order they were added.
#[derive(Default)]
pub struct Metrics {
    families: BTreeMap<String, Family>,
}

/// Labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Metrics {
    /// Adds a sample without labels.
    pub fn add(&mut self, kind: Kind, name: &str, help: &str, value: f64) {
        self.add_with(kind, name, help, &[], value);
    }

    /// Adds a sample.
    pub fn add_with(&mut self, kind: Kind, name: &str, help: &str, labels: Labels<'_>, value: f64) {
        self.add_part(kind, name, "", help, labels, value);
    }

    /// Adds a sample whose name has an ending, such as `_sum` of a summary.
    pub fn add_part(&mut self, kind: Kind, name: &str, ending: &str, help: &str, labels: Labels<'_>, value: f64) {
        let family =
            self.families.entry(name.to_owned()).or_insert_with(|| Family { kind, help: help.to_owned(), samples: Vec::new() });
        let mut sample = ending.to_owned();
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(sample, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escaped(text, true));
        }
        if !labels.is_empty() {
            sample.push('}');
        }
        let _ = write!(sample, " {}", number(value));
        family.samples.push(sample);
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples }) in &self.families {
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {}", escaped(help, false), kind.name());
            for sample in samples {
                let _ = writeln!(text, "{name}{sample}");
            }
        }
        text
    }
}

fn number(value: f64) -> String {
    match value {
        value if value == f64::INFINITY => "+Inf".to_owned(),
        value if value == f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

fn escaped(text: &str, quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_together_and_labels_are_escaped() {
        let mut metrics = Metrics::default();
        metrics.add_with(Kind::Gauge, "b", "Of \\ b.", &[("name", "a\"\\\n"), ("db", "0")], 1.5);
        metrics.add(Kind::Counter, "a_total", "Of a.", 3_677_457_315_028_992.0);
        metrics.add_with(Kind::Gauge, "b", "Of b.", &[("name", "c"), ("db", "1")], -1.0);
        metrics.add_part(Kind::Histogram, "h", "_bucket", "Of h.", &[("le", "+Inf")], f64::INFINITY);
        assert_eq!(
            metrics.text(),
            "# HELP a_total Of a.\n# TYPE a_total counter\na_total 3677457315028992\n# HELP b Of \\\\ b.\n# TYPE b gauge\n\
             b{name=\"a\\\"\\\\\\n\",db=\"0\"} 1.5\nb{name=\"c\",db=\"1\"} -1\n# HELP h Of h.\n# TYPE h histogram\n\
             h_bucket{le=\"+Inf\"} +Inf\n"
        );
    }
}
