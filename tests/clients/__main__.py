"""`make test-clients`: install the real clients, drive each against a gateway, print the table.

The exit status is 1 unless every row is green.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

from tests.clients.forks import fork_everywhere
from tests.clients.models import RANDOM, running
from tests.clients.packages import NODE, Package
from tests.clients.report import row, table
from tests.clients.roster import CLIENTS, Client
from tests.clients.sandbox import isolate
from tests.clients.stage import Performance, perform

_TAIL = 2000
"""Characters of a client's output that are shown if its row is not green."""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="tests.clients", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="rows whose name or dialect contains this")
    parser.add_argument("--verbose", action="store_true", help="show what the clients print, and each request")
    options = parser.parse_args()
    chosen = [client for client in CLIENTS if _wanted(client, options.only)]
    for package in _missing(chosen):
        print(f"installing {package.folder}: {', '.join(package.pins)}", flush=True)
        package.install()
    isolate()
    rows = []
    with running(RANDOM) as quick:  # which is enough to be forked
        for performance in _performances(chosen):
            forked = fork_everywhere(performance.client, quick) if performance.client.forkable else None
            rows.append(row(performance, forked))
            _tell(performance, rows[-1][-1], verbose=options.verbose)
    print("\n" + table(rows))
    return 0 if rows and all(cells[-1] == "green" for cells in rows) else 1


def _wanted(client: Client, only: Sequence[str]) -> bool:
    title = f"{client.name} {client.dialect}".lower()
    return not only or any(word.lower() in title for word in only)


def _missing(chosen: Sequence[Client]) -> list[Package]:
    needed = dict.fromkeys([NODE, *(client.package for client in chosen)])
    return [package for package in needed if not package.installed]


def _performances(chosen: Sequence[Client]) -> Iterator[Performance]:
    for name, clients in groupby(chosen, key=lambda client: client.model):
        with running(name) as model:
            for client in clients:
                yield perform(client, model)


def _tell(performance: Performance, verdict: str, *, verbose: bool) -> None:
    print(f"{performance.seconds:6.1f} s  {performance.client.name}, {performance.client.dialect}: {verdict}")
    if verbose or verdict != "green":
        _explain(performance)
    sys.stdout.flush()


def _explain(performance: Performance) -> None:
    for request in performance.requests:
        print(f"    {request.method} {request.path} {request.status}")
    for trajectory in performance.trajectories:
        for step in trajectory.steps:
            place = f"{trajectory.info.id} {step.index} {step.side or '-'} {step.fork or '-'} {step.finish_reason}"
            print(f"    {place} P={len(step.prompt_ids)} R={len(step.response_ids)} {step.response[:160]}")
    print("    " + performance.ended.output[-_TAIL:].replace("\n", "\n    "))


if __name__ == "__main__":
    sys.exit(main())
