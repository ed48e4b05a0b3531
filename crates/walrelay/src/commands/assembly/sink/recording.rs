//! A kind of sink of tests, made as a new kind is: a section, a [`SinkKind`] and a sink. It can do
//! nothing but send.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_settings::{AlreadyReported, Reader, Row};
use walrelay_sink::{
    AnySinkFactory, Deliveries, Disposition, Record, SendError, Sink, SinkFactory, SinkStats,
    StreamStart, any_factory, lock,
};
use walrelay_sink_kind::{Ability, KindDescription, SinkKind};

use crate::config::{
    Config, Delivery, PipelineConfig, Poison, SinkConfig, SinkSection, SinkSettings,
};

/// Keeps the topic of each record, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording(pub(crate) Arc<Mutex<Vec<String>>>);

impl Recording {
    const DESCRIPTION: KindDescription = KindDescription {
        name: "recording",
        title: "Recording",
        settings_item: None,
        items: &[],
        cannot: &[
            Ability::Partitions,
            Ability::Timestamps,
            Ability::NullKeys,
            Ability::Tombstones,
        ],
    };

    /// Makes a configuration whose sink is this one.
    pub(crate) fn config(&self) -> PipelineConfig {
        let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"a.b\"]\n\
                    [sink]\nkind = \"stdout\"\n";
        let config = Config::parse(text, "walrelay.toml", &[], &|_| None);
        PipelineConfig {
            sink: SinkConfig::from_section(self.clone()),
            ..config.expect("a configuration").pipeline
        }
    }
}

impl SinkSection for Recording {
    const DESCRIPTION: &'static KindDescription = &Recording::DESCRIPTION;

    fn rows(_: &mut Vec<Row>) {}

    fn read(_: &mut Reader<'_>, _: bool) -> Result<Self, AlreadyReported> {
        Ok(Self::default())
    }
}

impl SinkSettings for Recording {
    fn make(&self, _: &Delivery, _: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkKind for Recording {
    fn description(&self) -> &'static KindDescription {
        &Self::DESCRIPTION
    }

    fn factory(&self, _: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        (any_factory(self.clone()), None)
    }
}

impl SinkFactory for Recording {
    type Sink = RecordingSink;
    type Error = Infallible;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<RecordingSink, Infallible> {
        Ok(RecordingSink {
            topics: Arc::clone(&self.0),
            deliveries,
        })
    }

    fn disposition(error: &Infallible) -> Disposition {
        match *error {}
    }
}

pub(crate) struct RecordingSink {
    topics: Arc<Mutex<Vec<String>>>,
    deliveries: Arc<dyn Deliveries>,
}

impl Sink for RecordingSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        lock(&self.topics).push(record.topic.to_owned());
        self.deliveries.delivered(seq);
        Ok(())
    }

    fn close(self: Box<Self>, _: Duration) {}
}
