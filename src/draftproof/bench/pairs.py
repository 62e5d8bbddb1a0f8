"""The paper's three pairs, and what a plan needs to know of a model without loading it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What memory and time follow from.

    parameters: of all weights; kv_width: kv_heads * head_dim
    """

    name: str
    parameters: float
    layers: int
    kv_width: int

    def weight_bytes(self, itemsize: int) -> float:
        """Bytes of the weights."""
        return self.parameters * itemsize

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of keys and values per token."""
        return 2 * self.layers * self.kv_width * itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class PairPreset:
    """One of the paper's pairs of models."""

    target: Facts
    draft: Facts
    dtype: str = "float16"


PRESETS = {
    "vicuna": PairPreset(
        target=Facts(name="lmsys/vicuna-7b-v1.3", parameters=6.74e9, layers=32, kv_width=32 * 128),
        draft=Facts(name="double7/vicuna-68m", parameters=68e6, layers=2, kv_width=12 * 64),
    ),
    "qwen3": PairPreset(
        target=Facts(name="Qwen/Qwen3-8B", parameters=8.19e9, layers=36, kv_width=8 * 128),
        draft=Facts(name="Qwen/Qwen3-0.6B", parameters=0.6e9, layers=28, kv_width=8 * 128),
        dtype="bfloat16",
    ),
    "glm4": PairPreset(
        target=Facts(name="zai-org/GLM-4-9B-0414", parameters=9.4e9, layers=40, kv_width=2 * 128),
        draft=Facts(
            name="jukofyork/GLM-4.5-DRAFT-0.6B-v3.0",
            parameters=0.6e9,
            layers=24,
            kv_width=2 * 64,
        ),
        dtype="bfloat16",
    ),
}


def facts_of(name: str) -> Facts:
    """Facts of a preset's model, of a folder with `config.json` and weights, or of "ngram".

    Raises InputError for a hub id that is not in a preset: a plan downloads nothing.
    """
    if name == "ngram":  # no weights, no cache
        return Facts(name=name, parameters=0, layers=0, kv_width=0)
    known = {facts.name: facts for pair in PRESETS.values() for facts in (pair.target, pair.draft)}
    if name in known:
        return known[name]
    folder = Path(name)
    if not (folder / "config.json").is_file():
        raise InputError(f"{name}: no folder with a config.json; a dry run downloads nothing")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return Facts(
        name=name,
        parameters=_parameters(folder, config),
        layers=config["num_hidden_layers"],
        kv_width=(config.get("num_key_value_heads") or heads) * head_dim,
    )


ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def _parameters(folder: Path, config: dict[str, object]) -> float:
    """From the size of the weights on disk."""
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return sum(file.stat().st_size for file in files) / ITEMSIZE.get(stored, 4)
