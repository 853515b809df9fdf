"""`benchmarks/adk_agreement.py`: nothing differs that is not documented, and it would notice if something did."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("google.adk.evaluation.final_response_match_v1", reason="google-adk[eval] is not installed")
ROOT = Path(__file__).parents[2]
SAMPLES = ROOT.parent / "shared" / "data" / "adk"
pytestmark = [pytest.mark.needs("google-adk", "2.13"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module("adk_agreement")
    for name in set(sys.modules) - before:
        if name in ("adk_agreement", "data", "truth", "words"):
            del sys.modules[name]


def test_generated_sets_differ_only_where_it_is_documented(script: ModuleType, tmp_path: Path) -> None:
    script.write_generated(tmp_path, cases=4)
    tally = script.compare([tmp_path])
    assert tally.undocumented == []
    assert tally.turns["equal"] > 500
    assert {name: tally.files[f"eval sets {name}"] for name in ("loaded by us only", "loaded by ADK only", "refused by both")} == {
        "loaded by us only": 3,
        "loaded by ADK only": 3,
        "refused by both": 1,
    }
    assert script.compare([tmp_path]).documented == tally.documented


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="ADK's sample files are not at ../shared/data/adk beside the project")
def test_adks_samples_differ_only_where_it_is_documented(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(SAMPLES)]) == 0
    assert "UNDOCUMENTED differences: 0" in capsys.readouterr().out


def test_each_documented_difference_stands_on_the_page(script: ModuleType) -> None:
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "development" / "parity.md").read_text(encoding="utf-8"))
    assert [known.sentence for known in script.DOCUMENTED if known.sentence not in page] == []


def test_a_difference_that_is_not_documented_fails(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_generated(tmp_path, cases=1)
    known = tuple(replace(one, of_turn=None) for one in script.DOCUMENTED)
    monkeypatch.setattr(script, "DOCUMENTED", known)
    assert script.main([str(tmp_path)]) == 1
    assert re.search(r"turn \d, response_match_score \{\}: None here, 0.0 in ADK", capsys.readouterr().out)


def test_a_file_that_only_one_of_them_loads_fails_without_a_known_reason(script: ModuleType, tmp_path: Path) -> None:
    turn = {"user_content": {"parts": [{"text": "hi"}]}, "final_response": {"parts": [{"inline_data": {"mime_type": "a/b", "data": 5}}]}}
    value = {"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [turn]}]}
    (tmp_path / "media.evalset.json").write_text(json.dumps(value))
    (line,) = script.compare([tmp_path]).undocumented
    assert "loaded by us only: bytes_type" in line


def test_a_folder_that_is_not_there_is_bad_usage(script: ModuleType, tmp_path: Path) -> None:
    assert script.main([str(tmp_path / "nowhere")]) == 64
