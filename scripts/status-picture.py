#!/usr/bin/env python3
"""Takes the picture of the status page in the README: docs/status-page.png.

    make build && scripts/status-picture.py [BINARY]

It runs `walrelay demo --sink http`, waits for its status page to show delivered events, and takes a screenshot by
Chromium's DevTools protocol. Needs Chromium; CHROMIUM names another browser of that family.
"""

import base64
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/status-page.png"
PAGE = "http://127.0.0.1:9187/"
WIDTH, HEIGHT = 1100, 765
# Enough for figures that do not look like those of a start.
EVENTS = 5000


def until(seconds, what, probe):
    """Returns the first result of the probe that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if result := probe():
                return result
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"status-picture: {what} within {seconds} s")


def read(url, method="GET"):
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
        return answer.read()


class Tab:
    """A tab of the browser, over the WebSocket of its DevTools."""

    def __init__(self, address):
        host, path = address.removeprefix("ws://").split("/", 1)
        name, port = host.rsplit(":", 1)
        self.socket = socket.create_connection((name, int(port)), timeout=60)
        self.stream = self.socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        if b" 101 " not in self.stream.readline():
            sys.exit("status-picture: the browser refuses its DevTools")
        while self.stream.readline().strip():
            pass
        self.calls = 0

    def frame(self):
        """Returns the payload of one text message, which may have several frames."""
        message = b""
        while True:
            first, second = self.stream.read(2)
            length = second & 127
            if length >= 126:
                length = int.from_bytes(self.stream.read(2 if length == 126 else 8), "big")
            payload = self.stream.read(length)
            if first & 15 in (0, 1):
                message += payload
                if first & 128:
                    return json.loads(message)

    def call(self, method, **parameters):
        self.calls += 1
        body = json.dumps({"id": self.calls, "method": method, "params": parameters}).encode()
        # The mask of zeros leaves the payload as it is.
        length = bytes([128 | 126]) + len(body).to_bytes(2, "big")
        self.socket.sendall(bytes([129]) + length + bytes(4) + body)
        while (answer := self.frame()).get("id") != self.calls:
            pass
        return answer["result"]

    def text(self):
        found = self.call("Runtime.evaluate", expression="document.body?.innerText ?? ''")
        return found["result"]["value"]


def take(folder):
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("status-picture: no Chromium; CHROMIUM names one")
    arguments = ["--headless", "--hide-scrollbars", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    process = subprocess.Popen([browser, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ports = pathlib.Path(folder) / "DevToolsActivePort"
        port = until(60, "the browser does not start", lambda: ports.exists() and ports.read_text().split()[:1])[0]
        opened = json.loads(read(f"http://127.0.0.1:{port}/json/new?about:blank", "PUT"))
        tab = Tab(opened["webSocketDebuggerUrl"])
        tab.call(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False
        )
        tab.call("Page.navigate", url=PAGE)
        # The head and each of the three topics, with its rate.
        until(30, "the page shows no rates", lambda: len(re.findall(r"event\.\w+\t[^\t]+\t[1-9]", tab.text())) == 3)
        return base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"])
    finally:
        process.terminate()
        process.wait()


def delivered():
    report = json.loads(read(PAGE + "api/status"))
    return report["delivery"]["acknowledged"] >= EVENTS


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/walrelay"
    arguments = ["demo", "--sink", "http", "--seconds", "120", "--rate", "200"]
    demo = subprocess.Popen([binary, *arguments], stdout=subprocess.DEVNULL)
    try:
        until(100, "the demo delivers too little", delivered)
        with tempfile.TemporaryDirectory() as folder:
            PICTURE.write_bytes(take(folder))
    finally:
        demo.terminate()
        demo.wait()
    print(f"status-picture: {PICTURE}")


if __name__ == "__main__":
    main()
