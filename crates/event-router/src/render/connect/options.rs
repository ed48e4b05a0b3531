//! Options of Debezium's Postgres connector for column values, and of Kafka Connect's
//! `JsonConverter`.

/// Debezium's `time.precision.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimePrecision {
    /// Milliseconds or microseconds, by the precision of the column.
    #[default]
    Adaptive,
    /// The rule of `Adaptive`, but times always in microseconds.
    AdaptiveTimeMicroseconds,
    /// Kafka Connect's types for dates and times, in milliseconds.
    Connect,
    /// Text in ISO 8601.
    IsoString,
    /// Times in microseconds.
    Microseconds,
    /// Times in nanoseconds.
    Nanoseconds,
}

/// Debezium's `decimal.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecimalHandling {
    /// Connect's `Decimal`.
    #[default]
    Precise,
    /// A double, which may lose precision.
    Double,
    /// Text in decimal.
    String,
}

/// Debezium's `binary.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BinaryHandling {
    /// The bytes unchanged.
    #[default]
    Bytes,
    /// Text in base64.
    Base64,
    /// Text in base64 with the alphabet for URLs.
    Base64UrlSafe,
    /// Text in hex.
    Hex,
}

/// Debezium's `interval.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IntervalHandling {
    /// Microseconds; a month has 30.4375 days.
    #[default]
    Numeric,
    /// Text in ISO 8601.
    String,
}

/// Debezium's `hstore.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HstoreHandling {
    /// JSON text.
    #[default]
    Json,
    /// Connect map.
    Map,
}

/// Options for column values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// The option `time.precision.mode`.
    pub time: TimePrecision,
    /// The option `decimal.handling.mode`.
    pub decimal: DecimalHandling,
    /// The option `binary.handling.mode`.
    pub binary: BinaryHandling,
    /// The option `interval.handling.mode`.
    pub interval: IntervalHandling,
    /// The option `hstore.handling.mode`.
    pub hstore: HstoreHandling,
    /// The option `money.fraction.digits`.
    pub money_fraction_digits: u8,
}

impl Default for Handling {
    /// Returns Debezium's defaults.
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

/// Options of `JsonConverter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonOptions {
    /// Writes `{"schema":…,"payload":…}` around each value (`schemas.enable`).
    pub schemas: bool,
    /// Writes decimals as numbers, not as base64 (`decimal.format=NUMERIC`).
    pub decimal_numbers: bool,
    /// Writes the default of a struct's field in place of null (`replace.null.with.default`).
    pub replace_null_with_default: bool,
}

impl Default for JsonOptions {
    /// Returns Kafka Connect's defaults.
    fn default() -> Self {
        Self {
            schemas: true,
            decimal_numbers: false,
            replace_null_with_default: true,
        }
    }
}
