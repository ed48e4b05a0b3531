-- Never has rows. A move to another server closes it, and then the function fails.
CREATE TABLE IF NOT EXISTS outbox.emit_gate (CHECK (false));
GRANT INSERT ON outbox.emit_gate TO PUBLIC;

CREATE OR REPLACE FUNCTION outbox.emit_all(
    events jsonb -- an array of objects, whose members are the arguments of outbox.emit
) RETURNS uuid[] LANGUAGE plpgsql VOLATILE AS $emit_all$
DECLARE
    wrong bigint;
    batch text;
    ids   uuid[];
BEGIN
    IF pg_catalog.jsonb_typeof(emit_all.events) IS DISTINCT FROM 'array'
        OR pg_catalog.jsonb_array_length(emit_all.events) > 10000
    THEN
        RAISE EXCEPTION 'outbox.emit_all needs an array of at most 10000 events' USING ERRCODE = '22023';
    END IF;
    -- As in outbox.emit: what the relay would refuse is refused here, where it can still be mended.
    SELECT pg_catalog.min(e.number) FILTER (WHERE e.id IS NULL),
           pg_catalog.jsonb_agg(e.event || pg_catalog.jsonb_build_object('id', e.id) ORDER BY e.number)::text,
           pg_catalog.array_agg(e.id ORDER BY e.number)
    INTO wrong, batch, ids
    FROM (
        SELECT a.number, a.event, CASE
            WHEN pg_catalog.jsonb_typeof(a.event) <> 'object' THEN NULL
            WHEN a.event - '{id,topic,aggregate,key,type,payload,headers}'::text[] <> '{}' THEN NULL
            WHEN coalesce(a.event->>'aggregate', a.event->>'topic', a.event->>'type') IS NULL
                OR a.event->>'topic' = '' OR a.event->>'aggregate' IS NOT NULL AND a.event->>'topic' IS NOT NULL
                THEN NULL
            WHEN pg_catalog.jsonb_typeof(a.event->'topic') NOT IN ('string', 'null')
                OR pg_catalog.jsonb_typeof(a.event->'aggregate') NOT IN ('string', 'null')
                OR pg_catalog.jsonb_typeof(a.event->'type') NOT IN ('string', 'null')
                OR pg_catalog.jsonb_typeof(a.event->'key') NOT IN ('string', 'null')
                    AND (a.event->'key')::text !~ '^-?[0-9]+$'
                THEN NULL
            WHEN pg_catalog.jsonb_typeof(a.event->'headers') <> 'null'
                AND (pg_catalog.jsonb_typeof(a.event->'headers') <> 'object'
                    OR pg_catalog.jsonb_path_exists(a.event->'headers',
                        'strict $.* ? (@.type() == "object" || @.type() == "array")'))
                THEN NULL
            ELSE coalesce((a.event->>'id')::uuid, pg_catalog.gen_random_uuid())
            END AS id
        FROM pg_catalog.jsonb_array_elements(emit_all.events) WITH ORDINALITY AS a(event, number)
    ) AS e;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'outbox.emit_all: event % of the array is none', wrong USING ERRCODE = '22023',
            HINT = 'An event is an object with the members id, topic or aggregate, key, type, payload and headers, '
                'with the values that outbox.emit accepts.';
    END IF;
    -- One message, transactional as that of outbox.emit. No event, no message.
    IF batch IS NOT NULL THEN
        INSERT INTO outbox.emit_gate SELECT WHERE false;
        PERFORM pg_catalog.pg_logical_emit_message(true, {prefix}, pg_catalog.convert_to(batch, 'UTF8'));
    END IF;
    RETURN coalesce(ids, '{}');
END
$emit_all$;
