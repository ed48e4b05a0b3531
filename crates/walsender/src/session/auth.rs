//! Logging in: from the startup message to AuthenticationOk.
//!
//! Source: PostgreSQL documentation, "Start-up" and "SASL Authentication" in "Message Flow".
//!
//! What the server asks for is decided by whoever answers, so it is obeyed only as far as
//! `require_auth` and `channel_binding` allow:
//! - The password itself or its MD5 hash goes out only if it was allowed by name.
//! - With encryption and `channel_binding` not disabled, SCRAM is bound to the server's
//!   certificate if the server offers it; if it does not offer it, the message says that we would
//!   have (`y`), so that a server that did offer it notices that somebody took the offer away.
//! - After SCRAM has begun, AuthenticationOk counts only behind the server's own proof that it
//!   knows the password.

use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as Binding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use secrecy::{ExposeSecret, SecretString};

use crate::conninfo::{ChannelBinding, ConnInfo, Host};
use crate::error::{Error, ServerError};
use crate::framing::wire::{Incoming, LOGIN_MESSAGE, Transport, Wire};
use crate::tls::tls_server_end_point;

/// Takes part in whatever exchange the server asks for, until it says AuthenticationOk.
pub(crate) async fn authenticate(
    wire: &mut Wire,
    info: &ConnInfo,
    host: &Host,
) -> Result<(), Error> {
    wire.flush().await?;
    let request = receive(wire).await?;
    check_allowed(wire, info, &request)?;
    let salt = match request {
        Message::AuthenticationSasl(body) => return scram(wire, info, host, &body).await,
        // The server lets us in without asking: trust, peer, or a certificate.
        Message::AuthenticationOk => return demand_no_binding(wire, info),
        Message::AuthenticationMd5Password(body) => Some(body.salt()),
        Message::AuthenticationCleartextPassword => None,
        _ => return Err(Error::protocol("unexpected message during the login")),
    };
    demand_no_binding(wire, info)?;
    let password = password(wire, info, host)?;
    let password = password.expose_secret().as_bytes();
    wire.queue("the password", |out| match salt {
        Some(salt) => {
            let hash = md5_hash(info.user.as_bytes(), password, salt);
            frontend::password_message(hash.as_bytes(), out)
        }
        None => frontend::password_message(password, out),
    })?;
    ok(wire).await
}

/// Whether `require_auth` allows what the server asks for.
fn check_allowed(wire: &Wire, info: &ConnInfo, request: &Message) -> Result<(), Error> {
    let methods = info.require_auth;
    let (allowed, asked, remedy) = match request {
        Message::AuthenticationOk => (
            methods.none,
            "no authentication at all",
            "let the server use scram-sha-256 in pg_hba.conf, or add none to require_auth in the \
             connection string",
        ),
        Message::AuthenticationCleartextPassword => (
            methods.cleartext,
            "the cleartext password",
            "let the server use scram-sha-256 in pg_hba.conf, or add require_auth=password to the \
             connection string",
        ),
        Message::AuthenticationMd5Password(_) => (
            methods.md5,
            "the password's MD5 hash",
            "let the server use scram-sha-256 in pg_hba.conf and set the role's password anew, or \
             add require_auth=md5 to the connection string",
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
        _ => return Err(Error::protocol("unexpected message during the login")),
    };
    if allowed {
        Ok(())
    } else {
        Err(refused(wire, asked, remedy))
    }
}

fn demand_no_binding(wire: &Wire, info: &ConnInfo) -> Result<(), Error> {
    if info.channel_binding == ChannelBinding::Require {
        return Err(binding(
            wire,
            "the server did not ask for SCRAM authentication, the only one that can be bound",
        ));
    }
    Ok(())
}

async fn scram(
    wire: &mut Wire,
    info: &ConnInfo,
    host: &Host,
    offer: &AuthenticationSaslBody,
) -> Result<(), Error> {
    let (mut plain, mut plus) = (false, false);
    let mut mechanisms = offer.mechanisms();
    while let Some(mechanism) = mechanisms
        .next()
        .map_err(|error| Error::malformed("list of SASL mechanisms", &error))?
    {
        plain |= mechanism == SCRAM_SHA_256;
        plus |= mechanism == SCRAM_SHA_256_PLUS;
    }
    let (mechanism, channel) = choose(wire, info.channel_binding, plain, plus)?;
    let password = password(wire, info, host)?;
    let mut scram = ScramSha256::new(password.expose_secret().as_bytes(), channel);
    wire.queue("the login", |out| {
        frontend::sasl_initial_response(mechanism, scram.message(), out)
    })?;
    wire.flush().await?;
    let Message::AuthenticationSaslContinue(body) = receive(wire).await? else {
        return Err(broken(
            wire,
            "the server left the exchange in the middle",
            None,
        ));
    };
    scram
        .update(body.data())
        .map_err(|error| broken(wire, "the server's challenge is unacceptable", Some(error)))?;
    wire.queue("the login", |out| {
        frontend::sasl_response(scram.message(), out)
    })?;
    wire.flush().await?;
    let Message::AuthenticationSaslFinal(body) = receive(wire).await? else {
        return Err(broken(
            wire,
            "the server did not prove that it knows the password",
            None,
        ));
    };
    scram.finish(body.data()).map_err(|error| {
        broken(
            wire,
            "the server's proof that it knows the password is wrong; it may not be the server it \
             claims to be",
            Some(error),
        )
    })?;
    ok(wire).await
}

/// Which mechanism to use, and what to say about channel binding.
fn choose(
    wire: &Wire,
    wanted: ChannelBinding,
    plain: bool,
    plus: bool,
) -> Result<(&'static str, Binding), Error> {
    let end_point = match &wire.transport {
        Transport::Tls(stream) if wanted != ChannelBinding::Disable => {
            tls_server_end_point(stream.as_ref())
        }
        _ => None,
    };
    match end_point {
        Some(hash) if plus => Ok((SCRAM_SHA_256_PLUS, Binding::tls_server_end_point(hash))),
        _ if wanted == ChannelBinding::Require => Err(binding(
            wire,
            if wire.is_encrypted() {
                "the server does not offer it, or its certificate has no hash to bind to"
            } else {
                "the connection is not encrypted, so there is nothing to bind to"
            },
        )),
        Some(_) if plain => Ok((SCRAM_SHA_256, Binding::unrequested())),
        None if plain => Ok((SCRAM_SHA_256, Binding::unsupported())),
        _ => Err(refused(
            wire,
            "a SASL mechanism other than SCRAM-SHA-256",
            "let the server use scram-sha-256 in pg_hba.conf",
        )),
    }
}

async fn ok(wire: &mut Wire) -> Result<(), Error> {
    wire.flush().await?;
    match receive(wire).await? {
        Message::AuthenticationOk => Ok(()),
        _ => Err(Error::protocol(
            "the server asked for a second authentication",
        )),
    }
}

async fn receive(wire: &mut Wire) -> Result<Message, Error> {
    match wire.receive(LOGIN_MESSAGE).await? {
        Incoming::Message(Message::ErrorResponse(body)) => {
            Err(ServerError::parse(body.fields()).into())
        }
        Incoming::Message(message) => Ok(message),
        Incoming::CopyBoth => Err(Error::protocol("unexpected message during the login")),
    }
}

fn password(wire: &Wire, info: &ConnInfo, host: &Host) -> Result<SecretString, Error> {
    info.password_for(host)?
        .ok_or_else(|| Error::PasswordMissing {
            host: wire.host.clone(),
        })
}

fn refused(wire: &Wire, asked: &'static str, remedy: &'static str) -> Error {
    Error::AuthMethodRefused {
        host: wire.host.clone(),
        asked,
        remedy,
    }
}

fn binding(wire: &Wire, problem: &'static str) -> Error {
    Error::ChannelBinding {
        host: wire.host.clone(),
        problem,
    }
}

fn broken(wire: &Wire, problem: &'static str, source: Option<std::io::Error>) -> Error {
    Error::Scram {
        host: wire.host.clone(),
        problem,
        source: source.map(Into::into),
    }
}
