//! The router over pgoutput messages: recorded outcomes, errors, properties, allocations.

// Lints allow in tests what they deny elsewhere, and go by this attribute.
#![cfg(test)]

mod allocations;
mod cloud_events;
mod confluent;
mod corpus;
mod golden;
mod messages;
mod position;
mod properties;
mod recorded_options;
mod replay;
mod routing;
mod templates;
