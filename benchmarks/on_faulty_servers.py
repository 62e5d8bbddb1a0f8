#!/usr/bin/env python3
"""Every fault behind a server of its own, examined by `draftproof check` from another process.

    python benchmarks/on_faulty_servers.py [--target demo --draft demo] [--faults NAME ...]
        [--url] [--output FILE.jsonl]

For each fault, and for a correct server, `faulty_server.py` is started and asked as a user would
ask it; the reference is a local engine without drafts, one row at a time, or with `--url` a second,
correct server. Prompts and rules of ending are chosen so that the fault can bite. One JSON line per
server; a Markdown table at the end. Faults that need another model or sampled rows are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from draftproof.faultlab.faults import FAULTS, Condition, Fault
from draftproof.faultlab.scenarios import Scenario, set_up
from draftproof.forensics.subjects.base import Inquiry, Task
from draftproof.forensics.subjects.spec import parse
from draftproof.models import DEMO_PROMPTS

HERE = Path(__file__).parent
LEFT_OUT = (Condition.WINDOW, Condition.TIES, Condition.SAMPLING)
NEW, K, BATCH = 64, 3, 4
PATIENCE = 1800  # seconds for one check


def main() -> None:
    """All servers, one after the other."""
    options = _options()
    chosen = [f for f in FAULTS if f.condition not in LEFT_OUT]
    chosen = [f for f in chosen if not options.faults or f.name in options.faults]
    lines = []
    for fault in [*([] if options.faults else [None]), *chosen]:
        lines.append(examined(options, fault))
        print(json.dumps(lines[-1]), flush=True)
        if options.output is not None:
            text = "".join(json.dumps(line) + "\n" for line in lines)
            options.output.write_text(text, encoding="utf-8")
    print(table(lines))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="demo")
    parser.add_argument("--draft", default="demo")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kind", default="vllm", help="whose format: vllm, sglang, llama.cpp")
    parser.add_argument("--faults", nargs="*", default=[], help="default: all that can bite")
    parser.add_argument("--url", action="store_true", help="the reference is a server too")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def examined(options: argparse.Namespace, fault: Fault | None) -> dict[str, Any]:
    """One server and one check."""
    condition = Condition.PLAIN if fault is None else fault.condition
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asked = asking(options, condition, folder)
        url = stack.enter_context(server(options, fault))
        reference = f"engine:target={options.target},dtype={options.dtype},numerics=fast"
        if options.url:
            plain = stack.enter_context(server(options, None, "--k", "0", "--batch", "1"))
            reference = f"{plain}?kind={options.kind}&k=0&batch=1&dtype={options.dtype}"
        candidate = f"{url}?kind={options.kind}&k={K}&batch={BATCH}&dtype={options.dtype}"
        started, report = time.perf_counter(), folder / "report.json"
        command = [sys.executable, "-m", "draftproof", "check", "--reference", reference]
        command += ["--candidate", candidate, "--json", str(report), *asked]
        command += ["--tokenizer", options.target] if options.url else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if not report.exists():
            raise SystemExit(f"check failed ({done.returncode}): {done.stdout}{done.stderr}")
        told = json.loads(report.read_text(encoding="utf-8"))
    verdict, match = told["verdict"], told["match"]
    wanted = None if fault is None else fault.kind.value
    return {
        "fault": None if fault is None else fault.name,
        "expected": wanted,
        "verdict": verdict["cause"],
        "kind": verdict["kind"],
        "right": verdict["kind"] == wanted and verdict["cause"] in ("bug", "exact", "numeric"),
        "rule": verdict["rule"],
        "reasons": verdict["reasons"],
        "missing": verdict["missing"],
        "exact": f"{match['exact']}/{match['rows']}",
        "exit_code": done.returncode,
        "seconds": round(time.perf_counter() - started, 1),
    }


def asking(options: argparse.Namespace, condition: Condition, folder: Path) -> list[str]:
    """The prompts as a file of ids, and the rules of ending, as options of `check`."""
    engine: Any = parse(
        f"engine:target={options.target},dtype={options.dtype},numerics=fast,batch=1"
    )
    texts = DEMO_PROMPTS[2:6]
    tasks = tuple(
        Task(index=index, prompt=tuple(engine.tokenizer(text)["input_ids"]))
        for index, text in enumerate(texts)
    )
    scenario = Scenario(
        name=options.target,
        target=engine.target,
        draft=None,
        tokenizer=engine.tokenizer,
        inquiry=Inquiry(tasks=tasks, max_new_tokens=NEW, eos_token_id=()),
    )
    inquiry = set_up(scenario, condition).inquiry
    prompts = folder / "prompts.jsonl"
    lines = [json.dumps({"prompt": list(task.prompt)}) + "\n" for task in inquiry.tasks]
    prompts.write_text("".join(lines), encoding="utf-8")
    words = ["--input", str(prompts), "--max-new-tokens", str(inquiry.max_new_tokens)]
    words += ["--min-new-tokens", str(inquiry.min_new_tokens)]
    words += [word for stop in inquiry.stop_strings for word in ("--stop-string", stop)]
    # an id that no row can emit: the rows end where the condition ends them
    ends = inquiry.eos_token_id or (len(engine.tokenizer) - 1,)
    return words + [word for eos in ends for word in ("--eos-token-id", str(eos))]


@contextmanager
def server(options: argparse.Namespace, fault: Fault | None, *more: str) -> Iterator[str]:
    """A process of its own; yields its URL."""
    command = [sys.executable, str(HERE / "faulty_server.py"), "--target", options.target]
    command += ["--draft", options.draft, "--dtype", options.dtype, "--k", str(K)]
    command += ["--batch", str(BATCH), *(("--fault", fault.name) if fault else ()), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """In Markdown."""
    rows = [
        "| server | verdict | rule | exact rows | exit code |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for line in lines:
        verdict = line["verdict"].upper() + (f" ({line['kind']})" if line["kind"] else "")
        verdict = verdict if line["right"] else f"**{verdict}**"
        name = f"`{line['fault']}`" if line["fault"] else "correct"
        cells = (name, verdict, line["rule"], line["exact"], str(line["exit_code"]))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
