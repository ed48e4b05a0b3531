//! Tests of the router with pgoutput messages: recorded outcomes, errors, properties, allocations.

// Some lints allow in tests what they deny elsewhere; they recognise tests by this attribute.
#![cfg(test)]

mod allocations;
mod cloud_events;
mod confluent;
mod corpus;
mod golden;
mod header_columns;
mod messages;
mod position;
mod properties;
mod recorded_options;
mod replay;
mod routing;
mod templates;
