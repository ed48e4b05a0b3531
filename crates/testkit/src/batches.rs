//! Events in batches: triggers that write the rows of a table into the log by `outbox.emit_all`.

use crate::Db;

/// Makes each row of `table` an event of its transaction, in the order of the inserts: in messages of up to
/// four events, in single messages, or as rows of `rows`, which is created. The relay reads `rows` and the
/// messages, and the check reads `table`.
#[track_caller]
pub fn emit_in_batches(db: &Db, table: &str, rows: &str) {
    db.batch(include_str!("../../../migrations/0002_emit.sql"));
    db.batch(include_str!("../../../migrations/0006_emit_all.sql"));
    db.batch(&format!(
        "CREATE TABLE {rows} (LIKE {table} INCLUDING ALL);
         CREATE TABLE pending (seq bigserial PRIMARY KEY, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
             event jsonb NOT NULL);
         CREATE INDEX ON pending (xid);
         CREATE FUNCTION collect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.pending (event) VALUES (jsonb_build_object('id', NEW.id,
                 'aggregate', NEW.aggregatetype, 'key', NEW.aggregateid, 'type', NEW.type, 'payload', NEW.payload));
             RETURN NULL;
         END $$;
         CREATE TRIGGER collect AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION collect();
         CREATE FUNCTION emit_pending() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE part record;
         BEGIN
             FOR part IN
                 WITH mine AS (DELETE FROM public.pending WHERE xid = pg_current_xact_id() RETURNING seq, event),
                     parts AS (SELECT *, (row_number() OVER (ORDER BY seq) - 1) / 4 AS part FROM mine)
                 SELECT jsonb_agg(event ORDER BY seq) AS events,
                     get_byte(uuid_send(((jsonb_agg(event ORDER BY seq))->0->>'id')::uuid), 15) % 4 AS kind
                 FROM parts GROUP BY parts.part ORDER BY parts.part
             LOOP
                 IF part.kind = 0 THEN
                     INSERT INTO {rows} (id, aggregatetype, aggregateid, type, payload)
                     SELECT (e->>'id')::uuid, e->>'aggregate', e->>'key', e->>'type', e->'payload'
                     FROM jsonb_array_elements(part.events) WITH ORDINALITY AS of(e, number) ORDER BY number;
                 ELSIF part.kind = 1 THEN
                     PERFORM outbox.emit(e->>'aggregate', e->>'key', e->'payload', type => e->>'type',
                         id => (e->>'id')::uuid)
                     FROM (SELECT e FROM jsonb_array_elements(part.events) WITH ORDINALITY AS of(e, number)
                           ORDER BY number) AS ordered;
                 ELSE
                     PERFORM outbox.emit_all(part.events);
                 END IF;
             END LOOP;
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER emit AFTER INSERT ON pending DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION emit_pending();"
    ));
}
