-- An outbox without a table: services call outbox.emit in the transaction of their data, and the
-- event goes into the log alone. Needs prefix = "outbox" in [source.messages].
CREATE SCHEMA IF NOT EXISTS outbox;

-- Never has rows. A move to another server closes it, and then outbox.emit fails.
CREATE TABLE IF NOT EXISTS outbox.emit_gate (CHECK (false));
GRANT INSERT ON outbox.emit_gate TO PUBLIC;

CREATE OR REPLACE FUNCTION outbox.emit(
    aggregate text  DEFAULT NULL, -- chooses the topic, as aggregatetype of a row does
    key       text  DEFAULT NULL, -- order is kept per key
    payload   jsonb DEFAULT NULL, -- value; NULL is a tombstone
    headers   jsonb DEFAULT NULL, -- more headers, {"name": "value"}
    type      text  DEFAULT NULL, -- what happened, for the consumers
    topic     text  DEFAULT NULL, -- the topic's own name, instead of an aggregate
    id        uuid  DEFAULT NULL  -- header "id", recognises a repeat; made where none is given
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $emit$
DECLARE
    event CONSTANT uuid := coalesce(emit.id, pg_catalog.gen_random_uuid());
BEGIN
    -- What the relay would refuse is refused here, where it can still be mended. A preset may route
    -- by the type alone.
    IF coalesce(emit.aggregate, emit.topic, emit.type) IS NULL OR emit.topic = ''
        OR emit.aggregate IS NOT NULL AND emit.topic IS NOT NULL
    THEN
        RAISE EXCEPTION 'outbox.emit needs an aggregate or a topic, not both' USING ERRCODE = '22023';
    END IF;
    IF emit.headers IS NOT NULL AND (pg_catalog.jsonb_typeof(emit.headers) <> 'object'
        OR pg_catalog.jsonb_path_exists(emit.headers, 'strict $.* ? (@.type() == "object" || @.type() == "array")'))
    THEN
        RAISE EXCEPTION 'outbox.emit: headers are an object of strings, numbers, booleans and nulls'
            USING ERRCODE = '22023';
    END IF;
    INSERT INTO outbox.emit_gate SELECT WHERE false;
    -- Transactional: it commits, or is gone, with the rest of the transaction.
    PERFORM pg_catalog.pg_logical_emit_message(true, 'outbox', pg_catalog.convert_to(
        pg_catalog.json_build_object(
            'id', event, 'topic', emit.topic, 'aggregate', emit.aggregate, 'key', emit.key,
            'type', emit.type, 'payload', emit.payload, 'headers', emit.headers
        )::text, 'UTF8'));
    RETURN event;
END
$emit$;

-- Whoever may reach the schema may emit. pg_logical_emit_message itself is everybody's already.
GRANT USAGE ON SCHEMA outbox TO PUBLIC;
