//! The items of `walrelay check`.

pub(crate) mod bindings;

use walrelay_failure::{Exit, ToFailure as _};
use walrelay_sink_client::run_apart;
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks, Verdict, shortened};

use crate::client::declare::Refused;
use crate::client::error::RabbitmqError;
use crate::client::{Connection, Login, connect, reply_name};
use crate::sink::Settings;

const LOGIN: &str = "rabbitmq-login";
const EXCHANGES: &str = "rabbitmq-exchanges";
const WRITE: &str = "rabbitmq-write";
const DEAD_LETTERS: &str = "rabbitmq-dead-letters";
const BINDINGS: &str = "rabbitmq-bindings";
const QUEUES: &str = "rabbitmq-queues";

/// The items, in the order of the report.
pub(crate) const ITEMS: [&str; 6] = [LOGIN, EXCHANGES, WRITE, DEAD_LETTERS, BINDINGS, QUEUES];

/// Exchanges that are looked at, at most.
const MAX_EXCHANGES: usize = 100;
/// Names that a finding lists, at most.
const LISTED: usize = 5;

/// Logs in, and looks at the exchanges and rights. `routing_key`: that of all events.
pub(crate) fn check(
    login: &Login,
    settings: &Settings,
    routing_key: Option<&str>,
    input: &CheckInput<'_>,
) -> SinkChecks {
    let checked = run_apart(|| run(login, settings, routing_key, input));
    checked.unwrap_or_else(|error| vec![(LOGIN, failed(&error.into()))])
}

/// Returns why no dead letter can be published; `None` if one can be, or if the server reports nothing.
pub(crate) fn dead_letter_obstacle(login: &Login, settings: &Settings) -> Option<String> {
    let check = async || {
        let mut connection = connect(login, 0).await?;
        let mut server = Server {
            connection: &mut connection,
            login,
            settings,
        };
        server.dead_letters().await
    };
    let check = run_apart(check).ok()?.ok()?;
    matches!(check.verdict, Verdict::Fail { .. }).then_some(check.finding)
}

fn failed(error: &RabbitmqError) -> Check {
    Check::failed(error.to_failure())
}

async fn run(
    login: &Login,
    settings: &Settings,
    routing_key: Option<&str>,
    input: &CheckInput<'_>,
) -> SinkChecks {
    let mut connection = match connect(login, 0).await {
        Ok(connection) => connection,
        Err(error) => return vec![(LOGIN, failed(&error))],
    };
    let (address, vhost) = (&connection.address, &login.vhost);
    let finding = format!("{address} accepts the login to the virtual host {vhost:?}");
    let mut checks = vec![(LOGIN, Check::pass(finding))];
    let mut server = Server {
        connection: &mut connection,
        login,
        settings,
    };
    let others = server.others(routing_key, input).await;
    match others {
        Ok(others) => checks.extend(others),
        Err(error) => checks.push((EXCHANGES, failed(&error))),
    }
    checks
}

struct Server<'a> {
    connection: &'a mut Connection,
    login: &'a Login,
    settings: &'a Settings,
}

impl Server<'_> {
    async fn others(
        &mut self,
        routing_key: Option<&str>,
        input: &CheckInput<'_>,
    ) -> Result<SinkChecks, RabbitmqError> {
        let limit = self.login.servers.timeout;
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        let (mut allowed, mut denied) = (Vec::new(), Vec::new());
        for exchange in input.topics.iter().take(MAX_EXCHANGES) {
            let shown = shown(exchange);
            if !self.exists(exchange, routing_key).await? {
                missing.push(shown);
                continue;
            }
            there.push(shown.clone());
            let key = routing_key.unwrap_or_default();
            match self.connection.may_write(exchange, key, limit).await? {
                // Which routing keys there will be is not known.
                Ok(()) => allowed.push(shown),
                Err(Refused {
                    of_routing_key: true,
                    ..
                }) if routing_key.is_none() => {}
                // It is declared later.
                Err(Refused { code: 404, .. }) => {}
                Err(refused) => denied.push(format!("{shown} ({})", reply_name(refused.code))),
            }
        }
        let mut checks = vec![(EXCHANGES, exchanges(there, missing))];
        checks.push((WRITE, write(allowed, denied)));
        if input.dead_letters.is_some() {
            checks.push((DEAD_LETTERS, self.dead_letters().await?));
        }
        Ok(checks)
    }

    /// Asks whether the exchange exists, or for the default exchange, the queue of the routing key.
    async fn exists(
        &mut self,
        exchange: &str,
        routing_key: Option<&str>,
    ) -> Result<bool, RabbitmqError> {
        let limit = self.login.servers.timeout;
        let declared = self.settings.declare.as_ref();
        if declared.is_some_and(|declared| declared.exchange == exchange) {
            return Ok(true);
        }
        Ok(match (exchange, routing_key) {
            ("", None) => true,
            ("", Some(queue)) => self.connection.has_queue(queue, limit).await?.is_ok(),
            _ => self.connection.has_exchange(exchange, limit).await?.is_ok(),
        })
    }

    async fn dead_letters(&mut self) -> Result<Check, RabbitmqError> {
        let address = &self.settings.dead_letters;
        let (exchange, key) = (&*address.exchange, &*address.routing_key);
        let what = match exchange {
            "" => format!("the queue {key:?}"),
            _ => format!("the exchange {exchange:?}"),
        };
        if !self.exists(exchange, Some(key)).await? {
            return Ok(Check::fail(
                ("rabbitmq-dead-letters", Exit::Config),
                format!("dead letters go to {what}, which does not exist"),
                "declare it, or change dead_letter_exchange and dead_letter_routing_key in \
                 [sink.rabbitmq]",
            ));
        }
        let limit = self.login.servers.timeout;
        Ok(
            match self.connection.may_write(exchange, key, limit).await? {
                Ok(()) => Check::pass(format!("dead letters go to {what}")),
                Err(_) => Check::fail(
                    ("rabbitmq-rights", Exit::Denied),
                    format!("the user may not write to {what}, where dead letters go"),
                    RIGHTS,
                ),
            },
        )
    }
}

const RIGHTS: &str = "give the user the right to write: rabbitmqctl set_permissions -p VHOST USER \
                      CONFIGURE WRITE READ, whose WRITE matches the exchange's name";

fn shown(exchange: &str) -> String {
    match exchange {
        "" => "the default exchange".to_owned(),
        _ => format!("{exchange:?}"),
    }
}

fn exchanges(there: Vec<String>, missing: Vec<String>) -> Check {
    if !missing.is_empty() {
        let missing = shortened(missing, LISTED).join(", ");
        return Check::fail(
            ("rabbitmq-exchange-missing", Exit::Config),
            format!("not on the server: {missing}"),
            "declare the exchange, or for the default exchange the queue that routing_key names; \
             or correct exchange in [sink.rabbitmq]",
        );
    }
    if there.is_empty() {
        return Check::pass("no exchange is known before the first event");
    }
    Check::pass(format!(
        "on the server: {}",
        shortened(there, LISTED).join(", ")
    ))
}

fn write(allowed: Vec<String>, denied: Vec<String>) -> Check {
    if !denied.is_empty() {
        let denied = shortened(denied, LISTED).join(", ");
        return Check::fail(
            ("rabbitmq-rights", Exit::Denied),
            format!("the user may not write to {denied}"),
            RIGHTS,
        );
    }
    if allowed.is_empty() {
        return Check::pass("no exchange is there to be written to");
    }
    let allowed = shortened(allowed, LISTED).join(", ");
    Check::pass(format!("the user may write to {allowed}"))
}
