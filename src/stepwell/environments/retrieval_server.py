"""Serving any search function in Search-R1's retrieval protocol (see `remote_index`), for tests and for other clients.

Both dialects are understood: `queries`, a list, and `query`, one text (or a list) as skyrl-gym sends it. Sizes are
bounded, since a policy writes the queries: `topk` is clamped, long queries are cut, and a batch has a limit.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from fastapi import FastAPI
from pydantic import BaseModel, Field

from stepwell.environments.retrieval import Hit

MOST_HITS: Final = 100
"""`topk` is never taken for more."""
MOST_QUERIES: Final = 1_024
"""In one request."""
LONGEST_QUERY: Final = 4_096
"""Characters; the rest is cut."""


Search = Callable[[str, int], Sequence[Hit]]
"""Up to so many hits for a query, best first."""


class RetrievalRequest(BaseModel):
    """What a client sends: `queries`, or `query`."""

    queries: Annotated[list[str], Field(max_length=MOST_QUERIES)] | None = None
    query: Annotated[list[str], Field(max_length=MOST_QUERIES)] | str | None = None
    topk: int | None = None
    return_scores: bool = False

    @property
    def asked(self) -> list[str]:
        """The queries of either dialect, cut."""
        found = self.queries if self.queries is not None else self.query
        listed = [found] if isinstance(found, str) else (found or [])
        return [query[:LONGEST_QUERY] for query in listed]


def retrieval_app(search: Search, *, topk: int = 3) -> FastAPI:
    """An application with `POST /retrieve`; `topk` is for requests that name none."""
    app = FastAPI(title="Retrieval")

    @app.post("/retrieve")
    def retrieve(request: RetrievalRequest) -> dict[str, Any]:
        wanted = topk if request.topk is None else request.topk
        k = min(max(wanted, 1), MOST_HITS)
        return {"result": [[_hit(hit, request.return_scores) for hit in search(query, k)] for query in request.asked]}

    return app


def _hit(hit: Hit, scored: bool) -> dict[str, Any]:
    contents = f'"{hit.title}"\n{hit.text}'
    document = {"id": hit.id, "title": hit.title, "text": hit.text, "contents": contents}
    return {"document": document, "score": hit.score} if scored else document
