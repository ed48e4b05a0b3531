// A whole receiver of webhooks: each event has its effect in Postgres once, in the table `received`.
//
//     mcs -r:System.Data -r:System.Transactions -r:Mono.Posix -out:receiver.exe *.cs \
//         ../../consumers/csharp/ProcessedEvents.cs ../../consumers/csharp/PostgresOdbc.cs
//     DATABASE_URL=postgres://… WEBHOOK_SECRETS=whsec_… mono receiver.exe
//
// It runs with Mono and the ODBC driver of Postgres, which Debian has: mono-mcs, mono-runtime,
// libmono-system-data4.0-cil, libmono-posix4.0-cil, libodbc2, odbc-postgresql. The table processed_events comes from
// `walrelay init --consumer`. PORT (8080) and GROUP have defaults. It ends by SIGTERM or SIGINT after the requests that
// have begun. In ASP.NET use its server instead, and keep `Receive`; with Npgsql, its connection.

using System;
using System.Collections.Specialized;
using System.Data.Common;
using System.IO;
using System.Linq;
using System.Net;
using System.Text;
using System.Threading;
using Mono.Unix;
using Mono.Unix.Native;

static class Receiver
{
    const int Limit = 1 << 20;
    // With a lock: two processes may start at once.
    const string Table = @"SELECT pg_advisory_xact_lock(59);
        CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)";

    static readonly string group = Environment.GetEnvironmentVariable("GROUP") ?? "example";
    static byte[][] keys;
    static string database;
    static volatile bool stopping;

    static string Variable(string name)
    {
        string value = Environment.GetEnvironmentVariable(name);
        return string.IsNullOrWhiteSpace(value) ? throw new ArgumentException($"{name} is not set") : value;
    }

    static void Effect(DbTransaction transaction, string topic, string key, byte[] body)
    {
        ProcessedEvents.Execute(transaction,
            "INSERT INTO received (consumer, topic, key, value) VALUES ($1, $2, $3, $4)", group, topic, key, Encoding.UTF8.GetString(body));
    }

    /// <summary>
    /// Claims the event and has its effect, in one transaction; returns the status of the answer.
    /// </summary>
    static int Receive(string topic, NameValueCollection headers, byte[] body)
    {
        string id;
        try
        {
            id = WebhookVerifier.Verify(keys, name => headers[name], body);
        }
        catch (InvalidSignatureException error)
        {
            Console.Error.WriteLine($"refused: {error.Message}");
            return 401;
        }
        using (DbConnection connection = PostgresOdbc.Open(database))
        {
            ProcessedEvents.Process(connection, group, id,
                transaction => Effect(transaction, topic, headers["x-event-key"], body));
        }
        // After the commit, and for a repeat, too.
        return 204;
    }

    static int Answer(HttpListenerRequest request)
    {
        var body = new MemoryStream();
        var part = new byte[8192];
        for (int count; (count = request.InputStream.Read(part, 0, part.Length)) > 0;)
        {
            body.Write(part, 0, count);
            if (body.Length > Limit)
            {
                return 413;
            }
        }
        try
        {
            return Receive(request.Url.Segments.Last(), request.Headers, body.ToArray());
        }
        catch (Exception error)
        {
            // walrelay sends it again, after growing pauses. Not its text: an error may quote the event.
            Console.Error.WriteLine($"an event failed: {error.GetType().Name}");
            return 503;
        }
    }

    static void Main()
    {
        database = Variable("DATABASE_URL");
        keys = Variable("WEBHOOK_SECRETS").Split((char[])null, StringSplitOptions.RemoveEmptyEntries)
            .Select(WebhookVerifier.KeyOf).ToArray();
        using (DbConnection connection = PostgresOdbc.Open(database))
        using (DbTransaction transaction = connection.BeginTransaction())
        {
            ProcessedEvents.Execute(transaction, Table);
            transaction.Commit();
        }
        var listener = new HttpListener();
        listener.Prefixes.Add($"http://*:{Environment.GetEnvironmentVariable("PORT") ?? "8080"}/");
        listener.Start();
        Console.Error.WriteLine("listens");
        var begun = new CountdownEvent(1);
        var loop = new Thread(() =>
        {
            while (true)
            {
                HttpListenerContext context;
                try
                {
                    context = listener.GetContext();
                }
                catch (Exception) when (!listener.IsListening)
                {
                    return;
                }
                if (stopping || !begun.TryAddCount())
                {
                    context.Response.Abort();
                    continue;
                }
                ThreadPool.QueueUserWorkItem(_ =>
                {
                    try
                    {
                        context.Response.StatusCode = Answer(context.Request);
                        context.Response.Close();
                    }
                    catch (Exception error)
                    {
                        // The sender has gone, and sends the event again.
                        Console.Error.WriteLine($"no answer: {error.GetType().Name}");
                    }
                    finally
                    {
                        begun.Signal();
                    }
                });
            }
        });
        loop.Start();
        UnixSignal.WaitAny(new[] { new UnixSignal(Signum.SIGTERM), new UnixSignal(Signum.SIGINT) });
        // Requests that have begun get their answers; walrelay sends later ones again.
        stopping = true;
        begun.Signal();
        begun.Wait();
        listener.Stop();
        loop.Join();
        Console.Error.WriteLine("stopped");
    }
}
