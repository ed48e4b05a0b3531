use std::{
    fmt::Write as _,
    fs,
    io::Read as _,
    process::{Command, Stdio},
};

use super::{
    PostgresBinaries, Scratch, ThrowawayError,
    account::run_as,
    files::{prepare_environment, write_private},
    postgres::SUPERUSER,
};

/// Makes the data directory `data` in `scratch`, whose superuser has this password.
pub(crate) fn initdb(
    binaries: &PostgresBinaries,
    scratch: &Scratch,
    password: &str,
) -> Result<(), ThrowawayError> {
    let password_file = scratch.path().join("password");
    let line = format!("{password}\n");
    write_private(&password_file, line.as_bytes(), scratch.account())
        .map_err(ThrowawayError::io("write the password for initdb"))?;
    let program = binaries.program("initdb");
    let mut command = Command::new(&program);
    command
        .args([
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
            // This decides how passwords are stored; pg_hba.conf is replaced afterwards.
            "--auth=scram-sha-256",
        ])
        .arg(format!("--username={SUPERUSER}"))
        .arg("--pwfile")
        .arg(&password_file)
        .arg("--pgdata")
        .arg(scratch.path().join("data"));
    prepare_environment(&mut command, scratch.path());
    let output = run_as(&mut command, scratch.account())
        .stdin(Stdio::null())
        .output()
        .map_err(ThrowawayError::io(format!("run {}", program.display())))?;
    fs::remove_file(&password_file)
        .map_err(ThrowawayError::io("remove the password for initdb"))?;
    if !output.status.success() {
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        return Err(ThrowawayError::Initdb {
            status: output.status,
            output: String::from_utf8_lossy(&said).trim_end().to_owned(),
        });
    }
    Ok(())
}

pub(crate) fn random_password() -> Result<String, ThrowawayError> {
    let mut bytes = [0; 12];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(ThrowawayError::io("read /dev/urandom"))?;
    let mut password = String::new();
    for byte in bytes {
        let _ = write!(password, "{byte:02x}");
    }
    Ok(password)
}
