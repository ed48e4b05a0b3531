-- The schema walrelay_state as walrelay 0.1 makes it, with what it has stored. Test data: it stays as it is.

CREATE SCHEMA IF NOT EXISTS walrelay_state;
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
CREATE TABLE IF NOT EXISTS walrelay_state.unmarked (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot        name NOT NULL,        -- the relay's slot
    relation    oid NOT NULL,         -- the table or partition that the log names
    "table"     text[] NOT NULL,      -- schema and name of the outbox table
    key_columns text[] NOT NULL,
    row_columns text[] NOT NULL,      -- the columns that the hash covers
    xid         bigint NOT NULL,      -- the transaction that inserted the row; 0: a snapshot read it
    key         text[] NOT NULL,
    hash        text NOT NULL,        -- of the row as it was inserted
    since       timestamptz NOT NULL DEFAULT now()
);

-- Where the relay records that it has read the snapshot to its end.
CREATE SCHEMA IF NOT EXISTS walrelay_state;
CREATE SEQUENCE IF NOT EXISTS walrelay_state."snapshot:walrelay"; -- the position of the snapshot that was read
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
GRANT SELECT ON SEQUENCE walrelay_state."snapshot:walrelay" TO PUBLIC;

-- Where the relay notes what the slot has confirmed: a slot that something else moves or
-- recreates stops the next start.
CREATE SCHEMA IF NOT EXISTS walrelay_state;
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
CREATE SEQUENCE IF NOT EXISTS walrelay_state."position:walrelay"; -- what the slot has confirmed at most
GRANT SELECT ON SEQUENCE walrelay_state."position:walrelay" TO PUBLIC;
CREATE SEQUENCE IF NOT EXISTS walrelay_state."system:walrelay" MINVALUE -9223372036854775808; -- the cluster of that position
GRANT SELECT ON SEQUENCE walrelay_state."system:walrelay" TO PUBLIC;
CREATE SEQUENCE IF NOT EXISTS walrelay_state."publication:walrelay" MINVALUE -9223372036854775808; -- the row filters of the publication
GRANT SELECT ON SEQUENCE walrelay_state."publication:walrelay" TO PUBLIC;

-- The error with which a run ends: walrelay status and check show it while no relay runs.
CREATE SCHEMA IF NOT EXISTS walrelay_state;
GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;
CREATE TABLE IF NOT EXISTS walrelay_state.last_error (
    slot  name PRIMARY KEY, -- the relay's slot
    error text NOT NULL     -- the error with which its last run ended, as JSON
);

-- The account of sent rows.
CREATE SCHEMA IF NOT EXISTS walrelay_state;
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

-- The notes of the rolling bookmark.
CREATE TABLE IF NOT EXISTS walrelay_state.bookmark (slot name PRIMARY KEY, notes text NOT NULL);

-- What a relay has noted of its slot, and the error with which it has ended.
SELECT setval('walrelay_state."position:walrelay"', (confirmed_flush_lsn - '0/0')::bigint),
       setval('walrelay_state."snapshot:walrelay"', (confirmed_flush_lsn - '0/0')::bigint)
FROM pg_replication_slots WHERE slot_name = 'walrelay';
SELECT setval('walrelay_state."system:walrelay"', system_identifier) FROM pg_control_system();
INSERT INTO walrelay_state.accounts (slot, system, publication, through)
SELECT slot_name, system_identifier::text, 'walrelay', confirmed_flush_lsn
FROM pg_replication_slots, pg_control_system() WHERE slot_name = 'walrelay';
INSERT INTO walrelay_state.last_error
SELECT slot_name, format('{"at_ms":1767323045678,"id":"unroutable","exit_code":65,"finding":"a row of public.outbox '
    'has no topic","remedy":"what came before is confirmed","position":"%s"}', confirmed_flush_lsn)
FROM pg_replication_slots WHERE slot_name = 'walrelay';
