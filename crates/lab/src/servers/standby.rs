use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use super::{
    Postgres, Scratch, Shutdown, ThrowawayError,
    files::{make_dir, setting_line, write_private},
    postgres::SUPERUSER,
};

impl Postgres {
    /// Makes a hot standby of this server, on a port of its own, with the same settings, users and
    /// passwords. **This server is stopped for the copy and started again**, before the standby is: one
    /// that does not find its primary tries again after seconds or minutes only.
    ///
    /// `port` is where it reaches this server at 127.0.0.1: [`port`](Self::port), or that of a proxy
    /// before it.
    ///
    /// `name` is the `application_name` it streams by, for `synchronous_standby_names`, and the
    /// physical slot it streams from (`primary_slot_name`): make that beforehand. Its
    /// `primary_conninfo` has a `dbname`, which `sync_replication_slots` needs, and
    /// `hot_standby_feedback` is on. `settings` go after these, as in
    /// [`Builder::setting`](super::Builder::setting).
    ///
    /// As with `pg_basebackup`, the copy has none of the replication slots. To promote it, run
    /// `SELECT pg_promote()` there. It is stopped, killed and started again like any server, and stays
    /// a standby until it was promoted.
    ///
    /// # Errors
    /// A name or setting that cannot be written; as for [`stop`](Self::stop),
    /// [`start_again`](Self::start_again) and [`Builder::start`](super::Builder::start).
    pub fn standby(
        &self,
        name: &str,
        port: u16,
        settings: &[(&str, &str)],
    ) -> Result<Postgres, ThrowawayError> {
        let slot_name =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || !name.bytes().all(slot_name) {
            let reason = "the name of a slot is made of a-z, 0-9 and underscores";
            return Err(ThrowawayError::invalid("standby", name, reason));
        }
        let conninfo = self.conninfo(name, port);
        let mut conf = String::from("\n# Of this standby\n");
        for (name, value) in [
            ("primary_conninfo", conninfo.as_str()),
            ("primary_slot_name", name),
            ("hot_standby_feedback", "on"),
        ]
        .iter()
        .chain(settings)
        {
            conf.push_str(&setting_line(name, value)?);
        }

        let account = self.scratch.account();
        let scratch = Scratch::new("walrelay-pg-", account)
            .map_err(ThrowawayError::io("make a temporary directory"))?;
        let data = scratch.path().join("data");
        self.stop(Shutdown::Fast)?;
        copy(&self.data_dir(), &data)?;
        self.start_again()?;
        empty(&data.join("pg_replslot")).map_err(ThrowawayError::io("leave out the slots"))?;
        OpenOptions::new()
            .append(true)
            .open(data.join("postgresql.conf"))
            .and_then(|mut file| file.write_all(conf.as_bytes()))
            .map_err(ThrowawayError::io("write postgresql.conf"))?;
        write_private(&data.join("standby.signal"), b"", account)
            .map_err(ThrowawayError::io("write standby.signal"))?;
        make_dir(&scratch.path().join("s"), account)
            .map_err(ThrowawayError::io("make a directory for the socket"))?;
        Postgres::first_start(
            self.binaries.clone(),
            scratch,
            self.superuser_password().to_owned(),
            self.tcp,
        )
    }

    /// How a standby of this name reaches this server.
    fn conninfo(&self, name: &str, port: u16) -> String {
        let password = self.superuser_password();
        let password = password.replace('\\', "\\\\").replace('\'', "\\'");
        format!(
            "host=127.0.0.1 port={port} user={SUPERUSER} password='{password}' dbname=postgres \
             application_name={name}"
        )
    }
}

/// With owners and permissions: `cp` knows how on every system.
fn copy(from: &Path, to: &Path) -> Result<(), ThrowawayError> {
    let what = "copy the data directory";
    let output = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .stdin(Stdio::null())
        .output()
        .map_err(ThrowawayError::io(what))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ThrowawayError::io(what)(io::Error::other(said)))
}

fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        fs::remove_dir_all(entry?.path())?;
    }
    Ok(())
}
