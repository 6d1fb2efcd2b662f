"""Imports form a shallow graph without cycles: a reader can follow any thought down to the bottom."""

from itertools import pairwise

from tests.structure.source import imports, listed, modules

MAX_CHAIN = 25


def test_there_are_no_import_cycles() -> None:
    problems = [_show(cycle) for cycle in _cycles()]
    assert not problems, listed(problems, "move what both sides need into a module below them")


def test_no_import_chain_is_too_long() -> None:
    assert not _cycles(), "import cycles come first"
    known: dict[str, list[str]] = {}
    chain = max((_longest_chain(name, known) for name in imports()), key=len)
    remedy = (
        f"at most {MAX_CHAIN} modules, but these are {len(chain)}; merge small modules or make siblings independent"
    )
    assert len(chain) <= MAX_CHAIN, listed([_show(chain)], remedy)


def _longest_chain(name: str, known: dict[str, list[str]]) -> list[str]:
    if name not in known:
        below = (_longest_chain(target, known) for target in imports()[name])
        known[name] = [name, *max(below, key=len, default=[])]
    return known[name]


def _cycles() -> list[list[str]]:
    """Return one cycle for each strongly connected component of several modules (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in imports()[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            start = stack.index(name)
            components.append(set(stack[start:]))
            del stack[start:]

    for name in imports():
        if name not in index:
            visit(name)
    return [_walk_around(component) for component in components if len(component) > 1]


def _walk_around(component: set[str]) -> list[str]:
    walked = [min(component)]
    while walked[-1] not in walked[:-1]:
        walked.append(min(target for target in imports()[walked[-1]] if target in component))
    return walked[walked.index(walked[-1]) :]


def _show(chain: list[str]) -> str:
    lines = [f"{modules()[name].at(imports()[name][target])} imports {target}" for name, target in pairwise(chain)]
    return "\n".join([f"{' > '.join(chain)}:", *lines])
