//! `walrelay alerts`: prints the rules for Prometheus, with the thresholds of the configuration.

use crate::cli::AlertsArgs;
use crate::commands::{CommandResult, EnvVars, load, print_text};
use crate::config::{Config, Slo};

/// The rules with the thresholds of an empty configuration.
const RULES: &str = include_str!("../../../shipped/alerts.yml");
/// Thresholds in the rules.
const LAG: &str = "walrelay_lag_seconds > ";
const RETAINED: &str = "walrelay_slot_retained_wal_bytes > ";
/// The beginning of a rule.
const ALERT: &str = "      - alert: ";
/// The share of missed seconds at which each rule fires, at most, and the days of a budget.
const MOST_MISSED: f64 = 0.95;
const DAYS: f64 = 30.0;

/// A rule about the rate at which the budget is used, over a long and a short window.
struct BurnRate {
    alert: &'static str,
    /// The multiple of the rate that uses up the budget in 30 days.
    factor: f64,
    long: &'static str,
    short: &'static str,
    severity: &'static str,
    usually_gone_in: &'static str,
}

/// The rates and windows of the Site Reliability Workbook, chapter 5.
const BURN_RATES: [BurnRate; 2] = [
    BurnRate {
        alert: "WalrelaySloBurnsFast",
        factor: 14.4,
        long: "1h",
        short: "5m",
        severity: "page",
        usually_gone_in: "two days",
    },
    BurnRate {
        alert: "WalrelaySloBurnsSlowly",
        factor: 6.0,
        long: "6h",
        short: "30m",
        severity: "ticket",
        usually_gone_in: "five days",
    },
];

/// Runs `walrelay alerts`.
pub(crate) fn alerts(args: &AlertsArgs, env: EnvVars<'_>) -> CommandResult {
    let config = load(&args.config, env)?;
    Ok(print_text(&rules(&config))?)
}

fn rules(config: &Config) -> String {
    let slo = &config.process.slo;
    let mut rules = with_threshold(RULES, LAG, slo.lag.as_secs_f64());
    let retained = config.pipeline.source.retained_wal_warning;
    rules = match retained {
        // Zero turns the warning off.
        0 => without_rule(&rules, RETAINED),
        retained => with_threshold(&rules, RETAINED, retained as f64),
    };
    if let Some(objective) = slo.commit_to_ack {
        let objective = objective.as_secs_f64();
        rules.extend(BURN_RATES.iter().map(|rate| rate.rule(slo, objective)));
    }
    rules
}

/// Replaces the number behind `expression`.
fn with_threshold(rules: &str, expression: &str, threshold: f64) -> String {
    let Some((before, after)) = rules.split_once(expression) else {
        return rules.to_owned();
    };
    let end = after.find(char::is_whitespace).unwrap_or(after.len());
    let rest = after.get(end..).unwrap_or_default();
    format!("{before}{expression}{threshold}{rest}")
}

/// Removes the rule that has this expression.
fn without_rule(rules: &str, expression: &str) -> String {
    let mut parts = rules.split(ALERT);
    let head = parts.next().unwrap_or_default().to_owned();
    let others = parts.filter(|rule| !rule.contains(expression));
    others.fold(head, |rules, rule| rules + ALERT + rule)
}

impl BurnRate {
    /// Returns the multiple at which the rule fires. A window cannot have more missed seconds than seconds.
    fn effective(&self, slo: &Slo) -> f64 {
        self.factor.min(MOST_MISSED / slo.budget())
    }

    /// Returns the time in which the budget is used up at that rate.
    fn gone_in(&self, slo: &Slo) -> String {
        let factor = self.effective(slo);
        if factor < self.factor {
            format!("{:.0} days", DAYS / factor)
        } else {
            self.usually_gone_in.to_owned()
        }
    }

    fn rule(&self, slo: &Slo, objective: f64) -> String {
        let Self {
            alert,
            long,
            short,
            severity,
            ..
        } = self;
        let gone_in = self.gone_in(slo);
        // Without the digits that binary fractions add.
        let share = format!("{:.8}", self.effective(slo) * slo.budget());
        let share = share.trim_end_matches('0');
        let exceeds = |window: &str| {
            format!(
                "increase(walrelay_slo_missed_seconds_total[{window}]) > {share} * \
                 increase(walrelay_slo_seconds_total[{window}])"
            )
        };
        format!(
            "      - alert: {alert}\n        expr: >-\n          {}\n          and {}\n        \
             labels: {{severity: {severity}}}\n        annotations:\n          \
             summary: \"events are later than {objective} s so often that the budget of 30 days is gone in {gone_in}\"\n          \
             runbook: docs/operate/alerts.md#the-budget-of-the-slo\n",
            exceeds(long),
            exceeds(short)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_of(set: &[&str]) -> String {
        let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n\
                    [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n";
        let set: Vec<String> = set.iter().copied().map(str::to_owned).collect();
        let config = Config::parse(text, "walrelay.toml", &set, &|_| None);
        rules(&config.expect("a configuration"))
    }

    #[test]
    fn without_settings_the_rules_are_those_of_the_file() {
        assert_eq!(rules_of(&[]), RULES);
    }

    #[test]
    fn thresholds_are_those_of_the_configuration() {
        let rules = rules_of(&["slo.lag=90s", "source.retained_wal_warning=1GiB"]);
        assert!(
            rules.contains("expr: walrelay_lag_seconds > 90\n"),
            "{rules}"
        );
        assert!(
            rules.contains("retained_wal_bytes > 1073741824\n"),
            "{rules}"
        );
        assert_eq!(rules.lines().count(), RULES.lines().count());
    }

    #[test]
    fn a_warning_that_is_off_has_no_rule() {
        let rules = rules_of(&["source.retained_wal_warning=0B"]);
        assert!(!rules.contains(RETAINED), "{rules}");
        let alerts = |rules: &str| rules.matches(ALERT).count();
        assert_eq!(alerts(&rules), alerts(RULES) - 1);
        assert!(rules.ends_with(&RULES[RULES.len() - 200..]));
    }

    /// 14.4 times a budget of a tenth would be more seconds than a window has.
    #[test]
    fn rules_of_a_low_target_can_fire() {
        for (target, shares, gone) in [
            ("95", ["> 0.72 *", "> 0.3 *"], ["two days", "five days"]),
            ("90", ["> 0.95 *", "> 0.6 *"], ["3 days", "five days"]),
            ("50", ["> 0.95 *", "> 0.95 *"], ["16 days", "16 days"]),
        ] {
            let rules = rules_of(&["slo.commit_to_ack=2s", &format!("slo.target={target}")]);
            let (_, burning) = rules
                .split_once(RULES)
                .expect("the other rules are the same");
            let each = burning.split(ALERT).skip(1);
            for ((rule, share), gone) in each.zip(shares).zip(gone) {
                assert_eq!(rule.matches(share).count(), 2, "{target}: {rule}");
                assert!(rule.contains(&format!("is gone in {gone}\"")), "{rule}");
            }
        }
    }

    /// `UPDATE_DOCS=1` rewrites the file, which the tests of the rules read.
    #[test]
    fn rules_of_an_objective_are_those_that_are_tested() {
        let all = rules_of(&["slo.commit_to_ack=2s", "slo.target=99.9"]);
        let (_, burning) = all.split_once(RULES).expect("the other rules are the same");
        assert!(burning.contains("> 0.0144 * increase"), "{burning}");
        let expected = format!(
            "# The rules that `walrelay alerts` adds for [slo] commit_to_ack = \"2s\", target = 99.9.\n\
             groups:\n  - name: walrelay-slo\n    rules:\n{burning}"
        );
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../deploy/prometheus/slo.yml"
        );
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &expected).expect("the file is written");
        }
        assert_eq!(std::fs::read_to_string(path).expect("the file"), expected);
    }
}
