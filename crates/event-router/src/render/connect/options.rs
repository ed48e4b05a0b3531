//! Options of Debezium's Postgres connector for the handling of column values, and of Kafka Connect's
//! `JsonConverter`.

/// `time.precision.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimePrecision {
    /// Milliseconds or microseconds, by the precision of the column.
    #[default]
    Adaptive,
    /// Like `Adaptive`, but times always in microseconds.
    AdaptiveTimeMicroseconds,
    /// Kafka Connect's own types, in milliseconds.
    Connect,
    /// ISO 8601 texts.
    IsoString,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

/// `decimal.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecimalHandling {
    /// Connect's `Decimal`.
    #[default]
    Precise,
    /// A double.
    Double,
    /// A text.
    String,
}

/// `binary.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BinaryHandling {
    /// Bytes.
    #[default]
    Bytes,
    /// A text in base64.
    Base64,
    /// A text in the base64 of URLs.
    Base64UrlSafe,
    /// A text in hex.
    Hex,
}

/// `interval.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IntervalHandling {
    /// Microseconds, with months of 30.4375 days.
    #[default]
    Numeric,
    /// ISO 8601.
    String,
}

/// `hstore.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HstoreHandling {
    /// A JSON text.
    #[default]
    Json,
    /// A Connect map.
    Map,
}

/// The handling of column values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// `time.precision.mode`.
    pub time: TimePrecision,
    /// `decimal.handling.mode`.
    pub decimal: DecimalHandling,
    /// `binary.handling.mode`.
    pub binary: BinaryHandling,
    /// `interval.handling.mode`.
    pub interval: IntervalHandling,
    /// `hstore.handling.mode`.
    pub hstore: HstoreHandling,
    /// `money.fraction.digits`.
    pub money_fraction_digits: u8,
}

impl Default for Handling {
    /// Debezium's defaults.
    fn default() -> Self {
        Self {
            time: TimePrecision::default(),
            decimal: DecimalHandling::default(),
            binary: BinaryHandling::default(),
            interval: IntervalHandling::default(),
            hstore: HstoreHandling::default(),
            money_fraction_digits: 2,
        }
    }
}

/// Options of a `JsonConverter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonOptions {
    /// Whether `{"schema":…,"payload":…}` is around each value (`schemas.enable`).
    pub schemas: bool,
    /// Whether decimals are numbers and not base64 (`decimal.format=NUMERIC`).
    pub decimal_numbers: bool,
    /// Whether null in a field of a struct that has a default is that default
    /// (`replace.null.with.default`).
    pub replace_null_with_default: bool,
}

impl Default for JsonOptions {
    /// Kafka Connect's defaults.
    fn default() -> Self {
        Self {
            schemas: true,
            decimal_numbers: false,
            replace_null_with_default: true,
        }
    }
}
