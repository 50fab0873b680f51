import os
import re
import subprocess
from pathlib import Path

from tests.otel.backends.binaries import COLLECTOR
from tests.otel.backends.server import free_ports
from tests.otel.conftest import started

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "collector.md"


def test_configuration(tmp_path):
    """The configuration for a Collector near the agent is one that the real Collector takes."""
    program = started(COLLECTOR.find, must=bool(os.environ.get("CI")))
    text = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    for port in ("4318", "4317"):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free_ports(1)[0]}")
    (tmp_path / "config.yaml").write_text(text)
    command = [program, "validate", f"--config=file:{tmp_path / 'config.yaml'}"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (checked.returncode, checked.stderr)
