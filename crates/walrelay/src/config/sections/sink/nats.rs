//! NATS JetStream. Its section is in `walrelay-nats-sink`, but the template of the subject.

use walrelay_event_router::{Address, AddressPart, Lookups, Template, TemplateTarget, Tokens};
use walrelay_failure::Failure;
use walrelay_nats_sink::{NatsKind, NatsSection};
use walrelay_settings::{AlreadyReported, Reader, Row, Section as _, choice, section};
use walrelay_sink::Record;
use walrelay_sink_kind::{KindDescription, SinkKind};

use super::{Delivery, Destination, Poison, Sample, SinkSection, SinkSettings, options};
use crate::config::templates::template;

const TOKENS: &[(&str, Tokens)] = &[("poison", Tokens::Refuse), ("replace", Tokens::Replace)];

section! {
/// The template of the subject in `[sink.nats]`.
#[derive(Debug)]
struct SubjectKeys at "sink.nats" {
    /// The subject, in which the value of each column is one token. Unset: the topic of the route.
    "subject" subject: Option<Template> = template(TemplateTarget::Address).optional();
    /// The treatment of a value that is not a token (empty, or with `.`, `*`, `>`, blanks or control characters). `poison`: the event is unroutable. `replace`: `_` replaces each such character, so two keys may share a subject.
    "invalid_tokens" invalid_tokens: Tokens = choice(TOKENS).or("poison");
}
}

/// `[sink.nats]`.
#[derive(Debug)]
pub(super) struct Nats {
    section: NatsSection,
    subject: Option<Template>,
    tokens: Tokens,
}

impl SinkSection for Nats {
    const DESCRIPTION: &'static KindDescription = &NatsKind::DESCRIPTION;

    const SAMPLE: Option<Sample> = Some(Sample {
        question: "NATS server (host:port): ",
        option: "--servers",
        lines: |servers| {
            format!(
                "[sink.nats]\n\
                 hosts = [{servers}]\n\
                 # tls = true\n\
                 # username = \"walrelay\"\n\
                 # password = \"${{NATS_PASSWORD}}\"\n\
                 # Otherwise the topic of the event. Columns of the event stand for their values.\n\
                 # subject = \"events.{{type}}\"\n"
            )
        },
    });

    fn rows(rows: &mut Vec<Row>) {
        SubjectKeys::declare(rows);
        NatsSection::declare(rows);
    }

    fn read(reader: &mut Reader<'_>, chosen: bool) -> Result<Self, AlreadyReported> {
        let keys = SubjectKeys::read(reader);
        let section = NatsSection::read_for(reader, chosen)?;
        let keys = keys?;
        let unused = "sink.nats.invalid_tokens";
        if chosen && keys.subject.is_none() && reader.has(unused) {
            return Err(reader.no_effect(unused, "without `subject`"));
        }
        Ok(Self {
            section,
            subject: keys.subject,
            tokens: keys.invalid_tokens,
        })
    }
}

impl SinkSettings for Nats {
    fn make(&self, delivery: &Delivery, poison: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        let options = options(delivery, poison);
        Ok(Box::new(NatsKind::new(&self.section, &options)?))
    }

    fn destination(&self, record: &Record<'_>) -> Result<Destination, String> {
        Ok(vec![("subject", record.topic.to_owned())])
    }

    fn address(&self, reader: &mut Reader<'_>) -> Result<Option<Address>, AlreadyReported> {
        let topic = self.subject.clone().map(|template| AddressPart {
            key: "sink.nats.subject",
            template,
            tokens: Some(self.tokens),
        });
        Ok(Some(Address {
            topic,
            routing_key: None,
            lookups: reader.shared::<Lookups>().clone(),
        }))
    }
}
