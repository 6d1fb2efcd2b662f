"""WHAT IS WRONG: `inspect(trace, timeline)` returns the findings of a captured run.

One rule per file. A rule is a function that reads the trace and, where there is one, the timeline, and yields a
`Finding` for each place where the script breaks it. What only the capture or the engine can see (ranks that do not
meet, a run that stalls, a script that raises) is found there, and reaches the user in the same form. Each rule has a
page, `pages/<rule>.md`, that `explain` returns.
"""

from sandtable.check.inspect import ABOUT_FIGURES, RULES, Rule, inspect
from sandtable.check.rule_pages import RulePage, explain, require_rule, rule_pages
from sandtable.check.silencing import silence

__all__ = [
    "ABOUT_FIGURES",
    "RULES",
    "Rule",
    "RulePage",
    "explain",
    "inspect",
    "require_rule",
    "rule_pages",
    "silence",
]
