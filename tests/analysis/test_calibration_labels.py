"""Labels: how they are read, from which tables, what is wrong with them, and several people's put together."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.calibration.calibration import disagreements_of, labelled_of
from mlflow_adk_eval.analysis.calibration.labels import (
    JudgeDecision,
    Label,
    LabelError,
    Unit,
    Units,
    opinions_of,
    read_label,
    read_labels,
    read_rows,
)
from mlflow_adk_eval.errors import Problem, UsageError

SAFE, MATCH = "safety_v1", "final_response_match_v2"
SCORE = JudgeDecision(passed=True, threshold=0.8)
RUBRIC = JudgeDecision(passed=True)


def unit(eval_id: str = "a", index: int | None = 0, *, criterion: str = SAFE, rubric_id: str | None = None, run_id: str = "r1") -> Unit:
    return Unit(run_id=run_id, eval_id=eval_id, run_index=0, invocation_index=index, criterion=criterion, rubric_id=rubric_id)


def units(*more: Unit) -> Units:
    """Return two cases, of which the first has two turns, and what else is given."""
    listed = [unit("a", 0), unit("a", 1), unit("a", None), unit("b", 0), unit("b", 0, rubric_id="polite"), *more]
    aliases = {unit("b", None, rubric_id=rubric_id): unit("b", 0, rubric_id=rubric_id) for rubric_id in (None, "polite")}
    return Units({one: RUBRIC if one.rubric_id else SCORE for one in listed}, aliases)


def table(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "labels.csv"
    file.write_text(text, encoding="utf-8")
    return file


def read(source: Any, known: Units | None = None) -> list[Label]:
    return [one for one in read_labels(read_rows(source)[1], known or units()) if isinstance(one, Label)]


def problems(source: Any, known: Units | None = None) -> list[Problem]:
    return [one for one in read_labels(read_rows(source)[1], known or units()) if isinstance(one, Problem)]


# One label


@pytest.mark.parametrize("value", [True, "true", "Yes", " pass ", "PASSED", 1, 1.0, "1", "0.8", 0.9])
def test_what_says_that_a_cell_passes(value: Any) -> None:
    assert read_label(value, SCORE) is True


@pytest.mark.parametrize("value", [False, "false", "No", "fail", "failed", 0, "0", "0.79", 0.5])
def test_what_says_that_it_fails(value: Any) -> None:
    assert read_label(value, SCORE) is False


@pytest.mark.parametrize("value", ["", "maybe", None, [], {}, "nan", "inf", 80, -0.1, "1,0"])
def test_what_says_nothing(value: Any) -> None:
    assert read_label(value, SCORE) == "true or false, yes or no, pass or fail, or a score from 0 to 1"


def test_a_score_is_held_against_the_threshold_in_the_criterions_own_direction_and_range() -> None:
    grade = JudgeDecision(passed=True, threshold=4.0, bounds=(1.0, 5.0))
    tokens = JudgeDecision(passed=True, threshold=100.0, greater_is_better=False, bounds=(0.0, float("inf")))
    assert [read_label(value, grade) for value in (5, 4, 3, 1)] == [True, True, False, False]
    assert [read_label(value, tokens) for value in (50, 100, 101)] == [True, True, False]
    assert read_label("inf", tokens) == read_label(10**400, tokens) == "true or false, yes or no, pass or fail, or a score from 0 to inf"
    assert read_label(0, grade) == "true or false, yes or no, pass or fail, or a score from 1 to 5"


def test_a_rubric_has_no_scores_between() -> None:
    assert (read_label("1", RUBRIC), read_label(0, RUBRIC)) == (True, False)
    assert read_label("0.9", RUBRIC) == "true or false, yes or no, pass or fail, 1 or 0"


# A table


def test_a_table_of_labels(tmp_path: Path) -> None:
    file = table(
        tmp_path,
        "\ufeffeval_id,run_index,invocation_index,criterion,rubric_id,label,labeller\r\n"
        f'a,0,1,{SAFE},,yes,anna\r\na,,0.0,{SAFE},,"no",\r\n\r\n b ,0,,{SAFE},polite,0,ben\r\na,0,,{SAFE},,pass,anna\r\n',
    )
    assert problems(file) == []
    assert [(one.unit, one.passed, one.labeller) for one in read(file)] == [
        (unit("a", 1), True, "anna"),
        (unit("a", 0), False, ""),
        (unit("b", 0, rubric_id="polite"), False, "ben"),
        (unit("a", None), True, "anna"),
    ]


def test_rows_may_be_mappings() -> None:
    rows = [{"eval_id": "a", "invocation_index": 1, "criterion": SAFE, "label": True, "rubric_id": None, "run_index": float("nan")}]
    assert [(one.unit, one.passed) for one in read(rows)] == [(unit("a", 1), True)]


def test_a_whole_case_with_a_single_cell_is_that_cell() -> None:
    rows = [{"eval_id": "b", "criterion": SAFE, "label": "yes"}]
    assert read(rows)[0].unit == unit("b", 0)


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"eval_id": "aa"}, "eval_id", "found 'aa'; wanted one of a, b"),
        ({"criterion": "safty_v1"}, "criterion", f"found 'safty_v1'; wanted {SAFE}. Did you mean '{SAFE}'?"),
        ({"invocation_index": "2"}, "invocation_index", "found '2'; wanted one of 0, 1, an empty cell"),
        ({"invocation_index": "first"}, "invocation_index", "found 'first'; wanted one of 0, 1, an empty cell"),
        ({"run_index": "1"}, "run_index", "found '1'; wanted 0"),
        ({"run_id": "r9"}, "run_id", "found 'r9'; wanted r1"),
        ({"rubric_id": "polit"}, "rubric_id", "found 'polit'; wanted an empty cell"),
        ({"eval_id": "b", "rubric_id": "polit"}, "rubric_id", "found 'polit'; wanted one of an empty cell, polite. Did you mean 'polite'?"),
        ({"label": "perhaps"}, "label", "found 'perhaps'; wanted true or false, yes or no, pass or fail, or a score from 0 to 1"),
        ({"label": ""}, "label", "found nothing; wanted true or false, yes or no, pass or fail, or a score from 0 to 1"),
    ],
)
def test_a_row_that_is_about_nothing_is_told_by_its_column(changes: Mapping[str, str], place: str, message: str) -> None:
    row = {"eval_id": "a", "invocation_index": "0", "criterion": SAFE, "label": "yes", "rubric_id": "", "run_index": "", "run_id": ""}
    (problem,) = problems([row | dict(changes)])
    assert str(problem) == f"$[0], {place}: {message}"


def test_all_problems_are_told_at_once_with_their_rows(tmp_path: Path) -> None:
    file = table(tmp_path, f"eval_id,invocation_index,criterion,label\na,0,{SAFE},yes\nx,0,{SAFE},yes\na,0,{SAFE},no\na,1,{SAFE},?\n")
    assert [str(problem) for problem in problems(file)] == [
        "row 3, eval_id: found 'x'; wanted one of a, b",
        "row 4, label: found a second label for the verdict in row 2; wanted one label per labeller",
        "row 5, label: found '?'; wanted true or false, yes or no, pass or fail, or a score from 0 to 1",
    ]


def test_two_spellings_of_one_cell_are_a_second_label_too() -> None:
    rows = [{"eval_id": "b", "criterion": SAFE, "label": "yes", "invocation_index": index} for index in ("", "0")]
    assert "a second label for the verdict in $[0]" in str(problems(rows)[0])


def test_of_several_runs_one_must_be_named() -> None:
    known = units(unit("a", 0, run_id="r2"))
    row = {"eval_id": "a", "invocation_index": "0", "criterion": SAFE, "label": "yes"}
    assert str(problems([row], known)[0]) == "$[0], run_id: found nothing; wanted one of r1, r2"
    assert read([row | {"run_id": "r2"}], known)[0].unit.run_id == "r2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "row 1: found no column 'eval_id'; wanted the columns eval_id, criterion, label"),
        ("eval_id;criterion;label\n", "row 1: found a column 'eval_id;criterion;label'; wanted the columns run_id, eval_id,"),
        ("eval_id,criterion,lable\n", "found a column 'lable'; wanted the columns run_id,"),
        ("eval_id,criterion,lable\n", "Did you mean 'label'?"),
        ("eval_id,criterion,label,label\n", "row 1: found 2 columns 'label'; wanted one"),
        ("eval_id,criterion,label\na,b\n", "row 2: found 2 cells; wanted 3, as in row 1"),
        ('eval_id,criterion,label\n"a,b,c\n', "found no table (unexpected end of data); wanted comma-separated values in UTF-8"),
    ],
)
def test_what_is_no_table_of_labels(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LabelError, match="in this set of labels") as caught:
        read_rows(table(tmp_path, text))
    assert message in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert caught.value.exit_code == 64


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="no such file"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("eval_id,criterion,label\nü,x,yes\n".encode("latin-1"))
    with pytest.raises(LabelError, match="found no table"):
        read_rows(tmp_path / "latin.csv")


def test_mappings_need_the_same_columns() -> None:
    with pytest.raises(LabelError, match="found no column 'criterion'"):
        read_rows([{"eval_id": "a", "label": "yes"}])


# Several people


def label(labeller: str = "", at: int = 0, *, passed: bool, said: str = "", **where: Any) -> Label:
    return Label(unit=unit(**where), passed=passed, labeller=labeller, at=at, said=said)


def test_the_latest_label_of_each_counts() -> None:
    (opinion,) = opinions_of([label("anna", 2, passed=True), label("anna", 1, passed=False), label("ben", 1, passed=True)]).values()
    assert opinion.answers == [True, True]
    assert (opinion.passed, opinion.unanimity, opinion.summary) == (True, 1.0, "pass (2 of 2)")


def test_the_majority_decides_and_a_tie_does_not() -> None:
    given = [label("anna", passed=True, said="fine"), label("ben", passed=False, said="rude"), label("cem", passed=False)]
    (opinion,) = opinions_of(given).values()
    assert (opinion.passed, opinion.unanimity, opinion.summary) == (False, 2 / 3, "fail (2 of 3): rude")
    (tied,) = opinions_of(given[:2]).values()
    assert tied.passed is None


# From labels to counts


def many(count: int, judge: bool | None, people: bool, start: int) -> tuple[dict[Unit, JudgeDecision], list[Label]]:
    listed = [unit(f"case_{number}") for number in range(start, start + count)]
    return {one: JudgeDecision(passed=judge, threshold=0.5) for one in listed}, [
        Label(unit=one, passed=people, labeller="") for one in listed
    ]


def counted(*kinds: tuple[int, bool | None, bool]) -> tuple[dict[Unit, JudgeDecision], list[Label]]:
    judged: dict[Unit, JudgeDecision] = {}
    labels: list[Label] = []
    for count, judge, people in kinds:
        found, given = many(count, judge, people, len(judged))
        judged |= found
        labels += given
    return judged, labels


numbers = st.integers(0, 20)


@drawn(numbers, numbers, numbers, numbers, numbers)
def test_every_labelled_cell_is_counted_once(tp: int, fp: int, tn: int, fn: int, unscored: int) -> None:
    judged, labels = counted((tp, True, True), (fp, True, False), (tn, False, False), (fn, False, True), (unscored, None, True))
    found = labelled_of(judged, opinions_of(labels))
    assert (found.true_passes, found.false_passes, found.true_failures, found.false_failures, found.unscored) == (tp, fp, tn, fn, unscored)
    assert (found.sample.passed, found.sample.judged, found.sample.unscored) == (tp + fp, tp + fp + tn + fn, unscored)
    assert len(disagreements_of(judged, opinions_of(labels))) == fp + fn


def test_turns_of_a_case_are_a_cluster_whatever_the_run() -> None:
    cells = [unit(f"case_{number}", 0, run_id=run) for number in range(10) for run in ("r1", "r2")]
    judged = {one: JudgeDecision(passed=int(one.eval_id[5:]) % 2 == 0) for one in cells}
    labels = [Label(unit=one, passed=True, labeller="") for one in cells]
    found = labelled_of(judged, opinions_of(labels))
    assert found.pass_effect == found.sample.design_effect == pytest.approx(2 * 10 / 9)
    assert found.failure_effect == 1


def test_people_who_disagree_are_counted_and_ties_left_out() -> None:
    judged, labels = counted((3, True, True))
    cells = list(judged)
    against = [Label(unit=cells[0], passed=False, labeller="ben"), Label(unit=cells[1], passed=True, labeller="ben")]
    found = labelled_of(judged, opinions_of([*labels, *against]))
    assert found.true_passes == 2
    assert found.people is not None
    assert (found.people.cells, found.people.disputed, found.people.tied, found.people.agreement) == (2, 1, 1, 0.5)
    assert labelled_of(judged, opinions_of(labels)).people is None


def test_labels_of_failed_cells_alone_are_no_random_sample() -> None:
    judged, labels = counted((40, False, False), (5, False, True), (100, True, True))
    found = labelled_of(judged, opinions_of(labels[:45]))
    assert found.selection.startswith("people labelled 0 of 100 passes but 45 of 45 failures")
    assert found.corrected() == found.selection
    assert labelled_of(judged, opinions_of(labels)).selection == ""
    assert labelled_of(judged, opinions_of(labels[::3])).selection == ""


def test_whole_cases_drawn_at_random_hardly_ever_look_chosen() -> None:
    luck = random.Random(5)
    alarms = 0
    for _ in range(300):
        shares = [luck.betavariate(1.2, 0.3) for _ in range(60)]  # so that the turns of a case are much alike
        judged = {
            unit(f"case_{number}", turn): JudgeDecision(passed=luck.random() < share)
            for number, share in enumerate(shares)
            for turn in range(4)
        }
        chosen = {f"case_{number}" for number in luck.sample(range(60), 20)}
        labels = [Label(unit=one, passed=True, labeller="") for one in judged if one.eval_id in chosen]
        alarms += bool(labelled_of(judged, opinions_of(labels)).selection)
    assert alarms <= 3  # 1 in 1000 is expected


def test_what_both_sides_are_sure_of_comes_first() -> None:
    judged = {
        unit("split"): JudgeDecision(passed=True, certainty=0.6, said="hm"),
        unit("sure"): JudgeDecision(passed=True, certainty=1.0, said="score 1; polite"),
        unit("agreed"): JudgeDecision(passed=False),
        unit("unknown"): JudgeDecision(passed=None),
    }
    given = [label(passed=False, eval_id=name, said="no greeting") for name in ("split", "sure", "agreed", "unknown")]
    found = disagreements_of(judged, opinions_of(given))
    assert [one.eval_id for one in found] == ["sure", "split"]
    assert (found[0].judge_passed, found[0].judge_said, found[0].people_said) == (True, "score 1; polite", "fail: no greeting")
