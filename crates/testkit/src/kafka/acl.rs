//! Kafka's request `CreateAcls`, which no client library of this project offers.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// API key and version 1 of <https://kafka.apache.org/protocol.html#The_Messages_CreateAcls>: the
/// first version with patterns, the last without tagged fields.
const CREATE_ACLS: (i16, i16) = (30, 1);
const TOPIC: i8 = 2;
const LITERAL: i8 = 3;
const ALLOW: i8 = 3;
/// Codes of `AclOperation`.
const OPERATIONS: &[(&str, i8)] = &[
    ("WRITE", 4),
    ("CREATE", 5),
    ("DESCRIBE", 8),
    ("DESCRIBE_CONFIGS", 10),
];
const LIMIT: Duration = Duration::from_secs(30);

/// Allows `user` these operations on a topic. The client at `address` must be entitled to grant
/// them.
#[track_caller]
pub(super) fn allow(address: &str, user: &str, topic: &str, operations: &[&str]) {
    let mut body = Vec::new();
    let count = i32::try_from(operations.len()).expect("a few");
    body.extend(count.to_be_bytes());
    for operation in operations {
        let known = OPERATIONS.iter().find(|(name, _)| name == operation);
        let (_, code) = known.expect("an operation of the table");
        body.push(TOPIC.cast_unsigned());
        string(&mut body, topic);
        body.push(LITERAL.cast_unsigned());
        string(&mut body, &format!("User:{user}"));
        string(&mut body, "*");
        body.push(code.cast_unsigned());
        body.push(ALLOW.cast_unsigned());
    }
    let mut answer = &request(address, CREATE_ACLS, &body)[..];
    // The response is the throttle time, then one result for each operation.
    take(&mut answer, 4);
    let results = i32::from_be_bytes(take(&mut answer, 4).try_into().expect("four bytes"));
    assert_eq!(results, count, "one result for each operation");
    for operation in operations {
        let code = i16::from_be_bytes(take(&mut answer, 2).try_into().expect("two bytes"));
        let length = i16::from_be_bytes(take(&mut answer, 2).try_into().expect("two bytes"));
        let words = take(&mut answer, usize::try_from(length).unwrap_or(0));
        let words = String::from_utf8_lossy(words);
        assert_eq!(code, 0, "{operation} on {topic}: {words}");
    }
}

/// Sends one request; returns the response. Neither includes the header.
fn request(address: &str, (key, version): (i16, i16), body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(key.to_be_bytes());
    message.extend(version.to_be_bytes());
    message.extend(1_i32.to_be_bytes()); // correlation
    string(&mut message, "testkit");
    message.extend(body);
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let length = u32::try_from(message.len()).expect("a short message");
    stream.write_all(&length.to_be_bytes()).expect("sent");
    stream.write_all(&message).expect("sent");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).expect("an answer");
    answer.split_off(4)
}

fn string(message: &mut Vec<u8>, text: &str) {
    let length = i16::try_from(text.len()).expect("a short string");
    message.extend(length.to_be_bytes());
    message.extend(text.as_bytes());
}

#[track_caller]
fn take<'a>(answer: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = answer.split_at(length);
    *answer = rest;
    taken
}
