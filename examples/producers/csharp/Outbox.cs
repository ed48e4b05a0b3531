// Writes an event in the transaction of the change that it tells of, by ADO.NET.
//
//     using (DbTransaction transaction = connection.BeginTransaction())
//     {
//         // … INSERT INTO orders, by the same transaction
//         Outbox.Emit(transaction, "Order", "42", "OrderPlaced", "{\"total\": 12.5}");
//         transaction.Commit();
//     }
//
// In Entity Framework Core, the transaction is context.Database.CurrentTransaction.GetDbTransaction(), after
// SaveChanges(). Needs the base class library only: copy this file, and keep the statement of your table. Npgsql numbers
// its parameters, as here; ODBC gets question marks.

using System;
using System.Collections.Generic;
using System.Data;
using System.Data.Common;
using System.Text.RegularExpressions;

/// <summary>The event would not be committed together with a change.</summary>
public sealed class NotInTransactionException : InvalidOperationException
{
    public NotInTransactionException(string message) : base(message) { }
}

public static class Outbox
{
    // The event is written only if the transaction has changed something: a row is returned then.
    const string Changed = @" FROM (SELECT CAST($1 AS uuid) AS id, CAST($2 AS text) AS aggregate,
            CAST($3 AS text) AS key, CAST($4 AS text) AS type, CAST($5 AS text) AS payload) AS e
        WHERE pg_current_xact_id_if_assigned() IS NOT NULL";
    const string Id = "SELECT coalesce(e.id, outbox.uuidv7()), ";

    /// <summary>
    /// One statement for each shape of table that walrelay has a preset for, and outbox.emit.
    /// </summary>
    public static readonly IReadOnlyDictionary<string, string> Statements = new Dictionary<string, string>
    {
        ["debezium"] = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) " + Id
            + "e.aggregate, e.key, e.type, CAST(e.payload AS jsonb)" + Changed + " RETURNING 1",
        // The id is a bigserial; that of the event is not used.
        ["events_outbox"] = "INSERT INTO events_outbox (aggregate_id, type, payload) SELECT "
            + "e.key, lower(e.aggregate) || '.' || e.type, CAST(e.payload AS jsonb)" + Changed + " RETURNING 1",
        ["outbox_events"] = "INSERT INTO outbox_events (id, aggregate_id, event_type, payload) " + Id
            + "e.key, lower(e.aggregate) || '.' || e.type, CAST(e.payload AS jsonb)" + Changed + " RETURNING 1",
        ["outbox"] = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) " + Id
            + "e.aggregate, e.key, e.type, CAST(e.payload AS jsonb)" + Changed + " RETURNING 1",
        ["emit"] = "SELECT outbox.emit(aggregate => e.aggregate, key => e.key, type => e.type, "
            + "payload => CAST(e.payload AS jsonb), id => coalesce(e.id, outbox.uuidv7()))" + Changed,
    };

    const string All = "SELECT outbox.emit_all(CAST($1 AS jsonb)) "
        + "WHERE pg_current_xact_id_if_assigned() IS NOT NULL";

    /// <summary>
    /// Writes an event in the open transaction that has changed the data.
    /// </summary>
    /// <param name="payload">JSON, for example by JsonSerializer.Serialize; a jsonb column normalises it.</param>
    /// <param name="id">The event's id; the database makes one if it is missing.</param>
    public static void Emit(DbTransaction transaction, string aggregate, string key, string type, string payload,
        Guid? id = null, string table = "debezium")
    {
        Write(transaction, Statements[table], id?.ToString(), aggregate, key, type, payload);
    }

    /// <summary>
    /// Writes several events as one message in the log, by outbox.emit_all: no table, one request. They keep their order.
    /// </summary>
    /// <param name="events">A JSON array of objects with the members aggregate, key, type and payload, and perhaps id,
    /// topic or headers.</param>
    public static void EmitAll(DbTransaction transaction, string events)
    {
        Write(transaction, All, events);
    }

    static void Write(DbTransaction transaction, string sql, params string[] values)
    {
        // A transaction that has ended has no connection.
        DbConnection connection = transaction?.Connection
            ?? throw new NotInTransactionException("an event is written in the transaction of its change: none is open");
        using (DbCommand command = connection.CreateCommand())
        {
            command.Transaction = transaction;
            bool isOdbc = connection.GetType().Namespace == "System.Data.Odbc";
            command.CommandText = isOdbc ? Regex.Replace(sql, @"\$\d", "?") : sql;
            foreach (string value in values)
            {
                DbParameter parameter = command.CreateParameter();
                parameter.DbType = DbType.String;
                parameter.Value = (object)value ?? DBNull.Value;
                command.Parameters.Add(parameter);
            }
            using (DbDataReader rows = command.ExecuteReader())
            {
                if (!rows.Read())
                {
                    throw new NotInTransactionException("the transaction has changed nothing yet: change the data first");
                }
            }
        }
    }
}
