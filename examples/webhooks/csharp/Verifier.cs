// Verifies the signature of a request, as Standard Webhooks describes it. Needs the base class library only: copy this
// file.
//
//     string eventId = WebhookVerifier.Verify(keys, name => request.Headers[name], body);
//
// `body` are the bytes of the request, before anything parses them.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Security.Cryptography;
using System.Text;

/// <summary>The request is not one of the sender: answer 401, and do nothing else.</summary>
public sealed class InvalidSignatureException : Exception
{
    public InvalidSignatureException(string message) : base(message) { }
}

public static class WebhookVerifier
{
    const string Prefix = "whsec_";

    /// <summary>
    /// The bytes of a secret, `whsec_` and base64. Call it at the start: a mistake in it must not wait.
    /// </summary>
    public static byte[] KeyOf(string secret)
    {
        byte[] key = null;
        if (secret.StartsWith(Prefix, StringComparison.Ordinal))
        {
            try
            {
                key = Convert.FromBase64String(secret.Substring(Prefix.Length));
            }
            catch (FormatException)
            {
                // The message below, which does not quote the secret.
            }
        }
        if (key == null || key.Length < 24 || key.Length > 64)
        {
            throw new ArgumentException("a secret is whsec_ and the base64 of 24 to 64 bytes");
        }
        return key;
    }

    /// <summary>Returns the event's id, by which a repeat is known.</summary>
    /// <param name="keys">One, or the old and the new one while secrets are rotated.</param>
    /// <param name="header">The value of a header, whose name may be in any case, or null.</param>
    /// <param name="body">The bytes of the request.</param>
    /// <param name="tolerance">
    /// Seconds that the clocks may differ; a request that a third party has kept is refused after that time.
    /// </param>
    /// <param name="now">Seconds since 1970; the clock's if null.</param>
    public static string Verify(IEnumerable<byte[]> keys, Func<string, string> header, byte[] body,
                                long tolerance = 300, long? now = null)
    {
        string id = header("webhook-id"), sent = header("webhook-timestamp"), signatures = header("webhook-signature");
        if (string.IsNullOrEmpty(id) || string.IsNullOrEmpty(sent) || string.IsNullOrEmpty(signatures))
        {
            throw new InvalidSignatureException("a header is missing");
        }
        long clock = now ?? DateTimeOffset.UtcNow.ToUnixTimeSeconds();
        if (!long.TryParse(sent, NumberStyles.None, CultureInfo.InvariantCulture, out long seconds)
            || Math.Abs(clock - seconds) > tolerance)
        {
            throw new InvalidSignatureException("it was sent too long ago, or by a wrong clock");
        }
        byte[] signed = Encoding.UTF8.GetBytes($"{id}.{sent}.").Concat(body).ToArray();
        List<byte[]> given = signatures.Split(' ').Select(text => Encoding.UTF8.GetBytes(text)).ToList();
        foreach (byte[] key in keys)
        {
            using (var hmac = new HMACSHA256(key))
            {
                byte[] expected = Encoding.UTF8.GetBytes("v1," + Convert.ToBase64String(hmac.ComputeHash(signed)));
                // In constant time: its duration must not tell how much of a guess is right.
                if (given.Any(signature => CryptographicOperations.FixedTimeEquals(expected, signature)))
                {
                    return id;
                }
            }
        }
        throw new InvalidSignatureException("no signature is of a known secret");
    }
}
