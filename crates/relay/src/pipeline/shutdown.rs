use std::future::Future;
use std::pin::Pin;

/// The wish to stop, which may be waited for again after it was uttered.
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

    /// Waits for the wish. Cancel-safe; returns at once if it was uttered before.
    pub(crate) async fn asked(&mut self) {
        if !self.asked {
            self.signal.as_mut().await;
            self.asked = true;
        }
    }

    /// Whether it was uttered.
    pub(crate) async fn is_asked(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.asked() => true,
            () = std::future::ready(()) => false,
        }
    }
}
