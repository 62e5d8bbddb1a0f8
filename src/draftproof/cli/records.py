"""Lines of output: our own, and those of OpenAI's batch files (docs/requests.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from draftproof.cli.inputs import Item
from draftproof.types import Result

if TYPE_CHECKING:
    from draftproof.schema import Work

BATCH_ID = "batch_req_"


class Records(Protocol):
    """Makes output lines."""

    def done(self, item: Item, work: Work, results: Sequence[Result]) -> dict[str, Any]:
        """The line of a finished request."""

    def failed(self, item: Item) -> dict[str, Any]:
        """The line of a request that could not be used."""

    def key_of(self, record: Mapping[str, Any]) -> str | None:
        """The key of a line written earlier; None where it has none."""


class OwnRecords:
    """Lines of `generate`: flat for one answer, with `choices` for several."""

    def done(self, item: Item, work: Work, results: Sequence[Result]) -> dict[str, Any]:
        """The line of a finished request."""
        from draftproof.schema.responses import how, prompt_logprobs, usage

        assert item.line is not None
        choices = [_choice(work, index, result) for index, result in enumerate(results)]
        single = len(choices) == 1
        record = {
            **self._head(item),
            "prompt": item.line.prompt,
            **(choices[0] if single else {"choices": choices}),
            "prompt_len": results[0].prompt_len,
            "usage": usage(work, results),
            **how(work, results),
        }
        if (entries := results[0].prompt_logprobs) is not None and single:
            record["prompt_logprobs"] = prompt_logprobs(entries)
        return record

    def failed(self, item: Item) -> dict[str, Any]:
        """The line of a request that could not be used."""
        return {**self._head(item), "error": str(item.error)}

    def key_of(self, record: Mapping[str, Any]) -> str | None:
        """The key of a line written earlier; None where it has none."""
        key = record.get("key")
        return key if isinstance(key, str) else None

    def _head(self, item: Item) -> dict[str, Any]:
        return {"index": item.index, "key": item.key, **item.labels}


def _choice(work: Work, index: int, result: Result) -> dict[str, Any]:
    from draftproof.schema.responses import logprobs

    ending = work.rules.ending(result.token_ids, result.finish_reason)
    choice: dict[str, Any] = {
        "text": ending.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stop_reason": ending.stop_reason,
        "seed": result.seed,
        "stats": result.stats.as_dict(),
    }
    if result.audited is not None:
        choice["audited"] = str(result.audited)
    if result.logprobs is not None:
        choice["logprobs"] = logprobs(work, index, result)
    return choice


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRecords:
    """Lines of OpenAI's batch output.

    model:   as answers name it where the request does not
    created: seconds since 1970, the same in all lines and after a resumed run
    """

    model: str
    created: int

    def done(self, item: Item, work: Work, results: Sequence[Result]) -> dict[str, Any]:
        """The line of a finished request."""
        from draftproof.schema import Head, response

        name = work.request.model or self.model
        head = Head(id=item.key, created=self.created, model=name)
        return self._line(item, 200, response(work, results, head), None)

    def failed(self, item: Item) -> dict[str, Any]:
        """The line of a request that could not be used."""
        assert item.error is not None
        error = item.error.as_dict()
        short = {"code": str(error["code"]), "message": error["message"]}
        return self._line(item, item.error.status, {"error": error}, short)

    def key_of(self, record: Mapping[str, Any]) -> str | None:
        """The key of a line written earlier; None where it has none."""
        name = record.get("id")
        whole = isinstance(name, str) and name.startswith(BATCH_ID) and "response" in record
        return str(name).removeprefix(BATCH_ID) if whole else None

    def _line(
        self, item: Item, status: int, body: dict[str, Any], error: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "id": f"{BATCH_ID}{item.key}",
            "custom_id": item.labels.get("custom_id"),
            "response": {"status_code": status, "request_id": item.key, "body": body},
            "error": error,
        }
