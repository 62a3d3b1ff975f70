"""Asks the server of a page what a browser asks: the page with its token, and the first message of the stream."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from email.message import Message
from typing import Any

from tools.running import PATIENCE_S


def asked(address: str, target: str, method: str = "GET", **headers: str) -> tuple[int, Message, bytes]:
    """Return status, headers and body of an answer; `address` is ``host:port``."""
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def opened(address: str, query: str) -> str:
    """Open the page with the query of its link; return the cookie."""
    status, headers, body = asked(address, f"/?{query}")
    assert status == 200 and b"<title>" in body
    return str(headers["set-cookie"]).partition(";")[0]


def film(address: str, cookie: str) -> dict[str, Any]:
    """Return the first message of the stream: all of the run."""
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/stream", headers={"Cookie": cookie})
        with connection.getresponse() as answer:
            while not (line := answer.readline().decode()).startswith("data: "):
                assert line, "the stream has ended"
            return dict(json.loads(line.removeprefix("data: ")))
