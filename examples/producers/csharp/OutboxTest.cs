// The producer against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it. With Mono, in this folder:
//
//     mcs -r:System.Data -out:test.exe *.cs ../../consumers/csharp/PostgresOdbc.cs && mono test.exe

using System;
using System.Collections.Generic;
using System.Data;
using System.Data.Common;
using System.Linq;

static class OutboxTest
{
    static readonly Dictionary<string, string> Tables = new Dictionary<string, string>
    {
        ["debezium"] = "outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)",
        ["events_outbox"] = "events_outbox (id bigserial PRIMARY KEY, aggregate_id text, type text, payload jsonb)",
        ["outbox_events"] = "outbox_events (id uuid PRIMARY KEY, aggregate_id text, event_type text, payload jsonb)",
        ["outbox"] = "outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb)",
    };
    const string Slot = "example_csharp";

    static DbConnection connection;

    static DbConnection Connect()
    {
        return PostgresOdbc.Open(Environment.GetEnvironmentVariable("WALRELAY_EXAMPLE_POSTGRES"));
    }

    static void Same<T>(T expected, T found, string message)
    {
        if (!EqualityComparer<T>.Default.Equals(expected, found))
        {
            throw new Exception($"{message}: {found}, not {expected}");
        }
    }

    static void Refuses(Action call, string message)
    {
        try
        {
            call();
        }
        catch (NotInTransactionException)
        {
            return;
        }
        throw new Exception($"{message} is not refused");
    }

    static List<string> Query(DbConnection session, string sql, DbTransaction transaction = null)
    {
        var values = new List<string>();
        using (DbCommand command = session.CreateCommand())
        {
            command.CommandText = sql;
            command.Transaction = transaction;
            using (DbDataReader rows = command.ExecuteReader())
            {
                while (rows.Read())
                {
                    values.AddRange(Enumerable.Range(0, rows.FieldCount).Select(field => rows.GetValue(field).ToString()));
                }
            }
        }
        return values;
    }

    static void Fresh(string table)
    {
        Query(connection, "DROP TABLE IF EXISTS orders, outbox, events_outbox, outbox_events");
        Query(connection, $"CREATE TABLE orders (id int)");
        Query(connection, $"CREATE TABLE {Tables[table]}");
    }

    static void Change(DbTransaction transaction)
    {
        Query(connection, "INSERT INTO orders VALUES (42)", transaction);
    }

    static void Place(DbTransaction transaction, string table = "debezium")
    {
        Change(transaction);
        Outbox.Emit(transaction, "Order", "42", "placed", "{\"n\": 42}", table: table);
    }

    /// Runs the work in a transaction, which is committed or rolled back.
    static void InTransaction(Action<DbTransaction> work, bool commits = true)
    {
        using (DbTransaction transaction = connection.BeginTransaction())
        {
            work(transaction);
            if (commits) transaction.Commit();
            else transaction.Rollback();
        }
    }

    /// The numbers of changes and events, as another session sees them.
    static string Counts(string table = "debezium")
    {
        using (DbConnection other = Connect())
        {
            string name = Tables[table].Split(' ')[0];
            return string.Join(" ", Query(other, $"SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM {name})"));
        }
    }

    /// The contents of the messages that the work leaves in the log.
    static List<string> Messages(Action work)
    {
        Query(connection, $"SELECT pg_create_logical_replication_slot('{Slot}', 'test_decoding')");
        try
        {
            work();
            return Query(connection, $"SELECT data FROM pg_logical_slot_get_changes('{Slot}', NULL, NULL)")
                .Where(line => line.Contains("prefix: outbox"))
                .Select(line => line.Substring(line.IndexOf("content:", StringComparison.Ordinal) + 8)).ToList();
        }
        finally
        {
            Query(connection, $"SELECT pg_drop_replication_slot('{Slot}')");
        }
    }

    static void Main()
    {
        connection = Connect();
        foreach (string table in Tables.Keys)
        {
            Fresh(table);
            InTransaction(transaction =>
            {
                Place(transaction, table);
                Same("0 0", Counts(table), $"{table}: nothing is written before the commit");
            });
            Same("1 1", Counts(table), $"{table}: a commit makes one event");
            InTransaction(transaction => Place(transaction, table), commits: false);
            Same("1 1", Counts(table), $"{table}: a rollback makes none");
        }

        Fresh("debezium");
        InTransaction(transaction =>
        {
            Place(transaction);
            Query(connection, "SAVEPOINT one", transaction);
            Place(transaction);
            Query(connection, "ROLLBACK TO one", transaction);
        });
        Same("1 1", Counts(), "a savepoint that is rolled back leaves none");

        Refuses(() => Outbox.Emit(null, "Order", "1", "placed", "{}"), "an event without a transaction");
        DbTransaction ended = null;
        InTransaction(transaction =>
        {
            ended = transaction;
            Refuses(() => Outbox.Emit(transaction, "Order", "1", "placed", "{}"), "an event before a change");
        });
        Refuses(() => Outbox.Emit(ended, "Order", "1", "placed", "{}"), "an event in a transaction that has ended");
        Same("1 1", Counts(), "refused events are not written");

        var given = new Guid("019aa1c2-7d3e-7b1a-9c55-0123456789ab");
        InTransaction(transaction =>
        {
            Query(connection, "TRUNCATE outbox", transaction);
            Outbox.Emit(transaction, "Order", "1", "placed", "{\"a\": \"é ? $1\"}", given);
            Outbox.Emit(transaction, "Order", "2", "placed", "{}");
            Outbox.Emit(transaction, "Order", "3", "placed", "{}");
        });
        string found = string.Join(" ", Query(connection, "SELECT id, payload FROM outbox WHERE aggregateid = '1'"));
        Same($"{given} {{\"a\": \"é ? $1\"}}", found, "an id can be given");
        found = string.Join(" ", Query(connection, "SELECT aggregateid FROM outbox WHERE aggregateid > '1' ORDER BY id"));
        Same("2 3", found, "ids rise");

        List<string> messages = Messages(() =>
        {
            InTransaction(transaction => Place(transaction, "emit"));
            InTransaction(transaction => Place(transaction, "emit"), commits: false);
        });
        Same(1, messages.Count, "a message without a table is in the log once");

        string events = "[{\"aggregate\": \"Order\", \"key\": \"1\", \"type\": \"placed\", \"payload\": {\"n\": 1}},"
            + $"{{\"id\": \"{given}\", \"aggregate\": \"Order\", \"key\": \"2\", \"type\": \"placed\", \"payload\": null}}]";
        messages = Messages(() =>
        {
            foreach (bool commits in new[] { true, false })
            {
                InTransaction(transaction =>
                {
                    Refuses(() => Outbox.EmitAll(transaction, events), "events before a change");
                    Change(transaction);
                    Outbox.EmitAll(transaction, events);
                }, commits);
            }
        });
        Same(1, messages.Count, "several events are one message");
        int first = messages[0].IndexOf("\"key\": \"1\"", StringComparison.Ordinal);
        int second = messages[0].IndexOf(given.ToString(), StringComparison.Ordinal);
        Same(true, first >= 0 && second > first, $"they keep their order, and an id can be given, in {messages[0]}");
        connection.Dispose();
    }
}
