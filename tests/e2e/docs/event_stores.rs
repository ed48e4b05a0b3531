//! docs/start/presets.md: event stores, whose table of events is the outbox.

use super::libraries::{Library, relays};

/// `postgres/create_event_store_events_template.erb` of ruby_event_store-active_record.
#[test]
fn rails_event_store() {
    relays(
        17,
        &Library {
            name: "rails-event-store",
            table: "public.event_store_events",
            ddl: "CREATE TABLE event_store_events (id bigserial PRIMARY KEY, event_id uuid NOT NULL UNIQUE, \
                  event_type varchar NOT NULL, metadata jsonb, data jsonb NOT NULL, \
                  created_at timestamp(6) NOT NULL, valid_at timestamp(6))",
            write: r#"INSERT INTO event_store_events (event_id, event_type, metadata, data, created_at) VALUES
                ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', 'PREFIX::Placed',
                '{"types": {"data": {"order_id": ["Symbol", "String"]}}, "correlation_id": "c"}',
                '{"order_id": "o-7"}', now())"#,
            later: "SELECT 1",
            topic: "PREFIX.Placed",
            key: "o-7",
            value: r#"{"order_id": "o-7"}"#,
            headers: &[
                ("id", "018f5a3e-7c1d-7b1a-9c55-0123456789ab"),
                ("types", r#"{"data": {"order_id": ["Symbol", "String"]}}"#),
                ("correlation_id", "c"),
            ],
        },
    );
}

/// `EventsTable` of Marten, with the metadata `Headers`.
#[test]
fn marten() {
    relays(
        16,
        &Library {
            name: "marten",
            table: "public.mt_events",
            ddl: "CREATE TABLE mt_events (seq_id bigint NOT NULL PRIMARY KEY, id uuid NOT NULL, stream_id uuid, \
                  version bigint NOT NULL, data jsonb NOT NULL, type varchar(500) NOT NULL, \
                  timestamp timestamptz NOT NULL DEFAULT now(), tenant_id varchar DEFAULT '*DEFAULT*', \
                  mt_dotnet_type varchar, headers jsonb, is_archived boolean DEFAULT false)",
            write: r#"INSERT INTO mt_events (seq_id, id, stream_id, version, data, type, headers) VALUES
                (1, '018f5a3e-7c1d-7b1a-9c55-0123456789ab', '018f5a3e-7c1d-7b1a-9c55-000000000007', 1, '{"Total": 7}',
                'PREFIX', '{"tenant": "a"}')"#,
            later: "UPDATE mt_events SET is_archived = true",
            topic: "PREFIX",
            key: "018f5a3e-7c1d-7b1a-9c55-000000000007",
            value: r#"{"Total": 7}"#,
            headers: &[
                ("id", "018f5a3e-7c1d-7b1a-9c55-0123456789ab"),
                ("tenant", "a"),
            ],
        },
    );
}

/// `tables.ts` of emmett-postgresql.
#[test]
fn emmett() {
    relays(
        18,
        &Library {
            name: "emmett",
            table: "public.emt_messages",
            ddl: "CREATE SEQUENCE emt_global_message_position; CREATE TABLE emt_messages ( \
                  stream_position BIGINT NOT NULL, \
                  global_position BIGINT DEFAULT nextval('emt_global_message_position'), \
                  transaction_id XID8 NOT NULL, created TIMESTAMPTZ NOT NULL DEFAULT now(), \
                  is_archived BOOLEAN NOT NULL DEFAULT FALSE, message_kind VARCHAR(1) NOT NULL DEFAULT 'E', \
                  stream_id TEXT NOT NULL, partition TEXT NOT NULL DEFAULT 'emt:default', \
                  message_schema_version TEXT NOT NULL, message_id TEXT NOT NULL, message_type TEXT NOT NULL, \
                  message_data JSONB NOT NULL, message_metadata JSONB NOT NULL, \
                  PRIMARY KEY (stream_id, stream_position, partition, is_archived)) PARTITION BY LIST (partition); \
                  CREATE TABLE emt_messages_emt_default PARTITION OF emt_messages FOR VALUES IN ('emt:default') \
                  PARTITION BY LIST (is_archived); \
                  CREATE TABLE emt_messages_emt_default_active PARTITION OF emt_messages_emt_default \
                  FOR VALUES IN (FALSE); \
                  CREATE TABLE emt_messages_emt_default_archived PARTITION OF emt_messages_emt_default \
                  FOR VALUES IN (TRUE)",
            write: r#"INSERT INTO emt_messages (stream_id, stream_position, message_data, message_metadata,
                message_schema_version, message_type, message_id, transaction_id) VALUES ('cart-7', 1, '{"total": 7}',
                '{"correlationId": "c"}', '1', 'PREFIX', '018f5a3e-7c1d-7b1a-9c55-0123456789ab', pg_current_xact_id())"#,
            later: "SELECT 1",
            topic: "PREFIX",
            key: "cart-7",
            value: r#"{"total": 7}"#,
            headers: &[
                ("id", "018f5a3e-7c1d-7b1a-9c55-0123456789ab"),
                ("correlationId", "c"),
            ],
        },
    );
}

/// `sql/init.ex` of EventStore, with `jsonb`.
#[test]
fn commanded() {
    relays(
        15,
        &Library {
            name: "commanded",
            table: "public.events",
            ddl: "CREATE TABLE events (event_id uuid PRIMARY KEY NOT NULL, event_type text NOT NULL, \
                  causation_id uuid NULL, correlation_id uuid NULL, data jsonb NOT NULL, metadata jsonb NULL, \
                  created_at timestamp with time zone DEFAULT NOW() NOT NULL)",
            write: r#"INSERT INTO events (event_id, event_type, data, metadata) VALUES
                ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', 'Elixir.PREFIX.Placed', '{"order_id": "o-7"}',
                '{"user": "u"}')"#,
            later: "SELECT 1",
            topic: "PREFIX.Placed",
            key: "o-7",
            value: r#"{"order_id": "o-7"}"#,
            headers: &[
                ("id", "018f5a3e-7c1d-7b1a-9c55-0123456789ab"),
                ("user", "u"),
            ],
        },
    );
}
