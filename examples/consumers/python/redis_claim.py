"""Keeps effects outside of the database from happening twice, by claims in Redis or Valkey.

No transaction holds such an effect and its claim together. So the claim comes before the effect, the mark
after it, and after a crash between them nobody knows whether the effect happened. Choose what then:

* `AfterCrash.AGAIN`: when the claim has expired, the effect happens again: at least once.
* `AfterCrash.SKIP`: it does not happen again, and is reported: at most once.

If the receiver of the effect takes an idempotency key, give it the event's id instead, and use neither.
"""

import enum
import time
import uuid
from collections.abc import Callable

import redis

# Marks a claim as done only if it is still ours: it may have expired during the effect.
_MARK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('SET', KEYS[1], 'done', 'EX', ARGV[2])
    return 1
end
return 0
"""


class AfterCrash(enum.Enum):
    AGAIN = "at least once"
    SKIP = "at most once"


class Outcome(enum.Enum):
    DONE = "the effect happened"
    BEFORE = "the effect had happened before"
    UNKNOWN = "a process died at it: the effect may have happened, and is not repeated"


def once(
    client: redis.Redis,
    consumer: str,
    event_id: str,
    effect: Callable[[], None],
    *,
    after_crash: AfterCrash,
    working: int = 60,
    remembered: int = 30 * 24 * 3600,
) -> Outcome:
    """Has the effect, unless it happened before. Commit the record's offset when this returns.

    `working`: seconds that the longest effect takes at most. `remembered`: seconds for which a repeat is
    known; longer than the longest replay. If the effect raises, the claim is released, and the record
    can be tried again: an effect that fails must not have happened.
    """
    key = f"processed:{consumer}:{event_id}"
    token = uuid.uuid4().hex
    expires = working if after_crash is AfterCrash.AGAIN else remembered
    while not client.set(key, token, nx=True, ex=expires):
        found = client.get(key)
        if found == b"done":
            return Outcome.BEFORE
        if after_crash is AfterCrash.SKIP and found is not None:
            # Another process is at it, or has died.
            return Outcome.UNKNOWN
        time.sleep(0.1)
    try:
        effect()
    except BaseException:
        # Not ours any more if it has expired: then another process is at it.
        if client.get(key) == token.encode():
            client.delete(key)
        raise
    client.eval(_MARK, 1, key, token, remembered)
    return Outcome.DONE
