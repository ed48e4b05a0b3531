//! Which records may be in flight, and together with which others: the state that the producers of a
//! sink share with librdkafka's callbacks.
//!
//! # Contents, from the bottom up
//! - `partition_gate`: which records of a topic may be in flight together, and in which producer.
//!   `hold_queues`: the records that a gate holds back.
//! - `shared`: the window, the receiver of reports and the first failure of one sink. `topic`: a
//!   topic of one producer, for librdkafka's callbacks.

pub(crate) mod hold_queues;
pub(crate) mod partition_gate;
pub(crate) mod shared;
pub(crate) mod topic;
