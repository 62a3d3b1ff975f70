"""Who may read the page: host, method, link, cookie; and what every answer carries."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import dataclass

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from peer.view.page.access import HEADERS, Access, AccessGuard, cookies, host_name, kept_key

KEY = b"k" * 32


@dataclass
class Answer:
    status_code: int
    headers: dict[str, str]
    text: str


@dataclass
class Client:
    """Calls an application without a socket."""

    app: AccessGuard

    def request(self, method, target, headers=None):
        path, _, query = target.partition("?")
        sent = {"host": "127.0.0.1:7480"} | {name.lower(): value for name, value in (headers or {}).items()}
        scope = {
            "type": "http", "method": method, "path": path, "root_path": "", "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }  # fmt: skip
        messages = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            messages.append(message)

        asyncio.run(self.app(scope, receive, send))
        names = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        return Answer(messages[0]["status"], names, b"".join(m.get("body", b"") for m in messages[1:]).decode())

    def get(self, target, headers=None):
        return self.request("GET", target, headers)


def client(access=None):
    app = Starlette(routes=[Route("/{path:path}", lambda request: PlainTextResponse("the run"))])
    return Client(AccessGuard(app, access or Access(KEY)))


def cookie(access):
    return {"Cookie": f"peer_page_7480={access.cookie}"}


def test_a_link_works_once_and_becomes_a_cookie_for_scripts_unreadable():
    told = []
    access = Access(KEY, told.append)
    link = f"/?token={access.token}"
    answer = client(access).get(link)
    assert answer.status_code == 200
    assert answer.headers["set-cookie"] == f"peer_page_7480={access.cookie}; HttpOnly; SameSite=Strict; Path=/"
    assert client(access).get(link).status_code == 403
    assert told == [access.token]
    assert client(access).get("/", headers=cookie(access)).text == "the run"


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%ff%00"])
def test_a_wrong_link_is_refused_with_what_to_do(query):
    answer = client().get("/" + query)
    assert answer.status_code == 403
    assert "link that its server printed" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_link_opens_only_the_first_page():
    access = Access(KEY)
    assert client(access).get(f"/stream?token={access.token}").status_code == 403


@pytest.mark.parametrize("name", ["peer_page_7481", "other"])
def test_a_cookie_of_another_port_is_refused(name):
    access = Access(KEY)
    assert client(access).get("/", headers={"Cookie": f"{name}={access.cookie}"}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7480", "[::2]:7480"]
)
def test_another_host_name_is_refused_even_with_the_cookie(host):
    access = Access(KEY)
    answer = client(access).get("/", headers={"Host": host} | cookie(access))
    assert answer.status_code == 421
    assert "expected one of 127.0.0.1, ::1, localhost, got" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_only_get_is_answered(method):
    access = Access(KEY)
    assert client(access).request(method, "/", headers=cookie(access)).status_code == 405


def test_every_answer_has_the_security_headers():
    access = Access(KEY)
    for answer in (
        client(access).get("/"),
        client(access).request("POST", "/"),
        client(access).get("/x", headers=cookie(access)),
    ):
        assert HEADERS.items() <= answer.headers.items()
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy and "unsafe" not in policy


def test_another_key_gives_another_cookie():
    assert Access(b"a" * 32).cookie != Access(b"b" * 32).cookie
    assert Access(KEY).cookie == Access(KEY).cookie
    assert Access(KEY).token != Access(KEY).token


def test_the_key_stays_for_its_user_and_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    key = kept_key(tmp_path / "run")
    assert key == kept_key(tmp_path / "run")
    assert key != kept_key(tmp_path / "other")
    file = tmp_path / "state" / "coordinator-free" / "page.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)  # others could have read it
    assert kept_key(tmp_path / "run") != key


def test_without_a_state_folder_each_start_has_its_own_key(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert kept_key(tmp_path) != kept_key(tmp_path)


def test_headers_that_cannot_be_read_are_empty():
    assert host_name("LOCALHOST:80") == "localhost"
    assert host_name("[::1]:7480") == "::1"
    assert cookies('a="; b') == {} or "peer_page_7480" not in cookies('a="; b')
