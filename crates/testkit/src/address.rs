//! Addresses of this machine at which nothing listens.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tokio::net::TcpSocket;

use crate::threads::run;

/// An address of this machine at which nothing listens: connections to it are refused. Its port is
/// bound, so that no other process gets it, until this is dropped.
#[derive(Debug)]
pub struct ReservedAddress {
    socket: TcpSocket,
    address: SocketAddr,
}

impl ReservedAddress {
    /// Binds a free port and does not listen.
    pub fn bind() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(any).expect("a port is free");
        let address = socket.local_addr().expect("an address");
        Self { socket, address }
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn listen(self) -> TcpListener {
        let listener = run(async { self.socket.listen(1024)?.into_std() });
        let listener = listener.expect("the port is bound already");
        listener.set_nonblocking(false).expect("a listener");
        listener
    }
}

impl fmt::Display for ReservedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_reserved_address_refuses_connections_until_it_listens() {
        let reserved = ReservedAddress::bind();
        let address = reserved.address();
        let refused = TcpStream::connect(address).expect_err("nothing listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        TcpListener::bind(address).expect_err("the port is taken");
        let listener = reserved.listen();
        let client = TcpStream::connect(address).expect("it listens");
        let (_, from) = listener.accept().expect("a connection");
        assert_eq!(from, client.local_addr().expect("an address"));
    }
}
