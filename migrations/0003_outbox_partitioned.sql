-- An outbox in partitions of one day each: walrelay creates the next ones, and drops confirmed ones
-- as a whole (docs/how-to/pruning.md). Comes after 0001_outbox.sql, in place of whose table it is used: drop
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

-- The error with which a run ends: walrelay status and check show it while no relay runs.
DO $do$ BEGIN IF pg_catalog.to_regnamespace('walrelay_state') IS NULL THEN
    CREATE SCHEMA walrelay_state; COMMENT ON SCHEMA walrelay_state IS 'walrelay_state version 1'; END IF; EXCEPTION
    WHEN duplicate_schema OR unique_violation THEN NULL; END $do$;
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
CREATE TABLE IF NOT EXISTS walrelay_state.last_error (
    slot  name PRIMARY KEY, -- the relay's slot
    error text NOT NULL     -- the error with which its last run ended, as JSON
);
GRANT SELECT, INSERT, UPDATE, DELETE ON walrelay_state.last_error TO "walrelay";

-- What a run notes for the next one: its start and end, and what the destination had and has lost.
DO $do$ BEGIN IF pg_catalog.to_regnamespace('walrelay_state') IS NULL THEN
    CREATE SCHEMA walrelay_state; COMMENT ON SCHEMA walrelay_state IS 'walrelay_state version 1'; END IF; EXCEPTION
    WHEN duplicate_schema OR unique_violation THEN NULL; END $do$;
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
CREATE TABLE IF NOT EXISTS walrelay_state.run (
    slot  name PRIMARY KEY, -- the relay's slot
    note  text NOT NULL     -- what its run notes of itself, as JSON
);
GRANT SELECT, INSERT, UPDATE, DELETE ON walrelay_state.run TO "walrelay";

-- The account of sent rows, and the note of the slot's position: only rows that were sent are deleted.
DO $do$ BEGIN IF pg_catalog.to_regnamespace('walrelay_state') IS NULL THEN
    CREATE SCHEMA walrelay_state; COMMENT ON SCHEMA walrelay_state IS 'walrelay_state version 1'; END IF; EXCEPTION
    WHEN duplicate_schema OR unique_violation THEN NULL; END $do$;
CREATE TABLE IF NOT EXISTS walrelay_state.account (
    slot          name,   -- the relay's slot
    relation      oid,    -- the table or partition that the log names
    columns       text[], -- the hashed columns, and that of the age
    bucket        bigint, -- ten minutes of the age, numbered since 1970
    rows          bigint NOT NULL,  -- acknowledged rows, and the sums of both halves of their hashes
    high          numeric NOT NULL,
    low           numeric NOT NULL,
    diverted      bigint NOT NULL,  -- the same of rows that became dead letters
    diverted_high numeric NOT NULL,
    diverted_low  numeric NOT NULL,
    diverted_to   text[], -- the topics or streams of these dead letters; empty: settled
    PRIMARY KEY (slot, relation, columns, bucket)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS walrelay_state.accounts (
    slot        name PRIMARY KEY,
    system      text NOT NULL,   -- the system identifier of the log
    publication name NOT NULL,
    through     pg_lsn NOT NULL, -- what is counted
    opening     uuid NOT NULL DEFAULT gen_random_uuid() -- the stream that counts: each one has another
) WITH (fillfactor = 50);
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
GRANT SELECT ON walrelay_state.account, walrelay_state.accounts TO PUBLIC;
GRANT INSERT, UPDATE, DELETE ON walrelay_state.account, walrelay_state.accounts TO "walrelay";
DO $do$ BEGIN IF pg_catalog.to_regnamespace('walrelay_state') IS NULL THEN
    CREATE SCHEMA walrelay_state; COMMENT ON SCHEMA walrelay_state IS 'walrelay_state version 1'; END IF; EXCEPTION
    WHEN duplicate_schema OR unique_violation THEN NULL; END $do$;
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
CREATE SEQUENCE IF NOT EXISTS walrelay_state."position:walrelay"; -- what the slot has confirmed at most
GRANT SELECT ON SEQUENCE walrelay_state."position:walrelay" TO PUBLIC;
GRANT UPDATE ON SEQUENCE walrelay_state."position:walrelay" TO "walrelay";
CREATE SEQUENCE IF NOT EXISTS walrelay_state."system:walrelay" MINVALUE -9223372036854775808; -- the cluster of that position
GRANT SELECT ON SEQUENCE walrelay_state."system:walrelay" TO PUBLIC;
GRANT UPDATE ON SEQUENCE walrelay_state."system:walrelay" TO "walrelay";
CREATE SEQUENCE IF NOT EXISTS walrelay_state."publication:walrelay" MINVALUE -9223372036854775808; -- the row filters of the publication
GRANT SELECT ON SEQUENCE walrelay_state."publication:walrelay" TO PUBLIC;
GRANT UPDATE ON SEQUENCE walrelay_state."publication:walrelay" TO "walrelay";
CREATE SEQUENCE IF NOT EXISTS walrelay_state."altered:walrelay"; -- the version of the publication's row
GRANT SELECT ON SEQUENCE walrelay_state."altered:walrelay" TO PUBLIC;
GRANT UPDATE ON SEQUENCE walrelay_state."altered:walrelay" TO "walrelay";
CREATE SEQUENCE IF NOT EXISTS walrelay_state."sink:walrelay"; -- the cluster of the sink, as a number
GRANT SELECT ON SEQUENCE walrelay_state."sink:walrelay" TO PUBLIC;
GRANT UPDATE ON SEQUENCE walrelay_state."sink:walrelay" TO "walrelay";
