//! A headless Chromium, driven by the DevTools protocol over a pipe:
//! <https://chromedevtools.github.io/devtools-protocol/>. Messages are JSON that ends with a NUL
//! byte.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use walrelay_throwaway::{ChildGuard, Scratch};

use crate::rig::PATIENCE;

/// The same names as in scripts/bootstrap.sh.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Chromium reads calls from descriptor 3 and writes responses to 4.
const PIPES: &str = "exec 3<&0 4>&1 </dev/null >&2; exec \"$@\"";

/// A page in a browser of its own. Dropping it kills the browser.
pub(super) struct Browser {
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    calls: u64,
    /// Errors and warnings in the console, exceptions, and breaches of the Content-Security-Policy.
    complaints: Vec<String>,
    _child: ChildGuard,
    _profile: Scratch,
}

impl Browser {
    /// Starts Chromium with an empty page.
    pub(super) fn start(log: &Path) -> Self {
        let profile = Scratch::new("walrelay-chromium-", None).expect("a directory");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", PIPES, "walrelay-chromium"]);
        command.arg(program()).args([
            "--headless",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
        ]);
        if is_root() {
            // Chromium has no sandbox for root. The page is our own.
            command.arg("--no-sandbox");
        }
        command
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            // Its temporary files are removed with the profile.
            .env("TMPDIR", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log).expect("a log file"));
        let mut child = ChildGuard::spawn(&mut command).expect("a shell");
        let to = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, from) = channel();
        thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            to,
            from,
            session: None,
            calls: 0,
            complaints: Vec::new(),
            _child: child,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let id = &target["targetId"];
        let attach = json!({"targetId": id, "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        // Keys go to the page with the focus, which no page has without a window.
        let focus = json!({"enabled": true});
        browser.call("Emulation.setFocusEmulationEnabled", &focus);
        browser
    }

    /// Runs a script in each page that is opened from now on, before the page's own.
    pub(super) fn run_first(&mut self, script: &str) {
        let call = json!({"source": script});
        self.call("Page.addScriptToEvaluateOnNewDocument", &call);
    }

    /// Sends this token with each request.
    pub(super) fn authorize(&mut self, token: &str) {
        let headers = json!({"headers": {"Authorization": format!("Bearer {token}")}});
        self.call("Network.enable", &json!({}));
        self.call("Network.setExtraHTTPHeaders", &headers);
    }

    pub(super) fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", &json!({"url": url}));
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
    }

    /// Value of an expression in the page; a promise is awaited.
    #[track_caller]
    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        let call = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &call);
        let failed = answer.get("exceptionDetails");
        assert!(failed.is_none(), "{expression:.200}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Visible text of an element.
    #[track_caller]
    pub(super) fn text(&mut self, selector: &str) -> String {
        let expression = format!("document.querySelector({selector:?})?.innerText ?? ''");
        let text = self.evaluate(&expression);
        text.as_str().expect("a text").to_owned()
    }

    /// Waits until the text of an element is as wanted; returns how long that took.
    #[track_caller]
    pub(super) fn wait_text(&mut self, selector: &str, wanted: impl Fn(&str) -> bool) -> Duration {
        let start = Instant::now();
        loop {
            let text = self.text(selector);
            if wanted(&text) {
                return start.elapsed();
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{selector} reads {text:?} after {PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sets the preferred theme and the width of the window in pixels.
    pub(super) fn look(&mut self, theme: &str, width: u32) {
        let theme = json!({"name": "prefers-color-scheme", "value": theme});
        let still = json!({"name": "prefers-reduced-motion", "value": "reduce"});
        let media = json!({"features": [theme, still]});
        self.call("Emulation.setEmulatedMedia", &media);
        let window =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &window);
        // Wait for two frames: sizes are observed in the first, and drawn in the second.
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))",
        );
    }

    /// Saves a picture of the whole page as PNG.
    pub(super) fn picture(&mut self, path: &Path) {
        let metrics = self.call("Page.getLayoutMetrics", &json!({}));
        let size = &metrics["cssContentSize"];
        let clip =
            json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let call = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let answer = self.call("Page.captureScreenshot", &call);
        let data = answer["data"].as_str().expect("a picture");
        fs::write(path, STANDARD.decode(data).expect("base64")).expect("written");
    }

    /// Presses and releases a key with this `KeyboardEvent.key`; `text` is what it types.
    pub(super) fn press(&mut self, key: &str, text: &str) {
        let code = if key == "Tab" { 9 } else { 13 };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code,
            });
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// Complaints in the console since the last call.
    pub(super) fn complaints(&mut self) -> Vec<String> {
        // A response arrives after all earlier events.
        self.evaluate("null");
        std::mem::take(&mut self.complaints)
    }

    #[track_caller]
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("Chromium reads");
        loop {
            let received = self.from.recv_timeout(PATIENCE);
            let mut message = received.unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.calls {
                let error = message.get("error");
                assert!(error.is_none(), "{method}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        let is_complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                matches!(
                    parameters["type"].as_str(),
                    Some("error" | "warning" | "assert")
                )
            }
            // Warnings of this kind are advice, for example about the test's own reads of the
            // plots.
            Some("Log.entryAdded") => parameters["entry"]["level"] == "error",
            _ => false,
        };
        if is_complaint {
            self.complaints.push(parameters.to_string());
        }
    }
}

/// Whether this process runs as root.
fn is_root() -> bool {
    walrelay_throwaway::Account::unprivileged().is_some()
}

/// The program that `WALRELAY_TEST_CHROMIUM` names, else the first of [`NAMES`] in `PATH`.
fn program() -> std::path::PathBuf {
    if let Some(named) = env::var_os("WALRELAY_TEST_CHROMIUM") {
        return named.into();
    }
    let path = env::var_os("PATH").expect("PATH");
    let mut found = NAMES
        .iter()
        .flat_map(|name| env::split_paths(&path).map(move |directory| directory.join(name)));
    found.find(|file| file.is_file()).unwrap_or_else(|| {
        panic!(
            "the test of the status page needs Chromium: run scripts/bootstrap.sh test (make test \
             does), or name one in WALRELAY_TEST_CHROMIUM"
        )
    })
}
