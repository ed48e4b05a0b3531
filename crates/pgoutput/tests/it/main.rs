//! Tests of the decoder through its public interface.

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod roundtrip;
