//! OAUTHBEARER tokens: one cache for all clients of a configuration.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::OAuthToken;

use crate::sync::lock;

/// A token that was got this short a time ago is good for the next client too: several are made
/// at the same moment.
const SHARED: Duration = Duration::from_secs(1);
/// How long the thread of the delivery reports waits for a new token while the old one is valid.
const PATIENCE: Duration = Duration::from_secs(1);
/// A token that expires sooner is not worth holding on to.
const SPARE: Duration = Duration::from_secs(2);
/// A source bounds itself; this is for one that does not.
const LONGEST: Duration = Duration::from_secs(120);

/// A bearer token, and how long it is good.
///
/// Its `Debug` does not show the token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The token itself, as it goes to the broker.
    pub value: String,
    /// Whom librdkafka names in its messages. The broker takes the principal from the token.
    pub principal: String,
    /// Its end, in milliseconds since 1970-01-01 UTC.
    pub expires_at_ms: i64,
    /// The same, from now on.
    pub valid_for: Duration,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("principal", &self.principal)
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

/// Why there is no token. Its words name cause and remedy, never the token.
pub type TokenError = Arc<dyn Error + Send + Sync>;

/// Where tokens come from.
pub trait TokenSource: fmt::Debug + Send + Sync {
    /// A token that is valid now. **Blocks**, for a bounded time.
    ///
    /// # Errors
    /// Shown as it is, so it must hold no part of a token.
    fn token(&self) -> Result<Token, TokenError>;
}

/// Asks the source when a client needs a token, without keeping delivery reports waiting for a slow
/// one.
#[derive(Debug)]
pub(crate) struct TokenCache {
    source: Arc<dyn TokenSource>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The last one that was got, and when.
    kept: Option<(Token, Instant)>,
    /// Why the last attempt failed, if it did.
    failed: Option<TokenError>,
    fetching: bool,
    /// Attempts that have ended.
    attempts: u64,
}

impl TokenCache {
    pub(crate) fn new(source: Arc<dyn TokenSource>) -> Arc<Self> {
        Arc::new(Self {
            source,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// A token for a client that asks for one: a new one, or the one that is still valid where the
    /// source takes its time. The client then asks again, before that one ends.
    ///
    /// **Blocks** for a second while there is a valid token, else as long as the source.
    pub(crate) fn token(self: &Arc<Self>) -> Result<Token, TokenError> {
        let mut state = lock(&self.state);
        if let Some((token, since)) = &state.kept
            && since.elapsed() < SHARED
            && valid(token, *since)
        {
            return Ok(token.clone());
        }
        if !state.fetching {
            state.fetching = true;
            let cache = Arc::clone(self);
            let thread = thread::Builder::new().name("kafka-token".to_owned());
            if let Err(error) = thread.spawn(move || cache.fetch()) {
                state.fetching = false;
                return Err(Arc::new(error));
            }
        }
        let before = state.attempts;
        let usable = state.kept.clone().filter(|(token, at)| valid(token, *at));
        let patience = if usable.is_some() { PATIENCE } else { LONGEST };
        let (state, waited) = self
            .changed
            .wait_timeout_while(state, patience, |state| state.attempts == before)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return match usable {
                Some((token, _)) => Ok(token),
                None => Err(Arc::new(Silent)),
            };
        }
        match (&state.failed, &state.kept) {
            (None, Some((token, _))) => Ok(token.clone()),
            (Some(error), _) => Err(Arc::clone(error)),
            (None, None) => Err(Arc::new(Silent)),
        }
    }

    /// The same, as librdkafka's refresh wants it.
    pub(crate) fn for_refresh(self: &Arc<Self>) -> Result<OAuthToken, Box<dyn Error>> {
        match self.token() {
            Ok(token) => Ok(OAuthToken {
                token: token.value,
                principal_name: token.principal,
                lifetime_ms: token.expires_at_ms,
            }),
            // Its text goes through C.
            Err(error) => Err(chain(&*error).replace('\0', " ").into()),
        }
    }

    fn fetch(&self) {
        /// Wakes the waiting clients, also if the source panics.
        struct Ended<'a>(&'a TokenCache, Option<Result<Token, TokenError>>);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                let mut state = lock(&self.0.state);
                state.fetching = false;
                state.attempts += 1;
                match self.1.take() {
                    Some(Ok(token)) => {
                        state.failed = None;
                        state.kept = Some((token, Instant::now()));
                    }
                    Some(Err(error)) => state.failed = Some(error),
                    None => state.failed = Some(Arc::new(Silent)),
                }
                self.0.changed.notify_all();
            }
        }
        let mut ended = Ended(self, None);
        ended.1 = Some(self.source.token());
    }

    /// The text without the token that is in use.
    pub(crate) fn scrub(&self, text: String) -> String {
        match &lock(&self.state).kept {
            Some((token, _)) if text.contains(&token.value) => {
                text.replace(&token.value, "[redacted]")
            }
            _ => text,
        }
    }
}

fn valid(token: &Token, since: Instant) -> bool {
    since.elapsed() + SPARE < token.valid_for
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[derive(Debug, thiserror::Error)]
#[error("the source of OAUTHBEARER tokens did not answer")]
struct Silent;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Answers when and as it is told.
    #[derive(Debug)]
    struct Scripted(Mutex<Receiver<Result<Token, TokenError>>>);

    impl TokenSource for Scripted {
        fn token(&self) -> Result<Token, TokenError> {
            let answers = self.0.lock().unwrap();
            answers.recv().expect("the source panics, as asked to")
        }
    }

    fn scripted() -> (Arc<TokenCache>, Sender<Result<Token, TokenError>>) {
        let (sender, receiver) = channel();
        let cache = TokenCache::new(Arc::new(Scripted(Mutex::new(receiver))));
        (cache, sender)
    }

    fn token(value: &str, valid_for: u64) -> Token {
        Token {
            value: value.to_owned(),
            principal: "relay".to_owned(),
            expires_at_ms: 1,
            valid_for: Duration::from_secs(valid_for),
        }
    }

    #[test]
    fn clients_made_together_share_a_token() {
        let (cache, source) = scripted();
        source.send(Ok(token("first", 3600))).unwrap();
        let one = cache.token().unwrap();
        let other = cache.token().unwrap();
        assert_eq!(one, other);
    }

    #[test]
    fn a_slow_source_keeps_nobody_waiting_while_the_old_token_is_valid() {
        let (cache, source) = scripted();
        source.send(Ok(token("first", 3600))).unwrap();
        cache.token().unwrap();
        lock(&cache.state).kept.as_mut().unwrap().1 = Instant::now().checked_sub(SHARED).unwrap();
        let start = Instant::now();
        assert_eq!(cache.token().unwrap().value, "first");
        assert!(start.elapsed() >= PATIENCE);
        source.send(Ok(token("second", 3600))).unwrap();
        while lock(&cache.state).fetching {
            thread::yield_now();
        }
        assert_eq!(cache.token().unwrap().value, "second");
    }

    #[test]
    fn a_token_near_its_end_is_not_handed_out() {
        let (cache, source) = scripted();
        source.send(Ok(token("short", 1))).unwrap();
        cache.token().unwrap();
        source.send(Ok(token("next", 3600))).unwrap();
        assert_eq!(cache.token().unwrap().value, "next");
    }

    #[test]
    fn a_failure_is_told_although_the_old_token_is_valid_so_that_it_is_tried_again() {
        let (cache, source) = scripted();
        source.send(Ok(token("first", 3600))).unwrap();
        cache.token().unwrap();
        lock(&cache.state).kept.as_mut().unwrap().1 = Instant::now().checked_sub(SHARED).unwrap();
        source
            .send(Err(Arc::new(std::io::Error::other("no such file"))))
            .unwrap();
        let error = cache.for_refresh().err().unwrap();
        assert_eq!(error.to_string(), "no such file");
        // And a source that panics is a failure too.
        drop(source);
        let error = cache.for_refresh().err().unwrap();
        assert!(error.to_string().contains("did not answer"), "{error}");
    }

    #[test]
    fn the_token_is_in_no_text() {
        let (cache, source) = scripted();
        source.send(Ok(token("hush-hush", 3600))).unwrap();
        let token = cache.token().unwrap();
        let shown = format!("{token:?} {cache:?}");
        assert!(!shown.contains("hush"), "{shown}");
        let text = cache.scrub("SASL: hush-hush is wrong".to_owned());
        assert_eq!(text, "SASL: [redacted] is wrong");
    }
}
