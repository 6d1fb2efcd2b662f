"""One noun has one meaning, and it is the field's own word for the thing.

GLOSSARY is the list of words that never appear in an identifier, each with the term to use instead. A metaphor may open
a module's docstring; it never becomes a name.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.structure.source import MIRRORS, Module, listed, modules, words_of

GLOSSARY = {
    "asked": "user inputs, or requested",
    "asker": "caller or waiting rank",
    "askers": "callers or waiting ranks",
    "bailiff": "the role: launcher, watchdog, ...",
    "book": "table or registry",
    "clerk": "the role: recorder, coordinator, ...",
    "courier": "channel or connection",
    "herald": "listener",
    "keeper": "store",
    "ledger": "table or log",
    "midwife": "fork server",
    "nursery": "fork server",
    "porter": "transport or connection",
    "scribe": "recorder or writer",
    "shelf": "cache or store",
    "tell": "report, send or print",
    "tells": "report, send or print",
    "told": "settings, messages or state: what it holds",
    "untold": "unsent or unknown",
    "zygote": "fork server",
}
"""Forbidden words of identifiers, and the preferred term of each."""

FILE_KEYS = {("sandtable.report.summary", "asked")}
"""Modules and identifiers that are keys of a file format, and therefore keep their names."""

FORBIDDEN_MODULES = {"common", "helper", "helpers", "misc", "util", "utils"}


def test_no_public_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, module in modules().items():
        for node in module.tree.body if not name.startswith(MIRRORS) else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.at(node.lineno))
    problems = [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]
    assert not problems, listed(problems, "give all but one of them a more specific name, or make it private")


def test_identifiers_use_the_words_of_the_glossary() -> None:
    problems = [
        f"{module.at(line)} {identifier}: '{word}' -> {GLOSSARY[word]}"
        for module in modules().values()
        for identifier, line in _identifiers(module)
        for word in words_of(identifier)
        if word in GLOSSARY and (module.name, identifier) not in FILE_KEYS
    ]
    assert not problems, listed(sorted(set(problems)), "rename, using the preferred term of GLOSSARY in this file")


def test_modules_are_named_after_what_they_hold() -> None:
    problems = [module.at(1) for name, module in modules().items() if name.rpartition(".")[2] in FORBIDDEN_MODULES]
    assert not problems, listed(problems, "name the module after the one concept it holds")


def _identifiers(module: Module) -> Iterator[tuple[str, int]]:
    """Yield every name that the module gives to something, with its line; names it only uses are others'."""
    yield module.name.rpartition(".")[2], 1
    for node in module.nodes:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
