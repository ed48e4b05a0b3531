// Postgres by ODBC, for the tests here and ../../webhooks/csharp/Receiver.cs. With Npgsql you need none of it.

using System;
using System.Data.Odbc;
using System.Linq;

public static class PostgresOdbc
{
    /// <summary>Opens a connection to the database of a URL, such as postgres://user:password@host/database.</summary>
    public static OdbcConnection Open(string address)
    {
        var url = new Uri(address);
        // For example, a connection without sslmode=verify-full would go to any server.
        if (url.Query != "") throw new ArgumentException("the database's URL has parameters, which ODBC does not get");
        string[] user = url.UserInfo.Split(new[] { ':' }, 2).Select(Uri.UnescapeDataString).ToArray();
        var connection = new OdbcConnection(new OdbcConnectionStringBuilder
        {
            { "Driver", "{PostgreSQL Unicode}" },
            { "Servername", url.Host },
            { "Port", url.Port < 0 ? "5432" : url.Port.ToString() },
            { "Database", Uri.UnescapeDataString(url.AbsolutePath.TrimStart('/')) },
            { "Username", user[0] },
            { "Password", user.ElementAtOrDefault(1) ?? "" },
            // After an error the transaction can only be rolled back, as with other clients. Else the driver hides it.
            { "Protocol", "7.4-0" },
        }.ConnectionString);
        try
        {
            connection.Open();
            return connection;
        }
        catch
        {
            connection.Dispose();
            throw;
        }
    }
}
