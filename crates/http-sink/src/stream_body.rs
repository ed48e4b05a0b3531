//! [`StreamBody`]: the body of a request of HTTP/2, which tells when the request has got its stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::oneshot::Sender;

/// A body with a signal for the stream. `hyper` keeps the body of a queued request as it is: once the stream is open,
/// it reads the body, or drops an empty one (hyper 1.12.0, `proto/h2/client.rs`, `ClientTask::poll_pipe`).
#[derive(Debug)]
pub(crate) struct StreamBody {
    body: Full<Bytes>,
    has_stream: Option<Sender<()>>,
}

impl StreamBody {
    /// Adds the signal to a body. Its receiver gets the value, or an error if the body is dropped before.
    pub(crate) fn new(body: Full<Bytes>, has_stream: Sender<()>) -> Self {
        Self {
            body,
            has_stream: Some(has_stream),
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(has_stream) = self.has_stream.take() {
            // Nobody waits for it if the answer has come.
            let _ = has_stream.send(());
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
