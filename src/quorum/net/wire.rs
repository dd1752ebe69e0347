//! A connection as a sequence of frames in each direction.
//!
//! A task owns it alone: waiting for the next frame also sends what is queued. There is no second task for the other direction.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::quorum::net::frame::{Decoder, Frame, GREETING_MAX, Kind, encode};
use crate::quorum::runtime::timeout;

/// A socket, encrypted or not.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// Capacity in bytes above which the queue of a connection is given back when it is empty.
const KEEP_MAX: usize = 1 << 20;

/// Time for which the end of a connection waits for the socket.
const CLOSING_TIME: Duration = Duration::from_millis(100);

/// A frame of at least this length is queued as it is, without a copy, if nothing else is queued.
const WHOLE_MIN: usize = 16 << 10;

/// A connection.
pub struct Wire {
    socket: Box<dyn Socket>,
    decoder: Decoder,
    queue: Vec<u8>,
    /// Length of the part of `queue` that the socket has taken.
    taken: usize,
    /// The socket has taken bytes that it may still hold.
    unflushed: bool,
}

impl Wire {
    /// A connection of which nothing is known yet: it takes short frames only.
    pub fn new(socket: Box<dyn Socket>) -> Wire {
        Wire { socket, decoder: Decoder::new(GREETING_MAX), queue: Vec::new(), taken: 0, unflushed: false }
    }

    /// Changes the maximum length of received frames.
    pub fn set_max(&mut self, max: usize) {
        self.decoder.set_max(max);
    }

    /// Queues an encoded frame. [`Wire::next`] and [`Wire::flush`] send it.
    pub fn push(&mut self, frame: Vec<u8>) {
        if self.queue.is_empty() && frame.len() >= WHOLE_MIN {
            self.queue = frame;
        } else {
            self.queue.extend_from_slice(&frame);
        }
    }

    /// Number of bytes that are queued.
    pub fn queued(&self) -> usize {
        self.queue.len() - self.taken
    }

    /// Returns the next frame, and sends what is queued meanwhile. It may be dropped and called again.
    ///
    /// # Errors
    /// The connection has ended (`UnexpectedEof`), or what it carries is not a frame (`InvalidData`).
    pub async fn next(&mut self) -> io::Result<Frame> {
        self.next_if(true).await
    }

    /// Like [`Wire::next`], but takes no frames unless `receive` is true: it then only sends, until it is dropped.
    ///
    /// # Errors
    /// As [`Wire::next`].
    pub async fn next_if(&mut self, receive: bool) -> io::Result<Frame> {
        poll_fn(|cx| match self.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ if receive => self.poll_receive(cx),
            _ => Poll::Pending,
        })
        .await
    }

    /// Sends all that is queued. Returns a frame if one arrives before that.
    ///
    /// # Errors
    /// As [`Wire::next`].
    pub async fn send(&mut self) -> io::Result<Option<Frame>> {
        poll_fn(|cx| match self.poll_send(cx) {
            Poll::Ready(sent) => Poll::Ready(sent.map(|()| None)),
            Poll::Pending => self.poll_receive(cx).map_ok(Some),
        })
        .await
    }

    /// Sends all that is queued.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_send(cx)).await
    }

    /// Sends why the connection ends, as far as the socket takes it at once.
    pub async fn send_refusal(&mut self, reason: &str) {
        self.push(encode(Kind::Refused, 0, reason.as_bytes()));
        // If the other node does not read, the reason is lost, and nobody waits.
        poll_fn(|cx| {
            let _ = self.poll_send(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Sends why the connection ends, as [`Wire::send_refusal`] does, and ends it.
    pub async fn refuse(&mut self, reason: &str) {
        self.send_refusal(reason).await;
        let _ = timeout(CLOSING_TIME, self.socket.shutdown()).await;
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.taken < self.queue.len() {
            match Pin::new(&mut self.socket).poll_write(cx, &self.queue[self.taken..]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    self.taken += count;
                    self.unflushed = true;
                }
            }
        }
        self.taken = 0;
        self.queue.clear();
        if self.queue.capacity() > KEEP_MAX {
            self.queue = Vec::new();
        }
        if self.unflushed {
            match Pin::new(&mut self.socket).poll_flush(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => self.unflushed = false,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame>> {
        loop {
            match self.decoder.next() {
                Err(malformed) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, malformed))),
                Ok(Some(frame)) => return Poll::Ready(Ok(frame)),
                Ok(None) => {}
            }
            match pin!(self.socket.read_buf(self.decoder.room())).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(_)) => {}
            }
        }
    }
}
