'use strict';
// The status page. Everything shown comes from api/status, api/history and api/events.
// Texts in there may hold anything: they become text nodes, never markup.
(() => {
  // The ranges of the plots: seconds, or minutes, of so many milliseconds each.
  const RANGES = {
    '15 minutes': { span: 15 * 60 * 1000, interval: 1000 },
    '6 hours': { span: 6 * 3600 * 1000, interval: 60 * 1000 },
  };
  // Events come each second. After STALE_MS without one the figures are called old; after RECONNECT_MS
  // the connection is given up: a cut network closes nothing. The relay ends streams after ten minutes;
  // RENEW_MS is before that, so that nothing looks lost.
  const STALE_MS = 3000;
  const RECONNECT_MS = 8000;
  const RENEW_MS = 9 * 60 * 1000;
  // A lag from which on the first event in flight is named, in seconds.
  const LAG_WARN_S = 5;
  // Warnings and errors that are older are folded.
  const RECENT_MS = 3600 * 1000;

  // Texts.
  const by = (id) => document.getElementById(id);
  const known = (value) => value !== null && value !== undefined;
  const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
  const fine = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
  const time = { hour: '2-digit', minute: '2-digit', second: '2-digit' };
  const clockOf = new Intl.DateTimeFormat('en-GB', time);
  const dateOf = new Intl.DateTimeFormat('en-GB', { ...time, day: 'numeric', month: 'short' });
  const count = (n) => (known(n) ? whole.format(n) : '–');
  const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
  const rounded = (n) => (n >= 100 ? whole : fine).format(n);
  function bytes(n) {
    if (!known(n)) return '–';
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    while (Math.abs(n) >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
    return `${rounded(n)} ${units[unit]}`;
  }
  const millis = (ms) => (!known(ms) ? '–' : ms < 1 ? `${rounded(ms)} ms` : seconds(ms / 1000));
  function seconds(s) {
    if (!known(s)) return '–';
    if (s < 0.001) return '0 s';
    if (s < 1) return `${rounded(s * 1000)} ms`;
    if (s < 10) return `${Number(s.toFixed(1))} s`;
    const of = (unit) => Math.floor(s / unit);
    if (s < 120) return `${of(1)} s`;
    if (s < 7200) return `${of(60)} min`;
    if (s < 172800) return `${of(3600)} h ${of(60) % 60} min`;
    return `${of(86400)} d ${of(3600) % 24} h`;
  }
  // With the day, where that may be another one.
  const clock = (ms, now = ms) => (Math.abs(now - ms) > 12 * 3600 * 1000 ? dateOf : clockOf).format(ms);
  const tally = (of) => Object.entries(of || {}).filter(([, n]) => n > 0)
    .sort((a, b) => b[1] - a[1]).map(([name, n]) => `${name} ${count(n)}`).join(', ');

  // The document. Only what differs is written: a screen reader is told of changes, and a selection stays.
  function setText(node, value) {
    if (node.textContent !== value) node.textContent = value;
    node.hidden = value === '';
  }
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    Object.entries(attributes || {}).forEach(([name, value]) => node.setAttribute(name, value));
    node.append(...children.filter(known));
    return node;
  }
  function setLevel(node, level) {
    node.dataset.level = level;
    node.querySelector('use').setAttribute('href', `#icon-${level}`);
  }
  function marked(tag, level, ...children) {
    const node = make(tag, null, by('connection').querySelector('svg').cloneNode(true), ' ', ...children);
    setLevel(node, level);
    return node;
  }
  // Builds the children anew if their data changed.
  function fill(id, data, children) {
    const node = by(id);
    const print = JSON.stringify(data);
    if (node.print !== print) node.replaceChildren(...children(data));
    node.print = print;
  }
  const row = (first, ...cells) => make('tr', null, make('th', { scope: 'row' }, first),
    ...cells.map((cell) => make('td', null, cell)));
  function facts(id, pairs) {
    fill(id, pairs.filter(([, value]) => known(value) && value !== ''), (data) =>
      data.flatMap(([name, value]) => [make('dt', null, name), make('dd', null, value)]));
  }
  function badge(id, level, words) {
    setLevel(by(id), level);
    setText(by(id).querySelector('.badge span'), words);
  }
  // A bar of `value` in `limit`; where there is no limit, `note` says so.
  function gauge(id, level, name, text, value, limit, note) {
    by(id).dataset.level = level;
    fill(id, [name, text, value, limit, note], () => {
      const label = make('div', null, `${name}: ${text}`);
      if (!known(value) || !limit) return [label, make('div', { class: 'none' }, note || '')];
      const percent = Math.min(100, (100 * value) / limit);
      const bar = make('div', { class: 'fill' });
      bar.style.width = `${percent}%`;
      const track = make('div', {
        class: 'track', role: 'meter', 'aria-label': name, 'aria-valuemin': 0, 'aria-valuemax': 100,
        'aria-valuenow': Math.round(percent), 'aria-valuetext': text,
      }, bar);
      return [label, track];
    });
  }

  // What is wrong.
  const listed = (servers) => servers.split(/,\s*/).join(', ');
  const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);
  const up = (endpoint) => endpoint.state === 'UP';
  // INIT: the client has had no need of a connection yet.
  const down = (endpoint) => !up(endpoint) && endpoint.state !== 'INIT';

  // Since when each problem is there, by its title: the contract dates only the pipeline's state.
  const firstSeen = new Map();
  function date(problems, now, first) {
    const titles = new Set(problems.map((problem) => problem.title));
    [...firstSeen.keys()].filter((title) => !titles.has(title)).forEach((title) => firstSeen.delete(title));
    problems.forEach((problem) => {
      if (!firstSeen.has(problem.title)) firstSeen.set(problem.title, { at: now, atLeast: first });
      const seen = firstSeen.get(problem.title);
      const dated = known(problem.since) && problem.since > 0;
      problem.since = dated ? Math.min(problem.since, seen.at) : seen.at;
      problem.atLeast = !dated && seen.atLeast;
    });
  }

  // Showing.
  let status = null;
  let prunes = false; // [prune] is configured
  let hasToken = false;
  let openLetters = null; // as read last
  let hasCounted = false; // they are read once
  let problems = [];
  let receivedAt = 0; // performance.now() of the last event
  let lostSince = null; // Date.now()
  const levelOf = (is) => (problems.find(is) || { level: 'ok' }).level;
  const levelOfState = () => levelOf((problem) => problem.is_state);
  const levelOfWal = () => levelOf(({ alert }) => ['WalrelaySlotLost', 'WalrelaySlotWalNearLimit', 'WalrelaySlotRetainsWal'].includes(alert));
  const sinkIsDown = () => problems.some(({ alert }) => alert === 'WalrelaySinkDown');
  const serverNow = () => status.now_ms + (performance.now() - receivedAt);

  const alertOf = ({ alert, alert_after: after }) => (alert ? `Alert ${alert}${after ? `, after ${after}` : ''}` : '');
  const runbookAt = (heading) => `runbook#${heading}`;
  const TAB = { ok: ['✔', '#2da44e'], warn: ['▲', '#e3a008'], bad: ['✖', '#d1242f'] };
  function setTab(level, title) {
    document.title = `${TAB[level][0]} ${title} – walrelay`;
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><circle cx="4" cy="4" r="4" fill="${TAB[level][1]}"/></svg>`;
    const url = `data:image/svg+xml,${encodeURIComponent(svg)}`;
    if (by('favicon').href !== url) by('favicon').href = url;
  }
  function showVerdict() {
    if (!status && lostSince === null) return;
    const top = problems.find((problem) => problem.level !== 'note');
    let shown = top || { level: 'ok', title: 'All is well: events are relayed' };
    let rest = problems.filter((problem) => problem !== top);
    if (lostSince !== null) {
      shown = {
        level: 'bad', title: 'Connection to walrelay lost', since: lostSince,
        reason: status ? `Last news, of ${clock(status.now_ms)}: ${shown.title}. All figures below are of then.` : null,
        remedy: 'See whether the process runs, what its log says last, and its exit code. This page reconnects by itself.',
        runbook: null,
      };
      rest = [];
    }
    setLevel(by('verdict-box'), shown.level);
    setText(by('verdict'), shown.title);
    setTab(shown.level, shown.title);
    const now = lostSince === null ? serverNow() : Date.now();
    setText(by('verdict-since'), shown.since
      ? `since ${shown.atLeast ? 'at least ' : ''}${clock(shown.since, now)} (${seconds(Math.max(0, Math.floor((now - shown.since) / 1000)))})` : '');
    setText(by('verdict-reason'), shown.reason && !shown.title.includes(shown.reason) ? shown.reason : '');
    setText(by('verdict-remedy'), shown.remedy || '');
    // The endpoint that is lost has no runbook.
    by('verdict-runbook').hidden = !shown.runbook;
    if (shown.runbook) by('verdict-runbook').firstElementChild.setAttribute('href', runbookAt(shown.runbook));
    const alert = shown.runbook && alertOf(shown);
    setText(by('verdict-alert'), alert ? `· ${alert}` : '');
    setText(by('verdict-facts'), lostSince === null ? factsLine(status) : '');
    const further = rest.map((problem) => ({ ...problem, since: null, atLeast: null, alert: alertOf(problem) }));
    fill('verdict-further', further, (data) => data.map(({ level, title, reason, remedy, runbook, alert }) => marked('li', level,
      make('a', { href: runbookAt(runbook) }, make('b', null, title)), reason ? `: ${reason}` : '',
      remedy ? make('span', { class: 'remedy' }, `What to do: ${remedy}`) : null, alert ? make('span', { class: 'alert' }, alert) : null)));
    setLevel(by('connection'), lostSince === null ? 'ok' : 'bad');
    setText(by('connection').querySelector('span'), lostSince === null ? 'live' : 'no connection');
    document.body.classList.toggle('lost', lostSince !== null);
    if (status) setText(by('uptime'), seconds((serverNow() - status.started_ms) / 1000));
  }
  const ago = (at) => `${seconds(Math.max(0, Math.floor((serverNow() - at) / 1000)))} ago`;
  function factsLine({ latency: { commit_to_ack: ack }, delivery, source, slot, pipeline, slo }) {
    const parts = [
      `${plural(delivery.in_flight_records, 'record')} in flight`,
      `lag ${seconds(source.lag_seconds)} (${bytes(source.lag_bytes)})`,
      ack.samples ? `commit to acknowledgement p50 ${millis(ack.p50_ms)}, p99 ${millis(ack.p99_ms)} in the last minute`
        : 'nothing acknowledged in the last minute',
    ];
    if (delivery.first_in_flight && (pipeline.state !== 'streaming' || source.lag_seconds >= LAG_WARN_S)) parts.push(`first event that is not acknowledged: ${delivery.first_in_flight}`);
    if (slo) parts.push(`${slo.budget_left_percent.toFixed(1)} % of the SLO's budget left (${seconds(slo.missed_seconds)} late)`);
    if (slot) parts.push(`${bytes(slot.retained_bytes)} of WAL kept`);
    if (known(delivery.acknowledged_at_ms)) parts.push(`last event ${ago(delivery.acknowledged_at_ms)}`);
    return parts.join(' · ');
  }
  function showSource({ source, slot, pipeline, snapshot, bookmark, delivery }) {
    const away = ['connecting', 'retrying', 'waiting-for-slot', 'halted'].includes(pipeline.state);
    const kept = levelOfWal();
    // An attempt that the sink ended tells nothing of Postgres.
    const ofSink = ['sink', 'delivery'].includes(pipeline.cause);
    const levels = [kept, away && !ofSink ? levelOfState() : 'ok'];
    const level = ['bad', 'warn', 'ok'].find((name) => levels.includes(name));
    const words = away ? pipeline.state.replaceAll('-', ' ') : ['streaming', 'draining'].includes(pipeline.state) ? 'streaming' : pipeline.state === 'snapshot' ? 'snapshot' : 'reading pauses';
    badge('node-source', level, `${words}${slot && slot.wal_status && slot.wal_status !== 'reserved' ? `, WAL ${slot.wal_status}` : ''}`);
    const limited = slot && slot.limit_bytes;
    gauge('gauge-wal', slot ? kept : 'idle', 'WAL kept for the slot',
      slot ? `${bytes(slot.retained_bytes)}${limited ? ` of ${bytes(slot.limit_bytes)}` : ''}` : 'not seen yet',
      slot && slot.retained_bytes, limited,
      slot ? 'no limit: max_slot_wal_keep_size is -1, the disk of the primary decides' : '');
    facts('source-facts', [
      ['snapshot', snapshot && (snapshot.running || snapshot.rows)
        ? `${count(snapshot.rows)}${snapshot.running && snapshot.expected_rows ? ` of about ${count(snapshot.expected_rows)}` : ''} rows` : null],
      ['can be replayed', bookmark
        ? `${seconds(Math.round(bookmark.reachable_seconds))} back of ${seconds(bookmark.keep_seconds)}, for ${bytes(bookmark.retained_bytes)} of ${bytes(bookmark.max_wal_bytes)} WAL${bookmark.cut_short ? `; cut short: ${bookmark.cut_short}` : ''}` : null],
      ...(source.replays || []).map((one) => ['replay', `process ${one.pid}, acknowledged up to ${one.position || '–'}, ${bytes(one.behind_bytes)} before the end of the log`]),
      ...((source.audit || {}).tables || []).map((one) => ['audit', `${one.table}: ${count(one.rows)} rows without evidence, ${one.percent} % looked at`]),
      ...(source.outboxes || []).map((outbox) => ['outbox', [
        outbox.table, known(outbox.rows) ? `about ${count(outbox.rows)} rows` : null, known(outbox.bytes) ? bytes(outbox.bytes) : null,
        known(outbox.dead_rows) ? `about ${count(outbox.dead_rows)} dead` : null,
        known(outbox.oldest_seconds) ? `oldest ${seconds(Math.round(outbox.oldest_seconds))}` : null,
        outbox.oldest_unmarked_seconds > 0 ? `oldest unmarked ${seconds(Math.round(outbox.oldest_unmarked_seconds))}` : null,
      ].filter((part) => part !== null).join(', ')]),
      ['pruned', prunes || delivery.pruned_rows > 0 ? `${plural(delivery.pruned_rows, 'row')} since the start` : null],
      ['last event', known(delivery.acknowledged_at_ms) ? `acknowledged at ${clock(delivery.acknowledged_at_ms, status.now_ms)}` : 'none since the start'],
      ['reader', slot ? (slot.active ? `process ${slot.active_pid}` : `none${known(slot.inactive_seconds) ? ` for ${seconds(slot.inactive_seconds)}` : ''}`) : null],
      ['reconnects', tally(source.reconnects) || 'none'],
    ]);
  }
  function showWindow({ delivery, pipeline, registry }) {
    const full = delivery.in_flight_records >= delivery.in_flight_records_limit || delivery.in_flight_bytes >= delivery.in_flight_bytes_limit;
    const level = full ? 'bad' : 'ok';
    if (['blocked', 'waiting-for-schema'].includes(pipeline.state)) badge('node-window', 'bad', pipeline.state.replaceAll('-', ' '));
    else badge('node-window', full ? 'warn' : 'ok', full ? 'full' : delivery.in_flight_records > 0 ? 'in use' : 'empty');
    gauge('gauge-records', level, 'records', `${count(delivery.in_flight_records)} of ${count(delivery.in_flight_records_limit)}`,
      delivery.in_flight_records, delivery.in_flight_records_limit);
    gauge('gauge-bytes', level, 'size', `${bytes(delivery.in_flight_bytes)} of ${bytes(delivery.in_flight_bytes_limit)}`,
      delivery.in_flight_bytes, delivery.in_flight_bytes_limit);
    facts('window-facts', [
      ['mode', delivery.mode],
      ['sent again', delivery.retrying ? `${plural(delivery.retrying.keys, 'key')} wait, up to ${count(delivery.retrying.most)} of ${count(delivery.retrying.limit)} of one destination` : null],
      ['reading paused', delivery.blocked_seconds >= 0.05 ? `${seconds(delivery.blocked_seconds)} since the start` : 'never'],
      ['acknowledged', `${plural(delivery.acknowledged, 'record')} of ${plural(delivery.transactions, 'transaction')}`],
      ['schemas', registry ? tally(registry.requests) || 'no requests' : null],
    ]);
  }
  function showSink({ sink, delivery, latency: { commit_to_ack: ack } }) {
    const { endpoints, endpoint_term: term } = sink;
    const isDown = sinkIsDown();
    const ups = endpoints.filter(up).length;
    setText(by('sink-title'), capital(sink.title));
    if (!known(sink.servers)) badge('node-sink', 'idle', 'no servers');
    else if (isDown) badge('node-sink', 'bad', sink.certificate_fault ? 'down: certificate refused' : sink.failure && sink.failure.needs_change ? `down: ${sink.failure.id}` : `down: no ${term} answers`);
    else badge('node-sink', endpoints.some(down) ? 'warn' : ups ? 'ok' : 'idle', `${ups} of ${plural(endpoints.length, term)} up`);
    facts('sink-facts', [
      ['servers', known(sink.servers) ? listed(sink.servers) : null],
      ['not up', isDown ? 'all' : endpoints.filter(down).map((endpoint) => `${endpoint.name} (${endpoint.state})`).join(', ')],
      ['acknowledged', ack.samples ? `p50 ${millis(ack.p50_ms)}, p99 ${millis(ack.p99_ms)} after the commit` : 'nothing in the last minute'],
      ['round trip', endpoints.filter(up).map((endpoint) => millis(endpoint.rtt_avg_ms)).join(', ')],
      ['topics', count(delivery.topics.length)],
      ['failed', tally(delivery.failed) || 'none'],
    ]);
    setText(by('endpoints-title'), `${capital(term)}s`);
    setText(by('endpoint-count'), String(endpoints.length));
    fill('endpoint-rows', endpoints, (data) => data.map((endpoint) => {
      const mark = up(endpoint) ? 'ok' : down(endpoint) ? 'bad' : 'idle';
      return row(endpoint.name, marked('span', mark, endpoint.state), millis(endpoint.rtt_avg_ms), millis(endpoint.rtt_p99_ms), count(endpoint.queued), count(endpoint.retries));
    }));
  }
  function showFlows(s, rate) {
    const reading = ['streaming', 'draining'].includes(s.pipeline.state);
    const standby = known(s.pipeline.holder) && s.pipeline.holder.standby;
    const flow = (id, on, words) => {
      by(id).className = `flow ${standby ? '' : !on ? 'stopped' : rate > 0 ? 'flowing' : ''}`;
      setText(by(id).querySelector('p'), standby ? 'standing by' : on ? words : 'stopped');
    };
    flow('flow-read', reading, `lag ${seconds(s.source.lag_seconds)}`);
    flow('flow-send', reading && !sinkIsDown(), `${rounded(rate)} records/s`);
    setText(by('return-text'), `confirmed to Postgres: ${s.source.confirmed_lsn ? `all but the last ${bytes(s.source.lag_bytes)}` : 'nothing yet'}`);
  }
  // Records per second of each topic over the last seconds.
  const followed = new Map();
  function rateOf({ topic, delivered }, now) {
    const counts = followed.get(topic) || [];
    const last = counts.at(-1);
    if (last && (delivered < last[1] || now - last[0] > STALE_MS)) counts.length = 0;
    if (!last || now > last[0]) counts.push([now, delivered]);
    if (counts.length > 6) counts.shift();
    followed.set(topic, counts);
    const [first, end] = [counts[0], counts.at(-1)];
    return end[0] > first[0] ? (1000 * (end[1] - first[1])) / (end[0] - first[0]) : null;
  }
  function showLists(s) {
    // What is older is folded: a warning of the start does not stay in sight.
    const recent = s.errors.filter((error) => s.now_ms - error.at_ms < RECENT_MS);
    const older = s.errors.filter((error) => s.now_ms - error.at_ms >= RECENT_MS);
    const entries = (data) => data.map((error) => make('li', { 'data-level': error.level === 'ERROR' ? 'bad' : 'warn' },
      make('p', { class: 'head' }, make('b', null, error.level), ' ',
        make('time', { datetime: new Date(error.at_ms).toISOString() }, clock(error.at_ms, s.now_ms)),
        error.count > 1 ? ` · ${count(error.count)} times since ${clock(error.first_ms, s.now_ms)}` : ''),
      make('p', null, error.message),
      error.remedy ? make('p', { class: 'remedy' }, error.remedy) : null));
    fill('errors', recent, entries);
    fill('older-errors', older, entries);
    by('errors-none').hidden = recent.length > 0;
    by('older').hidden = older.length === 0;
    setText(by('older-count'), String(older.length));
    const dead = s.dead_letters;
    const causes = [...new Set([...Object.keys(dead.written), ...Object.keys(dead.skipped)])]
      .filter((cause) => dead.written[cause] || dead.skipped[cause]).sort();
    setText(by('dead-summary'), [
      causes.length ? 'Since the start.' : 'None since the start.',
      known(openLetters) ? `${openLetters ? count(openLetters) : 'None'} ${openLetters > 1 ? 'are' : 'is'} open, those of former runs included.` : '',
      dead.topic ? `Topic: ${dead.topic}.` : 'No topic for dead letters is configured.',
      dead.parked_keys ? `${plural(dead.parked_keys, 'key is', 'keys are')} parked.` : '',
    ].filter((part) => part).join(' '));
    by('dead-table').hidden = causes.length === 0;
    fill('dead-rows', causes.map((cause) => [cause, count(dead.written[cause] || 0), count(dead.skipped[cause] || 0)]),
      (data) => data.map((cells) => row(...cells)));
    const topics = s.delivery.topics;
    setText(by('topic-count'), String(topics.length));
    const shown = topics.map((topic) => {
      const [rate, at] = [rateOf(topic, s.now_ms), topic.acknowledged_at_ms];
      return [topic.topic, seconds(topic.lag_seconds), known(rate) ? rounded(rate) : '–', known(at) ? `${topic.last_event}, ${seconds(Math.floor((s.now_ms - at) / 1000))} ago` : '–',
        count(topic.delivered), bytes(topic.delivered_bytes), count(topic.failed)];
    });
    fill('topic-rows', shown.length ? shown : [['none yet']], (data) => data.map((cells) => row(...cells)));
    facts('position-facts', [
      ['server', s.source.server.replace(/^postgres(ql)?:\/\//, '')],
      ['tables', s.source.tables.join(', ')],
      ['publication', s.source.publication],
      ['confirmed to Postgres', s.source.confirmed_lsn],
      ['received', s.source.received_lsn],
      ['server is at', s.source.server_lsn],
    ]);
    facts('process-facts', [
      ['resident memory', bytes(s.process.resident_bytes)],
      ['CPU', `${seconds(s.process.cpu_seconds)} since the start`],
      ['threads', count(s.process.threads)],
      ['open files', count(s.process.open_files)],
      ['status updates to Postgres', count(s.source.feedback_sent)],
    ]);
  }

  // Open dead letters: they are read once when the page is opened, because the figures of the status are those of this
  // run alone, and while they are shown.
  const DEAD_LETTERS = 'api/dead-letters';
  function showDeadLetters({ open, dead_letters: letters, error, redriven, busy, read_ms: read }) {
    if (known(read)) openLetters = open;
    setText(by('dead-count'), count(open));
    setText(by('dead-said'), [error, redriven, busy ? 'Reading …' : '', !busy && !error && open === 0 ? 'None is open.' : ''].filter((part) => part).join(' · '));
    by('dead-list').hidden = letters.length === 0;
    fill('dead-letters', letters, (data) => data.map((letter) => {
      const again = make('button', { type: 'button' }, 'redrive');
      again.addEventListener('click', () => redrive(letter));
      return row(`${letter.lsn} ${letter.row}`, letter.event_id || '–', [letter.class, letter.cause].filter((part) => part).join(': '), letter.topic || '–', letter.key || '–', again);
    }));
  }
  async function readDeadLetters() {
    const answer = await fetch(DEAD_LETTERS + location.search);
    if (!answer.ok) {
      setText(by('dead-said'), await answer.text());
      return null;
    }
    const list = await answer.json();
    showDeadLetters(list);
    return list;
  }
  async function countDeadLetters() {
    for (let attempt = 0; attempt < 60 && !known(openLetters) && !by('dead-open').open; attempt += 1) {
      if (!await readDeadLetters()) return;
      await new Promise((done) => { setTimeout(done, 500); });
    }
  }
  async function redrive({ lsn, row: number }) {
    if (!confirm(`Send the event ${lsn} ${number} to its topic again, and close the dead letter?`)) return;
    const query = `${location.search ? `${location.search}&` : '?'}lsn=${lsn}&row=${number}`;
    let answer = null;
    // 409: the list is being read.
    for (let attempt = 0; attempt < 20 && (!answer || answer.status === 409); attempt += 1) {
      if (answer) await new Promise((done) => { setTimeout(done, 500); });
      answer = await fetch(`${DEAD_LETTERS}/redrive${query}`, { method: 'POST', headers: { 'x-walrelay-redrive': '1' } });
    }
    setText(by('dead-said'), await answer.text());
  }
  async function followDeadLetters() {
    let allowed = true;
    while (allowed && by('dead-open').open) {
      allowed = await readDeadLetters().then(known).catch(() => true);
      await new Promise((done) => { setTimeout(done, 2000); });
    }
  }
  by('dead-open').addEventListener('toggle', () => {
    if (!by('dead-open').open) return;
    if (hasToken) followDeadLetters();
    else setText(by('dead-said'), 'Keys are shown, and events sent again, only with http.token_file. Without it: walrelay dlq list.');
  });

  // One event: the relay looks for it, or sends its row again, as the commands of an operator do.
  const EVENT = 'api/event';
  const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });
  function showEvent({ busy, event, error, found, would_send: would, sent }) {
    setText(by('event-said'), [event, busy ? 'looking …' : '', found ? found.answer : '', error, would, sent].filter((part) => part).join(' · '));
    by('event-list').hidden = !found;
    fill('event-places', found ? found.places : [], (data) => data.map(({ place, found: has, text }) =>
      row(place, `${known(has) || place === 'relay' ? '' : 'not known: '}${text}`)));
    by('event-again').hidden = !hasToken || !found || busy || ['behind-slot', 'waits-for-sink', 'dead-letter'].includes(found.answer);
  }
  // Returns the answer once the job has ended.
  async function eventJob(path, id, more = '') {
    const query = `${location.search ? `${location.search}&` : '?'}id=${encodeURIComponent(id)}${more}`;
    const begun = await fetch(`${EVENT}/${path}${query}`, { method: 'POST', headers: { [`x-walrelay-${path}`]: '1' } });
    if (!begun.ok) { setText(by('event-said'), await begun.text()); return null; }
    for (;;) {
      const answer = await (await fetch(EVENT + location.search)).json();
      showEvent(answer);
      if (!answer.busy) return answer;
      await sleep(500);
    }
  }
  const lostEvent = () => setText(by('event-said'), 'The relay does not answer.');
  let askedEvent = '';
  by('event-form').addEventListener('submit', (submitted) => {
    submitted.preventDefault();
    askedEvent = by('event-id').value.trim();
    if (askedEvent) eventJob('where', askedEvent).catch(lostEvent);
  });
  async function resendEvent(id) {
    const dry = await eventJob('resend', id);
    if (!dry || dry.event !== id || !dry.would_send) return;
    if (confirm(`${id}: ${dry.would_send}\n\nConsumers see the event again, after newer events of its key. Send it?`)) await eventJob('resend', id, '&confirm=1');
  }
  by('event-resend').addEventListener('click', () => resendEvent(askedEvent).catch(lostEvent));

  // Plots.
  let samples = []; // [at_ms, records/s, p50, p99, lag], oldest first
  let minutes = []; // the same by the minute
  let range = '15 minutes';
  const drawn = () => (range === '6 hours' ? minutes : samples);
  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // A value between two gaps has no line: it gets a point.
  function lonely(plot, series) {
    const data = plot.data[series];
    return data.map((_, i) => i).filter((i) => known(data[i]) && !known(data[i - 1]) && !known(data[i + 1]));
  }
  const line = (name, dash) => ({
    stroke: colour(name), width: 1.75, dash, points: { show: true, size: 4, fill: colour(name), filter: lonely },
  });
  const axis = (more) => ({
    stroke: colour('--muted'), grid: { stroke: colour('--grid'), width: 1 }, ticks: { show: false }, font: '12px system-ui, sans-serif', ...more,
  });
  // The top of a scale: a spike of a few seconds does not flatten the rest. It is cut, and marked.
  function topOf(values, least) {
    const sorted = values.filter(known).sort((a, b) => a - b);
    const greatest = sorted.at(-1) || 0;
    const usual = sorted[Math.floor(sorted.length * 0.98)] || 0;
    return 1.1 * Math.max(least, usual > 0 && greatest > 4 * usual ? 2 * usual : greatest);
  }
  const fromZero = (least, column) => () => [0, topOf(drawn().map((sample) => sample[column]), least)];
  // Faults: warnings and errors of the log as dashed lines, at the first and the last time of each, and between them a
  // bar at the bottom. Values above the scale: a triangle at its top.
  function drawMarks(u) {
    const { ctx, bbox } = u;
    const [bad, muted] = [colour('--bad')(), colour('--muted')()];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const error of status ? status.errors : []) {
      const [first, last] = [error.first_ms, error.at_ms].map((at) => Math.round(u.valToPos(at / 1000, 'x', true)) + 0.5);
      ctx.strokeStyle = error.level === 'ERROR' ? bad : muted;
      ctx.fillStyle = ctx.strokeStyle;
      ctx.fillRect(first, bbox.top + bbox.height - 3 * devicePixelRatio, last - first, 3 * devicePixelRatio);
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
      for (const x of new Set([first, last])) {
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
    }
    ctx.fillStyle = bad;
    const size = 5 * devicePixelRatio;
    u.data[0].forEach((at, i) => {
      if (!(u.data[1][i] > u.scales.y.max)) return;
      const x = u.valToPos(at, 'x', true);
      ctx.beginPath();
      ctx.moveTo(x - size, bbox.top + size);
      ctx.lineTo(x + size, bbox.top + size);
      ctx.lineTo(x, bbox.top);
      ctx.fill();
    });
    ctx.restore();
  }
  const decade = (round, value) => 10 ** round(Math.log10(value || 1));
  const isDecade = (value) => known(value) && Math.abs(Math.log10(value) % 1) < 1e-6;
  const compact = new Intl.NumberFormat('en', { notation: 'compact' });

  function plotOf(id, lines, y, showAt) {
    const host = by(id);
    const plot = new uPlot({
      width: host.clientWidth || 300, height: 150, legend: { show: false }, padding: [10, 18, 0, 0],
      cursor: { sync: { key: 'plots' }, drag: { x: false, y: false }, points: { show: true } },
      scales: { x: { range: () => spanOfX() }, y: y.scale },
      axes: [axis({ grid: { show: false }, space: 60, size: 30, gap: 8, values: '{HH}:{mm}' }), axis({ size: 58, space: 44, values: y.values, ...y.axis })],
      series: [{}, ...lines],
      hooks: { draw: [drawMarks], setCursor: [(u) => showAt(known(u.cursor.idx) ? u.data.map((of) => of[u.cursor.idx]) : null)] },
    }, [[], ...lines.map(() => [])], host);
    new ResizeObserver(() => { if (host.clientWidth) plot.setSize({ width: host.clientWidth, height: 150 }); }).observe(host);
    return plot;
  }
  const newest = () => samples.at(-1) || [Date.now(), null, null, null, null];
  const spanOfX = () => [(newest()[0] - RANGES[range].span) / 1000, newest()[0] / 1000];
  const most = (column) => drawn().reduce((max, sample) => (known(sample[column]) && !(sample[column] <= max) ? sample[column] : max), null);
  // The caption: the values under the pointer, else the latest ones and the greatest.
  function caption(id, at, keyed, greatest, label) {
    const when = at ? `at ${clock(at[0] * 1000)}` : 'latest';
    fill(`values-${id}`, [when, keyed, greatest], () => [...keyed.flatMap(([key, name, value]) => [
      make('span', { class: `key ${key}`, 'aria-hidden': 'true' }), name, make('b', null, value), ' ',
    ]), make('span', { class: 'note' }, `${when}; greatest ${greatest}`)]);
    if (!at) by(`plot-${id}`).setAttribute('aria-label', `${label} of the last ${range}. Latest: ${keyed.map(([, name, value]) => `${name}${value}`).join(', ')}; greatest ${greatest}. The table below has the figures.`);
  }
  // Of the columns of a plot: x, then its lines.
  const captions = {
    rate: (at, [, rate] = at || newest()) => caption('rate', at,
      [['', '', known(rate) ? `${rounded(rate)} records/s` : '–']], count(most(1)), 'Records per second'),
    latency: (at, [, p50, p99] = at || [0, ...newest().slice(2)]) => caption('latency', at,
      [['', 'p50 ', millis(p50)], ['key-2', 'p99 ', millis(p99)]], millis(most(3)), 'Time from commit to acknowledgement, on a logarithmic scale,'),
    lag: (at, [, lag] = at || [0, newest()[4]]) => caption('lag', at, [['key-3', '', seconds(lag)]], seconds(most(4)), 'Lag behind Postgres'),
  };
  const plots = {
    rate: plotOf('plot-rate', [line('--plot-1')],
      { scale: { range: fromZero(10, 1) }, values: (_, ticks) => ticks.map((v) => compact.format(v)) }, captions.rate),
    // Outages of a minute and acknowledgements of a millisecond, in one picture: a logarithmic scale.
    latency: plotOf('plot-latency', [line('--plot-1'), line('--plot-2', [5, 3])],
      {
        scale: { distr: 3, range: (_, min, max) => [Math.min(1, decade(Math.floor, min)), Math.max(100, decade(Math.ceil, max))] },
        // Lines at the decades alone.
        axis: { grid: { stroke: colour('--grid'), width: 1, filter: (_, ticks) => ticks.map((v) => (isDecade(v) ? v : null)) } },
        values: (_, ticks) => ticks.map((v) => (isDecade(v) ? millis(v) : '')),
      }, captions.latency),
    lag: plotOf('plot-lag', [line('--plot-3')],
      { scale: { range: fromZero(1, 4) }, values: (_, ticks) => ticks.map((v) => (v < 10 ? `${rounded(v)} s` : seconds(v))) }, captions.lag),
  };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => Object.values(plots).forEach((plot) => plot.redraw(false)));

  function addSamples(more) {
    const all = new Map([...samples, ...more].map((sample) => [sample[0], sample]));
    samples = [...all.values()].sort((a, b) => a[0] - b[0]);
    samples = samples.filter((sample) => sample[0] >= newest()[0] - RANGES['15 minutes'].span);
  }
  function showPlots() {
    // Seconds that nobody measured are a gap.
    const of = drawn();
    const { interval } = RANGES[range];
    const dotted = of.flatMap((sample, i) =>
      (i > 0 && sample[0] - of[i - 1][0] > 3 * interval ? [[of[i - 1][0] + interval, null, null, null, null], sample] : [sample]));
    const column = (i) => dotted.map((sample) => sample[i]);
    const x = dotted.map((sample) => sample[0] / 1000);
    // A logarithm has no zero: what took less than 0.01 ms is drawn there.
    const positive = (values) => values.map((ms) => (known(ms) ? Math.max(ms, 0.01) : null));
    plots.rate.setData([x, column(1)]);
    plots.latency.setData([x, positive(column(2)), positive(column(3))]);
    plots.lag.setData([x, column(4)]);
    Object.entries(captions).forEach(([name, show]) => { if (!known(plots[name].cursor.idx)) show(null); });
    if (by('minutes').open) showMinutes();
  }
  function showMinutes() {
    const minuteOf = (sample) => Math.floor(sample[0] / 60000) * 60000;
    const rows = [...new Set(drawn().map(minuteOf))].reverse().map((minute) => {
      const of = drawn().filter((sample) => minuteOf(sample) === minute);
      const [rates, medians, tails, lags] = [1, 2, 3, 4].map((i) => of.map((sample) => sample[i]).filter(known).sort((a, b) => a - b));
      const mean = rates.reduce((sum, rate) => sum + rate, 0) / (rates.length || 1);
      return [clock(minute).slice(0, 5), rounded(mean), millis(medians[medians.length >> 1]), millis(tails.at(-1)), seconds(lags.at(-1))];
    });
    fill('minute-rows', rows, (data) => data.map((cells) => row(...cells)));
  }
  for (const button of document.querySelectorAll('#ranges button')) {
    button.addEventListener('click', () => {
      range = button.textContent;
      setText(by('plots-title'), `Last ${range}`);
      document.querySelectorAll('#ranges button').forEach((other) => other.setAttribute('aria-pressed', String(other === button)));
      showPlots();
    });
  }
  by('minutes').addEventListener('toggle', () => { if (by('minutes').open) showMinutes(); });
  // The connection.
  function show(next) {
    // Another version has another page.
    if (status && next.version !== status.version) { location.reload(); return; }
    const first = status === null || lostSince !== null;
    status = { ...status, ...next };
    receivedAt = performance.now();
    lostSince = null;
    if (next.config) {
      const isSet = (name) => next.config.some(([key, value]) => key === name && known(value));
      prunes = isSet('prune.keep');
      hasToken = isSet('http.token_file');
      if (hasToken && !hasCounted) {
        hasCounted = true;
        countDeadLetters().catch(() => { /* the list says so when it is shown */ });
      }
      setText(by('config-count'), plural(next.config.length, 'key'));
      fill('config-rows', next.config, (data) => data.map(([key, value]) => row(key, String(value))));
    }
    // The relay lists what is wrong, the worst first: readyz, status and check show the same.
    problems = status.problems.map((problem) => ({ ...problem, since: problem.since_ms }));
    date(problems, status.now_ms, first);
    setText(by('version'), status.version);
    setText(by('slot-name'), status.pipeline.slot);
    showVerdict();
    showSource(status);
    showWindow(status);
    showSink(status);
    showFlows(status, (next.sample || newest())[1] || 0);
    showLists(status);
    if (next.sample) {
      addSamples([next.sample]);
      showPlots();
    }
  }
  function lose() {
    lostSince = lostSince || Date.now();
    showVerdict();
  }
  async function load() {
    // The query names the pipeline, if there are several.
    const [now, history] = await Promise.all(['api/status', 'api/history'].map(async (path) => (await fetch(path + location.search)).json()));
    show(now);
    addSamples(history.samples);
    minutes = history.minutes;
    showPlots();
  }
  let events = null;
  let connectedAt = 0;
  function connect() {
    if (events) events.close();
    connectedAt = performance.now();
    events = new EventSource('api/events' + location.search);
    // Also after each reconnection: what was missed, and the configuration, which events have not.
    events.addEventListener('open', () => { connectedAt = performance.now(); load().catch(() => { /* the stream notices a lost connection */ }); });
    events.addEventListener('status', (event) => show(JSON.parse(event.data)));
    events.addEventListener('error', lose);
  }
  setInterval(() => {
    const now = performance.now();
    if (now - Math.max(receivedAt, connectedAt) > STALE_MS) lose();
    // EventSource reconnects by itself, but not after an answer of a proxy, nor while a cut connection seems open.
    const age = now - connectedAt;
    const gaveUp = events.readyState === EventSource.CLOSED && age > 2000;
    if (gaveUp || age > RENEW_MS || Math.min(age, now - receivedAt) > RECONNECT_MS) connect();
    showVerdict();
  }, 1000);
  // The relay adds a minute at its end.
  setInterval(() => { if (range === '6 hours' && lostSince === null) load().catch(() => { /* see above */ }); }, RANGES['6 hours'].interval);
  connect();
})();
