"""The report as JUnit XML: one test case per row, for CI systems."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

FAILURE = {"bug", "harness"}


def render(report: dict[str, Any]) -> str:
    """XML of a report as `Examination.as_dict` gives it.

    A row that is numeric passes; whether the run as a whole does, the case `policy` says.
    """
    rows = report["rows"]
    suite = ElementTree.Element("testsuite", name="draftproof check", tests=str(len(rows) + 1))
    policy = _case(suite, "policy")
    if report["exit_code"] == 1:
        _add(policy, "failure", _words(report["verdict"], report["policy"]["broken"]))
    elif report["exit_code"] == 3:
        _add(policy, "error", _words(report["verdict"], report["verdict"]["missing"]))
    for row in rows:
        case, verdict = _case(suite, f"row {row['index']}"), row["verdict"]
        if verdict is not None and verdict["cause"] in FAILURE:
            _add(case, "failure", _words(verdict, []))
        elif verdict is not None and verdict["cause"] == "undecided":
            _add(case, "error", _words(verdict, verdict["missing"]))
    for kind in ("failure", "error"):
        suite.set(f"{kind}s", str(len(suite.findall(f"./testcase/{kind}"))))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="draftproof.check", name=name)


def _add(case: ElementTree.Element, kind: str, text: str) -> None:
    element = ElementTree.SubElement(case, kind, message=text.splitlines()[0])
    element.text = text


def _words(verdict: dict[str, Any], more: list[str]) -> str:
    kind = f" ({verdict['kind']})" if verdict["kind"] else ""
    return "\n".join([f"{verdict['cause']}{kind}: {verdict['rule']}", *verdict["reasons"], *more])
