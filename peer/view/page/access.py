"""Who may read the page: a checked Host header, GET only, a link that works once, and a cookie of this machine's user."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator_free_bootstrap.ordinary_file import content_of

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Access:
    """The present link, and the cookie that it becomes.

    Args:
        key: secret of the cookies; the same key after a restart keeps open pages valid.
        on_token: gets the token of the next link whenever one is used up.
    """

    def __init__(self, key: bytes, on_token: Callable[[str], None] = lambda token: None) -> None:
        self.cookie = hmac.new(key, b"page of a run", hashlib.sha256).hexdigest()
        self._on_token = on_token
        self.token = secrets.token_urlsafe(24)

    def redeem(self, token: str) -> bool:
        """Return whether this is the token of the present link, and use it up."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = secrets.token_urlsafe(24)
        self._on_token(self.token)
        return True

    def admits(self, cookie: str | None) -> bool:
        """Return whether this is the cookie of the page."""
        return cookie is not None and hmac.compare_digest(cookie.encode(), self.cookie.encode())


class AccessGuard:
    """An ASGI application in front of the page's: refuses what is not allowed, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access, hosts: frozenset[str] = LOOPBACK) -> None:
        self.app, self.access, self.hosts = app, access, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal, cookie = self._judge(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = HEADERS | ({"set-cookie": cookie} if cookie else {})
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in extra.items())]
            await send(message)

        await (refusal or self.app)(scope, receive, guarded)

    def _judge(self, scope: Scope) -> tuple[PlainTextResponse | None, str | None]:
        """Return the refusal of a request, or None; and the cookie to set, or None."""
        headers = Headers(scope=scope)
        host = host_name(headers.get("host", ""))
        if host not in self.hosts:
            return refuse(421, f"Host: expected one of {', '.join(sorted(self.hosts))}, got {host[:80]!r}."), None
        if scope["method"] != "GET":
            return refuse(405, f"expected GET, got {scope['method'][:16]}. This page only reads."), None
        name = cookie_name(scope)
        if self.access.admits(cookies(headers.get("cookie", "")).get(name)):
            return None, None
        token = QueryParams(scope["query_string"]).get("token", "")
        if scope["path"] == "/" and self.access.redeem(token):
            return None, f"{name}={self.access.cookie}; HttpOnly; SameSite=Strict; Path=/"
        return refuse(
            403, "This page needs the link that its server printed. A link works once; the newest is the last printed."
        ), None


def refuse(status: int, sentence: str) -> PlainTextResponse:
    """Return a refusal as plain text."""
    return PlainTextResponse(sentence + "\n", status)


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port and the brackets of IPv6."""
    return (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower()


def cookie_name(scope: Scope) -> str:
    """Return the cookie's name: cookies do not tell ports apart, so the port is in the name."""
    port = Headers(scope=scope).get("host", "").rpartition(":")[2]
    return f"peer_page_{port if port.isdecimal() else 80}"


def cookies(text: str) -> dict[str, str]:
    """Return the cookies of a header; none if it cannot be read."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(text).items()}
    except CookieError:
        return {}


def kept_key(place: Path) -> bytes:
    """Return the key of this user for pages of a run; a new one if the user's state folder cannot hold it.

    The key is in ``$XDG_STATE_HOME/coordinator-free/page.key`` (default ``~/.local/state``), readable for its owner only.
    """
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(base) / "coordinator-free" / "page.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
        except FileExistsError:
            pass
        found = content_of(path)
        own = found if len(found) == 32 and path.stat().st_mode & 0o077 == 0 else b""
    except OSError:
        own = b""
    return hmac.new(own or secrets.token_bytes(32), str(place.resolve()).encode(), hashlib.sha256).digest()
