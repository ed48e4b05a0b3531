//! Ports of servers, which nothing else of this machine gets.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Socket, Type};

/// A port of 127.0.0.1 for one server, which no other process is given as a free port until this is
/// dropped, whether the server runs or not. While no server listens, connections are refused.
///
/// A socket is bound to the port and does not listen. On Linux a server may listen at the same port, as
/// both sockets have `SO_REUSEADDR`; the kernel gives neither `bind` to port 0 nor an outgoing connection
/// such a port (`man 7 socket`, `man 7 ip`). On other systems the port is free, but not held.
pub struct Port {
    number: u16,
    _held: Option<Socket>,
}

impl Port {
    /// Finds and holds a free port.
    ///
    /// # Errors
    /// The system has no port or no socket left.
    pub fn free() -> io::Result<Self> {
        // Closed in child processes, so that none holds the port longer than its owner.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into())?;
        let address = socket.local_addr()?.as_socket();
        Ok(Self {
            number: address.map_or(0, |address| address.port()),
            _held: cfg!(target_os = "linux").then_some(socket),
        })
    }

    /// Returns its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::collections::HashSet;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_server_listens_at_its_port_and_connections_are_refused_when_it_has_ended() {
        let port = Port::free().unwrap();
        for _ in 0..2 {
            // The standard library sets SO_REUSEADDR, as servers do.
            let server = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
            let client = TcpStream::connect(("127.0.0.1", port.number())).unwrap();
            // The server closes first, so that its side of the connection holds the port a while.
            drop(server.accept().unwrap());
            drop((server, client));
            let refused = TcpStream::connect(("127.0.0.1", port.number())).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        }
    }

    #[test]
    fn a_held_port_is_given_to_nothing_else() {
        let held: Vec<Port> = (0..20).map(|_| Port::free().unwrap()).collect();
        let held: HashSet<u16> = held.iter().map(Port::number).collect();
        assert_eq!(held.len(), 20);
        for _ in 0..20_000 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            assert!(!held.contains(&listener.local_addr().unwrap().port()));
        }
    }
}
