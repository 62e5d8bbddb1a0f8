"""Servers that misbehave: what is done to a response before it goes over the wire."""

from __future__ import annotations

import json

from draftproof.faultlab.fake_server import Response, ServerFault


def hangs(seconds: float, first: int = 0) -> ServerFault:
    """Answers late, from a request on."""
    return lambda number, r: (
        r if number < first else Response(status=r.status, body=r.body, delay=seconds)
    )


def breaks(first: int = 0) -> ServerFault:
    """Answers 500, from a request on."""
    return lambda number, r: r if number < first else Response(status=500, body=b"{}")


def truncates(first: int = 0) -> ServerFault:
    """Closes the connection in the middle of a response."""
    return lambda number, r: (
        r
        if number < first
        else Response(status=200, body=r.body[: len(r.body) // 2], declared=len(r.body))
    )


def fickle(number: int, response: Response) -> Response:
    """Another answer every time: a token that depends on the number of the request."""
    body = json.loads(response.body)
    choice = body["choices"][0]
    choice["token_ids"] = [(i + number * 7) % 50 for i in choice["token_ids"]]
    choice["logprobs"] = None
    return Response(status=200, body=json.dumps(body).encode())
