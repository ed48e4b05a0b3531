//! A client of Redis for tests, around the crate `redis`: other code than the sink's reads what the sink wrote.

use std::collections::BTreeMap;
use std::fmt;

use redis::{
    Client, Cmd, Connection, ConnectionLike as _, FromRedisValue, InfoDict,
    IntoConnectionInfo as _, Pipeline, RedisConnectionInfo, RedisResult, Value,
};

use crate::wait::PATIENCE;

/// The ids and fields of entries, in order.
type Entries = Vec<(String, Vec<(String, Vec<u8>)>)>;

/// An entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    /// The id.
    pub id: String,
    /// The fields.
    pub fields: BTreeMap<String, Vec<u8>>,
}

impl StreamEntry {
    /// Returns a field that is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        let field = self.fields.get(name)?;
        Some(std::str::from_utf8(field).expect("text"))
    }
}

/// A connection to a server. If the server ends it, the next call panics.
pub struct RedisClient {
    connection: Connection,
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").finish_non_exhaustive()
    }
}

impl RedisClient {
    /// Connects.
    pub fn connect(port: u16) -> Self {
        // Otherwise the client names itself by two commands, which a test may count.
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let address = ("127.0.0.1", port).into_connection_info();
        let client = address.and_then(|it| Client::open(it.set_redis_settings(settings)));
        let connection = client.and_then(|it| it.get_connection_with_timeout(PATIENCE));
        let connection = connection.expect("Redis takes connections");
        let limited = connection.set_read_timeout(Some(PATIENCE));
        limited.expect("a timeout");
        Self { connection }
    }

    /// Runs a command, whose arguments are the words of a text. An error is a
    /// [`ServerError`](Value::ServerError).
    pub fn run(&mut self, command: &str) -> Value {
        self.run_words(&words(command))
    }

    /// Runs a command.
    pub fn run_words(&mut self, words: &[&str]) -> Value {
        let reply = self.connection.req_command(&command(words));
        reply.expect("a reply")
    }

    /// Returns what the server says of replication. An error: it has ended the connection, as Sentinel
    /// makes it do when it becomes a replica.
    pub fn replication(&mut self) -> RedisResult<String> {
        command(&["INFO", "replication"]).query(&mut self.connection)
    }

    /// Runs commands, sent all at once, each of which must return a string.
    pub fn run_all(&mut self, commands: &[Vec<&str>]) {
        // The crate refuses a pipeline without commands.
        if commands.is_empty() {
            return;
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for words in commands {
            pipeline.add_command(command(words));
        }
        let replies: RedisResult<Vec<String>> = pipeline.query(&mut self.connection);
        assert_eq!(replies.expect("replies").len(), commands.len());
    }

    /// Runs a command that returns text.
    pub fn text(&mut self, command: &str) -> String {
        self.query(&words(command))
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn done(&mut self, command: &str) {
        assert_eq!(self.run(command), Value::Okay, "{command}");
    }

    /// Reads all entries of a stream, in order.
    pub fn entries(&mut self, stream: &str) -> Vec<StreamEntry> {
        entries(self.query(&["XRANGE", stream, "-", "+"]))
    }

    /// Waits for entries of a stream behind the one of this id, and returns some of them, in order.
    pub fn next_entries(&mut self, stream: &str, after: &str) -> Vec<StreamEntry> {
        let millis = (PATIENCE.as_millis() / 2).to_string();
        let streams: Vec<(String, Entries)> = self.query(&[
            "XREAD", "COUNT", "10000", "BLOCK", &millis, "STREAMS", stream, after,
        ]);
        let of_stream = streams.into_iter().next();
        let (_, some) = of_stream.unwrap_or_else(|| panic!("{stream} gets no entry"));
        entries(some)
    }

    /// Returns the keys with a prefix, which has none of `*?[\\`.
    pub fn keys(&mut self, prefix: &str) -> Vec<String> {
        self.query(&["KEYS", &format!("{prefix}*")])
    }

    /// Returns the version of the server.
    pub fn version(&mut self) -> String {
        let info: InfoDict = self.query(&["INFO", "server"]);
        info.get("redis_version").expect("a version")
    }

    /// Returns the number of entries of a stream.
    pub fn length(&mut self, stream: &str) -> i64 {
        self.query(&["XLEN", stream])
    }

    /// Runs a command that must return a value of this type.
    pub(super) fn query<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let value = command(words).query(&mut self.connection);
        value.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

fn entries(entries: Entries) -> Vec<StreamEntry> {
    let entry = |(id, pairs): (String, Vec<(String, Vec<u8>)>)| {
        let count = pairs.len();
        let fields: BTreeMap<String, Vec<u8>> = pairs.into_iter().collect();
        assert_eq!(fields.len(), count, "each field of {id} has its own name");
        StreamEntry { id, fields }
    };
    entries.into_iter().map(entry).collect()
}
