"""What is known of a converted model without opening it: a small file beside the graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.executors.openvino.graph import PagedLayer

NAME = "draftproof.json"
GRAPH = "openvino_model.xml"  # optimum's name too


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A converted model.

    name:      as the user named it
    dtype:     of the checkpoint: "float32", "bfloat16" or "float16"
    eos:       ids that end a row by default
    layers:    attention layers; None for a graph that others exported
    versions:  of what converted it
    """

    name: str
    dtype: str
    vocab_size: int
    max_positions: int | None
    eos: Sequence[int]
    layers: Sequence[PagedLayer] | None
    versions: dict[str, str]

    def write(self, folder: Path) -> None:
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Card:
        """Raises OSError, ValueError, KeyError or TypeError when there is none to be read."""
        data: dict[str, Any] = json.loads((folder / NAME).read_text())
        data["layers"] = [PagedLayer(**layer) for layer in data["layers"]]
        return cls(**data)

    @classmethod
    def of_export(cls, folder: Path) -> Card:
        """From the configuration files beside a graph that optimum exported.

        Raises OSError or KeyError when `config.json` is missing or says too little.
        """
        config = json.loads((folder / "config.json").read_text())
        text = config.get("text_config", config)
        defaults = folder / "generation_config.json"
        generation = json.loads(defaults.read_text()) if defaults.exists() else {}
        eos = generation.get("eos_token_id", text.get("eos_token_id"))
        return cls(
            name=str(folder),
            dtype=text.get("dtype") or text.get("torch_dtype") or "float32",
            vocab_size=int(text["vocab_size"]),
            max_positions=text.get("max_position_embeddings"),
            eos=[] if eos is None else [eos] if isinstance(eos, int) else list(eos),
            layers=None,
            versions={},
        )
