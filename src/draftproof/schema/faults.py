"""The one error of a request."""

from __future__ import annotations

from typing import Any

from draftproof.errors import InputError


class RequestError(InputError):
    """A request that cannot be served as written.

    param:   the field at fault, dotted where it is nested; None: the request as a whole
    status:  for HTTP: 400, or 404 for a model that is not served
    """

    def __init__(self, message: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status

    def as_dict(self) -> dict[str, Any]:
        """The `error` object of OpenAI's API."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        return {"message": str(self), "type": kind, "param": self.param, "code": self.status}
