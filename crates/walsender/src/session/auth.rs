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
use crate::conninfo::{ChannelBinding, ConnInfo, Host};
use crate::error::{Error, ServerError};
use crate::framing::wire::{Incoming, LOGIN_MESSAGE, Transport, Wire};
use crate::tls::tls_server_end_point;

/// Authenticates by the method that the server asks for, up to AuthenticationOk.
pub(crate) async fn authenticate(
    wire: &mut Wire,
    info: &ConnInfo,
    host: &Host,
) -> Result<(), Error> {
    Login { wire, info, host }.run().await
}

struct Login<'a> {
    wire: &'a mut Wire,
    info: &'a ConnInfo,
    host: &'a Host,
}

impl Login<'_> {
    async fn run(&mut self) -> Result<(), Error> {
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
        let methods = self.info.require_auth;
        let (allowed, asked, remedy) = match request {
            Message::AuthenticationOk => (
                methods.none,
                "no authentication at all",
                "let the server use scram-sha-256 in pg_hba.conf, or add none to require_auth in \
                 the connection string",
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
                "let the server use scram-sha-256 in pg_hba.conf and set the role's password anew, \
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
        match self.wire.receive(LOGIN_MESSAGE).await? {
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

fn unexpected() -> Error {
    Error::protocol("unexpected message during the login")
}
