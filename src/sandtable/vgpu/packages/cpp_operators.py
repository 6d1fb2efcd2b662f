"""Operators that C++ sources register with torch (`TORCH_LIBRARY`), read from the text without compiling it.

An operator is declared by its schema, or by a C++ function from whose types torch makes one:

    TORCH_LIBRARY(my_extension, m) {
      m.def("scale(Tensor x, float factor) -> Tensor");
      m.def("shift", &shift);
    }
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["declared_operators"]

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*", re.DOTALL | re.MULTILINE)
_LIBRARY = re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT)?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)\s*\{")
_LITERALS = re.compile(rf'\s*(?:\w+\s*\(\s*)?((?:R"\(.*?\)"|{_STRING}|\s)+)', re.DOTALL)
_LITERAL = re.compile(rf'R"\((.*?)\)"|({_STRING})', re.DOTALL)
_QUALIFIER = re.compile(r"\b(?:torch|at|c10|std)\s*::|\bconst\b|\bstatic\b|\binline\b|[&\s]")
_TYPES = {
    "void": "()",
    "Tensor": "Tensor",
    "bool": "bool",
    "int64_t": "int",
    "double": "float",
    "string": "str",
    "string_view": "str",
    "Scalar": "Scalar",
    "ScalarType": "ScalarType",
    "TensorList": "Tensor[]",
    "IntArrayRef": "int[]",
}


def declared_operators(text: str, *, extension: str) -> Iterator[tuple[str, str]]:
    """Yield the namespace and the schema of each operator; `extension` is what `TORCH_EXTENSION_NAME` stands for.

    A declaration whose C++ function is not in the text, or has a type that is not torch's, is left out.
    """
    text = _COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    for library in _LIBRARY.finditer(text):
        namespace, variable = library.groups()
        body = text[library.end() : _end(text, library.end(), "{}")]
        for definition in re.finditer(rf"\b{variable}\s*\.\s*def\s*\(", body):
            arguments = body[definition.end() : _end(body, definition.end(), "()")]
            schema = _schema(arguments, text)
            if schema is not None:
                yield (extension if namespace == "TORCH_EXTENSION_NAME" else namespace), schema


def _end(text: str, start: int, pair: str) -> int:
    """Return where what was opened before `start` is closed."""
    depth = 1
    for match in re.finditer(rf"{_STRING}|[{re.escape(pair)}]", text[start:]):
        depth += {pair[0]: 1, pair[1]: -1}.get(match[0], 0)
        if depth == 0:
            return start + match.start()
    return len(text)


def _schema(arguments: str, text: str) -> str | None:
    literals = _LITERALS.match(arguments)
    if literals is None:
        return None
    declared = "".join(raw or quoted[1:-1] for raw, quoted in _LITERAL.findall(literals[1]))
    if "(" in declared:
        return declared
    function = re.search(r"(\w+)\s*\)?\s*$", arguments[literals.end() :])
    return None if function is None else _schema_of(declared, function[1], text)


def _schema_of(name: str, function: str, text: str) -> str | None:
    """Return the schema that torch makes of a C++ function's types."""
    for match in re.finditer(rf"([\w:<>,&\s]+?)[\s&]{function}\s*\(([^;{{}}()]*)\)\s*[{{;]", text):
        returned = _type(match[1])
        parameters = [_parameter(parameter) for parameter in _split(match[2])]
        if returned is not None and None not in parameters:
            return f"{name}({', '.join(map(str, parameters))}) -> {returned}"
    return None


def _parameter(parameter: str) -> str | None:
    match = re.fullmatch(r"\s*(.*?[\s&>])(\w+)\s*(?:=.*)?", parameter, re.DOTALL)
    kind = None if match is None else _type(match[1])
    return None if match is None or kind is None else f"{kind} {match[2]}"


def _type(cpp: str) -> str | None:
    plain = _QUALIFIER.sub("", cpp)
    template = re.fullmatch(r"(optional|vector|ArrayRef|List|tuple)<(.+)>", plain)
    if template is None:
        return _TYPES.get(plain)
    inner = [_type(part) for part in _split(template[2])]
    if None in inner:
        return None
    if template[1] == "tuple":
        return f"({', '.join(map(str, inner))})"
    return f"{inner[0]}{'?' if template[1] == 'optional' else '[]'}"


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside `<>`."""
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]
