"""A search engine behind Search-R1's protocol gives what one in the process gives."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.environments.corpora import Passage
from stepwell.environments.remote_index import RemoteIndex
from stepwell.environments.retrieval import SearchIndex
from stepwell.environments.retrieval_server import LONGEST_QUERY, MOST_HITS, MOST_QUERIES, retrieval_app
from stepwell.environments.search_qa import SearchQAConfig
from stepwell.errors import ConfigError, EnvironmentFailed
from tests.environments.laws import FACTS, call, play
from tests.environments.servers import free_port, serve

PASSAGES = tuple(Passage(city, text) for _, city, text in FACTS)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return SearchIndex(PASSAGES)


@pytest.fixture(scope="module")
def url(index: SearchIndex) -> str:
    return serve(retrieval_app(index.hits)) + "/retrieve"


@pytest.fixture(scope="module")
def client(index: SearchIndex) -> TestClient:
    return TestClient(retrieval_app(index.hits))


def _answering(content: bytes, statuses: tuple[int, ...] = (200,)) -> tuple[str, list[object]]:
    """(URL, the requests so far) of a server that answers the statuses in turn, the last one for ever."""
    app, seen = FastAPI(), list[object]()

    @app.post("/retrieve")
    async def retrieve(request: Request) -> Response:
        seen.append(await request.json())
        return Response(content, status_code=statuses[min(len(seen), len(statuses)) - 1])

    return serve(app) + "/retrieve", seen


def test_a_remote_index_finds_what_the_local_one_does(url: str, index: SearchIndex) -> None:
    for query in ("capital of Quell", "harbour", "city of seven hills", "zebra"):
        assert RemoteIndex(url).search(query, 2) == index.search(query, 2)


@given(query=st.text(max_size=40) | st.just("\ud800 Quell") | st.just("Quell " * 5_000))
@settings(max_examples=25, deadline=None)
def test_no_query_of_a_policy_breaks_it(url: str, query: str) -> None:
    assert len(RemoteIndex(url).search(query, 3)) <= 3


def test_what_was_asked_is_not_asked_again() -> None:
    found = json.dumps({"result": [[{"document": {"contents": '"Marn"\nA city.'}, "score": 1.0}]]})
    url, seen = _answering(found.encode())
    index = RemoteIndex(url)
    assert index.search("marn", 3) == index.search("marn", 3) == (Passage("Marn", "A city."),)
    assert seen == [{"queries": ["marn"], "topk": 3, "return_scores": True}]


def test_bare_documents_and_more_hits_than_asked_for_are_understood() -> None:
    documents = [{"title": '"Marn"', "text": "A city.", "id": 7}, {"contents": "Bare."}, {"contents": "Too many."}]
    url, _ = _answering(json.dumps({"result": [documents]}).encode())
    assert RemoteIndex(url).search("marn", 2) == (Passage("Marn", "A city."), Passage("", "Bare."))


def test_a_failure_that_passes_is_tried_again() -> None:
    url, seen = _answering(b'{"result": [[]]}', (503, 502, 200))
    assert RemoteIndex(url).search("marn", 1) == ()
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("content", "statuses", "complaint"),
    [
        (b"no", (422,), "status 422"),
        (b"no", (500,), "status 500"),
        (b'{"result": []}', (200,), "does not speak"),
        (b'{"hits": [[]]}', (200,), "does not speak"),
        (b"\xff", (200,), "does not speak"),
    ],
)
def test_a_server_that_fails_is_the_environments_failure(
    content: bytes, statuses: tuple[int, ...], complaint: str
) -> None:
    url, _ = _answering(content, statuses)
    with pytest.raises(EnvironmentFailed, match=complaint):
        RemoteIndex(url).search("marn", 1)


def test_a_server_that_is_not_there_is_the_environments_failure() -> None:
    with pytest.raises(EnvironmentFailed, match="did not answer"):
        RemoteIndex(f"http://127.0.0.1:{free_port()}/retrieve").search("marn", 1)


@pytest.mark.parametrize("asked", [{"queries": ["harbour"]}, {"query": "harbour"}, {"query": ["harbour"]}])
def test_the_server_understands_both_dialects_with_scores_and_without(
    client: TestClient, asked: dict[str, object]
) -> None:
    scored = client.post("/retrieve", json={**asked, "topk": 1, "return_scores": True}).json()
    bare = client.post("/retrieve", json={**asked, "topk": 1}).json()
    ((hit,),) = scored["result"]
    assert hit["document"]["contents"] == f'"Tibb"\n{FACTS[1][2]}'
    assert hit["document"]["id"] == "1"
    assert hit["score"] > 0
    assert bare["result"] == [[hit["document"]]]


def test_the_server_bounds_what_a_client_may_ask() -> None:
    asked: list[tuple[int, int]] = []
    bounded = TestClient(retrieval_app(lambda query, k: asked.append((len(query), k)) or []))
    for topk in (10**9, -5, 0):
        bounded.post("/retrieve", json={"queries": ["x" * 10**5], "topk": topk})
    bounded.post("/retrieve", json={"queries": ["x"]})
    assert asked == [(LONGEST_QUERY, MOST_HITS), (LONGEST_QUERY, 1), (LONGEST_QUERY, 1), (1, 3)]
    assert bounded.post("/retrieve", json={"queries": ["x"] * (MOST_QUERIES + 1)}).status_code == 422
    assert bounded.post("/retrieve", json={}).json() == {"result": []}


def _questions(folder: Path) -> Path:
    rows = [
        {"id": str(number), "question": f"What is the capital of {land}?", "golden_answers": [city]}
        for number, (land, city, _) in enumerate(FACTS * 4)
    ]
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def _corpus(folder: Path) -> dict[str, object]:
    path = folder / "corpus.jsonl"
    rows = [{"id": str(n), "contents": f'"{one.title}"\n{one.text}'} for n, one in enumerate(PASSAGES)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"corpus": path}


@pytest.mark.parametrize("kind", ["retriever", "corpus"])
def test_search_qa_searches_where_its_settings_say(
    kind: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    places: dict[str, Callable[[], dict[str, object]]] = {
        "retriever": lambda: {"retriever": url},
        "corpus": lambda: _corpus(tmp_path),
    }
    named = {"dataset": "flashrag_nq", "path": _questions(tmp_path), **places[kind]()}
    tasks = SearchQAConfig.model_validate(named).build()
    assert len(tasks.tasks("train")) == 12
    found, answered = play(tasks, "train-0", [call("search", query="capital of Quell"), call("answer", text="Marn")])
    assert found.messages[0].content == f"Marn: {FACTS[0][2]}"
    assert answered.reward == 1.0


def test_a_set_without_passages_needs_a_place_to_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set `retriever` to a URL, or `corpus` to a file"):
        SearchQAConfig(dataset="flashrag_nq", path=_questions(tmp_path)).build()


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for settings_, complaint in (
        ({"dataset": "nonsense"}, "no data set 'nonsense'"),
        ({"revision": "abc"}, "`revision` is not for"),
        ({"corpus": tmp_path, "retriever": "http://127.0.0.1/retrieve"}, "exclude each other"),
        ({"answerable_only": True, "retriever": "http://127.0.0.1/retrieve"}, "without a `retriever`"),
        ({"retriever": "nowhere"}, "pattern"),
    ):
        with pytest.raises(ValueError, match=complaint):
            SearchQAConfig.model_validate(settings_)
