-- The outbox: services insert here, in the transaction of their data.
CREATE TABLE IF NOT EXISTS "public"."outbox" (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(), -- header "id": recognises a repeat
    aggregatetype text NOT NULL, -- topic outbox.event.<aggregatetype>
    aggregateid   text NOT NULL, -- key: order is kept per key
    type          text NOT NULL, -- what happened, for the consumers
    payload       jsonb          -- value
);

-- What the relay sees: inserts of the outbox, nothing else.
DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = 'walrelay') THEN
    CREATE PUBLICATION "walrelay" FOR TABLE "public"."outbox"
        WITH (publish = 'insert', publish_via_partition_root = true); END IF; END $do$;

-- Who the relay is: may replicate, owns nothing, reads no table. Give it a password by
-- \password, or by what your service has.
DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'walrelay') THEN
    CREATE ROLE "walrelay" LOGIN REPLICATION; END IF; END $do$;

-- From here on Postgres keeps the log until the relay has confirmed it: last, and not
-- long before the relay is started.
SELECT pg_catalog.pg_create_logical_replication_slot('walrelay', 'pgoutput')
    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = 'walrelay');
