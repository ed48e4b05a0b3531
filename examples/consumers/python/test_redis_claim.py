"""The claims against a real Redis, whose port is in WALRELAY_EXAMPLE_REDIS. Skipped without it."""

import os
import signal
import subprocess
import sys
import time
import unittest

import redis

from redis_claim import AfterCrash, Outcome, once

PORT = os.environ.get("WALRELAY_EXAMPLE_REDIS")


def connect():
    return redis.Redis(port=int(PORT))


@unittest.skipIf(PORT is None, "there is no Redis: scripts/fetch-redis.sh")
class ClaimTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = connect()
        cls.addClassCleanup(cls.client.close)

    def setUp(self):
        self.client.delete("processed:mail:1")
        self.happened = 0

    def effect(self):
        self.happened += 1

    def once(self, after_crash=AfterCrash.AGAIN, effect=None, working=60):
        return once(self.client, "mail", "1", effect or self.effect, after_crash=after_crash, working=working)

    def crash(self, after_crash, working):
        """Dies between the effect and the mark."""
        command = [sys.executable, __file__, after_crash.name, str(working)]
        process = subprocess.run(command, check=False, timeout=120)
        self.assertEqual(process.returncode, -signal.SIGKILL)

    def test_the_same_event_twice_has_one_effect(self):
        for after_crash in AfterCrash:
            self.client.delete("processed:mail:1")
            self.happened = 0
            outcomes = [self.once(after_crash), self.once(after_crash)]
            self.assertEqual((outcomes, self.happened), ([Outcome.DONE, Outcome.BEFORE], 1))
            self.assertGreater(self.client.ttl("processed:mail:1"), 29 * 24 * 3600)

    def test_a_crash_between_effect_and_mark_is_at_least_once_by_choice(self):
        self.crash(AfterCrash.AGAIN, 1)
        self.assertEqual((self.once(AfterCrash.AGAIN), self.happened), (Outcome.DONE, 1))

    def test_a_crash_between_effect_and_mark_is_at_most_once_by_choice(self):
        self.crash(AfterCrash.SKIP, 1)
        self.assertEqual((self.once(AfterCrash.SKIP), self.happened), (Outcome.UNKNOWN, 0))

    def test_an_effect_that_fails_can_be_tried_again(self):
        def fails():
            raise OSError("no answer")

        for after_crash in AfterCrash:
            self.client.delete("processed:mail:1")
            with self.assertRaises(OSError):
                self.once(after_crash, fails)
            self.assertEqual(self.once(after_crash), Outcome.DONE)

    def test_a_claim_that_has_expired_is_not_marked_by_its_old_owner(self):
        def loses_it():
            self.client.set("processed:mail:1", "another")

        self.once(effect=loses_it)
        self.assertEqual(self.client.get("processed:mail:1"), b"another")


if __name__ == "__main__":
    after_crash, working = sys.argv[1:]
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
    once(connect(), "mail", "1", kill, after_crash=AfterCrash[after_crash], working=int(working))
