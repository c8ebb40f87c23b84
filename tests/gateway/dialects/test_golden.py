"""The bytes of each wire format.

After a change that is wanted, `python -m tests.gateway.dialects.test_golden` writes them anew.
"""

from pathlib import Path

import pytest

from stepwell.errors import ContextOverflow, InvalidRequest, RateLimited
from stepwell.gateway.dialects import DIALECTS
from stepwell.gateway.dialects.base import Dialect
from stepwell.gateway.problems import problem_of
from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, ReasoningPiece, TextPiece
from tests.gateway.dialects.driver import answer_of, call_of, started, streamed, undated

GOLDEN = Path(__file__).parents[1] / "golden"
REPLY = [
    ReasoningPiece("Two things"),
    ReasoningPiece(" to look up."),
    TextPiece("I look"),
    TextPiece(" it up: é\u2028✓"),
    CallOpened("call-1", "search"),
    CallArguments('{"query":'),
    CallArguments(' "wells"}'),
    CallClosed(),
    CallOpened("call-2", "search"),
    CallArguments('{"query": "steps"}'),
    CallClosed(),
]
ERRORS = [
    InvalidRequest("messages.0.role: must be user", param="messages.0.role"),
    ContextOverflow("30 tokens do not fit in 20"),
    RateLimited("over 10 calls at a time", retry_after=2.0),
    ValueError("a secret"),
]


def _written(dialect: Dialect) -> dict[str, str]:
    """Each golden file's name and content."""
    call = call_of(dialect, **({"reasoning": {"summary": "auto"}} if dialect.name == "responses" else {}))
    reply = REPLY[2:4] if dialect.name == "completions" else REPLY
    cut = dialect.writer(call)
    failed = cut.start(started()) + cut.ping() + cut.error(problem_of(ERRORS[2]))
    errors = b"\n".join(dialect.problem(problem_of(error)) for error in ERRORS) + b"\n"
    contents = {
        "stream.txt": streamed(dialect, call, reply, answer_of(reply)),
        "answer.json": dialect.answer(call, (answer_of(reply),)) + b"\n",
        "failed.txt": failed,
        "errors.jsonl": errors,
    }
    return {f"{dialect.name}.{kind}": undated(content) for kind, content in contents.items()}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_wire_format_is_the_one_on_file(dialect):
    for name, content in _written(dialect).items():
        assert content == (GOLDEN / name).read_text(), name


if __name__ == "__main__":
    for dialect in DIALECTS:
        for name, content in _written(dialect).items():
            (GOLDEN / name).write_text(content)
