//! The buffer of bytes that were read from a socket and not used yet.

/// The size of reads while streaming, in bytes.
pub(crate) const STREAM_CHUNK: usize = 256 * 1024;
/// The size of reads for answers to commands, which are small.
pub(crate) const SESSION_CHUNK: usize = 8 * 1024;

/// A contiguous buffer: bytes are appended at the end and used from the front.
///
/// The buffer grows with bytes that **arrived**, never by a length field: by a quarter of its
/// content, so that a byte is copied a constant number of times whatever the message's size. The
/// memory of a very large message is released after its use.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    /// The number of bytes at the front that have been used.
    used: usize,
    /// The size of a read.
    chunk: usize,
}

impl ReadBuffer {
    pub(crate) fn new(chunk: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(chunk),
            used: 0,
            chunk,
        }
    }

    /// Changes the size of reads, from the next [`Self::room`] on.
    pub(crate) fn set_chunk(&mut self, chunk: usize) {
        self.chunk = chunk;
    }

    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.used += count;
        debug_assert!(self.used <= self.bytes.len(), "more used than was there");
        if self.used >= self.bytes.len() {
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.used = 0;
    }

    /// Returns the buffer to append to, with room for at least an eighth of a chunk.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        let unread = self.bytes.len() - self.used;
        let oversized = self.bytes.capacity() > 2 * self.chunk && unread <= self.chunk / 2;
        let undersized = self.bytes.capacity() < self.chunk;
        if oversized || undersized {
            let mut fresh = Vec::with_capacity(self.chunk.max(unread));
            fresh.extend_from_slice(self.unread());
            self.bytes = fresh;
            self.used = 0;
        }
        // Move the start of a message to the front, so that one read takes all bytes that wait in
        // the socket, always into the same memory, which is still in the CPU's cache.
        let little = unread <= self.chunk / 64;
        if self.used > 0 && (little || !self.has_room()) {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        if !self.has_room() {
            self.bytes.reserve_exact(self.chunk.max(unread / 4));
        }
        &mut self.bytes
    }

    /// Returns true if there is room for at least an eighth of a chunk without moving or growing.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.capacity() - self.bytes.len() >= self.chunk / 8
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_with_its_bytes_and_shrinks_back() {
        let mut buffer = ReadBuffer::new(1024);
        for _ in 0..1000 {
            let room = buffer.room();
            assert!(room.capacity() - room.len() >= 128);
            room.extend_from_slice(&[7; 128]);
        }
        assert_eq!(buffer.unread().len(), 128_000);
        assert!(buffer.capacity() < 2 * 128_000);
        buffer.advance(127_990);
        assert_eq!(buffer.room().len(), 10);
        assert_eq!(buffer.unread(), [7; 10]);
        assert_eq!(buffer.capacity(), 1024);
    }

    #[test]
    fn the_start_of_a_message_is_moved_to_the_front() {
        let mut buffer = ReadBuffer::new(1024);
        buffer.room().extend_from_slice(&[7; 600]);
        buffer.advance(590);
        // Moved, so that one read takes all bytes that wait.
        assert_eq!(buffer.room().as_slice(), [7; 10]);
        // More than a little is not moved while there is room behind it.
        buffer.room().extend_from_slice(&[8; 600]);
        buffer.advance(500);
        assert_eq!(buffer.room().len(), 610);
        assert_eq!(buffer.unread().len(), 110);
    }

    #[test]
    fn unread_bytes_survive_moving() {
        let mut buffer = ReadBuffer::new(64);
        let mut next = 0_u8;
        let mut expected = 0_u8;
        for _ in 0..200 {
            for _ in 0..7 {
                buffer.room().push(next);
                next = next.wrapping_add(1);
            }
            while buffer.unread().len() > 3 {
                assert_eq!(buffer.unread()[0], expected);
                expected = expected.wrapping_add(1);
                buffer.advance(1);
            }
        }
        assert_eq!(buffer.capacity(), 64);
    }
}
