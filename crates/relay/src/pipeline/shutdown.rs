use std::future::Future;
use std::pin::Pin;

/// The request to stop. It can be awaited repeatedly, also after it arrived.
pub(crate) struct Shutdown<'a, F> {
    signal: Pin<&'a mut F>,
    asked: bool,
}

impl<'a, F: Future<Output = ()>> Shutdown<'a, F> {
    pub(crate) fn new(signal: Pin<&'a mut F>) -> Self {
        Self {
            signal,
            asked: false,
        }
    }

    /// Waits for the request; returns at once if it arrived before. Cancel-safe.
    pub(crate) async fn asked(&mut self) {
        if !self.asked {
            self.signal.as_mut().await;
            self.asked = true;
        }
    }

    /// Returns true if the request arrived.
    pub(crate) async fn is_asked(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.asked() => true,
            () = std::future::ready(()) => false,
        }
    }
}
