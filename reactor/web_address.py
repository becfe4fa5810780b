"""The address of a web server, as far as this program speaks to one: scheme, host, port, path and query."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

ACCEPTED: Final = (
    "an address such as https://alerts.example.com/reactor, without a user, a password or a fragment"
)
_LONGEST: Final = 2048
_HOST: Final = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
# Of the path and the query what RFC 3986 allows there.
_ADDRESS: Final = re.compile(
    rf"(?P<scheme>https?)://{_HOST}(?::(?P<port>[0-9]{{1,5}}))?(?P<target>(?:/[!$%&'()*+,./:;=?@A-Za-z0-9_~-]*)?)"
)
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """`target` is the path with the query. `origin` is what may be shown: all else may be a secret."""

    is_tls: bool
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        """Return scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"

    @property
    def is_private(self) -> bool:
        """Return whether nobody on a network reads what is sent there: by TLS, or to this machine itself."""
        if self.is_tls or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_web_address(text: str) -> WebAddress | None:
    """Return the address that a text is, None where it is none."""
    found = _ADDRESS.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None or int(found["port"] or 1) not in range(1, 65536):
        return None
    return WebAddress(
        is_tls=found["scheme"] == "https",
        host=found["host"].strip("[]"),
        port=int(found["port"] or _PORTS[found["scheme"]]),
        target=found["target"] or "/",
    )
