-- Makes one of every message that pgoutput sends under protocol version 1, then prints the bodies.
-- How it was run, and what the columns of the output mean: README.md in this folder.
\set ON_ERROR_STOP 1
\set QUIET 1
\pset format unaligned
\pset tuples_only on

SET client_min_messages = error;
CREATE TYPE mood AS ENUM ('calm', 'cross');
CREATE TYPE pg_catalog.walrelay_mood AS ENUM ('calm', 'cross');
CREATE TABLE outbox (
    id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid varchar(40) NOT NULL,
    type text NOT NULL, payload jsonb, created_at timestamptz(3) NOT NULL, note text
);
CREATE TABLE toasted (id int PRIMARY KEY, mood mood, builtin pg_catalog.walrelay_mood, n int, big text);
ALTER TABLE toasted ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE whole (a int, b text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE indexed (a int NOT NULL, b text, "Zoë ☃" bytea);
CREATE UNIQUE INDEX indexed_a ON indexed (a);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_a;
CREATE TABLE nothing (a int, b numeric(10, 2));
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE empty ();
CREATE TABLE pg_catalog.walrelay_catalog (a int);
CREATE PUBLICATION p FOR TABLE outbox, toasted, whole, indexed, empty, pg_catalog.walrelay_catalog;
CREATE PUBLICATION inserts FOR TABLE nothing WITH (publish = 'insert');
SELECT 'slot' FROM pg_create_logical_replication_slot('s', 'pgoutput') \g /dev/null

INSERT INTO outbox VALUES
    ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', 'Order', 'o-17', 'OrderPlaced', '{"total": 12.5}',
     '2026-01-02 03:04:05.678+00', NULL);

BEGIN;
INSERT INTO toasted VALUES (1, 'calm', 'cross', 1, repeat('x', 2100));
UPDATE toasted SET n = 2 WHERE id = 1;
UPDATE toasted SET id = 3 WHERE id = 1;
DELETE FROM toasted WHERE id = 3;
COMMIT;

BEGIN;
INSERT INTO whole VALUES (1, 'one'), (2, NULL);
UPDATE whole SET b = 'uno' WHERE a = 1;
DELETE FROM whole WHERE a = 2;
COMMIT;

BEGIN;
INSERT INTO indexed VALUES (1, '', '\x00ff');
UPDATE indexed SET a = 2;
DELETE FROM indexed;
COMMIT;

INSERT INTO nothing VALUES (-1, 3.10);
INSERT INTO empty DEFAULT VALUES;
INSERT INTO pg_catalog.walrelay_catalog VALUES (7);

TRUNCATE outbox;
TRUNCATE whole, indexed RESTART IDENTITY CASCADE;

SELECT pg_logical_emit_message(true, 'walrelay', 'in a transaction') \g /dev/null
SELECT pg_logical_emit_message(false, 'walrelay', decode('00ff', 'hex')) \g /dev/null
SELECT pg_logical_emit_message(true, '', '') \g /dev/null

SELECT pg_replication_origin_create('elsewhere') \g /dev/null
SELECT pg_replication_origin_session_setup('elsewhere') \g /dev/null
BEGIN;
SELECT pg_replication_origin_xact_setup('16/B374D848', '2026-01-02 03:04:05+00') \g /dev/null
INSERT INTO whole VALUES (3, 'from elsewhere');
COMMIT;
SELECT pg_replication_origin_session_reset() \g /dev/null

SET client_encoding = 'UTF8';
SELECT 'text ' || encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,
    'proto_version', '1', 'publication_names', 'p,inserts', 'messages', 'true');
SELECT 'binary ' || encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,
    'proto_version', '1', 'publication_names', 'p,inserts', 'messages', 'true', 'binary', 'true')
    WHERE get_byte(data, 0) IN (ascii('I'), ascii('U'), ascii('D'));
SELECT pg_drop_replication_slot('s') \g /dev/null
