-- For services that write events: ids that rise in time (RFC 9562, version 7), so that the index of
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
