"""A model's chat template, run in a sandbox that is set up the way the templates' authors expect."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from stepwell.errors import ConfigError, InvalidRequest

_MOST_VERDICTS: Final = 1000


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's tokens for trainers; rendered, it is its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's base class declares a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Remembers its verdicts on attributes, which cost as much as the rest of a rendering: they depend on an object's
    type and the attribute's name alone."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self._verdicts: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """See Jinja."""
        key = (type(obj), attr)
        safe = self._verdicts.get(key)
        if safe is None:
            safe = super().is_safe_attribute(obj, attr, value)
            if len(self._verdicts) < _MOST_VERDICTS:  # a template may make names up
                self._verdicts[key] = safe
        return safe


class ChatTemplate:
    """A compiled chat template; immutable, so safe to share."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`; `special_tokens` such as `bos_token` are its variables.

        Raises:
            ConfigError: the source is not a valid template.
        """
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.takes_tools = "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> str:
        """The conversation as text, ending where the assistant's turn begins; `options` are further variables.

        Raises:
            InvalidRequest: the template refuses this conversation, e.g. roles that do not alternate.
        """
        try:
            fixed = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
            return self._template.render({**options, **self._special_tokens, **fixed})
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, RecursionError) as error:
            # A template is a program from outside: whatever it stumbles over is this conversation's shape.
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}") from error


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = _Sandbox()
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML and non-ASCII, which would put other tokens in front of the model.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)
