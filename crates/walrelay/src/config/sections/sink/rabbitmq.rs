//! RabbitMQ. Its section is in `walrelay-rabbitmq-sink`, but the templates of its address.

use walrelay_event_router::{Address, AddressPart, Lookups, Template, TemplateTarget};
use walrelay_failure::Failure;
use walrelay_rabbitmq_sink::{ConstantAddress, RabbitmqKind, RabbitmqSection};
use walrelay_settings::{AlreadyReported, Reader, Row, Section as _, section};
use walrelay_sink::Record;
use walrelay_sink_kind::{KindDescription, SinkKind};

use super::{Delivery, Destination, Poison, Sample, SinkSection, SinkSettings, options};
use crate::config::templates::template;

section! {
/// The templates of the address in `[sink.rabbitmq]`.
#[derive(Debug)]
struct AddressKeys at "sink.rabbitmq" {
    /// The exchange; `""` is the default exchange. Unset: the topic of the route.
    "exchange" exchange: Option<Template> = template(TemplateTarget::Address).optional();
    /// The routing key. Unset: the empty one, for exchanges that ignore it.
    "routing_key" routing_key: Option<Template> = template(TemplateTarget::Address).optional();
}
}

/// `[sink.rabbitmq]`.
#[derive(Debug)]
pub(super) struct Rabbitmq {
    section: RabbitmqSection,
    address: AddressKeys,
}

impl SinkSection for Rabbitmq {
    const DESCRIPTION: &'static KindDescription = &RabbitmqKind::DESCRIPTION;

    const SAMPLE: Option<Sample> = Some(Sample {
        question: "RabbitMQ server (host:port): ",
        option: "--servers",
        lines: |servers| {
            format!(
                "[sink.rabbitmq]\n\
                 hosts = [{servers}]\n\
                 # tls = true\n\
                 username = \"walrelay\"\n\
                 password = \"${{RABBITMQ_PASSWORD}}\"\n\
                 # Otherwise the topic of the event. Columns of the event stand for their values.\n\
                 # exchange = \"{{type}}.events\"\n\
                 # routing_key = \"{{type}}\"\n"
            )
        },
    });

    fn rows(rows: &mut Vec<Row>) {
        AddressKeys::declare(rows);
        RabbitmqSection::declare(rows);
    }

    fn read(reader: &mut Reader<'_>, chosen: bool) -> Result<Self, AlreadyReported> {
        let address = AddressKeys::read(reader);
        let section = RabbitmqSection::read_for(reader, chosen)?;
        let address = address?;
        if chosen && section.declare {
            let exchange = address.exchange.as_ref();
            if exchange.and_then(Template::constant).is_none() {
                let what = "`sink.rabbitmq.declare` needs `exchange` to be a text without columns";
                return Err(reader.conflict("sink.rabbitmq.declare", what.to_owned()));
            }
        }
        Ok(Self { section, address })
    }
}

impl SinkSettings for Rabbitmq {
    fn make(&self, delivery: &Delivery, poison: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        let constant = |template: &Option<Template>| template.as_ref().and_then(Template::constant);
        let address = ConstantAddress {
            exchange: constant(&self.address.exchange),
            routing_key: constant(&self.address.routing_key),
        };
        let options = options(delivery, poison);
        Ok(Box::new(RabbitmqKind::new(
            &self.section,
            options,
            address,
        )?))
    }

    fn destination(&self, record: &Record<'_>) -> Result<Destination, String> {
        let routing_key = record.routing_key.unwrap_or_default();
        Ok(vec![
            ("exchange", record.topic.to_owned()),
            ("routing key", routing_key.to_owned()),
        ])
    }

    fn address(&self, reader: &mut Reader<'_>) -> Result<Option<Address>, AlreadyReported> {
        let part = |key, template: &Option<Template>| {
            let template = template.clone();
            template.map(|template| AddressPart {
                key,
                template,
                tokens: None,
            })
        };
        Ok(Some(Address {
            topic: part("sink.rabbitmq.exchange", &self.address.exchange),
            routing_key: part("sink.rabbitmq.routing_key", &self.address.routing_key),
            lookups: reader.shared::<Lookups>().clone(),
        }))
    }
}
