"""The search: rehearse the configurations of a space, and rank them.

    result = plan("train.py", "--tp", "{tp}", "--micro-batch", "{mb}", cluster="dgx-h100", nodes=2,
                  space={"tp": [1, 2, 4, 8], "mb": [1, 2, 4]}, where=["tp * mb <= 16"])
    result.best.figures.step_seconds, result.best.command

Each configuration is a command, and each command is rehearsed: what the script refuses, what does not fit and what
deadlocks is rejected with the script's own reason. Outcomes are kept as they come, so an interrupted search goes on
where it stopped, and one with more values rehearses only what is new.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sandtable import cluster as clusters
from sandtable.errors import LaunchError, PlanError
from sandtable.events import Event, Listener, Noticed, ignore
from sandtable.launch import is_launch_command
from sandtable.planner.command_template import CommandTemplate, FileSetting
from sandtable.planner.expression import Expression, Value
from sandtable.planner.objectives import Objective, parse_objective
from sandtable.planner.ranking import Plan
from sandtable.planner.search_space import CLUSTER_KNOBS, Configuration, Knob, SearchSpace
from sandtable.planner.trial import Outcome, Trial, TrialState
from sandtable.planner.trial_store import TrialStore
from sandtable.planner.workers import TrialTask, Workers
from sandtable.rehearsal.script import LaunchOptions, make_job, resolve_command
from sandtable.rehearsal.store import CaptureStore
from sandtable.report.summary import UserInputs
from sandtable.version import __version__

__all__ = ["SearchOptions", "SearchStarted", "TrialEnded", "plan"]

STORE = "plan.db"
BEST = "best"
_MUCH_MEMORY = 64.0
_MOST_NEEDS = 8
_FACTS = ("world", "nodes", "cluster", "gpus_per_node")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search, where the defaults do not fit.

    Args:
        objectives: what to minimise, the most important first: time, throughput, cost, memory, gpus.
        tokens_per_step: a number, or an expression over knobs.
        settings: keys of files that the command names: "ds.json:zero_optimization.stage={zero}".
        steps: optimizer steps to capture of each configuration.
        jobs: rehearsals at a time.
        max_trials: configurations to rehearse at most; where there are more, Optuna proposes which.
        max_memory: the share of a card that may be reserved.
        seed: of the proposals.
        out: directory of the store that makes a search resumable, of the report, and of files with settings.
        listen: receives SearchStarted and TrialEnded.
    """

    objectives: tuple[str, ...] = ("time",)
    tokens_per_step: str | int = ""
    settings: tuple[str, ...] = ()
    steps: int = 2
    jobs: int = 1
    max_trials: int = 200
    max_memory: float = 1.0
    seed: int = 0
    out: str | Path = "sandtable-plan"
    listen: Listener = ignore

    def __post_init__(self) -> None:
        for name in ("steps", "jobs", "max_trials"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, but got {getattr(self, name)}; leave it out if unsure")
        if not 0 < self.max_memory <= 1:
            raise PlanError(f"max_memory must be a share of the card above 0, but got {self.max_memory}; try 0.95")
        if not self.objectives:
            raise PlanError("a search needs an objective, but got none; give one, such as time")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStarted(Event):
    """A search begins: so many configurations meet the conditions, and so many will be tried."""

    num_configurations: int
    num_trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded(Event):
    """A configuration has its outcome; `is_known` if an earlier search found it."""

    trial: Trial
    is_known: bool
    best: Trial | None


def plan(
    *words: str,
    space: Mapping[str, Sequence[Value]] | SearchSpace,
    where: Sequence[str] = (),
    cluster: str | Path = "dgx-a100",
    nodes: int | None = None,
    inputs: UserInputs | None = None,
    options: LaunchOptions | None = None,
    search: SearchOptions | None = None,
) -> Plan:
    """Search the launch parameters of an unmodified script, and return all configurations, ranked.

    `words` are a script and its arguments, or a launch command, with knobs in braces: "--tp", "{tp}". `space` has the
    values of each knob; the knobs `nodes` and `cluster` are sandtable's own, and take the place of the arguments of the
    same name. `where` are conditions over knobs and the facts `world`, `nodes` and `gpus_per_node`, such as
    "tp * pp <= world". All else is as for `rehearse`.
    """
    if not isinstance(space, SearchSpace):
        knobs = tuple(Knob(name, tuple(values)) for name, values in space.items())
        space = SearchSpace(knobs=knobs, conditions=tuple(where))
    search = search or SearchOptions()
    task = _Search(
        template=CommandTemplate(words, tuple(map(FileSetting.parse, search.settings))),
        space=space,
        cluster=str(cluster),
        nodes=nodes,
        inputs=inputs or UserInputs(),
        launch=options or LaunchOptions(),
        options=search,
    )
    task.require_possible()
    return task.run()


@dataclass(frozen=True, kw_only=True)
class _Search:
    """A search, with all that it was given."""

    template: CommandTemplate
    space: SearchSpace
    cluster: str
    nodes: int | None
    inputs: UserInputs
    launch: LaunchOptions
    options: SearchOptions

    def require_possible(self) -> None:
        """Reject what cannot be searched, before anything starts."""
        if not self.template.words:
            raise PlanError("a search needs a script or a launch command; give one behind the options")
        _ = self.objectives, self.tokens
        knobs = {knob.name for knob in self.space.knobs}
        used = self.template.names | set(CLUSTER_KNOBS)
        unused = sorted(knobs - used)
        if unused:
            raise PlanError(
                f"each knob must be used in the command, but {', '.join(unused)} is not; write {{{unused[0]}}} where "
                "its value belongs"
            )
        unknown = sorted(self.template.names - knobs - set(_FACTS))
        if unknown:
            raise PlanError(
                f"names in braces must be knobs or one of {', '.join(_FACTS)}, but got {', '.join(unknown)}; give "
                f"values with --try {unknown[0]}=..., or write {{{{{unknown[0]}}}}} for the braces themselves"
            )

    def run(self) -> Plan:
        """Rehearse what the limits allow, rank it, and rehearse the best in full."""
        start = time.perf_counter()
        possible, excluded = self._split()
        store = TrialStore(self._out / STORE, self.space.knobs, seed=self.options.seed)
        trials: list[Trial] = []
        num_trials = min(len(possible), self.options.max_trials)
        self.options.listen(SearchStarted(num_configurations=len(possible), num_trials=num_trials))
        with Workers(self.options.jobs) as workers:
            for (configuration, key, task), outcome in workers.run(self._tasks(possible, store, num_trials, trials)):
                store.keep(key, configuration, outcome, self._value(outcome))
                self._add(trials, configuration, task, outcome, is_known=False)
            result = Plan(
                trials=tuple(trials),
                objectives=self.objectives,
                space=self.space,
                excluded=tuple(excluded),
                num_untried=len(possible) - len(trials),
                max_memory=self.options.max_memory,
            )
            result = self._confirmed(result, workers) if result.best else self._with_needs(result, workers)
        return replace(result, seconds=time.perf_counter() - start)

    def _confirmed(self, result: Plan, workers: Workers) -> Plan:
        """Rehearse the best configuration in full; if that finds an error, the next one is the best."""
        while result.best is not None:
            best = result.best
            self.options.listen(Noticed(text=f"rehearsing the best in full: {best.name}"))
            task = replace(self._task(_configuration(best)), checks=True, out=str(self._out / BEST))
            ((_, outcome),) = workers.run(iter([(best.name, task)]))
            if outcome.figures is not None:
                return replace(result, report=str(self._out / BEST))
            result = result.with_outcome(best, outcome)
        return result

    def _with_needs(self, result: Plan, workers: Workers) -> Plan:
        """Find out how much memory the configurations need, where none fits."""
        full = [trial for trial in result.too_large if trial.outcome.figures is None][:_MOST_NEEDS]
        if full:
            self.options.listen(Noticed(text="no configuration fits: finding out how much memory they need"))
        tasks = ((trial, replace(self._task(_configuration(trial)), memory_factor=_MUCH_MEMORY)) for trial in full)
        for trial, outcome in workers.run(tasks):
            if outcome.figures is not None:
                needed = outcome.figures.memory_bytes
                result = result.with_outcome(trial, replace(trial.outcome, needed_bytes=needed))
        return result

    def _split(self) -> tuple[list[Configuration], list[tuple[Configuration, str]]]:
        """Return the configurations that meet the conditions, and the others with the condition they do not meet."""
        possible, excluded = [], []
        for configuration in self.space.combinations():
            violated = self.space.violated(configuration, self._facts(configuration))
            if violated:
                excluded.append((configuration, violated))
            else:
                possible.append(configuration)
        if not possible:
            conditions = " and ".join(f"'{condition}'" for condition in self.space.conditions)
            raise PlanError(
                f"some configuration must meet all conditions, but none of {self.space.size} meets {conditions}; "
                "give more values or fewer conditions"
            )
        return possible, excluded

    def _tasks(
        self, possible: list[Configuration], store: TrialStore, num_trials: int, trials: list[Trial]
    ) -> Iterator[tuple[tuple[Configuration, str, TrialTask], TrialTask]]:
        """Yield what is to be rehearsed; what the store knows is added to `trials` at once."""
        waiting = dict.fromkeys(possible)
        is_exhaustive = len(possible) <= num_trials
        keyed = {}
        for configuration in possible:  # what is known is for nothing, also beyond the limit
            task = self._task(configuration)
            key = self._key(task)
            outcome = store.find(key) if isinstance(key, str) else key
            if outcome is not None:
                if isinstance(key, str):
                    store.keep(key, configuration, outcome, self._value(outcome))
                del waiting[configuration]
                self._add(trials, configuration, task, outcome, is_known=True)
            else:
                assert isinstance(key, str)
                keyed[configuration] = (key, task)
        while waiting and len(possible) - len(waiting) < num_trials:
            candidates = list(waiting)
            configuration = candidates[0] if is_exhaustive else store.propose(candidates)
            del waiting[configuration]
            key, task = keyed[configuration]
            yield (configuration, key, task), task

    def _add(
        self, trials: list[Trial], configuration: Configuration, task: TrialTask, outcome: Outcome, *, is_known: bool
    ) -> None:
        trial = Trial(values=configuration.to_dict(), command=self._launch_command(task), outcome=outcome)
        trials.append(trial)
        priced = [one for one in trials if self._is_possible(one.outcome)]
        best = min(priced, key=lambda one: self.objectives[0].require(one.figures), default=None)
        self.options.listen(TrialEnded(trial=trial, is_known=is_known, best=best))

    def _value(self, outcome: Outcome) -> float | None:
        if outcome.figures is None or not self._is_possible(outcome):
            return None
        return self.objectives[0].require(outcome.figures)

    def _is_possible(self, outcome: Outcome) -> bool:
        figures = outcome.figures
        return figures is not None and figures.memory_share <= self.options.max_memory

    def _task(self, configuration: Configuration) -> TrialTask:
        values = {**self._facts(configuration), **configuration.to_dict()}
        tokens = self.inputs.tokens_per_step if self.tokens is None else round(self.tokens.value(values))
        return TrialTask(
            words=self.template.fill(values, directory=self._out / "settings"),
            cluster=str(values["cluster"]),
            nodes=int(nodes) if isinstance(nodes := values.get("nodes"), int | float) else None,
            steps=self.options.steps,
            inputs=replace(self.inputs, tokens_per_step=tokens),
            launch=self.launch,
        )

    def _launch_command(self, task: TrialTask) -> tuple[str, ...]:
        """Return the command that starts a configuration on the cluster: a script is started by torchrun."""
        if task.is_command:
            return task.words
        nodes, gpus = task.nodes or 1, self.launch.ranks_per_node or self._gpus_per_node[task.cluster]
        module = ("-m",) if self.launch.is_module else ()
        return ("torchrun", f"--nnodes={nodes}", f"--nproc-per-node={gpus}", *module, *task.words)

    def _facts(self, configuration: Configuration) -> dict[str, Value]:
        """Return what conditions and words may use besides the knobs."""
        values = configuration.to_dict()
        cluster = str(values.get("cluster", self.cluster))
        facts: dict[str, Value] = {"cluster": cluster}
        gpus = self.launch.ranks_per_node or self._gpus_per_node[cluster]
        facts["gpus_per_node"] = gpus
        nodes = values.get("nodes", self.nodes)
        if nodes is None and not self._is_command:
            nodes = 1
        if nodes is not None:
            facts["nodes"], facts["world"] = nodes, int(nodes) * gpus
        return facts

    @cached_property
    def objectives(self) -> tuple[Objective, ...]:
        """What to minimise."""
        return tuple(map(parse_objective, self.options.objectives))

    @cached_property
    def tokens(self) -> Expression | None:
        """The tokens of a step."""
        text = str(self.options.tokens_per_step)
        return Expression(text) if text else None

    @property
    def _out(self) -> Path:
        return Path(self.options.out)

    @cached_property
    def _is_command(self) -> bool:
        return not self.launch.is_module and is_launch_command(self.template.words[0])

    @cached_property
    def _gpus_per_node(self) -> dict[str, int]:
        knobs = [knob for knob in self.space.knobs if knob.name == "cluster"]
        names = [str(value) for knob in knobs for value in knob.values] or [self.cluster]
        return {name: clusters.load(name).gpus_per_node for name in names}

    def _key(self, task: TrialTask) -> str | Outcome:
        """Return a digest of all that the outcome depends on, or the outcome of a command that cannot be started."""
        try:
            words, nodes, options = task.words, task.nodes or 1, task.launch
            script, args = words[0], words[1:]
            if self._is_command:
                resolved = resolve_command(words, cluster=task.cluster, nodes=task.nodes, options=options)
                script, args, nodes, options = resolved.script, resolved.script_args, resolved.nodes, resolved.options
            machines = clusters.load(task.cluster, nodes=nodes)
            job = make_job(script, args, machines, task.steps, replace(options, checks=False, few_ranks=0))
        except LaunchError as error:
            return Outcome(state=TrialState.REJECTED, reason=str(error))
        facts = (CaptureStore().path_of(job).stem, repr(machines), repr(task.inputs), __version__)
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]


def _configuration(trial: Trial) -> Configuration:
    return Configuration(tuple(trial.values.items()))
