//! A RabbitMQ server with its own epmd, as ordinary child processes.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::{
    Account, ChildGuard, Pauses, Port, ServerProcess, ThrowawayError,
    account::{is_executable, run_as},
    binaries::cache_dir,
};

/// Erlang starts slowly on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(240);
const MAPPER_LIMIT: Duration = Duration::from_secs(30);
/// The line of the log after which the server takes connections.
const STARTED: &str = "Server startup complete";

/// The programs of a RabbitMQ server, and of the Erlang that runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RabbitMqBinaries {
    /// The directory of `rabbitmq-server`.
    server: PathBuf,
    /// The directory of `erl` and `epmd`.
    erlang: PathBuf,
    version: String,
}

impl RabbitMqBinaries {
    /// Finds the server that `scripts/fetch-rabbitmq.sh` has unpacked in [`cache_dir`], else the one
    /// of an installed package of Debian.
    ///
    /// # Errors
    /// [`ThrowawayError::NoRabbitMq`] says what to install.
    pub fn find() -> Result<Self, ThrowawayError> {
        let cached = cache_dir().join("rabbitmq");
        let fetched = cached.join(".complete").is_file();
        let found = fetched.then(|| Self::below(&cached)).flatten();
        found
            .or_else(Self::installed)
            .ok_or_else(|| ThrowawayError::NoRabbitMq {
                looked: vec![cached, "/usr/lib/rabbitmq".into()],
            })
    }

    /// Returns the server of an installed package of Debian.
    pub fn installed() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    /// Returns the server below this directory, which has the layout of Debian's packages.
    fn below(root: &Path) -> Option<Self> {
        let erlang = root.join("usr/lib/erlang/bin");
        let programs = ["erl", "epmd"].map(|program| erlang.join(program));
        let entries = fs::read_dir(root.join("usr/lib/rabbitmq/lib")).ok()?;
        let mut servers = entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix("rabbitmq_server-")?.to_owned();
            let server = entry.path().join("sbin");
            is_executable(&server.join("rabbitmq-server")).then_some((version, server))
        });
        let (version, server) = servers.next()?;
        programs
            .iter()
            .all(|program| is_executable(program))
            .then_some(Self {
                server,
                erlang,
                version,
            })
    }

    /// Returns the version of the server, such as `3.10.8`.
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// Options of a [`RabbitMqServer`]. By default it has the user `guest` with the password `guest`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RabbitMqOptions<'a> {
    /// More lines of `rabbitmq.conf`. `{dir}` stands for the server's directory.
    pub settings: &'a str,
    /// The plugins.
    pub plugins: &'a [&'a str],
    /// Names and contents of files in the server's directory.
    pub files: &'a [(&'a str, &'a str)],
}

/// A RabbitMQ server, which ends with its owner. It listens on 127.0.0.1 only.
#[derive(Debug)]
pub struct RabbitMqServer {
    /// The port mapper of Erlang, which would outlive the server otherwise.
    _mapper: ChildGuard,
    process: ServerProcess,
    binaries: RabbitMqBinaries,
    port: Port,
    distribution: Port,
    mapper: Port,
}

impl RabbitMqServer {
    /// Starts a server without data, and waits until it takes connections.
    ///
    /// # Errors
    /// A file cannot be written, a program cannot be run, or the server did not start, with the end
    /// of its log. Nothing is left behind.
    pub fn start(
        binaries: &RabbitMqBinaries,
        options: RabbitMqOptions<'_>,
    ) -> Result<Self, ThrowawayError> {
        let process = ServerProcess::new("walrelay-rabbitmq-", Account::unprivileged())?;
        let free = || Port::free().map_err(ThrowawayError::io("find a free port"));
        let (port, distribution, mapper) = (free()?, free()?, free()?);
        let dir = process.dir();
        let more = options
            .settings
            .replace("{dir}", &dir.display().to_string());
        let settings = format!(
            "listeners.tcp.default = 127.0.0.1:{port}\nlog.console = true\nlog.file = false\n\
             disk_free_limit.absolute = 50MB\nvm_memory_high_watermark.absolute = 512MB\n{more}"
        );
        let plugins = format!("[{}].\n", options.plugins.join(","));
        let own = [
            ("rabbitmq.conf", settings.as_str()),
            ("enabled_plugins", &plugins),
        ];
        for (name, text) in own.iter().chain(options.files) {
            fs::write(dir.join(name), text).map_err(ThrowawayError::io(format!("write {name}")))?;
        }
        let mut command = Command::new(binaries.erlang.join("epmd"));
        command
            .env("ERL_EPMD_PORT", mapper.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        run_as(&mut command, process.account());
        let guard = ChildGuard::spawn(&mut command).map_err(ThrowawayError::io("run epmd"))?;
        let server = Self {
            _mapper: guard,
            process,
            binaries: binaries.clone(),
            port,
            distribution,
            mapper,
        };
        server.await_mapper()?;
        server.start_again()?;
        Ok(server)
    }

    fn await_mapper(&self) -> Result<(), ThrowawayError> {
        let mut pauses = Pauses::new();
        loop {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, self.mapper.number())) {
                Ok(_) => return Ok(()),
                Err(error) if pauses.waited() >= MAPPER_LIMIT => {
                    return Err(ThrowawayError::io("connect to epmd")(error));
                }
                Err(_) => pauses.pause(),
            }
        }
    }

    /// Starts the server again with the same ports and data, and waits until it takes connections.
    ///
    /// # Errors
    /// As for [`start`](Self::start), and [`ThrowawayError::Running`].
    pub fn start_again(&self) -> Result<(), ThrowawayError> {
        let mut command = self.command("rabbitmq-server");
        let log = self.process.log_path();
        let before = fs::metadata(&log).map_or(0, |log| log.len());
        self.process.start(&mut command, START_LIMIT, || {
            text_from(&log, before).is_ok_and(|text| text.contains(STARTED))
        })
    }

    /// Returns the process of the server, with its directory and its log.
    pub fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// Returns the port of AMQP.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the name of the Erlang node.
    pub fn node(&self) -> String {
        format!("t{}@localhost", self.port)
    }

    /// Returns a command that runs a program of RabbitMQ, such as `rabbitmqctl`, for this server.
    pub fn command(&self, program: &str) -> Command {
        let dir = self.process.dir();
        let path = std::env::var("PATH").unwrap_or_default();
        let erlang = self.binaries.erlang.display();
        let mut command = Command::new(self.binaries.server.join(program));
        run_as(&mut command, self.process.account())
            .env("PATH", format!("{erlang}:{path}"))
            .env("HOME", dir)
            .env("RABBITMQ_NODENAME", self.node())
            .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", dir.join("logs"))
            .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", dir.join("none"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
            // The script then becomes the server, so that signals reach it.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_PID_FILE", dir.join("pid"))
            .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("ERL_EPMD_PORT", self.mapper.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-noinput +S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
            )
            .current_dir(dir)
            .stdin(Stdio::null());
        command
    }
}

/// Returns the text of a file from this byte on.
fn text_from(file: &Path, start: u64) -> io::Result<String> {
    let mut file = fs::File::open(file)?;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_in_the_layout_of_debians_packages() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(RabbitMqBinaries::below(dir.path()), None);
        let server = dir
            .path()
            .join("usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin");
        let erlang = dir.path().join("usr/lib/erlang/bin");
        for (parent, program) in [
            (&server, "rabbitmq-server"),
            (&erlang, "erl"),
            (&erlang, "epmd"),
        ] {
            fs::create_dir_all(parent).unwrap();
            assert_eq!(RabbitMqBinaries::below(dir.path()), None, "{program}");
            std::os::unix::fs::symlink("/bin/sh", parent.join(program)).unwrap();
        }
        let found = RabbitMqBinaries::below(dir.path()).unwrap();
        assert_eq!(found.version(), "3.10.8");
        assert_eq!((found.server, found.erlang), (server, erlang));
    }
}
