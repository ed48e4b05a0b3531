//! The status page in a real browser: it loads, its plots move under load, it shows that a broker
//! has stopped or is back with the first event of the relay that says so, the console stays silent,
//! and axe-core finds no barrier.
//!
//! The pictures are left in `target/page` for people to look at.

mod browser;

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use browser::Browser;
use serde_json::Value;
use walrelay_testkit::{ChaosProxy, Cut, ReservedAddress, eventually_some, lock};
use walrelay_throwaway::cache_dir;

use crate::endpoint::{LISTEN, address};
use crate::rig::{PATIENCE, Rig, assert_has, kafka_in_turn, unique};

/// Names a folder for pictures of the faults that tests inject.
const PICTURES: &str = "WALRELAY_TEST_PICTURES";
const DESKTOP: u32 = 1280;
const PHONE: u32 = 390;
/// Notes for each event of the relay, once the page has handled it, whether it says that no broker
/// answers, and the first line of the page.
const NOTE_EVENTS: &str = "
    window.noted = [];
    window.EventSource = class extends EventSource {
        addEventListener(kind, listener) {
            super.addEventListener(kind, (event) => {
                listener(event);
                if (kind !== 'status') return;
                const { kafka } = JSON.parse(event.data);
                if (!kafka) return;
                const isDown = kafka.all_down;
                window.noted.push([isDown, document.querySelector('h1').textContent]);
            });
        }
    };
";

/// Opens the page of the relay at this address, in a browser that tests share. Returns what it says
/// first: headline, reason, remedy and alert, and the further problems with theirs.
#[track_caller]
pub(crate) fn first_glance(at: SocketAddr) -> String {
    static SHARED: Mutex<Option<Browser>> = Mutex::new(None);
    let mut shared = lock(&SHARED);
    // A browser that fails a test is dropped, and the next test starts another one.
    let mut browser = shared.take().unwrap_or_else(|| {
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chromium.log");
        Browser::start(&log)
    });
    browser.open(&format!("http://{at}/"));
    browser.wait_text("h1", |title| {
        !title.is_empty() && title != "Connecting to walrelay"
    });
    let text = browser.text("#verdict-box");
    if let Some(pictures) = env::var_os(PICTURES) {
        let title: String = browser.text("h1").replace([' ', '/', ':'], "-");
        browser.look("light", DESKTOP);
        browser.picture(&Path::new(&pictures).join(format!("{title}-{}.png", unique())));
    }
    // Its stream of events ends with the page.
    browser.open("about:blank");
    *shared = Some(browser);
    text
}

/// Opens the page of the relay at this address with a token, and waits until it has these words of dead letters.
#[track_caller]
pub(crate) fn dead_letters_say(at: SocketAddr, token: &str, words: &str) {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chromium-token.log");
    let mut browser = Browser::start(&log);
    browser.authorize(token);
    browser.open(&format!("http://{at}/"));
    browser.wait_text("#dead-summary", |text| text.contains(words));
}

/// The page, open in a browser.
struct Page {
    browser: Browser,
    pictures: PathBuf,
    axe: String,
}

impl Page {
    fn open(url: &str, log: &Path) -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
        let pictures = target.expect("target/tmp").join("page");
        fs::create_dir_all(&pictures).expect("a directory for pictures");
        let axe = cache_dir().join("axe-core/axe.min.js");
        let axe = fs::read_to_string(&axe).unwrap_or_else(|error| {
            panic!(
                "{}: {error}; run scripts/fetch-servers.sh (make test does)",
                axe.display()
            )
        });
        let mut browser = Browser::start(log);
        browser.look("light", DESKTOP);
        browser.run_first(NOTE_EVENTS);
        browser.open(url);
        Self {
            browser,
            pictures,
            axe,
        }
    }

    /// Waits until the first line of the page begins with `words`; returns how long that took.
    #[track_caller]
    fn says(&mut self, words: &str) -> Duration {
        let begins = |text: &str| text.starts_with(words);
        self.browser.wait_text("h1", begins)
    }

    /// Asserts that the page showed with each event whether a broker answers.
    #[track_caller]
    fn has_shown_each_event(&mut self) {
        let noted = self.browser.evaluate("window.noted");
        let noted = noted.as_array().expect("a list");
        let said = |event: &Value, down: bool| event[0] == down;
        assert!(noted.iter().any(|event| said(event, true)), "{noted:?}");
        for event in noted {
            let line = event[1].as_str().expect("a text");
            assert!(
                said(event, line.starts_with("Kafka is down")),
                "{event}: {noted:?}"
            );
        }
    }

    /// Takes pictures in both themes, and one of the page on a phone.
    fn pictures(&mut self, moment: &str) {
        for (name, theme, width) in [
            ("dark", "dark", DESKTOP),
            ("phone", "dark", PHONE),
            ("light", "light", DESKTOP),
        ] {
            self.browser.look(theme, width);
            let path = self.pictures.join(format!("{moment}-{name}.png"));
            self.browser.picture(&path);
        }
    }

    /// Asserts that axe-core finds no serious or critical violation, in either theme, with
    /// everything unfolded.
    #[track_caller]
    fn has_no_barrier(&mut self) {
        let loaded = self.browser.evaluate("typeof axe") != "undefined";
        if !loaded {
            let axe = format!("{}; null", self.axe);
            self.browser.evaluate(&axe);
        }
        self.unfold(true);
        for theme in ["dark", "light"] {
            self.browser.look(theme, DESKTOP);
            let found = self.browser.evaluate(
                "axe.run().then(({ violations, passes }) => ({ checked: passes.length, violations: violations
                    .filter(({ impact }) => ['serious', 'critical'].includes(impact))
                    .map(({ id, nodes }) => [id, ...nodes.map((node) => node.html + ' ' + node.failureSummary)]) }))",
            );
            assert_eq!(found["violations"], Value::Array(Vec::new()), "{theme}");
            let checked = found["checked"].as_u64();
            assert!(checked.is_some_and(|rules| rules > 20), "{found}");
        }
        self.unfold(false);
    }

    /// Opens or closes everything that can be unfolded.
    fn unfold(&mut self, open: bool) {
        self.browser.evaluate(&format!(
            "document.querySelectorAll('details').forEach((details) => {{ details.open = {open}; }})"
        ));
    }

    /// The number at the beginning of a text; `None` for `–`.
    fn number(&mut self, selector: &str) -> Option<f64> {
        let text = self.browser.text(selector);
        let number: String = text
            .chars()
            .filter(|c| *c != ',')
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        number.parse().ok()
    }

    /// Number of coloured pixels of a plot; axes and labels are grey.
    fn coloured(&mut self, plot: &str) -> u64 {
        let pixels = self.browser.evaluate(&format!(
            "(() => {{
                const canvas = document.querySelector('{plot} canvas');
                const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
                let coloured = 0;
                for (let i = 0; i < data.length; i += 4) {{
                    const rgb = data.slice(i, i + 3);
                    if (data[i + 3] > 100 && Math.max(...rgb) - Math.min(...rgb) > 90) coloured += 1;
                }}
                return coloured;
            }})()"
        ));
        pixels.as_u64().expect("a number")
    }

    /// Asserts that the table below the plots can be reached and unfolded by keys alone.
    #[track_caller]
    fn obeys_keys(&mut self) {
        let is_open = "document.querySelector('#minutes').open";
        let reached = "document.activeElement === document.querySelector('#minutes summary')";
        assert_eq!(self.browser.evaluate(is_open), false);
        for _ in 0..20 {
            if self.browser.evaluate(reached) == true {
                self.browser.press("Enter", "\r");
                assert_eq!(self.browser.evaluate(is_open), true);
                // The page fills the table once it is open.
                let filled = |rows: &str| rows.contains(':');
                self.browser.wait_text("#minute-rows", filled);
                return;
            }
            self.browser.press("Tab", "");
        }
        panic!("no key leads to the table");
    }

    /// Asserts that the console is empty.
    #[track_caller]
    fn is_silent(&mut self) {
        let complaints = self.browser.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

#[test]
fn the_page_shows_load_and_a_broker_that_stops() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    // Rows that are old enough to be pruned at once.
    rig.db()
        .batch("ALTER TABLE outbox ADD created_at timestamptz DEFAULT now() - interval '2 hours'");
    let config = rig.config_and(&format!(
        "\n[retention]\nkeep = \"1h\"\nmax_wal = \"1GiB\"\n\n\
         [prune]\nkeep = \"1s\"\nbefore_slot = true\n{LISTEN}"
    ));
    let relay = rig.streaming(&config);
    // The relay comes back at another port, the page stays at this one.
    let proxy = ChaosProxy::start(address(&relay));
    let url = format!("http://{}/", proxy.address());
    let mut page = Page::open(&url, &rig.path("chromium.log"));

    page.says("All is well");
    page.browser.wait_text("#source-facts", |facts| {
        facts.contains("back of 60 min, for ") && facts.contains("0 rows since the start")
    });
    page.pictures("idle");
    page.obeys_keys();

    // Rows of ten minutes in which no row is being added stay for no other row.
    rig.db().batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) SELECT gen_random_uuid(), \
         'order', 'old', 'T', '1', now() - interval '5 hours' FROM generate_series(1, 10)",
    );
    let load = rig.workload().writers(2).rate(400.0).start();
    let rate = "#values-rate b";
    let grows = Instant::now();
    let first = eventually_some(PATIENCE, || page.number(rate).filter(|rate| *rate > 0.0));
    let drawn = page.coloured("#plot-rate");
    let latency = "#values-latency b:last-of-type";
    page.browser.wait_text(latency, |text| text.ends_with('s'));
    eventually_some(PATIENCE, || {
        page.number(rate)
            .filter(|rate| *rate > 0.0 && (*rate - first).abs() > 0.5)
    });
    eventually_some(PATIENCE, || {
        Some(()).filter(|()| page.coloured("#plot-rate") > drawn)
    });
    for plot in ["#plot-latency", "#plot-lag"] {
        assert!(page.coloured(plot) > 0, "{plot} is empty");
    }
    eprintln!("plots moved within {:?}", grows.elapsed());
    page.browser.wait_text("#source-facts", |facts| {
        facts.contains(" rows since the start") && !facts.contains("\n0 rows")
    });
    // Event and age of the topic's last record: `0/1A2B3C8 0, 0 s ago`.
    let has_last = |rows: &str| rows.contains(", 0 s ago") || rows.contains(", 1 s ago");
    page.browser.wait_text("#topic-rows", has_last);
    page.pictures("load");
    for (range, title) in [(1, "Last 6 hours"), (0, "Last 15 minutes")] {
        let click = format!("document.querySelectorAll('#ranges button')[{range}].click()");
        page.browser.evaluate(&click);
        page.browser.wait_text("#plots-title", |text| text == title);
    }
    page.has_no_barrier();
    page.says("All is well");

    let stopped = Instant::now();
    kafka.kill();
    page.says("Kafka is down");
    eprintln!("a killed broker shows after {:?}", stopped.elapsed());
    let words = page.browser.text("#node-sink .badge");
    assert_has(&words, &["down"]);
    page.browser
        .wait_text("#verdict-facts", |facts| !facts.starts_with("0 records"));
    // A warning that is repeated keeps its beginning.
    let repeated = |errors: &str| errors.contains(" times since ");
    page.browser.wait_text("#errors", repeated);
    page.pictures("stopped");
    page.has_no_barrier();

    let delivered = thread::scope(|scope| {
        scope.spawn(|| kafka.start_again());
        relay.says("Kafka accepts records again");
        Instant::now()
    });
    page.browser
        .wait_text("h1", |words| !words.starts_with("Kafka is down"));
    eprintln!("delivery shows after {:?}", delivered.elapsed());
    load.stop();
    page.says("All is well");
    page.has_shown_each_event();
    page.is_silent();

    // The relay stops, and comes back. Another process may have its port meanwhile.
    relay.ends_well();
    let nothing = ReservedAddress::bind();
    proxy.lead_to(nothing.address());
    proxy.cut(Cut::Reset);
    page.says("Connection to walrelay lost");
    page.pictures("lost");
    let relay = rig.streaming(&config);
    proxy.lead_to(address(&relay));
    page.says("All is well");
    relay.ends_well();
}
