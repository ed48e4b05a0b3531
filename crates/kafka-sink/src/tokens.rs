//! OAUTHBEARER tokens: one cache for all clients of a configuration.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::OAuthToken;
use walrelay_sink::in_current_span;

use crate::sync::lock;

/// A token this young is returned to the next client, too: several clients are created together.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// The time that the thread of the delivery reports waits for a new token while the last one is
/// valid.
const REFRESH_WAIT: Duration = Duration::from_secs(1);
/// A token that expires sooner counts as expired.
const EXPIRY_MARGIN: Duration = Duration::from_secs(2);
/// The longest wait for a source, in case it does not limit itself.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// A bearer token and its expiry.
///
/// Its `Debug` does not show the token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The token itself, as sent to the broker.
    pub value: String,
    /// The principal's name in librdkafka's messages. The broker takes the principal from the
    /// token.
    pub principal: String,
    /// The time when the token expires, in milliseconds since 1970-01-01 UTC.
    pub expires_at_ms: i64,
    /// The time for which the token is valid from now on.
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

/// The reason why there is no token. The message names cause and remedy, never the token.
pub type TokenError = Arc<dyn Error + Send + Sync>;

/// A source of tokens.
pub trait TokenSource: fmt::Debug + Send + Sync {
    /// Returns a token that is valid now. **Blocks** for a bounded time.
    ///
    /// # Errors
    /// Shown unchanged, so an error must not contain any part of a token.
    fn token(&self) -> Result<Token, TokenError>;
}

/// Fetches tokens for clients, without delaying delivery reports while a slow source answers.
#[derive(Debug)]
pub(crate) struct TokenCache {
    source: Arc<dyn TokenSource>,
    state: Mutex<TokenState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TokenState {
    /// The last token, and when it was received.
    last: Option<(Token, Instant)>,
    /// The reason why the last attempt failed, if it did.
    failed: Option<TokenError>,
    fetching: bool,
    /// The number of finished attempts.
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

    /// Returns a token for a client: a new one, or the last one if it is still valid and the source
    /// is slow. The client then requests another one before that one expires.
    ///
    /// **Blocks** for a second while there is a valid token, else as long as the source does.
    pub(crate) fn token(self: &Arc<Self>) -> Result<Token, TokenError> {
        let mut state = lock(&self.state);
        if let Some((token, since)) = &state.last
            && since.elapsed() < SHARED_FOR
            && valid(token, *since)
        {
            return Ok(token.clone());
        }
        if !state.fetching {
            state.fetching = true;
            let cache = Arc::clone(self);
            let thread = thread::Builder::new().name("kafka-token".to_owned());
            if let Err(error) = thread.spawn(in_current_span(move || cache.fetch())) {
                state.fetching = false;
                return Err(Arc::new(error));
            }
        }
        let before = state.attempts;
        let usable = state.last.clone().filter(|(token, at)| valid(token, *at));
        let wait = if usable.is_some() {
            REFRESH_WAIT
        } else {
            MAX_WAIT
        };
        let (state, waited) = self
            .changed
            .wait_timeout_while(state, wait, |state| state.attempts == before)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return match usable {
                Some((token, _)) => Ok(token),
                None => Err(Arc::new(NoAnswer)),
            };
        }
        match (&state.failed, &state.last) {
            (None, Some((token, _))) => Ok(token.clone()),
            (Some(error), _) => Err(Arc::clone(error)),
            (None, None) => Err(Arc::new(NoAnswer)),
        }
    }

    /// Returns [`token`](Self::token), in the type of librdkafka's refresh callback.
    pub(crate) fn for_refresh(self: &Arc<Self>) -> Result<OAuthToken, Box<dyn Error>> {
        match self.token() {
            Ok(token) => Ok(OAuthToken {
                token: token.value,
                principal_name: token.principal,
                lifetime_ms: token.expires_at_ms,
            }),
            // The text is passed to C.
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
                        state.last = Some((token, Instant::now()));
                    }
                    Some(Err(error)) => state.failed = Some(error),
                    None => state.failed = Some(Arc::new(NoAnswer)),
                }
                self.0.changed.notify_all();
            }
        }
        let mut ended = Ended(self, None);
        ended.1 = Some(self.source.token());
    }

    /// Returns the text without the current token.
    pub(crate) fn scrub(&self, text: String) -> String {
        match &lock(&self.state).last {
            Some((token, _)) if text.contains(&token.value) => {
                text.replace(&token.value, "[redacted]")
            }
            _ => text,
        }
    }
}

fn valid(token: &Token, since: Instant) -> bool {
    since.elapsed() + EXPIRY_MARGIN < token.valid_for
}

/// Returns an error with its causes, on one line.
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
struct NoAnswer;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::testing::eventually;

    /// A source that returns what the test sends, when it is sent.
    #[derive(Debug)]
    struct Scripted(Mutex<Receiver<Result<Token, TokenError>>>);

    impl TokenSource for Scripted {
        fn token(&self) -> Result<Token, TokenError> {
            let answers = self.0.lock().unwrap();
            answers.recv().expect("the test dropped the sender")
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
    fn a_slow_source_delays_no_client_while_the_last_token_is_valid() {
        let (cache, source) = scripted();
        source.send(Ok(token("first", 3600))).unwrap();
        cache.token().unwrap();
        lock(&cache.state).last.as_mut().unwrap().1 =
            Instant::now().checked_sub(SHARED_FOR).unwrap();
        let start = Instant::now();
        assert_eq!(cache.token().unwrap().value, "first");
        assert!(start.elapsed() >= REFRESH_WAIT);
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
    fn a_failure_is_returned_although_the_last_token_is_valid_so_that_the_client_retries() {
        let (cache, source) = scripted();
        source.send(Ok(token("first", 3600))).unwrap();
        cache.token().unwrap();
        lock(&cache.state).last.as_mut().unwrap().1 =
            Instant::now().checked_sub(SHARED_FOR).unwrap();
        // The last token is returned if the source's thread does not get to run for a second.
        let failure = || cache.for_refresh().err().map(|error| error.to_string());
        eventually("the failure", || {
            let missing = std::io::Error::other("no such file");
            source.send(Err(Arc::new(missing))).unwrap();
            failure().is_some_and(|text| text == "no such file")
        });
        // A source that panics is a failure, too.
        drop(source);
        eventually("another failure", || {
            failure().is_some_and(|text| text.contains("did not answer"))
        });
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
