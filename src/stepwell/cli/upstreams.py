"""Engines behind servers, as commands and recipes name them."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from stepwell.config import component_config
from stepwell.engines import ENGINES
from stepwell.engines.base import Engine
from stepwell.engines.served import ServedConfig, Syntax
from stepwell.rendering.renderer import Renderer


def upstream_config(section: Mapping[str, Any]) -> ServedConfig:
    """What a section with `use` and `urls` says; STEPWELL_UPSTREAM_KEY is its `api_key`. Raises ConfigError."""
    key = os.environ.get("STEPWELL_UPSTREAM_KEY")
    return component_config(ENGINES, ServedConfig, {**section, "api_key": key} if key else section)


def connected(section: Mapping[str, Any], renderer: Renderer) -> Engine:
    """The engine. Raises ConfigError and EngineError as `ServedConfig.connect`."""
    syntax = Syntax(renderer.write_calls, renderer.thinking_marks)
    return asyncio.run(upstream_config(section).connect(renderer, syntax))
