//! Our metrics' text as OTLP metrics.

use serde_json::{Value, json};

use super::{attributes, nanos};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u8 = 2;

/// A family of the text: its lines begin with `# TYPE`, `# UNIT` or `# HELP`.
#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    unit: &'a str,
    help: &'a str,
    samples: Vec<Sample<'a>>,
}

struct Sample<'a> {
    /// Behind the family's name: `_total`, `_bucket`, `_sum`, `_count` or nothing.
    suffix: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

/// The metrics of OTLP's `ScopeMetrics`. Names have no unit: a receiver for Prometheus appends it again, and `_total`.
pub(super) fn of_text(text: &str, started_ms: u64, now_ms: u64) -> Vec<Value> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        if words.next() == Some("#") {
            let (Some(what), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            if families.last().is_none_or(|family| family.name != name) {
                families.push(Family {
                    name,
                    ..Family::default()
                });
            }
            let rest = words.next().unwrap_or_default();
            if let Some(family) = families.last_mut() {
                match what {
                    "TYPE" => family.kind = rest,
                    "UNIT" => family.unit = rest,
                    _ => family.help = rest,
                }
            }
        } else if let Some(family) = families.last_mut() {
            family.samples.extend(sample(family.name, line));
        }
    }
    let metric = |family: &Family<'_>| family.metric(&nanos(started_ms), &nanos(now_ms));
    families.iter().map(metric).collect()
}

fn sample<'a>(family: &str, line: &'a str) -> Option<Sample<'a>> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.trim_end_matches('}').split("\",");
    let label = |pair: &'a str| {
        let (name, value) = pair.split_once("=\"")?;
        Some((name, value.trim_end_matches('"')))
    };
    Some(Sample {
        suffix: name.strip_prefix(family)?,
        labels: labels.filter_map(label).collect(),
        value: value.parse().ok()?,
    })
}

impl Family<'_> {
    fn metric(&self, started: &str, now: &str) -> Value {
        let unit = format!("_{}", self.unit);
        let mut metric = json!({
            "name": self.name.strip_suffix(&unit).unwrap_or(self.name),
            "description": self.help,
            "unit": match self.unit {
                "seconds" => "s",
                "bytes" => "By",
                _ => "1",
            },
        });
        let points = self.samples.iter().map(|sample| {
            json!({
                "attributes": attributes(sample.labels.iter().copied()),
                "startTimeUnixNano": started,
                "timeUnixNano": now,
                "asDouble": sample.value,
            })
        });
        let data = match self.kind {
            "counter" => json!({
                "dataPoints": points.collect::<Vec<_>>(),
                "aggregationTemporality": CUMULATIVE,
                "isMonotonic": true,
            }),
            "histogram" => json!({
                "dataPoints": [self.histogram(started, now)],
                "aggregationTemporality": CUMULATIVE,
            }),
            _ => json!({"dataPoints": points.collect::<Vec<_>>()}),
        };
        let name = match self.kind {
            "counter" => "sum",
            "histogram" => "histogram",
            _ => "gauge",
        };
        metric[name] = data;
        metric
    }

    /// Our histograms have no labels but `le`, and their buckets count everything below: OTLP's do not.
    fn histogram(&self, started: &str, now: &str) -> Value {
        let of = |suffix: &str| self.samples.iter().find(|sample| sample.suffix == suffix);
        let mut below = 0.0;
        let (mut counts, mut bounds) = (Vec::new(), Vec::new());
        for bucket in self
            .samples
            .iter()
            .filter(|sample| sample.suffix == "_bucket")
        {
            counts.push((bucket.value - below).to_string());
            below = bucket.value;
            let bound = bucket.labels.iter().find(|(name, _)| *name == "le");
            bounds.extend(bound.and_then(|(_, bound)| bound.parse::<f64>().ok()));
        }
        // `+Inf` is a number for Rust, and the bound that OTLP leaves out.
        bounds.retain(|bound| bound.is_finite());
        json!({
            "attributes": [],
            "startTimeUnixNano": started,
            "timeUnixNano": now,
            "count": of("_count").map_or(0.0, |sample| sample.value).to_string(),
            "sum": of("_sum").map_or(0.0, |sample| sample.value),
            "bucketCounts": counts,
            "explicitBounds": bounds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_becomes_its_own() {
        let text = "# HELP walrelay_lag_seconds The lag.\n# TYPE walrelay_lag_seconds gauge\n\
                    # UNIT walrelay_lag_seconds seconds\nwalrelay_lag_seconds 1.5\n\
                    # HELP walrelay_records Records.\n# TYPE walrelay_records counter\n\
                    walrelay_records_total{topic=\"a b\",outcome=\"ok\"} 7\n\
                    # HELP walrelay_ack_seconds Acks.\n# TYPE walrelay_ack_seconds histogram\n\
                    # UNIT walrelay_ack_seconds seconds\nwalrelay_ack_seconds_sum 3.0\n\
                    walrelay_ack_seconds_count 4\nwalrelay_ack_seconds_bucket{le=\"0.5\"} 1\n\
                    walrelay_ack_seconds_bucket{le=\"1.0\"} 3\nwalrelay_ack_seconds_bucket{le=\"+Inf\"} 4\n# EOF\n";
        let times = json!({"startTimeUnixNano": "1000000", "timeUnixNano": "2000000"});
        let point = |mut point: Value| {
            for (name, time) in times.as_object().unwrap() {
                point[name] = time.clone();
            }
            point
        };
        let topic = json!([
            {"key": "topic", "value": {"stringValue": "a b"}},
            {"key": "outcome", "value": {"stringValue": "ok"}},
        ]);
        let expected = json!([
            {"name": "walrelay_lag", "description": "The lag.", "unit": "s",
             "gauge": {"dataPoints": [point(json!({"attributes": [], "asDouble": 1.5}))]}},
            {"name": "walrelay_records", "description": "Records.", "unit": "1",
             "sum": {"dataPoints": [point(json!({"attributes": topic, "asDouble": 7.0}))],
                     "aggregationTemporality": 2, "isMonotonic": true}},
            {"name": "walrelay_ack", "description": "Acks.", "unit": "s",
             "histogram": {"dataPoints": [point(json!({"attributes": [], "count": "4", "sum": 3.0,
                 "bucketCounts": ["1", "2", "1"], "explicitBounds": [0.5, 1.0]}))],
                 "aggregationTemporality": 2}},
        ]);
        assert_eq!(Value::from(of_text(text, 1, 2)), expected);
    }
}
