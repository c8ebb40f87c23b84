"""The benchmarks of the papers, by name: which environment plays them, and what of it is the score.

Sets of questions come from the Hugging Face hub, or from files (`environment.path`); those that are `offline` come with
packages, or are made here. Search sets without passages need `environment.retriever` or `environment.corpus`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stepwell.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Tasks that policies are compared on."""

    environment: Mapping[str, Any]
    """As a recipe's section; settings of the command line come on top."""
    score: str
    """What of the measured is its headline: a name of `Outcome.measured` or of a part of the reward."""
    split: str = "test"
    offline: bool = False
    """Needs no network: tasks that are made here, or come with a package."""
    note: str = ""
    """What to know before its numbers are compared with a paper's."""


_LENIENT: Final = "wants the live web and a judge: exact match here is no score of its leaderboard (add rewards: judge)"
_PASSAGES: Final = "without passages of its own: give environment.retriever or environment.corpus"


def _search(dataset: str, *, note: str = "", offline: bool = False) -> Benchmark:
    settings = {"use": "search_qa", "dataset": dataset, "max_turns": 6, "passages": 3}
    return Benchmark(environment=settings, score="em", offline=offline, note=note)


def _mathematics(dataset: str, *, offline: bool = False, note: str = "") -> Benchmark:
    settings = {"use": "math_python", "dataset": dataset}
    return Benchmark(environment=settings, score="answer", offline=offline, note=note)


def _household(test_split: str) -> Benchmark:
    note = "the games of alfworld-download, or of `python -m stepwell.environments.alfworld` as environment.path"
    settings = {"use": "alfworld", "test_split": test_split, "max_steps": 50}
    return Benchmark(environment=settings, score="won", note=note)


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "nq": _search("flashrag_nq", note=_PASSAGES),
    "triviaqa": _search("flashrag_triviaqa", note=_PASSAGES),
    "popqa": _search("flashrag_popqa", note=_PASSAGES),
    "hotpotqa": _search("flashrag_hotpotqa", note=_PASSAGES),
    "2wikimultihopqa": _search("flashrag_2wikimultihopqa", note=_PASSAGES),
    "musique": _search("flashrag_musique", note=_PASSAGES),
    "bamboogle": _search("flashrag_bamboogle", note=_PASSAGES),
    "hotpotqa-distractor": _search("hotpot", note="searches the paragraphs that come with the questions"),
    "2wikimultihopqa-distractor": _search("2wiki", note="searches the paragraphs that come with the questions"),
    "musique-distractor": _search("musique", note="searches the paragraphs that come with the questions"),
    "gaia": _search("gaia", note=_LENIENT),
    "webwalkerqa": _search("webwalker", note=_LENIENT),
    "xbench": _search("xbench", note=_LENIENT),
    "hle": _search("hle", note=_LENIENT),
    "gsm8k": _mathematics("gsm8k"),
    "math500": _mathematics("math500"),
    "aime24": _mathematics("aime24"),
    "aime25": _mathematics("aime25"),
    "amc23": _mathematics("amc23"),
    "olympiadbench": _mathematics("olympiad", note="the English open-ended mathematics questions"),
    "alfworld-unseen": _household("valid_unseen"),
    "alfworld-seen": _household("valid_seen"),
    "nq-wheel": _search("nq", offline=True, note="questions and passages of a package, split by a hash"),
    "boolq-wheel": _search("boolq", offline=True, note="questions and passages of a package, split by a hash"),
    "arithmetic": _mathematics("arithmetic", offline=True, note="word problems that are made here"),
    "lookup": Benchmark(environment={"use": "lookup"}, score="solved", offline=True, note="the demo's task"),
}


def benchmark(name: str) -> Benchmark:
    """One of them. Raises NotFound."""
    if name not in BENCHMARKS:
        raise NotFound(f"there is no benchmark {name!r}; there are {', '.join(sorted(BENCHMARKS))}")
    return BENCHMARKS[name]
