//! The project's only `unsafe`: topic handles and their partitioner, requests for metadata, and for
//! rights on topics and their ids, added brokers, OAUTHBEARER tokens for clients without a poll thread,
//! verification of certificates, connections that are closed by a reset, and the end of the process.
//!
//! rdkafka's safe API produces by the topic's name only. For every record librdkafka then searches
//! the topics linearly under its global lock (`rd_kafka_topic_find`): 4 µs a record at a thousand
//! topics. A cached `rd_kafka_topic_t` avoids that.

#![expect(
    unsafe_code,
    reason = "librdkafka and OpenSSL are C; only this file calls functions in C"
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
use walrelay_sink::{Header, Record};

use crate::answers::{Finding, Findings, TopicId, TopicRights, TopicState};
use crate::in_flight::partition_gate::HoldQueue;
use crate::in_flight::topic::{NotQueued, TopicContext};
use crate::tokens::Token;

// A delivery report must return the whole sequence number.
const _: () = assert!(usize::BITS >= u64::BITS);

/// `RD_KAFKA_PARTITION_UA`: the partitioner chooses.
const UNASSIGNED: i32 = -1;

unsafe extern "C" {
    /// Ends the process at once: <https://man7.org/linux/man-pages/man2/exit.2.html>.
    fn _exit(status: c_int) -> !;
}

/// Ends the process with this code at once. `exit(3)`, which `std::process::exit` calls, runs the
/// handlers that OpenSSL has registered, while threads of librdkafka still use what they free: the
/// process may crash instead of ending with its code.
pub fn exit_at_once(code: u8) -> ! {
    // SAFETY: `_exit` takes any number, and nothing of this process runs after it.
    unsafe { _exit(c_int::from(code)) }
}

/// Makes the operating system end the connection of this number by a reset when it is closed.
pub(crate) fn end_by_reset(file: c_int) {
    let reset = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the value is readable for its size. A number that is no file any more, or another
    // file by now, is refused, or is a connection that is closed by a reset, too.
    unsafe {
        libc::setsockopt(
            file,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const reset).cast(),
            size_of_val(&reset) as libc::socklen_t,
        );
    }
}

/// Returns the server's port of the TCP connection of this number.
pub(crate) fn peer_port(file: c_int) -> Option<u16> {
    // SAFETY: all-zero bytes are an address of no family.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is written within its size. A number that is no socket is refused.
    let result = unsafe { libc::getpeername(file, (&raw mut address).cast(), &raw mut size) };
    if result != 0 {
        return None;
    }
    let port = match c_int::from(address.ss_family) {
        // SAFETY: an address of this family begins with these fields, and the storage fits each.
        libc::AF_INET => unsafe { (*(&raw const address).cast::<libc::sockaddr_in>()).sin_port },
        // SAFETY: as above.
        libc::AF_INET6 => unsafe { (*(&raw const address).cast::<libc::sockaddr_in6>()).sin6_port },
        _ => return None,
    };
    Some(u16::from_be(port))
}

/// A topic handle of one producer. Keeps the producer alive, because librdkafka requires that the
/// handle is destroyed before its client.
pub(crate) struct Topic<C: TopicOwner> {
    handle: NonNull<sys::rd_kafka_topic_t>,
    context: Option<Arc<TopicContext>>,
    producer: Arc<BaseProducer<C>>,
}

/// The context of a producer whose topics may have gates.
pub(crate) trait TopicOwner: ProducerContext<DeliveryOpaque = usize> + 'static {
    /// Keeps a topic's context alive until after the client is destroyed: librdkafka's threads use
    /// it.
    fn keep(&self, topic: Arc<TopicContext>);
}

// SAFETY: an `rd_kafka_topic_t` is reference-counted and internally locked, and its functions may
// be called from any thread ("librdkafka is completely thread-safe", INTRODUCTION.md).
unsafe impl<C: TopicOwner> Send for Topic<C> {}

impl<C: TopicOwner> Topic<C> {
    /// Creates a handle with the producer's default topic configuration, and with a `context` the
    /// partitioner [`choose_partition`]. Starts a metadata request in the background. Call it once
    /// for each name: librdkafka has one handle per name, and would ignore the gate of a second
    /// call. With a gate the producer must have `sticky.partitioning.linger.ms=0`, or librdkafka
    /// itself chooses for records without a key.
    pub(crate) fn new(
        producer: &Arc<BaseProducer<C>>,
        name: &str,
        context: Option<Arc<TopicContext>>,
    ) -> Result<Self, RDKafkaErrorCode> {
        let name = topic_name(name)?;
        let client = producer.client().native_ptr();
        let config = match &context {
            None => ptr::null_mut(), // the client's default
            Some(context) => {
                producer.context().keep(Arc::clone(context));
                let opaque = Arc::as_ptr(context).cast_mut().cast();
                // SAFETY: the client is alive. The copy of its topic configuration is ours until
                // rd_kafka_topic_new takes it. `choose_partition` has the type that rdkafka.h
                // requires; its opaque is the topic's context, which `keep` keeps alive for longer
                // than the client.
                unsafe {
                    let config = sys::rd_kafka_default_topic_conf_dup(client);
                    sys::rd_kafka_topic_conf_set_opaque(config, opaque);
                    sys::rd_kafka_topic_conf_set_partitioner_cb(config, Some(choose_partition));
                    config
                }
            }
        };
        // SAFETY: `producer` keeps the client alive. The name is NUL-terminated, lives through the
        // call and is copied. librdkafka takes ownership of the configuration, also if the call
        // fails.
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

    /// Queues a copy of the record. Never blocks. A delivery report with `opaque`, the sequence
    /// number, follows if and only if this returns `Ok`. `from`: the hold queue that the record is
    /// the first of. A refused record is in no queue.
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
        let (key, key_len) = raw_parts(record.key);
        let (value, value_len) = raw_parts(record.value);
        let headers = header_list(record)?;
        // SAFETY: every tag is followed by arguments of the types that rdkafka.h documents for it,
        // and the list ends with END. The client and its topic handle are alive. Key and value are
        // readable for their lengths during the call and are copied (MSG_F_COPY; keys always are);
        // zero-length ones are not read. librdkafka never dereferences the opaque, an integer. It
        // takes ownership of the headers if the call succeeds; else they stay ours.
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
        // SAFETY: the handle is from rd_kafka_topic_new and is destroyed once. Its client is alive:
        // `self.producer` is dropped after this.
        unsafe { sys::rd_kafka_topic_destroy(self.handle.as_ptr()) }
    }
}

/// Chooses the partition in a topic with a gate: murmur2 over the key as in Java, then
/// [`TopicContext::partition`].
unsafe extern "C" fn choose_partition(
    topic: *const sys::rd_kafka_topic_t,
    key: *const c_void,
    key_len: usize,
    count: i32,
    opaque: *mut c_void,
    message: *mut c_void,
) -> i32 {
    // SAFETY: `Topic::new` set the opaque to a context that outlives the client. All references to
    // it are shared.
    let context = unsafe { &*opaque.cast::<TopicContext>() };
    let murmur2 = if context.hashes_all() {
        sys::rd_kafka_msg_partitioner_murmur2
    } else {
        sys::rd_kafka_msg_partitioner_murmur2_random
    };
    // SAFETY: topic, key and count are those passed to this partitioner, which has the same type.
    // The function does not use the opaques.
    let choice = unsafe { murmur2(topic, key, key_len, count, ptr::null_mut(), ptr::null_mut()) };
    // The message's opaque is the sequence number.
    context.partition(message as u64, choice, !key.is_null(), count)
}

/// Returns the partition of the key by murmur2, among `count`.
fn murmur2(key: Option<&[u8]>, count: i32) -> i32 {
    let (key, len) = raw_parts(key);
    let none = ptr::null_mut();
    // SAFETY: the key is readable for its length. The function uses nothing but key and count.
    unsafe { sys::rd_kafka_msg_partitioner_murmur2(ptr::null(), key, len, count, none, none) }
}

/// Returns the topic of a report, if it has a gate.
pub(crate) fn topic_of<'a>(message: &'a BorrowedMessage<'_>) -> Option<&'a TopicContext> {
    // SAFETY: the message is alive and holds its topic. A topic's opaque is null, or `Topic::new`
    // set it to a context that outlives the message's client; nothing else sets one.
    unsafe {
        let topic = (*message.ptr()).rkt;
        if topic.is_null() {
            return None;
        }
        let context: *const TopicContext = sys::rd_kafka_topic_opaque(topic).cast();
        context.as_ref()
    }
}

/// Returns the microseconds since the record of a report was enqueued; `None` if it is not known.
pub(crate) fn age_of(message: &BorrowedMessage<'_>) -> Option<i64> {
    // SAFETY: the message is alive.
    let age = unsafe { sys::rd_kafka_message_latency(message.ptr()) };
    (age >= 0).then_some(age)
}

/// An owned object of librdkafka, or null. Destroyed on drop.
struct Owned<T> {
    pointer: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// Creates an owner of `pointer`.
    ///
    /// # Safety
    /// `pointer` is null, or `destroy` may be called with it once, when the value is dropped.
    const unsafe fn new(pointer: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Self {
        Self { pointer, destroy }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.pointer.is_null() {
            // SAFETY: the caller of `new` promised it.
            unsafe { (self.destroy)(self.pointer) }
        }
    }
}

/// Returns the record's headers as a list of librdkafka; null if there are none.
fn header_list(record: &Record<'_>) -> Result<Owned<sys::rd_kafka_headers_t>, RDKafkaErrorCode> {
    let list = match record.headers.len() {
        0 => ptr::null_mut(),
        // SAFETY: allocates; aborts the process if there is no memory.
        count => unsafe { sys::rd_kafka_headers_new(count) },
    };
    // SAFETY: the list is ours until it is enqueued, and then `queue` forgets it.
    let list = unsafe { Owned::new(list, sys::rd_kafka_headers_destroy) };
    // Only dead letters come here with such a name.
    let has_name = |header: &&Header<'_>| !header.name.contains('\0');
    for header in record.headers.iter().filter(has_name) {
        let name = header.name;
        let (value, value_len) = raw_parts(header.value);
        // SAFETY: the list is alive and ours. Name and value are readable for their lengths and are
        // copied; a null value means a null header. Lengths of slices never exceed isize::MAX, so
        // none becomes -1, which means "NUL-terminated".
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

/// Returns pointer and length for librdkafka, which distinguishes null and empty by the pointer:
/// that of an empty slice is not null.
fn raw_parts(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    match bytes {
        None => (ptr::null_mut(), 0),
        Some(bytes) => (bytes.as_ptr().cast_mut().cast(), bytes.len()),
    }
}

/// Flushes the producer: **blocks** until every queued record is reported (returns true) or the
/// time is over. Meanwhile nothing lingers. Unlike rdkafka's own `flush`, leaves the reports to the
/// poll thread.
pub(crate) fn flush(producer: &BaseProducer<impl TopicOwner>, timeout: Duration) -> bool {
    let client = producer.client().native_ptr();
    // SAFETY: the client is alive. rdkafka configures it to deliver reports as events, so that
    // flush only waits until the number of records is zero.
    check(unsafe { sys::rd_kafka_flush(client, milliseconds(timeout)) }).is_ok()
}

/// Requests metadata of the topics in use, which librdkafka uses as well. **Blocks** until the
/// response or the time is over.
pub(crate) fn topic_states(
    producer: &BaseProducer<impl TopicOwner>,
    timeout: Duration,
) -> Result<Vec<TopicState>, RDKafkaErrorCode> {
    metadata(producer, ptr::null_mut(), timeout)
}

/// Requests metadata of one topic, for which [`Topic::new`] was called. Otherwise as
/// [`topic_states`].
pub(crate) fn topic_state<C: TopicOwner>(
    producer: &Arc<BaseProducer<C>>,
    name: &str,
    timeout: Duration,
) -> Result<Vec<TopicState>, RDKafkaErrorCode> {
    // Another reference to the topic of that name.
    let topic = Topic::new(producer, name, None)?;
    metadata(producer, topic.handle.as_ptr(), timeout)
}

/// Requests metadata of a topic; of those in use if it is null.
fn metadata(
    producer: &BaseProducer<impl TopicOwner>,
    only: *mut sys::rd_kafka_topic_t,
    timeout: Duration,
) -> Result<Vec<TopicState>, RDKafkaErrorCode> {
    let client = producer.client().native_ptr();
    let timeout = milliseconds(timeout);
    let mut metadata = ptr::null();
    // SAFETY: the client is alive. The topic is null, or one of this client that its caller keeps.
    check(unsafe { sys::rd_kafka_metadata(client, 0, only, &raw mut metadata, timeout) })?;
    // SAFETY: the call succeeded, so `metadata` is its result and lives until it is destroyed. The
    // lists have the lengths of their counts.
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
    // SAFETY: the result is not borrowed any more, and is freed once.
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

/// Returns a list of librdkafka, which may be null if it is empty.
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

/// Requests the rights of the client's principal on these topics. Creates no topic. **Blocks**
/// until the response or the time is over.
pub(crate) fn topic_rights<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    timeout: Duration,
) -> Result<Vec<TopicRights>, RDKafkaErrorCode> {
    let answer = describe_topics(client, topics, true, milliseconds(timeout))?;
    let write = sys::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE;
    let rights = described(&answer)?.iter().map(|topic| {
        let mut count = 0;
        // SAFETY: the event owns the description and its parts, and lives to the end of this
        // function. The list has the length of its count; it is null if the broker sent none.
        unsafe {
            let operations =
                sys::rd_kafka_TopicDescription_authorized_operations(*topic, &raw mut count);
            let error = sys::rd_kafka_TopicDescription_error(*topic);
            let name = CStr::from_ptr(sys::rd_kafka_TopicDescription_name(*topic));
            TopicRights {
                name: name.to_string_lossy().into_owned(),
                error: check(sys::rd_kafka_error_code(error)).err(),
                write: (!operations.is_null()).then(|| list(operations, count).contains(&write)),
            }
        }
    });
    Ok(rights.collect())
}

/// Requests the ids of these topics. A topic that the broker does not describe is left out; its id
/// is zero if the broker gives topics none (before Kafka 2.8). Creates no topic. **Blocks** until
/// the response or the time is over.
pub(crate) fn topic_ids<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    timeout: Duration,
) -> Result<Vec<(String, TopicId)>, RDKafkaErrorCode> {
    let answer = describe_topics(client, topics, false, milliseconds(timeout))?;
    let ids = described(&answer)?.iter().filter_map(|topic| {
        // SAFETY: the event owns the description and its parts, and lives to the end of this
        // function. A description without an error has a name and an id.
        unsafe {
            let error = sys::rd_kafka_TopicDescription_error(*topic);
            check(sys::rd_kafka_error_code(error)).ok()?;
            let name = CStr::from_ptr(sys::rd_kafka_TopicDescription_name(*topic));
            let id = sys::rd_kafka_TopicDescription_topic_id(*topic);
            let most = sys::rd_kafka_Uuid_most_significant_bits(id);
            let least = sys::rd_kafka_Uuid_least_significant_bits(id);
            Some((name.to_string_lossy().into_owned(), TopicId(most, least)))
        }
    });
    Ok(ids.collect())
}

/// Returns the descriptions in a response to DescribeTopics.
fn described(
    answer: &Owned<sys::rd_kafka_event_t>,
) -> Result<&[*const sys::rd_kafka_TopicDescription_t], RDKafkaErrorCode> {
    let mut count = 0;
    // SAFETY: the event owns the result and its list, and outlives the borrow. The list has the
    // length of its count.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(answer.pointer);
        if result.is_null() {
            return Err(RDKafkaErrorCode::Fail);
        }
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        Ok(list(topics.cast_const(), count))
    }
}

/// Returns the response to a DescribeTopics request. `rights`: it includes the principal's rights.
fn describe_topics<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    rights: bool,
    timeout: c_int,
) -> Result<Owned<sys::rd_kafka_event_t>, RDKafkaErrorCode> {
    let names = topics.iter().map(|name| topic_name(name));
    let names: Vec<CString> = names.collect::<Result<_, _>>()?;
    let mut names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let rk = client.native_ptr();
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    // SAFETY: the client is alive. The names are NUL-terminated, live through the call and are
    // copied. Each object is created for this request and destroyed once; options, names and queue
    // may be freed once the event exists. Errors of options are returned in no string (null) or in
    // an object of ours.
    unsafe {
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let topics = Owned::new(topics, sys::rd_kafka_TopicCollection_destroy);
        let options = sys::rd_kafka_AdminOptions_new(rk, operation);
        let options = Owned::new(options, sys::rd_kafka_AdminOptions_destroy);
        let queue = Owned::new(sys::rd_kafka_queue_new(rk), sys::rd_kafka_queue_destroy);
        let no_text = ptr::null_mut();
        sys::rd_kafka_AdminOptions_set_request_timeout(options.pointer, timeout, no_text, 0);
        let refused = sys::rd_kafka_AdminOptions_set_include_authorized_operations(
            options.pointer,
            c_int::from(rights),
        );
        drop(Owned::new(refused, sys::rd_kafka_error_destroy));
        sys::rd_kafka_DescribeTopics(rk, topics.pointer, options.pointer, queue.pointer);
        // The request has its own timeout, which comes first.
        let answer = sys::rd_kafka_queue_poll(queue.pointer, timeout.saturating_add(1_000));
        let answer = Owned::new(answer, sys::rd_kafka_event_destroy);
        if answer.pointer.is_null() {
            return Err(RDKafkaErrorCode::OperationTimedOut);
        }
        check(sys::rd_kafka_event_error(answer.pointer))?;
        Ok(answer)
    }
}

/// Adds these brokers, a list as in `bootstrap.servers`, if the client does not know them. Returns
/// how many of them it knows then. Does not resolve canonical names
/// (`client.dns.lookup=resolve_canonical_bootstrap_servers_only`).
pub(crate) fn add_brokers(producer: &BaseProducer<impl TopicOwner>, brokers: &str) -> usize {
    // A value of the configuration contains no NUL, because it was passed to librdkafka before.
    let Ok(brokers) = CString::new(brokers) else {
        return 0;
    };
    // SAFETY: the client is alive; the list is NUL-terminated, lives through the call and is
    // copied.
    let count =
        unsafe { sys::rd_kafka_brokers_add(producer.client().native_ptr(), brokers.as_ptr()) };
    usize::try_from(count).unwrap_or(0)
}

/// Returns the cluster's id, by the last metadata that the client received. `None` before the
/// first, or if the cluster has none. Does not block.
pub(crate) fn cluster_id(producer: &BaseProducer<impl TopicOwner>) -> Option<String> {
    // SAFETY: the client is alive. The result is null or a NUL-terminated copy, which is ours, and
    // is freed once after it was read. rdkafka's `fetch_cluster_id` does not free it.
    unsafe {
        let client = producer.client().native_ptr();
        let id = sys::rd_kafka_clusterid(client, 0);
        if id.is_null() {
            return None;
        }
        let text = CStr::from_ptr(id).to_string_lossy().into_owned();
        sys::rd_kafka_mem_free(client, id.cast());
        Some(text)
    }
}

/// Injects a fatal error into the producer.
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

/// Sets the client's token for SASL OAUTHBEARER. The error does not contain the token.
pub(crate) fn set_token<C: ClientContext>(client: &Client<C>, token: &Token) -> Result<(), String> {
    let nul = |_| "the token, or its subject, contains a NUL".to_owned();
    let value = CString::new(&*token.value).map_err(nul)?;
    let principal = CString::new(&*token.principal).map_err(nul)?;
    let mut reason: [c_char; 512] = [0; 512];
    // SAFETY: the client is alive. Both strings are NUL-terminated and copied. The extensions are a
    // null list of length zero. The reason is written within its size and NUL-terminated.
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
    // SAFETY: the array was zeroed, so it is NUL-terminated even if it was not written.
    let reason = unsafe { CStr::from_ptr(reason.as_ptr()) };
    Err(reason.to_string_lossy().into_owned())
}

/// Returns a client that records why a certificate is refused. It refuses exactly the certificates
/// that the configured verification refuses.
pub(crate) fn inspecting_client(config: &ClientConfig) -> KafkaResult<Client<Findings>> {
    let native = config.create_native_config()?;
    // SAFETY: the configuration is alive and ours. The callback has the type that rdkafka.h
    // requires; its opaque is the client's context, see `inspect`.
    unsafe { sys::rd_kafka_conf_set_ssl_cert_verify_cb(native.ptr(), Some(inspect)) };
    let context = Findings::default();
    Client::new(config, native, RDKafkaType::RD_KAFKA_PRODUCER, context)
}

/// Implements the callback of `rd_kafka_conf_set_ssl_cert_verify_cb`: called by a broker's thread for
/// each certificate of a chain, with the result of verification so far in `x509_error`. Returning 0
/// ends the handshake.
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
    // `inspecting_client`. The client owns it, and its drop joins the brokers' threads before
    // dropping it. All references to it are shared.
    let findings = unsafe { &*opaque.cast::<Findings>() };
    // SAFETY: a NUL-terminated string that lives through the call.
    let broker = unsafe { CStr::from_ptr(broker) };
    findings.add(Finding {
        broker: broker.to_string_lossy().into_owned(),
        error,
        depth,
    });
    0
}
