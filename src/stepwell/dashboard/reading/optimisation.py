"""The prefix tree of some steps, as training would merge them, and what that saves."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any, Final, get_args

import numpy as np

from stepwell.errors import NotFound
from stepwell.pool.base import Pool
from stepwell.prefix_tree.pack import MICRO_BATCH_TOKENS, Merging
from stepwell.prefix_tree.savings import Savings, savings, sharing
from stepwell.prefix_tree.tree import PrefixTree, merged
from stepwell.types import Group, Step, UpdateInfo

MOST_STEPS: Final = 20_000
"""Steps of a tree; groups after those that have so many are left out, and the page says so."""
NEWEST: Final = (1, 4, 16, 64, 256, 1024)
"""How many of the newest groups can be asked for."""
_PAGE: Final = 200
_PAGES: Final = 20
"""So many groups are looked through for those that are ready."""
MEASURED: Final = (
    *("trained_steps", "trained_tokens", "tree_tokens", "tree_ratio", "response_tokens"),
    *("seconds_tree", "seconds_learn", "prefix_cache_hit_rate"),
)
"""The metrics of an update that say what merging saved it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which steps: those of one group, those that an update was trained on, or those of the newest ready groups."""

    group: str = ""
    run: str = ""
    version: int | None = None
    """The update of `run` that made this version."""
    channel: str = ""
    """Of the newest groups; empty: all."""
    newest: int = 16

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Choice":
        """That of a deep link; what is wrong in it is left out."""
        version, newest = _whole(query.get("version", "")), _whole(query.get("newest", ""))
        run = query.get("run", "") if version is not None else ""
        return cls(
            group=query.get("group", ""),
            run=run,
            version=version if run else None,
            channel=query.get("channel", ""),
            newest=newest if newest in NEWEST else cls().newest,
        )

    @property
    def query(self) -> dict[str, object]:
        """As a deep link has it."""
        if self.group:
            return {"group": self.group}
        if self.run:
            return {"run": self.run, "version": self.version}
        return {"channel": self.channel, "newest": self.newest}


@dataclass(frozen=True, slots=True)
class Plan:
    """How an update packs its rows."""

    budget: int = MICRO_BATCH_TOKENS
    merging: Merging = "auto"

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> "Plan":
        """That of a run's recipe; a trainer's defaults where it says nothing that can be used."""
        learner = recipe.get("learner")
        told = learner if isinstance(learner, Mapping) else {}
        budget, wanted = told.get("micro_batch_tokens"), told.get("tree")
        merging: Merging = next((kind for kind in get_args(Merging) if kind == wanted), "auto")
        return cls(budget if isinstance(budget, int) and budget > 0 else MICRO_BATCH_TOKENS, merging)


@dataclass(frozen=True, slots=True)
class Row:
    """The step that a row of the tree is."""

    step_id: str
    trajectory_id: str
    index: int
    model: str
    prompt: int
    """Its tokens."""
    response: int


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """The prefix tree of the chosen steps."""

    groups: int
    trajectories: int
    cut: bool
    """Whether there were more steps than are read."""
    channel: str
    """Of the first group."""
    saved: Savings
    """What training computes, packed as it packs."""
    rows: tuple[Row, ...]
    tree: PrefixTree
    through: tuple[int, ...]
    """[S]: rows that go through each segment, or end in it."""
    families: Mapping[int, tuple[int, ...]]
    """By segment: those that go on from it, in pre-order; those that begin rows by -1."""
    reach: tuple[int, ...]
    """[S]: length of the longest row through each segment."""
    first: tuple[int, ...]
    """[S]: the first row through each segment."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Rows by their step's id."""
    forgotten: int = 0
    """Groups that an update had, and that are not in the pool any more."""

    def path(self, segment: int) -> list[int]:
        """The segments from the beginning of its rows to it."""
        path = [segment]
        while (parent := self.tree.segments[path[-1]].parent) >= 0:
            path.append(parent)
        return path[::-1]


def read_forest(pool: Pool, choice: Choice, plan: Plan) -> Forest:
    """The tree of the chosen steps. Raises NotFound and PoolError."""
    if choice.run and choice.version is not None and not choice.group:
        return _of_update(pool, choice.run, choice.version, plan)
    names = [choice.group] if choice.group else islice(_ready(pool, choice.channel), choice.newest)
    return _grown(_read(map(pool.group, names), lambda step: step.trainable), plan)


def _of_update(pool: Pool, run: str, version: int, plan: Plan) -> Forest:
    """Of the steps that an update was trained on, those of groups that were pruned excepted."""
    credits = [line for line in pool.credit(run, version) if not line.left_out]
    trained = {line.step_id for line in credits}
    names = list(dict.fromkeys(line.group_id for line in credits))
    forgotten = 0

    def left() -> Iterator[Group]:
        nonlocal forgotten
        for name in names:
            try:
                yield pool.group(name)
            except NotFound:
                forgotten += 1

    found = _read(left(), lambda step: step.id in trained)
    return replace(_grown(found, plan), forgotten=forgotten)


@dataclass(slots=True)
class _Found:
    """Groups with the steps of them that make rows."""

    steps: list[Step] = field(default_factory=list)
    groups: int = 0
    trajectories: int = 0
    channel: str = ""
    cut: bool = False


def _read(groups: Iterable[Group], wanted: Callable[[Step], bool]) -> _Found:
    found = _Found()
    for group in groups:
        if len(found.steps) >= MOST_STEPS:
            found.cut = True
            break
        found.groups += 1
        found.trajectories += len(group.trajectories)
        found.channel = found.channel or group.info.channel
        found.steps += (step for trajectory in group.trajectories for step in trajectory.steps if wanted(step))
    return found


def read_update(pool: Pool, run: str, version: int | None) -> UpdateInfo | None:
    """The update of `run` that made `version`, or its newest; None if there is none."""
    updates = [update for update in pool.updates(run) if version in (None, update.policy_version)]
    return updates[-1] if updates else None


@dataclass(frozen=True, slots=True)
class Depth:
    """What rows share around one position."""

    position: int
    rows: float
    """That are at least so long, on average over the bin."""
    distinct: float
    """Different tokens that they have there."""


def by_depth(tree: PrefixTree, bins: int = 100) -> list[Depth]:
    """How many rows there are at each position, and how many tokens of them are left once they are merged."""
    longest = max(tree.lengths, default=0)
    rows, distinct = np.zeros(longest + 1), np.zeros(longest + 1)
    np.subtract.at(rows, list(tree.lengths), 1)
    rows[0] += len(tree.lengths)
    for segment in tree.segments:
        distinct[segment.depth] += 1
        distinct[segment.depth + segment.stop - segment.start] -= 1
    rows, distinct = rows.cumsum()[:longest], distinct.cumsum()[:longest]
    edges = np.unique(np.linspace(0, longest, min(bins, longest) + 1).astype(int))
    return [
        Depth(int(start), float(rows[start:stop].mean()), float(distinct[start:stop].mean()))
        for start, stop in pairwise(edges)
    ]


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _ready(pool: Pool, channel: str) -> Iterator[str]:
    """Ids of ready groups, newest first."""
    before = None
    for _ in range(_PAGES):
        page = pool.groups(channel or None, before=before, limit=_PAGE)
        yield from (summary.info.id for _, summary in page if summary.state == "ready")
        if len(page) < _PAGE:
            return
        before = page[-1][0]


def _grown(found: _Found, plan: Plan) -> Forest:
    ids = [step.token_ids for step in found.steps]
    tree = merged(ids)
    families: dict[int, list[int]] = {}
    reach = [segment.depth + segment.stop - segment.start for segment in tree.segments]
    first = [len(ids)] * len(tree.segments)
    for row, leaf in enumerate(tree.leaves):
        first[leaf] = min(first[leaf], row)
    for number, segment in reversed(list(enumerate(tree.segments))):
        families.setdefault(segment.parent, []).append(number)
        if segment.parent >= 0:
            reach[segment.parent] = max(reach[segment.parent], reach[number])
            first[segment.parent] = min(first[segment.parent], first[number])
    return Forest(
        groups=found.groups,
        trajectories=found.trajectories,
        cut=found.cut,
        channel=found.channel,
        saved=savings(ids, plan.budget, plan.merging),
        rows=tuple(
            Row(s.id, s.trajectory_id, s.index, s.model, len(s.prompt_ids), len(s.response_ids)) for s in found.steps
        ),
        tree=tree,
        through=tuple(sharing(tree)),
        families={parent: tuple(reversed(own)) for parent, own in families.items()},
        reach=tuple(reach),
        first=tuple(first),
        numbers={step.id: number for number, step in enumerate(found.steps)},
    )
