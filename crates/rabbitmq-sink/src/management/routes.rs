//! The queues that a routing key reaches, by the rules of exchanges.
//!
//! Source: AMQP 0-9-1, section 3.1.3 (types of exchanges); RabbitMQ's documentation of
//! exchange-to-exchange bindings and alternate exchanges.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;

/// The type of exchange that keeps messages with a header `x-delay` for a while. Until then it returns
/// those that are `mandatory`, and they are on the disk of one node.
///
/// Source: "Limitations" in the README of `rabbitmq_delayed_message_exchange`.
const DELAYED: &str = "x-delayed-message";

/// An exchange as the management interface describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Exchange {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    arguments: HashMap<String, serde_json::Value>,
    #[serde(default)]
    policy: Option<String>,
}

/// A binding as the management interface describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Binding {
    destination: String,
    destination_type: String,
    routing_key: String,
}

/// A server that is asked for its exchanges.
pub(crate) trait Server {
    type Error;

    /// Returns an exchange; `None` if it does not exist.
    fn exchange(&self, name: &str) -> Result<Option<Exchange>, Self::Error>;

    /// Returns the bindings from an exchange.
    fn bindings(&self, exchange: &str) -> Result<Vec<Binding>, Self::Error>;
}

/// The queues of a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) queues: BTreeSet<String>,
    /// An exchange on the way routes by something else than the routing key, or a policy may give it
    /// an alternate exchange: there may be more queues.
    pub(crate) is_open: bool,
    /// An exchange on the way is one of the plugin `rabbitmq_delayed_message_exchange`.
    pub(crate) is_delayed: bool,
}

/// The exchanges of a server. Each is asked for once.
pub(crate) struct Routes<'s, S> {
    server: &'s S,
    exchanges: HashMap<String, Option<(Exchange, Vec<Binding>)>>,
}

impl<'s, S: Server> Routes<'s, S> {
    pub(crate) fn new(server: &'s S) -> Self {
        Self {
            server,
            exchanges: HashMap::new(),
        }
    }

    /// Returns whether a binding with `#` takes every routing key; `None` if the exchange does not exist.
    pub(crate) fn takes_all(&mut self, exchange: &str) -> Result<Option<bool>, S::Error> {
        let entry = self.exchange(exchange)?;
        Ok(entry.map(|(exchange, _)| matches!(&*exchange.kind, "topic" | "fanout")))
    }

    /// Returns the queues that a message reaches; `None` if the exchange does not exist.
    pub(crate) fn reached(
        &mut self,
        exchange: &str,
        routing_key: &str,
    ) -> Result<Option<Reached>, S::Error> {
        let mut reached = Reached::default();
        if exchange.is_empty() {
            // Every queue is bound to the default exchange by its name.
            reached.queues.insert(routing_key.to_owned());
            return Ok(Some(reached));
        }
        if self.exchange(exchange)?.is_none() {
            return Ok(None);
        }
        let mut seen = BTreeSet::new();
        let mut rest = vec![exchange.to_owned()];
        while let Some(name) = rest.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let Some((exchange, bindings)) = self.exchange(&name)? else {
                continue;
            };
            let mut is_routed = false;
            reached.is_delayed |= exchange.kind == DELAYED;
            for binding in bindings {
                match matches(&exchange.kind, &binding.routing_key, routing_key) {
                    Some(false) => continue,
                    Some(true) => is_routed = true,
                    None => reached.is_open = true,
                }
                if binding.destination_type == "exchange" {
                    rest.push(binding.destination.clone());
                } else {
                    reached.queues.insert(binding.destination.clone());
                }
            }
            if is_routed {
                continue;
            }
            let alternate = exchange.arguments.get("alternate-exchange");
            match alternate.and_then(serde_json::Value::as_str) {
                Some(alternate) => rest.push(alternate.to_owned()),
                None => reached.is_open |= exchange.policy.is_some(),
            }
        }
        Ok(Some(reached))
    }

    fn exchange(&mut self, name: &str) -> Result<Option<&(Exchange, Vec<Binding>)>, S::Error> {
        if !self.exchanges.contains_key(name) {
            let entry = match self.server.exchange(name)? {
                Some(exchange) => Some((exchange, self.server.bindings(name)?)),
                None => None,
            };
            self.exchanges.insert(name.to_owned(), entry);
        }
        Ok(self.exchanges.get(name).and_then(Option::as_ref))
    }
}

/// Returns whether a binding takes a routing key; `None` if the exchange routes by something else.
fn matches(kind: &str, binding: &str, routing_key: &str) -> Option<bool> {
    match kind {
        "direct" => Some(binding == routing_key),
        "fanout" => Some(true),
        "topic" => {
            let words = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
            Some(topic_matches(&words(binding), &words(routing_key)))
        }
        _ => None,
    }
}

/// Returns whether the words of a pattern take those of a routing key: `*` is one word, `#` any
/// number.
fn topic_matches(pattern: &[String], key: &[String]) -> bool {
    // The lengths of the beginning of `key` that the pattern so far takes.
    let mut matched = vec![false; key.len() + 1];
    if let Some(first) = matched.first_mut() {
        *first = true;
    }
    for word in pattern {
        let mut next = vec![false; key.len() + 1];
        let mut before = false;
        for (length, (next, matched)) in next.iter_mut().zip(&matched).enumerate() {
            let last = length.checked_sub(1).and_then(|at| key.get(at));
            *next = match (word.as_str(), last) {
                ("#", _) => *matched || before,
                ("*", Some(_)) => before,
                (word, Some(last)) => before && word == last,
                (_, None) => false,
            };
            before = if word == "#" { *next } else { *matched };
        }
        matched = next;
    }
    matched.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// `exchange type [alternate]` and `exchange pattern queue-or-exchange`.
    struct Made {
        exchanges: &'static [(&'static str, &'static str, Option<&'static str>)],
        bindings: &'static [(&'static str, &'static str, &'static str)],
    }

    impl Server for Made {
        type Error = Infallible;

        fn exchange(&self, name: &str) -> Result<Option<Exchange>, Infallible> {
            let found = self.exchanges.iter().find(|it| it.0 == name);
            Ok(found.map(|(_, kind, alternate)| Exchange {
                kind: (*kind).to_owned(),
                arguments: alternate
                    .iter()
                    .map(|name| ("alternate-exchange".to_owned(), (*name).into()))
                    .collect(),
                policy: None,
            }))
        }

        fn bindings(&self, exchange: &str) -> Result<Vec<Binding>, Infallible> {
            let of = self.bindings.iter().filter(|it| it.0 == exchange);
            Ok(of
                .map(|(_, key, destination)| Binding {
                    destination: (*destination).to_owned(),
                    destination_type: if self.exchanges.iter().any(|it| it.0 == *destination) {
                        "exchange".to_owned()
                    } else {
                        "queue".to_owned()
                    },
                    routing_key: (*key).to_owned(),
                })
                .collect())
        }
    }

    #[test]
    fn a_pattern_takes_what_a_server_takes() {
        for (pattern, key, wanted) in [
            ("a.b", "a.b", true),
            ("a.b", "a", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("#", "", true),
            ("#", "a.b.c", true),
            ("a.#", "a", true),
            ("a.#", "a.b.c", true),
            ("a.#", "b.a", false),
            ("#.c", "a.b.c", true),
            ("#.c", "c", true),
            ("a.#.c", "a.c", true),
            ("a.#.c", "a.b.b.c", true),
            ("a.#.c", "a.b.b", false),
            ("#.*", "a", true),
            ("*", "", true),
            ("*.#.b", "a.b", true),
        ] {
            let found = matches("topic", pattern, key);
            assert_eq!(found, Some(wanted), "{pattern:?} {key:?}");
        }
    }

    #[test]
    fn a_message_follows_bindings_and_alternate_exchanges() {
        let server = Made {
            exchanges: &[
                ("orders", "topic", Some("rest")),
                ("paid", "fanout", None),
                ("rest", "direct", None),
                ("hashed", "x-consistent-hash", None),
                ("circle", "fanout", None),
                ("later", "x-delayed-message", None),
                ("before", "fanout", None),
            ],
            bindings: &[
                ("orders", "order.paid", "paid"),
                ("orders", "order.#", "all"),
                ("paid", "", "accounting"),
                ("rest", "odd", "odd"),
                ("hashed", "1", "one"),
                ("circle", "", "circle"),
                ("before", "", "later"),
            ],
        };
        let mut routes = Routes::new(&server);
        let mut reached = |exchange: &str, key: &str| {
            let Ok(reached) = routes.reached(exchange, key);
            let reached = reached.unwrap_or_default();
            let queues: Vec<String> = reached.queues.into_iter().collect();
            (queues.join(" "), reached.is_open)
        };
        for (exchange, key, queues, is_open) in [
            ("orders", "order.paid", "accounting all", false),
            ("orders", "order.made", "all", false),
            ("orders", "odd", "odd", false),
            ("orders", "other", "", false),
            ("rest", "order.made", "", false),
            ("hashed", "a", "one", true),
            ("circle", "a", "", false),
            ("none", "a", "", false),
            ("", "queue", "queue", false),
        ] {
            let wanted = (queues.to_owned(), is_open);
            assert_eq!(reached(exchange, key), wanted, "{exchange} {key}");
        }
        let mut is_delayed = |exchange: &str| {
            let Ok(reached) = routes.reached(exchange, "a");
            reached.expect("an exchange").is_delayed
        };
        assert!(is_delayed("later") && is_delayed("before"));
        assert!(!is_delayed("hashed"));
    }
}
