//! HTTP. Its section is in `walrelay-http-sink`.

use walrelay_event_router::{Address, AddressPart, Lookups, Template, TemplateTarget, Tokens};
use walrelay_failure::Failure;
use walrelay_http_sink::{HttpKind, HttpSection, UrlTemplate};
use walrelay_relay::PoisonAction;
use walrelay_settings::{AlreadyReported, Reader, Row};
use walrelay_sink::Record;
use walrelay_sink_kind::{KindDescription, SinkKind};

use crate::config::templates;

use super::{Delivery, Destination, Poison, Sample, SinkSection, SinkSettings, options};

const URL: &str = "sink.http.url";

impl SinkSection for HttpSection {
    const DESCRIPTION: &'static KindDescription = &HttpKind::DESCRIPTION;

    const SAMPLE: Option<Sample> = Some(Sample {
        question: "URL that events are posted to (https://host/{topic}): ",
        option: "--servers",
        lines: |servers| {
            format!(
                "[sink.http]\n\
                 # {{topic}} stands for the topic of the event, {{column}} for a column of the row.\n\
                 url = {servers}\n\
                 # token = \"${{SINK_TOKEN}}\"\n"
            )
        },
    });

    fn rows(rows: &mut Vec<Row>) {
        <Self as walrelay_settings::Section>::declare(rows);
    }

    fn read(reader: &mut Reader<'_>, chosen: bool) -> Result<Self, AlreadyReported> {
        Self::read_for(reader, chosen)
    }
}

impl SinkSettings for HttpSection {
    fn make(&self, delivery: &Delivery, poison: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        Ok(Box::new(HttpKind::new(self, options(delivery, poison))?))
    }

    fn destination(&self, record: &Record<'_>) -> Result<Destination, String> {
        let topic = ("topic", record.topic.to_owned());
        Ok(vec![topic, ("URL", self.url_of(record)?)])
    }

    /// Makes the URL the second part of an event's address, if it has columns.
    fn address(&self, reader: &mut Reader<'_>) -> Result<Option<Address>, AlreadyReported> {
        let url = self.url.as_ref();
        let (Some(text), Some(entry)) = (url.and_then(UrlTemplate::template), reader.raw(URL))
        else {
            return Ok(None);
        };
        // The error shows a place of the text as it is written, in which `{topic}` is a column.
        templates::parse(reader, URL, &entry, TemplateTarget::Address)?;
        let lookups = reader.shared::<Lookups>().clone();
        let template = Template::parse(&text, TemplateTarget::Address, &lookups);
        let Ok(template) = template else {
            return Err(reader.invalid(URL, &entry, "it is no template"));
        };
        Ok(Some(Address {
            topic: None,
            routing_key: Some(AddressPart {
                key: URL,
                template,
                tokens: Some(Tokens::Url),
            }),
            lookups,
        }))
    }

    /// Checks that dead letters have a URL of their own, and that a destination that is given up ends nothing.
    fn check_poison(
        &self,
        reader: &mut Reader<'_>,
        poison: &Poison,
    ) -> Result<(), AlreadyReported> {
        if poison.writes_dead_letters() && self.dead_letter_url.is_none() {
            let example = "\"https://host/dead-letters\"";
            return Err(reader.missing("sink.http.dead_letter_url", example));
        }
        if self.unavailable_for.is_some() && poison.rejected == PoisonAction::Halt {
            let what = "one destination that stays away would end the relay for all: it needs \
                        `poison.rejected = \"dead-letter\"` or `\"skip\"`";
            return Err(reader.conflict("sink.http.unavailable_for", what.to_owned()));
        }
        Ok(())
    }
}
