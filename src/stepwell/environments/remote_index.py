"""Searching with a server that speaks Search-R1's retrieval protocol, in place of an index in this process.

`POST URL` with `{"queries": ["…"], "topk": 3, "return_scores": true}` answers `{"result": [[hit, …], …]}`, a list for
each query. A hit is a document, or `{"document": …, "score": …}`; a document has `contents` (`"Title"`, a line break,
the text), or `title` and `text`. What has been asked is remembered, so that a conversation that is played again shows
the same texts and costs nothing.
"""

import time
from functools import lru_cache
from typing import Final

import httpx
from pydantic import BaseModel, ValidationError

from stepwell.environments.corpora import Passage
from stepwell.environments.question_sets import passage_of
from stepwell.errors import EnvironmentFailed

_REMEMBERED: Final = 16_384
"""Searches."""
_LONGEST: Final = 2_000
"""Characters of a query that are sent: a policy may write any number."""
_ATTEMPTS: Final = 4
_PASSING: Final = (429, 500, 502, 503, 504)
"""Statuses that may be gone at the next attempt."""
_PAUSE: Final = 0.2
"""Seconds before the second attempt; then twice as long each time."""


class _Document(BaseModel):
    contents: str = ""
    title: str = ""
    text: str = ""

    @property
    def passage(self) -> Passage:
        return Passage(self.title.strip('"'), self.text) if self.text else passage_of(self.contents)


class _Scored(BaseModel):
    document: _Document


class _Answer(BaseModel):
    result: list[list[_Scored | _Document]]


class RemoteIndex:
    """An index behind HTTP. Safe to share between threads."""

    def __init__(self, url: str, *, timeout: float = 30.0) -> None:
        """`url` in full, e.g. `http://127.0.0.1:8000/retrieve`; `timeout` in seconds for one request."""
        self._url = url
        self._client = httpx.Client(timeout=timeout, trust_env=False)
        self._remembered = lru_cache(_REMEMBERED)(self._ask)

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """Up to `k` passages, best first.

        Raises:
            EnvironmentFailed: the server cannot be reached, refuses, or answers in another form.
        """
        return self._remembered(query[:_LONGEST], k)

    def _ask(self, query: str, k: int) -> tuple[Passage, ...]:
        if not query.strip():
            return ()
        # A lone surrogate is no text that JSON could carry.
        asked = query.encode("utf-8", "replace").decode()
        response = self._post({"queries": [asked], "topk": k, "return_scores": True})
        try:
            (hits,) = _Answer.model_validate_json(response.content).result
        except (ValidationError, ValueError) as error:
            raise EnvironmentFailed(
                f"{self._url} does not speak Search-R1's protocol: {response.text!r:.200}"
            ) from error
        documents = (hit.document if isinstance(hit, _Scored) else hit for hit in hits[:k])
        return tuple(document.passage for document in documents)

    def _post(self, body: dict[str, object]) -> httpx.Response:
        """The answer to a request that is made again while what is wrong may pass."""
        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE * 2 ** (attempt - 1))
            try:
                response = self._client.post(self._url, json=body)
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            if response.is_success:
                return response
            reason = f"status {response.status_code}: {response.text!r:.200}"
            if response.status_code not in _PASSING:
                break
        raise EnvironmentFailed(f"the retriever {self._url} did not answer ({reason}); is it running there?")
