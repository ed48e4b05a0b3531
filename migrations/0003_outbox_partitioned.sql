-- An outbox in partitions of one day each: walrelay creates the next ones, and drops confirmed ones
-- as a whole (docs/PRUNING.md). Comes after 0001_outbox.sql, in place of whose table it is used: drop
-- that one when nothing writes it. Needs tables = ["public.outbox_partitioned"] in [source], and keep
-- and partition = "24h" in [prune].
CREATE TABLE IF NOT EXISTS public.outbox_partitioned (
    id            uuid NOT NULL DEFAULT gen_random_uuid(), -- header "id": recognises a repeat
    aggregatetype text NOT NULL, -- topic outbox.event.<aggregatetype>
    aggregateid   text NOT NULL, -- key: order is kept per key
    type          text NOT NULL, -- what happened, for the consumers
    payload       jsonb,         -- value
    created_at    timestamptz NOT NULL DEFAULT now(), -- decides the partition
    PRIMARY KEY (created_at, id)
) PARTITION BY RANGE (created_at);

-- Today's partition and the next three, by the names that walrelay gives: midnight is that of UTC.
DO $do$
DECLARE
    day date;
BEGIN
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(0, 3) AS n LOOP
        EXECUTE format('CREATE TABLE IF NOT EXISTS public.%I PARTITION OF public.outbox_partitioned '
            'FOR VALUES FROM (%L) TO (%L)', 'outbox_partitioned_p' || to_char(day, 'YYYYMMDD'),
            day || ' 00:00:00+00', day + 1 || ' 00:00:00+00');
    END LOOP;
END $do$;

DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication_tables WHERE pubname = 'walrelay'
    AND schemaname = 'public' AND tablename = 'outbox_partitioned') THEN
    ALTER PUBLICATION walrelay ADD TABLE public.outbox_partitioned; END IF; END $do$;

-- Only an owner may attach and detach partitions: a role that owns this table and nothing else. Services
-- need INSERT on it.
DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outbox_owner') THEN
    CREATE ROLE outbox_owner NOLOGIN; END IF; END $do$;
GRANT USAGE, CREATE ON SCHEMA public TO outbox_owner;
DO $do$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT relid FROM pg_catalog.pg_partition_tree('public.outbox_partitioned') LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO outbox_owner', part);
    END LOOP;
END $do$;
GRANT outbox_owner TO walrelay;

-- What the slot carries of the outbox: only such rows are deleted.
CREATE SCHEMA IF NOT EXISTS walrelay_state;
CREATE TABLE IF NOT EXISTS walrelay_state.carried (
    slot    name, -- the relay's slot
    "table" text, -- an outbox table of it
    part    oid,  -- the table itself (0), or one of its parts
    state   text NOT NULL, -- the catalog rows that decide what is carried
    PRIMARY KEY (slot, "table", part)
);
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
GRANT SELECT ON walrelay_state.carried TO PUBLIC;
GRANT INSERT, UPDATE, DELETE ON walrelay_state.carried TO "walrelay";
