import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "exporters.md").read_text()
RECORDED = """
import optree
with optree.session("assistant"):
    with optree.llm(provider="openai", model="gpt-4o") as op:
        op.response("Not much.")
    with optree.tool("search"):
        pass
optree.flush("snapshot")
"""


BROKEN = """
broken = "optree_ops_csv:FORMAT"
requests = "optree_requests:EXPORTER"

[tool.hatch.build]
include = ["*.py"]
"""

REQUESTS = """
from optree import walk_ops
from optree.exporting import Delivery, Exporter, Resender, decode

class Requests(Resender):
    endpoint = "stdout"

    def send(self, loaded, directory, *, again, until):
        for _, _, op in walk_ops(loaded):
            print(loaded.tree.pool.resolve(decode(op.request.payload)))
        return Delivery(loaded.txn, sent=1)

class RequestsExporter(Exporter):
    def resender(self, options):
        return Requests()

EXPORTER = RequestsExporter()
"""
SECRET = """
import optree
with optree.session("assistant"), optree.llm() as op:
    op.request(messages=[{"role": "user", "content": "my key is sk-proj-0123456789abcdefghijABCDEFGHIJ"}])
optree.flush("snapshot")
"""


@pytest.fixture
def run(site, tmp_path):
    """Return a function that runs Python with that directory on its path, and returns what it came to."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT, ROOT / "exporters"))), "OPTREE_BASE_DIR": str(tmp_path)}

    def ran(*command):
        return subprocess.run([sys.executable, *command], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)

    return ran


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a directory that the package from the documents is installed into, beside optree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    module, _, exporter = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    project, group = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (source / "optree_ops_csv.py").write_text(module)
    (source / "optree_totals.py").write_text(exporter)
    (source / "optree_requests.py").write_text(REQUESTS)
    (source / "pyproject.toml").write_text(project + "\n" + group + BROKEN)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    return target


def test_a_format_of_another_package(run):
    """A format of ten lines, in a package of its own that imports the public modules alone, is listed and written by the command line."""
    assert 0 == run("-c", RECORDED).returncode
    assert "ops-csv" in [line.split()[0] for line in run("-m", "optree", "formats").stdout.splitlines() if line]
    assert "1.1,llm,ok\n1.2,tool,ok\n" == run("-m", "optree", "export", "last", "--to", "ops-csv", "-o", "-").stdout


def test_an_exporter_of_another_package(run, site):
    """An exporter of fifteen lines sends what the command line names, and tells what became of it; what is no exporter is refused."""
    assert 0 == run("-c", RECORDED).returncode
    asked = []

    class Asked(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(asked) == 1 else 503)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Asked) as server:
        module = site / "optree_totals.py"
        module.write_text(module.read_text().replace(":8900/", f":{server.server_port}/"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sent, refused = (run("-m", "optree", "export", "last", "--to", "totals") for _ in range(2))
        server.shutdown()
    assert (0, 1, [1, 1]) == (sent.returncode, refused.returncode, [body["calls"] for body in asked])
    assert "503" in refused.stdout + refused.stderr
    assert "try again with: optree export last --to totals" in refused.stderr
    elsewhere = run("-m", "optree", "export", "last", "--to", "totals", "--endpoint", "http://127.0.0.1:1/")
    assert (1, True, False) == (elsewhere.returncode, "ConnectError: " in elsewhere.stdout, "Traceback" in elsewhere.stderr)
    unknown = run("-m", "optree", "export", "--pending", "--to", "totls")
    assert (2, True) == (unknown.returncode, "totals" in unknown.stderr)
    broken = run("-m", "optree", "export", "last", "--to", "broken")
    assert (2, "it has no resender") == (broken.returncode, broken.stderr.strip()[-len("it has no resender") :])


def test_credentials_stay_here(run):
    """An exporter of another package gets them replaced, as a format does, unless they are asked for."""
    assert 0 == run("-c", SECRET).returncode
    sent = run("-m", "optree", "export", "last", "--to", "requests").stdout
    assert ("my key is [REDACTED]" in sent, "sk-proj" in sent) == (True, False)
    assert "sk-proj-0123" in run("-m", "optree", "export", "last", "--to", "requests", "--verbatim").stdout


def test_it_is_short():
    """The example is some ten lines of code."""
    [module, *_] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert 10 >= len([line for line in module.splitlines()[1:] if line])
