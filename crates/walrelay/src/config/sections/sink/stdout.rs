//! Standard output: `[sink.stdout]`.

use walrelay_failure::Failure;
use walrelay_settings::{AlreadyReported, Reader, Row, Section, boolean, section};
use walrelay_sink_kind::{KindDescription, SinkKind};

use super::{Delivery, Poison, SinkSection, SinkSettings};
use crate::sinks::StdoutKind;

section! {
/// `[sink.stdout]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StdoutSection at "sink" {
    /// Whether `kind = "stdout"` reads the slot itself and confirms what it prints.
    "stdout.confirm" confirm: bool = boolean().or("false");
}
}

impl SinkSection for StdoutSection {
    const DESCRIPTION: &'static KindDescription = &StdoutKind::DESCRIPTION;

    fn rows(rows: &mut Vec<Row>) {
        <Self as Section>::declare(rows);
    }

    fn read(reader: &mut Reader<'_>, _: bool) -> Result<Self, AlreadyReported> {
        <Self as Section>::read(reader)
    }
}

impl SinkSettings for StdoutSection {
    fn make(&self, delivery: &Delivery, _: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        Ok(Box::new(StdoutKind::new(
            u64::from(delivery.max_in_flight_records),
            delivery.max_in_flight_bytes,
        )))
    }

    fn confirms(&self) -> bool {
        self.confirm
    }
}
