-- For the database of a consumer: the events that its effects are there of. The consumer inserts
-- here in the transaction of the effect, and skips the event if nothing was inserted
-- (docs/start/pattern.md).
CREATE TABLE IF NOT EXISTS public.processed_events (
    consumer     text NOT NULL, -- each consumer of the same events has rows of its own
    event_id     text NOT NULL, -- the header "id" of the record
    processed_at timestamptz NOT NULL DEFAULT now(), -- decides when the row may be deleted
    PRIMARY KEY (consumer, event_id)
);

-- For the deletion of old rows: DELETE FROM public.processed_events WHERE processed_at < now() -
-- interval '30 days'. The age must exceed that of the oldest event that can still be sent again.
CREATE INDEX IF NOT EXISTS processed_events_age ON public.processed_events USING brin (processed_at);
