//! Closes connections to the brokers by a reset, so that the operating system throws away the bytes which
//! they have not received. Otherwise it delivers those, maybe much later.
//!
//! librdkafka would have a callback for its sockets (`closesocket_cb`), but a `BaseProducer` cannot be made
//! with one.

use walrelay_sink_client::host_and_port;

use crate::ffi;

/// librdkafka's port of a server without one.
const PORT: u16 = 9092;
/// Returns the port of a server, as in `bootstrap.servers` (`b`, `SSL://b:9093`, `[::1]:9092`) or in
/// statistics, with an id (`b:9092/1`).
pub(super) fn port(server: &str) -> u16 {
    let server = server.trim();
    let (_, server) = server.split_once("://").unwrap_or(("", server));
    let (server, _) = server.split_once('/').unwrap_or((server, ""));
    host_and_port(server, PORT).map_or(PORT, |(_, port)| port)
}

/// Makes the operating system close this process's connections to these ports by a reset. Other
/// connections to such a port lose nothing by it: none waits for its bytes when it is closed. Does
/// nothing where there is no `/proc/self/fd`.
pub(super) fn end_by_reset(ports: &[u16]) {
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok());
    for file in numbers {
        if ffi::peer_port(file).is_some_and(|port| ports.contains(&port)) {
            ffi::end_by_reset(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_server_is_found_in_each_of_its_forms() {
        for (server, expected) in [
            ("b", PORT),
            (" b:1", 1),
            ("b:1/7", 1),
            ("SSL://b:1", 1),
            ("SSL://b", PORT),
            ("[::1]:1", 1),
            ("[::1]", PORT),
            ("GroupCoordinator", PORT),
        ] {
            assert_eq!(port(server), expected, "{server}");
        }
    }
}
