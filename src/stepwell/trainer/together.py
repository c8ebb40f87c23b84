"""One rank leads: what it calls, the others call too.

The training loop waits for rollouts, paces and records, none of which several processes could do in one order. So it
runs on the first rank alone. What all ranks have to do at once (an update, scores, a checkpoint) are a few functions
of data; the first rank calls them through here, and the others, which do nothing else, get the same arguments.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stepwell.errors import InvalidRequest, StepwellError
from stepwell.policy.ranks import Place, Ranks, joined

T = TypeVar("T")
_Call = tuple[str, tuple[object, ...]]
_log = logging.getLogger(__name__)


class Together:
    """Functions that all ranks call together, by name."""

    def __init__(self, ranks: Ranks, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Each rank has functions of its own, on its own part of a policy, by the same names."""
        self.ranks = ranks
        self._functions = functions

    def call(self, name: str, *arguments: object) -> Any:
        """On the first rank: what its function gives, while the others call theirs. The arguments can be pickled."""
        if self.ranks.rank:
            raise InvalidRequest(f"only the first rank decides that all call {name}; the others follow")
        function = self._functions[name]
        self._said((name, arguments))
        return function(*arguments)

    def close(self) -> None:
        """On the first rank: let the others go."""
        self._said(None)

    def follow(self) -> None:
        """On every other rank: call what the first one calls, until it lets go.

        What Stepwell raises on purpose, it raises on all ranks alike, and whether that is the end is for the first to
        say. After anything else this rank is not where the others are, so it ends, which they will notice.
        """
        while (said := self._said(None)) is not None:
            name, arguments = said
            try:
                self._functions[name](*arguments)
            except StepwellError as error:
                _log.warning("rank %d: %s: %s", self.ranks.rank, name, error)

    def _said(self, call: _Call | None) -> _Call | None:
        """What the first rank says; `call` counts there only."""
        return self.ranks.decided(lambda: call)


def run_rank(place: Place, prepare: Callable[[Ranks], Together], lead: Callable[[Together], T]) -> T | None:
    """What the process of one rank runs, from meeting the others to leaving them; with one rank, all there is.

    Args:
        place: which rank this is.
        prepare: builds this rank's learner, and gives what is done together.
        lead: called on the first rank only, e.g. with a training loop; the others go when it returns or raises.

    Returns:
        What `lead` gave, None on the other ranks.
    """
    with joined(place) as ranks:
        together = prepare(ranks)
        if ranks.rank:
            together.follow()
            return None
        try:
            return lead(together)
        finally:
            together.close()
