//! Lanes, arguments, and evidence of failures.

use std::any::Any;
use std::collections::VecDeque;
use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{lock, seed, servers};
use walrelay_throwaway::Postgres;

use crate::context::Context;
use crate::destination::{self, Kind};
use crate::outcome::Outcome;
use crate::report;
use crate::table::{ALL, SCENARIOS, SUBSET, Scenario};

/// Result of a scenario on one version.
pub(crate) struct Done {
    pub(crate) scenario: &'static Scenario,
    pub(crate) major: u32,
    /// The outcome, or the message of the panic.
    pub(crate) outcome: Result<Outcome, String>,
    took: Duration,
}

impl Done {
    pub(crate) fn is_clean(&self) -> bool {
        self.outcome.as_ref().is_ok_and(Outcome::is_clean)
    }
}

/// Options of the run, from environment and arguments.
struct Asked {
    all: bool,
    sink: Kind,
    seed: u64,
    only: Vec<String>,
    majors: Vec<u32>,
    /// The scenarios of the subset run on one of the versions each.
    in_turn: bool,
    lanes: usize,
    list: bool,
}

impl Asked {
    fn read() -> Self {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let list = |name: &str| -> Vec<String> {
            let value = variable(name).unwrap_or_default();
            let items = value.split(',').map(str::trim);
            let items = items.filter(|item| !item.is_empty());
            items.map(str::to_owned).collect()
        };
        let number = |name: &str, text: &str| -> u64 {
            let number = text.parse();
            number.unwrap_or_else(|_| panic!("{name}: {text:?} is no number"))
        };
        let all = variable("FAULTS_ALL").is_some_and(|value| value != "0");
        let seed = match variable("FAULTS_SEED") {
            Some(text) => number("FAULTS_SEED", &text),
            None => seed(),
        };
        let mut majors: Vec<u32> = list("FAULTS_POSTGRES")
            .iter()
            .map(|text| number("FAULTS_POSTGRES", text) as u32)
            .collect();
        let only = list("FAULTS_ONLY");
        let in_turn = !all && only.is_empty() && majors.is_empty();
        let sink = Kind::named(variable("FAULTS_SINK").as_deref().unwrap_or("kafka"));
        // Postgres is the same for every sink.
        let all_majors = all && sink == Kind::Kafka;
        let in_turn = in_turn || (sink != Kind::Kafka && only.is_empty() && majors.is_empty());
        if majors.is_empty() {
            majors = if all_majors { ALL } else { SUBSET }.to_vec();
        }
        let lanes = variable("FAULTS_LANES").map_or(2, |text| number("FAULTS_LANES", &text));
        let mut asked = Self {
            all,
            sink,
            seed,
            only,
            majors,
            in_turn,
            lanes: lanes.max(1) as usize,
            list: false,
        };
        asked.read_arguments();
        for name in &asked.only {
            let known = SCENARIOS.iter().any(|scenario| scenario.name == name);
            assert!(known, "FAULTS_ONLY: there is no scenario {name:?}");
        }
        asked
    }

    /// Reads the arguments of `cargo test`: a filter selects among the scenarios that would run;
    /// other options are ignored.
    fn read_arguments(&mut self) {
        let mut arguments = env::args().skip(1);
        let mut filters = Vec::new();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => self.list = true,
                "--test-threads" | "--skip" | "--format" | "--color" | "--logfile"
                | "--report-time" | "--shuffle-seed" | "-Z" => drop(arguments.next()),
                option if option.starts_with('-') => {}
                filter => filters.push(filter.to_owned()),
            }
        }
        if !filters.is_empty() {
            let matching = |scenario: &&Scenario| {
                let mut filters = filters.iter();
                filters.any(|filter| scenario.name.contains(filter.as_str()))
            };
            let (all, sink, only) = (self.all, self.sink, self.only.clone());
            self.only = SCENARIOS
                .iter()
                .filter(|scenario| wanted(scenario, sink, all, &only))
                .filter(matching)
                .map(|scenario| scenario.name.to_owned())
                .collect();
            if self.only.is_empty() {
                self.majors.clear();
            }
        }
    }
}

fn wanted(scenario: &Scenario, sink: Kind, all: bool, only: &[String]) -> bool {
    if !scenario.sinks.include(sink) {
        false
    } else if only.is_empty() {
        all || scenario.subset
    } else {
        only.iter().any(|name| name == scenario.name)
    }
}

/// A scenario on one version.
type Job = (u32, &'static Scenario);

/// The jobs by version, so that a lane seldom starts another Postgres.
fn jobs(asked: &Asked) -> VecDeque<Job> {
    let in_turn = SCENARIOS
        .iter()
        .filter(|scenario| wanted(scenario, asked.sink, asked.all, &[]));
    let in_turn: Vec<(&str, u32)> = in_turn
        .map(|scenario| scenario.name)
        .zip(
            SUBSET
                .iter()
                .copied()
                .cycle()
                .skip(asked.seed as usize % SUBSET.len()),
        )
        .collect();
    // The seed decides which version begins. The version whose turn it is, unless the scenario does not run there.
    let is_turn = |(major, scenario): &Job| {
        let turn = in_turn.iter().find(|(name, _)| *name == scenario.name);
        turn.is_none_or(|(_, turn)| turn == major || !scenario.versions.contains(turn))
    };
    asked
        .majors
        .iter()
        .flat_map(|&major| SCENARIOS.iter().map(move |scenario| (major, scenario)))
        .filter(|(major, scenario)| {
            wanted(scenario, asked.sink, asked.all, &asked.only)
                && scenario.versions.contains(major)
        })
        .filter(|job| !asked.in_turn || is_turn(job))
        .collect()
}

/// Takes the next job of a lane: one of the version that it has, if there is any. Every second lane
/// begins with the last version.
fn take(jobs: &mut VecDeque<Job>, has: Option<u32>, lane: usize) -> Option<Job> {
    let same = jobs.iter().position(|(major, _)| Some(*major) == has);
    let last = jobs.back().map(|(major, _)| *major);
    let other = if lane.is_multiple_of(2) {
        0
    } else {
        jobs.iter().position(|(major, _)| Some(*major) == last)?
    };
    jobs.remove(same.unwrap_or(other))
}

pub(crate) fn main() -> ExitCode {
    let asked = Asked::read();
    let jobs = jobs(&asked);
    if asked.list {
        for (major, scenario) in &jobs {
            println!("{} on Postgres {major}: test", scenario.name);
        }
        return ExitCode::SUCCESS;
    }
    if jobs.is_empty() {
        println!("faults: no scenario was asked for");
        return ExitCode::SUCCESS;
    }
    let begun = Instant::now();
    println!(
        "faults: sink {}, seed {}, {} scenarios on Postgres {:?}",
        asked.sink,
        asked.seed,
        jobs.len(),
        asked.majors
    );
    let all = asked.in_turn || asked.majors == ALL;
    let whole = asked.all && asked.only.is_empty() && all;
    let root = env::temp_dir().join(format!("walrelay-faults-{}", std::process::id()));
    let jobs = Mutex::new(jobs);
    let done = Mutex::new(Vec::new());
    let turns = RwLock::new(());
    thread::scope(|scope| {
        for number in 0..asked.lanes {
            let (jobs, done, turns, root) = (&jobs, &done, &turns, &root);
            let lane = move || lane(number, jobs, done, turns, (asked.sink, asked.seed), root);
            thread::Builder::new()
                .name(format!("lane-{number}"))
                .spawn_scoped(scope, lane)
                .expect("a thread can be started");
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Fails unless the directory is empty, which is what is intended.
    let _ = fs::remove_dir(&root);
    if whole {
        report::write(&done, asked.sink, asked.seed);
    } else if asked.all && (asked.majors == ALL || asked.sink != Kind::Kafka) {
        report::update(&done, asked.sink, asked.seed);
    }
    let failed: Vec<&Done> = done.iter().filter(|done| !done.is_clean()).collect();
    println!(
        "faults: {} passed, {} failed, in {} s, seed {}",
        done.len() - failed.len(),
        failed.len(),
        begun.elapsed().as_secs(),
        asked.seed
    );
    for done in &failed {
        let (name, major) = (done.scenario.name, done.major);
        println!(
            "  {name} on Postgres {major}: {}\n    again with: {}",
            evidence(&root, done.scenario, major).display(),
            again((asked.sink, asked.seed), done.scenario, major)
        );
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn again((sink, seed): (Kind, u64), scenario: &Scenario, major: u32) -> String {
    format!(
        "FAULTS_SINK={sink} FAULTS_SEED={seed} FAULTS_ONLY={} FAULTS_POSTGRES={major} make test-faults",
        scenario.name
    )
}

fn evidence(root: &Path, scenario: &Scenario, major: u32) -> PathBuf {
    root.join(format!("{}-{major}", scenario.name))
}

/// Servers that scenarios share, one after another.
#[derive(Default)]
struct Servers {
    postgres: Option<(u32, Arc<Postgres>)>,
    of_sink: Option<destination::Servers>,
}

impl Servers {
    fn start(&mut self, major: u32, sink: Kind) -> (Arc<Postgres>, destination::Servers) {
        let of_sink = self.of_sink.get_or_insert_with(|| sink.start());
        if self.postgres.as_ref().is_none_or(|(has, _)| *has != major) {
            self.postgres = None;
        }
        let (_, postgres) = self
            .postgres
            .get_or_insert_with(|| (major, Arc::new(postgres(major))));
        (Arc::clone(postgres), of_sink.clone())
    }
}

/// Starts a Postgres that allows prepared transactions, which are off by default.
fn postgres(major: u32) -> Postgres {
    let settings = [
        ("max_prepared_transactions", "10"),
        ("log_replication_commands", "on"),
    ];
    servers::postgres_with(major, &settings)
}

fn lane(
    number: usize,
    jobs: &Mutex<VecDeque<Job>>,
    done: &Mutex<Vec<Done>>,
    turns: &RwLock<()>,
    run: (Kind, u64),
    root: &Path,
) {
    let mut servers = Servers::default();
    loop {
        let has = servers.postgres.as_ref().map(|(major, _)| *major);
        let job = take(&mut lock(jobs), has, number);
        let Some((major, scenario)) = job else {
            return;
        };
        // A scenario that runs alone waits for those of the other lanes, and holds them up.
        let _alone = scenario.alone.then(|| turns.write());
        let _beside = (!scenario.alone).then(|| turns.read());
        let begun = Instant::now();
        let outcome = attempt(&mut servers, scenario, major, run, root);
        let one = Done {
            scenario,
            major,
            outcome,
            took: begun.elapsed(),
        };
        say(&one, run, root);
        if !one.is_clean() {
            // The servers may be in any state, so start new ones for the next scenario.
            servers = Servers::default();
        }
        lock(done).push(one);
    }
}

fn attempt(
    servers: &mut Servers,
    scenario: &'static Scenario,
    major: u32,
    (sink, seed): (Kind, u64),
    root: &Path,
) -> Result<Outcome, String> {
    let dir = evidence(root, scenario, major);
    catch_unwind(AssertUnwindSafe(|| {
        let (postgres, of_sink) = servers.start(major, sink);
        let mut ctx = Context::new(major, seed, scenario.name, dir, postgres, of_sink);
        let outcome = catch_unwind(AssertUnwindSafe(|| (scenario.run)(&mut ctx)));
        let clean = outcome.as_ref().is_ok_and(Outcome::is_clean);
        if clean {
            ctx.clean_up();
        } else if catch_unwind(AssertUnwindSafe(|| ctx.leave_evidence())).is_err() {
            eprintln!("{}: not all of the history could be left", scenario.name);
        }
        outcome.map_err(|panic| words(&*panic))
    }))
    .unwrap_or_else(|panic| Err(words(&*panic)))
}

pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

fn say(done: &Done, run: (Kind, u64), root: &Path) {
    let (_, seed) = run;
    let (name, major) = (done.scenario.name, done.major);
    let took = done.took.as_secs_f64();
    match &done.outcome {
        Ok(outcome) if outcome.is_clean() => {
            println!("ok      {name} on Postgres {major}, {took:.1} s: {outcome}");
        }
        failed => {
            let why = match failed {
                Ok(outcome) => format!("{outcome}\n{}", outcome.wrong.join("\n")),
                Err(panic) => panic.clone(),
            };
            let verdict = evidence(root, done.scenario, major).join("verdict.txt");
            let _ = fs::write(verdict, format!("seed {seed}\n{why}\n"));
            println!(
                "FAILED  {name} on Postgres {major}, {took:.1} s: {why}\n  seed {seed}; again with: \
                 {}\n  history, logs and configuration: {}",
                again(run, done.scenario, major),
                evidence(root, done.scenario, major).display()
            );
        }
    }
}
