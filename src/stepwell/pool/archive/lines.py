"""Which steps of a trajectory make one conversation: agents also ask beside their work, and begin histories anew."""

from collections.abc import Sequence

import numpy as np

from stepwell.types import Step


def main_line(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The longest run of steps of which each goes on from the one before; of equal ones the last. Without side calls.

    A step goes on from its parent unless the client sent another history (`fork` is `root` or `client`); a step whose
    parent nobody noted goes on from the latest whose ids, prompt and response, its prompt begins with.
    """
    own = [step for step in steps if not step.side]
    by_id = {step.id: place for place, step in enumerate(own)}
    parents = [_parent(own, place, by_id) for place in range(len(own))]
    lengths: list[int] = []
    for parent in parents:
        lengths.append(1 if parent is None else lengths[parent] + 1)
    place = max(range(len(own)), key=lambda end: (lengths[end], end), default=None)
    line = []
    while place is not None:
        line.append(own[place])
        place = parents[place]
    return tuple(reversed(line))


def _parent(steps: Sequence[Step], place: int, by_id: dict[str, int]) -> int | None:
    step = steps[place]
    if step.fork in ("root", "client"):
        return None
    if step.parent_id:
        known = by_id.get(step.parent_id)
        return known if known is not None and known < place else None
    return next((earlier for earlier in range(place - 1, -1, -1) if extends(step, steps[earlier])), None)


def extends(step: Step, earlier: Step) -> bool:
    """Whether the prompt of `step` begins with the prompt and response of `earlier`, id for id."""
    size = len(earlier.prompt_ids)
    whole = size + len(earlier.response_ids)
    return (
        len(step.prompt_ids) >= whole
        and np.array_equal(step.prompt_ids[:size], earlier.prompt_ids)
        and np.array_equal(step.prompt_ids[size:whole], earlier.response_ids)
    )
