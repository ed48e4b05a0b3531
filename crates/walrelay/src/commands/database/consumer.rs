//! `walrelay init --consumer`: the SQL for the database of a consumer, and for the ids of services.
//!
//! It is printed only: the database of a consumer is in no configuration of the relay.

/// The table of processed events.
const PROCESSED_EVENTS: &str = r#"-- For the database of a consumer: the events that its effects are there of. The consumer inserts
-- here in the transaction of the effect, and skips the event if nothing was inserted
-- (docs/PATTERN.md).
CREATE TABLE IF NOT EXISTS public.processed_events (
    consumer     text NOT NULL, -- each consumer of the same events has rows of its own
    event_id     text NOT NULL, -- the header "id" of the record
    processed_at timestamptz NOT NULL DEFAULT now(), -- decides when the row may be deleted
    PRIMARY KEY (consumer, event_id)
);

-- For the deletion of old rows: DELETE FROM public.processed_events WHERE processed_at < now() -
-- interval '30 days'. The age must exceed that of the oldest event that can still be sent again.
CREATE INDEX IF NOT EXISTS processed_events_age ON public.processed_events USING brin (processed_at);
"#;

/// The function of time-ordered ids.
const UUIDV7: &str = r"-- For services that write events: ids that rise in time (RFC 9562, version 7), so that the index of
-- the outbox grows at its end. Postgres 18 has such a function; before, 48 bits are milliseconds, 12
-- bits their fraction, 62 bits are random. In a session each id is greater than the last one. Ids
-- of concurrent transactions do not rise in the order of their commits.
CREATE SCHEMA IF NOT EXISTS outbox;

DO $do$ BEGIN
IF pg_catalog.current_setting('server_version_num')::int >= 180000 THEN
    CREATE OR REPLACE FUNCTION outbox.uuidv7() RETURNS uuid LANGUAGE sql VOLATILE AS
        'SELECT pg_catalog.uuidv7()';
ELSE
    CREATE OR REPLACE FUNCTION outbox.uuidv7() RETURNS uuid LANGUAGE plpgsql VOLATILE AS $uuidv7$
    DECLARE
        last CONSTANT bigint := nullif(pg_catalog.current_setting('outbox.uuidv7_last', true), '');
        -- Microseconds since 1970. greatest() passes over NULL.
        now CONSTANT bigint := greatest(last + 1,
            floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint);
    BEGIN
        PERFORM pg_catalog.set_config('outbox.uuidv7_last', now::text, false);
        -- The last 16 digits of a random UUID begin with the same variant.
        RETURN (pg_catalog.lpad(pg_catalog.to_hex(now / 1000), 12, '0') || '7'
            || pg_catalog.lpad(pg_catalog.to_hex(now % 1000 * 4096 / 1000), 3, '0')
            || pg_catalog.right(pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''), 16)
            )::uuid;
    END
    $uuidv7$;
END IF;
END $do$;

-- Whoever may reach the schema may make ids.
GRANT USAGE ON SCHEMA outbox TO PUBLIC;
";

/// The whole script; it can be run again.
pub(super) fn script() -> String {
    format!("{PROCESSED_EVENTS}\n{UUIDV7}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_are_what_is_printed_for_a_consumer() {
        let table = include_str!("../../../../../migrations/0004_processed_events.sql");
        let ids = include_str!("../../../../../migrations/0005_uuidv7.sql");
        assert_eq!((PROCESSED_EVENTS, UUIDV7), (table, ids));
        assert!(script().contains("now() -\n-- interval '30 days'"));
    }
}
