//! The tests by promise of docs/PROOF.md, generated from [`PROMISES`].

use std::fmt::Write as _;
use std::fs;

use super::{root, text};

const DOCUMENT: &str = "docs/PROOF.md";
const BEGIN: &str = "<!-- proof -->\n";
const END: &str = "<!-- end of proof -->";
const WIDTH: usize = 120;

struct Promise {
    name: &'static str,
    /// What is shown, and the tests that show it.
    claims: &'static [(&'static str, &'static [&'static str])],
}

const PROMISES: &[Promise] = &[
    Promise {
        name: "G1 No loss",
        claims: &[
            (
                "`confirmed_flush_lsn` never exceeds what the broker acknowledged, while a broker is killed under load",
                &["tests/e2e/confirming.rs::never_runs_ahead_of_the_broker"],
            ),
            (
                "the same in any order of frames, acknowledgements, failures, schemas and crashes (property tests)",
                &[
                    "crates/relay/tests/machine.rs::no_order_of_events_confirms_early_or_loses",
                    "crates/checkpoint/tests/model.rs::nothing_is_confirmed_early_whatever_happens",
                ],
            ),
            (
                "the same in every order, by exhaustive search of short logs (ADR 9)",
                &[
                    "crates/relay/tests/model/main.rs::of_a_short_log_with_two_faults_keeps_the_promises",
                    "crates/relay/tests/model/main.rs::of_one_key_with_two_faults_keeps_the_promises",
                    "crates/relay/tests/model/main.rs::of_a_longer_log_with_one_fault_keeps_the_promises",
                ],
            ),
            (
                "the search finds ten planted mistakes",
                &[
                    "crates/relay/tests/model/main.rs::finds_what_confirms_early",
                    "crates/relay/tests/model/main.rs::finds_what_reorders",
                    "crates/relay/tests/model/main.rs::finds_what_repeats",
                ],
            ),
            (
                "the same between the threads that share the acknowledgements (loom)",
                &[
                    "crates/checkpoint/tests/loom.rs::nothing_is_confirmed_early_and_nothing_is_lost",
                ],
            ),
            (
                "100,000 rows of 8 writers: every committed row arrives, no rolled-back row does",
                &[
                    "tests/e2e/history.rs::of_100_000_rows_on_postgres_15",
                    "tests/e2e/history.rs::of_100_000_rows_on_postgres_18",
                ],
            ),
            (
                "messages of `outbox.emit` are promised what rows are, through SIGKILL",
                &[
                    "tests/e2e/emitting.rs::of_20_000_events_half_of_them_rows_on_postgres_15",
                    "tests/e2e/emitting.rs::of_20_000_events_half_of_them_rows_on_postgres_18",
                    "crates/relay/tests/messages.rs::outside_of_transactions_are_told",
                ],
            ),
            (
                "what was committed while no relay ran arrives",
                &["tests/e2e/history.rs::of_a_backlog"],
            ),
            (
                "the judge of the measured faults",
                &["tests/faults/context.rs::judge_rows"],
            ),
            (
                "SIGKILL at random moments, and after each durable step",
                &[
                    "tests/faults/process.rs::sigkill",
                    "tests/faults/process.rs::failpoints",
                    "tests/e2e/crashes.rs::by_sigkill_lose_nothing",
                ],
            ),
            (
                "SIGSTOP, a full log device, no file descriptor left, a clock that jumps",
                &[
                    "tests/faults/process.rs::suspended",
                    "tests/faults/process.rs::log_disk_full",
                    "tests/faults/process.rs::out_of_descriptors",
                    "tests/faults/process.rs::clock_jumps",
                ],
            ),
            (
                "two relays on one slot: the second takes over",
                &[
                    "tests/faults/takeover.rs::sigkill",
                    "tests/faults/takeover.rs::sigterm",
                    "tests/faults/takeover.rs::vanished",
                ],
            ),
            (
                "two relays lose the slot to each other 100 times (ADR 19)",
                &["tests/faults/handover.rs::in_turns"],
            ),
            (
                "a standby whose slot the relay reads is promoted under the stream",
                &["tests/faults/failover.rs::promoted_under_the_stream"],
            ),
            (
                "a dead broker, also for longer than `wal_sender_timeout`",
                &[
                    "tests/e2e/confirming.rs::never_runs_ahead_of_the_broker",
                    "tests/e2e/confirming.rs::goes_on_when_the_broker_is_back",
                ],
            ),
            (
                "a cluster that answers for a moment that it has no brokers (ADR 17)",
                &[
                    "crates/kafka-sink/src/producer/sink/tests/brokers.rs::a_cluster_that_has_no_brokers_for_a_moment_is_found_again",
                ],
            ),
            (
                "a schema registry that is away, or lacks a schema: the event waits, nothing behind it is sent",
                &[
                    "tests/e2e/registry.rs::avro_values_wait_for_a_registry_that_is_away",
                    "tests/e2e/registry.rs::what_comes_before_a_missing_schema_is_confirmed",
                ],
            ),
            (
                "restarts of Postgres, terminated walsenders",
                &["tests/e2e/crashes.rs::of_postgres_are_survived"],
            ),
            (
                "a network to Postgres that resets in mid-frame, cuts, is half-open or silent",
                &[
                    "tests/faults/network.rs::postgres_reset_in_frame",
                    "tests/faults/network.rs::postgres_half_open",
                    "tests/faults/network.rs::postgres_forgotten",
                    "tests/e2e/crashes.rs::of_the_network_are_survived",
                ],
            ),
            (
                "a network to Kafka that cuts, resets and stalls; errors at random of a mock cluster",
                &[
                    "tests/faults/network.rs::kafka_cut",
                    "tests/faults/network.rs::kafka_reset_in_frame",
                    "tests/faults/network.rs::kafka_stalled",
                    "crates/kafka-sink/src/producer/sink/tests/order.rs::through_brokers_that_fail_at_random",
                    "crates/kafka-sink/src/producer/sink/tests/order.rs::what_librdkafka_only_infers_to_be_delivered_is_reported_as_failed",
                ],
            ),
            (
                "three brokers: killed, hanging, restarted, below `min.insync.replicas`, one partition down",
                &[
                    "tests/faults/kafka_cluster.rs::leader_killed",
                    "tests/faults/kafka_cluster.rs::leader_hangs",
                    "tests/faults/kafka_cluster.rs::two_killed",
                    "tests/faults/kafka_cluster.rs::rolling_restart",
                    "tests/faults/kafka_cluster.rs::partition_down",
                ],
            ),
            (
                "failover to a standby with a copy of the slot (Postgres 17 and 18)",
                &[
                    "tests/faults/failover.rs::synced",
                    "tests/faults/failover.rs::moved_address",
                    "tests/faults/failover.rs::relay_too",
                ],
            ),
            (
                "failover to a standby that lags: everything that the new primary has arrives",
                &["tests/faults/failover.rs::diverged"],
            ),
            (
                "failover to a standby without a copy of the slot: the relay stops and makes no slot",
                &["tests/faults/failover.rs::without_slot"],
            ),
            (
                "a slot that is lost stops the relay with the range; warned of before",
                &[
                    "tests/e2e/docs.rs::way_out_when_the_slot_is_lost",
                    "tests/e2e/slots.rs::warned_of_before_it_is_lost_on_15",
                    "tests/e2e/slots.rs::warned_of_before_it_is_lost_on_18",
                    "tests/e2e/slots.rs::lost_by_idleness_is_noticed",
                ],
            ),
            (
                "a slot that is dropped under a relay, or while none ran, is not silently made anew",
                &[
                    "tests/e2e/crashes.rs::of_the_slot_stop_the_relay",
                    "tests/e2e/slots.rs::dropped_under_a_relay_is_not_made_anew",
                    "tests/e2e/slots.rs::dropped_while_no_relay_ran_is_not_made_anew",
                ],
            ),
            (
                "a slot that was advanced or made anew is noticed; with a `state_file` also at a start",
                &[
                    "tests/e2e/slots.rs::made_anew_under_a_relay_is_noticed",
                    "tests/e2e/slots.rs::advanced_under_a_relay_is_noticed",
                    "tests/e2e/slots.rs::moved_while_no_relay_ran_is_noticed_with_a_state_file",
                ],
            ),
            (
                "another cluster at the address, or one restored from an older state, is noticed",
                &[
                    "tests/e2e/slots.rs::of_another_cluster_is_noticed",
                    "tests/e2e/crashes.rs::of_the_servers_log_stop_the_relay",
                    "tests/e2e/slots.rs::of_a_server_that_went_back_is_noticed_with_a_state_file",
                ],
            ),
            (
                "a promoted standby must continue what was relayed: the rule",
                &[
                    "crates/relay/src/pipeline/continuity.rs::a_promotion_continues_up_to_where_the_timelines_part",
                    "crates/relay/src/pipeline/continuity.rs::a_timeline_that_does_not_continue_the_old_one_is_another_log",
                ],
            ),
            (
                "the slot never stands beyond the `state_file`",
                &[
                    "tests/e2e/slots.rs::never_stands_beyond_the_state_file",
                    "tests/e2e/slots.rs::is_not_moved_while_the_state_file_cannot_be_written",
                ],
            ),
            (
                "a publication that is dropped stops the relay at the next row of the outbox",
                &[
                    "tests/e2e/docs.rs::way_out_when_the_publication_is_gone_on_15",
                    "tests/e2e/docs.rs::way_out_when_the_publication_is_gone_on_18",
                ],
            ),
            (
                "a table that leaves the publication is noticed within ten seconds, also at 250 ms each way; looks delay no record",
                &[
                    "tests/e2e/crashes.rs::of_the_publications_table_stop_the_relay",
                    "tests/faults/distance.rs::looks",
                ],
            ),
            (
                "a message of Postgres that cannot be read stops the relay",
                &[
                    "crates/pgoutput/tests/it/hostile.rs::tags_of_other_protocol_versions_and_of_none",
                    "crates/walsender/tests/it/stream.rs::what_is_not_the_protocol_stops_the_stream",
                ],
            ),
        ],
    },
    Promise {
        name: "G2 Order",
        claims: &[
            (
                "first deliveries of a key come in commit order; every test that calls the checker, for one",
                &["tests/e2e/history.rs::of_100_000_rows_on_postgres_15"],
            ),
            (
                "the same under errors of the broker",
                &[
                    "crates/kafka-sink/src/producer/sink/tests/order.rs::a_request_that_is_repeated_is_neither_lost_nor_overtaken",
                    "crates/kafka-sink/src/producer/sink/tests/order.rs::nothing_follows_a_record_that_was_refused_for_good",
                    "tests/e2e/poison.rs::refused_by_the_broker_is_not_overtaken",
                ],
            ),
            (
                "the same with several requests in flight to a broker (ADR 21)",
                &[
                    "crates/kafka-sink/src/producer/sink/tests/several.rs::a_first_request_that_is_repeated_is_neither_lost_nor_overtaken",
                    "crates/kafka-sink/src/producer/sink/tests/several.rs::a_record_is_alone_on_its_way_to_a_partition_that_is_not_open",
                    "crates/kafka-sink/src/producer/sink/tests/several.rs::nothing_follows_a_first_record_that_is_refused",
                    "crates/kafka-sink/src/producer/sink/tests/several.rs::closing_sends_what_is_held_back",
                    "crates/kafka-sink/src/producer/sink/tests/modes.rs::keys_keep_their_order_through_modes_and_hold_queues",
                    "tests/e2e/modes.rs::a_backlog_with_timestamps_of_long_ago_is_drained_in_full_requests",
                    "tests/faults/network.rs::kafka_distant",
                ],
            ),
            (
                "the same across a change of the producer mode, which repeats nothing (ADR 13, ADR 21)",
                &[
                    "tests/e2e/modes.rs::change_with_the_load_and_keep_the_history",
                    "crates/kafka-sink/src/producer/sink/tests/modes.rs::changing_mode_keeps_order_and_repeats_nothing",
                    "crates/kafka-sink/src/producer/sink/tests/modes.rs::a_failure_in_either_mode_ends_both",
                    "crates/kafka-sink/src/producer/hold_queues.rs::nobody_is_passed_or_forgotten",
                ],
            ),
            (
                "a partition that is down holds back only its own records until the window is full",
                &[
                    "crates/kafka-sink/src/producer/sink/tests/modes.rs::a_partition_that_is_down_holds_up_no_change",
                    "tests/faults/kafka_cluster.rs::partition_down_in_bulk",
                ],
            ),
            (
                "a repeat starts at an earlier event of the key and goes on without a hole",
                &[
                    "tests/e2e/crashes.rs::of_postgres_are_survived",
                    "crates/relay/tests/machine.rs::no_order_of_events_confirms_early_or_loses",
                    "crates/relay/tests/model/main.rs::of_one_key_with_two_faults_keeps_the_promises",
                ],
            ),
            (
                "a relay that was displaced relays nothing more and purges its producer",
                &["tests/faults/handover.rs::displaced"],
            ),
            (
                "a key goes to the partition that Java's producer would choose",
                &["crates/kafka-sink/src/producer/sink/tests/mod.rs::keys_go_where_javas_client_puts_them"],
            ),
        ],
    },
    Promise {
        name: "G3 Duplicates",
        claims: &[
            (
                "none where nothing fails",
                &["tests/e2e/history.rs::of_100_000_rows_on_postgres_18"],
            ),
            (
                "none after SIGTERM, also in the middle of a large transaction",
                &[
                    "tests/e2e/crashes.rs::by_sigterm_repeat_nothing",
                    "tests/e2e/crashes.rs::by_sigterm_within_a_transaction_repeat_nothing",
                ],
            ),
            (
                "none when a broker is stopped in order and comes back",
                &["tests/e2e/confirming.rs::goes_on_when_the_broker_is_back"],
            ),
            (
                "never what the slot is past, nor what the sink was given whole",
                &[
                    "crates/relay/tests/model/main.rs::of_a_short_log_with_two_faults_keeps_the_promises",
                ],
            ),
            (
                "bounded after SIGKILL by what the slot still holds",
                &["tests/e2e/crashes.rs::by_sigkill_lose_nothing"],
            ),
            (
                "every record carries its event's id, the same in every repeat",
                &[
                    "tests/e2e/history.rs::of_a_backlog",
                    "crates/event-router/tests/it/routing.rs::a_row_becomes_a_record",
                ],
            ),
            (
                "with `position_header` its position too, which ascends per key in first deliveries",
                &[
                    "tests/e2e/position.rs::of_a_repeat_is_the_same_and_ascends_per_key",
                    "crates/event-router/tests/it/position.rs::every_route_has_it_as_its_last_header",
                ],
            ),
            ("a position is told to Postgres within 50 ms", &[]),
        ],
    },
    Promise {
        name: "G4 The primary",
        claims: &[
            (
                "an idle outbox does not pin WAL: 200 MB into another table, within 10 s, without heartbeats",
                &[
                    "tests/e2e/idle.rs::on_postgres_15",
                    "tests/e2e/idle.rs::on_postgres_18",
                ],
            ),
            (
                "feedback goes on while Kafka takes nothing",
                &["tests/e2e/confirming.rs::never_runs_ahead_of_the_broker"],
            ),
            (
                "memory stays within the formula of OPERATIONS.md",
                &[
                    "tests/e2e/large.rs::transaction_of_a_million_rows",
                    "tests/e2e/large.rs::row_of_64_megabytes",
                    "tests/e2e/large.rs::backlog_behind_a_stopped_broker",
                    "tests/e2e/large.rs::outbox_of_many_topics",
                    "tests/e2e/large.rs::full_window_of_small_rows",
                ],
            ),
            (
                "no table is read or written; LOGIN and REPLICATION are enough",
                &[
                    "tests/e2e/docs.rs::least_role_is_enough",
                    "tests/e2e/secure/role.rs::of_init_is_enough_and_reads_nothing_on_15",
                    "tests/e2e/secure/role.rs::of_init_is_enough_and_reads_nothing_on_18",
                ],
            ),
            (
                "WAL retention is announced before it is fatal",
                &[
                    "tests/e2e/slots.rs::warned_of_before_it_is_lost_on_15",
                    "tests/e2e/slots.rs::warned_of_before_it_is_lost_on_18",
                    "crates/walrelay/src/postgres/retention.rs::each_step_for_the_worse_is_said_once",
                ],
            ),
        ],
    },
    Promise {
        name: "G5 Poison",
        claims: &[
            (
                "an event that cannot be delivered stops the relay unless the policy says otherwise",
                &[
                    "tests/e2e/poison.rs::without_a_topic_to_go_to",
                    "tests/e2e/poison.rs::too_large_for_kafka",
                    "tests/e2e/poison.rs::with_a_name_no_topic_can_have",
                ],
            ),
            (
                "or it becomes a dead letter, or is skipped; everything else arrives in order",
                &[
                    "tests/e2e/dead_letters.rs::are_written_for_each_kind_of_poison",
                    "tests/e2e/dead_letters.rs::are_written_when_the_routing_column_is_gone",
                    "tests/e2e/dead_letters.rs::are_not_written_where_events_are_skipped",
                ],
            ),
            (
                "of a refused request only the record at fault is rejected (ADR 10)",
                &[
                    "tests/e2e/dead_letters.rs::are_written_for_each_kind_of_poison",
                    "crates/relay/src/poison/retry.rs::a_refused_request_is_taken_apart_before_anybody_is_rejected",
                ],
            ),
            (
                "a dead letter that its topic refuses rejects no event (ADR 22)",
                &[
                    "tests/e2e/dead_letters.rs::that_their_topic_refuses_stop_the_relay",
                    "tests/e2e/dead_letters.rs::without_their_topic_are_waited_for",
                    "crates/relay/src/poison/retry.rs::a_dead_letter_refused_for_good_rejects_no_event_and_stops_the_relay",
                    "crates/relay/src/poison/retry.rs::a_dead_letter_whose_refusal_may_pass_is_offered_alone_and_rejects_no_event_in_the_end",
                    "crates/relay/tests/dead_letters.rs::of_every_class_are_known_as_such_and_offered_again_after_a_refusal",
                ],
            ),
            (
                "what may pass is retried for `retry_for`, without repeating records of other topics",
                &[
                    "tests/e2e/secure/kafka.rs::a_topic_whose_creation_is_allowed_late",
                    "tests/e2e/dead_letters.rs::are_written_for_a_topic_that_does_not_appear",
                    "tests/e2e/dead_letters.rs::are_not_written_unless_asked_for",
                ],
            ),
            (
                "no fault of a broker rejects an event",
                &[
                    "crates/kafka-sink/src/producer/outcome.rs::only_what_is_the_records_fault_is_poison",
                    "crates/relay/src/poison/retry.rs::a_broker_that_is_away_rejects_nobody",
                ],
            ),
            (
                "a missing schema or a value that does not fit follows the policy; a later schema is asked for",
                &[
                    "tests/e2e/registry.rs::events_without_a_schema_or_that_do_not_fit_go_where_the_policy_says",
                    "tests/e2e/registry.rs::what_is_not_to_be_had_stops_the_relay_in_time",
                    "tests/e2e/registry.rs::a_later_schema_is_asked_for_by_what_does_not_fit",
                ],
            ),
            (
                "with `park_key` order per key survives a dead letter, also through SIGKILL",
                &[
                    "tests/e2e/dlq.rs::a_parked_key_flows_again_in_order",
                    "tests/e2e/dead_letters.rs::park_what_follows_of_their_key",
                ],
            ),
            (
                "a dead letter that is written again has the same identity",
                &["tests/e2e/dead_letters.rs::keep_their_identity_through_a_crash"],
            ),
            (
                "UPDATE, DELETE, TRUNCATE and messages of other prefixes are ignored and counted",
                &["tests/e2e/poison.rs::updates_deletes_and_truncates_are_none"],
            ),
        ],
    },
    Promise {
        name: "G6 Errors and secrets",
        claims: &[
            (
                "each error has a name, a remedy and an exit code",
                &[
                    "tests/e2e/docs/texts.rs::errors_of_the_list_are_those_of_the_code",
                    "tests/e2e/errors.rs::of_access",
                    "tests/e2e/errors.rs::of_the_database",
                    "tests/e2e/errors.rs::of_the_configuration",
                ],
            ),
            (
                "what may pass is retried, and logged",
                &[
                    "tests/e2e/errors.rs::of_servers_that_are_not_there_are_retried",
                    "tests/e2e/crashes.rs::of_one_relay_let_another_take_over",
                ],
            ),
            (
                "what an unacknowledged record waits for is logged within two seconds",
                &[
                    "tests/e2e/topics.rs::that_are_missing_are_named_at_once",
                    "tests/e2e/topics.rs::are_not_blamed_for_a_broker_that_is_away",
                    "crates/kafka-sink/src/producer/obstacle.rs::what_is_missing_is_named_and_what_needs_somebody_comes_first",
                ],
            ),
            (
                "a stop ends with 0 only when everything enqueued is confirmed, else with 75 and the reason",
                &["tests/e2e/topics.rs::that_are_missing_end_a_stop_with_a_reason"],
            ),
            (
                "no password and no row value in errors, logs and debug output",
                &[
                    "tests/e2e/commands.rs::a_newcomer_needs",
                    "tests/e2e/poison.rs::too_large_for_kafka",
                    "crates/event-router/tests/it/routing.rs::errors_and_debug_show_no_values",
                    "crates/kafka-sink/src/config/tests.rs::secrets_are_nowhere",
                    "crates/walrelay/src/config/tests.rs::values_from_the_environment_are_not_shown",
                    "tests/e2e/secure/secrets.rs::are_in_no_output",
                ],
            ),
            (
                "TLS and every login of Postgres and Kafka work; tokens are renewed",
                &[
                    "tests/e2e/secure/postgres.rs::events_arrive_by_each_login",
                    "tests/e2e/secure/kafka.rs::events_arrive_by_each_login",
                    "tests/e2e/secure/tokens.rs::tokens_are_renewed_before_their_end",
                ],
            ),
            (
                "a wrong certificate is refused with the reason; nothing is sent in clear where TLS is demanded",
                &[
                    "tests/e2e/secure/postgres.rs::what_is_wrong_is_told_apart",
                    "tests/e2e/secure/kafka.rs::what_is_wrong_is_told_apart",
                    "tests/e2e/secure/postgres.rs::nothing_is_sent_in_clear_to_a_server_without_tls",
                    "tests/e2e/secure/kafka.rs::nothing_is_sent_in_clear_to_a_broker_without_tls",
                ],
            ),
            (
                "credentials that are repaired while the relay runs are used, nothing is lost",
                &[
                    "tests/e2e/secure/tokens.rs::what_makes_tokens_is_mended_while_the_relay_runs",
                    "tests/e2e/secure/kafka.rs::access_that_is_granted_late",
                ],
            ),
        ],
    },
];

/// One list item: the claim, then its tests, wrapped.
fn item(claim: &str, tests: &[&str]) -> String {
    let shown = if tests.is_empty() {
        "**no test**".to_owned()
    } else {
        tests
            .iter()
            .map(|test| format!("`{test}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut lines = String::from("-");
    let mut column = 1;
    for word in format!("{claim}: {shown}").split(' ') {
        let length = word.chars().count();
        if column + 1 + length > WIDTH && column > 2 {
            lines.push_str("\n ");
            column = 1;
        }
        lines.push(' ');
        lines.push_str(word);
        column += 1 + length;
    }
    lines.push('\n');
    lines
}

fn generated() -> String {
    let mut page = String::new();
    for promise in PROMISES {
        let _ = writeln!(page, "### {}\n", promise.name);
        for (claim, tests) in promise.claims {
            page.push_str(&item(claim, tests));
        }
        page.push('\n');
    }
    page
}

/// `UPDATE_DOCS=1 cargo test -p walrelay --test e2e docs::proof` rewrites the list.
#[test]
fn tests_by_promise_are_those_of_the_list() {
    let document = text(DOCUMENT);
    let (before, rest) = document.split_once(BEGIN).expect("the mark of the list");
    let (shown, after) = rest.split_once(END).expect("the end of the list");
    let generated = generated();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = format!("{before}{BEGIN}{generated}{END}{after}");
        fs::write(root().join(DOCUMENT), page).expect("written");
        return;
    }
    assert_eq!(shown, generated, "rewrite {DOCUMENT} with UPDATE_DOCS=1");
}

#[test]
fn tests_of_the_promises_exist() {
    for promise in PROMISES {
        for test in promise.claims.iter().flat_map(|(_, tests)| *tests) {
            let (path, name) = test.split_once("::").expect("a file and a name");
            assert!(
                text(path).contains(&format!("fn {name}(")),
                "no test {test}"
            );
        }
    }
}
