// The claims against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it. With Mono, in this folder:
//
//     mcs -r:System.Data -r:System.Transactions -out:test.exe *.cs && mono test.exe

using System;
using System.Collections.Generic;
using System.Data.Common;
using System.Diagnostics;
using System.Linq;
using System.Threading;
using System.Transactions;

static class ProcessedEventsTest
{
    const string Consumer = "example_csharp";

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

    static TError Fails<TError>(Action call, string message) where TError : Exception
    {
        try
        {
            call();
        }
        catch (TError error)
        {
            return error;
        }
        throw new Exception($"{message} is not refused");
    }

    /// Processes an event, and hands the transaction to `also` after the effect.
    static bool Process(DbConnection connection, int number, Action<DbTransaction> also = null)
    {
        return ProcessedEvents.Process(connection, Consumer, $"event-{number}", transaction =>
        {
            ProcessedEvents.Execute(transaction, "INSERT INTO csharp_effects VALUES (CAST($1 AS int))", number.ToString());
            also?.Invoke(transaction);
        });
    }

    static void Crash(DbTransaction transaction)
    {
        System.Diagnostics.Process.GetCurrentProcess().Kill();
        Thread.Sleep(Timeout.Infinite);
    }

    static void DividesByZero(DbTransaction transaction)
    {
        ProcessedEvents.Execute(transaction, "SELECT 1 / 0");
    }

    /// Another process that processes an event.
    static Process Start(int number, string crash = "")
    {
        string program = System.Reflection.Assembly.GetExecutingAssembly().Location;
        return System.Diagnostics.Process.Start(new ProcessStartInfo("mono", $"{program} {number} {crash}")
        {
            UseShellExecute = false,
        });
    }

    static int Ended(Process process)
    {
        process.WaitForExit();
        return process.ExitCode;
    }

    /// The effects, as another session sees them.
    static string Effects()
    {
        var numbers = new List<string>();
        using (DbConnection other = Connect())
        using (DbCommand command = other.CreateCommand())
        {
            command.CommandText = "SELECT number FROM csharp_effects ORDER BY number";
            using (DbDataReader rows = command.ExecuteReader())
            {
                while (rows.Read()) numbers.Add(rows.GetInt32(0).ToString());
            }
        }
        return string.Join(" ", numbers);
    }

    static void Run(DbConnection connection, string sql, params string[] values)
    {
        using (DbTransaction transaction = connection.BeginTransaction())
        {
            ProcessedEvents.Execute(transaction, sql, values);
            transaction.Commit();
        }
    }

    static void Main(string[] arguments)
    {
        using (DbConnection connection = Connect())
        {
            if (arguments.Length > 0)
            {
                Action<DbTransaction> crash = Crash;
                Process(connection, int.Parse(arguments[0]), arguments.Contains("crash") ? crash : null);
                return;
            }
            Run(connection, "DROP TABLE IF EXISTS csharp_effects");
            Run(connection, "CREATE TABLE csharp_effects (number int)");
            Run(connection, "DELETE FROM processed_events WHERE consumer = $1", Consumer);

            Same(true, Process(connection, 1), "the first is new");
            Same(true, Process(connection, 2), "the second is new");
            Same(false, Process(connection, 1), "the first was processed");
            Same("1 2", Effects(), "the same event twice has one effect");

            Same(137, Ended(Start(3, "crash")), "the process has crashed");
            Same("1 2", Effects(), "a crash before the commit has no effect");
            Same(true, Process(connection, 3), "after a crash the event is new");

            Fails<DbException>(() => Process(connection, 4, DividesByZero), "an effect that fails");
            Same(true, Process(connection, 4), "after a failed effect the event is new");
            Fails<DbException>(() => Process(connection, 5, transaction =>
            {
                try
                {
                    DividesByZero(transaction);
                }
                catch (DbException)
                {
                    // Hidden.
                }
            }), "an effect that hides an error");
            Fails<InvalidOperationException>(() => Process(connection, 5, _ => Process(connection, 6)),
                "a connection with a transaction");
            using (new TransactionScope())
            {
                Fails<InvalidOperationException>(() => Process(connection, 5), "an event in a TransactionScope");
            }
            Same("1 2 3 4", Effects(), "refused effects are rolled back");

            Process[] concurrent = Enumerable.Range(0, 4).Select(_ => Start(5)).ToArray();
            Same("0 0 0 0", string.Join(" ", concurrent.Select(Ended)), "concurrent claims wait for each other");
            Same("1 2 3 4 5", Effects(), "each event has one effect");

            Run(connection, "INSERT INTO processed_events (consumer, event_id, processed_at) SELECT $1, days, "
                + "now() - make_interval(days => days) FROM generate_series(1, 40) AS days", Consumer);
            Same(11, ProcessedEvents.Prune(connection, Consumer, 30), "old events are forgotten");
        }
    }
}
