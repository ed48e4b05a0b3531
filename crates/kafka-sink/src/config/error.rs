/// Why a configuration was refused. No variant holds a value: it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaConfigError {
    /// The property would break what the relay promises.
    #[error("{property}: {reason}")]
    Refused {
        /// Its name, as given.
        property: String,
        /// What it would break.
        reason: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The property means nothing to a producer.
    #[error("{property} is a consumer property, and this is a producer")]
    ConsumerOnly {
        /// Its name.
        property: String,
    },
    /// librdkafka has no such property.
    #[error("{property} is not a property of librdkafka")]
    Unknown {
        /// Its name, as given.
        property: String,
        /// What may have been meant.
        nearest: Option<String>,
    },
    /// librdkafka does not take the value.
    #[error("{property}: {reason}")]
    Invalid {
        /// Its name.
        property: String,
        /// librdkafka's words; for a secret, ours.
        reason: String,
    },
    /// Two names of the same property were given.
    #[error("{first} and {second} are two names of one property")]
    Twice {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// A property that has no default is missing.
    #[error("{property} is missing: {reason}")]
    Missing {
        /// Its name.
        property: &'static str,
        /// What it is needed for.
        reason: &'static str,
    },
    /// `sasl.mechanism` is OAUTHBEARER, and nothing gives it tokens.
    #[error("sasl.mechanism: OAUTHBEARER needs a source of tokens, and there is none")]
    NoTokens,
    /// There is a source of tokens, and `sasl.mechanism` is another.
    #[error("a source of OAUTHBEARER tokens is configured, and sasl.mechanism is not OAUTHBEARER")]
    TokensUnused,
    /// One of [`KafkaOptions`](super::KafkaOptions) is out of range.
    #[error("{option}: {reason}")]
    Option {
        /// The field's name.
        option: &'static str,
        /// What is allowed.
        reason: &'static str,
    },
}

impl KafkaConfigError {
    /// What to do about it.
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
