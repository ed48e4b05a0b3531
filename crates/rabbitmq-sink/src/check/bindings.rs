//! What the management interface shows: bindings, and queues that lose messages.

use std::collections::{BTreeMap, BTreeSet};

use walrelay_failure::{Chain, Exit};
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks, shortened};

use super::{BINDINGS, LISTED, QUEUES, shown};
use crate::client::drops_confirmed;
use crate::management::{Interface, Management, ManagementError, Reached, Routes};
use crate::sink::Settings;

/// Queues that are looked at, at most.
const MAX_QUEUES: usize = 100;

/// Looks for addresses without a queue, and at the queues of the others. `is_external`: the user has no
/// password, which the interface asks for.
pub(crate) fn check(
    management: Option<&Management>,
    is_external: bool,
    settings: &Settings,
    input: &CheckInput<'_>,
) -> SinkChecks {
    let Some(management) = management else {
        let what = "not looked at: AMQP shows neither bindings nor queues that drop messages, and \
                    management_url is not set";
        let check = if is_external {
            Check::pass("not looked at: the management interface asks for a password")
        } else {
            Check::warn(what, "set management_url in [sink.rabbitmq]")
        };
        return vec![(BINDINGS, check)];
    };
    let looked = management.open().and_then(|interface| {
        let mut bindings = Bindings::default();
        bindings.add_addresses(&interface, settings, input)?;
        let queues = queues(&interface, &bindings.queues)?;
        Ok(vec![(BINDINGS, bindings.check()), (QUEUES, queues)])
    });
    looked.unwrap_or_else(|error| vec![(BINDINGS, unseen(&error))])
}

fn unseen(error: &ManagementError) -> Check {
    let remedy = match error {
        ManagementError::Denied { .. } => {
            "give the user the tag that allows to ask: rabbitmqctl set_user_tags USER management"
        }
        ManagementError::Unreachable { .. } => {
            "correct management_url in [sink.rabbitmq], or enable the plugin rabbitmq_management"
        }
        ManagementError::Roots { .. } => "correct ca_file in [sink.rabbitmq]",
    };
    let what = format!(
        "bindings are not seen: the management interface {}",
        Chain(error)
    );
    Check::warn(what, remedy)
}

/// The findings about the addresses of the newest rows, and of dead letters.
#[derive(Default)]
struct Bindings {
    routed: usize,
    /// By exchange, the number of routing keys without a queue.
    unbound: BTreeMap<String, usize>,
    are_dead_letters_unbound: bool,
    /// The exchanges whose routing is not known.
    open: BTreeSet<String>,
    /// The exchanges that may keep messages for a while.
    delayed: BTreeSet<String>,
    queues: BTreeMap<String, Found>,
}

/// The ways by which messages come to a queue.
#[derive(Default)]
struct Found {
    exchanges: BTreeSet<String>,
    /// The name may be shown. That of a queue at the default exchange is a routing key, unless it is declared.
    may_be_shown: bool,
}

impl Bindings {
    /// Adds the queues of the addresses of the newest rows, and of dead letters.
    fn add_addresses(
        &mut self,
        interface: &Interface<'_>,
        settings: &Settings,
        input: &CheckInput<'_>,
    ) -> Result<(), ManagementError> {
        let mut routes = Routes::new(interface);
        let declared = settings.declare.as_ref();
        for (exchange, routing_key) in &input.addresses {
            let key = routing_key.as_deref().unwrap_or_default();
            if let Some(declared) = declared
                && declared.exchange == *exchange
                && match &**exchange {
                    "" => declared.queue == key,
                    // The relay makes a topic of it, and binds it for all routing keys, and for the one
                    // that is constant.
                    _ => {
                        declared.routing_key.is_some() || routes.takes_all(exchange)? != Some(false)
                    }
                }
            {
                self.add(declared.queue.clone(), exchange, true);
                self.routed += 1;
                continue;
            }
            match self.queues_of(interface, &mut routes, exchange, key)? {
                Some(true) => self.routed += 1,
                Some(false) => *self.unbound.entry(shown(exchange)).or_default() += 1,
                None => {}
            }
        }
        if input.dead_letters.is_some() {
            let to = &settings.dead_letters;
            let has_queue =
                self.queues_of(interface, &mut routes, &to.exchange, &to.routing_key)?;
            self.are_dead_letters_unbound = has_queue == Some(false);
        }
        Ok(())
    }

    /// Adds the queues of an address. Returns whether there are any; `None` without the exchange.
    fn queues_of(
        &mut self,
        interface: &Interface<'_>,
        routes: &mut Routes<'_, Interface<'_>>,
        exchange: &str,
        routing_key: &str,
    ) -> Result<Option<bool>, ManagementError> {
        let Some(reached) = routes.reached(exchange, routing_key)? else {
            return Ok(None);
        };
        let Reached {
            queues,
            is_open,
            is_delayed,
        } = reached;
        if is_delayed {
            self.delayed.insert(shown(exchange));
        }
        if exchange.is_empty() && interface.queue(routing_key)?.is_none() {
            return Ok(Some(false));
        }
        if is_open {
            self.open.insert(shown(exchange));
        }
        let is_routed = is_open || !queues.is_empty();
        for queue in queues {
            self.add(queue, exchange, !exchange.is_empty());
        }
        Ok(Some(is_routed))
    }

    fn add(&mut self, queue: String, exchange: &str, may_be_shown: bool) {
        let usage = self.queues.entry(queue).or_default();
        usage.exchanges.insert(exchange.to_owned());
        usage.may_be_shown |= may_be_shown;
    }

    fn check(self) -> Check {
        let mut missing: Vec<String> = Vec::new();
        for (exchange, count) in &self.unbound {
            let keys = if *count == 1 { "key" } else { "keys" };
            missing.push(format!(
                "{exchange} for {count} routing {keys} of the newest rows"
            ));
        }
        if self.are_dead_letters_unbound {
            missing.push("the exchange of dead letters for their routing key".to_owned());
        }
        if !missing.is_empty() {
            let missing = shortened(missing, LISTED).join(", ");
            return Check::fail(
                ("rabbitmq-unbound", Exit::Config),
                format!("no queue is bound to {missing}"),
                "bind a queue for them, or correct exchange and routing_key in [sink.rabbitmq]; \
                 events that no queue receives are poison, unroutable",
            );
        }
        if !self.delayed.is_empty() {
            let delayed = shortened(self.delayed.into_iter().collect(), LISTED).join(", ");
            return Check::warn(
                format!(
                    "{delayed}: exchanges of the type x-delayed-message are not supported. They \
                     return events that have a header x-delay, which the relay counts as \
                     unroutable, and deliver them later"
                ),
                "use another type of exchange, or give no event a header x-delay",
            );
        }
        let mut finding = match self.routed {
            0 => "no routing key is known before the first event".to_owned(),
            _ => "a queue is bound for each routing key of the newest rows".to_owned(),
        };
        if !self.open.is_empty() {
            let open = shortened(self.open.into_iter().collect(), LISTED).join(", ");
            finding = format!("{finding}; not known of {open}, which does not route by it alone");
        }
        Check::pass(finding)
    }
}

fn queues(
    interface: &Interface<'_>,
    names: &BTreeMap<String, Found>,
) -> Result<Check, ManagementError> {
    let mut lossy = Vec::new();
    for (name, found) in names.iter().take(MAX_QUEUES) {
        let Some(queue) = interface.queue(name)? else {
            continue;
        };
        let mut how = queue.loses();
        let has_several = queue.members() > 1 || found.exchanges.len() > 1;
        if queue.is_stream() && has_several && drops_confirmed(&interface.version()?) == Some(true)
        {
            how = Some(
                "is a stream of several nodes or exchanges: RabbitMQ before 4.0 can drop messages when \
                 its leader changes",
            );
        }
        if let Some(how) = how {
            lossy.push(if found.may_be_shown {
                format!("{name:?} {how}")
            } else {
                format!("of a routing key {how}")
            });
        }
    }
    if lossy.is_empty() {
        let count = names.len().min(MAX_QUEUES);
        return Ok(Check::pass(format!(
            "none of the {count} queues drops messages or is lost with the server"
        )));
    }
    let lossy = shortened(lossy, LISTED).join("; ");
    Ok(Check::warn(
        format!("confirmed messages can be lost: the queue {lossy}"),
        "recreate the queue as durable, and with x-overflow = reject-publish if it has a limit; use \
         RabbitMQ 4.0 or newer for streams",
    ))
}
