//! Connections: taken from a listener, served under limits on slow clients, and let end before the server does.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Most bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;

/// How long after the last connection the listener is closed, once the server is to end.
const LAST_CALL: Duration = Duration::from_millis(50);

/// Serves `router` on what `listener` takes until `stop` is ready, then waits until what is in flight has been answered. A client
/// that sends nothing, or no whole head, for `slow` (asked when it connects) is hung up on.
pub(crate) async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    slow: impl Fn() -> Duration,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    let start = |io: L::Io| {
        let slow = slow();
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(slow).max_buf_size(HEAD_BYTES);
        builder.http2().timer(TokioTimer::new()).max_header_list_size(HEAD_BYTES as u32);
        let io = TokioIo::new(FirstByte { io, limit: Some(Box::pin(tokio::time::sleep(slow))) });
        let connection = builder.serve_connection(io, TowerToHyperService::new(router.clone())).into_owned();
        let connection = graceful.watch(connection);
        // How a connection ends is its client's affair.
        tokio::spawn(async move { drop(connection.await) });
    };
    loop {
        tokio::select! {
            (io, _) = listener.accept() => start(io),
            () = &mut stop => break,
        }
    }
    let last = Instant::now();
    // Clients that had connected before are served: their connections may not have been taken, or their bytes not been read.
    while let Ok((io, _)) = tokio::time::timeout(LAST_CALL, listener.accept()).await {
        start(io);
        if last.elapsed() > LAST_CALL * 10 {
            break;
        }
    }
    drop(listener);
    graceful.shutdown().await;
    Ok(())
}

/// A connection whose client must send something within a time. (From there on the HTTP server keeps its own times.)
struct FirstByte<Io> {
    io: Io,
    limit: Option<Pin<Box<Sleep>>>,
}

impl<Io: AsyncRead + Unpin> AsyncRead for FirstByte<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() {
            self.limit = None;
            return read;
        }
        let late = self.limit.as_mut().is_some_and(|limit| limit.as_mut().poll(cx).is_ready());
        if late { Poll::Ready(Err(std::io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for FirstByte<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
