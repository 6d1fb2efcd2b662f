"""A diagnosis on a terminal: one line per component, a second one for a remedy, and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from sandtable.diagnosis import Component, Diagnosis

__all__ = ["print_diagnosis"]


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print what was found, what is missing with its remedy, and whether a rehearsal can run."""
    width = max(len(component.name) for component in diagnosis.components)
    for component in diagnosis.components:
        console.print(
            Text.assemble(_mark(component, diagnosis), f" {component.name:{width}}  {component.found}"), soft_wrap=True
        )
        if component.remedy:
            console.print(Text(f"  {'':{width}}  remedy: {component.remedy}", style="yellow"), soft_wrap=True)
    verdict = "a rehearsal can run here" if diagnosis.can_rehearse else "no rehearsal can run here yet"
    console.print(Text(verdict, style="bold green" if diagnosis.can_rehearse else "bold red"), soft_wrap=True)


def _mark(component: Component, diagnosis: Diagnosis) -> Text:
    """Return a tick, a cross for what keeps a rehearsal from running, or a dash for what it can do without."""
    if component.is_ok:
        return Text("✓", style="green")
    if component.is_optional or diagnosis.can_rehearse:
        return Text("–", style="yellow")
    return Text("✗", style="red")
