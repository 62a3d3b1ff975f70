"""Tables as people have them: what is detected is right, shown and kept; what is not certain is refused with file and line."""

from __future__ import annotations

import codecs
import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.columns import Columns
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.table import Form, read_table
from peer.zoo.tasks.data_options import TableOptions
from peer.zoo.tasks.datasets import load_pool

DRAW = np.random.default_rng(0)
AGE, BP = DRAW.normal(50, 10, 40).round(1), DRAW.normal(130, 15, 40).round(1)
ROWS = [(f"{a:.1f}", f"{b:.1f}", "müde" if a > 50 else "wach") for a, b in zip(AGE, BP, strict=True)]


def written(path, rows=ROWS, header=("age", "bp", "state"), separator=",", encoding="utf-8", comma=False, end="\r\n"):
    """Write a table, with decimal commas if so said."""
    lines = ([header] if header else []) + [[c.replace(".", ",") if comma else c for c in row] for row in rows]
    path.write_bytes("".join(separator.join(line) + end for line in lines).encode(encoding))
    return path


def load(path, **options):
    return load_pool("tabular", options, path, False)


def form_of(path, **given):
    return read_table(path, "tabular", Form(**given)).form


FORMS = {
    "plain": ({}, "utf-8, commas, decimal point, header"),
    "bom": ({"encoding": "utf-8-sig"}, "utf-8-sig, commas, decimal point, header"),
    "no header": ({"header": None}, "utf-8, commas, decimal point, no header"),
    "german": ({"separator": ";", "comma": True}, "utf-8, semicolons, decimal comma, header"),
    "german without header": (
        {"separator": ";", "comma": True, "header": None},
        "utf-8, semicolons, decimal comma, no header",
    ),
    "semicolons": ({"separator": ";"}, "utf-8, semicolons, decimal point, header"),
    "tabs": ({"separator": "\t"}, "utf-8, tabs, decimal point, header"),
    "tabs and decimal commas": (
        {"separator": "\t", "comma": True, "header": None},
        "utf-8, tabs, decimal comma, no header",
    ),
    "bars": ({"separator": "|"}, "utf-8, bars, decimal point, header"),
    "aligned": ({"separator": "   "}, "utf-8, spaces, decimal point, header"),
    "utf-16": ({"encoding": "utf-16"}, "utf-16, commas, decimal point, header"),
    "utf-16 without mark": ({"encoding": "utf-16-le", "separator": "\t"}, "utf-16-le, tabs, decimal point, header"),
    "utf-32": ({"encoding": "utf-32"}, "utf-32, commas, decimal point, header"),
    "latin-1": ({"encoding": "latin-1"}, "cp1252, commas, decimal point, header"),
    "unix": ({"end": "\n"}, "utf-8, commas, decimal point, header"),
    "old mac": ({"end": "\r"}, "utf-8, commas, decimal point, header"),
    "delimiters at the ends": ({"header": ("age", "bp", "state", ""), "end": ",\n"}, None),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_table_is_detected(tmp_path, name):
    """All but the first two were refused without a hint, or lost their first row."""
    options, said = FORMS[name]
    if said is None:
        options, said = {"end": ",\r\n", "header": ("age", "bp", "state")}, FORMS["plain"][1]
    path = written(tmp_path / "t.csv", **options)
    pool = load(path)
    assert (len(pool.y), pool.class_names) == (40, ("müde", "wach"))
    np.testing.assert_allclose(np.sort(pool.x, 0), np.sort(np.stack([AGE, BP], 1), 0), rtol=1e-6)
    expected = ("age", "bp") if "no header" not in said else ("column 1", "column 2")
    assert pool.preprocessing.columns == expected
    assert pool.preprocessing.reading.startswith(f"{said}; numbers: {', '.join(expected)}; to predict: ")


def test_what_was_detected_is_kept_with_the_preprocessing(tmp_path):
    preprocessing = load(written(tmp_path / "t.csv", separator=";", comma=True)).preprocessing
    again = Preprocessing.from_json(preprocessing.to_json())
    assert (again.table, again.reading) == (preprocessing.table, preprocessing.reading)
    assert again.table == Columns(
        (("age", "number"), ("bp", "number")), Form(encoding="utf-8", delimiter=";", decimal=",", header=True)
    )
    without = '{"divisor": 1.0, "mean": [0, 0], "std": [1, 1], "columns": ["a", "b"]}'
    assert Preprocessing.from_json(without).table is None
    for wrong in ('{"form": {}}', '{"form": {"x": 1}, "kinds": []}', '{"form": {}, "kinds": [["a", [1]]]}', "3"):
        with pytest.raises(TaskError, match=r"expected an object with divisor.*\(table: "):
            Preprocessing.from_json(f'{without[:-1]}, "table": {wrong}}}')


@pytest.mark.parametrize("name", ["t.csv.gz", "t.tsv.gz", "t.csv"])
def test_compressed_tables_are_read(tmp_path, name):
    path = written(tmp_path / name, separator="\t")
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(load(tmp_path).y) == 40


def test_quoted_cells_may_hold_delimiters_line_ends_and_marks(tmp_path):
    text = 'age, "remark, long" ,y\n1,"a; b, c",u\n2, "a; b, c" ,v\n3,"two\nlines",u\n4,"a; b, c",v\n'
    (tmp_path / "t.csv").write_text(text)
    pool = load(tmp_path)
    assert pool.preprocessing.columns == ("age", "remark, long=a; b, c", "remark, long=two\nlines")
    assert len(pool.y) == 4


def test_the_line_of_excel_that_names_the_separator_is_no_row(tmp_path):
    path = written(tmp_path / "t.csv", separator=";", comma=True)
    path.write_bytes(b"sep=;\r\n" + path.read_bytes())
    assert (len(load(path).y), form_of(path).header) == (40, True)


@pytest.mark.parametrize(
    ("cells", "decimal", "values"),
    [
        (["1.234,5", "999,25", "1.000"], ",", [1234.5, 999.25, 1000]),
        (["1,234.5", "999.25", "1,000"], ".", [1234.5, 999.25, 1000]),
        (["1,234,567", "1,000", "12"], ".", [1234567, 1000, 12]),
        (["1 234,5", "2 000 000,0", "3"], ",", [1234.5, 2e6, 3]),
        (["1'234.5", "7", "8"], ".", [1234.5, 7, 8]),
        (["1\u00a0234,5", "7", "8"], ",", [1234.5, 7, 8]),
        (["1e3", "-2.5E-1", "+.5"], ".", [1000, -0.25, 0.5]),
        (["1.234", "2.345", "3.456"], ".", [1.234, 2.345, 3.456]),
        (["0,512", "1,234", "2,345"], ",", [0.512, 1.234, 2.345]),
    ],
)
def test_marks_between_thousands_and_decimal_marks_are_told_apart(tmp_path, cells, decimal, values):
    rows = [(cell, label) for cell, label in zip(cells * 2, "ab" * 3, strict=True)]
    path = written(tmp_path / "t.csv", rows, ("x", "y"), ";")
    assert form_of(path).decimal == decimal
    pool = load(path)
    assert sorted(pool.x[:, 0].tolist()) == sorted(np.float32(values * 2).tolist())


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("1,5", "2.5"), ("1,7", "2.7")], r"line 2: expected one decimal mark.*, got '2\.5', and '1,5' in .* line 2"),
        (
            [("1,234", "7"), ("2,345", "8")],
            r"line 2: expected a number, got '1,234', which may have a thousand or a fraction.* decimal",
        ),
        (
            [("1,5", "1.234"), ("1,7", "2.345")],
            r"line 2: expected a number, got '1\.234', which may have a thousand or a fraction",
        ),
    ],
)
def test_numbers_that_may_mean_two_things_are_refused(tmp_path, rows, words):
    path = written(
        tmp_path / "t.csv", [(*row, label) for row, label in zip(rows * 2, "abab", strict=True)], ("p", "q", "y"), ";"
    )
    with pytest.raises(TaskError, match=words):
        load(path)


@pytest.mark.parametrize(("decimal", "value"), [(".", 1234.0), (",", 1.234)])
def test_the_option_decimal_says_what_a_number_means(tmp_path, decimal, value):
    path = written(tmp_path / "t.csv", [("1,234", "a"), ("1,234", "b")] * 2, ("x", "y"), ";")
    assert set(load(path, decimal=decimal).x.ravel().tolist()) == {np.float32(value)}


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("age,dose,y\n1,2,a\n3,4,b\n", True),
        ("1,2,a\n3,4,b\n5,6,a\n", False),
        ("a,1\nb,2\na,3\n", False),
        ("0,1,2,y\n5.5,6,7,u\n8,9,10,v\n", True),  # numbers of columns, as pandas writes them
        ("y,0,1,2\nu,5.5,6,7\nv,8,9,10\n", True),
        ("site,2019,2020,y\nA,1,2,u\nB,3,4,v\nA,5,6,u\n", True),
        ("1,2\n3,4\n5,6\n", False),
        ("0,1\n1,0\n0,0\n", False),
        ("1,2,3\n4,5,6\n7,8,9\n", False),
        ("color,size,y\nred,big,u\nblue,small,v\nred,big,u\n", True),
        ("red,big,u\nblue,small,v\nred,big,u\n", False),
        ("NA,1.5,u\n2,3,v\n4,5,u\n", False),
        ("p,q\n,\n1,2\n3,4\n", True),
    ],
)
def test_a_header_is_told_from_a_row_of_data(tmp_path, text, header):
    (tmp_path / "t.csv").write_text(text)
    assert form_of(tmp_path / "t.csv").header is header


def test_the_numbers_of_columns_that_pandas_writes_are_asked_for(tmp_path):
    (tmp_path / "t.csv").write_text("0,1,2\n5.5,6,7\n8,9,7\n")
    with pytest.raises(TaskError, match=r"got '0, 1, 2' above numbers.* and '0', as in a row"):
        load(tmp_path, kind="regression")
    assert load(tmp_path, kind="regression", header=True).preprocessing.columns == ("0", "1")


def test_a_first_row_that_may_be_both_is_refused_until_the_option_says_what_it_is(tmp_path):
    (tmp_path / "t.csv").write_text("age,2019,y\n5,1,u\n6,2,v\n7,3,u\n8,4,v\n")
    with pytest.raises(
        TaskError, match=r"t\.csv line 1: expected .*, got 'age' above numbers.* and '2019'.*task_options\.header"
    ):
        load(tmp_path)
    assert load(tmp_path, header=True).preprocessing.columns == ("age", "2019")
    with pytest.raises(
        TaskError, match=r"line 1, column 1: expected a finite number, got 'age' \(1 cell of 5 are no numbers\)"
    ):
        load(tmp_path, header=False)


WARD = "ward,age,admitted,y\n" + "".join(
    f"{('heart', 'lung', 'surgery')[n % 3]},{n},2024-03-{n + 1:02},{'uv'[n % 2]}\n" for n in range(12)
)


def test_texts_and_dates_become_inputs(tmp_path):
    (tmp_path / "t.csv").write_text(WARD)
    pool = load(tmp_path, standardize=False)
    assert pool.preprocessing.columns == ("ward=heart", "ward=lung", "ward=surgery", "age", "admitted")
    first = pool.x[pool.x[:, 3] == 0][0]
    assert first.tolist() == [1, 0, 0, 0, 19783]  # days since 1970-01-01
    assert "dates, in days since 1970-01-01: admitted; text, one input for each: ward (heart, lung, surgery)" in (
        pool.preprocessing.reading
    )
    named = load(tmp_path, categories=["ward=surgery", "ward=lung", "ward=heart", "ward=eye"], ignore=["admitted"])
    assert named.preprocessing.columns == ("ward=surgery", "ward=lung", "ward=heart", "ward=eye", "age")
    with pytest.raises(TaskError, match=r"line 4, ward: expected one of heart, lung.*, got 'surgery'"):
        load(tmp_path, categories=["ward=heart", "ward=lung"])


def test_times_with_a_zone_are_instants(tmp_path):
    lines = ["when,y", *["2024-01-02T00:00:00+02:00,a", "2024-01-01 22:00,b"] * 2]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert set(load(tmp_path, standardize=False).x.ravel().tolist()) == {np.float32(19723 + 22 / 24)}


def test_times_in_seconds_keep_their_differences(tmp_path):
    lines = ["time,y", *(f"{1_750_000_000 + n},{'ab'[n % 2]}" for n in range(50))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    pool = load(tmp_path)
    scaled = pool.gather(np.arange(50), np.zeros(50, int))
    assert len(np.unique(scaled)) == 50


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b,y\n1,2,u\n3,v\n", {}, r"line 3: expected 3 cells.*, got 2.*delimiter"),
        (
            "a,b,y\n" + "1,2,u\n" * 4 + "<5,2,v\n",
            {},
            r"line 6, a: expected a finite number, got '<5' \(1 cell of 5 are no numbers\)",
        ),
        ("a,b,y\n" + "1,2,u\n" * 4 + "inf,2,v\n", {}, "line 6, a: expected a finite number, got 'inf'"),
        ("a,b,y\n" + "1,2,u\n" * 4 + "1e999,2,v\n", {}, "line 6, a: expected a finite number, got '1e999'"),
        ("a,b,y\n" + "1,2,u\n" * 4 + "1_0,2,v\n", {}, "line 6, a: expected a finite number, got '1_0'"),
        ("a,b,y\n50%,2,u\n20%,3,v\n", {}, "line 2, a: expected a number, or a text, got '50%', a number with a sign"),
        (
            "a,b,y\n03/04/2024,2,u\n05/04/2024,3,v\n",
            {},
            "line 2, a: expected dates .*, got '03/04/2024', which seems to be a date",
        ),
        ("a,b,y\n2024-01-02,2,u\n2024-13-45,3,v\n", {}, "line 3, a: expected a date.*, got '2024-13-45'"),
        ("a,b,y\n,2,u\n,3,v\n", {}, "expected a row with all values, got none: 'a' has none"),
        (
            "name,b,y\n" + "".join(f"n{i},{i},{'uv'[i % 2]}\n" for i in range(60)),
            {},
            "name: expected at most 50 different texts that repeat, got 60",
        ),
        ("a,a,y\n1,2,u\n3,4,v\n", {}, "expected one column named 'a', got 2. Rename them"),
        ("a,b,y\n1,2,Sick\n3,4,sick\n", {}, "y: expected different texts, got 'Sick' and 'sick', which look alike"),
        ("a,b,y\n1,2,ill\n3,4,\uff49\uff4c\uff4c\n", {}, "which look alike"),
        ("a,w,y\n1,Lung,u\n3,lung,v\n", {}, "w: expected different texts, got 'Lung' and 'lung', which look alike"),
        (
            "a,y\n" + "".join(f"{i},{i / 7:.3f}\n" for i in range(40)),
            {},
            "got 40 different numbers .*kind=regression",
        ),
        ("a,b,y\n1,2,u\n3,4,v\n", {"missing": "mean"}, "task_options.missing: expected refuse or drop, got 'mean'"),
        ("a,b,y\n1,2,u\n3,4,v\n", {"ignore": ["c"]}, "task_options.ignore: expected a list of columns.*, got 'c'"),
        ("a,b,y\n1,2,u\n3,4,v\n", {"ignore": ["y"]}, "task_options.ignore: expected .*, got 'y'"),
        (
            "a,b,y\n1,2,u\n3,4,v\n",
            {"categories": ["c=1"]},
            "task_options.categories: expected .*'column=text'.*, got 'c=1'",
        ),
        ("a,b,y\n1,2,u\n3,4,v\n", {"header": "yes"}, "task_options.header: expected true or false, got 'yes'"),
        ("a,b,y\n1,2,u\n3,4,v\n", {"decimal": "'"}, "task_options.decimal: expected"),
        ("a,b,y\n1,2,u\n3,4,v\n", {"delimiter": "::"}, "task_options.delimiter: expected one character.*, got '::'"),
        (
            "a,b,y\n1,2,u\n3,4,v\n",
            {"encoding": "utf-99"},
            "task_options.encoding: expected the name of an encoding, .*, got 'utf-99'",
        ),
        ('a,b,y\n1,2,u\n3,4,"v\n5,6,u\n', {}, "cannot be read (unexpected end of data). Correct the quotation marks"),
    ],
)
def test_what_cannot_be_right_is_refused_with_file_and_line(tmp_path, text, options, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TaskError, match=words) as refused:
        load(tmp_path, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\x03\x04" + bytes(30), "expected text or Parquet, got an Excel file or an archive. Save the sheet as CSV"),
        (codecs.BOM_UTF16_LE + b"a", "cannot be read"),
        (b"\x1f\x8bnothing", "cannot be read"),
        (bytes(range(1, 256)), "expected text, got the character"),
        (b"PAR1 and nothing more", "cannot be read"),
        (b"", "expected .*, got no data"),
        (b"\r\n\r\n", "expected .*, got no data"),
    ],
)
def test_other_files_are_refused(tmp_path, data, words):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(TaskError, match=words):
        load(tmp_path)


LABELS = ["sick", "well"] * 10


@pytest.mark.parametrize("missing", ["", "NA", "nan", "NULL", "n/a", "null"])
def test_missing_labels_are_no_class(tmp_path, missing):
    """They became a class called "", "NA" or "nan"."""
    labels = [missing if n % 5 == 0 else label for n, label in enumerate(LABELS)]
    path = written(tmp_path / "t.csv", [(str(n), label) for n, label in enumerate(labels)], ("age", "outcome"))
    with pytest.raises(
        TaskError, match=rf"line 2, outcome: expected a value, got '{missing}'. 4 of 20 rows .*: 2, 7, 12, 17\."
    ):
        load(path)
    pool = load(path, missing="drop")
    assert (len(pool.y), pool.class_names) == (16, ("sick", "well"))
    assert "left out: 4 rows without a value" in pool.preprocessing.reading
    listed = load(path, classes=["sick", "well", missing])  # a text that is listed is a class
    assert (len(listed.y), listed.classes) == (20, 3)


def test_rows_without_an_input_are_refused_or_left_out(tmp_path):
    (tmp_path / "t.csv").write_text("a,w,y\n1,u,p\n,v,q\n3,NA,p\n4,v,q\n5,u,p\n")
    with pytest.raises(TaskError, match=r"line 3, a: expected a value, got ''. 2 of 5 rows lack one: 3, 4"):
        load(tmp_path)
    assert sorted(load(tmp_path, missing="drop").x[:, 0].tolist()) == [1, 4, 5]


def test_labels_that_are_whole_numbers_are_integers_in_each_form(tmp_path):
    """Pandas writes 1 as 1.0 where a column lacks a value; the sites then had other classes."""
    for name, texts in (("plain", ("0", "1")), ("float", ("0.0", "1.0"))):
        path = written(tmp_path / f"{name}.csv", [(str(n), texts[n % 2]) for n in range(10)], ("a", "y"))
        assert load(path).class_names == ("0", "1")
        assert load(path, classes=[1, 0]).class_names == ("1", "0")
        assert load(path, classes=["0.0", "1.0"]).class_names == ("0.0", "1.0")
    codes = written(tmp_path / "codes.csv", [(str(n), ("01", "02")[n % 2]) for n in range(10)], ("a", "y"))
    assert load(codes).class_names == ("01", "02")


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (pd.Series(["u", "v", None] * 6), ("u", "v")),
        (pd.Series([0.0, 1.0, np.nan] * 6), ("0", "1")),
        (pd.Series([0, 1, None] * 6, dtype="Int64"), ("0", "1")),
        (pd.Series([True, False, None] * 6, dtype="boolean"), ("False", "True")),
        (pd.Series(["u", "v", None] * 6, dtype="category"), ("u", "v")),
        (pd.Series(["u", "v", None] * 6, dtype="string"), ("u", "v")),
    ],
)
def test_parquet_columns_of_every_type_keep_their_meaning(tmp_path, column, names):
    frame = pd.DataFrame({"a": np.arange(18) / 2, "day": pd.date_range("2024-03-01", periods=18), "y": column})
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(TaskError, match=r"t\.parquet row 3, y: expected a value, got ''. 6 of 18 rows"):
        load(tmp_path)
    pool = load(tmp_path, missing="drop", standardize=False)
    assert (len(pool.y), pool.class_names) == (12, names)
    assert pool.x[:, 1].min() == 19783
    assert pool.preprocessing.reading.startswith(
        "Parquet; numbers: a; dates, in days since 1970-01-01: day; to predict: y"
    )


def test_composed_and_decomposed_letters_are_one_label(tmp_path):
    rows = [(str(n), ("m\u00fcde", "mu\u0308de", "wach")[n % 3]) for n in range(12)]
    assert load(written(tmp_path / "t.csv", rows, ("a", "y"))).class_names == ("müde", "wach")


def test_the_documentation_names_each_option_of_a_table():
    text = (Path(__file__).parents[3] / "docs" / "your-own-task.md").read_text()
    section = text.split("\n### Tables\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(TableOptions.model_fields)
