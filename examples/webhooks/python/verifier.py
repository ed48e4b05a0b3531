"""Verifies the signature of a request, as Standard Webhooks describes it. Needs Python only: copy this file.

    event_id = verifier.verify(secrets, request.headers, body)

`body` are the bytes of the request, before anything parses them.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping

PREFIX = "whsec_"


class InvalidSignature(Exception):
    """The request is not one of the sender: answer 401, and do nothing else."""


def key_of(secret: str) -> bytes:
    """The bytes of a secret, `whsec_` and base64. Call it at the start: a mistake in it must not wait."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError("a secret is whsec_ and the base64 of 24 to 64 bytes")
    return key


def verify(keys: list[bytes], headers: Mapping[str, str], body: bytes, *, tolerance: int = 300,
           now: float | None = None) -> str:
    """Returns the event's id, by which a repeat is known. `headers` finds names in any case.

    `keys`: one, or the old and the new one while secrets are rotated. `tolerance`: seconds that the clocks may
    differ; a request that a third party has kept is refused after that time.
    """
    id, sent, signatures = (headers.get(f"webhook-{name}") for name in ("id", "timestamp", "signature"))
    if not id or not sent or not signatures:
        raise InvalidSignature("a header is missing")
    if not sent.isascii() or not sent.isdigit() or abs((time.time() if now is None else now) - int(sent)) > tolerance:
        raise InvalidSignature("it was sent too long ago, or by a wrong clock")
    signed = f"{id}.{sent}.".encode() + body
    for key in keys:
        expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
        for signature in signatures.split(" "):
            # In constant time: its duration must not tell how much of a guess is right.
            if hmac.compare_digest(expected, signature.encode()):
                return id
    raise InvalidSignature("no signature is of a known secret")
