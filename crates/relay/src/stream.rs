//! The loop of one connection: walk what was read, collect acknowledgements, send feedback, wait.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, error, info, warn};
use walrelay_lsn::CommitEnd;
use walrelay_sink::{BatchingMode, Disposition, Obstacle, Sink};
use walrelay_walsender::StatusUpdate;

use crate::error::Chain;
use crate::lease::Lease;
use crate::log_throttle::LogThrottle;
use crate::looks::Looks;
use crate::pace::Pace;
use crate::schemas::{FetchOutcome, SchemaFetcher};
use crate::shutdown::Shutdown;
use crate::silence::Silence;
use crate::sink_session::{BatchResult, SinkSession};
use crate::{
    Backoff, Class, CoreError, Diverted, Environment, Failpoint, Looked, OnUpdate, Outcome,
    PipelineError, PoisonAction, SchemaFailure, Settings, SlotOwner, Source, SourceError, State,
    WalStream,
};

/// Least time between two status updates: progress is reported at once, but a server that decodes
/// for us is not woken for every transaction.
const STATUS_GAP: Duration = Duration::from_millis(50);
/// A sink that takes nothing for so long is worth a word to people.
const BLOCKED_NOTICE: Duration = Duration::from_secs(1);
/// How long the oldest record is in flight before the sink is asked what it waits for.
const ASK_SINK: Duration = Duration::from_secs(1);
/// The same for one that has room, acknowledges nothing of what it has, and does not know why.
const UNANSWERED_NOTICE: Duration = Duration::from_secs(5);
/// How many diverted events are named singly in a log, per [`NAMED_INTERVAL`].
const NAMED: u64 = 20;
/// How often ignored updates are summed up in a log, too.
const NAMED_INTERVAL: Duration = Duration::from_secs(10);
/// How long what was acknowledged beside a failure may still be collected and confirmed.
const SETTLE: Duration = Duration::from_secs(5);
/// How long the orderly end of a connection may take, after what is in flight was awaited.
const WIND_UP: Duration = Duration::from_secs(10);
/// How often the control connection is asked whether the slot has taken the last status.
const VERIFY_INTERVAL: Duration = Duration::from_millis(20);

const DRAIN_TIMEOUT: &str = "not acknowledged within delivery.drain_timeout";

/// One connection and all that it works with.
pub(crate) struct Streaming<'a, T, K, W> {
    pub(crate) stream: T,
    /// The server's `wal_sender_timeout` for this connection.
    pub(crate) server_timeout: Option<Duration>,
    pub(crate) lease: &'a mut Lease,
    /// The server's; a standby may be promoted under the stream.
    pub(crate) timeline: &'a mut u32,
    pub(crate) running: &'a mut SinkSession<K>,
    pub(crate) settings: &'a Settings,
    pub(crate) environment: &'a mut W,
    pub(crate) backoff: &'a mut Backoff,
    /// About the failures of connections: over when something moves.
    pub(crate) throttle: &'a mut LogThrottle,
    pub(crate) silence: &'a mut Silence,
    /// Of schemas; an answer that is under way outlives the connection.
    pub(crate) schema_fetcher: &'a mut SchemaFetcher,
}

/// What was reported to the server, and when.
struct Feedback {
    sent_at: Instant,
    confirmed: CommitEnd,
    /// Queued and not written yet.
    pending: bool,
    /// What is queued tells of progress.
    confirms: bool,
    /// The server wants one. Not at once if one has just been sent: a server that shuts down asks
    /// again after each answer.
    asked: bool,
}

/// Whether the sink moves.
#[derive(Debug, Default)]
struct Stuck {
    since: Option<Instant>,
    /// The lowest record in flight, at the last look.
    lowest: u64,
    /// What the sink waits for.
    obstacle: Option<Obstacle>,
    throttle: LogThrottle,
}

impl Stuck {
    /// When the sink is to be asked for the first time what it waits for.
    fn asks_at(&self, now: Instant) -> Option<Instant> {
        self.since
            .map(|since| since + ASK_SINK)
            .filter(|at| *at > now)
    }

    /// Why a drain is to end before all is acknowledged, if it is: its time is over, or what is waited for
    /// needs somebody.
    fn why_give_up(&self, time_is_over: bool) -> Option<String> {
        let what = self.obstacle.as_ref().map(|obstacle| &*obstacle.what);
        let needs_somebody = self
            .obstacle
            .as_ref()
            .is_some_and(|obstacle| obstacle.disposition == Disposition::Configuration);
        match what {
            Some(what) if needs_somebody => Some(what.to_owned()),
            Some(what) if time_is_over => Some(format!("{DRAIN_TIMEOUT}: {what}")),
            None if time_is_over => Some(DRAIN_TIMEOUT.to_owned()),
            _ => None,
        }
    }
}

/// Delays the next read, so that messages gather in the socket. Blocks the thread: tokio's timers count whole
/// milliseconds, rounded up, and the difference between a third of one and two decides what a message costs the
/// server (docs/adr/0013-two-gears.md). The pipeline owns its thread, so at most its own work is this late.
fn delay_read(delay: Duration) {
    std::thread::sleep(delay);
}

impl Feedback {
    fn due(&self, confirmed: CommitEnd, interval: Duration) -> Instant {
        let progress = self.pending || self.asked || confirmed > self.confirmed;
        self.sent_at
            + if progress {
                STATUS_GAP.min(interval)
            } else {
                interval
            }
    }
}

impl<T, K, W> Streaming<'_, T, K, W>
where
    T: WalStream,
    T::Error: SourceError,
    K: Sink,
    W: Environment,
{
    /// Runs until the connection fails, a delivery fails, or `shutdown` and then the drain.
    pub(crate) async fn run<S, F>(
        mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
        source: &mut S,
    ) -> Result<Outcome, PipelineError<T::Error, F>>
    where
        S: Source<Error = T::Error>,
        F: Error + 'static,
    {
        let result = self.relay(shutdown, source).await;
        match result {
            Ok(drained) => {
                let core = &self.running.core;
                let confirmed = core.confirmed();
                // A row that was received and could not be enqueued is a record at least.
                let records = core.in_flight().max(core.is_inside_transaction().into());
                let taken = self.wind_up(source).await;
                let not_taken = || "the last position is not known to be in the slot".to_owned();
                Ok(match drained.or_else(|| (!taken).then(not_taken)) {
                    None => Outcome::Drained { confirmed },
                    Some(reason) => Outcome::Incomplete {
                        records,
                        confirmed: Some(confirmed),
                        reason,
                    },
                })
            }
            // The connection is sound: confirm what is acknowledged, so that the next attempt
            // repeats as little as can be.
            Err(error @ (PipelineError::Core(_) | PipelineError::Delivery { .. })) => {
                self.settle(source).await;
                self.wind_up(source).await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The loop. `Ok(None)`: drained. Otherwise why not all was acknowledged.
    async fn relay<S, F>(
        &mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
        source: &mut S,
    ) -> Result<Option<String>, PipelineError<T::Error, F>>
    where
        S: Source<Error = T::Error>,
        F: Error + 'static,
    {
        let mut looks = Looks::new(Instant::now());
        let mut named_at = Instant::now() + NAMED_INTERVAL;
        let mut feedback = self.first_feedback();
        let mut received_at = Instant::now();
        let mut confirmed_before = self.running.core.confirmed();
        let mut drain_until: Option<Instant> = None;
        let mut stuck = Stuck::default();
        let mut named = 0;
        let mut updates = self.running.core.counts().updates;
        let mut was_read = false;
        let mut reading = true;
        let mut pace = Pace::new(self.stream.socket(), received_at);
        loop {
            // First of all: what is in the buffers may be another relay's by now.
            if let Some(unproven) = self.lease.expired(Instant::now()) {
                return Err(if reading {
                    self.silence.given_up();
                    PipelineError::Silent {
                        silent_for: unproven,
                    }
                } else {
                    PipelineError::Displaced { unproven }
                });
            }
            // Park before processing the batch, so that an acknowledgement that arrives meanwhile still wakes this task.
            self.running.reports.ring().park();
            // Also before it: a ring that looks full may be empty by now, and then nothing is left
            // that could wake us.
            self.collect();
            // While draining, only the transaction that is open is read to its end: cut in the
            // middle, its first records would be sent again by the next start.
            if std::mem::take(&mut was_read) {
                self.environment.failpoint(Failpoint::AfterRead);
            }
            let records = self.running.core.counts().records;
            // A drain is over when what is in flight has arrived: no request is filled for it.
            self.running.sink.set_mode(match drain_until {
                None => pace.mode(received_at),
                Some(_) => BatchingMode::Latency,
            });
            let walk = self.running.walk(&mut self.stream, drain_until.is_some());
            self.name_diverted(&mut named);
            let walk = walk?;
            self.schema_fetcher
                .request(self.running.core.pending_schema());
            self.running.sink.poll();
            let handed_over = self.running.core.counts().records - records;
            if let Some(sent_at) = walk.sent_at {
                let lag = self.running.core.lag(sent_at);
                pace.handed_over(handed_over, lag, Instant::now());
            }
            if handed_over > 0 {
                self.environment.failpoint(Failpoint::AfterEnqueue);
            }
            if let Some(failure) = self.running.reports.failure() {
                return Err(PipelineError::Delivery {
                    event: None,
                    event_id: None,
                    source: failure.error,
                });
            }
            self.collect();
            let confirmed = self.running.core.confirmed();
            let moved = confirmed > confirmed_before;
            confirmed_before = confirmed;
            if moved {
                self.environment.failpoint(Failpoint::AfterAck);
                self.backoff.reset();
                self.throttle.over(Instant::now());
                self.silence.moved();
            }

            let now = Instant::now();
            // While the sink is full nothing is read, so nothing can come.
            if walk.blocked {
                received_at = now;
                pace.held_up(now);
            }
            self.look_whether_stuck(&mut stuck, &walk, drain_until.is_some());
            if let Some(deadline) = drain_until {
                let core = &self.running.core;
                if !core.is_inside_transaction() && core.in_flight() == 0 {
                    return Ok(None);
                }
                if let Some(reason) = stuck.why_give_up(now >= deadline) {
                    return Ok(Some(reason));
                }
            }

            feedback.asked |= walk.reply;
            if !feedback.pending && now >= feedback.due(confirmed, self.interval()) {
                self.queue_status(&mut feedback, source)
                    .map_err(PipelineError::Source)?;
            }
            if feedback.pending {
                if feedback.confirms {
                    self.environment.failpoint(Failpoint::AfterConfirm);
                }
                self.write_status(&mut feedback).await?;
            }

            reading = !walk.blocked
                && (drain_until.is_none() || self.running.core.is_inside_transaction());
            let silent_for = received_at.elapsed();
            if reading && silent_for >= self.longest_silence() {
                self.silence.given_up();
                return Err(PipelineError::Silent { silent_for });
            }
            // While nothing is read, nothing but a look shows that the slot is still ours.
            let prove_at = self.lease.prove_at();
            let look_at = looks.due(drain_until.is_none(), prove_at);
            if look_at.is_some_and(|at| now >= at) {
                source.look();
                looks.started(now);
            }
            if now >= named_at && drain_until.is_none() {
                named_at = now + NAMED_INTERVAL;
                named = 0;
                self.name_updates(&mut updates);
            }

            let due = feedback.due(confirmed, self.interval());
            let look_at = looks.due(drain_until.is_none(), prove_at);
            let silent_at = reading.then(|| received_at + self.longest_silence());
            let until = [look_at, drain_until, silent_at, stuck.asks_at(now)]
                .into_iter()
                .flatten()
                .fold(due, Instant::min);
            if reading && let Some(rest) = pace.before_read(Instant::now()) {
                delay_read(rest);
            }
            tokio::select! {
                biased;
                () = shutdown.asked(), if drain_until.is_none() => {
                    info!(in_flight = self.running.core.in_flight(), "draining");
                    self.environment.state(State::Draining);
                    self.environment.failpoint(Failpoint::Draining);
                    drain_until = Some(Instant::now() + self.settings.drain_timeout);
                }
                // Before the read: under load there is always something to read.
                looked = source.looked(walk.blocked) => match looked {
                    Ok(looked) => {
                        looks.ended(&looked, Instant::now());
                        self.prove(&looked)?;
                    }
                    // What is in flight can be confirmed all the same.
                    Err(error) if drain_until.is_some() => looks.ended(
                        &Looked::Failed { reason: Chain(&error).to_string() },
                        Instant::now(),
                    ),
                    Err(error) => return Err(PipelineError::Source(error)),
                },
                read = self.stream.read(), if reading => {
                    let bytes = read.map_err(PipelineError::Source)?;
                    was_read = true;
                    // Bytes count, not frames: a large row may take its time to arrive.
                    received_at = Instant::now();
                    // First whether it was in time: what lay in the socket for longer proves nothing.
                    if let Some(unproven) = self.lease.expired(received_at) {
                        return Err(PipelineError::Displaced { unproven });
                    }
                    self.lease.renew(received_at);
                    pace.read(bytes, received_at);
                }
                () = self.running.reports.woken() => {}
                found = self.schema_fetcher.found() => self.seen(found, drain_until.is_some())?,
                () = sleep_until(until) => {}
            }
            self.running.reports.ring().unpark();
        }
    }

    /// Tells the machine of a schema, or that there is none.
    fn seen(&mut self, found: FetchOutcome, draining: bool) -> Result<(), CoreError> {
        match found {
            FetchOutcome::Schema(subject, schema) => {
                let lasted_s = self.schema_fetcher.over().map(|lasted| lasted.as_secs());
                info!(
                    subject,
                    id = schema.id(),
                    lasted_s,
                    "the schema of the subject is known"
                );
                self.running.core.learn(&subject, schema);
                if lasted_s.is_some() && !draining {
                    self.environment.state(State::Streaming);
                }
            }
            FetchOutcome::Later(error, due) => {
                let why = error.to_string();
                if let Some(due) = due {
                    warn!(
                        error = why,
                        lasts_s = due.lasts.as_secs(),
                        not_said = due.unlogged(),
                        "waiting for a schema: nothing is sent meanwhile, the slot keeps what follows"
                    );
                }
                if !draining {
                    self.environment.state(State::WaitingForSchema { why });
                }
            }
            FetchOutcome::Nothing(subject, source) => {
                let halts = source.kind == SchemaFailure::Unauthenticated;
                if halts || !self.running.core.give_up_schema(&subject, &source.reason) {
                    return Err(CoreError::Schema { subject, source });
                }
                warn!(
                    subject,
                    error = %source,
                    "gave the schema up: events that need it are treated by the poison policy until \
                     the relay is started anew"
                );
                if !draining {
                    self.environment.state(State::Streaming);
                }
            }
        }
        Ok(())
    }

    /// Collects acknowledgements.
    fn collect(&mut self) {
        if let Some((end, committed)) = self.running.core.advance() {
            self.environment.acknowledged(end, committed);
        }
    }

    /// What a look shows of the slot.
    fn prove<F: Error>(&mut self, looked: &Looked) -> Result<(), PipelineError<T::Error, F>> {
        let Looked::Answered {
            asked_at,
            owner,
            timeline,
        } = looked
        else {
            return Ok(());
        };
        match owner {
            SlotOwner::Ours => {
                self.lease.renew(*asked_at);
                if let Some(timeline) = timeline
                    && timeline != self.timeline
                {
                    info!(
                        from = self.timeline,
                        to = timeline,
                        "the server was promoted under the stream"
                    );
                    *self.timeline = *timeline;
                }
            }
            // A look at another server, or at a slot that is about to be read: it proves nothing.
            SlotOwner::Nobody => {}
            SlotOwner::Other { .. } => {
                let unproven = self.lease.age(Instant::now());
                return Err(PipelineError::Displaced { unproven });
            }
        }
        Ok(())
    }

    /// How long nothing may come before the connection is given up. Each status update asks for a
    /// reply. A server that decodes a large transaction of other tables replies only once in each half
    /// of `wal_sender_timeout`: a relay that gave up earlier would decode the same for ever.
    fn longest_silence(&self) -> Duration {
        let busy_server = self.server_timeout.unwrap_or_default();
        let usual = self
            .settings
            .receive_timeout
            .max(busy_server)
            .max(3 * self.interval());
        self.silence.limit(usual)
    }

    /// Says that the sink is stuck, at once and then at growing intervals, and that it is not any
    /// more.
    fn look_whether_stuck(&mut self, stuck: &mut Stuck, walk: &BatchResult, draining: bool) {
        if walk.wanted {
            // That is not the sink's doing, and has words of its own.
            *stuck = Stuck::default();
            return;
        }
        let now = Instant::now();
        let core = &self.running.core;
        let lowest = core.lowest_in_flight();
        let waits = walk.blocked || core.in_flight() > 0;
        if !waits || walk.frames > 0 && walk.blocked || lowest > stuck.lowest {
            stuck.since = None;
        }
        stuck.lowest = lowest;
        if !waits || stuck.since.is_none() {
            stuck.since = waits.then_some(now);
        }
        let asks = stuck
            .since
            .is_some_and(|since| now.duration_since(since) >= ASK_SINK);
        stuck.obstacle = asks.then(|| self.running.sink.waiting_for()).flatten();
        let patience = if walk.blocked || stuck.obstacle.is_some() {
            BLOCKED_NOTICE
        } else {
            UNANSWERED_NOTICE
        };
        if stuck
            .since
            .is_some_and(|since| now.duration_since(since) >= patience)
        {
            let what = if walk.blocked {
                "the sink takes nothing more: waiting for it, the slot keeps what follows"
            } else {
                "the sink acknowledges nothing: waiting for it, nothing is confirmed meanwhile"
            };
            let new = stuck.throttle.since().is_none();
            let waiting_for = stuck.obstacle.as_ref().map(|obstacle| &*obstacle.what);
            let about = format!("{what} {}", waiting_for.unwrap_or_default());
            if stuck.throttle.about(&about, now).is_some() {
                let lasts = stuck.since.map_or(Duration::ZERO, |since| now - since);
                warn!(
                    waiting_for,
                    in_flight = core.in_flight(),
                    confirmed = %core.confirmed(),
                    lasts_s = lasts.as_secs(),
                    "{what}"
                );
            }
            if new && !draining {
                self.environment.state(State::Blocked);
            }
        } else if stuck.since.is_none_or(|since| since == now)
            && !draining
            && let Some(lasted) = stuck.throttle.over(now)
        {
            info!(lasted_s = lasted.as_secs(), "the sink takes records again");
            self.environment.state(State::Streaming);
        }
    }

    /// Tells of events that did not go where they were bound for.
    fn name_diverted(&mut self, named: &mut u64) {
        for diverted in self.running.core.take_diverted() {
            let Diverted {
                id,
                class,
                cause,
                action,
                event_id,
            } = diverted;
            *named += 1;
            let lsn = walrelay_lsn::Lsn::new(id.lsn);
            match (action, class) {
                (_, Class::Parked) => {
                    debug!(%lsn, row = id.row, "parked an event behind a dead letter");
                }
                _ if *named > NAMED => {}
                (PoisonAction::Skip, _) => warn!(
                    %lsn, row = id.row, event_id, %class, %cause,
                    "skipped an event that cannot be delivered"
                ),
                (_, _) => warn!(
                    %lsn, row = id.row, event_id, %class, %cause,
                    "made a dead letter of an event that cannot be delivered"
                ),
            }
            if *named == NAMED {
                warn!("more such events are counted and not named for some seconds");
            }
        }
    }

    /// Tells of rows that were changed after they were inserted, if there were any since the last look.
    fn name_updates(&self, before: &mut u64) {
        let so_far = self.running.core.counts().updates;
        let updates = so_far - std::mem::replace(before, so_far);
        let what = "ignored updates of rows: an event is an inserted row";
        match self.settings.on_update {
            _ if updates == 0 => {}
            OnUpdate::Error => error!(updates, "{what}"),
            OnUpdate::Warn | OnUpdate::Stop => warn!(updates, "{what}"),
        }
    }

    fn interval(&self) -> Duration {
        let half = self
            .server_timeout
            .map_or(Duration::MAX, |timeout| timeout / 2);
        self.settings.status_interval.min(half)
    }

    fn first_feedback(&self) -> Feedback {
        Feedback {
            sent_at: Instant::now(),
            confirmed: self.running.core.confirmed(),
            pending: false,
            confirms: false,
            asked: false,
        }
    }

    fn queue_status<S: Source<Error = T::Error>>(
        &mut self,
        feedback: &mut Feedback,
        source: &mut S,
    ) -> Result<(), T::Error> {
        self.environment.progress(&self.running.core.counts());
        let confirmed = source.note(self.running.core.confirmed())?;
        self.stream.queue_status(StatusUpdate {
            written: self.running.core.received(),
            flushed: confirmed,
            applied: confirmed,
            clock_us_since_2000: self.environment.wall_clock().get(),
            // An idle server answers with a keepalive, whose position is what lets an idle slot
            // move. Never in the answer to one: that would go back and forth for ever.
            reply_requested: !feedback.asked,
        });
        *feedback = Feedback {
            sent_at: Instant::now(),
            confirmed,
            pending: true,
            confirms: confirmed > feedback.confirmed,
            asked: false,
        };
        Ok(())
    }

    /// Writes what is queued, without waiting for a server that does not read: reading and
    /// acknowledging go on, and it is tried again.
    async fn write_status<F: Error + 'static>(
        &mut self,
        feedback: &mut Feedback,
    ) -> Result<(), PipelineError<T::Error, F>> {
        if let Ok(written) = timeout(Duration::from_millis(1), self.stream.flush()).await {
            written.map_err(PipelineError::Source)?;
            feedback.pending = false;
        }
        Ok(())
    }

    /// Collects acknowledgements of what is in flight beside or before a failure.
    async fn settle<S: Source<Error = T::Error>>(&mut self, source: &mut S) {
        let deadline = Instant::now() + SETTLE.min(self.settings.drain_timeout);
        let mut feedback = self.first_feedback();
        loop {
            self.running.reports.ring().park();
            self.collect();
            self.running.sink.poll();
            let now = Instant::now();
            if self.running.core.is_settled() || now >= deadline {
                return;
            }
            // Feedback goes on; a connection that fails now changes nothing for the data.
            let due = feedback.due(self.running.core.confirmed(), self.interval());
            if !feedback.pending && now >= due && self.queue_status(&mut feedback, source).is_err()
            {
                return;
            }
            if feedback.pending
                && self
                    .write_status::<std::convert::Infallible>(&mut feedback)
                    .await
                    .is_err()
            {
                return;
            }
            let due = feedback.due(self.running.core.confirmed(), self.interval());
            tokio::select! {
                () = self.running.reports.woken() => {}
                () = sleep_until(due.min(deadline)) => {}
            }
            self.running.reports.ring().unpark();
        }
    }

    /// The orderly end: last status, a look whether it reached the slot, CopyDone. Whether the slot
    /// stands at the confirmed position.
    async fn wind_up<S: Source<Error = T::Error>>(mut self, source: &mut S) -> bool {
        let mut feedback = self.first_feedback();
        feedback.asked = true;
        let confirmed = self.running.core.confirmed();
        let limit = Instant::now() + WIND_UP.min(self.settings.drain_timeout);
        let taken = timeout_at(limit, async {
            while source.note(confirmed)? < confirmed {
                sleep(VERIFY_INTERVAL).await;
            }
            self.queue_status(&mut feedback, source)?;
            self.stream.flush().await?;
            while source.confirmed_on_server().await? < confirmed.lsn() {
                sleep(VERIFY_INTERVAL).await;
            }
            Ok::<_, T::Error>(())
        })
        .await;
        let taken = match taken {
            Ok(Ok(())) => {
                info!(%confirmed, "the slot has taken the last status");
                true
            }
            Ok(Err(error)) => {
                warn!(%confirmed, error = %Chain(&error), "the last status was not verified");
                false
            }
            Err(_) => {
                warn!(%confirmed, "the server did not take the last status in time");
                false
            }
        };
        // Frees the slot at once. The position is safe already, so a failure costs nothing.
        match timeout_at(limit, self.stream.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(error = %Chain(&error), "the stream did not end in order"),
            Err(_) => debug!("the stream did not end in time"),
        }
        taken
    }
}
