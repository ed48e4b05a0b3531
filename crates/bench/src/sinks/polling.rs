//! A polling relay into RabbitMQ, Redis, NATS or HTTP, in a process of its own, as the one of Kafka is
//! ([`polling`](crate::polling)).
//!
//! It takes batches of 1,000 by `FOR UPDATE SKIP LOCKED`. To RabbitMQ it publishes the whole batch,
//! persistent and mandatory, on one channel, before it waits for the confirms. To Redis it sends an `XADD` for
//! each event of the batch before it reads the replies, and to NATS a message for each before it reads
//! the acknowledgements. By HTTP it posts one
//! event after the other, on one connection. Then it marks the batch by one `UPDATE`, commits, and
//! takes the next batch, all sent to Postgres at once.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use walrelay_testkit::{AmqpClient, NatsClient, Publication, RedisClient};

use super::target::KEY_HEADER;
use crate::polling::{AfterSend, BATCH, BatchStart, POLL_PAUSE, READY_LINE, TAKE, connect};

pub(crate) const FLAG: &str = "--polling-sink";

/// Returns the arguments of the child process: it relays `rows` rows to the place of this name, or
/// runs until it is killed if `rows` is 0.
pub(super) fn arguments(
    kind: &str,
    url: &str,
    address: &str,
    name: &str,
    rows: u64,
) -> Vec<String> {
    let rows = rows.to_string();
    let words = [FLAG, kind, url, address, name, &rows];
    words.map(str::to_owned).to_vec()
}

/// Sends batches.
enum Publisher {
    RabbitMq {
        client: AmqpClient,
        queue: String,
    },
    Nats {
        client: NatsClient,
        subject: String,
    },
    Redis {
        client: RedisClient,
        stream: String,
    },
    Http {
        stream: BufReader<TcpStream>,
        address: String,
        request: Vec<u8>,
    },
}

impl Publisher {
    fn connect(kind: &str, address: &str, name: &str) -> Self {
        let port = address.rsplit(':').next();
        let port = port.and_then(|port| port.parse().ok()).expect("a port");
        let name = name.to_owned();
        match kind {
            "rabbitmq" => {
                let mut client = AmqpClient::connect(port);
                client.select_confirms();
                return Self::RabbitMq {
                    client,
                    queue: name,
                };
            }
            "nats" => {
                return Self::Nats {
                    client: NatsClient::connect(port),
                    subject: name,
                };
            }
            "redis" => {
                return Self::Redis {
                    client: RedisClient::connect(port),
                    stream: name,
                };
            }
            _ => {}
        }
        let stream = TcpStream::connect(address).expect("the receiver listens");
        stream.set_nodelay(true).expect("a socket");
        Self::Http {
            stream: BufReader::new(stream),
            address: address.to_owned(),
            request: Vec::new(),
        }
    }

    /// Sends the rows, and returns when the server has taken all.
    fn publish(&mut self, rows: &[Row]) {
        match self {
            Self::RabbitMq { client, queue } => client.publish(rows.iter().map(|row| {
                let payload: &str = row.get(4);
                Publication {
                    exchange: "",
                    routing_key: queue,
                    message_id: row.get(1),
                    key: row.get(3),
                    body: payload.as_bytes(),
                    ..Publication::default()
                }
            })),
            Self::Nats { client, subject } => {
                let messages = rows.iter().map(|row| {
                    let (id, key, payload): (&str, &str, &str) =
                        (row.get(1), row.get(3), row.get(4));
                    let headers = format!("Nats-Msg-Id: {id}\r\nwalrelay.key: {key}\r\n");
                    (&**subject, headers, payload.as_bytes())
                });
                client.publish_all(&messages.collect::<Vec<_>>());
            }
            Self::Redis { client, stream } => {
                let commands = rows.iter().map(|row| {
                    let (id, key, payload) = (row.get(1), row.get(3), row.get(4));
                    vec![
                        "XADD", stream, "*", "id", id, "key", key, "payload", payload,
                    ]
                });
                client.run_all(&commands.collect::<Vec<_>>());
            }
            Self::Http {
                stream,
                address,
                request,
            } => {
                for row in rows {
                    let (id, kind): (&str, &str) = (row.get(1), row.get(2));
                    let (key, payload): (&str, &str) = (row.get(3), row.get(4));
                    request.clear();
                    let written = write!(
                        request,
                        "POST /{kind} HTTP/1.1\r\nhost: {address}\r\n\
                         content-type: application/json\r\nwebhook-id: {id}\r\n\
                         {KEY_HEADER}: {key}\r\ncontent-length: {}\r\n\r\n{payload}",
                        payload.len()
                    );
                    written.expect("memory");
                    let sent = stream.get_mut().write_all(request);
                    sent.expect("the receiver reads");
                    await_answer(stream);
                }
            }
        }
    }
}

/// Reads an answer, which must be 2xx.
fn await_answer(stream: &mut BufReader<TcpStream>) {
    let (mut status, mut length, mut line) = (String::new(), 0, String::new());
    stream.read_line(&mut status).expect("an answer");
    assert!(status.starts_with("HTTP/1.1 2"), "{status}");
    loop {
        line.clear();
        stream.read_line(&mut line).expect("a header");
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().expect("a length");
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let body = std::io::copy(&mut stream.take(length), &mut std::io::sink());
    assert_eq!(body.expect("a body"), length);
}

/// Runs the main function of the child process.
#[expect(clippy::print_stderr, reason = "the parent waits for this line")]
pub(crate) fn serve() {
    let arguments: Vec<String> = env::args().skip(2).collect();
    let [kind, url, address, name, rows] = &arguments[..] else {
        panic!("{FLAG} KIND URL ADDRESS NAME ROWS, not {arguments:?}");
    };
    let rows: u64 = rows.parse().expect("a number of rows");
    let mut publisher = Publisher::connect(kind, address, name);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let client = connect(url).await;
        let take = client
            .prepare(TAKE)
            .await
            .expect("the batch can be asked for");
        let mark = AfterSend::Update.statement();
        let mark = client.prepare(mark).await.expect("and marked");
        eprintln!("{READY_LINE}");
        let (mut start, mut done) = (BatchStart::default(), 0);
        // The rows of the batch that was sent.
        let mut sent: Vec<i64> = Vec::new();
        while rows == 0 || done < rows {
            let after = start.after();
            let (after, numbers): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 1]) =
                ([&after], [&sent]);
            let (marked, committed, begun, batch) = tokio::join!(
                client.execute(&mark, &numbers),
                client.batch_execute("COMMIT"),
                client.batch_execute("BEGIN"),
                client.query(&take, &after)
            );
            assert_eq!(marked.expect("the batch is marked"), sent.len() as u64);
            committed.expect("and committed");
            begun.expect("a transaction");
            let batch = batch.expect("a batch");
            done += sent.len() as u64;
            let from_the_beginning = start.after() == 0;
            let last = batch.last().map(|row| row.get(0));
            start.advance(last, batch.len() as i64 == BATCH);
            publisher.publish(&batch);
            sent = batch.iter().map(|row| row.get(0)).collect();
            if batch.is_empty() && from_the_beginning && (rows == 0 || done < rows) {
                sleep(&client).await;
            }
        }
        client
            .batch_execute("COMMIT")
            .await
            .expect("the last commit");
    });
}

/// Waits outside a transaction until rows are looked for again.
async fn sleep(client: &tokio_postgres::Client) {
    let pause: Duration = POLL_PAUSE;
    client.batch_execute("COMMIT").await.expect("its end");
    tokio::time::sleep(pause).await;
}
