"""The rooms of the package, and that imports only point down.

    __main__
    cli            server                      doors
    draftproof (the public names)
    dropin                                     door: transformers' own `generate`
    online                                     engines that requests are added to while they run
    api                                        door
    schema                                     what OpenAI's and vLLM's requests mean to the engine
    requests       results                     what goes through the door: options in, results out
    callables      logprobs                    a caller's own functions, log-probabilities with text
    structured                                 grammars for outputs
    text                                       between text and token ids, for the door alone
    auto_k                                     K from what is measured; the loop does not know it
    engine                                     the loop
    drafters       verifiers      executors    side by side, no imports between them (but see BASES)
    hf                                         the only module that imports transformers
    numerics
    batch types sampling processing prefixes phases near_ties errors     foundations

    reference, baselines, forensics, bench, testing, models: the side wing. It may import all of the
    above but the two upper rows, and only `cli`, the tests and the wing itself may import it.
    faultlab: the wing's upper row, faults that the forensics are tried on. Only `cli` imports it.

Each rule is a function from sources to complaints, so that a test can show that it complains.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = "draftproof"

PUBLIC = "(public names)"
LAYERS = (
    {"__main__"},
    {"cli"},
    {"server"},
    {PUBLIC},
    {"dropin"},
    {"online"},
    {"api"},
    {"schema"},
    {"options"},
    {"auditing", "requests", "results"},
    {"callables", "logprobs"},
    {"structured"},
    {"text"},
    {"auto_k"},
    {"engine"},
    {"drafters", "verifiers", "executors"},
    {"hf"},
    {"numerics"},
    # processing: drafters and verifiers, side by side, must choose tokens by the same rules
    {"batch", "types", "sampling", "processing", "prefixes", "phases", "near_ties", "errors"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FOUNDATIONS = LAYERS[-1]
FAULT_LAB = "faultlab"
SIDE_WING = {"reference", "baselines", "forensics", "bench", "testing", "models", FAULT_LAB}
ABOVE_THE_WING = LAYERS[0] | LAYERS[1] | LAYERS[2]
# The written exception: a room may name the Protocol of its neighbour, which lies in `base`, as the
# type of a parameter. A drafter that runs a model is handed an executor and never makes one.
BASES = {"drafters.base", "verifiers.base", "executors.base"}

# api loads models through hf; the wing holds oracles and tools that run models on their own.
MAY_IMPORT_TRANSFORMERS = {"hf"} | SIDE_WING
# An executor on another runtime lies in a folder of its own, which nobody imports unasked.
RUNTIMES = {"executors.openvino": "openvino"}
MAX_LINES = 400
# A ratchet: files that were too long before the rule, with their length. It only ever shrinks.
TOO_LONG: dict[str, int] = {}
CATCH_ALLS = {"utils", "util", "helpers", "helper", "misc", "common"}


# -- reading sources -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Module:
    """One source file: its dotted name without the package's own, and its text."""

    name: str  # "engine.scheduler"; "" is draftproof/__init__.py
    text: str
    is_package: bool = False

    @property
    def room(self) -> str:
        return _room(self.name)

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def read_package() -> dict[str, Module]:
    folder = SOURCE / PACKAGE
    modules = (_read(path, folder) for path in sorted(folder.rglob("*.py")))
    return {module.name: module for module in modules}


def _read(path: Path, folder: Path) -> Module:
    parts = path.relative_to(folder).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return Module(name=name, text=path.read_text(encoding="utf-8"), is_package=is_package)


def sources(**texts: str) -> dict[str, Module]:
    """Synthetic modules; `engine__loop` stands for `engine.loop`, `root` for the package itself."""
    names = {key: "" if key == "root" else key.replace("__", ".", 1) for key in texts}
    return {n: Module(name=n, text=texts[key], is_package=not n) for key, n in names.items()}


def imports(module: Module) -> Iterator[str]:
    """Absolute dotted names that a module imports anywhere: also in functions, also for types."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(module, node)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _base_of(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *filter(None, module.name.split("."))]
    up = node.level - 1 if module.is_package else node.level
    return ".".join([*here[: len(here) - up], *filter(None, [node.module])])


def inner_imports(module: Module, modules: dict[str, Module]) -> list[str]:
    """Names of our own modules that a module imports; `from x import name` counts as x."""
    inner = [name.split(".")[1:] for name in imports(module) if name.split(".")[0] == PACKAGE]
    found = [_known(parts, modules) for parts in inner]
    return [name for name in found if name != module.name]


def _known(parts: list[str], modules: dict[str, Module]) -> str:
    """The longest prefix that is a module; of the package itself, where it is a plain name."""
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in modules:
            return ".".join(parts[:length])
    return parts[0] if parts and parts[0] in LEVEL.keys() | SIDE_WING else ""


# -- rules -----------------------------------------------------------------------------------------


def unknown_rooms(modules: dict[str, Module]) -> list[str]:
    rooms = LEVEL.keys() | SIDE_WING
    return [f"{m.name} is in no room" for m in modules.values() if m.room not in rooms]


def upward_imports(modules: dict[str, Module]) -> list[str]:
    rooms = LEVEL.keys() | SIDE_WING  # unknown_rooms complains about the others
    return [
        f"{module.name or PUBLIC} must not import {imported or PUBLIC}"
        for module in modules.values()
        for imported in inner_imports(module, modules)
        if {module.room, _room(imported)} <= rooms and not _allowed(module, imported)
    ]


def _room(name: str) -> str:
    return name.split(".")[0] or PUBLIC


def _allowed(module: Module, imported: str) -> bool:
    room, other = module.room, _room(imported)
    if room == other:
        return True
    if other == FAULT_LAB:
        return room == "cli"
    if room in SIDE_WING:
        return other not in ABOVE_THE_WING
    if other in SIDE_WING:
        return room == "cli"
    if room in FOUNDATIONS and other in FOUNDATIONS:
        return True
    if LEVEL[room] == LEVEL[other]:
        return imported in BASES
    return LEVEL[room] < LEVEL[other]


def import_cycles(modules: dict[str, Module]) -> list[str]:
    graph = {name: inner_imports(module, modules) for name, module in modules.items()}
    done: set[str] = set()
    return [cycle for name in graph for cycle in _cycles_from(name, graph, [], done)]


def _cycles_from(
    name: str, graph: dict[str, list[str]], path: list[str], done: set[str]
) -> Iterator[str]:
    if name in path:
        yield " -> ".join([*path[path.index(name) :], name])
    elif name not in done:
        for imported in graph.get(name, []):
            yield from _cycles_from(imported, graph, [*path, name], done)
        done.add(name)


def stray_transformers(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.name or PUBLIC} must not import {name}"
        for module in modules.values()
        if module.room not in MAY_IMPORT_TRANSFORMERS
        for name in imports(module)
        if name.split(".")[0] == "transformers"
    ]


def undeclared_packages(
    modules: dict[str, Module], required: set[str], extra: set[str]
) -> list[str]:
    """Core rooms may import what every installation has; the others also what extras bring."""
    return [
        f"{module.name or PUBLIC} imports {name}, which pyproject.toml does not bring"
        for module in modules.values()
        for name in sorted({name.split(".")[0] for name in imports(module)})
        if name not in sys.stdlib_module_names | {PACKAGE} | required
        and not (module.room in SIDE_WING | {"server", "cli", "structured"} and name in extra)
        and not (name in extra and name == RUNTIMES.get(".".join(module.name.split(".")[:2])))
    ]


def catch_alls(names: Iterable[str]) -> list[str]:
    return [f"{n} has no subject" for n in names if CATCH_ALLS & set(n.split("."))]


def long_files(lengths: dict[str, int], too_long: dict[str, int]) -> list[str]:
    grown = [
        f"{name} has {lines} lines, more than {too_long.get(name, MAX_LINES)}"
        for name, lines in lengths.items()
        if lines > too_long.get(name, MAX_LINES)
    ]
    shrunk = [
        f"{name} has {lengths.get(name, 0)} lines: lower or remove its entry"
        for name, allowed in too_long.items()
        if lengths.get(name, 0) < allowed
    ]
    return grown + shrunk


# -- the package obeys -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package() -> dict[str, Module]:
    return read_package()


def declared_packages() -> tuple[set[str], set[str]]:
    """Import names of the required dependencies and of those of all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return {_import_name(d) for d in project["dependencies"]}, {_import_name(d) for d in extras}


def _import_name(requirement: str) -> str:
    return requirement.split(">")[0].split("[")[0].strip().replace("-", "_")


def test_every_module_is_in_a_room(package: dict[str, Module]) -> None:
    assert unknown_rooms(package) == []


def test_imports_only_point_down(package: dict[str, Module]) -> None:
    assert upward_imports(package) == []


def test_no_import_cycles(package: dict[str, Module]) -> None:
    assert import_cycles(package) == []


def test_only_hf_touches_transformers(package: dict[str, Module]) -> None:
    assert stray_transformers(package) == []


def test_imports_are_declared(package: dict[str, Module]) -> None:
    assert undeclared_packages(package, *declared_packages()) == []


def test_no_catch_all_modules(package: dict[str, Module]) -> None:
    assert catch_alls(package) == []


def test_no_file_is_too_long(package: dict[str, Module]) -> None:
    lengths = {name: len(module.text.splitlines()) for name, module in package.items()}
    assert long_files(lengths, TOO_LONG) == []


HEAVY = "sorted({'torch', 'transformers', 'numpy', 'draftproof.schema.fields'} & set(sys.modules))"


@pytest.mark.parametrize(
    "code",
    [
        f"import sys, draftproof; print({HEAVY})",
        "import sys; sys.argv = ['draftproof', '--help']\n"
        "from draftproof.cli import main\n"
        "try:\n    main()\n"
        f"except SystemExit as end:\n    assert not end.code\nprint({HEAVY})",
    ],
    ids=["import draftproof", "draftproof --help"],
)
def test_starts_without_heavy_imports(code: str) -> None:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


# -- the rules can complain ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("engine__loop", "from draftproof.api import load"),
        ("engine__loop", "import draftproof.cli"),
        ("engine__loop", "from draftproof import load"),
        ("engine__loop", "from .. import api"),
        ("engine__loop", "from draftproof.testing import tiny_model"),
        ("engine__loop", "from draftproof.text import decode"),
        ("engine__loop", "from draftproof.auto_k.auto import Auto"),
        ("api", "from draftproof import reference"),
        ("root", "from .forensics import compare"),
        ("forensics__judge", "from draftproof.faultlab import faults"),
        ("bench__runner", "from draftproof.faultlab import faults"),
        ("drafters__model", "from draftproof.executors.rows import Rows"),
        ("drafters__model", "from draftproof import verifiers"),
        ("executors__rows", "def late():\n    from draftproof.engine import scheduler"),
        ("numerics__linear", "from draftproof.hf import register"),
        ("hf", "from draftproof.executors.base import Executor"),
        ("batch", "from draftproof.numerics import attention"),
        ("server__app", "from draftproof.cli import main"),
        ("bench__runner", "from draftproof.cli import app"),
        ("types", "if TYPE_CHECKING:\n    from draftproof.engine.engine import Engine"),
    ],
)
def test_an_import_that_points_up_is_caught(module: str, text: str) -> None:
    targets = dict.fromkeys(
        [
            "root",
            "api",
            "auto_k__auto",
            "cli",
            "executors__base",
            "faultlab",
            "hf",
            "reference",
            "testing",
            "text",
            "verifiers",
        ],
        "",
    )
    assert len(upward_imports(sources(**(targets | {module: text})))) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("engine__loop", "from draftproof import batch\nfrom draftproof.drafters import base"),
        ("drafters__model", "from draftproof.executors.base import Executor"),
        ("executors__rows", "from draftproof import hf\nfrom draftproof.numerics import attention"),
        ("hf", "from draftproof import numerics\nfrom draftproof.errors import Refused"),
        ("batch", "from .types import Row"),
        ("cli__demo", "from draftproof import load, models\nfrom draftproof.bench import runner"),
        ("bench__runner", "from draftproof import load\nfrom draftproof.baselines import bsp"),
        ("faultlab__case", "from draftproof.forensics import lab\nfrom draftproof import testing"),
        ("cli__selftest", "from draftproof.faultlab import selftest"),
        ("root", "from .api import load"),
        ("api", "from draftproof.text import encode"),
    ],
)
def test_an_import_that_points_down_passes(module: str, text: str) -> None:
    targets = dict.fromkeys(
        ["root", "api", "batch", "executors__base", "hf", "models", "numerics", "text", "types"], ""
    )
    assert upward_imports(sources(**(targets | {module: text}))) == []


def test_relative_imports_resolve_from_packages_too() -> None:
    module = Module(name="engine", text="from ..api import load", is_package=True)
    assert list(imports(module)) == ["draftproof.api.load"]
    assert list(imports(Module(name="engine.loop", text="from . import events"))) == [
        "draftproof.engine.events"
    ]


def test_an_unknown_room_is_caught() -> None:
    assert unknown_rooms(sources(engine="", attic__box="")) == ["attic.box is in no room"]


def test_a_cycle_is_caught() -> None:
    one, two = "from draftproof.engine.two import x", "from . import one"
    assert import_cycles(sources(engine__one=one, engine__two=two)) == [
        "engine.one -> engine.two -> engine.one"
    ]


@pytest.mark.parametrize("text", ["import transformers.cache_utils", "from transformers import A"])
def test_transformers_outside_hf_is_caught(text: str) -> None:
    assert len(stray_transformers(sources(executors__rows=text, hf=text, reference=text))) == 1


def test_an_undeclared_package_is_caught() -> None:
    modules = sources(api="import os, torch, scipy, nothing", bench__plots="import torch, scipy")
    modules |= sources(executors__rows="import openvino", executors__openvino="import openvino")
    complaints = undeclared_packages(modules, {"torch"}, {"scipy", "openvino"})
    assert [c.split(",")[0] for c in complaints] == [
        "api imports nothing",
        "api imports scipy",
        "executors.rows imports openvino",
    ]


def test_a_catch_all_is_caught() -> None:
    assert len(catch_alls(["engine.utils", "utils", "engine.scheduler"])) == 2


def test_a_long_file_is_caught_and_the_ratchet_only_shrinks() -> None:
    assert len(long_files({"api": MAX_LINES + 1, "hf": MAX_LINES}, {})) == 1
    assert long_files({"api": 500}, {"api": 500}) == []
    assert len(long_files({"api": 501}, {"api": 500})) == 1
    assert len(long_files({"api": 450}, {"api": 500})) == 1
    assert len(long_files({}, {"gone": 500})) == 1
