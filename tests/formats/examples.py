"""The worked examples of seeds 000 and 001."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "conversation" / "data"
EXAMPLES = {path.stem: path.read_text("utf-8") for path in sorted(DATA.glob("seed00[01]_*.jsonl")) if not path.stem.endswith("_format")}
"""By name; those that show the form only are left out, since one of their lines is cut short and no JSON."""
JACK_AND_JILL = EXAMPLES["seed001_jack_and_jill"]
