//! Tests of connection strings and password files.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::info::Spelled;
use super::*;

mod forms;
mod password_files;
mod properties;

fn parse(text: &str) -> ConnInfo {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> ConnInfoError {
    match text.parse::<ConnInfo>() {
        Ok(info) => panic!("{text} was read as {info:?}"),
        Err(error) => error,
    }
}

fn password(info: &ConnInfo) -> Option<&str> {
    info.password.as_ref().map(ExposeSecret::expose_secret)
}

fn tcp(name: &str, port: u16) -> Host {
    Host {
        address: HostAddr::Tcp(name.to_owned()),
        hostaddr: None,
        port,
    }
}

fn unix(directory: &str, port: u16) -> Host {
    Host {
        address: HostAddr::Unix(directory.into()),
        hostaddr: None,
        port,
    }
}

fn look_up(file: &[u8], connection: &str) -> Result<Option<String>, ConnInfoError> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pgpass");
    std::fs::write(&path, file).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("mode");
    let mut info = parse(connection);
    info.passfile = Some(path);
    let found = info.password_for(&info.hosts[0])?;
    Ok(found.map(|password| password.expose_secret().to_owned()))
}
