//! [`SetupError`]: the database is not set up as the relay needs it. Each module has the errors of one part
//! of the setup, with their ids and remedies.

mod gap;
mod generated;
mod publication;
mod server;
mod slot;
mod table;

use walrelay_lsn::Lsn;
use walrelay_sink::Disposition;

pub use gap::{GO_ON, Gap, PUBLISH};
pub use generated::GeneratedColumn;
pub use publication::PublicationSetupError;
pub use server::ServerSetupError;
pub use slot::SlotSetupError;
pub use table::TableSetupError;

/// The database is not set up as the relay needs it. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The server does not suit.
    #[error(transparent)]
    Server(#[from] ServerSetupError),
    /// An outbox table does not suit.
    #[error(transparent)]
    Table(#[from] TableSetupError),
    /// The publication does not suit.
    #[error(transparent)]
    Publication(#[from] PublicationSetupError),
    /// The slot does not suit.
    #[error(transparent)]
    Slot(#[from] SlotSetupError),
}

impl SetupError {
    /// Lets the range of a publication that lacks tables begin where it still carried them, at the
    /// latest: a relay confirms positions beyond until it looks at the catalogs again.
    #[must_use]
    pub(crate) fn carried_at(mut self, at: Option<Lsn>) -> Self {
        if let Self::Publication(PublicationSetupError::Lacks { gap: Some(gap), .. }) = &mut self
            && let Some(at) = at
        {
            gap.from = Some(gap.from.map_or(at, |from| from.min(at)));
        }
        self
    }

    /// Returns whether another attempt can succeed, and who must repair the cause.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Slot(error) => error.disposition(),
            Self::Server(_) | Self::Table(_) | Self::Publication(_) => Disposition::Configuration,
        }
    }

    /// Returns the error's id: a short stable name, for documents and scripts.
    pub fn id(&self) -> &'static str {
        match self {
            Self::Server(error) => error.id(),
            Self::Table(error) => error.id(),
            Self::Publication(error) => error.id(),
            Self::Slot(error) => error.id(),
        }
    }

    /// Returns the remedy for the error.
    pub fn remedy(&self) -> String {
        match self {
            Self::Server(error) => error.remedy(),
            Self::Table(error) => error.remedy(),
            Self::Publication(error) => error.remedy(),
            Self::Slot(error) => error.remedy(),
        }
    }
}
