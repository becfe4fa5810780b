"""What an API server, or the way to it, can refuse; the type says what a caller may do about it."""

from __future__ import annotations

from reactor.errors import ReactorError


class ApiError(ReactorError):
    """A request did not succeed. `status` is HTTP's, None where there was no answer at all."""

    def __init__(self, what: str, why: str, *, status: int | None = None) -> None:
        self.what = what
        self.why = why
        self.status = status
        super().__init__(f"{what}: {why}")


class UnreachableError(ApiError):
    """No answer, a cut one, or one that is no answer of an API server: worth another attempt later."""


class BusyError(ApiError):
    """The server asked to be left alone (429) or failed (5xx): worth another attempt later."""

    def __init__(
        self, what: str, why: str, *, status: int | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(what, why, status=status)
        self.retry_after_seconds = retry_after_seconds


class VersionTooLargeError(BusyError):
    """The server's cache has not come to the resource version (504): list without one."""


class UnauthorizedError(ApiError):
    """The credentials are not, or no longer, good (401): worth reading them again."""


class ForbiddenError(ApiError):
    """The credentials are good, but a rule is missing (403); the message names it."""


class NotFoundError(ApiError):
    """There is no such object (404)."""


class ConflictError(ApiError):
    """The object exists already, or is another one by now (409)."""


class ExpiredError(ApiError):
    """The resource version is too old (410): list again."""


class InvalidError(ApiError):
    """The request itself was refused (400, 422, and whatever else is the client's fault)."""
