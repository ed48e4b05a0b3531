// Processes events, each of which has its effect in Postgres once. By ADO.NET, with any client.
//
// The table processed_events comes from `walrelay init --consumer`. Needs the base class library only: copy this file.
// ../../webhooks/csharp/Receiver.cs is the loop for webhooks. For Kafka with Confluent.Kafka (untested):
//
//     // EnableAutoCommit = false, AutoOffsetReset = Earliest
//     consumer.Subscribe("outbox.event.Order");
//     while (true)
//     {
//         var record = consumer.Consume(stopping);
//         string id = Encoding.UTF8.GetString(record.Message.Headers.GetLastBytes("id"));
//         ProcessedEvents.Process(connection, "stock", id, transaction => TakeFromStock(transaction, record));
//         consumer.Commit(record);    // after the effect, and by nothing else
//     }

using System;
using System.Data;
using System.Data.Common;
using System.Text.RegularExpressions;
using System.Transactions;

public static class ProcessedEvents
{
    /// <summary>
    /// Claims the event and has its effect, in one transaction. Returns false if the event was processed before.
    /// </summary>
    /// <param name="connection">Open, and without a transaction.</param>
    /// <param name="id">The header "id", by which a repeat is known: the same in every delivery of an event.</param>
    /// <param name="effect">Changes data by the transaction; if it throws, nothing is changed.</param>
    public static bool Process(DbConnection connection, string consumer, string id, Action<DbTransaction> effect)
    {
        if (Transaction.Current != null)
        {
            throw new InvalidOperationException("a TransactionScope is open: it would commit the effect after this returns");
        }
        using (DbTransaction transaction = connection.BeginTransaction())
        {
            // A concurrent claim of the same event is waited for.
            bool isNew = Execute(transaction,
                "INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                consumer, id) == 1;
            if (isNew)
            {
                effect(transaction);
                // Fails if the effect has hidden an error: then COMMIT would roll back, and say nothing.
                Execute(transaction, "SELECT 1");
            }
            transaction.Commit();
            return isNew;
        }
    }

    /// <summary>
    /// Forgets events that are older than the longest replay; returns their number. Run it once a day.
    /// </summary>
    public static int Prune(DbConnection connection, string consumer, int days)
    {
        using (DbTransaction transaction = connection.BeginTransaction())
        {
            int forgotten = Execute(transaction, "DELETE FROM processed_events WHERE consumer = $1 "
                + "AND processed_at < now() - make_interval(days => CAST($2 AS int))", consumer, days.ToString());
            transaction.Commit();
            return forgotten;
        }
    }

    /// <summary>
    /// Executes a statement with texts for its parameters $1, $2 and so on, which stand in this order; returns the
    /// number of changed rows.
    /// </summary>
    public static int Execute(DbTransaction transaction, string sql, params string[] values)
    {
        using (DbCommand command = transaction.Connection.CreateCommand())
        {
            command.Transaction = transaction;
            bool isOdbc = command.GetType().Namespace == "System.Data.Odbc";
            command.CommandText = isOdbc ? Regex.Replace(sql, @"\$\d", "?") : sql;
            foreach (string value in values)
            {
                DbParameter parameter = command.CreateParameter();
                parameter.DbType = DbType.String;
                parameter.Value = (object)value ?? DBNull.Value;
                command.Parameters.Add(parameter);
            }
            return command.ExecuteNonQuery();
        }
    }
}
