/// The reason why a configuration was refused. No variant contains a value, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaConfigError {
    /// The property's value would break a promise of the relay.
    #[error("{property}: {reason}")]
    Refused {
        /// The property's name, as given.
        property: String,
        /// What the value would break.
        reason: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The property has no effect on a producer.
    #[error("{property} is a consumer property, and this is a producer")]
    ConsumerOnly {
        /// The property's name.
        property: String,
    },
    /// librdkafka has no such property.
    #[error("{property} is not a property of librdkafka")]
    Unknown {
        /// The property's name, as given.
        property: String,
        /// The property that was probably meant.
        nearest: Option<String>,
    },
    /// librdkafka does not accept the value.
    #[error("{property}: {reason}")]
    Invalid {
        /// The property's name.
        property: String,
        /// librdkafka's message; for a secret, a fixed text.
        reason: String,
    },
    /// Two names of the same property were given.
    #[error("{first} and {second} are two names of one property")]
    Twice {
        /// One of the names.
        first: String,
        /// The other name.
        second: String,
    },
    /// A property without a default is missing.
    #[error("{property} is missing: {reason}")]
    Missing {
        /// The property's name.
        property: &'static str,
        /// What the property is needed for.
        reason: &'static str,
    },
    /// `sasl.mechanism` is OAUTHBEARER, and there is no source of tokens.
    #[error("sasl.mechanism: OAUTHBEARER needs a source of tokens, and there is none")]
    NoTokens,
    /// There is a source of tokens, and `sasl.mechanism` is not OAUTHBEARER.
    #[error("a source of OAUTHBEARER tokens is configured, and sasl.mechanism is not OAUTHBEARER")]
    TokensUnused,
    /// One of [`KafkaOptions`](super::KafkaOptions) is out of range.
    #[error("{option}: {reason}")]
    Option {
        /// The field's name.
        option: &'static str,
        /// The allowed range.
        reason: &'static str,
    },
}

impl KafkaConfigError {
    /// Returns what to do about the error.
    pub fn remedy(&self) -> String {
        match self {
            Self::Refused { remedy, .. } => (*remedy).to_owned(),
            Self::ConsumerOnly { .. } => "remove it".to_owned(),
            Self::Unknown {
                nearest: Some(name),
                ..
            } => format!("did you mean {name}?"),
            Self::Unknown { nearest: None, .. } | Self::Invalid { .. } => {
                "librdkafka's CONFIGURATION.md lists its properties and their values".to_owned()
            }
            Self::Twice { .. } => "keep one of them".to_owned(),
            Self::Missing { property, .. } => format!("add \"{property}\" to [sink.kafka]"),
            Self::NoTokens => {
                "name a token_file or a token_command in [sink.oauthbearer]".to_owned()
            }
            Self::TokensUnused => {
                "set \"security.protocol\" = \"SASL_SSL\" and \"sasl.mechanism\" = \
                                   \"OAUTHBEARER\" in [sink.kafka], or remove [sink.oauthbearer]"
                    .to_owned()
            }
            Self::Option { option, .. } => format!("correct {option}"),
        }
    }
}
