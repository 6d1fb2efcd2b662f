"""Rule pages: of each rule, what happens on a real cluster, the smallest script that shows it, and the fix."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from sandtable.errors import LaunchError

__all__ = ["RulePage", "explain", "require_rule", "rule_pages"]

_SUFFIX = ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePage:
    """The page of a rule, as Markdown; `sentence` is its first sentence."""

    rule: str
    sentence: str
    text: str


@cache
def rule_pages() -> dict[str, RulePage]:
    """Return the pages of all rules, by name."""
    folder = files("sandtable.check").joinpath("pages")
    pages = sorted(page.name for page in folder.iterdir() if page.name.endswith(_SUFFIX))
    return {
        name.removesuffix(_SUFFIX): _read(name.removesuffix(_SUFFIX), folder.joinpath(name).read_text(encoding="utf-8"))
        for name in pages
    }


def explain(rule: str) -> RulePage:
    """Return the page of a rule. Raises LaunchError if there is no such rule."""
    require_rule(rule)
    return rule_pages()[rule]


def require_rule(rule: str) -> None:
    """Raise LaunchError if there is no such rule."""
    known = rule_pages()
    if rule not in known:
        near = difflib.get_close_matches(rule, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`sandtable check --rules` lists all"
        raise LaunchError(f"a rule must be one of the {len(known)} that there are, but got '{rule}'; {hint}")


def _read(rule: str, text: str) -> RulePage:
    """Read a page: its title is the rule, and the paragraph below begins with the sentence."""
    paragraph = text.split("\n\n")[1].replace("\n", " ").strip()
    return RulePage(rule=rule, sentence=paragraph, text=text)
