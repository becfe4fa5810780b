"""The tests' own way to the API server, so that what the reactor's client does is looked at by another."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any, Final
from urllib.parse import quote, urlsplit

Object = dict[str, Any]

_SECONDS: Final = 30.0
_PATCH: Final = "application/strategic-merge-patch+json"
_MERGE_PATCH: Final = "application/merge-patch+json"


class ApiError(Exception):
    """The server's refusal."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status}: {body}")
        self.status = status


class Api:
    """Requests to one server with one token. `url` is http or https; `authority` a PEM file."""

    def __init__(self, url: str, token: str, authority: str) -> None:
        self.url = url
        self.token = token
        self.authority = authority

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> str:
        """Return the answer's text. Raises ApiError for a refusal, OSError where there is no server."""
        address = urlsplit(self.url)
        context = ssl.create_default_context(cafile=self.authority)
        connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=_SECONDS, context=context
        )
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        text = None
        if body is not None:
            text, headers["Content-Type"] = json.dumps(body), kind
        try:
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            content = answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise ApiError(method, path, answer.status, content)
        return content

    def get(self, path: str, **query: str) -> Object:
        """Return an object or a list."""
        words = "&".join(f"{name}={quote(value)}" for name, value in query.items())
        answer: Object = json.loads(self.request("GET", f"{path}?{words}" if words else path))
        return answer

    def find(self, path: str) -> Object | None:
        """Return an object, None where there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection and return it."""
        answer: Object = json.loads(self.request("POST", path, body))
        return answer

    def create_unless_there(self, path: str, body: Object) -> None:
        """Create an object in a collection, or leave the one that is there as it is."""
        try:
            self.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def patch(self, path: str, body: Object) -> Object:
        """Change an object and return it."""
        answer: Object = json.loads(self.request("PATCH", path, body, _PATCH))
        return answer

    def merge_patch(self, path: str, body: Object) -> Object:
        """Change an object, its lists as a whole, and return it."""
        answer: Object = json.loads(self.request("PATCH", path, body, _MERGE_PATCH))
        return answer

    def delete(self, path: str, grace_seconds: int | None = None) -> None:
        """Delete an object that may be gone already."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except ApiError as error:
            if error.status != 404:
                raise
