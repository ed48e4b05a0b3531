//! The server that relays send to, and what arrives there.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use walrelay_measure::proc;
use walrelay_testkit::{
    Delivered, HttpReceiver, Nats, PATIENCE, QueueOptions, RabbitMq, Reaction, Received, Redis,
    lock,
};

/// The header that gets the key of an event.
pub(super) const KEY_HEADER: &str = "x-event-key";

/// A receiver that takes its time.
const LATE: Case = Case::Late(Duration::from_millis(5));

/// The way in which the server takes events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// A quorum queue.
    Queue,
    /// A stream of Redis, which writes each command to its disk before it answers, or of NATS.
    Stream,
    /// A receiver that answers at once.
    AtOnce,
    /// A receiver that answers after this time, as one does that writes to its database first.
    Late(Duration),
}

impl Case {
    pub(super) fn name(self) -> String {
        match self {
            Self::Queue => "a quorum queue".to_owned(),
            Self::Stream => "a stream".to_owned(),
            Self::AtOnce => "a receiver that answers at once".to_owned(),
            Self::Late(time) => format!("a receiver that answers after {} ms", time.as_millis()),
        }
    }

    /// Returns the short name, a part of the names of slots.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Stream => "stream",
            Self::AtOnce => "now",
            Self::Late(_) => "late",
        }
    }
}

/// An event that has arrived.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    /// Microseconds since 1970.
    pub(super) at: i64,
    pub(super) event: Delivered,
}

pub(super) enum Target {
    RabbitMq(Box<RabbitMq>),
    Redis(Box<Redis>),
    Nats(Box<Nats>),
    Http {
        receiver: HttpReceiver,
        arrived: Arc<Mutex<Vec<Arrived>>>,
        /// Microseconds until an answer.
        late: Arc<AtomicU64>,
    },
}

impl Target {
    pub(super) fn start(name: &str) -> Self {
        match name {
            "rabbitmq" => Self::RabbitMq(Box::new(RabbitMq::start())),
            "nats" => Self::Nats(Box::new(Nats::start())),
            "redis" => Self::Redis(Box::new(Redis::start())),
            "http" => {
                let arrived = Arc::<Mutex<Vec<Arrived>>>::default();
                let late = Arc::<AtomicU64>::default();
                let (events, time) = (Arc::clone(&arrived), Arc::clone(&late));
                let receiver = HttpReceiver::start(false, None, move |_, request| {
                    lock(&events).push(arrival(request));
                    match time.load(Ordering::Relaxed) {
                        0 => Reaction::Store(204),
                        late => Reaction::StoreAfter(Duration::from_micros(late), 204),
                    }
                });
                Self::Http {
                    receiver,
                    arrived,
                    late,
                }
            }
            other => panic!("BENCH_SINK={other} is not rabbitmq, redis, nats or http"),
        }
    }

    /// Returns the kind of the sink in a configuration.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::RabbitMq(_) => "rabbitmq",
            Self::Redis(_) => "redis",
            Self::Nats(_) => "nats",
            Self::Http { .. } => "http",
        }
    }

    pub(super) fn cases(&self) -> &'static [Case] {
        match self {
            Self::RabbitMq(_) => &[Case::Queue],
            Self::Redis(_) | Self::Nats(_) => &[Case::Stream],
            Self::Http { .. } => &[Case::AtOnce, LATE],
        }
    }

    /// Makes an empty place of this name for the events of a run.
    pub(super) fn prepare(&self, name: &str, case: Case) {
        match self {
            Self::RabbitMq(server) => {
                let options = QueueOptions {
                    queue_type: "quorum",
                    ..QueueOptions::default()
                };
                server.client().declare_queue(name, options);
            }
            Self::Nats(server) => {
                let (mut client, no_more) = (server.client(), serde_json::json!({}));
                client.create_stream(name, &[name], &no_more);
            }
            // The first entry makes the stream.
            Self::Redis(_) => {}
            Self::Http { arrived, late, .. } => {
                lock(arrived).clear();
                let time = match case {
                    Case::Late(time) => time.as_micros() as u64,
                    Case::Queue | Case::Stream | Case::AtOnce => 0,
                };
                late.store(time, Ordering::Relaxed);
            }
        }
    }

    /// Returns host and port.
    pub(super) fn address(&self) -> String {
        match self {
            Self::RabbitMq(server) => format!("127.0.0.1:{}", server.port()),
            Self::Redis(server) => format!("127.0.0.1:{}", server.port()),
            Self::Nats(server) => format!("127.0.0.1:{}", server.port()),
            Self::Http { receiver, .. } => receiver.address().to_string(),
        }
    }

    /// Returns the sections of walrelay's configuration.
    pub(super) fn sections(&self, name: &str) -> String {
        let (kind, address) = (self.kind(), self.address());
        let keys = match self {
            Self::RabbitMq(_) => format!(
                "hosts = [\"{address}\"]\nusername = \"guest\"\npassword = \"guest\"\n\
                 exchange = \"\"\nrouting_key = \"{name}\"\n"
            ),
            Self::Nats(_) => format!("hosts = [\"{address}\"]\nsubject = \"{name}\"\n"),
            Self::Redis(_) => format!("hosts = [\"{address}\"]\nstream = \"{name}\"\n"),
            Self::Http { .. } => {
                format!("url = \"http://{address}/{{topic}}\"\nkey_header = \"{KEY_HEADER}\"\n")
            }
        };
        format!("[sink]\nkind = \"{kind}\"\n\n[sink.{kind}]\n{keys}\n")
    }

    /// Returns the CPU seconds of the server so far; `None` if it is a part of this program.
    pub(super) fn cpu(&self) -> Option<f64> {
        match self {
            Self::RabbitMq(server) => proc::cpu(server.pid()),
            Self::Redis(server) => proc::cpu(server.pid()),
            Self::Nats(server) => proc::cpu(server.pid()),
            Self::Http { .. } => None,
        }
    }

    /// Waits until this many different events have arrived, and returns all. `ready` is called when an
    /// event that arrives from now on is seen at once.
    pub(super) fn arrivals(&self, name: &str, rows: u64, ready: impl FnOnce()) -> Vec<Arrived> {
        match self {
            Self::RabbitMq(server) => {
                let mut client = server.client();
                client.consume(name);
                ready();
                let mut arrived = Vec::new();
                let mut ids = HashSet::new();
                while (ids.len() as u64) < rows {
                    let message = client.delivered();
                    let at = micros_now();
                    ids.extend(message.message_id.clone());
                    let event = Delivered {
                        id: message.message_id,
                        topic: name.to_owned(),
                        offset: arrived.len() as i64,
                        key: message.headers.get("walrelay.key").cloned().flatten(),
                        payload: Some(message.body),
                        ..Delivered::default()
                    };
                    arrived.push(Arrived { at, event });
                }
                arrived
            }
            Self::Nats(server) => {
                let mut client = server.client();
                client.consume(name);
                ready();
                let mut arrived: Vec<Arrived> = Vec::new();
                let mut ids = HashSet::new();
                while (ids.len() as u64) < rows {
                    let (headers, payload) = client.delivered();
                    let at = micros_now();
                    let id = headers.get("Nats-Msg-Id").cloned();
                    ids.extend(id.clone());
                    let event = Delivered {
                        id,
                        topic: name.to_owned(),
                        offset: arrived.len() as i64,
                        key: headers
                            .get("walrelay.key")
                            .map(|key| key.clone().into_bytes()),
                        payload: Some(payload),
                        ..Delivered::default()
                    };
                    arrived.push(Arrived { at, event });
                }
                arrived
            }
            Self::Redis(server) => {
                let mut client = server.client();
                ready();
                let mut arrived: Vec<Arrived> = Vec::new();
                let mut ids = HashSet::new();
                let mut last = "0".to_owned();
                while (ids.len() as u64) < rows {
                    let entries = client.next_entries(name, &last);
                    let at = micros_now();
                    for entry in entries {
                        let id = entry.text("id").map(str::to_owned);
                        ids.extend(id.clone());
                        let event = Delivered {
                            id,
                            topic: name.to_owned(),
                            offset: arrived.len() as i64,
                            key: entry.fields.get("key").cloned(),
                            payload: entry.fields.get("payload").cloned(),
                            ..Delivered::default()
                        };
                        arrived.push(Arrived { at, event });
                        last = entry.id;
                    }
                }
                arrived
            }
            Self::Http { arrived, .. } => {
                ready();
                let deadline = Instant::now() + PATIENCE;
                // More arrive only if some were posted again.
                while (lock(arrived).len() as u64) < rows {
                    assert!(Instant::now() < deadline, "{rows} requests");
                    thread::sleep(Duration::from_millis(20));
                }
                let mut all = std::mem::take(&mut *lock(arrived));
                for (number, one) in all.iter_mut().enumerate() {
                    name.clone_into(&mut one.event.topic);
                    one.event.offset = number as i64;
                }
                all
            }
        }
    }
}

fn arrival(request: &Received) -> Arrived {
    let id = request.header("webhook-id").map(str::to_owned);
    let key = request.header(KEY_HEADER);
    Arrived {
        at: micros_now(),
        event: Delivered {
            id,
            key: key.map(|key| key.as_bytes().to_vec()),
            payload: Some(request.body.clone()),
            ..Delivered::default()
        },
    }
}

fn micros_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}
