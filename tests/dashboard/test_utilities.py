"""Every class that the dashboard names is there: nothing makes one up in the browser."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import stepwell.dashboard

ROOT = Path(stepwell.dashboard.__file__).parent
QUASARS = {"bg-transparent", "flex", "justify-end", "no-wrap", "overflow-auto", "text-negative"}
"""Those of Quasar that are relied on, as NiceGUI has them; others may be added here, if they do something."""
FOREIGN = ("sw-", "nicegui-")
"""Beginnings of the names of our own classes, which stand beside what they dress, and of NiceGUI's."""


def test_every_utility_class_is_in_the_stylesheet_and_every_class_of_it_is_used() -> None:
    used = {name: place for place, name in _named() if not name.startswith(FOREIGN) and name not in QUASARS}
    sheet = re.sub(r"/\*.*?\*/", "", (ROOT / "utilities.css").read_text(), flags=re.DOTALL)
    defined = {name.replace("\\", "") for name in re.findall(r"\.([a-z](?:[\w-]|\\.)*)", sheet)}
    missing = {name: place for name, place in used.items() if name not in defined}
    assert missing == {}, "no such class: add them to utilities.css, or to QUASARS here if they are Quasar's"
    assert defined - used.keys() == set(), "in utilities.css, and not used by any page"


def _named() -> Iterator[tuple[str, str]]:
    """(place, class) for all that are given to `classes`, and for those in markup and properties."""
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        module = importlib.import_module(f"stepwell.dashboard.{name}".rstrip("."))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "classes":
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                for given in [*node.args, *(one.value for one in node.keywords)]:
                    yield from ((place, word) for word in _text(given, module, place).split())
    for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.js")]:
        for text in re.findall(r'class="([^"]*)"', path.read_text()):
            yield from ((path.name, word) for word in text.split())


def _text(given: ast.expr, module: ModuleType, place: str) -> str:
    """Words that an expression may have; of a choice, those of both."""
    match given:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if hasattr(module, name):
            return str(getattr(module, name))
        case ast.IfExp(body=body, orelse=other):
            return f"{_text(body, module, place)} {_text(other, module, place)}"
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, module, place) for part in parts)
        case ast.FormattedValue(value=value):
            return _text(value, module, place)
    raise AssertionError(f"{place}: write the classes out, so that they can be found: {ast.unparse(given)}")
