//! Redis. Its section is in `walrelay-redis-sink`, but the template of the stream.

use walrelay_event_router::{Address, AddressPart, Lookups, Template, TemplateTarget};
use walrelay_failure::Failure;
use walrelay_redis_sink::{RedisKind, RedisSection};
use walrelay_settings::{AlreadyReported, Reader, Row, Section as _, section};
use walrelay_sink::Record;
use walrelay_sink_kind::{KindDescription, SinkKind};

use super::{Delivery, Destination, Poison, Sample, SinkSection, SinkSettings, options};
use crate::config::templates::template;

section! {
/// The template of the stream in `[sink.redis]`.
#[derive(Debug)]
struct StreamKeys at "sink.redis" {
    /// The key of the stream. Unset: the topic of the route.
    "stream" stream: Option<Template> = template(TemplateTarget::Address).optional();
}
}

/// `[sink.redis]`.
#[derive(Debug)]
pub(super) struct Redis {
    section: RedisSection,
    stream: Option<Template>,
}

impl SinkSection for Redis {
    const DESCRIPTION: &'static KindDescription = &RedisKind::DESCRIPTION;

    const SAMPLE: Option<Sample> = Some(Sample {
        question: "Redis server (host:port): ",
        option: "--servers",
        lines: |servers| {
            format!(
                "[sink.redis]\n\
                 hosts = [{servers}]\n\
                 # tls = true\n\
                 # username = \"walrelay\"\n\
                 # password = \"${{REDIS_PASSWORD}}\"\n\
                 # Otherwise the topic of the event. Columns of the event stand for their values.\n\
                 # stream = \"{{type}}\"\n"
            )
        },
    });

    fn rows(rows: &mut Vec<Row>) {
        StreamKeys::declare(rows);
        RedisSection::declare(rows);
    }

    fn read(reader: &mut Reader<'_>, chosen: bool) -> Result<Self, AlreadyReported> {
        let keys = StreamKeys::read(reader);
        let section = RedisSection::read_for(reader, chosen)?;
        let stream = keys?.stream;
        Ok(Self { section, stream })
    }
}

impl SinkSettings for Redis {
    fn make(&self, delivery: &Delivery, poison: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        let options = options(delivery, poison);
        Ok(Box::new(RedisKind::new(&self.section, &options)?))
    }

    fn destination(&self, record: &Record<'_>) -> Result<Destination, String> {
        Ok(vec![("stream", record.topic.to_owned())])
    }

    fn address(&self, reader: &mut Reader<'_>) -> Result<Option<Address>, AlreadyReported> {
        let topic = self.stream.clone().map(|template| AddressPart {
            key: "sink.redis.stream",
            template,
            tokens: None,
        });
        Ok(Some(Address {
            topic,
            routing_key: None,
            lookups: reader.shared::<Lookups>().clone(),
        }))
    }
}
