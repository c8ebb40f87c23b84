"""The gateway as `benchmarks/gateway.py` runs it: `python benchmarks/served.py PORT_FILE UPSTREAM_URL`."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import uvicorn

from stepwell.cli.serve import spare_the_collector
from stepwell.engines.served import Syntax
from stepwell.engines.vllm import VLLMConfig
from stepwell.gateway.app import create_app
from stepwell.policy.builtin import resolve_model
from stepwell.pool.store import SQLitePool
from stepwell.rendering.renderer import Renderer


def serve(port_file: Path, upstream: str) -> None:
    renderer = Renderer.from_directory(resolve_model("smollm2-135m"))
    pool = SQLitePool.open(port_file.parent / "pool.sqlite")
    engine = asyncio.run(VLLMConfig(urls=(upstream,)).connect(renderer, Syntax(renderer.write_calls)))
    app = create_app(engine, renderer, pool)
    spare_the_collector()
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False, proxy_headers=False)
    )
    threading.Thread(target=_announce, args=(server, port_file), daemon=True).start()
    server.run()
    pool.close()


def _announce(server: uvicorn.Server, port_file: Path) -> None:
    while not server.started:
        time.sleep(0.01)
    port_file.write_text(str(server.servers[0].sockets[0].getsockname()[1]))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
