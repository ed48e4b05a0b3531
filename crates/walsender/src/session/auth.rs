//! Authentication: from the server's first request after the startup message to AuthenticationOk.
//!
//! Source: PostgreSQL documentation, "Start-up" and "SASL Authentication" in "Message Flow".
//!
//! The server may be an impostor, so `require_auth` and `channel_binding` limit what it gets:
//! - The password itself or its MD5 hash is sent only if `require_auth` lists the method.
//! - With encryption, and unless `channel_binding=disable`, SCRAM is bound to the server's
//!   certificate if the server offers that. Otherwise the client's message says that the client
//!   supports channel binding (`y`), so that a server whose offer was removed by an attacker
//!   detects that.
//! - A server that nothing else proves must ask for the password, if there is one.
//! - After SCRAM has begun, AuthenticationOk is accepted only after the server's proof that it
//!   knows the password.

use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as Binding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use secrecy::{ExposeSecret, SecretString};

use super::password::scram_password;
use crate::conninfo::{ChannelBinding, ConnInfo, Host, SslMode};
use crate::error::{Error, ServerError};
use crate::framing::wire::{Allowance, Incoming, Transport, Wire};
use crate::tls::tls_server_end_point;

/// The fewest iterations of SCRAM that are accepted: RFC 7677, section 4, and Postgres' default. With
/// few of them, whoever poses as the server can try many passwords against the answer.
const FEWEST_ITERATIONS: u64 = 4096;
/// The most iterations of SCRAM that are accepted. They take about a second.
const MOST_ITERATIONS: u64 = 1_000_000;

/// Authenticates by the method that the server asks for, up to AuthenticationOk.
pub(crate) async fn authenticate(
    wire: &mut Wire,
    info: &ConnInfo,
    host: &Host,
    allowance: &mut Allowance,
) -> Result<(), Error> {
    let login = Login {
        wire,
        info,
        host,
        allowance,
    };
    login.run().await
}

struct Login<'a> {
    wire: &'a mut Wire,
    info: &'a ConnInfo,
    host: &'a Host,
    /// The bytes that the server may still send.
    allowance: &'a mut Allowance,
}

impl Login<'_> {
    async fn run(mut self) -> Result<(), Error> {
        let request = self.receive().await?;
        self.check_allowed(&request)?;
        let salt = match request {
            Message::AuthenticationSasl(body) => return self.scram(&body).await,
            // Accepted without a password: trust, peer, or a certificate.
            Message::AuthenticationOk => return self.demand_no_binding(),
            Message::AuthenticationMd5Password(body) => Some(body.salt()),
            Message::AuthenticationCleartextPassword => None,
            _ => return Err(unexpected()),
        };
        self.demand_no_binding()?;
        let password = self.password()?;
        let password = password.expose_secret().as_bytes();
        self.wire.queue("the password", |out| match salt {
            Some(salt) => {
                let hash = md5_hash(self.info.user.as_bytes(), password, salt);
                frontend::password_message(hash.as_bytes(), out)
            }
            None => frontend::password_message(password, out),
        })?;
        self.ok().await
    }

    /// Returns an error if `require_auth` does not allow the method that the server asks for.
    fn check_allowed(&self, request: &Message) -> Result<(), Error> {
        let methods = self.info.require_auth.unwrap_or_default();
        let (allowed, asked, remedy) = match request {
            Message::AuthenticationOk => (
                methods.none && !self.implies_login(),
                "no authentication at all",
                "let the server use scram-sha-256 in pg_hba.conf, verify it by sslmode=verify-full, or add \
                 none to require_auth in the connection string",
            ),
            Message::AuthenticationCleartextPassword => (
                methods.cleartext,
                "the cleartext password",
                "let the server use scram-sha-256 in pg_hba.conf, or add require_auth=password to \
                 the connection string",
            ),
            Message::AuthenticationMd5Password(_) => (
                methods.md5,
                "the password's MD5 hash",
                "let the server use scram-sha-256 in pg_hba.conf and set the role's password again, \
                 or add require_auth=md5 to the connection string",
            ),
            Message::AuthenticationSasl(_) => (
                methods.scram,
                "SCRAM-SHA-256",
                "add scram-sha-256 to require_auth in the connection string",
            ),
            Message::AuthenticationGss | Message::AuthenticationSspi => (
                false,
                "GSSAPI",
                "it is not supported; let the server use scram-sha-256 or cert in pg_hba.conf",
            ),
            Message::AuthenticationKerberosV5 | Message::AuthenticationScmCredential => (
                false,
                "an authentication method of long ago",
                "it is not supported; let the server use scram-sha-256 in pg_hba.conf",
            ),
            _ => return Err(unexpected()),
        };
        if allowed {
            Ok(())
        } else {
            Err(self.refused(asked, remedy))
        }
    }

    /// Returns true if the configuration implies that the server asks for the password: there is one,
    /// `require_auth` says nothing else, and nothing else shows that the server is the right one.
    fn implies_login(&self) -> bool {
        if self.info.require_auth.is_some() {
            return false;
        }
        let peer = match &self.wire.transport {
            Transport::Unix(_) => return false,
            Transport::Tcp(stream) => stream.peer_addr(),
            Transport::Tls(stream) => stream.get_ref().0.peer_addr(),
        };
        let is_local = peer.is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
        is_unproven(self.info, self.wire.is_encrypted(), is_local)
            && matches!(self.info.password_for(self.host), Ok(Some(_)))
    }

    fn demand_no_binding(&self) -> Result<(), Error> {
        if self.info.channel_binding != ChannelBinding::Require {
            return Ok(());
        }
        let problem =
            "the server did not ask for SCRAM authentication, the only one that can be bound";
        Err(self.unbindable(problem))
    }

    async fn scram(&mut self, offer: &AuthenticationSaslBody) -> Result<(), Error> {
        let mechanisms = offer.mechanisms().map(|mechanism| Ok(mechanism.to_owned()));
        let mechanisms: Vec<String> = mechanisms
            .collect()
            .map_err(|error| Error::malformed("list of SASL mechanisms", &error))?;
        let (mechanism, binding) = self.choose(&mechanisms)?;
        let password = self.password()?;
        let password = scram_password(password.expose_secret().as_bytes());
        let mut scram = ScramSha256::new(&password, binding);
        self.wire.queue("the login", |out| {
            frontend::sasl_initial_response(mechanism, scram.message(), out)
        })?;
        let Message::AuthenticationSaslContinue(body) = self.receive().await? else {
            return Err(self.broken("the server left the exchange in the middle", None));
        };
        if let Some(problem) = bad_iterations(body.data()) {
            return Err(self.broken(problem, None));
        }
        let problem = "the server's challenge is unacceptable";
        let updated = scram.update(body.data());
        updated.map_err(|error| self.broken(problem, Some(error)))?;
        self.wire.queue("the login", |out| {
            frontend::sasl_response(scram.message(), out)
        })?;
        let Message::AuthenticationSaslFinal(body) = self.receive().await? else {
            let problem = "the server did not prove that it knows the password";
            return Err(self.broken(problem, None));
        };
        let problem = "the server's proof that it knows the password is wrong; it may not be the \
            server it claims to be";
        let finished = scram.finish(body.data());
        finished.map_err(|error| self.broken(problem, Some(error)))?;
        self.ok().await
    }

    /// Chooses the SASL mechanism and the channel binding.
    fn choose(&self, offered: &[String]) -> Result<(&'static str, Binding), Error> {
        let offers = |mechanism| offered.iter().any(|offered| offered == mechanism);
        let wanted = self.info.channel_binding;
        let end_point = match &self.wire.transport {
            Transport::Tls(stream) if wanted != ChannelBinding::Disable => {
                tls_server_end_point(stream.as_ref())
            }
            _ => None,
        };
        match end_point {
            Some(hash) if offers(SCRAM_SHA_256_PLUS) => {
                Ok((SCRAM_SHA_256_PLUS, Binding::tls_server_end_point(hash)))
            }
            _ if wanted == ChannelBinding::Require => {
                Err(self.unbindable(if self.wire.is_encrypted() {
                    "the server does not offer it, or its certificate has no hash to bind to"
                } else {
                    "the connection is not encrypted, so there is nothing to bind to"
                }))
            }
            Some(_) if offers(SCRAM_SHA_256) => Ok((SCRAM_SHA_256, Binding::unrequested())),
            None if offers(SCRAM_SHA_256) => Ok((SCRAM_SHA_256, Binding::unsupported())),
            _ => Err(self.refused(
                "a SASL mechanism other than SCRAM-SHA-256",
                "let the server use scram-sha-256 in pg_hba.conf",
            )),
        }
    }

    /// Expects AuthenticationOk.
    async fn ok(&mut self) -> Result<(), Error> {
        match self.receive().await? {
            Message::AuthenticationOk => Ok(()),
            _ => Err(Error::protocol(
                "the server asked for a second authentication",
            )),
        }
    }

    /// Writes queued messages, and returns the server's answer.
    async fn receive(&mut self) -> Result<Message, Error> {
        self.wire.flush().await?;
        match self.wire.receive(self.allowance).await? {
            Incoming::Message(Message::ErrorResponse(body)) => {
                Err(ServerError::parse(body.fields()).into())
            }
            Incoming::Message(message) => Ok(message),
            Incoming::CopyBoth => Err(unexpected()),
        }
    }

    fn password(&self) -> Result<SecretString, Error> {
        let host = self.wire.host.clone();
        let password = self.info.password_for(self.host)?;
        password.ok_or(Error::PasswordMissing { host })
    }

    fn refused(&self, asked: &'static str, remedy: &'static str) -> Error {
        let host = self.wire.host.clone();
        Error::AuthMethodRefused {
            host,
            asked,
            remedy,
        }
    }

    fn unbindable(&self, problem: &'static str) -> Error {
        let host = self.wire.host.clone();
        Error::ChannelBinding { host, problem }
    }

    fn broken(&self, problem: &'static str, source: Option<std::io::Error>) -> Error {
        let host = self.wire.host.clone();
        let source = source.map(Into::into);
        Error::Scram {
            host,
            problem,
            source,
        }
    }
}

/// Returns true if anybody on the network could be this server: no certificate was verified, and it
/// is not on this machine.
fn is_unproven(info: &ConnInfo, encrypted: bool, is_local: bool) -> bool {
    let verified = encrypted
        && (info.ssl_root_cert.is_some()
            || matches!(info.ssl_mode, SslMode::VerifyCa | SslMode::VerifyFull));
    !verified && !is_local
}

/// Returns the problem with the number of iterations in the server's first message (RFC 5802, section
/// 7: `r=…,s=…,i=…`). A message without one is left to the exchange itself.
fn bad_iterations(challenge: &[u8]) -> Option<&'static str> {
    let mut fields = challenge.split(|byte| *byte == b',');
    let count = fields.find_map(|field| field.strip_prefix(b"i="))?;
    let count: u64 = str::from_utf8(count).ok()?.parse().ok()?;
    if count < FEWEST_ITERATIONS {
        return Some(
            "the server's challenge has fewer than 4096 iterations, with which the password can be guessed. \
             Set scram_iterations = 4096 at least, and set the role's password again",
        );
    }
    (count > MOST_ITERATIONS).then_some(
        "the server's challenge has more than 1000000 iterations, which would occupy the client for long. \
         Lower scram_iterations, and set the role's password again",
    )
}

fn unexpected() -> Error {
    Error::protocol("unexpected message during the login")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_proven_by_its_certificate_or_by_this_machine() {
        for (sslmode, encrypted, local, unproven) in [
            ("prefer", false, false, true),
            ("prefer", true, false, true),
            ("require", true, false, true),
            ("verify-ca", true, false, false),
            ("verify-full", true, false, false),
            ("require sslrootcert=/ca.pem", true, false, false),
            ("prefer sslrootcert=/ca.pem", false, false, true),
            ("disable", false, true, false),
        ] {
            let info = format!("host=db user=u password=p sslmode={sslmode}");
            let info: ConnInfo = info.parse().unwrap();
            assert_eq!(is_unproven(&info, encrypted, local), unproven, "{sslmode}");
        }
    }

    #[test]
    fn iterations_have_bounds() {
        for (challenge, accepted) in [
            ("r=n,s=c2FsdA==,i=4096", true),
            ("r=n,s=c2FsdA==,i=1000000", true),
            ("r=n,s=c2FsdA==,i=4095", false),
            ("r=n,s=c2FsdA==,i=0", false),
            ("r=n,s=c2FsdA==,i=1000001", false),
            ("r=n,s=c2FsdA==,i=2147483647", false),
            // Refused by the exchange itself.
            ("r=n,s=c2FsdA==", true),
            ("r=n,s=c2FsdA==,i=x", true),
        ] {
            let bad = bad_iterations(challenge.as_bytes());
            assert_eq!(bad.is_none(), accepted, "{challenge}");
        }
    }
}
