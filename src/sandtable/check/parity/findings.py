"""The findings of `parity`: differences with the same cause are one finding, with a line of evidence per parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from sandtable.check.parity.causes import Cause, CauseKind, find_cause, ratio_cause
from sandtable.check.parity.differences import Difference, Measured, compare_changes, compare_gradients
from sandtable.check.parity.draws import shared_draws
from sandtable.check.parity.losses import compare_losses, losses_agree
from sandtable.check.parity.weights import stream_weights
from sandtable.errors import ParityError
from sandtable.findings import Evidence, Finding, Severity

__all__ = ["RULE", "parity_findings"]

RULE = "parity"

_SAME_WEIGHT = 0.01


def parity_findings(measured: Measured) -> tuple[Finding, ...]:
    """Return what differs between the ranks and a single process."""
    _require_equal_starts(measured)
    differences = compare_gradients(measured)
    weights = stream_weights(measured, differences[0].update) if differences and len(measured.replicas) > 1 else None
    tolerance = max(_SAME_WEIGHT, 2 * measured.rtol)
    if weights is not None and max(weights) - min(weights) <= tolerance * max(map(abs, weights)):
        weights = None
    if weights is not None and abs(sum(weights) - 1) <= tolerance:
        return (_weighted(weights, differences), *shared_draws(measured))
    if weights is not None and all(find_cause(one, measured).kind is CauseKind.OTHER for one in differences):
        return (_finding(ratio_cause(sum(weights), measured), differences, (), measured), *shared_draws(measured))
    findings = list(_gradients(differences, measured))
    if not findings:
        findings += _changes(measured)
        findings += _losses(measured, is_known=True)
    return (*findings, *shared_draws(measured))


def _weighted(weights: Sequence[float], differences: Sequence[Difference]) -> Finding:
    shares = ", ".join(f"{weight:.3f}" for weight in weights[:8]) + (", ..." if len(weights) > 8 else "")
    return Finding(
        rule=RULE,
        severity=Severity.NOTE,
        message=f"gradients are a mean over the data-parallel ranks with weights of {shares} (step "
        f"{differences[0].update + 1}), as a mean over unequal numbers of tokens is",
        ranks=_ranks(differences),
        remedy="if the loss is a mean over each rank's samples, all weights should be equal",
    )


def _gradients(differences: Sequence[Difference], measured: Measured) -> Iterator[Finding]:
    by_cause: dict[Cause, list[Difference]] = defaultdict(list)
    for difference in differences:
        by_cause[find_cause(difference, measured)].append(difference)
    causes = sorted(by_cause, key=lambda cause: (cause.kind, -len(by_cause[cause])))
    is_mixed = any(cause.kind is CauseKind.OTHER for cause in causes)
    # (A factor that no group explains comes with clipping by hand, from the norm of those that differ otherwise.)
    follows = {cause for cause in causes if is_mixed and cause.kind is CauseKind.RATIO and not cause.is_explained}
    causes.sort(key=lambda cause: cause in follows)
    telling = [cause for cause in causes if cause.kind is not CauseKind.OTHER and cause not in follows]
    rest = [difference for cause in causes if cause not in telling for difference in by_cause[cause]]
    if follows and not telling:
        telling = [cause for cause in causes if cause not in follows]
        rest = [difference for cause in follows for difference in by_cause[cause]]
    for number, cause in enumerate(telling or causes):
        alike = by_cause[cause]
        found = alike[0].likeness
        if cause.kind is CauseKind.RATIO and found is not None:
            cause = ratio_cause(found.ratio, measured, alike)
        yield _finding(cause, alike, rest if telling and number == 0 else (), measured)


def _finding(
    cause: Cause, differences: Sequence[Difference], rest: Sequence[Difference], measured: Measured
) -> Finding:
    names = list(dict.fromkeys(difference.name for difference in differences))
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    guess = f": {cause.guess}" if cause.guess else ""
    evidence = [_evidence(name, [one for one in differences if one.name == name], measured) for name in names]
    others = list(dict.fromkeys(one.name for one in rest))
    if others:
        shown = ", ".join(others[:4]) + (", ..." if len(others) > 4 else "")
        evidence.insert(
            1, Evidence(ranks=_ranks(rest), text=f"also have other gradients of {shown} ({len(others)} in all)")
        )
    evidence += [Evidence(ranks=finding.ranks, text=finding.message) for finding in _losses(measured, is_known=False)]
    masks = measured.plan.unmatched_masks
    agrees = losses_agree(measured.parallel, measured.replicas, measured.rtol)
    is_another_model = cause.kind is CauseKind.OTHER and not agrees  # which may be meant
    evidence += [
        Evidence(ranks=_ranks(differences), text="draw masks that a single process does not", file=file, line=line)
        for file, line in masks
    ]
    return Finding(
        rule=RULE,
        severity=Severity.WARNING if masks or is_another_model else Severity.ERROR,
        message=f"gradient of `{names[0]}`{more} {cause.what}{guess}",
        ranks=_ranks(differences),
        evidence=tuple(evidence),
        remedy="switch dropout off with --shrink to be sure" if masks else cause.remedy,
    )


def _evidence(name: str, differences: Sequence[Difference], measured: Measured) -> Evidence:
    first = differences[0]
    file, line = measured.parallel[first.rank].places.get("step", ("", 0))
    ratio = "" if first.likeness is None else f"{first.likeness.ratio:.4g} times, "
    rest = (
        "" if first.likeness is None else f", apart by {first.likeness.rest:.1%}" if first.likeness.rest > 1e-3 else ""
    )
    text = (
        f"step with a gradient of `{name}` of norm {first.norm:.4g}, expected {first.expected_norm:.4g} "
        f"({ratio}in step {first.update + 1}{rest})"
    )
    return Evidence(ranks=_ranks(differences), text=text, file=file, line=line)


def _require_equal_starts(measured: Measured) -> None:
    """Raise an error if ranks that hold the same parameter begin with different values: no single process has both."""
    for name in measured.plan.layout.shapes:
        firsts: dict[object, int] = {}
        for rank, own, slot in measured.plan.layout.holders(name):
            first = firsts.setdefault((slot.start, slot.offset, slot.positions), rank)
            one = measured.parallel[first].values.get((0, _own_name(measured, first, name)))
            other = measured.parallel[rank].values.get((0, own))
            if one is not None and other is not None and one.shape == other.shape and not np.array_equal(one, other):
                raise ParityError(
                    f"ranks that hold the same parameter must begin with the same values, but those of `{name}` differ "
                    f"on ranks {first} and {rank}; initialise replicas with one seed or broadcast them; experts that "
                    "each rank names alike cannot be compared"
                )


def _own_name(measured: Measured, rank: int, name: str) -> str:
    return next(own for own, slot in measured.plan.layout.slots[rank].items() if slot.name == name)


def _changes(measured: Measured) -> Iterator[Finding]:
    """Yield a finding if equal gradients change parameters differently: another learning rate, or a lost update."""
    differences = list(compare_changes(measured))
    if not differences:
        return
    ratios = [one.likeness.ratio for one in differences if one.likeness is not None]
    is_scaled = max(one.likeness.rest for one in differences if one.likeness is not None) < 0.05
    is_one_ratio = is_scaled and max(ratios) - min(ratios) < 0.05 * abs(max(ratios))
    names = list(dict.fromkeys(one.name for one in differences))
    guess = "does the script scale its learning rate with the number of ranks?" if is_one_ratio else ""
    yield Finding(
        rule=RULE,
        severity=Severity.NOTE if is_one_ratio else Severity.WARNING,
        message=f"`{names[0]}` (and {len(names) - 1} more) change {ratios[0]:.3g} times as much in step "
        f"{differences[0].update + 1} as in a single process with the same gradients{': ' if guess else ''}{guess}",
        ranks=_ranks(differences),
        evidence=tuple(_change_evidence(name, [one for one in differences if one.name == name]) for name in names),
        remedy="if it is not meant, use the single process's learning rate, and update every rank's copy",
    )


def _change_evidence(name: str, differences: Sequence[Difference]) -> Evidence:
    first = differences[0]
    text = f"change `{name}` by {first.norm:.4g}, expected {first.expected_norm:.4g}, in step {first.update + 1}"
    return Evidence(ranks=_ranks(differences), text=text)


def _losses(measured: Measured, *, is_known: bool) -> Iterator[Finding]:
    """Yield a finding if the loss of the first step differs."""
    found = compare_losses(measured.parallel, measured.replicas)
    if found is None or losses_agree(measured.parallel, measured.replicas, measured.rtol):
        return
    loss, expected = found
    yield Finding(
        rule=RULE,
        severity=Severity.NOTE,
        message=f"the loss of the first step is {loss:.6g} on the ranks, and {expected:.6g} in a single process"
        + ("; gradients agree" if is_known else ""),
        ranks=tuple(values.rank for values in measured.parallel),
        remedy="a loss that is only scaled, to make gradients right, needs no change",
    )


def _ranks(differences: Sequence[Difference]) -> tuple[int, ...]:
    return tuple(sorted({difference.rank for difference in differences}))
