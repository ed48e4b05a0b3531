//! JetStream's answers, which are JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::error::ProtocolError;

/// The answer to a message that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PubAnswer {
    /// A stream has stored the message, or had it already.
    Stored {
        stream: String,
        /// The number of the message in its stream.
        seq: u64,
        /// The stream had a message of this id within its duplicate window.
        is_duplicate: bool,
    },
    Refused(Refusal),
}

/// The meaning of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The stream is full, and discards new messages.
    Full,
    /// The message is larger than the stream accepts.
    Oversize,
    /// Another message was the last one than the headers expect.
    WrongLast,
    /// The subject is one of another stream than the headers expect.
    OtherStream,
    /// The stream cannot be written to until an operator changes it.
    Configuration(u64, &'static str),
    /// Something that may pass, with the number of the error.
    Other(u64, &'static str),
}

/// Parses the answer to a message; `None` if it is no answer of JetStream. Somebody who is subscribed
/// to the subject may answer anything.
pub(crate) fn pub_answer(payload: &[u8]) -> Option<PubAnswer> {
    let answer: Value = serde_json::from_slice(payload).ok()?;
    if let Some(error) = answer.get("error") {
        return Some(PubAnswer::Refused(refusal(error)?));
    }
    let seq = answer.get("seq")?.as_u64().filter(|seq| *seq > 0)?;
    let stream = answer.get("stream")?.as_str()?;
    (!stream.is_empty()).then(|| PubAnswer::Stored {
        stream: stream.to_owned(),
        seq,
        is_duplicate: answer.get("duplicate").and_then(Value::as_bool) == Some(true),
    })
}

/// Returns the meaning of an error. The descriptions are not shown: they may have a subject.
fn refusal(error: &Value) -> Option<Refusal> {
    let number = |name: &str| error.get(name).and_then(Value::as_u64);
    let code = number("err_code").or_else(|| number("code"))?;
    Some(match code {
        10_077 => Refusal::Full,
        10_054 | 10_097 => Refusal::Oversize,
        10_070 | 10_071 | 10_164 => Refusal::WrongLast,
        10_060 => Refusal::OtherStream,
        10_109 => Refusal::Configuration(code, "the stream is sealed"),
        10_039 | 10_035 => Refusal::Configuration(code, "JetStream is off for the account"),
        10_023 | 10_047 => Refusal::Other(code, "the server has not enough memory or disk space"),
        10_028 | 10_002 => Refusal::Other(code, "the account has used up its limits"),
        10_008 | 10_009 => Refusal::Other(code, "JetStream is not available at the moment"),
        _ => Refusal::Other(code, "the stream does not accept it at the moment"),
    })
}

/// The answer to the question which streams have a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamNames {
    Names(Vec<String>),
    /// JetStream does not say: it is not available, or the user may not ask.
    Unknown,
}

/// The API's subject for that question.
pub(crate) const STREAM_NAMES: &str = "$JS.API.STREAM.NAMES";

/// Makes its body.
pub(crate) fn names_request(subject: &str) -> Vec<u8> {
    serde_json::json!({ "subject": subject })
        .to_string()
        .into_bytes()
}

/// The answer to the question which number the last message of a stream has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastNumber {
    /// It may be deleted by now. 0: the stream has never had a message.
    Number(u64),
    NoStream,
    /// JetStream does not say.
    Unknown,
}

/// Returns the API's subject for that question. The name must be a token.
pub(crate) fn info_subject(stream: &str) -> String {
    format!("$JS.API.STREAM.INFO.{stream}")
}

/// Parses the answer.
pub(crate) fn last_number(payload: &[u8]) -> LastNumber {
    let answer: Value = serde_json::from_slice(payload).unwrap_or_default();
    if let Some(error) = answer.get("error") {
        return match error.get("err_code").and_then(Value::as_u64) {
            Some(10_059) => LastNumber::NoStream,
            _ => LastNumber::Unknown,
        };
    }
    let number = answer.get("state").and_then(|state| state.get("last_seq"));
    number
        .and_then(Value::as_u64)
        .map_or(LastNumber::Unknown, LastNumber::Number)
}

/// The numbers of the messages that a stream has, and its subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The number of the first message, or of the next one if there is none.
    pub(crate) first: u64,
    /// The number of the last message that the stream has had; 0: none.
    pub(crate) last: u64,
    pub(crate) subjects: Vec<String>,
    /// When the stream was created; empty if the server does not say.
    pub(crate) created: String,
    /// The stream gives messages other subjects than those that they are published with.
    pub(crate) transforms: bool,
    /// The server that leads the stream; `None` if the server is part of no cluster.
    pub(crate) leader: Option<String>,
}

/// Parses the answer to the same question as an extent; `None`: there is no such stream.
///
/// # Errors
/// If the stream has no leader. Any of its servers may answer then, also one that lacks the newest
/// messages (`jsStreamInfoRequest` of `jetstream_api.go`).
pub(crate) fn extent(payload: &[u8]) -> Result<Option<Extent>, ProtocolError> {
    let answer: Value = serde_json::from_slice(payload).unwrap_or_default();
    let code = answer.get("error").and_then(|error| error.get("err_code"));
    if code.and_then(Value::as_u64) == Some(10_059) {
        return Ok(None);
    }
    let number = |name: &str| answer.get("state")?.get(name)?.as_u64();
    let numbers = number("first_seq").zip(number("last_seq"));
    let (first, last) = numbers.ok_or(ProtocolError("no numbers of a stream"))?;
    let config = |name: &str| answer.get("config")?.get(name);
    let created = answer.get("created").and_then(Value::as_str);
    let leader = answer.get("cluster").filter(|cluster| !cluster.is_null());
    let leader = leader.map(|cluster| {
        cluster
            .get("leader")
            .and_then(Value::as_str)
            .unwrap_or_default()
    });
    if leader == Some("") {
        return Err(ProtocolError("the stream has no leader"));
    }
    let subjects = config("subjects");
    let subjects = subjects.and_then(Value::as_array).into_iter().flatten();
    let subjects = subjects.filter_map(|subject| subject.as_str().map(str::to_owned));
    Ok(Some(Extent {
        first,
        last,
        subjects: subjects.collect(),
        created: created.unwrap_or_default().to_owned(),
        transforms: config("subject_transform").is_some_and(|transform| !transform.is_null()),
        leader: leader.map(str::to_owned),
    }))
}

/// Returns true if no setting of a stream removes messages, by the same answer.
pub(crate) fn keeps_all(payload: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(payload).unwrap_or_default();
    let config = &answer["config"];
    let limits = ["max_age", "max_msgs", "max_bytes", "max_msgs_per_subject"];
    let is_limited = |name: &&str| config[*name].as_i64().is_some_and(|limit| limit > 0);
    config["retention"] == "limits"
        && config["allow_msg_ttl"] != true
        && !limits.iter().any(is_limited)
}

/// A message of a stream, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredMessage {
    pub(crate) seq: u64,
    /// When the stream has stored it, in milliseconds since 1970.
    pub(crate) stored_ms: Option<i64>,
    pub(crate) kept: KeptMessage,
}

/// Makes the body of the question which message with a subject, which may have wildcards, is the first
/// one from this number on.
pub(crate) fn next_request(seq: u64, subject: &str) -> Vec<u8> {
    let body = serde_json::json!({ "seq": seq, "next_by_subj": subject });
    body.to_string().into_bytes()
}

/// Parses the answer to that, and to [`kept_request`]; `None`: there is no such message.
pub(crate) fn stored_message(payload: &[u8]) -> Result<Option<StoredMessage>, ProtocolError> {
    let answer: Value = serde_json::from_slice(payload).unwrap_or_default();
    let wrong = ProtocolError("no message of a stream");
    match kept_of(&answer) {
        Kept::Gone => Ok(None),
        Kept::Unknown => Err(wrong),
        Kept::Message(kept) => {
            let member = |name: &str| answer.get("message")?.get(name);
            let time = member("time").and_then(Value::as_str);
            let time = time.and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
            let millis = time.map(|time| time.unix_timestamp_nanos() / 1_000_000);
            Ok(Some(StoredMessage {
                seq: member("seq").and_then(Value::as_u64).ok_or(wrong)?,
                stored_ms: millis.and_then(|millis| i64::try_from(millis).ok()),
                kept,
            }))
        }
    }
}

/// The answer to the question what a message of a stream has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    Message(KeptMessage),
    /// The stream does not have it any more.
    Gone,
    /// JetStream does not say.
    Unknown,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptMessage {
    pub(crate) subject: String,
    /// The block of headers.
    pub(crate) headers: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// Returns the API's subject for the question what a message of a stream has; `None` if the name is no
/// token.
pub(crate) fn kept_subject(stream: &str) -> Option<String> {
    is_stream_name(stream).then(|| format!("$JS.API.STREAM.MSG.GET.{stream}"))
}

/// Returns true if a stream can have this name, which is a token of a subject.
pub(crate) fn is_stream_name(name: &str) -> bool {
    let is_wrong = |c: char| matches!(c, '.' | '*' | '>') || c.is_whitespace() || c.is_control();
    !name.is_empty() && !name.contains(is_wrong)
}

/// Makes its body.
pub(crate) fn kept_request(seq: u64) -> Vec<u8> {
    serde_json::json!({ "seq": seq }).to_string().into_bytes()
}

/// Parses the answer.
pub(crate) fn kept_message(payload: &[u8]) -> Kept {
    kept_of(&serde_json::from_slice(payload).unwrap_or_default())
}

fn kept_of(answer: &Value) -> Kept {
    let code = answer.get("error").and_then(|error| error.get("err_code"));
    // No message found; no stream found.
    if let Some(10_037 | 10_059) = code.and_then(Value::as_u64) {
        return Kept::Gone;
    }
    let parsed = || {
        let message = answer.get("message")?;
        let part = |name: &str| match message.get(name) {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(text) => STANDARD.decode(text.as_str()?).ok(),
        };
        Some(KeptMessage {
            subject: message.get("subject")?.as_str()?.to_owned(),
            headers: part("hdrs")?,
            payload: part("data")?,
        })
    };
    parsed().map_or(Kept::Unknown, Kept::Message)
}

/// Parses the answer.
pub(crate) fn stream_names(status: Option<u16>, payload: &[u8]) -> StreamNames {
    let parsed = || {
        if status.is_some_and(|status| status != 200) {
            return None;
        }
        let answer: Value = serde_json::from_slice(payload).ok()?;
        if answer.get("error").is_some_and(|error| !error.is_null()) {
            return None;
        }
        // The number of all streams; without one, the server sends null in place of names.
        let total = answer.get("total")?.as_u64()?;
        let names = match answer.get("streams") {
            None | Some(Value::Null) => Vec::new(),
            Some(names) => names
                .as_array()?
                .iter()
                .map(|name| name.as_str().map(str::to_owned))
                .collect::<Option<_>>()?,
        };
        (names.is_empty() == (total == 0)).then_some(StreamNames::Names(names))
    };
    parsed().unwrap_or(StreamNames::Unknown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_complete_answer_is_an_acknowledgement() {
        let stored = |seq, is_duplicate| {
            let stream = "S".to_owned();
            Some(PubAnswer::Stored {
                stream,
                seq,
                is_duplicate,
            })
        };
        let of = |text: &str| pub_answer(text.as_bytes());
        assert_eq!(of(r#"{"stream":"S","seq":7}"#), stored(7, false));
        assert_eq!(
            of(r#"{"stream":"S","seq":7,"domain":"d","duplicate":true}"#),
            stored(7, true)
        );
        for none in [
            "",
            "+OK",
            "{}",
            "null",
            "[]",
            r#"{"stream":"S"}"#,
            r#"{"seq":7}"#,
            r#"{"stream":"","seq":7}"#,
            r#"{"stream":"S","seq":0}"#,
            r#"{"stream":"S","seq":-1}"#,
            r#"{"stream":7,"seq":7}"#,
            r#"{"error":7}"#,
        ] {
            assert_eq!(of(none), None, "{none}");
        }
        for (code, refusal) in [
            (10_077, Refusal::Full),
            (10_054, Refusal::Oversize),
            (10_071, Refusal::WrongLast),
            (10_070, Refusal::WrongLast),
            (10_060, Refusal::OtherStream),
        ] {
            let text = format!(
                r#"{{"error":{{"code":503,"err_code":{code},"description":"x"}},"stream":"S","seq":0}}"#
            );
            assert_eq!(of(&text), Some(PubAnswer::Refused(refusal)));
        }
        let other = of(r#"{"error":{"code":503},"seq":1,"stream":"S"}"#);
        assert!(
            matches!(other, Some(PubAnswer::Refused(Refusal::Other(503, _)))),
            "{other:?}"
        );
    }

    #[test]
    fn a_subject_has_streams_none_or_nobody_says() {
        let of = |text: &str| stream_names(None, text.as_bytes());
        let names = StreamNames::Names;
        assert_eq!(
            of(r#"{"total":1,"streams":["S"]}"#),
            names(vec!["S".to_owned()])
        );
        assert_eq!(
            of(r#"{"total":0,"offset":0,"streams":null}"#),
            names(vec![])
        );
        assert_eq!(of(r#"{"total":0,"streams":[]}"#), names(vec![]));
        for unknown in [
            "",
            "{}",
            r#"{"total":1,"streams":null}"#,
            r#"{"total":0,"streams":null,"error":{"code":503}}"#,
        ] {
            assert_eq!(of(unknown), StreamNames::Unknown, "{unknown}");
        }
        assert_eq!(stream_names(Some(503), b""), StreamNames::Unknown);
    }

    #[test]
    fn a_stream_has_a_last_number_or_is_not_there_or_nobody_says() {
        let of = |text: &str| last_number(text.as_bytes());
        assert_eq!(of(r#"{"state":{"last_seq":7}}"#), LastNumber::Number(7));
        assert_eq!(
            of(r#"{"error":{"code":404,"err_code":10059}}"#),
            LastNumber::NoStream
        );
        for unknown in ["", "{}", r#"{"state":{}}"#, r#"{"error":{"code":503}}"#] {
            assert_eq!(of(unknown), LastNumber::Unknown, "{unknown}");
        }
    }

    #[test]
    fn a_stream_has_an_extent_and_its_messages_a_number_and_a_time() {
        let of = |text: &str| extent(text.as_bytes());
        assert_eq!(
            of(
                r#"{"config":{"subjects":["a.>"],"subject_transform":{"src":"a","dest":"b"}},
                  "created":"T","cluster":{"leader":"n1"},"state":{"first_seq":3,"last_seq":7}}"#
            ),
            Ok(Some(Extent {
                first: 3,
                last: 7,
                subjects: vec!["a.>".to_owned()],
                created: "T".to_owned(),
                transforms: true,
                leader: Some("n1".to_owned()),
            }))
        );
        for cluster in ["{}", r#"{"leader":""}"#] {
            let answer =
                format!(r#"{{"cluster":{cluster},"state":{{"first_seq":3,"last_seq":7}}}}"#);
            extent(answer.as_bytes()).expect_err("any server may have answered");
        }
        assert_eq!(of(r#"{"error":{"err_code":10059}}"#), Ok(None));
        of(r#"{"error":{"err_code":10039}}"#).unwrap_err();
        let of = |text: &str| stored_message(text.as_bytes());
        let message = r#"{"message":{"subject":"s","seq":7,"data":"aGk=","time":"2026-01-02T03:04:05.678901Z"}}"#;
        let found = of(message).unwrap().unwrap();
        assert_eq!((found.seq, &*found.kept.payload), (7, &b"hi"[..]));
        assert_eq!(found.stored_ms, Some(1_767_323_045_678));
        assert_eq!(of(r#"{"error":{"err_code":10037}}"#), Ok(None));
        of(r#"{"message":{"subject":"s"}}"#).unwrap_err();
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_parser_panic(text in "[{}\\[\\]\":,a-z0-9]{0,60}") {
            let _ = pub_answer(text.as_bytes());
            let _ = kept_message(text.as_bytes());
            let _ = stream_names(None, text.as_bytes());
            let _ = last_number(text.as_bytes());
            let _ = extent(text.as_bytes());
            let _ = stored_message(text.as_bytes());
        }
    }
}
