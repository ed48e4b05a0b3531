//! A client of NATS for tests, around the crate `async-nats`: other code than the sink's reads what the sink
//! published.
//!
//! The requests that create and change streams are JSON of the tests' own, because the crate would leave
//! out members that its types do not have.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::{Client, ConnectOptions, HeaderMap, Message, Request, RequestError};
use futures_util::{Stream, StreamExt as _};
use serde_json::{Value, json};

use crate::runtime::wait;
use crate::wait::PATIENCE;

/// The messages that are asked for at a time.
const BATCH: usize = 2_000;
/// The messages of a subscription that wait here. The crate drops what comes when there are more.
const SUBSCRIPTION: usize = 1 << 20;

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsMessage {
    /// The subject.
    pub subject: String,
    /// The number in the stream.
    pub seq: u64,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// A connection to a server. It never reconnects, so that nothing is lost or sent twice unnoticed.
pub struct NatsClient {
    client: Client,
    jetstream: Context,
    deliveries: Option<Pin<Box<dyn Stream<Item = Message> + Send>>>,
}

impl fmt::Debug for NatsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("NatsClient");
        fields.field("client", &self.client).finish_non_exhaustive()
    }
}

impl NatsClient {
    /// Connects without a login.
    pub fn connect(port: u16) -> Self {
        Self::connect_with(port, ConnectOptions::new())
    }

    /// Connects as a user.
    pub fn connect_as(port: u16, user: &str, password: &str) -> Self {
        let (user, password) = (user.to_owned(), password.to_owned());
        Self::connect_with(port, ConnectOptions::with_user_and_password(user, password))
    }

    fn connect_with(port: u16, options: ConnectOptions) -> Self {
        let is_first = AtomicBool::new(true);
        let options = options
            .connection_timeout(PATIENCE)
            .request_timeout(Some(PATIENCE))
            .subscription_capacity(SUBSCRIPTION)
            .ignore_discovered_servers()
            // The crate allows one reconnect at least.
            .reconnect_delay_callback(move |_| {
                if is_first.swap(false, Ordering::Relaxed) {
                    Duration::ZERO
                } else {
                    Duration::MAX
                }
            });
        wait(async {
            let client = options.connect(format!("127.0.0.1:{port}")).await;
            let client = client.expect("NATS takes the client");
            let jetstream = ContextBuilder::new()
                .timeout(PATIENCE)
                .ack_timeout(PATIENCE);
            Self {
                jetstream: jetstream.build(client.clone()),
                client,
                deliveries: None,
            }
        })
    }

    /// Creates a stream of these subjects, with more members of its configuration. It is in files, and
    /// its messages can be read.
    pub fn create_stream(&mut self, name: &str, subjects: &[&str], more: &Value) {
        self.change("CREATE", name, subjects, more);
    }

    /// Changes a stream.
    pub fn update_stream(&mut self, name: &str, subjects: &[&str], more: &Value) {
        self.change("UPDATE", name, subjects, more);
    }

    fn change(&mut self, call: &str, name: &str, subjects: &[&str], more: &Value) {
        let mut config = json!({
            "name": name,
            "subjects": subjects,
            "storage": "file",
            "retention": "limits",
            "num_replicas": 1,
            "allow_direct": true,
        });
        for (member, value) in more.as_object().into_iter().flatten() {
            config[member] = value.clone();
        }
        let answer = self.api(&format!("STREAM.{call}.{name}"), &config);
        assert!(answer.get("error").is_none(), "{call} {name}: {answer}");
    }

    /// Deletes a stream.
    pub fn delete_stream(&mut self, name: &str) {
        let answer = self.api(&format!("STREAM.DELETE.{name}"), &json!({}));
        assert_eq!(answer["success"], true, "{answer}");
    }

    /// Calls JetStream's API. An answer has a member `error` if the call is refused; it is null if
    /// JetStream is not there.
    pub fn api(&mut self, call: &str, body: &Value) -> Value {
        self.publish(&format!("$JS.API.{call}"), "", body.to_string().as_bytes())
    }

    /// Publishes a message with header lines, each with its end, and returns the answer of the stream;
    /// null if nobody is subscribed.
    pub fn publish(&mut self, subject: &str, headers: &str, payload: &[u8]) -> Value {
        let request = Request::new()
            .headers(header_map(headers))
            .payload(payload.to_vec().into());
        self.answer(subject, request).expect("an answer")
    }

    fn answer(&self, subject: &str, request: Request) -> Result<Value, RequestError> {
        match wait(self.client.send_request(subject.to_owned(), request)) {
            Ok(answer) => Ok(serde_json::from_slice(&answer.payload).unwrap_or_default()),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(Value::Null),
            Err(error) => Err(error),
        }
    }

    /// Calls JetStream's API as [`api`](Self::api) does; `None` if no answer comes within `limit`.
    pub(super) fn api_within(&self, call: &str, body: &Value, limit: Duration) -> Option<Value> {
        let body = body.to_string().into();
        let request = Request::new().payload(body).timeout(Some(limit));
        self.answer(&format!("$JS.API.{call}"), request).ok()
    }

    /// Publishes messages, sent all at once, each of which a stream must take: subject, header lines,
    /// each with its end, and payload.
    pub fn publish_all(&mut self, messages: &[(&str, String, &[u8])]) {
        wait(async {
            let mut answers = Vec::new();
            for (subject, headers, payload) in messages {
                let (headers, payload) = (header_map(headers), payload.to_vec().into());
                let publish =
                    self.jetstream
                        .publish_with_headers((*subject).to_owned(), headers, payload);
                answers.push(publish.await.expect("it is sent"));
            }
            for answer in answers {
                answer.await.expect("a stream takes it");
            }
        });
    }

    /// Begins to consume a stream. Its messages are [delivered](Self::delivered).
    pub fn consume(&mut self, stream: &str) {
        let messages = wait(async {
            let consumer = self.consumer(stream, ">").await?;
            let messages = consumer.stream().max_messages_per_batch(BATCH);
            Ok::<_, async_nats::Error>(messages.messages().await?)
        });
        let messages = messages.expect("the stream is consumed");
        let messages = messages.map(|message| message.expect("a message").message);
        self.deliveries = Some(Box::pin(messages));
    }

    async fn consumer(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Consumer<pull::Config>, async_nats::Error> {
        let config = pull::Config {
            ack_policy: AckPolicy::None,
            filter_subject: subject.to_owned(),
            ..pull::Config::default()
        };
        Ok(self
            .jetstream
            .create_consumer_on_stream(config, stream)
            .await?)
    }

    /// Subscribes to a subject. What is published to it is [delivered](Self::delivered), whether a stream
    /// takes it or not.
    pub fn subscribe(&mut self, subject: &str) {
        let subscriber = wait(self.client.subscribe(subject.to_owned()));
        self.deliveries = Some(Box::pin(subscriber.expect("a subscription")));
        // The answer to a request comes behind the subscription.
        self.publish(&self.client.new_inbox(), "", b"");
    }

    /// Waits for the next message of the stream that is [consumed](Self::consume), or of a subject that is
    /// subscribed to. Returns headers and payload.
    pub fn delivered(&mut self) -> (BTreeMap<String, String>, Vec<u8>) {
        let deliveries = self.deliveries.as_mut().expect("something is consumed");
        let message = wait(deliveries.next()).expect("a message");
        (headers(&message), message.payload.into())
    }

    /// Returns the numbers of messages of a stream by their subjects; none if JetStream does not say.
    pub fn counts(&mut self, stream: &str) -> BTreeMap<String, u64> {
        let info = self.api(
            &format!("STREAM.INFO.{stream}"),
            &json!({"subjects_filter": ">"}),
        );
        let subjects = info["state"]["subjects"].as_object();
        let subjects = subjects.into_iter().flatten();
        subjects
            .filter_map(|(subject, count)| Some((subject.clone(), count.as_u64()?)))
            .collect()
    }

    /// Reads all messages of a stream with a subject, which may have wildcards, in order.
    pub fn messages(&mut self, stream: &str, subject: &str) -> Vec<NatsMessage> {
        let messages = wait(self.read(stream, subject));
        messages.unwrap_or_else(|error| panic!("{stream}: {error}"))
    }

    async fn read(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Vec<NatsMessage>, async_nats::Error> {
        let consumer = self.consumer(stream, subject).await?;
        let mut messages = Vec::new();
        loop {
            let before = messages.len();
            let mut batch = consumer.fetch().max_messages(BATCH).messages().await?;
            while let Some(message) = batch.next().await {
                let message = message?;
                messages.push(NatsMessage {
                    subject: message.subject.to_string(),
                    seq: message.info()?.stream_sequence,
                    headers: headers(&message),
                    payload: message.payload.to_vec(),
                });
            }
            if messages.len() == before {
                break;
            }
        }
        let name = &consumer.cached_info().name;
        self.jetstream
            .delete_consumer_from_stream(name, stream)
            .await?;
        Ok(messages)
    }
}

/// Returns the headers of a message, each of which must have one value.
fn headers(message: &Message) -> BTreeMap<String, String> {
    let headers = message.headers.iter().flat_map(HeaderMap::iter);
    let header = headers.map(|(name, values)| {
        let [value] = &**values else {
            panic!("{name} has the values {values:?}");
        };
        (name.to_string(), value.to_string())
    });
    header.collect()
}

/// Returns the headers of lines, each with its end.
fn header_map(lines: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.lines() {
        let (name, value) = line.split_once(": ").expect("a name and a value");
        headers.append(name, value);
    }
    headers
}
