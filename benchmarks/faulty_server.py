#!/usr/bin/env python3
"""A server with a known fault, in a process of its own: something for `draftproof check` to find.

    python benchmarks/faulty_server.py --fault bonus_dropped --port 8101
    draftproof check --reference engine:target=demo,dtype=float32 --input prompts.jsonl \\
        --candidate "http://127.0.0.1:8101?kind=vllm&k=4&batch=4&dtype=float32"

Without `--fault` it is a correct one. It decodes with this package's engine on the loopback and
answers as vLLM (`/v1/completions`), SGLang (`/generate`) and llama.cpp (`/completion`) do, well
enough for `check`. `--list` names the faults. The first line printed is the URL; Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import signal
from dataclasses import fields

from draftproof.faultlab.fake_server import serving
from draftproof.faultlab.faults import FAULTS, by_name
from draftproof.faultlab.faulty_engine import FaultyEngine
from draftproof.forensics.subjects.engine import EngineSubject
from draftproof.forensics.subjects.spec import parse


def main() -> None:
    """Serve until interrupted or terminated."""
    options = _options()
    if options.list:
        for fault in FAULTS:
            print(f"{fault.name:28} {fault.kind.value:24} {fault.story}")
        return
    subject = faulty(subject_of(options), options.fault)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with serving(subject, port=options.port, decode=subject.tokenizer.decode) as url:
        print(url, flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            return


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="demo", help="folder, hub id, or demo")
    parser.add_argument("--draft", default="demo", help="folder, hub id, ngram, or demo")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--k", type=int, default=4, help="draft tokens of a round")
    parser.add_argument("--batch", type=int, default=4, help="rows at a time")
    parser.add_argument("--fault", help="one of --list; none: a correct server")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--list", action="store_true", help="name the faults and stop")
    return parser.parse_args()


def subject_of(options: argparse.Namespace) -> EngineSubject:
    """The engine, without any fault. Raises InputError for what a SPEC cannot say."""
    ways = f"batch={options.batch},k={options.k},dtype={options.dtype},numerics=fast"
    subject = parse(f"engine:target={options.target},draft={options.draft},{ways}")
    assert isinstance(subject, EngineSubject)
    return subject


def faulty(subject: EngineSubject, name: str | None) -> EngineSubject:
    """The subject with a fault put in. Raises KeyError, listing what there is."""
    if name is None:
        return subject
    fault = by_name(name)
    ways = subject.options | ({"method": fault.method} if fault.method is not None else {})
    own = {f.name: getattr(subject, f.name) for f in fields(subject)} | {"options": ways}
    return FaultyEngine(**own, rig=fault.rig, deliver=fault.deliver)


if __name__ == "__main__":
    main()
