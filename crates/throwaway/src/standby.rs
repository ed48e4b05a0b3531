use std::{fs, io, path::Path};

use super::{
    Postgres, Shutdown, ThrowawayError,
    files::{append_settings, copy_dir, postgres_scratch, setting_lines, write_private},
    postgres::SUPERUSER,
};

impl Postgres {
    /// Creates a hot standby of this server, on a port of its own, with the same settings, users
    /// and passwords. **This server is stopped for the copy and started again** before the standby
    /// starts: a standby that does not find its primary retries only after seconds or minutes.
    ///
    /// `port` is the port of 127.0.0.1 at which the standby reaches this server:
    /// [`port`](Self::port), or the port of a proxy before it.
    ///
    /// `name` is the `application_name` of the standby, for `synchronous_standby_names`, and its
    /// physical slot (`primary_slot_name`), which must exist. Its `primary_conninfo` has a
    /// `dbname`, which `sync_replication_slots` needs, and `hot_standby_feedback` is on. `settings`
    /// go after these, as in [`Builder::setting`](super::Builder::setting).
    ///
    /// As with `pg_basebackup`, the copy has none of the replication slots. To promote the standby,
    /// run `SELECT pg_promote()` there. It is stopped, killed and started again like any server,
    /// and stays a standby until it is promoted.
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
        let own = [
            ("primary_conninfo", conninfo.as_str()),
            ("primary_slot_name", name),
            ("hot_standby_feedback", "on"),
        ];
        let settings = settings.iter().copied();
        let conf = setting_lines("Of this standby", own.into_iter().chain(settings))?;

        let account = self.scratch.account();
        let scratch = postgres_scratch(account)?;
        let data = scratch.path().join("data");
        self.stop(Shutdown::Fast)?;
        copy_dir(&self.data_dir(), &data)?;
        self.start_again()?;
        empty(&data.join("pg_replslot")).map_err(ThrowawayError::io("leave out the slots"))?;
        append_settings(&data, &conf)?;
        write_private(&data.join("standby.signal"), b"", account)
            .map_err(ThrowawayError::io("write standby.signal"))?;
        let password = self.superuser_password().to_owned();
        Postgres::first_start(self.binaries.clone(), scratch, password)
    }

    /// Returns the connection string of a standby of this name to this server.
    fn conninfo(&self, name: &str, port: u16) -> String {
        let password = self.superuser_password();
        let password = password.replace('\\', "\\\\").replace('\'', "\\'");
        format!(
            "host=127.0.0.1 port={port} user={SUPERUSER} password='{password}' dbname=postgres \
             application_name={name}"
        )
    }
}

fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        fs::remove_dir_all(entry?.path())?;
    }
    Ok(())
}
