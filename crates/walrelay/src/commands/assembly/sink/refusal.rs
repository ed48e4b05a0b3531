//! Refuses configurations that ask for what their sink cannot do.

use walrelay_event_router::Placement;
use walrelay_failure::{Exit, Failure};
use walrelay_sink_kind::{Ability, SinkKind};

use crate::config::{PipelineConfig, RouterConfig};

/// Creates the failure that the sink lacks an ability.
pub(crate) fn refused(id: &'static str, sink: &dyn SinkKind, ability: Ability) -> Failure {
    let what = format!("the sink {} cannot {ability}", sink.name());
    Failure::new(id, Exit::Config, what)
}

/// Checks that the sink can do what the configuration asks for.
///
/// # Errors
/// The first ability that the sink lacks, and the key that asks for it.
pub(crate) fn check_abilities(config: &PipelineConfig, sink: &dyn SinkKind) -> Result<(), Failure> {
    let mut asked = asked(config).into_iter();
    match asked.find(|(ability, _)| !sink.can(*ability)) {
        None => Ok(()),
        Some((ability, key)) => Err(refused("sink-ability", sink, ability)
            .caused_by(format!("{key} asks for it"))
            .remedy(format!("change {key}, or choose another sink.kind"))),
    }
}

/// Returns the abilities that a configuration asks for, each with the key that asks.
fn asked(config: &PipelineConfig) -> Vec<(Ability, &'static str)> {
    let of_router = match &config.router {
        RouterConfig::Debezium(debezium) => {
            let options = &debezium.options;
            let mut additional = options.additional.iter();
            [
                (
                    additional.any(|field| field.placement == Placement::Partition),
                    Ability::Partitions,
                    "[router.debezium] \"table.fields.additional.placement\"",
                ),
                (
                    options.event_timestamp.is_some(),
                    Ability::Timestamps,
                    "[router.debezium] \"table.field.event.timestamp\"",
                ),
                (
                    options.tombstone_on_empty,
                    Ability::Tombstones,
                    "[router.debezium] \"route.tombstone.on.empty.payload\"",
                ),
            ]
        }
        RouterConfig::Templates(templates) => [
            (
                templates.partition.is_some(),
                Ability::Partitions,
                "[router.route] partition",
            ),
            (
                templates.timestamp.is_some(),
                Ability::Timestamps,
                "[router.route] timestamp",
            ),
            (
                templates.key.is_none(),
                Ability::NullKeys,
                "[router.route] key",
            ),
        ],
    };
    // A relay that confirms nothing reads the same events again after a restart, and neither marks
    // nor deletes a row.
    let confirms = config.sink.confirms();
    // A row with an open dead letter is not marked and not deleted (ADR 37).
    let rows_stay = confirms && config.poison.writes_dead_letters();
    let prune = config.prune.as_ref();
    let others = [
        (
            confirms && config.poison.park_key,
            Ability::Parking,
            "[poison] park_key",
        ),
        (
            rows_stay && config.source.mark_sent.is_some(),
            Ability::DeadLetters,
            "[source] mark_sent together with dead letters",
        ),
        (
            rows_stay && prune.is_some_and(|prune| prune.keep.is_some()),
            Ability::DeadLetters,
            "[prune] keep together with dead letters",
        ),
    ];
    let asked = of_router.into_iter().chain(others);
    let asked = asked.filter(|(asks, ..)| *asks);
    asked.map(|(_, ability, key)| (ability, key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::assembly::sink::recording::Recording;

    fn config(more: &str) -> PipelineConfig {
        confirming(true, more)
    }

    fn confirming(confirm: bool, more: &str) -> PipelineConfig {
        let text = format!(
            "[source]\nurl = \"postgres://db/app\"\ntables = [\"a.b\"]\n\
             [sink]\nkind = \"stdout\"\nstdout.confirm = {confirm}\n{more}"
        );
        crate::config::Config::parse(&text, "walrelay.toml", &[], &|_| None)
            .unwrap()
            .pipeline
    }

    const CUSTOM: &str = "[router]\npreset = \"custom\"\n[router.route]\ntopic = \"t\"\n\
                          value = \"{payload}\"\n";
    const DEAD_LETTERS: &str = "[poison]\noversize = \"dead-letter\"\n";

    #[test]
    fn a_key_that_asks_for_what_the_sink_lacks_is_named() {
        assert!(check_abilities(&config(""), &Recording::default()).is_ok());
        let debezium = |option: &str| format!("[router.debezium]\n{option}\n");
        for (more, ability, key) in [
            (
                debezium("\"table.fields.additional.placement\" = \"p:partition\""),
                Ability::Partitions,
                "\"table.fields.additional.placement\"",
            ),
            (
                debezium("\"table.field.event.timestamp\" = \"at\""),
                Ability::Timestamps,
                "\"table.field.event.timestamp\"",
            ),
            (
                debezium("\"route.tombstone.on.empty.payload\" = true"),
                Ability::Tombstones,
                "\"route.tombstone.on.empty.payload\"",
            ),
            (
                format!("{CUSTOM}key = \"k\"\npartition = \"{{p}}\"\n"),
                Ability::Partitions,
                "[router.route] partition",
            ),
            (
                format!("{CUSTOM}key = \"k\"\ntimestamp = \"{{at}}\"\n"),
                Ability::Timestamps,
                "[router.route] timestamp",
            ),
            (
                format!("{CUSTOM}key = false\n"),
                Ability::NullKeys,
                "[router.route] key",
            ),
            (
                format!("{DEAD_LETTERS}park_key = true\n"),
                Ability::Parking,
                "[poison] park_key",
            ),
            (
                format!("{DEAD_LETTERS}[prune]\nkeep = \"24h\"\nbefore_slot = true\n"),
                Ability::DeadLetters,
                "[prune] keep",
            ),
        ] {
            let failure = check_abilities(&config(&more), &Recording::default()).expect_err(key);
            let what = format!("the sink recording cannot {ability}");
            assert_eq!((failure.exit, failure.what), (Exit::Config, what));
            let remedy = failure.remedy.unwrap();
            assert!(remedy.contains(key), "{remedy}");
        }
        assert!(check_abilities(&config(DEAD_LETTERS), &Recording::default()).is_ok());
        let parks = confirming(false, &format!("{DEAD_LETTERS}park_key = true\n"));
        assert!(check_abilities(&parks, &Recording::default()).is_ok());
    }
}
