//! A client of Redis for tests, over RESP2. It shares no code with the sink.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use crate::wait::PATIENCE;

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisReply {
    /// A status or an error.
    Line(String),
    /// An integer.
    Integer(i64),
    /// A string; `None` is null.
    Bytes(Option<Vec<u8>>),
    /// An array.
    Array(Vec<RedisReply>),
}

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

/// A connection to a server.
#[derive(Debug)]
pub struct RedisClient {
    stream: BufReader<TcpStream>,
}

impl RedisClient {
    /// Connects.
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("Redis takes connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Runs a command, whose arguments are the words of a text. An error is a line that begins with
    /// its code.
    pub fn run(&mut self, command: &str) -> RedisReply {
        let words: Vec<&str> = command.split(' ').collect();
        self.run_words(&words)
    }

    /// Runs a command.
    pub fn run_words(&mut self, words: &[&str]) -> RedisReply {
        self.send(&[words.to_vec()]).expect("it is sent");
        self.reply()
    }

    /// Returns what the server says of replication. An error: it has ended the connection, as Sentinel
    /// makes it do when it becomes a replica.
    pub fn replication(&mut self) -> io::Result<String> {
        self.send(&[vec!["INFO", "replication"]])?;
        let info = self.read_reply()?.bytes();
        Ok(String::from_utf8_lossy(&info).into_owned())
    }

    /// Runs commands, sent all at once, each of which must return a string.
    pub fn run_all(&mut self, commands: &[Vec<&str>]) {
        self.send(commands).expect("it is sent");
        for _ in commands {
            self.reply().bytes();
        }
    }

    fn send(&mut self, commands: &[Vec<&str>]) -> io::Result<()> {
        let mut out = Vec::new();
        for words in commands {
            write!(out, "*{}\r\n", words.len()).expect("memory");
            for word in words {
                write!(out, "${}\r\n{word}\r\n", word.len()).expect("memory");
            }
        }
        self.stream.get_mut().write_all(&out)
    }

    /// Runs a command that returns text.
    pub fn text(&mut self, command: &str) -> String {
        String::from_utf8(self.run(command).bytes()).expect("text")
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn done(&mut self, command: &str) {
        let reply = self.run(command);
        assert_eq!(reply, RedisReply::Line("OK".to_owned()), "{command}");
    }

    /// Reads all entries of a stream, in order.
    pub fn entries(&mut self, stream: &str) -> Vec<StreamEntry> {
        self.run_words(&["XRANGE", stream, "-", "+"]).entries()
    }

    /// Waits for entries of a stream behind the one of this id, and returns some of them, in order.
    pub fn next_entries(&mut self, stream: &str, after: &str) -> Vec<StreamEntry> {
        let millis = (PATIENCE.as_millis() / 2).to_string();
        let words = [
            "XREAD", "COUNT", "10000", "BLOCK", &millis, "STREAMS", stream, after,
        ];
        let [of_stream] = &self.run_words(&words).array()[..] else {
            panic!("{stream} gets no entry");
        };
        let [_, entries] = &of_stream.clone().array()[..] else {
            panic!("no stream");
        };
        entries.clone().entries()
    }

    /// Returns the keys with a prefix, which has none of `*?[\\`.
    pub fn keys(&mut self, prefix: &str) -> Vec<String> {
        let reply = self.run_words(&["KEYS", &format!("{prefix}*")]);
        let keys = reply.array().into_iter();
        keys.map(|key| String::from_utf8(key.bytes()).expect("text"))
            .collect()
    }

    /// Returns the version of the server.
    pub fn version(&mut self) -> String {
        let info = self.run("INFO server").bytes();
        let info = String::from_utf8(info).expect("text");
        let mut lines = info.lines();
        let version = lines.find_map(|line| line.strip_prefix("redis_version:"));
        version.expect("a version").to_owned()
    }

    /// Returns the number of entries of a stream.
    pub fn length(&mut self, stream: &str) -> i64 {
        match self.run_words(&["XLEN", stream]) {
            RedisReply::Integer(length) => length,
            other => panic!("{stream}: {other:?}"),
        }
    }

    fn reply(&mut self) -> RedisReply {
        self.read_reply().expect("a reply")
    }

    fn read_reply(&mut self) -> io::Result<RedisReply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end_matches("\r\n");
        let (kind, text) = line.split_at(1);
        let number = || text.parse::<i64>().expect("a number");
        Ok(match kind {
            "+" | "-" => RedisReply::Line(text.to_owned()),
            ":" => RedisReply::Integer(number()),
            "$" => match usize::try_from(number()) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    RedisReply::Bytes(Some(bytes))
                }
                Err(_) => RedisReply::Bytes(None),
            },
            "*" => {
                let members = (0..number()).map(|_| self.read_reply());
                RedisReply::Array(members.collect::<io::Result<_>>()?)
            }
            other => panic!("a reply of the kind {other:?}"),
        })
    }
}

impl RedisReply {
    fn entries(self) -> Vec<StreamEntry> {
        let entries = self.array().into_iter().map(|entry| {
            let [id, fields] = &entry.array()[..] else {
                panic!("no entry");
            };
            let fields = fields.clone().array();
            let pair = |pair: &[Self]| {
                let name = String::from_utf8(pair[0].clone().bytes()).expect("text");
                (name, pair[1].clone().bytes())
            };
            StreamEntry {
                id: String::from_utf8(id.clone().bytes()).expect("text"),
                fields: fields.chunks(2).map(pair).collect(),
            }
        });
        entries.collect()
    }

    pub(super) fn array(self) -> Vec<Self> {
        match self {
            Self::Array(members) => members,
            other => panic!("no array: {other:?}"),
        }
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(Some(bytes)) => bytes,
            other => panic!("no string: {other:?}"),
        }
    }
}
