"""Activities and workflows by name, and the definitions runs are enqueued with."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar, overload

from processing.context import Context, Item

Result = Mapping[str, Any] | None
ActivityFunction = Callable[[Item, Context], Awaitable[Result]] | Callable[[Item, Context], Result]
F = TypeVar("F", bound=Callable[..., Any])

ENTRY_POINTS = "sluice.activities"
IN_VERDICT_KEY = frozenset({"content", "extension", "declared_type"})


class ConfigurationError(ValueError):
    """Names that do not fit together: an unknown activity, a workflow defined twice."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A function from an item to JSON, idempotent by contract.

    optional: when its attempts are used up the run goes on, degraded. eager: its result is in the journal before the
    next step begins (anything expensive or with outside effects); a lazy one, and an eager one that found nothing to do
    (``ctx.untouched``), rides with the next write. attempts: how
    often it is tried. idle: seconds without a sign of life after which an attempt is cancelled (None: the engine's).
    dependency: the breaker that guards it; learnt from the first DependencyDown when not said. code: what a run fails
    with (or a result degrades with) when attempts are used up. looks_at: what of a version decides its result, so that
    verdicts may be reused; None: unknown, so they may not.
    """

    name: str
    function: ActivityFunction
    optional: bool = False
    eager: bool = True
    attempts: int = 3
    idle: float | None = None
    dependency: str | None = None
    code: str = "internal"
    looks_at: frozenset[str] | None = None
    threaded: bool = False


def activity(
    name: str,
    *,
    optional: bool = False,
    eager: bool = True,
    attempts: int = 3,
    idle: float | None = None,
    dependency: str | None = None,
    code: str = "internal",
    looks_at: Iterable[str] | None = None,
) -> Callable[[F], F]:
    """Mark a function as an activity; it stays a plain function that a test can call."""

    def mark(function: F) -> F:
        function.__activity__ = Activity(  # type: ignore[attr-defined]
            name=name,
            function=function,
            optional=optional,
            eager=eager,
            attempts=attempts,
            idle=idle,
            dependency=dependency,
            code=code,
            looks_at=None if looks_at is None else frozenset(looks_at),
            threaded=not inspect.iscoroutinefunction(function),
        )
        return function

    return mark


def activity_of(function: Callable[..., Any]) -> Activity:
    """The Activity that ``activity`` attached to a function."""
    found = getattr(function, "__activity__", None)
    if not isinstance(found, Activity):
        raise ConfigurationError(f"{function!r} is not an activity")
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """A place in a workflow. None means: as the activity says."""

    activity: str
    required: bool | None = None
    lazy: bool | None = None
    attempts: int | None = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """An ordered list of steps.

    slots: at most so many runs of it in progress per tenant, in a lane of its own; None: the tenant's common lane.
    finalize: the step the engine appends when the workflow decides what becomes of its subject (a verdict); runs of
    other workflows end without one.
    """

    name: str
    steps: tuple[Step, ...]
    slots: int | None = None
    finalize: str | None = None

    @property
    def lane(self) -> str:
        return "" if self.slots is None else self.name


@dataclass(frozen=True, slots=True)
class Definition:
    """What a run is enqueued with: resolved steps and a fingerprint over them. pipeline "" is the workflow itself."""

    workflow: str
    pipeline: str
    steps: tuple[Step, ...]
    lane: str = ""
    finalize: str | None = None
    gated: bool = False  # the verdict follows the last required step
    policy: str = ""  # what else went into the fingerprint
    fingerprint: str = field(default="", compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(step.activity for step in self.steps)

    def dump(self) -> str:
        """The JSON that is stored under the fingerprint and hashed into it."""
        return json.dumps(
            {
                "workflow": self.workflow,
                "pipeline": self.pipeline,
                "steps": [[s.activity, bool(s.required), bool(s.lazy), s.attempts] for s in self.steps],
                "lane": self.lane,
                "finalize": self.finalize,
                "gated": self.gated,
                "policy": self.policy,
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    @staticmethod
    def load(text: str, fingerprint: str) -> Definition:
        """The inverse of dump."""
        data = json.loads(text)
        steps = tuple(Step(name, required, lazy, attempts) for name, required, lazy, attempts in data["steps"])
        return Definition(
            data["workflow"],
            data["pipeline"],
            steps,
            data["lane"],
            data["finalize"],
            data["gated"],
            data["policy"],
            fingerprint,
        )

    def sealed(self) -> Definition:
        return replace(self, fingerprint=hashlib.sha256(self.dump().encode()).hexdigest()[:32])


class Registry:
    """Every activity, workflow and pipeline this process knows."""

    def __init__(self) -> None:
        self.activities: dict[str, Activity] = {}
        self.workflows: dict[str, Workflow] = {}
        self._definitions: dict[tuple[str, str], Definition] = {}

    @classmethod
    def load(cls, modules: Sequence[str | ModuleType] = (), discover: bool = True) -> Registry:
        """Everything that the modules define (``@activity`` functions, Workflow values), and the installed entry
        points of the group ``sluice.activities``. Raises ConfigurationError, ImportError."""
        registry = cls()
        for module in modules:
            registry.add_module(importlib.import_module(module) if isinstance(module, str) else module)
        if discover:
            for point in entry_points(group=ENTRY_POINTS):
                registry.add(point.load())
        registry.check()
        return registry

    def add_module(self, module: ModuleType) -> None:
        for value in vars(module).values():
            if isinstance(value, Workflow) or isinstance(getattr(value, "__activity__", None), Activity):
                self.add(value)

    def add(self, thing: object) -> None:
        """An activity function, an Activity, a Workflow, or a module of them."""
        if isinstance(thing, ModuleType):
            self.add_module(thing)
        elif isinstance(thing, Workflow):
            self._put(self.workflows, thing.name, thing)
        elif isinstance(thing, Activity):
            self._put(self.activities, thing.name, thing)
        elif callable(thing):
            self.add(activity_of(thing))
        else:
            raise ConfigurationError(f"{thing!r} is neither an activity nor a workflow")

    @staticmethod
    @overload
    def _put(table: dict[str, Activity], name: str, thing: Activity) -> None: ...
    @staticmethod
    @overload
    def _put(table: dict[str, Workflow], name: str, thing: Workflow) -> None: ...
    @staticmethod
    def _put(table: dict[str, Any], name: str, thing: Any) -> None:
        if table.setdefault(name, thing) != thing:
            raise ConfigurationError(f"{name} is defined twice")

    def check(self) -> None:
        """Raise ConfigurationError when a workflow names an activity that nobody defined, or one twice."""
        for workflow in self.workflows.values():
            names = [step.activity for step in workflow.steps]
            if missing := sorted(set(names) - self.activities.keys()):
                raise ConfigurationError(f"workflow {workflow.name} names unknown activities: {', '.join(missing)}")
            if len(set(names)) != len(names) or workflow.finalize in names:
                raise ConfigurationError(f"workflow {workflow.name} names a step twice")

    def define(
        self, workflow: str, pipeline: str, steps: Sequence[Step], *, gated: bool = False, policy: str = ""
    ) -> Definition:
        """Register a pipeline: its own steps for a workflow. Raises ConfigurationError."""
        base = self.workflows.get(workflow)
        if base is None:
            raise ConfigurationError(f"unknown workflow {workflow}")
        resolved = tuple(self.resolve(step) for step in steps)
        definition = Definition(
            workflow, pipeline, resolved, base.lane, base.finalize, gated and base.finalize is not None, policy
        ).sealed()
        self._definitions[workflow, pipeline] = definition
        return definition

    def resolve(self, step: Step) -> Step:
        """The step with everything said that the activity leaves open. Raises ConfigurationError."""
        found = self.activities.get(step.activity)
        if found is None:
            raise ConfigurationError(f"unknown activity {step.activity}")
        return Step(
            step.activity,
            not found.optional if step.required is None else step.required,
            not found.eager if step.lazy is None else step.lazy,
            found.attempts if step.attempts is None else step.attempts,
        )

    def definition(self, workflow: str, pipeline: str = "") -> Definition:
        """What a run of this workflow is enqueued with now. Raises ConfigurationError when it is unknown."""
        found = self._definitions.get((workflow, pipeline))
        if found is None:
            if pipeline:
                raise ConfigurationError(f"unknown pipeline {pipeline} of {workflow}")
            known = self.workflows.get(workflow)
            if known is None:
                raise ConfigurationError(f"unknown workflow {workflow}")
            found = self.define(workflow, "", known.steps)
        return found

    def lends(self, definition: Definition) -> bool:
        """Whether its verdicts may be lent: every activity says what it looks at, and the verdict key covers that."""
        seen = [self.activities[name].looks_at for name in definition.names if name in self.activities]
        return all(each is not None and each <= IN_VERDICT_KEY for each in seen)

    def definitions(self) -> list[Definition]:
        """Every definition made so far."""
        return list(self._definitions.values())

    def caps(self) -> dict[str, int]:
        """Lanes with a cap of their own."""
        return {w.lane: w.slots for w in self.workflows.values() if w.slots is not None}


def planned(stored: Definition, current: Definition | None, newer: bool, done: Iterable[str]) -> tuple[Step, ...]:
    """The steps of a run: those it was enqueued with, and those added since whose place it has not passed.

    newer says that current was defined after stored; done are the steps the run has completed. An added step's place
    is before the stored steps that follow it in current; it is passed when one of those is done.
    """
    if current is None or not newer or current.fingerprint == stored.fingerprint:
        return stored.steps
    steps = list(stored.steps)
    known = set(stored.names)
    completed = set(done)
    order = current.names
    for position, step in enumerate(current.steps):
        if step.activity in known:
            continue
        after = [name for name in order[position + 1 :] if name in known]
        if completed.intersection(after):
            continue
        names = [s.activity for s in steps]
        place = names.index(after[0]) if after else len(steps)
        if not after and completed.issuperset(names) and names:
            continue
        steps.insert(place, step)
        known.add(step.activity)
    return tuple(steps)
