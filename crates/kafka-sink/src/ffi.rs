//! The project's only `unsafe`: topic handles and produce by handle, the partitioner that asks a
//! [`PartitionGate`](crate::producer::partition_gate::PartitionGate), requests for metadata and for rights on topics,
//! names of brokers, OAUTHBEARER tokens for clients without a poll thread, and the callback that is told why a
//! certificate is refused.
//!
//! Producing by name, which is all that rdkafka's safe API has, makes librdkafka look the name up by
//! a linear scan under its global lock for every record (`rd_kafka_topic_find`); at a thousand topics
//! that is 4 µs a record and rising. With a cached `rd_kafka_topic_t` there is no look-up.

#![expect(
    unsafe_code,
    reason = "librdkafka is C; this file is the wall around it"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::bindings as sys;
use rdkafka::client::Client;
use rdkafka::error::KafkaResult;
use rdkafka::message::BorrowedMessage;
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr, RDKafkaType};
use rdkafka::{ClientConfig, ClientContext};
use walrelay_sink::Record;

use crate::answers::{Finding, Findings, TopicRights, TopicState};
use crate::producer::partition_gate::HoldQueue;
use crate::producer::topic::{NotQueued, TopicContext};
use crate::tokens::Token;

// A delivery report must give back the whole sequence number.
const _: () = assert!(usize::BITS >= u64::BITS);

/// `RD_KAFKA_PARTITION_UA`: let the partitioner choose.
const UNASSIGNED: i32 = -1;

/// A topic of one producer, resolved once. Keeps the producer alive: the handle is always destroyed
/// before the client it belongs to, as librdkafka demands.
pub(crate) struct Topic<C: TopicOwner> {
    handle: NonNull<sys::rd_kafka_topic_t>,
    context: Option<Arc<TopicContext>>,
    producer: Arc<BaseProducer<C>>,
}

/// The context of a producer whose topics may have gates. What is kept lives until after the client is
/// destroyed, as contexts do: librdkafka's threads call into it.
pub(crate) trait TopicOwner: ProducerContext<DeliveryOpaque = usize> + 'static {
    /// Holds on to a topic's context.
    fn keep(&self, topic: Arc<TopicContext>);
}

// SAFETY: an `rd_kafka_topic_t` is reference-counted and internally locked, and every function that
// takes one may be called from any thread ("librdkafka is completely thread-safe", INTRODUCTION.md).
unsafe impl<C: TopicOwner> Send for Topic<C> {}

impl<C: TopicOwner> Topic<C> {
    /// A handle with the producer's default topic configuration, but for its partitioner if there is a
    /// gate. Starts a metadata look-up in the background and does not wait for it.
    ///
    /// With a gate the producer must have `sticky.partitioning.linger.ms=0`, or librdkafka chooses for
    /// records without a key and asks nobody. One handle for each name: librdkafka makes no second one,
    /// and the gate of a second call would never be asked.
    pub(crate) fn new(
        producer: &Arc<BaseProducer<C>>,
        name: &str,
        context: Option<Arc<TopicContext>>,
    ) -> Result<Self, RDKafkaErrorCode> {
        let name = topic_name(name)?;
        let client = producer.client().native_ptr();
        let config = match &context {
            // Means the client's default.
            None => ptr::null_mut(),
            Some(context) => {
                producer.context().keep(Arc::clone(context));
                let opaque = Arc::as_ptr(context).cast_mut().cast();
                // SAFETY: the client is alive. The copy of its topic configuration is ours until
                // rd_kafka_topic_new takes it. `place` has the type that rdkafka.h asks for; its
                // opaque is the topic's context, which the client's keeps alive for longer than the client.
                unsafe {
                    let config = sys::rd_kafka_default_topic_conf_dup(client);
                    sys::rd_kafka_topic_conf_set_opaque(config, opaque);
                    sys::rd_kafka_topic_conf_set_partitioner_cb(config, Some(place));
                    config
                }
            }
        };
        // SAFETY: the client is alive, `producer` holds it. The name is NUL-terminated, lives
        // through the call and is copied by it. The configuration passes into librdkafka's
        // ownership, whether the call succeeds or not.
        let handle = unsafe { sys::rd_kafka_topic_new(client, name.as_ptr(), config) };
        NonNull::new(handle)
            .map(|handle| Self {
                handle,
                context,
                producer: Arc::clone(producer),
            })
            // SAFETY: reads the calling thread's last error, set by the call above.
            .ok_or_else(|| unsafe { sys::rd_kafka_last_error() }.into())
    }

    /// Queues a copy of the record. Never blocks. `opaque`, the sequence number, comes back in the
    /// delivery report, which follows exactly if this returns `Ok`.
    ///
    /// `from`: the queue of the gate that the record is queued in, as its first. It is in none if it is
    /// refused.
    pub(crate) fn produce(
        &self,
        record: &Record<'_>,
        timestamp_ms: i64,
        opaque: usize,
        from: Option<HoldQueue>,
    ) -> Result<(), NotQueued> {
        let queue = |record: &Record<'_>| self.queue(record, timestamp_ms, opaque);
        match &self.context {
            None => queue(record).map_err(NotQueued::Refused),
            Some(context) => {
                let hash = |count| murmur2(record.key, count);
                context.produce(record, opaque as u64, from, hash, queue)
            }
        }
    }

    fn queue(
        &self,
        record: &Record<'_>,
        timestamp_ms: i64,
        opaque: usize,
    ) -> Result<(), RDKafkaErrorCode> {
        let (key, key_len) = as_memory(record.key);
        let (value, value_len) = as_memory(record.value);
        let headers = header_list(record)?;
        // SAFETY: every tag is followed by arguments of the types that rdkafka.h documents for it,
        // and the list ends with END. The topic handle belongs to this very client and is alive,
        // as is the client. Key and value are readable for their lengths during the call and are
        // copied by it (MSG_F_COPY; keys always are); zero-length ones are not read. The opaque is
        // an integer, never dereferenced by librdkafka. The headers pass into librdkafka's
        // ownership when the call succeeds and stay ours when it fails.
        let result = unsafe {
            sys::rd_kafka_producev(
                self.producer.client().native_ptr(),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_RKT,
                self.handle.as_ptr(),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_PARTITION,
                record.partition.unwrap_or(UNASSIGNED),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_MSGFLAGS,
                sys::RD_KAFKA_MSG_F_COPY,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_VALUE,
                value,
                value_len,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_KEY,
                key,
                key_len,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_OPAQUE,
                opaque as *mut c_void,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_TIMESTAMP,
                timestamp_ms,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADERS,
                headers.pointer,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_END,
            )
        };
        check(result)?;
        std::mem::forget(headers);
        Ok(())
    }
}

impl<C: TopicOwner> Drop for Topic<C> {
    fn drop(&mut self) {
        // SAFETY: the handle came from rd_kafka_topic_new, is given up exactly once, and the client
        // it belongs to is still alive: `self.producer` is dropped after this.
        unsafe { sys::rd_kafka_topic_destroy(self.handle.as_ptr()) }
    }
}

/// The partitioner of a topic with a gate, see [`TopicContext::partition`]: murmur2 over the key, as in Java.
unsafe extern "C" fn place(
    topic: *const sys::rd_kafka_topic_t,
    key: *const c_void,
    key_len: usize,
    count: i32,
    opaque: *mut c_void,
    message: *mut c_void,
) -> i32 {
    // SAFETY: `Topic::new` set the opaque to a context that outlives the client. Only shared references
    // to it exist.
    let context = unsafe { &*opaque.cast::<TopicContext>() };
    let murmur2 = if context.hashes_all() {
        sys::rd_kafka_msg_partitioner_murmur2
    } else {
        sys::rd_kafka_msg_partitioner_murmur2_random
    };
    // SAFETY: topic, key and count are those that librdkafka passed to this partitioner, whose type is that
    // of its own. They do not look at the opaques.
    let choice = unsafe { murmur2(topic, key, key_len, count, ptr::null_mut(), ptr::null_mut()) };
    // The message's opaque is the sequence number.
    context.partition(message as u64, choice, !key.is_null(), count)
}

/// The partition that murmur2 gives the key among so many.
fn murmur2(key: Option<&[u8]>, count: i32) -> i32 {
    let (key, len) = as_memory(key);
    let none = ptr::null_mut();
    // SAFETY: the key is readable for its length; librdkafka's function looks at nothing but key and count.
    unsafe { sys::rd_kafka_msg_partitioner_murmur2(ptr::null(), key, len, count, none, none) }
}

/// The topic that a report is about, if it has a gate.
pub(crate) fn topic_of<'a>(message: &'a BorrowedMessage<'_>) -> Option<&'a TopicContext> {
    // SAFETY: the message is alive, and holds its topic. A topic's opaque is null or was set by
    // `Topic::new` to a context that outlives the client, whose message this is; nothing else sets one.
    unsafe {
        let topic = (*message.ptr()).rkt;
        if topic.is_null() {
            return None;
        }
        sys::rd_kafka_topic_opaque(topic)
            .cast::<TopicContext>()
            .as_ref()
    }
}

/// An object of librdkafka's that is ours, or null. Destroyed on drop.
struct Owned<T> {
    pointer: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// # Safety
    /// `pointer` is null, or `destroy` may be called with it once, when the value is dropped.
    const unsafe fn new(pointer: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Self {
        Self { pointer, destroy }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.pointer.is_null() {
            // SAFETY: the promise of `new`.
            unsafe { (self.destroy)(self.pointer) }
        }
    }
}

/// The record's headers as librdkafka's list; null if there are none.
fn header_list(record: &Record<'_>) -> Result<Owned<sys::rd_kafka_headers_t>, RDKafkaErrorCode> {
    let destroy = sys::rd_kafka_headers_destroy;
    let list = match record.headers.len() {
        0 => ptr::null_mut(),
        // SAFETY: allocates; aborts the process when there is no memory.
        count => unsafe { sys::rd_kafka_headers_new(count) },
    };
    // SAFETY: a list that is not enqueued is ours. One that is, is forgotten.
    let list = unsafe { Owned::new(list, destroy) };
    for header in record.headers {
        let name = header.name;
        let (value, value_len) = as_memory(header.value);
        // SAFETY: the list is alive and ours. Name and value are readable for the lengths that
        // are passed and are copied; a null value means a null header. Lengths of slices never
        // exceed isize::MAX, so they cannot turn into the -1 that means "NUL-terminated".
        check(unsafe {
            sys::rd_kafka_header_add(
                list.pointer,
                name.as_ptr().cast(),
                name.len() as isize,
                value,
                value_len as isize,
            )
        })?;
    }
    Ok(list)
}

/// Kafka tells null from empty, and librdkafka does so by the pointer: an empty slice's is not null.
fn as_memory(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    match bytes {
        None => (ptr::null_mut(), 0),
        Some(bytes) => (bytes.as_ptr().cast_mut().cast(), bytes.len()),
    }
}

/// **Blocks** until every queued record was reported or the time is over; true for the former. While
/// it waits nothing lingers. Reports are served by the poll thread, not here, unlike with rdkafka's
/// own `flush`.
pub(crate) fn flush(producer: &BaseProducer<impl TopicOwner>, timeout: Duration) -> bool {
    let client = producer.client().native_ptr();
    // SAFETY: the client is alive. It delivers reports as events (rdkafka sets it up so), in which
    // case flush only waits for the count of records to reach zero.
    check(unsafe { sys::rd_kafka_flush(client, milliseconds(timeout)) }).is_ok()
}

/// Asks a broker for metadata of the topics in use, for librdkafka's own sake too, and **blocks** until it
/// has answered or the time is over.
pub(crate) fn topic_states(
    producer: &BaseProducer<impl TopicOwner>,
    timeout: Duration,
) -> Result<Vec<TopicState>, RDKafkaErrorCode> {
    let client = producer.client().native_ptr();
    let timeout = milliseconds(timeout);
    let mut metadata = ptr::null();
    // SAFETY: the client is alive. No topic is named, so none is borrowed.
    check(unsafe {
        sys::rd_kafka_metadata(client, 0, ptr::null_mut(), &raw mut metadata, timeout)
    })?;
    // SAFETY: the call succeeded, so this is its answer, and it lives until it is destroyed. Lists are as
    // long as their counts say.
    let topics = unsafe {
        let answer: &sys::rd_kafka_metadata = &*metadata;
        list(answer.topics, answer.topic_cnt)
            .iter()
            .map(|topic| TopicState {
                name: CStr::from_ptr(topic.topic).to_string_lossy().into_owned(),
                error: check(topic.err).err(),
                leaderless: list(topic.partitions, topic.partition_cnt)
                    .iter()
                    .filter(|partition| partition.leader < 0)
                    .map(|partition| partition.id)
                    .collect(),
            })
            .collect()
    };
    // SAFETY: nothing borrows from the answer any more. It is ours to free, once.
    unsafe { sys::rd_kafka_metadata_destroy(metadata) };
    Ok(topics)
}

fn check(code: RDKafkaRespErr) -> Result<(), RDKafkaErrorCode> {
    match code {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(code.into()),
    }
}

fn topic_name(name: &str) -> Result<CString, RDKafkaErrorCode> {
    CString::new(name).map_err(|_| RDKafkaErrorCode::InvalidTopic)
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

/// A list of librdkafka's, which may be null where it is empty.
///
/// # Safety
/// `first` is null, or the first of `count` elements that live for `'a`.
unsafe fn list<'a, T>(first: *const T, count: impl TryInto<usize>) -> &'a [T] {
    match count.try_into() {
        // SAFETY: the caller's promise.
        Ok(count) if !first.is_null() => unsafe { std::slice::from_raw_parts(first, count) },
        _ => &[],
    }
}

/// Asks what the client's principal may do with these topics, and **blocks** until the broker has answered or
/// the time is over. Creates no topic.
pub(crate) fn topic_rights<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    timeout: Duration,
) -> Result<Vec<TopicRights>, RDKafkaErrorCode> {
    let answer = describe_topics(client, topics, milliseconds(timeout))?;
    let write = sys::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE;
    let mut count = 0;
    // SAFETY: the result belongs to the event, which lives to the end of this function, and so does all that it
    // holds. Lists are as long as their counts say; a list of operations is null where the broker sent none.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(answer.pointer);
        if result.is_null() {
            return Err(RDKafkaErrorCode::Fail);
        }
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let rights = list(topics.cast_const(), count).iter().map(|topic| {
            let mut count = 0;
            let operations =
                sys::rd_kafka_TopicDescription_authorized_operations(*topic, &raw mut count);
            let error = sys::rd_kafka_TopicDescription_error(*topic);
            let name = CStr::from_ptr(sys::rd_kafka_TopicDescription_name(*topic));
            TopicRights {
                name: name.to_string_lossy().into_owned(),
                error: check(sys::rd_kafka_error_code(error)).err(),
                write: (!operations.is_null()).then(|| list(operations, count).contains(&write)),
            }
        });
        Ok(rights.collect())
    }
}

/// The broker's answer to a DescribeTopics request with the principal's rights.
fn describe_topics<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    timeout: c_int,
) -> Result<Owned<sys::rd_kafka_event_t>, RDKafkaErrorCode> {
    let names = topics.iter().map(|name| topic_name(name));
    let names: Vec<CString> = names.collect::<Result<_, _>>()?;
    let mut names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let rk = client.native_ptr();
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    // SAFETY: the client is alive. The names are NUL-terminated, live through the call and are copied by it. Each
    // object is made for this request and given up once; options, names and queue may be freed as soon as the event
    // is there. An error of an option is reported in a string that is not asked for, or an object that is ours.
    unsafe {
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let topics = Owned::new(topics, sys::rd_kafka_TopicCollection_destroy);
        let options = sys::rd_kafka_AdminOptions_new(rk, operation);
        let options = Owned::new(options, sys::rd_kafka_AdminOptions_destroy);
        let queue = Owned::new(sys::rd_kafka_queue_new(rk), sys::rd_kafka_queue_destroy);
        let no_text = ptr::null_mut();
        sys::rd_kafka_AdminOptions_set_request_timeout(options.pointer, timeout, no_text, 0);
        let refused =
            sys::rd_kafka_AdminOptions_set_include_authorized_operations(options.pointer, 1);
        drop(Owned::new(refused, sys::rd_kafka_error_destroy));
        sys::rd_kafka_DescribeTopics(rk, topics.pointer, options.pointer, queue.pointer);
        // The request itself ends by its own time limit.
        let answer = sys::rd_kafka_queue_poll(queue.pointer, timeout.saturating_add(1_000));
        let answer = Owned::new(answer, sys::rd_kafka_event_destroy);
        if answer.pointer.is_null() {
            return Err(RDKafkaErrorCode::OperationTimedOut);
        }
        check(sys::rd_kafka_event_error(answer.pointer))?;
        Ok(answer)
    }
}

/// Tells the client of these brokers, written as `bootstrap.servers` is, if it does not know them. How many of
/// them it knows then. With `client.dns.lookup=resolve_canonical_bootstrap_servers_only` their names are taken
/// as they are written.
pub(crate) fn add_brokers(producer: &BaseProducer<impl TopicOwner>, brokers: &str) -> usize {
    // What a configuration takes has none, for it is handed to librdkafka in the same way.
    let Ok(brokers) = CString::new(brokers) else {
        return 0;
    };
    // SAFETY: the client is alive; the list is NUL-terminated, lives through the call and is copied by it.
    let known =
        unsafe { sys::rd_kafka_brokers_add(producer.client().native_ptr(), brokers.as_ptr()) };
    usize::try_from(known).unwrap_or(0)
}

/// Makes the producer believe that it met a fatal error.
#[cfg(test)]
pub(crate) fn inject_fatal_error(producer: &BaseProducer<impl TopicOwner>) {
    // SAFETY: the client is alive; the reason is NUL-terminated and copied.
    unsafe {
        sys::rd_kafka_test_fatal_error(
            producer.client().native_ptr(),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
            c"injected".as_ptr(),
        );
    }
}

/// Gives the client a token for SASL OAUTHBEARER. The reason of a refusal does not hold the token.
pub(crate) fn set_token<C: ClientContext>(client: &Client<C>, token: &Token) -> Result<(), String> {
    let nul = |_| "the token, or its subject, contains a NUL".to_owned();
    let value = CString::new(&*token.value).map_err(nul)?;
    let principal = CString::new(&*token.principal).map_err(nul)?;
    let mut reason: [c_char; 512] = [0; 512];
    // SAFETY: the client is alive. Both strings are NUL-terminated and copied. No extensions: a null
    // list of length zero. The reason is written within its size, and NUL-terminated.
    let result = unsafe {
        sys::rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            token.expires_at_ms,
            principal.as_ptr(),
            ptr::null_mut(),
            0,
            reason.as_mut_ptr(),
            reason.len(),
        )
    };
    if check(result).is_ok() {
        return Ok(());
    }
    // SAFETY: the array was zeroed and is NUL-terminated whether or not it was written.
    let reason = unsafe { CStr::from_ptr(reason.as_ptr()) };
    Err(reason.to_string_lossy().into_owned())
}

/// A client that notes why a certificate is refused. It refuses what the configuration's own
/// verification refuses, and nothing less.
pub(crate) fn inspecting_client(config: &ClientConfig) -> KafkaResult<Client<Findings>> {
    let native = config.create_native_config()?;
    // SAFETY: the configuration is alive and ours. The callback has the type that rdkafka.h asks
    // for; its opaque is the client's context, see `inspect`.
    unsafe { sys::rd_kafka_conf_set_ssl_cert_verify_cb(native.ptr(), Some(inspect)) };
    let context = Findings::default();
    Client::new(config, native, RDKafkaType::RD_KAFKA_PRODUCER, context)
}

/// `rd_kafka_conf_set_ssl_cert_verify_cb`: called by a broker's thread for each certificate of a
/// chain, with the verdict so far in `x509_error`. Anything but zero ends the handshake.
unsafe extern "C" fn inspect(
    _: *mut sys::rd_kafka_t,
    broker: *const c_char,
    _: i32,
    x509_error: *mut c_int,
    depth: c_int,
    _: *const c_char,
    _: usize,
    _: *mut c_char,
    _: usize,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: librdkafka passes a pointer to a number on its stack.
    let error = unsafe { *x509_error };
    if error == 0 {
        return 1;
    }
    // SAFETY: `Client::new` sets the opaque to its context, whose type is that of
    // `inspecting_client`. The client owns it and, when it is dropped, waits for its brokers'
    // threads before it lets go of it. Only shared references to it exist.
    let findings = unsafe { &*opaque.cast::<Findings>() };
    // SAFETY: a NUL-terminated string that lives through the call.
    let broker = unsafe { CStr::from_ptr(broker) };
    let finding = Finding {
        broker: broker.to_string_lossy().into_owned(),
        error,
        depth,
    };
    findings.add(finding);
    0
}
