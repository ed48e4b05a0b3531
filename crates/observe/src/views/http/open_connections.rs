//! The endpoint's open connections, whose number is bounded: one that makes no progress is closed
//! for a new one.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use walrelay_sink::lock;

/// The longest time that a connection may neither send nor take a byte.
const LONGEST_STALL: Duration = Duration::from_secs(5);
/// A connection that is younger gives way last: a probe is answered within this time.
const YOUTH: Duration = Duration::from_secs(1);
/// The share of the number that only young connections have: one in so many.
const RESERVE_SHARE: usize = 8;

/// The connections that are open.
#[derive(Debug)]
pub(super) struct OpenConnections {
    /// The largest number of connections.
    most: usize,
    open: Mutex<Vec<Arc<OpenConnection>>>,
}

/// One open connection.
#[derive(Debug)]
pub(super) struct OpenConnection {
    opened: Instant,
    progressed: Mutex<Instant>,
    given_up: Notify,
}

impl OpenConnections {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            open: Mutex::default(),
        }
    }

    /// Counts a new connection. If few are left, the connection whose last progress is
    /// the longest ago gives way; a young one only if none is free.
    pub(super) fn add(&self) -> Arc<OpenConnection> {
        let now = Instant::now();
        let mut open = lock(&self.open);
        while open.len() >= self.most - self.most / RESERVE_SHARE {
            let any = open.len() >= self.most;
            let candidates = open.iter().enumerate();
            let candidates = candidates
                .filter(|(_, connection)| any || now.duration_since(connection.opened) >= YOUTH);
            let Some((at, _)) =
                candidates.min_by_key(|(_, connection)| *lock(&connection.progressed))
            else {
                break;
            };
            open.swap_remove(at).given_up.notify_one();
        }
        let connection = Arc::new(OpenConnection {
            opened: now,
            progressed: Mutex::new(now),
            given_up: Notify::new(),
        });
        open.push(Arc::clone(&connection));
        connection
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&self, connection: &Arc<OpenConnection>) {
        lock(&self.open).retain(|open| !Arc::ptr_eq(open, connection));
    }
}

impl OpenConnection {
    /// Waits until the connection must end: it gives way, or makes no progress.
    pub(super) async fn lost(&self) {
        tokio::select! {
            () = self.given_up.notified() => {}
            () = self.stalled() => {}
        }
    }

    async fn stalled(&self) {
        loop {
            let until = *lock(&self.progressed) + LONGEST_STALL;
            if Instant::now() >= until {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// A connection that notes its progress.
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub(super) stream: S,
    pub(super) connection: Arc<OpenConnection>,
}

impl<S> Watched<S> {
    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(1..))) {
            *lock(&self.connection.progressed) = Instant::now();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        let _ = self.note(Poll::Ready(Ok(count)));
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    async fn is_lost(connection: &OpenConnection) -> bool {
        timeout(Duration::ZERO, connection.lost()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_without_progress_gives_way_and_new_ones_have_a_reserve() {
        let connections = OpenConnections::new(16);
        let mut taken: Vec<_> = (0..14).map(|_| connections.add()).collect();
        advance(YOUTH).await;
        // All but the third have made progress since.
        for (number, connection) in taken.iter().enumerate() {
            if number != 2 {
                *lock(&connection.progressed) = Instant::now();
            }
        }
        taken.push(connections.add());
        for (number, connection) in taken.iter().enumerate() {
            assert_eq!(is_lost(connection).await, number == 2, "{number}");
        }
        // Each new one is taken, and of the old ones some stay until none is free.
        let young: Vec<_> = (0..13).map(|_| connections.add()).collect();
        for connection in &young {
            assert!(!is_lost(connection).await);
        }
        assert!(lock(&connections.open).len() <= 16);
        for connection in &taken[..] {
            connections.remove(connection);
        }
        assert_eq!(lock(&connections.open).len(), 13);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_stalls_ends() {
        let connections = OpenConnections::new(1);
        let connection = connections.add();
        advance(Duration::from_millis(4_999)).await;
        assert!(!is_lost(&connection).await);
        *lock(&connection.progressed) = Instant::now();
        advance(Duration::from_secs(1)).await;
        assert!(!is_lost(&connection).await);
        advance(LONGEST_STALL).await;
        assert!(is_lost(&connection).await);
    }
}
